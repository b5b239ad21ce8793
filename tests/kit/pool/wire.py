# SPDX-License-Identifier: LGPL-2.1-only
"""The XML between xapi and its drivers and clients, written and read as xapi does.

xapi writes strings bare (`<value>text</value>`), an element without children as `<tag/>`, and no white space. It reads
strictly: no attributes on the protocol's tags, exactly the elements it expects, text of white space ignored.
To clients, and in the records of an export, it writes the names of a struct's members as they are: markup in a key of a
map is markup of the document.

Source: xen-api ocaml/libs/xml-light2/xml.ml, ocaml/libs/http-lib/xMLRPC.ml, ocaml/xapi/sm_exec.ml;
mirage/ocaml-rpc src/lib/xmlrpc.ml, add_value.
"""

import re
import xmlrpc.client
from typing import NamedTuple
from xml.parsers import expat


class Element(NamedTuple):
    """An XML element; a child is an Element or a str."""

    tag: str
    attributes: tuple
    children: tuple


class NotXml(Exception):
    """A driver's output is not one XML document."""


class RunTimeTypeError(Exception):
    """An XML document is not what was expected; xapi's exception of this name."""

    def __init__(self, looked_for, found):
        super().__init__(f"XMLRPC.RunTimeTypeError({looked_for!r}, {found})")


class Fault(NamedTuple):
    """A driver's answer that is a fault."""

    code: int
    text: str


# -- writing: each gives text ------------------------------------------------------------------------------------------

_ESCAPES = {">": "&gt;", "<": "&lt;", "&": "&amp;", '"': "&quot;"}


_SPECIAL = re.compile('[<>&"\0-\x08\x0b\x0c\x0e-\x1f]')


def escape(text):
    """Markup escaped; control characters but for tab, line feed and carriage return are dropped."""
    return _SPECIAL.sub(lambda match: _ESCAPES.get(match.group(), ""), text)


def string(text):
    return f"<value>{escape(text)}</value>" if text else "<value/>"


def array(values):
    return f"<value><array>{_data(values)}</array></value>"


def _data(values):
    inside = "".join(values)
    return f"<data>{inside}</data>" if inside else "<data/>"


def structure(members, name_as_written=escape):
    """A struct of (name, value), in this order."""
    inside = "".join([f"<member><name>{name_as_written(name)}</name>{value}</member>" for name, value in members])
    return f"<value><struct>{inside}</struct></value>" if inside else "<value><struct/></value>"


def strings(mapping):
    """A struct of strings from a dict, in its order."""
    return structure((key, string(value)) for key, value in mapping.items())


def method_call(name, *params):
    inside = "".join([f"<param>{param}</param>" for param in params])
    return f"<methodCall><methodName>{escape(name)}</methodName><params>{inside}</params></methodCall>"


class Int32(int):
    """An integer that xapi sends as one; others, of 64 bits, are strings."""


def from_python(value):
    """A value of the database in xapi's XML-RPC: 64-bit integers are strings, as XenAPI has them."""
    if isinstance(value, Int32):
        return f"<value><i4>{value}</i4></value>"
    if isinstance(value, bool):
        return "<value><boolean>1</boolean></value>" if value else "<value><boolean>0</boolean></value>"
    if isinstance(value, (str, int)):
        return string(str(value))
    if isinstance(value, float):
        return f"<value><double>{value:.16g}</double></value>"
    if isinstance(value, xmlrpc.client.DateTime):
        return f"<value><dateTime.iso8601>{value}</dateTime.iso8601></value>"
    if isinstance(value, dict):
        return structure(((key, from_python(item)) for key, item in value.items()), name_as_written=str)
    if isinstance(value, (list, tuple)):
        return array(map(from_python, value))
    assert value is None, value
    return string("")


def response(answer):
    """What `Api.answer` gives, as a document."""
    text = f"<methodResponse><params><param>{from_python(answer)}</param></params></methodResponse>"
    return text.encode("utf-8")


class Read(dict):
    """A record that `as_read` has made, which nobody else has."""


class Records(dict):
    """All records of a table, each a `Read`. They go to many clients, so nobody changes them: `json` is their text."""

    json = None


def as_read(value):
    """What a client reads of a value of the database; times stay what they are."""
    kind = type(value)
    if kind in (str, Read, Records, bool, float, Int32, xmlrpc.client.DateTime):
        return value
    if kind is int:
        return str(value)
    if kind is dict:
        return {key: as_read(item) for key, item in value.items()}
    if kind in (list, tuple):
        return [as_read(item) for item in value]
    assert value is None, value
    return ""


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(data):
    """The document in `data` as an Element, texts of nothing but white space left out. Raises NotXml."""
    tops = []
    stack = [("", (), tops)]
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.ordered_attributes = True

    def start(tag, attributes):
        stack.append((tag, tuple(zip(attributes[::2], attributes[1::2])), []))

    def end(_):
        tag, attributes, children = stack.pop()
        stack[-1][2].append(Element(tag, attributes, tuple(children)))

    def text(data):
        if data.strip("\n \t"):
            stack[-1][2].append(data)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise NotXml(f"XML Error: {error}") from error
    return tops[0]


def method_response(xml):
    """The one result of a driver's answer, an Element, or a Fault. Raises RunTimeTypeError."""
    match = xml
    for tag in ("methodResponse", "params", "param"):  # a successful answer may have attributes down to here
        if not (isinstance(match, Element) and match.tag == tag and len(match.children) == 1):
            break
        match = match.children[0]
    else:
        return match
    body = _only(_unbox(xml, "methodResponse"), xml)
    members = dict(as_structure(_only(_unbox(body, "fault"), body)))
    if not {"faultCode", "faultString"} <= set(members):
        raise RunTimeTypeError("faultCode and faultString", xml)
    return Fault(as_int(members["faultCode"]), as_string(members["faultString"]))


def as_nil(xml):
    """Check that a value is exactly `<value><nil/></value>`."""
    _unbox(_only(_unbox(xml, "value"), xml), "nil")


def as_string(xml):
    children = _unbox(xml, "value")
    if not children:
        return ""
    child = _only(children, xml)
    if isinstance(child, str):
        return child
    inside = _unbox(child, "string")
    return _text(_only(inside, child)) if inside else ""


def as_int(xml):
    child = _only(_unbox(xml, "value"), xml)
    text = _text(_only(_unbox(child, "int", "i4"), child))
    if not re.match(r"-?[0-9]+\Z", text) or not -(1 << 31) <= int(text) < 1 << 31:
        raise RunTimeTypeError("int", xml)
    return int(text)


def as_array(xml):
    """The values in an array, as Elements."""
    child = _only(_unbox(xml, "value"), xml)
    return list(_unbox(_only(_unbox(child, "array"), child), "data"))


def as_structure(xml):
    """The members of a struct: [(name, value Element)]."""
    child = _only(_unbox(xml, "value"), xml)
    members = []
    for member in _unbox(child, "struct"):
        pair = _unbox(member, "member")
        if len(pair) != 2:
            raise RunTimeTypeError("pair", member)
        names = _unbox(pair[0], "name")
        members.append((_text(_only(names, pair[0])) if names else "", pair[1]))
    return members


def _unbox(xml, *tags):
    if not isinstance(xml, Element) or xml.tag not in tags or xml.attributes:
        raise RunTimeTypeError(f"unbox: should contain '{tags[0]}'", xml)
    return xml.children


def _only(children, parent):
    if len(children) != 1:
        raise RunTimeTypeError("singleton", parent)
    return children[0]


def _text(xml):
    if not isinstance(xml, str):
        raise RunTimeTypeError("pcdata", xml)
    return xml
