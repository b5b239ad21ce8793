# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on a whole pool: luns, attach, map, discard. Those on its VMs are in cli/pool_vms.py, the one on its
Secrets is in cli/pool_secrets.py.
"""

import argparse
import gc
import os
import shlex
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.cli import pool_secrets, pool_vms
from relvmoiscsi.cli.asking import ask, must_be_able_to_ask
from relvmoiscsi.cli.map_out import EXIT_NOT_PRINTED, new_file
from relvmoiscsi.cli.output import Answer, Maker, say
from relvmoiscsi.cli.so_far import DONE, FAILED, UNDER_WAY, SoFar
from relvmoiscsi.errors import NotFound, Partial, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import attach, hosts, jobs, lock, luns, progress, records, secrets, vdis
from relvmoiscsi.pool.attach import Attached, Wanted
from relvmoiscsi.pool.attach_plan import LunPlan
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.connection import LOCAL, Where, connect
from relvmoiscsi.pool.luns import PoolLun
from relvmoiscsi.pool.records import Pool, Portal
from relvmoiscsi.pool.vdis import Pair
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import forget
from relvmoiscsi.pool.vms.discard import Plan
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import counted, human_size, printable

_POOL = """\
Works from any machine by XenAPI alone. This machine needs relvmoiscsi and the module XenAPI (`pip install
.[pool]` in a clone of the repository; dom0 has its own). Every host of the pool needs relvmoiscsi. The role
pool-operator is sufficient, except for --hba, which needs pool-admin.

example:
  relvmoiscsi pool luns --pool https://xs1.example --ca xs1.pem --target 10.0.0.5
  relvmoiscsi pool attach --clones-of Production
  relvmoiscsi pool map "Production 2026-11-22"
  relvmoiscsi pool discard "Production 2026-11-22\""""

_LUNS = """\
Classifies each LUN: original, attached copy, clone of an SR, resignatured, unfinished, empty, foreign. Writes
nothing and leaves nothing on any host. Without --target, lists the LUNs of the targets of the pool's SRs.

example:
  relvmoiscsi pool luns --target 10.0.0.5"""

_ATTACH = """\
Resignatures every clone before it attaches the first clone. Each clone becomes an SR on every host of the
pool. gc=false stops coalescing; indestructible=true stops SR.destroy. VDIs get the names, tags and
other_config of the original's VDIs. To resume an interrupted or failed run, repeat the command: it skips
finished steps.

example:
  relvmoiscsi pool attach --clones-of Production --clones-of Testing --yes"""

_MAP = """\
Prints the current names and VMs of the original's VDIs.

example:
  relvmoiscsi pool map "Production 2026-11-22\""""

_DISCARD = """\
Unplugs the SR on every host and forgets the SR. The LUN is not changed: remove the LUN on the array. Refuses
a copy while a running VM, a restored VM or a VM with a lent disk uses the copy. Refuses an SR that `attach`
has not introduced. If halted VMs would lose disks, lists these VMs first; --yes then needs --with-vms or
--leave-vms.

example:
  relvmoiscsi pool discard "Production 2026-11-22" --with-vms"""

_UNLOCK = """\
Every command that changes a copy locks the copy first; meanwhile, other clients are refused. A killed client
leaves its lock, which expires 30 minutes after its last refresh. A live run that loses its lock stops before
its next step.

example:
  relvmoiscsi pool unlock "Production 2026-11-22\""""

_NAMES = {"host": "XENSERVER_HOST", "user": "XENSERVER_USER", "password": "XENSERVER_PASSWORD"}


