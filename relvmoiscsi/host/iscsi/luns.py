# SPDX-License-Identifier: LGPL-2.1-only
"""The LUNs of a session: who uses them, and those that a scan of ours has brought, which go again.

A scan brings whatever the target has mapped since, and clones that nobody has resignatured so far are no sight for
LVM. So the run that scans notes what was there before and what is there afterwards, and takes away the difference. LUNs
stay that are in use by then, or that another run of ours works on, which takes them away instead; all of them stay
once an SR has been attached to the IQN: on most hosts of a pool such an SR has nothing open. What the pool names stays
as well: SM may have taken its line before our scan, and wait for a disk that its own scan finds no longer new.

A multipath map that a killed call of ours has made over a LUN is no user of it: it goes before.

A disk that does not answer hangs whoever opens it, and whoever removes it; so both are done where that can be given up.
"""

import logging
import os
import time
from contextlib import ExitStack
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence, Set

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import holders, multipath, own_maps
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.scsi_id_text import is_among, is_scsi_id
from relvmoiscsi.host.iscsi.iscsiadm import wait_for
from relvmoiscsi.host.iscsi.notes import Note
from relvmoiscsi.host.iscsi.sessions import Lun, Session
from relvmoiscsi.host.locks.sm_locks import is_lun_locked, lun_lock
from relvmoiscsi.host.this_host import Host

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0  #: for whoever only looks at a disk, such as LVM that scans all of them


def tell_kernel(switch: str, text: str) -> None:
    """Write to a switch in sysfs. Raises Refused (ISCSIDevice) unless what it belongs to has gone."""
    try:
        with open(switch, "w", encoding="ascii") as file:
            file.write(text)
    except (FileNotFoundError, NotADirectoryError):
        log.debug("%s is gone", switch)
    except OSError as error:
        problem = "This host cannot be scanned for new LUNs: {}: {}."
        raise Refused(problem.format(switch, error.strerror), "ISCSIDevice") from error


class WorkedOn(Refused):
    """Another run of ours is at LUNs, which it has locked, and with them at what was to be ended. The text names it."""

    def __init__(self, scsi_ids: Sequence[str], users: Sequence[str] = ()) -> None:
        text = "a run of ours at the LUN {}".format(", ".join(scsi_ids))
        super().__init__(text + (" ({})".format(", ".join(users)) if users else ""))
        self.scsi_ids = list(scsi_ids)


#: Gives what the work gives, done where a disk that does not answer holds up nobody; last comes what it was for.
InTime = Callable[[Callable[[], List[str]], Session, str], List[str]]
#: Gives what could be a SCSIid in the pool's records as they are now; None while that is not known.
IdsOfPool = Callable[[], Optional[Sequence[str]]]


def no_pool() -> Sequence[str]:
    """Where there is no pool to ask."""
    return ()


