# SPDX-License-Identifier: LGPL-2.1-only
"""The label of a physical volume and its metadata areas: find, verify, and make them anew.

The label sector holds the PV id and the list of metadata areas under one checksum. That is what makes the switch
possible (docs/protocol.rst): one 512-byte write changes who the PV is and which metadata speaks for it.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range, read_pieces
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.formats.checksum import lvm_crc
from relvmoiscsi.formats.identity import parse_lvm_id
from relvmoiscsi.formats.lvm import layout
from relvmoiscsi.formats.lvm.layout import (
    AreaEntry,
    ExtensionHeader,
    LabelHeader,
    MdaHeader,
    PvHeader,
    RawLocation,
)
from relvmoiscsi.formats.ondisk import expect_magic

#: no text of an SR comes near this (1000 volumes: 0.3 MiB); a larger size in a header is not believed
MAX_TEXT_BYTES = 16 << 20

_NO_TEXT = bytes(RawLocation.SIZE)


class Area(NamedTuple):
    """Bytes [offset, offset + size) of the device."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Label(NamedTuple):
    """A verified label. `sector` is all 512 bytes of it; the rest is read from them."""

    sector: bytes
    number: int  #: which sector of the device it is, 0 to 3
    pv_id: str  #: 32 characters
    device_size: int  #: bytes, as LVM recorded it
    mdas: Tuple[Area, ...]
    mdas_at: int  #: where in the sector the list of metadata areas starts
    extension_at: int  #: where in the sector the extension header is, or would be
    used_end: int  #: where in the sector LVM's own content ends; the rest LVM leaves alone

    @property
    def offset(self) -> int:
        """Bytes from the start of the device."""
        return self.number * SECTOR

    def sector_with(self, pv_id: Optional[str] = None, mdas: Optional[Tuple[Area, ...]] = None) -> bytes:
        """The sector under another PV id or with other metadata areas (as many as before); checksum made anew."""
        sector = bytearray(self.sector)
        if pv_id is not None:
            at = LabelHeader.SIZE + PvHeader.pv_id.offset
            sector[at : at + PvHeader.pv_id.size] = PvHeader.pv_id.encode(pv_id.encode("ascii"))
        if mdas is not None:
            if len(mdas) != len(self.mdas):
                raise ValueError(f"{len(mdas)} metadata areas given, the label has {len(self.mdas)}")
            entries = b"".join(bytes(AreaEntry.zero(offset=a.offset, size=a.size)) for a in mdas)
            sector[self.mdas_at : self.mdas_at + len(entries)] = entries
        return sealed_label(bytes(sector))

    def as_of_today(self, where: Place) -> "Label":
        """The label with the extension that LVM 2.02.143 and later give it: version 2, marked as used.

        An older label is written anew, and without what lies behind it, by the first such LVM that changes the VG.
        Every release reads the new one. Source: LVM2 WHATS_NEW 2.02.143; docs/formats/lvm.rst, "The label".
        """
        extension = ExtensionHeader.at(self.sector, self.extension_at, where)
        today = extension.replace(version=2, flags=extension.flags | layout.EXTENSION_USED)
        end = self.extension_at + ExtensionHeader.SIZE
        return parse_label(
            sealed_label(self.sector[: self.extension_at] + bytes(today) + self.sector[end:]), self.number, where
        )


def sealed_label(sector: bytes) -> bytes:
    """The label sector with its checksum made anew."""
    crc = lvm_crc(sector[layout.LABEL_CRC_START :])
    header = LabelHeader.at(sector).replace(crc=crc)
    return bytes(header) + sector[LabelHeader.SIZE :]


def find_label(start: bytes, where: Place) -> Optional[Label]:
    """The one label in the first four sectors (`start` is at least those); None when no sector looks like one.

    LVM takes a sector as a label for its type alone, and skips one whose `LABELONE` is right and whose checksum is
    not. Nothing here goes on in either case: raises BadMagic, BadChecksum, Malformed (two labels) or Unsupported.
    Source: LVM2 lib/label/label.c, _find_label_header.
    """
    labels = []
    for number in range(layout.LABEL_SECTORS):
        sector = start[number * SECTOR : (number + 1) * SECTOR]
        header = LabelHeader.at(sector, 0, where.plus(number * SECTOR))
        if header.id == layout.LABEL_ID or header.type == layout.LABEL_TYPE:
            labels.append(parse_label(sector, number, where.plus(number * SECTOR)))
    if len(labels) > 1:
        numbers = " and ".join(str(label.number) for label in labels)
        raise Malformed("LVM label", where, f"sectors {numbers} both hold one")
    return labels[0] if labels else None


def parse_label(sector: bytes, number: int, where: Place) -> Label:
    """Verify a label sector and read its lists. Raises FormatError."""
    header = LabelHeader.at(sector, 0, where)
    expect_magic("LVM label", where, header.id, layout.LABEL_ID)
    computed = lvm_crc(sector[layout.LABEL_CRC_START :])
    if header.crc != computed:
        raise BadChecksum("LVM label", where, header.crc, computed)
    if header.type != layout.LABEL_TYPE:
        raise Unsupported("LVM label", where, f"its type is {header.type!r}")
    if header.sector != number or header.offset != LabelHeader.SIZE:
        raise Malformed("LVM label", where, f"it says sector {header.sector}, contents at {header.offset}")
    pv = PvHeader.at(sector, LabelHeader.SIZE, where)
    _data_areas, mdas_at = _area_list(sector, LabelHeader.SIZE + PvHeader.SIZE, where)
    mdas, extension_at = _area_list(sector, mdas_at, where)
    return Label(
        sector=sector,
        number=number,
        pv_id=parse_lvm_id(pv.pv_id.decode("latin-1"), "PV id of the LVM label", where),
        device_size=pv.device_size,
        mdas=mdas,
        mdas_at=mdas_at,
        extension_at=extension_at,
        used_end=_extension_end(sector, extension_at, where),
    )


