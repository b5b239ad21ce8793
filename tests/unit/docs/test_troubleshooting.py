# SPDX-License-Identifier: LGPL-2.1-only
"""docs/troubleshooting.rst has the messages that need more words than their own, and none that the code does not have.

A message without an action is on the page, or in COMPLETE. A message that says what to do needs no row: it has one only
for what the message cannot know. A message about the words of a request (UsageError) names the word and what is
expected. A row that repeats its message keeps a reader from the other rows.
"""

import ast
import bisect
import functools
import itertools
import re
import sys
from pathlib import Path

import pytest

from relvmoiscsi.sr_driver import codes

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 8), reason="the syntax tree had other names; one Python is enough"
)

TOP = Path(__file__).resolve().parents[3]
PAGE = (TOP / "docs/troubleshooting.rst").read_text(encoding="utf-8")
MODULES = sorted((TOP / "relvmoiscsi").rglob("*.py"))

ANY = "…"
#: errors whose message is their first argument
SENTENCES = {"UsageError", "NotFound", "Refused", "Unfinished", "MissingKey", "Busy", "OutOfTime"}
SENTENCES |= {"PoolFailure", "PoolGone"}
#: what tells a person what to do: a verb in the imperative, a command, or a sentence that is known only at run time
VERBS = """
Add Allow Ask Attach Change Check Choose Clear Clone Close Compare Confirm Copy Correct Create Deactivate Delete
Destroy Detach Discard Edit End Enlarge Find Finish Forget Free Give Have Install Introduce Keep Leave Lend Let
Load Log Look Make Map Move Name Omit Open Plug Put Remove Rename Repeat Replace Report Resignature Restart
Restore Revert Run Save Select Set Shut Start Stop Take Try Turn Undo Unmap Unplug Update Use Wait Write run
add give repeat use take check please
"""
ACTION = re.compile(r"(?:^|[.…:;,`)] |\bor |\band |, then |, first )(?:" + "|".join(VERBS.split()) + r")\b|[.…] …$|`")
#: begins messages without an action that are all there is to say
COMPLETE = (
    "A resignature runs on the pool's master.",
    "It cannot be scanned for LUNs: ….",
    "LUN … belongs to the SR …. If the SR is not needed, forget the SR",
    "LUN … cannot be reached: ….",
    "No adapter of this host is logged in to a port …; the adapters see the ports ….",
    "No disk of this host has the SCSIid ….",
    "Not confirmed.",
    "The LUN is in use on this host, through the disk … that does not",
    "The SCSIid (device-config:SCSIid) is missing.",
    "The SR … is not an LVM SR: its clones cannot be resignatured.",
    "The VDI … is no longer in the pool.",
    "The VM … is no longer in the pool.",
    "The VM … has no disk.",
    "The VM … has this disk, and is … meanwhile.",
    "The disk … of the VM has no VDI in its records.",
    "The entry of … in udev's database cannot be read: ….",
    "The file … cannot be locked: ….",
    "The lock of the LUN cannot be taken: ….",
    "The lock service at … does not answer: ….",
    "The lock … cannot be opened: its directory vanishes again and again.",
    "The map … is suspended: the owner of the LUN cannot be read.",
    "The records describe … VMs, expected one.",
    "The setting … in section […] of … is …, expected ….",
    "The target's IQN (device-config:targetIQN) is missing or incorrect.",
    "There are no VM records on the VDI … of ….",
    "it is in use by ….",
    "This host sees no LUN with the SCSIid ….",
    "… But ….",
    "… begins like an LVM1 physical volume, which LVM releases read",
    "… cannot be read: …",
    "… cannot be written: ….",
    "… did not answer within … seconds.",
    "… did not appear: …",
    "… does not exist.",
    "… does not tell its geometry: ….",
    "… has a size of 0 bytes: no disk is behind it.",
    "… has blocks of … bytes: VHD chains on it are not made one VDI.",
    "… has logical blocks of … bytes; 512 or 4096 are supported.",
    "… has the SCSIid …, and the given SCSIid is …: it is another LUN.",
    "… holds damaged LVM structures and may belong to an SR: …",
    "… is empty: its first … bytes are zero.",
    "… is locked by …: another relvmoiscsi is at work on it.",
    "… is not a name of a volume group, so it cannot be locked.",
    "… leads to no LUN with a SCSIid (device-config:device).",
    "…: there is no room for the journal: it needs … bytes and a second",
    "relvmoiscsi is giving the LUN new identities.",
    "udev was too slow.",
    "… leads to ….",
    # `restore_ends.verify` adds the ends that are possible
    "The VDI …, which was the disk …, is no longer in the pool: --undo is impossible.",
    "The VM … has no journal.",
    "The disk … of the VM … has come home, and its entry is no longer in the journal of the VM",
    "The disks of the VM … are being moved to its own SR.",
    "The journal of the VM … is wrong: ….",
    "Two disks of the VM … are one VDI in its restore, …: … and ….",
    "xapi could not import the copy of ….",
    "… …, and xapi writes keys into an export as they are.",
)


def listed():
    """What the page has as a term, or first in a row or an item, in `` ``; a line may have several."""
    for line in re.findall(r"^(?:- |   \* - )?``(.*)``$", PAGE, re.MULTILINE):
        yield from line.split("``, ``")


