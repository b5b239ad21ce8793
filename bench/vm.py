# SPDX-License-Identifier: LGPL-2.1-only
"""What needs a kernel of its own: SR.create beside iscsiadm and a stock SR.probe, in the VM of tools/e2e.sh."""

import json
import os
import subprocess
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional

from bench.table import Number, Spread, print_table, ratios

#: how often the VM measures each
PAIRS = 3
FOUND = "build/bench/vm"  #: what the VM leaves
PRINTED = "build/bench/vm.txt"
DRIVER = f"{FOUND}/driver.json"
#: of the time of a bare login and logout, and of a stock probe, that SR.create may take
GOALS = {"bare_s": ("a bare `iscsiadm` login and logout", 0.5), "probe_s": ("a stock SR.probe of the same LUN", 0.4)}

#: for each number of VDIs, pairs: what was measured in the same round, in seconds
Measured = Dict[str, List[Dict[str, float]]]


@contextmanager
def measuring() -> Iterator[None]:
    """The VM measures while the block runs; at its end, the VM has ended as well."""
    if os.path.exists(DRIVER):
        os.unlink(DRIVER)
    os.makedirs(FOUND, exist_ok=True)
    words = ["tools/e2e.sh", "uml", "tests/vm/bench_sr_create.py"]
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


def numbers() -> List[Number]:
    """What tests/vm/bench_sr_create.py has measured."""
    found = _measured()
    if found is None:
        return [_number(name, f"{PRINTED} tells why", None) for name in GOALS]
    rows = []
    shares: Dict[str, Dict[str, Spread]] = {name: {} for name in GOALS}
    for vdis, pairs in found.items():
        times = {name: [pair[name] for pair in pairs] for name in ("bare_s", "probe_s", "sr_create_s", "driver_s")}
        for name in GOALS:
            shares[name][vdis] = ratios(times[name], times["sr_create_s"])
        rows.append([f"{vdis} VDIs", len(pairs), *(Spread.of(values).ms() for values in times.values())])
    print_table(
        "SR.create in the VM, ms: median (fastest-slowest), beside login and logout and a stock SR.probe of the LUN",
        ("", "rounds", "bare iscsiadm", "stock SR.probe", "SR.create", "of it the driver"),
        rows,
    )
    with open(PRINTED, encoding="utf-8", errors="replace") as file:
        machine = "emulated PC, " if "emulated PC" in file.read() else ""
    return [
        _number(
            name,
            machine + "; ".join(f"{vdis} VDIs: {share.shares()}" for vdis, share in shares[name].items()),
            all(share.middle <= goal for share in shares[name].values()),
        )
        for name, (_what, goal) in GOALS.items()
    ]


def _number(name: str, seen: str, is_met: Optional[bool]) -> Number:
    what, goal = GOALS[name]
    return Number(f"SR.create, as a part of {what}", f"at most {goal}", seen, is_met)


def _measured() -> Optional[Measured]:
    """What the VM has left; None when it has left nothing."""
    if not os.path.exists(DRIVER):
        return None
    with open(DRIVER, encoding="utf-8") as file:
        found: Measured = json.load(file)
    return found
