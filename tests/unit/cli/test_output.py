# SPDX-License-Identifier: LGPL-2.1-only
"""What a terminal shows: lines that fit, colours, and the bar of long work; and that nothing of it goes elsewhere."""

import argparse
import io
import logging
import re
import shlex
import sys
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit import golden, refusals, shell
from kit.clock import Clock
from kit.streams import Terminal
from relvmoiscsi import cli, engine
from relvmoiscsi.cli import output, running
from relvmoiscsi.cli.output import BOLD, Bar, human_time, painted, width, wrapped
from relvmoiscsi.cli.parser import make_parser
from relvmoiscsi.cli.reading import CheckCommand
from relvmoiscsi.report.lun_report import tree
from relvmoiscsi.wording import command_words, printable, shell_command

GIB = 1 << 30
NEW = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.mark.parametrize(
    "text, lines",
    [
        ("one two three four five", ["one two three four", "  five"]),
        ("  state    one two three", ["  state    one two", "           three"]),
        ("run `xe sr-list uuid=abc` now", ["run", "  `xe sr-list uuid=abc`", "  now"]),
        ("  xe sr-introduce uuid=abc type=ext", ["  xe sr-introduce uuid=abc type=ext"]),
        ("uuid  64 MiB  8 MiB  vhd", ["uuid  64 MiB  8 MiB", "      vhd"]),
        ("a-word-without-a-blank-in-it", ["a-word-without-a-blank-in-it"]),
        ("VM 'is  next: no' failed", ["VM 'is  next: no'", "  failed"]),
        ("run `lvremove 'a b c d e f g h i j k'` now", ["run", "  `lvremove 'a b c d e f g h i j k'`", "  now"]),
        ("VM 'one two three four' failed", ["VM", "  'one two three four'", "  failed"]),
        ("VM 'one two three four five' x", ["VM", "  'one two three four five'", "  x"]),
        ("VM \"it's 'two' four\\\" five\" x", ["VM", "  \"it's 'two' four\\\" five\"", "  x"]),
        ("the VM's disk of the pool's", ["the VM's disk of the", "  pool's"]),
    ],
)
def test_a_long_line_goes_on_below_where_its_sentence_begins(text, lines):
    assert wrapped(text, 22).split("\n") == lines


@pytest.mark.states("columns", few=1)
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("name", refusals.ROWS)
def test_each_advised_command_of_a_refused_lun_can_be_copied(monkeypatch, name, columns):
    """The words of a broken command would be others: LVM would run without the filter that hides the original."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for device in ("/dev/mapper/3600140500000000000000000000000a1", "/images/my own clone.img"):
        disk = refusals.ROWS[name].make().disk
        disk.name = device
        found = engine.inspect(disk, command_words("relvmoiscsi resignature", device))
        problems = [*found.defects, *filter(None, [found.problem])]
        steps = [command for each in problems for command in each.commands]
        text = "\n".join(printable(str(each)) for each in problems)

        answer = output.Answer({}, text, next_steps=steps)
        lines = answer.for_people(sys.stdout).split("\n")

        after = next((number for number, line in enumerate(lines) if line.startswith("next: ")), len(lines))
        shown = re.findall("`([^`]*)`", "\n".join(lines[:after])) + [line[6:] for line in lines[after:]]
        told = re.findall("`([^`]*)`", text) + steps
        assert [shlex.split(each) for each in shown] == [shlex.split(each) for each in told]
        assert not any("/dev/CLONE" in step for step in steps)


COMMAND = shell_command("relvmoiscsi check", "my clone.img")


@pytest.mark.parametrize(
    "step, told",
    [
        (COMMAND, ["done.", "next: relvmoiscsi check 'my clone.img'"]),
        ("Take the copy again.", ["done.", "Take the copy again."]),
        ("", ["done."]),
    ],
)
def test_next_is_a_whole_command_and_a_sentence_is_a_part_of_the_text(step, told):
    """Each run of a command in a test is held against it too: `shell.verify`."""
    assert output.Answer({}, "done.").leading(step).for_people(None).split("\n") == told


def test_the_next_step_with_an_image_file_whose_mgt_is_damaged_is_no_command_on_another_device(command, image):
    with open(image, "r+b") as lun:
        lun.seek(shell.tree().truth.device_ranges("MGT", 0, 1)[0].offset)
        lun.write(bytes(512))

    ran = command("check", image)

    assert ran.status == 5 and "lvremove" in ran.out
    assert ran.out.splitlines()[-1] == shell.CHECK_ORIGINAL


class Utf8Terminal(Terminal):
    encoding = "utf-8"


SIZE = r"\d [KMG]iB"


@pytest.fixture
def rows_fit(monkeypatch, capsys):
    """`rows_fit("show", "x.img")`: no row is too wide on a terminal of 80 and 60 columns, and where no terminal is.

    Each has the words of the widest text in their order, so no UUID is broken; and no size of a table is.
    """

    def shown(words, columns, is_terminal):
        stream = Utf8Terminal() if is_terminal else io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", columns) if columns else patch.delenv("COLUMNS")
            patch.setattr("sys.stdout", stream)
            cli.main(words)
        text = stream.getvalue() if is_terminal else stream.buffer.getvalue().decode("utf-8")
        return re.sub("\033\\[[0-9]*m", "", text)

    def table(text):
        return re.findall(SIZE, text.partition("\n\nVDI ")[2].partition("\n\n")[0])

    def run(*words):
        whole = shown(words, "1000", True)
        for columns, is_terminal in (("80", True), ("60", True), ("", False)):
            text = shown(words, columns, is_terminal)
            lines = [line for line in text.splitlines() if not line.startswith("next: ")]  # no line breaks a command
            assert [line for line in lines if len(line) > int(columns or 80)] == []
            assert text.split() == whole.split() and table(text) == table(whole)
        return whole

    return run


@pytest.fixture
def in_directory(tmp_path, monkeypatch):
    """A path in a row is as long as it is."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.states("name", few=2)
