# SPDX-License-Identifier: LGPL-2.1-only
"""The clean-up journal: the disks of this host before a scan. A call writes the journal before its scan may add a LUN.

    note(scsi_id, addresses)    before the adapters are scanned for the LUN
    forget(scsi_id)             after the LUN's new disks are gone, or when the disks shall stay

    /var/lib/relvmoiscsi/cleanup/<SCSIid>   {"boot": "...", "there": ["1:0:0:0"]}

The next call for the LUN removes the disks that a killed call has added, or that had a user. A reboot removes these
disks and makes the entry void, so the file need not be durable. A call that writes a LUN's file holds the LUN's lock.
Files and directories are root's alone (0600, 0700).
"""

import json
import logging
import os
from typing import List, Optional, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.host.files import names_in
from relvmoiscsi.host.locks.lun_lock import is_lun_locked
from relvmoiscsi.host.own_path import NotOwn, OwnPlace, own_place, own_way, read_named, refusing, verify_alone
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_scsi_id

log = logging.getLogger(__name__)

DIRECTORY = "var/lib/relvmoiscsi/cleanup"
_MOST_BYTES = 1 << 20  #: of an entry: a host has thousands of disks
_TRIES = 100  # for each failed try, another process removed the directory in the same microseconds


def read(scsi_id: str, host: Host = THIS_HOST) -> Optional[Tuple[str, ...]]:
    """Return the SCSI addresses of all LUNs that this host had before the scan for the LUN; None without an entry.

    Only an entry of this boot counts. Log an unreadable entry, and ignore the entry.
    """
    path = host.at(DIRECTORY, scsi_id)
    try:
        facts = untrusted.object_of(read_named(path, _MOST_BYTES))
        boot, there = untrusted.text_of(facts.get("boot")), tuple(untrusted.texts_of(facts.get("there")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        log.warning("The clean-up journal %s cannot be read and is ignored.", path)
        return None
    except (NotOwn, OSError) as error:  # another user's entry would name disks to remove
        log.warning("The clean-up journal %s is ignored: %s.", path, error)
        return None
    return there if boot == host.boot_id else None


def note(scsi_id: str, there: Sequence[str], host: Host = THIS_HOST) -> None:
    """Write the LUN's entry, and replace an earlier entry. Raises Refused."""
    path = host.at(DIRECTORY, scsi_id)
    new = f"{path}.{os.getpid()}.new"
    content = json.dumps({"boot": host.boot_id, "there": list(there)}, sort_keys=True)
    with in_state(NOTHING_WRITTEN), refusing(f"The clean-up journal {path}", "written"):
        for again in reversed(range(_TRIES)):
            try:
                with own_way(os.path.dirname(path), make=0o700) as directory:
                    place = OwnPlace(directory, os.path.basename(new), new)
                    with open(place.open(os.O_WRONLY | os.O_TRUNC, verify_alone), "w", encoding="ascii") as file:
                        file.write(content + "\n")
                    place.rename(scsi_id)
                return
            except (FileNotFoundError, FileExistsError):  # a call that ends has just removed the empty directory
                if not again:
                    raise


def forget(scsi_id: str, host: Host = THIS_HOST) -> None:
    """Remove the LUN's entry if there is one. Log a failure."""
    path = host.at(DIRECTORY, scsi_id)
    try:
        with own_place(path) as place:
            for name in os.listdir(place.directory.link):
                if name == scsi_id or name.startswith(f"{scsi_id}.") and name.endswith(".new"):
                    place._replace(name=name).unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (NotOwn, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        log.warning("The clean-up journal %s could not be removed: %s.", path, reason)
        return
    for directory in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(directory)
        except OSError:
            return  # the directory has other entries or other files of the product


def unattended(host: Host = THIS_HOST) -> List[str]:
    """Return the SCSIids of LUNs with an entry on which no call of relvmoiscsi works. Raises Refused, OSError."""
    ids = [name for name in names_in(host.at(DIRECTORY)) if is_scsi_id(name) and not name.endswith(".new")]
    return [one for one in ids if read(one, host) is not None and not is_lun_locked(one, host)]
