# SPDX-License-Identifier: LGPL-2.1-only
"""A transport gives a call the bytes of a LUN, and has an SR type of its own.

All transports share the answers to xapi, the checks of the pool's records, and the engine. A transport is a package in
this directory. The package has a `Transport`, the device-config keys of the stock SR type, the lists that the stock
driver prints on stderr, and a `CallLun` (lun/call.py). That of iscsi uses a session of this process; that of hba uses
disks that a scan adds to this host.
"""

from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_types import SrType
from relvmoiscsi.wording import VDIS

if TYPE_CHECKING:  # these imports are slow, and a call with a refused device-config does not need them
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.host.sm_log import SmLogHandler
    from relvmoiscsi.host.xapi.api import Xapi
    from relvmoiscsi.lun.call import CallLun


class MissingKey(UsageError):
    """A key is missing. `xml` lists the possible values."""

    def __init__(self, message: str, sm_key: str, xml: str) -> None:
        super().__init__(message, sm_key)
        self.xml = xml


class CallRequest:
    """The device-config of a call: the keys of all transports. A subclass has further keys."""

    is_meant = True  #: Did the caller say that the LUN is a clone? Always true for a transport that does not ask

    def __init__(self, scsi_id: str, device_config: Mapping[str, str]) -> None:
        """Raises UsageError: InvalidArg."""
        self.scsi_id = scsi_id  #: "" if the key is missing
        self.is_master = truth_in(device_config, "SRmaster", default=True)
        vdis = device_config.get("vdis", "").strip()
        if vdis and vdis not in VDIS:
            raise UsageError(f"{vdis!r} is neither `one` nor `all` (device-config:vdis).", "InvalidArg")
        self.vdis = vdis or None  #: "one" or "all"; None: the setting of the host
        uuids = {"vdi": "a VDI", "clone-of": "an SR"}
        given = {key: device_config.get(key, "").strip().lower() for key in uuids}
        if any(given.values()):
            from relvmoiscsi.formats.identity import is_uuid  # noqa: PLC0415 - few calls have one of these keys

            for key, text in given.items():
                if text and not is_uuid(text):
                    raise UsageError(f"{text!r} is no UUID of {uuids[key]} (device-config:{key}).", "InvalidArg")
        self.vdi = given["vdi"] or None  #: UUID of the VDI that stays, if several VDIs are live
        #: UUID of the SR of which the LUN is a clone, attached or not; "" if the key is missing
        self.clone_of = given["clone-of"]
        #: no VDI keeps the database of a pool
        self.clear_databases = truth_in(device_config, "clear-metadata-vdi")


def truth_in(device_config: Mapping[str, str], key: str, default: bool = False) -> bool:
    """Return the truth value of a key; `default` if the key is missing. Raises UsageError (InvalidArg)."""
    text = device_config.get(key, "").strip()
    try:
        return untrusted.truth(text) if text else default
    except ValueError:
        raise UsageError(f"{text!r} is neither `true` nor `false` (device-config:{key}).", "InvalidArg") from None


def scsi_id_in(device_config: Mapping[str, str]) -> str:
    """Return the SCSIid in udev's form; "" if the key is missing. Raises UsageError (ConfigSCSIid)."""
    text = device_config.get("SCSIid", "").strip()
    try:
        return typed_scsi_id(text) if text else ""
    except UsageError as problem:
        problem.message += " The key is device-config:SCSIid."
        raise


def record_of_host(call: Call, xapi: "Xapi") -> Dict[str, Any]:
    """Return xapi's record of the host that the call runs on. Raises XapiFailure."""
    try:
        found: Dict[str, Any] = xapi.call("host.get_record", call.host_ref)
        return found
    except RelvmoiscsiError as failure:
        failure.sm_key = "APILocalhost"
        raise


class Transport(NamedTuple):
    """A way for LUNs to reach this host, with its SR type."""

    sr_type: SrType
    parse_config: Callable[[Mapping[str, str]], CallRequest]  #: raises UsageError
    #: takes the seconds to wait for a lock as its last argument
    #: raises MissingKey if a key is missing, or another RelvmoiscsiError
    open_lun: "Callable[[Call, Any, Xapi, SmLogHandler, Deadline, float], CallLun]"
    probe_seconds: float = 12.0  #: limit of a probe; a dead path alone takes 8. The clean-up has its own limit
