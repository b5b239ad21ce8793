# SPDX-License-Identifier: LGPL-2.1-only
"""The report of a LUN with many volumes, defects or levels grows with their number, not with its square."""

from kit import golden
from relvmoiscsi import engine, report
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.report.lun_report import tree


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


def test_a_long_chain_is_drawn_to_a_bounded_depth():
    vdis = [{"uuid": str(number), "parent": str(number - 1) if number else None} for number in range(500)]
    drawn = tree(vdis)
    assert [vdi for _prefix, vdi in drawn] == vdis
    assert max(len(prefix) for prefix, _vdi in drawn) == 3 * 31
