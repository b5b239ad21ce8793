# SPDX-License-Identifier: LGPL-2.1-only
"""How the disks of a LUN come to this host after an array has mapped the LUN, and how the disks go.

    there      a disk with the SCSIid answers: no scan
    scan       otherwise. Hold SM's LVM lock from the scan on, because LVM commands read all disks, hidden or not. Hide
               the other LUNs that the scan adds until they are removed again (other_luns.py)
    find       list every disk with the SCSIid that the scan has added
    verify     all these disks lead to one LUN, and none is in use
    afterwards a LUN with new identities stays, because lvmohba looks for its links without a scan. A LUN that the pool
               knows stays as well. Any other LUN is removed again before it is shown: a plug of the original might take
               the clone for the original

A path that does not answer counts as absent if another path answers.
"""

import logging
import time
from contextlib import ExitStack
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import cleanup_journal, holders, multipath, paths, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.files import attribute
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import POLL_SECONDS, scan, take_away
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.lun import pool_records, users
from relvmoiscsi.lun.call import disks_to_read
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.other_luns import OtherLuns
from relvmoiscsi.wording import some_luns

log = logging.getLogger(__name__)

SCAN_SECONDS = 15.0  #: for all adapters together; the kernel needs twice that time to give up a dead port
DISK_SECONDS = 15.0  #: for the disks of the LUN to appear behind the adapters; the same as in SM
OTHERS_SECONDS = 8.0  #: for udev to handle the other LUNs of a scan, and for their removal
USER_SECONDS = 3.0  #: for programs that look at a disk for a moment


