# SPDX-License-Identifier: LGPL-2.1-only
"""The one place that starts a process.

No shell; messages of the programs in English (LC_ALL=C), so that they can be parsed and are the same in every log.
"""

import logging
import os
import shlex
import signal
import subprocess
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host import terminated

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 120.0
NO_SUCH_PROGRAM = 127  #: as a shell has it
NOT_EXECUTABLE = 126
TIMED_OUT = 124  #: as timeout(1) has it

_SYSTEM_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_REAP_SECONDS = 5.0


class Completed(NamedTuple):
    """How a program ended, and what it said. A negative status is the signal that ended it."""

    status: int
    stdout: str
    stderr: str


#: Whoever runs programs takes one of these, called like `run`; a test gives a fake.
Runner = Callable[..., Completed]


def run(argv: Sequence[str], accept: Sequence[int] = (0,), timeout: float = TIMEOUT_SECONDS) -> Completed:
    """Run a program to its end and give back its exit status and output.

    `accept` are the exit statuses that are not a failure, `timeout` is in seconds. The program's standard input is
    empty. Bytes of the output that are no UTF-8 come out as hex escapes. The words are logged: none may be a secret.

    Raises CommandFailed for any other exit status, with status NO_SUCH_PROGRAM or NOT_EXECUTABLE when the program
    cannot be started, TIMED_OUT when it took too long and was killed, with all it had started.
    """
    log.debug("running %s", " ".join(shlex.quote(word) for word in argv))
    completed = _run(argv, timeout)
    if completed is None:
        raise _failure(argv, TIMED_OUT, f"it did not end within {timeout:g} seconds and was stopped")
    log.debug(
        "%s ended with status %d, stdout %r, stderr %r",
        argv[0],
        completed.status,
        completed.stdout,
        completed.stderr,
    )
    if completed.status not in accept:
        raise _failure(argv, completed.status, _reason(completed))
    return completed


def _run(argv: Sequence[str], timeout: float) -> Optional[Completed]:
    """How the program ended; None if it took too long. It does not go on alone when this process is to end."""
    process: Optional[subprocess.Popen[bytes]] = None
    try:
        process = _start(argv)
        with terminated.waiting():
            return _finish(process, timeout)
    except terminated.Terminated:
        if process is not None and process.returncode is None:
            _kill(process)
        raise


def _start(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=True,
            env=_environment(),
            # A group of its own, so that a program that takes too long ends together with its children.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _failure(argv, NO_SUCH_PROGRAM, "there is no such program") from error
    except OSError as error:
        raise _failure(argv, NOT_EXECUTABLE, f"it cannot be started: {error.strerror}") from error


def _finish(process: "subprocess.Popen[bytes]", timeout: float) -> Optional[Completed]:
    """How the process ended; None if it had to be killed because the time was up."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        return None
    except BaseException:  # Ctrl-C: it must not go on alone
        _kill(process)
        raise
    return Completed(process.returncode, _text(stdout), _text(stderr))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and what it started, and reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself in the meantime, which is all that is wanted
    try:
        process.communicate(timeout=_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        # Stuck in the kernel, on a dead device for instance; the kill takes effect when that call returns.
        log.warning("Process %d was killed and has not ended yet.", process.pid)


def _environment() -> Dict[str, str]:
    """Ours, in English; and with the system programs on the path, which xapi and cron may leave out."""
    environment = dict(os.environ, LC_ALL="C")
    environment.pop("LANGUAGE", None)
    path = [part for part in environment.get("PATH", "").split(os.pathsep) if part]
    environment["PATH"] = os.pathsep.join(path + [part for part in _SYSTEM_PATH if part not in path])
    return environment


def _failure(argv: Sequence[str], status: int, reason: str) -> CommandFailed:
    log.debug("%s failed with status %d: %s", argv[0], status, reason)
    return CommandFailed(argv, status, reason)


def _reason(completed: Completed) -> str:
    """What a person is told: the program's own message, which some programs print on stdout."""
    if completed.status < 0:
        return f"it was ended by signal {-completed.status}. {completed.stderr}".strip()
    return completed.stderr.strip() or completed.stdout.strip()


def _text(output: bytes) -> str:
    return output.decode("utf-8", "backslashreplace")
