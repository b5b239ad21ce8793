# SPDX-License-Identifier: LGPL-2.1-only
"""Sessions and LUNs as they are read from a sysfs tree that was captured in the VM (transcripts/HOW.rst)."""

import os

import pytest

from kit.iscsi_world import CHAP_IQN, IQN, PORTAL, put, put_session, remove_session
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import (
    FAILED,
    Lun,
    error_timeouts,
    facts_of,
    session_by_id,
    sessions,
    sessions_of,
)
from relvmoiscsi.host.this_host import Host


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


@pytest.fixture
def host(root):
    return Host(str(root))


def test_a_host_without_iscsi_has_no_sessions(host):
    assert sessions(host) == []
    assert session_by_id(1, host) is None


def test_a_session_is_read_as_the_kernel_shows_it(root, host):
    put_session(root)

    (session,) = sessions(host)
    assert (session.sid, session.iqn, session.host) == (1, IQN, 6)
    assert session.portal == session.persistent_portal == PORTAL
    assert session.is_logged_in
    assert session_by_id(1, host) == session
    assert str(session) == "session 1 to iqn.2026-01.test:open at 127.0.0.1:3260"


def test_the_luns_of_a_session_are_in_order(root, host):
    put_session(root)

    assert sessions(host)[0].luns == (
        Lun(0, "6:0:0:0", "sda"),
        Lun(1, "6:0:0:1", "sdc"),
        Lun(2, "6:0:0:2", "sdb"),
        Lun(7, "6:0:0:7", "sdd"),
    )


def test_what_a_lun_says_of_itself(root, host):
    put_session(root)

    facts = facts_of(sessions(host)[0].luns[3], host)
    assert (facts.vendor, facts.model, facts.size_bytes) == ("LIO-ORG", "FILEIO", 32 << 20)
    assert facts.serial == "f3d018ba-da0f-5a2f-8ee9-dbf17a8235fe"
    assert facts.scsi_id == "36001405f3d018bada0f5a2f8ee9dbf17"


def test_a_lun_without_pages_has_empty_texts(root, host):
    device = put_session(root)
    for name in ("vpd_pg80", "vpd_pg83", "vendor"):
        os.unlink(os.path.join(device, "target6:0:0/6:0:0:7", name))

    facts = facts_of(sessions(host)[0].luns[3], host)
    assert (facts.vendor, facts.serial, facts.scsi_id) == ("", "", "")


def test_an_empty_page_is_no_serial(root, host):
    device = put_session(root)
    put(device, "target6:0:0/6:0:0:7/vpd_pg80", b"\0\x80\0\0")

    assert facts_of(sessions(host)[0].luns[3], host).serial == ""


def test_a_lun_whose_disk_is_not_there_yet_has_no_name_and_no_facts(root, host):
    device = put_session(root)
    block = os.path.join(device, "target6:0:0/6:0:0:7/block")
    os.rename(block, block + "-later")

    lun = sessions(host)[0].luns[3]
    assert (lun.number, lun.disk) == (7, None)
    assert facts_of(lun, host) is None


def test_a_disk_that_goes_while_it_is_read_has_no_facts(host):
    assert facts_of(Lun(0, "6:0:0:0", "sda"), host) is None


def test_what_is_no_disk_is_no_lun(root, host):
    device = put_session(root)
    put(device, "target6:0:0/6:0:0:7/type", "12\n")  # the array's own, SCSI type 0x0C

    assert [lun.number for lun in sessions(host)[0].luns] == [0, 1, 2]


def test_a_session_that_lost_its_target_is_failed(root, host):
    put_session(root, state=FAILED, address="", port="")

    session = sessions(host)[0]
    assert (session.state, session.is_logged_in) == (FAILED, False)
    assert session.portal == session.persistent_portal == PORTAL


def test_an_address_that_the_kernel_shows_as_null_is_none(root, host):
    put_session(root, address="(null)", port="-1")

    assert sessions(host)[0].portal == PORTAL


def test_a_session_without_a_connection_is_at_no_portal(root, host):
    put_session(root, persistent_address="", address="")

    assert sessions(host)[0].persistent_portal == Portal("", 0)


def test_a_session_that_comes_or_goes_is_free(root, host):
    put_session(root, state="")

    assert sessions(host)[0].state == "FREE"


def test_a_redirected_session_is_found_by_either_portal(root, host):
    put_session(root, address="10.0.0.9", port="3261")

    session = sessions(host)[0]
    assert session.is_at(PORTAL) and session.is_at(Portal("10.0.0.9", 3261))
    assert not session.is_at(Portal("10.0.0.9", 3260))


def test_a_session_that_ends_while_it_is_read_is_not_there(root, host):
    put_session(root, targetname="")

    assert sessions(host) == []


def test_sessions_are_picked_by_target_and_portal(root, host):
    put_session(root, 2, IQN, Portal("127.0.0.1", 3261), luns=())
    put_session(root, 1, IQN, luns=(0,))
    put_session(root, 3, CHAP_IQN, luns=())

    assert [session.sid for session in sessions(host)] == [1, 2, 3]
    assert [session.sid for session in sessions_of(IQN, host=host)] == [1, 2]
    assert [session.sid for session in sessions_of(IQN, Portal("127.0.0.1", 3261), host)] == [2]
    remove_session(root, 2)
    assert [session.sid for session in sessions(host)] == [1, 3]


def test_the_time_outs_of_a_login_are_shown_as_long_as_its_session_lasts(root, host):
    put_session(root, lu_reset_tmo="47", tgt_reset_tmo="93")
    (session,) = sessions(host)
    assert error_timeouts(session, host) == [47, 93]

    remove_session(root)
    assert error_timeouts(session, host) == []
