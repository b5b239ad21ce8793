# SPDX-License-Identifier: LGPL-2.1-only
"""The bytes of the new image: its head, and what is copied. All of it goes to new extents, before the commit. Pure."""

from array import array
from typing import Dict, Iterator, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import extents_of
from relvmoiscsi.formats.qcow2 import clusters, layout
from relvmoiscsi.formats.qcow2.clusters import ABSENT, ZEROS
from relvmoiscsi.formats.qcow2.layout import COUNT_BYTES, ENTRY_BYTES
from relvmoiscsi.resignature.one_vdi.extents import EXTENT_BYTES
from relvmoiscsi.resignature.one_vdi.qcow2.layout import Layout, kept_bases
from relvmoiscsi.resignature.one_vdi.qcow2.members import EXTENT_SHIFT, Member, place_of
from relvmoiscsi.resignature.one_vdi.way import Places
from relvmoiscsi.resignature.protocol.rebuilt import Copy

PIECE_BYTES = 1 << 20  #: of the head, in a write
_WITHIN = EXTENT_BYTES - 1


class HeadPlaces(NamedTuple):
    """Where in the volume the parts of the head are: bytes from its start."""

    count_table: int
    counts: int
    first_level: int
    second_level: int


def head_places(made: Layout) -> HeadPlaces:
    needed, unit = made.needed, made.unit
    count_table = unit
    counts = count_table + needed.count_table * unit
    first_level = counts + needed.counts * unit
    return HeadPlaces(count_table, counts, first_level, first_level + needed.first_level * unit)


def plain_head(made: Layout, leaf: Member) -> bytes:
    """The header of the new image, HEAD_BYTES long."""
    places = head_places(made)
    at = (places.first_level, places.count_table)
    return clusters.plain_head(leaf.head, made.unit, made.needed, at, leaf.name)


