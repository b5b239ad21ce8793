# SPDX-License-Identifier: LGPL-2.1-only
"""Running a program, and waiting for something to become true."""

import os
import subprocess
import time
from typing import NamedTuple

#: never a pyenv shim in front of a system program
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: seconds after which something hangs: so long that a busy machine is never taken for one that does
HANGS = 600


class Result(NamedTuple):
    """What a program said."""

    status: int
    out: str
    err: str


def run(*argv, check=True, timeout=HANGS, env=None, stdin=""):
    """Run a program to its end; AssertionError with all it said if it fails and `check` is on. Seconds: `timeout`."""
    argv = [str(word) for word in argv]
    env = {**os.environ, "PATH": PATH, "LC_ALL": "C", "LVM_SUPPRESS_FD_WARNINGS": "1", **(env or {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "universal_newlines": True}
    done = subprocess.run(argv, input=stdin, timeout=timeout, env=env, check=False, **pipes)
    result = Result(done.returncode, done.stdout, done.stderr)
    assert not check or result.status == 0, f"$ {' '.join(argv)}\nexit status {result.status}\n{result.out}{result.err}"
    return result


def until(probe, what, seconds=HANGS):
    """Ask `probe` until it says something true, and return that. AssertionError, with `what`, after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"after {seconds} s still not so: {what}"
        time.sleep(0.05)


class _Settled:
    number = ""  #: of the kernel's last event when udev had handled every one


def settle(seconds=HANGS):
    """Wait until udev has handled every event. When none has come since that was so last, nothing is started."""
    number = read("/sys/kernel/uevent_seqnum")
    if number and number == _Settled.number and not os.path.exists("/run/udev/queue"):
        return
    run("udevadm", "settle", f"--timeout={seconds}", timeout=seconds + 10)
    _Settled.number = number


def reload_rules():
    """Have udev read its rules anew; by itself the program gives a busy machine a minute."""
    run("udevadm", "control", "--reload", f"--timeout={HANGS}")


def read(path):
    """The text of a small file without white space around it; empty if there is none or it cannot be read now."""
    try:
        with open(str(path), "rb") as stream:
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def write(path, text):
    """Put text into a file, in one write as sysfs and configfs want it."""
    with open(str(path), "wb", buffering=0) as stream:
        stream.write(text.encode("utf-8"))
