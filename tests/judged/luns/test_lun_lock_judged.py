# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN between root and an ordinary user of the same machine: real users, real directories."""

import fcntl
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lun_lock import lun_lock, user_lock
from relvmoiscsi.host.run_directory import only_one
from relvmoiscsi.host.this_host import Host

pytestmark = pytest.mark.root

LUN = "36001405abc"
NOBODY = 65534


def as_user(act, *arguments):
    """Whether an ordinary user's process ends well. A fork: the interpreter may lie where only root can start it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act(*arguments)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def flocks(path):
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def renames(path):
    os.rename(path, path + ".away")


@pytest.fixture
def host():
    """A host where every user may reach /run, and may make files in /run/lock."""
    root = Path("/tmp", f"relvmoiscsi-locks-{os.getpid()}")
    (root / "run/lock").mkdir(parents=True)
    for name, mode in (("", 0o755), ("run", 0o755), ("run/lock", 0o1777)):
        (root / name).chmod(mode)
    os.symlink("/proc", str(root / "proc"))
    yield Host(str(root))
    shutil.rmtree(str(root))


def refused(host, words):
    with pytest.raises(Refused, match=words), lun_lock(LUN, host, timeout=0):
        pytest.fail("locked")


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["run of root", "run of all"])
def test_an_ordinary_user_neither_holds_up_root_nor_lets_two_roots_work_at_once(host, mode):
    os.chmod(host.at("run"), mode)
    with lun_lock(LUN, host, timeout=0):
        names = ["run/relvmoiscsi", "run/relvmoiscsi/locks", "run/relvmoiscsi/locks/" + LUN]
        for name in names:
            assert not as_user(flocks, host.at(name)), name
            assert not as_user(renames, host.at(name)), name
        refused(host, "is held by this very process")
    with only_one("settings.lock", host, 0, "It is changed by"):
        assert not as_user(flocks, host.at("run/relvmoiscsi/settings.lock"))
    assert as_user(flocks, host.at("run")), "the attempts above failed for want of rights alone"


def test_a_directory_that_a_user_has_made_first_is_refused(host):
    """As in /run/lock of Debian: the user could rename the file of the first root before the second root comes."""
    os.chmod(host.at("run"), 0o1777)
    assert as_user(os.makedirs, host.at("run/relvmoiscsi"))
    refused(host, "run/relvmoiscsi belongs to another user")


def test_a_directory_that_every_user_can_replace_is_refused(host):
    os.chmod(host.at("run"), 0o777)
    refused(host, "other users can change the directory .*/run")


def test_a_lock_file_of_another_user_is_refused(host):
    with lun_lock(LUN, host, timeout=0):
        os.chown(host.at("run/relvmoiscsi/locks/" + LUN), NOBODY, NOBODY)
        refused(host, "is a link, or belongs to another user")


def links(path):
    os.symlink("/tmp", path)


@pytest.mark.parametrize("makes", [os.makedirs, links])
def test_a_user_who_makes_the_lock_directory_of_sm_first_has_no_run_go_without_the_lock_of_sm(host, makes):
    """SM would take its locks in that directory."""
    os.makedirs(host.at("var"))
    os.symlink("../run/lock", host.at("var/lock"))
    assert as_user(makes, host.at("run/lock/sm"))
    assert sm_locks.is_sm_here(host)
    refusal = pytest.raises(Refused, match="run/lock/sm belongs to another user.*Let root have that place")
    with refusal, sm_locks.lvm_lock(host):
        pytest.fail("a lock that this user can replace")


def holds(lun, ready, done):
    with user_lock(lun, timeout=0):
        os.write(ready, b"held")
        os.read(done, 1)


def test_the_name_that_a_user_takes_stops_users_and_no_root_with_the_command_that_names_its_holder(host):
    lun = f"3600judged{os.getpid()}"
    (ready, told), (done, end) = os.pipe(), os.pipe()
    user = threading.Thread(target=as_user, args=(holds, lun, told, done))
    user.start()
    try:
        assert os.read(ready, 4) == b"held"
        with pytest.raises(Refused, match="names the process") as refused, user_lock(lun, timeout=0):
            pytest.fail("taken twice")
        listed = subprocess.run(
            re.search("`(.*?)`", str(refused.value)).group(1).split(), stdout=subprocess.PIPE, check=True
        )
        assert b"pid=" in listed.stdout
        with lun_lock(lun, host, timeout=0):
            pass
    finally:
        os.write(end, b".")
        user.join()
        for descriptor in (ready, told, done, end):
            os.close(descriptor)
