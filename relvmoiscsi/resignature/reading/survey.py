# SPDX-License-Identifier: LGPL-2.1-only
"""Read and verify a LUN, in as few dependent batches of reads as the formats allow. Never writes.

1  the first 64 KiB      label; nearly always the header of the metadata area, often the text
2  metadata texts
3  heads of all volumes  VHD header and footers, QCOW2 header, CBT header, SM journals, MGT
4  second reads          VHD parent locators, the rest of a large MGT, block tables of unfinished snapshots
"""

from typing import List, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range, align_down, read_pieces, torn_bytes
from relvmoiscsi.errors import (
    FormatError,
    Malformed,
    NotFound,
    OnDefect,
    Place,
    Refused,
    Truncated,
    Unsupported,
    WayOut,
    raise_defect,
    reading,
)
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Label, Mda
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.formats.naming import LvName
from relvmoiscsi.formats.other_images import image_format, other_file, packed_format
from relvmoiscsi.resignature.reading.left_behind import settle
from relvmoiscsi.resignature.reading.lun_contents import TAKE_WHOLE, Lun, verify_lun
from relvmoiscsi.resignature.reading.volumes import read_all_volumes
from relvmoiscsi.wording import shell_command

FIRST_READ_BYTES = 64 << 10
MIN_DEVICE_BYTES = 1 << 20
MAX_MDAS = 2
FIRST_MDA = 4096  #: bytes from the start of the device: where `pvcreate` puts the first metadata area
_UNKNOWN = "its content is unknown"
#: where the content of a device does not tell what a person does with the device
GIVE_CLONE = "Give the clone of an SR."
_SMALLER_BLOCKS = WayOut(sentence="Have the array present the clone with logical and physical blocks of 512 bytes.")


def read_label(device: Device) -> Label:
    """The label of the LUN.

    Raises NotFound for an empty device, Refused for a device without an LVM label, FormatError for a bad label. A
    bad label is also bytes in the place of a label before intact metadata of an SR, on a device that holds nothing else
    that is known. `pvremove` leaves zeros in that place.
    """
    if device.size_bytes == 0:
        raise NotFound(f"{device.name} is empty: it has 0 bytes. The copy has not begun, or it failed.").advising(
            "Take the copy again."
        )
    start = device.read([Range(0, min(FIRST_READ_BYTES, device.size_bytes))])[0]
    if device.size_bytes < MIN_DEVICE_BYTES:
        _verify_raw(device, start)
        raise Refused(
            f"{device.name} has {device.size_bytes} bytes: it is too small for a LUN with an SR.", "VolNotFound"
        ).advising("If it is a copy of such a LUN, take the copy again.")
    if not any(start):
        raise NotFound(f"{device.name} is empty: its first {len(start)} bytes are zero.").advising(
            "It is another LUN, or the array has not filled the clone yet."
        )
    if start[:2] == b"HM":
        raise Refused(
            f"{device.name} begins like an LVM1 physical volume, which LVM releases read differently."
        ).advising("No command mends that on the clone.")
    try:
        label = pv.find_label(start, Place(device.name, 0))
    except FormatError:
        _verify_raw(device, start)  # the header of a tar archive moves the label of the image in it
        raise
    if label is None:
        _verify_raw(device, start)
        what, header = _what_else(start), pv.MdaHeader.at(start, FIRST_MDA)
        if what == _UNKNOWN and header.magic == pv.MDA_MAGIC and any(start[: pv.LABEL_SECTORS * SECTOR]):
            vg = vg_in(device, Range(FIRST_MDA, header.size))
            if vg is not None and vg.name.startswith(naming.VG_PREFIX):
                behind = f"the first four sectors hold none, and intact metadata of {vg.name} lies behind them"
                raise Malformed("LVM label", Place(device.name, 0), behind)
        problem = f"{device.name} is no LVM physical volume: {what}."
        in_partition = "If a partition holds the clone of an SR, give the device of that partition."
        raise Refused(problem, "VolNotFound").advising(in_partition if _partition_count(start) else GIVE_CLONE)
    if label.number != 0 and _partition_count(start):
        problem = f"{device.name} has a partition table beside its LVM label."
        if not device.is_own:
            raise Refused(problem).advising(
                "Give the clone by a path that only you can change. Then `show` prints the command that removes "
                "the table, and leaves the label."
            )
        wipefs = shell_command("wipefs --all --types dos", device.name)
        raise Refused(problem).advising(f"`{wipefs}` removes it from the clone, and leaves the label.", wipefs)
    return label


