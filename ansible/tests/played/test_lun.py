# SPDX-License-Identifier: LGPL-2.1-only
"""lun_info and lun: each state, twice, checked and failed; what is refused, and what is left to others.

Nearly all run in this process; each module is in one playbook with an interpreter of its own as well.
"""

import json
import re

import pytest

from kit.pool_lab import TARGET
from relvmoiscsi.errors import UsageError
from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.connection import connect


def copy_of(stage, **more):
    return stage.now("lun", **{"scsi_ids": ["naa." + stage.clone[1:].upper()], "leave_others": True, **more})


def sr_of(found):
    """The UUID of the SR that a task has made of its first LUN."""
    return found["luns"][0].get("new_sr")


def vms_on(stage, sr, **more):
    made = stage.now("vm_clone", **{"sr": sr, "all": True, "isolated": "lab", "state": "started", **more})
    assert not made["failed"], made
    return made["vms"]


def alone(stage):
    """No other clone is behind the target."""
    stage.world.luns = [lun for lun in stage.world.luns if lun.scsi_id != stage.other]


def detach(stage):
    stage.now("lun", state="detached", scsi_ids=[stage.clone])


def unplug(stage):
    for ref, pbd in stage.lab.pool.db.records("PBD").items():
        if pbd["device_config"]["SCSIid"] == stage.clone:
            stage.lab.pool.storage.pbd_unplug("", ref)


def overwrite(stage):
    """The array makes the clone anew of the original."""
    luns = stage.world.luns
    disk = stage.world.lun(stage.lab.originals["Production"][0]).disk.copy()
    stage.world.luns = [lun._replace(disk=disk) if lun.scsi_id == stage.clone else lun for lun in luns]


# --- each state


def test_lun_info_names_each_lun_and_writes_nothing(stage):
    writes = {lun.scsi_id: lun.disk.writes for lun in stage.world.luns}
    found = stage.now("lun_info")
    originals = {uuid: ("original", name) for name, (uuid, _) in stage.lab.originals.items()}
    kinds = {row["scsi_id"]: (row["lun_kind"], row["sr_name_label"]) for row in found["luns"]}
    assert kinds == {**originals, stage.clone: ("clone", "Production"), stage.other: ("clone", "Testing")}
    assert not found["changed"] and writes == {lun.scsi_id: lun.disk.writes for lun in stage.world.luns}


def test_check_mode_tells_the_same_and_does_nothing(stage):
    before, calls = stage.lab.summary(), len(stage.world.log)
    would = stage.tasks({"state": "resignatured", "all": True}, {"all": True}, arguments=("--check", "--diff"))
    for found, state in zip(would, ("resignatured", "attached")):
        assert found["changed"] and {row["status"] for row in found["luns"]} == {f"would be {state}"}
        assert not any("new_sr" in row for row in found["luns"]), "nobody knows its UUID yet"
    diff = would[1]["diff"]
    assert "kind: clone" in diff["before"] and "kind: attached" in diff["after"]
    assert "xs3: plugged" in diff["after"] and "xs3" not in diff["before"]
    assert stage.lab.summary() == before
    assert "sr_create" not in {command for command, _, _ in list(stage.world.log)[calls:]}

    done = stage.now("lun", all=True)
    assert "kind: attached" in done["diff"]["after"] and "xs3: plugged" in done["diff"]["after"]
    assert [row["new_sr"] for row in done["luns"]] == list(map(stage.world.sr_uuid, (stage.clone, stage.other)))
    before = stage.lab.summary()
    assert not stage.now("lun", True, all=True)["changed"]
    for state in ("detached", "forgotten"):
        found = stage.now("lun", True, all=True, state=state)
        assert found["changed"] and {row["status"] for row in found["luns"]} == {f"would be {state}"}
    assert stage.lab.summary() == before


