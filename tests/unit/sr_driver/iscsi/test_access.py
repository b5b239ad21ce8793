# SPDX-License-Identifier: LGPL-2.1-only
"""A call that waits for nobody still ends what it has begun."""

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG
from relvmoiscsi.host.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.sr_driver.iscsi import access as access_module
from relvmoiscsi.sr_driver.iscsi.access import LOGOUT_LOCK_SECONDS, Access, log_out
from relvmoiscsi.sr_driver.iscsi.config import parse_config


def test_only_its_logout_waits_some_seconds(monkeypatch):
    made = []

    class OpenIscsi:
        def __init__(self, lock_seconds, deadline):
            made.append((lock_seconds, deadline.left))

        def logout(self, login, done_with=None):
            made.append(login)

    monkeypatch.setattr(access_module, "OpenIscsi", OpenIscsi)
    clock = Clock()
    deadline = Deadline(20, clock)
    clock.now += 20
    access = Access(parse_config(DEVICE_CONFIG), None, None, None, False, "", deadline, lock_seconds=0)

    log_out(access, "the login")

    assert made == [(LOGOUT_LOCK_SECONDS, CLEANUP_SECONDS), "the login"]
