# SPDX-License-Identifier: LGPL-2.1-only
"""Check a resignature: each identity is new, and nothing but identities differs.

The callers are the plan (its result in memory, before the first write), `check --original` (two LUNs), and the tests.
"""

from typing import Container, Dict, List, Optional, Set, Union

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import cbt, naming
from relvmoiscsi.formats import mgt as mgt_records
from relvmoiscsi.formats.cbt import CbtLog
from relvmoiscsi.formats.identity import IdMap, dashed, derived_lvm_id, derived_uuid, sightings, with_new_ids
from relvmoiscsi.formats.lvm.vg import text_without_tags
from relvmoiscsi.formats.naming import ParentName
from relvmoiscsi.formats.vhd import DynamicHeader, Vhd
from relvmoiscsi.resignature.reading.contradictions import verify_resignatured
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun, Volume


def identities(lun: Lun) -> Dict[str, str]:
    """Each identity on a LUN, and a phrase for its place."""
    found = {
        dashed(lun.label.pv_id): "PV id",
        dashed(lun.vg.id): "id of the volume group",
        lun.sr_uuid: "SR UUID in the name of the volume group",
    }
    for volume in lun.volumes:
        found[dashed(volume.lv.id)] = "id of " + volume.name.text
        for uuid in (*volume.uuids, *(parent.uuid for parent in volume.named)):
            found.setdefault(uuid, "UUID in " + volume.name.text)
    if lun.mgt:
        found.setdefault(lun.mgt.sr_uuid, "SR UUID in MGT")
        for record in lun.mgt.records:
            for uuid in filter(None, (record.uuid, record.snapshot_of)):
                found.setdefault(uuid, f"UUID in the MGT record at byte {record.offset}")
        for at, uuid in lun.mgt.links.items():
            found.setdefault(uuid, f"UUID in the MGT record at byte {mgt_records.slot_of(at)}")
    return found


def shared_identities(one: Lun, other: Lun) -> List[str]:
    """A sentence for each identity that is on both LUNs."""
    others = identities(other)
    return [
        f"{identity} is on both: {where} of {one.name}, {others[identity]} of {other.name}."
        for identity, where in identities(one).items()
        if identity in others
    ]


def foreign_identities(lun: Lun) -> List[str]:
    """A sentence for each identity on a LUN that may belong to another SR, for example after a half-written run.

    A record or a link of a deleted VDI is no proof, and may be harmless. Parents are not judged here: `read_lun`
    verifies parents.
    """
    found, disks = [], lun.disks()
    if lun.mgt and lun.mgt.sr_uuid != lun.sr_uuid:
        found.append(f"MGT names the SR {lun.mgt.sr_uuid}, the volume group {lun.sr_uuid}.")
    for uuid in lun.records():
        if uuid not in disks:
            found.append(f"MGT has a record of VDI {uuid}, which has no volume.")
    known = set(disks).union(record.uuid for record in (lun.mgt.records if lun.mgt else []))
    known.update(uuid for volume in lun.volumes for uuid in volume.name.uuids)
    for offset in lun.mgt.unread if lun.mgt else ():
        found.append(f"The MGT record at byte {offset} does not read.")
    for volume in lun.volumes:
        if volume.named:
            found.append(f"Header and locators of {volume.name.text} name different parents.")
        for uuid in volume.uuids:
            if uuid not in known:
                found.append(f"{volume.name.text} names {uuid}, which is not there.")
    return found


def is_made_of(original: Lun, clone: Lun, last_run: Optional[IdMap]) -> bool:
    """Whether ids of `clone` are ids that a run derives from the ids of `original` (`formats.identity`).

    `last_run` is the map of the clone's last run, from its journal. With `last_run` this finds the original of a clone
    that was resignatured twice.
    """
    uuids, lvm_ids = set(clone.disks()), _lvm_ids(clone)
    if _some_follow(original, clone.sr_uuid, uuids, lvm_ids):
        return True
    if last_run is None:
        return False
    return last_run.sr == original.sr_uuid or _some_follow(original, last_run.sr, last_run.uuids, last_run.lvm_ids)


