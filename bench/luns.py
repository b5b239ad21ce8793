# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs with as many VDIs as one likes, made by the builder of the tests."""

from typing import Callable, Dict, List

from support import builder
from support.build_volumes import MIB
from support.builder import SMALL_BAT, BuiltSr, Volume, qcow2, vhd

GIB = 1 << 30
TIB = 1 << 40


def dynamic(count: int) -> BuiltSr:
    """VHDs without parents: in volumes nothing but MGT changes."""
    return builder.many_vdis(count)


def chains(count: int) -> BuiltSr:
    """VHDs in threes: a hidden base and two children."""
    return builder.many_vdis(count, chained=True)


def qcow2_chains(count: int) -> BuiltSr:
    """QCOW2 images in threes: a hidden base and two children."""
    volumes: List[Volume] = []
    for number in range(count):
        base = "disk{}".format(number - number % 3)
        is_base = number % 3 == 0
        volumes.append(qcow2("disk{}".format(number), "" if is_base else base, hidden=is_base and number + 1 < count))
    return builder.build_sr(volumes)


KINDS: Dict[str, Callable[[int], BuiltSr]] = {
    "dynamic VHD": dynamic,
    "VHD chains": chains,
    "QCOW2 chains": qcow2_chains,
}


def of_size(size_bytes: int) -> BuiltSr:
    """A chain of three VHDs on a LUN of this size; extents as large as LVM wants them for it."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT)]
    volumes += [vhd(key, "base", bat_entries=SMALL_BAT) for key in ("disk", "snapshot")]
    return builder.build_sr(volumes, size_bytes=size_bytes, extent_size=max(4 * MIB, size_bytes >> 24))


def two_metadata_areas(count: int) -> BuiltSr:
    """Chains on a PV with a second metadata area at its end, which SM does not make."""
    return builder.many_vdis(count, chained=True, second_area="same")
