# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool`: what it prints, how it ends, whom it asks."""

import json
import re

import pytest

from kit.build_lvm import replace_in_text
from kit.pool.errors import XenError
from kit.pool_lab import IQN, TARGET, Lab, locks, sr_disk
from kit.shell import TOP
from kit.sparse import SparseDisk
from relvmoiscsi.errors import NotFound
from relvmoiscsi.pool import attach, lock, lock_keys, records
from relvmoiscsi.pool.commands import discard_command
from relvmoiscsi.pool.commands import pool_command as unlocking
from relvmoiscsi.pool.connection import connect

GONE = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
NO_LUN = NotFound("The LUN did not appear.", "ISCSIDevice")


def test_a_copy_whose_mark_names_another_lun_than_its_pbds_is_not_discarded(lab, copy, clone, pool_command):
    """A pool-operator may write the mark, which could name the LUN of the original; the SR may be an original."""
    db, original = lab.pool.db, lab.originals["Production"][0]
    (sr,) = db.refs("SR", name_label=copy)
    config = {**db.get("SR", sr, "other_config"), "relvmoiscsi:scsi-id": original}
    db.set("SR", sr, "other_config", config)
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == 4 and f"on the LUN {original}, but its PBDs name the LUN {clone}" in ran.err
    assert lab.pool.db.refs("SR", name_label=copy) == [sr]

    db.set("SR", sr, "other_config", {key: text for key, text in config.items() if key != "relvmoiscsi:scsi-id"})
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == 4 and f"as a copy on no LUN, but its PBDs name the LUN {clone}" in ran.err
    assert lab.pool.db.refs("SR", name_label=copy) == [sr]

    db.set("SR", sr, "other_config", {**config, "relvmoiscsi:scsi-id": clone})
    ran = pool_command("discard", copy, "--yes")
    assert ran.status == 0 and f"  Remove the LUN {clone} on the array.\n" in ran.out and original not in ran.out


def test_the_next_command_has_the_uuid_of_the_copy_whatever_its_name_is(lab, clone, pool_command):
    ran = pool_command("attach", clone, "--yes", "--name=--yes")
    ((_, sr),) = lab.pool.db.records("SR", name_label="--yes").items()
    assert ran.status == 0 and ran.out.endswith(
        f"next: relvmoiscsi pool clone --all --isolated night-{sr['uuid'][:8]} {sr['uuid']}\n"
    )
    again = pool_command("attach", clone, "--yes")
    assert "already attached" in again.out and again.out.splitlines()[-1] == ran.out.splitlines()[-1]
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
    originals = {scsi_id: "skipped" for scsi_id, _ in lab.originals.values()}
    statuses = {row["scsi_id"]: row["status"] for row in ran.json["attach_results"]}
    assert statuses == {**dict.fromkeys(clones, "attached"), **originals}
    written = json.loads(file.read_text())
    assert [(row["scsi_id"], len(row["vdi_pairs"])) for row in written["attached_srs"]] == [
        (each, 4) for each in clones
    ]
    told = " ".join((TOP / "docs/scripting.rst").read_text(encoding="utf-8").split())
    (in_place,) = re.findall(r"FILE of\*\* ``pool attach`` has ``(\w+)`` in place of ``(\w+)`` and ``(\w+)``", told)
    assert (set(written), set(ran.json)) == ({"command", "json_version", in_place[0]}, {*in_place[1:]})
    assert lab.summary() != before
    ran = pool_command("discard", "--clones-of", "Production", "Testing copy", "--yes")
    assert ran.status == 0 and ran.out.count("discarded") == 2 and (lab.summary(), locks(lab)) == (before, [])


