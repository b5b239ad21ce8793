# SPDX-License-Identifier: LGPL-2.1-only
"""A run: the old-to-new map and the result, the volumes that the run drops, the plan write by write."""

from itertools import groupby
from typing import Any, Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.device import Chunk
from relvmoiscsi.engine import (
    EMPTY_UNIT,
    FULL_UNIT,
    NEW_IMAGE,
    Lun,
    Plan,
    Planned,
    Prepared,
    Result,
    Volume,
    notes,
    steps,
)
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.formats.identity import IdMap, dashed
from relvmoiscsi.report.lun_report import IRREVERSIBLE, problems_by_lv
from relvmoiscsi.wording import printable, table

#: for VDIs that stay as they are; the other volumes only leave LVM's list
_UNTIL_LVM_CHANGES = "`relvmoiscsi undo` brings these back until LVM next changes the volume group."
#: the JSON omits longer pieces of a new image, because their hexadecimal would take megabytes
_MOST_IMAGE_BYTES = 64 << 10
#: a longer series of equal writes becomes one line of the text
_MOST_ALIKE = 4

# --- the map and the result


def map_facts(lun: Optional[Lun], ids: IdMap) -> Dict[str, Any]:
    """Return the old-to-new map, as `--map` reads it. `lun` is the LUN before or after the run."""
    facts: Dict[str, Any] = {"old_sr": ids.sr, "new_sr": ids.new_sr}
    if lun is None:
        return {**facts, "uuids": ids.uuids, "lvm_ids": {dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}}
    lun = lun.settled()
    to_new = ids if lun.sr_uuid == ids.sr else None
    to_old = None if to_new else ids.reversed()
    facts["old_vg_id"], facts["new_vg_id"] = _lvm_ids(lun.vg.id, to_new, to_old)
    facts["old_pv_id"], facts["new_pv_id"] = _lvm_ids(lun.label.pv_id, to_new, to_old)
    facts["vdi_pairs"], records = [], lun.records()
    for uuid, volume in lun.disks().items():
        label = records[uuid].name_label if uuid in records else ""
        (old, new), (old_lv, new_lv) = _uuids(uuid, to_new, to_old), _names(volume, to_new, to_old)
        pair = {"old_vdi": old, "new_vdi": new, "vdi_name": label, "old_lv": old_lv, "new_lv": new_lv}
        facts["vdi_pairs"].append(pair)
    facts["lv_pairs"] = []
    for volume in lun.volumes:
        (old, new), (old_id, new_id) = _names(volume, to_new, to_old), _lvm_ids(volume.lv.id, to_new, to_old)
        facts["lv_pairs"].append({"old_lv": old, "new_lv": new, "old_lv_id": old_id, "new_lv_id": new_id})
    told = {ids.sr, *(vdi["old_vdi"] for vdi in facts["vdi_pairs"])}
    facts["other_uuids"] = {old: new for old, new in ids.uuids.items() if old not in told}
    return facts


