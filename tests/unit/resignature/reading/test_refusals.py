# SPDX-License-Identifier: LGPL-2.1-only
"""Everything that is refused: with which error, in which words, and without a write.

Each row of kit/refusals.py spoils a LUN in one way and says what `prepare` answers: the class of the error, hence the
exit status, and words of its sentence, the offset where there is one. Why: docs/formats. What a single structure is
refused for, field by field, stands in tests/unit/formats. Commands of LVM in the messages: tests/judged.
"""

import itertools
import random
import struct
import tracemalloc

import pytest

from kit import builder
from kit.build_volumes import MIB
from kit.builder import AREA_DEFAULT, cbtlog, qcow2, raw
from kit.cuts import free_ring, mgt_ranges
from kit.examples import seeds
from kit.outcome import entropy_of, resignatured
from kit.refusals import AREA, ROWS, loop_of_two, one_raw, spoiled_sr, vhd, ways_out_in
from kit.sparse import SparseDisk
from kit.spoiled import LABEL, Spoiled
from relvmoiscsi import engine, report
from relvmoiscsi.errors import BadChecksum, FormatError, Malformed, NotFound, Refused, Unfinished

EXIT_STATUS = {NotFound: 3, Refused: 4, FormatError: 5, Unfinished: 8}


@pytest.mark.parametrize("name", ROWS)
def test_it_is_refused_in_words_that_name_the_thing_and_nothing_is_written(name):
    row = ROWS[name]
    disk = row.make().disk
    before = disk.copy()
    disk.reset_counters()

    with pytest.raises(row.error) as caught:
        engine.prepare(disk, entropy_of("ids"))

    sentence = str(caught.value)
    assert [words for words in row.words if words not in sentence] == [], sentence
    assert caught.value.exit_status == next(n for family, n in EXIT_STATUS.items() if issubclass(row.error, family))
    assert "Nothing was written." in sentence and sentence.endswith(".")
    # what is on the clone is what is wanted, but for a run that nothing ends
    assert ("lone again" in sentence) == (row.state == engine.UNFINISHED)
    assert len(ways_out_in(sentence)) == (row.state != engine.UNFINISHED), sentence

    found = engine.inspect(disk)

    assert found.state == row.state
    assert isinstance(found.problem, row.error) or row.state == engine.CLEAN
    assert bool(found.defects) == (row.state == engine.DAMAGED)
    if found.defects:
        assert (found.problem, found.problem.message) == (found.defects[0], caught.value.message)
    assert (disk.writes, disk.flushes) == (0, 0)
    assert disk == before


#: a LUN with each kind of volume; chance spoils some of its volumes
EVERYTHING = builder.everything(area=AREA_DEFAULT)
#: how many bytes at the start of a volume are structures of its image
STRUCTURES = 1536


def spoiled_by_chance(seed):
    """`EVERYTHING` with noise in the structures of one to three disks."""
    chance = random.Random(f"spoiled {seed}")
    spoiled = Spoiled(EVERYTHING)
    disks = [volume for volume in spoiled.truth.volumes if volume.name.startswith(("VHD-", "QCOW2-"))]
    for volume in chance.sample(disks, chance.randint(1, 3)):
        length = chance.choice((1, 4, 16, 512))
        noise = bytes(chance.randrange(256) for _ in range(length))
        spoiled.poke((volume.key, chance.randrange(STRUCTURES - length)), noise)
        if chance.random() < 0.5:
            seal = spoiled.sealed_vhd if volume.name.startswith("VHD-") else str
            seal(volume.key)
    return spoiled


@pytest.mark.parametrize("seed", seeds(range(300), 10))
def test_of_a_lun_with_any_spoiled_disks_the_rest_is_resignatured_by_the_messages_alone(seed):
    spoiled = spoiled_by_chance(seed)
    disk, before, named = spoiled.disk, spoiled.disk.copy(), []
    try:
        prepared = engine.prepare(disk, entropy_of("ids"))
    except FormatError as problem:
        (way_out,) = ways_out_in(str(problem))
        named = way_out.split(" --without ")[1:]
        prepared = engine.prepare(disk, entropy_of("ids"), engine.ResignatureRequest(without=tuple(named)))

    engine.resignature(disk, prepared)

    found = engine.inspect(disk)
    new = prepared.plan.run.ids.uuids
    assert (found.state, found.defects) == (engine.RESIGNATURED, ())
    assert not {new[uuid] for uuid in named}.intersection(volume.name.uuid for volume in found.lun.volumes)
    assert disk.same_except(before, [*spoiled.truth.allowed, *mgt_ranges(spoiled)])
    assert engine.undo(disk, entropy_of("undo")).state == (engine.DAMAGED if named else engine.CLEAN)
    assert disk.same_except(before, free_ring(before))


LEFT_BEHIND = [
    name for name, row in ROWS.items() if issubclass(row.error, FormatError) and row.state != engine.UNFINISHED
]


