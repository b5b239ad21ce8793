# SPDX-License-Identifier: LGPL-2.1-only
"""`make bench`: measures everything, prints it side by side, writes build/bench/results.json and bench/cost.svg."""

import json
import os
import platform
import sys
import time
from typing import Any, Dict, List

from bench import counts, latency, startup, timing
from bench.table import Spread, print_table, ratios, verdict

RESULTS = "build/bench/results.json"
DRIVER = "build/bench/driver.json"
DRIVER_FACTOR = 1.3
PROCEDURE = "build/bench/procedure.json"
PROCEDURE_FACTOR = 20
PLOT = "bench/cost.svg"


def _print_driver(results: Dict[str, Any], unmet: List[str]) -> None:
    """What tests/vm/test_timing.py has measured in the VM: for each number of VDIs, pairs in seconds."""
    if not os.path.exists(DRIVER):
        print("\nNOT RUN: SR.create beside a bare iscsiadm login; the VM measures it and leaves {}".format(DRIVER))
        return
    with open(DRIVER, encoding="utf-8") as file:
        measured: Dict[str, List[Dict[str, float]]] = json.load(file)
    rows = []
    found: Dict[str, Spread] = {}
    for vdis, pairs in measured.items():
        times = {name: [pair[name] for pair in pairs] for name in ("bare_s", "sr_create_s", "driver_s")}
        found[vdis] = ratios(times["bare_s"], times["sr_create_s"])
        spreads = [Spread.of(values).ms() for values in times.values()]
        rows.append(["{} VDIs".format(vdis), len(pairs), *spreads, found[vdis].times()])
    print_table(
        "SR.create in the VM, ms: median (fastest-slowest), beside login, device wait and logout of the same LUN",
        ("", "pairs", "bare iscsiadm", "SR.create", "of it the driver", "x bare"),
        rows,
    )
    print()
    for vdis, ratio in found.items():
        what = "{} VDIs: SR.create at most {} times a bare login and logout".format(vdis, DRIVER_FACTOR)
        verdict(what, ratio.middle <= DRIVER_FACTOR, ratio.times(), unmet)
    results["driver"] = measured


def _print_procedure(results: Dict[str, Any], unmet: List[str]) -> None:
    """What tests/vm/bench_procedure.py has measured in the VM, in the same form."""
    if not os.path.exists(PROCEDURE):
        print("\nNOT RUN: the whole procedure of 2015; the VM measures it and leaves {}".format(PROCEDURE))
        return
    with open(PROCEDURE, encoding="utf-8") as file:
        measured: Dict[str, List[Dict[str, float]]] = json.load(file)
    rows = []
    for vdis, pairs in measured.items():
        times = {name: [pair[name] for pair in pairs] for name in ("in_process_s", "command_s", "procedure_s")}
        factors = [ratios(times[name], times["procedure_s"]) for name in ("in_process_s", "command_s")]
        spreads = [Spread.of(values).ms() for values in times.values()]
        rows.append(["{} VDIs".format(vdis), len(pairs), *spreads, *(factor.times() for factor in factors)])
        what = "{} VDIs, in the VM: the command {} times faster than the whole procedure".format(vdis, PROCEDURE_FACTOR)
        verdict(what, factors[1].middle >= PROCEDURE_FACTOR, factors[1].times(), unmet)
    print_table(
        "The whole procedure of 2015 in the VM, activation included, ms: median (fastest-slowest)",
        ("", "pairs", "in process", "the command", "the procedure", "x in process", "x the command"),
        rows,
    )
    results["procedure"] = measured


def main() -> int:
    began = time.monotonic()
    results: Dict[str, Any] = {"machine": _machine()}
    unmet: List[str] = []
    print("{machine}, {cores} cores, Linux {kernel}, Python {python}".format(**results["machine"]))
    counts.run(results, unmet)
    latency.run(results, unmet)
    reason = timing.can_run()
    if reason is None:
        timing.run(results, unmet)
    else:
        print("\nNOT RUN: time and memory beside LVM: {}".format(reason))
    startup.run(results, unmet)
    _print_driver(results, unmet)
    _print_procedure(results, unmet)
    results["unmet"] = unmet
    os.makedirs(os.path.dirname(RESULTS), exist_ok=True)
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    print("\n{} written".format(RESULTS))
    if "time" in results:
        from bench import plot  # noqa: PLC0415 - matplotlib, which nothing of the above should have beside it

        plot.draw(results, PLOT)
        print("{} written".format(PLOT))
    print("{} expectations missed; {:.0f} s".format(len(unmet), time.monotonic() - began))
    for what in unmet:
        print("  missed: " + what)
    return 0


def _machine() -> Dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
