# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2 judges LUNs that were resignatured on a loop device."""

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
    undo,
    vg_of,
    with_new_ids,
)
from kit.lvmreader import dashed
from kit.reader import essence, renamed
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import Refused

LUNS = {
    "golden chain": lambda: golden.load("chain").disk,
    "golden tree": lambda: golden.load("tree").disk,
    "two areas": lambda: builder.two_metadata_areas().disk,
    "second area ignored": lambda: builder.two_metadata_areas(second_area="ignored").disk,
    "wrapped text": lambda: builder.wrapped_text().disk,
    "text at an odd byte": lambda: builder.wrapped_text(5000 - 96 + 3).disk,
    "fragmented": lambda: builder.fragmented_locators().disk,
    "five deep, raw root": lambda: builder.five_deep_with_raw_root().disk,
    "small area": lambda: builder.one_vhd(area=Range(4096, 61440)).disk,
    "qcow2": lambda: builder.qcow2_chain().disk,
    "everything": lambda: builder.everything().disk,
    "500 VDIs": lambda: builder.many_vdis(count=500, chained=True).disk,
    "4 KiB sectors": lambda: builder.four_k().disk,
    "label of version 0": lambda: builder.one_vhd(ext_version=0, style="2.02").disk,
    "label of version 1": lambda: builder.one_vhd(ext_version=1, style="2.02").disk,
    "label in sector 3": lambda: builder.one_vhd(label_sector=3).disk,
}
OLD_LABELS = ("label of version 0", "label of version 1")
IGNORED = {"second area ignored": 1}


class World:
    """A LUN on a loop device, and LVM that sees it; `warnings` is what LVM says of it, before and after."""

    def __init__(self, name, lvm, loops):
        self.before, self.ignored = LUNS[name](), IGNORED.get(name, 0)
        self.warnings = OLD_HEADER if name in OLD_LABELS else ()
        self.loop, self.old = loops(self.before), vg_of(self.before)
        self.own = lvm.over(self.loop.path)

    def headers(self):
        return self.own.headers(self.loop.path, self.old.label.sector)

    def expected(self, vg):
        return expected(vg, self.loop.path, self.ignored)


@pytest.mark.states("name", few=4)
@pytest.mark.parametrize("name", LUNS)
def test_lvm_sees_the_same_volume_group_with_new_ids_beside_the_original_or_old_ones_again_and_goes_on(
    name, lvm, loops
):
    world = World(name, lvm, loops)
    own, loop, warnings, old = world.own, world.loop, world.warnings, world.old
    original = loops(world.before)
    both, there = lvm.over(original.path, loop.path), expected(old, original.path, world.ignored)
    assert own.listed(warnings) == (world.expected(old),)
    geometry = [world.headers()[key] for key in GEOMETRY]

    ids = resignature(loop).ids

    new = world.expected(with_new_ids(old, ids))
    assert own.listed(warnings) == own.seen(warnings) == (new,)
    assert own("vgck", warnings=warnings) == own("vgck", new.name, warnings=warnings) == ""
    assert own("pvck", "--labelsector", str(old.label.sector), loop.path).count("Found") == 1 + len(old.label.mdas)
    assert_lvm_member(loop.path, new.pvs[0][1])
    complaints = f'Volume group "{old.name}" not found', f"Cannot process volume group {old.name}"
    assert own.attempt("vgck", old.name).stderr == complaints
    assert_areas_are_the_original_ones(world, geometry, with_new_ids(old, ids))
    assert_bytes_are_those_of_a_disk_in_memory(world, ids)
    assert loop.inspect().state == engine.RESIGNATURED
    assert both.seen(warnings) == tuple(sorted([there, new]))
    assert both("vgck", warnings=warnings) == ""

    undo(loop)
    if name not in OLD_LABELS:  # LVM keeps a label that has become one of today's
        assert own.listed() == (world.expected(old),)
    assert own("vgck", warnings=warnings) == "" and loop.inspect().state == engine.CLEAN

    resignature(loop)
    both.create(new.name, NEW_LV, warnings=warnings)
    with_lv = {vg.name: vg.lv_names for vg in both.seen(warnings)}
    assert with_lv == {new.name: new.lv_names | {NEW_LV}, old.name: there.lv_names}
    assert original.disk() == world.before
    found = loop.inspect()
    assert found.state == engine.RESIGNATURED
    if name not in OLD_LABELS:
        assert found.problem is None and NEW_LV in [lv.name for lv in found.lun.vg.lvs]
        changed = loop.disk()
        with pytest.raises(Refused, match="cannot be undone: LVM has changed the volume group"):
            undo(loop)
        assert loop.disk() == changed


def assert_areas_are_the_original_ones(world, geometry, new):
    """With one text in each, and no change under way."""
    headers = world.headers()
    assert [headers[key] for key in GEOMETRY] == geometry
    assert headers["texts"] == [f"vgname {new.name} seqno {new.seqno}"] * (len(new.label.mdas) - world.ignored)
    for number, area in enumerate(new.label.mdas, 1):
        header = f"mda_header_{number}."
        assert (headers[header + "start"], headers[header + "size"]) == (str(area.offset), str(area.length))
        assert [headers[header + "raw_locn[1]." + key] for key in ("offset", "size")] == ["0", "0"]


def assert_bytes_are_those_of_a_disk_in_memory(world, ids):
    in_memory, after = world.before.copy(), world.loop.disk()
    engine.resignature(in_memory, engine.prepare(in_memory, dice("new ids")))
    assert after == in_memory
    names = {**ids.uuids, **{dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}}
    assert essence(after) == renamed(essence(world.before), names)


def test_without_a_resignature_lvm_does_complain_of_the_clone(lvm, loops):
    before = golden.load("one").disk
    both = lvm.over(loops(before).path, loops(before).path)

    assert any("Not using device" in line for line in both.attempt("vgs").stderr)


def test_lvm_writes_over_the_journal_without_complaint_when_its_rings_come_round(lvm, loops):
    before = builder.many_vdis(160, chained=True, area=builder.AREA_DEFAULT, second_area="same").disk
    loop = loops(before)
    own = lvm.over(loop.path)
    name = with_new_ids(vg_of(before), resignature(loop).ids).name
    (new,) = own.seen()
    assert loop.inspect().run is not None

    offsets, turns = [], 0
    while turns < 2:
        assert len(offsets) < 100, "the ring does not come round"
        offsets.append(int(own.headers(loop.path)["mda_header_1.raw_locn[0].offset"]))
        turns += len(offsets) > 1 and offsets[-1] < offsets[-2]
        own.create(name, NEW_LV)
        own.remove(name, NEW_LV)

    (now,) = own.seen()
    assert now._replace(vg=new.vg) == new
    assert own("vgck") == "" and own("pvck", loop.path)
    assert_lvm_member(loop.path, new.pvs[0][1])
    found = loop.inspect()
    assert (found.state, found.run) == (engine.RESIGNATURED, None)
    with loop.open() as device:
        assert isinstance(engine.prepare(device, dice("again")), engine.AlreadyDone)
    with pytest.raises(Refused, match="cannot be undone: LVM has reclaimed the space of the journal"):
        undo(loop)
