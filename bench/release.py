# SPDX-License-Identifier: LGPL-2.1-only
"""What a run has found in a few numbers, beside those of the release before, which are in bench/release.json.

Less is better in all of them. Counts are exact. Times are multiples of the time of another program in the same run. So
you can compare machines. Only the CPU time of a VDI is absolute. A run leaves its numbers in build/bench/numbers.json:
copy them to bench/release.json with a release.
"""

import json
import os
from statistics import median
from typing import Any, Dict, Iterator, List, Optional, Tuple

from bench import cpu, latency, timing
from bench.startup import BARE, GOALS
from bench.table import print_table, ratios
from relvmoiscsi import __version__

RELEASE = "bench/release.json"
NUMBERS = "build/bench/numbers.json"
COUNTED = ("reads", "dependent_reads", "writes", "dependent_writes", "flushes")

Numbers = Dict[str, float]


def numbers_of(results: Dict[str, Any]) -> Numbers:
    """The numbers of what was run; what was not is not among them."""
    parts = (_counts, _waits, _cpu, _time, _memory, _startup, _driver)
    return {name: round(value, 3) for part in parts for name, value in part(results)}


def _counts(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for found in results.get("counts", []):
        if found["vdis"] == 1000:
            for name in COUNTED:
                yield "{}, 1000 VDIs: {}".format(found["kind"], name.replace("_", " ")), found[name]


def _waits(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for found in results.get("latency", []):
        if found["latency_seconds"] == latency.LATENCIES[0] and found["vdis"] in (1, 1000):
            depth = found["queue_depth"] or "without limit"
            yield "queue depth {}, {} chained VDIs: waits".format(depth, found["vdis"]), found["waits"]


def _cpu(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for kind, seconds in results.get("cpu", {}).items():
        yield f"{kind}: CPU a VDI, ms", 1000 * cpu.a_vdi(seconds)


def _time(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for count, found in results.get("processor_time", {}).items():
        for own in (timing.OURS_IN_PROCESS, timing.OURS, timing.OURS_36):
            if own in found:
                yield (
                    f"{count} VDIs: {own} / vgimportclone, processor time",
                    _multiple(found[timing.VGIMPORTCLONE], found[own]),
                )


def _memory(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for found in results.get("memory", []):
        if found["vdis"] == 1000:
            yield (
                "{}, 1000 VDIs: peak MiB, Python {}".format(found["kind"], _minor(found["python"])),
                found["bytes"] / (1 << 20),
            )


def _startup(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    times = {(found["python"], found["what"]): found["seconds"] for found in results.get("startup", [])}
    for (python, what), values in times.items():
        if what in GOALS:
            yield f"{what} / bare interpreter, Python {_minor(python)}", _multiple(times[python, BARE], values)


def _driver(results: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for vdis, pairs in results.get("driver", {}).items():
        bare, ours = ([pair[name] for pair in pairs] for name in ("bare_s", "sr_create_s"))
        yield f"{vdis} VDIs: SR.create / bare login and logout, in the VM", _multiple(bare, ours)


def _multiple(of: List[float], values: List[float]) -> float:
    return ratios(of, values).middle


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# --- beside the release before


def write(numbers: Numbers, machine: Dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(NUMBERS), exist_ok=True)
    with open(NUMBERS, "w", encoding="utf-8") as file:
        json.dump({"version": __version__, "machine": machine, "numbers": numbers}, file, indent=1)
        file.write("\n")


def read() -> Dict[str, Any]:
    """The release before: version, machine, numbers."""
    with open(RELEASE, encoding="utf-8") as file:
        found: Dict[str, Any] = json.load(file)
    return found


def rows(before: Numbers, now: Numbers) -> List[List[object]]:
    """A line for each number of either, with what became of it; a dash where one has none."""
    names = dict.fromkeys([*before, *now])
    return [
        [name, _shown(before.get(name)), _shown(now.get(name)), _change(before.get(name), now.get(name))]
        for name in names
    ]


def _shown(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:g}"


def _change(before: Optional[float], now: Optional[float]) -> str:
    return "-" if not before or now is None else f"{now / before:.2f}"


def print_beside(before: Dict[str, Any], now: Numbers) -> None:
    found = rows(before["numbers"], now)
    print_table(
        "Beside {version}; less is better".format(**before),
        ("", "then", "now", "now / then"),
        found,
        "then on {machine}, {cores} cores, Python {python}".format(**before["machine"]),
    )
    changes = [float(str(row[3])) for row in found if row[3] != "-"]
    if changes:
        print(f"  of {len(changes)} numbers: median {median(changes):.2f}, worst {max(changes):.2f}")
