# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on the drivers: where xapi looks for them, what they answer, who accepts them."""

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
from relvmoiscsi.doctor.driver import DriverInfo, examine_drivers, examine_whitelist

READ = DriverInfo(DRIVER_INFO["name"], DRIVER_INFO["description"], DRIVER_INFO["driver_version"])


def document(**changes):
    return xmlrpc.client.dumps(({**DRIVER_INFO, **changes},), methodresponse=True)


def fault(number, text):
    return xmlrpc.client.dumps(xmlrpc.client.Fault(number, text))


def by_name(findings):
    return {finding.name: finding for finding in findings}


# --- where xapi looks for them


@pytest.mark.processes
def test_drivers_that_xapi_takes(world):
    found, info, path = examine_drivers(world.host())

    assert [(finding.name, finding.status) for finding in found] == [
        ("executable", "ok"), ("driver-info", "ok"), ("package", "ok")
    ]  # fmt: skip
    assert (info, path) == (READ, DRIVER)


@pytest.mark.parametrize("path", [DRIVER, HBA_DRIVER])
@pytest.mark.parametrize("broken", ["absent", "dangling", "circle", "directory", "not executable"])
def test_a_driver_that_cannot_be_started_is_named(world, path, broken):
    world.remove(path)
    if broken == "dangling":
        world.link(path, "/nowhere")
    elif broken == "circle":
        world.link(path, path)
    elif broken == "directory":
        world.directory(path)
    elif broken == "not executable":
        world.put(path, "#!/bin/sh\n")

    (finding,), info, _ = examine_drivers(world.host(("nothing is run",)))

    assert (finding.name, finding.status, info) == ("executable", "problem", None)
    assert f"there is no executable {path}." in finding.sentence and "Install the package" in finding.advice


def test_sm_dir_moves_the_directory(world):
    world.put("/etc/xapi.conf.d/10-sm-dir.conf", "# sm-dir=/nowhere\nsm-dir = '/usr/libexec/sm/drivers' # moved\n")

    (finding,), _, path = examine_drivers(world.host())

    assert "looks for drivers in /usr/libexec/sm/drivers, " in finding.sentence
    assert path == "/usr/libexec/sm/drivers/ReLVMoISCSISR"


# --- what the driver answers


def test_it_is_asked_as_xapi_asks(world):
    host = world.host(([], INFO), ([], UNIMPLEMENTED))

    examine_drivers(host)

    for (*words, argument), name in zip(host.runner.calls, ("sr_get_driver_info", "sr_doctor")):
        assert tuple(words) == (*AS_XAPI, world.at(DRIVER))
        ((members,), called) = xmlrpc.client.loads(argument)
        assert (called, members["command"]) == (name, name)


@pytest.mark.parametrize(
    "answer, said",
    [
        (failed(127, "env: python3: No such file"), "exit status 127: env: python3: No such file."),
        (hangs(), "it did not end within 20 seconds and was stopped."),
        (PermissionError(13, "Permission denied"), "it cannot be run: Permission denied."),
        ("", "it is no XML-RPC response: ''."),
        ("<!DOCTYPE x>" + INFO, "it is no XML-RPC response."),
        (fault(1200, "broken"), "fault 1200, broken."),
        (xmlrpc.client.dumps((1, 2), "call"), "it is no response with one value."),
        (xmlrpc.client.dumps(("text",), methodresponse=True), "its answer has no name, description or version."),
        (document(name=3), "its answer has no name, description or version."),
    ],
)
def test_an_answer_that_xapi_does_not_take_is_a_problem(world, answer, said):
    found, info, _ = examine_drivers(world.host(([], answer), ([], UNIMPLEMENTED)))

    assert info is None and by_name(found)["driver-info"].status == "problem"
    assert by_name(found)["driver-info"].sentence.endswith("xapi skips it: " + said)


def test_a_name_that_cloudstack_does_not_find_is_a_problem(world):
    found, info, _ = examine_drivers(
        world.host(([], document(name="LVHD over iSCSI", description="")), ([], UNIMPLEMENTED))
    )

    assert info.name == "LVHD over iSCSI" and by_name(found)["driver-info"].status == "problem"


@pytest.mark.parametrize("answer", [failed(), fault(1200, "relvmoiscsi cannot be started."), INFO, "nonsense"])
def test_a_driver_that_can_only_speak_of_itself_is_a_problem(world, answer):
    found, _, _ = examine_drivers(world.host(([], INFO), ([], answer)))

    assert by_name(found)["package"].status == "problem"


# --- whether xapi would take them


def test_a_list_that_has_both(world):
    finding = examine_whitelist(world.host())

    assert finding == ("whitelist", "ok", f"sm-plugins in {DROP_IN} accepts relvmoiscsi and relvmohba.", "", "")


@pytest.mark.parametrize(
    "others, lacking", [("", "relvmoiscsi and relvmohba"), (" relvmoiscsi", "relvmohba"), (" RELVMOHBA", "relvmoiscsi")]
)
def test_a_list_that_lacks_one_is_a_problem(world, others, lacking):
    world.put("/etc/xapi.conf.d/zzz.conf", STOCK + others)

    finding = examine_whitelist(world.host())

    assert finding.status == "problem"
    assert finding.sentence == (
        "sm-plugins in /etc/xapi.conf.d/zzz.conf, the last such line that xapi reads, lacks "
        f"{lacking}; {DROP_IN} lists it, but xapi does not use that line."
    )
    assert finding.advice == "Run `/usr/share/relvmoiscsi/sm-whitelist sync`, then `xe-toolstack-restart`."


def test_no_list_at_all_is_a_problem(world):
    world.remove(DROP_IN)
    world.put("/etc/xapi.conf", "log=all\n")

    assert "accepts no driver at all" in examine_whitelist(world.host()).sentence


def test_what_keeps_xapi_from_starting_is_a_problem(world):
    os.mkdir(world.at("/etc/xapi.conf.d/old"))

    finding = examine_whitelist(world.host())

    assert finding.status == "problem" and "/etc/xapi.conf.d/old cannot be read" in finding.sentence


def test_a_list_that_cannot_be_read_is_unknown(world):
    with unreadable(world.at("/etc/xapi.conf")):
        assert examine_whitelist(world.host()).status == "unknown"
        assert examine_drivers(world.host())[0][0].status == "unknown"
