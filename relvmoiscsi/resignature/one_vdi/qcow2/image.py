# SPDX-License-Identifier: LGPL-2.1-only
"""The bytes of the new image: its head, and what is copied. All of it goes to new extents, before the commit. Pure."""

from array import array
from hashlib import sha256
from typing import Dict, Iterable, Iterator, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import qcow2
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.lvm.vg import extents_of
from relvmoiscsi.formats.qcow2 import COUNT_BYTES, ENTRY_BYTES
from relvmoiscsi.formats.qcow2_clusters import ABSENT, ZEROS
from relvmoiscsi.resignature.one_vdi.compact import Arrays
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


def first_pieces(made: Layout, leaf: Member) -> Iterator[Tuple[int, bytes]]:
    """The head up to its tables of the second level, but for the counts: what a survey reads of it.

    Bytes from the start of the volume, and what is there.
    """
    places, unit = head_places(made), made.unit
    yield 0, plain_head(made, leaf).ljust(unit, b"\0")
    table = clusters.word_bytes(range(places.counts, places.first_level, unit))
    yield places.count_table, table.ljust(made.needed.count_table * unit, b"\0")
    first = array("Q", [0]) * (made.needed.first_level * made.per_table)
    for index, number in enumerate(made.tables):
        first[number] = qcow2.ENTRY_USED_ONCE | places.second_level + index * unit
    yield from _in_pieces(places.first_level, clusters.word_bytes(first))


def _in_pieces(offset: int, data: bytes) -> Iterator[Tuple[int, bytes]]:
    for start in range(0, len(data), PIECE_BYTES):
        yield offset + start, data[start : start + PIECE_BYTES]


