# SPDX-License-Identifier: LGPL-2.1-only
"""The protocol as a table: what each step of a run writes, and what the LUN holds once it is flushed. Pure data.

Carrying out (`resignature.writing.apply`), recovery, the report of a dry run and every message that names a step read
it; the documentation is built from it. What a run that was cut becomes is the table in `resignature.protocol.states`.
"""

from typing import NamedTuple


class Step(NamedTuple):
    """A part of a run that ends in one flush."""

    number: int  #: from 1
    name: str  #: as the log has it
    writes: str
    leaves: str  #: what the LUN holds after the flush


JOURNAL = Step(
    1,
    "journal and second metadata area",
    writes="journal and second metadata area, into free ring space",
    leaves="the old identity",
)
MARK = Step(
    2,
    "label: in progress",
    writes='label: mark "in progress"',
    leaves="the old identity, and a journal that decides the new one",
)
CONTENTS = Step(
    3,
    "contents of volumes",
    writes="contents of volumes",
    leaves="the old identity, and a journal that decides the new one",
)
COMMIT = Step(
    4,
    "label: switched",
    writes='label: new PV id, second metadata area, mark "switched"',
    leaves="the new identity: this is the commit",
)
HEADERS = Step(
    5,
    "metadata area headers",
    writes="headers of the original metadata areas, pointing to the new text",
    leaves="the new identity",
)
FINAL = Step(
    6,
    "label: final",
    writes='label: original metadata area, mark "done"',
    leaves="the new identity, where LVM put the old one",
)

STEPS = (JOURNAL, MARK, CONTENTS, COMMIT, HEADERS, FINAL)


class WayBack(NamedTuple):
    """What takes back a run that was cut before its commit; each ends in one flush, and may be done again."""

    contents: Step
    label: Step


WAY_BACK = WayBack(
    Step(1, "old contents", writes="old contents of volumes", leaves="the old identity, and the mark of the run"),
    Step(2, "old label", writes="label: as it was before the run", leaves="the old identity"),
)
