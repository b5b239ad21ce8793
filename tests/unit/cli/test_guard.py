# SPDX-License-Identifier: LGPL-2.1-only
"""Before a command writes: who in the pool uses the LUN, and the locks of whoever else might write to it."""

import json
import os
import re
import shutil
import socket
from contextlib import contextmanager

import pytest

from kit import shell
from kit.forged_record import UNKNOWN_SR, forge_record, forge_run
from kit.shell import OTHER_SCSI_ID, SCSI_ID, SR, content
from kit.sr_states import ATTACHED, OTHER, STATES, UNPLUGGED, State, name_of
from relvmoiscsi import engine
from relvmoiscsi.cli import on_lun
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import HostDevice, ImageFile
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lun_lock import is_lun_locked, lun_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import other_hosts, stale_volumes
from relvmoiscsi.lun import disk_source, guard, named_device, users

YES = ("--yes", "--scsi-id", SCSI_ID)
NOTHING = "Nothing was written."


@pytest.fixture
def mute(root, monkeypatch):
    """xapi's socket is there, and whoever connects waits."""
    monkeypatch.setattr(users, "XAPI_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(Host(root).xapi_socket)
        listener.listen(8)
        yield


def sr_on(pool, scsi_id=SCSI_ID, type_="lvmoiscsi", name="the original"):
    """An SR with a PBD on the LUN, not attached; gives its UUID."""
    sr = pool.db.create("SR", name_label=name, type=type_)
    pool.db.create("PBD", SR=sr, host=pool.hosts[1], device_config={"SCSIid": scsi_id})
    return pool.db.get("SR", sr, "uuid")


# --- the pool


def test_a_lun_that_an_sr_uses_is_4_and_nothing_is_written(lun, command, unwritten, pool, smlines):
    uuid = sr_on(pool)
    ran = unwritten(4, "resignature", lun, *YES, says=f"The detached SR {uuid} ('the original')")
    assert ran.err.endswith("override with --not-in-use.\n") and " Nothing was written. If " in ran.err
    note = "note: a run without --dry-run would be refused: The LUN with the SCSIid"
    unwritten(4, "resignature", lun, "--dry-run", "--scsi-id", SCSI_ID, says=note)

    ran = command("resignature", *YES, lun, "--not-in-use", "--json")
    assert (ran.status, ran.json["state"]) == (0, "resignatured")
    (line,) = [line for line in ran.err.splitlines() if "--not-in-use" in line]
    (logged,) = [line for line in smlines if "--not-in-use" in line]
    for told in (line, logged):  # who knows better is told loudly what speaks against it
        assert f"--not-in-use: {lun} will be changed despite this refusal:" in told and uuid in told
    assert line.startswith("relvmoiscsi: warning: ")
    assert command("resignature", lun, *YES, "--json").json["already_done"] is True, "whoever uses it now"


@pytest.mark.parametrize("by", ["--sr-uuid", "--map"])
def test_a_second_clone_with_the_sr_uuid_of_the_first_is_4_and_nothing_is_written(
    lun, command, unwritten, pool, tmp_path, by
):
    uuid = sr_on(pool, OTHER_SCSI_ID, name="the first clone")
    file = tmp_path / "map.json"
    vdi = command("show", lun, "--json").json["vdis"][0]["vdi"]
    file.write_text(json.dumps(command("map", "--sr", uuid, vdi, "--json").json))

    says = f"This pool has an SR {uuid} already. Nothing was written. Give another --sr-uuid, or two LUNs share every"
    unwritten(4, "resignature", lun, *YES, by, uuid if by == "--sr-uuid" else file, says=says + " identity.")


def test_without_a_scsi_id_there_is_nothing_to_ask(image, command, mute):
    assert command("resignature", "--yes", image).status == 0


@pytest.mark.parametrize("name", shell.WRITERS)
def test_a_lun_with_another_scsi_id_than_was_given_is_another_lun(lun, unwritten, pool, name):
    says = f"{lun} has the SCSIid {SCSI_ID}, and the given SCSIid is {OTHER_SCSI_ID}: it is another LUN."
    unwritten(4, name, lun, "--yes", "--scsi-id", OTHER_SCSI_ID, "--not-in-use", says=says)


def test_an_id_that_can_be_none_is_2(lun, unwritten):
    unwritten(2, "resignature", lun, "--yes", "--scsi-id", "a/b", says="'a/b' is no SCSIid")


def test_a_xapi_that_does_not_answer_is_4_within_a_moment_and_can_be_overridden(lun, command, unwritten, mute, smlines):
    says = f"xapi cannot say whether this pool uses the LUN {SCSI_ID}: "
    ran = unwritten(4, "resignature", lun, *YES, says=says)
    assert "xe-toolstack-restart" in ran.err and "--not-in-use" in ran.err

    ran = command("resignature", *YES, lun, "--not-in-use")
    assert ran.status == 0 and "xapi cannot say" in ran.err and "xapi cannot say" in smlines[0]


def test_undo_is_refused_once_the_new_sr_is_in_the_pool(lun, command, unwritten, pool):
    command("resignature", *YES, lun, "--sr-uuid", SR)
    sr_on(pool, name="the new one")
    unwritten(4, "undo", lun, "--yes", says="'the new one'")
    assert command("undo", "--yes", lun, "--not-in-use").status == 0


def test_nothing_to_undo_or_to_recover_is_told_without_asking(lun, unwritten, mute):
    unwritten(4, "undo", lun, "--yes", says="holds no resignature")
    unwritten(0, "recover", lun)


@pytest.mark.parametrize("name", ["recover", "resignature"])
def test_what_was_cut_is_not_finished_on_a_lun_in_use(lun, command, unwritten, pool, monkeypatch, name):
    with monkeypatch.context() as patch:
        shell.cut(patch, 4)
        command("resignature", *YES, lun)
    sr_on(pool)

    assert unwritten(4, name, lun, "--yes", "--json").json["state"] == "unfinished"
    assert command(name, lun, "--yes", "--not-in-use").status == 0


# --- the SR of the LUN, under another SCSIid

ORIGINAL = shell.tree().truth.sr_uuid


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_the_original_under_a_new_scsi_id_is_4_and_nothing_is_written(lun, command, unwritten, pool, state):
    state.put(pool.db, pool.hosts, ORIGINAL, SCSI_ID)
    if state.is_written:
        assert command("resignature", *YES, lun).status == 0
        return
    ran = unwritten(4, "resignature", lun, *YES, says="override with --not-in-use.")
    assert ORIGINAL in ran.err and ". Nothing was written. If " in ran.err
    unwritten(
        4, "resignature", lun, "--dry-run", "--scsi-id", SCSI_ID, says="note: a run without --dry-run would be refused"
    )
    assert command("resignature", *YES, lun, "--not-in-use").status == 0


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_a_label_that_says_resignatured_is_no_success_where_the_pool_has_its_sr_on_another_lun(
    lun, command, unwritten, pool, state
):
    """The array has copied a resignatured LUN, and a stranger has written the SCSIid of the copy into its label."""
    assert command("resignature", *YES, lun, "--sr-uuid", SR, "--not-in-use").status == 0
    with ImageFile(str(lun), writable=True) as device:
        forge_record(device, SCSI_ID)
    state.put(pool.db, pool.hosts, SR, SCSI_ID)
    if state.is_believed:
        assert command("resignature", *YES, lun, "--json").json["already_done"] is True
        assert command("recover", lun, "--json").json["already_done"] is True
        return
    for words in (("resignature", lun, *YES), ("resignature", lun, "--dry-run"), ("recover", lun)):
        ran = unwritten(4, *words, says="says that the LUN was resignatured. But the LUN holds the SR " + SR)
        assert ran.err.endswith("override with --not-in-use.\n") and ". Nothing was written. " in ran.err
    assert command("resignature", *YES, lun, "--not-in-use", "--json").json["already_done"] is True

    assert command("resignature", *YES, lun, "--again", *["--not-in-use"] * (not state.is_written)).status == 0
    ran = command("resignature", *YES, lun, "--json")
    assert ran.json["already_done"] is True and ran.json["new_sr"] not in (ORIGINAL, SR)


def test_a_label_that_says_resignatured_is_not_believed_of_the_identities_of_an_original(lun, command, unwritten):
    """A writer of the clone has written the record, and has changed no other identity."""
    with ImageFile(str(lun), writable=True) as device:
        forge_record(device, SCSI_ID)
    is_forged = f"The label says that {lun} was resignatured. But the ids of its PV and VG are not those of a"
    ran = unwritten(4, "check", lun)
    assert is_forged in " ".join(ran.out.split()) and "state clean" in ran.out
    assert f"`relvmoiscsi resignature {lun}` gives it new identities" in " ".join(ran.out.split())
    assert command("show", lun, "--json").json["state"] == "clean"
    assert is_forged in " ".join(command("show", lun).out.split())

    ran = command("resignature", *YES, lun, "--json")
    assert (ran.json["already_done"], ran.json["old_sr"]) == (False, ORIGINAL)
    assert command("check", lun).status == 0


@pytest.mark.parametrize("phase", [engine.IN_PROGRESS, engine.SWITCHED])
@pytest.mark.parametrize("words", [("resignature", *YES), ("recover", "--yes"), ("undo", "--yes")])
def test_a_run_to_an_sr_that_is_not_on_the_lun_is_4_whatever_the_pool_knows(lun, unwritten, pool, words, phase):
    """Whoever writes the LUN can write such a journal: the LUN holds all identities of the pool's SR."""
    with ImageFile(str(lun), writable=True) as device:
        forge_run(device, SCSI_ID, phase)
    State(ATTACHED, OTHER).put(pool.db, pool.hosts, ORIGINAL, SCSI_ID)

    name, *options = words
    ran = unwritten(4, name, lun, *options)
    assert f"the LUN holds the SR {ORIGINAL}, not the SR " in " ".join((ran.err + ran.out).split())


def test_the_map_of_a_finished_run_is_of_the_sr_on_the_lun(lun, command, pool):
    """The journal of a stranger names an SR of the pool, and a VDI of another tenant."""
    new_sr = command("resignature", *YES, lun, "--json").json["new_sr"]
    with ImageFile(str(lun), writable=True) as device:
        mine = next(iter(engine.inspect(device).lun.disks()))
        forge_run(device, SCSI_ID, engine.DONE, SR, **{UNKNOWN_SR: mine})
    State(ATTACHED, OTHER).put(pool.db, pool.hosts, SR, SCSI_ID)

    ran = command("resignature", *YES, lun, "--json")
    assert (ran.json["already_done"], ran.json["old_sr"], ran.json["new_sr"]) == (True, None, new_sr)
    assert UNKNOWN_SR not in ran.out and SR not in ran.out
    ran = command("map", "--device", lun)
    assert ran.status == 3 and "or the journal is not of this LUN" in ran.err
    shown = command("show", lun, "--json")
    assert UNKNOWN_SR not in shown.out and SR not in shown.out


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_no_interrupted_run_is_finished_to_an_sr_that_the_pool_has_on_another_lun(
    lun, command, unwritten, pool, monkeypatch, state
):
    """Whoever writes the LUN can begin a run to the UUID of an SR of the pool."""
    new = "0a0b0c0d-0000-4000-8000-0000000000aa"
    plan = command("resignature", lun, "--dry-run", "--json").json["plan"]
    with monkeypatch.context() as patch:
        shell.cut(patch, len(plan) - 2)  # behind the commit
        command("resignature", *YES, lun, "--sr-uuid", new)
    state.put(pool.db, pool.hosts, new, SCSI_ID)
    if state.is_believed:
        ran = command("recover", lun, "--yes", "--json")  # refused where the pool has an SR on this LUN: it is in use
        assert "But the LUN holds" not in ran.err and (ran.status == 4 or ran.json["new_sr"] == new)
        return
    for words in (
        ("resignature", lun, *YES), ("resignature", lun, "--dry-run"),
        ("recover", lun, "--yes"), ("recover", lun, "--dry-run"), ("check", lun),
    ):  # fmt: skip
        ran = unwritten(4, *words)
        said, undo = " ".join((ran.err + ran.out).split()), f"`relvmoiscsi undo {lun}` rolls it back"
        assert "But the LUN holds the SR " + new in said
        assert (undo in said) is state.is_written, "undo takes that SR off the LUN: the pool is asked"
        if words[0] != "resignature" and state.is_written:
            assert ran.out.splitlines()[-1] == f"next: relvmoiscsi undo {lun}"
    words = ["--yes", *["--not-in-use"] * (not state.is_written)]
    assert command("undo", lun, *words).status == 0 and command("resignature", *YES, lun).status == 0


def test_a_finished_lun_is_told_though_xapi_does_not_answer(lun, command, mute):
    assert command("resignature", *YES, lun, "--not-in-use").status == 0
    assert command("resignature", *YES, lun, "--json").json["already_done"] is True


def test_show_says_that_the_lun_may_be_an_sr_of_the_pool(lun, command, pool):
    State(UNPLUGGED, OTHER).put(pool.db, pool.hosts, ORIGINAL, SCSI_ID)
    assert "was asked: this LUN may be an SR of the pool.\n" in command("show", lun).out


@pytest.mark.parametrize("state", [State(UNPLUGGED, OTHER), State(ATTACHED, OTHER)], ids=name_of)
def test_an_undo_takes_the_new_sr_off_the_lun(finished, lun, command, unwritten, pool, state):
    state.put(pool.db, pool.hosts, SR, SCSI_ID)
    if state.is_written:
        assert command("undo", *YES, lun).status == 0
    else:
        unwritten(4, "undo", lun, *YES, says=f"holds the SR {SR} ('production') of this pool")


@pytest.mark.parametrize("name", ["recover", "undo"])
@pytest.mark.parametrize("kind", ["unfinished", "committed"])
def test_a_run_on_the_original_itself_is_settled_without_a_further_word(request, command, kind, name):
    """t0 a person overrides the refusal by mistake, t1 the run is cut, t2 the person wants the original back."""
    request.getfixturevalue(kind)
    lun, pool = request.getfixturevalue("lun"), request.getfixturevalue("pool")
    State(UNPLUGGED, OTHER).put(pool.db, pool.hosts, ORIGINAL, SCSI_ID)
    assert command(name, *YES, lun).status == 0


@pytest.mark.parametrize("of", ["old", "new"])
def test_a_copy_of_a_cut_run_is_rolled_back_only_if_neither_of_its_srs_may_be_there(
    lun, command, unwritten, pool, monkeypatch, has_scsi_id, of
):
    """The rollback takes the new SR off the LUN, and the run behind it the old one: both are asked about first."""
    plan = command("resignature", lun, "--dry-run", "--json", "--sr-uuid", SR).json["plan"]
    with monkeypatch.context() as patch:
        shell.cut(patch, len(plan) - 2)
        has_scsi_id(OTHER_SCSI_ID)
        command("resignature", lun, "--yes", "--sr-uuid", SR)
    has_scsi_id(SCSI_ID)
    sr_uuid = {"old": ORIGINAL, "new": SR}[of]
    State(UNPLUGGED, OTHER).put(pool.db, pool.hosts, sr_uuid, SCSI_ID)

    unwritten(4, "resignature", lun, *YES, says=f"holds the SR {sr_uuid} ('production') of this pool")


# --- volumes of the original on the clone


@pytest.fixture
def taken(lun, root, monkeypatch):
    """The storage manager has activated the MGT volume of the LUN's SR on it; nobody else may open it for writing."""
    mgt = "VG_XenStorage--{}-MGT".format(ORIGINAL.replace("-", "--"))
    opened = disk_source.open_device

    def open_device(path, writable, **more):
        if writable:
            raise Refused(f"{path} is in use by device-mapper volume {mgt}.").in_state(NOTHING)
        return opened(path, writable, **more)

    monkeypatch.setattr(disk_source, "open_device", open_device)
    monkeypatch.setattr(stale_volumes, "use_of_lun", lambda scsi_id, host: other_hosts.Use(("sdc",), (mgt,)))
    return lun


def original_on(request, attached):
    """The SR with the identity that the LUN has, on a LUN of its own; this host has it attached, or not."""
    pool, root = request.getfixturevalue("pool"), request.getfixturevalue("root")
    os.makedirs(root + "/etc", exist_ok=True)
    with open(root + "/etc/xensource-inventory", "w", encoding="ascii") as file:
        file.write("INSTALLATION_UUID='{}'\n".format(pool.db.get("host", pool.master, "uuid")))
    sr = pool.db.create("SR", ORIGINAL, name_label="the original", type="lvmoiscsi")
    for host in pool.hosts:
        is_attached = attached if host == pool.master else True
        config = {"SCSIid": OTHER_SCSI_ID}
        pool.db.create("PBD", SR=sr, host=host, device_config=config, currently_attached=is_attached)


@pytest.mark.parametrize(
    "given, says, is_stale",
    [
        (lambda request: original_on(request, False),
         f"Run `vgchange -an VG_XenStorage-{ORIGINAL}` on this host", True),
        (lambda request: original_on(request, True),
         "This host has that SR attached: this LUN may be the original in use.", False),
        (lambda request: None, f"`xe pbd-list sr-uuid={ORIGINAL}`", False),
    ],
    ids=["a failed plug", "the original in use", "no xapi"],
)  # fmt: skip
def test_volumes_that_a_failed_plug_has_left_are_to_be_deactivated_and_no_others(
    request, taken, unwritten, given, says, is_stale
):
    """What may be the original in use is never to be deactivated."""
    given(request)
    said = " ".join(unwritten(4, "resignature", taken, *YES, says=NOTHING).err.split())
    assert says in said and ("vgchange" in said) == is_stale


# --- locks


@pytest.mark.parametrize(
    "lock, says",
    [
        (lambda host: lun_lock(SCSI_ID, host), f"locks/{SCSI_ID} is held by"),
        (sm_locks.lvm_lock, sm_locks.LVM_LOCK),
    ],
)
def test_the_sr_driver_s_work_and_sm_s_lvm_lock_are_waited_for(lun, command, unwritten, root, lock, says):
    with lock(Host(root)):
        unwritten(4, "resignature", lun, *YES, says=says)
    assert command("resignature", *YES, lun).status == 0


@pytest.mark.parametrize("name", shell.WRITERS)
def test_both_are_held_at_each_write(lun, command, root, monkeypatch, name):
    os.makedirs(os.path.join(root, "var/lock/sm"))
    if name != "resignature":
        with monkeypatch.context() as patch:
            shell.cut(patch, 4)
            command("resignature", *YES, lun)
    writes = []
    real = HostDevice.write

    def write(device, chunks):
        for lock in (sm_locks.lvm_lock(Host(root), 0), lun_lock(SCSI_ID, Host(root), 0)):
            with pytest.raises(Refused), lock:
                pytest.fail("it was free")
        writes.append(chunks)
        real(device, chunks)

    monkeypatch.setattr(HostDevice, "write", write)
    assert command(name, *YES, lun).status == 0

    assert len(writes) >= 2
    with sm_locks.lvm_lock(Host(root), 0), lun_lock(SCSI_ID, Host(root), 0):
        pass


def test_where_sm_is_not_its_locks_are_not_made(lun, command, root):
    assert command("resignature", *YES, lun).status == 0
    assert not os.path.exists(os.path.join(root, "var/lock"))


@pytest.mark.parametrize("name", shell.WRITERS)
def test_an_image_file_has_no_scsi_id(lun_for, unwritten, name):
    """It was passed over: a person believed that the file had been compared."""
    says = " has no SCSIid, so the given SCSIid (`--scsi-id`) cannot be compared. Nothing was written. Leave the SCSIid"
    unwritten(2, name, lun_for(name), *YES, says=says + " out.")


def test_scsi_id_takes_what_an_array_prints_and_shows_what_udev_prints(lun, command, unwritten):
    capitals = ":".join(re.findall("..", SCSI_ID[1:].upper()))
    wrong = "naa." + OTHER_SCSI_ID[1:].upper()
    says = f"{lun} has the SCSIid {SCSI_ID}, and the given SCSIid is {OTHER_SCSI_ID}: it is another LUN."
    unwritten(4, "resignature", lun, "--yes", "--scsi-id", wrong, says=says)

    ran = command("resignature", lun, "--yes", "--json", "--scsi-id", capitals)
    assert (ran.status, ran.json["run_scsi_id"]) == (0, SCSI_ID)


def test_an_image_file_needs_no_locks(image, command, root):
    os.makedirs(os.path.join(root, "var/lock/sm"))
    with sm_locks.lvm_lock(Host(root)), lun_lock(SCSI_ID, Host(root)):
        assert command("resignature", "--yes", image).status == 0


# --- another LUN at the number of the clone; the kernel keeps the SCSIid of the LUN that it has found there


@pytest.mark.parametrize("name", shell.WRITERS)
def test_the_original_in_the_place_of_the_clone_is_not_opened_for_a_write(name, request, unwritten, monkeypatch):
    """t0 the kernel finds the clone, t1 the array maps the original at its number, t2 a person names the clone."""
    request.getfixturevalue("unfinished" if name == "recover" else "image")
    lun = request.getfixturevalue("lun")
    monkeypatch.setattr(live_scsi, "live_scsi_id", lambda _path: "3600of_the_original")
    assert NOTHING in unwritten(4, name, lun, *YES, says="3600of_the_original").err


@pytest.mark.parametrize("batch", range(1, 7))
def test_a_lun_that_is_mapped_there_during_the_run_is_written_no_more(batch, lun, command, monkeypatch):
    """The answer to a question is the last at which the LUN was the clone."""
    written, content_then = [], []
    write = ImageFile.write

    def write_some(self, chunks):
        write(self, chunks)
        written.append(chunks)
        if len(written) == batch:
            content_then.append(content(lun))
            monkeypatch.setattr(live_scsi, "live_serial", lambda _path: "of the original")

    monkeypatch.setattr(ImageFile, "write", write_some)
    ran = command("resignature", lun, "--yes", "--not-in-use")

    assert ran.status != 0 and "of the original" in ran.err and "mapped another LUN in its place" in ran.err
    assert (len(written), content(lun)) == (batch, *content_then)


def test_a_lun_that_a_program_uses_through_another_path_is_refused(lun, unwritten, monkeypatch):
    """LVM has taken sdc, and the command is given sdb: an exclusive open of sdb said nothing about sdc."""
    used, asked = "/dev/sdc is in use by device-mapper volume VG-MGT.", []

    @contextmanager
    def in_use(*wanted):
        asked.append(wanted)
        raise Refused(used)
        yield

    monkeypatch.setattr(disk_source, "exclusive_open", in_use)
    assert NOTHING in unwritten(4, "resignature", lun, *YES, says=used).err
    assert asked == [(SCSI_ID, NO_DEADLINE, on_lun.HOST, None)]


# --- a dry run


def test_a_dry_run_says_each_refusal_of_the_run_and_what_is_overridden(lun, command, pool, smlines):
    uuid = sr_on(pool)
    ran = command("resignature", lun, "--dry-run", "--not-in-use", "--json", "--scsi-id", SCSI_ID)

    assert (ran.status, ran.json["lun"]["pool"]["overridden"]) == (0, True)
    assert uuid in ran.err and any(uuid in line for line in smlines)
    assert ran.err.count("will be changed despite this refusal") == 1


def test_a_dry_run_says_that_yes_alone_is_not_enough(lun, command):
    note = "note: a run without --dry-run would be refused: No pool was asked whether"
    for words, status in (((), 4), (("--scsi-id", SCSI_ID), 0)):
        ran = command("resignature", lun, "--dry-run", "--yes", *words)
        assert (ran.status, note in ran.err) == (status, status == 4)


@pytest.mark.parametrize("words, is_refused", [((), True), (("--later-copy",), False)])
def test_a_dry_run_says_that_a_later_copy_must_be_said(lun, command, has_scsi_id, words, is_refused):
    command("resignature", *YES, lun)
    has_scsi_id(OTHER_SCSI_ID)
    ran = command("resignature", lun, "--dry-run", "--yes", "--scsi-id", OTHER_SCSI_ID, *words)
    assert ran.status == (4 if is_refused else 0) and "later copy" in ran.err
    assert ("a run without --dry-run would be refused" in ran.err) is is_refused


# --- a device whose name goes during the run


def test_a_path_that_is_gone_behind_the_run_is_no_failure(lun, command, tmp_path, monkeypatch):
    """udev takes away a link that is named after the old PV UUID."""
    link = tmp_path / "lvm-pv-uuid"
    link.symlink_to(lun)
    real, writes = ImageFile.write, []

    def write(device, chunks):
        writes.append(chunks)
        if len(writes) == 4:
            link.unlink()
        real(device, chunks)

    monkeypatch.setattr(ImageFile, "write", write)
    ran = command("resignature", link, *YES, "--json", "--map-out", tmp_path / "map.json")
    assert ran.status == 0 and ran.json["state"] == "resignatured" and (tmp_path / "map.json").exists()


@pytest.mark.parametrize("then", ["fifo", "/dev/null", "another image"])
def test_a_path_is_followed_once_and_all_questions_go_to_the_device_there(then, lun, command, tmp_path, monkeypatch):
    """t0 the command follows the path, t1 the owner of the directory exchanges the link. A FIFO would hang the test."""
    os.mkfifo(str(tmp_path / "fifo"))
    shutil.copy(lun, str(tmp_path / "another image"))
    link, asked, opened, number = tmp_path / "link", set(), [], os.stat(lun).st_ino
    link.symlink_to(lun)

    def follow(path, flags, *more, real=os.open, **named):
        descriptor = real(path, flags, *more, **named)
        if path == str(link):
            opened.append(flags)
            link.unlink()
            link.symlink_to(tmp_path / then)
        return descriptor

    def serial(disk):
        asked.add(os.fstat(disk.descriptor).st_ino)
        return "serial"

    monkeypatch.setattr(os, "open", follow)
    monkeypatch.setattr(live_scsi, "live_serial", serial)
    ran = command("resignature", link, *YES, "--json")
    assert (ran.status, ran.json["state"], opened, asked) == (0, "resignatured", [os.O_PATH | os.O_CLOEXEC], {number})
    with ImageFile(str(lun), writable=False) as device:
        assert engine.inspect(device).state == "resignatured"


@pytest.mark.parametrize("node", ["/dev/sdx", ""])
def test_lvm_is_told_of_the_disk_by_a_node_of_it(node, lun, command, tmp_path, monkeypatch):
    """An LVM command of root would follow the caller's path once more. A disk that has gone has no node."""
    told = []
    (tmp_path / "link").symlink_to(lun)
    monkeypatch.setattr(live_scsi, "node_of", lambda _path, _host: node)
    monkeypatch.setattr(disk_source, "tell_lvm", lambda path, _run: told.append(path) or [])
    assert command("resignature", tmp_path / "link", *YES).status == 0
    assert told == [node] * bool(node)


def test_what_a_target_calls_its_lun_is_no_command_of_a_shell(lun, command, has_scsi_id):
    """A person copies the next steps to a shell of root."""
    has_scsi_id("1x$(touch${IFS}pwned)")
    ran = command("resignature", lun, "--yes", "--not-in-use")
    assert ran.status == 0 and "device-config:SCSIid='1x$(touch${IFS}pwned)'" in ran.out


def test_a_python_program_writes_to_a_disk_under_the_lock_of_the_lun_and_never_to_another_lun(lun, root, monkeypatch):
    monkeypatch.setattr(named_device, "THIS_HOST", Host(root))
    with named_device.open_device(str(lun), writable=True) as device:
        assert is_lun_locked(SCSI_ID, Host(root)) and device.read([]) == []
    assert not is_lun_locked(SCSI_ID, Host(root))
    with lun_lock(SCSI_ID, Host(root), 0), pytest.raises(Refused):
        named_device.open_device(str(lun), writable=True).__enter__()
    monkeypatch.setattr(live_scsi, "live_scsi_id", lambda _path: OTHER_SCSI_ID)
    with pytest.raises(Refused, match=OTHER_SCSI_ID):
        named_device.open_device(str(lun), writable=True).__enter__()
    with named_device.open_device(str(lun), writable=False) as device:
        assert not is_lun_locked(SCSI_ID, Host(root)) and device.size_bytes


def test_ctrl_c_while_a_lock_is_waited_for_says_that_nothing_was_written(lun, unwritten, monkeypatch):
    def pressed(_names, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(guard, "lvm_locks", pressed)
    unwritten(130, "resignature", lun, *YES, says="Interrupted. Nothing was written.")