def texts(node, names):
    """The texts that an expression may give, with ANY for what is known only when it runs."""
    if isinstance(node, ast.JoinedStr):
        return combined([texts(part, names) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return combined([texts(node.left, names), texts(node.right, names)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return {re.sub(r"\{[^}]*\}", ANY, text) for text in texts(node.func.value, names)}
    if is_call(getattr(node, "value", node)) and getattr(node, "value", node).func.id == "command":
        return {f"`{ANY}`"}
    if isinstance(node, ast.FormattedValue) and not node.format_spec:
        return texts(node.value, names) if isinstance(node.value, ast.Name) and node.value.id.isupper() else {ANY}
    if isinstance(node, ast.Name):
        return names.get(node.id, {ANY})
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return names.get(f"{node.value.id}.{node.attr}", {ANY})
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else {ANY}


def combined(parts):
    return {"".join(chosen) for chosen in itertools.product(*parts)}


def names_in(function):
    """What is assigned to the names in a function, where it is text."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, set()).update(texts(node.value, {}))
    return found


def constants_of(tree):
    """The texts that a module gives a name, such as an advice of several errors."""
    named = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    found = {node.targets[0].id: texts(node.value, {}) for node in named}
    return {name: known for name, known in found.items() if ANY not in known}


def imported_by(tree, constants):
    """What a module knows by name: its own texts, and those that it imports, alone or with their module."""
    found = dict(constants_of(tree))
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]:
        for alias in node.names:
            name, module = alias.asname or alias.name, constants.get(f"{node.module}.{alias.name}", {})
            found.update({f"{name}.{each}": known for each, known in module.items()})
            if alias.name in constants.get(node.module, {}):
                found[name] = constants[node.module][alias.name]
    return found


def raised(kinds, *trees):
    """The texts of each error of these kinds that modules make: its first argument, and its advice."""
    found = set()
    constants = {tree.module: constants_of(tree) for tree in trees}
    for tree in trees:
        advice, known = advice_in(tree), imported_by(tree, constants)
        for function, calls in calls_of(tree):
            made = [call for call in calls if call.func.id in kinds]
            names = {**known, **names_in(function)} if made else {}
            for call in made:
                advised = texts(advice[call], names) if call in advice else {""}
                found.update(f"{text} {more}".strip() for text in texts(call.args[0], names) for more in advised)
    return {one_gap(text) for text in found if re.search(r"\w", text)}


@functools.lru_cache(maxsize=None)
def advice_in(tree):
    """The advice that a module adds to an error where it makes the error."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    stated = {call: call.func.value for call in calls if call.func.attr == "in_state"}
    advising = [call for call in calls if call.func.attr == "advising"]
    return {stated.get(call.func.value, call.func.value): call.args[0] for call in advising}


@functools.lru_cache(maxsize=None)
def calls_of(tree):
    """The functions of a module, each with its calls of names with arguments."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [(function, list(filter(is_call, ast.walk(function)))) for function in functions]


def is_call(node):
    return isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name)


def one_gap(text):
    """What differs may be of several parts, which nobody sees."""
    return re.sub(ANY + "+", ANY, text)


def all_texts(tree):
    """Every text in a module, whatever it is for."""
    of_texts = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)
    found = set().union(*(texts(node, {}) for node in ast.walk(tree) if isinstance(node, of_texts)))
    return {one_gap(re.sub(r"\{[^}]*\}", ANY, text)) for text in found}


LISTED = list(listed())


@pytest.fixture(scope="module")
def trees():
    return [parsed(path.read_text(encoding="utf-8"), module_of(path)) for path in MODULES]


def module_of(path):
    return ".".join(path.relative_to(TOP).with_suffix("").parts)


def parsed(text, module):
    tree = ast.parse(text)
    tree.module = module
    return tree


def test_advice_that_has_a_name_counts_as_its_words():
    helps = parsed('AGAIN = "Attach the disk again."\nWHY = "The disk is busy."', "helps")
    user = """
from helps import AGAIN, WHY
import helps
def work():
    raise Refused("It has no disk.").advising(AGAIN)
    raise Refused("It has a disk.").advising(WHY)
    raise Refused("It is full.").advising(f"{AGAIN} Or {wait()}.")
"""
    assert raised({"Refused"}, helps, parsed(user, "user")) == {
        "It has no disk. Attach the disk again.",
        "It has a disk. The disk is busy.",
        "It is full. Attach the disk again. Or ….",
    }


@pytest.fixture(scope="module")
def of_modules(trees):
    return list(map(all_texts, trees))


def test_each_sentence_on_the_page_is_the_beginning_of_one_in_the_code(of_modules):
    known = sorted(set().union(*of_modules))

    def begins_one(beginning):
        at = bisect.bisect_left(known, beginning)  # the first that is not before it in the alphabet
        return at < len(known) and known[at].startswith(beginning)

    def is_in_code(sentence):
        return begins_one(sentence.rstrip(ANY)) or begins_one(re.sub(" (at )?" + ANY + "$", "", sentence))

    assert [sentence for sentence in LISTED if not is_in_code(sentence)] == []


def test_each_sentence_without_an_action_is_on_the_page_or_complete(trees):
    sentences = tuple(sentence.rstrip(ANY) for sentence in LISTED)

    made = {text for text in raised(SENTENCES - {"UsageError"}, *trees) if not ACTION.search(text)}
    assert len(made) > 90 and sorted(text for text in made if not text.startswith((*sentences, *COMPLETE))) == []
    assert [beginning for beginning in COMPLETE if not any(text.startswith(beginning) for text in made)] == []
    assert [beginning for beginning in COMPLETE if beginning.startswith(sentences)] == [], "on the page as well"


def test_the_numbers_on_the_page_are_those_that_the_driver_answers_with(of_modules):
    rows = re.findall(r"^(\d+) +(\w+) ", PAGE, re.MULTILINE)
    used = set().union(*(found for path, found in zip(MODULES, of_modules) if path.name != "codes.py"))

    assert rows == [
        (str(number), key) for key, number in codes.NUMBERS.items() if key in used and number not in codes._SILENT
    ]
