# SPDX-License-Identifier: LGPL-2.1-only
"""What people read has no sentence of more than 25 words: the pages, the errors, and the texts of --help."""

import ast
import re
import sys

import pytest

from kit.own_source import nodes_of
from kit.rpm_tools import TOP

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 8), reason="the syntax tree had other names; one Python is enough"
)

MOST_WORDS = 25
PAGES = [TOP / "README.rst", *sorted((TOP / "docs").rglob("*.rst"))]
MODULES = [path for room in ("relvmoiscsi", "openstack", "acceptance") for path in sorted((TOP / room).rglob("*.py"))]


def prose(page):
    """The paragraphs and items of a page, without code samples, tables' options, literals and links."""
    text = re.sub(r"(?m)::\n\n(?:(?: +.*)?\n)+", ".\n\n", page)
    text = re.sub(r"(?m)^\.\. .*\n(?:   .*\n|\n(?=   ))*", "", text)
    text = re.sub(r"(?m)^(?:- )?``.*``$", "", text)  # a message on docs/troubleshooting.rst: judged where it is made
    text = re.sub(r"(?m)^(?:=+ +)+=+\n(?:.+\n)+", lambda table: table.group().replace("\n", "\n\n"), text)
    text = re.sub(r"``[^`]*``|:\w+:`[^`]*`|`[^`]*`__?", "X", text)
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n|(?m:^\s*(?:[-*] |\d+\. )+)", text)]


def messages(source):
    """What errors and help= are given in a module; what is known only when it runs is one word."""
    for node in nodes_of(source):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            yield from map(text_of, node.args if name[:1].isupper() else ())
            yield from (text_of(word.value) for word in node.keywords if word.arg == "help")


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "format":
        return text_of(node.func.value)
    return re.sub(r"`[^`]*`", "X", node.value) if isinstance(getattr(node, "value", None), str) else "X"


def too_long(texts):
    sentences = (sentence for text in texts for sentence in re.split(r"(?<=[.:?!])\*{0,2}\s+", text))
    return [sentence for sentence in sentences if len(re.findall(r"[\w'/-]+", sentence)) > MOST_WORDS]


def test_a_page_has_short_sentences():
    assert {path.name: too_long(prose(path.read_text(encoding="utf-8"))) for path in PAGES} == {
        path.name: [] for path in PAGES
    }


def test_an_error_and_a_text_of_help_have_short_sentences():
    assert [(path.name, *too_long(messages(path.read_text(encoding="utf-8")))) for path in MODULES] == [
        (path.name,) for path in MODULES
    ]
