# SPDX-License-Identifier: LGPL-2.1-only
"""How long the processor is at work in a resignature, by number of VDIs; on an image file, so no disk is waited for."""

import os
import tempfile
import time
from contextlib import ExitStack
from typing import Any, Callable, Dict, List
from unittest import mock

from bench import luns
from bench.counts import dice, resignature
from bench.table import Spread, print_table, verdict
from kit.builder import BuiltSr
from relvmoiscsi import engine
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.resignature.planning import run_plan
from relvmoiscsi.resignature.reading import survey

COUNTS = (1, 100, 1000)
ROUNDS = 3
CHAINS = "VHD chains"
A_VDI_MS = 0.25  #: of VHD chains: what each further VDI costs
#: functions of the engine whose time is told apart; none calls another, but for the check, which reads the planned LUN
PARTS = {
    "reading the LUN and verifying all of it": (survey, "read_lun"),
    "the plan: what changes, its blocks, its journal": (run_plan, "plan_resignature"),
    "the check: the plan's journal and the planned LUN are read, verified and compared": (engine, "check_plan"),
    "comparing, writing, reading back": (engine, "resignature"),
}


def _seconds(built: BuiltSr, path: str) -> float:
    built.disk.to_file(path)
    with open_device(path, writable=True) as device:
        began = time.process_time()
        resignature(device, dice("cpu"), "scsi id")
        return time.process_time() - began


def _seconds_of_parts(built: BuiltSr, path: str) -> Dict[str, float]:
    """The processor time of each part of one run, in seconds."""
    found: Dict[str, float] = {}
    at_work: List[str] = []

    def timed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if at_work:
                return original(*args, **kwargs)
            at_work.append(name)
            began = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                found[at_work.pop()] = time.process_time() - began

        return call

    with ExitStack() as patches:
        for name, (module, function) in PARTS.items():
            patches.enter_context(mock.patch.object(module, function, timed(name, getattr(module, function))))
        all_of_it = _seconds(built, path)
    return {**found, "everything else": all_of_it - sum(found.values()), "all": all_of_it}


def a_vdi(seconds: Dict[int, List[float]]) -> float:
    """What each VDI costs beyond what every run does, in seconds; the fastest rounds, as others only slow them down."""
    few, many = sorted(seconds)[-2:]
    return (min(seconds[many]) - min(seconds[few])) / (many - few)


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    os.makedirs("build/bench", exist_ok=True)
    found: Dict[str, Dict[int, List[float]]] = {}
    with tempfile.TemporaryDirectory(dir="build/bench") as directory:
        for kind, build in luns.KINDS.items():
            built = {count: build(count) for count in COUNTS}
            path = os.path.join(directory, "clone.img")
            found[kind] = {count: [_seconds(built[count], path) for _ in range(ROUNDS)] for count in COUNTS}
            if kind == CHAINS:
                parts = _seconds_of_parts(built[COUNTS[-1]], path)
    rows = [
        [kind, *(Spread.of(seconds[count]).ms() for count in COUNTS), f"{1000 * a_vdi(seconds):.2f}"]
        for kind, seconds in found.items()
    ]
    print_table(
        "CPU of a resignature in process, ms: median (fastest-slowest)",
        ("", *(f"{count} VDIs" for count in COUNTS), "a VDI"),
        rows,
        f"a VDI: what each costs between {COUNTS[-2]} and {COUNTS[-1]}, fastest rounds",
    )
    print_table(
        f"CPU of a run on {COUNTS[-1]} chained VDIs by its parts, ms",
        ("", "ms", "of all"),
        [[name, f"{1000 * value:.0f}", f"{100 * value / parts['all']:.0f} %"] for name, value in parts.items()],
    )
    print()
    found_ms = 1000 * a_vdi(found[CHAINS])
    verdict(f"a chained VDI costs {A_VDI_MS} ms of CPU", found_ms <= A_VDI_MS, f"{found_ms:.2f} ms", unmet)
    results["cpu"] = found
