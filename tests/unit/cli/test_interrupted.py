# SPDX-License-Identifier: LGPL-2.1-only
"""Ctrl-C at every operation of a command that writes: what is said then is true of the LUN."""

import os
import re
import signal
import subprocess
import sys

import pytest

from kit import examples, shell
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, vhd
from kit.examples import steps
from kit.shell import SR, WRITERS, content, pair
from relvmoiscsi import cli
from relvmoiscsi.cli import output
from relvmoiscsi.host.disk.block_device import HostDevice

SAYS = "relvmoiscsi: Interrupted. "
NOTHING = "Nothing was written."
FREE_SPACE = "{} is as it was; beyond that only free space of the metadata area was written."
BEGUN = (
    "The {1} of {0} was begun and may be unfinished. Once the device answers, `relvmoiscsi recover {0}` finishes it or "
    "rolls it back."
)
UNSEEN = "Every VDI on {0} reads as before: "
OVER = "The {1} was finished."
LOOK = "`relvmoiscsi show {0}` shows the state of {0}."
AGAIN = " Repeat the command."


class Keys:
    """Ctrl-C at one operation of the device: before it, or when it is done."""

    def __init__(self, patch, number, is_done):
        self._left, self._is_done = number, is_done
        self.pressed = False
        for name in ("read", "write", "flush"):
            patch.setattr(HostDevice, name, self._instead_of(getattr(HostDevice, name)))

    def _instead_of(self, real):
        def operation(device, *what):
            self._left -= 1
            if self._left:
                return real(device, *what)
            self.pressed = True
            if self._is_done:
                real(device, *what)
            raise KeyboardInterrupt

        return operation


def one_disk():
    """A disk over its base copy, with room for one image of both."""
    volumes = [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT)]
    return build_sr(volumes, area=AREA_DEFAULT, free_extents=20)


WHOLE, CUT = "whole", "cut"  #: a resignature that came before
RUNS = {
    "resignature": (pair, [], ("resignature", "--sr-uuid", SR), "resignature"),
    "one VDI": (one_disk, [], ("resignature", "--sr-uuid", SR, "--vdis", "one"), "resignature"),
    "undo": (pair, [WHOLE], ("undo",), "undo"),
    "recover": (pair, [CUT], ("recover",), "resignature"),
    "undo of a run that was cut": (pair, [CUT], ("undo",), "resignature"),
}


@pytest.fixture
def before(tmp_path, command, monkeypatch):
    """Makes the image before a run, and gives its content."""

    def make(path, run):
        built, steps, _, _ = RUNS[run]
        built().disk.to_file(str(path))
        for step in steps:
            with monkeypatch.context() as patch:
                if step == CUT:
                    Keys(patch, 13, is_done=True)  # behind the label "in progress"
                command("resignature", path, "--yes", "--sr-uuid", SR)
        return content(path)

    return make


@pytest.mark.states("run", "is_done")
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "done"])
@pytest.mark.parametrize("run", RUNS)
def test_what_is_said_is_true_of_the_lun(before, command, monkeypatch, tmp_path, run, is_done):
    _, _, argv, kind = RUNS[run]
    path, said = tmp_path / "clone.img", set()
    was = before(path, run)
    state = command("show", path, "--json").json["state"]

    for number in steps(3, f"{run} {is_done}"):
        was[0].to_file(str(path))
        with monkeypatch.context() as patch:
            keys = Keys(patch, number, is_done)
            ran = command(argv[0], path, "--yes", *argv[1:])
        if not keys.pressed:
            break
        assert ran.status == output.EXIT_INTERRUPTED and SAYS in ran.err and not ran.out
        sentence = ran.err.split(SAYS)[1].rstrip("\n")
        step = AGAIN if sentence.startswith(NOTHING) else " " + LOOK.format(path)
        has_step = sentence == BEGUN.format(path, kind) or sentence.startswith(UNSEEN.format(path))
        assert has_step or sentence.endswith((step, step[1:])), sentence
        sentence = sentence[: -len(step)] if sentence.endswith(step) else sentence
        is_true(command, path, was[0], state, sentence, kind)
        said.add(sentence.replace(str(path), "{0}").replace(kind, "{1}").split("only free extents")[0])

    assert number > 15 and ran.status == 0
    wanted = {NOTHING, BEGUN} | {"undo": {LOOK}, "recover": {OVER}}.get(argv[0], set())
    assert not examples.WHOLE or {BEGUN, NOTHING} <= said, said
    assert said <= wanted | {FREE_SPACE.format("{0}"), UNSEEN.format("{0}"), LOOK, OVER, "The {1} was rolled back."}


