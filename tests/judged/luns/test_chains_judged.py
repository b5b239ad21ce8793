# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img and libvhdi judge the VHDs that the tests' own tapdisk, libvhd and storage manager make.

qemu-img knows neither bitmaps nor parents. So a test reads each layer alone, on extents of zeros, and lays it over the
layer below. If every block is full, the extents may have other bytes. libvhdi reads only headers: it reads bitmaps
eight sectors at a time, and takes the first size of a disk for the present size.
"""

import random

import pytest

from kit.build_volumes import BLOCK, MIB
from kit.chains import Flat, digest, flatten, sm
from kit.chains.controls import copied
from kit.chains.guest import SHAPES, Writer
from kit.chains.judge import check
from kit.chains.libvhd import Vhd, random_uuid
from kit.chains.lun import EXTENT, Lun
from kit.chains.random_chain import random_chain
from kit.chains.tapdisk import Tapdisk
from kit.judges import run
from kit.reader import read_sr

SR = "0a0b0c0d-0000-4000-8000-000000000001"
LEAF, BASE, MIDDLE = (f"VHD-0a0b0c0d-0000-4000-8000-00000000001{number}" for number in range(3))


def by_qemu(volume, folder):
    """What qemu-img reads in a volume."""
    (folder / "image").write_bytes(volume.read(0, volume.size))
    run("qemu-img", "convert", "-f", "vpc", "-O", "raw", str(folder / "image"), str(folder / "raw"))
    return (folder / "raw").read_bytes()


def flat_of(data):
    blocks = ((at // BLOCK, digest(data[at : at + BLOCK])) for at in range(0, len(data), BLOCK))
    return Flat(len(data), tuple(block for block in blocks if block[1]))


def guest_writes(lun, blocks, seed, shapes=SHAPES):
    disk = Tapdisk(sm.attach(lun, LEAF))
    writer = Writer(random.Random(seed))
    for block in blocks:
        for sector, data in writer.to_block(block, disk.vhd.size, writer.dice.choice(shapes)):
            disk.write(sector, data if any(data) else writer.data(len(data) // 512))
    disk.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_qemu_reads_what_a_guest_has_written(seed, tmp_path):
    chain = random_chain(seed, depth=1, blocks=4, odd=False, stale=False, killed=False)
    volume = Lun.read(chain.disk).volume(chain.leaf)

    assert flat_of(by_qemu(volume, tmp_path)) == chain.flats[chain.leaf]


def test_qemu_reads_a_disk_of_full_blocks_on_any_extents(tmp_path):
    chain = random_chain(4, depth=3, blocks=4, odd=False)
    lun = Lun.read(copied(chain), room=20)
    disk = Tapdisk(sm.attach(lun, chain.leaf))
    writer = Writer(random.Random(4))
    for block in range(disk.vhd.size // BLOCK):
        disk.write(block * 4096, writer.data(4096))
    disk.close()
    lun.commit()

    assert flat_of(by_qemu(disk.volume, tmp_path)) == flatten(lun.disk, chain.leaf)
    assert check(lun.disk, chain.leaf).problems == ()


def test_layer_upon_layer_by_qemu_is_what_the_chain_holds(tmp_path):
    lun = Lun.new(SR, 60)
    sm.create(lun, LEAF, 8 * MIB, random_uuid("first"))
    guest_writes(lun, (0, 1, 3), 1)
    sm.snapshot(lun, LEAF, BASE, random_uuid("second"))
    guest_writes(lun, (1, 2), 2)
    sm.snapshot(lun, LEAF, MIDDLE, random_uuid("third"))
    sm.grow(lun, LEAF, 12 * MIB)
    guest_writes(lun, (0, 1, 2, 5), 3)
    lun.commit()

    image = b""
    for name in (BASE, MIDDLE, LEAF):
        image = laid_over(image, by_qemu(lun.volume(name), tmp_path))
        assert flat_of(image) == flatten(lun.disk, name)

    sm.coalesce(lun, MIDDLE)
    lun.commit()
    assert flat_of(by_qemu(lun.volume(BASE), tmp_path)) == flatten(lun.disk, MIDDLE) == flatten(lun.disk, BASE)


def laid_over(below, above):
    """The sectors of `above` that are not zero, upon those of `below`."""
    found = bytearray(below.ljust(len(above), b"\0"))
    for at in range(0, len(above), 512):
        if any(above[at : at + 512]):
            found[at : at + 512] = above[at : at + 512]
    return bytes(found)


def test_libvhdi_reads_the_headers(tmp_path):
    lun = Lun.new(SR, 20)
    sm.create(lun, LEAF, 8 * MIB, random_uuid("first"))
    sm.snapshot(lun, LEAF, BASE, random_uuid("second"), thick=False)
    lun.commit()
    sr = read_sr(lun.disk)

    for name, kind in ((BASE, "Dynamic"), (LEAF, "Differential")):
        volume = lun.volume(name)
        (tmp_path / name).write_bytes(volume.read(0, volume.size))
        fields = (line.partition(":") for line in run("vhdiinfo", str(tmp_path / name)).splitlines())
        said = {key.strip(): value.strip() for key, _, value in fields}
        assert said["Disk type"] == kind and said["Identifier"] == sr.vhd(name).uuid
        assert f"({Vhd(volume).size} bytes)" in said["Media size"]
        assert volume.size == 2 * EXTENT


def test_real_lvm_sees_the_volumes_of_a_lun_by_hand(lvm, loops):
    chain = random_chain(7, depth=3, blocks=4, pieces=1)
    loop = loops(chain.disk)
    own = lvm.over(loop.path)

    (seen,) = own.seen()

    assert own("vgck") == "" and own("pvck", loop.path)
    assert seen.lv_names == {"MGT", *chain.flats}
    lun = Lun.read(chain.disk, room=3)
    lun.create("VHD-more", 2 * EXTENT)
    lun.commit()
    (more,) = lvm.over(loops(lun.disk).path).seen()
    assert more.lv_names == {*seen.lv_names, "VHD-more"}
