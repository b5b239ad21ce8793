# SPDX-License-Identifier: LGPL-2.1-only
"""Save the records of the VMs on an SR to that SR before an array snapshot, and read the records from a copy.

vTPM contents are left out, because every reader of the LUN could read the contents. All data goes through xapi. Written
data is read back and compared.
"""

from collections import Counter
from operator import attrgetter
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.device import align_up
from relvmoiscsi.errors import FormatError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.formats.saved_vms import PackedVm, SavedDisk, SavedHeader, SavedVm, SavedVms
from relvmoiscsi.pool import jobs, lock, lock_keys, marks
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record, Records
from relvmoiscsi.pool.records import LVM_TYPES, Pool, find, is_copy, shown_uuid
from relvmoiscsi.pool.vms import (
    checked_export,
    inventory,
    ova,
    owners,
    records_key,
    restore_journal,
    run_states,
    transfer,
    vbds,
)
from relvmoiscsi.pool.vms.choice import VmSource
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.wording import cut, printable, said, shell_command, some_of

#: key of VDI.other_config: serial and time, separated by a blank. A vm-admin may write it, so it says only which VDIs a
#: save may destroy. Key of SR.other_config, for which it takes a pool-operator: serial of the last save.
SAVED = "relvmoiscsi:saved-vms"

_MOST_AT_ONCE = 100  #: saves whose serials may be ahead of the key of the SR
_EXTENT = 4 << 20  #: bytes; the smallest VDI of an LVM SR
_MOST_READ_BYTES = 4 * saved_vms.MOST_VDI_BYTES  #: of all VDIs on an SR that may have records


def vms_on(pool: Pool, found: Inventory, sr: str) -> List[str]:
    """Return the VMs that can be saved, by name, of those with a disk on an SR.

    Raises Refused for an SR that needs no records, NotFound.
    """
    record = pool.srs[sr]
    if is_copy(record):
        raise Refused(f"The SR {record['name_label']!r} is a copy.").advising("Give the original SR.")
    if record["type"] not in LVM_TYPES or not is_uuid(record["uuid"]):  # the names of its volumes have the UUID
        raise Refused(f"The SR {record['name_label']!r} is not an LVM SR: its clones cannot be resignatured.")
    there, left = _with_disks(found, sr), left_out(pool, found, sr)
    refs = [ref for ref in there if ref not in left]
    if not refs:
        which = "No VM that can be saved" if there else "No VM"
        why = " ".join(each.told for each in left.values())
        raise NotFound(f"{which} has a disk on the SR {record['name_label']!r}.").advising(why)
    return refs


def _with_disks(found: Inventory, sr: str) -> List[str]:
    return [
        ref
        for ref in inventory.in_order(found.named_vms())
        if any(disk["SR"] == sr for disk in found.disks_of(ref).values())
    ]


def left_out(pool: Pool, found: Inventory, sr: str) -> Dict[str, Refused]:
    """Return why each VM (reference) of an SR is left out: first the VMs whose export is blocked, each kind by name.

    Then the VMs whose disks of the SR are those of a copy since a `restore`. The next copy has the earlier disks of
    such a VM, and not the disks in its records.
    """
    left = {}
    for ref in _with_disks(found, sr):
        try:
            vbds.must_be_allowed(found.vms[ref], checked_export.EXPORT)
        except Refused as blocked:
            left[ref] = blocked
    for ref, devices in owners.on_copies(pool, found, str(pool.srs[sr]["uuid"])).items():
        vm, disks = found.vms[ref], found.disks_of(ref)
        if any(disk["SR"] == sr for disk in disks.values()):
            continue
        copies = sorted({repr(pool.srs[disks[device]["SR"]]["name_label"]) for device in devices})
        ends = " or ".join(run_states.restore_command(end, vm["uuid"]) for end in ("home", "undo"))
        way = "No journal is left of the restore: move the disks to that SR in Xen Orchestra or XenCenter."
        left[ref] = Refused(
            f"The VM {vm['name_label']!r} was restored from the copy {', '.join(copies)}: its disks are there, and "
            f"not on the SR {pool.srs[sr]['name_label']!r}."
        ).advising(f"End the restore first: {ends}." if restore_journal.is_restored(vm) else way)
    return left


