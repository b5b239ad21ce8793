# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on LUNs that a pool sees: luns, attach, map."""

import argparse
import sys
from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.cli.map_out import MapFile, file_name
from relvmoiscsi.cli.output import RED, Answer, Unheard, ask, say, unless_lost, waiting
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError, error_facts
from relvmoiscsi.host.secret_file import first_line
from relvmoiscsi.pool import (
    attach,
    attach_plan,
    hosts,
    jobs,
    lock,
    lock_keys,
    lun_search,
    luns,
    progress,
    records,
    vdis,
)
from relvmoiscsi.pool.attach import Attached
from relvmoiscsi.pool.attach_plan import AttachRequest, LunPlan
from relvmoiscsi.pool.calls import Calls
from relvmoiscsi.pool.commands import secrets_command
from relvmoiscsi.pool.commands.options import (
    CommandMaker,
    PoolChange,
    PoolCommand,
    changes,
    exit_status,
    flag,
    takes_copies,
)
from relvmoiscsi.pool.commands.so_far import DONE, FAILED, NOT_BEGUN, PARTLY, UNDER_WAY
from relvmoiscsi.pool.lun_search import LunSearch
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.pool.night_log import ERROR
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import choice, inventory, owners, run_states
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.wording import (
    CHANGED_MEANS,
    counted,
    human_size,
    printable,
    shell_command,
    shown_time,
    some_of,
    table,
    with_change,
)

_LUNS = """\
The command says what each LUN is: original, attached copy, clone of an SR, resignatured, unfinished, empty,
foreign. It writes nothing and leaves nothing on any host. Without --target, the command lists the LUNs behind
the targets of the pool's SRs.

example:
  relvmoiscsi pool luns --target 10.0.0.5"""

_ATTACH = """\
The command gives the selected clones new identities, then makes each an SR on every host of the pool. The keys
gc=false and indestructible=true of the SR stop coalescing and SR.destroy. VDIs get the names, tags and
other_config of the original's VDIs. After an interrupted or failed run, repeat the command: it skips finished
steps.

example:
  relvmoiscsi pool attach --clones-of Production --clones-of Testing --yes"""

_MAP = """\
The command prints new and old UUID of each VDI. Names and VMs are the present ones of the original's VDIs.

example:
  relvmoiscsi pool map "Production changed 2026-11-21\""""


def add_commands(command: CommandMaker) -> None:
    listing = command("luns", LunsCommand, "list and classify the LUNs that the pool sees", _LUNS)
    _takes_portal(listing)
    attaching = command("attach", AttachCommand, "attach clones as SRs on all hosts", _ATTACH)
    attaching.add_argument(
        "scsi_ids", metavar="SCSIID", nargs="*", help="SCSIid of a LUN, as `luns` or the array prints it"
    )
    takes_copies(attaching)
    flag(attaching, "--foreign", "accept clones of SRs unknown to this pool; you confirm no other pool uses them")
    unplugged = "accept clones of SRs that no host has attached; you confirm that no such LUN is the SR itself"
    flag(attaching, "--unplugged", unplugged)
    others = "proceed even if hosts will see clones that still have the identities of their originals"
    flag(attaching, "--leave-others", others)
    attaching.add_argument(
        "--name",
        metavar="TEXT",
        help="name of the new SRs; {sr}, {scsi_id}, and {date} and {changed}, the day and the time of LVM's last "
        "change, are replaced; default: {sr} changed {date}",
    )
    attaching.add_argument(
        "--map-out", metavar="FILE", type=file_name, help="write old and new UUIDs as JSON to a new FILE"
    )
    _takes_portal(attaching)
    changes(attaching)
    mapping = command(
        "map", PoolMapCommand, "map the VDIs of a copy to the VDIs of the original, with names and VMs", _MAP
    )
    mapping.add_argument("sr", metavar="SR", help="the copy, by UUID, name or SCSIid")


