# SPDX-License-Identifier: LGPL-2.1-only
"""The file /etc/relvmoiscsi.conf: its sections, and how commands change the file.

The file is an INI file, and the administrator owns the file: a change of one line keeps every other byte. This module
does not use configparser. configparser raises for a whole file if one line is wrong, and gives no line numbers. Where
every line is well-formed, configparser gives the same settings; a test compares the two.
"""

import logging
import os
import re
from typing import Callable, ContextManager, Dict, Iterator, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import content_of, replace, sync_directory
from relvmoiscsi.host.run_directory import only_one
from relvmoiscsi.host.this_host import Host

log = logging.getLogger(__name__)

LOCK_SECONDS = 30.0  #: the longest wait for another command, which may ask xapi and make a multipath map

NOT_CHANGED = "Nothing was changed."

KEY_VALUE = re.compile(r"(.*?)\s*[=:]\s*(.*)\Z")
_HEADER = re.compile(r"\[([^]]+)\]")


# --- the text of the file


def settings_of(text: str, section: str) -> Dict[str, str]:
    """Return the settings of a section. If several lines set one name, the last line counts."""
    pairs = (KEY_VALUE.match(said(line)) for _, line in lines_of_section(text.split("\n"), section))
    return {pair.group(1): pair.group(2) for pair in pairs if pair}


def lines_of_section(lines: Sequence[str], section: str) -> Iterator[Tuple[int, str]]:
    """Give the lines of a section and their numbers, from 0, without headers. A section may occur several times."""
    inside = False
    for number, line in enumerate(lines):
        name = header(line)
        if name is not None:
            inside = name == section
        elif inside:
            yield number, line


def header(line: str) -> Optional[str]:
    """Return the section name if the line is a section header, else None."""
    match = _HEADER.match(line.strip())
    return match.group(1) if match else None


def said(line: str) -> str:
    """Return the line without its comment and without blanks at both ends."""
    return re.sub(r"(^|\s)[#;].*", "", line).strip()


def with_line(text: str, section: str, mark: str, line: str, is_setting: Callable[[str], bool]) -> str:
    """Return the text with one more line in the section, behind its last setting: comments below may belong elsewhere.

    The line gets the line end of the header: LF or CR LF. A missing section is appended, below the comment `mark`.
    """
    lines = text.split("\n")
    headers = [number for number, each in enumerate(lines) if header(each) == section]
    if headers:
        settings = [number for number, each in lines_of_section(lines, section) if is_setting(each)]
        lines.insert(max([headers[0], *settings]) + 1, line + ("\r" if lines[headers[0]].endswith("\r") else ""))
    else:
        end = len(lines) if lines[-1] else len(lines) - 1
        lines[end:end] = ([""] if lines != [""] else []) + [mark, f"[{section}]", line]
    return "\n".join(lines)


# --- the file


def read_config(path: str) -> str:
    """Return the text of the file; "" if there is no file. Any byte is accepted. Raises Refused if a read fails."""
    try:
        return (content_of(path) or b"").decode("utf-8", "surrogateescape")
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.").in_state(NOT_CHANGED) from error


def changing(host: Host) -> ContextManager[object]:
    """Hold the lock that every command takes before it changes the file. Raises Refused after LOCK_SECONDS."""
    return only_one("settings.lock", host, LOCK_SECONDS, f"{host.config} is being changed by")


def replace_config(path: str, text: str) -> None:
    """Replace the text of the file. After a power cut the file has either the old text or the new text.

    Owner and mode stay. Raises Refused if the write fails; the file then has the old text.
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
