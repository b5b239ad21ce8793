# SPDX-License-Identifier: LGPL-2.1-only
"""The VDI of a LUN that stays, the images of its chain, and whether the last run made the requested VDIs. Pure."""

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.resignature.protocol.run_record import Run
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume
from relvmoiscsi.resignature.reading.request import OneVdiRequest
from relvmoiscsi.wording import said, shell_command

MAX_LEVELS = 30  #: SM allows no longer chain
_ALL = "Ask for all VDIs (`vdis=all`)"
_COALESCE = _ALL + ", and let the clone's own SR coalesce."
_NAME_ONE = "Name one of these."
_SHOWN = 4  #: a message lists at most so many VDIs


class Chain(NamedTuple):
    """An image and its parents."""

    members: Tuple[Volume, ...]  #: the leaf first; only the leaf, when it has no parent
    dropped: Tuple[Volume, ...]  #: volumes that the run removes: snapshots, other disks, leftovers of SM

    @property
    def leaf(self) -> Volume:
        return self.members[0]


def choose_chain(lun: Lun, request: OneVdiRequest) -> Chain:
    """The chain of the VDI that stays. `lun` must be `Lun.settled`.

    Raises NotFound for a `request.vdi` that is not on the LUN, and UsageError for the parent of other VDIs. Raises
    Refused without a live VDI, with several, and when the chain cannot become one image.
    """
    leaf = _leaf(lun, request)
    disks, members = lun.disks(), [leaf]
    while members[-1].parent is not None:
        member, named = members[-1], members[-1].parent
        parent = disks.get(named.uuid)
        if parent is None or parent.name.kind != named.kind:
            raise Refused(f"{member.name.text} has lost its parent, the {named.kind} {named.uuid}.").advising(
                f"{_ALL}."
            )
        members.append(parent)
        if len(members) > MAX_LEVELS:
            raise Refused(f"The chain of {leaf.name.text} is longer than {MAX_LEVELS} images.").advising(_COALESCE)
    uuids = {member.name.uuid for member in members}
    for volume in lun.volumes:
        if volume.name.kind == naming.JOURNAL and volume.name.journal == "zero" and volume.name.uuid in uuids:
            problem = f"{volume.name.text}: a part of that VDI is still to be zeroed."
            raise Refused(problem).advising(f"{_ALL}: the clone's own SR does it.")
    for member, parent in zip(members, members[1:]):
        if parent.name.kind == naming.RAW and member.name.kind != naming.QCOW2:
            raise Refused(
                f"{parent.name.text} is a raw parent: what is above it cannot be made one image without it."
            ).advising(_COALESCE)
        if parent.virtual_size > member.virtual_size:
            raise Refused(f"{parent.name.text} is a larger disk than its child {member.name.text}.").advising(
                f"{_ALL}."
            )
    retained = {member.lv.id for member in members}
    others = [volume for volume in lun.volumes if volume.lv.id not in retained]
    dropped = [volume for volume in others if volume.name.kind not in (naming.MGT, naming.OTHER)]
    return Chain(tuple(members), tuple(dropped))


def leaves(lun: Lun) -> Dict[str, Volume]:
    """The disks that are neither hidden nor the parent of another disk, by VDI UUID."""
    disks = lun.disks()
    parents = {(disk.parent.kind, disk.parent.uuid) for disk in disks.values() if disk.parent}
    return {uuid: disk for uuid, disk in disks.items() if not disk.hidden and (disk.name.kind, uuid) not in parents}


def uuids_in_words(uuids: List[str]) -> List[str]:
    """The UUIDs for a message; after a few UUIDs the number of the others."""
    return uuids[:_SHOWN] + ([f"and {len(uuids) - _SHOWN} more"] if len(uuids) > _SHOWN else [])


def _vdis_in_words(uuids: Iterable[str], lun: Lun) -> str:
    """VDIs of the LUN for a message, each with its label."""
    labels = {uuid: said(record.name_label) for uuid, record in lun.records().items() if record.name_label}
    return ", ".join(uuids_in_words([f"{uuid} {labels.get(uuid, '')}".rstrip() for uuid in sorted(uuids)])) or "none"


