# SPDX-License-Identifier: LGPL-2.1-only
"""What is logged by way of /dev/log; dom0 writes facility LOCAL2 to /var/log/SMlog."""

import os
import re
import socket
import threading
import time
import uuid
from typing import NamedTuple

from .command import HANGS

LOCAL2 = 18
PATH = "/dev/log"


class Line(NamedTuple):
    """A message as it came: `text` begins with the program's name."""

    facility: int
    text: str
    at: float  #: time.monotonic() when it came


class Syslog:
    """Listens on /dev/log and keeps everything."""

    def __init__(self):
        self.lines = []
        self._came = threading.Condition()
        self._stop = threading.Event()

    def start(self):
        if os.path.lexists(PATH):
            os.unlink(PATH)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(PATH)
        os.chmod(PATH, 0o666)
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join()
        self._socket.close()
        os.unlink(PATH)

    def _listen(self):
        while not self._stop.is_set():
            try:
                data = self._socket.recv(65536)
            except socket.timeout:
                continue
            with self._came:
                self.lines.append(_parse(data.decode("utf-8", "backslashreplace")))
                self._came.notify_all()

    def wait(self, number, seconds):
        """Wait until line `number` is there, or so many seconds; gives the number of lines."""
        with self._came:
            self._came.wait_for(lambda: len(self.lines) > number, seconds)
            return len(self.lines)

    def smlog(self, since=0):
        """The texts of LOCAL2 from line `since`; what was sent before is in: a line of our own comes behind it."""
        mark = f"mark {uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(mark.encode("ascii"), PATH)
        with self._came:
            arrived = self._came.wait_for(lambda: any(line.text == mark for line in self.lines[since:]), HANGS)
        assert arrived, "the log listens"
        return [line.text for line in self.lines[since:] if line.facility == LOCAL2]

    def save(self, path):
        with open(str(path), "w", encoding="utf-8") as out:
            out.writelines(f"{line.at:10.3f} {line.facility} {line.text}\n" for line in self.lines)


def _parse(message):
    """RFC 3164 as libc sends it: <priority>Mon dd hh:mm:ss text; Python's handler leaves the time out."""
    match = re.match(r"<(\d+)>(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(.*)", message.rstrip("\0\n"), re.S)
    facility, text = (int(match.group(1)) >> 3, match.group(2)) if match else (1, message)
    return Line(facility, text, time.monotonic())
