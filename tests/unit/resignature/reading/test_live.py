# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN in use, snapshotted at any instant, becomes the SR that the storage manager's own recovery would have led to.

The LUNs are those of `kit.live`, in every state the builder makes, and the golden ones that a real storage manager
was stopped on. What must come out is said by `support.sm_recovery` of the LUN as it was; what guests read, by
`kit.chains`. Neither shares code with the engine.
"""

import re
from functools import lru_cache
from typing import Optional

import pytest

from kit import golden, reader
from kit.chains import ChainError, Flat, flatten, links
from kit.cuts import (
    Judge,
    done,
    every_fault,
    free_ring,
    recorded,
    same_but_for,
    undo,
)
from kit.examples import WHOLE, some
from kit.live import FINISHED, REFUSED, STATES
from kit.outcome import areas_of, entropy_of, names_of, resignatured
from kit.sm_recovery import recovery
from relvmoiscsi import engine, report
from relvmoiscsi.errors import RelvmoiscsiError

pytestmark = pytest.mark.states

UNFINISHED_KINDS = ("inflate", "clone", "leaf")


@lru_cache(maxsize=None)
def state(name):
    return STATES[name]()


@lru_cache(maxsize=None)
def image(name):
    """The LUN as it was found; who changes it takes a copy."""
    disk = golden.load_live(name[7:]).disk if name.startswith("golden ") else state(name).built.disk
    disk.freeze()
    return disk


def notes_of(disk):
    return report.inspection_facts("a LUN", engine.inspect(disk))["notes"]


class Case:
    """A LUN in use, before and after, and what it had to become."""

    def __init__(self, name):
        self.name, self.is_golden, disk = name, name.startswith("golden "), image(name)
        self.expected, self.notes = recovery(disk), notes_of(disk)
        self.words = [text.split("_")[1] for text in self.expected.done] if self.is_golden else state(name).said()
        self.outcome = resignatured(disk)
        self.names = names_of(self.outcome.ids)
        self.before, self.after = self.outcome.sr_before, self.outcome.sr_after
        #: LV names, after the recovery, of the volumes that must be there
        self.needed = [volume for volume in self.expected.volumes if volume not in self.expected.garbage]

    @lru_cache(maxsize=None)  # noqa: B019  (a case lives as long as the tests)
    def reads(self, volume):
        """What a guest reads through a volume that was called so before; None where the chain cannot be read."""
        return guest(flatten, self.outcome.after, self.new(volume))

    def new(self, value):
        """A value with its old identities replaced."""
        return reader.renamed(value, self.names)


case = lru_cache(maxsize=None)(Case)
GOLDEN = ["golden " + name for name in golden.LIVE_NAMES]
SOME = some(list(STATES), 20) + some(GOLDEN, 6, lambda name: name.split("_")[0])
IN_VAIN = [name for name in SOME if name not in GOLDEN and state(name).verdict == REFUSED]


def guest(read, *arguments) -> Optional[Flat]:
    """What a guest reads; None where the chain cannot be read."""
    try:
        return read(*arguments)
    except ChainError:
        return None


# --- what it becomes: claims that hold in every state that is not refused


def there_is_what_the_storage_manager_would_have_kept_and_no_work_of_it(found):
    before, after = (
        sorted(one.name for one in sr.journals if one.type not in UNFINISHED_KINDS)
        for sr in (found.before, found.after)
    )
    assert [one for one in found.after.journals if one.type in UNFINISHED_KINDS] == []
    assert sorted(found.new(one) for one in before) == after

    there = {lv.name for lv in found.after.vg.lvs if reader.kind_of(lv.name) in ("vhd", "raw", "qcow2")}
    assert {found.new(volume) for volume in found.needed} <= there
    assert there <= {found.new(volume) for volume in found.expected.volumes}

    # everything else in the group is carried along, but for free space that was being trimmed
    before, after = (
        {lv for lv in sr.vg.lvs if reader.kind_of(lv.name) in ("mgt", "cbt", "other")}
        for sr in (found.before, found.after)
    )
    assert {found.new(lv) for lv in before if lv.name != found.before.uuid + "_trim_lv"} == after


def a_guest_reads_what_it_has_written(found):
    """Through every volume what it read before, through every leaf what it has written."""
    for volume in found.needed:
        assert found.reads(volume) == guest(found.expected.guest, volume), volume
    live = None if found.is_golden else state(found.name)
    for leaf in live.leaves if live else ():
        (volume,) = [one for one in found.expected.leaves if one.endswith(live.uuid(leaf))]
        assert found.reads(volume).blocks == live.guest(leaf).blocks, leaf


def parents_flags_and_footers_are_those_of_the_storage_manager(found):
    """Header and locators agree on the new name of the parent. The footer at the end of a VHD is its own, or none; it
    may say another size only where it did before, as nothing was under way.
    """
    for volume in found.needed:
        expected, lv = found.expected.volumes[volume], found.after.vg.lv(found.new(volume))
        is_raw = reader.kind_of(volume) == "raw"
        hidden = "hidden" in lv.tags if is_raw else bool(found.after.vhd(lv.name).hidden)
        assert (hidden, "WRITE" in lv.status) == (expected.hidden, expected.writable), volume
        if reader.kind_of(volume) == "vhd":
            vhd, parent = found.after.vhd(lv.name), found.expected.parents.get(volume)
            target = (found.after.vg.name, found.new(parent)) if parent else ("", "")
            assert {vhd.parent, *(locator.target for locator in vhd.locators)} == {target}, volume
            if parent in found.expected.volumes:
                assert [link.doubts for link in links(found.outcome.after, vhd.name)][0] == ()
    allowed = {"same", "invalid", *(("resized", "other") if found.name.startswith("end footer: ") else ())}
    assert {vhd.end for vhd in found.after.vhds} <= allowed


def labels(sr):
    """What MGT says of each VDI: the last record counts."""
    return {
        record.uuid: tuple((key, value) for key, value in record.fields if key not in ("offset", "uuid"))
        for record in sr.mgt.records
        if not record.deleted and record.uuid
    }


def every_vdi_keeps_its_record_and_the_volumes_of_a_completed_snapshot_get_one(found):
    before, after = labels(found.before), labels(found.after)
    for volume in found.needed:
        uuid = volume.rpartition("-OLD_")[2][-36:]
        if uuid in before:
            assert after[found.new(uuid)] == found.new(before[uuid]), volume

    for volume in [volume for volume in found.needed if volume[-36:] in found.expected.introduced]:
        record = dict(after.get(found.new(volume[-36:]), ()))
        if found.name == "clone: no free slot in MGT":
            assert record == {}
            continue
        hidden = found.expected.volumes[volume].hidden
        assert record["vdi_type"] == ("aio" if reader.kind_of(volume) == "raw" else "vhd")
        assert (record["managed"], record["read_only"]) == (("0", "1") if hidden else ("1", "0"))
        assert (record["name_label"] == "base copy") == hidden
    assert set(after) <= set(found.new((*before, *found.expected.introduced)))


def finished_ranges(disk, expected):
    """What the finishing of work may change beside identities.

    Of the volumes that the work is about: hidden flag and checksum in both footers, and a last sector that is none of
    theirs. Of MGT: free slots.
    """
    vg = reader.read_vg(disk)
    found = []
    before = {vhd.name: vhd for vhd in reader.read_sr(disk).vhds}
    for volume in expected.volumes.values():
        vhd = before.get(volume.found)
        if vhd is None:
            continue
        lv = vg.lv(volume.found)
        end = lv.extents * vg.extent_bytes - 512
        places = []
        if bool(vhd.hidden) != volume.hidden or vhd.end == "other":
            places += [(64, 4), (85, 1), (end + 64, 4), (end + 85, 1)]
        if volume.found in expected.grown:
            places.append((end, 512))
        for offset, length in places:
            found += reader.device_ranges(vg, lv, offset, length)
    mgt = reader.read_sr(disk).mgt
    if expected.introduced or any(text.endswith("finished") for text in expected.done):
        found += reader.device_ranges(vg, vg.lv("MGT"), 0, min(mgt.length + 2048, 4 << 20))
    return tuple(found)


def allowed_ranges(name):
    return (*reader.layout_of(image(name)).allowed, *finished_ranges(image(name), case(name).expected))


def it_is_a_resignatured_sr_and_nothing_else_on_the_disk_changes(found):
    before, after, seen = found.outcome.before, found.outcome.after, engine.inspect(found.outcome.after)

    assert (seen.state, seen.problem) == (engine.RESIGNATURED, None)
    assert set(found.after.problems) <= {found.new(problem) for problem in found.before.problems}
    kept = set() if found.is_golden else set(state(found.name).kept)
    assert reader.identities(before) & reader.identities(after) == kept
    assert reader.same_guest(before, after, reader.Layout(allowed_ranges(found.name))), before.differences(after)
    # and takes no more flushes and reads in sequence than any LUN
    assert found.outcome.result.flushes == 6
    assert found.outcome.result.read_batches <= 9


def undo_gives_the_lun_back_with_its_unfinished_work(found):
    disk, before = found.outcome.after.copy(), found.outcome.before

    assert undo(disk).state == engine.CLEAN

    assert same_but_for(disk, before, free_ring(before))
    assert reader.essence(disk) == reader.essence(before)


def a_plan_says_what_will_be_finished_and_what_real_programs_tolerate_is_a_note(found):
    work, planned = found.expected.done, found.outcome.prepared.lun.work
    sentences = list(planned.sentences) if planned else []

    assert bool(sentences) == bool(work)
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)
    assert [word for word in found.words if work and not any(word in sentence for sentence in sentences)] == []
    assert set(sentences) <= set(found.notes)
    is_tolerated = not found.is_golden and state(found.name).verdict != FINISHED
    assert [word for word in found.words if is_tolerated and not any(word in note for note in found.notes)] == []


CLAIMS = [
    there_is_what_the_storage_manager_would_have_kept_and_no_work_of_it,
    a_guest_reads_what_it_has_written,
    parents_flags_and_footers_are_those_of_the_storage_manager,
    every_vdi_keeps_its_record_and_the_volumes_of_a_completed_snapshot_get_one,
    it_is_a_resignatured_sr_and_nothing_else_on_the_disk_changes,
    undo_gives_the_lun_back_with_its_unfinished_work,
    a_plan_says_what_will_be_finished_and_what_real_programs_tolerate_is_a_note,
]


@pytest.mark.parametrize("name", [name for name in SOME if name not in IN_VAIN])
def test_it_becomes_what_the_storage_managers_own_recovery_leads_to(name):
    """One test asks for all claims, as a case takes long to make."""
    for holds in CLAIMS:
        holds(case(name))


def test_the_end_footers_of_running_vms_are_not_worth_a_word_and_a_full_mgt_is():
    assert not any("footer" in note for note in case("golden running").notes)
    assert any("MGT" in note and "full" in note for note in notes_of(image("clone: no free slot in MGT")))


@pytest.mark.parametrize("name", ["slot 1 in use", "metadata areas of two generations"])
def test_metadata_that_lvm_tolerates_is_written_anew_everywhere(name):
    found = case(name)
    before, after = areas_of(found.outcome.before), areas_of(found.outcome.after)

    assert any(area.precommitted for area in before) or len({area.text for area in before}) == 2
    assert not any(area.precommitted for area in after) and len({area.text for area in after}) == 1
    assert found.after.vg.warnings == ()
    assert any(re.search("LVM|metadata area", note) for note in found.notes)


# --- refused


@pytest.mark.parametrize("name", IN_VAIN)
def test_what_cannot_be_finished_is_refused_by_name_and_nothing_is_written(name):
    disk = image(name).copy()

    with pytest.raises(RelvmoiscsiError) as caught:
        engine.prepare(disk, entropy_of("ids"))

    assert "Nothing was written." in str(caught.value)
    for word in state(name).said():
        assert word in str(caught.value)
    assert disk == image(name) and disk.writes == 0
    assert str(engine.inspect(disk).problem)


# --- power cuts

#: how many cuts of each step are tried
FEW = {"limit": 24, "samples": 4} if WHOLE else {"limit": 8, "samples": 1, "every": 5}
#: unfinished work of each kind and outcome, and what has no journal
CUT = {
    "golden clone_vdi_after_second_snap": 23,
    "golden coaleaf_one_renamed": 23,
    "golden inflate_after_setSize": 23,
    "clone: after_first_snap, raw": 7,
    "clone: after_parent_hidden, child": 7,
    "clone: base without an end footer": 7,
    "leaf: before_coalesce, vhd": 7,
    "leaf: after_hidden, child": 7,
    "leaf: both_renamed, raw": 7,
    "leaf: old_deleted, vhd": 7,
    "inflate: after_setSize, another VHD": 7,
    "leaf, clone and inflate": 11,
    "slot 1 in use": 11,
}


#: of the run, and of an undo of it
TRIED = [(name, False) for name in some(list(CUT), 4, lambda name: name.split()[0])]
TRIED += [(some(["clone: after_parent_hidden, child", "leaf: after_hidden, child"], 2, lambda _: "")[0], True)]


@pytest.mark.parametrize("name, is_undo", TRIED)
def test_a_cut_is_the_old_lun_with_its_work_or_the_new_one_without_or_finishes(name, is_undo):
    original, allowed = image(name).copy(), allowed_ranges(name)
    finished = done(original)
    more = {"target": done(finished, run=undo), "start": finished} if is_undo else {}

    crash = recorded(finished, undo) if is_undo else recorded(original)

    judge = Judge(original, finished, allowed=allowed, **more)
    assert every_fault(judge, crash, undo_every=11 if is_undo else CUT[name], **FEW) == []
