# SPDX-License-Identifier: LGPL-2.1-only
"""The lab, tested by itself: what scenario tests rely on is so."""

import logging
import logging.handlers
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kit import builder
from kit.lab import initiator
from kit.lab.command import read, run, settle, until
from kit.lab.lio import Chap
from kit.lab.prober import probe_device
from kit.lab.restore import restore
from kit.lab.secrets import Watcher
from kit.lab.world import World
from relvmoiscsi.host.disk.scsi_id import live_scsi_id

#: exit statuses of iscsiadm
PDU_TIMEOUT, FATAL_LOGIN, NO_DAEMON, AUTH_FAILURE = 11, 19, 20, 24

USER = Chap("sm", "correct-horse-1")
TARGET_USER = Chap("array", "battery-staple-2")


def only_device(lun):
    return initiator.device_of(lun.scsi_id)


def block_attribute(device, name):
    return read(Path("/sys/block") / os.path.basename(device) / name)


# -- the target ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, mutual, status",
    [
        (USER, None, 0),
        (USER, TARGET_USER, 0),
        (Chap("sm", "wrong-password"), None, AUTH_FAILURE),
        (Chap("nobody", "correct-horse-1"), None, AUTH_FAILURE),
        (None, None, AUTH_FAILURE),
        (USER, Chap("array", "wrong-password"), FATAL_LOGIN),
    ],
    ids=["right", "mutual", "wrong password", "wrong user", "none", "wrong mutual"],
)
def test_chap_admits_who_knows_the_password(lab, given, mutual, status):
    target = lab.target(lab.lun(lab.blank("blank.img")), chap=USER, mutual=TARGET_USER)

    result = initiator.login(target.iqn, target.portal, given, mutual, check=False)

    assert result.status == status, result
    assert len(initiator.sessions()) == (1 if status == 0 else 0)


def test_every_portal_is_discovered_and_gives_a_path(lab):
    lun = lab.lun(lab.blank("blank.img"))
    target = lab.target(lun, portals=["127.0.0.1:3260", "127.0.0.2:3260", "[::1]:3260"])

    found = initiator.discover("127.0.0.1").out
    for portal in target.portals:
        initiator.login(target.iqn, portal)

    assert [line.split()[1] for line in found.splitlines()] == [target.iqn] * 3
    assert len(initiator.sessions()) == len(initiator.devices_of(lun.scsi_id)) == 3
    run("udevadm", "info", only_link(lun))


def only_link(lun):
    return "/dev/disk/by-id/scsi-" + lun.scsi_id


def test_a_disabled_group_cuts_its_session_and_comes_back(lab):
    target = lab.target(lab.lun(lab.blank("blank.img")), groups=[["127.0.0.1:3260"], ["127.0.0.2:3260"]])
    for portal in target.portals:
        initiator.login(target.iqn, portal)

    target.disable(1)
    until(lambda: states() == ["FAILED", "LOGGED_IN"], "one session has failed")
    discovered = initiator.discover("127.0.0.1").out
    target.enable(1)
    until(lambda: states() == ["LOGGED_IN"] * 2, "the session recovered")

    assert discovered == f"127.0.0.2:3260,2 {target.iqn}\n"


def test_a_closed_portal_refuses_connections(lab):
    target = lab.target(lab.lun(lab.blank("blank.img")), portals=["127.0.0.1:3260", "127.0.0.2:3260"])
    initiator.login(target.iqn, "127.0.0.1:3260")

    target.close_portal("127.0.0.2:3260")
    refused = initiator.discover("127.0.0.2", check=False)
    target.open_portal("127.0.0.2:3260")

    assert "onnection refused" in refused.output and refused.status == PDU_TIMEOUT, refused
    assert states() == ["LOGGED_IN"]


def states():
    return sorted(value.split()[-1] for value in World.now()["sessions"].values())


def test_a_lun_that_is_mapped_later_needs_a_rescan(lab):
    target = lab.target(lab.lun(lab.blank("first.img")))
    initiator.login(target.iqn, target.portal)

    second = target.add_lun(lab.lun(lab.blank("second.img"), number=5))
    settle()
    before = initiator.devices_of(second.scsi_id)
    initiator.rescan(target.iqn)

    assert before == []
    assert len(initiator.devices_of(second.scsi_id)) == 1


