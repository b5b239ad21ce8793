# SPDX-License-Identifier: LGPL-2.1-only
"""The full feature phase without a socket: window, numbers, data both ways, pings, text, resets."""

import pytest
from memory import pdus_in, put, session, take

from kit.iscsi.wire import Pdu
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.session import Command

LUN = b"\0\5" + bytes(6)
NONE = 0xFFFFFFFF


def reading(size, **more):
    return Command(LUN, b"\x28", into=memoryview(bytearray(size)), **more)


def writing(data):
    return Command(LUN, b"\x2a", data=memoryview(data))


def sent(one):
    return pdus_in(take(one.wire))


def give(one, *answers, piece=1 << 20):
    for answer in answers:
        put(one.wire, answer.encoded(one.wire.header_digest, one.wire.data_digest), piece, one.handle)


def data_in(tag, offset, data, flags=0, residual=0):
    return Pdu(0x25, flags, tag=tag, words=[NONE, 100, 2, 64, 0, offset, residual], data=data)


def response(tag, status=0, sense=b"", flags=0x80, residual=0, stat_sn=100, top=64, code=0):
    data = len(sense).to_bytes(2, "big") + sense if sense else b""
    return Pdu(0x21, flags, code, status, tag=tag, words=[0, stat_sn, 2, top, 0, 0, residual], data=data)


def r2t(tag, offset, length, transfer_tag=7):
    return Pdu(0x31, lun=LUN, tag=tag, words=[transfer_tag, 100, 2, 64, 0, offset, length])


@pytest.mark.parametrize("piece", [1, 7, 48, 1 << 20])
@pytest.mark.parametrize("digests", [False, True])
def test_a_read_fills_the_memory_of_its_command(piece, digests):
    one = session(header_digest=digests, data_digest=digests)
    (task,) = one.start([reading(1200)])
    tag = one._tag
    take(one.wire)

    give(one, data_in(tag, 0, b"a" * 500), data_in(tag, 500, b"b" * 700, flags=0x81), piece=piece)

    assert bytes(task.command.into) == b"a" * 500 + b"b" * 700
    assert (task.is_done, task.status, task.is_short, one.is_idle) == (True, 0, False, True)


def test_a_closed_window_holds_up_neither_pings_nor_the_logout_and_numbers_go_round():
    one = session(window=0)
    one.start([reading(512)])
    one.ping()
    one.log_out()
    assert [(pdu.opcode, pdu.immediate, pdu.words[1]) for pdu in sent(one)] == [(0x00, True, 1), (0x06, True, 1)]

    one = session(window=32)
    one._cmd_sn, one._max_cmd_sn = 0xFFFFFFFF, 0
    one.start([reading(512), reading(512), reading(512)])
    assert [pdu.words[1] for pdu in sent(one)] == [0xFFFFFFFF, 0]


def test_a_write_that_was_not_taken_whole_and_a_read_with_fewer_data_are_short_whatever_the_residual_says():
    one = session(immediate_data=False)
    tasks = one.start([*(reading(1024) for _ in range(3)), *(writing(bytes(1024)) for _ in range(3))])

    give(one, data_in(1, 0, bytes(512)), response(1))
    give(one, data_in(2, 0, bytes(1024), flags=0x83, residual=512))
    give(one, response(3))
    for tag, more in ((4, {}), (5, {"flags": 0x82, "residual": 512}), (6, {"flags": 0x84, "residual": 512})):
        give(one, response(tag, **more))

    assert [(task.is_short, task.moved) for task in tasks[:3]] == [(True, 512), (True, 512), (True, 0)]
    assert [(task.is_done, task.is_short) for task in tasks[3:]] == [(True, True)] * 3


@pytest.mark.parametrize(
    "answers",
    [
        [data_in(9, 0, bytes(4))],
        [data_in(1, 4, bytes(4))],
        [data_in(1, 0, bytes(4)), data_in(1, 0, bytes(4))],
        [data_in(1, 0, bytes(2048))],
        [data_in(1, 0xFFFFFE00, bytes(512))],
        [data_in(2, 0, bytes(4))],
        [response(9)],
        [response(1, flags=0x82, residual=1024), response(1)],
        [r2t(1, 0, 512)],
        [r2t(2, 0, 0)],
        [r2t(2, 512, 512)],
        [r2t(2, 0, 4096)],
        [r2t(2, 0, 1024), r2t(2, 0, 512)],
        [r2t(9, 0, 512)],
        [Pdu(0x23, tag=0)],
        [Pdu(0x24, tag=1)],
        [Pdu(0x26, tag=1)],
        [Pdu(0x22, tag=1)],
        [Pdu(0x3F, byte2=4, data=bytes(48))],
    ],
)
def test_what_was_not_asked_for_ends_the_session(answers):
    one = session(immediate_data=False, max_burst_bytes=1024)
    one.start([reading(1024), writing(bytes(4096))])

    with pytest.raises(Violation):
        give(one, *answers)


