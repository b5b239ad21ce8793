# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool`: what it prints, how it ends, whom it asks."""

import json
import shutil
import signal
import sys

import pytest

from kit.lun_world import World
from kit.pool.errors import XenError
from kit.pool_lab import IQN, TARGET, Image, Lab, sr_disk
from relvmoiscsi import wording
from relvmoiscsi.cli import pool, pool_discard, pool_luns, pool_secrets
from relvmoiscsi.errors import NotFound
from relvmoiscsi.pool import jobs, lock, progress
from relvmoiscsi.pool.connection import connect


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


def facts(ran):
    return json.loads(ran.out)


def test_luns(lab, pool_command):
    clone, original = lab.clone("Production"), lab.originals["Production"][0]
    ran = pool_command("luns")

    assert ran.status == 0 and not ran.err
    lines = [line.split(None, 3) for line in ran.out.splitlines()]
    assert lines[0][0] == "SCSIid"
    kinds = {line[0]: line[-1].strip() for line in lines[1:]}
    assert kinds[clone] == 'clone of "Production"; cannot be made one VDI'
    assert kinds[lab.originals["Testing"][0]] == 'original, "Testing"'
    found = {lun["scsi_id"]: lun for lun in facts(pool_command("luns", "--json", "--target", TARGET))["luns"]}
    assert (found[original]["kind"], found[clone]["kind"]) == ("original", "clone")
    assert found[clone]["copy_of"] == found[original]["sr"] and found[original]["copy_of"] is None


def test_one_command_to_have_all_and_one_to_be_rid_of_them(lab, pool_command, tmp_path):
    """The day after: snapshots of all SRs become copies on all hosts, and go again."""
    clones = [lab.clone(name) for name in ("Production", "Testing")]
    before = lab.summary()
    ran = pool_command("attach", "--all", "--yes", "--name", "{sr} copy", "--map-out", tmp_path / "map.json")

    assert ran.status == 0
    lines = ran.out.splitlines()
    assert [line.split(":")[0] for line in lines if line[:1] != " "] == clones
    assert "  next: relvmoiscsi pool clone 'Production copy' --all --isolated lab" in lines
    assert 'attached "Production copy"' in ran.out and "4 VDIs" in ran.out
    written = json.loads((tmp_path / "map.json").read_text())["srs"]
    assert [row["scsi_id"] for row in written] == clones and len(written[0]["vdis"]) == 4
    assert lab.summary() != before

    ran = pool_command("discard", "--clones-of", "Production", "Testing copy", "--yes")
    assert ran.status == 0 and ran.out.count("discarded") == 2
    assert lab.summary() == before


def test_what_would_be_done_is_told_and_not_done(lab, pool_command):
    clone = lab.clone("Production")
    before, luns = lab.summary(), lab.world.sr_uuid(clone)
    ran = pool_command("attach", clone, "--dry-run", "--name", "{sr} copy")

    assert ran.status == 0 and (lab.summary(), lab.world.sr_uuid(clone)) == (before, luns)
    steps = 'resignature; introduce as "Production copy"; create PBD on xs1, xs2; plug on xs1, xs2; scan; label VDIs'
    assert ran.out.splitlines() == ["Planned steps:", f"{clone}: {steps}"]
    (row,) = facts(pool_command("attach", clone, "--dry-run", "--json"))["would"]
    assert (row["scsi_id"], row["hosts_down"], row["error"]) == (clone, [], None)
    assert row["steps"][0] == {"step": "resignature", "on": None} and {"step": "plug", "on": "xs2"} in row["steps"]

    pool_command("attach", clone, "--yes", "--name", "{sr} copy")
    ran = pool_command("attach", clone, "--dry-run")
    assert ran.out == f"Nothing to do:\n{clone}: already attached: nothing to do\n"
    ran = pool_command("discard", "Production copy", "--dry-run", "--json")
    assert facts(ran)["srs"][0]["status"] == "would be discarded"
    assert lab.pool.db.refs("SR", name_label="Production copy")


