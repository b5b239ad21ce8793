# SPDX-License-Identifier: LGPL-2.1-only
"""Verify a VHD in a logical volume, and say which of its bytes a new identity changes.

A dynamic VHD carries neither an SR nor a VDI UUID. A differencing one names its parent up to four times: in the
dynamic header and in the texts of the locators. SM follows the header, tapdisk the locators, so all must agree.
"""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.checksum import vhd_checksum
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.naming import ParentName, parse_parent_name, rename_parent
from relvmoiscsi.ondisk import Change, Field, Structure, expect_magic
from relvmoiscsi.vhd import layout
from relvmoiscsi.vhd.layout import DynamicHeader, Footer, LocatorEntry

#: bytes at the start of a volume: the footer's copy and the header; the footer is its last Footer.SIZE bytes
HEAD_BYTES = layout.HEADER_OFFSET + DynamicHeader.SIZE

_SAME_IN_BOTH_FOOTERS: Tuple[Field[Any], ...] = (Footer.uuid, Footer.type, Footer.current_size, Footer.data_offset)

_TEXT_PREFIXES = ("file://", "./", ".\\")


class Locator(NamedTuple):
    """A parent locator that is in use."""

    code: int
    offset: int  #: bytes from the start of the volume
    length: int  #: bytes of text


class Vhd(NamedTuple):
    """A verified VHD. Footers are as found; both are kept, since SM may have been cut between writing the two."""

    footer: Footer
    end_footer: Footer
    header: DynamicHeader
    locators: Tuple[Locator, ...]
    parent: Optional[ParentName]  #: None for a dynamic VHD

    @property
    def hidden(self) -> bool:
        return bool(self.footer.hidden)

    @property
    def virtual_size(self) -> int:
        return self.footer.current_size


def read_vhd(footer_copy: bytes, header_bytes: bytes, last_sector: bytes, volume: str, volume_size: int) -> Vhd:
    """Verify the footer's copy, which the volume begins with, the header behind it, and the footer.

    Raises FormatError. The locators' texts are verified by `verify_locators`, once they are read.
    """
    start = Place(volume, 0)
    footer = _footer("VHD footer copy", Footer.at(footer_copy, 0, start), start)
    end = Place(volume, volume_size - Footer.SIZE)
    end_footer = _footer("VHD footer", Footer.at(last_sector, 0, end), end)
    for field in _SAME_IN_BOTH_FOOTERS:
        if getattr(footer, field.name) != getattr(end_footer, field.name):
            raise Malformed("VHD footer", end.plus(field.offset), "its {} is not the copy's".format(field.name))
    if footer.type not in (layout.TYPE_DYNAMIC, layout.TYPE_DIFFERENCING):
        kind = layout.TYPE_NAMES.get(footer.type, str(footer.type))
        raise Unsupported("VHD footer", start.plus(Footer.type.offset), "its disk type is {}".format(kind))
    if footer.data_offset != layout.HEADER_OFFSET:
        problem = "it puts the dynamic header at {}".format(footer.data_offset)
        raise Unsupported("VHD footer", start.plus(Footer.data_offset.offset), problem)
    header = _header(header_bytes, start.plus(layout.HEADER_OFFSET), volume_size)
    if footer.type == layout.TYPE_DYNAMIC:
        _verify_no_parent(header, start.plus(layout.HEADER_OFFSET))
        return Vhd(footer, end_footer, header, (), None)
    locators = _locators(header, volume, volume_size)
    return Vhd(footer, end_footer, header, locators, _parent_in_header(header, start.plus(layout.HEADER_OFFSET)))


def _footer(what: str, footer: Footer, where: Place) -> Footer:
    if footer.cookie == layout.POISONED_COOKIE:
        raise Unsupported(what, where, "a resize of the VHD was cut, its footer is disabled")
    expect_magic(what, where, footer.cookie, layout.FOOTER_COOKIE)
    if footer.version != layout.VERSION:
        raise Unsupported(what, where.plus(Footer.version.offset), "its version is 0x{:08x}".format(footer.version))
    computed = vhd_checksum(bytes(footer), Footer.checksum.offset)
    if footer.checksum != computed and not _old_creator_agrees(footer):
        raise BadChecksum(what, where, footer.checksum, computed)
    return footer


def _old_creator_agrees(footer: Footer) -> bool:
    shown = bytes(footer.replace(hidden=0))
    return footer.creator_version in layout.OLD_CREATORS and footer.checksum == vhd_checksum(
        shown, Footer.checksum.offset
    )


def _header(data: bytes, where: Place, volume_size: int) -> DynamicHeader:
    header = DynamicHeader.at(data, 0, where)
    expect_magic("VHD header", where, header.cookie, layout.HEADER_COOKIE)
    computed = vhd_checksum(bytes(header), DynamicHeader.checksum.offset)
    if header.checksum != computed:
        raise BadChecksum("VHD header", where, header.checksum, computed)
    if header.version != layout.VERSION:
        raise Unsupported("VHD header", where, "its version is 0x{:08x}".format(header.version))
    if header.reserved1 or any(header.reserved2):
        raise Unsupported("VHD header", where, "its reserved bytes are in use")
    table_end = header.table_offset + 4 * header.max_bat_entries
    if header.table_offset < HEAD_BYTES or table_end > volume_size:
        raise Malformed("VHD header", where, "its block table ends at {} of {}".format(table_end, volume_size))
    return header


