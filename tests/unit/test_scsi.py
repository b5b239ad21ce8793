# SPDX-License-Identifier: LGPL-2.1-only
"""Commands, capacities, sense data; what is done about each status."""

import random

import pytest

from kit.examples import SEED, WHOLE
from kit.iscsi import scsi as target
from relvmoiscsi import scsi
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.looking import luns_bytes, luns_in
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.scsi import Sense, Verdict


def fixed(key, code, qualifier=0, first=0x70):
    return bytes([first, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0])


@pytest.mark.parametrize("block", [0, 2**32 - 1, 2**32, 2**40])
@pytest.mark.parametrize("blocks", [1, 65535, 65536])
def test_blocks_are_where_they_are_however_far(block, blocks):
    for codes in (scsi.READ, scsi.WRITE):
        assert target.blocks_of(scsi.transfer(codes, block, blocks)) == (block, blocks)


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
        *((0x02, fixed(2, 4, code), Verdict.LATER) for code in (1, 4, 7, 9, 0x0A, 0x14)),
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


#: SPC-4, annex F, "LOGICAL UNIT NOT READY" and "NOT ACCESSIBLE" (code 04): qualifiers whose texts say that it passes
PASSES = {
    "is in process of becoming ready": (0x01,),
    "in progress": (0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0E, 0x13, 0x14, 0x1A, 0x1B, 0x1D, 0x24, 0x25),
    "transition": (0x0A,),
    "required, and another device gives it": (0x11,),
    "not yet granted": (0x1C,),
}
OF_THE_PORT = (0x0B, 0x0C, 0x12)
IN_THE_TABLE = [
    (key, code, qualifier)
    for key, code, qualifier in scsi.MEANINGS
    for code in ([code] if code is not None else [0x00, 0x5E, 0xFE])
    for qualifier in ([qualifier] if qualifier is not None else [0x00, 0x5E, 0xFE])
]
DICE = random.Random(SEED)
ANY = [tuple(DICE.randrange(most) for most in (16, 256, 256)) for _ in range(20000 if WHOLE else 2000)]


def expected(key, code, qualifier):
    """By the words of the standards, not by the table: DONE, to be waited for, elsewhere, read-only or an error."""
    if key in (0, 1):
        return Verdict.DONE
    if key in (6, 0xB):
        return Verdict.LOOK_AGAIN
    if key == 2 and code == 4 and qualifier in sum(PASSES.values(), ()) or (key, code, qualifier) == (2, 0x3E, 0):
        return Verdict.LATER
    if key == 2 and code == 4 and qualifier in OF_THE_PORT:
        return Verdict.ELSEWHERE
    if key == 7 and (code == 0x27 and qualifier != 7 or (code, qualifier) in ((0, 0), (0x5A, 2))):
        return Verdict.READ_ONLY
    if key == 5 and code == 0x25:
        return Verdict.UNMAPPED
    return Verdict.UNSUPPORTED if (key, code, qualifier) == (5, 0x20, 0) else Verdict.FAILED


@pytest.mark.parametrize("first", [0x70, 0x72])
def test_each_sense_has_the_verdict_of_the_standards_and_is_named_with_its_numbers(first):
    not_ready = [(2, 4, qualifier) for qualifier in range(256)]
    for sense in [*IN_THE_TABLE, *not_ready, *[(7, 0x27, qualifier) for qualifier in range(256)], *ANY]:
        data = fixed(*sense) if first == 0x70 else bytes([first, *sense, 0, 0, 0, 0])
        told = scsi.reason(2, data)

        assert scsi.judge(2, data) == expected(*sense), told
        assert told.startswith("sense {:x}/{:02x}/{:02x} (".format(*sense)) and len(told) > len("sense 0/00/00 ()")
        assert ("write protected" in told) == (expected(*sense) == Verdict.READ_ONLY), told
        assert ("in progress" in told) <= (expected(*sense) == Verdict.LATER), told
        cause, advice = scsi.explained(2, data)
        assert cause == told and (advice.endswith(".") or not advice)
        is_late = first + 1
        assert scsi.judge(2, bytes([is_late]) + data[1:]) == Verdict.FAILED


def test_a_full_thin_pool_is_named_as_that_with_what_to_do():
    told = scsi.explained(2, fixed(7, 0x27, 7))

    assert told == (
        "sense 7/27/07 (no space left for this thin LUN)",
        "Free space in the array's pool, or add space to the pool.",
    )


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

    assert scsi.capacity(scsi.READ_CAPACITY_16, long) == (2**42, 512, 4096)
    assert scsi.capacity(scsi.READ_CAPACITY_16, long[:15]) is None
    assert scsi.capacity(scsi.READ_CAPACITY_10, bytes([0, 0, 7, 0xFF, 0, 0, 2, 0])) == (2**20, 512, 512)
    assert scsi.capacity(scsi.READ_CAPACITY_10, bytes([0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 2, 0])) is None
    assert scsi.capacity(scsi.READ_CAPACITY_10, bytes(7)) is None


def test_a_list_of_luns_is_as_long_as_it_says_and_names_each_once():
    one, two = b"\0\1" + bytes(6), b"\x41\x2c" + bytes(6)

    assert luns_in(bytes([0, 0, 0, 24, 0, 0, 0, 0]) + one + two + one + b"more") == [one, two]
    assert luns_in(bytes([0, 0, 0, 24, 0, 0, 0, 0]) + one + two[:7]) == [one]
    assert luns_bytes(bytes([0, 1, 0, 0])) == 65544
    for answer in (b"\0\0\0", b"\xff\xff\xff\xff\0\0\0\0"):
        with pytest.raises(Violation):
            luns_in(answer)


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