def _lvm_ids(lvm_id: str, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Tuple[str, str]:
    """Return old and new id. An unknown id is equal in both: the volume may have been made after the run."""
    old = to_old.lvm_ids.get(lvm_id, lvm_id) if to_old else lvm_id
    new = to_new.lvm_ids.get(lvm_id, lvm_id) if to_new else lvm_id
    return dashed(old), dashed(new)


def _uuids(uuid: str, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Tuple[str, str]:
    old = to_old.uuids.get(uuid, uuid) if to_old else uuid
    new = to_new.uuids.get(uuid, uuid) if to_new else uuid
    return old, new


def _names(volume: Volume, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Tuple[str, str]:
    text, uuid = volume.name.text, volume.name.uuid
    if uuid is None:
        return text, text
    old, new = _uuids(uuid, to_new, to_old)
    return text.replace(uuid, old), text.replace(uuid, new)


def result_facts(name: str, result: Result) -> Dict[str, Any]:
    """Return the facts for `resignature --json`, `recover --json` and `undo --json`."""
    facts: Dict[str, Any] = {
        "state": result.state,
        "device": name,
        "run_scsi_id": result.scsi_id,
        "already_done": result.already_done,
        "writes": result.writes,
        "bytes_written": result.bytes_written,
        "flushes": result.flushes,
    }
    if result.ids is not None:
        facts.update(map_facts(result.lun, result.ids))
    elif result.lun is not None:
        facts.update(old_sr=None, new_sr=result.lun.sr_uuid)
    if result.lun is not None:
        facts["notes"] = notes(result.lun)
    return facts


def map_text(lun: Optional[Lun], ids: IdMap, is_plan: bool = False) -> str:
    """Return the map of a run, or of its plan, as text: the SR, then its VDIs."""
    facts, verb = map_facts(lun, ids), "would become" if is_plan else "became"
    lines = ["  SR   {old_sr}  {verb}  {new_sr}".format(verb=verb, **facts)]
    for vdi in facts.get("vdi_pairs", []):
        label = vdi["vdi_name"]
        lines.append("  VDI  {old_vdi}  {verb}  {new_vdi}".format(verb=verb, **vdi) + (f"  {label!r}" if label else ""))
    return "\n".join(printable(line) for line in lines)


def whole_map_lines(lun: Optional[Lun], ids: IdMap, of_deleted: bool = True, verb: str = "becomes") -> List[str]:
    """Return the map with every id, LVM's ids as well; with `of_deleted`, also UUIDs that no VDI has.

    `verb` is for the log, which also has the map of a run that was rolled back.
    """
    facts = map_facts(lun, ids)
    rows = [("SR", facts["old_sr"], facts["new_sr"], "")]
    if lun is None:
        rows += [("UUID", old, new, "") for old, new in facts["uuids"].items() if old != ids.sr]
        rows += [("LVM", old, new, "") for old, new in facts["lvm_ids"].items()]
    else:
        rows += [("VG", facts["old_vg_id"], facts["new_vg_id"], ""), ("PV", facts["old_pv_id"], facts["new_pv_id"], "")]
        for vdi in facts["vdi_pairs"]:
            rows.append(("VDI", vdi["old_vdi"], vdi["new_vdi"], repr(vdi["vdi_name"]) if vdi["vdi_name"] else ""))
        rows += [("LV", lv["old_lv_id"], lv["new_lv_id"], lv["new_lv"]) for lv in facts["lv_pairs"]]
        others = facts["other_uuids"].items() if of_deleted else ()
        rows += [("UUID", old, new, "[no VDI]") for old, new in others]
    width = max(len(what) for what, *_ in rows)
    return [
        printable(f"  {what:<{width}}  {old}  {verb}  {new}" + (f"  {label}" if label else ""))
        for what, old, new, label in rows
    ]


# --- the loss: by a reduction of the LUN to one VDI, and by VDIs that are left behind


def dropped_facts(lun: Lun, defects: Sequence[RelvmoiscsiError] = ()) -> List[Dict[str, Any]]:
    """Return the dropped volumes, with their old names. The request drops volumes, and so does unfinished work of SM.

    `defects` are the defects of the LUN with these volumes.
    """
    stay, problems = {volume.lv.id for volume in lun.settled().volumes}, problems_by_lv(lun, defects)
    rows: List[Dict[str, Any]] = []
    records = lun.records()
    for volume in lun.volumes:
        if volume.lv.id in stay:
            continue
        record = records.get(str(volume.name.uuid)) if volume.is_disk else None
        rows.append(
            {
                "lv": volume.name.text,
                "volume_kind": volume.name.kind,
                "uuid_in_name": volume.name.uuid,
                "is_vdi": volume.is_disk,
                "vdi_name": record.name_label if record else "",
                "hidden": volume.is_disk and volume.hidden,
                "is_a_snapshot": bool(record and record.is_a_snapshot),
                "problem": problems.get(volume.lv.name),
            }
        )
    return rows


def loses(prepared: Prepared) -> bool:
    """Does the run drop volumes: for one VDI, or VDIs that are left behind?"""
    work = prepared.lun.work
    return prepared.cost is not None or (work is not None and bool(work.left_behind))


def loss_of(prepared: Prepared) -> Tuple[List[str], str]:
    """Return a line for each dropped volume and for the undo, and a question; no lines where the run `loses` nothing.

    The question is "" where no VDI is dropped. The counts agree with `dropped_facts`, which --json prints.
    """
    lun = prepared.lun
    if not loses(prepared):
        return [], ""
    dropped = dropped_facts(lun, prepared.defects)
    lines = []
    for volume in dropped:
        text = f"{volume['lv']}  [no VDI]"
        if volume["is_vdi"]:
            shown = ("hidden", "hidden"), ("snapshot", "is_a_snapshot"), ("has a defect", "problem")
            remarks = [note for note, key in shown if volume[key]]
            text = f"{volume['uuid_in_name']}  {volume['vdi_name']!r}" + (
                " [{}]".format(", ".join(remarks)) if remarks else ""
            )
        lines.append("  deletes  " + printable(text.rstrip()))
    retained = f"{len(lun.settled().disks())} more"
    if prepared.cost is not None:
        (uuid,) = lun.settled().disks()
        record = lun.records().get(uuid)
        label = printable(repr(record.name_label)) if record else "''"
        lines.insert(0, f"  retains  {uuid}  {label}".rstrip())
        retained = f"{label} ({uuid})"
    count = sum(volume["is_vdi"] for volume in dropped)
    if not count:
        return lines, ""
    lines.append(IRREVERSIBLE if prepared.plan.run.merged is not None else _UNTIL_LVM_CHANGES)
    noun = "1 VDI" if count == 1 else f"{count} VDIs"
    return lines, f"Destroy {noun} and keep {retained}?"


# --- the plan


def plan_facts(plan: Plan) -> List[Dict[str, Any]]:
    """Return every write of a plan, in order; bytes as hexadecimal, `old_bytes` null for a write to free space.

    Three exceptions occur only with one VDI. A large piece of the new image has `new_bytes` null. The bitmaps of a new
    image form three items with `device_offsets` instead of `device_offset`: all full bitmaps, all empty bitmaps, and
    all others with `new_bytes` null. The copied data is one item with only its length.
    """
    rows: List[Dict[str, Any]] = []
    for step in steps.ALL_PARTS:
        for what, group in groupby(plan.each_write(step), _bitmap_of):
            if what:
                alike: Dict[Optional[bytes], List[int]] = {}  #: offsets by bytes; None for all other bitmaps
                for planned in group:
                    known = planned.new if planned.new in (FULL_UNIT, EMPTY_UNIT) else None
                    alike.setdefault(known, []).append(planned.offset)
                for same, offsets in alike.items():
                    row = _write_facts(None, len(EMPTY_UNIT), what)
                    row["new_bytes"] = same.hex() if same is not None else None
                    rows.append({**row, "device_offsets": offsets})
                continue
            for planned in group:
                row = _write_facts(planned.offset, len(planned.new), planned.what)
                row["old_bytes"] = planned.old.hex() if planned.old is not None else None
                if planned.what != NEW_IMAGE or len(planned.new) <= _MOST_IMAGE_BYTES:
                    row["new_bytes"] = planned.new.hex()
                rows.append(row)
        if step == steps.JOURNAL and plan.unseen.copied_bytes:
            rows.append(_write_facts(None, plan.unseen.copied_bytes, "guest data, copied"))
    return rows


def _bitmap_of(planned: Planned) -> str:
    """Return what a write is of, where the write can be a bitmap of a new image; "" for any other write."""
    is_of_image = planned.what == NEW_IMAGE or planned.what.startswith("bitmap ")
    return planned.what if is_of_image and planned.old is None and len(planned.new) == len(EMPTY_UNIT) else ""


def _write_facts(offset: Optional[int], length: int, structure: str) -> Dict[str, Any]:
    return {"device_offset": offset, "length": length, "structure": structure, "old_bytes": None, "new_bytes": None}


def chunks_facts(chunks: Sequence[Chunk]) -> List[Dict[str, Any]]:
    """Return the writes of a dry run on an earlier run, as `plan_facts` does; what they replace is in the journal."""
    rows: List[Dict[str, Any]] = []
    for data, group in groupby(chunks, lambda chunk: chunk.data):
        offsets = [chunk.offset for chunk in group]
        row = {**_write_facts(offsets[0], len(data), "as the journal has it"), "new_bytes": data.hex()}
        if data in (FULL_UNIT, EMPTY_UNIT):
            rows.append({**row, "device_offset": None, "device_offsets": offsets})
        else:
            rows += [{**row, "device_offset": offset} for offset in offsets]
    return rows


def plan_text(plan: Plan) -> str:
    """Return the plan as text, one write per line. A series of equal writes is one line, and so is the copied data."""
    rows = [["offset", "bytes", "what"]]
    for step in steps.ALL_PARTS:
        for what, planned in groupby(plan.each_write(step), lambda write: write.what):
            places = [(write.offset, len(write.new)) for write in planned]
            if len(places) <= _MOST_ALIKE:
                rows += [[str(offset), str(length), what] for offset, length in places]
            else:
                total = sum(length for _offset, length in places)
                rows.append(["", str(total), f"{what}, {len(places)} times"])
        if step == steps.JOURNAL and plan.unseen.copied_bytes:
            rows.append(["", str(plan.unseen.copied_bytes), "guest data, copied"])
    return "\n".join(table(rows, right=(0, 1), indent="  "))
