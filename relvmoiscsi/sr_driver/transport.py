# SPDX-License-Identifier: LGPL-2.1-only
"""A transport gives a call the bytes of a LUN, and has an SR type of its own.

All transports share the answers to xapi, the checks of the pool's records, and the engine. A transport is a package in
this directory. The package has a `Transport`, the device-config keys of the stock SR type, the lists that the stock
driver prints on stderr, and a `Lun`. The iscsi `Lun` uses a session of this process; the hba `Lun` uses disks that a
scan adds to this host.
"""

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NOTHING_WRITTEN, RelvmoiscsiError, UsageError
from relvmoiscsi.host.settings import VDIS
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.sr_driver.protocol import Call

if TYPE_CHECKING:  # these imports are slow, and a call with a refused device-config does not need them
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.device import Device
    from relvmoiscsi.host.xapi.api import Xapi

#: the work of a call on a LUN; returns the text of the answer
Work = Callable[["Device"], str]
#: raises Refused if the pool uses the LUN; takes the UUIDs of the SRs that the LUN will no longer hold
VerifyUnused = Callable[[Sequence[str]], None]


class Listed(UsageError):
    """A key is missing. `xml` lists the possible values."""

    def __init__(self, message: str, sm_key: str, xml: str) -> None:
        super().__init__(message, sm_key)
        self.xml = xml


class CallRequest:
    """The keys of a device-config that all transports have. Subclasses are tuples with further keys."""

    __slots__ = ()

    @property
    def scsi_id(self) -> str:
        """The SCSIid; "" if the key is missing."""
        raise NotImplementedError

    @property
    def is_master(self) -> bool:
        raise NotImplementedError

    @property
    def vdis(self) -> Optional[str]:
        """The value "one" or "all", or None for the setting of the host."""
        raise NotImplementedError

    @property
    def vdi(self) -> Optional[str]:
        """UUID of the VDI that stays, if several VDIs are live."""
        raise NotImplementedError

    @property
    def clone_of(self) -> str:
        """UUID of an SR; the caller has said that the LUN is a clone of this SR. "" if the key is missing."""
        raise NotImplementedError

    @property
    def clear_databases(self) -> bool:
        """Shall no VDI keep the database of a pool?"""
        return False

    @property
    def is_meant(self) -> bool:
        """Did the caller say that the LUN is a clone? Always true for a transport that does not ask."""
        return True


# --- the keys of all transports


def scsi_id_in(device_config: Mapping[str, str]) -> str:
    """Return the SCSIid in udev's form; "" if the key is missing. Raises UsageError (ConfigSCSIid)."""
    text = device_config.get("SCSIid", "").strip()
    try:
        return typed_scsi_id(text) if text else ""
    except UsageError as problem:
        problem.message += " The key is device-config:SCSIid."
        raise


def vdis_in(device_config: Mapping[str, str]) -> Optional[str]:
    """Return "one", "all", or None for the setting of the host. Raises UsageError."""
    text = device_config.get("vdis", "").strip()
    if text and text not in VDIS:
        raise UsageError(f"{text!r} is neither `one` nor `all` (device-config:vdis).", "InvalidArg")
    return text or None


def vdi_in(device_config: Mapping[str, str]) -> Optional[str]:
    """Return the UUID of the VDI that stays; None if the key is missing. Raises UsageError."""
    from relvmoiscsi.formats.identity import is_uuid  # noqa: PLC0415 - few calls have the key

    text = device_config.get("vdi", "").strip().lower()
    if text and not is_uuid(text):
        raise UsageError(f"{text!r} is no UUID of a VDI (device-config:vdi).", "InvalidArg")
    return text or None


def clone_of_in(device_config: Mapping[str, str]) -> str:
    """Return the UUID of the SR of which the LUN is a clone; "" if the key is missing. Raises UsageError."""
    from relvmoiscsi.formats.identity import is_uuid  # noqa: PLC0415 - few calls have the key

    text = device_config.get("clone-of", "").strip().lower()
    if text and not is_uuid(text):
        raise UsageError(f"{text!r} is no UUID of an SR (device-config:clone-of).", "InvalidArg")
    return text


def clear_databases_in(device_config: Mapping[str, str]) -> bool:
    """Return whether no VDI shall keep the database of a pool."""
    return device_config.get("clear-metadata-vdi", "").strip() == "true"


def record_of_host(call: Call, xapi: "Xapi") -> Dict[str, Any]:
    """Return xapi's record of the host that the call runs on. Raises XapiFailure."""
    try:
        found: Dict[str, Any] = xapi.call("host.get_record", call.host_ref)
        return found
    except RelvmoiscsiError as failure:
        failure.sm_key = "APILocalhost"
        raise


class Lun:
    """The LUN that a call names."""

    is_seen = True  #: LVM on this host sees the LUN, so writes need LVM's locks. Known after the LUN is open
    has_sm_lock = False  #: SM's LVM lock has been held since before the LUN came

    def __init__(self, scsi_id: str, deadline: "Deadline", lock_seconds: float = math.inf) -> None:
        """`lock_seconds` limits the wait for a lock, together with the deadline."""
        self.scsi_id, self.deadline, self.lock_seconds = scsi_id, deadline, lock_seconds
        #: the last check of the pool, under the locks against LVM; its errors refuse the call
        self.verify_again: VerifyUnused = lambda _replaced: None

    def with_device(self, work: Work, writable: bool) -> str:
        """Open the LUN, run `work` on it and return its result. No other relvmoiscsi of this host works on the LUN.

        The first write of `work` is refused after the deadline. Until the first write, a SIGTERM ends the call; then
        the work goes on to its end. Afterwards the host is as before. A LUN with new identities may stay on the host.

        Raises RelvmoiscsiError: Busy; NotFound; Refused if a program uses a LUN that shall be written; errors of
        `work`. If the LUN could not be opened for writing, the error says that nothing was written.
        """
        raise NotImplementedError

    @property
    def state_unopened(self) -> str:
        """The state of a LUN that could not be opened for writing."""
        return self.deadline.disk_state if self.deadline.has_passed else NOTHING_WRITTEN


#: call, checked device-config, xapi, log, deadline, seconds to wait for a lock
OpenLun = Callable[[Any, Any, Any, Any, Any, float], Lun]


class Transport(NamedTuple):
    """A way for LUNs to reach this host, with its SR types."""

    sr_type: str  #: the product's SR type: "relvmoiscsi"
    stock_type: str  #: the SR type that attaches the result: "lvmoiscsi"
    parse_config: Callable[[Mapping[str, str]], CallRequest]  #: raises UsageError
    open_lun: OpenLun  #: raises Listed if a key is missing, or another RelvmoiscsiError
    probe_seconds: float = 12.0  #: limit of a probe; a dead path alone takes 8. The clean-up has its own limit
