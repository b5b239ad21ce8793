# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on what the driver needs besides xapi, and on what killed calls have left."""

import fcntl
import os
import re
import time

import pytest

from kit.doctor_world import TOP, World, failed, unreadable
from relvmoiscsi import doctor
from relvmoiscsi.doctor import programs
from relvmoiscsi.doctor.finding import OK
from relvmoiscsi.host.command import Completed

RULES = "/etc/udev/rules.d/"
FIRST, LAST = programs.FIRST_RULES, programs.LAST_RULES
SWITCHES = "/run/relvmoiscsi/hide/"
SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"


def udev(world, name, verified=""):
    """The worst finding of this name; `verified` is what `rpm -V` finds, or how it ends."""
    found = programs.examine_udev(world.host((["-V", "relvmoiscsi"], verified)))
    found = [finding for finding in found if finding.name == name]
    return sorted(found, key=lambda finding: finding.status == OK)[0]


# --- the host's name


def test_the_initiator_name_is_told(world):
    assert "iqn.2026-01.test:xs1" in programs.examine_initiator(world.host()).sentence


@pytest.mark.parametrize("content", ["", "InitiatorName=\n", b"\xff\xfe\n" * 1000])
def test_without_an_initiator_name_there_is_a_problem(world, content):
    world.put("/etc/iscsi/initiatorname.iscsi", content)

    finding = programs.examine_initiator(world.host())

    assert finding.status == "problem" and "iscsi_iqn=" in finding.advice


def test_without_its_file_there_is_a_problem(world):
    world.remove("/etc/iscsi")

    assert programs.examine_initiator(world.host()).status == "problem"


def test_an_initiator_name_that_cannot_be_read_is_unknown(world):
    world.directory("/etc/iscsi/initiatorname.iscsi")

    assert programs.examine_initiator(world.host()).status == "unknown"


# --- multipath


def test_multipath_is_there(world):
    assert "multipathd does not run" in programs.examine_multipath(world.host()).sentence
    world.process(50, "multipathd")
    assert "multipathd runs" in programs.examine_multipath(world.host()).sentence


@pytest.mark.parametrize(
    "gone, sentence",
    [(("multipath",), "multipath is not"), (("multipath", "multipathd"), "multipath and multipathd are not")],
)
def test_without_multipath_there_is_a_warning(world, gone, sentence):
    for name in gone:
        os.chmod(world.at("/usr/sbin/" + name), 0o644)

    finding = programs.examine_multipath(world.host())

    assert finding.status == "warning" and finding.sentence.startswith(sentence)


# --- udev


def test_the_rules_are_those_of_this_release(world):
    found = programs.examine_udev(world.host((["-V", "relvmoiscsi"], "")))

    assert {finding.status for finding in found} == {"ok"}


def test_our_rules_are_those_in_this_tree():
    assert sorted(programs.OUR_RULES) == sorted(path.name for path in (TOP / "udev").glob("*.rules"))


@pytest.mark.parametrize("name", sorted(programs.OUR_RULES))
def test_rules_that_are_missing_are_a_problem(world, name):
    world.remove(RULES + name)

    finding = udev(world, "udev-rules")

    assert finding.status == "problem" and name in finding.sentence


@pytest.mark.parametrize("directory", ["/run/udev/rules.d/", "/usr/lib/udev/rules.d/", "/lib/udev/rules.d/"])
def test_rules_may_be_in_any_directory_of_udev(world, directory):
    os.makedirs(world.at(directory))
    os.rename(world.at(RULES + FIRST), world.at(directory + FIRST))

    assert udev(world, "udev-rules").status == "ok"


def test_a_file_in_etc_hides_the_others(world):
    world.copy(TOP / "udev" / FIRST, "/usr/lib/udev/rules.d/" + FIRST)
    world.put(RULES + FIRST, "\n")

    assert "switched off" in udev(world, "udev-rules").sentence


