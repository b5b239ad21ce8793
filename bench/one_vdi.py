# SPDX-License-Identifier: LGPL-2.1-only
"""What it takes to make one VDI of a disk with a snapshot, beside what would copy: counted, on LUNs in memory.

Coalescing reads all data of the leaf and writes it to the parent: vhd-util does so in a live pool, and `qemu-img
commit` does so with QCOW2 images. `qemu-img convert` reads all that a guest can read, and writes it to a second image.
The costs of both are computed from the same chain. The reads and writes of relvmoiscsi are counted.

If a guest writes to blocks of the base again, the old places become dead. In a VHD these are free slots. In a QCOW2 the
run copies the live clusters of half-dead extents together, up to a limit. So QCOW2 images have rows of their own for a
guest that has written elsewhere.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from bench.chains import GIB, Chain, Written, qcow2s, vhds, written
from bench.table import print_table, size, verdict
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.device import CountingDevice
from relvmoiscsi.engine import OneVdiRequest

#: what a larger disk may write more, but for the tables that a QCOW2 has of it
MORE = 4 << 20
#: of a QCOW2, for 64 KiB of disk: an entry of a table, and a count
TABLE_BYTES = 8 + 2


class Kind(NamedTuple):
    """Chains of a format, and where a guest writes since the snapshot."""

    name: str
    make: Callable[[Written], Chain]
    beside: bool  #: where the base has nothing, but for partial blocks
    table_bytes: int  #: for each 64 KiB of disk
    partial: Tuple[int, ...]  #: how many partial blocks its rows have
    is_the_same: bool = True  #: a larger disk writes no more, but for tables


KINDS = (
    Kind("VHD", vhds, False, 0, (0, 40)),
    Kind("QCOW2, written beside", qcow2s, True, TABLE_BYTES, (0, 40)),
    Kind("QCOW2", qcow2s, False, TABLE_BYTES, (0,), is_the_same=False),
)
SMALL, LARGE = 8, 80


def measured(kind: Kind, gib: int, partial: int) -> Tuple[Chain, CountingDevice]:
    made = kind.make(written(gib, partial, kind.beside))
    counting = CountingDevice(made.disk)
    engine.resignature(counting, engine.prepare(counting, entropy(0), engine.ResignatureRequest(one=OneVdiRequest())))
    return made, counting


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    rows, found = [], {}
    for kind in KINDS:
        for partial in kind.partial:
            for gib in (SMALL, LARGE):
                made, ours = measured(kind, gib, partial)
                found[kind, gib, partial] = ours.bytes_written
                moved = (made.leaf_bytes, made.disk_bytes)
                rows.append([_name(kind, gib, partial), *map(size, (ours.bytes_read, ours.bytes_written, *moved))])
    print_table(
        "One VDI of a disk with one snapshot: bytes",
        ("", "read", "written", "coalescing moves", "qemu-img convert moves"),
        rows,
        "Counted are ours, identities included; the others are computed.",
    )
    print()
    for kind in KINDS:
        if kind.is_the_same:
            _judge(kind, found, unmet)
    results["one_vdi"] = {_name(*key): count for key, count in found.items()}


def _name(kind: Kind, gib: int, partial: int) -> str:
    return f"{kind.name}, {gib} GiB" + (f", {partial} partial blocks" if partial else "")


def _judge(kind: Kind, found: Dict[Tuple[Kind, int, int], int], unmet: List[str]) -> None:
    """A larger disk with as many partial blocks writes no more, but for tables."""
    tables = (LARGE - SMALL) * GIB // 65536 * kind.table_bytes
    for partial in kind.partial:
        more = found[kind, LARGE, partial] - found[kind, SMALL, partial]
        beside = f", but for {size(tables)} of tables" if tables else ""
        what = f"{kind.name}, {partial} partial blocks: ten times the disk, at most {size(MORE)} more{beside}"
        verdict(what, more - tables <= MORE, size(max(0, more)), unmet)
