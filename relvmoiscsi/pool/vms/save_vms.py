# SPDX-License-Identifier: LGPL-2.1-only
"""Save the records of the VMs on an SR to that SR before an array snapshot, and read the records from a copy.

vTPM contents are left out, because every reader of the LUN could read the contents. All data goes through xapi. Written
data is read back and compared.
"""

from operator import attrgetter
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.device import align_up
from relvmoiscsi.errors import FormatError, NotFound, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.saved_vms import SavedDisk, SavedHeader, SavedVm, SavedVms
from relvmoiscsi.pool import jobs
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.records import Pool, is_copy, is_lvm
from relvmoiscsi.pool.vms import inventory, left_behind, ova_file, transfer
from relvmoiscsi.pool.vms.choice import Source
from relvmoiscsi.pool.vms.inventory import Copy, Inventory

#: key of VDI.other_config: serial and time, separated by a blank
SAVED = "relvmoiscsi:saved-vms"

_EXTENT = 4 << 20  #: bytes; the smallest VDI of an LVM SR
_MOST_VDI_BYTES = align_up(SavedHeader.SIZE + saved_vms.MOST_BYTES, _EXTENT)


class Save(NamedTuple):
    """Result of a save."""

    sr: str  #: UUID
    vdi: str  #: UUID; "" without a VDI
    when: str
    vms: Sequence[SavedVm]
    failed: Sequence[Tuple[str, str]]  #: names of VMs whose records the pool did not export, with the reasons

    def facts(self) -> Dict[str, Any]:
        vms = [{"uuid": vm.uuid, "name": vm.name_label} for vm in self.vms]
        failed = [{"name": name, "error": error} for name, error in self.failed]
        return {"sr": self.sr, "vdi": self.vdi or None, "when": self.when, "vms": vms, "failed": failed}


def vms_on(pool: Pool, found: Inventory, sr: str) -> List[str]:
    """Return the VMs with a disk on an SR, by name. Raises Refused for an SR that needs no records, NotFound."""
    record = pool.srs[sr]
    if is_copy(record):
        raise Refused(f"The SR {record['name_label']!r} is a copy: give the original SR.")
    if not is_lvm(record):
        raise Refused(f"The SR {record['name_label']!r} is not an LVM SR: its clones cannot be resignatured.")
    refs = [
        ref
        for ref in inventory.in_order(found.named_vms())
        if any(disk["SR"] == sr for disk in found.disks_of(ref).values())
    ]
    if not refs:
        raise NotFound(f"No VM has a disk on the SR {record['name_label']!r}.")
    return refs