def test_each_state_in_turn_and_each_twice(stage):
    for state in ("resignatured", "attached", "detached", "attached", "forgotten"):
        first, second = copy_of(stage, state=state, name="A copy"), copy_of(stage, state=state, name="A copy")
        assert (first["changed"], second["changed"]) == (True, False)
        assert {sr_of(first), sr_of(second)} <= {stage.world.sr_uuid(stage.clone), None}
        if state == "detached":
            _, sr = stage.lab.sr(stage.world.sr_uuid(stage.clone))
            assert sr["PBDs"] == [] and len(sr["VDIs"]) == 4 and sr["name_label"] == "A copy"
    assert not stage.lab.summary() and stage.world.state(stage.other) == "clean"


def test_one_that_is_in_use_stops_no_other(day):
    assert len(day.now("lun", all=True, name="copy of {sr}")["luns"]) == 2
    vms_on(day, "copy of Production")
    found = day.now("lun", state="forgotten", all=True)
    rows = {row["sr_name_label"]: row for row in found["luns"]}
    assert found["failed"] and found["changed"]
    assert "web" in rows["copy of Production"]["problem"] and rows["copy of Testing"]["status"] == "forgotten"


def test_no_password_is_shown(stage):
    played = stage.play([("lun_info", {"target": TARGET, "chap_user": "u", "chap_password": "a CHAP secret"})], "-vvvv")
    assert played.status == 0, played.out
    assert "a CHAP secret" not in played.out and stage.lab.pool.api.password not in played.out
    assert stage.lab.pool.secrets() == []


def test_a_certificate_that_is_not_known_is_not_believed(stage):
    believed, not_asked = (stage.now("lun_info", ca_path=None, validate_certs=value) for value in (True, False))
    assert believed["failed"] and "certificate" in believed["msg"] and not not_asked["failed"]


def test_the_environment_names_the_pool_as_it_does_for_other_modules(stage):
    tasks = [{"relvmoiscsi.pool.lun_info": {"ca_path": stage.ca}}]
    path = stage.directory / "env.json"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    assert stage.play(path, **stage.lab.pool.environment).status == 0


def test_what_cannot_be_meant_is_refused(stage):
    original = stage.lab.originals["Production"][0]
    for options, text in (
        ({}, "is named"),
        ({"srs": ["x"]}, "srs is for"),
        ({"scsi_ids": [original]}, "in use by the SR"),
        ({"scsi_ids": [stage.clone]}, "did not select"),
        ({"scsi_ids": [stage.clone]}, "add leave_others"),  # an option that there is
        ({"state": "forgotten", "srs": ["Production"]}, "was not introduced by"),
        ({"state": "forgotten", "scsi_ids": [original]}, "'Production'"),  # it is no copy that is gone
        ({"state": "detached", "scsi_ids": [original]}, "'Production'"),
        ({"all": True, "jobs": 0}, "at least one"),
        *(({"all": True, "mark": mark}, "mark") for mark in ("", "a:b", "ü", "x" * 61)),
        *(({"state": "forgotten", key: [""]}, key) for key in ("srs", "clones_of", "scsi_ids")),
    ):
        found = stage.now("lun", **options)
        assert found["failed"] and text in found["msg"] and "--" not in found["msg"], options
    for state in ("forgotten", "detached"):
        assert stage.now("lun", state=state, scsi_ids=["3600"])["luns"][0]["status"] == "already gone"


def test_a_clone_of_another_pool_s_sr_that_is_taken_is_in_no_warning(stage):
    """`foreign: true` vouches for the clones of the SRs in clones_of."""
    original = stage.lab.originals["Testing"][0]
    wish = {"clones_of": [stage.world.sr_uuid(original)], "leave_others": True}
    stage.lab.forget_original("Testing")
    stage.world.luns = [lun for lun in stage.world.luns if lun.scsi_id not in (original, stage.clone)]

    assert stage.now("lun", True, **wish)["failed"], "nobody has vouched for it"
    taken = stage.now("lun", True, **wish, foreign=True)
    assert [row["scsi_id"] for row in taken["luns"]] == [stage.other] and not taken.get("warnings"), taken


