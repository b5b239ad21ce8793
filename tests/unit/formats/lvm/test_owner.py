# SPDX-License-Identifier: LGPL-2.1-only
"""Whose a LUN is, at a glance: an SR's whatever is broken, a guest's where that is sure, else nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import builder
from relvmoiscsi.device import Device, Range
from relvmoiscsi.errors import Truncated
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.owner import START_BYTES, USUAL_AREA, Owner, read_owner
from relvmoiscsi.formats.lvm.pv import MdaHeader, RawLocation

GUEST = b"guest-" + 44 * b"x"  #: as long as the name of an SR's, so that nothing else moves


class Memory(Device):
    """A small device; reading beyond its end is an error, as on a real one."""

    name = "/dev/sdc"

    def __init__(self, data):
        self.data, self.size_bytes, self.batches = data, len(data), 0

    def read(self, ranges):
        self.batches += 1
        for each in ranges:
            if each.offset < 0 or each.end > self.size_bytes:
                raise Truncated("A structure", None, each.length, self.size_bytes - each.offset)
        return [self.data[each.offset : each.end] for each in ranges]

    def write(self, chunks):
        raise AssertionError("nothing may be written")

    def flush(self):
        raise AssertionError("nothing may be written")


def start_of_sr(length):
    return builder.one_vhd().disk.read([Range(0, length)])[0]


SR_START = start_of_sr(START_BYTES)


@pytest.fixture(scope="module")
def sr():
    """The first 2 MiB of an SR's LUN, and the name of its volume group."""
    return start_of_sr(2 << 20)


def vg_name(data):
    at = data.index(b"VG_XenStorage-")
    return data[at : data.index(b" {", at)]


def guests(data):
    """The same as a guest's volume group: another name in the same place."""
    return data.replace(vg_name(data) + b" {", GUEST + b" {")


def owner(data):
    return read_owner(Memory(bytes(data)))


def patched(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def test_an_sr_is_recognised_by_its_volume_group(sr):
    assert owner(sr) == Owner(vg_name(sr).decode("ascii"), is_sr=True, is_pv=True)


def test_two_dependent_reads_after_the_first_are_enough(sr):
    device = Memory(sr)

    read_owner(device)

    assert device.batches == 3


@pytest.mark.parametrize("size", [0, 512, START_BYTES - 1, START_BYTES, 1 << 20])
def test_an_empty_device_is_nobodys(size):
    assert owner(bytes(size)) == Owner()


def test_what_a_guest_has_made_is_the_guests(sr):
    assert owner(guests(sr)) == Owner(GUEST.decode("ascii"), is_pv=True)


@pytest.mark.parametrize("wiped", [512, 1024, 4096], ids=["sector", "two sectors", "all before the metadata"])
def test_an_sr_without_its_label_is_an_sr(sr, wiped):
    assert owner(patched(sr, 0, bytes(wiped))).is_sr


@pytest.mark.parametrize("at", [512 + 20, 512 + 33, 512 + 100])
def test_an_sr_with_a_torn_label_is_an_sr(sr, at):
    broken = patched(sr, at, bytes([sr[at] ^ 0xFF]))

    assert owner(broken).is_sr


def test_a_name_in_flight_counts_as_well(sr):
    """A rename that was cut, or a slot that somebody cleared: the SR is still there."""
    header = MdaHeader.at(sr, USUAL_AREA)
    moved = header.replace(committed=bytes(RawLocation.SIZE), precommitted=header.committed)

    assert owner(patched(sr, USUAL_AREA, bytes(moved))).is_sr


def test_a_guests_label_that_does_not_read_is_nobodys_to_give(sr):
    found = owner(patched(guests(sr), 512 + 33, b"\xff"))

    assert not found.is_sr and not found.vg_name and "checksum" in found.problem


def test_a_metadata_area_that_does_not_read_is_a_problem(sr):
    without_magic = patched(guests(sr), USUAL_AREA + 4, bytes(16))
    text = USUAL_AREA + RawLocation.at(MdaHeader.at(sr, USUAL_AREA).committed).offset

    assert "metadata area at byte 4096" in owner(without_magic).problem
    assert "metadata text" in owner(patched(guests(sr), text, b"\0" * 300)).problem


@pytest.mark.parametrize("offset", [1, (2 << 20) - USUAL_AREA, 2**64 - 1])
def test_a_slot_that_points_outside_is_a_problem(sr, offset):
    header = MdaHeader.at(sr, USUAL_AREA).replace(committed=bytes(RawLocation.zero(offset=offset)))

    assert "metadata text" in owner(patched(guests(sr), USUAL_AREA, bytes(header))).problem


def test_a_physical_volume_without_a_volume_group_is_a_guests(sr):
    header = MdaHeader.at(sr, USUAL_AREA).replace(committed=bytes(RawLocation.SIZE))

    assert owner(patched(sr, USUAL_AREA, bytes(header))) == Owner(is_pv=True)


@given(st.data())
def test_whatever_a_guest_writes_there_is_an_answer(data):
    """Slots that point anywhere, lists that lie, random bytes: no exception, and no read beyond the device."""
    start = bytearray(64 << 10)
    if data.draw(st.booleans()):
        start[:START_BYTES] = SR_START
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

    found = owner(start[: data.draw(st.integers(0, 64 << 10))])

    assert found.is_sr == found.vg_name.startswith("VG_XenStorage-")
