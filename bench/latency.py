# SPDX-License-Identifier: LGPL-2.1-only
"""What a slow path to the array does to a resignature: every operation is delayed."""

import time
from typing import Any, Dict, List, NamedTuple, Tuple

from bench import luns
from bench.counts import dice, resignature
from bench.devices import QueueDevice
from bench.table import print_table, verdict
from kit.builder import BuiltSr

COUNTS = (1, 10, 100, 1000)
LATENCIES = (0.0005, 0.010)
DEPTHS = (0, 32)  #: operations under way at once; 0: without a limit
FLAT = 1.5  #: the most that 1000 VDIs may wait for without a limit, in multiples of what one waits for
WAITS = 60  #: the most that 1000 VDIs may wait for with the usual limit


class Run(NamedTuple):
    """One run: its time, that part of it in which the processor had nothing to do, and how often it had to wait."""

    seconds: float
    waiting: float
    waits: int


def _run(built: BuiltSr, latency: float, depth: int) -> Run:
    device = QueueDevice(built.disk.copy(), latency, depth)
    began, busy = time.perf_counter(), time.process_time()
    resignature(device, dice("latency"), "scsi id")
    seconds = time.perf_counter() - began
    return Run(seconds, max(0.0, seconds - (time.process_time() - busy)), device.cost.waits)


def _best(built: BuiltSr, latency: float, depth: int) -> Run:
    """Of two runs the one that something else on the machine has disturbed less."""
    return min((_run(built, latency, depth) for _ in range(2)), key=lambda run: run.waiting)


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    built = {count: luns.chains(count) for count in COUNTS}
    bare = {count: _best(built[count], 0, 0).seconds for count in COUNTS}
    found: Dict[Tuple[int, float, int], Run] = {}
    for depth in DEPTHS:
        for latency in LATENCIES:
            for count in COUNTS:
                found[depth, latency, count] = _best(built[count], latency, depth)
    rows = []
    for depth in DEPTHS:
        for latency in LATENCIES:
            row: List[object] = [str(depth or "no limit"), f"{1000 * latency:g} ms"]
            for count in COUNTS:
                one = found[depth, latency, count]
                row.append(f"{1000 * one.seconds:.0f} ms, {one.waits} x")
            rows.append(row)
    cpu = ["without delay", "0", *(f"{1000 * bare[count]:.0f} ms" for count in COUNTS)]
    print_table(
        "Engine behind a slow path: time, and how many times the latency was waited for (VHD chains)",
        ("queue depth", "latency", *(f"{count} VDIs" for count in COUNTS)),
        [cpu, *rows],
        "x: how often the latency is waited for. With a depth of 32, operations of one batch go out 32 at a time; each",
        "VDI has some of its own: header and locators are read, compared, written, read back.",
    )
    print()
    free, limited = ([found[depth, LATENCIES[0], count].waits for count in COUNTS] for depth in DEPTHS)
    what = f"without a limit, {COUNTS[-1]} VDIs wait at most {FLAT} times as often as one"
    verdict(what, free[-1] <= FLAT * free[0], f"{free[0]} and {free[-1]} waits", unmet)
    what = f"queue depth {DEPTHS[-1]}, {COUNTS[-1]} chained VDIs: {WAITS} waits"
    verdict(what, limited[-1] <= WAITS, str(limited[-1]), unmet)
    results["latency"] = [
        {"queue_depth": depth, "latency_seconds": latency, "vdis": count, **one._asdict()}
        for (depth, latency, count), one in found.items()
    ]
