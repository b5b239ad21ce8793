# SPDX-License-Identifier: LGPL-2.1-only
"""XML-RPC as xapi speaks it: calls, answers and faults, as text and as values.

    string               str      int, i4, i8          int      boolean    bool
    struct               dict     array                list     double     float
    dateTime.iso8601     str      nil                  None

The standard library's xmlrpc.client reads and writes the same, and its writing is the measure of ours. It brings http,
ssl and email along, which is a third of what a call of the driver costs before it has looked at anything.
"""

import re
from typing import Any, Callable, Dict, List, Tuple, Union
from xml.parsers import expat

#: what XML 1.0 cannot hold, however it is written. One set for all of it takes 20 times as long to compile
_NOT_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]|[\ufffe\uffff]")
#: as many values may lie in each other; xapi's records need five
_DEEPEST = 64


class BadDocument(ValueError):
    """The text is not what XML-RPC allows."""


class Fault(Exception):
    """The answer is a fault."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"fault {code}: {text}")
        self.code, self.text = code, text


class _Element:
    __slots__ = ("tag", "children", "pieces", "found")

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.children: List[_Element] = []
        self.pieces: List[str] = []  #: of the text between its tags
        self.found: Any = None  #: of a <value> that has ended: what it stands for; then it has no children any more

    @property
    def text(self) -> str:
        return "".join(self.pieces)


# --- reading


def parse_call(document: str) -> Tuple[str, List[Any]]:
    """The method's name and its parameters. Raises BadDocument."""
    root = _parse(document)
    _expect(root, "methodCall", 1, 2)
    name = root.children[0]
    _expect(name, "methodName", 0, 0)
    return name.text, _params(root.children[1]) if len(root.children) == 2 else []


def parse_response(document: bytes) -> Any:
    """The one value that a call gave. Raises BadDocument, or Fault for an answer that is one."""
    root = _parse(document)
    _expect(root, "methodResponse", 1, 1)
    answer = root.children[0]
    if answer.tag == "fault":
        _expect(answer, "fault", 1, 1)
        found = _found(answer.children[0])
        code = found.get("faultCode") if isinstance(found, dict) else None
        if not isinstance(code, (int, str)) or "faultString" not in found:
            raise BadDocument("a fault has no code or no text")
        raise Fault(int(code), str(found["faultString"]))
    values = _params(answer)
    if len(values) != 1:
        raise BadDocument(f"an answer has {len(values)} values, expected one")
    return values[0]


def _parse(document: Union[str, bytes]) -> _Element:
    """The document's element. Raises BadDocument; also for a declaration, whose entities could fill the memory.

    A value takes the place of its elements as soon as it ends: the VDIs of a large pool are some tens of MiB of XML,
    and would be ten times that as elements.
    """
    top = _Element("")
    path = [top]

    def start(tag: str, attributes: Dict[str, str]) -> None:
        if len(path) > 4 * _DEEPEST:
            raise BadDocument("its values lie too deep in each other")
        element = _Element(tag)
        path[-1].children.append(element)
        path.append(element)

    def end(tag: str) -> None:
        element = path.pop()
        if tag == "value":
            element.found = _value(element)
            element.children, element.pieces = [], []

    def text(piece: str) -> None:
        path[-1].pieces.append(piece)

    def declared(*_: Any) -> None:
        raise BadDocument("it has a declaration")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, UnicodeEncodeError, LookupError) as error:
        raise BadDocument(str(error)) from error
    return top.children[0]


def _expect(element: _Element, tag: str, least: int, most: int) -> None:
    if element.tag != tag or not least <= len(element.children) <= most:
        raise BadDocument(f"<{element.tag}> with {len(element.children)} elements stands where <{tag}> is expected")


def _params(element: _Element) -> List[Any]:
    if element.tag != "params":
        raise BadDocument(f"<{element.tag}> stands where <params> is expected")
    values = []
    for param in element.children:
        _expect(param, "param", 1, 1)
        values.append(_found(param.children[0]))
    return values


def _found(element: _Element) -> Any:
    _expect(element, "value", 0, 0)
    return element.found


def _value(element: _Element) -> Any:
    _expect(element, "value", 0, 1)
    if not element.children:
        return element.text
    typed = element.children[0]
    if typed.tag == "struct":
        return _struct(typed)
    if typed.tag == "array":
        _expect(typed, "array", 1, 1)
        _expect(typed.children[0], "data", 0, len(typed.children[0].children))
        return [_found(item) for item in typed.children[0].children]
    if typed.tag not in _SCALARS:
        raise BadDocument(f"there is no type {typed.tag}")
    _expect(typed, typed.tag, 0, 0)
    try:
        return _SCALARS[typed.tag](typed.text)
    except ValueError as error:
        raise BadDocument(f"{typed.text[:40]!r} is no {typed.tag}") from error


def _struct(element: _Element) -> Dict[str, Any]:
    found = {}
    for member in element.children:
        _expect(member, "member", 2, 2)
        name, value = member.children
        _expect(name, "name", 0, 0)
        found[name.text] = _found(value)
    return found


def _boolean(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _integer(text: str) -> int:
    if len(text) > 20:  # of 64 bits; int() of very many digits takes very long
        raise ValueError(text)
    return int(text)


_SCALARS: Dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": _integer,
    "i4": _integer,
    "i8": _integer,
    "boolean": _boolean,
    "double": float,
    "dateTime.iso8601": str,
    "nil": lambda text: None,
}


# --- writing


def call_text(method: str, parameters: List[Any]) -> str:
    """A call, as the body of a request."""
    params = "".join(f"<param>\n{_written(parameter)}</param>\n" for parameter in parameters)
    return (
        f"{_HEAD}<methodCall>\n<methodName>{escaped(method)}</methodName>\n<params>\n{params}</params>\n</methodCall>\n"
    )


def response_text(value: Any) -> str:
    """An answer that gives the value."""
    return f"{_HEAD}<methodResponse>\n<params>\n<param>\n{_written(value)}</param>\n</params>\n</methodResponse>\n"


def fault_text(code: int, text: str) -> str:
    """An answer that is a fault."""
    fault = _written({"faultCode": code, "faultString": text})
    return f"{_HEAD}<methodResponse>\n<fault>\n{fault}</fault>\n</methodResponse>\n"


_HEAD = "<?xml version='1.0'?>\n"


def xml_safe(text: str) -> str:
    """The text with a question mark for each character that would make a document unreadable."""
    return _NOT_XML.sub("?", text)


def escaped(text: str) -> str:
    """The text as it stands between two tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _written(value: Any) -> str:
    """Strings, numbers that xapi takes as such, and what is made of them; no others are ever sent."""
    if isinstance(value, str):
        return f"<value><string>{escaped(value)}</string></value>\n"
    if isinstance(value, bool):
        return f"<value><boolean>{value:d}</boolean></value>\n"
    if isinstance(value, int):
        return f"<value><int>{value}</int></value>\n"
    if isinstance(value, dict):
        members = "".join(
            f"<member>\n<name>{escaped(name)}</name>\n{_written(item)}</member>\n" for name, item in value.items()
        )
        return f"<value><struct>\n{members}</struct></value>\n"
    if isinstance(value, (list, tuple)):
        return "<value><array><data>\n{}</data></array></value>\n".format("".join(map(_written, value)))
    raise TypeError(f"{type(value).__name__} is not sent to xapi")
