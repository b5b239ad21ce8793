# SPDX-License-Identifier: LGPL-2.1-only
"""From what is on a LUN and the ids it is to have, to the complete list of writes. Pure: nothing is read or written.

A plan holds every byte of a run before the first one is written. What the steps of `resignature.steps` write is in

    prepared       journal and second metadata area
    run.writes     contents of volumes
    headers        of the metadata areas at their original place
    labels()       the label sector in every state
"""

from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, align_up, torn_bytes
from relvmoiscsi.errors import Place, Refused, UsageError
from relvmoiscsi.formats import cbt, naming
from relvmoiscsi.formats.cbt import CbtLog
from relvmoiscsi.formats.identity import (
    Entropy,
    IdMap,
    check_one_to_one,
    derived_lvm_id,
    derived_uuid,
    is_lvm_id,
    is_uuid,
    new_uuid,
)
from relvmoiscsi.formats.lvm import layout, pv, ring
from relvmoiscsi.formats.lvm.pv import Area, Label, Mda
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup, renamed_text
from relvmoiscsi.formats.mgt import records as mgt_records
from relvmoiscsi.formats.ondisk import Change
from relvmoiscsi.formats.qcow2 import image as qcow2
from relvmoiscsi.formats.qcow2.image import Qcow2
from relvmoiscsi.formats.vhd import image as vhd
from relvmoiscsi.formats.vhd.image import Vhd
from relvmoiscsi.resignature import repair, sm_journals, structure
from relvmoiscsi.resignature.canvas import Canvas
from relvmoiscsi.resignature.journal import Journal, encode
from relvmoiscsi.resignature.lun import Lun, Volume, VolumeChange
from relvmoiscsi.resignature.run import Field, MdaMove, Run, Write
from relvmoiscsi.resignature.tail import DONE, IN_PROGRESS, RESIGNATURE, SWITCHED, UNDO, Tail, with_tail

#: the bytes of a range, which a survey has read
Known = Callable[[Range], bytes]


class Plan(NamedTuple):
    """A run, and everything it writes that is not in its journal."""

    journal: Journal
    areas: Tuple[Chunk, ...]  #: second metadata areas, headers and texts
    text: bytes  #: the new metadata text, as stored
    label_now: bytes = b""  #: the label sector on the device, where it is not the run's old label

    @property
    def run(self) -> Run:
        return self.journal.run

    @property
    def prepared(self) -> Tuple[Chunk, ...]:
        return (self.journal.chunk, *self.areas)

    @property
    def headers(self) -> Tuple[Chunk, ...]:
        return tuple(Chunk(move.original.offset, move.final_header) for move in self.run.mdas if move.moves)

    def labels(self) -> "Labels":
        return Labels.of(self.journal)


class Labels(NamedTuple):
    """The label sector in every state of a run."""

    offset: int  #: bytes from the start of the device
    before: bytes
    in_progress: bytes
    switched: bytes
    final: bytes

    @classmethod
    def of(cls, journal: Journal) -> "Labels":
        run = journal.run
        label = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
        return cls(
            offset=label.offset,
            before=run.old_label,
            in_progress=with_tail(label.as_of_today(Place("the journal", 0)).sector, journal.tail(IN_PROGRESS)),
            switched=switched_label(label, run, journal.tail(SWITCHED)),
            final=run.final_label or final_label(label, run, journal.tail(DONE)),
        )


def switched_label(label: Label, run: Run, tail: Tail) -> bytes:
    """The commit: new PV id, the second areas, the mark."""
    label = label.as_of_today(Place("the label", 0))
    return with_tail(label.sector_with(run.new_pv_id, tuple(move.second for move in run.mdas)), tail)


def final_label(label: Label, run: Run, tail: Tail) -> bytes:
    """New PV id, the original areas, the mark."""
    label = label.as_of_today(Place("the label", 0))
    return with_tail(label.sector_with(run.new_pv_id, tuple(move.original for move in run.mdas)), tail)


# --- ids


