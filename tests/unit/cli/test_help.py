# SPDX-License-Identifier: LGPL-2.1-only
"""What the command says about itself."""

import argparse
import json
import re
import sys

import pytest

from kit.shell import TOP, tree
from relvmoiscsi import __version__, errors
from relvmoiscsi.cli import output, overview
from relvmoiscsi.cli.parser import make_parser, separated

LUN_COMMANDS = ("show", "check", "resignature", "recover", "undo")
COMMANDS = (*LUN_COMMANDS, "map", "doctor", "settings", "direct", "pool")
EVERY_OF_GROUPS = [f"{group} {name}" for group, names in overview.GROUPS.items() for name in names]


def statuses():
    """Every exit status there is, with the class of errors it belongs to."""
    families = [errors.RelvmoiscsiError] + errors.RelvmoiscsiError.__subclasses__()
    return {family.exit_status for family in families} | {output.EXIT_NOT_PRINTED, output.EXIT_INTERRUPTED}


@pytest.mark.parametrize("name", ["", *overview.COMMANDS, *EVERY_OF_GROUPS])
def test_help_fits_60_and_80_columns(command, monkeypatch, name):
    """But an example is a command, which a person copies, and stays whole; it fits 80 columns."""
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        wide = [line for line in command(*name.split(), "--help").out.splitlines() if len(line) > columns]
        assert [line for line in wide if columns == 80 or not line.startswith(("  relvmoiscsi ", "  xe "))] == []


@pytest.mark.parametrize("columns", [40, 60, 79, 80])
def test_the_overview_is_wrapped_once(command, monkeypatch, columns):
    """Its lines of 80 columns were wrapped again, so that each second line had a word or two."""
    whole = command("--help").out.split("\n\n")[1]
    monkeypatch.setenv("COLUMNS", str(columns))
    about = command("--help").out.split("\n\n")[1]
    lines = about.split("\n")
    assert about.split() == whole.split()
    assert all(len(line) <= columns < len(f"{line} {below.split()[0]}") for line, below in zip(lines, lines[1:]))


@pytest.mark.parametrize("name", [*COMMANDS, "direct add", "direct remove", "direct list"])
def test_help_of_each_command_has_an_example_of_it(command, name):
    ran = command(*name.split(), "--help")
    assert ran.status == 0 and not ran.err
    device = " /dev/" if name in LUN_COMMANDS else ""
    assert f"example:\n  relvmoiscsi {name}{device}" in ran.out and "--json" in ran.out
    assert all(ord(char) < 128 for char in ran.out)


def test_the_status_of_a_missing_program_is_told_by_the_pages(command):
    """It was explained as a failure of another program: a person looked at the login, which nobody tried."""
    page = re.split(r"\n(?=\*\*[0-9]+\*\*\n)", (TOP / "docs/command.rst").read_text(encoding="utf-8"))
    (row,) = [text for text in page if text.startswith("**6**\n")]
    assert "or a program is not installed" in row and "relvmoiscsi-pool" in row
    (told,) = re.findall("^  6 +(.*)$", command("--help").out, re.MULTILINE)
    assert "or is missing" in told


def test_the_missing_package_of_a_command_is_a_missing_program(monkeypatch):
    monkeypatch.setitem(sys.modules, "relvmoiscsi.pool.commands.pool_command", None)
    given = make_parser(["pool"]).parse_args(["pool", "attach", "--all", "--yes"])
    with pytest.raises(errors.NotInstalled, match="yum install") as caught:
        given.run(given)
    assert caught.value.exit_status == 6


def test_help_lists_the_commands_and_every_exit_status(command):
    page = command("--help").out
    assert re.findall(r"^    ([a-z]+)\s", page, re.MULTILINE) == list(COMMANDS)
    told = re.findall(r"(?:^|  )(\d+) ", page.split("exit status:")[1], re.MULTILINE)
    rows = re.findall(r"^\*\*(\d+)\*\*$", (TOP / "docs/command.rst").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(number) for number in told} == {int(row) for row in rows} == statuses() | {0}
    assert all(ord(char) < 128 for char in page)


def test_the_overview_has_the_usage_the_options_and_the_commands_of_the_parser(command):
    """It is printed without the parser, which takes as long to import as the interpreter to start."""
    parser, page = make_parser(), command("--help").out

    assert page.startswith(parser.format_usage())
    assert re.findall(r"^  (-.*?)  ", page, re.MULTILINE) == [
        ", ".join(action.option_strings) + (f" {action.metavar}" if action.metavar else "")
        for action in parser._actions
        if action.option_strings
    ]
    (commands,) = (action for action in parser._actions if not action.option_strings)
    told = dict(re.findall(r"^    ([a-z]+)\s+(.+)$", page, re.MULTILINE))
    assert told == {action.dest: action.help for action in commands._choices_actions}
    assert page == command("-h").out == command("--help", "--help").out == parser.format_help()


