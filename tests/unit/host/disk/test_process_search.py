# SPDX-License-Identifier: LGPL-2.1-only
"""A user has as many descriptors and mounts as the host lets him; the search of root ends, and says who it is."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import relvmoiscsi
from relvmoiscsi.deadline import NO_DEADLINE, Deadline, OutOfTime
from relvmoiscsi.errors import Refused, refuse_if_short
from relvmoiscsi.host.disk import holders, process_search
from relvmoiscsi.host.disk.process_search import ProcessSearch
from relvmoiscsi.host.files import LEAST_OPEN, MOST_OPEN, lines_of, reserve
from relvmoiscsi.host.mounts import mount_of
from relvmoiscsi.host.this_host import Host

USER = 1001
MANY = 40
#: at a clock that goes on by a second with each look: enough for all processes, and not for all that the user has
LOOKS = 30


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Three processes of root's, and one of the user's with a number in the middle."""
    system, stat = Host(str(tmp_path)), os.stat
    for number in ("1", "30", "40", "50"):
        for name in ("fd", "fdinfo", "ns"):
            os.makedirs(system.at("proc", number, name))
        os.symlink(f"mnt:[{number}]", system.at("proc", number, "ns/mnt"))
        mount(system, number, "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n")

    def owned(path, *more, **options):
        owners = {system.at("proc", number): uid for number, uid in (("1", 0), ("30", 0), ("40", USER), ("50", 0))}
        return SimpleNamespace(st_uid=owners[path]) if path in owners else stat(path, *more, **options)

    monkeypatch.setattr(os, "stat", owned)
    monkeypatch.setattr(process_search, "SEARCH_SECONDS", float(LOOKS))
    return system


def mount(system, number, lines):
    with open(system.at("proc", number, "mountinfo"), "w", encoding="utf-8") as file:
        file.write(lines)


def opens(system, number, count, node):
    for descriptor in range(count):
        os.symlink(node, system.at("proc", number, "fd", str(descriptor)))


def number_of_mount(path):
    with open(str(path), "rb") as file:
        return mount_of(f"/proc/self/fd/{file.fileno()}")


def ticking(seconds=LOOKS):
    """A deadline that comes after so many looks at its clock."""
    times = iter(range(10**6))
    return Deadline(seconds, lambda: float(next(times)))


def search(host, deadline):
    found = ProcessSearch(deadline, host)
    mounts = {number_of_mount(host.at("proc/1/mountinfo"))}
    return lambda: list(found.open_files(mounts)), lambda: list(found.mounts())


def test_a_process_of_any_user_is_looked_at(host):
    node = host.at("node")
    with open(node, "w"):
        opens(host, "40", 1, node)
        opens(host, "50", 2, node)
    opens(host, "1", 1, "socket:[77]")
    for link in ("1/0", "40/0", "50/0", "50/1"):
        with open(host.at("proc", link.replace("/", "/fdinfo/")), "w", encoding="utf-8") as file:
            file.write(f"pos:\t0\nmnt_id:\t{number_of_mount(node)}\n")
    mount(host, "40", "36 35 8:16 / /mnt rw - ext4 /dev/sdb rw\n")

    open_files, mounts = search(host, NO_DEADLINE)
    found = dict(open_files())
    assert sorted(found) == [host.at("proc", each) for each in ("40/fd/0", "50/fd/0", "50/fd/1")]
    assert {status.st_ino for status in found.values()} == {os.stat(node).st_ino}
    assert [each.directory for each in mounts()] == ["/", "/mnt"]


