# SPDX-License-Identifier: LGPL-2.1-only
"""A plan that leads elsewhere than to the LUN under new ids is refused before its first write."""

import pytest

from kit import builder
from kit.build_volumes import Record
from kit.builder import build_sr, raw
from kit.cuts import SCSI_ID
from kit.outcome import entropy_of
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.planning.identity_check import differences, shared_identities
from relvmoiscsi.resignature.planning.plan_check import check_plan
from relvmoiscsi.resignature.protocol.journal import encode
from relvmoiscsi.resignature.protocol.merged_image import BlockCopy, Unseen
from relvmoiscsi.resignature.reading.read_cache import ReadCache


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
