# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN that an array maps to this host: its disks here for as long as a call needs them, and the host as it was.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave its disks alone
    bring     a scan, unless its disks are there (discovery.py)
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

from relvmoiscsi.errors import in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.cleanup import quietly
from relvmoiscsi.host.deadline import Deadline, OutOfTime, in_time, waiting_in_time
from relvmoiscsi.host.disk import multipath, own_maps, paths, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.scsi_id import scsi_id_at
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import AskingDevice, Begin, run_in_child
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi import lun_users, other_hosts
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.sr_driver.hba.config import Config
from relvmoiscsi.sr_driver.hba.discovery import Discovery
from relvmoiscsi.sr_driver.hba.missing import missing_scsi_id
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Work, record_of_host

log = logging.getLogger(__name__)

STALE_MAP_SECONDS = 5.0  #: for a map that a killed call has left
_FLUSH_SECONDS = 3.0  # after the deadline: that of a LUN that does not answer stays, and its disks are to go yet
_CACHES_SECONDS = 3.0  # it reads nothing, and waits for what others read: on a dead path, until that is back


def named_lun(call: Call, config: Config, xapi: Xapi, deadline: Deadline, lock_seconds: float) -> Lun:
    """The LUN that a call names. Raises Listed when it names none, RelvmoiscsiError."""
    record = record_of_host(call, xapi)
    scsi_id = config.scsi_id or (scsi_id_at(config.device) or "" if config.device else "")
    if not scsi_id:
        raise missing_scsi_id(config, xapi, deadline, lock_seconds, call.host_ref)
    if not config.scsi_id:
        log.info("%s is the LUN %s", config.device, scsi_id)
    multipathing = multipath.is_on(call.device_config, dict(record.get("other_config", {})))
    others = other_hosts.OtherHosts(xapi, call.host_ref)
    pool = partial(lun_users.read_pool, xapi)
    discovery = Discovery(scsi_id, config, deadline, lock_seconds, pool, call.host_ref)
    return HbaLun(discovery, multipathing, lock_seconds, others)


class HbaLun(Lun):
    """It comes to this host as disks.

    What is read and written is so in a process of its own: a disk that does not answer is given up.
    """

    def __init__(
        self, discovery: Discovery, multipathing: bool, lock_seconds: float, others: other_hosts.OtherHosts
    ) -> None:
        super().__init__(discovery.scsi_id, discovery.deadline, lock_seconds)
        self.discovery, self.multipathing, self._others = discovery, multipathing, others

    def with_device(self, work: Work, writable: bool) -> str:
        with ExitStack() as stack:
            with in_state(lambda: self.state_unopened if writable else ""):
                meanwhile = _load_engine if writable else _nothing
                path = stack.enter_context(self.device_session(meanwhile, to_write=writable))
            if not writable:
                read = partial(_read, path, work)
                return run_in_child(read, self.deadline, "the LUN had been read", only_reads=True)
            write = partial(_written, path, work, self.deadline)
            answer = run_in_child(write, self.deadline, "the LUN had been read")
            self.discovery.is_new = True
        return answer

    @contextmanager
    def device_session(self, meanwhile: Callable[[], None], to_write: bool) -> Iterator[str]:
        """The device node of the LUN. Raises NotFound, Refused or CommandFailed, with everything as it was.

        `meanwhile` is called once while the kernel and udev are looking at the disk; `to_write`: nobody may use it.
        """
        deadline, found = self.deadline, self.discovery
        with ExitStack() as stack, terminated.only_here():
            last = stack.enter_context(ExitStack())
            stack.enter_context(sm_locks.lun_lock(self.scsi_id, timeout=deadline.within(self.lock_seconds)))
            last.callback(quietly, "forgetting stale multipath maps", lambda: own_maps.clear(found.ids_of_pool))
            stack.callback(quietly, "waiting for udev to show the LUN", self._wait_until_shown)
            before = own_maps.look(self.scsi_id)
            stack.enter_context(udev.hidden(self.scsi_id, self.multipathing))
            there = udev.disks_of(self.scsi_id)  # what comes from now on, udev treats as the switch has it
            if to_write:
                self._others.verify_unused(self.scsi_id, deadline)
            _take_back_stale_map(self)
            if self.multipathing:  # multipathd may make a map by itself
                own_maps.note(before, there)
                stack.callback(quietly, "forgetting the multipath map", lambda: _forget_map(before))
            since = time.monotonic()
            given: List[str] = []
            found.bring(stack)
            self.has_sm_lock = found.has_sm_lock
            if self.multipathing:
                behind_map = stack.enter_context(ExitStack())
                stack.callback(quietly, "flushing the multipath map", lambda: _flush_map(before, deadline))
                given += udev.give_to_multipath(there)
            meanwhile()
            disks = found.disks()
            udev.settle(disks, deadline.within(udev.SETTLE_SECONDS), since=since, known=there)
            udev.wait_for_multipath([disk for disk in given if disk in disks], deadline.within(udev.SETTLE_SECONDS))
            found.verify(disks)
            if to_write:
                found.verify_free(disks)
            _warn_if_seen(self, [disk for disk in disks if disk not in there])
            if to_write or not self.multipathing:
                paths.verify_unused(_beside(self, disks))
            if self.multipathing:
                seconds = deadline.within(multipath.MAP_SECONDS)
                the_map = multipath.ensure_map(before, disks, seconds, _multipath(deadline))
                behind_map.push(partial(_drop_caches, self))
                yield the_map.device
            else:
                yield "/dev/" + multipath.single_path(self.scsi_id, disks)

    def _wait_until_shown(self) -> None:
        """After success: the stock driver finds the LUN by its link, and formats what it takes for empty."""
        if self.discovery.is_new:
            udev.wait_until_shown(self.scsi_id, self.deadline.for_cleanup().within(udev.SHOWN_SECONDS), THIS_HOST)


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


