# SPDX-License-Identifier: LGPL-2.1-only
"""A command on a LUN, of parsed words: its options, its source, its questions, the answer of its run.

The parser's namespace ends in the constructor of a command.
"""

import argparse
import re
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from relvmoiscsi import engine, report
from relvmoiscsi.cli.map_out import MapFile, file_name
from relvmoiscsi.cli.output import (
    Answer,
    Asked,
    Command,
    ask,
    must_be_able_to_ask,
    say,
    tell,
    unless_lost,
    waiting,
)
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    RelvmoiscsiError,
    Truncated,
    Unfinished,
    UsageError,
    error_facts,
    failing_alone,
    in_state,
)
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import completed_facts, identification, objection
from relvmoiscsi.lun.opened import LunSource, OpenLun, Permission, SessionOptions
from relvmoiscsi.lun.proposals import Proposal, Recovery, Undoing
from relvmoiscsi.lun.source import is_path, source_of, verify_word
from relvmoiscsi.sr_types import HBA_SR, ISCSI_SR
from relvmoiscsi.wording import (
    ONE,
    Option,
    ShellCommand,
    change,
    command_words,
    human_size,
    if_clone,
    printable,
    quoted,
    shell_command,
    utc_time,
)

HOST = THIS_HOST

FINISHED = "{}: the {} was finished."
ATTACH_IT = "Attach the clone: a host may have it beside its original."
TAKE_COPY = "Take the copy again from the array."
NOTE_FIRST = "First do what the note says."
_NO_SR = "If this is the clone of an SR, take the copy again from the array. If not, name the device of the clone."


# --- the request


