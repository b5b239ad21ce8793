# SPDX-License-Identifier: LGPL-2.1-only
"""The loss by a reduction of a LUN to one VDI, and by VDIs that are left behind."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from relvmoiscsi.engine import Lun, Prepared
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.report.lun import IRREVERSIBLE, problems_by_lv
from relvmoiscsi.wording import printable

#: for VDIs that stay as they are; the other volumes only leave LVM's list
_UNTIL_LVM_CHANGES = "`relvmoiscsi undo` brings these back until LVM next changes the volume group."


def dropped_facts(lun: Lun, defects: Sequence[RelvmoiscsiError] = ()) -> List[Dict[str, Any]]:
    """Return the dropped volumes, with their old names. The request drops volumes, and so does unfinished work of SM.

    `defects` are the defects of the LUN with these volumes.
    """
    stay, problems = {volume.lv.id for volume in lun.settled().volumes}, problems_by_lv(lun, defects)
    found: List[Dict[str, Any]] = []
    for volume in lun.volumes:
        if volume.lv.id in stay:
            continue
        record = lun.records().get(str(volume.name.uuid)) if volume.is_disk else None
        found.append(
            {
                "lv": volume.name.text,
                "kind": volume.name.kind,
                "uuid": volume.name.uuid,
                "is_vdi": volume.is_disk,
                "name_label": record.name_label if record else "",
                "hidden": volume.is_disk and volume.hidden,
                "is_a_snapshot": bool(record and record.is_a_snapshot),
                "problem": problems.get(volume.lv.name),
            }
        )
    return found


class Loss(NamedTuple):
    """The loss by a run, as text."""

    lines: List[str]  #: one line per dropped volume, and whether an undo is possible
    question: str  #: "" where no VDI is dropped


def loss_of(prepared: Prepared) -> Optional[Loss]:
    """Return the loss by one VDI, or by VDIs that are left behind; None where the request drops nothing.

    The counts agree with `dropped_facts`, which --json prints.
    """
    lun = prepared.lun
    if prepared.cost is None and not (lun.work is not None and lun.work.left_behind):
        return None
    dropped = dropped_facts(lun, prepared.defects)
    lines = []
    for volume in dropped:
        text = f"{volume['lv']}  [no VDI]"
        if volume["is_vdi"]:
            shown = ("hidden", "hidden"), ("snapshot", "is_a_snapshot"), ("has a defect", "problem")
            notes = [note for note, key in shown if volume[key]]
            text = f"{volume['uuid']}  {volume['name_label']}" + (" [{}]".format(", ".join(notes)) if notes else "")
        lines.append("  goes   " + printable(text.rstrip()))
    retained = f"{len(lun.settled().disks())} more"
    if prepared.cost is not None:
        (uuid,) = lun.settled().disks()
        record = lun.records().get(uuid)
        label = printable(record.name_label) if record else ""
        lines.insert(0, f"  stays  {uuid}  {label}".rstrip())
        retained = f"'{label}' ({uuid})"
    count = sum(volume["is_vdi"] for volume in dropped)
    if not count:
        return Loss(lines, "")
    lines.append(IRREVERSIBLE if prepared.plan.run.rebuilt is not None else _UNTIL_LVM_CHANGES)
    noun = "1 VDI" if count == 1 else f"{count} VDIs"
    return Loss(lines, f"Destroy {noun} and keep {retained}?")