def test_a_ping_is_answered_with_its_lun_and_tag_and_one_ping_of_ours_is_out_at_a_time():
    one = session()
    give(one, Pdu(0x20, lun=LUN, tag=NONE, words=[0x55, 100, 1, 32]))
    (answer,) = sent(one)
    assert (answer.opcode, answer.immediate, answer.flags) == (0x00, True, 0x80)
    assert (answer.lun, answer.tag, answer.words[0], answer.words[2]) == (LUN, NONE, 0x55, 100)

    one.ping()
    one.ping()
    (ping,) = sent(one)
    assert (ping.words[0], ping.tag) == (NONE, 1)
    give(one, Pdu(0x20, tag=1, words=[NONE, 100, 1, 32]))
    one.ping()
    assert sent(one)[0].words[2] == 101


def steps_of(one, *pdus):
    before = one.steps
    give(one, *pdus)
    return one.steps - before


def test_a_target_that_trickles_makes_no_progress():
    """So `Link.wait` ends after NO_STEP_SECONDS. The first bytes are progress, and then each 64 KiB."""
    one = session()
    one.start([reading(200000)])
    tag = one._tag
    assert steps_of(one, data_in(tag, 0, b""), data_in(tag, 0, b"")) == 0
    assert steps_of(one, *[data_in(tag, at, b"a") for at in range(1000)]) == 1
    assert steps_of(one, data_in(tag, 1000, b"a" * 70000), data_in(tag, 71000, b"a")) == 1

    writer = session(immediate_data=False)
    writer.start([writing(bytes(200000))])
    tag = writer._tag
    assert steps_of(writer, *[r2t(tag, at, 1) for at in range(1000)]) == 1
    assert steps_of(writer, r2t(tag, 1000, 70000)) == 1


def test_a_slow_target_that_sends_the_data_of_many_commands_in_turns_makes_progress():
    """32 commands of 128 KiB in pieces of 8 KiB: a step comes with each 64 KiB of all, not of each command."""
    one = session()
    one.start([reading(131072) for _ in range(32)])
    tags = range(one._tag - 31, one._tag + 1)
    assert steps_of(one, *[data_in(tag, 0, b"a" * 8192) for tag in tags]) == 32
    assert steps_of(one, *[data_in(tag, 8192, b"a" * 8192) for tag in tags]) == 4


def test_the_last_bytes_that_a_target_asks_for_are_progress():
    writer = session(first_burst_bytes=512)
    writer.start([writing(bytes(8192))])  # the first bytes go with the command
    assert steps_of(writer, r2t(writer._tag, 512, 7000)) == 0
    assert steps_of(writer, r2t(writer._tag, 7512, 680)) == 1


def test_a_list_that_trickles_makes_no_progress_before_its_end():
    one = session()
    one.ask(b"SendTargets=All\0")
    part = Pdu(0x24, 0x40, tag=1, words=[0x66, 100, 2, 0x7000], data=b"x")
    assert steps_of(one, *[part] * 100) == 0
    assert steps_of(one, Pdu(0x24, 0x80, tag=1, words=[NONE, 100, 2, 0x7000], data=b"\0")) == 1


def test_text_without_an_end_is_refused():
    one = session()
    one.ask(b"SendTargets=All\0")
    part = Pdu(0x24, 0x40, tag=1, words=[0x66, 100, 2, 0x7000], data=bytes(262144))

    with pytest.raises(Violation, match="bytes of text"):
        for _ in range(20):
            give(one, part)
    with pytest.raises(Violation, match="empty"):
        empty = session()
        empty.ask(b"SendTargets=All\0")
        give(empty, Pdu(0x24, 0x00, tag=1, words=[0x66, 100, 2, 64]))


@pytest.mark.parametrize("may_fail, done", [(False, 2), (True, 4)])
def test_once_a_command_has_failed_those_that_wait_are_not_begun_unless_they_may_fail(may_fail, done):
    one = session(window=2)
    tasks = one.start([reading(512, may_fail=may_fail) for _ in range(4)])
    take(one.wire)

    give(one, response(1, status=2, sense=bytes(18)), response(2, flags=0x82, residual=512))
    if may_fail:
        give(one, response(3, status=2, sense=bytes(18)), response(4, flags=0x82, residual=512))
    else:
        assert sent(one) == []

    assert [task.is_done for task in tasks] == [number < done for number in range(4)]
    assert one.is_idle
