# SPDX-License-Identifier: LGPL-2.1-only
"""What is hidden besides a LUN behind a target, and that it is shown when it is done; the rest is tested in VMs."""

from contextlib import ExitStack, contextmanager

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import Lun as SessionLun
from relvmoiscsi.host.iscsi.sessions import LunFacts, Session
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.sr_driver.iscsi import reach
from relvmoiscsi.sr_driver.iscsi.access import Access
from relvmoiscsi.sr_driver.iscsi.config import parse_config
from relvmoiscsi.sr_driver.iscsi.reach import IscsiLun

CONFIG = parse_config(DEVICE_CONFIG)


@pytest.fixture
def said(monkeypatch):
    told = []

    @contextmanager
    def hidden_target(iqn, known, known_now):
        told.append(f"hide {iqn} but {' '.join(known)}")
        yield
        told.extend(known_now())

    monkeypatch.setattr(udev, "hidden_target", hidden_target)
    monkeypatch.setattr(udev, "show_behind_target", lambda scsi_id, iqn: told.append(f"show {scsi_id} behind {iqn}"))
    return told


def worked_on(is_new, ids_of_pool=("36001405aaa", "36001405bbb"), in_the_end=()):
    access = Access(CONFIG, None, None, None, False, "", Deadline(50, Clock()), ids_in_the_end=lambda: in_the_end)
    lun = IscsiLun(access, lambda: ["36001405ccc"])
    lun.ids_of_pool = ids_of_pool
    with ExitStack() as stack:
        lun.before(stack)
        lun.hide_others(stack)
        if is_new:
            lun.stays()
    assert lun.is_done == is_new


def test_a_lun_that_is_done_is_hidden_by_nobody_any_more(said):
    worked_on(is_new=True)

    assert said == [
        f"hide {CONFIG.target_iqn} but 36001405aaa 36001405bbb",
        f"show {CONFIG.scsi_id} behind {CONFIG.target_iqn}",
    ]


def test_the_pool_is_asked_where_nobody_has_asked_it(said):
    worked_on(is_new=False, ids_of_pool=None)

    assert said == [f"hide {CONFIG.target_iqn} but 36001405ccc"]


def test_the_pool_is_asked_anew_for_what_is_to_stay_hidden_in_the_end(said):
    worked_on(is_new=False, in_the_end=["36001405ddd"])

    assert said[-1] == "36001405ddd"


def test_one_that_is_not_done_stays_hidden_by_the_others(said):
    worked_on(is_new=False)

    assert len(said) == 1


def test_that_others_cannot_be_told_is_no_failure_of_what_was_written(said, monkeypatch, caplog):
    def refused(_scsi_id, _iqn):
        raise Refused("It is locked.")

    monkeypatch.setattr(udev, "show_behind_target", refused)
    worked_on(is_new=True)

    assert "showing the LUN while others hide its target failed: It is locked." in caplog.text


def test_the_luns_of_a_target_are_those_that_its_session_has_in_the_end(monkeypatch):
    """At the login the kernel has not asked the target yet: it was said that there are none."""
    at_login = Session(7, CONFIG.target_iqn, Portal("10.0.0.5", 3260), Portal("10.0.0.5", 3260), "LOGGED_IN", 3, ())
    now = at_login._replace(luns=(SessionLun(4, "3:0:0:4", "sdx"), SessionLun(5, "3:0:0:5", None)))
    monkeypatch.setattr(reach, "_rescanned", lambda *_: [at_login])
    monkeypatch.setattr(reach, "session_by_id", lambda sid: now)
    monkeypatch.setattr(
        reach, "facts_of", lambda lun: LunFacts(lun, "", "", "", 0, "36001405ddd") if lun.disk else None
    )
    monkeypatch.setattr(reach, "verify_any_alive", lambda _: None)
    monkeypatch.setattr(reach, "_live_disks", lambda _: [])
    monkeypatch.setattr(reach, "THIS_HOST", Host(wait_for=lambda condition, _seconds: condition()))
    access = Access(CONFIG, None, None, None, False, "", Deadline(50, Clock()))

    with pytest.raises(NotFound, match=r"the target shows LUN 4 \(36001405ddd\), LUN 5 \(without a SCSIid\)\."):
        IscsiLun(access, list).disks()
