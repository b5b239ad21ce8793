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
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi.errors import Malformed, Place

Value = Union[int, float, str]

MAX_DEPTH = 16  #: sections inside sections; LVM itself writes four levels
MAX_TOKENS = 1 << 20  #: a volume takes some 60; SM has room for 4094 VDIs

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f\v]+|\#[^\n]*)
       |(?P<string>"(?:[^"\\]|\\.)*"|'[^']*')
       |(?P<mark>[={}\[\],])
       |(?P<word>[^\s\#={}\[\],"']+)""",
    re.VERBOSE | re.DOTALL,
)
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+)\Z")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,18})\Z")
_SHOWN = 64  #: characters of a token that a message repeats


class Token(NamedTuple):
    """The smallest piece that means something, in bytes [start, end)."""

    kind: str  #: "string", "mark", "word" or "end"
    text: str
    start: int
    end: int


class Scalar(NamedTuple):
    """One value and the bytes [start, end) it is written in, quotes included."""

    value: Value
    start: int
    end: int


class Assignment(NamedTuple):
    """`key = value` in bytes [start, end)."""

    key: str
    values: Tuple[Scalar, ...]
    is_list: bool
    start: int
    end: int


class Section:
    """`name { ... }`: its assignments and sections by key, in the order of the text.

    The lookups raise Malformed with the place of the section when a key is missing or of another type.
    """

    def __init__(self, name: str, name_start: int, where: Place) -> None:
        self.name = name
        self.name_start = name_start
        self.name_end = name_start + len(name)
        self.where = where
        self.assignments: Dict[str, Assignment] = {}
        self.sections: Dict[str, Section] = {}

    def _problem(self, problem: str) -> Malformed:
        return Malformed("Section {}".format(self.name or "the whole text"), self.where, problem)

    def section(self, name: str) -> "Section":
        if name not in self.sections:
            raise self._problem("it has no section {}".format(name))
        return self.sections[name]

    def scalar(self, key: str) -> Scalar:
        if key not in self.assignments:
            raise self._problem("it has no {}".format(key))
        found = self.assignments[key]
        if found.is_list or len(found.values) != 1:
            raise self._problem("{} is a list, expected one value".format(key))
        return found.values[0]

    def integer(self, key: str, minimum: int = 0) -> int:
        value = self.scalar(key).value
        if not isinstance(value, int) or value < minimum:
            raise self._problem("{} is {!r}, expected an integer of at least {}".format(key, value, minimum))
        return value

    def string(self, key: str) -> str:
        value = self.scalar(key).value
        if not isinstance(value, str):
            raise self._problem("{} is {!r}, expected a string".format(key, value))
        return value

    def strings(self, key: str) -> List[str]:
        """The strings of a list; a missing key is an empty list, a single string a list of one."""
        if key not in self.assignments:
            return []
        values = [scalar.value for scalar in self.assignments[key].values]
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise self._problem("{} is {!r}, expected strings".format(key, values))
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

    def _take(self) -> Token:
        return next(self._tokens)

    def _problem(self, token: Token, expected: str) -> Malformed:
        found = repr(token.text[:_SHOWN]) if token.kind != "end" else "its end"
        return Malformed("LVM metadata text", self._where.plus(token.start), "{}, expected {}".format(found, expected))

    def _fill(self, section: Section, depth: int) -> None:
        while True:
            key = self._take()
            if key.kind == "end" and depth == 0 or key.text == "}" and key.kind == "mark" and depth > 0:
                return
            if key.kind != "word":
                raise self._problem(key, "a name")
            if key.text in section.assignments or key.text in section.sections:
                raise self._problem(key, "each name only once")
            self._node(section, key, depth)

    def _node(self, section: Section, key: Token, depth: int) -> None:
        mark = self._take()
        if mark.text == "=":
            values, is_list, end = self._value()
            section.assignments[key.text] = Assignment(key.text, values, is_list, key.start, end)
        elif mark.text == "{" and depth < MAX_DEPTH:
            child = Section(key.text, key.start, self._where.plus(key.start))
            section.sections[key.text] = child
            self._fill(child, depth + 1)
        else:
            raise self._problem(mark, "`=` or a section of at most {} levels".format(MAX_DEPTH))

    def _value(self) -> Tuple[Tuple[Scalar, ...], bool, int]:
        token = self._take()
        if token.text != "[" or token.kind != "mark":
            return (self._scalar(token),), False, token.end
        values: List[Scalar] = []
        while True:
            token = self._take()
            if token.kind == "mark" and token.text == "]":
                return tuple(values), True, token.end
            if token.kind == "mark" and token.text == ",":
                continue
            values.append(self._scalar(token))

    def _scalar(self, token: Token) -> Scalar:
        if token.kind == "string":
            return Scalar(_unquoted(token.text), token.start, token.end)
        if token.kind == "word":
            number = _number(token.text)
            if number is not None:
                return Scalar(number, token.start, token.end)
        raise self._problem(token, "a value")


def _tokens(text: str, where: Place) -> Iterator[Token]:
    """The tokens of a text, one at a time, then "end" for ever. Raises Malformed, also for a text beyond reason."""
    count, position = 0, 0
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        position = match.end()
        if match.lastgroup != "skip":
            count += 1
            if count > MAX_TOKENS:
                raise Malformed("LVM metadata text", where.plus(position), "it goes on after {} words".format(count))
            yield Token(str(match.lastgroup), match.group(), match.start(), position)
    if position != len(text):
        raise Malformed("LVM metadata text", where.plus(position), "a string does not end, or a byte fits nowhere")
    while True:
        yield Token("end", "", position, position)


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
