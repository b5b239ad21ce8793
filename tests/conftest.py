# SPDX-License-Identifier: LGPL-2.1-only
"""What holds for every test: how hypothesis searches, what a unit test may not touch, who may skip.

pyproject.toml puts the top directory and tests/ on the path, so `import relvmoiscsi` and `from support import ...`
work from anywhere.
"""

import builtins
import ctypes
import gc
import io
import os
import re
import signal
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest

from kit import examples
from kit.examples import IS_36

HERE = Path(__file__).resolve().parent
JUDGED = HERE / "judged"
#: Not in the part of Python 3.6: tests of the kit, of which nothing is installed; of what sources and pages say; and of
#: a run that another client overtakes at each of its moments; resignature/recovery/test_overtaken.py has the fence.
ONE_PYTHON = [
    HERE / place
    for place in (
        "kit_tests",
        "unit/bench",
        "unit/docs",
        "unit/host/disk/test_overtaken_on_disk.py",
        "unit/iscsi/test_overtaken_over_iscsi.py",
        "unit/sr_driver/iscsi/test_driver_overtaken.py",
        "unit/tools",
        "unit/test_architecture.py",
        "unit/test_error_numbers.py",
        "unit/test_printed_commands.py",
    )
]
IN_CI = os.environ.get("CI") == "true"

if not os.environ.get("RELVMOISCSI_VM"):
    from kit.search import load_profile

    load_profile(IN_CI)

#: functions that start a process; not every Python has every one
STARTERS = ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")

#: opened by the standard library for its own purposes, or not a device at all
HARMLESS = ("/dev/null", "/dev/shm/")
NULL_DEVICE = os.makedev(1, 3)


# Thousands of tests live to the end: to look at all of them again and again takes a fifteenth of the time.
gc.set_threshold(50000, 20, 50)


def pytest_addoption(parser):
    parser.addoption("--sample", action="store_true", help="`make test`: of states a part, on Python 3.6 a smoke")


def pytest_configure(config):
    # A shell's background ignores SIGINT, and `nohup` ignores SIGHUP; so would each command that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header():
    if examples.WHOLE:
        return "every state and step"
    return f"states and steps are sampled: RELVMOISCSI_SEED={examples.SEED} takes the same ones again"


def pytest_ignore_collect(collection_path, config):
    return True if _is_smoke(config) and collection_path in ONE_PYTHON else None


