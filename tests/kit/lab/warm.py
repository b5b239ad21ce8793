# SPDX-License-Identifier: LGPL-2.1-only
"""Starts drivers by a fork of a process that has imported what they import: an emulated processor imports for seconds.

    the tests                     a process of its own              a fork of it
    Warm.start: words, files -->  forks                             the driver: session, files, environment, words as
    pid, status  <--------------  waits for its forks               xapi gives them, then the executable's own code

Such a call lacks the start of the interpreter. A test of that start executes the file.

The VM's tests run on a current Python alone, so vermin passes over lines that Python 3.6 does not have (novm).
"""

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import socket
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
MODULES = ("relvmoiscsi.host.xapi.rpc", "xml.dom.minidom", "relvmoiscsi.engine")
PACKAGES = ["relvmoiscsi." + name for name in ("formats", "host", "iscsi", "resignature", "sr_driver")]


class Warm:
    """Has a `start` that takes what Runner gives to subprocess.Popen, and gives what has a `pid` and a `wait`."""

    def __init__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(TOP), str(TOP / "tests")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from kit.lab import warm; warm.serve()"], stdin=theirs, cwd="/", env=env
            )

    def start(self, argv, stdout, stderr, env, **_options):
        ours, theirs = socket.socketpair()
        message = json.dumps([[os.fsdecode(word) for word in argv], env]).encode()
        with theirs:
            socket.send_fds(self._socket, [message], [theirs.fileno(), stdout.fileno(), stderr.fileno()])  # novm
        return Started(ours)

    def stop(self):
        self._socket.close()
        self._process.wait()


class Started:
    """A driver at work."""

    def __init__(self, control):
        self._answers = control.makefile("rb")
        control.close()
        self.pid = int(self._answers.readline())

    def wait(self):
        """Its exit status, or the signal that ended it as a negative number."""
        with self._answers:
            status = int(self._answers.readline())
            assert self._answers.read() == b"", "who waited for it has ended as well"
        return status


def serve():
    """Fork for each call that comes by the descriptor 0, until nobody sends any more."""
    for name in MODULES:
        importlib.import_module(name)
    for name in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
            importlib.import_module(found.name)
    sys.path[:] = [place for place in sys.path if place not in ("", str(TOP), str(TOP / "tests"))]
    drivers, poll = {}, select.poll()  # {descriptor of a driver: its pid, where its end is told}
    with socket.socket(fileno=os.dup(0)) as calls:
        poll.register(calls, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor in drivers:
                    poll.unregister(descriptor)
                    _tell_end(descriptor, *drivers.pop(descriptor))
                    continue
                message, files, _flags, _address = socket.recv_fds(calls, 1 << 20, 3)  # novm
                if not message:
                    return
                control, pid = files[0], os.fork()
                if pid == 0:
                    _become(*json.loads(message), *files[1:])
                os.write(control, b"%d\n" % pid)
                for file in files[1:]:
                    os.close(file)
                driver = os.pidfd_open(pid)  # novm
                poll.register(driver, select.POLLIN)
                drivers[driver] = pid, control


def _tell_end(driver, pid, control):
    """Tell how a driver ended."""
    _pid, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # the test has failed, and waits no more
        os.write(control, b"%d\n" % os.waitstatus_to_exitcode(status))  # novm
    for descriptor in (driver, control):
        os.close(descriptor)


def _become(argv, env, stdout, stderr):
    """The driver, as if the file were executed; does not return."""
    status = 1
    try:
        os.setsid()
        for descriptor, there in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, there)
        os.closerange(3, 1 << 16)
        os.environ.clear()
        os.environ.update(env)
        sys.argv[:] = argv
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
        runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