def _area_list(sector: bytes, at: int, where: Place) -> Tuple[Tuple[Area, ...], int]:
    """The areas of a list that starts at `at`, and where the list ends."""
    areas: List[Area] = []
    while True:
        entry = AreaEntry.at(sector, at, where.plus(at))
        at += AreaEntry.SIZE
        if bytes(entry) == bytes(AreaEntry.SIZE):
            return tuple(areas), at
        areas.append(Area(entry.offset, entry.size))


def _extension_end(sector: bytes, at: int, where: Place) -> int:
    extension = ExtensionHeader.at(sector, at, where.plus(at))
    if extension.version == 0:
        return at
    if extension.version > 2:
        raise Unsupported("LVM label", where.plus(at), f"its extension has version {extension.version}")
    _bootloader_areas, end = _area_list(sector, at + ExtensionHeader.SIZE, where)
    return end


class Mda(NamedTuple):
    """A verified metadata area header and what it points to."""

    area: Area
    header: MdaHeader
    committed: RawLocation
    precommitted: RawLocation

    @property
    def ignored(self) -> bool:
        return bool(self.committed.flags & layout.FLAG_IGNORED)

    @property
    def has_text(self) -> bool:
        return not self.ignored and bytes(self.committed) != _NO_TEXT


def parse_mda(data: bytes, area: Area, where: Place) -> Mda:
    """Verify the header of a metadata area. Raises FormatError.

    Source: LVM2 lib/format_text/format-text.c, _raw_read_mda_header.
    """
    header = MdaHeader.at(data, 0, where)
    computed = lvm_crc(data[layout.MDA_CRC_START : MdaHeader.SIZE])
    if header.crc != computed:
        raise BadChecksum("Metadata area header", where, header.crc, computed)
    expect_magic("Metadata area header", where, header.magic, layout.MDA_MAGIC)
    if header.version != layout.MDA_VERSION:
        raise Unsupported("Metadata area header", where, f"its version is {header.version}")
    if (header.start, header.size) != area:
        raise Malformed(
            "Metadata area header",
            where,
            f"it says {header.size} bytes at {header.start}, the label says {area.size} bytes",
        )
    return Mda(area, header, RawLocation.at(header.committed), RawLocation.at(header.precommitted))


def mda_header(area: Area, committed: RawLocation, like: Optional[MdaHeader] = None) -> MdaHeader:
    """A header for `area` whose slot 0 is `committed` and whose slot 1 is empty.

    `like` gives the bytes that nobody here knows the meaning of.
    """
    header = (like or MdaHeader.zero()).replace(
        magic=layout.MDA_MAGIC,
        version=layout.MDA_VERSION,
        start=area.offset,
        size=area.size,
        committed=bytes(committed),
        precommitted=_NO_TEXT,
    )
    return header.replace(crc=lvm_crc(bytes(header)[layout.MDA_CRC_START :]))


def text_location(area: Area, position: int, text: bytes) -> RawLocation:
    """The slot for a text that lies, unwrapped, at byte `position` of the device."""
    return RawLocation.zero(offset=position - area.offset, size=len(text), crc=lvm_crc(text))


def text_ranges(area: Area, location: RawLocation, where: Place) -> List[Range]:
    """The one or two ranges of the device that hold a text; the ring is [512, size) and wraps to 512.

    Raises Malformed when the slot points outside the ring, Unsupported for a text beyond MAX_TEXT_BYTES.
    """
    ring = area.size - layout.MDA_HEADER_SIZE
    if location.size > MAX_TEXT_BYTES:
        raise Unsupported("Metadata text", where, f"it has {location.size} bytes")
    if not layout.MDA_HEADER_SIZE <= location.offset < area.size or not 0 < location.size <= ring:
        raise Malformed(
            "Metadata area header",
            where,
            f"its text has {location.size} bytes at offset {location.offset} of an area of {area.size}",
        )
    before_wrap = min(location.size, area.size - location.offset)
    ranges = [Range(area.offset + location.offset, before_wrap)]
    if before_wrap < location.size:
        ranges.append(Range(area.offset + layout.MDA_HEADER_SIZE, location.size - before_wrap))
    return ranges


def read_texts(device: Device, mdas: Sequence[Mda]) -> List[bytes]:
    """The committed text of each area, as stored, in one batch of reads. Not verified yet."""
    places = [Place(device.name, mda.area.offset) for mda in mdas]
    return read_pieces(device, [text_ranges(mda.area, mda.committed, place) for mda, place in zip(mdas, places)])


def verify_text(text: bytes, location: RawLocation, where: Place) -> None:
    """Raises BadChecksum, or Malformed when the text is not one string that ends in a NUL."""
    computed = lvm_crc(text)
    if computed != location.crc:
        raise BadChecksum("Metadata text", where, location.crc, computed)
    if text.find(b"\0") != len(text) - 1:
        raise Malformed("Metadata text", where, "it does not end with its first NUL")
