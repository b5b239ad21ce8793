# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut at every step of making one VDI: the LUN holds the old SR, the new one, or what becomes one of them.

Thousands of blocks are written, so the disks that a cut may leave are sampled, and all are looked at of a small LUN.
Each is judged by what a guest reads through every volume of the old SR, or through the one of the new. The twins forget
a flush, and must find a fault.
"""

import random
from itertools import cycle, islice

import pytest

from kit.chains import BLOCK, SECTORS, guest_bytes
from kit.chains import flatten as flatten_vhd
from kit.chains.cut_one_vdi import cut, fault, faults, is_new, is_old, new_volume
from kit.chains.guest import Writer
from kit.chains.libvhd import ALL, Vhd
from kit.chains.lun import Lun
from kit.chains.qcow2 import flatten as flatten_qcow2
from kit.chains.qemu import Qemu
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2
from kit.chains.tapdisk import Tapdisk
from kit.crash import FailingDisk
from kit.cuts import SCSI_ID, entropy, read_mark
from kit.examples import WHOLE, steps
from kit.sparse import Recalled
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import DeviceError, Unfinished
from relvmoiscsi.resignature.protocol.merged_image import FULL_UNIT

pytestmark = pytest.mark.states(few=1)

SLOT, HEAD = 8 * 513, 8455  #: sectors from a block to the next one, and in front of the first
READERS = {"VHD": flatten_vhd, "QCOW2": flatten_qcow2}
HOLES, FILLS = "empty", "full"


def chain_of(kind, seed, physical=512, has=()):
    """A chain on a disk whose blocks a cut tears; what making one VDI of it takes is by chance, so it is looked at."""
    if kind == "VHD":
        chain = random_chain(seed, bat_entries=4096, free=20, blocks=5, depth=3)
    else:
        chain = random_qcow2(seed, bits=12, clusters=600, depth=3, raw=seed == 8)
    chain.disk.physical_block_size = physical
    assert all(getattr(merged_on(cut(chain).current), what) for what in has), (
        "chance has changed: look for another seed"
    )
    return chain


def merged_on(disk):
    return read_mark(disk).journal.run.merged


BOTH = ("VHD", 34, 512, (HOLES, FILLS))
CASES = [
    (BOTH, 1),
    (("VHD", 7, 512, (FILLS,)), 1),
    (("VHD", 56, 4096, (FILLS,)), 1),
    (("VHD", 50, 4096, (HOLES,)), 1),
    (("QCOW2", 1), 2),
    (("QCOW2", 2, 4096), 2),
    (("QCOW2", 8), 2),
]


@pytest.mark.parametrize("case, subsets", CASES, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_a_cut_leaves_the_old_sr_or_the_new_one_or_what_recover_and_undo_settle(case, subsets):
    chain = chain_of(*case)

    assert list(faults(chain, cut(chain), READERS[case[0]], subsets=subsets)) == []


@pytest.mark.parametrize(
    "case, flush, subsets",
    [(BOTH, 1, 10), (BOTH, 5, 10), (("QCOW2", 1), 1, 3)],
    ids=["copies before the mark", "empty bitmaps before the table", "QCOW2 tables before the mark"],
)
def test_without_a_flush_there_would_be_a_fault(case, flush, subsets):
    """The first makes the copies durable before the mark, the fifth empty bitmaps before the table that names them."""
    chain = chain_of(*case)

    crash = cut(chain, dropped_flush=flush)

    assert any(faults(chain, crash, READERS[case[0]], subsets=subsets))


def test_every_cut_of_a_small_disk():
    """Of groups of more than ten blocks: each prefix, each block alone, each one missing, and some subsets."""
    chain = random_qcow2(3, bits=12, clusters=40, depth=2, raw=False, snapshots=True, mixed=False, thick=False, leaks=0)
    crash = cut(chain)

    count, read = 0, Recalled(flatten_qcow2)
    for what, disk in crash.crash_images():
        count += 1
        assert fault(chain, disk, crash.current, read) == "", what
    assert count > 200


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

    assert merged_on(crash.current).full
    assert list(faults(chain, crash, every=8, subsets=1)) == []


# --- and a guest writes


def recovered(disk):
    engine.recover(disk, engine.find_unfinished(disk), SCSI_ID)
    return engine.inspect(disk).state


def test_what_a_guest_wrote_to_the_old_image_since_the_cut_stays():
    """Nothing tells whether it did so: so before the commit nothing is finished, all is rolled back."""
    chain = chain_of(*BOTH)
    lun = Lun.read(cut(chain).after_group(3))
    tapdisk = Tapdisk(lun.volume(chain.leaf))
    block, sectors = min(tapdisk.vhd.bat), Writer(random.Random(4)).data(2)
    tapdisk.write(block * SECTORS, sectors)
    tapdisk.close()
    assert recovered(lun.disk) == "clean"
    assert guest_bytes(lun.disk, chain.leaf, block * BLOCK, len(sectors)) == sectors

    chain = chain_of("QCOW2", 1)
    lun = Lun.read(cut(chain).after_group(3))
    Qemu(lun, chain.leaf).write(8192, b"written since".ljust(4096))
    wanted = flatten_qcow2(lun.disk, chain.leaf)
    assert recovered(lun.disk) == "clean"
    assert flatten_qcow2(lun.disk, chain.leaf) == wanted != chain.flats[chain.leaf]
    others = {name: flat for name, flat in chain.flats.items() if name != chain.leaf}
    assert is_old(chain._replace(flats=others), lun.disk, flatten_qcow2)


def test_what_tapdisk_wrote_before_the_run_was_finished_stays():
    """The SR was used between commit and recovery: a hole that has a guest's sectors by then is not emptied again."""
    lun = Lun.read(cut(chain_of(*BOTH)).after_group(6))  # the table names the holes, the mark is not yet the last one
    (name,) = [name for name in lun.volumes if name.startswith("VHD-")]
    tapdisk, data = Tapdisk(lun.volume(name)), Writer(random.Random(3))
    guest = {block: data.data(4) for block in range(tapdisk.vhd.size // BLOCK)}
    for block, sectors in guest.items():
        tapdisk.write(block * SECTORS, sectors)
    tapdisk.close()

    recovered(lun.disk)

    assert name == new_volume(lun.disk)
    for block, sectors in guest.items():
        assert guest_bytes(lun.disk, name, block * BLOCK, len(sectors)) == sectors, block


# --- an operation fails


class WithoutFilledBitmaps(ForwardingDevice):
    """Loses what is written over the bitmaps of blocks that the run has filled."""

    def write(self, chunks):
        super().write([chunk for chunk in chunks if chunk.data != FULL_UNIT])


def test_a_bitmap_that_the_device_loses_is_noticed_in_a_run_and_in_its_way_back():
    disk = chain_of(*BOTH).disk.copy()
    device = WithoutFilledBitmaps(disk)
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, one=OneVdiRequest())

    for act in (
        lambda: engine.resignature(device, engine.prepare(device, entropy(0), request)),
        lambda: recovered(device),
    ):
        with pytest.raises(Unfinished, match="does not hold what was written"):
            act()

    assert recovered(disk) == "clean"


@pytest.mark.parametrize("first", range(3) if WHOLE else [0])
def test_an_operation_that_fails_leaves_the_old_sr_or_the_new_one_or_what_recover_settles(first):
    """What is left of it on the disk takes turns."""
    chain = random_qcow2(1, bits=16, clusters=40, depth=2, raw=False, snapshots=False)
    read, request = Recalled(flatten_qcow2), engine.ResignatureRequest(scsi_id=SCSI_ID, one=OneVdiRequest())

    for n, leaves in zip(steps(4), islice(cycle(("nothing", "half", "all")), first, None)):
        disk = chain.disk.copy()
        failing = FailingDisk(disk, n, leaves=leaves)
        try:
            engine.resignature(failing, engine.prepare(failing, entropy(0), request))
        except DeviceError:
            state = engine.inspect(disk).state
            state = recovered(disk) if state == "unfinished" else state
            assert is_old(chain, disk, read) if state == "clean" else is_new(chain, disk, read), n
        if not failing.failed:
            break
    assert n > 40 and is_new(chain, disk, read)