class DeviceCommand:
    """A command on a LUN, with its options: DEVICE, and the options of all."""

    permission = Permission()  #: what the caller has said about the LUN

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device: str = getattr(arguments, "device", None) or ""
        self.clone = ""  #: the device of which a person has said that it is the clone
        self.json = bool(arguments.json)
        #: the options of the login, which each command on the same LUN repeats
        self.login: Dict[str, Optional[str]] = {
            "initiator_name": arguments.initiator_name,
            "chap_file": arguments.chap_file,
        }
        self._only_block: bool = arguments.block_device
        devices = getattr(arguments, "devices", [self.device])
        self._words = [*devices, getattr(arguments, "original", None)]

    def verify(self) -> None:
        """Raise UsageError for login options without a URL, and for a URL where only a block device is taken."""
        if any(word is not None and not is_path(word) for word in self._words):
            if self._only_block:
                raise UsageError("--block-device needs the path of a block device: a URL is none.")
            if self.login["initiator_name"] is not None:
                from relvmoiscsi.iscsi.names import checked_initiator  # noqa: PLC0415 - a path needs no initiator

                checked_initiator(self.login["initiator_name"])
            return
        for name, value in self.login.items():
            if value is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs the URL of a LUN: a path needs no login.")

    def run(self) -> Answer:
        raise NotImplementedError

    def command_words(self, own: str, *names: str, **options: Option) -> Tuple[str, ...]:
        """Return the words of a command on LUNs, as `wording` does, with the options of the login if one is a URL."""
        names = tuple(map(file_word, names))
        devices = {key: file_word(value) for key, value in options.items() if isinstance(value, str)}
        are_paths = all(map(is_path, [*names, *devices.values()]))
        return command_words(own, *names, **{**options, **devices}, **({} if are_paths else self.login))

    def shell_command(self, own: str, *names: str, **options: Option) -> ShellCommand:
        return quoted(*self.command_words(own, *names, **options))

    def pasteable(self, found: Answer) -> Answer:
        """Return the answer without a next step that resignatures a LUN, unless a person has said that it is the clone.

        A person pastes the next step. Pasted for the original, it would give the original new identities. So the answer
        has this step in words, as its last sentence.
        """
        clone, told = quoted(file_word(self.clone)), found._replace(next_steps=())
        for step in found.next_steps:
            is_named = bool(self.clone) and f" {clone} " in f"{step} "
            is_safe = is_named or not step.startswith("relvmoiscsi resignature ")
            told = told.leading(step if is_safe else if_clone(step))
        return told

    def how_to_tell(self) -> str:
        """Return the sentence on how to see the state of the LUN."""
        return f"`{self.shell_command('relvmoiscsi show', self.device)}` shows the state of {self.device}."

    def overrides(self, lun: OpenLun) -> bool:
        """Does the next command on the LUN need --not-in-use? It does where this command was given the option."""
        return self.permission.not_in_use or lun.is_nameless

    def next_step(self, state: str, lun: OpenLun, run: Optional[engine.Run] = None) -> str:
        """Return the next step with a LUN in this state, after this run, as `Answer.leading` takes it.

        One VDI cannot be compared.
        """
        if state != engine.RESIGNATURED:
            return self.shell_command("relvmoiscsi resignature", self.device, not_in_use=self.overrides(lun))
        if run is not None and run.one is not None:
            return ATTACH_IT
        check = self.shell_command("relvmoiscsi check", self.device)
        return f"Compare the clone with its original: add --original, and the device of the original, to `{check}`."

    def if_copy(self, lun: OpenLun, run_scsi_id: Optional[str]) -> str:
        """Return what to do with a resignatured LUN if it is a copy; "" where the SCSIids tell that it is none.

        `run_scsi_id` is the SCSIid of the LUN on which the run was begun.
        """
        if None not in (lun.scsi_id, run_scsi_id):
            return ""
        again = self.shell_command("relvmoiscsi resignature --again", self.device, not_in_use=self.overrides(lun))
        return (
            f"No SCSIid tells whether {self.device} is a copy of the LUN that was resignatured. If it is, "
            f"`{again}` gives {self.device} identities of its own."
        )

    def step_of_unread(self, found: engine.Inspection, lun: OpenLun) -> str:
        """Return the next step with a LUN of which no content can be used, as `Answer.leading` takes it."""
        if found.state == engine.UNFINISHED:
            return self.step_of_cut(self.device, found, lun)
        problems = found.defects or [found.problem]
        commands = [command for each in problems if each is not None for command in each.commands]
        if found.is_truncated:
            return engine.TAKE_WHOLE
        if found.state == engine.FOREIGN and found.problem is not None and not commands:
            return _NO_SR if found.problem.advice == engine.GIVE_CLONE else ""  # another advice is the step
        if commands:
            return ShellCommand(commands[0])
        return _NO_SR if found.state == engine.EMPTY else engine.CHECK_ORIGINAL

    def step_of_cut(self, name: str, found: engine.Inspection, lun: OpenLun) -> str:
        """Return the command that ends the interrupted run on the LUN of this name, which `run.inspected` has found.

        "" where no command ends the run: the message of the problem says so.
        """
        problem, no_question = found.problem, self.overrides(lun)
        if isinstance(problem, Unfinished):
            return self.shell_command("relvmoiscsi recover", name, not_in_use=no_question)
        if problem is None or not problem.commands:
            return ""
        if found.run is not None and found.run.merged is not None:
            return self.shell_command("relvmoiscsi resignature", name, vdis="one", not_in_use=no_question)
        return self.shell_command("relvmoiscsi undo", name, not_in_use=no_question)

    def told(self, first: RelvmoiscsiError, facts: Dict[str, Any], text: str, next_step: str) -> Answer:
        """Return all that was found as the result, with the status of the first error."""
        told = {**facts, **error_facts(first)}
        return Answer(told, text, first.exit_status, alerts=[str(first)]).leading(next_step)

    def source(self, word: str) -> LunSource:
        """Return what an argument DEVICE names. Raises UsageError, NotFound, Refused."""
        return source_of(file_word(word), HOST, self._only_block, SessionOptions(waiting=waiting, **self.login))


