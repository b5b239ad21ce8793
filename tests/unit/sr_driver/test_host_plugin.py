# SPDX-License-Identifier: LGPL-2.1-only
"""The host plugin, as xapi runs it: one argument, an environment with nothing but PATH, one document out."""

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import xmlrpc.client

import pytest

from kit.driver_calls import EXECUTABLE, INTERPRETERS
from kit.pool import wire
from kit.pool.errors import XenError
from kit.pool.runner import PATH
from kit.pool.simulator import Pool
from kit.shell import SR
from relvmoiscsi import __version__, plugin
from relvmoiscsi.doctor.finding import from_json
from relvmoiscsi.errors import Refused
from relvmoiscsi.host import this_host

pytestmark = pytest.mark.processes

PLUGIN = EXECUTABLE.parent / "plugins" / "relvmoiscsi"

by_each_python = pytest.mark.parametrize("python", INTERPRETERS, ids=os.path.basename)


#: runs the plugin on a host whose xapi is at another socket
ELSEWHERE = """
import runpy, sys
sys.path[:0] = [sys.argv[1]]
from relvmoiscsi.host import this_host
this_host.XAPI_SOCKET = sys.argv[2]
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def call_of(function, session="OpaqueRef:session", **arguments):
    return wire.method_call(function, wire.string(session), wire.strings(arguments))


@pytest.fixture(scope="module")
def xapi():
    """The simulated pool of this host; `words` begin a command line that runs the plugin on the host."""
    directory = tempfile.mkdtemp(prefix="host", dir="/tmp")  # short: a unix socket is to be in it
    with Pool(None, os.path.join(directory, "xapi"), drivers={}) as pool:
        pool.words = [sys.executable, "-c", ELSEWHERE, EXECUTABLE.parents[1], pool.socket_path, PLUGIN]
        pool.root = pool.api.call("session.login_with_password", ("root", ""), local=True)
        yield pool
    shutil.rmtree(directory)


@pytest.fixture
def run(xapi, monkeypatch):
    """Runs the plugin in this process, by default for root: `run("lun", scsi_id="...")` gives its answer.

    `functions` are those of the plugin.
    """
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setattr(this_host, "XAPI_SOCKET", xapi.socket_path)
    loaded = runpy.run_path(str(PLUGIN))

    def run_plugin(function, session=xapi.root, **arguments):
        return loaded["_answer"]([str(PLUGIN), call_of(function, session, **arguments)])

    run_plugin.functions = loaded["FUNCTIONS"]
    return run_plugin


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
def test_doctor(xapi, python):
    version, findings = from_json(answer(python, *xapi.words[1:], call_of("doctor", xapi.root)))

    assert version == __version__
    assert [finding.name for finding in findings] == ["dom0"], "and nothing of the pool"


def test_a_lun_and_one_that_is_not_named(xapi):
    call = call_of("lun", xapi.root, scsi_id="36001405" + "0" * 25)

    found = {"command": "plugin lun", "json_version": 1, "disk_names": [], "stacked": [], "is_worked_on": False}
    assert json.loads(answer(*xapi.words, call)) == found
    code, function, problem = answer(*xapi.words, call_of("lun", xapi.root))
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
        yield "resignature", {"scsi_id": valid["scsi_id"], argument: "perhaps"}
    yield from (
        ("classify", {"hba": "perhaps"}),
        ("classify", {"from": "x"}),
        ("classify", {"from": "x y"}),
        ("map", {"sr": SR, "from": "x"}),
    )


@pytest.mark.parametrize("name, arguments", list(wrong_arguments()), ids=str)
def test_arguments_that_cannot_be_meant_are_refused_with_a_sentence(run, name, arguments):
    code, function, sentence = run(name, **arguments)["ErrorDescription"]
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
@pytest.mark.usefixtures("run")
def test_whatever_comes_is_answered_with_one_failure(arguments, code):
    found = runpy.run_path(str(PLUGIN))["_answer"]([str(PLUGIN), *arguments])

    assert (found["Status"], found["ErrorDescription"][0]) == ("Failure", code)
    assert all(isinstance(text, str) for text in found["ErrorDescription"])


@pytest.mark.parametrize("name", sorted(plugin.FUNCTIONS))
def test_each_function_of_the_package_gets_the_time_of_the_call(run, monkeypatch, name):
    monkeypatch.setitem(plugin.FUNCTIONS, name, lambda _arguments, deadline: f"{deadline.seconds:g} s")
    assert run(name) == {"Status": "Success", "Value": "90 s"}


ALL = sorted(runpy.run_path(str(PLUGIN))["FUNCTIONS"])


@pytest.mark.parametrize("name", ALL)
def test_a_caller_who_may_not_call_a_plugin_gets_the_version_and_nothing_else(xapi, run, name):
    """VM.call_host_plugin leads here with the session of a vm-operator."""
    run.functions[name] = lambda _arguments: "it has run"
    found = {}
    for role in ("read-only", "vm-operator", "pool-operator", "pool-admin"):
        xapi.api.users["somebody"] = ("a word", role)
        session = xapi.api.call("session.login_with_password", ("somebody", "a word"))
        found[role] = run(name, session)
    assert found.pop("pool-admin") == {"Status": "Success", "Value": "it has run"}
    for refused in found.values():
        if name == "version":
            assert refused["Value"] == "it has run"
        else:
            assert refused["ErrorDescription"][:2] == ["RELVMOISCSI_FAILURE", name]
            assert "the caller may not call host.call_plugin" in refused["ErrorDescription"][2]


@pytest.mark.parametrize("name", ALL)
def test_without_an_answer_of_xapi_the_plugin_gives_its_version_and_nothing_else(run, monkeypatch, name):
    monkeypatch.setattr(this_host, "XAPI_SOCKET", "/nowhere")
    run.functions[name] = lambda _arguments: "it has run"
    found = run(name)
    if name == "version":
        assert found["Value"] == "it has run"
    else:
        assert found["ErrorDescription"][:2] == ["RELVMOISCSI_FAILURE", name]
        assert "xapi does not say who has called it" in found["ErrorDescription"][2]


def test_a_vm_operator_resignatures_no_lun_by_the_plugin_itself(xapi, tmp_path):
    """xapi runs the executable, as for VM.call_host_plugin."""
    program = tmp_path / "relvmoiscsi"
    program.write_text("#!/bin/sh\nexec " + " ".join(map(shlex.quote, map(str, xapi.words))) + ' "$1"\n', "ascii")
    program.chmod(0o755)
    xapi.api.host_plugins.directories = dict.fromkeys(xapi.hosts, tmp_path)
    words = ("relvmoiscsi", "resignature", {"scsi_id": "36001405" + "0" * 25})
    xapi.api.users["somebody"] = ("a word", "vm-operator")
    session = xapi.api.call("session.login_with_password", ("somebody", "a word"))
    for host in xapi.hosts:
        vm = xapi.db.create("VM", power_state="Running", resident_on=host)
        with pytest.raises(XenError, match="the caller may not call host.call_plugin"):
            xapi.api.call("VM.call_host_plugin", (session, vm, *words))
        with pytest.raises(XenError, match="This host sees no LUN"):
            xapi.api.call("host.call_plugin", (xapi.root, host, *words))


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
def test_a_text_of_a_lun_that_xml_does_not_have_is_answered_without_those_characters(run, is_refused):
    def say(_arguments):
        said = "\0\x1b[31m \ud800\uffff\n\t\u00e9"
        if is_refused:
            raise Refused(said)
        return said

    run.functions["lun"] = say
    document = xmlrpc.client.dumps((run("lun"),), methodresponse=True)

    (found,), _ = xmlrpc.client.loads(document.encode("utf-8"))
    text = found["ErrorDescription"][2] if is_refused else found["Value"]
    assert text == "??[31m ??\n\t\u00e9"
