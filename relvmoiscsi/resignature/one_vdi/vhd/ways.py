# SPDX-License-Identifier: LGPL-2.1-only
"""The ways to make a chain of VHDs one VHD: each takes another image as the one that stays where it is."""

from hashlib import sha256
from typing import Iterator, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, torn_bytes
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.formats.vhd import Vhd
from relvmoiscsi.resignature.one_vdi.choice import Chain
from relvmoiscsi.resignature.one_vdi.extents import Room, place, room_on
from relvmoiscsi.resignature.one_vdi.vhd import layout
from relvmoiscsi.resignature.one_vdi.vhd.homes import find_homes
from relvmoiscsi.resignature.one_vdi.vhd.image import make_image, plain_footer, plain_header
from relvmoiscsi.resignature.one_vdi.vhd.layout import Layout
from relvmoiscsi.resignature.one_vdi.vhd.members import Member, built_on, read_members
from relvmoiscsi.resignature.one_vdi.way import Counts, Image, Way
from relvmoiscsi.resignature.protocol.rebuilt import Expected
from relvmoiscsi.resignature.reading.lun import Lun


class VhdWay(Way):
    """A layout, and where there is room for it."""

    def __init__(self, lun: Lun, members: Tuple[Member, ...], made: Layout, room: Room) -> None:
        self._vg, self._members, self._layout, self._room = lun.vg, members, made, room
        self.counts = _counts(made, len(room.writable))
        footer, header = plain_footer(members[0].footer), plain_header(members[made.primary].header)
        self.content = Vhd(footer, footer, None, False, header, (), None)

    def extents(self) -> Sequence[int]:
        made = self._layout
        return place(layout.kept_extents(made, self._members), made.fresh, self._room)

    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Image:
        wanted = built_on(self._vg, self._members)
        expected = [Expected(part, sha256(data).digest()) for part, data in zip(wanted, device.read(wanted))]
        return make_image(self._vg, self._members, self._layout, lv, lv_id, expected)


def ways(device: Device, lun: Lun, chain: Chain, lot: int) -> Iterator[Way]:
    """Every way, likely the cheapest first. `lot` is that of `room_on`.

    Raises Refused where there is none, FormatError for an image that does not read.
    """
    _refuse_disk(device, lun)
    members = read_members(device, lun.vg, chain.members)
    _refuse_encrypted(members)
    homes = find_homes(members)
    thick = lun.vg.size_of(members[0].lv) >= blocks.formula_size(members[0].virtual_size)
    gone = [*(member.lv for member in members), *(volume.lv for volume in chain.dropped)]
    room = room_on(lun.vg, layout.unused_extents(members[0]), gone, lot)
    for made in layout.layouts(members, homes, thick, torn_bytes(device) > SECTOR):
        yield VhdWay(lun, members, made, room)


def _refuse_disk(device: Device, lun: Lun) -> None:
    if device.block_size != SECTOR:
        raise Refused(f"{device.name} has blocks of {device.block_size} bytes: VHD chains on it are not made one VDI.")
    if lun.vg.pe_start % blocks.UNIT:
        raise Refused(f"The extents of {device.name} are not those that the storage manager makes: 4 MiB each.")


def _refuse_encrypted(members: Tuple[Member, ...]) -> None:
    for member in members:
        if any(member.batmap_header.keyhash):
            raise Refused(f"{member.name} is encrypted: its blocks cannot be put together without the key.")


def _counts(made: Layout, free: int) -> Counts:
    return Counts(
        blocks=len(made.slots),
        remapped=len(made.staying),
        filled=sum(1 for home in made.staying if home.must_be_filled),
        copied=len(made.copied),
        data_bytes=made.cost_bytes(),
        fresh_extents=len(made.fresh),
        free_extents=free,
    )
