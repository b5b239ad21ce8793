# SPDX-License-Identifier: LGPL-2.1-only
"""What SM finds of a session of ours, it does not look for again: its SR gets it from us, at the end of a call."""

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.iscsi.iscsiadm import Target
from relvmoiscsi.host.iscsi.login import Login
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import Session
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