def _multipath(deadline: Deadline) -> Host:
    """multipath-tools of this host, kept to the deadline."""
    return THIS_HOST._replace(
        runner=in_time(THIS_HOST.runner, deadline),
        wait_for=waiting_in_time(THIS_HOST.wait_for, deadline),
    )


def _take_back_stale_map(lun: HbaLun) -> None:
    """A map that a killed call has left, where multipathing has been switched off since."""
    stale = None if lun.multipathing else own_maps.stale(lun.scsi_id)
    if stale is not None:
        multipath.flush_map(stale, STALE_MAP_SECONDS, _multipath(lun.deadline))
        own_maps.hand_over(lun.scsi_id)


def _flush_map(before: multipath.Before, deadline: Deadline) -> None:
    multipath.flush_map(before, host=_multipath(deadline.for_cleanup(_FLUSH_SECONDS)))


def _forget_map(before: multipath.Before) -> None:
    """Where disks stay that have come with this call, as they do not answer, multipathd makes a map of them yet."""
    if own_maps.stale(before.scsi_id) is None:
        return
    if own_maps.is_over(before.scsi_id) or multipath.find_map(before.scsi_id) is None:
        multipath.flush_map(before, 0)  # one that has gone with its disks has left its entry in the list of WWIDs
        own_maps.hand_over(before.scsi_id)


def _drop_caches(lun: HbaLun, _kind: object, error: Optional[BaseException], _trace: object) -> None:
    """Of all its disks: one that was no path of the map may have been read as well. Not where no write has begun."""
    if not isinstance(error, OutOfTime):
        deadline = lun.deadline.for_cleanup().part(_CACHES_SECONDS)
        quietly("dropping page caches", lambda: paths.drop_caches(udev.disks_of(lun.scsi_id), deadline))


def _beside(lun: HbaLun, disks: Sequence[str]) -> List[str]:
    """Its other disks, which do not answer; those in its map apart: opening the map tells who uses that."""
    known = {*disks, *_paths(lun)}
    return [disk for disk in udev.disks_of(lun.scsi_id) if disk not in known]


def _paths(lun: HbaLun) -> Sequence[str]:
    """The disks in its map, if it has one so far."""
    the_map = multipath.find_map(lun.scsi_id) if lun.multipathing else None
    return the_map.paths if the_map else ()


def _warn_if_seen(lun: HbaLun, disks: Sequence[str]) -> None:
    """But for those that multipathd has taken by now: the rules leave a path to its map, which is hidden."""
    unmarked = [disk for disk in disks if not udev.is_hidden(disk)]
    taken = _paths(lun) if unmarked else ()  # looked at after the mark
    seen = [disk for disk in unmarked if disk not in taken]
    if seen:
        log.warning("%s not hidden from event handlers: are our udev rules installed?", ", ".join(seen))
