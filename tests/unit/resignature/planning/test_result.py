# SPDX-License-Identifier: LGPL-2.1-only
"""What a resignature leaves on a LUN: every identity is new, and everything else is what it was.

The judge is `kit.reader`, which knows the formats from their description and shares no code with the engine. Each
claim is checked on every image of `IMAGES`: LUNs of the builder, and the golden ones that the real storage manager,
LVM and vhd-util made.
"""

from functools import lru_cache

import pytest

from kit import builder, golden, reader
from kit.build_volumes import Record
from kit.builder import SMALL_BAT, build_sr, cbtlog, raw, vhd
from kit.examples import some
from kit.lvmreader import dashed
from kit.outcome import areas_of, assert_same_sr_under_new_ids, entropy_of, names_of, resignatured
from relvmoiscsi import engine
from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.formats.identity import IdMap, derived_lvm_id
from relvmoiscsi.formats.mapfile import derived_ids

NEW_SR = "11111111-2222-4333-8444-555555555555"
NEW_VDI = "66666666-7777-4888-9999-aaaaaaaaaaaa"
GONE, NEWER = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000004"
OF_THE_POOL = "OpaqueRef:8a3b1f0e-1111-4222-8333-944445555666"


def _short_labels(bug):
    """Labels short enough that sm 3.0.0 to 3.0.12, counting characters for bytes, kept each record in its slot."""
    return build_sr([vhd(f"disk{n}", bat_entries=SMALL_BAT, label=f"Größe {n} 漢字") for n in range(3)], mgt_bug=bug)


def _links():
    """Links of snapshots and CBT logs: to what is there, to what is gone, to nothing, into the original pool."""
    logs = [
        cbtlog("data", parent=GONE),
        cbtlog("of gone", child=NEWER),
        cbtlog("third", parent="data", child="of gone"),
        cbtlog("4", parent="data", child="third", consistent=2),
    ]
    snapshots = [raw("of gone", snapshot_of=GONE), raw("third", snapshot_of="data"), raw("4", snapshot_of=OF_THE_POOL)]
    return build_sr([raw("data"), *snapshots, *logs])


IMAGES = {
    "everything": builder.everything,
    "everything, by LVM 2.02": lambda: builder.everything(style="2.02", ext_version=1, description=""),
    "links: of snapshots and logs": _links,
    "deleted: MGT slots only": lambda: build_sr([], mgt_fill=70),
    "one VHD": builder.one_vhd,
    "no volume but MGT": lambda: build_sr([]),
    "no MGT": lambda: build_sr([raw("data")], mgt=False),
    "five deep with a raw root": builder.five_deep_with_raw_root,
    "fragmented": builder.fragmented_locators,
    "two metadata areas": builder.two_metadata_areas,
    "second metadata area ignored": lambda: builder.two_metadata_areas("ignored"),
    "wrapped text": builder.wrapped_text,
    "60 VDIs in a default metadata area": lambda: builder.many_vdis(60, chained=True, area=builder.AREA_DEFAULT),
    "16 MiB metadata area": lambda: builder.one_vhd(area=builder.AREA_16M),
    "QCOW2": builder.qcow2_chain,
    "4 KiB blocks": builder.four_k,
    "labels": builder.labels,
    "labels, shifted": lambda: _short_labels("shifted"),
    "labels, damaged": lambda: _short_labels("damaged"),
    "label without extension": lambda: builder.one_vhd(ext_version=0),
    "label in sector 0": lambda: builder.one_vhd(label_sector=0),
    "label in sector 3": lambda: builder.one_vhd(label_sector=3),
    **{"golden " + name: lambda name=name: golden.load(name) for name in ("one", "chain", "tree")},
}


@lru_cache(maxsize=None)
def outcome_of(image):
    return resignatured(IMAGES[image]().disk)


