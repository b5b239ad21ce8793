# SPDX-License-Identifier: LGPL-2.1-only
"""The VM records that somebody has saved on the SR, read from the bare LUN."""

from operator import attrgetter
from typing import List, Optional

from relvmoiscsi.device import Device
from relvmoiscsi.errors import FormatError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.saved_vms import SavedHeader, SavedVms
from relvmoiscsi.resignature.reading.lun import Lun, Volume
from relvmoiscsi.resignature.reading.volumes import Wanted, read_volumes


def saved(device: Device, lun: Lun) -> Optional[SavedVms]:
    """The last ones that can be read; None where there are none. Raises DeviceError."""
    found = (_read(device, lun, volume) for volume in _candidates(lun))  # one at a time: each may be large
    return max((one for one in found if one is not None), key=attrgetter("order"), default=None)


def _candidates(lun: Lun) -> List[Volume]:
    """Raw disks of that name; their name is in MGT, so other disks are not even looked at."""
    records = lun.records()
    return [
        volume
        for uuid, volume in lun.disks().items()
        if volume.content is None and uuid in records and records[uuid].name_label == saved_vms.NAME_LABEL
    ]


def _read(device: Device, lun: Lun, volume: Volume) -> Optional[SavedVms]:
    """None for one that was being written, or that is something else."""
    try:
        (head,) = read_volumes(device, lun.vg, [Wanted(volume.lv, 0, SavedHeader.SIZE)])
        header = saved_vms.read_header(head, volume.name.text)
        wanted = Wanted(volume.lv, SavedHeader.SIZE, min(header.length, volume.size - SavedHeader.SIZE))
        (content,) = read_volumes(device, lun.vg, [wanted])
        return saved_vms.unpack(header, content, volume.name.text)
    except FormatError:
        return None
