# SPDX-License-Identifier: LGPL-2.1-only
"""The identities of a run are rolled back in what is on the disk, and what others have written beside them stays.

Everything here is in memory: a run's writes and fields come from a plan, the disk is a `WriteBuffer`.
"""

import functools
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.cuts import SCSI_ID, entropy, image
from kit.examples import examples
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.formats import vhd
from relvmoiscsi.resignature.protocol import identities
from relvmoiscsi.resignature.protocol.identities import changed_chunks, read_written

NAMES = ["everything", "blocks of 4096", "512e", "fragmented"]


@functools.lru_cache(maxsize=None)
def run_on(name):
    """A planned run on an image, which has not been begun."""
    disk = image(name)
    return engine.prepare(disk, entropy(0), engine.ResignatureRequest(scsi_id=SCSI_ID)).plan.run, disk


def with_writes(disk, run, new):
    disk = disk.copy()
    for write in run.writes:
        disk.poke(write.offset, write.new if new else write.old)
    return disk


def taken_back(disk, run, careful=False):
    """The disk with the old identities, and the fields that stay somebody else's."""
    disk, buffer = disk.copy(), read_written(disk, run)
    strange = identities.put_back(run, buffer, careful)
    disk.write(buffer.changes(disk.block_size))
    return disk, strange


def identity_bytes(run):
    """Bytes that may change: fields and checksums."""
    found = [piece for field in run.fields for piece in field.pieces]
    for field in run.fields:
        if field.kind:
            checksum = vhd.STRUCTURES[field.kind].checksum
            found += identities.part_of(field.around, Range(checksum.offset, checksum.size))
    return found


def field_of(run, what):
    return next(field for field in run.fields if what in field.what)


def overlaps(one, other):
    return one.offset < other.end and other.offset < one.end


# --- what others write beside an identity


@st.composite
def histories(draw):
    """An image, blocks of the run's writes that are new, and changes by others outside of all fields."""
    name = draw(st.sampled_from(NAMES))
    run, _disk = run_on(name)
    size = run.block_bytes
    blocks = [at for write in run.writes for at in range(write.offset, write.range.end, size)]
    new = draw(st.lists(st.sampled_from(blocks), unique=True, max_size=len(blocks)))
    changes = draw(st.lists(st.tuples(st.sampled_from(blocks), st.integers(0, size - 1), st.binary(min_size=1,
                            max_size=6)), max_size=8))  # fmt: skip
    return name, new, changes


def guarded(run):
    """Bytes that a stranger does not write here: fields, checksums, and what stands in a structure with a checksum."""
    found = identity_bytes(run)
    return found + [part for field in run.fields if field.kind for part in field.around]


@given(histories())
@settings(max_examples=examples(150), deadline=None)
def test_the_old_identities_come_back_and_every_other_byte_stays(history):
    name, new, changes = history
    run, disk = run_on(name)
    size, guards = run.block_bytes, guarded(run)
    for piece in (piece for field in run.fields for piece in field.pieces):
        assert any(write.offset <= piece.offset and piece.end <= write.range.end for write in run.writes), piece
    found, goal = disk.copy(), disk.copy()
    for write in run.writes:
        for at in range(write.offset, write.range.end, size):
            if at in new:
                found.poke(at, write.new[at - write.offset :][:size])
    for block, skip, data in changes:
        place = Range(block + skip, min(len(data), size - skip))
        if not any(overlaps(place, guard) for guard in guards):
            for somewhere in (found, goal):
                somewhere.poke(place.offset, data[: place.length])

    assert taken_back(found, run) == taken_back(goal, run) == (goal, [])
    for there in (disk, with_writes(disk, run, new=True)):
        assert taken_back(there, run, careful=True) == (disk, [])


@given(st.binary(min_size=1, max_size=4), st.integers(0, 1023))
@settings(max_examples=examples(150), deadline=None)
def test_a_header_that_somebody_else_has_changed_gets_the_name_and_a_checksum_that_is_right(data, at):
    run, disk = run_on("everything")
    field = field_of(run, "VHD header")
    start = field.around[0].offset
    place = Range(start + at, min(len(data), 1024 - at))
    if place.offset < start + 64 or any(overlaps(place, piece) for piece in field.pieces):
        return  # cookie, checksum, sizes; and the name itself
    found = with_writes(disk, run, new=True)
    found.poke(place.offset, data[: place.length])
    found.poke(start, bytes(vhd.sealed(vhd.DynamicHeader(found.peek(start, 1024)))))

    after, strange = taken_back(found, run)

    header = after.peek(start, 1024)
    assert strange == []
    assert vhd.is_whole(vhd.DynamicHeader(header))
    assert header[at : at + place.length] == data[: place.length]
    assert after.peek(*field.pieces[0]) == disk.peek(*field.pieces[0])


def test_damage_beside_a_field_is_a_change():
    run, disk = run_on("everything")
    assert identities.first_changed(run, read_written(disk, run)) is None
    field = field_of(run, "VHD header")
    disk = disk.copy()
    disk.poke(field.around[0].offset + 500, b"damage")

    assert identities.first_changed(run, read_written(disk, run)).what == field.what


def test_a_footer_of_an_old_creator_is_whole_with_the_checksum_that_ignores_the_hidden_byte():
    run, disk = run_on("everything")
    footer = bytearray(disk.peek(field_of(run, "VHD header").around[0].offset - 512, 512))
    footer[32:36], footer[85] = bytes([0, 1, 0, 1]), 0
    footer[:] = bytes(vhd.sealed(vhd.Footer(bytes(footer))))
    footer[85] = 1

    assert vhd.is_whole(vhd.Footer(bytes(footer)))
    footer[32:36] = bytes([0, 1, 0, 3])
    assert not vhd.is_whole(vhd.Footer(bytes(footer)))


def test_only_blocks_that_change_are_written_and_neighbours_together():
    before = Chunk(4096, bytes(8 * 512))
    after = bytearray(8 * 512)
    after[0] = after[512] = after[3 * 512] = after[7 * 512 + 511] = 1

    chunks = changed_chunks(before, bytes(after), 512)

    assert [(chunk.offset, len(chunk.data)) for chunk in chunks] == [(4096, 1024), (5632, 512), (7680, 512)]
    assert changed_chunks(before, before.data, 512) == []


class Sliced(bytes):
    """Bytes that count how many of them are copied out."""

    copied = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        Sliced.copied += len(found)
        return found


def test_the_blocks_of_a_long_change_are_copied_few_times():
    """A forged journal has one field of 30 MiB: 60,000 blocks in a row."""
    after = Sliced(b"x" * (1 << 20))

    assert changed_chunks(Chunk(4096, bytes(1 << 20)), after, 512) == [Chunk(4096, bytes(after))]
    assert Sliced.copied <= 4 * len(after)


def test_the_old_and_the_new_side_of_a_run_copy_what_the_run_has_written_alone():
    """Around its fields, a journal may name a hundred MiB of the device."""
    buffer = identities.WriteBuffer(Chunk(8192 * number, bytes(4096)) for number in range(1000))
    tracemalloc.start()
    try:
        other = buffer.with_chunks([Chunk(8192, b"x" * 512)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert other.get([Range(8192, 1024)]) == b"x" * 512 + bytes(512)
    assert buffer.get([Range(8192, 1024)]) == bytes(1024) and peak < 1 << 20