def _verify_no_parent(header: DynamicHeader, where: Place) -> None:
    for field in (DynamicHeader.parent_uuid, DynamicHeader.parent_name, DynamicHeader.locators):
        if any(getattr(header, field.name)):
            problem = "it has a {}, and the footer says that there is no parent".format(field.name)
            raise Malformed("VHD header", where.plus(field.offset), problem)


def _locators(header: DynamicHeader, volume: str, volume_size: int) -> Tuple[Locator, ...]:
    found: List[Locator] = []
    table = (header.table_offset, header.table_offset + 4 * header.max_bat_entries)
    taken = [(0, HEAD_BYTES), table, (volume_size - Footer.SIZE, volume_size)]
    for index in range(layout.LOCATOR_COUNT):
        at = DynamicHeader.locators.offset + index * LocatorEntry.SIZE
        where = Place(volume, layout.HEADER_OFFSET + at)
        entry = LocatorEntry.at(bytes(header), at, where)
        if entry.code == layout.LOCATOR_NONE:
            continue
        locator = _locator(entry, index, where)
        span = (locator.offset, locator.offset + locator.length)
        if span[1] > volume_size or any(span[0] < end and start < span[1] for start, end in taken):
            problem = "its text in bytes {} to {} runs into something else".format(*span)
            raise Malformed("VHD parent locator {}".format(index), where, problem)
        taken.append(span)
        found.append(locator)
    return tuple(found)


def _locator(entry: LocatorEntry, index: int, where: Place) -> Locator:
    what = "VHD parent locator {}".format(index)
    if entry.code not in layout.LOCATOR_CODECS:
        raise Unsupported(what, where, "its code is 0x{:08x}".format(entry.code))
    space = entry.data_space * 512 if entry.data_space < 512 else entry.data_space
    if not 0 < entry.data_length <= space or entry.data_length > 4096:
        raise Malformed(what, where, "its text has {} bytes in a room of {}".format(entry.data_length, space))
    return Locator(entry.code, entry.data_offset, entry.data_length)


def _parent_in_header(header: DynamicHeader, where: Place) -> ParentName:
    where = where.plus(DynamicHeader.parent_name.offset)
    return _parent_of(_name_text(header, where), "VHD parent name", where)


def _name_text(header: DynamicHeader, where: Place) -> str:
    text = _decoded(header.parent_name, layout.NAME_CODEC, "VHD parent name", where)
    return text.split("\0", 1)[0]


def _decoded(data: bytes, codec: str, what: str, where: Place) -> str:
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        raise Malformed(what, where, "it is not {}: {}".format(codec.upper(), error.reason)) from error


def _prefix_length(text: str) -> int:
    rest = text
    for prefix in _TEXT_PREFIXES:
        if rest.startswith(prefix):
            rest = rest[len(prefix) :]
    return len(text) - len(rest)


def _parent_of(text: str, what: str, where: Place) -> ParentName:
    parent = parse_parent_name(text[_prefix_length(text) :])
    if parent is None:
        raise Unsupported(what, where, "{!r} names no volume of an SR".format(text))
    return parent


def verify_locators(vhd: Vhd, texts: Sequence[bytes], volume: str) -> None:
    """Every locator names the parent that the header names. `texts` is in the order of `vhd.locators`.

    Raises FormatError. A differencing VHD without any locator is one tapdisk cannot open.
    """
    if vhd.parent is not None and not vhd.locators:
        raise Malformed("VHD header", Place(volume, layout.HEADER_OFFSET), "it has a parent and no parent locator")
    for locator, data in zip(vhd.locators, texts):
        where = Place(volume, locator.offset)
        what = "VHD parent locator text"
        text = _decoded(data, layout.LOCATOR_CODECS[locator.code], what, where)
        parent = _parent_of(text, what, where)
        if parent != vhd.parent:
            raise Malformed(what, where, "it names {!r}, the header names another parent".format(text))


def changes(vhd: Vhd, texts: Sequence[bytes], uuids: Mapping[str, str], volume: str) -> List[Change]:
    """The bytes that change under new UUIDs: the header, and each locator's text."""
    if vhd.parent is None:
        return []
    name = _name_text(vhd.header, Place(volume, layout.HEADER_OFFSET))
    encoded = _renamed(name, uuids).encode(layout.NAME_CODEC)
    header = vhd.header.replace(parent_name=encoded + vhd.header.parent_name[len(encoded) :])
    header = header.replace(checksum=vhd_checksum(bytes(header), DynamicHeader.checksum.offset))
    within = Structure(layout.HEADER_KIND, layout.HEADER_OFFSET, DynamicHeader.SIZE)
    found = [Change(layout.HEADER_OFFSET, bytes(vhd.header), bytes(header), "VHD header of " + volume, within)]
    for locator, data in zip(vhd.locators, texts):
        codec = layout.LOCATOR_CODECS[locator.code]
        new = _renamed(data.decode(codec), uuids).encode(codec)
        found.append(Change(locator.offset, data, new, "VHD parent locator of " + volume))
    return found


def _renamed(text: str, uuids: Mapping[str, str]) -> str:
    prefix = _prefix_length(text)
    return text[:prefix] + rename_parent(text[prefix:], uuids)
