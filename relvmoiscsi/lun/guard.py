# SPDX-License-Identifier: LGPL-2.1-only
"""The guards of a LUN that is open for a write: who uses the LUN, and the locks of the write.

    lock of the LUN    while the LUN is open: one relvmoiscsi of this machine works on the LUN (the sources, call.py)
    the pool           asked before the caller consents, and again under the locks: a user may have come meanwhile
    SM's LVM lock      while a run writes, where this machine has SM: SM runs LVM commands under this lock
    LVM's locks        while a run writes, on a LUN that LVM sees: on the old VG name, the new VG name, and the orphans

The locks are taken in this order. A guard that refuses has released all of them. A source or call.py chooses the guard.
The users on this host are no matter of a guard: an exclusive open refuses them before (host.disk.kernel_disks).
"""

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, ContextManager, Iterator, Optional, Sequence

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, in_state
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.own_process import in_call
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.lun import users
from relvmoiscsi.lun.opened import DeviceId, Guard, Permission, PoolAnswer, nothing_written
from relvmoiscsi.lun.users import Question

LOCK_SECONDS = 45.0  #: the wait of a command for a lock; the SR driver needs less time
_CALL_LOCK_SECONDS = 600.0  #: the wait of a driver for LVM commands and other calls, within the deadline
_TELL_SECONDS = 1.0

#: raises Refused if the pool uses the LUN; takes the UUIDs of the SRs that the LUN will no longer hold
VerifyUnused = Callable[[Sequence[str]], None]


class ReadGuard(Guard):
    """The guard of a LUN that is open for reading: the pool is asked, and no lock is taken."""

    def __init__(self, ids: DeviceId, host: Host) -> None:
        self._ids, self._host = ids, host

    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        return users.ask_pool(Question(self._ids.names, replaced), new_sr, self._host)

    def held(self, vg_names: Optional[Sequence[str]], replaced: Sequence[str]) -> ContextManager[None]:
        raise RuntimeError("a bug: the LUN is open for reading only")


class CommandGuard(Guard):
    """The guard of a command, on a LUN of which the LVM of this machine sees nothing."""

    def __init__(self, name: str, ids: DeviceId, permission: Permission, host: Host) -> None:
        self._name, self._ids, self._permission, self._host = name, ids, permission, host

    def ask(self, replaced: Sequence[str], new_sr: str) -> PoolAnswer:
        answer = users.ask_pool(Question(self._ids.names, replaced), new_sr, self._host)
        if self._permission.not_in_use:
            return answer._replace(is_overridden=answer.objection is not None or answer.is_missing)
        if answer.objection is not None:
            answer.objection.message += " If this is wrong, override with --not-in-use."
            return answer
        if not answer.is_missing or self._ids.is_named:
            return answer
        # Nobody was asked, so the caller must name the LUN; where a person is asked before the write, a question does.
        is_asked = self._permission.is_asked
        if self._ids.own is None:
            missing = (
                f"No pool was asked whether {self._name} is in use, and the device has no SCSIid. If the device is the "
                f"unused clone, use --not-in-use{', and --yes in a script' if is_asked else ''}."
            )
        elif is_asked:
            return answer
        else:
            missing = (
                f"No pool was asked whether {self._name} is in use, and --yes alone does not identify the clone. Add "
                "--scsi-id with the SCSIid of the clone, or --not-in-use."
            )
        return answer._replace(objection=Refused(missing))

    @contextmanager
    def held(self, vg_names: Optional[Sequence[str]], replaced: Sequence[str]) -> Iterator[None]:
        with ExitStack() as held:
            with nothing_written():
                if vg_names is not None:
                    self.take_locks(held, vg_names)
                self.ask(replaced, "").verify()
            yield

    def take_locks(self, held: ExitStack, vg_names: Sequence[str]) -> None:
        """Enter the locks of a write to these volume groups. Raises Refused."""


class DiskGuard(CommandGuard):
    """The guard of a command, on a disk that the LVM of this machine sees."""

    def take_locks(self, held: ExitStack, vg_names: Sequence[str]) -> None:
        _take_locks(held, sm_locks.is_sm_here(self._host), vg_names, self._host, lambda: LOCK_SECONDS)


class CallGuard(Guard):
    """The guard of a driver's call, which asks the pool before the LUN is opened, and again under the locks.

    In a child process, the parent takes the locks and asks the pool (host.own_process).
    """

    def __init__(self, deadline: Deadline, verify: VerifyUnused, is_disk: bool, has_sm_lock: bool) -> None:
        self._hold = partial(hold_in_call, deadline, verify)
        self._is_disk, self._of_sm = is_disk, is_disk and not has_sm_lock

    def ask(self, replaced: Sequence[str], new_sr: str) -> PoolAnswer:
        return users.ASKED_BEFORE

    def held(self, vg_names: Optional[Sequence[str]], replaced: Sequence[str]) -> ContextManager[None]:
        names = list(vg_names) if vg_names is not None and self._is_disk else None
        return in_call(self._hold, names is not None and self._of_sm, names, list(replaced))


@contextmanager
def hold_in_call(
    deadline: Deadline, verify: VerifyUnused, of_sm: bool, vg_names: Optional[Sequence[str]], replaced: Sequence[str]
) -> Iterator[None]:
    """Hold the locks of `CallGuard.held` in the process of the call. Errors of `verify` go through."""
    with ExitStack() as held:
        if vg_names is not None:
            _take_locks(held, of_sm, vg_names, THIS_HOST, lambda: wait_seconds(deadline, _CALL_LOCK_SECONDS))
        with in_state(NOTHING_WRITTEN):
            verify(replaced)
        yield


def wait_seconds(deadline: Deadline, seconds: float) -> float:
    """Return how long to wait for a lock: the error that names the holder must come before the caller gives up."""
    return max(0.0, min(seconds, deadline.left - _TELL_SECONDS))


def _take_locks(held: ExitStack, of_sm: bool, vg_names: Sequence[str], host: Host, waits: Callable[[], float]) -> None:
    """Enter SM's LVM lock, then LVM's locks. `waits` returns the seconds for each. Raises Refused."""
    if of_sm:
        held.enter_context(sm_locks.lvm_lock(host, timeout=waits()))
    held.enter_context(lvm_locks(vg_names, timeout=waits()))
