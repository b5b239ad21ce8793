# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool`: what it prints, how it ends, whom it asks."""

import errno
import json
import re
import signal
import sys
import threading

import pytest

from kit.build_lvm import replace_in_text
from kit.lun_world import World
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_lab import IQN, TARGET, Image, Lab, sr_disk
from kit.streams import Unwritable
from relvmoiscsi import wording
from relvmoiscsi.errors import NotFound
from relvmoiscsi.pool import attach, hosts, jobs, lock, progress
from relvmoiscsi.pool import calls as pool_calls
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.commands import discard_command, lun_commands, secrets_command
from relvmoiscsi.pool.commands import pool_command as unlocking
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import forget

GONE = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
NO_LUN = NotFound("The LUN did not appear.", "ISCSIDevice")


@pytest.fixture
def world():
    return World()


@pytest.fixture(scope="session")
def image_of_originals():
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        made.original("Production")
        made.original("Testing")
        return Image(made)


@pytest.fixture
def lab(world, name_pool, image_of_originals):
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        image_of_originals.put(made)
        name_pool(pool)
        yield made


def test_a_copy_whose_mark_names_another_lun_than_its_pbds_is_not_discarded(lab, copy, clone, pool_command):
    """A pool-operator may write the mark, which could name the LUN of the original; the SR may be an original."""
    db, original = lab.pool.db, lab.originals["Production"][0]
    (sr,) = db.refs("SR", name_label=copy)
    config = {**db.get("SR", sr, "other_config"), "relvmoiscsi:scsi-id": original}
    db.set("SR", sr, "other_config", config)
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == 4 and f"on the LUN {original}, but its PBDs name the LUN {clone}" in ran.err
    assert lab.pool.db.refs("SR", name_label=copy) == [sr]

    db.set("SR", sr, "other_config", {**config, "relvmoiscsi:scsi-id": clone})
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == 0 and f"next: remove the LUN {clone} on the array" in ran.out and original not in ran.out


@pytest.fixture
def clone(lab):
    return lab.clone("Production")


@pytest.fixture
def copy(clone, pool_command):
    """The SR of the clone, with the name "a copy"."""
    ran = pool_command("attach", clone, "--yes", "--name", "a copy")
    assert ran.status == 0 and "next: relvmoiscsi pool clone --all --isolated night 'a copy'" in ran.out.splitlines()
    return "a copy"


def test_a_name_that_looks_like_an_option_is_a_name_in_the_next_command(clone, pool_command):
    ran = pool_command("attach", clone, "--yes", "--name=--yes")
    assert ran.status == 0 and "next: relvmoiscsi pool clone --all --isolated night -- --yes" in ran.out.splitlines()
    ran = pool_command("clone", "--dry-run", "--all", "--isolated", "lab", "--", "--yes")
    assert "No VM of the pool has a disk whose copy is on '--yes'." in ran.err


# --- what is there, attach and discard


def test_one_command_to_have_all_and_one_to_be_rid_of_them(lab, clone, pool_command, tmp_path):
    """The day after: snapshots of all SRs become copies on all hosts, and go again."""
    clones, file = [clone, lab.clone("Testing")], tmp_path / "map.json"
    before = lab.summary()
    kinds = {lun["scsi_id"]: lun for lun in pool_command("luns", "--json", "--target", TARGET).json["pool_luns"]}
    assert (
        kinds[clone]["lun_kind"] == "clone" and kinds[clone]["copy_of"] == kinds[lab.originals["Production"][0]]["sr"]
    )

    ran = pool_command("attach", "--all", "--yes", "--json", "--name", "{sr} copy", "--map-out", file)
    assert ran.status == 0 and not ran.err and locks(lab) == []
    assert [(row["scsi_id"], row["status"]) for row in ran.json["attach_results"]] == [
        (each, "attached") for each in clones
    ]
    assert [(row["scsi_id"], len(row["vdi_pairs"])) for row in json.loads(file.read_text())["attached_srs"]] == [
        (each, 4) for each in clones
    ]
    assert lab.summary() != before
    ran = pool_command("discard", "--clones-of", "Production", "Testing copy", "--yes")
    assert ran.status == 0 and ran.out.count("discarded") == 2 and (lab.summary(), locks(lab)) == (before, [])


def test_what_would_be_done_is_told_and_not_done(lab, clone, pool_command):
    before, uuid = lab.summary(), lab.world.sr_uuid(clone)
    printed = "naa." + clone[1:].upper()
    ran = pool_command("attach", printed, "--dry-run", "--name", "{sr} copy")
    assert ran.status == 0 and (lab.summary(), lab.world.sr_uuid(clone)) == (before, uuid)
    hosts = "'xs1', 'xs2'"
    steps = f"resignature; introduce as 'Production copy'; create PBD on {hosts}; plug on {hosts}; scan; label VDIs"
    assert ran.out.splitlines()[:-1] == ["Planned steps:", f"{clone}: {steps}; changed 2026-11-21 00:11 UTC"]
    (row,) = pool_command("attach", clone, "--dry-run", "--json").json["would_attach"]
    assert (row["scsi_id"], row["hosts_down"], row["problem"]) == (clone, [], None)
    assert row["steps"][0] == {"step": "resignature", "on": None} and {"step": "plug", "on": "xs2"} in row["steps"]

    pool_command("attach", clone, "--yes", "--name", "{sr} copy")
    ran = pool_command("attach", clone, "--dry-run")
    assert ran.out == f"Nothing to do:\n{clone}: already attached: nothing to do\n"
    assert (
        pool_command("discard", "Production copy", "--dry-run", "--json").json["discard_results"][0]["status"]
        == "would be discarded"
    )
    assert lab.pool.db.refs("SR", name_label="Production copy")


