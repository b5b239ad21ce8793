# SPDX-License-Identifier: LGPL-2.1-only
"""A journal of SM finds its VDI without a walk over all volumes."""

from kit import golden
from kit.builder import SMALL_BAT, build_sr, journal, vhd
from kit.cuts import entropy
from kit.live import FINISHED, _live, disk, unlisted
from relvmoiscsi import engine
from relvmoiscsi.resignature.reading.lun_contents import Lun
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
    for volume in disks:
        of_volume = (volume.name.kind, volume.name.uuid)
        assert list(area.children(volume)) == [
            child for child in disks if child.parent and child.parent[1:] == of_volume
        ]
    parents = [volume for volume in disks if any(area.children(volume))]
    (one,) = area.children(parents[-1])
    area.put(one)
    assert len(parents) > 2 and list(area.children(parents[-1])) == [one]
    area.drop(one)
    assert list(area.children(parents[-1])) == []
    area.put(one)
    first, second = disks[:2]
    renamed = area.rename(first, "0" * 8 + first.name.uuid[8:])
    assert area.disk(renamed.name.uuid) is renamed and area.disk(first.name.uuid) is None
    area.drop(second)
    assert area.disk(second.name.uuid) is None and area.disk(None) is None
    assert counted.walks == 0


def test_mgt_is_read_once_for_any_number_of_snapshots_under_way(monkeypatch):
    reads, read = [], Lun.records
    monkeypatch.setattr(Lun, "records", lambda lun: reads.append(lun) or read(lun))
    counts = []
    for number in (1, 6):
        volumes = [journal("clone", f"x{each}", "{b" + str(each) + "}_") for each in range(number)]
        for each in range(number):
            base = unlisted(disk(f"b{each}", sectors=(4, 5), hidden=True))
            volumes += [base, disk(f"x{each}", f"b{each}", sectors=(6,))]
        del reads[:]
        engine.prepare(_live(volumes, {}, FINISHED).built.disk, entropy(0))
        counts.append(len(reads))
    assert counts[0] == counts[1] > 0


def test_a_journal_looks_at_a_bounded_number_of_levels_of_a_long_chain(monkeypatch):
    looks, disk_of = [], WorkArea.disk
    monkeypatch.setattr(WorkArea, "disk", lambda area, *of: looks.append(of) or disk_of(area, *of))
    counts = []
    for levels in (120, 160):
        more = {"blocks": 0, "bat_entries": SMALL_BAT}
        volumes = [vhd(f"v{at}", parent=f"v{at - 1}" if at else "", **more) for at in range(levels)]
        base = vhd("base", parent=f"v{levels - 1}", hidden=True, in_mgt=False, **more)
        work = [vhd("x", parent="v0", **more), journal("clone", "x", "{base}_")]
        del looks[:]
        found = engine.inspect(build_sr([*volumes, base, *work]).disk)
        assert found.lun.work is not None and found.problem is None
        counts.append(len(looks))
    assert counts[0] == counts[1] > 100
