# SPDX-License-Identifier: LGPL-2.1-only
"""How a call of a driver opens a LUN, under the lock of the LUN: over a session of its own, or through disks.

    session_to_...    a session to the target
    disks_to_...      every disk and map of the LUN

The driver opens the LUN in a child process (host.own_process), because a stranger wrote what is on the LUN: metadata
may take hours to verify, and a disk may never answer. The call ends the child at its deadline, unless the child has
begun to write. The guard of a write is CallGuard: the call asks the pool before the LUN is opened, and again under the
locks.

A call over a session heeds no signal. A killed call leaves nothing on the host, and the next call finishes its run.
"""

import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Callable, ContextManager, Iterator, List, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, NotFound, in_state
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.iscsi import LunDevice
from relvmoiscsi.lun.gate import ChildGate, GatedDevice, SessionGate, StepDeadline
from relvmoiscsi.lun.guard import DISK_LOCKS, CallGuard, ReadGuard, wait_seconds
from relvmoiscsi.lun.opened import BLOCK_DEVICE, ISCSI_LUN, Guard, OpenLun, lun_locked
from relvmoiscsi.lun.users import Question

if TYPE_CHECKING:
    from relvmoiscsi.host.disk.block_device import HostDevice

_DISK_LOCK_SECONDS = 15.0  #: wait for a udev worker that has the disk open

#: opens the LUN in a session; takes whether the session writes, and the deadline of each wait
OpenSession = Callable[[bool, Deadline], ContextManager[LunDevice]]


Found = TypeVar("Found")


class CallLun:
    """The LUN that a call names. A transport opens it, under the lock of the LUN."""

    def __init__(self, scsi_id: str, deadline: Deadline, lock_seconds: float = math.inf) -> None:
        """`lock_seconds` limits the wait for a lock, together with the deadline."""
        self.scsi_id, self.deadline, self.lock_seconds = scsi_id, deadline, lock_seconds

    def read(self, work: Callable[[OpenLun], Found]) -> Found:
        """Open the LUN for reading, run `work` on it and return its result, which is a value of JSON.

        Afterwards the host is as before. Raises RelvmoiscsiError: Busy; NotFound; errors of `work`.
        """
        with self.locked():
            return self._read(work)

    def write(self, work: Callable[[OpenLun], Found], asks: Question, xapi: Xapi) -> Found:
        """Open the LUN for writing, run `work` on it and return its result, which is a value of JSON.

        No other relvmoiscsi of this host works on the LUN. xapi is asked under the locks who uses the LUN.

        The first write of `work` is refused after the deadline; a work that has begun to write goes on to its end.
        Afterwards the host is as before. A LUN with new identities may stay on the host.

        Raises as `read`, and Refused if a program uses the LUN. If the LUN could not be opened, the error says that
        nothing was written.
        """
        with ExitStack() as held:
            with in_state(lambda: state_unopened(self.deadline)):
                held.enter_context(self.locked())
            found = self._write(work, asks, xapi)
        return found  # noqa: RET504 - an ExitStack may end an error, says mypy

    def locked(self) -> ContextManager[None]:
        """Hold the lock of the LUN for the block: one call at a time. Raises Busy."""
        return lun_locked(self.scsi_id, THIS_HOST, self.deadline.within(self.lock_seconds))

    def _read(self, work: Callable[[OpenLun], Found]) -> Found:
        """Do as `read`, under the lock of the LUN."""
        raise NotImplementedError

    def _write(self, work: Callable[[OpenLun], Found], asks: Question, xapi: Xapi) -> Found:
        """Do as `write`, under the lock of the LUN."""
        raise NotImplementedError


def state_unopened(deadline: Deadline) -> str:
    """Return the state of a LUN that could not be opened for writing."""
    return deadline.disk_state if deadline.has_passed else NOTHING_WRITTEN


# --- over a session


