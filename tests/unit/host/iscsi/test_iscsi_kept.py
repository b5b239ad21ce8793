# SPDX-License-Identifier: LGPL-2.1-only
"""Which disks are ours to take away still, by the notes; what is made of that is in test_udev.py."""

import os

import pytest

from kit.iscsi_world import IQN, PORTAL, World, put, put_session
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.iscsi.kept import kept_disks
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.luns import Luns, WorkedOn
from relvmoiscsi.host.iscsi.notes import new_note
from relvmoiscsi.host.iscsi.sessions import sessions
from relvmoiscsi.host.locks.sm_locks import SessionReferences

OURS = "11111111-2222-3333-4444-555555555551"
THEIRS = "99999999-2222-3333-4444-555555555559"
ADDRESS, NUMBER_2 = "6:0:0:7", "6:0:0:2"  # of the LUNs that are sdd and sdb
ALL = {"sda", "sdb", "sdc", "sdd"}


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    put_session(world.root, 1, lu_reset_tmo="31", tgt_reset_tmo="77")
    return world


def noted(world, **facts):
    """A note of a session that was logged in here, unless the facts say otherwise; nobody holds it any more."""
    first = {"iqn": IQN, "portal": list(PORTAL), "user": OURS, "created": True, "sid": 1}
    note = new_note(world.host, **first)
    note.add(**facts)
    note.close()
    return note


def has_line(world, sr_uuid):
    put(world.root, "var/run/sr-ref/" + IQN, sr_uuid + "\n")


def test_without_notes_nothing_is_ours(world):
    assert kept_disks(world.host) == set()


def test_all_disks_of_a_session_that_was_logged_in_here_are_ours_until_sm_has_a_line(world):
    has_line(world, OURS)
    noted(world)
    assert kept_disks(world.host) == ALL

    has_line(world, THEIRS)
    assert kept_disks(world.host) == set()


@pytest.mark.parametrize(
    "facts",
    [{"sid": 2}, {"created": False}, {"iqn": IQN + "2"}, {"boot": "another"}, {"iqn": "", "discovery": True}],
    ids=["another session", "of others", "another target", "before a reboot", "a discovery"],
)
def test_a_note_of_something_else_keeps_nothing(world, facts):
    noted(world, **facts)

    assert kept_disks(world.host) == set()


@pytest.mark.parametrize(
    ("marker", "sids", "kept"), [([31, 77], [], ALL), ([31, 78], [], set()), ([31, 77], [1], set()), (None, [], set())]
)
def test_a_session_without_a_number_is_told_by_what_its_login_was_given(world, marker, sids, kept):
    noted(world, sid=None, marker=marker, sids=sids)

    assert kept_disks(world.host) == kept


def brought(world, **facts):
    facts.setdefault("brought", {ADDRESS: scsi_id_of_address(ADDRESS, world.host)})
    there = ["6:0:0:0", "6:0:0:1", NUMBER_2]
    first = {"created": False, "others": [OURS], "scanning": there, "scanned": True}
    return noted(world, **dict(first, **facts))


def test_of_a_session_of_others_what_our_scan_has_brought_is_ours_also_when_it_was_left_to_a_later_call(world):
    brought(world, handed=[])

    assert kept_disks(world.host) == {"sdd"}


def test_while_a_scan_goes_on_what_was_not_there_before_is_ours(world):
    brought(world, scanned=False, brought=None)

    assert kept_disks(world.host) == {"sdd"}


def test_another_lun_at_that_address_is_not_ours(world):
    brought(world, brought={ADDRESS: "36001405aaa", "6:0:0:9": "36001405bbb"})

    assert kept_disks(world.host) == set()


def test_what_a_scan_has_brought_is_that_of_an_sr_attached_since_and_not_of_one_from_before(world):
    has_line(world, THEIRS)
    brought(world, others=[THEIRS])
    assert kept_disks(world.host) == {"sdd"}

    has_line(world, THEIRS[:-1] + "8")
    assert kept_disks(world.host) == set()


def test_of_lines_that_cannot_be_read_the_disks_stay_ours(world, caplog):
    noted(world)
    os.makedirs(os.path.join(world.root, "var/run/sr-ref", IQN))

    assert kept_disks(world.host) == ALL
    assert "is not known" in caplog.text


def test_the_line_of_a_call_that_ends_while_it_is_read_is_not_one_of_sm(world, monkeypatch):
    noted(world, user=None)
    at_work = noted(world, sid=2, user=THEIRS)
    has_line(world, THEIRS)
    users = SessionReferences.users

    def users_of_before(self, iqn):
        found = users(self, iqn)
        at_work.remove()
        return found

    monkeypatch.setattr(SessionReferences, "users", users_of_before)
    assert OpenIscsi(world.host).other_users(IQN) == set()
    at_work = noted(world, sid=2, user=THEIRS)
    assert kept_disks(world.host) == ALL


def test_what_the_pool_names_in_the_end_is_not_ours_any_more_though_the_rest_waits(world, monkeypatch):
    ids = {one: scsi_id_of_address(one, world.host) for one in (ADDRESS, NUMBER_2)}
    facts = {"created": False, "sid": 1, "others": [], "scanning": [], "brought": ids, "scanned": True}
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), **facts)
    luns = Luns(world.host, lambda work, _session, _what: work(), lambda: [ids[ADDRESS]])
    monkeypatch.setattr(luns, "_is_ours", lambda *_: False)  # another call works on it

    with pytest.raises(WorkedOn):
        luns.take_away(note, sessions(world.host)[0], set())

    assert note["brought"] == {NUMBER_2: ids[NUMBER_2]}
