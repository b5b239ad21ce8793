# SPDX-License-Identifier: LGPL-2.1-only
"""The request of a program: one SCSIid in all its forms, and a sentence for a value that a field cannot have."""

import pytest

from kit import golden
from kit.crash import FailingDisk
from kit.cuts import cut_before
from kit.outcome import entropy_of
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused, Unfinished, UsageError
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.lun.named_device import open_device
from relvmoiscsi.resignature import compare

NUMBER = "6001405ab1c2d3e4f5061728394a5b6c"
SCSI_ID = "3" + NUMBER


@pytest.fixture
def disk():
    return golden.load("chain").disk.copy()


def prepared(disk, **request):
    return engine.prepare(disk, entropy_of("ids"), engine.ResignatureRequest(**request))


@pytest.mark.parametrize("form", [SCSI_ID.upper(), "naa." + NUMBER, "wwn-0x" + NUMBER, NUMBER, f" scsi-{SCSI_ID}\n"])
def test_each_form_of_a_scsi_id_names_the_lun_of_the_finished_run(disk, form):
    engine.resignature(disk, prepared(disk, scsi_id=SCSI_ID))

    assert isinstance(prepared(disk, scsi_id=form), engine.AlreadyDone)


def test_a_run_for_one_form_is_finished_for_the_scsi_id_and_recover_takes_each_form(disk):
    result = engine.resignature(disk, prepared(disk, scsi_id="naa." + NUMBER))

    assert result.scsi_id == SCSI_ID
    assert isinstance(prepared(disk, scsi_id=SCSI_ID), engine.AlreadyDone)
    assert engine.recover(disk, scsi_id=NUMBER).already_done
    with pytest.raises(UsageError, match="is no SCSIid"):
        engine.recover(disk, scsi_id="")


def test_a_serial_number_with_a_slash_stays_as_the_lun_tells_it(disk):
    assert prepared(disk, scsi_id="SVENDOR_MODEL_a/b").plan.run.scsi_id == "SVENDOR_MODEL_a/b"


UUID = "7d2d9e72-1839-4ea5-85bd-6cecf8841738"
WRONG = [
    ({"scsi_id": ""}, "'' is no SCSIid"),
    ({"scsi_id": "x\ny"}, "is no SCSIid"),
    ({"scsi_id": "x/\ny"}, "is no SCSIid"),
    ({"scsi_id": 5}, "field scsi_id .* expected a text"),
    ({"chosen": {UUID: UUID}}, "field chosen .* expected an IdMap"),
    ({"without": UUID}, "field without .* expected a tuple of texts"),
    ({"without": (5,)}, "field without .* expected a tuple of texts"),
    ({"words": "relvmoiscsi"}, "field words .* expected a tuple of texts"),
    ({"again": "no"}, "field again .* expected True or False"),
    ({"clear_databases": 1}, "field clear_databases .* expected True or False"),
    ({"sr_uuid": 5}, "field sr_uuid .* expected a UUID"),
    ({"one": True}, "field one .* expected a OneVdiRequest"),
    ({"one": engine.OneVdiRequest(vdi=5)}, "field one.vdi .* expected a UUID"),
    *(
        ({"one": engine.OneVdiRequest(most_bytes=most)}, "field one.most_bytes .* expected a number")
        for most in ("1", 1.5, True, -1)
    ),
    ({"one": engine.OneVdiRequest(note=None)}, "field one.note .* expected a text"),
    ({"chosen": IdMap(None, {}, {})}, "field chosen.sr .* expected a text"),
    ({"chosen": IdMap("", {7: UUID}, {})}, "field chosen.uuids .* expected a dict of texts"),
    ({"chosen": IdMap("", {}, [(UUID, UUID)])}, "field chosen.lvm_ids .* expected a dict of texts"),
]


@pytest.mark.parametrize("request_fields, words", WRONG)
def test_a_value_that_a_field_cannot_have_is_refused_in_a_sentence(disk, request_fields, words):
    with pytest.raises(UsageError, match=words) as refused:
        prepared(disk, **request_fields)

    assert refused.value.disk_state == "Nothing was written."


@pytest.mark.parametrize("arguments", [("a\0b",), ("",), ("iscsi://h/iqn.2026-01.example:a/1", "x\ny")])
def test_a_name_of_no_device_and_a_wrong_scsi_id_of_a_url_are_refused_in_a_sentence(arguments):
    name, *scsi_id = arguments
    with pytest.raises(UsageError, match="names no device|is no SCSIid"), open_device(
        name, False, None, None, *scsi_id
    ):
        pass


def test_a_device_that_was_opened_to_read_is_refused_in_a_sentence(disk, tmp_path):
    path = str(tmp_path / "clone.img")
    disk.to_file(path)
    with open_device(path, writable=False) as device:
        plan = engine.prepare(device, entropy_of("ids"))
        with pytest.raises(UsageError, match="reading only. Nothing was written. Open it for writing") as refused:
            engine.resignature(device, plan)

    assert refused.value.disk_state == "Nothing was written."


@pytest.mark.parametrize("wrong", ["zz", "!!", "lun 0", "é", "", "3\n4"])
def test_a_text_that_scsi_id_never_prints_is_neither_recorded_nor_recovered(disk, wrong):
    with pytest.raises(UsageError, match="is no SCSIid"):
        prepared(disk, scsi_id=wrong)
    with pytest.raises(UsageError, match="is no SCSIid"):
        engine.recover(disk, scsi_id=wrong)


