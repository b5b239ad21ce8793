# SPDX-License-Identifier: LGPL-2.1-only
"""What needs a kernel of its own: the SR driver and the whole procedure of 2015, in User-Mode Linux (tools/e2e.sh)."""

import json
import os
import subprocess
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from bench.table import Spread, print_table, ratios, verdict

#: how often the VM measures each
PAIRS = 2
FOUND = "build/bench/vm"  #: what the VM leaves
PRINTED = "build/bench/vm.txt"
DRIVER, PROCEDURE = f"{FOUND}/driver.json", f"{FOUND}/procedure.json"
#: of the time of a bare login and logout, and of a stock probe, that SR.create may take
BARE_SHARE, PROBE_SHARE = 0.5, 0.2

#: for each number of VDIs, pairs: what was measured in the same round, in seconds
Measured = Dict[str, List[Dict[str, float]]]


@contextmanager
def measuring() -> Iterator[None]:
    """The VM measures while the block runs; at its end, the VM has ended as well."""
    for path in (DRIVER, PROCEDURE):
        if os.path.exists(path):
            os.unlink(path)
    os.makedirs(FOUND, exist_ok=True)
    words = ["tools/e2e.sh", "uml", "tests/vm/bench_sr_create.py", "tests/vm/bench_procedure.py"]
    with open(PRINTED, "wb") as printed:
        machine = subprocess.Popen(
            [*words, "-q", "-s", f"--pairs={PAIRS}"],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, E2E_RESULTS=FOUND),
        )
    try:
        yield
        machine.wait()
    finally:
        machine.terminate()
        machine.wait()


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    """Print what the VM has measured."""
    driver = _measured(DRIVER, "SR.create beside a bare iscsiadm login")
    if driver is not None:
        _print_driver(driver, unmet)
        results["driver"] = driver
    procedure = _measured(PROCEDURE, "the whole procedure of 2015")
    if procedure is not None:
        _print_procedure(procedure)
        results["procedure"] = procedure


def _measured(path: str, what: str) -> Optional[Measured]:
    """What the VM has left in a file; None, and a word about it, when it has not."""
    if not os.path.exists(path):
        print(f"\nNOT RUN: {what}. The VM measures it; {PRINTED} tells why it has not.")
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
