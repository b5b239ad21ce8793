# SPDX-License-Identifier: LGPL-2.1-only
"""Looking at a host: this one, or one whose files are in a directory. Nothing here changes anything."""

import errno
import os
import stat
from typing import Dict, List, Optional, Sequence

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import TIMED_OUT, Completed
from relvmoiscsi.host.this_host import Host

#: what xapi gives the programs that it starts. Source: xen-api ocaml/libs/forkexec
XAPI_PATH = "/sbin:/usr/sbin:/bin:/usr/bin"
PROGRAM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")

COMMAND_SECONDS = 20.0
MOST_BYTES = 1 << 20  #: of a file that is read; all of interest are far smaller
_MOST_LINKS = 40  #: as Linux has it


def path_of(host: Host, name: str) -> str:
    """Where the absolute path `name` leads, its symbolic links taken as they are within the root.

    Raises OSError for links that lead in a circle.
    """
    if os.path.realpath(host.root) == "/":
        return name
    inside, left, links = "/", name.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", ".", ".."):
            inside = os.path.dirname(inside) if part == ".." else inside
            continue
        here = os.path.join(inside, part)
        target = _link(os.path.join(host.root, here[1:]))
        if target is None:
            inside = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        inside = "/" if target.startswith("/") else inside
        left += target.split("/")[::-1]
    return os.path.join(host.root, inside[1:])


def read(host: Host, name: str) -> bytes:
    """The start of a file. Raises OSError; also for what is no file, a pipe for one, which would not end."""
    path = path_of(host, name)
    if not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no file", name)
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


def text_of(host: Host, name: str) -> str:
    """The same as text; empty for what is not there or not for us."""
    try:
        return read(host, name).decode("utf-8", "replace")
    except OSError:
        return ""


def names_in(host: Host, directory: str) -> List[str]:
    """The entries of a directory as the kernel lists them. Raises OSError."""
    return os.listdir(path_of(host, directory))


def program_of(host: Host, name: str) -> Optional[str]:
    """Where the root has this program, if it has it; without the root."""
    paths = (os.path.join(directory, name) for directory in PROGRAM_DIRECTORIES)
    return next((path for path in paths if is_program(host, path)), None)


def is_program(host: Host, name: str) -> bool:
    try:
        path = path_of(host, name)
    except OSError:
        return False
    return os.path.isfile(path) and os.access(path, os.X_OK)


def exists(host: Host, name: str) -> bool:
    try:
        return os.path.exists(path_of(host, name))
    except OSError:
        return False


def run(host: Host, program: str, *arguments: str) -> Completed:
    """Run a program of the root. Raises CommandFailed."""
    return _run(host, [], program, arguments)


def run_as_xapi(host: Host, program: str, *arguments: str) -> Completed:
    """The same with the environment that xapi gives. To look is not to write: Python compiles nothing."""
    return _run(host, ["/usr/bin/env", "-i", "PATH=" + XAPI_PATH, "PYTHONDONTWRITEBYTECODE=1"], program, arguments)


def _run(host: Host, before: List[str], program: str, arguments: Sequence[str]) -> Completed:
    if os.path.realpath(host.root) != "/":
        if host.is_superuser and is_program(host, "/usr/bin/env"):
            before = ["chroot", host.root, *before]
        elif is_program(host, program):  # files of a host, without a system to run programs in
            program = path_of(host, program)
    return host.runner([*before, program, *arguments], timeout=COMMAND_SECONDS)


def processes(host: Host, name: str) -> Optional[List[int]]:
    """The numbers of the processes of this name; None if the kernel does not tell here."""
    try:
        numbers = [int(entry) for entry in names_in(host, "/proc") if entry.isdigit()]
    except OSError:
        return None
    if not numbers:
        return None
    return [number for number in numbers if text_of(host, f"/proc/{number}/comm").rstrip("\n") == name]


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None


def why(error: CommandFailed) -> str:
    """How a program failed, for a sentence; without the command line, which is long."""
    if error.status == TIMED_OUT:
        return error.stderr
    said = " ".join(error.stderr.split())[-300:]
    return "exit status {}: {}".format(error.status, said or "no message")


def inventory(host: Host) -> Dict[str, str]:
    """What the installer has noted of the host: INSTALLATION_UUID is the UUID that xapi knows it by."""
    pairs = (line.partition("=") for line in text_of(host, "/etc/xensource-inventory").splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
