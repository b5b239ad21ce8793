# SPDX-License-Identifier: LGPL-2.1-only
"""Whether an earlier run leads, or has led, to the VDIs that are asked for now. Pure."""

from typing import Optional

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.resignature.one_vdi.choice import OneVdiRequest
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.reading.lun_contents import Lun


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
