# SPDX-License-Identifier: LGPL-2.1-only
"""What a call brings to this host, noted before it comes. What a killed call leaves, the next one takes away.

    note(scsi_id, SCAN, addresses)      before the adapters are scanned for the LUN
    note(scsi_id, MAP, disks)           before the LUN's disks come: multipathd may make a map by itself then
    forget(scsi_id, SCAN)               what has come is gone, or is to stay

    /var/lib/relvmoiscsi/cleanup/<SCSIid>   {"map": {"boot": "...", "had_wwid": false, "there": ["sda"]},
                                             "scan": {"boot": "...", "had_wwid": false, "there": ["1:0:0:0"]}}

A reboot ends what a scan has brought, and with it that entry. Multipath's list of WWIDs outlives a reboot: so the entry
of a map does, and is on the disk before the map is there. The LUN's lock is held by whoever changes its file.
"""

import json
import logging
import os
from functools import partial
from glob import escape, glob
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import in_directory, replace, sync_directory, text_of
from relvmoiscsi.host.locks.sm_locks import is_lun_locked
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_scsi_id

log = logging.getLogger(__name__)

DIRECTORY = "var/lib/relvmoiscsi/cleanup"
MAP, SCAN = "map", "scan"


class Entry(NamedTuple):
    """What there was before; `there` are the LUN's disks ("sda") for a map, all SCSI addresses for a scan."""

    boot: str
    there: Tuple[str, ...]
    had_wwid: bool  #: was the LUN in multipath's list of WWIDs?


def read(scsi_id: str, kind: str, host: Host = THIS_HOST) -> Optional[Entry]:
    """The entry; None where there is none. One that cannot be read is as good as none."""
    text = text_of(_path(scsi_id, host))
    try:
        facts = json.loads(text or "{}").get(kind)
        if facts is None:
            return None
        entry = Entry(str(facts["boot"]), tuple(map(str, facts["there"])), bool(facts["had_wwid"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("The note %s cannot be read; it is passed over.", _path(scsi_id, host))
        return None
    return entry if kind == MAP or entry.boot == host.boot_id else None


def note(scsi_id: str, kind: str, there: Sequence[str], host: Host = THIS_HOST, had_wwid: bool = False) -> None:
    """Make the entry, or make it anew. Raises Refused."""
    entries = _entries(scsi_id, host)
    entries[kind] = Entry(host.boot_id, tuple(there), had_wwid)
    try:
        _write(scsi_id, entries, host)
    except OSError as error:
        path = _path(scsi_id, host)
        problem = f"The note {path}, which a cleanup after a crash needs, cannot be used: {error.strerror}."
        raise Refused(problem).in_state("Nothing was written.") from error


def forget(scsi_id: str, kind: str, host: Host = THIS_HOST) -> None:
    """Have no entry. A failure is logged."""
    entries = _entries(scsi_id, host)
    if entries.pop(kind, None) is None and entries:
        return
    try:
        if entries:
            _write(scsi_id, entries, host)
        else:
            _remove(scsi_id, host)
    except OSError as error:
        log.warning("The note %s could not be removed: %s.", _path(scsi_id, host), error.strerror)


def unattended(kind: str, host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of LUNs with such an entry at which no call of ours is. Raises OSError."""
    directory = host.at(DIRECTORY)
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    ids = [name for name in names if is_scsi_id(name) and not name.endswith(".new")]  # which a note is at first
    return [one for one in ids if read(one, kind, host) is not None and not is_lun_locked(one, host)]


def _entries(scsi_id: str, host: Host) -> Dict[str, Entry]:
    found = {kind: read(scsi_id, kind, host) for kind in (MAP, SCAN)}
    return {kind: entry for kind, entry in found.items() if entry is not None}


def _write(scsi_id: str, entries: Dict[str, Entry], host: Host) -> None:
    path = _path(scsi_id, host)
    facts: Dict[str, Any] = {kind: entry._asdict() for kind, entry in entries.items()}
    content = json.dumps(facts, sort_keys=True).encode("ascii") + b"\n"
    is_durable = MAP in entries
    put = partial(replace if is_durable else _put, path, content, f"{path}.{os.getpid()}.new")
    in_directory(os.path.dirname(path), 0o755, put)
    if is_durable:
        sync_directory(os.path.dirname(path))


def _put(path: str, content: bytes, new: str) -> None:
    """The same as `replace` for what a reboot ends: a scan may bring many LUNs, and each sync takes its time."""
    with open(new, "wb") as file:
        file.write(content)
    os.rename(new, path)


def _remove(scsi_id: str, host: Host) -> None:
    path = _path(scsi_id, host)
    for name in [path, *glob(escape(path) + ".*.new")]:
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
    for directory in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(directory)
        except OSError:
            return  # other notes, or other files of ours, are there


def _path(scsi_id: str, host: Host) -> str:
    return os.path.join(host.at(DIRECTORY), scsi_id)
