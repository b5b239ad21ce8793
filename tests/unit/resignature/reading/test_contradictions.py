# SPDX-License-Identifier: LGPL-2.1-only
"""What an overtaken run leaves on a LUN is found and named; what the storage manager itself leaves is none of it."""

import pytest

from kit import golden, live
from kit.build_volumes import MIB, Record
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, raw, vhd
from kit.outcome import Outcome, assert_same_sr_under_new_ids, entropy_of
from relvmoiscsi import engine

LOST = "0a0b0c0d-0000-4000-8000-000000000001"
TABLE = {"bat_entries": SMALL_BAT}


def lun(*volumes, **options):
    return build_sr(list(volumes), area=AREA_DEFAULT, extent_size=MIB, **options)


def an_sr():
    return lun(vhd("base", hidden=True, **TABLE), vhd("disk", "base", **TABLE), raw("data"))


def told(disk):
    found = engine.inspect(disk)
    assert found.lun is not None, found.problem
    return [contradiction.message for contradiction in found.contradictions]


# --- an overtaken run

WHOLE = {"all of MGT": (0, 2048 + 3 * 1024), "its first sectors": (0, 2048), "one record": (2048 + 1024, 1024)}


@pytest.mark.parametrize("part", WHOLE)
def test_a_write_of_mgt_that_comes_after_another_run_has_ended_is_named_with_its_uuids(part):
    """t0: one run stops before it writes MGT; t1: another run ends; t2: the writes of the first one arrive."""
    built = an_sr()
    stopped, ended = built.disk.copy(), built.disk.copy()
    for disk, seed in ((stopped, "stopped"), (ended, "ended")):
        engine.resignature(disk, engine.prepare(disk, entropy_of(seed)))
    assert told(ended) == []
    late, offset = engine.inspect(stopped).lun, WHOLE[part][0]
    (at,) = (one.offset for one in built.truth.device_ranges("MGT", offset, 1))

    ended.poke(at, stopped.peek(at, WHOLE[part][1]))

    if offset == 0:  # a part of a resignatured LUN names another SR: the LUN is damaged until it is resignatured again
        found = engine.inspect(ended)
        assert found.state == engine.DAMAGED and f"it names the SR {late.sr_uuid}, and" in found.problem.message
        engine.resignature(ended, engine.prepare(ended, entropy_of("again"), engine.ResignatureRequest(again=True)))
    sentences, after = told(ended), engine.inspect(ended)
    assert after.state == engine.RESIGNATURED
    missing = set(after.lun.disks()) - set(after.lun.records())
    records = [record for uuid, record in after.lun.records().items() if uuid not in after.lun.disks()]
    assert len(records) == {"all of MGT": 3, "its first sectors": 0, "one record": 1}[part]
    managed = [record for record in records if record.managed]
    for record in managed:
        where = f"MGT record at byte {record.offset} of MGT: "
        assert where + f"its VDI {record.uuid} has no volume." in sentences
    assert len(missing) == len(records)
    visible = [uuid for uuid in missing if not after.lun.disks()[uuid].hidden]
    for uuid in visible:
        assert any(sentence.endswith(f"MGT has no record of VDI {uuid}.") for sentence in sentences)
    assert len(visible) == len(managed) == {"all of MGT": 2, "its first sectors": 0, "one record": 1}[part]
    assert len(sentences) == 2 * len(managed)


#: what lies at a place of MGT after a late write, and what is said of it
LATE = {
    "zeros in all records": (2048, bytes(3 * 1024), ["record at byte 2048", "record at byte 3072"]),
    "zeros in one record": (3072, bytes(1024), ["record at byte 3072"]),
    "zeros in a first sector": (2048, bytes(512), ["record at byte 2048"]),
    "zeros in a second sector": (2048 + 512, bytes(512), ["record at byte 2048"]),
    "the header of an SR without VDIs": (0, b"XSSM:2048      :1:2", ["no record of any of the 3 VDIs"]),
}


