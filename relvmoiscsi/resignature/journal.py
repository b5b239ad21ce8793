# SPDX-License-Identifier: LGPL-2.1-only
"""What a run leaves on the LUN about itself: a mark in the label sector, and the journal the mark points to.

    label sector   0        416               512
                   | LVM's  | Tail            |       phase, address and digest of the journal, under LVM's checksum
    ring           | JournalHeader | zlib( length of facts | facts (JSON) | bytes ) | padding |

The journal holds whole blocks, before and after, and says which bytes of them are identities (`Field`). The bytes
between may be written by others while a run is cut; only what is torn is put right by whole blocks. Journals of
version 1 (releases up to 1.0) know blocks only.

The tail lives and dies with the label: LVM keeps it when it updates the VG and erases it when it changes the identity
of the PV. A run moves the tail through the phases IN_PROGRESS, SWITCHED and DONE; `resignature.states` says what the
LUN holds in each of them. No tail: nothing of ours, or an undo gave the old label back.
"""

import hashlib
import json
import struct
import zlib
from bisect import bisect_right
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Range, align_up
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.formats.identity import IdMap, is_uuid, parse_lvm_id
from relvmoiscsi.formats.lvm.layout import LABEL_SECTORS, MdaHeader
from relvmoiscsi.formats.lvm.pv import Area, Label, parse_label, sealed_label
from relvmoiscsi.formats.ondisk import (
    Record,
    expect_magic,
    le32,
    le64,
    raw,
    u8,
)
from relvmoiscsi.resignature import states, structure

TAIL_MAGIC = b"reLVMtag"
JOURNAL_MAGIC = b"reLVMjnl"
TAIL_VERSION = 1
VERSION = 2  #: of the journal
READ_VERSIONS = (1, 2)

IN_PROGRESS, SWITCHED, DONE = 1, 2, 3
PHASES = {IN_PROGRESS: states.IN_PROGRESS, SWITCHED: states.SWITCHED, DONE: states.DONE}  #: the states they mark
RESIGNATURE, UNDO = 1, 2
KINDS = {RESIGNATURE: "resignature", UNDO: "undo"}

BLOCK_BYTES = (512, 4096)
ALIGNMENT = 4096  #: a journal starts and ends on multiples of it
_INFLATE_BYTES = 16 << 10  #: at least so much is inflated at a time
MAX_JOURNAL_BYTES = 64 << 20  #: compressed or not; a larger one is not believed

# fmt: off


class Tail(Record, size=96):
    """The last 96 bytes of the label sector."""

    magic          = raw(0, 8)
    version        = u8(8)
    phase          = u8(9)
    kind           = u8(10)
    reserved1      = u8(11)
    journal_length = le32(12)     #: bytes
    run_id         = raw(16, 16)
    journal_offset = le64(32)     #: bytes from the start of the device
    scsi_id_digest = raw(40, 16)  #: of the SCSIid the run was made for; zero: it was not known
    reserved2      = le64(56)
    journal_digest = raw(64, 32)  #: SHA-256 of the JournalHeader, which holds that of the rest


class JournalHeader(Record, size=64):
    """Start of a journal."""

    magic          = raw(0, 8)
    version        = le32(8)
    reserved       = le32(12)
    payload_length = le64(16)     #: bytes behind this header, compressed
    raw_length     = le64(24)     #: bytes of the payload once it is inflated
    payload_digest = raw(32, 32)  #: SHA-256 of the compressed payload


# fmt: on

TAIL_AT = SECTOR - Tail.SIZE


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
    kind: str = ""  #: of the structure it is part of (`resignature.structure`); "": of none that others write to
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
    #: where blocks are larger than a sector: the blocks of label and headers, before. What a cut tears is a whole block
    blocks: Tuple[Chunk, ...] = ()
    fields: Tuple[Field, ...] = ()  #: the identities in `writes`; none: the blocks as a whole are meant (version 1)
    block_bytes: int = SECTOR  #: what a cut may tear in `writes` is this large and aligned

    def reversed_writes(self) -> Tuple[Write, ...]:
        return tuple(Write(w.offset, w.new, w.old, w.what) for w in self.writes)


class Journal(NamedTuple):
    """A run as it lies, or will lie, on the device."""

    run: Run
    offset: int
    data: bytes

    @property
    def chunk(self) -> Chunk:
        return Chunk(self.offset, self.data)

    def tail(self, phase: int) -> Tail:
        return Tail.zero(
            magic=TAIL_MAGIC,
            version=TAIL_VERSION,
            phase=phase,
            kind=self.run.kind,
            journal_length=len(self.data),
            run_id=self.run.run_id,
            journal_offset=self.offset,
            scsi_id_digest=scsi_id_digest(self.run.scsi_id),
            journal_digest=hashlib.sha256(self.data[: JournalHeader.SIZE]).digest(),
        )


