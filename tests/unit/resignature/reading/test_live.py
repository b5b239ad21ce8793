# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN in use, snapshotted at any instant, becomes the SR that the storage manager's own recovery would have led to.

The LUNs are those of `kit.live`, in every state the builder makes, and the golden ones that a real storage manager
was stopped on. What must come out is said by `support.sm_recovery` of the LUN as it was; what guests read, by
`kit.chains`. Neither shares code with the engine.
"""

import re
from functools import lru_cache
from typing import List, Optional

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
from kit.outcome import Outcome, entropy_of, names_of, resignatured
from kit.sm_recovery import Recovery, recovery
from relvmoiscsi import engine, report
from relvmoiscsi.device import Range
from relvmoiscsi.errors import RelvmoiscsiError

pytestmark = pytest.mark.states

UNFINISHED_KINDS = ("inflate", "clone", "leaf")


class Case:
    """A LUN in use, before and after, and what it had to become."""

    def __init__(self, name: str, outcome: Outcome, expected: Recovery, words: List[str], notes: List[str]):
        self.name, self.outcome, self.expected, self.words, self.notes = name, outcome, expected, words, notes
        self.names = names_of(outcome.ids)

    @lru_cache(maxsize=None)  # noqa: B019  (a case lives as long as the tests)
    def after(self, volume):
        """What a guest reads through a volume that was called so before; None where the chain cannot be read."""
        return guest(flatten, self.outcome.after, self.new(volume))

    def new(self, value):
        """A value with its old identities replaced."""
        return reader.renamed(value, self.names)

    def needed(self):
        """LV names, after the recovery, of the volumes that must be there."""
        return [name for name in self.expected.volumes if name not in self.expected.garbage]


@lru_cache(maxsize=None)
def state(name):
    return STATES[name]()


@lru_cache(maxsize=None)
def image(name):
    """The LUN as it was found; who changes it takes a copy."""
    disk = golden.load_live(name[7:]).disk if name.startswith("golden ") else state(name).built.disk
    disk.freeze()
    return disk


@lru_cache(maxsize=None)
def case(name):
    disk = image(name)
    expected = recovery(disk)
    words = [text.split("_")[1] for text in expected.done] if name.startswith("golden ") else state(name).said()
    return Case(name, resignatured(disk), expected, words, notes_of(disk))


def notes_of(disk):
    return report.inspection_facts("a LUN", engine.inspect(disk))["notes"]


GOLDEN = ["golden " + name for name in golden.LIVE_NAMES]
SOME = some(list(STATES), 20) + some(GOLDEN, 6, lambda name: name.split("_")[0])
IN_VAIN = [name for name in SOME if name not in GOLDEN and state(name).verdict == REFUSED]
CLAIMS = []


def claim(holds):
    """What holds in every state that is not refused: one test asks for all of them, as a case takes long to make."""
    CLAIMS.append(holds)
    return holds


def guest(read, *arguments) -> Optional[Flat]:
    """What a guest reads; None where the chain cannot be read."""
    try:
        return read(*arguments)
    except ChainError:
        return None


# --- what it becomes


@claim
def no_work_of_the_storage_manager_is_left_to_do(found):
    before, after = (
        sorted(one.name for one in sr.journals if one.type not in UNFINISHED_KINDS)
        for sr in (found.outcome.sr_before, found.outcome.sr_after)
    )

    assert [one for one in found.outcome.sr_after.journals if one.type in UNFINISHED_KINDS] == []
    assert sorted(found.new(one) for one in before) == after


@claim
def there_are_the_volumes_that_the_storage_manager_would_have_kept(found):
    there = {lv.name for lv in found.outcome.sr_after.vg.lvs if reader.kind_of(lv.name) in ("vhd", "raw", "qcow2")}

    assert {found.new(volume) for volume in found.needed()} <= there
    assert there <= {found.new(volume) for volume in found.expected.volumes}


@claim
def everything_else_in_the_group_is_carried_along(found):
    def others(vg):
        return {lv.name: lv for lv in vg.lvs if reader.kind_of(lv.name) in ("mgt", "cbt", "other")}

    before, after = others(found.outcome.sr_before.vg), others(found.outcome.sr_after.vg)
    assert {found.new(lv) for lv in before.values()} == set(after.values())


@claim
def through_every_volume_a_guest_reads_what_it_read_before(found):
    for volume in found.needed():
        assert found.after(volume) == guest(found.expected.guest, volume), volume


@claim
def through_every_leaf_a_guest_reads_what_it_has_written(found):
    live = None if found.name in GOLDEN else state(found.name)
    for leaf in live.leaves if live else ():
        (volume,) = [one for one in found.expected.leaves if one.endswith(live.uuid(leaf))]
        assert found.after(volume).blocks == live.guest(leaf).blocks, leaf


@claim
def header_and_locators_agree_on_the_new_name_of_the_parent(found):
    for volume in found.needed():
        if reader.kind_of(volume) != "vhd":
            continue
        vhd = found.outcome.sr_after.vhd(found.new(volume))
        parent = found.expected.parents.get(volume)
        target = (found.outcome.sr_after.vg.name, found.new(parent)) if parent else ("", "")
        assert {vhd.parent, *(locator.target for locator in vhd.locators)} == {target}, volume
        if parent in found.expected.volumes:
            assert [link.doubts for link in links(found.outcome.after, vhd.name)][0] == ()


@claim
def hidden_flags_and_permissions_are_those_of_the_storage_manager(found):
    for volume in found.needed():
        expected, lv = found.expected.volumes[volume], found.outcome.sr_after.vg.lv(found.new(volume))
        is_raw = reader.kind_of(volume) == "raw"
        hidden = "hidden" in lv.tags if is_raw else bool(found.outcome.sr_after.vhd(lv.name).hidden)
        assert (hidden, "WRITE" in lv.status) == (expected.hidden, expected.writable), volume


@claim
def of_every_vhd_libvhd_sees_the_same_disk_as_a_scan_does(found):
    """The footer at the end is its own, or none; it may say another size only where it did before."""
    for vhd in found.outcome.sr_after.vhds:
        allowed = {"same", "invalid"}
        if found.name.startswith("end footer: "):
            allowed |= {"resized", "other"}  # as they were: nothing was under way
        assert vhd.end in allowed, vhd.name


@claim
def the_new_lun_has_no_problem_that_the_old_one_did_not_have(found):
    problems = set(found.outcome.sr_after.problems)

    assert problems <= {found.new(problem) for problem in found.outcome.sr_before.problems}


# --- labels


def labels(sr):
    """What MGT says of each VDI: the last record counts."""
    ignored = ("offset", "uuid")
    return {
        record.uuid: tuple((key, value) for key, value in record.fields if key not in ignored)
        for record in sr.mgt.records
        if not record.deleted and record.uuid
    }


@claim
def every_vdi_keeps_its_label_and_what_it_is_a_snapshot_of(found):
    before, after = labels(found.outcome.sr_before), labels(found.outcome.sr_after)

    for volume in found.needed():
        uuid = volume.rpartition("-OLD_")[2][-36:]
        if uuid in before:
            assert after[found.new(uuid)] == found.new(before[uuid]), volume


@claim
def the_volumes_of_a_completed_snapshot_get_records(found):
    before, after = labels(found.outcome.sr_before), labels(found.outcome.sr_after)
    needed = [volume for volume in found.needed() if volume[-36:] in found.expected.introduced]

    for volume in needed:
        record = dict(after.get(found.new(volume[-36:]), ()))
        if found.name == "clone: no free slot in MGT":
            assert record == {}
            continue
        hidden = found.expected.volumes[volume].hidden
        assert record["vdi_type"] == ("aio" if reader.kind_of(volume) == "raw" else "vhd")
        assert (record["managed"], record["read_only"]) == (("0", "1") if hidden else ("1", "0"))
        assert (record["name_label"] == "base copy") == hidden
    assert set(after) <= set(found.new((*before, *found.expected.introduced)))


def test_a_full_mgt_is_told():
    notes = notes_of(image("clone: no free slot in MGT"))

    assert any("MGT" in note and "full" in note for note in notes)


# --- identities, and the rest of the disk


@claim
def original_and_result_share_no_identity(found):
    shared = reader.identities(found.outcome.before) & reader.identities(found.outcome.after)

    assert shared == (set() if found.name in GOLDEN else set(state(found.name).kept))


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
    disk = image(name)
    return (*reader.layout_of(disk).allowed, *finished_ranges(disk, case(name).expected))


@claim
def nothing_else_on_the_disk_changes(found):
    layout = reader.Layout(allowed_ranges(found.name))
    before, after = found.outcome.before, found.outcome.after

    assert reader.same_guest(before, after, layout), found.outcome.before.differences(found.outcome.after)


@claim
def the_result_is_a_resignatured_sr(found):
    seen = engine.inspect(found.outcome.after)

    assert (seen.state, seen.problem) == (engine.RESIGNATURED, None)


@claim
def it_takes_six_flushes_and_no_more_reads_in_sequence_than_any_lun(found):
    assert found.outcome.result.flushes == 6
    assert found.outcome.result.read_batches <= 9


# --- undo


@claim
def undo_gives_the_lun_back_with_its_unfinished_work(found):
    disk = found.outcome.after.copy()

    result = undo(disk)

    assert result.state == engine.CLEAN
    assert same_but_for(disk, found.outcome.before, free_ring(found.outcome.before))
    assert reader.essence(disk) == reader.essence(found.outcome.before)


# --- what is said


@claim
def a_plan_says_what_will_be_finished(found):
    work, planned = found.expected.done, found.outcome.prepared.lun.work
    sentences, words = list(planned.sentences) if planned else [], found.words if work else []

    assert bool(sentences) == bool(work)
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)
    for word in words:
        assert any(word in sentence for sentence in sentences), (word, sentences)
    assert set(sentences) <= set(found.notes)


@claim
def what_real_programs_tolerate_is_a_note(found):
    is_tolerated = found.name not in GOLDEN and state(found.name).verdict != FINISHED
    for word in found.words if is_tolerated else []:
        assert any(word in note for note in found.notes), (word, found.notes)


@pytest.mark.parametrize("name", [name for name in SOME if name not in IN_VAIN])
def test_it_becomes_what_the_storage_managers_own_recovery_leads_to(name):
    for holds in CLAIMS:
        holds(case(name))


def test_the_end_footers_of_running_vms_are_not_worth_a_word():
    assert not any("footer" in note for note in case("golden running").notes)


@pytest.mark.parametrize("name", ["slot 1 in use", "metadata areas of two generations"])
def test_metadata_that_lvm_tolerates_is_written_anew_everywhere(name):
    found = case(name)
    before, after = (
        [reader.read_mda(disk, area) for area in reader.read_label(disk).mdas]
        for disk in (found.outcome.before, found.outcome.after)
    )

    assert any(area.precommitted for area in before) or len({area.text for area in before}) == 2
    assert not any(area.precommitted for area in after) and len({area.text for area in after}) == 1
    assert found.outcome.sr_after.vg.warnings == ()
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


@pytest.mark.parametrize("name", some(list(CUT), 4, lambda name: name.split()[0]))
def test_a_cut_run_is_the_old_lun_with_its_work_or_the_new_one_without_or_finishes(name):
    original = image(name).copy()

    crash = recorded(original)

    judge = Judge(original, done(original), allowed=allowed_ranges(name))
    assert every_fault(judge, crash, undo_every=CUT[name], **FEW) == []


@pytest.mark.parametrize(
    "name", some(["clone: after_parent_hidden, child", "leaf: after_hidden, child"], 2, lambda _: "")
)
def test_a_cut_undo_brings_the_unfinished_work_back_or_finishes(name):
    original = image(name).copy()
    finished = done(original)

    crash = recorded(finished, undo)

    judge = Judge(original, finished, target=done(finished, run=undo), allowed=allowed_ranges(name), start=finished)
    assert every_fault(judge, crash, undo_every=11, **FEW) == []


def test_the_ranges_that_may_change_are_few():
    """The twin of the test that nothing else changes: what it leaves out is neither a whole volume nor guest data."""
    name = "leaf: after_hidden, child"
    truth = state(name).built.truth

    ranges = finished_ranges(image(name), case(name).expected)

    assert sum(item.length for item in ranges) < 64
    assert not [item for item in ranges for data in truth.guest_ranges if _overlap(item, data)]


def _overlap(one: Range, other: Range) -> bool:
    return one.offset < other.end and other.offset < one.end