def _takes_portal(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--hba", "LUNs on the master's Fibre Channel or SAS adapters")
    parser.add_argument(
        "--target", metavar="ADDRESS", help="address of an iSCSI portal; default: the portals of all SRs"
    )
    parser.add_argument("--iqn", metavar="IQN", help="IQN of a target at that portal; default: all targets")
    parser.add_argument("--port", metavar="PORT", help="port of the portal; default: 3260")
    parser.add_argument(
        "--chap-user", metavar="NAME", help="CHAP user; default: the CHAP user of the SR on that target"
    )
    what = "file with the CHAP password in its first line"
    parser.add_argument("--chap-password-file", metavar="FILE", type=file_name, help=what)
    flag(parser, "--clean-secrets", "destroy Secrets with CHAP passwords of killed runs")
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=jobs.MOST, help="number of LUNs in parallel; default: 10"
    )


# --- luns


def _search(arguments: argparse.Namespace) -> LunSearch:
    """Return where to look for LUNs, from the options of `luns` and `attach`. Raises UsageError."""
    if bool(arguments.chap_user) != bool(arguments.chap_password_file):
        raise UsageError("--chap-user and --chap-password-file need each other.").advising("Give both.")
    target, iqn, port = arguments.target or "", arguments.iqn or "", arguments.port or ""
    search = LunSearch(target, iqn, port, arguments.chap_user or "", "", arguments.hba, arguments.jobs)
    search.verify()
    return search


def _with_password(search: LunSearch, file: Optional[str]) -> LunSearch:
    """Return the search with the CHAP password of the file. Raises UsageError for what is in the file."""
    return search._replace(chap_password=first_line(file)) if file else search


@contextmanager
def _seen(
    command: PoolCommand, calls: Calls, pool: Pool, search: LunSearch, is_dry: bool = False
) -> Iterator[List[PoolLun]]:
    """Yield the LUNs. After the block, remove the Secrets of killed runs, with --clean-secrets."""
    with ExitStack() as stack:
        with waiting("the LUNs of the pool"):
            seen = stack.enter_context(lun_search.seen(calls, pool, search, say))
        yield seen
    if command.given.clean_secrets:
        with command.so_far.work():
            secrets_command.clean(calls, pool, is_dry)