def test_the_map_has_names_and_vms(lab, pool_command):
    ref, record = lab.vdi("Production", "root disk")
    vm = lab.pool.db.create("VM", name_label="web")
    lab.pool.db.create("VBD", VM=vm, VDI=ref)
    clone = lab.clone("Production")
    pool_command("attach", clone, "--yes", "--name", "copy")
    found = facts(pool_command("map", "copy", "--json"))

    (row,) = [row for row in found["vdis"] if row["old"] == record["uuid"]]
    assert row["vms"] == ["web"] and row["name_label"] == "root disk"
    ran = pool_command("map", "copy")
    assert record["uuid"] in ran.out and "[VM web]" in ran.out and "[snapshot]" in ran.out and "[hidden]" in ran.out
    assert pool_command("map", "Production").status == 4


def test_a_host_that_is_down_is_9_and_the_same_again_is_0(lab, pool_command):
    clone = lab.clone("Production")
    lab.pool.go_down(lab.pool.hosts[1])
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 9 and "xs2: down" in ran.out

    lab.pool.come_back(lab.pool.hosts[1])
    assert pool_command("attach", clone, "--yes").status == 0
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 0 and "already attached" in ran.out


def test_a_host_that_fails_for_another_reason_is_not_said_to_be_down(lab, pool_command):
    plug = lab.pool.storage.pbd_plug

    def refused(session, pbd):
        if lab.pool.db.get("PBD", pbd, "host") == lab.pool.hosts[1]:
            raise XenError("SR_BACKEND_FAILURE_68", "", "ISCSI login failed", "")
        return plug(session, pbd)

    lab.pool.api._methods["PBD.plug"] = refused
    ran = pool_command("attach", lab.clone("Production"), "--yes")

    assert ran.status == 9
    assert "  xs2: PBD.plug: ISCSI login failed; repeat the command after you correct the cause" in ran.out


def test_a_map_that_cannot_be_written_or_of_an_earlier_run_is_told_before_the_work(lab, pool_command, tmp_path):
    clone, there = lab.clone("Production"), "already exists and --map-out replaces no file"
    (tmp_path / "map.json").write_text("of an earlier run")
    missing = tmp_path / "no" / "map.json", "No such file or directory"
    for path, why in (missing, (tmp_path, there), (tmp_path / "map.json", there)):
        ran = pool_command("attach", clone, "--yes", "--map-out", path)
        assert ran.status == 2 and why in ran.err and "Nothing was written" in ran.err
    assert (tmp_path / "map.json").read_text() == "of an earlier run" and lab.world.state(clone) == "clean"
    ran = pool_command("attach", clone, "--dry-run", "--map-out", tmp_path / "new.json")
    assert ran.status == 0 and [path.name for path in tmp_path.iterdir()] == ["map.json"]


def test_a_map_that_cannot_be_written_after_all_is_no_success(lab, pool_command, tmp_path):
    folder = tmp_path / "maps"
    folder.mkdir()
    clone = lab.clone("Production")
    lab.pool.api.before = lambda method, params: method == "SR.introduce" and shutil.rmtree(str(folder))
    ran = pool_command("attach", clone, "--yes", "--map-out", folder / "map.json")

    assert ran.status == 74 and f"{clone}: attached" in ran.out and "the map cannot be written to" in ran.err


def test_a_vdi_that_was_made_on_the_copy_is_new(lab, pool_command):
    pool_command("attach", lab.clone("Production"), "--yes", "--name", "copy")
    made = lab.pool.db.create("VDI", SR=lab.pool.db.refs("SR", name_label="copy")[0], name_label="made today")
    uuid = lab.pool.db.get("VDI", made, "uuid")

    (line,) = [line for line in pool_command("map", "copy").out.splitlines() if "made today" in line]
    assert line.split() == ["is", "new", uuid, "made", "today"]


