# SPDX-License-Identifier: LGPL-2.1-only
"""The QCOW2 format: verify an image in a logical volume, and say which bytes of the image a new identity changes.

    0                     header (72 bytes in version 2, header_length bytes in version 3)
    header_length         header extensions, then the path of the backing file

An image is a row of clusters, and has a reference count for each cluster. Two levels of tables map clusters of the
virtual disk to clusters of the image. An entry of the first level is the place of a table of the second level. A table
of the second level fills a cluster. All integers are big-endian.

    first level           bit 63: used once; bits 9 to 55: place
    second level          bit 63: used once; 62: compressed; bits 9 to 55: place; 0: reads as zeros, even with a place
    counts                a table of the places of clusters with counts; a count has 16 bits in an image that SM made

The image has no UUID. An image with a parent holds the parent's path, /dev/VG_XenStorage-<SR>/QCOW2-<VDI>.
Source: QEMU docs/interop/qcow2.rst.
"""

from typing import Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from relvmoiscsi.device import Range, align_up
from relvmoiscsi.errors import Malformed, Place, Unsupported
from relvmoiscsi.formats.naming import QCOW2, RAW, ParentName, parse_parent_name, rename_parent
from relvmoiscsi.formats.ondisk import Change, Record, be32, be64, expect_magic, raw
from relvmoiscsi.wording import said

# fmt: off
MAGIC                    = b"QFI\xfb"
VERSION_2_HEADER_LENGTH  = 72
MAX_BACKING_BYTES        = 1023        #: a limit of the format
INCOMPATIBLE_DIRTY       = 1 << 0      #: refcounts may be out of date
INCOMPATIBLE_CORRUPT     = 1 << 1
INCOMPATIBLE_DATA_FILE   = 1 << 2
#: QEMU's names of the features for which an image is refused
INCOMPATIBLE_NAMES       = {2: "an external data file", 3: "compression type", 4: "extended L2 entries"}
KNOWN_INCOMPATIBLE       = 0b11111     #: dirty, corrupt, external data file, compression type, extended L2

MAX_L1_BYTES             = 32 << 20    #: of the first-level table; QEMU makes no larger table
EXTENSION_END            = 0
EXTENSION_ALIGNMENT      = 8           #: bytes; zeros pad the data of an extension
EXTENSION_BACKING_FORMAT = 0xE2792ACA
EXTENSION_BITMAPS        = 0x23852875
EXTENSION_DATA_FILE      = 0x44415441
EXTENSION_ENCRYPTION     = 0x0537BE77
EXTENSION_HIDDEN         = 0x76617465  #: "vate": made by SM; the first byte of the data is not 0 for a hidden image
HIDDEN_LENGTH            = 8           #: bytes of the data of SM's extension

#: QEMU's name of the format of a parent, by the kind of the parent
BACKING_FORMATS          = {RAW: b"raw", QCOW2: b"qcow2"}

ENTRY_USED_ONCE          = 1 << 63
ENTRY_COMPRESSED         = 1 << 62
ENTRY_ZEROS              = 1
ENTRY_PLACE              = (1 << 56) - (1 << 9)
COUNT_ORDER              = 4           #: counts have 16 bits
ENTRY_BYTES              = 8
COUNT_BYTES              = 2


class Qcow2Header(Record, size=72):
    """The start of the header, in version 2 and in version 3."""

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
    """The part of the header at byte 72, in version 3 only."""

    incompatible   = be64(0)
    compatible     = be64(8)
    autoclear      = be64(16)
    refcount_order = be32(24)
    header_length  = be32(28)          #: bytes of the whole header, at least 104


class Extension(Record, size=8):
    """Start of a header extension; `length` bytes of data follow, padded to 8."""

    type   = be32(0)
    length = be32(4)
# fmt: on


#: bytes that `read_qcow2` needs from the start of a volume; header, extensions and path of an image of SM are shorter
HEAD_BYTES = 4096
#: an entry of the first-level table without a table of the second level
UNUSED_ENTRY = bytes(8)


