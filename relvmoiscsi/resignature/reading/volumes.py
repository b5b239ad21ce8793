# SPDX-License-Identifier: LGPL-2.1-only
"""Read the contents of the volumes of an SR: the heads of all volumes in one batch, then the rest in a second batch."""

from operator import attrgetter
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import SECTOR, Device, read_pieces
from relvmoiscsi.errors import FormatError, Place, Truncated
from relvmoiscsi.formats import cbt, naming, qcow2, saved_vms, vhd
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.mgt import RECORD_BYTES, SR_END, Mgt, read_length, read_mgt
from relvmoiscsi.formats.naming import LvName, ParentName
from relvmoiscsi.formats.saved_vms import SavedHeader, SavedVms
from relvmoiscsi.resignature.reading import sm_journals
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun, Unreadable, Volume, agreed_parent

_SPARE_MGT_RECORDS = 64  #: records to read beyond the number of volumes: slots of deleted VDIs

#: two records for each completed snapshot, for at most 16 unfinished snapshots
_NEW_MGT_RECORDS = 2 * 16

#: the content of a volume after the first batch of reads; for MGT, the bytes that were read
Opened = Union[Content, bytes]


class _Known:
    """Verified VHDs, for the `like` of `read_vhd`: equal bytes need not be verified again.

    Two VHDs in volumes of one size often have their locators at the same places.
    """

    def __init__(self, volumes: Sequence[Volume]) -> None:
        self._by_place = {volume.lv.segments[0]: volume for volume in volumes}
        self._by_size: Dict[int, vhd.Vhd] = {}

    def like(self, lv: LogicalVolume, size: int) -> Optional[vhd.Vhd]:
        volume = self._by_place.get(lv.segments[0])
        if volume is not None and volume.size == size and isinstance(volume.content, vhd.Vhd):
            return volume.content
        return self._by_size.get(size)

    def add(self, size: int, found: vhd.Vhd) -> vhd.Vhd:
        if found.locators:
            self._by_size[size] = found
        return found


class VolumeRange(NamedTuple):
    """A range of a volume to read."""

    lv: LogicalVolume
    offset: int
    length: int


def read_volumes(device: Device, vg: VolumeGroup, wanted: Sequence[VolumeRange]) -> List[bytes]:
    """The bytes of ranges of volumes, in one batch of reads. Raises Truncated."""
    return read_pieces(device, [vg.ranges(*item) for item in wanted])


def read_all_volumes(
    device: Device, vg: VolumeGroup, names: Sequence[LvName], like: Sequence[Volume] = ()
) -> Tuple[Tuple[Volume, ...], Optional[Mgt]]:
    """The volumes, in the order of the metadata text, and SM's records. Always two batches of reads.

    `names` are the parts of the volumes' names, in the same order. `like` are volumes that were read before: bytes
    equal to those of a volume at the same place are not verified again.

    A volume whose content cannot be read is Unreadable, also MGT: a run may leave the volume behind.
    """
    known = _Known(like)
    lost = [_lost(device, vg, lv) for lv in vg.lvs]
    heads = [[] if gone else _heads(vg, lv, name, len(names)) for lv, name, gone in zip(vg.lvs, names, lost)]
    first = iter(read_volumes(device, vg, [item for wanted in heads for item in wanted]))
    parts = [[next(first) for _ in wanted] for wanted in heads]
    looked_into = sm_journals.under_way(
        (name, sm_journals.journal_text(found[0]))
        for name, found in zip(names, parts)
        if name.kind == naming.JOURNAL and found
    )
    opened = [
        Unreadable(gone) if gone else _open(vg, lv, name, head, known)
        for lv, name, head, gone in zip(vg.lvs, names, parts, lost)
    ]
    tails: List[List[VolumeRange]] = []
    for index, lv in enumerate(vg.lvs):
        try:
            tails.append(_tails(vg, lv, opened[index]))
        except FormatError as problem:
            opened[index] = Unreadable(problem)
            tails.append([])
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
        empty = _is_empty(content, next(second)) if table and not isinstance(content, bytes) else None
        try:
            if isinstance(content, bytes):
                mgt = _mgt(content + b"".join(found), size, name.text)
                volumes.append(Volume(lv, name, size, None, None, ()))
            else:
                volumes.append(Volume(lv, name, size, content, _parent(content, found, name.text), found, empty=empty))
        except FormatError as problem:
            volumes.append(Volume(lv, name, size, Unreadable(problem), None, ()))
    disks = {str(volume.name.uuid): volume for volume in volumes if volume.is_disk}
    return tuple(_agreed(volume, disks) for volume in volumes), mgt


def _lost(device: Device, vg: VolumeGroup, lv: LogicalVolume) -> Optional[FormatError]:
    """The error for a volume that ends behind the end of the device; None for any other volume."""
    needed = max(part.end for part in vg.ranges(lv, 0, vg.size_of(lv)))
    if needed <= device.size_bytes:
        return None
    return Truncated(f"Logical volume {lv.name}", Place(device.name, 0), needed, device.size_bytes)


def _agreed(volume: Volume, disks: Mapping[str, Volume]) -> Volume:
    """The volume with the parent of `agreed_parent`; Unreadable when no named parent fits."""
    if not isinstance(volume.content, vhd.Vhd):
        return volume
    try:
        located = vhd.located_parents(volume.content, volume.texts, volume.name.text)
        parent = agreed_parent(volume, located, disks)
    except FormatError as problem:
        return volume._replace(content=Unreadable(problem), parent=None, texts=(), empty=None)
    return volume._replace(parent=parent, disputed=any(one != volume.parent for one in located))


