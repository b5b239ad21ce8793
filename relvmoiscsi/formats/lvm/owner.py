# SPDX-License-Identifier: LGPL-2.1-only
"""Whose is a device? What LVM's structures at its start say, in two small reads and without trust.

For deciding whether a LUN may be given to a guest as it is. The guest may have LVM of its own on it, and what it has
written there is read here: every offset is bounded, and only the beginning of a text is looked at.

An SR that lost its label (a torn write, a `dd` over the first sector) is still an SR: where LVM puts its first metadata
area is looked at as well, label or not.
"""

from typing import Dict, List, NamedTuple, Sequence

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import FormatError, Place
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import MdaHeader, RawLocation

USUAL_AREA = 4096  #: bytes from the start of the device, in every LVM2 release
START_BYTES = USUAL_AREA + SECTOR
MAX_AREAS = 4  #: LVM makes two at most
_NAME_BYTES = 256  #: a name has 127 at most; the text begins with it, in a sector of its own


class Owner(NamedTuple):
    """What LVM's structures say. Nothing at all: there are none."""

    vg_name: str = ""
    is_sr: bool = False
    problem: str = ""  #: there is LVM on it, and it cannot be said whose
    is_pv: bool = False


def read_owner(device: Device) -> Owner:
    """Whose the device is. Raises DeviceError when it cannot be read."""
    start = device.read([Range(0, min(START_BYTES, device.size_bytes))])[0]
    if len(start) < START_BYTES:
        return Owner()
    problem, listed, is_pv = "", [], False
    try:
        label = pv.find_label(start, Place(device.name, 0))
        if label is not None:
            is_pv, listed = True, [area.offset for area in label.mdas[:MAX_AREAS]]
    except FormatError as error:
        problem = error.message
    slots = _slots(device, sorted({USUAL_AREA, *listed}))
    wanted = sorted({at for area in slots.values() for at in area})
    readable = [at for at in wanted if at + _NAME_BYTES <= device.size_bytes]
    names = [_name(text) for text in device.read([Range(at, _NAME_BYTES) for at in readable])]
    of_sr = [name for name in names if name.startswith(naming.VG_PREFIX)]
    if of_sr:
        return Owner(of_sr[0], is_sr=True, is_pv=is_pv)
    problems = [f"The metadata area at byte {at} of {device.name} does not read." for at in listed if at not in slots]
    if is_pv and (len(readable) < len(wanted) or not all(names)):
        problems.append(f"A metadata text of {device.name} does not read.")
    return Owner(next(iter(names), "") if is_pv else "", problem=problem or "".join(problems[:1]), is_pv=is_pv)


def _slots(device: Device, areas: Sequence[int]) -> Dict[int, List[int]]:
    """Of each area with a header: where on the device the texts are that it points to, committed or in flight."""
    heads = [Range(at, pv.MDA_HEADER_SIZE) for at in areas if at + pv.MDA_HEADER_SIZE <= device.size_bytes]
    found: Dict[int, List[int]] = {}
    for head, data in zip(heads, device.read(heads)):
        header = MdaHeader.at(data)
        if header.magic == pv.MDA_MAGIC:
            offsets = [RawLocation.at(slot).offset for slot in (header.committed, header.precommitted)]
            found[head.offset] = [head.offset + offset for offset in offsets if offset]
    return found


def _name(text: bytes) -> str:
    """The name that a metadata text begins with: `name {`."""
    name, brace, _ = text.partition(b" {")
    return name.decode("latin-1") if brace else ""
