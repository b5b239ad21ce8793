# SPDX-License-Identifier: LGPL-2.1-only
"""List and open the LUNs behind a target."""

import logging
from contextlib import contextmanager
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Lost, NotFound, Refused
from relvmoiscsi.iscsi import looking
from relvmoiscsi.iscsi.crc32c import kernel_crc32c
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.lun_device import LunDevice, no_path, read_only, reserved
from relvmoiscsi.iscsi.names import NO_CREDENTIALS, Credentials, Initiator, LunInfo
from relvmoiscsi.iscsi.target_sessions import TargetSessions, isid_of_reader, isid_of_writer
from relvmoiscsi.portal import Portal
from relvmoiscsi.scsi import Verdict
from relvmoiscsi.wording import some_luns

log = logging.getLogger(__name__)

_SLOW_COPY_BYTES = 64 * 1024 * 1024  #: Python computes the digests of that much data in 15 seconds
_SESSIONS = 5  #: sessions that may be lost in a row before the LUN is known
_TELLING_TRIES = 5  #: a busy LUN may take a second for each try; an idle LUN answers immediately

LunName = Union[str, int]
_Found = TypeVar("_Found")


class TargetLuns(NamedTuple):
    """The LUNs of a target."""

    disks: List[LunInfo]
    left_out: int = 0  #: further LUNs that the target lists, of which nothing was read


def list_luns(
    portals: Sequence[Portal],
    iqn: str,
    initiator: Initiator,
    deadline: Deadline,
    credentials: Credentials = NO_CREDENTIALS,
    waits: bool = True,
    most: Optional[int] = None,
) -> TargetLuns:
    """Return the disks behind a target, read over a read-only session. Raises NotFound, Refused, OutOfTime.

    Without `waits`, a busy LUN is not asked again. At most the first `most` LUNs of the target are read; None: all.
    """
    link = TargetSessions(portals, iqn, initiator, credentials, deadline, isid_of_reader()).log_in()
    try:
        luns = looking.list_luns(link)
        looks = looking.distinct(looking.look(link, luns[:most], waits))
        return TargetLuns([one for one in looks if one.is_disk], len(luns) - len(luns[:most]))
    finally:
        link.close(politely=True)


@contextmanager
def open_lun(
    portals: Sequence[Portal],
    iqn: str,
    initiator: Initiator,
    lun: LunName,
    writable: bool,
    deadline: Deadline,
    credentials: Credentials = NO_CREDENTIALS,
    scsi_id: Optional[str] = None,
) -> Iterator[LunDevice]:
    """Open a LUN as a device for the block, by its SCSIid or its number (an int).

    A LUN given by number must have the SCSIid `scsi_id`, if given; otherwise the LUN is refused.

    A caller that opens the LUN for writing holds the lock of the LUN. The writing session ends every other writing
    session of this host for the LUN, and resets the LUN before the first write.

    Raises NotFound (DNSError, ISCSITarget, ISCSIDiscovery, ISCSIDevice), Refused (ISCSILogin, SRInUse), OutOfTime.
    """
    sessions = TargetSessions(portals, iqn, initiator, credentials, deadline, isid_of_reader())
    expected = lun if isinstance(lun, str) else scsi_id
    if writable:
        if expected is None:  # the ISID of a writing session depends on the SCSIid, so read the SCSIid first
            link, named = _on_a_session(sessions, lambda link: _named(sessions, link, lun, writable))
            link.close(politely=True)
            expected = named.scsi_id
        if expected is None:
            raise Refused(
                f"The LUN {lun} behind {iqn} has no SCSIid, so nothing is written to the LUN. Have the array give the "
                "LUN a SCSIid.",
                "ISCSIDevice",
            )
        sessions.isid = isid_of_writer(initiator.host_uuid, iqn, expected)
    while True:
        link, one = _on_a_session(sessions, lambda link: _usable(sessions, link, lun, expected, writable))
        if one.verdict != Verdict.ELSEWHERE:
            break
        link.close(politely=True)
        if not sessions.next_portal():
            raise no_path(f"the LUN {lun} behind {iqn}", one.problem)
    info, name = one, f"iscsi://{portals[0]}/{iqn}/{one.number}"
    fence = sessions.fence(name) if writable else None
    parameters = link.session.parameters
    is_slow = (parameters.header_digest or parameters.data_digest) and kernel_crc32c() is None
    device = LunDevice(sessions, link, info, name, writable, _SLOW_COPY_BYTES if is_slow else None, fence)
    try:
        if one.is_read_only:
            device.objection = read_only(name)
            if writable:
                raise device.objection
        log.info("opened %s (%s): %d bytes in blocks of %d", name, info.scsi_id, info.size_bytes, info.block_size)
        yield device
    finally:
        device.close()