def test_what_would_be_done_is_told_and_not_done(lab, clone, pool_command):
    before, uuid = lab.summary(), lab.world.sr_uuid(clone)
    printed = "naa." + clone[1:].upper()
    ran = pool_command("attach", printed, "--dry-run", "--name", "{sr} copy")
    assert ran.status == 0 and (lab.summary(), lab.world.sr_uuid(clone)) == (before, uuid)
    hosts = "'xs1', 'xs2'"
    steps = f"would be resignatured; introduced as 'Production copy'; given a PBD on {hosts}; plugged on {hosts}"
    steps += "; scanned; given the labels of the original's VDIs"
    assert ran.out.splitlines()[:-1] == ["Planned steps:", f"{clone}: {steps}; changed 2026-11-21 00:11 UTC"]
    (row,) = pool_command("attach", clone, "--dry-run", "--json").json["would_attach"]
    assert (row["scsi_id"], row["hosts_down"], row["problem"]) == (clone, [], None)
    assert row["steps"][0] == {"step": "resignature", "on": None} and {"step": "plug", "on": "xs2"} in row["steps"]

    pool_command("attach", clone, "--yes", "--name", "{sr} copy")
    ran = pool_command("attach", clone, "--dry-run")
    told = f"Nothing to do:\n{clone}: already attached; changed 2026-11-21 00:11 UTC\n`changed` is "
    assert ran.out.startswith(told)
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
    why = "no live host has the SR attached on another LUN, so the LUN may be the original"
    assert f"  'Production', unconnected\n    {why}; changed 20" in pool_command("luns").out

    ran = pool_command("attach", "--clones-of", "Production", "--yes")
    assert ran.status == 4 and "add --unplugged" in ran.err and lab.world.sr_uuid(clone) == uuid
    testing = lab.clone("Testing")
    ran = pool_command("attach", "--all", "--yes", "--unplugged")
    assert (
        f"{clone} was skipped: 'Production', unconnected; {why}. If it is a clone, give its SCSIid and --unplugged."
        in ran.out
    )
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
    for more, status, error in (((), "failed", "No host can plug the SR"), (("--leave-others",), "attached", "")):
        ran = pool_command("attach", "--all", "--yes", "--json", *more)
        bad, good, *_originals = ran.json["attach_results"]
        assert (ran.status, bad["status"], good["status"]) == (9, "failed", status)
        assert "did not appear" in bad["problem"] and error in (good["problem"] or "")
        names = [row["sr_name_label"] for row in (bad, good)]
        assert names[0] == "Production" and names[1].startswith("Testing changed ")


def test_what_could_not_be_looked_at_is_9_and_told(lab, world, clone, pool_command):
    world.add(TARGET, "iqn.2026-01.test:refuses", sr_disk("x1"), chap=("bob", "other word"))
    bad = lab.clone("Testing")
    world.fail["sr_probe", bad] = NO_LUN
    ran = pool_command("attach", "--all", "--dry-run")
    assert f"{clone}: would be resignatured; " in ran.out and f"{bad}: would fail: Its state is unreach" in ran.out
    would = pool_command("attach", "--all", "--dry-run", "--json").json
    rows = would["would_attach"]
    assert would["changed"] is any(row["steps"] for row in rows)
    found = {row["scsi_id"]: (bool(row["steps"]), bool(row["problem"])) for row in rows}
    originals = {scsi_id: (False, True) for scsi_id, _ in lab.originals.values()}
    assert found == {clone: (True, False), bad: (False, True), **originals}

    ran = pool_command("attach", "--all", "--yes", "--json", "--target", TARGET)
    rows = {row["scsi_id"]: (row["status"], row["problem"]) for row in ran.json["attach_results"]}
    assert ran.status == 9 and rows.pop(clone) == ("attached", None) and set(rows) == {bad, None, *originals}
    assert "did not appear" in rows[bad][1] and "iqn.2026-01.test:refuses" in rows[None][1]
    told, why = pool_command("luns", "--target", TARGET).out, rows[None][1]
    named = {row["scsi_id"]: row["sr_name_label"] for row in ran.json["attach_results"]}
    assert named[None] is None and {named[scsi_id] for scsi_id in originals} == {"Production", "Testing"}
    assert all(f"The LUNs behind {TARGET} 'iqn.2026-01.test:refuses' are unknown: " in each for each in (why, told))


@pytest.mark.parametrize("words", [("--all",), ("--clones-of", "Production")])
def test_a_damaged_clone_is_named_and_gives_a_status(lab, world, clone, pool_command, words):
    lost = lab.clone("Production")
    replace_in_text(world.lun(lost).disk, b"physical_volumes", b"physical_nothing")
    assert lab.lun(lost).kind == "damaged"
    dry = pool_command("attach", *words, "--dry-run")
    assert dry.status == 9 and f"{lost}: would fail: Its state is damaged: " in " ".join(dry.out.split())
    ran = pool_command("attach", *words, "--yes", "--leave-others", "--json")
    rows = {row["scsi_id"]: row["status"] for row in ran.json["attach_results"]}
    originals = {scsi_id: "skipped" for scsi_id, _ in lab.originals.values()}
    assert (ran.status, rows) == (9, {clone: "attached", lost: "failed", **originals})
    night = pool_command("attach", *words, "--yes", "-q")
    assert (night.status, night.out) == (9, ""), "each night"
    assert f"relvmoiscsi: {lost}: Its state is damaged: " in night.err and "skipped" not in dry.err + night.err
    assert pool_command("attach", clone, "--yes").status == 0
    assert pool_command("attach", lost, "--yes").status == 5, "as --all has it, where it is the only clone"


