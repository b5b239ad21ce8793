# SPDX-License-Identifier: LGPL-2.1-only
"""The reader of chains reads no chain that is none, and golden ones as the storage manager left them.

That it reads what guests have written: test_random_chain.py here, and qemu-img in tests/judged.
"""

import struct

import pytest

from kit import golden
from kit.build_volumes import BLOCK, MIB, guest_sector
from kit.builder import SMALL_BAT, build_sr, vhd
from kit.chains import ChainError, digest_of_sectors, flatten, links


def poke(lun, key, offset, data):
    (place,) = lun.truth.device_ranges(key, offset, len(data))
    lun.disk.poke(place.offset, data)


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
    volumes = [vhd("base", bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT, end="zero")]
    lun = build_sr(volumes)

    poke(lun, key, offset, data)

    with pytest.raises(ChainError, match=complaint):
        flatten(lun.disk, lun.truth.volume("disk").name)


def test_past_the_end_of_a_smaller_parent_there_are_zeros():
    base, disk = (((0, "base"), (5, "base"), (6, "base")), ((7, "disk"),))
    volumes = [vhd("base", bat_entries=SMALL_BAT, virtual_size=512 * 6, writes=base)]
    lun = build_sr([*volumes, vhd("disk", "base", bat_entries=SMALL_BAT, writes=disk)])

    seen = {at: guest_sector(key, at) for at, key in (*base[:2], *disk)}
    assert flatten(lun.disk, lun.truth.volume("disk").name) == digest_of_sectors(64 * MIB, seen)


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
