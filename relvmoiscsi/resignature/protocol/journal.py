# SPDX-License-Identifier: LGPL-2.1-only
"""The journal of a run, to which the commit record in the label points.

    ring           | JournalHeader | zlib( length of facts | facts (JSON) | bytes ) | padding |

The journal holds the old and the new bytes of whole blocks, and the places of the identities in the blocks
(`run_record.IdField`). While a run is cut, VMs, SM and LVM may write the bytes between the identities.
"""

import hashlib
import json
import struct
import zlib
from array import array
from io import BytesIO
from itertools import accumulate, chain
from typing import Any, Dict, Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.device import SECTOR, Device, Range, align_up
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.pv import Label, MdaHeader, parse_label
from relvmoiscsi.formats.lvm.vg import Segment
from relvmoiscsi.formats.ondisk import Record, expect_magic, le32, le64, raw
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    IN_PROGRESS,
    KINDS,
    RECORD_MAGIC,
    RECORD_VERSION,
    SWITCHED,
    CommitRecord,
    scsi_id_digest,
    with_commit_record,
)
from relvmoiscsi.resignature.protocol.merged_image import MergedImage, TableUnit
from relvmoiscsi.resignature.protocol.run_record import (
    IdField,
    MdaMove,
    PvAndVg,
    Run,
    Write,
    verify_run,
)
from relvmoiscsi.wording import cut

JOURNAL_MAGIC = b"reLVMjnl"
VERSION = 1

ALIGNMENT = 4096  #: a journal starts and ends on multiples of ALIGNMENT
FAST, DENSE = 3, 6  #: zlib's levels; DENSE takes twice as long for an eighth less
MAX_JOURNAL_BYTES = 64 << 20  #: compressed or not; a larger journal is refused
#: limits of the text. An SR has at most 4094 VDIs (mgt.MAX_RECORDS): each has at most 46 values, of which 18 are
#: lists, and 700 bytes. The largest VHD, of 2040 GiB, has a number of 14 digits for each of its blocks of 2 MiB.
MOST_FACTS_BYTES = 24 << 20
MOST_VALUES = 5 << 18
MOST_INNER = 1 << 17
MOST_WORD = 1024  #: characters of a text in the facts: an id, or the name of a structure

#: fields of a commit record in messages, where the name of a field says too little
_SAID = {"scsi_id_digest": "SCSIid", "replaced_pv_id": "replaced PV id", "replaced_vg_id": "replaced VG id"}
#: the errors that reading a payload raises when the payload holds no run
_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error, zlib.error,
)  # fmt: skip

# fmt: off


class JournalHeader(Record, size=64):
    """Start of a journal."""

    magic = raw(0, 8)
    version = le32(8)
    reserved = le32(12)
    payload_length = le64(16)  #: bytes behind this header, compressed
    raw_length = le64(24)  #: bytes of the payload once it is inflated
    payload_digest = raw(32, 32)  #: SHA-256 of the compressed payload


# fmt: on


class Journal(NamedTuple):
    """A run, and the place and bytes of its journal on the device."""

    run: Run
    offset: int
    data: bytes

    def commit_record(self, phase: int) -> CommitRecord:
        return CommitRecord.zero(
            magic=RECORD_MAGIC,
            version=RECORD_VERSION,
            phase=phase,
            kind=self.run.kind,
            journal_length=len(self.data),
            run_id=self.run.run_id,
            journal_offset=self.offset,
            scsi_id_digest=scsi_id_digest(self.run.scsi_id),
            journal_digest=hashlib.sha256(self.data[: JournalHeader.SIZE]).digest(),
            replaced_pv_id=self.run.replaced.pv_id.encode("ascii"),
            replaced_vg_id=self.run.replaced.vg_id.encode("ascii"),
        )

    def label(self, phase: int, found: Optional[Label] = None) -> bytes:
        """The label sector in a phase of the run: made of the label before the run, or of a label as `found` now."""
        run, where = self.run, Place("the journal", 0)
        if phase == DONE and run.final_label and found is None:
            return run.final_label
        label = found if found is not None else parse_label(run.old_label, run.label_number, where)
        label = label.as_of_today(where)
        areas = tuple(move.second if phase == SWITCHED else move.original for move in run.mdas)
        sector = label.sector if phase == IN_PROGRESS else label.sector_with(run.new_pv_id, areas)
        return with_commit_record(sector, self.commit_record(phase))


