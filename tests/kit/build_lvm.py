# SPDX-License-Identifier: LGPL-2.1-only
"""LVM structures for the builder: label, metadata area header, metadata text. From docs/formats/lvm.rst alone."""

import struct
from typing import List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import Range, align_up

from .lvmreader import lvm_crc as crc
from .sparse import SparseDisk

MDA_MAGIC = bytes.fromhex("204c564d3220785b35412572304e2a3e")
IGNORED = 1


class LvText(NamedTuple):
    """What the text says of an LV."""

    name: str
    id: str
    writable: bool
    tags: Tuple[str, ...]
    segments: Tuple[Tuple[int, int], ...]  #: (extent_count, first_pe), in order
    creation_time: int


class VgText(NamedTuple):
    """What the text says of a VG with one PV."""

    name: str
    id: str
    seqno: int
    extent_sectors: int
    pv_id: str
    dev_sectors: int
    pe_start_sectors: int
    pe_count: int
    lvs: Tuple[LvText, ...]
    style: str  #: "2.03" or "2.02": which LVM wrote it
    description: str


class Label(NamedTuple):
    """What a label says."""

    sector: int
    pv_id: str
    device_size: int
    data_start: int
    areas: Sequence[Range]
    ext_version: int
    tail: bytes  #: put at the end of the sector


def label_sector(label: Label) -> bytes:
    number, pv_id, device_size, data_start, areas, ext_version, tail = label
    body = struct.pack("<I8s32sQ", 32, b"LVM2 001", pv_id.replace("-", "").encode("ascii"), device_size)
    body += struct.pack("<QQ", data_start, 0) + bytes(16)
    body += b"".join(struct.pack("<QQ", area.offset, area.length) for area in areas) + bytes(16)
    if ext_version:
        body += struct.pack("<II", ext_version, 1 if ext_version >= 2 else 0) + bytes(16)
    assert len(body) + len(tail) <= 492, "the tail does not fit the label"
    body = body.ljust(492 - len(tail), b"\0") + tail
    return struct.pack("<8sQI", b"LABELONE", number, crc(body)) + body


def raw_locn(offset: int, text: bytes, flags: int = 0) -> bytes:
    return struct.pack("<QQII", offset, len(text), crc(text), flags)


def mda_header(area: Range, slots: Sequence[bytes]) -> bytes:
    body = MDA_MAGIC + struct.pack("<IQQ", 1, area.offset, area.length) + b"".join(slots)
    body = body.ljust(508, b"\0")
    return struct.pack("<I", crc(body)) + body


def put_text(disk: SparseDisk, area: Range, offset: int, text: bytes) -> None:
    """Write a text into the ring at `offset` from the start of the area; past the end it goes on at 512."""
    assert 512 <= offset < area.length and len(text) <= area.length - 512, (offset, len(text), area)
    room = area.length - offset
    disk.poke(area.offset + offset, text[:room])
    disk.poke(area.offset + 512, text[room:])


def vg_text(vg: VgText) -> bytes:
    """The text as LVM writes it to disk, with its final NUL."""
    old = vg.style == "2.02"
    lines = [
        f"{vg.name} {{",
        f'id = "{vg.id}"',
        f"seqno = {vg.seqno}",
        'format = "lvm2" # informational' if old else 'format = "lvm2"',
        'status = ["RESIZEABLE", "READ", "WRITE"]',
        "flags = []",
        f"extent_size = {vg.extent_sectors}",
        "max_lv = 0",
        "max_pv = 0",
        "metadata_copies = 0",
        "",
        "physical_volumes {",
        "",
        "pv0 {",
        f'id = "{vg.pv_id}"',
        'device = "/dev/sdb"',
        "",
        'status = ["ALLOCATABLE"]',
        "flags = []",
        f"dev_size = {vg.dev_sectors}",
        f"pe_start = {vg.pe_start_sectors}",
        f"pe_count = {vg.pe_count}",
        "}",
        "}",
        "",
    ]
    if vg.lvs:
        lines += ["logical_volumes {", ""] + "\n\n".join("\n".join(_lv_lines(lv, old)) for lv in vg.lvs).split("\n")
        lines += ["}", ""]
    lines += ["}"] + _trailer(vg, old)
    return "\n".join(lines).encode("utf-8") + b"\0"


def _lv_lines(lv: LvText, old: bool) -> List[str]:
    created = [f"creation_time = {lv.creation_time}", 'creation_host = "xen-host-1"']
    lines = [
        f"{lv.name} {{",
        f'id = "{lv.id}"',
        'status = ["READ", "WRITE", "VISIBLE"]' if lv.writable else 'status = ["READ", "VISIBLE"]',
        "flags = []",
    ]
    if lv.tags:
        lines.append("tags = [{}]".format(", ".join(f'"{tag}"' for tag in lv.tags)))
    lines += created[::-1] if old else created
    lines += [f"segment_count = {len(lv.segments)}", ""]
    start = 0
    for number, (count, first_pe) in enumerate(lv.segments, 1):
        lines += ([""] if number > 1 else []) + _segment_lines(number, start, count, first_pe, old)
        start += count
    return lines + ["}"]


def _segment_lines(number: int, start: int, count: int, first_pe: int, old: bool) -> List[str]:
    return [
        f"segment{number} {{",
        f"start_extent = {start}",
        f"extent_count = {count}",
        "",
        'type = "striped"',
        "stripe_count = 1\t# linear" if old else "stripe_count = 1",
        "",
        "stripes = [",
        f'"pv0", {first_pe}',
        "]",
        "}",
    ]


def _trailer(vg: VgText, old: bool) -> List[str]:
    version = "2.02.180(2) (2018-07-19)" if old else "2.03.16(2) (2022-05-18)"
    return [
        f"# Generated by LVM2 version {version}: Sat Nov 21 00:11:06 2026",
        "",
        'contents = "Text Format Volume Group"',
        "version = 1",
        "",
        f'description = "{vg.description}"',
        "",
        'creation_host = "xen-host-1"\t# Linux xen-host-1 4.19.0+1 #1 SMP x86_64',
        "creation_time = 1795219866\t# Sat Nov 21 00:11:06 2026",
        "",
        "",
    ]


def ring_size(length: int) -> int:
    """Bytes of the ring that a text takes until the next one may begin."""
    return align_up(length, 512)