@pytest.mark.parametrize("image", some(list(IMAGES), 3, lambda name: name.split(":")[0] if ":" in name else name[:5]))
def test_every_identity_is_new_and_everything_else_is_what_it_was(image):
    outcome = outcome_of(image)
    before, after, ids = outcome.before, outcome.after, outcome.ids

    assert_same_sr_under_new_ids(outcome)

    areas, areas_before = areas_of(after), areas_of(before)
    assert [area.ignored for area in areas] == [area.ignored for area in areas_before]
    assert len({area.text for area in areas if not area.ignored}) == 1
    text = outcome.sr_after.vg.mda.text.decode("utf-8")
    assert [old for old in names_of(ids) if old in text] == []
    problems = [reader.renamed(problem, names_of(ids)) for problem in outcome.sr_before.problems]
    assert list(outcome.sr_after.problems) == problems
    assert reader.blkid_sees(after) == reader.blkid_sees(before)

    old, new = reader.read_label(before), reader.read_label(after)
    assert (new.sector, new.device_size, new.warnings) == (old.sector, old.device_size, old.warnings)
    assert (new.data_areas, new.mdas) == (old.data_areas, old.mdas)
    # the extension of LVM 2.02.143, so that no LVM writes the label anew
    assert (new.ext_version, new.ext_flags) == (2, old.ext_flags | 1)

    counted, result = after.counters(), outcome.result
    assert result.flushes == counted.flushes == 6
    assert (result.writes, result.bytes_written) == (counted.writes, counted.bytes_written)

    found = engine.inspect(after)
    assert (found.state, found.problem) == (engine.RESIGNATURED, None)
    assert found.lun.sr_uuid == ids.new_sr and found.run.ids == ids

    twice = resignatured(after, "more ids", again=True)
    assert_same_sr_under_new_ids(twice)
    assert not reader.identities(before) & reader.identities(twice.after)
    # ids once more follow from the present ones
    present = [new for new in (*ids.uuids.values(), *ids.lvm_ids.values()) if new != ids.new_sr]
    assert derived_ids(twice.ids.new_sr, present).items() <= {**twice.ids.uuids, **twice.ids.lvm_ids}.items()


# --- identities in particular places


def test_the_old_uuid_of_the_sr_stands_nowhere_but_where_nobody_reads():
    """Stale texts and the journal lie in the metadata areas; what a deleted VDI left in free extents is not ours."""
    outcome = outcome_of("everything")
    new, old, sr = outcome.ids.new_sr, outcome.ids.sr, outcome.sr_after

    assert (sr.uuid, sr.mgt.sr_uuid) == (new, new)
    assert {item.target[0] for one in sr.vhds for item in one.locators} == {"VG_XenStorage-" + new}
    rings, allowed = list(reader.read_label(outcome.after).mdas), list(reader.layout_of(outcome.before).allowed)
    assert reader.sightings(outcome.after, [old], rings) == reader.sightings(outcome.before, [old], allowed)


def test_links_and_deleted_slots_follow_their_vdi_even_when_that_is_gone():
    outcome = outcome_of("links: of snapshots and logs")
    new, records = outcome.ids.uuids, outcome.sr_after.mgt.records

    uuids = {record.name_label: record.uuid for record in records}
    links = {record.name_label: record.snapshot_of for record in records}
    assert links == {"data": "", "of gone": new[GONE], "third": uuids["data"], "4": OF_THE_POOL}
    logs = {log.name[:36]: (log.parent, log.child) for log in outcome.sr_after.cbts}
    data, of_gone, third = uuids["data"], uuids["of gone"], uuids["third"]
    expected = {data: (new[GONE], ""), of_gone: ("", new[NEWER]), third: (data, of_gone), uuids["4"]: (data, third)}
    assert logs == expected

    disk = build_sr([raw("data")], extra_records=(Record(GONE, "gone", deleted=True),)).disk
    outcome = resignatured(disk)
    slots = [record for record in outcome.sr_after.mgt.records if record.deleted]
    assert [(slot.uuid, slot.name_label) for slot in slots] == [(outcome.ids.uuids[GONE], "gone")]