def test_copies_of_an_sr_that_the_pool_has_forgotten(lab, pool_command):
    clone, db, storage = lab.clone("Production"), lab.pool.db, lab.pool.storage
    assert pool_command("attach", clone, "--yes").status == 0
    original = lab.originals["Production"][1]
    uuid = db.get("SR", original, "uuid")
    for pbd in db.refs("PBD", SR=original):
        storage.pbd_unplug("", pbd)
    storage.sr_forget("", original)
    ran = pool_command("discard", "--clones-of", uuid, "--yes")

    assert ran.status == 0 and ": discarded" in ran.out
    ran = pool_command("attach", "--clones-of", uuid.upper(), "--yes")
    assert ran.status == 3 and f"sees no clone of the SR {uuid}" in ran.err


def states(ran):
    return {row["name"]: (row["state"], row["what"]) for row in facts(ran)["so_far"]}


@pytest.mark.processes
def test_an_interrupted_run_gives_json_as_well(lab, pool_command, interrupts):
    interrupts(lab.pool, ("SR.get_all_records", 1))
    ran = pool_command("luns", "--json")

    assert ran.status == 130
    assert facts(ran)["error"] == {
        "kind": "Interrupted",
        "exit_status": 130,
        "message": "Interrupted.",
        "disk_state": "Nothing was changed.",
    }
    assert facts(ran)["so_far"] == []


UNDER_WAY, NOT_BEGUN = "under way", ("not begun", None)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("Async.SR.create", [(UNDER_WAY, "introduce: done"), (UNDER_WAY, "resignature"), NOT_BEGUN]),
        ("SR.introduce", [(UNDER_WAY, "introduce: done"), (UNDER_WAY, "introduce"), NOT_BEGUN]),
        ("Async.SR.scan", [("done", "attach"), (UNDER_WAY, "attach"), (UNDER_WAY, "introduce: done")]),
    ],
)
def test_attach_that_is_interrupted_says_how_far_each_lun_is(lab, pool_command, interrupts, method, expected):
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    words = ["attach", *clones, "--yes", "--jobs", "1"]
    interrupts(lab.pool, (method, 2))
    ran = pool_command(*words, "--json")
    assert ran.status == 130 and states(ran) == dict(zip(clones, expected))
    assert "Repeat the command to resume." in facts(ran)["error"]["disk_state"]
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
def test_ctrl_c_at_any_time_a_kill_and_a_closed_terminal_leave_no_lock(lab, pool_command, interrupts, number, moments):
    """Of `timeout`, of systemd, of an SSH connection that was lost: what was done is said, and no lock stays."""
    clone, before = lab.clone("Production"), signal.getsignal(number)
    interrupts(lab.pool, *moments, number=number)
    ran = pool_command("attach", clone, "--yes")

    assert ran.status == 130 and ("Repeat the command to resume." in ran.err or moments == [RELEASE])
    assert signal.getsignal(number) == before and locks(lab) == []
    assert pool_command("attach", clone, "--yes").status == 0


@pytest.mark.processes
def test_several_at_once_that_are_interrupted(lab, pool_command, interrupts):
    """What comes of the others when the session has ended is not told: it is not known."""
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    interrupts(lab.pool, ("Async.PBD.plug", 2))
    ran = pool_command("attach", *clones, "--yes", "--json")
    assert ran.status == 130 and "Repeat the command to resume." in ran.err
    assert set(states(ran)) == set(clones) and "failed" not in {state for state, _ in states(ran).values()}


@pytest.mark.processes
def test_discard_that_is_interrupted_says_how_far_each_copy_is(lab, pool_command, interrupts, monkeypatch):
    monkeypatch.setattr(jobs, "MOST", 1)
    for name in ("Production", "Testing"):
        pool_command("attach", lab.clone(name), "--yes", "--name", "{sr} copy", "--leave-others")
    before = lab.pool.db.refs("SR")
    interrupts(lab.pool, ("SR.forget", 2))
    ran = pool_command("discard", "--all", "--yes", "--json")
    assert ran.status == 130 and len(lab.pool.db.refs("SR")) == len(before) - 1
    found = {name.split('"')[1]: state for name, (state, _) in states(ran).items()}
    assert found == {"Production copy": "done", "Testing copy": "under way"}
    assert pool_command("discard", "--all", "--yes").status == 0 and len(lab.pool.db.refs("SR")) == len(before) - 2


