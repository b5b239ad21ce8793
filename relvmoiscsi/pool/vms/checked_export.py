# SPDX-License-Identifier: LGPL-2.1-only
"""Export the records of a VM, as far as the pool's own records say the same: `ova_compare`."""

from typing import Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, Records
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, ova_compare, transfer
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.ova_file import Ova
from relvmoiscsi.wording import said, shell_command

_MOST_KEY = 16384  #: characters of a key in a command


def export(
    calls: Calls, pool: Pool, found: Inventory, vm: str, snapshots: bool, without: Sequence[str] = (), tries: int = 2
) -> bytes:
    """Return ova.xml of a VM (a reference) in any power state, without the objects of the classes in `without`.

    A VM, and a key, may change between the two readings. So a difference counts after `tries` exports. Raises
    PoolFailure, Refused.
    """
    document = transfer.export_vm(calls, vm, snapshots)
    try:
        ova = Ova(document)
        ova.drop([thing for thing in ova.things if thing.cls in without])
        _verify(calls, pool, found, ova, vm, snapshots, without)
        return ova.document()
    except Refused as error:
        found = inventory.of_vm(calls, vm)
        if tries == 1:
            raise _with_key(error, ova_compare.of_vm(found, pool.srs, lambda cls: {}, vm, snapshots)) from error
    return export(calls, pool, found, vm, snapshots, without, tries - 1)


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


def _with_key(error: Refused, records: ova_compare.ByClass) -> Refused:
    """Return the error, with the first key that makes an export say something else, or nothing."""
    for key in ova_compare.broken_keys(records):
        has = f"The {key.cls} {said(key.uuid)} has the key {said(key.text)} in {key.field}"
        message = f"{error.message} {has}, and xapi writes keys into an export as they are."
        if len(key.text) > _MOST_KEY:
            return Refused(message).advising("Remove the key with a client of XenAPI. Then repeat the command.")
        words = f"uuid={key.uuid}", f"param-name={key.field.replace('_', '-')}", f"param-key={key.text}"
        if key.cls == "VM":
            remove = shell_command("xe vm-param-remove", *words)
        elif key.cls == "VDI":
            remove = shell_command("xe vdi-param-remove", *words)
        elif key.cls == "VBD":
            remove = shell_command("xe vbd-param-remove", *words)
        elif key.cls == "VIF":
            remove = shell_command("xe vif-param-remove", *words)
        elif key.cls == "network":
            remove = shell_command("xe network-param-remove", *words)
        else:
            remove = shell_command("xe sr-param-remove", *words)
        return Refused(message).advising(f"Remove the key: `{remove}`. Then repeat the command.", remove)
    return error
