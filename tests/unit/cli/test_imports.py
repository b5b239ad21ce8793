# SPDX-License-Identifier: LGPL-2.1-only
"""udev waits for `direct udev` at each event of a direct LUN: it is fast to start, as --help is."""

import json
import os
import subprocess
import sys

import pytest

from kit.shell import TOP

LISTER = """
import json, sys
from relvmoiscsi.cli import main
stdout, sys.stdout = sys.stdout, sys.stderr
try:
    main(sys.argv[1:])
except SystemExit:
    pass
stdout.write(json.dumps(sorted(sys.modules)))
"""

pytestmark = pytest.mark.processes


def imported(*words):
    done = subprocess.run([sys.executable, "-c", LISTER, *words], check=True, cwd=str(TOP), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=str(TOP)))  # fmt: skip
    return [name for name in json.loads(done.stdout.decode()) if name.startswith("relvmoiscsi.")]


def test_what_udev_asks_is_answered_without_engine_and_images():
    modules = imported("direct", "udev", "no-such-disk")

    assert "relvmoiscsi.direct.links" in modules
    needless = (
        "engine",
        "resignature",
        "formats.vhd",
        "formats.qcow2",
        "formats.mgt",
        "cli.show",
        "cli.resignature",
        "cli.doctor",
        "host.xapi.api",
    )
    assert [name for name in modules if name.startswith(tuple("relvmoiscsi." + each for each in needless))] == []


ON_A_LUN = ("show", "check", "resignature", "recover", "undo")


@pytest.mark.parametrize("words", [("show", "/nowhere"), ("resignature", "/nowhere", "--yes"), ("check", "/nowhere")])
def test_a_command_on_a_lun_comes_without_the_other_commands(words):
    modules = imported(*words)

    assert "relvmoiscsi.engine" in modules
    others = [
        "relvmoiscsi.cli." + name
        for name in (*ON_A_LUN, "map", "doctor", "settings", "direct", "pool")
        if name != words[0]
    ]
    assert [name for name in modules if name in others] == []


@pytest.mark.parametrize("words", [("--help",), ("-h",), ()])
def test_the_overview_comes_without_parser_and_commands(words):
    assert imported(*words) == ["relvmoiscsi.cli", "relvmoiscsi.cli.output", "relvmoiscsi.cli.overview"]


def test_where_no_command_is_named_none_is_imported():
    modules = imported("no-such-command")

    assert modules == ["relvmoiscsi.cli"] + ["relvmoiscsi.cli." + name for name in ("output", "overview", "parser")]


def test_the_settings_need_no_engine():
    modules = imported("settings")

    assert "relvmoiscsi.host.settings" in modules
    assert [name for name in modules if name.startswith(("relvmoiscsi.engine", "relvmoiscsi.formats"))] == []
