# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs behind a target, listed and opened."""

import logging
from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Optional, Sequence, Union

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.iscsi import looking
from relvmoiscsi.iscsi.carrier import Carrier
from relvmoiscsi.iscsi.faults import Lost
from relvmoiscsi.iscsi.kernel_crc import kernel_crc32c
from relvmoiscsi.iscsi.looking import Look
from relvmoiscsi.iscsi.lun import Lun, no_way, read_only, reserved
from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.iscsi.names import NO_CREDENTIALS, Credentials, Initiator, LunInfo, Portal
from relvmoiscsi.iscsi.scsi import Verdict
from relvmoiscsi.iscsi.target import TargetWay, isid_of_reader, isid_of_writer

log = logging.getLogger(__name__)

_SLOW_COPY_BYTES = 64 * 1024 * 1024  #: that digests in Python are done with in a quarter of a minute
_TELLING_TRIES = 5  #: each takes a second where a LUN is busy, and then says so at once
_MANY = 100  #: LUNs; of more, only the one that is wanted is asked for its size

LunName = Union[str, int]


class _Open(NamedTuple):
    carrier: Carrier
    look: Look


def list_luns(
    portals: Sequence[Portal],
    iqn: str,
    initiator: Initiator,
    deadline: Deadline,
    credentials: Credentials = NO_CREDENTIALS,
) -> List[LunInfo]:
    """The disks behind a target, as a session sees them that only reads. Raises NotFound, Refused, OutOfTime."""
    way = TargetWay(portals, iqn, initiator, credentials, deadline, isid_of_reader())
    carrier = way.first()
    try:
        return [one.info for one in looking.look(carrier, looking.list_luns(carrier)) if one.is_disk]
    finally:
        carrier.close(politely=True)


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
    is_fenced: bool = False,
) -> Iterator[LunDevice]:
    """A LUN as a device, by its SCSIid or (an int) its number, for the block.

    A LUN that is named by its number is refused where it has another SCSIid than `scsi_id`, if that is given.

    Who opens it for writing has the lock of the LUN: the session ends every other one of this host that was opened to
    write to it, and resets the LUN before the first write; with `is_fenced` before the first read, which is for who
    knows by then that nobody uses the LUN.

    Raises NotFound (DNSError, ISCSITarget, ISCSIDiscovery, ISCSIDevice), Refused (ISCSILogin, SRInUse), OutOfTime.
    """
    way = TargetWay(portals, iqn, initiator, credentials, deadline, isid_of_reader())
    expected = lun if isinstance(lun, str) else scsi_id
    if writable and expected is None:  # the SCSIid has to be read before a session can be the one that writes
        opened = _find(way, lun, None, writable)
        opened.carrier.close(politely=True)
        expected = opened.look.info.scsi_id
        if expected is None:
            raise Refused(f"The LUN {lun} behind {iqn} has no SCSIid, so nothing is written to it.", "ISCSIDevice")
    if writable and expected is not None:
        way.isid = isid_of_writer(initiator.host_uuid, iqn, expected)
    opened = _find(way, lun, expected, writable)
    info, name = opened.look.info, f"iscsi://{portals[0]}/{iqn}/{opened.look.info.number}"
    found = Lun(way, opened.carrier, info, name)
    try:
        if writable and opened.look.is_read_only:
            raise read_only(name)
        if is_fenced:
            found.fence()
        log.info("opened %s (%s): %d bytes in blocks of %d", name, info.scsi_id, info.size_bytes, info.block_size)
        yield LunDevice(found, writable, _copy_limit(opened.carrier))
    finally:
        found.close()


def _copy_limit(carrier: Carrier) -> Optional[int]:
    parameters = carrier.session.parameters
    has_digests = parameters.header_digest or parameters.data_digest
    return _SLOW_COPY_BYTES if has_digests and kernel_crc32c() is None else None


def _find(way: TargetWay, lun: LunName, scsi_id: Optional[str], writable: bool) -> _Open:
    """A session over which the LUN can be used. A session that is lost on the way is made once more."""
    is_second = False
    while True:
        carrier = way.first()
        try:
            one = _usable(way, carrier, lun, scsi_id, writable)
        except Lost as lost:
            carrier.close(politely=False)
            if is_second:
                raise
            log.info("%s", lost)
            is_second = True
            continue
        except BaseException:
            carrier.close(politely=True)
            raise
        if one is not None:
            return _Open(carrier, one)
        carrier.close(politely=True)


