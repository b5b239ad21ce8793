# SPDX-License-Identifier: LGPL-2.1-only
"""Journals that anybody who writes a LUN can make: right digests, and any facts.

A recovery of such a LUN ends in an error of the program, never in a bug. A journal that is refused is refused before
anything is written.
"""

import copy
import functools
import hashlib
import json
import struct
import zlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.chains.random_chain import random_chain
from kit.cuts import SCSI_ID, cut_before, image, label_range, read_mark, recover, undo
from kit.examples import examples
from kit.forged_record import forge_journal, forge_run
from relvmoiscsi import engine
from relvmoiscsi.device import Fence, Range, align_up
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import FormatError, Place, Refused, RelvmoiscsiError
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.vg import Segment
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.commit_record import COMMIT_RECORD_AT, CommitRecord, with_commit_record
from relvmoiscsi.resignature.protocol.run_record import IdField, Write, verify_run

pytestmark = pytest.mark.states

CUTS = [(name, flush) for name in ("one VDI", "a chain", "to one VDI") for flush in (4, 5, 6, 7)]
JUNK = [None, True, 0, 1, -1, 1.5, 10**17, "", "x", "\u202e\x1b[2J", [], [1], [None], ["a"], [[]], [[0, 10**12]], {}]


@pytest.fixture(autouse=True, scope="module")
def without_a_lease():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fence, "OUTLAST_SECONDS", 0.0)
        yield


@functools.lru_cache(maxsize=None)
def cut_run(name, flush):
    """A LUN with a mark: of a run that was cut, or that has ended."""
    if name != "to one VDI":
        return cut_before(image(name), flush)
    chain = random_chain(34, bat_entries=4096, free=20, blocks=5, depth=3)
    return cut_before(chain.disk, flush, one=OneVdiRequest())


@functools.lru_cache(maxsize=None)
def payload_of(name, flush):
    """(The facts, the bytes behind the facts) of the journal of that run."""
    data = read_mark(cut_run(name, flush)).journal.data
    length = journal.JournalHeader.at(data).payload_length
    payload = zlib.decompress(data[journal.JournalHeader.SIZE :][:length])
    (end,) = struct.unpack_from("<Q", payload)
    return json.loads(payload[8 : 8 + end].decode()), payload[8 + end :]


def forged(name, flush, facts, surplus=0):
    """The LUN of a cut run with these facts in the journal, and with right digests. The stated length has `surplus`."""
    disk = cut_run(name, flush).copy()
    mark = read_mark(disk)
    text = json.dumps(facts).encode()
    payload = struct.pack("<Q", len(text)) + text + payload_of(name, flush)[1]
    packed = zlib.compress(payload)
    header = journal.JournalHeader.zero(
        magic=journal.JOURNAL_MAGIC,
        version=journal.VERSION,
        payload_length=len(packed),
        raw_length=len(payload) + surplus,
        payload_digest=hashlib.sha256(packed).digest(),
    )
    data = bytes(header) + packed
    data = data.ljust(align_up(len(data), journal.ALIGNMENT), b"\0")
    disk.poke(mark.journal.offset, data)
    place = label_range(disk).offset
    sector = disk.peek(place, 512)
    digest = hashlib.sha256(bytes(header)).digest()
    record = CommitRecord.at(sector, COMMIT_RECORD_AT).replace(journal_digest=digest, journal_length=len(data))
    disk.poke(place, with_commit_record(sector, record))
    disk.freeze()
    return disk


def places_of(value, way=()):
    """The ways to all values in the facts; of a long list to its first two values."""
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places_of(one, (*way, key))


def with_junk(facts, way, junk):
    found = copy.deepcopy(facts)
    at = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = copy.deepcopy(junk)
    return found


def ends_as_it_may(name, flush, facts):
    """Raises what is a bug: an exception that is none of the program's own."""
    disk = forged(name, flush, facts)
    try:
        engine.inspect(disk)
    except RelvmoiscsiError:
        pass
    before = disk.copy()
    try:
        read_mark(disk)
        is_refused = False
    except FormatError:
        is_refused = True
    try:
        recover(disk)
    except RelvmoiscsiError:
        pass
    assert not is_refused or disk == before


