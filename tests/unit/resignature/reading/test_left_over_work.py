# SPDX-License-Identifier: LGPL-2.1-only
"""Journals that were left over while the VM ran on, and texts of older journals: nothing that a guest wrote is lost."""

import re
import struct
import sys

import pytest

from kit.builder import AREA_DEFAULT, build_sr, journal, named, raw, trim, vhd
from kit.chains import flatten
from kit.cuts import cut_before, done, entropy, resignature, undo
from kit.live import (
    FINISHED,
    STATES,
    _live,
    disk,
    listed,
    unlisted,
)
from kit.spoiled import Spoiled
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice, Range
from relvmoiscsi.errors import Refused, Unsupported
from relvmoiscsi.formats import mgt
from relvmoiscsi.formats.vhd import DynamicHeader
from relvmoiscsi.resignature import problems
from relvmoiscsi.resignature.reading import sm_journals, survey
from relvmoiscsi.resignature.reading.read_cache import ReadCache

DATA, LATER = (4, 5, 9000), (4, 6, 9000, 12000)


def guests_are_kept(live):
    after = live.built.disk.copy()
    ids = resignature(after).ids.uuids
    for key in live.leaves:
        name = "LV-" if key == "beside raw" else "VHD-"
        assert flatten(after, name + ids[live.uuid(key)]).blocks == live.guest(key).blocks, key


def ran_on(hidden, clone_there, end, *more):
    volumes = [
        unlisted(disk("base", sectors=DATA, hidden=hidden, writable=not hidden)),
        disk("orig", "base", sectors=LATER, end=end),
        *([unlisted(disk("clone", "base"))] if clone_there else []),
        journal("clone", "orig", "{base}_{clone}"),
        *more,
    ]
    leaves = {"orig": ("orig", "base"), **({"clone": ("clone", "base")} if clone_there else {})}
    return _live(volumes, leaves, FINISHED, also=() if clone_there else ("clone",))


