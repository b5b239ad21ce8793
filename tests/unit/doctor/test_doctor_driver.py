# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on the driver: where xapi looks for it, what it answers, what is behind it, who accepts it."""

import os
import runpy
import xmlrpc.client

import pytest

from kit.doctor_world import (
    AS_XAPI,
    DRIVER,
    DRIVER_INFO,
    DROP_IN,
    EXECUTABLE,
    INFO,
    REAL_DRIVER,
    STOCK,
    UNIMPLEMENTED,
    failed,
    hangs,
    unreadable,
)
from relvmoiscsi import __version__
from relvmoiscsi.doctor import driver as driver_
from relvmoiscsi.doctor.driver import (
    Driver,
    ask_driver,
    examine_package,
    examine_python,
    examine_whitelist,
    find_driver,
    parse_driver_info,
)

THE_DRIVER = Driver(DRIVER)


# --- where xapi looks for it


def test_the_driver_is_where_xapi_looks(world):
    driver, finding = find_driver(world.host())

    assert driver == THE_DRIVER
    assert finding.status == "ok" and DRIVER in finding.sentence


@pytest.mark.parametrize("name", ["RelvmoiscsiSR", "relvmoiscsiSR", "RELVMOISCSISR"])
def test_upper_and_lower_case_of_the_stem_do_not_matter(world, name):
    os.rename(world.at(DRIVER), world.at("/opt/xensource/sm/" + name))

    driver, finding = find_driver(world.host())

    assert driver.path == "/opt/xensource/sm/" + name and finding.status == "ok"


@pytest.mark.parametrize("name", ["ReLVMoISCSISR.py", "ReLVMoISCSIsr", "ReLVMoISCSI", "XReLVMoISCSISR"])
def test_another_name_is_no_driver_of_this_type(world, name):
    os.rename(world.at(DRIVER), world.at("/opt/xensource/sm/" + name))

    driver, finding = find_driver(world.host())

    assert driver is None
    assert finding.status == "problem" and "Install the package" in finding.advice


def test_a_driver_in_the_directory_of_another_release_is_named(world):
    world.remove(DRIVER)
    world.link("/usr/libexec/sm/drivers/ReLVMoISCSISR", REAL_DRIVER)

    driver, finding = find_driver(world.host())

    assert driver is None and finding.status == "problem"
    assert "There is one in /usr/libexec/sm/drivers, where this xapi does not look." in finding.sentence


@pytest.mark.parametrize(
    "line",
    [
        "sm-dir=/usr/libexec/sm/drivers",
        "sm-dir = '/usr/libexec/sm/drivers' # moved",
        'sm-dir="/usr/libexec/sm/drivers"',
    ],
)
def test_sm_dir_moves_the_directory(world, line):
    world.link("/usr/libexec/sm/drivers/ReLVMoISCSISR", REAL_DRIVER)
    world.put("/etc/xapi.conf.d/10-sm-dir.conf", "# sm-dir=/nowhere\n" + line + "\n")

    driver, finding = find_driver(world.host())

    assert driver.path == "/usr/libexec/sm/drivers/ReLVMoISCSISR" and finding.status == "ok"


def test_two_files_that_differ_by_case_only_are_a_problem(world):
    world.link("/opt/xensource/sm/relvmoiscsiSR", REAL_DRIVER)

    driver, finding = find_driver(world.host())

    assert finding.status == "problem"
    assert driver.path == "/opt/xensource/sm/" + os.listdir(world.at("/opt/xensource/sm"))[-1]
    assert DRIVER in finding.sentence and "/opt/xensource/sm/relvmoiscsiSR" in finding.sentence


def test_a_link_to_nowhere_is_a_problem(world):
    world.remove(REAL_DRIVER)

    assert find_driver(world.host())[1].status == "problem"


def test_a_link_to_itself_is_a_problem(world):
    world.link(DRIVER, DRIVER)

    assert find_driver(world.host())[1].status == "problem"


def test_a_directory_in_its_place_is_a_problem(world):
    world.directory(DRIVER)

    finding = find_driver(world.host())[1]

    assert finding.status == "problem" and "is not a file" in finding.sentence


