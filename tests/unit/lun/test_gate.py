# SPDX-License-Identifier: LGPL-2.1-only
"""What a batch passes before it goes to a LUN."""

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.lun.gate import ChildGate, GatedDevice


def test_a_device_asks_before_its_first_write_or_flush_and_each_batch_after_that():
    asked = []
    disk = SparseDisk(4096)
    device = GatedDevice(disk, ChildGate(lambda: asked.append(disk.read([Range(0, 1)])[0])))

    assert device.read([Range(0, 1)]) == [b"\0"] and asked == []
    for number in (1, 2):
        device.write([Chunk(0, bytes([number]) * 512)])
        device.flush()
    device.read([Range(0, 1)])

    assert asked == [b"\0", b"\1", b"\1", b"\2", b"\2"]
    assert (device.name, device.size_bytes, device.block_size) == (disk.name, disk.size_bytes, disk.block_size)
    GatedDevice(disk, ChildGate(lambda: asked.append("flush"))).flush()
    assert asked[5:] == ["flush"]
