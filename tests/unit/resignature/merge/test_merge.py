# SPDX-License-Identifier: LGPL-2.1-only
"""A chain becomes one image: what a guest reads stays, all programs can go on with it, and what cannot be is refused.

The readers, tapdisk, QEMU and the storage manager are models that share nothing with the engine (`kit.chains`); real
ones judge in tests/judged/luns.
"""

import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.chains import flatten as flatten_vhd
from kit.chains.cut_one_vdi import new_volume
from kit.chains.judge import check as check_vhd
from kit.chains.libvhd import Vhd, with_sum
from kit.chains.lun import Lun
from kit.chains.qcow2 import Image, check, flatten
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2, volume_size
from kit.cuts import entropy
from kit.examples import examples, seeds
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import FormatError, Refused, RelvmoiscsiError
from relvmoiscsi.resignature.merge import qcow2_image as image
from relvmoiscsi.resignature.merge.vhd_image import strategies

pytestmark = pytest.mark.states(few=1)

ANY = OneVdiRequest()
#: VHDs
VHD = {"bat_entries": 4096, "blocks": 14}
#: two QCOW2 images
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


class Made(NamedTuple):
    """A chain, the LUN with one VDI, the name of its volume, and the plan that led to it."""

    chain: Any
    disk: Any
    name: str
    prepared: Any

    @property
    def size(self):
        return Lun.read(self.disk).volume(self.name).size


def made_one(chain, request=ANY):
    disk = chain.disk.copy()
    prepared = planned(disk, request)
    engine.resignature(disk, prepared)
    return Made(chain, disk, new_volume(disk), prepared)


def is_sound(made):
    """What `check` says of a QCOW2 image, of which a guest reads what it read before."""
    found = check(made.disk, made.name)
    assert found.problems == () and flatten(made.disk, made.name) == made.chain.flats[made.chain.leaf], made.chain.story
    return found


# --- what a guest reads


def nothing_else_is_left(made, found):
    lun = engine.inspect(made.disk).lun
    assert sorted(volume.name.text for volume in lun.volumes) == sorted(["MGT", made.name])
    assert list(lun.records()) == list(lun.disks())
    (record,) = lun.mgt.records
    kind = made.name.split("-")[0].lower()
    assert (record.is_a_snapshot, record.snapshot_of, record.vdi_type) == (False, "", kind)
    assert lun.volume(made.name).parent is None
    assert kind == "vhd" or found.hidden is False


def its_raw_base_is_part_of_it(made, found):
    assert made.prepared.cost.remapped and made.chain.members[-1].startswith("LV-")


def a_parent_ends_inside_of_a_block(made, found):
    """The disk is a strict one: a write that is not in whole blocks of it is a mistake of the program."""
    assert any(copy.zeros for several in made.prepared.plan.unseen.copies for copy in several)


def there_is_room_for_all_that_no_image_has(made, found):
    """Dead clusters are none of it: what the guest writes zeros to loses the place that it was given."""
    assert made.size >= volume_size(Image(Lun.read(made.disk).volume(made.name)).size, 65536)
    assert found.has_room


def there_is_an_extent_to_spare(made, found):
    """SM grows a disk on a thin SR without its volume, and longer tables need room."""
    assert found.free >= 64


def it_is_larger_for_what_is_dead(made, found):
    """But not by the extents of which half or more is dead: these are copied together."""
    assert found.has_room and made.size > volume_size(187 << 16, 65536)


def it_is_as_the_storage_manager_makes_it(made, found):
    assert made.prepared.cost.copied > 0 and made.size == volume_size(187 << 16, 65536)


