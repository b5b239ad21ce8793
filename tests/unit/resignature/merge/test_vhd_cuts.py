# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut at every step of making one VDI: the LUN holds the old SR, the new one, or what becomes one of them.

Thousands of blocks are written, so the disks that a cut may leave are sampled; each is judged by what a guest reads
through every volume of the old SR, or through the one of the new. The twin forgets a flush, and must find a fault.
"""

import random
from typing import NamedTuple, Tuple

import pytest

from kit.chains import BLOCK, SECTORS, guest_bytes
from kit.chains.cut_one_vdi import cut, faults, new_volume
from kit.chains.guest import Writer
from kit.chains.libvhd import ALL, Vhd
from kit.chains.lun import Lun
from kit.chains.random_chain import random_chain
from kit.chains.tapdisk import Tapdisk
from kit.cuts import SCSI_ID, read_mark
from relvmoiscsi import engine

pytestmark = pytest.mark.states(few=1)

SLOT, HEAD = 8 * 513, 8455  #: sectors from a block to the next one, and in front of the first


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
    rebuilt = read_mark(cut(chain).current).journal.run.rebuilt
    assert all(getattr(rebuilt, what) for what in case.has), "chance has changed: look for another seed"
    return chain


@pytest.mark.parametrize("case", CASES)
def test_a_cut_leaves_the_old_sr_or_the_new_one_or_what_recover_and_undo_settle(case):
    chain = chain_of(case)

    crash = cut(chain)

    assert list(faults(chain, crash, subsets=1)) == []


@pytest.mark.parametrize("flush", (1, 5))
def test_without_a_flush_there_would_be_a_fault(flush):
    """The first makes the copies durable before the mark, the fifth empty bitmaps before the table that names them."""
    chain = chain_of(BOTH)

    crash = cut(chain, dropped_flush=flush)

    assert any(faults(chain, crash, subsets=10))


def moved_into_the_padding(chain):
    """The disk, with a block that ends in the padding in front of the next one's bitmap, which is partial."""
    lun = Lun.read(chain.disk.copy())
    for name in chain.members:
        vhd = Vhd(lun.volume(name))
        blocks = {entry: block for block, entry in vhd.bat.items()}
        for block, entry in sorted(vhd.bat.items(), key=lambda item: item[1]):
            before = entry - SLOT
            if before in blocks and before > HEAD and vhd.bits(block) not in (0, ALL):
                data = vhd.volume.read(before * 512, (SECTORS + 1) * 512)
                vhd.volume.write((before + 3) * 512, data)
                vhd.set_entry(blocks[before], before + 3)
                return lun.disk
    raise AssertionError("chance has changed: look for another seed")


def test_padding_in_which_another_block_ends_is_not_written():
    """tapdisk makes no such image; tapdisk would write it."""
    chain = random_chain(5, depth=2, blocks=6, free=40, thick=True, odd=False, grown=False, killed=False,
                         snapshots=False)  # fmt: skip
    chain = chain._replace(disk=moved_into_the_padding(chain))
    chain.disk.freeze()

    crash = cut(chain)

    assert read_mark(crash.current).journal.run.rebuilt.full
    assert list(faults(chain, crash, every=8, subsets=1)) == []


def test_what_a_guest_wrote_to_the_old_image_since_the_cut_stays():
    """Nothing tells whether it did so: so before the commit nothing is finished, all is taken back."""
    chain = chain_of(BOTH)
    crash = cut(chain)
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
    crash = cut(chain)
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