def test_a_copy_that_was_forgotten_is_attached_again_by_who_vouches_for_it(stage):
    alone(stage)
    named = {"clones_of": ["Production"]}
    first = sr_of(stage.now("lun", **named))
    stage.now("lun", state="forgotten", **named)

    told = stage.now("lun", **named)
    assert told["failed"] and stage.clone in told["msg"] and "name the LUN in scsi_ids" in told["msg"]
    ended, _, second = stage.both(scsi_ids=[stage.clone])
    assert ended == (False, True) and sr_of(second) == first


def test_no_label_makes_a_resignatured_lun_a_copy_of_an_sr(stage):
    """`again` believed the label, which each writer of a LUN can forge: VMs got the disks of a stranger's LUN."""
    alone(stage)
    sr_of(stage.now("lun", clones_of=["Production"]))
    stage.now("lun", state="forgotten", clones_of=["Production"])
    srs = stage.lab.pool.db.refs("SR")
    for more in ({}, {"foreign": True}, {"again": True}):
        told = stage.now("lun", clones_of=["Production"], **more)
        assert told["failed"] and stage.lab.pool.db.refs("SR") == srs, more
    skipped = stage.now("lun", all=True)
    assert skipped["failed"] and stage.lab.pool.db.refs("SR") == srs


def test_no_name_of_the_pool_reaches_the_terminal_as_it_is(stage):
    """Ansible prints texts as they are: in `msg`, in a warning, in rows, in the diff."""
    name = "Production\nfatal: forged\u009b2J\u202e"
    db = stage.lab.pool.db
    db.set("SR", stage.lab.originals["Production"][1], "name_label", name)
    copy_of(stage)
    for task in (
        ("lun_info", {}),
        ("lun", {"state": "forgotten", "srs": [name]}),
        ("lun", {"state": "detached", "all": True}),
    ):
        played = stage.play([task], "-vv", "--diff")
        assert "forged" in played.out and not set("\u009b\u202e") & set(played.out), task
        assert "\nfatal: forged" not in played.out, task


# --- a mark


def test_what_others_have_made_is_not_meant_by_a_mark(day):
    """Not to be attached again, not to be forgotten, and its VMs go on."""
    alone(day)
    theirs = sr_of(copy_of(day, name="theirs"))
    vms_on(day, theirs)
    mine = {"clones_of": ["Production"], "mark": "mine"}

    none = day.now("lun", **mine)
    assert none["failed"] and "'theirs'" in none["msg"] and "without the mark mine" in none["msg"]
    tonight = day.lab.clone("Production")
    made = day.now("lun", **mine)
    assert [(row["scsi_id"], row["status"]) for row in made["luns"]] == [(tonight, "attached")]
    vms_on(day, sr_of(made), mark="mine", isolated="mine")
    before = day.lab.summary()
    gone = {**mine, "state": "forgotten", "with_vms": True, "force": True}
    assert day.now("lun", **{**gone, "mark": "nobody"})["luns"] == [] and day.lab.summary() == before

    forgotten = day.now("lun", **gone)
    assert [(row["scsi_id"], len(row["destroyed_vm_names"])) for row in forgotten["luns"]] == [(tonight, 1)]
    assert [sr["name_label"] for sr in day.lab.pool.db.records("SR").values()][-1] == "theirs"
    assert [vm["power_state"] for vm in day.lab.pool.db.records("VM").values()] == ["Running"] * 3
    clone = {"scsi_ids": [day.clone]}
    for each in (clone, {**clone, "state": "forgotten"}, {"srs": ["theirs"], "state": "detached"}):
        refused = day.now("lun", **{**each, "mark": "mine"})
        assert refused["failed"] and "without the mark mine" in refused["msg"]


