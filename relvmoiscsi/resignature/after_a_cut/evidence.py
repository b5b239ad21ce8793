# SPDX-License-Identifier: LGPL-2.1-only
"""How far a run has come, by what the metadata areas and the contents hold: a label may be late, or torn."""

from typing import Optional, Sequence

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import FormatError, Place
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Area
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.resignature.after_a_cut import repair
from relvmoiscsi.resignature.protocol.journal import Journal
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS, SWITCHED
from relvmoiscsi.resignature.protocol.run import MdaMove, Run
from relvmoiscsi.resignature.writing.canvas import read_canvas


def evident_phase(device: Device, run: Run) -> Optional[int]:
    """How far a run has come, by the metadata areas alone; None when they are not as any phase leaves them."""
    if is_prepared(device, run):
        return IN_PROGRESS
    moving = [move for move in run.mdas if move.moves]
    for move in moving:
        found = vg_in(device, move.original)
        if found and found.pv_id == run.new_pv_id:
            return SWITCHED
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    if headers != [move.old_header for move in run.mdas] or is_going_back(device, run):
        return None
    for move in moving:
        found = vg_in(device, move.second)
        if found and found.pv_id == run.new_pv_id:
            return SWITCHED
    return None


def is_prepared(device: Device, run: Run) -> bool:
    """Whether the metadata areas are as step 1 leaves them: LVM has changed nothing since."""
    moving = [move for move in run.mdas if move.moves]
    found = device.read([Range(m.original.offset, SECTOR) for m in run.mdas])
    if found != [move.old_header for move in run.mdas]:
        return False
    seconds = device.read([Range(m.second.offset, SECTOR) for m in moving])
    return seconds == [move.second_header for move in moving] and _texts_hold(device, moving)


def is_taken_back(device: Device, run: Run) -> bool:
    """Whether the way back has been taken as far as the second areas: one has no header any more."""
    moving = [move for move in run.mdas if move.moves]
    return not all(map(any, device.read([Range(move.second.offset, SECTOR) for move in moving])))


def is_going_back(device: Device, run: Run) -> bool:
    """Whether a run that was cut before its commit was being taken back, or has been, and LVM has changed nothing."""
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    if headers != [move.old_header for move in run.mdas]:
        return False
    return any(move.moves and _has_no_header(device, move.second) for move in run.mdas)


def _has_no_header(device: Device, area: Area) -> bool:
    """Whether LVM could not follow a label there: a header that is zeros, or torn on the way to that."""
    try:
        pv.parse_mda(device.read([Range(area.offset, SECTOR)])[0], area, Place(device.name, area.offset))
    except FormatError:
        return True
    return False


def _texts_hold(device: Device, moves: Sequence[MdaMove]) -> bool:
    mdas = [pv.parse_mda(move.second_header, move.second, Place(device.name, move.second.offset)) for move in moves]
    try:
        for mda, text in zip(mdas, pv.read_texts(device, mdas)):
            pv.verify_text(text, mda.committed, Place(device.name, mda.area.offset))
    except FormatError:
        return False
    return True


def vg_in(device: Device, area: Area) -> Optional[VolumeGroup]:
    """The volume group that a metadata area speaks of; None when it does not read."""
    place = Place(device.name, area.offset)
    try:
        mda = pv.parse_mda(device.read([Range(area.offset, SECTOR)])[0], area, place)
        if not mda.has_text:
            return None
        text = pv.read_texts(device, [mda])[0]
        pv.verify_text(text, mda.committed, place)
        return read_vg(text[:-1].decode("latin-1"), place)
    except FormatError:
        return None


def has_begun(device: Device, journal: Journal) -> bool:
    return repair.shows_new(journal.run, read_canvas(device, journal.run))
