# SPDX-License-Identifier: LGPL-2.1-only
"""A hostile stream ends in an error of the initiator's own, in little time, and fills no memory but what was given.

What a target says in a login, a read, a write, text, and a logout is mutated: bytes, lengths, PDUs left out, repeated,
exchanged. The seeds are fixed; a failure names its own.
"""

import random
import sys

import pytest
from memory import put, session

from kit.examples import SEED, WHOLE
from kit.iscsi.wire import Pdu, text_of
from relvmoiscsi import scsi
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.iscsi.login import Handshake, login
from relvmoiscsi.iscsi.looking import luns_in
from relvmoiscsi.iscsi.names import Credentials
from relvmoiscsi.iscsi.pdu import Wire
from relvmoiscsi.iscsi.session import Command
from relvmoiscsi.iscsi.target_sessions import targets_in
from relvmoiscsi.portal import Portal

NONE = 0xFFFFFFFF
PER_SEED = 120
CALLS_FOR_A_BYTE = 100
SEEDS = random.Random(f"{SEED} iscsi").sample(range(10000), 15 if WHOLE else 3)
LUN = bytes(8)


def a_handshake(wire):
    exchange = login("memory", "iqn.me", "iqn.it", Credentials("user", "secret"), (5,), bytes)
    return Handshake(wire, exchange, "memory", "iqn.it", b"\x80" + bytes(5))


def login_stream():
    def answer(number, flags, *keys):
        return Pdu(0x23, flags, lun=b"\x80" + bytes(7), tag=0, words=[0, number, 1, 32], data=text_of(keys))

    return [
        answer(1, 0x00, ("AuthMethod", "CHAP"), ("TargetPortalGroupTag", "1")),
        answer(2, 0x00, ("CHAP_A", "5"), ("CHAP_I", "7"), ("CHAP_C", "0x" + "5a" * 16)),
        answer(3, 0x81, ("CHAP_N", "target")),
        answer(4, 0x44, ("MaxBurstLength", "8192"), ("IFMarker", "Yes")),
        answer(5, 0x87, ("HeaderDigest", "None"), ("MaxRecvDataSegmentLength", "8192")),
    ]


def session_stream():
    def words(tag_word=NONE, *rest):
        return [tag_word, 100, 4, 64, *rest]

    return [
        Pdu(0x25, 0, tag=1, words=words(NONE, 0, 0, 0), data=b"a" * 512),
        Pdu(0x20, words=words(5)),
        Pdu(0x31, lun=LUN, tag=2, words=words(9, 0, 0, 4096)),
        Pdu(0x25, 0x81, tag=1, words=words(NONE, 1, 512, 0), data=b"b" * 512),
        Pdu(0x24, 0x00, tag=4, words=words(6), data=b"TargetName=iqn.a\0Target"),
        Pdu(0x21, tag=2, words=words(0)),
        Pdu(0x21, 0x82, 0, 2, tag=3, words=words(0, 0, 0, 512), data=b"\0\x12\x70\0\5" + bytes(15)),
        Pdu(0x24, tag=4, words=words(NONE), data=b"Address=10.0.0.1:3260,1\0"),
        Pdu(0x32, words=words(0, 1 << 24)),
        Pdu(0x22, tag=5, words=words(0)),
        Pdu(0x26, tag=6, words=words(0)),
    ]


def a_session(into, **digests):
    """A read, a write and a command that may fail are under way, text, a reset and the logout."""
    one = session(immediate_data=False, **digests)
    one.start(
        [
            Command(LUN, scsi.transfer(scsi.READ, 0, 2), into=into),
            Command(LUN, scsi.transfer(scsi.WRITE, 0, 8), data=memoryview(bytes(4096))),
        ]
    )
    one.start([Command(LUN, scsi.inquiry(512), into=memoryview(bytearray(512)), may_fail=True)])
    one.ask(b"SendTargets=All\0")
    one.reset_lun(LUN)
    one.log_out()
    return one


