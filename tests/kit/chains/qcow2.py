# SPDX-License-Identifier: LGPL-2.1-only
"""What a guest reads through a QCOW2 of an SR, and whether an image is a sound one; from QEMU's qcow2.rst alone.

    flatten(disk, "QCOW2-...")      a Flat, as `flat.flatten` gives it for VHDs
    check(disk, "QCOW2-...")        what `qemu-img check` looks at, and what SM looks at: a Found

A cluster is the image's own if its entry has a place or says zeros; else the parent's, and zero where there is none or
the parent's disk has ended. Parents are QCOW2 images or raw volumes. Nothing is cached and nothing is believed.
"""

import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..sparse import SparseDisk
from .flat import BLOCK, Flat, digest
from .lun import Lun, Volume

USED_ONCE = 1 << 63
COMPRESSED = 1 << 62
PLACE = 0x00FFFFFFFFFFFE00


class Image:
    """A QCOW2 in a volume."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        head = volume.read(0, 65536)
        (magic, self.version, backing_at, backing_length, bits, self.size, crypt, self.l1_size, self.l1_at,
         self.counts_at, self.counts_clusters, self.snapshots) = struct.unpack_from(">4sIQIIQIIQQII", head)  # fmt: skip
        assert magic == b"QFI\xfb" and not crypt, f"{volume.name} is no QCOW2"
        self.cluster = 1 << bits
        self.features, _, _, self.order, self.head_length = struct.unpack_from(">QQQII", head, 72)
        self.backing = head[backing_at : backing_at + backing_length].decode() if backing_at else ""
        self.extensions = dict(_extensions(head, self.head_length))
        self.per_table = self.cluster // 8
        self.l1 = self._words(self.l1_at, self.l1_size)
        self._tables: Dict[int, Tuple[int, ...]] = {}

    @property
    def parent(self) -> str:
        return self.backing.rsplit("/", 1)[-1]

    def _words(self, offset: int, count: int) -> Tuple[int, ...]:
        return struct.unpack(f">{count}Q", self.volume.read(offset, 8 * count))

    def table(self, number: int) -> Tuple[int, ...]:
        if number not in self._tables:
            self._tables[number] = self._words(self.l1[number] & PLACE, self.per_table)
        return self._tables[number]

    def entry(self, cluster: int) -> int:
        number, at = divmod(cluster, self.per_table)
        return self.table(number)[at] if number < self.l1_size and self.l1[number] & PLACE else 0

    def data(self, cluster: int) -> Optional[bytes]:
        """The image's own bytes of a cluster of the disk; None where it has none."""
        entry = self.entry(cluster)
        assert not entry & COMPRESSED, f"cluster {cluster} of {self.volume.name} is compressed"
        if entry & 1:
            return bytes(self.cluster)
        return self.volume.read(entry & PLACE, self.cluster) if entry & PLACE else None


