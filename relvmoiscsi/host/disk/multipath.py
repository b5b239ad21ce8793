# SPDX-License-Identifier: LGPL-2.1-only
"""The multipath map of one LUN: find it, have it made, take exactly that one away again; other maps are not touched.

    before = look(scsi_id)                  before the disks come: what will have to be there afterwards
    the_map = ensure_map(before, disks)     writes go to the_map.device
    flush_map(before)                       after the device was closed, before the disks go

Whether multipathing is on is for the caller to say (`is_on`); with several paths and without it, `single_path` decides.

What there is, the kernel says: /sys/block/dm-*/dm/uuid is "mpath-<SCSIid>", slaves/ has the paths. The programs are
asked to change it, and not believed: old ones answer "ok" to what they did not do.
"""

import fcntl
import logging
import os
import re
from glob import escape, glob
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import content_of
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

MAP_SECONDS = 30.0
DAEMON_SECONDS = 30.0
FLUSH_SECONDS = 20.0  #: udev or a path checker may look at the map once more
COMMAND_SECONDS = 30.0

WWIDS = "multipath/wwids"  #: below /etc: LUNs that were multipathed before, "/<SCSIid>/" each

#: States of a SCSI disk in which nothing can reach the LUN through it. "blocked" is not among them: it may come back.
_DEAD_STATES = ("offline", "transport-offline", "cancel", "deleted")


class Map(NamedTuple):
    """A multipath map."""

    kernel_name: str  #: "dm-3"
    name: str  #: what multipath calls it: the SCSIid, or "mpatha" with user_friendly_names
    paths: Tuple[str, ...]  #: kernel names of its disks
    device: str  #: "/dev/mapper/<name>"


class Before(NamedTuple):
    """What there was of a LUN's map before it was needed."""

    scsi_id: str
    had_map: bool
    had_wwid: bool  #: the LUN was listed in the wwids file


def is_on(device_config: Mapping[str, str], other_config: Mapping[str, str]) -> bool:
    """Is multipathing on, by the SR's device-config and the host's other-config? As SM decides it.

    The device-config counts only with both keys. Source: sm drivers/SR.py, _mpathinit.
    """
    if "multipathing" in device_config and "multipathhandle" in device_config:
        return device_config["multipathing"] == "true" and device_config["multipathhandle"] == "dmp"
    return other_config.get("multipathing") == "true" and other_config.get("multipathhandle", "dmp") == "dmp"


def single_path(scsi_id: str, disks: Sequence[str], host: Host = THIS_HOST) -> str:
    """The one of `disks` ("sdb") to use without multipathing: the only one through which the LUN can be reached.

    Raises Refused when there are several, NotFound when there is none.
    """
    states = {disk: _text(os.path.join(host.sysfs, "block", disk, "device/state")) for disk in disks}
    usable = [disk for disk in disks if states[disk] and states[disk] not in _DEAD_STATES]
    if len(usable) == 1:
        return usable[0]
    if not usable:
        listed = ", ".join("{} is {}".format(disk, states[disk] or "gone") for disk in disks) or "no disk has its id"
        raise NotFound(f"LUN {scsi_id} cannot be reached: {listed}.", sm_key="ISCSIDevice")
    raise Refused(
        f"LUN {scsi_id} has {len(usable)} paths ({_named_paths(usable, host)}) and multipathing is off on this host. "
        "Turn multipathing on, or leave one path: log out of all portals but one, or map it in one fabric. Then try "
        "again.",
        sm_key="MultipathGenericFailure",
    )


def find_map(scsi_id: str, host: Host = THIS_HOST) -> Optional[Map]:
    """The map of a LUN; None if it has none."""
    for directory in sorted(glob(os.path.join(escape(host.sysfs), "block/dm-*"))):
        if scsi_id_of_disk(os.path.basename(directory), host) == scsi_id:
            name = _text(os.path.join(directory, "dm/name"))
            paths = tuple(sorted(os.path.basename(path) for path in glob(os.path.join(escape(directory), "slaves/*"))))
            return Map(os.path.basename(directory), name, paths, os.path.join(host.dev, "mapper", name))
    return None


