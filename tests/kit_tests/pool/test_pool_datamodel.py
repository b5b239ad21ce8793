# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool knows no class, field, call, error or right that xapi's data model has not."""

import ast
from pathlib import Path

import pytest

from kit.pool import api, datamodel
from kit.pool.database import TABLES, Database
from kit.pool.storage import Storage

KINDS = {"string": ("string", "enum "), "ref": ("ref ",), "map": ("map(",), "set": ("set(",)}
KIT = Path(api.__file__).parent


@pytest.mark.parametrize("table", sorted(TABLES))
def test_its_fields_are_those_of_xapi(table):
    known = datamodel.FIELDS[table]
    for name, field in TABLES[table].items():
        assert name in known, name
        wanted = ("set(ref ",) if "." in field.kind else KINDS.get(field.kind, (field.kind,))
        assert known[name].type.startswith(wanted) or known[name].type == "ref secret", name
        writers = [f"{table}.{prefix}{name}" for prefix in ("set_", "add_to_")]
        assert field.access == "ro" or any(map(datamodel.find, writers)), name


def test_its_calls_are_those_of_xapi_and_it_answers_each_that_is_made():
    answering = api.Api(Database(), Storage(Database(), None))
    assert [name for name in answering._methods if datamodel.find(name) is None] == []
    lines = (datamodel.DATA / "calls.tsv").read_text(encoding="utf-8").splitlines()
    names = [line.split("\t")[0] for line in lines if line[0] not in "#/"]
    assert len(names) > 90
    for name in set(names) - {"session.login_with_password"}:
        assert answering._methods.get(name) or answering._generic.find(name), name


def test_its_errors_are_those_of_xapi():
    raised = set()
    for path in KIT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("XenError", "Mistake"):
                raised.update(each.value for each in node.args[:1] if isinstance(each, ast.Constant))
    assert len(raised) > 40 and sorted(raised - datamodel.ERRORS) == []


@pytest.mark.parametrize("name, known", [
    ("VM.start", ("vm-operator", 3)),
    ("VDI.set_name_label", ("vm-admin", 2)),
    ("VDI.set_snapshot_of", ("local-root", 2)),
    ("SR.add_to_other_config", ("pool-operator", 3)),
    ("VDI.add_tags", ("vm-operator", 2)),
    ("SR.set_type", None),
    ("nothing.get_uuid", None),
    ("VM.set_power_stat", None),
])  # fmt: skip
def test_what_the_table_says_of_a_call(name, known):
    found = datamodel.find(name)
    assert known == (found and (found.role, len(found.params)))


def test_a_key_has_a_role_of_its_own():
    for key, role in (("mine", "vm-admin"), ("pci", "pool-admin"), ("XenCenter.CustomFields.x", "vm-operator")):
        assert datamodel.find("VM.add_to_other_config").role_for(["OpaqueRef:1", key, "x"]) == role


@pytest.mark.parametrize("type_, good, bad", [
    ("map(string,string)", {"a": "b"}, {"a": 1}),
    ("set(string)", ["a"], "a"),
    ("ref VM", "OpaqueRef:NULL", "a VM"),
    ("int", "-1", "one"),
    ("bool", True, "true"),
    ("float", 1.0, 1),
    ("enum vbd_mode", "RO", 1),
    ("enum vbd_mode", "RO", "ro"),
    ("map(enum vm_operations,string)", {"start": ""}, {"begin": ""}),
    ("record VM", {}, ""),
    ("record VBD", {"mode": "RW"}, {"mode": "rw"}),
    ("record VBD", {"mode": "RW"}, {"mod": "RW"}),
])  # fmt: skip
def test_what_fits_a_type(type_, good, bad):
    assert datamodel.fits(type_, good) and not datamodel.fits(type_, bad)
