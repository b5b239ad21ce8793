# SPDX-License-Identifier: LGPL-2.1-only
"""Disk images that are not raw, and packed files: which format it is, and whether an image names another file.

qemu-img opens the files that an image names, and copies the content of these files. Whoever wrote the first bytes of a
LUN can make its copy such an image.

Sources: QEMU block/{qcow2,vpc,vhdx,vmdk,vdi,qed}.c. There, of a VHD, VHDX or VDI, QEMU opens no parent.
"""

from typing import Optional, Sequence, Tuple

from relvmoiscsi.formats.ondisk import Record, le32, le64, raw
from relvmoiscsi.formats.qcow2 import INCOMPATIBLE_DATA_FILE, VERSION_2_HEADER_LENGTH, HeaderV3, Qcow2Header

# fmt: off
#: qemu-img's name of the format, the place of its magic, the magic
_FORMATS = (
    ("qcow2", 0,  b"QFI\xfb"),
    ("vpc",   0,  b"conectix"),
    ("vhdx",  0,  b"vhdxfile"),
    ("vmdk",  0,  b"KDMV"),
    ("vdi",   64, b"\x7f\x10\xda\xbe"),
    ("qed",   0,  b"QED\0"),
)
#: the same of packed files. Source: file(1), magic/Magdir/{archive,compress}
_PACKED = (
    ("gzip",  0,   b"\x1f\x8b\x08"),
    ("xz",    0,   b"\xfd7zXZ\0"),
    ("zstd",  0,   b"\x28\xb5\x2f\xfd"),
    ("lz4",   0,   b"\x04\x22\x4d\x18"),
    ("bzip2", 0,   b"BZh"),
    ("zip",   0,   b"PK\x03\x04"),
    ("7z",    0,   b"7z\xbc\xaf\x27\x1c"),
    ("tar",   257, b"ustar"),
)
_QED_BACKING_FILE = 1 << 0
_VMDK_PARENT      = b"parentFileNameHint"  #: in a descriptor, which QEMU reads from sector 1 of the image on


class _QedHeader(Record, size=64):
    sizes                   = raw(0, 16)
    features                = le64(16)
    rest                    = raw(24, 32)
    backing_filename_offset = le32(56)
    backing_filename_size   = le32(60)


class _VmdkHeader(Record, size=20):
    magic    = raw(0, 4)
    version  = le32(4)
    flags    = le32(8)
    capacity = le64(12)  #: sectors; 0: a descriptor names the files that hold the data
# fmt: on


def image_format(start: bytes) -> Optional[str]:
    """The name that qemu-img has for the format of the image that begins so; None for a raw image."""
    return _named(_FORMATS, start)


def packed_format(start: bytes) -> Optional[str]:
    """The format of the packed file that begins so; None for another file."""
    return _named(_PACKED, start)


def _named(formats: Sequence[Tuple[str, int, bytes]], start: bytes) -> Optional[str]:
    return next((name for name, at, magic in formats if start[at : at + len(magic)] == magic), None)


def other_file(image: str, start: bytes) -> Optional[str]:
    """What other file an image of this format names; None for an image of one file.

    `start` is the first 64 KiB of the image, or the whole image. It counts as if zeros followed the bytes.
    """
    start = start.ljust(VERSION_2_HEADER_LENGTH + HeaderV3.SIZE, b"\0")
    if image == "qcow2":
        header = Qcow2Header.at(start)
        if header.backing_file_offset:
            return "a backing file"
        if header.version >= 3 and HeaderV3.at(start, VERSION_2_HEADER_LENGTH).incompatible & INCOMPATIBLE_DATA_FILE:
            return "an external data file"
    if image == "qed" and _QedHeader.at(start).features & _QED_BACKING_FILE:
        return "a backing file"
    if image == "vmdk" and not _VmdkHeader.at(start).capacity:
        return "files that hold its data"
    if image == "vmdk" and _VMDK_PARENT in start:
        return "a parent"
    return None
