# SPDX-License-Identifier: LGPL-2.1-only
"""`make bench`: measures everything and prints it side by side, and beside the release before.

It writes build/bench/results.json, build/bench/numbers.json and bench/cost.svg, and its tables into docs/costs.rst.
"""

import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, List

from bench import counts, cpu, latency, one_vdi, over_iscsi, page, pool, release, startup, timing, vm
from bench.table import print_table

RESULTS = "build/bench/results.json"
PLOT = "bench/cost.svg"

Part = Callable[[Dict[str, Any], List[str]], None]
#: exact, whatever else the machine does: the VM measures beside them
COUNTED: Dict[str, Part] = {"operations": counts.run, "one VDI": one_vdi.run}
#: by the clock: each has the machine for itself
TIMED: Dict[str, Part] = {
    "latency": latency.run,
    "over iSCSI": over_iscsi.run,
    "processor": cpu.run,
    "beside LVM": timing.run,
    "start-up": startup.run,
    "pool": pool.run,
}


def main() -> int:
    began = time.monotonic()
    results: Dict[str, Any] = {"machine": _machine(), "took": {}}
    unmet: List[str] = []
    print_table("The machine", tuple(results["machine"]), [tuple(results["machine"].values())])
    with vm.measuring():
        _run(COUNTED, results, unmet)
        waited = time.monotonic()
    results["took"]["the VM, when the counts are done"] = time.monotonic() - waited
    _run(TIMED, results, unmet)
    vm.run(results, unmet)
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
    print("seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in results["took"].items()))
    print_table("Goals that this run missed", ("goal: found",), [[what] for what in unmet])
    print(f"{len(unmet)} expectations missed; {time.monotonic() - began:.0f} s")
    print(page.update())
    return 0


def _run(parts: Dict[str, Part], results: Dict[str, Any], unmet: List[str]) -> None:
    for name, part in parts.items():
        began = time.monotonic()
        part(results, unmet)
        results["took"][name] = time.monotonic() - began


def _machine() -> Dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