def _extensions(head: bytes, at: int) -> Iterator[Tuple[int, bytes]]:
    while True:
        kind, length = struct.unpack_from(">II", head, at)
        if not kind:
            return
        yield kind, head[at + 8 : at + 8 + length]
        at += 8 + -(-length // 8) * 8


def flatten(disk: SparseDisk, name: str) -> Flat:
    """What a guest reads through a volume."""
    lun = Lun.read(disk)
    size = lun.volume(name).size if name.startswith("LV-") else Image(lun.volume(name)).size
    layers = layers_of(lun, name)
    found = []
    for number in range(-(-size // BLOCK)):
        found.append((number, digest(span(layers, number * BLOCK, min(BLOCK, size - number * BLOCK)))))
    return Flat(size, tuple(item for item in found if item[1]))


def layers_of(lun: Lun, name: str) -> List[Tuple[Optional[Image], Volume]]:
    found: List[Tuple[Optional[Image], Volume]] = []
    while name:
        image = None if name.startswith("LV-") else Image(lun.volume(name))
        found.append((image, lun.volume(name)))
        name = image.parent if image else ""
        assert len(found) < 40, "a loop"
    return found


def span(layers: List[Tuple[Optional[Image], Volume]], offset: int, length: int) -> bytes:
    """What a guest reads. Behind the end of the disk: zeros."""
    if not layers:
        return bytes(length)
    image, volume = layers[0]
    if image is None:
        return volume.read(offset, length).ljust(length, b"\0")
    found: List[bytes] = []
    at, end = offset, min(offset + length, image.size)
    while at < end:
        cluster, within = divmod(at, image.cluster)
        part = min(end - at, image.cluster - within)
        data = image.data(cluster)
        found.append(span(layers[1:], at, part) if data is None else data[within : within + part])
        at += part
    return b"".join(found).ljust(length, b"\0")


class Found(NamedTuple):
    """What `check` says."""

    problems: Tuple[str, ...]
    allocated: int  #: clusters of the disk that are there, as data
    given: int  #: clusters of the disk that are zeros, and have a place
    unallocated: int
    free: int  #: clusters of the volume
    hidden: Optional[bool]

    @property
    def has_room(self) -> bool:
        """Whether there is a free cluster for each that has no data. QEMU gives up the places of zeros."""
        return self.free >= self.unallocated + self.given


def check(disk: SparseDisk, name: str) -> Found:
    """Whether an image without a parent, at rest, is sound: counts, places, header; and whether a guest can fill it.

    QEMU passes by free clusters that are too few in a row: those of an image with something to allocate are in one row.
    """
    volume = Lun.read(disk).volume(name)
    image = Image(volume)
    problems = list(_header_problems(image))
    counts = _counts(image)
    used: Dict[int, str] = {}
    for place, what in _references(image):
        cluster, within = divmod(place, image.cluster)
        if within or not 0 <= place <= volume.size - image.cluster:
            problems.append(f"{what} at {place} is not aligned, or out of the volume")
        elif cluster in used:
            problems.append(f"{what} and {used[cluster]} have one place, {place}")
        used[cluster] = what
    wrong = [cluster for cluster in set(used) | set(counts) if counts.get(cluster, 0) != (cluster in used)]
    problems += [f"cluster {cluster} of the volume is used and counted differently" for cluster in sorted(wrong)[:5]]
    entries = [image.entry(cluster) for cluster in range(-(-image.size // image.cluster))]
    free = [cluster for cluster in range(volume.size // image.cluster) if cluster not in used]
    pieces = sum(1 for at, cluster in enumerate(free) if not at or free[at - 1] != cluster - 1)
    unallocated = sum(1 for entry in entries if not entry & PLACE)
    if unallocated and pieces > 1:
        problems.append(f"{len(free)} free clusters lie in {pieces} pieces, {unallocated} clusters have no place")
    vate = image.extensions.get(0x76617465)
    return Found(
        tuple(f"{name}: {problem}" for problem in problems),
        sum(1 for entry in entries if entry & PLACE and not entry & 1),
        sum(1 for entry in entries if entry & PLACE and entry & 1),
        unallocated,
        len(free),
        None if vate is None else bool(vate[0]),
    )


def _header_problems(image: Image) -> Iterator[str]:
    if image.backing or 0xE2792ACA in image.extensions:
        yield "it names a parent, or the format of one"
    if image.features or image.snapshots or image.order != 4 or image.version != 3:
        yield "its features are not those of an image that SM makes"
    if image.l1_size * image.per_table * image.cluster < image.size:
        yield "its first table is too small"


def _counts(image: Image) -> Dict[int, int]:
    found: Dict[int, int] = {}
    per_cluster = image.cluster // 2
    for number, place in enumerate(image._words(image.counts_at, image.counts_clusters * image.per_table)):
        if place:
            numbers = struct.unpack(f">{per_cluster}H", image.volume.read(place, image.cluster))
            found.update((number * per_cluster + at, count) for at, count in enumerate(numbers) if count)
    return found


def _references(image: Image) -> Iterator[Tuple[int, str]]:
    yield 0, "the header"
    for at in range(0, 8 * image.l1_size, image.cluster):
        yield image.l1_at + at, "the first table"
    for at in range(image.counts_clusters):
        yield image.counts_at + at * image.cluster, "the table of counts"
    for place in image._words(image.counts_at, image.counts_clusters * image.per_table):
        if place:
            yield place, "counts"
    for number, entry in enumerate(image.l1):
        if entry & PLACE:
            yield entry & PLACE, f"table {number}"
            if not entry & USED_ONCE:
                yield -1, f"table {number}, which is not marked as used once,"
    for cluster in range(image.l1_size * image.per_table):
        entry = image.entry(cluster)
        if entry & PLACE:
            yield entry & PLACE, f"cluster {cluster}"
            if not entry & USED_ONCE:
                yield -1, f"cluster {cluster}, which is not marked as used once,"