@pytest.mark.parametrize("words", ["resign x", "show", "show x --yes", "resignature x --map", "show x --jso"])
def test_an_unknown_word_is_status_2_with_the_usage(command, words):
    ran = command(*words.split())
    assert ran.status == 2 and ran.err.startswith("usage: relvmoiscsi") and not ran.out


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("pool", "pool"),
        ("direct", "direct"),
        ("map", "map"),
        ("map foo", "map"),
        ("pool attach", "pool attach"),
        ("pool clone x", "pool clone"),
        ("pool restore", "pool restore"),
        ("resignature x --vdi 7ee28c74-464e-4cca-9e34-67690e352b90", "resignature"),
        ("show x --chap-file f", "show"),
        ("show x y --chap-file f", "show"),
        ("show iscsi://h --initiator-name mine", "show"),
        ("direct add mail 1", "direct add"),
        ("direct add sda 36001405993c87c37fa84d02b7fa62c40", "direct add"),
        ("pool luns --pool root@xs1", "pool luns"),
        ("pool luns --pool http://xs1 --ca f", "pool luns"),
    ],
)
def test_words_that_the_parser_takes_and_the_command_does_not_are_2_with_its_usage(command, words, usage):
    ran, facts = command(*words.split()), command(*words.split(), "--json")
    assert ran.status == facts.status == 2 and not ran.out
    assert ran.err.startswith(f"usage: relvmoiscsi {usage} [-h]") and ran.err.count("usage: ") == 1
    assert ran.err.splitlines()[-1].startswith("relvmoiscsi: ") and "usage: " not in facts.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("resignature {image} --yes --map {map}", "is not valid JSON"),
        ("resignature {image} --yes --map {map}.not", "No such file or directory"),
        ("resignature {image} --yes --sr-uuid {sr}", "is already on the LUN"),
        ("resignature {image}", "No terminal to confirm on. Nothing was written. Use --yes, or --dry-run"),
        ("resignature {image} --json", "With --json nobody is asked. Nothing was written. Use --yes, or --dry-run"),
        ("resignature {image} --yes --vdis one --vdi {base}", "is the parent of other VDIs"),
        ("check {image} --original {image}", "are the same device"),
        ("pool secrets --remove --pool xs1", "No terminal to confirm on."),
        ("pool discard x --pool xs1", "No terminal to confirm on."),
        ("pool luns --pool xs1", "The password is missing."),
        ("pool luns --pool xs1 --password-file {map}.not", "cannot be read"),
        ("pool luns --target t --chap-user u --chap-password-file {map}.not", "cannot be read"),
        ("pool secrets --chap-password-file {map}.not", "cannot be read"),
        ("pool luns --log {map}/log", "cannot be opened"),
    ],
)
def test_what_is_wrong_in_a_file_or_on_the_lun_is_2_without_a_usage(command, image, tmp_path, words, says):
    chosen = tmp_path / "map.json"
    chosen.write_text('{"uuids": }')
    ids = {name: tree().truth.uuids[name] for name in ("sr", "base")}
    ran = command(*words.format(image=image, map=chosen, **ids).split())
    assert ran.status == 2 and says in ran.err and "usage: " not in ran.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("show {url}", "show: error: argument DEVICE: "),
        ("show x {url}", "show: error: argument DEVICE: "),
        ("resignature --dry-run {url}", "resignature: error: argument DEVICE: "),
        ("check x --original {url}", "check: error: argument --original: "),
        ("map --device {url}", "map: error: argument --device: "),
    ],
)
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("iscs://10.0.0.1", ": a URL begins with iscsi:// and two slashes; a file of this name begins with ./"),
        ("iscsi://10.0.0.1:99999/iqn.a/0", "The URL names no portal, expected iscsi://"),
    ],
)
def test_a_url_that_is_refused_is_2_with_the_usage_of_the_command(command, words, named, url, says):
    ran = command(*words.format(url=url).split())
    assert ran.status == 2 and not ran.out and ran.err.startswith(f"usage: relvmoiscsi {words.split()[0]} ")
    assert ran.err.splitlines()[-1].startswith(f"relvmoiscsi {named}") and says in ran.err


@pytest.mark.parametrize("option", ["--sr-uuid", "--vdi", "--without"])
def test_a_word_that_is_no_uuid_is_2_and_the_option_is_named(command, option):
    ran = command("resignature", "x", option, "foo")
    assert ran.status == 2 and ran.err.startswith("usage: relvmoiscsi resignature ")
    assert ran.err.endswith(f"error: argument {option}: 'foo' is not a UUID of 36 characters.\n")