class Qcow2(NamedTuple):
    """A verified header. `backing` is the range of the backing file's path in the volume; None without a parent.

    `backing_format` is the format in which QEMU opens the parent; empty for a format that QEMU finds out.
    """

    header: Qcow2Header
    hidden_flag: bytes  #: the byte of SM's hidden flag; b"\0" without the flag
    hidden_at: Optional[int]  #: bytes from the start of the volume to SM's hidden flag; None without the flag
    backing: Optional[Range]
    backing_format: bytes

    @property
    def hidden(self) -> bool:
        return self.hidden_flag != b"\0"

    @property
    def virtual_size(self) -> int:
        return self.header.size

    def block_table(self) -> Range:
        """The range of the first-level table in the volume."""
        return Range(self.header.l1_table_offset, min(8 * self.header.l1_size, MAX_L1_BYTES))

    def with_hidden(self, hidden: bool, volume: str) -> "Qcow2":
        """The image with this hidden flag. Raises Unsupported when the header has no extension for the flag."""
        if hidden and self.hidden_at is None:
            raise Unsupported("QCOW2 header", Place(volume, 0), "it has no extension for the hidden flag")
        return self._replace(hidden_flag=b"\1" if hidden else b"\0")


def read_qcow2(head: bytes, volume: str, volume_size: int) -> Qcow2:
    """Verify the header and its extensions. `head` is the first HEAD_BYTES of the volume. Raises FormatError."""
    where = Place(volume, 0)
    header = Qcow2Header.at(head, 0, where)
    expect_magic("QCOW2 header", where, header.magic, MAGIC)
    if header.version not in (2, 3):
        raise Unsupported("QCOW2 header", where, f"its version is {header.version}")
    if header.crypt_method:
        raise Unsupported("QCOW2 header", where.plus(Qcow2Header.crypt_method.offset), "it is encrypted")
    if not 9 <= header.cluster_bits <= 21:
        raise Malformed("QCOW2 header", where.plus(Qcow2Header.cluster_bits.offset), "its cluster size is out of range")
    extensions_at, backing, backing_format, hidden_at = VERSION_2_HEADER_LENGTH, None, b"", None
    if header.version == 3:
        at = where.plus(Qcow2Header.SIZE)
        more = HeaderV3.at(head, Qcow2Header.SIZE, at)
        if more.incompatible & ~KNOWN_INCOMPATIBLE or more.incompatible & INCOMPATIBLE_DATA_FILE:
            problem = f"it has the incompatible features {incompatible_features(more.incompatible)}"
            raise Unsupported("QCOW2 header", at, problem)
        if more.incompatible & INCOMPATIBLE_CORRUPT:
            raise Malformed("QCOW2 header", at, "it is marked as corrupt")
        extensions_at = more.header_length
        if extensions_at < Qcow2Header.SIZE + HeaderV3.SIZE or extensions_at % 8:
            raise Malformed("QCOW2 header", where, f"its length is {extensions_at}")
    if header.backing_file_offset:
        backing = Range(header.backing_file_offset, header.backing_file_size)
        first_cluster = min(1 << header.cluster_bits, volume_size)
        is_inside = extensions_at <= backing.offset and backing.end <= first_cluster
        if not is_inside or not 0 < backing.length <= MAX_BACKING_BYTES:
            problem = f"its backing file path has {backing.length} bytes at {backing.offset}"
            raise Malformed("QCOW2 header", where.plus(Qcow2Header.backing_file_offset.offset), problem)
    end = backing.offset if backing else 1 << header.cluster_bits
    seen: Set[int] = set()
    for offset, extension in extensions(head, extensions_at, end, volume):
        if extension.type in seen:  # QEMU takes the last one, and SM the first
            problem = f"it is a second one of type 0x{extension.type:08x}"
            raise Unsupported("QCOW2 header extension", where.plus(offset), problem)
        seen.add(extension.type)
        if extension.type in (EXTENSION_DATA_FILE, EXTENSION_ENCRYPTION):
            problem = f"its type is 0x{extension.type:08x}"
            raise Unsupported("QCOW2 header extension", where.plus(offset), problem)
        if offset + Extension.SIZE + extension.length > end:
            raise Malformed("QCOW2 header extension", where.plus(offset), f"it has {extension.length} bytes")
        data_at = offset + Extension.SIZE
        if extension.type == EXTENSION_HIDDEN:
            if extension.length != HIDDEN_LENGTH:
                problem = f"it is SM's, and has {extension.length} bytes"
                raise Unsupported("QCOW2 header extension", where.plus(offset), problem)
            hidden_at = data_at
        if extension.type == EXTENSION_BACKING_FORMAT:
            backing_format = head[data_at : data_at + extension.length]
    flag = head[hidden_at : hidden_at + 1] if hidden_at else b"\0"
    return Qcow2(header, flag, hidden_at, backing, backing_format)


