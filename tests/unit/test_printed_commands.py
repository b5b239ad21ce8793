# SPDX-License-Identifier: LGPL-2.1-only
"""A command in a message can be copied to a shell: its values are quoted, and none of them becomes an option.

A name that others give (of an SR, a VDI, a VM, a host, a network) is in quotes, so that no line begins inside it. So is
a word that is no name of what it should name. A path, a URL, a UUID and a SCSIid are bare in a sentence, as the person
gave them: only a command has them as a shell reads them.

The tables below are the rules; the code is read as a syntax tree and not imported.
"""

import ast
import re
from functools import lru_cache

import pytest

from kit.own_source import modules_beside, nodes_of, own_modules

#: The ways of a word into a command that a message prints, to be copied to a shell.
COMMAND_MAKERS = ("shell_command", "command_words")
QUOTES = ("shell_command", "quoted")
#: Who prints a whole command as others have given it.
PRINTS_AS_GIVEN = {
    "errors": "the words of a program that has run",
    "resignature.reading.way_out": "the words of the request; words that the module checks",
}
#: A command without backticks: a program of the host or of ours, with all that stands behind it in the sentence.
COMMAND = re.compile(
    r"(?:^|[\s(])(?:xe [a-z]+-[a-z-]+"
    "|relvmoiscsi (?:check|direct|doctor|map|pool|recover|resignature|settings|show|undo)"
    "|(?:multipath|iscsiadm|dmsetup|udevadm|chmod|chown|kill|rm|systemctl|lv[a-z]+|vg[a-z]+|pv[a-z]+) -)"
    r"(?:[^`.;\n]|\.(?! ))*\Z"
)
#: A command that nobody can paste: a word in capitals stands for a value, or all words but the name are missing.
RIDDLE = re.compile(r"`(?:relvmoiscsi|xe) [^`]*\b[A-Z]{2,}\b[^`]*`|\((?:xe|relvmoiscsi) [a-z][a-z -]*\)|\(--[a-z]+\)")
#: What stands in place of a value: of `str.format`, and of the operator %.
PLACES = re.compile(r"\{[\w.\[\]!:,]*\}|%[-+ #0-9.]*[srdax]")
#: Where a value between backticks is known to need no quotes.
NEEDS_NO_QUOTES = {
    "ansible.plugins.module_utils.client": "the name of an option",
    "cli.parser": "the version of this package, in the name of a file",
    "host.settings": "a constant, of a configuration file",
    "wording": "the names of options",
}
#: Fields of the records of a pool and of a LUN, and of what is made of them, that a stranger has written.
LABEL_FIELDS = ("name_label", "sr_name_label", "vdi_name", "vm_name")
NAME_FIELDS = ("name", *LABEL_FIELDS)  #: a `name` is that of a device elsewhere than in `pool` and `report`
#: Calls whose result is no bare name.
TAKES_NAMES = ("repr", "said", "shell_command")


#: A command of xe that takes away what the pool has, and what it is about. A person may run it without a second look.
TAKES_AWAY = re.compile(r"xe (?:vm|vdi|sr|snapshot|template)-(?:destroy|forget|uninstall)")
#: Who makes such a command, and knows that the object is of relvmoiscsi and nothing more, or that nobody uses it.
MAY_TAKE_AWAY = {
    "doctor.pool": "an SR of a type of the product",
    "lun.users": "an SR that no live host has attached",
    "pool.attach_plan": "an SR that no host has attached",
    "pool.vms.inventory": "a clone that a run has made, without a disk of its own",
    "pool.commands.restore_command": "a disk that this very run has replaced",
}


class Module:
    """What the rules ask of a module of the package: line numbers; its tree is not kept.

    quoted_by_hand: of texts with a command and a value in it that does not come from `wording`
    riddles: of texts with a command that nobody can paste
    mixed_commands: of commands whose own words are no literal
    next_lines: of texts that say what is next
    bare_names: of texts with a name of a stranger that is not in quotes
    quoted_paths: of sentences with a name as a shell reads it
    takes_away: of commands that destroy or forget an object of the pool
    """

    def __init__(self, name, source):
        self.name, nodes = name, nodes_of(source)
        self.quoted_by_hand = list(quoted_by_hand(nodes, name in PRINTS_AS_GIVEN))
        self.riddles = [node.lineno for node in nodes if RIDDLE.search(constant(node))]
        self.mixed_commands = list(mixed_commands(nodes))
        self.next_lines = [node.lineno for node in nodes if re.search(r"\bnext\b.*: *$|\bnext: ", constant(node))]
        fields = NAME_FIELDS if name.startswith(("pool.", "report.")) else LABEL_FIELDS
        self.bare_names = sorted(set(bare_names(nodes, fields)))
        self.quoted_paths = list(quoted_paths(nodes))
        made = (node for node in nodes if name_of_call(node) in COMMAND_MAKERS and node.args)
        self.takes_away = [node.lineno for node in made if TAKES_AWAY.match(constant(node.args[0]))]


@lru_cache(maxsize=None)
def package():
    return [Module(name, source) for name, source in [*own_modules(), *modules_beside()]]