DASH = "A name that begins with a dash stands behind `--`."
VALUE = "A value that begins with a dash stands behind `=`: {}=..."


@pytest.mark.parametrize(
    ("words", "usage", "near"),
    [
        ("resigature x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi resignature`?"),
        ("resig x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi resignature`?"),
        ("attach x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi pool attach`?"),
        ("luns", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi pool luns`?"),
        ("clone x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi pool clone`?"),
        ("lnus", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi pool luns`?"),
        ("statsu x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show DEVICE`?"),
        ("pool lsit", "relvmoiscsi pool [-h]", "Did you mean `relvmoiscsi pool luns`?"),
        ("resignature -c.img", "relvmoiscsi resignature [-h]", "DEVICE. -c.img is no option. " + DASH),
        ("undo x -c.img", "relvmoiscsi undo [-h]", "unrecognized arguments: -c.img " + DASH),
        ("pool clone -web --all", "relvmoiscsi pool clone [-h]", "-web is no option. " + DASH),
        ("undo --vdis one x", "relvmoiscsi undo [-h]", "unrecognized arguments: --vdis\n"),
        ("pool rescue x y --vm -helper", "relvmoiscsi pool rescue [-h]", "one argument. " + VALUE.format("--vm")),
        ("pool rescue x y --vm --yes", "relvmoiscsi pool rescue [-h]", "argument --vm: expected one argument\n"),
        ("pool lun", "relvmoiscsi pool [-h]", "Did you mean `relvmoiscsi pool luns`?"),
        ("verify x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi check DEVICE`? The commands"),
        ("revert x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi undo DEVICE`? The commands"),
        ("hlep", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi help`?"),
        ("--yes undo x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi undo --yes`?\n"),
        ("--dryrun resignature x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi resignature --dry-run`?\n"),
        ("-n resignature x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi resignature -n`?\n"),
        ("pool --dryrun attach x", "relvmoiscsi pool [-h]", "Did you mean `relvmoiscsi pool attach --dry-run`?\n"),
        ("settings --set x", "relvmoiscsi settings [-h]", "unrecognized arguments: --set\n"),
        ("pool attach --nix x", "relvmoiscsi pool attach [-h]", "unrecognized arguments: --nix\n"),
        ("pool luns -y", "relvmoiscsi pool luns [-h]", "unrecognized arguments: -y\n"),
        ("resignature -z", "relvmoiscsi resignature [-h]", "DEVICE. -z is no option.\n"),
        ("show x -json", "relvmoiscsi show [-h]", "Did you mean --json?\n"),
        ("check -- x --original y", "relvmoiscsi check [-h]", "Options stand before `--`"),
        ("resignature x --dryrun", "relvmoiscsi resignature [-h]", "Did you mean --dry-run?"),
        ("pool luns --taget=y", "relvmoiscsi pool luns [-h]", "Did you mean --target?"),
        ("direct ad", "relvmoiscsi direct [-h]", "Did you mean `relvmoiscsi direct add`?"),
        ("undo x --no-such-thing", "relvmoiscsi undo [-h]", ""),
        ("pool attach --nix", "relvmoiscsi pool attach [-h]", "error: unrecognized arguments: --nix\n"),
        ("check x --orignal original.img", "relvmoiscsi check [-h]", "arguments: --orignal Did you mean --original?"),
        ("compare a b", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi check CLONE --original ORIGINAL`?"),
        ("diff a b", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi check CLONE --original ORIGINAL`?"),
        ("info x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show DEVICE`?"),
        ("status x", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show DEVICE`?"),
        ("/dev/sdc", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show /dev/sdc`? The commands"),
        ("iscsi://a/b/0", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show iscsi://a/b/0`? The commands"),
        ("list", "relvmoiscsi [-h]", "Did you mean `relvmoiscsi show DEVICE`? Did you mean `relvmoiscsi direct list`?"),
        ("check x y", "relvmoiscsi check [-h]", "This command takes one DEVICE only. Did you mean --original?"),
        ("check x y --original z", "relvmoiscsi check [-h]", "This command takes one DEVICE only.\n"),
        ("undo x y", "relvmoiscsi undo [-h]", "This command takes one DEVICE only.\n"),
        ("xyzzy", "relvmoiscsi [-h]", "The commands: show, check,"),
    ],
)
def test_a_usage_error_has_the_usage_of_its_command_and_what_was_meant(command, words, usage, near):
    ran = command(*words.split())
    assert ran.status == 2 and ran.err.startswith("usage: " + usage) and not ran.out
    assert near.strip() in " ".join(ran.err.split()) and ran.err.count("Did you mean") == near.count("Did you mean")
    assert ran.err.endswith(near) or not near.endswith("\n")
    assert ("one DEVICE" in ran.err) == ("one DEVICE" in near)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("help", "--help"),
        ("help help", "--help"),
        ("help version", "--version"),
        ("help show", "show --help"),
        ("help pool attach", "pool attach --help"),
        ("-h show", "show --help"),
        ("--help pool attach", "pool attach --help"),
        ("pool help", "pool --help"),
        ("pool help attach", "pool attach --help"),
        ("direct help", "direct --help"),
        ("version", "--version"),
        ("pool version", "--version"),
    ],
)
def test_help_and_version_may_be_words(command, words, same):
    ran = command(*words.split())
    assert ran.status == 0 and ran.out == command(*same.split()).out and ran.out


def test_short_options_are_the_long_ones(command, image):
    assert "dry run" in command("resignature", image, "-n").out
    ran = command("resignature", image, "-y", "-q")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert command("show", image, "--json", "-q").json["state"] == "resignatured"


def test_the_commands_of_groups_are_those_of_their_parsers():
    for group, names in overview.GROUPS.items():
        (commands,) = make_parser([group])._subparsers._group_actions
        (own,) = commands.choices[group]._subparsers._group_actions
        assert tuple(listed.dest for listed in own._choices_actions) == names


def test_version(command):
    assert command("--version").out == f"relvmoiscsi {__version__}\n"


def test_undo_does_not_send_people_to_an_option_that_it_does_not_have(command, image):
    said = command("undo", image).err

    assert [option for option in re.findall(r"--[a-z-]+", said) if option not in command("undo", "--help").out] == []


@pytest.mark.parametrize("words", [["show", "a\nnext: b"], ["map", "--device", "\x1b[2Ja"], ["undo", "--\x1b[2J", "x"]])
def test_a_word_with_a_control_character_is_2_and_reaches_no_terminal(command, words):
    ran = command(*words)  # which looks for control characters
    assert ran.status == 2 and "\nnext:" not in ran.err
    assert "has a control character: give a link" in ran.err or "unrecognized arguments: --\\x1b[2J\n" in ran.err


# --- options by their whole names


def every_parser(parser):
    """The parser and those of its commands, and of theirs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from every_parser(sub)


@pytest.mark.parametrize(
    "words", ["resignature /nowhere --not", "--vers", "direct list --jso", "pool discard x --with"]
)
def test_half_an_option_is_none(command, words):
    ran = command(*words.split())
    assert ran.status == 2 and f"unrecognized arguments: {words.split()[-1]}\n" in ran.err


@pytest.mark.parametrize("words", ["resignature a.img b.img", "check a.img b.img", "undo a.img b.img"])
def test_a_second_device_is_refused_with_the_reason(command, words):
    ran = command(*words.split())
    assert ran.status == 2 and "unrecognized arguments: b.img\nThis command takes one DEVICE only.\n" in ran.err


def test_no_parser_takes_half_an_option():
    parsers = list(every_parser(make_parser()))

    assert len(parsers) > 20
    assert [parser.prog for parser in parsers if parser.allow_abbrev] == []


@pytest.mark.parametrize(
    "words",
    [
        ["SR", "-a mail", "-1", "--isolated", "n"],
        ["--isolated", "n", "SR", "-a mail", "-1"],
        ["SR", "--isolated=n", "-a mail", "--", "-1"],
        ["--isolated", "n", "--", "SR", "-a mail", "-1"],
    ],
)
def test_names_that_begin_with_a_dash_keep_their_order_and_need_the_two_dashes_only_where_they_may_be_options(words):
    given = make_parser(["pool"]).parse_args(separated(["pool", "clone", *words]))
    assert (given.sr, given.vms, given.isolated) == ("SR", ["-a mail", "-1"], "n")


def test_what_stands_behind_the_two_dashes_stays_as_it_is():
    given = make_parser(["pool"]).parse_args(separated(["pool", "clone", "-vv", "--", "SR", "-vv", "--all"]))
    assert (given.sr, given.vms, given.verbose, given.all) == ("SR", ["-vv", "--all"], 2, False)


@pytest.mark.parametrize("words, level", [(["-v"], 1), (["-vv"], 2), (["-vvv"], 3), (["-v", "-v"], 2)])
def test_several_v_may_be_one_word(words, level):
    assert make_parser().parse_args(separated(["show", *words, "x"])).verbose == level


@pytest.mark.parametrize("words", ["version --json", "--version --json", "help version --json"])
def test_the_version_is_json_for_a_script(command, words):
    ran = command(*words.split())

    assert (ran.status, ran.err, ran.json) == (0, "", {"version": __version__})
    assert json.loads(ran.out)["command"] == "version"
