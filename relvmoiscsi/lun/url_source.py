# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN of a URL, over a session of this process.

The session makes no disk, no map and no LVM device on this machine, so there is no LVM lock to take. If this machine
also sees the LUN as a disk, the caches of that disk would be stale after a write. So no command writes to such a LUN by
its URL.
"""

from contextlib import ExitStack, contextmanager
from typing import Callable, ContextManager, Iterator, List, Optional

from relvmoiscsi.deadline import NO_DEADLINE, Deadline, OutOfTime
from relvmoiscsi.errors import DeviceError, NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import names_in
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import (
    Credentials,
    Initiator,
    LunDevice,
    LunInfo,
    Targets,
    discover,
    list_luns,
    open_lun,
)
from relvmoiscsi.lun.gate import GatedDevice, SessionGate, StepDeadline
from relvmoiscsi.lun.guard import CommandGuard, ReadGuard
from relvmoiscsi.lun.lun_url import FORM, Url
from relvmoiscsi.lun.opened import ISCSI_LUN, Guard, LunSource, OpenLun, Permission, agreed
from relvmoiscsi.portal import DEFAULT_PORT
from relvmoiscsi.sr_types import ISCSI_SR
from relvmoiscsi.wording import shell_command

REPLACEMENT_TIMEOUT_SECONDS = 120.0  #: for a batch of reads or writes, and for a login
LISTED_AT_ONCE = 4  #: sessions in parallel; arrays limit their number

#: keys of errors after which a second attempt to open the LUN would fail the same way
_PERMANENT_KEYS = ("DNSError", "ISCSITarget", "ISCSILogin", "ISCSIDiscovery", "ISCSIDevice", "ISCSIPort")


class UrlSource(LunSource):
    """A LUN, a target or a portal by its URL.

    `waiting` says that a slow block waits for the target. `scsi_id` is the SCSIid that the LUN must have, if known.
    Without a `deadline`, each batch has a time limit of its own.
    """

    is_path = False

    def __init__(
        self,
        name: str,
        url: Url,
        initiator: Initiator,
        credentials: Credentials,
        host: Host,
        waiting: Optional[Callable[[str, float], ContextManager[None]]],
        deadline: Deadline = NO_DEADLINE,
        scsi_id: Optional[str] = None,
    ) -> None:
        super().__init__(name, host)
        self.url, self._initiator, self._credentials = url, initiator, credentials
        self._waiting, self._deadline, self._scsi_id = waiting, deadline, scsi_id

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        steps = self._steps()
        with self._session(False, self._scsi_id, steps) as device:
            scsi_id = agreed(self.name, permission and permission.scsi_id, device.info.scsi_id)
            yield self._open_lun(device, steps, scsi_id, permission)

    def _find_scsi_id(self, permission: Permission) -> Optional[str]:
        """Return the SCSIid of --scsi-id, or of a session that only reads. The session that writes compares it.

            t0  another command of this machine writes to the LUN in its session
            t1  a new session that writes would end the session of the other command

        The lock of the LUN prevents t1, and needs the SCSIid. Without the lock, t1 would stop the run of the other
        command in the middle of its writes.
        """
        if permission.scsi_id is not None:
            return permission.scsi_id
        with self._session(False, None, self._steps()) as looked_at:
            return looked_at.info.scsi_id

    @contextmanager
    def _opened_alone(self, scsi_id: Optional[str], permission: Permission) -> Iterator[OpenLun]:
        """Open the LUN in a session that writes.

        Raises Refused where this machine sees the LUN as a disk. After a write by URL, the caches of the disk would be
        stale. The command also would not ask the users of the disk.
        """
        disks = disks_with(scsi_id, self.host)
        if disks:
            names = ", ".join("/dev/" + name for name in disks)
            raise Refused(f"This machine sees {self.name} as {names} already.").advising(
                "Give the command that device instead, or its multipath map."
            )
        steps = self._steps()
        with self._session(True, scsi_id, steps) as device:
            yield self._open_lun(device, steps, scsi_id, permission)

    def is_same(self, other: LunSource) -> bool:
        if not isinstance(other, UrlSource):
            return False
        return bool(self.url.iqn) and (self.url.iqn, self.url.lun) == (other.url.iqn, other.url.lun)

    def may_open_after(self, problem: RelvmoiscsiError) -> bool:
        """Not if the error has already taken all the time of a step, or would come again."""
        is_late = problem.sm_key == OutOfTime.sm_key and isinstance(problem, (OutOfTime, DeviceError))
        return problem.sm_key not in _PERMANENT_KEYS and not is_late

    def lun(self, info: LunInfo, deadline: Deadline) -> "UrlSource":
        """Return a LUN of this target; all work on the LUN ends at the deadline."""
        name, url = f"{self.name.rstrip('/')}/{info.number}", self.url._replace(lun=info.number)
        return UrlSource(
            name, url, self._initiator, self._credentials, self.host, self._waiting, deadline, info.scsi_id
        )

    def targets(self) -> Targets:
        """Return the portals of each target that the portal offers, by IQN. Raises UsageError, NotFound, Refused."""
        with self._at_target():
            return discover([self.url.portal], self._initiator, self._credentials, self._steps())

    def luns(self) -> List[LunInfo]:
        """Return the LUNs of the target; a busy LUN is asked once. Raises UsageError, NotFound, Refused."""
        with self._at_target():
            steps = self._steps()
            luns = list_luns([self.url.portal], self.url.iqn, self._initiator, steps, self._credentials, waits=False)
            return luns.disks

    def _steps(self) -> StepDeadline:
        if self._deadline is NO_DEADLINE:
            return StepDeadline.of_steps(REPLACEMENT_TIMEOUT_SECONDS)
        return StepDeadline(self._deadline)

    @contextmanager
    def _session(self, writable: bool, scsi_id: Optional[str], steps: Deadline) -> Iterator[LunDevice]:
        url = self.url
        if url.lun is None:
            show = shell_command("relvmoiscsi show", self.name)
            raise UsageError(f"{self.name} names no LUN, expected {FORM}.").advising(f"`{show}` lists the LUNs.")
        with ExitStack() as held:
            with self._at_target():
                session = open_lun(
                    [url.portal], url.iqn, self._initiator, url.lun, writable, steps, self._credentials, scsi_id
                )
                device = held.enter_context(session)
            device.name = self.name
            yield device

    def _open_lun(
        self, device: LunDevice, steps: StepDeadline, scsi_id: Optional[str], permission: Optional[Permission]
    ) -> OpenLun:
        def refresh() -> List[str]:
            """Return a note about each disk that appeared during the run: its caches may be stale."""
            return [
                f"note: during the run this machine found the LUN as /dev/{name}. Drop its cached data: "
                f"`{shell_command('blockdev --flushbufs', '/dev/' + name)}`, then "
                f"`{shell_command('udevadm trigger --action=change', '/dev/' + name)}`."
                for name in disks_with(scsi_id, self.host)
            ]

        of_lun: Guard = ReadGuard(scsi_id, self.host)
        if permission is not None:
            of_lun = CommandGuard(self.name, scsi_id, permission, self.host)
        info, gated = device.info, GatedDevice(device, SessionGate(steps, self._deadline))
        hardware, portal = (info.vendor, info.model, info.serial), self.url.portal
        config = {"target": portal.host, "targetIQN": self.url.iqn}
        if portal.port != DEFAULT_PORT:
            config["port"] = str(portal.port)
        if self._credentials.user:
            config["chapuser"] = self._credentials.user
        return OpenLun(gated, ISCSI_LUN, scsi_id, of_lun, hardware, refresh, ISCSI_SR, config)

    @contextmanager
    def _at_target(self) -> Iterator[None]:
        """Say that a slow block waits for the target. Add the initiator name of this machine to the target's errors."""
        name = self._initiator.name
        try:
            with ExitStack() as told:
                if self._waiting is not None:
                    seconds = self._deadline.within(REPLACEMENT_TIMEOUT_SECONDS)
                    told.enter_context(self._waiting(f"the answer of {self.url.portal}", seconds))
                yield
        except (NotFound, Refused) as problem:
            asks_for_it = problem.sm_key in ("ISCSILogin", "ISCSIDiscovery", "ISCSIDevice")
            if asks_for_it and name not in problem.message:
                problem.message += f" The initiator name of this machine is {name}."
            raise


def disks_with(scsi_id: Optional[str], host: Host) -> List[str]:
    """Return the kernel names of the disks with the SCSIid, from /sys: a container may have no device node."""
    if scsi_id is None:
        return []
    return [name for name in names_in(host.at("sys/block"), "sd*") if scsi_id_of_disk(name, host) == scsi_id]
