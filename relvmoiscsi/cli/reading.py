# SPDX-License-Identifier: LGPL-2.1-only
"""The commands that only read a LUN: `show` prints its content; `check` verifies it, alone or against its original."""

import argparse
import sys
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import (
    ATTACH_IT,
    NOTE_FIRST,
    TAKE_COPY,
    DeviceCommand,
    device_word,
    failure_facts,
    on_lun,
    run_it,
    takes_device,
    unread_text,
)
from relvmoiscsi.cli.output import Answer, Bar, Maker, say, width
from relvmoiscsi.engine import saved as saved_vms
from relvmoiscsi.errors import (
    FormatError,
    NotFound,
    Partial,
    Refused,
    RelvmoiscsiError,
    Unfinished,
    UsageError,
    error_facts,
    failing_alone,
)
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import Identification
from relvmoiscsi.lun.opened import LunSource, OpenLun
from relvmoiscsi.wording import CHANGED_MEANS, ShellCommand, counted, human_size, printable

_SHOW = """\
The command writes nothing, and the LUN may be in use. In dom0, the command asks xapi who uses the LUN. A URL
without a LUN lists the LUNs behind the target. A URL without an IQN lists the targets.

example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi show iscsi://10.0.0.1
  relvmoiscsi show iscsi://10.0.0.1/iqn.2026-01.example:array"""

_CHECK = """\
The command writes nothing. Of a damaged LUN, the command prints every defect with its position, and the exit
status is 5. With --original, the command reads all data of both devices and compares them; if they share an
identity or differ, the exit status is 4. On a terminal, a bar shows the progress and the remaining time. In
dom0, the command asks xapi whether a resignature of the LUN would be refused.

example:
  relvmoiscsi check /dev/sdc --original /dev/sdb"""


def add_show(make: Maker) -> None:
    takes_device(make(_show, _SHOW), nargs="+", action=_Devices)


def add_check(make: Maker) -> None:
    check = takes_device(make(on_lun(CheckCommand), _CHECK))
    what = "also check that both devices share no identity and hold the same data"
    check.add_argument("--original", metavar="DEVICE", type=device_word, help=what)
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")


# --- show


class _Devices(argparse.Action):
    """Stores all devices, and the first device as `device`."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        namespace.devices, namespace.device = values, values[0]


def _show(arguments: argparse.Namespace) -> Callable[[], Answer]:
    """Make the command that shows each device; the error of an only device propagates."""
    run_only = on_lun(ShowCommand)(arguments)
    if len(arguments.devices) == 1:
        return run_only
    return partial(_show_all, arguments)


def _show_all(arguments: argparse.Namespace) -> Answer:
    """Show each device. A device that cannot be read hides no other."""
    answers: List[Answer] = []
    for device in arguments.devices:
        is_explained = any(CHANGED_MEANS in each.text for each in answers)
        one = argparse.Namespace(**{**vars(arguments), "device": device, "is_explained": is_explained})
        try:
            with failing_alone(device):
                answers.append(run_it(ShowCommand(one), one))
        except RelvmoiscsiError as error:
            say(printable(str(error)))
            facts = failure_facts(one, error) if arguments.json else {}  # a second look at the device
            answers.append(Answer({**facts, **error_facts(error)}, "", error.exit_status))
    failed = [answer.status for answer in answers if answer.status]
    status = Partial.exit_status if failed and len(failed) < len(answers) else max(failed, default=0)
    texts = [each.text for each in answers if each.text]
    alerts = [alert for each in answers for alert in each.alerts]
    return Answer({"devices": [each.facts for each in answers]}, "\n\n".join(texts), status, alerts=alerts)


class ShowCommand(DeviceCommand):
    """Print the content of a LUN."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._explains = not getattr(arguments, "is_explained", False)

    def run(self) -> Answer:
        source = self.source(self.device)
        if not source.is_path:
            from relvmoiscsi.cli.listing import listed  # noqa: PLC0415 - a path needs no initiator

            found_there = listed(self.device, source)
            if found_there is not None:
                return found_there
        with source.opened_to_read() as lun:
            found = run.looked_at(lun, self.command_words("relvmoiscsi resignature", self.device))
            one = engine.one_vdi(lun.device, found.lun) if found.lun is not None else None
            saved = saved_vms(lun.device, found.lun) if found.lun is not None else None
            pool = lun.guard.ask([found.lun.sr_uuid] if found.lun is not None else [], "")
            earlier, record = found.run, found.commit_record
            cut_sr = earlier.held_sr(record.phase) if earlier is not None and record is not None else None
            told = Identification(lun, pool, found.lun, cut_sr)
        facts = report.inspection_facts(self.device, found)
        facts["lun"] = told.facts()
        if one is not None:
            facts["one_vdi"] = report.one_vdi_facts(one)
            facts["saved_vms"] = report.saved_vms_facts(saved)
        who = [told.device_line(), told.pool_line()]
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
        text = report.inspection_text(self.device, found, one, saved, who, self._explains, width(sys.stdout))
        return Answer(facts, text if encoding == "utf8" else text.translate(report.ASCII_TREE))


