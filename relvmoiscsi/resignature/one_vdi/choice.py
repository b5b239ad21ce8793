# SPDX-License-Identifier: LGPL-2.1-only
"""Which VDI of a LUN is to be the one, and what it is made of. Pure."""

from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.formats import naming
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume

MAX_LEVELS = 30  #: of a chain, as SM allows them
_SHOWN = 4  #: VDIs that a message lists


class OneVdiRequest(NamedTuple):
    """What is asked for."""

    vdi: Optional[str] = None  #: UUID of the leaf, where several are live
    most_bytes: Optional[int] = None  #: that may be copied and filled; None: as many as it takes
    note: str = ""  #: who asks, a sentence for a refusal; empty where the caller knows


@contextmanager
def said_who_asks(request: Optional[OneVdiRequest]) -> Iterator[None]:
    """What is refused for the sake of one VDI says who wants it."""
    try:
        yield
    except Refused as error:
        if request is not None and request.note:
            error.message += " " + request.note
        raise


class Chain(NamedTuple):
    """An image and what it reads through."""

    members: Tuple[Volume, ...]  #: the leaf first; one, when the image stands alone
    dropped: Tuple[Volume, ...]  #: what goes: snapshots, other disks, SM's leftovers

    @property
    def leaf(self) -> Volume:
        return self.members[0]


def choose_chain(lun: Lun, request: OneVdiRequest) -> Chain:
    """The chain of the one VDI. `lun` is settled.

    Raises Refused where there is no such VDI, or one that cannot be made one image; UsageError for a choice that
    cannot be.
    """
    leaf = _leaf(lun, request)
    members = _members(lun, leaf)
    _refuse_what_cannot_be(lun, members)
    kept = {member.lv.id for member in members}
    return Chain(
        members,
        tuple(
            volume
            for volume in lun.volumes
            if volume.lv.id not in kept and volume.name.kind not in (naming.MGT, naming.OTHER)
        ),
    )


def live_vdis(lun: Lun) -> List[Volume]:
    """The disks that are no snapshot, and that nothing else is made of."""
    records = lun.records()
    found = []
    for uuid, volume in leaves(lun).items():
        record = records.get(uuid)
        if record is None or not record.is_a_snapshot:
            found.append(volume)
    return found


def leaves(lun: Lun) -> Dict[str, Volume]:
    """The disks that are neither hidden nor another one's parent, by VDI UUID."""
    disks = lun.disks()
    parents = {(disk.parent.kind, disk.parent.uuid) for disk in disks.values() if disk.parent}
    return {uuid: disk for uuid, disk in disks.items() if not disk.hidden and (disk.name.kind, uuid) not in parents}


def _leaf(lun: Lun, request: OneVdiRequest) -> Volume:
    if request.vdi is not None:
        found = leaves(lun).get(request.vdi)
        if found is None:
            raise UsageError(f"{lun.name} has no VDI {request.vdi} that could be the one: no disk, or a hidden parent.")
        return found
    live = live_vdis(lun)
    if not live:
        raise Refused(
            f"{lun.name} has no live VDI: every disk on it is a snapshot, or kept as a parent only. "
            "Name one (`vdi`), or ask for all VDIs (`vdis=all`).",
            sm_key="InvalidArg",
        )
    if len(live) > 1:
        named = sorted(str(volume.name.uuid) for volume in live)
        listed = ", ".join(named[:_SHOWN] + ([f"and {len(named) - _SHOWN} more"] if len(named) > _SHOWN else []))
        raise Refused(
            f"{lun.name} has {len(live)} live VDIs, and one is wanted: {listed}. Name it (`vdi`), or ask for "
            "all VDIs (`vdis=all`).",
            sm_key="InvalidArg",
        )
    return live[0]


def _members(lun: Lun, leaf: Volume) -> Tuple[Volume, ...]:
    disks, members = lun.disks(), [leaf]
    while members[-1].parent is not None:
        parent = members[-1].parent
        found = disks.get(parent.uuid)
        if found is None or found.name.kind != parent.kind:
            raise Refused(f"{members[-1].name.text} has lost its parent, the {parent.kind} {parent.uuid}.")
        members.append(found)
        if len(members) > MAX_LEVELS:
            raise Refused(f"The chain of {leaf.name.text} is longer than {MAX_LEVELS} images.")
    return tuple(members)


def _refuse_what_cannot_be(lun: Lun, members: Tuple[Volume, ...]) -> None:
    names = {str(member.name.uuid) for member in members}
    for volume in lun.volumes:
        if volume.name.kind == naming.JOURNAL and volume.name.journal == "zero" and volume.name.uuid in names:
            raise Refused(f"{volume.name.text}: a part of that VDI is still to be zeroed; let the original SR do it.")
    if len(members) == 1:
        return
    for member, parent in zip(members, members[1:]):
        if parent.name.kind == naming.RAW and member.name.kind != naming.QCOW2:
            raise Refused(f"{parent.name.text} is a raw parent: what is above it cannot be made one image without it.")
        if parent.virtual_size > member.virtual_size:
            raise Refused(f"{parent.name.text} is a larger disk than its child {member.name.text}.")