class LunsCommand(PoolCommand):
    """List and classify the LUNs that the pool sees."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.search = _search(arguments)

    def run(self) -> Answer:
        search = _with_password(self.search, self.given.chap_password_file)
        with self.opened() as (calls, pool), _seen(self, calls, pool, search) as seen:
            return Answer({"pool_luns": [lun.facts(pool) for lun in seen]}, _luns_text(pool, seen))


def _luns_text(pool: Pool, seen: Sequence[PoolLun]) -> str:
    """Return a row for each LUN, of at most 80 columns unless a name is long, and an indented line with the rest."""
    if not seen:
        return "The pool sees no LUN behind these targets."
    there = [lun for lun in seen if lun.scsi_id]
    rows = [("SCSIid", "size", "what it is"), *((lun.scsi_id, human_size(lun.size_bytes), "") for lun in there)]
    head, *starts = (row.rstrip() for row in table(rows, right=(1,)))
    lines = [head]
    for start, lun in zip(starts, there):
        changed = shown_time(lun.changed) if lun.changed else "unknown: the LUN is in use and was not read"
        is_told = lun.changed or lun.kind == luns.ATTACHED
        what, *more = [*_words(pool, lun), *([f"changed {changed}"] if is_told else [])]
        lines += [f"{start}  {what}", *(["    " + "; ".join(more)] if more else [])]
    lines += [printable(lun.of_target()) for lun in seen if not lun.scsi_id]
    return "\n".join([*map(printable, lines), *_changed_line(seen)])


def _changed_line(seen: Sequence[PoolLun]) -> List[str]:
    if not any(lun.changed for lun in seen):
        return []
    is_any_copy = any(lun.kind == luns.ATTACHED and lun.changed for lun in seen)
    saved = " Of an attached copy, it is the change that the last read of its LUN found." if is_any_copy else ""
    return [f"`changed` is {CHANGED_MEANS}.{saved}"]


def _words(pool: Pool, lun: PoolLun) -> List[str]:
    """Return what a LUN is, then the details."""
    quoted = repr(lun.name) if lun.name else "an SR"
    maybe_original = "no live host has the SR attached on another LUN, so the LUN may be the original"
    earlier = pool.sr_on(lun.scsi_id)
    after = (
        "" if earlier is None else f", after `discard` of the copy that was there, {pool.srs[earlier]['name_label']!r}"
    )
    there = pool.sr_by_uuid(lun.sr_uuid)
    here = [f"introduced as {pool.srs[there]['name_label']!r}, which no host has attached"] if there is not None else []
    here += ["`attach` plugs it"] if there is not None and records.is_copy(pool.srs[there]) else []
    texts: Dict[str, Tuple[str, ...]] = {
        luns.ORIGINAL: (f"original, {quoted}",),
        luns.ATTACHED: (f"attached, {quoted}",),
        luns.CLONE: (f"clone of {quoted}",),
        luns.UNKNOWN_SR: (f"{quoted}, unknown to this pool", f"SR {lun.sr_uuid}"),
        luns.UNCONNECTED: (f"{quoted}, unconnected", maybe_original),
        luns.RESIGNATURED: (
            f"resignatured, of {quoted if lun.of_sr else 'an SR'}",
            *(here or ["not attached here"]),
        ),
        luns.UNFINISHED: ("resignature interrupted", f"`attach` finishes the resignature{after}"),
        luns.DAMAGED: (lun.kind, f"{lun.problem} {luns.UNMAP}".lstrip()),
    }
    found = [*texts.get(lun.kind, (lun.kind, lun.problem) if lun.problem else (lun.kind,))]
    away = lun.not_plugged(pool)
    found += [f"not plugged on {', '.join(map(repr, away))}"] if away else []
    found += ["VMs {} ({})".format(", ".join(map(repr, lun.vms)), lun.vms_saved)] if lun.vms else []
    return found + (["holds a database of this pool"] if pool.ref in lun.metadata_of else [])


# --- attach


def _selects_clones(name: str) -> str:
    return f"`{shell_command('relvmoiscsi pool attach', clones_of=name)}` selects its clones."


class AttachCommand(PoolChange):
    """Attach clones as SRs on all hosts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.search = _search(arguments)
        self.scsi_ids = []
        for text in arguments.scsi_ids:
            try:
                self.scsi_ids.append(typed_scsi_id(text))
            except UsageError as error:
                error.advising(f"If that is the name of an SR, {_selects_clones(text)}")
                raise
        if not (self.scsi_ids or arguments.clones_of or arguments.all):
            raise UsageError("No LUN is selected.").advising("Give SCSIids, --clones-of SR, or --all.")
        self.request = AttachRequest(
            attach_plan.NAME if arguments.name is None else arguments.name,
            records.run_id(),
            arguments.jobs,
            arguments.leave_others,
            are_unplugged=arguments.unplugged,
        )
        attach_plan.verify_template(self.request.name)

    def run(self) -> Answer:
        search = _with_password(self.search, self.given.chap_password_file)
        file = MapFile(self.given.map_out, "pool attach --map-out")
        with self.opened() as (calls, pool):
            of = [records.original_uuid(pool, text) for text in self.given.clones_of]
            with _seen(self, calls, pool, search, self.dry_run) as seen:
                planned, skipped, nothing = self._plan(calls, pool, seen, of)
                failed = list(map(attach.not_attachable, attach.unseen(seen, self.scsi_ids, of, self.given.all)))
                named = [row.lun.scsi_id for row in planned if row.lun.scsi_id in self.scsi_ids]
                lock.verify_free(calls, [lock_keys.name_for(scsi_id) for scsi_id in named])
                todo = [row.lun.scsi_id for row in planned if row.steps]
                if todo:  # a run that is repeated when all is done finds its own file
                    file.must_be_new()
                would = _would_attach(planned, failed, skipped)
                if self.dry_run or nothing is not None:
                    told = would if self.dry_run else _attached_answer(pool, [], skipped, is_changed=False)
                    if nothing is None:
                        return told
                    self.so_far.note(ERROR, str(nothing))
                    say(printable(str(nothing)), RED)
                    return told._replace(facts={**told.facts, **error_facts(nothing)}, status=nothing.exit_status)
                if todo and not self.yes:
                    self.show(would)
                    ask(self, f"Attach {counted(len(todo), 'LUN')}?")
                results = self._carry_out(calls, pool, planned, todo)
                is_changed = self.so_far.count(todo, NOT_BEGUN) < len(todo)  # False: other clients have each LUN
                answer = _attached_answer(pool, [*results, *failed], skipped, is_changed)
                rows = [
                    {
                        "scsi_id": each.scsi_id,
                        "old_sr": each.of_sr,
                        "new_sr": each.sr_uuid,
                        "vdi_pairs": each.facts()["vdi_pairs"],
                    }
                    for each in results
                    if each.sr_uuid
                ]
                same = [f"`{shell_command('relvmoiscsi pool map', each.sr_uuid)}`" for each in results if each.sr_uuid]
                is_written = file.finish({"attached_srs": rows}, f"The same UUIDs are printed by {some_of(same)}.")
                return answer if is_written else answer._replace(status=unless_lost(answer.status))

    def _plan(
        self, calls: Calls, pool: Pool, seen: Sequence[PoolLun], of: Sequence[str]
    ) -> Tuple[List[LunPlan], List[Attached], Optional[RelvmoiscsiError]]:
        """Return the steps of the chosen LUNs, the skipped LUNs, and why no LUN can be attached; print unused names.

        With --all and --clones-of, each LUN that is read and not chosen is a skipped LUN, also an original.
        """
        names = {str(sr["name_label"]) for sr in pool.srs.values()}
        for text in self.scsi_ids:
            if text in names and not any(lun.scsi_id == text for lun in seen):
                said = UsageError(printable(f"{text!r} is the name of an SR, and no SCSIid."))
                raise said.advising(_selects_clones(text))
        if self.request.are_unplugged:
            seen = attach.as_clones(seen, self.scsi_ids, of)
        nothing: Optional[RelvmoiscsiError] = None
        try:
            with run_states.unchanged():
                chosen = attach.choose(seen, self.scsi_ids, of, self.given.all, self.given.foreign)
        except (NotFound, Refused) as error:
            if self.scsi_ids:  # the error is about these LUNs
                raise
            chosen, nothing = [], error
        is_search = bool(of or self.given.all)  # else the person has named each LUN
        left = attach.doubtful(seen, self.scsi_ids, of, self.given.foreign) if is_search else []
        others = attach_plan.of_others(calls, pool, left)
        chosen += [lun for lun in left if lun.scsi_id in others]  # another client of this pool is at work
        nothing = nothing if not chosen else None
        skipped = [
            _skipped(pool, lun, is_doubtful=lun in left)
            for lun in (seen if is_search else ())
            if lun not in chosen and lun.kind not in (*luns.UNSEEN, luns.DAMAGED)
        ]
        if not self.request.leave_others:
            attach.verify_none_left(seen, chosen)
        planned = attach_plan.plan(calls, pool, chosen, self.request, seen, others)
        for row in planned:
            if row.sr and self.given.name is not None:
                self.note(f"{row.lun.scsi_id}: the SR {row.name!r} keeps its name; --name is for new SRs.")
        return planned, skipped, nothing

    def _carry_out(self, calls: Calls, pool: Pool, planned: Sequence[LunPlan], todo: Sequence[str]) -> List[Attached]:
        """Attach the LUNs, and report each step to the terminal and to `so_far`."""
        stream = None if self.json or self.quiet else Unheard(sys.stderr)
        steps = {row.lun.scsi_id: row.resignatures + row.attaches for row in planned if row.steps}
        with progress.shown(stream, steps, self.request.jobs) as shown, self.so_far.work(todo):

            def tell(scsi_id: str, step: str, how: str) -> None:
                is_done = (step, how) == (attach.ATTACHING, attach.OVER)
                of_step = {attach.BEGUN: UNDER_WAY, attach.OVER: PARTLY, attach.ENDED: FAILED}
                state = DONE if is_done else of_step[how]
                what = step + (": done" if how == attach.OVER and not is_done else "")
                self.so_far.tell(scsi_id, state, what, progress.line_of(scsi_id, step, how))
                shown(scsi_id, step, how)

            return attach.carry_out(calls, pool, planned, self.request, tell)


