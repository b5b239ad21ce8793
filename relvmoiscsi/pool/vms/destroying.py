# SPDX-License-Identifier: LGPL-2.1-only
"""VMs that `clone` has made are destroyed, without their disks: those that bear our marks, and no other."""

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, Records, passing
from relvmoiscsi.pool.records import RUN
from relvmoiscsi.pool.vms.inventory import COPY_OF

#: what is half made is a template, and both of the latter destroy the disks as well
BY_HAND = "destroy the VM without its disks (xe vm-destroy, never vm-uninstall or template-uninstall)"


def destroy_own(calls: Calls, vm: str, run: str) -> None:
    """Destroy a VM that this run has made. Raises Refused, PoolFailure."""
    vms = calls.records("VM")
    record = vms.get(vm)
    if record is None:
        return
    if record["other_config"].get(RUN) != run:
        raise Refused(f"The VM {record['name_label']!r} was not made by this run. The run destroys only its own VMs.")
    destroy(calls, vms, vm)


def destroy(calls: Calls, vms: Records, vm: str) -> None:
    """Destroy a VM that bears our marks, and its snapshots, whoever has made these; its VDIs stay. Raises Refused,
    PoolFailure.
    """
    record = vms.get(vm)
    if record is None or COPY_OF not in record["other_config"]:
        raise Refused(f"The VM {vm} was not made by `relvmoiscsi pool clone`.")
    if record["power_state"] != "Halted":
        raise Refused(f"The VM {record['name_label']!r} is not shut down.")
    # those with memory are suspended for ever, and go so (xapi_vm_lifecycle.ml)
    for ref in [*(ref for ref, each in vms.items() if each["is_a_snapshot"] and each["snapshot_of"] == vm), vm]:
        with passing("HANDLE_INVALID"):
            calls.call("VM.destroy", ref)
