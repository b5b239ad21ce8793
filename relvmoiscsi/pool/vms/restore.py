# SPDX-License-Identifier: LGPL-2.1-only
"""Replace a VM's disks by disks of a copy; undo this; or keep the disks as they are.

    1 journal    Write a key in VM.other_config for each disk: the old VDI, the new VDI, the settings of the VBD.
                 All keys are written before the first disk is touched.
    2 swap       VBD.destroy, then VBD.create with the same device and settings. No disk is written or destroyed.
    3 free       Allow the start of the VM.
    4 rename     Rename the old VDI, because other clients take a VDI without a VM for an orphan. The storage manager
                 writes the name to the LUN if a host has the SR, so this step may fail. The restore does not wait.

After an interruption, the next run goes forward (`restore`) or back (`undo`): the journal names the disks even after a
VBD.destroy. The VM stays halted during the swap. `keep` ends a journal that no longer matches the disks, for example
after a move by another tool or a revert to a snapshot. move_home ends a journal by a migration. restore_ends says which
end is possible.

With `dry_run`, each function makes the same checks, raises the same errors, and changes nothing. So it does not scan
the copy: a scan changes the records of VDIs.
"""

from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.records import Pool, shown_device
from relvmoiscsi.pool.vms import (
    inventory,
    lineage,
    rescue,
    restore_ends,
    restore_entries,
    restore_journal,
    run_states,
    swap_disks,
    vbds,
)
from relvmoiscsi.pool.vms.inventory import NULL, Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.pool.vms.vbds import VmNow
from relvmoiscsi.wording import quoted, said, some_of

#: status of a VM
DONE, ALREADY, WOULD, UNDONE, HOME = "restored", "already restored", "would be restored", "undone", "home"
WOULD_UNDO, WOULD_HOME = "would be undone", "would be taken home"
FAILED = "failed"
NOT_RESTORED = "not restored"
KEPT, WOULD_KEEP = "kept as it is", "would be kept as it is"

TO_KNOW = (
    "The next backup of the VM is a full backup, because the disks have other UUIDs. "
    "The VM's snapshots belong to the old disks.",
    "The old disks are kept. Each is renamed, unless a note says that it keeps its name. --undo puts the old "
    "disks back. --home moves the copy's disks to the VM's SR.",
    "Copies are not coalesced: each deleted snapshot lengthens the chain, up to the limit of 30. Use --home or "
    "--undo soon.",
)
TO_KNOW_OF_UNDO = (
    "All that the VM has written since the restore stays on the copy. `relvmoiscsi pool discard` of the copy loses it.",
)
TO_KNOW_OF_HOME = (
    "Each disk before the restore stays on its SR, with the last state from before the restore. Destroy it when nobody "
    "needs it. --undo is impossible after --home.",
    "The copy loses the disks that are moved. Other copies of the SR can restore the VM again.",
)


class Restored(NamedTuple):
    """Result for one VM."""

    vm: str  #: UUID
    name: str
    status: str
    disks: Sequence[Swap] = ()
    waiting: Sequence[str] = ()  #: UUIDs of VDIs that no VM needs any more
    notes: Sequence[str] = ()
    shuts_down: bool = False  #: whether the run shuts (or shut) the VM down; the VM stays halted
    was_halted: bool = False  #: whether the VM was halted when the run last read its record
    start_block: str = ""  #: why no start is advised: a block by a user, or what `keep` leaves; "" without a reason
    error: Optional[RelvmoiscsiError] = None  #: with FAILED
    unused_copies: Sequence[str] = ()  #: after `keep`: UUIDs of copies that have no disk of the VM any more
    on_copies: Sequence[str] = ()  #: of a plan of `keep`: UUIDs of the VM's disks that are on a copy

    @property
    def waits_for_start(self) -> bool:
        """Is the VM halted after a restore, or after the end of one? Then only a person starts it."""
        return self.status in (DONE, ALREADY, UNDONE, HOME, KEPT) and (self.shuts_down or self.was_halted)

    def facts(self) -> Dict[str, Any]:
        return {
            "vm": self.vm,
            "vm_name": self.name,
            "status": self.status,
            "disks": [disk.facts() for disk in self.disks],
            "no_longer_needed": list(self.waiting),
            "notes": [*self.notes, *([self.start_block] if self.waits_for_start and self.start_block else [])],
            "shuts_down": self.shuts_down,
            "problem": None if self.error is None else str(self.error),
        }


def result_of(record: Record, status: str, *more: Any, **others: Any) -> Restored:
    result = Restored(record["uuid"], record["name_label"], status, *more, **others)
    block = restore_journal.start_block(record)
    return result._replace(was_halted=record["power_state"] == "Halted", start_block=block)


