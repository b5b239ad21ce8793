# SPDX-License-Identifier: LGPL-2.1-only
"""How the disks of a LUN come to this host, once an array has mapped it, and how they go.

    there      a disk of its own id answers: nothing is done
    scan       else, with SM's LVM lock held from now on: LVM commands look at all disks, hidden or not. The other LUNs
               that this brings are hidden until they are gone again (other_luns.py)
    find       every disk with the SCSIid that the scan has brought
    verify     all of them lead to one LUN, and none is in use
    afterwards with new identities it stays: lvmohba looks for its links, without a scan. So does a LUN that the pool
               knows. Else what has come goes again, before it is shown, for a plug of the original may take a clone
               for it

A path that does not answer counts as if it were not there, as long as there is another one.
"""

import logging
import time
from contextlib import ExitStack
from functools import partial
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

from relvmoiscsi.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import cleanup_journal, holders, multipath, paths, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import POLL_SECONDS, scan, take_away
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import lun_users
from relvmoiscsi.sr_driver.hba import other_luns
from relvmoiscsi.sr_driver.hba.config import Config

log = logging.getLogger(__name__)

SCAN_SECONDS = 15.0  #: for all adapters together; a dead port alone takes the kernel twice as long
DISK_SECONDS = 15.0  #: for the disks of the LUN to appear behind the adapters; as SM has it
OTHERS_SECONDS = 8.0  #: until udev has seen the other LUNs that a scan has brought, and they are gone again
USER_SECONDS = 3.0  #: for whoever only looks at a disk
_NEW = "new"