def test_mgt_that_names_another_sr_gets_the_uuid_of_this_one():
    before = build_sr([raw("data")])
    (at,) = before.truth.device_ranges("MGT", 0, 1024)
    before.disk.poke(at.offset, before.disk.peek(*at).replace(before.truth.sr_uuid.encode(), NEW_VDI.encode()))

    outcome = resignatured(before.disk)

    assert outcome.sr_before.mgt.sr_uuid == NEW_VDI
    assert outcome.sr_after.mgt.sr_uuid == outcome.ids.new_sr


def test_the_text_changes_in_its_identities_its_generation_its_note_and_hints_only():
    """The note of LVM's last command names the new SR; hints that name the disk of the original are gone."""
    truth = build_sr([raw("data")]).truth
    note = "Write from lvcreate -n LV-{} VG_XenStorage-{}.".format(truth.uuids["data"], truth.sr_uuid)
    hints = 'device_id_type = "sys_wwid"\ndevice_id = "naa.600140500000000000000001"\n'
    device = 'device = "/dev/sdb"\n'
    disk = build_sr([raw("data")], description=note, edit_text=lambda text: text.replace(device, device + hints)).disk

    for outcome in (outcome_of("everything, by LVM 2.02"), resignatured(disk)):
        old, new = (sr.vg.mda.text.decode("utf-8") for sr in (outcome.sr_before, outcome.sr_after))
        seqno = outcome.sr_before.vg.seqno
        expected = reader.renamed(old, names_of(outcome.ids)).replace(f"seqno = {seqno}", f"seqno = {seqno + 1}")
        assert new == expected.replace(hints, "")


def test_tags_of_the_group_and_its_volumes_stay_even_with_an_old_uuid_in_them():
    """A tag is the administrator's."""
    uuid = build_sr([raw("data")]).truth.sr_uuid

    def tagged(text):
        text = text.replace("max_lv = 0", f'tags = ["sr-{uuid}"]\nmax_lv = 0', 1)
        return text.replace("creation_time", f'tags = ["was-{uuid}"]\ncreation_time', 1)

    outcome = resignatured(build_sr([raw("data")], edit_text=tagged).disk)

    assert outcome.sr_after.vg.tags == ("sr-" + uuid,)
    assert ("was-" + uuid,) in [lv.tags for lv in outcome.sr_after.vg.lvs]


# --- chosen ids


def prepared_with(built, uuids, lvm_ids=(), **more):
    chosen = IdMap(built.truth.sr_uuid, dict(uuids), dict(lvm_ids))
    return engine.prepare(built.disk, entropy_of("ids"), engine.ResignatureRequest(chosen=chosen, **more))


def test_chosen_uuids_are_used_and_the_rest_is_derived():
    built = build_sr([raw("data"), raw("other")])
    pv_id, uuids = built.truth.pv_id.replace("-", ""), built.truth.uuids
    new_pv_id = derived_lvm_id(NEW_SR, pv_id)
    chosen = IdMap(built.truth.sr_uuid, {built.truth.sr_uuid: NEW_SR, uuids["data"]: NEW_VDI}, {pv_id: new_pv_id})

    outcome = resignatured(built.disk, chosen=chosen)

    assert outcome.sr_after.uuid == NEW_SR
    assert outcome.sr_after.raws[0] == "LV-" + NEW_VDI
    assert outcome.sr_after.vg.pv_id == dashed(new_pv_id)
    assert_same_sr_under_new_ids(outcome)


