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
        "cli.reading",
        "cli.resignature",
        "cli.doctor",
        "host.xapi.api",
    )
    assert [name for name in modules if name.startswith(tuple("relvmoiscsi." + each for each in needless))] == []


@pytest.mark.parametrize("name, own", [("show", "reading"), ("resignature", "resignature")])
def test_a_command_on_a_lun_comes_without_the_other_commands(name, own):
    modules = imported(name, "/nowhere")

    assert "relvmoiscsi.engine" in modules
    others = ("reading", "resignature", "settling", "map", "doctor", "settings", "direct", "pool")
    assert [name for name in others if "relvmoiscsi.cli." + name in modules] == [own]


LIGHT = ("cli", "cli.output", "cli.overview", "errors", "wording")


def test_the_overview_comes_without_parser_and_commands():
    assert imported("--help") == ["relvmoiscsi." + name for name in LIGHT]


def test_where_no_command_is_named_none_is_imported():
    modules = imported("no-such-command")

    assert modules == sorted("relvmoiscsi." + name for name in (*LIGHT, "cli.parser"))


def test_the_settings_need_no_engine():
    modules = imported("settings")

    assert "relvmoiscsi.host.settings" in modules
    assert [name for name in modules if name.startswith(("relvmoiscsi.engine", "relvmoiscsi.formats"))] == []
