# SPDX-License-Identifier: LGPL-2.1-only
"""What a resignature leaves on a LUN: every identity is new, and everything else is what it was.

The judge is `kit.reader`, which knows the formats from their description and shares no code with the engine. Each
claim is checked on every image of `IMAGES`: LUNs of the builder, and the golden ones that the real storage manager,
LVM and vhd-util made.
"""

import re
from functools import lru_cache

import pytest

from kit import builder, golden, reader
from kit.build_volumes import Record
from kit.builder import (
    SMALL_BAT,
    build_sr,
    cbtlog,
    raw,
    vhd,
)
from kit.examples import some
from kit.lvmreader import dashed
from kit.outcome import areas_of, assert_same_sr_under_new_ids, entropy_of, names_of, resignatured
from relvmoiscsi import engine
from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.mapfile import derived_ids

NEW_SR = "11111111-2222-4333-8444-555555555555"
NEW_VDI = "66666666-7777-4888-9999-aaaaaaaaaaaa"

IMAGES = {
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
    "everything": builder.everything,
    "everything, by LVM 2.02": lambda: builder.everything(style="2.02", ext_version=1, description=""),
    "label without extension": lambda: builder.one_vhd(ext_version=0),
    "label in sector 0": lambda: builder.one_vhd(label_sector=0),
    "label in sector 3": lambda: builder.one_vhd(label_sector=3),
    "deleted MGT slots only": lambda: build_sr([], mgt_fill=70),
    "golden one": lambda: golden.load("one"),
    "golden chain": lambda: golden.load("chain"),
    "golden tree": lambda: golden.load("tree"),
}


def _short_labels(bug):
    """Labels short enough that sm 3.0.0 to 3.0.12, counting characters for bytes, kept each record in its slot."""
    return build_sr([vhd(f"disk{n}", bat_entries=SMALL_BAT, label=f"Größe {n} 漢字") for n in range(3)], mgt_bug=bug)


@lru_cache(maxsize=None)
def outcome_of(image):
    return resignatured(IMAGES[image]().disk)


# --- on every image


@pytest.mark.parametrize("image", some(list(IMAGES), 3, lambda _name: ""))
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


# --- identities in particular places


def test_sr_uuid_is_new_in_vg_name_mgt_parents_and_trim_volume():
    before = builder.everything()

    outcome = resignatured(before.disk)

    new, old = outcome.ids.new_sr, before.truth.sr_uuid
    sr = outcome.sr_after
    assert (sr.uuid, sr.mgt.sr_uuid) == (new, new)
    assert f"{new}_trim_lv" in sr.others
    assert {item.target[0] for one in sr.vhds for item in one.locators} == {"VG_XenStorage-" + new}
    assert reader.sightings(outcome.after, [old], outside=_rings(outcome.after)) == _leftovers(outcome.before, old)


def _rings(disk):
    """The metadata areas: stale texts and the journal lie there, which nobody reads."""
    return list(reader.read_label(disk).mdas)


def _leftovers(disk, identity):
    """Where an identity stands in free extents: what a deleted VDI left, which is not ours to change."""
    allowed = list(reader.layout_of(disk).allowed)
    return reader.sightings(disk, [identity], outside=allowed)


def test_deleted_mgt_slots_get_new_uuids_too():
    deleted = "0a0b0c0d-0000-4000-8000-000000000003"
    disk = build_sr([raw("data")], extra_records=(Record(deleted, "gone", deleted=True),)).disk

    outcome = resignatured(disk)

    slots = [record for record in outcome.sr_after.mgt.records if record.deleted]
    assert [slot.uuid for slot in slots] == [outcome.ids.uuids[deleted]]
    assert slots[0].name_label == "gone"


def test_mgt_that_names_another_sr_gets_the_uuid_of_this_one():
    before = build_sr([raw("data")])
    (at,) = before.truth.device_ranges("MGT", 0, 1024)
    before.disk.poke(at.offset, before.disk.peek(*at).replace(before.truth.sr_uuid.encode(), NEW_VDI.encode()))

    outcome = resignatured(before.disk)

    assert outcome.sr_before.mgt.sr_uuid == NEW_VDI
    assert outcome.sr_after.mgt.sr_uuid == outcome.ids.new_sr


def test_snapshot_of_follows_its_vdi_even_when_that_is_gone():
    gone = "0a0b0c0d-0000-4000-8000-000000000001"
    disk = build_sr([raw("data"), raw("snapshot", snapshot_of="data"), raw("orphan", snapshot_of=gone)]).disk

    outcome = resignatured(disk)

    links = {record.name_label: record.snapshot_of for record in outcome.sr_after.mgt.records}
    uuids = {record.name_label: record.uuid for record in outcome.sr_after.mgt.records}
    assert links == {"data": "", "snapshot": uuids["data"], "orphan": outcome.ids.uuids[gone]}


