# SPDX-License-Identifier: LGPL-2.1-only
"""A transport gives the bytes of a LUN to a call, and has an SR type of its own.

All else is the same with every transport: the answers to xapi, the guards from the pool's records, the engine. A
transport is a folder here: its `Transport`, the device-config keys of its stock type, the lists that the stock driver
prints on stderr, and a `Lun`: over a session of this process (iscsi), or as disks that a scan brings to this host
(hba).
"""

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional

from relvmoiscsi.errors import NOTHING_WRITTEN, RelvmoiscsiError, UsageError
from relvmoiscsi.host.settings import VDIS
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.sr_driver.protocol import Call

if TYPE_CHECKING:  # they are slow to import, and the device-config of a call may be refused
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.device import Device
    from relvmoiscsi.host.xapi.api import Xapi

#: what a call does with a LUN; it gives the text of the answer
Work = Callable[["Device"], str]


class Listed(UsageError):
    """A key is missing; `listing` is the XML of what it could be."""

    def __init__(self, message: str, sm_key: str, xml: str) -> None:
        super().__init__(message, sm_key)
        self.xml = xml


class Wanted:
    """What a device-config says with every transport. Its classes are tuples, with more of their own."""

    __slots__ = ()

    @property
    def scsi_id(self) -> str:
        """Empty when it is missing."""
        raise NotImplementedError

    @property
    def is_master(self) -> bool:
        raise NotImplementedError

    @property
    def vdis(self) -> Optional[str]:
        """One, all, or None: as the host has it."""
        raise NotImplementedError

    @property
    def vdi(self) -> Optional[str]:
        """UUID of the one, where several are live."""
        raise NotImplementedError

    @property
    def clear_databases(self) -> bool:
        """Is no VDI to hold the database of a pool any more?"""
        return False

    @property
    def is_meant(self) -> bool:
        """Did the caller say that the LUN is a clone, where the transport wants that said?"""
        return True


# --- the keys that mean the same with every transport


def scsi_id_in(device_config: Mapping[str, str]) -> str:
    """The SCSIid; "" when it is missing. Raises UsageError (ConfigSCSIid)."""
    scsi_id = device_config.get("SCSIid", "").strip()
    if scsi_id and not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid (device-config:SCSIid).", "ConfigSCSIid")
    return scsi_id


def vdis_in(device_config: Mapping[str, str]) -> Optional[str]:
    """One, all, or None: as the host has it. Raises UsageError."""
    text = device_config.get("vdis", "").strip()
    if text and text not in VDIS:
        raise UsageError(f"{text!r} is neither `one` nor `all` (device-config:vdis).", "InvalidArg")
    return text or None


def vdi_in(device_config: Mapping[str, str]) -> Optional[str]:
    """The UUID of the VDI that stays; None where it is not said. Raises UsageError."""
    from relvmoiscsi.formats.identity import is_uuid  # noqa: PLC0415 - few calls have the key

    text = device_config.get("vdi", "").strip().lower()
    if text and not is_uuid(text):
        raise UsageError(f"{text!r} is no UUID of a VDI (device-config:vdi).", "InvalidArg")
    return text or None


def clear_databases_in(device_config: Mapping[str, str]) -> bool:
    """Is no VDI to hold the database of a pool any more?"""
    return device_config.get("clear-metadata-vdi", "").strip() == "true"


def record_of_host(call: Call, xapi: "Xapi") -> Dict[str, Any]:
    """Xapi's record of the host that the call runs on. Raises XapiFailure."""
    try:
        found: Dict[str, Any] = xapi.call("host.get_record", call.host_ref)
        return found
    except RelvmoiscsiError as failure:
        failure.sm_key = "APILocalhost"
        raise


class Lun:
    """The LUN that a call names."""

    is_seen = True  #: does LVM on this host see the LUN, so that writes need LVM's locks? Known once the LUN is open
    asks_pool_again = False  #: are the pool's records read once more before the first write?
    has_sm_lock = False  #: has SM's LVM lock been held since before the LUN came?

    def __init__(self, scsi_id: str, deadline: "Deadline", lock_seconds: float = math.inf) -> None:
        """`lock_seconds`: how long to wait for a lock that somebody has, as far as the deadline allows."""
        self.scsi_id, self.deadline, self.lock_seconds = scsi_id, deadline, lock_seconds

    def with_device(self, work: Work, writable: bool) -> str:
        """What `work` gives of the LUN. No other relvmoiscsi of this host works on the LUN meanwhile.

        The first write of `work` is refused after the deadline, and a SIGTERM is heeded until then. What has begun
        goes on to its end. Afterwards the host is as it was, but for the LUN itself where that has new identities.

        Raises RelvmoiscsiError: Busy and NotFound, Refused where somebody uses a LUN that is to be written, what `work`
        raises. Where the LUN is not opened for writing, the error says that nothing was written.
        """
        raise NotImplementedError

    @property
    def state_unopened(self) -> str:
        """The state of a LUN that was to be written, and could not be opened."""
        return self.deadline.disk_state if self.deadline.has_passed else NOTHING_WRITTEN


#: call, checked device-config, xapi, log, deadline, seconds to wait for a lock
OpenLun = Callable[[Any, Any, Any, Any, Any, float], Lun]


class Transport(NamedTuple):
    """A way for LUNs to come, by the words of its SR types."""

    sr_type: str  #: ours: "relvmoiscsi"
    stock_type: str  #: that attaches the result: "lvmoiscsi"
    parse_config: Callable[[Mapping[str, str]], Wanted]  #: raises UsageError
    open_lun: OpenLun  #: raises Listed when a key is missing, RelvmoiscsiError
    probe_seconds: float = 12.0  #: of a probe; a dead path alone takes 8 of them, and the clean-up has more of its own
