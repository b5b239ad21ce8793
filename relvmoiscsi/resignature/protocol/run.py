# SPDX-License-Identifier: LGPL-2.1-only
"""Everything that is needed to finish a run or to take it back, as values; and whether it may be believed. Pure."""

from typing import NamedTuple, Optional, Tuple

from relvmoiscsi.device import SECTOR, Range
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats.identity import IdMap, is_uuid, parse_lvm_id
from relvmoiscsi.formats.lvm.pv import LABEL_SECTORS, Area, parse_label
from relvmoiscsi.resignature.protocol.rebuilt import Rebuilt


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
    """The ids of a run are ids, and nothing of it lies behind the end of the device or in LVM's sectors.

    The digests say that this project wrote the journal, so the values in it agree with each other. But ids are shown to
    people, and the device may have become smaller. Raises FormatError.
    """
    for uuid in [run.ids.sr, *run.ids.uuids, *run.ids.uuids.values()]:
        if not is_uuid(uuid):
            raise Malformed("Journal", where, f"{uuid!r} is no UUID")
    for lvm_id in [run.new_pv_id, *run.ids.lvm_ids, *run.ids.lvm_ids.values()]:
        parse_lvm_id(lvm_id, "Id in the journal", where)
    label = parse_label(run.old_label, run.label_number, where)
    if label.mdas != tuple(move.original for move in run.mdas):
        raise Malformed("Journal", where, "its metadata areas are not those of its label")
    contents = [write.range for write in run.writes] + [part for field in run.fields for part in field.around]
    contents += run.rebuilt.hulls() if run.rebuilt is not None else []
    label_end = LABEL_SECTORS * SECTOR
    reserved = [Range(0, label_end), *(Range(*move.original) for move in run.mdas)]
    for part in contents:
        is_lvms = any(part.offset < other.end and other.offset < part.end for other in reserved)
        if is_lvms or not 0 <= part.offset <= part.end <= device_size:
            raise Malformed("Journal", where, f"it would write {part.length} bytes at {part.offset}")
    for area, second in ((move.original, move.second) for move in run.mdas):
        if not label_end <= area.offset <= second.offset < second.end <= area.end <= device_size:
            raise Malformed("Journal", where, "its metadata areas do not lie in each other")
