# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN on this host for as long as it is needed, and the host as it was afterwards.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave its disks alone, and what else its transport brings meanwhile
    reach     what the transport does for it (transport.py): a login, a scan
    find      the disk or disks with the SCSIid
    path      the multipath map, or the only disk

Each step is undone in the reverse order whatever happens, exactly as far as it was done here. What cannot be undone is
logged, and does not hide why the call failed. Nothing is begun after the deadline of the call; undoing has some seconds
of its own.
"""

import logging
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, Iterator, List, Optional, Sequence

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import Deadline, OutOfTime, in_time, waiting_in_time
from relvmoiscsi.host.disk import multipath, own_maps, paths, udev
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.sr_driver.transport import Lun

log = logging.getLogger(__name__)

LUN_SECONDS = 15.0  #: as SM has it
LEFT_MAP_SECONDS = 5.0  #: for a map that a killed call has left
_FLUSH_SECONDS = 3.0  # after the deadline: that of a LUN that does not answer stays, and the logouts are to come yet
_CACHES_SECONDS = 3.0  # it reads nothing, and waits for what others read: on a dead path, until that is back


@contextmanager
def held(lun: Lun, meanwhile: Callable[[], None] = lambda: None, to_write: bool = False) -> Iterator[str]:
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
        lun.before(stack)
        stack.enter_context(udev.hidden(lun.scsi_id, lun.multipathing, is_done=lambda: lun.is_done))
        there = udev.disks_of(lun.scsi_id)  # what comes from now on, udev treats as the switch has it
        lun.hide_others(stack)
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
        lun.verify(disks, there)
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


def _wait_until_shown(lun: Lun) -> None:
    """After success: the stock driver finds the LUN by its link, and formats what it takes for empty."""
    if lun.is_done:
        udev.wait_until_shown(lun.scsi_id, lun.deadline.for_cleanup().within(udev.SHOWN_SECONDS), THIS_HOST)


def _multipath(deadline: Deadline) -> Host:
    """multipath-tools of this host, kept to the deadline."""
    return THIS_HOST._replace(
        runner=in_time(THIS_HOST.runner, deadline),
        wait_for=waiting_in_time(THIS_HOST.wait_for, deadline),
    )


def _take_back_what_is_left(lun: Lun) -> None:
    """A map that a killed call has left, where multipathing has been switched off since."""
    left = None if lun.multipathing else own_maps.left(lun.scsi_id)
    if left is not None:
        multipath.flush_map(left, LEFT_MAP_SECONDS, _multipath(lun.deadline))
        own_maps.hand_over(lun.scsi_id)


def _flush_map(before: multipath.Before, deadline: Deadline) -> None:
    multipath.flush_map(before, host=_multipath(deadline.for_cleanup(_FLUSH_SECONDS)))


def _forget_map(before: multipath.Before, lun: Lun) -> None:
    """Where disks stay that have come with this call, as they do not answer, multipathd makes a map of them yet."""
    if own_maps.left(before.scsi_id) is None:
        return
    if own_maps.is_over(before.scsi_id) or lun.stays_if_new and multipath.find_map(before.scsi_id) is None:
        multipath.flush_map(before, 0)  # one that has gone with its disks has left its entry in the list of WWIDs
        own_maps.hand_over(before.scsi_id)


def _drop_caches(lun: Lun, _kind: object, error: Optional[BaseException], _trace: object) -> None:
    """Of all its disks: one that was no path of the map may have been read as well. Not where no write has begun."""
    if not isinstance(error, OutOfTime):
        deadline = lun.deadline.for_cleanup().part(_CACHES_SECONDS)
        quietly("dropping page caches", lambda: paths.drop_caches(udev.disks_of(lun.scsi_id), deadline))


def _beside(lun: Lun, disks: Sequence[str]) -> List[str]:
    """Its other disks, which do not answer; those in its map apart: opening the map tells who uses that."""
    known = {*disks, *_paths(lun)}
    return [disk for disk in udev.disks_of(lun.scsi_id) if disk not in known]


def _paths(lun: Lun) -> Sequence[str]:
    """The disks in its map, if it has one so far."""
    the_map = multipath.find_map(lun.scsi_id) if lun.multipathing else None
    return the_map.paths if the_map else ()


def _warn_if_seen(lun: Lun, disks: Sequence[str]) -> None:
    """But for those that multipathd has taken by now: the rules leave a path to its map, which is hidden."""
    unmarked = [disk for disk in disks if not udev.is_hidden(disk)]
    taken = _paths(lun) if unmarked else ()  # looked at after the mark
    seen = [disk for disk in unmarked if disk not in taken]
    if seen:
        log.warning("%s not hidden from event handlers: are our udev rules installed?", ", ".join(seen))


def quietly(what: str, action: Callable[[], object]) -> None:
    """Cleanup: goes on after a failure, and says so. Not even a bug in it makes a failure of what was written.

    A SIGTERM counts behind it, where the call goes on.
    """
    try:
        with terminated.put_off():
            action()
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed, by a bug", what)
