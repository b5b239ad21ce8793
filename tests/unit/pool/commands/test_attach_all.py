# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool attach --all` of each night: what it says of each LUN, and what to do next."""

import pytest

from kit.build_lvm import replace_in_text
from kit.pool_lab import IQN, TARGET, sr_disk
from kit.sparse import SparseDisk
from relvmoiscsi.pool.luns import UNMAP


@pytest.fixture
def luns(lab, clone):
    """What is said of each LUN that is not attached; the last LUN is damaged."""
    (production, _), (testing, _) = lab.originals["Production"], lab.originals["Testing"]
    foreign, empty = lab.world.add(TARGET, IQN, sr_disk("theirs")), lab.world.add(TARGET, IQN, SparseDisk(1 << 24))
    lost = lab.clone("Production")
    replace_in_text(lab.world.lun(lost).disk, b"physical_volumes", b"physical_nothing")
    return {
        production: "skipped: original, 'Production'. The pool uses this LUN as the SR.",
        testing: "skipped: original, 'Testing'. The pool uses this LUN as the SR.",
        foreign: "skipped: 'test SR', unknown to this pool; ",
        empty: "skipped: empty; ",
        lost: "Its state is damaged: ",
    }


@pytest.mark.parametrize("words", [("--all",), ("--clones-of", "Production")])
def test_each_run_says_of_each_lun_that_it_does_not_attach_why(luns, clone, pool_command, words):
    """Once a copy was attached, the originals and the empty LUNs had no line."""
    for night in range(3):
        would, ran = (pool_command("attach", *words, more, "--leave-others") for more in ("--dry-run", "--yes"))
        for each, verb in ((would, "would be "), (ran, "was ")):
            told = " ".join(each.out.split())
            assert each.status == 9 and all(told.count(scsi_id) >= 1 for scsi_id in luns)
            assert all(f"{scsi_id} {verb}{why}" in told for scsi_id, why in luns.items() if "skipped" in why), night
        *_, (lost, why) = luns.items()
        assert f"{lost}: would fail: {why}" in would.out and f"{lost}: failed\n  {why}" in ran.out
        assert f"{clone}: {'already ' if night else ''}attached" in ran.out


def test_a_quiet_night_names_the_luns_about_which_a_person_decides_and_no_original(luns, pool_command):
    _production, _testing, foreign, _empty, lost = luns
    for more in ("--yes", "--dry-run"):
        ran = pool_command("attach", "--all", "--leave-others", more, "-q")
        named = {scsi_id for scsi_id in luns if scsi_id in ran.err}
        assert (ran.status, ran.out, named) == (9, "", {foreign, lost})


def test_a_lun_has_the_same_words_in_the_plan_and_in_both_forms_of_the_result(luns, pool_command):
    would = pool_command("attach", "--all", "--dry-run", "--json").json["would_attach"]
    rows = pool_command("attach", "--all", "--yes", "--json").json["attach_results"]
    plan, done = ({row["scsi_id"]: row["problem"] for row in each} for each in (would, rows))
    planned = {row["scsi_id"]: row["status"] for row in would}
    for scsi_id, why in luns.items():
        (status,) = [row["status"] for row in rows if row["scsi_id"] == scsi_id]
        assert status == ("skipped" if "skipped" in why else "failed")
        assert planned[scsi_id] == ("skipped" if status == "skipped" else "would fail")
        assert plan[scsi_id] == done[scsi_id] and plan[scsi_id].startswith(why.replace("skipped: ", ""))


def test_a_plan_has_the_status_that_the_run_will_have(lab, clone, pool_command):
    def status(*more):
        (row,) = pool_command("attach", clone, "--dry-run", "--json", *more).json["would_attach"]
        return row["status"]

    xs2 = lab.pool.hosts[1]
    assert status() == "would be attached"
    lab.pool.go_down(xs2)
    assert status() == "would be partial"
    assert pool_command("attach", clone, "--yes").status == 9 and status() == "would be partial"
    lab.pool.come_back(xs2)
    assert pool_command("attach", clone, "--yes").status == 0 and status() == "already attached"


def test_of_a_lun_that_was_not_read_nobody_says_that_it_has_no_records(lab, clone, pool_command):
    """An attached copy with the records of two VMs had the same [] as a clone without any."""

    def names():
        return {row["scsi_id"]: row["saved_vm_names"] for row in pool_command("luns", "--json").json["pool_luns"]}

    assert names() == {clone: [], **{scsi_id: None for scsi_id, _ in lab.originals.values()}}
    assert pool_command("attach", clone, "--yes").status == 0 and names()[clone] is None


def test_the_next_step_of_each_copy_works_as_it_is_printed_and_is_the_same_each_time(lab, clone, pool_command, type_in):
    """All had the network `night`: the clones of one VM were on one network, with the same addresses."""
    lab.vm("web", lab.vdi("Production", "root disk")[0], networks=[lab.network("office")])
    lab.vm("db", lab.vdi("Testing", "data")[0], networks=[lab.network("other")])
    clones = [clone, lab.clone("Production"), lab.clone("Testing")]
    lab.pool.go_down(lab.pool.hosts[1])
    first, again = (pool_command("attach", "--all", "--yes").out.partition("\nnext: ")[2] for _ in range(2))
    assert sorted(first.split()) == sorted(again.split()) and len(first.splitlines()) == len(clones)
    for line in first.splitlines():
        type_in("y\n")
        ran = pool_command(*line.split()[2:])
        assert ran.status == 0 and "conflict" not in ran.err and ran.out.count("cloned") == 1, ran.err
    networks = [network for network in lab.pool.db.records("network").values() if network["VIFs"]]
    assert [len(network["VIFs"]) for network in networks if network["name_label"].startswith("night-")] == [1, 1, 1]


def test_luns_and_the_log_say_what_to_do_with_a_damaged_clone(luns, clone, pool_command, tmp_path):
    *_, lost = luns
    told = " ".join(pool_command("luns").out.split())
    assert f"from the array. {UNMAP} " in told and ".;" not in told
    dry, ran = (
        pool_command("attach", "--all", *more) for more in (["--dry-run"], ["--yes", "--log", tmp_path / "night.log"])
    )
    assert (dry.status, ran.status) == (9, 9) and f"{clone}: failed No host can plug" in " ".join(ran.out.split())
    planned = " ".join(dry.out.split())
    assert "--leave-others. Its SR changed 2026-" in planned and ".;" not in planned
    (line,) = [line for line in (tmp_path / "night.log").read_text().splitlines() if f"result: {lost}: failed" in line]
    assert line.endswith(UNMAP)
