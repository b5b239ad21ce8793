# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut at every step of making one VDI: the LUN holds the old SR, the new one, or what becomes one of them.

Thousands of blocks are written, so the disks that a cut may leave are sampled; each is judged by what a guest reads
through every volume of the old SR, or through the one of the new. The twin forgets a flush, and must find a fault.
"""

import random
from typing import NamedTuple, Tuple

import pytest

from kit.chains import BLOCK, SECTORS, flatten, guest_bytes
from kit.chains.guest import Writer
from kit.chains.lun import Lun
from kit.chains.random_chain import random_chain
from kit.chains.tapdisk import Tapdisk
from kit.crash import CrashDisk
from kit.cuts import SCSI_ID, entropy
from relvmoiscsi import engine
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.resignature.one_vdi.choice import Request
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS

pytestmark = pytest.mark.states


class Case(NamedTuple):
    """A chain, and what making one VDI of it takes; by chance, so each test looks whether it still does."""

    seed: int
    physical: int  #: block size of the disk: what a cut tears
    has: Tuple[str, ...]


HOLES, FILLS = "empty", "full"
CASES = (Case(34, 512, (HOLES, FILLS)), Case(7, 512, (FILLS,)), Case(56, 4096, (FILLS,)), Case(50, 4096, (HOLES,)))
BOTH, FILLED = CASES[:2]


def chain_of(case):
    chain = random_chain(case.seed, bat_entries=4096, free=20, blocks=5, depth=3)
    chain.disk.physical_block_size = case.physical
    rebuilt = engine.prepare(chain.disk, entropy(0), one=Request()).plan.run.rebuilt
    assert all(getattr(rebuilt, what) for what in case.has), "chance has changed: look for another seed"
    return chain


def cut(chain, dropped_flush=None):
    """A run on a disk that remembers it, and the plan."""
    crash = CrashDisk(chain.disk, dropped_flush)
    prepared = engine.prepare(crash, entropy(0), SCSI_ID, one=Request())
    engine.resignature(crash, prepared)
    return crash, prepared


def new_volume(disk):
    (volume,) = engine.inspect(disk).lun.disks().values()
    return volume.name.text


def is_old(chain, disk):
    return all(flatten(disk, name) == flat for name, flat in chain.flats.items())


def is_new(chain, disk):
    return flatten(disk, new_volume(disk)) == chain.flats[chain.leaf]


def fault(chain, disk, uncut, is_torn):
    """What is wrong with a disk that a cut has left; "" if nothing is."""
    state = engine.inspect(disk).state
    if state == "clean":
        return "" if is_old(chain, disk) else "it is the old SR, and reads otherwise"
    if state == "resignatured":
        return "" if is_new(chain, disk) else "it is the new SR, and reads otherwise"
    if state != "unfinished":
        return f"its state is {state}"
    try:
        recovered, mark = disk.copy(), engine.find_unfinished(disk)
        engine.recover(recovered, mark, SCSI_ID)
        if mark.tail.phase == IN_PROGRESS:
            return _early_fault(chain, disk, recovered, is_torn)
        if not is_new(chain, recovered):
            return "it is recovered, and reads otherwise"
        if recovered.digest_except([]) != uncut:
            return "it is recovered, and is not what an uncut run leaves"
        with pytest.raises(Refused, match="cannot be undone behind its commit"):
            engine.undo(disk, entropy(1))
        return ""
    except RelvmoiscsiError as error:
        return f"it is not settled: {error}"


def _early_fault(chain, disk, recovered, is_torn):
    """Before the commit every VDI reads as before, and after `recover` and `undo`, which are the same here; at once as
    well, unless a bitmap or the label is torn.
    """
    if not is_torn and not is_old(chain, disk):
        return "it is the old SR still, and reads otherwise"
    if not (is_old(chain, recovered) and engine.inspect(recovered).state == "clean"):
        return "it is taken back, and reads otherwise"
    engine.undo(disk, entropy(1))
    return "" if is_old(chain, disk) else "it is undone, and reads otherwise"


def faults(chain, crash, **how):
    """The descriptions of disks with a fault, and how many were looked at."""
    found, count = [], 0
    uncut = crash.current.digest_except([])
    for what, disk in crash.some_crash_images(random.Random(1), **how):
        count += 1
        wrong = fault(chain, disk, uncut, " torn" in what or "mixture" in what)
        if wrong:
            found.append(f"{what}: {wrong}")
    print(f"{count} disks")
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_cut_leaves_the_old_sr_or_the_new_one_or_what_recover_and_undo_settle(case):
    chain = chain_of(case)

    crash, _ = cut(chain)

    assert faults(chain, crash, subsets=1, torn=4) == []


@pytest.mark.parametrize("flush", (1, 5))
def test_without_a_flush_there_would_be_a_fault(flush):
    """The first makes the copies durable before the mark, the fifth empty bitmaps before the table that names them."""
    chain = chain_of(BOTH)

    crash, _ = cut(chain, dropped_flush=flush)

    assert faults(chain, crash, subsets=3, torn=0)


def test_what_a_guest_wrote_to_the_old_image_since_the_cut_stays():
    """Nothing tells whether it did so: so before the commit nothing is finished, all is taken back."""
    chain = chain_of(BOTH)
    crash, _ = cut(chain)
    lun = Lun.read(crash.after_group(3))
    tapdisk = Tapdisk(lun.volume(chain.leaf))
    block = min(tapdisk.vhd.bat)
    sectors = Writer(random.Random(4)).data(2)
    tapdisk.write(block * SECTORS, sectors)
    tapdisk.close()

    engine.recover(lun.disk, engine.find_unfinished(lun.disk), SCSI_ID)

    assert engine.inspect(lun.disk).state == "clean"
    assert guest_bytes(lun.disk, chain.leaf, block * BLOCK, len(sectors)) == sectors


def test_what_tapdisk_wrote_before_the_run_was_finished_stays():
    """The SR was used between commit and recovery: a hole that has a guest's sectors by then is not emptied again."""
    chain = chain_of(BOTH)
    crash, _ = cut(chain)
    lun = Lun.read(crash.after_group(6))  # the table names the holes, the mark is not yet the last one
    disk, (name,) = lun.disk, [name for name in lun.volumes if name.startswith("VHD-")]
    tapdisk = Tapdisk(lun.volume(name))
    data = Writer(random.Random(3))
    guest = {block: data.data(4) for block in range(tapdisk.vhd.size // BLOCK)}
    for block, sectors in guest.items():
        tapdisk.write(block * SECTORS, sectors)
    tapdisk.close()

    engine.recover(disk, engine.find_unfinished(disk), SCSI_ID)

    assert name == new_volume(disk)
    for block, sectors in guest.items():
        assert guest_bytes(disk, name, block * BLOCK, len(sectors)) == sectors, block