# --- restore


def plan(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, vm: str, chosen: Sequence[str], date: str
) -> List[Swap]:
    """Return the disks to swap: the disks at the chosen devices, or all disks of the VM.

    Raises Refused where a disk has no VDI on the copy, or the new VDI is a disk already; NotFound, PoolFailure.
    """
    record, disks, now = found.vms[vm], found.disks_of(vm), VmNow(calls, vm, pool, found)
    name = record["name_label"]
    there = {swap.userdevice: swap for swap in restore_ends.journal_of(now)}
    other = [swap.sr for swap in there.values() if swap.sr != copy.uuid]
    if other:
        sr = pool.sr_by_uuid(other[0])
        said_ = said(other[0]) if sr is None else f"{pool.srs[sr]['name_label']!r} ({other[0]})"
        raise Refused(f"The VM {name!r} was restored from the copy {said_}.").advising(
            f"End that restore first. {restore_ends.ways(now, 'restore')}"
        )
    wanted = list(dict.fromkeys(chosen)) or sorted({*disks, *there})
    strange = sorted(set(wanted) - {*disks, *there})
    if strange:
        raise NotFound(f"The VM {name!r} has no disk {some_of(list(map(shown_device, strange)))}.").advising(
            f"Give disks that it has: {','.join(map(shown_device, sorted(disks))) or 'none'}."
        )
    if not wanted:
        raise Refused(f"The VM {name!r} has no disk.")
    here = ",".join(each for each, vdi in sorted(disks.items()) if copy.new_of(vdi["uuid"]) is not None)
    has_any = any(vdi["SR"] == copy.ref for vdi in disks.values())  # as after `keep`
    only = "" if has_any else "No disk of the VM is on this copy."
    only = f"Restore only the other disks: `--disk {quoted(here)}`." if here else only
    swaps = []
    for device in wanted:
        if device in there:
            swaps.append(there[device])
            continue
        old = disks[device]
        new = copy.new_of(old["uuid"])
        if new is None:
            how = "is a disk of this copy already" if old["SR"] == copy.ref else "is not on this copy"
            why, way = copy.why_missing(old)
            raise Refused(
                f"The disk {shown_device(device)} of the VM, {old['name_label']!r} ({said(old['uuid'])}), {how}{why}."
            ).advising(f"{only} {way}".strip())
        users = found.vms_with_disk(copy.by_uuid[new["uuid"]])
        if users:
            names = ", ".join(sorted(repr(found.vms[user]["name_label"]) for user in users))
            ways = some_of([rescue.way_to_free(found, copy, copy.by_uuid[new["uuid"]], user) for user in users])
            raise Refused(
                f"The VDI {new['uuid']}, which the disk {shown_device(device)} would become, is a disk of {names} "
                "already."
            ).advising(f"Attach another copy. Or {ways}.")
        vbd = next(vbd for vbd in found.vbds_of(vm).values() if vbd["userdevice"] == device)
        uuids = old["uuid"], new["uuid"], copy.known_as(old["uuid"])
        swap = Swap(record["uuid"], device, *uuids, date, copy.uuid, copy.original, _settings(vbd))
        restore_entries.verify_readable(record, swap)
        swaps.append(swap)
    return swaps


def _settings(vbd: Record) -> Dict[str, Any]:
    return {field: vbd[field] for field in restore_entries.VBD}


