# SPDX-License-Identifier: LGPL-2.1-only
"""The lines of --log: time, process, word, sentence."""

import os
import re

import pytest

from kit.build_lvm import replace_in_text
from kit.pool_lab import IQN, TARGET, sr_disk
from kit.shell import TOP
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import attach

WORDS = {"begins", "plan", "asked", "step", "note", "warning", "result", "next", "error", "ends"}
LINE = re.compile(r"20..-..-..T..:..:..Z \[[0-9]+\] ([a-z]+): (\S.*)")


def told_in(log):
    """The lines of the log, without time and process; each line is one event."""
    found = [LINE.fullmatch(line) for line in log.read_text().splitlines()]
    assert all(found) and {line.group(1) for line in found} <= WORDS
    return [": ".join(line.groups()) for line in found]


def test_an_event_is_one_line_however_long_it_is_and_has_no_word_of_the_code(lab, clone, pool_command, tmp_path):
    """A sentence was folded at 80 columns, and a step was `under way (introduce: done)`: grep found half of it."""
    log, lost = tmp_path / "night.log", lab.clone("Production")
    replace_in_text(lab.world.lun(lost).disk, b"physical_volumes", b"physical_nothing")
    lab.vm("web", lab.vdi("Production", "root disk")[0], networks=[lab.network("office")])
    assert pool_command("attach", "--all", "--yes", "--leave-others", "--log", log).status == 9
    told = told_in(log)
    steps = [f"{clone} {step} {how}" for step in ("resignature", "attach") for how in ("started", "finished")]
    assert [line for line in told if line.startswith("step: ")] == [f"step: {step}" for step in steps]
    (copy,) = lab.pool.db.records("SR", name_label="Production changed 2026-11-21").values()
    for line in (
        f"result: {clone}: attached {copy['name_label']!r} ({copy['uuid']}), 4 VDIs",
        f"next: relvmoiscsi pool clone --all --isolated night-{copy['uuid'][:8]} {copy['uuid']}",
    ):
        assert line in told
    why, warned = [line for line in told if lost in line]
    assert warned.startswith(f"warning: {lost}: Its state is damaged: ")
    assert why.startswith(f"result: {lost}: failed; Its state is damaged: ") and "from the array. Unmap a clone" in why

    assert pool_command("clone", copy["uuid"], "--all", "--isolated", "night", "--yes", "--log", log).status == 0
    (vm,) = [line for line in told_in(log) if line.startswith("result: VM 'web': cloned ")]
    assert "; disk 0: " in vm and vm.endswith("; network 0: 'office' became 'night'")
    assert pool_command("luns", "--log", log).status == 0
    assert pool_command("discard", copy["uuid"], "--with-vms", "--yes", "--log", log).status == 0
    told, name = told_in(log), f"'{copy['name_label']}'"
    assert {f"step: {name} ({copy['uuid']}): discard {how}" for how in ("begins", "is done")} <= set(told)
    assert f"attached, {name}; changed 2026-11-21 00:11 UTC" in " ".join(told)


def test_the_search_of_the_page_shows_each_lun_and_vm_that_was_not_done_and_why(lab, clone, pool_command, tmp_path):
    """A host that was down left "in part, exit status 9", and a LUN of another pool left nothing."""
    (search,) = re.findall("grep -E '(.*)' night.log", (TOP / "docs/pool.rst").read_text(encoding="utf-8"))
    foreign, log = lab.world.add(TARGET, IQN, sr_disk("of another pool")), tmp_path / "night.log"
    lab.pool.go_down(lab.pool.hosts[1])
    assert pool_command("attach", "--all", "--yes", "--name", "a copy", "--log", log).status == 9
    lab.vm("web", lab.vdi("Production", "root disk")[0], state="Running")
    lab.vm("db", lab.vdi("Production", "data")[0], state="Running")
    assert pool_command("restore", "a copy", "web", "db", "--yes", "--log", log).status == 4
    shown = [line for line in log.read_text().splitlines() if re.search(search, line)]
    for what, why in (
        (clone, "host 'xs2': down; repeat the command when the host is up"),
        (foreign, "Another pool may use this LUN."),
        ("VM 'web'", "--shutdown"),
        ("VM 'db'", "--shutdown"),
    ):
        assert len([line for line in shown if f": {what}" in line and why in line]) == 1


def test_the_log_has_the_night(lab, world, clone, pool_command, tmp_path, monkeypatch):
    log = tmp_path / "night.log"
    assert pool_command("attach", clone, "--yes", "--name", "a copy", "--log", log).status == 0
    assert pool_command("discard", "none", "--yes", "--log", log).status == 3
    told = told_in(log)
    assert told[0].startswith(f"begins: relvmoiscsi pool attach {clone} --yes --name 'a copy' --log {log} (by ")
    assert told[0].endswith(f", as root of the pool {lab.pool.url})")
    assert "ends: without an error, exit status 0" in told
    assert told[-1] == "ends: with an error, exit status 3" and told[-2].startswith("error: There is no SR")
    for path, said in ((tmp_path / "no" / "log", "cannot be opened"), (tmp_path, "cannot be opened")):
        before = len(lab.pool.api.calls)
        ran = pool_command("discard", "a copy", "--yes", "--log", path)
        assert ran.status == 2 and said in ran.err and len(lab.pool.api.calls) == before
    (tmp_path / "link").symlink_to(log)
    assert pool_command("discard", "a copy", "--yes", "--log", tmp_path / "link").status == 2


