# SPDX-License-Identifier: LGPL-2.1-only
"""The multipath map of one LUN: find the map, have multipathd make it, and remove it again. Other maps stay untouched.

    before = look(scsi_id)                  before the disks come: the state to return to
    the_map = ensure_map(before, disks)     writes go to the_map.device
    flush_map(before)                       after the device was closed, before the disks go

`is_on` tells the caller whether multipathing is on. If it is off, `single_path` selects the only usable path.

The kernel's files give the state: /sys/block/dm-*/dm/uuid is "mpath-<SCSIid>", slaves/ has the paths. multipath and
multipathd change the state. Their answers are not trusted: old releases answer "ok" without having done the work.
"""

import fcntl
import logging
import os
import re
from glob import escape, glob
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import content_of
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.wording import command

log = logging.getLogger(__name__)

MAP_SECONDS = 30.0
DAEMON_SECONDS = 30.0
FLUSH_SECONDS = 20.0  #: udev or a path checker may open the map once more
COMMAND_SECONDS = 30.0

WWIDS = "etc/multipath/wwids"  #: the LUNs that were multipathed before, a line "/<SCSIid>/" for each

#: States of a SCSI disk through which no request reaches the LUN. A "blocked" disk may come back.
_DEAD_STATES = ("offline", "transport-offline", "cancel", "deleted")


class Map(NamedTuple):
    """A multipath map."""

    kernel_name: str  #: "dm-3"
    name: str  #: multipath's name of the map: the SCSIid, or "mpatha" with user_friendly_names
    paths: Tuple[str, ...]  #: kernel names of the disks in the map
    device: str  #: "/dev/mapper/<name>"


class MapState(NamedTuple):
    """The state of a LUN's map before a call."""

    scsi_id: str
    had_map: bool
    had_wwid: bool  #: the LUN was listed in the wwids file


def is_on(device_config: Mapping[str, str], other_config: Mapping[str, str]) -> bool:
    """Return whether multipathing is on, by the SR's device-config and the host's other-config, as SM decides.

    The device-config counts only with both keys. Source: sm drivers/SR.py, _mpathinit.
    """
    if "multipathing" in device_config and "multipathhandle" in device_config:
        return device_config["multipathing"] == "true" and device_config["multipathhandle"] == "dmp"
    return other_config.get("multipathing") == "true" and other_config.get("multipathhandle", "dmp") == "dmp"


def single_path(scsi_id: str, disks: Sequence[str], host: Host = THIS_HOST) -> str:
    """Return the disk ("sdb") to use without multipathing: the only disk through which the LUN can be reached.

    Raises Refused for several usable disks, NotFound for none.
    """
    alive = usable(disks, host)
    if len(alive) == 1:
        return alive[0]
    if not alive:
        states = [f"{disk} is {state or 'gone'}" for disk, state in _states(disks, host).items()]
        listed = ", ".join(states) or "no disk has its id"
        raise NotFound(f"LUN {scsi_id} cannot be reached: {listed}.", sm_key="ISCSIDevice")
    devices = [os.path.realpath(os.path.join(host.sysfs, "block", disk, "device")) for disk in alive]
    listed = ", ".join(f"{disk} at {os.path.basename(device)}" for disk, device in zip(alive, devices))
    raise Refused(
        f"LUN {scsi_id} has {len(alive)} paths ({listed}) and multipathing is off on this host. "
        "Turn multipathing on, or leave one path: log out of all portals but one, or map the LUN in one fabric. Then "
        "try again.",
        sm_key="MultipathGenericFailure",
    )


def usable(disks: Sequence[str], host: Host = THIS_HOST) -> List[str]:
    """Return the disks that the kernel still sends requests to."""
    return [disk for disk, state in _states(disks, host).items() if state not in ("", *_DEAD_STATES)]


def _states(disks: Sequence[str], host: Host) -> Dict[str, str]:
    """Return the kernel's state of each disk; "" for a disk that is gone."""
    return {disk: _text(os.path.join(host.sysfs, "block", disk, "device/state")) for disk in disks}


def find_map(scsi_id: str, host: Host = THIS_HOST) -> Optional[Map]:
    """Return the map of a LUN; None if there is none."""
    for directory in sorted(glob(os.path.join(escape(host.sysfs), "block/dm-*"))):
        if scsi_id_of_disk(os.path.basename(directory), host) == scsi_id:
            name = _text(os.path.join(directory, "dm/name"))
            paths = tuple(sorted(os.path.basename(path) for path in glob(os.path.join(escape(directory), "slaves/*"))))
            return Map(os.path.basename(directory), name, paths, os.path.join(host.dev, "mapper", name))
    return None


def look(scsi_id: str, host: Host = THIS_HOST) -> MapState:
    """Return the state of a LUN's map. Call this before the LUN's disks come: multipathd may make a map then."""
    return MapState(scsi_id, find_map(scsi_id, host) is not None, _is_listed(scsi_id, host))


