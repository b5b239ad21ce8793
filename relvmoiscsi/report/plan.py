# SPDX-License-Identifier: LGPL-2.1-only
"""A plan as facts and as text, write by write."""

from itertools import groupby
from typing import Any, Dict, List, Optional

from relvmoiscsi.engine import EMPTY_UNIT, FULL_UNIT, NEW_IMAGE, Plan, Planned, steps
from relvmoiscsi.wording import table

#: the JSON omits longer pieces of a new image, because their hexadecimal would take megabytes
_MOST_IMAGE_BYTES = 64 << 10
#: a longer series of equal writes becomes one line of the text
_MOST_ALIKE = 4


def plan_facts(plan: Plan) -> List[Dict[str, Any]]:
    """Return every write of a plan, in order; bytes as hexadecimal, `old` null for a write to free space.

    Three exceptions occur only with one VDI. A large piece of the new image has `new` null. Equal bitmaps form one item
    with `offsets` instead of `offset`. The copied data is one item with only its length.
    """
    rows: List[Dict[str, Any]] = []
    for step in steps.ALL_PARTS:
        for same, group in groupby(plan.each_write(step), _bitmap):
            if same:
                alike = list(group)
                row = _write_facts(None, len(same), alike[0].what)
                rows.append({**row, "new": same.hex(), "offsets": [planned.offset for planned in alike]})
                continue
            for planned in group:
                row = _write_facts(planned.offset, len(planned.new), planned.what)
                row["old"] = planned.old.hex() if planned.old is not None else None
                if planned.what != NEW_IMAGE or len(planned.new) <= _MOST_IMAGE_BYTES:
                    row["new"] = planned.new.hex()
                rows.append(row)
        if step == steps.JOURNAL and plan.unseen.copied_bytes:
            rows.append(_write_facts(None, plan.unseen.copied_bytes, "guest data, copied"))
    return rows


def _bitmap(planned: Planned) -> bytes:
    """Return the bytes of a bitmap that a new image leaves empty or full; b"" for any other write."""
    return planned.new if planned.new in (FULL_UNIT, EMPTY_UNIT) and planned.old is None else b""


def _write_facts(offset: Optional[int], length: int, what: str) -> Dict[str, Any]:
    return {"offset": offset, "length": length, "what": what, "old": None, "new": None}


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
    return "\n".join("  " + line for line in table(rows, right=(0, 1)))
