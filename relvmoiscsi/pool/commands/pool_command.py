# SPDX-License-Identifier: LGPL-2.1-only
"""The group of pool commands, and `unlock`."""

import argparse
from functools import partial
from typing import List, NoReturn, Type

from relvmoiscsi.cli.map_out import file_name
from relvmoiscsi.cli.output import EXIT_INTERRUPTED, EXIT_NOT_PRINTED, Answer, Maker, ask, say, takes_output_options
from relvmoiscsi.errors import NOTHING_CHANGED, NotFound, Partial, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.calls import Calls
from relvmoiscsi.pool.commands import (
    clone_command,
    discard_command,
    lun_commands,
    rescue_command,
    restore_command,
    save_vms_command,
    secrets_command,
)
from relvmoiscsi.pool.commands.options import PoolChange, PoolCommand, changes, takes_connection, user_and_pool
from relvmoiscsi.pool.commands.so_far import SoFar
from relvmoiscsi.pool.night_log import ENDS, ERROR, NEXT, RESULT, WARNING, NightLog, events
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, run_states
from relvmoiscsi.scsi_id_text import certain_scsi_id
from relvmoiscsi.wording import printable, said, some_of

_POOL = """\
The command works from any machine, by XenAPI alone. Every host of the pool needs relvmoiscsi. The role
pool-operator is sufficient; --hba needs pool-admin.

example:
  relvmoiscsi pool luns --pool https://xs1.example --ca xs1.pem
  relvmoiscsi pool attach --clones-of Production
  relvmoiscsi pool map "Production changed 2026-11-21"
  relvmoiscsi pool discard "Production changed 2026-11-21\""""

_UNLOCK = """\
A command that changes a copy locks the copy first, and other clients are refused meanwhile. A killed client
leaves its lock. The lock expires 30 minutes after its last refresh. Break the lock at once only if you know
that the client is dead: a live run that loses its lock stops before its next step.

example:
  relvmoiscsi pool unlock "Production changed 2026-11-21\""""

_MOST_ASKED = 5  #: locks that the question names


def add_pool(make: Maker) -> None:
    group = make(_no_command, _POOL)
    commands = group.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, kind: Type[PoolCommand], what: str, more: str) -> argparse.ArgumentParser:
        text = what[:1].upper() + what[1:] + ".\n\n" + more
        sub = commands.add_parser(name, description=text, formatter_class=group.formatter_class, help=what)
        sub.set_defaults(run=lambda arguments: partial(_tells_how_far, kind(arguments)), command="pool " + name)
        takes_output_options(sub, default=argparse.SUPPRESS)
        log = "append what is done, and how it ends, to FILE, an event a line"
        sub.add_argument("--log", metavar="FILE", type=file_name, help=log)
        takes_connection(sub)
        return sub

    lun_commands.add_commands(command)
    for module in (clone_command, restore_command, rescue_command, save_vms_command, discard_command):
        module.add_command(command)
    unlocking = command("unlock", UnlockCommand, "break the lock that a killed client has left on a copy", _UNLOCK)
    what = "the copy or the VM, by UUID or name, or the lock name from the refusal"
    unlocking.add_argument("sr", metavar="SR", help=what)
    changes(unlocking)
    secrets_command.add_command(command)


#: how a command ends, for its last line in the log; any other exit status is that of an error
_HOW = {
    0: "without an error",
    Partial.exit_status: "in part: some is done and some is not",
    EXIT_NOT_PRINTED: "without an error, but its result was lost",
    EXIT_INTERRUPTED: "early",
}


def _tells_how_far(command: PoolCommand) -> Answer:
    """Run a command that reports its progress to `so_far`, and to --log. Raises Interrupted after Ctrl-C.

    The last line of the log waits for the exit status of the process: the result may be lost on its way.
    """
    with in_state(NOTHING_CHANGED):
        log = NightLog(command.given.log, command.given.words, " of the pool ".join(user_and_pool(command.given)), say)
    command.so_far = so_far = SoFar(log.tell)

    def end(status: int) -> None:
        log.tell(ENDS, f"{_HOW.get(status, 'with an error')}, exit status {status}")
        log.close()

    command.given.ended = end
    try:
        answer = command.run()
        log.tell(RESULT, *events(answer.text))
        log.tell(WARNING, *answer.alerts)
        log.tell(NEXT, *answer.next_steps)
    except KeyboardInterrupt as stop:
        interrupted = so_far.interrupted(stop)
        log.tell(ERROR, f"Interrupted. {interrupted}")
        raise interrupted from stop
    except RelvmoiscsiError as error:
        if isinstance(command, PoolChange) and not so_far.is_started:
            error.in_state(NOTHING_CHANGED)
        log.tell(ERROR, str(error))
        raise
    except Exception as bug:
        log.tell(ERROR, f"This is a bug: {bug!r}")
        raise
    return answer._replace(done=answer.done or " ".join(so_far.sentences()))