def test_the_scsi_id_of_a_copy_is_enough_for_every_command_that_takes_a_copy(lab, clone, copy, pool_command):
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    assert pool_command("map", clone).out == pool_command("map", "a copy").out
    assert pool_command("clone", clone, "web", "--yes").status == 0
    assert pool_command("discard", clone, "--with-vms", "--yes").status == 0
    for lun, words in ((clone, "not attached. `relvmoiscsi pool attach "), (lab.originals["Production"][0], "no copy")):
        assert pool_command("map", lun).status == 3 and words in pool_command("map", lun).err


def test_a_skipped_lun_is_in_the_result_the_log_and_what_quiet_keeps(lab, clone, pool_command, tmp_path):
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    said = f"{foreign} was skipped: "
    assert f"{foreign} would be skipped: " in pool_command("attach", clone, "--all", "--dry-run").out
    ran = pool_command("attach", "--all", "--yes", "-q", "--log", tmp_path / "log")
    assert (ran.status, ran.out) == (0, "") and ran.err.startswith(f"relvmoiscsi: {said}")
    assert said in (tmp_path / "log").read_text()


@pytest.mark.parametrize("more", [["--yes"], ["--dry-run"]])
def test_where_no_lun_can_be_attached_the_result_names_each_lun_with_the_reason(lab, clone, copy, pool_command, more):
    """stderr alone named them: a script took the other LUNs for LUNs that the pool does not see."""
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    empty = lab.world.add(TARGET, IQN, SparseDisk(1 << 24))
    assert pool_command("discard", copy, "--yes").status == 0
    why = {
        clone: "not attached here. Another pool may use this LUN. If it is an unused clone, give its SCSIid.",
        foreign: "unknown to this pool; SR",
        empty: "empty; ",
        lab.originals["Production"][0]: "original, 'Production'.",
    }

    ran = pool_command("attach", "--all", *more, "--json")
    rows = {row["scsi_id"]: row for row in ran.json["would_attach" if "--dry-run" in more else "attach_results"]}
    assert (ran.status, ran.json["changed"], ran.json["error"]["class"]) == (3, False, "NotFound")
    assert ran.json["error"]["disk_state"] == "Nothing was changed."
    assert clone in ran.json["error"]["advice"] and set(why) < set(rows) and len(rows) == 5
    assert {row.get("status", "skipped") for row in rows.values()} == {"skipped"}
    ran = pool_command("attach", "--all", *more)
    assert ran.status == 3 and "no LUN that can be attached" in ran.err and "skipped" not in ran.err
    told = ran.out
    for scsi_id, reason in why.items():
        assert reason in rows[scsi_id]["problem"] and rows[scsi_id]["problem"] in told.replace("\n", " ")
    quiet, verb = pool_command("attach", "--all", *more, "-q"), "would be" if "--dry-run" in more else "was"
    assert quiet.out == "" and all(f"{scsi_id} {verb} skipped: " in quiet.err for scsi_id in why)

    testing = pool_command("attach", "--clones-of", "Testing", *more, "--json").json
    assert "sees no clone of the SR" in testing["error"]["message"]


def test_the_skipped_luns_are_in_the_answer_of_a_script_and_are_no_failure(lab, clone, pool_command):
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    plan = pool_command("attach", "--all", "--dry-run", "--json")
    would = {row["scsi_id"]: row for row in plan.json["would_attach"]}
    assert (plan.status, bool(would[clone]["steps"]), would[foreign]["steps"]) == (0, True, [])
    take = "If it is an unused clone, give its SCSIid and --foreign."
    assert would[foreign]["problem"].endswith(f" Another pool may use this LUN. {take}")
    ran = pool_command("attach", "--all", "--yes", "--json")
    rows = {row["scsi_id"]: row for row in ran.json["attach_results"]}
    assert (ran.status, rows[clone]["status"], rows[foreign]["status"]) == (0, "attached", "skipped")
    assert rows[foreign]["problem"] == would[foreign]["problem"]


def test_after_the_clone_of_an_unknown_sr_the_next_step_lists_its_vdis(lab, pool_command):
    """No VM of this pool has the original of a disk, so `clone --all` would find none."""
    foreign = lab.world.add(TARGET, IQN, sr_disk("of another pool"))
    ran = pool_command("attach", foreign, "--foreign", "--leave-others", "--yes", "--name", "theirs")
    assert ran.status == 0 and "next: relvmoiscsi pool map " in ran.out
    assert pool_command(*ran.out.partition("next: relvmoiscsi pool ")[2].split()).status == 0


