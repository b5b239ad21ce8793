# SPDX-License-Identifier: LGPL-2.1-only
"""docs/security.rst has a row for each key of other_config that the program reads."""

import ast
import re

import pytest

from kit.shell import TOP

PAGE = TOP / "docs/security.rst"
OURS = re.compile("relvmoiscsi:[a-z-]+:?")
#: keys that a copy of a VM takes along, and that no decision rests on
ONLY_COPIED = {"pci", "auto_poweron"}


def literal(node):
    value = getattr(node, "s" if type(node).__name__ == "Str" else "value", None)
    return value if isinstance(value, str) else None


def constants(tree):
    """{name: text} of the constants of a module that are texts."""
    found = {}
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else []:
            is_several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts) if is_several else [(target, node.value)]
            found.update({name.id: literal(value) for name, value in pairs if isinstance(name, ast.Name)})
    return {name: text for name, text in found.items() if text}


def is_of_other_config(node):
    names = ((getattr(each, "id", ""), getattr(each, "attr", ""), literal(each)) for each in ast.walk(node))
    return any("other_config" in three for three in names)


def key_nodes(tree):
    """What stands for a key: `other_config.get(KEY)`, `other_config[KEY]`, `KEY in other_config`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            if is_of_other_config(node.func.value):
                yield node.args[0]
        elif isinstance(node, ast.Subscript) and is_of_other_config(node.value):
            yield getattr(node.slice, "value", node.slice) if type(node.slice).__name__ == "Index" else node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            yield from [node.left] if is_of_other_config(node.comparators[0]) else []


def read_keys(trees):
    """The keys that programs read from other_config, and each constant with the form of a key of ours."""
    found = set()
    for tree in trees:
        known = constants(tree)
        found |= set(filter(OURS.fullmatch, known.values()))
        found |= {literal(node) or known.get(getattr(node, "id", ""), "") for node in key_nodes(tree)}
    return {key.rstrip(":") for key in found if key} - ONLY_COPIED


@pytest.fixture(scope="module")
def trees():
    paths = [*TOP.glob("relvmoiscsi/**/*.py"), *TOP.glob("ansible/plugins/**/*.py")]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def rows():
    """The keys that the lists of keys explain, without what follows a colon at the end."""
    lists = PAGE.read_text(encoding="utf-8").split("\nKeys that others write\n")[1].split("\nRecords of VMs\n")[0]
    terms = re.findall(r"^(``.*)\n   \S", lists, flags=re.MULTILINE)
    return {key.rstrip(":…") for term in terms for key in re.findall("``([^`]+)``", term)}


def test_each_key_that_is_read_has_a_row(trees):
    keys = read_keys(trees)
    assert {"relvmoiscsi:run", "relvmoiscsi:lock", "iscsi_iqn", "multipathing"} <= keys
    assert sorted(key for key in keys if not any(key.startswith(row) for row in rows())) == []


def test_a_new_key_is_found():
    for line in ('x["other_config"].get("new")', 'record["other_config"]["new"]', '"new" in vm["other_config"]'):
        assert read_keys([ast.parse(line)]) == {"new"}, line
    assert read_keys([ast.parse('NEW = "relvmoiscsi:new:"')]) == {"relvmoiscsi:new"}
    assert read_keys([ast.parse('A, NEW = "b", "new"\nx = other_config.get(NEW)')]) == {"new"}
