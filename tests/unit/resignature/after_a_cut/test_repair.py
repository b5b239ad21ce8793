# SPDX-License-Identifier: LGPL-2.1-only
"""Identities are put right in what is on the disk, and what others have written beside them stays.

Everything here is in memory: a run's writes and fields come from a plan, the disk is a `Canvas`.
"""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.crash import garbage
from kit.cuts import SCSI_ID, entropy, image
from kit.examples import examples
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.formats.checksum import vhd_checksum
from relvmoiscsi.resignature.after_a_cut import repair
from relvmoiscsi.resignature.after_a_cut.repair import put_right, torn_blocks
from relvmoiscsi.resignature.protocol import structure
from relvmoiscsi.resignature.protocol.run import Field, Write
from relvmoiscsi.resignature.writing.canvas import Canvas, changed_chunks, read_canvas, spans_of

NAMES = ["everything", "blocks of 4096", "512e", "fragmented"]


@functools.lru_cache(maxsize=None)
def run_on(name):
    """A planned run on an image, which has not been begun."""
    disk = image(name)
    return engine.prepare(disk, entropy(0), SCSI_ID).plan.run, disk


def canvas_of(disk, run):
    return read_canvas(disk, run)


def with_writes(disk, run, new):
    disk = disk.copy()
    for write in run.writes:
        disk.poke(write.offset, write.new if new else write.old)
    return disk


def written(disk, chunks):
    disk = disk.copy()
    disk.write(chunks)
    return disk


def repaired(disk, run, forward=True, careful=False):
    """The disk after the repair, and the fields that stay somebody else's."""
    canvas = canvas_of(disk, run)
    first = [] if careful else torn_blocks(run, canvas, forward)
    strange = put_right(run, canvas, forward, careful)
    return written(written(disk, first), canvas.changes(disk.block_size)), strange


def identity_bytes(run):
    """Bytes that a repair may change: fields and checksums."""
    found = [piece for field in run.fields for piece in field.pieces]
    for field in run.fields:
        place = structure.checksum_range(field.kind)
        if place is not None:
            found += repair.part_of(field.around, place)
    return found


def blocks_with_fields(run):
    """Those that a run writes; a cut tears no other."""
    size = run.block_bytes
    pieces = [piece for field in run.fields for piece in field.pieces]
    return {at for piece in pieces for at in range(piece.offset - piece.offset % size, piece.end, size)}


def field_of(run, what):
    return next(field for field in run.fields if what in field.what)


def overlaps(one, other):
    return one.offset < other.end and other.offset < one.end


# --- what needs no repair, and what needs all of it


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("careful", [False, True])
def test_old_contents_become_the_new_ones_and_back(name, careful):
    run, disk = run_on(name)
    new = with_writes(disk, run, new=True)

    assert repaired(disk, run, True, careful) == (new, [])
    assert repaired(new, run, False, careful) == (disk, [])
    assert repaired(new, run, True, careful) == (new, [])


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_are_all_garbage_are_put_back_from_the_journal(name):
    run, disk = run_on(name)
    torn = disk.copy()
    for block in blocks_with_fields(run):
        torn.poke(block, garbage(block, run.block_bytes))

    assert repaired(torn, run) == (with_writes(disk, run, new=True), [])


def test_every_field_lies_in_the_writes_of_its_run():
    for name in NAMES:
        run, _disk = run_on(name)
        for field in run.fields:
            for piece in field.pieces:
                assert any(w.offset <= piece.offset and piece.end <= w.range.end for w in run.writes), field


# --- what others write beside an identity


@st.composite
def histories(draw):
    """An image, changes by others outside of all fields, and blocks of the run's writes that a cut has torn."""
    name = draw(st.sampled_from(NAMES))
    run, disk = run_on(name)
    size = run.block_bytes
    blocks = [at for write in run.writes for at in range(write.offset, write.range.end, size)]
    new = draw(st.lists(st.sampled_from(blocks), unique=True, max_size=len(blocks)))
    torn = draw(st.lists(st.sampled_from(blocks), unique=True, max_size=3))
    changes = draw(st.lists(st.tuples(st.sampled_from(blocks), st.integers(0, size - 1), st.binary(min_size=1,
                            max_size=6)), max_size=8))  # fmt: skip
    return name, new, torn, changes


def guarded(run):
    """Bytes that a stranger does not write here: fields, checksums, and what stands in a structure with a checksum."""
    found = identity_bytes(run)
    return found + [part for field in run.fields if field.kind for part in field.around]