OF_4096 = {
    **PAIR,
    "depth": 3,
    "clusters": 40,
    "odd": True,
    "grown": True,
    "full": True,
    "busy": 0.3,
    "snapshots": False,
}
#: kind of chain: what chance may not choose, seeds, what more must hold
CHAINS = {
    "VHDs": ({**VHD, "free": 40}, seeds(range(12), 6), nothing_else_is_left),
    "VHDs as SM makes them": ({"free": 40, "blocks": 10}, seeds(range(20, 26), 6), nothing_else_is_left),
    "QCOW2": ({}, range(8), None),
    "QCOW2 with snapshots": ({"snapshots": True}, range(4), nothing_else_is_left),
    "QCOW2 on a raw base": ({"raw": True, "bits": 16, "clusters": 100}, range(4), its_raw_base_is_part_of_it),
    "QCOW2, blocks of 4096, small clusters": ({**OF_4096, "bits": 12}, (6, 9), a_parent_ends_inside_of_a_block),
    "QCOW2, blocks of 4096": ({**OF_4096, "bits": 14}, (12,), a_parent_ends_inside_of_a_block),
    "QCOW2, blocks of 4096, as SM": ({**OF_4096, "bits": 16}, (6, 14), a_parent_ends_inside_of_a_block),
    "QCOW2, thick": (
        {"thick": True, "bits": 16, "mixed": False, "raw": False, "odd": False}, range(6),
        there_is_room_for_all_that_no_image_has,
    ),
    "QCOW2, thin": ({**PAIR, "thick": False}, range(4), there_is_an_extent_to_spare),
    "QCOW2 with dead clusters": ({**TIGHT, "zeros": 0.1, "free": 20}, range(6), it_is_larger_for_what_is_dead),
    "QCOW2 without room": ({**TIGHT, "zeros": 0.1}, range(6), it_is_as_the_storage_manager_makes_it),
}  # fmt: skip


@pytest.fixture
def as_sm_makes_it(monkeypatch):
    """The way of a LUN that has no room for the others."""
    every = image.layouts
    monkeypatch.setattr(image, "layouts", lambda *arguments: list(every(*arguments))[-1:])


@pytest.mark.parametrize("kind, seed", [(kind, seed) for kind, row in CHAINS.items() for seed in row[1]])
def test_a_guest_reads_the_same_and_can_fill_the_disk(kind, seed, request):
    options, _seeds, holds = CHAINS[kind]
    chain = (random_chain if "VHD" in kind else random_qcow2)(seed, **options)
    if "4096" in kind:
        chain.disk.block_size = chain.disk.physical_block_size = 4096
    if "without room" in kind:
        request.getfixturevalue("as_sm_makes_it")

    made = made_one(chain)

    if "VHD" in kind:
        found = check_vhd(made.disk, made.name)
        assert flatten_vhd(made.disk, made.name) == chain.flats[chain.leaf], chain.story
        assert len(chain.members) == 1 or (found.problems == () and found.can_be_filled), found
    else:
        found = is_sound(made)
    if holds:
        holds(made, found)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1000, 1 << 40), st.integers(2, 4), st.booleans(), st.booleans())
def test_any_chain_of_qcow2(seed, depth, mixed, raw):
    chain = random_qcow2(seed, depth=depth, mixed=mixed, raw=raw, bits=12, clusters=600)

    made = made_one(chain)

    is_sound(made)


def test_a_chain_of_thirty():
    chain = random_qcow2(5, depth=30, bits=12, clusters=600, raw=False)

    made = made_one(chain)

    assert made.prepared.cost.images == 30
    assert flatten(made.disk, made.name) == chain.flats[chain.leaf]


def test_data_stays_where_it_is():
    chain = random_qcow2(
        3, **{**PAIR, "clusters": 3000, "bits": 12}, full=True, busy=0.01, zeros=0.0, thick=True, leaks=0
    )

    cost = made_one(chain).prepared.cost

    assert cost.remapped > 10 * cost.copied
    assert cost.data_bytes == 4096 * cost.copied


# --- the controls: a planned image that is wrong is noticed


def test_a_planned_image_with_an_entry_that_is_wrong_is_noticed(monkeypatch):
    right = image._entries

    def wrong(made):
        found = dict(right(made))
        table = found[min(found)]
        there = [at for at, entry in enumerate(table) if entry]
        table[there[0]], table[there[1]] = table[there[1]], table[there[0]]
        return iter(found.items())

    monkeypatch.setattr(image, "_entries", wrong)

    with pytest.raises(Refused, match="planned image does not check: clusters of table 0 are not where they should be"):
        planned(random_qcow2(1, **PAIR).disk)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda counts: b"\1" + counts[1:], "its counts are wrong"),  # of the first cluster 257
        (lambda counts: bytes(2) + counts[2:], "its counts are wrong"),  # of the first cluster none
        (lambda counts: counts[:-2] + b"\0\1", "its counts are wrong"),  # of a cluster behind the volume one
        (lambda counts: counts[:2], "its counts end before its clusters"),
    ],
)
def test_a_planned_image_with_counts_that_are_wrong_is_noticed(change, says, monkeypatch):
    right = image.Tables._piece

    def wrong(tables, offset):
        data = right(tables, offset)
        return change(data) if offset < tables._made.first_level_at else data

    monkeypatch.setattr(image.Tables, "_piece", wrong)

    with pytest.raises(Refused, match="planned image does not check: " + says):
        planned(random_qcow2(1, **PAIR).disk)


