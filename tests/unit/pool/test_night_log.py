# SPDX-License-Identifier: LGPL-2.1-only
"""The file of --log: a regular file of this user, and of nobody else."""

import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

from kit.shell import TOP
from relvmoiscsi.errors import UsageError
from relvmoiscsi.pool.night_log import ENDS, NightLog


def opened(path):
    log = NightLog(str(path), ["relvmoiscsi", "pool", "luns"], "root of the pool local", print)
    log.tell(ENDS, "without an error, exit status 0")
    log.close()


def of_another_user(path):
    path.write_text("")
    path.chmod(0o666)
    os.chown(str(path), 4712, 4712)


def with_two_names(path):
    path.with_name("other").write_text("")
    os.link(str(path.with_name("other")), str(path))


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")


@pytest.mark.parametrize(
    "make, said",
    [
        pytest.param(of_another_user, "belongs to another user", marks=only_root),
        (with_two_names, "has another name too"),
        (lambda path: path.symlink_to(path.with_name("other")), "is a link"),
    ],
    ids=["of another user", "with two names", "a link"],
)
def test_a_file_that_another_user_may_have_made_gets_no_line(tmp_path, make, said):
    path = tmp_path / "night.log"
    make(path)
    with pytest.raises(UsageError, match=said):
        opened(path)
    assert not path.exists() or path.read_text() == ""


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_is_refused_without_a_wait(tmp_path, is_read):
    path = tmp_path / "night.log"
    os.mkfifo(str(path))
    reader = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    try:
        with pytest.raises(UsageError, match="no regular file"):
            opened(path)
        assert not is_read or os.read(reader, 1) == b""
    finally:
        if is_read:
            os.close(reader)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_log_is_readable_for_its_user_alone_under_any_umask(tmp_path, umask):
    path = tmp_path / "night.log"
    before = os.umask(umask)
    try:
        opened(path)
        opened(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text().count(" begins: ") == 2


def killed(path):
    """A process begins with this log, and is killed; gives its id."""
    begin = f"NightLog({str(path)!r}, ['relvmoiscsi', 'pool', 'discard'], 'root of the pool local', print)"
    code = f"import os; from relvmoiscsi.pool.night_log import NightLog; {begin}; os.kill(os.getpid(), 9)"
    started = subprocess.Popen([sys.executable, "-c", code], cwd=str(TOP))
    assert started.wait() == -signal.SIGKILL
    return started.pid


@pytest.mark.processes
def test_the_next_command_ends_the_lines_of_a_command_that_was_killed(tmp_path, capsys):
    """`kill -9` left a line `begins` alone, which no search for ends shows."""
    path = tmp_path / "night.log"
    process = killed(path)
    opened(path), opened(path)
    ends = [line for line in path.read_text().splitlines() if f"[{process}] ends: without a last line" in line]
    told = capsys.readouterr().out.splitlines()
    assert len(ends) == 1 and "was killed: relvmoiscsi pool discard (by " in told[0]


@pytest.mark.processes
@pytest.mark.parametrize("pid", [os.getpid(), 10**10 - 1], ids=["own", "none"])
def test_a_command_with_the_id_of_this_one_or_of_no_process_was_killed(tmp_path, pid):
    path = tmp_path / "night.log"
    process = killed(path)
    path.write_text(path.read_text().replace(f"[{process}]", f"[{pid}]"))
    opened(path)
    assert f"[{pid}] ends: without a last line" in path.read_text()


@pytest.mark.processes
def test_a_command_that_runs_or_has_ended_or_ran_on_another_machine_is_not_ended(tmp_path):
    path = tmp_path / "night.log"
    process = killed(path)
    here = path.read_text()
    begun = here.partition("begins: ")[0]
    for text in (
        here.replace(f"[{process}]", f"[{os.getppid()}]"),
        here.replace(f" on {socket.gethostname()}, as ", " on another.example, as "),
        f"{here}{begun}ends: early, exit status 130\n",
        f"nonsense\n\ufffd {here[:20]}",
    ):
        path.write_text(text, encoding="utf-8")
        opened(path)
        assert "without a last line" not in path.read_text(encoding="utf-8")


def test_the_first_line_of_a_command_names_its_user_and_pool(tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "alice")
    opened(tmp_path / "night.log")
    who = f"(by alice on {socket.gethostname()}, as root of the pool local)"
    first, _ = (tmp_path / "night.log").read_text().splitlines()
    assert first.endswith(f" begins: relvmoiscsi pool luns {who}")
