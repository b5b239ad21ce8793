# SPDX-License-Identifier: LGPL-2.1-only
"""Checksums, against values that real LVM and vhd-util wrote (docs/formats/lvm.rst, docs/formats/vhd.rst)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.formats.checksum import lvm_crc, vhd_checksum


@pytest.mark.parametrize(
    "data, crc", [(b"", 0xF597A6CF), (b"a", 0x319B1949), (b"123456789", 0x4991CF02), (bytes(492), 0x02C81F10)]
)
def test_the_lvm_checksum_gives_the_values_measured_with_real_lvm(data, crc):
    assert lvm_crc(data) == crc


@given(st.binary(max_size=300), st.integers(0, 300))
def test_the_lvm_checksum_goes_on_over_a_second_buffer(data, cut):
    first, second = data[:cut], data[cut:]

    assert lvm_crc(second, lvm_crc(first)) == lvm_crc(data)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_changes_the_lvm_checksum(data, more):
    bit = more.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8

    assert lvm_crc(bytes(flipped)) != lvm_crc(data)


# the first 84 bytes of a footer that vhd-util wrote (data/images/golden/chain.tar.xz); the rest of the sector is zero
FOOTER = bytes.fromhex(
    "636f6e6563746978 00000002 00010000"  # conectix, features, version
    "0000000000000200 3293a418 74617000"  # header at 512, timestamp, "tap"
    "00010003 00000000 0000000004000000"  # creator version, host, original size
    "0000000004000000 03c30811 00000004"  # current size, geometry, type 4
    "fffff10a bb471856a1ec42b89f0887c9"  # the checksum; uuid ...
    "217fda76"
).ljust(512, b"\0")


def test_the_vhd_checksum_is_the_one_that_vhd_util_wrote():
    (stored,) = struct.unpack_from(">I", FOOTER, 64)

    assert vhd_checksum(FOOTER, 64) == stored == 0xFFFFF10A


def test_the_vhd_checksum_of_nothing_is_all_ones():
    assert vhd_checksum(bytes(512), 64) == 0xFFFFFFFF


@given(st.binary(min_size=4, max_size=4))
def test_the_vhd_checksum_does_not_count_itself(stored):
    data = FOOTER[:64] + stored + FOOTER[68:]

    assert vhd_checksum(data, 64) == 0xFFFFF10A


@given(st.binary(max_size=1024) | st.integers(0, 1024).map(lambda length: b"\xff" * length))
def test_the_vhd_checksum_is_the_complement_of_the_sum_of_all_other_bytes(data):
    assert vhd_checksum(data, 64) == ~(sum(data[:64]) + sum(data[68:])) & 0xFFFFFFFF
