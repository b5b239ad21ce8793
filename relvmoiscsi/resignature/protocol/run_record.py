# SPDX-License-Identifier: LGPL-2.1-only
"""The content of a journal: all values that are needed to finish a run or to take a run back; their checks. Pure."""

import re
import sys
from bisect import bisect_right
from itertools import chain
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

from relvmoiscsi.device import SECTOR, Range
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats.identity import UUID_PATTERN, IdMap, is_lvm_id, is_uuid, may_become
from relvmoiscsi.formats.lvm.pv import LABEL_SECTORS, MDA_HEADER_SIZE, parse_label
from relvmoiscsi.formats.lvm.ring import ALIGNMENT
from relvmoiscsi.formats.vhd import STRUCTURES
from relvmoiscsi.formats.vhd_blocks import UNIT
from relvmoiscsi.resignature.protocol.commit_record import IN_PROGRESS, RESIGNATURE
from relvmoiscsi.resignature.protocol.merged_image import MergedImage, given_away
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import said


class Write(NamedTuple):
    """A range of whole blocks of the device, before and after."""

    offset: int
    old: bytes
    new: bytes
    what: str

    @property
    def range(self) -> Range:
        return Range(self.offset, len(self.new))


class IdField(NamedTuple):
    """The place of an identity, or of a flag that a run changes. The run's writes cover the place.

    A field of a volume with several segments may be in several pieces.
    """

    pieces: Tuple[Range, ...]
    what: str
    kind: str = ""  #: kind of the structure around the field, when the structure has a checksum (`vhd.STRUCTURES`)
    around: Tuple[Range, ...] = ()  #: place of that structure


class MdaMove(NamedTuple):
    """A metadata area and its second area, which the label lists in the phase SWITCHED.

    An area that LVM ignores does not move, and the run writes nothing there: `second` equals `original`. The label
    lists this area in all phases, so LVM would read a header that a cut has torn.
    """

    original: Range
    second: Range
    old_header: bytes  #: 512 bytes at the start of `original`, before
    second_header: bytes  #: at the start of `second`; empty when the area does not move
    final_header: bytes  #: at the start of `original`, in the end

    @property
    def moves(self) -> bool:
        return self.second != self.original


class PvAndVg(NamedTuple):
    """Ids of a PV and of its VG, without dashes."""

    pv_id: str
    vg_id: str


class Run(NamedTuple):
    """All values that are needed to finish a run or to roll the run back, on any host."""

    kind: int
    run_id: bytes
    scsi_id: Optional[str]
    tool: str  #: version of relvmoiscsi that made the run
    ids: IdMap
    replaced: PvAndVg  #: before the resignature: an UNDO gives these ids back
    label_number: int  #: sector of the label
    old_label: bytes  #: 512 bytes, before
    new_pv_id: str
    final_label: bytes  #: for an UNDO, the 512 bytes of the label before the resignature; empty for a RESIGNATURE
    mdas: Tuple[MdaMove, ...]
    writes: Tuple[Write, ...]  #: to the contents of volumes
    fields: Tuple[IdField, ...] = ()  #: the identities in `writes`
    block_bytes: int = SECTOR  #: block size of `writes`
    merged: Optional[MergedImage] = None  #: for a run that merges images
    one: Optional[str] = None  #: the old UUID of the only VDI that stays; None when all VDIs stay
    unverified: Tuple[str, ...] = ()  #: ids, in the SR before the resignature, of LVs left behind that do not verify

    def __repr__(self) -> str:
        return f"Run({self.ids!r}, {len(self.writes)} writes)"

    @property
    def label_offset(self) -> int:
        """Bytes from the start of the device to the label sector."""
        return self.label_number * SECTOR

    def held_sr(self, phase: int) -> str:
        """The UUID of the SR that the LUN holds in this phase of the run."""
        return self.ids.sr if phase == IN_PROGRESS else self.ids.new_sr