def ensure_map(
    before: MapState, disks: Sequence[str], timeout_seconds: float = MAP_SECONDS, host: Host = THIS_HOST
) -> Map:
    """Return the map of a LUN with each of `disks` ("sdb") as a path, ready to open. Make the map if there is none.

    Start multipathd if it does not run, as SM does if multipathing is on. multipathd stays running.

    Raises NotFound or Refused, with the keys of multipath errors. Call `flush_map` afterwards, even after an error.
    """
    ensure_daemon(host)

    def ready() -> Optional[Map]:
        found = find_map(before.scsi_id, host)
        if found is None or _missing(disks, found, host):
            return None
        suspended = _text(os.path.join(host.sysfs, "block", found.kernel_name, "dm/suspended"))
        return found if suspended == "0" and os.path.exists(found.device) else None

    the_map, refusals = ready(), []  # type: Optional[Map], List[str]
    if the_map is None:
        if not _is_listed(before.scsi_id, host):
            # A listed LUN gets a map even with one path, for every value of find_multipaths.
            _run(("multipath", "-a", before.scsi_id), host)
        answers = {disk: _ask("add path " + disk, host) for disk in disks}
        if find_map(before.scsi_id, host) is None:
            # An old multipathd that has rejected a disk before does not try again. `multipath` makes the map.
            _run(("multipath", before.scsi_id), host)
        refusals = [f'multipathd says "{said}" of {disk}' for disk, said in answers.items() if said not in ("", "ok")]
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


def flush_map(before: MapState, timeout_seconds: float = FLUSH_SECONDS, host: Host = THIS_HOST) -> None:
    """Remove the LUN's map and its line in the wwids file, if `before` says that neither existed before the call.

    Also remove a map that multipathd made by itself: multipathd made it for the disks of this call. A map in use gets
    `timeout_seconds` to become free.

    Raises Refused if the map stays.
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
            "The multipath map of LUN {} is still there after {:g} seconds: {}. When nothing uses it any more, run "
            "{}.".format(
                before.scsi_id,
                timeout_seconds,
                said or "multipath gave no reason",
                command("multipath", "-f", before.scsi_id),
            ),
            sm_key="MultipathGenericFailure",
        )
    if not before.had_wwid and _is_listed(before.scsi_id, host):
        _run(("multipath", "-w", before.scsi_id), host)
        # `multipath -w` has put a # at the start of the line, which is the last line, as after `-a`: remove the line
        path, line = host.at(WWIDS), f"#{before.scsi_id}/\n".encode("ascii", "replace")
        try:
            with open(path, "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as multipath does
                content = file.read()
                if content.endswith(b"\n" + line):
                    file.truncate(len(content) - len(line))
        except OSError as error:
            log.debug("%s keeps the line %s: %s", path, line, error)  # the line is a comment


def ensure_daemon(host: Host = THIS_HOST, timeout_seconds: float = DAEMON_SECONDS) -> None:
    """Start multipathd if it does not answer. Raises Refused if it does not answer then."""

    def answers() -> bool:
        return re.match(r"pid \d+", _ask("show daemon", host)) is not None

    if answers():
        return
    log.info("multipathd does not answer; starting it")
    said = _run(("systemctl", "start", "multipathd.service"), host)
    if not host.wait_for(answers, timeout_seconds):
        raise Refused(
            "Multipathing is on, and multipathd does not answer{}. Start multipathd, then try again.".format(
                ", nor could it be started: " + said if said else ""
            ),
            sm_key="MultipathdCommsFailure",
        )


def _missing(disks: Sequence[str], the_map: Map, host: Host) -> Sequence[str]:
    """Return the present disks that are no paths of the map. A write through the map would not use these disks."""
    there = [disk for disk in disks if os.path.exists(os.path.join(host.sysfs, "block", disk))]
    return [disk for disk in there if disk not in the_map.paths]


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
        shows = f"{command('multipath', '-v3', '-d', scsi_id)} shows which part of multipath.conf says so."
        advice = "; ".join(refusals) + ". " + shows
    else:
        advice = (
            "multipathd has named no reason. A slow host needs more time: repeat the command. If it fails again, look "
            f"at {command('multipath', '-v3', '-d', scsi_id)}."
        )
    return NotFound(problem + " " + advice, sm_key="MultipathGenericFailure")


def _is_listed(scsi_id: str, host: Host) -> bool:
    lines = _text(host.at(WWIDS)).splitlines()
    return f"/{scsi_id}/" in [line.strip() for line in lines]


def _ask(question: str, host: Host) -> str:
    """Return multipathd's answer; "" without an answer. Every release accepts the form `multipathd -k<question>`."""
    return _run(("multipathd", "-k" + question), host)


def _run(argv: Sequence[str], host: Host) -> str:
    """Run a program and return its output, stderr last; "" if it did not run. The caller checks the effect itself."""
    try:
        completed: Any = host.runner(argv, accept=range(-64, 256), timeout=COMMAND_SECONDS)
    except CommandFailed as error:  # the program is not installed, or hangs
        log.warning("%s", error)
        return ""
    said = " ".join((completed.stdout + " " + completed.stderr).split())
    log.debug("%s ended with status %d: %s", " ".join(argv), completed.status, said or "no message")
    return said


def _text(path: str) -> str:
    """Return the text of a file of the kernel or of multipath; "" if there is no file."""
    return (content_of(path) or b"").decode("utf-8", "replace").strip()