def test_the_name_of_an_sr_in_the_place_of_a_scsi_id_is_told_with_the_option(clone, pool_command):
    for more in (["--yes"], ["--dry-run"]):
        ran = pool_command("attach", "Production", *more)
        assert ran.status == 2 and "`relvmoiscsi pool attach --clones-of Production` selects its clones." in ran.err


def test_a_clone_of_an_sr_that_no_host_has_attached_is_attached_with_the_word(lab, clone, pool_command):
    uuid = lab.world.sr_uuid(clone)
    lab.unplug(lab.originals["Production"][1])
    (row,) = [row for row in pool_command("luns", "--json").json["pool_luns"] if row["scsi_id"] == clone]
    assert (row["lun_kind"], row["copy_of"], row["is_known_copy"]) == ("unconnected", uuid, False)
    why = "'Production', which no live host has attached on another LUN: original or clone is unknown"
    assert f"  {why}; changed 20" in pool_command("luns").out

    ran = pool_command("attach", "--clones-of", "Production", "--yes")
    assert ran.status == 4 and "add --unplugged" in ran.err and lab.world.sr_uuid(clone) == uuid
    testing = lab.clone("Testing")
    ran = pool_command("attach", "--all", "--yes", "--unplugged")
    assert f"{clone} is skipped: {why}. If it is a clone, give its SCSIid and --unplugged." in ran.err
    assert ran.status == 0 and testing in ran.out and lab.world.sr_uuid(clone) == uuid

    ran = pool_command("attach", clone, "--yes", "--unplugged")
    assert ran.status == 0 and f"{clone}: attached" in ran.out and lab.world.sr_uuid(clone) != uuid


def test_a_host_that_fails_for_another_reason_is_not_said_to_be_down(lab, clone, pool_command):
    plug = lab.pool.storage.pbd_plug

    def refused(session, pbd):
        if lab.pool.db.get("PBD", pbd, "host") == lab.pool.hosts[1]:
            raise XenError("SR_BACKEND_FAILURE_68", "", "ISCSI login failed", "")
        return plug(session, pbd)

    lab.pool.api._methods["PBD.plug"] = refused
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 9
    assert "  host 'xs2': PBD.plug: ISCSI login failed; repeat the command after you correct the cause" in ran.out


def test_one_of_several_that_fails_is_9_and_a_single_one_its_own_status(lab, world, clone, pool_command):
    world.fail["sr_create", clone] = NO_LUN
    assert pool_command("attach", clone, "--yes").status == 3

    lab.clone("Testing")
    for more, status, error in (((), "failed", "is introduced but not plugged"), (("--leave-others",), "attached", "")):
        ran = pool_command("attach", "--all", "--yes", "--json", *more)
        bad, good = ran.json["attach_results"]
        assert (ran.status, bad["status"], good["status"]) == (9, "failed", status)
        assert "did not appear" in bad["problem"] and error in (good["problem"] or "")


def test_what_could_not_be_looked_at_is_9_and_told(lab, world, clone, pool_command):
    world.add(TARGET, "iqn.2026-01.test:refuses", sr_disk("x1"), chap=("bob", "other word"))
    bad = lab.clone("Testing")
    world.fail["sr_probe", bad] = NO_LUN
    ran = pool_command("attach", "--all", "--dry-run")
    assert f"{clone}: resignature; " in ran.out and f"{bad}: {bad} would be skipped" in ran.out
    would = pool_command("attach", "--all", "--dry-run", "--json").json
    rows = would["would_attach"]
    assert would["changed"] is any(row["steps"] for row in rows)
    found = {row["scsi_id"]: (bool(row["steps"]), bool(row["problem"])) for row in rows}
    assert found == {clone: (True, False), bad: (False, True)}

    ran = pool_command("attach", "--all", "--yes", "--json", "--target", TARGET)
    rows = {row["scsi_id"]: (row["status"], row["problem"]) for row in ran.json["attach_results"]}
    assert ran.status == 9 and rows.pop(clone) == ("attached", None) and set(rows) == {bad, None}
    assert "did not appear" in rows[bad][1] and "iqn.2026-01.test:refuses" in rows[None][1]
    told = pool_command("luns", "--target", TARGET).out
    assert f"The LUNs behind {TARGET} iqn.2026-01.test:refuses are unknown" in told


@pytest.mark.parametrize("words", [("--all",), ("--clones-of", "Production")])
def test_a_damaged_clone_is_named_and_gives_a_status(lab, world, clone, pool_command, words):
    lost = lab.clone("Production")
    replace_in_text(world.lun(lost).disk, b"physical_volumes", b"physical_nothing")
    assert lab.lun(lost).kind == "damaged"
    dry = pool_command("attach", *words, "--dry-run")
    assert dry.status == 9 and f"{lost}: {lost} would be skipped. Its state is damaged: " in " ".join(dry.out.split())
    ran = pool_command("attach", *words, "--yes", "--json")
    rows = {row["scsi_id"]: row["status"] for row in ran.json["attach_results"]}
    assert (ran.status, rows) == (9, {clone: "attached", lost: "failed"})
    night = pool_command("attach", *words, "--yes", "-q")
    assert (night.status, night.out) == (9, ""), "each night"
    assert f"relvmoiscsi: {lost}: {lost} was skipped. Its state is damaged: " in night.err
    assert pool_command("attach", clone, "--yes").status == 0


