# SPDX-License-Identifier: LGPL-2.1-only
"""A plan, write by write."""

from itertools import groupby
from typing import Any, Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.engine import EMPTY_UNIT, FULL_UNIT, NEW_IMAGE, Plan, Planned, steps
from relvmoiscsi.wording import table

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
    return "\n".join("  " + line for line in table(rows, right=(0, 1)))


def _plan_rows(what: str, places: Sequence[Tuple[int, int]]) -> List[List[str]]:
    if len(places) <= _MOST_ALIKE:
        return [[str(offset), str(length), what] for offset, length in places]
    return [["", str(sum(length for _, length in places)), f"{what}, {len(places)} times"]]
