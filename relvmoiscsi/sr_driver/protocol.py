# SPDX-License-Identifier: LGPL-2.1-only
"""The exec protocol between xapi and a storage-manager plugin.

xapi runs the plugin with one argument, an XML-RPC call whose only parameter is a struct. xapi reads one XML-RPC
response from stdout. The response has no attributes; a call without a result gives exactly <nil/>. Nothing else may be
on stdout, and the exit status is 0 even for a fault.

Source: xen-api ocaml/xapi/sm_exec.ml, ocaml/libs/http-lib/xMLRPC.ml.
"""

import xmlrpc.client
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from relvmoiscsi import untrusted_xml
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_types import LEFT_OUT, MOST_LUNS
from relvmoiscsi.untrusted import xml_safe
from relvmoiscsi.wording import counted


class Call(NamedTuple):
    """A call of xapi. A string that the command does not have is ""."""

    command: str  #: "sr_create"
    device_config: Mapping[str, str]
    session_ref: str = ""
    sr_ref: str = ""
    sr_uuid: str = ""
    host_ref: str = ""
    subtask_of: str = ""


def parse_call(text: str) -> Call:
    """Parse the plugin's argument. Raises UsageError (BadRequest) for an invalid call."""
    try:
        params, method = untrusted_xml.xmlrpc_of(text)
    except (ValueError, xmlrpc.client.Fault) as error:
        raise UsageError(f"The argument is no XML-RPC call: {error}.", "BadRequest") from error
    if method is None:
        raise UsageError("The argument is no XML-RPC call: it names no method.", "BadRequest")
    if len(params) != 1 or not isinstance(params[0], dict):
        raise UsageError("The XML-RPC call has no struct as its only parameter.", "BadRequest")
    members: Dict[str, Any] = params[0]
    config = members.get("device_config", {})
    if not isinstance(config, dict):
        raise UsageError("device_config is no struct.", "BadRequest")
    if any(isinstance(value, (dict, list)) for value in config.values()):  # nested deeper than `str` can go
        raise UsageError("device_config holds a struct or an array.", "BadRequest")
    return Call(
        command=_string(members, "command") or method,
        device_config={str(key): str(value) for key, value in config.items()},
        session_ref=_string(members, "session_ref"),
        sr_ref=_string(members, "sr_ref"),
        sr_uuid=_string(members, "sr_uuid"),
        host_ref=_string(members, "host_ref"),
        subtask_of=_string(members, "subtask_of"),
    )


def _string(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name, "")
    return value if isinstance(value, str) else ""


def string_response(text: str) -> str:
    return xmlrpc.client.dumps((xml_safe(text),), methodresponse=True)


def fault_response(fault: xmlrpc.client.Fault) -> str:
    return xmlrpc.client.dumps(xmlrpc.client.Fault(fault.faultCode, xml_safe(fault.faultString)))


def escaped(text: str) -> str:
    """Return the text escaped for a place between two tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def list_element(tag: str, rows: Sequence[Tuple[str, str]], depth: int = 1, inner: Sequence[str] = ()) -> List[str]:
    """Return the lines of an element of a list on stderr; `inner` are the lines of elements in it.

    White space stands around each text, as in SM's own lists on Python 2.
    """
    margin = "\t" * depth
    lines = [f"{margin}<{tag}>"]
    for name, text in rows:
        lines += [f"{margin}\t<{name}>", f"{margin}\t\t{escaped(text)}", f"{margin}\t</{name}>"]
    return [*lines, *inner, f"{margin}</{tag}>"]


def list_document(root: str, lines: Sequence[str], left_out: int) -> str:
    """Return a list on stderr. An attribute of the root says how many items the list lacks: its readers ignore it."""
    attribute = f' {LEFT_OUT}="{left_out}"' if left_out else ""
    return "\n".join(['<?xml version="1.0" ?>', f"<{root}{attribute}>", *lines, f"</{root}>"]) + "\n"


def said_left_out(count: int, what: str) -> str:
    """Return the sentence of an error with a list that lacks this many "LUN"s or "target"s; "" for a whole list."""
    return f" The list leaves out {counted(count, what)}: it has at most {MOST_LUNS}." if count else ""


def usage(argv: Sequence[str]) -> str:
    """Return the only argument of the plugin. Raises UsageError (BadRequest) for any other number of arguments.

    The argument is UTF-8. Python 3.6 reads arguments as ASCII in xapi's environment and escapes all other bytes.
    """
    if len(argv) != 2:
        raise UsageError(f"{len(argv) - 1} arguments were given, expected one.", "BadRequest")
    return argv[1].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
