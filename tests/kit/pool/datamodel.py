# SPDX-License-Identifier: LGPL-2.1-only
"""xapi's own data model, as tests/data/xapi/datamodel.tsv has it: what calls and fields there are, and for whom.

The simulated pool checks each call here first. A call that no release of xapi knows is a mistake of its caller.
"""

import enum
import xmlrpc.client
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

DATA = Path(__file__).resolve().parents[2] / "data/xapi"

#: from the least to the most; each has the rights of those before it. Beyond them is root on a host, "local-root"
ROLES = ("read-only", "vm-operator", "vm-admin", "vm-power-admin", "pool-operator", "pool-admin")
LOCAL_ROOT = "local-root"

#: releases of xapi that the simulated pool can play: the one of XCP-ng 8.3, and the one of the table
RELEASES = ("25.33", "26.17")


class Presence(enum.Enum):
    """Of a field or a call in a release of xapi."""

    NOT_YET = "the release does not know it"
    THERE = "the release has it"
    REMOVED = "the release knows it, and has removed it"


class Life:
    """The releases that a field or a call came with and went with, by the words of the table: "since 26.0.0",
    "removed 23.25.0". A release without a number is older than all that have one. "hidden": no client may see it.
    """

    def __init__(self, text):
        steps = [step.split() for step in text.split(";") if step not in ("-", "hidden")]
        self._steps = [(_number(name), Presence.THERE if what == "since" else Presence.REMOVED) for what, name in steps]
        begins = self._steps and self._steps[0][1] is Presence.THERE or text == "hidden"
        self._first = Presence.NOT_YET if begins else Presence.THERE

    def at(self, release):
        found = self._first
        for since, presence in self._steps:
            if since <= _number(release):
                found = presence
        return found


@lru_cache(maxsize=None)
def _number(release):
    """The first two numbers of a release: (26, 16) of "26.16.1-next"."""
    words = release.split(".")
    return tuple(map(int, words[:2])) if len(words) > 1 else (0, 0)


class Field(NamedTuple):
    """A field of a class."""

    db_name: str  #: in the language of get_all_records_where
    type: str
    kind: str  #: rw; static: set when it is made; ro
    getter: str  #: least roles
    setter: str
    adder: str
    keys: tuple  #: (pattern of a key, least role) of a map
    life: Life


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
    keys: tuple
    life: Life

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
            fields.setdefault(name, {})[words[0]] = Field(*words[1:7], _keys(words[7]), Life(words[8]))
        elif kind == "call":
            params = tuple(_param(text) for text in words[3].split(";") if text)
            named = tuple(filter(None, words[4].split(",")))
            calls[f"{name}.{words[0]}"] = Call(
                words[1], words[2] == "async", params, named, _keys(words[5]), Life(words[6])
            )
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
    for prefix in _PREFIXES:
        field = FIELDS[table].get(operation[len(prefix) :]) if operation.startswith(prefix) else None
        made = field and _of_field(prefix, field, table)
        if made:
            return made
    return None


_PREFIXES = ("get_", "set_", "add_to_", "remove_from_", "add_", "remove_")


@lru_cache(maxsize=None)
def names(release):
    """What system.listMethods gives: also what was removed is there, and answers that."""
    of_fields = [
        f"{table}.{prefix}{name}" for table, fields in FIELDS.items() for name in fields for prefix in _PREFIXES
    ]  # fmt: skip
    made = sorted({*CALLS, *filter(find, of_fields)})
    return [name for name in made if find(name).life.at(release) is not Presence.NOT_YET]


@lru_cache(maxsize=None)
def permissions(role, release):
    """The rbac_permissions of a session with this role: the calls that it may make. Source: gen_rbac.ml."""
    may = ROLES[: ROLES.index(role) + 1]
    return sorted(name.lower() for name in names(release) if find(name).role in may)


def _of_field(prefix, field, table):
    """The call that xapi makes for a field; None where it makes none: for most fields there is no setter, and a hidden
    one has no getter.
    """
    self, key = Param("ref " + table, "self", False), Param("string", "key", False)
    is_map, is_set = field.type.startswith("map("), field.type.startswith("set(")
    if prefix == "get_":
        role, params, keys = field.getter, (self,), ()
    elif prefix == "set_":
        role, params, keys = field.setter, (self, Param(field.type, "value", False)), ()
    elif prefix == "add_to_" and is_map:
        role, params, keys = field.adder, (self, key, Param("string", "value", False)), field.keys
    elif prefix == "remove_from_" and is_map or prefix in ("add_", "remove_") and is_set:
        role, params, keys = field.adder, (self, key), field.keys
    else:
        return None
    return None if role == "-" else Call(role, False, params, (), keys, field.life)


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
