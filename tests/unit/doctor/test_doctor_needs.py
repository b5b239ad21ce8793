# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on what the drivers need of a host besides xapi, and on what killed calls have left there."""

import os

import pytest

from kit.doctor_world import TOP, unreadable
from relvmoiscsi.doctor import needs
from relvmoiscsi.doctor.needs import (
    CONFIG,
    KEEPS_ALL,
    MAKES_ONE,
    OUR_RULES,
    examine_room,
    examine_rules,
    examine_settings,
    examine_stale_resources,
)
from relvmoiscsi.host.disk import cleanup_journal
from relvmoiscsi.host.locks.sm_locks import lun_lock

# --- udev rules, and room


@pytest.mark.parametrize("name, broken", list(zip(OUR_RULES, ["absent", "empty", "masked", "absent"])))
def test_rules_that_are_not_in_force_are_a_problem(world, name, broken):
    world.remove("/etc/udev/rules.d/" + name)
    world.copy(TOP / "udev" / name, "/usr/lib/udev/rules.d/" + name)
    assert examine_rules(world.host()).status == "ok"
    if broken == "absent":
        world.remove("/usr/lib/udev/rules.d/" + name)
    elif broken == "empty":
        world.put("/etc/udev/rules.d/" + name, "\n")
    else:
        world.link("/etc/udev/rules.d/" + name, "/dev/null")

    finding = examine_rules(world.host())

    assert finding.status == "problem" and name in finding.sentence


def test_rules_that_cannot_be_read_are_unknown(world):
    with unreadable(world.at("/etc/udev/rules.d/" + OUR_RULES[0])):
        assert examine_rules(world.host()).status == "unknown"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"f_bavail": 0}, "The file system of /run is full."),
        ({"f_files": 9, "f_favail": 0}, "The file system of /run is full."),
        ({"f_flag": os.ST_RDONLY}, "/run cannot be written to."),
    ],
)
def test_a_file_system_without_room_is_a_problem(world, monkeypatch, changes, said):
    world.directory("/run")
    real = os.statvfs(world.root)
    fields = {name: getattr(real, name) for name in ("f_flag", "f_bavail", "f_frsize", "f_files", "f_favail")}
    monkeypatch.setattr(needs.os, "statvfs", lambda path: type("Room", (), {**fields, **changes}))

    finding = examine_room(world.host())

    assert (finding.status, finding.sentence) == ("problem", said)


def test_there_is_room(world):
    assert examine_room(world.host()).status == "ok"


# --- what killed calls have left

SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"


def test_a_host_where_no_call_was_killed_is_well(world):
    assert examine_stale_resources(world.host()).status == "ok"


def test_a_lun_that_a_killed_call_may_have_brought_is_a_warning(world):
    cleanup_journal.note(SCSI_ID, ["1:0:0:0"], world.host())

    finding = examine_stale_resources(world.host())

    assert (finding.name, finding.status) == ("left-overs", "warning")
    assert SCSI_ID in finding.sentence
    assert "sr-probe" in finding.advice


def test_a_lun_that_a_call_works_on_is_no_left_over(world):
    cleanup_journal.note(SCSI_ID, ["1:0:0:0"], world.host())

    with lun_lock(SCSI_ID, world.host()):
        assert examine_stale_resources(world.host()).status == "ok"


def test_a_disk_that_stays_hidden_is_a_warning_with_the_command_that_shows_it(world):
    world.put("/sys/block/sdc/dev", "8:32\n")
    world.put("/run/udev/data/b8:32", "E:RELVMOISCSI_HIDDEN=all\n")

    finding = examine_stale_resources(world.host())

    assert finding.status == "warning" and "has left sdc hidden from udev" in finding.sentence
    assert "`echo change > /sys/block/sdc/uevent`" in finding.advice


# --- settings


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, KEEPS_ALL),
        ("", KEEPS_ALL),
        ("[driver]\nvdis = all\n", KEEPS_ALL),
        ("[driver]\nvdis = one\n", MAKES_ONE),
    ],
)
def test_what_is_in_force_is_said(world, text, sentence):
    if text is not None:
        world.put(CONFIG, text)

    (finding,) = examine_settings(world.host())

    assert (finding.name, finding.status, finding.sentence) == ("settings", "ok", sentence)


@pytest.mark.parametrize("line", ["vdis = two", "copy = lots", "deadline = soon", "deadline = 4", "deadline = nan"])
def test_a_setting_that_does_not_read_is_a_problem(world, line):
    world.put(CONFIG, f"[driver]\n{line}\n")

    (finding,) = examine_settings(world.host())

    assert (finding.name, finding.status) == ("settings", "problem")
    assert f"The setting {line.split()[0]} in section [driver] of {CONFIG} is" in finding.sentence
    assert finding.advice


def test_a_line_that_would_not_be_read_is_a_problem(world):
    world.put(CONFIG, "[Driver]\nVdis=ONE\n")

    (finding,) = examine_settings(world.host())

    assert (finding.name, finding.status) == ("settings", "problem")
    assert f"The line '[Driver]' of {CONFIG} is not read" in finding.sentence


def test_a_file_that_cannot_be_read_leaves_it_unknown(world):
    world.directory(CONFIG)

    (finding,) = examine_settings(world.host())

    assert (finding.name, finding.status) == ("settings", "unknown")
    assert "cannot be read: Is a directory." in finding.sentence


def test_a_key_that_the_driver_does_not_know_is_named(world):
    world.put(CONFIG, "[driver]\nvdi = one\ndedline = 10\ncopy = 64\n[direct]\nanything = 3600\n")

    *ignored, said = examine_settings(world.host())

    assert [(each.status, each.sentence.split("'")[1]) for each in ignored] == [
        ("warning", "vdi"),
        ("warning", "dedline"),
    ]
    assert "Use one of deadline, vdis, copy" in ignored[0].advice
    assert (said.status, said.sentence) == ("ok", KEEPS_ALL)