def _on_a_session(sessions: TargetSessions, ask: Callable[[Link], _Found]) -> Tuple[Link, _Found]:
    """Return a session and the result of `ask` on it. If the session is lost, repeat on a new session."""
    for number in range(1, _SESSIONS + 1):
        link = sessions.log_in()
        try:
            return link, ask(link)
        except Lost as lost:
            link.close(politely=False)
            if number == _SESSIONS:
                raise
            log.info("%s", lost)
        except BaseException:
            link.close(politely=True)
            raise
    raise AssertionError("the last try returns or raises")


def _named(sessions: TargetSessions, link: Link, lun: LunName, writable: bool) -> LunInfo:
    """Return the LUN with this SCSIid or number, with its names; with its size if no other LUN was asked.

    Raises NotFound, Refused.
    """
    luns, iqn = looking.list_luns(link), sessions.iqn
    if isinstance(lun, int) and not writable:  # a writer reads all LUNs: another LUN may have the same SCSIid
        luns = [address for address in luns if LunInfo(address).number == lun] or luns
    looks = looking.look(link, luns) if len(luns) == 1 else looking.names(link, luns)
    if writable:
        looks = _verify_told(link, iqn, looks)
    disks = looking.distinct([one for one in looks if one.is_disk])
    found = [one for one in disks if lun == (one.scsi_id if isinstance(lun, str) else one.number)]
    kinds = [one.what for one in looks if one.what and one.number == lun]
    if not found and kinds:
        raise NotFound(f"The LUN {lun} behind {iqn} is no disk: it is {kinds[0]}.", "ISCSIDevice").advising(
            "Name another LUN."
        )
    if not found:
        others = {str(one.number) for one in disks}
        if isinstance(lun, str):
            others = {one.scsi_id or f"LUN {one.number} without a SCSIid" for one in disks}
        raise NotFound(
            f"No LUN {lun} is behind {iqn}; there are {some_luns(sorted(others))}.",
            "ISCSIDevice",
        ).advising(f"Map the LUN to {sessions.initiator.name} at the array.")
    if len(found) == 1 and writable and found[0].scsi_id is not None:
        found = [one for one in disks if one.scsi_id == found[0].scsi_id]
    if len(found) > 1:
        numbers = some_luns(one.number for one in found)
        raise Refused(
            f"The LUNs {numbers} behind {iqn} have one SCSIid, {found[0].scsi_id}: the SCSIid does not tell the "
            "clone from its original.",
            "ISCSIDevice",
        ).advising("Have the array give the clone a SCSIid of its own, or map the clone alone to this machine.")
    return found[0]


def _usable(sessions: TargetSessions, link: Link, lun: LunName, scsi_id: Optional[str], writable: bool) -> LunInfo:
    """Return the LUN if it is usable, or needs another portal (Verdict.ELSEWHERE). Raises NotFound, Refused."""
    known = _named(sessions, link, lun, writable)
    name = f"The LUN {lun} behind {sessions.iqn}"
    one = known if known.size_bytes else looking.look(link, [known.lun])[0]
    while one.verdict == Verdict.LATER:  # `pause` raises OutOfTime at the deadline
        link.pause(looking.PAUSE_SECONDS)
        (one,) = looking.look(link, [known.lun])
    if one.verdict == Verdict.ELSEWHERE:
        return one
    if one.verdict == Verdict.RESERVED:
        raise reserved(name)
    if one.verdict != Verdict.DONE or one.size_bytes == 0:
        problem = one.problem or "it has no size"
        raise Refused(f"{name} cannot be used: {problem}.", "ISCSIDevice").advising("Check the LUN at the array.")
    expected = known.scsi_id if known.verdict == Verdict.DONE else one.scsi_id
    expected = expected if scsi_id is None else scsi_id
    if one.scsi_id != expected:
        raise Refused(
            f"{name} is the LUN {looking.called(one)}, expected {expected or 'a LUN without a SCSIid'}.",
            "ISCSIDevice",
        ).advising("Check the SCSIid, and the mapping at the array.")
    return one


def _verify_told(link: Link, iqn: str, looks: List[LunInfo]) -> List[LunInfo]:
    """Return the looks when every disk has reported its SCSIid. Raises Refused for a silent disk: it may be the LUN."""
    for tried in range(_TELLING_TRIES + 1):
        asked = [one for one in looks if one.is_disk and one.scsi_id is None]
        silent = [one for one in asked if one.verdict != Verdict.DONE]
        if not silent:
            return looks
        if tried < _TELLING_TRIES:
            link.pause(looking.PAUSE_SECONDS)
            looks = looking.names(link, [one.lun for one in looks])
    raise Refused(
        f"The LUN {silent[0].number} behind {iqn} does not tell its SCSIid ({silent[0].problem}): it may have the "
        "SCSIid of the wanted LUN.",
        "ISCSIDevice",
    ).advising("Try again when the array has time, or have the array hide that LUN from this host.")
