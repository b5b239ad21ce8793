# SPDX-License-Identifier: LGPL-2.1-only
"""What is left to do in a volume that was made anew, as the journal has it, on whatever is there now.

Bitmaps of filled blocks are all ones before the commit, whichever way the run goes. Free slots are given away after
the commit: first their bitmaps are emptied, then the block table names them. Where somebody has used the SR in between,
what tapdisk has written stays; where LVM has given the extents to somebody else, nothing is written.
"""

import errno
import logging
from typing import Iterable, List, Optional, Sequence

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import DeviceError
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.resignature.protocol.rebuilt import (
    EMPTY_UNIT,
    FULL_UNIT,
    Again,
    Rebuilt,
    TableUnit,
    merged_table,
    not_given_yet,
)
from relvmoiscsi.resignature.protocol.run import Run

log = logging.getLogger(__name__)


def full_units(run: Run) -> Iterable[Chunk]:
    """The bitmaps of blocks that were filled up."""
    return _all_the_same(run.rebuilt.full if run.rebuilt else (), FULL_UNIT)


def all_empty_units(run: Run) -> Iterable[Chunk]:
    """The bitmaps of slots that are given away."""
    return _all_the_same(run.rebuilt.empty if run.rebuilt else (), EMPTY_UNIT)


def _all_the_same(units: Sequence[int], data: bytes) -> "Again[Chunk]":
    return Again(lambda: (Chunk(unit, data) for unit in units))


def empty_units(device: Device, rebuilt: Rebuilt, vg: Optional[VolumeGroup]) -> Iterable[Chunk]:
    """The bitmaps of slots that the block table does not give away yet; none where the volume is not ours any more."""
    if vg is None or not rebuilt.is_still_on(vg):
        log.warning("%s: the volume group was changed; free slots of the new image stay unused", device.name)
        return ()
    return _all_the_same(not_given_yet(rebuilt, _table(device, rebuilt)), EMPTY_UNIT)


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
    return [_unit(device, unit) for unit in rebuilt.table]


def _unit(device: Device, unit: TableUnit) -> bytes:
    """A unit of the block table; one that a cut has made unreadable is as it was."""
    try:
        return device.read([Range(unit.offset, len(unit.old))])[0]
    except DeviceError as error:
        if error.errno != errno.ENODATA:
            raise
        return unit.old
