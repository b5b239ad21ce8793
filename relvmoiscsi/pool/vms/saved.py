# SPDX-License-Identifier: LGPL-2.1-only
"""The records of the VMs on an SR, saved on that SR before the array makes its snapshot, and read from a copy.

vTPM contents are left out: whoever has the LUN would have them. Everything goes by xapi; what was written is read back.
"""

from typing import AbstractSet, Any, Dict, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi.device import align_up
from relvmoiscsi.errors import FormatError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.saved_vms import SavedDisk, SavedHeader, SavedVm, SavedVms
from relvmoiscsi.pool import jobs
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, Records
from relvmoiscsi.pool.records import Pool, is_copy, is_lvm
from relvmoiscsi.pool.vms import inventory, ova_file, transfer
from relvmoiscsi.pool.vms.choice import Source
from relvmoiscsi.pool.vms.inventory import Copy, Inventory

#: key of VDI.other_config: when
SAVED = "relvmoiscsi:saved-vms"

_EXTENT = 4 << 20  #: bytes; an LVM SR has no smaller VDI


class Save(NamedTuple):
    """What was saved."""

    sr: str  #: UUID
    vdi: str  #: UUID; "" where nothing was made
    when: str
    vms: Sequence[SavedVm]
    failed: Sequence[Tuple[str, str]]  #: names of VMs whose records could not be had, and why

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        vms = [{"uuid": vm.uuid, "name": vm.name_label} for vm in self.vms]
        failed = [{"name": name, "error": error} for name, error in self.failed]
        return {"sr": self.sr, "vdi": self.vdi or None, "when": self.when, "vms": vms, "failed": failed}


def vms_on(pool: Pool, found: Inventory, sr: str) -> List[str]:
    """The VMs that have a disk on an SR, by name. Raises Refused for an SR on which nothing is saved, NotFound."""
    record = pool.srs[sr]
    if is_copy(record):
        raise Refused(f"The SR {record['name_label']!r} is a copy: records are saved on the original.")
    if not is_lvm(record):
        raise Refused(f"The SR {record['name_label']!r} is no LVM SR: no copy of it could be resignatured.")
    refs = [
        ref
        for ref in inventory.in_order(found.named_vms())
        if any(disk["SR"] == sr for disk in found.disks_of(ref).values())
    ]
    if not refs:
        raise NotFound(f"No VM has a disk on the SR {record['name_label']!r}.")
    return refs


