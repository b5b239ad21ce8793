# SPDX-License-Identifier: LGPL-2.1-only
"""What a caller names, and how it is opened: an image file, a disk of this machine, or the LUN of a URL.

    ImageSource   a file; no other machine uses it, and LVM does not see it
    DiskSource    a block device. For a write: the lock of the LUN, then each other path of the LUN, then the device.
                  The LUN says its name with each batch
    UrlSource     a LUN behind a target, over a session of this process. For a write: the lock of the LUN, then a
                  session

The session of a URL makes no disk, no map and no LVM device on this machine, so there is no LVM lock to take. If this
machine also sees the LUN as a disk, the caches of that disk would be stale after a write. So no command writes to such
a LUN by its URL.
"""

import os
import stat
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from glob import escape, glob
from multiprocessing.pool import ThreadPool
from typing import Callable, ContextManager, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from relvmoiscsi import engine
from relvmoiscsi.deadline import NO_DEADLINE, Deadline, OutOfTime
from relvmoiscsi.device import Device
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import HostDevice, open_device, same_device
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.host.disk.scsi_id import Hardware, hardware_of, scsi_id_at, scsi_id_of, scsi_id_of_disk
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.locks.user_lock import user_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import (
    Credentials,
    DiscoveredTarget,
    Initiator,
    LunDevice,
    LunInfo,
    discover,
    list_luns,
    open_lun,
)
from relvmoiscsi.iscsi.url import FORM, Url
from relvmoiscsi.lun import guard, users
from relvmoiscsi.lun.gate import GatedDevice, SessionGate, StepDeadline
from relvmoiscsi.lun.guard import CommandGuard, Guard, Permission, ReadGuard
from relvmoiscsi.lun.opened import BLOCK_DEVICE, IMAGE_FILE, ISCSI_LUN, OpenLun
from relvmoiscsi.lun.users import DeviceId

PATIENCE_SECONDS = 120.0  #: for a batch of reads or writes, and for a login
LISTED_AT_ONCE = 4  #: sessions in parallel; arrays limit their number

#: keys of errors after which a second attempt to open the LUN would fail the same way
_PERMANENT_KEYS = ("DNSError", "ISCSITarget", "ISCSILogin", "ISCSIDiscovery", "ISCSIDevice", "ISCSIPort")

Found = TypeVar("Found")


class LunSource(ABC):
    """What a caller names."""

    is_lun = True  #: may another machine use it?

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host

    @abstractmethod
    def opened_to_read(self, permission: Optional[Permission] = None) -> ContextManager[OpenLun]:
        """Open the device for the block; it may be in use. Raises NotFound, UsageError, Refused.

        With a permission, a device that does not tell its SCSIid is an error.
        """

    @abstractmethod
    def opened_to_write(self, permission: Permission) -> ContextManager[OpenLun]:
        """Open the device for the block, when nobody else of this machine writes to it. Raises as `opened_to_read`."""

    def is_same(self, other: "LunSource") -> bool:
        """Do both name the same device? Raises NotFound for a path without a device."""
        return not isinstance(other, UrlSource) and same_device(self.name, other.name)

    def may_open_after(self, problem: RelvmoiscsiError) -> bool:
        """Can the device be opened again after this error?"""
        return True

    def refresh(self, _scsi_id: Optional[str]) -> List[str]:
        """Correct the caches of this machine after a write. Return what to tell a person about other caches."""
        return []


def agreed(name: str, given: Optional[str], own: Optional[str]) -> DeviceId:
    """Compare two SCSIids. Raises Refused when the SCSIids differ; UsageError when the device has no SCSIid."""
    if given is not None and own is None:
        raise UsageError(f"{name} has no SCSIid, so --scsi-id cannot be compared. Leave out --scsi-id.")
    if given is not None and given != own:
        raise Refused(f"{name} has the SCSIid {own}, and --scsi-id says {given}: it is another LUN.")
    return DeviceId(own, given is not None)


def source_at(path: str, host: Host, only_block: bool = False) -> LunSource:
    """Return the disk or image file at a path. Raises NotFound or Refused for a missing or unusable path.

    With `only_block`, the open refuses an image file.
    """
    return DiskSource(path, host, only_block) if only_block or is_block_device(path) else ImageSource(path, host)


def is_block_device(path: str) -> bool:
    return stat.S_ISBLK(stat_path(path).st_mode)


# --- an image file


class ImageSource(LunSource):
    """A file with the content of a LUN."""

    is_lun = False

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        ids = agreed(self.name, permission and permission.scsi_id, None)
        with open_device(self.name, writable=False) as device:
            yield OpenLun(device, IMAGE_FILE, ids, ReadGuard(ids, False, self.host))

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        ids = agreed(self.name, permission.scsi_id, None)
        with open_device(self.name, writable=True) as device:
            yield OpenLun(device, IMAGE_FILE, ids, CommandGuard(self.name, ids, permission, False, False, self.host))


# --- a disk of this machine


