# SPDX-License-Identifier: LGPL-2.1-only
"""Read XML that anybody may have written: saved records of VMs, answers of drivers, calls of xapi.

Each document is a value, or a ValueError; `untrusted` reads numbers and JSON. Python's readers of XML import its HTTP
client and TLS, which no command on an image file needs.
"""

import xml.etree.ElementTree as ET
import xmlrpc.client
from typing import Any, NoReturn, Optional, Tuple, Union

from relvmoiscsi.untrusted import integer, xml_safe

MOST_TAGS = 1 << 20  #: of a document: two tags take some 200 bytes of memory


def xml_of(document: Union[str, bytes]) -> ET.Element:
    """Return the root of an XML document; bytes are UTF-8. Raises ValueError, and no other error.

    Refused is a document with a markup declaration (<!), such as DOCTYPE: entities could fill the memory. The parser
    gets the text that was searched. In UTF-16, which the parser recognizes without being told, `<!` has zeros.

    The text is `xml_safe`: xapi stores some characters that XML forbids, and writes them into documents.
    """
    said = document if isinstance(document, str) else document.decode("utf-8")
    if "<!" in said or "\0" in said:
        raise ValueError("it has a markup declaration, or a zero")
    if said.count("<") > MOST_TAGS:
        raise ValueError(f"it has more than {MOST_TAGS} tags")
    try:
        return ET.fromstring(xml_safe(said).encode("utf-8"), ET.XMLParser(encoding="utf-8"))
    except ET.ParseError as error:
        raise ValueError(str(error)) from error


def xmlrpc_of(document: str) -> Tuple[Tuple[Any, ...], Optional[str]]:
    """Return the parameters and the method of an XML-RPC call or answer. Raises ValueError, xmlrpc.client.Fault."""
    unmarshaller = _Unmarshaller()
    parser = xmlrpc.client.ExpatParser(unmarshaller)
    parser._parser.StartDoctypeDeclHandler = _no_doctype  # type: ignore[attr-defined]
    try:
        parser.feed(document)
        parser.close()
        return unmarshaller.close(), unmarshaller.getmethodname()
    except xmlrpc.client.Fault:
        raise
    except Exception as error:  # the parser raises errors of many kinds for values that it does not expect
        raise ValueError(f"it is no XML-RPC document ({error or type(error).__name__})") from error


def _end_int(unmarshaller: xmlrpc.client.Unmarshaller, text: str) -> None:
    integer(text)
    unmarshaller.end_int(text)


class _Unmarshaller(xmlrpc.client.Unmarshaller):
    """The standard library's, with short numbers: Python 3.6 takes half a minute for one of a million digits."""

    dispatch = {
        **xmlrpc.client.Unmarshaller.dispatch,
        **dict.fromkeys(("int", "i1", "i2", "i4", "i8", "biginteger"), _end_int),
    }


def _no_doctype(*_: Any) -> NoReturn:
    """Refuse a document type: its entities could fill the memory."""
    raise ValueError("it has a document type")
