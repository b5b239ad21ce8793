# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2 judges LUNs that were resignatured on a loop device."""

from functools import partial

import pytest

from kit import builder, golden
from kit.judges import (
    GEOMETRY,
    NEW_LV,
    OLD_HEADER,
    assert_lvm_member,
    dice,
    expected,
    resignature,
    vg_of,
    with_new_ids,
)
from kit.lvmreader import dashed
from kit.reader import essence, renamed
from relvmoiscsi import engine
from relvmoiscsi.errors import Refused


def built(make, **options):
    return make(**options).disk


LUNS = {
    "golden one": lambda: golden.load("one").disk,
    "golden chain": lambda: golden.load("chain").disk,
    "golden tree": lambda: golden.load("tree").disk,
    "two areas": partial(built, builder.two_metadata_areas),
    "second area ignored": partial(built, builder.two_metadata_areas, second_area="ignored"),
    "wrapped text": partial(built, builder.wrapped_text),
    "fragmented": partial(built, builder.fragmented_locators),
    "five deep": partial(built, builder.five_deep_with_raw_root),
    "qcow2": partial(built, builder.qcow2_chain),
    "everything": partial(built, builder.everything),
    "500 VDIs": partial(built, builder.many_vdis, count=500, chained=True),
    "4 KiB sectors": partial(built, builder.four_k),
    "label of version 0": partial(built, builder.one_vhd, ext_version=0, style="2.02"),
    "label of version 1": partial(built, builder.one_vhd, ext_version=1, style="2.02"),
    "label in sector 3": partial(built, builder.one_vhd, label_sector=3),
}
OLD_LABELS = ("label of version 0", "label of version 1")
IGNORED = {"second area ignored": 1}

OTHER_NAME = "VG_XenStorage-0a0b0c0d-0000-4000-8000-000000000002"


@pytest.fixture(params=LUNS)
def case(request):
    return request.param


@pytest.fixture
def before(case):
    return LUNS[case]()


@pytest.fixture
def warnings(case):
    """What LVM says of a LUN, before and after."""
    return OLD_HEADER if case in OLD_LABELS else ()


@pytest.mark.states("case", few=4)
def test_lvm_sees_the_same_volume_group_with_new_ids_finds_nothing_to_complain_and_goes_on(
    case, before, warnings, lvm, loops
):
    loop, label, ignored = loops(before), vg_of(before).label, IGNORED.get(case, 0)
    own = lvm.over(loop.path)
    assert own.listed(warnings) == (expected(vg_of(before), loop.path, ignored),)
    headers = own.headers(loop.path, label.sector)
    geometry = [headers[key] for key in GEOMETRY]

    ids = resignature(loop).ids

    new = expected(with_new_ids(vg_of(before), ids), loop.path, ignored)
    assert own.listed(warnings) == own.seen(warnings) == (new,)
    assert own("vgck", warnings=warnings) == own("vgck", new.name, warnings=warnings) == ""
    assert own("pvck", "--labelsector", str(label.sector), loop.path).count("Found") == 1 + len(label.mdas)
    assert_lvm_member(loop.path, new.pvs[0][1])
    assert own.attempt("vgck", vg_of(before).name).stderr == (
        f'Volume group "{vg_of(before).name}" not found',
        f"Cannot process volume group {vg_of(before).name}",
    )
    assert_areas_are_the_original_ones(own.headers(loop.path, label.sector), geometry, before, ids, ignored)
    assert_bytes_are_those_of_a_disk_in_memory(loop, before, ids)
    assert loop.inspect().state == engine.RESIGNATURED

    own.create(new.name, NEW_LV, warnings=warnings)

    found = loop.inspect()
    assert found.state == engine.RESIGNATURED
    if case not in OLD_LABELS:
        assert found.problem is None and NEW_LV in [lv.name for lv in found.lun.vg.lvs]
        changed = loop.disk()
        with loop.open() as device, pytest.raises(Refused, match="cannot be undone: LVM has changed the volume group"):
            engine.undo(device, dice("undo"))
        assert loop.disk() == changed


def assert_areas_are_the_original_ones(headers, geometry, before, ids, ignored):
    """With one text in each, and no change under way."""
    new = with_new_ids(vg_of(before), ids)
    assert [headers[key] for key in GEOMETRY] == geometry
    read = len(new.label.mdas) - ignored
    assert headers["texts"] == [f"vgname {new.name} seqno {new.seqno}"] * read
    for number, area in enumerate(new.label.mdas, 1):
        header = f"mda_header_{number}."
        assert (headers[header + "start"], headers[header + "size"]) == (str(area.offset), str(area.length))
        assert [headers[header + "raw_locn[1]." + key] for key in ("offset", "size")] == ["0", "0"]


