# SPDX-License-Identifier: LGPL-2.1-only
"""SRs by chance are SRs, hold what was written, and come in every kind."""

import random

import pytest

from kit.chains import BLOCK, flatten, links
from kit.chains.libvhd import ALL, SECTOR, Vhd
from kit.chains.lun import Lun
from kit.chains.random_chain import chain_names, random_chain
from kit.reader import read_sr, renamed
from relvmoiscsi import engine


def entropy(seed):
    dice = random.Random(seed)
    return lambda count: bytes(dice.getrandbits(8) for _ in range(count))


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_holds_what_was_written_at_every_level(seed):
    chain = random_chain(seed)
    sr = read_sr(chain.disk)

    assert sr.problems == () and sr.uuid == chain.sr_uuid
    assert set(chain.flats) == {chain.leaf, *chain.members, *chain.snapshots} == {vhd.name for vhd in sr.vhds}
    assert [link.lv_name for link in links(chain.disk, chain.leaf)] == list(chain.members), chain.story
    for name, flat in chain.flats.items():
        assert flatten(chain.disk, name) == flat, (name, chain.story)
    assert sr.vg.pvs[0].pe_count - sum(lv.extents for lv in sr.vg.lvs) == chain.free
    shown = {record.uuid for record in sr.mgt.records if not record.deleted and dict(record.fields)["managed"] == "1"}
    assert {"VHD-" + uuid for uuid in shown} | {chain.leaf} == {chain.leaf, *chain.snapshots}


def test_the_same_seed_is_the_same_lun():
    one, other = random_chain(3, depth=2, blocks=4), random_chain(3, depth=2, blocks=4)
    assert one.disk == other.disk and one._replace(disk=None) == other._replace(disk=None)
    assert random_chain(random.Random(3), depth=1, blocks=4).disk != one.disk


@pytest.mark.parametrize("seed", [1, 5])
def test_the_engine_takes_it_for_an_sr(seed):
    chain = random_chain(seed, depth=3, blocks=6)
    disk = chain.disk.copy()

    prepared = engine.prepare(disk, entropy(seed))
    ids = engine.resignature(disk, prepared).ids

    for name, flat in chain.flats.items():
        assert flatten(disk, renamed(name, ids.uuids)) == flat


def facts(chain):
    """Of what kinds a chain is."""
    lun = Lun.read(chain.disk)
    vhds = [Vhd(lun.volume(name)) for name in chain.members]
    bits = [vhd.bits(block) for vhd in vhds for block in vhd.bat]
    ends = [vhd.volume.read(vhd.volume.size - SECTOR, SECTOR) == vhd.footer for vhd in vhds]
    found = {
        "alone": len(vhds) == 1,
        "deep": len(vhds) > 6,
        "empty member": any(not vhd.bat for vhd in vhds[1:]),
        "empty leaf": len(vhds) > 1 and not vhds[0].bat,
        "partial block": any(bit != ALL for bit in bits),
        "full block": ALL in bits,
        "grown child": any(child.size > parent.size for child, parent in zip(vhds, vhds[1:])),
        "odd parent": any(vhd.size % BLOCK for vhd in vhds[1:]),
        "in pieces": any(len(vhd.volume.segments) > 1 for vhd in vhds),
        "killed leaf": not ends[0],
        "killed base": not all(ends[1:]),
        "old batmap": any(not vhd.is_full(block) and vhd.bits(block) == ALL for vhd in vhds for block in vhd.bat),
        "snapshot": bool(chain.snapshots),
        "thick": chain.thick,
        "thin": not chain.thick,
        "full VG": chain.free == 0,
        "roomy VG": chain.free > 50,
    }
    assert chain_names(lun, chain.leaf) == list(chain.members)
    return {name for name, holds in found.items() if holds}


def test_chance_leaves_nothing_out():
    wanted = {
        "alone", "deep", "empty member", "empty leaf", "partial block", "full block", "grown child", "odd parent",
        "in pieces", "killed leaf", "killed base", "old batmap", "snapshot", "thick", "thin", "full VG", "roomy VG",
    }  # fmt: skip
    seen = set()
    for seed in range(60):
        seen |= facts(random_chain(f"kinds {seed}", blocks=4, stale=False))
        if seen >= wanted:
            break
    assert seen == wanted


def test_what_nobody_has_written_is_not_zero():
    chain = random_chain(2, depth=1, blocks=4, busy=1.0, odd=False, empty=0.0, killed=False, free=1)
    vhd = Vhd(Lun.read(chain.disk).volume(chain.leaf))
    unset = [
        vhd.read_sectors(block, first, 1)
        for block in vhd.bat
        for first in range(4096)
        if not vhd.bits(block) >> (4095 - first) & 1
    ]
    assert unset and all(any(sector) for sector in unset)
    lun = Lun.read(chain.disk)
    assert any(lun.disk.peek(lun.place(lun.free[0]), SECTOR))


def test_options_fix_what_chance_would_choose():
    chain = random_chain(9, depth=4, blocks=5, grown=False, odd=False, snapshots=False, killed=True, thick=False,
                         free=3, pieces=1000, bat_entries=64, empty=0.0, record=False)  # fmt: skip

    assert (len(chain.members), chain.snapshots, chain.thick, chain.free) == (4, (), False, 3)
    assert chain.flats[chain.leaf].size == 5 * BLOCK
    vhd = Vhd(Lun.read(chain.disk).volume(chain.leaf))
    assert vhd.max_bat == 64 and min(vhd.bat.values()) == 15
    assert chain.leaf[4:] not in {record.uuid for record in read_sr(chain.disk).mgt.records}