@given(histories(), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_recovery_gives_the_identities_and_keeps_every_other_byte_of_blocks_that_are_not_torn(history, forward):
    name, new, torn, changes = history
    run, disk = run_on(name)
    goal = with_writes(disk, run, new=forward)
    size, guards = run.block_bytes, guarded(run)
    found = disk.copy()
    for write in run.writes:
        for at in range(write.offset, write.range.end, size):
            if at in new:
                found.poke(at, write.new[at - write.offset :][:size])
    for block, skip, data in changes:
        place = Range(block + skip, min(len(data), size - skip))
        if block not in torn and not any(overlaps(place, guard) for guard in guards):
            for somewhere in (found, goal):
                somewhere.poke(place.offset, data[: place.length])
    for block in torn:
        if block in blocks_with_fields(run):
            found.poke(block, garbage(block, size))

    after, strange = repaired(found, run, forward)

    assert strange == []
    assert after == goal
    assert repaired(after, run, forward) == (after, [])


@given(st.binary(min_size=1, max_size=4), st.integers(0, 1023), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_a_header_that_somebody_else_has_changed_gets_the_name_and_a_checksum_that_is_right(data, at, forward):
    run, disk = run_on("everything")
    field = field_of(run, "VHD header")
    start = field.around[0].offset
    place = Range(start + at, min(len(data), 1024 - at))
    if place.offset < start + 64 or any(overlaps(place, piece) for piece in field.pieces):
        return  # cookie, checksum, sizes; and the name itself
    found = with_writes(disk, run, new=not forward)
    found.poke(place.offset, data[: place.length])
    header = found.peek(start, 1024)
    found.poke(start, structure.resealed("VHD header", header))

    after, strange = repaired(found, run, forward)

    header = after.peek(start, 1024)
    goal = with_writes(disk, run, new=forward)
    assert strange == []
    assert structure.is_whole("VHD header", header)
    assert header[at : at + place.length] == data[: place.length]
    assert after.peek(*field.pieces[0]) == goal.peek(*field.pieces[0])


def test_a_field_that_somebody_else_has_given_a_value_stays_where_its_structure_is_whole():
    run, disk = run_on("everything")
    field = field_of(run, "VHD header")
    found = disk.copy()
    found.poke(field.pieces[0].offset, b"\0Z")
    start = field.around[0].offset
    found.poke(start, structure.resealed("VHD header", found.peek(start, 1024)))

    after, strange = repaired(found, run)

    assert [item.what for item in strange] == [field.what]
    assert after.peek(start, 1024) == found.peek(start, 1024)


def test_the_same_value_without_a_right_checksum_is_a_tear():
    run, disk = run_on("everything")
    field = field_of(run, "VHD header")
    found = disk.copy()
    found.poke(field.pieces[0].offset, b"\0Z")

    assert repaired(found, run) == (with_writes(disk, run, new=True), [])


# --- MGT: SM writes records anew


def mgt_record(run, disk):
    field = field_of(run, "MGT: UUID of VDI")
    return field, field.around[0].offset


@pytest.mark.parametrize("state", ["old", "new"])
def test_a_uuid_that_sm_has_moved_in_its_record_is_found_there(state):
    run, disk = run_on("everything")
    field, start = mgt_record(run, disk)
    found = with_writes(disk, run, new=state == "new")
    record = found.peek(start, 1024)
    moved = record[:512] + b"<x/>" + record[512:1020]
    found.poke(start, moved)
    goal = with_writes(disk, run, new=True)
    expected = goal.peek(start, 1024)

    after, strange = repaired(found, run)

    assert strange == []
    assert after.peek(start, 1024) == expected[:512] + b"<x/>" + expected[512:1020]


def test_a_uuid_in_a_label_is_nobodys_identity():
    run, disk = run_on("everything")
    field, start = mgt_record(run, disk)
    old = disk.peek(*field.pieces[0])
    found = disk.copy()
    label = b"<vdi><name_label>" + old + b"</name_label>"
    found.poke(start, label.ljust(512))

    after, _strange = repaired(found, run)

    assert after.peek(start, 512) == label.ljust(512)
    assert after.peek(start + 512, 512) == with_writes(disk, run, new=True).peek(start + 512, 512)


def test_a_slot_that_sm_has_given_to_another_vdi_stays():
    run, disk = run_on("everything")
    field, start = mgt_record(run, disk)
    found = disk.copy()
    found.poke(field.pieces[0].offset, b"0a0b0c0d-0000-4000-8000-00000000000f")

    after, strange = repaired(found, run)

    assert [item.what for item in strange] == [field.what]
    assert after.peek(*field.pieces[0]) == b"0a0b0c0d-0000-4000-8000-00000000000f"


def test_a_uuid_half_old_and_half_new_is_a_tear_and_no_uuid_of_somebody_else():
    run, disk = run_on("everything")
    field, _start = mgt_record(run, disk)
    new = with_writes(disk, run, new=True)
    found = disk.copy()
    at = field.pieces[0].offset
    found.poke(at, new.peek(at, 17))

    assert repaired(found, run) == (new, [])


# --- once LVM has gone on


def test_then_only_what_is_surely_ours_is_written():
    run, disk = run_on("everything")
    found = with_writes(disk, run, new=True)
    for field in run.fields[::2]:
        found.poke(field.pieces[0].offset, garbage(field.pieces[0].offset, 8))

    after, strange = repaired(found, run, forward=False, careful=True)

    kept = [piece for field in strange for piece in field.pieces]
    assert strange
    for piece in kept:
        assert after.peek(*piece) == found.peek(*piece)
    for field in set(run.fields) - set(strange):
        for piece in field.pieces:
            assert after.peek(*piece) == disk.peek(*piece)


def test_a_flag_of_one_byte_counts_as_ours_only_where_all_around_it_is():
    """Footers of both sides are in the journal; a byte alone would be ours by chance."""
    run, disk = run_on("everything")
    at = field_of(run, "VHD header").around[0].offset - 512
    old = disk.peek(at, 512)
    hidden = old[:85] + b"\1" + old[86:]
    new = structure.resealed("VHD footer", hidden)
    flag = Field((Range(at + 85, 1),), "flag", "VHD footer", (Range(at, 512),))
    run = run._replace(writes=(Write(at, old, new, "flag"),), fields=(flag,))
    found = disk.copy()
    found.poke(at, new)
    assert repaired(found, run, False, careful=True) == (disk, [])

    other = new[:24] + b"\1\2\3\4" + new[28:]
    found.poke(at, structure.resealed("VHD footer", other))
    before = found.copy()

    assert repaired(found, run, False, careful=True) == (before, [flag])
    after, strange = repaired(found, run, False)
    assert strange == [] and after.peek(at + 85, 1) == b"\0"
    assert structure.is_whole("VHD footer", after.peek(at, 512)) and after.peek(at + 24, 4) == b"\1\2\3\4"


# --- blocks that the disk has lost


def test_a_lost_block_is_written_where_the_journal_has_it_and_left_where_it_has_not():
    run, disk = run_on("everything")
    field = field_of(run, "VHD header")
    journalled = Range(field.around[0].offset, 512)
    behind = Range(field.around[0].offset + 512, 512)
    canvas = canvas_of(disk, run)
    found = [Chunk(span.offset, disk.peek(*span)) for span in spans_of(run, 512)]

    for lost, is_written in ((journalled, True), (behind, False)):
        canvas = Canvas(found, [lost])
        put_right(run, canvas, forward=True)
        chunks = canvas.changes(512)
        assert any(overlaps(lost, Range(c.offset, len(c.data))) for c in chunks) == is_written


# --- chunks


def test_only_blocks_that_change_are_written_and_neighbours_together():
    before = Chunk(4096, bytes(8 * 512))
    after = bytearray(8 * 512)
    after[0] = after[512] = after[3 * 512] = after[7 * 512 + 511] = 1

    chunks = changed_chunks(before, bytes(after), 512)

    assert [(chunk.offset, len(chunk.data)) for chunk in chunks] == [(4096, 1024), (5632, 512), (7680, 512)]
    assert changed_chunks(before, before.data, 512) == []


def test_a_footer_of_an_old_creator_is_whole_with_the_checksum_that_ignores_the_hidden_byte():
    run, disk = run_on("everything")
    at = field_of(run, "VHD header").around[0].offset - 512
    footer = bytearray(disk.peek(at, 512))
    footer[32:36] = bytes([0, 1, 0, 1])
    footer[85] = 0
    footer[64:68] = vhd_checksum(bytes(footer), 64).to_bytes(4, "big")
    footer[85] = 1

    assert structure.is_whole("VHD footer", bytes(footer))
    footer[32:36] = bytes([0, 1, 0, 3])
    assert not structure.is_whole("VHD footer", bytes(footer))