class Luns:
    """The LUNs of a host, whose runner keeps to the deadline. SM's iscsiadm lock is held, so that nobody else scans."""

    def __init__(self, host: Host, in_time: InTime, ids_of_pool: IdsOfPool = no_pool) -> None:
        self._in_time, self._ids_of_pool = in_time, ids_of_pool
        self._host = host

    def users(self, session: Session, luns: Sequence[Lun], seconds: Optional[float] = None) -> List[str]:
        """Who uses these LUNs of the session, once those that only look at them have had time to end: LOOK_SECONDS."""
        disks = [lun.disk for lun in luns if lun.disk is not None]
        users: List[str] = []

        def are_free() -> bool:
            users[:] = holders.users_of_disks(disks, self._host, session.is_logged_in)
            return not users

        wait_for(are_free, LOOK_SECONDS if seconds is None else seconds)
        return users

    def scan(self, session: Session, scsi_id: Optional[str]) -> None:
        """Have the kernel ask the target for LUNs that are new, and the LUN with this SCSIid for its size.

        As SM does it. `iscsiadm -R` asks every disk of the session, and one of others that is not ready holds that up
        for 100 seconds. Raises Refused (ISCSIDevice); OutOfTime when the kernel is not done in time, and goes on.
        """
        self._in_time(partial(self._scan, session, scsi_id), session, f"{session} was scanned for LUNs")

    def _scan(self, session: Session, scsi_id: Optional[str]) -> List[str]:
        changed = [lun.scsi_address for lun in session.luns if scsi_id and self._scsi_id(lun) == scsi_id]
        tell_kernel(os.path.join(self._host.sysfs, f"class/scsi_host/host{session.host}/scan"), "- - -")
        for address in changed:
            tell_kernel(os.path.join(self._host.sysfs, f"bus/scsi/devices/{address}/rescan"), "1")
        return []

    def let_go_of_maps(self, luns: Sequence[Lun], done_with: Optional[str] = None) -> bool:
        """Take away the multipath maps that calls of ours have left over these LUNs, but those that somebody uses.

        True if one has gone. The notes stay for `clear_maps`: while a disk is there, multipathd may make a map yet.
        `done_with` is the SCSIid of the LUN that the caller has locked. Raises Refused when one stays for now,
        WorkedOn when that is because of another run of ours: its own cleanup takes the map away.
        """
        ids = dict.fromkeys(filter(None, map(self._scsi_id, luns)))
        gone = [scsi_id for scsi_id in ids if self._let_go_of_map(scsi_id, done_with)]
        return bool(gone)

    def _let_go_of_map(self, scsi_id: str, done_with: Optional[str]) -> bool:
        left = self._left_map(scsi_id)
        if left is None:
            return False
        with ExitStack() as locks:
            is_ours = self._is_ours(scsi_id, done_with, locks)
            has_gone = is_ours and self._flush(left)
        if not is_ours and multipath.find_map(scsi_id, self._host) is not None:
            raise WorkedOn([scsi_id])
        return has_gone

    def worked_on(self, luns: Sequence[Lun], done_with: Optional[str]) -> List[str]:
        """The SCSIids of those at which another run of ours is."""
        ids = dict.fromkeys(filter(None, map(self._scsi_id, luns)))
        return [one for one in ids if one != done_with and is_scsi_id(one) and is_lun_locked(one, self._host)]

    def let_go_of_idle_maps(self, luns: Sequence[Lun], done_with: Optional[str]) -> None:
        """The session is SM's now. Our maps go all the same, but those that somebody uses, or of LUNs the pool has.

        What cannot go yet stays ours, as its note says to a later run.
        """
        ids = [one for one in dict.fromkeys(map(self._scsi_id, luns)) if one and self._left_map(one) is not None]
        named = self._ids_of_pool() if set(ids) - {done_with} else ()
        for scsi_id in ids:
            if scsi_id == done_with:
                stays = multipath.find_map(scsi_id, self._host) is not None  # its call has just tried
            else:
                stays = named is None or is_among(scsi_id, named)  # SM may be about to attach it
            if stays:
                log.info("the multipath map of LUN %s stays for now", scsi_id)
                continue
            try:
                self._let_go_of_map(scsi_id, done_with)
            except Refused as problem:
                # The LUN may be this call's own, which goes on with the map.
                log.info("the multipath map of LUN %s stays for now: %s", scsi_id, problem)

    def hand_over_maps(self, luns: Sequence[Lun], done_with: Optional[str]) -> None:
        """Maps that `let_go_of_maps` has found in use are their users'; not that of the LUN that the caller has locked.

        Not those either at which another run of ours is.
        """
        theirs = set(self.worked_on(luns, done_with)) | {done_with}
        for scsi_id in filter(None, map(self._scsi_id, luns)):
            if is_scsi_id(scsi_id) and scsi_id not in theirs:
                own_maps.hand_over(scsi_id, self._host)

    def _left_map(self, scsi_id: Optional[str]) -> Optional[multipath.Before]:
        left = own_maps.left(scsi_id, self._host) if scsi_id and is_scsi_id(scsi_id) else None
        return left if left is not None and own_maps.is_there(left, self._host) else None

    def _flush(self, left: multipath.Before) -> bool:
        """False if it stays, as somebody uses it."""
        try:
            multipath.flush_map(left, 0, self._host)
        except Refused as problem:
            users = own_maps.users(left.scsi_id, self._host)
            if not users:
                raise
            log.warning("%s It is in use: %s.", problem, ", ".join(users))
            return False
        return True

    def clear_maps(self) -> None:
        """Be done with maps of killed calls that have gone with their disks, or by a reboot."""
        own_maps.clear(self._ids_of_pool, self._host)

    def note_before_scan(self, note: Note, session: Session, others: List[str]) -> None:
        """What is there, and who has lines in SM's session reference file."""
        if note["others"] is None:
            note.add(others=others)
        there = [lun.scsi_address for lun in session.luns]
        # What is new since a scan that was killed came with that: its session is taken over with its note.
        note.add(scanning=note["scanning"] if note["scanned"] is False else there, scanned=False)

    def note_after_scan(self, note: Note, session: Session) -> None:
        """What the scan has brought; a second scan adds to the first."""
        brought: Dict[str, Optional[str]] = dict(note["brought"] or {})
        for lun in session.luns:
            if lun.scsi_address not in note["scanning"]:
                brought.setdefault(lun.scsi_address, self._scsi_id(lun))
        note.add(brought=brought, scanned=True)

    def take_away(
        self, note: Note, session: Optional[Session], others: Set[str], done_with: Optional[str] = None
    ) -> bool:
        """Remove what the scan has brought; False if a later run is to do so.

        `others` have lines in SM's file now and are no runs of ours; `done_with` is the SCSIid of the LUN that the
        caller has locked. Raises WorkedOn when some of it is another run's for now; Refused when a LUN cannot be
        removed, or does not answer in time, or the scan goes on.
        """
        if session is None or note["scanning"] is None:
            return True
        if not note["scanned"]:  # killed during the scan, or it was not waited for
            self._in_time(list, session, f"the scan of {session} had ended")
            self.note_after_scan(note, session)
        brought = note["brought"]
        there = [lun for lun in session.luns if lun.scsi_address in brought]
        there = [lun for lun in there if self._scsi_id(lun) == brought[lun.scsi_address]]  # else: another one by now
        newcomers = sorted(others - set(note["others"]))
        if there and newcomers:
            names = ", ".join(newcomers)
            log.info("%d LUNs that a scan has brought stay, as %s has been attached since", len(there), names)
            return True
        named = self._ids_of_pool() if there else ()
        if named is None:
            log.warning("%d LUNs that a scan has brought stay for now, as it is not known whose they are", len(there))
            return False
        theirs = [lun.scsi_address for lun in there if self._is_named(lun, named)]
        if theirs:  # others' from now on, also where the rest has to wait
            note.add(brought={address: one for address, one in brought.items() if address not in theirs})
        there = [lun for lun in there if lun.scsi_address not in theirs]
        with ExitStack() as locks:
            ours = [lun for lun in there if self._is_ours(brought[lun.scsi_address], done_with, locks)]
            worked_on = dict.fromkeys(brought[lun.scsi_address] for lun in there if lun not in ours)
            if ours:
                for left in filter(None, (self._left_map(brought[lun.scsi_address]) for lun in ours)):
                    self._flush(left)
                what = f"what a scan of {session} has brought was removed"
                self._in_time(partial(self._remove_unused, session, ours), session, what)
        if worked_on:
            raise WorkedOn(list(worked_on))
        return True

    def _is_named(self, lun: Lun, named: Sequence[str]) -> bool:
        """Has the pool something on this LUN? One without an id cannot be named."""
        scsi_id = self._scsi_id(lun)
        if scsi_id is None or not is_among(scsi_id, named):
            return False
        log.info("the LUN %s at %s, which a scan has brought, stays: the pool has it", scsi_id, lun.scsi_address)
        return True

    def _is_ours(self, scsi_id: Optional[str], done_with: Optional[str], locks: ExitStack) -> bool:
        """Take the lock of a LUN; False if another run of ours works on it."""
        if scsi_id is not None and scsi_id != done_with:
            try:
                locks.enter_context(lun_lock(scsi_id, self._host, timeout=0))
            except Refused:
                return False
        return True

    def _remove_unused(self, session: Session, luns: Sequence[Lun]) -> List[str]:
        """Remove the LUNs but those in use, whose addresses it gives."""
        stay = []
        until = time.monotonic() + LOOK_SECONDS  # together, or a few LUNs in use would take all the time there is
        for lun in luns:
            users = self.users(session, [lun], max(0.0, until - time.monotonic()))
            if users:
                stay.append(lun.scsi_address)
                names = (self._scsi_id(lun), lun.scsi_address, ", ".join(users))
                log.warning("the LUN %s at %s stays, as it is in use: %s", *names)
            else:
                scsi.remove_lun(lun.scsi_address, self._host)
        return stay

    def _scsi_id(self, lun: Lun) -> Optional[str]:
        return scsi.scsi_id_of_address(lun.scsi_address, self._host)