def test_a_reference_into_the_original_pool_stays_as_it_is():
    reference = "OpaqueRef:8a3b1f0e-1111-4222-8333-944445555666"
    disk = build_sr([raw("snapshot", snapshot_of=reference)]).disk

    outcome = resignatured(disk)

    assert [record.snapshot_of for record in outcome.sr_after.mgt.records] == [reference]


def test_cbt_links_are_mapped_when_they_lead_nowhere_and_stay_zero_when_they_are():
    gone, newer = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000004"
    logs = [cbtlog("data", parent=gone), cbtlog("other", child=newer), cbtlog("third", parent="data", child="other")]
    disk = build_sr([raw("data"), raw("other"), raw("third"), *logs]).disk

    outcome = resignatured(disk)

    new, (data, other, _third) = outcome.ids.uuids, [log.name[:36] for log in outcome.sr_after.cbts]
    links = [(log.parent, log.child) for log in outcome.sr_after.cbts]
    assert links == [(new[gone], ""), ("", new[newer]), (data, other)]


def test_old_leaves_keep_their_prefix():
    disk = build_sr([vhd("base", hidden=True), vhd("gone", "base", old=True)]).disk

    outcome = resignatured(disk)

    names = [one.name for one in outcome.sr_after.vhds]
    assert [bool(re.match("VHD-OLD_" + reader.UUID + "$", name)) for name in names] == [False, True]


@pytest.mark.parametrize("kind, value", [("coalesce", "1"), ("relink", "1"), ("zero", "4194304")])
def test_harmless_journals_keep_type_value_and_tag_under_the_new_uuid(kind, value):
    disk = build_sr([raw("data"), builder.journal(kind, "data", value)]).disk

    outcome = resignatured(disk)

    (journal,) = outcome.sr_after.journals
    (data,) = outcome.sr_after.raws
    assert journal.name == f"{kind}_{data[3:]}_{value}"
    assert outcome.sr_after.vg.lv(journal.name).tags == ("journaler",)


def test_hints_that_name_the_disk_of_the_original_are_removed():
    hints = 'device = "/dev/sdb"\ndevice_id_type = "sys_wwid"\ndevice_id = "naa.600140500000000000000001"\n'
    disk = build_sr([raw("data")], edit_text=lambda text: text.replace('device = "/dev/sdb"\n', hints)).disk

    outcome = resignatured(disk)

    text = outcome.sr_after.vg.mda.text.decode("utf-8")
    assert "device_id" not in text
    assert 'device = "/dev/sdb"\n\nstatus' in text


def test_lvms_note_of_its_last_command_names_the_new_sr_and_volumes():
    built = build_sr([raw("data")])
    note = "Write from lvcreate -n LV-{} VG_XenStorage-{}.".format(built.truth.uuids["data"], built.truth.sr_uuid)
    disk = build_sr([raw("data")], description=note).disk

    outcome = resignatured(disk)

    text = outcome.sr_after.vg.mda.text.decode("utf-8")
    assert f'description = "{reader.renamed(note, outcome.ids.uuids)}"' in text
    assert built.truth.sr_uuid not in text


def test_the_text_changes_in_its_identities_its_generation_and_its_note_only():
    outcome = outcome_of("everything, by LVM 2.02")
    old, new = (sr.vg.mda.text.decode("utf-8") for sr in (outcome.sr_before, outcome.sr_after))

    expected = reader.renamed(old, names_of(outcome.ids)).replace("seqno = 17", "seqno = 18")

    assert new == expected


# --- chosen ids


def _chosen(truth, uuids, lvm_ids=()):
    return IdMap(truth.sr_uuid, dict(uuids), dict(lvm_ids))


def test_chosen_uuids_and_lvm_ids_are_used_and_the_rest_is_derived():
    built = build_sr([raw("data"), raw("other")])
    pv_id, new_pv_id = built.truth.pv_id.replace("-", ""), "A" * 32
    chosen = _chosen(built.truth, {built.truth.sr_uuid: NEW_SR, built.truth.uuids["data"]: NEW_VDI}, {pv_id: new_pv_id})

    outcome = resignatured(built.disk, chosen=chosen)

    assert outcome.sr_after.uuid == NEW_SR
    assert outcome.sr_after.raws[0] == "LV-" + NEW_VDI
    assert outcome.sr_after.vg.pv_id == dashed(new_pv_id)
    assert_same_sr_under_new_ids(outcome)


def test_all_ids_but_the_sr_s_follow_from_the_sr_s_and_the_old_ones():
    built = outcome_of("everything").before
    old_sr = outcome_of("everything").ids.sr

    ids = resignatured(built.copy(), "these ids").ids

    found = {**ids.uuids, **ids.lvm_ids}
    assert found.pop(old_sr) == ids.new_sr
    assert derived_ids(ids.new_sr, found) == found
    assert ids.new_sr != resignatured(built.copy(), "other ids").ids.new_sr


def test_one_sr_uuid_for_two_copies_gives_them_the_same_ids():
    before = outcome_of("everything").before

    one, other = (
        engine.prepare(before.copy(), entropy_of(seed), engine.ResignatureRequest(sr_uuid=NEW_SR))
        for seed in ("one", "other")
    )

    assert one.plan.run.ids == other.plan.run.ids
    assert one.plan.run.run_id != other.plan.run.run_id


