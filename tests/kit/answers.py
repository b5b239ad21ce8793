# SPDX-License-Identifier: LGPL-2.1-only
"""Holds answers against relvmoiscsi/answers.schema.json. The validator needs a current Python.

The schema lets a reader meet keys of later releases. Our own answers are held against its strict form, so that a key
which is not in the schema is a problem.
"""

import json
from functools import lru_cache
from types import SimpleNamespace

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from kit.rpm_tools import TOP

SCHEMA = json.loads((TOP / "relvmoiscsi/answers.schema.json").read_text(encoding="utf-8"))


def strict(part):
    """The same part of the schema, where no object has a key that is not named."""
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {"additionalProperties": False} if isinstance(part.get("properties"), dict) and "type" in part else {}
    return {**closed, **{key: strict(each) for key, each in part.items()}}


_STRICT = strict(SCHEMA["$defs"])


@lru_cache(maxsize=None)
def _validator(command):
    place = "#/$defs/answers/" + command.replace(" ", "%20")
    return Draft202012Validator({"$ref": place, "$defs": _STRICT})


def problem_of(answer):
    """Why the schema refuses the answer; None if it does not."""
    if answer.get("command") not in SCHEMA["$defs"]["answers"]:
        return f"the schema has no answer of {answer.get('command')!r}"
    found = best_match(_validator(answer["command"]).iter_errors(answer))
    return found and f"{answer['command']}: {found.json_path}: {found.message}"


def noted(problems):
    """In place of the module json: writes as it does, and adds to `problems` what the schema refuses."""

    def dumps(answer, **options):
        text = json.dumps(answer, **options)
        problems.extend(filter(None, [problem_of(json.loads(text))]))
        return text

    return SimpleNamespace(dumps=dumps)