def test_a_lun_has_the_nature_it_was_given(lab):
    plain, locked, large = (
        lab.lun(lab.blank("plain.img")),
        lab.lun(lab.blank("locked.img"), number=1, read_only=True),
        lab.lun(lab.blank("large.img"), number=2, block_size=4096),
    )
    target = lab.target(plain, locked, large)
    initiator.login(target.iqn, target.portal)

    devices = [only_device(lun) for lun in (plain, locked, large)]

    assert [block_attribute(device, "ro") for device in devices] == ["0", "1", "0"]
    assert [block_attribute(device, "queue/logical_block_size") for device in devices] == ["512", "512", "4096"]
    for lun, device in zip((plain, locked, large), devices):
        printed = run("/usr/lib/udev/scsi_id", "-g", "-d", device).out.strip()
        assert printed == lun.scsi_id == live_scsi_id(device)
        assert os.path.realpath(f"/dev/disk/by-scsid/{printed}/{os.path.basename(device)}") == device


def read_directly(device, timeout=30):
    started = time.monotonic()
    result = run(
        "dd", "if=" + device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct", check=False, timeout=timeout
    )
    return result.status, time.monotonic() - started


def write_directly(device):
    argv = ("dd", "if=/dev/zero", "of=" + device, "bs=4096", "count=1", "oflag=direct", "conv=notrunc")
    return run(*argv, check=False).status


def test_a_breakable_lun_breaks_and_heals(lab):
    lun = lab.lun(lab.blank("blank.img"), breakable=True)
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)
    device = only_device(lun)

    lun.fail_writes()
    only_writes_fail = (read_directly(device)[0], write_directly(device))
    lun.fail()
    all_fails = (read_directly(device)[0], write_directly(device))
    lun.slow(1500)
    slow = read_directly(device)
    lun.heal()
    healed = (read_directly(device)[0], write_directly(device))

    assert only_writes_fail == (0, 1)
    assert all_fails == (1, 1)
    assert slow[0] == 0 and slow[1] >= 1.5
    assert healed == (0, 0)


def test_a_frozen_lun_answers_when_it_thaws(lab):
    lun = lab.lun(lab.blank("blank.img"), breakable=True)
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)

    lun.freeze()
    with subprocess.Popen(["dd", "if=" + only_device(lun), "of=/dev/null", "count=8", "iflag=direct"]) as reader:
        time.sleep(2)
        frozen = reader.poll()
        lun.heal()
        status = reader.wait(30)

    assert (frozen, status) == (None, 0)


# -- what LVM, multipath and iscsid make of it --------------------------------------------------------------------


def test_the_prober_sees_what_the_storage_manager_made(lab):
    image = lab.image("chain")
    lun = lab.lun(image)
    target = lab.target(lun)
    digest = image.digest()

    with lab.untouched(except_for=["records", "files:/run/lock/*"]):
        seen = lab.probe(target, lun)

    assert seen.sr_uuid == image.sr.uuid
    assert seen.lvs == tuple(sorted(lv.name for lv in image.sr.vg.lvs))
    assert {vdi.uuid for vdi in seen.vdis} == {record.uuid for record in image.sr.mgt.records if not record.deleted}
    assert seen.problems == ()
    assert image.digest() == digest


def test_the_prober_sees_no_sr_on_an_empty_lun(lab):
    lun = lab.lun(lab.blank("blank.img"))

    assert lab.probe(lab.target(lun), lun) is None


def test_one_changed_byte_changes_the_digest(lab):
    image = lab.disk(builder.one_vhd().disk, "built.img")
    twin = image.clone("twin.img")
    before = image.digest()
    with open(twin.path, "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")

    assert image.digest() == before != twin.digest()


