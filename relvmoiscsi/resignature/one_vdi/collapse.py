# SPDX-License-Identifier: LGPL-2.1-only
"""From a LUN with a chain of images to the LUN with one VDI, and what has to be written for it. Nothing is written."""

from typing import FrozenSet, List, NamedTuple, Optional, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, torn_bytes
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.formats.mgt.records import Mgt, NewRecord, with_only
from relvmoiscsi.formats.vhd import blocks
from relvmoiscsi.formats.vhd.image import Vhd
from relvmoiscsi.resignature.one_vdi import layout, members
from relvmoiscsi.resignature.one_vdi.choice import Chain, Request, choose_chain
from relvmoiscsi.resignature.one_vdi.homes import find_homes
from relvmoiscsi.resignature.one_vdi.image import Image, make_image, plain_footer, plain_header
from relvmoiscsi.resignature.one_vdi.layout import Layout
from relvmoiscsi.resignature.one_vdi.members import Member
from relvmoiscsi.resignature.reading.lun import Lun, Volume, Work


class Cost(NamedTuple):
    """What it takes."""

    images: int  #: of the chain
    dropped: int  #: volumes that go
    blocks: int  #: of the disk, that some image has
    remapped: int  #: of them, that stay where they are
    filled: int  #: of them, that get sectors from further down
    copied: int  #: blocks that get another place
    data_bytes: int  #: guest data that is written: fills and copies
    fresh_extents: int  #: free extents that are written before the commit
    free_extents: int  #: that there are


class OneVdi(NamedTuple):
    """The way to one VDI. Without an `image` the one there is stays as it is."""

    lun: Lun  #: as found; its work leads to the LUN with one VDI
    cost: Cost
    layout: Optional[Layout] = None
    extents: Tuple[int, ...] = ()  #: physical ones, of the new volume
    members: Tuple[Member, ...] = ()
    leaf: Optional[Volume] = None

    def image(self, device: Device, ids: IdMap) -> Optional[Image]:
        """What is written, under the new ids, and what that is built on."""
        if self.layout is None or self.leaf is None:
            return None
        wanted = members.built_on(self.lun.vg, self.members)
        expected = [Chunk(part.offset, data) for part, data in zip(wanted, device.read(wanted))]
        lv_id = ids.lvm_ids[self.leaf.lv.id]
        return make_image(self.lun.vg, self.members, self.layout, _new_lv(self), lv_id, expected)


def make_one(device: Device, lun: Lun, request: Request, lot: int = 0) -> OneVdi:
    """How the LUN becomes one with one VDI. `lot` is that of `layout.room_on`.

    Raises Refused or UsageError where it cannot, or costs more than the request allows; FormatError for an image that
    does not read.
    """
    settled = lun.settled()
    chain = choose_chain(settled, request)
    if len(chain.members) == 1:
        made = OneVdi(lun, Cost(1, len(chain.dropped), 0, 0, 0, 0, 0, 0, 0), leaf=chain.leaf)
        return made._replace(lun=_with_work(lun, settled, chain, chain.leaf, frozenset()))
    _refuse_disk(device, lun)
    images = members.read_members(device, lun.vg, chain.members)
    _refuse_encrypted(images)
    made = _best(device, lun, chain, images, request, lot)
    leaf = _new_leaf(made)
    return made._replace(lun=_with_work(lun, settled, chain, leaf, frozenset([leaf.lv.id])))


def _refuse_disk(device: Device, lun: Lun) -> None:
    if device.block_size != SECTOR:
        raise Refused(f"{device.name} has blocks of {device.block_size} bytes: VHD chains on it are not made one VDI.")
    if lun.vg.extent_size != layout.EXTENT_BYTES or lun.vg.pe_start % blocks.UNIT:
        raise Refused(f"The extents of {device.name} are not those that the storage manager makes: 4 MiB each.")


def _refuse_encrypted(images: Tuple[Member, ...]) -> None:
    for member in images:
        if any(member.batmap_header.keyhash):
            raise Refused(f"{member.name} is encrypted: its blocks cannot be put together without the key.")


