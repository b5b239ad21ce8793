# SPDX-License-Identifier: LGPL-2.1-only
"""What a word of a caller names: an image file, a disk (disk_source.py), or the LUN of a URL (url_source.py).

No other module reads the word: `source_of` chooses for each entrance.
"""

import os
import re
import stat
from contextlib import contextmanager
from typing import ContextManager, Iterator, Optional

from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.lun_url import is_url, parse_url
from relvmoiscsi.lun.opened import IMAGE_FILE, ImageGuard, LunSource, OpenLun, Permission, SessionOptions, agreed


class ImageSource(LunSource):
    """A file with the content of a LUN; no other machine uses it, and LVM does not see it.

    The path is followed at each open: Linux 4.19 grants no lease of a file that a PinnedPath has. Another user may own
    a directory of the path. So no open takes a block device, and each takes the file of the first open.
    """

    def __init__(self, name: str, host: Host) -> None:
        super().__init__(name, host)
        self._first: Optional[os.stat_result] = None  #: of the first open

    @contextmanager
    def opened_to_read(self, permission: Optional[Permission] = None) -> Iterator[OpenLun]:
        self._find_scsi_id(permission or Permission())
        with self._opened(writable=False) as lun:
            yield lun

    def _find_scsi_id(self, permission: Permission) -> Optional[str]:
        return agreed(self.name, permission.scsi_id, None)

    def _opened_alone(self, _scsi_id: Optional[str], _permission: Permission) -> ContextManager[OpenLun]:
        return self._opened(writable=True)

    @contextmanager
    def _opened(self, writable: bool) -> Iterator[OpenLun]:
        with open_device(self.name, writable, is_kind=stat.S_ISREG) as device:
            self._first = self._first or device.status
            device.verify_same(self._first)
            yield OpenLun(device, IMAGE_FILE, None, ImageGuard(device.verify_name))


def source_of(
    word: str,
    host: Host,
    only_block: bool = False,
    session: SessionOptions = SessionOptions(),  # noqa: B008 - a tuple
) -> LunSource:
    """Return what a word of a caller names: the LUN of a URL, a disk of this machine, or an image file.

    `session` is for a URL. The open refuses a file of another kind than is found here: with `only_block`, all but a
    block device. Raises UsageError, NotFound, Refused.
    """
    if not is_path(word):
        from relvmoiscsi.lun.url_login import url_of  # noqa: PLC0415 - a path needs no initiator

        return url_of(word, host, session)
    if not only_block and not is_block_device(word):
        return ImageSource(word, host)
    from relvmoiscsi.lun.disk_source import DiskSource  # noqa: PLC0415 - an image file needs no disks and no xapi

    return DiskSource(word, host)


def is_path(word: str) -> bool:
    """Does the word name a path of this machine? Other words name a LUN behind a target, and need a login."""
    return not is_url(word)


def verify_word(word: str) -> None:
    """Raise UsageError for a malformed URL; the message does not repeat the URL."""
    if is_url(word):
        parse_url(word)
    elif re.match("iscsi:|[A-Za-z]+://", word):
        raise UsageError("a URL begins with iscsi:// and two slashes; a file of this name begins with ./")


def is_block_device(path: str) -> bool:
    return stat.S_ISBLK(stat_path(path).st_mode)