@pytest.mark.parametrize(
    "shown, is_seen",
    [
        ({"40": "rw - ext4 /dev/sdb rw"}, True),
        ({"30": "rw - ext4 /dev/sdb rw"}, True),  # of another mount namespace: the file was sent over a socket
        ({"40": "rw - fuse x rw,user_id=1001"}, False),
        ({}, False),
    ],
)
def test_the_number_of_a_mount_is_looked_up_again_while_a_file_there_is_open(host, monkeypatch, shown, is_seen):
    """The kernel gives the number of an unmounted file system to the next mount, also to one of FUSE."""
    node = host.at("node")
    with open(node, "w"):
        opens(host, "40", 2, node)
    number = number_of_mount(node)
    for link in ("40/fdinfo/0", "40/fdinfo/1"):
        with open(host.at("proc", link), "w", encoding="utf-8") as file:
            file.write(f"pos:\t0\nmnt_id:\t{number}\n")
    for process, what in shown.items():
        mount(host, process, f"{number} 35 8:16 / /mnt {what}\n")

    before, kept = len(os.listdir("/proc/self/fd")), set()
    found = ProcessSearch(NO_DEADLINE, host)
    for _link, _status in found.open_files({number}, lambda each: each.is_local):
        kept.add(tuple(found._kept))
    assert kept == ({(number,)} if is_seen else set())
    assert len(os.listdir("/proc/self/fd")) == before


#: a local mount has gone since the search looked at the mounts, and FUSE has its number; the program answers nothing
REUSED = """
import ctypes, os, sys
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.host.disk.process_search import ProcessSearch
from relvmoiscsi.host.this_host import Host

libc = ctypes.CDLL(None)

def number(descriptor):
    with open(f"/proc/self/fdinfo/{descriptor}") as lines:
        return next(line.split()[1] for line in lines if line.startswith("mnt_id"))

if libc.mount(b"x", b"there", b"tmpfs", 0, b""):
    sys.exit("skip: no mount")
search = ProcessSearch(NO_DEADLINE, Host())
local = {mount.number for mount in search.mounts() if mount.is_local}
before = os.open("there", os.O_PATH)
reused = number(before)
os.close(before)
libc.umount(b"there")
try:
    device = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    sys.exit(f"skip: {error}")
if libc.mount(b"x", b"there", b"fuse", 0, b"fd=%d,rootmode=40000,user_id=4712,group_id=0,allow_other" % device):
    sys.exit("skip: no mount of FUSE")
there = os.open("there", os.O_PATH)
if number(there) != reused or reused not in local:
    sys.exit("skip: another program has the number")
found = dict(search.open_files(local, lambda mount: mount.is_local))
print(f"/proc/{os.getpid()}/fd/{there}" in found, len(found) > 0)
"""


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_mount_of_fuse_with_the_number_of_a_local_one_does_not_hold_up_the_search(tmp_path):
    (tmp_path / "there").mkdir()
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(relvmoiscsi.__file__)))
    argv = ["unshare", "--mount", sys.executable, "-c", REUSED]
    pipe = subprocess.PIPE
    ran = subprocess.run(argv, cwd=str(tmp_path), env=environment, stdout=pipe, stderr=pipe, timeout=60, check=False)
    if b"skip:" in ran.stderr or ran.stderr.startswith(b"unshare:"):
        pytest.skip(ran.stderr.decode())
    assert ran.stdout == b"False True\n", ran


@pytest.mark.parametrize("kind", ["copies of /dev/null", "copies of a file", "mounts"])
def test_the_search_of_a_user_who_has_too_much_ends_and_names_the_user(host, kind):
    if kind == "mounts":
        mount(host, "40", MANY * f"36 35 0:60 / /{'m' * 99} rw - tmpfs x rw\n")
    else:
        opens(host, "40", MANY, "/dev/null" if "null" in kind else "/tmp/file")

    open_files, mounts = search(host, ticking())
    with pytest.raises(OutOfTime, match=f"^The [0-9]+ seconds .* are over.* user {USER} took 2[0-9] of these") as late:
        mounts() if kind == "mounts" else open_files()
    assert f"`ps -u {USER}`" in late.value.advice


def test_the_search_looks_at_the_clock_before_each_open_file(host, monkeypatch):
    """The kernel tells each lock of a file, when it is asked for the mount: 0.1 s for 20,000 locks of a user."""
    opens(host, "40", MANY, "/tmp/file")
    now = [0.0]

    def slow(_path, _mounts, _is_still):
        now[0] += 1

    monkeypatch.setattr(process_search, "status_of_open", slow)
    with pytest.raises(OutOfTime, match=f"user {USER} took 3 of these"):
        search(host, Deadline(3.0, lambda: now[0]))[0]()
    assert now == [3.0]


