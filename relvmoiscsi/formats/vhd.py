# SPDX-License-Identifier: LGPL-2.1-only
"""The VHD format: verify an image in a logical volume, and say which bytes of the image a new identity changes.

    0             copy of the footer
    512           dynamic header: parent id, parent name, parent locators
    table_offset  block allocation table, batmap, locator texts, blocks
    end - 512     footer

All integers are big-endian. Sources: Microsoft, Virtual Hard Disk Image Format Specification; blktap include/vhd.h.

A dynamic VHD holds neither an SR UUID nor a VDI UUID. A differencing VHD names its parent up to four times: in the
dynamic header and in the texts of the locators. SM follows the header, tapdisk follows the locators, so all must name
the same parent. When a reparenting was cut, header and locators name different parents. `resignature.reading` reads the
parents and decides which name is right.

The last sector counts as a footer only while it is valid. tapdisk kills the footer (512 times 0xC7) when tapdisk opens
a VHD for writing, and restores the footer at a clean close. While the footer is killed, the copy at the start of the
volume counts, here and for libvhd. Source: blktap drivers/block-vhd.c (vhd_kill_footer), vhd/lib/libvhd.c
(vhd_read_footer).
"""

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar
from zlib import adler32

from relvmoiscsi.device import SECTOR, Range, align_up
from relvmoiscsi.errors import BadChecksum, FormatError, Malformed, Place, Unsupported
from relvmoiscsi.formats.naming import PARENT_PREFIX, ParentName, parse_parent_name, rename_parent
from relvmoiscsi.formats.ondisk import Change, Field, Record, be32, be64, expect_magic, raw, u8
from relvmoiscsi.wording import said

# fmt: off
FOOTER_COOKIE   = b"conectix"
POISONED_COOKIE = b"v_poison"      #: the cookie of a footer that vhd-util has disabled while vhd-util resizes the VHD
KILLED_FOOTER   = b"\xc7" * 512    #: the last sector while tapdisk has the VHD open for writing
HEADER_COOKIE   = b"cxsparse"
HEADER_OFFSET   = 512
HEADER_KIND     = "VHD header"     #: `kind` of a Change
FOOTER_KIND     = "VHD footer"
VERSION         = 0x00010000
TYPE_DYNAMIC    = 3
TYPE_DIFFERENCING = 4
TYPE_NAMES      = {2: "fixed", TYPE_DYNAMIC: "dynamic", TYPE_DIFFERENCING: "differencing"}
LOCATOR_NONE    = 0
LOCATOR_MACX    = 0x4D616358       #: "MacX": a file URL, UTF-8
LOCATOR_W2KU    = 0x57326B75       #: "W2ku": absolute path, UTF-16LE
LOCATOR_W2RU    = 0x57327275       #: "W2ru": relative path, UTF-16LE
LOCATOR_CODECS  = {LOCATOR_MACX: "utf-8", LOCATOR_W2KU: "utf-16-le", LOCATOR_W2RU: "utf-16-le"}
NAME_CODEC      = "utf-16-be"      #: of DynamicHeader.parent_name
BATMAP_COOKIE   = b"tdbatmap"
BATMAP_VERSIONS = (0x00010001, 0x00010002)   #: the checksum of version 1.1 adds signed bytes
#: versions of CREATOR that do not update the checksum when they set the hidden byte (libvhd before 1.2)
OLD_CREATORS    = (0x00000001, 0x00010001)
CREATOR         = b"tap"           #: start of `creator_app` of an image that blktap's tools have made
NO_OFFSET       = (1 << 64) - 1    #: DynamicHeader.data_offset
MAX_BLOCK_BYTES = 2 << 20          #: tapdisk reads no larger blocks


class SealedRecord(Record, size=0):
    """What footers and headers have: a cookie, a version, and a checksum of the other bytes."""

    cookie: "Field[bytes]"
    version: "Field[int]"
    checksum: "Field[int]"
    COOKIE = b""


