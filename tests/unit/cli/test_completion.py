# SPDX-License-Identifier: LGPL-2.1-only
"""`--completion`: the script of a shell knows what the parser takes. Shells complete by it: tests/judged/package."""

import re

import pytest

from relvmoiscsi.cli import overview

SHELLS = ("bash", "zsh")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_has_the_commands_the_options_and_their_values(command, shell):
    script = command("--completion", shell).out

    def row(words):
        (found,) = re.findall(rf"^        '{re.escape(words)}'\) echo '(.*)' ;;$", script, re.MULTILINE)
        return found.split()

    assert {"resignature", "pool", "--version", "--completion"} <= set(row("")) and "udev" not in row("direct")
    assert "help" in row("") and "help" in row("pool") and "help" not in row("show")
    assert row("help") == list(overview.COMMANDS)
    assert row("help pool") == row("pool help") == list(overview.GROUPS["pool"])
    assert row("--completion".rjust(13)) == list(SHELLS)
    assert row("resignature --vdis") == ["one", "all"]
    assert row("check --original") == row("show --chap-file") == ["FILE"]
    assert row("resignature --sr-uuid") == []
    assert "FILE" in row("show") and "FILE" not in row("doctor") and "--isolated" in row("pool clone")


def test_the_script_is_one_for_all_widths_and_for_no_other_shell(command, monkeypatch):
    wide = command("--completion", "bash").out
    monkeypatch.setenv("COLUMNS", "40")
    assert command("--completion", "bash").out == wide
    assert command("--completion", "fish").status == 2