def test_the_scsi_id_of_a_copy_is_enough_for_every_command_that_takes_a_copy(lab, clone, copy, pool_command):
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    assert pool_command("map", clone).out == pool_command("map", "a copy").out
    assert pool_command("clone", clone, "web", "--yes").status == 0
    assert pool_command("discard", clone, "--with-vms", "--yes").status == 0
    ran = pool_command("map", lab.originals["Production"][0])
    assert ran.status == 3 and "`relvmoiscsi pool luns` the LUNs of the copies" in ran.err


def test_the_log_has_the_night(lab, world, clone, pool_command, tmp_path, monkeypatch):
    log = tmp_path / "night.log"
    assert pool_command("attach", clone, "--yes", "--name", "a copy", "--log", log).status == 0
    assert pool_command("discard", "none", "--yes", "--log", log).status == 3
    lines = log.read_text().splitlines()
    assert all(re.match(r"20..-..-..T..:..:..Z \[[0-9]+\] ", line) for line in lines)
    told = [line.split("] ", 1)[1] for line in lines]
    assert told[0] == f"begins: relvmoiscsi pool attach {clone} --yes --name 'a copy' --log {log}"
    assert f"{clone} resignature started" in told and f"{clone} attach finished" in told, "the words of the screen"
    assert any(line.startswith(f"{clone}: attached 'a copy'") for line in told)
    assert told[-1] == "ends with exit status 3" and "There is no SR" in told[-2]
    for path, said in ((tmp_path / "no" / "log", "cannot be opened"), (tmp_path, "cannot be opened")):
        before = len(lab.pool.api.calls)
        ran = pool_command("discard", "a copy", "--yes", "--log", path)
        assert ran.status == 2 and said in ran.err and len(lab.pool.api.calls) == before
    (tmp_path / "link").symlink_to(log)
    assert pool_command("discard", "a copy", "--yes", "--log", tmp_path / "link").status == 2


def test_a_log_ends_with_the_exit_status_also_after_ctrl_c_and_a_bug(clone, pool_command, tmp_path, monkeypatch):
    for problem, status in ((KeyboardInterrupt(), 130), (ZeroDivisionError("a bug"), 70)):
        log = tmp_path / str(status)

        def stop(*_arguments, problem=problem):
            raise problem

        monkeypatch.setattr(attach, "carry_out", stop)
        assert pool_command("attach", clone, "--yes", "--log", log).status == status
        told = [line.split("] ", 1)[1] for line in log.read_text().splitlines()]
        assert told[-1] == f"ends with exit status {status}"
        assert told[-2].startswith(
            "Interrupted. Not started: " if status == 130 else "This is a bug: ZeroDivisionError"
        )


def test_a_skipped_lun_is_in_the_log_and_a_warning_that_quiet_keeps(lab, clone, pool_command, tmp_path):
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    said = f"{foreign} is skipped: "
    assert said in pool_command("attach", clone, "--all", "--dry-run").err
    ran = pool_command("attach", "--all", "--yes", "-q", "--log", tmp_path / "log")
    assert (ran.status, ran.out) == (0, "") and ran.err.startswith(f"relvmoiscsi: warning: {said}")
    assert said in (tmp_path / "log").read_text()


def test_after_the_clone_of_an_unknown_sr_the_next_step_lists_its_vdis(lab, pool_command):
    """No VM of this pool has the original of a disk, so `clone --all` would find none."""
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    ran = pool_command("attach", foreign, "--foreign", "--leave-others", "--yes", "--name", "theirs")
    assert ran.status == 0 and ran.out.endswith("next: relvmoiscsi pool map theirs\n")
    assert pool_command("map", "theirs").status == 0


