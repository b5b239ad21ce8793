# SPDX-License-Identifier: LGPL-2.1-only
"""What the driver and the host plugin on the master answer about LUNs, read into PoolLuns. Pure.

A list of the driver comes as a failure whose last parameter is XML: error 96 without an IQN, error 107 without a
SCSIid. A probe answers with XML, the plugin with rows of JSON.
"""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from relvmoiscsi import untrusted, untrusted_xml
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.luns import COPIED, DAMAGED, RESIGNATURED, UNREACHABLE, PoolLun
from relvmoiscsi.pool.records import HBA, ProbePortal
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.sr_types import LEFT_OUT

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

IQN_MISSING, SCSI_ID_MISSING = "SR_BACKEND_FAILURE_96", "SR_BACKEND_FAILURE_107"
_ANY_IQN = "*"
_MOST_SHOWN = 60  #: characters of a text that is refused
#: fields of PoolLun, and the plugin's names of these fields
_ROW = {
    **{"sr_uuid": "sr", "of_sr": "old_sr", "new_sr": "new_sr"},
    **{"name": "sr_name_label", "problem": "problem", "changed": "changed_at"},
}


def listed_iqns(failure: PoolFailure) -> List[str]:
    """Return the IQNs of error 96, without duplicates. Raises PoolFailure for any other failure."""
    rows = _rows(failure, IQN_MISSING, "TGT")
    return list(dict.fromkeys(row["TargetIQN"] for row in rows if row.get("TargetIQN", _ANY_IQN) != _ANY_IQN))


def listed(failure: PoolFailure, portal: ProbePortal) -> Tuple[List[PoolLun], int]:
    """Return the LUNs of error 107, behind this portal, and the number of further LUNs that the driver has not read.

    A LUN without a SCSIid is none of these.

    Raises PoolFailure for any other failure, and for a text that is no SCSIid.
    """
    found = []
    for row in _rows(failure, SCSI_ID_MISSING, "LUN"):
        scsi_id, size, number = (row.get(name, "") for name in ("SCSIid", "size", "LUNid"))
        verify_scsi_id(scsi_id)
        if scsi_id:
            found.append(PoolLun(scsi_id, "", portal, _number(size) or 0, number=_number(number)))
    return found, _number(_root(failure.description[-1]).get(LEFT_OUT, "")) or 0


def verify_scsi_id(text: str) -> None:
    """Raises PoolFailure for a listed text that is no SCSIid; "" stands for a LUN without a SCSIid."""
    if text and not is_scsi_id(text):
        raise PoolFailure(f"The driver lists the SCSIid {text[:_MOST_SHOWN]!r}, which is none.").advising(
            "Install the same version of relvmoiscsi on all hosts."
        )


def verify_uuid(text: str) -> None:
    """Raises PoolFailure for the UUID of an SR on a LUN that is none; "" stands for a LUN without a UUID."""
    if text and not is_uuid(text):
        raise PoolFailure(f"The answer about a LUN has the UUID {text[:_MOST_SHOWN]!r}, which is none.").advising(
            "Check the LUN."
        )


def reported(lun: PoolLun, document: str) -> PoolLun:
    """Return the LUN with the answer of its successful probe. Raises PoolFailure for another text."""
    rows = _parsed(document, "SR")
    if len(rows) != 1 or "state" not in rows[0]:
        raise PoolFailure(
            "The probe's answer has no state of the LUN: the driver on the master has another version."
        ).advising("Install the same version.")
    row = rows[0]
    for name in ("UUID", "old_uuid", "new_uuid"):
        verify_uuid(row.get(name, ""))
    vms: Optional[Tuple[str, ...]] = None
    try:  # a guest may have written the names: unreadable names hide no LUN
        vms = tuple(untrusted.texts_of(untrusted.json_of(row.get("vms", "[]"), saved_vms.MOST_NAMES_BYTES)))
    except ValueError:
        pass
    return lun._replace(
        kind=_state(row["state"], row.get("copied") == "true"),
        sr_uuid=row.get("UUID", ""),
        of_sr=row.get("old_uuid", ""),
        new_sr=row.get("new_uuid", ""),
        name=row.get("name_label", ""),
        problem=row.get("problem", ""),
        one_vdi=row.get("one_vdi", ""),
        metadata_of=tuple(row.get("metadata_of", "").split()),
        old_vdis=tuple(filter(is_uuid, row.get("old_vdis", "").split())),
        vms=vms if row["state"] != DAMAGED else None,
        vms_saved=row.get("vms_saved", ""),
        changed=row.get("changed", ""),
    )


def _state(state: str, is_copied: bool) -> str:
    """Return the state of a LUN, which is the array's copy of another LUN with the same identities if `is_copied`."""
    return COPIED if is_copied and state == RESIGNATURED else state


def _rows(failure: PoolFailure, code: str, tag: str) -> List[Dict[str, str]]:
    if failure.code != code:
        raise failure
    return _parsed(failure.description[-1], tag)


def _parsed(document: str, tag: str) -> List[Dict[str, str]]:
    """Return the children of each element `tag`, as text by name. Raises PoolFailure."""
    return [{child.tag: (child.text or "").strip() for child in item} for item in _root(document).iter(tag)]


def _root(document: str) -> "Element":
    try:
        return untrusted_xml.xml_of(document.strip())
    except ValueError as error:
        raise PoolFailure(f"The driver's list cannot be read: {error}.") from error


def _number(text: str) -> Optional[int]:
    return untrusted.number(text) if untrusted.is_number(text) else None


def of_row(row: Dict[str, Any]) -> PoolLun:
    """Return the LUN of a row of the plugin. Raises PoolFailure, and the errors of a row that cannot be read."""
    lun = PoolLun(untrusted.text_of(row["scsi_id"]), "", HBA, untrusted.size_of(row.get("size_bytes") or 0))
    verify_scsi_id(lun.scsi_id)
    texts: Dict[str, Any] = {name: untrusted.text_of(row.get(key) or "") for name, key in _ROW.items()}
    for name in ("sr_uuid", "of_sr", "new_sr"):
        verify_uuid(texts[name])
    state = _state(untrusted.text_of(row["state"] or UNREACHABLE), bool(row.get("copied")))
    return lun._replace(kind=state, metadata_of=tuple(untrusted.texts_of(row.get("metadata_of") or [])), **texts)
