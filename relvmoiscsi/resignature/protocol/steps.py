# SPDX-License-Identifier: LGPL-2.1-only
"""The protocol as a table: the writes of each step of a run, and the content of the LUN after the step's flush. Pure.

The run, recovery, the report of a dry run, all messages that name a step, and docs/protocol.rst use this table.
"""

from typing import NamedTuple


class Step(NamedTuple):
    """A part of a run that ends in one flush."""

    number: int  #: from 1
    name: str  #: for the log
    writes: str
    leaves: str  #: content of the LUN after the flush


JOURNAL = Step(
    1,
    "journal and second metadata area",
    writes="journal and second metadata area, into free ring space; one VDI: the new image, where nobody sees it yet",
    leaves="the old identity",
)
BEGIN = Step(
    2,
    "label: in progress",
    writes='label: commit record "in progress"',
    leaves="the old identity, and a journal that says what was begun",
)
CONTENTS = Step(
    3,
    "contents of volumes",
    writes="contents of volumes; one VDI: bitmaps of blocks that were filled up",
    leaves="the old identity, and a journal that says what was begun",
)
COMMIT = Step(
    4,
    "label: switched",
    writes='label: new PV id, second metadata area, commit record "switched"',
    leaves="the new identity: this is the commit",
)
#: the first part of step 5, with a flush of its own; only for a run with holes
HOLES = Step(
    5,
    "bitmaps of free slots",
    writes="one VDI only: bitmaps of the new image's free slots, so that they may be given away",
    leaves="the new identity",
)
HEADERS = Step(
    5,
    "metadata area headers",
    writes="headers of the original metadata areas, pointing to the new text; one VDI: the block table's free slots",
    leaves="the new identity",
)
FINAL = Step(
    6,
    "label: final",
    writes='label: original metadata area, commit record "done"',
    leaves="the new identity, where LVM put the old one",
)

STEPS = (JOURNAL, BEGIN, CONTENTS, COMMIT, HEADERS, FINAL)
ALL_PARTS = (JOURNAL, BEGIN, CONTENTS, COMMIT, HOLES, HEADERS, FINAL)  #: in their order


OLD_CONTENTS = Step(
    1,
    "old contents",
    writes="old contents of volumes; zeros over the second metadata area's header: a late commit leads nowhere",
    leaves="the old identity, and the commit record of the run",
)
OLD_LABEL = Step(2, "old label", writes="label: as it was before the run", leaves="the old identity")

#: the steps that roll back a run that was cut before its commit. Each ends in one flush, and may be repeated.
WAY_BACK = (OLD_CONTENTS, OLD_LABEL)
