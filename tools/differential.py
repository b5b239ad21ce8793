#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Run the same LUNs through two versions of the engine, and list what they do differently.

    git worktree add /tmp/before main
    .venv/current/bin/python tools/differential.py /tmp/before . --states 1000

The LUNs are the golden, live and built LUNs of `tests/kit`: whole, with spoiled bytes, and with a cut run or undo. Each
version makes them with its own kit. Each LUN goes through inspect, resignature, recover and undo. From random chains of
VHDs and of QCOW2 images, each version makes one VDI, and recovers a cut run of its own. The tool compares:

- the state afterwards, the sentence of a refusal, and whether a refused run has written;
- what LVM and the storage manager see;
- all bytes, except label and free ring space, where the journals of two versions may differ.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import IO, Dict, List, Tuple

SHOWN = 2  #: states that are named for each kind of difference


def compare(before: str, after: str, seed: int, count: int, only: str) -> int:
    found: List[Dict[Tuple[str, str], Tuple[str, str]]] = []
    with tempfile.TemporaryFile("w+") as one_said, tempfile.TemporaryFile("w+") as other_said:
        ran = [
            (_started(package, seed, count, only, said), said)
            for package, said in ((before, one_said), (after, other_said))
        ]
        for process, said in ran:
            if process.wait():
                return process.returncode
            said.seek(0)
            rows = (json.loads(line) for line in said)
            found.append({(name, operation): (kind, outcome) for name, kind, operation, outcome in rows})
    kinds: Dict[Tuple[str, ...], List[str]] = collections.defaultdict(list)
    for key in sorted(set(found[0]) | set(found[1])):
        was, now = (side.get(key, ("", "no such state")) for side in found)
        if was != now:
            kinds[(was[0] or now[0], key[1], _general(was[1]), _general(now[1]))].append(key[0])
    same = len(set(found[0]) | set(found[1])) - sum(map(len, kinds.values()))
    states = {name for side in found for name, _operation in side}
    print(f"{len(states)} states; {same} outcomes are the same, {sum(map(len, kinds.values()))} are not:")
    for (kind, operation, was_said, now_said), names in sorted(kinds.items()):
        print(
            f"\n{operation}, {kind}: {len(names)} times, as {'; '.join(names[:SHOWN])}\n  - {was_said}\n  + {now_said}"
        )
    return 0


def _general(outcome: str) -> str:
    return re.sub(r"; [0-9a-f]{16}$", "; other bytes", outcome)


def _started(package: str, seed: int, count: int, only: str, said: IO[str]) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "kit.differential", str(seed), str(count), only]
    paths = os.pathsep.join([os.path.abspath(package), os.path.join(os.path.abspath(package), "tests")])
    return subprocess.Popen(words, stdout=said, env=dict(os.environ, PYTHONPATH=paths), cwd="/")


def main() -> int:
    parser = argparse.ArgumentParser(description="List what two versions of the engine do differently.")
    parser.add_argument("versions", nargs="*", help="two directories that hold the package")
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="states of a kind whose name contains this text, such as chain")
    arguments = parser.parse_args()
    if len(arguments.versions) != 2:
        parser.error("give two directories")
    return compare(*arguments.versions, arguments.seed, arguments.states, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
