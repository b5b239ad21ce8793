# SPDX-License-Identifier: LGPL-2.1-only
"""The host plugin, as xapi runs it: one argument, an environment with nothing but PATH, one document out."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import xmlrpc.client

import pytest

from kit.driver_calls import EXECUTABLE, INTERPRETERS
from kit.pool import wire
from kit.pool.runner import PATH
from kit.shell import SR
from relvmoiscsi import __version__, plugin
from relvmoiscsi.doctor.finding import from_json
from relvmoiscsi.errors import Refused

pytestmark = pytest.mark.processes

PLUGIN = EXECUTABLE.parent / "plugins" / "relvmoiscsi"

by_each_python = pytest.mark.parametrize("python", INTERPRETERS, ids=os.path.basename)


def call_of(function):
    return wire.method_call(function, wire.string("OpaqueRef:session"), wire.strings({}))


def answer(*argv):
    """The struct in the plugin's answer, read as strictly as xapi reads it."""
    words = ["/usr/bin/env", "-i", "PATH=" + PATH, *map(str, argv)]
    completed = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, timeout=60)
    assert completed.stderr == b""
    members = dict(wire.as_structure(wire.method_response(wire.parse(completed.stdout.decode()))))
    if wire.as_string(members["Status"]) == "Success":
        return wire.as_string(members["Value"])
    return [wire.as_string(item) for item in wire.as_array(members["ErrorDescription"])]


@by_each_python
def test_doctor(python):
    version, findings = from_json(answer(python, PLUGIN, call_of("doctor")))

    assert version == __version__
    assert [finding.name for finding in findings] == ["dom0"], "and nothing of the pool"


def test_a_lun_and_one_that_is_not_named():
    args = wire.strings({"scsi_id": "36001405" + "0" * 25})
    call = wire.method_call("lun", wire.string("OpaqueRef:session"), args)

    found = {"command": "plugin lun", "json_version": 1, "disk_names": [], "stacked": [], "is_worked_on": False}
    assert json.loads(answer(PLUGIN, call)) == found
    code, function, problem = answer(PLUGIN, call_of("lun"))
    assert (code, function) == ("RELVMOISCSI_FAILURE", "lun") and "scsi_id is no SCSIid" in problem


def wrong_arguments():
    """(function, arguments): an argument of each function is missing, misnamed or has no valid value, or is unknown."""
    for name, known in runpy.run_path(str(PLUGIN))["ARGUMENTS"].items():
        yield from ((name, {argument.upper(): "x"}) for argument in known)
        yield name, {"bla": "1"}
        yield name, {"session_ref": "OpaqueRef:other"}
    valid = {"scsi_id": "36001405" + "0" * 25, "iqn": "iqn.a", "number": "1"}
    for name, needed in (("lun", "scsi_id"), ("map", "sr"), ("resignature", "scsi_id")):
        yield from ((name, {}), (name, {needed: ""}))
    for missing in valid:
        yield "add_lun", {argument: text for argument, text in valid.items() if argument != missing}
    for argument in ("dry_run", "clear_metadata_vdi", "later_copy", "vdis", "sr_uuid"):
        yield "resignature", {"scsi_id": valid["scsi_id"], argument: "yes"}
    yield from (("classify", {"hba": "yes"}), ("classify", {"from": "x y"}), ("map", {"sr": SR, "from": "x"}))


@pytest.mark.parametrize("name, arguments", list(wrong_arguments()), ids=str)
def test_arguments_that_cannot_be_meant_are_refused_with_a_sentence(monkeypatch, name, arguments):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    call = wire.method_call(name, wire.string("OpaqueRef:session"), wire.strings(arguments))

    found = runpy.run_path(str(PLUGIN))["_answer"]([str(PLUGIN), call])

    code, function, sentence = found["ErrorDescription"]
    assert (code, function) == ("RELVMOISCSI_FAILURE", name)
    assert "argument" in sentence or name == "resignature" and "SCSIid" in sentence, sentence


def test_the_page_names_the_functions_and_their_arguments():
    page = (EXECUTABLE.parents[1] / "docs/scripting.rst").read_text(encoding="utf-8")
    table = page.partition("   * - function\n")[2].partition("\nAll answers but")[0]
    rows = [row.split("\n     -") for row in table.split("\n   * - ")[1:]]
    named = {row[0].strip("`"): row[1].partition(":")[0] + row[1].partition(";")[2] for row in rows}

    known = runpy.run_path(str(PLUGIN))["ARGUMENTS"]
    assert {*named} == {*known} == {*runpy.run_path(str(PLUGIN))["FUNCTIONS"]}
    for name, text in named.items():
        assert {*re.findall("``(\\w+)``", text)} - {"true", "false"} == {*known[name]}


