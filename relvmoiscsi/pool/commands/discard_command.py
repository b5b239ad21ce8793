# SPDX-License-Identifier: LGPL-2.1-only
"""The command that unplugs and forgets copies."""

import argparse
from typing import Any, Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.cli.output import Answer, ask, say, waiting
from relvmoiscsi.errors import Partial, Refused, RelvmoiscsiError, UsageError, error_facts
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import jobs, lock, lock_keys, records
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status, flag, takes_copies
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import forget, run_states
from relvmoiscsi.pool.vms.discard import DiscardPlan
from relvmoiscsi.wording import counted, printable, said, some_of

_DISCARD = """\
Remove the LUN on the array afterwards. The command refuses a copy while a running VM, a restored VM or a VM
with a lent disk uses the copy. It refuses an SR that `attach` has not introduced. The question lists the halted
VMs that would lose disks. With --yes, such a copy needs --with-vms or --leave-vms.

example:
  relvmoiscsi pool discard "Production changed 2026-11-21" --with-vms"""


def add_command(command: CommandMaker) -> None:
    discarding = command("discard", DiscardCommand, "unplug and forget copies; the LUNs are not changed", _DISCARD)
    discarding.add_argument("srs", metavar="SR", nargs="*", help="a copy, by UUID, name or SCSIid")
    takes_copies(discarding)
    flag(discarding, "--with-vms", "also destroy the VMs that `clone` has made on the copy")
    flag(discarding, "--last-copies", "also let a VM go that `clone` has made and whose original is gone")
    flag(discarding, "--leave-vms", "with --yes: let halted VMs lose their disks on the copy")
    changes(discarding)


