# SPDX-License-Identifier: LGPL-2.1-only
"""What people and programs are told: facts as JSON-ready dictionaries, and as text. Pure."""

from itertools import groupby
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.engine import (
    CAN_BE_ONE,
    EMPTY_UNIT,
    FULL_UNIT,
    IS_ONE,
    NEW_IMAGE,
    Comparison,
    Cost,
    Inspection,
    Lun,
    OneVdiOutlook,
    Plan,
    Planned,
    Result,
    Unreadable,
    Volume,
    notes,
    steps,
)
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap, dashed
from relvmoiscsi.formats.saved_vms import SavedVms
from relvmoiscsi.wording import human_size, printable

#: of one VDI that is made of several images
IRREVERSIBLE = "Irreversible once committed."
#: of one VDI that was one image, where the others only leave LVM's list
_UNTIL_LVM_CHANGES = "`relvmoiscsi undo` brings these back until LVM next changes the volume group."


class Branches(NamedTuple):
    """How a tree is drawn."""

    fork: str
    last: str
    line: str
    blank: str


UNICODE_BRANCHES = Branches("├─ ", "└─ ", "│  ", "   ")
ASCII_BRANCHES = Branches("|- ", "`- ", "|  ", "   ")


# --- show


def inspection_facts(name: str, found: Inspection) -> Dict[str, Any]:
    """What `show --json` gives."""
    facts: Dict[str, Any] = {"state": found.state, "device": name}
    if found.problem is not None:
        facts["problem"] = str(found.problem)
    if found.defects:
        facts["defects"] = [defect_facts(defect, found.readable) for defect in found.defects]
    if found.run is not None:
        facts["run"] = {
            "sr": {"old": found.run.ids.sr, "new": found.run.ids.new_sr},
            "scsi_id": found.run.scsi_id,
            "tool": found.run.tool,
        }
    if found.lun is not None:
        facts.update(lun_facts(found.lun))
    elif found.readable is not None:
        facts.update(lun_facts(found.readable, found.defects))
    return facts


def defect_facts(defect: RelvmoiscsiError, lun: Optional[Lun]) -> Dict[str, Any]:
    """What is wrong with a LUN, and where; None for what is not known. `lun` is what can be read of it.

    `offset` counts from the start of `container`, a volume or the device. `lv` and `vdi` are whose structure it is.
    """
    what, where = getattr(defect, "what", None), getattr(defect, "where", None)
    volumes = {volume.lv.name: volume for volume in lun.volumes} if lun is not None else {}
    lv = where.container if where is not None and where.container in volumes else _lv_of(what)
    volume = volumes.get(lv) if lv is not None else None
    return {
        "message": defect.message,
        "structure": what,
        "container": where.container if where is not None else None,
        "offset": where.offset if where is not None else None,
        "lv": lv,
        "vdi": volume.name.uuid if volume is not None and volume.is_disk else None,
    }


def _lv_of(what: Optional[str]) -> Optional[str]:
    """The volume that a structure of LVM's text is called for."""
    prefix = "Logical volume "
    return what[len(prefix) :] if what is not None and what.startswith(prefix) else None


def lun_facts(lun: Lun, defects: Sequence[RelvmoiscsiError] = ()) -> Dict[str, Any]:
    """The SR on a LUN, its VDIs, its volumes. `defects` are those of a damaged one."""
    told = [defect_facts(defect, lun) for defect in reversed(defects)]
    problems = {row["lv"]: row["message"] for row in told}  # the first one of each volume
    return {
        "size_bytes": lun.size_bytes,
        "sr": {
            "uuid": lun.sr_uuid,
            "name_label": lun.mgt.name_label if lun.mgt else "",
            "name_description": lun.mgt.name_description if lun.mgt else "",
        },
        "vg": {
            "name": lun.vg.name,
            "id": dashed(lun.vg.id),
            "seqno": lun.vg.seqno,
            "extent_size_bytes": lun.vg.extent_size,
            "extents": lun.vg.pe_count,
            "extents_allocated": sum(lv.extent_count for lv in lun.vg.lvs),
        },
        "pv": {"id": dashed(lun.label.pv_id), "size_bytes": lun.label.device_size},
        "vdis": [_vdi_facts(lun, volume, problems.get(volume.lv.name)) for volume in lun.disks().values()],
        "lvs": [
            {"name": volume.lv.name, "id": dashed(volume.lv.id), "kind": volume.name.kind, "size_bytes": volume.size}
            for volume in lun.volumes
        ],
        "notes": notes(lun),
    }


