# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img and libvhdi judge the VHDs that the tests' own tapdisk, libvhd and storage manager make."""

import random

from volumes import blocks_of, by_qemu, laid_over, vhdiinfo

from kit.build_volumes import MIB
from kit.chains import Flat, flatten, sm
from kit.chains.guest import SHAPES, Writer
from kit.chains.libvhd import Vhd, random_uuid
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk
from kit.reader import read_sr

SR = "0a0b0c0d-0000-4000-8000-000000000001"
LEAF, BASE, MIDDLE = (f"VHD-0a0b0c0d-0000-4000-8000-00000000001{number}" for number in range(3))


def read_by_qemu(volume, folder):
    (folder / "image").write_bytes(volume.read(0, volume.size))
    return by_qemu(folder / "image")


def flat_of(data):
    return Flat(len(data), blocks_of(data))


def guest_writes(lun, blocks, seed):
    disk, writer = Tapdisk(sm.attach(lun, LEAF)), Writer(random.Random(seed))
    for block in blocks:
        for sector, data in writer.to_block(block, disk.vhd.size, writer.dice.choice(SHAPES)):
            disk.write(sector, data if any(data) else writer.data(len(data) // 512))
    disk.close()


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
        image = laid_over(image, read_by_qemu(lun.volume(name), tmp_path))
        assert flat_of(image) == flatten(lun.disk, name)

    sm.coalesce(lun, MIDDLE)
    lun.commit()
    assert flat_of(read_by_qemu(lun.volume(BASE), tmp_path)) == flatten(lun.disk, MIDDLE) == flatten(lun.disk, BASE)


def test_libvhdi_reads_the_headers(tmp_path):
    lun = Lun.new(SR, 20)
    sm.create(lun, LEAF, 8 * MIB, random_uuid("first"))
    sm.snapshot(lun, LEAF, BASE, random_uuid("second"), thick=False)
    lun.commit()

    for name, kind in ((BASE, "Dynamic"), (LEAF, "Differential")):
        volume = lun.volume(name)
        (tmp_path / name).write_bytes(volume.read(0, volume.size))
        said = vhdiinfo(tmp_path / name)
        assert (said["Disk type"], said["Identifier"]) == (kind, read_sr(lun.disk).vhd(name).uuid)
        assert f"({Vhd(volume).size} bytes)" in said["Media size"]
        assert volume.size == 2 * EXTENT
