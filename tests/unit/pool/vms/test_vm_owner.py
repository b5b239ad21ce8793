# SPDX-License-Identifier: LGPL-2.1-only
"""Two runs with one VM at once: one works. One that was cut is passed over, and one that was slow does no harm."""

import os
import signal

import pytest

from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import home, inventory, keep, owner, restore

pytestmark = pytest.mark.states

TURN = "relvmoiscsi:restore-run:"


def bring_back(day, devices=(), **more):
    with connect(day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        copy = inventory.copy_of(pool, found, day.sr)
        return restore.restore(calls, day.web, restore.plan(found, copy, day.web, devices, "then"), **more)


def undo(day, **more):
    with connect(day.lab.where()) as calls:
        return restore.undo(calls, day.web, **more)


def take_home(day):
    with connect(day.lab.where()) as calls:
        return home.home(calls, day.web)


def leave(day):
    with connect(day.lab.where()) as calls:
        return keep.keep(calls, day.web)


@pytest.fixture
def halted(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    return day


def at(day, method, number, work):
    """Does `work` just before the call of this method with this number, counted from 1, once."""
    seen = []

    def before(name, _params):
        if name in (method, "Async." + method):
            seen.append(name)
            if len(seen) == number:
                day.lab.pool.api.before = None
                work()

    day.lab.pool.api.before = before


def die_at(day, method, number):
    seen = []

    def before(name, _params):
        if name in (method, "Async." + method):
            seen.append(name)
        if len(seen) >= number:
            raise GoneAway()

    day.lab.pool.api.before = before


def kinds(day):
    """Which SRs the disks of the VM are on; one of two may be missing."""
    disks = [sr for sr, _ in day.lab.disks_of(day.web).values()]
    return sorted("copy" if sr == day.sr else "own" for sr in disks)


def marks(day):
    return [key for key in day.db.get("VM", day.web, "other_config") if key.startswith("relvmoiscsi:restore")]


def is_sound(day):
    """Nobody may start a VM half of today and half of yesterday, nor one on a copy that nothing holds."""
    found, blocked = kinds(day), day.db.get("VM", day.web, "blocked_operations")
    is_held = inventory.is_restored(day.db.record("VM", day.web))
    return blocked or found == ["own", "own"] or found == ["copy", "copy"] and is_held


def alive(day):
    day.lab.pool.api.before = None


# --- one turn


@pytest.mark.parametrize("other", [undo, bring_back, leave], ids=["undo", "restore", "keep"])
def test_while_one_is_at_work_the_other_is_refused_and_changes_nothing(halted, monkeypatch, other):
    """It shows as soon as something happens with the VM: here its own journal."""
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 60.0)
    told = []

    def meanwhile():
        def goes_on(_seconds):
            halted.db.set(
                "VM", halted.web, "other_config", {**halted.db.get("VM", halted.web, "other_config"), "x": "y"}
            )

        monkeypatch.setattr(owner.time, "sleep", goes_on)
        with pytest.raises(Refused, match="Another run works on the VM 'web' as well") as refused:
            other(halted)
        told.append(refused)

    at(halted, "VBD.destroy", 2, meanwhile)
    assert bring_back(halted).status == "restored" and told
    assert kinds(halted) == ["copy", "copy"] and not halted.db.get("VM", halted.web, "blocked_operations")


def test_of_two_that_begin_at_the_same_moment_one_is_refused(halted):
    """xapi adds no key that is there."""

    def first():
        with pytest.raises(Refused, match="Another run works"):
            bring_back(halted)

    def takes():
        halted.db.set("VM", halted.web, "other_config", turn)

    turn = {TURN + "1": halted.db.get("VM", halted.web, "uuid") + " another"}
    at(halted, "VM.add_to_other_config", 1, takes)
    first()
    assert kinds(halted) == ["own", "own"] and marks(halted) == [TURN + "1"]


def test_what_was_cut_and_was_ended_by_a_third_meanwhile(halted):
    """It has looked, and then another has ended that; its number is not to count then."""
    uuid = halted.db.get("VM", halted.web, "uuid")
    halted.db.set("VM", halted.web, "other_config", {TURN + "1": uuid + " dead"})

    def others():
        halted.db.set("VM", halted.web, "other_config", {TURN + "1": uuid + " alive"})

    at(halted, "VM.add_to_other_config", 1, others)
    with pytest.raises(Refused, match="Another run works"):
        bring_back(halted)
    assert halted.db.get("VM", halted.web, "other_config") == {TURN + "1": uuid + " alive"}


def test_the_turn_of_the_vm_that_this_was_copied_from_is_none(halted):
    mine = {"a": "b", TURN + "1": "another VM", TURN + "x": "no number"}
    halted.db.set("VM", halted.web, "other_config", mine)
    bring_back(halted)
    undo(halted)
    assert halted.db.get("VM", halted.web, "other_config") == mine


def test_a_person_is_told_before_that_a_run_was_begun(halted):
    die_at(halted, "VBD.destroy", 2)
    with pytest.raises(PoolFailure):
        bring_back(halted)
    alive(halted)
    with connect(halted.lab.where()) as calls:
        (note,) = restore.would_undo(calls, halted.web).notes
    assert note.startswith("Another run has begun with this VM and has not ended")


def test_xapi_is_at_work_for_the_other_run(halted):
    bring_back(halted)
    die_at(halted, "VDI.pool_migrate", 1)
    with pytest.raises(PoolFailure):
        take_home(halted)
    alive(halted)
    halted.db.set("VM", halted.web, "current_operations", {"OpaqueRef:1": "migrate_send"})
    with pytest.raises(Refused, match="The pool is busy with the VM"):
        undo(halted)


def test_a_run_that_is_refused_keeps_nobody_waiting(halted, monkeypatch):
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 600.0)
    bring_back(halted)
    api = halted.lab.pool.api
    at(halted, "VM.add_to_blocked_operations", 1, lambda: api.vms.vm_start("", halted.web))
    with pytest.raises(Refused, match="is not halted but running"):
        undo(halted)
    api.vms.vm_hard_shutdown("", halted.web)
    assert undo(halted).status == "undone"