def _vdi_facts(lun: Lun, volume: Volume, problem: Optional[str]) -> Dict[str, Any]:
    """`problem` is what is wrong with the volume. What its content would tell is None where that does not read."""
    uuid = str(volume.name.uuid)
    record = lun.records().get(uuid)
    reads = not isinstance(volume.content, Unreadable)
    return {
        "uuid": uuid,
        "name_label": record.name_label if record else "",
        "name_description": record.name_description if record else "",
        "kind": volume.name.kind,
        "virtual_size_bytes": volume.virtual_size if reads else None,
        "size_bytes": volume.size,
        "parent": volume.parent.uuid if volume.parent else None,
        "hidden": volume.hidden if reads else None,
        "read_only": volume.lv.read_only,
        "is_a_snapshot": bool(record and record.is_a_snapshot),
        "snapshot_of": (record.snapshot_of or None) if record else None,
        "cbt": uuid in _cbt_uuids(lun),
        "lv": volume.lv.name,
        "problem": problem,
    }


def _cbt_uuids(lun: Lun) -> List[str]:
    return [str(volume.name.uuid) for volume in lun.volumes if volume.name.kind == naming.CBT_LOG]


def one_vdi_facts(found: OneVdiOutlook) -> Dict[str, Any]:
    """What `show --json` gives as `one_vdi`."""
    cost = cost_facts(found.cost) if found.cost is not None else None
    return {"state": found.state, "cost": cost, "problem": str(found.problem) if found.problem is not None else None}


def saved_vms_facts(found: Optional[SavedVms]) -> Optional[Dict[str, Any]]:
    """What `show --json` gives as `saved_vms`: VMs whose records are on the LUN, with the VDIs of then."""
    if found is None:
        return None
    vms = [
        {**vm._asdict(), "disks": [{"userdevice": disk.userdevice, "vdi": disk.vdi} for disk in vm.disks]}
        for vm in found.vms
    ]
    return {"when": found.when, "sr": found.sr_uuid, "vms": vms}


def inspection_text(
    name: str,
    found: Inspection,
    branches: Branches,
    one: Optional[OneVdiOutlook] = None,
    saved: Optional[SavedVms] = None,
    who: Sequence[str] = (),
) -> str:
    """What `show` prints; `who` are the lines that tell the device from others."""
    if found.lun is None:
        lines = [f"{name}: {found.state}.", *who]
        if found.run is not None:
            text = f"It was to become SR {found.run.ids.new_sr} (it was {found.run.ids.sr})."
            lines.append(printable(text))
        lines += [printable(str(problem)) for problem in found.defects or [found.problem]]
        if found.readable is not None:
            lines += ["", "What can be read:", *_lun_lines(name, found, found.readable, branches, [])]
        return "\n".join(lines)
    more = [*who, *([_one_vdi_line(one)] if one is not None else [])]
    if saved is not None:
        names = ", ".join(vm.name_label for vm in saved.vms)
        more.append(printable(f"  VMs      {names}; their records of {saved.when} are on it"))
    return "\n".join(_lun_lines(name, found, found.lun, branches, more))


def _one_vdi_line(found: OneVdiOutlook) -> str:
    if found.state == IS_ONE:
        return "  one VDI  yes"
    if found.state == CAN_BE_ONE and found.cost is not None:
        loss = "" if found.cost.images == 1 else " " + IRREVERSIBLE
        return "  one VDI  can be made" + _cost_words(found.cost) + loss
    return "  one VDI  cannot be made: " + printable(str(found.problem))


