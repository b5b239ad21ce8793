# SPDX-License-Identifier: LGPL-2.1-only
"""The file /etc/relvmoiscsi.conf: its sections, and how it is changed.

An INI file. Not read by configparser, which raises for a whole file where one line is wrong, and tells no line numbers:
the file is the administrator's, so a change of one line keeps every other byte. Where every line is well-formed,
configparser reads the same, as a test shows.
"""

import logging
import os
import re
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.files import content_of, replace, sync_directory

log = logging.getLogger(__name__)

LOCK_SECONDS = 30.0  #: for a command that asks xapi and has a map made

NOT_CHANGED = "Nothing was changed."

KEY_VALUE = re.compile(r"(.*?)\s*[=:]\s*(.*)\Z")
_HEADER = re.compile(r"\[([^]]+)\]")


# --- its text


def settings_of(text: str, section: str) -> Dict[str, str]:
    """The settings of a section of the file; of several lines on one name, the last counts."""
    pairs = (KEY_VALUE.match(said(line)) for _, line in lines_of_section(text.split("\n"), section))
    return {pair.group(1): pair.group(2) for pair in pairs if pair}


def lines_of_section(lines: Sequence[str], section: str) -> Iterator[Tuple[int, str]]:
    """Its lines and their numbers, from 0, without the headers: a file may have it more than once."""
    inside = False
    for number, line in enumerate(lines):
        name = header(line)
        if name is not None:
            inside = name == section
        elif inside:
            yield number, line


def header(line: str) -> Optional[str]:
    """The name of the section that the line begins; None if it begins none."""
    match = _HEADER.match(line.strip())
    return match.group(1) if match else None


def said(line: str) -> str:
    """What a line says, without comment and blanks."""
    return re.sub(r"(^|\s)[#;].*", "", line).strip()


def insert_line(lines: List[str], at: int, line: str, like: str) -> None:
    """Put a line into a file, with the line end that the line `like` has."""
    lines.insert(at, line + ("\r" if like.endswith("\r") else ""))


def append_section(lines: List[str], *section: str) -> None:
    """Put the lines of a section behind the others, a blank one between."""
    end = len(lines) if lines[-1] else len(lines) - 1
    lines[end:end] = ([""] if lines != [""] else []) + list(section)


# --- the file


def read_config(path: str) -> str:
    """The text of the file, whatever bytes it has; empty if there is none. Raises Refused when it does not read."""
    try:
        return (content_of(path) or b"").decode("utf-8", "surrogateescape")
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.").in_state(NOT_CHANGED) from error


@contextmanager
def only_one(path: str) -> Iterator[None]:
    """No other process of ours changes the file meanwhile. Raises Refused when one does for too long.

    The lock is on the directory: the file itself is replaced.
    """
    directory = os.path.dirname(os.path.realpath(path))

    def taken(owner: str) -> Refused:
        return Refused(f"{path} is being changed by {owner}. Try again.").in_state(NOT_CHANGED)

    def unusable(error: OSError) -> Refused:
        return Refused(f"{directory} cannot be opened: {error.strerror}.").in_state(NOT_CHANGED)

    with flock.directory(directory, LOCK_SECONDS, taken, unusable):
        yield


def replace_config(path: str, text: str) -> None:
    """Put a new text in the place of the file; a cut at any moment leaves the old one or the new one.

    Owner and mode stay. Raises Refused when it cannot be written; then the old one is there.
    """
    path = os.path.realpath(path)
    directory, name = os.path.split(path)
    new = os.path.join(directory, f".{name}.{os.urandom(6).hex()}")
    try:
        replace(path, text.encode("utf-8", "surrogateescape"), new)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.").in_state(NOT_CHANGED) from error
    sync_directory(directory)
    log.info("wrote %s", path)