def _verify_raw(device: Device, start: bytes) -> None:
    """Raises Refused for a disk image of another format, and for a packed file. A whole LUN may be in it."""
    image = image_format(start)
    if image is not None:
        problem = f"{device.name} is no LVM physical volume: it holds a disk image (format {image}), not an SR."
        raw_name = device.raw_name
        if not raw_name:
            raise Refused(problem, "VolNotFound").advising(GIVE_CLONE)
        other = other_file(image, start)
        if other is not None:
            raise Refused(f"{problem} The image names {other}.", "VolNotFound").advising(
                "Give a raw image, which the program that made this image can make. A conversion on this host would "
                "copy any file of this host that the image names."
            )
        if not device.is_own:
            # who has the image open for a write, keeps it open when the image is moved, or gets another owner
            copy = shell_command("install --mode=600", device.name, "DIRECTORY")
            raise Refused(problem, "VolNotFound").advising(
                f"If the image holds the clone of an SR's LUN, copy the image: `{copy}`, where DIRECTORY is one that "
                "only you can change, on a disk of this host. Then `show` prints the command that makes a raw image of "
                "the copy. It is not certain that nobody else changes this file while that command reads it."
            )
        # for qemu-img, a colon before the first slash ends the name of a protocol
        here = "./" if ":" in device.name.partition("/")[0] else ""
        convert = shell_command("qemu-img convert -O raw", here + device.name, here + raw_name, f=image)
        raise Refused(problem, "VolNotFound").advising(
            f"If the image holds the clone of an SR's LUN, convert the image: `{convert}`. Then give the new file.",
            convert,
        )
    packed = packed_format(start)
    if packed is not None:
        raise Refused(
            f"{device.name} is no LVM physical volume: it is packed (format {packed}).", "VolNotFound"
        ).advising("If it is the packed image of a clone, unpack it, and give the raw image.")


def _partition_count(start: bytes) -> int:
    """The number of used entries of an MBR partition table in sector 0."""
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
    return _UNKNOWN


def read_lun(device: Device, label: Label, like: Optional[Lun] = None) -> Lun:
    """The content of the LUN, verified. Raises FormatError, or Refused for a volume group without an SR.

    `Lun.work` has SM's unfinished work. The parts of the LUN after this work must agree with each other.

    `like` was read from a device that differs in planned writes only. Bytes equal to those of `like` are not verified
    again.
    """
    lun = settle(read_contents(device, label, like))
    verify_lun(lun)
    return lun


def read_contents(device: Device, label: Label, like: Optional[Lun] = None, on_defect: OnDefect = raise_defect) -> Lun:
    """The content of the LUN, without `Lun.work`. The content of a volume that cannot be read is the error.

    `like`, and the errors, as for `read_lun`. An `on_defect` that returns collects the defects, in order. Then the
    result is the readable part of the LUN: show the result, never plan with it. An error means that nothing more can be
    read.
    """
    mdas = read_mdas(device, label, on_defect)
    text, where, stale = _committed_text(device, mdas, _offering_other_area(device, label.mdas, on_defect))
    if like is not None and like.vg.text == text:
        vg = like.vg
    else:
        vg = read_vg(text, where, device.size_bytes, on_defect)
    sr_uuid = _sr_uuid(device, vg.name)
    with reading(on_defect):
        _verify_sizes(device, label, mdas, vg, torn_bytes(device))
    names = []
    for lv in vg.lvs:
        try:
            names.append(naming.parse_lv_name(lv.name, where))
        except FormatError as problem:
            on_defect(problem.with_way_out(WayOut(("lvremove",), (f"{vg.name}/{lv.name}",))))
            names.append(LvName(lv.name, naming.OTHER))
    volumes, mgt = read_all_volumes(device, vg, names, like.volumes if like is not None else ())
    return Lun(device.name, device.size_bytes, label, tuple(mdas), vg, sr_uuid, volumes, mgt, stale)


