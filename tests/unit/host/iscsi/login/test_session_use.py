# SPDX-License-Identifier: LGPL-2.1-only
"""A session that was there is used and left; whoever goes last ends what is ours to end."""

import os
import shutil

import pytest

from kit.iscsi_runs import (
    ALICE,
    OURS,
    PLAIN_RECORD,
    THEIRS,
    put_user,
    reference,
    sids,
    use_by_sm,
)
from kit.iscsi_world import (
    CHAP_IQN,
    IQN,
    PORTAL,
    put,
    put_session,
    remove_session,
    transcript,
)
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi.notes import dead_notes
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.status import IscsiFailed

# --- sessions that were there


def test_a_session_that_was_there_is_used_and_left(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    before = world.tree()

    login = iscsi.login(PORTAL, IQN, ALICE, user=OURS)
    assert (login.created, login.session.sid) == (False, 4)
    assert reference(world) == [THEIRS, OURS]
    assert iscsi.logout(login) is False

    assert reference(world) == [THEIRS]
    assert sids(world) == [4]
    assert world.calls == []
    remains = world.tree()
    path = "var/run/sr-ref/" + IQN
    assert remains.pop(path)[1].split() == before.pop(path)[1].split()
    assert remains == before


def test_a_session_to_another_portal_is_not_ours_to_use(world, iscsi):
    put_session(world.root, 4, portal=Portal("127.0.0.1", 3261))
    world.sid = 4

    login = iscsi.login(PORTAL, IQN)

    assert (login.created, login.session.sid) == (True, 5)
    assert iscsi.logout(login) and sids(world) == [4]


def test_a_session_that_lost_its_target_is_none_to_use(world, iscsi):
    put_session(world.root, 4, state="FAILED")
    before = world.tree()

    with pytest.raises(NotFound, match="session 4 .* has lost its target .it is FAILED") as caught:
        iscsi.login(PORTAL, IQN, user=OURS)

    assert caught.value.sm_key == "ISCSIDevice"
    assert world.calls == [] and sids(world) == [4]
    assert world.tree() == before


@pytest.mark.parametrize(
    "state, luns, seconds",
    [("FREE", (0, 1), 2), ("FAILED", (0, 1), 5), ("FREE", (), 20)],
    ids=["lost for long", "just lost", "coming"],
)
def test_a_session_that_is_lost_for_long_is_not_waited_for_as_if_it_came(
    world, iscsi, clock, monkeypatch, state, luns, seconds
):
    """The kernel says FREE of both; what was there has LUNs."""
    put_session(world.root, 4, state=state, luns=luns)
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 5)
    monkeypatch.setattr(iscsi_module, "_GOING_SECONDS", 2)

    def wait_for(condition, limit):
        if not condition():
            clock.now += limit

    monkeypatch.setattr(iscsi_module, "wait_for", wait_for)
    began = clock.now
    with pytest.raises(NotFound, match=f"session 4 .* has lost its target .it is {state}"):
        iscsi.login(PORTAL, IQN, user=OURS)

    assert seconds <= clock.now - began <= seconds + 2
    assert sids(world) == [4]


def test_a_session_that_finds_its_target_again_is_used(world, iscsi, monkeypatch):
    put_session(world.root, 4, state="FAILED")
    monkeypatch.setattr(iscsi_module, "_RETURN_SECONDS", 60)

    def back(condition, _seconds):
        put_session(world.root, 4)
        return condition()

    monkeypatch.setattr(iscsi_module, "wait_for", back)

    assert iscsi.login(PORTAL, IQN).session.sid == 4


def test_a_reference_file_that_cannot_be_used_ends_it(world, iscsi):
    put_session(world.root, 4)
    os.makedirs(os.path.join(world.root, "var/run/sr-ref", IQN))

    with pytest.raises(Refused) as caught:
        iscsi.login(PORTAL, IQN, user=OURS)
    assert caught.value.sm_key == "LVMRefCount"


