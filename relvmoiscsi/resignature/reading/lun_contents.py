# SPDX-License-Identifier: LGPL-2.1-only
"""The content of a LUN as values, and checks that the parts of a LUN agree with each other.

Lun
 +-- label, mdas          the label and the headers of the metadata areas
 +-- vg                   the committed metadata text
 +-- volumes              for each LV: the parts of its name, and its content
 +-- mgt                  SM's records, None when the SR has no MGT volume
 +-- work                 SM's unfinished work, and the LUN after this work; None when SM has no unfinished work

A defect that SM, LVM and tapdisk tolerate is a note (`resignature.reading.lun_notes`), not an error.
"""

from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from relvmoiscsi.device import SECTOR
from relvmoiscsi.errors import (
    NO_WAY_OUT,
    BadMagic,
    FormatError,
    Malformed,
    OnDefect,
    Place,
    Unsupported,
    WayOut,
    raise_defect,
)
from relvmoiscsi.formats import naming, saved_vms
from relvmoiscsi.formats.cbt import CbtLog
from relvmoiscsi.formats.identity import sightings
from relvmoiscsi.formats.lvm.pv import Label, Mda
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.mgt import Mgt, VdiRecord
from relvmoiscsi.formats.naming import LvName, ParentName
from relvmoiscsi.formats.qcow2 import Qcow2
from relvmoiscsi.formats.vhd import Vhd

#: a FormatError for a volume that does not fit its name: SM has not filled the volume yet, or the volume is damaged. A
#: str for the text of an SM journal. None for a journal without such a text, and for other volumes that are not read
Content = Union[Vhd, Qcow2, CbtLog, FormatError, str, None]

#: what helps against a damaged LUN
CHECK_ORIGINAL = "Check the original: if it is whole, take the copy again from the array."
#: what helps against a LUN that is too short
TAKE_WHOLE = "Take the copy again from the array, on a LUN of the original's size."


class Volume(NamedTuple):
    """A logical volume and its content. `texts` are the parent's names outside the header, as stored."""

    lv: LogicalVolume
    name: LvName
    size: int  #: bytes
    content: Content
    parent: Optional[ParentName]  #: the parent that header and locators name after the run; see `agreed_parent`
    texts: Tuple[bytes, ...]
    named: Tuple[ParentName, ...] = ()  #: the parents that header and locators name on the LUN, where these differ
    empty: Optional[bool] = None  #: whether a VHD or QCOW2 has no block; None: the block table was not read
    unwritten: bool = False  #: a VHD or QCOW2 without the magic bytes of its image: it names nobody

    @property
    def uuids(self) -> List[str]:
        """The UUIDs of SRs and VDIs in the name, as the parent, and in the links of a written changed-block log."""
        found = [*self.name.uuids, self.parent.uuid if self.parent else None]
        if isinstance(self.content, CbtLog) and self.content.is_written:
            found += [self.content.parent, self.content.child]
        return [uuid for uuid in found if uuid]

    @property
    def is_disk(self) -> bool:
        """Whether the volume holds the blocks of a VDI. False for an `OLD_` leaf, which SM still has to delete."""
        return self.name.kind in naming.DISK_KINDS and not self.name.is_old

    @property
    def hidden(self) -> bool:
        """Whether SM keeps the volume only as a parent."""
        if isinstance(self.content, (Vhd, Qcow2)):
            return self.content.hidden
        return "hidden" in self.lv.tags

    def is_made_of(self, parent: "Volume") -> bool:
        """Whether the volume was made of `parent`: a VHD holds the footer UUID of its parent, zeros for a raw parent.

        tapdisk opens any parent as a raw one if the VHD holds zeros. A QCOW2 has no such UUID: always true.
        Source: blktap include/libvhd.h, vhd_parent_raw.
        """
        if not isinstance(self.content, Vhd):
            return True
        parent_uuid = self.content.header.parent_uuid
        if not isinstance(parent.content, Vhd):
            return not any(parent_uuid)
        return any(parent_uuid) and parent_uuid == parent.content.footer.uuid

    @property
    def virtual_size(self) -> int:
        """Bytes of the virtual disk."""
        return self.content.virtual_size if isinstance(self.content, (Vhd, Qcow2)) else self.size


