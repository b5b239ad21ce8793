# SPDX-License-Identifier: LGPL-2.1-only
"""Whether two LUNs differ in what they are expected to differ in, byte for byte."""

from typing import Dict, List, Optional, Sequence

from relvmoiscsi.device import Device, Range
from relvmoiscsi.errors import Truncated
from relvmoiscsi.resignature.reading.lun import Lun
from relvmoiscsi.resignature.writing.copying import Progress

_COMPARE_BYTES = 1 << 20


def extents(lun: Lun, data: Sequence[Range]) -> List[Range]:
    """The parts of `data` that belong to volumes; everything else is LVM's."""
    vg, found = lun.vg, []
    owned = sorted(part for lv in vg.lvs for part in vg.ranges(lv, 0, vg.size_of(lv)))
    for part in data:
        for extent in owned:
            first, last = max(part.offset, extent.offset), min(part.end, extent.end)
            if first < last:
                found.append(Range(first, last - first))
    return found


def differing(
    original: Device,
    clone: Device,
    spans: Sequence[Range],
    allowed: Dict[int, bytes],
    progress: Optional[Progress] = None,
) -> List[str]:
    """A sentence for each mebibyte in which the LUNs differ otherwise than `allowed`: the clone's bytes, by offset.

    `progress` is told how many bytes of each LUN are read, and how many will be.
    """
    problems: List[str] = []
    done, total = 0, sum(span.length for span in spans)
    for span in spans:
        for at in range(span.offset, span.end, _COMPARE_BYTES):
            part = Range(at, min(_COMPARE_BYTES, span.end - at))
            try:
                one, other = original.read([part])[0], clone.read([part])[0]
            except Truncated:
                return problems + [f"{clone.name} is smaller than {original.name}."]
            if one != other:
                problems += _explained(part, one, other, allowed, clone.name)
            done += part.length
            if progress is not None:
                progress(done, total)
    return problems


def _explained(part: Range, one: bytes, other: bytes, allowed: Dict[int, bytes], name: str) -> List[str]:
    expected = bytearray(one)
    for offset, new in allowed.items():
        first, last = max(offset, part.offset), min(offset + len(new), part.end)
        if first < last:
            expected[first - part.offset : last - part.offset] = new[first - offset : last - offset]
    if bytes(expected) == other:
        return []
    at = next(index for index in range(len(other)) if expected[index] != other[index])
    return [f"{name} differs from what is expected at byte {part.offset + at}."]
