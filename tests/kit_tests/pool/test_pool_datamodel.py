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


def test_its_calls_are_those_of_xapi():
    known = api.Api(Database(), Storage(Database(), None))._methods
    assert [name for name in known if datamodel.find(name) is None] == []


def test_it_answers_each_call_that_is_made():
    answering = api.Api(Database(), Storage(Database(), None))
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


@pytest.mark.parametrize("name, role, parameters", [
    ("VM.start", "vm-operator", 3),
    ("VDI.set_name_label", "vm-admin", 2),
    ("VDI.set_snapshot_of", "local-root", 2),
    ("network.create", "vm-admin", 1),
    ("secret.get_value", "pool-operator", 1),
    ("SR.get_name_label", "read-only", 1),
    ("SR.add_to_other_config", "pool-operator", 3),
    ("VDI.add_tags", "vm-operator", 2),
])  # fmt: skip
def test_what_the_table_says_of_a_call(name, role, parameters):
    found = datamodel.find(name)
    assert (found.role, len(found.params)) == (role, parameters)


@pytest.mark.parametrize("name", ["VM.recovered", "SR.set_type", "nothing.get_uuid", "VM.set_power_stat", "SR"])
def test_what_there_is_not(name):
    assert datamodel.find(name) is None


@pytest.mark.parametrize(
    "key, role", [("mine", "vm-admin"), ("pci", "pool-admin"), ("XenCenter.CustomFields.x", "vm-operator")]
)
def test_a_key_has_a_role_of_its_own(key, role):
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