def save(
    calls: Calls, pool: Pool, found: Inventory, sr: str, when: str
) -> Tuple[SavedVms, str, Dict[str, Tuple[str, str]]]:
    """Save the records of all VMs on an SR; `when` is the time, as in SavedVms.

    Return (the records, the UUID of their VDI, name and reason by UUID for each VM that was not saved). The records of
    such a VM are those of an earlier save, if there are any. The SR is locked meanwhile: each save destroys the VDI of
    the save before. Raises NotFound, PoolFailure; Refused, also where another client saves.
    """
    with lock.held(calls, [lock_keys.name_of(pool.srs[sr])], "save-vms") as held:
        refs = vms_on(pool, found, sr)
        key = records_key.find_or_make(calls)
        outcomes = jobs.at_once(calls, refs, lambda one, ref: _records(one, pool, found, ref))
        good = [outcome for outcome in outcomes if not isinstance(outcome, RelvmoiscsiError)]
        failed = {
            str(found.vms[ref]["uuid"]): (str(found.vms[ref]["name_label"]), str(outcome))
            for ref, outcome in [*zip(refs, outcomes), *left_out(pool, found, sr).items()]
            if isinstance(outcome, RelvmoiscsiError)
        }
        if not good:
            first = next(outcome for outcome in outcomes if isinstance(outcome, RelvmoiscsiError))
            raise PoolFailure(f"The pool exported no VM records: {first.message}").advising(first.advice)
        good = _fitting(good, failed)
        unread: Dict[str, PoolFailure] = {}
        # `_drop_older` destroys the earlier VDI
        earlier = _earlier(calls, pool, sr, key, failed, unread) if failed else {}
        for one in earlier.values():
            name, why = failed[one.vm.uuid]
            failed[one.vm.uuid] = name, f"{why} Its records of the save of {one.vm.saved_at} are kept."
        good = _fitting([*good, *earlier.values()], failed)
        serial = _serial(calls, sr) + 1
        content = saved_vms.pack(pool.srs[sr]["uuid"], when, serial, good, key)
        header = saved_vms.read_header(content, saved_vms.NAME_LABEL)  # as every reader will
        saved = saved_vms.unpack(header, content[SavedHeader.SIZE :], saved_vms.NAME_LABEL)
        held.verify(calls)
        with run_states.saving():
            calls.call("SR.remove_from_other_config", sr, SAVED)
            marks.add(calls, "SR", sr, SAVED, str(serial))
            vdi = _written(calls, sr, f"{serial} {when}", content)
            held.verify(calls)
            _drop_older(calls, sr, vdi, unread)
            uuid = str(calls.call("VDI.get_uuid", vdi))
        return saved, uuid, failed


def _fitting(vms: Sequence[PackedVm], failed: Dict[str, Tuple[str, str]]) -> List[PackedVm]:
    """Return the VMs that one save has room for, and note each other VM in `failed`. Raises Refused for no VM."""
    kept = saved_vms.fitting(vms)
    uuids = {one.vm.uuid for one in kept}
    for one in [one for one in vms if one.vm.uuid not in uuids]:
        error = Refused(
            f"The records of the VM {said(one.vm.name_label)} have {one.unpacked_bytes} bytes, and the records of all "
            "VMs of the SR are too large for one save: the largest are left out."
        ).advising("Delete snapshots of the VM, and long texts of the VM and of its disks.")
        failed[one.vm.uuid] = one.vm.name_label, str(error)
        if not kept:
            raise error
    return kept


def _serial(calls: Calls, sr: str) -> int:
    """Return the serial of the last save on an SR; 0 without one. Raises PoolFailure."""
    text = str(calls.call("SR.get_other_config", sr).get(SAVED, ""))
    return min(untrusted.number(text), saved_vms.MOST_SERIAL - 1) if untrusted.is_number(text) else 0


def _earlier(
    calls: Calls, pool: Pool, sr: str, key: bytes, wanted: Collection[str], unread: Dict[str, PoolFailure]
) -> Dict[str, PackedVm]:
    """Return, for each VM in `wanted`, its records in earlier saves of this pool.

    Raises PoolFailure, Refused. `unread` gets the VDIs that cannot be read, as in `_read`.
    """
    found: Dict[str, PackedVm] = {}
    named = _with_records(calls.records("VDI", SR=sr), "Destroy the VDIs that no save has made.")
    saves = [_read(calls, ref, vdi, unread) for ref, vdi in named.items()]
    _tell(calls, named, unread)
    ours = [one for one in saves if one is not None and one.is_sealed_by(key) and one.sr_uuid == pool.srs[sr]["uuid"]]
    for one in sorted(ours, key=attrgetter("order")):
        for vm in [vm for vm in one.vms if vm.uuid in wanted]:
            try:
                old = vm._replace(saved_at=vm.saved_at or one.when)  # that save may have taken them over, too
                found[vm.uuid] = saved_vms.packed(old, one.documents([vm.uuid])[vm.uuid])
            except FormatError:
                pass  # an older save may have readable records of the VM
    return found


