# SPDX-License-Identifier: LGPL-2.1-only
"""The reader of chains reads what the guests have written, and nothing else; qemu-img is asked in tests/judged."""

import struct

import pytest

from kit import golden
from kit.build_volumes import BLOCK, MIB, guest_sector
from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.chains import ChainError, digest_of_sectors, flatten, guest_bytes, links


def written(key, parent="", sectors=(), **more):
    more.setdefault("virtual_size", 16 * MIB)
    writes = tuple((sector, key) for sector in sectors)
    return vhd(key, parent, bat_entries=SMALL_BAT, blocks=0, writes=writes, **more)


def name(lun, key):
    return lun.truth.volume(key).name


def poke(lun, key, offset, data):
    (place,) = lun.truth.device_ranges(key, offset, len(data))
    lun.disk.poke(place.offset, data)


def test_sectors_of_a_child_hide_those_of_its_parents():
    root = raw("root", extents=2, writes=((0, "root"), (1, "root"), (4096, "root")))
    lun = build_sr([root, written("base", "root", (1, 2, 9000)), written("disk", "base", (2, 3, 4097))])
    names = [name(lun, key) for key in ("disk", "base", "root")]

    flat = flatten(lun.disk, names[0])

    sectors = {0: "root", 1: "base", 2: "disk", 3: "disk", 4096: "root", 4097: "disk", 9000: "base"}
    assert flat == digest_of_sectors(16 * MIB, {at: guest_sector(key, at) for at, key in sectors.items()})
    assert flat == digest_of_sectors(16 * MIB, lun.truth.guest_sectors("disk", "base", "root"))
    assert [link.lv_name for link in links(lun.disk, names[0])] == names
    assert guest_bytes(lun.disk, names[0], 512, 1024) == guest_sector("base", 1) + guest_sector("disk", 2)


def test_past_the_end_of_a_smaller_parent_there_are_zeros():
    base = written("base", sectors=(0, 5, 6), virtual_size=512 * 6)
    lun = build_sr([base, written("disk", "base", sectors=(7,))])

    seen = {at: guest_sector(key, at) for at, key in ((0, "base"), (5, "base"), (7, "disk"))}
    assert flatten(lun.disk, name(lun, "disk")) == digest_of_sectors(16 * MIB, seen)


@pytest.mark.parametrize(
    "key, offset, data, complaint",
    [
        ("disk", 0, b"x", "holds no VHD"),
        ("disk", 512, b"x", "is no VHD that sm makes"),
        ("disk", 512 + 32, struct.pack(">I", BLOCK // 2), "is no VHD that sm makes"),
        ("disk", 512 + 64, bytes(512), "leads nowhere"),
        ("disk", 512 + 40, b"x", "is not the parent of"),
    ],
)
def test_a_chain_that_is_none_is_not_read(key, offset, data, complaint):
    lun = build_sr([written("base"), written("disk", "base", end="zero")])

    poke(lun, key, offset, data)

    with pytest.raises(ChainError, match=complaint):
        flatten(lun.disk, name(lun, "disk"))


def test_golden_leaves_read_what_their_base_or_the_parent_that_took_their_blocks_holds():
    """The first LUN was stopped before anything was written to the new leaves, the other before the old leaf went."""
    cloned, coalesced = (golden.load_live(f).disk for f in ("clone_vdi_after_second_snap", "coaleaf_one_renamed"))
    base = "VHD-75dad308-dc74-4e12-bf5c-514c030e98c0"
    orig, clone = "VHD-d31a2900-1371-47be-855c-ff999a5015f4", "VHD-af287530-7c2d-441c-9e64-4f723504df96"
    old = flatten(coalesced, "VHD-OLD_f18f3fab-621f-4b58-88b1-5ec111527bd4")

    assert flatten(cloned, orig) == flatten(cloned, clone) == flatten(cloned, base)
    assert links(cloned, orig)[1].lv_name == links(cloned, base)[1].lv_name
    assert len(old.blocks) == 4
    assert old == flatten(coalesced, "VHD-149f5b30-251e-4eaf-970b-89599139eaa1")
