# SPDX-License-Identifier: LGPL-2.1-only
"""Tests here run inside the VM that tools/e2e.sh boots, and are not even collected anywhere else.

A test gets the fixture `lab` (lab/bench.py). After each one the world must be as it was before: what the lab made is
taken away by the lab, everything else must have been taken away by what was tested.
"""

import os
from pathlib import Path

import pytest

from lab.bench import Lab
from lab.guest import Guest
from lab.world import World, assert_untouched

HERE = Path(__file__).resolve().parent
IN_VM = bool(os.environ.get("RELVMOISCSI_VM"))

collect_ignore_glob = [] if IN_VM else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(str(item.fspath)).parents:
            item.add_marker("vm")
            item.add_marker("processes")


@pytest.fixture(scope="session")
def guest():
    """The host, set up once."""
    guest = Guest().setup()
    yield guest
    guest.teardown()


@pytest.fixture(autouse=True)
def lab(guest):
    """A bench to work on, cleared afterwards; then the world must be as it was."""
    before = World.now()
    bench = Lab(guest)
    yield bench
    bench.clear()
    assert_untouched(before, except_for=["processes:{}".format(guest.iscsid.pid)] + gone_iscsid(before))


def gone_iscsid(before):
    """The iscsid of before may have been killed, and started again by the lab."""
    return ["processes:" + pid for pid, command in before["processes"].items() if command.startswith("/sbin/iscsid")]