def add_command(make: Maker) -> None:
    """Describe the commands and their arguments."""
    group = make(_no_command, _POOL)
    commands = group.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, run: Any, what: str, more: str) -> argparse.ArgumentParser:
        text = what + ".\n\n" + more
        sub = commands.add_parser(name, description=text, formatter_class=group.formatter_class, help=what)
        sub.set_defaults(run=lambda arguments: _tells_how_far(run, arguments))
        sub.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object and nothing else"
        )
        sub.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help="print more on stderr")
        takes_connection(sub)
        return sub

    listing = command("luns", _luns, "list and classify the LUNs that the pool sees", _LUNS)
    _takes_portal(listing)
    _takes_jobs(listing)
    attaching = command("attach", _attach, "attach clones as SRs on all hosts", _ATTACH)
    attaching.add_argument("scsi_ids", metavar="SCSIID", nargs="*", help="SCSIid of a LUN, as `luns` prints it")
    _takes_copies(attaching)
    attaching.add_argument(
        "--foreign",
        action="store_true",
        help="accept clones of SRs unknown to this pool; you confirm no other pool uses them",
    )
    attaching.add_argument(
        "--leave-others",
        action="store_true",
        help="proceed even if hosts will see clones that still have the identities of their originals",
    )
    attaching.add_argument(
        "--name",
        metavar="TEXT",
        default=attach.NAME,
        help="name of the new SRs; {sr}, {date} and {scsi_id} are replaced; default: {sr} {date}",
    )
    attaching.add_argument("--map-out", metavar="FILE", help="write old and new UUIDs as JSON to a new FILE")
    _takes_portal(attaching)
    _takes_jobs(attaching)
    _changes(attaching)
    mapping = command("map", _map, "map the VDIs of a copy to the VDIs of the original, with names and VMs", _MAP)
    mapping.add_argument("sr", metavar="SR", help="the copy, by UUID or name")
    discarding = command("discard", _discard, "unplug and forget copies; the LUNs are not changed", _DISCARD)
    discarding.add_argument("srs", metavar="SR", nargs="*", help="a copy, by UUID or name")
    _takes_copies(discarding)
    discarding.add_argument(
        "--with-vms", action="store_true", help="also destroy the VMs that `clone` has made on the copy"
    )
    discarding.add_argument(
        "--leave-vms", action="store_true", help="with --yes: let halted VMs lose their disks on the copy"
    )
    _changes(discarding)
    unlocking = command("unlock", _unlock, "break the lock that a killed client has left on a copy", _UNLOCK)
    unlocking.add_argument("sr", metavar="SR", help="the copy, by UUID or name, or the lock name from the refusal")
    _changes(unlocking)
    tools = pool_vms.Tools(command, _changes, _opened)
    pool_vms.add_commands(tools)
    pool_secrets.add_command(tools, _first_line)


def _tells_how_far(run: Any, arguments: argparse.Namespace) -> Answer:
    """Run a command, which says in `so_far` how far it came. Raises Interrupted where somebody stops the command."""
    arguments.so_far = SoFar()
    try:
        answer: Answer = run(arguments)
    except KeyboardInterrupt as stop:
        raise arguments.so_far.interrupted(stop) from stop
    return answer


def _takes_copies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clones-of",
        metavar="SR",
        action="append",
        default=[],
        help="select all copies of this SR (UUID or name); repeatable",
    )
    parser.add_argument("--all", action="store_true", help="select all copies")


def takes_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool", metavar="URL", help="URL of a pool host, or `local` in dom0; default: XENSERVER_HOST, else local"
    )
    parser.add_argument("--user", metavar="NAME", help="user name; default: XENSERVER_USER, else root")
    parser.add_argument(
        "--password-file", metavar="FILE", help="file with the password in its first line; default: XENSERVER_PASSWORD"
    )
    parser.add_argument("--ca", metavar="FILE", help="trusted certificates, PEM")
    parser.add_argument("--insecure", action="store_true", help="accept any certificate")


def _takes_portal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hba", action="store_true", help="LUNs on the master's Fibre Channel or SAS adapters")
    parser.add_argument(
        "--target", metavar="ADDRESS", help="address of an iSCSI portal; default: the portals of all SRs"
    )
    parser.add_argument("--iqn", metavar="IQN", help="IQN of a target at that portal; default: all targets")
    parser.add_argument("--port", metavar="PORT", help="port of the portal; default: 3260")
    parser.add_argument(
        "--chap-user", metavar="NAME", help="CHAP user; default: the CHAP user of the SR on that target"
    )
    parser.add_argument("--chap-password-file", metavar="FILE", help="file with the CHAP password in its first line")
    parser.add_argument(
        "--clean-secrets", action="store_true", help="destroy Secrets with CHAP passwords of killed runs"
    )