def test_every_command_promises_the_same_of_quiet(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = [command("pool", *words, "--help").out for words in ([], ["attach"], ["unlock"])]
    assert all("-q, --quiet print only errors, warnings and questions" in " ".join(text.split()) for text in texts)
    assert all(len(line) <= 80 for text in texts for line in text.splitlines())


def test_an_sr_that_is_introduced_and_on_no_host_is_no_discarded_copy(lab, clone, copy, pool_command):
    """Killed between `SR.introduce` and the first plug, `attach` leaves this. The words were those of a discarded copy:
    "not attached here"."""
    ref, sr = lab.sr(lab.world.sr_uuid(clone))
    for pbd in sr["PBDs"]:
        lab.pool.storage.pbd_unplug("", pbd)
        lab.pool.db.destroy("PBD", pbd)
    told = " ".join(pool_command("luns").out.split())
    what = "resignatured, of 'Production' introduced as 'a copy', which no host has attached; "
    assert clone in told and what + "`attach` plugs it; changed 2026-" in told
    lab.pool.db.set("SR", ref, "other_config", {})
    told = " ".join(pool_command("luns").out.split())
    assert f"{what}changed 2026-" in told, "not by `attach`"


def test_a_copy_that_was_discarded_is_attached_again_by_its_scsi_id(lab, clone, copy, pool_command):
    assert pool_command("discard", copy, "--yes").status == 0
    for words in (["--clones-of", "Production"], ["--all"]):
        ran = pool_command("attach", *words, "--yes")
        assert ran.status == 3
        assert f"Give the SCSIid of a copy that is resignatured and not attached: {clone}." in ran.err
    assert "Give the SCSIid" not in pool_command("attach", "--clones-of", "Testing", "--yes").err
    assert pool_command("attach", clone, "--yes").status == 0


def test_a_host_that_is_down_is_named_and_the_copy_is_of_use_meanwhile(lab, clone, pool_command):
    lab.pool.go_down(lab.pool.hosts[1])
    ran = pool_command("attach", clone, "--yes", "--name", "a copy")
    assert ran.status == 9 and f"{clone}: partial" in ran.out
    ((_, sr),) = lab.pool.db.records("SR", name_label="a copy").items()
    assert ran.out.splitlines()[-2:] == [
        "  the other hosts can use the copy now",
        f"next: relvmoiscsi pool clone --all --isolated night-{sr['uuid'][:8]} {sr['uuid']}",
    ]
    assert "attached, 'a copy'\n    not plugged on 'xs2'" in pool_command("luns").out
    rows = {row["scsi_id"]: row["hosts_not_plugged"] for row in pool_command("luns", "--json").json["pool_luns"]}
    assert rows.pop(clone) == ["xs2"] and len(rows) == 2 and not any(rows.values()), "the originals"


def test_an_address_without_a_target_is_told_with_a_remedy(lab, pool_command):
    ran = pool_command("luns", "--target", "10.0.0.99")
    assert ran.status == 11 and "No iSCSI target answers at 10.0.0.99. Check the address" in ran.err
    assert "[" not in ran.err


def test_copies_of_three_days_are_told_apart_by_the_last_change_of_their_sr(lab, world, clone, pool_command):
    other = lab.clone("Production")
    then, now = "changed 2026-11-20 00:11 UTC", "changed 2026-11-21 00:11 UTC"
    replace_in_text(world.lun(other).disk, b"creation_time = 1795219866\t", b"creation_time = 1795133466\t")
    shown = pool_command("luns").out
    assert all(
        f"{lun}  63.5 MiB  clone of 'Production'\n    {told}\n" in shown for lun, told in ((other, then), (clone, now))
    )
    assert max(map(len, shown.splitlines())) <= 80, "also where no terminal is"
    assert "`changed` is the last change of the SR by LVM, not the time of a snapshot." in pool_command("luns").out
    planned = pool_command("attach", other, clone, "-n").out.splitlines()
    assert planned[-1] == "`changed` is the last change of the SR by LVM, not the time of a snapshot."
    plans = {line.split(":")[0]: line for line in planned[1:-1]}
    assert plans[other].endswith(f"; {then}") and plans[clone].endswith(f"; {now}")
    assert "introduced as 'Production changed 2026-11-20'" in plans[other]
    assert "introduced as 'Production changed 2026-11-21'" in plans[clone], "each has the day of its data"
    rows = pool_command("attach", other, clone, "-n", "--json").json["would_attach"]
    assert [row["changed_at"] for row in rows] == ["2026-11-20T00:11:06Z", "2026-11-21T00:11:06Z"]
    named = pool_command("attach", other, clone, "-n", "--name", "copy of {sr}").out
    assert f"'copy of Production ({then})'" in named
    assert {lun["scsi_id"]: lun["changed_at"] for lun in pool_command("luns", "--json").json["pool_luns"]}[other] == (
        "2026-11-20T00:11:06Z"
    )
    ran = pool_command("attach", "--all", "--yes", "--name", "copy").out
    assert f"'copy ({then})'" in " ".join(ran.split()) and f"'copy ({now})'" in " ".join(ran.split())


def test_the_name_of_a_copy_has_the_day_of_its_data_whichever_copies_are_attached_with_it(
    lab, world, clone, pool_command
):
    """The first copy alone had the day of the run, and the next copies had the times of their data."""
    other = lab.clone("Production")
    replace_in_text(world.lun(other).disk, b"creation_time = 1795219866\t", b"creation_time = 1795220000\t")
    for each in (clone, other, lab.clone("Production")):
        assert pool_command("attach", each, "--leave-others", "--yes").status == 0
    found = sorted(str(sr["name_label"]) for sr in lab.pool.db.records("SR").values() if "changed" in sr["name_label"])
    assert found == [
        "Production changed 2026-11-21",
        "Production changed 2026-11-21 00:11 UTC",
        "Production changed 2026-11-21 00:13 UTC",
    ]


def test_copies_of_one_change_get_numbers_and_luns_shows_the_change_of_each(lab, clone, pool_command):
    """docs/night.rst promised the time for several copies of one time, too; `luns` had no time for attached copies."""
    others = [lab.clone("Production") for _ in range(2)]
    rows = pool_command("attach", "--all", "--yes", "--name", "{sr} copy", "--json").json["attach_results"]
    names = ["Production copy", "Production copy (2)", "Production copy (3)"]
    found = {row["scsi_id"]: row["sr_name_label"] for row in rows if row["status"] == "attached"}
    assert found == dict(zip([clone, *others], names))
    shown = pool_command("luns").out
    assert shown.count("\n    changed 2026-11-21 00:11 UTC\n") == 3 and "unknown" not in shown
    assert "Of an attached copy, it is the change that the last read of its LUN found." in " ".join(shown.split())
    found = {row["scsi_id"]: row["changed_at"] for row in pool_command("luns", "--json").json["pool_luns"]}
    assert found == {
        **dict.fromkeys([clone, *others], "2026-11-21T00:11:06Z"),
        **{lun: None for lun, _ in lab.originals.values()},
    }


def test_a_copy_without_a_readable_mark_of_its_change_says_why_until_no_host_uses_the_copy(lab, clone, pool_command):
    """A person has introduced the SR by hand, or a pool-operator has written the mark."""
    assert pool_command("attach", clone, "--yes", "--name", "a copy").status == 0
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    marks = dict(lab.pool.db.get("SR", sr, "other_config"))
    assert marks.pop("relvmoiscsi:changed") == "2026-11-21T00:11:06Z"
    for forged in ({}, {"relvmoiscsi:changed": "yesterday " * 9}):
        lab.pool.db.set("SR", sr, "other_config", {**marks, **forged})
        shown = pool_command("luns")
        assert "attached, 'a copy'\n    changed unknown: the LUN is in use and was not read\n" in shown.out
    lab.unplug(sr)
    assert "\n    not plugged on 'xs1', 'xs2'; changed 2026-11-21 00:11 UTC\n" in pool_command("luns").out


def test_an_original_has_no_change_of_a_forged_mark(lab, pool_command):
    ref = lab.originals["Production"][1]
    lab.pool.db.set("SR", ref, "other_config", {"relvmoiscsi:changed": "2001-01-01T00:00:00Z"})
    assert "changed" not in pool_command("luns").out


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
    (uuid,) = re.findall(r"attached .* \(([0-9a-f-]{36})\)", ran.out)
    assert f"The same UUIDs are printed by `relvmoiscsi pool map {uuid}`." in ran.err
    assert path.read_text() == "of another run"


def test_a_repeated_attach_takes_its_own_map_and_replaces_no_other(lab, clone, pool_command, tmp_path):
    """A person repeats the whole command, or a script does, and was to give another name."""
    path = tmp_path / "map.json"
    words = ("attach", clone, "--yes", "--map-out", path)
    assert pool_command(*words).status == 0
    there = path.read_text()
    ran = pool_command(*words)
    assert ran.status == 0 and "already attached" in ran.out and path.read_text() == there
    path.write_text("of another run")
    ran = pool_command(*words)
    assert ran.status == 74 and "The same UUIDs are printed by `relvmoiscsi pool map " in ran.err
    assert path.read_text() == "of another run" and list(tmp_path.iterdir()) == [path]
    refused = pool_command("attach", lab.clone("Testing"), "--dry-run", "--map-out", path)
    assert refused.status == 2 and "replaces no file. Nothing was written. Give the name of a new file" in refused.err


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
    assert f"{clone}: already attached; " in ran.err
    type_in("")
    ran = pool_command("attach", "--all")
    assert ran.status == 0 and not ran.err and ran.out.count(": already attached ") == 2, "nobody is asked for nothing"
    type_in("y\n")
    ran = pool_command("discard", "--all")
    assert ran.status == 0 and "Discard 'Production" in ran.err


@pytest.mark.parametrize("words", [["attach", "--all"], ["discard", "--all"]])
def test_where_nobody_can_be_asked_it_says_so(clone, pool_command, words):
    ran = pool_command(*words, "--json")
    beside = " with --with-vms or --leave-vms where VMs have disks on the copy" if words[0] == "discard" else ""
    assert ran.status == 2 and f"Use --yes{beside}, or --dry-run to see the plan" in ran.err


# --- words that are wrong, targets and passwords


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Give a subcommand"),
        (["luns", "--password-file", "/nowhere"], "The file of passwords /nowhere cannot be read"),
        (["luns", "--chap-user", "alice"], "need each other"),
        (["luns", "--chap-user", "alice", "--chap-password-file", "chap"], "--chap-user needs --target"),
        (["luns", "--target", TARGET, "--port", "65536"], "--port '65536' is not a port"),
        (["attach", "--all", "--yes", "--name", ""], "--name '' is blank"),
        (["attach", "--all", "--yes", "--name", "bad\x1be name"], "contains bytes that are not text"),
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
    assert ran.status == 2 and "Give --target, or --hba" in ran.err


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


# --- the lock


@pytest.fixture
def locked(lab):
    """A client was killed with the lock of a copy that is attached: the copy."""
    (copy,) = lab.attach(lab.clone("Production"))
    with connect(lab.where()) as calls:
        lock.Held(calls, [copy.scsi_id], "restore").take()
    return copy


@pytest.mark.parametrize("more", ["--yes", "--dry-run"])
def test_a_locked_copy_is_refused_before_anybody_is_asked(lab, pool_command, locked, more):
    ran = pool_command("discard", locked.sr_uuid, more)
    assert ran.status == 4 and f"`relvmoiscsi pool unlock {locked.scsi_id}`" in ran.err
    lab.pool.storage.pbd_unplug("", lab.pool.db.refs("PBD", SR=lab.sr(locked.sr_uuid)[0])[1])
    ran = pool_command("attach", locked.scsi_id, more)
    assert ran.status == 4 and "Another client has locked" in ran.err
    assert lab.pool.db.refs("SR", uuid=locked.sr_uuid) and len(locks(lab)) == 1


def test_a_locked_lun_is_passed_over_with_its_owner_and_the_others_are_attached(lab, clone, pool_command, locked):
    """One stale lock refused `attach --all`, even its dry run, and only one of several locked LUNs was named."""
    lab.pool.storage.pbd_unplug("", lab.pool.db.refs("PBD", SR=lab.sr(locked.sr_uuid)[0])[1])
    other = lab.clone("Testing")
    with connect(lab.where()) as calls:
        lock.Held(calls, [other], "attach").take()
    before, both = lab.summary(), (locked.scsi_id, other)
    dry = pool_command("attach", "--all", "--leave-others", "--dry-run")
    assert lab.summary() == before and f"{clone}: would be resignatured; introduced" in dry.out
    ran = pool_command("attach", "--all", "--leave-others", "--yes", "--json")
    rows = {row["scsi_id"]: row for row in ran.json["attach_results"]}
    assert (dry.status, ran.status, rows[clone]["status"]) == (9, 9, "attached")
    for scsi_id in both:
        said = f"Another client has locked {scsi_id}: "
        assert said in dry.out and rows[scsi_id]["problem"].startswith(said)
        assert "This LUN stays as it is." in rows[scsi_id]["problem"]
        assert f"`relvmoiscsi pool unlock {scsi_id}`" in rows[scsi_id]["problem"]
    assert lab.world.sr_uuid(other) == lab.world.sr_uuid(lab.originals["Testing"][0]) and len(locks(lab)) == 2


@pytest.mark.parametrize("words", [["--all"], ["--clones-of", "Production"]])
def test_a_locked_copy_is_passed_over_with_its_owner_and_the_others_are_discarded(
    lab, pool_command, locked, words, type_in
):
    """The lock that a killed `attach` had left refused `discard --all`, and no copy was discarded."""
    (free,) = lab.attach(lab.clone("Production"))
    dry = pool_command("discard", *words, "--dry-run")
    assert (dry.status, dry.out.count(": would be discarded"), dry.out.count(": would fail: Another")) == (9, 1, 1)
    type_in("n\n")
    asked = " ".join(pool_command("discard", *words).err.split())
    assert f"These copies stay, because other clients have locked them: {locked.name!r}." in asked
    ran = pool_command("discard", *words, "--yes")
    for part in (f"({free.sr_uuid}): discarded", f"({locked.sr_uuid}): failed: Another client has locked "):
        assert part in ran.out
    assert f"`relvmoiscsi pool unlock {locked.scsi_id}`" in ran.out and "This copy stays as it is." in ran.out
    assert ran.status == 9 and len(locks(lab)) == 1
    assert lab.pool.db.refs("SR", uuid=locked.sr_uuid) and not lab.pool.db.refs("SR", uuid=free.sr_uuid)
    ran = pool_command("discard", *words, "--yes", "--json")
    assert (ran.status, [row["status"] for row in ran.json["discard_results"]]) == (4, ["failed"])


@pytest.mark.parametrize("is_one_free", [False, True])
def test_a_discard_that_another_client_comes_before_ends_as_a_refused_one(
    lab, clone, copy, pool_command, monkeypatch, is_one_free
):
    if is_one_free:
        lab.attach(lab.clone("Production"))
    monkeypatch.setattr(discard_command, "ask", lambda *_: has_locked(lab, clone))
    ran = pool_command("discard", "--all", "--yes", "--json")
    locked = [row for row in ran.json["discard_results"] if row["status"] == "failed"]
    assert ran.status == (9 if is_one_free else 4) and [row["sr_name_label"] for row in locked] == [copy]
    assert locked[0]["problem"].startswith("Another client has locked ")


def has_locked(lab, *scsi_ids):
    with connect(lab.where()) as calls:
        lock.Held(calls, scsi_ids, "attach").take()


def resignatures(lab, scsi_id):
    """Another client has locked the LUN, and is in the middle of `attach`."""
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        request = attach.AttachRequest(run="theirs", attaches=False)
        attach.attach(calls, pool, [lun for lun in lab.look() if lun.scsi_id == scsi_id], request)
    has_locked(lab, scsi_id)


@pytest.mark.parametrize(
    ("happens", "method", "said"),
    [
        (has_locked, "Async.SR.probe", "Another client has locked {}: "),
        (has_locked, "pool.add_to_other_config", "Another client has locked {}: "),
        (resignatures, "Async.SR.probe", "Another client has locked {}: "),
        (resignatures, "pool.add_to_other_config", "Another client has locked {}: "),
        (Lab.attach, "Async.SR.probe", "Another client has just attached or discarded the LUN {}. "),
        (Lab.attach, "pool.add_to_other_config", "Another client has just attached or discarded the LUN {}. "),
    ],
)
def test_a_lun_that_another_client_takes_at_that_moment_is_named_and_the_others_are_attached(
    lab, clone, pool_command, happens, method, said
):
    """At any moment of the run: not 4, as if no LUN was attached, and not 0, as if no LUN was missing."""
    theirs = lab.clone("Production")
    lab.before(method, lambda: happens(lab, theirs))
    ran = pool_command("attach", "--all", "--leave-others", "--yes", "--json")
    rows = {row["scsi_id"]: row for row in ran.json["attach_results"]}
    assert (ran.status, ran.json["changed"], rows[clone]["status"]) == (9, True, "attached")
    assert rows[theirs]["problem"].startswith(said.format(theirs))
    assert "This LUN stays as it is." in rows[theirs]["problem"]


@pytest.mark.parametrize("happens", [resignatures, Lab.attach])
def test_a_clone_to_which_another_client_gives_new_identities_keeps_no_host_from_its_target(
    lab, clone, pool_command, happens
):
    theirs = lab.clone("Production")
    lab.before("pool.add_to_other_config", lambda: happens(lab, theirs))
    ran = pool_command("attach", "--all", "--yes", "--json")
    assert (ran.status, [row["status"] for row in ran.json["attach_results"] if row["scsi_id"] == clone]) == (
        9,
        ["attached"],
    )


def test_where_other_clients_have_all_of_the_luns_nothing_is_done_in_part(lab, clone, pool_command):
    lab.before("pool.add_to_other_config", lambda: has_locked(lab, clone))
    ran = pool_command("attach", clone, "--yes", "--json")
    assert (ran.status, ran.json["changed"]) == (4, False)


def test_an_untouched_clone_that_is_locked_keeps_the_hosts_from_its_target(lab, clone, pool_command):
    other = lab.clone("Testing")
    with connect(lab.where()) as calls:
        lock.Held(calls, [other], "attach").take()
    ran = pool_command("attach", "--all", "--yes", "--json")
    rows = {row["scsi_id"]: row for row in ran.json["attach_results"]}
    assert ran.status == 9 and "yet. Clones on the same" in rows[clone]["problem"]
    assert other in rows[clone]["problem"] and not any(
        lab.world.sr_uuid(other) == row["new_sr"] for row in rows.values()
    )


def test_the_refusal_of_a_lock_leads_to_its_end_and_to_the_refused_command(pool_command, locked):
    words = "discard", locked.sr_uuid, "--yes"
    (unlock,) = re.findall("`relvmoiscsi pool (unlock [^`]*)`", pool_command(*words).err)
    assert pool_command(*unlock.split(), "--yes").out.endswith("\nRepeat the command that was refused.\n")
    assert pool_command(*words).status == 0


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


@pytest.mark.parametrize("named", ["sr_uuid", "name", "scsi_id"])
def test_a_lock_with_another_name_of_the_copy_hides_no_lock_of_the_copy(lab, pool_command, locked, named):
    """A client was killed with a guarded lock. A vm-operator writes open locks, and a vm-admin names a VM."""
    db = lab.pool.db
    db.set("SR", db.by_uuid("SR", locked.sr_uuid), "name_label", "night")
    web = lab.vm("web", lab.vdi("Production", "data")[0])
    text, forged = {
        "sr_uuid": (locked.sr_uuid, locked.sr_uuid),
        "name": ("night", "night"),
        "scsi_id": (locked.scsi_id, db.get("VM", web, "uuid")),
    }[named]
    if named == "scsi_id":
        db.set("VM", web, "name_label", text)
    with connect(lab.where()) as calls:
        run = lock.Held(calls, [forged], "restore")
        run._begins = [lock_keys.OPEN_KEY]
        run.take()

    (row,) = pool_command("unlock", text, "--yes", "--json").json["unlocked"]
    assert (row["locked"], locks(lab)) == (locked.scsi_id, [])
    (row,) = pool_command("unlock", forged, "--yes", "--json").json["unlocked"]
    assert row["locked"] == forged


@pytest.mark.parametrize("number", [1, 2])
def test_vms_with_the_uuid_of_a_copy_as_their_name_hide_no_lock_of_the_copy(lab, pool_command, locked, number):
    for _ in range(number):
        lab.vm(locked.sr_uuid, lab.vdi("Production", "data")[0])
    (row,) = pool_command("unlock", locked.sr_uuid, "--yes", "--json").json["unlocked"]
    assert (row["locked"], locks(lab)) == (locked.scsi_id, [])


def test_a_lock_on_a_vm_is_broken_by_the_name_of_the_vm(lab, pool_command):
    db, web = lab.pool.db, lab.vm("web", lab.vdi("Production", "data")[0])
    with connect(lab.where()) as calls:
        lock.Held(calls, [db.get("VM", web, "uuid")], "restore").take()
    twin = lab.vm("web", lab.vdi("Testing", "data")[0])
    db.set("VM", twin, "name_label", "twin")
    ran = pool_command("unlock", "twin", "--yes")
    assert ran.status == 3 and "There is no lock on 'twin'. These are locked: " in ran.err
    assert db.get("VM", web, "uuid") in ran.err
    ran = pool_command("unlock", "Prodction", "--yes")
    assert ran.status == 3 and "There is no SR or VM 'Prodction'. Did you mean 'Production'? These are" in ran.err
    assert "next: " not in pool_command("unlock", "web", "--dry-run").out
    (row,) = pool_command("unlock", "web", "--yes", "--json").json["unlocked"]
    assert (row["locked"], locks(lab)) == (db.get("VM", web, "uuid"), [])


def test_a_name_of_a_locked_copy_and_of_a_locked_vm_breaks_no_lock(lab, pool_command, locked):
    """`restore` has locked both, or two clients have locked one each."""
    web = lab.vm(locked.name, lab.vdi("Production", "data")[0])
    with connect(lab.where()) as calls:
        lock.Held(calls, [lab.pool.db.get("VM", web, "uuid")], "restore").take()
    ran = pool_command("unlock", locked.name, "--yes")
    assert ran.status == 2 and f"ids: {locked.scsi_id}, " in ran.err and len(locks(lab)) == 2


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
