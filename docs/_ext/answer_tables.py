# SPDX-License-Identifier: LGPL-2.1-only
"""The keys of every JSON answer, from relvmoiscsi/answers.schema.json: the directive `answers`."""

import json
from pathlib import Path

from docutils import nodes
from protocol_tables import table
from sphinx.util.docutils import SphinxDirective

SCHEMA = Path(__file__).resolve().parents[2] / "relvmoiscsi/answers.schema.json"
FRAME = ("command", "json_version")


class Answers(SphinxDirective):
    """A table of commands with the objects that they print, and a table of keys for each object."""

    def run(self):
        self.env.note_dependency(str(SCHEMA))
        parts = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
        answers, meanings = parts.pop("answers"), parts.pop("keys")
        rows = [(name, ", or ".join(map(named, answer["anyOf"]))) for name, answer in answers.items()]
        found = [table((24, 76), ("command", "prints"), rows)]
        for name, part in parts.items():
            found.append(
                nodes.paragraph("", "", nodes.strong("", name), nodes.Text(f": {part.get('description', '')}"))
            )
            found.append(table((30, 20, 50), ("key", "type", "is"), list(rows_of(part, meanings))))
        return found


def rows_of(part, meanings):
    """The rows of an object: each key, its type, and its one meaning, from `keys` of the schema."""
    for key, narrowed in part["properties"].items():
        if key in FRAME:
            continue
        optional = "" if key in part["required"] else ", may be missing"
        yield key, kind(meanings[key], narrowed) + optional, meanings[key]["description"]


def kind(value, narrowed=None):
    """The type of a key; `narrowed` is what an object says of its own key: a type without null, or fewer values."""
    narrowed = narrowed or {}
    can_be_null = "type" not in narrowed
    if "$ref" in value:
        return named(value)
    if "anyOf" in value:
        return " or ".join(kind(each) for each in value["anyOf"] if can_be_null or each != {"type": "null"})
    if "enum" in value:
        values = [each for each in narrowed.get("enum", value["enum"]) if can_be_null or each is not None]
        return " or ".join("null" if each is None else f'"{each}"' for each in values)
    if value.get("type") == "array":
        return "list of " + kind(value["items"])
    names = narrowed.get("type", value.get("type", "value"))
    return " or ".join(names) if isinstance(names, list) else names


def named(value):
    return value["$ref"].rpartition("/")[2]


def setup(app):
    app.add_directive("answers", Answers)
    return {"parallel_read_safe": True}
