# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create while something breaks: the driver, the target, the LUN, iscsid. Another call, or a person, finishes it."""

import json
import os
import signal
import sys

import pytest

from kit.lab import initiator
from kit.lab.command import run, until
from kit.lab.xapi import (
    SUCCESS,
    TOP,
    Call,
    chosen,
    created,
)
from kit.reader import read_sr
from kit.sparse import SparseDisk

STEPS = [f"step {number} of 6" for number in range(1, 7)]
#: empty files that nobody holds; LVM removes them when it locks the next time
LOCKS_OF_A_KILLED_CALL = ["files:/run/lock/lvm/*"]


@pytest.fixture
def slow_clone(lab, image):
    return lab.lun(image.clone("slow.img"), breakable=True)


def sr_of(lun):
    """The SR on a LUN, by the tests' own reader."""
    return read_sr(SparseDisk.from_file(lun.path))


def planned(lun):
    """The SR that an unfinished run is to make of a LUN, as `show` tells it; None where there is none."""
    argv = (sys.executable, "-m", "relvmoiscsi", "show", "--json", lun.path)
    facts = json.loads(run(*argv, env={"PYTHONPATH": TOP}, check=False).out)
    return facts.get("run", {}).get("sr", {}).get("new")


def killed(call, step):
    """The driver of a call, killed when it has begun a step. False if it was faster."""
    pid = call.reach(step)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def is_failure(answer):
    return answer[0].startswith("SR_BACKEND_FAILURE_") and "successfully resigned" not in str(answer)


@pytest.fixture
def lab_of_kills(lab):
    """Takes away the empty lock files that a killed call has left."""
    before = set(os.listdir("/run/lock/lvm"))
    yield lab
    for name in set(os.listdir("/run/lock/lvm")) - before:
        os.unlink(os.path.join("/run/lock/lvm", name))


# -- the driver is killed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["logging in to", STEPS[1], STEPS[4], "logging out"])  # another: below
def test_a_killed_call_is_finished_by_the_next(lab_of_kills, lab, pool, image, slow_clone, moment):
    copies = lab.target(slow_clone)
    before = lab.world()
    slow_clone.slow(100)

    call = Call(lab, pool, copies, slow_clone)
    killed(call, moment)
    call.end()
    slow_clone.heal()
    first = planned(slow_clone)

    assert created(pool, copies, slow_clone) == SUCCESS
    assert before.diff(lab.world(), except_for=LOCKS_OF_A_KILLED_CALL) == []
    assert chosen(lab) == {sr_of(slow_clone).uuid}
    if moment in STEPS[2:]:
        assert chosen(lab) == {first}, "the second call kept the first one's choice"
    assert lab.probe(copies, slow_clone).problems == ()


@pytest.mark.parametrize("step", [STEPS[4]])
def test_a_person_finishes_a_killed_call_with_the_command(lab_of_kills, lab, pool, image, slow_clone, step):
    copies = lab.target(slow_clone)
    slow_clone.slow(100)
    call = Call(lab, pool, copies, slow_clone)
    assert killed(call, step)
    call.end()
    slow_clone.heal()
    device = initiator.device_of(slow_clone.scsi_id)
    first = planned(slow_clone)

    argv = (sys.executable, "-m", "relvmoiscsi", "recover", "--yes", device)
    recovered = run(*argv, env={"PYTHONPATH": TOP}, check=False)

    assert recovered.status == 0, recovered
    assert created(pool, copies, slow_clone) == SUCCESS
    assert chosen(lab) == {first} == {sr_of(slow_clone).uuid}


def test_a_copy_of_a_lun_that_was_cut_is_a_clone_of_its_own(lab_of_kills, lab, pool, image, slow_clone):
    copies = lab.target(slow_clone)
    slow_clone.slow(100)
    call = Call(lab, pool, copies, slow_clone)
    assert killed(call, STEPS[3])
    call.end()
    slow_clone.heal()
    copy = lab.lun(type(image)(slow_clone.path).clone("copy.img"))
    further = lab.target(copy)

    assert created(pool, further, copy) == SUCCESS
    assert created(pool, copies, slow_clone) == SUCCESS

    first, second = lab.probe(copies, slow_clone), lab.probe(further, copy)
    assert first.problems == second.problems == ()
    assert len({image.sr.uuid, first.sr_uuid, second.sr_uuid}) == 3
    assert not {vdi.uuid for vdi in first.vdis} & {vdi.uuid for vdi in second.vdis}