class Discovery:
    """The disks of a LUN that this call has locked and hidden. If no disk is there, a scan adds the disks.

    New disks stay if the LUN has new identities; otherwise they are removed.
    """

    is_new = False  #: the LUN has new identities, so all programs may see it
    has_sm_lock = False  #: SM's LVM lock has been held since before the LUN came

    def __init__(
        self,
        scsi_id: str,
        config: HbaConfig,
        deadline: Deadline,
        lock_seconds: float,
        read_pool: Callable[[], pool_records.PoolRecords],
        host_ref: str = "",
    ) -> None:
        """`read_pool` is called before a scan, and after an earlier call's scan. `host_ref` is this host."""
        self.scsi_id, self.deadline, self._lock_seconds = scsi_id, deadline, lock_seconds
        self._config, self._read_pool, self._host_ref = config, read_pool, host_ref
        self._adapters: List[hba.Adapter] = []
        self._failures: List[str] = []
        self._live: List[str] = []
        self._faces: Dict[str, paths.Face] = {}
        self._had_entry = self._pool_has_lun = False
        self._pool = pool_records.PoolRecords({}, {}, {})  #: as the pool was before the scan

    # --- the steps

    def bring(self, stack: ExitStack) -> None:
        """Have the disks come, and push the clean-up onto the stack. Raises RelvmoiscsiError."""
        self._adapters = hba.adapters(self._config.driver)
        asked = udev.disks_of(self.scsi_id)
        self._live = self._answering()
        self._had_entry = cleanup_journal.read(self.scsi_id) is not None
        if not self._live or self._had_entry:
            stack.enter_context(sm_locks.lvm_lock(timeout=self.deadline.within(self._lock_seconds)))
            self.has_sm_lock = True
            self._live = self._live or self._answering(but=asked)  # the lock's last holder may have added the LUN
        if self._live and not self._had_entry:
            return
        pool = self._pool = self._read_pool()  # a failure ends the call: no disk has come, and none must be removed
        self._pool_has_lun = any(
            not user.is_own for user in pool_records.users_of(self.scsi_id, pool, here=self._host_ref)
        )
        stack.push(quietly("taking away what a scan has brought")(self._remove_new_disks))
        if not self._had_entry:
            # Note the addresses of all adapters: the next call may select other adapters.
            cleanup_journal.note(self.scsi_id, hba.addresses(hba.adapters()))
        self._scan(pool, stack)

    def disks(self) -> List[str]:
        """Return the disks ("sdb") that answer. Raises NotFound if none answers in time.

        Raises Refused if the LUN is at the address of another known LUN, where a scan does not look again.
        """
        if self._live:
            return self._live

        def have_nodes() -> bool:
            addresses = hba.addresses_of(self.scsi_id, self._adapters)
            return bool(addresses) and all(hba.disk_at(address) for address in addresses)

        THIS_HOST.wait_for(have_nodes, self.deadline.part(DISK_SECONDS).left)
        self._live = self._answering()
        if not self._live:
            self.deadline.check(f"the LUN {self.scsi_id} appeared")
            unasked = {self.scsi_id, *luns_of(THIS_HOST).values()}  # a direct LUN is never read
            others = [disk for disk in hba.disks(self._adapters) if disk.scsi_id not in unasked]
            faces = paths.look([disk.name for disk in others], self.deadline.part(paths.ANSWER_SECONDS))
            for disk in others:
                if disk.name in faces and faces[disk.name].scsi_id == self.scsi_id:
                    raise paths.other_lun(disk.name, disk.scsi_id, self.scsi_id)
            raise self._not_there()
        log.info("the LUN %s is %s", self.scsi_id, ", ".join(self._live))
        return self._live

    def verify(self, disks: Sequence[str]) -> None:
        """Raise Refused if any of these disks leads to another LUN now."""
        faces = {disk: face for disk, face in self._faces.items() if disk in disks}
        paths.verify_same(self.scsi_id, faces)

    @property
    def name(self) -> Tuple[str, str]:
        """SCSIid and serial number, as the verified disks showed them."""
        face = self._faces[self._live[0]]
        return face.scsi_id, face.serial

    def verify_free(self, disks: Sequence[str]) -> None:
        """Before a write: raise Refused for a user of the LUN that an exclusive open does not detect.

        Such a user is a program that uses a disk of the LUN outside its map, for longer than USER_SECONDS.
        """

        def check(_begin: Begin) -> None:
            until = time.monotonic() + USER_SECONDS
            while True:
                in_map = multipath.paths_in(udev.maps_of(self.scsi_id))  # multipathd may make a map at any time
                alone = [disk for disk in disks if disk not in in_map]
                users = holders.users_of_disks(alone, deadline=self.deadline)
                if not users:
                    return
                if time.monotonic() >= until:
                    problem = "The LUN {} is in use on this host, through {}: {}."
                    text = problem.format(self.scsi_id, ", ".join(alone), ", ".join(users))
                    raise Refused(text).in_state(NOTHING_WRITTEN)
                time.sleep(POLL_SECONDS)

        run_in_child(check, self.deadline, "it was known who uses the LUN", only_reads=True)

    # --- steps in detail

    def _answering(self, but: Sequence[str] = ()) -> List[str]:
        """Return the disks with the SCSIid that answer now, without `but`. Keep what the disks show."""
        disks = [disk for disk in udev.disks_of(self.scsi_id) if disk not in but]
        self._faces = paths.look(disks, self.deadline.part(paths.ANSWER_SECONDS)) if disks else {}
        return list(self._faces)

    def _scan(self, pool: pool_records.PoolRecords, stack: ExitStack) -> None:
        """Scan, and remove the other LUNs of the scan at once.

        If a scan was given up, it may add more LUNs later: then remove other LUNs again at the end of the call.
        """
        places = hba.places(self._adapters, self._config.lun, self._config.wwpns)
        if not (places or self._live):
            ports, seen = some_luns(self._config.wwpns), some_luns(hba.remote_ports(self._adapters))
            if not self._adapters:
                types = some_luns(sorted({one.driver for one in hba.adapters()}))
                raise NotFound(
                    f"This host has no adapter of the type {self._config.driver}; its adapters have the types {types}.",
                    "ISCSIDevice",
                ).advising("Correct device-config:type.")
            text = f"No adapter of this host is logged in to a port {ports}; the adapters see the ports {seen}."
            raise NotFound(text, "ISCSIDevice")
        if not self._adapters:
            return  # the LUN is there, behind an adapter that the device-config does not select
        others = OtherLuns(self._adapters, pool, self._read_pool, self._host_ref, self.scsi_id)
        with ExitStack() as hiding:
            hiding.enter_context(others.hidden())
            if not self._live:  # else a killed call has scanned for the LUN before
                try:
                    started, what = time.monotonic(), some_luns(f"{one.adapter.name} ({one.where})" for one in places)
                    log.info("scanning %s for the LUN %s", what, self.scsi_id)
                    self._failures = scan(places, self.deadline.part(min(SCAN_SECONDS, self.deadline.left / 2)))
                    for failure in self._failures:
                        log.warning("%s", failure)
                    came = others.new_addresses()
                    luns = some_luns(f"{scsi_id_of_address(one) or 'a LUN without an id'} at {one}" for one in came)
                    log.info("%.1f seconds; it has brought %s", time.monotonic() - started, luns)
                except BaseException:  # the other LUNs are hidden only until the end of this block
                    others.forget(self.deadline.for_cleanup())
                    raise
            others.forget(self.deadline.part(OTHERS_SECONDS))
            if self._failures:
                stack.push(hiding.pop_all())
                stack.callback(lambda: others.forget(self.deadline.for_cleanup()))

    # --- afterwards

    def _remove_new_disks(self, _kind: object, error: Optional[BaseException], _trace: object) -> None:
        """Remove the still hidden disks that this call or a killed call has added, unless the disks shall stay.

        `error`, which ends the call, names each disk that could not be removed. Then the entry stays for the next call.

        Disks that do not answer are removed. No program can use a dead disk. When the LUN comes back, a dead disk is an
        obstacle: its size is 0 until the kernel reads the size again.
        """
        before = cleanup_journal.read(self.scsi_id)
        if before is None:
            return
        came = [one for one in hba.addresses_of(self.scsi_id, hba.adapters()) if one not in before]
        if came and self._had_entry and not (self._live or self._pool_has_lun):
            log.warning("the new disks of the LUN %s stay: none answers, so their identities are unknown", self.scsi_id)
            return
        is_known, stays = True, self.is_new or self._pool_has_lun
        failures: Dict[str, str] = {}
        if came and not stays:
            try:
                stays = self._has_new_identities()
            except RelvmoiscsiError as problem:
                disks = udev.disks_of(self.scsi_id)
                if disks and paths.look(disks, self.deadline.for_cleanup().part(paths.ANSWER_SECONDS)):
                    raise
                log.warning("no new disk of the LUN %s answers, so all are removed: %s", self.scsi_id, problem)
                is_known = False
        if came and not stays:
            failures = take_away(came, self.deadline.for_cleanup().part(CLEANUP_SECONDS))
        for sentence in failures.values():
            log.error("%s", sentence)
        if failures and isinstance(error, RelvmoiscsiError):
            error.message = " ".join([error.message, *failures.values()])
            error.advising("End that use of the disks. Then repeat the call, which removes the disks.")
        if failures or not is_known or self._failures and not (self.is_new or self._pool_has_lun):
            return  # the next call needs the entry: disks stay, or a scan that was given up may still add the LUN
        cleanup_journal.forget(self.scsi_id)

    def _has_new_identities(self) -> bool:
        """Return whether the LUN has new identities: an earlier call may have been killed after its commit.

        The label says so, and the pool does not have the SR of the LUN on another LUN. Raises RelvmoiscsiError if the
        label cannot be read. Then all disks stay, and the next call finds the entry.
        """
        if not self._live:
            return False  # no disk has ever answered, so no call has written to one

        def read_label(_begin: Begin) -> Optional[str]:
            from relvmoiscsi import engine  # noqa: PLC0415 - most calls do not need the engine here

            problem: Optional[RelvmoiscsiError] = None
            for disk in self._live:
                try:
                    with disks_to_read(self.scsi_id, [THIS_HOST.node(disk)]) as lun:
                        return engine.new_sr_of(lun.device, self.scsi_id)
                except (NotFound, DeviceError) as error:  # a path that has died meanwhile
                    problem = problem or error
            assert problem is not None  # at least one disk has answered
            raise problem

        new_sr = run_in_child(read_label, self.deadline.for_cleanup(), "the label had been read", only_reads=True)
        asks = users.Question(self.scsi_id, [new_sr], here=self._host_ref)
        return new_sr is not None and users.sr_elsewhere(asks, self._pool) is None

    def _not_there(self) -> NotFound:
        """Return the error for a LUN of which no disk answers."""
        there = hba.disks(self._adapters)
        silent = []
        for disk in there:
            if disk.scsi_id == self.scsi_id:
                access = THIS_HOST.at("sys/block", disk.name, "device/access_state")
                state = attribute(access)  # where the kernel knows ALUA's state
                silent.append(f"{disk.name} ({state})" if state else disk.name)
        if silent:
            return NotFound(
                f"The LUN {self.scsi_id} is mapped to this host, but its disks do not answer: {some_luns(silent)}.",
                "ISCSIDevice",
            ).advising("Check the paths, and the state of the LUN at the array.")
        names = some_luns(adapter.name for adapter in self._adapters)
        if self._config.lun is not None:
            names += " for the number {}".format(" or ".join(map(str, hba.numbers_of(self._config.lun))))
        seen = some_luns(sorted(filter(None, {disk.scsi_id for disk in there})))
        failed = f" These could not be scanned: {' '.join(self._failures)}" if self._failures else ""
        return NotFound(
            f"No disk with the SCSIid {self.scsi_id} answers on this host after a scan of {names}; there are "
            f"{seen}.{failed}",
            "ISCSIDevice",
        ).advising("" if failed else "Map the LUN to this host.")
