# SPDX-License-Identifier: LGPL-2.1-only
"""docs/troubleshooting.rst has every sentence that an error is raised with, and none that the code does not have."""

import ast
import bisect
import functools
import itertools
import re
import sys
from pathlib import Path

import pytest

from relvmoiscsi.sr_driver import codes

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 8), reason="the syntax tree had other names; one Python is enough"
)

TOP = Path(__file__).resolve().parents[3]
PAGE = (TOP / "docs/troubleshooting.rst").read_text(encoding="utf-8")
MODULES = sorted((TOP / "relvmoiscsi").rglob("*.py"))

ANY = "…"
#: errors whose message is their first argument
SENTENCES = {"UsageError", "NotFound", "Refused", "Uncertain", "Unfinished", "Listed", "Busy", "OutOfTime"}
SENTENCES |= {"PoolFailure", "PoolGone"}
#: errors whose first argument is what the structure is called, and whose second says where it is
STRUCTURES = {"BadMagic", "BadChecksum", "Truncated", "Malformed", "Unsupported"}


def listed():
    """What the page has as a term, or as an item of a list, in `` ``; a line may have several."""
    for line in re.findall(r"^(?:- )?``(.*)``$", PAGE, re.MULTILINE):
        yield from line.split("``, ``")


def texts(node, names):
    """The texts that an expression may give, with ANY for what is known only when it runs."""
    if isinstance(node, ast.JoinedStr):
        return combined([texts(part, names) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return combined([texts(node.left, names), texts(node.right, names)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return {re.sub(r"\{[^}]*\}", ANY, text) for text in texts(node.func.value, names)}
    if isinstance(node, ast.Name):
        return names.get(node.id, {ANY})
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else {ANY}


def combined(parts):
    return {"".join(chosen) for chosen in itertools.product(*parts)}


def names_in(function):
    """What is assigned to the names in a function, where it is text."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, set()).update(texts(node.value, {}))
    return found


def raised(kinds, *trees):
    """The texts of the first argument of each error of these kinds that modules make."""
    found = set()
    for tree in trees:
        for function, calls in calls_of(tree):
            made = [call for call in calls if call.func.id in kinds]
            names = names_in(function) if made else {}
            found.update(*(texts(call.args[0], names) for call in made))
    return {one_gap(text) for text in found if re.search(r"\w", text)}


@functools.lru_cache(maxsize=None)
def calls_of(tree):
    """The functions of a module, each with its calls of names with arguments."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [(function, list(filter(is_call, ast.walk(function)))) for function in functions]


def is_call(node):
    return isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name)


def one_gap(text):
    """What differs may be of several parts, which nobody sees."""
    return re.sub(ANY + "+", ANY, text)


def all_texts(tree):
    """Every text in a module, whatever it is for."""
    of_texts = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)
    found = set().union(*(texts(node, {}) for node in ast.walk(tree) if isinstance(node, of_texts)))
    return {one_gap(re.sub(r"\{[^}]*\}", ANY, text)) for text in found}


LISTED = list(listed())


@pytest.fixture(scope="module")
def trees():
    return [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES]


@pytest.fixture(scope="module")
def of_modules(trees):
    return list(map(all_texts, trees))


def test_each_sentence_on_the_page_is_the_beginning_of_one_in_the_code(of_modules):
    known = sorted(set().union(*of_modules))

    def begins_one(beginning):
        at = bisect.bisect_left(known, beginning)  # the first that is not before it in the alphabet
        return at < len(known) and known[at].startswith(beginning)

    def is_in_code(sentence):
        return begins_one(sentence.rstrip(ANY)) or begins_one(re.sub(" (at )?" + ANY + "$", "", sentence))

    assert [sentence for sentence in LISTED if not is_in_code(sentence)] == []


def test_each_sentence_and_each_structure_of_the_code_is_on_the_page(trees):
    sentences = tuple(sentence.rstrip(ANY) for sentence in LISTED)
    structures = tuple(re.sub(" (at )?" + ANY + "$", "", sentence) for sentence in LISTED)

    made = raised(SENTENCES, *trees)
    assert len(made) > 300 and sorted(text for text in made if not text.startswith(sentences)) == []
    assert sorted(what for what in raised(STRUCTURES, *trees) if not what.startswith(structures)) == []


def test_the_numbers_on_the_page_are_those_that_the_driver_answers_with(of_modules):
    rows = re.findall(r"^   \* - (\d+)\n     - (\w+)$", PAGE, re.MULTILINE)
    used = set().union(*(found for path, found in zip(MODULES, of_modules) if path.name != "codes.py"))

    assert rows == [
        (str(number), key) for key, number in codes.NUMBERS.items() if key in used and number not in codes._SILENT
    ]
