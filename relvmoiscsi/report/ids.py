# SPDX-License-Identifier: LGPL-2.1-only
"""The old-to-new map of a run, and the result of a run with its map."""

from typing import Any, Dict, List, Optional

from relvmoiscsi.engine import Lun, Result, Volume, notes
from relvmoiscsi.formats.identity import IdMap, dashed
from relvmoiscsi.wording import printable


def map_facts(lun: Optional[Lun], ids: IdMap) -> Dict[str, Any]:
    """Return the old-to-new map, as `--map` reads it. `lun` is the LUN before or after the run."""
    facts: Dict[str, Any] = {"sr": {"old": ids.sr, "new": ids.new_sr}}
    if lun is None:
        return {**facts, "uuids": ids.uuids, "lvm_ids": {dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}}
    lun = lun.settled()
    to_new = ids if lun.sr_uuid == ids.sr else None
    to_old = None if to_new else ids.reversed()
    facts["vg_id"] = _pair(lun.vg.id, to_new, to_old)
    facts["pv_id"] = _pair(lun.label.pv_id, to_new, to_old)
    facts["vdis"], records = [], lun.records()
    for uuid, volume in lun.disks().items():
        label = records[uuid].name_label if uuid in records else ""
        pair = _uuid_pair(uuid, to_new, to_old)
        facts["vdis"].append({**pair, "name_label": label, "lv": _name_pair(volume, to_new, to_old)})
    facts["lvs"] = [
        {"name": _name_pair(volume, to_new, to_old), "id": _pair(volume.lv.id, to_new, to_old)}
        for volume in lun.volumes
    ]
    told = {ids.sr, *(vdi["old"] for vdi in facts["vdis"])}
    facts["other_uuids"] = {old: new for old, new in ids.uuids.items() if old not in told}
    return facts


def _pair(lvm_id: str, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Dict[str, str]:
    """Return old and new id. An unknown id is equal in both: the volume may have been made after the run."""
    old = to_old.lvm_ids.get(lvm_id, lvm_id) if to_old else lvm_id
    new = to_new.lvm_ids.get(lvm_id, lvm_id) if to_new else lvm_id
    return {"old": dashed(old), "new": dashed(new)}


def _uuid_pair(uuid: str, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Dict[str, str]:
    old = to_old.uuids.get(uuid, uuid) if to_old else uuid
    new = to_new.uuids.get(uuid, uuid) if to_new else uuid
    return {"old": old, "new": new}


def _name_pair(volume: Volume, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Dict[str, str]:
    if volume.name.uuid is None:
        return {"old": volume.name.text, "new": volume.name.text}
    pair = _uuid_pair(volume.name.uuid, to_new, to_old)
    return {which: volume.name.text.replace(volume.name.uuid, uuid) for which, uuid in pair.items()}


def result_facts(name: str, result: Result) -> Dict[str, Any]:
    """Return the facts for `resignature --json`, `recover --json` and `undo --json`."""
    facts: Dict[str, Any] = {
        "state": result.state,
        "device": name,
        "scsi_id": result.scsi_id,
        "already_done": result.already_done,
        "writes": result.writes,
        "bytes_written": result.bytes_written,
        "flushes": result.flushes,
    }
    if result.ids is not None:
        facts.update(map_facts(result.lun, result.ids))
    elif result.lun is not None:
        facts["sr"] = {"old": None, "new": result.lun.sr_uuid}
    if result.lun is not None:
        facts["notes"] = notes(result.lun)
    return facts


def map_text(lun: Optional[Lun], ids: IdMap) -> str:
    """Return the map as text: the SR, then its VDIs."""
    facts = map_facts(lun, ids)
    lines = ["  SR   {old}  becomes  {new}".format(**facts["sr"])]
    for vdi in facts.get("vdis", []):
        label = vdi["name_label"]
        lines.append("  VDI  {old}  becomes  {new}".format(**vdi) + ("  " + label if label else ""))
    return "\n".join(printable(line) for line in lines)


def whole_map_lines(lun: Optional[Lun], ids: IdMap) -> List[str]:
    """Return the map with every id, LVM's ids as well, for the log."""
    facts = map_facts(lun, ids)
    rows = [("SR", facts["sr"], "")]
    if lun is None:
        rows += [("UUID", {"old": old, "new": new}, "") for old, new in facts["uuids"].items() if old != ids.sr]
        rows += [("LVM", {"old": old, "new": new}, "") for old, new in facts["lvm_ids"].items()]
    else:
        rows += [("VG", facts["vg_id"], ""), ("PV", facts["pv_id"], "")]
        rows += [("VDI", vdi, vdi["name_label"]) for vdi in facts["vdis"]]
        rows += [("LV", lv["id"], lv["name"]["new"]) for lv in facts["lvs"]]
        rows += [("UUID", {"old": old, "new": new}, "") for old, new in facts["other_uuids"].items()]
    width = max(len(what) for what, _, _ in rows)
    return [
        printable(f"  {what:<{width}}  {pair['old']}  becomes  {pair['new']}" + (f"  {label}" if label else ""))
        for what, pair, label in rows
    ]
