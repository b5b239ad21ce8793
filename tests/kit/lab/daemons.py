# SPDX-License-Identifier: LGPL-2.1-only
"""The daemons of a host, as children of the test session."""

import os
import subprocess
from pathlib import Path

from .command import HANGS, PATH, read, run, settle, until

LOGS = Path("/run/e2e/logs")


class Daemon:
    """A daemon that stays in the foreground; what it says is in /run/e2e/logs, saved when the suite ends."""

    name = ""
    argv = ()
    socket = ""  #: abstract socket that is there once it answers

    def __init__(self):
        self._process = None

    @property
    def pid(self):
        """Its process id; None while it does not run."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self._process.pid if self._process else None

    def start(self):
        assert self.pid is None, f"{self.name} runs already"
        LOGS.mkdir(parents=True, exist_ok=True)
        place = {"cwd": "/", "env": dict(os.environ, PATH=PATH, LC_ALL="C"), "start_new_session": True}
        with (LOGS / (self.name + ".log")).open("ab") as log:
            self._process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **place)
        until(self.answers, f"{self.name} answers")

    def answers(self):
        assert self.pid is not None, f"{self.name} ended:\n" + read(LOGS / (self.name + ".log"))
        return "@" + self.socket in read("/proc/net/unix").split()

    def stop(self):
        if self.pid is not None:
            self._process.terminate()
            try:
                self._process.wait(HANGS)
            finally:
                self._process.kill()
                self._process.wait()
            self._process = None


class Iscsid(Daemon):
    name = "iscsid"
    argv = ("/sbin/iscsid", "-f", "-d", "2")
    socket = "ISCSIADM_ABSTRACT_NAMESPACE"


class Multipathd(Daemon):
    """Off until a test starts it, as in dom0 without multipathing; started, it makes maps of what has two paths."""

    name = "multipathd"
    argv = ("/sbin/multipathd", "-d", "-s", "-v", "2")
    socket = "/org/kernel/linux/storage/multipathd"

    def stop(self):
        """End the daemon and take away the maps that nobody uses.

        A path that has come back brings an event of its map. While udev handles that, the map is in use.
        """
        super().stop()
        until(_are_flushed, "the maps that nobody uses are gone")


def _are_flushed():
    settle()
    if _unused_maps():
        run("multipath", "-F", check=False)
    return not _unused_maps()


def _unused_maps():
    """The maps without another device above them."""
    maps = [block for block in Path("/sys/block").glob("dm-*") if read(block / "dm" / "uuid").startswith("mpath-")]
    return [block for block in maps if not list(block.glob("holders/*"))]
