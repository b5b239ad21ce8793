# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on xapi: does it run, and has it started since the driver and its lists changed?"""

import os

import pytest

from kit.doctor_world import DRIVER, DROP_IN, REAL_DRIVER, unreadable
from relvmoiscsi.doctor.toolstack import examine_restart, xapi_started

HOUR = 3600


def restart(world):
    """xapi started an hour from now: nothing is newer unless a test makes it so."""
    started, finding = xapi_started(world.host())
    assert finding.status == "ok"
    return examine_restart(world.host(), started, DRIVER)


def newer(world, path):
    """The file gets a time after xapi's start, as a file has that came later."""
    moment = os.stat(world.root).st_mtime + 2 * HOUR
    os.utime(world.at(path), (moment, moment))


# --- does it run


def test_xapi_that_runs(world):
    started, finding = xapi_started(world.host())

    assert finding.status == "ok" and finding.sentence.startswith("xapi runs since 20")
    assert abs(started - os.stat(world.root).st_ctime - HOUR) < 60


def test_ticks_since_boot_are_counted(world):
    before, _ = xapi_started(world.host())
    world.process(100, "xapi", ticks=250 * os.sysconf("SC_CLK_TCK"))

    assert xapi_started(world.host())[0] == before + 250


def test_of_a_watchdog_and_its_child_the_older_counts(world):
    before, _ = xapi_started(world.host())
    world.process(101, "xapi", ticks=1000 * os.sysconf("SC_CLK_TCK"))

    assert xapi_started(world.host())[0] == before


def test_processes_of_similar_names_are_not_xapi(world):
    world.remove("/proc/100")
    for number, name in enumerate(("xapi-nbd", "xap", "message-switch"), 200):
        world.process(number, name)

    started, finding = xapi_started(world.host())

    assert started is None and finding.status == "problem" and finding.sentence == "xapi does not run on this host."


@pytest.mark.parametrize("path", ["/proc", "/proc/100"])
def test_without_proc_it_is_unknown(world, path):
    world.remove(path)

    started, finding = xapi_started(world.host())

    assert started is None and finding.status == "unknown"


@pytest.mark.parametrize(
    "path, content",
    [
        ("/proc/stat", ""),
        ("/proc/stat", b"btime \xff\n"),
        ("/proc/100/stat", ""),
        ("/proc/100/stat", "100 (xapi) S 1"),
        ("/proc/100/stat", "100 (xapi) " + "x " * 40),
    ],
)
def test_a_start_that_the_kernel_does_not_tell_is_unknown(world, path, content):
    world.put(path, content)

    started, finding = xapi_started(world.host())

    assert started is None and finding.status == "unknown"


# --- has it started since


def test_xapi_has_seen_everything(world):
    assert restart(world).status == "ok"


@pytest.mark.parametrize("path", [REAL_DRIVER, DROP_IN, "/etc/xapi.conf"])
def test_a_file_that_came_after_xapi_started_is_a_warning(world, path):
    newer(world, path)

    finding = restart(world)

    assert finding.status == "warning" and (DRIVER if path == REAL_DRIVER else path) in finding.sentence
    assert "xe-toolstack-restart" in finding.advice


def test_an_old_file_that_was_installed_after_xapi_started_is_noticed(world):
    for path in (REAL_DRIVER, DRIVER, DROP_IN, "/etc/xapi.conf", "/etc/xapi.conf.d"):
        os.utime(world.at(path), (1500000000, 1500000000), follow_symlinks=False)
    world.xapi_started(-HOUR)

    finding = restart(world)

    assert finding.status == "warning" and DRIVER in finding.sentence


def test_without_a_driver_the_lists_count(world):
    newer(world, DROP_IN)
    started, _ = xapi_started(world.host())

    assert examine_restart(world.host(), started, "").status == "warning"


def test_a_driver_that_has_just_gone_does_not_confuse(world):
    world.remove(DRIVER)

    assert restart(world).status == "ok"


def test_without_a_start_it_is_unknown(world):
    assert examine_restart(world.host(), None, DRIVER).status == "unknown"


@pytest.mark.parametrize("path", ["/etc/xapi.conf.d", "/opt/xensource/sm"])
def test_files_that_cannot_be_looked_at_are_unknown(world, path):
    started, _ = xapi_started(world.host())

    with unreadable(world.at(path)):
        finding = examine_restart(world.host(), started, DRIVER)

    assert finding.status == "unknown"
