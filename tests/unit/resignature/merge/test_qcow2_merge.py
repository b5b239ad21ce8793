# SPDX-License-Identifier: LGPL-2.1-only
"""A chain of QCOW2 images becomes one: what a guest reads stays, QEMU can go on with it, and what cannot be is refused.

The reader and QEMU are models that share nothing with the engine (`kit.chains`); real ones judge in tests/judged/luns.
"""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.chains.cut_one_vdi import new_volume
from kit.chains.judge import Wrong
from kit.chains.judge_qcow2 import fill_completely, has_room, judge
from kit.chains.lun import Lun
from kit.chains.qcow2 import Image, check, flatten
from kit.chains.random_qcow2 import random_qcow2, volume_size
from kit.cuts import entropy
from kit.examples import examples
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import FormatError, Refused
from relvmoiscsi.resignature.merge import qcow2_image as image

pytestmark = pytest.mark.states(few=1)

ANY = OneVdiRequest()
PAIR = {
    "depth": 2,
    "bits": 16,
    "clusters": 64,
    "raw": False,
    "mixed": False,
    "grown": False,
    "empty": 0.0,
    "odd": False,
}
#: a volume without a cluster to spare, of which much is dead
TIGHT = {**PAIR, "clusters": 187, "full": True, "busy": 0.3, "thick": True, "zeros": 1.0, "leaks": 0, "free": 8}


def planned(disk, request=ANY):
    return engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=request))


def made_one(chain, request=ANY):
    """The LUN with one VDI, the name of its volume, and the plan that led to it."""
    disk = chain.disk.copy()
    prepared = planned(disk, request)
    engine.resignature(disk, prepared)
    return disk, new_volume(disk), prepared


@pytest.mark.parametrize("seed", range(8))
def test_a_guest_reads_the_same_and_can_fill_the_disk(seed):
    chain = random_qcow2(seed)

    disk, name, _ = made_one(chain)

    judge(disk, name, chain.flats[chain.leaf], seed)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1000, 1 << 40), st.integers(2, 4), st.booleans(), st.booleans())
def test_any_chain(seed, depth, mixed, raw):
    chain = random_qcow2(seed, depth=depth, mixed=mixed, raw=raw, bits=12, clusters=600)

    disk, name, _ = made_one(chain)

    judge(disk, name, chain.flats[chain.leaf], seed)


def test_a_chain_of_thirty():
    chain = random_qcow2(5, depth=30, bits=12, clusters=600, raw=False)

    disk, name, prepared = made_one(chain)

    assert prepared.cost.images == 30
    assert flatten(disk, name) == chain.flats[chain.leaf]


@pytest.mark.parametrize("seed", range(4))
def test_a_raw_base_becomes_part_of_the_image(seed):
    chain = random_qcow2(seed, raw=True, bits=16, clusters=100)

    disk, name, prepared = made_one(chain)

    judge(disk, name, chain.flats[chain.leaf], seed)
    assert prepared.cost.remapped and chain.members[-1].startswith("LV-")


@pytest.mark.parametrize(("seed", "bits"), [(6, 12), (9, 12), (12, 14), (6, 16), (14, 16)])
def test_on_a_disk_of_larger_blocks_a_parent_may_end_inside_of_one(seed, bits):
    """The disk is a strict one: a write that is not in whole blocks of it is a mistake of the program."""
    chain = random_qcow2(seed, **{**PAIR, "depth": 3, "bits": bits, "clusters": 40, "odd": True, "grown": True},
                         full=True, busy=0.3, snapshots=False)  # fmt: skip
    chain.disk.block_size = chain.disk.physical_block_size = 4096

    disk, name, prepared = made_one(chain)

    assert any(copy.zeros for several in prepared.plan.unseen.copies for copy in several)
    judge(disk, name, chain.flats[chain.leaf], seed)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_else_is_left_on_the_lun(seed):
    chain = random_qcow2(seed, snapshots=True)

    disk, name, _ = made_one(chain)

    lun = engine.inspect(disk).lun
    assert sorted(volume.name.text for volume in lun.volumes) == sorted(["MGT", name])
    (record,) = lun.mgt.records
    assert (record.is_a_snapshot, record.snapshot_of, record.vdi_type) == (False, "", "qcow2")
    assert lun.volume(name).parent is None and check(disk, name).hidden is False


@pytest.mark.parametrize("seed", range(6))
def test_a_thick_volume_has_room_for_all_that_no_image_has(seed):
    """Dead clusters are none of it: what the guest writes zeros to loses the place that it was given."""
    chain = random_qcow2(seed, thick=True, bits=16, mixed=False, raw=False, odd=False)

    disk, name, _ = made_one(chain)

    volume = Lun.read(disk).volume(name)
    assert volume.size >= volume_size(Image(volume).size, 65536)
    assert has_room(judge(disk, name, chain.flats[chain.leaf], seed))