def _skipped(pool: Pool, lun: PoolLun, is_doubtful: bool) -> Attached:
    """Return the result for a LUN that was read and is not chosen, with the reason."""
    why = advice = ""
    if lun.kind == luns.UNCONNECTED:
        advice = "If it is a clone, give its SCSIid and --unplugged."
    elif is_doubtful:
        why = " Another pool may use this LUN."
        is_resignatured = lun.kind in (luns.RESIGNATURED, luns.UNFINISHED)
        advice = f"If it is an unused clone, give its SCSIid{'' if is_resignatured else ' and --foreign'}."
    elif lun.kind == luns.ORIGINAL:
        why = " The pool uses this LUN as the SR."
    elif lun.kind in luns.ATTACHABLE:
        why = " You did not select its original."
    reason = Refused(f"{'; '.join(_words(pool, lun)).rstrip('.')}.{why}").advising(advice)
    return Attached(lun.scsi_id, attach.SKIPPED, of_sr=lun.of_sr, name=lun.name, error=reason, is_doubtful=is_doubtful)


def _would_attach(planned: Sequence[LunPlan], failed: Sequence[Attached], skipped: Sequence[Attached]) -> Answer:
    """Return the plan. The `skipped` LUNs are no errors, and the doubtful LUNs among them are warnings."""
    lines = [f"{row.lun.scsi_id}: {with_change(row.text(), row.lun.changed)}" for row in planned]
    alerts = [f"{each.scsi_id or 'a target'}: would fail: {each.error}" for each in failed]
    lines += alerts
    lines += _changed_line([row.lun for row in planned])
    is_any = any(row.steps for row in planned)
    head = "Planned steps:" if is_any else "Nothing to do:"
    rows = [row.facts() for row in planned]
    rows += [
        {
            "scsi_id": each.scsi_id or None,
            "status": each.status if each.status == attach.SKIPPED else attach_plan.WOULD_FAIL,
            "steps": [],
            "changed_at": None,
            "hosts_down": [],
            "problem": str(each.error),
        }
        for each in (*failed, *skipped)
    ]
    # the exit status that the run would have, as far as the plan tells
    errors = [row.error for row in planned] + [each.error for each in failed]
    status = exit_status(errors, any(row.down for row in planned) or is_any and any(errors))
    alerts = [f"{row.lun.scsi_id}: {row.text()}" for row in planned if row.error is not None or row.down] + alerts
    lines += [f"{each.scsi_id} would be skipped: {each.error}" for each in skipped]
    alerts += [f"{each.scsi_id} would be skipped: {each.error}" for each in _warned(skipped, is_none=not planned)]
    text = "\n".join([head, *map(printable, lines)])
    return Answer({"changed": is_any, "would_attach": rows}, text, status, alerts=alerts)


