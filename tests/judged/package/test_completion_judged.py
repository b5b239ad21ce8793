# SPDX-License-Identifier: LGPL-2.1-only
"""bash completes the words of the command by the file in the package."""

import subprocess

import pytest

from kit.rpm_tools import TOP

ASK = """
. "$1"; shift
complete -p relvmoiscsi
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_relvmoiscsi
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("words, offered", [
    ("res", "resignature"), ("pool a", "attach"), ("resignature clone.img --d", "--dry-run"),
    ("pool clone Production web --iso", "--isolated"), ("show clone.img --d", ""),  # options of the command alone
    ("resignature clone.img --vdis ", "all,one"), ("resignature clone.img --vdis o", "one"),
    ("show clo", "clone of web.img,clone.img"), ("check clone.img --original clone.", "clone.img"),
    ("resignature clone.img --sr-uuid clo", ""),  # files where a device or a file is meant, and nowhere else
])  # fmt: skip
def test_what_bash_offers_for_the_last_word(tmp_path, words, offered):
    for name in ("clone.img", "clone of web.img"):
        (tmp_path / name).touch()
    argv = ["bash", "-euc", ASK, "bash", str(TOP / "supp-pack/relvmoiscsi.bash"), "relvmoiscsi", *words.split(" ")]

    registered, *said = subprocess.check_output(argv, cwd=str(tmp_path)).decode().splitlines()

    assert registered == "complete -F _relvmoiscsi relvmoiscsi"
    assert ",".join(sorted(said)) == offered
