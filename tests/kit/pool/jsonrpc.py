# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI as JSON-RPC 1.0 and 2.0, which xapi answers at /jsonrpc beside XML-RPC at every other path.

A result is not wrapped in a Status as it is in XML-RPC. An error of 1.0 is the ErrorDescription; one of 2.0 has the
code as its message and the parameters as its data. Integers are numbers, which XML-RPC has as strings; times are
strings. Source: xen-api ocaml/xapi/api_server.ml, jsoncallback and callback1; mirage/ocaml-rpc src/lib/jsonrpc.ml.
Integers and times were seen in the answers of xapi 25.33.1.
"""

import json
import re
from functools import lru_cache

from . import datamodel, wire
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
    reply, result = {"jsonrpc": "2.0"} if is_second else {"error": None}, ""
    try:
        result = f'"result": {_result(request["method"], api.call(request["method"], params, local))}, '
    except XenError as error:
        code, *parameters = error.description
        of_second = {"code": _ERROR_CODE, "message": code, "data": parameters}
        reply = {**reply, "error": of_second} if is_second else {"error": error.description, "result": None}
    document = "{" + result + _text({**reply, "id": request["id"]})[1:]
    return document.encode("utf-8", "surrogatepass")


def _text(value):
    return json.dumps(value, ensure_ascii=False, default=str)  # str: of a time


def _result(method, value):
    """The result of a call, as a text."""
    if not isinstance(value, wire.Records):
        return _text(_with_numbers(method, wire.as_read(value)))
    if value.json is None:
        value.json = _text(_with_numbers(method, value))
    return value.json


def _with_numbers(method, result):
    """The result of a call, with each integer of the data model as a number. What a test has forged stays as it is."""
    table, _, operation = method.partition(".")
    if operation in ("get_all_records", "get_all_records_where"):
        return _each(result, lambda record: _record(table, record))
    if operation == "get_record":
        return _record(table, result)
    if method == "event.from" and isinstance(result, dict):
        for event in filter(lambda event: isinstance(event, dict) and "snapshot" in event, result.get("events", ())):
            event["snapshot"] = _record(event["class"], event["snapshot"])
    if method == "host.compute_free_memory":  # the model has no types of results
        return _number("int", result)
    field = datamodel.FIELDS.get(table, {}).get(operation[len("get_") :]) if operation.startswith("get_") else None
    return result if field is None else _number(field.type, result)


def _record(table, record):
    if not isinstance(record, dict):
        return record
    return {**record, **{name: _number(type_, record[name]) for name, type_ in _integers(table) if name in record}}


@lru_cache(maxsize=None)
def _integers(table):
    """The names and types of the fields of a class (events write it in lower case) that have integers."""
    fields = next((fields for name, fields in datamodel.FIELDS.items() if name.lower() == table.lower()), {})
    return [(name, field.type) for name, field in fields.items() if re.search(r"\bint\b", field.type)]


def _number(type_, value):
    if type_.startswith(("set(", "map(")):
        return _each(value, lambda each: _number(type_[4:-1].rpartition(",")[2], each))
    return int(value) if type_ == "int" and isinstance(value, str) and re.fullmatch("-?[0-9]+", value) else value


def _each(values, change):
    if isinstance(values, dict):
        return {name: change(value) for name, value in values.items()}
    return list(map(change, values)) if isinstance(values, list) else values
