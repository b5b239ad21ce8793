# SPDX-License-Identifier: LGPL-2.1-only
"""One VDI is made while something else writes to the LUN: another host that does the same, or the array, which puts the
LUN back to what it was. Locks are of one host, so nothing keeps them off; what they did is seen, and nothing is lost.
"""

import errno
import random

import pytest

from kit.chains import SECTORS, flatten
from kit.chains.cut_one_vdi import new_volume
from kit.chains.lun import Lun
from kit.chains.qcow2 import flatten as flatten_qcow2
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2
from kit.chains.tapdisk import Tapdisk
from kit.clock import Clock
from kit.crash import FailingDisk
from kit.cuts import SCSI_ID, entropy
from kit.examples import WHOLE, of_each_kind, seeds
from kit.fenced import FencedDisk
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import DeviceError, NoRoom, Overtaken, Refused, Unfinished
from relvmoiscsi.resignature.protocol import sentences, steps
from relvmoiscsi.resignature.writing import apply

pytestmark = pytest.mark.states

SMALL = {"bat_entries": 4096, "blocks": 5, "depth": 3}
OLD = "clean"


def vhds(seed, free, **how):
    return random_chain(seed, free=free, **SMALL, **how), flatten


def qcow2s(seed, free):
    return random_qcow2(seed, free=free, depth=3), flatten_qcow2


def prepared(disk, seed=0):
    return engine.prepare(disk, entropy(seed), engine.ResignatureRequest(scsi_id=SCSI_ID, one=OneVdiRequest()))


def copied(disk, seed=0):
    return engine.copy_unseen(disk, prepared(disk, seed))


def is_old(chain, disk, read):
    return engine.inspect(disk).state == OLD and all(read(disk, name) == flat for name, flat in chain.flats.items())


@pytest.mark.parametrize("seed", seeds(range(8), 8))
@pytest.mark.parametrize("make", [vhds, qcow2s])
def test_of_two_hosts_that_copy_one_that_says_it_is_done_has_all_of_it(make, seed):
    """There are few free extents, so they write to the same ones."""
    chain, read = make(seed, 8)
    disk = chain.disk.copy()
    try:
        first, second = copied(disk, 1), copied(disk, 2)
    except Refused:
        return  # there is no room

    try:
        assert engine.resignature(disk, first).state == "resignatured"
    except Refused:
        assert is_old(chain, disk, read)
        engine.resignature(disk, second)
    else:
        with pytest.raises(Refused, match="changed at byte 512 since it was read"):
            engine.resignature(disk, second)
    assert read(disk, new_volume(disk)) == chain.flats[chain.leaf]


def tapdisk_on(disk, name):
    """A guest's writes go to this very disk."""
    lun = Lun.read(disk)
    lun.disk = disk
    for volume in lun.volumes.values():
        volume.lun = lun
    return Tapdisk(lun.volume(name))


def filled_by_a_guest(disk):
    """All of the one VDI, written through it; what is read then."""
    name, dice = new_volume(disk), random.Random(1)
    tapdisk = tapdisk_on(disk, name)
    sectors, step = tapdisk.vhd.size // 512, SECTORS // 8
    for start in range(0, sectors, step):
        tapdisk.write(start, bytes([dice.randrange(1, 255)]) * (512 * min(step, sectors - start)))
    tapdisk.close()
    return name, flatten(disk, name)


@pytest.mark.parametrize("seed", seeds((2, 34), 2))
def test_whoever_is_overtaken_while_it_copies_stops_and_what_a_guest_wrote_since_stays(seed):
    chain, read = vhds(seed, 20, thick=True, odd=False)
    counted = FencedDisk(chain.disk.copy(), Clock())
    engine.copy_unseen(counted, prepared(chain.disk.copy(), 2))
    assert len(counted.moments) > 8
    for moment in of_each_kind(counted.moments, 8, "overtaken"):
        disk, found = chain.disk.copy(), {}
        first, second = copied(disk, 1), prepared(disk, 2)

        def goes_on(disk=disk, first=first, found=found):
            try:
                engine.resignature(disk, first)
            except Refused:
                return
            found["name"], found["flat"] = filled_by_a_guest(disk)

        try:
            engine.resignature(FencedDisk(disk, Clock(), moment, goes_on), second)
        except (Refused, Overtaken) as error:
            assert "name" in found and "changed at byte" in str(error), moment
            assert flatten(disk, found["name"]) == found["flat"], moment
        else:
            assert read(disk, new_volume(disk)) == chain.flats[chain.leaf], moment


