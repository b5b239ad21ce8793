# SPDX-License-Identifier: LGPL-2.1-only
"""What the package tells an administrator: the manual page and the commented configuration say what is the case."""

import argparse
import ast
import configparser
import importlib
import re

import pytest

from kit.rpm_tools import TOP
from relvmoiscsi import cli, errors
from relvmoiscsi.cli.parser import make_parser
from relvmoiscsi.deadline import DEFAULT_SECONDS

PAGE = (TOP / "supp-pack/relvmoiscsi.8").read_text(encoding="utf-8")
CONF = (TOP / "supp-pack/relvmoiscsi.conf").read_text(encoding="utf-8")
#: options of every command, which have a section of their own
COMMON = ("help", "json", "verbose")


def section(title):
    return re.search(rf"^\.SH {title}\n(.*?)(?=^\.SH|\Z)", PAGE, re.MULTILINE | re.DOTALL).group(1)


def plain(troff):
    """The words, without fonts; a macro of fonts is gone from its line."""
    return (
        re.sub(r"^\.BI? +|\\f[BIP]", "", troff, flags=re.MULTILINE)
        .replace("\\ ", " ")
        .replace("\\-", "-")
        .replace("\\(aq", "'")
    )


def parsers(parser=None, names=()):
    """Every command of the command line and of its commands that help lists: (words, its parser)."""
    for action in (parser or make_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                words = (*names, listed.dest)
                yield " ".join(words), action.choices[listed.dest]
                yield from parsers(action.choices[listed.dest], words)


@pytest.mark.parametrize("name, parser", list(parsers()), ids=[name for name, _ in parsers()])
def test_the_manual_page_has_every_command_and_every_option_of_it(name, parser):
    actions = [action for action in parser._actions if action.help]
    dashed = re.escape(name.replace("-", "\\-"))
    told = re.search(rf"^\.SS {dashed}\n(.*?)(?=^\.S[SH] )", PAGE, re.MULTILINE | re.DOTALL).group(1)
    everywhere = plain(section("OPTIONS"))

    for action in actions:
        for option in action.option_strings:
            assert re.search(rf"(^| ){option}( |,|$)", plain(told) + everywhere, re.MULTILINE)
        assert "".join(action.help.split()).replace("`", "") in "".join(plain(told).split()) or action.dest in COMMON


def test_the_manual_page_has_every_exit_status_and_every_udev_rule():
    families = [errors.RelvmoiscsiError] + errors.RelvmoiscsiError.__subclasses__()
    statuses = {family.exit_status for family in families} | {cli.EXIT_NOT_PRINTED, cli.EXIT_INTERRUPTED, 0}
    told = re.findall(r"^\.TP\n(\d+)$", plain(section("EXIT STATUS")), re.MULTILINE)

    assert [int(status) for status in told] == sorted(statuses)
    files = plain(section("FILES"))
    assert [path.name for path in (TOP / "udev").glob("*.rules") if path.name not in files] == []


def test_the_manual_page_has_the_parts_of_one():
    titles = re.findall(r"^\.SH (.*)$", PAGE, re.MULTILINE)

    assert titles == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "WITH A URL", "THE MAP", "EXIT STATUS", "FILES",
        "EXAMPLES", "SEE ALSO", "Copyright",
    ]  # fmt: skip
    assert re.search(r"^relvmoiscsi \\- .+$", section("NAME"), re.MULTILINE)


def test_the_configuration_as_shipped_sets_nothing_and_is_an_example_once_its_marks_are_gone():
    shipped, example = configparser.ConfigParser(), configparser.ConfigParser()
    shipped.read_string(CONF)
    example.read_string("\n".join(line[1:] for line in CONF.split("\n") if re.match("#[^ ]", line)))

    assert shipped.sections() == []
    assert example.sections() == ["driver", "direct"]
    assert example.getfloat("driver", "deadline") == DEFAULT_SECONDS
    assert [re.fullmatch("3[0-9a-f]{32}", scsi_id) is not None for _, scsi_id in example.items("direct")] == [True]


# --- what the scripts outside the package import from it: no other test of a unit runs them all

SCRIPTS = ("supp-pack/relvmoiscsi", "supp-pack/sm-whitelist", "drivers/ReLVMoISCSISR", "drivers/ReLVMoHBASR")


def imported(script):
    """(module, name) of each import from the package, at any depth."""
    for node in ast.walk(ast.parse((TOP / script).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relvmoiscsi"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("script", [*SCRIPTS, "drivers/plugins/relvmoiscsi"])
def test_what_a_script_imports_is_there(script):
    found = list(imported(script))

    assert found
    for module, name in found:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")
