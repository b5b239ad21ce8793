# SPDX-License-Identifier: LGPL-2.1-only
"""What it takes to make one VDI of a disk with a snapshot, beside what would copy: counted, on LUNs in memory.

Coalescing reads all data of the leaf and writes it to the parent: vhd-util does so in a live pool, and `qemu-img
commit` does so with QCOW2 images. `qemu-img convert` reads all that a guest can read, and writes it to a second image.
The costs of both are computed from the same chain. The reads and writes of relvmoiscsi are counted.

If a guest writes to blocks of the base again, the old places become dead. In a VHD these are free slots. In a QCOW2 the
run copies the live clusters of half-dead extents together, up to a limit. So QCOW2 images have rows of their own for a
guest that has written elsewhere.
"""

from typing import Callable, NamedTuple, Tuple

from bench.chains import Chain, Written, qcow2s, vhds, written
from bench.table import print_table, size
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.device import CountingDevice
from relvmoiscsi.engine import OneVdiRequest


class Kind(NamedTuple):
    """Chains of a format, and where a guest writes since the snapshot."""

    name: str
    make: Callable[[Written], Chain]
    beside: bool  #: where the base has nothing, but for partial blocks
    partial: Tuple[int, ...]  #: how many partial blocks its rows have


KINDS = (
    Kind("VHD", vhds, False, (0, 40)),
    Kind("QCOW2, written beside", qcow2s, True, (0, 40)),
    Kind("QCOW2", qcow2s, False, (0,)),
)
SMALL, LARGE = 8, 80


def measured(kind: Kind, gib: int, partial: int) -> Tuple[Chain, CountingDevice]:
    made = kind.make(written(gib, partial, kind.beside))
    counting = CountingDevice(made.disk)
    engine.resignature(counting, engine.prepare(counting, entropy(0), engine.ResignatureRequest(one=OneVdiRequest())))
    return made, counting


def print_bytes() -> None:
    rows = []
    for kind in KINDS:
        for partial in kind.partial:
            for gib in (SMALL, LARGE):
                made, ours = measured(kind, gib, partial)
                moved = (made.leaf_bytes, made.disk_bytes)
                rows.append([_name(kind, gib, partial), *map(size, (ours.bytes_read, ours.bytes_written, *moved))])
    print_table(
        "One VDI of a disk with one snapshot: bytes",
        ("", "read", "written", "coalescing moves", "qemu-img convert moves"),
        rows,
        "Counted are ours, identities included; the others are computed.",
    )


def _name(kind: Kind, gib: int, partial: int) -> str:
    return f"{kind.name}, {gib} GiB" + (f", {partial} partial blocks" if partial else "")