@pytest.mark.parametrize("words", [["attach", "--all"], ["discard", "--all"]])
def test_at_the_question_nothing_was_changed(lab, pool_command, monkeypatch, type_in, words):
    pool_command("attach", lab.clone("Production"), "--yes")
    lab.clone("Testing")
    before = lab.summary()

    def stopped(*_):
        raise KeyboardInterrupt

    for module in (pool_luns, pool_discard):
        monkeypatch.setattr(module, "ask", stopped)
    type_in("")
    ran = pool_command(*words)
    assert ran.status == 130 and ran.err.endswith("Interrupted. Nothing was changed.\n")
    assert lab.summary() == before


def test_one_of_several_that_fails_is_9_and_a_single_one_its_own_status(lab, world, pool_command):
    bad = lab.clone("Production")
    world.fail["sr_create", bad] = NotFound("The LUN did not appear.", "ISCSIDevice")
    assert pool_command("attach", bad, "--yes").status == 3

    lab.clone("Testing")
    ran = pool_command("attach", "--all", "--yes", "--json")
    assert ran.status == 9
    assert [lun["status"] for lun in facts(ran)["luns"]] == ["failed", "failed"]
    assert "did not appear" in facts(ran)["luns"][0]["error"]
    assert "is introduced but not plugged" in facts(ran)["luns"][1]["error"]

    ran = pool_command("attach", "--all", "--yes", "--json", "--leave-others")
    assert ran.status == 9
    assert [lun["status"] for lun in facts(ran)["luns"]] == ["failed", "attached"]


def test_somebody_is_asked(lab, pool_command, type_in):
    clone = lab.clone("Production")
    type_in("no\n")
    ran = pool_command("attach", clone)
    assert ran.status == 4 and "Attach 1 LUN? [y/N]" in ran.err and lab.world.state(clone) == "clean"

    type_in("y\n")
    assert pool_command("attach", clone).status == 0
    type_in("y\n")
    ran = pool_command("discard", "--all")
    assert ran.status == 0 and "Discard Production" in ran.err


def test_the_question_counts_what_there_is_to_do(lab, pool_command, type_in):
    clones = [lab.clone(name) for name in ("Production", "Testing")]
    pool_command("attach", clones[0], "--yes", "--leave-others")
    type_in("y\n")
    ran = pool_command("attach", "--all")
    assert ran.status == 0 and "Attach 1 LUN? [y/N]" in ran.err
    assert f"{clones[0]}: already attached: nothing to do" in ran.err

    type_in("")
    ran = pool_command("attach", "--all")
    assert ran.status == 0 and not ran.err, "nobody is asked for nothing"
    assert ran.out.count(": already attached ") == 2


def test_a_host_that_is_down_is_not_promised(lab, pool_command, type_in):
    clone = lab.clone("Production")
    lab.pool.go_down(lab.pool.hosts[1])
    ran = pool_command("attach", clone, "--dry-run")
    assert "; plug on xs1; scan;" in ran.out and "host xs2 is down: repeat the command when the host is up" in ran.out
    assert ran.status == 9, "as the run"
    pool_command("attach", clone, "--yes")
    ran = pool_command("attach", clone, "--dry-run")
    assert ran.status == 9 and "already attached on all hosts that are up; host xs2 is down" in ran.out
    type_in("")
    ran = pool_command("attach", clone)
    assert ran.status == 9 and "[y/N]" not in ran.err and "xs2: down; repeat the command when the host is up" in ran.out


def test_what_could_not_be_looked_at_is_in_the_dry_run(lab, world, pool_command):
    bad, good = lab.clone("Testing"), lab.clone("Production")
    world.fail["sr_probe", bad] = NotFound("The LUN did not appear.", "ISCSIDevice")
    ran = pool_command("attach", "--all", "--dry-run")
    assert f"{good}: resignature; " in ran.out and f"{bad}: {bad} was skipped" in ran.out
    rows = facts(pool_command("attach", "--all", "--dry-run", "--json"))["would"]
    assert [(row["scsi_id"], bool(row["steps"]), bool(row["error"])) for row in rows] == [
        (good, True, False),
        (bad, False, True),
    ]


