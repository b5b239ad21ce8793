# SPDX-License-Identifier: LGPL-2.1-only
"""A directory with the files of a healthy host, for the doctor. Each test breaks one thing.

xapi's process has number 100 and starts an hour from now, so all files are older than xapi.
"""

import os
import runpy
import shutil
import tempfile
import time
import xmlrpc.client
from contextlib import contextmanager
from pathlib import Path

from relvmoiscsi.doctor.host_root import XAPI_PATH
from relvmoiscsi.doctor.needs import OUR_RULES
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import TIMED_OUT, run
from relvmoiscsi.host.this_host import Host

TOP = Path(__file__).resolve().parents[2]
EXECUTABLE = TOP / "drivers" / "ReLVMoISCSISR"
HBA_EXECUTABLE = TOP / "drivers" / "ReLVMoHBASR"
PLUGIN = TOP / "drivers" / "plugins" / "relvmoiscsi"

DRIVER = "/opt/xensource/sm/ReLVMoISCSISR"
HBA_DRIVER = "/opt/xensource/sm/ReLVMoHBASR"
REAL_DRIVER = "/usr/share/relvmoiscsi/drivers/ReLVMoISCSISR"
DROP_IN = "/etc/xapi.conf.d/zz-relvmoiscsi.conf"
STOCK = "sm-plugins=ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"

UUID = "6f0e6ba1-0000-4000-8000-00000000000a"

DRIVER_INFO = runpy.run_path(str(EXECUTABLE))["DRIVER_INFO"]
INFO = xmlrpc.client.dumps((DRIVER_INFO,), methodresponse=True)
UNIMPLEMENTED = xmlrpc.client.dumps(xmlrpc.client.Fault(38, "The operation sr_doctor is not supported"))
AS_XAPI = ("/usr/bin/env", "-i", "PATH=" + XAPI_PATH, "PYTHONDONTWRITEBYTECODE=1")


class Transcript:
    """Programs that end as the test says: `(words of the command line, output or how it ends)`, in order."""

    def __init__(self, *expected):
        self.expected = list(expected)
        self.calls = []

    def __call__(self, argv, timeout=None, **options):
        assert timeout is not None and timeout <= 20, "a program that hangs must not hold up the doctor"
        assert self.expected, f"not expected: {argv}"
        words, outcome = self.expected.pop(0)
        assert all(word in argv for word in words), f"expected {words}, got {argv}"
        self.calls.append(tuple(argv))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def failed(status=1, stderr="it broke"):
    return CommandFailed(["program"], status, stderr)


def hangs():
    return CommandFailed(["program"], TIMED_OUT, "it did not end within 20 seconds and was stopped")


class World:
    """The host; paths are as on it: "/etc/xapi.conf"."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="doctor", dir="/tmp")  # short: a unix socket is to be in it
        os.chmod(self.root, 0o755)
        for fill in (self._driver, self._xapi, self._programs, self._rest):
            fill()

    def _driver(self):
        self.copy(EXECUTABLE, REAL_DRIVER)
        os.symlink(str(TOP / "relvmoiscsi"), self.at("/usr/share/relvmoiscsi/relvmoiscsi"))
        self.link(DRIVER, REAL_DRIVER)
        self.copy(HBA_EXECUTABLE, "/usr/share/relvmoiscsi/drivers/ReLVMoHBASR")
        self.link(HBA_DRIVER, "/usr/share/relvmoiscsi/drivers/ReLVMoHBASR")
        self.copy(PLUGIN, "/etc/xapi.d/plugins/relvmoiscsi")

    def _xapi(self):
        self.put("/etc/xapi.conf", "# xapi\n" + STOCK + "\n")
        self.put(DROP_IN, STOCK + " relvmoiscsi relvmohba\n")
        self.put("/etc/xensource-inventory", f"PRODUCT_BRAND='XenServer'\nINSTALLATION_UUID='{UUID}'\n")
        self.put("/proc/locks", "")
        self.xapi_started(3600)

    def _programs(self):
        for name in ("/usr/sbin/multipath", "/usr/sbin/multipathd"):
            self.program(name, "#!/bin/sh\n")
        for name in OUR_RULES:
            self.copy(TOP / "udev" / name, "/etc/udev/rules.d/" + name)

    def _rest(self):
        os.makedirs(self.at("/var/lib/xcp"))

    def host(self, *programs, **options):
        """The host as the doctor sees it; its programs end as `programs` say. Without any, they are run."""
        return Host(self.root, Transcript(*programs) if programs else run, **options)

    def xapi_started(self, seconds_from_now, number=100):
        self.put("/proc/stat", f"cpu 1 2 3\nbtime {int(time.time()) + seconds_from_now}\nprocesses 7\n")
        self.process(number, "xapi")

    def process(self, number, name, ticks=0, user=0):
        """`user` has started the process, which has root's rights, as those of a set-uid program have."""
        fields = ["S", "1"] + ["0"] * 17 + [str(ticks), "4096"]
        self.put(f"/proc/{number}/comm", name + "\n")
        self.put(f"/proc/{number}/status", f"Name:\t{name}\nUid:\t{user}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
        self.put(f"/proc/{number}/stat", "{} ({}) {}\n".format(number, name, " ".join(fields)))

    def at(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def put(self, path, content):
        self.remove(path)
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        with open(self.at(path), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8"))

    def program(self, path, content):
        self.put(path, content)
        os.chmod(self.at(path), 0o755)

    def copy(self, source, path):
        self.put(path, source.read_bytes())
        os.chmod(self.at(path), source.stat().st_mode & 0o777)

    def link(self, path, target):
        self.remove(path)
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        os.symlink(self.at(target), self.at(path))

    def directory(self, path):
        self.remove(path)
        os.makedirs(self.at(path))

    def remove(self, path):
        if os.path.isdir(self.at(path)) and not os.path.islink(self.at(path)):
            shutil.rmtree(self.at(path))
        elif os.path.lexists(self.at(path)):
            os.unlink(self.at(path))

    def tree(self):
        """All there is, with contents and times: looking must not change it."""
        found = {}
        for directory, _, names in os.walk(self.root):
            for path in [directory] + [os.path.join(directory, name) for name in names]:
                status = os.lstat(path)
                found[path] = status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return found


@contextmanager
def unreadable(path):
    """Nobody but root may look at this, and this process is not root."""
    mode = os.stat(path).st_mode & 0o7777
    os.chmod(path, 0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        os.chmod(path, mode)
