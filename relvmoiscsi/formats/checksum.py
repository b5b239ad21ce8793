# SPDX-License-Identifier: LGPL-2.1-only
"""The two checksums of these formats: LVM's CRC-32 and VHD's one's complement of a byte sum."""

from zlib import adler32, crc32

LVM_CRC_SEED = 0xF597A6CF


def lvm_crc(data: bytes, seed: int = LVM_CRC_SEED) -> int:
    """LVM's checksum of `data`; for data in two buffers, the checksum of the first buffer is the `seed` of the second.

    LVM uses zlib's polynomial (reflected 0xEDB88320), another start value, and no final inversion.
    Source: LVM2 lib/misc/crc.c, calc_crc.
    """
    return crc32(data, seed ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


def vhd_checksum(data: bytes, field_offset: int) -> int:
    """The checksum of a VHD footer or header; the four bytes of the stored checksum, at `field_offset`, count as zero.

    Source: Microsoft, Virtual Hard Disk Image Format Specification, "Checksum"; blktap vhd/lib/libvhd.c.
    """
    total = byte_sum(data) - sum(data[field_offset : field_offset + 4])
    return ~total & 0xFFFFFFFF


def byte_sum(data: bytes) -> int:
    """sum(data), in a fifth of the time: the lower half of an Adler-32 is the sum of the bytes modulo 65521."""
    return sum([adler32(data[at : at + 256], 0) & 0xFFFF for at in range(0, len(data), 256)])
