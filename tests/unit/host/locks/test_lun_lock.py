# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN: one holder at a time, whatever happens to files and directories in the meantime."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import relvmoiscsi
from relvmoiscsi.errors import Busy, Refused, UsageError
from relvmoiscsi.host import run_directory
from relvmoiscsi.host.locks.lun_lock import is_lun_locked, locked_luns, lun_lock, user_lock
from relvmoiscsi.host.this_host import Host

TOP = os.path.dirname(os.path.dirname(relvmoiscsi.__file__))
LUN, OTHER = "36001405abc", "36001405def"
LOCKS = "run/relvmoiscsi/locks"


@pytest.fixture
def host(tmp_path):
    os.symlink("/proc", str(tmp_path / "proc"))
    return Host(str(tmp_path))


def is_free(host):
    try:
        with lun_lock(LUN, host, timeout=0):
            return True
    except Busy:
        return False


def test_a_lun_is_for_one_at_a_time_and_nobody_else_can_open_its_lock(host):
    assert not is_lun_locked(LUN, host) and locked_luns(host) == {}
    with lun_lock(LUN, host):
        path = os.path.join(host.at(LOCKS), LUN)
        modes = [os.stat(name).st_mode & 0o777 for name in (path, host.at(LOCKS), host.at("run/relvmoiscsi"))]
        assert modes == [0o600, 0o700, 0o700]
        assert not is_free(host) and is_lun_locked(LUN, host) and not is_lun_locked(OTHER, host)
        with lun_lock(OTHER, host, timeout=0):
            assert sorted(locked_luns(host)) == [LUN, OTHER]

    assert os.listdir(host.at(LOCKS)) == []


HOLDER = """
import sys
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.this_host import Host
with lun_lock(sys.argv[2], Host(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(host):
    argv = [sys.executable, "-c", HOLDER, host.root, LUN]
    environment = dict(os.environ, PYTHONPATH=TOP)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.processes
def test_the_holder_is_named_and_a_killed_holder_holds_nothing(host):
    with holder(host) as process:
        with pytest.raises(Busy) as caught, lun_lock(LUN, host, timeout=0):
            pytest.fail("taken twice")
        assert re.search(rf"is held by process {process.pid} \([^)]*\) and did not become free", str(caught.value))
        assert str(process.pid) in locked_luns(host)[LUN]
        process.send_signal(signal.SIGKILL)

    assert os.listdir(host.at(LOCKS)) == [LUN], "nobody has removed it"
    assert is_free(host) and os.listdir(host.at(LOCKS)) == []


def test_two_holders_are_told_as_a_list(tmp_path):
    """The udev rules take a shared flock, and so may two of their programs at the same time."""
    host = Host(str(tmp_path))
    run_directory.make_run_directory(host, "locks")
    path = tmp_path / LOCKS / LUN
    path.touch(0o600)
    status = path.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (tmp_path / "proc").mkdir()
    lines = [f"{number}: FLOCK  ADVISORY  READ {number} {place} 0 EOF\n" for number in (8012, 8013)]
    (tmp_path / "proc/locks").write_text("".join(lines))
    (tmp_path / "proc/8012").mkdir()
    (tmp_path / "proc/8012/comm").write_text("qemu-dp\n")

    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        holders = r"process 8012 \(qemu-dp\), process 8013"
        with pytest.raises(Busy, match=f"is held by {holders} and did not"), lun_lock(LUN, host, timeout=0):
            pytest.fail("taken twice")


#: takes the lock again and again; a second holder would find the file `inside` there already
RACER = """
import os, sys
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.this_host import Host
for _ in range(int(sys.argv[3])):
    with lun_lock(sys.argv[2], Host(sys.argv[1]), timeout=600):
        os.close(os.open(sys.argv[1] + "/inside", os.O_CREAT | os.O_EXCL))
        os.unlink(sys.argv[1] + "/inside")
