# SPDX-License-Identifier: LGPL-2.1-only
"""A command in a message is what it says, also where a LUN, a target or another user has chosen its words."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.cli.on_lun import device_word
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.wording import command, file_word, printable, shell_words

HOSTILE = (
    "1x$(touch${IFS}pwned)",
    "a;b",
    "`id`",
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
    assert shlex.split(shell_words(*words)) == words
    assert command(*words) == f"`{shell_words(*words)}`"
    assert str(CommandFailed(words, 1, "no")) == f"`{shell_words(*words)}` failed with exit status 1: no"


@given(st.lists(st.text(), min_size=1))
def test_any_words_are_one_line_of_printable_characters_and_the_same_words(words):
    """A word like an option that is none has `--` before it."""
    said = shell_words(*words)
    found, wanted = shlex.split(said), [printable(word) for word in words]
    if found != wanted:
        found.remove("--")
    assert found == wanted
    assert said.isprintable()


@pytest.mark.parametrize("path", ["-dash", "--yes", "-", "-rf", "--"])
def test_a_path_is_never_an_option(path):
    assert shell_words("chmod", "600", file_word(path)) == f"chmod 600 ./{path}"
    assert device_word(path) == f"./{path}" and device_word("/dev/sdb") == "/dev/sdb"


def test_what_needs_no_quotes_has_none_and_of_a_pair_the_value_has_them():
    words = "xe", "sr-introduce", "uuid=8d7e9748-54ea-475b-8999-0d688a40c914", "name-label=a copy", "SCSIid=3600$"
    assert shell_words(*words) == (
        "xe sr-introduce uuid=8d7e9748-54ea-475b-8999-0d688a40c914 name-label='a copy' SCSIid='3600$'"
    )


@pytest.mark.parametrize("name", ["--uuid", "-f", "--yes=1", "--"])
def test_a_name_is_no_option_even_if_it_looks_like_one(name):
    assert shlex.split(shell_words("relvmoiscsi", "unlock", "--yes", names=[name])) == [
        "relvmoiscsi", "unlock", "--yes", "--", name
    ]  # fmt: skip
    assert command("relvmoiscsi", "unlock", names=["copy"]) == "`relvmoiscsi unlock copy`"
