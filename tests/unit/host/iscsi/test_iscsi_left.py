# SPDX-License-Identifier: LGPL-2.1-only
"""What a call leaves to others, and what a killed one has left: who ends it, and what the notes say of it."""

import os
from contextlib import ExitStack
from functools import lru_cache, partial

import pytest

from kit.iscsi_world import IQN, PORTAL, World, put, put_session, remove_session, transcript
from relvmoiscsi.doctor import programs
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.disk import multipath, own_maps
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import luns as iscsi_luns
from relvmoiscsi.host.iscsi.login import OpenIscsi, verify_any_alive
from relvmoiscsi.host.iscsi.notes import dead_notes
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import sessions
from relvmoiscsi.host.locks.sm_locks import is_lun_locked, iscsiadm_lock, lun_lock

pytestmark = pytest.mark.processes

OURS = "11111111-2222-3333-4444-555555555551"
THEIRS = "99999999-2222-3333-4444-555555555559"
OTHER_PORTAL = Portal("127.0.0.2", 3260)
ADDRESS = "6:0:0:7"  # of the LUN that is sdd, in session 1


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(iscsi_luns, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 0.0)
    monkeypatch.setattr(iscsi_module, "_LOGOUT_TIMEOUT", 0.0)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def iscsi(world):
    return OpenIscsi(world.host._replace(wait_for=lambda condition, _: condition()), lock_seconds=1.0)


def sids(world):
    return [session.sid for session in sessions(world.host)]


def killed(iscsi):
    """A login of a call that is no more."""
    login = iscsi.login(PORTAL, IQN, user=OURS)
    login.note.close()
    return login


def finding(world):
    with open("/proc/locks", encoding="ascii") as locks:
        put(world.root, "proc/locks", locks.read())
    return programs.examine_notes(world.host)


# --- a multipath map of ours


@pytest.fixture
def mapped(world, iscsi):
    """Killed with a multipath map over its LUN; gives the LUN's SCSIid."""
    before = world.tree()
    killed(iscsi)
    device = put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    own_maps.note(multipath.Before(scsi_id, False, True), [], world.host)
    world.put_map(scsi_id, [(device, ADDRESS, "sdd")])
    yield scsi_id
    if not sids(world):
        assert world.tree() == before


def test_a_map_that_a_killed_call_has_left_is_no_user_of_its_session(world, iscsi, mapped):
    iscsi.recover()

    assert ("multipath", "-f", mapped) in world.calls
    assert sids(world) == []


def test_where_the_map_cannot_go_yet_a_later_run_tries_again(world, iscsi, mapped):
    world.answers["multipath -f"] = lambda argv: (1, "", f"{mapped}: map in use\n")
    iscsi.recover()
    assert sids(world) == [1] and own_maps.left(mapped, world.host) is not None
    assert finding(world).status == "warning"

    del world.answers["multipath -f"]
    iscsi.recover()
    assert sids(world) == []


def test_while_a_call_works_on_the_lun_its_map_stays(world, iscsi, mapped):
    with lun_lock(mapped, world.host):
        iscsi.recover()
    assert not any(call[0] == "multipath" for call in world.calls) and sids(world) == [1]

    iscsi.recover()
    assert sids(world) == []


@pytest.mark.parametrize("how", ["attached by SM", "with a volume on it", "open"])
def test_a_map_that_somebody_uses_by_now_is_left_with_its_session(world, iscsi, mapped, how):
    if how == "attached by SM":
        put(world.root, "dev/disk/mpInuse/" + mapped, "")
    elif how == "with a volume on it":
        put(world.root, "sys/block/dm-3/holders/dm-4/dm/name", "data-home\n")
    else:
        world.answers["multipath -f"] = lambda argv: (1, "", f"{mapped}: map in use\n")
        put(world.root, "proc/swaps", "Filename Type Size Used Priority\n/dev/dm-3 partition 9 0 -2\n")

    iscsi.recover()

    assert sids(world) == [1] and multipath.find_map(mapped, world.host) is not None
    assert dead_notes(world.host) == [] and own_maps.left(mapped, world.host) is None


