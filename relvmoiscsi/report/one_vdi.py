# SPDX-License-Identifier: LGPL-2.1-only
"""One VDI: what it costs to make a LUN with one VDI, and what is lost."""

from typing import Any, Dict, List, Mapping, NamedTuple

from relvmoiscsi.engine import Cost, Lun, Volume
from relvmoiscsi.wording import human_size, printable

#: of one VDI that is made of several images
IRREVERSIBLE = "Irreversible once committed."
#: of one VDI that was one image, where the others only leave LVM's list
_UNTIL_LVM_CHANGES = "`relvmoiscsi undo` brings these back until LVM next changes the volume group."


def cost_facts(cost: Cost) -> Dict[str, int]:
    """What it takes to make one VDI, as `resignature --vdis one --json` gives it."""
    return dict(cost._asdict())


def dropped_facts(lun: Lun) -> List[Dict[str, Any]]:
    """The volumes that go, for one VDI or with SM's unfinished work, under their old names."""
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
    """The same as a sentence."""
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
    """What making one VDI of several destroys, as people read it."""

    lines: List[str]  #: what stays and what goes, each in a line, and whether that can be undone
    question: str  #: "" where no VDI goes


def one_vdi_loss(lun: Lun, is_rebuilt: bool) -> OneVdiLoss:
    """What goes, where a LUN becomes one with one VDI; `is_rebuilt`: that VDI becomes a new image.

    The counts are those of `dropped_facts`, which --json gives.
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