_RUN_ID_BYTES = 16
#: blocks of a device, in bytes
_BLOCK_BYTES = [SECTOR << shift for shift in range(8)]
#: extents of a volume: of 4 MiB, as the storage manager has them, 16 TiB
_MOST_EXTENTS = 1 << 22

#: what a run writes to (`Change.what`), or the first of several. Plans and messages repeat the name
_WHAT = re.compile(
    r"(?:(?:VHD (?:footer|footer copy|header|parent locator)|QCOW2 (?:hidden flag|backing file)|CBT (?:parent|child) "
    rf"link) of (?:(?:VHD|LV|QCOW2)-(?:OLD_)?{UUID_PATTERN}|{UUID_PATTERN}\.cbtlog)|MGT: (?:bytes in use|"
    rf"UUID of the SR|UUID of VDI {UUID_PATTERN}|VDI {UUID_PATTERN} is a snapshot of|"
    r"(?:record|UUID in the unreadable record) at byte [0-9]+))(?: and [0-9]+ more)?\Z"
)


#: raises FormatError with the problem, unless the condition holds
_Require = Callable[[bool, str], None]


def verify_run(run: Run, device_size: int, where: Place) -> None:
    """Raises FormatError for a wrong id, and for a write behind the end of the device or into LVM's sectors.

    The digests prove that the journal is the journal of the commit record. A program that writes the LUN can make both,
    with any content. So each value has its range here, before a run reads or writes by that value.
    """

    def require(holds: bool, problem: str) -> None:
        if not holds:
            raise Malformed("Journal", where, problem)

    _verify_identities(run, require)
    _verify_places(run, device_size, where, require)
    _verify_writes(run, require)
    if run.merged is not None:
        _verify_merged(run.merged, run.block_bytes, require)


def _verify_identities(run: Run, require: _Require) -> None:
    for uuid in [run.ids.sr, *run.ids.uuids, *run.ids.uuids.values(), *filter(None, [run.one])]:
        require(is_uuid(uuid), f"{said(uuid)} is no UUID")
    require(run.ids.sr in run.ids.uuids, "its map has no new UUID of the SR")
    is_undo = run.kind != RESIGNATURE
    original, made = (run.ids.new_sr, run.ids.sr) if is_undo else (run.ids.sr, run.ids.new_sr)
    pairs = ((before, after) for after, before in run.ids.uuids.items()) if is_undo else run.ids.uuids.items()
    for before, after in pairs:
        # else the map of a stranger could name the VDI of another tenant as the one before the resignature
        may_be = before == original or may_become(made, before, after)
        require(may_be, f"its map says that {before} became {after}, which is derived from another UUID")
    require(run.one is None or run.one in run.ids.uuids, "its map has no new UUID of the VDI that stays")
    for lvm_id in [run.new_pv_id, *run.replaced, *run.ids.lvm_ids, *run.ids.lvm_ids.values(), *run.unverified]:
        require(is_lvm_id(lvm_id), f"{said(lvm_id)} is not an LVM id")
    is_named = run.scsi_id is None or is_scsi_id(run.scsi_id.replace("/", "_"))  # a serial number may have slashes
    require(is_named, f"{said(run.scsi_id or '')} is no SCSIid")


