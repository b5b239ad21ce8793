# SPDX-License-Identifier: LGPL-2.1-only
"""The states, cuts and LUNs that a run takes: a sample by a seed that is printed, or all of them (`make exhaustive`).

RELVMOISCSI_WHOLE=1        everything
RELVMOISCSI_SEED=<number>  the sample of an earlier run; CI always takes the same sample, so a failure comes from the
                           change
"""

import os
import platform
import random
import re
from itertools import takewhile
from typing import Callable, Dict, Iterator, List, Sequence

IS_36 = platform.python_version().startswith("3.6.")
WHOLE = os.environ.get("RELVMOISCSI_WHOLE", "") == "1"
if not os.environ.get("RELVMOISCSI_SEED"):
    # the workers of pytest-xdist, and the processes that tests start, take the same one
    os.environ["RELVMOISCSI_SEED"] = "1" if os.environ.get("CI") == "true" else str(random.randrange(1, 1000000))
SEED = int(os.environ["RELVMOISCSI_SEED"])


def dice(what: str) -> random.Random:
    """The chance of one sample. Each process has an object at another address, and is to take the same sample."""
    return random.Random(f"{SEED} " + re.sub(" at 0x[0-9a-f]+", "", what))


def examples(count: int) -> int:
    """So many examples does hypothesis look at of `count`."""
    return count if WHOLE else max(1, count // (16 if IS_36 else 5))


def steps(every: int, what: str = "") -> Iterator[int]:
    """1, 2, 3 ... without an end, of which a sample takes each so many'th; where it begins is a matter of the seed.

    At these steps a client or call is killed, in the place of `what` where one test has several.
    """
    width = 1 if WHOLE else every * (3 if IS_36 else 1)
    number = 1 if WHOLE else dice(what).randrange(1, width + 1)
    while True:
        yield number
        number += width


def of_each_kind(kinds: Sequence[str], every: int, what: str = "") -> List[int]:
    """Which steps of a run to take, by number from 1 on, if they are of these kinds: a sample, and one of each kind."""
    chosen = set(takewhile(lambda number: number <= len(kinds), steps(every, what)))
    numbers: Dict[str, List[int]] = {}
    for number, kind in enumerate(kinds, 1):
        numbers.setdefault(kind, []).append(number)
    for kind, those in numbers.items():
        if not chosen & set(those):
            chosen.add(dice(f"{what} {kind}").choice(those))
    return sorted(chosen)


def some(names: Sequence[str], every: int, kind: Callable[[str], str] = lambda name: name.split(":")[0]) -> List[str]:
    """Of many names each so many'th, and one of each kind at least; a kind is what stands before a colon."""
    return [names[number - 1] for number in of_each_kind([kind(name) for name in names], every, names[0])]


def seeds(numbers: Sequence[int], every: int) -> List[int]:
    """Of numbers that differ in nothing but chance each so many'th."""
    return [numbers[at - 1] for at in of_each_kind([""] * len(numbers), every, str(numbers))]