# --- one that is slow, and was taken for dead


@pytest.mark.parametrize(
    "method, number", [("VBD.destroy", 1), ("VBD.destroy", 2), ("VBD.create", 1), ("VBD.create", 2)]
)
@pytest.mark.parametrize(
    "first, other", [(bring_back, undo), (undo, bring_back)], ids=["restore, undo", "undo, restore"]
)
def test_a_slow_run_does_no_harm_to_the_one_after_it(halted, first, other, method, number):
    """The other goes through between two calls of the first, whose next one comes too late."""
    if first is undo:
        bring_back(halted)
    ended = []
    at(halted, method, number, lambda: ended.append(other(halted).status))
    with pytest.raises(Refused, match="Another run"):
        first(halted)
    assert ended == ["undone" if other is undo else "restored"]
    assert is_sound(halted) and kinds(halted) == [{"undone": "own", "restored": "copy"}[ended[0]]] * 2
    other(halted) if other is bring_back else bring_back(halted)  # nothing is in the way of another
    undo(halted)
    assert kinds(halted) == ["own", "own"] and not marks(halted)


def test_two_disks_by_two_runs_do_not_end_each_others_standstill(halted):
    """The second is cut while a disk is missing: the first must not let the VM be started."""

    def the_second():
        die_at(halted, "VBD.create", 1)
        with pytest.raises(RelvmoiscsiError):
            bring_back(halted, ["1"])
        alive(halted)

    at(halted, "VBD.destroy", 1, the_second)
    with pytest.raises(Refused, match="Another run"):
        bring_back(halted, ["0"])
    assert is_sound(halted) and halted.db.get("VM", halted.web, "blocked_operations")
    assert bring_back(halted).status == "restored" and kinds(halted) == ["copy", "copy"]