class DiskSource(LunSource):
    """A block device: a disk, a path of a map, a map, or a loop device."""

    def __init__(self, name: str, host: Host, only_block: bool) -> None:
        super().__init__(name, host)
        self._only_block = only_block

    def _open(self, writable: bool) -> HostDevice:
        return open_device(self.name, writable, only_block=self._only_block)

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        with self._open(writable=False) as device:
            ids = self._id(permission.scsi_id) if permission else DeviceId(scsi_id_at(self.name))
            yield OpenLun(device, BLOCK_DEVICE, ids, ReadGuard(ids, True, self.host), hardware_of(self.name, self.host))

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        ids = self._id(permission.scsi_id)
        with ExitStack() as held:
            for scsi_id in sorted(ids.names):
                _take(held, lun_lock(scsi_id, self.host, guard.LOCK_SECONDS))
            try:
                device = self._open_alone(held, ids)
            except Refused as refused:
                refused.message = f"{refused.message} {self._way_out(ids)}".strip()
                raise
            who = CommandGuard(self.name, ids, permission, True, True, self.host)
            yield OpenLun(device, BLOCK_DEVICE, ids, who, hardware_of(self.name, self.host))

    def refresh(self, _scsi_id: Optional[str]) -> List[str]:
        return tell_lvm(self.name, self.host.runner, self.host.root)

    def _id(self, given: Optional[str]) -> DeviceId:
        """Return the SCSIid of the device. Raises as `agreed`, and DeviceError when the device does not answer."""
        return agreed(self.name, given, scsi_id_of(self.name))

    def _open_alone(self, held: ExitStack, ids: DeviceId) -> Device:
        """Open the device. A LUN with a SCSIid keeps its name, or is refused.

        The kernel keeps the SCSIid of the LUN that it has found. The array may have mapped the original there since.
        """
        if ids.own is None:
            return held.enter_context(self._open(writable=True))
        own = live_scsi.kernel_name(self.name, self.host)  # LVM may have taken another path of the LUN
        held.enter_context(exclusive_open(ids.own, NO_DEADLINE, self.host, own))
        disk = held.enter_context(self._open(writable=True))
        named = NamedPath(disk, (ids.own, live_scsi.live_serial(self.name)))
        named.verify_name()
        return named

    def _way_out(self, ids: DeviceId) -> str:
        """Return the advice for a refusal: how to remove volumes that SM has activated on a clone; "" without volumes.

        A LUN in the records of the pool may be the original.
        """
        advice = users.advice_on_holders(
            ids.names, lambda _disk: self._sr_on(), lambda: users.attachments_here(self.host), self.host
        )
        refusal = ReadGuard(ids, True, self.host).ask([]).objection if advice else None
        return refusal.message if refusal is not None else advice

    def _sr_on(self) -> str:
        """Return the UUID of the SR on the LUN; "" without a readable SR. Raises RelvmoiscsiError."""
        with self._open(writable=False) as device:
            lun = engine.inspect(device).lun
        return lun.sr_uuid if lun is not None else ""


# --- the LUN of a URL


class Login(NamedTuple):
    """Who logs in to a target."""

    initiator: Initiator
    credentials: Credentials


