# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN: the SR, its VDIs as a tree, its volumes, the cost of one VDI, the defects, the comparison of two LUNs."""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from relvmoiscsi.engine import (
    CAN_BE_ONE,
    IS_ONE,
    RESIGNATURED,
    Comparison,
    Cost,
    Inspection,
    Lun,
    OneVdiOutlook,
    Volume,
    notes,
)
from relvmoiscsi.errors import FormatError, RelvmoiscsiError, UsageError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.formats.mgt import VdiRecord
from relvmoiscsi.formats.saved_vms import SavedVms
from relvmoiscsi.wording import CHANGED_MEANS, human_size, printable, shown_time, table, utc_time, with_options

_LV_PREFIX = "Logical volume "  #: the start of a structure name that names a volume
#: for a VDI that is made of several images
IRREVERSIBLE = "Irreversible once committed."


#: `str.translate` with this table draws the tree of a text in ASCII
ASCII_TREE = str.maketrans("├└│─", "|`|-")


def inspection_facts(name: str, found: Inspection) -> Dict[str, Any]:
    """Return the facts for `show --json`."""
    facts: Dict[str, Any] = {"state": found.state, "device": name}
    if found.problem is not None:
        facts["problem"] = str(found.problem)
    if found.defects:
        facts["defects"] = defect_facts(found.defects, found.readable)
    if found.run is not None:
        facts["run"] = {
            "old_sr": found.run.ids.sr,
            "new_sr": found.run.ids.new_sr,
            "run_scsi_id": found.run.scsi_id,
            "tool": found.run.tool,
        }
    if found.lun is not None:
        facts.update(lun_facts(found.lun))
        facts["contradictions"] = defect_facts(found.contradictions, found.lun)
        facts["notes"] += _unproven(found)
    elif found.readable is not None:
        facts.update(lun_facts(found.readable, found.defects))
    return facts


def _unproven(found: Inspection) -> List[str]:
    return [found.unproven.message] if found.unproven is not None else []


def defect_facts(defects: Iterable[RelvmoiscsiError], lun: Optional[Lun]) -> List[Dict[str, Any]]:
    """Return the facts of defects; None for unknown values. `lun` is the readable content of the LUN.

    `offset` counts from the start of `container`, a volume or the device. `lv` and `vdi` name the owner of the
    structure.
    """
    volumes = {volume.lv.name: volume for volume in lun.volumes} if lun is not None else {}
    rows = []
    for defect in defects:
        what, where = getattr(defect, "what", None), getattr(defect, "where", None)
        lv = where.container if where is not None and where.container in volumes else None
        if lv is None and what is not None and what.startswith(_LV_PREFIX):
            lv = what[len(_LV_PREFIX) :]
        volume = volumes.get(lv) if lv is not None else None
        row = {
            "message": defect.message,
            "advice": defect.advice,
            "structure": what,
            "container": where.container if where is not None else None,
            "offset": where.offset if where is not None else None,
            "lv": lv,
            "vdi": volume.name.uuid if volume is not None and volume.is_disk else None,
        }
        rows.append(row)
    return rows


def problems_by_lv(lun: Lun, defects: Sequence[RelvmoiscsiError]) -> Dict[Optional[str], str]:
    """Return the message of the first defect of each volume."""
    last_first = list(reversed(defects))
    return {row["lv"]: defect.told for row, defect in zip(defect_facts(last_first, lun), last_first)}