def old_uuids(lun: Lun) -> List[str]:
    """Every SR and VDI UUID on the LUN, links to what is gone included, each once, the SR's first.

    Those that SM's own unfinished work speaks of are among them.
    """
    found = [lun.sr_uuid]
    for volume in lun.volumes:
        found.append(volume.name.uuid or "")
        found.append(volume.parent.uuid if volume.parent else "")
        if isinstance(volume.content, CbtLog):
            found += [volume.content.parent or "", volume.content.child or ""]
    for mgt in filter(None, (lun.mgt, lun.settled().mgt)):
        for record in mgt.records:
            found += [record.uuid, record.snapshot_of]
        found += [link.uuid for slot in mgt.unread for link in slot.links]
    found += sm_journals.old_uuids(lun)
    return list(dict.fromkeys(uuid for uuid in found if uuid))


def old_lvm_ids(lun: Lun) -> List[str]:
    """PV id, VG id, LV ids."""
    return [lun.label.pv_id, lun.vg.id] + [lv.id for lv in lun.vg.lvs]


def choose_ids(lun: Lun, entropy: Entropy, chosen: Optional[IdMap] = None, sr_uuid: Optional[str] = None) -> IdMap:
    """New ids for everything: those of `chosen`; `sr_uuid` or a random one for the SR; the rest derived from that.

    Raises UsageError for a choice that is no id, that is not on the LUN, or that is not one to one.
    """
    wanted_uuids = dict(chosen.uuids) if chosen else {}
    wanted_lvm_ids = dict(chosen.lvm_ids) if chosen else {}
    if sr_uuid is not None and wanted_uuids.setdefault(lun.sr_uuid, sr_uuid) != sr_uuid:
        raise UsageError(f"The map chooses another SR UUID than {sr_uuid}.")
    if lun.sr_uuid not in wanted_uuids:
        wanted_uuids[lun.sr_uuid] = new_uuid(entropy)
    new_sr = wanted_uuids[lun.sr_uuid]
    for uuid in wanted_uuids.values():
        if not is_uuid(uuid):
            raise UsageError(f"{uuid!r} is no UUID as SM writes it: 36 characters, lower case.")
    for lvm_id in wanted_lvm_ids.values():
        if not is_lvm_id(lvm_id):
            raise UsageError(f"{lvm_id!r} is no LVM id: 32 letters and digits, without dashes.")
    uuids = _chosen(old_uuids(lun), wanted_uuids, lambda old: derived_uuid(new_sr, old), "UUID")
    lvm_ids = _chosen(old_lvm_ids(lun), wanted_lvm_ids, lambda old: derived_lvm_id(new_sr, old), "LVM id")
    check_one_to_one(uuids, "UUID")
    check_one_to_one(lvm_ids, "LVM id")
    return IdMap(lun.sr_uuid, uuids, lvm_ids)


def _chosen(old: Sequence[str], wanted: Mapping[str, str], derive: Callable[[str], str], what: str) -> Dict[str, str]:
    for unknown in sorted(set(wanted) - set(old)):
        raise UsageError(f"The map speaks of the {what} {unknown}, which is not on the LUN.")
    return {identity: wanted[identity] if identity in wanted else derive(identity) for identity in old}


# --- the plan of a resignature


def block_bytes_of(lun: Lun, device: Device) -> int:
    """How large the blocks are that a journal of this LUN keeps: what a cut may tear.

    Where extents or metadata areas do not begin at such blocks, one would reach into what is not ours; then it is the
    logical block, and what a tear takes of the neighbours is lost.
    """
    whole = torn_bytes(device)
    starts = [lun.vg.pe_start, lun.vg.extent_size, *(mda.area.offset for mda in lun.mdas)]
    return whole if not any(start % whole for start in starts) else device.block_size


def plan_resignature(
    lun: Lun, known: Known, block_bytes: int, ids: IdMap, run_id: bytes, scsi_id: Optional[str], tool: str
) -> Plan:
    """All writes that give the LUN the new ids. Raises Refused when journal and second area do not fit.

    `block_bytes` is that of `block_bytes_of`.
    """
    text = _new_text(lun, ids)
    changes = list(volume_changes(lun, ids))
    run = Run(
        kind=RESIGNATURE,
        run_id=run_id,
        scsi_id=scsi_id,
        tool=tool,
        ids=ids,
        label_number=lun.label.number,
        old_label=lun.label.sector,
        new_pv_id=ids.lvm_ids[lun.label.pv_id],
        final_label=b"",
        mdas=(),
        writes=content_writes(lun.vg, changes, known, block_bytes),
        blocks=_blocks_around(lun.label, lun.mdas, known, block_bytes),
        fields=content_fields(lun.vg, changes),
        block_bytes=block_bytes,
    )
    return _placed(run, lun.name, lun.mdas, text, finals=None, keep=())


