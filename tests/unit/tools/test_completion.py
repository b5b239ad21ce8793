# SPDX-License-Identifier: LGPL-2.1-only
"""supp-pack/relvmoiscsi.bash knows what the parser takes. That bash completes by it: tests/judged/package."""

import re

from kit.rpm_tools import TOP
from tools import completion

SCRIPT = (TOP / "supp-pack/relvmoiscsi.bash").read_text(encoding="utf-8")


def row(words):
    """What the script says for these words."""
    (found,) = re.findall(rf"^        '{re.escape(words)}'\) echo '(.*)' ;;$", SCRIPT, re.MULTILINE)
    return found.split()


def test_it_is_what_the_parser_gives_now():
    assert completion.script() == SCRIPT, "run tools/docs.sh --update"


def test_a_value_that_has_few_choices_or_is_a_file():
    assert row("resignature --vdis") == ["one", "all"]
    assert row("check --original") == ["FILE"]
    assert row("resignature --sr-uuid") == []
    assert "FILE" in row("show") and "FILE" not in row("doctor")
