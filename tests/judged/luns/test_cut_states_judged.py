# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2 is shown what power cuts leave, and goes on with it.

Every state in which label or metadata area headers differ is shown. The rest of the ring, which LVM does not read,
comes in more variants than there is time for: RINGS of them are drawn.
"""

import random
from functools import partial

import pytest

from kit import builder, golden
from kit.crash import CrashDisk
from kit.judges import (
    GEOMETRY,
    NEW_LV,
    OLD_HEADER,
    assert_lvm_member,
    dice,
    expected,
    lv_ranges,
    recover,
    undo,
    vg_of,
    whatever_label_version,
    with_new_ids,
)
from kit.reader import read_label, read_sr, read_vg
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import Refused
from relvmoiscsi.resignature.reading.lun_notes import notes

RINGS = 4
SECOND_LV = "LV-0a0b0c0d-0000-4000-8000-000000000002"
DUPLICATE = ("WARNING: Not using device ", " prefers device ")
IN_PROGRESS, CONTENTS, SWITCHED, HEADERS = 2, 3, 4, 5  #: groups of writes that are done


def built(make, **options):
    return make(area=builder.AREA_DEFAULT, **options).disk


LUNS = {
    "golden tree": lambda: golden.load("tree").disk,
    "two areas": partial(built, builder.two_metadata_areas),
    "second area ignored": partial(built, builder.two_metadata_areas, second_area="ignored"),
    "4 KiB sectors, wrapped text": partial(built, builder.wrapped_text, block_size=4096),
    "qcow2": partial(built, builder.qcow2_chain),
    "label of version 0": partial(built, builder.fragmented_locators, ext_version=0, style="2.02"),
    "label in sector 3": partial(built, builder.five_deep_with_raw_root, label_sector=3),
}
OLD_LABEL = "label of version 0"
CURRENT_LABELS = [name for name in LUNS if name != OLD_LABEL]
IGNORED = {"second area ignored": 1}


class Case:
    """A resignature, or the undo of one, that CrashDisk has recorded; `old` and `new` are what LVM sees on a device."""

    def __init__(self, kind, name):
        self.original, ignored = LUNS[name](), IGNORED.get(name, 0)  #: of which the LUN is a clone
        self.run = CrashDisk(self.original)
        prepared = engine.prepare(self.run, dice("new ids"))
        engine.resignature(self.run, prepared)
        vgs = vg_of(self.original), with_new_ids(vg_of(self.original), prepared.plan.run.ids)
        self.old, self.new = (partial(expected, vg, ignored_mdas=ignored) for vg in vgs)
        if kind == "undo":
            self.run, self.old, self.new = CrashDisk(self.run.current), self.new, self.old
            engine.undo(self.run, dice("undo"))
        self.label = read_label(self.original)

    def areas(self):
        """What LVM reads."""
        return [Range(0, 2048), *self.label.mdas]


@pytest.fixture
def case(kind, name):
    return Case(kind, name)


of_any_lun = pytest.mark.parametrize("name", CURRENT_LABELS)
resignatures = pytest.mark.parametrize("kind", ["resignature"])
both_kinds = pytest.mark.parametrize("kind", ["resignature", "undo"])
a_sample = pytest.mark.states("name", few=1)


def lvm_states(case):
    """All cut states of a run that may matter to LVM, as (description, disk), each once."""
    areas = case.areas()
    rings, by_headers = set(), {}
    for description, disk in case.run.crash_images(limit=16, samples=8):
        changed = [part for part in disk.differences(case.run.base) if lies_in(part, areas)]
        ring = tuple((part, disk.peek(part.offset, part.length)) for part in changed)
        if ring not in rings:
            rings.add(ring)
            view = tuple(disk.peek(area.offset, 512 if area.offset else area.length) for area in areas)
            by_headers.setdefault(view, []).append((description, disk))
    picker = random.Random(0)
    for states in by_headers.values():
        yield from states if len(states) <= RINGS else picker.sample(states, RINGS)


def lies_in(part, areas):
    return any(area.offset <= part.offset < area.end for area in areas)


@pytest.mark.states("name")
@pytest.mark.parametrize("name", LUNS)
@both_kinds
def test_after_any_cut_lvm_sees_exactly_the_old_or_exactly_the_new_volume_group(kind, name, case, lvm, loops):
    original, clone = loops(case.original), loops(case.original)
    alone, both = lvm.over(clone.path), lvm.over(original.path, clone.path)
    old, new = (whatever_label_version(vg(clone.path)) for vg in (case.old, case.new))
    warnings = OLD_HEADER if name == OLD_LABEL else ()
    (there,) = lvm.over(original.path).seen(warnings)
    counts = {old: 0, new: 0}

    for description, disk in lvm_states(case):
        clone.put(disk)

        (seen,) = alone.seen(warnings)
        assert whatever_label_version(seen) in (old, new), description
        assert alone("vgck", warnings=warnings) == "", description
        assert_lvm_member(clone.path, seen.pvs[0][1])
        of_both = (*warnings, *DUPLICATE) if seen.name == there.name else warnings
        sights = ((there,), (seen,)) if seen.name == there.name else (tuple(sorted([there, seen])),)
        assert both.seen(of_both) in sights, description
        assert both("vgck", warnings=of_both) == "", description
        counts[whatever_label_version(seen)] += 1

    print("LVM was shown {} times the old volume group and {} times the new one".format(*counts.values()))
    assert min(counts.values()) > 1
    assert original.disk() == case.original


def test_with_a_flush_left_out_lvm_sees_neither(lvm, loops):
    case = Case("resignature", "qcow2")
    case.run = CrashDisk(case.original, dropped_flush=HEADERS)
    engine.resignature(case.run, engine.prepare(case.run, dice("new ids")))
    clone, found = loops(case.original), set()

    for _, disk in lvm_states(case):
        clone.put(disk)
        answer = lvm.over(clone.path).attempt("vgs", "--noheadings", "-o", "vg_name,vg_uuid,vg_seqno")
        found.add((tuple(answer.stdout.split()), answer.stderr))

    assert found > {(vg(clone.path).vg[:3], ()) for vg in (case.old, case.new)}


# -- LVM goes on before we do -----------------------------------------------------------------------------------------


@a_sample
@of_any_lun
@both_kinds
@pytest.mark.parametrize("groups", [SWITCHED, HEADERS])
def test_what_lvm_changes_after_the_commit_is_there_after_recovery(groups, kind, case, lvm, loops):
    original, clone = loops(case.original), loops(case.run.after_group(groups))
    own, both, sector = lvm.over(clone.path), lvm.over(original.path, clone.path), case.label.sector
    new = case.new(clone.path)
    state, judge = (engine.RESIGNATURED, both) if kind == "resignature" else (engine.CLEAN, own)
    geometry = lvm.over(original.path).headers(original.path, sector)
    judge.create(new.name, NEW_LV, "--addtag", "here", extents=2)
    (changed,) = own.seen()

    result = recover(clone)

    assert result.state == clone.inspect().state == state
    assert own.seen() == own.listed() == (changed,)
    assert (changed.vg[:2], int(changed.vg[2])) == (new.vg[:2], int(new.vg[2]) + 1)
    assert changed.lv_names == new.lv_names | {NEW_LV}
    assert set(new.segments) < set(changed.segments)
    assert own("vgck") == judge("vgck") == ""
    headers = own.headers(clone.path, sector)
    assert [headers[key] for key in GEOMETRY] == [geometry[key] for key in GEOMETRY]
    assert_lvm_member(clone.path, new.pvs[0][1])
    own.create(new.name, SECOND_LV)
    own.remove(new.name, NEW_LV)
    assert own("vgck") == ""
    assert own.seen()[0].lv_names == new.lv_names | {SECOND_LV}
    assert original.disk() == case.original


def test_recovery_lands_whatever_lvm_has_committed_in_the_second_area_however_often(lvm, loops):
    case = Case("resignature", "two areas")
    clone = loops(case.run.after_group(SWITCHED))
    own, new = lvm.over(clone.path), case.new(clone.path)
    offsets = []

    while len(offsets) < 2 or min(offsets[1:]) > offsets[0]:  # until its ring has come round
        assert len(offsets) < 100, "the ring does not come round"
        own.create(new.name, NEW_LV)
        disk = clone.disk()
        offsets.append(read_vg(disk).mda.text_offset)
        engine.recover(disk, engine.find_unfinished(disk))
        landed = vg_of(disk)
        assert landed == vg_of(clone.disk())._replace(label=landed.label, mda=landed.mda), len(offsets)
        assert landed.label.mdas == case.label.mdas
        own.remove(new.name, NEW_LV)

    recover(clone)
    (now,) = own.seen()
    assert now._replace(vg=new.vg) == new
    assert own("vgck") == "" and own("pvck", clone.path)


@a_sample
@of_any_lun
@resignatures
@pytest.mark.parametrize("settle", [recover, undo])
@pytest.mark.parametrize("groups", [IN_PROGRESS, CONTENTS])
def test_when_lvm_changes_the_old_volume_group_the_run_is_taken_back_and_the_change_kept(
    groups, settle, case, lvm, loops
):
    clone = loops(case.run.after_group(groups))
    own, old = lvm.over(clone.path), case.old(clone.path)
    own.create(old.name, NEW_LV)
    (changed,) = own.seen()

    result = settle(clone)

    assert result.state == clone.inspect().state == engine.CLEAN
    assert own.seen() == (changed,)
    assert changed.lv_names == old.lv_names | {NEW_LV}
    assert own("vgck") == ""
    assert_lvm_member(clone.path, old.pvs[0][1])
    assert all(lies_in(part, case.areas()) for part in clone.disk().differences(case.original))


def test_undo_leaves_alone_what_others_have_written_to_extents_that_lvm_has_given_them(lvm, loops):
    case = Case("resignature", "golden tree")
    clone = loops(case.run.after_group(CONTENTS))
    own, old = lvm.over(clone.path), case.old(clone.path)
    child = next(vhd.name for vhd in read_sr(case.original).vhds if vhd.locators)
    start = lv_ranges(old, child)[0].offset
    own.remove(old.name, child)
    disk = clone.disk()
    disk.poke(start, b"another guest's data" * 1000)
    clone.put(disk)

    result = undo(clone)

    assert result.state == clone.inspect().state == engine.CLEAN
    assert any("has lost its parent" in note for note in notes(result.lun))  # the volume that is gone was one
    assert clone.disk().peek(start, 20000) == disk.peek(start, 20000)
    assert own("vgck") == ""


@pytest.mark.parametrize("end", [recover, undo])
@pytest.mark.parametrize("groups", [IN_PROGRESS, CONTENTS])
def test_an_undo_that_was_cut_and_then_overtaken_by_lvm_is_taken_back(groups, end, lvm, loops):
    case = Case("undo", "two areas")
    clone = loops(case.run.after_group(groups))
    own = lvm.over(clone.path)
    own.create(case.old(clone.path).name, NEW_LV)
    (changed,) = own.seen()

    if end is undo:
        with pytest.raises(Refused, match="LVM has changed the volume group since"):
            undo(clone)
    else:
        assert recover(clone).state == engine.RESIGNATURED

    assert clone.inspect().state == engine.RESIGNATURED
    assert own.seen() == (changed,) and NEW_LV in changed.lv_names
    assert own("vgck") == ""


@pytest.mark.parametrize("groups", [IN_PROGRESS, CONTENTS, SWITCHED])
@pytest.mark.parametrize("version", [0, 1])
def test_a_cut_run_is_still_known_after_lvm_has_upgraded_an_old_label(version, groups, lvm, loops, monkeypatch):
    old_label = partial(built, builder.two_metadata_areas, ext_version=version, style="2.02")
    monkeypatch.setitem(LUNS, "old label", old_label)
    clone = loops(Case("resignature", "old label").run.after_group(groups))
    lvm.over(clone.path).create(vg_of(clone.disk()).name, NEW_LV, warnings=OLD_HEADER)

    assert clone.inspect().state == engine.UNFINISHED