class UrlSource(LunSource):
    """A LUN, a target or a portal by its URL.

    `waiting` says that a slow block waits for the target. `scsi_id` is the SCSIid that the LUN must have, if known.
    """

    def __init__(
        self,
        name: str,
        url: Url,
        login: Login,
        host: Host,
        waiting: Callable[[str, float], ContextManager[None]],
        seconds: float = PATIENCE_SECONDS,
        scsi_id: Optional[str] = None,
    ) -> None:
        super().__init__(name, host)
        self.url, self.login, self._waiting, self._seconds, self._scsi_id = url, login, waiting, seconds, scsi_id

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        with self._session(False, self._scsi_id) as device:
            ids = agreed(self.name, permission and permission.scsi_id, device.info.scsi_id)
            yield self._open_lun(device, ids, ReadGuard(ids, True, self.host))

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        """Open the LUN in a session that writes, after the lock of the LUN.

            t0  another command of this machine writes to the LUN in its session
            t1  a new session that writes would end the session of the other command

        The lock prevents t1, and the lock needs the SCSIid. Without --scsi-id, a session that only reads gives the
        SCSIid. The session that writes compares the SCSIid.
        """
        ids = DeviceId(permission.scsi_id or self._own_scsi_id(), permission.scsi_id is not None)
        with ExitStack() as held:
            if ids.own is not None:
                # An ordinary user cannot see root's lock, and takes the lock of ordinary users.
                lock = lun_lock if os.geteuid() == 0 else user_lock
                _take(held, lock(ids.own, self.host, guard.LOCK_SECONDS))
            self._refuse_where_seen(ids.own)
            device = held.enter_context(self._session(True, ids.own))
            yield self._open_lun(device, ids, CommandGuard(self.name, ids, permission, True, False, self.host))

    def is_same(self, other: LunSource) -> bool:
        if not isinstance(other, UrlSource):
            return False
        return bool(self.url.iqn) and (self.url.iqn, self.url.lun) == (other.url.iqn, other.url.lun)

    def may_open_after(self, problem: RelvmoiscsiError) -> bool:
        """Not if the error has already taken all the time of a step, or would come again."""
        is_late = problem.sm_key == OutOfTime.sm_key and isinstance(problem, (OutOfTime, DeviceError))
        return problem.sm_key not in _PERMANENT_KEYS and not is_late

    def refresh(self, scsi_id: Optional[str]) -> List[str]:
        """Return a note about each disk that appeared during the run: its caches may be stale."""
        return [
            f"note: during the run this machine found the LUN as /dev/{name}. Drop its cached data: "
            f"`blockdev --flushbufs /dev/{name}; udevadm trigger --action=change /dev/{name}`."
            for name in disks_with(scsi_id, self.host)
        ]

    def targets(self) -> List[DiscoveredTarget]:
        """Return the targets of the portal. Raises UsageError, NotFound, Refused."""
        initiator, credentials = self.login
        with self._at_target():
            return discover([self.url.portal], initiator, credentials, Deadline(self._seconds))

    def luns(self) -> List[LunInfo]:
        """Return the LUNs of the target. Raises UsageError, NotFound, Refused."""
        initiator, credentials = self.login
        with self._at_target():
            return list_luns([self.url.portal], self.url.iqn, initiator, Deadline(self._seconds), credentials)

    def _own_scsi_id(self) -> Optional[str]:
        with self._session(False, None) as device:
            return device.info.scsi_id

    @contextmanager
    def _session(self, writable: bool, scsi_id: Optional[str]) -> "Iterator[_UrlDevice]":
        url, (initiator, credentials) = self.url, self.login
        if url.lun is None:
            raise UsageError(
                f"{self.name} names no LUN, expected {FORM}. `relvmoiscsi show {self.name}` lists the LUNs."
            )
        steps = StepDeadline.of_steps(self._seconds)
        with ExitStack() as held:
            with self._at_target():
                where = ([url.portal], url.iqn, initiator, url.lun, writable, steps)
                device = held.enter_context(open_lun(*where, credentials, scsi_id=scsi_id))
            device.name = self.name
            yield _UrlDevice(device, SessionGate(steps, NO_DEADLINE))

    def _open_lun(self, device: "_UrlDevice", ids: DeviceId, who: Guard) -> OpenLun:
        hardware = Hardware(device.info.vendor, device.info.model, device.info.serial)
        return OpenLun(device, ISCSI_LUN, ids, who, hardware, device.copy_limit_bytes)

    @contextmanager
    def _at_target(self) -> Iterator[None]:
        """Say that a slow block waits for the target. Add the initiator name of this machine to the target's errors."""
        name = self.login.initiator.name
        try:
            with self._waiting(f"the answer of {self.url.portal}", self._seconds):
                yield
        except (NotFound, Refused) as problem:
            asks_for_it = problem.sm_key in ("ISCSILogin", "ISCSIDiscovery", "ISCSIDevice")
            if asks_for_it and name not in problem.message:
                problem.message += f" The initiator name of this machine is {name}."
            raise

    def _refuse_where_seen(self, scsi_id: Optional[str]) -> None:
        """Raises Refused where this machine sees the LUN as a disk.

        After a write by URL, the caches of the disk would be stale. The command also would not ask the users of the
        disk.
        """
        disks = disks_with(scsi_id, self.host)
        if disks:
            names = ", ".join("/dev/" + name for name in disks)
            raise Refused(
                f"This machine sees {self.name} as {names} already. Give the command that device instead, or its "
                "multipath map."
            ).in_state(NOTHING_WRITTEN)


class _UrlDevice(GatedDevice):
    """The device of a session, behind its gate, with what the target says about the LUN."""

    def __init__(self, device: LunDevice, gate: SessionGate) -> None:
        super().__init__(device, gate)
        self.info, self.copy_limit_bytes = device.info, device.copy_limit_bytes


def disks_with(scsi_id: Optional[str], host: Host) -> List[str]:
    """Return the kernel names of the disks with the SCSIid, from /sys: a container may have no device node."""
    if scsi_id is None:
        return []
    names = [os.path.basename(path) for path in glob(os.path.join(escape(host.sysfs), "block/sd*"))]
    return sorted(name for name in names if scsi_id_of_disk(name, host) == scsi_id)


def each_at_once(works: Sequence[Callable[[], Found]]) -> List[Found]:
    """Call the functions, LISTED_AT_ONCE in parallel, and return the results in order. Exceptions propagate.

    Ctrl-C does not wait for the threads: ThreadPool uses daemon threads, unlike concurrent.futures.
    """
    with ThreadPool(LISTED_AT_ONCE) as pool:
        found = pool.map(lambda work: work(), works, chunksize=1)
        pool.close()
        pool.join()
        return found


def _take(held: ExitStack, lock: ContextManager[object]) -> None:
    """Enter the lock of a LUN. Raises Refused where the lock is not free."""
    try:
        held.enter_context(lock)
    except Refused as error:
        error.disk_state = NOTHING_WRITTEN  # commands on a LUN use this sentence
        raise
