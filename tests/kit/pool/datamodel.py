# SPDX-License-Identifier: LGPL-2.1-only
"""xapi's own data model, as tests/data/xapi/datamodel.tsv has it: what calls and fields there are, and for whom.

The simulated pool checks each call here first. A call that the real xapi does not know is a mistake of its caller.
"""

import xmlrpc.client
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

DATA = Path(__file__).resolve().parents[2] / "data/xapi"

#: from the least to the most; each has the rights of those before it. Beyond them is root on a host, "local-root"
ROLES = ("read-only", "vm-operator", "vm-admin", "vm-power-admin", "pool-operator", "pool-admin")
LOCAL_ROOT = "local-root"


class Field(NamedTuple):
    """A field of a class."""

    db_name: str  #: in the language of get_all_records_where
    type: str
    kind: str  #: rw; static: set when it is made; ro
    getter: str  #: least roles
    setter: str
    adder: str
    keys: tuple  #: (pattern of a key, least role) of a map


class Param(NamedTuple):
    """What a call takes, besides the session."""

    type: str
    name: str
    is_optional: bool


class Call(NamedTuple):
    """A call."""

    role: str  #: the least that may make it; "none": no session is needed
    is_async: bool
    params: tuple
    errors: tuple  #: errors that the model names; a call may also end with other errors
    keys: tuple = ()

    def role_for(self, arguments):
        """The least role for these arguments: a key of a map may take more than the map, or less."""
        for pattern, role in self.keys:
            if len(arguments) > 1 and fnmatchcase(str(arguments[1]), pattern):
                return role
        return self.role


def _keys(text):
    return tuple(tuple(pair.split("=")) for pair in text.split(",") if pair)


def _param(text):
    type_, _, name = text.rpartition(" ")
    return Param(type_.rstrip("?"), name, type_.endswith("?"))


def _read():
    fields, calls, http, errors, enums, needs = {}, {}, {}, set(), {}, {}
    for line in (DATA / "datamodel.tsv").read_text(encoding="utf-8").splitlines():
        kind, name, *words = f"{line}\t".split("\t")
        if kind == "field":
            fields.setdefault(name, {})[words[0]] = Field(*words[1:7], _keys(words[7]))
        elif kind == "call":
            params = tuple(_param(text) for text in words[3].split(";") if text)
            named = tuple(filter(None, words[4].split(",")))
            calls[f"{name}.{words[0]}"] = Call(words[1], words[2] == "async", params, named, _keys(words[5]))
        elif kind == "http":
            http[name.partition("_")[0].upper(), words[0]] = words[1]
        elif kind == "error":
            errors.add(name)
        elif kind in ("enum", "needs"):
            (enums if kind == "enum" else needs)[name] = frozenset(filter(None, words[0].split(",")))
    return fields, calls, http, errors, enums, needs


#: {class: {name: Field}}, {"VM.start": Call}, {("GET", path): least role}, codes, {type: its values}, {class: fields
#: that a client must give to make an object}
FIELDS, CALLS, HTTP, ERRORS, ENUMS, NEEDS = _read()


@lru_cache(maxsize=None)
def find(name) -> Optional[Call]:
    """The call of this name, also one that xapi makes for each field; None where there is none."""
    if name in CALLS:
        return CALLS[name]
    table, _, operation = name.partition(".")
    if table not in FIELDS:
        return None
    for prefix in ("get_", "set_", "add_to_", "remove_from_", "add_", "remove_"):
        field = FIELDS[table].get(operation[len(prefix) :]) if operation.startswith(prefix) else None
        made = field and _of_field(prefix, field, table)
        if made:
            return made
    return None


def _of_field(prefix, field, table):
    self = Param("ref " + table, "self", False)
    if prefix == "get_":
        return Call(field.getter, False, (self,), ())
    if field.kind != "rw":
        return None
    if prefix == "set_":
        return Call(field.setter, False, (self, Param(field.type, "value", False)), ())
    is_map, is_set = field.type.startswith("map("), field.type.startswith("set(")
    key = Param("string", "key", False)
    if is_map and prefix == "add_to_":
        return Call(field.adder, False, (self, key, Param("string", "value", False)), (), field.keys)
    if is_map and prefix == "remove_from_" or is_set and prefix in ("add_", "remove_"):
        return Call(field.adder, False, (self, key), (), field.keys)
    return None


#: {type: what a value must be that XML-RPC has brought}
_SIMPLE = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: str(value).lstrip("-").isdigit() and not isinstance(value, bool),  # 64 bits: a string
    "float": lambda value: isinstance(value, float),
    "time": lambda value: isinstance(value, xmlrpc.client.DateTime),
    "string": lambda value: isinstance(value, str),
    "ref": lambda value: isinstance(value, str) and (not value or value.startswith(("OpaqueRef:", "DummyRef:"))),
}


def fits(type_, value):
    """Would xapi take this value, as XML-RPC has brought it, for one of this type?"""
    if type_.startswith("set("):
        return isinstance(value, list) and all(fits(type_[4:-1], each) for each in value)
    if type_.startswith("map("):
        key, _, inside = type_[4:-1].partition(",")
        return isinstance(value, dict) and all(fits(key, name) and fits(inside, value[name]) for name in value)
    kind, _, name = type_.partition(" ")
    if kind == "record":
        fields = FIELDS[name]
        return isinstance(value, dict) and all(key in fields and fits(fields[key].type, value[key]) for key in value)
    if kind == "enum":
        return value in ENUMS[name]
    return _SIMPLE.get(kind, _SIMPLE["string"])(value)
