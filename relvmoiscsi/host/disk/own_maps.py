# SPDX-License-Identifier: LGPL-2.1-only
"""Multipath maps that calls of ours have made; a killed call's goes as well.

    before = look(scsi_id)           what will have to be there afterwards, whatever an earlier call has left
    note(before, there)              before the LUN's disks come: multipathd may make a map by itself then
    multipath.flush_map(before)      the map goes; while disks of ours are there, multipathd may make it again
    hand_over(scsi_id)               the entry in the journal goes, once they are gone, or are others'
    clear()                          the same for killed calls whose maps are gone, and their entries with them

The LUN's lock is held. A noted map is somebody else's by now where anything is stacked on it, or where SM has attached
it: then it has a link in /dev/disk/mpInuse. Such a map stays, and the entry goes. After a reboot multipathd makes a map
by itself of what its list of WWIDs has: it is ours where the LUN was not in that list before.

Source: SM drivers/mpath_dmp.py, activate_MPdev.
"""

import logging
import os
from typing import Callable, List, Optional, Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import cleanup_journal, holders, multipath, udev
from relvmoiscsi.host.disk.cleanup_journal import MAP
from relvmoiscsi.host.locks.sm_locks import lun_lock
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_among

log = logging.getLogger(__name__)

_IN_USE_BY_SM = "disk/mpInuse"  # below /dev


def look(scsi_id: str, host: Host = THIS_HOST) -> multipath.Before:
    """What there was of a LUN's map before the first call of ours that has not finished its cleanup."""
    found = stale(scsi_id, host)
    if found is not None:
        log.info("an earlier run did not clean up after the multipath map of %s", scsi_id)
    return found or multipath.look(scsi_id, host)


def note(before: multipath.Before, there: Sequence[str], host: Host = THIS_HOST) -> None:
    """Note, on the disk by the time this returns, that a map of this LUN is ours; `there` are its disks.

    Raises Refused. Where an earlier call has noted that, what was there is as it says.
    """
    if before.had_map:
        return
    noted = cleanup_journal.read(before.scsi_id, MAP, host)
    disks = noted.there if noted is not None and noted.boot == host.boot_id else there
    cleanup_journal.note(before.scsi_id, MAP, disks, host, before.had_wwid)


def stale(scsi_id: str, host: Host = THIS_HOST) -> Optional[multipath.Before]:
    """What a call has noted and not taken back: for `flush_map`; None where there is nothing of ours."""
    noted = cleanup_journal.read(scsi_id, MAP, host)
    if noted is None:
        return None
    if multipath.find_map(scsi_id, host) is not None and not _is_ours(scsi_id, host):
        hand_over(scsi_id, host)
        return None
    return multipath.Before(scsi_id, had_map=False, had_wwid=noted.had_wwid)


def is_over(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Are the map and all disks gone that were not there before? Then there is nothing more to take back."""
    noted = cleanup_journal.read(scsi_id, MAP, host)
    there = noted.there if noted is not None else ()
    return multipath.find_map(scsi_id, host) is None and set(udev.disks_of(scsi_id, host)) <= set(there)


def clear(ids_of_pool: Callable[[], Sequence[str]], host: Host = THIS_HOST) -> None:
    """Be done with the maps of killed calls that are gone: with their disks, or by a reboot.

    Their entries in multipath's list go as well, or multipathd would make a map when the LUN comes again. The entry of
    a LUN that the pool names stays: SM may be about to attach it. `ids_of_pool` is asked only if there is an entry.
    What fails is logged, and a later call tries again.
    """
    gone = [scsi_id for scsi_id in cleanup_journal.unattended(MAP, host) if _is_gone(scsi_id, host)]
    named = ids_of_pool() if any(_is_listed_by_us(scsi_id, host) for scsi_id in gone) else []
    for scsi_id in gone:
        try:
            with lun_lock(scsi_id, host, timeout=0):
                _clear(scsi_id, named, host)
        except Refused as problem:
            log.info("what a killed call has noted of the multipath map of %s stays for now: %s", scsi_id, problem)


def stale_luns(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of LUNs with a map of ours at which no call of ours is. Nothing is touched."""
    maps = [one for one in cleanup_journal.unattended(MAP, host) if multipath.find_map(one, host) is not None]
    return [one for one in maps if _is_ours(one, host)]


def hand_over(scsi_id: str, host: Host = THIS_HOST) -> None:
    """The map, if there is one, is no concern of ours any more."""
    cleanup_journal.forget(scsi_id, MAP, host)


def _is_gone(scsi_id: str, host: Host) -> bool:
    """Will no map of ours come any more? After a reboot no disk is one that we have brought."""
    noted = cleanup_journal.read(scsi_id, MAP, host)
    if noted is None or multipath.find_map(scsi_id, host) is not None:
        return False
    return noted.boot != host.boot_id or is_over(scsi_id, host)


def _is_listed_by_us(scsi_id: str, host: Host) -> bool:
    noted = cleanup_journal.read(scsi_id, MAP, host)
    return noted is not None and not noted.had_wwid and multipath.look(scsi_id, host).had_wwid


def _clear(scsi_id: str, named: Sequence[str], host: Host) -> None:
    """The LUN is locked now. A call that has had it since may have changed everything."""
    before = stale(scsi_id, host)
    if before is None or not _is_gone(scsi_id, host):
        return
    if not is_among(scsi_id, named):
        multipath.flush_map(before, 0, host)
    hand_over(scsi_id, host)


def _is_ours(scsi_id: str, host: Host) -> bool:
    """Is the map that is there one of ours? After a reboot that is so if multipathd had no entry before ours."""
    noted = cleanup_journal.read(scsi_id, MAP, host)
    return noted is not None and (noted.boot == host.boot_id or not noted.had_wwid) and not _is_taken(scsi_id, host)


def _is_taken(scsi_id: str, host: Host) -> bool:
    """Does somebody use the map for longer than for a look at it?"""
    the_map = multipath.find_map(scsi_id, host)
    if os.path.lexists(os.path.join(host.dev, _IN_USE_BY_SM, scsi_id)):
        return True
    return the_map is not None and bool(holders.stacked(the_map.kernel_name, host))