def test_every_command_promises_the_same_of_quiet(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = [command("pool", *words, "--help").out for words in ([], ["attach"], ["unlock"])]
    assert all("-q, --quiet print only errors, warnings and questions" in " ".join(text.split()) for text in texts)
    assert all(len(line) <= 80 for text in texts for line in text.splitlines())


def test_a_copy_that_was_discarded_is_attached_again_by_its_scsi_id(lab, clone, copy, pool_command):
    assert pool_command("discard", copy, "--yes").status == 0
    for words in (["--clones-of", "Production"], ["--all"]):
        ran = pool_command("attach", *words, "--yes")
        assert ran.status == 3
        assert f"It sees copies that are resignatured and not attached: {clone}. Give the SCSIid." in ran.err
    assert "Give the SCSIid" not in pool_command("attach", "--clones-of", "Testing", "--yes").err
    assert pool_command("attach", clone, "--yes").status == 0


def test_a_host_that_is_down_is_named_and_the_copy_is_of_use_meanwhile(lab, clone, pool_command):
    lab.pool.go_down(lab.pool.hosts[1])
    ran = pool_command("attach", clone, "--yes", "--name", "a copy")
    assert ran.status == 9 and f"{clone}: partial" in ran.out
    assert ran.out.splitlines()[-2:] == [
        "  the other hosts can use the copy now",
        "next: relvmoiscsi pool clone --all --isolated night 'a copy'",
    ]
    assert "attached, 'a copy', but not on 'xs2'" in pool_command("luns").out


def test_an_address_without_a_target_is_told_with_a_remedy(lab, pool_command):
    ran = pool_command("luns", "--target", "10.0.0.99")
    assert ran.status == 11 and "No iSCSI target answers at 10.0.0.99. Check the address" in ran.err
    assert "[" not in ran.err


def test_copies_of_three_days_are_told_apart_by_the_last_change_of_their_sr(lab, world, clone, pool_command):
    other = lab.clone("Production")
    then, now = "changed 2026-11-20 00:11 UTC", "changed 2026-11-21 00:11 UTC"
    replace_in_text(world.lun(other).disk, b"creation_time = 1795219866\t", b"creation_time = 1795133466\t")
    rows = {line.split()[0]: line for line in pool_command("luns").out.splitlines() if "clone of" in line}
    assert then in rows[other] and now in rows[clone]
    assert "`changed` is the last change of the SR by LVM, not the time of a snapshot." in pool_command("luns").out
    planned = pool_command("attach", other, clone, "-n").out.splitlines()
    assert planned[-1] == "`changed` is the last change of the SR by LVM, not the time of a snapshot."
    plans = {line.split(":")[0]: line for line in planned[1:-1]}
    assert plans[other].endswith(f"; {then}") and plans[clone].endswith(f"; {now}")
    assert f"introduce as 'Production {then}'" in plans[other] and f"introduce as 'Production {now}'" in plans[clone]
    rows = pool_command("attach", other, clone, "-n", "--json").json["would_attach"]
    assert [row["changed_at"] for row in rows] == ["2026-11-20T00:11:06Z", "2026-11-21T00:11:06Z"]
    named = pool_command("attach", other, clone, "-n", "--name", "copy of {sr}").out
    assert f"'copy of Production ({then})'" in named
    assert {lun["scsi_id"]: lun["changed_at"] for lun in pool_command("luns", "--json").json["pool_luns"]}[other] == (
        "2026-11-20T00:11:06Z"
    )
    ran = pool_command("attach", "--all", "--yes", "--name", "copy").out
    assert f"'copy ({then})'" in " ".join(ran.split()) and f"'copy ({now})'" in " ".join(ran.split())


def test_an_sr_that_is_there_keeps_its_name_and_that_is_said(clone, copy, pool_command):
    ran = pool_command("attach", clone, "--yes", "--name", "two")
    assert ran.status == 0 and f"{clone}: the SR 'a copy' keeps its name; --name is for new SRs." in ran.err


def test_a_copy_that_is_gone_is_done(lab, pool_command):
    ran = pool_command("discard", GONE, "--yes")
    assert (ran.status, ran.out) == (0, f"{GONE}: not in the pool\n")
    assert pool_command("discard", "no such name", "--yes").status == 3
    assert pool_command("discard", "--all", "--yes").out == "The pool has no copies.\n"


def test_hostile_names_do_not_reach_the_terminal(lab, clone, pool_command):
    """That no control character is printed is checked of every run."""
    lab.pool.db.set("SR", lab.originals["Production"][1], "name_label", "\x1b[31mred")
    assert "[31mred" in pool_command("luns").out and pool_command("attach", "--all", "--yes").status == 0


# --- the map


def test_the_map_has_names_vms_and_what_is_new(lab, copy, pool_command):
    """docs/pool.rst has the rest of it."""
    (ref, record), db = lab.vdi("Production", "root disk"), lab.pool.db
    db.create("VBD", VM=db.create("VM", name_label="web"), VDI=ref)
    new = db.get("VDI", db.create("VDI", SR=db.refs("SR", name_label=copy)[0], name_label="made today"), "uuid")

    rows = {row["old_vdi"]: row for row in pool_command("map", copy, "--json").json["vdi_pairs"]}
    assert rows[record["uuid"]]["vm_names"] == ["web"] and rows[record["uuid"]]["vdi_name"] == "root disk"
    told = pool_command("map", copy).out
    assert f"\n  {new}  'made today'\n    is new\n" in told and max(map(len, told.splitlines())) <= 80
    assert pool_command("map", "Production").status == 4


def test_a_map_that_cannot_be_written_or_of_an_earlier_run_is_told_before_the_work(lab, clone, pool_command, tmp_path):
    path, there = tmp_path / "map.json", "already exists and --map-out replaces no file"
    path.write_text("of an earlier run")
    for where, why in ((tmp_path / "no/map", "No such file or directory"), (path, there)):
        ran = pool_command("attach", clone, "--yes", "--map-out", where)
        assert ran.status == 2 and why in ran.err and "Nothing was written" in ran.err
    assert path.read_text() == "of an earlier run" and lab.world.state(clone) == "clean"
    assert pool_command("attach", clone, "--dry-run", "--map-out", tmp_path / "new.json").status == 0
    assert list(tmp_path.iterdir()) == [path]

    path.unlink()
    lab.pool.api.before = lambda method, params: method == "SR.introduce" and path.write_text("of another run")
    ran = pool_command("attach", clone, "--yes", "--map-out", path)
    assert ran.status == 74 and f"{clone}: attached" in ran.out and "the map cannot be written to" in ran.err
    assert path.read_text() == "of another run"


# --- Ctrl-C


def states(ran):
    return {row["worked_on"]: (row["progress"], row["detail"]) for row in ran.json["so_far"]}


@pytest.mark.processes
def test_an_interrupted_run_gives_json_as_well(lab, pool_command, interrupts):
    interrupts(lab.pool, ("SR.get_all_records", 1))
    ran = pool_command("luns", "--json")
    error = ran.json["error"]
    assert (ran.status, error["class"], error["message"], error["advice"]) == (130, "Interrupted", "Interrupted.", "")
    assert (error["disk_state"], ran.json["so_far"]) == ("Nothing was changed.", [])


UNDER_WAY, NOT_BEGUN, INTRODUCED = "under way", ("not begun", None), ("under way", "introduce: done")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("Async.SR.create", [INTRODUCED, (UNDER_WAY, "resignature"), NOT_BEGUN]),
        ("SR.introduce", [INTRODUCED, (UNDER_WAY, "introduce"), NOT_BEGUN]),
        ("Async.SR.scan", [("done", "attach"), (UNDER_WAY, "attach"), INTRODUCED]),
    ],
)
def test_attach_that_is_interrupted_says_how_far_each_lun_is(lab, pool_command, interrupts, method, expected):
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    words = ["attach", *clones, "--yes", "--jobs", "1"]
    interrupts(lab.pool, (method, 2))
    ran = pool_command(*words, "--json")
    assert ran.status == 130 and states(ran) == dict(zip(clones, expected))
    assert "Repeat the command to resume." in ran.json["error"]["disk_state"]
    if method == "SR.introduce":
        interrupts(lab.pool, ("SR.introduce", 1))
        assert pool_command(*words).err.splitlines()[-1] == (
            f"relvmoiscsi: Interrupted. Started; the pool may still finish this work: {clones[0]} (introduce: done), "
            f"{clones[1]} (introduce). Not started: {clones[2]}. Repeat the command to resume."
        )
    assert pool_command(*words).status == 0


