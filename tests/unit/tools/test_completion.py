# SPDX-License-Identifier: LGPL-2.1-only
"""supp-pack/relvmoiscsi.bash knows what the parser takes. That bash completes by it: tests/judged/package."""

import re

import pytest

from kit.rpm_tools import TOP
from relvmoiscsi.cli import overview
from relvmoiscsi.cli.parser import make_parser
from tools import completion

SCRIPT = (TOP / "supp-pack/relvmoiscsi.bash").read_text(encoding="utf-8")
PARSERS = dict(completion.parsers(make_parser()))


def row(words):
    """What the script says for these words."""
    (found,) = re.findall(rf"^        '{re.escape(words)}'\) echo '(.*)' ;;$", SCRIPT, re.MULTILINE)
    return found.split()


def test_it_is_what_the_parser_gives_now():
    assert completion.script() == SCRIPT, "run tools/docs.sh --update"


@pytest.mark.parametrize("name", PARSERS)
def test_every_option_in_the_help_of_a_command_is_completed(name):
    listed = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", PARSERS[name].format_usage()))
    listed.discard("-vv")

    assert listed <= set(row(name))
    assert row(name) or name == ""


def test_each_command_that_the_overview_lists_is_completed():
    assert set(overview.COMMANDS) <= set(row(""))


def test_a_value_that_has_few_choices_or_is_a_file():
    assert row("resignature --vdis") == ["one", "all"]
    assert row("check --original") == ["FILE"]
    assert row("resignature --sr-uuid") == []
    assert "FILE" in row("show") and "FILE" not in row("doctor")