def test_a_file_that_is_not_executable_is_a_problem(world):
    os.chmod(world.at(REAL_DRIVER), 0o644)

    finding = find_driver(world.host())[1]

    assert finding.status == "problem" and finding.advice == f"Run `chmod 755 {DRIVER}`."


def test_without_the_directory_there_is_a_problem(world):
    world.remove("/opt/xensource/sm")

    assert find_driver(world.host())[1].status == "problem"


@pytest.mark.parametrize("path", ["/opt/xensource/sm", "/etc/xapi.conf"])
def test_what_cannot_be_read_is_unknown(world, path):
    with unreadable(world.at(path)):
        driver, finding = find_driver(world.host())

    assert driver is None and finding.status == "unknown" and "as root" in finding.advice


def test_a_configuration_that_is_no_text_is_read_all_the_same(world):
    world.put("/etc/xapi.conf", b"\xff\xfe=\x00\nsm-dir=/opt/\xe9\n" * 5000 + b"sm-dir=/opt/xensource/sm\n")

    assert find_driver(world.host())[1].status == "ok"


# --- what it answers


def answered(world, output):
    return ask_driver(world.host((AS_XAPI, output)), THE_DRIVER)


def test_the_driver_is_asked_as_xapi_asks(world):
    host = world.host((AS_XAPI, INFO))

    info, finding = ask_driver(host, THE_DRIVER)

    *environment, path, argument = host.runner.calls[0]
    params, method = xmlrpc.client.loads(argument)
    assert tuple(environment) == AS_XAPI and path == world.at(REAL_DRIVER)
    assert method == params[0]["command"] == "sr_get_driver_info" and params[0]["device_config"] == {}
    assert finding.status == "ok" and info == (DRIVER_INFO["name"], DRIVER_INFO["description"], "1.0")


@pytest.mark.processes
def test_the_real_driver_answers(world):
    info, finding = ask_driver(world.host(), THE_DRIVER)

    assert finding.status == "ok" and driver_.PHRASE in info.name


@pytest.mark.processes
@pytest.mark.parametrize(
    "script", ["#!/no/such/python\n", "#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n", "", "MZ\x00"]
)
def test_a_driver_that_does_not_run_is_a_problem(world, script):
    world.program(REAL_DRIVER, script)

    info, finding = ask_driver(world.host(), THE_DRIVER)

    assert info is None and finding.status == "problem"


@pytest.mark.processes
def test_a_driver_that_hangs_is_stopped_with_its_children(world, monkeypatch):
    monkeypatch.setattr("relvmoiscsi.doctor.host_root.COMMAND_SECONDS", 0.5)
    world.program(REAL_DRIVER, "#!/bin/sh\nsleep 300 &\nsleep 300\n")

    info, finding = ask_driver(world.host(), THE_DRIVER)

    assert info is None and finding.status == "problem"
    assert "did not end within 0.5 seconds" in finding.sentence


@pytest.mark.parametrize("failure", [failed(), failed(127, ""), hangs()], ids=["status 1", "no message", "hangs"])
def test_a_failing_driver_is_a_problem(world, failure):
    info, finding = answered(world, failure)

    assert info is None and finding.status == "problem" and DRIVER in finding.sentence


def test_without_the_words_that_cloudstack_looks_for_there_is_a_problem(world):
    renamed = dict(DRIVER_INFO, name="LVHD over iSCSI")

    info, finding = answered(world, xmlrpc.client.dumps((renamed,), methodresponse=True))

    assert info.name == "LVHD over iSCSI"
    assert finding.status == "problem" and '"resigning of duplicates"' in finding.sentence


def test_the_words_may_be_in_the_description(world):
    renamed = dict(DRIVER_INFO, name="short", description="with resigning of duplicates")

    assert answered(world, xmlrpc.client.dumps((renamed,), methodresponse=True))[1].status == "ok"