def _leaf(lun: Lun, request: OneVdiRequest) -> Volume:
    if request.vdi is not None:
        found = leaves(lun).get(request.vdi)
        if found is None:
            there = f"These can be kept: {_vdis_in_words(leaves(lun), lun)}."
            if request.vdi in lun.disks():
                problem = f"VDI {request.vdi} of {lun.name} is the parent of other VDIs. {there}"
                raise UsageError(problem).advising(_NAME_ONE)
            raise NotFound(f"{lun.name} has no VDI {request.vdi}. {there}", sm_key="InvalidArg").advising(_NAME_ONE)
        return found
    records = lun.records()
    others = {uuid for uuid, record in records.items() if record.is_a_snapshot}.union(lun.saves())
    live = [disk for uuid, disk in leaves(lun).items() if uuid not in others]
    if not live:
        raise Refused(
            f"{lun.name} has no live VDI: every disk on it is a snapshot, is kept as a parent only, or holds the "
            "records of VMs.",
            sm_key="InvalidArg",
        ).advising("Name one (`vdi`), or ask for all VDIs (`vdis=all`).")
    if len(live) > 1:
        listed = _vdis_in_words((str(volume.name.uuid) for volume in live), lun)
        raise Refused(
            f"{lun.name} has {len(live)} live VDIs, and one is wanted: {listed}.", sm_key="InvalidArg"
        ).advising("Name it (`vdi`), or ask for all VDIs (`vdis=all`).")
    return live[0]


# --- an earlier run


def fits(run: Run, request: Optional[OneVdiRequest]) -> bool:
    """Whether a run that was cut leaves the requested VDIs: all VDIs, any one VDI, or the named VDI."""
    if request is None or run.one is None:
        return request is None and run.one is None
    # the old, the new UUID, or the UUID before an earlier run that has derived all ids: chosen ids are not known
    names = (None, run.one, run.ids.uuids[run.one])
    return request.vdi in names or derived_uuid(run.ids.sr, str(request.vdi)) == run.one


def named_now(vdi: str, lun: Lun, run: Optional[Run]) -> str:
    """The present UUID of a VDI. `vdi` is its present UUID, or its UUID before the last run.

    `run` is the last run; None after LVM has overwritten the journal.
    """
    disks = lun.settled().disks()
    before = run.ids.uuids.get(vdi, vdi) if run is not None else vdi
    return next((name for name in (vdi, before, derived_uuid(lun.sr_uuid, vdi)) if name in disks), vdi)


def has_one_row(lun: Lun) -> bool:
    """Whether SM's scan will find one VDI. SM also makes a VDI of a changed-block log without a disk."""
    logs = {volume.name.uuid for volume in lun.volumes if volume.name.kind == naming.CBT_LOG}
    return len(logs.union(lun.disks())) == 1


def refuse_other_vdis(name: str, lun: Lun, run: Optional[Run], request: Optional[OneVdiRequest]) -> None:
    """Raises Refused when a resignatured LUN does not hold the requested VDIs, and NotFound for an unknown VDI.

    `run` is the last run; None after LVM has overwritten the journal.
    """
    if request is None:
        if run is not None and run.one is not None:
            raise Refused(
                f"{name} was made one VDI before, and all VDIs are asked for: the others are gone.",
                sm_key="InvalidArg",
            ).advising("Take the clone again, or ask for one VDI (`vdis=one`).")
        return
    settled = lun.settled()
    was_one = run is not None and run.one is not None  # then all snapshots were made since the run
    if not was_one and not has_one_row(settled):
        if request.vdi is None:
            _leaf(settled, request)  # a run again would refuse several live VDIs as well
        again = shell_command("relvmoiscsi resignature --again --vdis one", name, vdi=request.vdi)
        raise Refused(
            f"{name} was resignatured before, with {len(settled.disks())} VDIs, and one is wanted.",
            sm_key="InvalidArg",
        ).advising(
            f"Resignature it again (`{again}`) as long as nobody uses it, take the clone again, or ask for all VDIs "
            "(`vdis=all`)."
        )
    if request.vdi is None or run is not None and fits(run, request):
        return
    disks = settled.disks()
    is_there = named_now(request.vdi, settled, run) in disks
    if not was_one and not is_there:
        problem = f"{name} was resignatured before, and has no VDI {request.vdi}."
        there = f"These are there: {_vdis_in_words(disks, settled)}."
        raise NotFound(f"{problem} {there}", sm_key="InvalidArg").advising(_NAME_ONE)
    if was_one:
        raise Refused(
            f"{name} was made one VDI before, of another VDI than {request.vdi}.",
            sm_key="InvalidArg",
        ).advising("Take the clone again.")