def test_lvm_sees_original_and_clone_as_duplicates(lab):
    image = lab.image("one")
    original, clone = lab.lun(image), lab.lun(image.clone("clone.img"))
    array = lab.target(original)
    copies = lab.target(clone)
    digest = image.digest()

    with lab.attached(array, original, image.sr.uuid) as sr:
        initiator.login(copies.iqn, copies.portal)
        report = initiator.lvm("pvs").output
        active = sr.active
        seen = probe_device(only_device(clone))
        initiator.logout(copies.iqn)

    assert "duplicate" in report.lower() or "WARNING: PV" in report, report
    assert "MGT" in active
    assert seen.sr_uuid == image.sr.uuid
    assert image.digest() == digest


@pytest.mark.parametrize("events", [True, False], ids=["with event activation", "as in dom0"])
def test_a_clone_is_grabbed_when_events_activate_it(lab, events):
    image = lab.image("one")
    vg = "VG_XenStorage-" + image.sr.uuid
    lun = lab.lun(image.clone("clone.img"))
    target = lab.target(lun)

    if not events:
        initiator.login(target.iqn, target.portal)
        assert initiator.active_lvs(vg) == []
        return
    with lab.event_activation():
        initiator.login(target.iqn, target.portal)
        until(lambda: "MGT" in initiator.active_lvs(vg), "the clone is active")
        initiator.lvm("vgchange", "-an", vg)
        initiator.logout(target.iqn)


def test_two_paths_become_one_map(lab):
    lun = lab.lun(lab.blank("blank.img"))
    target = lab.target(lun, groups=[["127.0.0.1:3260"], ["127.0.0.2:3260"]])
    for portal in target.portals:
        initiator.login(target.iqn, portal)

    with lab.multipathing(lun.scsi_id):
        device = "/dev/mapper/" + lun.scsi_id
        both = (read_directly(device)[0], write_directly(device))
        target.disable(1)
        one = (read_directly(device)[0], write_directly(device))
        target.enable(1)
        # what was written brought an event, for which udev may be looking at the map
        until(lambda: run("multipath", "-f", lun.scsi_id, check=False).status == 0, "the map is in nobody's use")
        assert initiator.multipath_map(lun.scsi_id) is None

    assert both == one == (0, 0)


def test_a_map_that_is_open_when_multipathd_ends_goes_once_it_is_closed(lab):
    lun = lab.lun(lab.blank("blank.img"))
    target = lab.target(lun, groups=[["127.0.0.1:3260"], ["127.0.0.2:3260"]])
    for portal in target.portals:
        initiator.login(target.iqn, portal)

    with lab.multipathing(lun.scsi_id):
        descriptor = os.open("/dev/mapper/" + lun.scsi_id, os.O_RDONLY)
        lab.begin(threading.Timer(1, os.close, [descriptor]))

    assert initiator.multipath_map(lun.scsi_id) is None


def test_sessions_outlive_a_killed_iscsid(lab):
    lun = lab.lun(lab.blank("blank.img"))
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)

    lab.iscsid.kill()
    refused = initiator.discover("127.0.0.1", check=False)
    readable = read_directly(only_device(lun))[0]
    lab.iscsid.start()
    target.disable()
    until(lambda: states() == ["FAILED"], "the session has failed")
    target.enable()
    until(lambda: states() == ["LOGGED_IN"], "the new iscsid brought the session back", seconds=40)

    assert refused.status == NO_DAEMON, refused
    assert readable == 0
    initiator.logout(target.iqn)


# -- what tests judge with ----------------------------------------------------------------------------------------


def leave_session(lab):
    initiator.login(lab.target(lab.lun(lab.blank("blank.img"))).iqn, "127.0.0.1:3260")


def leave_record(lab):
    initiator.iscsiadm("-m", "node", "-T", "iqn.2026-01.lab:gone", "-p", "127.0.0.1:3260", "-o", "new")


def leave_discovery(_lab):
    initiator.discover("127.0.0.1")


def leave_map(_lab):
    run("dmsetup", "create", "left-behind", "--noudevsync", stdin="0 8 zero\n")


def leave_file(path):
    def leave(_lab):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("left\n")

    return leave


def leave_process(_lab):
    leave_process.child = subprocess.Popen(["sleep", "1000"], start_new_session=True)


def leave_mount(_lab):
    run("mount", "-t", "tmpfs", "tmpfs", "/mnt")