# --- the journal's bytes


def encode(run: Run, level: int = FAST) -> bytes:
    """The journal of a run, padded with zeros to ALIGNMENT. Equal runs give equal bytes.

    `level` is a compression level of zlib.
    """
    facts: Dict[str, Any] = {
        "tool": run.tool,
        "kind": KINDS[run.kind],
        "run_id": run.run_id.hex(),
        "scsi_id": run.scsi_id,
        "sr": run.ids.sr,
        "uuids": run.ids.uuids,
        "lvm_ids": run.ids.lvm_ids,
        "replaced": run.replaced,
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
    if run.unverified:
        facts["unverified"] = run.unverified
    if run.merged is not None:
        new = run.merged
        facts["rebuilt"] = {
            "lv_id": new.lv_id,
            "segments": new.segments,
            "table": [[unit.offset, len(unit.old), unit.first, unit.end] for unit in new.table],
        }
        for name, units in (("full", new.full), ("empty", new.empty)):  # differences, which compress well
            facts["rebuilt"][name] = [unit - before for before, unit in zip(chain([0], units), units)]
    blobs = [run.old_label, run.final_label]
    blobs += [part for move in run.mdas for part in (move.old_header, move.second_header, move.final_header)]
    blobs += [part for write in run.writes for part in (write.old, write.new)]
    blobs += [part for unit in (run.merged.table if run.merged else ()) for part in (unit.old, unit.new)]
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


def decode(data: bytes, where: Place, digest: bytes, device_size: int) -> Run:
    """The run in a journal; `digest` is `journal_digest` of the commit record. Raises FormatError.

    The digests are verified before any other part of the journal is read.
    """
    header = JournalHeader.at(data, 0, where)
    expect_magic("Journal", where, header.magic, JOURNAL_MAGIC)
    if header.version != VERSION:
        raise Unsupported("Journal", where, f"its version is {header.version}")
    if hashlib.sha256(bytes(header)).digest() != digest:
        raise Malformed("Journal", where, "it is not the journal of the commit record in the label")
    packed = data[header.SIZE : header.SIZE + header.payload_length]
    if hashlib.sha256(packed).digest() != header.payload_digest:
        stored, computed = (
            int.from_bytes(x[:4], "big") for x in (header.payload_digest, hashlib.sha256(packed).digest())
        )
        raise BadChecksum("Journal", where, stored, computed)
    try:
        length = header.raw_length
        payload = zlib.decompressobj().decompress(packed, min(length, MAX_JOURNAL_BYTES) + 1)
        if len(payload) != length:
            raise ValueError(f"it does not have {length} bytes")
        run = _run(BytesIO(payload))
        verify_run(run, device_size, where)
    except _UNREADABLE as error:
        raise Malformed("Journal", where, f"its content does not read: {cut(str(error), MOST_WORD)}") from error
    return run


def _run(payload: BytesIO) -> Run:
    """The run of a payload; each value has its type. Raises the errors of _UNREADABLE, FormatError."""
    (text_length,) = struct.unpack("<Q", payload.read(8))
    facts = untrusted.object_of(payload.read(text_length), MOST_FACTS_BYTES, MOST_VALUES, MOST_INNER)
    kinds = {name: kind for kind, name in KINDS.items()}
    run = Run(  # the bytes behind the facts are read in the order in which `encode` writes them
        kind=kinds[facts["kind"]],
        run_id=bytes.fromhex(facts["run_id"]),
        scsi_id=_word_or_none(facts["scsi_id"]),
        tool=_word(facts["tool"]),
        ids=IdMap(_word(facts["sr"]), _words(facts["uuids"]), _words(facts["lvm_ids"])),
        replaced=PvAndVg(*map(_word, facts["replaced"])),
        label_number=untrusted.size_of(facts["label_number"]),
        old_label=_bytes(payload, SECTOR),
        new_pv_id=_word(facts["new_pv_id"]),
        final_label=_bytes(payload, SECTOR if facts["has_final_label"] is True else 0),
        mdas=tuple(_move(item, payload) for item in facts["mdas"]),
        writes=tuple(
            Write(untrusted.size_of(at), _bytes(payload, length), _bytes(payload, length), _word(what))
            for at, length, what in facts["writes"]
        ),
        fields=tuple(
            IdField(_ranges(pieces), _word(what), _word(kind), _ranges(around))
            for pieces, what, kind, around in facts["fields"]
        ),
        block_bytes=untrusted.size_of(facts["block_bytes"]),
        one=_word_or_none(facts.get("one")),
        unverified=tuple(map(_word, untrusted.texts_of(facts.get("unverified", [])))),
    )
    if "rebuilt" not in facts:
        return run
    new = facts["rebuilt"]
    full, empty = (array("q", accumulate(map(untrusted.whole_of, new[name]))) for name in ("full", "empty"))
    merged = MergedImage(
        lv_id=_word(new["lv_id"]),
        segments=tuple(Segment(*_sizes(item)) for item in new["segments"]),
        full=full,
        empty=empty,
        table=tuple(
            TableUnit(untrusted.size_of(at), _bytes(payload, length), _bytes(payload, length), *_sizes((first, end)))
            for at, length, first, end in new["table"]
        ),
    )
    return run._replace(merged=merged)


def _word(value: Any) -> str:
    text = untrusted.text_of(value)
    if len(text) > MOST_WORD:  # messages, plans and answers repeat it
        raise ValueError(f"a text has {len(text)} characters")
    return text


def _word_or_none(value: Any) -> Optional[str]:
    return None if value is None else _word(value)


def _words(value: Any) -> Dict[str, str]:
    return {_word(old): _word(new) for old, new in value.items()}


def _sizes(values: Iterable[Any]) -> Iterator[int]:
    return map(untrusted.size_of, values)


def _bytes(payload: BytesIO, length: Any) -> bytes:
    """The next `length` bytes. Raises ValueError where the payload ends before."""
    found = payload.read(untrusted.size_of(length))
    if len(found) != length:
        raise ValueError("its bytes are not complete")
    return found


def _move(item: Sequence[Sequence[Any]], payload: BytesIO) -> MdaMove:
    original, second = _ranges(item)
    old = _bytes(payload, MdaHeader.SIZE)
    second_header = _bytes(payload, MdaHeader.SIZE if second != original else 0)
    return MdaMove(original, second, old, second_header, _bytes(payload, MdaHeader.SIZE))


def _ranges(values: Sequence[Sequence[Any]]) -> Tuple[Range, ...]:
    return tuple(Range(*_sizes(value)) for value in values)


# --- on a device


class EarlierRun(NamedTuple):
    """An earlier run on a LUN: the label with its commit record, and its journal."""

    label: Label
    commit_record: CommitRecord
    journal: Journal


def read_journal(device: Device, record: CommitRecord, label: Label) -> Journal:
    """The journal that a commit record points to. Raises FormatError."""
    found = Range(record.journal_offset, record.journal_length)
    if not JournalHeader.SIZE <= found.length <= MAX_JOURNAL_BYTES or found.end > device.size_bytes:
        problem = f"it says that {found.length} bytes of journal lie at byte {found.offset}"
        raise Malformed("Commit record", Place(device.name, label.offset), problem)
    data = device.read([found])[0]
    place = Place(device.name, found.offset)
    journal = Journal(decode(data, place, record.journal_digest, device.size_bytes), found.offset, data)
    ours = journal.commit_record(record.phase).replace(writer=record.writer, claim=record.claim)
    for field in record.fields():
        if field.stored(ours) != field.stored(record):
            problem = f"it has another {_SAID.get(field.name, field.name)} than the commit record in the label"
            raise Malformed("Journal", place, problem)
    return journal