def _some_follow(original: Lun, new_sr: str, uuids: Container[str], lvm_ids: Container[str]) -> bool:
    """Whether `uuids` or `lvm_ids` have an id that a run derives from an id of `original` for the SR `new_sr`."""
    return any(derived_lvm_id(new_sr, lvm_id) in lvm_ids for lvm_id in _lvm_ids(original)) or any(
        derived_uuid(new_sr, uuid) in uuids for uuid in original.disks()
    )


def _lvm_ids(lun: Lun) -> Set[str]:
    return {lun.label.pv_id, lun.vg.id, *(volume.lv.id for volume in lun.volumes)}


def has_same_shape(one: Lun, other: Lun) -> bool:
    """Whether two LUNs have volumes at the same places, and equal numbers of identities in each volume and in MGT."""
    first, second = (
        (
            [(volume.lv.segments, volume.name.kind, len(volume.uuids)) for volume in lun.volumes],
            [bool(record.snapshot_of) for record in lun.mgt.records] if lun.mgt else None,
        )
        for lun in (one, other)
    )
    return first == second


def pairing(original: Lun, clone: Lun) -> Optional[IdMap]:
    """The map from the original's identities to the clone's, by the places of volumes; None for other places."""
    uuids, lvm_ids = {original.sr_uuid: clone.sr_uuid}, {}
    lvm_ids[original.label.pv_id] = clone.label.pv_id
    lvm_ids[original.vg.id] = clone.vg.id
    places = {volume.lv.segments: volume for volume in clone.volumes}
    for volume in original.volumes:
        other = places.get(volume.lv.segments)
        if other is None:
            return None
        lvm_ids[volume.lv.id] = other.lv.id
        for old, new in zip(volume.uuids, other.uuids):
            uuids.setdefault(old, new)
    if original.mgt is not None and clone.mgt is not None:
        for record, other_record in zip(original.mgt.records, clone.mgt.records):
            uuids.setdefault(record.uuid, other_record.uuid)
            if record.snapshot_of and other_record.snapshot_of:
                uuids.setdefault(record.snapshot_of, other_record.snapshot_of)
        for uuid, other_uuid in zip(original.mgt.links.values(), clone.mgt.links.values()):
            uuids.setdefault(uuid, other_uuid)
    return IdMap(original.sr_uuid, uuids, lvm_ids)


def differences(before: Lun, after: Lun, ids: IdMap, generations: int = 1) -> List[str]:
    """A sentence for each difference between `after` and `before` under the new ids.

    `generations` is the expected difference of the seqnos: each resignature and each undo raises the seqno by one.
    """
    vg, new, names = before.vg, after.vg, ids.names()
    found = _expect("The PV id in the label", after.label.pv_id, ids.lvm_ids[before.label.pv_id])
    found += _expect("The PV id in the metadata", new.pv_id, ids.lvm_ids[vg.pv_id])
    found += _expect("The volume group's id", new.id, ids.lvm_ids[vg.id])
    found += _expect("The volume group's name", new.name, naming.VG_PREFIX + ids.new_sr)
    for name in ("dev_size", "pe_start", "pe_count", "extent_size"):
        found += _expect(name, getattr(new, name), getattr(vg, name))
    found += _expect("seqno", new.seqno, vg.seqno + generations)
    # without its tags: an administrator's tag may hold an old UUID
    stale = sightings(new.text, names) and sightings(text_without_tags(new), names)
    for identity in sorted({identity for _at, identity in stale}):
        found.append(f"The old identity {identity} is still in the metadata text.")
    if len(before.volumes) != len(after.volumes):
        return found + [f"{after.name} has {len(after.volumes)} volumes, expected {len(before.volumes)}."]
    for volume, other in zip(before.volumes, after.volumes):
        found += _volume_differences(volume, other, with_new_ids(volume.name.text, names), ids)
    if before.mgt is None or after.mgt is None:
        has, wanted = ("no MGT volume" if lun.mgt is None else "an MGT volume" for lun in (after, before))
        return found + ([f"{after.name} has {has}, expected {wanted}."] if has != wanted else [])
    found += _expect("The SR UUID in MGT", after.mgt.sr_uuid, ids.new_sr)
    found += _expect("MGT's length", after.mgt.length, before.mgt.length)
    found += _expect("The number of MGT records", len(after.mgt.records), len(before.mgt.records))
    for record, twin in zip(before.mgt.records, after.mgt.records):
        where = f"MGT record at byte {record.offset}"
        found += _expect(f"The UUID in the {where}", twin.uuid, ids.uuids[record.uuid])
        snapshot_of = ids.uuids.get(record.snapshot_of, record.snapshot_of)
        found += _expect(f"snapshot_of in the {where}", twin.snapshot_of or "empty", snapshot_of or "empty")
        for name in mgt_records.other_tags(before.mgt, record, after.mgt, twin):
            found.append(f"The {where} has another {name}.")
    links = {at: ids.uuids[uuid] for at, uuid in before.mgt.links.items()}
    found += _alike("The list of UUIDs in unreadable MGT records", after.mgt.links, links)
    return found + _alike("The list of unreadable MGT records", after.mgt.unread, before.mgt.unread)


