# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN that an array maps to this host. No login keeps it hidden, and nothing ends when the call does.

    there      a disk of its own id answers: nothing is done
    scan       else, with SM's LVM lock held from now on: LVM commands look at all disks, hidden or not. The other LUNs
               that this brings are hidden until they are gone again, but those that this host or the pool knows
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
from functools import lru_cache, partial
from typing import Callable, ContextManager, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import run
from relvmoiscsi.host.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.host.disk import holders, multipath, own_maps, paths, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.disk.scsi_id import scsi_id_at, scsi_id_of_address
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import POLL_SECONDS, Note, scan, take_away
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import Begin, apart
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import lun_users, other_hosts
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.sr_driver.cleanup import quietly
from relvmoiscsi.sr_driver.hba.config import Config
from relvmoiscsi.sr_driver.hba.listing import device_list
from relvmoiscsi.sr_driver.held import LUN_SECONDS, HeldLun
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.this_host import record_of_host
from relvmoiscsi.sr_driver.transport import Listed, Lun

log = logging.getLogger(__name__)

SCAN_SECONDS = 15.0  #: for all adapters together; a dead port alone takes the kernel twice as long
OTHERS_SECONDS = 8.0  #: until udev has seen the other LUNs that a scan has brought, and they are gone again
NODE_SECONDS = 3.0  #: for the kernel, to have their nodes after the scan
LIST_SECONDS = 4.0  #: for all disks of a list to answer
USER_SECONDS = 3.0  #: for whoever only looks at a disk
BUSY_SECONDS = 3.0  #: for SM's LVM lock, where a list is asked for; a probe keeps PBDs from being plugged
_NEW = "new"


def named_lun(call: Call, config: Config, xapi: Xapi, deadline: Deadline, lock_seconds: float) -> Lun:
    """The LUN that a call names. Raises Listed when it names none, RelvmoiscsiError."""
    record = record_of_host(call, xapi)
    scsi_id = config.scsi_id or (scsi_id_at(config.device) or "" if config.device else "")
    if not scsi_id:
        raise missing_scsi_id(config, xapi, deadline, lock_seconds, call.host_ref)
    if not config.scsi_id:
        log.info("%s is the LUN %s", config.device, scsi_id)
    multipathing = multipath.is_on(call.device_config, dict(record.get("other_config", {})))
    others = other_hosts.OtherHosts(xapi, call.host_ref)
    pool = partial(lun_users.read_pool, xapi)
    return HbaLun(scsi_id, config, multipathing, deadline, lock_seconds, others, pool, call.host_ref)


class _Before(NamedTuple):
    """What there is before a scan."""

    addresses: List[str]  #: of all adapters, as the next call may filter others
    known: Set[str]  #: SCSIids that this host has, or the pool names
    ports: Set[str]  #: of targets, that are online


def _look_around(pool: lun_users.Pool) -> _Before:
    """What a call that was killed has brought, and is hidden still, counts as not there.

    Without SM's LVM lock, what another call has just brought does so as well, and is to go anyway.
    """
    ports = set(hba.ports_online(hba.adapters()))
    disks = {one: hba.disk_at(one) for one in hba.addresses(hba.adapters())}
    there = [one for one, disk in disks.items() if disk is None or not udev.is_left_hidden(disk)]
    return _Before(there, {*udev.ids_here(), *lun_users.ids_named(pool)}, ports)


def _hidden(adapters: Sequence[hba.Adapter], before: _Before) -> ContextManager[None]:
    return udev.hidden_adapters([one.name for one in adapters], sorted(before.known))


