# SPDX-License-Identifier: LGPL-2.1-only
"""Read a LUN in as few dependent steps as the formats allow; nothing is written and nothing is trusted.

1  the first 64 KiB        label; nearly always the metadata area header, often the text
2  metadata text(s)
3  all volumes at once     VHD header and footers, QCOW2 header, CBT header, SM journals, MGT
4  what those point to     VHD parent locators, the rest of a large MGT, block tables that a cut snapshot made
"""

from bisect import bisect_left, bisect_right
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, align_up, read_pieces, torn_bytes
from relvmoiscsi.errors import FormatError, Malformed, NotFound, Place, Refused, Truncated, Unsupported
from relvmoiscsi.formats import cbt, naming
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Label, Mda
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup, read_vg
from relvmoiscsi.formats.mgt import layout as mgt_layout
from relvmoiscsi.formats.mgt.records import Mgt, read_length, read_mgt
from relvmoiscsi.formats.naming import LvName, ParentName
from relvmoiscsi.formats.qcow2 import image as qcow2
from relvmoiscsi.formats.vhd import image as vhd
from relvmoiscsi.resignature import pending
from relvmoiscsi.resignature.lun import (
    Content,
    Lun,
    Unreadable,
    Volume,
    agreed_parent,
    refuse_unknown_volumes,
    verify_lun,
)

FIRST_READ_BYTES = 64 << 10
MIN_DEVICE_BYTES = 1 << 20
MAX_MDAS = 2
_SPARE_MGT_RECORDS = 64  #: read along with the records of the volumes; deleted slots live there


#: that a snapshot gets when it is completed, and how many snapshots are expected to be under way at the most
_NEW_MGT_RECORDS = 2 * 16


