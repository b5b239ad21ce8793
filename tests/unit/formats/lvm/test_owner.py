# SPDX-License-Identifier: LGPL-2.1-only
"""Whose a LUN is, at a glance: an SR's whatever is broken, a guest's where that is sure, else nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import builder
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.owner import START_BYTES, USUAL_AREA, Owner, read_owner
from relvmoiscsi.formats.lvm.pv import MdaHeader, RawLocation

GUEST = b"guest-" + 44 * b"x"  #: as long as the name of an SR's, so that nothing else moves


START = builder.one_vhd().disk.read([Range(0, 2 << 20)])[0]  # of an SR's LUN
HEADER = MdaHeader.at(START, USUAL_AREA)
SR_NAME = START[START.index(b"VG_XenStorage-") :].split(b" {")[0]
GUESTS = START.replace(SR_NAME + b" {", GUEST + b" {")
TEXT_AT = USUAL_AREA + RawLocation.at(HEADER.committed).offset


def patched(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def with_slots(data, **slots):
    return patched(data, USUAL_AREA, bytes(HEADER.replace(**slots)))


def owner(data):
    """Whose a device of these bytes is. It is not written to, and reading beyond its end is an error."""
    disk = SparseDisk(len(data), name="/dev/sdc")
    disk.poke(0, bytes(data))
    found = read_owner(disk)
    assert disk.writes == 0 and disk.read_batches <= 3, "two dependent reads after the first are enough"
    return found


EMPTY = bytes(RawLocation.SIZE)
OWNERS = {
    "an SR": (START, Owner(SR_NAME.decode("ascii"), is_sr=True, is_pv=True)),
    "a guest's": (GUESTS, Owner(GUEST.decode("ascii"), is_pv=True)),
    "a PV without a VG": (with_slots(START, committed=EMPTY), Owner(is_pv=True)),
    **{f"{size} zeros": (bytes(size), Owner()) for size in (512, START_BYTES - 512, START_BYTES, 1 << 20)},
}


@pytest.mark.parametrize("name", OWNERS)
def test_whose_a_device_is(name):
    data, expected = OWNERS[name]

    assert owner(data) == expected


@pytest.mark.parametrize("prefix", [b"XSLocalEXT-", b"XSLocalXFS-", b"XSLocalLargeBlock-"])
def test_the_group_of_a_local_sr_with_a_file_system_is_an_sr_s(prefix):
    name = (prefix + 36 * b"a")[: len(SR_NAME)].ljust(len(SR_NAME), b"a")  # so that nothing else moves
    found = owner(START.replace(SR_NAME + b" {", name + b" {"))
    assert found.is_sr and found.vg_name == name.decode("ascii")


BROKEN_SRS = {
    "without its label's sector": patched(START, 512, bytes(512)),
    "without all before the metadata": patched(START, 0, bytes(4096)),
    **{f"torn at {at}": patched(START, at, bytes([START[at] ^ 0xFF])) for at in (512 + 20, 512 + 33, 512 + 100)},
    "with its name in flight": with_slots(START, committed=EMPTY, precommitted=HEADER.committed),
}


@pytest.mark.parametrize("name", BROKEN_SRS)
def test_an_sr_whose_label_or_rename_was_cut_is_an_sr(name):
    assert owner(BROKEN_SRS[name]).is_sr


def with_areas(data, *entries):
    """`data` with these entries (offset, size) in the label's list of metadata areas, and behind it."""
    entries = b"".join(bytes(pv.AreaEntry.zero(offset=at, size=size)) for at, size in entries)
    sector = pv.sealed_label(patched(data[512:1024], 104, entries + bytes(408 - len(entries))))
    return patched(data, 512, sector)


OUTSIDE = (1, (2 << 20) - USUAL_AREA, 2**64 - 1)
PROBLEMS = {
    "torn label": (patched(GUESTS, 512 + 33, b"\xff"), "checksum"),
    "an area that ends the list for LVM": (with_areas(GUESTS, (4096, 1 << 20), (0, 1), (8192, 4096)), "offset 0"),
    "more areas than are read": (with_areas(GUESTS, *[(4096, 1 << 20)] * 5), "lists 5 metadata areas"),
    "no magic": (patched(GUESTS, USUAL_AREA + 4, bytes(16)), "metadata area at byte 4096"),
    "no text": (patched(GUESTS, TEXT_AT, bytes(300)), "metadata text"),
    **{
        f"a slot at {at}": (with_slots(GUESTS, committed=bytes(RawLocation.zero(offset=at))), "metadata text")
        for at in OUTSIDE
    },
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_a_guests_and_does_not_read_is_nobodys_to_give(name):
    data, problem = PROBLEMS[name]

    found = owner(data)

    assert not found.is_sr and not found.vg_name and problem in found.problem


@given(st.data())
def test_whatever_a_guest_writes_there_is_an_answer(data):
    """Slots that point anywhere, lists that lie, random bytes: no exception, and no read beyond the device."""
    start = bytearray(64 << 10)
    if data.draw(st.booleans()):
        start[:START_BYTES] = START[:START_BYTES]
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, START_BYTES))
        noise = data.draw(st.binary(max_size=64))
        start[at : at + len(noise)] = noise
    header = MdaHeader.zero().replace(
        magic=pv.MDA_MAGIC,
        committed=bytes(RawLocation.zero(offset=data.draw(st.integers(0, 2**64 - 1)))),
        precommitted=bytes(RawLocation.zero(offset=data.draw(st.integers(0, 70000)))),
    )
    if data.draw(st.booleans()):
        start[USUAL_AREA : USUAL_AREA + MdaHeader.SIZE] = bytes(header)

    found = owner(start[: 512 * data.draw(st.integers(1, 128))])

    assert found.is_sr == found.vg_name.startswith(("VG_XenStorage-", "XSLocal"))
