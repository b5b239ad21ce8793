# SPDX-License-Identifier: LGPL-2.1-only
"""The states of a run as a table, and what leads from one to another. Pure data; the documentation draws it.

The state is in the label alone: whoever reads its mark, on any host, knows what has to be done. An undo of a run that
is done is a run as well, with old and new exchanged; where it ends, the label is as it was before the resignature.
"""

from typing import NamedTuple

from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.steps import Step


class State(NamedTuple):
    """What a LUN is in, as far as runs go."""

    name: str
    mark: str  #: in the label, by which it is known
    holds: str  #: a sentence on what the LUN holds
    shown: str  #: the state that `relvmoiscsi show` gives


class Transition(NamedTuple):
    """What an event makes of a state; both by their names."""

    state: str
    event: str
    becomes: str


IDLE, IN_PROGRESS, SWITCHED, DONE, LOST = "idle", "in progress", "switched", "done", "lost"

STATES = (
    State(
        IDLE,
        'none, or "done" of an undo',
        "The identity it had, whole; what lies in free ring space does not count.",
        "clean",
    ),
    State(
        IN_PROGRESS,
        '"in progress"',
        "The old identity; volumes may be half rewritten, and the journal decides the new identity.",
        "unfinished",
    ),
    State(SWITCHED, '"switched"', "The new identity; its metadata lies in the second area.", "unfinished"),
    State(
        DONE,
        '"done"',
        "The new identity, its metadata where LVM put it; as long as the journal reads, it can be undone.",
        "resignatured",
    ),
    State(
        LOST,
        '"in progress", and the journal does not read',
        "The old identity; volumes may be half rewritten, and nothing tells what they held.",
        "unfinished",
    ),
)

CUT = "cut"
RECOVER = "recover"
UNDO = "undo"
OVERTAKEN = "LVM changes the volume group"
REUSED = "LVM reuses the journal's space"


def taken(step: Step) -> str:
    """The event that a step of a run is flushed."""
    return f"step {step.number}"


def of_an_undo(event: str) -> str:
    """The event where the run is an undo, and it does not lead where that of a resignature does."""
    return event + " of an undo"


#: an event that a state has no row for cannot be there, or is refused and changes nothing
TRANSITIONS = (
    Transition(IDLE, taken(steps.JOURNAL), IDLE),
    Transition(IDLE, CUT, IDLE),
    Transition(IDLE, taken(steps.MARK), IN_PROGRESS),
    Transition(IN_PROGRESS, taken(steps.CONTENTS), IN_PROGRESS),
    Transition(IN_PROGRESS, CUT, IN_PROGRESS),
    Transition(IN_PROGRESS, RECOVER, DONE),
    Transition(IN_PROGRESS, of_an_undo(RECOVER), IDLE),
    Transition(IN_PROGRESS, of_an_undo(RECOVER) + " that LVM has overtaken", DONE),  # the undo is taken back
    Transition(IN_PROGRESS, UNDO, IDLE),
    Transition(IN_PROGRESS, OVERTAKEN, IN_PROGRESS),  # `recover` is refused then, `undo` keeps LVM's change
    Transition(IN_PROGRESS, REUSED, LOST),
    Transition(IN_PROGRESS, taken(steps.COMMIT), SWITCHED),
    Transition(SWITCHED, taken(steps.HEADERS), SWITCHED),
    Transition(SWITCHED, CUT, SWITCHED),
    Transition(SWITCHED, RECOVER, DONE),
    Transition(SWITCHED, of_an_undo(RECOVER), IDLE),
    Transition(SWITCHED, UNDO, IDLE),
    Transition(SWITCHED, OVERTAKEN, SWITCHED),  # in the second area; `recover` brings that text back
    Transition(SWITCHED, taken(steps.FINAL), DONE),
    Transition(SWITCHED, of_an_undo(taken(steps.FINAL)), IDLE),
    Transition(DONE, UNDO, IDLE),  # by a run of its own, in the same steps
    Transition(DONE, of_an_undo(taken(steps.MARK)), IN_PROGRESS),
    Transition(DONE, OVERTAKEN, DONE),  # `undo` is refused from then on
    Transition(DONE, REUSED, DONE),
    Transition(LOST, UNDO, IDLE),  # only where no volume was rewritten yet; refused otherwise: take the clone again
)
