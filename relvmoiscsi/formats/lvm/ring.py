# SPDX-License-Identifier: LGPL-2.1-only
"""Free space in the text ring of a metadata area, and the places of second area and journal in the free space.

    area.offset                                                            area.end
    | header | ... free ... | journal | live text |  gap  | second area ... | ... free |

LVM writes each new text behind the live text, round the ring. So LVM reclaims the space in front of the live text last:
the journal goes there. The second area goes behind the live text. Second area and journal start and end on multiples of
4096, so that they share no physical block with a live text or a header.

`seed` moves second area and journal within the free space, so that late writes of another host do no harm:

    t0    host A begins a run and stalls in a write
    t1    host B begins a run on the same LUN, with other new ids: another seed, so other places
    t2    host A's write arrives, and does not hit the journal or the second area of host B

Two runs with the same new ids have the same seed, and write the same bytes to the same places.
"""

from typing import List, Optional, Sequence

from relvmoiscsi.device import Range, align_down, align_up
from relvmoiscsi.formats.lvm.pv import MDA_HEADER_SIZE

ALIGNMENT = 4096
#: spare room in a second area: two more texts and these bytes, for LVM's updates after a run that was cut
_SPARE_BYTES = 64 << 10
#: free space behind the live text, for an LVM update during a run by a host that does not see this host's locks
_GAP_BYTES = 64 << 10
#: the smallest metadata area with which the tests run LVM
MIN_AREA_BYTES = 36 << 10


def free_ranges(area: Range, live: Sequence[Range], taken: Sequence[Range] = ()) -> List[Range]:
    """The free ranges of the ring in LVM's order: from the end of the live text, once around.

    `live` are the one or two ranges of the committed text; `taken` are other ranges that must stay.
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


def place_second_area(free: Sequence[Range], text_bytes: int, spare: bool, seed: int = 0) -> Optional[Range]:
    """Room for a header and a text, in the first half of one of the `free` ranges; None when no range is large enough.

    With `spare` the second area has room for LVM's updates: after a cut the label may list the second area. And a ring
    that is large enough then has a gap for LVM's updates between live text and second area.
    """
    size = max(align_up(MDA_HEADER_SIZE + text_bytes, ALIGNMENT), MIN_AREA_BYTES)
    gaps = [0]
    if spare:
        size += align_up(2 * text_bytes + _SPARE_BYTES, ALIGNMENT)
        gaps.insert(0, align_up(2 * text_bytes + _GAP_BYTES, ALIGNMENT))
    for gap in gaps:
        for part in free:
            if part.length >= gap + size:
                return Range(part.offset + gap + _shift(seed, (part.length - gap - size) // 2), size)
    return None


def place_journal(free: Sequence[Range], length: int, seed: int = 0) -> Optional[Range]:
    """Room for a journal of `length` bytes, a multiple of ALIGNMENT; None when no `free` range is large enough.

    The journal goes to the last eighth of the last range, which LVM reclaims last.
    """
    for part in reversed(free):
        if part.length >= length:
            return Range(part.end - length - _shift(seed, (part.length - length) // 8), length)
    return None


def _shift(seed: int, room: int) -> int:
    """A multiple of ALIGNMENT, at most `room`, that depends on `seed`."""
    return seed % (room // ALIGNMENT + 1) * ALIGNMENT
