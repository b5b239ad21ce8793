# SPDX-License-Identifier: LGPL-2.1-only
"""Never the original: what the pool knows of a SCSIid, before anything is logged in or written."""

from typing import Any, Dict, Mapping

from relvmoiscsi.errors import Refused

#: SRs of our type are those of calls under way, or left over from one that died with xapi; the LUN's lock orders calls
OWN_TYPE = "relvmoiscsi"

Records = Mapping[str, Dict[str, Any]]


def verify_scsi_id_is_free(scsi_id: str, sr_ref: str, pbds: Records, srs: Records) -> None:
    """Raises Refused when an SR other than the temporary one of a call to us is on the LUN with this SCSIid.

    That is the original, or the clone after it was introduced, or an array that gives a clone its original's id.
    Detached SRs count: their data is on the LUN all the same.
    """
    for pbd in pbds.values():
        sr = srs.get(str(pbd.get("SR")), {})
        ours = pbd.get("SR") == sr_ref or sr.get("type") == OWN_TYPE
        if ours or pbd.get("device_config", {}).get("SCSIid") != scsi_id:
            continue
        state = "attached" if pbd.get("currently_attached") else "detached"
        raise Refused(
            "The LUN with the SCSIid {} belongs to the {} SR {} ({!r}). A clone must have a SCSIid of its own; an SR "
            "that is to be resignatured must be forgotten first.".format(
                scsi_id, state, sr.get("uuid", "unknown"), sr.get("name_label", "")
            )
        ).in_state("Nothing was written.")
    for ref, sr in srs.items():
        serials = sr.get("sm_config", {}).get("devserial", "").split(",")
        if ref != sr_ref and "scsi-" + scsi_id in serials and sr.get("PBDs"):
            raise Refused(
                "The SR {} ({!r}) was made on the LUN with the SCSIid {}, and hosts are still connected to it.".format(
                    sr.get("uuid", "unknown"), sr.get("name_label", ""), scsi_id
                )
            ).in_state("Nothing was written.")
