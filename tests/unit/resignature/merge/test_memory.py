# SPDX-License-Identifier: LGPL-2.1-only
"""What it takes of the memory of dom0 to make one VDI of a large disk; small values kept in little are the same."""

import gc
import random
import re
import struct
import tracemalloc
from array import array

import pytest

from bench import chains
from kit.build_volumes import MgtSpec, Record, mgt_content, uuids_by_key
from kit.chains.lun import EXTENT, Lun
from kit.chains.qemu import make
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice, align_up
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import qcow2_clusters
from relvmoiscsi.resignature.merge import compact, qcow2_chain, qcow2_image, qcow2_layout, vhd_chain

MIB = 1 << 20


def peak(work):
    """The most bytes that are taken at once. What the first time leaves behind, as caches, is not counted."""
    work()
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def prepared(disk):
    return engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest()))


@pytest.fixture
def small_pieces(monkeypatch):
    """What is read at once is little beside what stays: so the difference of two disks is what a larger one takes."""
    monkeypatch.setattr(qcow2_chain, "_BATCH_BYTES", 64 << 10)
    monkeypatch.setattr(qcow2_image, "PIECE_BYTES", 64 << 10)


def test_a_vhd_of_more_partial_blocks_takes_less_than_200_bytes_for_each():
    few, many = (chains.vhds(chains.written(4, partial)).disk for partial in (40, 240))

    assert peak(lambda: prepared(many)) - peak(lambda: prepared(few)) < 200 * 200