def pytest_collection_modifyitems(config, items):
    judged = {path for path in {item.path for item in items} if JUDGED in path.parents}
    for item in items:
        if item.path in judged:
            item.add_marker("root")
        elif item.get_closest_marker("root"):
            raise pytest.UsageError(f"{item.nodeid} has the mark `root`, which is for tests/judged")
    if config.getoption("--sample"):
        kept = set(_smoke(items) if _is_smoke(config) else _sampled(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _is_smoke(config):
    """Python 3.6 runs each way through the code that interpreters may differ in, and a smoke of every other room."""
    return IS_36 and config.getoption("--sample")


#: of so many values of one kind, or fewer, all are taken; a mark may say another number
FEW = 2


def _sampled(items):
    """Of the tests marked `states`, whose values differ in data and not in code: each kind of value, and of a kind that
    has many, a fourth.
    """
    kinds = {}
    for item in items:
        for mark in {mark.args: mark for mark in reversed(list(item.iter_markers("states")))}.values():
            kinds.setdefault(_kind(item, mark.args), (mark, []))[1].append(item)
    left_out = set()
    # The values of a parameter first: a test in all states of a LUN, or of a pool, plays one release of xapi.
    for kind, (mark, alike) in sorted(kinds.items(), key=lambda pair: not pair[1][0].args):
        few, values = mark.kwargs.get("few", FEW), [item for item in alike if item not in left_out]
        if len(values) > few:
            count = max(few, len(values) // 4)
            left_out |= set(values) - set(examples.dice(kind).sample(values, count))
    return [item for item in items if item not in left_out]


def _kind(item, parameters):
    """What the values of one kind have in common: all but the digits of their ids ("cut at write 7" and "... 12"). Or,
    where the mark names parameters or fixtures, all but the values of these: `states("lun", few=2)`.
    """
    if not parameters:
        return re.sub("[0-9]+", "", item.nodeid)
    values = item.callspec.params
    assert set(parameters) <= set(values), f"{item.nodeid} has no {' or '.join(parameters)}"
    others = {name: getattr(value, "__name__", value) for name, value in values.items() if name not in parameters}
    return f"{item.nodeid.split('[')[0]} {sorted(others.items())}"


#: of the command, what talks to the interpreter; what it does to a pool or a LUN is no matter of that
OF_CLI = ["guard", "help", "imports", "interrupted", "json", "output", "record", "settings_command"]
#: rooms and modules that talk to the interpreter: argparse, processes, sockets, signals, encodings
OF_INTERPRETERS = [
    HERE / "unit" / place
    for place in (
        *(f"cli/test_{name}.py" for name in OF_CLI),
        *("host", "iscsi", "sr_driver", "supp_pack", "test_plugin.py"),
    )
]


def _smoke(items):
    """One value of each test in the rooms that talk to the interpreter; in every other module of each sixth test."""
    modules = {}
    for item in items:
        modules.setdefault(item.path, {}).setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = []
    for path, tests in modules.items():
        chance = examples.dice(str(path.relative_to(HERE)))
        wholly = [test for test, values in tests.items() if _talks_to_interpreter(path, values[0])]
        others = [test for test in tests if test not in wholly]
        others = chance.sample(others, -(-len(others) // 6))
        kept += [chance.choice(tests[test]) for test in wholly + others]
    return kept


def _talks_to_interpreter(path, item):
    return item.get_closest_marker("processes") or any(room in [path, *path.parents] for room in OF_INTERPRETERS)


LIBC = ctypes.CDLL(None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    # malloc keeps what threads have freed, in the end more than a gigabyte, and each fork takes longer for that.
    if nextitem is not None and nextitem.path != item.path and hasattr(LIBC, "malloc_trim"):  # glibc has it
        LIBC.malloc_trim(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("root"):
        require_root()
    guard(not (item.get_closest_marker("root") or item.get_closest_marker("processes")))


def require_root():
    if os.geteuid() == 0:
        return
    reason = "needs root for loop devices and real LVM2; run `make judges` as root"
    if IN_CI:
        pytest.fail(reason + "; in CI this may not be skipped", pytrace=False)
    pytest.skip(reason)


# Guards that hold in most tests are no fixtures: one that each test has takes a fifth of a millisecond of each.
GUARD = pytest.MonkeyPatch()


def guard(wanted):
    """A unit test that starts a process or opens something in /dev fails, whatever the code under test catches."""
    if wanted == (subprocess.Popen.__init__ is forbidden):
        return
    if not wanted:
        GUARD.undo()
        return
    GUARD.setattr(subprocess.Popen, "__init__", forbidden)
    for name in STARTERS:
        if hasattr(os, name):
            GUARD.setattr(os, name, partial(refuse, "os." + name))
    for module in (builtins, io, os):
        GUARD.setattr(module, "open", without_devices(module.open))


@pytest.fixture(autouse=True, scope="session")
def unless_a_test_says_otherwise():
    """One fixture for a process: each that a test has takes a fifth of a millisecond of each test."""
    with pytest.MonkeyPatch.context() as patch:
        # A run that is settled in a test was begun by nobody who still writes, or by the test itself: no wait.
        patch.setattr("relvmoiscsi.device.Fence.OUTLAST_SECONDS", 0.0)
        # A run gives a pool that does not answer a moment, not the time in which a toolstack restarts.
        patch.setattr("relvmoiscsi.pool.lock.RELEASE_SECONDS", 0.01)
        # Sentences of the command stand in one line; unit/cli/test_output.py has what is wrapped.
        patch.setenv("COLUMNS", "1000")
        yield


def forbidden(_popen, *args, **_):
    refuse("subprocess.Popen", *args)


def refuse(name, *args, **_):
    pytest.fail(f"a unit test called {name}{args!r}; mark it `processes` if it must")


def without_devices(real_open):
    def guarded_open(file, *args, **kwargs):
        if isinstance(file, int) or args and isinstance(args[0], int) and args[0] & os.O_PATH:
            pass  # opens no device
        elif is_device(os.fsdecode(file)):
            pytest.fail(f"a unit test opened {os.path.realpath(os.fsdecode(file))}; mark it `processes` if it must")
        return real_open(file, *args, **kwargs)

    return guarded_open


def is_device(path):
    """A path of /dev, or what a link leads to. One question to the kernel: a search opens all of /proc."""
    if path.startswith("/dev/"):
        real = os.path.realpath(path)
        return real.startswith("/dev/") and not real.startswith(HARMLESS)
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode) and status.st_rdev != NULL_DEVICE
