# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor: findings and their way from host to host; a whole host; where xapi looks for drivers, what they answer,
who accepts them.
"""

import json
import os
import xmlrpc.client

import pytest

from kit.doctor_world import (
    AS_XAPI,
    DRIVER,
    DRIVER_INFO,
    DROP_IN,
    HBA_DRIVER,
    INFO,
    STOCK,
    UNIMPLEMENTED,
    failed,
    hangs,
    unreadable,
)
from relvmoiscsi import doctor
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.driver import examine_drivers, examine_whitelist
from relvmoiscsi.doctor.finding import (
    Finding,
    from_json,
    ok,
    problem,
    to_json,
)
from relvmoiscsi.doctor.finding import (
    reason as why_not_ready,
)
from relvmoiscsi.host.this_host import Host

# --- findings

BAD = problem("b", "B\x1b.", "Do.")


def test_findings_come_back_as_they_went_long_texts_cut_and_the_host_named_by_who_asks():
    sent = [ok("a", "\u00c4."), BAD, Finding("a", "ok", "A.", "", "elsewhere"), ok("a", "x" * 1000000)]
    version, (*whole, cut) = from_json(to_json("0.1.0", sent))
    assert (version, whole) == ("0.1.0", [*sent[:2], ok("a", "A.")]) and len(cut.sentence) == 2000


def answer(*findings, **more):
    return {"version": "1", "findings": list(findings), **more}


@pytest.mark.parametrize("document", [
    [],
    answer(version=1),
    answer(3),
    answer({"check_name": "a", "check_status": ["ok"], "sentence": "", "advice": ""}),
    answer({"check_name": "a", "check_status": "ok", "advice": ""}),
])  # fmt: skip
def test_an_answer_that_is_none_is_refused(document):
    with pytest.raises(ValueError):
        from_json(json.dumps(document))


# --- a host in a directory


def test_a_pipe_is_not_waited_for_and_no_more_of_a_file_is_read_than_is_of_use(tmp_path):
    os.mkfifo(str(tmp_path / "pipe"))
    (tmp_path / "long").write_bytes(b"x" * (3 << 20))
    with pytest.raises(OSError, match="no file"):
        host_root.read(Host(str(tmp_path)), "/pipe")
    assert len(host_root.read(Host(str(tmp_path)), "/long")) == 1 << 20


@pytest.mark.processes
def test_a_host_on_which_all_is_well_and_looking_changes_nothing(world):
    before = world.tree()
    found = doctor.examine(world.host(), asks_xapi=False)
    assert {finding.status for finding in found} == {"ok"} and len(found) == 10, found
    doctor.examine(world.host())
    assert world.tree() == before


@pytest.mark.parametrize("asks_xapi", [False, True])
def test_a_machine_that_is_no_dom0_is_told_so_with_what_was_looked_at(tmp_path, asks_xapi):
    (finding,) = doctor.examine(Host(str(tmp_path), runner=None), asks_xapi)
    assert (finding.name, finding.status) == ("dom0", "problem")
    assert finding.sentence == (
        "This machine is not a dom0: it has no /etc/xensource-inventory, no /etc/xapi.conf, no /opt/xensource."
    )
    assert finding.advice.startswith("Run doctor as root in dom0")


@pytest.mark.processes
def test_a_dom0_without_anything_else_has_findings_only(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/xapi.conf").write_text("")
    found = doctor.examine(Host(str(tmp_path), is_superuser=False))
    bad = {finding.name for finding in found if finding.status in ("problem", "unknown")}
    assert bad == {"user", "executable", "whitelist", "xapi", "restart", "udev-rules", "pool"}
    assert why_not_ready(found) is not None and all(finding.advice for finding in found if finding.status != "ok")


# --- where xapi looks for drivers


@pytest.mark.processes
def test_drivers_that_xapi_takes(world):
    found, info, path = examine_drivers(world.host())
    names = ("executable", "driver-info", "package")
    assert [(finding.name, finding.status) for finding in found] == [(name, "ok") for name in names]
    assert (info, path) == (DRIVER_INFO, DRIVER)


@pytest.mark.parametrize("path, breaks", [
    (HBA_DRIVER, lambda world, path: None),
    (DRIVER, lambda world, path: world.link(path, path)),
    (DRIVER, lambda world, path: world.put(path, "#!/bin/sh\n")),
])  # fmt: skip
def test_a_driver_that_cannot_be_started_is_named(world, path, breaks):
    world.remove(path)
    breaks(world, path)
    (finding,), info, _ = examine_drivers(world.host(("nothing is run",)))
    assert (finding.name, finding.status, info) == ("executable", "problem", None)
    assert f"there is no executable {path}." in finding.sentence and "Install the package" in finding.advice


def test_sm_dir_moves_the_directory(world):
    world.put("/etc/xapi.conf.d/10-sm-dir.conf", "# sm-dir=/nowhere\nsm-dir = '/usr/libexec/sm/drivers' # moved\n")
    (finding,), _, path = examine_drivers(world.host())
    assert "looks for drivers in /usr/libexec/sm/drivers, " in finding.sentence
    assert path == "/usr/libexec/sm/drivers/ReLVMoISCSISR"


# --- what the driver answers


def document(*values, **changes):
    return xmlrpc.client.dumps(values or ({**DRIVER_INFO, **changes},), methodresponse=True)


def fault(number, text):
    return xmlrpc.client.dumps(xmlrpc.client.Fault(number, text))


def examined(world, info, unknown_command=UNIMPLEMENTED):
    """({name of a finding: the finding}, info) of a driver that answers so to what xapi asks, and to the doctor."""
    host = world.host(([], info), ([], unknown_command))
    found, info, _ = examine_drivers(host)
    for (*words, argument), name in zip(host.runner.calls, ("sr_get_driver_info", "sr_doctor")):
        assert tuple(words) == (*AS_XAPI, world.at(DRIVER)), "it is asked as xapi asks"
        ((members,), called) = xmlrpc.client.loads(argument)
        assert (called, members["command"]) == (name, name)
    return {finding.name: finding for finding in found}, info


@pytest.mark.parametrize("said, reason", [
    (failed(127, "env: python3: No such file"), "exit status 127: env: python3: No such file."),
    (hangs(), "it did not end within 20 seconds and was stopped."),
    (PermissionError(13, "Permission denied"), "it cannot be run: Permission denied."),
    ("", "it is no XML-RPC response: ''."),
    ("<!DOCTYPE x>" + INFO, f"it is no XML-RPC response: {('<!DOCTYPE x>' + INFO)[:60]!r}."),
    (fault(1200, "broken"), "fault 1200, broken."),
    (document("text"), "its answer has no name, description or version."),
])  # fmt: skip
def test_an_answer_that_xapi_does_not_take_is_a_problem(world, said, reason):
    found, info = examined(world, said)
    assert info is None and found["driver-info"].status == "problem"
    assert found["driver-info"].sentence.endswith("xapi skips it: " + reason)


def test_a_name_that_cloudstack_does_not_find_is_a_problem(world):
    found, info = examined(world, document(name="LVHD over iSCSI", description=""))
    assert info["name"] == "LVHD over iSCSI" and found["driver-info"].status == "problem"


@pytest.mark.parametrize("said", [failed(), fault(1200, "relvmoiscsi cannot be started."), INFO])
def test_a_driver_that_can_only_speak_of_itself_is_a_problem(world, said):
    assert examined(world, INFO, said)[0]["package"].status == "problem"


# --- whether xapi would take them

SYNC = "Run `/usr/share/relvmoiscsi/sm-whitelist sync`, then `xe-toolstack-restart`."
OTHER = "sm-plugins in /etc/xapi.conf.d/zzz.conf, the last such line that xapi reads, lacks {}; " + DROP_IN
OTHER += " lists it, but xapi does not use that line."


def other_list(more):
    return lambda world: world.put("/etc/xapi.conf.d/zzz.conf", STOCK + more)


def no_list(world):
    world.remove(DROP_IN)
    world.put("/etc/xapi.conf", "log=all\n")


@pytest.mark.parametrize("change, status, sentence, advice", [
    (lambda world: None, "ok", f"sm-plugins in {DROP_IN} accepts relvmoiscsi and relvmohba.", ""),
    (other_list(""), "problem", OTHER.format("relvmoiscsi and relvmohba"), SYNC),
    (other_list(" relvmoiscsi"), "problem", OTHER.format("relvmohba"), SYNC),
    (no_list, "problem", "accepts no driver at all", "Install the package xapi-core again"),
    (lambda world: os.mkdir(world.at("/etc/xapi.conf.d/old")), "problem", "/etc/xapi.conf.d/old cannot be read", ""),
])  # fmt: skip
def test_whether_xapi_would_take_them(world, change, status, sentence, advice):
    change(world)
    finding = examine_whitelist(world.host())
    assert finding.status == status and sentence in finding.sentence and advice in finding.advice


def test_a_list_that_cannot_be_read_is_unknown(world):
    with unreadable(world.at("/etc/xapi.conf")):
        assert examine_whitelist(world.host()).status == "unknown"
        assert examine_drivers(world.host())[0][0].status == "unknown"
