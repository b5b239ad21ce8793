# SPDX-License-Identifier: LGPL-2.1-only
"""The lab, tested by itself: what its fixtures say of a test is so."""

import contextlib
import logging
import logging.handlers
import os
import subprocess
from pathlib import Path

import pytest

from kit.lab import initiator, luns
from kit.lab.command import run, until
from kit.lab.neighbour import Neighbour
from kit.lab.restore import restore
from kit.lab.secrets import Watcher
from kit.lab.world import World


def states():
    return [value.split()[-1] for value in World.now().sections["sessions"].values()]


def test_a_neighbour_notices_what_is_done_to_it(lab):
    with contextlib.closing(Neighbour(lab)) as neighbour:
        neighbour.verify()

        with open(neighbour.image.path, "r+b") as original:  # one byte alone makes another digest
            original.seek(-1, os.SEEK_END)
            original.write(b"\1")
        with pytest.raises(AssertionError, match="original was disturbed"):
            neighbour.verify()
        neighbour.verify()

        neighbour.array.disable()
        until(lambda: states() == ["FAILED"], "the session has failed")
        neighbour.array.enable()
        until(lambda: states() == ["LOGGED_IN"], "the session is back")
        with pytest.raises(AssertionError, match="said was disturbed"):
            neighbour.verify()


# -- what a test leaves behind ------------------------------------------------------------------------------------


def leave_session(lab):
    initiator.login(lab.target(lab.lun(luns.blank("blank.img"))).iqn, "127.0.0.1:3260")


def leave_record(_lab):
    initiator.iscsiadm("-m", "node", "-T", "iqn.2026-01.lab:gone", "-p", "127.0.0.1:3260", "-o", "new")


def leave_discovery(_lab):
    initiator.iscsiadm("-m", "discovery", "-t", "sendtargets", "-p", "127.0.0.1")


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


FILES = ("/run/relvmoiscsi/left", "/var/lock/sm/iscsiadm/left", "/var/run/sr-ref/iqn.2026-01.lab:gone",
         "/run/lock/lvm/V_left", "/run/udev/rules.d/99-left.rules", "/etc/multipath/left")  # fmt: skip

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
    **{"files:" + os.path.realpath(path): leave_file(path) for path in FILES},
}


def test_every_kind_of_leftover_is_noticed_and_can_be_taken_away(lab):
    changed, removed = Path("/etc/multipath/wwids"), Path("/etc/lvm/master/lvm.conf")
    contents = changed.read_bytes(), removed.read_bytes()
    before = World.now()

    for leave in dict.fromkeys(LEFTOVERS.values()):
        leave(lab)
    after = World.now()
    changed.write_text("something else\n")
    removed.unlink()
    restore(before)
    leave_process.child.wait()

    every = before.diff(after)
    unnoticed = [pattern for pattern in LEFTOVERS if before.diff(after, except_for=[pattern]) == every]
    assert unnoticed == [], "\n".join(every)
    assert all(line.startswith("+") for line in every), every
    assert before.diff(World.now()) == []
    assert (changed.read_bytes(), removed.read_bytes()) == contents


# -- what is said -------------------------------------------------------------------------------------------------


def test_programs_their_secrets_and_the_log_of_the_storage_manager_are_seen(lab):
    with Watcher() as watcher:
        for word in ("first", "second"):
            subprocess.check_call(["true", "argv-" + word])
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"HIDDEN": "in-environ"}) as lasting:
            until(lambda: watcher.places("in-environ"), "the environment of a program is seen")
            lasting.stdin.close()
    handler = logging.handlers.SysLogHandler("/dev/log", facility="local2")
    handler.emit(logging.LogRecord("", logging.INFO, "", 0, "SM: [1] from Python", None, None))
    handler.close()
    run("logger", "-p", "local2.debug", "-t", "SM", "[2] from logger")
    run("logger", "-p", "daemon.info", "not for it")

    assert [len(watcher.places(word)) for word in ("argv-first", "argv-second", "never-said")] == [1, 1, 0]
    assert "true argv-second" in watcher.began
    assert not any("pytest" in line for line in watcher.began)
    assert lab.smlog() == ["SM: [1] from Python", "SM: [2] from logger"]