def save(calls: Calls, pool: Pool, found: Inventory, sr: str, when: str, at_once: int = jobs.MOST) -> Save:
    """Save the records of all VMs on an SR; `when` is the time, as in SavedVms.

    Raises NotFound, PoolFailure, Refused.
    """
    refs = vms_on(pool, found, sr)
    outcomes = jobs.at_once(calls, refs, lambda one, ref: _records(one, found, ref), at_once)
    good = [outcome for outcome in outcomes if not isinstance(outcome, RelvmoiscsiError)]
    failed = [
        (str(found.vms[ref]["name_label"]), str(outcome))
        for ref, outcome in zip(refs, outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    ]
    if not good:
        raise PoolFailure(f"The records of no VM could be had: {failed[0][1]}")
    kept, failed = _kept(calls, sr, failed, {found.vms[ref]["uuid"] for ref in refs} - {vm.uuid for vm, _ in good})
    content = saved_vms.pack(pool.srs[sr]["uuid"], when, [*good, *kept])
    vdi = _written(calls, sr, when, content)
    _drop_older(calls, sr, vdi, when)
    uuid = str(calls.call("VDI.get_uuid", vdi))
    return Save(pool.srs[sr]["uuid"], uuid, when, [vm for vm, _ in good], failed)


def _kept(
    calls: Calls, sr: str, failed: Sequence[Tuple[str, str]], missing: AbstractSet[str]
) -> Tuple[List[Tuple[SavedVm, bytes]], List[Tuple[str, str]]]:
    """(the records that an earlier save has of VMs (UUIDs) whose records could not be had now, `failed` with a word
    on it). The VDI before goes, and they would go with it. Raises PoolFailure.
    """
    if not missing:
        return [], list(failed)
    earlier = []
    for ref, vdi in _ours(calls, sr).items():
        one = _parsed(transfer.export_raw(calls, ref), str(vdi["uuid"]))
        earlier += [one] if isinstance(one, SavedVms) else []
    found: Dict[str, Tuple[SavedVm, bytes, str]] = {}
    for save_before in sorted(earlier, key=lambda one: one.when):
        for vm in save_before.vms:
            if vm.uuid in missing:
                found[vm.uuid] = (vm, save_before.documents[vm.uuid], save_before.when)
    whens = {vm.name_label: when for vm, _, when in found.values()}
    told = [
        (name, why + (f" Its records of the save of {whens[name]} are kept." if name in whens else ""))
        for name, why in failed
    ]
    return [(vm, document) for vm, document, _ in found.values()], told


def _records(calls: Calls, found: Inventory, ref: str) -> Tuple[SavedVm, bytes]:
    vm = found.vms[ref]
    disks = sorted(
        SavedDisk(device, str(vdi["uuid"]), str(vdi["name_label"])) for device, vdi in found.disks_of(ref).items()
    )
    document = ova_file.without_vtpm(transfer.export_vm(calls, ref, snapshots=True))
    return SavedVm(vm["uuid"], vm["name_label"], vm["power_state"], tuple(disks)), document


def _written(calls: Calls, sr: str, when: str, content: bytes) -> str:
    """Reference of a new VDI with this content; one that does not get it goes again. Raises PoolFailure."""
    vdi = calls.run("VDI.create", _vdi(sr, when, align_up(len(content), _EXTENT)))
    try:
        size = int(calls.call("VDI.get_virtual_size", vdi))
        transfer.import_raw(calls, vdi, content + bytes(size - len(content)))
        if transfer.export_raw(calls, vdi)[: len(content)] != content:
            raise PoolFailure("The VDI with the records of the VMs reads back otherwise than it was written.")
    except PoolFailure:
        _destroy(calls, vdi)
        raise
    return vdi


def _vdi(sr: str, when: str, size: int) -> Dict[str, Any]:
    return {
        "name_label": saved_vms.NAME_LABEL,
        "name_description": f"Of {when}. Made by relvmoiscsi pool save-vms; no disk of a VM.",
        "SR": sr,
        "virtual_size": str(size),
        "type": "user",
        "sharable": False,
        "read_only": False,
        "other_config": {SAVED: when},
        "xenstore_data": {},
        "sm_config": {"type": "raw"},
        "tags": [],
    }


def _ours(calls: Calls, sr: str) -> Records:
    """The VDIs that saves have made on an SR."""
    vdis = calls.records("VDI", f'field "SR" = "{sr}"')
    return {ref: vdi for ref, vdi in vdis.items() if _is_ours(vdi)}


def _is_ours(vdi: Record) -> bool:
    return SAVED in vdi["other_config"] and vdi["name_label"] == saved_vms.NAME_LABEL


def _drop_older(calls: Calls, sr: str, keep: str, when: str) -> None:
    """The VDIs of earlier saves, and what a save that was cut has left.

    One that is newer stays: it is of somebody who saves at the same time, and who drops this one.
    """
    ours = _ours(calls, sr)
    mine = (when, str(ours[keep]["uuid"])) if keep in ours else (when, "")
    for ref, vdi in ours.items():
        if (vdi["other_config"][SAVED], str(vdi["uuid"])) < mine and ref != keep and not vdi["VBDs"]:
            _destroy(calls, ref)


def _destroy(calls: Calls, vdi: str) -> None:
    try:
        calls.run("VDI.destroy", vdi)
    except PoolFailure:
        pass  # it stays until the next save, which tries again


# --- read


def read(calls: Calls, copy: Copy) -> SavedVms:
    """The last records that can be read on a copy. Raises NotFound, PoolFailure."""
    found = []
    for ref, vdi in copy.vdis.items():
        if vdi["name_label"] == saved_vms.NAME_LABEL and vdi["managed"]:
            content = transfer.export_raw(calls, ref)
            one = _parsed(content, str(vdi["uuid"]))
            found += [one] if isinstance(one, SavedVms) else []
    if not found:
        raise NotFound(f"There are no VM records on {copy.name!r}: save-vms was not run before its snapshot was made.")
    return max(found, key=lambda one: one.when)


def _parsed(content: bytes, name: str) -> Union[SavedVms, FormatError]:
    try:
        return saved_vms.unpack(saved_vms.read_header(content, name), content[SavedHeader.SIZE :], name)
    except FormatError as error:
        return error


def choose(found: Inventory, saved: SavedVms, names: Sequence[str], everything: bool = False) -> List[Source]:
    """The saved VMs that are meant, by UUID or name, or all: with their records of then.

    Raises NotFound, UsageError.
    """
    rows = {vm.uuid: {"uuid": vm.uuid, "name_label": vm.name_label} for vm in saved.vms}
    chosen = list(rows) if everything else [inventory.find(rows, name, "saved VM") for name in names]
    here = {str(vm["uuid"]): ref for ref, vm in found.vms.items()}
    return [
        Source(uuid, str(rows[uuid]["name_label"]), here.get(uuid, ""), saved.documents[uuid])
        for uuid in dict.fromkeys(chosen)
    ]