class ReadCache(Device):
    """A device that remembers what was read of it, in whole blocks; a block is read once."""

    def __init__(self, device: Device) -> None:
        self.name, self.size_bytes, self.block_size = device.name, device.size_bytes, device.block_size
        self.physical_block_size = device.physical_block_size
        self._whole = torn_bytes(device)
        self._device = device
        self._starts: List[int] = []  # offsets of what is known, ascending
        self._known: List[bytes] = []  # the bytes there, whole blocks; no two stretches overlap

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        missing = [part for wanted in ranges for part in self._missing(wanted)]
        if missing:
            for part, data in zip(missing, self._device.read(missing)):
                self._keep(part.offset, data)
        return [self._part(wanted) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        raise TypeError("a survey does not write")

    def flush(self) -> None:
        raise TypeError("a survey does not write")

    def with_chunks(self, chunks: Sequence[Chunk]) -> "ReadCache":
        """What would be read if the chunks (whole blocks) were on the device."""
        changed = ReadCache(self._device)
        changed._starts, changed._known = list(self._starts), list(self._known)
        for chunk in chunks:
            changed._keep(chunk.offset, chunk.data)
        return changed

    def _first(self, offset: int) -> int:
        """The index of the first stretch that ends behind a byte."""
        index = bisect_right(self._starts, offset)
        if index and offset < self._starts[index - 1] + len(self._known[index - 1]):
            return index - 1
        return index

    def _missing(self, wanted: Range) -> List[Range]:
        """The blocks of a range that are not known. Raises Truncated."""
        if wanted.offset < 0 or wanted.length < 0 or wanted.end > self.size_bytes:
            left = self.size_bytes - wanted.offset
            raise Truncated("A structure", Place(self.name, wanted.offset), wanted.length, left)
        at = align_down(wanted.offset, self._whole)
        end = min(align_up(wanted.end, self._whole), align_down(self.size_bytes, self.block_size))
        found: List[Range] = []
        for index in range(self._first(at), len(self._starts)):
            start = self._starts[index]
            if start >= end:
                break
            if at < start:
                found.append(Range(at, start - at))
            at = start + len(self._known[index])
        if at < end:
            found.append(Range(at, end - at))
        return found

    def _keep(self, offset: int, data: bytes) -> None:
        """Know these bytes from now on, in place of what was known there."""
        end = offset + len(data)
        first, last = self._first(offset), bisect_left(self._starts, end)
        stretches = [(offset, data)]
        for start, known in zip(self._starts[first:last], self._known[first:last]):
            if start < offset:
                stretches.insert(0, (start, known[: offset - start]))
            if end < start + len(known):
                stretches.append((end, known[end - start :]))
        self._starts[first:last] = [start for start, _known in stretches]
        self._known[first:last] = [known for _start, known in stretches]

    def _part(self, wanted: Range) -> bytes:
        """The bytes of a range, all of which are known."""
        found = []
        for index in range(self._first(wanted.offset), bisect_left(self._starts, wanted.end)):
            start, known = self._starts[index], self._known[index]
            found.append(known[max(0, wanted.offset - start) : wanted.end - start])
        return b"".join(found)


def read_label(device: Device) -> Label:
    """The label of the LUN.

    Raises NotFound for an empty device, Refused for one that holds something else, FormatError for a bad label.
    """
    start = device.read([Range(0, min(FIRST_READ_BYTES, device.size_bytes))])[0]
    if not any(start):
        raise NotFound(f"{device.name} is empty: its first {len(start)} bytes are zero.")
    if device.size_bytes < MIN_DEVICE_BYTES:
        raise Refused(f"{device.name} has {device.size_bytes} bytes: no SR fits on it.", "VolNotFound")
    _refuse_lvm1(start, device.name)
    label = pv.find_label(start, Place(device.name, 0))
    if label is None:
        raise Refused(f"{device.name} is no LVM physical volume: {_what_else(start)}.", "VolNotFound")
    if label.number != 0 and _partition_count(start):
        raise Refused(f"{device.name} has a partition table beside its LVM label.")
    return label


def _refuse_lvm1(start: bytes, name: str) -> None:
    if start[:2] == b"HM":
        raise Refused(f"{name} begins like an LVM1 physical volume, which LVM releases read differently.")


def _partition_count(start: bytes) -> int:
    """Used entries of an MBR partition table in sector 0."""
    if start[510:512] != b"\x55\xaa":
        return 0
    return sum(1 for at in range(446, 510, 16) if start[at + 4])


def _what_else(start: bytes) -> str:
    if start[512:520] == b"EFI PART":
        return "it has a GPT partition table"
    if _partition_count(start):
        return "it has a partition table"
    if start[1080:1082] == b"\x53\xef":
        return "it looks like an ext2, ext3 or ext4 file system"
    if start[:4] == b"XFSB":
        return "it looks like an XFS file system"
    if start[:8] == b"conectix" or start[:4] == b"QFI\xfb":
        return "it is a disk image itself"
    return "what it holds is unknown"


def read_lun(device: Device, label: Label, twin: Optional[Lun] = None) -> Lun:
    """Everything on the LUN, verified. Raises FormatError, or Refused for a volume group that is no SR's.

    What SM had begun is in `Lun.work`; then it is the LUN that this leads to whose parts agree with each other.

    `twin` was read from a device that holds the same bytes but for label and metadata areas: what the text and the
    volumes say is taken from it, if the text is the same.
    """
    mdas = read_mdas(device, label)
    text, where, stale = _committed_text(device, mdas)
    if twin is not None and twin.vg.text == text:
        _verify_sizes(device, label, mdas, twin.vg)
        return twin._replace(label=label, mdas=tuple(mdas))
    vg = read_vg(text, where)
    sr_uuid = _sr_uuid(device, vg.name)
    _verify_sizes(device, label, mdas, vg)
    names = [naming.parse_lv_name(lv.name, where) for lv in vg.lvs]
    refuse_unknown_volumes(vg.lvs, names, sr_uuid, where)
    volumes, mgt = _volumes(device, vg, names)
    lun = Lun(device.name, device.size_bytes, label, tuple(mdas), vg, sr_uuid, volumes, mgt, stale)
    lun = lun._replace(work=pending.unfinished_work(lun))
    verify_lun(lun.settled())
    return lun


def _sr_uuid(device: Device, vg_name: str) -> str:
    found = naming.sr_of_vg(vg_name)
    if found is None:
        raise Refused(f"{device.name} holds the volume group {vg_name}, which is no SR's.", "VolNotFound")
    return found


def read_sr_uuid(device: Device, label: Label) -> str:
    """The SR that the committed metadata names; what is in its volumes is not looked at. Raises as `read_lun` does."""
    text, where, _stale = _committed_text(device, read_mdas(device, label))
    return _sr_uuid(device, read_vg(text, where).name)


def read_mdas(device: Device, label: Label) -> List[Mda]:
    """The headers of the metadata areas that the label lists, verified. Raises FormatError."""
    place = Place(device.name, label.offset + label.mdas_at)
    if not 1 <= len(label.mdas) <= MAX_MDAS:
        raise Unsupported("LVM label", place, f"it lists {len(label.mdas)} metadata areas")
    for area in label.mdas:
        whole = area.offset % SECTOR == 0 and area.size % SECTOR == 0 and area.size > layout.MDA_HEADER_SIZE
        if not whole or area.offset < layout.LABEL_SECTORS * SECTOR or area.end > device.size_bytes:
            problem = f"a metadata area of {area.size} bytes at {area.offset} is not on the device"
            raise Malformed("LVM label", place, problem)
    for one, other in zip(sorted(label.mdas), sorted(label.mdas)[1:]):
        if other.offset < one.end:
            problem = f"the metadata areas at {one.offset} and {other.offset} overlap"
            raise Malformed("LVM label", place, problem)
    headers = device.read([Range(area.offset, layout.MDA_HEADER_SIZE) for area in label.mdas])
    return [pv.parse_mda(header, area, Place(device.name, area.offset)) for header, area in zip(headers, label.mdas)]


def _committed_text(device: Device, mdas: Sequence[Mda]) -> Tuple[str, Place, bool]:
    """The text that counts, without its NUL, the place of its first byte, and whether another area holds an older one.

    LVM goes by the highest seqno. Source: LVM2 lib/metadata/metadata.c, _vg_read.
    """
    used = [mda for mda in mdas if mda.has_text]
    if not used:
        raise Refused(f"{device.name} is a physical volume without a volume group.", "VolNotFound")
    for mda in mdas:
        if not mda.has_text and not mda.ignored:
            where = Place(device.name, mda.area.offset)
            raise Malformed("Metadata area header", where, "it has no text, and the other area has one")
    texts = pv.read_texts(device, used)
    places = [Place(device.name, mda.area.offset + mda.committed.offset) for mda in used]
    for mda, text, place in zip(used, texts, places):
        pv.verify_text(text, mda.committed, place)
    plain = [text[:-1].decode("latin-1") for text in texts]
    if len(set(plain)) == 1:
        return plain[0], places[0], False
    groups = [read_vg(text, place) for text, place in zip(plain, places)]
    if groups[0].seqno == groups[1].seqno or groups[0].id != groups[1].id or groups[0].name != groups[1].name:
        raise Malformed("Metadata text", places[1], f"it differs from the text at byte {places[0].offset}")
    newest = max(range(len(groups)), key=lambda index: groups[index].seqno)
    return plain[newest], places[newest], True


def _verify_sizes(device: Device, label: Label, mdas: Sequence[Mda], vg: VolumeGroup) -> None:
    where = Place(device.name, label.offset)
    if vg.pv_id != label.pv_id:
        raise Malformed("LVM label", where, "its PV id is not the one in the metadata text")
    needed = max(label.device_size, vg.dev_size, vg.data_end)
    if needed > device.size_bytes:
        raise Truncated("Physical volume", Place(device.name, 0), needed, device.size_bytes)
    if vg.pe_start < layout.LABEL_SECTORS * SECTOR:
        raise Malformed("LVM label", where, f"the extents begin at byte {vg.pe_start}, over the label")
    if vg.pe_start % device.block_size or vg.extent_size % device.block_size:
        problem = f"its extents are not made of blocks of {device.block_size} bytes"
        raise Unsupported("Physical volume", Place(device.name, vg.pe_start), problem)
    for mda in mdas:
        if mda.area.offset < vg.data_end and vg.pe_start < mda.area.end:
            raise Malformed("LVM label", where, "a metadata area lies inside the extents")


#: a volume whose first bytes are read; of MGT, those bytes
Opened = Union[Content, bytes]


class Wanted(NamedTuple):
    """Bytes of a volume that are to be read."""

    lv: LogicalVolume
    offset: int
    length: int


def read_volumes(device: Device, vg: VolumeGroup, wanted: Sequence[Wanted]) -> List[bytes]:
    """One batch of reads from volumes, wherever their segments lie. Raises Truncated."""
    return read_pieces(device, [vg.ranges(*item) for item in wanted])


def _volumes(device: Device, vg: VolumeGroup, names: Sequence[LvName]) -> Tuple[Tuple[Volume, ...], Optional[Mgt]]:
    heads = [_heads(vg, lv, name, len(names)) for lv, name in zip(vg.lvs, names)]
    first = iter(read_volumes(device, vg, [item for wanted in heads for item in wanted]))
    parts = [[next(first) for _ in wanted] for wanted in heads]
    texts_of = [
        (name, pending.journal_text(found[0]))
        for name, found in zip(names, parts)
        if name.kind == naming.JOURNAL and found
    ]
    excused = {uuid for name, text in texts_of for uuid in pending.half_made(name, text)}
    looked_into = {uuid for name, text in texts_of for uuid in pending.to_look_into(name, text)}
    opened = [_open(vg, lv, name, found, name.uuid in excused) for lv, name, found in zip(vg.lvs, names, parts)]
    tails = [_tails(vg, lv, content) for lv, content in zip(vg.lvs, opened)]
    tables = [
        _table(lv, content) if name.uuid in looked_into else [] for lv, name, content in zip(vg.lvs, names, opened)
    ]
    second = iter(
        read_volumes(device, vg, [item for several in (tails, tables) for wanted in several for item in wanted])
    )
    texts = [tuple(next(second) for _ in wanted) for wanted in tails]
    volumes, mgt = [], None
    for lv, name, content, found, table in zip(vg.lvs, names, opened, texts, tables):
        size = vg.size_of(lv)
        if isinstance(content, bytes):
            mgt = _mgt(content + b"".join(found), size, name.text)
            volumes.append(Volume(lv, name, size, None, None, ()))
            continue
        empty = _is_empty(content, next(second)) if table else None
        volumes.append(Volume(lv, name, size, content, _parent(content, found, name.text), found, empty=empty))
    disks = {str(volume.name.uuid): volume for volume in volumes if volume.is_disk}
    return tuple(_agreed(volume, disks, volume.name.uuid in excused) for volume in volumes), mgt


def _agreed(volume: Volume, disks: Mapping[str, Volume], excused: bool) -> Volume:
    """The volume with the parent that header and locators agree on. Raises FormatError as `_open` does."""
    if not isinstance(volume.content, vhd.Vhd):
        return volume
    try:
        located = vhd.located_parents(volume.content, volume.texts, volume.name.text)
        parent = agreed_parent(volume, located, disks)
    except FormatError as problem:
        if not excused:
            raise
        return volume._replace(content=Unreadable(problem), parent=None, texts=(), empty=None)
    return volume._replace(parent=parent, disputed=any(one != volume.parent for one in located))


def _heads(vg: VolumeGroup, lv: LogicalVolume, name: LvName, volume_count: int) -> List[Wanted]:
    """What to read of a volume first."""
    if name.kind == naming.VHD:
        # in three pieces: the records are then the very bytes that the cache keeps, and not copies
        header_bytes = vhd.HEAD_BYTES - SECTOR
        return [Wanted(lv, 0, SECTOR), Wanted(lv, SECTOR, header_bytes), Wanted(lv, vg.size_of(lv) - SECTOR, SECTOR)]
    if name.kind == naming.QCOW2:
        return [Wanted(lv, 0, qcow2.HEAD_BYTES)]
    if name.kind == naming.CBT_LOG:
        return [Wanted(lv, 0, cbt.CbtHeader.SIZE)]
    if name.kind == naming.JOURNAL and name.journal in (naming.CLONE, naming.LEAF):
        return [Wanted(lv, 0, SECTOR)]
    if name.kind == naming.MGT:
        records = volume_count + _SPARE_MGT_RECORDS
        guess = mgt_layout.SR_END + records * mgt_layout.RECORD_BYTES
        return [Wanted(lv, 0, min(guess, vg.size_of(lv)))]
    return []


def _open(vg: VolumeGroup, lv: LogicalVolume, name: LvName, parts: Sequence[bytes], excused: bool) -> Opened:
    """The content of a volume; of MGT, the bytes in use as far as they are read.

    Raises FormatError, unless a journal excuses the volume: SM makes it before it fills it.
    """
    size = vg.size_of(lv)
    if name.kind == naming.CBT_LOG:
        return cbt.read_cbt_log(parts[0], name.text)
    if name.kind == naming.JOURNAL:
        return pending.journal_text(parts[0]) if parts else None
    if name.kind == naming.MGT:
        return parts[0]
    try:
        if name.kind == naming.VHD:
            return vhd.read_vhd(parts[0], parts[1], parts[2], name.text, size)
        if name.kind == naming.QCOW2:
            return qcow2.read_qcow2(parts[0], name.text, size)
    except FormatError as problem:
        if not excused:
            raise
        return Unreadable(problem)
    return None


def _tails(vg: VolumeGroup, lv: LogicalVolume, content: Opened) -> List[Wanted]:
    """What to read of a volume once its head is known."""
    if isinstance(content, vhd.Vhd):
        return [Wanted(lv, locator.offset, locator.length) for locator in content.locators]
    if isinstance(content, qcow2.Qcow2) and content.backing:
        return [Wanted(lv, content.backing.offset, content.backing.length)]
    if isinstance(content, bytes):
        length = read_length(content, vg.size_of(lv), lv.name)
        end = min(length + _NEW_MGT_RECORDS * mgt_layout.RECORD_BYTES, vg.size_of(lv))
        return [Wanted(lv, len(content), end - len(content))] if end > len(content) else []
    return []


def _table(lv: LogicalVolume, content: Opened) -> List[Wanted]:
    """The table that tells whether an image holds a block."""
    if isinstance(content, (vhd.Vhd, qcow2.Qcow2)):
        table = content.block_table()
        return [Wanted(lv, table.offset, table.length)]
    return []


def _is_empty(content: Content, table: bytes) -> bool:
    unused = vhd.UNUSED_ENTRY if isinstance(content, vhd.Vhd) else qcow2.UNUSED_ENTRY
    return table == unused * (len(table) // len(unused))


def _mgt(data: bytes, volume_size: int, volume: str) -> Mgt:
    length = read_length(data, volume_size, volume)
    return read_mgt(data[:length], volume, data[length : length + _NEW_MGT_RECORDS * mgt_layout.RECORD_BYTES])


def _parent(content: Content, texts: Sequence[bytes], volume: str) -> Optional[ParentName]:
    """The parent that the head of an image names."""
    if isinstance(content, vhd.Vhd):
        return content.parent
    if isinstance(content, qcow2.Qcow2) and texts:
        return qcow2.parent_of(content, texts[0], volume)
    return None