@pytest.mark.parametrize("seed", range(4))
def test_a_thin_volume_has_an_extent_to_spare(seed):
    """SM grows a disk on a thin SR without its volume, and longer tables need room."""
    chain = random_qcow2(seed, **{**PAIR, "thick": False})

    disk, name, _ = made_one(chain)

    assert judge(disk, name, chain.flats[chain.leaf], seed).free >= 64


def test_data_stays_where_it_is():
    chain = random_qcow2(
        3, **{**PAIR, "clusters": 3000, "bits": 12}, full=True, busy=0.01, zeros=0.0, thick=True, leaks=0
    )

    _, _, prepared = made_one(chain)

    assert prepared.cost.remapped > 10 * prepared.cost.copied
    assert prepared.cost.data_bytes == 4096 * prepared.cost.copied


def test_until_the_commit_free_space_alone_is_written():
    chain = random_qcow2(4)
    disk = chain.disk.copy()
    prepared = planned(disk)

    engine.copy_unseen(disk, prepared)

    assert all(flatten(disk, name) == flat for name, flat in chain.flats.items())
    assert engine.inspect(disk).state == "clean"


@pytest.fixture
def as_sm_makes_it(monkeypatch):
    """The way of a LUN that has no room for the others."""
    every = image.layouts
    monkeypatch.setattr(image, "layouts", lambda *arguments: list(every(*arguments))[-1:])


def test_with_dead_clusters_in_pieces_the_disk_does_not_fit_into_its_volume(as_sm_makes_it, monkeypatch):
    """The negative control: QEMU passes by free clusters that are too few in a row."""
    chain = random_qcow2(1, **TIGHT)
    fill_completely(*made_one(chain)[:2])
    with pytest.raises(Wrong, match="the guest cannot write"):
        fill_completely(*made_one(chain)[:2], is_zeroed=True)
    monkeypatch.setattr(image, "_give_away", lambda *_: None)

    with pytest.raises(Wrong, match="the guest cannot write 16 clusters"):
        fill_completely(*made_one(chain)[:2])


def test_a_planned_image_with_an_entry_that_is_wrong_is_noticed(monkeypatch):
    chain = random_qcow2(1, **PAIR)
    right = image._entries

    def wrong(made):
        found = dict(right(made))
        table = found[min(found)]
        there = [at for at, entry in enumerate(table) if entry]
        table[there[0]], table[there[1]] = table[there[1]], table[there[0]]
        return iter(found.items())

    monkeypatch.setattr(image, "_entries", wrong)

    with pytest.raises(Refused, match="planned image does not check: clusters of table 0 are not where they should be"):
        planned(chain.disk)


@pytest.mark.parametrize("part", ["counts", "second_level"])
def test_what_is_written_is_what_was_verified(part, monkeypatch):
    """Tables are made up once to be verified, and once more to be written."""
    chain = random_qcow2(1, **PAIR)
    disk = chain.disk.copy()
    prepared = planned(disk)
    right = getattr(image.Tables, "_" + part)
    monkeypatch.setattr(image.Tables, "_" + part, lambda *arguments: b"\1" + right(*arguments)[1:])

    with pytest.raises(
        Refused, match="planned image does not check: the bytes to write at byte .* differ from the verified bytes"
    ):
        engine.resignature(disk, prepared)

    assert engine.inspect(disk).state == "clean"
    assert all(flatten(disk, name) == flat for name, flat in chain.flats.items())


def test_a_table_that_changes_after_it_was_read_is_noticed():
    chain = random_qcow2(1, **PAIR)
    disk = chain.disk.copy()
    prepared = planned(disk)
    volume = Lun.read(disk).volume(chain.members[1])
    (part,) = volume.ranges(Image(volume).l1[0] & 0xFFFFFFFF, 8)
    disk.poke(part.offset, b"\1" * 8)

    with pytest.raises(Refused, match=f"changed at byte {part.offset // 65536 * 65536} since it was read"):
        engine.resignature(disk, prepared)


def test_too_few_free_extents_are_refused_with_their_number():
    chain = random_qcow2(
        0, **{**PAIR, "clusters": 59}, full=True, busy=1.0, free=0, thick=True, snapshots=False, leaks=0
    )

    with pytest.raises(Refused, match=r"needs 1 free extents of 4 MiB before its commit, 0 are free"):
        made_one(chain)


