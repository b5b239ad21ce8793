# SPDX-License-Identifier: LGPL-2.1-only
"""Give an open LUN new identities. Finish or take back what an earlier call has left on the LUN."""

import json
import logging
import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ContextManager, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi import engine, procedure, report
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Device
from relvmoiscsi.engine import AlreadyDone, Lun, Mark, Prepared, ResignatureRequest, Result, Run, notes
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, Unfinished, in_state
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.own_process import in_call
from relvmoiscsi.sr_driver.transport import VerifyUnused
from relvmoiscsi.wording import human_size

log = logging.getLogger(__name__)

LOCK_SECONDS = 15.0  #: wait for a udev worker that has the disk open
VG_LOCK_SECONDS = 600.0  #: wait for LVM commands and other calls, within the deadline
_TELL_SECONDS = 1.0


def waiting(deadline: Deadline, seconds: float) -> float:
    """Return how long to wait for a lock: the error that names the holder must come before the caller gives up."""
    return max(0.0, min(seconds, deadline.left - _TELL_SECONDS))


class Locks(NamedTuple):
    """The locks to take against LVM commands of this host. A LUN that LVM does not see needs no such lock."""

    of_lvm: bool = True  #: LVM's own locks, of the old and the new name of the volume group
    of_sm: bool = True  #: SM's LVM lock; False also if this process's parent holds it


@contextmanager
def take_locks(deadline: Deadline, verify: VerifyUnused, wanted: str) -> Iterator[None]:
    """Hold the locks that a `_SmLog` asks for: JSON of `of_sm`, the names of the volume groups (null: no locks), and
    the UUIDs of the SRs that the LUN will no longer hold.

    `verify` is called under the locks. Errors of `verify` go through, and nothing is written.
    """
    of_sm, vg_names, replaced = json.loads(wanted)
    with ExitStack() as held:
        if of_sm:
            held.enter_context(sm_locks.lvm_lock(timeout=waiting(deadline, VG_LOCK_SECONDS)))
        if vg_names is not None:
            held.enter_context(lvm_locks(vg_names, timeout=waiting(deadline, VG_LOCK_SECONDS)))
        with in_state(NOTHING_WRITTEN):
            verify(replaced)
        yield


def resignatured(
    device: Device,
    request: ResignatureRequest,
    deadline: Deadline,
    locks: Locks = Locks(),  # noqa: B008 - a tuple
    verify: VerifyUnused = lambda _replaced: None,
) -> str:
    """Give the LUN new identities and return the new SR UUID; an earlier call may have chosen the UUID.

    `verify` is as for `take_locks`. A child process does not call `verify`: its parent does.
    """
    done = procedure.resignature(device, os.urandom, _SmLog(device, deadline, locks, verify), request)
    if isinstance(done, AlreadyDone):
        log.info("%s was resignatured already, as SR %s", device.name, done.sr_uuid)
        return done.sr_uuid
    assert isinstance(done, procedure.Outcome) and done.result.ids is not None  # `_SmLog.agrees_to` is always true
    result, ids = done.result, done.result.ids
    if not done.was_cut:
        _log_map(result.lun, ids)
        log.info("%d writes, %d bytes, %d flushes", result.writes, result.bytes_written, result.flushes)
    return ids.new_sr


_WHY = {
    procedure.OF_A_COPY: "taking the run back, because this LUN is a copy of the run's LUN",
    procedure.OTHER_VDIS: "taking the run back, because the run leads to other VDIs",
    procedure.BEFORE_COMMIT: "taking the run back, because the run was cut before its commit",
}


class _SmLog(procedure.Voice):
    """A Voice that asks no person: the caller wants new identities. SMlog gets all steps."""

    def __init__(
        self, device: Device, deadline: Deadline, locks: Locks, verify: VerifyUnused = lambda _replaced: None
    ) -> None:
        self._device, self._deadline, self._locks, self._verify = device, deadline, locks, verify
        self._said = 0  # tenths of the copy that were logged
        self._takes_back = False
        self._replaced: Sequence[str] = ()  # UUIDs of the SRs that the LUN will no longer hold

    def agrees_to_settle(self, mark: Mark, take_back: str, problem: Unfinished) -> None:
        self._takes_back, self._replaced = bool(take_back), procedure.replaced_srs(mark, take_back)
        what = _WHY[take_back] if take_back else "finishing the run"
        run = mark.journal.run
        log.info("%s holds an unfinished run for SCSIid %s; %s", self._device.name, run.scsi_id, what)

    def agrees_to(self, prepared: Prepared) -> bool:
        self._replaced = (prepared.plan.run.ids.sr,)
        if prepared.later_copy is not None:
            log.info("%s", prepared.later_copy.sentence(self._device.name))
        for sentence in notes(prepared.lun):
            log.info("%s: %s", self._device.name, sentence)
        if prepared.cost is not None:
            procedure.check_copy(self._device, prepared.cost.data_bytes)
            log.info("%s: %s", self._device.name, report.cost_text(prepared.cost))
            with self._held(False, None):  # the copy is written before `locks`
                pass
        return True

    def copying(self, done: int, total: int) -> None:
        """Log a line for each tenth of the copy."""
        self._give_up_in_time(done, total, "copied")
        if done * 10 // total > self._said:
            self._said = done * 10 // total
            log.info("%s: %s of %s copied", self._device.name, human_size(done), human_size(total))

    def reading_back(self, done: int, total: int) -> None:
        self._give_up_in_time(done, total, "read back")

    def _give_up_in_time(self, done: int, total: int, what: str) -> None:
        if self._deadline.has_passed and done < total:
            raise Refused(
                f"The call's time is over with {human_size(done)} of {human_size(total)} {what}. The command "
                "`relvmoiscsi resignature --vdis one` on the host has no such limit.",
                sm_key="SMGeneral",
            )

    @contextmanager
    def locks(self, run: Run) -> Iterator[None]:
        """Hold SM's LVM lock and LVM's locks on both names of the volume group, if LVM sees the LUN."""
        with self._held(self._locks.of_sm, list(engine.vg_names(run)) if self._locks.of_lvm else None):
            yield

    def _held(self, of_sm: bool, vg_names: Optional[List[str]]) -> ContextManager[None]:
        """Hold these locks, and ask under the locks who uses the LUN."""
        wanted = json.dumps([of_sm, vg_names, list(self._replaced)])
        return in_call(partial(take_locks, self._deadline, self._verify), wanted)

    def has_settled(self, mark: Mark, result: Result) -> None:
        if result.ids is not None:
            _log_map(result.lun, result.ids, self._takes_back)


def _log_map(lun: Optional[Lun], ids: IdMap, is_of_before: bool = False) -> None:
    for line in report.map_text(lun, ids).splitlines():
        log.info("%s", line.strip())
    rows = len(lun.settled().disks()) if lun else 0
    if rows > 1 and not is_of_before:
        log.warning(
            "the SR has %d VDIs, snapshots and hidden parents among them; CloudStack takes a LUN with exactly one and "
            "will count more",
            rows,
        )
