# SPDX-License-Identifier: LGPL-2.1-only
"""relvmoiscsi/answers.schema.json: every command is in it, every key has a description, and a key has one meaning.

That each answer is what it says: the fixture each_answer_is_in_the_schema, in every test.
"""

from collections import defaultdict

import pytest
from jsonschema import Draft202012Validator

from kit import answers
from relvmoiscsi import json_answer, plugin
from relvmoiscsi.cli.completion import parsers
from relvmoiscsi.cli.parser import make_parser

SCHEMA = answers.SCHEMA
PARTS = {name: part for name, part in SCHEMA["$defs"].items() if name != "answers"}
ANSWERS = SCHEMA["$defs"]["answers"]


def properties(part):
    """Each key of an object, and of the objects in it: (key, schema)."""
    for key, value in part.get("properties", {}).items():
        yield key, value
        yield from properties(value.get("items", value))


EVERY = [(f"{name}.{key}", key, value) for name, part in PARTS.items() for key, value in properties(part)]


def test_it_is_a_schema_and_each_answer_is_in_it():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["command"]["enum"] == list(ANSWERS)
    for command in ANSWERS:
        assert {"$ref": "#/$defs/answers/" + command.replace(" ", "%20")} in SCHEMA["anyOf"]
        assert ANSWERS[command]["properties"] == {"command": {"const": command}}
    assert SCHEMA["properties"]["json_version"] == {"const": json_answer.JSON_VERSION}


def test_every_command_and_every_function_of_the_plugin_has_an_answer():
    commands = {name for name, _ in parsers(make_parser()) if name} | {"direct udev", "pool attach --map-out"}
    functions = {"plugin " + name for name in (*plugin.FUNCTIONS, "doctor", "lun")}
    assert set(ANSWERS) == commands | functions


def test_every_key_is_described():
    assert [place for place, _, value in EVERY if not (value.get("description") or "$ref" in value)] == []


def kinds(schema):
    """The types of a value. A table of its own is a type; of a list, also the type of its items."""
    if "$ref" in schema:
        return {schema["$ref"]}
    if "anyOf" in schema:
        return set().union(*map(kinds, schema["anyOf"]))
    if "const" in schema or "enum" in schema and "type" not in schema:
        values = schema.get("enum", [schema.get("const")])
        names = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
        return {names[type(value)] for value in values}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "items" in schema:
        assert types == ["array"]
        return {"array of " + ("object" if kind.startswith("#") else kind) for kind in kinds(schema["items"])}
    return set(types)


def test_a_key_has_one_type_in_all_answers():
    """Beside null, for what is unknown. Two lists of objects may have other keys in their objects."""
    found = defaultdict(set)
    for _place, key, value in EVERY:
        found[key] |= kinds(value) - {"null"}
    assert {key: types for key, types in found.items() if len(types) > 1} == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"command": "direct udev", "json_version": 1, "link": ""}, None),
        ({"command": "direct udev", "json_version": 1, "link": "", "more": 1}, "more"),
        ({"command": "direct udev", "json_version": 1, "link": 7}, "7 is not of type"),
        ({"command": "direct udev", "json_version": 2, "link": ""}, "1 was expected"),
        ({"command": "direct udev", "link": ""}, "json_version"),
        ({"command": "frobnicate", "json_version": 1}, "the schema has no answer"),
    ],
)
def test_what_the_schema_does_not_have_is_a_problem(answer, says):
    found, problems = answers.problem_of(answer), []
    assert found is None if says is None else found and (says in found or "any of the given schemas" in found)
    answers.noted(problems).dumps(answer)
    assert problems == [found] * (says is not None)
