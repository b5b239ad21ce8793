# SPDX-License-Identifier: LGPL-2.1-only
"""A command in a message is what it says, also where a LUN, a target or another user has chosen its words."""

import argparse
import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relvmoiscsi.cli.on_lun import file_word
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.wording import printable, quoted, said, shell_command, some_of, table

HOSTILE = (
    "1x$(touch${IFS}pwned)",
    "a;b",
    "a b",
    "'",
    '"',
    "\\",
    "*",
    "~",
    "!!",
    "#",
    "a=$(id)",
    "$(id)=a",
    "<&>",
    "",
)


@pytest.mark.parametrize("word", HOSTILE)
def test_a_shell_reads_the_words_as_they_were_given(word):
    words = ["xe", f"device-config:SCSIid={word}", word, f"--name={word}"]
    assert shlex.split(quoted(*words)) == words
    assert shlex.split(shell_command("xe --force", word, sr=word)) == ["xe", "--force", "--sr", word, word]
    assert str(CommandFailed(words, 1, "no")) == f"`{quoted(*words)}` failed with exit status 1: no"


def words_of(command):
    """The words of a command as bash reads them."""
    printed = subprocess.run(["bash", "-c", r"printf '%s\0' " + command], stdout=subprocess.PIPE, check=True).stdout
    return [os.fsdecode(word) for word in printed.split(b"\0")[:-1]]


def as_bash_can(word):
    return word.replace("\0", "\\x00")


@pytest.mark.processes
@settings(deadline=None, max_examples=40)
@given(st.lists(st.text()))
def test_any_names_are_one_line_of_printable_characters_and_the_same_names_and_no_options(names):
    said = shell_command("xe sr-list --all", *names)
    shown = list(map(as_bash_can, names))
    assert said.isprintable() and "`" not in said
    if any(len(name) > 1 and name.startswith("-") for name in names):
        shown.insert(0, "--")
    assert words_of(said) == ["xe", "sr-list", "--all", *shown]


@pytest.mark.processes
@settings(deadline=None, max_examples=40)
@given(st.text())
def test_any_value_of_an_option_is_its_value_and_no_other_option(value):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--chap-file")
    parser.add_argument("--all", action="store_true")
    words = words_of(shell_command("xe --all", chap_file=value))[1:]
    assert vars(parser.parse_args(words)) == {"chap_file": as_bash_can(value), "all": True}


@pytest.mark.processes
@pytest.mark.parametrize(
    "word",
    ["n\nl.img", "it's\t", "\\\x1b[2J", "\udcff.img", "\u202egpj.exe", "a=\n", "\ud800", "`id`", "a\u3164", "\\udcff"],
)
def test_a_word_that_is_not_printable_is_the_same_word_for_bash(word):
    word_or_bytes = word.encode("utf-8", "surrogatepass" if word == "\ud800" else "surrogateescape")
    assert [os.fsencode(each) for each in words_of(quoted("echo", word))] == [b"echo", word_or_bytes]


def test_a_character_that_nobody_sees_is_printed_as_an_escape():
    unseen = "\u034f\u115f\u2800\u3164\ufe0f\uffa0\U000e0100\u200b\u00ad\n\t"

    assert [printable(char) for char in unseen] == [char.encode("unicode_escape").decode() for char in unseen]
    assert printable("Ä é 語 e\u0301 \u05d0 🖥") == "Ä é 語 e\u0301 \u05d0 🖥" and printable("a\u3164b") == r"a\u3164b"


def test_a_byte_that_is_no_text_has_one_form_in_a_sentence_and_in_quotes():
    """`repr` has a form of its own, which only a reader of Python knows."""
    word, literal = "sh\udcc3\udcb6w", "sh\\udcc3"
    assert printable(word) == r"sh\xc3\xb6w" and printable(repr(word)) == printable(said(word)) == r"'sh\xc3\xb6w'"
    assert printable(repr(literal)) == repr(literal), "the letters of an escape are letters"
    assert printable(quoted(literal)) == quoted(literal), "a command stays the same command"


@pytest.mark.parametrize("path", ["-dash", "--yes", "-", "-rf", "--"])
def test_a_path_is_never_an_option(path):
    assert file_word(path) == f"./{path}" and file_word("/dev/sdb") == "/dev/sdb"


def test_what_needs_no_quotes_has_none_and_of_a_pair_the_value_has_them():
    names = "uuid=8d7e9748-54ea-475b-8999-0d688a40c914", "name-label=a copy", "SCSIid=3600$"
    assert shell_command("xe sr-introduce", *names) == (
        "xe sr-introduce uuid=8d7e9748-54ea-475b-8999-0d688a40c914 name-label='a copy' SCSIid='3600$'"
    )


@pytest.mark.parametrize("name", ["--uuid", "-f", "--yes=1", "--"])
def test_a_name_is_no_option_even_if_it_looks_like_one(name):
    """The options come first, and an option without a value is left out."""
    assert shell_command("relvmoiscsi unlock --yes", name, vm="a", chap_file=None) == (
        f"relvmoiscsi unlock --yes --vm a -- {name}"
    )
    assert shell_command("relvmoiscsi unlock", "copy", vm=name) == f"relvmoiscsi unlock --vm={name} copy"


def test_a_sentence_names_some_and_counts_the_others():
    assert some_of(["a", "b"]) == "a, b"
    assert some_of(list("01234567")) == "0, 1, 2, 3, 4 and 3 more"


def test_a_long_cell_does_not_lengthen_the_other_lines_of_a_table():
    lines = table([["n" * 10000, "a"], *[["b", "c"]] * 100])

    assert len(lines) == 101 and len("".join(lines)) < 10000 + 101 * 300
    assert table([["name", "n"], ["a", "12"]], right=(1,)) == ["name   n", "a     12"]