def _takes_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=jobs.MOST, help="number of LUNs in parallel; default: 10"
    )


def _changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what the command would do and change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _no_command(_arguments: argparse.Namespace) -> Answer:
    raise UsageError(
        "Give a subcommand: `relvmoiscsi pool luns`, `attach`, `map`, `clone`, `restore`, `rescue`, `save-vms`, "
        "`discard`, `unlock` or `secrets`; see --help."
    )


# --- where, and as whom


def where(arguments: argparse.Namespace) -> Where:
    """Raises UsageError."""
    pool = arguments.pool or os.environ.get(_NAMES["host"]) or LOCAL
    if pool == "localhost":  # so the Ansible modules have it
        pool = LOCAL
    password = os.environ.get(_NAMES["password"], "")
    if arguments.password_file:
        password = _first_line(arguments.password_file)
    if pool != LOCAL and not password:
        raise UsageError("The password is missing: give --password-file, or set XENSERVER_PASSWORD.")
    user = arguments.user or os.environ.get(_NAMES["user"]) or "root"
    return Where(pool, user, password, arguments.ca, arguments.insecure)


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


class _Open(NamedTuple):
    calls: Calls
    pool: Pool


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[_Open]:
    gc.enable()  # other commands are over before it would be worth the time
    with connect(where(arguments)) as calls:
        yield _Open(calls, records.read(calls))


@contextmanager
def _portals(arguments: argparse.Namespace, found: _Open) -> Iterator[List[Portal]]:
    """Where to look; the CHAP of the command line in a Secret for as long as the block runs. Raises UsageError."""
    known = found.pool.portals()
    if arguments.hba:
        yield []
        return
    asked = Portal(arguments.target or "", arguments.iqn or "", arguments.port or "")
    portals = [asked.as_known(known)] if arguments.target else known
    if not portals:
        raise UsageError("No SR of the pool has an iSCSI target: give --target.")
    password = _first_line(arguments.chap_password_file) if arguments.chap_password_file else ""
    if arguments.chap_password_file and not password:
        raise UsageError(f"{arguments.chap_password_file} has no password in its first line.")
    with secrets.chap(found.calls, portals, arguments.chap_user or "", password, say) as ready:
        yield ready
    if arguments.clean_secrets:
        with arguments.so_far.work():
            _clean_secrets(found, getattr(arguments, "dry_run", False))


def _clean_secrets(found: _Open, is_dry: bool) -> None:
    """Comes after the work, whose answer is not lost when this fails."""
    try:
        left = secrets.left_behind(*found, time.time())
        if is_dry:
            say(f"{len(left)} Secrets of killed runs would be destroyed.")
        else:
            say(f"{secrets.clean(found.calls, left)} Secrets of killed runs were destroyed.")
    except PoolFailure as failure:
        say(printable(f"The Secrets of killed runs could not be destroyed: {failure}"))


# --- luns


def _luns(arguments: argparse.Namespace) -> Answer:
    _check_jobs(arguments)
    _check_portal(arguments)
    with _opened(arguments) as found, _portals(arguments, found) as portals:
        seen = _seen(arguments, found, portals)
    return Answer({"luns": [lun.facts(found.pool) for lun in seen]}, _luns_text(found.pool, seen))


def _check_portal(arguments: argparse.Namespace) -> None:
    if arguments.hba and (arguments.target or arguments.chap_user):
        raise UsageError("--hba lists the master's adapters: remove --target and --chap-user.")
    if bool(arguments.chap_user) != bool(arguments.chap_password_file):
        raise UsageError("--chap-user and --chap-password-file need each other: give both.")
    if arguments.chap_user and not arguments.target:
        raise UsageError("--chap-user needs --target: no other array may receive the password.")
    if (arguments.iqn or arguments.port) and not arguments.target:
        raise UsageError("--iqn and --port need --target: without --target, the command reads all targets of the pool.")


def _seen(arguments: argparse.Namespace, found: _Open, portals: Sequence[Portal]) -> List[PoolLun]:
    if arguments.hba:
        return luns.find_on_master(*found)
    return luns.find(found.calls, found.pool, portals, arguments.jobs)