def test_vms_of_others_keep_a_copy_with_my_mark_and_halted_ones_of_mine_do_not_stop_a_detach(day):
    mine = sr_of(copy_of(day, mark="mine"))
    vms_on(day, mine, state="present")
    again = day.now("vm_clone", sr=mine, all=True, isolated="lab", state="started", mark="mine")
    assert again["failed"] and "without the mark mine" in again["msg"]
    kept = day.now("lun", state="forgotten", all=True, mark="mine", with_vms=True, force=True)
    assert kept["failed"] and not kept["changed"] and "without the mark mine" in kept["msg"]
    assert day.lab.sr(mine) and len(day.lab.pool.db.records("VM")) == 3
    absent = {"sr": mine, "all": True, "state": "absent"}
    assert not day.now("vm_clone", **absent, mark="mine")["changed"]

    assert day.now("vm_clone", **absent)["changed"]
    vms_on(day, mine, state="present", mark="mine")
    found = day.now("lun", state="detached", srs=[mine], mark="mine")
    assert found["changed"] and not found["failed"] and len(day.lab.pool.db.records("VM")) == 3


# --- before and after a change


def test_a_lun_that_another_client_has_locked_is_refused_also_without_a_step(stage):
    """It was "already attached" while another client discarded it, and check mode knew no lock at all."""
    copy_of(stage)
    with connect(stage.lab.where(ca=str(stage.ca))) as calls, lock.held(calls, [lock_keys.name_for(stage.clone)], "x"):
        named = {"scsi_ids": [stage.clone]}
        back = [{**named, "state": state} for state in ("detached", "forgotten")]
        for task in ({**named, "leave_others": True}, {"all": True}, *back):
            ended, check, real = stage.both(**task)
            assert ended[0] and all("Another client has locked" in told["msg"] for told in (check, real)), task


def test_nothing_is_turned_off_before_it_is_known_that_all_of_it_may_go(day):
    sr = sr_of(copy_of(day))
    vms_on(day, sr)
    lent = day.now("rescue_disk", sr=sr, vdi="before", vm="helper")
    assert not lent["failed"], lent
    refused = day.now("lun", state="forgotten", srs=[sr], with_vms=True, force=True)
    assert refused["failed"] and "helper" in refused["msg"]
    assert {vm["power_state"] for vm in day.lab.pool.db.records("VM").values()} == {"Running"}


def test_halted_vms_stay_without_disks_only_where_that_is_said(day):
    sr = sr_of(copy_of(day))
    vms_on(day, sr, state="present")
    before = day.lab.summary()
    ended, _, refused = day.both(state="forgotten", srs=[sr])
    assert ended == (True, False) and "leave_vms, which leaves" in refused["msg"]
    assert day.lab.summary() == before and len(day.lab.pool.db.records("VM")) == 3
    assert day.now("lun", state="detached", srs=[sr])["changed"], "the pool keeps the SR, and the VMs their disks"
    assert day.now("lun", state="forgotten", srs=[sr], leave_vms=True)["changed"]
    assert sr not in [each["uuid"] for each in day.lab.pool.db.records("SR").values()]


def test_the_last_copy_of_a_vm_goes_after_a_word_of_its_own_in_each_state(day):
    """`detached` and `absent` had no such guard, which `forgotten` had."""
    sr = sr_of(copy_of(day))
    vms_on(day, sr, state="present")
    db = day.lab.pool.db
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    day.lab.pool.api.vms.vm_destroy("", day.web)
    before = day.lab.summary()
    absent = {"module": "vm_clone", "sr": sr, "all": True, "state": "absent"}
    tasks = ({"state": "detached", "srs": [sr]}, {"state": "forgotten", "srs": [sr], "with_vms": True}, absent)
    for task in tasks:
        ended, _, real = day.both(**task)
        assert ended == (True, False) and "lost for ever" in real["msg"] and "add last_copies" in real["msg"]
    assert day.lab.summary() == before

    assert day.now("lun", **tasks[0], last_copies=True)["changed"]
    copy_of(day)
    assert day.now(**absent, last_copies=True)["changed"] and len(db.records("VM")) == 1


