# SPDX-License-Identifier: LGPL-2.1-only
"""The owner of a device, from LVM's structures at the start of the device, in three small reads.

`relvmoiscsi direct` asks whether a guest may get a LUN as a disk. A guest may write any bytes to its LUN, also LVM
structures. So this module checks each offset, and reads only the start of each metadata text.

A LUN with an SR may have lost its label: by a torn write, or by a `dd` over the first sector. So this module reads the
place of LVM's first metadata area also when there is no label.
"""

from typing import NamedTuple, Set

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import FormatError, Place, Unsupported
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import MdaHeader, RawLocation

USUAL_AREA = 4096  #: place of the first metadata area in every LVM2 release, in bytes from the start of the device
START_BYTES = USUAL_AREA + SECTOR
MAX_AREAS = 4  #: LVM makes two at the most
_NAME_BYTES = 256  #: the text begins with the name of the VG, of 127 bytes at the most, and at a sector


class Owner(NamedTuple):
    """The owner that LVM's structures name. All fields are empty when the device has no such structures."""

    vg_name: str = ""
    is_sr: bool = False
    problem: str = ""  #: why LVM's structures are there, but name no owner
    is_pv: bool = False


def read_owner(device: Device) -> Owner:
    """The owner of the device. Raises DeviceError when a read fails."""
    start = device.read([Range(0, min(START_BYTES, device.size_bytes))])[0]
    if len(start) < START_BYTES:
        return Owner()
    problem, listed, is_pv = "", [], False
    try:
        label = pv.find_label(start, Place(device.name, 0))
        if label is not None:
            if len(label.mdas) > MAX_AREAS:  # LVM reads the text of each
                where = Place(device.name, label.offset + label.mdas_at)
                raise Unsupported("LVM label", where, f"it lists {len(label.mdas)} metadata areas")
            is_pv, listed = True, [area.offset for area in label.mdas]
    except FormatError as error:
        problem = error.message
    areas = sorted({USUAL_AREA, *listed})
    heads = [Range(at, pv.MDA_HEADER_SIZE) for at in areas if at + pv.MDA_HEADER_SIZE <= device.size_bytes]
    with_header: Set[int] = set()  # places of areas
    texts_at: Set[int] = set()  # places of their committed and precommitted texts
    for head, data in zip(heads, device.read(heads)):
        header = MdaHeader.at(data)
        if header.magic == pv.MDA_MAGIC:
            with_header.add(head.offset)
            offsets = [RawLocation.at(slot).offset for slot in (header.committed, header.precommitted)]
            texts_at.update(head.offset + offset for offset in offsets if offset)
    readable = sorted(at for at in texts_at if at + _NAME_BYTES <= device.size_bytes)
    names = []
    for text in device.read([Range(at, _NAME_BYTES) for at in readable]):
        name, brace, _rest = text.partition(b" {")
        names.append(name.decode("latin-1") if brace else "")
    of_sr = [name for name in names if name.startswith((naming.VG_PREFIX, naming.FILE_SR_VG_PREFIX))]
    if of_sr:
        return Owner(of_sr[0], is_sr=True, is_pv=is_pv)
    problems = [
        f"The metadata area at byte {at} of {device.name} does not read." for at in listed if at not in with_header
    ]
    if is_pv and (len(readable) < len(texts_at) or not all(names)):
        problems.append(f"A metadata text of {device.name} does not read.")
    return Owner(next(iter(names), "") if is_pv else "", problem=problem or "".join(problems[:1]), is_pv=is_pv)