@pytest.mark.parametrize("end", ["killed", ""])
@pytest.mark.parametrize("clone_there", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
def test_what_a_vm_wrote_behind_a_snapshot_that_failed_is_kept(hidden, clone_there, end):
    """So it is while the garbage collector coalesces that leaf."""
    guests_are_kept(ran_on(hidden, clone_there, end))
    if not clone_there and not end:
        guests_are_kept(ran_on(hidden, False, "", journal("leaf", "orig", "{base}")))


def test_a_leaf_of_the_parent_counts_only_where_the_base_is_empty():
    volumes = [
        disk("grand", sectors=(3, 4, 5000), hidden=True),
        unlisted(disk("base", "grand", sectors=DATA)),
        disk("orig", "grand"),  # what a deleted sibling left in the extents of the new leaf
        journal("clone", "orig", "{base}_"),
    ]
    live = _live(volumes, {}, FINISHED)
    after = live.built.disk.copy()
    ids = resignature(after).ids.uuids
    expected = _live(volumes, {"orig": ("base", "grand")}, FINISHED).guest("orig")
    assert flatten(after, "VHD-" + ids[live.uuid("orig")]).blocks == expected.blocks


@pytest.mark.parametrize("end", ["killed", ""])
@pytest.mark.parametrize("of", ["x", "y"])
def test_the_text_of_an_older_journal_costs_nobody_a_disk(of, end):
    volumes = [
        disk("b0", sectors=DATA, hidden=True),
        disk("x", "b0", end=end if of == "x" else ""),
        disk("c0", "b0", snapshot_of="x"),
        disk("yb", sectors=(77,), hidden=True),
        disk("y", "yb", end=end if of == "y" else ""),
        journal("clone", of, "{b0}_{c0}"),
    ]
    guests_are_kept(_live(volumes, {"x": ("x", "b0"), "c0": ("c0", "b0"), "y": ("y", "yb")}, FINISHED))


def test_what_a_vm_wrote_behind_a_leaf_coalesce_whose_undo_failed_is_kept():
    old, child = (3, 4, 5000, 8200), (4, 5, 8200, 9000)
    writes = [(sector, "parent") for sector in old if sector not in child]
    writes += [(sector, "later" if sector in (4, 9000) else "child") for sector in child]
    volumes = [
        disk("parent", writes=(*writes, (12000, "later")), writable=True, named_as="child", end="killed"),
        listed(disk("child", "parent", sectors=child, old=True), disk("child")),
        journal("leaf", "child", "{parent}"),
    ]
    guests_are_kept(_live(volumes, {"child": ("parent",)}, FINISHED))


@pytest.mark.parametrize("listed_too", [True, False])
@pytest.mark.parametrize("text", ["{v0}_", "{v0}_{v0}", "{v1}_{v0}", "{v0}_{v1}", "{v1}_{v1}"])
def test_a_journal_of_a_snapshot_whose_volumes_are_not_three_does_not_read(text, listed_too):
    """SM makes new UUIDs for both new volumes. Where MGT lacks a disk, the work may have begun."""
    volumes = [disk("v0", sectors=DATA), disk("v1", in_mgt=listed_too), journal("clone", "v0", text)]
    lun = build_sr(volumes, area=AREA_DEFAULT).disk

    found = engine.inspect(lun)

    if listed_too:
        (told,) = [note for note in engine.notes(found.lun) if "snapshot" in note]
        assert told.endswith("was about to begin: it is dropped.")
    else:
        assert "and its journal does not read" in found.problem.message
        with pytest.raises(Unsupported, match="and its journal does not read"):
            engine.prepare(lun, entropy(0))


@pytest.mark.parametrize("sectors", [(), DATA])
def test_no_journal_of_a_snapshot_deletes_a_disk_that_mgt_knows(sectors):
    others = [unlisted(disk("base", sectors=DATA)), disk("victim", sectors=sectors), disk("orig")]
    lun = build_sr([*others, journal("clone", "orig", "{base}_{victim}")], area=AREA_DEFAULT).disk
    before = lun.copy()

    with pytest.raises(Unsupported, match="which MGT knows"):
        engine.prepare(lun, entropy(0))
    assert engine.inspect(lun).state == engine.DAMAGED and lun == before


@pytest.mark.parametrize("child", [disk("child", "parent"), listed(disk("child", "parent", old=True), disk("child"))])
def test_no_journal_of_a_leaf_coalesce_hides_a_disk_that_is_not_the_parent(child):
    """The run would hide the disk that the text names, and SM's garbage collector would delete that disk."""
    others = [disk("parent", sectors=DATA, hidden=True), disk("victim", sectors=DATA)]
    lun = build_sr([*others, child, journal("leaf", "child", "{victim}")], area=AREA_DEFAULT).disk
    before = lun.copy()

    with pytest.raises(Unsupported, match="and its image names another parent"):
        engine.prepare(lun, entropy(0))
    assert engine.inspect(lun).state == engine.DAMAGED and lun == before


def test_a_journal_of_a_leaf_coalesce_into_the_leaf_itself_does_not_read():
    lun = build_sr([disk("v0", sectors=DATA), journal("leaf", "v0", "{v0}")], area=AREA_DEFAULT).disk
    with pytest.raises(Unsupported, match="and the journal does not read"):
        engine.prepare(lun, entropy(0))


@pytest.mark.parametrize(
    "leaf, says",
    [
        (disk("orig", sectors=LATER), "it holds blocks, and was not made of VHD-"),
        (raw("orig"), "it is raw, and no snapshot makes a raw leaf"),
    ],
)
def test_of_two_volumes_with_data_that_no_snapshot_relates_neither_goes(leaf, says):
    volumes = [unlisted(disk("base", sectors=DATA, hidden=True)), leaf, journal("clone", "orig", "{base}_")]
    with pytest.raises(Unsupported, match=says):
        engine.prepare(build_sr(volumes, area=AREA_DEFAULT).disk, entropy(0))


def with_spoiled_leaf(spoil, sectors=DATA):
    """A snapshot without its last step; `spoil` changes its leaf with these sectors, which is sealed again."""
    volumes = [
        unlisted(disk("base", sectors=(0, 3), hidden=True)),
        disk("orig", "base", sectors=sectors),
        unlisted(disk("clone", "base")),
        journal("clone", "orig", "{base}_{clone}"),
    ]
    spoiled = Spoiled(build_sr(volumes, area=AREA_DEFAULT))
    spoil(spoiled)
    return spoiled


def second_name_of_a_parent(spoiled, key):
    """A fourth locator: it names the parent by the text of the first one, which libvhd allows."""
    first = 512 + DynamicHeader.locators.offset
    entry = b"Mac " + spoiled.peek((key, first + 4), 20)
    spoiled.poke((key, first + 3 * 24), entry).sealed_vhd(key)


def reserved_bytes(spoiled, key):
    spoiled.poke((key, 512 + DynamicHeader.reserved2.offset), b"\7").sealed_vhd(key)


@pytest.mark.parametrize("spoil", [second_name_of_a_parent, reserved_bytes])
@pytest.mark.parametrize("key", ["orig", "clone"])
def test_a_leaf_that_only_libvhd_reads_is_not_dropped(spoil, key):
    spoiled = with_spoiled_leaf(lambda found: spoil(found, key))

    with pytest.raises(Unsupported, match="this leaf of an unfinished snapshot may hold data of a VM. VHD ") as refused:
        engine.prepare(spoiled.disk, entropy(0))
    assert f" --without {spoiled.truth.uuids[key]}" in str(refused.value)


def no_text(spoiled, key):
    """Of all locators: libvhd writes these texts behind the block table, over what a deleted disk has left there."""
    first = 512 + DynamicHeader.locators.offset
    for at in range(first, first + 3 * 24, 24):
        (text,) = struct.unpack(">Q", spoiled.peek((key, at + 16), 8))
        spoiled.poke((key, text), bytes(64))


def test_a_leaf_whose_making_was_cut_goes_while_its_block_table_is_empty():
    """And not with blocks: they may be of a VM."""
    cut = with_spoiled_leaf(lambda spoiled: no_text(spoiled, "orig"), sectors=())
    assert any("rolled back" in note for note in engine.notes(engine.prepare(cut.disk, entropy(0)).lun))

    written = with_spoiled_leaf(lambda spoiled: no_text(spoiled, "orig"))
    with pytest.raises(Unsupported, match="may hold data of a VM"):
        engine.prepare(written.disk, entropy(0))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spoiled: spoiled.poke(("orig", 0), bytes(512)),
        lambda spoiled: spoiled.poke(("orig", 600), b"\7"),
    ],
)
def test_a_leaf_that_libvhd_calls_invalid_is_dropped_as_by_sm(spoil):
    spoiled = with_spoiled_leaf(spoil)

    (told,) = [note for note in engine.notes(engine.prepare(spoiled.disk, entropy(0)).lun) if "snapshot" in note]

    name = spoiled.truth.volume("orig").name
    assert told.endswith(f"it is rolled back, and deletes {name}, which does not read, as the storage manager would.")


