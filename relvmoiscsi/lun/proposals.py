# SPDX-License-Identifier: LGPL-2.1-only
"""What a run is about to do to a LUN: the proposal to which a caller consents before the first write."""

from typing import Callable, Optional, Sequence, Tuple

from relvmoiscsi import engine
from relvmoiscsi.engine import RESIGNATURE, UNDO, EarlierRun, Lun, Prepared, ResignatureRequest, fits
from relvmoiscsi.lun.opened import NOBODY_NEEDED, OpenLun, PoolAnswer

#: why an interrupted run does not end as the run that is requested
OF_A_COPY, OF_UNKNOWN_LUN = "of a copy", "of an unknown LUN"
OTHER_VDIS, BEFORE_COMMIT = "other VDIs", "before its commit"


class Proposal:
    """What a run is about to do to a LUN. A caller consents to it, or raises an error: then nothing was written."""

    pool: PoolAnswer = NOBODY_NEEDED  #: who uses the LUN, as the pool answers
    is_rollback = False  #: whether it ends a run that was not committed: the LUN never had the ids of that run

    def __init__(
        self, sr_uuid: str, content: Optional[Lun] = None, replaced: Sequence[str] = (), new_sr: str = ""
    ) -> None:
        self.sr_uuid = sr_uuid  #: the SR on the LUN now
        self.content = content  #: what the LUN holds; None if that is unreadable
        self.replaced = tuple(replaced)  #: UUIDs of the SRs that the LUN will no longer hold
        self.new_sr = new_sr  #: the UUID that a new run gives the SR


class NewRun(Proposal):
    """Give the LUN new identities."""

    def __init__(self, prepared: Prepared) -> None:
        ids = prepared.plan.run.ids
        super().__init__(ids.sr, prepared.lun, (ids.sr,), ids.new_sr)
        self.prepared = prepared


class Recovery(Proposal):
    """Finish an interrupted run, or roll it back."""

    def __init__(self, earlier: EarlierRun, request: Optional[ResignatureRequest] = None) -> None:
        """`request` is the request for a new run; None for a caller that wants the interrupted run recovered."""
        run, goes_back = earlier.journal.run, engine.goes_back(earlier)
        self.is_rollback = goes_back
        self.earlier, self.is_undo = earlier, earlier.commit_record.kind == UNDO
        self.unfit = ""  #: why the interrupted run does not end as the run that is requested; "" where it does
        if request is not None:
            is_of_this_lun = self.is_undo or request.scsi_id in (None, run.scsi_id)
            if not is_of_this_lun and run.scsi_id is not None:
                self.unfit = OF_A_COPY
            elif goes_back:
                self.unfit = BEFORE_COMMIT
            elif not is_of_this_lun:  # finished, its record would not say that it was made for this LUN
                self.unfit = OF_UNKNOWN_LUN
            elif not self.is_undo and not fits(run, request.one):
                self.unfit = OTHER_VDIS
        #: why the run is rolled back; "" for a run that is finished. One VDI is not undone after the commit
        self.why = self.unfit if goes_back or run.merged is None else ""
        replaced: Tuple[str, ...] = ()  # finishing replaces nothing: the LUN holds the new SR since the commit
        if self.why and not self.is_undo:  # the new run that follows takes the old SR off the LUN
            replaced = (run.ids.sr,) if goes_back else (run.ids.sr, run.ids.new_sr)
        super().__init__(run.held_sr(earlier.commit_record.phase), replaced=replaced)
        #: the SR that the LUN holds when the run is finished, and no new run follows; "" in other cases
        self.finished_sr = "" if goes_back or self.is_undo or self.unfit else run.ids.new_sr


class Undoing(Proposal):
    """Give the LUN its old identities back."""

    def __init__(self, earlier: EarlierRun, content: Optional[Lun]) -> None:
        run = earlier.journal.run
        held = run.held_sr(earlier.commit_record.phase)
        self.old_sr = run.ids.sr if earlier.commit_record.kind == RESIGNATURE else run.ids.new_sr
        super().__init__(held, content, () if held == self.old_sr else (held,))
        self.earlier, self.is_rollback = earlier, engine.goes_back(earlier) and held == self.old_sr


#: returns if the caller consents, and raises otherwise
Consent = Callable[[OpenLun, Proposal], None]
