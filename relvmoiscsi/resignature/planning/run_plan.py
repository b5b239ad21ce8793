# SPDX-License-Identifier: LGPL-2.1-only
"""The plan of a run: the complete list of writes that give a LUN its new ids. Pure.

A plan has each byte that the run writes, step by step (`each_write`), before the first write.
"""

from itertools import chain
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_up, torn_bytes
from relvmoiscsi.errors import Place, Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm import pv, ring
from relvmoiscsi.formats.lvm.pv import Area, Mda
from relvmoiscsi.formats.lvm.vg import LogicalVolume, renamed_text
from relvmoiscsi.resignature.planning.volume_writes import Known, content_fields, content_writes, volume_changes
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.commit_record import RESIGNATURE
from relvmoiscsi.resignature.protocol.journal import DENSE, FAST, Journal, Labels, encode
from relvmoiscsi.resignature.protocol.rebuilt import EMPTY_UNIT, FULL_UNIT, Rebuilt, Unseen, Written
from relvmoiscsi.resignature.protocol.run_record import MdaMove, Run
from relvmoiscsi.resignature.protocol.steps import Step
from relvmoiscsi.resignature.reading.lun_contents import Lun

NEW_IMAGE = "new image"  #: `what` of the writes of a new image before the commit


class Planned(NamedTuple):
    """One write of a step."""

    offset: int
    old: Optional[bytes]  #: None for a write to free space
    new: bytes
    what: str


class Plan(NamedTuple):
    """A run, and the writes of the run that its journal does not hold."""

    journal: Journal
    areas: Tuple[Chunk, ...]  #: second metadata areas, headers and texts
    text: bytes  #: the new metadata text, as stored
    unseen: Unseen = Unseen()  #: the part of a new image that the run still has to write
    written: Written = Written()  #: the part of a new image that the run has written

    @property
    def run(self) -> Run:
        return self.journal.run

    def labels(self) -> Labels:
        return Labels.of(self.journal)

    def each_write(self, step: Step, bitmaps: bool = True) -> Iterator[Planned]:
        """The writes of a step of the protocol, in order. Writes to contents are whole blocks, as in the journal.

        `bitmaps=False` omits the bitmaps and tables of a new image: there may be millions, and no survey reads them.
        """
        rebuilt = self.run.rebuilt or Rebuilt("", ())
        if step == steps.JOURNAL:
            yield Planned(self.journal.offset, None, self.journal.data, "journal")
            yield from (Planned(chunk.offset, None, chunk.data, "second metadata area") for chunk in self.areas)
            pieces = chain(self.unseen.chunks, self.unseen.more if bitmaps else ())
            yield from (Planned(chunk.offset, None, chunk.data, NEW_IMAGE) for chunk in pieces)
        elif step == steps.CONTENTS:
            yield from (Planned(*write) for write in self.run.writes)
            full = rebuilt.full if bitmaps else ()
            yield from (Planned(unit, None, FULL_UNIT, "bitmap of a block that was filled") for unit in full)
        elif step == steps.HOLES:
            empty = rebuilt.empty if bitmaps else ()
            yield from (Planned(unit, None, EMPTY_UNIT, "bitmap of a free slot") for unit in empty)
        elif step == steps.HEADERS:
            yield from (Planned(unit.offset, unit.old, unit.new, "block table: free slots") for unit in rebuilt.table)
            for move in self.run.mdas:
                if move.moves:
                    yield Planned(move.original.offset, move.old_header, move.final_header, "metadata area header")
        else:
            yield self._label_write(step)

    def _label_write(self, step: Step) -> Planned:
        labels = self.labels()
        old, new = {
            steps.MARK: (labels.before, labels.in_progress),
            steps.COMMIT: (labels.in_progress, labels.switched),
            steps.FINAL: (labels.switched, labels.final),
        }[step]
        return Planned(labels.offset, old, new, step.name)

    def chunks_of(self, step: Step, bitmaps: bool = True) -> List[Chunk]:
        return [Chunk(planned.offset, planned.new) for planned in self.each_write(step, bitmaps)]


