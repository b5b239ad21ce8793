# SPDX-License-Identifier: LGPL-2.1-only
"""The full feature phase without a socket: window, numbers, data both ways, pings, text, resets."""

import pytest
from memory import pdus_in, put, session, take

from kit.iscsi.wire import Pdu
from relvmoiscsi.iscsi.faults import Lost, Violation
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


def test_a_command_says_how_much_it_reads_or_writes_and_takes_a_number():
    one = session(immediate_data=False)
    one.start([reading(1024), writing(bytes(512)), Command(LUN, b"\x35" + bytes(9))])

    first, second, third = sent(one)
    assert [pdu.flags for pdu in (first, second, third)] == [0xC1, 0xA1, 0x81]
    assert [pdu.words[0] for pdu in (first, second, third)] == [1024, 512, 0]
    assert [pdu.words[1] for pdu in (first, second, third)] == [1, 2, 3]
    assert [pdu.words[2] for pdu in (first, second, third)] == [100, 100, 100]
    assert third.cdb == b"\x35" + bytes(15)


def test_no_more_than_the_window_is_under_way():
    one = session(window=2)
    one.start([reading(512) for _ in range(5)])
    assert [pdu.words[1] for pdu in sent(one)] == [1, 2]

    give(one, response(1, top=3, flags=0x82, residual=512))
    assert [pdu.words[1] for pdu in sent(one)] == [3]

    give(one, response(2, top=1, flags=0x82, residual=512))  # an old number does not close it, nor open it
    assert sent(one) == []
    give(one, Pdu(0x20, tag=NONE, words=[NONE, 101, 3, 5]))
    assert [pdu.words[1] for pdu in sent(one)] == [4, 5]


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


def test_a_small_write_goes_with_its_command():
    one = session(first_burst_bytes=1024, max_send_bytes=65536)
    (task,) = one.start([writing(bytes(range(256)) * 4)])

    (command,) = sent(one)
    assert command.data == bytes(range(256)) * 4
    give(one, response(1))
    assert (task.is_done, task.is_short) == (True, False)


def test_the_rest_of_a_write_is_sent_as_the_target_asks():
    data = bytes(range(256)) * 16
    one = session(first_burst_bytes=512, max_send_bytes=1000, max_burst_bytes=2048)
    (task,) = one.start([writing(data)])
    assert sent(one)[0].data == data[:512]

    give(one, r2t(1, 512, 2048, transfer_tag=77))
    out = sent(one)
    assert [(pdu.opcode, pdu.tag, pdu.lun, pdu.words[0]) for pdu in out] == [(5, 1, LUN, 77)] * 3
    assert [(pdu.flags, pdu.words[4], pdu.words[5]) for pdu in out] == [(0, 0, 512), (0, 1, 1512), (0x80, 2, 2512)]
    assert b"".join(pdu.data for pdu in out) == data[512:2560]

    give(one, r2t(1, 2560, 1536))
    assert [pdu.words[4] for pdu in sent(one)] == [0, 1]
    give(one, response(1))
    assert not task.is_short


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
        [r2t(2, 0, 2048)],
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


def event(code):
    return Pdu(0x32, words=[0, 1, 1, 1, code << 24])


@pytest.mark.parametrize("answer", [response(1, code=1), event(2), event(3)])
def test_a_target_that_ends_the_connection_is_lost(answer):
    one = session()
    one.start([reading(1024)])

    with pytest.raises(Lost) as caught:
        give(one, answer)

    assert not isinstance(caught.value, Violation)


@pytest.mark.parametrize("code, wants", [(0, False), (1, True), (4, True), (255, False)])
def test_a_target_may_ask_for_a_logout(code, wants):
    one = session()
    give(one, event(code))
    assert one.wants_end is wants


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


@pytest.mark.parametrize("piece", [1, 7, 48, 1 << 20])
@pytest.mark.parametrize("flags", [0x00, 0x40], ids=["F=0", "C=1"])
def test_text_comes_in_parts(piece, flags):
    one = session()
    one.ask(b"SendTargets=All\0")
    (request,) = sent(one)
    assert (request.words[0], request.words[1], request.data) == (NONE, 1, b"SendTargets=All\0")

    give(one, Pdu(0x24, flags, lun=LUN, tag=request.tag, words=[0x66, 100, 2, 64], data=b"Targe"), piece=piece)
    (more,) = sent(one)
    assert (more.tag, more.words[0], more.words[1], more.data, more.lun) == (request.tag, 0x66, 2, b"", LUN)
    assert not one.text_is_done

    give(one, Pdu(0x24, tag=request.tag, words=[NONE, 101, 3, 64], data=b"tName=x\0"), piece=piece)
    assert (one.text_is_done, one.take_text()) == (True, b"TargetName=x\0")


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


def test_a_lun_is_reset():
    one = session()
    one.reset_lun(LUN)
    (request,) = sent(one)

    assert (request.opcode, request.immediate, request.flags, request.lun) == (0x02, True, 0x85, LUN)
    assert one.reset_response is None
    give(one, Pdu(0x22, byte2=5, tag=request.tag, words=[0, 100, 1, 32]))
    assert one.reset_response == 5


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


def test_what_was_acknowledged_is_what_took_a_number():
    one = session()
    one.start([reading(512), reading(512)])
    take(one.wire)

    give(
        one, data_in(1, 0, bytes(100)), Pdu(0x20, tag=NONE, words=[NONE, 180, 1, 32]), data_in(1, 100, bytes(412), 0x81)
    )
    one.ping()

    assert sent(one)[0].words[2] == 101