def _no_command(_arguments: argparse.Namespace) -> NoReturn:
    raise UsageError("The subcommand is missing.").advising(
        "Give a subcommand: `relvmoiscsi pool luns`, `attach`, `map`, `clone`, `restore`, `rescue`, `save-vms`, "
        "`discard`, `unlock` or `secrets`; see --help."
    )


class UnlockCommand(PoolChange):
    """Break the lock that a killed client has left on a copy."""

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            what = self._locked(calls, pool)
            locks = lock.to_break(calls, what)
            with run_states.unchanged():
                lock.verify_may_break(calls, locks)
            found = lock.to_tell(locks, what)
            if self.dry_run:
                would = [f"lock {each.what}: would be unlocked; it is locked by {each.text()}" for each in found]
                return Answer({"would_unlock": [each.facts() for each in found]}, "\n".join(map(printable, would)))
            if len(found) == 1:
                lost = (
                    f"The lock belongs to {found[0].text()}. A live run stops when it loses the lock. Break the lock?"
                )
            else:
                each = "; ".join(f"{one.what}, locked by {one.text()}" for one in found[:_MOST_ASKED])
                more = len(found) - _MOST_ASKED
                each += f" and {more} more (--dry-run names all)" if more > 0 else ""
                lost = printable(
                    f"These {len(found)} locks would be broken: {each}. A live run stops when it loses its lock. Break "
                    "the locks?"
                )
            ask(self, lost)
            with self.so_far.work():
                broken = lock.unlock(calls, locks)
            lines = [printable(f"lock {each.what}: unlocked; it was locked by {each.text()}") for each in broken]
            if not lines:
                lines = [printable(f"The lock {what} has gone meanwhile. Nothing was changed.")]
            again = "Repeat the command that was refused." if broken else ""
            return Answer({"unlocked": [each.facts() for each in broken]}, "\n".join(lines)).leading(again)

    def _locked(self, calls: Calls, pool: Pool) -> lock_keys.LockName:
        """Return the name of the lock on the given copy, LUN or VM. Raises NotFound, UsageError.

        A UUID or a SCSIid means that object, whatever has the word as its name: a vm-admin gives VMs any name. The name
        of a guarded lock is such an id. Any other word means the locked SRs and VMs with this name. So does a word with
        the form of a SCSIid that is neither locked nor the SCSIid of a copy. An open lock whose own name is the word
        comes last, because a vm-operator gives it any name.
        """
        locks, text, uuid = lock.read(calls), self.given.sr, self.given.sr.lower()
        vms = inventory.read(calls).named_vms()

        def named(field: str, value: str) -> List[lock_keys.LockName]:
            srs = [lock_keys.name_of(sr) for sr in pool.srs.values() if sr[field] == value]
            return [*srs, *(lock_keys.name_for(vm["uuid"]) for vm in vms.values() if vm[field] == value)]

        scsi_id = certain_scsi_id(text)
        is_of_lun = any(sr["other_config"].get(records.SCSI_ID) == text for _, sr in pool.copies())
        is_guarded = text in locks and locks[lock_keys.LockName(text)].begin == lock_keys.KEY
        if is_uuid(uuid):
            found = named("uuid", uuid)[:1]
        elif is_of_lun or is_guarded or scsi_id in locks:
            found = [lock_keys.name_for(scsi_id or text)]
        else:  # SAP-PRODUCTION-DATABASE-01 has the form of a SCSIid
            found = list(dict.fromkeys(named("name_label", text)))
        locked = [what for what in found if what in locks] or [what for what in locks if what in (text, uuid)]
        are_locked = f"These are locked: {some_of(sorted(locks))}." if locks else "The pool has no lock."
        if not found and not locked and not scsi_id:
            with in_state(f"{are_locked} Nothing was changed."):
                records.find({**pool.srs, **vms}, text, "SR or VM", "")
        if len(locked) > 1:
            raise UsageError(printable(f"{len(locked)} SRs and VMs with the name {said(text)} are locked.")).advising(
                f"Give one of the ids: {some_of(locked)}."
            )
        if not locked:
            raise NotFound(printable(f"There is no lock on {said(text)}.")).in_state(
                f"{are_locked} Nothing was changed."
            )
        return locked[0]