def _warned(skipped: Sequence[Attached], is_none: bool) -> List[Attached]:
    """Return the skipped LUNs to name also with --quiet; `is_none`: no LUN can be attached, and each LUN says why."""
    return [each for each in skipped if each.is_doubtful or is_none]


#: the end of the line about a host that has not plugged an SR
_AFTERWARDS = {hosts.DOWN: "when the host is up"}
_CORRECTED = "after you correct the cause"


def _attached_answer(pool: Pool, results: Sequence[Attached], skipped: Sequence[Attached], is_changed: bool) -> Answer:
    """Return the results as facts and text; the exit status, for a single LUN, is the status of its error.

    The `skipped` LUNs are no errors, and the doubtful LUNs among them are warnings.
    """
    lines, steps = [], []
    alerts: List[str] = []
    for result in results:
        of = f" {result.name!r} ({result.sr_uuid}), {counted(len(result.vdis), 'VDI')}" if result.hosts else ""
        lines.append(printable(f"{result.scsi_id or 'a target'}: {result.status}{of}"))
        away = {name: state for name, state in result.hosts.items() if state != hosts.PLUGGED}
        for name, state in away.items():
            again = _AFTERWARDS.get(state, _CORRECTED)
            line = "host {!r}: {}; repeat the command {}".format(name, state.rstrip("."), again)
            lines.append(printable("  " + line))
            alerts.append(f"{result.scsi_id}: {line}")
        lines += [printable(f"  note: {note}") for note in result.notes]
        if result.error is not None:
            lines.append(printable(f"  {result.error}"))
            alerts.append(f"{result.scsi_id or 'a target'}: {result.error}")
        elif result.status in (attach.DONE, attach.PARTIAL, attach.ALREADY):
            network = f"night-{result.sr_uuid[:8]}"  # of this copy alone: copies of one VM have the same addresses
            clone = shell_command("relvmoiscsi pool clone --all", result.sr_uuid, isolated=network)
            is_known = pool.sr_by_uuid(result.of_sr) is not None  # else no VM here has the original of a disk
            steps.append(clone if is_known else shell_command("relvmoiscsi pool map", result.sr_uuid))
            lines += ["  the other hosts can use the copy now"] if result.status == attach.PARTIAL else []
    lines += [printable(f"{each.scsi_id} was skipped: {each.error}") for each in skipped]
    alerts += [f"{each.scsi_id} was skipped: {each.error}" for each in _warned(skipped, is_none=not results)]
    undone = [result for result in results if result.status not in (attach.DONE, attach.ALREADY)]
    is_partial = any(is_changed or result.error is None for result in undone)
    status = exit_status([result.error for result in results], is_partial)
    facts = {"changed": is_changed, "attach_results": [result.facts() for result in (*results, *skipped)]}
    return Answer(facts, "\n".join(lines), status, next_steps=steps, alerts=alerts)


