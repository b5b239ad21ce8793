# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on what the drivers need of a host: a xapi that has started since they came, rules, room, settings; and on
what killed calls have left there.
"""

import os

import pytest

from kit.doctor_world import DRIVER, DROP_IN, REAL_DRIVER, TOP, failed, unreadable
from relvmoiscsi.doctor import needs
from relvmoiscsi.doctor.needs import (
    CONFIG,
    KEEPS_ALL,
    MAKES_ONE,
    OUR_RULES,
    examine_direct,
    examine_restart,
    examine_room,
    examine_rules,
    examine_settings,
    examine_stale_resources,
    xapi_started,
)
from relvmoiscsi.host.disk import cleanup_journal
from relvmoiscsi.host.locks.lun_lock import lun_lock

HOUR = 3600

# --- does xapi run


def test_xapi_that_runs_since_the_older_of_its_two_processes(world):
    """It counts the ticks since the boot; one of the two is a watchdog."""
    started, finding = xapi_started(world.host())
    assert finding.status == "ok" and finding.sentence.startswith("xapi runs since 20")
    assert abs(started - os.stat(world.root).st_ctime - HOUR) < 60
    for number, seconds in ((101, 1000), (100, 250)):
        world.process(number, "xapi", ticks=seconds * os.sysconf("SC_CLK_TCK"))
        assert xapi_started(world.host())[0] == started + (0 if number == 101 else seconds)


def test_processes_of_similar_names_and_what_another_user_has_started_are_not_xapi(world):
    world.remove("/proc/100")
    for number, name in enumerate(("xapi-nbd", "xap", "message-switch"), 200):
        world.process(number, name)
    world.process(300, "xapi", user=1001)
    started, finding = xapi_started(world.host())
    assert started is None and finding.status == "problem" and finding.sentence == "xapi does not run on this host."


@pytest.mark.parametrize("path, content", [
    ("/proc/100", None),
    ("/proc/stat", ""),
    ("/proc/100/stat", ""),
    ("/proc/100/stat", "100 (xapi) " + "x " * 40),
])  # fmt: skip
def test_a_start_that_the_kernel_does_not_tell_is_unknown(world, path, content):
    world.remove(path)
    if content is not None:
        world.put(path, content)
    started, finding = xapi_started(world.host())
    assert started is None and finding.status == "unknown"


# --- has it started since


def restart(world, driver=DRIVER):
    """xapi started an hour from now: nothing is newer unless a test makes it so."""
    started, _ = xapi_started(world.host())
    return examine_restart(world.host(), started, driver)


@pytest.mark.parametrize("path, driver", [
    (REAL_DRIVER, DRIVER), (DROP_IN, DRIVER), ("/etc/xapi.conf", DRIVER), (DROP_IN, "")
])  # fmt: skip
def test_a_file_that_came_after_xapi_started_is_a_warning(world, path, driver):
    assert restart(world).status == "ok"
    moment = os.stat(world.root).st_mtime + 2 * HOUR
    os.utime(world.at(path), (moment, moment))
    finding = restart(world, driver)
    assert finding.status == "warning" and (DRIVER if path == REAL_DRIVER else path) in finding.sentence
    assert "xe-toolstack-restart" in finding.advice


def test_an_old_file_that_was_installed_after_xapi_started_is_noticed(world):
    for path in (REAL_DRIVER, DRIVER, DROP_IN, "/etc/xapi.conf", "/etc/xapi.conf.d"):
        os.utime(world.at(path), (1500000000, 1500000000), follow_symlinks=False)
    world.xapi_started(-HOUR)
    finding = restart(world)
    assert finding.status == "warning" and DRIVER in finding.sentence


def test_a_driver_that_has_just_gone_does_not_confuse(world):
    world.remove(DRIVER)
    assert restart(world).status == "ok"


def test_what_cannot_be_looked_at_and_a_start_that_is_unknown_are_unknown(world):
    assert examine_restart(world.host(), None, DRIVER).status == "unknown"
    started, _ = xapi_started(world.host())
    for path in ("/etc/xapi.conf.d", "/opt/xensource/sm"):
        with unreadable(world.at(path)):
            assert examine_restart(world.host(), started, DRIVER).status == "unknown"


# --- udev rules, and room


@pytest.mark.parametrize("name, broken", list(zip(OUR_RULES, ["absent", "empty", "masked", "absent"])))
def test_rules_that_are_not_in_force_are_a_problem(world, name, broken):
    place, lower = "/etc/udev/rules.d/" + name, "/usr/lib/udev/rules.d/" + name
    world.remove(place)
    world.copy(TOP / "udev" / name, lower)
    assert examine_rules(world.host()).status == "ok"
    if broken == "absent":
        world.remove(lower)
    elif broken == "empty":
        world.put(place, "\n")
    else:
        world.link(place, "/dev/null")
    finding = examine_rules(world.host())
    assert finding.status == "problem" and name in finding.sentence


def test_rules_that_cannot_be_read_are_unknown(world):
    with unreadable(world.at("/etc/udev/rules.d/" + OUR_RULES[0])):
        assert examine_rules(world.host()).status == "unknown"


@pytest.mark.parametrize("answer, status, said", [
    ('devices {\nglobal_filter="r|/relvmoiscsi-direct-|"\n}\n', "ok", "LVM ignores the direct LUNs."),
    ('devices {\nglobal_filter=["r|/relvmoiscsi-direct-|","a|.*|"]\n}\n', "warning", "LVM may use a direct LUN"),
    (failed(), "warning", "is unknown: `program` failed with exit status 1: it broke"),
    ("no settings", "warning", "the settings of LVM"),
])  # fmt: skip
def test_lvm_that_acts_on_what_guests_write_is_a_warning(world, answer, status, said):
    world.put("/etc/lvm/lvm.conf", "")
    assert examine_direct(world.host(([], "asked"))) == [], "the host has no direct LUN"
    world.put("/etc/relvmoiscsi.conf", f"[direct]\ndisk = {SCSI_ID}\n")
    (finding,) = examine_direct(world.host((["env", "LVM_SYSTEM_DIR=" + world.at("/etc/lvm"), "lvm"], answer)))
    assert finding.status == status and said in finding.sentence and bool(finding.advice) == (status != "ok")


def test_a_list_of_direct_luns_that_cannot_be_read_is_unknown(world):
    world.put("/etc/relvmoiscsi.conf", "[direct]\n")
    with unreadable(world.at("/etc/relvmoiscsi.conf")):
        (finding,) = examine_direct(world.host())
    assert finding.status == "unknown"


@pytest.mark.parametrize("changes, said", [
    ({"f_bavail": 0}, "The file system of /run is full."),
    ({"f_files": 9, "f_favail": 0}, "The file system of /run is full."),
    ({"f_flag": os.ST_RDONLY}, "/run cannot be written to."),
])  # fmt: skip
def test_a_file_system_without_room_is_a_problem(world, monkeypatch, changes, said):
    world.directory("/run")
    assert examine_room(world.host()).status == "ok"
    real = os.statvfs(world.root)
    fields = {name: getattr(real, name) for name in ("f_flag", "f_bavail", "f_frsize", "f_files", "f_favail")}
    monkeypatch.setattr(needs.os, "statvfs", lambda path: type("Room", (), {**fields, **changes}))
    finding = examine_room(world.host())
    assert (finding.status, finding.sentence) == ("problem", said)


# --- what killed calls have left

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"


def test_a_lun_that_a_killed_call_may_have_brought_is_a_warning(world):
    """One that a call works on is no left-over."""
    assert examine_stale_resources(world.host()).status == "ok"
    cleanup_journal.note(SCSI_ID, ["1:0:0:0"], world.host())
    finding = examine_stale_resources(world.host())
    assert (finding.name, finding.status) == ("left-overs", "warning")
    assert SCSI_ID in finding.sentence and "sr-probe" in finding.advice
    with lun_lock(SCSI_ID, world.host()):
        assert examine_stale_resources(world.host()).status == "ok"


def test_a_disk_that_stays_hidden_is_a_warning_with_the_command_that_shows_it(world):
    world.put("/sys/block/sdc/dev", "8:32\n")
    world.put("/run/udev/data/b8:32", "E:RELVMOISCSI_HIDDEN=all\n")
    finding = examine_stale_resources(world.host())
    assert finding.status == "warning" and "has left sdc hidden from udev" in finding.sentence
    assert "`echo add > /sys/block/sdc/uevent`" in finding.advice


# --- settings

WRONG = "The setting {} in section [driver] of " + CONFIG + " is"
IGNORED = "ignores '{}' in section [driver]"
ODD_KEYS = "[driver]\nvdi = one\ndedline = 10\ncopy = 64\n[direct]\nanything = 3600\n"


@pytest.mark.parametrize("text, expected", [
    (None, [("ok", KEEPS_ALL)]),
    ("[driver]\nvdis = one\n", [("ok", MAKES_ONE)]),
    ("[driver]\nvdis = two\n", [("problem", WRONG.format("vdis"))]),
    ("[Driver]\nVdis=ONE\n", [("problem", f"The line '[Driver]' of {CONFIG} is not read")]),
    (ODD_KEYS, [("warning", IGNORED.format("vdi")), ("warning", IGNORED.format("dedline")), ("ok", KEEPS_ALL)]),
])  # fmt: skip
def test_what_is_in_force_is_said_and_what_does_not_read_is_a_problem(world, text, expected):
    if text is not None:
        world.put(CONFIG, text)
    found = examine_settings(world.host())
    assert [(each.name, each.status) for each in found] == [("settings", status) for status, _ in expected]
    for each, (status, words) in zip(found, expected):
        assert words in each.sentence and bool(each.advice) == (status != "ok")
        assert status != "warning" or "Use one of deadline, vdis, copy" in each.advice


def test_a_file_that_cannot_be_read_leaves_it_unknown(world):
    world.directory(CONFIG)
    (finding,) = examine_settings(world.host())
    assert finding.status == "unknown" and "cannot be read: Is a directory." in finding.sentence
