# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN stays hidden for exactly as long as it should."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kit.scripted_events import waiting_with
from kit.udev_world import LUN, OTHER, UdevWorld
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import hiding
from relvmoiscsi.host.disk.hiding import (
    hidden,
    hidden_adapters,
    ids_here,
    is_hidden,
    is_stale_hidden,
    stale_hidden,
    switch_name,
    wait_until_shown,
)
from relvmoiscsi.host.own_process import run_in_child
from relvmoiscsi.host.terminated import Terminated, heeded, pause


@pytest.fixture
def world(tmp_path):
    return UdevWorld(tmp_path)


# --- the switch


def test_a_lun_is_hidden_for_as_long_as_the_block_runs(world):
    with hidden(LUN, host=world.host):
        assert world.hides() == [LUN, "mpath-" + LUN]
        switch = Path(world.run_dir) / "hide" / LUN
        assert switch.read_text() == f"{os.getpid()}\n"
        assert not can_be_locked(switch)
        assert os.path.samefile(str(switch), str(switch.with_name("mpath-" + LUN)))

    assert world.hides() is None
    assert os.listdir(world.run_dir) == []


def can_be_locked(path):
    """What the rules ask: may one have a shared lock, or does the owner live?"""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_switch_goes_also_when_the_block_fails(world):
    with pytest.raises(NotFound), hidden(LUN, host=world.host):
        raise NotFound("no such LUN")

    assert world.hides() is None


def test_two_luns_are_hidden_independently(world):
    with hidden(LUN, host=world.host):
        with hidden(OTHER, host=world.host):
            assert world.hides() == sorted([LUN, OTHER, "mpath-" + LUN, "mpath-" + OTHER])
        assert world.hides() == [LUN, "mpath-" + LUN]


def test_a_lun_is_hidden_by_one_process_only_and_the_other_is_told_by_which(world):
    with hidden(LUN, host=world.host):
        before = inode_of_switch(world)
        by_another = pytest.raises(Refused, match=f"^LUN {LUN} is being worked on by ")
        with by_another, hidden(LUN, host=world.host):
            pytest.fail("it was hidden twice")
        assert inode_of_switch(world) == before and not can_be_locked(Path(world.run_dir) / "hide" / LUN)


def inode_of_switch(world):
    return os.stat(os.path.join(world.run_dir, "hide", LUN)).st_ino


def test_what_a_killed_process_left_over_is_replaced_and_cleared(world):
    for name in (LUN, "mpath-" + LUN, OTHER):
        world.put("run/relvmoiscsi/hide/" + name, "4711\n")

    with hidden(LUN, host=world.host):
        assert world.hides() == [LUN, "mpath-" + LUN]
        assert not can_be_locked(Path(world.run_dir) / "hide" / LUN)
    assert world.hides() is None


def test_a_switch_that_somebody_removed_is_no_failure_of_the_run(world, caplog):
    with hidden(LUN, host=world.host):
        shutil.rmtree(world.run_dir)

    assert "could not be removed" in caplog.text


def test_a_file_that_is_not_ours_stays_and_so_does_the_directory(world):
    with hidden(LUN, host=world.host):
        held = (Path(world.run_dir) / "hide" / "3other").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)

    assert world.hides() == ["3other"]
    held.close()


def test_a_directory_that_cannot_be_made_is_a_refusal(world):
    world.put("run/relvmoiscsi", "a file")

    refused = pytest.raises(Refused, match="cannot be hidden from event handlers: .*: File exists. Look at what is in")
    with refused, hidden(LUN, host=world.host):
        pytest.fail("it was hidden")


def test_without_the_rules_nothing_could_be_hidden(world):
    os.unlink(str(world.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))

    refused = pytest.raises(Refused, match="no 57-relvmoiscsi.rules in .*Nothing was written")
    with refused, hidden(LUN, host=world.host):
        pytest.fail("it was hidden")
    assert not os.path.exists(world.run_dir)


def test_rules_that_are_switched_off_hide_nothing(world):
    (world.root / "etc/udev/rules.d").mkdir(parents=True)
    os.symlink(os.devnull, str(world.root / "etc/udev/rules.d/57-relvmoiscsi.rules"))

    with pytest.raises(Refused, match="57-relvmoiscsi.rules is empty"), hidden(LUN, host=world.host):
        pytest.fail("it was hidden")