def test_where_a_message_tells_to_leave_a_vdi_behind_that_is_enough_and_undo_brings_the_lun_back():
    """Each row whose way out it is: the command of the message is the only thing that is done."""
    tried = 0
    for name in LEFT_BEHIND:
        disk = ROWS[name].make().disk
        before = disk.copy()
        with pytest.raises(FormatError) as refused:
            engine.prepare(disk, entropy_of("ids"))
        (way_out,) = ways_out_in(str(refused.value))
        named = way_out.split(" --without ")[1:]
        if not named:
            continue
        tried += 1
        prepared = engine.prepare(disk, entropy_of("ids"), engine.ResignatureRequest(without=tuple(named)))
        dropped = {volume.name.uuid for volume in prepared.lun.volumes if volume.lv.id in prepared.lun.work.left_behind}
        assert set(named) <= dropped, name

        engine.resignature(disk, prepared)

        assert engine.inspect(disk).state == engine.RESIGNATURED, name
        assert engine.undo(disk, entropy_of("undo")).state == engine.DAMAGED, name
        assert disk.same_except(before, free_ring(before)), name
    assert tried >= 15


@pytest.mark.parametrize(
    "spoil", [lambda lun: lun.cut(-MIB // 2), lambda lun: lun.poke(LABEL + 64, "<Q", 1 << 50).sealed_label()]
)
def test_a_size_of_the_device_that_only_lvm_remembers_refuses_nothing(spoil):
    disk = spoil(one_raw()).disk

    found = engine.inspect(disk)
    after = resignatured(disk).after

    assert found.state == engine.CLEAN
    told = [note for note in engine.notes(found.lun) if "all extents are on it" in note]
    assert len(told) == (disk.size_bytes < found.lun.vg.dev_size)
    assert engine.inspect(after).state == engine.RESIGNATURED


@pytest.mark.parametrize("missing_bytes", [4 * MIB, 64 * MIB])
def test_a_copy_that_ends_before_the_last_extent_is_called_truncated_and_no_note_tells_to_resize(missing_bytes):
    spoiled = one_raw()
    data_end = engine.inspect(spoiled.disk).lun.vg.data_end

    found = engine.inspect(spoiled.cut(data_end - missing_bytes).disk)

    assert found.state == engine.DAMAGED
    notes = engine.notes(found.readable)
    assert [note for note in notes if "pvresize" in note or "all extents" in note] == []
    (told,) = [note for note in notes if "truncated" in note]
    assert f"ends at byte {data_end}" in told and "Take the copy again" in told
    assert report.inspection_facts("LUN", found)["notes"] == notes


HOSTILE = [name for name in ROWS if "gigabyte" in name or "terabyte" in name or "petabyte" in name or "beyond" in name]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_size_on_the_disk_is_not_believed(name):
    disk = ROWS[name].make().disk
    disk.reset_counters()

    tracemalloc.start()
    try:
        engine.inspect(disk)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8 << 20
    assert disk.bytes_read < 1 << 20


@pytest.mark.parametrize(
    "size, data",
    [(size, b"") for size in (512, 4096, 4608, (1 << 20) - 512)]
    + [(size, b"whatever") for size in (512, 4096, 4608, 8192, (1 << 20) - 512)],
)
def test_a_device_too_small_for_any_sr_gets_an_answer(size, data):
    disk = SparseDisk(size)
    disk.poke(0, data)

    found = engine.inspect(disk)

    assert found.state == engine.FOREIGN
    assert f"has {size} bytes: it is too small for a LUN with an SR." in str(found.problem)


# --- what is wrong in several places at once


def _many():
    """A LUN with one volume of each kind, and two metadata areas."""
    chain = [vhd("base", hidden=True), vhd("leaf", "base")]
    return spoiled_sr(vhd("one"), vhd("two"), *chain, qcow2("three"), raw("data"), cbtlog("data"), second_area="same")


def _spoil_second_text(spoiled):
    area = spoiled.truth.areas[1].offset
    (text_at,) = struct.unpack("<Q", spoiled.disk.peek(area + 40, 8))
    spoiled.poke(area + text_at + 100, bytes(64))


#: how one structure of that LUN is spoiled; of each, what its defect begins with, and the key of its volume
PLACES = {
    "first metadata area": (lambda lun: lun.poke(AREA + 300, b"\7"), "Metadata area header at byte 4096 of", None),
    "second text": (_spoil_second_text, "Metadata text at byte ", None),
    "MGT": (lambda lun: lun.poke(("MGT", 0), bytes(512)), "MGT header at byte 0 of MGT", "MGT"),
    "VHD header": (lambda lun: lun.poke(("one", 600), b"\7"), "VHD header at byte 512 of ", "one"),
    "VHD footer": (lambda lun: lun.poke(("two", 100), b"\7"), "VHD footer copy at byte 0 of ", "two"),
    "parent": (lambda lun: lun.poke(("leaf", 552), b"\7" * 16).sealed_vhd("leaf"), "Parent at byte 0 of ", "leaf"),
    "QCOW2": (lambda lun: lun.poke(("three", 4), b"\0\0\0\4"), "QCOW2 header at byte 0 of ", "three"),
}
PAIRS = [pair for pair in itertools.combinations(PLACES, 2) if set(pair) != {"first metadata area", "second text"}]
SEVERAL = [(name,) for name in PLACES] + [PAIRS[number] for number in seeds(range(len(PAIRS)), 7)] + [tuple(PLACES)[1:]]


def _spoiled(names):
    spoiled = _many()
    for name in names:
        PLACES[name][0](spoiled)
    return spoiled


@pytest.mark.parametrize("names", SEVERAL, ids=" and ".join)
def test_every_defect_is_told_with_its_place_and_what_else_reads_is_listed(names):
    """The first is what a plan is refused with."""
    spoiled = _spoiled(names)
    truth = spoiled.truth

    found = engine.inspect(spoiled.disk)
    with pytest.raises(FormatError) as refused:
        engine.prepare(spoiled.disk, entropy_of("ids"))

    messages = [defect.message for defect in found.defects]
    assert (found.state, len(messages)) == (engine.DAMAGED, len(names))
    assert messages[0] == found.problem.message == refused.value.message
    facts = report.defect_facts(found.defects, found.readable)
    for name in names:
        _spoil, words, key = PLACES[name]
        (row,) = [row for row in facts if row["message"].startswith(words)]
        assert words.startswith(row["structure"] + " at byte ")
        assert f" at byte {row['offset']} of {row['container']}: " in row["message"]
        assert row["lv"] == (truth.volume(key).name if key else None)
        assert row["vdi"] == (truth.uuids[key] if key not in (None, "MGT") else None)

    told = report.inspection_facts("LUN", found)
    spoiled_keys = {PLACES[name][2] for name in names}
    assert [lv["lv"] for lv in told["lvs"]] == [volume.name for volume in truth.volumes]
    by_uuid = {vdi["vdi"]: vdi for vdi in told["vdis"]}
    for key in ("one", "two", "base", "leaf", "three", "data"):
        vdi = by_uuid[truth.uuids[key]]
        assert (vdi["problem"] is not None) == (key in spoiled_keys)
        assert (vdi["virtual_size_bytes"] is None) == (key in spoiled_keys - {"leaf"})
        assert bool(vdi["vdi_name"]) == ("MGT" not in spoiled_keys)


def test_each_volume_behind_the_end_of_a_copy_that_was_cut_is_told():
    spoiled = _many()
    truth = spoiled.truth
    starts = {volume.name: truth.device_ranges(volume.key, 0, 1)[0].offset for volume in truth.volumes}
    last = starts[truth.volume("data").name]

    found = engine.inspect(spoiled.cut(last + 512).disk)

    assert found.problem.message.startswith("Metadata area at byte ")  # its second metadata area is gone
    told = {row["lv"] for row in report.defect_facts(found.defects, found.readable)}
    assert {name for name, start in starts.items() if start >= last} <= told
    assert truth.volume("one").name not in told


def test_no_metadata_area_that_reads_is_said():
    spoiled = _spoiled(["first metadata area"])
    spoiled.poke(spoiled.truth.areas[1].offset + 300, b"\7")

    found = engine.inspect(spoiled.disk)

    assert [type(defect) for defect in found.defects] == [BadChecksum, BadChecksum, Malformed]
    assert "none of its metadata texts reads" in found.defects[-1].message
    assert found.readable is None


def test_a_chain_that_comes_back_to_itself_is_drawn_all_the_same():
    spoiled = loop_of_two()

    told = report.inspection_text("LUN", engine.inspect(spoiled.disk))

    rows = [line for line in told.splitlines() if line.startswith(tuple(spoiled.truth.uuids.values()))]
    assert len(rows) == 3 and sum("[has a defect]" in row for row in rows) == 1


def test_a_journal_far_larger_than_it_should_be_is_not_read_whole():
    spoiled = spoiled_sr(vhd("disk"), size_bytes=1 << 30)
    tail = struct.pack("<8sBBBBI", b"reLVMtag", 1, 2, 1, 0, 0xFFFFF000) + bytes(80)
    spoiled.poke(LABEL + 352, tail).sealed_label().disk.reset_counters()

    engine.inspect(spoiled.disk)

    assert spoiled.disk.bytes_read < 4 << 20


def test_of_a_lun_whose_volumes_overlap_no_volume_is_read():
    """Thousands of volumes may be on the same extents, and each may ask for a block table of 32 MiB."""
    disk = ROWS["overlapping LVs"].make().disk
    disk.reset_counters()

    found = engine.inspect(disk)

    assert found.state == engine.DAMAGED and found.readable is None
    assert disk.read_batches <= 2