def _lun_lines(name: str, found: Inspection, lun: Lun, branches: Branches, more: Sequence[str]) -> List[str]:
    facts = lun_facts(lun, found.defects)
    label = printable(facts["sr"]["name_label"])
    state = found.state
    if found.run is not None and found.run.ids.new_sr == lun.sr_uuid and state == "resignatured":
        state = f"resignatured (it was {printable(found.run.ids.sr)})"
    allocated = facts["vg"]["extents_allocated"] * lun.vg.extent_size
    rows = [_row(lun, row) for row in _tree(facts["vdis"], branches)]
    lines = [
        "{}: SR {}{}".format(name, lun.sr_uuid, f' "{label}"' if label else ""),
        f"  state    {state}",
        f"  LUN      {human_size(lun.size_bytes)}, {human_size(allocated)} of "
        f"{human_size(lun.vg.pe_count * lun.vg.extent_size)} allocated in {len(lun.volumes)} volumes",
        "  LVM      VG {}, PV {}, generation {}".format(facts["vg"]["id"], facts["pv"]["id"], lun.vg.seqno),
        *more,
        "",
    ]
    lines += _table(["VDI", "size", "on LUN", "kind", "label"], rows) if rows else ["No VDIs."]
    others = [volume.lv.name for volume in lun.volumes if not volume.is_disk]
    if others:
        lines += ["", "Other volumes: {}".format(", ".join(others))]
    return lines + note_lines(facts["notes"])


class _Node(NamedTuple):
    prefix: str
    vdi: Mapping[str, Any]


def _tree(vdis: Sequence[Mapping[str, Any]], branches: Branches) -> List[_Node]:
    """VDIs under their parents, in the order of the LUN. Those of a chain without an end come last, one by one."""
    children: Dict[Optional[str], List[Mapping[str, Any]]] = {}
    known = {vdi["uuid"] for vdi in vdis}
    for vdi in vdis:
        children.setdefault(vdi["parent"] if vdi["parent"] in known else None, []).append(vdi)
    nodes: List[_Node] = []
    todo = [("", "", vdi) for vdi in reversed(children.get(None, []))]
    while todo:
        prefix, below, vdi = todo.pop()
        nodes.append(_Node(prefix, vdi))
        under = children.get(vdi["uuid"], [])
        for index, child in reversed(list(enumerate(under))):
            is_last = index == len(under) - 1
            todo.append(
                (
                    below + (branches.last if is_last else branches.fork),
                    below + (branches.blank if is_last else branches.line),
                    child,
                )
            )
    drawn = {node.vdi["uuid"] for node in nodes}
    return nodes + [_Node("", vdi) for vdi in vdis if vdi["uuid"] not in drawn]


def _row(lun: Lun, node: _Node) -> List[str]:
    vdi = node.vdi
    notes = [
        note
        for note, shown in (
            ("hidden", vdi["hidden"]),
            ("CBT", vdi["cbt"]),
            (_snapshot_note(vdi["snapshot_of"]), vdi["is_a_snapshot"]),
            ("no MGT record", vdi["uuid"] not in lun.records() and not _is_mgt_damaged(lun)),
            ("does not read", vdi["problem"] and vdi["virtual_size_bytes"] is None),
            ("has a defect", vdi["problem"] and vdi["virtual_size_bytes"] is not None),
        )
        if shown
    ]
    label = printable(vdi["name_label"])
    return [
        node.prefix + vdi["uuid"],
        "?" if vdi["virtual_size_bytes"] is None else human_size(vdi["virtual_size_bytes"]),
        human_size(vdi["size_bytes"]),
        vdi["kind"],
        (label + (" [{}]".format(", ".join(notes)) if notes else "")).lstrip(),
    ]


def _is_mgt_damaged(lun: Lun) -> bool:
    return lun.mgt is None and any(volume.name.kind == naming.MGT for volume in lun.volumes)