def test_without_udev_the_rules_are_not_missed(world):
    os.unlink(str(world.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))
    os.unlink(str(world.root / "run/udev/control"))

    with hidden(LUN, host=world.host):
        assert os.path.exists(os.path.join(world.run_dir, "hide", LUN))


def test_a_switch_that_could_be_made_in_part_only_counts_for_nothing(world, monkeypatch):
    rename = os.rename

    def no_room(source, target):
        if os.path.basename(target) == "mpath-" + LUN:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", no_room)
    with pytest.raises(Refused, match="No space left on device"), hidden(LUN, host=world.host):
        pytest.fail("it was hidden")

    assert world.hides() is None


def test_processes_change_the_switches_one_after_the_other(world, monkeypatch):
    monkeypatch.setattr(hiding, "LOCK_SECONDS", 0.01)
    os.makedirs(world.run_dir)
    descriptor = os.open(world.run_dir, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(Refused, match="was not free within 0.01 seconds"), hidden(LUN, host=world.host):
        pytest.fail("it was hidden")
    os.close(descriptor)


def test_a_lun_is_shown_when_udev_has_made_its_link_and_hides_no_disk_of_it(world):
    host = world.host._replace(wait_for=waiting_with())
    assert wait_until_shown(LUN, 0, host), "it has no disk"
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", "E:RELVMOISCSI_HIDDEN=all")
    steps = [
        lambda: world.put("dev/disk/by-id/scsi-" + LUN),
        lambda: world.udev_knows("8:0", "I:186177866"),
    ]

    assert not wait_until_shown(LUN, 0, host)
    steps[0]()
    assert not wait_until_shown(LUN, 0, host), "one disk is hidden"
    assert wait_until_shown(LUN, 60, world.host._replace(wait_for=waiting_with(steps[1])))


# --- the switch of an adapter


def test_a_switch_goes_although_the_call_is_told_to_end_meanwhile(world, monkeypatch):
    take_before = flock.take_before
    monkeypatch.setattr(flock, "take_before", lambda *arguments: (pause(0), take_before(*arguments))[1])

    with suppress(Terminated), heeded(), hidden_adapters(["host3"], (), world.host):
        os.kill(os.getpid(), signal.SIGTERM)

    assert world.hides() is None


def test_a_line_that_there_is_no_room_for_is_none(world, monkeypatch, caplog):
    world.has_disk("sda", "8:0")
    killed(world, "scan-host1")
    path = Path(world.run_dir) / "hide/scan-host1"
    write = os.write
    with monkeypatch.context() as patch, hidden(LUN, host=world.host):
        world.udev_knows("8:0", "I:186177866", "E:RELVMOISCSI_HIDDEN=all")
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))

    assert "No space left on device. Make room there." in caplog.text
    assert path.read_text() == "4711\n"


def has_disk_behind(world, adapter, name, number, scsi_id, *lines):
    """A disk as udev knows it."""
    world.has_disk(name, number, scsi_id)
    (world.root / f"sys/bus/scsi/devices/{adapter}:0:0:7/block" / name).mkdir(parents=True)
    world.udev_knows(number, "I:186177866", *lines)


def test_adapters_are_hidden_for_as_long_as_the_block_runs_but_what_is_known(world):
    with hidden_adapters(["host1", "host13"], [LUN, "1LIO-ORG FILEIO"], world.host):
        names = world.hides()
        assert [name.rpartition("-")[2] for name in names] == ["host1", "host13"]
        for name in names:
            path = Path(world.run_dir) / "hide" / name
            assert not can_be_locked(path)
            assert path.read_text().splitlines() == [str(os.getpid()), "id=" + LUN, "id=1LIO-ORG_FILEIO"]

    assert world.hides() is None


