# SPDX-License-Identifier: LGPL-2.1-only
"""The independent reader notices what is wrong. That it takes what LVM takes is judged by LVM, in tests/judged."""

import pytest

from kit import builder
from kit.reader import essence, identities, layout_of, read_sr, renamed, same_guest, sightings
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range


@pytest.fixture
def lun():
    return builder.everything()


# -- the SR


def poke_volume(lun, key, offset, data):
    (place,) = lun.truth.device_ranges(key, offset, len(data))
    lun.disk.poke(place.offset, data)


@pytest.mark.parametrize(
    "key, offset, data, complaint",
    [
        ("disk", 0, b"x", "footer at its start is bad"),
        ("disk", 85, b"\x01", "footer at its start is bad"),
        ("disk", 600, b"x", "its header is bad"),
        ("disk", 1300, b"x", "reserved bytes"),
        ("disk", 512 + 64 + 30, b"\0x", "header names the parent"),
        ("disk", 0x420800 + 20, b"x", "MacX names the parent"),
        ("disk", 0x420C00 + 20, b"x", "W2ru names the parent"),
        ("disk", 512 + 576 + 48, bytes(4), "2 parent locators"),
        ("base", 512 + 576, b"MacX", "its header names one"),
        ("disk", 512 + 40, b"x", "prt_uuid is not the footer uuid"),
        ("overraw", 512 + 40, b"x", "its prt_uuid is not zero"),
        ("MGT", 0, b"x", "MGT has no header"),
        ("MGT", 5, b"2049", "MGT length is 2049"),
        ("MGT", 540, b"0", "MGT is of SR 0"),
        ("MGT", 2560, b"x", "MGT record at 2048 has no uuid"),
        ("qdisk", 0, b"x", "it is no QCOW2"),
        ("qdisk", 19, b"\x10", "its backing file"),
    ],
)
def test_what_sm_and_vhd_util_would_complain_about(lun, key, offset, data, complaint):
    assert read_sr(lun.disk).problems == ()

    poke_volume(lun, key, offset, data)

    problems = read_sr(lun.disk).problems
    assert any(complaint in text for text in problems), problems


# -- judging a change


def test_another_lun_is_the_same_lun_under_new_names(lun):
    clone = builder.everything(seed="clone")
    names = {volume.uuid: clone.truth.volume(volume.key).uuid for volume in lun.truth.volumes if volume.uuid}
    names.update({volume.lv_id: clone.truth.volume(volume.key).lv_id for volume in lun.truth.volumes})
    names.update({getattr(lun.truth, what): getattr(clone.truth, what) for what in ("pv_id", "vg_id", "sr_uuid")})
    footers = {v.footer_uuid: clone.truth.volume(v.key).footer_uuid for v in lun.truth.volumes if v.footer_uuid}

    assert essence(clone.disk) != essence(lun.disk)
    assert essence(clone.disk) == renamed(essence(lun.disk), {**names, **footers})
    assert renamed(essence(lun.disk), {}) == essence(lun.disk)
    assert not set(names) & identities(clone.disk)


def test_the_guest_is_data_and_free_extents_and_nothing_that_may_change(lun):
    layout, before = layout_of(lun.disk), lun.disk.copy()
    assert layout == lun.truth.layout

    for item in lun.truth.identity_ranges + [Range(512, 512), Range(4096, 65536)]:
        lun.disk.poke(item.offset, b"\xaa" * item.length)
    assert same_guest(lun.disk, before, layout) and lun.disk != before

    for item in lun.truth.guest_ranges[::7] + [Range(0, 1), Range(2048, 1), Range(lun.disk.size_bytes - 1, 1)]:
        old = lun.disk.peek(item.offset, 1)
        lun.disk.poke(item.offset, bytes([old[0] ^ 0x40]))
        assert not same_guest(lun.disk, before, layout)
        lun.disk.poke(item.offset, old)


def test_sightings_find_every_form():
    disk = SparseDisk(1 << 20)
    sr = "675f20a9-6430-425a-9228-6ce601fec703"
    doubled = sr.replace("-", "--")
    lvm_id = "abcdef-0123-4567-89ab-cdef-0123-456789"
    forms = [
        (100, sr.encode(), "text"),
        (300, doubled.encode(), "doubled dashes"),
        (500, sr.encode("utf-16-be"), "utf-16-be"),
        (800, doubled.encode("utf-16-le"), "doubled dashes, utf-16-le"),
        (1000, bytes.fromhex(sr.replace("-", "")), "binary"),
        (4090, lvm_id.replace("-", "").encode(), "without dashes"),
        (5000, lvm_id.encode(), "text"),
    ]
    for offset, data, _ in forms:
        disk.poke(offset, data)

    found = sightings(disk, [sr, lvm_id])

    for offset, _, form in forms:
        assert any(item.offset == offset and item.form == form for item in found), (offset, form)
    assert [item.offset for item in sightings(disk, [sr, lvm_id], [Range(0, 4096)])] == [5000]
    assert sightings(disk, []) == []
