# SPDX-License-Identifier: LGPL-2.1-only
"""Choose a merge strategy for a chain, and give the LUN with one VDI after the merge. Reads only."""

from typing import Callable, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.device import Device
from relvmoiscsi.errors import FormatError, Refused, WayOut
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.formats.mgt import Mgt, NewRecord, with_only
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, Counts, Image, MergeStrategy, segments_of
from relvmoiscsi.resignature.merge.vdi_choice import Chain, OneVdiRequest, choose_chain
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, Work, verify_lun

_KEEP_ALL = "With all its VDIs (`vdis=all`) the clone can be resignatured."


class Cost(NamedTuple):
    """The cost of making one VDI; from `blocks` on as in `strategy.Counts`."""

    images: int  #: images of the chain
    dropped: int  #: volumes that the run removes, volumes of SM's unfinished work included
    blocks: int
    remapped: int
    filled: int
    copied: int
    data_bytes: int
    fresh_extents: int
    free_extents: int


class OneVdi(NamedTuple):
    """How a LUN gets one VDI. Without a `way`, the leaf stays as found."""

    lun: Lun  #: as found, with `Lun.work` that gives the LUN with one VDI
    cost: Cost
    leaf: Volume
    way: Optional[MergeStrategy] = None
    extents: Sequence[int] = ()  #: physical extents of the new volume

    def image(self, device: Device, ids: IdMap) -> Optional[Image]:
        """The writes that make the new image under the new ids; None when the image stays as found."""
        if self.way is None:
            return None
        return self.way.image(device, _new_lv(self), ids.lvm_ids[self.leaf.lv.id])


def make_one(device: Device, lun: Lun, request: OneVdiRequest, lot: int = 0) -> OneVdi:
    """How the LUN gets one VDI. `lot` is the seed of `strategy.room_on`.

    Raises Refused or UsageError when this is impossible, or costs more than the request allows. Raises FormatError for
    an image that cannot be read. Volumes that go need not be readable.
    """
    chain = choose_chain(lun.settled(), request)
    verify_lun(lun.settled().without(chain.dropped))
    if len(chain.members) == 1:
        made = OneVdi(lun, _cost(lun, chain, Counts(0, 0, 0, 0, 0)), chain.leaf)
        return made._replace(lun=_with_work(lun, chain, chain.leaf, frozenset()))
    if lun.vg.extent_size != EXTENT_BYTES:
        problem = f"The extents of {device.name} are not of 4 MiB, as the storage manager makes them."
        raise Refused(problem + " " + _KEEP_ALL)
    try:
        made = _best(device, lun, chain, request, lot)
    except FormatError as error:
        raise error.with_way_out(WayOut(sentence=_KEEP_ALL)) from None
    leaf = _new_leaf(made)
    return made._replace(lun=_with_work(lun, chain, leaf, frozenset([leaf.lv.id])))


def _best(device: Device, lun: Lun, chain: Chain, request: OneVdiRequest, lot: int) -> OneVdi:
    """The cheapest strategy for which the LUN has room."""
    problem: Optional[Refused] = None
    least: Optional[int] = None
    for way in _strategies(chain)(device, lun, chain, lot):
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
    assert least is not None  # `strategies` gives at least one strategy, or raises
    raise Refused(
        f"One VDI of {chain.leaf.name.text} takes {least} bytes of copying, and a call may copy "
        f"{request.most_bytes} here (`copy` in /etc/relvmoiscsi.conf). The command `relvmoiscsi resignature "
        "--vdis one` on the host has no such limit.",
        sm_key="InvalidArg",
    )


def _strategies(chain: Chain) -> Callable[[Device, Lun, Chain, int], Iterator[MergeStrategy]]:
    """The strategies for the format of a chain. The modules of a format are imported when a chain of it is merged."""
    if chain.leaf.name.kind == naming.QCOW2:
        from relvmoiscsi.resignature.merge import qcow2_image  # noqa: PLC0415

        return qcow2_image.strategies
    from relvmoiscsi.resignature.merge import vhd_image  # noqa: PLC0415

    return vhd_image.strategies


def _cost(lun: Lun, chain: Chain, counts: Counts) -> Cost:
    settled = len(lun.volumes) - len(lun.settled().volumes)
    return Cost(len(chain.members), settled + len(chain.dropped) + len(chain.members) - 1, *counts)


# --- the LUN after the merge


def _new_lv(made: OneVdi) -> LogicalVolume:
    return made.leaf.lv._replace(status=made.leaf.lv.status | {"WRITE"}, segments=segments_of(made.extents))


def _new_leaf(made: OneVdi) -> Volume:
    """The volume of the new image, as a survey will read the volume."""
    assert made.way is not None
    lv = _new_lv(made)
    return made.leaf._replace(
        lv=lv, size=made.lun.vg.size_of(lv), content=made.way.content, parent=None, texts=(), disputed=False, empty=None
    )


def _with_work(lun: Lun, chain: Chain, leaf: Volume, rebuilt: FrozenSet[str]) -> Lun:
    rest = lun.settled().without([*chain.dropped, *chain.members[1:]])
    volumes = tuple(leaf if volume.lv.id == leaf.lv.id else volume for volume in rest.volumes)
    after = rest._replace(volumes=volumes, mgt=_mgt(rest.mgt, leaf), work=None)
    work = lun.work or Work(rest, ())
    left_behind = [*work.left_behind, *(volume.lv.id for volume in chain.dropped)]
    return lun._replace(work=Work(after, [*work.sentences, *_sentences(chain)], rebuilt, left_behind))


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