def test_a_session_that_sm_uses_meanwhile_is_left_to_it(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert sids(world) == [1] and reference(world) == [THEIRS]
    assert list(world.records()) == [PLAIN_RECORD.format(IQN)]

    # SM ends it some day; what is left of ours goes with the next run.
    remove_session(world.root, 1)
    shutil.rmtree(os.path.join(world.root, "var/run/sr-ref"))
    iscsi.recover()
    assert world.records() == {} and not os.path.exists(os.path.join(world.root, "var/lib/relvmoiscsi"))


def leave_as_sm_does(world, iqn=IQN):
    """SM detaches its only SR: its line goes, and the session stays as long as another line is there."""
    path = os.path.join(world.root, "var/run/sr-ref", iqn)
    with open(path) as file:
        left = [line for line in file.read().split() if line != THEIRS]
    assert left, "SM would have logged out"
    put(world.root, "var/run/sr-ref/" + iqn, "".join(line + "\n" for line in left), 0o644)


def test_who_removes_the_last_line_ends_the_sessions_that_sm_has_left(world, iscsi):
    put_session(world.root, 4)
    put_session(world.root, 5, portal=Portal("127.0.0.2", 3260))
    put_session(world.root, 6, CHAP_IQN)
    use_by_sm(world)

    login = iscsi.login(PORTAL, IQN, user=OURS)
    leave_as_sm_does(world)
    assert iscsi.logout(login) is True

    assert sids(world) == [6]
    assert reference(world) is None and dead_notes(world.host) == []


def test_a_session_that_sm_has_left_and_somebody_uses_stays(world, iscsi, no_patience, caplog):
    device = put_session(world.root, 1)
    use_by_sm(world)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_user(world, device, "swap")
    leave_as_sm_does(world)

    assert iscsi.logout(login) is False
    assert sids(world) == [1] and "stays, as its disks are in use" in caplog.text


def test_of_several_runs_the_last_one_ends_what_sm_has_left(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    first = iscsi.login(PORTAL, IQN, user=OURS)
    leave_as_sm_does(world)
    second = iscsi.login(PORTAL, IQN, user="third")

    assert iscsi.logout(first) is False and sids(world) == [4]
    assert iscsi.logout(second) is True and sids(world) == []
    assert dead_notes(world.host) == []


def test_a_run_that_was_killed_ends_what_sm_has_left_by_the_next_one(world, iscsi):
    put_session(world.root, 4)
    use_by_sm(world)
    iscsi.login(PORTAL, IQN, user=OURS).note.close()
    leave_as_sm_does(world)

    iscsi.recover()

    assert sids(world) == [] and reference(world) is None


def test_a_session_that_never_had_a_line_of_sm_outlives_all_runs(world, iscsi):
    put_session(world.root, 4)
    first = iscsi.login(PORTAL, IQN, user=OURS)
    second = iscsi.login(PORTAL, IQN, user="third")

    assert iscsi.logout(first) is False and iscsi.logout(second) is False
    assert sids(world) == [4] and dead_notes(world.host) == []


def test_of_two_runs_the_last_one_logs_out(world, iscsi):
    before = world.tree()
    first = iscsi.login(PORTAL, IQN, user=OURS)
    second = iscsi.login(PORTAL, IQN, user=THEIRS)

    assert (first.created, second.created) == (True, False)
    assert iscsi.logout(first) is False and sids(world) == [1]
    assert iscsi.logout(second) is True and sids(world) == []
    assert world.tree() == before


def test_a_session_that_has_ended_needs_no_logout(world, iscsi):
    before = world.tree()
    login = iscsi.login(PORTAL, IQN, user=OURS)
    remove_session(world.root, 1)
    calls = len(world.calls)

    assert iscsi.logout(login) is True
    assert len(world.calls) == calls
    assert world.tree() == before


def test_a_session_with_our_number_to_another_target_is_not_ours(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    remove_session(world.root, 1)
    put_session(world.root, 1, CHAP_IQN)

    iscsi.logout(login)

    assert sids(world) == [1]


# --- logouts that fail


def test_a_logout_that_fails_is_an_error_and_is_tried_again_by_the_next_run(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    world.answers["logout"] = lambda argv: (10, "", "iscsiadm: no\n")

    with pytest.raises(IscsiFailed, match="The logout of session 1 .* failed: the logout failed") as caught:
        iscsi.logout(login)
    assert caught.value.sm_key == "ISCSILogout"
    login.note.close()

    del world.answers["logout"]
    iscsi.recover()
    assert sids(world) == [] and world.records() == {} and reference(world) is None


@pytest.mark.parametrize(
    "label", ["iscsid killed: logout without iscsid", "iscsid killed: logout after restart without record"]
)
def test_an_iscsid_that_is_not_ready_is_started_and_asked_again(world, iscsi, label):
    login = iscsi.login(PORTAL, IQN)
    world.daemon(False)
    answers = [label, label, "logout by sid"]

    def logout(argv):
        name = answers.pop(0)
        world.answers["logout"] = name if name == "logout by sid" else logout
        return world.answer(argv) if name == "logout by sid" else transcript(name)

    world.answers["logout"] = logout
    assert iscsi.logout(login) is True
    assert answers == [] and ("systemctl", "start", "iscsid.service") in world.calls


def test_an_iscsid_that_never_gets_ready_is_an_error(world, iscsi, quick):
    login = iscsi.login(PORTAL, IQN)
    world.answers["logout"] = "iscsid killed: logout after restart without record"

    with pytest.raises(IscsiFailed, match="has lost its target"):
        iscsi.logout(login)


def test_a_logout_that_finds_the_session_gone_is_fine(world, iscsi):
    login = iscsi.login(PORTAL, IQN)

    def gone(argv):
        remove_session(world.root, 1)
        return transcript("logout by sid again")

    world.answers["logout"] = gone
    assert iscsi.logout(login) is True


def test_a_logout_without_effect_is_an_error(world, iscsi, quick):
    login = iscsi.login(PORTAL, IQN)
    world.answers["logout"] = lambda argv: (0, "", "")

    with pytest.raises(Refused, match="it is still there") as caught:
        iscsi.logout(login)
    assert caught.value.sm_key == "ISCSILogout"
