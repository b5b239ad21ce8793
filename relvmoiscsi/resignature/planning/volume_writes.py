# SPDX-License-Identifier: LGPL-2.1-only
"""The changes of a run inside volumes: writes of whole blocks, and the places of identities in these blocks. Pure."""

import re
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from relvmoiscsi.device import Chunk, Range, align_down, in_pieces, overlaid
from relvmoiscsi.formats import cbt, naming, qcow2, vhd
from relvmoiscsi.formats import mgt as mgt_records
from relvmoiscsi.formats.cbt import CbtLog
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.formats.ondisk import Change, Field
from relvmoiscsi.formats.qcow2 import Qcow2
from relvmoiscsi.formats.vhd import Vhd
from relvmoiscsi.resignature.protocol import identities
from relvmoiscsi.resignature.protocol.identities import WriteBuffer
from relvmoiscsi.resignature.protocol.run_record import IdField, Run, Write
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume

#: a change of bytes inside a volume
VolumeChange = Tuple[Volume, Change]

#: gives the bytes of ranges that a survey has read: `ReadCache.read`
Known = Callable[[Sequence[Range]], List[bytes]]

#: differing bytes with at most so many bytes between them are one field
_FIELD_GAP_BYTES = 64
_DIFFERENT = re.compile(rb"[^\0](?:\0{0,%d}[^\0])*" % _FIELD_GAP_BYTES)


def volume_changes(lun: Lun, ids: IdMap) -> Iterator[VolumeChange]:
    """The changed bytes inside volumes: identities, and the changes of SM's unfinished work."""
    settled = lun.settled()
    after = {volume.lv.id: volume for volume in settled.volumes}
    merged = lun.work.merged if lun.work else None
    for volume in lun.volumes:
        if volume.lv.id not in after or volume.lv.id == merged:
            continue
        then, name, found = after[volume.lv.id], volume.name.text, []  # type: Volume, str, List[Change]
        old, new = volume.content, then.content
        if isinstance(old, Vhd) and isinstance(new, Vhd):
            found = vhd.changes(old, new, then.texts, then.parent, ids.uuids, name, volume.size)
        elif isinstance(old, Qcow2) and isinstance(new, Qcow2):
            found = qcow2.changes(old, new, b"".join(then.texts), then.parent, ids.uuids, name)
        elif isinstance(new, CbtLog):
            found = cbt.changes(new, ids.uuids, name)
        elif then.name.kind == naming.MGT and lun.mgt and settled.mgt:
            found = mgt_records.changes(lun.mgt, settled.mgt, ids.new_sr, ids.uuids)
        yield from ((volume, change) for change in found)


#: a part of a change, in one piece on the device, and what the change is
_Part = Tuple[Chunk, str]


def content_writes(
    vg: VolumeGroup, changes: Iterable[VolumeChange], fields: Iterable[IdField], known: Known, block_bytes: int
) -> Tuple[Write, ...]:
    """The changes of volumes as writes of whole blocks, in the order of the device.

    `fields` are the identities in the changes: a block that holds a part of one is written even without a change.
    """
    parts: List[_Part] = []
    for volume, change in changes:
        pieces = vg.ranges(volume.lv, change.offset, len(change.new))
        parts += [(chunk, change.what) for chunk in in_pieces(pieces, change.new)]
    return _writes(parts, fields, known, block_bytes)


def content_fields(vg: VolumeGroup, changes: Iterable[VolumeChange]) -> Tuple[IdField, ...]:
    """The identities in the changes, and their places on the device."""
    found: List[IdField] = []
    for volume, change in changes:
        if change.old == change.new:
            continue
        parts, around = [Range(0, len(change.new))], ()  # type: List[Range], Tuple[Range, ...]
        if change.kind:
            around = tuple(vg.ranges(volume.lv, change.offset, len(change.new)))
            parts = differing(change.old, change.new, vhd.STRUCTURES[change.kind].checksum)
        for part in parts:
            pieces = tuple(vg.ranges(volume.lv, change.offset + part.offset, part.length))
            found.append(IdField(pieces, change.what, change.kind, around))
    return tuple(found)


def differing(old: bytes, new: bytes, checksum: "Field[int]") -> List[Range]:
    """The ranges in which two versions of a structure differ, near ranges joined. The checksum is not compared."""
    both = bytearray((int.from_bytes(old, "big") ^ int.from_bytes(new, "big")).to_bytes(len(old), "big"))
    both[checksum.offset : checksum.end] = bytes(checksum.size)
    return [Range(match.start(), match.end() - match.start()) for match in _DIFFERENT.finditer(both)]


def _writes(parts: Iterable[_Part], fields: Iterable[IdField], known: Known, block_bytes: int) -> Tuple[Write, ...]:
    """The writes of the blocks that change, or that hold a part of a field."""
    blocks: Dict[int, List[_Part]] = {}
    for chunk, what in parts:
        for at in range(align_down(chunk.offset, block_bytes), chunk.end, block_bytes):
            blocks.setdefault(at, []).append((chunk, what))
    pieces = (piece for field in fields for piece in field.pieces)
    starts = ((align_down(piece.offset, block_bytes), piece.end) for piece in pieces)
    of_fields = {at for start, end in starts for at in range(start, end, block_bytes)}
    doubtful = sorted(at for at in blocks if at not in of_fields)
    for at, old in zip(doubtful, known([Range(at, block_bytes) for at in doubtful])):
        if overlaid(old, at, [chunk for chunk, _what in blocks[at]]) == old:
            del blocks[at]
    spans: List[Range] = []  # of neighbouring blocks: each becomes one write
    for at in sorted(blocks):
        start = spans.pop().offset if spans and spans[-1].end == at else at
        spans.append(Range(start, at + block_bytes - start))
    writes = []
    for span, old in zip(spans, known(spans)):
        inside = [blocks[at] for at in range(span.offset, span.end, block_bytes)]
        new = overlaid(old, span.offset, [chunk for several in inside for chunk, _what in several])
        names = list(dict.fromkeys(several[0][1] for several in inside))
        what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        writes.append(Write(span.offset, old, new, what))
    return tuple(writes)


# --- undo


def undone_contents(run: Run, buffer: WriteBuffer, known: Known) -> Tuple[Write, ...]:
    """The writes to contents that undo a finished run. `buffer` must hold the present bytes of the device.

    Bytes beside the identities stay, also when a VM or SM has changed these bytes since the run.
    """
    identities.put_back(run, buffer)
    parts: List[_Part] = []
    for field in run.fields:
        parts += [(chunk, field.what) for chunk in in_pieces(field.pieces, buffer.get(field.pieces))]
        if field.kind:
            checksum = vhd.STRUCTURES[field.kind].checksum
            pieces = identities.part_of(field.around, Range(checksum.offset, checksum.size))
            parts += [(chunk, field.what) for chunk in in_pieces(pieces, buffer.get(pieces))]
    return _writes(parts, run.fields, known, run.block_bytes)
