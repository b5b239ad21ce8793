# SPDX-License-Identifier: LGPL-2.1-only
"""The device-config of a call: checked, with lvmohba's keys and their meaning, and with further keys.

    SCSIid      the LUN
    device      without SCSIid: a device node of the LUN on this host, below /dev
    type        the start of the name of the adapters' driver; "any"
    resign      must be true: an adapter sees all LUNs that the array maps, originals as well
    lun         a scan looks for this LUN number only; above 255, the number of either addressing method
    targetWWPN  a scan looks behind these ports of the array only, with commas between; with or without colons

All other keys are ignored: xapi and orchestrators add keys of their own.
"""

import re
from typing import Mapping

from relvmoiscsi import untrusted
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver.transport import CallRequest, scsi_id_in, truth_in

ANY_DRIVER = "any"
_DRIVER = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")  #: lvmohba takes a regular expression, which may run for ever
_LUN = re.compile(r"[0-9]{1,9}\Z")
_WWPN = re.compile(r"[0-9a-f]{16}\Z")


class HbaConfig(CallRequest):
    """The device-config of a call."""

    def __init__(self, device_config: Mapping[str, str]) -> None:
        """Check a device-config. Raises UsageError: ConfigSCSIid (107) for an invalid SCSIid, else InvalidArg."""
        scsi_id = scsi_id_in(device_config)
        self.device = device_config.get("device", "").strip()  #: "" if the key is missing
        if self.device and not untrusted.is_below(self.device, "/dev/"):
            text = f"{self.device!r} is no path below /dev (device-config:device)."
            raise UsageError(text, "InvalidArg").advising("Give such a path without `..`, or the SCSIid.")
        self.driver = device_config.get("type", "").strip() or ANY_DRIVER
        if not _DRIVER.match(self.driver):
            raise UsageError(
                f"{device_config['type']!r} is no start of a driver's name, such as qla2xxx (device-config:type).",
                "InvalidArg",
            )
        self.is_meant = truth_in(device_config, "resign")
        lun = device_config.get("lun", "").strip()
        if lun and not _LUN.match(lun):
            raise UsageError(f"{device_config['lun']!r} is no LUN number (device-config:lun).", "InvalidArg")
        self.lun = int(lun) if lun else None
        wwpns = []
        for part in filter(None, (part.strip().lower() for part in device_config.get("targetWWPN", "").split(","))):
            name = (part[2:] if part.startswith("0x") else part).replace(":", "").replace("-", "")
            if not _WWPN.match(name):
                raise UsageError(f"{part!r} is no WWPN of a port (device-config:targetWWPN).", "InvalidArg")
            wwpns.append(name)
        self.wwpns = tuple(dict.fromkeys(wwpns))  #: "500a098186c37a1d"
        super().__init__(scsi_id, device_config)
