# SPDX-License-Identifier: LGPL-2.1-only
"""What holds for every test: how hypothesis searches, what a unit test may not touch, who may skip.

pyproject.toml puts the top directory and tests/ on the path, so `import relvmoiscsi` and `from support import ...`
work from anywhere.
"""

import builtins
import io
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kit.examples import IS_36, examples

HERE = Path(__file__).resolve().parent
JUDGED = HERE / "judged"
#: tests of the kit, of which nothing is installed, and of what sources and pages say: not in the part of Python 3.6
ONE_PYTHON = [
    HERE / place for place in ("kit_tests", "unit/bench", "unit/docs", "unit/tools", "unit/test_architecture.py")
]
IN_CI = os.environ.get("CI") == "true"

# A time per example says more about the machine than about the code. CI looks at the same examples every time, so that
# a red run is about the change; the random search is what people run. Python 3.6 takes a fourth, as of `--states`:
# what a test asks for of its own it asks of `kit.examples`.
everywhere = {
    "deadline": None,
    # a sector or a metadata area of chance bytes is large, and how many are too large is a matter of the seed
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "max_examples": examples(settings.default.max_examples),
}
settings.register_profile("dev", **everywhere)
settings.register_profile("ci", derandomize=True, print_blob=True, **everywhere)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))

#: functions that start a process; not every Python has every one
STARTERS = ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")

#: opened by the standard library for its own purposes, or not a device at all
HARMLESS = ("/dev/null", "/dev/shm/")


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


def _part(part, items):
    """Of the states of a LUN in use or after a cut, and of a pool whose client was killed, which differ in data and not
    in code, the first, fifth, ninth ... of each test are in one part, and the others in the other; a test of one state
    is in both, and the golden ones are, unless it cuts them at every write.
    """
    kept, tests = set(), {}
    for item in items:
        if item.get_closest_marker("states") is None or "golden" in item.nodeid and "_cut_" not in item.name:
            kept.add(item)
        else:
            tests.setdefault(item.nodeid.split("[")[0], []).append(item)
    for states in tests.values():
        fourth = set(states[::4])
        kept |= fourth if part == "fourth" else set(states) - fourth or fourth
    return kept


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
