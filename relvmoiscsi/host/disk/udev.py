# SPDX-License-Identifier: LGPL-2.1-only
"""Block devices as they come: finding them, and hiding one from whatever acts on events.

A disk becomes visible in three steps, and each has its reader here:

    the kernel adds it to sysfs       disks_of, which needs no link that udev has yet to make
    the kernel's event                wait_for wakes up (events)
    udev has gone through its rules   wait_for wakes up; settle returns: the disk is in udev's database

While `hidden` lasts, the rules in udev/ keep LVM's event activation, multipath and the like off the LUN. Its switch:

    /run/relvmoiscsi/hide/<SCSIid>          the process number of its owner, who holds an flock on it
    /run/relvmoiscsi/hide/mpath-<SCSIid>    the same file, by the uuid of the LUN's multipath map
    /run/relvmoiscsi/hide/paths-<SCSIid>    the same file, there if multipath is to have the disks

While `hidden_adapters` lasts, they do so with every disk that appears behind these adapters, but LUNs that are known:

    /run/relvmoiscsi/hide/scan-<8 hex digits>-host3    one for each adapter; a line id=<SCSIid> for each known LUN

A path of the original that was down may come back at that very moment, and belongs to its user at once. So what this
host has, or the pool names, is not hidden.

A switch without that flock is left over from a process that was killed, and the next one clears it. That of a LUN hides
nothing any more. That of an adapter counts until it is `COUNTS_MINUTES` old, as the kernel goes on with a scan whose
process has died; before, only a call at the same adapter clears it, at its end. The kernel tells of a new disk more
than once, so what it has hidden it hides at each event until then.
"""

import errno
import fcntl
import logging
import os
import re
import time
from contextlib import contextmanager
from glob import escape, glob
from typing import Any, Callable, Iterable, Iterator, List, Sequence, Tuple

from relvmoiscsi.errors import NOTHING_WRITTEN, NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host import flock, inherited_lock_fds, terminated
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import append, remedy
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import in_udev

log = logging.getLogger(__name__)

RUN_DIRECTORY = "/run/relvmoiscsi"  #: known to the rules in udev/
RULES = "57-relvmoiscsi.rules"  #: of those, the one that hides
SETTLE_SECONDS = 30.0
SHOWN_SECONDS = 10.0  #: for udev, to make the links again that were not made while the LUN was hidden
COUNTS_MINUTES = 2  #: known to the rules: a call comes to its scan in one, and the kernel to the end of that in another
LOCK_SECONDS = 5.0  #: for what others do with the switches, which takes a millisecond

_MARK = "RELVMOISCSI_HIDDEN"  #: what the rules set in udev's database
_LONGEST_NAME = 255 - len("mpath-")  #: characters of a file name


def disks_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """The kernel's names of all SCSI disks with this SCSIid that can be opened: ["sdb", "sdc"]. One each per path.

    The kernel keeps the pages that this reads from when it found the disk. Where an array may have put another LUN in
    its place since, they say what was there before (paths.look asks the disk).
    """
    names = [os.path.basename(path) for path in glob(os.path.join(escape(host.sysfs), "block/sd*"))]
    found = [name for name in names if scsi_id_of_disk(name, host) == scsi_id]
    # sysfs has a disk a moment before devtmpfs has its node.
    return sorted((name for name in found if os.path.exists(host.node(name))), key=_by_age)


def maps_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """The kernel's names ("dm-3") of the LUN's multipath maps."""
    names = [os.path.basename(path) for path in glob(os.path.join(escape(host.sysfs), "block/dm-*"))]
    return sorted((name for name in names if scsi_id_of_disk(name, host) == scsi_id), key=_by_age)