@contextmanager
def session_to_read(scsi_id: str, session: OpenSession, deadline: Deadline) -> Iterator[OpenLun]:
    """Open a LUN over a session for reading, for the block. Raises RelvmoiscsiError."""
    steps = StepDeadline(deadline)
    with session(False, steps) as device:
        yield _of_session(device, SessionGate(steps, deadline), scsi_id, ReadGuard(scsi_id, THIS_HOST))


@contextmanager
def exclusive_guard(scsi_id: str, asks: Question, xapi: Xapi, deadline: Deadline) -> Iterator[CallGuard]:
    """Keep other programs of this host from writing to the LUN, for the block; give the guard of a write by a session.

    LVM commands have separate locks. Raises Refused if a program uses a disk of the LUN.
    """
    with ExitStack() as held:
        with in_state(lambda: state_unopened(deadline)):
            seen = held.enter_context(exclusive_open(scsi_id, deadline, THIS_HOST))
        yield CallGuard(asks, xapi, THIS_HOST, DISK_LOCKS if seen else (), deadline)


@contextmanager
def session_to_write(
    scsi_id: str, session: OpenSession, deadline: Deadline, guard: Guard, begin: Callable[[], None]
) -> Iterator[Tuple[OpenLun, int]]:
    """Open a LUN over a session for writing, for the block; give the LUN, and the kernel's number of the LUN.

    `begin` asks the parent of this child process before each write. Raises RelvmoiscsiError. If the LUN could not be
    opened, the error says that nothing was written.
    """
    steps = StepDeadline(deadline)
    with ExitStack() as held:
        with in_state(lambda: state_unopened(deadline)):
            device = held.enter_context(session(True, steps))
        gate = SessionGate(steps, deadline, begin)
        yield _of_session(device, gate, scsi_id, guard), device.info.kernel_number


def _of_session(device: LunDevice, gate: SessionGate, scsi_id: str, guard: Guard) -> OpenLun:
    return OpenLun(GatedDevice(device, gate), ISCSI_LUN, scsi_id, guard)


# --- through disks


@contextmanager
def disks_to_read(scsi_id: str, nodes: Sequence[str]) -> Iterator[OpenLun]:
    """Open these nodes that lead to a LUN for reading, for the block. Raises NotFound if all have gone."""
    with _opened(nodes, None) as device:
        yield OpenLun(device, BLOCK_DEVICE, scsi_id, ReadGuard(scsi_id, THIS_HOST))


@contextmanager
def disks_to_write(
    name: Tuple[str, str],
    nodes: Sequence[str],
    deadline: Deadline,
    guard: Guard,
    begin: Callable[[], None],
) -> Iterator[OpenLun]:
    """Open these nodes that lead to a LUN for writing, in a child process, for the block.

    `name` is the LUN's SCSIid and serial number, which the LUN says before each batch. `begin` asks the parent, which
    holds the lock of the LUN and does what `guard` asks of it. Raises as `disks_to_read`, Refused.
    """
    with _opened(nodes, deadline) as device:
        yield OpenLun(GatedDevice(NamedPath(device, name), ChildGate(begin)), BLOCK_DEVICE, name[0], guard)


@contextmanager
def _opened(nodes: Sequence[str], to_write: Optional[Deadline]) -> "Iterator[HostDevice]":
    """Open all these nodes, without nodes that have gone, and give the first. Raises NotFound if all have gone.

    For a write, the wait for a disk ends before the deadline `to_write`.
    """
    from relvmoiscsi.host.disk.block_device import open_device  # noqa: PLC0415 - a session needs no disk

    opened: List[HostDevice] = []
    gone: List[NotFound] = []
    with ExitStack() as stack:
        for node in nodes:
            try:
                seconds = wait_seconds(to_write, _DISK_LOCK_SECONDS) if to_write is not None else 0.0
                opened.append(stack.enter_context(open_device(node, to_write is not None, lock_timeout=seconds)))
            except NotFound as problem:
                gone.append(problem)
        if not opened:
            raise gone[0]
        yield opened[0]
