# SPDX-License-Identifier: LGPL-2.1-only
"""Commands, capacities, sense data; what is done about each status."""

import pytest

from kit.iscsi import scsi as target
from relvmoiscsi.iscsi import scsi
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.scsi import Sense, Verdict


def fixed(key, code, qualifier=0, first=0x70):
    return bytes([first, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0])


@pytest.mark.parametrize("block", [0, 2**32 - 1, 2**32, 2**40])
@pytest.mark.parametrize("blocks", [1, 65535, 65536])
def test_blocks_are_where_they_are_however_far(block, blocks):
    assert target.blocks_of(scsi.read(block, blocks)) == target.blocks_of(scsi.write(block, blocks)) == (block, blocks)


@pytest.mark.parametrize(
    "status, sense, verdict",
    [
        (0x00, b"", Verdict.DONE),
        *((status, b"", Verdict.LATER) for status in (0x08, 0x28, 0x30)),
        (0x18, b"", Verdict.RESERVED),
        (0x40, b"", Verdict.LOOK_AGAIN),
        *((status, b"", Verdict.FAILED) for status in (0x3E, 0x02)),
        (0x02, fixed(1, 0x17), Verdict.DONE),
        *((0x02, fixed(*sense), Verdict.LOOK_AGAIN) for sense in ((6, 0x29), (6, 0x3F, 0x0E), (0xB, 0x47))),
        *((0x02, fixed(2, 4, code), Verdict.LATER) for code in (1, 0x0A)),
        *((0x02, fixed(2, 4, code), Verdict.ELSEWHERE) for code in (0x0B, 0x0C)),
        (0x02, fixed(7, 0x27), Verdict.READ_ONLY),
        (0x02, fixed(5, 0x25), Verdict.UNMAPPED),
        (0x02, fixed(5, 0x20), Verdict.UNSUPPORTED),
        *((0x02, fixed(*sense), Verdict.FAILED) for sense in ((2, 4, 3), (7, 0x27, 7), (5, 0x24), (3, 0x11))),
        *((0x02, fixed(*sense, first=0x71), Verdict.FAILED) for sense in ((6, 0x29), (1, 0x17))),
    ],
)
def test_each_status_has_its_verdict(status, sense, verdict):
    assert scsi.judge(status, sense) == verdict


@pytest.mark.parametrize(
    "data, sense",
    [
        (fixed(3, 0x11, 5), Sense(3, 0x11, 5)),
        (fixed(3, 0x11, 5, first=0xF1), Sense(3, 0x11, 5, True)),
        (fixed(3, 0x11, 5)[:8], Sense(3, 0, 0)),
        (bytes([0x72, 6, 0x29, 1, 0, 0, 0, 0]), Sense(6, 0x29, 1)),
        (bytes([0x73, 6, 0x29, 1]), Sense(6, 0x29, 1, True)),
        (b"\x72\x06", Sense(4, 0, 0)),
        (b"\xff" * 18, Sense(4, 0, 0)),
        (b"", Sense(4, 0, 0)),
    ],
)
def test_sense_data_of_any_kind_are_read(data, sense):
    assert scsi.parse_sense(data) == sense


def test_a_reason_names_key_code_and_qualifier():
    assert scsi.reason(2, fixed(3, 0x11)) == "sense 3/11/00 (medium error)"
    assert scsi.reason(2, fixed(3, 0x0C, first=0x71)) == "sense 3/0c/00 (medium error), of an earlier command"
    assert scsi.reason(0x18, b"") == "status 18 (reserved by another host)"


def test_capacities():
    long = (2**33 - 1).to_bytes(8, "big") + (512).to_bytes(4, "big") + bytes([0, 3]) + bytes(18)

    assert scsi.capacity_16(long) == (2**42, 512, 4096)
    assert scsi.capacity_16(long[:15]) is None
    assert scsi.capacity_10(bytes([0, 0, 7, 0xFF, 0, 0, 2, 0])) == (2**20, 512, 512)
    assert scsi.capacity_10(bytes([0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 2, 0])) is None
    assert scsi.capacity_10(bytes(7)) is None


def test_a_list_of_luns_is_as_long_as_it_says_and_names_each_once():
    one, two = b"\0\1" + bytes(6), b"\x41\x2c" + bytes(6)

    assert scsi.luns_in(bytes([0, 0, 0, 24, 0, 0, 0, 0]) + one + two + one + b"more") == [one, two]
    assert scsi.luns_in(bytes([0, 0, 0, 24, 0, 0, 0, 0]) + one + two[:7]) == [one]
    assert scsi.luns_bytes(bytes([0, 1, 0, 0])) == 65544
    for answer in (b"\0\0\0", b"\xff\xff\xff\xff\0\0\0\0"):
        with pytest.raises(Violation):
            scsi.luns_in(answer)


@pytest.mark.parametrize(
    "lun, number, of_the_kernel",
    [
        ("0005000000000000", 5, 5),
        ("4005000000000000", 5, 0x4005),
        ("412c000000000000", 300, 0x412C),
        ("d2000101 00000000", 257, 0x0101D200),
        ("d2040b0300000000", 0x040B03, 0x0B03D204),
    ],
)
def test_a_lun_has_the_number_of_the_array_and_that_of_the_kernel(lun, number, of_the_kernel):
    """The last one is the example of Linux, drivers/scsi/scsi_common.c, scsilun_to_int."""
    info = LunInfo(bytes.fromhex(lun.replace(" ", "")))

    assert (info.number, info.kernel_number) == (number, of_the_kernel)