WORK = ("SR.introduce", 1)
RELEASE = ("host.get_servertime", 3)  #: by the lock, at the beginning twice


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "moments"),
    [
        (signal.SIGINT, [WORK, ("host.get_servertime", 1)]),
        (signal.SIGINT, [RELEASE]),
        (signal.SIGTERM, [WORK]),
        (signal.SIGHUP, [WORK]),
    ],
)
def test_ctrl_c_at_any_time_a_kill_and_a_closed_terminal_leave_no_lock(
    lab, clone, pool_command, interrupts, number, moments
):
    """Of `timeout`, of systemd, of an SSH connection that was lost: what was done is said, and no lock stays."""
    before = signal.getsignal(number)
    interrupts(lab.pool, *moments, number=number)
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 130 and ("Repeat the command to resume." in ran.err or moments == [RELEASE])
    assert signal.getsignal(number) == before and locks(lab) == []
    assert pool_command("attach", clone, "--yes").status == 0


@pytest.fixture
def hung(lab, monkeypatch):
    """A task for this call stays pending, as behind a host that has died, until the end of the test."""
    release, start = threading.Event(), lab.pool.api._start

    def hang(method, begun=lambda: None):
        real = lab.answer(method, lambda *words: (release.wait(60), real(*words))[1])

        def started(name, function, params):
            lab.pool.api.tasks_end_at_once = name != "Async." + method
            if not lab.pool.api.tasks_end_at_once:
                begun()
            return start(name, function, params)

        lab.pool.api._start = started

    yield hang
    release.set()
    until(lambda: lab.pool.is_at_rest)


@pytest.mark.parametrize(
    ("method", "words"), [("PBD.plug", ["attach"]), ("SR.create", ["attach"]), ("PBD.unplug", ["discard"])]
)
def test_a_task_that_never_ends_ends_the_command_and_its_lock(
    lab, clone, pool_command, hung, monkeypatch, method, words
):
    monkeypatch.setattr(hosts, "MEMBER_SECONDS", 0.1)
    monkeypatch.setattr(forget, "MEMBER_SECONDS", 0.1)
    monkeypatch.setattr(pool_calls, "QUIET_SECONDS", 0.1)
    if words == ["discard"]:
        assert pool_command("attach", clone, "--yes", "--name", "a copy").status == 0
        clone = "a copy"
    hung(method)
    ran = pool_command(*words, clone, "--yes")
    text = ran.out + ran.err
    assert ran.status and re.search(method + r" (did not end within|made no progress for) 0 s and continues", text)
    (task,) = lab.pool.db.records("task", status="pending").values()
    assert f"`xe task-cancel uuid={task['uuid']}`" in text and locks(lab) == []


@pytest.mark.processes
def test_ctrl_c_ends_the_wait_for_a_task_that_never_ends_and_leaves_no_lock(lab, clone, pool_command, hung, interrupts):
    hung("PBD.plug", lambda: interrupts(lab.pool, ("event.from", 1)))
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 130 and "Repeat the command to resume." in ran.err and locks(lab) == []


@pytest.mark.processes
def test_several_at_once_that_are_interrupted(lab, pool_command, interrupts):
    """What comes of the others when the session has ended is not told: it is not known."""
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    interrupts(lab.pool, ("Async.PBD.plug", 2))
    found = states(pool_command("attach", *clones, "--yes", "--json"))
    assert set(found) == set(clones) and "failed" not in {state for state, _ in found.values()}


@pytest.mark.processes
def test_discard_that_is_interrupted_says_how_far_each_copy_is(lab, pool_command, interrupts, monkeypatch):
    monkeypatch.setattr(jobs, "MOST", 1)
    for name in ("Production", "Testing"):
        pool_command("attach", lab.clone(name), "--yes", "--name", "{sr} copy", "--leave-others")
    before = lab.pool.db.refs("SR")
    interrupts(lab.pool, ("SR.forget", 2))
    ran = pool_command("discard", "--all", "--yes", "--json")
    assert ran.status == 130 and len(lab.pool.db.refs("SR")) == len(before) - 1
    found = {name.split("'")[1]: state for name, (state, _) in states(ran).items()}
    assert found == {"Production copy": "done", "Testing copy": UNDER_WAY}
    assert pool_command("discard", "--all", "--yes").status == 0 and len(lab.pool.db.refs("SR")) == len(before) - 2


@pytest.mark.parametrize("words", [["attach", "--all"], ["discard", "--all"]])
def test_at_the_question_nothing_was_changed(lab, copy, pool_command, monkeypatch, type_in, words):
    lab.clone("Testing")
    before = lab.summary()

    def stopped(*_):
        raise KeyboardInterrupt

    for module in (lun_commands, discard_command):
        monkeypatch.setattr(module, "ask", stopped)
    type_in("")
    ran = pool_command(*words)
    assert ran.status == 130 and ran.err.endswith("Interrupted. Nothing was changed.\n") and lab.summary() == before


