# SPDX-License-Identifier: LGPL-2.1-only
"""The file of --map-out: what --json prints, for whoever looks a year later.

A file is made and taken away again before the LUN is opened. So a file that cannot be written is an error while nothing
has happened, and a run that is killed leaves none. The new file gets its name when it is whole and durable. No content
is ever replaced: the name may be that of an image, of the file behind a loop device, or of the only record of an
earlier run.
"""

import argparse
import errno
import json
import os
import stat
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Dict, Iterator, Optional

from relvmoiscsi.cli.output import Answer, Command, say
from relvmoiscsi.errors import NOTHING_WRITTEN, UsageError, in_state
from relvmoiscsi.host.files import sync_directory, take_over

EXIT_NOT_PRINTED = 74  #: it is done, and the file could not be written


def written(run: Command) -> Command:
    """The same command, which writes what it answers to the file of --map-out."""

    def command(arguments: argparse.Namespace) -> Answer:
        look = f"`relvmoiscsi show {arguments.device}` shows the state of {arguments.device}."
        with new_file(arguments.map_out, look) as finish:
            answer = run(arguments)
            return answer if finish(answer.facts) else answer._replace(status=EXIT_NOT_PRINTED)

    return command


@contextmanager
def new_file(path: Optional[str], look: str) -> Iterator[Callable[[Dict[str, Any]], bool]]:
    """A block that gives what it is called with to the file, and tells whether that was possible; without a path, it
    does nothing. `look` is the sentence on where to look where it was not. Raises UsageError before the block where the
    file cannot be made, or has content already.
    """
    if path is None:
        yield lambda facts: True
        return
    with in_state(NOTHING_WRITTEN):
        file = _MapFile(path, look)
    yield file.finish


class _MapFile:
    """A new file, written beside the name that it will have."""

    def __init__(self, path: str, look: str) -> None:
        """Raises UsageError when the file cannot be made, or when something is there already."""
        self._path, self._look = os.path.realpath(path), look
        try:
            if not _is_free(self._path):
                raise UsageError(f"{path} already exists and --map-out replaces no file. Give the name of a new file.")
            with self._new():
                pass
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}.") from error

    def finish(self, facts: Dict[str, Any]) -> bool:
        """Give it its content and its name. False, with a sentence on stderr, when that fails."""
        try:
            with self._new() as file:
                file.write(json.dumps(facts, indent=2).encode("ascii") + b"\n")
                file.flush()
                os.fsync(file.fileno())
                if not _is_free(self._path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(file.name, self._path)
            sync_directory(os.path.dirname(self._path))
        except OSError as error:
            say(f"The run is complete, but the map cannot be written to {self._path}: {error.strerror}. {self._look}")
            return False
        return True

    @contextmanager
    def _new(self) -> Iterator[BinaryIO]:
        """A file that is gone after the block unless it was given another name."""
        directory, name = os.path.split(self._path)
        path = os.path.join(directory, f".{name}.{os.urandom(6).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(path, "wb", opener=lambda where, _flags: os.open(where, flags, 0o600)) as file:
                take_over(self._path, file.fileno())
                yield file
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _is_free(path: str) -> bool:
    """Whether nothing is lost where a file gets this name: no file is there, or an empty one, as mktemp makes it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size == 0
