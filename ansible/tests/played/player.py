# SPDX-License-Identifier: LGPL-2.1-only
"""Runs playbooks for conftest.Player: ansible-playbook's own main(), in a process of its own that is forked when all is
imported.

A line of stdin is a wish, {"arguments": [...], "env": {...}, "out": "file"}; of stdout, its exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from ansible.cli import playbook

#: what any run imports later
LATER = ("executor.task_executor", "plugins.strategy.linear", "plugins.callback.default", "plugins.connection.local")


def play(wish):
    out = os.open(wish["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, out)):
        os.dup2(file, number)
    os.environ.update(wish["env"])
    playbook.main(["ansible-playbook", *wish["arguments"]])


def status_of(wish):
    """Of a run. The process ends with it, and leaves to the first one what that has made, as archives of modules."""
    try:
        play(wish)
    except SystemExit as ended:
        return ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main():
    for name in LATER:
        importlib.import_module("ansible." + name)
    for line in sys.stdin:
        process = os.fork()
        if not process:
            status = 1
            try:
                status = status_of(json.loads(line))
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