class Footer(SealedRecord, size=512):
    """The footer at the end of the volume, and the copy of the footer at the start of the volume."""

    COOKIE = FOOTER_COOKIE

    cookie          = raw(0, 8)
    features        = be32(8)
    version         = be32(12)
    data_offset     = be64(16)     #: bytes from the start of the volume to the dynamic header
    timestamp       = be32(24)     #: seconds since 2000-01-01 UTC
    creator_app     = raw(28, 4)
    creator_version = be32(32)
    creator_os      = be32(36)
    original_size   = be64(40)     #: bytes
    current_size    = be64(48)     #: bytes, the size of the virtual disk
    geometry        = be32(56)
    type            = be32(60)
    checksum        = be32(64)     #: one's complement of the sum of the other bytes
    uuid            = raw(68, 16)  #: of the VHD; not the VDI's UUID
    saved_state     = u8(84)
    hidden          = u8(85)       #: 1 for a VHD that SM keeps only as a parent
    reserved        = raw(86, 426)


class DynamicHeader(SealedRecord, size=1024):
    """The place of the block table, and the name of the parent."""

    COOKIE = HEADER_COOKIE

    cookie           = raw(0, 8)
    data_offset      = be64(8)         #: all ones
    table_offset     = be64(16)        #: bytes from the start of the volume to the block allocation table
    version          = be32(24)
    max_bat_entries  = be32(28)
    block_size       = be32(32)        #: bytes
    checksum         = be32(36)        #: one's complement of the sum of the other bytes
    parent_uuid      = raw(40, 16)     #: footer uuid of the parent; zero for a raw parent
    parent_timestamp = be32(56)
    reserved1        = be32(60)
    parent_name      = raw(64, 512)    #: UTF-16BE, zero padded
    locators         = raw(576, 192)   #: eight LocatorEntry
    reserved2        = raw(768, 256)


class LocatorEntry(Record, size=24):
    """The place of another spelling of the parent's name."""

    code        = be32(0)
    data_space  = be32(4)      #: room for the text, in bytes of whole sectors; a value below 512 is in sectors
    data_length = be32(8)      #: bytes of text
    reserved    = be32(12)
    data_offset = be64(16)     #: bytes from the start of the volume


class BatmapHeader(Record, size=512):
    """In the sector behind the block allocation table. An extension of blktap, not a part of Microsoft's format."""

    cookie         = raw(0, 8)
    batmap_offset  = be64(8)       #: bytes from the start of the volume
    batmap_sectors = be32(16)
    version        = be32(20)
    checksum       = be32(24)      #: one's complement of the sum of the batmap's bytes
    marker         = raw(28, 1)
    keyhash        = raw(29, 65)   #: of an encrypted image: a flag, a nonce, and a hash of nonce and key
    reserved       = raw(94, 418)
# fmt: on


#: bytes at the start of a volume: the footer's copy and the header; the footer is its last Footer.SIZE bytes
HEAD_BYTES = HEADER_OFFSET + DynamicHeader.SIZE

#: fields that are equal in both footers of a VHD. Other fields differ after a cut between the two footer writes of SM:
#: a resize of the VHD, or a change of the hidden flag.
_SAME_IN_BOTH_FOOTERS: Tuple[Field[Any], ...] = (Footer.uuid, Footer.type, Footer.data_offset)

#: the fields of a header that `_locators` depends on
_FIELDS_OF_LOCATORS: Tuple[Field[Any], ...] = (
    DynamicHeader.locators,
    DynamicHeader.table_offset,
    DynamicHeader.max_bat_entries,
)

#: entry of the block allocation table: the image does not have the block
UNUSED_ENTRY = b"\xff\xff\xff\xff"
#: of 2 MiB, for twice 2 TiB, which is the end of what entries can address: the writer of a LUN claims the number
_MOST_BLOCKS = 1 << 21

_NO_LOCATOR = LocatorEntry.code.encode(LOCATOR_NONE)  #: the start of an unused entry
Sealed = TypeVar("Sealed", bound=SealedRecord)

#: the structures with a checksum, by `kind` of a Change
STRUCTURES: Dict[str, Type[SealedRecord]] = {HEADER_KIND: DynamicHeader, FOOTER_KIND: Footer}