def test_check_mode_promises_what_a_run_then_changes(stage):
    """A copy whose run was cut before its VDIs had their notes; and a host that is down, with nothing left to do."""
    db = stage.lab.pool.db
    for words in ({}, {"state": "resignatured"}):
        assert stage.now("lun", all=True, check=True, **words)["changed"]
    sr = db.by_uuid("SR", sr_of(stage.now("lun", all=True)))
    db.remove_from("VDI", db.refs("VDI", SR=sr)[0], "other_config", "relvmoiscsi:old")
    assert stage.both(all=True)[0] == (False, True)
    assert stage.both(all=True)[0] == (False, False)
    stage.lab.pool.storage.pbd_unplug("", db.refs("PBD", SR=sr)[1])
    stage.lab.pool.go_down(stage.lab.pool.hosts[1])
    ended, *both = stage.both(all=True)
    assert ended == (True, False)
    for found in both:
        assert "(down)" in found["msg"] and [row["status"] for row in found["luns"] if row["problem"]] == ["partial"]


def test_check_mode_knows_of_hosts_that_are_down(stage):
    """They fail the task, and the next run does the rest."""
    named, pool = {"scsi_ids": [stage.clone], "leave_others": True}, stage.lab.pool
    pool.go_down(pool.hosts[2])
    ended, check, real = stage.both(**named)
    assert ended == (True, True) and "xs3 (down)" in check["msg"] and "xs3 (down)" in real["msg"]
    assert stage.both(**named)[0] == (True, False)
    pool.come_back(pool.hosts[2])
    ended, _, real = stage.both(**named)
    assert ended == (False, True) and real["luns"][0]["status"] == "attached"

    pool.go_down(pool.hosts[2])  # the pool has it plugged there
    assert stage.both(**named)[0] == (False, False)
    for state in ("detached", "forgotten"):
        assert stage.both(state=state, scsi_ids=[stage.clone])[0] == (True, False)


@pytest.mark.parametrize("leave", [unplug, detach])
def test_check_mode_knows_of_a_clone_that_the_array_has_overwritten_and_of_a_lun_beside_it(stage, leave):
    copy_of(stage)
    leave(stage)
    overwrite(stage)
    ended, check, _ = stage.both(scsi_ids=[stage.clone], leave_others=True)
    assert ended == (True, False) and "overwritten" in check["msg"]
    if leave == detach:
        return
    beside = {"scsi_ids": [stage.clone, stage.other]}
    ended, check, real = stage.both(**beside)
    assert ended == (True, True) and "No host can plug the SR" in check["msg"]
    foreseen, met = ([row["problem"] for row in ended["luns"]] for ended in (check, real))
    has_new_ids = re.compile(" The LUN [0-9a-f]+ has new identities, and the pool has its SR '[^']+' \\([^)]+\\)\\.")
    assert has_new_ids.search(met[1]) and foreseen == [has_new_ids.sub("", problem) for problem in met]
    assert "sr: (new)" in check["diff"]["after"] and "xs1: plugged" not in check["diff"]["after"]
    assert stage.both(**beside)[0] == (True, False)


def test_what_a_failed_task_has_changed_is_a_change(stage):
    """New identities, though the pool has no SR of them; PBDs, though none is plugged."""
    stage.refuses("SR.introduce")
    found = copy_of(stage)
    assert found["failed"] and found["changed"] and stage.world.state(stage.clone) == "resignatured"
    assert "kind: resignatured" in found["diff"]["after"]

    stage.lab.pool.api.before = None
    copy_of(stage)
    detach(stage)
    stage.world.fail["sr_attach", stage.clone] = UsageError("no path")
    found, again = copy_of(stage), copy_of(stage)
    assert found["failed"] and found["changed"] and "xs3: unplugged" in found["diff"]["after"]
    assert again["failed"] and not again["changed"]


def test_a_clone_of_an_sr_that_no_host_has_attached_needs_the_word(stage):
    stage.lab.unplug(stage.lab.originals["Production"][1])
    found = copy_of(stage)
    assert found["failed"] and found["msg"].endswith("add unplugged.") and "may be the original" in found["msg"]

    found = copy_of(stage, unplugged=True)
    assert not found["failed"] and found["luns"][0]["status"] == "attached", found
    assert not copy_of(stage, unplugged=True)["changed"]
