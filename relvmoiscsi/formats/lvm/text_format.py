# SPDX-License-Identifier: LGPL-2.1-only
r"""LVM's text format, read into a tree that has the position of each token.

Callers search the tree, but change the text: `edited` replaces the bytes of single tokens. So comments, order, spacing
and unknown keys stay.

    node       = identifier "=" value | identifier "{" node* "}"
    value      = scalar | "[" scalar ("," scalar)* "]"
    scalar     = integer | "..." with \" and \\ | '...'
    identifier = letters, digits and _ . + -

Any other backslash in a string is a character of the string.

LVM also reads a list with a comma at its end, or without commas between strings, and numbers such as 1.5. LVM writes
none of these: `parse` refuses them.

LVM reads any word as an identifier, and takes a word with `/` for a path: `/id` is `id` for LVM, and `a/b` is `b` in
the section `a`. LVM writes no such word, so `parse` refuses all but the characters that LVM allows in a name.

A text is a str with one character per byte (latin-1), so positions in a text are byte positions.
Source: LVM2 libdm/libdm-config.c _find_or_make_node; lib/misc/lvm-string.c _validate_name;
libdm/libdm-string.c _unquote_one_character.
"""

import re
from itertools import islice
from sys import intern
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.wording import cut, said, some_of

Value = Union[int, str]

MAX_DEPTH = 16  #: sections inside sections; LVM itself writes four levels
#: a text of n bytes may have n / BYTES_FOR_AN_ITEM items: assignments, ends of sections, and values of lists. LVM
#: writes more bytes for an item (a segment has 7 items in 115 bytes). So a text with more items is not a text of LVM,
#: and `parse` refuses such a text before its tree fills the memory
BYTES_FOR_AN_ITEM = 12
#: the same for sections, which take most of the memory. The shortest section of LVM, a segment, has 107 bytes
BYTES_FOR_A_SECTION = 80
_SPARE_ITEMS = 1024
#: characters of the name of a VG, PV, LV, segment or key: messages repeat a name for each volume, so `parse` refuses a
#: longer name. Source: LVM2 lib/misc/lvm-string.c, _validate_name
MAX_NAME_LENGTH = 127

#: the numbers that LVM reads, by key, and the values that LVM stores whole. Of a larger number, LVM keeps the low 32
#: bits; a negative number becomes a large one. Source: LVM2 libdm/libdm-config.c, dm_config_get_uint32;
#: lib/format_text/import_vsn1.c; lib/striped/striped.c
UINT32 = range(1 << 32)
_UINT64 = range(1 << 63)  #: LVM reads numbers of 63 bits and a sign
NUMBERS = {
    **dict.fromkeys(("version", "seqno", "max_lv", "max_pv", "metadata_copies", "pe_count"), UINT32),
    **dict.fromkeys(("segment_count", "start_extent", "stripe_count", "reshape_count", "data_copies"), UINT32),
    **dict.fromkeys(("extent_size", "extent_count"), UINT32[1:]),
    "read_ahead": range(-1, 1 << 32),  # -1: none
    **dict.fromkeys(("dev_size", "pe_start", "ba_start", "ba_size", "creation_time"), _UINT64),
}

#: parts of the patterns below; no part can match a text in two ways, so the patterns never backtrack far
_BLANK = r"[ \t\r\n\f\v]*(?:\#[^\n]*(?:\n[ \t\r\n\f\v]*|\Z))*"
_WORD = r"""[^\s\#={}\[\],"']+"""
_NAME = r"[A-Za-z0-9_.+-]+"
_STRING = r"""(?:"[^"\\]*(?:\\.[^"\\]*)*"|'[^']*')"""
_LIST = rf"""\[[^\#={{}}\[\]"']*(?:(?:{_STRING}|\#[^\n]*\n)[^\#={{}}\[\]"']*)*\]"""

#: one item, and the white space and comments in front of it
_ITEM = re.compile(
    rf"{_BLANK}(?:({_NAME}){_BLANK}(?:={_BLANK}(?:({_STRING}|{_WORD})|({_LIST}))|(\{{))|(\}})|(\Z))", re.DOTALL
)
_SCALAR_AT, _LIST_AT, _OPENS, _CLOSES, _ENDS = range(2, 7)  #: groups of _ITEM; group 1 is the name

_TOKEN = re.compile(rf"{_BLANK}(?:([={{}}\[\],])|({_WORD})|({_STRING})|(\Z))", re.DOTALL)
_KINDS = ("", "mark", "word", "string", "end")  #: kinds of the groups of _TOKEN
_ESCAPED = re.compile(r"""\\(["\\])""")
_INTEGER = re.compile(r"[+-]?(?:0[0-7]{0,22}|[1-9][0-9]{0,18})\Z")
#: LVM of 32 bits before 2.02.169 wrote such times. Source: LVM2 libdm/libdm-config.c _type
_TOO_LARGE_TIME = re.compile(r"[1-9][0-9]{18,}\Z")
_TIME_INSTEAD = "1527120000"  #: as LVM reads them
_SHOWN = 64  #: characters of a token that a message quotes


