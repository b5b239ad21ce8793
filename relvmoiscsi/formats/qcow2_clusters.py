# SPDX-License-Identifier: LGPL-2.1-only
"""The clusters of a QCOW2: entries of its tables, sizes of full images, a header without a parent. Pure.

Sources: QEMU docs/interop/qcow2.rst; block/qcow2.c (qcow2_calc_prealloc_size, which `qemu-img measure` calls);
xcp-ng-rpms/sm, qcow2util.py as patches 0139 and 0140 have it (calcOverheadEmpty), lvmcowutil.py (calcVolumeSize).
"""

from array import array
from functools import lru_cache
from itertools import compress
from typing import List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import align_up
from relvmoiscsi.errors import Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats import qcow2
from relvmoiscsi.formats.ondisk import big_endian
from relvmoiscsi.formats.qcow2 import (
    COUNT_BYTES,
    ENTRY_BYTES,
    HEAD_BYTES,
    Extension,
    HeaderV3,
    Qcow2,
    Qcow2Header,
    incompatible_features,
)

ABSENT = 0  #: of `read_entries`: the image does not have the cluster, so reads go to the parent
ZEROS = 1  #: of `read_entries`: the cluster reads as zeros, also when the parent has data there
SM_CLUSTER_BYTES = 65536  #: SM computes sizes of volumes with this cluster size, also for images with another size
MIN_CLUSTER_BYTES = 4096  #: of images that can be merged; SM makes larger clusters

_L1_RESERVED = ~(qcow2.ENTRY_USED_ONCE | qcow2.ENTRY_PLACE) & (1 << 64) - 1
_L2_RESERVED = _L1_RESERVED & ~qcow2.ENTRY_ZEROS  # with the bit of compressed clusters


class Needs(NamedTuple):
    """The number of clusters of each kind that an image needs beside its data."""

    first_level: int
    second_level: int
    count_table: int
    counts: int

    @property
    def total(self) -> int:
        return 1 + sum(self)


def read_tables(data: bytes, what: str, where: Place) -> List[Tuple[int, int]]:
    """The used entries of a first-level table or a count table: the index and the place of a cluster. Raises Malformed.

    An image may claim a disk of millions of entries.
    """
    found = big_endian("Q", data)
    used = list(compress(enumerate(found), found))
    for index, entry in used:
        if entry & _L1_RESERVED:
            raise Malformed(what, where.plus(ENTRY_BYTES * index), f"an entry is 0x{entry:016x}")
    return [(index, entry & qcow2.ENTRY_PLACE) for index, entry in used if entry & qcow2.ENTRY_PLACE]


def read_entries(data: bytes, where: Place) -> Tuple[Sequence[int], Sequence[int]]:
    """A table of the second level. Raises Unsupported for a compressed cluster, Malformed for reserved bits.

    The first result has ABSENT, ZEROS or a place for each cluster of the disk. The second result has all places in the
    table, also of clusters that read as zeros.

    An image may have millions of entries. So the whole table is tested as one large number first.
    """
    found, zeros = int.from_bytes(data, "big"), qcow2.ENTRY_ZEROS
    if found & _repeated(_L2_RESERVED, len(data)):
        for index, entry in enumerate(big_endian("Q", data)):
            at = where.plus(ENTRY_BYTES * index)
            if entry & qcow2.ENTRY_COMPRESSED:
                raise Unsupported("QCOW2 cluster", at, "it is compressed")
            if entry & _L2_RESERVED:
                raise Malformed("QCOW2 cluster", at, f"its entry is 0x{entry:016x}")
    places = big_endian("Q", (found & _repeated(qcow2.ENTRY_PLACE, len(data))).to_bytes(len(data), "big"))
    clusters = places
    if found & _repeated(zeros, len(data)):
        clusters = array(
            "Q", [ZEROS if entry & zeros else place for entry, place in zip(big_endian("Q", data), places)]
        )
    return clusters, (places if ABSENT not in places else array("Q", filter(None, places)))


