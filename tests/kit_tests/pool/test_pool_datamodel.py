# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool knows no class, field, call, error or right that xapi's data model has not."""

import ast
from pathlib import Path

import pytest

from kit.pool import api, datamodel
from kit.pool.database import TABLES, Database
from kit.pool.datamodel import Presence
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


KNOWN, REMOVED, UNKNOWN = "", "MESSAGE_REMOVED", "MESSAGE_METHOD_UNKNOWN"


@pytest.mark.parametrize("name, of_25, of_26", [
    ("VBD_metrics.get_all_records", REMOVED, REMOVED),
    ("VBD.get_metrics", REMOVED, REMOVED),
    ("VM.set_protection_policy", REMOVED, REMOVED),
    ("host.apply_recommended_guidances", REMOVED, REMOVED),
    ("VDI.resize_online", REMOVED, KNOWN),
    ("Rate_limit.get_all_records", UNKNOWN, KNOWN),
    ("SM.get_supported_image_formats", UNKNOWN, KNOWN),
    ("host.set_timezone", UNKNOWN, KNOWN),
    ("task.get_externalpid", None, None),
    ("event.get_class", None, None),
    ("pool.get_wlb_password", None, None),
    ("SM.create", None, None),
    ("SR.create", KNOWN, KNOWN),
])  # fmt: skip
def test_what_a_release_has_of_a_call(name, of_25, of_26):
    """As xapi 25.33.1 and 26.17 answer; None: no release has it, and to ask for it is a mistake."""
    found = datamodel.find(name)
    answers = {Presence.THERE: KNOWN, Presence.REMOVED: REMOVED, Presence.NOT_YET: UNKNOWN}
    told = [found and answers[found.life.at(release)] for release in datamodel.RELEASES]
    assert told == [of_25, of_26]
    for release, answer in zip(datamodel.RELEASES, (of_25, of_26)):
        assert (name in datamodel.names(release)) is (answer in (KNOWN, REMOVED))


@pytest.mark.parametrize("text, at", [
    ("-", [Presence.THERE] * 3),
    ("hidden", [Presence.NOT_YET] * 3),
    ("removed tampa", [Presence.REMOVED] * 3),
    ("since 23.18.0;removed 25.25.0", [Presence.NOT_YET, Presence.THERE, Presence.REMOVED]),
    ("removed inverness;since 25.25.1-next", [Presence.REMOVED, Presence.REMOVED, Presence.THERE]),
])  # fmt: skip
def test_the_life_of_a_call(text, at):
    assert [datamodel.Life(text).at(release) for release in ("23.9", "25.24", "25.25")] == at


def test_what_a_release_lacks_is_in_none_of_its_records_and_its_calls_say_so(start, connect, errors):
    for release, formats in zip(datamodel.RELEASES, (None, [])):
        pool = start(release=release)
        pool.db.create("SM", type="fake")
        xapi = connect(pool).xenapi
        (record,) = [row for row in xapi.SM.get_all_records().values() if row["type"] == "fake"]
        assert record.get("supported_image_formats") == formats
        assert errors(xapi.VIF_metrics.get_all_records) == [REMOVED]
        if formats is None:
            assert errors(xapi.Caller.get_all_records) == [UNKNOWN, "Caller.get_all_records"]
            pool.api.users["eve"] = ("x", "pool-operator")
            xapi.login_with_password("eve", "x")
            assert errors(xapi.Caller.get_all_records)[:2] == ["RBAC_PERMISSION_DENIED", "host.call_extension"]
        pool.stop()


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
