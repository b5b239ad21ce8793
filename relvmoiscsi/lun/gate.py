# SPDX-License-Identifier: LGPL-2.1-only
"""What each batch of reads and writes passes before it goes to a LUN: the time of the call.

    command          each batch has a time limit of its own                                    SessionGate
    driver, iSCSI    the same, and the child asks its parent, who watches the time             SessionGate
    driver, disks    the child asks its parent                                                 ChildGate
    image, disk      nothing: the kernel answers or fails

Name and size of the LUN, and the commit record of another run, are the transport's to ask (iscsi.LunDevice,
host.disk.NamedPath, device.Fence): each asks where the question costs nothing.
"""

import math
from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator, List, Sequence

from relvmoiscsi.deadline import BATCH_SECONDS, Deadline, OutOfTime
from relvmoiscsi.device import Chunk, Device, ForwardingDevice, Range
from relvmoiscsi.errors import DeviceError

#: after the deadline, for the answer to the first write. If a lost session delays that write for longer, the write
#: fails: the caller may have taken the LUN away
FIRST_SECONDS = 5.0

#: called with whether the batch writes; a flush counts as a write, because a flush may take as long
Gate = Callable[[bool], ContextManager[object]]


class GatedDevice(ForwardingDevice):
    """A device whose batches pass a gate. Errors of the gate propagate, and the batch does not go to the LUN."""

    def __init__(self, device: Device, gate: Gate) -> None:
        super().__init__(device)
        self._gate = gate

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        with self._gate(False):
            return super().read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        with self._gate(True):
            super().write(chunks)

    def flush(self) -> None:
        with self._gate(True):
            super().flush()

    def end_late_writes(self, of_another_host: bool = False) -> None:
        with self._gate(False):
            super().end_late_writes(of_another_host)


class StepDeadline(Deadline):
    """The deadline of a call, until `renew` starts a limit of `step_seconds` for one batch."""

    def __init__(self, call: Deadline, step_seconds: float = BATCH_SECONDS) -> None:
        super().__init__(call.left, call._clock, call.state)
        self.seconds, self._step_seconds = call.seconds, step_seconds

    @classmethod
    def of_steps(cls, seconds: float) -> "StepDeadline":
        """Return the deadline of a caller without a time limit: each batch may take `seconds`."""
        found = cls(Deadline(math.inf), seconds)
        found.renew()
        return found

    def renew(self) -> None:
        self._end, self.seconds = self._clock() + self._step_seconds, self._step_seconds
        self.of_what, self.state = "for this step", ""  # the engine knows the state of the LUN

    def extend(self, seconds: float) -> None:
        self._end += seconds


class SessionGate:
    """The gate of a LUN over a session of this process, whose waits end at `steps`.

    No first write starts after the deadline `call`. After the first write, the work goes on to its end. In a child
    process of the driver, `begin` asks the parent (host.own_process) from the first write on.
    """

    def __init__(self, steps: StepDeadline, call: Deadline, begin: Callable[[], None] = lambda: None) -> None:
        self._steps, self._call, self._begin, self._has_begun = steps, call, begin, math.isinf(call.seconds)

    @contextmanager
    def __call__(self, writes: bool) -> Iterator[None]:
        if self._has_begun:
            self._begin()
            self._steps.renew()
            yield
        elif writes:
            self._call.check("the first write to the LUN")
            self._begin()
            self._steps.extend(FIRST_SECONDS)
            yield
            self._has_begun = True
        else:
            try:
                yield
            except DeviceError as error:  # no refusal: the engine takes a refusal for the content of the LUN
                if error.sm_key == OutOfTime.sm_key:
                    error.in_state(self._call.state)  # the LUN is unchanged
                raise


class ChildGate:
    """The gate of a child process: `begin` asks the parent (host.own_process) from the first write on."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._has_begun = begin, False

    @contextmanager
    def __call__(self, writes: bool) -> Iterator[None]:
        if writes or self._has_begun:
            self._begin()
            self._has_begun = True
        yield
