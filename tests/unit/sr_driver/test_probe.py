# SPDX-License-Identifier: LGPL-2.1-only
"""A probe waits for nobody: xapi attaches no disk on this host while it runs."""

from contextlib import contextmanager
from xml.etree import ElementTree

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.host.locks.sm_locks import Busy
from relvmoiscsi.sr_driver import attach, probe
from relvmoiscsi.sr_driver.attach import LOGOUT_LOCK_SECONDS, Access
from relvmoiscsi.sr_driver.config import parse_config
from relvmoiscsi.sr_driver.protocol import Call


@pytest.fixture
def probing(monkeypatch):
    """A probe whose LUN cannot be reached for this reason; what it was given."""

    def ends_in(error):
        found = []

        @contextmanager
        def attached(access):
            found.append(access)
            raise error
            yield

        def access_of(call, config, xapi, smlog, deadline):
            return Access(config, None, None, None, False, "", deadline)

        monkeypatch.setattr(probe, "attached", attached)
        monkeypatch.setattr(probe, "access_of", access_of)
        return probe.sr_probe(
            Call("sr_probe", {}), parse_config(DEVICE_CONFIG), None, None, Deadline(50, Clock())
        ), found[0]

    return ends_in


def test_where_somebody_is_at_work_it_says_so_at_once(probing):
    answer, access = probing(Busy("The lock /var/lock/sm/x is held by process 12."))

    (row,) = ElementTree.fromstring(answer).findall("SR")
    assert {field.tag: field.text for field in row} == {
        "Devlist": SCSI_ID,
        "state": "busy",
        "problem": "The lock /var/lock/sm/x is held by process 12.",
    }
    assert access.lock_seconds == 0
    assert access.deadline.left == 20


def test_anything_else_is_an_error(probing):
    with pytest.raises(NotFound, match="no such LUN"):
        probing(NotFound("There is no such LUN."))


def test_only_its_logout_waits_some_seconds(monkeypatch):
    made = []

    class OpenIscsi:
        def __init__(self, lock_seconds, deadline):
            made.append((lock_seconds, deadline.left))

        def logout(self, login, done_with=None):
            made.append(login)

    monkeypatch.setattr(attach, "OpenIscsi", OpenIscsi)
    clock = Clock()
    deadline = Deadline(20, clock)
    clock.now += 20
    access = Access(parse_config(DEVICE_CONFIG), None, None, None, False, "", deadline, lock_seconds=0)

    attach.log_out(access, "the login")

    assert made == [(LOGOUT_LOCK_SECONDS, CLEANUP_SECONDS), "the login"]
