# SPDX-License-Identifier: LGPL-2.1-only
"""The runs that the documents show are real: the same words give the same lines, and the same Python runs."""

import doctest
import inspect
import json
import re
import shlex

import pytest

from kit import golden
from kit.shell import TOP
from relvmoiscsi import engine
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.resignature.reading.lun_contents import Lun

PAGES = ("README.rst", "docs/administrator.rst", "docs/one-vdi.rst", "docs/scripting.rst")


def text_of(page):
    return (TOP / page).read_text(encoding="utf-8")


def blocks(text):
    """What stands indented by four under `::`."""
    for found in re.finditer(r"::\n\n((?:(?:    .*)?\n)+)", text):
        yield re.sub("^    ", "", found.group(1), flags=re.MULTILINE)


def runs(text):
    """The commands in the blocks of a page, in their order, each with the lines that it is said to print."""
    for block in blocks(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            words, _, rest = part.replace("\\\n>", "").partition("\n")
            if words.startswith("relvmoiscsi "):
                yield shlex.split(words)[1:], [line for line in rest.splitlines() if line.strip()]


def comparable(line):
    """Without what was typed, and without the one number that depends on how a file system keeps sparse files."""
    return re.sub(r"differs \([0-9.]+", "differs (all", line.replace("[y/N] y", "[y/N] "))


@pytest.fixture
def luns(tmp_path, monkeypatch):
    """The LUN of the documents, and a copy of it, in the working directory."""
    for name in ("original.img", "clone.img"):
        golden.load("chain").disk.to_file(str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_a_run_prints_what_the_page_says(page, luns, command, type_in):
    shown = list(runs(text_of(page)))
    for argv, lines in shown:
        type_in("y\n")
        ran = command(*argv)
        printed = comparable(ran.err + "\n" + ran.out).splitlines()

        assert ran.status == 0
        for line in lines:
            assert line.strip() == "..." or comparable(line) in printed, argv
    assert shown


def test_the_json_on_the_page_is_a_part_of_what_the_run_prints(luns, command):
    shown = next(json.loads(block) for block in blocks(text_of("docs/scripting.rst")) if block.startswith("{"))

    ran = command("resignature", "clone.img", "--yes", "--json", "--sr-uuid", shown["sr"]["new"]).json

    assert list(shown) == list(ran)
    for key in ("vdis", "lvs"):
        assert shown.pop(key)[0] in ran.pop(key)
    assert shown == ran


def test_the_python_on_the_page_runs(luns, command):
    page = "docs/python.rst"
    lines = doctest.DocTestParser().get_doctest(text_of(page), {}, page, page, 0)
    said = []

    ran = doctest.DocTestRunner(verbose=False).run(lines, out=said.append)

    assert ran.failed == 0, "".join(said)
    called = " ".join(example.source for example in lines.examples)
    uncalled = [name for name in engine.PROMISED if f"engine.{name}" not in called]
    assert uncalled == ["Comparison", "Inspection", "OneVdiRequest", "Result"]
    assert command("show", "clone.img", "--json").json["state"] == "clean"


def test_the_page_describes_what_python_is_given():
    page = text_of("docs/python.rst")
    results = [each for each in map(vars(engine).get, engine.PROMISED) if isinstance(each, type)]
    for result in [*results, Lun, IdMap]:
        name = result.__name__
        (table,) = re.findall(rf"^{name}\n~+\n\n((?:.*\n)+?)(?=\S|\Z)", page, re.MULTILINE)
        table = "".join(re.findall(r"^   \* - (.*)$", table, re.MULTILINE))
        assert sorted(re.findall(r"``(\w+)``", table)) == sorted(result._fields), name

    functions = [name for name in engine.PROMISED if name[0].islower()]
    for name in functions:
        words = inspect.signature(getattr(engine, name)).parameters
        assert f"``{name}({', '.join(words)})``" in page
    assert sorted(functions) == ["compare", "inspect", "prepare", "recover", "resignature", "undo"]