def _blocks_around(label: Label, mdas: Sequence[Mda], known: Known, block_bytes: int) -> Tuple[Chunk, ...]:
    """The blocks of the device that hold the label and the headers, where there is more in them.

    Raises Refused where such a block is not LVM's alone: what lies beside a header must not change during a run.
    """
    if block_bytes == SECTOR:
        return ()
    starts = [align_down(label.offset, block_bytes)] + [mda.area.offset for mda in mdas]
    for start in starts:
        if start % block_bytes:
            raise Refused(f"The metadata area at byte {start} begins inside a block of {block_bytes} bytes.")
    return tuple(Chunk(start, known(Range(start, block_bytes))) for start in starts)


def _new_text(lun: Lun, ids: IdMap) -> bytes:
    after = {volume.lv.id: volume for volume in lun.settled().volumes}
    lvs: Dict[str, Optional[LogicalVolume]] = {}
    for lv in lun.vg.lvs:
        volume = after.get(lv.id)
        lvs[lv.name] = volume.lv._replace(name=volume.name.renamed(ids.uuids)) if volume else None
    vg_name = naming.VG_PREFIX + ids.new_sr
    return renamed_text(lun.vg, vg_name, lvs, ids.lvm_ids, ids.uuids).encode("latin-1") + b"\0"


def volume_changes(lun: Lun, ids: IdMap) -> Iterator[VolumeChange]:
    """What changes inside volumes, byte for byte: identities, and what SM's unfinished work leads to."""
    settled = lun.settled()
    after = {volume.lv.id: volume for volume in settled.volumes}
    for volume in lun.volumes:
        if volume.lv.id in after:
            for change in _changes_in(lun, settled, volume, after[volume.lv.id], ids):
                yield VolumeChange(volume, change)


def _changes_in(lun: Lun, settled: Lun, before: Volume, after: Volume, ids: IdMap) -> List[Change]:
    name = before.name.text
    if isinstance(before.content, Vhd) and isinstance(after.content, Vhd):
        found = vhd.footer_changes(before.content, after.content, name, before.size)
        return found + vhd.changes(after.content, after.texts, after.parent, ids.uuids, name)
    if isinstance(before.content, Qcow2) and isinstance(after.content, Qcow2):
        found = qcow2.hidden_changes(before.content, after.content, name)
        return found + qcow2.changes(after.content, b"".join(after.texts), ids.uuids, name)
    if isinstance(after.content, CbtLog):
        return cbt.changes(after.content, ids.uuids, name)
    if after.name.kind == naming.MGT and lun.mgt and settled.mgt:
        return mgt_records.changes_between(lun.mgt, settled.mgt, ids.new_sr, ids.uuids, name)
    return []


class _Part(NamedTuple):
    """The part of a change that lies in one piece on the device."""

    offset: int
    new: bytes
    what: str


def content_writes(
    vg: VolumeGroup, changes: Iterable[VolumeChange], known: Known, block_bytes: int
) -> Tuple[Write, ...]:
    """Changes of volumes as writes of whole blocks of the device, in the order of the device."""
    changes = list(changes)
    parts = []
    for volume, change in changes:
        pieces = vg.ranges(volume.lv, change.offset, len(change.new))
        parts += _parts(pieces, change.new, change.what)
    return _writes(parts, content_fields(vg, changes), known, block_bytes)


def content_fields(vg: VolumeGroup, changes: Iterable[VolumeChange]) -> Tuple[Field, ...]:
    """The identities in what changes, and where they lie on the device."""
    found: List[Field] = []
    for volume, change in changes:
        if change.old == change.new:
            continue
        kind, around = "", ()  # type: str, Tuple[Range, ...]
        if change.within is not None:
            kind = change.within.kind
            around = tuple(vg.ranges(volume.lv, change.within.offset, change.within.length))
        checksum = _checksum_in(change)
        whole = [Range(0, len(change.new))]
        for part in structure.differing(change.old, change.new, checksum) if checksum else whole:
            pieces = tuple(vg.ranges(volume.lv, change.offset + part.offset, part.length))
            found.append(Field(pieces, change.what, kind, around))
    return tuple(found)


