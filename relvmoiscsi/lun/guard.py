# SPDX-License-Identifier: LGPL-2.1-only
"""The guards of a LUN that is open for a write: who uses the LUN, and the locks of the write.

    lock of the LUN    while the LUN is open: one relvmoiscsi of this machine works on the LUN (opened.lun_locked)
    the pool           asked before the caller consents, and again under the locks: a user may have come meanwhile
    SM's LVM lock      while a run writes, where this machine has SM: SM runs most LVM commands under this lock
    LVM's locks        while a run writes, on a LUN that LVM sees: on the old VG name, the new VG name, and the orphans

The locks are taken in this order. `WriteGuard.hold` takes SM's and LVM's, then asks the pool again. A guard that
refuses has released all locks. A source or call.py chooses the guard, and the locks that the LUN needs.
The users on this host are no matter of a guard: an exclusive open refuses them before (host/disk/exclusive.py).
"""

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, ContextManager, Iterator, Optional, Sequence

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, in_state
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.own_process import ask_parent, in_call
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun import opened, users
from relvmoiscsi.lun.opened import Guard, Permission, PoolAnswer, unwritten
from relvmoiscsi.lun.users import Question

_CALL_LOCK_SECONDS = 600.0  #: the wait of a driver for LVM commands and other calls, within the deadline
_TELL_SECONDS = 1.0
_OVERRIDE = "If this is wrong, override with --not-in-use."

#: the locks of a write that a LUN may need, as values of JSON
SM_LOCK, LVM_LOCKS = "SM's LVM lock", "LVM's locks"
DISK_LOCKS = (SM_LOCK, LVM_LOCKS)  #: of a LUN that the LVM of this machine sees
#: the same where SM is not, or where the process has SM's lock already
LOCKS_BESIDE_SM = tuple(lock for lock in DISK_LOCKS if lock != SM_LOCK)


class ReadGuard(Guard):
    """The guard of a LUN that is open for reading: the pool is asked, and no lock is taken."""

    def __init__(self, scsi_id: Optional[str], host: Host) -> None:
        self._scsi_id, self._host = scsi_id, host

    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        return users.ask_pool(Question(self._scsi_id, replaced), new_sr, self._host)

    def verify_finished(self, sr_uuid: str) -> None:
        answer = users.ask_pool(Question(self._scsi_id, [sr_uuid], is_finished=True), "", self._host)
        if answer.uuid is not None:  # a pool that does not answer contradicts nothing, and nothing is written
            answer.verify()

    def held(self, vg_names: Sequence[str], replaced: Sequence[str]) -> ContextManager[None]:
        raise RuntimeError("a bug: the LUN is open for reading only")


class WriteGuard(ReadGuard):
    """The guard of a LUN that is open for a write."""

    def __init__(
        self,
        scsi_id: Optional[str],
        host: Host,
        locks: Sequence[str],
        lock_seconds: Callable[[], float],
        verify_unused: Callable[[Sequence[str]], None],
    ) -> None:
        """`locks` are the locks that the LUN needs: none for a LUN of which the LVM of this machine sees nothing.

        `lock_seconds` returns how long to wait for the next lock. `verify_unused` raises Refused if the pool uses the
        LUN; it takes the UUIDs of the SRs that the LUN will no longer hold.
        """
        super().__init__(scsi_id, host)
        self._locks, self._lock_seconds, self._verify_unused = list(locks), lock_seconds, verify_unused

    def held(self, vg_names: Sequence[str], replaced: Sequence[str]) -> ContextManager[None]:
        return in_call(self.hold, self._locks if vg_names else [], list(vg_names), list(replaced))

    @contextmanager
    def hold(self, locks: Sequence[str], vg_names: Sequence[str], replaced: Sequence[str]) -> Iterator[None]:
        """Hold the locks for the block, and ask under the locks who uses the LUN. Raises Refused before the block.

        This is the only place that takes a lock of the change of identities. For a child process, the parent calls it
        (host.own_process).
        """
        with ExitStack() as held:
            with in_state(NOTHING_WRITTEN):
                if SM_LOCK in locks:
                    held.enter_context(sm_locks.lvm_lock(self._host, timeout=self._lock_seconds()))
                if LVM_LOCKS in locks:
                    held.enter_context(lvm_locks(vg_names, timeout=self._lock_seconds()))
                self._verify_unused(replaced)
            yield


class CommandGuard(WriteGuard):
    """The guard of a command, which asks the pool and hears the caller's override."""

    def __init__(
        self, name: str, scsi_id: Optional[str], permission: Permission, host: Host, locks: Sequence[str] = ()
    ) -> None:
        super().__init__(
            scsi_id, host, locks, lambda: opened.LOCK_SECONDS, lambda replaced: self.ask(replaced).verify()
        )
        self._name, self._permission = name, permission

    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        answer = super().ask(replaced, new_sr)
        if self._permission.not_in_use:
            return answer._replace(is_overridden=answer.objection is not None or answer.is_missing)
        if answer.objection is not None:
            answer.objection.advising(_OVERRIDE)
            return answer
        if not answer.is_missing or self._permission.scsi_id is not None:
            return answer
        # Nobody was asked, so the caller must name the LUN; where a person is asked before the write, a question does.
        is_asked = self._permission.is_asked
        if self._scsi_id is None:
            missing = Refused(
                f"No pool was asked whether {self._name} is in use, and the device has no SCSIid."
            ).advising(
                f"If the device is the unused clone, use --not-in-use{', and --yes in a script' if is_asked else ''}."
            )
        elif is_asked:
            return answer
        else:
            missing = Refused(
                f"No pool was asked whether {self._name} is in use, and --yes alone does not identify the clone."
            ).advising("Add --scsi-id with the SCSIid of the clone, or --not-in-use.")
        return answer._replace(objection=missing)

    def verify_finished(self, sr_uuid: str) -> None:
        if self._permission.not_in_use:
            return
        try:
            super().verify_finished(sr_uuid)
        except Refused as refused:
            refused.advising(_OVERRIDE)
            raise

    def held(self, vg_names: Sequence[str], replaced: Sequence[str]) -> ContextManager[None]:
        return unwritten(super().held(vg_names, replaced))


class CallGuard(WriteGuard):
    """The guard of a driver's call, which asks the pool before the LUN is opened, and again under the locks."""

    def __init__(self, asks: Question, xapi: Xapi, host: Host, locks: Sequence[str], deadline: Deadline) -> None:
        super().__init__(
            asks.scsi_id,
            host,
            locks,
            partial(wait_seconds, deadline, _CALL_LOCK_SECONDS),
            lambda replaced: users.verify_unused(asks._replace(replaced=replaced), xapi),
        )
        self._asks, self._xapi = asks, xapi

    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        return users.ASKED_BEFORE

    def verify_finished(self, sr_uuid: str) -> None:
        ask_parent(self.verify_record, sr_uuid)

    def verify_record(self, sr_uuid: str) -> None:
        """Do as `verify_finished`, with the call's connection to xapi. For a child process, the parent calls it."""
        users.verify_unused(self._asks._replace(replaced=[sr_uuid], is_finished=True), self._xapi)


def wait_seconds(deadline: Deadline, seconds: float) -> float:
    """Return how long to wait for a lock: the error that names the holder must come before the caller gives up."""
    return max(0.0, min(seconds, deadline.left - _TELL_SECONDS))
