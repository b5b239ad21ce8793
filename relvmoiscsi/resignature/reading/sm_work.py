# SPDX-License-Identifier: LGPL-2.1-only
"""The volumes and records of a LUN, while `sm_journals` settles SM's unfinished work change by change. Pure."""

from typing import Dict, Iterator, List, Optional, Set, Tuple

from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.mgt import with_records, without_pools, without_records
from relvmoiscsi.formats.naming import LvName
from relvmoiscsi.formats.qcow2 import Qcow2
from relvmoiscsi.formats.vhd import Vhd
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, Work


class WorkArea:
    """The volumes of a LUN by LV id, and the changes to them."""

    def __init__(self, lun: Lun) -> None:
        self.lun = lun
        self.sentences: List[str] = []
        self.new_records: Dict[str, bytes] = {}  #: by UUID of the VDI
        self.freed_records: List[str] = []
        self._volumes: Dict[str, Volume] = {}
        # a LUN may have thousands of journals, and each asks for the same: nothing is looked for among all volumes
        self.records = lun.records()
        self._disks: Dict[Optional[str], Set[str]] = {}  #: LV ids by UUID of the VDI
        #: LV ids by whether SM still has to delete the volume, and by kind and UUID of its parent
        self._children: Dict[Tuple[bool, str, Optional[str]], Set[str]] = {}
        for volume in lun.volumes:
            self.put(volume)
        self._place = {volume.lv.id: place for place, volume in enumerate(lun.volumes)}
        self.journals = [
            volume
            for volume in lun.volumes
            if volume.name.kind == naming.JOURNAL
            and volume.name.journal in naming.FINISHED_JOURNALS
            and naming.JOURNAL_TAG in volume.lv.tags
        ]
        self.inflated = {journal.name.uuid for journal in self.journals if journal.name.journal == naming.INFLATE}
        self.has_strangers = any(
            not volume.hidden and uuid not in self.records for uuid, volume in lun.disks().items()
        )  #: whether MGT lacks a visible disk

    def as_found(self, volume: Volume) -> Volume:
        """The volume as it is on the LUN: the work may have renamed it."""
        return self.lun.volumes[self._place[volume.lv.id]]

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def disk(self, uuid: Optional[str], is_old: bool = False) -> Optional[Volume]:
        """The volume of a VDI; with `is_old`, the `OLD_` leaf of the VDI."""
        for lv_id in sorted(self._disks.get(uuid, ()), key=self._place.__getitem__):
            if self._volumes[lv_id].name.is_old == is_old:
                return self._volumes[lv_id]
        return None

    def children(self, volume: Volume, is_old: bool = False) -> Iterator[Volume]:
        """The volumes whose parent is this VDI; with `is_old`, the `OLD_` leaves instead of the others.

        In no order: the caller takes the first, of maybe thousands.
        """
        of_parent = is_old, volume.name.kind, volume.name.uuid
        return map(self._volumes.__getitem__, self._children.get(of_parent, ()))

    def drop(self, volume: Volume) -> None:
        gone = self._volumes.pop(volume.lv.id)
        self._disks.get(gone.name.uuid, set()).discard(gone.lv.id)
        if gone.parent is not None:
            self._children[(gone.name.is_old, *gone.parent[1:])].discard(gone.lv.id)

    def rename(self, volume: Volume, uuid: str) -> Volume:
        """Give a volume the name of a VDI; the kind stays."""
        kind = volume.name.kind
        name = LvName(naming.LV_PREFIXES[kind] + uuid, kind, uuid)
        return self.put(volume._replace(name=name, lv=volume.lv._replace(name=name.text)))

    def set_read_only(self, volume: Volume, read_only: bool) -> Volume:
        status = volume.lv.status - {"WRITE"} if read_only else volume.lv.status | {"WRITE"}
        return self.put(volume._replace(lv=volume.lv._replace(status=status)))

    def set_hidden(self, volume: Volume, hidden: bool) -> Volume:
        """Set the hidden flag: in the image, for a raw volume in a tag of the LV. Raises Unsupported."""
        if volume.hidden == hidden and not isinstance(volume.content, Vhd):
            return volume
        if isinstance(volume.content, Vhd):
            return self.put(volume._replace(content=volume.content.with_hidden(hidden)))
        if isinstance(volume.content, Qcow2):
            return self.put(volume._replace(content=volume.content.with_hidden(hidden, volume.name.text)))
        tags = tuple(tag for tag in volume.lv.tags if tag != naming.HIDDEN_TAG)
        return self.put(volume._replace(lv=volume.lv._replace(tags=(*tags, naming.HIDDEN_TAG) if hidden else tags)))

    def put(self, volume: Volume) -> Volume:
        old = self._volumes.get(volume.lv.id, volume)
        self._disks.get(old.name.uuid, set()).discard(volume.lv.id)
        if old.parent is not None:
            self._children.get((old.name.is_old, *old.parent[1:]), set()).discard(volume.lv.id)
        if volume.parent is not None:
            self._children.setdefault((volume.name.is_old, *volume.parent[1:]), set()).add(volume.lv.id)
        if volume.name.kind in naming.DISK_KINDS:
            self._disks.setdefault(volume.name.uuid, set()).add(volume.lv.id)
        self._volumes[volume.lv.id] = volume
        return volume

    def result(self) -> Work:
        volumes = tuple(self._volumes[v.lv.id] for v in self.lun.volumes if v.lv.id in self._volumes)
        mgt, mgt_volume = self.lun.mgt, next((v for v in self.lun.volumes if v.name.kind == naming.MGT), None)
        if mgt is not None and mgt_volume is not None:
            mgt = without_records(mgt, self.freed_records)
            known = mgt.live()
            wanted = {uuid: record for uuid, record in self.new_records.items() if uuid not in known}
            if wanted:
                mgt, without_slot = with_records(mgt, wanted, mgt_volume.size)
                for uuid in without_slot:
                    self.say(f"MGT is full: VDI {uuid} gets no record, and so no label.")
        return Work(self.lun._replace(volumes=volumes, mgt=mgt), tuple(self.sentences))


