# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool save-vms`: save VM records on the SR before the array's snapshot."""

import time
from typing import Any, Dict

from relvmoiscsi.cli.output import Answer, ask, waiting
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status
from relvmoiscsi.pool.vms import checked_export, inventory, run_states, save_vms
from relvmoiscsi.wording import printable, said, shell_command

_SAVE = """\
Run the command before each snapshot of the array. It saves the records of all VMs with disks on the SR to a
raw VDI of some 4 MiB on the same SR. The records have no vTPM contents. `show` and `pool luns` read the
records from a clone. `clone --from-snapshot` makes VMs from the records, even VMs that the pool no longer has.
Each run replaces the records of the last run.

example:
  relvmoiscsi pool save-vms Production --yes"""


def add_command(command: CommandMaker) -> None:
    what = "save VM records on the SR before the array's snapshot"
    saving = command("save-vms", SaveVmsCommand, what, _SAVE)
    saving.add_argument("sr", metavar="SR", help="the original, by UUID or name")
    changes(saving)


class SaveVmsCommand(PoolChange):
    """Save VM records on an SR, for the clones of the next snapshot."""

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            sr = records.find_sr(pool, self.given.sr)
            refs = save_vms.vms_on(pool, found, sr)
            lock.verify_free(calls, [lock_keys.name_of(pool.srs[sr])])
            with run_states.unchanged():
                calls.verify_may_call("SR.add_to_other_config")
            names = ", ".join(said(found.vms[ref]["name_label"]) for ref in refs)
            if self.dry_run:
                would = [{"vm": found.vms[ref]["uuid"], "vm_name": found.vms[ref]["name_label"]} for ref in refs]
                notes = [f"Left out: {each.told}" for each in save_vms.left_out(pool, found, sr).values()]
                notes += filter(None, (checked_export.wait_for(found.vms[ref]) for ref in refs))
                text = "\n".join(map(printable, [f"The records of these VMs would be saved: {names}", *notes]))
                return Answer({"would_save": would, "notes": notes}, text)
            ask(self, f"Save the records of {names}?")
            with self.work(repr(pool.srs[sr]["name_label"]), "save the records"), waiting("the pool"):
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                saved, vdi, failed = save_vms.save(calls, pool, found, sr, when)
        vms = [vm for vm in saved.vms if vm.uuid not in failed]
        lines = [f"VM {vm.name_label!r}: saved" for vm in vms]
        alerts = [f"VM {said(name)}: failed: {error}" for name, error in failed.values()]
        lines += alerts
        lines.append(f"The VM records of {saved.when} are on the VDI {vdi}, without vTPM contents.")
        alerts.append(f"The fingerprint of the records is {saved.fingerprint}: note it for use in another pool.")
        lines.append(alerts[-1])
        lines.append("Make the snapshot on the array, and map its clone.")
        step = shell_command("relvmoiscsi pool luns")
        facts: Dict[str, Any] = {
            "sr": saved.sr_uuid,
            "records_vdi": vdi,
            "saved_at": saved.when,
            "saved": [{"vm": vm.uuid, "vm_name": vm.name_label} for vm in vms],
            "not_saved": [{"vm_name": name, "problem": error} for name, error in failed.values()],
            "fingerprint": saved.fingerprint,
        }
        status = exit_status([], is_partial=bool(failed))
        return Answer(facts, "\n".join(map(printable, lines)), status, next_steps=[step], alerts=alerts)
