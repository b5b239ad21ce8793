# SPDX-License-Identifier: LGPL-2.1-only
"""Damage to one structure of a LUN, as a bad cable or a program that writes to the wrong LUN leaves it.

The readers of the kit find the structures.
"""

from kit import build_lvm
from kit.lvmreader import read_label, read_mda
from kit.reader import device_ranges, read_sr
from relvmoiscsi.device import SECTOR


def _flip(disk, offset):
    disk.poke(offset, bytes([disk.peek(offset, 1)[0] ^ 1]))


def _in_volume(kind, offset):
    """Damage the first volume of which the name begins so."""

    def damage(disk):
        vg = read_sr(disk).vg
        (place,) = device_ranges(vg, next(lv for lv in vg.lvs if lv.name.startswith(kind)), offset, 1)
        _flip(disk, place.offset)

    return damage


def _text(disk):
    (area,) = read_label(disk).mdas
    _flip(disk, area.offset + read_mda(disk, area).text_offset + 300)


def _unusable_text(disk):
    """With its checksum: a program has written it."""
    build_lvm.replace_in_text(disk, b"physical_volumes", b"physical_nothing")


#: what each damages of a disk with an SR
DAMAGES = {
    "LVM label": lambda disk: _flip(disk, SECTOR + 24),
    "metadata area header": lambda disk: _flip(disk, read_label(disk).mdas[0].offset + 30),
    "metadata text": _text,
    "metadata text with its checksum": _unusable_text,
    "MGT": _in_volume("MGT", 0),
    "VHD footer copy": _in_volume("VHD-", 0),
    "VHD header": _in_volume("VHD-", 512),
    "QCOW2 header": _in_volume("QCOW2-", 0),
}
