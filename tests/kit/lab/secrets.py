# SPDX-License-Identifier: LGPL-2.1-only
"""Remembers the command line and environment of every process, so that a test can look for a secret in them.

The kernel announces every exec (its process connector) and what was announced is read at once. A process that ends
within that moment may be missed, so what programs write should be searched as well. Processes that were there before
are looked at once.
"""

import os
import select
import socket
import struct
import threading
from pathlib import Path

_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = 1
_LISTEN, _IGNORE = 1, 2
_EXEC = 0x00000002


class Watcher:
    """Use as a context manager; afterwards, or meanwhile, `places(secret)` says where it was seen."""

    def __init__(self):
        self.seen = {}  #: (pid, "cmdline" or "environ") -> set of bytes
        self.began = set()  #: command lines of programs that have begun, as text
        self._stop = threading.Event()

    def __enter__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
        self._socket.bind((os.getpid(), _CN_IDX_PROC))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._tell(_LISTEN)
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                self._look(int(entry))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._tell(_IGNORE)
        self._socket.close()

    def places(self, secret):
        """Where a secret stood: "cmdline of 123: iscsiadm -m ..."; the lab's own processes are among them."""
        wanted = secret.encode("utf-8")
        return sorted(
            f"{kind} of {pid}: {_text(text)}"
            for (pid, kind), texts in list(self.seen.items())
            for text in list(texts)
            if wanted in text
        )

    def _tell(self, what):
        message = struct.pack("=IIIIHHI", _CN_IDX_PROC, 1, 0, 0, 4, 0, what)
        header = struct.pack("=IHHII", 16 + len(message), 3, 0, 0, os.getpid())
        self._socket.send(header + message)

    def _follow(self):
        while not self._stop.is_set():
            if select.select([self._socket], [], [], 0.1)[0]:
                data = self._socket.recv(8192)
                what, _, _, pid = struct.unpack_from("=IIQI", data, 36)
                if what == _EXEC:
                    self._look(pid)
                    self.began |= {_text(one) for one in self.seen.get((pid, "cmdline"), ())}

    def _look(self, pid):
        for kind in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{kind}").read_bytes()
            except OSError:
                continue  # it has ended
            if text:
                self.seen.setdefault((pid, kind), set()).add(text)


def _text(words):
    return words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
