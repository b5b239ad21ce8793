# SPDX-License-Identifier: LGPL-2.1-only
"""Read a LUN in as few dependent steps as the formats allow; nothing is written and nothing is trusted.

1  the first 64 KiB        label; nearly always the metadata area header, often the text
2  metadata text(s)
3  all volumes at once     VHD header and footers, QCOW2 header, CBT header, SM journals, MGT
4  what those point to     VHD parent locators, the rest of a large MGT, block tables that a cut snapshot made
"""

from typing import List, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import Malformed, NotFound, Place, Refused, Truncated, Unsupported
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Label, Mda
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.resignature.reading import sm_journals
from relvmoiscsi.resignature.reading.lun import Lun, Volume, refuse_unknown_volumes, verify_lun
from relvmoiscsi.resignature.reading.volumes import read_all_volumes

FIRST_READ_BYTES = 64 << 10
MIN_DEVICE_BYTES = 1 << 20
MAX_MDAS = 2


def read_label(device: Device) -> Label:
    """The label of the LUN.

    Raises NotFound for an empty device, Refused for one that holds something else, FormatError for a bad label.
    """
    start = device.read([Range(0, min(FIRST_READ_BYTES, device.size_bytes))])[0]
    if not any(start):
        raise NotFound(f"{device.name} is empty: its first {len(start)} bytes are zero.")
    if device.size_bytes < MIN_DEVICE_BYTES:
        raise Refused(f"{device.name} has {device.size_bytes} bytes: no SR fits on it.", "VolNotFound")
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


def read_lun(device: Device, label: Label, twin: Optional[Lun] = None, like: Sequence[Volume] = ()) -> Lun:
    """Everything on the LUN, verified. Raises FormatError, or Refused for a volume group that is no SR's.

    What SM had begun is in `Lun.work`; then it is the LUN that this leads to whose parts agree with each other.

    `twin` was read from a device that holds the same bytes but for label and metadata areas: what the text and the
    volumes say is taken from it, if the text is the same. `like`: see `read_all_volumes`.
    """
    mdas = read_mdas(device, label)
    text, where, stale = _committed_text(device, mdas)
    if twin is not None and twin.vg.text == text:
        _verify_sizes(device, label, mdas, twin.vg)
        return twin._replace(label=label, mdas=tuple(mdas))
    vg = read_vg(text, where)
    sr_uuid = _sr_uuid(device, vg.name)
    _verify_sizes(device, label, mdas, vg)
    names = [naming.parse_lv_name(lv.name, where) for lv in vg.lvs]
    refuse_unknown_volumes(vg.lvs, names, sr_uuid, where)
    volumes, mgt = read_all_volumes(device, vg, names, like)
    lun = Lun(device.name, device.size_bytes, label, tuple(mdas), vg, sr_uuid, volumes, mgt, stale)
    lun = lun._replace(work=sm_journals.unfinished_work(lun))
    verify_lun(lun.settled())
    return lun


def _sr_uuid(device: Device, vg_name: str) -> str:
    found = naming.sr_of_vg(vg_name)
    if found is None:
        raise Refused(f"{device.name} holds the volume group {vg_name}, which is no SR's.", "VolNotFound")
    return found


def read_sr_uuid(device: Device, label: Label) -> str:
    """The SR that the committed metadata names; what is in its volumes is not looked at. Raises as `read_lun` does."""
    text, where, _stale = _committed_text(device, read_mdas(device, label))
    return _sr_uuid(device, read_vg(text, where).name)


def read_mdas(device: Device, label: Label) -> List[Mda]:
    """The headers of the metadata areas that the label lists, verified. Raises FormatError."""
    place = Place(device.name, label.offset + label.mdas_at)
    if not 1 <= len(label.mdas) <= MAX_MDAS:
        raise Unsupported("LVM label", place, f"it lists {len(label.mdas)} metadata areas")
    for area in label.mdas:
        whole = area.offset % SECTOR == 0 and area.size % SECTOR == 0 and area.size > layout.MDA_HEADER_SIZE
        if not whole or area.offset < layout.LABEL_SECTORS * SECTOR or area.end > device.size_bytes:
            problem = f"a metadata area of {area.size} bytes at {area.offset} is not on the device"
            raise Malformed("LVM label", place, problem)
    for one, other in zip(sorted(label.mdas), sorted(label.mdas)[1:]):
        if other.offset < one.end:
            problem = f"the metadata areas at {one.offset} and {other.offset} overlap"
            raise Malformed("LVM label", place, problem)
    headers = device.read([Range(area.offset, layout.MDA_HEADER_SIZE) for area in label.mdas])
    return [pv.parse_mda(header, area, Place(device.name, area.offset)) for header, area in zip(headers, label.mdas)]


def _committed_text(device: Device, mdas: Sequence[Mda]) -> Tuple[str, Place, bool]:
    """The text that counts, without its NUL, the place of its first byte, and whether another area holds an older one.

    LVM goes by the highest seqno. Source: LVM2 lib/metadata/metadata.c, _vg_read.
    """
    used = [mda for mda in mdas if mda.has_text]
    if not used:
        raise Refused(f"{device.name} is a physical volume without a volume group.", "VolNotFound")
    for mda in mdas:
        if not mda.has_text and not mda.ignored:
            where = Place(device.name, mda.area.offset)
            raise Malformed("Metadata area header", where, "it has no text, and the other area has one")
    texts = pv.read_texts(device, used)
    places = [Place(device.name, mda.area.offset + mda.committed.offset) for mda in used]
    for mda, text, place in zip(used, texts, places):
        pv.verify_text(text, mda.committed, place)
    plain = [text[:-1].decode("latin-1") for text in texts]
    if len(set(plain)) == 1:
        return plain[0], places[0], False
    groups = [read_vg(text, place) for text, place in zip(plain, places)]
    if groups[0].seqno == groups[1].seqno or groups[0].id != groups[1].id or groups[0].name != groups[1].name:
        raise Malformed("Metadata text", places[1], f"it differs from the text at byte {places[0].offset}")
    newest = max(range(len(groups)), key=lambda index: groups[index].seqno)
    return plain[newest], places[newest], True


def _verify_sizes(device: Device, label: Label, mdas: Sequence[Mda], vg: VolumeGroup) -> None:
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
    for mda in mdas:
        if mda.area.offset < vg.data_end and vg.pe_start < mda.area.end:
            raise Malformed("LVM label", where, "a metadata area lies inside the extents")
