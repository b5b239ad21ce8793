# SPDX-License-Identifier: LGPL-2.1-only
"""From a LUN with a chain of images to the LUN with one VDI, and what has to be written for it. Nothing is written."""

from typing import FrozenSet, List, NamedTuple, Optional, Sequence

from relvmoiscsi.device import Device
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.formats.mgt import Mgt, NewRecord, with_only
from relvmoiscsi.resignature.merge import qcow2_image, vhd_image
from relvmoiscsi.resignature.merge.choice import Chain, OneVdiRequest, choose_chain
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, Counts, Image, MergeStrategy, segments_of
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, Work


class Cost(NamedTuple):
    """What it takes."""

    images: int  #: of the chain
    dropped: int  #: volumes that go, those of SM's unfinished work among them
    blocks: int  #: of the disk, that some image has
    remapped: int  #: of them, that stay where they are
    filled: int  #: of them, that get sectors from further down
    copied: int  #: blocks that get another place
    data_bytes: int  #: guest data that is written: fills and copies
    fresh_extents: int  #: free extents that are written before the commit
    free_extents: int  #: that there are


class OneVdi(NamedTuple):
    """The way to one VDI. Without a `way` the image there is stays as it is."""

    lun: Lun  #: as found; its work leads to the LUN with one VDI
    cost: Cost
    leaf: Volume
    way: Optional[MergeStrategy] = None
    extents: Sequence[int] = ()  #: physical ones, of the new volume

    def image(self, device: Device, ids: IdMap) -> Optional[Image]:
        """What is written, under the new ids, and what that is built on."""
        if self.way is None:
            return None
        return self.way.image(device, _new_lv(self), ids.lvm_ids[self.leaf.lv.id])


def make_one(device: Device, lun: Lun, request: OneVdiRequest, lot: int = 0) -> OneVdi:
    """How the LUN becomes one with one VDI. `lot` is the seed of `strategy.room_on`.

    Raises Refused or UsageError where it cannot, or costs more than the request allows; FormatError for an image that
    does not read.
    """
    settled = lun.settled()
    chain = choose_chain(settled, request)
    if len(chain.members) == 1:
        made = OneVdi(lun, _cost(lun, chain, Counts(0, 0, 0, 0, 0)), chain.leaf)
        return made._replace(lun=_with_work(lun, settled, chain, chain.leaf, frozenset()))
    if lun.vg.extent_size != EXTENT_BYTES:
        raise Refused(f"The extents of {device.name} are not those that the storage manager makes: 4 MiB each.")
    made = _best(device, lun, chain, request, lot)
    leaf = _new_leaf(made)
    return made._replace(lun=_with_work(lun, settled, chain, leaf, frozenset([leaf.lv.id])))


def _best(device: Device, lun: Lun, chain: Chain, request: OneVdiRequest, lot: int) -> OneVdi:
    """The cheapest way for which there is room."""
    problem: Optional[Refused] = None
    least: Optional[int] = None
    image = qcow2_image if chain.leaf.name.kind == naming.QCOW2 else vhd_image
    for way in image.strategies(device, lun, chain, lot):
        cost = _cost(lun, chain, way.counts)
        if request.most_bytes is not None and cost.data_bytes > request.most_bytes:
            least = cost.data_bytes if least is None else min(least, cost.data_bytes)
            continue
        try:
            return OneVdi(lun, cost, chain.leaf, way, way.extents())
        except Refused as refused:
            problem = problem or refused
    if problem is not None:
        raise problem
    assert least is not None  # there is one way at the least
    raise Refused(
        f"One VDI of {chain.leaf.name.text} takes {least} bytes of copying, and a call may copy "
        f"{request.most_bytes} here (`copy` in /etc/relvmoiscsi.conf). The command `relvmoiscsi resignature "
        "--vdis one` on the host has no such limit.",
        sm_key="InvalidArg",
    )


def _cost(lun: Lun, chain: Chain, counts: Counts) -> Cost:
    settled = len(lun.volumes) - len(lun.settled().volumes)
    return Cost(len(chain.members), settled + len(chain.dropped) + len(chain.members) - 1, *counts)


# --- the LUN that it leads to


def _new_lv(made: OneVdi) -> LogicalVolume:
    return made.leaf.lv._replace(status=made.leaf.lv.status | {"WRITE"}, segments=segments_of(made.extents))


def _new_leaf(made: OneVdi) -> Volume:
    """The volume of the new image, as it will be read."""
    assert made.way is not None
    lv = _new_lv(made)
    return made.leaf._replace(
        lv=lv, size=made.lun.vg.size_of(lv), content=made.way.content, parent=None, texts=(), disputed=False, empty=None
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
