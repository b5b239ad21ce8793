# SPDX-License-Identifier: LGPL-2.1-only
"""Read files and run programs of a host, without a change to the host."""

import errno
import os
import stat
from typing import List, Optional

from relvmoiscsi import untrusted
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.disk.process_search import is_of_root
from relvmoiscsi.host.this_host import Host

#: PATH of programs that xapi starts. Source: xen-api ocaml/libs/forkexec
XAPI_PATH = "/sbin:/usr/sbin:/bin:/usr/bin"
COMMAND_SECONDS = 20.0
MOST_BYTES = 1 << 20  #: limit for reading a file; the relevant files are far smaller


def read(host: Host, name: str) -> bytes:
    """Return the start of a file. Raises OSError; also for a pipe, for example, which would not end."""
    path = host.at(name)
    if not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no file", name)
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


def text_of(host: Host, name: str) -> str:
    """Return the start of a file as text; "" for a missing or unreadable file."""
    try:
        return read(host, name).decode("utf-8", "replace")
    except OSError:
        return ""


def is_program(host: Host, name: str) -> bool:
    return os.path.isfile(host.at(name)) and os.access(host.at(name), os.X_OK)


def run_as_xapi(host: Host, program: str, *arguments: str) -> str:
    """Run a program in the environment of xapi, without writing compiled Python files. Return its standard output.

    Raises CommandFailed.
    """
    before = ["/usr/bin/env", "-i", "PATH=" + XAPI_PATH, "PYTHONDONTWRITEBYTECODE=1"]
    return host.runner([*before, host.at(program), *arguments], timeout=COMMAND_SECONDS)


def processes(host: Host, name: str) -> Optional[List[int]]:
    """Return the PIDs of root's processes of this name; None where /proc does not list processes.

    Each user can give a process any name. A set-uid program that a user has started has the user's real user id.
    """
    try:
        numbers = [untrusted.number(entry) for entry in os.listdir(host.at("proc")) if untrusted.is_number(entry)]
    except OSError:
        return None
    if not numbers:
        return None
    named = [number for number in numbers if text_of(host, f"/proc/{number}/comm").rstrip("\n") == name]
    return [number for number in named if is_of_root(host.at("proc", str(number)))]


def why(error: CommandFailed) -> str:
    """Return how a program failed, for a sentence, without the long command line."""
    if error.status == TIMED_OUT:
        return error.stderr
    said = " ".join(error.stderr.split())[-300:]
    return "exit status {}: {}".format(error.status, said or "no message")
