# SPDX-License-Identifier: LGPL-2.1-only
"""The plan of a run: the complete list of writes that give a LUN its new ids. Pure.

A plan has each byte that the run writes, step by step (`each_write`), before the first write.
"""

from itertools import chain
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.device import Chunk, Range, align_up, torn_bytes
from relvmoiscsi.errors import Place, Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap, with_new_ids
from relvmoiscsi.formats.lvm import pv, ring
from relvmoiscsi.formats.lvm.pv import Mda
from relvmoiscsi.formats.lvm.vg import LogicalVolume, renamed_text
from relvmoiscsi.resignature.planning.selection import Selection
from relvmoiscsi.resignature.planning.volume_writes import content_fields, content_writes, volume_changes
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.commit_record import DONE, IN_PROGRESS, RESIGNATURE, SWITCHED
from relvmoiscsi.resignature.protocol.journal import DENSE, FAST, Journal, encode
from relvmoiscsi.resignature.protocol.merged_image import EMPTY_UNIT, FULL_UNIT, Unseen, all_the_same
from relvmoiscsi.resignature.protocol.run_record import MdaMove, PvAndVg, Run
from relvmoiscsi.resignature.protocol.steps import Step
from relvmoiscsi.resignature.reading.read_cache import ReadCache

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
    unseen: Unseen = Unseen()  #: the writes of a new image before the commit record
    #: SHA-256 of each batch of `unseen`, once the run has written `unseen`: it writes no byte twice
    digests: bytes = b""

    def __repr__(self) -> str:
        return f"Plan({self.run.ids.sr} becomes {self.run.ids.new_sr})"

    @property
    def run(self) -> Run:
        return self.journal.run

    @property
    def deciding(self) -> List[Chunk]:
        """The label and the headers of the metadata areas, as read for the plan."""
        headers = [Chunk(move.original.offset, move.old_header) for move in self.run.mdas]
        return [Chunk(self.run.label_offset, self.run.old_label), *headers]

    def bitmaps_of(self, step: Step) -> Iterable[Chunk]:
        """The bitmaps and tables of a new image in a step: there may be millions, and no survey reads them."""
        if step == steps.JOURNAL:
            return self.unseen.more
        merged = self.run.merged
        if merged is not None and step in (steps.CONTENTS, steps.HOLES):
            full = step == steps.CONTENTS
            return all_the_same(merged.full if full else merged.empty, FULL_UNIT if full else EMPTY_UNIT)
        return ()

    def each_write(self, step: Step, bitmaps: bool = True) -> Iterator[Planned]:
        """The writes of a step of the protocol, in order. Writes to contents are whole blocks, as in the journal.

        `bitmaps=False` omits `bitmaps_of`.
        """
        more = self.bitmaps_of(step) if bitmaps else ()
        if step == steps.JOURNAL:
            yield Planned(self.journal.offset, None, self.journal.data, "journal")
            yield from (Planned(chunk.offset, None, chunk.data, "second metadata area") for chunk in self.areas)
            for chunk in chain(self.unseen.chunks, more) if not self.digests else ():
                yield Planned(chunk.offset, None, chunk.data, NEW_IMAGE)
        elif step == steps.CONTENTS:
            yield from (Planned(*write) for write in self.run.writes)
            for chunk in more:
                yield Planned(chunk.offset, None, chunk.data, "bitmap of a block that was filled")
        elif step == steps.HOLES:
            for chunk in more:
                yield Planned(chunk.offset, None, chunk.data, "bitmap of a free slot")
        elif step == steps.HEADERS:
            for unit in self.run.merged.table if self.run.merged is not None else ():
                yield Planned(unit.offset, unit.old, unit.new, "block table: free slots")
            for move in self.run.mdas:
                if move.moves:
                    yield Planned(move.original.offset, move.old_header, move.final_header, "metadata area header")
        else:
            before, phase = {
                steps.BEGIN: (None, IN_PROGRESS),
                steps.COMMIT: (IN_PROGRESS, SWITCHED),
                steps.FINAL: (SWITCHED, DONE),
            }[step]
            old = self.journal.label(before) if before is not None else self.run.old_label
            yield Planned(self.run.label_offset, old, self.journal.label(phase), step.name)

    def chunks_of(self, step: Step, bitmaps: bool = True) -> List[Chunk]:
        return [Chunk(planned.offset, planned.new) for planned in self.each_write(step, bitmaps)]