def _records(calls: Calls, pool: Pool, found: Inventory, ref: str) -> PackedVm:
    vm = found.vms[ref]
    disks = sorted(
        SavedDisk(device, str(vdi["uuid"]), cut(str(vdi["name_label"]), saved_vms.MOST_NAME))
        for device, vdi in found.disks_of(ref).items()
    )
    document = checked_export.export(calls, pool, found, ref, snapshots=True, without=["VTPM"])
    if len(document) > saved_vms.MOST_RECORDS_BYTES:
        raise Refused(
            f"The records of the VM {vm['name_label']!r} have {len(document)} bytes, too many to save."
        ).advising("Delete snapshots of the VM.")
    name = cut(str(vm["name_label"]), saved_vms.MOST_NAME)
    return saved_vms.packed(SavedVm(vm["uuid"], name, vm["power_state"], tuple(disks)), document)


def _written(calls: Calls, sr: str, mark: str, content: bytes) -> str:
    """Return the reference of a new VDI with this content and mark. Raises PoolFailure.

    A VDI with other content is destroyed.
    """
    record = {
        "name_label": saved_vms.NAME_LABEL,
        "name_description": f"Of {mark.rpartition(' ')[2]}. Made by relvmoiscsi pool save-vms; no disk of a VM.",
        "SR": sr,
        "virtual_size": str(align_up(len(content), _EXTENT)),
        "type": "user",
        "sharable": False,
        "read_only": False,
        "other_config": {SAVED: mark},
        "xenstore_data": {},
        "sm_config": {"type": "raw"},
        "tags": [],
    }
    vdi = calls.run("VDI.create", record)
    try:
        size: int = calls.call("VDI.get_virtual_size", vdi)
        if not len(content) <= size < len(content) + 2 * _EXTENT:
            raise PoolFailure(
                f"The pool made a VDI of {size} bytes for the {len(content)} bytes of the records."
            ).advising("Repeat the command.")
        transfer.import_raw(calls, vdi, content + bytes(size - len(content)))
        if transfer.export_raw(calls, vdi)[: len(content)] != content:
            raise PoolFailure(
                "The VDI with the records of the VMs reads back different data than was written."
            ).advising("Repeat the command.")
    except (PoolFailure, PoolGone):
        _destroy(calls, vdi)
        raise
    return vdi


def is_named(vdi: Record) -> bool:
    """May the VDI have records, by name and size?"""
    return saved_vms.may_be(vdi["name_label"], vdi["virtual_size"])


def _with_records(there: Records, advice: str) -> Records:
    """Return the VDIs that may have records. Raises Refused where too many have the name."""
    named = {ref: vdi for ref, vdi in there.items() if is_named(vdi) and vdi["managed"]}
    if sum(vdi["virtual_size"] for vdi in named.values()) > _MOST_READ_BYTES:
        listed = sorted(f"{said(vdi['uuid'])} ({said(vdi['name_description'])})" for vdi in named.values())
        raise (
            Refused(
                f"{len(named)} VDIs of one SR have the name {saved_vms.NAME_LABEL!r}, and are too large to be read "
                f"all: {printable(some_of(listed, _MOST_NAMES))}."
            )
            .in_state("Nothing was made.")
            .advising(advice)
        )
    return named


def _order(vdi: Record) -> Tuple[int, str, str]:
    """Return the sort key of a save: serial (0 without one), time, UUID. The clocks of the clients may be wrong."""
    serial, _, when = str(vdi["other_config"].get(SAVED, "")).rpartition(" ")
    return untrusted.number(serial) if untrusted.is_number(serial) else 0, when, str(vdi["uuid"])


