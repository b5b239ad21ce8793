# SPDX-License-Identifier: LGPL-2.1-only
"""Numbers for people: tables, units, medians with their spread."""

from statistics import median
from typing import Dict, List, NamedTuple, Optional, Sequence

#: the lines of each table that this run has printed, by title
PRINTED: Dict[str, List[str]] = {}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *notes: str) -> None:
    """The first column is text, the others are numbers."""
    cells = [list(columns)] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = PRINTED[title] = []
    for number, row in enumerate(cells):
        padded = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  " + "  ".join(padded).rstrip())
        if number == 0:
            lines.append("  " + "  ".join("-" * width for width in widths))
    lines.extend("  " + note for note in notes)
    print(f"\n{title}\n", *lines, sep="\n")


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.0f} TiB"


class Spread(NamedTuple):
    """A median and the extremes around it."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(min(values), median(values), max(values))

    def ms(self) -> str:
        return "{:.0f} ({:.0f}-{:.0f})".format(*(1000 * value for value in (self.middle, self.low, self.high)))

    def times(self) -> str:
        return f"{self.middle:.1f} ({self.low:.1f}-{self.high:.1f})"

    def shares(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times ours goes into theirs, pair by pair."""
    return Spread.of([other / own for own, other in zip(ours, theirs)])


class Number(NamedTuple):
    """What somebody feels, its goal, and what a run has seen."""

    what: str
    goal: str
    seen: str
    is_met: Optional[bool]  #: None: not run, and `seen` says why


def print_numbers(numbers: Sequence[Number]) -> None:
    """Two lines for each, so that 80 columns show it: the goal, and what was seen."""
    said = {True: "met", False: "MISSED", None: "NOT RUN"}
    title = "What a run costs, the goal, and what was seen"
    lines = PRINTED[title] = []
    for one in numbers:
        lines += [f"  {one.what}: {one.goal}", f"    {said[one.is_met]}: {one.seen}"]
    print(f"\n{title}\n", *lines, sep="\n")
