# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes to work on are where LVM's text says, before and after."""

import errno

import pytest

from kit.build_volumes import MIB
from kit.builder import build_sr, fragmented_locators
from kit.chains.lun import AREA, EXTENT, Lun
from kit.lvmreader import read_vg
from kit.reader import lv_bytes

SR = "0a0b0c0d-0000-4000-8000-000000000001"


def text_of(lun):
    return {lv.name: (lv.extents, lv.segments) for lv in read_vg(lun.disk).lvs}


def test_an_sr_by_hand_is_an_sr_to_lvm():
    lun = Lun.new(SR, 6)
    volume = lun.create("VHD-one", 5 * MIB)
    volume.tags = ("a",)
    lun.commit()

    vg = read_vg(lun.disk)

    assert vg.name == "VG_XenStorage-" + SR and vg.warnings == () and vg.seqno == 17
    assert vg.lv("VHD-one").extents == 2 and vg.lv("VHD-one").tags == ("a",)
    assert vg.pvs[0].pe_count == 6


def test_a_volume_is_its_extents_in_their_order():
    built = fragmented_locators()
    lun = Lun.read(built.disk)
    name = built.truth.volume("disk").name

    volume = lun.volume(name)
    volume.write(EXTENT - 3, b"across")

    assert volume.segments == ((1, 6), (1, 1), (1, 13))
    assert (
        volume.read(EXTENT - 3, 6)
        == b"across"
        == lv_bytes(lun.disk, read_vg(lun.disk), vg_lv(lun, name), EXTENT - 3, 6)
    )
    assert volume.read(volume.size - 2, 10) == volume.read(volume.size - 2, 2)
    assert built.disk != lun.disk


def vg_lv(lun, name):
    return read_vg(lun.disk).lv(name)


def test_what_does_not_fit_is_written_as_far_as_it_does():
    lun = Lun.new(SR, 3)
    volume = lun.create("VHD-one", EXTENT)
    other = lun.create("VHD-two", EXTENT)
    before = lun.disk.copy()

    with pytest.raises(OSError, match="10 bytes at 4194300") as raised:
        volume.write(EXTENT - 4, b"0123456789")

    assert raised.value.errno == errno.ENOSPC
    assert volume.read(EXTENT - 4, 4) == b"0123"
    assert [(part.offset, part.length) for part in lun.disk.differences(before)] == [(lun.place(1) - 512, 512)]
    assert other.read(0, 6) == bytes(6)


def test_resizing_takes_and_gives_back_extents():
    lun = Lun.new(SR, 4)
    one = lun.create("VHD-one", EXTENT)
    lun.create("VHD-two", EXTENT)

    lun.resize(one, EXTENT + 1)
    assert (one.extents, lun.free) == ([0, 2], [3])
    with pytest.raises(OSError, match="2 extents for VHD-one, 1 are free"):
        lun.resize(one, 4 * EXTENT)
    assert (one.extents, lun.free) == ([0, 2], [3])
    lun.resize(one, 1)
    assert (one.extents, lun.free) == ([0], [3, 2])
    with pytest.raises(OSError, match="3 extents for VHD-three, 2 are free"):
        lun.create("VHD-three", 3 * EXTENT)
    assert list(lun.volumes) == ["VHD-one", "VHD-two"]


def test_names_and_the_text():
    lun = Lun.new(SR, 4)
    one = lun.create("VHD-one", EXTENT)
    lun.create("VHD-two", EXTENT)
    lun.commit()
    lun.rename(one, "VHD-three")
    assert set(text_of(lun)) == {"VHD-one", "VHD-two"}
    lun.commit()
    assert list(lun.volumes) == ["VHD-three", "VHD-two"] == list(text_of(lun))
    lun.remove(one)
    lun.commit()
    assert list(text_of(lun)) == ["VHD-two"] and lun.free == [2, 3, 0]


def test_the_text_goes_round_the_ring():
    lun = Lun.new(SR, 1, area=AREA._replace(length=8192))
    lun.create("MGT", EXTENT)

    for number in range(12):
        lun.commit()
        assert read_vg(lun.disk).seqno == 17 + number and read_vg(lun.disk).warnings == ()


def test_an_sr_may_be_given_more_room_than_it_has():
    built = build_sr(free_extents=0)

    lun = Lun.read(built.disk, room=5)
    lun.create("VHD-one", 5 * EXTENT).write(0, b"one")
    lun.commit()

    assert lun.vg.pe_count == built.truth.pe_count + 5
    assert lv_bytes(lun.disk, read_vg(lun.disk), vg_lv(lun, "VHD-one"), 0, 3) == b"one"
    assert [lv.name for lv in read_vg(built.disk).lvs] == ["MGT"]
