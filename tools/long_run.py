#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Thousands of random chains become one VDI each, and each is judged: for a night, and not for a test.

    tools/long_run.py vhd 0 5000                        the seeds 0 to 4999
    tools/long_run.py qcow2 0 5000 depth=3 raw=True     with options of `kit.chains.random_qcow2`

The readers and judges of tests/kit/chains say what is wrong: a line for each, and a summary every 100
chains. Exit status 1 when anything was. What is refused is counted by its sentence.
"""

import argparse
import ast
import os
import re
import sys
import time
import traceback
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [TOP, os.path.join(TOP, "tests")]

from kit.chains import flatten, qcow2  # noqa: E402
from kit.chains.judge import check  # noqa: E402
from kit.chains.random_chain import Chain, random_chain  # noqa: E402
from kit.chains.random_qcow2 import random_qcow2  # noqa: E402
from relvmoiscsi import engine  # noqa: E402
from relvmoiscsi.engine import OneVdiRequest  # noqa: E402
from relvmoiscsi.errors import Refused, RelvmoiscsiError  # noqa: E402
from relvmoiscsi.resignature.merge import vhd_layout  # noqa: E402


class Kind(NamedTuple):
    """How chains of a format are made and read, and what is wrong with the result."""

    make: Callable[..., Chain]
    read: Callable[..., Any]
    problems: Callable[..., Sequence[str]]


def _problems_of_vhd(disk: Any, name: str) -> Sequence[str]:
    found = check(disk, name)
    return found.problems or ([] if found.can_be_filled else [str(found)])


KINDS = {
    "vhd": Kind(random_chain, flatten, _problems_of_vhd),
    "qcow2": Kind(random_qcow2, qcow2.flatten, lambda disk, name: qcow2.check(disk, name).problems),
}


def one(kind: Kind, seed: int, options: Dict[str, Any], found: "Counter[str]") -> List[str]:
    """Make a chain one VDI; sentences on what is wrong."""
    try:
        chain = kind.make(seed, **options)
    except OSError:
        found["no chain"] += 1  # chance has made one that does not fit into its volumes
        return []
    disk = chain.disk.copy()
    try:
        prepared = engine.prepare(disk, os.urandom, engine.ResignatureRequest(one=OneVdiRequest()))
        engine.resignature(disk, prepared)
    except Refused as refused:
        found["refused: " + re.sub("[0-9a-f]{8}-[0-9a-f-]+|[0-9]+", "…", refused.message)[:70]] += 1
        return []
    except (RelvmoiscsiError, AssertionError, LookupError, ValueError):
        return [traceback.format_exc()]
    (volume,) = engine.inspect(disk).lun.disks().values()
    cost, name, wanted = prepared.cost, volume.name.text, chain.flats[chain.leaf]
    for what in ("blocks", "remapped", "filled", "copied"):
        found[what] += getattr(cost, what)
    problems = list(kind.problems(disk, name)) if cost.images > 1 else []
    if kind.read(disk, name) != wanted:
        problems.append("a guest reads something else")
    found["right"] += not problems
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--worth", type=int, help="a VHD with so many blocks is moved and not copied; 256 otherwise")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="what chance is not to choose")
    given = parser.parse_args()
    if given.worth is not None:
        vhd_layout.WORTH_MOVING = given.worth
    options = {name: ast.literal_eval(value) for name, _, value in (text.partition("=") for text in given.options)}
    found: Counter[str] = Counter()
    began, wrong = time.monotonic(), 0
    for number, seed in enumerate(range(given.first, given.first + given.count), 1):
        for sentence in one(KINDS[given.kind], seed, options, found):
            wrong += 1
            print(f"{given.kind} {seed}: {sentence}", flush=True)
        if number % 100 == 0 or number == given.count:
            said = ", ".join(f"{what} {count}" for what, count in sorted(found.items()))
            print(f"{number} chains, {wrong} wrong, {time.monotonic() - began:.0f} s: {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
