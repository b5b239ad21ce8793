# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut while QCOW2 images become one: the LUN holds the old SR, the new one, or what becomes one of them.

The disks that a cut may leave are sampled; of a small LUN all are looked at. The twin forgets the flush behind the new
tables, and must find a fault.
"""

from itertools import cycle, islice

import pytest

from kit.chains.cut_one_vdi import cut, fault, faults, is_new, is_old
from kit.chains.lun import Lun
from kit.chains.qcow2 import flatten
from kit.chains.qemu import Qemu
from kit.chains.random_qcow2 import random_qcow2
from kit.crash import FailingDisk
from kit.cuts import SCSI_ID, entropy
from kit.examples import WHOLE, steps
from kit.sparse import Recalled
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import DeviceError

pytestmark = pytest.mark.states(few=1)
CASES = ((1, 512), (2, 4096), (8, 512))


def chain_of(seed, physical=512):
    chain = random_qcow2(seed, bits=12, clusters=600, depth=3, raw=seed == 8)
    chain.disk.physical_block_size = physical
    return chain


@pytest.mark.parametrize("case", CASES)
def test_a_cut_leaves_the_old_sr_or_the_new_one_or_what_recover_and_undo_settle(case):
    chain = chain_of(*case)

    crash = cut(chain)

    assert list(faults(chain, crash, flatten, subsets=2)) == []


def test_every_cut_of_a_small_disk():
    """Of groups of more than ten blocks: each prefix, each block alone, each one missing, and some subsets."""
    chain = random_qcow2(3, bits=12, clusters=40, depth=2, raw=False, snapshots=True, mixed=False, thick=False, leaks=0)

    crash = cut(chain)

    uncut, count, read = crash.current, 0, Recalled(flatten)
    for what, disk in crash.crash_images():
        count += 1
        assert fault(chain, disk, uncut, read) == "", what
    assert count > 200


def test_without_the_flush_behind_its_tables_there_would_be_a_fault():
    chain = chain_of(1)

    crash = cut(chain, dropped_flush=1)

    assert any(faults(chain, crash, flatten, subsets=3))


def test_what_a_guest_wrote_to_the_old_image_since_the_cut_stays():
    chain = chain_of(1)
    crash = cut(chain)
    lun = Lun.read(crash.after_group(3))
    Qemu(lun, chain.leaf).write(8192, b"written since".ljust(4096))
    wanted = flatten(lun.disk, chain.leaf)

    engine.recover(lun.disk, engine.find_unfinished(lun.disk), SCSI_ID)

    assert engine.inspect(lun.disk).state == "clean"
    assert flatten(lun.disk, chain.leaf) == wanted != chain.flats[chain.leaf]
    others = {name: flat for name, flat in chain.flats.items() if name != chain.leaf}
    assert is_old(chain._replace(flats=others), lun.disk, flatten)


@pytest.mark.parametrize("first", range(3) if WHOLE else [0])
def test_an_operation_that_fails_leaves_the_old_sr_or_the_new_one_or_what_recover_settles(first):
    """What is left of it on the disk takes turns."""
    chain, read = random_qcow2(1, bits=16, clusters=40, depth=2, raw=False, snapshots=False), Recalled(flatten)
    turns = islice(cycle(("nothing", "half", "all")), first, None)

    for n, leaves in zip(steps(4), turns):
        disk = chain.disk.copy()
        failing = FailingDisk(disk, n, leaves=leaves)
        try:
            prepared = engine.prepare(
                failing, entropy(0), engine.ResignatureRequest(scsi_id=SCSI_ID, one=OneVdiRequest())
            )
            engine.resignature(failing, prepared)
        except DeviceError:
            state = settled(disk)
            assert is_old(chain, disk, read) if state == "clean" else is_new(chain, disk, read), n
        if not failing.failed:
            break
    assert n > 40 and is_new(chain, disk, flatten)


def settled(disk):
    if engine.inspect(disk).state == "unfinished":
        engine.recover(disk, engine.find_unfinished(disk), SCSI_ID)
    return engine.inspect(disk).state
