# SPDX-License-Identifier: LGPL-2.1-only
"""The iSCSI sessions of this host and their LUNs, as the kernel shows them in sysfs; no process is started.

    /sys/class/iscsi_session/session4/          targetname, state, tpgt
                             session4/device -> /sys/devices/platform/host7/session4
        connection4:0/iscsi_connection/connection4:0/   address, port, persistent_address, persistent_port
        target7:0:0/7:0:0:12/                           a LUN: type, vendor, vpd_pg80; block/sdc

The persistent address is what the login was asked for, the address what it has now: a target may redirect.
What vanishes while it is read, at a logout, counts as not there.
"""

import os
import re
from glob import escape, glob
from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk, unit_serial
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.iscsi.portals import Portal, same_portal
from relvmoiscsi.host.this_host import THIS_HOST, Host

LOGGED_IN = "LOGGED_IN"
FAILED = "FAILED"  #: the connection is lost and open-iscsi tries to get it back
FREE = "FREE"
ENDED = "ENDED"  #: no state of the kernel's: the session is there no longer

_DISK = "0"  # SCSI peripheral device type
_SECTOR = 512  # bytes; the unit of block/*/size whatever the disk's own
_SESSION = re.compile(r"session(\d+)\Z")
_LUN = re.compile(r"(\d+):\d+:\d+:(\d+)\Z")


class Lun(NamedTuple):
    """A disk that a session has brought."""

    number: int
    scsi_address: str  #: "7:0:0:12": host, channel, target, LUN
    disk: Optional[str]  #: the kernel's name, "sdc"; None while the disk driver is not done with it


class Session(NamedTuple):
    """A login to one portal of a target."""

    sid: int
    iqn: str
    portal: Portal  #: where it is connected
    persistent_portal: Portal  #: where it logged in first
    state: str  #: LOGGED_IN, FAILED, or FREE: while it comes or goes, or when its replacement time is over
    host: int  #: number of its SCSI host
    luns: Tuple[Lun, ...]

    @property
    def is_logged_in(self) -> bool:
        return self.state == LOGGED_IN

    @property
    def is_coming(self) -> bool:
        """Is it a login under way? One that has LUNs was there, and is lost or going."""
        return self.state == FREE and not self.luns

    def is_at(self, portal: Portal) -> bool:
        """Is it the session to this (numeric) portal?"""
        return same_portal(portal, self.portal) or same_portal(portal, self.persistent_portal)

    def __str__(self) -> str:
        return f"session {self.sid} to {self.iqn} at {self.persistent_portal}"


class LunFacts(NamedTuple):
    """What a LUN says of itself; the texts are "" where it says nothing."""

    lun: Lun
    vendor: str
    model: str
    serial: str
    size_bytes: int
    scsi_id: str


def sessions(host: Host = THIS_HOST) -> List[Session]:
    """All sessions of this host, by number. Empty as well while the iSCSI modules are not loaded."""
    found = []
    for path in glob(os.path.join(escape(host.sysfs), "class/iscsi_session/session*")):
        session = _session(path)
        if session is not None:
            found.append(session)
    return sorted(found, key=lambda session: session.sid)


def session_by_id(sid: int, host: Host = THIS_HOST) -> Optional[Session]:
    """The session with this number; None if it is gone."""
    return _session(os.path.join(host.sysfs, f"class/iscsi_session/session{sid}"))


def sessions_of(iqn: str, portal: Optional[Portal] = None, host: Host = THIS_HOST) -> List[Session]:
    """The sessions to a target, of one (numeric) portal or of all."""
    return [session for session in sessions(host) if session.iqn == iqn and (portal is None or session.is_at(portal))]


def facts_of(lun: Lun, host: Host = THIS_HOST) -> Optional[LunFacts]:
    """What is known of a LUN; None while its disk is not there."""
    if lun.disk is None:
        return None
    block = os.path.join(host.sysfs, "block", lun.disk)
    sectors = _text(os.path.join(block, "size"))
    if not sectors:
        return None
    return LunFacts(
        lun=lun,
        vendor=_text(os.path.join(block, "device/vendor")),
        model=_text(os.path.join(block, "device/model")),
        serial=unit_serial(os.path.join(block, "device/vpd_pg80")),
        size_bytes=int(sectors) * _SECTOR,
        scsi_id=scsi_id_of_disk(lun.disk, host) or "",
    )


def error_timeouts(session: Session, host: Host = THIS_HOST) -> List[int]:
    """Seconds that the session gives the reset of a LUN, and of the target, as its login had them; [] if unknown.

    They are node.session.err_timeo.lu_reset_timeout and tgt_reset_timeout of the record that it was made with.
    """
    directory = os.path.join(host.sysfs, f"class/iscsi_session/session{session.sid}")
    found = [_text(os.path.join(directory, name)) for name in ("lu_reset_tmo", "tgt_reset_tmo")]
    return [int(text) for text in found] if all(text.isdigit() for text in found) else []


def patience_of(session: Session, host: Host = THIS_HOST) -> Optional[int]:
    """The seconds that `set_patience` sets; None if they are not known."""
    text = _text(os.path.join(host.sysfs, f"class/iscsi_session/session{session.sid}/recovery_tmo"))
    return int(text) if text.isdigit() else None


def set_patience(session: Session, seconds: int, host: Host = THIS_HOST) -> bool:
    """How long I/O of this session waits when the connection is lost, before it fails; False if it cannot be set now.

    It is what node.session.timeo.replacement_timeout is at a login. The kernel refuses while there is no connection.
    """
    path = os.path.join(host.sysfs, f"class/iscsi_session/session{session.sid}/recovery_tmo")
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"%d\n" % seconds) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _session(path: str) -> Optional[Session]:
    number = _SESSION.search(path)
    device = os.path.realpath(os.path.join(path, "device"))
    host = re.search(r"/host(\d+)/session\d+\Z", device)
    iqn = _text(os.path.join(path, "targetname"))
    if number is None or host is None or not iqn:
        return None
    now, persistent = _portals(device)
    return Session(
        sid=int(number.group(1)),
        iqn=iqn,
        portal=now or persistent,
        persistent_portal=persistent,
        state=_text(os.path.join(path, "state")) or FREE,
        host=int(host.group(1)),
        luns=tuple(_luns(device)),
    )


def _portals(device: str) -> Tuple[Optional[Portal], Portal]:
    """Where the session is connected, None while it is not, and where it first was."""
    for path in sorted(glob(os.path.join(escape(device), "connection*/iscsi_connection/connection*"))):
        persistent = _portal(path, "persistent_")
        if persistent is not None:
            return _portal(path, ""), persistent
    return None, Portal("", 0)


def _portal(path: str, prefix: str) -> Optional[Portal]:
    address = _text(os.path.join(path, prefix + "address"))
    port = _text(os.path.join(path, prefix + "port"))
    # While there is no connection the kernel shows no value, or "(null)" and -1.
    if not address or address == "(null)" or not port.isdigit():
        return None
    return Portal(address, int(port))


def _luns(device: str) -> List[Lun]:
    found = []
    for path in glob(os.path.join(escape(device), "target*", "*")):
        match = _LUN.search(path)
        if match and _text(os.path.join(path, "type")) == _DISK:
            disks = _names(os.path.join(path, "block"))
            found.append(Lun(int(match.group(2)), os.path.basename(path), disks[0] if disks else None))
    return sorted(found)


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: str) -> str:
    return text_of(path).strip()
