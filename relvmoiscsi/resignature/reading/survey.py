# SPDX-License-Identifier: LGPL-2.1-only
"""Read a LUN in as few dependent steps as the formats allow; nothing is written and nothing is trusted.

1  the first 64 KiB        label; nearly always the metadata area header, often the text
2  metadata text
3  all volumes at once     VHD header and footers, QCOW2 header, CBT header, SM journals, MGT
4  what those point to     VHD parent locators, the rest of a large MGT, block tables that a cut snapshot made
"""

from typing import Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import (
    FormatError,
    Malformed,
    NotFound,
    OnDefect,
    Place,
    Refused,
    Truncated,
    Unsupported,
    raise_defect,
    reading,
)
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Area, Label, Mda
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.formats.naming import LvName
from relvmoiscsi.resignature.reading import sm_journals
from relvmoiscsi.resignature.reading.lun_contents import Lun, Volume, refuse_unknown_volumes, verify_lun
from relvmoiscsi.resignature.reading.volumes import read_all_volumes

FIRST_READ_BYTES = 64 << 10
MIN_DEVICE_BYTES = 1 << 20


def read_label(device: Device) -> Label:
    """The label of the LUN.

    Raises NotFound for an empty device, Refused for one that holds something else, FormatError for a bad label.
    """
    if device.size_bytes == 0:
        raise NotFound(f"{device.name} is empty: it has 0 bytes.")
    if device.size_bytes < MIN_DEVICE_BYTES:
        problem = f"{device.name} has {device.size_bytes} bytes: it is too small for a LUN with an SR."
        raise Refused(problem + " If it is a copy of one, take the copy again.", "VolNotFound")
    start = device.read([Range(0, FIRST_READ_BYTES)])[0]
    if not any(start):
        raise NotFound(f"{device.name} is empty: its first {len(start)} bytes are zero.")
    _refuse_lvm1(start, device.name)
    label = pv.find_label(start, Place(device.name, 0))
    if label is None:
        raise Refused(f"{device.name} is no LVM physical volume: {_what_else(start)}.", "VolNotFound")
    if label.number != 0 and _partition_count(start):
        raise Refused(f"{device.name} has a partition table beside its LVM label.")
    return label


def _refuse_lvm1(start: bytes, name: str) -> None:
    if start[:2] == b"HM":
        raise Refused(f"{name} begins like an LVM1 physical volume, which LVM releases read differently.")


def _partition_count(start: bytes) -> int:
    """Used entries of an MBR partition table in sector 0."""
    if start[510:512] != b"\x55\xaa":
        return 0
    return sum(1 for at in range(446, 510, 16) if start[at + 4])


def _what_else(start: bytes) -> str:
    if start[512:520] == b"EFI PART":
        return "it has a GPT partition table"
    if _partition_count(start):
        return "it has a partition table"
    if start[1080:1082] == b"\x53\xef":
        return "it looks like an ext2, ext3 or ext4 file system"
    if start[:4] == b"XFSB":
        return "it looks like an XFS file system"
    if start[:8] == b"conectix" or start[:4] == b"QFI\xfb":
        return "it is a disk image itself"
    return "what it holds is unknown"


def read_lun(
    device: Device,
    label: Label,
    twin: Optional[Lun] = None,
    like: Sequence[Volume] = (),
    on_defect: OnDefect = raise_defect,
) -> Lun:
    """Everything on the LUN, verified. Raises FormatError, or Refused for a volume group that is no SR's.

    What SM had begun is in `Lun.work`; then it is the LUN that this leads to whose parts agree with each other.

    `twin` was read from a device that holds the same bytes but for label and metadata areas: what the text and the
    volumes say is taken from it, if the text is the same. `like`: see `read_all_volumes`.

    `on_defect` may keep the defects, in the order in which they would be raised. Then what comes back is what can be
    read of the LUN, for telling and never for a plan. An error is raised only where nothing more can be read.
    """
    mda = read_mda(device, label)
    text, where = _committed_text(device, mda)
    if twin is not None and twin.vg.text == text:
        _verify_sizes(device, label, mda, twin.vg)
        return twin._replace(label=label, mda=mda)
    vg = read_vg(text, where, on_defect)
    sr_uuid = _sr_uuid(device, vg.name)
    with reading(on_defect):
        _verify_sizes(device, label, mda, vg)
    names = [_lv_name(lv.name, where, on_defect) for lv in vg.lvs]
    refuse_unknown_volumes(vg.lvs, names, sr_uuid, where, on_defect)
    volumes, mgt = read_all_volumes(device, vg, names, like, on_defect)
    lun = Lun(device.name, device.size_bytes, label, mda, vg, sr_uuid, volumes, mgt)
    with reading(on_defect):
        lun = lun._replace(work=sm_journals.unfinished_work(lun))
    verify_lun(lun.settled(), on_defect)
    return lun


