# SPDX-License-Identifier: LGPL-2.1-only
"""The label and the metadata areas of a physical volume: find and verify them, and make changed ones.

    sector 0-3        label: LabelHeader, PvHeader, data areas, metadata areas, [ExtensionHeader, bootloader areas]
    4096              metadata area: MdaHeader, then a ring of text copies
    pe_start          physical extents
    [end of device]   [second metadata area]

All integers are little-endian, and a sector has 512 bytes on every device. The label sector holds the PV id and the
list of metadata areas under one checksum. So one write of 512 bytes switches PV id and metadata (docs/protocol.rst).

Sources: LVM2 lib/label/label.h, lib/format_text/layout.h.
"""

from typing import List, NamedTuple, Optional, Tuple
from zlib import crc32

from relvmoiscsi.device import SECTOR, Device, Range, read_pieces
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported, WayOut, shown_bytes
from relvmoiscsi.formats.identity import parse_lvm_id
from relvmoiscsi.formats.ondisk import Record, expect_magic, le32, le64, raw

# fmt: off
LABEL_SECTORS   = 4            #: LVM looks for the label in sectors 0 to 3
LABEL_ID        = b"LABELONE"
LABEL_TYPE      = b"LVM2 001"
LABEL_CRC_START = 20           #: the label's checksum covers bytes [20, 512) of the sector
MDA_MAGIC       = b"\x20LVM2\x20x[5A%r0N*>"
MDA_VERSION     = 1
MDA_CRC_START   = 4            #: the header's checksum covers bytes [4, 512)
MDA_HEADER_SIZE = 512          #: the text ring starts here, counted from the start of the area
FLAG_IGNORED    = 1            #: RawLocation.flags: LVM neither reads nor writes the area
EXTENSION_USED  = 1            #: ExtensionHeader.flags: the PV belongs to a VG


class LabelHeader(Record, size=32):
    """Start of the sector that marks a device as an LVM physical volume."""

    id     = raw(0, 8)     #: b"LABELONE"
    sector = le64(8)       #: number of the label's sector, 0 to 3
    crc    = le32(16)      #: checksum of bytes [20, 512) of the sector
    offset = le32(20)      #: bytes from the start of this header to the PV header
    type   = raw(24, 8)    #: b"LVM2 001"


class PvHeader(Record, size=40):
    """PV id and size of the PV; the lists of areas follow."""

    pv_id       = raw(0, 32)   #: 32 characters, no dashes
    device_size = le64(32)     #: bytes


class AreaEntry(Record, size=16):
    """One entry of the area lists; an all-zero entry ends a list.

    LVM ends a list at the offset 0, whatever the size. Source: LVM2 lib/format_text/text_label.c, _text_read.
    """

    offset = le64(0)       #: bytes from the start of the device
    size   = le64(8)       #: bytes; for a data area 0 means "to the end of the device"


class ExtensionHeader(Record, size=8):
    """Follows the metadata area list; absent (zero) on PVs made before LVM 2.02.99. Bootloader areas follow."""

    version = le32(0)      #: 0, 1 or 2
    flags   = le32(4)      #: EXTENSION_USED


class RawLocation(Record, size=24):
    """The place of a text in the ring; all zeros when there is no text."""

    offset = le64(0)       #: bytes from the start of the metadata area
    size   = le64(8)       #: bytes, the final NUL included
    crc    = le32(16)      #: checksum of the text
    flags  = le32(20)      #: FLAG_IGNORED


class MdaHeader(Record, size=512):
    """Start of a metadata area."""

    crc          = le32(0)        #: checksum of bytes [4, 512)
    magic        = raw(4, 16)
    version      = le32(20)
    start        = le64(24)       #: bytes from the start of the device to this header
    size         = le64(32)       #: bytes of the whole area, this header included
    committed    = raw(40, 24)    #: RawLocation of the committed text ("slot 0")
    precommitted = raw(64, 24)    #: RawLocation of an update in flight ("slot 1")
    rest         = raw(88, 424)   #: the end of the list of locations, then unused bytes
# fmt: on


#: the largest text that LVM writes: the old and the new text must fit into an area, which SM makes 10 MiB
_MOST_OF_LVM = 5764352
#: A header with a larger text is refused: a forged text costs some 100 times its size in memory. 1000 volumes take
#: 0.3 MiB
MAX_TEXT_BYTES = 6 << 20

_NO_TEXT = bytes(RawLocation.SIZE)
_CRC_SEED = 0xF597A6CF


