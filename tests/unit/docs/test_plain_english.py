# SPDX-License-Identifier: LGPL-2.1-only
"""What people read is plain English: no word of the list, and few sentences of more than 25 words, fewer each time.

Counted are the pages of docs/, and the messages in relvmoiscsi: what errors, say(), ask() and help= are given, and the
long texts of --help.
"""

import ast
import re
import sys

import pytest

from kit.rpm_tools import TOP

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 8), reason="the syntax tree had other names; one Python is enough"
)

MOST_WORDS = 25
#: riddles, each with what to write in its place
RIDDLES = {
    r"\bwhoever\b": "name the actor",
    r"\bmute\b": "does not answer",
    r"\blest\b": "so that ... not",
    r"\ball the same\b": "still; proceed even if",
    r"\bone of ours\b": "name the thing and its owner",
    r"\bthose that\b": "repeat the noun",
    r"\bthat is mended\b": "correct the cause",
    r"\bby those of\b": "repeat the noun",
    r"\bis to be had\b": "is available",
    r"\bnobody can be asked\b": "no terminal, no xapi: say which",
    r"\bin spite of\b": "despite",
    r"\b[Rr]un the same again\b": "repeat the command",
}
#: too long sentences and riddles that a file still has: a number may fall, and a file may leave, and no other change
LEFT = {
    "docs/costs.rst": 10,
}
ROOMS = ("cli", "pool", "direct", "doctor", "report", "iscsi", "sr_driver")
CALLS = {"say", "ask", "ask_for", "tell", "in_state", "PoolAnswer", "Finding"}


def prose(page):
    """The paragraphs and items of a page, without code samples, tables' options, literals and links."""
    text = re.sub(r"(?m)::\n\n(?:(?: +.*)?\n)+", ".\n\n", page)
    text = re.sub(r"(?m)^\.\. .*\n(?:   .*\n|\n(?=   ))*", "", text)
    text = re.sub(r"(?m)^(?:- )?``.*``$", "", text)  # a message on docs/troubleshooting.rst: judged where it is made
    text = re.sub(r"``[^`]*``|:\w+:`[^`]*`|`[^`]*`__?", "X", text)
    for block in re.split(r"\n\s*\n|(?m:^\s*(?:[-*] |\d+\. )+)", text):
        yield " ".join(block.split())


def messages(source):
    """The texts in a module that a person reads; what is known only when it runs is one word."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in CALLS or name[:1].isupper():
                yield from map(text_of, node.args)
            yield from (text_of(word.value) for word in node.keywords if word.arg == "help")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id[:1] == "_":
            whole = text_of(node.value)
            yield from re.split(r"\n\s*\n|\n(?=-)", whole.partition("\nexample:")[0]) if "\n" in whole else ()


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return text_of(node.func.value)
    if isinstance(node, ast.Constant):
        return re.sub(r"`[^`]*`", "X", node.value) if isinstance(node.value, str) else ""
    return "X"


def findings(texts):
    """The sentences that are too long, and the riddles."""
    for text in texts:
        for sentence in re.split(r"(?<=[.:?!])\*{0,2}\s+", text):
            if len(re.findall(r"[\w'/-]+", sentence)) > MOST_WORDS:
                yield "more than 25 words", sentence
            for riddle, better in RIDDLES.items():
                if re.search(riddle, sentence, re.IGNORECASE):
                    yield better, sentence


def texts_of(path):
    text = path.read_text(encoding="utf-8")
    return prose(text) if path.suffix == ".rst" else messages(text)


PAGES = sorted((TOP / "docs").rglob("*.rst")) + [TOP / "README.rst"]
MODULES = sorted(path for room in ROOMS for path in (TOP / "relvmoiscsi" / room).rglob("*.py"))
FILES = {path.relative_to(TOP).as_posix(): path for path in [*PAGES, *MODULES]}


@pytest.mark.parametrize("name", FILES)
def test_what_people_read_is_plain(name):
    found = list(findings(texts_of(FILES[name])))

    assert len(found) <= LEFT.get(name, 0), found


@pytest.mark.parametrize("name", LEFT)
def test_the_list_of_exceptions_only_shrinks(name):
    assert name in FILES, "a file that is gone leaves the list"
    assert len(list(findings(texts_of(FILES[name])))) == LEFT[name], "write the lower number"


LONG = " ".join(["word"] * 26) + "."


@pytest.mark.parametrize(
    "source, count",
    [
        (f"raise Refused({LONG!r})", 1),
        (f"parser.add_argument('--x', help={LONG!r})", 1),
        ("say(f'{name} is mute.')", 1),
        ("raise Refused('Short.' + ' Whoever comes.')", 1),
        ("_HELP = '''\\nLest it ends.\n'''", 1),
        (f"'''{LONG}'''\nname = {LONG!r}", 0),
        ("say('xapi does not answer.')", 0),
    ],
)
def test_a_message_that_is_not_plain_is_found(source, count):
    assert len(list(findings(messages(source)))) == count


def test_prose_of_a_page_has_no_code_in_it():
    page = f"One.\n\nTwo::\n\n    {LONG}\n    whoever\n\n- ``whoever`` three\n- four\n"

    assert list(findings(prose(page))) == []
    assert len(list(findings(prose(f"{LONG}\n\nWhoever.")))) == 2