class HbaLun(HeldLun):
    """It comes by a scan, unless it is there; what came stays or goes with the success of the call."""

    def __init__(
        self,
        scsi_id: str,
        config: Config,
        multipathing: bool,
        deadline: Deadline,
        lock_seconds: float,
        others: other_hosts.OtherHosts,
        read_pool: Callable[[], lun_users.Pool],
        host_ref: str = "",
    ) -> None:
        """`read_pool`: asked before a scan, or after one of an earlier call; `host_ref` is this host."""
        super().__init__(scsi_id, multipathing, deadline, lock_seconds, "of the host's adapters")
        self._config, self._others = config, others
        self._read_pool, self._host_ref = read_pool, host_ref
        self._adapters: List[hba.Adapter] = []
        self._failures: List[str] = []
        self._live: List[str] = []
        self._faces: Dict[str, paths.Face] = {}
        self._note = Note(scsi_id)
        self._was_noted = self._is_kept = False

    # --- the steps

    def verify_unused_elsewhere(self) -> None:
        self._others.verify_unused(self.scsi_id, self.deadline)

    def before(self) -> None:
        self._adapters = hba.adapters(self._config.driver)

    def reach(self, stack: ExitStack) -> None:
        asked = udev.disks_of(self.scsi_id)
        self._live = self._answering()
        if not self._live:
            stack.enter_context(sm_locks.lvm_lock(timeout=self.deadline.within(self.lock_seconds)))
            self.has_sm_lock = True
            self._live = self._answering(but=asked)  # whoever had the lock may have brought it
        self._was_noted = self._note.read() is not None
        if self._live and not self._was_noted:
            return
        pool = self._read_pool()  # a failure ends the call here: nothing has come, nothing goes
        self._is_kept = any(not user.is_own for user in lun_users.all_of(self.scsi_id, pool, self._host_ref))
        stack.callback(quietly, "taking away what a scan has brought", self._take_away)
        if not self._was_noted:
            self._note.write(hba.addresses(hba.adapters()))  # of all: the next call may filter others
        self._scan(pool, stack)

    def disks(self) -> List[str]:
        if self._live:
            return self._live
        until = self.deadline.part(LUN_SECONDS)
        THIS_HOST.wait_for(self._all_have_nodes, until.left)
        self._live = self._answering()
        if not self._live:
            self.deadline.check(f"the LUN {self.scsi_id} appeared")
            self._verify_not_behind_another()
            raise NotFound(self._not_there(), "ISCSIDevice")
        log.info("the LUN %s is %s", self.scsi_id, ", ".join(self._live))
        return self._live

    def verify(self, disks: Sequence[str]) -> None:
        faces = {disk: face for disk, face in self._faces.items() if disk in disks}
        paths.verify_same(self.scsi_id, faces)

    def verify_free(self, disks: Sequence[str]) -> None:
        apart(partial(self._verified_free, disks), self.deadline, "it was known who uses the LUN", only_reads=True)

    def afterwards(self) -> None:
        own_maps.clear(lambda: lun_users.ids_named(self._read_pool()))

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
        before = _look_around(pool)
        with ExitStack() as hiding:
            hiding.enter_context(_hidden(self._adapters, before))
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

    def _forget_others(self, before: _Before, deadline: Deadline) -> None:
        before = before._replace(known=before.known | {self.scsi_id})
        forget = partial(_forget, self._adapters, before, self._read_pool, self._host_ref, deadline)
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
        before = self._note.read()
        if before is None:
            return
        came = [one for one in hba.addresses_of(self.scsi_id, hba.adapters()) if one not in before]
        if came and self._was_noted and not (self._live or self._is_kept):
            log.warning("what came of the LUN %s stays, as no disk of it tells whose it is now", self.scsi_id)
            return
        is_known, is_to_stay = self._is_to_stay() if came else (True, self.is_done or self._is_kept)
        if came and not is_to_stay:
            stay = take_away(came, self.deadline.for_cleanup().part(CLEANUP_SECONDS)).values()
            for sentence in stay:
                log.error("%s", sentence)
            if stay and own_maps.left(self.scsi_id) is not None:
                return  # a map of ours may keep them: the next call takes that away, and then them
        if not is_known or self._failures and not (self.is_done or self._is_kept):
            return  # the kernel may go on with what was given up, and bring the LUN yet: the next call is to know
        self._note.remove()

    def _is_to_stay(self) -> Tuple[bool, bool]:
        """Whether that is known, and whether it is so. A LUN of which no disk answers any more leaves dead disks.

        Such a disk is no use to anybody, and in the way when the LUN comes back: its size is 0 until it is looked at
        again.
        """
        if self.is_done or self._is_kept:
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
        return apart(self._state, deadline, "the label had been read", only_reads=True) == _NEW

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


