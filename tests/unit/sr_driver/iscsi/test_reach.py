# SPDX-License-Identifier: LGPL-2.1-only
"""What SM finds of a session of ours, it does not look for again: its SR gets it from us, at the end of a call."""

from contextlib import ExitStack

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.iscsi.iscsiadm import Target
from relvmoiscsi.host.iscsi.login import Login
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import Session
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.sr_driver.iscsi import reach
from relvmoiscsi.sr_driver.iscsi.access import Access
from relvmoiscsi.sr_driver.iscsi.config import parse_config

CONFIG = parse_config(DEVICE_CONFIG)
IQN = CONFIG.target_iqn
FIRST, SECOND = Portal("10.1.1.1", 3260), Portal("10.1.1.2", 3260)
OFFERED = [Target(FIRST, 1, IQN), Target(SECOND, 2, IQN), Target(SECOND, 2, IQN + ":other")]


SR = "99999999-2222-3333-4444-555555555559"


class Host:
    """Sessions by portal, and who has lines in SM's file; a login that others do not use goes with its logout."""

    def __init__(self, *portals, used_by_sm):
        self.portals, self.used_by_sm, self.asked = list(portals), used_by_sm, []

    def sessions_of(self, iqn, portal=None):
        return [session(one) for one in self.portals if portal in (None, one)]

    def log_in(self, access, portal, seconds, multipathing):
        self.asked.append((portal, multipathing))
        self.portals.append(portal)
        return Login(session(portal), True, None)

    def log_out(self, access, login):
        if not self.used_by_sm:
            self.portals.remove(login.session.persistent_portal)

    def other_users(self, iqn):
        return {SR} if self.used_by_sm else set()

    def discover(self, portal, chap):
        return OFFERED


def session(portal, sid=1):
    return Session(sid, IQN, portal, portal, "LOGGED_IN", 6, ())


def end_of_call(monkeypatch, host, multipathing, created=True, users=()):
    for name in ("sessions_of", "log_in", "log_out"):
        monkeypatch.setattr(reach, name, getattr(host, name))
    monkeypatch.setattr(Access, "open_iscsi", lambda self, seconds: host)
    access = Access(CONFIG, None, None, None, multipathing, "", Deadline(50, Clock()))
    reach._complete_paths(access, [Login(session(FIRST), created, None)], set(users))
    return host.portals


def test_with_multipathing_an_sr_of_sm_has_every_portal(monkeypatch):
    host = Host(FIRST, used_by_sm=True)

    assert end_of_call(monkeypatch, host, multipathing=True) == [FIRST, SECOND]
    assert host.asked == [(SECOND, True)]


@pytest.mark.parametrize("multipathing, portals", [(False, [FIRST]), (True, [FIRST, SECOND])])
def test_a_session_that_sm_has_seen_and_that_has_ended_since_is_made_anew(monkeypatch, multipathing, portals):
    assert end_of_call(monkeypatch, Host(used_by_sm=True), multipathing) == portals


def test_without_multipathing_a_second_session_is_none_that_sm_would_make(monkeypatch):
    assert end_of_call(monkeypatch, Host(SECOND, used_by_sm=True), multipathing=False) == [SECOND]


def test_where_no_sr_was_attached_nothing_comes_back(monkeypatch):
    assert end_of_call(monkeypatch, Host(used_by_sm=False), multipathing=True) == []


def test_who_had_a_line_before_the_call_logged_in_has_not_found_its_session(monkeypatch):
    host = Host(FIRST, used_by_sm=True)

    assert end_of_call(monkeypatch, host, multipathing=True, users=[SR]) == [FIRST]


def test_the_sessions_that_others_had_are_their_own_affair(monkeypatch):
    assert end_of_call(monkeypatch, Host(FIRST, used_by_sm=True), multipathing=True, created=False) == [FIRST]


def test_a_session_that_is_taken_over_is_scanned_and_one_that_has_just_been_made_is_not(monkeypatch):
    scanned = []

    class OpenIscsi:
        def rescan(self, login, scsi_id):
            scanned.append(login.session.sid)
            return login.session

    monkeypatch.setattr(Access, "open_iscsi", lambda self: OpenIscsi())
    access = Access(CONFIG, None, None, None, True, "", Deadline(50, Clock()))
    new = Login(session(FIRST, 1), True, None, is_new=True)
    taken_over, of_others = (Login(session(SECOND, sid), sid == 2, None) for sid in (2, 3))

    found = reach._rescanned(access, [new, taken_over, of_others])

    assert [one.sid for one in found] == [1, 2, 3] and scanned == [2, 3]


class Ending(Host):
    """The sessions end while the call waits for that."""

    def __init__(self, *portals, after=0):
        super().__init__(*portals, used_by_sm=True)
        self.looks_left = after

    def has_ended(self, _session):
        self.looks_left -= 1
        return self.looks_left < 0


def was_taken_away(monkeypatch, host, logins, error):
    def wait_for(condition, seconds):
        return any(condition() for _ in range(5 if seconds else 1))

    monkeypatch.setattr(reach, "has_ended", host.has_ended)
    monkeypatch.setattr(reach, "THIS_HOST", THIS_HOST._replace(wait_for=wait_for))
    monkeypatch.setattr(reach, "_log_in", lambda _access, _stack: logins)
    access = Access(CONFIG, None, None, None, False, "", Deadline(50, Clock()))
    lun = reach.IscsiLun(access, lambda: [])
    with pytest.raises(type(error)) if error else ExitStack(), ExitStack() as stack:
        lun.reach(stack)
        if error:
            raise error
    return lun.was_taken_away


FOUND, MADE = Login(session(FIRST, 1), False, None), Login(session(SECOND, 2), True, None, is_new=True)
GONE = RelvmoiscsiError("/dev/sdc: read of 512 bytes at byte 4096 failed.", "EIO")  # of a process of its own


@pytest.mark.parametrize(
    "logins, error, after, expected",
    [
        ([FOUND], GONE, 0, True),
        ([FOUND], GONE, 3, True),  # its I/O failed a moment before
        ([FOUND], NotFound("There is no disk.", "ISCSIDevice"), 3, True),
        ([FOUND], Refused("The session was not scanned."), 0, True),
        ([FOUND], Refused("The LUN is in use."), 1, False),  # nobody waits for what has another reason
        ([FOUND], GONE, 99, False),
        ([MADE], GONE, 0, False),
        ([FOUND, MADE], GONE, 0, False),
        ([FOUND], None, 0, False),
    ],
)
def test_that_a_session_was_taken_away_is_seen_when_a_call_has_failed(monkeypatch, logins, error, after, expected):
    assert was_taken_away(monkeypatch, Ending(FIRST, after=after), logins, error) is expected