def _drop_older(calls: Calls, sr: str, keep: str, unread: Collection[str] = ()) -> None:
    """Destroy the VDIs of earlier saves and of interrupted saves, but for the VDIs in `unread` (references).

    A newer VDI stays: another client saves at the same time, and destroys the VDI of this save. A VDI with a serial
    that no save can have had goes.
    """
    there = calls.records("VDI", SR=sr).items()
    ours = {ref: vdi for ref, vdi in there if is_named(vdi) and SAVED in vdi["other_config"]}
    last = _serial(calls, sr)
    if keep not in ours:
        return  # another client has saved at the same time, and destroyed this VDI
    for ref, vdi in ours.items():
        is_older = _order(vdi) < _order(ours[keep]) or _order(vdi)[0] > last + _MOST_AT_ONCE
        if is_older and vdi["VBDs"]:
            look = shell_command("xe vbd-list", f"vdi-uuid={vdi['uuid']}")
            stays = (
                f"The VDI {shown_uuid(vdi['uuid'])} of an earlier save was not destroyed: a VM or dom0 has it attached."
            )
            calls.notes.append(printable(f"{stays} `{look}` shows where."))
        elif is_older and ref not in unread:
            _destroy(calls, ref)


def _destroy(calls: Calls, vdi: str) -> None:
    try:
        calls.run("VDI.destroy", vdi)
    except (PoolFailure, PoolGone):
        pass  # the next save destroys the VDI


# --- read


def read(calls: Calls, copy: Copy, trusted: str = "") -> Tuple[SavedVms, bool]:
    """Return (the newest records on a copy that this pool has saved, True).

    With `trusted`, the UUID of a VDI: (the records on that VDI, whether `save_vms` of this pool has written them).

    Raises NotFound; Refused where the writer of all records is unknown, and no VDI is trusted; PoolFailure where no VDI
    has records, and one cannot be read.
    """
    unread: Dict[str, PoolFailure] = {}
    key = records_key.find(calls)
    last: Optional[Tuple[SavedVms, bool]] = None
    unknown = []
    asked = {ref: vdi for ref, vdi in copy.vdis.items() if trusted in ("", vdi["uuid"])}
    advice = "Repeat the command with --trust-records and the UUID of the VDI with the records."
    for ref, vdi in _with_records(asked, advice).items():  # one VDI at a time: a VDI may be large
        found = _read(calls, ref, vdi, unread)
        if found is None or found.sr_uuid != copy.original:
            continue
        is_known = found.is_sealed_by(key)
        if not (is_known or trusted):
            names = some_of([said(vm.name_label) for vm in found.vms], _MOST_NAMES)
            of_save = f"{vdi['uuid']} of {found.when}, fingerprint {found.fingerprint}"
            unknown.append(printable(f"{of_save}, with {names}"))
        elif last is None or found.order > last[0].order:
            last = found, is_known
    if unread and last is None and not unknown:
        raise next(iter(unread.values()))
    _tell(calls, copy.vdis, unread)
    if last is None and unknown:
        raise (
            Refused(_UNKNOWN.format(copy.name, "; ".join(sorted(unknown))))
            .in_state("Nothing was made.")
            .advising("To trust records, repeat the command with --trust-records and the UUID of their VDI.")
        )
    if last is None and trusted:
        raise NotFound(f"There are no VM records on the VDI {trusted} of {copy.name!r}.")
    if last is None:
        save = shell_command("relvmoiscsi pool save-vms", copy.original)
        raise NotFound(f"There are no VM records on {copy.name!r}.").advising(
            f"Before the next array snapshot, run `{save}` in the pool of the original."
        )
    return last


_UNKNOWN = (
    "The writer of the VM records on {0!r} is unknown: this pool has no key for the records, or the role of this "
    "user may not read the key. Everybody who can write to the VDI can forge records. Found: {1}."
)
_MOST_NAMES = 20  #: of VMs in a message


def _read(calls: Calls, ref: str, vdi: Record, unread: Dict[str, PoolFailure]) -> Optional[SavedVms]:
    """Read a VDI; None for a VDI without readable records.

    Everybody may give a VDI the name of records, and let a VM on a member use it: then the master cannot read the VDI.
    Such a VDI gives None too, and `unread` gets the error, by the reference of the VDI.
    """
    name = str(vdi["uuid"])
    try:
        content = transfer.export_raw(calls, ref)
    except PoolFailure as failure:
        detach = "Detach the VDI from its VM, then repeat the command." if vdi["VBDs"] else ""
        unread[ref] = PoolFailure(
            f"The VDI {said(name)} has the name of VM records, and cannot be read: {failure.message}",
            failure.description,
        ).advising(failure.advice or detach)
        return None
    try:
        return saved_vms.unpack(saved_vms.read_header(content, name), content[SavedHeader.SIZE :], name)
    except FormatError:
        return None


