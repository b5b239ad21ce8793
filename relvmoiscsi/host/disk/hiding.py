# SPDX-License-Identifier: LGPL-2.1-only
"""Hiding disks from the programs that act on events: LVM's event activation, multipath, md, automounts.

The rules in udev/ hide a disk while its switch, a file, is on:

    /run/relvmoiscsi/hide/<SCSIid>          the disks of this LUN
    /run/relvmoiscsi/hide/mpath-<SCSIid>    the same file, under the uuid of the LUN's multipath map
    /run/relvmoiscsi/hide/scan-host3        new disks behind this adapter; a line id=<SCSIid> names a LUN that is known

The owner of a switch is alive as long as the file is flocked. A killed call leaves its switches without that flock; the
next call removes them. The switch of a LUN without an owner hides nothing.

The switch of an adapter also counts without an owner until it is `COUNTS_MINUTES` old: the kernel goes on with the scan
of a killed process, and may bring a clone. The rules hide a disk again at each further event until then.

The switch of an adapter hides no LUN that this host has or the pool names. A path of an original that was down may come
back during a scan, and its user needs that path at once.
"""

import fcntl
import logging
import os
import re
import time
from contextlib import contextmanager
from glob import escape, glob
from typing import Iterable, Iterator, List, Sequence

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host import flock, inherited_lock_fds, terminated
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import append, remedy
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import in_udev

log = logging.getLogger(__name__)

RUN_DIRECTORY = "/run/relvmoiscsi"  #: known to the rules in udev/
RULES = "57-relvmoiscsi.rules"  #: of the rules, the file that hides
SHOWN_SECONDS = 10.0  #: for udev, to make the links again that were not made while the LUN was hidden
COUNTS_MINUTES = 2  #: known to the rules: a call comes to its scan in one, and the kernel ends that scan in another
LOCK_SECONDS = 5.0  #: for another call that changes switches, which takes a millisecond

MARK = "RELVMOISCSI_HIDDEN"  #: what the rules set in udev's database: "all" for a new disk, "lvm" for an older device
_SCAN = "scan-"
_LONGEST_NAME = 255 - len("mpath-")  #: characters of a file name


# --- what is hidden


def is_hidden(name: str, host: Host = THIS_HOST) -> bool:
    """Did the rules hide this device ("sdb", "dm-3") when udev last handled the device?"""
    return any(line.startswith(f"E:{MARK}=") for line in udev.database(name, host))


def is_stale_hidden(name: str, host: Host = THIS_HOST) -> bool:
    """Was the disk ("sdb") hidden when it came, while no call works on its LUN now?

    Then a scan brought the disk, and the call of that scan was killed or could not remove the disk. Ask while nobody
    scans.
    """
    return f"E:{MARK}=all" in udev.database(name, host) and not _is_worked_on(name, host)


def stale_hidden(host: Host = THIS_HOST) -> List[str]:
    """The disks ("sdb") that are still hidden, and that no call at work hides. Raises OSError, NotFound."""
    disks = sorted((disk for disk in udev.block_devices("sd*", host) if is_stale_hidden(disk, host)), key=udev.by_age)
    return [disk for disk in disks if disk not in _behind_switches(host)] if disks else []


