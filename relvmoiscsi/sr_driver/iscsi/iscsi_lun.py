# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN over an iSCSI session of this process. No disk of the LUN comes to this host, so no disk is hidden or removed.

    lock     one call at a time for a LUN
    seen     this host may have disks of the LUN over other sessions: open these disks exclusively during a write
    open     log in; the LUN is a device of the session
    work     read. Until the first write, the deadline counts and a SIGTERM is heeded
    end      log out. If this host has a session of SM to the target, add the LUN to that session

When a call is killed, its connection closes. The target may still have the session. So the next writing call for the
LUN first ends that session: all writing sessions for the same host, target and LUN have one ISID
(iscsi/target_sessions.py).
"""

import logging
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ContextManager, Iterator, List, Sequence, Tuple

from relvmoiscsi.deadline import BATCH_SECONDS, Deadline, OutOfTime
from relvmoiscsi.device import Chunk, ForwardingDevice, Range
from relvmoiscsi.errors import DeviceError, in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.iscsi_sessions import add_lun
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.sr_driver.iscsi.target_access import Access
from relvmoiscsi.sr_driver.transport import Lun, Work

log = logging.getLogger(__name__)

#: after the deadline, for the answer to the first write. If a lost session delays that write for longer, the write
#: fails: the caller may have taken the LUN away
FIRST_SECONDS = 5.0


class IscsiLun(Lun):
    """A LUN that comes and goes with a session of this process. The kernel's sessions are not changed."""

    def __init__(self, access: Access, deadline: Deadline, lock_seconds: float) -> None:
        super().__init__(access.config.scsi_id, deadline, lock_seconds)
        self._access = access

    def with_device(self, work: Work, writable: bool) -> str:
        with ExitStack() as locked:
            with self._unopened(writable):
                locked.enter_context(lun_lock(self.scsi_id, THIS_HOST, self._lock_time))
            answer, number = self._worked_on(work, writable)
            if writable:
                deadline = self.deadline.for_cleanup()
                add = partial(add_lun, self._access.config.target_iqn, self.scsi_id, number, deadline, THIS_HOST)
                quietly("adding the LUN to a session that this host has", add)
        return answer

    def _worked_on(self, work: Work, writable: bool) -> Tuple[str, int]:
        """Return the result of `work`, and the kernel's number of the LUN."""
        with ExitStack() as held, terminated.only_here():
            with self._unopened(writable):
                if writable:
                    self._guard(held)
                batch_deadline = BatchDeadline(self.deadline)
                with terminated.waiting():
                    opened = self._access.lun(self.scsi_id, writable, batch_deadline)
                    device = held.enter_context(opened)
            answer = work(CallDevice(device, self.deadline, batch_deadline))
        return answer, device.info.kernel_number

    def _guard(self, held: ExitStack) -> None:
        """Keep other programs of this host from writing to the LUN. LVM commands have separate locks."""
        seen = held.enter_context(exclusive_open(self.scsi_id, self.deadline, THIS_HOST))
        self.is_seen = bool(seen)

    def _unopened(self, writable: bool) -> ContextManager[None]:
        """Add the LUN's state to an error of the block, if the call was to write."""
        return in_state(lambda: self.state_unopened if writable else "")

    @property
    def _lock_time(self) -> float:
        return self.deadline.within(self.lock_seconds)


class BatchDeadline(Deadline):
    """The deadline of the call, until `renew` starts a limit of BATCH_SECONDS for one batch."""

    def __init__(self, call: Deadline) -> None:
        super().__init__(call.left, call._clock, call.state)
        self.seconds = call.seconds

    def renew(self) -> None:
        self._end, self.seconds = self._clock() + BATCH_SECONDS, BATCH_SECONDS
        self.of_what, self.state = "for this step", ""  # the LUN was written to; the engine knows the state

    def extend(self, seconds: float) -> None:
        self._end += seconds


class CallDevice(ForwardingDevice):
    """The LUN of a call. No first write starts after the deadline; after the first write, the work goes on to its end.

    A flush counts as a write, because a flush may take as long.
    """

    def __init__(self, device: LunDevice, deadline: Deadline, batch_deadline: BatchDeadline) -> None:
        super().__init__(device)
        self.copy_limit_bytes = device.copy_limit_bytes
        self._deadline, self._batch_deadline = deadline, batch_deadline
        self._has_begun = False

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        if self._has_begun:
            self._batch_deadline.renew()
            return super().read(ranges)
        with terminated.waiting(), self._in_time():
            return super().read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        with self._begun():
            super().write(chunks)

    def flush(self) -> None:
        with self._begun():
            super().flush()

    def end_late_writes(self, of_another_host: bool = False) -> None:
        if self._has_begun:
            self._batch_deadline.renew()
            super().end_late_writes(of_another_host)
        else:
            with terminated.waiting(), self._in_time():
                super().end_late_writes(of_another_host)

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Check the deadline before the first write. Give each later batch its own limit."""
        if self._has_begun:
            self._batch_deadline.renew()
        else:
            with terminated.waiting():  # the last point where a SIGTERM ends the call
                self._deadline.check("the first write to the LUN")
            terminated.heed_no_longer()
            self._batch_deadline.extend(FIRST_SECONDS)
        yield
        self._has_begun = True

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Raise OutOfTime for a timeout before the first write: the LUN is unchanged."""
        try:
            yield
        except DeviceError as error:
            if error.sm_key != OutOfTime.sm_key:
                raise
            raise OutOfTime(error.message).in_state(self._deadline.state) from error
