# SPDX-License-Identifier: LGPL-2.1-only
"""Select the VDIs of the new SR: all of them, or one VDI, whose chain is merged into one image. Reads only."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import Device
from relvmoiscsi.errors import FormatError, Refused, WayOut
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import Entropy
from relvmoiscsi.formats.lvm.vg import segments_of
from relvmoiscsi.formats.mgt import with_only
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, Cost, MergeStrategy
from relvmoiscsi.resignature.merge.vdi_choice import Chain, choose_chain
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, Work, verify_lun
from relvmoiscsi.resignature.reading.request import OneVdiRequest, naming_who_asks

_KEEP_ALL = "With all its VDIs (`vdis=all`) the clone can be resignatured."


class Selection(NamedTuple):
    """The VDIs of the new SR. Without a `strategy`, each image stays as found."""

    lun: Lun  #: as found, with `Lun.work` that gives the LUN with these VDIs
    only: Optional[Volume] = None  #: the volume of the only VDI, after a merge, under its old ids; None for all VDIs
    cost: Optional[Cost] = None  #: of the only VDI
    strategy: Optional[MergeStrategy] = None


def select_vdis(device: Device, lun: Lun, request: Optional[OneVdiRequest], entropy: Entropy) -> Selection:
    """The VDIs that a request asks for; None asks for all VDIs of `lun`. Raises as `verify_lun` and `select_one`."""
    if request is None:
        verify_lun(lun)
        return Selection(lun)
    with naming_who_asks(request):
        return select_one(device, lun, request, seed=int.from_bytes(entropy(8), "big"))


def select_one(device: Device, lun: Lun, request: OneVdiRequest, seed: int = 0) -> Selection:
    """One VDI, by the cheapest merge strategy for which the LUN has room. `seed` chooses among the free extents.

    Raises NotFound, Refused or UsageError when this is impossible, or costs more than the request allows. Raises
    FormatError for an image that cannot be read. Volumes that go need not be readable.
    """
    chain = choose_chain(lun.settled(), request)
    verify_lun(lun, dropped=chain.dropped)
    leaf, parents = chain.leaf, len(chain.members) - 1
    dropped = len(lun.volumes) - len(lun.settled().volumes) + len(chain.dropped) + parents
    if not parents:
        return Selection(_with_work(lun, chain, leaf), leaf, Cost(dropped=dropped))
    if lun.vg.extent_size != EXTENT_BYTES:
        problem = f"The extents of {device.name} are not of 4 MiB, as the storage manager makes them."
        raise Refused(problem).advising(_KEEP_ALL)
    try:
        strategy, extents = _cheapest(device, lun, chain, request.most_bytes, seed)
    except FormatError as error:
        raise error.with_way_out(WayOut(sentence=_KEEP_ALL)) from None
    except Refused as refused:
        refused.advising("" if refused.advice else _KEEP_ALL)
        raise
    segments = segments_of(range(pe, pe + 1) for pe in extents)
    lv = leaf.lv._replace(status=leaf.lv.status | {"WRITE"}, segments=segments)
    merged = leaf._replace(  # as a survey will read the volume
        lv=lv, size=lun.vg.size_of(lv), content=strategy.content, parent=None, texts=(), named=(), empty=None
    )
    cost = strategy.cost._replace(images=parents + 1, dropped=dropped)
    return Selection(_with_work(lun, chain, merged), merged, cost, strategy)


def _cheapest(
    device: Device, lun: Lun, chain: Chain, most_bytes: Optional[int], seed: int
) -> Tuple[MergeStrategy, Sequence[int]]:
    """The cheapest strategy for which the LUN has room, and the extents of the new volume."""
    no_room: Optional[Refused] = None
    least: Optional[int] = None
    # the modules of a format are imported when a chain of the format is merged
    if chain.leaf.name.kind == naming.QCOW2:
        from relvmoiscsi.resignature.merge import qcow2_image  # noqa: PLC0415

        strategies = qcow2_image.strategies
    else:
        from relvmoiscsi.resignature.merge import vhd_image  # noqa: PLC0415

        strategies = vhd_image.strategies
    for strategy in strategies(device, lun, chain, seed):
        copied = strategy.cost.data_bytes
        if most_bytes is not None and copied > most_bytes:
            least = copied if least is None else min(least, copied)
            continue
        try:
            return strategy, strategy.extents()
        except Refused as refused:
            no_room = no_room or refused
    if no_room is not None:
        raise no_room
    assert least is not None  # `strategies` gives at least one strategy, or raises
    raise Refused(
        f"One VDI of {chain.leaf.name.text} takes {least} bytes of copying, and a call may copy {most_bytes} here.",
        sm_key="InvalidArg",
    ).advising(
        "The limit is `copy` in /etc/relvmoiscsi.conf. The command `relvmoiscsi resignature --vdis one` on the host "
        "has no such limit."
    )


def _with_work(lun: Lun, chain: Chain, leaf: Volume) -> Lun:
    """The LUN with `Lun.work` that drops all volumes but `leaf`, which replaces the leaf of the chain."""
    rest = lun.settled().without([*chain.dropped, *chain.members[1:]])
    mgt = rest.mgt
    if mgt is not None:
        mgt = with_only(mgt, str(leaf.name.uuid), naming.MGT_TYPES[leaf.name.kind])
    volumes = tuple(leaf if volume.lv.id == leaf.lv.id else volume for volume in rest.volumes)
    work = lun.work or Work(rest, ())
    sentences: List[str] = []
    if len(chain.members) > 1:
        parents = len(chain.members) - 1
        hidden = "its hidden parent become" if parents == 1 else f"its {parents} hidden parents become"
        sentences.append(f"VDI {leaf.name.uuid} and {hidden} one image.")
    if chain.dropped:
        sentences.append(f"Only VDI {leaf.name.uuid} stays.")
    return lun._replace(
        work=Work(
            rest._replace(volumes=volumes, mgt=mgt, work=None),
            [*work.sentences, *sentences],
            leaf.lv.id if len(chain.members) > 1 else None,
            [*work.left_behind, *(volume.lv.id for volume in chain.dropped)],
        )
    )