class WriteCommand(DeviceCommand, Asked):
    """A command that writes. Its consent is that of a person at a terminal, or of a script by its options."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises UsageError for a malformed SCSIid."""
        super().__init__(arguments)
        self.yes = arguments.yes
        self.dry_run: bool = arguments.dry_run
        with in_state(NOTHING_WRITTEN):
            scsi_id = arguments.scsi_id
            if scsi_id is not None:
                from relvmoiscsi.scsi_id_text import typed_scsi_id  # noqa: PLC0415 - an image file has no SCSIid

                scsi_id = typed_scsi_id(scsi_id)
        self.permission = Permission(scsi_id, arguments.not_in_use, not arguments.yes)

    def source(self, word: str) -> LunSource:
        with in_state(NOTHING_WRITTEN):
            return super().source(word)

    def identify(self, lun: OpenLun, proposal: Proposal) -> None:
        """Print what the LUN is, before a question. Raises UsageError where a question needs a missing terminal."""
        beside_yes = ""  # the options without which --yes is refused
        if self._is_unknown(lun, proposal):
            beside_yes = "--not-in-use" if lun.scsi_id is None else "--scsi-id ID or --not-in-use"
        must_be_able_to_ask(self, beside_yes)
        if proposal.pool.is_overridden and proposal.pool.objection is not None:
            warn_of_override(lun.name, proposal.pool.objection)
        if not self.yes:
            head = f"relvmoiscsi: {lun.name} will be changed:"
            tell("\n".join([head, *identification(lun, proposal).lines()]))

    def tell_objection(self, source: LunSource, lun: OpenLun, proposal: Proposal) -> int:
        """Say in a dry run why the run would be refused, or what --not-in-use overrides; return the run's status."""
        refusal = objection(lun, proposal)
        if proposal.pool.objection is not None and proposal.pool.is_overridden:
            with run.recording(source.host):
                warn_of_override(lun.name, proposal.pool.objection)
        return say_would_be_refused(refusal) if refusal is not None else 0

    def comes_first(self, lun: OpenLun, proposal: Proposal) -> List[str]:
        """Return what a dry run says before the next step, where the step would be refused as well."""
        is_met = lun.is_nameless and lun.device.objection is None  # by the option of the next step
        return [] if objection(lun, proposal) is None or is_met else [NOTE_FIRST]

    def ask(self, lun: OpenLun, proposal: Proposal, question: str, loss: str = "") -> None:
        """Return after a confirmation. Ask for the SCSIid where no pool has answered, otherwise for a yes.

        `loss` is a second question, about data that the run destroys. Raises Refused.
        """
        if loss:
            ask(self, loss)
        if self._is_unknown(lun, proposal):
            ask(self, question + " Type the SCSIid of the clone:", str(lun.scsi_id))
        elif not loss:
            ask(self, question)

    def answer(self, lun: OpenLun, outcome: run.CompletedRun, headline: str) -> Answer:
        """Return the answer after a write, when the LUN is closed; say what this machine still remembers of the LUN."""
        result = outcome.result
        for sentence in outcome.stale:
            say(sentence)
        lines = [headline]
        if result.ids is not None and not outcome.proposal.is_rollback:
            lines.append(report.map_text(result.lun, result.ids))
        lines.append(f"  {result.writes} writes, {human_size(result.bytes_written)}, {result.flushes} flushes")
        proposal, is_finished = outcome.proposal, result.state == engine.RESIGNATURED
        is_way_back = isinstance(proposal, Undoing) or (
            isinstance(proposal, Recovery) and (proposal.is_undo or engine.goes_back(proposal.earlier))
        )
        if not is_way_back:
            lines += filter(None, [self.if_copy(lun, result.scsi_id) if outcome.was_cut else ""])
            lines += self._attach_lines(lun, result)
            step = self.shell_command("relvmoiscsi check", self.device)
        else:
            if is_finished and result.ids is not None:
                lines.append(f"It is the SR {result.ids.new_sr} again, which an earlier resignature made of the clone.")
            step = self.step_again(lun, outcome)
        done = self.done(headline, result.state)
        return Answer(completed_facts(lun, outcome), "\n".join(lines), done=done, next_steps=[step])

    def step_again(self, lun: OpenLun, outcome: run.CompletedRun) -> ShellCommand:
        """Return the command of the run that was rolled back or undone; of an undo that was finished, the next run.

        It leaves those VDIs behind that the run has left behind because they cannot be read.
        """
        assert isinstance(outcome.proposal, (Recovery, Undoing))  # a new run leaves new identities
        no_question, content, earlier = self.overrides(lun), outcome.result.lun, outcome.proposal.earlier
        if isinstance(outcome.proposal, Recovery) and outcome.proposal.is_undo and engine.goes_back(earlier):
            return self.shell_command("relvmoiscsi undo", self.device, not_in_use=no_question)
        kept, unread = earlier.journal.run.one, earlier.journal.run.unverified
        left = [each.name.uuid for each in content.volumes if each.lv.id in unread] if content is not None else []
        return self.shell_command(
            "relvmoiscsi resignature",
            self.device,
            again=outcome.result.state == engine.RESIGNATURED,
            not_in_use=no_question,
            vdis=None if kept is None else ONE,
            vdi=kept,
            without=[] if kept is not None else list(dict.fromkeys(filter(None, left))),
        )

    def done(self, headline: str, state: str) -> str:
        """Return what a run did, and the command that prints it again, for a result that cannot be printed."""
        if state == engine.RESIGNATURED:
            again = self.shell_command("relvmoiscsi map", device=self.device)
            return f"{headline} `{again}` prints the ids."
        return f"{headline} `{self.shell_command('relvmoiscsi show', self.device)}` shows the state."

    def _attach_lines(self, lun: OpenLun, result: engine.Result) -> List[str]:
        """Return the commands that attach the new SR on all hosts after a check, with its values.

        The commands are those of docs/driver.rst. Only a LUN with a SCSIid has them: no host attaches another device.
        Each host lists the LUNs first: with a session and without multipathing, SM finds no LUN that was mapped later.
        """
        if lun.scsi_id is None or result.ids is None or result.lun is None:
            return []
        lines = ["After the check, on the pool master (sr-probe lists the LUNs as SR_BACKEND_FAILURE_107):"]
        config = dict(lun.pbd_config)
        if "chapuser" in config:
            config["chappassword_secret"] = "SECRET"
            lines.append("  SECRET is the UUID that `xe secret-create value=PASSWORD` prints")
        if lun.sr_type == HBA_SR:
            lines.append(
                f"  for a LUN behind iSCSI, use type={ISCSI_SR.stock} and add device-config:target and targetIQN"
            )
        changed = utc_time(result.lun.vg.changed)
        label, of_day = result.lun.mgt.name_label if result.lun.mgt else "", change(changed) if changed else "copy"
        sr, name = result.ids.new_sr, f"{label} {of_day}"
        of_type = f"type={lun.sr_type.stock}"
        introduce = [f"uuid={sr}", of_type, f"name-label={name}", "shared=true", "content-type=user"]
        target = [f"device-config:{key}={value}" for key, value in config.items()]
        probe = shell_command("xe sr-probe", of_type, *target)
        create = shell_command("xe pbd-create", f"sr-uuid={sr}", *target, f"device-config:SCSIid={lun.scsi_id}")
        protect = [f"uuid={sr}", "other-config:gc=false", "other-config:indestructible=true"]
        each_host = "for host in $(xe host-list --minimal | tr , ' '); do"
        return [
            *lines,
            f"  {shell_command('xe sr-introduce', *introduce)}",
            f"  {shell_command('xe sr-param-set', *protect)}",
            f"  {each_host} {probe} host-uuid=$host; done",
            f"  {each_host} xe pbd-plug uuid=$({create} host-uuid=$host); done",
        ]

    def _is_unknown(self, lun: OpenLun, proposal: Proposal) -> bool:
        """Has nobody said that the LUN is the clone, and unused: neither a pool, nor --not-in-use, nor --scsi-id?"""
        is_said = self.permission.not_in_use or self.permission.scsi_id is not None
        return lun.is_lun and proposal.pool.is_missing and not is_said


