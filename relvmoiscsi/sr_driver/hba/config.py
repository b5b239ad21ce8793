# SPDX-License-Identifier: LGPL-2.1-only
"""The device-config of a call: checked, with lvmohba's keys and their meaning, and with further keys.

    SCSIid      the LUN
    device      without SCSIid: a device node of the LUN on this host
    type        a regular expression for the start of the name of the adapters' driver; "any"
    resign      must be "true": an adapter sees all LUNs that the array maps, originals as well
    lun         a scan looks for this LUN number only; above 255, the number of either addressing method
    targetWWPN  a scan looks behind these ports of the array only, with commas between; with or without colons

All other keys are ignored: xapi and orchestrators add keys of their own.
"""

import re
from typing import Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver.transport import CallRequest, clear_databases_in, clone_of_in, scsi_id_in, vdi_in, vdis_in

ANY_DRIVER = "any"
_LUN = re.compile(r"[0-9]{1,9}\Z")
_WWPN = re.compile(r"[0-9a-f]{16}\Z")


class _Keys(NamedTuple):
    scsi_id: str  #: "" if the key is missing
    device: str  #: "" if the key is missing
    driver: str  #: a regular expression
    is_master: bool
    is_meant: bool
    lun: Optional[int] = None
    wwpns: Tuple[str, ...] = ()  #: "500a098186c37a1d"
    vdis: Optional[str] = None  #: "one" or "all"; None: the setting of the host
    vdi: Optional[str] = None  #: UUID of the VDI that stays, if several VDIs are live
    clone_of: str = ""  #: UUID of the SR of which the LUN is a clone, attached or not; "" if the key is missing
    clear_databases: bool = False  #: no VDI keeps the database of a pool


class HbaConfig(_Keys, CallRequest):
    """The device-config of a call."""

    __slots__ = ()


def parse_config(device_config: Mapping[str, str]) -> HbaConfig:
    """Check a device-config. Raises UsageError: ConfigSCSIid (107) for an invalid SCSIid, else InvalidArg."""
    return HbaConfig(
        scsi_id=scsi_id_in(device_config),
        device=device_config.get("device", "").strip(),
        driver=_driver(device_config.get("type", "")),
        is_master=device_config.get("SRmaster", "") != "false",
        is_meant=device_config.get("resign", "").strip().lower() == "true",
        lun=_lun(device_config.get("lun", "")),
        wwpns=_wwpns(device_config.get("targetWWPN", "")),
        vdis=vdis_in(device_config),
        vdi=vdi_in(device_config),
        clone_of=clone_of_in(device_config),
        clear_databases=clear_databases_in(device_config),
    )


def _driver(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is no regular expression (device-config:type).", "InvalidArg") from error
    return text.strip() or ANY_DRIVER


def _lun(text: str) -> Optional[int]:
    if not text.strip():
        return None
    if not _LUN.match(text.strip()):
        raise UsageError(f"{text!r} is no LUN number (device-config:lun).", "InvalidArg")
    return int(text)


def _wwpns(text: str) -> Tuple[str, ...]:
    found = []
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        name = (part[2:] if part.startswith("0x") else part).replace(":", "").replace("-", "")
        if not _WWPN.match(name):
            raise UsageError(f"{part!r} is no WWPN of a port (device-config:targetWWPN).", "InvalidArg")
        found.append(name)
    return tuple(dict.fromkeys(found))