def look(scsi_id: str, host: Host = THIS_HOST) -> Before:
    """What there is of a LUN's map now, before its disks come: then multipathd may make a map by itself."""
    return Before(scsi_id, find_map(scsi_id, host) is not None, _is_listed(scsi_id, host))


def ensure_map(
    before: Before, disks: Sequence[str], timeout_seconds: float = MAP_SECONDS, host: Host = THIS_HOST
) -> Map:
    """The map of a LUN, with each of `disks` ("sdb") as a path, ready to be opened; made if need be.

    multipathd is started if it does not run, as SM does where multipathing is on; it goes on running.

    Raises NotFound or Refused, with the keys of multipath errors. However it ends, `flush_map` is to follow.
    """
    ensure_daemon(host)
    ready = _ready(before.scsi_id, disks, host)
    the_map, refusals = ready(), []  # type: Optional[Map], List[str]
    if the_map is None:
        refusals = _ask_for_map(before, disks, host)
        the_map = host.wait_for(ready, timeout_seconds)
    if the_map is None:
        raise _not_made(before.scsi_id, disks, round(timeout_seconds, 1), refusals, host)
    log.info(
        "LUN %s: %s multipath map %s with paths %s",
        before.scsi_id,
        "using" if before.had_map else "made",
        the_map.device,
        ", ".join(the_map.paths),
    )
    return the_map


def flush_map(before: Before, timeout_seconds: float = FLUSH_SECONDS, host: Host = THIS_HOST) -> None:
    """Take away the map that was not there before, and the LUN from the list of those to multipath.

    Whoever made it: without us there would be none. A map that is in use gets `timeout_seconds` to be let go of.

    Raises Refused when it stays.
    """
    if before.had_map:
        return
    said = ""

    def is_gone() -> bool:
        nonlocal said
        the_map = find_map(before.scsi_id, host)
        if the_map is not None:
            said = _run(("multipath", "-f", the_map.name), host)
        return find_map(before.scsi_id, host) is None

    if not host.wait_for(is_gone, timeout_seconds):
        raise Refused(
            "The multipath map of LUN {0} is still there after {1:g} seconds: {2}. When nothing uses it any more, run "
            "`multipath -f {0}`.".format(before.scsi_id, timeout_seconds, said or "multipath gave no reason"),
            sm_key="MultipathGenericFailure",
        )
    if not before.had_wwid and _is_listed(before.scsi_id, host):
        _run(("multipath", "-w", before.scsi_id), host)
        _drop_crossed_out(before.scsi_id, os.path.join(host.etc, WWIDS))


def ensure_daemon(host: Host = THIS_HOST, timeout_seconds: float = DAEMON_SECONDS) -> None:
    """See that multipathd answers; start it if it does not. Raises Refused."""

    def answers() -> bool:
        return re.match(r"pid \d+", _ask("show daemon", host)) is not None

    if answers():
        return
    log.info("multipathd does not answer; starting it")
    said = _run(("systemctl", "start", "multipathd.service"), host)
    if not host.wait_for(answers, timeout_seconds):
        raise Refused(
            "Multipathing is on, and multipathd does not answer{}. Start it, then try again.".format(
                ", nor could it be started: " + said if said else ""
            ),
            sm_key="MultipathdCommsFailure",
        )


def _ready(scsi_id: str, disks: Sequence[str], host: Host) -> Callable[[], Optional[Map]]:
    def ready() -> Optional[Map]:
        the_map = find_map(scsi_id, host)
        if the_map is None or _missing(disks, the_map, host):
            return None
        suspended = _text(os.path.join(host.sysfs, "block", the_map.kernel_name, "dm/suspended"))
        return the_map if suspended == "0" and os.path.exists(the_map.device) else None

    return ready


