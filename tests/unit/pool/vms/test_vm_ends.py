# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever was cut, and whichever end a person tries first: the commands of the answers lead out in two steps."""

import re
import shlex

import pytest

from kit.advised import commands_in
from kit.pool_fakes import until
from kit.pool_verbs import bring_back, keep, take_home, undo, unlock
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool.connection import Where

ENDS = ("restore", "--undo", "--home", "--keep")
ALL_CUTS = {"restore": bring_back, "undo": undo, "home": take_home, "keep": keep}


@pytest.fixture
def after(halted, name_pool, command):
    """`after(words)`: (status, what a person reads) of `relvmoiscsi pool WORDS --yes`."""
    name_pool(halted.lab.pool)

    def run(words):
        ran = command("pool", *words, "--yes")
        return ran.status, ran.out + ran.err

    return run


def words_of(day, end):
    on_copy = ["--on-copy"] if end == "--keep" else []
    return ["restore", day.copy.sr_uuid, "web"] if end == "restore" else ["restore", end, "web", *on_copy]


def steps_of(told, program):
    return [shlex.split(command)[1:] for command in commands_in(told) if command.startswith(program)]


class Watch:
    """The three states of the disks of "web", by device: before the restore, on the copy, and at home."""

    def __init__(self, day):
        self.day = day
        self.old = {device: day.uuid(vdi) for device, vdi in (("0", day.root), ("1", day.data))}
        self.number = len(day.db.records("VDI"))

    def dates(self):
        """The date of each disk of the VM: "none" for a missing disk."""
        has = {device: uuid for device, (_, uuid) in self.day.lab.disks_of(self.day.web).items()}
        return {"before" if has.get(at) == self.old[at] else "since" if at in has else "none" for at in self.old}

    def is_whole(self):
        return len(self.dates()) == 1 and "none" not in self.dates()

    def has_all(self):
        """Is each disk of before there, and for each disk of the copy this disk or the one it became at home?"""
        there = {vdi["uuid"] for vdi in self.day.db.records("VDI").values()}
        return there.issuperset(self.old.values()) and len(there) >= self.number


@pytest.mark.states
@pytest.mark.parametrize("cut", ALL_CUTS)
def test_whatever_was_cut_the_commands_of_each_answer_lead_out(halted, deaths, after, cut):
    watch = Watch(halted)
    if cut != "restore":
        bring_back(halted)
    # the first command of a person, and which command of each answer the person takes
    ways = [(end, turn) for end in ENDS for turn in (0, 1)]
    for first, turn in deaths(lambda: ALL_CUTS[cut](halted), *ways):
        halted.lab.later()
        until(lambda: halted.lab.pool.is_at_rest)
        words, answers = words_of(halted, first), []
        for _ in range(3):
            status, told = after(words)
            answers.append((words, status, told))
            trace = "\n".join(map(str, answers))
            assert watch.has_all(), trace
            assert watch.is_whole() or not steps_of(told, "xe vm-start"), trace
            for step in steps_of(told.partition("next: ")[2], "relvmoiscsi pool discard"):
                assert watch.is_whole() and not {"--with-vms"} & set(step), trace
            ends = [step[1:] for step in steps_of(told, "relvmoiscsi pool restore")]
            if status == 0 or not ends:
                break
            words = ends[turn % len(ends)]
        is_free = not halted.db.get("VM", halted.web, "blocked_operations")
        is_refused = cut in ("home", "keep") and not ends  # the restore is over
        assert (status == 0 or is_refused) and watch.is_whole() and is_free, trace


@pytest.mark.parametrize("cut", [bring_back, undo], ids=["restore", "undo"])
@pytest.mark.parametrize("call", ["VBD.destroy", "VBD.create"])
def test_a_cut_swap_is_ended_by_the_same_restore_or_undo_and_no_answer_names_another_end(halted, after, cut, call):
    """--home led to --keep, and --keep to --home. After --keep, a VM with disks of two dates could be started."""
    if cut is undo:
        bring_back(halted)
    halted.cut(cut, call, 2)
    unlock(halted)
    before = halted.rows()
    for words in (["--home", "web"], ["--keep", "web"], ["--keep", "web", "--on-copy"], ["--keep", "web", "--dry-run"]):
        status, told = after(["restore", *words])
        vm = halted.db.get("VM", halted.web, "uuid")
        again = ["pool", "restore", "--disk", "0,1", "--shutdown", halted.copy.sr_uuid, vm]
        assert status == 4 and "was interrupted" in told
        assert steps_of(told, "relvmoiscsi") == [again, ["pool", "restore", "--undo", vm, "--shutdown"]]
        assert halted.rows() == before
    for step in steps_of(told, "relvmoiscsi"):
        assert after(step[1:])[0] == 0 and Watch(halted).is_whole()


