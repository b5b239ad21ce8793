# SPDX-License-Identifier: LGPL-2.1-only
"""Read the contents of the volumes of an SR: the heads of all volumes in one batch, then the rest in a second batch."""

from bisect import bisect
from itertools import accumulate
from operator import attrgetter
from typing import Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range, read_pieces
from relvmoiscsi.errors import FormatError, Place, Truncated
from relvmoiscsi.formats import cbt, naming, qcow2, saved_vms, vhd
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.mgt import RECORD_BYTES, SR_END, Mgt, read_length, read_mgt
from relvmoiscsi.formats.naming import LvName, ParentName
from relvmoiscsi.formats.saved_vms import SavedHeader, SavedVms
from relvmoiscsi.resignature.reading import sm_journals
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun, Volume, agreed_parent
from relvmoiscsi.resignature.reading.read_cache import uncached

#: of block tables of unfinished snapshots, read at once: one has up to 32 MiB, and a LUN has hundreds of images
_MOST_TABLE_BYTES = 16 << 20
_SPARE_MGT_RECORDS = 64  #: records to read beyond the number of volumes: slots of deleted VDIs

#: two records for each completed snapshot, for at most 16 unfinished snapshots
_NEW_MGT_RECORDS = 2 * 16


def read_all_volumes(
    device: Device, vg: VolumeGroup, names: Sequence[LvName], like: Sequence[Volume] = ()
) -> Tuple[Tuple[Volume, ...], Optional[Mgt]]:
    """The volumes, in the order of the metadata text, and SM's records. Two batches of reads; more than
    _MOST_TABLE_BYTES of block tables of unfinished snapshots take a batch for each further table.

    `names` are the parts of the volumes' names, in the same order. `like` are volumes that were read before: bytes
    equal to those of a volume at the same place are not verified again.

    The content of a volume that cannot be read is the error, also of MGT: a run may leave the volume behind.
    """
    readers = [_VolumeReader(device, vg, lv, name) for lv, name in zip(vg.lvs, names)]
    _read_batch(device, vg, readers)
    by_place = {volume.lv.segments[0]: volume for volume in like}
    by_size: Dict[int, vhd.Vhd] = {}
    for reader in readers:
        reader.take_head(by_place.get(reader.lv.segments[0]), by_size)
    under_way = sm_journals.under_way((reader.name, reader.content) for reader in readers)
    space, later = _MOST_TABLE_BYTES, []
    for reader in readers:
        reader.ask_for_batmap_header(reader.name.uuid in under_way)
        if reader.name.uuid in under_way and isinstance(reader.content, (vhd.Vhd, qcow2.Qcow2)):
            table = reader.content.block_table()
            if table.end > reader.size:  # a header of a deleted disk, or half of a new one
                where = Place(reader.name.text, table.offset)
                reader.content = Truncated("A block table", where, table.length, max(0, reader.size - table.offset))
                reader.wanted = []
                continue
            space -= table.length
            if space >= 0:
                reader.wanted.append(table)
            else:
                later.append((reader, table))
    _read_batch(device, vg, readers)
    for reader in readers:
        reader.take_table()
    for reader, table in later:  # no table stays in memory
        reader.parts += read_pieces(uncached(device), [vg.ranges(reader.lv, *table)])
        reader.take_table()
    volumes = [reader.volume() for reader in readers]
    disks = {str(volume.name.uuid): volume for volume in volumes if volume.is_disk}
    mgt = next((reader.mgt for reader in readers if reader.mgt is not None), None)
    for number, volume in enumerate(volumes):
        if isinstance(volume.content, vhd.Vhd):
            try:
                located = vhd.located_parents(volume.content, volume.texts, volume.name.text)
                named = tuple(dict.fromkeys(filter(None, (volume.parent, *located))))
                if len(named) > 1:
                    disputed = volume._replace(named=named)
                    volumes[number] = disputed._replace(parent=agreed_parent(disputed, disks))
            except FormatError as problem:
                volumes[number] = volume._replace(content=problem, parent=None, texts=())
    return tuple(volumes), mgt