print("alone")
"""


@pytest.mark.processes
def test_processes_that_race_are_never_two_holders_though_each_removes_the_file(host):
    argv = [sys.executable, "-c", RACER, host.root, LUN, "400"]
    environment = dict(os.environ, PYTHONPATH=TOP)
    racers = [subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) for _ in range(4)]
    assert [racer.communicate()[0] for racer in racers] == [b"alone\n"] * 4


def test_who_waited_locks_the_file_that_is_there_now(host):
    run_directory.make_run_directory(host, "locks")
    path = os.path.join(host.at(LOCKS), LUN)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as stale:
        fcntl.flock(stale, fcntl.LOCK_EX)
        taken, done = threading.Event(), threading.Event()

        def wait():
            with lun_lock(LUN, host):
                taken.set()
                done.wait()

        thread = threading.Thread(target=wait)
        thread.start()
        os.unlink(path)
    assert taken.wait(600)
    assert not is_free(host)
    done.set()
    thread.join()


def test_a_lock_whose_directory_was_renamed_meanwhile_is_not_had(host, monkeypatch):
    """t0 this process opens the file, t1 the directory is renamed, t2 this process has the lock of a file elsewhere."""
    real, renamed = fcntl.flock, []

    def flock(descriptor, operation):
        if not renamed:
            os.rename(host.at(LOCKS), host.at("elsewhere"))
            renamed.append(True)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lun_lock(LUN, host):
        assert os.listdir(host.at(LOCKS)) == [LUN] == os.listdir(host.at("elsewhere"))
        assert not is_free(host)


def test_a_removed_lock_file_is_no_failure_of_the_run(host):
    with lun_lock(LUN, host):
        os.unlink(os.path.join(host.at(LOCKS), LUN))
    assert is_free(host)


@pytest.mark.parametrize("scsi_id", ["", "..", "a/b", "a b"])
def test_what_is_no_scsi_id_is_refused(host, scsi_id):
    with pytest.raises(UsageError), lun_lock(scsi_id, host):
        pytest.fail("locked")
    with pytest.raises(UsageError):
        is_lun_locked(scsi_id, host)


# --- what cannot be trusted


def is_a_file(host):
    open(host.at("run/relvmoiscsi"), "w").close()


def is_writable(host):
    os.makedirs(host.at("run/relvmoiscsi"))
    os.chmod(host.at("run/relvmoiscsi"), 0o770)


def has_a_parent_of_all(host):
    os.chmod(host.at("run"), 0o777)


def has_a_lock_that_is_a_link(host):
    run_directory.make_run_directory(host, "locks")
    os.symlink(host.at("run/other"), os.path.join(host.at(LOCKS), LUN))


def has_a_lock_that_others_can_open(host):
    run_directory.make_run_directory(host, "locks")
    path = os.path.join(host.at(LOCKS), LUN)
    open(path, "w").close()
    os.chmod(path, 0o644)


@pytest.mark.parametrize(
    "happens, words",
    [
        (is_a_file, "The directory .*/locks cannot be made: .*run/relvmoiscsi is no directory"),
        (is_writable, "The lock .* is not safe: other users can change the directory .*/run/relvmoiscsi"),
        (has_a_parent_of_all, "The lock .* is not safe: other users can change the directory .*/run"),
        (has_a_lock_that_is_a_link, f"lock .*{LUN} is not safe: .* is a link"),
        (has_a_lock_that_others_can_open, f"other users can open the file .*/{LUN}.*Then remove the file"),
    ],
)
def test_what_another_user_could_hold_or_replace_is_not_locked(host, happens, words):
    os.makedirs(host.at("run"))
    happens(host)
    with pytest.raises(Refused, match=words), lun_lock(LUN, host, timeout=0):
        pytest.fail("locked")
    assert not os.path.exists(host.at("run/other"))


def test_where_all_may_make_files_and_only_owners_rename_them_the_lock_is_safe(host):
    os.makedirs(host.at("run"))
    os.chmod(host.at("run"), 0o1777)
    assert is_free(host)


# --- among ordinary users

NAMED = f"3600test{os.getpid():08d}"


@pytest.mark.processes
def test_the_lock_of_ordinary_users_is_had_once_and_ends_with_the_process():
    for _ in range(2):
        with user_lock(NAMED + "1", timeout=0), user_lock("3" + "x" * 254, timeout=0), user_lock(NAMED, timeout=0):
            taken = pytest.raises(Refused, user_lock(NAMED, timeout=0).__enter__)
        assert "`ss -xlp src @relvmoiscsi-lun-" in str(taken.value)
    child = os.fork()
    if not child:
        user_lock(NAMED, timeout=0).__enter__()
        os._exit(0)
    os.waitpid(child, 0)

    with user_lock(NAMED, timeout=0):
        pass


@pytest.mark.parametrize("times", [1, 99])
def test_a_directory_that_is_removed_again_is_made_again_or_the_lock_is_refused(host, monkeypatch, times):
    made = []

    def make(*args, really=run_directory.make_run_directory):
        really(*args)
        made.append(args)
        if len(made) <= times:
            shutil.rmtree(host.at("run/relvmoiscsi"))

    monkeypatch.setattr(run_directory, "make_run_directory", make)
    if times > 10:
        with pytest.raises(Refused, match="its directory vanishes again and again"), lun_lock(LUN, host, timeout=0):
            pytest.fail("locked")
    else:
        with lun_lock(LUN, host, timeout=0):
            assert is_lun_locked(LUN, host)