def test_what_a_vm_may_have_written_over_an_empty_base_is_refused():
    """It may as well be what a deleted disk has left where the leaf is to be made."""
    volumes = [
        disk("grand", sectors=DATA, hidden=True),
        unlisted(disk("base", "grand")),
        disk("orig", "grand", sectors=LATER, end="killed"),
        journal("clone", "orig", "{base}_{clone}"),
    ]
    live = _live(volumes, {"orig": ("orig", "grand")}, FINISHED, also=("clone",))
    with pytest.raises(Unsupported, match="may be of a deleted disk or of a VM that ran on"):
        engine.prepare(live.built.disk.copy(), entropy(0))


@pytest.mark.states("name")
@pytest.mark.parametrize("name", [name for name in STATES if name.startswith("leaf: ")])
def test_each_vdi_that_show_lists_can_be_left_behind(name):
    """A leaf-coalesce that is undone has given the parent the name of its child: \"no volume of VDI\", said the run."""
    disk, outcomes = STATES[name]().built.disk, set()
    inspected = engine.inspect(disk)
    assert inspected.problem is None
    for uuid in inspected.lun.settled().disks():
        request = engine.ResignatureRequest(without=(uuid,))
        work = engine.prepare(disk, entropy(1), request).lun.work
        assert uuid not in work.lun.disks() and f"VDI {uuid} is left behind, as it was asked for." in work.sentences
        outcomes.add(len(work.lun.disks()))
    assert len(outcomes) > 1, "a parent goes with its children"


def test_mgt_is_not_called_full_where_it_is_not():
    volumes = []
    for number in "12":
        base, orig, clone = (f"{key}{number}" for key in ("base", "orig", "clone"))
        volumes += [unlisted(disk(base, sectors=DATA)), disk(orig, base), unlisted(disk(clone, base))]
        volumes.append(journal("clone", orig, f"{{{base}}}_{{{clone}}}"))
    found = engine.inspect(_live(volumes, {}, FINISHED).built.disk)
    assert not [sentence for sentence in found.lun.work.sentences if "full" in sentence]