def plan_resignature(
    cache: ReadCache,
    selection: Selection,
    ids: IdMap,
    run_id: bytes,
    scsi_id: Optional[str],
    unverified: Tuple[str, ...] = (),
) -> Plan:
    """The plan that gives the selected VDIs the new ids. `unverified` are the ids of LVs that go, and do not verify.

    Raises Refused when the ring has no room for journal and second area.
    """
    lun, only, unseen, merged = selection.lun, selection.only, Unseen(), None
    if only is not None and selection.strategy is not None:
        unseen, merged = selection.strategy.image(cache, only.lv, ids.lvm_ids[only.lv.id])
    # of the journal: the physical block size, which the device writes at once. Where extents or metadata areas do not
    # begin at physical blocks, a physical block would also hold bytes of other volumes: then the logical block size
    block_bytes = torn_bytes(cache)
    starts = [lun.vg.pe_start, lun.vg.extent_size, *(mda.area.offset for mda in lun.mdas)]
    if any(start % block_bytes for start in starts):
        block_bytes = cache.block_size
    after, names = {volume.lv.id: volume for volume in lun.settled().volumes}, ids.names()
    lvs: Dict[str, Optional[LogicalVolume]] = {}
    for lv in lun.vg.lvs:
        volume = after.get(lv.id)
        lvs[lv.name] = volume.lv._replace(name=with_new_ids(volume.name.text, names)) if volume else None
    text = renamed_text(lun.vg, naming.VG_PREFIX + ids.new_sr, lvs, ids).encode("latin-1") + b"\0"
    changes = list(volume_changes(lun, ids))
    fields = content_fields(lun.vg, changes)
    run = Run(
        kind=RESIGNATURE,
        run_id=run_id,
        scsi_id=scsi_id,
        tool=__version__,
        ids=ids,
        replaced=PvAndVg(lun.label.pv_id, lun.vg.id),
        label_number=lun.label.number,
        old_label=lun.label.sector,
        new_pv_id=ids.lvm_ids[lun.label.pv_id],
        final_label=b"",
        mdas=(),
        writes=content_writes(lun.vg, changes, fields, cache.read, block_bytes),
        fields=fields,
        block_bytes=block_bytes,
        merged=merged,
        one=only.name.uuid if only is not None else None,
        unverified=unverified,
    )
    return place_in_ring(run, lun.name, lun.mdas, text, finals=None, retained=())._replace(unseen=unseen)


# --- room in the ring


def place_in_ring(
    run: Run, name: str, mdas: Sequence[Mda], text: bytes, finals: Optional[Sequence[bytes]], retained: Sequence[Range]
) -> Plan:
    """The plan with second areas and journal in free ring space, outside the ranges `retained`. Raises Refused.

    `finals` are the headers of the original areas at the end of the run. Without `finals` these headers point to the
    text in the second area.
    """
    used = [mda for mda in mdas if mda.has_text]
    seed, journal_bytes = int.from_bytes(run.new_pv_id.encode("ascii"), "big"), 0
    # each attempt needs less room than the attempt before
    for has_spare, attempt_seed, level in (
        (True, seed, FAST),
        (True, seed, DENSE),
        (True, 0, DENSE),
        (False, 0, DENSE),
    ):
        moves = _moves(mdas, text, finals, retained, has_spare, attempt_seed)
        if moves is None:
            continue
        placed = run._replace(mdas=tuple(moves))
        data = encode(placed, level)
        journal_bytes = len(data)
        taken = [*retained, *(move.second for move in moves if move.moves)]
        rooms = (ring.place_journal(_free(mda, taken), journal_bytes, attempt_seed) for mda in used)
        room = next(filter(None, rooms), None)
        if room is not None:
            chunks = []
            for move in moves:
                if move.moves:
                    area = move.second_header + text
                    chunks.append(Chunk(move.second.offset, area.ljust(align_up(len(area), ring.ALIGNMENT), b"\0")))
            return Plan(Journal(placed, room.offset, data), tuple(chunks), text)
    free_bytes = sum(part.length for mda in used for part in _free(mda, retained))
    raise Refused(
        f"{name}: there is no room for the journal: it needs {journal_bytes or 'some'} bytes and a second metadata "
        f"area of {len(text) + 512} bytes, and {free_bytes} bytes of the metadata area are free. No command enlarges "
        "the area. Fewer VDIs need less room.",
        sm_key="SRNoSpace",
    ).advising("The option --without leaves VDIs behind, --vdis one keeps one.")


def _free(mda: Mda, taken: Sequence[Range]) -> List[Range]:
    """The free ranges of the ring of a metadata area with a text; `taken` are ranges of the device that must stay."""
    live = pv.text_ranges(mda.area, mda.committed, Place("the metadata area", mda.area.offset))
    return ring.free_ranges(mda.area, live, [part for part in taken if mda.area.offset <= part.offset < mda.area.end])


def _moves(
    mdas: Sequence[Mda],
    text: bytes,
    finals: Optional[Sequence[bytes]],
    retained: Sequence[Range],
    has_spare: bool,
    seed: int,
) -> Optional[List[MdaMove]]:
    """The move of each metadata area to its second area, which holds `text` behind its header.

    An area without a text stays. None without room for a second area. `finals` and `retained` as for `place_in_ring`;
    `has_spare` and `seed` as for `ring.place_second_area`.
    """
    moves = []
    for index, mda in enumerate(mdas):
        old = bytes(mda.header)
        if not mda.has_text:
            moves.append(MdaMove(mda.area, mda.area, old, b"", old))
            continue
        second = ring.place_second_area(_free(mda, retained), len(text), has_spare, seed)
        if second is None:
            return None
        text_at = second.offset + pv.MDA_HEADER_SIZE
        header = pv.mda_header(second, text_at, text)
        final = finals[index] if finals else bytes(pv.mda_header(mda.area, text_at, text, mda.header))
        moves.append(MdaMove(mda.area, second, old, bytes(header), final))
    return moves