def _expect(what: str, found: Union[str, int], expected: Union[str, int]) -> List[str]:
    return [] if found == expected else [f"{what} is {found}, expected {expected}."]


def _alike(what: str, found: object, expected: object) -> List[str]:
    """The sentence for values that have no words for a person."""
    return [] if found == expected else [f"{what} is not what is expected."]


def _volume_differences(volume: Volume, other: Volume, name: str, ids: IdMap) -> List[str]:
    expected = volume.lv._replace(name=name, id=ids.lvm_ids[volume.lv.id])
    others = [field for field in expected._fields if getattr(other.lv, field) != getattr(expected, field)]
    found = [f"Logical volume {name} has another {', '.join(others)} than expected."] if others else []
    if volume.parent is not None:
        parent = volume.parent._replace(sr=ids.new_sr, uuid=ids.uuids[volume.parent.uuid])
        for one in other.named or (other.parent,):
            found += _expect(f"The parent of {name}", _parent(one), _parent(parent))
    content = volume.content
    if isinstance(content, CbtLog):
        content = cbt.renamed(content, ids.uuids)
    if other.content is content:
        return found
    is_disputed = bool(volume.named)
    wanted = _shape(content, is_disputed)
    return found + _alike(f"The content of {name}", _shape(other.content, is_disputed), wanted)


def _parent(parent: Optional[ParentName]) -> str:
    return f"the {parent.kind} {parent.uuid} of SR {parent.sr}" if parent is not None else "none"


def _shape(content: Content, disputed: bool) -> object:
    """The content of a volume without the parts that a new identity changes. `_volume_differences` compares the parent.

    With `disputed` also without the lengths of locators: the run has made header and locators of the VHD agree.
    """
    if not isinstance(content, Vhd):
        return content
    header = content.header.replace(checksum=0, parent_name=bytes(DynamicHeader.parent_name.size))
    if not disputed:
        return content._replace(header=header, parent=None)
    header = header.replace(locators=bytes(DynamicHeader.locators.size))
    locators = tuple(one.replace(data_length=0) for one in content.locators)
    return content._replace(header=header, locators=locators, parent=None)


def verify_result(before: Lun, after: Lun, ids: IdMap) -> None:
    """Raises Refused unless `after`, the result of a plan, is `before` under new ids with SM's work finished.

    Raises FormatError as `verify_resignatured`.
    """
    settled = before.settled()
    problems = differences(settled, after, ids) + shared_identities(before, after)
    if after.work is not None:
        problems += ["It still holds unfinished work of the storage manager."]
    if settled is not before:
        problems += shared_identities(settled, after)
    if problems:
        raise Refused("The planned result does not check: {}".format(" ".join(problems[:5])), sm_key="MetadataError")
    verify_resignatured(after)
