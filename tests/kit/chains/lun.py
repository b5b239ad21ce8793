# SPDX-License-Identifier: LGPL-2.1-only
"""The volumes of an SR to read from and write to, to make, grow and shrink: extents of a disk in memory.

    lun = Lun.read(disk)                        or Lun.new(...), an empty SR
    volume = lun.volume("VHD-...")              a `Volume`: read(offset, length), write(offset, data), size
    lun.resize(volume, size)                    whole extents; new extents keep their old bytes
    lun.commit()                                write the changes to LVM's text

If a volume or the VG is too small, OSError with ENOSPC is raised, as the kernel and LVM do. Writes go to `disk` at
once, and only to the text and to volumes. So work on a copy. `room` gives more extents than the SR has.
"""

import errno
import os
from typing import Dict, List, Sequence, Tuple

from relvmoiscsi.device import Range, align_up

from .. import build_lvm
from ..build_lvm import LvText, VgText
from ..build_volumes import MIB
from ..builder import lvm_id
from ..lvmreader import Vg, read_vg
from ..sparse import SparseDisk

EXTENT = 4 * MIB
_CREATED = 1795219866
AREA = Range(4096, 11530240)


def no_space(what: str) -> OSError:
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {what}")


class Volume:
    """An LV: bytes in extents that may lie anywhere."""

    def __init__(self, lun: "Lun", name: str, lv_id: str, extents: Sequence[int], writable: bool = True) -> None:
        self.lun, self.name, self.lv_id = lun, name, lv_id
        self.extents = list(extents)  #: of the PV, in order
        self.writable = writable
        self.tags: Tuple[str, ...] = ()
        self.created = _CREATED

    @property
    def size(self) -> int:
        return len(self.extents) * EXTENT

    def read(self, offset: int, length: int) -> bytes:
        """Bytes there; what lies past the end is missing."""
        return b"".join(self.lun.disk.peek(part.offset, part.length) for part in self.ranges(offset, length))

    def write(self, offset: int, data: bytes) -> None:
        """Write what fits; if that is not all, raise OSError with ENOSPC."""
        done = 0
        for part in self.ranges(offset, len(data)):
            self.lun.disk.poke(part.offset, data[done : done + part.length])
            done += part.length
        if done < len(data):
            raise no_space(f"{len(data)} bytes at {offset} of {self.name}, which has {self.size}")

    def ranges(self, offset: int, length: int) -> List[Range]:
        """Where bytes lie on the disk, as far as they are in the volume."""
        found: List[Range] = []
        end = min(offset + length, self.size)
        while offset < end:
            extent, within = divmod(offset, EXTENT)
            part = min(end - offset, EXTENT - within)
            found.append(Range(self.lun.place(self.extents[extent]) + within, part))
            offset += part
        return found

    @property
    def segments(self) -> Tuple[Tuple[int, int], ...]:
        """(extent_count, first_pe), neighbours joined."""
        found: List[Tuple[int, int]] = []
        for extent in self.extents:
            if found and found[-1][1] + found[-1][0] == extent:
                found[-1] = (found[-1][0] + 1, found[-1][1])
            else:
                found.append((1, extent))
        return tuple(found)


