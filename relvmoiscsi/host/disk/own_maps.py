# SPDX-License-Identifier: LGPL-2.1-only
"""Multipath maps that calls of ours have made: noted before there can be one, so that a killed call's goes as well.

    before = look(scsi_id)           what will have to be there afterwards, whatever an earlier call has left
    note(before, there)              before the LUN's disks come: multipathd may make a map by itself then
    multipath.flush_map(before)      the map goes; while disks of ours are there, multipathd may make it again
    hand_over(scsi_id)               the note goes, once they are gone, or are others'
    clear()                          the same for killed calls whose maps are gone, and their entries with them

    /var/lib/relvmoiscsi/maps/<SCSIid>      {"boot": "...", "had_wwid": false, "there": ["sda"]}

The LUN's lock is held. A noted map is somebody else's by now where anything is stacked on it, or where SM has attached
it: then it has a link in /dev/disk/mpInuse. Such a map stays, and the note goes. After a reboot multipathd makes a map
by itself of what its list of WWIDs has: it is ours where the entry was.

Source: SM drivers/mpath_dmp.py, activate_MPdev.
"""

import json
import logging
import os
from functools import partial
from glob import escape, glob
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import holders, multipath, udev
from relvmoiscsi.host.files import in_directory, replace, sync_directory, text_of
from relvmoiscsi.host.locks.sm_locks import is_lun_locked, lun_lock
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_among, is_scsi_id

log = logging.getLogger(__name__)

DIRECTORY = "var/lib/relvmoiscsi/maps"

_IN_USE_BY_SM = "disk/mpInuse"  # below /dev


class _Noted(NamedTuple):
    boot: str
    had_wwid: bool
    there: Tuple[str, ...]  #: disks of the LUN that were there before


def look(scsi_id: str, host: Host = THIS_HOST) -> multipath.Before:
    """What there was of a LUN's map before the first call of ours that has not finished its cleanup."""
    found = left(scsi_id, host)
    if found is not None:
        log.info("an earlier run did not clean up after the multipath map of %s", scsi_id)
    return found or multipath.look(scsi_id, host)


def note(before: multipath.Before, there: Sequence[str], host: Host = THIS_HOST) -> None:
    """Note, on the disk by the time this returns, that a map of this LUN is ours; `there` are its disks.

    Raises Refused. Where an earlier call has noted that, what was there is as it says.
    """
    if before.had_map:
        return
    path, boot = _path(before.scsi_id, host), host.boot_id
    noted = _noted(before.scsi_id, host)
    disks = list(noted.there if noted is not None and noted.boot == boot else there)
    content = json.dumps({"boot": boot, "had_wwid": before.had_wwid, "there": disks}, sort_keys=True) + "\n"
    replaced = partial(replace, path, content.encode("ascii"), f"{path}.{os.getpid()}.new")
    try:
        in_directory(os.path.dirname(path), 0o755, replaced)
        sync_directory(os.path.dirname(path))
    except OSError as error:
        problem = f"The note {path}, which a cleanup after a crash needs, cannot be used: {error.strerror}."
        raise Refused(problem).in_state("Nothing was written.") from error


def left(scsi_id: str, host: Host = THIS_HOST) -> Optional[multipath.Before]:
    """What a call has noted and not taken back: for `flush_map`; None where there is nothing of ours."""
    noted = _noted(scsi_id, host)
    if noted is None:
        return None
    if multipath.find_map(scsi_id, host) is not None and not _is_ours(scsi_id, noted, host):
        hand_over(scsi_id, host)
        return None
    return multipath.Before(scsi_id, had_map=False, had_wwid=noted.had_wwid)


