# SPDX-License-Identifier: LGPL-2.1-only
"""A journal of SM finds its VDI without a walk over all volumes."""

from kit import golden
from relvmoiscsi import engine
from relvmoiscsi.resignature.reading.sm_work import WorkArea


class _Counted(dict):
    walks = 0

    def values(self):
        self.walks += 1
        return super().values()


def test_a_vdi_is_found_by_its_uuid_and_follows_its_changes():
    lun = engine.inspect(golden.load("tree").disk).lun
    area = WorkArea(lun)
    area._volumes = counted = _Counted(area._volumes)
    disks = [volume for volume in lun.volumes if volume.is_disk]
    assert [area.disk(volume.name.uuid) for volume in disks] == disks
    first, second = disks[:2]
    renamed = area.rename(first, "0" * 8 + first.name.uuid[8:])
    assert area.disk(renamed.name.uuid) is renamed and area.disk(first.name.uuid) is None
    area.drop(second)
    assert area.disk(second.name.uuid) is None and area.disk(None) is None
    assert counted.walks == 0
