# SPDX-License-Identifier: LGPL-2.1-only
"""What the guard of a driver's call asks the pool, in the process of the call and in a child that rewrites the LUN."""

import pytest

from kit.pool.database import Database
from kit.sr_states import ATTACHED, OTHER, SAME, State, name_of
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.locks.sm_locks import lvm_lock
from relvmoiscsi.host.own_process import run_in_child
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.guard import SM_LOCK, CallGuard
from relvmoiscsi.lun.users import Question

pytestmark = pytest.mark.processes

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"
SR = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"


class Asked(Database):
    """xapi, which counts what it was asked in this process."""

    count = 0

    def records(self, class_):
        self.count += 1
        return super().records(class_)


@pytest.fixture
def xapi():
    return Asked()


@pytest.fixture
def guard(xapi, tmp_path):
    asks = Question(SCSI_ID, look=lambda _path: None)
    return CallGuard(asks, xapi, Host(str(tmp_path)), [SM_LOCK], Deadline(0, state="Nothing was read."))


def put(state, xapi):
    """Give the pool the SR that is on the LUN."""
    hosts = [xapi.create("host", metrics=xapi.create("host_metrics", live=True)) for _ in range(2)]
    state.put(xapi, hosts, SR, SCSI_ID)


def answer(guard, work, in_child):
    """What a work says: "done", or the refusal of the guard."""
    try:
        if not in_child:
            return work()
        calls = (guard.hold, guard.verify_record)
        return run_in_child(lambda _begin: work(), NO_DEADLINE, "it was done", calls=calls)
    except RelvmoiscsiError as refused:
        return str(refused)


@pytest.mark.parametrize("in_child", [False, True], ids=["in the call", "in a child"])
@pytest.mark.parametrize("state", [State(ATTACHED, OTHER), State(ATTACHED, SAME)], ids=name_of)
def test_a_write_and_a_finished_run_are_two_questions_which_the_call_asks_xapi(guard, xapi, state, in_child):
    put(state, xapi)

    def write():
        with guard.held(["VG"], [SR]):
            return "done"

    written = answer(guard, write, in_child)
    before = xapi.count
    finished = answer(guard, lambda: guard.verify_finished(SR) or "done", in_child)

    assert 0 < before < xapi.count
    if state.is_written:
        assert written == "done"
    else:
        assert f"The LUN with the SCSIid {SCSI_ID} is in use in this pool." in written
    if state.is_believed:
        assert finished == "done"
    else:
        assert "which is not on this LUN" in finished and ". Nothing was written. " in finished


@pytest.mark.parametrize("in_child", [False, True], ids=["in the call", "in a child"])
def test_the_question_about_a_finished_run_waits_for_no_lock(guard, in_child):
    """Nothing is written. SM may hold its lock for minutes."""

    def write():
        with guard.held(["VG"], [SR]):
            return "done"

    with lvm_lock(guard._host):
        assert answer(guard, lambda: guard.verify_finished(SR) or "done", in_child) == "done"
        assert "is held by another run of relvmoiscsi" in answer(guard, write, in_child)
