# SPDX-License-Identifier: LGPL-2.1-only
"""xapi starts the driver anew for every call: it imports what the call needs, and nothing that is slow to import."""

import json
import os
import subprocess
import sys

import pytest

from bench.startup import call

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DRIVER = os.path.join(ROOT, "drivers", "ReLVMoISCSISR")

#: runs a program and prints what it has imported beside what the interpreter brings along
LISTER = """
import json, os, runpy, sys
before = set(sys.modules)
os._exit = sys.exit  # the driver ends at once, and there is more to be said here
sys.argv = sys.argv[1:]
stdout, sys.stdout = sys.stdout, sys.stderr
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
stdout.write(json.dumps(sorted(set(sys.modules) - before)))
"""

#: slow to import, and of no use to a driver; with what pulls them in
NEEDLESS = {
    "argparse": "the command line's",
    "asyncio": "",
    "email": "",
    "http.client": "",
    "ssl": "",
    "xmlrpc.client": "it brings http.client, email and ssl",
    "concurrent.futures": "on Python 3.6 it brings multiprocessing",
    "multiprocessing": "",
    "optparse": "",
    "pathlib": "",
    "pydoc": "",
    "tempfile": "it brings random and shutil",
    "unittest": "",
    "ctypes": "to ask a disk and to write one",
    "ipaddress": "to compare portals",
    "socket": "to speak to xapi and to portals",
    "subprocess": "to run programs",
    "urllib.request": "it brings tempfile and hashlib",
    "uuid": "it runs programs on some releases",
    "xml.dom.minidom": "",
    "xml.etree.ElementTree": "",
}

pytestmark = pytest.mark.processes


def imported(command):
    argv = [sys.executable, "-c", LISTER, DRIVER, call(command)]
    done = subprocess.run(argv, check=True, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(done.stdout.decode()), done.stderr.decode()


def test_driver_info_imports_nothing_of_this_project():
    modules, answer = imported("sr_get_driver_info")

    assert "LVHD over iSCSI with resigning of duplicates" in answer
    assert [name for name in modules if name.partition(".")[0] == "relvmoiscsi"] == []
    assert [name for name in modules if name in NEEDLESS] == []


def test_create_imports_nothing_that_is_slow_and_not_needed():
    modules, answer = imported("sr_create")

    assert "ConfigTargetMissing" in answer
    assert "relvmoiscsi.sr_driver.iscsi.config" in modules
    needless = ("relvmoiscsi.sr_driver.calls", "relvmoiscsi.engine", "relvmoiscsi.host.disk.block_device")
    assert [name for name in modules if name in needless] == []
    assert [name for name in modules if name in NEEDLESS] == []
    assert [name for name in modules if name.startswith("relvmoiscsi.cli")] == []
