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
from typing import Any, BinaryIO, Dict, Iterator, Optional

from relvmoiscsi.cli.output import say
from relvmoiscsi.errors import NOTHING_WRITTEN, UsageError, in_state
from relvmoiscsi.host.files import open_private, sync_directory
from relvmoiscsi.host.own_path import NotOwn, NotOwnFile, read_named, verify_new
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


class MapFile:
    """A new file, written under a temporary name in the same directory. Without a path, no method does anything."""

    def __init__(self, path: Optional[str], command: str) -> None:
        """Verify the place. `command` is the name of the answer in the schema. Raises UsageError."""
        self._path, self._command = "" if path is None else os.path.abspath(path), command
        if path is None:
            return
        with in_state(NOTHING_WRITTEN):
            try:
                verify_new(self._path)
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

    def must_be_new(self) -> None:
        """Raises UsageError where the file has content. A run calls this before it changes anything."""
        if self._path and not _is_free(self._path):
            raise (
                UsageError(f"{self._path} already exists and --map-out replaces no file.")
                .in_state(NOTHING_WRITTEN)
                .advising("Give the name of a new file.")
            )

    def finish(self, facts: Dict[str, Any], look: str) -> bool:
        """Write the content and rename the file. Return False, with a sentence on stderr, when a step fails.

        A file with this very content stays, as of a run that is repeated when all is done. `look` is the sentence on
        where to find the map, for a failed write.
        """
        if not self._path:
            return True
        content = answer_text(self._command, facts, indent=2).encode("ascii") + b"\n"
        try:
            with self._new() as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if not _is_free(self._path):
                    if read_named(self._path, len(content)) == content:
                        return True
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(file.name, self._path)
            sync_directory(os.path.dirname(self._path))
        except (NotOwn, OSError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            lost = f"The run is complete, but the map cannot be written to {self._path}: {reason}. {look}"
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
        status = os.lstat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size == 0
