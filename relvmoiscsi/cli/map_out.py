# SPDX-License-Identifier: LGPL-2.1-only
"""The file of --map-out: the --json output, for a later investigation.

The command makes the file and removes the file before the LUN is opened. So an unwritable path is an error before any
change, and a killed run leaves no file. The new file gets its name after its content is complete and durable. --map-out
never replaces content: the name may belong to an image, to the file behind a loop device, or to the only record of an
earlier run. The file has mode 0600, because names of VMs and disks are in it. No other user may be able to replace a
directory on the way to the file: that user could direct a command of root to any file of the host.
"""

import errno
import os
import stat
from argparse import ArgumentTypeError
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Dict, Iterator, Optional

from relvmoiscsi.cli.output import say
from relvmoiscsi.errors import NOTHING_WRITTEN, UsageError, in_state
from relvmoiscsi.host.files import open_private, sync_directory
from relvmoiscsi.host.own_path import NotOwn, NotOwnFile, verify_new
from relvmoiscsi.json_answer import answer_text
from relvmoiscsi.wording import printable


def file_name(word: str) -> str:
    """Return the FILE of any option. Raises ArgumentTypeError for an empty name, as of an empty shell variable.

    The same for `-`, by which other programs mean stdin or stdout.
    """
    if not word.strip():
        raise ArgumentTypeError(f"{word!r} names no file")
    if word == "-":
        raise ArgumentTypeError("'-' names no file: a file of this name is ./-")
    return word


@contextmanager
def new_file(path: Optional[str], command: str) -> Iterator[Callable[[Dict[str, Any], str], bool]]:
    """Yield a function that writes facts to the file and returns whether the write succeeded.

    Without a path, the function does nothing. `command` is the name of the answer in the schema. The second argument
    of the function is the sentence on where to find the map, for a failed write. Raises UsageError before the block
    where the file cannot be made, or has content already.
    """
    if path is None:
        yield lambda facts, look: True
        return
    with in_state(NOTHING_WRITTEN):
        file = _MapFile(path, command)
    yield file.finish


class _MapFile:
    """A new file, written under a temporary name in the same directory."""

    def __init__(self, path: str, command: str) -> None:
        """Raises UsageError when the file cannot be made, or exists with content."""
        self._path, self._command = os.path.abspath(path), command
        try:
            verify_new(self._path)
            if not _is_free(self._path):
                raise UsageError(f"{path} already exists and --map-out replaces no file.").advising(
                    "Give the name of a new file."
                )
            with self._new():
                pass
        except NotOwnFile:
            foreign = f"{self._path} is a link, or belongs to another user: --map-out replaces no such file."
            raise UsageError(foreign) from None
        except NotOwn as problem:  # another user could replace the file
            unsafe = UsageError(f"{self._path} is no safe place for a map: {problem}.")
            raise unsafe.advising("Give a directory of your own.") from None
        except OSError as error:
            raise UsageError(f"The file of --map-out, {path}, cannot be made: {error.strerror}.") from error

    def finish(self, facts: Dict[str, Any], look: str) -> bool:
        """Write the content and rename the file. Return False, with a sentence on stderr, when a step fails."""
        try:
            with self._new() as file:
                file.write(answer_text(self._command, facts, indent=2).encode("ascii") + b"\n")
                file.flush()
                os.fsync(file.fileno())
                if not _is_free(self._path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(file.name, self._path)
            sync_directory(os.path.dirname(self._path))
        except OSError as error:
            lost = f"The run is complete, but the map cannot be written to {self._path}: {error.strerror}. {look}"
            say(printable(lost))
            return False
        return True

    @contextmanager
    def _new(self) -> Iterator[BinaryIO]:
        """Make a file that is removed after the block, unless the file was renamed."""
        directory, name = os.path.split(self._path)
        path = os.path.join(directory, f".{name}.{os.urandom(6).hex()}")
        try:
            with open(path, "wb", opener=lambda where, _flags: open_private(where, os.O_WRONLY | os.O_EXCL)) as file:
                yield file
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _is_free(path: str) -> bool:
    """Is the name free for the file? True without a file, and for an empty file as mktemp makes it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size == 0