@pytest.mark.parametrize("part", ["counts", "second_level"])
def test_what_is_written_is_what_was_verified(part, monkeypatch):
    """Tables are made up once to be verified, and once more to be written."""
    chain = random_qcow2(1, **PAIR)
    disk = chain.disk.copy()
    prepared = planned(disk)
    right = image.Tables._piece

    def wrong(tables, offset):
        data, is_of_counts = right(tables, offset), offset < tables._made.first_level_at
        return b"\1" + data[1:] if is_of_counts == (part == "counts") else data

    monkeypatch.setattr(image.Tables, "_piece", wrong)

    with pytest.raises(Refused, match="does not check: the bytes to write at byte .* differ from the verified bytes"):
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


# --- what is refused

FULL = {**PAIR, "clusters": 59, "full": True, "busy": 1.0, "free": 0, "thick": True, "snapshots": False, "leaks": 0}


@pytest.mark.parametrize(
    "chain, most_bytes, sentence",
    [
        (
            random_chain(3, free=0, depth=3, thick=False, **VHD),
            None,
            r"needs \d+ free extents of 4 MiB before its commit",
        ),
        (random_qcow2(0, **FULL), None, r"needs 1 free extents of 4 MiB before its commit, 0 are free"),
        (random_chain(38, free=40, **VHD), 1 << 20, r"takes [0-9]+ bytes of copying, and a call may copy 1048576 here"),
    ],
    ids=["extents for VHDs", "extents for QCOW2", "copies"],
)
def test_what_there_is_no_room_for_or_takes_too_long_is_refused_with_its_number(chain, most_bytes, sentence):
    with pytest.raises(Refused, match=sentence):
        planned(chain.disk, OneVdiRequest(most_bytes=most_bytes))


def test_more_to_copy_than_a_call_may_is_refused_where_the_cheapest_way_is_too_much():
    """The cluster in which the disk of a parent ends is copied in any case."""
    disk = random_qcow2(0, **{**PAIR, "odd": True, "grown": True, "full": True, "busy": 0.02}).disk
    assert planned(disk).cost.copied == 31  # all: the extents are half empty
    assert planned(disk, OneVdiRequest(most_bytes=65536)).cost.copied == 1

    with pytest.raises(Refused, match=r"takes 65536 bytes of copying, and a call may copy 65535 here"):
        planned(disk, OneVdiRequest(most_bytes=65535))


IN_TABLE = -1
WRITTEN = 1 << 63


def spoiled(offset, form, value, member=1):
    """A chain of two, with other bytes in an image: where IN_TABLE is said, in its first table of the second level."""
    chain = random_qcow2(1, **PAIR)
    volume = Lun.read(chain.disk).volume(chain.members[member])
    at = Image(volume).l1[0] & ~WRITTEN if offset == IN_TABLE else offset
    data, disk = struct.pack(form, value), chain.disk.copy()
    for part in volume.ranges(at, len(data)):
        disk.poke(part.offset, data[: part.length])
    return disk, volume.name, at