def is_true(command, path, was, state, sentence, kind):
    """Of a LUN that held `was` before, in this state."""
    now = command("show", path, "--json").json
    if sentence == NOTHING:
        assert content(path)[0].differences(was) == []
    elif sentence.startswith((FREE_SPACE.format(path), UNSEEN.format(path))):
        assert now["state"] == state
    elif sentence == BEGUN.format(path, kind):
        assert command("recover", path, "--yes").status == 0
        settled = command("show", path, "--json").json
        assert (settled["state"], settled["sr"]) in (("clean", pair().truth.sr_uuid), ("resignatured", SR))
    else:
        assert now["state"] in ("clean", "resignatured"), "an unfinished run is always said"


@pytest.mark.parametrize("words", [
    ("show",), ("check",), ("check", "--original"), ("map", "--device"), ("resignature", "-n"), ("undo", "-n"),
    ("recover", "-n"),
])  # fmt: skip
@pytest.mark.parametrize("number", [1, 3])
def test_a_command_that_cannot_write_says_that_nothing_was_written(
    finished, original, command, monkeypatch, words, number
):
    with monkeypatch.context() as patch:
        keys = Keys(patch, number, is_done=False)
        argv = [words[0], *words[1:], *([original] if "--original" in words else []), finished]
        ran = command(*argv)

    assert keys.pressed and ran.status == output.EXIT_INTERRUPTED
    assert ran.err.startswith(f"{SAYS}{NOTHING}"), ran.err


# --- the question


@pytest.mark.parametrize("name", WRITERS)
def test_at_the_question_nothing_was_written(lun_for, unwritten, monkeypatch, type_in, name):
    def pressed(_question):
        raise KeyboardInterrupt

    type_in("")
    monkeypatch.setattr(output, "_typed", pressed)
    ran = unwritten(output.EXIT_INTERRUPTED, name, lun_for(name))
    assert ran.err.endswith("relvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n")


# --- signals


def kill_at_a_write(monkeypatch, number, before=lambda: None):
    """The process gets a signal behind each write."""
    real = HostDevice.write

    def write(device, chunks):
        real(device, chunks)
        before()
        os.kill(os.getpid(), number)

    monkeypatch.setattr(HostDevice, "write", write)


def test_sigterm_is_a_ctrl_c_while_the_lun_is_open(image, command, monkeypatch):
    kill_at_a_write(monkeypatch, signal.SIGTERM)
    ran = command("resignature", image, "--yes")
    assert (ran.status, ran.err) == (
        output.EXIT_INTERRUPTED,
        f"{SAYS}{FREE_SPACE.format(image)} {LOOK.format(image)}\n",
    )
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", [(HostDevice, "close"), (output, "write_text")], ids=["clean-up", "message"])
def test_who_presses_it_again_and_again_is_told_the_same(image, command, monkeypatch, where, again):
    """A person in a hurry, and a terminal that goes away, send more than one signal."""
    real = getattr(*where)

    def once_more(*what):
        os.kill(os.getpid(), again)
        return real(*what)

    kill_at_a_write(monkeypatch, signal.SIGINT, lambda: monkeypatch.setattr(*where, once_more))
    ran = command("resignature", image, "--yes")
    assert (ran.status, ran.err) == (
        output.EXIT_INTERRUPTED,
        f"{SAYS}{FREE_SPACE.format(image)} {LOOK.format(image)}\n",
    )
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_who_has_a_handler_of_his_own_keeps_it(image, command, monkeypatch):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        kill_at_a_write(monkeypatch, signal.SIGTERM)
        assert command("resignature", image, "--yes").status == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(heard) == {signal.SIGTERM} and len(heard) > 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_when_the_result_is_out_does_not_change_it(image, command, monkeypatch, number):
    """The exit status was 130, and "Interrupted." was the last word on a run that was done."""
    real = cli._OneCtrlC.__exit__

    def signalled(*what):
        os.kill(os.getpid(), number)
        return real(*what)

    monkeypatch.setattr(cli._OneCtrlC, "__exit__", signalled)
    ran = command("resignature", image, "--yes")
    assert (ran.status, ran.err) == (0, "") and ran.out.endswith(f"next: relvmoiscsi check {image}\n")


@pytest.mark.states("number", few=1)
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("program", ["relvmoiscsi/__main__.py", "supp-pack/relvmoiscsi"])
@pytest.mark.parametrize(("word", "shown"), [("", "state    clean"), ("--help", "usage: relvmoiscsi show")])
def test_a_signal_at_the_very_end_of_a_program_does_not_change_its_status(image, program, number, word, shown):
    """The process died by SIGTERM, though its run had succeeded and its result was out."""
    code = (
        "import os, runpy, sys\n"
        "from relvmoiscsi.host import terminated\n"
        "real = terminated.leave\n"
        "def leave(status):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    os.write(2, b'the end')\n"
        "    real(status)\n"
        "terminated.leave = leave\n"
        f"sys.argv[1:] = ['show', {word or str(image)!r}]\n"
        f"runpy.run_path({str(shell.TOP / program)!r}, run_name='__main__')\n"
    )
    pipe = subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environment(),
        stdout=pipe,
        stderr=pipe,
        universal_newlines=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "the end") and shown in done.stdout


