# SPDX-License-Identifier: LGPL-2.1-only
"""Where a host has its files, how programs are run on it, and how is waited there.

Whatever looks at a host takes a `Host`, and THIS_HOST unless told otherwise. All paths come from one root: a test has a
directory for it.
"""

import os
from typing import NamedTuple, Tuple

from relvmoiscsi.host.command import Runner, run
from relvmoiscsi.host.events import Waiter, wait_for
from relvmoiscsi.host.files import text_of

XAPI_SOCKET = "/var/lib/xcp/xapi"
#: where udev looks for rules; a file hides those of the same name in the directories behind
UDEV_RULES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")


class Host(NamedTuple):
    """A host whose files are in `root`; `runner` runs programs, `wait_for` waits for its block devices."""

    root: str = "/"
    runner: Runner = run
    wait_for: Waiter = wait_for
    is_superuser: bool = True

    def at(self, path: str) -> str:
        """Where a path of the host is found, "/etc/xapi.conf" or "etc/xapi.conf"; links are not looked at."""
        return os.path.join(self.root, path.lstrip("/"))

    def node(self, kernel_name: str) -> str:
        """The device node of a block device by the kernel's name for it ("sdb", "dm-3")."""
        return os.path.join(self.dev, kernel_name)

    def named_process(self, number: str) -> str:
        """A process for a sentence: "process 4711 (qemu-dp)"."""
        if number == str(os.getpid()):
            return "this very process"
        command = text_of(os.path.join(self.proc, number, "comm")).rstrip("\n")
        return f"process {number} ({command})" if command else f"process {number}"

    @property
    def sysfs(self) -> str:
        return self.at("sys")

    @property
    def proc(self) -> str:
        return self.at("proc")

    @property
    def dev(self) -> str:
        return self.at("dev")

    @property
    def etc(self) -> str:
        return self.at("etc")

    @property
    def run_dir(self) -> str:
        return self.at("run")

    @property
    def udev_run(self) -> str:
        """Where udev keeps its database, and its socket while it runs."""
        return self.at("run/udev")

    @property
    def udev_rules(self) -> Tuple[str, ...]:
        return tuple(map(self.at, UDEV_RULES))

    @property
    def config(self) -> str:
        """Our configuration; the rules in udev/ know it as well."""
        return self.at("etc/relvmoiscsi.conf")

    @property
    def boot_id(self) -> str:
        """What differs after a reboot, when no disk and no map of before is left."""
        return text_of(os.path.join(self.proc, "sys/kernel/random/boot_id")).strip()

    @property
    def xapi_socket(self) -> str:
        return self.at(XAPI_SOCKET)


THIS_HOST = Host()