def _snapshot_note(uuid: Optional[str]) -> str:
    """The first group of a UUID is enough to find it in the same table."""
    return "snapshot of {}".format(uuid.split("-")[0]) if uuid else "snapshot"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Columns as wide as they must be; sizes to the right, the last column open."""
    widths = [max(len(row[index]) for row in [heads, *rows]) for index in range(len(heads))]
    lines = []
    for row in [heads, *rows]:
        cells = [
            cell.rjust(widths[index]) if index in (1, 2) else cell.ljust(widths[index])
            for index, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def note_lines(sentences: Iterable[str]) -> List[str]:
    """Notes as people read them, below an empty line."""
    found = ["note: " + printable(sentence) for sentence in sentences]
    return ["", *found] if found else []


def defects_text(name: str, found: Inspection) -> str:
    """What `check` prints of a damaged LUN: every defect, then what should be known besides."""
    number = "1 defect" if len(found.defects) == 1 else f"{len(found.defects)} defects"
    lines = [f"{name}: {found.state}, {number}:"]
    lines += ["  " + printable(str(defect)) for defect in found.defects]
    return "\n".join(lines + note_lines(notes(found.readable) if found.readable is not None else []))


# --- the map of a run


def map_facts(lun: Optional[Lun], ids: IdMap) -> Dict[str, Any]:
    """The old-to-new map, in the form that `--map` takes. `lun` is the LUN before the run or after it."""
    facts: Dict[str, Any] = {"sr": {"old": ids.sr, "new": ids.new_sr}}
    if lun is None:
        return {**facts, "uuids": ids.uuids, "lvm_ids": {dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}}
    lun = lun.settled()
    to_new = ids if lun.sr_uuid == ids.sr else None
    to_old = None if to_new else ids.reversed()
    facts["vg_id"] = _pair(lun.vg.id, to_new, to_old)
    facts["pv_id"] = _pair(lun.label.pv_id, to_new, to_old)
    facts["vdis"] = [_vdi_pair(lun, volume, to_new, to_old) for volume in lun.disks().values()]
    facts["lvs"] = [
        {"name": _name_pair(volume, to_new, to_old), "id": _pair(volume.lv.id, to_new, to_old)}
        for volume in lun.volumes
    ]
    told = {ids.sr, *(vdi["old"] for vdi in facts["vdis"])}
    facts["other_uuids"] = {old: new for old, new in ids.uuids.items() if old not in told}
    return facts


def _pair(lvm_id: str, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Dict[str, str]:
    """Unknown ids are their own twins: a volume may have come after the run."""
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


def _vdi_pair(lun: Lun, volume: Volume, to_new: Optional[IdMap], to_old: Optional[IdMap]) -> Dict[str, Any]:
    uuid = str(volume.name.uuid)
    record = lun.records().get(uuid)
    pair: Dict[str, Any] = dict(_uuid_pair(uuid, to_new, to_old))
    pair["name_label"] = record.name_label if record else ""
    pair["lv"] = _name_pair(volume, to_new, to_old)
    return pair


def result_facts(name: str, result: Result) -> Dict[str, Any]:
    """What `resignature --json`, `recover --json` and `undo --json` give."""
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
    """The map as people read it: the SR, then its VDIs."""
    facts = map_facts(lun, ids)
    lines = ["  SR   {old}  becomes  {new}".format(**facts["sr"])]
    for vdi in facts.get("vdis", []):
        label = vdi["name_label"]
        lines.append("  VDI  {old}  becomes  {new}".format(**vdi) + ("  " + label if label else ""))
    return "\n".join(printable(line) for line in lines)


def whole_map_lines(lun: Optional[Lun], ids: IdMap) -> List[str]:
    """The map with every id in it, LVM's as well; for a record of what was done."""
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


# --- plan, comparison, error


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
    return "One VDI" + _cost_words(cost)