@pytest.mark.states("number", few=1)
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("program", ["relvmoiscsi/__main__.py", "supp-pack/relvmoiscsi"])
def test_a_signal_before_the_first_import_of_a_program_waits_until_it_is_told(image, program, number):
    """The process died without a word, or with a traceback."""
    code = (
        "import os, runpy, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'relvmoiscsi.cli':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"sys.argv[1:] = ['show', {str(image)!r}]\n"
        f"runpy.run_path({str(shell.TOP / program)!r}, run_name='__main__')\n"
    )
    pipe = subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.environment(), stdout=pipe, stderr=pipe, encoding="utf-8", check=False
    )
    said = "relvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n"
    assert (done.returncode, done.stdout, done.stderr) == (output.EXIT_INTERRUPTED, "", said)


def test_pip_installs_the_program_that_waits_with_signals():
    (entry,) = re.findall("console_scripts.*relvmoiscsi = ([a-z_.:]+)", (shell.TOP / "setup.py").read_text())
    assert entry == "relvmoiscsi.__main__:run"


@pytest.mark.states("number", few=1)
@pytest.mark.processes
@pytest.mark.parametrize("words", [["show", "/nowhere"], ["pool", "luns"], ["--help"], ["--version"], ["help", "pool"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_signal_during_the_imports_is_told(words, number, is_dropped):
    """The process gets the signal at its first import behind the frame, or in a callback of the interpreter there.

    The interpreter has such callbacks during imports, and drops each exception that is raised in them.
    """
    late = "relvmoiscsi.cli.overview" if words == ["--help"] else "relvmoiscsi.cli.parser"
    code = (
        "import sys, os, signal, weakref\n"
        "def signalled(_gone=None):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    for _ in range(9): pass\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name != {late!r}: return\n"
        f"        if not {is_dropped}: return signalled()\n"
        "        self.gone = set()\n"
        "        self.callback = weakref.ref(self.gone, signalled)\n"
        "        del self.gone\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from relvmoiscsi.cli import main\n"
        f"sys.exit(main({words!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    said = b"relvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n"
    assert (done.returncode, done.stdout, done.stderr) == (output.EXIT_INTERRUPTED, b"", said)


@pytest.mark.states("words", few=2)
@pytest.mark.processes
@pytest.mark.parametrize(
    "words", [["show", "--help"], ["--help"], ["--version"], ["pool", "--help"], ["pool", "luns", "-h"]]
)
@pytest.mark.parametrize(
    ("way", "why"),
    [
        (">/dev/full", "relvmoiscsi: The result cannot be printed: No space left on device.\n"),
        (">&-", "relvmoiscsi: The result cannot be printed: the standard output is closed.\n"),
        ("", ""),  # into a pipe without a reader
    ],
)
def test_help_that_cannot_be_printed_is_74_and_no_traceback(words, way, why):
    line = " ".join([sys.executable, "-m", "relvmoiscsi", *words, way])
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        ["bash", "-c", line], env=shell.environment(), stdin=subprocess.DEVNULL, stdout=writer,
        stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr.decode()) == (output.EXIT_NOT_PRINTED, why)


@pytest.mark.processes
@pytest.mark.parametrize("way", ["2>/dev/full", "2>&-"])
def test_an_error_of_usage_that_cannot_be_printed_is_2(way):
    for words, status in (("shw", 2), ("show /nowhere", 3)):
        line = f"{sys.executable} -m relvmoiscsi {words} {way}"
        assert subprocess.call(["bash", "-c", line], env=shell.environment(), stdin=subprocess.DEVNULL) == status


def test_ctrl_c_at_a_question_begins_a_line_of_its_own(image, command, monkeypatch, type_in):
    type_in("")

    def pressed():
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdin, "readline", pressed)
    ran = command("resignature", image)
    assert ran.status == output.EXIT_INTERRUPTED
    assert ran.err.endswith("[y/N] \nrelvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n")


@pytest.mark.processes
def test_once_the_answer_is_out_the_process_ends_at_once():
    """A signal while Python took itself apart ended the process by that signal, after a complete answer."""
    code = (
        "import atexit, runpy, sys; atexit.register(print, 'taken apart'); sys.argv = ['relvmoiscsi', 'show', '/no']; "
    )
    code += "runpy.run_module('relvmoiscsi', run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=str(shell.TOP), stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (3, b"")