def lun_facts(lun: Lun, defects: Sequence[RelvmoiscsiError] = ()) -> Dict[str, Any]:
    """Return the facts of the SR, its VDIs and its volumes. `defects` are the defects of a damaged LUN."""
    problems, records = problems_by_lv(lun, defects), lun.records()
    logged = {volume.name.uuid for volume in lun.volumes if volume.name.kind == naming.CBT_LOG}
    return {
        "size_bytes": lun.size_bytes,
        "sr": lun.sr_uuid,
        "sr_name_label": lun.mgt.name_label if lun.mgt else "",
        "sr_name_description": lun.mgt.name_description if lun.mgt else "",
        "vg": {
            "vg_name": lun.vg.name,
            "id": dashed(lun.vg.id),
            "seqno": lun.vg.seqno,
            "extent_size_bytes": lun.vg.extent_size,
            "changed_at": utc_time(lun.vg.changed),
            "changed_on": lun.vg.changed_on or None,
            "extents": lun.vg.pe_count,
            "extents_allocated": sum(lv.extent_count for lv in lun.vg.lvs),
        },
        "pv": {"id": dashed(lun.label.pv_id), "size_bytes": lun.label.device_size},
        "vdis": [
            _vdi_facts(volume, records.get(uuid), uuid in logged, problems.get(volume.lv.name))
            for uuid, volume in lun.disks().items()
        ],
        "lvs": [
            {
                "lv": volume.lv.name,
                "id": dashed(volume.lv.id),
                "volume_kind": volume.name.kind,
                "lv_size_bytes": volume.size,
            }
            for volume in lun.volumes
        ],
        "notes": notes(lun),
    }


def _vdi_facts(volume: Volume, record: Optional[VdiRecord], has_log: bool, problem: Optional[str]) -> Dict[str, Any]:
    """Return the facts of a VDI with this record of MGT. Values of unreadable content are None.

    `has_log`: the SR has a log of the changed blocks of the VDI. `problem` is the defect of the volume.
    """
    reads = not isinstance(volume.content, FormatError)
    return {
        "vdi": volume.name.uuid,
        "vdi_name": record.name_label if record else "",
        "name_description": record.name_description if record else "",
        "volume_kind": volume.name.kind,
        "virtual_size_bytes": volume.virtual_size if reads else None,
        "lv_size_bytes": volume.size,
        "parent": volume.parent.uuid if volume.parent else None,
        "hidden": volume.hidden if reads else None,
        "read_only": "WRITE" not in volume.lv.status,
        "is_a_snapshot": bool(record and record.is_a_snapshot),
        "snapshot_of": (record.snapshot_of or None) if record else None,
        "cbt": has_log,
        "lv": volume.lv.name,
        "problem": problem,
    }


def cost_facts(cost: Cost) -> Dict[str, int]:
    """Return the cost of one VDI for `resignature --vdis one --json`."""
    renamed = {"dropped": "dropped_count", "copied": "copied_count"}  # elsewhere these keys mean something else
    return {renamed.get(name, name): value for name, value in cost._asdict().items()}


def cost_text(cost: Cost) -> str:
    """Return the cost as a sentence."""
    return "One VDI" + cost_words(cost)


def cost_words(cost: Cost) -> str:
    deleted = {0: "no volume is deleted", 1: "1 volume is deleted"}.get(
        cost.dropped, f"{cost.dropped} volumes are deleted"
    )
    if cost.images == 1:
        return f", which is one image; {deleted}. No data to copy."
    data = (
        f"{cost.copied} of {cost.blocks} blocks are copied, {cost.filled} are completed: {human_size(cost.data_bytes)}."
    )
    return (
        f" from {cost.images} images; {deleted}. {data if cost.data_bytes else 'No data to copy.'} "
        f"The run needs {cost.fresh_extents} of {cost.free_extents} free extents."
    )


def one_vdi_facts(found: OneVdiOutlook) -> Dict[str, Any]:
    """Return the value of `one_vdi` for `show --json`."""
    cost = cost_facts(found.cost) if found.cost is not None else None
    problem = with_options(str(found.problem)) if found.problem is not None else None
    return {"one_vdi_state": found.state, "cost": cost, "problem": problem}


def saved_vms_facts(found: Optional[SavedVms]) -> Optional[Dict[str, Any]]:
    """Return the value of `saved_vms` for `show --json`: VMs with records on the LUN, and their VDIs at the save."""
    if found is None:
        return None
    vms = [
        {
            "vm": vm.uuid,
            "vm_name": vm.name_label,
            "power_state": vm.power_state,
            "saved_disks": [{"userdevice": disk.userdevice, "saved_vdi": disk.vdi} for disk in vm.disks],
        }
        for vm in found.vms
    ]
    return {"saved_at": found.when, "saved_sr": found.sr_uuid, "vms": vms}