def test_a_user_with_descriptors_on_many_mounts_costs_a_look_at_one_process_for_each(host):
    """Each look went through all processes, and the search was refused with the name of root."""
    node = host.at("node")
    with open(node, "w"):
        opens(host, "40", 1, node)
    number = number_of_mount(node)
    with open(host.at("proc/40/fdinfo/0"), "w", encoding="utf-8") as file:
        file.write(f"pos:\t0\nmnt_id:\t{number}\n")
    mount(host, "50", f"{number} 35 8:16 / /mnt rw - ext4 /dev/sdb rw\n")
    found = ProcessSearch(NO_DEADLINE, host)
    list(found.mounts())

    mount(host, "30", MANY * f"36 35 0:60 / /{'m' * 99} rw - tmpfs x rw\n")
    found._deadline = ticking()  # which the lines of process 30 would take
    assert [link for link, _status in found.open_files({number}, lambda each: each.is_local)]

    mount(host, "50", "")  # unmounted since: now the user of process 40 is charged with the look at all
    found._deadline = ticking()
    with pytest.raises(OutOfTime, match=f" user {USER} took 2[0-9] of these"):
        list(found.open_files({number}, lambda each: each.is_local))


@contextmanager
def limit_of_open_files(left):
    """This process can open so many more files. The limit of the host for it stays."""
    with open(os.devnull) as file:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + left, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def not_allowed(_what, limits):
    raise ValueError(f"not allowed to raise maximum limit: {limits}")


@pytest.mark.parametrize("left", [1, 10, LEAST_OPEN - 1])
def test_a_search_raises_the_limit_of_its_process_or_is_refused_and_finds_not_just_fewer_users(host, monkeypatch, left):
    """The limit comes from the caller's shell, also by sudo: the search took each process for one that has ended."""
    opens(host, "40", 1, "/tmp/file")
    with limit_of_open_files(left), monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", not_allowed)
        with pytest.raises(Refused, match="cannot open enough files: Too many open files.*`ulimit -n 1024`"):
            ProcessSearch(NO_DEADLINE, host)
    with limit_of_open_files(left):
        ProcessSearch(NO_DEADLINE, host)
    assert len(os.listdir("/proc/self/fd")) < MOST_OPEN, "the search has closed what it opened"


@pytest.mark.parametrize("left", [LEAST_OPEN + 40, MOST_OPEN + 40])
def test_a_search_at_a_hard_limit_keeps_fewer_files_open(host, monkeypatch, left):
    """A user cannot raise it. The search was refused, and so was each command that needs no search."""
    with limit_of_open_files(left), monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", not_allowed)
        room = reserve()
        assert left - 40 <= room <= left
        assert ProcessSearch(NO_DEADLINE, host)._most_kept == room // 2


def test_a_hard_limit_that_a_shell_cannot_raise_is_named(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (200, 200))
    with pytest.raises(Refused) as caught:
        refuse_if_short(OSError(errno.EMFILE, "Too many open files"))
    assert "ulimit -n" not in caught.value.told and "The hard limit (`ulimit -Hn`) is 200 here" in caught.value.told


