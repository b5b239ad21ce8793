# SPDX-License-Identifier: LGPL-2.1-only
"""The tables of the protocol are what the code does: its steps, in their order, and the states between them."""

import logging
import re
from itertools import islice

import pytest

from kit.crash import CrashDisk, garbage
from kit.cuts import cut_before, done, entropy, image, lvm_commit, recover, resignature, undo, with_new_volume
from relvmoiscsi import engine, report
from relvmoiscsi.device import Range
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.resignature.protocol import states
from relvmoiscsi.resignature.protocol.mark import DONE, KINDS, PHASES, UNDO
from relvmoiscsi.resignature.protocol.states import STATES, TRANSITIONS, Transition
from relvmoiscsi.resignature.protocol.steps import HEADERS, MARK, STEPS, WAY_BACK

pytestmark = pytest.mark.states

SHAPES = ["one VDI", "two areas", "second area ignored", "blocks of 4096"]
RUNS = {"resignature": resignature, "undo": undo}
#: what a run begins from, by its kind
BEGINNING = {"resignature": states.IDLE, "undo": states.DONE}


def base(name, kind):
    """A LUN that a run of this kind can begin on."""
    return image(name) if kind == "resignature" else done(image(name))


def logged(caplog, act, *arguments):
    """The steps that a run logs: (number, of, name)."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "relvmoiscsi.resignature.writing.apply"):
        act(*arguments)
    found = [re.match(r"step (\d) of (\d): (.*), \d+ writes to ", record.getMessage()) for record in caplog.records]
    return [(int(line.group(1)), int(line.group(2)), line.group(3)) for line in found if line]


def in_log(steps):
    return [(step.number, len(STEPS), step.name) for step in steps]


def state_of(disk):
    """The state of a run, by what the label and the journal say."""
    found = engine.inspect(disk)
    tail = found.tail
    if tail is None or (tail.phase == DONE and tail.kind == UNDO):
        state = states.IDLE
    elif tail.phase != DONE and found.run is None:
        state = states.LOST
    else:
        state = PHASES[tail.phase]
    assert found.state == next(each.shown for each in STATES if each.name == state)
    return state


def becomes(state, event, kind="resignature"):
    """Where the table leads; a row for an undo comes first where the run is one."""
    if kind == "undo":
        found = [row.becomes for row in TRANSITIONS if row[:2] == (state, states.of_an_undo(event))]
        if found:
            return found[0]
    (found,) = [row.becomes for row in TRANSITIONS if row[:2] == (state, event)]
    return found


def after_steps(number, kind):
    """The state once so many steps are flushed. The first one of an undo changes nothing."""
    state = BEGINNING[kind]
    for step in STEPS[:number]:
        if state != states.DONE or step.number > 1:
            state = becomes(state, states.taken(step), kind)
    return state


# --- the tables themselves


def test_steps_are_numbered_from_one():
    assert [step.number for step in STEPS] == [1, 2, 3, 4, 5, 6]
    assert [step.number for step in WAY_BACK] == [1, 2]


def test_every_state_is_reached_and_every_name_is_one():
    names = {state.name for state in STATES}

    assert {row.state for row in TRANSITIONS} | {row.becomes for row in TRANSITIONS} == names
    assert {row.becomes for row in TRANSITIONS if row.state != row.becomes} == names
    assert len(names) == len(STATES)


def test_an_event_leads_from_a_state_to_one_other():
    assert len({row[:2] for row in TRANSITIONS}) == len(TRANSITIONS)


def test_a_run_walks_through_all_phases_of_the_label():
    assert [after_steps(number, "resignature") for number in range(7)] == [
        "idle", "idle", "in progress", "in progress", "switched", "switched", "done"]  # fmt: skip
    assert after_steps(6, "undo") == "idle"


# --- what is executed


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_takes_the_steps_of_the_table_in_order_and_flushes_once_each(caplog, kind):
    crash = CrashDisk(base("one VDI", kind))

    steps = logged(caplog, RUNS[kind], crash)

    assert steps == in_log(STEPS)
    assert crash.flushes == len(STEPS)


@pytest.mark.parametrize("name", ["one VDI", "two areas", "second area ignored"])
def test_a_dry_run_reports_what_each_step_then_writes(name):
    crash = CrashDisk(image(name))
    prepared = engine.prepare(crash, entropy(0))
    rows = iter(report.plan_facts(prepared.plan))

    engine.resignature(crash, prepared)

    for step, group in zip(STEPS, crash.groups):
        ranges = [Range(row["offset"], row["length"]) for row in islice(rows, len(prepared.plan.writes_of(step)))]
        written = {block.offset for block in group}
        allowed = {at for part in ranges for at in range(part.offset, part.end, 512)}
        assert written <= allowed, step
        assert all(any(part.offset <= at < part.end for at in written) for part in ranges), step
    assert list(rows) == []


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
def test_recovery_takes_the_steps_that_are_left(caplog, kind, number):
    """The contents may be half written, so they are written again; after the commit headers and label are."""
    disk = cut_before(base("one VDI", kind), number + 1, run=RUNS[kind])
    left = STEPS[MARK.number :] if after_steps(number, kind) == states.IN_PROGRESS else STEPS[HEADERS.number - 1 :]

    assert logged(caplog, recover, disk) == in_log(left)


def test_taking_back_goes_the_way_back(caplog):
    assert logged(caplog, undo, cut_before(image("one VDI"), 4)) == in_log(WAY_BACK)


# --- the states between the steps


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("number", range(len(STEPS)))
def test_a_cut_after_a_step_shows_the_state_of_the_table(name, kind, number):
    disk = cut_before(base(name, kind), number + 1, run=RUNS[kind])

    assert state_of(disk) == after_steps(number, kind)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_cut_within_a_step_shows_the_state_before_it_or_after_it(name, kind):
    crash = CrashDisk(base(name, kind))
    RUNS[kind](crash)

    seen = set()
    for number in range(len(STEPS)):
        allowed = {after_steps(number, kind), after_steps(number + 1, kind)}
        for blocks in range(len(crash.groups[number]) + 1):
            state = state_of(cut_before(crash.base, number + 1, run=RUNS[kind], blocks=blocks))
            assert state in allowed, (number, blocks)
            seen.add(state)

    assert seen == {BEGINNING[kind], states.IN_PROGRESS, states.SWITCHED, after_steps(len(STEPS), kind)}


@pytest.mark.parametrize("event", [states.RECOVER, states.UNDO])
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_recover_and_undo_lead_where_the_table_says(event, kind, number):
    disk = cut_before(base("two areas", kind), number + 1, run=RUNS[kind])
    expected = becomes(state_of(disk), event, kind)

    (recover if event == states.RECOVER else undo)(disk)

    assert state_of(disk) == expected


def test_undo_of_a_run_that_is_done_leads_where_the_table_says():
    disk = done(image("one VDI"))
    assert state_of(disk) == states.DONE

    undo(disk)

    assert state_of(disk) == becomes(states.DONE, states.UNDO)


# --- LVM in between


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("number", [3, 4])
def test_what_lvm_changes_does_not_change_the_state(kind, number):
    disk = cut_before(base("a chain", kind), number + 1, run=RUNS[kind])
    state = state_of(disk)

    lvm_commit(disk, with_new_volume)

    assert state_of(disk) == becomes(state, states.OVERTAKEN)


def test_an_undo_that_lvm_has_overtaken_leads_back():
    disk = cut_before(done(image("a chain")), 4, run=undo)
    lvm_commit(disk, with_new_volume)

    recover(disk)

    assert Transition(states.IN_PROGRESS, "recover of an undo that LVM has overtaken", state_of(disk)) in TRANSITIONS


def over_the_journal(disk):
    """LVM has used its space: nothing of the journal reads any more."""
    tail = engine.inspect(disk).tail
    disk.poke(tail.journal_offset, garbage(0, 512))


@pytest.mark.parametrize("number", [2, 3])
def test_an_unfinished_run_without_its_journal_is_lost(number):
    disk = cut_before(image("a chain"), number + 1)
    over_the_journal(disk)

    assert state_of(disk) == becomes(states.IN_PROGRESS, states.REUSED) == states.LOST
    with pytest.raises(RelvmoiscsiError):
        recover(disk)
    if number == 2:
        undo(disk)
        assert state_of(disk) == becomes(states.LOST, states.UNDO)
    else:
        with pytest.raises(RelvmoiscsiError):
            undo(disk)
        assert state_of(disk) == states.LOST


def test_a_run_that_is_done_stays_so_without_its_journal():
    disk = done(image("a chain"))
    over_the_journal(disk)

    assert state_of(disk) == becomes(states.DONE, states.REUSED)


def test_the_kinds_of_runs_are_these():
    assert set(KINDS.values()) == set(RUNS)