def restore(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False, dry_run: bool = False) -> Restored:
    """Put the new disks in place.

    Raises Refused for a VM that is not halted or not as planned; PoolFailure, also for a copy that cannot be read.
    """
    with run_states.unchanged():
        records.verify_not_discarded(calls, {swap.sr for swap in swaps})
        now = vbds.read(calls, vm, swaps)
        record = now.record
        begun = [swap for swap in _others(now, swaps) if now.device(swap.userdevice).vdi != swap.new]
        disks = [*swaps, *begun]
        restore_ends.verify(now, "restore", disks)
        is_done, is_begun = restore_ends.is_done(now, disks), restore_journal.is_begun(now)
        swaps_disks = _swaps_disks(record, is_done, is_begun)
        if swaps_disks:
            _look(now, disks)
            swap_disks.verify_can_be_halted(record, shutdown)
        is_over = is_done and not is_begun
        if not is_over:
            restore_journal.verify_may_end(calls, now, swaps_disks)
        restore_journal.verify_free(calls, record, disks)
        if is_over or dry_run:
            shuts_down = record["power_state"] == "Running" and not is_done
            notes = _notes(now, disks)
            return result_of(record, ALREADY if is_over else WOULD, disks, notes=notes, shuts_down=shuts_down)
        for copy in sorted({swap.sr for swap in disks}):
            records.verify_readable(calls, copy)
    with restore_journal.locked(calls, vm, record, disks, "restore", run_states.swapping(record)) as locked:
        record = locked.first.record
        if locked.is_after_a_cut:
            disks += _others(locked.first, disks)
        is_done = restore_ends.is_done(locked.first, disks)
        if _swaps_disks(record, is_done, locked.is_after_a_cut):
            swap_disks.halt(locked, disks, lambda now: _look(now, disks), shutdown)
            for swap in disks:
                swap_disks.hang(locked, swap, swap.new, (swap.old, swap.new, ""))
        now = locked.now()
        swap_disks.verify_all(now, [(swap, swap.new) for swap in disks])
        restore_journal.allow_start(locked)
        notes = _notes(now, disks)
        waiting = [swap for swap in disks if not now.others_with(swap.old)]
        notes += swap_disks.rename(calls, now, waiting, Swap.waiting_name)
        shuts_down = record["power_state"] == "Running" and not is_done
        return result_of(record, DONE, disks, notes=notes, shuts_down=shuts_down)


def _others(now: VmNow, swaps: Sequence[Swap]) -> List[Swap]:
    """Return the disks of the journal that are not in `swaps`."""
    devices = {swap.userdevice for swap in swaps}
    return [swap for swap in restore_ends.journal_of(now) if swap.userdevice not in devices]


def _swaps_disks(record: Record, is_done: bool, is_after_a_cut: bool) -> bool:
    """Does a restore or an undo make VBDs? A call of an interrupted run may still work on a VBD of the halted VM."""
    return not is_done or (is_after_a_cut and bool(record["power_state"] == "Halted"))


def _look(now: VmNow, swaps: Sequence[Swap]) -> None:
    """Raises Refused where a disk matches neither plan nor journal, or the new VDI is a disk already."""
    record = now.record
    restore_ends.verify(now, "restore", swaps)
    vbds.must_be_idle(record)
    journal, name = restore_entries.journal_of(record), record["name_label"]
    for swap in swaps:
        device, begun = now.device(swap.userdevice), swap in journal
        if not begun and _settings(device.record) != swap.vbd:
            raise Refused(
                f"Another client has changed the disk {swap.userdevice} of the VM {name!r} during this run."
            ).advising("Repeat the command.")
        now.must_take(swap, swap.new)
        old, sharers = now.find(swap.old), now.others_with(swap.old)
        if old is not None and sharers and now.found.vdis[old]["sharable"]:  # a disk of a cluster of VMs
            raise Refused(
                f"The disk {swap.userdevice}, {swap.old}, is shared with {', '.join(sharers)}: a restore would give "
                "only this VM the disk of the copy."
            ).advising("Name the other disks alone with --disk, or remove this disk from the other VMs.")


def _notes(now: VmNow, swaps: Sequence[Swap]) -> List[str]:
    """Return notes that a person needs before the swap."""
    notes = []
    names = now.snapshots()
    if names:
        notes.append(
            f"It has snapshots ({', '.join(map(repr, names))}): a revert to a snapshot silently undoes the restore and "
            "removes the journal. --home is refused until the snapshots are deleted."
        )
    for swap in swaps:
        users = now.others_with(swap.old)
        if users:
            notes.append(
                f"The disk {swap.userdevice} before, {swap.old}, is also one of {', '.join(users)}, and keeps "
                "its name. --undo is refused until then."
            )
    return notes


# --- the ends of a restore


def already_ended(calls: Calls, now: VmNow, end: str) -> Optional[Restored]:
    """Return the result of "undo", "home" or "keep" for a VM without a journal: such a VM has no restore to end.

    None for a VM with a journal. After an interruption, a repeated command finds that it was
    done, and a script may repeat any end.

    Raises Refused for "undo" and "home" where the VM has a disk of a copy: after `keep`, or in a VM of `clone`, nobody
    knows its other disk. Raises Refused where another client works on the VM, such as with a restore that has no
    journal yet; PoolFailure.
    """
    if restore_journal.has_an_end(now):
        return None
    record = now.record
    restore_journal.verify_free(calls, record, [])
    has, copies = now.found.disks_of(now.vm), dict(now.pool.copies())
    on_copies = {device: copies[vdi["SR"]] for device, vdi in sorted(has.items()) if vdi["SR"] in copies}
    if on_copies and end != "keep":
        raise _without_other_disks(record, on_copies)
    note = "There is no restore to end: the VM has no journal, and keeps the disks that it has."
    if any(map(lineage.earlier, has.values())):
        note += " Its disks came home from a copy, after which --undo is impossible."
    return result_of(record, NOT_RESTORED, notes=[note])