def head_pieces(made: Layout, leaf: Member) -> Iterator[Tuple[int, bytes]]:
    """The head, in pieces and in its order: bytes from the start of the volume, and what is there."""
    tables, used = _tables(made)
    places, unit = head_places(made), made.unit
    yield 0, plain_head(made, leaf).ljust(unit, b"\0")
    table = clusters.word_bytes(range(places.counts, places.first_level, unit))
    yield places.count_table, table.ljust(made.needed.count_table * unit, b"\0")
    counts = bytearray(made.needed.counts * unit)
    counts[COUNT_BYTES - 1 : len(used) * COUNT_BYTES : COUNT_BYTES] = used
    yield from _in_pieces(places.counts, bytes(counts))
    first = [0] * (made.needed.first_level * made.per_table)
    for index, number in enumerate(made.tables):
        first[number] = layout.ENTRY_USED_ONCE | places.second_level + index * unit
    yield from _in_pieces(places.first_level, clusters.word_bytes(first))
    at_once = max(1, PIECE_BYTES // unit)
    for start in range(0, len(made.tables), at_once):
        numbers = made.tables[start : start + at_once]
        data = b"".join(clusters.word_bytes(tables[number]).ljust(unit, b"\0") for number in numbers)
        yield places.second_level + start * unit, data


def _in_pieces(offset: int, data: bytes) -> Iterator[Tuple[int, bytes]]:
    for start in range(0, len(data), PIECE_BYTES):
        yield offset + start, data[start : start + PIECE_BYTES]


def _tables(made: Layout) -> Tuple[Dict[int, "array[int]"], bytearray]:
    """The tables of the second level by their number, and a byte for each used unit in front of the tail."""
    used = bytearray(made.used_units)
    first_copy = made.first_copy
    used[: first_copy + len(made.copied)] = b"\1" * (first_copy + len(made.copied))
    tables = _entries(made)
    for table in tables.values():
        for entry in table:
            if entry:
                used[(entry & layout.ENTRY_PLACE) // made.unit] = 1
    if sum(used) != first_copy + made.block_count:
        raise Refused("The planned image does not check: two clusters have one place.", sm_key="MetadataError")
    for number in made.tables:
        if number not in tables:
            tables[number] = array("Q", [ABSENT]) * min(made.per_table, made.units - number * made.per_table)
    _give_away(made, tables, used)
    return tables, used


def _entries(made: Layout) -> Dict[int, "array[int]"]:
    """The tables with what the images have."""
    once, found = layout.ENTRY_USED_ONCE, {}  # type: int, Dict[int, array[int]]
    bases = {extent: once | base for extent, base in kept_bases(made).items()}
    copies = {copy.number: index for index, copy in enumerate(made.copied)}
    touched = {number // made.per_table for number in copies}
    for table, homes in made.homes.items():
        if table not in touched:
            found[table] = array(
                "Q", [bases[home >> EXTENT_SHIFT] | home & _WITHIN if home > ZEROS else ABSENT for home in homes]
            )
            continue
        found[table] = array("Q", [ABSENT]) * len(homes)
        for at, (number, home) in enumerate(enumerate(homes, table * made.per_table)):
            if number in copies:
                found[table][at] = once | (made.first_copy + copies[number]) * made.unit
            elif home > ZEROS:
                found[table][at] = bases[home >> EXTENT_SHIFT] | home & _WITHIN
    return found


def _give_away(made: Layout, tables: Dict[int, "array[int]"], used: bytearray) -> None:
    """Dead units become those that no image has: zeros, whatever is there."""
    mark, dead = layout.ENTRY_USED_ONCE | layout.ENTRY_ZEROS, used.find(b"\0")
    for number in made.tables:
        table = tables[number]
        for at, entry in enumerate(table) if ABSENT in table else ():
            if dead < 0:
                return
            if entry == ABSENT:
                table[at] = mark | dead * made.unit
                used[dead] = 1
                dead = used.find(b"\0", dead + 1)


def copies(made: Layout, places: Places) -> Iterator[Copy]:
    """The clusters that get a new place."""
    for index, copy in enumerate(made.copied):
        target = (made.first_copy + index) * made.unit
        image, source = place_of(copy.home)
        yield from places.copy_up_to(target, image, source, copy.length, made.unit)


# --- the planned image, read back


def verify_image(made: Layout, new: Member, counts: bytes, places: Places, olds: Sequence[Member]) -> None:
    """Whether an image that was read back says what it was meant to. `counts` are the clusters of its counts.

    Every unit that some image has is where its data is, or will have been copied to; all others are zeros; and all
    that is used has its count. Raises Refused.
    """
    at = _physical(places, [new, *olds])
    targets = {copy.number: (made.first_copy + index) * made.unit for index, copy in enumerate(made.copied)}
    copied: Dict[int, Dict[int, int]] = {}
    for number, target in targets.items():
        copied.setdefault(number // made.per_table, {})[number % made.per_table] = target
    for table in range(-(-made.units // made.per_table)):
        count = min(made.per_table, made.units - table * made.per_table)
        entries, homes = new.tables.get(table, ()), made.homes.get(table, ())
        found = [at[entry >> EXTENT_SHIFT] + (entry & _WITHIN) if entry > ZEROS else 0 for entry in entries[:count]]
        meant = [at[home >> EXTENT_SHIFT] + (home & _WITHIN) if home > ZEROS else 0 for home in homes]
        for index, target in copied.get(table, {}).items():
            meant[index] = at[target >> EXTENT_SHIFT] + (target & _WITHIN)
        if (found or [0] * count) != (meant or [0] * count):
            _refuse(f"clusters of table {table} are not where they should be")
    found_counts = counts[COUNT_BYTES - 1 :: COUNT_BYTES]
    taken = bytes(new.taken).ljust(len(found_counts), b"\0")
    if any(counts[::COUNT_BYTES]) or found_counts != taken[: len(found_counts)] or any(taken[len(found_counts) :]):
        _refuse("its counts are wrong")


def _physical(places: Places, members: Sequence[Member]) -> Dict[int, int]:
    """Where on the device all extents are: of the new volume by their number, of old ones as homes have them."""
    found: Dict[int, int] = {}
    for mark, member in enumerate(members):
        for extent, pe in enumerate(extents_of(member.lv.segments)):
            found[mark << 56 - EXTENT_SHIFT | extent] = places.vg.pe_start + pe * EXTENT_BYTES
    return found


def _refuse(problem: str) -> None:
    raise Refused(f"The planned image does not check: {problem}.", sm_key="MetadataError")


assert ENTRY_BYTES == 8  # the arrays hold numbers of 64 bits