class Lun(NamedTuple):
    """An SR on a LUN."""

    name: str  #: name of the device, for messages
    size_bytes: int
    label: Label
    mdas: Tuple[Mda, ...]
    vg: VolumeGroup
    sr_uuid: str
    volumes: Tuple[Volume, ...]
    mgt: Optional[Mgt]
    stale_mdas: bool = False  #: the metadata areas hold texts of different generations
    work: "Optional[Work]" = None

    def __repr__(self) -> str:
        return f"Lun({self.name!r}, SR {self.sr_uuid}, {len(self.volumes)} volumes)"

    @property
    def is_truncated(self) -> bool:
        """Whether the device ends before the last extent of LVM."""
        return self.vg.data_end > self.size_bytes

    def settled(self) -> "Lun":
        """The LUN after SM's unfinished work. A resignature changes the identities of this LUN."""
        return self.work.lun if self.work else self

    def disks(self) -> Dict[str, Volume]:
        """The volumes that hold VDIs, by VDI UUID."""
        return {str(volume.name.uuid): volume for volume in self.volumes if volume.is_disk}

    def saves(self) -> Dict[str, Volume]:
        """The disks with the form of those on which `relvmoiscsi pool save-vms` saves the records of VMs, by VDI UUID.

        No VM uses such a disk. But everybody may give a disk the label.
        """
        names = {uuid: record.name_label for uuid, record in self.records().items()}
        return {
            uuid: disk
            for uuid, disk in self.disks().items()
            if disk.content is None and saved_vms.may_be(names.get(uuid, ""), disk.size)
        }

    def without(self, volumes: "Iterable[Volume]") -> "Lun":
        """The LUN without these volumes. Their records in MGT stay."""
        gone = {volume.lv.id for volume in volumes}
        return self._replace(volumes=tuple(volume for volume in self.volumes if volume.lv.id not in gone))

    def records(self) -> Dict[str, VdiRecord]:
        """The live MGT records, by VDI UUID."""
        return self.mgt.live() if self.mgt else {}

    def is_trim(self, volume: Volume) -> bool:
        """Whether SM's trim of this SR has made the volume: of all free extents, and without data."""
        return volume.name.kind == naming.TRIM and volume.name.uuid == self.sr_uuid

    def volume(self, name: str) -> Volume:
        return next(volume for volume in self.volumes if volume.name.text == name)

    def without_lv(self, lv_name: str) -> WayOut:
        """The way out that removes a volume with LVM."""
        return WayOut(("lvremove",), (f"{self.vg.name}/{lv_name}",))


class Work:
    """The result of SM's unfinished work, as SM's recovery would finish or undo the work; and what the caller drops.

    `lun` is the LUN after the work, under the old identities. Its volumes keep their LV ids. A volume may have another
    name, status, tag or hidden flag, or may be gone. `sentences` are messages about the work. The volume with the LV id
    `merged` gets a new image (`resignature.merge`) and other extents. `left_behind` are the ids of the LVs that the
    caller drops: these volumes need not be readable.
    """

    def __init__(
        self,
        lun: Lun,
        sentences: Sequence[str],
        merged: Optional[str] = None,
        left_behind: Sequence[str] = (),
    ) -> None:
        self.lun, self.sentences, self.merged = lun, tuple(sentences), merged
        self.left_behind = tuple(left_behind)


def _unknown(lun: Lun, volume: Volume, known: Set[str]) -> Tuple[str, WayOut]:
    """Why SM would use a volume in an unknown way, or not find it, and the way out; "" for any other volume."""
    name, tags = volume.name, volume.lv.tags
    if name.kind == naming.JOURNAL:
        if name.journal == naming.RESIZE:
            problem = "a VHD was being resized; its journal would put the old identity back"
            return problem, WayOut(vdi=str(name.uuid))
        if name.journal in naming.FINISHED_JOURNALS and naming.JOURNAL_TAG not in tags:
            problem = "it has the name of a journal and not its tag; the storage manager would not see it"
            return problem, lun.without_lv(name.text)
        if naming.JOURNAL_TAG in tags and not name.value:
            problem = "it has the tag of a journal and no value in its name; the storage manager attaches no such SR"
            return problem, lun.without_lv(name.text)
    for tag, kind in naming.LISTING_TAGS.items():
        if tag in tags and kind != name.kind:
            problem = f"it has the tag {tag}, by which the storage manager finds other volumes than this one"
            return problem, WayOut(("lvchange", "--deltag", tag), (f"{lun.vg.name}/{name.text}",))
    if name.kind == naming.TRIM and not lun.is_trim(volume):
        return f"it belongs to another SR, {name.uuid}", lun.without_lv(name.text)
    if name.kind == naming.OTHER:
        for _at, uuid in sightings(name.text, known):
            return f"its name carries the UUID {uuid}, and is none that is known", lun.without_lv(name.text)
    elif "VISIBLE" not in volume.lv.status:
        is_disk = name.kind in naming.DISK_KINDS
        return "LVM does not show it to the storage manager", WayOut(vdi=str(name.uuid)) if is_disk else NO_WAY_OUT
    return "", NO_WAY_OUT


