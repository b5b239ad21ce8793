# SPDX-License-Identifier: LGPL-2.1-only
"""Leave VDIs of a LUN behind that a caller names, and settle SM's unfinished work on the rest. Pure.

A person may want the rest of an SR with one volume that cannot be read. A VDI that is left behind goes with its
changed-block log, its journals, and the VDIs that were made of it. In a snapshot that has only begun, SM has given the
volume of a VDI to the base copy: this VDI goes with the base copy. The run drops their volumes from LVM's text, and
marks their records in MGT as deleted. Nothing is ever left behind without a caller who names it.
"""

from contextlib import suppress
from typing import Dict, List, Optional, Sequence, Set, Tuple

from relvmoiscsi.errors import NotFound, Unsupported
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.mgt import without_records
from relvmoiscsi.resignature.reading import sm_journals
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, Work
from relvmoiscsi.wording import shell_command

_OF_A_VDI = (*naming.DISK_KINDS, naming.CBT_LOG, naming.JOURNAL)


def settle(found: Lun, uuids: Sequence[str] = ()) -> Lun:
    """The LUN as found, with `Lun.work`: SM's unfinished work, and the loss of the VDIs `uuids`; None without either.

    The VDIs go before SM's work is settled: a journal of such a VDI goes with the VDI, also when it cannot be read.
    Raises NotFound for a UUID without a volume, Unsupported for work that cannot be settled.
    """
    rest, lost, gone = leave(found, uuids)
    if not gone:
        return found._replace(work=sm_journals.unfinished_work(found))
    work = sm_journals.unfinished_work(rest) or Work(rest, ())
    sentences = [*work.sentences]
    sentences += [f"VDI {uuid} is left behind, as it was asked for." for uuid in sorted(set(uuids))]
    for uuid in sorted(lost - set(uuids)):
        sentences.append(f"VDI {uuid} was made of a VDI that is left behind, and is deleted too.")
    sentences.append("These volumes are deleted: {}.".format(", ".join(volume.name.text for volume in gone)))
    return found._replace(work=Work(work.lun, sentences, left_behind=[volume.lv.id for volume in gone]))


def leave(found: Lun, uuids: Sequence[str]) -> Tuple[Lun, Set[str], List[Volume]]:
    """The LUN without the VDIs `uuids` and their descendants; the UUIDs of the lost VDIs; the volumes of the lost VDIs.

    Raises NotFound for a UUID without a volume.
    """
    with_volume = {volume.name.uuid for volume in found.volumes if volume.name.kind in naming.DISK_KINDS}
    children: Dict[str, List[Optional[str]]] = {}
    for volume in found.volumes:
        if volume.parent is not None:
            children.setdefault(volume.parent.uuid, []).append(volume.name.uuid)
        snapshot = sm_journals.snapshot_of(volume.name, volume.content)
        if snapshot is not None and volume.name.uuid not in with_volume:
            children.setdefault(snapshot.group("base"), []).append(volume.name.uuid)
    for uuid in set(uuids).difference(leavable(found)):
        children.setdefault(uuid, []).append(_as_found(found, uuid))
    lost, todo = set(), list(uuids)
    while todo:
        uuid = todo.pop()
        if uuid not in lost:
            lost.add(uuid)
            todo += filter(None, children.get(uuid, ()))
    gone = [volume for volume in found.volumes if volume.name.kind in _OF_A_VDI and volume.name.uuid in lost]
    if not gone:
        return found, lost, gone
    mgt = without_records(found.mgt, lost) if found.mgt is not None else None
    return found.without(gone)._replace(mgt=mgt), lost, gone


def _as_found(found: Lun, uuid: str) -> Optional[str]:
    """The UUID in the name, as found, of the volume that has this UUID after SM's unfinished work, as `show` lists it.

    A leaf-coalesce has given the parent the name of its child. Raises NotFound.
    """
    work = None
    with suppress(Unsupported):  # `show` lists the VDIs as found
        work = sm_journals.unfinished_work(found)
    volume = work.lun.disks().get(uuid) if work is not None else None
    if volume is None:
        raise no_volume(found.name, uuid)
    return next(each.name.uuid for each in found.volumes if each.lv.id == volume.lv.id)


def no_volume(name: str, uuid: str) -> NotFound:
    """The error for a VDI to leave behind that the LUN does not have."""
    problem = f"{name} has no volume of VDI {uuid}, which was to be left behind (`without`)."
    return NotFound(problem, sm_key="InvalidArg").advising(
        f"`{shell_command('relvmoiscsi show', name)}` lists the VDIs."
    )


def leavable(lun: Lun) -> Set[Optional[str]]:
    """The UUIDs of VDIs with a volume on the LUN as found."""
    return {volume.name.uuid for volume in lun.volumes if volume.name.kind in _OF_A_VDI}