@pytest.mark.parametrize(
    "offset, form, value, sentence",
    [
        (72, ">Q", 1, "QCOW2 header at byte 72 of {}: it is marked as dirty"),
        (72, ">Q", 16, "byte 72 of {}: it has the incompatible features 0x10 (extended L2 entries)"),
        (60, ">I", 2, "byte 60 of {}: it has 2 snapshots of its own"),
        (96, ">I", 3, "byte 96 of {}: its counts have 8 bits, not 16"),
        (112, ">I", 0x23852875, "byte 112 of {}: it has bitmaps of changed blocks"),
        (4, ">I", 2, "byte 4 of {}: its version is 2"),
        (20, ">I", 9, "byte 20 of {}: its clusters have 512 bytes"),
        (48, ">Q", 1 << 40, "QCOW2 table of counts at byte 1099511627776 of {}"),
        (40, ">Q", 0, "at byte 0 of {}: its cluster is used twice"),
        (36, ">I", 0, "its table is too small for its virtual disk"),
        (36, ">I", 1 << 29, "first level at byte 196608 of {}: it has 4294967296 bytes there"),
        (IN_TABLE, ">Q", 1 << 62 | 5 << 16, "QCOW2 cluster at byte {at} of {}: it is compressed"),
        (IN_TABLE, ">Q", 1 << 58, "QCOW2 cluster at byte {at} of {}: its entry is 0x04"),
        (IN_TABLE, ">Q", WRITTEN | 5 << 16 | 512, "328192 of {}: it does not begin at a cluster"),
        (IN_TABLE, ">Q", WRITTEN | 1 << 40, "{}: it lies behind the end of the volume"),
        (IN_TABLE, ">Q", WRITTEN | 2 << 16, "131072 of {}: its cluster is used twice"),
    ],
)
def test_what_is_refused_by_name_and_place(offset, form, value, sentence):
    disk, name, at = spoiled(offset, form, value)
    before = disk.copy()

    with pytest.raises(FormatError) as raised:
        planned(disk)

    assert sentence.format(name, at=at) in str(raised.value)
    assert "Nothing was written" in str(raised.value)
    assert disk == before
    # alone such images are no matter: they are put together with nothing
    assert offset not in (72, 60) or engine.prepare(disk, entropy(0)).cost is None


def footer_of(at, data, copy=True, end=True):
    """Other bytes in both footers, or in one."""

    def change(vhd):
        for place in copy * [0] + end * [vhd.volume.size - 512]:
            footer = vhd.volume.read(place, 512)
            vhd.volume.write(place, with_sum(footer[:at] + data + footer[at + len(data) :], 64))

    return change


def header_of(at, number):
    def change(vhd):
        header = vhd.volume.read(512, 1024)
        vhd.volume.write(512, with_sum(header[:at] + struct.pack(">I", number) + header[at + 4 :], 36))

    return change


def block_at(place):
    """A block in another place; `place` gets the first sector of another block, and returns this block's."""

    def change(vhd):
        first, second = sorted(vhd.bat, key=vhd.bat.get)[:2]
        vhd.set_entry(second, place(vhd, vhd.bat[first]))

    return change


def batmap_at(offset):
    """The batmap in another place, with the checksum of the bytes there."""

    def change(vhd):
        data = vhd.volume.read(offset, 512)
        head = vhd.batmap_header[:8] + struct.pack(">Q", offset) + vhd.batmap_header[16:24]
        vhd.volume.write(vhd.batmap_header_at, head + struct.pack(">I", ~sum(data) & 0xFFFFFFFF))

    return change


def tables_at(offset):
    """The block table and the batmap's header behind blocks; the batmap stays in front."""

    def change(vhd):
        length = vhd.batmap_header_at + 512 - vhd.table_at
        vhd.volume.write(offset, vhd.volume.read(vhd.table_at, length))
        header = vhd.volume.read(512, 1024)
        vhd.volume.write(512, with_sum(header[:16] + struct.pack(">Q", offset) + header[24:], 36))

    return change


