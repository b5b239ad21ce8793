# SPDX-License-Identifier: LGPL-2.1-only
"""The [driver] section of /etc/relvmoiscsi.conf.

    [driver]
    deadline = 50
    vdis = one
    copy = 1024

deadline: seconds that a call of xapi may take until it begins to write. A call that has begun goes on to its end. The
callers' own time-outs are longer: 60 seconds for CloudStack.
vdis: `one` makes each LUN an SR with a single VDI; `all`, the default, keeps every VDI. A call may set its own value.
copy: MiB of guest data that a call may copy to make one VDI of several images. The copy is after the first write.

If the deadline is invalid, a call uses the default, because each call must end. If another setting is invalid, a call
that needs the setting is refused. The SR driver would take a misspelled section or setting for absent, for example one
in capitals. So a call with such a line is refused as well. The doctor names every such line.
"""

import logging
import math
import re
from typing import Any, Dict, Optional, Tuple

from relvmoiscsi.deadline import DEFAULT_SECONDS
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.host.config_file import (
    KEY_VALUE,
    header,
    lines_of_section,
    read_config,
    said,
    settings_of,
    with_line,
)
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.wording import ALL, ONE, VDIS

log = logging.getLogger(__name__)

SECTION = "driver"
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
KEYS = ("deadline", "vdis", "copy")
DEFAULT_COPY_MIB = 1024

#: the comment above a section that `with_vdis` made
MARK = "# Calls of the SR driver; see `relvmoiscsi settings --help`."


def settings_in(text: str, path: str) -> Dict[str, Any]:
    """Return all settings of `text`, the content of the file, with defaults, as facts for --json.

    Keys: `deadline` in seconds, `vdis_setting` (ONE or ALL), `copy_mib`. Raises Refused for an invalid setting.
    """
    found = _settings(text, path)
    return {
        "deadline": _deadline(found, path),
        "vdis_setting": _vdis(found, path),
        "copy_mib": _copy_mib(found, path),
    }


def deadline_seconds(path: str = THIS_HOST.config) -> float:
    """Return the deadline; the default if the file has no deadline or an invalid deadline. Log an invalid deadline."""
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
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:  # false for nan
        raise _wrong(path, "deadline", text, f"seconds from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}")
    return seconds


def one_vdi(asked: Optional[str] = None, path: str = THIS_HOST.config) -> Optional[Tuple[int, str]]:
    """Return the limits for one VDI, if the call (`asked`) or else the host asks for one VDI; None to keep all VDIs.

    The limits are the most bytes of guest data that a call may copy, and the source of the wish, for a refusal: "" if
    the call itself asks for one VDI.

    Raises Refused for an invalid setting: with a guess, the caller might get an SR that it cannot use.
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
    return _copy_mib(settings, path) << 20, note


def _settings(text: str, path: str) -> Dict[str, str]:
    """Return the settings of the section. Raises Refused for a line that misspells the section or a setting."""
    line = _misspelled(text)
    if line is not None:
        raise Refused(
            f"The line {line!r} of {path} is not read: sections and settings are in small letters and without blanks, "
            f"as in `[{SECTION}]` and `vdis = one`.",
            "InvalidArg",
        ).in_state(NOTHING_WRITTEN)
    return settings_of(text, SECTION)


def _misspelled(text: str) -> Optional[str]:
    """Return the first line that misspells the section, or misspells a setting within the section."""
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


# --- changing the file


def with_vdis(text: str, wanted: str) -> str:
    """Return the text with this value of `vdis`. Other lines stay. Raises Refused if the result would be misread."""
    line = _misspelled(text)
    if line is not None:
        raise Refused(f"The line {line!r} is misspelled and is not read.").advising("Correct the line by hand.")
    lines = text.split("\n")
    found = [number for number, line in lines_of_section(lines, SECTION) if _key_of(line) == "vdis"]
    if found:  # the last line of a setting counts
        line = lines[found[-1]]
        value = KEY_VALUE.match(said(line))
        assert value is not None  # the line has the key
        start = line.index(said(line)) + value.start(2)
        lines[found[-1]] = line[:start] + wanted + line[start + len(value.group(2)) :]  # a comment behind it stays
        new = "\n".join(lines)
    else:
        new = with_line(text, SECTION, MARK, f"vdis = {wanted}", lambda line: bool(_key_of(line)))
    before, after = settings_of(text, SECTION), settings_of(new, SECTION)
    if after != dict(before, vdis=wanted):
        raise Refused(f"The section [{SECTION}] cannot be changed safely.").advising("Edit the section by hand.")
    return new


def _key_of(line: str) -> str:
    match = KEY_VALUE.match(said(line))
    return match.group(1) if match else ""
