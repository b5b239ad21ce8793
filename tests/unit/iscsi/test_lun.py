# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN survives its sessions: what is repeated, what is looked at before, what ends it. No socket."""

import errno
import random
import sys

import pytest
from memory import ANSWER_LOST, LOST, MemorySessions, MemoryTarget

from kit.examples import seeds
from kit.iscsi import scsi
from kit.iscsi.lun import Lun as TargetLun
from relvmoiscsi.deadline import OutOfTime
from relvmoiscsi.device import Chunk, ForwardingDevice, Range
from relvmoiscsi.errors import DeviceError, Lost, Refused, Truncated, UsageError
from relvmoiscsi.iscsi import looking
from relvmoiscsi.iscsi import lun_device as lun_module
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.looking import look
from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.scsi import Verdict

MIB = 1 << 20
READ, WRITE, FLUSH = scsi.READ_10, scsi.WRITE_10, scsi.SYNCHRONIZE_CACHE_10
LOOK = 2  #: commands of a look that the target counts
ATTENTION = scsi.check(6, 0x29)


def opened(target=None, is_reset=True, **more):
    """A LUN that was looked at, which the script of the target does not count, and reset for the first session."""
    target = target or MemoryTarget(TargetLun(0, MIB), **more)
    sessions = MemorySessions(target)
    link = sessions.log_in()
    script, target.script = target.script, {}
    (one,) = look(link, [target.lun.address])
    target.script, target.commands, target.events = script, [], []
    device = LunDevice(sessions, link, one, "the LUN", writable=True)
    device._reset_on = link if is_reset else None
    return target, sessions, device


def test_a_large_copy_is_refused_where_digests_are_slow_also_behind_other_devices():
    _, sessions, device = opened()
    slow = ForwardingDevice(LunDevice(sessions, device._link, device.info, "the LUN", True, copy_limit_bytes=MIB))

    device.verify_copy(MIB + 1)
    slow.verify_copy(MIB)
    with pytest.raises(Refused, match="demands digests.* copying 1 MiB of guest data"):
        slow.verify_copy(MIB + 1)


def block(number, count=1):
    return bytes([number]) * 512 * count


def test_ranges_and_chunks_go_out_merged_and_in_blocks():
    target, _, device = opened()

    device.write([Chunk(512, block(1)), Chunk(1024, block(2)), Chunk(65536, block(3))])
    found = device.read([Range(700, 600), Range(0, 512), Range(65540, 4), Range(9, 0)])
    device.flush()

    assert target.events == [WRITE, WRITE, READ, READ, FLUSH]
    assert found == [block(1)[:324] + block(2)[:276], bytes(512), b"\3\3\3\3", b""]
    assert target.lun.disk.peek(512, 1024) == block(1) + block(2)


