# SPDX-License-Identifier: LGPL-2.1-only
"""Text forms of sizes, numbers, tables, commands, unprintable text; the values of an option. Pure, quick to import."""

import datetime
import re
import shlex
from typing import Container, List, Optional, Sequence

ESTIMATE_SECONDS = 2.0  #: time until a rate is reliable, and a person wonders
_EPOCH, _END_OF_YEARS = datetime.datetime(1970, 1, 1), 253402300800
#: the values of --vdis, of device-config:vdis, and of `vdis` in the configuration file
ONE, ALL = "one", "all"
VDIS = (ONE, ALL)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def human_size(size: int) -> str:
    """Return a size for people: "8 MiB", "1.5 GiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    shown = f"{value:.1f}"
    return "{} {}".format(shown[:-2] if shown.endswith(".0") else shown, _UNITS[unit])


def human_time(seconds: float) -> str:
    """Return a time for people: "40 s", "12 min", "3 h 5 min"."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    minutes = (whole + 30) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def time_left(done: int, total: int, spent_seconds: float) -> str:
    """Return ", 12 min left" by the average rate; "" without a reliable rate, and at the end."""
    if not 0 < done < total or spent_seconds < ESTIMATE_SECONDS:
        return ""
    return f", {human_time(spent_seconds * (total - done) / done)} left"


def utc_time(seconds: int) -> Optional[str]:
    """Return a time in ISO 8601, "2026-11-21T00:38:19Z"; None for 0, and for a year after 9999."""
    if not 0 < seconds < _END_OF_YEARS:
        return None
    return f"{_EPOCH + datetime.timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def shown_time(utc: str) -> str:
    """Return a time of `utc_time` for people: "2026-11-21 00:38 UTC"."""
    return utc[:16].replace("T", " ") + " UTC"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 LUN", "2 LUNs"."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> List[str]:
    """Return the rows as aligned lines; the columns in `right` (numbers) are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """Return text from a disk in a form that is safe to print, with escaped control characters."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def printable_lines(text: str) -> str:
    """Return the same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def with_options(text: str) -> str:
    """Return a text of the engine with the options of the command: `vdi` becomes `--vdi`, `vdis=all` `--vdis all`.

    The engine names device-config keys of the SR driver, and fields of a request.
    """
    return re.sub(
        r"`(vdis?|without|again)(?:=(\w+))?`", lambda key: "`--" + " ".join(filter(None, key.groups())) + "`", text
    )


def shell_words(*words: str, names: Sequence[str] = ()) -> str:
    """Return words of a command that a person copies to a shell: each is quoted, and printable on one line.

    `names` are the arguments behind the options: none of them is an option, whatever its text is. A LUN, a target or
    another user of the pool may have chosen a word. A test finds texts with a command that have a value by another way.
    """
    end = ["--"] if "--" not in words and any(len(name) > 1 and name.startswith("-") for name in names) else []
    return " ".join(map(_shell_word, [*_separated(words), *end, *names]))


def _separated(words: Sequence[str]) -> Sequence[str]:
    """Return the words with `--` before a name that begins as an option does, unless an option follows."""
    options = [re.fullmatch("-[A-Za-z]+|--[a-z-]+(=.*)?", word, re.DOTALL) is not None for word in words]
    for number, word in enumerate(words):
        if len(word) > 1 and word.startswith("-") and not options[number]:
            return words if any(options[number:]) or "--" in words else [*words[:number], "--", *words[number:]]
    return words


def _shell_word(word: str) -> str:
    """Return the word in quotes if it needs quotes; for KEY=VALUE, the value alone."""
    key, is_set, value = printable(word).partition("=")
    is_pair = bool(is_set) and shlex.quote(key) == key
    return f"{key}={shlex.quote(value)}" if is_pair else shlex.quote(key + is_set + value)


def file_word(path: str) -> str:
    """Return the path as a word that no program takes for an option: `./-x` for `-x`."""
    return "./" + path if path.startswith("-") else path


def command(*words: str, names: Sequence[str] = ()) -> str:
    """Return a command for a message, to copy as it stands: its words are quoted, and no line breaks between them."""
    return f"`{shell_words(*words, names=names)}`"