@pytest.mark.parametrize(
    ("hangs", "said"),
    [
        (lambda day: day.hang("0", day.root), "disks of two dates. From before the restore: 0. Others: 1."),
        (lambda day: day.db.destroy("VBD", day.vbd("0")), "lacks the disk 0"),
    ],
)
def test_no_step_starts_a_vm_that_is_kept_with_disks_of_two_dates_or_without_a_disk(halted, after, hangs, said):
    """A person has changed the disks. A copy that may have the only state of a disk is not discarded either."""
    bring_back(halted)
    hangs(halted)
    for more in (["--dry-run"], []):
        status, told = after(["restore", "--keep", "web", "--on-copy", *more])
        assert status == 0 and said in " ".join(told.split())
    assert "the VM is halted. " in told and "next: " not in told and not halted.journal()


def test_where_neither_the_restore_nor_an_undo_can_end_a_cut_swap_it_is_kept(halted, after):
    """A disk of before is gone, and a disk of the copy too."""
    halted.cut(bring_back, "VBD.create", 2)
    unlock(halted)
    halted.db.destroy("VDI", halted.new(halted.data))
    halted.db.destroy("VDI", halted.root)
    vm = halted.db.get("VM", halted.web, "uuid")
    for end in ENDS[:3]:
        status, told = after(words_of(halted, end))
        assert status in (3, 4) and steps_of(told, "relvmoiscsi pool restore") == [["pool", "restore", "--keep", vm]]
    status, told = after(["restore", "--keep", "web", "--on-copy"])
    assert status == 0 and "lacks the disk 1" in told and "next: " not in told


def test_no_step_starts_a_vm_of_an_interrupted_restore_whose_journal_is_gone(halted, after):
    halted.cut(bring_back, "VBD.create")
    unlock(halted)
    halted.set_journal(lambda _: {})
    for end in ENDS[1:3]:
        status, told = after(words_of(halted, end))
        vm = halted.db.get("VM", halted.web, "uuid")
        assert status == 4 and steps_of(told, "relvmoiscsi pool restore") == [["pool", "restore", "--keep", vm]]
    status, told = after(["restore", "--keep", "web"])
    assert status == 0 and "was interrupted" in told and "next: " not in told


def test_a_disk_on_a_copy_outside_of_the_journal_is_one_that_keep_leaves_there(halted):
    """--keep said that the copy was unused, and the disk went with the copy."""
    bring_back(halted, devices=["1"])
    keep(halted)
    bring_back(halted, devices=["0"])
    halted.hang("0", halted.elsewhere())
    halted.refuses(
        lambda day: keep(day, may_stay=[]), "still has disks of the copy.* move the disks to another SR first"
    )
    done = keep(halted)
    assert done.status == "kept as it is" and not done.unused_copies
    assert any(note.startswith("disk 1: ") and "disappears when that copy is discarded" in note for note in done.notes)


def test_an_undo_after_a_cut_asks_before_its_first_change_whether_the_role_may_empty_the_priority(halted):
    """All disks were in their places. The run makes the VBDs again, and a pool-operator had protected the VM."""
    halted.cut(bring_back, "VBD.destroy", 1)
    unlock(halted)
    halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
    halted.lab.pool.api.users["eve"] = ("pw", "vm-admin")
    eve = Where(halted.lab.pool.url, "eve", "pw")
    for more in ({"dry_run": True}, {}):
        said = halted.refuses(lambda day, more=more: undo(day, where=eve, **more), "may not set the priority", Refused)
        assert re.search("Nothing was changed. Use the role pool-operator", said)


@pytest.mark.parametrize("end", [take_home, keep], ids=["home", "keep"])
def test_an_end_that_was_cut_while_it_removed_the_journal_is_not_undone_in_part(halted, end):
    """The first entry was gone, and an undo gave the VM the second disk of before, beside a first one of today."""
    watch = Watch(halted)
    bring_back(halted)
    halted.cut(end, "VM.remove_from_other_config", 4 if end is take_home else 2)
    halted.lab.later()
    with pytest.raises(RelvmoiscsiError):
        undo(halted)
    assert watch.dates() == {"since"}
    assert end(halted).status in ("home", "kept as it is") and watch.dates() == {"since"}