def _missing(disks: Sequence[str], the_map: Map, host: Host) -> Sequence[str]:
    """Disks that are there and no paths of the map: what is written through it would pass by them."""
    there = [disk for disk in disks if os.path.exists(os.path.join(host.sysfs, "block", disk))]
    return [disk for disk in there if disk not in the_map.paths]


def _ask_for_map(before: Before, disks: Sequence[str], host: Host) -> List[str]:
    """Have multipathd take the disks; what it has said of a disk but "ok". What counts is whether the map comes."""
    if not _is_listed(before.scsi_id, host):
        # Listed, the LUN is multipathed with one path, and whatever find_multipaths is set to.
        _run(("multipath", "-a", before.scsi_id), host)
    answers = {disk: _ask("add path " + disk, host) for disk in disks}
    if find_map(before.scsi_id, host) is None:
        # The old multipathd knows a disk that it has not taken before, and leaves it at that.
        _run(("multipath", before.scsi_id), host)
    return [f'multipathd says "{said}" of {disk}' for disk, said in answers.items() if said and said != "ok"]


def _not_made(
    scsi_id: str, disks: Sequence[str], timeout_seconds: float, refusals: Sequence[str], host: Host
) -> NotFound:
    the_map = find_map(scsi_id, host)
    if the_map is None:
        problem = "LUN {} has no multipath map after {:g} seconds; its paths are {}.".format(
            scsi_id, timeout_seconds, ", ".join(disks)
        )
    else:
        missing = ", ".join(_missing(disks, the_map, host))
        problem = "The multipath map {} of LUN {} is not ready after {:g} seconds{}.".format(
            the_map.name, scsi_id, timeout_seconds, "; not among its paths: " + missing if missing else ""
        )
    if refusals:
        advice = "; ".join(refusals) + f". `multipath -v3 -d {scsi_id}` shows which part of multipath.conf says so."
    else:
        advice = (
            "multipathd has named no reason. A slow host needs more time: run the same again. If it fails again, look "
            f"at `multipath -v3 -d {scsi_id}`."
        )
    return NotFound(problem + " " + advice, sm_key="MultipathGenericFailure")


def _is_listed(scsi_id: str, host: Host) -> bool:
    lines = _text(os.path.join(host.etc, WWIDS)).splitlines()
    return f"/{scsi_id}/" in [line.strip() for line in lines]


def _drop_crossed_out(scsi_id: str, path: str) -> None:
    """`multipath -w` writes a # over the LUN's line; where that is the last one, as it is after `-a`, it goes."""
    line = f"#{scsi_id}/\n".encode("ascii", "replace")
    try:
        with open(path, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as multipath does
            content = file.read()
            if content.endswith(b"\n" + line):
                file.truncate(len(content) - len(line))
    except OSError as error:
        log.debug("%s keeps the line %s: %s", path, line, error)  # a comment, and nobody reads it


def _ask(question: str, host: Host) -> str:
    """What multipathd answers; nothing if it does not. In this form every release understands it."""
    return _run(("multipathd", "-k" + question), host)


def _run(argv: Sequence[str], host: Host) -> str:
    """Run a program whose success shows elsewhere. What it said, its errors last; nothing if there is none."""
    try:
        completed: Any = host.runner(argv, accept=range(-64, 256), timeout=COMMAND_SECONDS)
    except CommandFailed as error:  # not installed, or it hangs
        log.warning("%s", error)
        return ""
    said = " ".join((completed.stdout + " " + completed.stderr).split())
    log.debug("%s ended with status %d: %s", " ".join(argv), completed.status, said or "no message")
    return said


def _named_paths(disks: Sequence[str], host: Host) -> str:
    places = [os.path.basename(os.path.realpath(os.path.join(host.sysfs, "block", disk, "device"))) for disk in disks]
    return ", ".join(f"{disk} at {place}" for disk, place in zip(disks, places))


def _text(path: str) -> str:
    """A file of the kernel or of multipath; empty if it is not there."""
    return (content_of(path) or b"").decode("utf-8", "replace").strip()