def chain_of_qcow2s(mib, bits, depth, places):
    """Images of a disk; `places` are clusters of data for those of the disk, for all tables of one image."""
    cluster, size = 1 << bits, mib << 20
    tables = -(-size // (cluster * cluster // 8))
    volume_bytes = align_up(qcow2_clusters.full_size(size, cluster), EXTENT) + 16 * EXTENT
    uuids = uuids_by_key(["sr", *map(str, range(depth))], "memory")
    lun = Lun.new(uuids["sr"], 900 + depth * volume_bytes // EXTENT, "memory")
    mgt, records, parent = lun.create("MGT", EXTENT), [], ""
    for number in range(depth):
        is_leaf, uuid = number == depth - 1, uuids[str(number)]
        name = "QCOW2-" + uuid
        volume = lun.create(name, volume_bytes)
        make(lun, name, size, parent, bits, hidden=not is_leaf)
        first = 3 + -(-tables * 8 // cluster)
        for table in range(tables) if places(number) is not None else ():
            volume.write(3 * cluster + 8 * table, struct.pack(">Q", (first + table) * cluster | 1 << 63))
            own = places(number)[table * (cluster // 8) : (table + 1) * (cluster // 8)]
            entries = [(first + tables + place) * cluster | 1 << 63 if place is not None else 0 for place in own]
            volume.write((first + table) * cluster, struct.pack(f">{len(entries)}Q", *entries))
        more = {} if is_leaf else {"read_only": True, "managed": False}
        records.append(Record(uuid, "a disk", vdi_type="qcow2", **more))
        parent = name
    mgt.write(0, bytes(EXTENT))
    for offset, data in mgt_content(EXTENT, MgtSpec(uuids["sr"], "x", "", "thick", tuple(records), "")).pieces:
        mgt.write(offset, data)
    lun.commit()
    return lun.disk


def in_random_order(number, count):
    return None if number else random.Random(1).sample(range(count), count)


def many_that_are_copied(number, count):
    return None if number else [place if place % 17 == 3 else None for place in range(count)]


def few_in_many_tables(number, count):
    return [place // 8192 if place % 8192 == 97 * number else None for place in range(count)]


def coarse_over_fine(gib, places=(), zeros=0):
    """A leaf with clusters of 2 MiB that claims a disk of `gib`, over a parent with clusters of 4 KiB and one of data.

    The leaf has one table of the second level: clusters of data at `places`, and `zeros` clusters that read as zeros.
    """
    uuids, cluster = uuids_by_key(["sr", "0", "1"], "memory"), 2 << 20
    lun = Lun.new(uuids["sr"], 64 + len(places), "memory")
    mgt = lun.create("MGT", EXTENT)
    parent, leaf = (
        lun.create("QCOW2-" + uuids[one], size) for one, size in (("0", EXTENT), ("1", (5 + len(places)) * EXTENT))
    )
    make(lun, "QCOW2-" + uuids["0"], 1 << 20, "", 12, hidden=True)
    make(lun, "QCOW2-" + uuids["1"], gib << 30, "QCOW2-" + uuids["0"], 21)
    for at, entry in ((3, 4 << 12 | 1 << 63), (4, 5 << 12 | 1 << 63)):
        parent.write(at << 12, struct.pack(">Q", entry))
    parent.write(5 << 12, b"x" * 4096)
    entries = [0] * (cluster // 8)
    entries[1 : 1 + zeros] = [1] * zeros
    for number, place in enumerate(places):
        entries[place] = (5 + number) * cluster | 1 << 63
    leaf.write(3 * cluster, struct.pack(">Q", 4 * cluster | 1 << 63))
    leaf.write(4 * cluster, struct.pack(f">{len(entries)}Q", *entries))
    records = [Record(uuids["0"], "a disk", vdi_type="qcow2", read_only=True, managed=False)]
    records.append(Record(uuids["1"], "a disk", vdi_type="qcow2"))
    mgt.write(0, bytes(EXTENT))
    for offset, data in mgt_content(EXTENT, MgtSpec(uuids["sr"], "x", "", "thick", tuple(records), "")).pieces:
        mgt.write(offset, data)
    lun.commit()
    return lun.disk


@pytest.fixture
def calls(monkeypatch):
    """Counts the results of functions through which all work on tables goes, and the length of each result."""
    found = {}

    def count(of, name):
        real, found[name] = getattr(of, name), []

        def counted(*given):
            result = real(*given)
            found[name].append(len(result or ()))
            return result

        monkeypatch.setattr(of, name, counted)

    count(qcow2_chain.Qcow2Member, "owners")
    count(compact.zlib, "decompress")
    count(qcow2_image.Tables, "_piece")
    return found


@pytest.mark.parametrize(
    "gib, places, zeros", [(100, (), 0), (8192, (), 0), (100, (), 51000), (500, range(20, 256000, 25600), 0)]
)
def test_the_work_on_a_qcow2_is_of_its_tables_and_not_of_the_size_that_it_claims(gib, places, zeros, calls):
    prepared(coarse_over_fine(gib, places, zeros))

    tables = 2 + len(places)  # of the new image that have data, and one that the zeros are in
    assert len(calls["owners"]) <= 2 * tables
    assert sum(calls["decompress"]) <= (2 << 20) + 20 * tables * 4096, "the table of the leaf, once"


def test_a_disk_that_no_qcow2_with_the_clusters_of_its_parent_can_have_is_refused(calls):
    disk = coarse_over_fine(8193)
    outlook = engine.one_vdi(disk, engine.inspect(disk).lun)

    assert "clusters of 4096 bytes: with such clusters, no QCOW2 has so large a disk" in str(outlook.problem)
    assert calls["owners"] == []


@pytest.mark.usefixtures("small_pieces")
def test_the_tables_of_a_planned_qcow2_are_computed_in_the_order_in_which_they_are_read(calls):
    """Half of the tables have data, and empty tables between them take the dead clusters."""
    clusters = iter(place for place in range(16384) if place % 3)
    places = [next(clusters) if number // 512 % 2 else None for number in range(16384)]
    prepared(chain_of_qcow2s(64, 12, 2, lambda number: places if number else None))

    assert len(calls["_piece"]) < 20, "25 tables in pieces of 16, and the counts"


#: MiB of a disk and of a larger one, bits of a cluster, images, where the clusters of each image are
SHAPES = [
    (2048, 4096, 16, 2, in_random_order),
    (64, 128, 12, 2, many_that_are_copied),
    (1024, 2048, 16, 4, few_in_many_tables),
]


@pytest.mark.states("small", "large", "bits", "depth", "places", few=1)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("small, large, bits, depth, places", SHAPES)
def test_what_is_told_of_a_larger_qcow2_is_not_less_than_it_takes_nor_three_times_as_much(
    small, large, bits, depth, places, monkeypatch
):
    """Of a chain with few clusters in each table it was twelve times as much, and the chain refused for that."""
    noted, told, taken, real = [], {}, {}, compact.Memory.take
    monkeypatch.setattr(compact.Memory, "take", lambda self, count: (noted.append(count), real(self, count)))

    for mib in (small, large):
        clusters = [places(number, mib << 20 >> bits) for number in range(depth)]
        disk = chain_of_qcow2s(mib, bits, depth, clusters.__getitem__)
        taken[mib] = peak(lambda disk=disk: (noted.clear(), prepared(disk)))
        told[mib] = sum(noted)

    assert taken[large] <= told[large] <= 3 * taken[large] + qcow2_chain._BYTES_AT_LEAST
    assert taken[large] - taken[small] <= told[large] - told[small] <= 3 * (taken[large] - taken[small])


class Measured(ForwardingDevice):
    """Notes the most bytes that are asked of it at once, to be read or to be written."""

    most = 0

    def read(self, ranges):
        self.most = max(self.most, sum(part.length for part in ranges))
        return super().read(ranges)

    def write(self, chunks):
        self.most = max(self.most, sum(len(chunk.data) for chunk in chunks))
        super().write(chunks)


def test_however_many_bitmaps_there_are_a_device_is_asked_for_so_much_at_once():
    """A device has memory of its own for all that is asked of it at once."""
    chain = chains.vhds(chains.written(16, 1600))
    made = prepared(chain.disk)
    made = made._replace(plan=made.plan._replace(unseen=made.plan.unseen._replace(copies=())))
    device = Measured(chain.disk)

    engine.resignature(device, made)

    assert device.most < 5 * MIB, "the head of the image, and not 6 MiB of bitmaps"


@pytest.mark.parametrize("make", [chains.vhds, chains.qcow2s])
def test_what_would_take_too_much_is_refused_with_the_sizes_and_show_tells_it(make, monkeypatch):
    chain = make(chains.written(8, 40))
    before = chain.disk.digest_except([])
    monkeypatch.setattr(compact, "MOST_MEMORY_BYTES", 64 << 10)

    with pytest.raises(Refused) as raised:
        prepared(chain.disk)

    assert re.match(r"One VDI of \S+ takes \d+ MiB of memory or more, and 0 MiB at the most", str(raised.value))
    assert "Nothing was written" in str(raised.value)
    outlook = engine.one_vdi(chain.disk, engine.inspect(chain.disk).lun)
    assert outlook.state == engine.CANNOT_BE_ONE and "of memory" in str(outlook.problem)
    assert chain.disk.digest_except([]) == before


def test_a_disk_of_2_tib_is_not_refused_for_that():
    """Of clusters of 64 KiB, all there; and of a VHD, of which every block is partial in two images."""
    clusters, extents, blocks = (2 << 40) // 65536, (2 << 40) // (4 * MIB), 1 << 20
    tables = clusters // 8192 * (qcow2_chain.BYTES_FOR_TABLE + qcow2_chain.TIMES_PACKED * 700)
    of_volumes = 2 * (clusters * qcow2_chain._BYTES_FOR_CLUSTER + extents * qcow2_chain._BYTES_FOR_EXTENT)
    of_new = clusters * qcow2_chain._BYTES_FOR_NEW_CLUSTER + extents * qcow2_layout._BYTES_FOR_ALIVE
    of_qcow2 = qcow2_chain._BYTES_AT_LEAST + tables + of_volumes + of_new
    of_vhd = 2 * blocks * (vhd_chain._BYTES_FOR_BLOCK + vhd_chain._BYTES_FOR_BITMAP)

    assert max(of_qcow2, of_vhd) < compact.MOST_MEMORY_BYTES


# --- many small values in little memory


def test_numbers_that_count_on_and_bitmaps_of_a_few_stretches_take_next_to_nothing():
    dice = random.Random(1)
    arrays = compact.Arrays()
    arrays[0] = array("Q", range(1 << 56, (1 << 56) + (8192 << 16), 1 << 16))
    arrays[1] = array("Q", [dice.randrange(1 << 24) << 16 for _ in range(8192)])
    assert arrays.size_bytes(0) < 1024
    assert arrays.size_bytes(1) < 4 * 8192, "four bytes for each, in whatever order"

    def bitmaps():
        found = vhd_chain.Bitmaps()
        for block in range(10000):
            found.append(block, bytes(block % 400) + b"\xff" * 40 + bytes(472 - block % 400))
        return found

    assert peak(bitmaps) < 100 * 10000