def test_the_question_tells_what_vms_lose(lab, pool_command, type_in):
    pool_command("attach", lab.clone("Production"), "--yes", "--name", "copy")
    db = lab.pool.db
    vm = db.create("VM", name_label="payroll")
    db.create("VBD", VM=vm, VDI=db.refs("VDI", SR=db.refs("SR", name_label="copy")[0])[0])
    type_in("no\n")
    ran = pool_command("discard", "copy")

    assert ran.status == 4
    assert "These halted VMs lose their disks on the copy: payroll. --with-vms destroys" in ran.err
    assert "has made. Discard copy? [y/N]" in ran.err
    type_in("y\n")
    assert pool_command("discard", "copy").status == 0


def test_where_nobody_can_be_asked_it_says_so(lab, pool_command):
    for words in (["attach", "--all"], ["discard", "--all"]):
        ran = pool_command(*words, "--json")
        assert ran.status == 2 and "use --yes, or --dry-run to see the plan" in ran.err


def test_a_copy_that_is_gone_is_done(lab, pool_command):
    uuid = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
    ran = pool_command("discard", uuid, "--yes")

    assert ran.status == 0 and ran.out == f"{uuid}: not in the pool\n"
    assert pool_command("discard", "no such name", "--yes").status == 3
    assert pool_command("discard", "--all", "--yes").out == "The pool has no copies.\n"


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Give a subcommand"),
        (["luns", "--password-file", "/nowhere"], "/nowhere cannot be read"),
        (["luns", "--chap-user", "alice"], "need each other"),
        (["attach", "--all", "--yes", "--name", ""], "--name is empty"),
        (["luns", "--target", TARGET, "--port", "65536"], "--port '65536' is not a port"),
    ],
)
def test_what_cannot_be_meant_is_2(lab, pool_command, words, said):
    if "--name" in words:
        lab.clone("Production")
    ran = pool_command(*words)

    assert ran.status == 2 and said in ran.err


def test_a_password_is_needed_from_afar(lab, pool_command, monkeypatch, tmp_path):
    monkeypatch.delenv("XENSERVER_PASSWORD")
    assert "The password is missing" in pool_command("luns").err

    (tmp_path / "password").write_text(lab.pool.api.password + "\n")
    assert pool_command("luns", "--password-file", tmp_path / "password").status == 0
    (tmp_path / "password").write_text("wrong\n")
    ran = pool_command("luns", "--password-file", tmp_path / "password")
    assert ran.status == 6 and "does not accept this user and password" in ran.err and "wrong" not in ran.err


def test_what_could_not_be_looked_at_is_9_and_in_the_json(lab, world, pool_command):
    world.add(TARGET, "iqn.2026-01.test:refuses", sr_disk("x1"), chap=("bob", "other word"))
    bad, good = lab.clone("Testing"), lab.clone("Production")
    world.fail["sr_probe", bad] = NotFound("The LUN did not appear.", "ISCSIDevice")
    ran = pool_command("attach", "--all", "--yes", "--json", "--target", TARGET)
    rows = {row["scsi_id"]: row for row in facts(ran)["luns"]}

    assert ran.status == 9 and {scsi_id: row["status"] for scsi_id, row in rows.items()} == {
        good: "attached",
        bad: "failed",
        None: "failed",
    }
    assert "did not appear" in rows[bad]["error"] and "iqn.2026-01.test:refuses" in rows[None]["error"]
    ran = pool_command("luns", "--target", TARGET)
    assert f"The LUNs behind {TARGET} iqn.2026-01.test:refuses are unknown" in ran.out