#: a token: its kind, its text, and its position
Token = Tuple[str, str, int]


class Assignment(NamedTuple):
    """`key = value` in bytes [start, end); the value, quotes or brackets included, is in [value_start, end)."""

    values: Tuple[Value, ...]
    is_list: bool
    start: int
    value_start: int
    end: int


class TextSection:
    """`name { ... }`: assignments and sections by key, in the order of the text.

    The lookups raise Malformed, with the place of the section, for a missing key and for a value of another type.
    `parse` looks up each key of NUMBERS, and each key with which LVM refuses a value of another type: `tags`,
    `creation_host`. So a tree has no such value that LVM would read otherwise.
    """

    __slots__ = ("_text_at", "assignments", "end", "name", "name_start", "sections")

    def __init__(self, name: str, name_start: int, text_at: Place) -> None:
        self.name = name
        self.name_start = name_start
        self.end = name_start  #: behind the closing brace, once `parse` has read the brace
        self.assignments: Dict[str, Assignment] = {}
        self.sections: Dict[str, TextSection] = {}
        self._text_at = text_at

    @property
    def name_end(self) -> int:
        return self.name_start + len(self.name)

    @property
    def where(self) -> Place:
        return self._text_at.plus(self.name_start)

    def _problem(self, problem: str) -> Malformed:
        return Malformed("Section {}".format(self.name or "the whole text"), self.where, problem)

    def section(self, name: str) -> "TextSection":
        if name not in self.sections:
            raise self._problem(f"it has no section {name}")
        return self.sections[name]

    def single(self, key: str) -> Assignment:
        """The assignment of a value that is not a list."""
        if key not in self.assignments:
            raise self._problem(f"it has no {key}")
        found = self.assignments[key]
        if found.is_list:
            raise self._problem(f"{key} is a list, expected one value")
        return found

    def integer(self, key: str) -> int:
        """The value of a key of NUMBERS."""
        value, allowed = self.single(key).values[0], NUMBERS[key]
        if not isinstance(value, int) or value not in allowed:
            raise self._problem(f"{key} is {_quoted(value)}, expected an integer from {allowed[0]} to {allowed[-1]}")
        return value

    def string(self, key: str) -> str:
        value = self.single(key).values[0]
        if not isinstance(value, str):
            raise self._problem(f"{key} is {_quoted(value)}, expected a string")
        return value

    def strings(self, key: str) -> List[str]:
        """The strings of a list. A missing key gives no strings, and a value that is a string gives this string."""
        if key not in self.assignments:
            return []
        values = self.assignments[key].values
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise self._problem(f"{key} is a list of {shown_values(values)}; expected strings")
        return strings


def shown_values(values: Sequence[Value]) -> str:
    """Some values for a message, each cut."""
    return some_of([cut(str(value), _SHOWN) for value in values])


def _quoted(value: Value) -> str:
    return said(value) if isinstance(value, str) else str(value)


def parse(text: str, where: Place) -> TextSection:
    """The tree of a text, up to its first NUL. `where` is the place of its first byte. Raises Malformed."""
    root = TextSection("", 0, where)
    _Parser(text.split("\0", 1)[0], where).fill(root, depth=0)
    return root


