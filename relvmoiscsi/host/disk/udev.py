# SPDX-License-Identifier: LGPL-2.1-only
"""Block devices as the kernel and udev show them: find the disks of a LUN, wait for udev, have udev apply its rules.

What happens when a disk comes:

    t0  the kernel adds a disk to sysfs   disks_of finds the disk, without any link of udev
    t1  the kernel sends its event        udev applies its rules
    t2  udev has applied its rules        settle returns, as the disk is in udev's database
"""

import logging
import os
import time
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import attribute, content_of, lines_in, names_in
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

SETTLE_SECONDS = 30.0


def disks_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """Return the kernel's names of all usable SCSI disks with this SCSIid, one for each path: ["sdb", "sdc"].

    The kernel read the SCSIid when it found the disk. The array may have mapped another LUN there since; `paths.look`
    asks the disk itself.
    """
    found = by_scsi_id([scsi_id], "sd*", host)[scsi_id]
    return [name for name in found if os.path.exists(host.node(name))]  # a node comes a moment after the disk in sysfs


def maps_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """Return the kernel's names ("dm-3") of the LUN's multipath maps."""
    return by_scsi_id([scsi_id], "dm-*", host)[scsi_id]


def by_scsi_id(scsi_ids: Iterable[str], pattern: str, host: Host = THIS_HOST) -> Dict[str, List[str]]:
    """Return the kernel's names of the devices of each of these LUNs that match a pattern such as "sd*", by age.

    A host may have thousands of devices, so each tells its SCSIid once.
    """
    found: Dict[str, List[str]] = {scsi_id: [] for scsi_id in scsi_ids}
    for name in block_devices(pattern, host):
        of_lun = found.get(scsi_id_of_disk(name, host) or "")
        if of_lun is not None:
            of_lun.append(name)
    return found


def block_devices(pattern: str, host: Host = THIS_HOST) -> List[str]:
    """Return the kernel's names, by age, of this host's block devices that match a pattern such as "sd*"."""
    return sorted(names_in(host.at("sys/block"), pattern), key=by_age)


def by_age(name: str) -> Any:
    """Return a sort key: sdz comes before sdaa."""
    return len(name), name


def is_running(host: Host = THIS_HOST) -> bool:
    """Return whether udev runs. Without udev no rule is applied, and no function waits for udev."""
    return os.path.exists(host.at("run/udev/control"))


def settle(
    devices: Iterable[str],
    timeout_seconds: float = SETTLE_SECONDS,
    since: float = 0.0,
    known: Sequence[str] = (),
    host: Host = THIS_HOST,
) -> None:
    """Wait until udev has applied its rules to these block devices ("sdb"), and to no others.

    Call this before a disk is locked: udev postpones the event of a locked disk until the LUN is no longer hidden.
    `since` is a value of time.monotonic() from before a scan; `known` are the devices that existed at that time.
    The kernel reuses device numbers, so udev's database may still have an earlier disk of the same number.
    A device that is gone counts as handled. Without udev, every device counts as handled.

    Raises Refused after `timeout_seconds`.
    """
    if not is_running(host):
        log.debug("udev does not run here")
        return
    earliest = {name: 0.0 if name in known else since for name in devices}

    def waiting() -> List[str]:
        found = []
        for name, moment in earliest.items():
            # "I:" is the time of udev's first event for the device, in microseconds of CLOCK_MONOTONIC.
            stamps = [line[2:] for line in database(name, host) if line.startswith("I:")]
            is_handled = any(untrusted.is_number(stamp) and int(stamp) >= moment * 1000000 for stamp in stamps)
            if os.path.exists(host.at("sys/block", name)) and not is_handled:
                found.append(name)
        return found

    late = _late(waiting, timeout_seconds, host)
    if late:
        problem = f"udev did not handle {', '.join(late)} within {round(timeout_seconds, 1):g} seconds."
        raise Refused(problem, sm_key="ISCSIDevice").advising(
            "Either the disk does not answer: look at the array and the kernel's log. Or a program keeps udev busy: "
            "`udevadm monitor` shows which. Then try again."
        )


def wait_until_idle(seconds: float, host: Host = THIS_HOST) -> None:
    """Wait until udev has no event to handle, or for `seconds`."""
    # udev removes this file when its queue is empty, and sends no event then
    queue, end = host.at("run/udev/queue"), time.monotonic() + seconds
    while is_running(host) and os.path.exists(queue) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def look_again(names: Sequence[str], timeout_seconds: float, host: Host = THIS_HOST) -> None:
    """Have udev apply its rules to these devices ("sdb", "dm-3") again, and wait until udev has done so.

    Each time, udev writes the device's database entry to a new file. A device that is gone counts as done.

    Raises Refused after `timeout_seconds`.
    """
    end = time.monotonic() + timeout_seconds
    settle(names, timeout_seconds, host=host)  # udev may still handle the first event of a new device
    if not is_running(host):
        return
    before, there = {name: _written(name, host) for name in names}, {name: host.at("sys/block", name) for name in names}
    for name in names:
        make_event(name, host)
    late = _late(
        lambda: [name for name in names if os.path.exists(there[name]) and _written(name, host) == before[name]],
        max(0.0, end - time.monotonic()),
        host,
    )
    if late:
        problem = "udev has not looked at {} again within {:g} seconds, and may show the old content."
        raise Refused(problem.format(", ".join(late), round(timeout_seconds, 1)))


def _late(waiting: Callable[[], List[str]], seconds: float, host: Host) -> List[str]:
    """Return the devices that `waiting` still names after `seconds`."""
    return [] if host.wait_for(lambda: not waiting(), seconds) else waiting()


def make_event(kernel_name: str, host: Host = THIS_HOST, action: str = "change") -> None:
    """Have udev apply its rules to the block device again."""
    try:
        with open(host.at("sys/block", kernel_name, "uevent"), "w", encoding="ascii") as uevent:
            uevent.write(action)
    except OSError as error:
        log.debug("no %s event for %s: %s", action, kernel_name, error.strerror)  # the device is being removed


def database(name: str, host: Host = THIS_HOST) -> List[str]:
    """Return the lines of a device in udev's database; [] for a new device. Raises NotFound if a read fails."""
    try:
        return lines_in((content_of(entry_of(name, host)) or b"").decode("utf-8", "replace"))
    except OSError as error:
        raise NotFound(f"The entry of {name} in udev's database cannot be read: {error.strerror}.") from error


def _written(name: str, host: Host) -> Tuple[int, int]:
    """Identify the file of the device's database entry. udev writes a new file each time."""
    try:
        status = os.stat(entry_of(name, host))
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def entry_of(name: str, host: Host = THIS_HOST) -> str:
    """Return the path of a device's entry in udev's database; without such a device, a path without a file."""
    return host.at("run/udev/data/b" + attribute(host.at("sys/block", name, "dev")))