def _sr_uuid(device: Device, vg_name: str) -> str:
    found = vg_name[len(naming.VG_PREFIX) :]
    if not vg_name.startswith(naming.VG_PREFIX) or not is_uuid(found):
        problem = f"{device.name} holds the volume group {vg_name}, which is no SR's."
        names = [device.name] if device.is_own else []
        raise Refused(problem, "VolNotFound").advising(
            f"LVM's own `{shell_command('vgimportclone', *names)}` gives it new ids."
        )
    return found


def read_sr(device: Device, label: Label) -> Tuple[str, VolumeGroup]:
    """The SR UUID in the committed metadata, and its volume group; reads no volume. Raises as `read_lun`."""
    mdas = read_mdas(device, label)
    text, where, _stale = _committed_text(device, mdas)
    vg = read_vg(text, where, device.size_bytes)
    _verify_sizes(device, label, mdas, vg)
    return _sr_uuid(device, vg.name), vg


def verify_size(device: Device, label: Label) -> None:
    """Raises Truncated for a device that ends before the last extent, as far as the committed metadata reads."""
    try:
        text, where, _stale = _committed_text(device, read_mdas(device, label))
        end = read_vg(text, where, device.size_bytes, on_defect=lambda _problem: None).data_end
    except (FormatError, Refused):
        return  # nothing says where the last extent ends
    if end > device.size_bytes:
        error = Truncated("Physical volume", Place(device.name, 0), end, device.size_bytes)
        error.message += " The copy is truncated."
        raise error.advising(TAKE_WHOLE)


def read_mdas(device: Device, label: Label, on_defect: OnDefect = raise_defect) -> List[Mda]:
    """The verified headers of the metadata areas in the label's list. Raises FormatError.

    When `on_defect` returns, headers that cannot be read are left out.
    """
    place = Place(device.name, label.offset + label.mdas_at)
    if not 1 <= len(label.mdas) <= MAX_MDAS:
        raise Unsupported("LVM label", place, f"it lists {len(label.mdas)} metadata areas")
    areas = []
    for area in label.mdas:
        whole = area.offset % SECTOR == 0 and area.length % SECTOR == 0 and area.length > pv.MDA_HEADER_SIZE
        if whole and device.size_bytes < area.end <= label.device_size:
            at = Place(device.name, area.offset)
            on_defect(Truncated("Metadata area", at, area.length, device.size_bytes - area.offset))
        elif not whole or area.offset < pv.LABEL_SECTORS * SECTOR or area.end > device.size_bytes:
            problem = f"a metadata area of {area.length} bytes at {area.offset} is not on the device"
            on_defect(Malformed("LVM label", place, problem))
        else:
            areas.append(area)
    headers = device.read([Range(area.offset, pv.MDA_HEADER_SIZE) for area in areas])
    found = []
    for header, area in zip(headers, areas):
        with reading(_offering_other_area(device, areas, on_defect)):
            found.append(pv.parse_mda(header, area, Place(device.name, area.offset)))
    return found


def _offering_other_area(device: Device, areas: Sequence[Range], on_defect: OnDefect) -> OnDefect:
    """`on_defect` for a defect of one metadata area: LVM can write the area anew from another area that reads."""

    def offering(problem: FormatError) -> None:
        vgs = filter(None, (vg_in(device, area) for area in areas)) if len(areas) > 1 else iter(())
        way_out = next((WayOut(("vgck", "--updatemetadata"), (vg.name,)) for vg in vgs), WayOut())
        on_defect(problem.with_way_out(way_out))

    return offering


