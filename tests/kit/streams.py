# SPDX-License-Identifier: LGPL-2.1-only
"""Streams that stand for stdin, stdout and stderr."""

import errno
import io
import os


class Terminal(io.StringIO):
    """Somebody sits there; as stdin, types this."""

    def isatty(self):
        return True


class BytesTerminal(io.TextIOWrapper):
    """Somebody sits there and types these bytes, which a program reads in this encoding."""

    def __init__(self, data, encoding):
        super().__init__(io.BytesIO(data), encoding)

    def isatty(self):
        return True


class Unwritable(io.StringIO):
    """Each write fails: on a full disk, to a terminal or a reader that is gone. `tried` has the texts."""

    def __init__(self, number=errno.ENOSPC):
        super().__init__()
        self._number = number
        self.tried = []

    def write(self, text):
        self.tried.append(text)
        raise OSError(self._number, os.strerror(self._number))
