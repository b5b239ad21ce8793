# SPDX-License-Identifier: LGPL-2.1-only
"""Hide disks from programs that act on events: LVM's event activation, multipath, md, automounts.

The rules in udev/ hide a disk while its switch, a file, is on:

    /run/relvmoiscsi/hide/<SCSIid>          the disks of this LUN
    /run/relvmoiscsi/hide/mpath-<SCSIid>    the same file, under the uuid of the LUN's multipath map
    /run/relvmoiscsi/hide/scan-host3        new disks behind this adapter; a line id=<SCSIid> names a known LUN

The owner of a switch holds a flock on the file. A killed call leaves its switches without the flock; the next call
removes these files. The switch of a LUN without an owner hides nothing.

The switch of an adapter counts without an owner until the file is `COUNTS_MINUTES` old: the kernel goes on with the
scan of a killed process, and may add a clone. Until then, the rules hide a disk again at each further event.

The switch of an adapter hides no LUN that this host has or that the pool names. A lost path of an original may come
back during a scan, and the users of the original need that path at once.
"""

import fcntl
import logging
import os
import re
import time
from contextlib import ExitStack, contextmanager
from typing import ContextManager, Iterable, Iterator, List, Sequence

from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.host import flock, terminated
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import append, matching, open_private, remedy
from relvmoiscsi.host.run_directory import RUN_DIRECTORY, make_run_directory, only_one
from relvmoiscsi.host.this_host import THIS_HOST, UDEV_RULES, Host
from relvmoiscsi.scsi_id_text import in_udev

log = logging.getLogger(__name__)

RULES = "57-relvmoiscsi.rules"  #: the rules file that hides disks
SHOWN_SECONDS = 10.0  #: for udev to make the links that were not made while the LUN was hidden
SWITCHES = os.path.join(RUN_DIRECTORY, "hide")
COUNTS_MINUTES = 2  #: known to the rules: one minute from the switch to the scan, one until the kernel ends the scan
IDLE_SECONDS = 5.0  #: wait for udev to end the events of other disks, too
LOCK_SECONDS = 5.0  #: wait for another call that changes switches, which takes a millisecond

MARK = "RELVMOISCSI_HIDDEN"  #: set by the rules in udev's database: "all" for a new disk, "lvm" for an older device
_SCAN = "scan-"
_LONGEST_NAME = 255 - len("mpath-")  #: characters of a file name


# --- hidden disks


def is_hidden(name: str, host: Host = THIS_HOST, how: str = "") -> bool:
    """Return whether the rules hid this device ("sdb", "dm-3") when udev last handled the device.

    With `how` ("all", "lvm"), only a device that they hid so counts.
    """
    return any(line.startswith(f"E:{MARK}={how}") for line in udev.database(name, host))


def is_stale_hidden(name: str, host: Host = THIS_HOST) -> bool:
    """Return whether the disk ("sdb") was hidden as a new disk, and no call works on its LUN now.

    Then a scan has added the disk, and the call of that scan was killed or could not remove the disk. Call this only
    while no scan runs.
    """
    return is_hidden(name, host, "all") and not _is_worked_on(name, host)


def stale_hidden(host: Host = THIS_HOST) -> List[str]:
    """Return the hidden disks ("sdb") that no running call hides. Raises OSError, NotFound, Refused."""
    disks = [disk for disk in udev.block_devices("sd*", host) if is_stale_hidden(disk, host)]
    counting = [path for path in _scan_switches(host) if flock.is_held(path) or _is_young(path)] if disks else []
    behind = _disks_behind([os.path.basename(path)[len(_SCAN) :] for path in counting], host)
    return [disk for disk in disks if disk not in behind]


def ids_here(host: Host = THIS_HOST) -> List[str]:
    """Return the SCSIids of all disks and maps of this host, without disks that an earlier scan has left hidden."""
    names = udev.block_devices("sd*", host) + udev.block_devices("dm-*", host)
    return sorted(filter(None, {scsi_id_of_disk(name, host) for name in names if not is_stale_hidden(name, host)}))