def changed(**members):
    info = {name: value for name, value in dict(DRIVER_INFO, **members).items() if value is not None}
    return xmlrpc.client.dumps((info,), methodresponse=True)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "Traceback (most recent call last):",
        INFO + INFO,
        INFO[:-20],
        INFO.replace("<methodResponse>", "<!DOCTYPE x [<!ENTITY a 'b'>]><methodResponse>"),
        xmlrpc.client.dumps(xmlrpc.client.Fault(1200, "no")),
        xmlrpc.client.dumps(("text",), methodresponse=True),
        xmlrpc.client.dumps((DRIVER_INFO,), "sr_get_driver_info"),
        changed(name=None),
        changed(vendor=3),
        changed(driver_version=None),
        changed(required_api_version="one"),
        changed(required_api_version="1."),
        changed(capabilities=None),
        changed(capabilities=[1]),
        changed(configuration="none"),
        changed(configuration=[{"key": "target"}]),
        changed(configuration=["target"]),
    ],
)
def test_an_answer_that_xapi_rejects_is_rejected(world, document):
    with pytest.raises(ValueError):
        parse_driver_info(document)

    info, finding = answered(world, document)
    assert info is None and finding.status == "problem" and finding.advice


# --- what is behind it


def package(world, outcome):
    return examine_package(world.host((AS_XAPI + ("PYTHONDONTWRITEBYTECODE=1",), outcome)), THE_DRIVER)


def test_a_driver_that_refuses_an_unknown_command_has_all_of_its_package(world):
    finding = package(world, UNIMPLEMENTED)

    assert finding.status == "ok" and __version__ in finding.sentence


@pytest.mark.processes
def test_the_real_driver_loads_its_package(world):
    assert examine_package(world.host(), THE_DRIVER).status == "ok"


@pytest.mark.processes
@pytest.mark.skipif(os.path.isdir("/usr/share/relvmoiscsi/relvmoiscsi"), reason="relvmoiscsi is installed here")
def test_the_real_driver_without_its_package_is_a_problem(world):
    world.remove("/usr/share/relvmoiscsi/relvmoiscsi")

    finding = examine_package(world.host(), THE_DRIVER)

    assert finding.status == "problem" and "fault 1200" in finding.sentence


@pytest.mark.parametrize("outcome", [failed(), hangs(), "", "garbage", INFO])
def test_any_other_answer_to_an_unknown_command_is_a_problem(world, outcome):
    assert package(world, outcome).status == "problem"


def test_a_driver_of_another_version_than_the_command_is_told(world):
    world.remove("/usr/share/relvmoiscsi/relvmoiscsi")
    world.put("/usr/share/relvmoiscsi/relvmoiscsi/__init__.py", '__version__ = "0.0.9"\n')

    finding = package(world, UNIMPLEMENTED)

    assert finding.status == "warning"
    assert "0.0.9" in finding.sentence and __version__ in finding.sentence


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"__version__ = 3\n"])
def test_a_version_that_cannot_be_told_is_a_warning(world, content):
    world.remove("/usr/share/relvmoiscsi/relvmoiscsi")
    world.put("/usr/share/relvmoiscsi/relvmoiscsi/__init__.py", content)

    assert package(world, UNIMPLEMENTED).status == "warning"


def test_the_package_is_looked_for_where_the_driver_looks():
    places = runpy.run_path(str(EXECUTABLE))["PLACES"]

    assert [os.path.realpath(places[0]), places[1]] == [str(EXECUTABLE.parents[1]), driver_.PACKAGE_DIRECTORY]


def test_the_package_of_an_installed_driver_is_in_usr_share(world):
    world.remove(DRIVER)
    world.copy(EXECUTABLE, DRIVER)

    assert package(world, UNIMPLEMENTED).sentence.endswith("from /usr/share/relvmoiscsi.")


# --- its Python


def python(world, outcome):
    return examine_python(world.host((AS_XAPI + ("/usr/bin/env", "python3", "--version"), outcome)), THE_DRIVER)


@pytest.mark.parametrize("version", ["3.6.8", "3.12.0rc1", "4.0"])
def test_python_3_6_and_later_will_do(world, version):
    finding = python(world, f"Python {version}\n")

    assert finding.status == "ok" and version in finding.sentence


