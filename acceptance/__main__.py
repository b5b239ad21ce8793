# SPDX-License-Identifier: LGPL-2.1-only
"""`make acceptance`: arguments, the command `relvmoiscsi pool` as a process, the person or command at the array."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple
from urllib.parse import urlsplit

from acceptance import day, made, report
from acceptance.day import Array, Day, Row, Step
from acceptance.made import Command, Failed, Scratch
from relvmoiscsi.cli.output import Unheard
from relvmoiscsi.errors import Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.own_path import NotOwn, open_own, own_way
from relvmoiscsi.lun import url_login
from relvmoiscsi.pool.commands import options
from relvmoiscsi.pool.connection import LOCAL, Where, connect, url_of
from relvmoiscsi.wording import printable_lines, said

TOP = Path(__file__).resolve().parent.parent
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECRETS = ("XENSERVER_PASSWORD", url_login.SECRET, url_login.TARGET_SECRET)  #: of relvmoiscsi, in the environment
_NO_SHELL_TEXT = re.compile("[0-9A-Za-z][0-9A-Za-z._:=@+-]{0,254}")

_WHAT = """\
Tries relvmoiscsi on a real pool, step by step, on an SR that may be lost, and writes a report. docs/acceptance.rst
tells what it does to the pool. Every option has a variable as well: POOL, SR, SNAPSHOT, TARGET, REPORT."""

_ASK = {
    "clone": "Clone the LUN {0} on the array, map the clone to the hosts, and press Enter.",
    "map": "Map the LUN {0} to the other hosts as well, rescan their adapters, and press Enter.",
}
_AGAIN = "The pool sees no clone of that LUN yet. "


class Tools(NamedTuple):
    """The outside tools of a run."""

    command: Command
    array: Array
    say: Callable[[str], None]


# --- outside


class Endings:
    """The signals that end a run: Ctrl-C, `kill`, a lost terminal. Each raises KeyboardInterrupt.

    While a command is at work, the first signal goes to the command as Ctrl-C, and KeyboardInterrupt is raised when the
    command has ended: the kit removes objects next. Otherwise the command would go on with these objects.
    """

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._is_at_work = self._has_come = False

    def listen(self) -> None:
        """Handle the signals for the rest of this process. A signal that is ignored, as under nohup, stays ignored."""
        for number in _ENDING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._hear)

    def _hear(self, *_signal: object) -> None:
        if not self._is_at_work:
            raise KeyboardInterrupt
        if not self._has_come:
            self._has_come = True
            self._pass_on()

    def _pass_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            _say("The command ends its work. Please wait.")

    def run(self, argv: Sequence[str]) -> Tuple[int, str, str]:
        """Run a command; return its status, output and errors. Raises KeyboardInterrupt."""
        pipe = subprocess.PIPE
        self._has_come, self._is_at_work = False, True
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=str(TOP), start_new_session=True
            )
            if self._has_come:  # inside Popen, which had not given the process yet
                self._pass_on()
            out, err = self._process.communicate()
            status = self._process.returncode
        finally:
            self._process, self._is_at_work = None, False
        if self._has_come:
            raise KeyboardInterrupt
        return status, out.decode("utf-8"), err.decode("utf-8")


def pool_process(connection: Sequence[str], endings: Endings) -> Command:
    """Return a function that runs `relvmoiscsi pool` as a process; Ctrl-C first lets the process end in order."""

    def run(*words: str) -> Dict[str, Any]:
        return answer(*endings.run([sys.executable, "-m", "relvmoiscsi", "pool", *words, "--json", *connection]))

    return run


def answer(status: int, out: str, err: str) -> Dict[str, Any]:
    """Return the answer of a run of the command. Raises Failed, and KeyboardInterrupt for an interrupted run."""
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    try:
        found: Dict[str, Any] = json.loads(out)
    except ValueError:
        raise Failed(f"The command ended with status {status}: {err.strip()}") from None
    if status:
        raise Failed(f"The command ended with status {status}: {' '.join(_errors(found)) or err.strip()}")
    return found


def _errors(found: Any) -> List[str]:
    """Return the error sentences anywhere in an answer."""
    if isinstance(found, list):
        return [text for each in found for text in _errors(each)]
    if not isinstance(found, dict):
        return []
    own = [str(found[key]) for key in ("error", "message") if isinstance(found.get(key), str)]
    return own + [text for each in found.values() for text in _errors(each)]


def ask(say: Callable[[str], None]) -> Array:
    """Return an Array that asks a person at the array until the pool sees the clone."""
    asked: List[str] = []

    def array(what: str, scsi_id: str) -> bool:
        say((_AGAIN if what in asked else "") + _ASK[what].format(scsi_id))
        asked.append(what)
        if not sys.stdin.readline():
            raise Failed("No person can answer: the input has ended.")
        return True

    return array


def by_command(text: str, wait_seconds: float) -> Array:
    """Return an Array that runs a shell command at the array, then looks at the pool for `wait_seconds`.

    A target chooses the SCSIid of a LUN, and the command may give it to a shell of the array. So the command gets no
    SCSIid with a character that a shell could interpret, however it quotes.
    """
    ends: Dict[str, float] = {}
    clean = {name: value for name, value in os.environ.items() if name not in _SECRETS}

    def array(what: str, scsi_id: str) -> bool:
        if not _NO_SHELL_TEXT.fullmatch(scsi_id):
            raise Failed(f"The SCSIid {said(scsi_id)} is given to no command: a shell could interpret it.")
        if what not in ends:
            ended = subprocess.call(text, shell=True, env={**clean, "STEP": what, "SCSIID": scsi_id}, stdout=2)
            if ended:
                raise Failed(f"The command that should {what} the LUN ended with status {ended}.")
            ends[what] = time.monotonic() + wait_seconds
        else:
            time.sleep(5)
        return time.monotonic() < ends[what]

    return array


# --- a run


def run(where: Where, tools: Tools, sr: str, target: str, directory: str, records_only: bool = False) -> int:
    """Run all steps; return the exit status. Raises RelvmoiscsiError before the first object is made."""
    _make_place(directory)
    with connect(where) as calls:
        scratch = made.scratch_of(calls, sr)
        made.verify_ready(calls, scratch)
        run_id = scratch.new_run()
        state = Day(calls, tools.command, tools.array, scratch, run_id, target, records_only)
        hosts = [calls.call("host.get_record", host) for host in state.hosts]
        with made.locks_of(run_id):
            try:
                rows = day.run(state, _tell(tools.say))
            finally:
                tools.say("The kit removes its objects. Another Ctrl-C leaves the rest to `make acceptance-clean`.")
                cleaned = _cleaned(where, tools, scratch, state.refs)
    rows += cleaned
    notes = _notes(state, rows)
    found = report.facts(run_id, scratch.record, hosts, rows, notes)
    for note in notes:
        tools.say(note)
    paths = _written(report.redacted(found, _secrets(where, hosts)), directory, run_id)
    tools.say(f"The run has {found['result']}; the report is in {' and '.join(paths)}.")
    return {"passed": 0, "interrupted": EXIT_INTERRUPTED}.get(found["result"], EXIT_FAILED)


def _cleaned(where: Where, tools: Tools, scratch: Scratch, refs: Dict[str, List[str]]) -> List[Row]:
    """Return the rows of the final steps, in a new session: the first session may have ended."""

    def clean(_: object) -> str:
        with connect(where) as calls:
            problems = made.clean(calls, tools.command, scratch)
        if problems:
            raise Failed(" ".join([*problems, "`make acceptance-clean` tries again."]))
        return "the pool has no object of the kit"

    def compare(_: object) -> str:
        with connect(where) as calls:
            return day.nothing_else(refs)(calls)

    steps = [
        Step("clean", "all objects of the kit are removed", clean),
        Step("nothing else", "no SR, PBD, VDI, VM, VBD, VIF, network or Secret came or went", compare),
    ]
    return [day.carry_out(step, None, _tell(tools.say)) for step in steps]


def _tell(say: Callable[[str], None]) -> day.Tell:
    def tell(step: Step, row: Optional[Row]) -> None:
        say(f"{step.name}: {step.expected} ..." if row is None else f"  {row.status}, {row.seconds} s: {row.came}")

    return tell


def _notes(state: Day, rows: Sequence[Row]) -> List[str]:
    """Return the remaining steps for the person at the array."""
    done = {row.name for row in rows if row.status == day.PASSED}
    left_out = [row.name for row in rows if row.status == day.LEFT_OUT]
    return _about_the_clone(state, done) + ([f"These steps were left out: {', '.join(left_out)}."] if left_out else [])


def _about_the_clone(state: Day, done: Set[str]) -> List[str]:
    if "clean" not in done:
        return ["Objects of the kit may be left in the pool. Run `make acceptance-clean` before you unmap a clone."]
    if "resignature" in done:
        return [f"The LUN {state.clone.scsi_id} is in no SR of the pool. Unmap it, and delete it on the array."]
    if "prepare" in done:
        return [
            f"If the array has made a clone of the LUN {state.scsi_id}, unmap it now. The SR cannot be plugged again "
            "on a host that sees an untouched clone."
        ]
    return []


def _secrets(where: Where, hosts: Sequence[Dict[str, Any]]) -> List[str]:
    """Return the texts that no report may contain: the password, and the addresses of the pool."""
    addresses = [str(host["address"]) for host in hosts]  # of these, a member names the master
    if where.pool != LOCAL:
        parts = urlsplit(url_of(where))
        addresses += [parts.geturl(), parts.netloc, parts.hostname or ""]
    return [where.password, *addresses]


def _make_place(directory: str) -> None:
    """Make the directory of the reports. Raises UsageError where another user could lead a report to another file."""
    try:
        with own_way(directory, make=0o755):
            pass
    except (NotOwn, OSError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        unsafe = UsageError(f"{directory} is no place for a report: {reason}.")
        raise unsafe.advising("Give a directory of your own, REPORT=...") from None


def _written(found: Dict[str, Any], directory: str, run_id: str) -> List[str]:
    texts = {".json": json.dumps(found, indent=2) + "\n", ".rst": report.page(found)}
    paths = []
    for ending, text in texts.items():
        paths.append(os.path.join(directory, run_id + ending))
        try:
            with open(open_own(paths[-1], os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
                file.write(text)
        except (NotOwn, OSError) as problem:
            why = getattr(problem, "strerror", None) or problem
            unwritten = f"The run has {found['result']}; its report {paths[-1]} cannot be written: {why}."
            raise Failed(unwritten) from None
    return paths


def clean(where: Where, tools: Tools, sr: str) -> int:
    """Remove the objects of killed runs; return the exit status. Raises RelvmoiscsiError."""
    with connect(where) as calls:
        scratch = made.scratch_of(calls, sr)
        for name in made.find(calls, scratch).names():
            tools.say(f"{name} is removed")
        with made.locks_of(scratch.new_run()):
            problems = made.clean(calls, tools.command, scratch)
    for problem in problems or ["The pool has no object of the kit."]:
        tools.say(problem)
    return EXIT_FAILED if problems else 0


# --- arguments


def main(argv: Optional[Sequence[str]] = None, command: Optional[Command] = None) -> int:
    """Run the kit; return the exit status. `command` replaces the process of `relvmoiscsi pool`."""
    arguments = _parser().parse_args(argv)
    say = _say
    if command is None:
        endings = Endings()
        endings.listen()
        command = pool_process(_connection(arguments), endings)
    try:
        where = options.where(arguments)
        if not arguments.sr:
            raise UsageError("Name the scratch SR: SR=..., by UUID or name.")
        if arguments.clean:
            tools = Tools(command, ask(say), say)
            return clean(where, tools, arguments.sr)
        if not arguments.snapshot and not sys.stdin.isatty():
            nobody = UsageError("There is no terminal, so nobody can be asked for the clone of the LUN.")
            raise nobody.advising("Give a command, SNAPSHOT=...")
        array = by_command(arguments.snapshot, arguments.wait) if arguments.snapshot else ask(say)
        tools = Tools(command, array, say)
        return run(where, tools, arguments.sr, arguments.target, arguments.report, arguments.records_only)
    except (RelvmoiscsiError, Failed) as error:
        if isinstance(error, (Refused, UsageError)):
            error.in_state("Nothing was done.")
        say(str(error))
        return getattr(error, "exit_status", EXIT_FAILED)
    except KeyboardInterrupt:
        say("Interrupted. `make acceptance-clean` removes the objects that are left, if any.")
        return EXIT_INTERRUPTED


def _say(text: str) -> None:
    Unheard(sys.stderr).write(printable_lines(text) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make acceptance", description=_WHAT)
    variable = os.environ.get
    parser.add_argument("--sr", default=variable("SR", ""), help="the scratch SR, by UUID or name")
    parser.add_argument("--snapshot", default=variable("SNAPSHOT", ""), help="clones the LUN SCSIID for STEP=clone")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds for the clone to appear after --snapshot")
    parser.add_argument("--target", default=variable("TARGET", ""), help="of the clone, if not that of the SR")
    parser.add_argument("--report", default=variable("REPORT") or "build/acceptance", help="directory of the reports")
    parser.add_argument("--records-only", action="store_true", help="move no bytes of disks, and start no VM")
    parser.add_argument("--clean", action="store_true", help="remove the objects of killed runs")
    options.takes_connection(parser)
    parser.set_defaults(pool=variable("POOL"))
    return parser


def _connection(arguments: argparse.Namespace) -> List[str]:
    """Return the options for the same connection of `relvmoiscsi pool`, with absolute paths."""
    words: List[str] = ["--insecure"] if arguments.insecure else []
    for option, value in (("--pool", arguments.pool), ("--user", arguments.user)):
        words += [option, value] if value else []
    for option, path in (("--password-file", arguments.password_file), ("--ca", arguments.ca)):
        words += [option, os.path.abspath(path)] if path else []
    return words


if __name__ == "__main__":
    sys.exit(main())