def _tell(calls: Calls, there: Records, unread: Dict[str, PoolFailure]) -> None:
    """Note the VDIs that cannot be read, with the first error. `there` has the VDIs, by reference."""
    if unread:
        which = some_of(sorted(said(there[ref]["uuid"]) for ref in unread), _MOST_NAMES)
        first = next(iter(unread.values())).message
        calls.notes.append(printable(f"Other records may be on VDIs that cannot be read: {which}. {first}"))


def choose(
    pool: Pool, found: Inventory, copy: Copy, records: Tuple[SavedVms, bool], names: Sequence[str],
    everything: bool = False,
) -> List[VmSource]:  # fmt: skip
    """Return the saved VMs with these UUIDs or names, or all saved VMs, with their saved records.

    A VM whose records of an unknown writer claim a disk that is not its own has the reason as its `problem`. Raises
    FormatError, NotFound, UsageError.
    """
    saved, is_known = records
    rows = {vm.uuid: {"uuid": vm.uuid, "name_label": vm.name_label} for vm in saved.vms}
    listed = f"Saved are {some_of([said(vm.name_label) for vm in saved.vms], _MOST_NAMES)}."
    chosen = list(rows) if everything else [find(rows, name, "saved VM", listed) for name in names]
    here = {str(vm["uuid"]): ref for ref, vm in found.vms.items()}
    documents = saved.documents(list(dict.fromkeys(chosen)))
    sources = [
        VmSource(uuid, str(rows[uuid]["name_label"]), here.get(uuid, ""), documents[uuid], is_known)
        for uuid in documents
    ]
    return sources if is_known else _compared(pool, found, copy, saved, sources)


def _compared(pool: Pool, found: Inventory, copy: Copy, saved: SavedVms, sources: Sequence[VmSource]) -> List[VmSource]:
    """Return the sources, with a `problem` where the records of an unknown writer contradict themselves or the pool.

    Their claims on disks are compared with each other and with the VMs of the pool.
    """
    #: how many VMs of the records claim a VDI (its UUID)
    claims = Counter(vdi for vm in saved.vms for vdi in {disk.vdi for disk in vm.disks})
    index = {vm.uuid: sorted({disk.vdi for disk in vm.disks}) for vm in saved.vms}
    believed = []
    for source in sources:
        problem: Optional[Refused] = None
        try:
            why = _contradiction(pool, found, copy, source, index[source.uuid], claims)
            if why:
                problem = (
                    Refused(
                        f"The records of the VM {said(source.name)} are of an unknown writer, and are not believed: "
                        f"{why}."
                    )
                    .in_state("Nothing was made.")
                    .advising("Single disks of the copy can be lent to a VM: see `relvmoiscsi pool rescue --help`.")
                )
        except Refused as error:
            problem = error
        believed.append(source._replace(problem=problem))
    return believed


def _contradiction(
    pool: Pool, found: Inventory, copy: Copy, source: VmSource, index: Sequence[str], claims: Mapping[str, int]
) -> str:
    """Return what the records of a VM contradict, as a clause; "" for nothing. Raises Refused for unreadable records.

    `index` has the disks of the VM by the index of the records, `claims` how many VMs claim a VDI, 0 too.
    """
    uuid, own, all_disks = ova.disks_of(source.document)
    if uuid != source.uuid or own != index:
        return "they describe another VM, or other disks, than the index of the records"
    for vdi in all_disks:
        rows, new = found.grouped("vdis", "uuid").get(vdi, {}), copy.new_of(vdi)
        uses = [inventory.other_use_of(row) for row in (*rows.values(), new) if row is not None]
        is_own, here = vdi in own, {owner for ref in rows for owner in found.owners_of(ref)}
        others = sorted(str(found.vms[ref]["name_label"]) for ref in here - {source.ref})
        strangers = owners.strangers(pool, found, vdi, [source.uuid])
        if claims[vdi] > 1 or (claims[vdi] and not is_own):
            return f"other records claim the disk {said(vdi)} too"
        if others:
            return f"the disk {said(vdi)} is a disk of the VM {others[0]!r} in this pool"
        if not here and strangers:
            return f"the disk {said(vdi)} has data of the VM {strangers[0]!r} in this pool"
        if any(uses):
            return f"the VDI {said(vdi)} is no disk of a VM, but {max(uses)}"
        if source.ref and (is_own or rows) and source.ref not in here:  # the pool may lack an old snapshot
            return f"the VM has no disk {said(vdi)} in this pool"
    return ""