class Vhd(NamedTuple):
    """A verified VHD, with both footers as stored: SM may have been cut between the writes of the two footers."""

    footer: Footer  #: the copy at the start of the volume
    end_footer: Optional[Footer]  #: in the last sector; None when the last sector holds no valid footer of this VHD
    stale_end: Optional[Footer]  #: a valid footer of another VHD in the last sector
    killed: bool  #: the last sector is KILLED_FOOTER: tapdisk has, or had, the VHD open for writing
    header: DynamicHeader
    locators: Tuple[LocatorEntry, ...]  #: those in use
    parent: Optional[ParentName]  #: as the header names it; None for a dynamic VHD

    @property
    def hidden(self) -> bool:
        """The hidden flag in the copy of the footer: SM's scan reads only the copy."""
        return bool(self.footer.hidden)

    @property
    def read_footer(self) -> Footer:
        """The footer that libvhd and tapdisk read."""
        return self.end_footer or self.footer

    @property
    def virtual_size(self) -> int:
        """The size in bytes that tapdisk reads."""
        return self.read_footer.current_size

    def block_table(self) -> Range:
        """The range, in the volume, of the block table's entries that the virtual disk uses."""
        blocks = -(-self.virtual_size // self.header.block_size)
        return Range(self.header.table_offset, 4 * min(blocks, self.header.max_bat_entries))

    def with_hidden(self, hidden: bool) -> "Vhd":
        """The VHD with this hidden flag in each valid footer."""
        footer, end = self.footer, self.end_footer
        if footer.hidden != hidden:
            footer = sealed(footer.replace(hidden=int(hidden)))
        if end is not None and end.hidden != hidden:
            end = sealed(end.replace(hidden=int(hidden)))
        return self._replace(footer=footer, end_footer=end)


def read_vhd(
    footer_copy: bytes,
    header_bytes: bytes,
    last_sector: bytes,
    volume: str,
    volume_size: int,
    like: Optional[Vhd] = None,
) -> Vhd:
    """Verify the copy of the footer, the header, and the footer in the last sector. Raises FormatError.

    `like` was read from this volume, or from another volume of the same size: bytes equal to those of `like` are not
    verified again. `located_parents` reads the texts of the locators.
    """
    start = Place(volume, 0)
    like_last = b""  # the bytes of the last sector of `like`, where `like` has these bytes
    if like is not None:
        like_end = like.end_footer or like.stale_end
        like_last = bytes(like_end) if like_end is not None else KILLED_FOOTER if like.killed else b""
    if like is not None and footer_copy == bytes(like.footer) and last_sector == like_last:
        if header_bytes == bytes(like.header):
            return like
        footer, end_footer, stale_end, killed = like[:4]
    else:
        footer, end_footer, stale_end, killed = _footers(footer_copy, last_sector, start, volume_size)
    header_place = start.plus(HEADER_OFFSET)
    header = DynamicHeader.at(header_bytes, 0, header_place)
    _verify("VHD header", header, header_place)
    if header.reserved1 or header.reserved2.strip(b"\0"):
        raise Unsupported("VHD header", header_place, "its reserved bytes are in use")
    if header.data_offset != NO_OFFSET:
        problem = f"tapdisk does not read it: its data_offset is 0x{header.data_offset:x}"
        raise Malformed("VHD header", header_place.plus(DynamicHeader.data_offset.offset), problem)
    if not 0 < header.block_size <= MAX_BLOCK_BYTES or header.block_size & (header.block_size - 1):
        problem = f"tapdisk does not read it: its blocks have {header.block_size} bytes"
        raise Malformed("VHD header", header_place.plus(DynamicHeader.block_size.offset), problem)
    if header.max_bat_entries > _MOST_BLOCKS:
        problem = f"its block table has {header.max_bat_entries} entries, and the largest VHD needs {_MOST_BLOCKS}"
        raise Unsupported("VHD header", header_place, problem)
    if footer.type == TYPE_DYNAMIC:
        for field in (DynamicHeader.parent_uuid, DynamicHeader.parent_name, DynamicHeader.locators):
            if getattr(header, field.name).strip(b"\0"):
                problem = f"it has a {field.name}, and the footer says that there is no parent"
                raise Malformed("VHD header", header_place.plus(field.offset), problem)
        verify_parts(header, volume, volume_size)
        return Vhd(footer, end_footer, stale_end, killed, header, (), None)
    if like is not None and all(field.stored(header) == field.stored(like.header) for field in _FIELDS_OF_LOCATORS):
        locators = like.locators
    else:
        locators = _locators(header, volume)
        verify_parts(header, volume, volume_size)
    what, where = "VHD parent name", header_place.plus(DynamicHeader.parent_name.offset)
    parent = _parent_of(_decoded(header.parent_name, NAME_CODEC, what, where).split("\0", 1)[0], what, where)
    return Vhd(footer, end_footer, stale_end, killed, header, locators, parent)


def is_unwritten(first_sector: bytes, last_sector: bytes) -> bool:
    """Whether the sectors in which libvhd looks for a footer have no cookie of a footer: no program finds a VHD."""
    sectors = first_sector + last_sector
    return FOOTER_COOKIE not in sectors and POISONED_COOKIE not in sectors


def _footers(
    footer_copy: bytes, last_sector: bytes, start: Place, volume_size: int
) -> Tuple[Footer, Optional[Footer], Optional[Footer], bool]:
    """`footer`, `end_footer`, `stale_end` and `killed` of a `Vhd`."""
    footer = Footer.at(footer_copy, 0, start)
    _verify("VHD footer copy", footer, start)
    end_footer: Optional[Footer] = footer
    stale_end: Optional[Footer] = None
    if last_sector != footer_copy:
        end = Footer.at(last_sector, 0, start)
        if is_whole(end) or end.cookie == POISONED_COOKIE:
            _verify("VHD footer", end, start.plus(volume_size - Footer.SIZE))
            is_own = all(field.stored(footer) == field.stored(end) for field in _SAME_IN_BOTH_FOOTERS)
            end_footer, stale_end = (end, None) if is_own else (None, end)
        else:
            end_footer = None
    if footer.type not in (TYPE_DYNAMIC, TYPE_DIFFERENCING):
        kind = TYPE_NAMES.get(footer.type, str(footer.type))
        raise Unsupported("VHD footer", start.plus(Footer.type.offset), f"its disk type is {kind}")
    if footer.data_offset != HEADER_OFFSET:
        problem = f"it puts the dynamic header at {footer.data_offset}"
        raise Unsupported("VHD footer", start.plus(Footer.data_offset.offset), problem)
    return footer, end_footer, stale_end, last_sector == KILLED_FOOTER


def _verify(what: str, record: SealedRecord, where: Place) -> None:
    """Raises FormatError for a wrong cookie, checksum or version, in the order of libvhd."""
    if record.cookie == POISONED_COOKIE:
        raise Unsupported(what, where, "a resize of the VHD was cut, its footer is disabled")
    expect_magic(what, where, record.cookie, record.COOKIE)
    if not is_whole(record):
        raise BadChecksum(what, where, record.checksum, sealed(record).checksum)
    if record.version != VERSION:
        raise Unsupported(what, where.plus(type(record).version.offset), f"its version is 0x{record.version:08x}")


def is_whole(record: SealedRecord) -> bool:
    """Whether a footer or a header has its cookie and a correct checksum."""
    if record.cookie != record.COOKIE:
        return False
    if record.checksum == sealed(record).checksum:
        return True
    if not isinstance(record, Footer) or not record.hidden or not record.creator_app.startswith(CREATOR):
        return False
    return record.creator_version in OLD_CREATORS and record.checksum == sealed(record.replace(hidden=0)).checksum


def sealed(record: Sealed) -> Sealed:
    """A footer or a header with the checksum of its content: of all bytes but the checksum.

    Source: Microsoft, Virtual Hard Disk Image Format Specification, "Checksum"; blktap vhd/lib/libvhd.c.
    """
    total = byte_sum(bytes(record)) - sum(type(record).checksum.stored(record))
    return record.replace(checksum=~total & 0xFFFFFFFF)


def byte_sum(data: bytes) -> int:
    """sum(data), in a fifth of the time: the lower half of an Adler-32 is the sum of the bytes modulo 65521."""
    return sum([adler32(data[at : at + 256], 0) & 0xFFFF for at in range(0, len(data), 256)])


def used_locators(header: DynamicHeader) -> Iterator[Tuple[int, LocatorEntry]]:
    """The parent locators in use, and their places in the field `locators`, in bytes."""
    entries = header.locators
    for at in range(0, len(entries), LocatorEntry.SIZE):
        if not entries.startswith(_NO_LOCATOR, at):
            yield at, LocatorEntry.at(entries, at)


def _locators(header: DynamicHeader, volume: str) -> Tuple[LocatorEntry, ...]:
    found: List[LocatorEntry] = []
    for at, entry in used_locators(header):
        what = f"VHD parent locator {at // LocatorEntry.SIZE}"
        where = Place(volume, HEADER_OFFSET + DynamicHeader.locators.offset + at)
        if entry.code not in LOCATOR_CODECS:
            raise Unsupported(what, where, f"its code is 0x{entry.code:08x}")
        space, length = locator_space(entry), entry.data_length
        if not 0 < length <= space or length > 4096:
            raise Malformed(what, where, f"its text has {length} bytes, the room for the text has {space}")
        found.append(entry)
    return tuple(found)


def locator_space(entry: LocatorEntry) -> int:
    """The bytes of room for the text of a locator. Source: blktap include/libvhd.h, vhd_parent_locator_size."""
    space = entry.data_space
    if space < SECTOR:
        return space * SECTOR
    return 0 if space % SECTOR else space


# --- the parts of an image beside its blocks


class Part(NamedTuple):
    """A part of an image, and its place in the volume."""

    range: Range
    name: str


def batmap_header_at(header: DynamicHeader) -> int:
    """The bytes from the start of the volume to the batmap header of an image with this header.

    Source: libvhd, vhd_batmap_header_offset.
    """
    return header.table_offset + align_up(4 * header.max_bat_entries, SECTOR)


def may_have_batmap(footer: Footer) -> bool:
    """Whether libvhd looks for a batmap in an image with this footer. Source: libvhd, vhd_has_batmap."""
    return footer.creator_app.startswith(CREATOR) and footer.creator_version > OLD_CREATORS[0]


def read_batmap_header(data: bytes, where: Place) -> BatmapHeader:
    """The header of a batmap. Raises FormatError where libvhd finds no batmap."""
    header = BatmapHeader.at(data, 0, where)
    expect_magic("VHD batmap", where, header.cookie, BATMAP_COOKIE)
    if header.version > BATMAP_VERSIONS[-1]:
        raise Unsupported("VHD batmap", where, f"its version is 0x{header.version:08x}")
    return header


def header_parts(header: DynamicHeader, batmap: Optional[BatmapHeader] = None) -> List[Part]:
    """The parts of an image with this header, without its blocks and without the footer in the last sector.

    `batmap` is None for an image without a batmap. Source: libvhd, vhd_end_of_headers.
    """
    table_end = batmap_header_at(header)
    found = [
        Part(Range(0, Footer.SIZE), "footer copy"),
        Part(Range(HEADER_OFFSET, DynamicHeader.SIZE), "header"),
        Part(Range(header.table_offset, table_end - header.table_offset), "block table"),
    ]
    if batmap is not None:
        found.append(Part(Range(table_end, BatmapHeader.SIZE), "batmap header"))
        found.append(Part(Range(batmap.batmap_offset, batmap.batmap_sectors * SECTOR), "batmap"))
    for at, entry in used_locators(header):
        name = f"parent locator {at // LocatorEntry.SIZE}"
        found.append(Part(Range(entry.data_offset, locator_space(entry)), name))
    return found


def verify_parts(header: DynamicHeader, volume: str, volume_size: int, batmap: Optional[BatmapHeader] = None) -> None:
    """Raises Malformed unless the parts of an image, the last sector included, lie apart and in the volume.

    A program that writes the volume chooses the places, and each checksum is correct. A write to one part would
    destroy another part.
    """
    end = Part(Range(volume_size - Footer.SIZE, Footer.SIZE), "footer")
    before: Optional[Part] = None
    for part in sorted([*header_parts(header, batmap), end]):
        what, where = f"VHD {part.name}", Place(volume, part.range.offset)
        if part.range.end > volume_size:
            raise Malformed(what, where, f"it ends at {part.range.end} of {volume_size}")
        if before is not None and part.range.offset < before.range.end:
            raise Malformed(what, where, f"it overlaps the {before.name}, which ends at {before.range.end}")
        before = part


def verify_batmap_place(image: Vhd, sector: bytes, volume: str, volume_size: int) -> None:
    """Raises Malformed unless the batmap lies apart from the other parts. `sector` is behind the block table.

    Without a readable batmap header the image has no batmap for libvhd, and no error here.
    """
    where = Place(volume, batmap_header_at(image.header))
    try:
        batmap = read_batmap_header(sector, where)
    except FormatError:
        return
    verify_parts(image.header, volume, volume_size, batmap)


# --- the parent's name


def _decoded(data: bytes, codec: str, what: str, where: Place) -> str:
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        raise Malformed(what, where, f"it is not {codec.upper()}: {error.reason}") from error


def _parent_of(text: str, what: str, where: Place) -> ParentName:
    parent = parse_parent_name(PARENT_PREFIX.sub("", text, 1))
    if parent is None:
        raise Unsupported(what, where, f"{said(text)} names no volume of an SR")
    return parent


def located_parents(vhd: Vhd, texts: Sequence[bytes], volume: str) -> List[ParentName]:
    """The parents that the locators name, in the order in which tapdisk tries the locators.

    `texts` are the texts of `vhd.locators`, in the same order. The parents differ only when a reparenting was cut.
    Raises FormatError, also for a differencing VHD without a locator, which tapdisk cannot open.
    """
    if vhd.parent is not None and not vhd.locators:
        raise Malformed("VHD header", Place(volume, HEADER_OFFSET), "it has a parent and no parent locator")
    found = []
    for locator, data in zip(vhd.locators, texts):
        what, where = "VHD parent locator text", Place(volume, locator.data_offset)
        # a cut reparenting may leave the length of the old, longer text in the header: then zeros follow the text
        text = _decoded(data, LOCATOR_CODECS[locator.code], what, where).rstrip("\0")
        found.append(_parent_of(text, what, where))
    return found


def changes(
    before: Vhd,
    after: Vhd,
    texts: Sequence[bytes],
    parent: Optional[ParentName],
    uuids: Mapping[str, str],
    volume: str,
    volume_size: int,
) -> List[Change]:
    """The bytes that change: footers that SM's unfinished work changes; the header and the locators' texts.

    Header and `texts` then name `parent` under new UUIDs. `before` is the VHD as found, `after` the VHD after the work.
    """
    ends = before.end_footer or before.stale_end, after.end_footer
    found = [
        Change(offset, bytes(old), bytes(new), f"{what} of {volume}", FOOTER_KIND)
        for offset, what, old, new in (
            (0, "VHD footer copy", before.footer, after.footer),
            (volume_size - Footer.SIZE, "VHD footer", *ends),
        )
        if old is not None and new is not None and old != new
    ]
    if parent is None:
        return found
    header, in_texts = after.header, []
    for (at, locator), data in zip(used_locators(after.header), texts):
        codec, offset = LOCATOR_CODECS[locator.code], locator.data_offset
        text = data.decode(codec).rstrip("\0")
        renamed = rename_parent(text, parent, uuids)
        new = _exchanged(data, text, renamed, codec)
        length = len(renamed.encode(codec))
        if length != locator.data_length:  # the name of a VHD is a letter longer than of a raw parent
            entry, behind = locator.replace(data_length=length), header.locators[at + LocatorEntry.SIZE :]
            header = header.replace(locators=header.locators[:at] + bytes(entry) + behind)
        in_texts.append(Change(offset, data.ljust(len(new), b"\0"), new, "VHD parent locator of " + volume))
    stored = after.header.parent_name
    name = stored.decode(NAME_CODEC).split("\0", 1)[0]
    renamed = rename_parent(name, parent, uuids)
    header = sealed(header.replace(parent_name=_exchanged(stored, name, renamed, NAME_CODEC)))
    found.append(Change(HEADER_OFFSET, bytes(after.header), bytes(header), "VHD header of " + volume, HEADER_KIND))
    return found + in_texts


def _exchanged(stored: bytes, old: str, new: str, codec: str) -> bytes:
    """`stored` with the text `new` in place of the text `old` at its start; the bytes behind the text stay."""
    before, after = old.encode(codec), new.encode(codec)
    return after.ljust(len(before), b"\0") + stored[max(len(before), len(after)) :]
