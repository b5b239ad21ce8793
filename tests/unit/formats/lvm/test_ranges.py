# SPDX-License-Identifier: LGPL-2.1-only
"""How the places of bytes are found in a volume with tens of thousands of segments, as a merged QCOW2 image has."""

from relvmoiscsi.device import Range
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, VolumeGroup

EXTENTS = 20000


class Counted(tuple):
    """Segments that count how many of them were looked at."""

    looked_at = 0

    def __getitem__(self, index):
        self.looked_at += 1
        return super().__getitem__(index)

    def __iter__(self):
        self.looked_at += len(self)
        return super().__iter__()


def test_a_range_looks_at_few_segments_wherever_it_lies():
    vg = VolumeGroup("", "group", "id", 1, "pv0", "id", 1 << 40, 11 << 20, 2 * EXTENTS, 4 << 20, ())
    for extent in (0, EXTENTS // 2, EXTENTS - 2):
        segments = Counted(Segment(number, 1, 2 * (EXTENTS - number)) for number in range(EXTENTS))
        lv = LogicalVolume("VHD-1", "id", frozenset(), (), segments)

        found = vg.ranges(lv, (extent + 1) * vg.extent_size - 10, 30)

        places = [vg.pe_start + 2 * (EXTENTS - number) * vg.extent_size for number in (extent, extent + 1)]
        assert found == [Range(places[0] + vg.extent_size - 10, 10), Range(places[1], 20)]
        assert 0 < segments.looked_at < 30
