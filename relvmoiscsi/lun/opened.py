# SPDX-License-Identifier: LGPL-2.1-only
"""An open LUN: its names, its device, its guard."""

from typing import Callable, List, Optional

from relvmoiscsi.device import Device, Range
from relvmoiscsi.host.disk.block_device import HostDevice
from relvmoiscsi.host.disk.scsi_id import Hardware
from relvmoiscsi.lun.guard import Guard
from relvmoiscsi.lun.users import DeviceId

IMAGE_FILE, BLOCK_DEVICE, ISCSI_LUN = "image file", "block device", "iSCSI LUN"


class OpenLun:
    """A LUN that is open. Its source or transport closes it."""

    def __init__(
        self,
        device: Device,
        kind: str,
        ids: DeviceId,
        guard: Guard,
        hardware: Hardware = Hardware(),  # noqa: B008 - a tuple
        copy_limit_bytes: Optional[int] = None,
        refresh: Callable[[], List[str]] = list,
    ) -> None:
        self.device, self.kind, self.ids, self.guard, self.hardware = device, kind, ids, guard, hardware
        self.copy_limit_bytes = copy_limit_bytes  #: a copy of more guest data would take hours
        #: drops what this machine remembers of the LUN, after a write and the end of `device`; returns what to tell
        self.refresh = refresh

    @property
    def name(self) -> str:
        """Return the name for messages: a path or a URL."""
        return self.device.name

    @property
    def is_lun(self) -> bool:
        """May another machine use the device? False for an image file."""
        return self.kind != IMAGE_FILE

    def data_ranges(self) -> List[Range]:
        """Return the ranges that may hold data: allocated ranges of an image file, the whole of another device."""
        device = self.device
        return device.data_ranges() if isinstance(device, HostDevice) else [Range(0, device.size_bytes)]
