# SPDX-License-Identifier: LGPL-2.1-only
"""The label sector in every state of a run. Pure."""

from typing import NamedTuple

from relvmoiscsi.errors import Place
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    IN_PROGRESS,
    SWITCHED,
    CommitRecord,
    with_commit_record,
)
from relvmoiscsi.resignature.protocol.journal import Journal
from relvmoiscsi.resignature.protocol.run import Run


class Labels(NamedTuple):
    """The label sector in every state of a run."""

    offset: int  #: bytes from the start of the device
    before: bytes
    in_progress: bytes
    switched: bytes
    final: bytes

    @classmethod
    def of(cls, journal: Journal) -> "Labels":
        run = journal.run
        label = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
        return cls(
            offset=label.offset,
            before=run.old_label,
            in_progress=with_commit_record(
                label.as_of_today(Place("the journal", 0)).sector, journal.commit_record(IN_PROGRESS)
            ),
            switched=switched_label(label, run, journal.commit_record(SWITCHED)),
            final=run.final_label or final_label(label, run, journal.commit_record(DONE)),
        )


def switched_label(label: Label, run: Run, record: CommitRecord) -> bytes:
    """The commit: new PV id, the second areas, the mark."""
    label = label.as_of_today(Place("the label", 0))
    return with_commit_record(label.sector_with(run.new_pv_id, tuple(move.second for move in run.mdas)), record)


def final_label(label: Label, run: Run, record: CommitRecord) -> bytes:
    """New PV id, the original areas, the mark."""
    label = label.as_of_today(Place("the label", 0))
    return with_commit_record(label.sector_with(run.new_pv_id, tuple(move.original for move in run.mdas)), record)