@pytest.mark.parametrize("name", [*golden.NAMES, *golden.LIVE_NAMES])
def test_the_rows_of_each_golden_lun_fit_the_terminal_and_80_columns_elsewhere(rows_fit, in_directory, name):
    load = golden.load if name in golden.NAMES else golden.load_live
    load(name).disk.to_file("x.img")

    assert "VDI " in rows_fit("show", "x.img")
    rows_fit("check", "x.img")
    assert "would become" in rows_fit("resignature", "x.img", "-n", "--sr-uuid", NEW)


def test_the_rows_of_each_run_fit_the_terminal_and_80_columns_elsewhere(
    rows_fit, in_directory, command, committed, original
):
    assert "would become" in rows_fit("recover", "clone.img", "-n")
    rows_fit("show", "clone.img")
    assert command("recover", "clone.img", "--yes").status == 0
    for words in (["show"], ["check"], ["check", "--original", "original.img"], ["undo", "-n"]):
        verb, *options = words
        rows_fit(verb, "clone.img", *options)
    whole = rows_fit("map", "--device", "clone.img")
    rows_fit("map", "--sr", NEW, *re.findall(UUID, whole))


@pytest.mark.parametrize("columns", [80, 60])
def test_a_chain_of_any_length_fits(columns):
    vdis = [{"vdi": NEW, "parent": None}, *({"vdi": str(at), "parent": str(at - 1)} for at in range(1, 99))]
    vdis[1]["parent"] = NEW
    drawn = tree(vdis, (columns - len(NEW)) // 3)
    assert max(len(prefix) for prefix, _vdi in drawn) + len(NEW) in (columns, columns - 1, columns - 2)


@pytest.mark.parametrize("variable, columns", [("132", 132), ("", 80), ("wide", 80), ("0", 80), ("-5", 80), ("3", 20)])
def test_lines_have_the_width_of_columns_and_elsewhere_80(monkeypatch, variable, columns):
    monkeypatch.setenv("COLUMNS", variable)

    assert [width(stream) for stream in (io.StringIO(), None)] == [columns] * 2


@pytest.mark.parametrize("columns", ["-5", "1", "3", "20"])
def test_a_width_that_nobody_can_read_is_no_bug(command, monkeypatch, image, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["show", image], ["resignature", image, "-n"], ["check", "--help"], ["--help"]):
        ran = command(*words)
        assert ran.status == 0 and ran.out


@example(text="'``````''```````````'", columns=1)
@given(text=st.text(alphabet="ab  `'", max_size=60), columns=st.integers(-9, 40))
def test_each_text_has_lines_on_each_terminal(text, columns):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        lines = wrapped(text, width(None))

    assert re.sub(r"[\s']", "", lines) == re.sub(r"[\s']", "", text)
    if "'" not in text:  # a long text in quotes becomes several
        assert lines.split() == text.split()


def test_errors_are_wrapped_on_a_terminal_and_nowhere_else(command, monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "60")
    missing = ["show", "/no/such/device/of/that/name/here/or/anywhere"]
    assert command(*missing).err.count("\n") == 1
    monkeypatch.setattr("sys.stderr", terminal)
    assert cli.main(missing) == 3 and terminal.getvalue().count("\n") > 1
    for words in (["check"], ["pool", "lun"]):
        shown = Utf8Terminal()
        monkeypatch.setattr("sys.stderr", shown)
        with pytest.raises(SystemExit):
            cli.main(words)
        text = re.sub("\033\\[[0-9]*m", "", shown.getvalue())
        assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_has_colours_unless_a_person_wants_none(monkeypatch, terminal, name, value):
    for each in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(each, raising=False)
    assert painted(terminal, "next:", BOLD) == "\033[1mnext:\033[0m"
    assert painted(io.StringIO(), "next:", BOLD) == "next:"
    monkeypatch.setenv(name, value)
    assert painted(terminal, "next:", BOLD) == "next:"


def test_errors_are_red_and_headings_bold(monkeypatch, terminal):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)

    output.say("It failed.", output.RED)
    output.say("note: it goes on.")
    monkeypatch.setenv("COLUMNS", "40")
    text = "next:\n  xe vm-start\nNAME  SIZE\nweb  1 GiB\nThe last extent ends in the middle of:\n  x"
    text += "\nThe disk ends before the last one of these:\nthe copy of it and all: it is truncated."
    assert output.Answer({}, text).for_people(sys.stdout) == (
        "\033[1mnext:\033[0m\n  xe vm-start\n\033[1mNAME  SIZE\033[0m\nweb  1 GiB\n"
        "\033[1mThe last extent ends in the middle of:\033[0m\n  x\n"
        "\033[1mThe disk ends before the last one of\033[0m\n\033[1m  these:\033[0m\n"
        "the copy of it and all: it is truncated."
    )
    assert terminal.getvalue() == "\033[31mrelvmoiscsi: It failed.\033[0m\nrelvmoiscsi: note: it goes on.\n"


