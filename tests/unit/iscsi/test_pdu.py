# SPDX-License-Identifier: LGPL-2.1-only
"""Bytes become PDUs and PDUs bytes, however they are cut; what no target sends is refused."""

import pytest
from memory import put, take

from kit.iscsi.wire import Pdu, crc32c_bytes
from relvmoiscsi.iscsi import crc32c, pdu
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.pdu import PduHeader, Wire

ANSWERS = [
    Pdu(0x20, tag=1, words=[0xFFFFFFFF, 7]),
    Pdu(0x21, 0x82, 0, 2, tag=2, words=[0, 8, 9, 10, 0, 0, 12], data=b"\0\4abcd"),
    Pdu(0x25, 0x81, lun=b"\0\1" + bytes(6), tag=3, data=bytes(range(256)) * 17),
    Pdu(0x24, tag=4, data=b"x"),
]


def facts(header, data):
    words = [header.word20, header.word24, header.word28, header.word32, header.word36, header.word40, header.word44]
    first = (header.opcode, header.flags, header.byte2, header.byte3, header.lun, header.task_tag)
    return first, words, bytes(data)


def expected(pdu):
    return (pdu.opcode, pdu.flags, pdu.byte2, pdu.byte3, pdu.lun, pdu.tag), pdu.words, pdu.data


@pytest.mark.parametrize("digests", [(False, False), (True, False), (False, True), (True, True)])
def test_pdus_are_the_same_in_pieces_of_any_size(digests):
    stream = b"".join(answer.encoded(*digests) for answer in ANSWERS) * 2
    for piece in (1, 48, 52, 100, 1 << 20):
        wire, found = Wire(), []
        wire.header_digest, wire.data_digest = digests
        put(wire, stream, piece, lambda *pdu, found=found: found.append(facts(*pdu)))
        assert found == [expected(answer) for answer in ANSWERS * 2], piece


@pytest.mark.parametrize("part", ["header", "data"])
def test_a_wrong_digest_ends_it(part):
    wire, answer = Wire(), Pdu(0x25, tag=1, data=b"data")
    wire.header_digest = wire.data_digest = True
    answer.spoil = part

    with pytest.raises(Violation, match=part + " digest"):
        put(wire, answer.encoded(True, True), 1 << 20, lambda *_pdu: None)


@pytest.mark.parametrize("first", [0, 1, 48, 50, 55])
def test_what_goes_out_is_padded_and_has_its_digests_and_goes_on_where_it_stopped(first):
    wire = Wire()
    wire.header_digest = wire.data_digest = True
    wire.send(PduHeader(0x41, 0xA1, lun=b"\0\5" + bytes(6), task_tag=9, word20=5, word44=6), b"12345")

    start = b"".join(bytes(part) for part in wire.outgoing())[:first]
    wire.sent(first)

    pdu = Pdu(0x41, 0xA1, lun=b"\0\5" + bytes(6), tag=9, words=[5, 0, 0, 0, 0, 0, 6], data=b"12345")
    assert start + take(wire) == pdu.encoded(True, True)


@pytest.mark.parametrize(
    "header, words",
    [
        (bytes([0x01]) + bytes(47), "opcode 0x01"),
        (bytes([0x2B]) + bytes(47), "opcode 0x2b"),
        (bytes([0x25, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF]) + bytes(40), "more in one PDU"),
        (bytes([0x25, 0, 0, 0, 1, 0, 0, 0]) + bytes(40), "more in one PDU"),
    ],
    ids=["of an initiator", "unknown", "16 MiB", "further headers"],
)
def test_a_header_that_no_target_sends_is_refused_before_any_data(header, words):
    with pytest.raises(Violation, match=words):
        put(Wire(), header, 48, lambda *_pdu: None)


def test_a_target_that_asks_and_does_not_read_is_refused_before_memory_is_full(monkeypatch):
    monkeypatch.setattr(pdu, "_MAX_QUEUED", 1000)
    wire = Wire()

    with pytest.raises(Violation, match="does not take"):
        for _ in range(1500):
            wire.send(PduHeader(0x00))


@pytest.mark.parametrize(
    "data, digest",
    [
        (bytes(32), "aa36918a"),
        (b"\xff" * 32, "43aba862"),
        (bytes(range(32)), "4e79dd46"),
        (bytes(range(31, -1, -1)), "5cdb3f11"),
    ],
)
def test_digests_are_those_of_the_rfc(data, digest):
    """The examples of RFC 7143, appendix A.4."""
    assert crc32c.crc32c([data]).hex() == digest
    assert crc32c.crc32c([data[:7], memoryview(data)[7:]]).hex() == digest


def test_the_kernel_gives_the_same_digests_or_none():
    data = bytes(range(256)) * 5
    fast = crc32c.kernel_crc32c() or crc32c.crc32c

    assert fast([data]) == fast([data[:500], data[500:]]) == crc32c_bytes(data)
    assert crc32c.fastest_crc32c([data[:16]]) == crc32c_bytes(data[:16])
