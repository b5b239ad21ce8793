# SPDX-License-Identifier: LGPL-2.1-only
"""Read the result of a plan in memory, before the first write: the result must be the LUN that was planned."""

from itertools import chain
from typing import Iterator, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range, whole_blocks
from relvmoiscsi.errors import Place, Refused
from relvmoiscsi.formats.lvm.pv import parse_label
from relvmoiscsi.resignature.planning import identity_check
from relvmoiscsi.resignature.planning.run_plan import Plan
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.commit_record import DONE, IN_PROGRESS, SWITCHED, read_commit_record
from relvmoiscsi.resignature.protocol.journal import decode
from relvmoiscsi.resignature.protocol.sentences import TAKE_AGAIN
from relvmoiscsi.resignature.protocol.steps import Step
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.left_behind import settle
from relvmoiscsi.resignature.reading.lun_contents import Lun, verify_lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache


def check_plan(cache: ReadCache, lun: Lun, made: Plan) -> None:
    """Read, in memory, the LUN after the commit and at the end of the run. Raises Refused or FormatError."""
    _check_journal(made, cache)
    unseen = made.unseen  # is written without the bytes around
    alone = [chunk.range for chunk in unseen.chunks]
    more: Iterator[Range] = iter(())
    if cache.block_size > SECTOR:  # other pieces are in sectors, and may be millions
        more = chain(
            (chunk.range for chunk in unseen.more), (copy.range for several in unseen.copies for copy in several)
        )
    for part in chain(alone, more):
        if part.offset % cache.block_size or part.length % cache.block_size:
            raise Refused(
                f"The planned image does not check: {part.length} bytes at byte {part.offset} are not in whole blocks "
                f"of {cache.block_size}.",
                sm_key="MetadataError",
            )
    result = _after(cache, made, steps.COMMIT)
    committed = survey.read_lun(result, survey.read_label(result), lun)
    identity_check.verify_result(lun, committed, made.run.ids)
    result = _after(cache, made, steps.FINAL)
    final = survey.read_lun(result, survey.read_label(result), committed)
    # `verify_result` does not read the places of the metadata
    is_equal = committed._replace(label=final.label, mdas=final.mdas) == final
    if not is_equal or final.label.pv_id != committed.label.pv_id:
        identity_check.verify_result(lun, final, made.run.ids)
    _check_labels(made, ((steps.BEGIN, IN_PROGRESS), (steps.COMMIT, SWITCHED), (steps.FINAL, DONE)))


def check_undo(cache: ReadCache, made: Plan, unverified: Sequence[str]) -> Lun:
    """Read, in memory, the LUN after an undo. Raises Refused or FormatError.

    The LVs with the ids `unverified` did not verify before the undone run, and need not verify now.
    """
    _check_journal(made, cache)
    result = _after(cache, made, steps.FINAL)
    found = survey.read_contents(result, survey.read_label(result))
    rest = settle(found.without([volume for volume in found.volumes if volume.lv.id in unverified]))
    verify_lun(rest)
    if found.sr_uuid != made.run.ids.new_sr:
        problem = f"An undo would leave the SR {found.sr_uuid}, not the SR {made.run.ids.new_sr} of the journal."
        raise Refused(problem, sm_key="MetadataError").advising(TAKE_AGAIN)
    _check_labels(made, ((steps.BEGIN, IN_PROGRESS), (steps.COMMIT, SWITCHED)))
    return found._replace(work=rest.work)


def _after(cache: ReadCache, made: Plan, last: Step) -> ReadCache:
    """The device after each step up to `last`, with whole blocks as the run writes them.

    Of bitmaps, only the bitmaps that overlap bytes in the cache, or another chunk, are put there.
    """
    known = whole_blocks(cache, made.deciding)  # the run reads these blocks once
    for step in steps.ALL_PARTS[: steps.ALL_PARTS.index(last) + 1]:
        cache = cache.with_chunks(whole_blocks(cache, made.chunks_of(step, bitmaps=False), known))
        cache.overwrite(made.bitmaps_of(step))
    return cache


def _check_labels(made: Plan, planned: Sequence[Tuple[Step, int]]) -> None:
    """Raises Refused or FormatError when the next call would not find the run in a phase, after the step before."""
    for step, phase in planned:
        (sector,) = made.chunks_of(step)
        label = parse_label(sector.data, made.run.label_number, Place("the planned label", 0))
        if read_commit_record(label, "the planned label") != made.journal.commit_record(phase):
            raise Refused("The planned label does not read back as what it was made of.", sm_key="MetadataError")


def _check_journal(made: Plan, device: Device) -> None:
    """Raises Refused or FormatError when recovery would not accept the planned journal."""
    digest = made.journal.commit_record(IN_PROGRESS).journal_digest
    found = decode(made.journal.data, Place("the planned journal", 0), digest, device.size_bytes)
    if found != made.run:
        raise Refused("The planned journal does not read back as what it was made of.", sm_key="MetadataError")