def block_bytes_of(lun: Lun, device: Device) -> int:
    """The block size of a journal of this LUN, in bytes: the physical block size, which the device writes at once.

    When extents or metadata areas do not begin at physical blocks, a physical block would also hold bytes of other
    volumes. Then the block size is the logical block size.
    """
    whole = torn_bytes(device)
    starts = [lun.vg.pe_start, lun.vg.extent_size, *(mda.area.offset for mda in lun.mdas)]
    return whole if not any(start % whole for start in starts) else device.block_size


def plan_resignature(
    lun: Lun,
    known: Known,
    block_bytes: int,
    ids: IdMap,
    run_id: bytes,
    scsi_id: Optional[str],
    tool: str,
    rebuilt: Optional[Rebuilt] = None,
    one: Optional[str] = None,
    unverified: Tuple[str, ...] = (),
) -> Plan:
    """The plan that gives the LUN the new ids. Raises Refused when the ring has no room for journal and second area.

    `block_bytes` comes from `block_bytes_of`. Only for a run to one VDI: `one` is the old UUID of the VDI that stays.
    `rebuilt` has the late writes to the new image. `unverified` as in `Run`.
    """
    text = _new_text(lun, ids)
    changes = list(volume_changes(lun, ids))
    fields = content_fields(lun.vg, changes)
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
        writes=content_writes(lun.vg, changes, fields, known, block_bytes),
        fields=fields,
        block_bytes=block_bytes,
        rebuilt=rebuilt,
        one=one,
        unverified=unverified,
    )
    return placed(run, lun.name, lun.mdas, text, finals=None, keep=())


def _new_text(lun: Lun, ids: IdMap) -> bytes:
    after, names = {volume.lv.id: volume for volume in lun.settled().volumes}, ids.names()
    lvs: Dict[str, Optional[LogicalVolume]] = {}
    for lv in lun.vg.lvs:
        volume = after.get(lv.id)
        lvs[lv.name] = volume.lv._replace(name=volume.name.renamed(names)) if volume else None
    vg_name = naming.VG_PREFIX + ids.new_sr
    return renamed_text(lun.vg, vg_name, lvs, ids).encode("latin-1") + b"\0"


# --- room in the ring


def placed(
    run: Run, name: str, mdas: Sequence[Mda], text: bytes, finals: Optional[Sequence[bytes]], keep: Sequence[Range]
) -> Plan:
    """The plan with second areas and journal in free ring space, outside the ranges `keep`. Raises Refused.

    `finals` are the headers of the original areas at the end of the run. Without `finals` these headers point to the
    text in the second area.
    """
    journal_bytes = 0
    drawn = int.from_bytes(run.new_pv_id.encode("ascii"), "big")
    for spare, lot, level in ((True, drawn, FAST), (True, drawn, DENSE), (True, 0, DENSE), (False, 0, DENSE)):
        moves = _moves(mdas, text, finals, keep, spare, lot)
        if moves is None:
            continue
        placed = run._replace(mdas=tuple(moves))
        data = encode(placed, level)
        journal_bytes = len(data)
        room = _journal_room(mdas, moves, keep, journal_bytes, lot)
        if room is not None:
            return Plan(Journal(placed, room.offset, data), tuple(_area_chunks(moves, text)), text)
    free = sum(part.length for mda in mdas if mda.has_text for part in _free(mda, keep))
    raise Refused(
        "{}: there is no room for the journal: it needs {} bytes and a second metadata area of {} bytes, and {} bytes "
        "of the metadata area are free. No command enlarges the area. Fewer VDIs need less room: --without leaves VDIs "
        "behind, --vdis one keeps one.".format(name, journal_bytes or "some", len(text) + 512, free),
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
    at = second.offset + pv.MDA_HEADER_SIZE
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