def test_one_that_writes_behind_the_read_back_of_another_is_noticed_behind_its_mark(monkeypatch):
    """And rolled back: blocks are filled with the same by both."""
    chain, read = vhds(34, 4)
    disk = chain.disk.copy()
    first, second, real = copied(disk, 1), prepared(disk, 2), apply.step

    def step(device, taken, *arguments, **more):
        if taken == steps.BEGIN:
            engine.copy_unseen(disk, second)
        real(device, taken, *arguments, **more)

    monkeypatch.setattr(apply, "step", step)
    with pytest.raises(Unfinished, match="does not hold what was written .* was begun and may be unfinished"):
        engine.resignature(disk, first)
    monkeypatch.undo()

    engine.recover(disk, engine.find_unfinished(disk), SCSI_ID)
    assert is_old(chain, disk, read)


@pytest.mark.parametrize("make", [vhds, qcow2s])
def test_a_lun_that_the_array_has_put_back_is_not_committed(make):
    for seed in seeds(range(4), 4):
        chain, read = make(seed, 40)
        left, refreshed = copied(chain.disk.copy()), chain.disk.copy()
        with pytest.raises(Refused, match=r"changed at byte \d+ since it was read"):
            engine.resignature(refreshed, left)
        assert is_old(chain, refreshed, read)

    chain, read = make(34 if make is vhds else 4, 40)
    moments = FencedDisk(chain.disk.copy(), Clock())
    engine.copy_unseen(moments, prepared(chain.disk.copy()))
    devices = []

    def put_back():
        devices[-1]._device = chain.disk.copy()

    for moment in range(moments.moments.index("before a look") + 3, len(moments.moments) + 1):  # behind the first write
        devices.append(FencedDisk(chain.disk.copy(), Clock(), moment, put_back))
        with pytest.raises((Refused, Overtaken, Unfinished), match="changed at byte|does not hold what was written"):
            engine.resignature(devices[-1], prepared(chain.disk.copy()))
        assert is_old(chain, devices[-1]._device, read)


def written_to_a_partial_block(chain, disk):
    """Sectors that a block of the leaf lacks; only its bitmap tells. False where there is no such block."""
    tapdisk = tapdisk_on(disk, chain.leaf)
    for block in sorted(tapdisk.vhd.bat):
        bits = tapdisk.vhd.bits(block)
        free = [sector for sector in range(SECTORS) if not bits >> (SECTORS - 1 - sector) & 1]
        if len(free) > 20 and (block + 1) * SECTORS * 512 <= tapdisk.vhd.size:
            for sector in free[:8]:
                tapdisk.write(block * SECTORS + sector, b"NEW!" * 128)
            return True
    return False


@pytest.mark.parametrize("when", ["before the copies", "behind them"])
def test_bitmaps_are_among_what_must_not_change(when):
    """The end footer is killed, as of a running VM, so that bitmap and data are all that changes."""
    tried, enough = 0, 6 if WHOLE else 1
    for seed in range(12):
        chain, _ = vhds(seed, 40, thick=True, odd=False, killed=True)
        disk = chain.disk.copy()
        made = prepared(disk) if when == "before the copies" else copied(disk)
        if written_to_a_partial_block(chain, disk):
            tried, wanted = tried + 1, flatten(disk, chain.leaf)
            with pytest.raises(Refused, match=r"changed at byte \d+ since it was read"):
                engine.resignature(disk, made)
            assert flatten(disk, chain.leaf) == wanted
        if tried == enough:
            return
    raise AssertionError("chance has changed: look for other seeds")


@pytest.mark.parametrize("when", [prepared, copied])
def test_tables_of_a_qcow2_are_among_what_must_not_change(when):
    chain, _ = qcow2s(1, 40)
    disk = chain.disk.copy()
    made = when(disk)
    assert made.plan.unseen.expected
    for one in made.plan.unseen.expected:
        changed, at = disk.copy(), one.range.end - 1
        changed.poke(at, bytes([changed.peek(at, 1)[0] ^ 1]))
        with pytest.raises(Refused, match=f"changed at byte {one.range.offset} since it was read"):
            engine.resignature(changed, made)


