# SPDX-License-Identifier: LGPL-2.1-only
"""Temporary files of the scripts: nothing in a directory where another user can replace it, and nothing by its name."""

import os
import re
import subprocess
import sys

import pytest

from kit.shell import TOP

SCRIPTS = {
    path.name: path.read_text(encoding="utf-8") for room in ("tools", "supp-pack") for path in (TOP / room).glob("*.sh")
}


@pytest.mark.processes
@pytest.mark.parametrize(("mode", "is_taken"), [(0o700, True), (0o1777, True), (0o777, False), (0o770, False)])
def test_a_directory_where_another_user_can_replace_files_is_not_the_one_of_temporary_files(tmp_path, mode, is_taken):
    tmp_path.chmod(mode)

    printed = subprocess.check_output(
        [sys.executable, "-I", str(TOP / "tools/tmpdir.py")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )

    assert printed == (f"{tmp_path}\n" if is_taken else "/tmp\n")


@pytest.mark.processes
def test_without_python_temporary_files_go_to_tmp(tmp_path):
    """`make test` verifies the directory before it installs what a bare Debian lacks."""
    program = "set -eu; . tools/lib.sh; own_tmpdir; echo ${TMPDIR:-unset}"
    printed = subprocess.check_output(
        ["/bin/bash", "-c", program], cwd=str(TOP), env={"PATH": str(tmp_path), "TMPDIR": "/nowhere"}, encoding="utf-8"
    )
    assert printed == "unset\n"


def test_each_script_that_makes_temporary_files_verifies_their_directory_before():
    making = {name: text for name, text in SCRIPTS.items() if "$(mktemp" in text}
    assert "demo.sh" in making and "build-rpm.sh" in making
    assert [
        name
        for name, text in making.items()
        if not re.search(r"^ *(own_tmpdir\n|unset TMPDIR).*mktemp", text, re.M | re.S)
    ] == []


def test_no_script_that_changes_its_directory_imports_from_there():
    assert [name for name, text in SCRIPTS.items() if "-m relvmoiscsi" in text] == []