def verify_lun(found: Lun, on_defect: OnDefect = raise_defect, dropped: Iterable[Volume] = ()) -> None:
    """Raises FormatError when a volume cannot be read, or when parts with identities contradict each other.

    These are the volumes after SM's unfinished work, without `dropped`. SM's work renames volumes. A way out has the
    name of a volume as found: relvmoiscsi and LVM look for this name.
    """
    lun, as_found = found.settled().without(dropped), {volume.lv.id: volume.name for volume in found.volumes}

    def without(volume: Volume) -> WayOut:
        name = as_found[volume.lv.id]
        return WayOut(vdi=str(name.uuid)) if name.kind in naming.DISK_KINDS else lun.without_lv(name.text)

    known = {lun.sr_uuid, *(str(one.name.uuid) for one in lun.volumes if one.name.kind in naming.DISK_KINDS)}
    for volume in lun.volumes:
        unknown, way_out = _unknown(lun, volume, known)
        if unknown:
            mda = next(mda for mda in lun.mdas if mda.has_text)
            where = Place(lun.name, mda.area.offset + mda.committed.offset)  # of the committed text
            on_defect(Unsupported(f"Logical volume {volume.name.text}", where, unknown).with_way_out(way_out))
    records = lun.records()
    for volume in lun.volumes:
        if isinstance(volume.content, FormatError):
            is_recorded = lun.mgt is None or volume.name.uuid in records
            on_defect(_unreadable(volume, volume.content, is_recorded).with_way_out(without(volume)))
        if isinstance(volume.content, Vhd) and volume.content.stale_end is not None:
            where = Place(volume.name.text, volume.size - SECTOR)
            problem = Malformed("VHD footer", where, "it is the footer of another VHD, and no journal explains this")
            on_defect(problem.with_way_out(without(volume)))
    disks = lun.disks()
    names: Dict[str, str] = {}
    for volume in lun.volumes:
        if volume.is_disk:
            uuid = str(volume.name.uuid)
            if uuid in names:
                double = Malformed("Logical volume", Place(volume.name.text, 0), f"{names[uuid]} holds the same VDI")
                on_defect(double.with_way_out(lun.without_lv(as_found[volume.lv.id].text)))
            names[uuid] = volume.name.text
    for volume in lun.volumes:
        if volume.parent is not None:
            parent, wrong = disks.get(volume.parent.uuid), ""
            foreign = next((one.sr for one in (volume.parent, *volume.named) if one.sr != lun.sr_uuid), "")
            if foreign:
                wrong = f"it is a volume of another SR, {foreign}"
            elif parent is None or parent.name.kind != volume.parent.kind or isinstance(parent.content, FormatError):
                continue
            elif parent.name.kind not in (volume.name.kind, naming.RAW):
                wrong = f"it is a {parent.name.kind}, and its child is a {volume.name.kind}"
            elif not volume.is_made_of(parent):
                wrong = f"{parent.name.text} is not the VHD that this one was made of"
            if wrong:
                on_defect(Malformed("Parent", Place(volume.name.text, 0), wrong).with_way_out(without(volume)))
    for volume in _first_of_loops(lun):
        problem = Malformed("Parent", Place(volume.name.text, 0), "the chain of parents comes back to it")
        on_defect(problem.with_way_out(without(volume)))


def _unreadable(volume: Volume, problem: FormatError, is_recorded: bool) -> FormatError:
    """The error for a volume that cannot be read. `is_recorded`: MGT has a record of the VDI, or cannot be read.

    SM's VDI.create makes the volume, then the image, then the record in MGT, with no journal. An array snapshot may
    come between, and a killed call leaves the volume. Source: SM drivers/LVHDSR.py, create, _loadvdis.
    """
    if not is_recorded and volume.is_disk and isinstance(problem, BadMagic) and problem.where.offset == 0:
        text = (
            f"it holds no {volume.name.kind.upper()}, and MGT has no record of its VDI. The storage manager had not "
            "finished creating the VDI; each scan of an SR with such a volume fails (error 46)"
        )
        return Malformed("Disk image", problem.where, text)
    return problem


def agreed_parent(volume: Volume, disks: Mapping[str, Volume]) -> ParentName:
    """The parent of a volume whose header and locators name different parents, `Volume.named`.

    They differ when a reparenting was cut. Then the right parent is the VHD of which the volume was made. SM follows
    the header, so the header's parent is tried first. Raises Malformed when no named parent fits.
    """
    for parent in volume.named:
        found = disks.get(parent.uuid)
        if found is not None and found.name.kind == parent.kind and volume.is_made_of(found):
            return parent
    texts = " and ".join(f"{parent.kind} {parent.uuid}" for parent in volume.named)
    problem = f"header and locators name {texts}, and it was made of none of them"
    raise Malformed("Parent", Place(volume.name.text, 0), problem)


def _first_of_loops(lun: Lun) -> Iterator[Volume]:
    """A volume of each chain of parents that comes back to this volume."""
    disks = lun.disks()
    finished = set()
    for start in disks:
        path: Set[str] = set()
        uuid = start
        while uuid in disks and uuid not in finished:
            if uuid in path:
                yield disks[uuid]
                break
            path.add(uuid)
            parent = disks[uuid].parent
            uuid = parent.uuid if parent else ""
        finished.update(path)
