# SPDX-License-Identifier: LGPL-2.1-only
"""Imports point one way, the core touches nothing, a LUN has one corridor, and a stranger's text one reader.

The tables below are the rules; the code is read as a syntax tree and not imported.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from kit.own_source import PACKAGE, ROOT, modules_beside, nodes_of, own_modules

TESTS = Path(__file__).resolve().parent

#: What every room may import from.
BASE = ("errors", "arguments", "deadline", "device", "vpd", "scsi", "scsi_id_text", "portal", "sr_types", "wording",
        "untrusted", "untrusted_xml", "json_answer", "threads", "__init__")  # fmt: skip

#: What else a room of the package, or a module at its top, may import from. Imports point one way:
#:
#:     cli, sr_driver -> lun -> report -> engine -> resignature -> formats -> device, errors
#:     cli, sr_driver -> lun -> host, iscsi -> device, errors
#:     pool, direct, doctor -> formats, host; their commands -> the output of cli
#:     plugin -> plugin_targets, direct, lun, report, engine, known_sr
#:     plugin_targets -> lun, sr_driver, iscsi
MAY_IMPORT = {
    "__main__": ("cli", "host"),
    "cli": ("lun", "report", "engine", "formats", "host", "iscsi"),
    "sr_driver": ("direct", "lun", "report", "engine", "formats", "host", "iscsi"),
    "plugin": ("plugin_targets", "direct", "known_sr", "lun", "report", "engine", "formats", "host"),
    "plugin_targets": ("lun", "sr_driver", "host", "iscsi"),
    "lun": ("known_sr", "report", "engine", "formats", "host", "iscsi"),
    "direct": ("cli", "lun", "formats", "host"),
    "doctor": ("cli", "direct", "host"),
    "pool": ("cli", "known_sr", "formats", "host"),
    "report": ("engine", "formats"),
    "engine": ("resignature", "formats"),
    "resignature": ("formats",),
    "formats": (),
    "host": (),
    "iscsi": (),
    "known_sr": (),
    "deadline": (),
    "vpd": (),
    "scsi": (),
    "scsi_id_text": (),
    "portal": (),
    "sr_types": (),
    "wording": (),
    "untrusted": (),
    "untrusted_xml": (),
    "json_answer": (),
    "threads": (),
    "arguments": (),
    "device": (),
    "errors": (),
    "__init__": (),
}

#: Rooms without a circle of imports at any depth: a folder's own modules are one room, each folder in it another.
ROOMS_WITHOUT_CIRCLES = ("report", "resignature", "formats")

#: Rooms within a room: what else of that room each may import from.
MAY_IMPORT_WITHIN = {
    "pool": (),
    "pool.vms": ("pool",),
    "pool.commands": ("pool", "pool.vms"),
    "direct": (),
    "direct.direct_command": ("direct",),
    "doctor": (),
    "doctor.doctor_command": ("doctor",),
    "host": (),
    "host.locks": ("host",),
    "host.disk": ("host", "host.locks"),
    "host.hba": ("host", "host.locks", "host.disk"),
    "host.iscsi_sessions": ("host", "host.disk"),
    "host.xapi": ("host", "host.locks", "host.disk"),
}
#: Where a room, or a room within it, may import from single modules of another one alone: which. A product's command
#: prints by the output of cli; what the product does knows of no command.
MAY_REACH = {
    "pool": {"host": ("host.files", "host.own_path", "host.this_host", "host.xapi.api", "host.xapi.rpc"), "cli": ()},
    "pool.vms": {"host": ("host.xapi.rpc",), "cli": ()},
    "pool.commands": {"host": ("host.secret_file",), "cli": ("cli.output", "cli.map_out")},
    "direct": {"cli": ()},
    "sr_driver": {"direct": ("direct.direct_config",)},
    "direct.direct_command": {"cli": ("cli.output",)},
    "doctor": {"cli": ()},
    "doctor.doctor_command": {"cli": ("cli.output",)},
}

#: Devices, clocks, entropy and command runners come in as arguments, everywhere but here.
MAY_TOUCH_THE_WORLD = ("__main__", "cli", "sr_driver", "lun", "direct", "doctor", "plugin", "pool", "host", "deadline",
                        "threads")  # fmt: skip
#: of the initiator, the modules with sockets, clocks and randomness; what is said over a socket the others decide
RIM_OF_ISCSI = ("iscsi.link", "iscsi.connect", "iscsi.crc32c", "iscsi.target_sessions")
WORLD = {"os", "subprocess", "time", "random", "socket", "threading", "uuid", "secrets", "tempfile"}
WORLD |= {"asyncio", "concurrent", "fcntl", "glob", "multiprocessing", "pathlib", "select", "shutil", "signal"}
WORLD_CALLS = ("open", "input", "exec", "eval", "__import__")

#: Python's readers, which take more than a program writes and raise errors of many kinds: only two modules call them.
READERS = {
    "isdigit", "isdecimal", "isnumeric", "json.load", "json.loads", "json.JSONDecoder", "ET.fromstring",
    "ElementTree.fromstring", "xmlrpc.client.loads", "marshal.loads", "pickle.loads",
}  # fmt: skip
#: Where else a reader is called, and why: what is read there, the package wrote, or it is no text.
MAY_READ = {
    "untrusted": "the reader",
    "untrusted_xml": "the reader of XML",
    "plugin": "its own rows",
    "host.own_process": "the answer of its child",
}

#: Where `int` takes a value: for a long text it needs minutes on Python 3.6. The reason says why no text is long.
MAY_TAKE_INT = {
    "cli.output": "COLUMNS, of the person's own environment",
    "doctor.needs": "the kernel's time of its start",
    "formats.lvm.text_format": "a pattern allows 22 digits, or 18",
    "formats.vhd": "a truth value",
    "host.disk.block_device": "the kernel's answer to an ioctl",
    "host.disk.holders": "the kernel's /proc",
    "host.disk.udev": "is_number has looked",
    "host.hba.adapters": "the kernel's sysfs",
    "host.mounts": "a pattern allows twelve digits",
    "host.own_path": "a pattern allows few digits",
    "host.settings": "a pattern allows nine digits",
    "iscsi.connect": "seconds",
    "iscsi.link": "seconds",
    "iscsi.lun_device": "a number of bytes",
    "iscsi.text_keys": "a pattern allows ten digits",
    "lun.lun_url": "a pattern allows eight digits",
    "pool.vms.device_numbers": "the digits of OCaml, of which a pattern and a limit allow 21",
    "pool.vms.move_home": "a part of a number of bytes",
    "portal": "a pattern allows few digits",
    "sr_driver.hba.config": "a pattern allows few digits",
    "sr_driver.iscsi.iscsi_config": "a pattern allows five digits",
    "untrusted": "the reader",
    "wording": "seconds",
}

#: Where text of the kernel and of udev is read. In it a local user and a writer of a LUN choose names. The kernel and
#: udev escape few of the characters at which Python's own methods and files of text separate.
READ_THE_HOST = ("host", "direct", "doctor", "lun", "plugin", "plugin_targets", "sr_driver")
#: Where else text is separated so, and why no name is in it.
MAY_SEPARATE = {
    "doctor.host_root": "an error of a program, for a sentence",
    "host.secret_file": "a person's own file, of any system",
    "host.settings": "a line of root's settings",
    "host.sm_log": "this product's own lines",
}

#: What opens, locks or writes a LUN: a caller reaches it through `lun` alone, which cannot forget a guard. A room may
#: use what it defines itself.
CORRIDOR = (
    "iscsi.open_lun", "iscsi.lun_opening.open_lun", "host.disk.block_device.open_device",
    "host.disk.block_device.BlockDevice", "host.disk.block_device.ImageFile", "host.disk.exclusive",
    "host.disk.kernel_disks.exclusive_open", "host.locks.lun_lock.lun_lock", "host.locks.lun_lock.user_lock",
    "host.locks.lvm_locks.lvm_locks", "host.locks.sm_locks.lvm_lock", "resignature.writing",
    "engine.copy_unseen", "engine.resignature", "engine.recover", "engine.undo",
)  # fmt: skip
#: What only one module outside of `host` uses: a lock of a write has one place, as has the word that names a LUN.
ONE_PLACE = {
    "host.locks.lun_lock.lun_lock": "lun.opened",
    "host.locks.lun_lock.user_lock": "lun.opened",
    "host.locks.lvm_locks.lvm_locks": "lun.guard",
    "lun.lun_url.is_url": "lun.source",
    "pool.records.OLD_VDI": "pool.vdis",
}
#: Who else: what of it, and what for. Who may open a device outside `lun` may read it alone.
OPENS, TAKES_SM_LOCK = "host.disk.block_device.open_device", "host.locks.sm_locks.lvm_lock"
MAY_PASS = {
    ("engine", "resignature.writing"): "the engine writes for `lun.run`",
    ("sr_driver.iscsi.target_access", "iscsi.lun_opening.open_lun"): "each interface of the host, for `lun.call`",
    ("sr_driver.hba.discovery", TAKES_SM_LOCK): "before a scan, which brings disks that LVM reads",
    ("sr_driver.hba.missing", TAKES_SM_LOCK): "the same",
    ("direct.direct_command", OPENS): "reads what is on a disk",
}

#: What makes a file or a directory with a mode that a umask changes: only `host.files` names these. So does `open` with
#: a path and a mode to write. By a path, another user could lead root to another file: `host.own_path` verifies a path.
MAKERS = {"makedirs", "mkdir", "O_CREAT", "mkstemp", "mkdtemp", "write_bytes", "touch", "copyfile", "copytree"}

MAY_PRINT = ("__main__", "cli", "report")

#: Sentences of an error on the state of the LUN or pool, which `in_state` adds, and on what a person does next, which
#: `advising` adds: a person reads what happened, the state, the advice, and a program gets a member for each.
STATE = re.compile(
    r"[.:X] (?:(?:Nothing|No \w+) (?:was|were)|(?:The|This) (?:LUN|SR|VDI|VM|disk) was not) (?:\w+ed|made|written)\b"
)
ADVICE = re.compile(
    r"[.:] `?(?:Add|Attach|Check|Delete|Destroy|Detach|Find|Give|Map|Move|Plug|Remove|Repeat|Run|Shut|Start|Take|Use"
    r"|Wait)\b"
)

#: modules and rooms at the top of the package
TOP_NAMES = {path.stem for path in ROOT.iterdir()} | set(MAY_IMPORT)


class Module:
    """Of a module of the package ("formats.lvm.pv", "lvm.__init__") what the rules ask for; its tree is not kept.

    imports: (line number, dotted name) of what is imported, absolute, wherever in the module
    calls: (line number, name) of what is called by its bare name
    out_of_place: (line number, name of the method to use, text) of what an error says of the state or as an advice
    readers: (line number, name) of Python's readers that it calls
    integers: line numbers of calls of `int`, also by `map`
    separated: line numbers where text is separated at more than blanks, tabs and line feeds
    used: (line number, dotted name) of what is imported, and of what is named of it
    writable_opens: line numbers of opens of a device that may write
    classes: names of its classes
    """

    def __init__(self, name, source):
        self.name, self.unit, nodes = name, name.split(".")[0], nodes_of(source)
        self.imports = list(self._find_imports(nodes))
        self.used = list(used_names(nodes, self.imports))
        self.writable_opens = list(writable_opens(nodes))
        self.readers = list(readers(nodes))
        self.integers = list(integers(nodes))
        self.out_of_place = list(sentences_out_of_place(nodes))
        self.separated = list(separated(nodes)) if self.unit in READ_THE_HOST else []
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        self.makers = [(node.lineno, node.attr) for node in attributes if node.attr in MAKERS]
        self.makers += [(node.lineno, "an open to write") for node in nodes if opens_path_to_write(node)]
        self.classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
        self.calls = [(call.lineno, call.func.id) for call in calls]

    def _find_imports(self, nodes):
        package = [PACKAGE, *self.name.split(".")[:-1]]
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base += node.module.split(".") if node.module else []
                yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)

    def own_imports(self):
        """What is imported from this package: (line number, parts of the name behind the package's)."""
        return [(line, name.split(".")[1:]) for line, name in self.imports if name.split(".")[0] == PACKAGE]


def opens_path_to_write(node):
    """Is this a call of `open` that writes, neither to a given descriptor, nor by an opener, nor at a literal path?"""
    if not isinstance(node, ast.Call) or "open" not in (getattr(node.func, name, None) for name in ("id", "attr")):
        return False
    given = {key.arg: key.value for key in node.keywords}
    mode = given.get("mode", ([*node.args, None, None])[1])
    is_path = type(node.args[0]).__name__ not in ("Call", "Constant", "Str") and not {"opener", "closefd"} & set(given)
    return is_path and type(mode).__name__ in ("Constant", "Str") and bool(set("wax+") & set(ast.literal_eval(mode)))


@lru_cache(maxsize=None)
def package():
    return [Module(name, source) for name, source in own_modules()]


def of_all(rule):
    """What a rule finds in the modules of the package."""
    return [found for module in package() for found in rule(module)]


# --- the rules: each gives its findings in a module, as sentences


def unplaced(module):
    if module.unit not in MAY_IMPORT:
        yield f"{module.unit} is in no room; decide where it belongs and add it to MAY_IMPORT"


def against_the_direction(module):
    """Imports that point the wrong way. A name that is no module is one that `__init__` defines."""
    allowed = (module.unit, *BASE, *MAY_IMPORT.get(module.unit, ()))
    for line, parts in module.own_imports():
        unit = parts[0] if parts and parts[0] in TOP_NAMES else "__init__"
        if unit not in allowed or module.unit not in MAY_IMPORT:
            yield f"{module.name}:{line} imports {unit}"


def inner_room(parts):
    """The room within a room that a module is in, or the room where it is in none: "host.disk"."""
    return ".".join(parts[:2]) if ".".join(parts[:2]) in MAY_IMPORT_WITHIN else parts[0]


def against_the_direction_within(module):
    """Imports that point the wrong way between the rooms within a room, or reach too far into another."""
    own = inner_room(module.name.split("."))
    for line, parts in module.own_imports():
        if not parts:
            continue
        inner = inner_room(parts)
        is_within = parts[0] == module.unit and inner in MAY_IMPORT_WITHIN
        if is_within and inner not in (own, *MAY_IMPORT_WITHIN[own]):
            yield f"{module.name}:{line} imports {inner}"
        reach = MAY_REACH.get(own, {}).get(parts[0])
        if reach is not None and not any((".".join(parts) + ".").startswith(place + ".") for place in reach):
            yield f"{module.name}:{line} imports {'.'.join(parts)}"


def folders_of(root, pattern):
    return {str(path.parent.relative_to(root)) for path in root.rglob(pattern)} - {"."}


def touches_the_world(module):
    """Imports and calls that reach beyond the program from a module of the core."""
    if module.unit in MAY_TOUCH_THE_WORLD or module.name in RIM_OF_ISCSI:
        return
    for line, name in module.imports:
        if name.split(".")[0] in WORLD:
            yield f"{module.name}:{line} imports {name}"
    for line, name in module.calls:
        if name in WORLD_CALLS:
            yield f"{module.name}:{line} calls {name}"


def makes(module):
    """Names of what makes a file or a directory, elsewhere than where its mode is kept from the umask."""
    if module.name != "host.files":
        yield from (f"{module.name}:{line} has {name}; use relvmoiscsi.host.files" for line, name in module.makers)


def prints(module):
    """Calls of print outside the modules that talk to people."""
    for line, name in module.calls:
        if name == "print" and module.unit not in MAY_PRINT:
            yield f"{module.name}:{line} prints"


def texts_in(node, constants):
    """The texts of an expression: each string whole, with X for its fields, also of a constant of the module."""
    if isinstance(node, ast.JoinedStr):
        yield "".join("X" if isinstance(part, ast.FormattedValue) else ast.literal_eval(part) for part in node.values)
    elif type(node).__name__ in ("Constant", "Str"):  # Str up to Python 3.7
        yield str(ast.literal_eval(node))
    elif isinstance(node, ast.Name):
        yield from constants.get(node.id, ())
    else:
        for inside in ast.iter_child_nodes(node):
            yield from texts_in(inside, constants)


def sentences_out_of_place(nodes):
    """Calls that make an object from a text with a state or an advice behind another sentence, or state an advice."""
    given = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    constants = {node.targets[0].id: list(texts_in(node.value, {})) for node in given if node.targets[0].id.isupper()}
    for node in nodes:
        name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        is_class = name.lstrip("_")[:1].isupper() and not name.isupper()
        for text in [text for each in node.args for text in texts_in(each, constants)] if name else ():
            if is_class and STATE.search(text):
                yield node.lineno, "in_state", text
            if (is_class or name == "in_state") and ADVICE.search(f". {text}" if name == "in_state" else text):
                yield node.lineno, "advising", text


def mixes(module):
    """Texts of errors with the state of the LUN or pool, or with an advice."""
    for line, method, text in module.out_of_place:
        yield f"{module.name}:{line} says {text!r}; use {method}"


def readers(nodes):
    """Calls of Python's readers: by the method alone, or by the name of its module too."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names = [node.func.attr]
            inside = node.func.value
            while isinstance(inside, ast.Attribute):
                names, inside = [inside.attr, *names], inside.value
            names = [inside.id, *names] if isinstance(inside, ast.Name) else names
            if {names[-1], ".".join(names)} & READERS:
                yield node.lineno, ".".join(names)


def reads(module):
    """Calls of Python's readers for what strangers may have written."""
    for line, name in module.readers:
        if module.name not in MAY_READ:
            yield f"{module.name}:{line} reads with {name}; use relvmoiscsi.untrusted"


def integers(nodes):
    """The lines where `int` takes a value: it is called, or handed to what calls it."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in ("isinstance", "issubclass", "cast"):
            keywords = [each.value for each in node.keywords if each.arg != "type"]  # of argparse: a person types it
            if any(isinstance(part, ast.Name) and part.id == "int" for part in [node.func, *node.args, *keywords]):
                yield node.lineno


def takes_int(module):
    """Calls of `int` for what a stranger may have written."""
    for line in module.integers:
        if module.name not in MAY_TAKE_INT:
            yield f"{module.name}:{line} calls int; use relvmoiscsi.untrusted"


def separated(nodes):
    """The lines where Python separates lines or words by its own rules, or opens a file as text to read it."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "splitlines" or (node.func.attr in ("split", "rsplit") and not node.args):
                yield node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open":
            modes = [text for each in node.args[1:2] for text in texts_in(each, {})]
            if not set("bwax") & set("".join(modes)):
                yield node.lineno


def separates(module):
    """Places that take a character of a name for the end of a word or of a line."""
    for line in module.separated:
        if module.name not in MAY_SEPARATE:
            yield f"{module.name}:{line} separates text by itself; use lines_of and words_in of relvmoiscsi.host.files"


def past_the_corridor(module):
    """Uses of what opens, locks or writes a LUN, elsewhere than in `lun` and in the room that defines it."""
    for line, name in passes(module):
        if (module.name, name) not in MAY_PASS:
            yield f"{module.name}:{line} uses {name}; use relvmoiscsi.lun"
    if module.unit not in ("lun", "host"):
        yield from (f"{module.name}:{line} opens a device to write" for line in module.writable_opens)


def passes(module):
    """Uses of CORRIDOR outside of `lun`: (line number, name of CORRIDOR)."""
    for line, name in module.used:
        own = name.replace(PACKAGE + ".", "", 1) + "."
        found = [each for each in CORRIDOR if own.startswith(each + ".")]
        if found and module.unit not in ("lun", found[0].split(".")[0]):
            yield line, found[0]


def used_names(nodes, imports):
    """What is imported, and each attribute of it that is named, under its full name: (line number, name)."""
    full = {}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias, (_, name) in zip(node.names, (each for each in imports if each[0] == node.lineno)):
                full[alias.asname or name.split(".")[0 if isinstance(node, ast.Import) else -1]] = (
                    name if alias.asname or isinstance(node, ast.ImportFrom) else name.split(".")[0]
                )
    yield from imports
    for node in nodes:
        words, inside = [], node
        while isinstance(inside, ast.Attribute):
            words, inside = [inside.attr, *words], inside.value
        if words and isinstance(inside, ast.Name) and inside.id in full:
            yield node.lineno, ".".join([full[inside.id], *words])


def writable_opens(nodes):
    """The lines of calls of `open_device` that do not say `writable=False`."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "open_device":
            said = [each.value for each in node.keywords if each.arg == "writable"]
            if not said or ast.dump(said[0]) != ast.dump(ast.parse("False", mode="eval").body):
                yield node.lineno


def foreign(module):
    """Imports that are neither from this package nor from the standard library."""
    for line, name in module.imports:
        top = name.split(".")[0]
        if top != PACKAGE and not in_standard_library(top):
            yield f"{module.name}:{line} imports {top}"


@lru_cache(maxsize=None)
def in_standard_library(top):
    if top in sys.builtin_module_names:
        return True
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    if spec.origin == "frozen":
        return True
    parents = Path(os.path.realpath(str(spec.origin))).parents
    library = Path(os.path.realpath(sysconfig.get_path("stdlib")))
    return library in parents and not any(parent.name in ("site-packages", "dist-packages") for parent in parents)


def imported_modules(modules):
    """For each module the modules that it imports, wherever in its text: names to sets of names."""
    names = {module.name for module in modules}
    edges = {}
    for module in modules:
        wanted = edges.setdefault(module.name, set())
        for _, parts in module.own_imports():
            meant = (parts, parts[:-1], [*parts, "__init__"], [*parts[:-1], "__init__"])
            wanted.update([".".join(way) for way in meant if ".".join(way) in names][:1])
    return edges


def ambiguous_names(modules):
    """File names of modules, and names of public classes, that two modules have."""
    files = Counter(module.name.split(".")[-1] for module in modules)
    classes = Counter(name for module in modules for name in module.classes if not name.startswith("_"))
    return sorted(name for name, count in (files + classes).items() if count > 1 and name != "__init__")


def import_circle(modules):
    """Module names along a circle of imports; empty if there is none."""
    return circle_in(imported_modules(modules))


def room_circle(modules, top):
    """Folders of `top` along a circle of imports; empty if there is none. A folder stands for its own modules alone."""
    edges = {}
    for name, wanted in imported_modules(modules).items():
        own, *rooms = [each.rpartition(".")[0] for each in (name, *wanted)]
        if (own + ".").startswith(top + "."):
            edges.setdefault(own, set()).update(room for room in rooms if room != own)
    return circle_in(edges)


def circle_in(edges):
    """Names along a circle of arrows; empty if there is none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        path.append(name)
        for wanted in sorted(edges.get(name, ())):
            circle = visit(wanted)
            if circle:
                return circle
        done.add(path.pop())
        return []

    return next((circle for circle in map(visit, sorted(edges)) if circle), [])


# --- the package keeps the rules


def test_every_module_has_a_room():
    assert of_all(unplaced) == []


def test_imports_point_to_the_core():
    assert of_all(against_the_direction) == []


def test_imports_point_one_way_within_a_room_and_in_no_circle():
    assert of_all(against_the_direction_within) == []
    assert import_circle(package()) == []
    assert [room_circle(package(), top) for top in ROOMS_WITHOUT_CIRCLES] == [[], [], []]


def test_a_module_and_a_public_class_have_a_name_that_no_other_has():
    assert ambiguous_names(package()) == []


def test_every_folder_of_the_package_has_its_folder_of_tests():
    assert folders_of(ROOT, "*.py") - folders_of(TESTS, "test_*.py") == set()


def test_the_core_touches_nothing_but_what_it_is_given():
    assert of_all(touches_the_world) == []


def test_only_the_command_prints_and_only_the_standard_library_is_needed():
    assert of_all(prints) + of_all(foreign) == []


def test_what_strangers_write_has_one_reader():
    assert of_all(reads) == []
    assert set(MAY_READ) <= {module.name for module in package() if module.readers}
    assert of_all(takes_int) == []
    assert set(MAY_TAKE_INT) == {module.name for module in package() if module.integers}


def test_an_error_has_its_state_and_its_advice_apart():
    assert of_all(mixes) == []


def test_what_the_kernel_and_udev_write_has_one_reader():
    assert of_all(separates) == []
    assert set(MAY_SEPARATE) == {module.name for module in package() if module.separated}


def test_files_and_directories_are_made_in_one_module():
    assert of_all(makes) == []
    assert [module.name for module in package() if module.makers] == ["host.files"]
    assert [found for name, source in modules_beside() for found in makes(Module(name, source))] == []


def test_a_lun_is_opened_locked_and_written_in_one_room():
    assert of_all(past_the_corridor) == []
    assert set(MAY_PASS) == {(module.name, name) for module in package() for _, name in passes(module)}


@pytest.mark.parametrize("name, place", ONE_PLACE.items())
def test_a_lock_of_a_write_and_the_word_that_names_a_lun_have_one_place(name, place):
    used = {module.name for module in package() if f"{PACKAGE}.{name}" in dict(map(reversed, module.used))}
    assert used == {place}


def test_old_and_new_vdis_of_the_pool_are_paired_in_one_place():
    """By `vdis.Origin`, which knows the original of a copy."""
    derived = f"{PACKAGE}.formats.identity.derived_uuid"
    used = {module.name for module in package() if derived in dict(map(reversed, module.used))}
    assert {name for name in used if name.startswith("pool.")} == {"pool.vdis"}


# --- the rules notice what breaks them

PV, PLAN, UDEV = "formats.lvm.pv", "resignature.plan", "host.disk.udev"


@pytest.mark.parametrize(
    "rule, name, source",
    [
        (unplaced, "novelty", ""),
        (against_the_direction, PV, "from relvmoiscsi.resignature.planning.run_plan import Plan"),
        (against_the_direction, PV, "def late():\n    from relvmoiscsi.resignature import plan"),
        (past_the_corridor, "cli.novelty", "from relvmoiscsi.host.disk.block_device import open_device"),
        (past_the_corridor, "sr_driver.novelty", "def late():\n    from relvmoiscsi.iscsi import open_lun"),
        (past_the_corridor, "cli.novelty", "from relvmoiscsi.host.locks import sm_locks\nsm_locks.lvm_lock()"),
        (past_the_corridor, "cli.novelty", "import relvmoiscsi.engine as core\ncore.undo(device)"),
        (past_the_corridor, "plugin", "def look(path):\n    return open_device(path, writable=True)"),
        (past_the_corridor, "direct.links", "def look(path, why):\n    return open_device(path, why)"),
        (against_the_direction_within, "pool.attach", "from relvmoiscsi.pool.vms import clone"),
        (against_the_direction_within, "pool.commands.options", "from relvmoiscsi.cli.on_lun import writes"),
        (against_the_direction, "lun.guard", "from relvmoiscsi.doctor import finding"),
        (touches_the_world, "engine", "def late():\n    import time"),
        (touches_the_world, PLAN, "with open('/dev/sdc') as device: pass"),
        (prints, PLAN, "print('talk')"),
        (mixes, PLAN, "raise Refused(f'The LUN {lun} is in use. Nothing was written.')"),
        (mixes, PLAN, "raise PoolFailure(f'Not done. {state} Nothing was changed.').advising('Wait.')"),
        (mixes, PLAN, "_SAID = 'It is busy: {}. The VM was not changed.'\nraise Refused(_SAID.format(name))"),
        (mixes, PLAN, "Refused('The SR is in use. Shut the VM down.')"),
        (mixes, PLAN, "with in_state(f'Some disks of {name} are swapped. Repeat the command.'): pass"),
        (makes, UDEV, "import os\nos.open(path, os.O_RDWR | os.O_CREAT, 0o600)"),
        (makes, UDEV, "with open(path, 'wb') as file: pass"),
        (makes, UDEV, "import io\nio.open(os.path, mode='r+')"),
        (makes, UDEV, "path.write_bytes(b'')"),
        (reads, UDEV, "def is_number(text): return text.strip().isdigit()"),
        (reads, UDEV, "import xmlrpc.client\nxmlrpc.client.loads(text)"),
        (reads, UDEV, "import json\njson.JSONDecoder().decode(text)"),
        (takes_int, PLAN, "size = int(facts['size'])"),
        (takes_int, PLAN, "sizes = list(map(int, facts['sizes']))"),
        (takes_int, PLAN, "size = read(facts, form=int)"),
        (separates, UDEV, "lines = read(path).splitlines()"),
        (separates, UDEV, "words = line.split()"),
        (separates, UDEV, "with open(path, encoding='ascii') as lines: pass"),
        (separates, UDEV, "text = open(path, 'r').read()"),
        (foreign, UDEV, "import pyudev"),
    ],
)
def test_a_breach_is_noticed(rule, name, source):
    assert list(rule(Module(name, source)))


def modules(**sources):
    """Modules with these imports, by their names with `__` for each dot."""
    named = {name.replace("__", "."): f"from relvmoiscsi.{source}" for name, source in sources.items()}
    return [Module(name, source) for name, source in named.items()] + [Module("formats.naming", "")]


def test_a_circle_is_noticed_between_modules_and_between_rooms():
    circle = modules(planning__plan="protocol.journal import J", protocol__journal="planning.plan import P")
    assert sorted(import_circle(circle)) == ["planning.plan", "protocol.journal"]
    found = modules(resignature__check="resignature.planning import plan",
                    resignature__planning__plan="resignature import compare",
                    resignature__compare="formats import naming")  # fmt: skip
    assert import_circle(found) == []
    assert sorted(room_circle(found, "resignature")) == ["resignature", "resignature.planning"]


def test_a_name_with_two_meanings_is_noticed():
    found = [
        Module(name, "class Plan: pass\nclass _Own: pass") for name in ("pool.plan", "merge.plan", "pool.__init__")
    ]
    assert ambiguous_names([*found, Module("merge.__init__", "")]) == ["Plan", "plan"]


# --- and unit tests keep to themselves


def test_a_unit_test_cannot_start_a_process():
    with pytest.raises(pytest.fail.Exception, match="subprocess.Popen"):
        subprocess.call(["true"])
    with pytest.raises(pytest.fail.Exception, match="os.system"):
        os.system("true")


def test_a_unit_test_cannot_open_a_device(tmp_path):
    (tmp_path / "link").symlink_to("/dev/zero")

    for attempt in (
        lambda: open("/dev/zero", "rb"),  # noqa: SIM115 - it must not open
        lambda: os.open(b"/dev/zero", os.O_RDONLY),
        lambda: (tmp_path / "link").open("rb"),
    ):
        with pytest.raises(pytest.fail.Exception, match="/dev/zero"):
            attempt()
    with open("/dev/null", "rb") as harmless:
        assert harmless.read() == b""
