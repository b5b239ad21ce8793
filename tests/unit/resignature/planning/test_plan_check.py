# SPDX-License-Identifier: LGPL-2.1-only
"""A plan that leads elsewhere than to the LUN under new ids is refused before its first write."""

import pytest

from kit import builder
from kit.outcome import entropy_of
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.resignature.planning.identity_check import differences
from relvmoiscsi.resignature.planning.plan_check import check_plan
from relvmoiscsi.resignature.protocol.journal import encode
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Unseen
from relvmoiscsi.resignature.reading.read_cache import ReadCache


def planned(image):
    """A LUN and a plan for it that does check."""
    disk = image().disk
    prepared = engine.prepare(disk, entropy_of(1), engine.ResignatureRequest(scsi_id="scsi id"))
    return disk, prepared.lun, prepared.plan


def spoiled(plan, **values):
    run = plan.run._replace(**values)
    return plan._replace(journal=plan.journal._replace(run=run, data=encode(run)))


def with_content(plan, old, new):
    return spoiled(plan, writes=tuple(one._replace(new=one.new.replace(old, new)) for one in plan.run.writes))


def test_a_plan_as_it_is_made_checks():
    disk, lun, plan = planned(builder.everything)

    check_plan(ReadCache(disk), lun, plan)


def test_an_identity_that_would_stay_is_refused():
    disk, lun, plan = planned(lambda: builder.many_vdis(3))
    uuid = str(lun.volumes[1].name.uuid)

    with pytest.raises(Refused, match="The MGT record at byte 2048 is .*" + uuid):
        check_plan(ReadCache(disk), lun, with_content(plan, plan.run.ids.uuids[uuid].encode(), uuid.encode()))


def test_a_byte_that_is_no_identity_and_would_change_is_refused():
    disk, lun, plan = planned(lambda: builder.many_vdis(3))

    with pytest.raises(Refused, match="The MGT record at byte 2048 has another type"):
        check_plan(ReadCache(disk), lun, with_content(plan, b"<type>user", b"<type>none"))


@pytest.mark.parametrize("kind", ["VDI", "LV"])
@pytest.mark.parametrize("around", ["{}", "VHD-{}", "a-b-{}-c", "1234-5678-9abc-{}", "{}{}"])
def test_an_old_identity_in_the_metadata_text_is_found_wherever_it_stands(kind, around):
    disk = builder.many_vdis(3).disk
    prepared = engine.prepare(disk, entropy_of(1))
    lun, ids = prepared.lun, prepared.plan.run.ids
    engine.resignature(disk, prepared)
    new = engine.inspect(disk).lun
    old = str(lun.volumes[1].name.uuid) if kind == "VDI" else dashed(lun.volumes[1].lv.id)
    assert "xen-host-1" in new.vg.text
    text = new.vg.text.replace("xen-host-1", around.format(old, old), 1)

    told = differences(lun, new._replace(vg=new.vg._replace(text=text)), ids)

    assert f"The old identity {old} is still in the metadata text." in told


def test_another_number_of_volumes_is_told_with_the_name_of_the_lun():
    disk = builder.many_vdis(3).disk
    prepared = engine.prepare(disk, entropy_of(1))
    lun, count = prepared.lun, len(prepared.lun.volumes)
    engine.resignature(disk, prepared)
    new = engine.inspect(disk).lun

    told = differences(lun, new._replace(name="/dev/clone", volumes=new.volumes[1:]), prepared.plan.run.ids)

    assert told[-1] == f"/dev/clone has {count - 1} volumes, expected {count}."


def test_an_end_that_is_another_lun_than_the_commit_is_refused():
    disk, lun, plan = planned(lambda: builder.many_vdis(3))
    moves = tuple(move._replace(final_header=move.old_header) for move in plan.run.mdas)

    with pytest.raises(Refused, match="The PV id in the label is "):
        check_plan(ReadCache(disk), lun, spoiled(plan, final_label=plan.run.old_label, mdas=moves))


PARTS = {
    "a piece of the image": Unseen(chunks=(Chunk(1 << 24, bytes(512)),)),
    "a copy": Unseen(copies=((Copy(1 << 24, 1 << 25, 4096), Copy(1 << 25, 1 << 24, 3584)),)),
    "a copy that begins inside of a block": Unseen(copies=((Copy(512, 1 << 24, 4096),),)),
}


@pytest.mark.parametrize("what", PARTS)
def test_what_is_not_in_whole_blocks_of_the_disk_is_refused(what):
    disk, lun, plan = planned(builder.four_k)

    with pytest.raises(Refused, match="The planned image does not check: .* not in whole blocks of 4096"):
        check_plan(ReadCache(disk), lun, plan._replace(unseen=PARTS[what]))


def test_zeros_behind_a_copy_make_it_whole():
    disk, lun, plan = planned(builder.four_k)
    copies = (Copy(1 << 24, 1 << 25, 3584, zeros=512),)

    check_plan(ReadCache(disk), lun, plan._replace(unseen=Unseen(copies=(copies,))))
