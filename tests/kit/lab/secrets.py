# SPDX-License-Identifier: LGPL-2.1-only
"""Remembers the command line and environment of every process, so that a test can look for a secret in them.

The kernel's audit tells of every program that is started, with its words. The environment is read at once from /proc:
a program that ends within that moment has shown only its words. Processes that run already are looked at once.
"""

import os
import re
import socket
import struct
import threading
import uuid
from pathlib import Path

from .command import run

_NETLINK_AUDIT = 9
_SET, _ADD_RULE, _DEL_RULE = 1001, 1011, 1012
_SYSCALL, _EXECVE = 1300, 1309
_EXECVE_CALLS = {59, 322}  #: execve and execveat of x86-64
_ENABLED, _PID, _BACKLOG = 1, 4, 16  #: which fields of struct audit_status a message sets
_WORD = re.compile(r' a\d+(?:\[\d+\])?=("[^"]*"|[0-9A-F]+)')


class Watcher:
    """Use as a context manager; afterwards, or meanwhile, `places(secret)` says where the secret was seen."""

    def __init__(self):
        self.seen = {}  #: (pid, "cmdline" or "environ") -> set of bytes
        self.began = set()  #: command lines of programs that have begun, as text
        self._end = f"end-{uuid.uuid4()}"

    def __enter__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_AUDIT)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._tell(_SET, _status(enabled=1, pid=os.getpid()))
        self._tell(_ADD_RULE, _rule())
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                self._look(int(entry), "cmdline")
                self._look(int(entry), "environ")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        run("true", self._end)  # what began before was told before
        self._thread.join(60)
        assert not self._thread.is_alive(), "the kernel's audit tells of what begins"
        self._tell(_DEL_RULE, _rule())
        self._tell(_SET, _status(enabled=0, pid=0))
        self._socket.close()

    def places(self, secret):
        """Where a secret stood: "cmdline of 123: iscsiadm -m ..."; the lab's own processes are among them."""
        wanted = secret.encode("utf-8")
        every = [(key, text) for key, texts in list(self.seen.items()) for text in list(texts)]
        return sorted(f"{kind} of {pid}: {_text(text)}" for (pid, kind), text in every if wanted in text)

    def _tell(self, what, content):
        self._socket.send(struct.pack("=IHHII", 16 + len(content), what, 1, 0, 0) + content)

    def _follow(self):
        pid = None
        while True:
            data = self._socket.recv(65536)
            kind, text = struct.unpack_from("=H", data, 4)[0], data[16:].decode("utf-8", "replace")
            if kind == _SYSCALL:
                pid = int(re.search(r" pid=(\d+)", text).group(1))
                self._look(pid, "environ")
            elif kind == _EXECVE:  # it follows the record of its call
                words = [_word(match) for match in _WORD.findall(text)]
                if words[1:] == [self._end.encode()]:
                    return
                self._keep(pid, "cmdline", b"\0".join(words))
                self.began.add(_text(b"\0".join(words)))

    def _look(self, pid, kind):
        try:
            text = Path(f"/proc/{pid}/{kind}").read_bytes()
        except OSError:
            return  # it has ended
        if text:
            self._keep(pid, kind, text)

    def _keep(self, pid, kind, text):
        self.seen.setdefault((pid, kind), set()).add(text)


def _word(value):
    """A word is in quotation marks, or in hexadecimal digits where it has other letters than plain ones."""
    return value[1:-1].encode() if value.startswith('"') else bytes.fromhex(value)


def _status(enabled, pid):
    """struct audit_status: who is told, and how many records may wait."""
    return struct.pack("=11I", _ENABLED | _PID | _BACKLOG, enabled, 0, pid, 0, 8192, 0, 0, 0, 0, 0)


def _rule():
    """struct audit_rule_data: at its exit, every call that starts a program."""
    mask = [0] * 64
    for call in _EXECVE_CALLS:
        mask[call // 32] |= 1 << call % 32
    return struct.pack("=3I64I192II", 4, 2, 0, *mask, *[0] * 193)


def _text(words):
    return words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