def _usable(way: TargetWay, carrier: Carrier, lun: LunName, scsi_id: Optional[str], writable: bool) -> Optional[Look]:
    """The LUN; None where another portal is to be tried. Raises NotFound, Refused."""
    luns = every = looking.list_luns(carrier)
    if isinstance(lun, int):
        luns = [address for address in luns if LunInfo(address).number == lun] or luns
    elif len(luns) > _MANY:
        called = looking.names(carrier, luns)
        luns = [info.lun for info in called if info.scsi_id == lun or info.problem] or luns[:_MANY]
    looks = looking.look(carrier, luns)
    if writable:
        _verify_told(carrier, way.iqn, looks)
    disks = [one for one in looks if one.is_disk]
    found = [one for one in disks if lun == (one.info.scsi_id if isinstance(lun, str) else one.info.number)]
    if not found:
        _refuse_no_disk(way.iqn, lun, looks)
        there = ", ".join(sorted({_called(one.info, lun) for one in disks})) or "none"
        raise NotFound(
            f"No LUN {lun} is behind {way.iqn}; there are {there}. Map it to {way.initiator.name} at the array.",
            "ISCSIDevice",
        )
    one, name = found[0], f"the LUN {lun} behind {way.iqn}"
    if len(found) > 1:
        raise _several(way.iqn, scsi_id, [one.info for one in found])
    while one.verdict == Verdict.LATER:  # until the deadline
        carrier.pause(looking.PAUSE_SECONDS)
        (one,) = looking.look(carrier, [one.info.lun])
    if one.verdict == Verdict.ELSEWHERE:
        if not way.move():
            raise no_way(name, one.info.problem)
        return None
    if one.verdict == Verdict.RESERVED:
        raise reserved(name)
    if one.verdict != Verdict.DONE or one.info.size_bytes == 0:
        raise Refused(f"{name} cannot be used: {one.info.problem or 'it has no size'}.", "ISCSIDevice")
    if scsi_id is not None and one.info.scsi_id != scsi_id:
        raise _another(name, one.info.scsi_id, scsi_id)
    if writable and isinstance(lun, int) and one.info.scsi_id is not None:
        _verify_told(carrier, way.iqn, looking.look(carrier, every))
        alike = [info for info in looking.names(carrier, every) if info.scsi_id == one.info.scsi_id]
        if len(alike) > 1:
            raise _several(way.iqn, one.info.scsi_id, alike)
    return one


def _verify_told(carrier: Carrier, iqn: str, looks: Sequence[Look]) -> None:
    """Raises Refused where a LUN keeps its SCSIid to itself: it may be a twin of the one that is to be written."""
    silent = [one for one in looks if one.is_disk and one.info.scsi_id is None and one.verdict != Verdict.DONE]
    for _ in range(_TELLING_TRIES):
        if not silent:
            return
        carrier.pause(looking.PAUSE_SECONDS)
        silent = [one for one in looking.look(carrier, [one.info.lun for one in silent]) if one.info.scsi_id is None]
        silent = [one for one in silent if one.is_disk and one.verdict != Verdict.DONE]
    if silent:
        one = silent[0].info
        raise Refused(
            f"The LUN {one.number} behind {iqn} does not tell its SCSIid ({one.problem}): it may be a twin of the LUN "
            "that is wanted. Try again when the array has time, or have it hide that LUN from this host.",
            "ISCSIDevice",
        )


def _refuse_no_disk(iqn: str, lun: LunName, looks: Sequence[Look]) -> None:
    """Raises NotFound where the LUN with this number is a device of another kind."""
    for one in looks:
        if one.what and one.info.number == lun:
            raise NotFound(f"The LUN {lun} behind {iqn} is no disk: it is {one.what}. Name another LUN.", "ISCSIDevice")


def _another(name: str, found: Optional[str], expected: str) -> Refused:
    return Refused(
        f"{name} has the SCSIid {found}, expected {expected}: it is another LUN now. Check the mapping at the array.",
        "ISCSIDevice",
    )


def _several(iqn: str, scsi_id: Optional[str], found: Sequence[LunInfo]) -> Refused:
    numbers = ", ".join(str(info.number) for info in found)
    return Refused(
        f"The LUNs {numbers} behind {iqn} have one SCSIid, {scsi_id}: it does not tell the clone from its original. "
        "Have the array give the clone a SCSIid of its own, or map the clone alone to this machine.",
        "ISCSIDevice",
    )


def _called(info: LunInfo, lun: LunName) -> str:
    return str(info.number) if isinstance(lun, int) else info.scsi_id or f"LUN {info.number} without a SCSIid"
