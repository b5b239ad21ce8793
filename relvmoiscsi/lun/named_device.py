# SPDX-License-Identifier: LGPL-2.1-only
"""The device of a path or a URL, for a program that calls the engine: docs/python.rst."""

import re
from contextlib import contextmanager
from pathlib import PurePath
from typing import Iterator, Optional, Union

from relvmoiscsi.arguments import FLAG, TEXT, an, optional, promised
from relvmoiscsi.device import Device
from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.lun.opened import Permission, SessionOptions
from relvmoiscsi.lun.source import is_path, source_of
from relvmoiscsi.scsi_id_text import named_scsi_id

__all__ = ["open_device"]

_PATH = an("a text or a pathlib.Path", str, PurePath)


@contextmanager
@promised(
    name=_PATH,
    writable=FLAG,
    initiator_name=optional(TEXT),
    chap_file=optional(_PATH),
    scsi_id=optional(TEXT),
)
def open_device(
    name: Union[str, PurePath],
    writable: bool,
    initiator_name: Optional[str] = None,
    chap_file: Union[str, PurePath, None] = None,
    scsi_id: Optional[str] = None,
) -> Iterator[Device]:
    """Open a block device or an image file by its path, or a LUN by its iscsi:// URL; for writing, exclusively.

    For writing, the block holds the lock of the LUN. The last three are for a URL: who logs in, as the options of the
    command, and the SCSIid that the LUN must have. Raises NotFound, Refused, UsageError, NoConnection, DeviceError.
    """
    name = str(name)
    if not name or re.search("[\0\ud800-\udc7f\udd00-\udfff]", name):  # udc80 to udcff are bytes of a path
        raise UsageError(f"{name!r} names no device.").advising("Give a path or a URL.")
    if scsi_id is not None:
        scsi_id = named_scsi_id(scsi_id)
    session = SessionOptions(initiator_name, chap_file if chap_file is None else str(chap_file), scsi_id)
    if is_path(name) and session != SessionOptions():
        raise UsageError(f"{name} is no URL: initiator_name, chap_file and scsi_id are for a URL.")
    source = source_of(name, THIS_HOST, session=session)
    permission = Permission(scsi_id, is_asked=False)
    with source.opened_to_write(permission) if writable else source.opened_to_read() as lun:
        try:
            yield lun.device
        finally:
            lun.device.is_closed = True
