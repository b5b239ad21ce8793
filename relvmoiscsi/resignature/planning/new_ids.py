# SPDX-License-Identifier: LGPL-2.1-only
"""The new ids of a LUN: chosen by the caller, or derived from the new SR UUID and the old id. Pure."""

import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats.identity import (
    UUID_PATTERN,
    Entropy,
    IdMap,
    check_one_to_one,
    derived_lvm_id,
    derived_uuid,
    is_lvm_id,
    is_uuid,
    may_become,
    uuid_of_version,
)
from relvmoiscsi.resignature.reading.lun_contents import Lun


def old_uuids(lun: Lun) -> List[str]:
    """Each SR and VDI UUID on the LUN once, the SR UUID first.

    UUIDs in links to deleted VDIs, and in the journals of SM's unfinished work, are included.
    """
    found = [lun.sr_uuid]
    for volume in lun.volumes:
        found += volume.uuids
    for mgt in filter(None, (lun.mgt, lun.settled().mgt)):
        for record in mgt.records:
            found += [record.uuid, record.snapshot_of]
        found += mgt.links.values()
    for volume in lun.volumes:
        if isinstance(volume.content, str):  # of a journal
            found += re.findall(UUID_PATTERN, volume.content)
    return list(dict.fromkeys(uuid for uuid in found if uuid))


def old_lvm_ids(lun: Lun) -> List[str]:
    """The ids of the PV, the VG and each LV of the LUN."""
    return [lun.label.pv_id, lun.vg.id, *(lv.id for lv in lun.vg.lvs)]


def choose_ids(
    lun: Lun,
    entropy: Entropy,
    chosen: Optional[IdMap] = None,
    sr_uuid: Optional[str] = None,
    last_run: Optional[IdMap] = None,
) -> IdMap:
    """New ids for all identities of the LUN: an id of `chosen`, else an id derived from the new SR UUID.

    The new SR UUID is the choice for the SR in `chosen`, else `sr_uuid`, else a random UUID. Raises UsageError for a
    wrong id, for an id that is not on the LUN, for a map that is not one to one, for a UUID that a run derives from
    another UUID (`verify_run` refuses such a journal), for an LVM id that is not derived, and for a new UUID that
    `last_run` has replaced: the original has it.
    """
    wanted_uuids = dict(chosen.uuids) if chosen else {}
    wanted_lvm_ids = dict(chosen.lvm_ids) if chosen else {}
    if chosen and chosen.sr and chosen.sr != lun.sr_uuid:  # a map of a file has no SR, but old ids
        raise UsageError(f"The map is for the SR {chosen.sr}, and the LUN holds the SR {lun.sr_uuid}.")
    if sr_uuid is not None and wanted_uuids.setdefault(lun.sr_uuid, sr_uuid) != sr_uuid:
        raise UsageError(f"The map chooses another SR UUID than {sr_uuid}.")
    if lun.sr_uuid not in wanted_uuids:
        wanted_uuids[lun.sr_uuid] = uuid_of_version(4, entropy(16))
    new_sr = wanted_uuids[lun.sr_uuid]
    for uuid in wanted_uuids.values():
        if not is_uuid(uuid):
            raise UsageError(f"{uuid!r} is not a UUID of 36 characters in lower case.")
    for old, new in wanted_uuids.items():
        if old != lun.sr_uuid and not may_become(new_sr, old, new):
            problem = f"The map says that {old} becomes {new}, which is derived from another UUID, or for another SR."
            raise UsageError(problem).advising(f"Choose a random UUID, or leave {old} out of the map.")
    for lvm_id in wanted_lvm_ids.values():
        if not is_lvm_id(lvm_id):
            raise UsageError(f"{lvm_id!r} is no LVM id: 32 letters and digits, without dashes.")
    for old, new in wanted_lvm_ids.items():
        if new != derived_lvm_id(new_sr, old):  # nothing would prove later that the id is new
            problem = f"The map says that {old} becomes {new}. An LVM id is derived from the new SR and the old id."
            raise UsageError(problem).advising(f"Leave {old} out of the map.")
    uuids = _chosen(old_uuids(lun), wanted_uuids, lambda old: derived_uuid(new_sr, old), "UUID")
    lvm_ids = _chosen(old_lvm_ids(lun), wanted_lvm_ids, lambda old: derived_lvm_id(new_sr, old), "LVM id")
    check_one_to_one(uuids, "UUID", [volume.name.text for volume in lun.volumes])
    check_one_to_one(lvm_ids, "LVM id")
    for new in sorted(set(last_run.uuids).intersection(uuids.values()) if last_run is not None else ()):
        problem = f"The new id {new} is an id of the original: the last resignature of the LUN has replaced it."
        raise UsageError(problem).advising("Choose another one.")
    return IdMap(lun.sr_uuid, uuids, lvm_ids)


def _chosen(old: Sequence[str], wanted: Mapping[str, str], derive: Callable[[str], str], what: str) -> Dict[str, str]:
    for unknown in sorted(set(wanted) - set(old)):
        raise UsageError(f"The map speaks of the {what} {unknown}, which is not on the LUN.")
    return {identity: wanted[identity] if identity in wanted else derive(identity) for identity in old}
