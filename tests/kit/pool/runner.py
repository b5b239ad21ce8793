# SPDX-License-Identifier: LGPL-2.1-only
"""One driver call as xapi makes it: the request, the process, the answer; and a log of them all.

Source: xen-api ocaml/xapi/sm_exec.ml.
"""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from . import wire
from .errors import XenError

#: xapi's, behind the directory of a Python that has the module XenAPI, as dom0's has it
PATH = f"{os.path.dirname(sys.executable)}:/sbin:/usr/sbin:/bin:/usr/bin"
OBSERVER = str(Path(__file__).resolve().parent / "observer.py")
OBSERVER_CONFIG_DIR = "'/etc/xensource/observer/smapi/enabled'"  # quoted: xapi passes it through Filename.quote

#: members of a request, in xapi's order
MEMBERS = (
    "host_ref", "command", "args", "device_config", "session_ref", "sr_sm_config", "sr_ref", "vdi_type", "sr_uuid",
    "vdi_ref", "vdi_location", "vdi_uuid", "driver_params", "vdi_sm_config", "new_uuid", "subtask_of", "vdi_on_boot",
    "vdi_allow_caching", "local_cache_sr",
)  # fmt: skip


class NotImplementedInBackend(Exception):
    """The driver answered fault 38; what a client gets depends on the call."""


class Entry(NamedTuple):
    """One driver call, when it is over."""

    number: int  #: from 1, in the order in which calls ended
    command: str
    argv: tuple
    environment: dict
    cwd: str
    stdin: bytes
    stdout: bytes
    stderr: bytes
    status: int  #: exit status; a negative number is the signal that ended it
    pid: int
    started: float  #: seconds of time.monotonic()
    duration: float  #: seconds
    params: dict  #: the request's members


class Running(NamedTuple):
    """A driver that has not ended."""

    pid: int
    command: str
    params: dict


def request(members):
    """A driver's argument. `members`: name to string, dict of strings or list of strings; None for what is absent."""
    assert set(members) <= set(MEMBERS), members
    body = []
    for name in MEMBERS:
        value = members.get(name)
        if isinstance(value, dict):
            body.append((name, wire.strings(value)))
        elif isinstance(value, list):
            body.append((name, wire.array(map(wire.string, value))))
        elif value is not None:
            body.append((name, wire.string(value)))
    return wire.method_call(members["command"], wire.structure(body))


class CallLog:
    """Every driver call, for tests to look at."""

    def __init__(self):
        self._entries = []
        self._changed = threading.Condition()
        self._running = {}

    def __iter__(self):
        with self._changed:
            return iter(list(self._entries))

    def of(self, command):
        return [entry for entry in self if entry.command == command]

    def grep(self, secret):
        """Where a text stands in what was given to drivers or came from them: ["call 3 (sr_create): argv", ...]."""
        wanted = secret.encode("utf-8")
        found = []
        for entry in self:
            places = [("argv", "\0".join(entry.argv)), ("environment", repr(entry.environment))]
            texts = [(name, text.encode("utf-8", "surrogateescape")) for name, text in places]
            for name, text in texts + [("stdout", entry.stdout), ("stderr", entry.stderr)]:
                if wanted in text:
                    found.append(f"call {entry.number} ({entry.command}): {name}")
        return found

    def running(self):
        with self._changed:
            return list(self._running.values())

    def wait_for_start(self, command, timeout_s=60, **params):
        """The Running that has this command and these members, as soon as there is one."""

        def found():
            for running in self._running.values():
                if running.command == command and all(running.params.get(k) == v for k, v in params.items()):
                    return running
            return None

        with self._changed:
            running = self._changed.wait_for(found, timeout_s)
        assert running, f"no {command} was started within {timeout_s} s"
        return running

    def _started(self, running):
        with self._changed:
            self._running[running.pid] = running
            self._changed.notify_all()

    def _ended(self, **values):
        with self._changed:
            duration = time.monotonic() - values["started"]
            entry = Entry(number=len(self._entries) + 1, duration=duration, **values)
            self._running.pop(entry.pid, None)
            self._entries.append(entry)
            self._changed.notify_all()
        return entry


