# SPDX-License-Identifier: LGPL-2.1-only
"""lun_info and lun: each state, twice, checked and failed."""

import json

import relvmoiscsi
from kit.pool_lab import TARGET
from relvmoiscsi.errors import UsageError


def test_the_collection_has_the_version_of_the_package(home):
    (tarball,) = (home / "built").iterdir()
    assert tarball.name == f"relvmoiscsi-pool-{relvmoiscsi.__version__}.tar.gz"


def test_lun_info_names_each_lun_and_writes_nothing(stage):
    writes = {lun.scsi_id: lun.disk.writes for lun in stage.world.luns}
    found = stage.now("lun_info")
    kinds = {row["scsi_id"]: (row["kind"], row["name"]) for row in found["luns"]}
    originals = {uuid: ("original", name) for name, (uuid, _) in stage.lab.originals.items()}
    assert not found["changed"]
    assert kinds == {**originals, stage.clone: ("clone", "Production"), stage.other: ("clone", "Testing")}
    assert writes == {lun.scsi_id: lun.disk.writes for lun in stage.world.luns}


def test_check_mode_tells_the_same_and_does_nothing(stage):
    check = ("--check", "--diff")
    before, calls = stage.lab.summary(), len(stage.world.log)
    would = stage.tasks({"state": "resignatured", "all": True}, {"all": True}, arguments=check)
    for found, state in zip(would, ("resignatured", "attached")):
        assert found["changed"] and {row["status"] for row in found["luns"]} == {f"would be {state}"}
    diff = would[1]["diff"]
    assert "kind: clone" in diff["before"] and "kind: attached" in diff["after"]
    assert "xs3: plugged" in diff["after"] and "xs3" not in diff["before"]
    assert stage.lab.summary() == before
    assert "sr_create" not in {command for command, _, _ in list(stage.world.log)[calls:]}


def test_check_mode_of_what_is_attached(stage):
    done = stage.quickly({"all": True})[0]
    assert "kind: attached" in done["diff"]["after"] and "xs3: plugged" in done["diff"]["after"]
    before = stage.lab.summary()
    states = [{"all": True, "state": state} for state in ("attached", "detached", "forgotten")]
    attached, detached, forgotten = stage.quickly(*states, check=True)
    assert not attached["changed"]
    for found, state in ((detached, "detached"), (forgotten, "forgotten")):
        assert found["changed"] and {row["status"] for row in found["luns"]} == {f"would be {state}"}
    assert stage.lab.summary() == before


def test_each_state_in_turn_and_each_twice(stage):
    states = [state for state in ("resignatured", "attached", "detached", "attached", "forgotten") for _ in range(2)]
    rows = [{"state": state, "scsi_ids": [stage.clone], "leave_others": True} for state in states]
    found = stage.quickly(*rows)
    assert [each["changed"] for each in found] == [True, False] * 5
    assert {row["sr"]["new"] for each in found for row in each["luns"]} == {stage.world.sr_uuid(stage.clone), None}
    assert not stage.lab.summary()
    assert stage.world.state(stage.other) == "clean"


def test_a_detached_copy_has_no_pbds_and_keeps_its_vdis(stage):
    copy = {"scsi_ids": [stage.clone], "leave_others": True, "name": "A copy"}
    attached, _ = stage.quickly(copy, {"state": "detached", "srs": ["A copy"]})
    _, sr = stage.lab.sr(attached["luns"][0]["sr"]["new"])
    assert sr["PBDs"] == [] and len(sr["VDIs"]) == 4


def test_a_host_that_is_down_fails_the_task_and_the_next_run_does_the_rest(stage):
    stage.lab.pool.go_down(stage.lab.pool.hosts[2])
    copy = {"scsi_ids": [stage.clone], "leave_others": True}
    first, second = stage.quickly(copy, copy)
    assert first["failed"] and first["changed"] and "xs3 (down)" in first["msg"]
    assert second["failed"] and not second["changed"]
    stage.lab.pool.come_back(stage.lab.pool.hosts[2])
    (last,) = stage.quickly(copy)
    assert last["changed"] and last["luns"][0]["status"] == "attached"


def test_one_lun_that_fails_stops_no_other_where_hosts_may_see_it(stage):
    stage.world.fail["sr_create", stage.clone] = UsageError("The array is on fire.")
    held = stage.now("lun", all=True)
    assert held["failed"] and held["changed"] and {row["status"] for row in held["luns"]} == {"failed"}
    assert "is introduced but not plugged" in held["msg"] and "add leave_others" in held["msg"]
    found = stage.now("lun", all=True, leave_others=True)
    rows = {row["scsi_id"]: row for row in found["luns"]}
    assert found["failed"] and found["changed"] and "The array is on fire." in found["msg"]
    assert (rows[stage.clone]["status"], rows[stage.other]["status"]) == ("failed", "attached")


def test_no_password_is_shown(stage):
    played = stage.play([("lun_info", {"target": TARGET, "chap_user": "u", "chap_password": "a CHAP secret"})], "-vvvv")
    assert played.status == 0, played.out
    assert "a CHAP secret" not in played.out and stage.lab.pool.api.password not in played.out
    assert stage.lab.pool.secrets() == []


def test_a_certificate_that_is_not_known_is_not_believed(stage):
    believed, not_asked = (stage.now("lun_info", ca_path=None, validate_certs=value) for value in (True, False))
    assert believed["failed"] and "certificate" in believed["msg"]
    assert not not_asked.get("failed")


def test_the_environment_names_the_pool_as_it_does_for_other_modules(stage):
    tasks = [{"relvmoiscsi.pool.lun_info": {"ca_path": stage.ca}}]
    path = stage.directory / "env.json"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    assert stage.play(path, **stage.lab.pool.environment).status == 0


def test_what_cannot_be_meant_is_refused(stage):
    original = stage.lab.originals["Production"][0]
    wrong = [
        ({}, "is named"),
        ({"srs": ["x"]}, "srs is for"),
        ({"scsi_ids": [original]}, "in use by the SR"),
        ({"scsi_ids": [stage.clone]}, "did not select"),
        ({"state": "forgotten", "srs": ["Production"]}, "was not introduced by"),
        ({"all": True, "jobs": 0}, "at least one"),
    ]
    for found, (_, text) in zip(stage.quickly(*(options for options, _ in wrong)), wrong):
        assert found["failed"] and text in found["msg"]