# --- the question


def test_somebody_is_asked_and_the_question_counts_what_there_is_to_do(lab, clone, pool_command, type_in):
    type_in("no\n")
    ran = pool_command("attach", clone)
    assert ran.status == 4 and "Attach 1 LUN? [y/N]" in ran.err and lab.world.state(clone) == "clean"
    type_in("y\n")
    assert pool_command("attach", clone).status == 0

    lab.clone("Testing")
    type_in("y\n")
    ran = pool_command("attach", "--all")
    assert ran.status == 0 and "Attach 1 LUN? [y/N]" in ran.err
    assert f"{clone}: already attached: nothing to do" in ran.err
    type_in("")
    ran = pool_command("attach", "--all")
    assert ran.status == 0 and not ran.err and ran.out.count(": already attached ") == 2, "nobody is asked for nothing"
    type_in("y\n")
    ran = pool_command("discard", "--all")
    assert ran.status == 0 and "Discard 'Production" in ran.err


@pytest.mark.parametrize("words", [["attach", "--all"], ["discard", "--all"]])
def test_where_nobody_can_be_asked_it_says_so(clone, pool_command, words):
    ran = pool_command(*words, "--json")
    assert ran.status == 2 and "use --yes, or --dry-run to see the plan" in ran.err


# --- words that are wrong, targets and passwords


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Give a subcommand"),
        (["luns", "--password-file", "/nowhere"], "The file of passwords /nowhere cannot be read"),
        (["luns", "--chap-user", "alice"], "need each other"),
        (["luns", "--chap-user", "alice", "--chap-password-file", "chap"], "--chap-user needs --target"),
        (["luns", "--target", TARGET, "--port", "65536"], "--port '65536' is not a port"),
        (["attach", "--all", "--yes", "--name", ""], "--name is empty"),
        (["luns", "--hba", "--iqn", IQN], "--iqn and --port need --target"),
        (["attach", "--all", "--yes", "--port", "3260"], "--iqn and --port need --target"),
    ],
)
def test_what_cannot_be_meant_is_2(lab, clone, pool_command, tmp_path, monkeypatch, words, said):
    """The password of one array is not shown to all; and what narrows a target means nothing without one."""
    (tmp_path / "chap").touch(0o600)
    (tmp_path / "chap").write_text("a secret word\n")
    monkeypatch.chdir(tmp_path)
    calls = len(lab.pool.api.calls)
    ran = pool_command(*words)
    assert ran.status == 2 and said in ran.err
    assert len(lab.pool.api.calls) == calls, "nothing was asked of the pool"


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--target", "10.9.9.9"], 11), (["--target", TARGET, "--iqn", "iqn.2026-01.test:no"], 3)],
)
def test_a_silent_portal_is_11_as_for_show_and_a_target_that_is_not_there_is_3(lab, pool_command, words, status):
    ran = pool_command("luns", *words, "--json")
    kind = {3: "NotSeenByPool", 11: "NoWayToTarget"}[status]
    assert (ran.status, ran.json["error"]["class"]) == (status, kind)


def test_a_pool_without_an_iscsi_target_is_told_of_hba(world, name_pool, pool_command):
    with world.pool() as pool:
        name_pool(pool)
        ran = pool_command("luns")
    assert ran.status == 2 and "give --target, or --hba" in ran.err


def test_a_password_is_needed_from_afar(lab, pool_command, monkeypatch, tmp_path):
    monkeypatch.delenv("XENSERVER_PASSWORD")
    assert "The password is missing" in pool_command("luns").err

    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text(lab.pool.api.password + "\n")
    assert pool_command("luns", "--password-file", tmp_path / "password").status == 0
    (tmp_path / "password").write_text("wrong\n")
    ran = pool_command("luns", "--password-file", tmp_path / "password")
    assert ran.status == 11 and "does not accept this user and password" in ran.err and "wrong" not in ran.err


def test_chap_of_the_command_line(lab, world, pool_command, tmp_path):
    (tmp_path / "chap").touch(0o600)
    (tmp_path / "chap").write_text("a secret word\n")
    scsi_id = world.add("10.0.0.6", "iqn.2026-01.test:x", sr_disk("guarded"), chap=("alice", "a secret word"))
    chap = ["--target", "10.0.0.6", "--chap-user", "alice", "--chap-password-file", tmp_path / "chap"]
    ran = pool_command("attach", scsi_id, "--yes", "--foreign", *chap)
    assert ran.status == 0 and "Secret" not in ran.err
    assert lab.pool.secrets() == ["a secret word"] * 2, "those of the PBDs"
    assert not any(call.startswith("secret.get_all_records") for call in lab.pool.api.calls)


# --- how far it is


def test_in_a_terminal_there_is_a_bar_for_each_lun_at_work(monkeypatch, terminal):
    bars = []

    class Tqdm:
        def __init__(self, **options):
            self.options, self.n, self.is_closed = options, 0, False
            bars.append(self)

        def refresh(self):
            self.shown = f"{self.n} of {self.total}"

        def close(self):
            self.is_closed = True

    monkeypatch.setattr(progress, "_tqdm", lambda: Tqdm)
    with progress.shown(terminal, {"a": 2, "b": 2}, 2) as tell:
        for what in (("a", "resignature", "begun"), ("b", "resignature", "begun"), ("a", "resignature", "over")):
            tell(*what)
        tell("a", "attach", "begun")
        assert bars[0].shown == "1 of 4"
        tell("b", "resignature", "ended")  # it has no more steps

    assert [bar.options["position"] for bar in bars] == [0, 1, 2, 1]
    assert bars[0].shown == "1 of 2" and all(bar.is_closed for bar in bars)