def _checksum_in(change: Change) -> Optional[Range]:
    """The checksum, counted from the start of the change; it follows from the rest and is no identity."""
    place = structure.checksum_range(change.within.kind) if change.within else None
    if place is None or change.within is None:
        return None
    return Range(change.within.offset + place.offset - change.offset, place.length)


def _parts(pieces: Iterable[Range], new: bytes, what: str) -> List[_Part]:
    found, done = [], 0
    for piece in pieces:
        found.append(_Part(piece.offset, new[done : done + piece.length], what))
        done += piece.length
    return found


def _writes(parts: Iterable[_Part], fields: Iterable[Field], known: Known, block_bytes: int) -> Tuple[Write, ...]:
    """The blocks that change, or hold a part of a field."""
    blocks: Dict[int, List[_Part]] = {}
    for part in parts:
        for at in _blocks_of(part.offset, len(part.new), block_bytes):
            blocks.setdefault(at, []).append(part)
    held = {at for field in fields for piece in field.pieces for at in _blocks_of(*piece, block_bytes)}
    changed = [
        at for at in sorted(blocks) if at in held or _patched(at, known(Range(at, block_bytes)), blocks[at]) is not None
    ]
    return tuple(_write(group, blocks, known, block_bytes) for group in _groups(changed, block_bytes))


def _blocks_of(offset: int, length: int, block_bytes: int) -> Iterable[int]:
    return range(align_down(offset, block_bytes), offset + length, block_bytes)


def _patched(start: int, old: bytes, parts: Iterable[_Part]) -> Optional[bytes]:
    """The bytes `old`, which begin at `start`, with all parts in them; None when they are as they were."""
    new = bytearray(old)
    for part in parts:
        first, last = max(part.offset, start), min(part.offset + len(part.new), start + len(old))
        new[first - start : last - start] = part.new[first - part.offset : last - part.offset]
    return bytes(new) if new != old else None


def _groups(changed: Sequence[int], block_bytes: int) -> List[List[int]]:
    """Blocks that become one write: neighbours."""
    groups: List[List[int]] = []
    for at in changed:
        if groups and at == groups[-1][-1] + block_bytes:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _write(group: Sequence[int], blocks: Mapping[int, Sequence[_Part]], known: Known, block_bytes: int) -> Write:
    start, end = group[0], group[-1] + block_bytes
    old = known(Range(start, end - start))
    new = _patched(start, old, [part for at in group for part in blocks[at]])
    names = list(dict.fromkeys(blocks[at][0].what for at in group))
    what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return Write(start, old, new or old, what)


# --- room in the ring


def _placed(
    run: Run, name: str, mdas: Sequence[Mda], text: bytes, finals: Optional[Sequence[bytes]], keep: Sequence[Range]
) -> Plan:
    """The plan with its second areas and its journal in free ring space; `keep` must not be written.

    `finals` are the headers to end with; None: headers that point to the text in the second area.
    """
    journal_bytes = 0
    drawn = int.from_bytes(run.new_pv_id.encode("ascii"), "big")
    for spare, lot in ((True, drawn), (True, 0), (False, 0)):
        moves = _moves(mdas, text, finals, keep, spare, lot)
        if moves is None:
            continue
        placed = run._replace(mdas=tuple(moves))
        data = encode(placed)
        journal_bytes = len(data)
        room = _journal_room(mdas, moves, keep, journal_bytes, lot)
        if room is not None:
            return Plan(Journal(placed, room.offset, data), tuple(_area_chunks(moves, text)), text)
    free = sum(part.length for mda in mdas if mda.has_text for part in _free(mda, keep))
    raise Refused(
        "{}: there is no room for the journal: it needs {} bytes and a second metadata area of {} bytes, and {} bytes "
        "of the metadata area are free.".format(name, journal_bytes or "some", len(text) + 512, free),
        sm_key="SRNoSpace",
    )


def _free(mda: Mda, taken: Sequence[Range]) -> List[Range]:
    live = pv.text_ranges(mda.area, mda.committed, Place("the metadata area", mda.area.offset))
    inside = [part for part in taken if mda.area.offset <= part.offset < mda.area.end]
    return ring.free_ranges(mda.area, live, inside)


