# SPDX-License-Identifier: LGPL-2.1-only
"""Which ends the restore of a VM has now. Each refusal of an end, and each advice to take another end, is from here.

    end        possible for                                            the VM has then
    restore    each disk is the old VDI, the new VDI, or missing       the disks of the copy
    undo       the same, or the disk was moved home                    the disks from before the restore
    home       each disk is the new VDI, or was moved home             the disks of the copy, on its own SR
    keep       no run was interrupted, or neither restore nor undo     the disks that it has

So an interrupted run ends by the same restore again or by an undo: between two swaps, the VM has disks of two dates, or
lacks a disk. A person gets such a VM by an undo and a restore of single disks. For a lost VDI there is still `keep`.

What a person can mend is no matter of this module: a lock, a role, a running operation, another user of a VDI.
"""

from typing import Callable, Dict, List, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.records import WAS, shown_device
from relvmoiscsi.pool.vms import owners, restore_entries, restore_journal, run_states, vbds
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.pool.vms.vbds import VmNow
from relvmoiscsi.wording import said, shell_command, some_of


def verify(now: VmNow, end: str, swaps: Sequence[Swap] = ()) -> None:
    """Raises Refused, NotFound where an end ("restore", "undo", "home", "keep") is impossible; PoolFailure.

    The advice has the ends that are possible. Of a restore, `swaps` are the disks; none: the disks of the journal.
    """
    problem = _problem(now, end, swaps)
    if problem is not None:
        raise problem.advising(ways(now))


def ways(now: VmNow, *without: str) -> str:
    """Return a sentence for each end that is possible, but for the ends `without`. Raises PoolFailure."""
    swaps, vm = restore_entries.read(now.record)[0], now.record["uuid"]
    sentences = {
        "restore": f"{_same_restore(swaps)} gives the VM the disks of the copy." if swaps else "",
        "home": f"{run_states.restore_command('home', vm)} keeps the restored state, on the SR of the VM.",
        "undo": f"{run_states.restore_command('undo', vm)} gives the VM its disks from before the restore.",
        "keep": f"{run_states.restore_command('keep', vm)} leaves all disks as they are, and removes the journal.",
    }
    # a run that was cut while it wrote the journal, or removed the journal, has left some entries alone
    over = [] if restore_journal.is_begun(now) else ["restore"]
    ends = [end for end in sentences if end not in (*without, *over) and _problem(now, end) is None]
    return " ".join(sentences[end] for end in ends)


def journal_of(now: VmNow) -> List[Swap]:
    """Return the journal, sorted by device. Raises Refused for an unreadable key, with the ends; PoolFailure."""
    try:
        return restore_entries.journal_of(now.record)
    except Refused as problem:
        raise problem.advising(ways(now)) from None


def is_done(now: VmNow, swaps: Sequence[Swap]) -> bool:
    """Does the VM have the new VDI of each of these disks, and the journal the disk?"""
    journal = restore_entries.journal_of(now.record)
    return all(swap in journal and now.device(swap.userdevice).vdi == swap.new for swap in swaps)


def unfit(now: VmNow) -> str:
    """Return why nobody is told to start a VM that `keep` leaves; "" for a VM that a person may start.

    An earlier run was interrupted, a disk is missing, or the disks are of two dates. A disk that another tool has moved
    counts as one of the copy.
    """
    at_device = {
        swap.userdevice: (swap, now.device(swap.userdevice).vdi) for swap in restore_entries.read(now.record)[0]
    }
    missing = sorted(number for number, (_, vdi) in at_device.items() if vdi in ("", NULL))
    before = sorted(number for number, (swap, vdi) in at_device.items() if vdi == swap.old)
    others = sorted(set(at_device) - {*missing, *before})
    whats = [str(_interrupted(now))] if restore_journal.is_begun(now) else []
    whats += [f"The VM lacks the disk {some_of(missing)}."] if missing else []
    if before and others:
        whats.append(
            f"The VM has disks of two dates. From before the restore: {some_of(before)}. Others: {some_of(others)}."
        )
    return " ".join(
        [*whats, "Check the disks before you start the VM, and retain the copy until then."] if whats else []
    )


def _same_restore(swaps: Sequence[Swap]) -> str:
    """Return the command that gives the VM all disks of its journal, also the disks of an earlier restore."""
    devices = ",".join(swap.userdevice for swap in swaps)
    return f"`{shell_command('relvmoiscsi pool restore', swaps[0].sr, swaps[0].vm, disk=devices, shutdown=True)}`"


