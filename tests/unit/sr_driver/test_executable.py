# SPDX-License-Identifier: LGPL-2.1-only
"""The executable itself, as xapi runs it: one argument, an environment with nothing but PATH, one document out."""

import os
import re
import shutil

import pytest
from test_protocol import BOMB

from kit.driver_calls import DEVICE_CONFIG, EXECUTABLE, HBA_EXECUTABLE, INTERPRETERS, call_of, execute
from kit.pool import client, plugins, wire
from kit.pool.simulator import Pool, sm_directory

pytestmark = pytest.mark.processes

INFO = call_of("sr_get_driver_info", {}, args=[], session_ref=None, sr_ref=None, sr_uuid=None, subtask_of=None)
NAME = "LVHD over iSCSI with resigning of duplicates"
DESCRIPTION = "SR plugin which resignatures SRs created on an iSCSI LUN"

by_each_python = pytest.mark.parametrize("python", INTERPRETERS)


def driver_of(answer):
    assert answer.stderr == b""
    return plugins.parse_driver_info("relvmoiscsi", str(EXECUTABLE), answer.result)


def check_driver(driver):
    assert (driver.name, driver.description) == (NAME, DESCRIPTION)
    assert (driver.required_api_version, driver.driver_version) == ("1.0", "1.0")
    assert (driver.vendor, driver.copyright) == ("relvmoiscsi", "LGPL 2.1")
    assert set(driver.capabilities) == {"SR_CREATE", "SR_PROBE"}
    assert {"target", "targetIQN", "SCSIid", "port", "chapuser", "chappassword", "resign"} <= set(driver.configuration)
    assert {"incoming_chapuser", "incoming_chappassword", "multihomed", "usediscoverynumber"} <= set(
        driver.configuration
    )
    assert documented("both types") | documented("iSCSI") <= set(driver.configuration)


def documented(part):
    """The keys of a part of the list in docs/driver.rst."""
    page = (EXECUTABLE.parents[1] / "docs/driver.rst").read_text(encoding="utf-8")
    rows = page.partition(f"   * - **{part}**\n")[2].partition("   * - **")[0].partition("\nAny other")[0]
    keys = {key for row in re.findall(r"^   \* - (.*)", rows, re.MULTILINE) for key in re.findall("``(.*?)``", row)}
    assert len(keys) > 4
    return keys


@by_each_python
def test_driver_info_needs_nothing_but_python(python, tmp_path):
    alone = tmp_path / "ReLVMoISCSISR"
    shutil.copy(str(EXECUTABLE), str(alone))

    check_driver(driver_of(execute(python, alone, INFO)))


@pytest.mark.skipif(os.path.isdir("/usr/share/relvmoiscsi/relvmoiscsi"), reason="relvmoiscsi is installed here")
@pytest.mark.parametrize("package, words", [("", "installation is not complete"), ("<a> & <b>", "<a> & <b>")])
def test_without_its_package_or_with_a_broken_one_it_says_so(tmp_path, package, words):
    alone = tmp_path / "drivers" / "ReLVMoISCSISR"
    alone.parent.mkdir()
    shutil.copy(str(EXECUTABLE), str(alone))
    if package:
        (tmp_path / "relvmoiscsi").mkdir()
        (tmp_path / "relvmoiscsi/__init__.py").write_text(f"raise ImportError('{package}')")

    answer = execute(alone, call_of("sr_create"))

    assert (answer.result.code, answer.stderr) == (1200, b"")
    assert words in answer.result.text


@pytest.mark.parametrize(
    "arguments, code",
    [
        *(
            (given, 143)
            for given in ((), ("",), ("a", "b"), ("sr_get_driver_info",), ("<methodCall/>",), ("x" * 102400,))
        ),
        *((given, 143) for given in (("\udcff\udcfe",), (BOMB.replace("&j;", "sr_get_driver_info"),))),
        ((call_of("vdi_attach"),), 38),
    ],
)
def test_whatever_comes_one_document_goes(answer, arguments, code):
    found = answer(*arguments)

    assert (found.result.code, found.stderr) == (code, b"")


@by_each_python
def test_a_call_of_100_kib_is_read_and_answered_in_utf_8_without_a_locale(python):
    call = call_of("sr_create", dict(DEVICE_CONFIG, targetIQN="iqn.\u00fc\u65e5", novelty="\u65e5" * 34000))
    answer = execute(python, EXECUTABLE, call)

    assert answer.result == wire.Fault(
        96, "'iqn.\u00fc\u65e5' is no IQN (device-config:targetIQN). [ConfigTargetIQNMissing]"
    )
    assert answer.stderr == b""


@pytest.mark.skipif(os.path.exists("/var/lib/xcp/xapi"), reason="a xapi runs here")
def test_a_call_without_a_xapi():
    answer = execute(EXECUTABLE, call_of("sr_create", dict(DEVICE_CONFIG, chappassword="hunter2hunter2")))

    assert answer.result.code == 151
    assert "No such file" in answer.result.text
    assert b"hunter2" not in answer.stdout
    assert answer.stderr == b""


def test_in_a_pool(tmp_path):
    with Pool(sm_directory(tmp_path / "sm", EXECUTABLE), observer="/usr/bin/python3") as pool:
        check_driver(pool.storage.drivers["relvmoiscsi"])
        assert "resigning of duplicates" in pool.sm_list()
        with client.connected(pool) as session:
            create = (pool.master, {"chapuser": "a", "chappassword": "hunter2hunter2"}, "0", "l", "d")
            with pytest.raises(client.XenAPI.Failure) as caught:
                session.xenapi.SR.create(*create, "relvmoiscsi", "user", True, {})

    assert caught.value.details == [
        "SR_BACKEND_FAILURE_95",
        "",
        "The target (device-config:target) is missing. [ConfigTargetMissing]",
        "",
    ]
    assert [(entry.command, entry.status, entry.stderr) for entry in pool.log] == [
        ("sr_get_driver_info", 0, b""),
        ("sr_create", 0, b""),
    ]
    assert pool.log.grep("hunter2") == []
    assert pool.db.refs("SR") == []


# --- the second driver


def test_the_driver_for_adapters_says_of_itself_what_callers_do_not_take_for_iscsi(tmp_path):
    alone = tmp_path / HBA_EXECUTABLE.name
    shutil.copy(str(HBA_EXECUTABLE), str(alone))

    answer = execute(alone, INFO)

    driver = plugins.parse_driver_info("relvmohba", str(alone), answer.result)
    assert answer.stderr == b""
    assert driver.name == "LVM over HBA with new identities for clones"
    assert "resigning of duplicates" not in driver.name + driver.description  # by which CloudStack detects iSCSI's
    assert set(driver.capabilities) == {"SR_CREATE", "SR_PROBE"}
    assert {"SCSIid", "resign", "device", "type", "allocation", "lun", "targetWWPN"} <= set(driver.configuration)
    assert documented("both types") | documented("Fibre Channel, SAS") <= set(driver.configuration)


def test_the_two_drivers_differ_in_what_they_say_of_themselves_and_in_their_transport():
    def rest(executable):
        lines = executable.read_text(encoding="utf-8").splitlines()
        start, end = lines.index("DRIVER_INFO = {"), lines.index("}")
        return lines[:start] + lines[end:]

    one, other = rest(EXECUTABLE), rest(HBA_EXECUTABLE)

    assert [line.strip() for line in other if line not in one] == [
        '"""The SR driver of type relvmohba. xapi executes this file; relvmoiscsi/sr_driver has the code."""',
        "from relvmoiscsi.sr_driver.hba import HBA",
        "leave(main(argv, HBA))",
    ]
