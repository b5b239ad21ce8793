# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes of a LUN as files, taken out by what real LVM says of their segments, and what qemu-img and libvhdi read.

qemu-img knows neither bitmaps nor parents of VHDs. So it is shown each layer alone, and only layers of which every
sector that has been written is not all zero. libvhdi reads only headers.
"""

import json

from kit.chains import BLOCK, digest
from kit.judges import extract, lv_ranges, run

WINDOW = 64 << 10  #: that much is compared with zeros at once


def take_out(loop, lvm, folder, kinds=("",)):
    """Every LV of a LUN whose name begins with one of `kinds`, as a file: LV name to path."""
    (seen,) = lvm.over(loop.path).seen()
    disk = loop.disk()
    folder.mkdir()
    files = {name: folder / name for name in sorted(seen.lv_names) if name.startswith(tuple(kinds))}
    for name, path in files.items():
        extract(disk, lv_ranges(seen, name), path)
    return files


def info(path, *options):
    return json.loads(run("qemu-img", "info", "--output=json", *options, str(path)))


def vhdiinfo(path):
    """What libvhdi reads: field to value."""
    fields = (line.partition(":") for line in run("vhdiinfo", str(path)).splitlines())
    return {key.strip(): value.strip() for key, _, value in fields if value}


def dm_name(vg_name, lv_name):
    return "{}-{}".format(vg_name.replace("-", "--"), lv_name.replace("-", "--"))


def by_qemu(image, form="vpc"):
    """What qemu-img reads in an image."""
    flat = image.with_name(image.name + ".flat")
    run("qemu-img", "convert", "-f", form, "-O", "raw", str(image), str(flat))
    return flat.read_bytes()


def blocks_of(data):
    """(number, digest) of each block of 2 MiB that is not all zero, as `kit.chains` has them."""
    blocks = ((at // BLOCK, digest(data[at : at + BLOCK])) for at in range(0, len(data), BLOCK))
    return tuple(block for block in blocks if block[1])


def laid_over(below, above):
    """The sectors of `above` that are not zero, upon those of `below`."""
    found = bytearray(below.ljust(len(above), b"\0")[: len(above)])
    for at in _filled(above, 0, len(above), WINDOW):
        for sector in _filled(above, at, min(at + WINDOW, len(above)), 512):
            found[sector : sector + 512] = above[sector : sector + 512]
    return bytes(found)


def _filled(data, start, end, step):
    """Where in [start, end) pieces begin that are not all zero."""
    zeros = bytes(step)
    for at in range(start, end, step):
        piece = data[at : min(at + step, end)]
        if piece != zeros[: len(piece)]:
            yield at
