# SPDX-License-Identifier: LGPL-2.1-only
"""Cost and loss of a reduction of a LUN to one VDI."""

from typing import Any, Dict, List, Mapping, NamedTuple

from relvmoiscsi.engine import Cost, Lun, Volume
from relvmoiscsi.wording import human_size, printable

#: for a VDI that is made of several images
IRREVERSIBLE = "Irreversible once committed."
#: for a VDI that was one image; the other volumes only leave LVM's list
_UNTIL_LVM_CHANGES = "`relvmoiscsi undo` brings these back until LVM next changes the volume group."


def cost_facts(cost: Cost) -> Dict[str, int]:
    """Return the cost of one VDI for `resignature --vdis one --json`."""
    return dict(cost._asdict())


def dropped_facts(lun: Lun) -> List[Dict[str, Any]]:
    """Return the dropped volumes, with their old names. One VDI drops volumes, and so does unfinished work of SM."""
    stay = {volume.lv.id for volume in lun.settled().volumes}
    return [_dropped(lun, volume) for volume in lun.volumes if volume.lv.id not in stay]


def _dropped(lun: Lun, volume: Volume) -> Dict[str, Any]:
    record = lun.records().get(str(volume.name.uuid)) if volume.is_disk else None
    return {
        "lv": volume.name.text,
        "kind": volume.name.kind,
        "uuid": volume.name.uuid,
        "is_vdi": volume.is_disk,
        "name_label": record.name_label if record else "",
        "hidden": volume.is_disk and volume.hidden,
        "is_a_snapshot": bool(record and record.is_a_snapshot),
    }


def cost_text(cost: Cost) -> str:
    """Return the cost as a sentence."""
    return "One VDI" + cost_words(cost)


def cost_words(cost: Cost) -> str:
    goes = {0: "nothing goes", 1: "1 volume goes"}.get(cost.dropped, f"{cost.dropped} volumes go")
    if cost.images == 1:
        return f", which is one image; {goes}. No data to copy."
    data = (
        f"{cost.copied} of {cost.blocks} blocks are copied, {cost.filled} are completed: {human_size(cost.data_bytes)}."
    )
    return (
        f" from {cost.images} images; {goes}. {data if cost.data_bytes else 'No data to copy.'} "
        f"The run needs {cost.fresh_extents} of {cost.free_extents} free extents."
    )


class OneVdiLoss(NamedTuple):
    """The loss by a reduction to one VDI, as text."""

    lines: List[str]  #: one line per kept or dropped volume, and whether an undo is possible
    question: str  #: "" where no VDI is dropped


def one_vdi_loss(lun: Lun, is_rebuilt: bool) -> OneVdiLoss:
    """Return the loss by a reduction to one VDI; `is_rebuilt`: the VDI becomes a new image.

    The counts agree with `dropped_facts`, which --json prints.
    """
    (kept,) = lun.settled().disks()
    record = lun.records().get(kept)
    label = printable(record.name_label) if record else ""
    dropped = dropped_facts(lun)
    lines = [f"  stays  {kept}  {label}".rstrip()]
    lines += ["  goes   " + _dropped_line(volume) for volume in dropped]
    count = sum(volume["is_vdi"] for volume in dropped)
    if not count:
        return OneVdiLoss(lines, "")
    lines.append(IRREVERSIBLE if is_rebuilt else _UNTIL_LVM_CHANGES)
    noun = "1 VDI" if count == 1 else f"{count} VDIs"
    return OneVdiLoss(lines, f"Destroy {noun} and keep '{label}' ({kept})?")


def _dropped_line(volume: Mapping[str, Any]) -> str:
    if not volume["is_vdi"]:
        return printable(f"{volume['lv']}  [no VDI]")
    notes = [note for note, shown in (("hidden", volume["hidden"]), ("snapshot", volume["is_a_snapshot"])) if shown]
    text = f"{volume['uuid']}  {volume['name_label']}" + (" [{}]".format(", ".join(notes)) if notes else "")
    return printable(text.rstrip())
