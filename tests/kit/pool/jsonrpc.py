# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI as JSON-RPC 1.0 and 2.0, which xapi answers at /jsonrpc beside XML-RPC at every other path.

A result is not wrapped in a Status as it is in XML-RPC. An error of 1.0 is the ErrorDescription; one of 2.0 has the
code as its message and the parameters as its data. 64-bit integers are strings, and so are times.
Source: xen-api ocaml/xapi/api_server.ml, jsoncallback and callback1; mirage/ocaml-rpc src/lib/jsonrpc.ml.
"""

import json

from . import wire
from .errors import XenError

PATH = "/jsonrpc"

_ERROR_CODE = 1  #: of every error of xapi


def response(api, body, local):
    """The document that answers a request (bytes). Raises ValueError for one that xapi cannot read."""
    request = json.loads(body.decode("utf-8"))
    is_second = "jsonrpc" in request
    if is_second and request["jsonrpc"] != "2.0" or not isinstance(request.get("id"), (int, str)):
        raise ValueError(request)
    params = request.get("params") or [] if is_second else request["params"]
    reply = {"jsonrpc": "2.0"} if is_second else {"error": None, "result": None}
    try:
        reply["result"] = wire.as_read(api.call(request["method"], params, local))
    except XenError as error:
        code, *parameters = error.description
        of_second = {"code": _ERROR_CODE, "message": code, "data": parameters}
        reply["error"] = of_second if is_second else error.description
    document = json.dumps({**reply, "id": request["id"]}, ensure_ascii=False, default=str)  # str: of a time
    return document.encode("utf-8", "surrogatepass")