def _lv_name(text: str, where: Place, on_defect: OnDefect) -> LvName:
    """The name of a volume, taken apart; that of nobody's volume where it does not read."""
    try:
        return naming.parse_lv_name(text, where)
    except FormatError as problem:
        on_defect(problem)
        return LvName(text, naming.OTHER)


def _sr_uuid(device: Device, vg_name: str) -> str:
    found = naming.sr_of_vg(vg_name)
    if found is None:
        raise Refused(f"{device.name} holds the volume group {vg_name}, which is no SR's.", "VolNotFound")
    return found


def read_sr_uuid(device: Device, label: Label) -> str:
    """The SR that the committed metadata names; what is in its volumes is not looked at. Raises as `read_lun` does."""
    text, where = _committed_text(device, read_mda(device, label))
    return _sr_uuid(device, read_vg(text, where).name)


def read_mda(device: Device, label: Label) -> Mda:
    """The header of the metadata area that the label lists, verified. Raises FormatError."""
    place = Place(device.name, label.offset + label.mdas_at)
    if len(label.mdas) != 1:
        raise Unsupported("LVM label", place, f"it lists {len(label.mdas)} metadata areas, and an SR has one")
    (area,) = label.mdas
    whole = area.offset % SECTOR == 0 and area.size % SECTOR == 0 and area.size > layout.MDA_HEADER_SIZE
    if not whole or area.offset < layout.LABEL_SECTORS * SECTOR or area.end > device.size_bytes:
        problem = f"a metadata area of {area.size} bytes at {area.offset} is not on the device"
        raise Malformed("LVM label", place, problem)
    return _mda_at(device, area)


def _mda_at(device: Device, area: Area) -> Mda:
    header = device.read([Range(area.offset, layout.MDA_HEADER_SIZE)])[0]
    return pv.parse_mda(header, area, Place(device.name, area.offset))


def vg_in(device: Device, area: Area) -> Optional[VolumeGroup]:
    """The volume group that a metadata area speaks of, whatever the label lists; None where it does not read."""
    try:
        return read_vg(*_committed_text(device, _mda_at(device, area)))
    except (FormatError, Refused):
        return None


def _committed_text(device: Device, mda: Mda) -> Tuple[str, Place]:
    """The committed text, without its NUL, and the place of its first byte. Raises FormatError; Refused without one."""
    if not mda.has_text:
        raise Refused(f"{device.name} is a physical volume without a volume group.", "VolNotFound")
    place = Place(device.name, mda.area.offset + mda.committed.offset)
    text = pv.read_texts(device, [mda])[0]
    pv.verify_text(text, mda.committed, place)
    return text[:-1].decode("latin-1"), place


def _verify_sizes(device: Device, label: Label, mda: Mda, vg: VolumeGroup) -> None:
    where = Place(device.name, label.offset)
    if vg.pv_id != label.pv_id:
        raise Malformed("LVM label", where, "its PV id is not the one in the metadata text")
    needed = max(label.device_size, vg.dev_size, vg.data_end)
    if needed > device.size_bytes:
        raise Truncated("Physical volume", Place(device.name, 0), needed, device.size_bytes)
    if vg.pe_start < layout.LABEL_SECTORS * SECTOR:
        raise Malformed("LVM label", where, f"the extents begin at byte {vg.pe_start}, over the label")
    if vg.pe_start % device.block_size or vg.extent_size % device.block_size:
        problem = f"its extents are not made of blocks of {device.block_size} bytes"
        raise Unsupported("Physical volume", Place(device.name, vg.pe_start), problem)
    if mda.area.offset < vg.data_end and vg.pe_start < mda.area.end:
        raise Malformed("LVM label", where, "a metadata area lies inside the extents")