@pytest.fixture
def two_paths(world, iscsi):
    """Killed with a session at each of two portals, before multipathd has made the map; (the map's disks, SCSIid)."""
    logins = [iscsi.login(portal, IQN, user=OURS) for portal in (PORTAL, OTHER_PORTAL)]
    for login in logins:
        login.note.close()
    devices = [put_session(world.root, 1), put_session(world.root, 2, portal=OTHER_PORTAL)]
    for disk in ("sdd", "sdf"):
        put(world.root, "dev/" + disk, "")
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    own_maps.note(multipath.Before(scsi_id, False, True), [], world.host)
    return [(devices[0], ADDRESS, "sdd"), (devices[1], ADDRESS.replace("6:", "7:"), "sdf")], scsi_id


def ends(world, then):
    """A logout of iscsiadm, and what happens right behind it."""

    def log_out(argv):
        remove_session(world.root, int(argv[4]))
        then()
        return transcript("logout by sid")

    world.answers["logout"] = log_out


def test_a_map_that_comes_when_the_first_session_has_ended_goes_with_the_last(world, iscsi, two_paths):
    disks, scsi_id = two_paths

    def multipathd():
        if len(sids(world)) == 1:
            world.put_map(scsi_id, [disks[sids(world)[0] - 1]])

    ends(world, multipathd)
    iscsi.recover()

    assert sids(world) == [] and multipath.find_map(scsi_id, world.host) is None
    assert own_maps.left(scsi_id, world.host) is None and finding(world).status == "ok"


def test_a_map_that_comes_while_the_users_are_looked_at_is_none_of_them(world, iscsi, two_paths, monkeypatch):
    disks, scsi_id = two_paths
    of_disks = iscsi_luns.holders.users_of_disks

    def multipathd_is_late(*arguments):
        monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", of_disks)
        world.put_map(scsi_id, disks)
        return of_disks(*arguments)

    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", multipathd_is_late)
    iscsi.recover()

    assert sids(world) == [] and multipath.find_map(scsi_id, world.host) is None


def attached_to_another_lun(world):
    """SM has a line for the IQN, and the session for that."""
    put(world.root, "var/run/sr-ref/" + IQN, THEIRS + "\n", 0o644)


def test_a_map_that_a_killed_call_has_left_goes_though_sm_has_its_session_now(world, iscsi, mapped):
    attached_to_another_lun(world)

    iscsi.recover()

    assert ("multipath", "-f", mapped) in world.calls and own_maps.left(mapped, world.host) is None
    assert sids(world) == [1]


@pytest.mark.parametrize("why", ["in use", "of the pool", "unknown to the pool", "worked on"])
def test_a_map_that_cannot_go_yet_stays_ours_in_a_session_of_sm(world, iscsi, mapped, why):
    attached_to_another_lun(world)
    ids = {"of the pool": [mapped], "unknown to the pool": None}.get(why, ())
    asking = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: ids)
    with ExitStack() as stack:
        if why == "in use":
            world.answers["multipath -f"] = lambda argv: (1, "", f"{mapped}: map in use\n")
        elif why == "worked on":
            stack.enter_context(lun_lock(mapped, world.host))
        asking.recover()
    assert own_maps.look(mapped, world.host).had_map is False

    world.answers.pop("multipath -f", None)
    iscsi.recover()
    assert multipath.find_map(mapped, world.host) is None and own_maps.left(mapped, world.host) is None


