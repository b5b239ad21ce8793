# SPDX-License-Identifier: LGPL-2.1-only
"""The table of steps is what the code does, in its order; and what a LUN is between them."""

import logging
import re

import pytest

from kit.crash import CrashDisk
from kit.cuts import (
    cut_before,
    done,
    image,
    recorded,
    recover,
    resignature,
    undo,
)
from kit.examples import some
from relvmoiscsi import engine
from relvmoiscsi.resignature.protocol.commit_record import DONE, IN_PROGRESS, KINDS, SWITCHED
from relvmoiscsi.resignature.protocol.steps import COMMIT, STEPS, WAY_BACK

pytestmark = pytest.mark.states

SHAPES = some(["one VDI", "two areas", "second area ignored", "blocks of 4096"], 3, lambda _name: "")
RUNS = {"resignature": resignature, "undo": undo}
#: what `inspect` calls a LUN without an unfinished run, before and after a run
ENDS = {"resignature": (engine.CLEAN, engine.RESIGNATURED), "undo": (engine.RESIGNATURED, engine.CLEAN)}
#: the phase in the label once so many steps are flushed; None: that of no run, or of one before
PHASES = (None, None, IN_PROGRESS, IN_PROGRESS, SWITCHED, SWITCHED, DONE)


def base(name, kind):
    """A LUN that a run of this kind can begin on."""
    return image(name) if kind == "resignature" else done(image(name))


def logged(caplog, act, *arguments):
    """The steps that a run logs: (number, of, name)."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "relvmoiscsi.resignature.writing.step"):
        act(*arguments)
    found = [re.match(r"step (\d) of (\d): (.*), \d+ writes to ", record.getMessage()) for record in caplog.records]
    return [(int(line.group(1)), int(line.group(2)), line.group(3)) for line in found if line]


def in_log(steps):
    return [(step.number, len(STEPS), step.name) for step in steps]


def phase_of(disk, kind):
    """The phase that the label gives a run of this kind; None where it speaks of no such run."""
    found = engine.inspect(disk)
    if found.commit_record is None or KINDS[found.commit_record.kind] != kind:
        return DONE if kind == "undo" and found.state == engine.CLEAN else None
    return found.commit_record.phase


def shown(number, kind):
    """What `inspect` calls a LUN once so many steps are flushed."""
    before, after = ENDS[kind]
    return {0: before, 1: before, len(STEPS): after}.get(number, engine.UNFINISHED)


# --- what is executed


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_takes_the_steps_of_the_table_in_order_and_flushes_once_each(caplog, kind):
    crash = CrashDisk(base("one VDI", kind))

    steps = logged(caplog, RUNS[kind], crash)

    assert steps == in_log(STEPS)
    assert crash.flushes == len(STEPS)


def test_the_log_says():
    """Scripts and people wait for these lines."""
    assert [f"step {step.number} of {len(STEPS)}: {step.name}" for step in STEPS] == [
        "step 1 of 6: journal and second metadata area",
        "step 2 of 6: label: in progress",
        "step 3 of 6: contents of volumes",
        "step 4 of 6: label: switched",
        "step 5 of 6: metadata area headers",
        "step 6 of 6: label: final",
    ]


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_recovery_goes_back_before_the_commit_and_takes_the_steps_that_are_left_behind_it(caplog, kind, number):
    disk = cut_before(base("one VDI", kind), number + 1, run=RUNS[kind])
    left = WAY_BACK if number < COMMIT.number else STEPS[COMMIT.number :]

    assert logged(caplog, recover, disk.copy()) == in_log(left)
    if kind == "resignature" and left is WAY_BACK:
        assert logged(caplog, undo, disk) == in_log(left)


# --- what a LUN is between the steps


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_cut_shows_in_the_label_as_one_before_its_step_or_after_it(name, kind):
    crash = recorded(base(name, kind), RUNS[kind])

    seen = set()
    for number in range(len(STEPS)):
        for blocks in range(len(crash.groups[number]) + 1):
            left = crash.after_group(number, blocks)
            phase = phase_of(left, kind)
            assert phase in PHASES[number : number + (2 if blocks else 1)], (number, blocks)
            assert blocks or engine.inspect(left).state == shown(number, kind), number
            seen.add(phase)

    assert seen == set(PHASES)