def test_what_is_longer_than_a_request_goes_out_in_pieces_that_lie_where_they_belong():
    target, _, device = opened(MemoryTarget(TargetLun(0, 4 * MIB)))
    data = b"".join(b"%0511d\n" % number for number in range(5 * MIB // 1024))

    device.write([Chunk(4096, data)])

    assert target.lun.disk.peek(4096, len(data)) == data
    assert device.read([Range(4101, len(data) - 5)]) == [data[5:]]
    assert target.events == [WRITE, WRITE, WRITE, READ, READ, READ]


def test_twice_as_many_writes_cost_twice_as_many_calls():
    def calls_of(count):
        calls = []
        _, _, device = opened(MemoryTarget(TargetLun(0, 4 * MIB)))
        chunks = [Chunk(4096 * number, block(1)) for number in range(count)]
        sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code.co_filename == here else None)
        try:
            device.write(chunks)
        finally:
            sys.setprofile(None)
        return len(calls)

    here = lun_module.__file__
    assert calls_of(400) <= 2.5 * calls_of(200)


def test_what_is_not_on_the_lun_is_a_bug_or_truncated_and_asked_of_nobody():
    target, _, device = opened()

    with pytest.raises(Truncated):
        device.read([Range(MIB - 4, 8)])
    for chunk in (Chunk(3, block(1)), Chunk(0, b"short"), Chunk(MIB, block(1)), Chunk(-512, block(1))):
        with pytest.raises(ValueError):
            device.write([chunk])
    with pytest.raises(ValueError):
        device.read([Range(-1, 4)])
    device.writable = False
    with pytest.raises(UsageError):
        device.write([Chunk(0, block(1))])

    assert target.commands == []


def power_cut(target):
    target.lun.lose_unflushed()
    return LOST


def test_all_since_the_last_flush_is_written_again_batch_by_batch():
    """A target that has lost its power has lost what it had acknowledged."""
    target, _, device = opened(script={5: power_cut})
    device.write([Chunk(0, block(1))])
    device.flush()
    device.write([Chunk(0, block(2)), Chunk(4096, block(3))])
    device.write([Chunk(0, block(4))])

    device.flush()

    assert target.lun.disk.peek(0, 512) + target.lun.disk.peek(4096, 512) == block(4) + block(3)
    assert target.events == [WRITE, FLUSH, WRITE, WRITE, WRITE, "session", "reset", WRITE, WRITE, WRITE, FLUSH]


@pytest.mark.parametrize("how, looks, sessions", [(LOST, 2, 2), (ATTENTION, 1, 1)], ids=["lost", "attention"])
def test_the_lun_is_looked_at_on_a_new_session_and_behind_an_attention_and_all_is_written_again(how, looks, sessions):
    """The target may have lost its cache. A new session is reset, and the LUN looked at behind the reset as well."""
    target, _, device = opened(script={1: how})
    device.write([Chunk(0, block(1))])

    device.write([Chunk(4096, block(2))])

    assert target.commands == [WRITE, WRITE, *[0x00, 0x1A] * looks, WRITE, WRITE]
    assert target.sessions == sessions


def other_identity(target):
    target.lun.naa = "6001405ffffffffff000000000000000"


def smaller(target):
    target.lun.size_bytes = MIB // 2


@pytest.mark.parametrize("how", [LOST, ATTENTION, scsi.check(6, 0x3F, 0x0E)], ids=["lost", "attention", "remapped"])
@pytest.mark.parametrize(
    "change, words",
    [
        (other_identity, "is 36001405fffff.* now.*mapped another LUN in its place|mapped another LUN.*36001405fffff"),
        (smaller, "had 1048576 bytes in blocks of 512, and has 524288 bytes in blocks of 512 now"),
    ],
)
def test_another_lun_in_its_place_is_not_touched_by_any_write_of_a_batch(how, change, words):
    def happen(target):
        change(target)
        return how

    target, _, device = opened(script={0: happen})

    with pytest.raises(Refused, match=words) as caught:
        device.write([Chunk(4096 * number, block(1)) for number in range(8)])

    assert (caught.value.sm_key, target.lun.writes) == ("ISCSIDevice", 0)


def other_blocks(target):
    target.lun.block_size = target.lun.physical_block_size = 4096


def no_size(target):
    target.lun.capacity_16 = lambda: bytes(15)


@pytest.mark.parametrize(
    "change, words",
    [
        (smaller, "has 524288 bytes in blocks of 512 now"),
        (other_blocks, "has 1048576 bytes in blocks of 4096 now"),
        (no_size, "has 0 bytes"),
    ],
)
def test_a_lun_that_becomes_smaller_without_a_unit_attention_ends_every_batch(change, words):
    target, _, device = opened()
    device.write([Chunk(0, block(1))])

    change(target)

    for act in (device.flush, lambda: device.write([Chunk(512, block(2))]), lambda: device.read([Range(0, 512)])):
        with pytest.raises(Refused, match=f"^the LUN had 1048576 bytes in blocks of 512, and {words}") as caught:
            act()
        assert caught.value.sm_key == "ISCSIDevice"
    assert target.lun.writes == 1


def test_a_lun_that_becomes_smaller_beside_the_last_write_of_a_run_has_no_flush_that_succeeds():
    """The size is asked beside the flush: a run says that it has succeeded after a flush."""
    target, _, device = opened(script={1: smaller})
    device.write([Chunk(0, block(1))])

    with pytest.raises(Refused, match="has 524288 bytes"):
        device.flush()

    assert target.events == [WRITE, FLUSH]


@pytest.mark.parametrize("how", [None, LOST, ATTENTION], ids=["silently", "lost", "attention"])
def test_a_lun_that_has_grown_is_gone_on_with(how):
    """Everything that a run reads and writes lies before the old end."""

    def grow(target):
        target.lun.disk = target.lun.disk.grown(2 * MIB)
        target.lun.size_bytes = 2 * MIB
        return how

    target, _, device = opened(script={0: grow})

    device.write([Chunk(MIB - 512, block(1))])
    device.flush()

    assert (target.lun.disk.peek(MIB - 512, 512), device.size_bytes) == (block(1), MIB)
    with pytest.raises(Truncated):
        device.read([Range(MIB, 512)])


@pytest.mark.parametrize(
    "answer, events",
    [
        (ATTENTION, [WRITE, WRITE, FLUSH]),  # an attention may mean that the target has lost its cache
        (scsi.Result(0x08), ["pause 0.1", WRITE, FLUSH]),
        (scsi.check(2, 4, 0x0B), ["logout", "session", "reset", WRITE, WRITE, FLUSH]),
    ],
    ids=["attention", "busy", "standby"],
)
def test_a_lun_that_does_not_tell_its_size_is_judged_as_by_any_other_command(answer, events):
    target, _, device = opened()
    device.write([Chunk(0, block(1))])
    target.events, answers, result = [], [answer], target.result
    target.result = lambda cdb, data: answers.pop() if cdb[0] == 0x9E and answers else result(cdb, data)

    device.write([Chunk(512, block(2))])
    device.flush()

    assert target.events == events
    assert target.lun.disk.peek(0, 1024) == block(1) + block(2)


def test_a_lun_that_knows_only_the_short_command_for_its_size_becomes_smaller_as_any_other():
    target = MemoryTarget(TargetLun(0, MIB))
    known = target.result
    target.result = lambda cdb, data: scsi.check(5, 0x20) if cdb[0] == 0x9E else known(cdb, data)
    target, _, device = opened(target)
    device.write([Chunk(0, block(1))])

    smaller(target)

    with pytest.raises(Refused, match="has 524288 bytes"):
        device.flush()


def test_unit_attentions_without_end_are_an_error():
    target, _, device = opened(script={number: ATTENTION for number in range(1000) if number % (LOOK + 1) == 0})

    with pytest.raises(DeviceError, match="sense 6/29/00"):
        device.read([Range(0, 512)])

    assert target.commands.count(READ) == 9


def test_a_busy_target_is_asked_later_and_for_less():
    target, _, device = opened(script={0: scsi.Result(0x08), 1: scsi.Result(0x28)})

    device.read([Range(0, 512)])

    assert target.events == ["pause 0.1", "pause 0.1", READ]
    assert device._link.session.depth == 8


def test_a_standby_portal_is_left_for_another():
    target, sessions, device = opened(script={1: scsi.check(2, 4, 0x0B)})
    device.write([Chunk(0, block(1))])

    device.write([Chunk(4096, block(2))])

    assert sessions.moves == 1
    assert target.events == [WRITE, "logout", "session", "reset", WRITE, WRITE]


@pytest.mark.parametrize("sense, number", [((3, 0x11), errno.ENODATA), ((4, 0x44), errno.EIO)])
def test_a_read_that_the_medium_does_not_give_has_the_errno_of_the_kernel(sense, number):
    _, _, device = opened(script={0: scsi.check(*sense)})

    with pytest.raises(DeviceError, match=r"read of 512 bytes at byte 0 failed: sense") as caught:
        device.read([Range(0, 512)])

    assert (caught.value.sm_key, caught.value.errno) == ("EIO", number)


def test_a_lun_that_does_not_know_flushes_writes_through_and_a_flush_that_fails_is_an_error():
    _, _, device = opened(script={0: scsi.check(5, 0x20), 1: scsi.check(3, 0x0C)})
    device.flush()

    with pytest.raises(DeviceError, match="flush failed: sense 3/0c/00"):
        device.flush()


def test_three_violations_in_a_row_end_it_and_cuts_do_not():
    def violate(_target):
        raise Violation("The target rejected a request (reason 0x04).")

    step = LOOK + 1
    target, _, device = opened(script={0: LOST, **{step * n: violate for n in (1, 2)}, 3 * step: LOST})
    device.read([Range(0, 512)])
    assert target.sessions == 5

    target, _, device = opened(script={step * n: violate for n in range(3)})
    with pytest.raises(DeviceError, match="3 times in a row. The target rejected a request"):
        device.read([Range(0, 512)])
    assert target.sessions == 3


def test_where_no_new_session_comes_the_error_is_one_of_the_device():
    target = MemoryTarget(TargetLun(0, MIB), script={0: LOST})
    _, sessions, device = opened(target)
    sessions._most = 1

    with pytest.raises(DeviceError, match="write of 512 bytes at byte 0 failed: The 50 seconds") as caught:
        device.write([Chunk(0, block(1))])

    assert (caught.value.sm_key, caught.value.disk_state) == ("SRUnavailable", "")


def test_no_more_is_kept_than_can_be_and_a_flush_comes_between(monkeypatch):
    monkeypatch.setattr(lun_module, "KEPT_BYTES", 2048)
    target, _, device = opened(script={5: LOST})

    for number in range(3):
        device.write([Chunk(4096 * number, block(number + 1, 2))])
    device.write([Chunk(65536, block(8, 2)), Chunk(131072, block(9, 2)), Chunk(196608, block(10, 2))])
    device.flush()

    assert target.events[:3] == [WRITE, WRITE, FLUSH]
    kept = 0
    for event in target.events:
        kept = 0 if event in (FLUSH, "session") else kept + 1024
        assert kept <= 3072
    assert [target.lun.disk.peek(4096 * n, 512) for n in range(3)] == [block(1), block(2), block(3)]
    assert target.lun.disk.peek(196608, 1024) == block(10, 2)


def test_an_attempt_has_as_many_writes_as_it_may_and_asks_for_the_names_and_the_first_write_goes_alone(monkeypatch):
    monkeypatch.setattr(lun_module, "ATTEMPT_BYTES", 2048)
    target, _, device = opened()
    sent, result = "", target.result

    def noted(cdb, data):
        nonlocal sent
        sent += "w" if cdb[0] == WRITE else " "
        return result(cdb, data)

    target.result = noted
    device.write([Chunk(4096 * number, block(1, 2)) for number in range(6)])

    assert sent.split() == ["w", "ww", "ww", "w"]


def test_late_writes_are_fenced_off_by_a_reset_before_the_first_write_of_each_session():
    target, _, device = opened(is_reset=False, script={5: LOST})

    device.read([Range(0, 512)])
    device.write([Chunk(0, block(1))])
    device.write([Chunk(512, block(1))])
    device.flush()

    assert target.events == [READ, "reset", WRITE, WRITE, "session", "reset", WRITE, WRITE, FLUSH]


def test_nothing_is_written_to_a_lun_that_the_target_does_not_reset():
    """A late write of an earlier session could change what is written."""
    target, _, device = opened(is_reset=False)
    target.reset_response = 5

    with pytest.raises(Refused, match="does not reset the LUN .*response 5.* give the block device"):
        device.write([Chunk(0, block(1))])

    assert target.lun.writes == 0


def test_a_lun_that_is_busy_when_it_is_asked_for_its_name_is_looked_at_until_it_tells(monkeypatch):
    target, _, device = opened()
    busy = LunInfo(target.lun.address, problem="busy", verdict=Verdict.LATER)
    names, looks = [busy], [[busy], [busy]]
    name_of, look_at = looking.name_of, looking.look
    monkeypatch.setattr(looking, "name_of", lambda *given: names.pop() if names else name_of(*given))
    monkeypatch.setattr(looking, "look", lambda *given: looks.pop() if looks else look_at(*given))

    device.flush()

    assert (names, looks) == ([], [])
    assert target.events == [FLUSH]


@pytest.mark.parametrize("error", [Lost("the connection was cut"), OutOfTime("The time is over.")])
def test_a_session_that_ends_behind_the_last_answer_is_no_bug(monkeypatch, error):
    target, _, device = opened()
    name_of, ends = looking.name_of, [error]

    def end(*given):
        if ends:
            raise ends.pop()
        return name_of(*given)

    monkeypatch.setattr(looking, "name_of", end)
    if isinstance(error, Lost):
        device.read([Range(0, 512)])
    else:
        with pytest.raises(DeviceError):
            device.read([Range(0, 512)])


def test_a_target_that_asks_for_a_logout_gets_one_between_batches_and_the_session_ends_with_one():
    target, _, device = opened()
    device._link.session.wants_end = True

    device.read([Range(0, 512)])
    device.close()
    device.close()

    for late in (lambda: device.read([Range(0, 512)]), device.end_late_writes, device.flush):
        with pytest.raises(DeviceError, match="the device is closed"):
            late()
    assert target.events == ["logout", "session", READ, "logout"], "a closed device logs in again"


@pytest.mark.parametrize("seed", seeds(range(60), 10))
def test_whatever_is_lost_the_lun_holds_what_was_written(seed):
    """Cuts, attentions, power cuts at random commands: after a flush all is there, and no read is wrong."""
    dice = random.Random(f"lost {seed}")

    def power_cut(target):
        target.lun.lose_unflushed(lambda _: dice.random() < 0.5)
        return LOST

    happenings = [LOST, ANSWER_LOST, ATTENTION, power_cut, scsi.Result(0x08), scsi.Result(0x28)]
    script = {number: dice.choice(happenings) for number in range(400) if dice.random() < 0.06}
    target, _, device = opened(script=script, piece=dice.choice([1 << 20, 48, 7]))
    target.uncounted = (scsi.INQUIRY,)
    expected = bytearray(MIB)
    for number in range(12):
        starts = sorted(dice.sample(range(0, 200), 4))
        chunks = [Chunk(512 * start, block(dice.randrange(256))) for start in starts]
        device.write(chunks)
        for chunk in chunks:
            expected[chunk.offset : chunk.end] = chunk.data
        if dice.random() < 0.4:
            device.flush()
            assert not target.lun.unflushed
        ranges = [Range(dice.randrange(100000), dice.randrange(3000)) for _ in range(3)]
        assert device.read(ranges) == [bytes(expected[part.offset : part.end]) for part in ranges], number
    device.flush()

    assert target.lun.disk.peek(0, MIB) == bytes(expected)


def test_the_luns_of_a_long_list_are_read_in_parts(monkeypatch):
    """A target may list 65,535 LUNs, before one of them has answered: the answers of a LUN take 9 KiB."""
    link, asked, real = MemorySessions(MemoryTarget(TargetLun(0, MIB))).log_in(), [], looking.read
    monkeypatch.setattr(looking, "read", lambda *args: asked.append(len(args[1])) or real(*args))
    luns = [number.to_bytes(2, "big") + bytes(6) for number in range(looking._AT_ONCE + 5)]

    found = looking.names(link, luns)

    assert [one.lun for one in found] == luns and found[0].is_disk
    assert max(asked) <= 3 * looking._AT_ONCE
