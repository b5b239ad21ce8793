# SPDX-License-Identifier: LGPL-2.1-only
"""What the storage manager does to VHD volumes of an SR: how large they are, snapshots, coalescing, growing.

All functions change the volumes of a `Lun`; the LUN's text changes only with `commit`. If a VG or a volume is too
small, OSError with ENOSPC is raised. Source: sm 3.2.12: lvhdutil.calcSizeVHDLV, inflate, deflate, LVHDVDI.attach,
_snapshot, resize, cleanup.py: inflateParentForCoalesce, _doCoalesce; blktap vhd-util-coalesce.c.
"""

import uuid
from typing import Optional

from relvmoiscsi.device import align_up

from ..build_volumes import BLOCK, BLOCK_SECTORS, SM_BAT_ENTRIES
from .libvhd import SECTOR, Vhd, make, runs_of
from .lun import EXTENT, Lun, Volume

OVERHEAD = 4329472  #: of an empty VHD with the table for 2 TiB, as sm reckons


def calc_size_vhd_lv(virtual_size: int) -> int:
    """Bytes of an LV on which every block of a disk can be allocated, if no place is wasted."""
    blocks = -(-virtual_size // BLOCK)
    return align_up(virtual_size + OVERHEAD + 4096 * blocks, EXTENT)


def inflate(lun: Lun, volume: Volume, size: int) -> None:
    """A larger volume with its footer at the end; one that is large enough stays as it is."""
    if align_up(size, EXTENT) > volume.size:
        vhd = Vhd(volume)
        lun.resize(volume, size)
        vhd.write_footers()


def deflate(lun: Lun, volume: Volume) -> None:
    """Nothing behind the data but the footer, up to whole extents."""
    vhd = Vhd(volume)
    if align_up(vhd.physical_size, EXTENT) < volume.size:
        lun.resize(volume, vhd.physical_size)
        vhd.write_footers()


def attach(lun: Lun, name: str) -> Volume:
    """Before a guest may write."""
    volume = lun.volume(name)
    inflate(lun, volume, calc_size_vhd_lv(Vhd(volume).size))
    return volume


def create(
    lun: Lun, name: str, virtual_size: int, footer_uuid: uuid.UUID, thick: bool = True, bat: int = SM_BAT_ENTRIES
) -> Vhd:
    """A new VDI without a parent."""
    size = calc_size_vhd_lv(virtual_size) if thick else 1
    volume = lun.create(name, max(size, _empty_size(bat)))
    return make(volume, virtual_size, footer_uuid, None, bat)


def _empty_size(bat_entries: int) -> int:
    return align_up(4 * bat_entries + bat_entries // 8 + 8192, EXTENT)


def snapshot(
    lun: Lun,
    name: str,
    base_name: str,
    footer_uuid: uuid.UUID,
    copy_name: str = "",
    copy_uuid: Optional[uuid.UUID] = None,
    thick: bool = True,
) -> Vhd:
    """The leaf becomes a hidden base under another name; a new leaf, which it gives, has its name, and `copy_name` is
    the snapshot.
    """
    volume = lun.volume(name)
    deflate(lun, volume)
    base = Vhd(volume)
    lun.rename(volume, base_name)
    size = calc_size_vhd_lv(base.size) if thick else _empty_size(base.max_bat)
    leaf = make(lun.create(name, size), base.size, footer_uuid, base, base.max_bat)
    if copy_name and copy_uuid:
        make(lun.create(copy_name, _empty_size(base.max_bat)), base.size, copy_uuid, base, base.max_bat)
    base.set_hidden(True)
    volume.writable = False
    return leaf


def grow(lun: Lun, name: str, virtual_size: int, thick: bool = True) -> None:
    """`vdi-resize` of a leaf, offline. Raises AssertionError where sm does: a thick LV may not be above its size."""
    volume = lun.volume(name)
    vhd = Vhd(volume)
    size = calc_size_vhd_lv(virtual_size)
    if thick:
        assert size >= volume.size, f"sm: {name} has {volume.size} bytes and should have {size}"
        inflate(lun, volume, size)
    Vhd(volume).set_size(virtual_size)
    assert Vhd(volume).bat == vhd.bat


def coalesce(lun: Lun, child_name: str) -> Vhd:
    """A child's sectors go into its parent, which is made as large as sm thinks that is needed. Gives the parent."""
    child = Vhd(lun.volume(child_name))
    volume = lun.volume(child.parent_name)
    parent = Vhd(volume)
    if parent.size < child.size:
        parent.set_size(child.size)
    blocks = set(child.bat) | set(parent.bat)
    inflate(lun, volume, calc_size_vhd_lv(BLOCK * len(blocks)))
    parent = Vhd(volume)
    for block in sorted(child.bat):
        for first, count, there in runs_of(child.bits(block)):
            if there:
                parent.write(block * BLOCK_SECTORS + first, child.read_sectors(block, first, count))
    return parent


def kill_end_footer(volume: Volume) -> None:
    """As a tapdisk leaves it that was not closed."""
    Vhd(volume)
    volume.write(volume.size - SECTOR, b"\xc7" * SECTOR)