def inspection_text(
    name: str,
    found: Inspection,
    one: Optional[OneVdiOutlook] = None,
    saved: Optional[SavedVms] = None,
    who: Sequence[str] = (),
    explains: bool = True,
    columns: int = 80,
) -> str:
    """Return the text of `show`; `who` are the lines that identify the device. `explains`: with CHANGED_MEANS.

    The table of the VDIs fits the columns.
    """
    if found.lun is None:
        lines = [f"{name}: {found.state}.", *who]
        if found.run is not None:
            text = f"It was to become SR {found.run.ids.new_sr} (it was {found.run.ids.sr})."
            lines.append(printable(text))
        lines += [printable(str(problem)) for problem in found.defects or [found.problem]]
        if found.readable is not None:
            lines += ["", "What can be read:", *_lun_lines(name, found, found.readable, [], explains, columns)]
        return "\n".join(lines)
    more = list(who)
    if one is not None and one.state == IS_ONE:
        more.append("  one VDI  yes")
    elif one is not None and one.state == CAN_BE_ONE and one.cost is not None:
        loss = "" if one.cost.images == 1 else " " + IRREVERSIBLE
        more.append("  one VDI  can be made" + cost_words(one.cost) + loss)
    elif one is not None and one.problem is not None and one.problem.sm_key != UsageError.sm_key:  # else: name one
        more.append("  one VDI  cannot be made: " + printable(with_options(str(one.problem))))
    if saved is not None:
        names = ", ".join(repr(vm.name_label) for vm in saved.vms)
        more.append(printable(f"  VMs      {names}; their records of {saved.when} are on it"))
    return "\n".join(_lun_lines(name, found, found.lun, more, explains, columns))


