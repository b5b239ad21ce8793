# SPDX-License-Identifier: LGPL-2.1-only
"""SRs by chance come in every kind."""

from kit.chains import BLOCK
from kit.chains.libvhd import ALL, SECTOR, Vhd
from kit.chains.lun import Lun
from kit.chains.random_chain import random_chain


def facts(chain):
    """Of what kinds a chain is."""
    lun = Lun.read(chain.disk)
    vhds = [Vhd(lun.volume(name)) for name in chain.members]
    bits = [vhd.bits(block) for vhd in vhds for block in vhd.bat]
    ends = [vhd.volume.read(vhd.volume.size - SECTOR, SECTOR) == vhd.footer for vhd in vhds]
    return {
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


def test_chance_leaves_nothing_out():
    seen, wanted = set(), None
    for seed in range(60):
        found = facts(random_chain(f"kinds {seed}", blocks=4, stale=False, bat_entries=4096))
        wanted = set(found)
        seen |= {name for name, holds in found.items() if holds}
        if seen == wanted:
            break
    assert seen == wanted