class Lun:
    """An SR's LUN under work. Use `Lun.read` or `Lun.new`."""

    def __init__(self, disk: SparseDisk, vg: VgText, area: Range, text: Range) -> None:
        self.disk, self.vg, self.area = disk, vg, area
        self.text = text  #: the committed one, from the start of the area
        self.volumes: Dict[str, Volume] = {}
        self.free: List[int] = []

    @classmethod
    def new(cls, sr_uuid: str, pe_count: int, seed: str = "lun") -> "Lun":
        """An SR without a volume, and without a text: see `commit`."""
        disk = SparseDisk(AREA.end + pe_count * EXTENT + MIB // 2, name=f"{seed}, built by hand")
        vg = VgText("VG_XenStorage-" + sr_uuid, lvm_id(seed + " vg"), 16, EXTENT // 512, lvm_id(seed + " pv"),
                    disk.size_bytes // 512, AREA.end // 512, pe_count, (), "2.03", "Write from lvcreate.")  # fmt: skip
        label = build_lvm.Label(1, vg.pv_id, disk.size_bytes, AREA.end, (AREA,), 2, b"")
        disk.poke(512, build_lvm.label_sector(label))
        lun = cls(disk, vg, AREA, Range(512, 0))
        lun.free = list(range(pe_count))
        return lun

    @classmethod
    def read(cls, disk: SparseDisk, room: int = 0) -> "Lun":
        """The SR on a copy of `disk`, which is made longer by `room` extents. One metadata area, linear volumes."""
        vg = read_vg(disk)
        assert vg is not None and not vg.warnings, f"{disk.name}: {vg.warnings if vg else 'no VG'}"
        (pv,), (area,) = vg.pvs, vg.label.mdas
        assert vg.extent_bytes == EXTENT, vg.extent_bytes
        longer = disk.grown(disk.size_bytes + room * EXTENT)
        text = VgText(vg.name, vg.id, vg.seqno, vg.extent_size, pv.id, longer.size_bytes // 512, pv.pe_start,
                      pv.pe_count + room, (), "2.03", "Write from lvresize.")  # fmt: skip
        lun = cls(longer, text, area, Range(vg.mda.text_offset, len(vg.mda.text)))
        lun._take_over(vg)
        if room:
            lun.commit()
        return lun

    def _take_over(self, vg: Vg) -> None:
        used = set()
        for lv in vg.lvs:
            extents = [pe for part in lv.segments for pe in range(part.first_pe, part.first_pe + part.extent_count)]
            volume = Volume(self, lv.name, lv.id, extents, "WRITE" in lv.status)
            volume.tags, volume.created = lv.tags, lv.creation_time
            self.volumes[lv.name] = volume
            assert not used & set(extents), f"extents of {lv.name} have two owners"
            used |= set(extents)
        self.free = [pe for pe in range(self.vg.pe_count) if pe not in used]

    @property
    def vg_name(self) -> str:
        return self.vg.name

    def volume(self, name: str) -> Volume:
        return self.volumes[name]

    def place(self, extent: int) -> int:
        """Where an extent of the PV begins on the disk."""
        return self.vg.pe_start_sectors * 512 + extent * EXTENT

    # -- what LVM does ----------------------------------------------------------------------------------------------

    def create(self, name: str, size: int) -> Volume:
        """`lvcreate`; the extents hold what they held. Raises OSError where the VG has too few."""
        assert name not in self.volumes, name
        volume = Volume(self, name, lvm_id(f"{self.vg.id} {name} {len(self.volumes)}"), ())
        self.resize(volume, size)
        self.volumes[name] = volume
        return volume

    def remove(self, volume: Volume) -> None:
        self.free.extend(volume.extents)
        del self.volumes[volume.name]

    def rename(self, volume: Volume, name: str) -> None:
        """Give a volume another name and leave it where it is in the order of the text."""
        assert name not in self.volumes, name
        volume.name = name
        self.volumes = {each.name: each for each in self.volumes.values()}

    def resize(self, volume: Volume, size: int) -> None:
        """`lvextend` or `lvreduce` to whole extents. Raises OSError where the VG has too few."""
        wanted = align_up(size, EXTENT) // EXTENT
        missing = wanted - len(volume.extents)
        if missing > len(self.free):
            raise no_space(f"{missing} extents for {volume.name}, {len(self.free)} are free")
        volume.extents += self.free[: max(0, missing)]
        del self.free[: max(0, missing)]
        self.free += volume.extents[wanted:]
        del volume.extents[wanted:]

    def commit(self) -> None:
        """Write the text, as LVM does: behind the one before it, then the header."""
        lvs = tuple(LvText(each.name, each.lv_id, each.writable, each.tags, each.segments, each.created)
                    for each in self.volumes.values())  # fmt: skip
        self.vg = self.vg._replace(seqno=self.vg.seqno + 1, lvs=lvs)
        text = build_lvm.vg_text(self.vg)
        offset = align_up(self.text.end, 512)
        if offset >= self.area.length:
            offset -= self.area.length - 512
        build_lvm.put_text(self.disk, self.area, offset, text)
        self.disk.poke(self.area.offset, build_lvm.mda_header(self.area, [build_lvm.raw_locn(offset, text)]))
        self.text = Range(offset, len(text))
