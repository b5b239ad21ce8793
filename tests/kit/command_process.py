# SPDX-License-Identifier: LGPL-2.1-only
"""The command as a process of its own, on a host of its own, that stops where a test says so.

    client = Client(tmp_path / "a", "resignature", loop, "--yes", "--not-in-use", stop=7)
    client.stands()         it is stopped (SIGSTOP) at the moment of number 7 (`Standing`); False: it has ended before
    client.goes_on()        it ends

It runs the command as it is, on the disk's own requests. A host is a /run of its own: there are the locks of LVM and of
this project. As root.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from relvmoiscsi.device import Fence

TESTS = Path(__file__).resolve().parents[1]

#: sys.argv: seconds of `Fence`, "fenced" or not, number and name of the moment, a file for all moments, then the words
_STARTER = """
import os, signal, sys
from kit.standing import Standing
from relvmoiscsi.cli import main
from relvmoiscsi.device import Fence
from relvmoiscsi.host.disk import block_device

stop, told = {"stop": int(sys.argv[3]), "at": sys.argv[4]}, open(sys.argv[5], "w", buffering=1)

class Stopped(Standing, block_device.BlockDevice):
    def __init__(self, *given):
        super().__init__(*given, then=lambda: os.kill(os.getpid(), signal.SIGSTOP), **stop)
        self.moments = moments

    def _pass(self, moment):
        print(moment, file=told)
        super()._pass(moment)

moments = []  # of all devices that the command opens
Fence.OUTLAST_SECONDS = float(sys.argv[1])
if sys.argv[2] != "fenced":
    Fence.look = Fence.look_if_due = lambda *_: None
block_device.BlockDevice, block_device.WORKERS = Stopped, 1
sys.argv[:6] = ["relvmoiscsi"]
sys.exit(main())
"""

_ON_A_HOST = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh")
SECONDS = 300  #: no run takes that long

CLD_STOPPED = 5  #: asm-generic/siginfo.h; Python has it from 3.9 on


class Client:
    """A process; `directory` is its own. `stop=0`: it never stops."""

    def __init__(self, directory, *words, stop=0, at="", outlast=Fence.OUTLAST_SECONDS, fenced=True):
        directory.mkdir()
        self._told, self._output = directory / "moments", directory / "output"
        given = (str(outlast), "fenced" if fenced else "", str(stop), at, str(self._told), *words)
        environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "COLUMNS": "1000"}
        with open(str(self._output), "wb") as output:
            self._process = subprocess.Popen(
                [*_ON_A_HOST, sys.executable, "-c", _STARTER, *given],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
            )  # fmt: skip

    def stands(self):
        """Wait until it is stopped or has ended."""
        found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return found.si_code == CLD_STOPPED

    def goes_on(self):
        """To its end. Returns the exit status."""
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGCONT)
        return self._process.wait(SECONDS)

    def end(self):
        """Whatever it does."""
        self._process.kill()
        self._process.wait(SECONDS)

    @property
    def moments(self):
        return self._told.read_text().splitlines()

    @property
    def said(self):
        return self._output.read_text()
