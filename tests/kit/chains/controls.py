# SPDX-License-Identifier: LGPL-2.1-only
"""A chain made into one VHD in a simple way that is wrong: judges must find that.

The members' extents come one after the other under one table. The VHD reads right and checks right, but it has dead
space inside, which sm's sizes do not allow for.
"""

from typing import Dict, List

from ..build_volumes import BLOCK
from ..sparse import SparseDisk
from . import sm
from .flat import guest_blocks
from .libvhd import ALL, BLOCK_SECTORS, SECTOR, Vhd, make, random_uuid
from .lun import EXTENT, Lun, Volume
from .random_chain import Chain, chain_names


def concatenated(chain: Chain) -> SparseDisk:
    """Base first, then the others from the extent on in which their blocks begin. Sectors that a block lacks are filled
    in where it lies. Gives a LUN with MGT and one VHD, which has the name of the leaf.
    """
    lun = Lun.read(chain.disk, room=8 + sm.calc_size_vhd_lv(chain.flats[chain.leaf].size) // EXTENT)
    size, blocks = guest_blocks(lun.disk, chain.leaf)
    members = [Vhd(lun.volume(name)) for name in chain_names(lun, chain.leaf)]
    homes = _filled(members, blocks)

    base = members[-1]
    first_extent = (base.headers_end * SECTOR) // EXTENT
    volume = lun.create("VHD-new", EXTENT * (first_extent + 1))
    head = base.volume.read(0, volume.size)
    shifts: Dict[str, int] = {}
    for member in members[::-1]:
        end = -(-member.data_end * SECTOR // EXTENT)
        start = first_extent + 1 if member is base else first_extent
        shifts[member.volume.name] = len(volume.extents) - start
        volume.extents += member.volume.extents[start:end]
    volume.write(0, head)
    data_end = max(member.data_end * SECTOR + shifts[member.volume.name] * EXTENT for member in members)
    lun.resize(volume, max(data_end + SECTOR, sm.calc_size_vhd_lv(size)))

    new = make(volume, size, random_uuid(chain.leaf), None, base.max_bat)
    for block, member in homes.items():
        new.set_entry(block, member.bat[block] + shifts[member.volume.name] * (EXTENT // SECTOR))
        if new.bits(block) == ALL:
            new.set_full(block)
    new.write_batmap()
    return _only(lun, chain.leaf, volume)


def _filled(members: List[Vhd], blocks: Dict[int, bytes]) -> Dict[int, Vhd]:
    """Block to the topmost member that has a sector of it, where all of it is then."""
    homes: Dict[int, Vhd] = {}
    for member in members:
        for block in member.bat:
            if block not in homes and block * BLOCK < members[0].size and member.bits(block):
                homes[block] = member
    for block, member in homes.items():
        inside = min(BLOCK, members[0].size - block * BLOCK)
        data = blocks.get(block, bytes(inside))
        member.volume.write((member.bat[block] + 1) * SECTOR, data)
        member.write_bitmap(block, ALL >> (BLOCK_SECTORS - inside // SECTOR) << (BLOCK_SECTORS - inside // SECTOR))
    return homes


def _only(lun: Lun, name: str, volume: Volume) -> SparseDisk:
    """The LUN with MGT and this volume under this name."""
    for other in list(lun.volumes.values()):
        if other is not volume and other.name != "MGT":
            lun.remove(other)
    lun.rename(volume, name)
    lun.free = [extent for extent in range(lun.vg.pe_count) if extent not in
                {each for other in lun.volumes.values() for each in other.extents}]  # fmt: skip
    lun.commit()
    return lun.disk
