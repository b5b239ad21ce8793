# SPDX-License-Identifier: LGPL-2.1-only
r"""LVM's text format: read into a tree that remembers where every token stands.

The tree is for finding things; the text itself is changed by replacing the bytes of single tokens (`edited`), so
comments, order, spacing and keys nobody here knows survive by construction.

    node       = identifier "=" value | identifier "{" node* "}"
    value      = scalar | "[" scalar ("," scalar)* "]"
    scalar     = integer | float | "..." with \" and \\ | '...'
    identifier = anything up to white space or one of # = { }

Text is a str of one character per byte (latin-1), so positions in it are byte positions.
Source: LVM2 libdm/libdm-config.c.
"""

import re
from sys import intern
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi.errors import Malformed, Place

Value = Union[int, float, str]

MAX_DEPTH = 16  #: sections inside sections; LVM itself writes four levels
#: LVM writes more than five bytes for a token on average (22 tokens for the 115 bytes of a segment), so its own texts
#: stay below this, however large; a text that does not is none of LVM's, and would cost more memory than it is worth
BYTES_FOR_A_TOKEN = 4
_SPARE_TOKENS = 1024

#: white space and comments, and the token behind them; nothing in it can match in two ways, so it never backtracks far
_TOKEN = re.compile(
    r"""[ \t\r\n\f\v]*(?:\#[^\n]*(?:\n[ \t\r\n\f\v]*|\Z))*
        (?:([={}\[\],])
          |([^\s\#={}\[\],"']+)
          |("(?:[^"\\]|\\.)*"|'[^']*')
          |(\Z))""",
    re.VERBOSE | re.DOTALL,
)
_KINDS = ("", "mark", "word", "string", "end")  #: of its groups
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+)\Z")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,18})\Z")
_SHOWN = 64  #: characters of a token that a message repeats


#: the smallest piece that means something: its kind, its text, its bytes [start, end)
Token = Tuple[str, str, int, int]


class Scalar(NamedTuple):
    """One value and the bytes [start, end) it is written in, quotes included."""

    value: Value
    start: int
    end: int


class Assignment(NamedTuple):
    """`key = value` in bytes [start, end)."""

    values: Tuple[Scalar, ...]
    is_list: bool
    start: int
    end: int


class Section:
    """`name { ... }`: its assignments and sections by key, in the order of the text.

    The lookups raise Malformed with the place of the section when a key is missing or of another type.
    """

    __slots__ = ("_text_at", "assignments", "end", "name", "name_start", "sections")

    def __init__(self, name: str, name_start: int, text_at: Place) -> None:
        self.name = name
        self.name_start = name_start
        self.end = name_start  #: behind its closing brace, once that is read
        self.assignments: Dict[str, Assignment] = {}
        self.sections: Dict[str, Section] = {}
        self._text_at = text_at

    @property
    def name_end(self) -> int:
        return self.name_start + len(self.name)

    @property
    def where(self) -> Place:
        return self._text_at.plus(self.name_start)

    def _problem(self, problem: str) -> Malformed:
        return Malformed("Section {}".format(self.name or "the whole text"), self.where, problem)

    def section(self, name: str) -> "Section":
        if name not in self.sections:
            raise self._problem(f"it has no section {name}")
        return self.sections[name]

    def scalar(self, key: str) -> Scalar:
        if key not in self.assignments:
            raise self._problem(f"it has no {key}")
        found = self.assignments[key]
        if found.is_list or len(found.values) != 1:
            raise self._problem(f"{key} is a list, expected one value")
        return found.values[0]

    def integer(self, key: str, minimum: int = 0) -> int:
        value = self.scalar(key).value
        if not isinstance(value, int) or value < minimum:
            raise self._problem(f"{key} is {value!r}, expected an integer of at least {minimum}")
        return value

    def string(self, key: str) -> str:
        value = self.scalar(key).value
        if not isinstance(value, str):
            raise self._problem(f"{key} is {value!r}, expected a string")
        return value

    def strings(self, key: str) -> List[str]:
        """The strings of a list; a missing key is an empty list, a single string a list of one."""
        if key not in self.assignments:
            return []
        values = [scalar.value for scalar in self.assignments[key].values]
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise self._problem(f"{key} is {values!r}, expected strings")
        return strings


