# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2, qemu-img and libvhdi judge LUNs that were made one VDI, of VHDs and of QCOW2 images, on loop devices.

LVM        lists the volume, takes it for sound, and goes on: lvcreate, lvextend, lvreduce, lvremove
libvhdi    reads headers and block table of the VHD
qemu-img   knows no bitmaps of VHDs, so it is asked where nothing has been on the extents, and no slot is given away;
           of QCOW2 it checks everything, where LVM says that the volume lies
"""

import json

import pytest

from kit import reader
from kit.chains import BLOCK, flatten
from kit.chains.flat import digest
from kit.chains.judge import check
from kit.chains.qcow2 import flatten as flatten_qcow2
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2
from kit.cuts import entropy
from kit.judges import NEW_LV, Loop, expected, extract, lv_ranges, run, vg_of
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.host.disk.block_device import open_device

pytestmark = pytest.mark.root
CHAINS = {f"vhd {seed}": lambda seed=seed: random_chain(seed, bat_entries=4096, free=40, depth=3) for seed in range(4)}
CHAINS.update({f"qcow2 {seed}": lambda seed=seed: random_qcow2(seed, depth=3, free=40) for seed in range(4)})


class OnLoop:
    """A chain that has become one VDI, on a loop device."""

    def __init__(self, loop: Loop, chain) -> None:
        self.loop, self.chain = loop, chain
        with open_device(loop.path, writable=True) as device:
            self.prepared = engine.prepare(device, entropy(0), engine.ResignatureRequest(one=OneVdiRequest()))
            engine.resignature(device, self.prepared)
        (self.name,) = [lv.name for lv in vg_of(loop.disk()).lvs if reader.kind_of(lv.name) in ("vhd", "qcow2")]

    def guest(self):
        read = flatten if self.name.startswith("VHD") else flatten_qcow2
        return read(self.loop.disk(), self.name)

    def extracted(self, own, path):
        (seen,) = own.seen()
        extract(self.loop.disk(), lv_ranges(seen, self.name), path)
        return path


@pytest.fixture(params=CHAINS)
def one(request, loops):
    chain = CHAINS[request.param]()
    return OnLoop(loops(chain.disk), chain)


@pytest.mark.states(few=1)
def test_lvm_accepts_the_result_and_goes_on_with_it(one, lvm):
    own = lvm.over(one.loop.path)
    vg = vg_of(one.loop.disk())
    seen = expected(vg, one.loop.path)
    assert own.listed() == own.seen() == (seen,)
    assert seen.lv_names == {"MGT", one.name}
    assert own("vgck") == "" and own("pvck", one.loop.path)

    own.create(vg.name, NEW_LV)
    assert own.seen()[0].lv_names == seen.lv_names | {NEW_LV}
    own("lvextend", "-l", "+1", f"{vg.name}/{one.name}")
    assert sum(part.length for part in lv_ranges(own.seen()[0], one.name)) == size_of(seen, one.name) + (4 << 20)
    if one.name.startswith("QCOW2"):  # of a VHD the last sector is the footer's, which SM writes then
        assert one.guest() == one.chain.flats[one.chain.leaf]
    own("lvreduce", "-f", "-l", "-1", f"{vg.name}/{one.name}")
    assert one.guest() == one.chain.flats[one.chain.leaf]
    own.remove(vg.name, NEW_LV)
    assert own.seen()[0].lvs == seen.lvs
    own.remove(vg.name, one.name)
    assert own.seen()[0].lv_names == {"MGT"}
    assert own("vgck") == ""


def size_of(seen, name):
    return sum(part.length for part in lv_ranges(seen, name))


def on(loops, chain):
    return loops(chain.disk), chain


def blocks_of(path):
    """Of a raw image: SHA-256 by the number of each block of 2 MiB that is not all zero."""
    data = path.read_bytes()
    blocks = {at // BLOCK: data[at : at + BLOCK] for at in range(0, len(data), BLOCK)}
    return {number: digest(block) for number, block in blocks.items() if any(block)}


@pytest.mark.states(few=1)
@pytest.mark.parametrize("seed", range(4))
def test_libvhdi_reads_the_vhd_as_one_without_a_parent(seed, loops, lvm, tmp_path):
    one = OnLoop(*on(loops, random_chain(seed, bat_entries=4096, free=40, grown=False)))

    said = run("vhdiinfo", str(one.extracted(lvm.over(one.loop.path), tmp_path / "image")))

    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in said.splitlines())}
    assert fields["Disk type"] == "Dynamic"
    assert f"({one.chain.flats[one.chain.leaf].size} bytes)" in fields["Media size"]
    assert fields["Identifier"] == reader.read_sr(one.loop.disk()).vhd(one.name).uuid
    assert not fields.get("Parent filename")


@pytest.mark.states(few=1)
@pytest.mark.parametrize("seed", (1, 2, 4, 6, 9, 12))
def test_qemu_reads_the_vhd_where_no_slot_was_given_away(seed, loops, lvm, tmp_path):
    one = OnLoop(*on(loops, random_chain(seed, bat_entries=4096, free=40, stale=False, odd=False, depth=3)))
    there = check(one.loop.disk(), one.name).allocated
    assert there == one.prepared.cost.blocks, "chance has changed: a slot was given away; look for another seed"
    image = one.extracted(lvm.over(one.loop.path), tmp_path / "image")

    run("qemu-img", "convert", "-f", "vpc", "-O", "raw", str(image), str(tmp_path / "flat"))

    assert json.loads(run("qemu-img", "info", "--output=json", "-f", "vpc", str(image)))["virtual-size"] == (
        one.chain.flats[one.chain.leaf].size
    )
    assert blocks_of(tmp_path / "flat") == dict(one.chain.flats[one.chain.leaf].blocks)


@pytest.mark.states(few=1)
@pytest.mark.parametrize("seed", range(4))
def test_qemu_checks_the_qcow2_where_lvm_says_that_it_lies(seed, loops, lvm, tmp_path):
    one = OnLoop(*on(loops, random_qcow2(seed, free=40)))
    image = one.extracted(lvm.over(one.loop.path), tmp_path / "image")

    said = json.loads(run("qemu-img", "check", "-f", "qcow2", "--output=json", str(image)))
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(image), str(tmp_path / "flat"))

    assert not [key for key in ("corruptions", "leaks", "check-errors") if said.get(key)], said
    assert blocks_of(tmp_path / "flat") == dict(one.chain.flats[one.chain.leaf].blocks)
