# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf.

    [driver]
    deadline = 50
    vdis = one
    copy = 1024

deadline: seconds that a call of xapi may take until it begins to write; what it has begun goes on to its end. The
callers' own time-outs are longer: 60 seconds for CloudStack.
vdis: `one` makes each LUN one with a single VDI, `all`, the default, keeps every VDI; a call may say otherwise.
copy: so many MiB of guest data may a call copy to make one VDI of several images. It has begun to write then.

Where the deadline does not read, a call has the default, as a call must end one way or another. Where another setting
does not read, a call that needs the setting is refused. So is a call where a section or a setting is written otherwise
than here, in capitals for example: the SR driver would take the setting for absent. The doctor names every such line.
"""

import logging
import math
import re
from typing import Dict, NamedTuple, Optional, Sequence

from relvmoiscsi.deadline import DEFAULT_SECONDS
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.host.config_file import (
    KEY_VALUE,
    append_section,
    header,
    insert_line,
    lines_of_section,
    read_config,
    said,
    settings_of,
)
from relvmoiscsi.host.this_host import THIS_HOST

log = logging.getLogger(__name__)

SECTION = "driver"
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
ONE, ALL = "one", "all"
VDIS = (ONE, ALL)
KEYS = ("deadline", "vdis", "copy")
DEFAULT_COPY_MIB = 1024

#: stands above a section that `with_vdis` made
MARK = "# Calls of the SR driver; see `relvmoiscsi settings --help`."


class OneVdiSetting(NamedTuple):
    """One VDI is wanted."""

    most_bytes: int  #: that a call may copy
    note: str = ""  #: who wants it, for a refusal; empty where the call says so


class Settings(NamedTuple):
    """What is in force on a host."""

    deadline: float  #: seconds
    vdis: str  #: one of VDIS
    copy_mib: int


def settings_in(text: str, path: str) -> Settings:
    """All of them, defaults included; `text` is that of the file. Raises Refused for one that does not read."""
    found = _settings(text, path)
    return Settings(_deadline(found, path), _vdis(found, path), _copy_mib(found, path))


def deadline_seconds(path: str = THIS_HOST.config) -> float:
    """The setting; the default where there is none, or where it does not read, which is logged."""
    try:
        return _deadline(settings_of(read_config(path), SECTION), path)
    except Refused as error:
        log.warning("the deadline is the default, %g seconds: %s", DEFAULT_SECONDS, error.message)
        return DEFAULT_SECONDS


def _deadline(settings: Dict[str, str], path: str) -> float:
    text = settings.get("deadline", "")
    try:
        seconds = float(text) if text else DEFAULT_SECONDS
    except ValueError:
        seconds = math.nan
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:  # nan is not
        raise _wrong(path, "deadline", text, f"seconds from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}")
    return seconds


def one_vdi(asked: Optional[str] = None, path: str = THIS_HOST.config) -> Optional[OneVdiSetting]:
    """What is asked for, or what the host has; None where every VDI is to be kept.

    Raises Refused for a setting that does not read: a guess would give an SR that the caller cannot use.
    """
    text = read_config(path)
    if asked == ALL:
        return None
    settings = _settings(text, path)
    if (asked or _vdis(settings, path)) != ONE:
        return None
    note = (
        "" if asked else f"One VDI is wanted by `vdis = one` in section [{SECTION}] of {path}; the call does not say."
    )
    return OneVdiSetting(_copy_mib(settings, path) << 20, note)


def _settings(text: str, path: str) -> Dict[str, str]:
    """Those of the section. Raises Refused for what was meant to be there and would not be read."""
    line = _misspelled(text)
    if line is not None:
        raise Refused(
            f"The line {line!r} of {path} is not read: sections and settings are in small letters and without blanks, "
            f"as in `[{SECTION}]` and `vdis = one`.",
            "InvalidArg",
        ).in_state(NOTHING_WRITTEN)
    return settings_of(text, SECTION)


def _misspelled(text: str) -> Optional[str]:
    """The first line that is nearly the section, or in it nearly a setting."""
    inside = False
    for line in text.split("\n"):
        name = header(line)
        if name is not None:
            inside = _plain(name) == SECTION
            if inside and name != SECTION:
                return line.strip()
        elif inside and said(line):
            key = _key_of(line)
            if key not in KEYS and _plain(key or said(line).split()[0]) in KEYS:
                return line.strip()
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s\"']", "", name).lower()


def _vdis(settings: Dict[str, str], path: str) -> str:
    text = settings.get("vdis", "") or ALL
    if text not in VDIS:
        raise _wrong(path, "vdis", text, "`one` or `all`")
    return text


def _copy_mib(settings: Dict[str, str], path: str) -> int:
    text = settings.get("copy", "") or str(DEFAULT_COPY_MIB)
    if not re.match("[0-9]{1,9}\\Z", text):
        raise _wrong(path, "copy", text, "a number of MiB")
    return int(text)


def _wrong(path: str, key: str, found: str, expected: str) -> Refused:
    problem = f"The setting {key} in section [{SECTION}] of {path} is {found!r}, expected {expected}."
    return Refused(problem, "InvalidArg").in_state(NOTHING_WRITTEN)


# --- changing


def vdis_of(text: str) -> str:
    """What a file says, whatever that is; "" where it says nothing."""
    return settings_of(text, SECTION).get("vdis", "")


def with_vdis(text: str, wanted: str) -> str:
    """The file with that setting; all other lines stay. Raises Refused where it would not read as it should then."""
    line = _misspelled(text)
    if line is not None:
        raise Refused(f"The line {line!r} is not one that is read, and would be in the way; correct it by hand.")
    lines = text.split("\n")
    found = [number for number, line in lines_of_section(lines, SECTION) if _key_of(line) == "vdis"]
    headers = [number for number, line in enumerate(lines) if header(line) == SECTION]
    setting = f"vdis = {wanted}"
    if found:  # of several, the last counts
        lines[found[-1]] = _in_place(lines[found[-1]], wanted)
    elif headers:
        insert_line(lines, _end_of_settings(lines, headers[-1]), setting, like=lines[headers[-1]])
    else:
        append_section(lines, MARK, f"[{SECTION}]", setting)
    new = "\n".join(lines)
    before, after = settings_of(text, SECTION), settings_of(new, SECTION)
    if after != dict(before, vdis=wanted):
        raise Refused(f"The section [{SECTION}] is not one that can be changed safely; edit it by hand.")
    return new


def _key_of(line: str) -> str:
    match = KEY_VALUE.match(said(line))
    return match.group(1) if match else ""


def _in_place(line: str, wanted: str) -> str:
    """The line with another value; a comment behind it stays."""
    value = KEY_VALUE.match(said(line))
    assert value is not None  # it has the key
    start = line.index(said(line)) + value.start(2)
    return line[:start] + wanted + line[start + len(value.group(2)) :]


def _end_of_settings(lines: Sequence[str], first: int) -> int:
    """Behind the last setting of the section whose header is line `first`; comments below may be of what follows."""
    last = first
    for number in range(first + 1, len(lines)):
        if header(lines[number]) is not None:
            break
        if _key_of(lines[number]):
            last = number
    return last + 1
