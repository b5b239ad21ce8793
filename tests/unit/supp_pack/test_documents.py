# SPDX-License-Identifier: LGPL-2.1-only
"""What the package tells an administrator: the manual page and the commented configuration say what is the case.

That the page has every command and option: tools/docs.sh, which makes the page from the parser.
"""

import ast
import configparser
import importlib
import re

import pytest

from kit.rpm_tools import TOP
from relvmoiscsi import errors
from relvmoiscsi.cli import output
from relvmoiscsi.deadline import DEFAULT_SECONDS

PAGE = (TOP / "supp-pack/relvmoiscsi.8").read_text(encoding="utf-8")
CONF = (TOP / "supp-pack/relvmoiscsi.conf").read_text(encoding="utf-8")


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


def test_the_manual_page_has_every_exit_status_and_every_udev_rule():
    families = [errors.RelvmoiscsiError] + errors.RelvmoiscsiError.__subclasses__()
    statuses = {family.exit_status for family in families} | {output.EXIT_NOT_PRINTED, output.EXIT_INTERRUPTED, 0}
    told = re.findall(r"^\.TP\n(\d+)$", plain(section("EXIT STATUS")), re.MULTILINE)

    assert [int(status) for status in told] == sorted(statuses)
    files = plain(section("FILES"))
    assert [path.name for path in (TOP / "udev").glob("*.rules") if path.name not in files] == []


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


def test_the_command_blocks_signals_before_it_does_anything_else():
    """Until then, SIGTERM ends the process without a word."""
    _docstring, imports, blocks, *_ = ast.parse((TOP / "supp-pack/relvmoiscsi").read_text(encoding="utf-8")).body

    assert [each.name for each in imports.names] == ["_signal"], "a module of the interpreter itself"
    assert blocks.value.func.attr == "pthread_sigmask"