def settle(
    devices: Iterable[str],
    timeout_seconds: float = SETTLE_SECONDS,
    since: float = 0.0,
    known: Sequence[str] = (),
    host: Host = THIS_HOST,
) -> None:
    """Wait until udev has gone through its rules for these block devices ("sdb").

    To be called before a disk is locked: udev puts off what it has to do with a locked one, and would do it when the
    switch is gone. `since` is a value of time.monotonic() from before a scan, and `known` are the devices that were
    there at that time: numbers are used again, and the database may still have an earlier disk of that number. Devices
    that are gone count as handled; so do all of them where udev does not run. What other devices are at is of no
    concern, unlike with `udevadm settle`.

    Raises Refused when the time is up.
    """
    if not os.path.exists(os.path.join(host.udev_run, "control")):
        log.debug("udev does not run here")
        return
    earliest = {name: 0.0 if name in known else since for name in devices}

    def unhandled() -> List[str]:
        return [name for name, moment in earliest.items() if not _is_handled(name, moment, host)]

    if not host.wait_for(lambda: not unhandled(), timeout_seconds):
        raise Refused(
            "udev did not handle {} within {:g} seconds. Either the disk does not answer, so look at the array and the "
            "kernel's log, or something keeps udev busy, which `udevadm monitor` shows. Then try again.".format(
                ", ".join(unhandled()) or "the disks", round(timeout_seconds, 1)
            ),
            sm_key="ISCSIDevice",
        )


def give_to_multipath(devices: Iterable[str], host: Host = THIS_HOST) -> List[str]:
    """Have multipathd see the disks ("sdb") of the LUN that this process hides; those that it does not see yet.

    Whoever else brought them, a call that is at work on another LUN of their target or one that was killed, kept them
    from multipath, and no event would follow by itself. `devices` are those that are there once the switch is on; LVM
    does not see them now either. `wait_for_multipath` is to follow.
    """
    kept = [name for name in devices if _is_kept_from_multipath(name, host) or _is_unseen(name, host)]
    for name in kept:
        log.debug("%s is given to multipath", name)
        make_event(name, host, "add")  # multipathd of dom0 passes over a change of a path that is new to it
    return kept


def wait_for_multipath(given: Sequence[str], timeout_seconds: float, host: Host = THIS_HOST) -> None:
    """Wait until udev has gone through its rules for these disks once more: what `give_to_multipath` has returned.

    Where that has not come to pass when the time is up, `ensure_map` says what is missing.
    """

    def are_seen() -> bool:
        return all(_is_handled(name, 0.0, host) and not _is_kept_from_multipath(name, host) for name in given)

    if given and not host.wait_for(are_seen, timeout_seconds):
        log.warning("udev has not given %s to multipath within %g seconds", ", ".join(given), timeout_seconds)


def is_hidden(name: str, host: Host = THIS_HOST) -> bool:
    """Did the rules in udev/ hide this device ("sdb", "dm-3") when udev last handled it?"""
    return any(line.startswith("E:" + _MARK + "=") for line in _database(name, host))


def is_stale_hidden(name: str, host: Host = THIS_HOST) -> bool:
    """Was the disk ("sdb") hidden when it came, and is no call at work on its LUN? A scan has brought it.

    To be asked while nobody scans: then that call was killed, or could not take the disk away.
    """
    return "E:" + _MARK + "=all" in _database(name, host) and not _is_worked_on(name, host)


def _is_worked_on(name: str, host: Host) -> bool:
    scsi_id = scsi_id_of_disk(name, host)
    return scsi_id is not None and is_switch_on(scsi_id, host)


def ids_here(host: Host = THIS_HOST) -> List[str]:
    """The SCSIids of all disks and maps of this host, but of disks that a scan has brought and that are hidden."""
    paths = [path for kind in ("sd*", "dm-*") for path in glob(os.path.join(escape(host.sysfs), "block", kind))]
    names = [os.path.basename(path) for path in paths]
    found = {scsi_id_of_disk(name, host) for name in names if not is_stale_hidden(name, host)}
    return sorted(filter(None, found))


