# SPDX-License-Identifier: LGPL-2.1-only
"""A host in a directory: nothing is changed; findings, and their way from host to host."""

import json
import os

import pytest

from kit.doctor_world import AS_XAPI, DRIVER, UUID
from relvmoiscsi import doctor
from relvmoiscsi.doctor import finding as finding_
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import (
    Finding,
    from_json,
    is_ready,
    listed,
    ok,
    problem,
    reason,
    unknown,
    warning,
)
from relvmoiscsi.doctor.host_root import inventory, why
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.this_host import Host

# --- a host in a directory


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(str(tmp_path / "pipe"))

    with pytest.raises(OSError, match="no file"):
        host_root.read(Host(str(tmp_path)), "/pipe")


def test_no_more_of_a_file_is_read_than_is_of_use(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * (3 << 20))

    assert len(host_root.read(Host(str(tmp_path)), "/long")) == 1 << 20


def test_a_program_runs_in_the_environment_of_xapi(world):
    host = world.host(([world.at(DRIVER)], ""))

    host_root.run_as_xapi(host, DRIVER, "argument")

    assert host.runner.calls == [(*AS_XAPI, world.at(DRIVER), "argument")]
    assert host_root.has_program(host, "multipath") and not host_root.has_program(host, "sh")


def test_the_inventory(world):
    assert inventory(world.host())["INSTALLATION_UUID"] == UUID
    world.put("/etc/xensource-inventory", b"\xff\nno equals sign\nA = 'b' \n")
    assert inventory(world.host()) == {"\ufffd": "", "no equals sign": "", "A": "b"}
    world.remove("/etc/xensource-inventory")
    assert inventory(world.host()) == {}


def test_why_a_program_failed_is_short():
    assert why(CommandFailed(["x" * 5000], 3, "no\n" * 5000)).startswith("exit status 3: ")
    assert len(why(CommandFailed(["x" * 5000], 3, "no\n" * 5000))) < 400


# --- the whole host


@pytest.mark.processes
def test_a_host_on_which_all_is_well(world):
    found = doctor.examine_host(world.host())

    assert {finding.status for finding in found} == {"ok"}, found
    assert len(found) == 10


@pytest.mark.parametrize("is_asked_by_the_plugin", [False, True])
def test_a_machine_that_is_no_dom0_is_told_so_with_what_was_looked_at(tmp_path, is_asked_by_the_plugin):
    look = doctor.examine_host if is_asked_by_the_plugin else doctor.examine

    (finding,) = look(Host(str(tmp_path), runner=None))

    assert (finding.name, finding.status) == ("dom0", "problem")
    assert finding.sentence == (
        "This is no dom0: there is no /etc/xensource-inventory, no /etc/xapi.conf, no /opt/xensource."
    )
    assert finding.advice.startswith("Run doctor as root in dom0")


@pytest.mark.processes
def test_a_dom0_without_anything_else_has_findings_only(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/xapi.conf").write_text("")

    found = doctor.examine(Host(str(tmp_path), is_superuser=False))

    bad = {finding.name for finding in found if finding.status in ("problem", "unknown")}
    assert bad == {"user", "executable", "whitelist", "xapi", "restart", "udev-rules", "pool"}
    assert not is_ready(found) and all(finding.advice for finding in found if finding.status != "ok")


@pytest.mark.processes
def test_looking_changes_nothing(world):
    before = world.tree()

    doctor.examine(world.host())

    assert world.tree() == before


# --- findings


def test_a_warning_is_no_reason_not_to_be_ready():
    assert is_ready([ok("a", "A."), warning("b", "B.", "Do.")])
    assert not is_ready([ok("a", "A."), unknown("b", "B.", "Do.")])
    assert not is_ready([problem("b", "B.", "Do."), ok("a", "A.")])


def test_the_reason_is_the_first_problem():
    first, second = problem("b", "B.", "Do."), problem("c", "C.", "Do.")
    strange = unknown("a", "A.", "Do.")

    assert reason([ok("o", "O."), strange, first, second]) == first
    assert reason([ok("o", "O."), strange]) == strange


def test_long_lists_are_cut():
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(8)]) == "0, 1, 2, 3, 4 and 3 more"


def test_findings_come_back_as_they_went():
    found = [ok("a", "\u00c4."), problem("b", "B\x1b.", "Do.")]

    assert from_json(finding_.to_json("0.1.0", found)) == ("0.1.0", found)


def test_the_host_is_named_by_who_asks():
    text = finding_.to_json("0.1.0", [Finding("a", "ok", "A.", "", "elsewhere")])

    assert from_json(text)[1] == [ok("a", "A.")]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"version": "1", "findings": {}},
        {"findings": []},
        {"version": 1, "findings": []},
        {"version": "1", "findings": [3]},
        {"version": "1", "findings": [{"name": "a", "status": "fine", "sentence": "", "advice": ""}]},
        {"version": "1", "findings": [{"name": "a", "status": ["ok"], "sentence": "", "advice": ""}]},
        {"version": "1", "findings": [{"name": "a", "status": "ok", "advice": ""}]},
        {"version": "1", "findings": [{"name": "a", "status": "ok", "sentence": None, "advice": ""}]},
    ],
)
def test_an_answer_that_is_none_is_refused(answer):
    with pytest.raises(ValueError):
        from_json(json.dumps(answer))


def test_what_another_host_says_is_cut():
    text = finding_.to_json("1", [ok("a", "x" * 1000000)])

    assert len(from_json(text)[1][0].sentence) == 2000