class _VolumeReader:
    """Reads one volume: says which ranges a batch must read, and makes the content of their bytes.

    `parts` are the bytes of the ranges `wanted`, once a batch has read them.
    """

    def __init__(self, device: Device, vg: VolumeGroup, lv: LogicalVolume, name: LvName) -> None:
        self.lv, self.name, self.size = lv, name, vg.size_of(lv)
        self.wanted: List[Range] = []
        self.parts: List[bytes] = []
        self.content: Content = None
        self.mgt: Optional[Mgt] = None  #: of the MGT volume, once `volume` has read the records
        self.empty: Optional[bool] = None  #: whether an image has no block, once its block table was read
        self.unwritten = False
        self._mgt_start = b""
        self._asked = 0  #: number of ranges in `wanted` without the block table
        end = max(part.end for part in vg.ranges(lv, 0, self.size))
        if end > device.size_bytes:
            self.content = Truncated(f"Logical volume {lv.name}", Place(device.name, 0), end, device.size_bytes)
        elif name.kind == naming.VHD:
            # three pieces: then the records share their bytes with the cache, without a copy
            end_footer = Range(self.size - SECTOR, SECTOR)
            self.wanted = [Range(0, SECTOR), Range(SECTOR, vhd.HEAD_BYTES - SECTOR), end_footer]
        elif name.kind == naming.QCOW2:
            self.wanted = [Range(0, qcow2.HEAD_BYTES)]
        elif name.kind == naming.CBT_LOG:
            self.wanted = [Range(0, cbt.CbtLog.SIZE)]
        elif name.kind == naming.JOURNAL and name.journal in (naming.CLONE, naming.LEAF):
            self.wanted = [Range(0, SECTOR)]
        elif name.kind == naming.MGT:
            guess = SR_END + (len(vg.lvs) + _SPARE_MGT_RECORDS) * RECORD_BYTES
            self.wanted = [Range(0, min(guess, self.size))]

    def take_head(self, like: Optional[Volume], by_size: Dict[int, vhd.Vhd]) -> None:
        """Make the content of the first batch, and ask for the rest: names of parents, and the end of MGT.

        For the `like` of `read_vhd`: `like` is a volume that was read before at this place, and `by_size` has the last
        VHD with locators by the size of its volume. Volumes of one size often have their locators at the same places.
        """
        head, self.wanted = self.parts, []
        try:
            if not head:
                return
            if self.name.kind == naming.VHD:
                copy, header, last = head
                self.unwritten = vhd.is_unwritten(copy, last)
                known = by_size.get(self.size)
                if like is not None and like.size == self.size and isinstance(like.content, vhd.Vhd):
                    known = like.content
                self.content = found = vhd.read_vhd(copy, header, last, self.name.text, self.size, known)
                if found.locators:
                    by_size[self.size] = found
                self.wanted = [Range(locator.data_offset, locator.data_length) for locator in found.locators]
            elif self.name.kind == naming.QCOW2:
                self.unwritten = not head[0].startswith(qcow2.MAGIC)
                self.content = image = qcow2.read_qcow2(head[0], self.name.text, self.size)
                self.wanted = [image.backing] if image.backing else []
            elif self.name.kind == naming.CBT_LOG:
                self.content = cbt.read_cbt_log(head[0], self.name.text)
            elif self.name.kind == naming.JOURNAL:
                self.content = sm_journals.journal_text(head[0])
            else:
                length = read_length(head[0], self.size)
                end = min(length + _NEW_MGT_RECORDS * RECORD_BYTES, self.size)
                self._mgt_start = head[0]
                self.wanted = [Range(len(head[0]), end - len(head[0]))] if end > len(head[0]) else []
        except FormatError as problem:
            self.content = problem
        self._asked = len(self.wanted)

    def ask_for_batmap_header(self, is_under_way: bool) -> None:
        """Ask for the batmap header of a VHD in which a run may write: texts of locators, footers of unfinished work.

        The run writes in no other VHD, so that a VHD without a parent costs no read.
        """
        if not isinstance(self.content, vhd.Vhd) or not (self.content.locators or is_under_way):
            return
        if vhd.may_have_batmap(self.content.read_footer):
            self.wanted.append(Range(vhd.batmap_header_at(self.content.header), vhd.BatmapHeader.SIZE))
            self._asked += 1

    def take_table(self) -> None:
        """Take the block table out of `parts`, if it is there: it shows whether the image has a block."""
        if len(self.parts) > self._asked:
            unused = vhd.UNUSED_ENTRY if isinstance(self.content, vhd.Vhd) else qcow2.UNUSED_ENTRY
            self.empty = not self.parts.pop().strip(unused[:1])  # all bytes of an unused entry are equal

    def volume(self) -> Volume:
        """The volume, with the parent that the head of an image names."""
        texts = tuple(self.parts)
        parent: Optional[ParentName] = None
        try:
            if self.name.kind == naming.MGT and self.content is None:
                data = self._mgt_start + b"".join(texts)
                length, texts = read_length(data, self.size), ()
                spare = data[length : length + _NEW_MGT_RECORDS * RECORD_BYTES]
                self.mgt = read_mgt(data[:length], spare)
            elif isinstance(self.content, vhd.Vhd):
                parent, count = self.content.parent, len(self.content.locators)
                texts, batmap_headers = texts[:count], texts[count:]
                for sector in batmap_headers:  # one, or none where the run does not write in the VHD
                    vhd.verify_batmap_place(self.content, sector, self.name.text, self.size)
            elif isinstance(self.content, qcow2.Qcow2) and texts:
                parent = qcow2.parent_of(self.content, texts[0], self.name.text)
        except FormatError as problem:
            return Volume(self.lv, self.name, self.size, problem, None, ())
        return Volume(
            self.lv, self.name, self.size, self.content, parent, texts, empty=self.empty, unwritten=self.unwritten
        )


