# SPDX-License-Identifier: LGPL-2.1-only
"""A disk of this machine, as a caller names it. For a write, each other path of the LUN is opened, then the disk.

The LUN says its name with each batch. The caller's path is followed once (PinnedPath).
"""

import os
import stat
from contextlib import ExitStack, contextmanager
from typing import Callable, Iterator, List, Optional

from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.device import Device
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.command import run as run_command
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.host.disk.exclusive import PinnedPath
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.host.disk.same_device import backing_file
from relvmoiscsi.host.disk.scsi_id import hardware_of, scsi_id_at, scsi_id_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.guard import DISK_LOCKS, LOCKS_BESIDE_SM, CommandGuard, ReadGuard
from relvmoiscsi.lun.opened import BLOCK_DEVICE, Guard, LunSource, OpenLun, Permission, agreed


class DiskSource(LunSource):
    """A block device: a disk, a path of a map, a map, or a loop device."""

    def __init__(self, name: str, host: Host) -> None:
        """Raises NotFound, Refused."""
        super().__init__(name, host)
        self._pinned = PinnedPath(name)

    @property
    def path(self) -> str:
        return os.fspath(self._pinned)

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        with self._open(writable=False) as device:
            if permission is None:
                scsi_id = scsi_id_at(self.path)
                of_lun: Guard = ReadGuard(scsi_id, self.host)
            else:
                scsi_id = self._find_scsi_id(permission)
                of_lun = self._guard(scsi_id, permission)
            yield self._lun(device, scsi_id, of_lun)

    def _find_scsi_id(self, permission: Permission) -> Optional[str]:
        return agreed(self.name, permission.scsi_id, scsi_id_of(self.path))

    @contextmanager
    def _opened_alone(self, scsi_id: Optional[str], permission: Permission) -> Iterator[OpenLun]:
        """Open the device. A LUN with a SCSIid keeps its name, or is refused.

        The kernel keeps the SCSIid of the LUN that it has found. The array may have mapped the original there since.
        """
        with ExitStack() as held:
            try:
                own = live_scsi.kernel_name(self.path, self.host)
                if scsi_id is not None:  # LVM may have taken another path of the LUN
                    held.enter_context(exclusive_open(scsi_id, NO_DEADLINE, self.host, own))
                opened = held.enter_context(self._open(writable=True))
                device: Device = opened
                if scsi_id is not None:
                    named = NamedPath(opened, (scsi_id, live_scsi.live_serial(opened.disk)))
                    named.verify_name()
                    device = named
            except Refused as refused:
                from relvmoiscsi.host.xapi import stale_volumes  # noqa: PLC0415 - only a refused open needs it

                stale_volumes.advise(
                    refused,
                    scsi_id,
                    self._sr_uuid,
                    lambda sr_uuid: stale_volumes.is_attached_here(sr_uuid, self.host),
                    lambda: ReadGuard(scsi_id, self.host).ask([]).objection,
                    self.host,
                )
                raise

            def refresh() -> List[str]:
                """Make LVM forget the old identity; not of a disk that has gone."""
                node = live_scsi.node_of(self.path, self.host)
                return tell_lvm(node, run_command) if node else []

            yield self._lun(device, scsi_id, self._guard(scsi_id, permission), refresh)

    def _lun(
        self, device: Device, scsi_id: Optional[str], of_lun: Guard, refresh: Callable[[], List[str]] = list
    ) -> OpenLun:
        hardware, image = hardware_of(self.path, self.host), backing_file(self.path, self.host)
        return OpenLun(device, BLOCK_DEVICE, scsi_id, of_lun, hardware, refresh, image=image)

    def _guard(self, scsi_id: Optional[str], permission: Permission) -> CommandGuard:
        locks = DISK_LOCKS if sm_locks.is_sm_here(self.host) else LOCKS_BESIDE_SM
        return CommandGuard(self.name, scsi_id, permission, self.host, locks)

    def _open(self, writable: bool) -> HostDevice:
        return open_device(self._pinned, writable, is_kind=stat.S_ISBLK)

    def _sr_uuid(self, _disk: str) -> str:
        """Return the UUID of the SR on the LUN; "" without one that can be read."""
        from relvmoiscsi import engine  # noqa: PLC0415 - the same

        with self._open(writable=False) as device:
            lun = engine.inspect(device).lun
        return lun.sr_uuid if lun is not None else ""
