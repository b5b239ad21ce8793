# SPDX-License-Identifier: LGPL-2.1-only
"""A plan that leads elsewhere than to the LUN under new ids is refused before its first write."""

import re
import struct
from types import SimpleNamespace

import pytest

from kit import builder
from kit.build_volumes import Record
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, raw, vhd
from kit.cuts import SCSI_ID
from kit.outcome import entropy_of
from kit.spoiled import Spoiled
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import FormatError, Refused
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.vhd import DynamicHeader, LocatorEntry, Vhd
from relvmoiscsi.resignature.planning.identity_check import differences, shared_identities, verify_result
from relvmoiscsi.resignature.planning.plan_check import check_plan, check_undo
from relvmoiscsi.resignature.protocol.commit_record import DONE, IN_PROGRESS, SWITCHED, with_commit_record
from relvmoiscsi.resignature.protocol.journal import Journal, encode
from relvmoiscsi.resignature.protocol.merged_image import BlockCopy, Unseen
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.recovery import earlier_run, undo


def planned(image=lambda: builder.many_vdis(3)):
    """A LUN and a plan for it that does check."""
    disk = image().disk
    prepared = engine.prepare(disk, entropy_of(1), engine.ResignatureRequest(scsi_id=SCSI_ID))
    return disk, prepared.lun, prepared.plan


def spoiled(plan, **values):
    run = plan.run._replace(**values)
    return plan._replace(journal=plan.journal._replace(run=run, data=encode(run)))


def with_content(plan, old, new):
    return spoiled(plan, writes=tuple(one._replace(new=one.new.replace(old, new)) for one in plan.run.writes))


def test_a_plan_as_it_is_made_checks():
    disk, lun, plan = planned(builder.everything)

    check_plan(ReadCache(disk), lun, plan)


@pytest.fixture(scope="module")
def result():
    """A LUN before and after a resignature, and the map of its ids."""
    disk, lun, plan = planned(builder.everything)
    engine.resignature(disk, engine.prepare(disk, entropy_of(1), engine.ResignatureRequest(scsi_id=SCSI_ID)))
    return lun, engine.inspect(disk).lun, plan.run.ids


def of_vg(name, value=None):
    """Another value of this field of the volume group: of its number, one more."""
    return lambda before, after: (
        before,
        after._replace(vg=after.vg._replace(**{name: getattr(after.vg, name) + 1 if value is None else value})),
    )


def of_mgt(**values):
    def changed(before, after):
        found = {name: value(after.mgt) if callable(value) else value for name, value in values.items()}
        return before, after._replace(mgt=after.mgt._replace(**found))

    return changed


def of_a_child(**values):
    """Other values of a volume that has a parent and a VHD."""

    def changed(before, after):
        child = next(volume for volume in after.volumes if volume.parent and isinstance(volume.content, Vhd))
        other = child._replace(**{name: value(child) for name, value in values.items()})
        volumes = tuple(other if volume is child else volume for volume in after.volumes)
        return before, after._replace(volumes=volumes)

    return changed


def old_id_from_the_work(before, after):
    """The ids of a volume that only the finished work of the storage manager brings."""
    lv = after.volumes[0].lv._replace(id=before.volumes[0].lv.id)
    other = engine.inspect(build_sr([raw("data")], seed=9).disk).lun
    settled = SimpleNamespace(lun=before)
    changed = after._replace(volumes=(after.volumes[0]._replace(lv=lv), *after.volumes[1:]))
    assert not shared_identities(other, changed)
    return other._replace(work=settled), changed