def _read_batch(device: Device, vg: VolumeGroup, readers: Sequence[_VolumeReader]) -> None:
    found = iter(read_pieces(device, [vg.ranges(reader.lv, *part) for reader in readers for part in reader.wanted]))
    for reader in readers:
        reader.parts = [next(found) for _ in reader.wanted]


# --- VM records that `relvmoiscsi pool save-vms` has saved on the SR


def saved(device: Device, lun: Lun) -> Optional[SavedVms]:
    """The last save of VM records, without the records; None without such a save. Raises DeviceError.

    A save that was cut does not count. Everybody may make a disk one of `Lun.saves`. So no records are read, and
    indexes of MOST_INDEX_BYTES at most: the shortest, which are the most.
    """
    headers, named = [], list(lun.saves().values())
    heads = read_pieces(device, [lun.vg.ranges(volume.lv, 0, SavedHeader.SIZE) for volume in named])
    for volume, head in zip(named, heads):
        try:
            header = saved_vms.read_header(head, volume.name.text)
        except FormatError:
            continue
        if header.length <= volume.size - 2 * SavedHeader.SIZE:
            headers.append((header, volume))
    headers.sort(key=lambda pair: pair[0].index_length)
    ends = list(accumulate(header.index_length for header, _ in headers))
    headers = headers[: bisect(ends, saved_vms.MOST_INDEX_BYTES)]
    parts = [
        ((SavedHeader.SIZE, header.index_length), (SavedHeader.SIZE + header.length, SavedHeader.SIZE))
        for header, _ in headers
    ]
    pieces = [lun.vg.ranges(volume.lv, *part) for (_, volume), both in zip(headers, parts) for part in both]
    read, found = iter(read_pieces(device, pieces)), []
    for header, volume in headers:
        try:
            found.append(saved_vms.read_index(header, next(read), next(read), volume.name.text))
        except FormatError:
            continue
    return max(found, key=attrgetter("order"), default=None)