class DiscardCommand(PoolChange):
    """Unplug and forget copies."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        if not (arguments.srs or arguments.clones_of or arguments.all):
            raise UsageError("No copy is selected.").advising("Give SRs, --clones-of SR, or --all.")
        if arguments.all and (arguments.srs or arguments.clones_of):
            raise UsageError("--all selects every copy, and copies are named beside it.").advising(
                "Give SRs, --clones-of SR, or --all."
            )
        if not (arguments.with_vms or arguments.leave_vms):
            self.beside_yes = "--with-vms or --leave-vms where VMs have disks on the copy"

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            named, found, gone = self._copies(pool)
            whats = {ref: lock_keys.name_of(pool.srs[ref]) for ref in found}
            by_name = lock.refusals(calls, whats.values(), "This copy stays as it is.") if found else {}
            locked: Dict[str, RelvmoiscsiError] = {ref: by_name[what] for ref, what in whats.items() if what in by_name}
            refs = [ref for ref in (*named, *found) if ref not in locked]
            refs.sort(key=lambda ref: (str(pool.srs[ref]["name_label"]), ref))
            with_vms, leave_vms = self.given.with_vms, self.given.leave_vms
            plan = made_vms.plan(calls, refs, with_vms, last_copies=self.given.last_copies)
            if plan.uses:
                made_vms.verify_role(calls)
            there = plan.pool.srs
            gone += [str(pool.srs[ref]["uuid"]) for ref in (*refs, *locked) if ref not in there]  # since `_copies`
            refs, locked = list(plan.uses), {ref: why for ref, why in locked.items() if ref in there}
            lock.verify_free(calls, [lock_keys.name_of(plan.pool.srs[sr]) for sr in plan.uses if sr in named])
            if self.dry_run:
                is_for_clones = plan.clones_left() and not (with_vms or plan.half)
                needs = [] if leave_vms else ["--with-vms", "--leave-vms"] if is_for_clones else ["--leave-vms"]
                would = _discarded(plan, gone, locked, _WOULD_DISCARD, {}, needs)
                if self.yes and not leave_vms:  # else the run asks
                    try:
                        with run_states.unchanged():
                            made_vms.verify_nobody_left(plan)
                    except Refused as refusal:
                        facts = {**would.facts, **error_facts(refusal)}
                        return would._replace(facts=facts, status=refusal.exit_status, alerts=would.text.split("\n"))
                return would
            if self.yes and not leave_vms:
                made_vms.verify_nobody_left(plan)
            destroyed: Dict[str, List[str]] = {ref: [] for ref in refs}
            if refs:
                halted = sorted({_named(plan, ref, name) for ref, name in plan.all_losers().items()})
                lost = (
                    f"These halted VMs will lose their disks on the copy: {', '.join(halted)}.{plan.eject_advice()} "
                    if halted
                    else ""
                )
                alone = [vdi for used in plan.uses.values() for vdi in used.lost]
                lost += f"Disks without a VM that go with the copy: {_disks(alone)}. " if alone else ""
                if locked:
                    names = some_of([said(there[ref]["name_label"]) for ref in locked])
                    lost += f"These copies stay, because other clients have locked them: {names}. "
                if plan.clones_left() and not plan.half:
                    names = forget.named(plan.clones_left())
                    lost += f"--with-vms destroys the VMs that `clone` has made: {names}. "
                made = [vm for of_sr in plan.made.values() for vm in of_sr.values()]
                vms = sorted(
                    _named(plan, ref, str(vm["name_label"]))
                    for of_sr in plan.made.values()
                    for ref, vm in of_sr.items()
                    if not vm["is_a_snapshot"]
                )
                snapshots = sorted(said(vm["name_label"]) for vm in made if vm["is_a_snapshot"])
                names = ", ".join(said(plan.pool.srs[ref]["name_label"]) for ref in plan.uses)
                goes = f"{names}, and destroy {counted(len(vms), 'VM')} ({', '.join(vms)})" if vms else names
                goes += f" with {counted(len(snapshots), 'snapshot')} ({', '.join(snapshots)})" if snapshots else ""
                ask(self, f"{lost}Discard {goes}?")
                now = made_vms.plan(calls, refs, with_vms, last_copies=self.given.last_copies)
                made_vms.verify_as_told(plan, now)

            shown = {ref: "{name_label!r} ({uuid})".format(**plan.pool.srs[ref]) for ref in refs}

            def one(calls: Calls, ref: str) -> None:
                with self.so_far.one(shown[ref], "discard"):
                    self._show(f"SR {shown[ref]}: discard begins")
                    carry_out(calls, ref, destroyed[ref])
                    self._show(f"SR {shown[ref]}: discard is done")

            with self.so_far.work(list(shown.values())), waiting("the pool"):
                with made_vms.carrying_out(calls, plan) as carry_out:
                    outcomes = jobs.at_once(calls, refs, one, jobs.MOST)
                if gone:  # a run may have been killed behind SR.forget
                    made_vms.clean_networks(calls)
            failed = {ref: out for ref, out in zip(refs, outcomes) if isinstance(out, RelvmoiscsiError)}
            failed.update(locked)
        return _discarded(plan, gone, failed, "discarded", destroyed)

    def _show(self, line: str) -> None:
        """Show a step. Several threads may call. The log has its own line."""
        if not (self.json or self.quiet):
            say(printable(line))

    def _copies(self, pool: Pool) -> Tuple[List[str], List[str], List[str]]:
        """Return the named SRs, the other SRs that --clones-of and --all select, and the given ids without an SR.

        Raises NotFound, UsageError.
        """
        wanted = {records.original_uuid(pool, text) for text in self.given.clones_of}
        named, gone = [], []
        for text in self.given.srs:
            if is_uuid(text.lower()) and pool.sr_by_uuid(text.lower()) is None:
                gone.append(text.lower())
                continue
            try:
                named.append(records.find_sr(pool, text))
            except records.NotAttached:  # as after a kill behind SR.forget
                gone.append(text)
        copies = [
            ref for ref, sr in pool.copies() if self.given.all or sr["other_config"][records.ORIGINAL_SR] in wanted
        ]
        return list(dict.fromkeys(named)), [ref for ref in copies if ref not in named], gone


def _named(plan: DiscardPlan, vm: str, name: str) -> str:
    """Return the name of a VM that is destroyed, or loses its disks, for a person who decides."""
    return f"{said(name)}, whose original is gone" if vm in plan.last else said(name)


def _disks(vdis: Sequence[Record]) -> str:
    return some_of([f"{said(vdi['name_label'])} ({records.shown_uuid(vdi['uuid'])})" for vdi in vdis], _MOST_LEFT)


_WOULD_DISCARD = "would be discarded"
_MOST_LEFT = 10  #: VMs with a sentence each, or disks with a name
#: of a SCSIid: the pool does not know which LUNs it had copies on, so nobody may be told to remove this one
_OF_NO_COPY = "The pool has no copy on this LUN: nothing was done. It may be a LUN of another pool."
_LOSE = "halted VMs that would lose disks on the copy"
#: of an SR that the pool does not have
_ROW: Dict[str, Any] = {
    "sr": "", "sr_name_label": None, "status": "not in the pool", "problem": None, "destroyed_vm_names": [],
    "destroyed_snapshot_names": [], "vms_left_without_disks": [], "yes_needs": [], "lost_vdis": [],
    "last_copy_vm_names": [],
}  # fmt: skip


def _discarded(
    plan: DiscardPlan,
    gone: Sequence[str],
    failed: Dict[str, RelvmoiscsiError],
    word: str,
    destroyed: Dict[str, List[str]],
    yes_needs: Sequence[str] = (),
) -> Answer:
    """Return the results, or a plan. `failed` may have SRs outside the plan.

    `yes_needs` are the options of which --yes needs one where a VM loses disks.
    """
    rows: List[Dict[str, Any]] = []
    lines: List[str] = []
    left: Dict[str, str] = {}  #: what to do with each VM that has lost a disk, by the reference of the VM
    failing = "would fail" if word == _WOULD_DISCARD else "failed"
    refs = list(dict.fromkeys([*plan.uses, *failed]))
    for ref in refs:
        uuid, name = plan.pool.srs[ref]["uuid"], str(plan.pool.srs[ref]["name_label"])
        error: Optional[str] = str(failed[ref]) if ref in failed else None
        status = failing if error else word
        snapshots: List[str] = []
        losers = {} if error else plan.losers(ref)
        made: Dict[str, str] = {}  #: names of the destroyed VMs, by reference
        for vm, record in plan.made.get(ref, {}).items():
            if not error or (record["snapshot_of"] if record["is_a_snapshot"] else vm) in destroyed[ref]:
                if record["is_a_snapshot"]:
                    snapshots.append(record["name_label"])
                else:
                    made[vm] = str(record["name_label"])
        others = sorted(set(losers.values()))
        alone = [] if error else plan.uses[ref].lost
        uuids = [str(vdi["uuid"]) for vdi in alone]
        needs = yes_needs if others else ()
        last = sorted(vm_name for vm, vm_name in {**made, **losers}.items() if vm in plan.last)
        row = dict(_ROW, sr=uuid, sr_name_label=name, status=status, problem=error, lost_vdis=uuids)
        row.update(destroyed_vm_names=[*made.values()], destroyed_snapshot_names=snapshots, last_copy_vm_names=last)
        rows.append(dict(row, vms_left_without_disks=others, yes_needs=list(needs)))
        lines.append(f"SR {name!r} ({uuid}): {status}" + (f": {error}" if error else ""))
        if made:
            names = ", ".join(_named(plan, vm, vm_name) for vm, vm_name in made.items())
            lines.append(("  destroyed: the VMs " if error else "  with the VMs ") + names)
        if snapshots:
            lines.append("  with their snapshots " + ", ".join(map(said, snapshots)))
        if others:
            lose = _LOSE if word == _WOULD_DISCARD else "halted VMs that had disks on the copy"
            names = ", ".join(sorted({_named(plan, vm, vm_name) for vm, vm_name in losers.items()}))
            lines.append(f"  {lose}: {names}")
            if yes_needs:
                lines.append(f"  with --yes alone, the run would be refused: add {' or '.join(yes_needs)}")
        if alone:
            lines.append(f"  disks without a VM that only this LUN has: {_disks(alone)}")
        if status == "discarded":
            scsi_id = plan.pool.lun_of(ref)
            lun = lock_keys.name_of(plan.pool.srs[ref])
            find = f"Find the LUN on the array, and remove it; only a note names it: {lun}"
            lines.append(f"  Remove the LUN {scsi_id} on the array." if scsi_id else f"  {find}")
            for vm, vm_name in plan.losers(ref).items():
                if vm in plan.uses[ref].ejects:  # xapi empties the CD drive itself
                    continue
                destroy = plan.destroys[vm]
                left[vm] = f"Give the VM {vm_name!r} other disks" + (f", or destroy it: {destroy}." if destroy else ".")
    lines += list(left.values())[:_MOST_LEFT]
    if len(left) > _MOST_LEFT:
        lines.append(f"Do the same for {counted(len(left) - _MOST_LEFT, 'more VM')}, named above.")
    rows += [dict(_ROW, sr=uuid) for uuid in gone]
    for text in gone:
        lines.append(f"{text}: not in the pool")
        lines += [] if is_uuid(text) else [f"  {_OF_NO_COPY}"]
    text = "\n".join(map(printable, lines)) or "The pool has no copies."
    alerts = [
        f"SR {plan.pool.srs[ref]['name_label']!r} ({plan.pool.srs[ref]['uuid']}): {failed[ref]}" for ref in failed
    ]
    is_partial = bool(failed) and any(destroyed.values())
    of_errors = exit_status([*map(failed.get, refs), *(None for _ in gone)])
    ends_with = Partial.exit_status if is_partial else of_errors
    return Answer({"discard_results": rows}, text, ends_with, alerts=alerts)