#: {what is wrong: (before and after, as changed; what is said)}
WRONG_RESULTS = {
    "the PV id in the metadata": (of_vg("pv_id", "x" * 32), "The PV id in the metadata is x"),
    "the id of the group": (of_vg("id", "x" * 32), "The volume group's id is x"),
    "the name of the group": (of_vg("name", "VG_XenStorage-x"), "The volume group's name is VG_XenStorage-x"),
    "the size of the disk": (of_vg("dev_size"), "dev_size is"),
    "the first extent": (of_vg("pe_start"), "pe_start is"),
    "the number of extents": (of_vg("pe_count"), "pe_count is"),
    "the size of an extent": (of_vg("extent_size"), "extent_size is"),
    "the generation": (of_vg("seqno"), "seqno is"),
    "MGT is gone": (lambda before, after: (before, after._replace(mgt=None)), " has no MGT volume, expected an"),
    "MGT is new": (lambda before, after: (before._replace(mgt=None), after), " has an MGT volume, expected no"),
    "the SR in MGT": (of_mgt(sr_uuid="x"), "The SR UUID in MGT is x"),
    "the length of MGT": (of_mgt(length=512), "MGT's length is 512"),
    "a lost record": (of_mgt(records=lambda mgt: mgt.records[:-1]), "The number of MGT records is"),
    "another link": (of_mgt(links={512: "x"}), "The list of UUIDs in unreadable MGT records is not what"),
    "another unreadable record": (of_mgt(unread=(512,)), "The list of unreadable MGT records is not what"),
    "the flags of a volume": (of_a_child(lv=lambda one: one.lv._replace(status=("READ",))), "VHD-.* another status "),
    "a parent": (of_a_child(parent=lambda one: one.parent._replace(sr="x")), "The parent of VHD-"),
    "no parent": (of_a_child(parent=lambda one: None), "The parent of VHD-.* is none, expected the vhd .* of SR "),
    "the content": (of_a_child(content=lambda one: None), "The content of VHD-.* is not what is expected"),
    "unfinished work": (
        lambda before, after: (before, after._replace(work=SimpleNamespace(lun=after))),
        "It still holds unfinished work of the storage manager",
    ),
    "an old id that only the work brings": (old_id_from_the_work, "is on both"),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_each_difference_to_the_planned_result_is_said(result, name):
    change, sentence = WRONG_RESULTS[name]
    before, after, ids = result
    verify_result(before, after, ids)

    with pytest.raises(Refused, match=sentence) as caught:
        verify_result(*change(before, after), ids)
    assert not re.search(r"[({]|None|True|False", caught.value.message), "a value of Python is no text for a person"


def locators_in_the_last_sectors():
    """A VHD whose parent's names are in the block where a second metadata area begins, if a block has 4096 bytes."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    options = {"area": AREA_DEFAULT, "pe_start": AREA_DEFAULT.end + 3584, "second_area": "same"}
    spoiled = Spoiled(build_sr(volumes, second_is_next=True, **options))
    size, header = spoiled.truth.volume("disk").size, 512
    for number in range(3):
        entry = header + DynamicHeader.locators.offset + number * LocatorEntry.SIZE
        (old,) = struct.unpack(">Q", spoiled.peek(("disk", entry + 16), 8))
        new = size - 512 * (number + 2)
        spoiled.poke(("disk", new), spoiled.peek(("disk", old), 512)).poke(("disk", entry + 16), ">Q", new)
    return spoiled.sealed_vhd("disk")


def test_what_a_later_step_would_write_over_an_earlier_step_does_not_check(monkeypatch):
    """Here the bytes around a header: no reader lets such a LUN through."""
    disk, lun, plan = planned(locators_in_the_last_sectors)
    check_plan(ReadCache(disk), lun, plan)
    disk.physical_block_size = 4096
    monkeypatch.setattr(survey, "torn_bytes", lambda device: device.block_size, raising=False)

    with pytest.raises((Refused, FormatError), match="another SR|does not check"):
        check_plan(ReadCache(disk), lun, plan)


@pytest.mark.parametrize("name", ["tool", "run_id"])
def test_a_journal_of_another_run_than_the_planned_is_refused(name):
    """Right digests, and facts that verify."""
    disk, lun, plan = planned()
    other = {"tool": "another", "run_id": bytes(16)}
    journal = plan.journal._replace(data=encode(plan.run._replace(**{name: other[name]})))

    with pytest.raises(Refused, match="does not read back as what it was made of"):
        check_plan(ReadCache(disk), lun, plan._replace(journal=journal))


def test_an_undo_whose_journal_or_result_does_not_verify_is_refused(monkeypatch):
    disk, _lun, _plan = planned(builder.everything)
    engine.resignature(disk, engine.prepare(disk, entropy_of(1), engine.ResignatureRequest(scsi_id=SCSI_ID)))
    made, found = undo.prepare_undo(disk, earlier_run.finished_run(disk), entropy_of(2))
    assert check_undo(ReadCache(disk), made, ()).disks() == found.disks()

    journal = made.journal._replace(data=encode(made.run._replace(tool="another")))
    with pytest.raises(Refused, match="does not read back as what it was made of"):
        check_undo(ReadCache(disk), made._replace(journal=journal), ())
    child = next(volume for volume in found.volumes if volume.parent is not None)
    other = child._replace(parent=child.parent._replace(sr="another"))
    wrong = found._replace(work=None, volumes=tuple(other if one is child else one for one in found.volumes))
    monkeypatch.setattr(survey, "read_contents", lambda *_: wrong)
    with pytest.raises(FormatError, match="it is a volume of another SR, another"):
        check_undo(ReadCache(disk), made, ())


def test_a_plan_that_leaves_an_identity_or_changes_another_byte_is_refused():
    disk, lun, plan = planned()
    uuid = str(lun.volumes[1].name.uuid)
    moves = tuple(move._replace(final_header=move.old_header) for move in plan.run.mdas)

    for wrong, sentence in (
        (with_content(plan, plan.run.ids.uuids[uuid].encode(), uuid.encode()), "MGT record at byte 2048 is .*" + uuid),
        (with_content(plan, b"<type>user", b"<type>none"), "The MGT record at byte 2048 has another type"),
        (spoiled(plan, final_label=plan.run.old_label, mdas=moves), "The PV id in the label is "),  # not the commit's
    ):
        with pytest.raises(Refused, match=sentence):
            check_plan(ReadCache(disk), lun, wrong)


class Forgetful(Journal):
    """Labels of one phase have no commit record."""

    def label(self, phase, found=None):
        return with_commit_record(
            super().label(phase, found), None if phase == self.forgets else self.commit_record(phase)
        )


@pytest.mark.parametrize("phase", [IN_PROGRESS, SWITCHED, DONE])
def test_a_plan_whose_label_the_next_call_would_not_understand_is_refused(phase):
    disk, lun, plan = planned()
    wrong = Forgetful(*plan.journal)
    wrong.forgets = phase

    with pytest.raises(Refused, match="The planned label does not read back as what it was made of"):
        check_plan(ReadCache(disk), lun, plan._replace(journal=wrong))


def test_another_text_at_the_end_of_the_run_than_at_its_commit_is_refused():
    disk, lun, plan = planned()
    (move,) = plan.run.mdas
    old, at = pv.MdaHeader.at(move.old_header), move.original.offset + (5 << 20)
    text = plan.text.replace(plan.run.ids.new_sr.encode(), b"11111111-2222-4333-8444-555555555555")
    header = pv.mda_header(move.original, at, text, old)
    wrong = spoiled(plan, mdas=(move._replace(final_header=bytes(header)),))
    padded = text.ljust(-(-len(text) // 512) * 512, b"\0")

    with pytest.raises(Refused, match="The volume group's name is VG_XenStorage-11111111-"):
        check_plan(ReadCache(disk), lun, wrong._replace(areas=(*plan.areas, Chunk(at, padded))))


def test_what_is_on_the_lun_in_the_end_is_compared_as_well():
    """An old identity is found wherever it stands in the text; and a volume that is not there."""
    disk, lun, plan = planned()
    engine.resignature(disk, engine.prepare(disk, entropy_of(1), engine.ResignatureRequest(scsi_id=SCSI_ID)))
    new = engine.inspect(disk).lun
    assert "xen-host-1" in new.vg.text
    for old in (str(lun.volumes[1].name.uuid), dashed(lun.volumes[1].lv.id)):
        for around in ("{}", "VHD-{}", "a-b-{}-c", "1234-5678-9abc-{}", "{}{}"):
            text = new.vg.text.replace("xen-host-1", around.format(old, old), 1)
            told = differences(lun, new._replace(vg=new.vg._replace(text=text)), plan.run.ids)
            assert f"The old identity {old} is still in the metadata text." in told

    told = differences(lun, new._replace(name="/dev/clone", volumes=new.volumes[1:]), plan.run.ids)
    assert told[-1] == f"/dev/clone has {len(lun.volumes) - 1} volumes, expected {len(lun.volumes)}."


def test_an_identity_that_a_record_of_mgt_alone_carries_is_on_both():
    gone = Record("0a0b0c0d-0000-4000-8000-000000000001", "gone", deleted=True)
    one, other = (engine.inspect(build_sr([raw("data")], seed=n, extra_records=(gone,)).disk).lun for n in (1, 2))

    (sentence,) = shared_identities(one, other)

    assert sentence.startswith(f"{gone.uuid} is on both: UUID in the MGT record at byte 3072 of ")


@pytest.mark.parametrize(
    "unseen, is_whole",
    [
        (Unseen(chunks=(Chunk(1 << 24, bytes(512)),)), False),
        (Unseen(copies=((BlockCopy(1 << 24, 1 << 25, 4096), BlockCopy(1 << 25, 1 << 24, 3584)),)), False),
        (Unseen(copies=((BlockCopy(512, 1 << 24, 4096),),)), False),
        (Unseen(copies=((BlockCopy(1 << 24, 1 << 25, 3584, zeros=512),),)), True),
    ],
)
def test_what_is_not_in_whole_blocks_of_the_disk_is_refused(unseen, is_whole):
    disk, lun, plan = planned(builder.four_k)
    plan = plan._replace(unseen=unseen)

    if is_whole:
        check_plan(ReadCache(disk), lun, plan)
        return
    with pytest.raises(Refused, match="The planned image does not check: .* not in whole blocks of 4096"):
        check_plan(ReadCache(disk), lun, plan)
