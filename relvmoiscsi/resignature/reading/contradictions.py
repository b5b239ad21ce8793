# SPDX-License-Identifier: LGPL-2.1-only
"""Parts of an SR that speak of different SRs or VDIs, each of which reads well. Pure.

No resignature leaves a part that names another SR (`verify_resignatured`). The rest is what an overtaken run leaves.

A run that was stopped, and that another run has overtaken, may write late (docs/protocol.rst). Then MGT has UUIDs of
the one run, and the names of the volumes are of the other run.

SM itself makes a record without a volume, or a volume without a record, when SM is interrupted: `VDI.create` adds the
record last, `VDI.delete` and a forgotten VDI lose the record first, the garbage collector removes the volume first. SM
never makes both of a VDI that was there before. A record that was overwritten late leaves both: a record of one kind
without a volume, and a volume of that kind without a record.

Of hidden volumes, SM leaves both too, each of another VDI: the garbage collector has failed to forget one base copy,
and a snapshot was cut before the record of the next base copy. So only managed records and visible volumes count. A
hidden volume loses nothing with its record: SM introduces the volume again.

A late write may also leave zeros in the place of records, or an older number of bytes in use. SM pads each sector with
spaces. SM writes a record before the number of bytes in use, so a cut of SM leaves zeros in the last slot alone. SM
adds and removes one record at a time, so an SR with several VDIs has records.

Sources: SM drivers/LVHDSR.py (create, delete, forget_vdi), drivers/cleanup.py (LVHDVDI.delete, forgetVDI),
drivers/srmetadata.py (spaceAvailableForVdis, addVdiInternal, deleteVdi, getSector).
"""

from typing import Dict, Iterator, List, Tuple

from relvmoiscsi.device import SECTOR
from relvmoiscsi.errors import FormatError, Malformed, OnDefect, Place, WayOut, raise_defect
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.mgt import RECORD_BYTES, SR_END, VdiRecord
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, verify_lun
from relvmoiscsi.wording import shell_command

#: SM adds a record with this label and deletes it again, to find out whether MGT has room
_TRIAL_LABEL = "dummy vdi for space check"


def verify_resignatured(lun: Lun, on_defect: OnDefect = raise_defect) -> None:
    """Raises FormatError for a LUN as no resignature leaves it: a part does not read, or names another SR.

    A run verifies its planned result with this function, and everybody a LUN whose label says that it was resignatured.
    `lun` was verified with SM's unfinished work settled in memory. On a resignatured LUN, SM will end this work, and
    SM may keep a volume that is dropped in memory. So a dropped volume counts as found, unless it is unwritten.
    """
    again = shell_command("relvmoiscsi resignature --again", lun.name)

    def offering(problem: FormatError) -> None:
        problem.way_out = WayOut(sentence=f"`{again}` gives the LUN new identities once more.")
        on_defect(problem)

    kept = {volume.lv.id for volume in lun.settled().volumes}
    dropped = tuple(volume for volume in lun.volumes if volume.lv.id not in kept and not volume.unwritten)
    verify_lun(lun._replace(volumes=dropped, work=None), offering)
    for problem in _mgt_of_another_sr(lun):
        offering(problem)


def _mgt_of_another_sr(lun: Lun) -> Iterator[Malformed]:
    if lun.mgt is not None and lun.mgt.sr_uuid != lun.sr_uuid:
        problem = f"it names the SR {lun.mgt.sr_uuid}, and the volume group is of the SR {lun.sr_uuid}"
        yield Malformed("MGT", Place(naming.MGT, lun.mgt.sr_uuid_at), problem)


def contradictions(lun: Lun) -> Tuple[Malformed, ...]:
    """A sentence with its place for each part that contradicts another part."""
    after = lun.settled()
    mgt = after.mgt
    if mgt is None:
        return ()
    found = list(_mgt_of_another_sr(after))
    for offset in range(SR_END, mgt.length - RECORD_BYTES, RECORD_BYTES):  # but for the last record
        if any(not any(mgt.data[at : at + SECTOR]) for at in range(offset, offset + RECORD_BYTES, SECTOR)):
            where = Place(naming.MGT, offset)
            found.append(Malformed("MGT record", where, "it holds zeros, and another record lies behind it"))
    lost = without_record(after)
    if not after.records() and len(lost) > 1:
        found.append(Malformed("MGT", Place(naming.MGT, 0), f"it has no record of any of the {len(lost)} VDIs"))
    # the records without a volume and the volumes without a record, of the kinds of which both are there
    records: Dict[str, List[VdiRecord]] = {}
    for record in without_volume(after):
        if record.managed and record.name_label != _TRIAL_LABEL:
            records.setdefault(record.vdi_type, []).append(record)
    volumes: Dict[str, List[Volume]] = {}
    for volume in lost:
        if not volume.hidden and not isinstance(volume.content, FormatError):
            volumes.setdefault(naming.MGT_TYPES[volume.name.kind], []).append(volume)
    for kind in sorted(set(records) & set(volumes)):
        for record in records[kind]:
            where = Place(naming.MGT, record.offset)
            found.append(Malformed("MGT record", where, f"its VDI {record.uuid} has no volume"))
        for volume in volumes[kind]:
            where = Place(volume.name.text, 0)
            found.append(Malformed("VDI", where, f"MGT has no record of VDI {volume.name.uuid}"))
    return tuple(found)


def without_volume(lun: Lun) -> List[VdiRecord]:
    """The live records of VDIs that have no volume."""
    disks = lun.disks()
    records = lun.records().items()
    return [record for uuid, record in records if uuid not in disks and record.vdi_type in naming.MGT_TYPES.values()]


def without_record(lun: Lun) -> List[Volume]:
    """The volumes of VDIs that have no record. Empty when a record does not read: it may be of such a VDI."""
    if lun.mgt is None or lun.mgt.unread:
        return []
    records = lun.records()
    return [volume for uuid, volume in lun.disks().items() if uuid not in records]