def _problem(now: VmNow, end: str, swaps: Sequence[Swap] = ()) -> Optional[RelvmoiscsiError]:
    checks: Dict[str, Callable[[], None]] = {
        "restore": lambda: _verify_restore(now, swaps or restore_entries.journal_of(now.record)),
        "undo": lambda: _verify_undo(now),
        "home": lambda: _verify_home(now),
        "keep": lambda: _verify_keep(now),
    }
    try:
        checks[end]()
    except (Refused, NotFound) as problem:
        return problem
    return None


def _verify_restore(now: VmNow, swaps: Sequence[Swap]) -> None:
    record = now.record
    restore_journal.verify_journal(record, swaps)
    journal, name = restore_entries.journal_of(record), record["name_label"]
    if not swaps:
        raise Refused(f"The VM {name!r} has no journal.")
    if is_done(now, swaps) and not restore_journal.is_begun(now):
        return
    for swap in swaps:
        device, begun = now.device(swap.userdevice), swap in journal
        _verify_origin(now, swap)
        # a disk whose move home has begun has the newest data
        arrived = restore_entries.arrived_as(record, swap)
        if device.vdi == "" and (arrived or restore_journal.is_leaving(record, swap)):
            where = f"as the VDI {said(arrived)}" if arrived else f"perhaps as a VDI of the SR {swap.home}"
            raise Refused(
                f"The disk {swap.userdevice} of the VM {name!r} was being moved, {where}, and is not attached now."
            ).advising("Find the VDI with the latest data, and attach the VDI to the VM.")
        if restore_journal.is_home(now, swap):
            raise Refused(f"The disks of the VM {name!r} are being moved to its own SR.")
        vbds.must_have(record, device, (swap.old, swap.new, "") if begun else (swap.old,), begun)
        if now.find(swap.new) is None:
            raise NotFound(f"The VDI {swap.new} is no longer in the pool.")


def _verify_undo(now: VmNow) -> None:
    record = now.record
    restore_journal.verify_journal(record, [])
    _verify_whole(now)
    journal, moved = restore_entries.journal_of(record), restore_entries.all_arrived(record)
    for device, disk in now.found.disks_of(now.vm).items():
        if disk["uuid"] in moved and device not in {swap.userdevice for swap in journal}:
            raise Refused(
                f"The disk {shown_device(device)} of the VM {record['name_label']!r} has come home, and its entry is "
                "no longer in the journal of the VM: the end of a restore was interrupted."
            )
    for swap in journal:
        if now.find(swap.old) is None:
            raise NotFound(
                f"The VDI {swap.old}, which was the disk {swap.userdevice}, is no longer in the pool: --undo is "
                "impossible."
            )
        _verify_origin(now, swap)
        if not restore_journal.is_home(now, swap):
            _verify_not_between(now, swap)
            vbds.must_have(record, now.device(swap.userdevice), (swap.old, swap.new, ""))


def _verify_home(now: VmNow) -> None:
    record = now.record
    name, journal = record["name_label"], restore_entries.journal_of(record)
    _verify_whole(now)
    if restore_journal.is_begun(now) or any(now.device(each.userdevice).vdi in ("", each.old) for each in journal):
        raise _interrupted(now)
    for swap in journal:
        if restore_journal.is_home(now, swap):
            continue
        device = now.device(swap.userdevice)
        _verify_not_between(now, swap)
        vbds.must_have(record, device, (swap.new,))
        if now.pool.sr_by_uuid(swap.home) is None:
            raise NotFound(f"The SR {swap.home}, which held the old disks, is no longer in the pool.").advising(
                "Introduce the SR again."
            )
        if records.original_of(now.pool, device.sr) != swap.home:  # a vm-admin may write the journal
            raise Refused(
                f"The journal of the VM {name!r} names the SR {swap.home} for the disk {swap.userdevice}, and that "
                "disk is on no copy of that SR."
            )
        _verify_origin(now, swap)


def _verify_keep(now: VmNow) -> None:
    """A call of an interrupted run may still work, and `keep` makes no VBD anew."""
    is_cut = restore_journal.is_begun(now) and bool(restore_entries.devices_of(now.record))
    if is_cut and any(_problem(now, end) is None for end in ("restore", "undo")):
        raise _interrupted(now)


def _interrupted(now: VmNow) -> Refused:
    return Refused(f"A restore of the VM {now.record['name_label']!r} was interrupted, or the --undo of a restore.")