class Discovery:
    """The disks of a LUN that is locked and hidden here: a scan brings them, unless they are there.

    What came stays where the LUN has new identities, and goes where it has not.
    """

    is_new = False  #: has the LUN new identities, so that all may see it?
    has_sm_lock = False  #: has SM's LVM lock been held since before the LUN came?

    def __init__(
        self,
        scsi_id: str,
        config: Config,
        deadline: Deadline,
        lock_seconds: float,
        read_pool: Callable[[], lun_users.Pool],
        host_ref: str = "",
    ) -> None:
        """`read_pool`: asked before a scan, or after one of an earlier call; `host_ref` is this host."""
        self.scsi_id, self.deadline, self._lock_seconds = scsi_id, deadline, lock_seconds
        self._config, self._read_pool, self._host_ref = config, read_pool, host_ref
        self._adapters: List[hba.Adapter] = []
        self._failures: List[str] = []
        self._live: List[str] = []
        self._faces: Dict[str, paths.Face] = {}
        self._was_noted = self._is_kept = False

    # --- the steps

    def bring(self, stack: ExitStack) -> None:
        """Have the disks come; the way back is put onto the stack. Raises RelvmoiscsiError."""
        self._adapters = hba.adapters(self._config.driver)
        asked = udev.disks_of(self.scsi_id)
        self._live = self._answering()
        self._was_noted = cleanup_journal.read(self.scsi_id) is not None
        if not self._live or self._was_noted:
            stack.enter_context(sm_locks.lvm_lock(timeout=self.deadline.within(self._lock_seconds)))
            self.has_sm_lock = True
            self._live = self._live or self._answering(but=asked)  # whoever had the lock may have brought it
        if self._live and not self._was_noted:
            return
        pool = self._read_pool()  # a failure ends the call here: nothing has come, nothing goes
        self._is_kept = any(not user.is_own for user in lun_users.users_of(self.scsi_id, pool, here=self._host_ref))
        stack.callback(quietly, "taking away what a scan has brought", self._take_away)
        if not self._was_noted:
            # Of all adapters: the next call may filter others.
            cleanup_journal.note(self.scsi_id, hba.addresses(hba.adapters()))
        self._scan(pool, stack)

    def disks(self) -> List[str]:
        """The disks ("sdb") that answer. Raises NotFound when there is none in time."""
        if self._live:
            return self._live
        until = self.deadline.part(DISK_SECONDS)
        THIS_HOST.wait_for(self._all_have_nodes, until.left)
        self._live = self._answering()
        if not self._live:
            self.deadline.check(f"the LUN {self.scsi_id} appeared")
            self._verify_not_behind_another()
            raise NotFound(self._not_there(), "ISCSIDevice")
        log.info("the LUN %s is %s", self.scsi_id, ", ".join(self._live))
        return self._live

    def verify(self, disks: Sequence[str]) -> None:
        """Are they this LUN now, all of them? Raises Refused."""
        faces = {disk: face for disk, face in self._faces.items() if disk in disks}
        paths.verify_same(self.scsi_id, faces)

    def verify_free(self, disks: Sequence[str]) -> None:
        """Before a write: raises Refused when somebody uses the LUN in a way that opening it does not tell."""
        run_in_child(
            partial(self._verified_free, disks), self.deadline, "it was known who uses the LUN", only_reads=True
        )

    # --- how

    def _answering(self, but: Sequence[str] = ()) -> List[str]:
        """The disks with the SCSIid that answer now, but for those; what they show is kept."""
        disks = [disk for disk in udev.disks_of(self.scsi_id) if disk not in but]
        self._faces = paths.look(disks, self.deadline.part(paths.ANSWER_SECONDS)) if disks else {}
        return list(self._faces)

    def _scan(self, pool: lun_users.Pool, stack: ExitStack) -> None:
        """What else it brings goes at once; and at the end of the call, where one was given up and may bring more."""
        places = hba.places(self._adapters, self._config.lun, self._config.wwpns)
        if not (places or self._live):
            raise NotFound(self._no_place(), "ISCSIDevice")
        if not self._adapters:
            return  # the LUN is there, behind an adapter that is not meant
        before = other_luns.look_around(pool)
        with ExitStack() as hiding:
            hiding.enter_context(other_luns.hidden(self._adapters, before))
            forget = partial(self._forget_others, before)
            if not self._live:  # else an earlier call has scanned for it and was killed
                try:
                    self._bring(places, before.addresses)
                except BaseException:
                    forget(self.deadline.for_cleanup())  # they are hidden no longer than this block
                    raise
            forget(self.deadline.part(OTHERS_SECONDS))
            if self._failures:
                stack.push(hiding.pop_all())
                stack.callback(lambda: forget(self.deadline.for_cleanup()))

    def _bring(self, places: Sequence[hba.Place], there: Sequence[str]) -> None:
        started = time.monotonic()
        log.info("scanning %s for the LUN %s", _listed(f"{one.adapter.name} ({one})" for one in places), self.scsi_id)
        self._failures = scan(places, self.deadline.part(min(SCAN_SECONDS, self.deadline.left / 2)))
        for failure in self._failures:
            log.warning("%s", failure)
        came = [one for one in hba.addresses(self._adapters) if one not in there]
        others = [f"{scsi_id_of_address(one) or 'a LUN without an id'} at {one}" for one in came]
        log.info("%.1f seconds; it has brought %s", time.monotonic() - started, _listed(others))

    def _forget_others(self, before: other_luns.Before, deadline: Deadline) -> None:
        before = before._replace(known=before.known | {self.scsi_id})
        forget = partial(other_luns.forget_others, self._adapters, before, self._read_pool, self._host_ref, deadline)
        quietly("taking away the other LUNs of a scan", forget)

    def _all_have_nodes(self) -> bool:
        addresses = hba.addresses_of(self.scsi_id, self._adapters)
        return bool(addresses) and all(hba.disk_at(address) for address in addresses)

    def _verify_not_behind_another(self) -> None:
        """Is the LUN where this host knows another one, which a scan does not look at again? Raises Refused."""
        others = [disk for disk in hba.disks(self._adapters) if disk.scsi_id != self.scsi_id]
        faces = paths.look([disk.name for disk in others], self.deadline.part(paths.ANSWER_SECONDS))
        for disk in others:
            if disk.name in faces and faces[disk.name].scsi_id == self.scsi_id:
                raise paths.other_lun(disk.name, disk.scsi_id, self.scsi_id)

    def _verified_free(self, disks: Sequence[str], _begin: Begin) -> str:
        """Does nobody use the LUN beside its map? Whoever only looks at it gets some seconds. Raises Refused."""
        until = time.monotonic() + USER_SECONDS
        while True:
            the_map = multipath.find_map(self.scsi_id)  # multipathd makes it whenever it likes
            alone = [disk for disk in disks if the_map is None or disk not in the_map.paths]
            users = holders.users_of_disks(alone)
            if not users:
                return ""
            if time.monotonic() >= until:
                problem = "The LUN {} is in use on this host, through {}: {}."
                text = problem.format(self.scsi_id, ", ".join(alone), ", ".join(users))
                raise Refused(text).in_state("Nothing was written.")
            time.sleep(POLL_SECONDS)

    # --- afterwards

    def _take_away(self) -> None:
        """What came, by this call or by one that was killed, goes unless it is to stay. It is hidden still."""
        before = cleanup_journal.read(self.scsi_id)
        if before is None:
            return
        came = [one for one in hba.addresses_of(self.scsi_id, hba.adapters()) if one not in before.there]
        if came and self._was_noted and not (self._live or self._is_kept):
            log.warning("what came of the LUN %s stays, as no disk of it tells whose it is now", self.scsi_id)
            return
        is_known, is_to_stay = self._is_to_stay() if came else (True, self.is_new or self._is_kept)
        if came and not is_to_stay:
            for sentence in take_away(came, self.deadline.for_cleanup().part(CLEANUP_SECONDS)).values():
                log.error("%s", sentence)
        if not is_known or self._failures and not (self.is_new or self._is_kept):
            return  # the kernel may go on with what was given up, and bring the LUN yet: the next call is to know
        cleanup_journal.forget(self.scsi_id)

    def _is_to_stay(self) -> Tuple[bool, bool]:
        """Whether that is known, and whether it is so. A LUN of which no disk answers any more leaves dead disks.

        Such a disk is no use to anybody, and in the way when the LUN comes back: its size is 0 until it is looked at
        again.
        """
        if self.is_new or self._is_kept:
            return True, True
        try:
            return True, self._has_new_identities()
        except RelvmoiscsiError as problem:
            disks = udev.disks_of(self.scsi_id)
            if disks and paths.look(disks, self.deadline.for_cleanup().part(paths.ANSWER_SECONDS)):
                raise
            log.warning("what came of the LUN %s is dead, and goes: %s", self.scsi_id, problem)
            return False, False

    def _has_new_identities(self) -> bool:
        """As its label says now: an earlier call may have been killed behind the commit.

        Raises RelvmoiscsiError where that cannot be read; then all stays, and is noted for the next call.
        """
        if not self._live:
            return False  # it came dead, and nobody has written to it
        deadline = self.deadline.for_cleanup()
        return run_in_child(self._state, deadline, "the label had been read", only_reads=True) == _NEW

    def _state(self, _begin: Begin) -> str:
        from relvmoiscsi import engine  # noqa: PLC0415 - most calls need it for nothing here

        with open_device(THIS_HOST.node(self._live[0]), writable=False) as device:
            return _NEW if engine.has_new_identities(device, self.scsi_id) else "old"

    # --- what there is instead

    def _not_there(self) -> str:
        seen = {disk.scsi_id for disk in hba.disks(self._adapters)}
        text = "No disk with the SCSIid {} answers on this host after a scan of {}; there are {}.{}"
        names = _listed(adapter.name for adapter in self._adapters)
        if self._config.lun is not None:
            names += " for the number {}".format(" or ".join(map(str, hba.numbers_of(self._config.lun))))
        return text.format(self.scsi_id, names, _listed(sorted(filter(None, seen))), self._advice())

    def _advice(self) -> str:
        if not self._failures:
            return " Map the LUN to this host."
        return " These could not be scanned: " + " ".join(self._failures)

    def _no_place(self) -> str:
        if not self._adapters:
            text = "This host has no adapter of the type {}; those that it has are {}."
            return text.format(self._config.driver, _listed(sorted({one.driver for one in hba.adapters()})))
        text = "No adapter of this host is logged in to a port {}; the ports that they see are {}."
        return text.format(_listed(self._config.wwpns), _listed(hba.remote_ports(self._adapters)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
