# SPDX-License-Identifier: LGPL-2.1-only
"""Running a program: what comes back, what is a failure, and what never reaches a log."""

import logging
import os
import select
import signal
import sys
from contextlib import contextmanager

import pytest

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host import command
from relvmoiscsi.host.command import NO_SUCH_PROGRAM, NOT_EXECUTABLE, TIMED_OUT, run
from relvmoiscsi.host.terminated import Terminated, heeded

START = command._start

pytestmark = pytest.mark.processes


def sh(script, *arguments):
    return ["sh", "-c", script, "sh", *arguments]


@pytest.fixture(autouse=True)
def debug(caplog):
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize(
    "argv, status, words",
    [
        (sh("echo no portal >&2; exit 21"), 21, "failed with exit status 21: no portal$"),
        (sh("echo told here; exit 5"), 5, "failed with exit status 5: told here$"),  # there is none on stderr
        (sh("kill -TERM $$"), -15, "it was ended by signal 15"),
        (["relvmoiscsi-no-such-program", "-v"], NO_SUCH_PROGRAM, "there is no such program"),
        ([__file__], NOT_EXECUTABLE, "it cannot be started: Permission denied"),
    ],
)
def test_what_fails_says_how_and_what_it_said(argv, status, words):
    with pytest.raises(CommandFailed, match=words) as caught:
        run(argv)

    assert caught.value.status == status
    if status > 0 and "no portal" in words:
        assert caught.value.stderr == "no portal"


def test_a_program_is_one_of_the_system_and_gets_no_variable_of_the_caller(tmp_path, monkeypatch):
    """The caller may be an ordinary user, whom sudo lets run this product, or may have a password there."""
    own = tmp_path / "env"
    own.write_text("#!/bin/sh\necho a program of the user\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name in ("LIBISCSI_CHAP_PASSWORD", "XS_PASS", "LVM_SYSTEM_DIR", "LD_PRELOAD", "LANGUAGE", "LC_MESSAGES"):
        monkeypatch.setenv(name, "sesame")

    assert sorted(run(["env"]).splitlines()) == ["LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def test_a_program_that_takes_too_long_is_stopped_with_all_it_started(tmp_path):
    alive = tmp_path / "alive"
    os.mkfifo(str(alive))
    reader = os.open(str(alive), os.O_RDONLY | os.O_NONBLOCK)

    with pytest.raises(CommandFailed, match="did not end within 0.1 seconds and was stopped") as caught:
        # The child holds the outputs and a pipe open for as long as it lives.
        run(sh('(exec 3> "$1"; sleep 600) & wait', str(alive)), timeout=0.1)

    assert caught.value.status == TIMED_OUT
    assert at_end(reader)
    os.close(reader)


def test_ctrl_c_stops_what_a_program_has_left_that_has_ended(tmp_path, monkeypatch):
    """Python waits a moment for the program before it raises KeyboardInterrupt, and so knows of its end then."""
    alive, waits = str(tmp_path / "alive"), str(tmp_path / "waits")
    os.mkfifo(alive)
    os.mkfifo(waits)
    reader, waiting = os.open(alive, os.O_RDONLY | os.O_NONBLOCK), command.terminated.waiting

    @contextmanager
    def told():
        with open(waits, "w", encoding="ascii") as file:
            file.write("\n")
        with waiting():
            yield

    monkeypatch.setattr(command.terminated, "waiting", told)
    with pytest.raises(KeyboardInterrupt):
        program = 'exec 3> "$1"; sleep 600 & read -r go < "$3"; kill -INT "$2"'
        run(sh(program, alive, str(os.getpid()), waits), timeout=60)

    assert at_end(reader)
    os.close(reader)


def at_end(reader):
    """Whether no process has the other end of a pipe open any more, or ends within a minute."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return select.select([reader], [], [], 60)[0] and os.read(reader, 1) == b""


def test_a_program_that_cannot_even_be_killed_is_left_with_a_warning_and_one_that_has_ended_is_fine(
    monkeypatch, caplog
):
    killed = []
    monkeypatch.setattr(command, "_REAP_SECONDS", 0.1)
    monkeypatch.setattr(os, "killpg", lambda group, _signal: killed.append(group))

    process = command._start(sh("sleep 6000"))
    command._kill(process)

    assert killed == [process.pid]
    assert "was killed and has not ended yet" in caplog.text
    monkeypatch.undo()
    command._kill(process)
    assert process.returncode == -9

    ended = command._start(["true"])
    ended.wait()
    command._kill(ended)
    assert ended.returncode == 0


@pytest.mark.parametrize("while_it_starts", [False, True], ids=["runs", "starts"])
def test_a_program_does_not_go_on_alone_when_its_call_is_told_to_end(monkeypatch, while_it_starts):
    started = []

    def start(argv):
        started.append(START(argv))
        if while_it_starts:
            os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(command, "_start", start)
    with pytest.raises(Terminated), heeded():
        run(sh("sleep 6000" if while_it_starts else "kill -TERM $PPID; sleep 6000"))

    assert started[0].returncode == -9


def test_the_program_reads_nothing_and_inherits_no_descriptor():
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)

    with pytest.raises(CommandFailed) as caught:  # its message is that of stderr, or of stdout where stderr is empty
        run([sys.executable, "-c", f"import os, sys; print(sys.stdin.read(), end=''); os.write({write_end}, b'x')"])

    assert caught.value.stderr.startswith("Traceback") and "Bad file descriptor" in caught.value.stderr
    os.close(read_end)
    os.close(write_end)


def test_command_status_and_output_are_logged_no_shell_looks_at_them_and_they_need_not_be_text(caplog):
    assert run(["printf", r"%s a\377b", "$HOME; *"]) == r"$HOME; * a\xffb"

    assert r"running printf '%s a\377b' '$HOME; *'" in caplog.text
    assert "printf ended with status 0, stdout '$HOME; * a\\\\xffb', stderr ''" in caplog.text
