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
        answers = parts.pop("answers")
        rows = [(name, ", or ".join(map(named, answer["anyOf"]))) for name, answer in answers.items()]
        found = [table((24, 76), ("command", "prints"), rows)]
        for name, part in parts.items():
            found.append(
                nodes.paragraph("", "", nodes.strong("", name), nodes.Text(f": {part.get('description', '')}"))
            )
            found.append(table((30, 20, 50), ("key", "type", "is"), list(keys(part))))
        return found


def keys(part, begin=""):
    """The rows of an object: each key, its type, its meaning. A key within a key stands behind a dot."""
    for key, value in part.get("properties", {}).items():
        if key in FRAME:
            continue
        optional = "" if key in part.get("required", ()) else ", may be missing"
        yield begin + key, kind(value) + optional, value.get("description", "")
        inner = value.get("items", value)
        if "$ref" not in inner:
            yield from keys(inner, begin + key + ".")


def kind(value):
    if "$ref" in value:
        return named(value)
    if "anyOf" in value:
        return " or ".join(map(kind, value["anyOf"]))
    if "enum" in value:
        return " or ".join("null" if each is None else f'"{each}"' for each in value["enum"])
    if value.get("type") == "array":
        return "list of " + kind(value["items"])
    names = value.get("type", "value")
    return " or ".join(names) if isinstance(names, list) else names


def named(value):
    return value["$ref"].rpartition("/")[2]


def setup(app):
    app.add_directive("answers", Answers)
    return {"parallel_read_safe": True}