#: what rpm 4.18 finds of rules that were edited, of an older file that a person put there, of one that is elsewhere
@pytest.mark.parametrize("found", ["S.5....T.", "..5......", "missing  "])
def test_rules_that_rpm_finds_changed_are_a_warning(world, found):
    others = ".......T.  c /etc/relvmoiscsi.conf\nS.5....T.    /usr/share/x\n"

    finding = udev(world, "udev-rules", Completed(1, f"{found}  c {RULES}{FIRST}\n" + others, ""))

    assert finding.status == "warning" and FIRST + ".rpmnew" in finding.advice


@pytest.mark.parametrize("found", [".......T.", "....L....", ".M...UG.."])
def test_rules_of_the_same_content_are_those_of_the_release(world, found):
    assert udev(world, "udev-rules", Completed(1, f"{found}  c {RULES}{FIRST}\n", "")).status == "ok"


def test_without_the_package_nobody_knows_whose_rules_they_are(world):
    finding = udev(world, "udev-rules", Completed(1, "package relvmoiscsi is not installed\n", ""))
    assert finding.status == "warning" and "says: package relvmoiscsi is not installed." in finding.sentence
    assert "rpm fails: exit status 127" in udev(world, "udev-rules", failed(127)).sentence

    world.remove("/var/lib/rpm/Packages")
    assert "there is no database of rpm here" in udev(world, "udev-rules").sentence, "rpm would make one"

    world.remove("/usr/bin/rpm")
    assert "there is no rpm here" in udev(world, "udev-rules").sentence


def test_an_rpm_that_is_run_from_outside_is_told_the_root(world):
    asked = []

    def runner(argv, **_):
        asked.append(argv)
        return Completed(0, "", "")

    programs.examine_udev(world.host()._replace(runner=runner))

    (argv,) = [argv for argv in asked if "-V" in argv]
    assert argv[1:3] == ["--root", world.root]


def test_rules_that_are_switched_off_are_a_problem(world):
    world.put(RULES + FIRST, "\n")
    assert "switched off" in udev(world, "udev-rules").sentence
    world.link(RULES + FIRST, "/dev/null")
    assert "switched off" in udev(world, "udev-rules").sentence


def test_rules_that_are_no_file_are_a_problem(world):
    world.directory(RULES + FIRST)
    assert udev(world, "udev-rules").status == "problem"
    world.link(RULES + FIRST, "/nowhere")
    assert udev(world, "udev-rules").status == "problem"
    world.remove(RULES + FIRST)
    os.mkfifo(world.at(RULES + FIRST))
    assert udev(world, "udev-rules").status == "problem"


def test_rules_that_cannot_be_read_are_unknown(world):
    with unreadable(world.at(RULES + FIRST)):
        assert udev(world, "udev-rules").status == "unknown"


@pytest.mark.parametrize(
    "name, what",
    [
        ("58-dm-mpath.rules", "undoes what it sets"),
        ("40-multipath.rules", "before that is hidden"),
        ("56-kpartx.rules", "before that is hidden"),
        ("99-zzz-x.rules", ""),
        ("99-zzzz.rules", ""),
        ("10-dm.rules", ""),
        ("11-dm-lvm.rules", ""),
        ("11-dm-mpath.rules", ""),
        ("13-dm-disk.rules", ""),
        ("56-dm-mpath.rules", ""),
        ("56-lvm.rules", ""),
        ("60-persistent-storage-dm.rules", ""),
        ("60-multipath.rules", ""),
        ("40-multipath.rules.rpmsave", ""),
        ("99-systemd.rules", ""),
    ],
)
def test_rules_that_come_at_the_wrong_time_are_a_warning(world, name, what):
    world.put("/usr/lib/udev/rules.d/" + name, "")

    finding = udev(world, "udev-order")

    assert finding.status == ("warning" if what else "ok")
    assert what in finding.sentence and (not what or name in finding.sentence)


def test_rules_that_cannot_be_listed_have_an_unknown_order(world):
    with unreadable(world.at(RULES)):
        assert udev(world, "udev-order").status == "unknown"


@pytest.mark.parametrize("path", ["/usr/bin/flock", "/usr/bin/find", "/usr/lib/udev/scsi_id"])
def test_a_program_that_the_rules_need_is_missed(world, path):
    os.chmod(world.at(path), 0o644)

    finding = udev(world, "udev-programs")

    assert finding.status == "problem" and path in finding.sentence


