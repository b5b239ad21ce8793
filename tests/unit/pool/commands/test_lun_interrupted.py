# SPDX-License-Identifier: LGPL-2.1-only
"""Ctrl-C, a kill, and a task that never ends, during `relvmoiscsi pool` on LUNs: what is said, and which lock stays."""

import re
import signal
import sys
import threading

import pytest

from kit.builder import build_sr
from kit.pool_fakes import until
from kit.pool_lab import IQN, TARGET, locks
from relvmoiscsi.pool import calls as pool_calls
from relvmoiscsi.pool import hosts, jobs
from relvmoiscsi.pool.commands import discard_command, lun_commands
from relvmoiscsi.pool.commands import pool_command as pool_command_module
from relvmoiscsi.pool.vms import forget


def states(ran):
    return {row["worked_on"]: (row["progress"], row["detail"]) for row in ran.json["so_far"]}


@pytest.mark.processes
def test_an_interrupted_run_gives_json_as_well(lab, pool_command, interrupts):
    interrupts(lab.pool, ("SR.get_all_records", 1))
    ran = pool_command("luns", "--json")
    error = ran.json["error"]
    assert (ran.status, error["class"], error["message"], ran.json["so_far"]) == (
        130,
        "Interrupted",
        "Interrupted.",
        [],
    )
    assert (error["disk_state"], error["advice"]) == ("Nothing was changed.", "Repeat the command.")


UNDER_WAY, NOT_BEGUN, INTRODUCED = "under way", ("not begun", None), ("partly done", "introduce: done")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("Async.SR.create", [INTRODUCED, (UNDER_WAY, "resignature"), NOT_BEGUN]),
        ("SR.introduce", [INTRODUCED, (UNDER_WAY, "introduce"), NOT_BEGUN]),
        ("Async.SR.scan", [("done", "attach"), (UNDER_WAY, "attach"), INTRODUCED]),
    ],
)
def test_attach_that_is_interrupted_says_how_far_each_lun_is(lab, pool_command, interrupts, method, expected):
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    words = ["attach", *clones, "--yes", "--jobs", "1"]
    interrupts(lab.pool, (method, 2))
    ran = pool_command(*words, "--json")
    assert ran.status == 130 and states(ran) == dict(zip(clones, expected))
    assert ran.json["error"]["advice"] == "Repeat the command to resume."
    assert "Repeat" not in ran.json["error"]["disk_state"]
    if method == "SR.introduce":
        interrupts(lab.pool, ("SR.introduce", 1))
        assert pool_command(*words).err.splitlines()[-1] == (
            f"relvmoiscsi: Interrupted. Done in part: {clones[0]} (introduce: done). Started; the pool may still "
            f"finish this work: {clones[1]} (introduce). Not started: {clones[2]}. Repeat the command to resume."
        )
    assert pool_command(*words).status == 0


@pytest.mark.processes
def test_a_discard_of_two_copies_that_is_interrupted_leaves_no_lock(lab, pool_command, interrupts):
    """The threads had the locks, and nobody waits for a thread: the repeated command was refused."""
    for name in ("Production", "Testing"):
        assert pool_command("attach", lab.clone(name), "--yes").status == 0
    interrupts(lab.pool, ("PBD.destroy", 1), number=signal.SIGTERM)
    ran = pool_command("discard", "--all", "--yes")
    assert ran.status == 130 and "Repeat the command to resume." in ran.err and locks(lab) == []
    assert pool_command("discard", "--all", "--yes").status == 0