def _best(device: Device, lun: Lun, chain: Chain, images: Tuple[Member, ...], request: Request, lot: int) -> OneVdi:
    """The cheapest way for which there is room."""
    homes, tears_pages = find_homes(images), torn_bytes(device) > SECTOR
    thick = lun.vg.size_of(images[0].lv) >= blocks.formula_size(images[0].virtual_size)
    room = layout.room_on(lun.vg, images, [volume.lv for volume in chain.dropped], lot)
    problem: Optional[Refused] = None
    for one in layout.layouts(images, homes, thick, tears_pages):
        cost = _cost(chain, one, len(room.writable))
        if request.most_bytes is not None and cost.data_bytes > request.most_bytes:
            problem = problem or Refused(
                f"One VDI of {chain.leaf.name.text} takes {cost.data_bytes} bytes of copying, and a call may copy "
                f"{request.most_bytes} here (`copy` in /etc/relvmoiscsi.conf). The command `relvmoiscsi resignature "
                "--vdis one` on the host has no such limit.",
                sm_key="InvalidArg",
            )
            continue
        try:
            return OneVdi(lun, cost, one, layout.place(one, images, room), images, chain.leaf)
        except Refused as refused:
            problem = problem or refused
    assert problem is not None  # there is one layout at the least
    raise problem


def _cost(chain: Chain, one: Layout, free: int) -> Cost:
    filled = [home for home in one.staying if home.must_be_filled]
    return Cost(
        images=len(chain.members),
        dropped=len(chain.dropped) + len(chain.members) - 1,
        blocks=len(one.slots),
        remapped=len(one.staying),
        filled=len(filled),
        copied=len(one.copied),
        data_bytes=one.cost_bytes(),
        fresh_extents=len(one.fresh),
        free_extents=free,
    )


# --- the LUN that it leads to


def _new_lv(made: OneVdi) -> LogicalVolume:
    assert made.leaf is not None
    return made.leaf.lv._replace(status=made.leaf.lv.status | {"WRITE"}, segments=layout.segments_of(made.extents))


def _new_leaf(made: OneVdi) -> Volume:
    """The volume of the new image, as it will be read."""
    assert made.leaf is not None and made.layout is not None
    footer = plain_footer(made.members[0].footer)
    header = plain_header(made.members[made.layout.primary].header)
    content = Vhd(footer, footer, None, False, header, (), None)
    lv = _new_lv(made)
    return made.leaf._replace(
        lv=lv, size=made.lun.vg.size_of(lv), content=content, parent=None, texts=(), disputed=False, empty=None
    )


def _with_work(lun: Lun, settled: Lun, chain: Chain, leaf: Volume, rebuilt: FrozenSet[str]) -> Lun:
    gone = {volume.lv.id for volume in (*chain.dropped, *chain.members)}
    volumes = [
        leaf if volume.lv.id == leaf.lv.id else volume
        for volume in settled.volumes
        if volume.lv.id == leaf.lv.id or volume.lv.id not in gone
    ]
    after = settled._replace(volumes=tuple(volumes), mgt=_mgt(settled.mgt, leaf), work=None)
    sentences = [*(lun.work.sentences if lun.work else ()), *_sentences(chain)]
    return lun._replace(work=Work(after, sentences, rebuilt))


def _mgt(mgt: Optional[Mgt], leaf: Volume) -> Optional[Mgt]:
    if mgt is None:
        return None
    record = NewRecord(str(leaf.name.uuid), "", "user", naming.MGT_TYPES[leaf.name.kind], read_only=False, managed=True)
    return with_only(mgt, record, naming.MGT)


def _sentences(chain: Chain) -> List[str]:
    uuid, found = chain.leaf.name.uuid, []
    if len(chain.members) > 1:
        parents = len(chain.members) - 1
        hidden = "its hidden parent become" if parents == 1 else f"its {parents} hidden parents become"
        found.append(f"VDI {uuid} and {hidden} one image.")
    if chain.dropped:
        names = ", ".join(volume.name.text for volume in chain.dropped)
        found.append(f"Only VDI {uuid} stays; these volumes go: {names}.")
    return found