def test_the_programs_are_those_of_the_rules():
    rules = (TOP / "udev" / FIRST).read_text(encoding="utf-8")

    assert set(re.findall(r"[^\s\"']*flock(?= --)", rules)) == {programs.FLOCK} and '"scsi_id ' in rules
    assert set(re.findall(r"[^\s\"']*find(?= \$)", rules)) == {programs.FIND}


def test_udev_that_does_not_run_is_a_problem(world):
    world.remove("/run/udev")
    assert udev(world, "udev").status == "problem"
    world.remove("/proc")
    assert udev(world, "udev").status == "unknown"


# --- room to write, and the log


def test_there_is_room_for_notes(world):
    finding = programs.examine_directories(world.host())

    assert finding.status == "ok" and "/run/relvmoiscsi and /var/lib/relvmoiscsi" in finding.sentence


@pytest.mark.parametrize("path", ["/run/relvmoiscsi", "/var/lib/relvmoiscsi", "/var/lib"])
def test_a_file_in_place_of_a_directory_is_a_problem(world, path):
    world.put(path, "")

    finding = programs.examine_directories(world.host())

    assert finding.status == "problem" and path + " is no directory" in finding.sentence


def test_a_link_to_nowhere_in_place_of_a_directory_is_a_problem(world):
    world.link("/var/lib/relvmoiscsi", "/mnt/gone")

    assert programs.examine_directories(world.host()).status == "problem"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"f_flag": os.ST_RDONLY}, "cannot be written to"),
        ({"f_bavail": 0}, "is full"),
        ({"f_files": 100, "f_favail": 0}, "is full"),
        ({"f_files": 0, "f_favail": 0}, ""),
    ],
)
def test_a_file_system_without_room_is_a_problem(world, monkeypatch, changes, words):
    real = os.statvfs(world.root)
    fields = (
        "f_bsize",
        "f_frsize",
        "f_blocks",
        "f_bfree",
        "f_bavail",
        "f_files",
        "f_ffree",
        "f_favail",
        "f_flag",
        "f_namemax",
    )
    roomy = dict({"f_flag": 0, "f_bavail": 1 << 30, "f_frsize": 4096}, **changes)
    values = [roomy.get(name, getattr(real, name)) for name in fields]
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(values))

    finding = programs.examine_directories(world.host())

    assert finding.status == ("problem" if words else "ok") and words in finding.sentence


def test_who_is_not_root_does_not_know(world):
    assert programs.examine_directories(world.host(is_superuser=False)).status == "unknown"


def test_the_log_is_there(world):
    assert programs.examine_smlog(world.host()).status == "ok"


@pytest.mark.parametrize("break_it", [World.remove, World.directory])
def test_without_the_log_there_is_a_warning(world, break_it):
    break_it(world, "/var/log/SMlog")
    assert "no /var/log/SMlog" in programs.examine_smlog(world.host()).sentence


def test_without_syslog_there_is_a_warning(world):
    world.remove("/dev/log")

    finding = programs.examine_smlog(world.host())

    assert finding.status == "warning" and "no /dev/log" in finding.sentence


# --- what killed calls have left


def hold(world, path):
    """This process is at work with the file; the kernel's list says so."""
    status = os.stat(world.at(path))
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    world.put("/proc/locks", f"1: FLOCK  ADVISORY  WRITE 4711 {place} 0 EOF\n")
    world.process(4711, "ReLVMoISCSISR")


def test_nothing_is_left(world):
    assert programs.examine_maps(world.host()).status == "ok"
    assert programs.examine_switches(world.host()).status == "ok"


def test_what_a_killed_call_has_left_is_a_warning(world):
    world.put(SWITCHES + SCSI_ID, "4711\n")

    finding = programs.examine_switches(world.host())

    assert finding.status == "warning" and SCSI_ID in finding.sentence
    assert "SR.create" in finding.advice


def test_what_a_call_at_work_has_made_is_all_right(world):
    world.put(SWITCHES + SCSI_ID, "")
    hold(world, SWITCHES + SCSI_ID)

    finding = programs.examine_switches(world.host())

    assert finding.status == "ok" and "process 4711 (ReLVMoISCSISR)" in finding.sentence


