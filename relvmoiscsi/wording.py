# SPDX-License-Identifier: LGPL-2.1-only
"""Text forms of sizes, numbers, tables, commands, unprintable text; the values of an option. Pure, quick to import."""

import codecs
import datetime
import re
import shlex
from typing import Any, Container, Iterable, List, Optional, Sequence, Tuple, Union

ESTIMATE_SECONDS = 2.0  #: time until a rate is reliable, and a person wonders
_EPOCH, _END_OF_YEARS = datetime.datetime(1970, 1, 1), 253402300800
#: the values of --vdis, of device-config:vdis, and of `vdis` in the configuration file
ONE, ALL = "one", "all"
VDIS = (ONE, ALL)
_NEXT_LINE = "    "  #: before the cells of a row that stand in another line
_MOST_TEXT = 8000  #: characters
_MOST_PADDED = 256  #: characters of a cell of `table`
_MOST_LOGGED = 200  #: sentences of `first_of`
_MOST_SAID = 200  #: characters of `said`
#: characters that no terminal shows, and Python calls printable: of Default_Ignorable_Code_Point, and the empty braille
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
#: a byte that is no text, as `repr` writes it: behind an even number of backslashes
_BYTE_IN_REPR = re.compile(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def repr_without(value: Any, *hidden: str) -> str:
    """Return the repr of a named tuple that shows no value of the fields `hidden`: the fields of secrets."""
    shown = (f"{name}=..." if name in hidden else f"{name}={getattr(value, name)!r}" for name in value._fields)
    return f"{type(value).__name__}({', '.join(shown)})"


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


CHANGED_MEANS = "the last change of the SR by LVM, not the time of a snapshot"  #: of the time of `with_change`


def change(utc: str) -> str:
    """Return when LVM last changed an SR: in the name of its copy, copies of several days differ."""
    return f"changed {shown_time(utc)}"


def with_change(text: str, utc: str) -> str:
    """Return a text on a LUN and when LVM last changed its SR; the text alone for an unknown time."""
    if not utc:
        return text
    return text + printable(f" Its SR {change(utc)}." if text.endswith(".") else f"; {change(utc)}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 LUN", "2 LUNs"."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def nearest(word: str, known: Iterable[str]) -> List[str]:
    """Return the known word that is nearest to a misspelt word; [] where none is near. A prefix is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - slow to import, and udev waits

    names = list(known)
    begun = [name for name in names if len(word) > 3 and name.startswith(word)]
    return begun[:1] or get_close_matches(word, names, 1)


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return some names for a sentence: "a, b and 3 more"."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def some_luns(luns: Iterable[object]) -> str:
    """Return LUNs, or what leads to them, for a sentence; "none" for none. An array may show thousands."""
    return some_of(list(map(str, luns)), most=20) or "none"


def first_of(sentences: Sequence[str]) -> List[str]:
    """Return sentences for the log: some, and the number of the others. A hostile LUN gives any number of sentences."""
    rest = len(sentences) - _MOST_LOGGED
    return [*sentences[:_MOST_LOGGED], *([f"... and {rest} more"] if rest > 0 else [])]


def table(
    rows: Sequence[Sequence[str]], right: Container[int] = (), columns: Optional[int] = None, indent: str = ""
) -> List[str]:
    """Return the rows as aligned lines behind `indent`; the columns in `right` (numbers) are right-aligned.

    Where a row is longer than `columns`, each row has a second line, or more, for the cells that do not fit. But a last
    cell that begins in the left half stays in its line, for a caller that breaks it between words. No cell is padded to
    more than _MOST_PADDED characters: otherwise one long cell of a stranger would lengthen each line.
    """
    widths = [min(_MOST_PADDED, max(map(len, column))) for column in zip(*rows)]
    lines: List[List[int]] = [[]]  # the columns of each line
    used = len(indent)
    for number, width in enumerate(widths):
        is_last_left = number == len(widths) - 1 and columns is not None and used <= columns // 2
        if lines[-1] and columns is not None and used + width > columns and not is_last_left:
            lines.append([])
            used = len(indent) + len(_NEXT_LINE)
        lines[-1].append(number)
        used += width + 2
    found = []
    for row in rows:
        for at, numbers in enumerate(lines):
            cells = (row[one].rjust(widths[one]) if one in right else row[one].ljust(widths[one]) for one in numbers)
            found += [(indent + (_NEXT_LINE if at else "") + "  ".join(cells)).rstrip()]
    return [line for line in found if line]


def is_seen(text: str) -> bool:
    """Does each character of the text show on a terminal, and change nothing else there?"""
    return text.isprintable() and _UNSEEN.search(text) is None


def printable(text: str) -> str:
    """Return text from a disk in a form that is safe to print, with escapes for characters that nobody sees.

    A byte of a path that is no text has the form that `quoted` gives it, also where `repr` has escaped the byte.
    """
    if "\\udc" in text:
        text = _BYTE_IN_REPR.sub(r"\1\\x\2", text)
    if is_seen(text):
        return text
    escapes = {char: char.encode("unicode_escape").decode("ascii") for char in text if not is_seen(char)}
    escapes.update((char, _escaped(char)) for char in escapes if "\udc80" <= char <= "\udcff")
    return "".join(escapes.get(char, char) for char in text)


def cut(text: str, most: int = _MOST_TEXT) -> str:
    """Return the text of an error for xapi, which takes 64 KiB at most: a LUN or a target has chosen words of it."""
    return text if len(text) <= most else text[:most] + "..."


def said(text: str) -> str:
    """Return a text that a stranger can have chosen, at any length, as words of a sentence: in quotes, and cut."""
    return repr(cut(text, _MOST_SAID))


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


#: the value of an option of a command
Option = Union[str, bool, None, List[str]]


def command_words(own: str, *names: str, **options: Option) -> Tuple[str, ...]:
    """Return the words of a command that a person copies to a shell.

    `own` is a literal: the program, and what else no caller chooses. Other words may be chosen by a LUN, a target or
    another user of the pool, and are no options, whatever they are. So `names` come last, behind `--` if one of them
    begins with a dash. `options` have a value each: chap_file="x" is `--chap-file x`, and f="x" is `-f x`; None leaves
    the option out. True is an option without a value, and False leaves it out. A list is the option once for each of
    its values.
    """
    words = own.split()
    for key, given in options.items():
        option = ("--" if len(key) > 1 else "-") + key.replace("_", "-")
        values: Sequence[Union[str, bool, None]] = given if isinstance(given, list) else (given,)
        for value in values:
            if isinstance(value, bool):
                words += [option] if value else []
            elif value is not None:
                words += [f"{option}={value}"] if value.startswith("-") else [option, value]
    end = ["--"] if any(len(name) > 1 and name.startswith("-") for name in names) else []
    return (*words, *end, *names)


class ShellCommand(str):
    """Words that a person copies to a shell: no line may break them."""


def shell_command(own: str, *names: str, **options: Option) -> ShellCommand:
    """Return a command of `command_words` as text. A test finds messages with a command that is made another way."""
    return quoted(*command_words(own, *names, **options))


def if_clone(command: ShellCommand) -> str:
    """Return the sentences with a command that resignatures a LUN of which nobody has said that it is the clone."""
    return f"If this is the clone, `{command}` gives it new identities. If this is the original, do nothing."


def _escaped(char: str) -> str:
    """Return a character for $'...'. No word of a command can have a NUL, so a NUL is the text of its escape."""
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in (char if char != "\0" else "\\x00").encode("utf-8", errors))


def _escape_unknown(error: UnicodeError) -> Tuple[str, int]:
    """Return the escapes of the characters that an encoding does not have, and the place behind them."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_escaped, error.object[error.start : error.end])), error.end


codecs.register_error("relvmoiscsi", _escape_unknown)


def in_encoding(text: str, encoding: str) -> str:
    """Return text for a stream: each character that its encoding does not have in the form that `quoted` gives a byte.

    A path of the command line has that form already, where its bytes are no text in the locale.
    """
    return text.encode(encoding, "relvmoiscsi").decode(encoding)


def quoted(*words: str) -> ShellCommand:
    """Return words as a shell reads them: each is in quotes if it needs quotes, and printable on one line.

    In KEY=VALUE, the value alone has quotes. A word with control characters, or that is no text, is in $'...', which
    bash and zsh read. So is a word with a backtick: a message has commands between backticks.
    """
    shown = []
    for word in words:
        if not is_seen(word) or "`" in word or "\\udc" in word:  # the last for `printable`
            chars = [char if is_seen(char) and char not in "\\'`" else _escaped(char) for char in word]
            shown.append("$'" + "".join(chars) + "'")
            continue
        key, is_set, value = word.partition("=")
        is_pair = bool(is_set) and shlex.quote(key) == key
        shown.append(f"{key}={shlex.quote(value)}" if is_pair else shlex.quote(key + is_set + value))
    return ShellCommand(" ".join(shown))
