# SPDX-License-Identifier: LGPL-2.1-only
"""Which VDI of a LUN is to stay, the images of its chain, and whether an earlier run leads to the VDIs of a request.
Pure.
"""

from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.resignature.protocol.run import Run
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


# --- an earlier run


def fits(run: Run, request: Optional[OneVdiRequest]) -> bool:
    """Whether a run that was cut leads to what is asked for: all VDIs, one, or this one."""
    if request is None or run.one is None:
        return request is None and run.one is None
    return request.vdi is None or _is_kept(request.vdi, run)


def _is_kept(vdi: str, run: Run) -> bool:
    """Whether a VDI is the one of a run, told by the UUID it has, had, or had before an earlier run that chose none."""
    if run.one is None:
        return False
    return vdi in (run.one, run.ids.uuids[run.one]) or derived_uuid(run.ids.sr, vdi) == run.one


def named_now(vdi: str, lun: Lun, run: Optional[Run]) -> str:
    """The UUID that a VDI has now, told by that or by the one it had before the run that the LUN is the result of.

    `run` is that of the journal, if that still lies on the LUN.
    """
    disks = lun.settled().disks()
    before = run.ids.uuids.get(vdi, vdi) if run is not None else vdi
    return next((name for name in (vdi, before, derived_uuid(lun.sr_uuid, vdi)) if name in disks), vdi)


def has_one_row(lun: Lun) -> bool:
    """Whether SM will find one VDI. It makes a row of a changed-block log as well, if that has no disk."""
    logs = {volume.name.uuid for volume in lun.volumes if volume.name.kind == naming.CBT_LOG}
    return len(logs.union(lun.disks())) == 1


def refuse_other_vdis(name: str, lun: Lun, run: Optional[Run], request: Optional[OneVdiRequest]) -> None:
    """Raises Refused where a LUN that is resignatured does not hold the VDIs that are asked for.

    `run` is that of the journal; None where LVM has reclaimed its space.
    """
    if request is None:
        if run is not None and run.one is not None:
            raise Refused(
                f"{name} was made one VDI before, and all VDIs are asked for: the others are gone. Take the clone "
                "again, or ask for one VDI (`vdis=one`).",
                sm_key="InvalidArg",
            )
        return
    settled = lun.settled()
    was_one = run is not None and run.one is not None  # it may have snapshots by now, and they are its own
    if not was_one and not has_one_row(settled):
        raise Refused(
            f"{name} was resignatured before, with {len(settled.disks())} VDIs, and one is wanted. Resignature it "
            "again (`relvmoiscsi resignature --again --vdis one`) as long as nobody uses it, take the clone again, or "
            "ask for all VDIs (`vdis=all`).",
            sm_key="InvalidArg",
        )
    if request.vdi is not None and (run is None or not fits(run, request)) and not _is_there(request.vdi, settled, run):
        raise Refused(
            f"{name} was made one VDI before, and it is not {request.vdi} that was kept. Take the clone again.",
            sm_key="InvalidArg",
        )


def _is_there(vdi: str, lun: Lun, run: Optional[Run]) -> bool:
    """Whether a VDI is the one; without a journal by what it becomes unless an id was chosen."""
    if run is not None and run.one is not None:
        return _is_kept(vdi, run)
    return named_now(vdi, lun, run) in lun.disks()
