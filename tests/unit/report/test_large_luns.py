# SPDX-License-Identifier: LGPL-2.1-only
"""The report of a LUN with many volumes, defects or levels grows with their number, not with its square."""

import json

from bench import chains
from kit import golden
from kit.builder import build_sr, raw
from kit.cuts import entropy
from relvmoiscsi import engine, report
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.report.lun_report import tree
from relvmoiscsi.report.run_report import EMPTY_UNIT, FULL_UNIT
from relvmoiscsi.resignature.reading.lun_contents import Lun, Work, verify_lun


class _Counted(tuple):
    walks = 0

    def __iter__(self):
        type(self).walks += 1
        return super().__iter__()


def test_the_volumes_are_read_once_for_all_defects():
    lun = engine.inspect(golden.load("tree").disk).lun
    lun = lun._replace(volumes=_Counted(lun.volumes))
    defects = [Malformed("VHD header", Place(volume.lv.name, 512), "it is damaged") for volume in lun.volumes]
    _Counted.walks = 0
    rows = report.defect_facts(defects, lun)
    assert [row["lv"] for row in rows] == [volume.lv.name for volume in tuple(lun.volumes)]
    assert _Counted.walks <= 2  # the second walk is that of this test


def test_the_volumes_and_mgt_are_read_once_for_all_vdis(monkeypatch):
    reads, read, counts = [], Lun.records, []
    monkeypatch.setattr(Lun, "records", lambda lun: reads.append(lun) or read(lun))
    for number in (1, 6):
        found = engine.inspect(build_sr([raw(f"v{each}", extents=1) for each in range(number)]).disk)
        found = found._replace(lun=found.lun._replace(volumes=_Counted(found.lun.volumes)))
        reads.clear()
        _Counted.walks = 0
        text = report.inspection_text("lun", found)
        counts.append((len(reads), _Counted.walks))
        assert all(uuid in text for uuid in found.lun.disks())
    assert counts[0] == counts[1] > (0, 0)


def test_mgt_is_read_once_for_all_dropped_volumes_and_for_all_unreadable_volumes(monkeypatch):
    reads, read, counts = [], Lun.records, []
    monkeypatch.setattr(Lun, "records", lambda lun: reads.append(lun) or read(lun))
    for number in (1, 6):
        found = engine.inspect(build_sr([raw(f"v{each}", extents=1) for each in range(number)]).disk).lun
        broken = Malformed("VHD header", Place("lun", 512), "it is damaged")
        damaged = found._replace(volumes=tuple(each._replace(content=broken) for each in found.volumes))
        defects = []
        reads.clear()
        verify_lun(damaged, defects.append)
        dropped = report.dropped_facts(found._replace(work=Work(found._replace(volumes=()), ())))
        counts.append(len(reads))
        assert len(defects) == len(dropped) == len(found.volumes) > number
    assert counts[0] == counts[1] > 0


def test_a_long_chain_is_drawn_to_a_bounded_depth():
    vdis = [{"vdi": str(number), "parent": str(number - 1) if number else None} for number in range(500)]
    drawn = tree(vdis)
    assert [vdi for _prefix, vdi in drawn] == vdis
    assert max(len(prefix) for prefix, _vdi in drawn) == 3 * 30


def test_a_dry_run_has_three_items_for_any_number_of_bitmaps_of_a_new_image():
    disk = chains.vhds(chains.written(4, 4)).disk
    plan = engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=engine.OneVdiRequest())).plan
    partial = [number.to_bytes(len(FULL_UNIT), "big") for number in range(1, 1001)]
    units = [unit for each in partial for unit in (FULL_UNIT, each, EMPTY_UNIT)]
    many = [Chunk(number << 22, unit) for number, unit in enumerate(units)]

    without = report.plan_facts(plan._replace(unseen=plan.unseen._replace(more=())))
    told = report.plan_facts(plan._replace(unseen=plan.unseen._replace(more=many)))
    new = [row for row in told if row not in without]
    assert len(told) == len(without) + 3 and len(json.dumps(new)) < 100 * len(many)
    assert {row["new_bytes"] for row in new} == {FULL_UNIT.hex(), EMPTY_UNIT.hex(), None}
    assert sorted(at for row in new for at in row["device_offsets"]) == [chunk.offset for chunk in many]


def test_equal_bitmaps_of_a_dry_run_are_one_item():
    same = [Chunk(4096 * number, FULL_UNIT) for number in range(1000)]
    other = [Chunk(0, b"x" * 512), Chunk(512, b"x" * 512)]
    *rows, last = report.chunks_facts([*other, *same])
    assert [row["device_offset"] for row in rows] == [0, 512]
    assert last["device_offset"] is None and last["device_offsets"] == [chunk.offset for chunk in same]
    assert last["new_bytes"] == FULL_UNIT.hex()
