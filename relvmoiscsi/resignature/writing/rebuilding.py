# SPDX-License-Identifier: LGPL-2.1-only
"""What is left to do in a volume that was made anew, as the journal has it, on whatever is there now.

Bitmaps of filled blocks are all ones before the commit, whichever way the run goes. Free slots are given away after
the commit: first their bitmaps are emptied, then the block table names them. Where somebody has used the SR in between,
what tapdisk has written stays; where LVM has given the extents to somebody else, nothing is written.
"""

import logging
from typing import Iterable, List, Optional

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.resignature.protocol.rebuilt import EMPTY_UNIT, Rebuilt, all_the_same, merged_table, not_given_yet

log = logging.getLogger(__name__)


def empty_units(device: Device, rebuilt: Rebuilt, vg: Optional[VolumeGroup]) -> Iterable[Chunk]:
    """The bitmaps of slots that the block table does not give away yet; none where the volume is not ours any more."""
    if vg is None or not rebuilt.is_still_on(vg):
        log.warning("%s: the volume group was changed; free slots of the new image stay unused", device.name)
        return ()
    return all_the_same(not_given_yet(rebuilt, _table(device, rebuilt)), EMPTY_UNIT)


def table_units(device: Device, rebuilt: Rebuilt, vg: Optional[VolumeGroup]) -> List[Chunk]:
    """The block table with those slots given away, where it does not do so yet."""
    if vg is None or not rebuilt.is_still_on(vg):
        return []
    found = []
    for unit, data in zip(rebuilt.table, _table(device, rebuilt)):
        merged = merged_table(unit, data)
        if merged != data:
            found.append(Chunk(unit.offset, merged))
    return found


def _table(device: Device, rebuilt: Rebuilt) -> List[bytes]:
    return device.read([Range(unit.offset, len(unit.old)) for unit in rebuilt.table])