@pytest.mark.parametrize("field", [{"sr_uuid": UUID[1:]}, {"without": ("unknown",)}, {"without": (UUID + "0",)}])
def test_a_text_that_is_no_uuid_is_a_usage_error_on_a_finished_lun_too(disk, field):
    engine.resignature(disk, prepared(disk, scsi_id=SCSI_ID))

    with pytest.raises(UsageError, match="is not a UUID of 36 characters"):
        prepared(disk, scsi_id=SCSI_ID, **field)


@pytest.mark.parametrize("write", [engine.resignature, engine.copy_unseen])
def test_a_plan_for_the_clone_is_never_carried_out_on_the_original(disk, tmp_path, write):
    original, clone = str(tmp_path / "original.img"), str(tmp_path / "clone.img")
    disk.to_file(original)
    disk.to_file(clone)
    with open_device(clone, writable=True) as device:
        plan = engine.prepare(device, entropy_of("ids"))
    with open_device(original, writable=True) as device:
        with pytest.raises(UsageError, match="prepared for .*clone.img, not for .*original.img") as refused:
            write(device, plan)

        assert (refused.value.disk_state, engine.inspect(device).state) == ("Nothing was written.", engine.CLEAN)


def test_what_is_already_done_is_one_short_line(disk):
    engine.resignature(disk, prepared(disk, scsi_id=SCSI_ID))

    for each in (prepared(disk, scsi_id=SCSI_ID), IdMap(UUID, {UUID: UUID}, {})):
        assert "\n" not in repr(each) and len(repr(each)) < 300


def test_a_plan_is_carried_out_once(disk):
    plan = prepared(disk, scsi_id=SCSI_ID)
    cut = cut_before(disk, 3)
    engine.resignature(disk, plan)

    with pytest.raises(UsageError, match="was carried out before") as caught:
        engine.resignature(disk, plan)
    assert (caught.value.advice, caught.value.disk_state) == ("", "Nothing was written.")
    with pytest.raises(Refused, match="something else writes to it"):  # the plan of another run
        engine.resignature(cut, plan._replace(device=cut.name))


def test_a_plan_whose_run_was_interrupted_leads_to_its_recovery(disk):
    plan = prepared(disk, scsi_id=SCSI_ID)
    whole = FailingDisk(disk.copy())
    engine.resignature(whole, plan)
    with pytest.raises(DeviceError, match="begun and may be unfinished"):
        engine.resignature(FailingDisk(disk, whole.operations // 2), plan)

    with pytest.raises(Unfinished, match="holds an unfinished resignature"):
        engine.resignature(disk, plan)


@pytest.mark.parametrize("when, flush", [("before", 3), ("after", -1)])
def test_no_lun_with_an_interrupted_run_is_compared_in_either_place(disk, when, flush):
    flushes = engine.resignature(disk.copy(), prepared(disk)).flushes
    cut = cut_before(disk, flush % flushes)

    for one, other in ((disk, cut), (cut, disk)):
        with pytest.raises(Unfinished, match=f"unfinished resignature, {when} its commit") as caught:
            engine.compare(one, other)
        assert str(caught.value) == str(engine.inspect(cut).problem)


def test_a_comparison_compares_all_guest_data_unless_it_is_told_not_to(disk):
    original = disk.copy()
    engine.resignature(disk, prepared(disk))
    lun = engine.inspect(original).lun
    volume = next(iter(lun.disks().values()))
    (place,) = lun.vg.ranges(volume.lv, lun.vg.size_of(volume.lv) // 2 // 4096 * 4096, 512)

    same = engine.compare(original, disk)
    disk.write([Chunk(place.offset, b"\x5a" * 512)])
    differs, identities = engine.compare(original, disk), engine.compare(original, disk, ())

    assert same.problems == [] and same.bytes_compared > 0
    assert len(differs.problems) == 1 and f"at byte {place.offset}" in differs.problems[0]
    assert (identities.problems, identities.bytes_compared) == ([], 0)


class LookedAt(Range):
    """A range that counts how often its start is read."""

    count = 0

    @property
    def offset(self):
        LookedAt.count += 1
        return self[0]


def test_a_part_that_differs_is_compared_with_the_few_writes_that_lie_there(disk, monkeypatch):
    clone, looked_at, real = disk.copy(), [], compare.overlaid
    engine.resignature(clone, prepared(clone))
    monkeypatch.setattr(
        compare, "overlaid", lambda data, offset, chunks: (looked_at.append(len(chunks)), real(data, offset, chunks))[1]
    )

    assert not engine.compare(disk, clone).problems
    assert len(looked_at) > 10 and sum(looked_at) < 3 * len(looked_at), "not all 19 writes for each part"


def test_each_range_of_data_is_compared_with_the_few_extents_that_it_lies_in(disk):
    clone = disk.copy()
    engine.resignature(clone, prepared(clone))
    volumes = sorted(
        part for lv in engine.inspect(disk).lun.vg.lvs for part in engine.inspect(disk).lun.vg.ranges(lv, 0, 4096)
    )
    data = [LookedAt(start + at, 32) for start, _length in volumes for at in range(0, 3200, 64)]

    found = engine.compare(disk, clone, data)

    assert not found.problems and found.bytes_compared == 32 * len(data)
    assert len(volumes) == 10 and LookedAt.count < 12 * len(data)


def test_bytes_of_ranges_that_overlap_are_compared_and_counted_once(disk):
    clone = disk.copy()
    start = engine.inspect(disk).lun.vg.ranges(engine.inspect(disk).lun.volumes[0].lv, 0, 4096)[0].offset

    data = [Range(start + 512, 1024), Range(start, 1024), Range(start, 512)]
    assert engine.compare(disk, clone, data).bytes_compared == 1536
