# SPDX-License-Identifier: LGPL-2.1-only
"""What a stock lvmoiscsi would find on a LUN: LVM's own `pvs` names the VG, another reader reads MGT."""

import contextlib
import json
from typing import Any, NamedTuple, Tuple

from kit.pool.standin import Disk
from kit.reader import VG_PREFIX, read_sr

from . import initiator


class Seen(NamedTuple):
    """An SR as stock tools see it. `problems` is empty on a sound one; `lvs` are names as LVM prints them."""

    sr_uuid: str
    pv_uuid: str
    lvs: Tuple[str, ...]
    vdis: Tuple[Any, ...]  #: kit.reader's records of those that are not deleted
    problems: Tuple[str, ...]


def probe_device(device):
    """What is on a block device; None if LVM sees no SR there."""
    rows = _report("pvs", "vg_name,pv_uuid", device)
    if not rows or not rows[0]["vg_name"].startswith(VG_PREFIX):
        return None
    assert len(rows) == 1, rows
    lvs = _report("lvs", "lv_name", device)
    with contextlib.closing(Disk(device)) as disk:
        sr = read_sr(disk)
    assert sr is not None, f"LVM sees {rows[0]} where tests/kit/reader sees no SR"
    assert sr.mgt is not None, f"there is no MGT volume on {device}"
    return Seen(
        sr_uuid=rows[0]["vg_name"][len(VG_PREFIX) :],
        pv_uuid=rows[0]["pv_uuid"],
        lvs=tuple(sorted(row["lv_name"] for row in lvs)),
        vdis=tuple(record for record in sr.mgt.records if not record.deleted),
        problems=sr.problems,
    )


def _report(command, fields, device):
    said = initiator.lvm(command, "--reportformat", "json", "-o", fields, device=device).out
    return json.loads(said)["report"][0][command[:-1]]
