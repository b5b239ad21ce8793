# SPDX-License-Identifier: LGPL-2.1-only
# fmt: off
"""Tables of LVM2's on-disk structures. All integers are little-endian, a sector is 512 bytes on every device.

    sector 0-3        label: LabelHeader, PvHeader, data areas, metadata areas, [ExtensionHeader, bootloader areas]
    4096              metadata area: MdaHeader, then a ring of text copies
    pe_start          physical extents
    [end of device]   [second metadata area]

Sources: LVM2 lib/label/label.h, lib/format_text/layout.h.
"""

from relvmoiscsi.formats.ondisk import Record, le32, le64, raw

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
    sector = le64(8)       #: number of the sector the label is in, 0 to 3
    crc    = le32(16)      #: checksum of bytes [20, 512) of the sector
    offset = le32(20)      #: bytes from the start of this header to the PV header
    type   = raw(24, 8)    #: b"LVM2 001"


class PvHeader(Record, size=40):
    """Who the PV is; the lists of areas follow."""

    pv_id       = raw(0, 32)   #: 32 characters, no dashes
    device_size = le64(32)     #: bytes


class AreaEntry(Record, size=16):
    """One entry of the area lists; an all-zero entry ends a list."""

    offset = le64(0)       #: bytes from the start of the device
    size   = le64(8)       #: bytes; for a data area 0 means "to the end of the device"


class ExtensionHeader(Record, size=8):
    """Follows the metadata area list; absent (zero) on PVs made before LVM 2.02.99. Bootloader areas follow."""

    version = le32(0)      #: 0, 1 or 2
    flags   = le32(4)      #: EXTENSION_USED


class RawLocation(Record, size=24):
    """Where a text copy lies in the ring; all zero: there is none."""

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
    committed    = raw(40, 24)    #: RawLocation of the text that counts ("slot 0")
    precommitted = raw(64, 24)    #: RawLocation of an update in flight ("slot 1")
    rest         = raw(88, 424)   #: the end of the list, then unused; kept
