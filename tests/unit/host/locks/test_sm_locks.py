# SPDX-License-Identifier: LGPL-2.1-only
"""SM's locks are taken so that SM waits, and given back.

The other side of each lock is done as SM does it: fcntl from another process, flock, a server that greets.
"""

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from kit.clock import Clock
from relvmoiscsi.errors import CommandFailed, Refused
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.sm_locks import is_sm_here, lvm_lock
from relvmoiscsi.host.this_host import Host

LVM = "var/lock/sm/.nil/lvm"
FAIRLOCK = "run/fairlock/devicemapper"

# SM's flock.py, as it locks: a record lock on the whole file, tried once; it prints whether it got it.
SM_TRIES = """
import fcntl, struct, sys
with open(sys.argv[1], "w+") as file:
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETLK, struct.pack("hhqql", fcntl.F_WRLCK, 0, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        print("busy")
    else:
        print("free")
        if len(sys.argv) > 2:
            sys.stdout.flush()
            sys.stdin.readline()
"""


def sm_finds(path):
    return subprocess.check_output([sys.executable, "-c", SM_TRIES, path]).decode().strip()


class SmHolder:
    """SM in another process, which has the lock until the block ends."""

    def __init__(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.path = path

    def __enter__(self):
        argv = [sys.executable, "-c", SM_TRIES, self.path, "hold"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"free\n"
        return self

    def __exit__(self, *_):
        self.process.communicate(b"\n")


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def in_root(root, name):
    return os.path.join(root, name)


# --- LVM


@pytest.mark.processes
def test_we_wait_for_sm(root):
    with SmHolder(in_root(root, LVM)) as sm, pytest.raises(Refused) as caught, lvm_lock(Host(root), timeout=0):
        pytest.fail("taken twice")
    assert f"held by process {sm.process.pid} and" in str(caught.value)
    assert " Nothing was changed. " in str(caught.value)

    with lvm_lock(Host(root)):
        pass


def test_two_of_ours_exclude_each_other_even_in_one_process_and_the_file_is_sm_s(root):
    with pytest.raises(KeyError), lvm_lock(Host(root)):
        with open(in_root(root, LVM)):
            pass  # closing another descriptor of the file keeps the lock
        with pytest.raises(Refused, match="held by another run of relvmoiscsi"), lvm_lock(Host(root), timeout=0):
            pytest.fail("taken twice")
        raise KeyError
    assert os.path.exists(in_root(root, LVM))
    with lvm_lock(Host(root), timeout=0):
        pass


def fails(error):
    def operation(*_):
        raise error

    return operation


def without_directory(times, removed=None):
    """SM has removed the directory of a new file, so many times."""
    real, removed = os.open, [] if removed is None else removed

    def open_after_sm(path, flags, *arguments, **more):
        if flags & os.O_CREAT and len(removed) < times:
            removed.append(path)
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, flags, *arguments, **more)

    return open_after_sm


@pytest.mark.parametrize(
    "happens, words",
    [
        (lambda root, _: os.makedirs(in_root(root, LVM)), "Is a directory"),
        (lambda root, _: open(in_root(root, "var"), "w").close(), "cannot be made: .*/var is no directory"),
        (lambda _, patch: patch.setattr(os, "open", without_directory(100)), "again and again"),
        (lambda _, patch: patch.setattr(fcntl, "fcntl", fails(OSError(22, "Invalid argument"))),
         "cannot be locked: Invalid argument"),
    ],
)  # fmt: skip
def test_what_cannot_be_locked_is_refused(root, monkeypatch, happens, words):
    happens(root, monkeypatch)

    with pytest.raises(Refused, match=words), lvm_lock(Host(root)):
        pytest.fail("a lock without a lock")


def test_a_directory_that_sm_removes_in_between_is_made_again(root, monkeypatch):
    removed = []
    monkeypatch.setattr(os, "open", without_directory(3, removed))
    with lvm_lock(Host(root)):
        assert len(removed) == 3


@pytest.mark.processes
def test_sm_with_a_file_lock_waits_with_lvm(root):
    with lvm_lock(Host(root)):
        assert sm_finds(in_root(root, LVM)) == "busy"


def test_a_lock_file_that_is_made_here_is_for_root_alone(root):
    """A user who can open the file can lock the file, and would hold root up."""
    with lvm_lock(Host(root)):
        assert stat.S_IMODE(os.stat(in_root(root, LVM)).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_lock_below_a_directory_of_another_user_is_refused(root):
    sm = in_root(root, "var/lock/sm")
    os.makedirs(sm)
    os.chown(sm, 4712, 4712)
    with pytest.raises(Refused, match="/sm belongs to another user"), lvm_lock(Host(root)):
        pytest.fail("locked")
    assert os.listdir(sm) == []


@pytest.mark.parametrize("name", sm_locks.SM_LOCKS)
def test_whatever_is_in_the_place_of_the_lock_directory_is_a_sign_of_sm(root, name):
    """What another user has put there, SM may follow."""
    path = in_root(root, name)
    assert not is_sm_here(Host(root))
    os.makedirs(path)
    assert is_sm_here(Host(root))

    os.rename(path, path + ".real")
    os.symlink("nowhere", path)
    assert is_sm_here(Host(root))


# --- Fairlock


class Fairlock:
    """misc/fairlock/fairlock.c of SM: greets one connection, and the next when that has ended."""

    def __init__(self, root, backlog=64):
        path = in_root(root, FAIRLOCK)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(backlog)
        self.heard = []
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            connection, _ = self.server.accept()
            with connection:
                try:
                    connection.sendall(b"LOCK\0")
                    said = connection.recv(128)
                    self.heard.append(said)
                    while said != b"stop" and connection.recv(128):
                        pass  # talk while it is held
                except ConnectionError:
                    continue  # it went while it was waiting
                if said == b"stop":
                    return

    def stop(self, root):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(in_root(root, FAIRLOCK))
            client.sendall(b"stop")
            self.thread.join()
        self.server.close()


@pytest.fixture
def short_root(tmp_path_factory, monkeypatch):
    """Names of sockets have at most 107 bytes, so: relative."""
    monkeypatch.chdir(str(tmp_path_factory.mktemp("r")))
    return "."


@pytest.fixture
def serving(short_root):
    """Starts the service; it ends with the test."""
    services = []

    def serve():
        services.append(Fairlock(short_root))
        return services[0]

    yield serve
    for service in services:
        service.stop(short_root)


@pytest.fixture
def socket_of_fairlock(short_root):
    """One that a test serves itself."""
    os.makedirs("run/fairlock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(FAIRLOCK)
        yield server


def test_a_fairlock_is_held_while_the_block_runs(short_root, serving):
    service = serving()
    with lvm_lock(Host(short_root)):
        # The file lock, which would be the first to be waited for, out of the way.
        os.rename(in_root(short_root, LVM), in_root(short_root, "elsewhere"))
        with pytest.raises(Refused, match="devicemapper is held by"), lvm_lock(Host(short_root), timeout=0):
            pytest.fail("taken twice")
    with lvm_lock(Host(short_root)):
        pass

    assert f"{os.getpid()} - relvmoiscsi".encode() in service.heard


def test_a_fairlock_service_that_does_not_run_is_started_where_there_is_one(short_root, serving):
    started = []

    def run(argv, **_):
        started.append(argv)
        serving()
        return ""

    with lvm_lock(Host(short_root, run)):
        assert started == []
    os.makedirs("run/fairlock")
    with lvm_lock(Host(short_root, run)):
        assert started == [["systemctl", "start", "fairlock@devicemapper.service"]]


def test_a_fairlock_service_that_cannot_be_started_is_an_error(short_root, caplog, monkeypatch):
    os.makedirs("run/fairlock")
    clock = Clock()
    monkeypatch.setattr(sm_locks, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(sm_locks.terminated, "pause", clock.sleep)

    def run(argv, **_):
        raise CommandFailed(argv, 5, "Unit not found.")

    with pytest.raises(Refused, match="does not answer: No such file"), lvm_lock(Host(short_root, run)):
        pytest.fail("locked")
    assert caplog.text.count("Unit not found") == 1
    monkeypatch.setattr(socket.socket, "connect", fails(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), lvm_lock(Host(short_root)):
        pytest.fail("locked")


def test_a_fairlock_service_that_ends_is_asked_again(short_root, socket_of_fairlock):
    socket_of_fairlock.listen(1)

    def end():
        socket_of_fairlock.accept()[0].close()
        connection, _ = socket_of_fairlock.accept()
        connection.sendall(b"LOCK\0")
        connection.recv(128)
        connection.close()

    thread = threading.Thread(target=end)
    thread.start()
    with lvm_lock(Host(short_root), timeout=600):
        pass
    thread.join()


def test_a_full_queue_is_waited_for(short_root, socket_of_fairlock):
    socket_of_fairlock.listen(0)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(FAIRLOCK)
        with pytest.raises(Refused, match="too many wait|is held by"), lvm_lock(Host(short_root), timeout=0):
            pytest.fail("locked")
