# SPDX-License-Identifier: LGPL-2.1-only
"""lun, in this process: what is refused, what is left to others, and that check mode says what would happen."""

import pytest

from kit.pool.errors import XenError
from relvmoiscsi.errors import UsageError


def copy_of(stage, **more):
    return stage.now("lun", **{"scsi_ids": [stage.clone], "leave_others": True, **more})


def vms_on(stage, sr, **more):
    made = stage.now("vm_clone", **{"sr": sr, "all": True, "isolated": "lab", "state": "started", **more})
    assert not made["failed"], made
    return made["vms"]


def unplug(stage):
    for ref, pbd in stage.lab.pool.db.records("PBD").items():
        if pbd["device_config"]["SCSIid"] == stage.clone:
            stage.lab.pool.storage.pbd_unplug("", ref)


def overwrite(stage):
    """The array makes the clone anew of the original."""
    luns = stage.world.luns
    disk = stage.world.lun(stage.lab.originals["Production"][0]).disk.copy()
    stage.world.luns = [lun._replace(disk=disk) if lun.scsi_id == stage.clone else lun for lun in luns]


def fails(stage, method):
    def before(called, _params):
        if called == method:
            raise XenError("INTERNAL_ERROR", "no")

    stage.lab.pool.api.before = before


# --- a mark


def test_what_others_have_made_is_not_meant_by_a_mark(day):
    """Not to be attached again, not to be forgotten, and its VMs go on."""
    day.world.luns = [lun for lun in day.world.luns if lun.scsi_id != day.other]
    theirs = copy_of(day, name="theirs")["luns"][0]["sr"]["new"]
    vms_on(day, theirs)
    mine = {"clones_of": ["Production"], "mark": "mine"}

    none = day.now("lun", **mine)
    assert none["failed"] and "'theirs'" in none["msg"] and "without the mark mine" in none["msg"]
    tonight = day.lab.clone("Production")
    made = day.now("lun", **mine)
    assert [(row["scsi_id"], row["status"]) for row in made["luns"]] == [(tonight, "attached")]
    vms_on(day, made["luns"][0]["sr"]["new"], mark="mine", isolated="mine")
    before = day.lab.summary()
    gone = {**mine, "state": "forgotten", "with_vms": True, "force": True}
    assert day.now("lun", **{**gone, "mark": "nobody"})["luns"] == [] and day.lab.summary() == before

    forgotten = day.now("lun", **gone)
    assert [(row["scsi_id"], len(row["vms"])) for row in forgotten["luns"]] == [(tonight, 1)]
    assert [sr["name_label"] for sr in day.lab.pool.db.records("SR").values()][-1] == "theirs"
    running = [vm["power_state"] for vm in day.lab.pool.db.records("VM").values()]
    assert running == ["Running"] * 3

    wrong = [
        {"scsi_ids": [day.clone]},
        {"scsi_ids": [day.clone], "state": "forgotten"},
        {"srs": ["theirs"], "state": "detached"},
    ]
    for each in wrong:
        refused = day.now("lun", **{**each, "mark": "mine"})
        assert refused["failed"] and "without the mark mine" in refused["msg"]


def test_vms_of_others_keep_a_copy_with_my_mark(day):
    mine = copy_of(day, mark="mine")["luns"][0]["sr"]["new"]
    vms_on(day, mine, state="present")
    again = day.now("vm_clone", sr=mine, all=True, isolated="lab", state="started", mark="mine")
    assert again["failed"] and "without the mark mine" in again["msg"]
    kept = day.now("lun", state="forgotten", all=True, mark="mine", with_vms=True, force=True)
    assert kept["failed"] and not kept["changed"] and "without the mark mine" in kept["msg"]
    assert day.lab.sr(mine) and len(day.lab.pool.db.records("VM")) == 3
    assert not day.now("vm_clone", sr=mine, all=True, state="absent", mark="mine")["changed"]


def test_halted_vms_with_my_mark_do_not_stop_a_detach(day):
    mine = copy_of(day, mark="mine")["luns"][0]["sr"]["new"]
    vms_on(day, mine, state="present", mark="mine")
    found = day.now("lun", state="detached", srs=[mine], mark="mine")
    assert found["changed"] and not found["failed"]
    assert len(day.lab.pool.db.records("VM")) == 3