def _verify_whole(now: VmNow) -> None:
    """Raises Refused where the journal lacks a disk: nothing else says which VDI the VM had at the device before.

    A run writes all entries before its first change, and removes them after its last. A vm-admin may remove each.
    """
    record, journal = now.record, restore_entries.journal_of(now.record)
    name = record["name_label"]
    if restore_journal.is_begun(now) and not journal:
        raise Refused(
            f"A restore of the VM {name!r} was interrupted, and the VM has no journal: nothing says which disks the VM "
            "had before."
        ).advising("Check the disks of the VM, and attach each disk that the VM lacks. Then repeat the restore.")
    copies, devices = dict(now.pool.copies()), {swap.userdevice for swap in journal}
    others = {disk["SR"] for device, disk in now.found.disks_of(now.vm).items() if device not in devices}
    for original in sorted({str(copies[sr]["other_config"][records.ORIGINAL_SR]) for sr in others & set(copies)}):
        for device in sorted(set(owners.on_copies(now.pool, now.whole(), original).get(now.vm, ())) - devices):
            raise Refused(
                f"The disk {shown_device(device)} of the VM {name!r} is on a copy, and the journal of the VM does not "
                "name that disk: nothing says which VDI the VM had there before."
            ).advising(
                "Remove that disk from the VM, if the VM needs it no more. Otherwise move it to another SR in Xen "
                "Orchestra or XenCenter. Then repeat the command."
            )


def _verify_origin(now: VmNow, swap: Swap) -> None:
    """Raises Refused where the disk is not the VM's: each disk that a restore or an undo gives to a VM passes here.

    The pool knows another SR of the old VDI, or another original of the copy, than the entry. Or the VM does not have
    the disk at its device now, and the disk has data of another VM. A vm-admin may write an entry and a mark. An old
    VDI that came home before has the mark of that.
    """
    vm, pool = now.record, now.pool
    wrong, old = "", now.find(swap.old)
    known = {records.original_of(pool, swap.sr)} - {""}  # {} where the copy is gone
    known.update([] if old is None else [now.sr_of(old)])
    if known - {swap.home}:
        wrong = f"the VDI {swap.old} is not on the SR {swap.home}, or {swap.sr} is no copy of that SR"
    elif old is not None and swap.of != swap.old:
        marked = owners.earlier_uuids(pool, now.whole()).get(swap.old, {})
        if swap.of not in marked:
            wrong = f"the VDI {swap.old} was never the VDI {swap.of}"
        elif marked[swap.of]:
            wrong = f"the mark {WAS} of the VDI {swap.old} names the VDI {swap.of}, {marked[swap.of]}"
    if wrong:
        raise Refused(f"The journal of the VM {vm['name_label']!r} is wrong: {wrong}.")
    at_device = {swap.old: (swap.old, swap.of), swap.new: (swap.of,)}.get(now.device(swap.userdevice).vdi, ())
    for uuid in sorted({swap.old, swap.of}.difference(at_device)):
        others = owners.strangers(pool, now.whole(), uuid, [vm["uuid"]])
        if others:
            names = some_of(list(map(repr, others)))
            raise Refused(
                f"The journal of the VM {vm['name_label']!r} names the VDI {uuid} for the disk {swap.userdevice}. "
                f"That VDI has data of {names}, and the VM does not have the disk now."
            ).advising(f"If the VM was restored, take all copies of that disk from {names}, and repeat the command.")


def _verify_not_between(now: VmNow, swap: Swap) -> None:
    """Raises Refused where the disk may have been moved although its source still exists.

    xapi points the VM to the new VDI, then destroys the source, and answers with an error if the destruction fails.
    Source: xen-api ocaml/xapi/xapi_vm_migrate.ml.
    """
    record, device = now.record, now.device(swap.userdevice)
    is_known = restore_entries.arrived_as(record, swap) not in ("", device.vdi)
    if not restore_journal.may_be_home(now, swap) or is_known or now.users_of(swap.new):
        return
    raise Refused(
        f"The pool was moving the VDI {swap.new}, the disk {swap.userdevice} of the VM {record['name_label']!r}, home. "
        f"The VM has the VDI {said(device.vdi)} there now. The VDI {swap.new} is on no VM, and only the journal of the "
        "VM names it."
    ).advising(
        f"Check that {said(device.vdi)} has the latest data of the VM, and check {swap.new} before you destroy it. "
        f"Repeat the command when {swap.new} is gone."
    )