@pytest.mark.parametrize(
    "steps, jobs, told",
    [
        (
            {"a": 2},
            1,
            [("a", "resignature", "over", True), ("a", "attach", "begun", True), ("a", "attach", "over", False)],
        ),
        # it had its identities already; with two at a time, the first end tells no rate
        ({"a": 1, "b": 2}, 1, [("a", "attach", "over", True), ("b", "resignature", "over", True)]),
        ({"a": 1, "b": 2}, 2, [("a", "attach", "over", False), ("b", "resignature", "over", True)]),
        # what has failed is no work done, and has no steps left
        ({"a": 2, "b": 1}, 1, [("a", "resignature", "ended", False), ("b", "attach", "over", False)]),
        ({"a": 2, "b": 2}, 1, [("b", "resignature", "over", True), ("b", "attach", "ended", True)]),
    ],
)
def test_without_the_library_a_terminal_has_lines_with_the_remaining_time(monkeypatch, terminal, steps, jobs, told):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(wording, "ESTIMATE_SECONDS", 0)
    words = {"begun": "started", "over": "finished", "ended": "failed"}
    with progress.shown(terminal, steps, jobs) as tell:
        for lun, step, how, _ in told:
            tell(lun, step, how)

    lines = [line.partition(",") for line in terminal.getvalue().splitlines()]
    assert [(line, left.endswith(" left")) for line, _, left in lines] == [
        (f"relvmoiscsi: {lun} {step} {words[how]}", has_left) for lun, step, how, has_left in told
    ]


def test_a_lost_terminal_stops_no_attach_and_a_failure_between_two_steps_is_told(lab, pool_command, monkeypatch):
    """The probe behind a resignature fails. Whoever ran the command over ssh is gone."""

    stderr, clones = Unwritable(errno.EPIPE), [lab.clone(name) for name in ("Production", "Testing")]
    identified = attach.identified

    def probed(calls, pool, lun):
        if lun.scsi_id == clones[0]:
            raise PoolFailure("The probe has failed.")
        return identified(calls, pool, lun)

    monkeypatch.setattr(attach, "identified", probed)
    monkeypatch.setattr(sys, "stderr", stderr)
    ran = pool_command("attach", *clones, "--yes", "--leave-others")
    assert ran.status == 9 and f"{clones[1]}: attached" in ran.out, ran.out
    assert f"relvmoiscsi: {clones[0]} resignature failed\n" in stderr.tried


# --- secrets


def killed(lab):
    """A Secret that a run has left which was killed long ago."""
    return lab.pool.db.create("secret", value="x", other_config={"relvmoiscsi:run": "20260101T000000Z one"})


def test_what_killed_runs_have_left_is_cleaned_where_somebody_says_so(lab, world, clone, pool_command):
    left = killed(lab)
    assert not pool_command("luns").err
    ran = pool_command("attach", clone, "--dry-run", "--clean-secrets")
    assert "1 Secrets of killed runs would be destroyed" in ran.err and left in lab.pool.db.refs("secret")
    ran = pool_command("attach", clone, "--yes", "--clean-secrets")
    assert "1 Secrets of killed runs were destroyed" in ran.err and left not in lab.pool.db.refs("secret")

    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    left = killed(lab)  # and where no target is asked
    assert "1 Secrets of killed runs were destroyed" in pool_command("luns", "--hba", "--clean-secrets").err
    assert left not in lab.pool.db.refs("secret")


def test_the_answer_is_not_lost_when_secrets_cannot_be_cleaned(lab, clone, pool_command):
    def before(method, params):
        if method == "secret.get_all":
            raise XenError("RBAC_PERMISSION_DENIED", method, "No permission in user session")

    lab.pool.api.before = before
    ran = pool_command("attach", clone, "--yes", "--json", "--clean-secrets")
    assert ran.status == 0 and ran.json["attach_results"][0]["status"] == "attached"
    assert "could not be destroyed: The user of this session may not call secret.get_all" in ran.err


@pytest.fixture
def orphan(lab):
    """A Secret that a call has left, with a password that no SR has any more."""
    return lab.pool.db.create("secret", value="of a volume")


@pytest.fixture
def secrets(pool_command, tmp_path):
    """`relvmoiscsi pool secrets` with that password."""
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("of a volume\n")
    return lambda *words: pool_command("secrets", "--chap-password-file", tmp_path / "password", *words)


def test_secrets_of_nobody_are_listed_and_left_without_a_yes(lab, pool_command, orphan, secrets, type_in, monkeypatch):
    monkeypatch.setattr(secrets_command.time, "sleep", lambda _: pytest.fail("nobody has agreed"))
    uuid, ran = lab.pool.db.get("secret", orphan, "uuid"), secrets()
    assert (ran.status, ran.out.splitlines()[0]) == (0, uuid)
    assert "1 Secrets hold a CHAP password and are unused; --remove destroys the Secrets." in ran.out
    assert secrets("--json").json == {"secrets": [uuid], "removed": False}
    assert "no unused Secret" in pool_command("secrets").out
    assert secrets("--remove").status == 2
    type_in("no\n")
    ran = secrets("--remove")
    assert ran.status == 4 and uuid in ran.err and lab.pool.db.exists("secret", orphan)


def test_secrets_are_removed_after_a_second_look(lab, orphan, secrets, monkeypatch):
    """The one of a call that was under way is gone, or named, by then."""
    young, waits = lab.pool.db.create("secret", value="of a volume"), []

    def sleep(seconds):
        waits.append(seconds)
        lab.pool.db.set("pool", lab.pool.pool, "other_config", {"call": young})

    monkeypatch.setattr(secrets_command.time, "sleep", sleep)
    ran = secrets("--remove", "--yes")
    assert (ran.status, ran.out, waits) == (0, "1 Secrets were destroyed.\n", [300.0])
    assert lab.pool.db.exists("secret", young) and not lab.pool.db.exists("secret", orphan)