def of_all(rule):
    """What a rule finds in the modules of the package, and in those beside it."""
    return [found for module in package() for found in rule(module)]


# --- the rules: each gives its findings in a module, as sentences


def says_next(module):
    """The word before the next step is written by the frame of the commands alone: once, and last."""
    if module.name != "cli.output":
        yield from (f"{module.name}:{line} says what is next" for line in module.next_lines)


def prints_a_command_unquoted(module):
    """A command in a message with a word that a shell may split: a path, a name, a word of a person, an id of a LUN."""
    if module.name not in NEEDS_NO_QUOTES:
        yield from (f"{module.name}:{line} prints a command without wording" for line in module.quoted_by_hand)


def prints_a_riddle(module):
    """A command in a message of `pool`, which knows the VM, the disk or the SR that the message is about."""
    if module.name.startswith("pool."):
        yield from (f"{module.name}:{line} prints a command without its words" for line in module.riddles)


def mixes_options_and_names(module):
    """A command whose own words are no literal: a name could be among them, and become an option."""
    yield from (f"{module.name}:{line} makes a command of a value" for line in module.mixed_commands)


def takes_away_what_is_not_ours(module):
    """A command that destroys or forgets: its maker asks first whether the object is ours, and nothing more."""
    for line in module.takes_away[1 if module.name in MAY_TAKE_AWAY else 0 :]:
        yield f"{module.name}:{line} makes a command that takes away a VM, a VDI or an SR"


def prints_a_name_bare(module):
    """A name in a record of a pool or of a LUN is in quotes, as `!r` writes them: no line begins inside the name."""
    yield from (f"{module.name}:{line} has a name without quotes in a text" for line in module.bare_names)


def quotes_a_path(module):
    """A path in a sentence is as the person gave it. A command has it as a shell reads it."""
    yield from (f"{module.name}:{line} has a path in quotes outside of a command" for line in module.quoted_paths)


def quoted_paths(nodes):
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            said = ""
            for part in node.values:
                if name_of_call(getattr(part, "value", None)) == "quoted" and not in_command(said):
                    yield node.lineno
                said += constant(part) or "x"


def bare_names(nodes, fields):
    for node in nodes:
        if isinstance(node, ast.FormattedValue) and node.conversion != ord("r") and has_name(node.value, fields):
            yield node.value.lineno
        is_list = name_of_call(node) == "join" and constant(node.func.value) != ""
        if is_list and any(has_name(each, fields) for each in node.args):
            yield node.lineno


def has_name(node, fields):
    """Has the expression a field with a name, outside the arguments of TAKES_NAMES?"""
    if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
        return False
    if name_of_call(node) in TAKES_NAMES or name_of_call(node) == "map" and getattr(node.args[0], "id", "") == "repr":
        return False
    key = getattr(node, "slice", None)
    key = constant(key) or constant(getattr(key, "value", None))  # an ast.Index before Python 3.9
    is_name = key in fields or isinstance(node, ast.Attribute) and node.attr in fields
    return is_name or any(has_name(each, fields) for each in ast.iter_child_nodes(node))


def mixed_commands(nodes):
    """The lines of the calls; a function with the name of a maker hands on the literal of its own caller."""
    makers = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in COMMAND_MAKERS]
    handed_on = {id(node) for maker in makers for node in ast.walk(maker)}
    for node in nodes:
        if isinstance(node, ast.Call) and name_of_call(node) in COMMAND_MAKERS and id(node) not in handed_on:
            own = node.args[0] if node.args else node
            if not all(map(constant, [own.body, own.orelse] if isinstance(own, ast.IfExp) else [own])):
                yield node.lineno


def quoted_by_hand(nodes, prints_as_given=False):
    """The lines of texts with a command and a value in it that does not come from `wording`."""
    known = names_of_commands(nodes)
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            said = ""
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    is_whole = said.endswith("`") and name_of_call(part.value) == "quoted" and not prints_as_given
                    if in_command(said) and (is_whole or not (is_quoted(part.value) or id(part.value) in known)):
                        yield node.lineno
                    said += "x"
                else:
                    said += constant(part)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if in_command(last_text(node.left)) and not is_quoted(node.right) and not constant(node.right):
                yield node.lineno
        elif id(node) not in parts:
            said = constant(node)
            if any(in_command(said[: place.start()]) for place in PLACES.finditer(said)):
                yield node.lineno


def in_command(said):
    """Is the end of this text within a command?"""
    return said.count("`") % 2 == 1 or COMMAND.search(said) is not None


def last_text(node):
    """The literal text at the end of an expression, with an x for each value."""
    if isinstance(node, ast.BinOp):
        return last_text(node.left) + last_text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(constant(part) or "x" for part in node.values)
    return constant(node)


def is_quoted(value):
    return name_of_call(value) in QUOTES


def name_of_call(value):
    called = value.func if isinstance(value, ast.Call) else None
    return getattr(called, "id", getattr(called, "attr", None))