WORK = ("SR.introduce", 1)
RELEASE = ("host.get_servertime", 3)  #: by the lock, at the beginning twice


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "moments"),
    [
        (signal.SIGINT, [WORK, ("host.get_servertime", 1)]),
        (signal.SIGINT, [RELEASE]),
        (signal.SIGTERM, [WORK]),
        (signal.SIGHUP, [WORK]),
    ],
)
def test_ctrl_c_at_any_time_a_kill_and_a_closed_terminal_leave_no_lock(
    lab, clone, pool_command, interrupts, number, moments
):
    """Of `timeout`, of systemd, of an SSH connection that was lost: what was done is said, and no lock stays."""
    before = signal.getsignal(number)
    interrupts(lab.pool, *moments, number=number)
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 130 and ("Repeat the command to resume." in ran.err or moments == [RELEASE])
    assert signal.getsignal(number) == before and locks(lab) == []
    assert pool_command("attach", clone, "--yes").status == 0


@pytest.fixture
def hung(lab, monkeypatch):
    """A task for this call stays pending, as behind a host that has died, until the end of the test."""
    release, start = threading.Event(), lab.pool.api._start

    def hang(method, begun=lambda: None):
        real = lab.answer(method, lambda *words: (release.wait(60), real(*words))[1])

        def started(name, function, params):
            lab.pool.api.tasks_end_at_once = name != "Async." + method
            if not lab.pool.api.tasks_end_at_once:
                begun()
            return start(name, function, params)

        lab.pool.api._start = started

    yield hang
    release.set()
    until(lambda: lab.pool.is_at_rest)


@pytest.mark.parametrize(
    ("method", "words"), [("PBD.plug", ["attach"]), ("SR.create", ["attach"]), ("PBD.unplug", ["discard"])]
)
def test_a_task_that_never_ends_ends_the_command_and_its_lock(
    lab, clone, pool_command, hung, monkeypatch, method, words
):
    monkeypatch.setattr(hosts, "MEMBER_SECONDS", 0.1)
    monkeypatch.setattr(forget, "MEMBER_SECONDS", 0.1)
    monkeypatch.setattr(pool_calls, "QUIET_SECONDS", 0.1)
    if words == ["discard"]:
        assert pool_command("attach", clone, "--yes", "--name", "a copy").status == 0
        clone = "a copy"
    hung(method)
    ran = pool_command(*words, clone, "--yes")
    text = ran.out + ran.err
    assert ran.status and re.search(method + r" (did not end within|made no progress for) 0 s and continues", text)
    (task,) = lab.pool.db.records("task", status="pending").values()
    assert f"`xe task-cancel uuid={task['uuid']}`" in text and locks(lab) == []


@pytest.mark.processes
def test_ctrl_c_ends_the_wait_for_a_task_that_never_ends_and_leaves_no_lock(lab, clone, pool_command, hung, interrupts):
    hung("PBD.plug", lambda: interrupts(lab.pool, ("event.from", 1)))
    ran = pool_command("attach", clone, "--yes")
    assert ran.status == 130 and "Repeat the command to resume." in ran.err and locks(lab) == []


@pytest.mark.processes
def test_several_at_once_that_are_interrupted(lab, pool_command, interrupts):
    """What comes of the others when the session has ended is not told: it is not known."""
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    interrupts(lab.pool, ("Async.PBD.plug", 2))
    found = states(pool_command("attach", *clones, "--yes", "--json"))
    assert set(found) == set(clones) and "failed" not in {state for state, _ in found.values()}


@pytest.mark.processes
def test_discard_that_is_interrupted_says_how_far_each_copy_is(lab, pool_command, interrupts, monkeypatch):
    monkeypatch.setattr(jobs, "MOST", 1)
    for name in ("Production", "Testing"):
        pool_command("attach", lab.clone(name), "--yes", "--name", "{sr} copy", "--leave-others")
    before = lab.pool.db.refs("SR")
    interrupts(lab.pool, ("SR.forget", 2))
    ran = pool_command("discard", "--all", "--yes", "--json")
    assert ran.status == 130 and len(lab.pool.db.refs("SR")) == len(before) - 1
    found = {name.split("'")[1]: state for name, (state, _) in states(ran).items()}
    assert found == {"Production copy": "done", "Testing copy": UNDER_WAY}
    assert pool_command("discard", "--all", "--yes").status == 0 and len(lab.pool.db.refs("SR")) == len(before) - 2


