# SPDX-License-Identifier: LGPL-2.1-only
"""The journal of a run: what the mark in the label points to.

    ring           | JournalHeader | zlib( length of facts | facts (JSON) | bytes ) | padding |

The journal holds whole blocks, before and after, and says which bytes of them are identities (`run.Field`). The bytes
between may be written by others while a run is cut.
"""

import hashlib
import json
import struct
import zlib
from itertools import zip_longest
from typing import Any, Dict, Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_up
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.pv import Area, Label, MdaHeader
from relvmoiscsi.formats.lvm.vg import Segment
from relvmoiscsi.formats.ondisk import Record, expect_magic, le32, le64, raw
from relvmoiscsi.resignature.protocol.mark import (
    KINDS,
    TAIL_MAGIC,
    TAIL_VERSION,
    Tail,
    scsi_id_digest,
)
from relvmoiscsi.resignature.protocol.rebuilt import Rebuilt, TableUnit, decode_units, encode_rebuilt
from relvmoiscsi.resignature.protocol.run import (
    Field,
    MdaMove,
    Run,
    Write,
    verify_run,
)

JOURNAL_MAGIC = b"reLVMjnl"
VERSION = 1  #: of the journal

ALIGNMENT = 4096  #: a journal starts and ends on multiples of it
FAST, DENSE = 3, 6  #: zlib's levels; DENSE takes twice as long for an eighth less
_INFLATE_BYTES = 16 << 10  #: at least so much is inflated at a time
MAX_JOURNAL_BYTES = 64 << 20  #: compressed or not; a larger one is not believed

Part = TypeVar("Part")

# fmt: off


class JournalHeader(Record, size=64):
    """Start of a journal."""

    magic          = raw(0, 8)
    version        = le32(8)
    reserved       = le32(12)
    payload_length = le64(16)     #: bytes behind this header, compressed
    raw_length     = le64(24)     #: bytes of the payload once it is inflated
    payload_digest = raw(32, 32)  #: SHA-256 of the compressed payload


# fmt: on


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


# --- the journal's bytes


def encode(run: Run, level: int = FAST) -> bytes:
    """The journal of a run, padded with zeros to ALIGNMENT. The same run gives the same bytes.

    `level` is zlib's; it is no part of the format.
    """
    facts: Dict[str, Any] = {
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
        "fields": [[field.pieces, field.what, field.kind, field.around] for field in run.fields],
        "block_bytes": run.block_bytes,
    }
    if run.one is not None:
        facts["one"] = run.one
    if run.rebuilt is not None:
        facts["rebuilt"] = encode_rebuilt(run.rebuilt)
    blobs = [run.old_label, run.final_label]
    blobs += [part for move in run.mdas for part in (move.old_header, move.second_header, move.final_header)]
    blobs += [part for write in run.writes for part in (write.old, write.new)]
    blobs += [part for unit in (run.rebuilt.table if run.rebuilt else ()) for part in (unit.old, unit.new)]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode("utf-8")
    payload = [struct.pack("<Q", len(text)), text, *blobs]
    packer = zlib.compressobj(level)
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


def decode(data: bytes, where: Place, digest: Optional[bytes] = None, known: Optional[Run] = None) -> Run:
    """The run in a journal. `digest` is the tail's; without one the journal vouches for itself.

    Of `known`, a run that it should equal, it shares the parts that do: that saves the memory of a second one.
    Raises FormatError; nothing of a journal is used before all of it is verified.
    """
    header = JournalHeader.at(data, 0, where)
    expect_magic("Journal", where, header.magic, JOURNAL_MAGIC)
    if header.version != VERSION:
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
        return _run(_Payload(packed, header.raw_length), known)
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


def _run(payload: _Payload, known: Optional[Run]) -> Run:
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
        writes=tuple(_shared(_writes(facts["writes"], payload), known.writes if known else ())),
        fields=tuple(_shared((_field(*item) for item in facts["fields"]), known.fields if known else ())),
        block_bytes=int(facts["block_bytes"]),
        rebuilt=_rebuilt(facts["rebuilt"], payload) if "rebuilt" in facts else None,
        one=str(facts["one"]) if "one" in facts else None,
    )
    payload.end()
    return run


def _move(item: Sequence[Sequence[int]], payload: _Payload) -> MdaMove:
    original, second = (Area(int(area[0]), int(area[1])) for area in item)
    old = payload.take(MdaHeader.SIZE)
    second_header = payload.take(MdaHeader.SIZE if second != original else 0)
    return MdaMove(original, second, old, second_header, payload.take(MdaHeader.SIZE))


def _writes(items: Sequence[Sequence[Any]], payload: _Payload) -> Iterator[Write]:
    for offset, length, what in items:
        old = payload.take(int(length))
        yield Write(int(offset), old, payload.take(int(length)), str(what))


def _shared(found: Iterable[Part], known: Sequence[Part]) -> Iterator[Part]:
    """What was found, and in place of what equals its counterpart that one."""
    for part, other in zip_longest(found, known):
        if part is not None:
            yield other if part == other else part


def _rebuilt(facts: Dict[str, Any], payload: _Payload) -> Rebuilt:
    return Rebuilt(
        lv_id=str(facts["lv_id"]),
        segments=tuple(Segment(int(start), int(count), int(pe)) for start, count, pe in facts["segments"]),
        full=decode_units(facts["full"]),
        empty=decode_units(facts["empty"]),
        table=tuple(_table_unit(item, payload) for item in facts["table"]),
    )


def _table_unit(item: Sequence[int], payload: _Payload) -> TableUnit:
    offset, length, first, end = (int(number) for number in item)
    old = payload.take(length)
    return TableUnit(offset, old, payload.take(length), first, end)


def _field(pieces: Sequence[Sequence[int]], what: str, kind: str, around: Sequence[Sequence[int]]) -> Field:
    return Field(_ranges(pieces), str(what), str(kind), _ranges(around))


def _ranges(items: Sequence[Sequence[int]]) -> Tuple[Range, ...]:
    return tuple(Range(int(offset), int(length)) for offset, length in items)


# --- on a device


class Mark(NamedTuple):
    """A label with the mark of a run, and the run's journal."""

    label: Label
    tail: Tail
    journal: Journal


def read_journal(device: Device, tail: Tail, label: Label) -> Journal:
    """The journal that a mark points to. Raises FormatError."""
    where = Place(device.name, label.offset)
    found = journal_range(tail, where, device.size_bytes)
    data = device.read([found])[0]
    place = Place(device.name, found.offset)
    run = decode(data, place, tail.journal_digest)
    verify_run(run, device.size_bytes, place)
    return Journal(run, found.offset, data)