class Runner:
    """Runs drivers. `observer`: a Python under which to run them, as xapi does where an Observer asks for it."""

    def __init__(self, log, observer=None):
        self.log = log
        self.observer = observer
        self.start = subprocess.Popen  #: what starts a driver; kit.lab.warm has another one
        self.in_process = {}  #: file name of a driver that nobody tests: what gives its stdout and stderr for a request

    def call(self, path, members):
        """Make a driver call; gives the result as an Element. Raises XenError and NotImplementedInBackend."""
        entry = self._execute(path, members)
        output = [entry.stdout.decode("utf-8", "replace"), entry.stderr.decode("utf-8", "replace")]
        if entry.status < 0:
            raise XenError("SR_BACKEND_FAILURE", "received signal: " + signal.Signals(-entry.status).name, *output)
        if entry.status > 0:
            raise XenError("SR_BACKEND_FAILURE", "non-zero exit", *output)
        try:
            answer = wire.parse(entry.stdout)
        except wire.NotXml as error:
            raise XenError("SR_BACKEND_FAILURE", error, *output) from error
        try:
            result = wire.method_response(answer)
        except wire.RunTimeTypeError as error:
            raise XenError("INTERNAL_ERROR", error) from error
        if isinstance(result, wire.Fault):
            raise self._error(result, members, output[1])
        return result

    @staticmethod
    def _error(fault, members, stderr):
        """Facts 2.4."""
        if fault.code == 38:
            return NotImplementedInBackend()
        if fault.code == 144:
            return XenError("VDI_MISSING", members.get("sr_ref") or "", members.get("vdi_ref") or "")
        known = {16: "SR_DEVICE_IN_USE", 24: "VDI_IN_USE", 39: "SR_NOT_EMPTY"}
        if fault.code in known:
            return XenError(known[fault.code])
        return XenError(f"SR_BACKEND_FAILURE_{fault.code}", "", fault.text, stderr)

    def environment(self, path):
        environment = {"PATH": PATH, "ORIGINATOR": "SM"}  # the latter since xapi 25.5
        if self.observer:
            environment["OBSERVER_CONFIG_DIR"] = OBSERVER_CONFIG_DIR
            environment["PYTHONPATH"] = os.path.dirname(path)
        return environment

    def _execute(self, path, members):
        argv = (path, request(members))
        if self.observer:
            argv = (self.observer, OBSERVER) + argv
        call = {
            "command": members["command"], "argv": argv, "environment": self.environment(path), "cwd": "/",
            "stdin": b"", "started": time.monotonic(), "params": dict(members),
        }  # fmt: skip
        stand_in = self.in_process.get(os.path.basename(path))
        if stand_in:
            stdout, stderr = (text.encode() for text in stand_in(argv[-1]))
            return self.log._ended(stdout=stdout, stderr=stderr, status=0, pid=0, **call)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            pid, status = self._run(argv, call["environment"], members, stdout, stderr)
            stdout.seek(0)
            stderr.seek(0)
            return self.log._ended(stdout=stdout.read(), stderr=stderr.read(), status=status, pid=pid, **call)

    def _run(self, argv, environment, members, stdout, stderr):
        """(pid, status); 127 when there is nothing to execute."""
        try:
            process = self.start(
                [part.encode("utf-8", "surrogateescape") for part in argv],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, cwd="/", close_fds=True,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG):
                raise
            stderr.write(f"{error}\n".encode())
            return 0, 127
        self.log._started(Running(process.pid, members["command"], dict(members)))
        return process.pid, process.wait()

    def continue_all(self):
        """Let every driver go on that somebody has stopped."""
        self.kill_all(signal.SIGCONT)

    def kill_all(self, number=signal.SIGKILL):
        """End every driver that still runs, and what it started in its process group."""
        for running in self.log.running():
            try:
                os.killpg(running.pid, number)
            except ProcessLookupError:
                pass  # it has just ended by itself
