# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs with as many VDIs as one likes, made by the builder of the tests."""

from typing import Callable, Dict, List

from kit import builder
from kit.build_volumes import MIB
from kit.builder import (
    SMALL_BAT,
    BuiltSr,
    Volume,
    journal,
    qcow2,
    vhd,
)

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
        base = f"disk{number - number % 3}"
        is_base = number % 3 == 0
        volumes.append(qcow2(f"disk{number}", "" if is_base else base, hidden=is_base and number + 1 < count))
    return builder.build_sr(volumes)


def in_use(count: int) -> BuiltSr:
    """Chains whose VMs run, so that the end footers are overwritten, with a snapshot and an inflation under way."""
    volumes: List[Volume] = []
    for number in range(max(0, count - 3)):
        base = f"disk{number - number % 3}"
        is_base = number % 3 == 0
        parent, end = ("", "") if is_base else (base, "killed")
        volumes.append(vhd(f"disk{number}", parent, hidden=is_base, blocks=0, bat_entries=SMALL_BAT, end=end))
    volumes.append(vhd("base", blocks=1, bat_entries=SMALL_BAT, end="killed"))
    if count > 1:
        leaves = ("orig", "clone")[: min(2, count - 1)]
        volumes += [vhd(key, "base", blocks=0, bat_entries=SMALL_BAT) for key in leaves]
        text = "{base}_{clone}" if len(leaves) == 2 else "{base}_"
        volumes.append(journal("clone", "orig", text))
    volumes.append(journal("inflate", "base", "4194304"))
    return builder.build_sr(volumes)


KINDS: Dict[str, Callable[[int], BuiltSr]] = {
    "dynamic VHD": dynamic,
    "VHD chains": chains,
    "QCOW2 chains": qcow2_chains,
    "VHD chains, in use": in_use,
}


def of_size(size_bytes: int) -> BuiltSr:
    """A chain of three VHDs on a LUN of this size; extents as large as LVM wants them for it."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT)]
    volumes += [vhd(key, "base", bat_entries=SMALL_BAT) for key in ("disk", "snapshot")]
    return builder.build_sr(volumes, size_bytes=size_bytes, extent_size=max(4 * MIB, size_bytes >> 24))
