# SPDX-License-Identifier: LGPL-2.1-only
"""The table of steps is what the code does, in its order. What a LUN is between them: writing/test_every_cut.py."""

import logging
import re

import pytest

from kit.crash import CrashDisk
from kit.cuts import (
    cut_before,
    done,
    image,
    recover,
    resignature,
    undo,
)
from relvmoiscsi.resignature.protocol.steps import COMMIT, STEPS, WAY_BACK

pytestmark = pytest.mark.states
RUNS = {"resignature": resignature, "undo": undo}


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


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_takes_the_steps_of_the_table_in_order_and_flushes_once_each(caplog, kind):
    crash = CrashDisk(base("one VDI", kind))

    steps = logged(caplog, RUNS[kind], crash)

    assert steps == in_log(STEPS)
    assert crash.flushes == len(STEPS)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_recovery_goes_back_before_the_commit_and_takes_the_steps_that_are_left_behind_it(caplog, kind, number):
    disk = cut_before(base("one VDI", kind), number + 1, run=RUNS[kind])
    left = WAY_BACK if number < COMMIT.number else STEPS[COMMIT.number :]

    assert logged(caplog, recover, disk.copy()) == in_log(left)
    if kind == "resignature" and left is WAY_BACK:
        assert logged(caplog, undo, disk) == in_log(left)