def extensions(head: bytes, at: int, end: int, volume: str) -> Iterator[Tuple[int, Extension]]:
    """The header extensions from byte `at` on, in front of the end mark, and their places.

    Raises Unsupported when `head` ends before the extensions do: the volume goes on, and QEMU reads them. Raises
    Malformed when no end mark is in front of byte `end`: there QEMU ends, and SM reads on.
    """
    while at + Extension.SIZE <= end:
        if at + Extension.SIZE > len(head):
            problem = f"it begins behind the first {len(head)} bytes, in which all headers of the storage manager end"
            raise Unsupported("QCOW2 header extension", Place(volume, at), problem)
        extension = Extension.at(head, at, Place(volume, at))
        if extension.type == EXTENSION_END:
            return
        yield at, extension
        at += Extension.SIZE + align_up(extension.length, EXTENSION_ALIGNMENT)
    raise Malformed("QCOW2 header extension", Place(volume, at), "no end mark is behind the extensions")


def parent_of(image: Qcow2, path: bytes, volume: str) -> Optional[ParentName]:
    """The parent that the backing file's path names.

    Raises Unsupported when the path names no volume of an SR, or when QEMU may open the parent in another format than
    the path says. QEMU would then follow a path in the data of a raw parent. SM always writes the format.
    """
    if image.backing is None:
        return None
    parent, where = parse_parent_name(path.decode("latin-1")), Place(volume, image.backing.offset)
    if parent is None:
        problem = said(path.decode("utf-8", "replace")) + " names no volume of an SR"
        raise Unsupported("QCOW2 backing file", where, problem)
    if not image.backing_format:
        problem = "QEMU finds the format of its parent out by the parent's content"
        raise Unsupported("QCOW2 backing file", where, problem)
    if image.backing_format != BACKING_FORMATS.get(parent.kind):
        named = said(image.backing_format.decode("latin-1"))
        problem = f"QEMU opens its parent as {named}; the name says {parent.kind}"
        raise Unsupported("QCOW2 backing file", where, problem)
    return parent


def changes(
    before: Qcow2, after: Qcow2, path: bytes, parent: Optional[ParentName], uuids: Mapping[str, str], volume: str
) -> List[Change]:
    """The bytes that change: the hidden flag, which SM's unfinished work changes; the backing file's path.

    The `path` names `parent`, and then has new UUIDs. `before` is the image as found, `after` the image after the work.
    """
    found = []
    if before.hidden_flag != after.hidden_flag and before.hidden_at is not None:
        flag = before.hidden_flag, after.hidden_flag
        found.append(Change(before.hidden_at, *flag, "QCOW2 hidden flag of " + volume))
    if after.backing is not None and parent is not None:
        new = rename_parent(path.decode("latin-1"), parent, uuids).encode("latin-1")
        found.append(Change(after.backing.offset, path, new, "QCOW2 backing file of " + volume))
    return found


def incompatible_features(bits: int) -> str:
    """The feature bits as a hexadecimal number, and the names of the known features."""
    names = [name for bit, name in INCOMPATIBLE_NAMES.items() if bits >> bit & 1]
    return f"0x{bits:x}" + (f" ({', '.join(names)})" if names else "")
