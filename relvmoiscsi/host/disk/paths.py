# SPDX-License-Identifier: LGPL-2.1-only
"""Verify that all disks of a LUN lead to one LUN now.

An array may map another LUN at a number that the host knows; neither a scan nor udev notices. Some arrays give a clone
its original's SCSIid. So each path is read: SCSIid, unit serial number, size, and the sectors that may hold LVM's
label. A disk that does not answer hangs the process that reads it, so a child process reads each path, all at the same
time. A path that does not answer is dead, and is left out.
"""

import fcntl
import hashlib
import logging
import mmap
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, ForwardingDevice, verify_size
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host.disk import holders, multipath, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.own_process import run_parallel, still_there
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.wording import quoted

if TYPE_CHECKING:
    from relvmoiscsi.host.disk.block_device import HostDevice

log = logging.getLogger(__name__)

ANSWER_SECONDS = 8.0  #: a path without an answer after that counts as dead
_BLKFLSBUF = 0x1261  #: linux/fs.h
_LABEL_BYTES = 4096  #: the four sectors in which LVM looks for its label, and a multiple of any block size


class Face(NamedTuple):
    """The identity of a LUN as one path shows it."""

    scsi_id: str
    serial: str
    size_bytes: int
    label: str  #: digest of the LUN's first sectors


class NamedPath(ForwardingDevice):
    """A LUN through one path, or through its map. The LUN says its name and size before and after each batch of writes.

        t0  the array maps another LUN at the number of this path, or makes this LUN smaller; the kernel notices nothing
        t1  a write lands on the other LUN, which may be the original; or beyond the new end, and fails

    A write to a map may take any path of the map that is not dead. A path that was dead when the call looked may have
    come back. So the LUN says its name and size through each of these paths. A path that does not answer ends the run.

    Only a change between the answer and the write remains undetected. A path that fails is not replaced by another
    path within a run: a write of the failed path may land late, and only the next call ends such writes.
    """

    def __init__(self, path: "HostDevice", name: Tuple[str, str], host: Host = THIS_HOST) -> None:
        super().__init__(path)
        self._disk, self._name, self._host = path.disk, name, host

    def write(self, chunks: Sequence[Chunk]) -> None:
        self.verify_name()
        super().write(chunks)

    def flush(self) -> None:
        super().flush()
        self.verify_name()

    def verify_name(self) -> None:
        """Raise Refused if the LUN says another name now, or is smaller than the kernel says."""
        usable: List[str] = []
        if (scsi.kernel_name(self._disk.link, self._host) or "").startswith("dm-"):
            maps = udev.maps_of(self._name[0], self._host)  # multipathd may add paths at any time
            usable = multipath.usable(multipath.paths_in(maps, self._host), self._host)
        with ExitStack() as opened:
            disks = [opened.enter_context(scsi.opened(self._host.node(path))) for path in usable]
            for disk in disks or [self._disk]:
                now = scsi.live_scsi_id(disk), scsi.live_serial(disk)
                if now != self._name:
                    raise Refused(
                        f"{disk.name} was the LUN with {_told(*self._name)}, and answers with {_told(*now)} now: the "
                        "array has mapped another LUN in its place.",
                        "ISCSIDevice",
                    ).advising("Check the mapping at the array.")
                try:
                    verify_size(self, scsi.live_size(disk), self.block_size)
                except Refused as refused:
                    switch = f"/sys/block/{scsi.kernel_name(disk.link, self._host)}/device/rescan"
                    refused.advising(f"The kernel reads the size again after `echo 1 > {quoted(switch)}`.")
                    raise


def look(disks: Sequence[str], deadline: Deadline, host: Host = THIS_HOST) -> Dict[str, Face]:
    """Return what each of these disks ("sdb") shows now. A disk without an answer by the deadline is left out."""
    outcomes = run_parallel([partial(_shown, host.node(disk)) for disk in disks], deadline, "the disk answered")
    found: Dict[str, Face] = {}
    for disk, outcome in zip(disks, outcomes):
        if isinstance(outcome, RelvmoiscsiError):
            log.warning("the disk %s does not answer: %s", disk, outcome)
        else:
            found[disk] = Face(*outcome)
    return found