def _verify_places(run: Run, device_size: int, where: Place, require: _Require) -> None:
    require(len(run.run_id) == _RUN_ID_BYTES, "the id of its run has another length")
    require(run.block_bytes in _BLOCK_BYTES, f"{run.block_bytes} bytes are no block")
    label = parse_label(run.old_label, run.label_number, where)
    require(label.mdas == tuple(move.original for move in run.mdas), "its metadata areas are not those of its label")
    contents = [write.range for write in run.writes] + [part for field in run.fields for part in field.around]
    contents += run.merged.hulls() if run.merged is not None else []
    label_end = LABEL_SECTORS * SECTOR
    reserved = [Range(0, label_end), *(move.original for move in run.mdas)]
    for part in contents:
        is_lvms = any(part.offset < other.end and other.offset < part.end for other in reserved)
        is_inside = part.offset >= 0 and part.end <= device_size
        require(is_inside and not is_lvms, f"it would write {part.length} bytes at {part.offset}")
    for move in run.mdas:
        area, second = move.original, move.second
        # zeros over the header of the second area must not meet the header of the original, or bytes behind the area
        first = area.offset + (MDA_HEADER_SIZE if move.moves else 0)
        is_nested = label_end <= area.offset and first <= second.offset < second.end <= area.end <= device_size
        require(is_nested, "its metadata areas do not lie in each other")
        is_whole = not move.moves or not second.offset % ALIGNMENT and not second.length % ALIGNMENT
        require(is_whole, f"no second metadata area has {second.length} bytes at {second.offset}")


def _verify_writes(run: Run, require: _Require) -> None:
    for what in chain((write.what for write in run.writes), (field.what for field in run.fields)):
        require(_WHAT.match(what) is not None, f"no run writes to {said(what)}")
    for write in run.writes:
        is_whole = not write.offset % run.block_bytes and not len(write.new) % run.block_bytes and bool(write.new)
        require(is_whole, f"{len(write.new)} bytes at {write.offset} are no blocks")
    # a recovery compares each field with its write: fields that overlap could name one write a thousand times
    pieces = sorted(piece for field in run.fields for piece in field.pieces)
    are_apart = all(before.end <= after.offset for before, after in zip(pieces, pieces[1:]))
    require(are_apart, "its fields overlap")
    written = joined(write.range for write in run.writes)
    for field in run.fields:
        require(field.kind in ("", *STRUCTURES), f"it knows a structure {said(field.kind)}")
        size = STRUCTURES[field.kind].SIZE if field.kind else 0
        is_as_long = sum(part.length for part in field.around) == size and len(field.around) <= size // SECTOR
        require(is_as_long, f"a {field.kind or 'field'} has another length")
        require(bool(field.pieces), f"its writes do not cover a field: {field.what}")
        for piece in field.pieces:
            at = bisect_right(written, Range(piece.offset, sys.maxsize)) - 1
            is_covered = at >= 0 and piece.length > 0 and piece.end <= written[at].end
            require(is_covered, f"its writes do not cover a field: {field.what}")
            hulls = field.around or [piece]
            is_inside = any(hull.offset <= piece.offset and piece.end <= hull.end for hull in hulls)
            require(is_inside, f"a field is outside its {field.kind}: {field.what}")


def _verify_merged(new: MergedImage, block_bytes: int, require: _Require) -> None:
    require(is_lvm_id(new.lv_id), f"{said(new.lv_id)} is not an LVM id")
    extents = sum(one.extent_count for one in new.segments)
    require(extents <= _MOST_EXTENTS, f"it makes a volume of {extents} extents")
    for at in chain(new.full, new.empty, (unit.offset for unit in new.table)):
        require(not at % block_bytes, f"a unit of the new image begins at {at}")
    for offsets in (new.full, new.empty):
        units = sorted(offsets)
        are_apart = all(after - at >= UNIT for at, after in zip(units, units[1:]))
        require(are_apart, "units of the new image overlap")
    for unit in new.table:
        is_table = unit.first <= unit.end <= len(unit.old) and not len(unit.old) % block_bytes
        require(is_table and bool(unit.old), f"the block table at {unit.offset} has another length")
    holes = sum(1 for unit in new.table for _ in given_away(unit))
    require(holes == len(new.empty), "its block table gives away another number of holes")


def joined(ranges: Iterable[Range]) -> List[Range]:
    """The ranges in order. Ranges that touch are one range."""
    found: List[Range] = []
    for part in sorted(ranges):
        if found and part.offset <= found[-1].end:
            before = found.pop()
            found.append(Range(before.offset, max(part.end, before.end) - before.offset))
        else:
            found.append(part)
    return found
