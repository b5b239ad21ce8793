# SPDX-License-Identifier: LGPL-2.1-only
"""What it takes of the memory of dom0 to make one VDI of a large disk."""

import re
import tracemalloc

import pytest

from bench import chains
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.device import Device
from relvmoiscsi.errors import Refused
from relvmoiscsi.resignature.one_vdi import compact
from relvmoiscsi.resignature.one_vdi.choice import Request
from relvmoiscsi.resignature.one_vdi.qcow2 import image, members
from relvmoiscsi.resignature.one_vdi.vhd import members as vhd_members

MIB = 1 << 20


def peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def prepared(chain):
    return engine.prepare(chain.disk, entropy(0), one=Request())


def test_a_partial_block_of_a_vhd_takes_less_than_200_bytes():
    few, many = (chains.vhds(chains.written(40, partial)) for partial in (500, 3000))

    more = peak(lambda: prepared(many)) - peak(lambda: prepared(few))

    assert more < 2500 * 200


def test_a_cluster_of_a_qcow2_takes_less_than_24_bytes(monkeypatch):
    """Four of them tell whether it is used, in volumes of images and in the new one; others are of its extent."""
    monkeypatch.setattr(members, "_BATCH_BYTES", 64 << 10)
    monkeypatch.setattr(image, "PIECE_BYTES", 64 << 10)
    small, large = (chains.qcow2s(chains.Written(gib, range(gib * 500), (), ())) for gib in (4, 8))

    more = peak(lambda: prepared(large)) - peak(lambda: prepared(small))

    assert more < 4 * (chains.GIB // 65536) * 24


class Measured(Device):
    """Notes the most bytes that are asked of it at once, to be read or to be written."""

    def __init__(self, disk):
        self.name, self.size_bytes, self.block_size = disk.name, disk.size_bytes, disk.block_size
        self.disk, self.most = disk, 0

    def read(self, ranges):
        self.most = max(self.most, sum(part.length for part in ranges))
        return self.disk.read(ranges)

    def write(self, chunks):
        self.most = max(self.most, sum(len(chunk.data) for chunk in chunks))
        self.disk.write(chunks)

    def flush(self):
        self.disk.flush()


def test_however_many_bitmaps_there_are_a_device_is_asked_for_so_much_at_once():
    """A device has memory of its own for all that is asked of it at once."""
    chain = chains.vhds(chains.written(40, 3000))
    made = prepared(chain)
    made = made._replace(plan=made.plan._replace(unseen=made.plan.unseen._replace(copies=())))
    device = Measured(chain.disk)

    engine.resignature(device, made)

    assert device.most < 5 * MIB, "the head of the image, and not 12 MiB of bitmaps"


@pytest.mark.parametrize("make", [chains.vhds, chains.qcow2s])
def test_what_would_take_too_much_is_refused_with_the_sizes_and_show_tells_it(make, monkeypatch):
    chain = make(chains.written(8, 40))
    before = chain.disk.digest_except([])
    monkeypatch.setattr(compact, "MOST_MEMORY_BYTES", 64 << 10)

    with pytest.raises(Refused) as raised:
        prepared(chain)

    assert re.match(r"One VDI of \S+ takes \d+ MiB of memory or more, and 0 MiB at the most", str(raised.value))
    assert "Nothing was written" in str(raised.value)
    outlook = engine.one_vdi(chain.disk, engine.inspect(chain.disk).lun)
    assert outlook.state == engine.CANNOT_BE_ONE and "of memory" in str(outlook.problem)
    assert chain.disk.digest_except([]) == before


def test_a_disk_of_2_tib_is_not_refused_for_that():
    """Of clusters of 64 KiB, all there; and of a VHD, of which every block is partial in two images."""
    clusters, extents, blocks = (2 << 40) // 65536, (2 << 40) // (4 * MIB), 1 << 20
    of_qcow2 = clusters * (1 + members._BYTES_FOR_ENTRY) + extents * members._BYTES_FOR_EXTENT
    of_vhd = 2 * blocks * (vhd_members._BYTES_FOR_BLOCK + vhd_members._BYTES_FOR_BITMAP)

    assert max(of_qcow2, of_vhd) < compact.MOST_MEMORY_BYTES
