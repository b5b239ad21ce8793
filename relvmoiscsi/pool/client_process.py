# SPDX-License-Identifier: LGPL-2.1-only
"""The process of a client: who runs it, how a mark in the pool names it, and whether it has ended."""

import os
import pwd
from typing import List, Sequence

from relvmoiscsi import untrusted

_KERNEL = "/proc/sys/kernel/random/boot_id"


def user_name() -> str:
    """Return the name of the user of this process, or who has become this user by sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return os.environ.get("SUDO_USER") or name


def this_process() -> List[str]:
    """Return the id of this process across machines: kernel boot, PID namespace, PID. [] where /proc has no answer."""
    try:
        with open(_KERNEL, encoding="ascii") as file:
            return [file.read().strip(), os.readlink("/proc/self/ns/pid"), str(os.getpid())]
    except OSError:
        return []


def has_ended(process: Sequence[str]) -> bool:
    """Has the process with this id ended? False where the end is unknown.

    The end of a process elsewhere is unknown, and while the PID of the process is in use.
    """
    is_of_here = len(process) == 3 and process[:2] == this_process()[:2]  # of this kernel and namespace
    return is_of_here and untrusted.is_number(process[2]) and not is_in_use(process[2])


def is_in_use(pid: str) -> bool:
    """Has a process of this machine the PID (decimal)?"""
    try:
        os.kill(untrusted.number(pid), 0)
    except (ProcessLookupError, OverflowError):  # no PID is as large as that
        return False
    except PermissionError:
        pass  # of another user
    return True