def assert_bytes_are_those_of_a_disk_in_memory(loop, before, ids):
    in_memory, after = before.copy(), loop.disk()
    engine.resignature(in_memory, engine.prepare(in_memory, dice("new ids")))
    assert after == in_memory
    with_dashes = {dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}
    assert essence(after) == renamed(essence(before), {**ids.uuids, **with_dashes})


def test_without_a_resignature_lvm_does_complain_of_the_clone(lvm, loops):
    before = golden.load("one").disk
    both = lvm.over(loops(before).path, loops(before).path)

    assert any("Not using device" in line for line in both.attempt("vgs").stderr)


@pytest.mark.states("case")
def test_original_and_clone_are_two_volume_groups_side_by_side_and_lvm_goes_on_with_both(
    case, before, warnings, lvm, loops
):
    ignored = IGNORED.get(case, 0)
    original, clone = loops(before), loops(before)
    both, own = lvm.over(original.path, clone.path), lvm.over(clone.path)
    old = expected(vg_of(before), original.path, ignored)
    new = expected(with_new_ids(vg_of(before), resignature(clone).ids), clone.path, ignored)
    name = new.name
    assert both.seen(warnings) == tuple(sorted([old, new]))
    assert both("vgck", warnings=warnings) == ""

    both.create(name, NEW_LV, warnings=warnings)
    with_lv = {vg.name: vg.lv_names for vg in both.seen(warnings)}
    both.remove(name, NEW_LV)
    both("vgrename", name, OTHER_NAME, warnings=warnings)
    both("vgrename", OTHER_NAME, name, warnings=warnings)

    assert with_lv == {name: new.lv_names | {NEW_LV}, old.name: old.lv_names}
    (now,) = own.seen()
    assert now._replace(vg=new.vg, pvs=new.pvs) == new
    assert (now.name, now.vg[1], now.pvs[0][:2]) == (name, new.vg[1], new.pvs[0][:2])
    assert own("vgck") == both("vgck", warnings=warnings) == ""
    assert original.disk() == before


def test_lvm_writes_over_the_journal_without_complaint_when_its_rings_come_round(lvm, loops):
    before = builder.many_vdis(160, chained=True, area=builder.AREA_DEFAULT, second_area="same").disk
    loop = loops(before)
    own = lvm.over(loop.path)
    name = with_new_ids(vg_of(before), resignature(loop).ids).name
    (new,) = own.seen()
    assert loop.inspect().run is not None

    offsets, turns = [text_offset(own, loop)], 0
    while turns < 2:
        assert len(offsets) < 100, "the ring does not come round"
        own.create(name, NEW_LV)
        offsets.append(text_offset(own, loop))
        own.remove(name, NEW_LV)
        turns += offsets[-1] < offsets[-2]

    (now,) = own.seen()
    assert now._replace(vg=new.vg) == new
    assert own("vgck") == ""
    assert own("pvck", loop.path)
    assert_lvm_member(loop.path, new.pvs[0][1])
    found = loop.inspect()
    assert (found.state, found.run) == (engine.RESIGNATURED, None)
    with loop.open() as device:
        assert isinstance(engine.prepare(device, dice("again")), engine.AlreadyDone)
        with pytest.raises(Refused, match="cannot be undone: LVM has reclaimed the space of the journal"):
            engine.undo(device, dice("undo"))


def text_offset(own, loop):
    """Where the committed text lies in the first metadata area."""
    return int(own.headers(loop.path)["mda_header_1.raw_locn[0].offset"])


@pytest.mark.states("name")
@pytest.mark.parametrize("name", ["golden tree", "two areas", "wrapped text", "4 KiB sectors", "500 VDIs"])
def test_after_an_undo_lvm_sees_the_volume_group_it_saw_before(name, lvm, loops):
    before = LUNS[name]()
    loop = loops(before)
    own = lvm.over(loop.path)
    old = own.listed()
    resignature(loop)

    with loop.open() as device:
        engine.undo(device, dice("undo"))

    assert own.listed() == old == (expected(vg_of(before), loop.path),)
    assert own("vgck") == ""
    assert_lvm_member(loop.path, old[0].pvs[0][1])
    assert loop.inspect().state == engine.CLEAN
    own.create(old[0].name, NEW_LV)
    assert own("vgck") == ""