# --- a missing key


def missing_scsi_id(config: Config, xapi: Xapi, deadline: Deadline, lock_seconds: float, host_ref: str = "") -> Listed:
    """The answer without SCSIid: the LUNs that the adapters see after a scan, which takes away what it has brought.

    While SM is at an LVM command, those that they see without one, and it is said.
    """
    adapters = hba.adapters(config.driver)
    pool = lun_users.read_pool(xapi)

    def is_taken(scsi_id: str) -> bool:
        return _is_taken(scsi_id, pool, host_ref)

    busy = ""
    with ExitStack() as stack, terminated.only_here():
        try:
            stack.enter_context(sm_locks.lvm_lock(timeout=deadline.within(max(lock_seconds, BUSY_SECONDS))))
            before = _look_around(pool)
            if adapters:
                stack.enter_context(_hidden(adapters, before))
        except Refused as problem:
            busy = f" The adapters were not scanned, so LUNs that were mapped of late are not in the list. {problem}"
            log.warning("the list is of what is there, without a scan: %s", problem)
        else:

            def forget() -> None:
                _forget(adapters, before, partial(lun_users.read_pool, xapi), host_ref, deadline.for_cleanup())

            stack.callback(quietly, "taking away what the scan has brought", forget)
            for failure in scan(hba.places(adapters, config.lun, config.wwpns), deadline.part(SCAN_SECONDS)):
                log.warning("%s", failure)
            came = [one for one in hba.addresses(adapters) if one not in before.addresses]
            THIS_HOST.wait_for(lambda: all(hba.disk_at(one) for one in came), deadline.within(LUN_SECONDS))
        xml = device_list(_as_they_are(hba.disks(adapters), deadline), adapters, is_taken, _description)
    if config.device:
        text = f"{config.device} leads to no LUN with a SCSIid (device-config:device)."
        return Listed(text + busy, "ConfigSCSIid", xml)
    return Listed("The SCSIid (device-config:SCSIid) is missing." + busy, "ConfigSCSIid", xml)


def _as_they_are(disks: Sequence[hba.Disk], deadline: Deadline) -> List[hba.Disk]:
    """The disks with what they answer now; one that does not in time is as the kernel has found it."""
    faces = paths.look([disk.name for disk in disks], deadline.part(LIST_SECONDS))
    return [_with_face(disk, faces.get(disk.name)) for disk in disks]


def _with_face(disk: hba.Disk, face: Optional[paths.Face]) -> hba.Disk:
    if face is None:
        return disk
    if face.scsi_id != disk.scsi_id:
        log.warning("the disk %s was the LUN %s, and is %s now", disk.name, disk.scsi_id, face.scsi_id)
    return disk._replace(scsi_id=face.scsi_id, serial=face.serial, size_bytes=face.size_bytes)


def _is_taken(scsi_id: str, pool: lun_users.Pool, host_ref: str) -> bool:
    """Does the pool have something on the LUN, or this host its root? What is in use is no clone to be named."""
    if lun_users.all_of(scsi_id, pool, host_ref):
        return True
    return bool(set(udev.disks_of(scsi_id)) & set(holders.disks_below("/")))


