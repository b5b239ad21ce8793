# SPDX-License-Identifier: LGPL-2.1-only
"""What a caller names, and how it is opened: an image file, a disk of this machine, or the LUN of a URL.

ImageSource   a file; no other machine uses it, and LVM does not see it
DiskSource    a block device. For a write: the lock of the LUN, then each other path of the LUN, then the device.
              The LUN says its name with each batch
UrlSource     the LUN of a URL (url_source.py)
"""

import os
import stat
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from typing import ContextManager, Iterator, List, Optional

from relvmoiscsi import engine
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.device import Device
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.command import run as run_command
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import HostDevice, open_device, same_device
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.host.disk.scsi_id import hardware_of, scsi_id_at, scsi_id_of
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import guard, users
from relvmoiscsi.lun.guard import CommandGuard, Guard, Permission, ReadGuard
from relvmoiscsi.lun.opened import BLOCK_DEVICE, IMAGE_FILE, OpenLun
from relvmoiscsi.lun.users import DeviceId


class LunSource(ABC):
    """What a caller names."""

    is_lun = True  #: may another machine use it?
    is_disk = False  #: does the LVM of this machine see it?

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host

    def guard(self, ids: DeviceId, permission: Optional[Permission]) -> Guard:
        """Return the guard of a command with this permission; without one, of a command that never writes."""
        if permission is None:
            return ReadGuard(ids, self.is_lun, self.host)
        return CommandGuard(self.name, ids, permission, self.is_lun, self.is_disk, self.host)

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
        are_paths = isinstance(self, _PATHS) and isinstance(other, _PATHS)
        return are_paths and same_device(self.name, other.name)

    def may_open_after(self, problem: RelvmoiscsiError) -> bool:
        """Can the device be opened again after this error?"""
        return True


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
            yield OpenLun(device, IMAGE_FILE, ids, self.guard(ids, permission))

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        ids = agreed(self.name, permission.scsi_id, None)
        with open_device(self.name, writable=True) as device:
            yield OpenLun(device, IMAGE_FILE, ids, self.guard(ids, permission))


# --- a disk of this machine


class DiskSource(LunSource):
    """A block device: a disk, a path of a map, a map, or a loop device."""

    is_disk = True

    def __init__(self, name: str, host: Host, only_block: bool) -> None:
        super().__init__(name, host)
        self._only_block = only_block

    def _open(self, writable: bool) -> HostDevice:
        return open_device(self.name, writable, only_block=self._only_block)

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        with self._open(writable=False) as device:
            ids = self._id(permission.scsi_id) if permission else DeviceId(scsi_id_at(self.name))
            yield OpenLun(device, BLOCK_DEVICE, ids, self.guard(ids, permission), hardware_of(self.name, self.host))

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        ids = self._id(permission.scsi_id)
        with ExitStack() as held:
            for scsi_id in sorted(ids.names):
                take_lock(held, lun_lock(scsi_id, self.host, guard.LOCK_SECONDS))
            try:
                device = self._open_alone(held, ids)
            except Refused as refused:
                refused.message = f"{refused.message} {self._way_out(ids)}".strip()
                raise
            hardware = hardware_of(self.name, self.host)
            yield OpenLun(device, BLOCK_DEVICE, ids, self.guard(ids, permission), hardware, refresh=self._tell_lvm)

    def _tell_lvm(self) -> List[str]:
        """Make LVM forget the old identity; not of a path that has gone."""
        return tell_lvm(self.name, run_command) if os.path.exists(self.name) else []

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


_PATHS = (ImageSource, DiskSource)


def take_lock(held: ExitStack, lock: ContextManager[object]) -> None:
    """Enter the lock of a LUN. Raises Refused where the lock is not free."""
    try:
        held.enter_context(lock)
    except Refused as error:
        error.disk_state = NOTHING_WRITTEN  # commands on a LUN use this sentence
        raise
