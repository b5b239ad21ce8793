# SPDX-License-Identifier: LGPL-2.1-only
"""The VMs that `clone` has made go before the copy that has their disks. Their VDIs go with the SR, which is forgotten.

A VM that bears our marks, and they are not its own, is left alone: somebody has copied it, marks and all.
"""

from typing import Dict, List, NamedTuple, Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory
from relvmoiscsi.pool.vms.clone import destroy
from relvmoiscsi.pool.vms.inventory import DONE, ON_SR, Inventory, is_own


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
        if not is_own(vm):
            if not homes:
                continue
            raise Refused(
                f"The VM {vm['name_label']!r} ({vm['uuid']}) has disks on this copy, and is none that a run of "
                "`relvmoiscsi pool clone` has finished: it was cloned from a copy, or the run was cut. It is not "
                "destroyed. Take its disks elsewhere, or destroy it by hand (xe vm-destroy)."
            )
        if homes - {sr}:
            raise Refused(
                f"The VM {vm['name_label']!r} has a disk that is not on this copy. Detach that disk, or destroy the VM "
                "by hand (xe vm-destroy)."
            )
        if vm["power_state"] != "Halted":
            raise Refused(f"The VM {vm['name_label']!r} is not shut down.")
        made.append(Made(ref, vm["name_label"], vm["uuid"]))
    return sorted(made, key=lambda each: (each.name, each.uuid))


def destroy_made(calls: Calls, pool: Pool, sr: str, made: Sequence[Made]) -> None:
    """Destroy them, with their snapshots, if they are still what they were; what is gone is done. Raises PoolFailure,
    Refused.
    """
    if made:
        found = inventory.read(calls)
        known = {each.uuid for each in made}
        for each in _made_on(found, pool, sr):
            if each.uuid in known:
                destroy(calls, found.vms, each.ref)


def clean_networks(calls: Calls, sr_uuids: Sequence[str]) -> List[str]:
    """Destroy the networks that `clone` has made for copies on these SRs, and that no VIF is on; their names.

    xapi would destroy the VIFs of halted VMs with a network. Raises PoolFailure.
    """
    gone = []
    for ref, network in calls.records("network").items():
        is_ours = DONE in network["other_config"] and network["other_config"].get(ON_SR) in sr_uuids
        if is_ours and not network["PIFs"] and _destroyed(calls, ref):
            gone.append(str(network["name_label"]))
    return gone


def _destroyed(calls: Calls, network: str) -> bool:
    try:
        if calls.call("network.get_VIFs", network):
            return False
        calls.call("network.destroy", network)
    except PoolFailure as failure:
        if failure.code == "NETWORK_CONTAINS_VIF":
            return False
        if failure.code != "HANDLE_INVALID":
            raise
    return True
