# SPDX-License-Identifier: LGPL-2.1-only
"""udev waits for `direct udev` at each event of a direct LUN: it is fast to start, as --help is."""

import json
import os
import subprocess
import sys

import pytest

from kit.shell import TOP

#: one Python that is a child for each command
LISTER = """
import json, os, sys
for words in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        from relvmoiscsi.cli import main
        main(words)
    except SystemExit:
        pass
    print(json.dumps(sorted(sys.modules)), file=stdout, flush=True)
    os._exit(0)
"""

UDEV = ["direct", "udev", "no-such-disk"]
COMMANDS = [UDEV, ["show", "/nowhere"], ["resignature", "/nowhere"], ["--help"], ["no-such-command"], ["settings"]]

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def modules():
    """Modules of the package, and TLS, that each of COMMANDS imports."""
    done = subprocess.run([sys.executable, "-c", LISTER, json.dumps(COMMANDS)], check=True, cwd=str(TOP),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, PYTHONPATH=str(TOP)))  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
    return {
        words[0]: [name for name in each if name == "ssl" or name.startswith("relvmoiscsi.")]
        for words, each in zip(COMMANDS, lines)
    }


def test_what_udev_asks_is_answered_without_engine_and_images(modules):
    assert "relvmoiscsi.direct.links" in modules["direct"]
    needless = "engine resignature formats.vhd formats.qcow2 formats.mgt cli.reading cli.resignature doctor pool"
    rooms = tuple("relvmoiscsi." + name for name in (*needless.split(), "host.xapi.rpc"))
    assert [name for name in modules["direct"] if name.startswith(rooms)] == []


@pytest.mark.parametrize("name, own", [("show", "cli.reading"), ("resignature", "cli.resignature")])
def test_a_command_on_a_lun_comes_without_the_other_commands(modules, name, own):
    assert "relvmoiscsi.engine" in modules[name]
    commands = ("cli.reading", "cli.resignature", "cli.recover", "cli.map", "cli.settings_command")
    others = tuple(f"relvmoiscsi.{other}." for other in (*commands, "doctor", "direct", "pool"))
    assert [each for each in modules[name] if (each + ".").startswith(others)] == ["relvmoiscsi." + own]


@pytest.mark.parametrize("name", ["direct", "show", "resignature", "settings"])
def test_a_command_that_asks_no_pool_and_merges_no_chain_comes_without_tls_and_without_merging(modules, name):
    merging = ("relvmoiscsi.resignature.merge.vhd_image", "relvmoiscsi.resignature.merge.qcow2_image")
    assert not {"ssl", "relvmoiscsi.host.xapi.rpc", *merging} & set(modules[name])


LIGHT = ("cli", "cli.output", "cli.overview", "errors", "wording")


def test_the_overview_comes_without_parser_and_commands_and_no_command_is_imported_where_none_is_named(modules):
    assert modules["--help"] == ["relvmoiscsi." + name for name in LIGHT]
    assert modules["no-such-command"] == sorted("relvmoiscsi." + name for name in (*LIGHT, "cli.parser"))