# --- map


class PoolMapCommand(PoolCommand):
    """Map the VDIs of a copy to the VDIs of the original."""

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            copy = choice.find_copy(calls, pool, found, self.given.sr)
        pairs = vdis.pairs(copy.origin, copy.vdis)
        vms = owners.of_disks(found, copy)
        users = {
            pair.new: sorted(
                str(found.vms[vm]["name_label"])
                for vm in found.users_of(copy.by_uuid[pair.new])
                if not found.is_copy(vm)  # named above the disks
            )
            for pair in pairs
        }
        whole, _, unfinished = choice.clones(found, copy)
        clones = {**whole, **unfinished}
        in_order = inventory.in_order(clones)
        facts = {
            "old_sr": copy.original or None,
            "new_sr": copy.uuid,
            "sr_name_label": copy.name,
            "clones": [{"new_vm": clones[ref]["uuid"], "new_name": clones[ref]["name_label"]} for ref in in_order],
            "vdi_pairs": [
                {**pair.facts(), "vm_names": vms.get(pair.old, []), "user_vm_names": users[pair.new]} for pair in pairs
            ],
        }
        lines = [f"{copy.uuid} {copy.name!r}"]
        for ref in in_order:
            kind = "unfinished clone" if ref in unfinished else "clone"
            lines += [f"  {kind} {clones[ref]['name_label']!r}", f"    VM {clones[ref]['uuid']}"]
        for pair in pairs:
            notes = [
                note for note, shown in (("snapshot", pair.is_a_snapshot), ("hidden", not pair.is_managed)) if shown
            ]
            notes += ["VM " + ", ".join(map(repr, vms[pair.old]))] if vms.get(pair.old) else []
            notes += ["used by the VM " + ", ".join(map(repr, users[pair.new]))] if users[pair.new] else []
            before = pair.old or ("a VDI that is gone from the pool" if vdis.is_derived(pair.new) else "")
            lines.append(f"  {pair.new}  {pair.name_label!r}" + (" [{}]".format("; ".join(notes)) if notes else ""))
            lines.append(f"    was {before}" if before else "    is new")
        return Answer(facts, "\n".join(map(printable, lines)))
