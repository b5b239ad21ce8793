# SPDX-License-Identifier: LGPL-2.1-only
# fmt: off
"""Tables of the VHD format. All integers are big-endian.

    0             copy of the footer
    512           dynamic header: parent id, parent name, parent locators
    table_offset  block allocation table, batmap, locator texts, blocks
    end - 512     footer

Sources: Microsoft, Virtual Hard Disk Image Format Specification; blktap include/vhd.h.
"""

from relvmoiscsi.formats.ondisk import (
    Record,
    be32,
    be64,
    raw,
    u8,
)

FOOTER_COOKIE   = b"conectix"
POISONED_COOKIE = b"v_poison"      #: vhd-util's resize journal disables the footer with it
KILLED_FOOTER   = b"\xc7" * 512    #: what tapdisk writes over the footer at the end when it opens a VHD to write
HEADER_COOKIE   = b"cxsparse"
HEADER_OFFSET   = 512
HEADER_KIND     = "VHD header"     #: of a Structure, with its checksum
FOOTER_KIND     = "VHD footer"
VERSION         = 0x00010000
TYPE_DYNAMIC    = 3
TYPE_DIFFERENCING = 4
TYPE_NAMES      = {2: "fixed", TYPE_DYNAMIC: "dynamic", TYPE_DIFFERENCING: "differencing"}
LOCATOR_COUNT   = 8
LOCATOR_NONE    = 0
LOCATOR_MACX    = 0x4D616358       #: "MacX": a file URL, UTF-8
LOCATOR_W2KU    = 0x57326B75       #: "W2ku": absolute path, UTF-16LE
LOCATOR_W2RU    = 0x57327275       #: "W2ru": relative path, UTF-16LE
LOCATOR_CODECS  = {LOCATOR_MACX: "utf-8", LOCATOR_W2KU: "utf-16-le", LOCATOR_W2RU: "utf-16-le"}
NAME_CODEC      = "utf-16-be"      #: of DynamicHeader.parent_name
BATMAP_COOKIE   = b"tdbatmap"
BATMAP_VERSIONS = (0x00010001, 0x00010002)   #: the checksum of the first one adds signed bytes
#: creators whose checksum does not follow the hidden byte (libvhd before 1.2)
OLD_CREATORS    = (0x00000001, 0x00010001)


class Footer(Record, size=512):
    """At the end of the volume, and a copy at its start."""

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
    hidden          = u8(85)       #: SM: kept only as a parent
    reserved        = raw(86, 426)


class DynamicHeader(Record, size=1024):
    """Where the block table is, and who the parent is."""

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
    """Where another spelling of the parent's name lies."""

    code        = be32(0)
    data_space  = be32(4)      #: room for the text: bytes; below 512 it counts sectors
    data_length = be32(8)      #: bytes of text
    reserved    = be32(12)
    data_offset = be64(16)     #: bytes from the start of the volume


class BatmapHeader(Record, size=512):
    """Behind the block allocation table, on the next sector. blktap's own: the format does not have it."""

    cookie         = raw(0, 8)
    batmap_offset  = be64(8)       #: bytes from the start of the volume
    batmap_sectors = be32(16)
    version        = be32(20)
    checksum       = be32(24)      #: one's complement of the sum of the batmap's bytes
    marker         = raw(28, 1)
    keyhash        = raw(29, 65)   #: of an encrypted image: a flag, a nonce, and what both make of the key
    reserved       = raw(94, 418)