def test_nothing_is_turned_off_before_it_is_known_that_all_of_it_may_go(day):
    sr = copy_of(day)["luns"][0]["sr"]["new"]
    vms_on(day, sr)
    lent = day.now("rescue_disk", sr=sr, vdi="before", vm="helper")
    assert not lent["failed"], lent
    refused = day.now("lun", state="forgotten", srs=[sr], with_vms=True, force=True)
    assert refused["failed"] and "helper" in refused["msg"]
    assert {vm["power_state"] for vm in day.lab.pool.db.records("VM").values()} == {"Running"}


def test_check_mode_promises_what_a_run_then_changes(stage):
    """A copy whose run was cut before its VDIs had their notes; and a host that is down, with nothing left to do."""
    db = stage.lab.pool.db
    for words in ({}, {"state": "resignatured"}):
        assert stage.now("lun", all=True, check=True, **words)["changed"]
    sr = stage.now("lun", all=True)["luns"][0]["sr"]["new"]
    vdi = db.refs("VDI", SR=db.by_uuid("SR", sr))[0]
    db.remove_from("VDI", vdi, "other_config", "relvmoiscsi:old")
    for check in (True, False):
        assert stage.now("lun", all=True, check=check)["changed"]
    assert not stage.now("lun", all=True, check=True)["changed"]
    stage.lab.pool.storage.pbd_unplug("", db.refs("PBD", SR=db.by_uuid("SR", sr))[1])
    stage.lab.pool.go_down(stage.lab.pool.hosts[1])
    for check in (True, False):
        found = stage.now("lun", all=True, check=check)
        assert found["failed"] and not found["changed"] and "(down)" in found["msg"]
        assert [row["status"] for row in found["luns"] if row["error"]] == ["partial"]


def test_halted_vms_stay_without_disks_only_where_that_is_said(day):
    sr = copy_of(day)["luns"][0]["sr"]["new"]
    vms_on(day, sr, state="present")
    before = day.lab.summary()
    for check in (True, False):
        refused = day.now("lun", state="forgotten", srs=[sr], check=check)
        assert refused["failed"] and not refused["changed"] and "leave_vms leaves" in refused["msg"]
    assert day.lab.summary() == before and len(day.lab.pool.db.records("VM")) == 3
    assert day.now("lun", state="detached", srs=[sr])["changed"], "the pool keeps the SR, and the VMs their disks"
    assert day.now("lun", state="forgotten", srs=[sr], leave_vms=True)["changed"]
    assert sr not in [each["uuid"] for each in day.lab.pool.db.records("SR").values()]


@pytest.mark.parametrize("mark", ["", "a:b", "ü", "x" * 61])
def test_a_mark_is_a_word(stage, mark):
    assert stage.now("lun", all=True, mark=mark)["failed"]


# --- what is meant


def test_a_copy_that_was_forgotten_is_attached_again_by_who_vouches_for_it(stage):
    stage.world.luns = [lun for lun in stage.world.luns if lun.scsi_id != stage.other]
    named = {"clones_of": ["Production"]}
    first = stage.now("lun", **named)["luns"][0]["sr"]["new"]
    stage.now("lun", state="forgotten", **named)

    told = stage.now("lun", **named)
    assert told["failed"] and stage.clone in told["msg"] and "say again: true" in told["msg"]
    would, second = (stage.now("lun", check, **named, again=True) for check in (True, False))
    assert would["changed"] and second["changed"] and second["luns"][0]["sr"]["new"] == first


@pytest.mark.parametrize("state", ["forgotten", "detached"])
def test_a_lun_that_an_original_is_on_is_not_gone(stage, state):
    found = stage.now("lun", state=state, scsi_ids=[stage.lab.originals["Production"][0]])
    assert found["failed"] and "'Production'" in found["msg"]
    assert stage.now("lun", state=state, scsi_ids=["3600"])["luns"][0]["status"] == "already gone"


@pytest.mark.parametrize("key", ["srs", "clones_of", "scsi_ids"])
def test_an_empty_name_is_an_error(stage, key):
    found = stage.now("lun", state="forgotten", **{key: [""]})
    assert found["failed"] and key in found["msg"]