def _lun_lines(name: str, found: Inspection, lun: Lun, more: Sequence[str], explains: bool, columns: int) -> List[str]:
    facts = lun_facts(lun, found.defects)
    label = facts["sr_name_label"]
    state = found.state
    if found.run is not None and found.run.ids.new_sr == lun.sr_uuid and state == "resignatured":
        state = f"resignatured (it was {printable(found.run.ids.sr)})"
    allocated = facts["vg"]["extents_allocated"] * lun.vg.extent_size
    levels = max(1, (columns - len(lun.sr_uuid)) // 3)
    records, has_unread_mgt = lun.records(), lun.mgt is None and any(one.name.kind == naming.MGT for one in lun.volumes)
    rows = [
        _row(prefix, vdi, lacks_record=vdi["vdi"] not in records and not has_unread_mgt)
        for prefix, vdi in tree(facts["vdis"], levels)
    ]
    lines = [
        printable(f"{name}: SR {lun.sr_uuid}" + (f" {label!r}" if label else "")),
        f"  state    {state}",
        f"  LUN      {human_size(lun.size_bytes)}, {human_size(allocated)} of "
        f"{human_size(lun.vg.pe_count * lun.vg.extent_size)} allocated in {len(lun.volumes)} volumes",
        f"  VG       {facts['vg']['id']}, generation {lun.vg.seqno}",
        f"  PV       {facts['pv']['id']}",
        *more,
    ]
    if facts["vg"]["changed_at"] is not None:  # else: LVM has not written a time
        on = printable(f" on {facts['vg']['changed_on']}") if facts["vg"]["changed_on"] else ""
        means = f": {CHANGED_MEANS}" if explains else ""
        means += "; the resignature has kept this time" if found.state == RESIGNATURED else ""
        lines.append(f"  changed  {shown_time(facts['vg']['changed_at'])}{on}{means}")
    lines.append("")
    head = ["VDI", "size", "on LUN", "kind", "label"]
    lines += table([head, *rows], right=(1, 2), columns=columns) if rows else ["No VDIs."]
    others = [volume.lv.name for volume in lun.volumes if not volume.is_disk]
    if others:
        lines += ["", "Other volumes: {}".format(", ".join(others))]
    return lines + note_lines(facts["notes"] + _unproven(found))


_MOST_DRAWN = 30  #: levels; SM makes no longer chains, and each level makes each line below it longer


def tree(vdis: Sequence[Mapping[str, Any]], levels: int = _MOST_DRAWN) -> List[Tuple[str, Mapping[str, Any]]]:
    """Return VDIs with the branches in front of each, under their parents, in the order of the LUN.

    VDIs of a cyclic chain come last, each on its own. A VDI below so many others is drawn no deeper than they: below
    `levels`, and below `_MOST_DRAWN`.
    """
    most = 3 * (min(levels, _MOST_DRAWN) - 1)  # characters before the branch of a VDI
    children: Dict[Optional[str], List[Mapping[str, Any]]] = {}
    known = {vdi["vdi"] for vdi in vdis}
    for vdi in vdis:
        children.setdefault(vdi["parent"] if vdi["parent"] in known else None, []).append(vdi)
    nodes: List[Tuple[str, Mapping[str, Any]]] = []
    todo = [("", "", vdi) for vdi in reversed(children.get(None, []))]
    while todo:
        prefix, below, vdi = todo.pop()
        nodes.append((prefix, vdi))
        under = children.get(vdi["vdi"], [])
        for index, child in reversed(list(enumerate(under))):
            is_last = index == len(under) - 1
            under_child = below + ("   " if is_last else "│  ") if len(below) < most else below
            todo.append((below + ("└─ " if is_last else "├─ "), under_child, child))
    drawn = {vdi["vdi"] for _prefix, vdi in nodes}
    return nodes + [("", vdi) for vdi in vdis if vdi["vdi"] not in drawn]


def _row(prefix: str, vdi: Mapping[str, Any], lacks_record: bool) -> List[str]:
    snapshot = "snapshot"
    if vdi["snapshot_of"]:  # the first group of the UUID is enough to find the VDI in the same table
        snapshot = "snapshot of {}".format(vdi["snapshot_of"].split("-")[0])
    notes = [
        note
        for note, shown in (
            ("hidden", vdi["hidden"]),
            ("CBT", vdi["cbt"]),
            (snapshot, vdi["is_a_snapshot"]),
            ("no MGT record", lacks_record),
            ("does not read", vdi["problem"] and vdi["virtual_size_bytes"] is None),
            ("has a defect", vdi["problem"] and vdi["virtual_size_bytes"] is not None),
        )
        if shown
    ]
    label = printable(repr(vdi["vdi_name"])) if vdi["vdi_name"] else ""
    return [
        prefix + vdi["vdi"],
        "?" if vdi["virtual_size_bytes"] is None else human_size(vdi["virtual_size_bytes"]),
        human_size(vdi["lv_size_bytes"]),
        vdi["volume_kind"],
        (label + (" [{}]".format(", ".join(notes)) if notes else "")).lstrip(),
    ]


def note_lines(sentences: Iterable[str]) -> List[str]:
    """Return notes as text lines, after an empty line."""
    found = ["note: " + printable(sentence) for sentence in sentences]
    return ["", *found] if found else []


def defects_text(name: str, found: Inspection, step: str) -> str:
    """Return the text of `check` for a damaged LUN: every defect, then the notes. The caller says the next step."""
    number = "1 defect" if len(found.defects) == 1 else f"{len(found.defects)} defects"
    cause = "the copy is truncated, " if found.is_truncated else ""
    lines = [f"{name}: {found.state}, {cause}{number}:"]
    lines += ["  " + printable(defect.told_before(step)) for defect in found.defects]
    return "\n".join(lines + note_lines(notes(found.readable) if found.readable is not None else []))


def contradictions_text(name: str, found: Inspection) -> str:
    """Return the text of `check` for a LUN of which each structure reads, and two do not fit each other."""
    lines = [f"{name}: state {found.state}. Each structure reads, but MGT and the volumes contradict each other:"]
    lines += ["  " + printable(str(one)) for one in found.contradictions]
    lines += ["A run that was stopped and then overtaken by another run leaves this."]
    return "\n".join(lines + note_lines(notes(found.lun) if found.lun is not None else []))


def comparison_facts(name: str, original: str, found: Comparison) -> Dict[str, Any]:
    """Return the facts of `check --original --json` besides the facts of the device."""
    return {
        "device": name,
        "original": original,
        "shares_nothing": not found.problems,
        "same_identities": found.same_identities,
        "comparison_problems": found.problems,
        "bytes_compared": found.bytes_compared,
        "left_behind": list(found.left_behind),
        "lacks_mgt": found.lacks_mgt,
    }