@pytest.mark.parametrize("session", ["of SM", "of a user"])
def test_a_map_that_a_call_could_not_take_away_is_still_its_own(world, iscsi, session):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    device = put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    own_maps.note(multipath.Before(scsi_id, False, False), [], world.host)
    world.put_map(scsi_id, [(device, ADDRESS, "sdd")])  # the LUN was silent
    world.answers["multipath -f"] = lambda argv: (1, "", f"{scsi_id}: map in use\n")
    if session == "of SM":
        put(world.root, "var/run/sr-ref/" + IQN, OURS + "\n" + THEIRS + "\n", 0o644)
    else:
        put(world.root, "proc/swaps", "Filename Type Size Used Priority\n/dev/dm-3 partition 9 0 -2\n")

    with lun_lock(scsi_id, world.host):
        assert iscsi.logout(login, done_with=scsi_id) is False

    assert own_maps.look(scsi_id, world.host) == multipath.Before(scsi_id, False, False)


def test_the_map_of_a_lun_that_a_killed_scan_has_brought_goes_with_the_lun(world, iscsi, monkeypatch):
    device = put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)
    put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    login.note.add(brought={ADDRESS: scsi_id}, scanned=True)
    login.note.close()
    own_maps.note(multipath.Before(scsi_id, False, True), [], world.host)
    world.put_map(scsi_id, [(device, ADDRESS, "sdd")])
    removed = []
    monkeypatch.setattr(iscsi_luns.scsi, "remove_lun", lambda address, host: removed.append(address))

    iscsi.recover()

    assert removed == [ADDRESS] and multipath.find_map(scsi_id, world.host) is None
    assert own_maps.left(scsi_id, world.host) is None


# --- LUNs that a scan has brought, while xapi does not answer


def brought(world, host, monkeypatch, portals):
    """A call's logins to sessions of SM at these portals, in each of which its scan has brought a LUN."""
    monkeypatch.setattr(iscsi_luns, "tell_kernel", world.scan)
    for sid, portal in enumerate(portals, 1):
        put_session(world.root, sid, portal=portal, luns=(0,))
    for sid, portal in enumerate(portals, 1):
        login = OpenIscsi(host, lock_seconds=1.0).login(portal, IQN, user=OURS)
        world.answers["scan"] = partial(put_session, world.root, sid, portal=portal, luns=(0, 7))
        OpenIscsi(host, lock_seconds=1.0).rescan(login)
        yield login


def test_the_pool_is_asked_once_in_a_call_and_before_sm_is_held_up(world, monkeypatch, caplog):
    caplog.set_level("INFO")
    host = world.host._replace(wait_for=lambda condition, _: condition())
    asked = []

    @lru_cache(maxsize=None)
    def ids_of_pool():
        with iscsiadm_lock(world.host, timeout=0):
            asked.append("the pool")

    portals = [PORTAL._replace(port=port) for port in (3260, 3261, 3262)]
    logins = list(brought(world, host, monkeypatch, portals))
    caplog.clear()
    of_call = set()
    for login in reversed(logins):
        OpenIscsi(host, lock_seconds=1.0, ids_of_pool=ids_of_pool, left=of_call).logout(login)

    assert asked == ["the pool"]
    assert "an earlier run" not in caplog.text and "not known whose they are" in caplog.text
    assert {login.note.path for login in logins} == of_call == {note.path for note in dead_notes(world.host)}


def test_after_a_reboot_the_next_call_takes_our_entry_from_multipaths_list(world, iscsi):
    before = world.tree()
    killed(iscsi)
    own_maps.note(multipath.Before("36001405aaa", False, False), [], world.host)
    remove_session(world.root, 1)
    wwids = put(world.root, "etc/multipath/wwids", "/36001405aaa/\n")
    put(world.root, "proc/sys/kernel/random/boot_id", "two\n")
    iscsi.recover()
    assert ("multipath", "-w", "36001405aaa") in world.calls and finding(world).status == "ok"
    with open(wwids, encoding="ascii") as file:
        assert file.read() == "#36001405aaa/\n"
    assert before.keys() == world.tree().keys() - {"etc/multipath", "etc/multipath/wwids"}


# --- a call that has given up the session, and has its LUN's lock yet