def _forget(
    adapters: Sequence[hba.Adapter],
    before: _Before,
    read_pool: Callable[[], lun_users.Pool],
    host_ref: str,
    deadline: Deadline,
) -> None:
    """Take away the LUNs that are new since then as a whole, but those of the pool, and those a call of ours is at.

    A path that came to a LUN with a disk may be one that was down for a moment: nobody would look for it again. What
    stays, or a kill leaves, is noted for the next call for that LUN. The pool is asked now: somebody may have made an
    SR on a LUN since, or be at it. And what is behind a port that has logged in since was not brought by the scan, but
    by the kernel.
    """
    known = before.known | {scsi_id_of_address(one) or "" for one in before.addresses}
    with ExitStack() as locks:
        came = [one for one in hba.addresses(adapters) if one not in before.addresses]
        free, stay = {}, [one for one in came if scsi_id_of_address(one) is None]
        new = {scsi_id: addresses for scsi_id, addresses in _by_lun(came).items() if scsi_id not in known}
        pool = _pool_now(read_pool) if new else None
        arrived = set(hba.ports_online(adapters)) - before.ports
        for scsi_id, addresses in new.items():
            if any(one.rpartition(":")[0] in arrived for one in addresses):
                log.warning("the LUN %s stays: it came with a port that has logged in meanwhile", scsi_id)
                stay += addresses
            elif pool is None or _is_taken(scsi_id, pool, host_ref):
                stay += addresses
            elif _take_lock(scsi_id, locks):  # else the call that is at it waits for it, and hides it
                free[scsi_id] = addresses
        notes = _noted(free, before.addresses)
        goes = [one for addresses in free.values() for one in addresses]
        awaited = goes + stay
        if not awaited:
            return
        THIS_HOST.wait_for(lambda: all(map(hba.disk_at, awaited)), deadline.within(NODE_SECONDS))
        disks = [disk for disk in map(hba.disk_at, awaited) if disk]
        seconds = deadline.within(CLEANUP_SECONDS)
        quietly("waiting for udev", lambda: udev.settle(disks, seconds))  # who is late with 160 of them, else keeps all
        stays = take_away(goes, deadline.for_cleanup().part(CLEANUP_SECONDS))
        for sentence in stays.values():
            log.warning("%s", sentence)
        for scsi_id, note in notes.items():
            if not any(one in stays for one in free[scsi_id]):
                note.remove()


def _pool_now(read_pool: Callable[[], lun_users.Pool]) -> Optional[lun_users.Pool]:
    """None while xapi does not say: then whatever came may be somebody's."""
    try:
        return read_pool()
    except RelvmoiscsiError as problem:
        log.warning("what a scan has brought stays, as it is not known whether the pool has it: %s", problem)
        return None


def _noted(luns: Iterable[str], there: Sequence[str]) -> Dict[str, Note]:
    """Notes of these LUNs, by SCSIid; one that an earlier call has left stays as it is, and no part of the answer."""
    notes = {}
    for scsi_id in luns:
        note = Note(scsi_id)
        if note.read() is None:
            quietly("noting what a scan has brought", partial(note.write, there))
            notes[scsi_id] = note
    return notes


def _by_lun(addresses: Iterable[str]) -> Dict[str, List[str]]:
    """The addresses by SCSIid. What has none is no clone that could be named, and left out."""
    found: Dict[str, List[str]] = {}
    for address in addresses:
        scsi_id = scsi_id_of_address(address)
        if scsi_id is not None:
            found.setdefault(scsi_id, []).append(address)
    return found


def _take_lock(scsi_id: str, locks: ExitStack) -> bool:
    try:
        locks.enter_context(sm_locks.lun_lock(scsi_id, timeout=0))
    except RelvmoiscsiError:
        return False
    return True


@lru_cache(maxsize=None)
def _description(driver: str) -> str:
    """What the module says of itself, which SM takes for the manufacturer."""
    try:
        return run(["modinfo", "-d", driver], accept=range(256)).stdout.strip()
    except RelvmoiscsiError:
        return ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