@pytest.mark.parametrize("source", [PLUGIN, EXECUTABLE.parents[1] / "relvmoiscsi/plugin.py"], ids=["file", "package"])
def test_the_head_of_each_file_names_the_keys_of_the_answers(source):
    schema = json.loads((EXECUTABLE.parents[1] / "relvmoiscsi/answers.schema.json").read_text(encoding="utf-8"))[
        "$defs"
    ]
    head = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    parts = re.findall(r"^    (\w+) +(.*(?:\n     .*)*)", head, re.MULTILINE)
    said = {name: text for name, text in parts if '{"' in text}

    assert {*said} in ({"doctor", "lun"}, {"classify", "map", "status", "add_lun"})
    for name, text in said.items():
        row_keys = {"doctor": "finding", "classify": "host_lun", "status": "active_run"}
        keys = {*schema[f"plugin_{name}_answer"]["properties"]} - {"command", "json_version"}
        keys |= {*schema[row_keys[name]]["properties"]} if name in row_keys else set()
        keys |= {"old_vdi", "new_vdi", "vdi_name"} if name == "map" else set()
        assert {*re.findall(r'"(\w+)"', text)} == keys, name


@pytest.mark.parametrize(
    "arguments, code",
    [
        *((given, "XENAPI_PLUGIN_FAILURE") for given in ((), ("a", "b"), ("version",), ("x" * 102400,))),
        (('<!DOCTYPE x [<!ENTITY a "b">]>' + call_of("version"),), "XENAPI_PLUGIN_FAILURE"),
        *(((call_of(name),), "RELVMOISCSI_FAILURE") for name in ("resignature", "map")),
        *(((call_of(name),), "UNKNOWN_XENAPI_PLUGIN_FUNCTION") for name in ("recover", "_doctor", "")),
        ((xmlrpc.client.dumps((1,), methodresponse=True),), "UNKNOWN_XENAPI_PLUGIN_FUNCTION"),
    ],
)
def test_whatever_comes_is_answered_with_one_failure(monkeypatch, arguments, code):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)

    found = runpy.run_path(str(PLUGIN))["_answer"]([str(PLUGIN), *arguments])

    assert (found["Status"], found["ErrorDescription"][0]) == ("Failure", code)
    assert all(isinstance(text, str) for text in found["ErrorDescription"])


@pytest.mark.parametrize("name", sorted(plugin.FUNCTIONS))
def test_each_function_of_the_package_gets_the_time_of_the_call(monkeypatch, name):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setitem(plugin.FUNCTIONS, name, lambda _arguments, deadline: f"{deadline.seconds:g} s")
    found = runpy.run_path(str(PLUGIN))["_answer"]([str(PLUGIN), call_of(name)])
    assert found == {"Status": "Success", "Value": "90 s"}


@pytest.mark.skipif(os.path.isdir("/usr/share/relvmoiscsi/relvmoiscsi"), reason="relvmoiscsi is installed here")
def test_without_its_package_it_says_so(tmp_path):
    """A directory of settings of the same name, two levels above, is not taken for the package."""
    (tmp_path / "etc/xapi.d/plugins").mkdir(parents=True)
    (tmp_path / "etc/relvmoiscsi").mkdir()
    alone = tmp_path / "etc/xapi.d/plugins/relvmoiscsi"
    shutil.copy(str(PLUGIN), str(alone))

    code, function, _, problem = answer(alone, call_of("version"))

    assert (code, function) == ("XENAPI_PLUGIN_FAILURE", "version") and "No module named" in problem


def test_it_writes_no_byte_code(tmp_path):
    package = EXECUTABLE.parents[1] / "relvmoiscsi"
    shutil.copytree(str(package), str(tmp_path / "relvmoiscsi"), ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "drivers/plugins").mkdir(parents=True)
    shutil.copy(str(PLUGIN), str(tmp_path / "drivers/plugins"))

    assert answer(tmp_path / "drivers/plugins/relvmoiscsi", call_of("version")) == __version__

    assert [path for path in tmp_path.rglob("*") if path.suffix == ".pyc"] == []


def test_it_looks_for_the_package_where_the_driver_does():
    places = runpy.run_path(str(PLUGIN))["PLACES"]
    of_driver = runpy.run_path(str(EXECUTABLE))["PLACES"]

    assert [os.path.realpath(place) for place in places] == [os.path.realpath(place) for place in of_driver]


@by_each_python
def test_a_text_beyond_ascii_is_read_and_answered_whatever_the_locale(python):
    assert answer(python, PLUGIN, call_of("é")) == ["UNKNOWN_XENAPI_PLUGIN_FUNCTION", "é"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_text_of_a_lun_that_xml_does_not_have_is_answered_without_those_characters(monkeypatch, is_refused):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    plugin = runpy.run_path(str(PLUGIN))

    def say(_arguments):
        said = "\0\x1b[31m \ud800\uffff\n\t\u00e9"
        if is_refused:
            raise Refused(said)
        return said

    monkeypatch.setitem(plugin["FUNCTIONS"], "lun", say)
    document = xmlrpc.client.dumps((plugin["_answer"]([str(PLUGIN), call_of("lun")]),), methodresponse=True)

    (found,), _ = xmlrpc.client.loads(document.encode("utf-8"))
    text = found["ErrorDescription"][2] if is_refused else found["Value"]
    assert text == "??[31m ??\n\t\u00e9"