@given(st.data())
@settings(max_examples=examples(400), deadline=None)
def test_facts_with_right_digests_are_no_bug(data):
    name, flush = data.draw(st.sampled_from(CUTS))
    facts, _ = payload_of(name, flush)
    way = data.draw(st.sampled_from([way for way in places_of(facts) if way]))
    ends_as_it_may(name, flush, with_junk(facts, way, data.draw(st.sampled_from(JUNK))))


FIRST = object()  #: the first key of an object
#: each would end the recovery in a bug, or in writes to a place that is none of the run's
FORGED = {
    "a new UUID that is none": (("uuids", FIRST), "x", "'x' is no UUID"),
    "an LVM id that is none": (("lvm_ids", FIRST), "--yes", "'--yes' is not an LVM id"),
    "a PV id that is none": (("new_pv_id",), "x", "'x' is not an LVM id"),
    "a VDI that is not in the map": (("one",), "0a0b0c0d-0000-4000-8000-00000000dead", "no new UUID of the VDI"),
    "areas of another label": (("mdas", 0, 0), [8192, 1040384], "not those of its label"),
    "a second area outside the first": (("mdas", 0, 1), [1 << 21, 106496], "do not lie in each other"),
    "a write to the label": (("writes", 0, 0), 512, "would write 512 bytes at 512"),
    "a write to the metadata": (("writes", 0, 0), 8192, "would write 512 bytes at 8192"),
    "a write behind the end": (("writes", 0, 0), 1 << 50, "would write 512 bytes at"),
    "a write that begins in a block": (("writes", 0, 0), 1049089, "are no blocks"),
    "a SCSIid of another LUN": (("scsi_id",), "36001405other", "another SCSIid than the commit record"),
    "no SCSIid": (("scsi_id",), None, "another SCSIid than the commit record"),
    "a SCSIid that is a sentence": (("scsi_id",), "3600. Run `xe sr-forget` now", "now' is no SCSIid"),
    "a long SCSIid": (("scsi_id",), "3" * 256, "is no SCSIid"),
    "an empty SCSIid": (("scsi_id",), "", "'' is no SCSIid"),
    "a SCSIid that is a number": (("scsi_id",), 10**17, "a value is not a text"),
    "an unknown structure": (("fields", 0, 2), "x", "it knows a structure 'x'"),
    "a structure in a list": (("fields", 0, 2), [1], "a value is not a text"),
    "a name in an object": (("fields", 0, 1), {"a": 1}, "a value is not a text"),
    "pieces of letters": (("fields", 0, 0), [["a", "b"]], "a value is not a size"),
    "a piece before the device": (("fields", 0, 0), [[-5, 4]], "a value is not a size"),
    "a piece that no write covers": (("fields", 0, 0), [[1 << 20, 4]], "do not cover a field"),
    "a field without a piece": (("fields", 0, 0), [], "do not cover a field"),
    "a structure of all the disk": (("fields", 0, 3), [[1 << 22, 1 << 22]], "has another length"),
    "a write that is no block": (("block_bytes",), 3, "3 bytes are no block"),
    "a map without the SR": (("sr",), "0a0b0c0d-0000-4000-8000-00000000dead", "no new UUID of the SR"),
    "an id of a run": (("run_id",), "00", "the id of its run"),
    "ids in a list": (("uuids",), ["x"], "its content does not read"),
    "a write that is longer than its bytes": (("writes", -1, 1), 1 << 20, "its bytes are not complete"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_no_run_writes_is_refused_by_name_before_anything_is_written(name):
    way, junk, says = FORGED[name]
    facts, _ = payload_of("a chain", 4)
    way = [min(facts[way[0]]) if part is FIRST else part for part in way]
    disk = forged("a chain", 4, with_junk(facts, way, junk))
    before = disk.copy()
    with pytest.raises(FormatError, match=says):
        read_mark(disk)
    with pytest.raises(RelvmoiscsiError):
        recover(disk)
    assert disk == before


def test_fields_that_overlap_are_refused():
    """A recovery would compare the bytes of one write for each of them, under the storage manager's lock."""
    facts, _ = payload_of("a chain", 4)
    first, second = facts["fields"][:2]
    for pieces in (first[0] * 2, [*first[0], second[0][0]], [[first[0][0][0] + 1, first[0][0][1] - 1], *first[0]]):
        with pytest.raises(FormatError, match="its fields overlap"):
            read_mark(forged("a chain", 4, with_junk(facts, ("fields", 0, 0), pieces)))


def test_a_field_outside_its_structure_is_refused():
    facts, _ = payload_of("a chain", 4)
    fields = [(number, field) for number, field in enumerate(facts["fields"]) if field[3]]
    number, _ = fields[0]
    ((offset, length),) = fields[0][1][3]
    for around in ([[offset + (8 << 20), length]], [[offset + at, 1] for at in range(length)]):
        with pytest.raises(FormatError, match="is outside its|has another length"):
            read_mark(forged("a chain", 4, with_junk(facts, ("fields", number, 3), around)))


@pytest.mark.parametrize("text", ["7", "9" * 2000000])
def test_a_text_is_no_place_of_a_unit_and_takes_no_time(text):
    """Python 3.6 would take minutes for the digits; later ones refuse them, but take a short number."""
    facts, _ = payload_of("to one VDI", 4)
    with pytest.raises(FormatError, match="a value is not a whole number"):
        read_mark(forged("to one VDI", 4, with_junk(facts, ("rebuilt", "full"), [text])))


def test_units_of_a_new_image_that_overlap_are_refused():
    facts, _ = payload_of("to one VDI", 4)
    with pytest.raises(FormatError, match="units of the new image overlap"):
        read_mark(forged("to one VDI", 4, with_junk(facts, ("rebuilt", "full", 1), 0)))


def test_a_payload_of_another_length_than_the_header_says_is_refused():
    facts, _ = payload_of("a chain", 4)
    with pytest.raises(FormatError, match="it does not have .* bytes"):
        read_mark(forged("a chain", 4, facts, surplus=1))


def moved(run, **values):
    return run._replace(mdas=(run.mdas[0]._replace(**values), *run.mdas[1:]))


def written(run, new):
    return run._replace(writes=(run.writes[0]._replace(old=new, new=new), *run.writes[1:]))


def around(run, change):
    """The first field with a structure, whose place is another."""
    field = next(field for field in run.fields if field.around)
    other = field._replace(around=tuple(piece for part in field.around for piece in change(part)))
    return run._replace(fields=tuple(other if one is field else one for one in run.fields))


def merged(**values):
    """Other values of the new image; a function gets the value as it is."""

    def changed(run):
        found = {name: new(getattr(run.merged, name)) if callable(new) else new for name, new in values.items()}
        return run._replace(merged=run.merged._replace(**found))

    return changed


def table(**values):
    """Other values of the first unit of the block table; a function gets the unit."""

    def changed(units):
        found = {name: new(units[0]) if callable(new) else new for name, new in values.items()}
        return (units[0]._replace(**found), *units[1:])

    return merged(table=changed)


def named(what, of):
    """The run with another name of what is written there."""

    def change(run):
        return run._replace(**{of: tuple(one._replace(what=what) for one in getattr(run, of))})

    return change


IN_SR = "MGT: UUID of the SR"
ADVICE = "This LUN is damaged. Run `dd if=/dev/zero of=/dev/sda`."
LONG = (Segment(0, 1 << 22, 0), Segment(1 << 22, 1, 1 << 22))
#: {what is wrong: (the run, as changed; what is said)}; each is refused by one check alone
WRONG_RUNS = {
    "a second area of no bytes": (
        lambda run: moved(run, second=Range(run.mdas[0].second.offset, 0)),
        "do not lie in each other",
    ),
    "a second area that begins before the first": (
        lambda run: moved(run, second=Range(run.mdas[0].original.offset - 512, 4096)),
        "do not lie in each other",
    ),
    "a structure in many pieces": (
        lambda run: around(run, lambda part: [Range(part.offset + at, 1) for at in range(part.length)]),
        "has another length",
    ),
    "a write of no bytes": (lambda run: written(run, b""), "0 bytes at .* are no blocks"),
    "a write of half a block": (lambda run: written(run, bytes(256)), "256 bytes at .* are no blocks"),
    "a structure that is too short": (
        lambda run: around(run, lambda part: [Range(part.offset, part.length - 1)]),
        "has another length",
    ),
    "a field with the name of advice": (named(ADVICE, "fields"), "no run writes to 'This LUN is damaged"),
    "a write with the name of advice": (named(ADVICE, "writes"), "no run writes to 'This LUN is damaged"),
    "a name with advice behind it": (
        named(f"{IN_SR}. {ADVICE}", "fields"),
        "no run writes to 'MGT: UUID of the SR. This",
    ),
    "an LVM id of the new volume": (merged(lv_id="--yes"), "'--yes' is not an LVM id"),
    "a new volume of too many extents": (merged(segments=LONG), "it makes a volume of 4194305 extents"),
    "a full bitmap in the label": (merged(full=array("q", [0])), "would write"),
    "a full bitmap before the disk": (merged(full=array("q", [-1 << 20])), "would write"),
    "an empty bitmap behind the end": (merged(empty=array("q", [1 << 60])), "would write"),
    "a block table in the label": (table(offset=0), "would write"),
    "a full bitmap within a block": (
        merged(full=lambda units: array("q", [units[0] + 1])),
        "a unit of .* begins at",
    ),
    "an empty bitmap within a block": (
        merged(empty=lambda units: array("q", [units[0] + 1])),
        "a unit of .* begins at",
    ),
    "a block table within a block": (table(offset=lambda unit: unit.offset + 1), "a unit of .* begins at"),
    "empty bitmaps that overlap": (merged(empty=lambda units: units[:1] * 2), "units of the new image overlap"),
    "a block table that ends before its start": (table(first=16, end=8), "the block table at .* has another length"),
    "a block table that ends behind its unit": (
        table(end=lambda unit: len(unit.old) + 1),
        "the block table at .* has another length",
    ),
    "a block table of half a block": (
        table(old=bytes(256), new=bytes(256), first=0, end=0),
        "the block table at .* has another length",
    ),
    "a block table of no bytes": (table(old=b"", new=b"", first=0, end=0), "the block table at .* has another length"),
    "more holes than bitmaps": (merged(empty=lambda units: units[:-1]), "number of holes"),
    "more bitmaps than holes": (
        merged(empty=lambda all: all + array("q", [max(all) + 4096])),
        "number of holes",
    ),
}


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_each_value_of_a_run_has_its_range(name):
    change, says = WRONG_RUNS[name]
    disk, where = cut_run("a chain" if "structure" in name else "to one VDI", 4), Place("the journal", 0)
    run = read_mark(disk).journal.run
    verify_run(run, disk.size_bytes, where)

    with pytest.raises(FormatError, match=says):
        verify_run(change(run), disk.size_bytes, where)


def test_a_metadata_area_behind_the_end_of_the_device_is_refused():
    run = read_mark(cut_run("a chain", 4)).journal.run._replace(writes=(), fields=())
    end = max(move.original.end for move in run.mdas)
    verify_run(run, end, Place("the journal", 0))

    with pytest.raises(FormatError, match="do not lie in each other"):
        verify_run(run, end - 1, Place("the journal", 0))


def test_a_metadata_area_over_the_label_is_refused():
    """The end of a recovery writes a header to the start of the area."""
    disk = cut_run("a chain", 4)
    run = read_mark(disk).journal.run
    old = run.mdas[0].original
    area = Range(512, old.end - 512)
    sector = run.old_label.replace(struct.pack("<QQ", *old), struct.pack("<QQ", *area))
    wrong = moved(run, original=area)._replace(old_label=pv.sealed_label(sector))

    with pytest.raises(FormatError, match="do not lie in each other"):
        verify_run(wrong, disk.size_bytes, Place("the journal", 0))


def test_a_field_that_ends_behind_its_structure_is_refused():
    disk = cut_run("a chain", 4)
    run = read_mark(disk).journal.run
    piece = next(field for field in run.fields if field.around).pieces[0]
    wrong = around(run, lambda part: [Range(piece.end - 1 - part.length, part.length)])

    with pytest.raises(FormatError, match="a field is outside its"):
        verify_run(wrong, disk.size_bytes, Place("the journal", 0))


# --- an end at which the LUN does not read


@pytest.mark.parametrize("act", [recover, undo])
def test_a_run_after_its_commit_is_of_a_stranger_where_pv_and_vg_have_no_new_ids(act):
    """`recover` would say "finished" of an untouched copy of the original."""
    disk = image("one VDI").copy()
    disk = forge_run(disk, SCSI_ID, engine.SWITCHED, new_sr=engine.inspect(disk).lun.sr_uuid)
    before = disk.copy()

    with pytest.raises(Refused, match="a PV and a VG with ids that are not those of a resignature") as caught:
        act(disk)

    assert disk == before and caught.value.disk_state == "Nothing was written."
    assert engine.inspect(disk).run is None


@pytest.mark.parametrize("act", [recover, undo])
def test_a_run_that_would_end_with_the_ids_of_the_original_is_not_finished(act):
    """The label has the new ids until the last write. The header of the run's end leads back to the old text."""
    disk = cut_run("one VDI", 5).copy()
    run = read_mark(disk).journal.run
    (move,) = run.mdas
    forge_journal(disk, run._replace(mdas=(move._replace(final_header=move.old_header),)), engine.SWITCHED)
    before = disk.copy()

    with pytest.raises(Refused, match="the run would leave ") as caught:
        act(disk)
    assert disk == before and caught.value.disk_state == "Nothing was written."


@pytest.mark.parametrize("act", [recover, undo])
def test_an_undo_that_would_leave_a_pv_id_beside_that_of_the_metadata_is_not_finished(act):
    disk = image("one VDI").copy()
    sr_uuid = engine.inspect(disk).lun.sr_uuid
    disk = forge_run(disk, SCSI_ID, engine.SWITCHED, new_sr=sr_uuid, kind=engine.UNDO)
    run = read_mark(disk).journal.run
    sector = pv.parse_label(run.old_label, run.label_number, Place("label", 0)).sector_with("A" * 32, run.mdas[0][:1])
    forge_journal(disk, run._replace(new_pv_id="A" * 32, final_label=sector), engine.SWITCHED)
    before = disk.copy()

    with pytest.raises(
        Refused, match="the run would leave no metadata that reads: LVM label at byte 512 of "
    ) as caught:
        act(disk)

    assert disk == before and "Nothing was written." in str(caught.value)
    assert isinstance(engine.inspect(disk).problem, Refused)


@pytest.mark.parametrize("field", ["kind", "run_id", "scsi_id_digest", "replaced_pv_id", "replaced_vg_id"])
def test_a_record_that_differs_from_its_journal_is_refused_by_the_name_of_the_field(field):
    disk = cut_run("a chain", 4).copy()
    found = read_mark(disk)
    value = engine.UNDO if field == "kind" else bytes(len(getattr(found.commit_record, field)))
    sector = with_commit_record(found.label.sector, found.commit_record.replace(**{field: value}))
    disk.poke(found.label.offset, sector)

    with pytest.raises(FormatError, match="it has another .* than the commit record in the label"):
        read_mark(disk)


# --- a LUN whose metadata do not read: nothing says whose journal that is


@pytest.mark.parametrize("phase", [engine.IN_PROGRESS, engine.SWITCHED])
@pytest.mark.parametrize("act", [recover, undo])
def test_a_journal_that_cannot_be_compared_with_the_sr_on_the_lun_writes_nothing(act, phase):
    """Else a stranger's journal would put his bytes into a guest's data, and his label before them."""
    disk = forge_run(image("one VDI").copy(), SCSI_ID, phase)
    cut = read_mark(disk).journal.run
    at, (area,) = disk.size_bytes - (2 << 20), (move.original for move in cut.mdas)
    write, field = Write(at, b"x" * 512, disk.peek(at, 512), IN_SR), IdField((Range(at, 512),), IN_SR)
    forge_journal(disk, cut._replace(writes=(write,), fields=(field,)), phase)
    (text_at,) = struct.unpack("<Q", disk.peek(area.offset + 40, 8))
    disk.poke(area.offset + text_at + 100, bytes(64))
    before = disk.copy()

    with pytest.raises(Refused, match="the LUN holds no metadata that reads: Metadata text at ") as caught:
        act(disk)

    assert disk == before and "Nothing was written." in str(caught.value)
    assert engine.inspect(disk).run is None
