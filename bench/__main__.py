# SPDX-License-Identifier: LGPL-2.1-only
"""`make bench`: measures everything and prints it side by side, and beside the release before.

It writes build/bench/results.json, build/bench/numbers.json and bench/cost.svg.
"""

import json
import os
import platform
import sys
import time
from typing import Any, Dict, List, Optional

from bench import counts, cpu, latency, one_vdi, over_iscsi, pool, release, startup, timing
from bench.table import Spread, print_table, ratios, verdict

RESULTS = "build/bench/results.json"
DRIVER = "build/bench/driver.json"
#: of the time of a bare login and logout, and of a stock probe, that SR.create may take
BARE_SHARE, PROBE_SHARE = 0.5, 0.2
PROCEDURE = "build/bench/procedure.json"
PLOT = "bench/cost.svg"

#: for each number of VDIs, pairs: what was measured in the same round, in seconds
Measured = Dict[str, List[Dict[str, float]]]


def _measured(path: str, what: str) -> Optional[Measured]:
    """What the VM has left in a file; None, and a word about it, when it has not."""
    if not os.path.exists(path):
        print(f"\nNOT RUN: {what}; the VM measures it and leaves {path}")
        return None
    with open(path, encoding="utf-8") as file:
        found: Measured = json.load(file)
    return found


def _row(vdis: str, times: Dict[str, List[float]], *factors: Spread) -> List[object]:
    pairs = len(next(iter(times.values())))
    spreads = [Spread.of(values).ms() for values in times.values()]
    return [f"{vdis} VDIs", pairs, *spreads, *(factor.times() for factor in factors)]


def _columns(pairs: List[Dict[str, float]], *names: str) -> Dict[str, List[float]]:
    return {name: [pair[name] for pair in pairs] for name in names}


def _print_driver(measured: Measured, unmet: List[str]) -> None:
    """What tests/vm/bench_sr_create.py has measured."""
    rows, found = [], {}
    for vdis, pairs in measured.items():
        times = _columns(pairs, "bare_s", "probe_s", "sr_create_s", "driver_s")
        found[vdis] = [ratios(times[name], times["sr_create_s"]) for name in ("bare_s", "probe_s")]
        rows.append(_row(vdis, times, *found[vdis]))
    print_table(
        "SR.create in the VM, ms: median (fastest-slowest), beside login and logout and a stock SR.probe of the LUN",
        ("", "pairs", "bare iscsiadm", "stock SR.probe", "SR.create", "of it the driver", "x bare", "x probe"),
        rows,
    )
    print()
    for vdis, (bare, probe) in found.items():
        what = f"{vdis} VDIs: SR.create at most {BARE_SHARE} times a bare login and logout"
        verdict(what, bare.middle <= BARE_SHARE, bare.times(), unmet)
        what = f"{vdis} VDIs: SR.create at most {PROBE_SHARE} times a stock SR.probe"
        verdict(what, probe.middle <= PROBE_SHARE, probe.times(), unmet)


def _print_procedure(measured: Measured) -> None:
    """What tests/vm/bench_procedure.py has measured."""
    rows = []
    for vdis, pairs in measured.items():
        times = _columns(pairs, "in_process_s", "command_s", "procedure_s")
        rows.append(_row(vdis, times, *(ratios(times[name], times["procedure_s"]) for name in list(times)[:2])))
    print_table(
        "The whole procedure of 2015 in the VM, activation included, ms: median (fastest-slowest)",
        ("", "pairs", "in process", "the command", "the procedure", "x in process", "x the command"),
        rows,
    )


def main() -> int:
    began = time.monotonic()
    results: Dict[str, Any] = {"machine": _machine()}
    unmet: List[str] = []
    print("{machine}, {cores} cores, Linux {kernel}, Python {python}".format(**results["machine"]))
    counts.run(results, unmet)
    latency.run(results, unmet)
    one_vdi.run(results, unmet)
    over_iscsi.run(results, unmet)
    cpu.run(results, unmet)
    reason = timing.can_run()
    if reason is None:
        timing.run(results, unmet)
    else:
        print(f"\nNOT RUN: time and memory beside LVM: {reason}")
    startup.run(results, unmet)
    pool.run(results, unmet)
    driver = _measured(DRIVER, "SR.create beside a bare iscsiadm login")
    if driver is not None:
        _print_driver(driver, unmet)
        results["driver"] = driver
    procedure = _measured(PROCEDURE, "the whole procedure of 2015")
    if procedure is not None:
        _print_procedure(procedure)
        results["procedure"] = procedure
    numbers = release.numbers_of(results)
    release.write(numbers, results["machine"])
    release.print_beside(release.read(), numbers)
    results["unmet"] = unmet
    os.makedirs(os.path.dirname(RESULTS), exist_ok=True)
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    print(f"\n{RESULTS} written")
    if "time" in results:
        from bench import plot  # noqa: PLC0415 - matplotlib, which nothing of the above should have beside it

        plot.draw(results, PLOT)
        print(f"{PLOT} written")
    print(f"{len(unmet)} expectations missed; {time.monotonic() - began:.0f} s")
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
