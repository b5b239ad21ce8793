# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN on this host for as long as it is needed, and the host as it was afterwards.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave its disks alone
    reach     what the transport does for it: a scan
    find      the disk or disks with the SCSIid
    path      the multipath map, or the only disk

Each step is undone in the reverse order whatever happens, exactly as far as it was done here. What cannot be undone is
logged, and does not hide why the call failed. Nothing is begun after the deadline of the call; undoing has some seconds
of its own.
"""

import logging
import math
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, Iterator, List, Optional, Sequence

from relvmoiscsi.errors import RelvmoiscsiError, in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import Deadline, OutOfTime, in_time, waiting_in_time
from relvmoiscsi.host.disk import multipath, own_maps, paths, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import AskingDevice, Begin, apart
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.sr_driver.cleanup import quietly
from relvmoiscsi.sr_driver.transport import Lun, Work

log = logging.getLogger(__name__)

LUN_SECONDS = 15.0  #: as SM has it
LEFT_MAP_SECONDS = 5.0  #: for a map that a killed call has left
_FLUSH_SECONDS = 3.0  # after the deadline: that of a LUN that does not answer stays, and the logouts are to come yet
_CACHES_SECONDS = 3.0  # it reads nothing, and waits for what others read: on a dead path, until that is back


class HeldLun(Lun):
    """A LUN that comes to this host as disks. `held` takes the steps, in the order in which they stand here.

    What is read and written is so in a process of its own: a disk that does not answer is given up.
    """

    is_done = False  #: has it new identities, so that all may see it?

    def __init__(
        self, scsi_id: str, multipathing: bool, deadline: Deadline, lock_seconds: float = math.inf, place: str = ""
    ) -> None:
        super().__init__(scsi_id, deadline, lock_seconds, place)
        self.multipathing = multipathing

    def with_device(self, work: Work, writable: bool) -> str:
        with ExitStack() as stack:
            with in_state(lambda: self.state_unopened if writable else ""):
                path = stack.enter_context(held(self, _load_engine if writable else _nothing, to_write=writable))
            if not writable:
                read = partial(_read, path, work)
                answer = apart(read, self.deadline, "the LUN had been read", only_reads=True)
            else:
                with _staying_if_new(self, path):
                    write = partial(_written, path, work, self.deadline)
                    answer = apart(write, self.deadline, "the LUN had been read")
        return answer

    def before(self) -> None:
        """The LUN is locked, nothing is hidden yet."""

    def verify_unused_elsewhere(self) -> None:
        """Where it is to be written: raises Refused when another host that may see it uses it, or is at work on it.

        It is locked and hidden here.
        """

    def reach(self, stack: ExitStack) -> None:
        """Have it come; the way back is put onto the stack. Raises RelvmoiscsiError."""
        raise NotImplementedError

    def disks(self) -> List[str]:
        """Its disks ("sdb") that answer. Raises NotFound when there is none in time."""
        raise NotImplementedError

    def verify(self, disks: Sequence[str]) -> None:
        """Are they this LUN now, all of them? Raises Refused."""
        raise NotImplementedError

    def verify_free(self, disks: Sequence[str]) -> None:
        """Where it is to be written: raises Refused when somebody uses it in a way that opening it does not tell."""

    def afterwards(self) -> None:
        """All is undone, and the LUN is not locked any more: finish what calls have left."""


def _nothing() -> None:
    pass


def _load_engine() -> None:
    """While udev is busy with the disk there is nothing else to do; a call that ends before needs no engine."""
    import relvmoiscsi.sr_driver.rewrite  # noqa: F401, PLC0415


def _read(path: str, work: Work, _begin: Begin) -> str:
    with open_device(path, writable=False) as device:
        return work(device)


def _written(path: str, work: Work, deadline: Deadline, begin: Begin) -> str:
    from relvmoiscsi.sr_driver.rewrite import LOCK_SECONDS, waiting  # noqa: PLC0415 - see _load_engine

    with open_device(path, writable=True, lock_timeout=waiting(deadline, LOCK_SECONDS)) as device:
        return work(AskingDevice(device, begin))


@contextmanager
def _staying_if_new(lun: HeldLun, path: str) -> Iterator[None]:
    """What has come with the LUN stays once stock tools see the new SR there, also where the call failed later."""
    try:
        yield
    except BaseException:
        lun.is_done = _is_new(lun, path)
        raise
    lun.is_done = True


def _is_new(lun: HeldLun, path: str) -> bool:
    """Has the LUN the identities of a run that was made for it? False where that cannot be read any more."""
    try:
        deadline, what = lun.deadline.for_cleanup(), "the LUN had been read again"
        state = apart(lambda _begin: _state_of(lun, path), deadline, what, only_reads=True)
    except (RelvmoiscsiError, RuntimeError) as error:
        log.warning("whether the LUN has its new identities could not be read: %s", error)
        return False
    return state == "new"


def _state_of(lun: HeldLun, path: str) -> str:
    from relvmoiscsi import engine  # noqa: PLC0415 - see _load_engine

    with open_device(path, writable=False) as device:
        return "new" if engine.has_new_identities(device, lun.scsi_id) else "old"


@contextmanager
def held(lun: HeldLun, meanwhile: Callable[[], None] = lambda: None, to_write: bool = False) -> Iterator[str]:
    """The device node of the LUN. Raises NotFound, Refused or CommandFailed, with everything as it was.

    `meanwhile` is called once while the kernel and udev are looking at the disk; `to_write`: nobody may use it.
    """
    deadline = lun.deadline
    with ExitStack() as stack, terminated.only_here():
        last = stack.enter_context(ExitStack())
        stack.enter_context(sm_locks.lun_lock(lun.scsi_id, timeout=deadline.within(lun.lock_seconds)))
        last.callback(quietly, "finishing what calls have left", lun.afterwards)
        stack.callback(quietly, "waiting for udev to show the LUN", lambda: _wait_until_shown(lun))
        before = own_maps.look(lun.scsi_id)
        lun.before()
        stack.enter_context(udev.hidden(lun.scsi_id, lun.multipathing))
        there = udev.disks_of(lun.scsi_id)  # what comes from now on, udev treats as the switch has it
        if to_write:
            lun.verify_unused_elsewhere()
        _take_back_what_is_left(lun)
        if lun.multipathing:  # multipathd may make a map by itself
            own_maps.note(before, there)
            stack.callback(quietly, "forgetting the multipath map", lambda: _forget_map(before, lun))
        since = time.monotonic()
        given: List[str] = []
        lun.reach(stack)
        if lun.multipathing:
            behind_map = stack.enter_context(ExitStack())
            stack.callback(quietly, "flushing the multipath map", lambda: _flush_map(before, deadline))
            given += udev.give_to_multipath(there)
        meanwhile()
        disks = lun.disks()
        udev.settle(disks, deadline.within(udev.SETTLE_SECONDS), since=since, known=there)
        udev.wait_for_multipath([disk for disk in given if disk in disks], deadline.within(udev.SETTLE_SECONDS))
        lun.verify(disks)
        if to_write:
            lun.verify_free(disks)
        _warn_if_seen(lun, [disk for disk in disks if disk not in there])
        if to_write or not lun.multipathing:
            paths.verify_unused(_beside(lun, disks))
        if lun.multipathing:
            seconds = deadline.within(multipath.MAP_SECONDS)
            the_map = multipath.ensure_map(before, disks, seconds, _multipath(deadline))
            behind_map.push(partial(_drop_caches, lun))
            yield the_map.device
        else:
            yield "/dev/" + multipath.single_path(lun.scsi_id, disks)


def _wait_until_shown(lun: HeldLun) -> None:
    """After success: the stock driver finds the LUN by its link, and formats what it takes for empty."""
    if lun.is_done:
        udev.wait_until_shown(lun.scsi_id, lun.deadline.for_cleanup().within(udev.SHOWN_SECONDS), THIS_HOST)


def _multipath(deadline: Deadline) -> Host:
    """multipath-tools of this host, kept to the deadline."""
    return THIS_HOST._replace(
        runner=in_time(THIS_HOST.runner, deadline),
        wait_for=waiting_in_time(THIS_HOST.wait_for, deadline),
    )


def _take_back_what_is_left(lun: HeldLun) -> None:
    """A map that a killed call has left, where multipathing has been switched off since."""
    left = None if lun.multipathing else own_maps.left(lun.scsi_id)
    if left is not None:
        multipath.flush_map(left, LEFT_MAP_SECONDS, _multipath(lun.deadline))
        own_maps.hand_over(lun.scsi_id)


def _flush_map(before: multipath.Before, deadline: Deadline) -> None:
    multipath.flush_map(before, host=_multipath(deadline.for_cleanup(_FLUSH_SECONDS)))


def _forget_map(before: multipath.Before, lun: HeldLun) -> None:
    """Where disks stay that have come with this call, as they do not answer, multipathd makes a map of them yet."""
    if own_maps.left(before.scsi_id) is None:
        return
    if own_maps.is_over(before.scsi_id) or multipath.find_map(before.scsi_id) is None:
        multipath.flush_map(before, 0)  # one that has gone with its disks has left its entry in the list of WWIDs
        own_maps.hand_over(before.scsi_id)


def _drop_caches(lun: HeldLun, _kind: object, error: Optional[BaseException], _trace: object) -> None:
    """Of all its disks: one that was no path of the map may have been read as well. Not where no write has begun."""
    if not isinstance(error, OutOfTime):
        deadline = lun.deadline.for_cleanup().part(_CACHES_SECONDS)
        quietly("dropping page caches", lambda: paths.drop_caches(udev.disks_of(lun.scsi_id), deadline))


def _beside(lun: HeldLun, disks: Sequence[str]) -> List[str]:
    """Its other disks, which do not answer; those in its map apart: opening the map tells who uses that."""
    known = {*disks, *_paths(lun)}
    return [disk for disk in udev.disks_of(lun.scsi_id) if disk not in known]


def _paths(lun: HeldLun) -> Sequence[str]:
    """The disks in its map, if it has one so far."""
    the_map = multipath.find_map(lun.scsi_id) if lun.multipathing else None
    return the_map.paths if the_map else ()


def _warn_if_seen(lun: HeldLun, disks: Sequence[str]) -> None:
    """But for those that multipathd has taken by now: the rules leave a path to its map, which is hidden."""
    unmarked = [disk for disk in disks if not udev.is_hidden(disk)]
    taken = _paths(lun) if unmarked else ()  # looked at after the mark
    seen = [disk for disk in unmarked if disk not in taken]
    if seen:
        log.warning("%s not hidden from event handlers: are our udev rules installed?", ", ".join(seen))