def test_disks_behind_an_adapter_that_are_hidden_still_are_shown_again(world):
    """Unless a call is at the LUN; "all" is what came hidden, "lvm" what was there before."""
    for adapter, name, number, mark in (
        (1, "sda", "8:0", "all"),
        (13, "sdb", "8:16", "all"),
        (2, "sdc", "8:32", "lvm"),
    ):
        has_disk_behind(world, adapter, name, number, OTHER, "E:RELVMOISCSI_HIDDEN=" + mark)
    has_disk_behind(world, 3, "sdd", "8:48", LUN, "E:RELVMOISCSI_HIDDEN=all")
    with hidden(LUN, host=world.host):
        with hidden_adapters(["host1", "host2", "host3"], [], world.host):
            assert [is_stale_hidden(name, world.host) for name in ("sda", "sdc", "sdd")] == [True, False, False]
        assert [world.event_of(name) for name in ("sda", "sdb", "sdc", "sdd")] == ["add", "", "", ""]


def test_a_disk_behind_an_adapter_that_udev_does_not_tell_of_is_only_logged(world, caplog):
    has_disk_behind(world, 1, "sda", "8:0", OTHER, "E:RELVMOISCSI_HIDDEN=all")
    with hidden_adapters(["host1"], [], world.host):
        (world.root / "run/udev/data/b8:0").unlink()
        (world.root / "run/udev/data/b8:0").mkdir()

    assert "was not asked to look at sda again" in caplog.text


def test_a_disk_that_udev_is_at_when_the_switch_goes_has_another_event(world):
    """It may have asked for the switch already: its database would say hidden from then on, for everybody."""
    for adapter, name, number, scsi_id in (
        (1, "sda", "8:0", OTHER),
        (2, "sdb", "8:16", LUN),
        (4, "sdc", "8:32", OTHER),
    ):
        has_disk_behind(world, adapter, name, number, scsi_id)
    for number in ("8:0", "8:16", "8:32"):
        (world.root / "run/udev/data" / ("b" + number)).unlink()
    with hidden(LUN, host=world.host):
        with hidden_adapters(["host1", "host2"], [], world.host):
            pass
        assert [world.event_of(name) for name in ("sda", "sdb", "sdc")] == ["add", "", ""]
    assert world.event_of("sdb") == "add"


def test_where_udev_does_not_run_no_disk_has_an_event(world):
    has_disk_behind(world, 1, "sda", "8:0", OTHER)
    (world.root / "run/udev/data/b8:0").unlink()
    (world.root / "run/udev/control").unlink()
    with hidden_adapters(["host1"], [], world.host), hidden(OTHER, host=world.host):
        pass

    assert world.event_of("sda") == ""


def test_partitions_that_were_hidden_with_their_disk_are_shown_with_it(world):
    has_disk_behind(world, 1, "sda", "8:0", OTHER, "E:RELVMOISCSI_HIDDEN=all")
    for part, number in (("sda1", "8:1"), ("sda2", "8:2"), ("sda3", "8:3")):
        world.put(f"sys/block/sda/{part}/partition", part[-1] + "\n")
        world.put(f"sys/block/sda/{part}/dev", number + "\n")
        world.put(f"sys/block/sda/{part}/uevent")
    world.udev_knows("8:1", "I:186177867", "E:RELVMOISCSI_HIDDEN=all")
    world.udev_knows("8:2", "I:186177867")
    with hidden_adapters(["host1"], [], world.host):
        pass

    assert [world.event_of(name) for name in ("sda", "sda/sda1", "sda/sda2", "sda/sda3")] == ["add", "add", "", "add"]


@pytest.mark.processes
def test_a_write_that_hangs_hides_its_lun_and_not_whatever_comes_behind_the_adapters(world):
    """The call was killed: its own copies of the locks are gone."""

    def writes_on(_begin):
        return " ".join(sorted(name for name in world.hides() if keeps(name)))

    def keeps(name):
        switch = os.stat(os.path.join(world.run_dir, "hide", name))
        descriptors = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return any(os.path.samestat(os.stat(path), switch) for path in descriptors if os.path.exists(path))

    with hidden(LUN, host=world.host), hidden_adapters(["host1"], [], world.host):
        assert run_in_child(writes_on, NO_DEADLINE, "it was written") == f"{LUN} mpath-{LUN}"


def test_without_the_rules_no_adapter_is_hidden(world):
    os.unlink(str(world.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))

    with pytest.raises(Refused, match="LUN behind host1 cannot"), hidden_adapters(["host1"], [], world.host):
        pytest.fail("it was hidden")


