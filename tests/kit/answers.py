# SPDX-License-Identifier: LGPL-2.1-only
"""Holds answers against relvmoiscsi/answers.schema.json. The validator needs a current Python."""

import json
from functools import lru_cache
from types import SimpleNamespace

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from kit.rpm_tools import TOP

SCHEMA = json.loads((TOP / "relvmoiscsi/answers.schema.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=None)
def _validator(command):
    place = "#/$defs/answers/" + command.replace(" ", "%20")
    return Draft202012Validator({"$ref": place, "$defs": SCHEMA["$defs"]})


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
