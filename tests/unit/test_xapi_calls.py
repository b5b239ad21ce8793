# SPDX-License-Identifier: LGPL-2.1-only
"""Each call that we make of xapi was compared with its sources: tests/data/xapi/calls.tsv has what was found.

A call that is made and not there is to be looked up first: who may make it, where it runs, whether it is a call to a
driver and needs a plugged PBD, what errors it has.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from kit.own_source import nodes_of
from kit.pool import datamodel
from relvmoiscsi.pool.calls import DATABASE_NAMES

TOP = Path(__file__).resolve().parents[2]
CALLERS = [
    *TOP.glob("relvmoiscsi/**/*.py"),
    *(path for path in TOP.glob("drivers/**/*") if path.is_file()),
    *TOP.glob("ansible/plugins/**/*.py"),
    TOP / "tests/kit/pool/cloudstack.py",
]
NAME = re.compile(r"(?:Async\.)?([A-Za-z_]+)\.([A-Za-z_]+)\Z")
ALL = "get_all_records"
PATHS = {path for _, path in datamodel.HTTP} - {"/"}
PROXIES = ("_api", "xenapi")  #: names of what has a call for each attribute


def rows():
    """{name: (role, where it runs, driver call, PBD, errors, source)}."""
    lines = (datamodel.DATA / "calls.tsv").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, *words = line.split("\t")
            assert len(words) == 6 and name not in found, line
            found[name] = words
    return found


def literal(node):
    """The text of a string in a program; None of anything else. Python 3.6 has a node of its own for it."""
    value = getattr(node, "s" if type(node).__name__ == "Str" else "value", None)
    return value if isinstance(value, str) else None


def made_by(text):
    """The calls in a program: by name in a string, by `records(_with)`, by `add`, of a proxy; and HTTP paths."""
    for node in nodes_of(text):
        word = literal(node)
        if word is not None:
            match = NAME.match(word)
            if match and match.group(1) in datamodel.FIELDS:
                yield f"{match.group(1)}.{match.group(2)}"
            if word in PATHS:
                yield word
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("records", "records_with") and node.args and literal(node.args[0]):
                yield f"{literal(node.args[0])}.{ALL}" + ("_where" if node.keywords else "")
            proxy = node.func.value.value if isinstance(node.func.value, ast.Attribute) else None
            if getattr(proxy, "attr", getattr(proxy, "id", "")) in PROXIES:
                yield f"{node.func.value.attr}.{node.func.attr}"
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add" and len(node.args) > 1:
            kind = literal(node.args[1])
            yield from [f"{kind}.add_to_other_config"] if kind in datamodel.FIELDS else []


def built_by(text):
    """Beginnings of names that a program puts together: nobody sees there what is called."""
    for node in nodes_of(text):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node.left] if isinstance(node, ast.BinOp) else []
        for part in parts[:1]:
            found = re.match(r"([A-Za-z_]+)\.\w*\Z", literal(part) or "")
            if found and found.group(1) in datamodel.FIELDS:
                yield found.group()


#: without any of these a program makes no call that `made_by` or `built_by` would find
TRACE = re.compile("""["'](?:Async[.])?(?:{})[.'"]|["']/|{}""".format("|".join(datamodel.FIELDS), "|".join(PROXIES)))


@lru_cache(maxsize=None)
def programs():
    """{path: the calls that it makes} of each program that makes any, and the beginnings of names that are built."""
    made, built = {}, []
    for path in CALLERS:
        text = path.read_text(encoding="utf-8", errors="replace")
        if TRACE.search(text) and (path.suffix == ".py" or text.startswith("#!/usr/bin/python")):
            made[str(path)], built = set(made_by(text)), [*built, *built_by(text)]
    return made, built


def test_each_call_was_compared_with_the_sources():
    known, (made, nowhere) = set(rows()), programs()
    unknown = {path: sorted(calls - known) for path, calls in made.items() if calls - known}
    assert (unknown, nowhere) == ({}, []), "xapi's sources are to be read; or its name is nowhere"


def test_each_row_is_of_a_call_that_is_made():
    made = set().union(*programs()[0].values())
    assert len(made) > 60 and sorted(set(rows()) - made) == []


def test_each_row_says_what_the_data_model_says():
    for name, (role, _, _, _, errors, _) in rows().items():
        least = [role for (_, path), role in datamodel.HTTP.items() if path == name]
        assert role in (least if name.startswith("/") else [datamodel.find(name).role]), name
        assert set(filter(None, errors.split(","))) <= datamodel.ERRORS, name


@pytest.mark.parametrize("release", datamodel.RELEASES)
def test_every_release_has_each_call(release):
    """But for a class that `pool secrets` looks into: tests/unit/pool/test_client_secrets.py."""
    calls = {name: datamodel.find(name) for name in rows() if not name.startswith("/")}
    lacking = [name for name, call in calls.items() if call.life.at(release) is not datamodel.Presence.THERE]
    assert len(calls) > 90 and lacking == []


@pytest.mark.parametrize("kind", sorted(DATABASE_NAMES))
def test_fields_that_are_asked_for_have_the_name_of_the_database(kind):
    known = datamodel.FIELDS[kind]
    assert {name: known[name].db_name for name in DATABASE_NAMES[kind]} == DATABASE_NAMES[kind]