@pytest.mark.parametrize("at", ["fd", "mountinfo", "fdinfo"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_search_that_can_open_no_more_files_in_its_middle_is_refused(host, monkeypatch, at, number):
    """Other threads of the process, or other processes of the host, may have opened files since."""
    opens(host, "40", 1, "/tmp/file")
    found = ProcessSearch(NO_DEADLINE, host)

    def full(path, *more, real=os.open, **named):
        if at in str(path):
            raise OSError(number, os.strerror(number))
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr("builtins.open", lambda path, *_: os.close(full(path, os.O_RDONLY)))
    with pytest.raises(Refused, match="cannot open enough files"):
        list(found.mounts() if at == "mountinfo" else found.open_files({"1"}))


@pytest.mark.processes
def test_a_thread_has_a_file_open_and_shows_its_mounts_after_the_first_thread_has_ended(tmp_path):
    """The program tells its thread's number; the first thread ends by the system call `exit`."""
    path = tmp_path / "dev" / "disk"
    path.parent.mkdir()
    path.touch()
    program = [sys.executable, "-c", THREADS, str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True) as child:
        try:
            assert child.stdout.readline() == "open\n"
            here = Host()
            assert here.wait_for(lambda: "State:\tZ (zombie)" in lines_of(f"/proc/{child.pid}/status"), 60)
            found = ProcessSearch(NO_DEADLINE, here).open_files({number_of_mount(path)})
            assert path.stat().st_ino in [status.st_ino for _link, status in found]
            (tmp_path / "proc").mkdir()
            (tmp_path / "proc" / str(child.pid)).symlink_to(f"/proc/{child.pid}")
            shown = list(ProcessSearch(NO_DEADLINE, Host(str(tmp_path))).mounts())
            assert number_of_mount(path) in [mount.number for mount in shown]
        finally:
            child.kill()


@pytest.mark.processes
def test_a_file_is_seen_whose_path_is_too_long_for_the_kernel_to_tell(tmp_path):
    package = os.path.dirname(os.path.dirname(relvmoiscsi.__file__))
    environment = dict(os.environ, PYTHONPATH=package)
    said = subprocess.check_output([sys.executable, "-c", DEEP], cwd=str(tmp_path), env=environment)
    assert said == b"True File name too long\n"


DEEP = """
import os
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.host.mounts import mount_of
from relvmoiscsi.host.disk.process_search import ProcessSearch
from relvmoiscsi.host.this_host import Host

for _depth in range(21):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
link = f"/proc/{os.getpid()}/fd/{os.open(os.curdir, os.O_RDONLY)}"
try:
    os.readlink(link)
except OSError as error:
    print(link in dict(ProcessSearch(NO_DEADLINE, Host()).open_files({mount_of(link)})), error.strerror)
"""


THREADS = """
import ctypes, os, sys, threading

def use():
    file = open(sys.argv[1])
    print("open", flush=True)
    os.read(0, 1)

threading.Thread(target=use).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_mount_is_given_once_and_all_mounts_of_each_process_are_given(host):
    """Two processes of one namespace tell "/" as their root, and another mount lies over the root of the one."""
    for number in ("30", "40"):
        os.unlink(host.at("proc", number, "ns/mnt"))
        os.symlink("mnt:[77]", host.at("proc", number, "ns/mnt"))
        os.symlink("/", host.at("proc", number, "root"))
    mount(host, "40", "60 36 0:70 / / rw - tmpfs x rw\n61 60 8:16 / /mnt rw - ext4 /dev/sdb rw\n")

    _open_files, mounts = search(host, NO_DEADLINE)
    assert [(each.number, each.directory) for each in mounts()] == [("36", "/"), ("60", "/"), ("61", "/mnt")]


def test_the_mounts_of_a_process_are_those_of_its_threads_after_the_first_thread_has_ended(host):
    os.unlink(host.at("proc/40/mountinfo"))
    for thread, disk in (("41", "/dev/sdb"), ("42", "/dev/sdc")):
        os.makedirs(host.at("proc/40/task", thread))
        mount(host, f"40/task/{thread}", f"{thread} 36 8:16 / /mnt rw - ext4 {disk} rw\n")

    _open_files, mounts = search(host, NO_DEADLINE)
    assert sorted(each.source for each in mounts()) == ["/dev/sda1", "/dev/sdb", "/dev/sdc"]


def test_without_a_deadline_a_search_has_its_own(host, monkeypatch):
    monkeypatch.setattr(process_search, "SEARCH_SECONDS", 0.0)
    for who in (holders.users_of_disks, holders.users_of_each):
        with pytest.raises(OutOfTime, match="^The 0 seconds of the search"):
            who(["sdb"], host)