def test_a_map_for_another_sr_is_refused_before_a_run_and_after_it():
    """The rest would be derived, so the caller would get ids that the caller did not mean."""
    built = build_sr([raw("data"), raw("other")])
    disk, sr_uuid, uuids = built.disk, built.truth.sr_uuid, {built.truth.uuids["data"]: NEW_VDI}
    request = engine.ResignatureRequest(chosen=IdMap(NEW_SR, uuids, {}))

    with pytest.raises(UsageError, match=f"is for the SR {NEW_SR}, and the LUN holds the SR {sr_uuid}"):
        engine.prepare(disk, entropy_of("ids"), request)
    right = engine.ResignatureRequest(chosen=IdMap(sr_uuid, uuids, {}))
    engine.resignature(disk, engine.prepare(disk, entropy_of("ids"), right))
    with pytest.raises(Refused, match=f"the old SR was {sr_uuid}, not {NEW_SR}"):
        engine.prepare(disk, entropy_of("ids"), request)
    assert isinstance(engine.prepare(disk, entropy_of("ids"), right), engine.AlreadyDone)


def test_a_part_of_a_map_has_a_new_sr_where_it_chooses_it():
    assert IdMap(NEW_VDI, {NEW_VDI: NEW_SR}, {}).new_sr == NEW_SR
    with pytest.raises(UsageError, match=f"no UUID in place of the SR {NEW_VDI}"):
        _ = IdMap(NEW_VDI, {}, {}).new_sr


def test_all_ids_follow_from_the_new_uuid_of_the_sr_and_the_old_ids():
    """So two copies that get one UUID get the same ids, and the map of one run repeats it on another copy."""
    first = outcome_of("everything")
    found = {**first.ids.uuids, **first.ids.lvm_ids}
    assert found.pop(first.ids.sr) == first.ids.new_sr
    assert derived_ids(first.ids.new_sr, found) == found
    assert first.ids.new_sr != resignatured(first.before.copy(), "other ids").ids.new_sr

    one, other = (
        engine.prepare(first.before.copy(), entropy_of(seed), engine.ResignatureRequest(sr_uuid=NEW_SR)).plan.run
        for seed in ("one", "other")
    )
    assert one.ids == other.ids and one.run_id != other.run_id

    second = resignatured(first.before, chosen=first.ids)
    assert second.ids == first.ids
    assert reader.essence(second.after) == reader.essence(first.after)


TAKEN, DERIVED = {"sr_uuid": NEW_SR}, "derived from another UUID, or for another SR. .* Choose a random UUID"
REFUSED_CHOICES = [
    (lambda truth: {NEW_SR: NEW_VDI}, "not on the LUN", {}),
    (lambda truth: {truth.sr_uuid: "A" + NEW_SR[1:]}, "lower case", {}),
    (lambda truth: {truth.sr_uuid: "sr"}, "'sr' is not a UUID", {}),
    (lambda truth: {truth.sr_uuid: truth.sr_uuid}, "already on the LUN", {}),
    (lambda truth: {truth.sr_uuid: truth.uuids["data"]}, "already on the LUN", {}),
    (lambda truth: {truth.sr_uuid: NEW_SR, truth.uuids["data"]: NEW_SR}, "both become", {}),
    # what another one would become, and what this one would become on another SR
    (lambda truth: {truth.uuids["data"]: derived_ids(NEW_SR, [truth.uuids["o"]])[truth.uuids["o"]]}, DERIVED, TAKEN),
    (lambda truth: derived_ids(NEW_VDI, [truth.uuids["data"]]), DERIVED, TAKEN),
]


@pytest.mark.parametrize("uuids, sentence, more", REFUSED_CHOICES)
def test_a_choice_that_cannot_be_is_a_usage_error_and_nothing_is_written(uuids, sentence, more):
    built = build_sr([raw("data"), raw("o")])

    with pytest.raises(UsageError, match=sentence) as caught:
        prepared_with(built, uuids(built.truth), **more)

    assert caught.value.exit_status == 2
    assert "Nothing was written." in str(caught.value)
    assert built.disk.writes == 0


@pytest.mark.parametrize("lvm_id", ["short", "!" * 31 + "-", "é" * 32])
def test_a_chosen_lvm_id_that_is_none_is_a_usage_error(lvm_id):
    built = build_sr([raw("data")])

    with pytest.raises(UsageError, match="Nothing was written."):
        prepared_with(built, {}, {built.truth.pv_id.replace("-", ""): lvm_id})