def is_switch_on(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Return whether a living process hides the LUN. Raises UsageError for a text that cannot be a SCSIid."""
    return flock.is_held(host.at(SWITCHES, switch_name(scsi_id)))


def wait_until_shown(scsi_id: str, seconds: float, host: Host = THIS_HOST) -> bool:
    """Wait until a LUN with a disk has the link by which SM finds the LUN. Return False after `seconds`."""
    link = host.at("dev/disk/by-id/scsi-" + scsi_id)

    def is_shown() -> bool:
        disks = udev.disks_of(scsi_id, host)
        return not disks or os.path.exists(link) and not any(is_hidden(disk, host) for disk in disks)

    if host.wait_for(is_shown, seconds):
        return True
    log.warning("udev has not made %s again yet; an earlier probe of the LUN finds no SR", link)
    return False


def _is_worked_on(name: str, host: Host) -> bool:
    scsi_id = scsi_id_of_disk(name, host)
    return scsi_id is not None and is_switch_on(scsi_id, host)


# --- hiding


@contextmanager
def hidden(scsi_id: str, host: Host = THIS_HOST, deadline: Deadline = NO_DEADLINE) -> Iterator[None]:
    """Keep event handlers off the LUN `scsi_id` while the block runs. The LUN's disks may come within the block.

    After the block each remaining hidden disk gets an event, so that every program sees the present content of the LUN.
    `deadline` is that of the caller's call.

    Raises Refused, before the block, if another process hides the same LUN or the rules are not installed. Raises
    UsageError for a text that cannot be a SCSIid.
    """
    name = switch_name(scsi_id)
    names = [name, "mpath-" + name]
    descriptor = _switch_on(scsi_id, names, host)
    log.debug("LUN %s is hidden from event handlers", scsi_id)
    try:
        with flock.inherited(descriptor, guards_lun=True):
            yield
    finally:
        is_handed_over = flock.is_handed_over(descriptor)  # the LUN stays hidden as long as the child may write
        new: List[str] = []
        with _warned(f"LUN {scsi_id}"):
            new += [disk for disk in udev.disks_of(scsi_id, host) if is_hidden(disk, host, "all")]
        _switch_off(() if is_handed_over else names, descriptor, host)
        if not is_handed_over:
            with _warned(f"LUN {scsi_id}"):
                _show(scsi_id, new, host, deadline)
        log.debug("LUN %s is hidden no longer by this call", scsi_id)


@contextmanager
def hidden_adapters(adapters: Sequence[str], known: Iterable[str], host: Host = THIS_HOST) -> Iterator[None]:
    """Keep event handlers off new disks behind these adapters ("host3") while the block runs.

    Disks whose SCSIid is in `known` are not hidden. Enter the block before a scan, under SM's LVM lock: so one call at
    a time hides an adapter. Leave the block after the LUNs of the scan are removed. After the block each disk there
    that is still hidden gets an event, so that every program sees the disk. A disk of a killed call gets an event too.

    A child that writes keeps the switch of its LUN, but not this switch. If the child hung and its call were killed,
    this switch would hide all new LUNs of this host until the disk answers.

    Raises Refused, before the block, if the rules are not installed.
    """
    names = [_SCAN + adapter for adapter in adapters]
    descriptor = _switch_on("behind " + ", ".join(adapters), names, host, known)
    try:
        with flock.inherited(descriptor):
            yield
    finally:
        with terminated.put_off():  # the call goes on after a scan
            _switch_off(names, descriptor, host)
            for disk in _disks_behind(adapters, host):
                with _warned(disk):
                    if _may_be_hidden(disk, host, "all") and not _is_worked_on(disk, host):
                        _show_disk(disk, host)


def switch_name(scsi_id: str) -> str:
    """Return the SCSIid as `scsi_id --replace-whitespace` prints it in a udev rule: without "/" and quotes.

    Raises UsageError for a text that cannot be a SCSIid.
    """
    name = in_udev(scsi_id)
    if not re.match(r"[0-9A-Fa-f]|S", name) or len(name) > _LONGEST_NAME:
        raise UsageError(f"{scsi_id!r} is not a SCSIid as scsi_id prints it.", sm_key="ConfigSCSIid")
    return name


# --- switches


def _scan_switches(host: Host) -> List[str]:
    return matching(host.at(SWITCHES), _SCAN + "*")


def _switch_on(what: str, names: Sequence[str], host: Host, known: Iterable[str] = ()) -> int:
    """Make the switch for the LUN `what`, which may be "behind host3", under all its names.

    Return the descriptor with the flock. The file is flocked before it gets the first name. Raises Refused, also if the
    rules are missing: without rules a switch hides nothing, and LVM would open the clone.
    """
    rules = [os.path.join(directory, RULES) for directory in map(host.at, UDEV_RULES)]
    counts = next((path for path in rules if os.path.exists(path)), None)  # udev reads only the first of this name
    # An empty file, or /dev/null, switches the rules off. Without udev there are no event handlers.
    if udev.is_running(host) and (counts is None or not os.path.getsize(counts)):
        reason = f"{counts} is empty" if counts else f"no {RULES} in {host.at(UDEV_RULES[0])}"
        error = Refused(f"LUN {what} cannot be hidden from LVM and multipath: {reason}.").advising(
            "Install relvmoiscsi anew."
        )
        raise error.in_state(NOTHING_WRITTEN)
    run_dir, directory = host.at(RUN_DIRECTORY), host.at(SWITCHES)
    ids = dict.fromkeys(in_udev(scsi_id) for scsi_id in known if scsi_id)
    path = os.path.join(run_dir, "switch-" + os.urandom(8).hex())
    try:
        with in_state(NOTHING_WRITTEN), _only_one(host), ExitStack() as undo:
            make_run_directory(host, "hide")
            undo.callback(_remove_if_empty, directory)
            _clear_stale(directory)
            for name in names:
                if flock.is_held(os.path.join(directory, name)):
                    owner = flock.owner_of(os.path.join(directory, name))
                    raise Refused(f"LUN {what} is being worked on by {owner}.").advising(
                        "Try again when that has ended."
                    )
            descriptor = open_private(path, os.O_RDWR | os.O_EXCL)
            undo.callback(os.close, descriptor)
            try:
                with open(descriptor, "w", encoding="ascii", closefd=False) as file:
                    file.write(f"{os.getpid()}\n" + "".join(f"id={one}\n" for one in ids))
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for name in names:
                    os.link(path, path + "-")
                    os.rename(path + "-", os.path.join(directory, name))  # replaces an ownerless switch that counts
                    undo.callback(os.unlink, os.path.join(directory, name))
            finally:
                os.unlink(path)
            undo.pop_all()
    except OSError as error:
        problem = f"LUN {what} cannot be hidden from event handlers: {run_dir}: {error.strerror}."
        raise Refused(problem).advising(remedy(error)).in_state(NOTHING_WRITTEN) from error
    return descriptor


def _switch_off(names: Sequence[str], descriptor: int, host: Host) -> None:
    """Remove the switch. Log a failure: after the close, the switch is as ownerless as a killed process's switch."""
    directory = host.at(SWITCHES)
    try:
        with _only_one(host):
            for name in names:
                os.unlink(os.path.join(directory, name))
            _clear_stale(directory)
            _remove_if_empty(directory)
    except (OSError, Refused) as error:
        log.warning("the switch that hid a LUN from event handlers could not be removed from %s: %s", directory, error)
    finally:
        os.close(descriptor)


def _only_one(host: Host) -> ContextManager[object]:
    """Hold the lock that each process takes before it changes switches."""
    return only_one("hide.lock", host, LOCK_SECONDS, f"The switches in {host.at(SWITCHES)} are being changed by")


def _is_young(path: str) -> bool:
    """Return whether the switch of an adapter counts without an owner; False if the switch has gone."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < COUNTS_MINUTES * 60
    except FileNotFoundError:
        return False


def _clear_stale(directory: str) -> None:
    """Remove the ownerless switches that do not count."""
    for entry in os.listdir(directory):
        path = os.path.join(directory, entry)
        if not (entry.startswith(_SCAN) and _is_young(path)) and not flock.is_held(path):
            os.unlink(path)
            log.info("removed %s, which a killed process has left", path)


def _remove_if_empty(directory: str) -> None:
    """Remove the directory if it is empty. Without the directory, the rules ask no disk for its SCSIid."""
    if not os.listdir(directory):
        os.rmdir(directory)


# --- showing disks again


@contextmanager
def _warned(what: str) -> Iterator[None]:
    """Log an error of the block: it must not hide an earlier error of the caller, nor keep another disk hidden."""
    try:
        yield
    except RelvmoiscsiError as error:
        log.warning("udev was not asked to look at %s again: %s", what, error)


def _show(scsi_id: str, new: Sequence[str], host: Host, deadline: Deadline) -> None:
    """Have udev apply its rules again to the disks and maps of the LUN that are hidden.

    The disks `new` were hidden as new disks before the switch went. An event of the last close may have shown them
    since, as a change, which dom0's multipathd does not heed.

    t0    the rules see the switch, at an event of a disk that was there before
    t1    the switch goes; udev's database does not name the disk as hidden yet
    t2    udev writes that the disk is hidden, and has nothing more to do

    So the call waits for t2. A disk that is not hidden gets no event: at an event, udev drops the links of a path that
    does not answer. Such a path, of this LUN or another, is also what keeps udev at work for longer than IDLE_SECONDS.
    """
    udev.wait_until_idle(deadline.for_cleanup().within(IDLE_SECONDS), host)
    names = []
    for name in udev.disks_of(scsi_id, host) + udev.maps_of(scsi_id, host):
        with _warned(name):
            if name in new or _may_be_hidden(name, host):
                names.append(name)
    if names:
        with _warned(f"LUN {scsi_id}"):
            _leave_out(scsi_id, host)
    for name in names:
        with _warned(name):
            _show_disk(name, host, name in new)


def _leave_out(scsi_id: str, host: Host) -> None:
    """Add the LUN to the known LUNs of ownerless adapter switches: these switches hide no known LUN. Raises Refused."""
    if not _scan_switches(host):
        return
    try:
        with _only_one(host):
            for path in [path for path in _scan_switches(host) if not flock.is_held(path)]:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
                before = os.fstat(descriptor)
                try:
                    append(descriptor, f"id={in_udev(scsi_id)}\n".encode("ascii"))
                finally:
                    os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))  # keeps the age of the switch
                    os.close(descriptor)
    except OSError as error:
        problem = f"LUN {scsi_id} stays hidden by the scan of a killed call: {host.at(SWITCHES)}: {error.strerror}."
        raise Refused(problem).advising(remedy(error)) from error


def _may_be_hidden(name: str, host: Host, how: str = "") -> bool:
    """Return whether the device is marked as hidden, or udev still handles its first event.

    udev may have seen a switch at that event that is gone now.
    """
    is_handled = any(line.startswith("I:") for line in udev.database(name, host))
    return is_hidden(name, host, how) or udev.is_running(host) and not is_handled


def _show_disk(name: str, host: Host, is_new: bool = False) -> None:
    """Have udev apply its rules again to a disk or map, and to the disk's partitions, which were hidden as well.

    multipathd does not know a disk that was hidden as a new disk; dom0's multipathd ignores a "change" of such a path.
    So that disk gets an "add".
    """
    is_new = is_new or _may_be_hidden(name, host, "all") and not name.startswith("dm-")
    action = "add" if is_new else "change"
    udev.make_event(name, host, action)
    for path in matching(host.at("sys/block", name), "*/partition"):
        part = os.path.join(name, os.path.basename(os.path.dirname(path)))
        if _may_be_hidden(part, host):
            udev.make_event(part, host, action)


def _disks_behind(adapters: Sequence[str], host: Host) -> List[str]:
    """Return the disks ("sdb") behind the adapters ("host3")."""
    numbers = [adapter[len("host") :] for adapter in adapters]
    devices = host.at("sys/bus/scsi/devices")
    paths = [path for number in numbers for path in matching(devices, number + ":*/block/sd*")]
    return sorted((os.path.basename(path) for path in paths), key=udev.by_age)