# --- check


_FEW = 10  #: findings for people; a copy may differ from its original in every mebibyte
_NOT_COMPARED = "guest data was not compared."
_OTHER_ORIGINAL = "Repeat the command with the device of the original: --original names another device now."
_LATER_WRITES = "the copy is not complete, or one of the two was written since the copy was taken."
_IF_NOT_LATER = "If neither was written, take the copy again from the array."
_MAY_BE_INCOMPLETE = "A host may have it beside its original. Whether the copy is complete is not known."
_NEITHER = "Attach neither beside the other."
_TAKE_AGAIN = f"{_NEITHER} Take the copy again from the array, and resignature that copy."


class CheckCommand(DeviceCommand):
    """Verify a LUN, alone or against its original."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.original: Optional[str] = arguments.original
        self.clone = self.device if self.original else ""
        self.identities_only: bool = arguments.identities_only

    def verify(self) -> None:
        super().verify()
        if self.identities_only and not self.original:
            raise UsageError("--identities-only needs --original.")

    def run(self) -> Answer:
        name, source = self.device, self.source(self.device)
        with source.opened_to_read() as lun:
            found = run.looked_at(lun, self.command_words("relvmoiscsi resignature", self.device))
            facts = report.inspection_facts(name, found)
            if found.problem is not None:
                step = self.step_of_unread(found, lun)
                text = unread_text(name, found, step)
                if self.original and step == engine.CHECK_ORIGINAL:
                    step = self.shell_command("relvmoiscsi check", self.original)
                return self.told(found.problem, facts, text, step)
            if found.state == engine.CLEAN:
                lun.device.look_for_users()
            if self.original:
                original = self.source(self.original)
                if original.is_same(source):
                    same = UsageError(f"{self.original} and {name} are the same device.")
                    raise same.advising("Give --original the device of the original.")
                return self._compare(self.original, original, lun, found.lun, facts)
        if found.contradictions:
            text = report.contradictions_text(name, found)
            return self.told(found.contradictions[0], facts, text, TAKE_COPY)
        notes = ["note: " + sentence for sentence in facts["notes"]]
        mgt = found.lun.settled().mgt if found.lun is not None else None
        if found.unproven is None and mgt is not None and mgt.broken:
            count = counted(len(mgt.broken), "MGT record")
            lines = [
                f"{name}: the storage manager cannot read {count}; every other structure checks; state {found.state}.",
                "A resignature keeps such a record, and changes nothing but its UUIDs. If the original has the same "
                "record, the copy is whole. Otherwise take the copy again from the array.",
            ]
            unread = FormatError(f"{name}: the storage manager cannot read {count}.")
            return self.told(unread, facts, "\n".join([*lines, *notes]), engine.CHECK_ORIGINAL)
        notes = [f"{name}: every structure checks; state {found.state}.", *notes]
        if found.unproven is None and found.state != engine.CLEAN:
            return Answer(facts, "\n".join(notes)).leading(self.next_step(found.state, lun, found.run))
        more, step = self._step_of_clean(lun, found.lun)
        if found.unproven is not None:
            return self.told(found.unproven, facts, "\n".join([*notes, *more]), step)
        return Answer(facts, "\n".join([*notes, *more])).leading(step)

    def _step_of_clean(self, lun: OpenLun, content: Optional[engine.Lun]) -> Tuple[List[str], str]:
        """Return notes on what refuses a resignature of the LUN, as a dry run tells it, and the next step."""
        step = self.shell_command("relvmoiscsi resignature", self.device, not_in_use=self.overrides(lun))
        pool = lun.guard.ask([content.sr_uuid] if content else [])
        objection = lun.device.objection or pool.objection
        if objection is not None:
            return ["note: " + printable(objection.told), NOTE_FIRST], step
        return ["note: " + pool.sentence] if lun.is_nameless else [], step

    def _compare(
        self, name: str, source: LunSource, clone: OpenLun, content: Optional[engine.Lun], facts: Dict[str, Any]
    ) -> Answer:
        """Compare a clone, which holds `content`, with its original, which has this name."""
        with source.opened_to_read() as original, Bar() as bar:
            try:
                found = engine.compare(original.device, clone.device, () if self.identities_only else None, bar)
            except (FormatError, NotFound, Refused, Unfinished) as problem:  # of the original: the clone is read
                return self._uncompared(name, original, problem, facts)
        facts.update(report.comparison_facts(facts["device"], name, found))
        if found.problems:
            return self._of_findings(name, original, found, clone, content, facts)
        compared = human_size(found.bytes_compared)
        data = f", and nothing else differs ({compared} of data compared)."
        text = f"{facts['device']} shares no identity with {name}"
        text += f"; {_NOT_COMPARED}" if self.identities_only else data
        lost = [f"note: the clone does not hold VDI {uuid} of the original." for uuid in found.left_behind]
        if found.lacks_mgt:
            lost.append("note: the clone does not hold the MGT volume of the original: its VDIs have no labels.")
        end = _MAY_BE_INCOMPLETE if self.identities_only else ATTACH_IT
        return Answer(facts, "\n".join([text, *lost, *self._of_one_scsi_id(name, original, clone)])).leading(end)

    def _of_findings(
        self,
        name: str,
        original: OpenLun,
        found: engine.Comparison,
        clone: OpenLun,
        content: Optional[engine.Lun],
        facts: Dict[str, Any],
    ) -> Answer:
        """Return the answer about a clone that shares an identity with its original of this name, or differs."""
        state, count = facts["state"], counted(len(found.problems), "finding")
        verdict, told = f"{self.device}, state {state}, is no finished copy of {name}: {count}.", found.problems
        alike = f"{self.device} shares no identity with {name}"
        if found.same_identities:
            what = "no finished copy" if state == engine.RESIGNATURED else "an untouched copy"
            alike = f"{self.device}, state {state}, is {what} of {name}: both have the same identities"
            verdict, told = alike + (f"; {_NOT_COMPARED}" if self.identities_only else "."), []
        refused, more = Refused(found.problems[0] if told else verdict), []  # type: Refused, List[str]
        if found.may_be_later_writes:
            count, told = counted(len(found.differing), "place"), list(found.differing)
            verdict = f"{alike}, but their data differs at {count}: {_LATER_WRITES}"
            command = self.shell_command("relvmoiscsi check", self.device, original=name, identities_only=True)
            refused = Refused(told[0])
            after: str = f"{_IF_NOT_LATER} If one was written, `{command}` compares the identities alone."
        elif found.problems[0].startswith("The original is another SR"):
            after = _OTHER_ORIGINAL
        elif found.problems[0].startswith(engine.EXCHANGED):
            exchanged = self.shell_command("relvmoiscsi check", name, original=self.device)
            order = f"If {name} is the clone, the LUNs were given in the wrong order: `{exchanged}` compares them."
            after = f"{order} {self._if_mistaken(name, original)}"
        elif found.problems[0].startswith(engine.BOTH_RESIGNATURED):
            other = f"If {name} is another clone, repeat the command with the device of the original."
            after = f"{self._if_mistaken(name, original)} {other}"
        elif found.problems[0].startswith((engine.ONE_VDI, engine.CHANGED_SINCE)):
            verdict, told = f"{self.device}, state {state}: {found.problems[0]}", []
            after = self.shell_command("relvmoiscsi check", self.device)
        elif state == engine.RESIGNATURED and found.same_identities:
            again = self.shell_command("relvmoiscsi resignature --again", self.device, not_in_use=self.overrides(clone))
            after = f"{_NEITHER} If {self.device} is the copy, `{again}` gives {self.device} identities of its own."
        elif state == engine.RESIGNATURED:
            after = _TAKE_AGAIN
        else:
            more, after = self._step_of_clean(clone, content)
            more = self._of_one_scsi_id(name, original, clone) or more
        lines = [verdict, *map(printable, told[:_FEW])]
        if len(told) > _FEW:
            lines.append(f"... and {len(told) - _FEW} more, which --json prints.")
        refused.advising("" if isinstance(after, ShellCommand) else after)
        facts.update(error_facts(refused))
        text, alerts = "\n".join([*lines, *more]), [verdict, *told[:1]]
        return Answer(facts, text, refused.exit_status, alerts=alerts).leading(after)

    def _of_one_scsi_id(self, name: str, original: OpenLun, clone: OpenLun) -> List[str]:
        """Return what comes first where the original of this name has the SCSIid of the clone: [] where it has not.

        Multipath would take the two LUNs for one, and no run writes to such a LUN.
        """
        if clone.scsi_id is None or clone.scsi_id != original.scsi_id:
            return []
        note = f"note: {self.device} and {name} have one SCSIid, {clone.scsi_id}: these are two paths of one LUN, or "
        return [printable(note + "the array must give the clone a SCSIid of its own."), NOTE_FIRST]

    def _if_mistaken(self, name: str, original: OpenLun) -> str:
        """Return what to do if the original of this name, which was resignatured, is the original indeed."""
        undo = self.shell_command("relvmoiscsi undo", name, not_in_use=self.overrides(original))
        return f"If {name} is the original, it was resignatured by mistake: `{undo}` gives its old identities back."

    def _uncompared(self, name: str, original: OpenLun, problem: RelvmoiscsiError, facts: Dict[str, Any]) -> Answer:
        """Return the answer about a LUN that cannot be compared, because of a problem of its original of this name."""
        why, found = f"{name} cannot be read as original", run.looked_at(original)
        step = self.shell_command("relvmoiscsi check", name) if isinstance(problem, FormatError) else _OTHER_ORIGINAL
        if found.state == engine.UNFINISHED and found.problem is not None:
            why, problem = f"{name} holds an unfinished run", found.problem
            step = self.step_of_cut(name, found, original)
        verdict = f"{self.device}, state {facts['state']}, was not compared: {why}.\n  {printable(problem.message)}"
        return self.told(problem, facts, verdict, step)
