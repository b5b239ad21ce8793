# SPDX-License-Identifier: LGPL-2.1-only
"""A transport gives a call the bytes of a LUN, and has an SR type of its own.

All transports share the answers to xapi, the checks of the pool's records, and the engine. A transport is a package in
this directory. The package has a `Transport`, the device-config keys of the stock SR type, the lists that the stock
driver prints on stderr, and a `Lun`. The iscsi `Lun` uses a session of this process; the hba `Lun` uses disks that a
scan adds to this host.
"""

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, TypeVar

from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.host.settings import VDIS
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.sr_driver.protocol import Call

if TYPE_CHECKING:  # these imports are slow, and a call with a refused device-config does not need them
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.host.sm_log import SmLogHandler
    from relvmoiscsi.host.xapi.api import Xapi
    from relvmoiscsi.lun.guard import VerifyUnused
    from relvmoiscsi.lun.opened import OpenLun

Found = TypeVar("Found")


class MissingKey(UsageError):
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


class CallLun:
    """The LUN that a call names."""

    def __init__(self, scsi_id: str, deadline: "Deadline", lock_seconds: float = math.inf) -> None:
        """`lock_seconds` limits the wait for a lock, together with the deadline."""
        self.scsi_id, self.deadline, self.lock_seconds = scsi_id, deadline, lock_seconds

    def read(self, work: "Callable[[OpenLun], Found]") -> Found:
        """Open the LUN for reading, run `work` on it and return its result, which is a value of JSON.

        Afterwards the host is as before. Raises RelvmoiscsiError: Busy; NotFound; errors of `work`.
        """
        raise NotImplementedError

    def write(self, work: "Callable[[OpenLun], Found]", verify: "VerifyUnused") -> Found:
        """Open the LUN for writing, run `work` on it and return its result, which is a value of JSON.

        No other relvmoiscsi of this host works on the LUN. `verify` asks under the locks who uses the LUN.

        The first write of `work` is refused after the deadline. Until the first write, a SIGTERM ends the call; then
        the work goes on to its end. Afterwards the host is as before. A LUN with new identities may stay on the host.

        Raises as `read`, and Refused if a program uses the LUN. If the LUN could not be opened, the error says that
        nothing was written.
        """
        raise NotImplementedError


class Transport(NamedTuple):
    """A way for LUNs to reach this host, with its SR types."""

    sr_type: str  #: the product's SR type: "relvmoiscsi"
    stock_type: str  #: the SR type that attaches the result: "lvmoiscsi"
    parse_config: Callable[[Mapping[str, str]], CallRequest]  #: raises UsageError
    #: takes the seconds to wait for a lock as its last argument
    #: raises Listed if a key is missing, or another RelvmoiscsiError
    open_lun: "Callable[[Call, Any, Xapi, SmLogHandler, Deadline, float], CallLun]"
    probe_seconds: float = 12.0  #: limit of a probe; a dead path alone takes 8. The clean-up has its own limit