def test_the_block_tables_of_many_unfinished_snapshots_are_not_in_memory_at_once():
    """A table has megabytes, and a LUN may have a journal of a snapshot for each image."""
    volumes, table = [], {"bat_entries": 1 << 20, "virtual_size": 2 << 40, "in_mgt": False}
    for number in range(3):
        base, orig, clone = (f"{key}{number}" for key in ("base", "orig", "clone"))
        volumes += [
            vhd(base, blocks=0, **table),
            vhd(orig, base, blocks=0, **table),
            vhd(clone, base, blocks=0, **table),
        ]
        volumes.append(journal("clone", orig, f"{{{base}}}_{{{clone}}}"))
    volumes[0] = volumes[0]._replace(blocks=1)
    asked = Asked(build_sr(volumes, area=AREA_DEFAULT).disk)
    label = survey.read_label(asked)

    found = survey.read_contents(ReadCache(asked), label)

    assert max(asked.at_once) < 18 << 20 < sum(asked.at_once)
    empty = {volume.lv.name: volume.empty for volume in found.volumes if volume.is_disk}
    assert sorted(empty.values()) == [False] + 8 * [True]


SMALL = {"blocks": 0, "bat_entries": 32}


def with_snapshots(count):
    """A LUN with a journal of a snapshot for each of its disks."""
    volumes = []
    for number in range(count):
        base, orig, clone = (f"{key}{number}" for key in ("base", "orig", "clone"))
        unlisted_ones = [vhd(key, parent, in_mgt=False, **SMALL) for key, parent in ((base, ""), (clone, base))]
        volumes += [*unlisted_ones, vhd(orig, base, **SMALL)]
        volumes.append(journal("clone", orig, f"{{{base}}}_{{{clone}}}"))
    return build_sr(volumes, area=Range(4096, (1 << 20) - 4096)).disk


def lines_run(work):
    """How many lines of Python the work runs: the same number on each machine."""
    count = 0

    def trace(_frame, event, _value):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def with_old_leaves(count):
    """A LUN with so many journals of one snapshot, and as many leaves of its base that SM still has to delete."""
    volumes = [vhd("base", in_mgt=False, **SMALL), vhd("orig", "base", **SMALL)]
    for number in range(count):
        volumes.append(vhd(f"old{number}", "base", old=True, **SMALL))
        one = journal("clone", "orig", "{base}_")
        volumes.append(one._replace(key=f"journal {number}", name=f"clone_{{orig}}_{number}"))
    return build_sr(volumes, area=Range(4096, (1 << 20) - 4096)).disk


@pytest.mark.parametrize("made", [with_snapshots, with_old_leaves])
def test_the_work_on_journals_grows_with_their_number_and_not_with_its_square(made):
    """A hostile LUN must not keep a call at work for hours."""
    few, many = (engine.inspect(made(count)).lun._replace(work=None) for count in (60, 120))

    sm_journals.unfinished_work(few)
    lines = [lines_run(lambda lun=lun: sm_journals.unfinished_work(lun)) for lun in (few, many)]
    assert lines[1] < 2.2 * lines[0]


def test_many_journals_that_cannot_be_settled_do_not_have_all_records_read_again(monkeypatch):
    volumes = [vhd(f"disk{number}", **SMALL) for number in range(100)]
    volumes += [journal("leaf", f"disk{number}", "no UUID") for number in range(40)]
    disk, read, real = build_sr(volumes, area=AREA_DEFAULT).disk, [], mgt._record
    monkeypatch.setattr(mgt, "_record", lambda data, offset: read.append(offset) or real(data, offset))

    assert engine.inspect(disk).state == engine.DAMAGED
    assert len(read) < 6 * len(volumes)
    for looks, count in ((30 * 141, 30), (300, 2), (0, 1)):  # of 141 volumes in each round
        monkeypatch.setattr(problems, "_MOST_LOOKS", looks)
        cache = ReadCache(disk)
        assert len(problems.read_problems(cache, survey.read_label(cache)).without) == count


class Asked(ForwardingDevice):
    """Notes the bytes that each batch asks for."""

    def __init__(self, device):
        super().__init__(device)
        self.at_once = []

    def read(self, ranges):
        self.at_once.append(sum(part.length for part in ranges))
        return super().read(ranges)


