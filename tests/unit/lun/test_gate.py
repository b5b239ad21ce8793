# SPDX-License-Identifier: LGPL-2.1-only
"""What a batch passes before it goes to a LUN."""

import pytest

from kit.clock import Clock
from kit.sparse import SparseDisk
from relvmoiscsi.deadline import BATCH_SECONDS, NO_DEADLINE, NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError
from relvmoiscsi.lun.gate import FIRST_SECONDS, ChildGate, GatedDevice, SessionGate, StepDeadline


def test_a_device_asks_before_its_first_write_or_flush_and_each_batch_after_that():
    asked = []
    disk = SparseDisk(4096)
    device = GatedDevice(disk, ChildGate(lambda: asked.append(disk.read([Range(0, 1)])[0])))

    assert device.read([Range(0, 1)]) == [b"\0"] and asked == []
    device.end_late_writes()
    assert asked == []
    for number in (1, 2):
        device.write([Chunk(0, bytes([number]) * 512)])
        device.flush()
    device.read([Range(0, 1)])
    device.end_late_writes()

    assert asked == [b"\0", b"\1", b"\1", b"\2", b"\2", b"\2"]
    assert (device.name, device.size_bytes, device.block_size) == (disk.name, disk.size_bytes, disk.block_size)
    GatedDevice(disk, ChildGate(lambda: asked.append("flush"))).flush()
    assert asked[6:] == ["flush"]


# --- over a session, whose waits end at the time of the step


class Timed(SparseDisk):
    """A LUN over a session. Each batch takes some seconds, and remembers how long the session would have waited."""

    def __init__(self, clock, steps, seconds=1):
        super().__init__(4096)
        self.clock, self.steps, self.seconds, self.waits, self.error = clock, steps, seconds, [], None

    def _pass(self):
        self.waits.append(self.steps.left)
        self.clock.now += self.seconds
        if self.error is not None:
            raise self.error

    def read(self, ranges):
        self._pass()
        return super().read(ranges)

    def write(self, chunks):
        self._pass()
        super().write(chunks)


ZEROS = [Chunk(0, bytes(512))]


def test_a_call_over_a_session_has_its_own_time_to_the_first_write_and_then_a_limit_for_each_batch():
    clock = Clock()
    call = Deadline(50, clock, NOT_BEGUN)
    disk = Timed(clock, StepDeadline(call), seconds=20)
    device = GatedDevice(disk, SessionGate(disk.steps, call))

    device.read([Range(0, 1)])
    device.read([Range(0, 1)])
    device.write(ZEROS)  # its answer may come after the deadline
    device.write(ZEROS)
    device.read([Range(0, 1)])

    assert disk.waits == [50, 30, 10 + FIRST_SECONDS, BATCH_SECONDS, BATCH_SECONDS]
    assert disk.steps.over("the answer").disk_state == "", "the engine knows the state of the LUN"


def test_no_first_write_starts_after_the_deadline_of_the_call():
    clock = Clock()
    call = Deadline(50, clock, NOT_BEGUN)
    disk = Timed(clock, StepDeadline(call), seconds=60)
    device = GatedDevice(disk, SessionGate(disk.steps, call))
    device.read([Range(0, 1)])

    with pytest.raises(
        OutOfTime, match="The 50 seconds of this call were over before the first write to the LUN"
    ) as caught:
        device.write(ZEROS)

    assert caught.value.disk_state == NOT_BEGUN and len(disk.waits) == 1


def test_a_call_over_a_session_asks_its_parent_before_its_first_write_and_each_batch_after_that():
    clock, asked = Clock(), []
    call = Deadline(50, clock, NOT_BEGUN)
    disk = Timed(clock, StepDeadline(call), seconds=30)
    device = GatedDevice(disk, SessionGate(disk.steps, call, lambda: asked.append(len(disk.waits))))

    device.read([Range(0, 1)])
    device.write(ZEROS)
    device.read([Range(0, 1)])
    device.write(ZEROS)
    assert asked == [1, 2, 3], "each time before the batch"

    late = GatedDevice(disk, SessionGate(disk.steps, call, lambda: asked.append("late")))
    with pytest.raises(OutOfTime):
        late.write(ZEROS)
    assert "late" not in asked


def test_a_command_has_a_limit_for_each_batch_from_the_first():
    clock = Clock()
    steps = StepDeadline.of_steps(120)
    assert 60 < steps.left <= 120, "of the login"
    steps._clock = clock
    disk = Timed(clock, steps, seconds=0)
    device = GatedDevice(disk, SessionGate(steps, NO_DEADLINE))

    device.read([Range(0, 1)])
    clock.now += 500
    device.write(ZEROS)

    assert disk.waits == [120, 120]


@pytest.mark.parametrize("sm_key, state", [(OutOfTime.sm_key, NOT_BEGUN), ("EIO", "")])
def test_a_read_that_the_time_of_the_call_ends_says_that_the_lun_is_unchanged(sm_key, state):
    clock = Clock()
    call = Deadline(50, clock, NOT_BEGUN)
    disk = Timed(clock, StepDeadline(call))
    disk.error = DeviceError("LUN", "read", 0, 1, "no answer")
    disk.error.sm_key = sm_key

    with pytest.raises(DeviceError) as caught:
        GatedDevice(disk, SessionGate(disk.steps, call)).read([Range(0, 1)])

    assert caught.value.disk_state == state
