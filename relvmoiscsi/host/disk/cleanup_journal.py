# SPDX-License-Identifier: LGPL-2.1-only
"""The clean-up journal: what there was before a scan, written before the scan may bring a LUN to this host.

    note(scsi_id, addresses)    before the adapters are scanned for the LUN
    forget(scsi_id)             the LUN's new disks are gone, or are to stay

    /var/lib/relvmoiscsi/cleanup/<SCSIid>   {"boot": "...", "there": ["1:0:0:0"]}

The next call for the LUN removes the disks that a killed call has left. A reboot ends what a scan has brought, and with
it the entry: so the file need not be durable. A call that changes the file of a LUN holds the lock of that LUN.
"""

import json
import logging
import os
from glob import escape, glob
from typing import List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import in_directory, text_of
from relvmoiscsi.host.locks.sm_locks import is_lun_locked
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_scsi_id

log = logging.getLogger(__name__)

DIRECTORY = "var/lib/relvmoiscsi/cleanup"


class Entry(NamedTuple):
    """What there was before the scan."""

    boot: str
    there: Tuple[str, ...]  #: all SCSI addresses


def read(scsi_id: str, host: Host = THIS_HOST) -> Optional[Entry]:
    """The entry of this boot; None where there is none. An unreadable entry is logged, and counts as none."""
    text = text_of(_path(scsi_id, host))
    if not text:
        return None
    try:
        facts = json.loads(text)
        entry = Entry(str(facts["boot"]), tuple(map(str, facts["there"])))
    except (ValueError, KeyError, TypeError):
        log.warning("The clean-up journal %s cannot be read and is ignored.", _path(scsi_id, host))
        return None
    return entry if entry.boot == host.boot_id else None


def note(scsi_id: str, there: Sequence[str], host: Host = THIS_HOST) -> None:
    """Make the entry, or make it anew. Raises Refused."""
    path = _path(scsi_id, host)
    content = json.dumps(Entry(host.boot_id, tuple(there))._asdict(), sort_keys=True)

    def put() -> None:
        new = f"{path}.{os.getpid()}.new"
        with open(new, "w", encoding="ascii") as file:
            file.write(content + "\n")
        os.rename(new, path)

    try:
        in_directory(os.path.dirname(path), 0o755, put)
    except OSError as error:
        problem = f"The clean-up journal {path} cannot be written: {error.strerror}."
        raise Refused(problem).in_state("Nothing was written.") from error


def forget(scsi_id: str, host: Host = THIS_HOST) -> None:
    """Have no entry. A failure is logged."""
    path = _path(scsi_id, host)
    try:
        for name in [path, *glob(escape(path) + ".*.new")]:
            if os.path.lexists(name):
                os.unlink(name)
    except OSError as error:
        log.warning("The clean-up journal %s could not be removed: %s.", path, error.strerror)
        return
    for directory in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(directory)
        except OSError:
            return  # other entries, or other files of ours, are there


def unattended(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of LUNs with an entry at which no call of ours works. Raises OSError."""
    directory = host.at(DIRECTORY)
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    ids = [name for name in names if is_scsi_id(name) and not name.endswith(".new")]
    return [one for one in ids if read(one, host) is not None and not is_lun_locked(one, host)]


def _path(scsi_id: str, host: Host) -> str:
    return os.path.join(host.at(DIRECTORY), scsi_id)