@pytest.mark.parametrize("late", LATE)
def test_records_that_a_late_write_has_taken_away_are_named(late):
    at, data, words = LATE[late]
    built = an_sr()
    (start,) = (one.offset for one in built.truth.device_ranges("MGT", 0, 1))

    built.disk.poke(start + at, data)

    sentences = told(built.disk)
    assert len(sentences) == len(words)
    for sentence, word in zip(sentences, words):
        assert word in sentence


@pytest.mark.parametrize("records", [1, 3])
def test_zeros_in_the_last_record_are_a_note(records):
    """SM may be cut when it has written the number of bytes in use, and not yet the record."""
    built = lun(*(raw(f"data{number}") for number in range(records)))
    (start,) = (one.offset for one in built.truth.device_ranges("MGT", 0, 1))

    built.disk.poke(start + 2048 + 1024 * (records - 1), bytes(1024))

    assert told(built.disk) == []
    notes = engine.notes(engine.inspect(built.disk).lun)
    assert any(note.startswith("The storage manager cannot read the MGT record at byte") for note in notes)


def test_such_a_lun_is_resignatured_as_it_is_and_what_is_wrong_is_noted():
    built = lun(raw("data", in_mgt=False), extra_records=(Record(LOST, "data", vdi_type="aio"),))
    before, after = built.disk, built.disk.copy()
    data = built.truth.uuids["data"]

    prepared = engine.prepare(after, entropy_of("ids"))
    result = engine.resignature(after, prepared)

    notes = engine.notes(prepared.lun)
    assert f"MGT has no record of VDI {data}: it has no label." in notes
    assert f"MGT has a record of VDI {LOST}, which has no volume: SM will drop it." in notes
    assert_same_sr_under_new_ids(Outcome(before, after, prepared.plan.run.ids, result))
    assert len(told(before)) == len(told(after)) == 2


# --- the storage manager's own states


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_lun_of_a_real_storage_manager_contradicts_nothing(name):
    assert told(golden.load(name).disk) == []


@pytest.mark.parametrize("name", golden.LIVE_NAMES)
def test_a_lun_that_was_caught_at_work_contradicts_nothing(name):
    assert told(golden.load_live(name).disk) == []


#: the kit fills MGT with records of VDIs that nobody has; the storage manager drops such records when it attaches an SR
FILLED = "clone: no free slot in MGT"


@pytest.mark.states
@pytest.mark.parametrize("name", sorted(set(live.STATES) - {FILLED}))
def test_unfinished_work_contradicts_nothing(name):
    found = engine.inspect(live.STATES[name]().built.disk)

    assert found.contradictions == ()


def small(key, parent="", **more):
    return vhd(key, parent, **TABLE, **more)


OF_SM = {
    "VDI.create, before the record": lambda: lun(small("new", in_mgt=False), raw("data")),
    "VDI.create, while SM looks for room": lambda: lun(
        small("new", in_mgt=False),
        small("old"),
        extra_records=(Record(LOST, "dummy vdi for space check", managed=False),),
    ),
    "VDI.delete, after the record": lambda: lun(small("gone", in_mgt=False, hidden=True), raw("data")),
    "a VDI that was forgotten, and the garbage collector before the record of a base": lambda: lun(
        small("forgotten", in_mgt=False), extra_records=(Record(LOST, "base copy", read_only=True, managed=False),)
    ),
    "the garbage collector before the record": lambda: lun(
        small("disk"), extra_records=(Record(LOST, "base copy", read_only=True, managed=False),)
    ),
    "the garbage collector before a record, and a snapshot before the record of another base": lambda: lun(
        small("base", in_mgt=False, hidden=True),
        small("disk", "base"),
        small("snapshot", "base", in_mgt=False),
        extra_records=(Record(LOST, "base copy", read_only=True, managed=False),),
    ),
    "no MGT": lambda: lun(raw("data"), mgt=False),
    "a record of another kind": lambda: lun(raw("data", in_mgt=False), extra_records=(Record(LOST, "disk"),)),
}


@pytest.mark.parametrize("name", OF_SM)
def test_what_the_storage_manager_leaves_when_it_is_interrupted_is_a_note(name):
    assert told(OF_SM[name]().disk) == []