def parse(text: str, where: Place) -> Section:
    """The tree of a text, up to its first NUL. `where` is the place of its first byte. Raises Malformed."""
    return _Parser(text, where).parse()


class _Parser:
    def __init__(self, text: str, where: Place) -> None:
        self._where = where
        self._tokens = _tokens(text.split("\0", 1)[0], where)

    def parse(self) -> Section:
        root = Section("", 0, self._where)
        self._fill(root, depth=0)
        return root

    def _problem(self, token: Token, expected: str) -> Malformed:
        kind, text, start, _end = token
        found = repr(text[:_SHOWN]) if kind != "end" else "its end"
        return Malformed("LVM metadata text", self._where.plus(start), f"{found}, expected {expected}")

    def _fill(self, section: Section, depth: int) -> None:
        for token in self._tokens:
            kind, key, start, end = token
            if kind == "end" and depth == 0 or key == "}" and kind == "mark" and depth > 0:
                section.end = end
                return
            if kind != "word":
                raise self._problem(token, "a name")
            if key in section.assignments or key in section.sections:
                raise self._problem(token, "each name only once")
            mark = next(self._tokens)
            if mark[1] == "=":
                section.assignments[intern(key)] = self._assignment(start)
            elif mark[1] == "{" and depth < MAX_DEPTH:
                child = section.sections[key] = Section(key, start, self._where)
                self._fill(child, depth + 1)
            else:
                raise self._problem(mark, f"`=` or a section of at most {MAX_DEPTH} levels")

    def _assignment(self, start: int) -> Assignment:
        token = next(self._tokens)
        if token[1] != "[":
            scalar = self._scalar(token)
            return Assignment((scalar,), False, start, scalar.end)
        values: List[Scalar] = []
        for token in self._tokens:
            kind, text, _start, end = token
            if text == "]" and kind == "mark":
                break
            if text != "," or kind != "mark":
                values.append(self._scalar(token))
        return Assignment(tuple(values), True, start, end)

    def _scalar(self, token: Token) -> Scalar:
        kind, text, start, end = token
        if kind == "string":
            return Scalar(_unquoted(text), start, end)
        if kind == "word":
            number = _number(text)
            if number is not None:
                return Scalar(number, start, end)
        raise self._problem(token, "a value")


def _tokens(text: str, where: Place) -> Iterator[Token]:
    """The tokens of a text, one at a time, then "end" for ever. Raises Malformed, also for a text beyond reason."""
    match_at, kinds = _TOKEN.match, _KINDS
    position = 0
    most = len(text) // BYTES_FOR_A_TOKEN + _SPARE_TOKENS
    for _count in range(most):
        match = match_at(text, position)
        if match is None:
            raise Malformed("LVM metadata text", where.plus(position), "a string does not end, or a byte fits nowhere")
        group = match.lastindex or 0
        start, position = match.span(group)
        yield kinds[group], match.group(group), start, position
    raise Malformed("LVM metadata text", where.plus(position), f"it goes on after {most} words")


def _number(word: str) -> Union[int, float, None]:
    """A number as C reads it, where a leading zero means octal; None for a word that is none, or beyond 64 bits."""
    if _INTEGER.match(word):
        digits = word.lstrip("+-")
        octal = digits.startswith("0") and digits.isdigit()
        number = int(word, 8 if octal else 0)
        return number if -(1 << 63) <= number < 1 << 63 else None
    return float(word) if _FLOAT.match(word) else None


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text[0] == '"' else text[1:-1]


class Edit(NamedTuple):
    """Bytes [start, end) of a text become `replacement`."""

    start: int
    end: int
    replacement: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """`text` with every edit made; edits do not overlap."""
    parts, position = [], 0
    for edit in sorted(edits):
        parts.append(text[position : edit.start])
        parts.append(edit.replacement)
        position = edit.end
    parts.append(text[position:])
    return "".join(parts)