def _luns_text(pool: Pool, seen: Sequence[PoolLun]) -> str:
    if not seen:
        return "The pool sees no LUN behind these targets."
    rows = [("SCSIid", "size", "what it is")]
    rows += [(lun.scsi_id, human_size(lun.size_bytes), _words(pool, lun)) for lun in seen if lun.scsi_id]
    widths = [max(len(row[index]) for row in rows) for index in (0, 1)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
    away = [lun for lun in seen if not lun.scsi_id]
    lines += [
        printable(f"The LUNs behind {lun.portal.target} {lun.portal.iqn} are unknown: {lun.problem}") for lun in away
    ]
    return "\n".join(lines)


def _words(pool: Pool, lun: PoolLun) -> str:
    quoted = f'"{lun.name}"' if lun.name else "an SR"
    texts = {
        luns.ORIGINAL: f"original, {quoted}",
        luns.ATTACHED: f"attached, {quoted}",
        luns.CLONE: f"clone of {quoted}",
        luns.UNKNOWN_SR: f"{quoted}, which this pool does not know ({lun.sr_uuid})",
        luns.UNCONNECTED: f"{quoted}, which has no PBD: original or clone is unknown",
        luns.RESIGNATURED: f"resignatured, a copy of {quoted if lun.of_sr else 'an SR'}; not attached here",
        luns.UNFINISHED: "resignature interrupted; `attach` finishes the resignature",
    }
    text = texts.get(lun.kind, f"{lun.kind}: {lun.problem}" if lun.problem else lun.kind)
    if lun.one_vdi == "cannot be" and lun.kind in luns.UNTOUCHED:
        text += "; cannot be made one VDI"
    if lun.vms:
        text += "; VMs {} ({})".format(", ".join(lun.vms), lun.vms_saved)
    if pool.ref in lun.metadata_of:
        text += "; holds a database of this pool"
    return printable(text)


# --- attach


def _attach(arguments: argparse.Namespace) -> Answer:
    _check_jobs(arguments)
    _check_portal(arguments)
    for scsi_id in arguments.scsi_ids:
        if not is_scsi_id(scsi_id):
            raise UsageError(f"{scsi_id!r} is no SCSIid.")
    if not (arguments.scsi_ids or arguments.clones_of or arguments.all):
        raise UsageError("No LUN is selected: give SCSIids, --clones-of SR, or --all.")
    attach.verify_template(arguments.name)
    with new_file(arguments.map_out, "`relvmoiscsi pool map` prints the same UUIDs.") as finish:
        must_be_able_to_ask(arguments)
        with _opened(arguments) as found, _portals(arguments, found) as portals:
            return _attached(arguments, found, portals, finish)


def _check_jobs(arguments: argparse.Namespace) -> None:
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give 1 or more LUNs in parallel.")


def _attached(
    arguments: argparse.Namespace,
    found: _Open,
    portals: Sequence[Portal],
    write_map: Callable[[Dict[str, Any]], bool],
) -> Answer:
    calls, pool = found
    seen = _seen(arguments, found, portals)
    of = [records.original_uuid(pool, text) for text in arguments.clones_of]
    chosen = attach.choose(seen, arguments.scsi_ids, of, arguments.all, arguments.foreign)
    left = attach.unseen(seen, arguments.scsi_ids, of, arguments.all)
    for lun in attach.doubtful(seen, chosen) if of or arguments.all else []:
        say(printable(f"{lun.scsi_id} is skipped: {_words(pool, lun)}. Another pool may use this LUN."))
    if not arguments.leave_others:
        attach.verify_none_left(seen, chosen)
    wanted = Wanted(arguments.name, records.today(), records.run_id(), arguments.jobs, arguments.leave_others)
    planned = attach.plan(calls, pool, chosen, wanted, seen)
    passed_over = [attach.passed_over(lun) for lun in left]
    attach.verify_free(calls, planned)
    if arguments.dry_run:
        return _would_attach(planned, passed_over)
    count = sum(bool(row.steps) for row in planned)
    if count and not arguments.yes:
        say(_would_attach(planned, passed_over).text)
        ask(arguments, f"Attach {counted(count, 'LUN')}?")
    todo = [row.lun.scsi_id for row in planned if row.steps]
    stream = None if arguments.json else progress.terminal()
    with progress.shown(stream, count) as shown, arguments.so_far.work(todo):
        results = attach.carry_out(calls, pool, planned, wanted, _both(arguments.so_far, shown))
    results += passed_over
    facts = {"luns": [result.facts() for result in results]}
    status = _status(results)
    if not write_map({"srs": _map_of(results)}):
        status = status or EXIT_NOT_PRINTED
    return Answer(facts, _attached_text(results), status)


def _both(so_far: SoFar, shown: attach.Progress) -> attach.Progress:
    """Tells a person who waits, and one who stops the run."""

    def tell(scsi_id: str, step: str, how: str) -> None:
        is_done = (step, how) == (attach.ATTACHING, attach.OVER)
        state = DONE if is_done else FAILED if how == attach.ENDED else UNDER_WAY
        so_far.tell(scsi_id, state, step + (": done" if how == attach.OVER and not is_done else ""))
        shown(scsi_id, step, how)

    return tell


def _status(results: Sequence[Attached]) -> int:
    """That of the error where one LUN was asked for."""
    if attach.are_whole(results):
        return 0
    if len(results) == 1 and results[0].error is not None:
        return results[0].error.exit_status
    return Partial.exit_status


def _would_attach(planned: Sequence[LunPlan], passed_over: Sequence[Attached]) -> Answer:
    lines = [f"{row.lun.scsi_id}: {row.text()}" for row in planned]
    lines += [f"{each.scsi_id or 'a target'}: {each.error}" for each in passed_over]
    is_any = any(row.steps for row in planned)
    head = "Planned steps:" if is_any else "Nothing to do:"
    rows = [row.facts() for row in planned]
    rows += [
        {"scsi_id": each.scsi_id or None, "steps": [], "hosts_down": [], "error": str(each.error)}
        for each in passed_over
    ]
    return Answer({"would": rows}, "\n".join([head, *map(printable, lines)]), _would_status(planned, passed_over))


def _would_status(planned: Sequence[LunPlan], passed_over: Sequence[Attached]) -> int:
    """That of the run, as far as it can be told before."""
    errors = [row.error for row in planned] + [each.error for each in passed_over]
    if len(errors) == 1 and errors[0] is not None:
        return errors[0].exit_status
    return Partial.exit_status if any(errors) or any(row.down for row in planned) else 0


#: what is said behind the state of a host that has not plugged an SR
_AFTERWARDS = {hosts.DOWN: "when the host is up"}
_CORRECTED = "after you correct the cause"


def _attached_text(results: Sequence[Attached]) -> str:
    lines = []
    for result in results:
        of = f' "{result.name}" ({result.sr_uuid}), {counted(len(result.vdis), "VDI")}' if result.name else ""
        lines.append(printable(f"{result.scsi_id or 'a target'}: {result.status}{of}"))
        away = {name: state for name, state in result.hosts.items() if state != hosts.PLUGGED}
        for name, state in away.items():
            again = _AFTERWARDS.get(state, _CORRECTED)
            lines.append(printable("  {}: {}; repeat the command {}".format(name, state.rstrip("."), again)))
        if result.error is not None:
            lines.append(printable(f"  {result.error}"))
        elif result.status == attach.DONE:
            lines.append(printable(f"  next: relvmoiscsi pool clone {shlex.quote(result.name)} --all --isolated lab"))
    return "\n".join(lines)


def _map_of(results: Sequence[Attached]) -> List[Dict[str, Any]]:
    """What --map-out has."""
    return [
        {
            "scsi_id": result.scsi_id,
            "sr": {"old": result.of_sr, "new": result.sr_uuid},
            "vdis": _pair_facts(result.vdis),
        }
        for result in results
        if result.sr_uuid
    ]


def _pair_facts(pairs: Sequence[Pair]) -> List[Dict[str, Any]]:
    return [pair.facts() for pair in pairs]


# --- map


def _map(arguments: argparse.Namespace) -> Answer:
    with _opened(arguments) as (calls, pool):
        ref = records.find_sr(pool, arguments.sr)
        records.verify_copy(pool, ref)
        sr = pool.srs[ref]
        original = pool.sr_by_uuid(sr["other_config"][records.ORIGINAL_SR])
        originals = vdis.of_sr(calls, original) if original is not None else {}
        pairs = vdis.pairs(sr["uuid"], vdis.of_sr(calls, ref), originals)
        vms = vdis.vms_of(originals, calls.records("VBD"), calls.records("VM"))
    facts = {
        "sr": {"old": sr["other_config"][records.ORIGINAL_SR] or None, "new": sr["uuid"]},
        "name": sr["name_label"],
        "vdis": [{**pair.facts(), "vms": vms.get(pair.old, [])} for pair in pairs],
    }
    lines = ['{} "{}"'.format(sr["uuid"], sr["name_label"])] + [_pair_line(pair, vms) for pair in pairs]
    return Answer(facts, "\n".join(map(printable, lines)))


def _pair_line(pair: Pair, vms: Dict[str, List[str]]) -> str:
    notes = [note for note, shown in (("snapshot", pair.is_a_snapshot), ("hidden", not pair.is_managed)) if shown]
    notes += ["VM " + ", ".join(vms[pair.old])] if vms.get(pair.old) else []
    before = pair.old or ("gone from the pool" if vdis.is_derived(pair.new) else "")
    text = f"  {before:<36}  {'became' if before else 'is new'}  {pair.new}  {pair.name_label}"
    return text + (" [{}]".format("; ".join(notes)) if notes else "")


# --- discard


def _discard(arguments: argparse.Namespace) -> Answer:
    if not (arguments.srs or arguments.clones_of or arguments.all):
        raise UsageError("No copy is selected: give SRs, --clones-of SR, or --all.")
    must_be_able_to_ask(arguments)
    with _opened(arguments) as (calls, pool):
        refs, gone = _copies(pool, arguments)
        plan = made_vms.plan(calls, refs, arguments.with_vms)
        made_vms.verify_free(calls, plan)
        if arguments.dry_run:
            would = _discarded(plan, gone, {}, _WOULD_DISCARD, {})
            is_refused = bool(plan.all_losers()) and not arguments.leave_vms  # with --yes
            return would._replace(status=Refused.exit_status) if is_refused else would
        if arguments.yes and not arguments.leave_vms:
            made_vms.verify_nobody_left(plan)
        destroyed: Dict[str, List[str]] = {ref: [] for ref in refs}
        uuids = [str(plan.pool.srs[ref]["uuid"]) for ref in refs]
        if refs:
            ask(arguments, _question(plan))
            made_vms.verify_as_told(plan, made_vms.plan(calls, refs, arguments.with_vms))

        said = {ref: '"{name_label}" ({uuid})'.format(**plan.pool.srs[ref]) for ref in refs}

        def one(calls: Calls, ref: str) -> None:
            with arguments.so_far.one(said[ref], "discard"):
                made_vms.carry_out(calls, plan, ref, destroyed[ref], uuids)

        with arguments.so_far.work(list(said.values())):
            outcomes = jobs.at_once(calls, refs, one, jobs.MOST)
            if arguments.with_vms and gone:
                made_vms.clean_networks(calls, gone)
        failed = {ref: out for ref, out in zip(refs, outcomes) if isinstance(out, RelvmoiscsiError)}
    return _discarded(plan, gone, failed, "discarded", destroyed)


def _question(plan: Plan) -> str:
    halted = plan.all_losers()
    lost = f"These halted VMs lose their disks on the copy: {forget.named(halted)}. " if halted else ""
    lost += "--with-vms destroys the VMs that `clone` has made. " if halted and not plan.made else ""
    made = [each for of_sr in plan.made.values() for each in of_sr]
    goes = (
        ", and destroy {} ({})".format(counted(len(made), "VM"), ", ".join(sorted(each.name for each in made)))
        if made
        else ""
    )
    snapshots = sorted(name for each in made for name in each.snapshots)
    goes += " with {} ({})".format(counted(len(snapshots), "snapshot"), ", ".join(snapshots)) if snapshots else ""
    names = ", ".join(str(plan.pool.srs[ref]["name_label"]) for ref in plan.uses)
    return printable(f"{lost}Discard {names}{goes}?")


_WOULD_DISCARD = "would be discarded"
_LOSE = "halted VMs that lose disks on the copy (--yes needs --with-vms or --leave-vms)"


def _copies(pool: Pool, arguments: argparse.Namespace) -> Tuple[List[str], List[str]]:
    """(the SRs that are meant, the UUIDs that the pool does not have any more). Raises NotFound, UsageError."""
    wanted = {records.original_uuid(pool, text) for text in arguments.clones_of}
    refs, gone = [], []
    for text in arguments.srs:
        if is_uuid(text.lower()) and pool.sr_by_uuid(text.lower()) is None:
            gone.append(text.lower())
        else:
            refs.append(records.find_sr(pool, text))
    for ref, sr in pool.copies():
        if arguments.all or sr["other_config"][records.ORIGINAL_SR] in wanted:
            refs.append(ref)
    return sorted(dict.fromkeys(refs), key=lambda ref: (str(pool.srs[ref]["name_label"]), ref)), gone


def _discarded(
    plan: Plan, gone: Sequence[str], failed: Dict[str, RelvmoiscsiError], word: str, destroyed: Dict[str, List[str]]
) -> Answer:
    rows: List[Dict[str, Any]] = []
    lines = []
    for ref in plan.uses:
        uuid, name = plan.pool.srs[ref]["uuid"], str(plan.pool.srs[ref]["name_label"])
        error: Optional[str] = str(failed[ref]) if ref in failed else None
        status = "failed" if error else word
        made = [each for each in plan.made.get(ref, ()) if not error or each.name in destroyed[ref]]
        vms, snapshots = [each.name for each in made], [snapshot for each in made for snapshot in each.snapshots]
        others = [] if error else sorted(set(plan.losers(ref).values()))
        row = {"sr": uuid, "name": name, "status": status, "error": error, "vms": vms, "snapshots": snapshots}
        rows.append({**row, "vms_left_without_disks": others})
        lines.append(f'"{name}" ({uuid}): {status}' + (f": {error}" if error else ""))
        if vms:
            lines.append(("  destroyed: the VMs " if error else "  with the VMs ") + ", ".join(vms))
        if snapshots:
            lines.append("  with their snapshots " + ", ".join(snapshots))
        if others:
            lines.append(
                f"  {_LOSE if word == _WOULD_DISCARD else 'halted VMs that had disks on the copy'}: {', '.join(others)}"
            )
        if status == "discarded":
            lines.append(f"  next: remove the LUN {lock.name_of(plan.pool.srs[ref])} on the array")
    row = {"sr": None, "name": None, "status": "not in the pool", "error": None, "vms": [], "snapshots": []}
    rows += [{**row, "vms_left_without_disks": [], "sr": uuid} for uuid in gone]
    lines += [f"{uuid}: not in the pool" for uuid in gone]
    text = "\n".join(map(printable, lines)) or "The pool has no copies."
    return Answer({"srs": rows}, text, Partial.exit_status if failed else 0)


# --- unlock


def _unlock(arguments: argparse.Namespace) -> Answer:
    must_be_able_to_ask(arguments)
    with _opened(arguments) as (calls, pool):
        locks = lock.read(calls)
        what = arguments.sr if arguments.sr in locks else lock.name_of(pool.srs[records.find_sr(pool, arguments.sr)])
        if what not in locks:
            raise NotFound(printable(f"There is no lock on {arguments.sr!r}. Nothing was changed."))
        found = locks[what]
        if arguments.dry_run:
            return Answer({"would": [found.facts()]}, f"{what}: would be unlocked; it is locked by {found.text()}")
        ask(arguments, f"The lock belongs to {found.text()}. A live run stops when it loses the lock. Break the lock?")
        with arguments.so_far.work():
            broken = lock.unlock(calls, found)
    lines = [printable(f"{each.what}: unlocked; it was locked by {each.text()}") for each in broken]
    return Answer({"unlocked": [each.facts() for each in broken]}, "\n".join(lines))