def test_the_luns_of_a_host_are_those_of_its_disks_and_maps_but_what_a_killed_scan_has_brought(world):
    third = OTHER[:-1] + "2"
    world.has_disk("sda", "8:0")
    has_disk_behind(world, 1, "sdb", "8:16", third, "E:RELVMOISCSI_HIDDEN=all")
    world.has_map("dm-0", "254:0", scsi_id=OTHER)  # all its paths are down

    assert ids_here(world.host) == [LUN, OTHER]


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)")
def test_the_program_of_the_rule_knows_the_disks_of_a_hidden_adapter(world):
    def is_left_alone(scsi_id=OTHER):
        return program_succeeds(world, "scan-", adapter="host1", scsi_id=scsi_id)

    assert is_left_alone()
    for other in ("host", "host13", "host2"):
        with hidden_adapters([other], [], world.host):
            assert is_left_alone(), other
    killed(world, "scan-host1", OLD)
    assert is_left_alone()
    with hidden_adapters(["host3", "host1"], [LUN, "36001405"], world.host):
        assert not is_left_alone()
        assert not is_left_alone(scsi_id=""), "it does not tell its id"
        assert not is_left_alone(scsi_id="6001405")
        assert is_left_alone(LUN)
    assert is_left_alone()


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)")
@pytest.mark.parametrize("word", ["$env{.RELVMOISCSI_ID}", "$attr{dm/uuid}"])
def test_the_program_of_the_rule_knows_a_switch_that_counts_and_makes_none(world, word):
    """udev has seen the file a moment ago, and flock(1) would make it anew: nobody would ever remove that."""

    def is_left_alone():
        return program_succeeds(world, word, scsi_id=LUN, uuid="mpath-" + LUN)

    with hidden(LUN, host=world.host):
        assert not is_left_alone()
        (Path(world.run_dir) / "hide/another").write_text("7\n")
        for name in (LUN, "mpath-" + LUN):
            (Path(world.run_dir) / "hide" / name).unlink()
        assert is_left_alone()
        assert world.hides() == ["another"]
    (Path(world.run_dir) / "hide" / LUN).write_text("of a process that was killed\n")
    (Path(world.run_dir) / "hide" / ("mpath-" + LUN)).write_text("of a process that was killed\n")
    assert is_left_alone()


OLD = hiding.COUNTS_MINUTES * 60 + 1  #: seconds


def killed(world, name, age_seconds=0, *ids):
    """A call that was killed has made this switch so long ago, without these LUNs."""
    path = Path(world.run_dir) / "hide" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("4711\n" + "".join(f"id={one}\n" for one in ids))
    os.utime(str(path), (time.time() - age_seconds,) * 2)


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)")
def test_the_program_of_the_rule_knows_what_comes_by_the_scan_of_a_call_that_was_just_killed(world):
    name = "scan-host1"

    def is_left_alone(scsi_id=OTHER):
        return program_succeeds(world, "scan-", adapter="host1", scsi_id=scsi_id)

    killed(world, name, OLD - 10, LUN)
    assert not is_left_alone() and not is_left_alone("")
    assert is_left_alone(LUN), "the pool knows it"
    killed(world, name, OLD, LUN)
    assert is_left_alone()


def test_the_switch_of_a_call_that_was_just_killed_goes_when_it_counts_no_longer_or_a_call_at_its_place_ends(world):
    same, another = "scan-host1", "scan-host2"
    for name in (same, another):
        killed(world, name, OLD - 10)
    killed(world, "scan-host3", OLD)
    killed(world, OTHER)

    with hidden(LUN, host=world.host):
        assert world.hides() == [LUN, "mpath-" + LUN, same, another]
        with hidden_adapters(["host1"], [], world.host):
            assert same in world.hides(), "it would not hide for a moment"
        assert world.hides() == [LUN, "mpath-" + LUN, another]
    assert world.hides() == [another]
    with hidden_adapters(["host2"], [], world.host):
        pass
    assert world.hides() is None