def test_what_may_be_another_pools_is_left_out_with_a_word(lab, world, pool_command):
    lab.clone("Production")
    theirs = world.add(TARGET, IQN, sr_disk("their production"))
    ran = pool_command("attach", "--all", "--yes")

    assert ran.status == 0 and f"{theirs} is skipped" in ran.err and theirs not in ran.out
    assert pool_command("attach", theirs, "--yes").status == 4
    uuid = world.sr_uuid(theirs)
    assert pool_command("attach", "--clones-of", uuid, "--foreign", "--yes").status == 0
    assert world.sr_uuid(theirs) != uuid


def test_chap_of_the_command_line(lab, world, pool_command, tmp_path):
    (tmp_path / "chap").write_text("a secret word\n")
    scsi_id = world.add("10.0.0.6", "iqn.2026-01.test:x", sr_disk("guarded"), chap=("alice", "a secret word"))
    chap = ["--target", "10.0.0.6", "--chap-user", "alice", "--chap-password-file", tmp_path / "chap"]
    ran = pool_command("attach", scsi_id, "--yes", "--foreign", *chap)
    assert ran.status == 0 and "Secret" not in ran.err
    assert lab.pool.secrets() == ["a secret word"] * 2, "those of the PBDs"
    assert not any(call.startswith("secret.get_all_records") for call in lab.pool.api.calls)


def killed(lab):
    """A Secret that a run has left which was killed long ago."""
    return lab.pool.db.create("secret", value="x", other_config={"relvmoiscsi:run": "20260101T000000Z one"})


def test_what_killed_runs_have_left_is_cleaned_where_somebody_says_so(lab, pool_command):
    clone, left = lab.clone("Production"), killed(lab)
    assert not pool_command("luns").err
    ran = pool_command("attach", clone, "--dry-run", "--clean-secrets")
    assert "1 Secrets of killed runs would be destroyed" in ran.err and left in lab.pool.db.refs("secret")

    ran = pool_command("attach", clone, "--yes", "--clean-secrets")
    assert "1 Secrets of killed runs were destroyed" in ran.err and left not in lab.pool.db.refs("secret")


def test_killed_runs_are_cleaned_up_after_where_no_target_is_asked(lab, world, pool_command):
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    left = killed(lab)
    assert "1 Secrets of killed runs were destroyed" in pool_command("luns", "--hba", "--clean-secrets").err
    assert left not in lab.pool.db.refs("secret")


def test_a_pool_without_an_iscsi_target_is_told_of_hba(world, name_pool, pool_command):
    with world.pool() as pool:
        name_pool(pool)
        ran = pool_command("luns")
    assert ran.status == 2 and "give --target, or --hba" in ran.err


@pytest.mark.parametrize("words", [["--target", "10.9.9.9"], ["--target", TARGET, "--iqn", "iqn.2026-01.test:no"]])
def test_a_target_that_is_not_there_is_3(lab, pool_command, words):
    assert pool_command("luns", *words).status == 3


def test_an_sr_that_is_there_keeps_its_name_and_that_is_said(lab, pool_command):
    clone = lab.clone("Production")
    assert pool_command("attach", clone, "--yes", "--name", "one").err.count("--name") == 0
    ran = pool_command("attach", clone, "--yes", "--name", "two")
    assert ran.status == 0 and f'{clone}: the SR "one" keeps its name; --name is for new SRs.' in ran.err


def test_the_answer_is_not_lost_when_secrets_cannot_be_cleaned(lab, pool_command):
    clone = lab.clone("Production")

    def before(method, params):
        if method == "secret.get_all":
            raise XenError("RBAC_PERMISSION_DENIED", method, "No permission in user session")

    lab.pool.api.before = before
    ran = pool_command("attach", clone, "--yes", "--json", "--clean-secrets")
    assert ran.status == 0 and facts(ran)["luns"][0]["status"] == "attached"
    assert "could not be destroyed: The user of this session may not call secret.get_all" in ran.err


def test_the_password_of_one_array_is_not_shown_to_all(lab, pool_command, tmp_path):
    (tmp_path / "chap").write_text("a secret word\n")
    ran = pool_command("luns", "--chap-user", "alice", "--chap-password-file", tmp_path / "chap")

    assert ran.status == 2 and "--chap-user needs --target" in ran.err