def vg_in(device: Device, area: Range) -> Optional[VolumeGroup]:
    """The volume group in a metadata area, also when the label does not list the area; None when it cannot be read."""
    place = Place(device.name, area.offset)
    try:
        mda = pv.parse_mda(device.read([Range(area.offset, pv.MDA_HEADER_SIZE)])[0], area, place)
        if not mda.has_text:
            return None
        return read_vg(pv.read_text(device, mda)[:-1].decode("latin-1"), place, device.size_bytes)
    except FormatError:
        return None


def _committed_text(device: Device, mdas: Sequence[Mda], on_defect: OnDefect = raise_defect) -> Tuple[str, Place, bool]:
    """The committed text without its NUL, the place of its first byte, and whether another area has an older text.

    The text with the highest seqno counts, for LVM and here. Source: LVM2 lib/metadata/metadata.c, _vg_read.
    """
    used = [mda for mda in mdas if mda.has_text]
    if mdas and not used:
        problem = f"{device.name} is a physical volume without a volume group."
        raise Refused(f"{problem} It holds no SR.", "VolNotFound").advising("Give the clone of an SR.")
    for mda in mdas:
        if not mda.has_text and not mda.ignored:
            where = Place(device.name, mda.area.offset)
            on_defect(Malformed("Metadata area header", where, "it has no text, and the other area has one"))
    located = []
    for mda in used:
        with reading(on_defect):
            located.append((mda, pv.text_ranges(mda.area, mda.committed, Place(device.name, mda.area.offset))))
    texts: List[Tuple[str, Place]] = []
    for (mda, _ranges), text in zip(located, read_pieces(device, [ranges for _mda, ranges in located])):
        place = Place(device.name, mda.area.offset + mda.committed.offset)
        with reading(on_defect):
            pv.verify_text(text, mda.committed, place)
            texts.append((text[:-1].decode("latin-1"), place))
    if len({each for each, _place in texts}) == 1:
        return (*texts[0], False)
    groups = []
    for each, place in texts:
        with reading(on_defect):
            groups.append((read_vg(each, place, device.size_bytes), place))
    if not groups:
        raise Malformed("Physical volume", Place(device.name, 0), "none of its metadata texts reads")
    if len(groups) > 1:
        (one, _first), (other, second) = groups
        if one.seqno == other.seqno or one.id != other.id or one.name != other.name:
            on_defect(Malformed("Metadata text", second, f"it differs from the text at byte {texts[0][1].offset}"))
    newest, place = max(groups, key=lambda group: group[0].seqno)
    return newest.text, place, True


def _verify_sizes(device: Device, label: Label, mdas: Sequence[Mda], vg: VolumeGroup, unit: int = SECTOR) -> None:
    """Raises FormatError for extents that are not made of the device's blocks, and for structures that share a unit.

    A run writes whole units (`device.whole_blocks`), each structure in a step of its own.
    """
    where = Place(device.name, label.offset)
    if vg.pv_id != label.pv_id:
        raise Malformed("LVM label", where, "its PV id is not the one in the metadata text")
    if vg.pe_start % device.block_size or vg.extent_size % device.block_size:
        problem = f"its extents are not made of blocks of {device.block_size} bytes"
        raise Unsupported("Physical volume", Place(device.name, vg.pe_start), problem).with_way_out(_SMALLER_BLOCKS)
    structures = [(Range(0, pv.LABEL_SECTORS * SECTOR), "the label")]
    structures += [(mda.area, "a metadata area") for mda in mdas]
    structures.append((Range(vg.pe_start, vg.data_end - vg.pe_start), "the extents"))
    structures.sort()
    for (one, first), (other, second) in zip(structures, structures[1:]):
        both = f"{first} at byte {one.offset} and {second} at byte {other.offset}"
        if other.offset < one.end:
            raise Malformed("LVM label", where, f"{both} overlap")
        if other.offset < one.widened(unit).end:
            block = Place(device.name, align_down(other.offset, unit))
            problem = f"{both} share a block of {unit} bytes, which the device writes at once"
            raise Unsupported("Physical volume", block, problem).with_way_out(_SMALLER_BLOCKS)