def _without_other_disks(record: Record, on_copies: Mapping[str, Record]) -> Refused:
    """Return the refusal to end a restore without a journal. `on_copies` are the SRs of disks on copies, by device."""
    name, sr = record["name_label"], next(iter(on_copies.values()))
    if inventory.is_clone(record):
        copy = inventory.copy_command(record, str(sr["other_config"][records.ORIGINAL_SR]), str(sr["name_label"]))
        return Refused(f"`clone` has made the VM {name!r}: it was not restored, and has no other disks.").advising(
            f"To have the VM on another SR, shut it down, and copy it: {copy}. {inventory.AFTER_COPY}"
        )
    disks = some_of([f"{shown_device(device)} on {copy['name_label']!r}" for device, copy in on_copies.items()])
    return Refused(
        f"The VM {name!r} has disks of a copy ({disks}) and no journal: it was not restored, or --keep has ended its "
        "restore."
    ).advising(
        "To keep its disks, move them to another SR in Xen Orchestra or XenCenter. Find disks from before a restore by "
        "'before restore' in their names."
    )


# --- undo


def undo(calls: Calls, vm: str, shutdown: bool = False, dry_run: bool = False) -> Restored:
    """Put the old disks back. Raises Refused, NotFound where an old disk is gone, PoolFailure."""
    with run_states.unchanged():
        now = vbds.read(calls, vm)
        over, record = already_ended(calls, now, "undo"), now.record
        if over is not None:
            return over
        is_swapped = _verify_back(now)
        swaps_disks = _swaps_disks(record, not is_swapped, restore_journal.is_begun(now))
        restore_journal.verify_may_end(calls, now, swaps_disks)
        if swaps_disks:
            swap_disks.verify_can_be_halted(record, shutdown)
        swaps = restore_entries.journal_of(record)
        if dry_run:
            restore_journal.verify_free(calls, record, swaps)
            return result_of(record, WOULD_UNDO, swaps, shuts_down=is_swapped and record["power_state"] == "Running")
    with restore_journal.locked(calls, vm, record, swaps, "restore --undo", run_states.swapping(record)) as locked:
        now, record = locked.first, locked.first.record
        restore_journal.must_have_an_end(now)
        restore_ends.verify(now, "undo")
        swaps, is_swapped = restore_entries.journal_of(record), False
        at_home = set()  #: UUIDs of VDIs that this run takes from the VM
        for swap in swaps:  # note the VDIs that were moved home, so that a later run can name the VDIs too
            device = now.device(swap.userdevice)
            is_swapped = is_swapped or device.vdi != swap.old
            if restore_journal.is_home(now, swap):
                restore_journal.write_arrived(locked, now, swap)
                at_home.update([device.vdi] if device.sr == swap.home else [])
        if _swaps_disks(record, not is_swapped, locked.is_after_a_cut):
            swap_disks.halt(locked, swaps, _verify_back, shutdown)
            moved = restore_entries.all_arrived(locked.read())
            for swap in swaps:
                swap_disks.hang(locked, swap, swap.old, (swap.old, swap.new, "", *moved))
        now = locked.now()
        swap_disks.verify_all(now, [(swap, swap.old) for swap in swaps])
        moved = restore_entries.all_arrived(now.record)
        left = [uuid for uuid in moved if now.find(uuid) is not None and not now.users_of(uuid)]
        restore_journal.allow_start(locked)
        notes = swap_disks.rename(calls, now, swaps, Swap.own_name)
        notes = [*notes, *(run_states.only_in_journal(uuid) for uuid in left if uuid not in at_home)]
        restore_journal.forget_all(locked)
        is_halted = is_swapped and record["power_state"] == "Running"
        return result_of(record, UNDONE, swaps, [uuid for uuid in left if uuid in at_home], notes, is_halted)


def _verify_back(now: VmNow) -> bool:
    """Check an undo; return whether a device has another disk than before. Raises Refused, NotFound."""
    record, is_swapped = now.record, False
    restore_ends.verify(now, "undo")
    vbds.must_be_idle(record)
    for swap in restore_entries.journal_of(record):
        now.must_take(swap, swap.old)
        is_swapped = is_swapped or now.device(swap.userdevice).vdi != swap.old
    return is_swapped


# --- keep