@lru_cache(maxsize=16)
def _repeated(number: int, length: int) -> int:
    """A 64-bit number, repeated up to `length` bytes, as one large number."""
    return int.from_bytes(number.to_bytes(ENTRY_BYTES, "big") * (length // ENTRY_BYTES), "big")


def marked(places: Sequence[int], mark: int) -> Sequence[int]:
    """The places with the bits of `mark` added; ABSENT and ZEROS stay."""
    if not places or min(places) <= ZEROS:
        return [mark | place if place > ZEROS else place for place in places]
    data = big_endian("Q", places).tobytes()
    return big_endian("Q", (int.from_bytes(data, "big") | _repeated(mark, len(data))).to_bytes(len(data), "big"))


def needs(virtual_size: int, cluster_bytes: int) -> Needs:
    """The clusters that a full image needs beside its data."""
    per_table, data = cluster_bytes // ENTRY_BYTES, -(-virtual_size // cluster_bytes)
    second = -(-data // per_table)
    first = -(-second // per_table)
    fixed, last = 1 + first + second + data, 0
    table, counts = 0, 0
    while last != fixed + table + counts:
        last = fixed + table + counts
        counts = counts_for(last, cluster_bytes)
        table = -(-counts // per_table)
    return Needs(first, second, table, counts)


def counts_for(clusters: int, cluster_bytes: int) -> int:
    """The number of clusters that hold the counts of `clusters` clusters."""
    return -(-clusters * COUNT_BYTES // cluster_bytes)


def full_size(virtual_size: int, cluster_bytes: int) -> int:
    """The bytes of an image that has every cluster of its disk."""
    data = align_up(virtual_size, cluster_bytes)
    return data + needs(virtual_size, cluster_bytes).total * cluster_bytes


def formula_size(virtual_size: int) -> int:
    """The bytes that SM computes for the volume of a QCOW2, before SM rounds up to extents."""
    return virtual_size - align_up(virtual_size, SM_CLUSTER_BYTES) + full_size(virtual_size, SM_CLUSTER_BYTES)


# --- headers


def verify_plain(image: Qcow2, head: bytes, volume: str) -> None:
    """Raises FormatError for an image that relvmoiscsi cannot merge. `head` is the first HEAD_BYTES of the volume."""
    where = Place(volume, 0)
    header = image.header
    if header.version != 3:
        raise Unsupported("QCOW2 header", where.plus(Qcow2Header.version.offset), f"its version is {header.version}")
    if 1 << header.cluster_bits < MIN_CLUSTER_BYTES:
        problem = f"its clusters have {1 << header.cluster_bits} bytes"
        raise Unsupported("QCOW2 header", where.plus(Qcow2Header.cluster_bits.offset), problem)
    if header.nb_snapshots:
        problem = f"it has {header.nb_snapshots} snapshots of its own"
        raise Unsupported("QCOW2 header", where.plus(Qcow2Header.nb_snapshots.offset), problem)
    more, at = HeaderV3.at(head, Qcow2Header.SIZE, where.plus(Qcow2Header.SIZE)), where.plus(Qcow2Header.SIZE)
    if more.incompatible & qcow2.INCOMPATIBLE_DIRTY:
        raise Unsupported("QCOW2 header", at, "it is marked as dirty")
    if more.incompatible:
        features = incompatible_features(more.incompatible)
        raise Unsupported("QCOW2 header", at, f"it has the incompatible features {features}")
    if more.refcount_order != qcow2.COUNT_ORDER:
        order = at.plus(HeaderV3.refcount_order.offset)
        raise Unsupported("QCOW2 header", order, f"its counts have {1 << min(99, more.refcount_order)} bits, not 16")
    end = image.backing.offset if image.backing else HEAD_BYTES
    for offset, extension in qcow2.extensions(head, more.header_length, end, volume):
        data = head[offset + Extension.SIZE : offset + Extension.SIZE + extension.length]
        if len(data) < extension.length:
            raise Truncated("QCOW2 header extension", where.plus(offset), extension.length, len(data))
        if extension.type == qcow2.EXTENSION_BITMAPS:
            raise Unsupported("QCOW2 header extension", where.plus(offset), "it has bitmaps of changed blocks")


def plain_head(head: bytes, cluster_bytes: int, needed: Needs, tables_at: Tuple[int, int], volume: str) -> bytes:
    """The header of an image without a parent, HEAD_BYTES long, made of the header of a leaf (see `verify_plain`).

    `tables_at` are the places of the first-level table and of the count table, `needed` has their sizes. SM's extension
    stays, with a hidden flag of 0. The extension with the parent's format goes.
    """
    header, more = Qcow2Header.at(head), HeaderV3.at(head, Qcow2Header.SIZE)
    end = header.backing_file_offset or HEAD_BYTES
    entries = -(-header.size // (cluster_bytes * (cluster_bytes // ENTRY_BYTES)))
    header = header.replace(
        backing_file_offset=0,
        backing_file_size=0,
        cluster_bits=cluster_bytes.bit_length() - 1,
        l1_size=entries,
        l1_table_offset=tables_at[0],
        refcount_table_offset=tables_at[1],
        refcount_clusters=needed.count_table,
        nb_snapshots=0,
        snapshots_offset=0,
    )
    parts = [
        bytes(header),
        bytes(more.replace(autoclear=0)),
        head[Qcow2Header.SIZE + HeaderV3.SIZE : more.header_length],
    ]
    for at, extension in qcow2.extensions(head, more.header_length, end, volume):
        data = head[at + Extension.SIZE : at + Extension.SIZE + extension.length]
        if extension.type == qcow2.EXTENSION_HIDDEN:
            data = b"\0" + data[1:]
        if extension.type != qcow2.EXTENSION_BACKING_FORMAT:
            parts += [bytes(extension), data.ljust(align_up(len(data), qcow2.EXTENSION_ALIGNMENT), b"\0")]
    return b"".join(parts).ljust(HEAD_BYTES, b"\0")
