# SPDX-License-Identifier: LGPL-2.1-only
"""Notes on a LUN: sentences about defects that are no reason for a refusal, for `show`, the log and the result."""

from typing import List, Mapping

from relvmoiscsi.errors import FormatError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.cbt import CbtLog
from relvmoiscsi.formats.mgt import SR_START
from relvmoiscsi.formats.vhd import Vhd
from relvmoiscsi.resignature.reading.contradictions import without_record, without_volume
from relvmoiscsi.resignature.reading.lun_contents import TAKE_WHOLE, Lun, Volume
from relvmoiscsi.wording import said


def notes(lun: Lun) -> List[str]:
    """A sentence for each defect or leftover that the resignature carries over to the new SR."""
    found = list(lun.work.sentences) if lun.work else []
    gone = frozenset(lun.work.left_behind) if lun.work else frozenset()
    for volume in lun.volumes:
        if volume.lv.id in gone and isinstance(volume.content, FormatError):
            found.append(f"{volume.name.text} goes, and cannot be read. {volume.content.message}")
    if any(any(bytes(mda.precommitted)) for mda in lun.mdas):
        found.append("LVM was about to change the volume group; what it had committed counts.")
    if lun.is_truncated:
        found.append(
            f"The last extent ends at byte {lun.vg.data_end}, and this disk has {lun.size_bytes} bytes: the copy is "
            f"truncated. {TAKE_WHOLE}"
        )
    elif lun.vg.dev_size > lun.size_bytes:
        found.append(
            f"LVM was told of a disk of {lun.vg.dev_size} bytes, and this disk has {lun.size_bytes}: all extents are "
            "on it. `pvresize` corrects the number."
        )
    if lun.stale_mdas:
        found.append(f"The metadata areas differ; the one with the higher seqno, {lun.vg.seqno}, counts.")
    after = lun.settled()
    disks = after.disks()
    for volume in after.volumes:
        found += _volume_notes(volume, disks)
    return found + _mgt_notes(after)


def _volume_notes(volume: Volume, disks: Mapping[str, Volume]) -> List[str]:
    name = volume.name.text
    if volume.name.kind == naming.JOURNAL:
        if volume.name.journal not in naming.HARMLESS_JOURNALS:  # on a damaged LUN, SM's work is not settled
            return [f"Journal {name} says that the storage manager was at work on the VDI."]
        effect = naming.HARMLESS_JOURNALS[volume.name.journal]
        return [f"Journal {name} is carried over: {effect}."]
    if volume.name.kind == naming.OTHER:
        return [f"{name} is not the storage manager's; its content is carried over as it is."]
    if volume.name.is_old:
        return [f"{name} waits to be deleted by SM's garbage collector."]
    if isinstance(volume.content, FormatError):
        return []
    log = volume.content
    if volume.name.kind == naming.CBT_LOG and not (isinstance(log, CbtLog) and log.is_written and log.size):
        return [
            f"{name} does not read as a CBT log: SM has not written it yet, or it is damaged. A run changes only its "
            "links to VDIs of this LUN. Disable CBT of that VDI on the clone before a backup relies on it."
        ]
    found, vhd, parent = [], volume.content, volume.parent
    # a killed footer is no note: each disk of a running VM has a killed footer
    if isinstance(vhd, Vhd) and vhd.end_footer is not None and bytes(vhd.end_footer) != bytes(vhd.footer):
        one, other = vhd.end_footer.current_size, vhd.footer.current_size
        why = "one of them was being written"
        if one != other:
            why = f"tapdisk sees a disk of {one} bytes, a scan of the storage manager one of {other}"
        found.append(f"The footers of {name} differ: {why}.")
    if parent is not None and (parent.uuid not in disks or disks[parent.uuid].name.kind != parent.kind):
        found.append(f"{name} has lost its parent, the {parent.kind} {parent.uuid}: it cannot be attached.")
    elif parent is not None and volume.named:
        found.append(f"{name} was being given a new parent; it gets {parent.uuid}.")
    return found


def _mgt_notes(lun: Lun) -> List[str]:
    if lun.mgt is None and any(volume.name.kind == naming.MGT for volume in lun.volumes):
        return []  # a defect is reported for MGT, so no note
    if lun.mgt is None:
        return ["The SR has no MGT volume: its VDIs have no labels."]
    found, disks = [], lun.disks()
    for volume in without_record(lun):
        found.append(f"MGT has no record of VDI {volume.name.uuid}: it has no label.")
    for record in without_volume(lun):
        found.append(f"MGT has a record of VDI {record.uuid}, which has no volume: SM will drop it.")
    if lun.mgt.sr_uuid != lun.sr_uuid:
        found.append(f"MGT names the SR {lun.mgt.sr_uuid}, the volume group {lun.sr_uuid}.")
    by_place = {record.offset: f"the MGT record of VDI {record.uuid}" for record in lun.mgt.records}
    for offset in lun.mgt.broken:
        what = by_place.get(offset, "the SR part of MGT" if offset == SR_START else "the MGT record")
        found.append(f"The storage manager cannot read {what} at byte {offset}.")
    if lun.mgt.broken:
        found.append(
            "The storage manager needs the whole of MGT. Of this SR, before as after a resignature, it introduces VDIs "
            "without labels, and may fail to create VDIs."
        )
    for uuid, record in lun.records().items():
        if uuid in disks and record.vdi_type != naming.MGT_TYPES[disks[uuid].name.kind]:
            kind = disks[uuid].name.kind
            found.append(f"MGT calls VDI {uuid} {said(record.vdi_type)}, its volume is {kind}.")
        if record.metadata_of_pool and uuid in disks:
            found.append(
                f"VDI {uuid} is to hold the database of the pool {record.metadata_of_pool}: that pool will write it "
                "into this LUN when the SR is plugged there, unless it is resignatured with --clear-metadata-vdi."
            )
        if record.type in ("metadata", "redo_log"):
            found.append(f"VDI {uuid} is a {record.type} VDI: it holds UUIDs of the original pool.")
    return found
