# SPDX-License-Identifier: LGPL-2.1-only
"""Export the records of a VM, as far as the pool's own records say the same: `ova_compare`."""

import time
from typing import List, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolGone, Record, Records
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, ova_compare, transfer, vbds
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.ova_file import Ova
from relvmoiscsi.wording import human_time, said, shell_command

EXPORT = "metadata_export"  #: the operation of xapi
#: how long to wait for other operations of xapi on the VM, such as the snapshot of a backup. xapi itself waits two
#: minutes in silence; xen-api ocaml/xapi/export.ml, lock_vm
BUSY_SECONDS = 60.0
LOOK_SECONDS = 2.0  #: from one look at such a VM to the next
_MOST_KEY = 16384  #: characters of a key in a command


def export(
    calls: Calls, pool: Pool, found: Inventory, vm: str, snapshots: bool, without: Sequence[str] = (), tries: int = 2
) -> bytes:
    """Return ova.xml of a VM (a reference) in any power state, without the objects of the classes in `without`.

    A VM, and a key, may change between the two readings. So a difference counts after `tries` exports. Raises
    PoolFailure, Refused.
    """
    vbds.must_be_allowed(found.vms[vm], EXPORT)
    _wait_until_idle(calls, vm, found.vms[vm])
    try:
        document = transfer.export_vm(calls, vm, snapshots)
    except PoolGone:  # as where another operation began since
        _must_be_idle(calls.call("VM.get_record", vm))
        raise
    try:
        ova = Ova(document)
        ova.drop([thing for thing in ova.things if thing.cls in without])
        _verify(calls, pool, found, ova, vm, snapshots, without)
        return ova.document()
    except Refused as error:
        found = inventory.of_vm(calls, vm)
        if tries == 1:
            raise _with_key(error, _records(calls, pool, found, vm, snapshots)) from error
    return export(calls, pool, found, vm, snapshots, without, tries - 1)


def wait_for(record: Record) -> str:
    """Return the sentence of a plan on the wait for a busy VM; "" for a VM that xapi would export now."""
    try:
        _must_be_idle(record)
    except Refused as busy:
        return f"{busy.message} The run waits {human_time(BUSY_SECONDS)} at most, and leaves out a VM that stays busy."
    return ""


def _wait_until_idle(calls: Calls, vm: str, record: Record) -> None:
    """Wait until xapi would export a VM with this record. Raises Refused after BUSY_SECONDS, PoolFailure."""
    limit = Deadline(BUSY_SECONDS)
    while True:
        try:
            return _must_be_idle(record)
        except Refused:
            if limit.has_passed:
                raise
        time.sleep(limit.within(LOOK_SECONDS))
        record = calls.call("VM.get_record", vm)


def _must_be_idle(record: Record) -> None:
    """Raises Refused for a VM with an operation of xapi beside which xapi exports no VM.

    Source: xen-api ocaml/xapi/xapi_vm_lifecycle.ml, is_allowed_concurrently.
    """
    if list(record["current_operations"].values()) != ["migrate_send"]:
        vbds.must_be_idle(record)


def _verify(
    calls: Calls, pool: Pool, found: Inventory, ova: Ova, vm: str, snapshots: bool, without: Sequence[str]
) -> None:
    """Raises Refused for an export that differs from `found`, and from the records after the export."""

    def others(cls: str) -> Records:  # no VM lists its PVS proxies
        is_absent = cls in without or (cls == "PVS_proxy" and not ova.of(cls))
        return {} if is_absent else calls.records(cls)

    def problem(found: Inventory) -> str:
        return ova_compare.difference(ova, ova_compare.of_vm(found, pool.srs, others, vm, snapshots), pool.hosts)

    differs = problem(found) and problem(inventory.of_vm(calls, vm))
    if differs:
        raise Refused(
            f"The export of the VM {said(found.vms[vm]['name_label'])} does not say what the pool's records say: "
            f"{differs}. The export was not used."
        ).advising("Repeat the command when nobody changes the VM.")


def _records(calls: Calls, pool: Pool, found: Inventory, vm: str, snapshots: bool) -> ova_compare.ByClass:
    """Return the records of the objects of an export that have maps: PVS has none, and xapi empties those of a host."""

    def others(cls: str) -> Records:
        return {} if cls == "PVS_proxy" else calls.records(cls)

    records = ova_compare.of_vm(found, pool.srs, others, vm, snapshots)
    metrics, of_guests = calls.records("VM_metrics"), calls.records("VM_guest_metrics")
    vms = records["VM"].values()
    return {
        **records,
        "VM_metrics": {vm["metrics"]: metrics[vm["metrics"]] for vm in vms if vm["metrics"] in metrics},
        "VM_guest_metrics": {
            vm["guest_metrics"]: of_guests[vm["guest_metrics"]] for vm in vms if vm["guest_metrics"] in of_guests
        },
    }


def _with_key(error: Refused, records: ova_compare.ByClass) -> Refused:
    """Return the error, with the first key that makes an export say something else, or nothing."""
    key = next(ova_compare.broken_keys(records), None)
    if key is None:
        return error
    message = f"{error.message} {has_key(key)}, and xapi writes keys into an export as they are."
    way, commands = way_to_remove(key)
    return Refused(message).advising(f"{way} Then repeat the command.", *commands)


def has_key(key: ova_compare.Key) -> str:
    """Return which object has a key or a text, as a clause."""
    what = "key" if key.call == "remove_from" else "text"
    return f"The {key.cls} {said(key.uuid)} has the {what} {said(key.text)} in {key.field}"


def way_to_remove(key: ova_compare.Key) -> Tuple[str, List[str]]:
    """Return (how a person removes a key or a text of an object, as a sentence; the command where xe removes it)."""
    if not key.is_of_xe or len(key.text) > _MOST_KEY:
        verb = {"set": "Write another text", "remove": "Remove the text"}.get(key.call, "Remove the key")
        return f"{verb} with a client of XenAPI, by {key.cls}.{key.call}_{key.field}.", []
    name = key.field if key.field == "qos_algorithm_params" else key.field.replace("_", "-")  # as xe calls the map
    own = f"{key.cls.lower().replace('_', '-')}-param-remove"
    remove = shell_command("xe", own, f"uuid={key.uuid}", f"param-name={name}", f"param-key={key.text}")
    return f"Remove the key: `{remove}`.", [remove]
