# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2 is shown what power cuts leave, and goes on with it.

Every state in which label or metadata area headers differ is shown. The rest of the ring, which LVM does not read,
comes in more variants than there is time for: RINGS of them are drawn.
"""

import random
from functools import partial
from typing import NamedTuple

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
from kit.sparse import SparseDisk
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


class Case(NamedTuple):
    """A run that CrashDisk has recorded, and what LVM should see before and after its commit."""

    original: SparseDisk  #: of which the LUN is a clone
    run: CrashDisk
    old: object  #: device -> SeenVg
    new: object


def recorded(kind, name):
    """A resignature, or the undo of one."""
    original = LUNS[name]()
    run = CrashDisk(original)
    prepared = engine.prepare(run, dice("new ids"))
    engine.resignature(run, prepared)
    old = partial(expected, vg_of(original), ignored_mdas=IGNORED.get(name, 0))
    new = partial(expected, with_new_ids(vg_of(original), prepared.plan.run.ids), ignored_mdas=IGNORED.get(name, 0))
    if kind == "resignature":
        return Case(original, run, old, new)
    back = CrashDisk(run.current)
    engine.undo(back, dice("undo"))
    return Case(original, back, new, old)


@pytest.fixture(params=CURRENT_LABELS)
def name(request):
    return request.param


@pytest.fixture
def case(name):
    return recorded("resignature", name)


def lvm_states(run):
    """All cut states of a run that may matter to LVM, as (description, disk), each once."""
    label = read_label(run.base)
    areas = [Range(0, 2048), *label.mdas]
    headers = [Range(area.offset, 512) for area in areas]
    rings, by_headers = set(), {}
    for description, disk in run.crash_images(limit=16, samples=8):
        changed = [part for part in disk.differences(run.base) if lies_in(part, areas)]
        ring = tuple((part, disk.peek(part.offset, part.length)) for part in changed)
        if ring not in rings:
            rings.add(ring)
            view = tuple(disk.peek(part.offset, part.length) for part in [areas[0], *headers])
            by_headers.setdefault(view, []).append((description, disk))
    picker = random.Random(0)
    for states in by_headers.values():
        yield from states if len(states) <= RINGS else picker.sample(states, RINGS)


def lies_in(part, areas):
    return any(area.offset <= part.offset < area.end for area in areas)


def done(run, groups):
    """The disk after the first so many groups of writes."""
    disk = run.base.copy()
    for group in run.groups[:groups]:
        for block in group:
            disk.poke(block.offset, block.data)
    return disk


@pytest.mark.states("name")
@pytest.mark.parametrize("name", LUNS)
@pytest.mark.parametrize("kind", ["resignature", "undo"])
def test_after_any_cut_lvm_sees_exactly_the_old_or_exactly_the_new_volume_group(kind, name, lvm, loops):
    case = recorded(kind, name)
    original, clone = loops(case.original), loops(case.original)
    alone, both = lvm.over(clone.path), lvm.over(original.path, clone.path)
    old, new = (whatever_label_version(vg(clone.path)) for vg in (case.old, case.new))
    warnings = OLD_HEADER if name == OLD_LABEL else ()
    in_duplicate = (*warnings, *DUPLICATE)
    (there,) = lvm.over(original.path).seen(warnings)
    counts = {old: 0, new: 0}

    for description, disk in lvm_states(case.run):
        clone.put(disk)

        (seen,) = alone.seen(warnings)
        assert whatever_label_version(seen) in (old, new), description
        assert alone("vgck", warnings=warnings) == "", description
        assert_lvm_member(clone.path, seen.pvs[0][1])
        if seen.name == there.name:
            assert both.seen(in_duplicate) in ((there,), (seen,)), description
            assert both("vgck", warnings=in_duplicate) == "", description
        else:
            assert both.seen(warnings) == tuple(sorted([there, seen])), description
            assert both("vgck", warnings=warnings) == "", description
        counts[whatever_label_version(seen)] += 1

    print("LVM was shown {} times the old volume group and {} times the new one".format(*counts.values()))
    assert min(counts.values()) > 1
    assert original.disk() == case.original


def test_with_a_flush_left_out_lvm_sees_neither(lvm, loops):
    original = LUNS["qcow2"]()
    run = CrashDisk(original, dropped_flush=HEADERS)
    prepared = engine.prepare(run, dice("new ids"))
    engine.resignature(run, prepared)
    clone = loops(original)
    good = [
        (vg, ())
        for vg in (
            expected(vg_of(original), clone.path),
            expected(with_new_ids(vg_of(original), prepared.plan.run.ids), clone.path),
        )
    ]

    found = []
    for _, disk in lvm_states(run):
        clone.put(disk)
        answer = lvm.over(clone.path).attempt("vgs", "--noheadings", "-o", "vg_name,vg_uuid,vg_seqno")
        found.append((tuple(answer.stdout.split()), answer.stderr))

    assert set(found) > {(vg.vg[:3], said) for vg, said in good}


# -- LVM goes on before we do -----------------------------------------------------------------------------------------


@pytest.mark.states("name", few=1)
@pytest.mark.parametrize("groups", [SWITCHED, HEADERS])
def test_what_lvm_changes_after_the_commit_is_there_after_recovery(groups, case, lvm, loops):
    original, clone = loops(case.original), loops(done(case.run, groups))
    own, both = lvm.over(clone.path), lvm.over(original.path, clone.path)
    new = case.new(clone.path)
    sector = read_label(case.original).sector
    geometry = lvm.over(original.path).headers(original.path, sector)
    both.create(new.name, NEW_LV, "--addtag", "here", extents=2)
    (changed,) = own.seen()

    result = recover(clone)

    assert result.state == clone.inspect().state == engine.RESIGNATURED
    assert own.seen() == own.listed() == (changed,)
    assert (changed.vg[:2], int(changed.vg[2])) == (new.vg[:2], int(new.vg[2]) + 1)
    assert changed.lv_names == new.lv_names | {NEW_LV}
    assert set(new.segments) < set(changed.segments)
    assert own("vgck") == both("vgck") == ""
    headers = own.headers(clone.path, sector)
    assert [headers[key] for key in GEOMETRY] == [geometry[key] for key in GEOMETRY]
    assert_lvm_member(clone.path, new.pvs[0][1])
    own.create(new.name, SECOND_LV)
    own.remove(new.name, NEW_LV)
    assert own("vgck") == ""
    assert own.seen()[0].lv_names == new.lv_names | {SECOND_LV}
    assert original.disk() == case.original


def test_recovery_lands_whatever_lvm_has_committed_in_the_second_area_however_often(lvm, loops):
    case = recorded("resignature", "two areas")
    clone = loops(done(case.run, SWITCHED))
    own = lvm.over(clone.path)
    new = case.new(clone.path)
    offsets = []

    while len(offsets) < 2 or min(offsets[1:]) > offsets[0]:  # until its ring has come round
        assert len(offsets) < 100, "the ring does not come round"
        own.create(new.name, NEW_LV)
        disk = clone.disk()
        offsets.append(read_vg(disk).mda.text_offset)
        engine.recover(disk, engine.find_unfinished(disk))
        landed = vg_of(disk)
        assert landed == vg_of(clone.disk())._replace(label=landed.label, mda=landed.mda), len(offsets)
        assert landed.label.mdas == read_label(case.original).mdas
        own.remove(new.name, NEW_LV)

    recover(clone)
    (now,) = own.seen()
    assert now._replace(vg=new.vg) == new
    assert own("vgck") == ""
    assert own("pvck", clone.path)


@pytest.mark.states("name", few=1)
@pytest.mark.parametrize("settle", [recover, undo])
@pytest.mark.parametrize("groups", [IN_PROGRESS, CONTENTS])
def test_when_lvm_changes_the_old_volume_group_the_run_is_taken_back_and_the_change_kept(
    groups, settle, case, lvm, loops
):
    clone = loops(done(case.run, groups))
    own = lvm.over(clone.path)
    old = case.old(clone.path)
    own.create(old.name, NEW_LV)
    (changed,) = own.seen()

    result = settle(clone)

    assert result.state == clone.inspect().state == engine.CLEAN
    assert own.seen() == (changed,)
    assert changed.lv_names == old.lv_names | {NEW_LV}
    assert own("vgck") == ""
    assert_lvm_member(clone.path, old.pvs[0][1])
    outside = [part for part in clone.disk().differences(case.original) if not lies_in(part, lvm_areas(case))]
    assert outside == []


def lvm_areas(case):
    label = read_label(case.original)
    return [Range(0, 2048), *label.mdas]


def test_undo_leaves_alone_what_others_have_written_to_extents_that_lvm_has_given_them(lvm, loops):
    case = recorded("resignature", "golden tree")
    clone = loops(done(case.run, CONTENTS))
    own = lvm.over(clone.path)
    old = case.old(clone.path)
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


@pytest.mark.states("name", few=1)
@pytest.mark.parametrize("groups", [SWITCHED, HEADERS])
def test_what_lvm_changes_after_the_commit_of_an_undo_is_there_after_recovery(groups, name, lvm, loops):
    case = recorded("undo", name)
    clone = loops(done(case.run, groups))
    own = lvm.over(clone.path)
    old = case.new(clone.path)
    own.create(old.name, NEW_LV)
    (changed,) = own.seen()

    result = recover(clone)

    assert result.state == clone.inspect().state == engine.CLEAN
    assert own.seen() == (changed,)
    assert changed.lv_names == old.lv_names | {NEW_LV}
    assert own("vgck") == ""
    assert own("pvck", "--labelsector", str(read_label(case.original).sector), clone.path)


@pytest.mark.parametrize("end", [recover, undo])
@pytest.mark.parametrize("groups", [IN_PROGRESS, CONTENTS])
def test_an_undo_that_was_cut_and_then_overtaken_by_lvm_is_taken_back(groups, end, lvm, loops):
    case = recorded("undo", "two areas")
    clone = loops(done(case.run, groups))
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
def test_a_cut_run_is_still_known_after_lvm_has_upgraded_an_old_label(version, groups, lvm, loops):
    original = built(builder.two_metadata_areas, ext_version=version, style="2.02")
    run = CrashDisk(original)
    engine.resignature(run, engine.prepare(run, dice("new ids")))
    clone = loops(done(run, groups))
    lvm.over(clone.path).create(vg_of(clone.disk()).name, NEW_LV, warnings=OLD_HEADER)

    assert clone.inspect().state == engine.UNFINISHED