def test_a_resignatured_lun_once_more_has_ids_that_follow_from_its_present_ones():
    once = resignatured(build_sr([raw("data")]).disk)

    twice = resignatured(once.after, "more ids", again=True)

    present = [new for new in (*once.ids.uuids.values(), *once.ids.lvm_ids.values()) if new != once.ids.new_sr]
    assert derived_ids(twice.ids.new_sr, present).items() <= {**twice.ids.uuids, **twice.ids.lvm_ids}.items()
    assert not reader.identities(once.after) & reader.identities(twice.after)


def test_an_id_that_is_chosen_as_what_another_one_becomes_is_refused():
    built = build_sr([raw("data"), raw("other")])
    uuids = built.truth.uuids
    taken = derived_ids(NEW_SR, [uuids["other"]])[uuids["other"]]

    with pytest.raises(UsageError, match="both become"):
        engine.prepare(
            built.disk,
            entropy_of("ids"),
            engine.ResignatureRequest(chosen=_chosen(built.truth, {uuids["data"]: taken}), sr_uuid=NEW_SR),
        )


def test_the_whole_map_of_one_run_repeats_it_on_another_copy():
    first = outcome_of("everything")

    second = resignatured(first.before, chosen=first.ids)

    assert second.ids == first.ids
    assert reader.essence(second.after) == reader.essence(first.after)


REFUSED_CHOICES = {
    "a UUID that is not on the LUN": (lambda truth: {NEW_SR: NEW_VDI}, "not on the LUN"),
    "an upper-case UUID": (lambda truth: {truth.sr_uuid: "A" + NEW_SR[1:]}, "lower case"),
    "no UUID at all": (lambda truth: {truth.sr_uuid: "sr"}, "'sr' is no UUID"),
    "the old UUID": (lambda truth: {truth.sr_uuid: truth.sr_uuid}, "already on the LUN"),
    "the UUID of another volume": (lambda truth: {truth.sr_uuid: truth.uuids["data"]}, "already on the LUN"),
    "one UUID twice": (lambda truth: {truth.sr_uuid: NEW_SR, truth.uuids["data"]: NEW_SR}, "both become"),
}


@pytest.mark.parametrize("choice", REFUSED_CHOICES)
def test_a_choice_that_cannot_be_is_a_usage_error_and_nothing_is_written(choice):
    built = build_sr([raw("data")])
    uuids, sentence = REFUSED_CHOICES[choice]

    with pytest.raises(UsageError, match=sentence) as caught:
        engine.prepare(
            built.disk, entropy_of("ids"), engine.ResignatureRequest(chosen=_chosen(built.truth, uuids(built.truth)))
        )

    assert caught.value.exit_status == 2
    assert "Nothing was written." in str(caught.value)
    assert built.disk.writes == 0


@pytest.mark.parametrize("lvm_id", ["short", "!" * 31 + "-", "é" * 32])
def test_a_chosen_lvm_id_that_is_none_is_a_usage_error(lvm_id):
    built = build_sr([raw("data")])
    chosen = _chosen(built.truth, {}, {built.truth.pv_id.replace("-", ""): lvm_id})

    with pytest.raises(UsageError) as caught:
        engine.prepare(built.disk, entropy_of("ids"), engine.ResignatureRequest(chosen=chosen))

    assert "Nothing was written." in str(caught.value)


def test_tags_of_the_group_and_its_volumes_stay_even_with_an_old_uuid_in_them():
    """A tag is the administrator's. (`edit_text` seals the text anew.)"""
    uuid = build_sr([raw("data")]).truth.sr_uuid

    def tagged(text):
        text = text.replace("max_lv = 0", f'tags = ["sr-{uuid}"]\nmax_lv = 0', 1)
        return text.replace("creation_time", f'tags = ["was-{uuid}"]\ncreation_time', 1)

    outcome = resignatured(build_sr([raw("data")], edit_text=tagged).disk)

    assert outcome.sr_after.vg.tags == ("sr-" + uuid,)
    assert ("was-" + uuid,) in [lv.tags for lv in outcome.sr_after.vg.lvs]


# --- once more


def test_the_same_lun_again_is_already_done_without_a_write():
    disk = resignatured(build_sr([raw("data")]).disk, scsi_id="3600a").after.copy()

    answer = engine.prepare(disk, entropy_of("more"), engine.ResignatureRequest(scsi_id="3600a"))

    assert isinstance(answer, engine.AlreadyDone)
    assert (disk.writes, disk.flushes) == (0, 0)


def test_a_copy_taken_after_a_resignature_is_a_new_clone():
    done = resignatured(build_sr([raw("data")]).disk, scsi_id="3600a")

    outcome = resignatured(done.after, "more ids", scsi_id="3600b")

    assert_same_sr_under_new_ids(outcome)
