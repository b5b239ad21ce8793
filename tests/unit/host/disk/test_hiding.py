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
from types import SimpleNamespace

import pytest

from kit.clock import Clock
from kit.udev_world import LUN, OTHER, UdevWorld, waiting_with
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.host import flock, run_directory
from relvmoiscsi.host.disk import hiding, udev
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
from relvmoiscsi.host.terminated import Terminated, heeded, pause

OF_LUN = [LUN, "mpath-" + LUN]
IS_HIDDEN = "E:RELVMOISCSI_HIDDEN=all"
OLD = hiding.COUNTS_MINUTES * 60 + 1  #: seconds


class World(UdevWorld):
    """A host with switches."""

    def switch(self, name):
        return Path(self.run_dir) / "hide" / name

    def hides(self):
        directory = self.switch("")
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else None

    def is_free(self, name):
        """What the rules ask: may one have a shared lock, or does the owner live?"""
        with self.switch(name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def has_disk_behind(self, adapter, name, number, scsi_id, *lines):
        """A disk as udev knows it."""
        self.has_disk(name, number, scsi_id)
        (self.root / f"sys/bus/scsi/devices/{adapter}:0:0:7/block" / name).mkdir(parents=True)
        self.udev_knows(number, "I:186177866", *lines)

    def killed(self, name, age_seconds=0, *ids):
        """A call that was killed has made this switch so long ago, without these LUNs."""
        path = self.switch(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("4711\n" + "".join(f"id={one}\n" for one in ids))
        os.utime(str(path), (time.time() - age_seconds,) * 2)

    def udev_forgets(self, number, unreadable=False):
        path = self.root / "run/udev/data" / ("b" + number)
        path.unlink()
        if unreadable:
            path.mkdir()

    def events(self, *names):
        return [self.event_of(name) for name in names]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# --- the switch


def test_a_lun_is_hidden_by_one_process_for_as_long_as_the_block_runs_also_when_it_fails(world):
    with pytest.raises(NotFound), hidden(LUN, host=world.host):
        assert world.hides() == OF_LUN and world.switch(LUN).read_text() == f"{os.getpid()}\n"
        assert os.path.samefile(*(str(world.switch(name)) for name in OF_LUN))
        with hidden(OTHER, host=world.host):
            assert world.hides() == sorted([*OF_LUN, OTHER, "mpath-" + OTHER])
        before = world.switch(LUN).stat().st_ino
        with pytest.raises(Refused, match=f"^LUN {LUN} is being worked on by "), hidden(LUN, host=world.host):
            pytest.fail("it was hidden twice")
        assert world.switch(LUN).stat().st_ino == before and not world.is_free(LUN)
        raise NotFound("no such LUN")

    assert world.hides() is None
    assert os.listdir(world.run_dir) == []


def test_what_a_killed_process_left_over_is_replaced_and_cleared_and_what_another_holds_stays(world):
    for name in (*OF_LUN, OTHER):
        world.killed(name)

    with hidden(LUN, host=world.host):
        assert world.hides() == OF_LUN and not world.is_free(LUN)
        held = world.switch("3other").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
    assert world.hides() == ["3other"]
    held.close()


def test_a_switch_that_somebody_removed_is_no_failure_of_the_run(world, caplog):
    with hidden(LUN, host=world.host):
        shutil.rmtree(world.run_dir)

    assert "could not be removed" in caplog.text


RULES_FILE = "lib/udev/rules.d/57-relvmoiscsi.rules"


def is_switched_off(world, _patch):
    (world.root / "etc/udev/rules.d").mkdir(parents=True)
    os.symlink(os.devnull, str(world.root / "etc/udev/rules.d/57-relvmoiscsi.rules"))


def has_no_room(_world, patch):
    rename = os.rename

    def no_room(source, target):
        if os.path.basename(target) == "mpath-" + LUN:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    patch.setattr(os, "rename", no_room)


def is_being_changed(world, patch):
    patch.setattr(hiding, "LOCK_SECONDS", 0.01)
    fcntl.flock(run_directory.open_lock_file("hide.lock", world.host), fcntl.LOCK_EX)


@pytest.mark.parametrize(
    "happens, words",
    [
        (
            lambda world, _: world.put("run/relvmoiscsi", "a"),
            "run/relvmoiscsi is no directory. Nothing was written. Look at what is in ",
        ),
        (lambda world, _: (world.root / RULES_FILE).unlink(), "no 57-relvmoiscsi.rules in .*Nothing was written"),
        (is_switched_off, "57-relvmoiscsi.rules is empty"),
        (has_no_room, "No space left on device"),
        (is_being_changed, "hide are being changed by another process. Nothing was changed. Try again"),
    ],
)
def test_what_cannot_be_hidden_is_refused(world, monkeypatch, happens, words):
    happens(world, monkeypatch)

    with pytest.raises(Refused, match=words), hidden(LUN, host=world.host):
        pytest.fail("it was hidden")
    assert world.hides() is None
    if "rules" in words:
        behind = pytest.raises(Refused, match="LUN behind host1 cannot")
        with behind, hidden_adapters(["host1"], [], world.host):
            pytest.fail("it was hidden")
        assert not os.path.exists(world.run_dir)


def test_without_udev_the_rules_are_not_missed_and_no_disk_has_an_event(world):
    world.has_disk_behind(1, "sda", "8:0", OTHER)
    world.udev_forgets("8:0")
    (world.root / RULES_FILE).unlink()
    (world.root / "run/udev/control").unlink()

    with hidden_adapters(["host1"], [], world.host), hidden(OTHER, host=world.host):
        assert world.switch(OTHER).exists()
    assert world.event_of("sda") == ""


def test_a_lun_is_shown_when_udev_has_made_its_link_and_hides_no_disk_of_it(world):
    host = world.host._replace(wait_for=waiting_with())
    assert wait_until_shown(LUN, 0, host), "it has no disk"
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", IS_HIDDEN)

    assert not wait_until_shown(LUN, 0, host)
    world.put("dev/disk/by-id/scsi-" + LUN)
    assert not wait_until_shown(LUN, 0, host), "one disk is hidden"
    shown = waiting_with(lambda: world.udev_knows("8:0", "I:186177866"))
    assert wait_until_shown(LUN, 60, world.host._replace(wait_for=shown))


# --- the switch of an adapter


def test_a_switch_goes_although_the_call_is_told_to_end_meanwhile(world, monkeypatch):
    take = flock.take
    monkeypatch.setattr(flock, "take", lambda *arguments: (pause(0), take(*arguments))[1])

    with suppress(Terminated), heeded(), hidden_adapters(["host3"], (), world.host):
        os.kill(os.getpid(), signal.SIGTERM)

    assert world.hides() is None


def test_adapters_are_hidden_for_as_long_as_the_block_runs_but_what_is_known(world):
    with hidden_adapters(["host1", "host13"], [LUN, "1LIO-ORG FILEIO"], world.host):
        assert world.hides() == ["scan-host1", "scan-host13"]
        for name in world.hides():
            lines = world.switch(name).read_text().splitlines()
            assert lines == [str(os.getpid()), "id=" + LUN, "id=1LIO-ORG_FILEIO"] and not world.is_free(name)

    assert world.hides() is None


def test_disks_behind_an_adapter_that_are_hidden_still_or_that_udev_is_at_are_shown_again(world, caplog):
    """Unless a call is at the LUN; "all" is what came hidden, "lvm" what was there before.

    Of a disk that udev is at it may have asked for the switch already: its database would say hidden from then on.
    """
    world.has_disk_behind(1, "sda", "8:0", OTHER, IS_HIDDEN)
    world.has_disk_behind(13, "sdb", "8:16", OTHER, IS_HIDDEN)
    world.has_disk_behind(2, "sdc", "8:32", OTHER, "E:RELVMOISCSI_HIDDEN=lvm")
    world.has_disk_behind(3, "sdd", "8:48", LUN, IS_HIDDEN)
    for adapter, name, number, scsi_id in (
        (1, "sde", "8:64", OTHER),
        (2, "sdf", "8:80", LUN),
        (4, "sdg", "8:96", OTHER),
    ):
        world.has_disk_behind(adapter, name, number, scsi_id)
        world.udev_forgets(number)
    world.has_disk_behind(1, "sdh", "8:112", OTHER)
    world.udev_forgets("8:112", unreadable=True)
    with hidden(LUN, host=world.host):
        with hidden_adapters(["host1", "host2", "host3"], [], world.host):
            assert [is_stale_hidden(name, world.host) for name in ("sda", "sdc", "sdd")] == [True, False, False]
        assert world.events("sda", "sdb", "sdc", "sdd", "sde", "sdf", "sdg") == ["add", "", "", "", "add", "", ""]
    assert world.event_of("sdf") == "add"
    assert "was not asked to look at sdh again" in caplog.text


def test_partitions_that_were_hidden_with_their_disk_are_shown_with_it(world):
    world.has_disk_behind(1, "sda", "8:0", OTHER, IS_HIDDEN)
    for part in "123":
        for name, text in (("partition", part), ("dev", "8:" + part), ("uevent", "")):
            world.put(f"sys/block/sda/sda{part}/{name}", text + "\n" if text else "")
    world.udev_knows("8:1", "I:186177867", IS_HIDDEN)
    world.udev_knows("8:2", "I:186177867")
    with hidden_adapters(["host1"], [], world.host):
        pass

    assert world.events("sda", "sda/sda1", "sda/sda2", "sda/sda3") == ["add", "add", "", "add"]


def test_the_luns_of_a_host_are_those_of_its_disks_and_maps_but_what_a_killed_scan_has_brought(world):
    world.has_disk("sda", "8:0")
    world.has_disk_behind(1, "sdb", "8:16", OTHER[:-1] + "2", IS_HIDDEN)
    world.has_map("dm-0", "254:0", scsi_id=OTHER)  # all its paths are down

    assert ids_here(world.host) == [LUN, OTHER]


def test_the_switch_of_a_call_that_was_just_killed_goes_when_it_counts_no_longer_or_a_call_at_its_place_ends(world):
    same, another = "scan-host1", "scan-host2"
    for name, age in ((same, OLD - 10), (another, OLD - 10), ("scan-host3", OLD), (OTHER, 0)):
        world.killed(name, age)

    with hidden(LUN, host=world.host):
        assert world.hides() == [*OF_LUN, same, another]
        with hidden_adapters(["host1"], [], world.host):
            assert same in world.hides(), "it would not hide for a moment"
        assert world.hides() == [*OF_LUN, another]
    assert world.hides() == [another]
    with hidden_adapters(["host2"], [], world.host):
        pass
    assert world.hides() is None


def test_what_the_switch_of_a_call_that_was_just_killed_hides_is_not_left_hidden_yet(world):
    world.has_disk_behind(1, "sdc", "8:32", OTHER, IS_HIDDEN)
    for age, left in ((OLD - 10, []), (OLD, ["sdc"])):
        world.killed("scan-host1", age)
        assert stale_hidden(world.host) == left


def test_a_lun_that_a_call_shows_is_left_out_of_what_calls_hide_that_were_killed_and_of_that_alone(
    world, monkeypatch, caplog
):
    world.has_disk("sda", "8:0")
    world.killed("scan-host1", OLD - 10)
    path = world.switch("scan-host1")
    before, write = path.stat().st_mtime, os.write
    with monkeypatch.context() as patch, hidden(LUN, host=world.host):
        world.udev_knows("8:0", "I:186177866", IS_HIDDEN)
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
    assert "No space left on device. Make room there." in caplog.text
    assert path.read_text() == "4711\n", "a part of the line could be another LUN's id"
    assert path.stat().st_mtime == before, "a line that there is no room for makes it count no longer"

    with hidden_adapters(["host2"], [], world.host):
        with hidden(LUN, host=world.host):
            pass
        assert world.event_of("sda") == "add"
        assert [name for name in world.hides() if f"id={LUN}" in world.switch(name).read_text()] == [path.name]
    assert path.stat().st_mtime == before, "it counts no longer for that"


# --- the programs of the rules

has_flock = pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)")
RULES = sorted((Path(__file__).resolve().parents[4] / "udev").glob("*-relvmoiscsi.rules"))


def is_left_alone(world, word, adapter="host1", scsi_id=OTHER):
    """Does the program of the rules with this word in it succeed?"""
    programs = re.findall(r"PROGRAM[!=]=\"/bin/sh -c '(.*)'(.*)\", GOTO", RULES[0].read_text(encoding="utf-8"))
    ((program, arguments),) = [one for one in programs if word == one[1].strip() or word == "scan-" and word in one[0]]
    program = program.replace("$$", "$")
    program = program.replace("/sys/", str(world.root / "sys") + "/").replace("/run/relvmoiscsi", world.run_dir)
    names = {"$id": adapter, "$env{.RELVMOISCSI_ID}": scsi_id, "$attr{dm/uuid}": "mpath-" + scsi_id}
    given = [names.get(name, name) for name in arguments.split()]
    assert "$env" not in program and "$attr" not in program, "ids are arguments"
    return (
        subprocess.run(
            ["/bin/sh", "-c", program, *given], stdin=subprocess.DEVNULL, cwd=str(world.root), check=False
        ).returncode
        == 0
    )


@pytest.mark.processes
@has_flock
def test_the_program_of_the_rule_knows_the_disks_of_a_hidden_adapter(world):
    assert is_left_alone(world, "scan-")
    for other in ("host", "host13", "host2"):
        with hidden_adapters([other], [], world.host):
            assert is_left_alone(world, "scan-"), other
    world.killed("scan-host1", OLD - 10, LUN)
    assert not is_left_alone(world, "scan-") and not is_left_alone(world, "scan-", scsi_id="")
    assert is_left_alone(world, "scan-", scsi_id=LUN), "the pool knows it"
    world.killed("scan-host1", OLD, LUN)
    assert is_left_alone(world, "scan-")
    with hidden_adapters(["host3", "host1"], [LUN, "36001405"], world.host):
        assert not is_left_alone(world, "scan-")
        assert not is_left_alone(world, "scan-", scsi_id=""), "it does not tell its id"
        assert not is_left_alone(world, "scan-", scsi_id="6001405")
        assert is_left_alone(world, "scan-", scsi_id=LUN)
    assert is_left_alone(world, "scan-")


@pytest.mark.processes
@has_flock
@pytest.mark.parametrize("word", ["$env{.RELVMOISCSI_ID}", "$attr{dm/uuid}"])
def test_the_program_of_the_rule_knows_a_switch_that_counts_and_makes_none(world, word):
    """udev has seen the file a moment ago, and flock(1) would make it anew: nobody would ever remove that."""
    with hidden(LUN, host=world.host):
        assert not is_left_alone(world, word, scsi_id=LUN)
        world.killed("another")
        for name in OF_LUN:
            world.switch(name).unlink()
        assert is_left_alone(world, word, scsi_id=LUN)
        assert world.hides() == ["another"]
    for name in OF_LUN:
        world.killed(name)
    assert is_left_alone(world, word, scsi_id=LUN)


@pytest.mark.processes
@has_flock
@pytest.mark.parametrize("word", ["$env{.RELVMOISCSI_ID}", "$attr{dm/uuid}"])
def test_a_lun_whose_id_has_an_escape_of_udev_is_hidden_as_any_other(world, word):
    r"""The shell made x41 of \x41, found no switch of that name, and LVM saw the clone."""
    scsi_id = r"SVENDOR_serial\x41" + "_$(touch${IFS}owned)"
    with hidden(scsi_id, host=world.host):
        assert not is_left_alone(world, word, scsi_id=switch_name(scsi_id))
    assert is_left_alone(world, word, scsi_id=switch_name(scsi_id))


@pytest.mark.processes
@has_flock
@pytest.mark.parametrize("scsi_id", [LUN[:-1] + "?", f"x -e id={LUN}", "*"])
def test_an_id_is_neither_split_nor_expanded_into_the_id_of_a_disk_that_the_pool_knows(world, scsi_id):
    (world.root / f"id={LUN}").touch()
    with hidden_adapters(["host1"], [LUN], world.host):
        assert is_left_alone(world, "scan-", scsi_id=LUN)
        assert not is_left_alone(world, "scan-", scsi_id=scsi_id)


# --- and what is seen afterwards


def test_disks_and_map_that_are_hidden_are_shown_again(world):
    for name, number, scsi_id in (
        ("sda", "8:0", LUN),
        ("sdb", "8:16", LUN),
        ("sdc", "8:32", OTHER),
        ("sdd", "8:48", LUN),
    ):
        world.has_disk(name, number, scsi_id)  # sdd was there before
    world.has_map("dm-0", "254:0")
    world.has_map("dm-1", "254:1", scsi_id=OTHER)
    with hidden(LUN, host=world.host):
        for number in ("8:0", "8:32", "254:0", "254:1"):
            world.udev_knows(number, "I:186177866", IS_HIDDEN)
        world.udev_knows("8:16", "I:186177866", "E:DM_MULTIPATH_DEVICE_PATH=1")
        world.udev_knows("8:48", "I:186177866", "E:RELVMOISCSI_HIDDEN=lvm")
        assert is_hidden("sda", world.host) and not is_hidden("sdb", world.host)

    assert world.events("sda", "sdb", "sdd", "dm-0") == ["add", "", "change", "change"]
    assert world.events("sdc", "dm-1") == ["", ""]


def test_a_new_disk_that_udev_has_shown_meanwhile_is_added_all_the_same(world, monkeypatch):
    """udev handles the close of the disk when the switch has just gone. dom0's multipathd does not heed that change."""
    world.has_disk("sda", "8:0")
    monkeypatch.setattr(udev, "wait_until_idle", lambda *_: world.udev_knows("8:0", "I:186177866"))
    with hidden(LUN, host=world.host):
        world.udev_knows("8:0", "I:186177866", IS_HIDDEN)

    assert world.events("sda") == ["add"]


@pytest.mark.parametrize("is_busy_for_ever", [False, True])
def test_a_disk_that_udev_hides_a_moment_later_is_shown_again(world, monkeypatch, is_busy_for_ever):
    """udev was at an event of sda when the switch went. An event could take the links of sdb, which may be dead, and
    keep udev busy.
    """
    clock = Clock()

    def passes(seconds):
        clock.sleep(seconds)
        world.udev_knows("8:0", "I:186177866", "E:RELVMOISCSI_HIDDEN=lvm")
        if not is_busy_for_ever:
            (world.root / "run/udev/queue").unlink()

    monkeypatch.setattr(udev, "time", SimpleNamespace(monotonic=clock, sleep=passes))
    for name, number in (("sda", "8:0"), ("sdb", "8:16")):
        world.has_disk(name, number)
        world.udev_knows(number, "I:186177866")
    world.put("run/udev/queue")
    with hidden(LUN, host=world.host):
        pass

    assert world.events("sda", "sdb") == ["change", ""]


def test_a_disk_that_goes_at_that_moment_or_cannot_be_read_is_no_failure(world, caplog):
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", IS_HIDDEN)
    with hidden(LUN, host=world.host):
        (world.root / "sys/block/sda/uevent").unlink()
        (world.root / "sys/block/sda/uevent").mkdir()
    with hidden(LUN, host=world.host):
        world.udev_forgets("8:0", unreadable=True)

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


# --- the text of the rules


def test_the_rules_look_where_the_switch_is_and_mark_what_they_hide():
    text = "\n".join(path.read_text(encoding="utf-8") for path in RULES)

    names = set(re.findall(r"/run/[a-z/]*", text))
    assert names == {hiding.RUN_DIRECTORY + "/hide" + end for end in ("", "/", "/mpath", "/scan")}
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


def test_a_hidden_disk_has_no_scsi_id_for_multipathd():
    """multipathd reads ID_SERIAL without trailing blanks. Where there is none, multipathd asks udev, or the disk."""
    last = RULES[-1].read_text(encoding="utf-8")

    assert 'ENV{RELVMOISCSI_HIDDEN}=="all", ENV{nompath}=="1", ENV{ID_SERIAL}=" "\n' in last


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
