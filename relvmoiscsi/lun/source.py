# SPDX-License-Identifier: LGPL-2.1-only
"""What a path names: an image file, or a disk of this machine (disk_source.py). url_source.py has the LUN of a URL."""

import stat
from contextlib import contextmanager
from typing import Iterator, Optional

from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.opened import IMAGE_FILE, ImageGuard, LunSource, OpenLun, Permission, agreed


class ImageSource(LunSource):
    """A file with the content of a LUN; no other machine uses it, and LVM does not see it."""

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        agreed(self.name, permission and permission.scsi_id, None)
        with open_device(self.name, writable=False) as device:
            yield OpenLun(device, IMAGE_FILE, None, ImageGuard())

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        agreed(self.name, permission.scsi_id, None)
        with open_device(self.name, writable=True) as device:
            yield OpenLun(device, IMAGE_FILE, None, ImageGuard())


def source_at(path: str, host: Host, only_block: bool = False) -> LunSource:
    """Return the disk or image file at a path. Raises NotFound or Refused for a missing or unusable path.

    With `only_block`, the open refuses an image file.
    """
    if not only_block and not is_block_device(path):
        return ImageSource(path, host)
    from relvmoiscsi.lun.disk_source import DiskSource  # noqa: PLC0415 - an image file needs no disks and no xapi

    return DiskSource(path, host, only_block)


def is_block_device(path: str) -> bool:
    return stat.S_ISBLK(stat_path(path).st_mode)
