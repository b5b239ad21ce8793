# SPDX-License-Identifier: LGPL-2.1-only
"""How single things are said: sizes, text that nobody here has chosen, errors. Pure, and quick to import."""

from typing import Any, Container, Dict, List, Sequence

from relvmoiscsi.errors import RelvmoiscsiError

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def human_size(size: int) -> str:
    """A size as people read it: "8 MiB", "1.5 GiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    shown = f"{value:.1f}"
    return "{} {}".format(shown[:-2] if shown.endswith(".0") else shown, _UNITS[unit])


def counted(number: int, noun: str) -> str:
    """A number of things: "1 LUN", "2 LUNs"."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> List[str]:
    """Rows as lines whose columns are as wide as they must be; the numbers of columns in `right` are aligned there."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """Text from the disk, safe to print: control characters are shown, not sent to a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def error_facts(error: RelvmoiscsiError) -> Dict[str, Any]:
    """What any command gives with `--json` when it fails."""
    return {
        "error": {
            "kind": type(error).__name__,
            "exit_status": error.exit_status,
            "message": error.message,
            "disk_state": error.disk_state,
        },
    }