def test_it_does_not_end_what_is_not_so(halted):
    """A disk that somebody has changed between the last swap and the end."""

    def changed():
        (vbd,) = halted.db.refs("VBD", VM=halted.web, userdevice="0")
        halted.db.set("VBD", vbd, "VDI", halted.lab.vdi("Testing", "data")[0])

    def after_the_last(name, _params):
        if halted.lab.pool.api.calls.count("VBD.create") == 2 and name != "VBD.create":
            halted.lab.pool.api.before = None
            changed()

    halted.lab.pool.api.before = after_the_last
    with pytest.raises(Refused, match="The disk 0 of the VM 'web' is not what it was") as refused:
        bring_back(halted)
    assert "nobody can start it" in str(refused.value) and halted.db.get("VM", halted.web, "blocked_operations")


def test_it_goes_no_further_where_the_vm_may_be_started(halted):
    at(halted, "VBD.create", 1, lambda: halted.db.set("VM", halted.web, "blocked_operations", {}))
    with pytest.raises(Refused, match="Somebody has allowed the VM 'web' to be started meanwhile"):
        bring_back(halted)
    assert undo(halted).status == "undone" and kinds(halted) == ["own", "own"]


@pytest.mark.parametrize("number", range(1, 6))
def test_undone_while_home_is_at_its_last_calls(halted, number):
    """What the VM has then is not said to be no longer needed."""
    bring_back(halted, ["0"])
    done = []

    def last(name, params):
        if name == "VM.add_to_other_config" and params[2].startswith("relvmoiscsi:restore-arrived"):
            at(halted, "VM.remove_from_other_config", number, lambda: done.append(undo(halted)))

    halted.lab.pool.api.before = last
    try:
        ended = take_home(halted)
    except Refused as refused:
        assert "Another run works" in str(refused)
        ended = None
    own = {uuid for _, uuid in halted.lab.disks_of(halted.web).values()}
    assert ended is None or not own & set(ended.waiting)


# --- what a run that ends in the middle says


@pytest.fixture
def interruptible():
    """A shell has its background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", ["gone", "another master", "a person"])
@pytest.mark.parametrize("work", [bring_back, undo], ids=["restore", "undo"])
def test_in_the_middle_it_says_what_the_vm_is_like_and_what_goes_on(halted, interruptible, work, error):
    if work is undo:
        bring_back(halted)
    seen = []

    def before(name, _params):
        seen.extend([name] if name == "VBD.destroy" else [])
        if len(seen) >= 2 and error != "a person":
            raise GoneAway() if error == "gone" else XenError("HOST_IS_SLAVE", "10.0.0.2")
        if len(seen) == 2:
            alive(halted)
            os.kill(os.getpid(), signal.SIGINT)

    halted.lab.pool.api.before = before
    with pytest.raises((PoolFailure, KeyboardInterrupt)) as ended:
        work(halted)
    alive(halted)
    said, uuid = str(ended.value), halted.db.get("VM", halted.web, "uuid")
    assert "Some disks of the VM 'web' may be swapped and others not; nobody can start it" in said
    assert "Run the same again, or `relvmoiscsi pool restore --undo " + uuid in said
    assert work(halted).status in ("restored", "undone")


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("field", ["VM.remove_from_other_config", "VM.remove_from_blocked_operations"])
def test_a_slow_undo_takes_no_journal_of_the_restore_after_it_away(halted, field, number):
    """It has found all as it should be, and is stopped while it ends: the other restores the VM meanwhile."""
    bring_back(halted)
    ended = []
    at(halted, field, number, lambda: ended.append(bring_back(halted).status))
    try:
        undo(halted)
    except Refused as refused:
        assert "Another run works" in str(refused)
    alive(halted)
    if ended:
        assert kinds(halted) == ["copy", "copy"]
        with connect(halted.lab.where()) as calls:
            assert len(restore.would_undo(calls, halted.web).disks) == 2
        undo(halted)
    assert kinds(halted) == ["own", "own"] and not marks(halted)


def test_the_pool_goes_away_at_the_very_last_call(halted):
    def before(name, params):
        if name == "VM.remove_from_other_config" and params[2].startswith(TURN):
            raise GoneAway()

    halted.lab.pool.api.before = before
    with pytest.raises(PoolFailure, match="went away during .* All else was done; the same again finds it so"):
        bring_back(halted)
    alive(halted)
    assert bring_back(halted).status == "restored" and not [key for key in marks(halted) if key.startswith(TURN)]
