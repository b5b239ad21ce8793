# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut while one VDI is made: the state of each disk that the cut may leave, and the result of its recovery.

A run writes thousands of blocks, so the disks are a sample. Each disk is judged by the bytes that a guest reads:
through every volume of the old SR, or through the one volume of the new SR. `read` is a reader of chains:
`flat.flatten`, or the reader of QCOW2.
"""

import itertools
import random
from typing import Callable, Iterator, Optional

import pytest

from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.resignature.protocol.commit_record import IN_PROGRESS

from ..crash import CrashDisk
from ..cuts import SCSI_ID, entropy, recorded
from ..examples import steps
from ..sparse import Recalled, SparseDisk
from .flat import Flat, flatten
from .random_chain import Chain

Reader = Callable[[SparseDisk, str], Flat]


def cut(chain: Chain, dropped_flush: Optional[int] = None) -> CrashDisk:
    """A run on a disk that remembers it."""
    return recorded(chain.disk, dropped_flush=dropped_flush, one=OneVdiRequest())


def new_volume(disk: SparseDisk) -> str:
    (volume,) = engine.inspect(disk).lun.disks().values()
    return volume.name.text


def is_old(chain: Chain, disk: SparseDisk, read: Reader = flatten) -> bool:
    return all(read(disk, name) == flat for name, flat in chain.flats.items())


def is_new(chain: Chain, disk: SparseDisk, read: Reader = flatten) -> bool:
    return read(disk, new_volume(disk)) == chain.flats[chain.leaf]


def fault(chain: Chain, disk: SparseDisk, uncut: SparseDisk, read: Reader = flatten) -> str:
    """What is wrong with a disk that a cut has left; "" if nothing is."""
    state = engine.inspect(disk).state
    if state == "clean":
        return "" if is_old(chain, disk, read) else "it is the old SR, and reads otherwise"
    if state == "resignatured":
        return "" if is_new(chain, disk, read) else "it is the new SR, and reads otherwise"
    if state != "unfinished":
        return f"its state is {state}"
    try:
        recovered, mark = disk.copy(), engine.find_unfinished(disk)
        engine.recover(recovered, mark, SCSI_ID)
        if not mark.journal.data:
            return "its mark leads to no journal"
        if mark.commit_record.phase == IN_PROGRESS:
            return _early_fault(chain, disk, recovered, read)
        if not is_new(chain, recovered, read):
            return "it is recovered, and reads otherwise"
        if recovered != uncut:
            return "it is recovered, and is not what an uncut run leaves"
        with pytest.raises(Refused, match="cannot be undone after the commit"):
            engine.undo(disk, entropy(1))
        return ""
    except RelvmoiscsiError as error:
        return f"it is not settled: {error}"


def _early_fault(chain: Chain, disk: SparseDisk, recovered: SparseDisk, read: Reader) -> str:
    """Before the commit every VDI reads as before, at once, and after `recover` and `undo`, which are the same here."""
    if not is_old(chain, disk, read):
        return "it is the old SR still, and reads otherwise"
    if not (is_old(chain, recovered, read) and engine.inspect(recovered).state == "clean"):
        return "it is rolled back, and reads otherwise"
    engine.undo(disk, entropy(1))
    return "" if is_old(chain, disk, read) else "it is undone, and reads otherwise"


def faults(chain: Chain, crash: CrashDisk, read: Reader = flatten, every: int = 1, **how: int) -> Iterator[str]:
    """The descriptions of disks with a fault; a sample takes each `every`'th disk. The number of disks is printed."""
    count, seen, recalled = 0, set(), Recalled(read)
    uncut, chosen = crash.current, steps(every, "cut") if every > 1 else itertools.count(1)
    wanted = next(chosen)
    for what, disk in crash.some_crash_images(random.Random(1), **how):
        count += 1
        if count < wanted:
            continue
        wanted = next(chosen)
        if disk.content() in seen:
            continue
        seen.add(disk.content())
        wrong = fault(chain, disk, uncut, recalled)
        if wrong:
            yield f"{what}: {wrong}"
    print(f"{count} disks, {len(seen)} different ones")
