# SPDX-License-Identifier: LGPL-2.1-only
# fmt: off
"""Tables of the QCOW2 format. All integers are big-endian.

    0                     header (72 bytes in version 2, header_length bytes in version 3)
    header_length         header extensions, then the path of the backing file

An image is a row of clusters, and a number counts how often each is used. Two levels of tables say where a cluster of
the virtual disk is: an entry of the first is the place of a table of the second, which fills a cluster.

    first level           bit 63: used once; bits 9 to 55: place
    second level          bit 63: used once; 62: compressed; bits 9 to 55: place; 0: reads as zeros, wherever it is
    counts                a table of clusters that are full of counts, of 16 bits in an image that SM has made

Source: QEMU docs/interop/qcow2.rst.
"""

from relvmoiscsi.formats.ondisk import Record, be32, be64, raw

MAGIC                    = b"QFI\xfb"
VERSION_2_HEADER_LENGTH  = 72
MAX_BACKING_BYTES        = 1023        #: the format's own limit
INCOMPATIBLE_DIRTY       = 1 << 0      #: refcounts may be out of date
INCOMPATIBLE_CORRUPT     = 1 << 1
INCOMPATIBLE_DATA_FILE   = 1 << 2
#: as QEMU's document calls those that an image is refused for
INCOMPATIBLE_NAMES       = {2: "an external data file", 3: "compression type", 4: "extended L2 entries"}
KNOWN_INCOMPATIBLE       = 0b11111     #: dirty, corrupt, external data file, compression type, extended L2

MAX_L1_BYTES             = 32 << 20    #: of the first-level table; qemu makes none that is larger
EXTENSION_END            = 0
EXTENSION_BACKING_FORMAT = 0xE2792ACA
EXTENSION_BITMAPS        = 0x23852875
EXTENSION_DATA_FILE      = 0x44415441
EXTENSION_ENCRYPTION     = 0x0537BE77
EXTENSION_HIDDEN         = 0x76617465  #: "vate": SM's own; the first byte of its data is 1 for a hidden image


ENTRY_USED_ONCE          = 1 << 63
ENTRY_COMPRESSED         = 1 << 62
ENTRY_ZEROS              = 1
ENTRY_PLACE              = (1 << 56) - (1 << 9)
COUNT_ORDER              = 4           #: counts have 16 bits
ENTRY_BYTES              = 8
COUNT_BYTES              = 2


class Header(Record, size=72):
    """What both versions begin with."""

    magic                 = raw(0, 4)
    version               = be32(4)    #: 2 or 3
    backing_file_offset   = be64(8)    #: bytes from the start of the image; 0: no backing file
    backing_file_size     = be32(16)   #: bytes, no NUL
    cluster_bits          = be32(20)
    size                  = be64(24)   #: bytes, the size of the virtual disk
    crypt_method          = be32(32)   #: 0: not encrypted
    l1_size               = be32(36)
    l1_table_offset       = be64(40)
    refcount_table_offset = be64(48)
    refcount_clusters     = be32(56)
    nb_snapshots          = be32(60)
    snapshots_offset      = be64(64)


class HeaderV3(Record, size=32):
    """What version 3 adds at byte 72."""

    incompatible   = be64(0)
    compatible     = be64(8)
    autoclear      = be64(16)
    refcount_order = be32(24)
    header_length  = be32(28)          #: bytes of the whole header, at least 104


class Extension(Record, size=8):
    """Start of a header extension; `length` bytes of data follow, padded to 8."""

    type   = be32(0)
    length = be32(4)