FILES = (
    "/run/relvmoiscsi/left",
    "/var/lock/sm/iscsiadm/left",
    "/var/run/sr-ref/iqn.2026-01.lab:gone",
    "/run/lock/lvm/V_left",
    "/run/udev/rules.d/99-left.rules",
    "/etc/multipath/left",
)

#: pattern of a section and key -> what leaves something there
LEFTOVERS = {
    "sessions:session*": leave_session,
    "block:sd*": leave_session,
    "links:/dev/disk/by-id/*": leave_session,
    "records:*/nodes/*/default": leave_record,
    "records:*/send_targets/127.0.0.1,3260/st_config": leave_discovery,
    "dm:left-behind": leave_map,
    "processes:*": leave_process,
    "mounts:tmpfs /mnt *": leave_mount,
    "names:/tmp/left": leave_file("/tmp/left"),
}
LEFTOVERS.update(("files:" + os.path.realpath(path), leave_file(path)) for path in FILES)


def test_every_kind_of_leftover_is_noticed_and_can_be_taken_away(lab):
    before = lab.world()

    for leave in dict.fromkeys(LEFTOVERS.values()):
        leave(lab)
    after = lab.world()
    restore(before)
    leave_process.child.wait()

    every = before.diff(after)
    unnoticed = [pattern for pattern in LEFTOVERS if before.diff(after, except_for=[pattern]) == every]
    assert unnoticed == [], "\n".join(every)
    assert all(line.startswith("+") for line in every), every
    assert before.diff(lab.world()) == []


def test_what_was_changed_or_removed_is_put_back(lab):
    before, changed, removed = lab.world(), Path("/etc/multipath/wwids"), Path("/etc/lvm/master/lvm.conf")
    contents = changed.read_bytes(), removed.read_bytes()

    changed.write_text("something else\n")
    removed.unlink()
    restore(before)

    assert (changed.read_bytes(), removed.read_bytes()) == contents


def test_what_a_test_has_begun_ends_before_its_things_are_taken_away(lab):
    lun = lab.lun(lab.blank("blank.img"), breakable=True)
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)
    device, done = only_device(lun), []
    lun.freeze()

    lab.begin(threading.Thread(target=lambda: done.append(read_directly(device, 300)[0]), daemon=True))
    assert done == []
    lab.clear()

    assert done == [0] and initiator.sessions() == []


def test_a_session_that_was_replaced_is_noticed(lab):
    target = lab.target(lab.lun(lab.blank("blank.img")))
    initiator.login(target.iqn, target.portal)
    before = lab.world()

    initiator.logout(target.iqn)
    initiator.login(target.iqn, target.portal)

    assert [line[:10] for line in before.diff(lab.world()) if "session" in line[:10]] == ["- sessions", "+ sessions"]


@pytest.mark.execs
def test_secrets_of_short_processes_are_seen():
    with Watcher() as watcher:
        for word in ("first", "second", "third"):
            subprocess.check_call(["sh", "-c", f"echo argv-{word} >/dev/null; sleep 0.05"])
        subprocess.check_call(["true"], env={"HIDDEN": "in-environ"})

    assert [len(watcher.places("argv-" + word)) for word in ("first", "second", "third")] == [1, 1, 1]
    assert any(place.startswith("environ") for place in watcher.places("in-environ"))
    assert watcher.places("never-said") == []


def test_the_log_of_the_storage_manager_is_kept(lab):
    handler = logging.handlers.SysLogHandler("/dev/log", facility="local2")
    handler.emit(logging.LogRecord("", logging.INFO, "", 0, "SM: [1] from Python", None, None))
    handler.close()
    run("logger", "-p", "local2.debug", "-t", "SM", "[2] from logger")
    run("logger", "-p", "daemon.info", "not for it")

    assert lab.smlog() == ["SM: [1] from Python", "SM: [2] from logger"]


def test_both_pythons_run_in_the_guest(lab):
    versions = {run(python, "-c", "import sys; print(sys.version_info[:2])").out.strip() for python in lab.pythons}

    assert str(sys.version_info[:2]) in versions
    assert "(3, 6)" in versions or not Path(".venv/py36/bin/python").exists()
