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
from typing import Any, BinaryIO, Dict, Iterator, Optional, Tuple

from relvmoiscsi.cli.output import say
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError, in_state
from relvmoiscsi.host.files import remedy, sync_directory
from relvmoiscsi.host.own_path import NotOwn, NotOwnFile, OwnPlace, own_place
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
        if path is not None:
            with self._verified() as place, _new(place):
                pass

    def must_be_new(self) -> None:
        """Raises UsageError where the file has content. A run calls this before it changes anything."""
        if not self._path:
            return
        with self._verified() as place:
            if not _is_free(place):
                exists = UsageError(f"{self._path} already exists and --map-out replaces no file.")
                raise exists.advising("Give the name of a new file.")

    @contextmanager
    def _verified(self) -> Iterator[OwnPlace]:
        """Give the place of a new file. Raises UsageError, also for what the block raises."""
        with in_state(NOTHING_WRITTEN):
            try:
                with own_place(self._path) as place:
                    place.verify_new()
                    yield place
            except NotOwnFile:
                foreign = f"{self._path} is a link, or belongs to another user: --map-out replaces no such file."
                raise UsageError(foreign).advising("Give the name of a new file.") from None
            except NotOwn as problem:  # another user could replace the file
                unsafe = UsageError(f"{self._path} is no safe place for a map: {problem}.")
                raise unsafe.advising("Give a directory of your own.") from None
            except OSError as error:
                made = f"The file of --map-out, {self._path}, cannot be made: {error.strerror}."
                is_missing = isinstance(error, FileNotFoundError)
                way = "Make its directory first." if is_missing else remedy(error, self._path)
                raise UsageError(made).advising(way) from error

    def finish(self, facts: Dict[str, Any], look: str, is_plan: bool = False) -> bool:
        """Write the content and rename the file. Return False, with a sentence on stderr, when a step fails.

        A file with this very content stays, as of a run that is repeated when all is done. `look` is the sentence on
        where to find the map of a run, for a failed write. No other place has the plan of a dry run.
        """
        if not self._path:
            return True
        content = answer_text(self._command, facts, indent=2).encode("ascii") + b"\n"
        try:
            with own_place(self._path) as place, _new(place) as (new, file):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if not _is_free(place):
                    if place.read(len(content)) == content:
                        return True
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                new.rename(place.name)
                sync_directory(place.directory.link)
        except (NotOwn, OSError, Refused) as problem:
            reason = getattr(problem, "strerror", None) or problem
            done = "The plan is not saved:" if is_plan else "The run is complete, but"
            look = f"{NOTHING_WRITTEN} Repeat the command with another FILE." if is_plan else look
            say(printable(f"{done} the map cannot be written to {self._path}: {reason}. {look}"))
            return False
        return True


@contextmanager
def _new(place: OwnPlace) -> Iterator[Tuple[OwnPlace, BinaryIO]]:
    """Make a file beside the place. The file is removed after the block, unless it was renamed."""
    new = place._replace(name=f".{place.name}.{os.urandom(6).hex()}")
    try:
        with open(new.make(os.O_WRONLY), "wb") as file:
            yield new, file
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


def _is_free(place: OwnPlace) -> bool:
    """Is the name free for the file? True without a file, and for an empty file as mktemp makes it."""
    try:
        with place.entry() as entry:
            return stat.S_ISREG(entry.status.st_mode) and entry.status.st_size == 0
    except FileNotFoundError:
        return True