@pytest.fixture
def waits(world, iscsi):
    """A call for a LUN has come to its end but for what udev does; gives the SCSIid, and gives back the lock."""
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    own_maps.note(multipath.Before(scsi_id, False, False), [], world.host)
    with ExitStack() as lock:
        lock.enter_context(lun_lock(scsi_id, world.host))
        yield login, scsi_id, lock


def test_the_last_call_logs_out_though_another_waits_for_udev(world, iscsi, waits):
    first, scsi_id, _ = waits
    last = iscsi.login(PORTAL, IQN, user=THEIRS)
    iscsi.logout(first, done_with=scsi_id)
    put(world.root, "etc/multipath/wwids", f"/{scsi_id}/\n")  # for its own call to take out

    iscsi.logout(last)

    assert sids(world) == [] and finding(world).status == "ok"


def test_with_a_map_it_is_for_the_one_that_has_the_lock_to_log_out(world, iscsi, waits):
    first, scsi_id, lock = waits
    last = iscsi.login(PORTAL, IQN, user=THEIRS)
    iscsi.logout(first, done_with=scsi_id)
    world.put_map(scsi_id, [(put_session(world.root, 1), ADDRESS, "sdd")])

    assert iscsi.logout(last) is False
    assert finding(world).status == "ok" and "left to others" in finding(world).sentence

    lock.close()
    iscsi.end_what_waits(IQN, "36001405aaa")
    assert sids(world) == [1]
    iscsi.end_what_waits(IQN, scsi_id)
    assert sids(world) == [] and finding(world).sentence == "No call that was killed has left a session behind."


def test_where_the_lock_is_given_back_at_that_moment_the_last_call_logs_out(world, iscsi, waits, monkeypatch):
    login, scsi_id, lock = waits
    world.put_map(scsi_id, [(put_session(world.root, 1), ADDRESS, "sdd")])

    def given_back(*arguments):
        lock.close()  # its owner has looked for notes of this one, and found none
        return is_lun_locked(*arguments)

    monkeypatch.setattr(iscsi_module, "is_lun_locked", given_back)
    iscsi.logout(login)

    assert sids(world) == [] and multipath.find_map(scsi_id, world.host) is None


def test_a_lun_that_a_scan_has_brought_goes_with_the_lock_of_the_call_that_worked_on_it(world, iscsi, monkeypatch):
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)
    put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    login.note.add(brought={ADDRESS: scsi_id}, scanned=True)
    removed = []
    monkeypatch.setattr(iscsi_luns.scsi, "remove_lun", lambda address, host: removed.append(address))
    with lun_lock(scsi_id, world.host):
        iscsi.logout(login)
        assert removed == [] and finding(world).status == "ok"
    assert finding(world).status == "warning", "nobody is at it"

    iscsi.end_what_waits(IQN, scsi_id)
    assert removed == [ADDRESS] and dead_notes(world.host) == []


def test_where_nothing_waits_sm_is_not_held_up(world, iscsi, waits, monkeypatch):
    login, scsi_id, _ = waits
    iscsi.login(PORTAL, IQN, user=THEIRS)
    iscsi.logout(login, done_with=scsi_id)
    monkeypatch.setattr(iscsi_module, "iscsiadm_lock", None)

    iscsi.end_what_waits(IQN, scsi_id)


# --- the command at a sibling


def test_a_session_at_whose_lun_a_command_of_ours_works_is_for_the_next_run_to_end(world, iscsi, monkeypatch):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_session(world.root, 1)
    users = ["process 4711 (relvmoiscsi)"]
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: users)
    with lun_lock(scsi_id_of_address(ADDRESS, world.host), world.host):
        assert iscsi.logout(login) is False
    assert sids(world) == [1] and finding(world).status == "ok"

    users.clear()
    iscsi.recover()
    assert sids(world) == [] and world.records() == {}


# --- what the doctor says