def mutant(dice, pdus, digests=False):
    """The stream, spoiled: by PDUs, then by bytes."""
    pdus = list(pdus)
    for _ in range(dice.choice([0, 0, 1, 2])):
        at = dice.randrange(len(pdus))
        how = dice.randrange(3)
        if how == 0:
            del pdus[at]
        elif how == 1:
            pdus.insert(dice.randrange(len(pdus) + 1), pdus[at])
        else:
            pdus[at], pdus[-1] = pdus[-1], pdus[at]
        pdus = pdus or [Pdu(0x20)]
    data = bytearray(b"".join(pdu.encoded(digests, digests) for pdu in pdus))
    for _ in range(dice.choice([0, 1, 1, 2, 5, 40])):
        at = dice.randrange(len(data))
        how = dice.randrange(4)
        if how == 0:
            data[at] = dice.randrange(256)
        elif how == 1:
            data[at] ^= 1 << dice.randrange(8)
        elif how == 2:
            data[at : at + dice.randrange(9)] = bytes(dice.randrange(9))
        else:
            data[at : at + 4] = dice.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
        data = data or bytearray(1)
    return bytes(data)


def run(dice, data, wire, handle):
    """Feed it; errors of our own are what a mutant may end in. It takes so many calls of functions for a byte, which
    are counted of each fourth mutant: to count takes as long as to call.
    """
    calls, most = [0], CALLS_FOR_A_BYTE * len(data) + 1000

    def count(_frame, event, _called):
        calls[0] += event in ("call", "c_call")
        assert calls[0] < most, f"{calls[0]} calls for {len(data)} bytes"

    sys.setprofile(count if dice.randrange(4) == 0 else None)
    try:
        put(wire, data, dice.choice([1, 7, 48, 100, 5000, 1 << 20]), handle)
    except RelvmoiscsiError as error:
        assert str(error)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_login_ends_in_an_error_of_ours_or_goes_on(seed):
    dice = random.Random(f"login {seed}")
    for _ in range(PER_SEED):
        wire = Wire()
        handshake = a_handshake(wire)

        def handle(*pdu, handshake=handshake):
            if handshake.parameters is None:
                handshake.handle(*pdu)

        run(dice, mutant(dice, login_stream()), wire, handle)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("digests", [False, True])
def test_a_session_ends_in_an_error_of_ours_or_goes_on_and_fills_only_what_it_may(seed, digests):
    dice = random.Random(f"session {seed}")
    for _ in range(PER_SEED):
        around = bytearray(b"\xee" * 3072)
        one = a_session(memoryview(around)[1024:2048], header_digest=digests, data_digest=digests)

        run(dice, mutant(dice, session_stream(), digests), one.wire, one.handle)

        assert around[:1024] == around[2048:] == b"\xee" * 1024
        assert sum(len(part) for part in one.wire._outgoing) < 1 << 20


def test_without_a_mutation_the_streams_are_taken_to_their_end():
    wire, one = Wire(), a_session(memoryview(bytearray(1024)))
    handshake = a_handshake(wire)
    put(wire, b"".join(pdu.encoded(False, False) for pdu in login_stream()), 7, handshake.handle)
    put(one.wire, b"".join(pdu.encoded(False, False) for pdu in session_stream()), 7, one.handle)

    assert handshake.parameters is not None
    assert one.is_logged_out and one.is_idle and one.text_is_done and one.wants_end and one.reset_response == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_scsi_are_read_whatever_they_hold(seed):
    dice = random.Random(f"scsi {seed}")
    for _ in range(300):
        data = bytes(dice.choice([0, 1, 8, 0x7F, 0xFF, dice.randrange(256)]) for _ in range(dice.randrange(40)))
        scsi.parse_sense(data)
        scsi.judge(dice.randrange(256), data)
        scsi.capacity(scsi.READ_CAPACITY_10, data)
        scsi.capacity(scsi.READ_CAPACITY_16, data)
        for parse in (luns_in, lambda text: targets_in(text, Portal("h"))):
            try:
                parse(data)
            except RelvmoiscsiError as error:
                assert str(error)
