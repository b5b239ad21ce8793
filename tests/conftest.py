# SPDX-License-Identifier: LGPL-2.1-only
"""What holds for every test: how hypothesis searches, what a unit test may not touch, who may skip.

pyproject.toml puts the top directory and tests/ on the path, so `import relvmoiscsi` and `from support import ...`
work from anywhere.
"""

import builtins
import gc
import io
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from kit.examples import IS_36

HERE = Path(__file__).resolve().parent
JUDGED = HERE / "judged"
#: tests of the kit, of which nothing is installed, and of what sources and pages say: not in the part of Python 3.6
ONE_PYTHON = [
    HERE / place for place in ("kit_tests", "unit/bench", "unit/docs", "unit/tools", "unit/test_architecture.py")
]
IN_CI = os.environ.get("CI") == "true"

if not os.environ.get("RELVMOISCSI_VM"):
    from kit.search import load_profile

    load_profile(IN_CI)

#: functions that start a process; not every Python has every one
STARTERS = ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")

#: opened by the standard library for its own purposes, or not a device at all
HARMLESS = ("/dev/null", "/dev/shm/")


# Thousands of tests live to the end: to look at all of them again and again takes a fifteenth of the time.
gc.set_threshold(50000, 20, 50)


def pytest_addoption(parser):
    text = "a part: Python 3.6 runs a fourth of the tests marked `states`, and in `make test` the newer one the others"
    parser.addoption("--states", choices=["all", "fourth", "others"], help=text)


def pytest_ignore_collect(collection_path, config):
    return True if _states(config) == "fourth" and collection_path in ONE_PYTHON else None


def pytest_collection_modifyitems(config, items):
    judged = {path for path in {item.path for item in items} if JUDGED in path.parents}
    for item in items:
        if item.path in judged:
            item.add_marker("root")
        elif item.get_closest_marker("root"):
            raise pytest.UsageError(f"{item.nodeid} has the mark `root`, which is for tests/judged")
    part = _states(config)
    if part != "all":
        kept = _part(part, items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _states(config):
    return config.getoption("--states") or ("fourth" if IS_36 else "all")


#: a test that is tried with so many values or more is one whose values are data, not ways through the code: Python 3.6
#: takes each fourth, and each eighth of twice as many
MANY = 4


def _part(part, items):
    """Of the states of a LUN in use or after a cut, and of a pool whose client was killed, which differ in data and not
    in code, the first, fifth, ninth ... of each test are in one part, and the others in the other; a test of one state
    is in both, and the golden ones are, unless it cuts them at every write. Of another test that has `MANY` values or
    more Python 3.6 takes each fourth as well, and the newer one takes all.
    """
    kept, tests = set(), {}
    for item in items:
        tests.setdefault((item.nodeid.split("[")[0], _kind(item)), []).append(item)
    for (_, kind), values in tests.items():
        fourth = set(values[:: _step(kind, len(values))])
        others = set(values) - fourth if kind == "states" else set(values)
        kept |= fourth if part == "fourth" else others or fourth
    return kept


def _step(kind, count):
    """Python 3.6 takes each so many'th of `count` values."""
    if kind == "states":
        return 4
    return 1 if kind == "golden" or count < MANY else 4 if count < 2 * MANY else 8


def _kind(item):
    """What a test goes through: the golden LUNs, states that the two Pythons share, or other values, if any."""
    if "golden" in item.nodeid and "_cut_" not in item.name:
        return "golden"
    return "states" if item.get_closest_marker("states") else "values"


def pytest_runtest_setup(item):
    if item.get_closest_marker("root") is None or os.geteuid() == 0:
        return
    reason = "needs root for loop devices and real LVM2; run `make judges` as root"
    if IN_CI:
        pytest.fail(reason + "; in CI this may not be skipped", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_process_and_no_device(request):
    """A unit test that starts a process or opens something in /dev fails, whatever the code under test catches."""
    if request.node.get_closest_marker("root") or request.node.get_closest_marker("processes"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", lambda _popen, *args, **_: refuse("subprocess.Popen", *args))
        for name in STARTERS:
            if hasattr(os, name):
                patch.setattr(os, name, partial(refuse, "os." + name))
        for module in (builtins, io, os):
            patch.setattr(module, "open", without_devices(module.open))
        yield


def refuse(name, *args, **_):
    pytest.fail(f"a unit test called {name}{args!r}; mark it `processes` if it must")


def without_devices(real_open):
    def guarded_open(file, *args, **kwargs):
        if not isinstance(file, int):
            path = os.path.realpath(os.fsdecode(file))
            if path.startswith("/dev/") and not path.startswith(HARMLESS):
                pytest.fail(f"a unit test opened {path}; mark it `processes` if it must")
        return real_open(file, *args, **kwargs)

    return guarded_open