class Late(ForwardingDevice):
    """An earlier write of this host is on its way until `end_late_writes`."""

    def __init__(self, base, place):
        super().__init__(base)
        self.base, self.place, self.landed = base, place, None

    def end_late_writes(self, of_another_host=False):
        self.base.poke(self.place, b"late")
        self.landed = self.base.copy()


@pytest.mark.parametrize("run", [engine.copy_unseen, engine.resignature])
def test_a_write_that_was_on_its_way_lands_before_the_lun_is_compared_with_the_plan(run):
    disk = vhds(34, 40)[0].disk.copy()
    made = prepared(disk) if run is engine.copy_unseen else copied(disk)
    late = Late(disk, made.plan.run.mdas[0].original.offset)

    with pytest.raises(Refused, match="changed at byte 4096 since it was read") as caught:
        run(late, made)

    assert late.landed == disk
    assert (caught.value.disk_state == "Nothing was written.") == (run is engine.copy_unseen)


def test_a_copy_that_stops_says_that_only_unseen_places_were_written():
    disk = vhds(34, 40)[0].disk.copy()
    made, name = prepared(disk), disk.name
    counted = FailingDisk(disk.copy())
    engine.copy_unseen(counted, made)
    first = next(number for number, (kind, *_) in enumerate(counted.tried, 1) if kind == "write")
    with pytest.raises(DeviceError) as failed:
        engine.copy_unseen(FailingDisk(disk.copy(), first), made)
    moments = FencedDisk(disk.copy(), Clock())
    engine.copy_unseen(moments, made)
    taken = FencedDisk(disk, Clock(), moments.moments.index("before a look") + 1, lambda: disk.poke(4096, b"taken"))
    with pytest.raises(Overtaken) as overtaken:
        engine.copy_unseen(taken, made)

    unseen = f"Every VDI on {name} reads as before: only free extents and metadata space"
    assert failed.value.disk_state.startswith(unseen) and failed.value.advice == sentences.DETACH
    assert failed.value.disk_state.endswith("were written. A write that failed may still land.")
    assert (overtaken.value.disk_state, overtaken.value.advice) == (sentences.overtaken(name), sentences.IF_ONE_VDI)


class Full(ForwardingDevice):
    """An image file on a file system without room."""

    def write(self, chunks):
        raise NoRoom(self.name, "write", chunks[0].offset, 512, "No space left on device", errno.ENOSPC)


def test_a_copy_that_finds_no_room_says_where_to_make_room_and_detaches_nothing():
    """Such a write lands nowhere, so nobody has to keep away from the file."""
    disk = vhds(34, 40)[0].disk.copy()

    with pytest.raises(NoRoom) as failed:
        engine.copy_unseen(Full(disk), prepared(disk))

    assert failed.value.advice == "Make room there: on the file system of the image file, or on the array."
    assert failed.value.disk_state.endswith("and sectors of images that nobody reads, were written.")


@pytest.mark.parametrize("part", ["journal", "second area", "image"])
def test_what_was_written_before_the_mark_is_a_condition_of_the_mark(part, monkeypatch):
    """Another host has written there behind the read-back, and is gone."""
    disk = vhds(34, 40)[0].disk.copy()
    made, real = copied(disk), apply.step
    run, chunks = made.plan.run, made.plan.chunks_of(steps.JOURNAL)
    place = {
        "journal": made.plan.journal.offset,
        "second area": run.mdas[0].second.offset,
        "image": made.plan.unseen.chunks[0].offset,
    }[part]
    assert part == "image" or place in [chunk.offset for chunk in chunks]

    def step(device, taken, *arguments, **more):
        if taken == steps.BEGIN:
            disk.poke(place, b"other")
        real(device, taken, *arguments, **more)

    monkeypatch.setattr(apply, "step", step)
    with pytest.raises(Overtaken):
        engine.resignature(FencedDisk(disk, Clock()), made)

    assert engine.inspect(disk).state == OLD


@pytest.mark.parametrize("seed", seeds(range(10), 10))
@pytest.mark.parametrize("make", [vhds, qcow2s])
def test_nothing_is_written_twice_before_the_commit(make, seed):
    """What is read back is what was written."""
    chain, _ = make(seed, 60)
    unseen = prepared(chain.disk).plan.unseen
    parts = [(chunk.offset, chunk.end) for chunk in (*unseen.chunks, *unseen.more)]
    parts += [(copy.target, copy.range.end) for several in unseen.copies for copy in several]

    parts.sort()
    assert all(end <= following for (_, end), (following, _) in zip(parts, parts[1:]))