def test_the_python_of_the_package_is_asked_with_its_options(world):
    world.program(REAL_DRIVER, "#!/usr/bin/python3 -IB\n")

    host = world.host((AS_XAPI + ("/usr/bin/python3", "-IB", "--version"), "Python 3.6.8\n"))

    assert examine_python(host, THE_DRIVER).status == "ok"


@pytest.mark.parametrize("version", ["2.7.5", "3.5.10", "3.4"])
def test_an_older_python_is_a_problem(world, version):
    finding = python(world, f"Python {version}\n")

    assert finding.status == "problem" and version in finding.sentence


@pytest.mark.parametrize("outcome", [failed(127, "there is no such program"), hangs()])
def test_a_python_that_does_not_run_is_a_problem(world, outcome):
    assert python(world, outcome).status == "problem"


def test_a_python_that_does_not_tell_its_version_is_unknown(world):
    assert python(world, "Jython\n").status == "unknown"


@pytest.mark.parametrize("content", ["", "#!/bin/sh\n", "#!\n", "#!/usr/bin/env\n", b"\x7fELF\xff"])
def test_a_driver_that_names_no_python_is_a_problem(world, content):
    world.program(REAL_DRIVER, content)

    assert examine_python(world.host(), THE_DRIVER).status == "problem"


def test_a_driver_that_cannot_be_read_has_an_unknown_python(world):
    with unreadable(world.at(REAL_DRIVER)):
        assert examine_python(world.host(), THE_DRIVER).status == "unknown"


@pytest.mark.processes
def test_the_real_python(world):
    assert examine_python(world.host(), THE_DRIVER).status == "ok"


# --- who accepts it


def test_the_file_that_lists_the_driver_is_named(world):
    finding = examine_whitelist(world.host())

    assert finding.status == "ok"
    assert (
        finding.sentence
        == f"sm-plugins in {DROP_IN} has relvmoiscsi; it replaces the lists in /etc/xapi.conf (has it not)."
    )


def test_a_star_accepts_every_driver(world):
    world.put(DROP_IN, "sm-plugins = *\n")

    assert "accepts every driver" in examine_whitelist(world.host()).sentence


def test_a_later_file_of_somebody_else_is_a_problem_that_names_both(world):
    world.put("/etc/xapi.conf.d/zzz-linstor.conf", STOCK + " linstor\n")

    finding = examine_whitelist(world.host())

    assert finding.status == "problem"
    assert "/etc/xapi.conf.d/zzz-linstor.conf, the last such line" in finding.sentence
    assert DROP_IN + " (has it)" in finding.sentence
    assert finding.advice == "Run `/usr/share/relvmoiscsi/sm-whitelist sync`, then `xe-toolstack-restart`."


def test_a_host_without_any_list_accepts_nothing(world):
    world.remove("/etc/xapi.conf")
    world.remove("/etc/xapi.conf.d")

    finding = examine_whitelist(world.host())

    assert finding.status == "problem" and "accepts no driver" in finding.sentence


@pytest.mark.parametrize("path", ["/etc/xapi.conf", "/etc/xapi.conf.d"])
def test_a_list_that_cannot_be_read_is_unknown(world, path):
    with unreadable(world.at(path)):
        finding = examine_whitelist(world.host())

    assert finding.status == "unknown" and finding.advice


def test_what_keeps_xapi_from_starting_is_a_problem(world):
    world.directory("/etc/xapi.conf.d/backup")
    world.link("/etc/xapi.conf.d/gone.conf", "/nowhere")

    finding = examine_whitelist(world.host())

    assert finding.status == "problem"
    assert "/etc/xapi.conf.d/backup, /etc/xapi.conf.d/gone.conf" in finding.sentence


def test_thousands_of_lists_make_a_short_sentence(world):
    for number in range(500):
        world.put(f"/etc/xapi.conf.d/{number}.conf", b"\xff\xfe = \x00\n" * 20 + STOCK.encode() + b"\n")

    finding = examine_whitelist(world.host())

    assert finding.status == "ok" and "and 496 more" in finding.sentence and len(finding.sentence) < 500
