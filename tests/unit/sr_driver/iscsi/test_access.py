# SPDX-License-Identifier: LGPL-2.1-only
"""A call that waits for nobody still ends what it has begun."""

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG
from relvmoiscsi.host.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.host.iscsi.login import END_SECONDS
from relvmoiscsi.host.xapi.api import XapiFailure
from relvmoiscsi.sr_driver.iscsi import access as access_module
from relvmoiscsi.sr_driver.iscsi.access import LOGOUT_LOCK_SECONDS, Access, ids_of_pool, log_out, once
from relvmoiscsi.sr_driver.iscsi.config import parse_config


def test_only_its_logout_waits_some_seconds(monkeypatch):
    made = []

    class OpenIscsi:
        def __init__(self, lock_seconds, deadline, answer_seconds, ids_of_pool, left):
            made.append((lock_seconds, deadline.left, ids_of_pool(), left))

        def logout(self, login, done_with=None):
            made.append(login)

    monkeypatch.setattr(access_module, "OpenIscsi", OpenIscsi)
    clock = Clock()
    deadline = Deadline(20, clock)
    clock.now += 20
    access = Access(parse_config(DEVICE_CONFIG), None, None, None, False, "", deadline, lock_seconds=0)
    access = access._replace(ids_in_the_end=lambda: ["as they are then"], left={"a note"})

    log_out(access, "the login")

    assert made == [(LOGOUT_LOCK_SECONDS, END_SECONDS, ["as they are then"], {"a note"}), "the login"]


class Records:
    """xapi, with two PBDs; `left` is how long it was given when it was asked for them."""

    failure = None
    left = 0.0

    def until(self, deadline):
        self.left = deadline.left
        return self

    def records(self, kind):
        if self.failure is not None:
            raise self.failure
        return {"PBD": {"pbd": {"device_config": {"SCSIid": "36001"}, "SR": "an SR"}}}.get(kind, {})


def test_the_pool_is_asked_for_its_luns_also_when_the_time_of_the_call_is_over(caplog):
    clock, xapi = Clock(), Records()
    deadline = Deadline(20, clock)
    clock.now += 21

    assert "36001" in ids_of_pool(xapi, deadline)
    assert 0 < xapi.left < CLEANUP_SECONDS

    xapi.failure = XapiFailure("PBD.get_all_records", ["SESSION_INVALID"])
    assert ids_of_pool(xapi, deadline) is None and "could not be read again" in caplog.text


def test_a_xapi_that_does_not_answer_is_asked_a_single_time():
    asked = []
    ids = once(lambda: asked.append("once"))

    assert (ids(), ids()) == (None, None) and asked == ["once"]