def test_what_is_left_to_another_call_is_all_right(world, iscsi):
    first = iscsi.login(PORTAL, IQN, user=OURS)
    second = iscsi.login(PORTAL, IQN, user=THEIRS)
    iscsi.logout(first)

    assert finding(world).status == "ok"

    iscsi.logout(second)
    assert sids(world) == []


def test_what_is_left_to_sm_is_all_right(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a", encoding="ascii") as file:
        file.write(THEIRS + "\n")
    iscsi.logout(login)

    assert finding(world).status == "ok" and "left to others" in finding(world).sentence


def test_luns_that_a_scan_has_brought_and_that_are_nobodys_are_told_until_they_are_gone(world, iscsi):
    """As xapi did not say whose they are: until now they counted as left to others."""
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_session(world.root, 1)
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    login.note.add(scanning=[], others=[], brought={ADDRESS: scsi_id}, scanned=True)
    unsure = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: None)
    unsure.logout(login)

    assert finding(world).status == "warning" and f"has left {scsi_id}." in finding(world).sentence

    with lun_lock(scsi_id, world.host):
        assert finding(world).status == "ok"  # a call is at it
    os.unlink(os.path.join(world.root, "sys/bus/scsi/devices", ADDRESS, "vpd_pg83"))
    assert finding(world).status == "ok"


def test_a_call_that_has_taken_it_over_and_was_killed_is_told(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a", encoding="ascii") as file:
        file.write(THEIRS + "\n")
    iscsi.logout(login)

    killed(iscsi)

    assert finding(world).status == "warning"


def test_a_map_that_a_call_for_an_adapters_lun_has_left_is_told(world):
    device = put_session(world.root, 1)  # a session of others, in place of an adapter
    scsi_id = scsi_id_of_address(ADDRESS, world.host)
    own_maps.note(multipath.Before(scsi_id, False, True), [], world.host)
    assert finding(world).status == "ok"

    world.put_map(scsi_id, [(device, ADDRESS, "sdd")])
    assert finding(world).status == "warning" and "multipath map of LUN " + scsi_id in finding(world).sentence

    with lun_lock(scsi_id, world.host):
        assert finding(world).status == "ok"


def test_an_entry_in_multipaths_list_that_the_next_call_takes_out_is_told(world):
    own_maps.note(multipath.Before("36001405aaa", False, False), [], world.host)
    put(world.root, "proc/sys/kernel/random/boot_id", "two\n")
    assert finding(world).status == "ok"

    put(world.root, "etc/multipath/wwids", "/36001405aaa/\n")
    found = finding(world)
    assert found.status == "warning" and "LUN 36001405aaa in multipath's list, /etc/multipath/wwids" in found.sentence


# --- a dead session


def test_a_dead_session_of_a_killed_call_is_ended_and_not_used(world, iscsi):
    killed(iscsi)
    put_session(world.root, 1, state="FAILED", luns=(0,))

    login = iscsi.login(PORTAL, IQN, user=THEIRS)

    assert sids(world) == [2] and login.session.is_logged_in


def test_a_dead_session_of_a_killed_call_that_cannot_be_ended_is_said_to_be_dead(world, iscsi):
    killed(iscsi)
    put_session(world.root, 1, state="FAILED", luns=(0,))
    world.answers["logout"] = lambda argv: (32, "", "iscsiadm: session not connected\n")

    with pytest.raises(NotFound, match="has lost its target"):
        iscsi.login(PORTAL, IQN, user=THEIRS)

    assert [note["sid"] for note in dead_notes(world.host)] == [1]


def test_sessions_that_are_all_dead_by_now_are_no_place_to_find_a_lun(world):
    put_session(world.root, 1)
    put_session(world.root, 2)
    there = sessions(world.host)
    verify_any_alive(there, world.host)

    put_session(world.root, 1, state="FAILED")
    verify_any_alive(there, world.host)
    put_session(world.root, 2, state="FAILED")
    with pytest.raises(NotFound, match=r"The session 1 .* has lost its target \(it is FAILED\)"):
        verify_any_alive(there, world.host)