# --- databases of pools

_MOST_POOLS, _MOST_REFERENCE = 100, 64  #: a reference of xapi has 46 characters

# MGT has the reference of the pool whose database a VDI holds. The MGT of a clone has the same reference. When a shared
# SR with such a VDI is plugged on the master of that pool, xapi writes its database into the VDI: into the clone. So a
# caller can ask to clear the reference. The VDI and its data stay.
# Source: xen-api ocaml/xapi/xapi_dr.ml (handle_metadata_vdis), message_forwarding.ml (PBD.plug); SM drivers/LVHDSR.py.


def databases(lun: Lun) -> Dict[str, str]:
    """The references of pools, by the UUID of the VDI into which the pool writes its database."""
    disks = lun.disks()
    records = lun.records().items()
    return {uuid: record.metadata_of_pool for uuid, record in records if uuid in disks and record.metadata_of_pool}


def database_pools(name: str, lun: Lun) -> List[str]:
    """The references of these pools, each once and sorted. `name` is the device's.

    Raises Malformed for more references, or longer ones, than fit into an answer to xapi: a part of them would hide a
    pool whose database is at stake.
    """
    pools = sorted(set(databases(lun).values()))
    if len(pools) > _MOST_POOLS or any(len(pool) > _MOST_REFERENCE for pool in pools):
        raise Malformed("MGT", Place(name, 0), f"it names the databases of {len(pools)} pools, which cannot be right")
    return pools


def without_databases(lun: Lun) -> Lun:
    """The LUN, with `Lun.work` that also clears the references of pools; `lun` itself when MGT has no reference."""
    settled = lun.settled()
    found = databases(settled)
    if not found or settled.mgt is None:
        return lun
    after = settled._replace(mgt=without_pools(settled.mgt), work=None)
    sentences = [f"VDI {uuid} is not to hold the database of the pool {pool} any more." for uuid, pool in found.items()]
    work = lun.work or Work(settled, ())
    return lun._replace(work=Work(after, [*work.sentences, *sentences], work.merged, work.left_behind))
