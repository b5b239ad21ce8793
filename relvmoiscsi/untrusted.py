# SPDX-License-Identifier: LGPL-2.1-only
"""Read numbers, times, JSON and paths that anybody may have written: keys of xapi, answers of plugins, bytes of a LUN.

Python's own readers take more than a program writes, and fail in many ways. `int` takes digits of every script, and
needs minutes for a long number. `json` fails by the depth of the stack. Here each text is a value, or a ValueError.
`text_of` and `xml_safe` take from a text what no document to xapi can carry. `untrusted_xml` reads XML.
"""

import calendar
import datetime
import json
import math
import re
from functools import lru_cache
from itertools import accumulate
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

MOST_DIGITS = 18  #: fits into 64 bits
MOST_BYTES = 1 << 20  #: of a text, unless the caller says otherwise
MOST_VALUES = 50000  #: of one JSON text: a value takes some 100 bytes of memory
DEEPEST = 16  #: levels of lists and objects of JSON

Pairs = List[Tuple[str, Any]]  #: names and values of an object, in order

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_NUMBER = re.compile("[0-9]{1,18}")
_TIME = re.compile("([0-9]{4})(-?)([0-9]{2})\\2([0-9]{2})T([0-9]{2})(:?)([0-9]{2})\\6([0-9]{2})Z")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  #: in an escape; the other half may follow
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}  #: of the depth
#: characters that XML 1.0 forbids, even escaped. A single set for all would take 20 times as long to compile
_NOT_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]|[\ufffe\uffff]")


class OverLimit(ValueError):
    """A text is longer, or has more values, than its reader takes. Each part may be valid."""


def truth(text: str) -> bool:
    """Return a truth value as programs and people write it. Raises ValueError for any other text."""
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return word in _TRUE


def is_number(text: str) -> bool:
    """Is this a decimal number of at most 18 ASCII digits?"""
    return _NUMBER.fullmatch(text) is not None


def number(text: str) -> int:
    """Return a decimal number. Raises ValueError for any text that `is_number` denies."""
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is not a decimal number of 1 to {MOST_DIGITS} digits")
    return int(text)


def utc_seconds(text: str) -> int:
    """Return the seconds since 1970 of a time: "2026-11-22T12:00:00Z", with or without dashes, with or without colons.

    Raises ValueError for any other text.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a time in UTC")
    year, _, month, day, hour, _, minute, second = found.groups()
    read = datetime.datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    return calendar.timegm(read.timetuple())


def time_text(text: str) -> str:
    """Return the text of a time, as `utc_seconds` reads it; "" for any other text."""
    try:
        utc_seconds(text)
    except ValueError:
        return ""
    return text


def _float(text: str) -> float:
    """Return a fraction. Raises ValueError for a long text, for a number beyond all floats, and for NaN."""
    if len(text) > 2 * MOST_DIGITS or not math.isfinite(float(text)):
        raise ValueError(f"{text[:40]!r} is out of range")
    return float(text)


def _object(pairs: Pairs) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has the name {name[:40]!r} twice")
        found[name] = value
    return found


def first_of_each(pairs: Pairs) -> Dict[str, Any]:
    """Return the members of an object, of two with one name the first. For the maps of a program that keeps both."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else dict(reversed(pairs))


@lru_cache(maxsize=None)
def _decoder(fraction: Callable[[str], float], members: Callable[[Pairs], Dict[str, Any]]) -> json.JSONDecoder:
    """To make one takes longer than to read a short text."""
    return json.JSONDecoder(parse_int=integer, parse_float=fraction, parse_constant=fraction, object_pairs_hook=members)


def json_of(
    text: Union[str, bytes],
    most_bytes: int = MOST_BYTES,
    most_values: int = MOST_VALUES,
    most_inner: Optional[int] = None,
    fraction: Callable[[str], float] = _float,
    members: Callable[[Pairs], Dict[str, Any]] = _object,
) -> Any:
    """Return the value of a JSON text; bytes are UTF-8. Raises ValueError, and no other error.

    `most_inner` limits the lists and objects among the values: each takes as much memory as ten numbers. Refused are a
    long or deep text, a name that an object has twice, a long number, NaN, and half a surrogate pair. `fraction` reads
    fractions, NaN and infinities, and `members` the members of an object; both raise ValueError.
    """
    if len(text) > most_bytes:
        raise OverLimit(f"it has {len(text)} characters, more than {most_bytes}")
    said = text if isinstance(text, str) else text.decode("utf-8")
    _verify_size(said, most_values, most_values if most_inner is None else most_inner)
    found = _decoder(fraction, members).decode(said)
    if _HALF.search(said):
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # half a surrogate pair: no terminal and no xapi takes it
    else:
        said.encode("utf-8")
    return found


def object_of(
    text: Union[str, bytes],
    most_bytes: int = MOST_BYTES,
    most_values: int = MOST_VALUES,
    most_inner: Optional[int] = None,
) -> Dict[str, Any]:
    """Return the members of a JSON object. Raises ValueError, and no other error."""
    found = json_of(text, most_bytes, most_values, most_inner)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def texts_of(value: Any) -> List[str]:
    """Return a parsed value that is a list of texts, as `text_of`. Raises ValueError for any other value."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("a value is not a list of texts")
    return list(map(text_of, value))


def text_of(value: Any) -> str:
    """Return a parsed value that is a text, as `xml_safe`: in JSON, a text may have each character as an escape.

    Raises ValueError for any other value.
    """
    if not isinstance(value, str):
        raise ValueError("a value is not a text")
    return xml_safe(value)


def size_of(value: Any) -> int:
    """Return a parsed value that is a whole number from 0 on. Raises ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a value is not a size")
    return value


def whole_of(value: Any) -> int:
    """Return a parsed value that is a whole number of any sign. Raises ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a value is not a whole number")
    return value


def integer(text: str) -> int:
    """Return a whole number, such as one of 64 bits with its sign. Raises ValueError for a longer text."""
    if len(text) > MOST_DIGITS + 2:
        raise ValueError(f"{text[:40]!r} is out of range")
    return int(text)


def xml_safe(text: str) -> str:
    """Return the text with a question mark for each character that XML forbids."""
    return _NOT_XML.sub("?", text)


def smallest(sizes: Sequence[int], room: int) -> List[int]:
    """Return the positions of the values that fit into `room` together, the smallest first: most are kept."""
    order = sorted(range(len(sizes)), key=lambda at: sizes[at])
    ends = accumulate(sizes[at] for at in order)
    return [at for at, end in zip(order, ends) if end <= room]


def is_below(path: str, *directories: str) -> bool:
    """Does a path stay below one of these directories, whose names end in a slash?

    A step up (..) may lead to a file system that does not answer. So no caller resolves such a path, nor looks at it.
    """
    return path.startswith(directories) and ".." not in path.split("/")


def _verify_size(text: str, most_values: int, most_inner: int) -> None:
    """Raises ValueError for a JSON text with many values or deep levels. The text may be invalid from some point on."""
    bare = "".join((_ESCAPE.sub("", text) if "\\" in text else text).split('"')[::2])  # without the texts in quotes
    inner = sum(map(bare.count, "[{"))
    if bare.count(",") + inner >= most_values:
        raise OverLimit(f"it has more than {most_values} values")
    if inner > most_inner:
        raise OverLimit(f"it has more than {most_inner} lists and objects")
    steps = map(_STEPS.__getitem__, _NO_BRACKETS.sub("", bare))
    if max(accumulate(steps), default=0) > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
