# SPDX-License-Identifier: LGPL-2.1-only
"""What is on a LUN, as values; and whether its parts agree with each other.

Lun
 +-- label, mdas          LVM's view of the disk
 +-- vg                   the committed metadata text
 +-- volumes              one per LV: its name taken apart, what is inside
 +-- mgt                  SM's records, None when the SR has no MGT volume
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi import naming
from relvmoiscsi.cbt import CbtLog
from relvmoiscsi.errors import Malformed, Place, Unsupported
from relvmoiscsi.lvm.pv import Label, Mda
from relvmoiscsi.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.mgt.records import Mgt, VdiRecord
from relvmoiscsi.naming import LvName, ParentName
from relvmoiscsi.ondisk import Change
from relvmoiscsi.qcow2.image import Qcow2
from relvmoiscsi.vhd.image import Vhd

Content = Union[Vhd, Qcow2, CbtLog, None]


class Volume(NamedTuple):
    """A logical volume and what is inside. `texts` are the parent's names as stored outside the header."""

    lv: LogicalVolume
    name: LvName
    size: int  #: bytes
    content: Content
    parent: Optional[ParentName]
    texts: Tuple[bytes, ...]

    @property
    def is_disk(self) -> bool:
        """It holds the blocks of a VDI that counts; `OLD_` leaves wait for deletion and do not."""
        return self.name.kind in naming.DISK_KINDS and not self.name.is_old

    @property
    def hidden(self) -> bool:
        """Kept only as a parent."""
        if isinstance(self.content, (Vhd, Qcow2)):
            return self.content.hidden
        return "hidden" in self.lv.tags

    @property
    def virtual_size(self) -> int:
        """Bytes of the virtual disk."""
        return self.content.virtual_size if isinstance(self.content, (Vhd, Qcow2)) else self.size


class Lun(NamedTuple):
    """An SR on a LUN."""

    name: str  #: how messages call the device
    size_bytes: int
    label: Label
    mdas: Tuple[Mda, ...]
    vg: VolumeGroup
    sr_uuid: str
    volumes: Tuple[Volume, ...]
    mgt: Optional[Mgt]

    def disks(self) -> Dict[str, Volume]:
        """The volumes that hold VDIs, by VDI UUID."""
        return {str(volume.name.uuid): volume for volume in self.volumes if volume.is_disk}

    def records(self) -> Dict[str, VdiRecord]:
        """The live MGT records, by VDI UUID."""
        return self.mgt.live() if self.mgt else {}

    def volume(self, name: str) -> Volume:
        return next(volume for volume in self.volumes if volume.name.text == name)


class VolumeChange(NamedTuple):
    """A change of bytes inside a logical volume."""

    volume: Volume
    change: Change


def refuse_volumes_in_flight(names: Sequence[LvName], sr_uuid: str, where: Place) -> None:
    """Refuse journals that only the original SR can finish, and a trim volume of another SR. Raises Unsupported."""
    for name in names:
        what = "Logical volume {}".format(name.text)
        if name.kind == naming.JOURNAL and name.journal in naming.REFUSED_JOURNALS:
            reason = naming.REFUSED_JOURNALS[name.journal]
            problem = "{}. Let the original SR finish it (`xe sr-scan`), then clone again".format(reason)
            raise Unsupported(what, where, problem)
        if name.kind == naming.TRIM and name.uuid != sr_uuid:
            raise Unsupported(what, where, "it belongs to another SR, {}".format(name.uuid))


def verify_lun(lun: Lun) -> None:
    """Every part agrees with the others, as far as a new identity depends on it. Raises FormatError."""
    _verify_unique_disks(lun)
    disks = lun.disks()
    for volume in lun.volumes:
        if volume.parent is not None:
            _verify_parent(lun.sr_uuid, disks, volume, volume.parent)
    _verify_no_loops(lun)


def _verify_unique_disks(lun: Lun) -> None:
    seen: Dict[str, str] = {}
    for volume in lun.volumes:
        if volume.is_disk:
            uuid = str(volume.name.uuid)
            if uuid in seen:
                where = Place(volume.name.text, 0)
                raise Malformed("Logical volume", where, "{} holds the same VDI".format(seen[uuid]))
            seen[uuid] = volume.name.text


def _verify_parent(sr_uuid: str, disks: Mapping[str, Volume], volume: Volume, parent: ParentName) -> None:
    what, where = "Parent", Place(volume.name.text, 0)
    if parent.sr != sr_uuid:
        raise Malformed(what, where, "it is a volume of another SR, {}".format(parent.sr))
    found = disks.get(parent.uuid)
    if found is None or found.name.kind != parent.kind:
        if volume.name.is_old:
            return
        raise Malformed(what, where, "it is {} {}, and there is no such volume".format(parent.kind, parent.uuid))
    if parent.kind not in (volume.name.kind, naming.RAW):
        raise Malformed(what, where, "it is a {}, and its child is a {}".format(parent.kind, volume.name.kind))
    if isinstance(volume.content, Vhd):
        footer_uuid = found.content.footer.uuid if isinstance(found.content, Vhd) else bytes(16)
        if volume.content.header.parent_uuid != footer_uuid:
            raise Malformed(what, where, "{} is not the VHD that this one was made of".format(found.name.text))


def _verify_no_loops(lun: Lun) -> None:
    disks = lun.disks()
    finished = set()
    for start in disks:
        path: List[str] = []
        uuid = start
        while uuid in disks and uuid not in finished:
            if uuid in path:
                raise Malformed("Parent", Place(disks[uuid].name.text, 0), "the chain of parents comes back to it")
            path.append(uuid)
            parent = disks[uuid].parent
            uuid = parent.uuid if parent else ""
        finished.update(path)


def warnings(lun: Lun) -> List[str]:
    """Sentences about what was found, is carried over, and should be known to whoever uses the SR."""
    found = []
    for volume in lun.volumes:
        if volume.name.kind == naming.JOURNAL:
            effect = naming.HARMLESS_JOURNALS[volume.name.journal]
            found.append("Journal {} is carried over: {}.".format(volume.name.text, effect))
        if volume.name.is_old:
            found.append("{} waits to be deleted by SM's garbage collector.".format(volume.name.text))
    return found + _mgt_warnings(lun)


def _mgt_warnings(lun: Lun) -> List[str]:
    if lun.mgt is None:
        return ["The SR has no MGT volume: its VDIs have no labels."]
    found, disks = [], lun.disks()
    if lun.mgt.sr_uuid != lun.sr_uuid:
        found.append("MGT names the SR {}, the volume group {}.".format(lun.mgt.sr_uuid, lun.sr_uuid))
    for offset in lun.mgt.damaged:
        found.append("The MGT record at byte {} is damaged: its label may be lost.".format(offset))
    for uuid, record in lun.records().items():
        if uuid not in disks and record.vdi_type in naming.MGT_TYPES.values():
            found.append("MGT has a record of VDI {}, which has no volume: SM will drop it.".format(uuid))
        elif uuid in disks and record.vdi_type != naming.MGT_TYPES[disks[uuid].name.kind]:
            kind = disks[uuid].name.kind
            found.append("MGT calls VDI {} {!r}, its volume is {}.".format(uuid, record.vdi_type, kind))
        if record.type in ("metadata", "redo_log"):
            found.append("VDI {} is a {} VDI: it holds UUIDs of the original pool.".format(uuid, record.type))
    return found