def test_what_the_switch_of_a_call_that_was_just_killed_hides_is_not_left_hidden_yet(world):
    has_disk_behind(world, 1, "sdc", "8:32", OTHER, "E:RELVMOISCSI_HIDDEN=all")
    for age, left in ((OLD - 10, []), (OLD, ["sdc"])):
        killed(world, "scan-host1", age)
        assert stale_hidden(world.host) == left


def test_a_lun_that_a_call_shows_is_left_out_of_what_calls_hide_that_were_killed_and_of_that_alone(world):
    world.has_disk("sda", "8:0")
    killed(world, "scan-host1", OLD - 10)
    path = Path(world.run_dir) / "hide/scan-host1"
    before = path.stat().st_mtime
    with hidden_adapters(["host2"], [], world.host):
        with hidden(LUN, host=world.host):
            world.udev_knows("8:0", "I:186177866", "E:RELVMOISCSI_HIDDEN=all")
        assert world.event_of("sda") == "add"
        assert [name for name in world.hides() if f"id={LUN}" in (path.parent / name).read_text()] == [path.name]
    assert path.stat().st_mtime == before, "it counts no longer for that"


def program_succeeds(world, word, adapter="", scsi_id="", uuid=""):
    """Does the program of the rules with this word in it?"""
    programs = re.findall(r"PROGRAM[!=]=\"/bin/sh -c '(.*)'(.*)\", GOTO", RULES[0].read_text(encoding="utf-8"))
    ((program, arguments),) = [one for one in programs if word in one[0]]
    program = program.replace("$$", "$")
    program = program.replace("$env{.RELVMOISCSI_ID}", scsi_id).replace("$attr{dm/uuid}", uuid)
    program = program.replace("/sys/", str(world.root / "sys") + "/").replace("/run/relvmoiscsi", world.run_dir)
    given = arguments.replace("$id", adapter).replace("$env{.RELVMOISCSI_ID}", scsi_id).split()
    return subprocess.run(["/bin/sh", "-c", program, *given], stdin=subprocess.DEVNULL, check=False).returncode == 0


# --- and what is seen afterwards


def test_disks_and_map_are_shown_again_hidden_or_not_as_udev_may_be_at_one_and_see_the_switch(world):
    world.has_disk("sda", "8:0")
    world.has_disk("sdb", "8:16")
    world.has_disk("sdc", "8:32", scsi_id=OTHER)
    world.has_disk("sdd", "8:48")  # it was there before
    world.has_map("dm-0", "254:0")
    world.has_map("dm-1", "254:1", scsi_id=OTHER)
    with hidden(LUN, host=world.host):
        for number in ("8:0", "8:32", "254:0", "254:1"):
            world.udev_knows(number, "I:186177866", "E:RELVMOISCSI_HIDDEN=all")
        world.udev_knows("8:16", "I:186177866", "E:DM_MULTIPATH_DEVICE_PATH=1")
        world.udev_knows("8:48", "I:186177866", "E:RELVMOISCSI_HIDDEN=lvm")
        assert is_hidden("sda", world.host) and not is_hidden("sdb", world.host)

    assert [world.event_of(name) for name in ("sda", "sdb", "sdc", "dm-0", "dm-1", "sdd")] == [
        "add",
        "change",
        "",
        "change",
        "",
        "change",
    ]


def test_a_disk_that_goes_at_that_moment_or_cannot_be_read_is_no_failure(world, caplog):
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", "E:RELVMOISCSI_HIDDEN=all")
    with hidden(LUN, host=world.host):
        (world.root / "sys/block/sda/uevent").unlink()
        (world.root / "sys/block/sda/uevent").mkdir()
    with hidden(LUN, host=world.host):
        (world.root / "run/udev/data/b8:0").unlink()
        (world.root / "run/udev/data/b8:0").mkdir()

    assert "was not asked to look" in caplog.text


# --- names


@pytest.mark.parametrize(
    "scsi_id, name",
    [
        (LUN, LUN),
        ("1LIO-ORG_FILEIO:993c87c3-7fa8-4d02", "1LIO-ORG_FILEIO:993c87c3-7fa8-4d02"),
        ("SATA_disk/../../etc", "SATA_disk_.._.._etc"),
        ("0a'b\"c$d%e?f*g,h;i j", "0a_b_c_d_e_f_g_h_i_j"),
        ("0a\\x2fb\\c", "0a\\x2fb_c"),
    ],
)
def test_the_name_of_a_switch_is_what_the_rule_makes_of_the_id(scsi_id, name):
    assert switch_name(scsi_id) == name


