# SPDX-License-Identifier: LGPL-2.1-only
"""The kernel's disks of a LUN, while the product writes to the LUN over its own iSCSI session, past these disks.

The kernel does not notice such a write. SM's session or an earlier login may have given this host a disk or multipath
map of the LUN. That disk may be in use, and the page cache and udev's database go on showing the old content.

    t0    all disks and maps of the LUN are opened exclusively, read-only; a map holds its paths, so the map is opened
    t1    the caller writes to the LUN; mounts, device-mapper, LVM and udev cannot use these disks
    t2    the disks of the LUN are listed again: further disks may have come since t0
    t3    for each disk and map: page cache dropped, closed, a `change` event, and udev has applied its rules

A disk that comes between t0 and t2 is not opened exclusively. A reader of that disk gets the old or the new identity,
because the label is one sector. docs/formats/lvm.rst ("LVM's writes and locks") says what an LVM command may do there.

A path that does not answer hangs the process that opens it. So a child process reads each disk first (paths). A dead
path is not opened; its users are found in sysfs and /proc.
"""

import logging
import os
from contextlib import ExitStack, contextmanager
from typing import Iterator, List, Optional

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import exclusive, multipath, paths, udev
from relvmoiscsi.host.files import attribute
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

CACHES_SECONDS = 3.0  #: for the page caches of all disks; the cache of a dead path is given up after that
UDEV_SECONDS = 10.0  #: for udev to apply its rules to all disks


@contextmanager
def exclusive_open(
    scsi_id: str, deadline: Deadline, host: Host = THIS_HOST, but: Optional[str] = None
) -> Iterator[List[str]]:
    """Keep all other programs of this host off the LUN while the block writes to the LUN past this host's disks.

    Gives the device nodes that are open: "/dev/sdb", or the map "/dev/dm-3" for its paths; the list may be empty. After
    the block, even after a failure, readers of all present disks see the LUN's present content. Failures of this step
    are logged. The caller opens the device `but` ("sdb", "dm-3") itself.

    Raises Refused (SRInUse), before the block, if a disk or map of the LUN is in use or stays locked.
    """
    before = _present_devices(scsi_id, host, but)
    with ExitStack() as held:
        maps = udev.maps_of(scsi_id, host)
        in_maps = multipath.paths_in(maps, host)
        alone = [disk for disk in udev.disks_of(scsi_id, host) if disk not in in_maps and disk != but]
        asked = [disk for disk in alone if _is_running(disk, host)]
        answering = paths.look(asked, deadline.part(paths.ANSWER_SECONDS), host) if asked else {}
        paths.verify_unused([disk for disk in alone if disk not in answering], deadline, host)
        names = [the_map for the_map in maps if the_map != but]
        for disk, face in answering.items():
            if face.scsi_id == scsi_id:
                names.append(disk)
            else:  # the array has mapped another LUN there: the disk needs no lock
                problem = "the disk %s was the LUN %s when this host found it, and is %s now"
                log.warning(problem, disk, scsi_id, face.scsi_id)
        nodes = [host.node(name) for name in names]
        for node in nodes:
            flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK
            descriptor = exclusive.open_file(node, flags, writable=True, deadline=deadline)
            held.callback(os.close, descriptor)
            held.enter_context(flock.inherited(descriptor, guards_lun=True))
            exclusive.take_alone(node, descriptor, deadline.within(exclusive.FLOCK_SECONDS), host, deadline)
        try:
            yield nodes
        finally:
            # Drop the caches before the disks are closed: a program that waits for a disk must not read old pages.
            with quietly("dropping page caches"):
                names = _present_devices(scsi_id, host, but)
                if names:
                    paths.drop_caches(names, deadline.for_cleanup().part(CACHES_SECONDS), host)
            held.close()
            with quietly("having udev look at the LUN again"):
                names = _present_devices(scsi_id, host, but)
                came = [name for name in names if name not in before]
                if came:
                    log.warning("%s came while the LUN %s was written, and was not held", ", ".join(came), scsi_id)
                if names:
                    udev.look_again(names, deadline.for_cleanup().within(UDEV_SECONDS), host)


def _present_devices(scsi_id: str, host: Host, but: Optional[str]) -> List[str]:
    """Return all disks and maps of the LUN that this host has now. Each path of a map has a page cache of its own.

    A dead path is left out: a udev process that reads a dead path would hang.
    """
    names = udev.disks_of(scsi_id, host) + udev.maps_of(scsi_id, host)
    return [name for name in names if name != but and _is_running(name, host)]


def _is_running(name: str, host: Host) -> bool:
    """Return False if the kernel knows that the disk's path is dead, for example after a lost iSCSI session."""
    state = attribute(host.at("sys/block", name, "device/state"))
    return state in ("running", "")  # a map has no state
