# SPDX-License-Identifier: LGPL-2.1-only
"""bash completes the words of the command by the file in the package."""

import subprocess

import pytest

from kit.rpm_tools import TOP

SCRIPT = TOP / "supp-pack/relvmoiscsi.bash"

ASK = """
. "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_relvmoiscsi
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(tmp_path):
    """What bash offers for the last of these words, in a directory with two files."""
    for name in ("clone.img", "clone of web.img"):
        (tmp_path / name).touch()

    def ask(*words):
        argv = ["bash", "-euc", ASK, "bash", str(SCRIPT), "relvmoiscsi", *words]
        done = subprocess.run(argv, cwd=str(tmp_path), stdout=subprocess.PIPE, check=True)
        return sorted(done.stdout.decode().split("\n")[:-1])

    return ask


def test_commands_and_commands_of_these(complete):
    assert complete("res") == ["resignature"]
    assert complete("pool", "a") == ["attach"]
    assert {"clone", "discard", "luns", "map"} <= set(complete("pool", ""))


def test_options_of_the_command_alone(complete):
    assert complete("resignature", "clone.img", "--d") == ["--dry-run"]
    assert complete("show", "clone.img", "--d") == [""]
    assert complete("pool", "clone", "Production", "web", "--iso") == ["--isolated"]


def test_the_few_values_of_an_option(complete):
    assert complete("resignature", "clone.img", "--vdis", "") == ["all", "one"]
    assert complete("resignature", "clone.img", "--vdis", "o") == ["one"]


def test_files_where_a_device_or_a_file_is_meant_and_nowhere_else(complete):
    assert complete("show", "clo") == ["clone of web.img", "clone.img"]
    assert complete("check", "clone.img", "--original", "clone.") == ["clone.img"]
    assert complete("resignature", "clone.img", "--sr-uuid", "clo") == [""]


def test_it_registers_itself_for_the_command(complete):
    argv = ["bash", "-euc", '. "$1"; complete -p relvmoiscsi', "bash", str(SCRIPT)]

    assert subprocess.check_output(argv) == b"complete -F _relvmoiscsi relvmoiscsi\n"