def _cost_words(cost: Cost) -> str:
    goes = {0: "nothing goes", 1: "1 volume goes"}.get(cost.dropped, f"{cost.dropped} volumes go")
    if cost.images == 1:
        return f": it is one image; {goes}, and nothing is copied."
    return (
        f" from {cost.images} images: of {cost.blocks} blocks {cost.remapped} stay where they are "
        f"({cost.filled} filled up), {cost.copied} are copied: {human_size(cost.data_bytes)}. "
        f"{cost.fresh_extents} of {cost.free_extents} free extents are used before the commit; {goes}."
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


#: of a new image, longer pieces are left out of the JSON: they would be megabytes of hexadecimal
_MOST_IMAGE_BYTES = 64 << 10
#: so many writes of one kind in a row are one line of the text
_MOST_ALIKE = 4


def plan_facts(plan: Plan) -> List[Dict[str, Any]]:
    """Every write of a plan in its order; bytes as hexadecimal, `old` null where free space is written.

    Only with one VDI: `new` is null for a large piece of the new image; bitmaps, which are all alike, are one item with
    `offsets` and no `offset`; what is copied is one with its length alone.
    """
    rows: List[Dict[str, Any]] = []
    for step in steps.ALL_PARTS:
        for same, group in groupby(plan.each_write(step), _same_bytes):
            if same:
                rows.append(_alike(list(group)))
            else:
                rows += map(_write, group)
        if step == steps.JOURNAL and plan.unseen.copied_bytes:
            rows.append(_write_facts(None, plan.unseen.copied_bytes, "guest data, copied"))
    return rows


def _same_bytes(planned: Planned) -> bytes:
    """What is written, of the bitmaps that a new image leaves to be done; of anything else, nothing."""
    return planned.new if planned.new in (FULL_UNIT, EMPTY_UNIT) and planned.old is None else b""


def _alike(several: Sequence[Planned]) -> Dict[str, Any]:
    row = _write_facts(None, len(several[0].new), several[0].what)
    return {**row, "new": several[0].new.hex(), "offsets": [planned.offset for planned in several]}


def _write(planned: Planned) -> Dict[str, Any]:
    row = _write_facts(planned.offset, len(planned.new), planned.what)
    row["old"] = planned.old.hex() if planned.old is not None else None
    if planned.what != NEW_IMAGE or len(planned.new) <= _MOST_IMAGE_BYTES:
        row["new"] = planned.new.hex()
    return row


def _write_facts(offset: Optional[int], length: int, what: str) -> Dict[str, Any]:
    return {"offset": offset, "length": length, "what": what, "old": None, "new": None}


def plan_text(plan: Plan) -> str:
    """The plan as people read it, one write a line; many of a kind are one line, and what is copied is another."""
    rows = [["offset", "bytes", "what"]]
    for step in steps.ALL_PARTS:
        for what, planned in groupby(plan.each_write(step), lambda write: write.what):
            rows += _plan_rows(what, [(write.offset, len(write.new)) for write in planned])
        if step == steps.JOURNAL and plan.unseen.copied_bytes:
            rows.append(["", str(plan.unseen.copied_bytes), "guest data, copied"])
    widths = [max(len(row[index]) for row in rows) for index in (0, 1)]
    return "\n".join(f"  {row[0].rjust(widths[0])}  {row[1].rjust(widths[1])}  {row[2]}" for row in rows)


def _plan_rows(what: str, places: Sequence[Tuple[int, int]]) -> List[List[str]]:
    if len(places) <= _MOST_ALIKE:
        return [[str(offset), str(length), what] for offset, length in places]
    return [["", str(sum(length for _, length in places)), f"{what}, {len(places)} times"]]


def comparison_facts(name: str, original: str, found: Comparison) -> Dict[str, Any]:
    """What `check --original --json` gives beside the facts of the device."""
    return {
        "device": name,
        "original": original,
        "shares_nothing": not found.problems,
        "problems": found.problems,
        "bytes_compared": found.bytes_compared,
    }