class Tables:
    """Counts and tables of the second level: made up piece by piece whenever they are asked for.

    What was read to be verified is what is written: of each such piece the digest is kept.
    """

    def __init__(self, made: Layout) -> None:
        self._made = made
        self._places = head_places(made)
        self._entries, self._used = _tables(made)
        self._verified: Dict[int, bytes] = {}

    def pieces(self) -> Iterator[Tuple[int, bytes]]:
        """Bytes from the start of the volume, and what is there. Raises Refused for others than were verified."""
        for offset in self._starts():
            data = self._piece(offset)
            if self._verified.get(offset) not in (None, sha256(data).digest()):
                _refuse(f"what is to be written at byte {offset} is not what was verified")
            yield offset, data

    def read_piece(self, offset: int) -> Tuple[int, bytes]:
        """Where the piece begins that a byte of the volume lies in, and the piece, to be verified."""
        second, size = self._places.second_level, PIECE_BYTES
        first = self._places.counts
        if offset >= second:
            first, size = second, self._at_once * self._made.unit
        start = first + (offset - first) // size * size
        data = self._piece(start)
        self._verified[start] = sha256(data).digest()
        return start, data

    def counts(self) -> Iterator[bytes]:
        """The counts, in pieces, to be verified."""
        return (self.read_piece(offset)[1] for offset in self._starts() if offset < self._places.first_level)

    def has(self, offset: int) -> bool:
        """Whether a byte of the volume is in any of the pieces."""
        places = self._places
        end = places.second_level + len(self._made.tables) * self._made.unit
        return places.counts <= offset < places.first_level or places.second_level <= offset < end

    def _starts(self) -> Iterator[int]:
        yield from range(self._places.counts, self._places.first_level, PIECE_BYTES)
        for index in range(0, len(self._made.tables), self._at_once):
            yield self._places.second_level + index * self._made.unit

    def _piece(self, offset: int) -> bytes:
        if offset < self._places.first_level:
            return self._counts(offset - self._places.counts)
        return self._second_level((offset - self._places.second_level) // self._made.unit)

    @property
    def _at_once(self) -> int:
        return max(1, PIECE_BYTES // self._made.unit)

    def _counts(self, start: int) -> bytes:
        end = min(start + PIECE_BYTES, self._made.needed.counts * self._made.unit)
        used = self._used[start // COUNT_BYTES : end // COUNT_BYTES]
        found = bytearray(end - start)
        found[COUNT_BYTES - 1 : len(used) * COUNT_BYTES : COUNT_BYTES] = used
        return bytes(found)

    def _second_level(self, start: int) -> bytes:
        made, numbers = self._made, self._made.tables[start : start + self._at_once]
        return b"".join(clusters.word_bytes(self._entries[number]).ljust(made.unit, b"\0") for number in numbers)


def _tables(made: Layout) -> Tuple[Arrays, bytearray]:
    """The tables of the second level by their number, and a byte for each used unit in front of the tail."""
    used = bytearray(made.used_units)
    first_copy = made.first_copy
    used[: first_copy + len(made.copied)] = b"\1" * (first_copy + len(made.copied))
    tables = Arrays()
    for number, entries in _entries(made):
        for entry in entries:
            if entry:
                used[(entry & qcow2.ENTRY_PLACE) // made.unit] = 1
        tables[number] = entries
    if sum(used) != first_copy + made.block_count:
        raise Refused("The planned image does not check: two clusters have one place.", sm_key="MetadataError")
    for number in made.tables:
        if number not in tables:
            tables[number] = array("Q", [ABSENT]) * min(made.per_table, made.units - number * made.per_table)
    _give_away(made, tables, used)
    return tables, used


def _entries(made: Layout) -> Iterator[Tuple[int, "array[int]"]]:
    """The tables with what the images have."""
    once = qcow2.ENTRY_USED_ONCE
    bases = {extent: once | base for extent, base in kept_bases(made).items()}
    copies = {copy.number: index for index, copy in enumerate(made.copied)}
    touched = {number // made.per_table for number in copies}
    for table in made.homes:
        homes = made.homes[table]
        if table not in touched:
            entries = [bases[home >> EXTENT_SHIFT] | home & _WITHIN if home > ZEROS else ABSENT for home in homes]
            yield table, array("Q", entries)
            continue
        found = array("Q", [ABSENT]) * len(homes)
        for at, (number, home) in enumerate(enumerate(homes, table * made.per_table)):
            if number in copies:
                found[at] = once | (made.first_copy + copies[number]) * made.unit
            elif home > ZEROS:
                found[at] = bases[home >> EXTENT_SHIFT] | home & _WITHIN
        yield table, found


def _give_away(made: Layout, tables: Arrays, used: bytearray) -> None:
    """Dead units become those that no image has: zeros, whatever is there."""
    mark, dead = qcow2.ENTRY_USED_ONCE | qcow2.ENTRY_ZEROS, used.find(b"\0")
    for number in made.tables:
        if dead < 0:
            return
        table = tables[number]
        if ABSENT not in table:
            continue
        for at, entry in enumerate(table):
            if entry == ABSENT and dead >= 0:
                table[at] = mark | dead * made.unit
                used[dead] = 1
                dead = used.find(b"\0", dead + 1)
        tables[number] = table


def copies(made: Layout, places: Places) -> Iterator[Copy]:
    """The clusters that get a new place."""
    for index, copy in enumerate(made.copied):
        target = (made.first_copy + index) * made.unit
        image, source = place_of(copy.home)
        yield from places.copy_up_to(target, image, source, copy.length, made.unit)


# --- the planned image, read back


def verify_image(made: Layout, new: Member, counts: Iterable[bytes], places: Places, olds: Sequence[Member]) -> None:
    """Whether an image that was read back says what it was meant to. `counts` are its counts, in pieces.

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
        entries, homes = new.tables.get(table) or (), made.homes.get(table) or ()
        found = [at[entry >> EXTENT_SHIFT] + (entry & _WITHIN) if entry > ZEROS else 0 for entry in entries[:count]]
        meant = [at[home >> EXTENT_SHIFT] + (home & _WITHIN) if home > ZEROS else 0 for home in homes]
        for index, target in copied.get(table, {}).items():
            meant[index] = at[target >> EXTENT_SHIFT] + (target & _WITHIN)
        if (found or [0] * count) != (meant or [0] * count):
            _refuse(f"clusters of table {table} are not where they should be")
    known = 0
    for piece in counts:
        found_counts = piece[COUNT_BYTES - 1 :: COUNT_BYTES]
        taken = bytes(new.taken[known : known + len(found_counts)]).ljust(len(found_counts), b"\0")
        if any(piece[::COUNT_BYTES]) or found_counts != taken:
            _refuse("its counts are wrong")
        known += len(found_counts)
    if any(new.taken[known:]):
        _refuse("its counts end before its clusters")


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
