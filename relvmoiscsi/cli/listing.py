# SPDX-License-Identifier: LGPL-2.1-only
"""List the targets behind a portal; list the LUNs behind a target, with the SR on each LUN."""

import sys
from functools import partial
from typing import Any, Dict, List, Optional, Sequence

from relvmoiscsi import engine
from relvmoiscsi.cli.output import Answer, say, width
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Lost, RelvmoiscsiError, failing_alone
from relvmoiscsi.iscsi import LunInfo
from relvmoiscsi.iscsi.faults import Silent
from relvmoiscsi.lun.opened import LunSource
from relvmoiscsi.lun.url_source import LISTED_AT_ONCE, UrlSource
from relvmoiscsi.threads import Workers
from relvmoiscsi.wording import CHANGED_MEANS, human_size, printable, shown_time, some_luns, table, utc_time

LIST_SECONDS = 20.0  #: for all work on one LUN of a list
TARGET_SECONDS = 600.0  #: for the work on all LUNs of a list: a target may list 65536 LUNs, and answer slowly


def listed(text: str, named: LunSource) -> Optional[Answer]:
    """Return the list for the URL `text` of a portal or an iSCSI target; None for a word that names one LUN.

    Raises UsageError, NotFound, Refused.
    """
    if not isinstance(named, UrlSource):
        return None
    source, url = named, named.url
    if url.lun is not None:
        try:
            _say_equal_scsi_ids(source.luns(), url.lun)
        except Silent:  # the next login would wait as long for the same silence
            raise
        except Lost:  # the command that opens the LUN logs in again
            pass
        return None
    if not url.iqn:
        targets = {iqn: list(map(str, portals)) for iqn, portals in source.targets().items()}
        rows = [{"iqn": iqn, "portals": portals} for iqn, portals in targets.items()]
        lines = [f"{text}: targets of the portal"]
        lines += _indented([["target", "portals"], *([iqn, ", ".join(on)] for iqn, on in targets.items())])
        if not targets:
            nothing = "the portal shows no target to this machine. Map a LUN to its initiator name at the array."
            lines = [f"{text}: {nothing}"]
        return Answer({"device": text, "targets": rows}, "\n".join(lines))
    infos = source.luns()
    _say_equal_scsi_ids(infos)
    deadline = Deadline(TARGET_SECONDS)
    deadline.of_what = "for the LUNs of a target"

    def read(info: LunInfo) -> Dict[str, Any]:
        """Return the facts on a LUN and its content. An unreadable LUN is listed with the reason."""
        facts = {
            "number": info.number,
            "scsi_id": info.scsi_id,
            "vendor": info.vendor or None,
            "model": info.model or None,
            "serial": info.serial or None,
            "size_bytes": info.size_bytes or None,
            **dict.fromkeys(("state", "sr", "sr_name_label", "vdi_count", "changed_at")),
            "problem": info.problem or None,
        }
        if info.problem:
            return facts
        try:
            deadline.check("this LUN was read")
            one = source.lun(info, deadline.part(LIST_SECONDS))
            with failing_alone(f"{text}/{info.number}"), one.opened_to_read() as opened:
                found = engine.inspect(opened.device)
        except RelvmoiscsiError as problem:
            return {**facts, "problem": problem.told}
        facts.update(state=found.state, problem=found.problem.told if found.problem is not None else None)
        if found.lun is not None:
            mgt, vdis = found.lun.mgt, len(found.lun.disks())
            facts.update(sr=found.lun.sr_uuid, sr_name_label=mgt.name_label if mgt else "", vdi_count=vdis)
            facts["changed_at"] = utc_time(found.lun.vg.changed)  # when LVM last changed the SR
        elif found.run:
            facts["sr"] = found.run.ids.sr
        return facts

    luns = Workers(LISTED_AT_ONCE).run([partial(read, info) for info in infos])
    return Answer({"device": text, "iqn": url.iqn, "target_luns": luns}, "\n".join(_lun_lines(text, luns)))


def _say_equal_scsi_ids(infos: Sequence[LunInfo], number: Optional[int] = None) -> None:
    """Print a note about LUNs with equal SCSIids; with a number, only about LUNs with the SCSIid of that LUN."""
    by_id: Dict[str, List[int]] = {}
    for info in infos:
        if info.scsi_id is not None:
            by_id.setdefault(info.scsi_id, []).append(info.number)
    for scsi_id, numbers in by_id.items():
        if len(numbers) > 1 and number in (None, *numbers):
            named = some_luns(numbers)
            say(
                f"note: the LUNs {named} have one SCSIid, {printable(scsi_id)}: it does not identify the clone. The "
                "command writes to none of them by a URL."
            )


def _lun_lines(text: str, luns: Sequence[Dict[str, Any]]) -> List[str]:
    if not luns:
        return [f"{text}: the target shows no LUN to this machine. Map one to its initiator name at the array."]
    rows = [["LUN", "SCSIid", "size", "device", "state", "changed", "SR"]]
    for lun in luns:
        label = f" {lun['sr_name_label']!r}" if lun["sr_name_label"] else ""
        size = human_size(lun["size_bytes"]) if lun["size_bytes"] else "-"
        name = " ".join(filter(None, [lun["vendor"], lun["model"]]))
        name = repr(name) if name else "-"
        sr = f"{lun['sr']}{label}" if lun["sr"] else "-"
        changed = shown_time(lun["changed_at"]) if lun["changed_at"] else "-"
        rows.append([str(lun["number"]), lun["scsi_id"] or "-", size, name, lun["state"] or "not read", changed, sr])
    told = [lun for lun in luns if lun["problem"] and lun["state"] in (None, engine.DAMAGED)]
    problems = [f"LUN {lun['number']}: {lun['problem']}" for lun in told]
    by_sr: Dict[str, List[int]] = {}
    for lun in luns:
        if lun["sr"]:
            by_sr.setdefault(lun["sr"], []).append(lun["number"])
    notes = [
        f"note: the LUNs {some_luns(sorted(numbers))} hold one SR, {sr}: an original and its copies, or copies alone."
        for sr, numbers in by_sr.items()
        if len(numbers) > 1
    ]
    notes += [f"note: changed is {CHANGED_MEANS}."] if any(lun["changed_at"] for lun in luns) else []
    return [f"{text}: LUNs behind the target", *_indented(rows), *map(printable, problems + notes)]


def _indented(rows: Sequence[Sequence[str]]) -> List[str]:
    return table([[printable(cell) for cell in row] for row in rows], columns=width(sys.stdout), indent="  ")