def save(calls: Calls, pool: Pool, found: Inventory, sr: str, when: str) -> Save:
    """Save the records of all VMs on an SR; `when` is the time, as in SavedVms.

    Raises NotFound, PoolFailure, Refused.
    """
    refs = vms_on(pool, found, sr)
    outcomes = jobs.at_once(calls, refs, lambda one, ref: _records(one, found, ref))
    good = [outcome for outcome in outcomes if not isinstance(outcome, RelvmoiscsiError)]
    failed = {
        str(found.vms[ref]["uuid"]): (str(found.vms[ref]["name_label"]), str(outcome))
        for ref, outcome in zip(refs, outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    }
    if not good:
        raise PoolFailure(f"The pool exported no VM records: {next(iter(failed.values()))[1]}")
    earlier, serial = _earlier(calls, sr, failed)
    kept = []
    for vm, document, before in earlier.values():  # `_drop_older` destroys the earlier VDI
        kept.append((vm, document))
        name, why = failed[vm.uuid]
        failed[vm.uuid] = name, f"{why} Its records of the save of {before} are kept."
    content = saved_vms.pack(pool.srs[sr]["uuid"], when, serial + 1, [*good, *kept])
    _verify_size(content)
    with in_state(left_behind.SAVING):
        vdi = _written(calls, sr, f"{serial + 1} {when}", content)
        _drop_older(calls, sr, vdi)
        uuid = str(calls.call("VDI.get_uuid", vdi))
    return Save(pool.srs[sr]["uuid"], uuid, when, [vm for vm, _ in good], list(failed.values()))


def _verify_size(content: bytes) -> None:
    try:
        saved_vms.read_header(content, saved_vms.NAME_LABEL)
    except FormatError as error:
        raise Refused(
            f"The records of the VMs are too large to be read back ({len(content)} bytes). Nothing was saved. "
            "Delete snapshots of VMs: their records need most of the space."
        ) from error


def _earlier(calls: Calls, sr: str, wanted: Collection[str]) -> Tuple[Dict[str, Tuple[SavedVm, bytes, str]], int]:
    """Return (for each VM in `wanted`, its records in earlier saves and their time; the highest serial so far).

    A VDI is read for wanted records, or for a serial that its key lacks. Raises PoolFailure where a VDI with wanted
    records cannot be read.
    """
    found: Dict[str, Tuple[SavedVm, bytes, str]] = {}
    serials, saves = [0], []
    for ref, vdi in calls.records("VDI", SR=sr).items():
        if vdi["name_label"] == saved_vms.NAME_LABEL:
            known = _order(vdi)[0]
            serials.append(known)
            if wanted or not known:
                try:
                    saves.append(_read(calls, ref, vdi))
                except PoolGone:
                    raise
                except PoolFailure:  # another client may use the VDI
                    if wanted:
                        raise
    for one in sorted((save for save in saves if save is not None), key=attrgetter("order")):
        serials.append(one.serial)
        for vm in [vm for vm in one.vms if vm.uuid in wanted]:
            try:
                found[vm.uuid] = vm, one.documents([vm.uuid])[vm.uuid], one.when
            except FormatError:
                pass  # an older save may have readable records of the VM
    return found, min(max(serials), saved_vms.MOST_SERIAL - 1)


def _records(calls: Calls, found: Inventory, ref: str) -> Tuple[SavedVm, bytes]:
    vm = found.vms[ref]
    disks = sorted(
        SavedDisk(device, str(vdi["uuid"]), str(vdi["name_label"])) for device, vdi in found.disks_of(ref).items()
    )
    document = ova_file.without_vtpm(transfer.export_vm(calls, ref, snapshots=True))
    if len(document) > saved_vms.MOST_RECORDS_BYTES:
        raise Refused(
            f"The records of the VM {vm['name_label']!r} have {len(document)} bytes, too many to save. Delete "
            "snapshots of the VM."
        )
    return SavedVm(vm["uuid"], vm["name_label"], vm["power_state"], tuple(disks)), document


def _written(calls: Calls, sr: str, mark: str, content: bytes) -> str:
    """Return the reference of a new VDI with this content and mark. Raises PoolFailure.

    A VDI with other content is destroyed.
    """
    vdi = calls.run("VDI.create", _vdi(sr, mark, align_up(len(content), _EXTENT)))
    try:
        size = int(calls.call("VDI.get_virtual_size", vdi))
        transfer.import_raw(calls, vdi, content + bytes(size - len(content)))
        if transfer.export_raw(calls, vdi)[: len(content)] != content:
            raise PoolFailure(
                "The VDI with the records of the VMs reads back different data than was written. Repeat the command."
            )
    except PoolFailure:
        _destroy(calls, vdi)
        raise
    return vdi


def _vdi(sr: str, mark: str, size: int) -> Dict[str, Any]:
    return {
        "name_label": saved_vms.NAME_LABEL,
        "name_description": f"Of {mark.rpartition(' ')[2]}. Made by relvmoiscsi pool save-vms; no disk of a VM.",
        "SR": sr,
        "virtual_size": str(size),
        "type": "user",
        "sharable": False,
        "read_only": False,
        "other_config": {SAVED: mark},
        "xenstore_data": {},
        "sm_config": {"type": "raw"},
        "tags": [],
    }


def _is_ours(vdi: Record) -> bool:
    return SAVED in vdi["other_config"] and vdi["name_label"] == saved_vms.NAME_LABEL


def _order(vdi: Record) -> Tuple[int, str, str]:
    """Return the sort key of a save: serial (0 without one), time, UUID. The clocks of the clients may be wrong."""
    serial, _, when = str(vdi["other_config"].get(SAVED, "")).rpartition(" ")
    return untrusted.number(serial) if untrusted.is_number(serial) else 0, when, str(vdi["uuid"])


def _drop_older(calls: Calls, sr: str, keep: str) -> None:
    """Destroy the VDIs of earlier saves and of interrupted saves.

    A newer VDI stays: another client saves at the same time, and destroys the VDI of this save.
    """
    ours = {ref: vdi for ref, vdi in calls.records("VDI", SR=sr).items() if _is_ours(vdi)}
    if keep not in ours:
        return  # another client has saved at the same time, and destroyed this VDI
    for ref, vdi in ours.items():
        if _order(vdi) < _order(ours[keep]) and not vdi["VBDs"]:
            _destroy(calls, ref)


def _destroy(calls: Calls, vdi: str) -> None:
    try:
        calls.run("VDI.destroy", vdi)
    except PoolFailure:
        pass  # the next save destroys the VDI


# --- read


def read(calls: Calls, copy: Copy) -> SavedVms:
    """Return the newest readable records on a copy. Raises NotFound, PoolFailure."""
    last: Optional[SavedVms] = None
    for ref, vdi in copy.vdis.items():  # one VDI at a time: a VDI may be large
        if vdi["name_label"] == saved_vms.NAME_LABEL and vdi["managed"]:
            found = _read(calls, ref, vdi)
            if found is not None and (last is None or found.order > last.order):
                last = found
    if last is None:
        raise NotFound(f"There are no VM records on {copy.name!r}: run `save-vms` before the next array snapshot.")
    return last


def _read(calls: Calls, ref: str, vdi: Record) -> Optional[SavedVms]:
    """Read a VDI; None for a VDI that is too large, or has no readable records. Raises PoolFailure."""
    if int(vdi["virtual_size"]) > _MOST_VDI_BYTES:
        return None
    content, name = transfer.export_raw(calls, ref), str(vdi["uuid"])
    try:
        return saved_vms.unpack(saved_vms.read_header(content, name), content[SavedHeader.SIZE :], name)
    except FormatError:
        return None


def choose(found: Inventory, saved: SavedVms, names: Sequence[str], everything: bool = False) -> List[Source]:
    """Return the saved VMs with these UUIDs or names, or all saved VMs, with their saved records.

    Raises FormatError, NotFound, UsageError.
    """
    rows = {vm.uuid: {"uuid": vm.uuid, "name_label": vm.name_label} for vm in saved.vms}
    chosen = list(rows) if everything else [inventory.find(rows, name, "saved VM") for name in names]
    here = {str(vm["uuid"]): ref for ref, vm in found.vms.items()}
    documents = saved.documents(list(dict.fromkeys(chosen)))
    return [Source(uuid, str(rows[uuid]["name_label"]), here.get(uuid, ""), documents[uuid]) for uuid in documents]