@contextmanager
def hidden(scsi_id: str, multipath: bool = False, host: Host = THIS_HOST) -> Iterator[None]:
    """Keep event handlers off the LUN `scsi_id` while the block runs, its disks that appear meanwhile included.

    To be entered before the LUN comes. With `multipath` the LUN's map is wanted, and only what would act on the map is
    kept away. Afterwards, whatever disk is still there gets a "change" event, for which all see it as it is then.

    Raises Refused, before the block, when another process hides the same LUN, or the rules are not installed;
    UsageError if this cannot be a SCSIid.
    """
    name = switch_name(scsi_id)
    _check_rules(scsi_id, host)
    names = [name, "mpath-" + name] + (["paths-" + name] if multipath else [])
    descriptor = _switch_on(scsi_id, names, host.at(RUN_DIRECTORY))
    log.debug("LUN %s is hidden from event handlers", scsi_id)
    try:
        yield
    finally:
        _switch_off(names, host.at(RUN_DIRECTORY), descriptor)
        try:
            _show(scsi_id, host)
        except RelvmoiscsiError as error:  # whatever the block ended with says more
            log.warning("udev was not asked to look at LUN %s again: %s", scsi_id, error)
        log.debug("LUN %s is hidden no longer by this call", scsi_id)


def is_switch_on(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Does somebody hide the LUN at this moment? Raises UsageError for what cannot be a SCSIid."""
    return _is_held(os.path.join(host.at(RUN_DIRECTORY), "hide", switch_name(scsi_id)), host)


def _is_held(path: str, host: Host) -> bool:
    try:
        return bool(flock.owners_of(os.lstat(path), host))
    except OSError:
        return False


def _leave_out(scsi_id: str, switches_in: Callable[[str], Sequence[str]], host: Host) -> None:
    """Have these switches of adapters not mean the LUN. Raises Refused."""
    run_dir = host.at(RUN_DIRECTORY)
    try:
        with _only_one(run_dir):
            for path in switches_in(os.path.join(run_dir, "hide")):
                _append(path, f"id={in_udev(scsi_id)}\n".encode("ascii"))
    except OSError as error:
        problem = f"LUN {scsi_id} stays hidden while others scan for LUNs: {run_dir}: {error.strerror}."
        raise Refused(f"{problem} {remedy(error)}") from error


def wait_until_shown(scsi_id: str, seconds: float, host: Host = THIS_HOST) -> bool:
    """Wait for what SM looks for once a LUN is shown again: its link, if it has a disk. False when the time is up."""
    link = os.path.join(host.dev, "disk/by-id/scsi-" + scsi_id)

    def is_shown() -> bool:
        disks = disks_of(scsi_id, host)
        return not disks or os.path.exists(link) and not any(is_hidden(disk, host) for disk in disks)

    if host.wait_for(is_shown, seconds):
        return True
    log.warning("udev has not made %s again yet; a probe before it has says that there is nothing", link)
    return False


def stale_hidden(host: Host = THIS_HOST) -> List[str]:
    """The disks ("sdb") that are hidden though no call that hides them is at work any more.

    It was killed, or could not take away what it has brought.

    Raises OSError, NotFound when that cannot be read.
    """
    disks = [os.path.basename(path) for path in glob(os.path.join(escape(host.sysfs), "block/sd*"))]
    left = sorted((disk for disk in disks if is_stale_hidden(disk, host)), key=_by_age)
    at_work = _hidden_now(host) if left else []
    return [disk for disk in left if disk not in at_work]


def _hidden_now(host: Host) -> List[str]:
    """The disks behind what calls hide that are at work, or were just killed."""
    directory = os.path.join(host.at(RUN_DIRECTORY), "hide")
    found: List[str] = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        kind, _, rest = name.partition("-")
        place = rest.partition("-")[2]
        path = os.path.join(directory, name)
        if not place or not (_is_held(path, host) or _is_young(path)):
            continue
        if kind == "scan":
            found += _disks_behind([place], host)
    return found


@contextmanager
def hidden_adapters(adapters: Sequence[str], known: Iterable[str], host: Host = THIS_HOST) -> Iterator[None]:
    """Keep event handlers off the disks that appear behind these adapters ("host3") while the block runs.

    Not off those with a SCSIid that is `known`. To be entered before a scan, and left when what it has brought is gone,
    as far as it is to go. Afterwards, what is still there and hidden gets an "add" event, for which all see it: also
    what a call that was killed has left.

    A write that hangs when its call is killed does not keep this, unlike the switch of its LUN: whatever anybody maps
    to this host would be hidden until that disk answers.

    Raises Refused, before the block, when the rules are not installed.
    """
    what = "behind " + ", ".join(adapters)
    _check_rules(what, host)
    call = os.urandom(4).hex()
    names = [f"scan-{call}-{adapter}" for adapter in adapters]
    descriptor = _switch_on(what, names, host.at(RUN_DIRECTORY), known, guards_lun=False)
    try:
        yield
    finally:
        with terminated.put_off():  # the call goes on behind a scan
            _switch_off(names, host.at(RUN_DIRECTORY), descriptor)
            _show_behind(adapters, host)


def _show_behind(adapters: Sequence[str], host: Host) -> None:
    for disk in _disks_behind(adapters, host):
        try:
            if is_stale_hidden(disk, host) or _is_unseen(disk, host) and not _is_worked_on(disk, host):
                _show_disk(disk, host, "add")  # multipathd of dom0 passes over a change of a path that is new to it
        except RelvmoiscsiError as error:
            log.warning("udev was not asked to look at %s again: %s", disk, error)


def make_event(kernel_name: str, host: Host = THIS_HOST, action: str = "change") -> None:
    """Have udev go through its rules for the block device once more."""
    try:
        with open(os.path.join(host.sysfs, "block", kernel_name, "uevent"), "w", encoding="ascii") as uevent:
            uevent.write(action)
    except OSError as error:
        log.debug("no %s event for %s: %s", action, kernel_name, error.strerror)  # it is on its way out


def look_again(names: Sequence[str], timeout_seconds: float, host: Host = THIS_HOST) -> None:
    """Have udev go through its rules for these devices ("sdb", "dm-3") once more, and wait until it has.

    It writes the entry of a device in its database anew each time. One that is new to it is at its first event yet, so
    that is waited for before. Devices that are gone count as done; so do all where udev does not run.

    Raises Refused when the time is up.
    """
    end = time.monotonic() + timeout_seconds
    settle(names, timeout_seconds, host=host)
    if not os.path.exists(os.path.join(host.udev_run, "control")):
        return
    before = {name: _written(name, host) for name in names}
    for name in names:
        make_event(name, host)

    def left() -> List[str]:
        return [name for name, entry in before.items() if _is_there(name, host) and _written(name, host) == entry]

    if not host.wait_for(lambda: not left(), max(0.0, end - time.monotonic())):
        problem = "udev has not looked at {} again within {:g} seconds, and may show it as it was before."
        raise Refused(problem.format(", ".join(left()), round(timeout_seconds, 1)))


def _is_there(name: str, host: Host) -> bool:
    return os.path.exists(os.path.join(host.sysfs, "block", name))


def _written(name: str, host: Host) -> Tuple[int, int]:
    """Which entry of the device is in udev's database, as each is a new file."""
    try:
        status = os.stat(_entry(name, host))
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def switch_name(scsi_id: str) -> str:
    """The SCSIid as `scsi_id --replace-whitespace` prints it within a udev rule: no "/", no quotes.

    Raises UsageError for what cannot be a SCSIid.
    """
    name = in_udev(scsi_id)
    if not re.match(r"[0-9A-Fa-f]|S", name) or len(name) > _LONGEST_NAME:
        raise UsageError(f"{scsi_id!r} is not a SCSIid as scsi_id prints it.", sm_key="ConfigSCSIid")
    return name


def _switch_on(
    what: str, names: Sequence[str], run_dir: str, known: Iterable[str] = (), guards_lun: bool = True
) -> int:
    """Make the switch for the LUN `what`, "behind host3" say; the descriptor whose flock says that it counts.

    LUNs that are `known` are not meant.
    """
    directory = os.path.join(run_dir, "hide")
    ids = [in_udev(scsi_id) for scsi_id in known if scsi_id]
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        with _only_one(run_dir):
            os.makedirs(directory, mode=0o755, exist_ok=True)
            try:
                _clear_stale(directory, ())
                _check_free(what, os.path.join(directory, names[0]))
                return _make(names, run_dir, ids, guards_lun)
            except BaseException:
                _remove_if_empty(directory)
                raise
    except OSError as error:
        problem = f"LUN {what} cannot be hidden from event handlers: {run_dir}: {error.strerror}. {remedy(error)}"
        raise Refused(problem).in_state(NOTHING_WRITTEN) from error


def _make(names: Sequence[str], run_dir: str, ids: Sequence[str], guards_lun: bool) -> int:
    """The switch under all its names, locked before it has the first of them."""
    path = os.path.join(run_dir, "switch-" + os.urandom(8).hex())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    made: List[str] = []
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as file:
            file.write(f"{os.getpid()}\n" + "".join(f"id={one}\n" for one in dict.fromkeys(ids)))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The SCSIid comes last: what the rules do about its disks depends on the others.
        for name in reversed(names):
            os.link(path, os.path.join(run_dir, "hide", name))
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


def _append(path: str, line: bytes) -> None:
    """The whole line or nothing of it: a part might be another LUN's id. The switch is as old as it was."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        before = os.fstat(descriptor)
        append(descriptor, line)
        os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        os.close(descriptor)


def _check_rules(what: str, host: Host) -> None:
    """Without the rules the switch hides nothing: what acts on events would open the clone at once."""
    if not os.path.exists(os.path.join(host.udev_run, "control")):
        return  # without udev there are no events to hide from
    paths = [os.path.join(directory, RULES) for directory in host.udev_rules]
    counts = next((path for path in paths if os.path.exists(path)), None)  # it hides those of the same name behind it
    if counts is None or not os.path.getsize(counts):  # an empty one, or /dev/null, switches the rules off
        raise Refused(
            "LUN {} cannot be hidden from LVM and multipath: {} {}. Install relvmoiscsi anew.".format(
                what, counts or "no " + RULES, "is empty" if counts else "in " + host.udev_rules[0]
            )
        ).in_state(NOTHING_WRITTEN)


def _check_free(what: str, path: str) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    owner = flock.owner_of(status)
    problem = f"LUN {what} is being worked on by {owner}. Try again when that has ended."
    raise Refused(problem).in_state(NOTHING_WRITTEN)


def _switch_off(names: Sequence[str], run_dir: str, descriptor: int) -> None:
    """Remove the switch. What fails is logged: with the descriptor closed it counts as that of a killed process."""
    directory = os.path.join(run_dir, "hide")
    try:
        with _only_one(run_dir):
            for name in names:
                os.unlink(os.path.join(directory, name))
            _clear_stale(directory, names)
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


def _clear_stale(directory: str, ended: Iterable[str]) -> None:
    """Remove the switches whose owners are dead; those that count yet only at the places of `ended` ones."""
    places = {"", *map(_place, ended)}
    for entry in os.listdir(directory):
        path = os.path.join(directory, entry)
        if _place(entry) not in places and _is_young(path):
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Shared, as in the rules: an exclusive one would for a moment make the switch count.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(descriptor)
        os.unlink(path)
        log.info("removed %s, left over from a process that was killed", path)


def _is_young(path: str) -> bool:
    """Does the switch of an adapter count even if nobody holds it? False if it has gone."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < COUNTS_MINUTES * 60
    except FileNotFoundError:
        return False


def _place(name: str) -> str:
    """What the switches of several calls for one adapter have in common; "" for that of a LUN."""
    match = re.match(r"scan-[0-9a-f]{8}-(.*)", name)
    return match.group(1) if match else ""


def _remove_if_empty(directory: str) -> None:
    """Without the directory the rules ask no disk for its SCSIid."""
    if not os.listdir(directory):
        os.rmdir(directory)


def _disks_behind(adapters: Sequence[str], host: Host) -> List[str]:
    """The disks ("sdb") behind the adapters ("host3")."""
    numbers = [adapter[len("host") :] for adapter in adapters]
    devices = os.path.join(escape(host.sysfs), "bus/scsi/devices")
    paths = [path for number in numbers for path in glob(os.path.join(devices, number + ":*", "block/sd*"))]
    return sorted((os.path.basename(path) for path in paths), key=_by_age)


def _show(scsi_id: str, host: Host) -> None:
    """Let udev have another look at the LUN's disks and map, as far as they are still there and marked."""
    names = [name for name in disks_of(scsi_id, host) + maps_of(scsi_id, host) if _may_be_hidden(name, host)]
    if names and _left_by_killed(os.path.join(host.at(RUN_DIRECTORY), "hide"), host):
        _leave_out(scsi_id, lambda directory: _left_by_killed(directory, host), host)
    for name in names:
        _show_disk(name, host)


def _left_by_killed(directory: str, host: Host) -> List[str]:
    """The switches of adapters that nobody holds."""
    paths = glob(os.path.join(escape(directory), "*-????????-*"))
    return [path for path in paths if _place(os.path.basename(path)) and not _is_held(path, host)]


def _may_be_hidden(name: str, host: Host) -> bool:
    return is_hidden(name, host) or _is_unseen(name, host)


def _is_unseen(name: str, host: Host) -> bool:
    """Has udev yet to say what it is? It may have asked for a switch before that went, and hide it for good.

    A further event comes after the one that udev is at.
    """
    if not os.path.exists(os.path.join(host.udev_run, "control")):
        return False
    return not any(line.startswith("I:") for line in _database(name, host))


def _is_kept_from_multipath(name: str, host: Host) -> bool:
    """Did the rules hide it as a disk that came with another LUN?"""
    return {"E:" + _MARK + "=all", "E:nompath=1"} <= set(_database(name, host))


def _show_disk(name: str, host: Host, action: str = "change") -> None:
    """Let udev have another look at a disk or map, and at its partitions, which have taken after it."""
    make_event(name, host, action)
    for path in sorted(glob(os.path.join(escape(host.sysfs), "block", escape(name), "*/partition"))):
        part = os.path.join(name, os.path.basename(os.path.dirname(path)))
        if _may_be_hidden(part, host):
            make_event(part, host, action)


def _is_handled(name: str, since: float, host: Host) -> bool:
    if not os.path.exists(os.path.join(host.sysfs, "block", name)):
        return True
    # "I:" is when udev had gone through the rules for the first time, in microseconds of CLOCK_MONOTONIC.
    stamps = [line[2:] for line in _database(name, host) if line.startswith("I:")]
    return any(stamp.isdigit() and int(stamp) >= since * 1000000 for stamp in stamps)


def _database(name: str, host: Host) -> List[str]:
    """What udev keeps about a device, in lines; none if it has not handled it yet."""
    try:
        with open(_entry(name, host), encoding="utf-8", errors="replace") as entry:
            return entry.read().splitlines()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
            raise NotFound(f"What udev knows of {name} cannot be read: {error.strerror}.") from error
        return []


def _entry(name: str, host: Host) -> str:
    """The file of a device in udev's database. Raises OSError when there is no such device."""
    with open(os.path.join(host.sysfs, "block", name, "dev"), encoding="ascii") as number:
        return os.path.join(host.udev_run, "data", "b" + number.read().strip())


def _by_age(name: str) -> Any:
    """For sorting: sdz comes before sdaa."""
    return len(name), name