def verify_unused(dead: Sequence[str], deadline: Deadline, host: Host = THIS_HOST) -> None:
    """Raise Refused if a program uses the LUN through a dead path. The path may come back, and the program write."""
    given_up = {host.named_process(str(pid)) for pid in still_there()}
    for disk in dead:
        with in_state(NOTHING_WRITTEN):
            found = holders.users_of_disks([disk], host, answering=False, deadline=deadline)
        users = [user for user in found if user not in given_up]
        if users:
            problem = "The LUN is in use on this host, through the disk {} that does not answer: {}."
            raise Refused(problem.format(disk, ", ".join(users))).in_state(NOTHING_WRITTEN)


def drop_caches(disks: Sequence[str], deadline: Deadline, host: Host = THIS_HOST) -> None:
    """Drop the page caches of these disks. A write through a map leaves the page caches of its paths unchanged."""
    outcomes = run_parallel([partial(_drop_cache, host.node(disk)) for disk in disks], deadline, "the disk answered")
    for disk, outcome in zip(disks, outcomes):
        if isinstance(outcome, RelvmoiscsiError):
            log.warning("%s may be read from the page cache as it was before: %s", disk, outcome)


def verify_same(scsi_id: str, faces: Dict[str, Face]) -> List[str]:
    """Return the disks if all show the same LUN, with this SCSIid. Raises Refused."""
    for disk, face in faces.items():
        if face.scsi_id != scsi_id:
            raise other_lun(disk, scsi_id, face.scsi_id)
    first: Optional[str] = None
    for disk, face in faces.items():
        first = first or disk
        if face != faces[first]:
            one, differs = faces[first], "their first sectors differ"
            if face.size_bytes != one.size_bytes:
                differs = f"the size in bytes is {one.size_bytes} here and {face.size_bytes} there"
            if face.serial != one.serial:
                differs = f"the serial number is {one.serial} here and {face.serial} there"
            raise (
                Refused(
                    f"The disks {first} and {disk} both have the SCSIid {scsi_id} and lead to different LUNs: "
                    f"{differs}. The array gives two LUNs one SCSIid, or has mapped another LUN in "
                    "the place of this LUN.",
                    "ISCSIDevice",
                )
                .advising("Unmap the wrong LUN, and remove its disk.")
                .in_state(NOTHING_WRITTEN)
            )
    return list(faces)


def other_lun(disk: str, was: str, now: str) -> Refused:
    """Return the refusal of a disk that was one LUN when this host found the disk, and is another LUN now."""
    switch = f"/sys/block/{disk}/device/delete"
    return (
        Refused(
            f"The disk {disk} was the LUN {was} when this host found it, and is {now} now: the array has mapped "
            "another LUN in its place.",
            "ISCSIDevice",
        )
        .advising(
            f"Detach what uses that disk, remove it (`echo 1 > {quoted(switch)}`) and have its adapter scanned anew."
        )
        .in_state(NOTHING_WRITTEN)
    )


def _told(scsi_id: Optional[str], serial: str) -> str:
    """Return the two answers of a LUN. The array may swap the LUN between the two, so they are not told as one name."""
    named = f"the SCSIid {scsi_id}" if scsi_id else "no SCSIid"
    return f"{named} and the serial number {serial}" if serial else f"{named} and no serial number"


def _drop_cache(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _BLKFLSBUF, 0)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        pass  # the disk and its page cache are gone
    except OSError as error:
        raise DeviceError(path, "flush", 0, 0, error.strerror or str(error), error.errno) from error
    return ""


def _shown(path: str) -> Face:
    """Return a Face. Raises DeviceError if the disk does not answer, or the LUN refuses the command."""
    with scsi.opened(path, os.O_DIRECT) as disk:  # past the page cache: each path has a page cache of its own
        scsi_id, size = scsi.live_scsi_id(disk), scsi.live_size(disk)
        if scsi_id is None:
            raise DeviceError(path, "read", 0, 0, "the LUN reports no SCSIid", 5)
        serial = scsi.live_serial(disk)
        try:
            with open(disk.descriptor, "rb", buffering=0, closefd=False) as file, mmap.mmap(-1, _LABEL_BYTES) as memory:
                count = file.readinto(memory)  # into aligned memory
                return Face(scsi_id, serial, size, hashlib.sha256(memory[:count]).hexdigest())
        except OSError as error:
            raise DeviceError(path, "read", 0, _LABEL_BYTES, error.strerror or str(error), error.errno) from error
