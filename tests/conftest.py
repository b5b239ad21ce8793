# SPDX-License-Identifier: LGPL-2.1-only
"""What holds for every test: how hypothesis searches, what a unit test may not touch, who may skip.

pyproject.toml puts the top directory and tests/ on the path, so `import relvmoiscsi` and `from support import ...`
work from anywhere.
"""

import builtins
import io
import os
import platform
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

JUDGED = Path(__file__).resolve().parent / "judged"
JUDGES_OF_CHAINS = JUDGED.parent / "kit_tests" / "chains"
IN_CI = os.environ.get("CI") == "true"

# A time per example says more about the machine than about the code. CI looks at the same examples every time, so that
# a red run is about the change; the random search is what people run.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))

#: functions that start a process; not every Python has every one
STARTERS = ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")

#: opened by the standard library for its own purposes, or not a device at all
HARMLESS = ("/dev/null", "/dev/shm/")


def pytest_addoption(parser):
    text = "a part of the tests marked `states`: Python 3.6 runs a fourth, and in `make test` the other one the others"
    parser.addoption("--states", choices=["all", "fourth", "others"], help=text)


def pytest_collection_modifyitems(config, items):
    judged = {path for path in {str(item.fspath) for item in items} if JUDGED in Path(path).parents}
    for item in items:
        if str(item.fspath) in judged:
            item.add_marker("root")
    _divide_states(config, items)


def _divide_states(config, items):
    """Leave out what `--states` says, of the states of a LUN in use or after a cut, which differ in data and not in
    code: every fourth is in one part, the others in the other, the golden ones in both. The tests of judges of chains
    go with the others, as nothing that is installed runs in them. pytest says how many it were.
    """
    wanted = config.getoption("--states") or ("fourth" if platform.python_version().startswith("3.6.") else "all")
    states = [item for item in items if item.get_closest_marker("states") and "[" in item.nodeid]
    built = sorted(item.nodeid for item in states if "golden" not in item.nodeid)
    fourth = set(built[::4])
    judges = {item.nodeid for item in items if JUDGES_OF_CHAINS in Path(str(item.fspath)).parents}
    left_out = {"all": set(), "fourth": (set(built) - fourth) | judges, "others": fourth}[wanted]
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


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
