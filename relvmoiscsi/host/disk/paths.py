# SPDX-License-Identifier: LGPL-2.1-only
"""Do the disks that should be one LUN lead to one LUN, now?

An array may map another LUN at a number that the host knows, and neither a scan nor udev notices; some arrays give a
clone its original's id. So each path is asked: id, unit serial number, size, and the sectors where LVM has its label.
All at the same time, each in a process of its own, as a disk that does not answer holds up whoever asks it. Such a path
is dead, and says nothing about the LUN; it is left out.
"""

import fcntl
import hashlib
import json
import logging
import mmap
import os
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import DeviceError, Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.own_process import run_parallel, still_there
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

Result = TypeVar("Result")

ANSWER_SECONDS = 8.0  #: for a path, before it counts as dead
_BLKFLSBUF = 0x1261  #: linux/fs.h
_LABEL_BYTES = 4096  #: the four sectors in which LVM looks for its label, and a multiple of any block size


class Face(NamedTuple):
    """What a path shows of its LUN."""

    scsi_id: str
    serial: str
    size_bytes: int
    label: str  #: digest of its first sectors


class Failover(Device):
    """A LUN with all its paths open: an operation that fails on one path is done again on the next, as by multipath.

    A write that failed halfway may be repeated: the next path writes the same bytes at the same place.
    """

    def __init__(self, opened: Sequence[Device]) -> None:
        self._left = list(opened)
        first = opened[0]
        self.name, self.size_bytes, self.block_size = first.name, first.size_bytes, first.block_size
        self.physical_block_size = first.physical_block_size

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        return self._on_a_path(lambda path: path.read(ranges))

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._on_a_path(lambda path: path.write(chunks))

    def flush(self) -> None:
        self._on_a_path(lambda path: path.flush())

    def _on_a_path(self, operation: Callable[[Device], Result]) -> Result:
        while True:
            try:
                return operation(self._left[0])
            except DeviceError as error:
                if len(self._left) == 1:
                    raise
                del self._left[0]
                log.warning("%s The call goes on through %s.", error, self._left[0].name)


def look(disks: Sequence[str], deadline: Deadline, host: Host = THIS_HOST) -> Dict[str, Face]:
    """What each of these disks ("sdb") shows now; those that do not answer by the deadline are not among them."""
    outcomes = run_parallel([partial(_shown, host.node(disk)) for disk in disks], deadline, "the disk answered")
    found: Dict[str, Face] = {}
    for disk, outcome in zip(disks, outcomes):
        if isinstance(outcome, RelvmoiscsiError):
            log.warning("the disk %s does not answer: %s", disk, outcome)
        else:
            found[disk] = Face(*json.loads(outcome))
    return found


def verify_unused(dead: Sequence[str], host: Host = THIS_HOST) -> None:
    """Does nobody use the LUN through a path that is dead now? It may come back, and write. Raises Refused."""
    given_up = {host.named_process(str(pid)) for pid in still_there()}
    for disk in dead:
        users = [user for user in holders.users_of_disks([disk], host, answering=False) if user not in given_up]
        if users:
            problem = "The LUN is in use on this host, through the disk {} that does not answer: {}."
            raise Refused(problem.format(disk, ", ".join(users))).in_state("Nothing was written.")


def drop_caches(disks: Sequence[str], deadline: Deadline, host: Host = THIS_HOST) -> None:
    """Have the kernel forget what it has read through these disks: what was written by a map of theirs passed it by."""
    outcomes = run_parallel([partial(_drop_cache, host.node(disk)) for disk in disks], deadline, "the disk answered")
    for disk, outcome in zip(disks, outcomes):
        if isinstance(outcome, RelvmoiscsiError):
            log.warning("%s may be read from the page cache as it was before: %s", disk, outcome)


def verify_same(scsi_id: str, faces: Dict[str, Face]) -> List[str]:
    """The disks, once they all show the LUN with this SCSIid, and the same one. Raises Refused."""
    for disk, face in faces.items():
        if face.scsi_id != scsi_id:
            raise other_lun(disk, scsi_id, face.scsi_id)
    first: Optional[str] = None
    for disk, face in faces.items():
        first = first or disk
        if face != faces[first]:
            raise Refused(
                f"The disks {first} and {disk} have the SCSIid {scsi_id} both and lead to different LUNs: "
                f"{_difference(faces[first], face)}. The array gives two LUNs one id, or has mapped another one in the "
                "place of one of them. Unmap the one that is not meant, and remove its disk.",
                "ISCSIDevice",
            ).in_state("Nothing was written.")
    return list(faces)


def other_lun(disk: str, was: str, now: str) -> Refused:
    """The refusal where a disk is not the LUN any more that it was when this host found it."""
    return Refused(
        f"The disk {disk} was the LUN {was} when this host found it, and is {now} now: the array has mapped another "
        f"LUN in its place. Detach what uses that disk, remove it (`echo 1 > /sys/block/{disk}/device/delete`) and "
        "have its adapter scanned anew.",
        "ISCSIDevice",
    ).in_state("Nothing was written.")


def _drop_cache(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _BLKFLSBUF, 0)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        pass  # it is gone, and its cache with it
    except OSError as error:
        raise DeviceError(path, "flush", 0, 0, error.strerror or str(error), error.errno) from error
    return ""


def _difference(one: Face, other: Face) -> str:
    for name, what in (("serial", "the serial number"), ("size_bytes", "the size in bytes")):
        if getattr(one, name) != getattr(other, name):
            return f"{what} is {getattr(one, name)} here and {getattr(other, name)} there"
    return "their first sectors differ"


def _shown(path: str) -> str:
    """A Face, as JSON. Raises DeviceError when the disk does not answer, or refuses to."""
    scsi_id, size = scsi.live_scsi_id(path), scsi.live_size(path)
    if scsi_id is None or size is None:
        raise DeviceError(path, "read", 0, 0, "the LUN refuses INQUIRY or READ CAPACITY: it is not mapped any more", 5)
    return json.dumps([scsi_id, scsi.live_serial(path), size, _label_digest(path)])


def _label_digest(path: str) -> str:
    """Past the page cache, which is a path's own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as disk, mmap.mmap(-1, _LABEL_BYTES) as memory:  # aligned
            count = disk.readinto(memory)
            return hashlib.sha256(memory[:count]).hexdigest()
    except OSError as error:
        raise DeviceError(path, "read", 0, _LABEL_BYTES, error.strerror or str(error), error.errno) from error