def say_would_be_refused(refusal: RelvmoiscsiError) -> int:
    """Say in a dry run why the run would be refused. Return the status of the run, which the dry run has as well."""
    told = printable(str(refusal.in_state(NOTHING_WRITTEN)))
    say(f"note: a run without --dry-run would be refused: {told}")
    return refusal.exit_status


def warn_of_override(name: str, objection: RelvmoiscsiError) -> None:
    """Say on stderr, and in the log of the runs, what --not-in-use overrides."""
    text = printable(f"--not-in-use: {name} will be changed despite this refusal: {objection.message}")
    say("warning: " + text)
    run.record.warning("%s", text)


# --- the parser


def on_lun(command: Type[DeviceCommand]) -> Command:
    """Return the function that makes the command of the parsed words, which writes its answer to --map-out as well."""

    def make(arguments: argparse.Namespace) -> Callable[[], Answer]:
        made = command(arguments)
        made.verify()
        return partial(run_it, made, arguments)

    return make


def run_it(made: DeviceCommand, arguments: argparse.Namespace) -> Answer:
    """Run a command of these words, and write its answer to the file of --map-out."""
    file = MapFile(getattr(arguments, "map_out", None), arguments.command)
    file.must_be_new()
    found = made.pasteable(made.run())
    if "device" in found.facts:
        found.facts["device"] = made.device or found.facts["device"]
    is_plan: bool = getattr(arguments, "dry_run", False)
    if file.finish(found.facts, found.done or made.how_to_tell(), is_plan):
        return found
    # a dry run's next step names the file
    return found._replace(status=unless_lost(found.status), next_steps=() if is_plan else found.next_steps)