def test_one_that_is_in_use_stops_no_other(day):
    attached = day.now("lun", all=True, name="copy of {sr}")
    assert len(attached["luns"]) == 2
    vms_on(day, "copy of Production")
    found = day.now("lun", state="forgotten", all=True)
    rows = {row["name"]: row for row in found["luns"]}
    assert found["failed"] and found["changed"]
    assert "web" in rows["copy of Production"]["error"] and rows["copy of Testing"]["status"] == "forgotten"


def test_sentences_name_options_that_there_are(stage):
    found = stage.now("lun", scsi_ids=[stage.clone])
    assert "add leave_others" in found["msg"] and "--" not in found["msg"]


# --- check mode


def both(stage, **options):
    """What check mode says, and what happens."""
    return stage.now("lun", True, **options), stage.now("lun", **options)


def same(check, real):
    assert (check["failed"], check["changed"]) == (real["failed"], real["changed"]), (check, real)
    return check["failed"], check["changed"]


def test_check_mode_knows_of_hosts_that_are_down(stage):
    named = {"scsi_ids": [stage.clone], "leave_others": True}
    stage.lab.pool.go_down(stage.lab.pool.hosts[2])
    check, real = both(stage, **named)
    assert same(check, real) == (True, True) and "xs3 (down)" in check["msg"]
    assert same(*both(stage, **named)) == (True, False)
    stage.lab.pool.come_back(stage.lab.pool.hosts[2])
    assert same(*both(stage, **named)) == (False, True)

    stage.lab.pool.go_down(stage.lab.pool.hosts[2])  # the pool has it plugged there
    assert same(*both(stage, **named)) == (False, False)
    for state in ("detached", "forgotten"):
        assert same(*both(stage, state=state, scsi_ids=[stage.clone])) == (True, False)


@pytest.mark.parametrize("leave", [unplug, lambda stage: stage.now("lun", state="detached", scsi_ids=[stage.clone])])
def test_check_mode_knows_of_a_clone_that_the_array_has_overwritten(stage, leave):
    copy_of(stage)
    leave(stage)
    overwrite(stage)
    check, real = both(stage, scsi_ids=[stage.clone], leave_others=True)
    assert same(check, real) == (True, False) and "overwritten" in check["msg"]


def test_check_mode_knows_of_a_lun_that_is_not_plugged_beside_such_a_clone(stage):
    copy_of(stage)
    unplug(stage)
    overwrite(stage)
    both_luns = [stage.clone, stage.other]
    check, real = both(stage, scsi_ids=both_luns)
    assert same(check, real) == (True, True) and "is introduced but not plugged" in check["msg"]
    assert [row["error"] for row in check["luns"]] == [row["error"] for row in real["luns"]]
    assert "sr: (new)" in check["diff"]["after"] and "xs1: plugged" not in check["diff"]["after"]
    assert same(*both(stage, scsi_ids=both_luns)) == (True, False)


# --- what was changed by what failed


def test_new_identities_are_a_change_though_the_pool_has_no_sr_of_them(stage):
    fails(stage, "SR.introduce")
    found = copy_of(stage)
    assert found["failed"] and found["changed"] and stage.world.state(stage.clone) == "resignatured"
    assert "kind: resignatured" in found["diff"]["after"]


def test_pbds_are_a_change_though_none_is_plugged(stage):
    copy_of(stage)
    stage.now("lun", state="detached", scsi_ids=[stage.clone])
    stage.world.fail["sr_attach", stage.clone] = UsageError("no path")
    found, again = copy_of(stage), copy_of(stage)
    assert found["failed"] and found["changed"] and "xs3: unplugged" in found["diff"]["after"]
    assert again["failed"] and not again["changed"]


def test_vms_that_are_gone_are_a_change_though_the_copy_is_there(day):
    sr = copy_of(day)["luns"][0]["sr"]["new"]
    vms_on(day, sr)
    gone = {"state": "forgotten", "srs": [sr], "with_vms": True, "force": True}
    fails(day, "Async.PBD.unplug")
    first, second = day.now("lun", **gone), day.now("lun", **gone)
    assert first["failed"] and first["changed"] and len(day.lab.pool.db.records("VM")) == 2
    assert second["failed"] and not second["changed"]
    day.lab.pool.api.before = None
    assert day.now("lun", **gone)["luns"][0]["status"] == "forgotten"