# --- a trim


def trimmed(volume):
    """A disk with a snapshot, and no free extent but those of `volume`."""
    volumes = [disk("base", sectors=DATA, hidden=True), disk("leaf", "base", sectors=LATER), volume]
    return build_sr(volumes, area=AREA_DEFAULT, free_extents=0)


def unused_extents(disk):
    vg = engine.inspect(disk).lun.vg
    return vg.pe_count - sum(lv.extent_count for lv in vg.lvs)


@pytest.mark.parametrize("one", [None, engine.OneVdiRequest()])
def test_free_space_that_sm_was_trimming_is_free_after_a_run(one):
    before = trimmed(trim(extents=8)).disk
    after = before.copy()
    planned = engine.prepare(after, entropy(0), engine.ResignatureRequest(one=one))
    (name,) = (volume.name.text for volume in planned.lun.volumes if volume.name.text.endswith("_trim_lv"))

    engine.resignature(after, planned)

    words = f"The storage manager was trimming free space. {name} is dropped: it holds no data, and"
    for lun in (planned.lun, engine.inspect(before).lun):
        assert sum(note.startswith(words) for note in engine.notes(lun)) == 1
    assert unused_extents(before) == 0 and unused_extents(after) >= 8
    if one is None:
        assert engine.compare(before, after).problems == []
        undo(after)
        assert unused_extents(after) == 0 and engine.inspect(after).lun.volume(name)


def test_a_volume_that_is_not_of_a_trim_of_this_sr_is_no_free_space():
    request = engine.ResignatureRequest(one=engine.OneVdiRequest())
    disk = trimmed(named("0a0b0c0d-0000-4000-8000-000000000002_trim_lv", extents=8)).disk

    with pytest.raises(Refused, match="needs 2 free extents of 4 MiB before its commit, 0 are free"):
        engine.prepare(disk, entropy(0), request)


@pytest.mark.parametrize("cut_at", [5, 6])
def test_an_undo_brings_the_newer_text_of_two_areas_back(cut_at):
    def seqno(device):
        cache = ReadCache(device)
        text = survey._committed_text(cache, survey.read_mdas(cache, survey.read_label(cache)))[0]
        return int(re.search(r"seqno = (\d+)", text).group(1))

    built = build_sr([disk("a", sectors=(1, 2))], second_area="older", area=AREA_DEFAULT).disk

    assert seqno(cut_before(done(built), cut_at, run=undo)) == seqno(built)


#: texts as MGT has them. SM escapes no type: in a new record, the text would be tags, or too long for its half
NO_TYPES = {
    "tags": "user&lt;/type&gt;&lt;deleted&gt;0&lt;/deleted&gt;",
    "one more tag": "user&lt;/type&gt;&lt;note&gt;x&lt;/note&gt;&lt;type&gt;user",
    "no tags": "a&lt;b",
    "the end": "&lt;/vdi&gt;",
    "too long": "\u00e9" * 100,
    "none": "",
}


def of_type(kind):
    """A complete snapshot of the VDI "orig", which has this type, beside another VDI."""
    orig = disk("orig", "base", sectors=LATER)
    volumes = [
        unlisted(disk("base", sectors=DATA, hidden=True, writable=False)),
        orig._replace(record=orig.record._replace(type=kind)),
        unlisted(disk("clone", "base")),
        journal("clone", "orig", "{base}_{clone}"),
    ]
    return _live(volumes, {}, FINISHED)


def new_types(live):
    after = live.built.disk.copy()
    resignature(after)
    found = engine.inspect(after).lun.mgt
    assert not found.unread and len(found.live()) > 2
    return {record.type for record in found.live().values()}


@pytest.mark.parametrize("kind", ["user", "ha_statefile", "of_a_later_release"])
def test_a_new_record_has_the_type_of_the_vdi(kind):
    assert new_types(of_type(kind)) == {"user", kind}


@pytest.mark.parametrize("name", NO_TYPES)
def test_a_type_that_no_sm_writes_is_in_no_new_record(name):
    with pytest.raises(Unsupported, match="MGT record at byte [0-9]+ of MGT: it is XML, and not in the form of SM"):
        engine.prepare(of_type(NO_TYPES[name]).built.disk, entropy(1))