@pytest.mark.parametrize("scsi_id", ["", "..", "mpath-" + LUN, "paths-x", "3" * 250])
def test_what_is_not_a_scsi_id_has_no_switch(scsi_id):
    with pytest.raises(UsageError) as caught:
        switch_name(scsi_id)
    assert caught.value.sm_key == "ConfigSCSIid"


# --- the rules

RULES = sorted((Path(__file__).resolve().parents[4] / "udev").glob("*-relvmoiscsi.rules"))


def rule_text():
    return "\n".join(path.read_text(encoding="utf-8") for path in RULES)


def test_the_rules_look_where_the_switch_is():
    text = rule_text()

    assert hiding.RUN_DIRECTORY + "/hide" in text
    assert set(re.findall(r"/run/[a-z/]*", text)) == {"/run/relvmoiscsi/hide", "/run/relvmoiscsi/hide/"} | set(
        re.findall(r"/run/relvmoiscsi/hide/(?:mpath|scan)", text)
    )
    assert hiding.MARK in text


def test_the_rules_come_where_their_comment_says():
    others = ["11-dm-mpath", "56-dm-mpath", "58-scsi-sg3_symlink", "60-multipath", "60-persistent-storage", "69-lvm"]
    others += ["61-scsi-sg3_id", "66-kpartx", "62-multipath", "69-dm-lvm-metad", "80-udisks2", "99-systemd"]
    others += ["99-z-dm-mpath-late"]
    first, last = (path.stem for path in RULES)

    order = sorted([*others, first, last])
    assert order.index(first) == 2 and order[-1] == last


#: What `sg_inq --export` makes of page 0x83, for the LUN, its port and its target.
SG_INQ = "VENDOR T10 ATA EUI64 NAA_EXT NAA_LOCAL NAA_REG NAA_REGEXT RELATIVE TARGET_PORT_GROUP LOGICAL_UNIT_GROUP MD5"
SG_INQ += " NAME UUID UAS_DEVICE_ADDRESS UAS_INTERFACE_NUMBER SOP_ROUTING_ID"


def test_a_hidden_disk_has_none_of_the_properties_by_which_multipathd_takes_it():
    """property "(SCSI_IDENT_|ID_WWN)" in multipath.conf(5)."""
    last = RULES[-1].read_text(encoding="utf-8").replace("\\\n", "")
    hidden = 'ENV{RELVMOISCSI_HIDDEN}=="all", ENV{nompath}=="1", '

    lines = " ".join(line for line in last.splitlines() if line.startswith(hidden))
    emptied = re.findall(r'ENV\{((?:SCSI_IDENT|ID_WWN)\w*)\}=""', lines)

    identifiers = [f"SCSI_IDENT_{whose}_{kind}" for whose in ("LUN", "PORT", "TARGET") for kind in SG_INQ.split()]
    names = ["ID_WWN", "ID_WWN_WITH_EXTENSION", "ID_WWN_VENDOR_EXTENSION", "SCSI_IDENT_SERIAL"]
    assert emptied == names + identifiers


def test_every_jump_in_the_rules_has_its_label():
    for path in RULES:
        text = path.read_text(encoding="utf-8")
        labels = re.findall(r'LABEL="(\w+)"', text)
        assert len(labels) == len(set(labels))
        assert set(re.findall(r'GOTO="(\w+)"', text)) == set(labels)
        # udev drops a jump whose label is not further down.
        for match in re.finditer(r'GOTO="(\w+)"', text):
            assert text.index(f'LABEL="{match.group(1)}"') > match.start(), match.group(1)


@pytest.mark.processes
def test_udev_finds_nothing_wrong_with_the_rules():
    udevadm = shutil.which("udevadm")
    options = subprocess.check_output([udevadm, "--help"], encoding="utf-8") if udevadm else ""
    if not re.search(r"^ +verify ", options, re.MULTILINE):
        pytest.skip("udevadm has no `verify` here; it came with systemd 254")
    subprocess.run([udevadm, "verify", "--no-style", *map(str, RULES)], check=True)
