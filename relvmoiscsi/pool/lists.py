# SPDX-License-Identifier: LGPL-2.1-only
"""XML with which a driver answers SR.probe: the targets of a portal, the LUNs of a target, the content of a LUN. Pure.

A list comes as a failure whose last parameter is the XML: error 96 without an IQN, error 107 without a SCSIid.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from relvmoiscsi import untrusted, untrusted_xml
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.scsi_id_text import is_scsi_id

IQN_MISSING, SCSI_ID_MISSING = "SR_BACKEND_FAILURE_96", "SR_BACKEND_FAILURE_107"
_ANY_IQN = "*"
_MOST_SHOWN = 60  #: characters of a text that is refused


class Seen(NamedTuple):
    """A LUN in a list."""

    scsi_id: str
    number: Optional[int]  #: the kernel's number of the LUN; None where the list has no number
    size_bytes: int
    vendor: str


class OnLun(NamedTuple):
    """What a probe reports about a LUN; a text is "" where the probe reports nothing."""

    state: str  #: "clean", "resignatured", "unfinished", "empty", "foreign", "damaged", "busy"
    sr_uuid: str = ""  #: the SR on the LUN now
    old_uuid: str = ""  #: the original SR, while the journal is on the LUN
    new_uuid: str = ""  #: the new SR of an unfinished run
    name_label: str = ""
    problem: str = ""
    one_vdi: str = ""  #: "is", "can be", "cannot be"
    is_copied: bool = False  #: the LUN is a copy of a resignatured LUN, and has the identities of that LUN
    metadata_of: Tuple[str, ...] = ()  #: references of the pools that may write their database to a VDI on the LUN
    old_vdis: Tuple[str, ...] = ()  #: the UUIDs of the original VDIs, while the journal is on the LUN
    vms: Tuple[str, ...] = ()  #: names of VMs whose records are on the LUN
    vms_saved: str = ""  #: when the records were saved
    changed: str = ""  #: when LVM last changed the SR, in ISO 8601


def iqns(failure: PoolFailure) -> List[str]:
    """Return the IQNs of error 96, without duplicates. Raises PoolFailure for any other failure."""
    rows = _rows(failure, IQN_MISSING, "TGT")
    return list(dict.fromkeys(row["TargetIQN"] for row in rows if row.get("TargetIQN", _ANY_IQN) != _ANY_IQN))


def seen(failure: PoolFailure) -> List[Seen]:
    """Return the LUNs of error 107. Raises PoolFailure for any other failure, and for a text that is no SCSIid."""
    rows = _rows(failure, SCSI_ID_MISSING, "LUN")
    for row in rows:
        verify_scsi_id(row.get("SCSIid", ""))
    return [
        Seen(row["SCSIid"], _number(row.get("LUNid")), _number(row.get("size")) or 0, row.get("vendor", ""))
        for row in rows
        if row.get("SCSIid")
    ]


def verify_scsi_id(text: str) -> None:
    """Raises PoolFailure for a listed text that is no SCSIid; "" stands for a LUN without a SCSIid."""
    if text and not is_scsi_id(text):
        raise PoolFailure(
            f"The driver lists the SCSIid {text[:_MOST_SHOWN]!r}, which is none. Install the same version of "
            "relvmoiscsi on all hosts."
        )


def verify_uuid(text: str) -> None:
    """Raises PoolFailure for the UUID of an SR on a LUN that is none; "" stands for a LUN without a UUID."""
    if text and not is_uuid(text):
        raise PoolFailure(f"The answer about a LUN has the UUID {text[:_MOST_SHOWN]!r}, which is none. Check the LUN.")


def _uuid(row: Dict[str, str], name: str) -> str:
    """Return the UUID of an SR; "" without a UUID. Raises PoolFailure."""
    verify_uuid(row.get(name, ""))
    return row.get(name, "")


def on_lun(document: str) -> OnLun:
    """Parse the answer of a successful probe of one LUN. Raises PoolFailure for another text."""
    found = [{**row} for row in _parse(document, "SR")]
    if len(found) != 1 or "state" not in found[0]:
        raise PoolFailure(
            "The probe's answer has no state of the LUN: the driver on the master has another version. "
            "Install the same version."
        )
    row = found[0]
    return OnLun(
        state=row["state"],
        sr_uuid=_uuid(row, "UUID"),
        old_uuid=_uuid(row, "old_uuid"),
        new_uuid=_uuid(row, "new_uuid"),
        name_label=row.get("name_label", ""),
        problem=row.get("problem", ""),
        one_vdi=row.get("one_vdi", ""),
        is_copied=row.get("copied") == "true",
        metadata_of=tuple(row.get("metadata_of", "").split()),
        old_vdis=tuple(filter(is_uuid, row.get("old_vdis", "").split())),
        vms=_names(row.get("vms", "[]")),
        vms_saved=row.get("vms_saved", ""),
        changed=row.get("changed", ""),
    )


def _names(text: str) -> Tuple[str, ...]:
    """Parse a JSON list of names. Raises PoolFailure."""
    try:
        return tuple(untrusted.texts_of(untrusted.json_of(text)))
    except ValueError as error:
        raise PoolFailure(f"The driver's list cannot be read: {error}.") from error


def _rows(failure: PoolFailure, code: str, tag: str) -> List[Dict[str, str]]:
    if failure.code != code:
        raise failure
    return _parse(failure.description[-1], tag)


def _parse(document: str, tag: str) -> List[Dict[str, str]]:
    """Return the children of each element `tag`, as text by name. Raises PoolFailure."""
    try:
        root = untrusted_xml.xml_of(document.strip())
    except ValueError as error:
        raise PoolFailure(f"The driver's list cannot be read: {error}.") from error
    return [{child.tag: (child.text or "").strip() for child in item} for item in root.iter(tag)]


def _number(text: Optional[str]) -> Optional[int]:
    return untrusted.number(text) if text is not None and untrusted.is_number(text) else None