def scsi_id_digest(scsi_id: Optional[str]) -> bytes:
    """What the tail keeps of a SCSIid: 16 bytes, zero when it is not known."""
    return hashlib.sha256(b"SCSIid " + scsi_id.encode("utf-8")).digest()[:16] if scsi_id else bytes(16)


def read_tail(label: Label, where: Place) -> Optional[Tail]:
    """The mark of an earlier run in a label; None when there is none.

    Raises Unsupported when the place is taken by bytes nobody here knows, or by a later version of this project.
    """
    if label.used_end > TAIL_AT:
        raise Unsupported("LVM label", where, "its lists leave no room for the mark of a run")
    data = label.sector[TAIL_AT:]
    if not any(data):
        return None
    tail = Tail.at(data)
    place = where.plus(TAIL_AT)
    if tail.magic != TAIL_MAGIC:
        raise Unsupported("LVM label", place, "its last bytes are in use by something else")
    if tail.version != TAIL_VERSION or tail.phase not in PHASES or tail.kind not in KINDS:
        raise Unsupported("Mark of a run", place, "it was made by another version of relvmoiscsi")
    return tail


def with_tail(sector: bytes, tail: Optional[Tail]) -> bytes:
    """A label sector with this mark, or with none; checksum made anew."""
    return sealed_label(sector[:TAIL_AT] + (bytes(tail) if tail else bytes(Tail.SIZE)))


# --- the journal's bytes


def encode(run: Run) -> bytes:
    """The journal of a run, padded with zeros to ALIGNMENT. The same run gives the same bytes."""
    facts = {
        "tool": run.tool,
        "kind": KINDS[run.kind],
        "run_id": run.run_id.hex(),
        "scsi_id": run.scsi_id,
        "sr": run.ids.sr,
        "uuids": run.ids.uuids,
        "lvm_ids": run.ids.lvm_ids,
        "label_number": run.label_number,
        "new_pv_id": run.new_pv_id,
        "has_final_label": bool(run.final_label),
        "mdas": [[list(move.original), list(move.second)] for move in run.mdas],
        "writes": [[write.offset, len(write.new), write.what] for write in run.writes],
        "blocks": [[block.offset, len(block.data)] for block in run.blocks],
        "fields": [[field.pieces, field.what, field.kind, field.around] for field in run.fields],
        "block_bytes": run.block_bytes,
    }
    blobs = [run.old_label, run.final_label]
    blobs += [part for move in run.mdas for part in (move.old_header, move.second_header, move.final_header)]
    blobs += [part for write in run.writes for part in (write.old, write.new)]
    blobs += [block.data for block in run.blocks]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode("utf-8")
    payload = [struct.pack("<Q", len(text)), text, *blobs]
    packer = zlib.compressobj(6)
    packed = b"".join([packer.compress(part) for part in payload] + [packer.flush()])
    header = JournalHeader.zero(
        magic=JOURNAL_MAGIC,
        version=VERSION,
        payload_length=len(packed),
        raw_length=sum(len(part) for part in payload),
        payload_digest=hashlib.sha256(packed).digest(),
    )
    data = bytes(header) + packed
    return data.ljust(align_up(len(data), ALIGNMENT), b"\0")


def journal_range(tail: Tail, where: Place, device_size: int) -> Range:
    """Where the journal lies. Raises Malformed when that cannot be."""
    found = Range(tail.journal_offset, tail.journal_length)
    if not JournalHeader.SIZE <= found.length <= MAX_JOURNAL_BYTES or found.end > device_size:
        problem = f"it says that {found.length} bytes of journal lie at byte {found.offset}"
        raise Malformed("Mark of a run", where, problem)
    return found


def decode(data: bytes, where: Place, digest: Optional[bytes] = None) -> Run:
    """The run in a journal. `digest` is the tail's; without one the journal vouches for itself.

    Raises FormatError; nothing of a journal is used before all of it is verified.
    """
    header = JournalHeader.at(data, 0, where)
    expect_magic("Journal", where, header.magic, JOURNAL_MAGIC)
    if header.version not in READ_VERSIONS:
        raise Unsupported("Journal", where, f"its version is {header.version}")
    if digest is not None and hashlib.sha256(bytes(header)).digest() != digest:
        raise Malformed("Journal", where, "it is not the one that the label speaks of")
    packed = data[header.SIZE : header.SIZE + header.payload_length]
    if hashlib.sha256(packed).digest() != header.payload_digest:
        raise BadChecksum(
            "Journal",
            where,
            int.from_bytes(header.payload_digest[:4], "big"),
            int.from_bytes(hashlib.sha256(packed).digest()[:4], "big"),
        )
    try:
        return _run(_Payload(packed, header.raw_length))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed("Journal", where, f"its content does not read: {error}") from error
    except (zlib.error, struct.error) as error:
        raise Malformed("Journal", where, f"its content does not read: {error}") from error


