# SPDX-License-Identifier: LGPL-2.1-only
"""Free space in the text ring of a metadata area, and who gets which part of it.

    area.offset                                                            area.end
    | header | ... free ... | journal | live text |  gap  | second area ... | ... free |

LVM writes its next text behind the live one and goes round. So the second area goes behind the live text, and the
journal ends shortly before it: that is what LVM reclaims last. Everything handed out starts and ends on a multiple
of 4096, so that no physical block is shared with a live text or a header.

A write of another host may land late. So two runs on the same LUN do not use the same places, unless both write the
same bytes there: `seed`, a large number that comes with the new ids, moves area and journal within the free space.
"""

from typing import List, Optional, Sequence

from relvmoiscsi.device import Range, align_down, align_up
from relvmoiscsi.formats.lvm.pv import MDA_HEADER_SIZE, Area

ALIGNMENT = 4096
#: room in a second area for LVM's own updates, should a run be cut there: two more texts and this
_SPARE_BYTES = 64 << 10
#: room left behind the live text for an LVM update that comes between, from a host that does not see our locks
_GAP_BYTES = 64 << 10
#: the smallest area LVM has ever been asked to read here
MIN_AREA_BYTES = 36 << 10


def free_ranges(area: Area, live: Sequence[Range], taken: Sequence[Range] = ()) -> List[Range]:
    """Free parts of the ring in the order LVM will fill them: from the end of the live text, once around.

    `live` is the committed text, in one range or two; `taken` is what else must stay.
    """
    free, position = [], area.offset + MDA_HEADER_SIZE
    for used in sorted([*live, *taken]) + [Range(area.end, 0)]:
        start = align_up(position, ALIGNMENT)
        end = align_down(used.offset, ALIGNMENT)
        if start < end:
            free.append(Range(start, end - start))
        position = max(position, used.end)
    behind_live = live[-1].end
    return [part for part in free if part.offset >= behind_live] + [part for part in free if part.offset < behind_live]


def place_second_area(free: Sequence[Range], text_bytes: int, spare: bool, seed: int = 0) -> Optional[Area]:
    """Room for a header and a text, in the first half of the free part that it falls into; None when nothing fits.

    With `spare` there is room for LVM's own updates too: inside, should a run be cut while the label points there,
    and, where the ring is large enough, between the live text and the second area.
    """
    size = max(align_up(MDA_HEADER_SIZE + text_bytes, ALIGNMENT), MIN_AREA_BYTES)
    gaps = [0]
    if spare:
        size += align_up(2 * text_bytes + _SPARE_BYTES, ALIGNMENT)
        gaps.insert(0, align_up(2 * text_bytes + _GAP_BYTES, ALIGNMENT))
    for gap in gaps:
        for part in free:
            if part.length >= gap + size:
                return Area(part.offset + gap + _shift(seed, (part.length - gap - size) // 2), size)
    return None


def place_journal(free: Sequence[Range], length: int, seed: int = 0) -> Optional[Range]:
    """Room for a journal of `length` bytes (a multiple of ALIGNMENT), late in LVM's order: in the last eighth."""
    for part in reversed(free):
        if part.length >= length:
            return Range(part.end - length - _shift(seed, (part.length - length) // 8), length)
    return None


def _shift(seed: int, room: int) -> int:
    """A multiple of ALIGNMENT, at most `room`."""
    return seed % (room // ALIGNMENT + 1) * ALIGNMENT