@pytest.mark.parametrize("words", [("--iqn", IQN), ("--port", "3260"), ("--hba", "--iqn", IQN)])
def test_what_narrows_a_target_is_an_error_without_one(lab, pool_command, words):
    lab.clone("Production")
    before = list(lab.pool.api.calls)

    ran, listed = pool_command("attach", "--all", "--yes", *words), pool_command("luns", *words)

    assert (ran.status, listed.status) == (2, 2)
    assert "--iqn and --port need --target" in ran.err and "--iqn and --port need --target" in listed.err
    assert lab.pool.api.calls == before


def test_without_a_terminal_steps_are_lines(lab, pool_command):
    clone = lab.clone("Production")
    ran = pool_command("attach", clone, "--yes")

    assert [line for line in ran.err.splitlines() if clone in line] == [
        f"relvmoiscsi: {clone} resignature started",
        f"relvmoiscsi: {clone} resignature finished",
        f"relvmoiscsi: {clone} attach started",
        f"relvmoiscsi: {clone} attach finished",
    ]
    assert not pool_command("attach", clone, "--yes", "--json").err


def test_hostile_names_do_not_reach_the_terminal(lab, pool_command):
    lab.pool.db.set("SR", lab.originals["Production"][1], "name_label", "\x1b[31mred")
    lab.clone("Production")

    assert "\x1b" not in pool_command("luns").out + pool_command("attach", "--all", "--yes").out


