# SPDX-License-Identifier: LGPL-2.1-only
"""xapi starts the driver anew for every call, and asks each for its info when it starts itself."""

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

pytestmark = pytest.mark.processes


def imported(command):
    argv = [sys.executable, "-c", LISTER, DRIVER, call(command)]
    done = subprocess.run(argv, check=True, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(done.stdout.decode()), done.stderr.decode()


def test_driver_info_imports_nothing_of_this_project():
    modules, answer = imported("sr_get_driver_info")

    assert "LVHD over iSCSI with resigning of duplicates" in answer
    assert [name for name in modules if name.partition(".")[0] in ("relvmoiscsi", "xmlrpc", "http", "email")] == []


def test_a_call_that_is_refused_for_its_words_imports_no_engine():
    modules, answer = imported("sr_create")

    assert "ConfigTargetMissing" in answer
    assert "relvmoiscsi.sr_driver.iscsi.iscsi_config" in modules
    needless = ("relvmoiscsi.sr_driver.create", "relvmoiscsi.engine", "relvmoiscsi.host.disk.block_device")
    assert [name for name in modules if name in needless] == []
    assert [name for name in modules if name.startswith("relvmoiscsi.cli")] == []