def writes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add DEVICE and the options of a command that writes; return the parser."""
    parser.add_argument("-n", "--dry-run", action="store_true", help="print the plan and write nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--not-in-use", action="store_true", help="proceed even if xapi reports the LUN in use or does not answer"
    )
    parser.add_argument("--scsi-id", metavar="ID", help="SCSIid of the clone; refuse a device with another SCSIid")
    what = "write the JSON output, with the old-to-new map, to a new FILE"
    parser.add_argument("--map-out", metavar="FILE", type=file_name, help=what)
    takes_device(parser).set_defaults(only_reads=False)
    return parser


def takes_device(parser: argparse.ArgumentParser, **more: Any) -> argparse.ArgumentParser:
    """Add DEVICE and its options to the parser; return the parser. `more` is for the argument DEVICE."""
    what = "block device, image file, or iscsi://[user@]host[:port]/iqn/lun"
    parser.add_argument("device", metavar="DEVICE", type=device_word, help=what, **more)
    return takes_device_options(parser)


def takes_device_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of a device to the parser. The command refuses the login options without a URL."""
    parser.set_defaults(only_reads=True)
    what = "with a URL: initiator name to log in with; default: the name of this machine"
    parser.add_argument("--initiator-name", metavar="IQN", help=what)
    what = "with a URL: file with CHAP users and passwords, one NAME=VALUE per line"
    parser.add_argument("--chap-file", metavar="FILE", type=lambda word: file_word(file_name(word)), help=what)
    what = "refuse an image file and a URL, for callers whose rights must not exceed block devices"
    parser.add_argument("--block-device", action="store_true", help=what)
    return parser


def file_word(path: str) -> str:
    """Return the path as a word that no program takes for an option: `./-x` for `-x`."""
    return "./" + path if path.startswith("-") else path


def device_word(word: str) -> str:
    """Return the argument as it was given: JSON has this word.

    Raises ArgumentTypeError for an empty word, as of a script whose variable is not set, and for a control character,
    which would break the lines of each message with the name. Raises UsageError for a malformed URL; the message does
    not repeat the URL.
    """
    if not word.strip():
        raise argparse.ArgumentTypeError(f"{word!r} names no device: give a path or a URL")
    if re.search("[\0-\x1f\x7f-\x9f]", word):
        raise argparse.ArgumentTypeError("the name of the device has a control character: give a link to the device")
    verify_word(word)
    return word


# --- the answer


def unread_text(name: str, found: engine.Inspection, step: str) -> str:
    """Return what is wrong with a LUN of which no content can be used, without the next step, which the caller says."""
    step = engine.CHECK_ORIGINAL if step == engine.TAKE_WHOLE else step  # says as much
    if found.defects:
        return report.defects_text(name, found, step)
    cause = ", the copy is truncated" if isinstance(found.problem, Truncated) else ""
    told = found.problem.told_before(step) if found.problem is not None else ""
    return f"{name}: state {found.state}{cause}.\n{printable(told)}"


def failure_facts(arguments: argparse.Namespace, problem: RelvmoiscsiError) -> Dict[str, Any]:
    """Return the device and its state, for --json beside the error; None as state if the device does not open."""
    command, state = DeviceCommand(arguments), None
    try:
        source = command.source(command.device)
        if source.may_open_after(problem):
            with failing_alone(command.device), source.opened_to_read() as lun:
                state = engine.inspect(lun.device).state
    except RelvmoiscsiError:
        pass
    return {"state": state, "device": command.device}
