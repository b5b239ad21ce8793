# SPDX-License-Identifier: LGPL-2.1-only
"""XML-RPC between xapi and a program that it starts: a call comes in, an answer or a fault goes out."""

import xmlrpc.client
from typing import Any, List, Tuple


class BadDocument(ValueError):
    """The text is not what XML-RPC allows."""


def parse_call(document: str) -> Tuple[str, List[Any]]:
    """The method's name and its parameters. Raises BadDocument."""
    try:
        params, method = xmlrpc.client.loads(document)
    except Exception as error:
        raise BadDocument(str(error) or type(error).__name__) from error
    if method is None:
        raise BadDocument("it names no method")
    return method, list(params)


def response_text(value: Any) -> str:
    """An answer that gives the value."""
    return xmlrpc.client.dumps((value,), methodresponse=True)


def fault_text(code: int, text: str) -> str:
    """An answer that is a fault."""
    return xmlrpc.client.dumps(xmlrpc.client.Fault(code, text))
