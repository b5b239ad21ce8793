# SPDX-License-Identifier: LGPL-2.1-only
"""The paths of a host's files, the function that runs programs on the host, and the function that waits for its disks.

A function that reads a host takes a `Host` argument; THIS_HOST is the default. All paths start at one root; a test uses
a directory as root.
"""

import os
import time
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import Runner, run
from relvmoiscsi.host.files import attribute, lines_of, text_of

THIS_PROCESS = "this very process"  #: among the users of a device, or the owners of a lock
XAPI_SOCKET = "/var/lib/xcp/xapi"
#: the directories of udev's rules; a file hides the files of the same name in later directories
UDEV_RULES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")


LOOK_SECONDS = 0.1  #: between two looks of `wait_for`

Value = TypeVar("Value")
#: A function with the signature of `wait_for`; a test passes a function that does not wait.
Waiter = Callable[..., Any]


def wait_for(
    condition: Callable[[], Optional[Value]],
    timeout_seconds: float,
    pause: Callable[[float], None] = terminated.pause,
) -> Optional[Value]:
    """Return the value of `condition()` as soon as the value is true; None if `timeout_seconds` pass before.

    The condition is evaluated at once, and then ten times a second. Exceptions of the condition go through.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        pause(min(left, LOOK_SECONDS))


class Host(NamedTuple):
    """A host whose files are below `root`. `runner` runs programs, `wait_for` waits for block devices."""

    root: str = "/"
    runner: Runner = run
    wait_for: Waiter = wait_for
    is_superuser: bool = True

    def at(self, path: str, *more: str) -> str:
        """Return the path below the root: of "/etc/xapi.conf", or of "sys/block", "sdb". Links are not followed."""
        return os.path.join(self.root, path.lstrip("/"), *more)

    def node(self, kernel_name: str) -> str:
        """Return the device node of a block device by the kernel's name ("sdb", "dm-3")."""
        return self.at("dev", kernel_name)

    def named_process(self, number: str) -> str:
        """Return a process as words of a sentence: "process 4711 (qemu-dp)"."""
        if number == str(os.getpid()):
            return THIS_PROCESS
        command = text_of(self.at("proc", number, "comm")).rstrip("\n")
        return f"process {number} ({command})" if command else f"process {number}"

    @property
    def config(self) -> str:
        """The product's configuration. The rules in udev/ have the same path."""
        return self.at("etc/relvmoiscsi.conf")

    @property
    def boot_id(self) -> str:
        """The id of this boot. After a reboot the id differs, and all earlier disks and maps are gone."""
        return attribute(self.at("proc/sys/kernel/random/boot_id"))

    @property
    def installation_uuid(self) -> str:
        """The UUID of this host in xapi, from the installer's record; "" if the record does not have the UUID."""
        pairs = [line.partition("=") for line in lines_of(self.at("etc/xensource-inventory"))]
        values = [value for key, _, value in pairs if key.strip() == "INSTALLATION_UUID"]
        return values[-1].strip().strip("'\"") if values else ""

    @property
    def xapi_socket(self) -> str:
        return self.at(XAPI_SOCKET)


THIS_HOST = Host()