def names_of_commands(nodes):
    """The ids of the nodes that name a command: in their function, the name has no other value."""
    found = set()
    for function in nodes:
        if isinstance(function, ast.FunctionDef):
            values, inside = {}, list(ast.walk(function))
            for node in inside:
                if isinstance(node, ast.Assign):
                    target, value = node.targets[0], node.value
                    both = [target, value]
                    are_tuples = all(isinstance(each, ast.Tuple) for each in both)
                    pairs = zip(target.elts, value.elts) if are_tuples else [both]
                    for one, given in pairs:
                        values.setdefault(getattr(one, "id", None), []).append(is_quoted(given))
            names = {name for name, are_quoted in values.items() if all(are_quoted)}
            found |= {id(node) for node in inside if names and isinstance(node, ast.Name) and node.id in names}
    return found


_LITERALS = {"Constant": "value", "Str": "s"}


def constant(node):
    """The text of a literal, which is an ast.Str before Python 3.8; "" for any other node."""
    found = getattr(node, _LITERALS.get(type(node).__name__, ""), "")
    return found if isinstance(found, str) else ""


# --- the package keeps the rules


def test_the_next_step_is_said_by_the_frame_alone():
    assert of_all(says_next) == []


def test_a_command_to_copy_has_one_way_into_a_message():
    assert of_all(prints_a_command_unquoted) == [] == of_all(mixes_options_and_names) == of_all(prints_a_riddle)
    assert set(NEEDS_NO_QUOTES) <= {module.name for module in package() if module.quoted_by_hand}


def test_a_name_of_a_stranger_is_in_quotes_wherever_a_text_has_it():
    assert of_all(prints_a_name_bare) == []


def test_a_path_is_bare_wherever_a_sentence_has_it():
    assert of_all(quotes_a_path) == []


def test_a_command_that_destroys_or_forgets_is_made_once_where_the_object_is_known_to_be_ours_or_unused():
    assert of_all(takes_away_what_is_not_ours) == []
    assert set(MAY_TAKE_AWAY) == {module.name for module in package() if module.takes_away}


# --- the rules notice what breaks them

UDEV = "host.disk.udev"


@pytest.mark.parametrize(
    "rule, name, source",
    [
        (says_next, "cli.novelty", "text = f'done\\nnext: {step}'"),
        (prints_a_command_unquoted, UDEV, "said = f'Run `chmod 600 {path}`.'"),
        (prints_a_command_unquoted, UDEV, "said = f'{what}. Run `xe x uuid={uuid} ' f'name={entry.name}`.'"),
        (prints_a_command_unquoted, UDEV, "said = f'  next: relvmoiscsi pool clone {shlex.quote(name)} --all'"),
        (prints_a_command_unquoted, UDEV, "said = 'Run `multipath -f {}`.'.format(name)"),
        (prints_a_command_unquoted, UDEV, "SAID = 'Run `multipath -f {0.name}`.'\ndef f(x): return SAID.format(x)"),
        (prints_a_command_unquoted, UDEV, "said = 'Run `multipath -f %s`.' % name"),
        (prints_a_command_unquoted, UDEV, "said = 'Run `multipath -f ' + name + '`.'"),
        (prints_a_command_unquoted, UDEV, "said = f'Run `{quoted(\"rm\", path)}`.'"),
        (prints_a_command_unquoted, UDEV, "def f(x):\n    do = 'rm ' + x\n    return f'Run `{do}`.'"),
        (prints_a_riddle, "pool.vms.forget", "said = 'Run `relvmoiscsi pool restore --undo VM` first.'"),
        (prints_a_riddle, "pool.vms.forget", "said = f'Destroy {name} by hand (xe vm-destroy).'"),
        (prints_a_riddle, "pool.vms.forget", "said = 'Take the disk back (--done).'"),
        (takes_away_what_is_not_ours, "pool.novelty", "said = shell_command('xe vm-destroy', f'uuid={uuid}')"),
        (takes_away_what_is_not_ours, "lun.opened", "said = shell_command('xe sr-forget', f'uuid={uuid}')"),
        (
            takes_away_what_is_not_ours,
            "pool.vms.inventory",
            "one = shell_command('xe vm-destroy', uuid)\ntwo = shell_command('xe vm-destroy', uuid)",
        ),
        (prints_a_name_bare, "pool.novelty", "said = f'{vm.name}: restored'"),
        (prints_a_name_bare, "pool.novelty", "said = f'VM {str(record[\"name_label\"])} is running'"),
        (prints_a_name_bare, "pool.novelty", "said = ', '.join(vm.name_label for vm in vms)"),
        (prints_a_name_bare, "lun.novelty", "said = f'The SR {sr.name_label} is in use.'"),
        (quotes_a_path, "cli.novelty", "said = f'Give {quoted(lun.name)} these ids?'"),
        (mixes_options_and_names, UDEV, "said = shell_command(f'rm {path}')"),
        (mixes_options_and_names, UDEV, "words = command_words(*words)"),
        (mixes_options_and_names, UDEV, "words = self.shell_command(own, *words)"),
    ],
)
def test_a_breach_is_noticed(rule, name, source):
    assert list(rule(Module(name, source)))
