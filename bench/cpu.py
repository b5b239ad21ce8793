# SPDX-License-Identifier: LGPL-2.1-only
"""How long the processor is at work in a resignature, by number of VDIs; on an image file, so no disk is waited for."""

import os
import tempfile
import time
from typing import Any, Dict, List

from bench import luns
from bench.counts import dice, resignature
from bench.table import Spread, print_table, verdict
from kit.builder import BuiltSr
from relvmoiscsi.host.disk.block_device import open_device

COUNTS = (1, 100, 1000)
ROUNDS = 3
CHAINS = "VHD chains"
A_VDI_MS = 0.25  #: of VHD chains: what each further VDI costs


def _seconds(built: BuiltSr, path: str) -> float:
    built.disk.to_file(path)
    with open_device(path, writable=True) as device:
        began = time.process_time()
        resignature(device, dice("cpu"), "scsi id")
        return time.process_time() - began


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
    print()
    found_ms = 1000 * a_vdi(found[CHAINS])
    verdict(f"a chained VDI costs {A_VDI_MS} ms of CPU", found_ms <= A_VDI_MS, f"{found_ms:.2f} ms", unmet)
    results["cpu"] = found