def is_over(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Are the map and all disks gone that were not there before? Then there is nothing more to take back."""
    noted = _noted(scsi_id, host)
    there = noted.there if noted is not None else ()
    return multipath.find_map(scsi_id, host) is None and set(udev.disks_of(scsi_id, host)) <= set(there)


def unattended(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of LUNs with a note at which no call of ours is."""
    names = sorted(os.path.basename(path) for path in glob(os.path.join(escape(host.at(DIRECTORY)), "*")))
    ids = [name for name in names if is_scsi_id(name) and not name.endswith(".new")]  # which a note is at first
    return [scsi_id for scsi_id in ids if not is_lun_locked(scsi_id, host)]


def clear(ids_of_pool: Callable[[], Optional[Sequence[str]]], host: Host = THIS_HOST) -> None:
    """Be done with the maps of killed calls that are gone: with their disks, or by a reboot.

    Their entries in multipath's list go as well, or multipathd would make a map when the LUN comes again. The entry of
    a LUN that the pool names stays: SM may be about to attach it. `ids_of_pool` is asked only if there is an entry; it
    gives None while that is not known. What fails is logged, and a later call tries again.
    """
    gone = [scsi_id for scsi_id in unattended(host) if _is_gone(scsi_id, host)]
    named = ids_of_pool() if any(_is_listed_by_us(scsi_id, host) for scsi_id in gone) else ()
    for scsi_id in gone if named is not None else ():
        try:
            with lun_lock(scsi_id, host, timeout=0):
                _clear(scsi_id, named or (), host)
        except Refused as problem:
            log.info("what a killed call has noted of the multipath map of %s stays for now: %s", scsi_id, problem)


def left_behind(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of LUNs with a map of ours at which no call of ours is. Nothing is touched."""
    noted = [(one, _noted(one, host)) for one in unattended(host) if multipath.find_map(one, host) is not None]
    return [one for one, said in noted if said is not None and _is_ours(one, said, host)]


def users(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """Who uses the LUN's map; none as well where there is no map."""
    the_map = multipath.find_map(scsi_id, host)
    return [] if the_map is None else holders.users_of_disks([the_map.kernel_name], host, answering=False)


def hand_over(scsi_id: str, host: Host = THIS_HOST) -> None:
    """The map, if there is one, is no concern of ours any more."""
    path = _path(scsi_id, host)
    for name in [path, *glob(escape(path) + ".*.new")]:
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("The note %s could not be removed: %s.", name, error.strerror)
    for directory in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(directory)
        except OSError:
            return  # other notes, or other files of ours, are there


def _is_gone(scsi_id: str, host: Host) -> bool:
    """Will no map of ours come any more? After a reboot no disk is one that we have brought."""
    noted = _noted(scsi_id, host)
    if noted is None or multipath.find_map(scsi_id, host) is not None:
        return False
    return noted.boot != host.boot_id or is_over(scsi_id, host)


def _is_listed_by_us(scsi_id: str, host: Host) -> bool:
    noted = _noted(scsi_id, host)
    return noted is not None and not noted.had_wwid and multipath.look(scsi_id, host).had_wwid


def _clear(scsi_id: str, named: Sequence[str], host: Host) -> None:
    """The LUN is locked now. A call that has had it since may have changed everything."""
    before = left(scsi_id, host)
    if before is None or not _is_gone(scsi_id, host):
        return
    if not is_among(scsi_id, named):
        multipath.flush_map(before, 0, host)
    hand_over(scsi_id, host)


def _is_ours(scsi_id: str, noted: _Noted, host: Host) -> bool:
    """Is the map that is there one of ours? After a reboot that is so if multipathd had no entry before ours."""
    return (noted.boot == host.boot_id or not noted.had_wwid) and not _is_taken(scsi_id, host)


def _is_taken(scsi_id: str, host: Host) -> bool:
    """Does somebody use the map for longer than for a look at it?"""
    the_map = multipath.find_map(scsi_id, host)
    if os.path.lexists(os.path.join(host.dev, _IN_USE_BY_SM, scsi_id)):
        return True
    return the_map is not None and bool(holders.stacked(the_map.kernel_name, host))


def _noted(scsi_id: str, host: Host) -> Optional[_Noted]:
    """What the note says; one that cannot be read is as good as none."""
    text = text_of(_path(scsi_id, host))
    try:
        facts = json.loads(text)
        return _Noted(str(facts["boot"]), bool(facts["had_wwid"]), tuple(map(str, facts["there"])))
    except (ValueError, KeyError, TypeError):
        if text:
            log.warning("The note %s cannot be read; it is passed over.", _path(scsi_id, host))
        return None


def _path(scsi_id: str, host: Host) -> str:
    return os.path.join(host.at(DIRECTORY), scsi_id)