def _heads(vg: VolumeGroup, lv: LogicalVolume, name: LvName, volume_count: int) -> List[VolumeRange]:
    """The ranges of a volume for the first batch of reads."""
    if name.kind == naming.VHD:
        # three pieces: then the records share their bytes with the cache, without a copy
        header_bytes = vhd.HEAD_BYTES - SECTOR
        return [
            VolumeRange(lv, 0, SECTOR),
            VolumeRange(lv, SECTOR, header_bytes),
            VolumeRange(lv, vg.size_of(lv) - SECTOR, SECTOR),
        ]
    if name.kind == naming.QCOW2:
        return [VolumeRange(lv, 0, qcow2.HEAD_BYTES)]
    if name.kind == naming.CBT_LOG:
        return [VolumeRange(lv, 0, cbt.CbtHeader.SIZE)]
    if name.kind == naming.JOURNAL and name.journal in (naming.CLONE, naming.LEAF):
        return [VolumeRange(lv, 0, SECTOR)]
    if name.kind == naming.MGT:
        records = volume_count + _SPARE_MGT_RECORDS
        guess = SR_END + records * RECORD_BYTES
        return [VolumeRange(lv, 0, min(guess, vg.size_of(lv)))]
    return []


def _open(vg: VolumeGroup, lv: LogicalVolume, name: LvName, parts: Sequence[bytes], known: "_Known") -> Opened:
    """The content of a volume; for MGT, the bytes in use that were read."""
    size = vg.size_of(lv)
    if name.kind == naming.CBT_LOG:
        return cbt.read_cbt_log(parts[0], name.text)
    if name.kind == naming.JOURNAL:
        return sm_journals.journal_text(parts[0]) if parts else None
    if name.kind == naming.MGT:
        return parts[0]
    try:
        if name.kind == naming.VHD:
            like = known.like(lv, size)
            return known.add(size, vhd.read_vhd(parts[0], parts[1], parts[2], name.text, size, like))
        if name.kind == naming.QCOW2:
            return qcow2.read_qcow2(parts[0], name.text, size)
    except FormatError as problem:
        return Unreadable(problem)
    return None


def _tails(vg: VolumeGroup, lv: LogicalVolume, content: Opened) -> List[VolumeRange]:
    """The ranges of a volume for the second batch of reads."""
    if isinstance(content, vhd.Vhd):
        return [VolumeRange(lv, locator.offset, locator.length) for locator in content.locators]
    if isinstance(content, qcow2.Qcow2) and content.backing:
        return [VolumeRange(lv, content.backing.offset, content.backing.length)]
    if isinstance(content, bytes):
        length = read_length(content, vg.size_of(lv), lv.name)
        end = min(length + _NEW_MGT_RECORDS * RECORD_BYTES, vg.size_of(lv))
        return [VolumeRange(lv, len(content), end - len(content))] if end > len(content) else []
    return []


def _table(lv: LogicalVolume, content: Opened) -> List[VolumeRange]:
    """The range of an image's block table, which shows whether the image has a block."""
    if isinstance(content, (vhd.Vhd, qcow2.Qcow2)):
        table = content.block_table()
        return [VolumeRange(lv, table.offset, table.length)]
    return []


def _is_empty(content: Content, table: bytes) -> bool:
    unused = vhd.UNUSED_ENTRY if isinstance(content, vhd.Vhd) else qcow2.UNUSED_ENTRY
    return table == unused * (len(table) // len(unused))


def _mgt(data: bytes, volume_size: int, volume: str) -> Mgt:
    length = read_length(data, volume_size, volume)
    return read_mgt(data[:length], volume, data[length : length + _NEW_MGT_RECORDS * RECORD_BYTES])


def _parent(content: Content, texts: Sequence[bytes], volume: str) -> Optional[ParentName]:
    """The parent that the head of an image names."""
    if isinstance(content, vhd.Vhd):
        return content.parent
    if isinstance(content, qcow2.Qcow2) and texts:
        return qcow2.parent_of(content, texts[0], volume)
    return None


# --- VM records that `relvmoiscsi pool save-vms` has saved on the SR


def saved(device: Device, lun: Lun) -> Optional[SavedVms]:
    """The last save of VM records that can be read; None without such a save. Raises DeviceError."""
    # one save in memory at a time: a save may be large
    found = (_read_saved(device, lun, volume) for volume in _saved_candidates(lun))
    return max((one for one in found if one is not None), key=attrgetter("order"), default=None)


def _saved_candidates(lun: Lun) -> List[Volume]:
    """The raw disks with the label NAME_LABEL in MGT."""
    records = lun.records()
    return [
        volume
        for uuid, volume in lun.disks().items()
        if volume.content is None and uuid in records and records[uuid].name_label == saved_vms.NAME_LABEL
    ]


def _read_saved(device: Device, lun: Lun, volume: Volume) -> Optional[SavedVms]:
    """The save on a volume; None when the save is not complete, or when the volume holds other data."""
    try:
        (head,) = read_volumes(device, lun.vg, [VolumeRange(volume.lv, 0, SavedHeader.SIZE)])
        header = saved_vms.read_header(head, volume.name.text)
        wanted = VolumeRange(volume.lv, SavedHeader.SIZE, min(header.length, volume.size - SavedHeader.SIZE))
        (content,) = read_volumes(device, lun.vg, [wanted])
        return saved_vms.unpack(header, content, volume.name.text)
    except FormatError:
        return None
