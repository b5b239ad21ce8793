# SPDX-License-Identifier: LGPL-2.1-only
"""What people read is plain English: no word of the list, and no sentence of more than 25 words.

Judged are the pages of docs/, and the messages of all Python files outside of tests: what errors, say(), ask() and
help= are given, the long texts of --help, and the documentation of Ansible modules.
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
ANY_RIDDLE = re.compile("|".join(RIDDLES), re.IGNORECASE)
MANUALS = {"DOCUMENTATION", "RETURN"}  #: of Ansible modules, in YAML
CALLS = {"say", "ask", "ask_for", "tell", "in_state", "PoolAnswer", "Finding"}


def prose(page):
    """The paragraphs and items of a page, without code samples, tables' options, literals and links."""
    text = re.sub(r"(?m)::\n\n(?:(?: +.*)?\n)+", ".\n\n", page)
    text = re.sub(r"(?m)^\.\. .*\n(?:   .*\n|\n(?=   ))*", "", text)
    text = re.sub(r"(?m)^(?:- )?``.*``$", "", text)  # a message on docs/troubleshooting.rst: judged where it is made
    text = re.sub(r"(?m)^(?:=+ +)+=+\n(?:.+\n)+", lambda table: table.group().replace("\n", "\n\n"), text)
    text = re.sub(r"``[^`]*``|:\w+:`[^`]*`|`[^`]*`__?", "X", text)
    for block in re.split(r"\n\s*\n|(?m:^\s*(?:[-*] |\d+\. )+)", text):
        yield " ".join(block.split())


def messages(source):
    """The texts in a module that a person reads; what is known only when it runs is one word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in CALLS or name[:1].isupper():
                yield from map(text_of, node.args)
            yield from (text_of(word.value) for word in node.keywords if word.arg == "help")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id[:1] == "_":
            whole = text_of(node.value)
            yield from re.split(r"\n\s*\n|\n(?= *-)", whole.partition("\nexample:")[0]) if "\n" in whole else ()
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in MANUALS:
            yield from re.split(r"\n *(?:- |\w+:)", re.sub(r"[A-Z]\([^)]*\)", "X", text_of(node.value)))


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
            if ANY_RIDDLE.search(sentence):
                yield from (
                    (better, sentence) for riddle, better in RIDDLES.items() if re.search(riddle, sentence, re.I)
                )


def texts_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".rst":
        yield from prose(text)
    else:
        yield from messages(text)


def by_name():
    """The files of each name: a page, or the modules of a room; `relvmoiscsi` has the modules beside the rooms."""
    found = {}
    for path in sorted((TOP / "docs").rglob("*.rst")) + [TOP / "README.rst"]:
        found[path.relative_to(TOP).as_posix()] = [path]
    for path in sorted((TOP / "relvmoiscsi").rglob("*.py")):
        found.setdefault("/".join(path.relative_to(TOP).parts[:-1][:2]), []).append(path)
    found["drivers"] = [path for path in sorted((TOP / "drivers").rglob("*")) if path.is_file()]
    found["openstack"] = sorted((TOP / "openstack/relvmoiscsi_cinder").rglob("*.py"))
    found["ansible"] = sorted((TOP / "ansible/plugins").rglob("*.py"))
    for name in ("supp-pack", "tools", "acceptance"):
        found[name] = sorted((TOP / name).rglob("*.py"))
    return found


FILES = by_name()


def found_in(name):
    return [(path.name, *finding) for path in FILES[name] for finding in findings(texts_of(path))]


@pytest.mark.parametrize("name", FILES)
def test_what_people_read_is_plain(name):
    assert found_in(name) == []


LONG = " ".join(["word"] * 26) + "."


@pytest.mark.parametrize(
    "texts, source, count",
    [
        (messages, f"raise Refused({LONG!r})", 1),
        (messages, f"parser.add_argument('--x', help={LONG!r})", 1),
        (messages, "say(f'{name} is mute.')", 1),
        (messages, f"DOCUMENTATION = '''\ndescription:\n  - {LONG}\n  - Short.'''", 1),
        (messages, f"'''{LONG}'''\nname = {LONG!r}", 0),
    ],
)
def test_what_is_not_plain_is_found(texts, source, count):
    assert len(list(findings(texts(source)))) == count