class _Parser:
    def __init__(self, text: str, where: Place) -> None:
        self._text, self._where = text, where
        self._at = 0
        self._most = len(text) // BYTES_FOR_AN_ITEM + _SPARE_ITEMS
        self._items_left = self._values_left = self._most
        self._sections_left = len(text) // BYTES_FOR_A_SECTION + _SPARE_ITEMS
        self._known: Dict[str, Tuple[Value, ...]] = {}  # by the text behind `=`: many LVs have equal values

    def fill(self, section: TextSection, depth: int) -> None:
        """Read the items of a section, up to its closing brace; without `depth` up to the end of the text."""
        while True:
            match = _ITEM.match(self._text, self._at)
            if match is None:
                raise self._complaint(self._at)
            self._items_left -= 1
            if self._items_left < 0:
                raise self._too_much()
            self._at = match.end()
            group, key, start = match.lastindex, match.group(1), match.start(1)
            if key is not None and len(key) > MAX_NAME_LENGTH:
                problem = f"a name has {len(key)} characters, LVM allows {MAX_NAME_LENGTH}"
                raise Malformed("LVM metadata text", self._where.plus(start), problem)
            if key in section.assignments or key in section.sections:
                raise self._problem(("word", str(key), start), "each name only once")
            if group in (_SCALAR_AT, _LIST_AT):
                value_start, end = match.span(group)
                text = match.group(group)
                if key == "creation_time" and _TOO_LARGE_TIME.match(text) and _number(text) is None:
                    text = _TIME_INSTEAD
                values = self._known.get(text)
                if values is None:
                    is_list = group == _LIST_AT
                    values = self._listed(text, value_start) if is_list else (self._value(text, value_start),)
                    self._known[text] = values
                section.assignments[intern(key)] = Assignment(values, group == _LIST_AT, start, value_start, end)
                if key in NUMBERS:
                    section.integer(key)
                elif key == "tags":
                    section.strings(key)
                elif key == "creation_host":
                    section.string(key)
            elif group == _OPENS and depth < MAX_DEPTH:
                self._sections_left -= 1
                if self._sections_left < 0:
                    raise self._too_much()
                child = section.sections[key] = TextSection(key, start, self._where)
                self.fill(child, depth + 1)
            elif group == (_CLOSES if depth else _ENDS):
                section.end = self._at
                return
            else:
                raise self._complaint(match.start())

    def _value(self, text: str, start: int) -> Value:
        if text[0] in "\"'":
            return _ESCAPED.sub(r"\1", text[1:-1]) if text[0] == '"' and "\\" in text else text[1:-1]
        number = _number(text)
        if number is None:
            raise self._problem(("word", text, start), "a value")
        return number

    def _listed(self, text: str, start: int) -> Tuple[Value, ...]:
        values: List[Value] = []
        is_behind_value = False
        for kind, part, at in _tokens(text, 1, self._where):
            if part == "]" and (is_behind_value or not values):
                break
            if is_behind_value != (kind == "mark"):
                raise self._problem((kind, part, start + at), "`,` or `]`" if is_behind_value else "a value")
            if not is_behind_value:
                values.append(self._value(part, start + at))
                if len(values) > self._values_left:
                    raise self._too_much()
            is_behind_value = not is_behind_value
        self._values_left -= len(values)
        return tuple(values)

    def _problem(self, token: Token, expected: str) -> Malformed:
        kind, text, start = token
        found = repr(text[:_SHOWN]) if kind != "end" else "its end"
        return Malformed("LVM metadata text", self._where.plus(start), f"{found}, expected {expected}")

    def _too_much(self) -> Malformed:
        return Malformed("LVM metadata text", self._where, "it has more items than LVM writes in so many bytes")

    def _complaint(self, at: int) -> Malformed:
        """The error of the item at the position `at`: its first token that does not fit."""
        tokens = _tokens(self._text, at, self._where)
        token = next(tokens)
        if token[0] != "word":
            return self._problem(token, "a name")
        if not re.match(_NAME + r"\Z", token[1]):
            return self._problem(token, "a name with no characters but letters, digits and _ . + -")
        token = next(tokens)
        if token[1] != "=":
            return self._problem(token, f"`=` or a section of at most {MAX_DEPTH} levels")
        token = next(tokens)
        if token[1] == "[":
            for part in islice(tokens, self._most):
                is_value = part[0] == "string" or part[0] == "word" and _number(part[1]) is not None
                if part[1] != "," and not is_value:
                    return self._problem(part, "a value")
        return self._problem(token, "a value")


def _tokens(text: str, position: int, where: Place) -> Iterator[Token]:
    """The tokens of a text from `position` on, then "end" without end. Raises Malformed."""
    while True:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Malformed("LVM metadata text", where.plus(position), "a string has no end, or a byte fits no token")
        group = match.lastindex or 0
        position = match.end()
        yield _KINDS[group], match.group(group), match.start(group)


def _number(word: str) -> Optional[int]:
    """The integer in a word, as LVM reads it: a leading zero means octal. None for other words and over 64 bits."""
    if untrusted.is_number(word) and word[0] != "0":
        return int(word)
    if _INTEGER.match(word):
        number = int(word, 8 if word.lstrip("+-")[0] == "0" else 10)
        return number if -(1 << 63) <= number < 1 << 63 else None
    return None


class TextEdit(NamedTuple):
    """Bytes [start, end) of a text become `replacement`."""

    start: int
    end: int
    replacement: str


def edited(text: str, edits: Sequence[TextEdit]) -> str:
    """`text` after all edits, which must not overlap."""
    parts, position = [], 0
    for edit in sorted(edits):
        parts.append(text[position : edit.start])
        parts.append(edit.replacement)
        position = edit.end
    parts.append(text[position:])
    return "".join(parts)
