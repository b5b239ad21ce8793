# SPDX-License-Identifier: LGPL-2.1-only
"""How often a resignature goes to the device: exact, the same on every machine."""

import gc
import random
from typing import Callable, List, Optional

from bench import luns
from bench.devices import Cost, QueueDevice
from bench.table import Number, print_table, size
from kit.builder import BuiltSr
from relvmoiscsi import engine
from relvmoiscsi.device import Device

COUNTS = (1, 10, 100, 1000)
SIZES = (luns.GIB, 64 * luns.GIB, luns.TIB, 64 * luns.TIB)
GOAL = (8, 6, 6)  #: reads in a row, batches of writes, flushes

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
    resignature(device, dice("counts"), "360014051111111111111111111111111")
    return device.cost


def _row(name: str, vdis: int, cost: Cost) -> List[object]:
    return [name, vdis, cost.reads, cost.dependent_reads, size(cost.bytes_read), cost.writes, cost.dependent_writes,
            size(cost.bytes_written), cost.flushes]  # fmt: skip


def numbers() -> List[Number]:
    costs = {(kind, count): cost_of(build(count)) for kind, build in luns.KINDS.items() for count in COUNTS}
    by_size = {total: cost_of(luns.of_size(total)) for total in SIZES}
    print_table(
        "Engine: operations by number of VDIs (after merging, as they go to the kernel)",
        _COLUMNS,
        [_row(kind, count, cost) for (kind, count), cost in costs.items()],
        "dependent: had to wait for the one before; everything else of a kind goes out at once",
    )
    print_table(
        "Engine: operations by size of the LUN (a base, its leaf and its snapshot)",
        ("LUN", *_COLUMNS[1:]),
        [_row(size(total), 3, cost) for total, cost in by_size.items()],
    )
    every = [*costs.values(), *by_size.values()]
    most = tuple(map(max, zip(*((cost.dependent_reads, cost.dependent_writes, cost.flushes) for cost in every))))
    is_met = all(found <= goal for found, goal in zip(most, GOAL))
    what = "reads in a row, batches of writes, flushes: 1 to 1000 VDIs, to 64 TiB"
    return [Number(what, "{}, {}, {}".format(*GOAL), "{}, {}, {}".format(*most), is_met)]