# -- the target goes away -----------------------------------------------------------------------------------------


def test_a_target_that_is_disabled_during_the_writes(lab, pool, image, slow_clone):
    copies = lab.target(slow_clone)
    before = lab.world()
    slow_clone.slow(200)
    call = Call(lab, pool, copies, slow_clone)
    call.reach(STEPS[3])  # half a minute; writes_that_fail has an earlier step as well

    copies.disable()
    failed = call.end(58)  # CloudStack waits for 60 seconds

    assert is_failure(failed), failed
    assert before.diff(lab.world()) == []
    slow_clone.heal()
    copies.enable()
    assert created(pool, copies, slow_clone) == SUCCESS
    assert before.diff(lab.world()) == []
    assert lab.probe(copies, slow_clone).problems == ()


def test_a_lun_that_is_unmapped_during_the_writes(lab, pool, image, slow_clone):
    copies = lab.target(slow_clone)
    before = lab.world()
    slow_clone.slow(200)
    call = Call(lab, pool, copies, slow_clone)
    call.reach(STEPS[2])

    copies.remove_lun(slow_clone)
    failed = call.end(58)

    assert is_failure(failed), failed
    assert before.diff(lab.world()) == []
    copies.add_lun(slow_clone)
    slow_clone.heal()
    assert created(pool, copies, slow_clone) == SUCCESS
    assert lab.probe(copies, slow_clone).problems == ()


@pytest.mark.parametrize("step", [STEPS[0], STEPS[3]])
def test_writes_that_fail(lab, pool, image, slow_clone, step):
    copies = lab.target(slow_clone)
    before = lab.world()
    slow_clone.slow(100)
    call = Call(lab, pool, copies, slow_clone)
    call.reach(step)

    slow_clone.fail_writes()
    failed = call.end(58)

    assert is_failure(failed), failed
    assert before.diff(lab.world()) == []
    slow_clone.heal()
    assert created(pool, copies, slow_clone) == SUCCESS
    assert lab.probe(copies, slow_clone).problems == ()


def test_a_lun_that_answers_nothing_for_some_seconds(lab, pool, slow_clone):
    copies = lab.target(slow_clone)
    slow_clone.slow(100)

    with lab.untouched():
        call = Call(lab, pool, copies, slow_clone)
        call.reach(STEPS[2])
        slow_clone.freeze()
        call.join(4)
        assert call.answer is None
        slow_clone.heal()
        assert call.end() == SUCCESS

    assert lab.probe(copies, slow_clone).problems == ()


# -- iscsid goes away ---------------------------------------------------------------------------------------------


def test_iscsid_killed_during_the_writes_and_started_again(lab, pool, slow_clone):
    copies = lab.target(slow_clone)
    slow_clone.slow(200)

    with lab.untouched(except_for=["processes"]):
        call = Call(lab, pool, copies, slow_clone)
        call.reach(STEPS[1])
        lab.iscsid.kill()
        call.reach("logging out")
        lab.iscsid.start()
        assert call.end() == SUCCESS

    assert lab.probe(copies, slow_clone).problems == ()


def test_an_iscsid_that_does_not_run_is_started(lab, pool, slow_clone):
    copies = lab.target(slow_clone)
    lab.iscsid.kill()

    answer = created(pool, copies, slow_clone)

    run("pkill", "-x", "iscsid")
    until(lambda: run("pgrep", "-x", "iscsid", check=False).status, "the started iscsid has ended")
    run("rm", "-f", "/run/iscsid.pid")
    lab.iscsid.start()
    assert answer == SUCCESS
    assert any("starting iscsid" in line for line in lab.smlog())


# -- the caller gives up --------------------------------------------------------------------------------------------


def test_a_call_that_was_given_up_may_come_again_while_the_first_still_runs(lab, pool, slow_clone):
    """CloudStack's time-out does not end the driver; the second call waits for the first."""
    copies = lab.target(slow_clone)
    slow_clone.slow(300)

    with lab.untouched():
        first = Call(lab, pool, copies, slow_clone)
        first.reach(STEPS[0])
        second = Call(lab, pool, copies, slow_clone)
        slow_clone.heal()
        assert (first.end(), second.end()) == (SUCCESS, SUCCESS)

    assert chosen(lab) == {sr_of(slow_clone).uuid}