def test_a_line_of_a_sentence_that_ends_with_a_colon_is_no_heading(monkeypatch, terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", terminal)
    text = "note: The last one ends before the end: the copy is truncated."
    assert output.Answer({}, text).for_people(sys.stdout).split("\n")[0] == "note: The last one ends before the end:"


@pytest.mark.parametrize("where", ["parser.make_parser", "running.run_command"])
def test_ctrl_c_outside_of_the_work_is_no_traceback(command, monkeypatch, where):
    """While modules are imported, and while the result of the work is printed."""

    def pressed(*_words):
        raise KeyboardInterrupt

    monkeypatch.setattr("relvmoiscsi.cli." + where, pressed)
    for words in (["/dev/sdc"], ["--chap-file", "f", "iscsi://h/iqn.2026-01.example:a/1"]):
        ran = command("show", *words)
        said = "relvmoiscsi: Interrupted. Nothing was written. Repeat the command.\n"
        assert (ran.status, ran.out, ran.err) == (output.EXIT_INTERRUPTED, "", said)


def test_a_command_to_copy_has_the_login_of_a_url_and_of_no_path():
    """`check` of a path with the URL of its original: the command on the path alone would refuse the option."""
    lun = "iscsi://h/iqn.2026-01.example:a/1"
    arguments = make_parser(["check"]).parse_args(["check", "/dev/sdc", "--original", lun, "--chap-file", "f"])
    check = CheckCommand(arguments)
    assert check.shell_command("relvmoiscsi resignature", "/dev/sdc") == "relvmoiscsi resignature /dev/sdc"
    assert check.shell_command("relvmoiscsi check", lun) == f"relvmoiscsi check --chap-file f {lun}"
    both = f"relvmoiscsi check --original {lun} --chap-file f /dev/sdc"
    assert check.shell_command("relvmoiscsi check", "/dev/sdc", original=lun) == both


# --- the bar


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def bar(terminal, clock):
    return Bar(terminal, clock)


def last(terminal):
    """The line as it stands."""
    return terminal.getvalue().split("\r")[-1]


def test_it_shows_what_is_done_and_how_long_the_rest_takes(terminal, clock, bar):
    """A shorter line leaves nothing of the longer one; and work that begins anew has a line and a time of its own."""
    for _ in range(2):
        bar(0, 8 * GIB)
        clock.now += 60
        bar(2 * GIB, 8 * GIB)
        long = last(terminal)
        assert long == "  [" + 10 * "#" + 30 * " " + "] 2 GiB of 8 GiB, 3 min left"
        bar(8 * GIB, 8 * GIB)
        assert last(terminal).rstrip() == "  [" + 40 * "#" + "] 8 GiB of 8 GiB"
        assert last(terminal).endswith("\n") and len(last(terminal).rstrip("\n")) == len(long)
    assert terminal.getvalue().count("\n") == 2


@pytest.mark.parametrize("columns", [80, 40, 20])
def test_it_stays_in_its_line(terminal, clock, bar, monkeypatch, columns):
    """Behind the end of a line, each further drawing would scroll the terminal."""
    monkeypatch.setenv("COLUMNS", str(columns))
    bar(0, 500 * GIB)
    clock.now += 3600
    bar(102 * GIB + GIB // 2, 500 * GIB)
    assert len(last(terminal)) < columns and "GiB of" in last(terminal)


def test_it_is_not_drawn_more_often_than_anybody_can_see(terminal, clock, bar):
    for done in range(1000):
        bar(done, 1000)
        clock.now += 0.01
    assert terminal.getvalue().count("\r") < 60


def test_the_line_ends_where_the_work_fails(terminal, bar):
    with pytest.raises(ValueError), bar:
        bar(1, 10)
        raise ValueError
    assert terminal.getvalue().endswith("\n")


def test_a_terminal_that_goes_away_does_not_stop_the_work(terminal, clock, bar):
    def gone(_text):
        raise OSError(5, "Input/output error")

    bar(0, 8 * GIB)
    terminal.write = gone
    clock.now += 60
    with bar:
        bar(2 * GIB, 8 * GIB)
        bar(8 * GIB, 8 * GIB)


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_shown_where_nobody_looks_or_of_nothing(stream, terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream)
    with Bar(stream) as unseen, Bar(terminal) as bar:
        unseen(1, 10)
        unseen(10, 10)
        bar(0, 0)
    assert terminal.getvalue() == "" and (stream is None or stream.getvalue() == "")


@pytest.mark.parametrize("limit, words", [(120, ", at most 2 min"), (None, "")])
def test_a_long_wait_says_what_for_and_how_long_at_most(monkeypatch, terminal, limit, words):
    said = threading.Event()
    terminal.flush = said.set
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(output, "ESTIMATE_SECONDS", 0)

    with output.waiting("the answer of 10.0.0.1:3260", limit):
        assert said.wait(60)

    assert terminal.getvalue() == f"relvmoiscsi: Waiting for the answer of 10.0.0.1:3260{words}.\n"


def test_a_short_wait_and_a_wait_without_a_terminal_say_nothing(terminal, monkeypatch):
    monkeypatch.setattr(output, "ESTIMATE_SECONDS", 3600)
    for stream in (terminal, io.StringIO(), None):
        monkeypatch.setattr("sys.stderr", stream)
        with pytest.raises(ValueError), output.waiting("nothing", 60):
            raise ValueError
        assert stream is None or stream.getvalue() == ""


@pytest.mark.parametrize(
    "seconds, words",
    [(59.4, "59 s"), (60, "1 min"), (3599, "1 h 0 min"), (11100, "3 h 5 min")],
)
def test_a_time_is_told_in_its_two_largest_units(seconds, words):
    assert human_time(seconds) == words


STRANGE = "\x1b[2J\u202e\x9b31m"


def test_what_a_lun_says_reaches_no_terminal_with_control_characters(monkeypatch, capsys):
    """By the log with its tracebacks, by an error, by the traceback of a bug, and by an answer."""

    def run(arguments):
        logging.getLogger("relvmoiscsi.test").warning("%s was changed\nrelvmoiscsi: all is well", STRANGE)
        try:
            raise KeyError("x\n" + STRANGE)
        except KeyError as problem:
            logging.getLogger("relvmoiscsi.test").warning("failed", exc_info=True)
            output.print_result(output.Answer({}, f"a name: {STRANGE}\nand a second line").for_people(sys.stdout))
            output.tell(f"Rewrite {STRANGE}?")
            raise ValueError(STRANGE) from problem

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    words = argparse.Namespace(verbose=0, run=run, json=False, usage=None)
    assert running.run_command(words, "", "", lambda: None) == output.EXIT_BUG
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert "\\x1b[2J\\u202e\\x9b31m" in text
        assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert "was changed\\nrelvmoiscsi: all is well" in said.err
    assert "and a second line" in said.out.splitlines()
    assert sum("Traceback" in line for line in said.err.splitlines()) == 3


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_line_of_the_log_fits_a_terminal_and_is_one_line_elsewhere(terminal, monkeypatch, is_shown):
    monkeypatch.setattr(sys, "stderr", terminal if is_shown else io.StringIO())
    monkeypatch.setenv("COLUMNS", "60")
    said = "Another host may have begun the run on %s: waiting %d seconds for its last write."
    record = logging.makeLogRecord({"msg": said, "args": ("clone.img", 12)})

    lines = output.LogFormatter("relvmoiscsi: %(message)s").format(record).split("\n")

    assert " ".join(line.strip() for line in lines) == "relvmoiscsi: " + said % ("clone.img", 12)
    assert (len(lines) == 1, max(map(len, lines)) <= 60) == (not is_shown, is_shown)
