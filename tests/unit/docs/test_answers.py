# SPDX-License-Identifier: LGPL-2.1-only
"""relvmoiscsi/answers.schema.json: every command is in it, and every key has one definition.

That each answer is what it says: the fixture each_answer_is_in_the_schema, in every test.
"""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from kit import answers
from relvmoiscsi import json_answer, plugin
from relvmoiscsi.cli.completion import parsers
from relvmoiscsi.cli.parser import make_parser

SCHEMA = answers.SCHEMA
ANSWERS, KEYS = SCHEMA["$defs"]["answers"], SCHEMA["$defs"]["keys"]
OBJECTS = {name: part for name, part in SCHEMA["$defs"].items() if name not in ("answers", "keys")}
#: what an object may say of its own key: less than the key allows, and nothing of what the key means
NARROWINGS = {"type", "enum", "items"}


def test_it_is_a_schema_and_each_answer_is_in_it():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["command"]["enum"] == list(ANSWERS)
    for command in ANSWERS:
        assert {"$ref": "#/$defs/answers/" + command.replace(" ", "%20")} in SCHEMA["anyOf"]
        assert ANSWERS[command]["properties"] == {"command": {"const": command}}
    assert SCHEMA["properties"]["json_version"] == {"const": json_answer.JSON_VERSION}


def test_every_command_and_every_function_of_the_plugin_has_an_answer():
    commands = {name for name, _ in parsers(make_parser()) if name} | {
        "direct udev",
        "direct events",
        "pool attach --map-out",
        "version",
    }
    functions = {"plugin " + name for name in (*plugin.FUNCTIONS, "doctor", "lun")}
    assert set(ANSWERS) == commands | functions


def test_a_key_is_defined_once_for_all_objects():
    for name, part in OBJECTS.items():
        for key, said in part["properties"].items():
            assert said["$ref"] == "#/$defs/keys/" + key, f"{name} gives {key} another definition"
            assert set(said) - {"$ref"} <= NARROWINGS, f"{name} says what {key} means"
    assert set(KEYS) == {key for part in OBJECTS.values() for key in part["properties"]}


def test_a_key_has_one_description_and_no_object_of_its_own():
    for key, meant in KEYS.items():
        assert meant["description"] and not set(described(meant)) - {meant["description"]}, key
        assert '"properties"' not in json.dumps(meant), f"the objects of {key} have no name"


def test_a_key_is_the_uuid_or_the_name_of_one_kind_of_object_and_no_meaning_has_two_keys():
    texts = [meant["description"] for meant in KEYS.values()]

    assert len(set(texts)) == len(texts)
    ids = [re.split("[;:]", text)[0] for text in texts if re.match("(UUID|name) of", text)]
    assert len(ids) > 20 and not [text for text in ids if " or " in text]


def described(value):
    """Every description in a definition."""
    if isinstance(value, dict):
        found = [value["description"]] if "description" in value else []
        return found + [text for each in value.values() for text in described(each)]
    return [text for each in value for text in described(each)] if isinstance(value, list) else []


def test_what_an_object_says_of_its_key_allows_less_than_the_key():
    for name, part in OBJECTS.items():
        for key, said in part["properties"].items():
            assert "type" not in said or types(said) < types(KEYS[key]), (name, key)
            assert set(said.get("enum", ())) <= set(KEYS[key].get("enum", ())), (name, key)
            assert set(said.get("items", {})) <= {"required"}, (name, key)


def types(value):
    """The types of a value of a key."""
    if "type" in value:
        return set(value["type"]) if isinstance(value["type"], list) else {value["type"]}
    if "anyOf" in value:
        return set().union(*map(types, value["anyOf"]))
    return {"null" if each is None else "string" for each in value["enum"]} if "enum" in value else {"object"}


def test_a_reader_with_the_schema_of_today_takes_the_keys_of_a_later_release():
    answer = {"command": "direct udev", "json_version": 1, "link_name": "", "more": 1}

    assert Draft202012Validator(SCHEMA).is_valid(answer)
    assert not Draft202012Validator(SCHEMA).is_valid({**answer, "link_name": 7})


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"command": "direct udev", "json_version": 1, "link_name": ""}, None),
        ({"command": "direct udev", "json_version": 1, "link_name": "", "more": 1}, "more"),
        ({"command": "direct udev", "json_version": 1, "link_name": 7}, "7 is not of type"),
        ({"command": "direct udev", "json_version": 2, "link_name": ""}, "1 was expected"),
        ({"command": "direct udev", "link_name": ""}, "json_version"),
        ({"command": "frobnicate", "json_version": 1}, "the schema has no answer"),
    ],
)
def test_what_the_schema_does_not_have_is_a_problem(answer, says):
    found, problems = answers.problem_of(answer), []
    assert found is None if says is None else found and (says in found or "any of the given schemas" in found)
    answers.noted(problems).dumps(answer)
    assert problems == [found] * (says is not None)


@pytest.mark.parametrize("name", ["show", "check"])
@pytest.mark.parametrize("state", ["clean", "resignatured", "unfinished", "damaged", "foreign"])
def test_an_answer_on_a_lun_that_lacks_the_keys_of_its_state_is_refused(name, state):
    assert answers.problem_of({"command": name, "json_version": 1, "state": state, "device": "/dev/sdc"})