@pytest.mark.parametrize("words", [["attach", "--all"], ["discard", "--all"]])
def test_at_the_question_nothing_was_changed(lab, copy, pool_command, monkeypatch, type_in, words):
    lab.clone("Testing")
    before = lab.summary()

    def stopped(*_):
        raise KeyboardInterrupt

    for module in (lun_commands, discard_command):
        monkeypatch.setattr(module, "ask", stopped)
    type_in("")
    ran = pool_command(*words)
    assert (
        ran.status == 130 and ran.err.endswith("Nothing was changed. Repeat the command.\n") and lab.summary() == before
    )


@pytest.mark.states("method", few=1)
@pytest.mark.processes
@pytest.mark.parametrize("method", ["PBD.create", "Async.PBD.plug", "Async.SR.scan"])
@pytest.mark.parametrize(
    "words",
    [
        ["clone", "half", "web", "--isolated", "night", "--yes"],
        ["clone", "half", "--all", "--isolated", "night", "--yes"],
        ["restore", "half", "web", "--yes"],
        ["rescue", "half", "data", "--vm", "web", "--yes"],
        ["map", "half"],
    ],
    ids=" ".join,
)
def test_a_copy_that_lacks_its_scan_is_said_to_be_attached_by_half(lab, pool_command, interrupts, method, words):
    """The commands named the disks of the VM: a person took the snapshot for a wrong one, and discarded the copy."""
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    clone = lab.clone("Production")
    interrupts(lab.pool, (method, 1))
    assert pool_command("attach", clone, "--name", "half", "--yes").status == 130
    ran = pool_command(*words)
    assert ran.status == 4 and "no VDI of the copy 'half' (" in ran.err and "`attach` was interrupted" in ran.err

    (again,) = re.findall("Repeat `relvmoiscsi pool ([^`]*)`", ran.err)
    assert again == f"attach {clone}" and pool_command(*again.split(), "--yes").status == 0
    assert pool_command(*words).status == 0


def test_a_copy_of_an_empty_sr_is_not_said_to_be_attached_by_half(lab, pool_command):
    empty = lab.world.add(TARGET, IQN, build_sr([], seed="an empty SR").disk)
    attaching = ["attach", empty, "--foreign", "--leave-others", "--name", "nothing", "--yes"]
    assert pool_command(*attaching).status == 0
    ran = pool_command("map", "nothing")
    assert ran.status == 4 and "`attach` was interrupted, or the SR is empty" in ran.err
    (again,) = re.findall("Repeat `relvmoiscsi pool ([^`]*)`. If its result has 0 VDIs, the SR is empty", ran.err)
    assert ", 0 VDIs" in pool_command(*again.split(), "--yes").out


@pytest.mark.parametrize("place", [(lun_commands.AttachCommand, "__init__"), (pool_command_module, "NightLog")])
def test_attach_that_is_interrupted_while_it_is_made_says_that_nothing_was_begun(pool_command, monkeypatch, place):
    """It said only to repeat the command."""

    def pressed(*_words):
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, pressed)
    ran = pool_command("attach", "--all", "--yes")
    assert ran.status == 130
    assert re.fullmatch("relvmoiscsi: Interrupted. Nothing was (written|changed). Repeat the command.\n", ran.err)


@pytest.mark.processes
def test_a_result_that_cannot_be_printed_does_not_hide_what_was_attached(lab, pool_command, monkeypatch):
    clone = lab.clone("Production")
    with open("/dev/full", "w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        ran = pool_command("attach", clone, "--yes")
    assert ran.status == 74
    told = f"relvmoiscsi: The result cannot be printed: No space left on device. Done: {clone} (attach)."
    assert ran.err.splitlines()[-1] == told