class Stream:
    """A terminal that remembers."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_in_a_terminal_there_is_a_bar_for_each_lun_at_work(monkeypatch):
    bars = []

    class Tqdm:
        def __init__(self, **options):
            self.options, self.steps, self.is_closed = options, 0, False
            bars.append(self)

        def update(self, steps):
            self.steps += steps

        def close(self):
            self.is_closed = True

    monkeypatch.setattr(progress, "_tqdm", lambda: Tqdm)
    with progress.shown(Stream(), 2) as tell:
        tell("a", "resignature", "begun")
        tell("b", "resignature", "begun")
        tell("a", "resignature", "over")
        tell("a", "attach", "begun")

    assert [bar.options["position"] for bar in bars] == [0, 1, 2, 1]
    assert bars[0].steps == 1 and all(bar.is_closed for bar in bars)


def test_without_the_library_a_terminal_has_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    stream = Stream()
    with progress.shown(stream, 1) as tell:
        tell("a", "attach", "begun")

    assert stream.text == "relvmoiscsi: a attach started\n"


def test_without_the_library_the_lines_of_a_terminal_have_the_remaining_time(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(wording, "ESTIMATE_SECONDS", 0)
    stream = Stream()
    with progress.shown(stream, 1) as tell:
        for step, how in (("resignature", "begun"), ("resignature", "over"), ("attach", "begun"), ("attach", "over")):
            tell("a", step, how)

    lines = [line.rpartition(", ") for line in stream.text.splitlines()]
    assert [(line, left.endswith(" left")) for line, _, left in lines] == [
        ("", False),
        ("relvmoiscsi: a resignature finished", True),
        ("relvmoiscsi: a attach started", True),
        ("", False),
    ]


# --- secrets


@pytest.fixture
def orphan(lab):
    """A Secret that a call has left, with a password that no SR has any more."""
    return lab.pool.db.create("secret", value="of a volume")


@pytest.fixture
def password(tmp_path):
    path = tmp_path / "password"
    path.write_text("of a volume\n")
    return "--chap-password-file", path


def test_secrets_of_nobody_are_listed_and_left(lab, pool_command, orphan, password):
    uuid = lab.pool.db.get("secret", orphan, "uuid")

    ran = pool_command("secrets", *password)
    assert (ran.status, ran.out.splitlines()[0]) == (0, uuid)
    assert "1 Secrets hold a CHAP password and are unused; --remove destroys the Secrets." in ran.out
    assert facts(pool_command("secrets", "--json", *password)) == {"secrets": [uuid], "removed": False}
    assert "no unused Secret" in pool_command("secrets").out
    assert lab.pool.db.exists("secret", orphan)


def test_secrets_are_removed_after_a_second_look(lab, pool_command, orphan, password, monkeypatch):
    """The one of a call that was under way is gone, or named, by then."""
    young, waits = lab.pool.db.create("secret", value="of a volume"), []

    def sleep(seconds):
        waits.append(seconds)
        lab.pool.db.set("pool", lab.pool.pool, "other_config", {"call": young})

    monkeypatch.setattr(pool_secrets.time, "sleep", sleep)
    ran = pool_command("secrets", "--remove", "--yes", *password)

    assert (ran.status, ran.out, waits) == (0, "1 Secrets were destroyed.\n", [300.0])
    assert lab.pool.db.exists("secret", young) and not lab.pool.db.exists("secret", orphan)


def test_secrets_are_not_removed_without_a_yes(lab, pool_command, orphan, password, type_in, monkeypatch):
    monkeypatch.setattr(pool_secrets.time, "sleep", lambda _: pytest.fail("nobody has agreed"))
    assert pool_command("secrets", "--remove", *password).status == 2
    type_in("no\n")
    ran = pool_command("secrets", "--remove", *password)

    assert ran.status == 4 and lab.pool.db.get("secret", orphan, "uuid") in ran.err
    assert lab.pool.db.exists("secret", orphan)


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


@pytest.mark.parametrize("more", [["--yes"], ["--dry-run"]])
def test_a_locked_copy_is_refused_before_anybody_is_asked(lab, pool_command, locked, more):
    ran = pool_command("discard", locked.sr_uuid, *more)
    assert ran.status == 4 and f"`relvmoiscsi pool unlock {locked.scsi_id}`" in ran.err
    lab.pool.storage.pbd_unplug("", lab.pool.db.refs("PBD", SR=lab.sr(locked.sr_uuid)[0])[1])
    ran = pool_command("attach", locked.scsi_id, *more)
    assert ran.status == 4 and "Another client has locked" in ran.err
    assert lab.pool.db.refs("SR", uuid=locked.sr_uuid) and len(locks(lab)) == 1


@pytest.mark.parametrize("named", ["sr_uuid", "name", "scsi_id"])
def test_the_command_that_breaks_a_lock(lab, pool_command, type_in, locked, named):
    ran = pool_command("unlock", getattr(locked, named), "--dry-run")
    assert ran.status == 0 and "would be unlocked; it is locked by `relvmoiscsi pool restore` of" in ran.out
    type_in("n\n")
    ran = pool_command("unlock", getattr(locked, named))
    assert ran.status == 4 and "A live run stops when it loses the lock. Break the lock? [y/N]" in ran.err
    assert len(locks(lab)) == 1
    ran = pool_command("unlock", getattr(locked, named), "--yes", "--json")
    (row,) = json.loads(ran.out)["unlocked"]
    assert ran.status == 0 and row["what"] == locked.scsi_id and row["doing"] == "restore" and locks(lab) == []
    ran = pool_command("unlock", getattr(locked, named), "--yes")
    assert ran.status == 3 and "There is no lock on" in ran.err
    assert pool_command("discard", locked.sr_uuid, "--yes").status == 0


def test_a_lock_that_goes_while_somebody_is_asked_is_told(lab, pool_command, locked, monkeypatch):
    def released(*_):
        for key in locks(lab):
            lab.pool.db.remove_from("pool", lab.pool.pool, "other_config", key)

    monkeypatch.setattr(pool, "ask", released)
    ran = pool_command("unlock", locked.scsi_id, "--yes")
    assert (ran.status, ran.out) == (0, f"{locked.scsi_id}: the lock has gone meanwhile. Nothing was changed.\n")


def test_nothing_is_locked_when_a_command_has_ended(lab, pool_command):
    clone = lab.clone("Production")
    assert pool_command("attach", clone, "--yes").status == 0 and locks(lab) == []
    assert pool_command("discard", "--all", "--yes").status == 0 and locks(lab) == []