def keep(calls: Calls, vm: str, may_stay: Optional[Collection[str]] = None, dry_run: bool = False) -> Restored:
    """Leave the disks of a VM as they are, and end its journal.

    `may_stay`: UUIDs of the disks on a copy that the user knows of; None for any disk. Another client may end the
    restore between the plan and the lock, and its disks then are on the copy.

    Raises Refused for any other disk on a copy; PoolFailure. The pool says which SR is a copy: a vm-admin may have
    spoiled the journal.
    """
    with run_states.unchanged():
        now = vbds.read(calls, vm)
        over, record = already_ended(calls, now, "keep"), now.record
        if over is not None:
            return over
        vbds.must_be_idle(record)
        restore_journal.verify_may_end(calls, now, swaps=False)
        swaps, _ = restore_entries.read(record)
        notes, stays, on_copies = _what_it_has(now, swaps, may_stay)
        if dry_run:
            restore_journal.verify_free(calls, record, swaps)
            return result_of(record, WOULD_KEEP, notes=[*notes, *stays], on_copies=sorted(on_copies))
    with restore_journal.locked(calls, vm, record, swaps, "restore --keep", run_states.keeping()) as locked:
        now, record = locked.first, locked.first.record
        restore_journal.must_have_an_end(now)
        swaps, _ = restore_entries.read(record)
        with run_states.unchanged():
            notes, _, on_copies = _what_it_has(now, swaps, may_stay)
        restore_journal.allow_start(locked)
        at_device = [(swap, now.device(swap.userdevice).vdi) for swap in swaps]
        for swap, vdi in at_device:
            if vdi not in ("", NULL, swap.old, swap.new):  # moved by another tool, or reverted to a snapshot
                restore_journal.mark(locked, now, swap)
        back = [swap for swap, vdi in at_device if vdi == swap.old]
        notes += swap_disks.rename(calls, now, back, Swap.own_name)
        restore_journal.forget_all(locked)
    unfit = restore_ends.unfit(now)
    unused = [] if unfit else sorted({swap.sr for swap in swaps}.difference(on_copies.values()))
    kept = result_of(record, KEPT, notes=notes, unused_copies=unused)
    return kept._replace(start_block=" ".join(filter(None, (unfit, kept.start_block))))


def _what_it_has(
    now: VmNow, swaps: Sequence[Swap], may_stay: Optional[Collection[str]]
) -> Tuple[List[str], List[str], Dict[str, str]]:
    """Return what `keep` leaves: (sentences on all disks, sentences for a plan, copies by disks of the VM, both UUIDs).

    Raises Refused for a disk on a copy that is not in `may_stay`, and where `keep` is impossible.
    """
    restore_ends.verify(now, "keep")
    lines, on_copies, found = [], {}, now.found
    copies = {sr["uuid"] for _, sr in now.pool.copies()}

    def named(vdi: str) -> str:
        name, sr = found.vdis[vdi]["name_label"], now.pool.srs.get(found.vdis[vdi]["SR"], {})
        return f"{said(found.vdis[vdi]['uuid'])} ({name!r}, on the SR {sr.get('name_label')!r})"

    entries = restore_entries.devices_of(now.record)
    for number in [*entries, *sorted(set(found.disks_of(now.vm)).difference(entries))]:
        device = now.device(number)
        is_on_copy = device.sr in copies and not inventory.is_lent(found, device.record)
        on_copies.update({device.vdi: device.sr} if is_on_copy else {})
        if number in entries or is_on_copy:
            stays = "; it disappears when that copy is discarded" if device.sr in copies else ""
            has = named(device.vdi_ref) if device.vdi_ref in found.vdis else "none"
            lines.append(f"disk {shown_device(number)}: {has}{stays}")
    uuids = {uuid for swap in swaps for uuid in (swap.old, swap.new)} | {*restore_entries.all_arrived(now.record)}
    for uuid in sorted(uuids):
        for vdi in found.grouped("vdis", "uuid").get(uuid, {}):
            if not found.vms_with_disk(vdi, with_snapshots=True):
                lines.append(f"on no VM: {named(vdi)}")
    unfit, stays = restore_ends.unfit(now), "still has disks of the copy, and keeps them only as long as the copy."
    plan_notes = [unfit] if unfit else []
    if on_copies:
        way = restore_ends.ways(now, "keep") or (
            "To keep the restored state, move the disks to another SR first, in Xen Orchestra or XenCenter."
        )
        if may_stay is not None and not set(may_stay).issuperset(on_copies):
            raise Refused(f"The VM {now.record['name_label']!r} {stays}").advising(
                f"{way} After --keep, no other end is possible. To remove the journal all the same, add --on-copy."
            )
        plan_notes.append(f"The VM {stays} {way} After --keep, no other end is possible.")
    return lines, plan_notes, on_copies