@pytest.mark.parametrize(
    "change, says",
    [
        (footer_of(28, b"qemu"), '{} was made by "qemu", version 0x00010003, not by the storage manager'),
        (footer_of(28, b"qemu", copy=False), '{} was made by "qemu", version 0x00010003, not by the storage manager'),
        (footer_of(32, b"\0\0\0\1"), '{} was made by "tap", version 0x00000001, not by the storage manager'),
        (header_of(32, 1 << 20), "{} has blocks of 1048576 bytes, not of 2 MiB"),
        (header_of(28, 1), "VHD header at byte 0 of {}: its block table is too small for its virtual disk"),
        (block_at(lambda _vhd, _first: 3), "VHD block at byte 1536 of {}: it does not lie between"),
        (block_at(lambda vhd, _first: vhd.volume.size // 512 - 4096), "of {}: it does not lie between"),
        (block_at(lambda vhd, _first: vhd.volume.size // 512 - 4097), "of {}: it does not lie between"),
        (batmap_at(1536), "VHD block table at byte 1536 of {}: it overlaps the batmap, which ends at 2048"),
        (batmap_at(1 << 40), "VHD batmap at byte 1099511627776 of {}: it ends at 1099511628288 of"),
        (tables_at(8 << 20), "of {}: it does not lie between the headers and the last sector"),
        (tables_at((16 << 20) - 512), "VHD header at byte 0 of {}: its headers end at 16793600, and those of the"),
        (block_at(lambda _vhd, first: first + 4096), "of {}: it overlaps another block"),
    ],
)
def test_a_vhd_that_tapdisk_has_not_made_is_refused_by_name_and_place(change, says):
    chain = random_chain(5, **VHD, depth=2, free=40, odd=False)
    lun = Lun.read(chain.disk.copy())
    vhd = Vhd(lun.volume(chain.members[1]))
    change(vhd)
    before = lun.disk.copy()

    with pytest.raises(RelvmoiscsiError) as raised:
        planned(lun.disk)

    assert says.format(vhd.volume.name) in str(raised.value) and "Nothing was written" in str(raised.value)
    assert lun.disk == before


@pytest.mark.parametrize("change", [tables_at(12 << 20), batmap_at(1536)])
def test_a_leaf_with_live_tables_where_its_blocks_should_be_is_refused(change):
    """Its extents behind its last block would count as free, and the run would write to them before the commit."""
    chain = random_chain(6, **VHD, depth=2, free=40, odd=False)
    lun = Lun.read(chain.disk.copy())
    change(Vhd(lun.volume(chain.members[0])))

    with pytest.raises(FormatError, match="does not lie between|it overlaps"):
        planned(lun.disk)


def spoil_batmap(vhd):
    """All bits set, and the checksum of other bits: a merge by the storage manager that was cut."""
    vhd.volume.write(vhd.batmap_at, b"\xff" * 512)


def test_a_parent_with_a_wrong_batmap_is_read_by_its_bitmaps_as_by_tapdisk():
    """tapdisk needs the batmap only of the image that it writes."""
    chain = random_chain(5, **VHD, depth=2, free=40, odd=False)
    lun = Lun.read(chain.disk.copy())
    parent, leaf = (Vhd(lun.volume(name)) for name in (chain.members[1], chain.members[0]))
    assert any(not parent.is_full(block) for block in parent.bat), "chance has changed"
    spoil_batmap(parent)

    disk = lun.disk.copy()
    engine.resignature(disk, planned(disk))

    assert flatten_vhd(disk, new_volume(disk)) == chain.flats[chain.leaf]
    spoil_batmap(leaf)
    with pytest.raises(FormatError, match="VHD batmap at byte .*: its checksum is"):
        planned(lun.disk)


def test_the_footer_at_the_end_says_who_made_an_image():
    """libvhd reads the copy only where the end has no footer."""
    chain = random_chain(5, **VHD, depth=2, free=40, odd=False)
    lun = Lun.read(chain.disk.copy())
    footer_of(28, b"qemu", end=False)(Vhd(lun.volume(chain.members[1])))

    engine.resignature(lun.disk, planned(lun.disk))

    assert flatten_vhd(lun.disk, new_volume(lun.disk)) == chain.flats[chain.leaf]


def of_large_blocks(lun, _chain):
    lun.disk.block_size = lun.disk.physical_block_size = 4096


def of_another_program(lun, chain):
    footer_of(28, b"qemu")(Vhd(lun.volume(chain.members[1])))


@pytest.mark.parametrize(
    "change, says", [(of_large_blocks, "has blocks of 4096 bytes"), (of_another_program, "was made by")]
)
def test_a_chain_that_no_strategy_merges_is_refused_with_the_way_to_keep_all_vdis(change, says):
    chain = random_chain(5, **VHD, depth=2, free=40, odd=False)
    lun = Lun.read(chain.disk.copy())
    change(lun, chain)

    with pytest.raises(Refused, match=f"{says}.*With all its VDIs .`vdis=all`. the clone can be resignatured"):
        planned(lun.disk)


def test_extents_that_begin_in_the_middle_of_a_unit_are_refused_by_their_place():
    disk = random_chain(5, **VHD, depth=2, free=40, odd=False).disk
    lun = engine.inspect(disk).lun
    moved = lun._replace(vg=lun.vg._replace(pe_start=lun.vg.pe_start + 512))

    with pytest.raises(Refused, match=f"begin at byte {moved.vg.pe_start}, which is no multiple of 4096"):
        next(strategies(disk, moved, None, 0))


def test_a_parent_of_another_format_than_the_image_says_is_refused():
    disk, name, _ = spoiled(112 + 8, "5s", b"raw\0\0", member=0)

    with pytest.raises(FormatError, match=f"QCOW2 backing file at byte .* of {name}: QEMU opens its parent as"):
        planned(disk)