def ids_here(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of all disks and maps of this host, without the disks that a scan has brought and left hidden."""
    names = udev.block_devices("sd*", host) + udev.block_devices("dm-*", host)
    return sorted(filter(None, {scsi_id_of_disk(name, host) for name in names if not is_stale_hidden(name, host)}))


def is_switch_on(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Does a living process hide the LUN? Raises UsageError for what cannot be a SCSIid."""
    return _has_owner(os.path.join(_directory(host), switch_name(scsi_id)))


def wait_until_shown(scsi_id: str, seconds: float, host: Host = THIS_HOST) -> bool:
    """Wait until the storage manager can find the LUN by its link, if the LUN has a disk. False when the time is up."""
    link = os.path.join(host.dev, "disk/by-id/scsi-" + scsi_id)

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


def _behind_switches(host: Host) -> List[str]:
    """The disks behind adapters whose switch counts."""
    found: List[str] = []
    for path in _scan_switches(host):
        if _has_owner(path) or _is_young(path):
            found += _disks_behind([os.path.basename(path)[len(_SCAN) :]], host)
    return found


# --- hiding


@contextmanager
def hidden(scsi_id: str, host: Host = THIS_HOST) -> Iterator[None]:
    """Keep event handlers off the LUN `scsi_id` while the block runs. Its disks may come within the block.

    Afterwards each disk that is still there gets an event, by which every program sees the LUN as it is then.

    Raises Refused, before the block, when another process hides the same LUN, or the rules are not installed;
    UsageError if this cannot be a SCSIid.
    """
    name = switch_name(scsi_id)
    _verify_rules(scsi_id, host)
    names = [name, "mpath-" + name]
    descriptor = _switch_on(scsi_id, names, host)
    log.debug("LUN %s is hidden from event handlers", scsi_id)
    try:
        yield
    finally:
        _switch_off(names, descriptor, host)
        try:
            _show(scsi_id, host)
        except RelvmoiscsiError as error:  # the end of the block says more
            log.warning("udev was not asked to look at LUN %s again: %s", scsi_id, error)
        log.debug("LUN %s is hidden no longer by this call", scsi_id)


@contextmanager
def hidden_adapters(adapters: Sequence[str], known: Iterable[str], host: Host = THIS_HOST) -> Iterator[None]:
    """Keep event handlers off new disks behind these adapters ("host3") while the block runs.

    Disks whose SCSIid is `known` are not hidden. Enter this before a scan, under SM's LVM lock, so that one call at a
    time hides an adapter; leave when the LUNs that the scan has brought are gone again. Afterwards each disk that is
    still hidden there gets an event, by which every program sees the disk; also one that a killed call has left.

    A child that writes has no part in this switch, unlike in the switch of its LUN. Should the child hang and its call
    be killed, new LUNs of this host would be hidden until that disk answers.

    Raises Refused, before the block, when the rules are not installed.
    """
    what = "behind " + ", ".join(adapters)
    _verify_rules(what, host)
    names = [_SCAN + adapter for adapter in adapters]
    descriptor = _switch_on(what, names, host, known, guards_lun=False)
    try:
        yield
    finally:
        with terminated.put_off():  # the call goes on behind a scan
            _switch_off(names, descriptor, host)
            for disk in _disks_behind(adapters, host):
                _show_if_left(disk, host)


def switch_name(scsi_id: str) -> str:
    """The SCSIid as `scsi_id --replace-whitespace` prints it within a udev rule: no "/", no quotes.

    Raises UsageError for what cannot be a SCSIid.
    """
    name = in_udev(scsi_id)
    if not re.match(r"[0-9A-Fa-f]|S", name) or len(name) > _LONGEST_NAME:
        raise UsageError(f"{scsi_id!r} is not a SCSIid as scsi_id prints it.", sm_key="ConfigSCSIid")
    return name


def _verify_rules(what: str, host: Host) -> None:
    """Without the rules the switch hides nothing: event handlers would open the clone at once."""
    if not udev.is_running(host):
        return  # no events
    paths = [os.path.join(directory, RULES) for directory in host.udev_rules]
    counts = next((path for path in paths if os.path.exists(path)), None)  # udev ignores those of the same name behind
    if counts is None or not os.path.getsize(counts):  # an empty one, or /dev/null, switches the rules off
        raise Refused(
            "LUN {} cannot be hidden from LVM and multipath: {} {}. Install relvmoiscsi anew.".format(
                what, counts or "no " + RULES, "is empty" if counts else "in " + host.udev_rules[0]
            )
        ).in_state(NOTHING_WRITTEN)


# --- switches


def _directory(host: Host) -> str:
    return os.path.join(host.at(RUN_DIRECTORY), "hide")


def _scan_switches(host: Host) -> List[str]:
    return sorted(glob(os.path.join(escape(_directory(host)), _SCAN + "*")))


def _switch_on(what: str, names: Sequence[str], host: Host, known: Iterable[str] = (), guards_lun: bool = True) -> int:
    """Make the switch for the LUN `what`, such as "behind host3"; gives the descriptor that has its flock."""
    run_dir, directory = host.at(RUN_DIRECTORY), _directory(host)
    ids = [in_udev(scsi_id) for scsi_id in known if scsi_id]
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        with _only_one(run_dir):
            os.makedirs(directory, mode=0o755, exist_ok=True)
            try:
                _clear_stale(directory)
                for name in names:
                    _verify_free(what, os.path.join(directory, name))
                return _make(names, run_dir, ids, guards_lun)
            except BaseException:
                _remove_if_empty(directory)
                raise
    except OSError as error:
        problem = f"LUN {what} cannot be hidden from event handlers: {run_dir}: {error.strerror}. {remedy(error)}"
        raise Refused(problem).in_state(NOTHING_WRITTEN) from error


def _make(names: Sequence[str], run_dir: str, ids: Sequence[str], guards_lun: bool) -> int:
    """The switch under all its names, flocked before it has the first of them."""
    path = os.path.join(run_dir, "switch-" + os.urandom(8).hex())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    made: List[str] = []
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as file:
            file.write(f"{os.getpid()}\n" + "".join(f"id={one}\n" for one in dict.fromkeys(ids)))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in names:
            os.link(path, path + "-")
            os.rename(path + "-", os.path.join(run_dir, "hide", name))  # in the place of one that counts yet
            made.append(name)
    except BaseException:
        for name in made:
            os.unlink(os.path.join(run_dir, "hide", name))
        os.close(descriptor)
        raise
    finally:
        os.unlink(path)
    inherited_lock_fds.note(descriptor, guards_lun)
    return descriptor


def _switch_off(names: Sequence[str], descriptor: int, host: Host) -> None:
    """Remove the switch. A failure is logged: with the descriptor closed the switch counts as a killed process's."""
    directory = _directory(host)
    try:
        with _only_one(host.at(RUN_DIRECTORY)):
            for name in names:
                os.unlink(os.path.join(directory, name))
            _clear_stale(directory)
            _remove_if_empty(directory)
    except (OSError, Refused) as error:
        log.warning("the switch that hid a LUN from event handlers could not be removed from %s: %s", directory, error)
    finally:
        inherited_lock_fds.forget(descriptor)
        os.close(descriptor)


@contextmanager
def _only_one(run_dir: str) -> Iterator[None]:
    """No other process of ours changes the switches meanwhile."""

    def taken(owner: str) -> Refused:
        return Refused(f"{run_dir} is locked by {owner} and was not free within {LOCK_SECONDS:g} seconds.")

    with flock.directory(run_dir, LOCK_SECONDS, taken):
        yield


def _verify_free(what: str, path: str) -> None:
    if _has_owner(path):
        owner = flock.owner_of(os.stat(path))
        problem = f"LUN {what} is being worked on by {owner}. Try again when that has ended."
        raise Refused(problem).in_state(NOTHING_WRITTEN)


def _has_owner(path: str) -> bool:
    """Is the switch on, and does its owner live?"""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # for root to tell
    try:
        # Shared, as in the rules: an exclusive one would for a moment make the switch count.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_young(path: str) -> bool:
    """Does the switch of an adapter count without an owner? False if the switch has gone."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < COUNTS_MINUTES * 60
    except FileNotFoundError:
        return False


def _clear_stale(directory: str) -> None:
    """Remove the switches without an owner that do not count."""
    for entry in os.listdir(directory):
        path = os.path.join(directory, entry)
        if not (entry.startswith(_SCAN) and _is_young(path)) and not _has_owner(path):
            os.unlink(path)
            log.info("removed %s, which a killed process has left", path)


def _remove_if_empty(directory: str) -> None:
    """Without the directory the rules ask no disk for its SCSIid."""
    if not os.listdir(directory):
        os.rmdir(directory)


# --- showing again


def _show(scsi_id: str, host: Host) -> None:
    """Have udev look again at the LUN's disks and map that are still there and may be marked."""
    names = [name for name in udev.disks_of(scsi_id, host) + udev.maps_of(scsi_id, host) if _may_be_hidden(name, host)]
    if names:
        _leave_out(scsi_id, host)
    for name in names:
        _show_disk(name, host)


def _leave_out(scsi_id: str, host: Host) -> None:
    """Have the switches of adapters that killed calls have left not hide this LUN. Raises Refused."""
    run_dir = host.at(RUN_DIRECTORY)
    if not _scan_switches(host):
        return
    try:
        with _only_one(run_dir):
            for path in _scan_switches(host):
                if not _has_owner(path):
                    _append(path, f"id={in_udev(scsi_id)}\n".encode("ascii"))
    except OSError as error:
        problem = f"LUN {scsi_id} stays hidden by the scan of a killed call: {run_dir}: {error.strerror}."
        raise Refused(f"{problem} {remedy(error)}") from error


def _append(path: str, line: bytes) -> None:
    """The whole line or nothing: a part could be another LUN's id. The switch keeps its age."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        before = os.fstat(descriptor)
        append(descriptor, line)
        os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        os.close(descriptor)


def _show_if_left(disk: str, host: Host) -> None:
    """Have udev look again at a disk behind an adapter that was hidden, unless a call works on its LUN."""
    try:
        if _may_be_hidden(disk, host, "all") and not _is_worked_on(disk, host):
            _show_disk(disk, host)
    except RelvmoiscsiError as error:
        log.warning("udev was not asked to look at %s again: %s", disk, error)


def _may_be_hidden(name: str, host: Host, how: str = "") -> bool:
    """Is the device hidden, or has udev yet to say? udev may have looked for a switch before that went."""
    is_marked = any(line.startswith(f"E:{MARK}={how}") for line in udev.database(name, host))
    return is_marked or udev.has_not_looked(name, host)


def _show_disk(name: str, host: Host) -> None:
    """Have udev look again at a disk or map, and at its partitions, which were hidden with the disk.

    A disk that was new when the rules hid it is still new to multipathd: dom0's ignores a "change" of such a path.
    """
    was_there = any(line == f"E:{MARK}=lvm" for line in udev.database(name, host))
    action = "change" if was_there or name.startswith("dm-") else "add"
    udev.make_event(name, host, action)
    for path in sorted(glob(os.path.join(escape(host.sysfs), "block", escape(name), "*/partition"))):
        part = os.path.join(name, os.path.basename(os.path.dirname(path)))
        if _may_be_hidden(part, host):
            udev.make_event(part, host, action)


def _disks_behind(adapters: Sequence[str], host: Host) -> List[str]:
    """The disks ("sdb") behind the adapters ("host3")."""
    numbers = [adapter[len("host") :] for adapter in adapters]
    devices = os.path.join(escape(host.sysfs), "bus/scsi/devices")
    paths = [path for number in numbers for path in glob(os.path.join(devices, number + ":*", "block/sd*"))]
    return sorted((os.path.basename(path) for path in paths), key=udev.by_age)