def test_more_to_copy_than_a_call_may_is_refused_with_the_sizes():
    """The cluster in which the disk of a parent ends is copied in any case. The cheapest way counts."""
    chain = random_qcow2(0, **{**PAIR, "odd": True, "grown": True, "full": True, "busy": 0.02})
    assert made_one(chain)[2].cost.copied == 31  # all: the extents are half empty
    assert made_one(chain, OneVdiRequest(most_bytes=65536))[2].cost.copied == 1

    with pytest.raises(Refused, match=r"takes 65536 bytes of copying, and a call may copy 65535 here"):
        made_one(chain, OneVdiRequest(most_bytes=65535))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_dead_makes_the_volume_larger(seed):
    """But not by the extents of which half or more is dead: these are copied together."""
    chain = random_qcow2(seed, **{**TIGHT, "zeros": 0.1, "free": 20})

    disk, name, _ = made_one(chain)

    found = judge(disk, name, chain.flats[chain.leaf], seed)
    assert has_room(found)
    assert Lun.read(disk).volume(name).size > volume_size(187 << 16, 65536)


@pytest.mark.parametrize("seed", range(6))
def test_in_a_lun_without_room_for_that_it_is_as_the_storage_manager_makes_it(seed, as_sm_makes_it):
    chain = random_qcow2(seed, **{**TIGHT, "zeros": 0.1})

    disk, name, prepared = made_one(chain)

    judge(disk, name, chain.flats[chain.leaf], seed)
    assert prepared.cost.copied > 0
    assert Lun.read(disk).volume(name).size == volume_size(187 << 16, 65536)


# --- what is refused

IN_TABLE = -1


def spoiled(offset, data, member=1):
    """A chain of two, with other bytes in an image: where IN_TABLE is said, in its first table of the second level."""
    chain = random_qcow2(1, **PAIR)
    volume = Lun.read(chain.disk).volume(chain.members[member])
    at = Image(volume).l1[0] & ~(1 << 63) if offset == IN_TABLE else offset
    disk = chain.disk.copy()
    for part in volume.ranges(at, len(data)):
        disk.poke(part.offset, data[: part.length])
    return disk, volume.name, at


REFUSED = {
    "dirty": (72, struct.pack(">Q", 1), "QCOW2 header at byte 72 of {}: it is marked as dirty"),
    "extended tables": (
        72,
        struct.pack(">Q", 16),
        "byte 72 of {}: it has the incompatible features 0x10 (extended L2 entries)",
    ),
    "another compression": (
        72,
        struct.pack(">Q", 8),
        "byte 72 of {}: it has the incompatible features 0x8 (compression type)",
    ),
    "snapshots of its own": (60, struct.pack(">I", 2), "byte 60 of {}: it has 2 snapshots of its own"),
    "counts of 8 bits": (96, struct.pack(">I", 3), "byte 96 of {}: its counts have 8 bits, not 16"),
    "bitmaps": (112, struct.pack(">I", 0x23852875), "byte 112 of {}: it has bitmaps of changed blocks"),
    "version 2": (4, struct.pack(">I", 2), "byte 4 of {}: its version is 2"),
    "tiny clusters": (20, struct.pack(">I", 9), "byte 20 of {}: its clusters have 512 bytes"),
    "counts behind the end": (48, struct.pack(">Q", 1 << 40), "QCOW2 table of counts at byte 1099511627776 of {}"),
    "a table on the header": (40, struct.pack(">Q", 0), "at byte 0 of {}: its cluster is used twice"),
    "a table that is too small": (36, struct.pack(">I", 0), "its table is too small for its virtual disk"),
    "a table of 4 GiB": (36, struct.pack(">I", 1 << 29), "first level at byte 196608 of {}: it has 4294967296 bytes"),
    "compressed": (
        IN_TABLE,
        struct.pack(">Q", 1 << 62 | 5 << 16),
        "QCOW2 cluster at byte {at} of {}: it is compressed",
    ),
    "reserved bits": (IN_TABLE, struct.pack(">Q", 1 << 58), "QCOW2 cluster at byte {at} of {}: its entry is 0x04"),
    "unaligned": (IN_TABLE, struct.pack(">Q", 1 << 63 | 5 << 16 | 512), "328192 of {}: it does not begin at a cluster"),
    "behind the end": (IN_TABLE, struct.pack(">Q", 1 << 63 | 1 << 40), "{}: it lies behind the end of the volume"),
    "two in one place": (
        -1,
        struct.pack(">Q", 1 << 63 | 2 << 16),
        "131072 of {}: its cluster is used twice",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_by_name_and_place(what):
    offset, data, sentence = REFUSED[what]
    disk, name, at = spoiled(offset, data)
    before = disk.copy()

    with pytest.raises(FormatError) as raised:
        planned(disk)

    assert sentence.format(name, at=at) in str(raised.value)
    assert "Nothing was written" in str(raised.value)
    assert disk == before


def test_a_parent_of_another_format_than_the_image_says_is_refused():
    disk, name, _ = spoiled(112 + 8, b"raw\0\0", member=0)

    with pytest.raises(FormatError, match=f"extension at byte 112 of {name}: it calls its parent a"):
        planned(disk)


def test_alone_such_images_are_no_matter():
    """They are put together with nothing."""
    disk, _, _ = spoiled(72, struct.pack(">Q", 1))

    assert engine.prepare(disk, entropy(0)).cost is None
