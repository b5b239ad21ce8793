# SPDX-License-Identifier: LGPL-2.1-only
"""The lab, tested by itself: what its fixtures say of a test is so."""

import logging
import logging.handlers
import os
import subprocess
import threading
from pathlib import Path

import pytest

from kit import builder
from kit.lab import initiator
from kit.lab.command import run, until
from kit.lab.neighbour import Neighbour
from kit.lab.restore import restore
from kit.lab.secrets import Watcher


def read_directly(device, timeout=300):
    argv = ("dd", "if=" + device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
    return run(*argv, check=False, timeout=timeout).status


def write_directly(device):
    argv = ("dd", "if=/dev/zero", "of=" + device, "bs=4096", "count=1", "oflag=direct", "conv=notrunc")
    return run(*argv, check=False).status


def test_a_lun_breaks_and_heals_and_what_waits_for_it_ends_before_it_is_taken_away(lab):
    lun = lab.lun(lab.blank("blank.img"), breakable=True)
    lab.target(lun)
    device, done = "/dev/mapper/lab-" + lun.name, []

    lun.fail_writes()
    only_writes_fail = (read_directly(device), write_directly(device))
    lun.heal()
    healed = (read_directly(device), write_directly(device))
    lun.freeze()
    lab.begin(threading.Thread(target=lambda: done.append(read_directly(device)), daemon=True))
    assert done == []
    lab.clear()

    assert (only_writes_fail, healed, done) == ((0, 1), (0, 0), [0])


def test_one_changed_byte_changes_the_digest(lab):
    image = lab.disk(builder.one_vhd().disk, "built.img")
    twin = image.clone("twin.img")
    before = image.digest()
    with open(twin.path, "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")

    assert image.digest() == before != twin.digest()


def test_a_neighbour_notices_what_is_done_to_it(lab):
    neighbour = Neighbour(lab)
    try:
        neighbour.verify()

        with open(neighbour.image.path, "r+b") as original:
            original.seek(-1, os.SEEK_END)
            original.write(b"\1")
        with pytest.raises(AssertionError, match="original was disturbed"):
            neighbour.verify()
        neighbour.verify()

        neighbour.array.disable()
        until(lambda: states(lab) == ["FAILED"], "the session has failed")
        neighbour.array.enable()
        until(lambda: states(lab) == ["LOGGED_IN"], "the session is back")
        with pytest.raises(AssertionError, match="said was disturbed"):
            neighbour.verify()
    finally:
        neighbour.close()


def states(lab):
    return [value.split()[-1] for value in lab.world()["sessions"].values()]


# -- what a test leaves behind ------------------------------------------------------------------------------------


def leave_session(lab):
    initiator.login(lab.target(lab.lun(lab.blank("blank.img"))).iqn, "127.0.0.1:3260")


def leave_record(_lab):
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
    "udev:b*": leave_session,
    "records:*/nodes/*/default": leave_record,
    "records:*/send_targets/127.0.0.1,3260/st_config": leave_discovery,
    "dm:left-behind": leave_map,
    "processes:*": leave_process,
    "mounts:tmpfs /mnt *": leave_mount,
    "names:/tmp/left": leave_file("/tmp/left"),
}
LEFTOVERS.update(("files:" + os.path.realpath(path), leave_file(path)) for path in FILES)


def test_every_kind_of_leftover_is_noticed_and_can_be_taken_away(lab):
    changed, removed = Path("/etc/multipath/wwids"), Path("/etc/lvm/master/lvm.conf")
    contents = changed.read_bytes(), removed.read_bytes()
    before = lab.world()

    for leave in dict.fromkeys(LEFTOVERS.values()):
        leave(lab)
    after = lab.world()
    changed.write_text("something else\n")
    removed.unlink()
    restore(before)
    leave_process.child.wait()

    every = before.diff(after)
    unnoticed = [pattern for pattern in LEFTOVERS if before.diff(after, except_for=[pattern]) == every]
    assert unnoticed == [], "\n".join(every)
    assert all(line.startswith("+") for line in every), every
    assert before.diff(lab.world()) == []
    assert (changed.read_bytes(), removed.read_bytes()) == contents


# -- what is said -------------------------------------------------------------------------------------------------


def test_programs_and_the_secrets_of_short_ones_are_seen():
    with Watcher() as watcher:
        for word in ("first", "second", "third"):
            subprocess.check_call(["true", "argv-" + word])
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"HIDDEN": "in-environ"}) as lasting:
            until(lambda: watcher.places("in-environ"), "the environment of a program is seen")
            lasting.stdin.close()

    assert [len(watcher.places("argv-" + word)) for word in ("first", "second", "third")] == [1, 1, 1]
    assert watcher.places("never-said") == []
    assert "true argv-second" in watcher.began
    assert not any("pytest" in line for line in watcher.began)


def test_the_log_of_the_storage_manager_is_kept(lab):
    handler = logging.handlers.SysLogHandler("/dev/log", facility="local2")
    handler.emit(logging.LogRecord("", logging.INFO, "", 0, "SM: [1] from Python", None, None))
    handler.close()
    run("logger", "-p", "local2.debug", "-t", "SM", "[2] from logger")
    run("logger", "-p", "daemon.info", "not for it")

    assert lab.smlog() == ["SM: [1] from Python", "SM: [2] from logger"]
