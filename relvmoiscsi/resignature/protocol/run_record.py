# SPDX-License-Identifier: LGPL-2.1-only
"""The content of a journal: all values that are needed to finish a run or to take a run back; their checks. Pure."""

from typing import NamedTuple, Optional, Tuple

from relvmoiscsi.device import SECTOR, Range
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats.identity import IdMap, is_uuid, parse_lvm_id
from relvmoiscsi.formats.lvm.pv import LABEL_SECTORS, Area, parse_label
from relvmoiscsi.resignature.protocol.rebuilt import Rebuilt


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
    kind: str = ""  #: kind of the structure around the field, when the structure has a checksum (`protocol.structure`)
    around: Tuple[Range, ...] = ()  #: place of that structure

    @property
    def length(self) -> int:
        return sum(piece.length for piece in self.pieces)


class MdaMove(NamedTuple):
    """A metadata area and its second area, which the label lists in the phase SWITCHED.

    An area that LVM ignores does not move, and the run writes nothing there: `second` equals `original`. The label
    lists this area in all phases, so LVM would read a header that a cut has torn.
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
    """All values that are needed to finish a run or to take the run back, on any host."""

    kind: int
    run_id: bytes
    scsi_id: Optional[str]
    tool: str  #: version of relvmoiscsi that made the run
    ids: IdMap
    label_number: int  #: sector of the label
    old_label: bytes  #: 512 bytes, before
    new_pv_id: str
    final_label: bytes  #: for an UNDO, the 512 bytes of the label before the resignature; empty for a RESIGNATURE
    mdas: Tuple[MdaMove, ...]
    writes: Tuple[Write, ...]  #: to the contents of volumes
    fields: Tuple[IdField, ...] = ()  #: the identities in `writes`
    block_bytes: int = SECTOR  #: block size of `writes`
    rebuilt: Optional[Rebuilt] = None  #: for a run that merges images
    one: Optional[str] = None  #: the old UUID of the only VDI that stays; None when all VDIs stay
    unverified: Tuple[str, ...] = ()  #: ids, in the SR before the resignature, of LVs left behind that do not verify


def verify_run(run: Run, device_size: int, where: Place) -> None:
    """Raises FormatError for a wrong id, and for a write behind the end of the device or into LVM's sectors.

    The digests prove that relvmoiscsi wrote the journal, so its values agree with each other. But messages print the
    ids, and the device may have become smaller.
    """
    for uuid in [run.ids.sr, *run.ids.uuids, *run.ids.uuids.values()]:
        if not is_uuid(uuid):
            raise Malformed("Journal", where, f"{uuid!r} is no UUID")
    for lvm_id in [run.new_pv_id, *run.ids.lvm_ids, *run.ids.lvm_ids.values(), *run.unverified]:
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