# --- the lock


@pytest.fixture
def locked(lab):
    """A client was killed with the lock of a copy that is attached: the copy."""
    (copy,) = lab.attach(lab.clone("Production"))
    with connect(lab.where()) as calls:
        lock.Held(calls, [copy.scsi_id], "restore").take()
    return copy


def locks(lab):
    return [key for key in lab.pool.db.get("pool", lab.pool.pool, "other_config") if key.startswith(lock.KEY)]


@pytest.mark.parametrize("more", ["--yes", "--dry-run"])
def test_a_locked_copy_is_refused_before_anybody_is_asked(lab, pool_command, locked, more):
    ran = pool_command("discard", locked.sr_uuid, more)
    assert ran.status == 4 and f"`relvmoiscsi pool unlock {locked.scsi_id}`" in ran.err
    lab.pool.storage.pbd_unplug("", lab.pool.db.refs("PBD", SR=lab.sr(locked.sr_uuid)[0])[1])
    ran = pool_command("attach", locked.scsi_id, more)
    assert ran.status == 4 and "Another client has locked" in ran.err
    assert lab.pool.db.refs("SR", uuid=locked.sr_uuid) and len(locks(lab)) == 1


@pytest.mark.parametrize("named", ["sr_uuid", "name", "scsi_id"])
def test_the_command_that_breaks_a_lock(lab, pool_command, type_in, locked, named):
    words = "unlock", getattr(locked, named)
    ran = pool_command(*words, "--dry-run")
    assert ran.status == 0 and "would be unlocked; it is locked by `relvmoiscsi pool restore` of" in ran.out
    type_in("n\n")
    ran = pool_command(*words)
    assert ran.status == 4 and "A live run stops when it loses the lock. Break the lock? [y/N]" in ran.err
    assert len(locks(lab)) == 1

    (row,) = pool_command(*words, "--yes", "--json").json["unlocked"]
    assert (row["locked"], row["doing"], locks(lab)) == (locked.scsi_id, "restore", [])
    ran = pool_command(*words, "--yes")
    assert ran.status == 3 and "The pool has no lock. Nothing was changed." in ran.err
    assert pool_command("discard", locked.sr_uuid, "--yes").status == 0


def test_a_lock_on_a_vm_is_broken_by_the_name_of_the_vm(lab, pool_command):
    db, web = lab.pool.db, lab.vm("web", lab.vdi("Production", "data")[0])
    with connect(lab.where()) as calls:
        lock.Held(calls, [db.get("VM", web, "uuid")], "restore").take()
    twin = lab.vm("web", lab.vdi("Testing", "data")[0])
    ran = pool_command("unlock", "web", "--yes")
    assert ran.status == 2 and "2 VMs have the name 'web'; give a UUID" in ran.err and len(locks(lab)) == 1
    db.set("VM", twin, "name_label", "twin")
    ran = pool_command("unlock", "twin", "--yes")
    assert ran.status == 3 and "There is no lock on 'twin'. These are locked: " in ran.err
    assert db.get("VM", web, "uuid") in ran.err
    ran = pool_command("unlock", "Prodction", "--yes")
    assert ran.status == 3 and "There is no SR or VM 'Prodction'. Did you mean 'Production'? These are" in ran.err
    (row,) = pool_command("unlock", "web", "--yes", "--json").json["unlocked"]
    assert (row["locked"], locks(lab)) == (db.get("VM", web, "uuid"), [])


def test_a_name_of_a_locked_copy_and_of_a_locked_vm_breaks_no_lock(lab, pool_command, locked):
    """`restore` has locked both, or two clients have locked one each."""
    web = lab.vm(locked.name, lab.vdi("Production", "data")[0])
    with connect(lab.where()) as calls:
        lock.Held(calls, [lab.pool.db.get("VM", web, "uuid")], "restore").take()
    ran = pool_command("unlock", locked.name, "--yes")
    assert ran.status == 2 and f"give {locked.scsi_id} or " in ran.err and len(locks(lab)) == 2


def test_each_lock_that_would_go_is_named_before_anybody_is_asked(lab, pool_command, type_in, locked):
    """`restore` locks the copy and the VM. A person who is asked of one lock must not break another one."""
    lab.pool.db.set("pool", lab.pool.pool, "other_config", {})
    with connect(lab.where()) as calls:
        lock.Held(calls, ["a-vm", locked.scsi_id], "restore").take()
    told = pool_command("unlock", locked.scsi_id, "--dry-run").out.splitlines()
    assert len(told) == 2 and all(re.match("lock [^ ]+: would be unlocked", line) for line in told)
    type_in("n\n")
    ran = pool_command("unlock", locked.scsi_id)
    assert ran.status == 4 and "These 2 locks would be broken: " in ran.err and "a-vm, locked by `" in ran.err
    assert len(locks(lab)) == 2


def test_a_lock_that_goes_while_somebody_is_asked_is_told(lab, pool_command, locked, monkeypatch):
    def released(*_):
        for key in locks(lab):
            lab.pool.db.remove_from("pool", lab.pool.pool, "other_config", key)

    monkeypatch.setattr(unlocking, "ask", released)
    ran = pool_command("unlock", locked.scsi_id, "--yes")
    assert (ran.status, ran.out) == (0, f"The lock {locked.scsi_id} has gone meanwhile. Nothing was changed.\n")