def test_a_log_ends_with_the_exit_status_also_after_ctrl_c_and_a_bug(clone, pool_command, tmp_path, monkeypatch):
    for problem, status in ((KeyboardInterrupt(), 130), (ZeroDivisionError("a bug"), 70)):
        log = tmp_path / str(status)

        def stop(*_arguments, problem=problem):
            raise problem

        monkeypatch.setattr(attach, "carry_out", stop)
        assert pool_command("attach", clone, "--yes", "--log", log).status == status
        told = told_in(log)
        assert told[-1] == f"ends: {'early' if status == 130 else 'with an error'}, exit status {status}"
        why = "Interrupted. Not started: " if status == 130 else "This is a bug: ZeroDivisionError"
        assert told[-2].startswith(f"error: {why}")


def without_room():
    return open("/dev/full", "w", encoding="utf-8")


def without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


@pytest.mark.processes  # it opens /dev/full
@pytest.mark.parametrize("stdout, said", [(without_room, "No space left on device"), (without_a_reader, "")])
def test_a_failure_whose_result_is_lost_keeps_its_status_and_its_reason(
    lab, clone, pool_command, tmp_path, monkeypatch, stdout, said
):
    """A night's `attach` that failed ended with 74, "Done", and the log of the same command named another status."""
    log, lost = tmp_path / "night.log", lab.clone("Production")
    replace_in_text(lab.world.lun(lost).disk, b"physical_volumes", b"physical_nothing")
    with stdout() as failing, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", failing)
        ran = pool_command("attach", "--all", "--yes", "--leave-others", "--log", log)
    assert (ran.status, told_in(log)[-1]) == (9, "ends: in part: some is done and some is not, exit status 9")
    assert said in ran.err and ran.err.count(f"{lost}: Its state is damaged: ") == 1
    with stdout() as failing, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", failing)
        assert pool_command("luns", "--log", log).status == 74
    assert told_in(log)[-1] == "ends: without an error, but its result was lost, exit status 74"


def test_no_error_forges_a_line_of_the_log(clone, pool_command, tmp_path, monkeypatch):
    """An error may quote a stranger. A second line of it would be taken for the end of another command."""

    def stop(*_arguments):
        raise Refused("The key 0\n2026-11-29T02:00:00Z [1] ends: without an error cannot be read.")

    monkeypatch.setattr(attach, "carry_out", stop)
    assert pool_command("attach", clone, "--yes", "--log", tmp_path / "log").status == 4
    told = told_in(tmp_path / "log")
    assert told[-2].startswith(r"error: The key 0\n2026-11-29") and told[-1] == "ends: with an error, exit status 4"


def test_the_heading_of_a_plan_is_bold_before_the_question_and_plain_in_the_log(
    clone, pool_command, type_in, monkeypatch, terminal, tmp_path
):
    log = tmp_path / "log"
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    type_in("n\n")
    assert pool_command("attach", clone).status == 4
    assert terminal.getvalue().startswith("\033[1mPlanned steps:\033[0m\n") and "x1b" not in terminal.getvalue()
    assert pool_command("attach", clone, "--dry-run", "--log", log).status == 0
    assert "] result: Planned steps:\n" in log.read_text() and "x1b" not in log.read_text()


def test_the_log_has_the_plan_the_question_and_what_was_answered(clone, pool_command, type_in, tmp_path):
    """The log of a run that asks had no plan: nobody could read later what a person has confirmed."""
    log = tmp_path / "log"
    for typed, status, answer in (("n\n", 4, "error: Not confirmed."), ("y\n", 0, "asked: Confirmed.")):
        type_in(typed)
        assert pool_command("attach", clone, "--log", log).status == status
        told = told_in(log)
        ours = told[max(number for number, line in enumerate(told) if line.startswith("begins: ")) :]
        assert ours[1] == "plan: Planned steps:" and ours[2].startswith(f"plan: {clone}: would be resignatured; ")
        question = ours.index("asked: Attach 1 LUN?")
        assert ours[question + 1].startswith(answer)


def test_a_password_in_the_address_of_the_environment_comes_into_no_log(pool_command, monkeypatch, tmp_path):
    """--pool was refused before the log began, and XENSERVER_HOST afterwards: the first line names the pool."""
    log = tmp_path / "night.log"
    monkeypatch.setenv("XENSERVER_HOST", "https://root:hidden@xs1")
    ran = pool_command("luns", "--log", log)
    assert ran.status == 2 and "contains a user or a password" in ran.err and "hidden" not in ran.err
    assert not log.exists()
