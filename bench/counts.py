# SPDX-License-Identifier: LGPL-2.1-only
"""How often a resignature goes to the device: exact, the same on every machine."""

import gc
import random
from typing import Any, Callable, Dict, List, Optional

from bench import luns
from bench.devices import Cost, QueueDevice
from bench.table import print_table, size, verdict
from kit.builder import BuiltSr
from relvmoiscsi import engine
from relvmoiscsi.device import Device

COUNTS = (1, 10, 100, 1000)
SIZES = (luns.GIB, 64 * luns.GIB, luns.TIB, 64 * luns.TIB)
DEPENDENT_READS, FLUSHES = 8, 6

_COLUMNS = ("", "VDIs", "reads", "dependent", "bytes read", "writes", "dependent", "bytes written", "flushes")


def dice(seed: object) -> Callable[[int], bytes]:
    """Entropy that is always the same."""
    source = random.Random(f"bench {seed}")
    return lambda count: bytes(source.getrandbits(8) for _ in range(count))


def resignature(device: Device, draw: Callable[[int], bytes], scsi_id: Optional[str] = None) -> None:
    """What is measured everywhere here: a whole run of the engine, on a clone that has none behind it.

    The collector of cycles rests, as it does in the command and the driver; it would look through the LUNs built here.
    """
    gc.disable()
    try:
        prepared = engine.prepare(device, draw, engine.ResignatureRequest(scsi_id=scsi_id))
        assert isinstance(prepared, engine.Prepared)
        engine.resignature(device, prepared)
    finally:
        gc.enable()


def cost_of(built: BuiltSr, depth: int = 0) -> Cost:
    """`depth`: how many operations go out at once; 0: all of a batch."""
    device = QueueDevice(built.disk.copy(), depth=depth)
    resignature(device, dice("counts"), "scsi id")
    return device.cost


def _row(name: str, vdis: int, cost: Cost) -> List[object]:
    return [name, vdis, cost.reads, cost.dependent_reads, size(cost.bytes_read), cost.writes, cost.dependent_writes,
            size(cost.bytes_written), cost.flushes]  # fmt: skip


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    costs = {(kind, count): cost_of(build(count)) for kind, build in luns.KINDS.items() for count in COUNTS}
    print_table(
        "Engine: operations by number of VDIs (after merging, as they go to the kernel)",
        _COLUMNS,
        [_row(kind, count, cost) for (kind, count), cost in costs.items()],
        "dependent: had to wait for the one before; everything else of a kind goes out at once",
    )
    by_size = {total: cost_of(luns.of_size(total)) for total in SIZES}
    print_table(
        "Engine: operations by size of the LUN (a base, its leaf and its snapshot)",
        ("LUN", *_COLUMNS[1:]),
        [_row(size(total), 3, cost) for total, cost in by_size.items()],
    )
    second = cost_of(luns.two_metadata_areas(1000))
    print_table("Engine: two metadata areas, which SM does not make", _COLUMNS, [_row("VHD chains", 1000, second)])
    _judge(list(costs.values()), list(by_size.values()), second, unmet)
    results["counts"] = [dict(kind=kind, vdis=count, **cost._asdict()) for (kind, count), cost in costs.items()]
    results["counts_by_size"] = [dict(lun_bytes=total, **cost._asdict()) for total, cost in by_size.items()]
    results["counts_two_areas"] = second._asdict()


def _judge(costs: List[Cost], by_size: List[Cost], second: Cost, unmet: List[str]) -> None:
    print()
    deepest = max(cost.dependent_reads for cost in costs)
    verdict(f"at most {DEPENDENT_READS} dependent reads", deepest <= DEPENDENT_READS, str(deepest), unmet)
    flushes = sorted({cost.flushes for cost in costs})
    verdict(f"{FLUSHES} flushes", flushes == [FLUSHES], str(flushes), unmet)
    found = {(cost.reads, cost.dependent_reads, cost.writes, cost.flushes) for cost in by_size}
    verdict("nothing grows with the LUN", len(found) == 1, f"{len(found)} different counts", unmet)
    what = f"at most {DEPENDENT_READS} dependent reads with two metadata areas"
    verdict(what, second.dependent_reads <= DEPENDENT_READS, str(second.dependent_reads), unmet)
