# SPDX-License-Identifier: LGPL-2.1-only
"""SRs by chance are SRs, hold what was written, and come in every kind."""

import pytest

from kit.chains import BLOCK, flatten, links
from kit.chains.libvhd import ALL, SECTOR, Vhd
from kit.chains.lun import Lun
from kit.chains.random_chain import chain_names, random_chain
from kit.reader import read_sr


@pytest.mark.states(few=1)
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
    return found


def test_chance_leaves_nothing_out():
    seen, wanted = set(), None
    for seed in range(60):
        found = facts(random_chain(f"kinds {seed}", blocks=4, stale=False, bat_entries=4096))
        wanted = set(found)
        seen |= {name for name, holds in found.items() if holds}
        if seen == wanted:
            break
    assert seen == wanted
