# SPDX-License-Identifier: LGPL-2.1-only
"""Image files, and the command in this process."""

import os
import shutil
import tempfile
from contextlib import ExitStack

import pytest

from kit import shell
from kit.pool.simulator import Pool, sm_directory
from kit.shell import SCSI_ID
from kit.sparse import SparseDisk
from relvmoiscsi.cli import on_lun, output
from relvmoiscsi.host import sm_log
from relvmoiscsi.host.disk import exclusive
from relvmoiscsi.host.disk import scsi_id as live_scsi
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import disk_source, guard, opened, run, source


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Nobody cuts the power of this machine, and what is in its page cache is what the next command reads."""
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)


@pytest.fixture(autouse=True)
def leases(monkeypatch):
    """The kernel gives no lease while another process looks up the file, as a scan of /proc by another run does; on a
    busy machine that may be a second. `leases(0)`: the test has a process that has the file open.
    """
    monkeypatch.setattr(exclusive, "LEASE_SECONDS", 60)
    return lambda seconds: monkeypatch.setattr(exclusive, "LEASE_SECONDS", seconds)


@pytest.fixture(autouse=True)
def no_pool_and_no_sm(monkeypatch, tmp_path):
    """Whatever else this machine is: a host without xapi and SM, unless a test makes it one."""
    monkeypatch.setattr(on_lun, "HOST", Host(str(tmp_path / "no host")))


@pytest.fixture(autouse=True)
def smlines(monkeypatch):
    """What goes to syslog, SMlog or not; nothing goes to this machine's."""
    lines = []
    monkeypatch.setattr(sm_log.syslog, "syslog", lambda _priority, line: lines.append(line))
    return lines


@pytest.fixture
def unwritten(command):
    """`unwritten(4, "undo", image, "--yes", says="...")`: runs a command that ends so, says so, and leaves the LUN."""

    def run(status, name, lun, *words, says=""):
        before = shell.content(lun)
        ran = command(name, lun, *words)
        assert shell.content(lun) == before
        assert ran.status == status and says in ran.err, ran.err
        return ran

    return run


@pytest.fixture
def lun_for(request):
    """The LUN on which a command that writes has something to do, by the name of the command."""
    luns = {"resignature": "image", "undo": "finished", "recover": "unfinished"}
    return lambda name: request.getfixturevalue(luns[name])


@pytest.fixture
def image(tmp_path):
    """A LUN as `shell.tree` describes it."""
    path = tmp_path / "clone.img"
    shell.tree().disk.to_file(str(path))
    return path


@pytest.fixture
def original(tmp_path):
    """What the LUN of `image` was copied from."""
    path = tmp_path / "original.img"
    shell.tree().disk.to_file(str(path))
    return path


_after = {}  #: LUNs after a run of the command that many tests begin with, made once


def after(name, image, run):
    if name in _after:
        _after[name].to_file(str(image))
    else:
        run()
        _after[name] = SparseDisk.from_file(str(image))
    return image


@pytest.fixture
def cut_short(image, command, monkeypatch):
    """Cuts a resignature of the LUN to shell.SR behind so many writes."""

    def run(writes):
        with monkeypatch.context() as patch:
            shell.cut(patch, writes)
            ran = command("resignature", image, "--yes", "--sr-uuid", shell.SR)
        assert ran.status == output.EXIT_INTERRUPTED

    return run


@pytest.fixture
def unfinished(image, cut_short):
    """The LUN after a resignature to shell.SR was cut behind its fourth write, before its commit."""
    return after("unfinished", image, lambda: cut_short(4))


@pytest.fixture
def committed(image, command, cut_short):
    """The LUN after a resignature to shell.SR was cut behind its commit."""

    def run():
        cut_short(len(command("resignature", image, "--dry-run", "--json").json["plan"]) - 2)

    return after("committed", image, run)


@pytest.fixture
def finished(image, command):
    """The LUN after a resignature to shell.SR."""

    def run():
        assert command("resignature", image, "--yes", "--sr-uuid", shell.SR).status == 0

    return after("finished", image, run)


@pytest.fixture
def root(monkeypatch):
    """The root directory of a host; its path is short, for it is to hold a socket."""
    path = tempfile.mkdtemp(prefix="host", dir="/tmp")
    os.makedirs(path + "/var/lib/xcp")
    monkeypatch.setattr(on_lun, "HOST", Host(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def pool(root, tmp_path):
    """The host is one of a pool."""
    with Pool(sm_directory(tmp_path / "sm"), Host(root).xapi_socket) as pool:
        yield pool


@pytest.fixture
def has_scsi_id(monkeypatch):
    """`has_scsi_id(text)`: every disk has this SCSIid from now on."""

    def has(scsi_id):
        monkeypatch.setattr(disk_source, "scsi_id_of", lambda _path: scsi_id)
        monkeypatch.setattr(disk_source, "scsi_id_at", lambda _path: scsi_id)
        monkeypatch.setattr(live_scsi, "live_scsi_id", lambda _path: scsi_id)

    return has


@pytest.fixture
def lun(image, root, monkeypatch, has_scsi_id):
    """The image, taken for a disk with the SCSIid SCSI_ID: what the kernel says of a path comes from here."""
    monkeypatch.setattr(source, "is_block_device", lambda _path: True)
    monkeypatch.setattr(disk_source, "open_device", lambda path, writable, is_kind: open_device(path, writable))
    has_scsi_id(SCSI_ID)
    monkeypatch.setattr(live_scsi, "live_serial", lambda _path: "serial")
    size_bytes = os.path.getsize(image)
    monkeypatch.setattr(live_scsi, "live_size", lambda _path: size_bytes)
    monkeypatch.setattr(guard, "lvm_locks", lambda _names, timeout: ExitStack())
    monkeypatch.setattr(opened, "LOCK_SECONDS", 0)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0)
    return image