class _Payload:
    """What is packed in a journal, taken in order: no more is inflated at a time than is asked for."""

    def __init__(self, packed: bytes, length: int) -> None:
        if length > MAX_JOURNAL_BYTES:
            raise ValueError(f"it claims {length} bytes")
        self._inflater = zlib.decompressobj()
        self._packed, self._ready, self._left = packed, b"", length

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self._left:
            raise ValueError(f"{length - self._left} bytes are missing")
        while len(self._ready) < length:
            self._ready += self._inflate(max(_INFLATE_BYTES, length - len(self._ready)))
        found, self._ready = self._ready[:length], self._ready[length:]
        self._left -= length
        return found

    def end(self) -> None:
        """Raises ValueError unless all was taken and nothing follows."""
        if self._left or self._ready or self._inflater.decompress(self._packed, 1):
            raise ValueError("bytes are left over")

    def _inflate(self, most: int) -> bytes:
        found = self._inflater.decompress(self._packed, most)
        self._packed = self._inflater.unconsumed_tail
        if not found:
            raise ValueError("it ends early")
        return found


def _run(payload: _Payload) -> Run:
    (text_length,) = struct.unpack("<Q", payload.take(8))
    facts: Dict[str, Any] = json.loads(payload.take(text_length).decode("utf-8"))
    kinds = {name: kind for kind, name in KINDS.items()}
    run = Run(
        kind=kinds[facts["kind"]],
        run_id=bytes.fromhex(facts["run_id"]),
        scsi_id=facts["scsi_id"],
        tool=str(facts["tool"]),
        ids=IdMap(str(facts["sr"]), dict(facts["uuids"]), dict(facts["lvm_ids"])),
        label_number=int(facts["label_number"]),
        old_label=payload.take(SECTOR),
        new_pv_id=str(facts["new_pv_id"]),
        final_label=payload.take(SECTOR if facts["has_final_label"] else 0),
        mdas=tuple(_move(item, payload) for item in facts["mdas"]),
        writes=_writes(facts["writes"], payload),
        blocks=tuple(Chunk(int(offset), payload.take(int(length))) for offset, length in facts["blocks"]),
        fields=tuple(_field(*item) for item in facts.get("fields", [])),
        block_bytes=int(facts.get("block_bytes", SECTOR)),
    )
    payload.end()
    return run


def _move(item: Sequence[Sequence[int]], payload: _Payload) -> MdaMove:
    original, second = (Area(int(area[0]), int(area[1])) for area in item)
    old = payload.take(MdaHeader.SIZE)
    second_header = payload.take(MdaHeader.SIZE if second != original else 0)
    return MdaMove(original, second, old, second_header, payload.take(MdaHeader.SIZE))


def _writes(items: Sequence[Sequence[Any]], payload: _Payload) -> Tuple[Write, ...]:
    found: List[Write] = []
    for offset, length, what in items:
        old = payload.take(int(length))
        found.append(Write(int(offset), old, payload.take(int(length)), str(what)))
    return tuple(found)


def _field(pieces: Sequence[Sequence[int]], what: str, kind: str, around: Sequence[Sequence[int]]) -> Field:
    return Field(_ranges(pieces), str(what), str(kind), _ranges(around))


def _ranges(items: Sequence[Sequence[int]]) -> Tuple[Range, ...]:
    return tuple(Range(int(offset), int(length)) for offset, length in items)


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
    starts = {0}.union(move.original.offset for move in run.mdas)
    for block in run.blocks:
        if block.offset not in starts or not block.data:
            raise Malformed("Journal", where, f"a block at byte {block.offset} holds neither label nor header")


def _verify_fields(run: Run, device_size: int, spans: Sequence[Tuple[int, int]], where: Place) -> None:
    """Every field lies in a write and in its structure, every structure where contents are."""
    if run.block_bytes not in BLOCK_BYTES:
        raise Malformed("Journal", where, f"its blocks have {run.block_bytes} bytes")
    writes = sorted(write.range for write in run.writes)
    starts = [write.offset for write in writes]
    for field in run.fields:
        for piece in field.pieces:
            write = writes[bisect_right(starts, piece.offset) - 1] if writes else Range(0, 0)
            if not (write.offset <= piece.offset and piece.length > 0 and piece.end <= write.end):
                raise Malformed("Journal", where, f"a field at byte {piece.offset} is not in its writes")
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
    if not isinstance(run.scsi_id, (str, type(None))) or len(run.run_id) != Tail.run_id.size:
        raise Malformed("Journal", where, "its SCSIid or its run id is none")
