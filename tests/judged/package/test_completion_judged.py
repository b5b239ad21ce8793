# SPDX-License-Identifier: LGPL-2.1-only
"""bash and zsh complete the words of the command by the script that the command prints.

Each kind of shell runs once, at a terminal of its own. A function in the place of the command prints the words that it
gets.
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys

import pytest

from kit.rpm_tools import TOP

STUB = "relvmoiscsi() { printf '<%s>' \"$@\"; echo .; }"
ZSH, COMPINIT = ["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D"
#: (words of the shell, how it takes the script)
SHELLS = {
    "bash": (["bash", "--noprofile", "--norc", "-i"], ". functions/_relvmoiscsi"),
    "zsh": (ZSH, f"{COMPINIT}; . functions/_relvmoiscsi"),
    "zsh, by $fpath": (ZSH, f"fpath=($PWD/functions $fpath); {COMPINIT}"),
}
SECONDS = 120  #: a shell that says nothing for so long does not answer


@pytest.fixture(scope="module", params=SHELLS)
def shell(request, tmp_path_factory):
    """`shell("res\\t")`: the words that the command gets after this is typed."""
    argv, takes_script = SHELLS[request.param]
    if shutil.which(argv[0]) is None:
        if os.environ.get("CI"):
            pytest.fail(f"there is no {argv[0]} here: tools/need-packages.sh installs it")
        pytest.skip(f"there is no {argv[0]} here")
    script = subprocess.check_output([sys.executable, "-m", "relvmoiscsi", "--completion", argv[0]], cwd=str(TOP))
    home = tmp_path_factory.mktemp("shell")
    (home / "functions").mkdir()
    (home / "functions/_relvmoiscsi").write_bytes(script)
    for name in ("clone.img", "clone of web.img"):
        (home / name).touch()
    master, slave = pty.openpty()
    options = {"stdin": slave, "stdout": slave, "stderr": slave, "cwd": str(home), "start_new_session": True}
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", "HOME": str(home), "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(argv, env=environment, **options)
    os.close(slave)

    def answer(line, wanted):
        os.write(master, f"{line}\n".encode())
        try:
            return _read_to(master, wanted)
        except AssertionError:
            process.kill()  # the next tests do not wait for its answers
            raise

    try:
        answer(f"{takes_script}; {STUB}; echo rea''dy", "ready")
        yield lambda words: re.findall("<(.*?)>", answer(f"relvmoiscsi {words}", r"(?m)^<.*>\.\r?$"))
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _read_to(terminal, wanted):
    """Read what the terminal shows, without its control sequences, to this pattern; the text that fits it."""
    shown = b""
    while True:
        assert select.select([terminal], [], [], SECONDS)[0], shown
        shown += os.read(terminal, 4096)
        text = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])", "", shown.decode("utf-8", "replace")).replace("\r", "\n")
        found = re.search(wanted, text)
        if found:
            return found.group()


@pytest.mark.parametrize("typed, words", [
    ("resi\t", ["resignature"]),
    ("pool a\t", ["pool", "attach"]),
    ("resignature clone.img --dr\t", ["resignature", "clone.img", "--dry-run"]),
    ("pool clone Production web --iso\t", ["pool", "clone", "Production", "web", "--isolated"]),
    ("show clone.img --d\t", ["show", "clone.img", "--d"]),  # no option of another command, no file
    ("resignature --vdis o\t", ["resignature", "--vdis", "one"]),
    ("resignature --vdis=o\t", ["resignature", "--vdis=one"]),
    ("show clone.\t", ["show", "clone.img"]),
    ("show clone\\ \t", ["show", "clone of web.img"]),
    ("show 'clone \t", ["show", "clone of web.img"]),
    ("check clone.img --original clone\\ o\t", ["check", "clone.img", "--original", "clone of web.img"]),
    ("check clone.img --original=clone\\ o\t", ["check", "clone.img", "--original=clone of web.img"]),
    ("resignature --sr-uuid clone.\t", ["resignature", "--sr-uuid", "clone."]),  # files where a file is meant alone
])  # fmt: skip
def test_what_a_shell_makes_of_the_last_word(shell, typed, words):
    assert shell(typed) == words
