# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN that an array maps to this host. A call opens the LUN's disks and leaves the host as it was.

    lock      one call at a time for a LUN
    hide      udev, LVM and multipath handlers leave the LUN's disks alone
    bring     scan, unless the disks are there (discovery.py)
    find      list the disks with the SCSIid; all must be one LUN that no program uses
    open      open the LUN's multipath map, if there is one, and each disk outside the map, all exclusively

The call makes no multipath map. The call reads and writes through one path (paths.NamedPath).

The call undoes its own steps in the reverse order. A failed undo is logged, and does not hide the error of the call. No
step starts after the deadline; the undo has some seconds of its own.
"""

import logging
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Callable, Iterator, List, Optional, Sequence

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import hiding, multipath, paths, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_at
from relvmoiscsi.host.files import attribute
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import other_hosts
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun import pool_records
from relvmoiscsi.lun.call import CallLun, Found, disks_to_read, disks_to_write, state_unopened
from relvmoiscsi.lun.guard import DISK_LOCKS, LOCKS_BESIDE_SM, CallGuard
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.users import Question
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.discovery import Discovery
from relvmoiscsi.sr_driver.hba.missing import missing_scsi_id
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import record_of_host
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

_WHAT = "the LUN had been read"

_CACHES_SECONDS = 3.0  # BLKFLSBUF waits for reads of other programs, which hang on a dead path


def named_lun(call: Call, config: HbaConfig, xapi: Xapi, deadline: Deadline, lock_seconds: float) -> CallLun:
    """Return the LUN that a call names. Raises MissingKey if the call names none, or another RelvmoiscsiError."""
    record = record_of_host(call, xapi)
    scsi_id = config.scsi_id or (scsi_id_at(config.device) or "" if config.device else "")
    if not scsi_id:
        with sigterm_fails(deadline):
            raise missing_scsi_id(config, xapi, deadline, lock_seconds, call.host_ref)
    for name, of_vm in luns_of(THIS_HOST).items():
        if of_vm == scsi_id:
            problem = f"The LUN {scsi_id} is the direct LUN {name} of this host: a VM uses it as it is."
            remove = shell_command("relvmoiscsi direct remove", name)
            raise Refused(problem, "SRInUse").advising(f"If no VM needs it any more, run `{remove}` on this host.")
    if not config.scsi_id:
        log.info("%s is the LUN %s", config.device, scsi_id)
    multipathing = multipath.is_on(call.device_config, dict(record.get("other_config", {})))
    verify_elsewhere = partial(other_hosts.verify_unused, xapi, call.host_ref)
    pool = partial(pool_records.read_srs, xapi)
    discovery = Discovery(scsi_id, config, deadline, lock_seconds, pool, call.host_ref)
    return HbaLun(discovery, multipathing, lock_seconds, verify_elsewhere)


@contextmanager
def sigterm_fails(deadline: Deadline) -> Iterator[None]:
    """Have SIGTERM end the block as a failure does, until the first write.

    Kill -9 does no harm to a LUN. But the disks that a scan has brought then stay on this host until the next call for
    the LUN. At any event, udev may show these disks to LVM. Service managers send SIGTERM before kill -9: the call
    removes the disks in time.
    """
    try:
        with terminated.heeded():
            yield
    except terminated.Terminated as end:
        problem = "SIGTERM ended this call: `kill` or the restart of a service sent the signal."
        raise RelvmoiscsiError(problem, "SRUnavailable").in_state(deadline.state or NOTHING_WRITTEN) from end


class HbaLun(CallLun):
    """A LUN that comes to this host as disks.

    A child process reads and writes the disks: the call can give up a child whose disk does not answer.
    """

    def __init__(
        self,
        discovery: Discovery,
        multipathing: bool,
        lock_seconds: float,
        verify_elsewhere: Callable[[str, Deadline], None],
    ) -> None:
        """`verify_elsewhere` is `other_hosts.verify_unused` for the pool of the call."""
        super().__init__(discovery.scsi_id, discovery.deadline, lock_seconds)
        self.discovery, self.multipathing, self._verify_elsewhere = discovery, multipathing, verify_elsewhere

    @contextmanager
    def locked(self) -> Iterator[None]:
        with sigterm_fails(self.deadline), super().locked():
            yield

    def _read(self, work: Callable[[OpenLun], Found]) -> Found:
        with self.device_session(to_write=False) as nodes:

            def read(_begin: Begin) -> Found:
                with disks_to_read(self.scsi_id, nodes) as lun:
                    return work(lun)

            answer: Found = run_in_child(read, self.deadline, _WHAT, only_reads=True)
        return answer

    def _write(self, work: Callable[[OpenLun], Found], asks: Question, xapi: Xapi) -> Found:
        found = self.discovery
        with ExitStack() as stack:
            with in_state(lambda: state_unopened(self.deadline)):
                nodes = stack.enter_context(self.device_session(to_write=True))

            # SM's lock, where the call has taken it before the LUN came, is not taken again.
            locks = LOCKS_BESIDE_SM if found.has_sm_lock else DISK_LOCKS
            guard = CallGuard(asks, xapi, THIS_HOST, locks, self.deadline)

            def write(begin: Begin) -> Found:
                with disks_to_write(found.name, nodes, self.deadline, guard, begin) as lun:
                    return work(lun)

            answer: Found = run_in_child(write, self.deadline, _WHAT, calls=(guard.hold, guard.verify_record))
            found.is_new = True
        return answer

    @contextmanager
    def device_session(self, to_write: bool) -> Iterator[List[str]]:
        """Give the device nodes that lead to the LUN, for a caller that has the lock of the LUN.

        On NotFound, Refused or CommandFailed the host is as before.

        With `to_write`, no other program may use the disks.
        """
        deadline, found = self.deadline, self.discovery

        def wait_until_shown() -> None:
            """After success: wait for the LUN's link. The stock driver formats a LUN that seems empty without it."""
            with quietly("waiting for udev to show the LUN"):
                if found.is_new:
                    seconds = deadline.for_cleanup().within(hiding.SHOWN_SECONDS)
                    hiding.wait_until_shown(self.scsi_id, seconds, THIS_HOST)

        def drop_caches(_kind: object, error: Optional[BaseException], _trace: object) -> None:
            """Drop the page caches of all disks of the LUN, as any disk may have been read; not before a write."""
            if not isinstance(error, OutOfTime):
                with quietly("dropping page caches"):
                    until = deadline.for_cleanup().part(_CACHES_SECONDS)
                    paths.drop_caches(udev.disks_of(self.scsi_id), until)

        with ExitStack() as stack, terminated.only_here():
            stack.callback(wait_until_shown)
            stack.enter_context(hiding.hidden(self.scsi_id, deadline=deadline))
            there = udev.disks_of(self.scsi_id)  # udev handles every later disk under the switch
            if to_write:
                self._verify_elsewhere(self.scsi_id, deadline)
            since = time.monotonic()
            found.bring(stack)
            if to_write:  # the run's modules come while the kernel and udev handle the disks
                import relvmoiscsi.lun.run  # noqa: F401, PLC0415 - a call that has failed does not need them
            disks = found.disks()
            udev.settle(disks, deadline.within(udev.SETTLE_SECONDS), since=since, known=there)
            found.verify(disks)
            if to_write:
                found.verify_free(disks)
            seen = [disk for disk in disks if disk not in there and not hiding.is_hidden(disk)]
            if seen:
                log.warning("%s not hidden from event handlers: check relvmoiscsi's udev rules", ", ".join(seen))
            nodes = self._nodes(disks, to_write)
            if to_write:
                stack.push(drop_caches)
            yield nodes

    def _nodes(self, disks: Sequence[str], to_write: bool) -> List[str]:
        """Return the LUN's map, if there is one, and each of these disks outside the map.

        A path to a controller that does not own the LUN may be slow, and comes last.

        Raises Refused if a disk that does not answer is in use. Raises Refused for several paths without multipathing
        and without a map.
        """
        maps = udev.maps_of(self.scsi_id)
        in_map = multipath.paths_in(maps)
        if to_write:  # an exclusive open of the map detects the users of the map
            dead = [one for one in udev.disks_of(self.scsi_id) if one not in {*disks, *in_map}]
            paths.verify_unused(dead, self.deadline)
        if not maps and not self.multipathing:
            return [THIS_HOST.node(multipath.single_path(self.scsi_id, disks))]

        def is_detour(disk: str) -> bool:
            state = attribute(THIS_HOST.at("sys/block", disk, "device/access_state"))
            return state not in ("", "active/optimized")  # "": the array has no such states

        alone = sorted((disk for disk in disks if disk not in in_map), key=is_detour)
        return [*map(multipath.mapper_path, maps[:1]), *map(THIS_HOST.node, alone)]
