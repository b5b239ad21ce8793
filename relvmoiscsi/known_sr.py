# SPDX-License-Identifier: LGPL-2.1-only
"""The SR of the pool whose UUID is on a LUN: is the LUN a copy, or may the LUN be that SR under a new SCSIid? Pure.

A target gives a LUN a new SCSIid after a failover, an array does so after a migration, and an administrator maps a LUN
anew. The PBDs of the SR still name the old SCSIid. So a LUN of another SCSIid is a copy for certain in one case only:

    attached     a live host has the SR attached, and that PBD names another LUN    the LUN is a copy
    unattached   any other PBD, VDI or record of a LUN                              the LUN may be the SR itself
    new          the SR has none of these: a caller is introducing it               as if the pool did not know the SR

The record of a PBD on a dead host stays attached, so such a PBD proves nothing. A PBD without a SCSIid, such as a PBD
with a device path of another host, proves nothing either.
"""

import re
from typing import Any, Callable, Container, List, Mapping, Optional, Sequence, Set

from relvmoiscsi.scsi_id_text import luns_named

Record = Mapping[str, Any]
Records = Mapping[str, Record]
#: returns the SCSIid of the LUN that the device path in a PBD leads to; None where this host cannot tell
Follow = Callable[[Record, str], Optional[str]]

#: texts of SM and udev that name a LUN in a path, or in the records that SM keeps of an SR
_NAMES_LUN = re.compile(r"(?:^|[,/])((?:scsi-|wwn-0x|dm-uuid-mpath-|by-scsid/)[^,/\s]+)")
_KEY = "scsiid"  #: SCSIid (lvmoiscsi, lvmohba), ScsiId (gfs2)
_MOST_TEXT = 1 << 16  #: characters of a key or value that are read: xapi takes any number, SM writes a few hundred


class KnownSr:
    """An SR of the pool, and its PBDs."""

    def __init__(self, ref: str, record: Record, pbds: Sequence[Record]) -> None:
        self.ref, self.record, self.pbds = ref, record, pbds
        #: the SCSIids that SM recorded for the SR when a host attached the SR
        self._made_on = _luns_named(record.get("sm_config", {}), lambda _path: None)

    def is_attached_elsewhere(self, live_hosts: Container[str], follow: Follow = lambda _pbd, _path: None) -> bool:
        """Does a live host have the SR attached on another LUN? The caller has asked for users of its LUN by SCSIid.

        The records of an attached SR name the LUN where its PBD has only a device path.
        """
        attached = [pbd for pbd in self.pbds if pbd.get("currently_attached") and pbd.get("host") in live_hosts]
        return any(luns_of_pbd(pbd, follow) for pbd in attached) or bool(attached and self._made_on)

    def is_new(self) -> bool:
        """Is the SR just introduced? No PBD, no VDI and no record of a LUN says that a host has had it attached."""
        return not self.pbds and not self._made_on and not self.record.get("VDIs")


def find_sr(sr_uuid: str, srs: Records, pbds: Records) -> Optional[KnownSr]:
    """Return the SR of the pool with this UUID; None where the pool has no such SR."""
    for ref, record in srs.items():
        if record.get("uuid") == sr_uuid:
            return KnownSr(ref, record, [pbd for pbd in pbds.values() if pbd.get("SR") == ref])
    return None


def vdis_elsewhere(original: Optional[str], vdis: Records) -> Set[str]:
    """Return the UUIDs of the VDIs that the pool has on another SR than `original` (a reference, None without one).

    None of them is an old VDI of a copy of the original, whatever the LUN of the copy says.
    """
    return {str(vdi["uuid"]) for vdi in vdis.values() if vdi["SR"] != original}


def luns_of_pbd(pbd: Record, follow: Follow = lambda _pbd, _path: None) -> List[str]:
    """Return the SCSIids that the device-config of a PBD names; [] where it names none."""
    return _luns_named(pbd.get("device_config", {}), lambda path: follow(pbd, path))


def _luns_named(config: Mapping[str, Any], look: Callable[[str], Optional[str]]) -> List[str]:
    found: List[str] = []
    for key, value in config.items():
        is_id = key[: len(_KEY) + 1].lower() == _KEY
        for number, part in enumerate([key[:_MOST_TEXT], *str(value)[:_MOST_TEXT].split(",")]):
            text = part.strip()
            words = [text] if is_id and number else _NAMES_LUN.findall(text)
            found += [scsi_id for word in words for scsi_id in luns_named(word.replace("by-scsid/", ""))]
            if text.startswith("/dev/") and not words:
                found.append(look(text) or "")
    return list(dict.fromkeys(filter(None, found)))