def lvm_crc(data: bytes) -> int:
    """LVM's checksum of `data`.

    LVM uses zlib's polynomial (reflected 0xEDB88320), another start value, and no final inversion.
    Source: LVM2 lib/misc/crc.c, calc_crc.
    """
    return crc32(data, _CRC_SEED ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


class Label(NamedTuple):
    """A verified label. `sector` has the 512 bytes, all other fields are read from `sector`."""

    sector: bytes
    number: int  #: number of the sector on the device, 0 to 3
    pv_id: str  #: 32 characters
    device_size: int  #: bytes, as LVM recorded it
    mdas: Tuple[Range, ...]
    mdas_at: int  #: start of the list of metadata areas, in bytes from the start of the sector
    extension_at: int  #: place of the extension header, also when the label has none; from the start of the sector
    used_end: int  #: end of LVM's content, from the start of the sector; LVM does not change the bytes behind

    @property
    def offset(self) -> int:
        """Bytes from the start of the device."""
        return self.number * SECTOR

    def sector_with(self, pv_id: str, mdas: Tuple[Range, ...]) -> bytes:
        """The sector with this PV id, these metadata areas, as many as before, and the checksum of its content."""
        if len(mdas) != len(self.mdas):
            raise ValueError(f"{len(mdas)} metadata areas given, the label has {len(self.mdas)}")
        sector, at = bytearray(self.sector), LabelHeader.SIZE + PvHeader.pv_id.offset
        sector[at : at + PvHeader.pv_id.size] = PvHeader.pv_id.encode(pv_id.encode("ascii"))
        entries = b"".join(bytes(AreaEntry.zero(offset=a.offset, size=a.length)) for a in mdas)
        sector[self.mdas_at : self.mdas_at + len(entries)] = entries
        return sealed_label(bytes(sector))

    def as_of_today(self, where: Place) -> "Label":
        """The label with the extension that LVM 2.02.143 and later write: version 2, marked as used.

        When such an LVM changes a VG with an older label, LVM writes a new label and erases the bytes behind the label.
        Each LVM release reads the new label. Source: LVM2 WHATS_NEW 2.02.143; docs/formats/lvm.rst, "The label".
        """
        extension = ExtensionHeader.at(self.sector, self.extension_at, where)
        today = extension.replace(version=2, flags=extension.flags | EXTENSION_USED)
        if today == extension:
            return self
        end = self.extension_at + ExtensionHeader.SIZE
        return parse_label(
            sealed_label(self.sector[: self.extension_at] + bytes(today) + self.sector[end:]), self.number, where
        )


def sealed_label(sector: bytes) -> bytes:
    """The label sector with the checksum of its content."""
    crc = lvm_crc(sector[LABEL_CRC_START:])
    header = LabelHeader.at(sector).replace(crc=crc)
    return bytes(header) + sector[LabelHeader.SIZE :]


def find_label(start: bytes, where: Place) -> Optional[Label]:
    """The label in the first four sectors, which `start` must hold; None when no sector has LABEL_ID or LABEL_TYPE.

    LVM is less strict: LVM accepts a sector with LABEL_TYPE and without LABEL_ID, and skips a label with a wrong
    checksum. This function raises in both cases: BadMagic, BadChecksum, Malformed (two labels) or Unsupported.
    Source: LVM2 lib/label/label.c, _find_label_header.
    """
    labels = []
    for number in range(LABEL_SECTORS):
        sector = start[number * SECTOR : (number + 1) * SECTOR]
        header = LabelHeader.at(sector, 0, where.plus(number * SECTOR))
        if header.id == LABEL_ID or header.type == LABEL_TYPE:
            labels.append(parse_label(sector, number, where.plus(number * SECTOR)))
    if len(labels) > 1:
        numbers = " and ".join(str(label.number) for label in labels)
        raise Malformed("LVM label", where, f"sectors {numbers} both hold one")
    return labels[0] if labels else None


def parse_label(sector: bytes, number: int, where: Place) -> Label:
    """Verify a label sector and read the lists of areas. Raises FormatError."""
    header = LabelHeader.at(sector, 0, where)
    expect_magic("LVM label", where, header.id, LABEL_ID)
    computed = lvm_crc(sector[LABEL_CRC_START:])
    if header.crc != computed:
        raise BadChecksum("LVM label", where, header.crc, computed)
    if header.type != LABEL_TYPE:
        raise Unsupported("LVM label", where, f"its type is {shown_bytes(header.type)}")
    if header.sector != number or header.offset != LabelHeader.SIZE:
        raise Malformed("LVM label", where, f"it says sector {header.sector}, contents at {header.offset}")
    pv = PvHeader.at(sector, LabelHeader.SIZE, where)
    _data_areas, mdas_at = _area_list(sector, LabelHeader.SIZE + PvHeader.SIZE, where)
    mdas, extension_at = _area_list(sector, mdas_at, where)
    extension, used_end = ExtensionHeader.at(sector, extension_at, where.plus(extension_at)), extension_at
    if extension.version > 2:
        raise Unsupported("LVM label", where.plus(extension_at), f"its extension has version {extension.version}")
    if extension.version:
        _bootloader_areas, used_end = _area_list(sector, extension_at + ExtensionHeader.SIZE, where)
    elif any(sector[extension_at : extension_at + ExtensionHeader.SIZE + AreaEntry.SIZE]):
        # in a label `as_of_today` they would be flags, and a list of areas that this label does not have
        problem = "its extension has version 0, and the bytes behind are in use by something else"
        anew = WayOut(("pvchange", "--uuid"), (where.container,))  # LVM writes a label without unknown bytes
        raise Unsupported("LVM label", where.plus(extension_at), problem).with_way_out(anew)
    return Label(
        sector=sector,
        number=number,
        pv_id=parse_lvm_id(pv.pv_id.decode("latin-1"), "PV id of the LVM label", where),
        device_size=pv.device_size,
        mdas=mdas,
        mdas_at=mdas_at,
        extension_at=extension_at,
        used_end=used_end,
    )


def _area_list(sector: bytes, at: int, where: Place) -> Tuple[Tuple[Range, ...], int]:
    """The areas of the list that starts at byte `at` of the sector, and the end of the list. Raises FormatError."""
    areas: List[Range] = []
    while True:
        entry = AreaEntry.at(sector, at, where.plus(at))
        at += AreaEntry.SIZE
        if entry.offset == 0:
            if entry.size:
                problem = f"an entry of its area lists has the offset 0 and {entry.size} bytes: LVM ends a list there"
                raise Malformed("LVM label", where.plus(at - AreaEntry.SIZE), problem)
            return tuple(areas), at
        areas.append(Range(entry.offset, entry.size))


class Mda(NamedTuple):
    """A verified header of a metadata area, and the header's two locations."""

    area: Range
    header: MdaHeader
    committed: RawLocation
    precommitted: RawLocation

    @property
    def ignored(self) -> bool:
        return bool(self.committed.flags & FLAG_IGNORED)

    @property
    def has_text(self) -> bool:
        return not self.ignored and bytes(self.committed) != _NO_TEXT


def parse_mda(data: bytes, area: Range, where: Place) -> Mda:
    """Verify the header of a metadata area. Raises FormatError.

    Source: LVM2 lib/format_text/format-text.c, _raw_read_mda_header.
    """
    header = MdaHeader.at(data, 0, where)
    computed = lvm_crc(data[MDA_CRC_START : MdaHeader.SIZE])
    if header.crc != computed:
        raise BadChecksum("Metadata area header", where, header.crc, computed)
    expect_magic("Metadata area header", where, header.magic, MDA_MAGIC)
    if header.version != MDA_VERSION:
        raise Unsupported("Metadata area header", where, f"its version is {header.version}")
    if (header.start, header.size) != area:
        raise Malformed(
            "Metadata area header",
            where,
            f"it says {header.size} bytes at {header.start}, the label says {area.length} bytes",
        )
    return Mda(area, header, RawLocation.at(header.committed), RawLocation.at(header.precommitted))


def mda_header(area: Range, position: int, text: bytes, like: Optional[MdaHeader] = None) -> MdaHeader:
    """A header for `area` that points to `text`, in one piece at byte `position` of the device; slot 1 is empty.

    The bytes of `rest`, of which relvmoiscsi does not know the meaning, come from `like`.
    """
    committed = RawLocation.zero(offset=position - area.offset, size=len(text), crc=lvm_crc(text))
    header = (like or MdaHeader.zero()).replace(
        magic=MDA_MAGIC,
        version=MDA_VERSION,
        start=area.offset,
        size=area.length,
        committed=bytes(committed),
        precommitted=_NO_TEXT,
    )
    return header.replace(crc=lvm_crc(bytes(header)[MDA_CRC_START:]))


def text_ranges(area: Range, location: RawLocation, where: Place) -> List[Range]:
    """The one or two ranges of the device that hold a text; the ring is [512, size) of the area and wraps to 512.

    Raises Malformed for a location outside the ring, Unsupported for a text of more than MAX_TEXT_BYTES.
    """
    ring = area.length - MDA_HEADER_SIZE
    if location.size > MAX_TEXT_BYTES:
        problem = f"it has {location.size} bytes, the text of an SR has {_MOST_OF_LVM} at most"
        raise Unsupported("Metadata text", where, problem)
    if not MDA_HEADER_SIZE <= location.offset < area.length or not 0 < location.size <= ring:
        raise Malformed(
            "Metadata area header",
            where,
            f"its text has {location.size} bytes at offset {location.offset} of an area of {area.length}",
        )
    before_wrap = min(location.size, area.length - location.offset)
    ranges = [Range(area.offset + location.offset, before_wrap)]
    if before_wrap < location.size:
        ranges.append(Range(area.offset + MDA_HEADER_SIZE, location.size - before_wrap))
    return ranges


def read_text(device: Device, mda: Mda) -> bytes:
    """The committed text of an area, as stored and verified. Raises FormatError."""
    where = Place(device.name, mda.area.offset)
    (text,) = read_pieces(device, [text_ranges(mda.area, mda.committed, where)])
    verify_text(text, mda.committed, where)
    return text


def verify_text(text: bytes, location: RawLocation, where: Place) -> None:
    """Raises BadChecksum, or Malformed when the only NUL of the text is not its last byte."""
    computed = lvm_crc(text)
    if computed != location.crc:
        raise BadChecksum("Metadata text", where, location.crc, computed)
    if text.find(b"\0") != len(text) - 1:
        raise Malformed("Metadata text", where, "it does not end with its first NUL")
