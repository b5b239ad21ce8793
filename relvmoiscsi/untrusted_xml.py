# SPDX-License-Identifier: LGPL-2.1-only
"""Read XML that anybody may have written: saved records of VMs, answers of drivers, calls of xapi.

Each document is a value, or a ValueError; `untrusted` reads numbers and JSON. Python's readers of XML import its HTTP
client and TLS, which no command on an image file needs.
"""

import xml.etree.ElementTree as ET
import xmlrpc.client
from typing import Any, Optional, Tuple, Union

MOST_TAGS = 1 << 20  #: of a document: two tags take some 200 bytes of memory


def xml_of(document: Union[str, bytes]) -> ET.Element:
    """Return the root of an XML document; bytes are UTF-8. Raises ValueError, and no other error.

    Refused is a document with a markup declaration (<!), such as DOCTYPE: entities could fill the memory. The parser
    gets the text that was searched. In UTF-16, which the parser recognizes without being told, `<!` has zeros.
    """
    said = document if isinstance(document, str) else document.decode("utf-8")
    if "<!" in said or "\0" in said:
        raise ValueError("it has a markup declaration, or a zero")
    if said.count("<") > MOST_TAGS:
        raise ValueError(f"it has more than {MOST_TAGS} tags")
    try:
        return ET.fromstring(said.encode("utf-8"), ET.XMLParser(encoding="utf-8"))
    except ET.ParseError as error:
        raise ValueError(str(error)) from error


def xmlrpc_of(document: str) -> Tuple[Tuple[Any, ...], Optional[str]]:
    """Return the parameters and the method of an XML-RPC call or answer. Raises ValueError, xmlrpc.client.Fault."""
    if "<!" in document:
        raise ValueError("it has a markup declaration")
    try:
        return xmlrpc.client.loads(document)
    except xmlrpc.client.Fault:
        raise
    except Exception as error:  # the parser raises errors of many kinds for values that it does not expect
        raise ValueError(f"it is no XML-RPC document ({error or type(error).__name__})") from error
