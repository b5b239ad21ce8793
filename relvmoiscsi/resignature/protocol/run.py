# SPDX-License-Identifier: LGPL-2.1-only
"""Everything that is needed to finish a run or to take it back, as values; and whether it may be believed. Pure."""

from bisect import bisect_right
from typing import NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Range
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats.identity import IdMap, is_uuid, parse_lvm_id
from relvmoiscsi.formats.lvm.pv import LABEL_SECTORS, Area, parse_label
from relvmoiscsi.resignature.protocol import structure
from relvmoiscsi.resignature.protocol.mark import Tail
from relvmoiscsi.resignature.protocol.rebuilt import Rebuilt, verify_rebuilt

BLOCK_BYTES = (512, 4096)


class Write(NamedTuple):
    """One range of the device in whole blocks, before and after."""

    offset: int
    old: bytes
    new: bytes
    what: str

    @property
    def range(self) -> Range:
        return Range(self.offset, len(self.new))


class Field(NamedTuple):
    """Bytes of the device that are an identity, or a flag that a run changes; they lie in the run's writes.

    A volume is not always in one piece, so neither is a field.
    """

    pieces: Tuple[Range, ...]
    what: str
    kind: str = ""  #: of the structure with a checksum that it is part of (`resignature.protocol.structure`)
    around: Tuple[Range, ...] = ()  #: that structure

    @property
    def length(self) -> int:
        return sum(piece.length for piece in self.pieces)


class MdaMove(NamedTuple):
    """A metadata area on its way: while SWITCHED the label lists `second` in its place.

    An area that LVM ignores does not move, and nothing is written to it: `second` is `original`. The label lists it all
    the time, so LVM would see a header that a cut has torn.
    """

    original: Area
    second: Area
    old_header: bytes  #: 512 bytes at the start of `original`, before
    second_header: bytes  #: at the start of `second`; empty when the area does not move
    final_header: bytes  #: at the start of `original`, in the end

    @property
    def moves(self) -> bool:
        return self.second != self.original


class Run(NamedTuple):
    """Everything that is needed to finish a run or to take it back, on any host."""

    kind: int
    run_id: bytes
    scsi_id: Optional[str]
    tool: str  #: version that made it
    ids: IdMap
    label_number: int  #: sector of the label
    old_label: bytes  #: 512 bytes, before
    new_pv_id: str
    final_label: bytes  #: 512 bytes for an UNDO: exactly what was there before; empty for a RESIGNATURE
    mdas: Tuple[MdaMove, ...]
    writes: Tuple[Write, ...]  #: to the contents of volumes
    fields: Tuple[Field, ...] = ()  #: the identities in `writes`
    block_bytes: int = SECTOR  #: `writes` are made of blocks of this size
    rebuilt: Optional[Rebuilt] = None  #: of a run that made several images one VDI
    one: Optional[str] = None  #: the old UUID of the only VDI that stays; None: all stay


def verify_run(run: Run, device_size: int, where: Place) -> None:
    """Nothing in a run points outside the device or at what it must not touch; its ids are ids. Raises FormatError.

    Contents lie outside the label and the metadata areas; areas and headers lie on the device.
    """
    _verify_ids(run, where)
    if not 0 <= run.label_number < LABEL_SECTORS:
        raise Malformed("Journal", where, f"its label is in sector {run.label_number}")
    label = parse_label(run.old_label, run.label_number, where)
    if label.mdas != tuple(move.original for move in run.mdas):
        raise Malformed("Journal", where, "its metadata areas are not those of its label")
    spans = [(0, 4 * SECTOR)] + [(move.original.offset, move.original.end) for move in run.mdas]
    for move in run.mdas:
        inside = move.original.offset <= move.second.offset and move.second.end <= move.original.end
        if not inside or move.original.end > device_size or move.original.offset < 4 * SECTOR:
            raise Malformed("Journal", where, "its metadata areas do not lie in each other")
    for write in run.writes:
        end = write.offset + len(write.new)
        if write.offset < 0 or end > device_size or any(write.offset < b and a < end for a, b in spans):
            raise Malformed("Journal", where, f"it would write {len(write.new)} bytes at {write.offset}")
    reached = 0
    for write in sorted(run.writes):
        if write.offset < reached or not write.new:
            raise Malformed("Journal", where, f"it would write twice, or nothing, at byte {write.offset}")
        reached = write.range.end
    _verify_fields(run, device_size, spans, where)
    if run.rebuilt is not None:
        verify_rebuilt(run.rebuilt, device_size, spans, where)


def _verify_fields(run: Run, device_size: int, spans: Sequence[Tuple[int, int]], where: Place) -> None:
    """Every field lies in a write and in its structure, every structure where contents are."""
    if run.block_bytes not in BLOCK_BYTES:
        raise Malformed("Journal", where, f"its blocks have {run.block_bytes} bytes")
    writes = [(-1, -1), *sorted((write.offset, write.offset + len(write.new)) for write in run.writes)]
    starts = [start for start, _end in writes]
    for field in run.fields:
        for offset, length in field.pieces:
            _start, end = writes[bisect_right(starts, offset) - 1]
            if offset < 0 or length <= 0 or offset + length > end:
                raise Malformed("Journal", where, f"a field at byte {offset} is not in its writes")
        for part in field.around:
            ours = any(part.offset < end and start < part.end for start, end in spans)
            if part.offset < 0 or part.length <= 0 or part.end > device_size or ours:
                raise Malformed("Journal", where, f"a structure at byte {part.offset} is no content")
        if not field.pieces or bool(field.kind) != bool(field.around) or field.around and not _lies_in(field):
            raise Malformed("Journal", where, "a field is not part of its structure")
        size = sum(part.length for part in field.around)
        if field.kind and not structure.fits(field.kind, size):
            raise Malformed("Journal", where, f"a {field.kind} of {size} bytes is not known")


def _lies_in(field: Field) -> bool:
    return all(
        any(part.offset <= piece.offset and piece.end <= part.end for part in field.around) for piece in field.pieces
    )


def _verify_ids(run: Run, where: Place) -> None:
    for uuid in [run.ids.sr, *run.ids.uuids, *run.ids.uuids.values()]:
        if not isinstance(uuid, str) or not is_uuid(uuid):
            raise Malformed("Journal", where, f"{uuid!r} is no UUID")
    for lvm_id in [run.new_pv_id, *run.ids.lvm_ids, *run.ids.lvm_ids.values()]:
        parse_lvm_id(str(lvm_id), "Id in the journal", where)
    if run.ids.sr not in run.ids.uuids:
        raise Malformed("Journal", where, f"the SR {run.ids.sr} has no new UUID")
    if run.one is not None and run.one not in run.ids.uuids:
        raise Malformed("Journal", where, f"the VDI {run.one} has no new UUID")
    if not isinstance(run.scsi_id, (str, type(None))) or len(run.run_id) != Tail.run_id.size:
        raise Malformed("Journal", where, "its SCSIid or its run id is none")