def test_a_lun_whose_call_was_killed_and_whose_write_hangs_is_a_warning(world):
    """A child has the lock that a process took which is gone."""
    world.put(SWITCHES + SCSI_ID, "")
    hold(world, SWITCHES + SCSI_ID)
    world.remove("/proc/4711")

    finding = programs.examine_switches(world.host())

    assert finding.status == "warning" and f"hides LUN {SCSI_ID} from udev until its last write" in finding.sentence


def has_hidden_disk(world, name="sdb", mark="all"):
    world.put(f"/sys/block/{name}/dev", "8:16\n")
    world.put("/run/udev/data/b8:16", f"I:186177866\nE:RELVMOISCSI_HIDDEN={mark}\n")


@pytest.mark.parametrize("switches", [[], [SCSI_ID], ["scan-00000000-host1"]])
def test_a_disk_that_stays_hidden_after_a_kill_is_a_warning_with_what_shows_it(world, switches):
    for name in switches:
        world.put(SWITCHES + name, "of a process that was killed\n")
    has_hidden_disk(world)

    finding = programs.examine_switches(world.host())

    assert (
        finding.status == "warning" and "or could not end what it had brought, has left sdb hidden" in finding.sentence
    )
    assert "echo change > /sys/block/sdb/uevent" in finding.advice and "SR.create" in finding.advice


@pytest.mark.parametrize("ends_meanwhile", [True, False])
def test_a_call_that_is_about_to_end_is_not_taken_for_a_killed_one(world, monkeypatch, ends_meanwhile):
    world.put(SWITCHES + SCSI_ID, "")
    monkeypatch.setattr(time, "sleep", lambda _: world.remove(SWITCHES + SCSI_ID) if ends_meanwhile else None)

    found = doctor._examine_left_overs(world.host())

    assert [finding.status for finding in found] == ["ok", "ok" if ends_meanwhile else "warning"]


def test_a_disk_that_only_lvm_does_not_see_is_not_left_hidden(world):
    has_hidden_disk(world, mark="lvm")

    assert programs.examine_switches(world.host()).status == "ok"


def test_a_disk_behind_an_adapter_that_a_call_scans_is_not_left_hidden(world):
    has_hidden_disk(world)
    os.makedirs(world.at("/sys/bus/scsi/devices/1:0:0:7/block/sdb"))
    world.put(SWITCHES + "scan-00000000-host1", "")
    hold(world, SWITCHES + "scan-00000000-host1")

    assert programs.examine_switches(world.host()).status == "ok"


def test_whether_disks_are_hidden_is_unknown_where_udevs_database_cannot_be_read(world):
    has_hidden_disk(world)
    world.remove("/run/udev/data/b8:16")
    os.makedirs(world.at("/run/udev/data/b8:16"))

    assert programs.examine_switches(world.host()).status == "unknown"


def test_looking_takes_no_lock(world):
    world.put(SWITCHES + SCSI_ID, "")

    with open(world.at(SWITCHES + SCSI_ID), "r+b") as switch:
        fcntl.flock(switch, fcntl.LOCK_EX)
        programs.examine_switches(world.host())


def test_a_lun_is_told_once(world):
    for name in ("", "mpath-", "paths-"):
        world.put(SWITCHES + name + SCSI_ID, "")

    assert f"LUN {SCSI_ID} from udev" in programs.examine_switches(world.host()).sentence


def test_what_was_hidden_is_told_by_the_place_of_it(world):
    for name in ("scan-00000000-host12", "scan-11111111-host12", "scan-22222222-host3"):
        world.put(SWITCHES + name, "")

    sentence = programs.examine_switches(world.host()).sentence
    assert "had hidden what is behind host12, what is behind host3 from udev" in sentence


def test_hundreds_of_left_overs_make_a_short_sentence(world):
    for number in range(300):
        world.put(f"{SWITCHES}36001405{number:04d}", b"\xff")

    finding = programs.examine_switches(world.host())

    assert "and 295 more" in finding.sentence and len(finding.sentence) < 300


def test_left_overs_that_cannot_be_listed_are_unknown(world):
    world.put(SWITCHES.rstrip("/"), "a file")

    assert programs.examine_switches(world.host()).status == "unknown"