def _moves(
    mdas: Sequence[Mda],
    text: bytes,
    finals: Optional[Sequence[bytes]],
    keep: Sequence[Range],
    spare: bool,
    lot: int,
) -> Optional[List[MdaMove]]:
    moves = []
    for index, mda in enumerate(mdas):
        if not mda.has_text:
            moves.append(MdaMove(mda.area, mda.area, bytes(mda.header), b"", bytes(mda.header)))
            continue
        second = ring.place_second_area(_free(mda, keep), len(text), spare, lot)
        if second is None:
            return None
        moves.append(_move(mda, second, text, finals[index] if finals else b""))
    return moves


def _move(mda: Mda, second: Area, text: bytes, final: bytes) -> MdaMove:
    at = second.offset + layout.MDA_HEADER_SIZE
    moved = pv.mda_header(second, pv.text_location(second, at, text))
    settled = pv.mda_header(mda.area, pv.text_location(mda.area, at, text), mda.header)
    return MdaMove(mda.area, second, bytes(mda.header), bytes(moved), final or bytes(settled))


def _journal_room(
    mdas: Sequence[Mda], moves: Sequence[MdaMove], keep: Sequence[Range], length: int, lot: int
) -> Optional[Range]:
    taken = list(keep) + [Range(*move.second) for move in moves if move.moves]
    for mda in mdas:
        room = ring.place_journal(_free(mda, taken), length, lot) if mda.has_text else None
        if room is not None:
            return room
    return None


def _area_chunks(moves: Sequence[MdaMove], text: bytes) -> Iterable[Chunk]:
    for move in moves:
        if move.moves:
            data = move.second_header + text
            yield Chunk(move.second.offset, data.ljust(align_up(len(data), ring.ALIGNMENT), b"\0"))


# --- the plan of an undo


class Undone(NamedTuple):
    """What an undo makes of the contents of volumes: as they are, as they will be, and where the identities are."""

    writes: Tuple[Write, ...]
    fields: Tuple[Field, ...]


def undone_contents(run: Run, canvas: Canvas, known: Known) -> Undone:
    """The way back from a finished run: the canvas, filled with what is there, gets the old identities.

    What others have written since stays. Raises Refused where an identity is neither the new one nor the old one.
    """
    if not run.fields:
        return Undone(run.reversed_writes(), ())
    fields = repair.fields_now(run, canvas)
    repair.put_right(run, canvas, forward=False)
    parts: List[_Part] = []
    for field in fields:
        parts += _parts(field.pieces, canvas.get(field.pieces), field.what)
        place = structure.checksum_range(field.kind)
        if place is not None:
            pieces = repair.part_of(field.around, place)
            parts += _parts(pieces, canvas.get(pieces), field.what)
    return Undone(_writes(parts, fields, known, run.block_bytes), fields)


def plan_undo(
    done: Journal,
    label: Label,
    mdas: Sequence[Mda],
    old_text: bytes,
    live: Sequence[Range],
    known: Known,
    contents: Undone,
    run_id: bytes,
    tool: str,
) -> Plan:
    """All writes that give the old ids back: a run like any other, whose target is what was there before.

    `live` is where the old text lies; it and the finished run's journal stay until the undo has committed.
    """
    before = done.run
    old = pv.parse_label(before.old_label, before.label_number, Place("the journal", 0))
    run = Run(
        kind=UNDO,
        run_id=run_id,
        scsi_id=before.scsi_id,
        tool=tool,
        ids=before.ids.reversed(),
        label_number=label.number,
        old_label=label.sector,
        new_pv_id=old.pv_id,
        final_label=before.old_label,
        mdas=(),
        writes=contents.writes,
        blocks=tuple(Chunk(block.offset, known(_range_of(block))) for block in before.blocks),
        fields=contents.fields,
        block_bytes=before.block_bytes,
    )
    keep = [*live, Range(done.offset, len(done.data))]
    finals = [move.old_header for move in before.mdas]
    return _placed(run, "The LUN", mdas, old_text, finals, keep)


def _range_of(chunk: Chunk) -> Range:
    return Range(chunk.offset, len(chunk.data))
