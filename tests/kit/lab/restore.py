# SPDX-License-Identifier: LGPL-2.1-only
"""Putting the world back after a test that has left it otherwise: the test has failed, and the next one shall not."""

import os
import re
import shutil
import signal
from pathlib import Path

from . import initiator
from .command import read, reload_rules, run, settle, until
from .world import World

#: what a World says instead of the contents of a file
_NO_CONTENTS = re.compile(r"-> .*|special|\d+ bytes, SHA-256 [0-9a-f]{16}")


def restore(before):
    """End what runs since `before` and log out everywhere; take away what has come, and put files back."""
    lines = before.diff(World.now())
    came = {section: _keys(lines, "+", section) for section in before.sections}
    _end(came["processes"])
    initiator.logout_all(keep={text.split()[0] for text in before.sections["sessions"].values()})
    for line in reversed(came["mounts"]):
        run("umount", line.split()[1], check=False)
    for name in reversed(came["dm"]):
        run("dmsetup", "remove", "--retry", name, check=False)
    for path in [*reversed(came["names"]), *reversed(came["files"])]:
        _remove(path)
    for path in _keys(lines, "-", "files") + _keys(lines, "~", "files"):
        _put_back(path, before.sections["files"][path])
    reload_rules()
    settle()


def _keys(lines, sign, section):
    """Of what came, went or changed there, in the order of its names: a directory is before what lies in it."""
    start = f"{sign} {section}: "
    return [line[len(start) :].partition(": ")[0] for line in lines if line.startswith(start)]


def _end(pids):
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in pids:
        until(lambda it=pid: not read(f"/proc/{it}/cmdline"), f"process {pid} has ended")


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _put_back(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not path.endswith("/") and not _NO_CONTENTS.fullmatch(content):
        Path(path).write_text(content, encoding="utf-8")
