# SPDX-License-Identifier: LGPL-2.1-only
"""The VMs that `clone` has made go before the copy that has their disks. Their VDIs go with the SR, which is forgotten.

A VM that bears our marks and has all of its disks elsewhere is left alone: somebody has copied it, marks and all.
"""

from typing import Dict, List, NamedTuple, Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms.clone import destroy
from relvmoiscsi.pool.vms.inventory import DONE, Inventory


class Made(NamedTuple):
    """A VM that goes."""

    ref: str
    name: str
    uuid: str


def made_on(found: Inventory, pool: Pool, srs: Sequence[str]) -> Dict[str, List[Made]]:
    """The VMs that go with each SR, by reference of the SR. Raises Refused for one that has a disk elsewhere, or runs.
    Pure.
    """
    return {sr: _made_on(found, pool, sr) for sr in srs}


def _made_on(found: Inventory, pool: Pool, sr: str) -> List[Made]:
    made = []
    for ref, vm in found.copies_on(str(pool.srs[sr]["uuid"])):
        homes = {disk["SR"] for disk in found.disks_of(ref).values()}
        if vm["is_a_snapshot"] or (homes and sr not in homes):
            continue
        if homes - {sr}:
            raise Refused(
                f"The VM {vm['name_label']!r} has a disk that is not on this copy. Detach that disk, or destroy the VM "
                "by hand (xe vm-destroy)."
            )
        if vm["power_state"] != "Halted":
            raise Refused(f"The VM {vm['name_label']!r} is not shut down.")
        made.append(Made(ref, vm["name_label"], vm["uuid"]))
    return sorted(made, key=lambda each: (each.name, each.uuid))


def destroy_made(calls: Calls, made: Sequence[Made]) -> None:
    """Destroy them, with their snapshots; what is gone is done. Raises PoolFailure, Refused."""
    if made:
        vms = calls.records("VM")
        for each in made:
            if each.ref in vms:
                destroy(calls, vms, each.ref)


def clean_networks(calls: Calls) -> List[str]:
    """Destroy the networks that `clone` has made and that nobody uses any more; their names. Raises PoolFailure."""
    gone = []
    for ref, network in calls.records("network").items():
        if DONE in network["other_config"] and not network["VIFs"] and not network["PIFs"]:
            try:
                calls.call("network.destroy", ref)
            except PoolFailure as failure:
                if failure.code not in ("HANDLE_INVALID", "NETWORK_CONTAINS_VIF"):
                    raise
            gone.append(str(network["name_label"]))
    return gone
