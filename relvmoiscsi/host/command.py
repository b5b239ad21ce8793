# SPDX-License-Identifier: LGPL-2.1-only
"""Run programs. This module is the only place of the product that starts a program.

No program runs through a shell. Every program runs with LC_ALL=C: the product parses its messages, so they are English.
No program gets a variable of the caller. A caller of sudo may choose PATH, and variables may hold passwords.
"""

import logging
import os
import shlex
import signal
import subprocess
from typing import Callable, List, Optional, Sequence

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host import terminated

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 120.0
NO_SUCH_PROGRAM = 127  #: the status that a shell gives
NOT_EXECUTABLE = 126
TIMED_OUT = 124  #: the status that timeout(1) gives

_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_REAP_SECONDS = 5.0


#: A function with the signature of `run`. Product code takes a Runner as an argument; a test passes a fake.
Runner = Callable[..., str]


def run(argv: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> str:
    """Run a program to its end and return its standard output.

    `timeout` is in seconds. The program's standard input is empty. Output bytes that are not UTF-8 become hex escapes.
    `run` logs `argv`: no word of `argv` may be a secret.

    Raises CommandFailed for an exit status other than 0; a negative status is the signal that ended the program. The
    status is NO_SUCH_PROGRAM or NOT_EXECUTABLE if the program does not start. The status is TIMED_OUT if `timeout`
    passed; then the program and all its children were killed.
    """
    log.debug("running %s", " ".join(shlex.quote(word) for word in argv))
    process: Optional[subprocess.Popen[bytes]] = None
    output: List[bytes] = []
    try:
        process = _start(argv)
        with terminated.waiting():
            output += process.communicate(timeout=timeout)
    except BaseException as error:  # Ctrl-C and Terminated, too: the program must not outlive this call
        if process is not None and not output:  # of a program that has ended, a child may hold the pipes
            _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise _failure(argv, TIMED_OUT, f"it did not end within {timeout:g} seconds and was stopped") from None
        raise
    stdout, stderr = (text.decode("utf-8", "backslashreplace") for text in output)
    status = process.returncode
    log.debug("%s ended with status %d, stdout %r, stderr %r", argv[0], status, stdout, stderr)
    if status != 0:
        reason = stderr.strip() or stdout.strip()  # some programs print their errors on stdout
        raise _failure(argv, status, f"it was ended by signal {-status}. {stderr}".strip() if status < 0 else reason)
    return stdout


def _start(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a program, found in the directories of the system."""
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=True,
            env=_ENVIRONMENT,
            # A session of its own: `_kill` ends the program together with the children of the program.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _failure(argv, NO_SUCH_PROGRAM, "there is no such program") from error
    except OSError as error:
        raise _failure(argv, NOT_EXECUTABLE, f"it cannot be started: {error.strerror}") from error


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its children, and reap the process."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the process ended before the signal
    try:
        process.communicate(timeout=_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        # The kernel holds the process, on a dead device for instance. The kill takes effect when the call returns.
        log.warning("Process %d was killed and has not ended yet.", process.pid)


def _failure(argv: Sequence[str], status: int, reason: str) -> CommandFailed:
    log.debug("%s failed with status %d: %s", argv[0], status, reason)
    return CommandFailed(argv, status, reason)
