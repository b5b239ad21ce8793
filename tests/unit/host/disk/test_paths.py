# SPDX-License-Identifier: LGPL-2.1-only
"""The disks that should be one LUN lead to one, now; a path that does not answer says nothing."""

import os
import time

import pytest

from kit.sparse import SparseDisk
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.paths import Face, Failover, drop_caches, look, verify_same
from relvmoiscsi.host.this_host import Host

SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
FACE = Face(SCSI_ID, "serial", 1 << 30, "digest")


def test_paths_that_show_the_same():
    assert verify_same(SCSI_ID, {"sdb": FACE, "sdc": FACE}) == ["sdb", "sdc"]


def test_no_path_at_all():
    assert verify_same(SCSI_ID, {}) == []


def test_another_lun_in_its_place_is_refused_by_name():
    other = "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"

    with pytest.raises(Refused, match=f"sdc was the LUN {SCSI_ID} when .* and is {other} now.* Nothing was written"):
        verify_same(SCSI_ID, {"sdb": FACE, "sdc": FACE._replace(scsi_id=other)})


@pytest.mark.parametrize(
    "changed, difference",
    [
        ({"serial": "another"}, "the serial number is serial here and another there"),
        ({"size_bytes": 7}, "the size in bytes is 1073741824 here and 7 there"),
        ({"label": "another"}, "their first sectors differ"),
    ],
)
def test_two_luns_of_one_id_are_refused(changed, difference):
    with pytest.raises(Refused, match=f"sdb and sdc both have the SCSIid .* {difference}.* Nothing was written"):
        verify_same(SCSI_ID, {"sdb": FACE, "sdc": FACE._replace(**changed)})


# --- looking


@pytest.fixture
def disks(tmp_path, monkeypatch):
    """Files in the place of disks; what a LUN says of itself depends on the file's name."""
    host = Host(root=str(tmp_path))
    os.makedirs(host.dev)
    for name, content in (("sdb", b"a" * 4096), ("sdc", b"a" * 4096), ("sdd", b"b" * 4096)):
        with open(host.node(name), "wb") as file:
            file.write(content)

    def ids(path):
        if path.endswith("sdx"):
            raise DeviceError(path, "read", 0, 4096, "Input/output error", 5)
        if path.endswith("sdy"):
            return None
        if path.endswith("sdz"):
            time.sleep(60)
        return SCSI_ID

    monkeypatch.setattr(scsi, "live_scsi_id", ids)
    monkeypatch.setattr(scsi, "live_size", lambda path: 4096)
    monkeypatch.setattr(scsi, "live_serial", lambda path: "serial")
    monkeypatch.setattr(os, "O_DIRECT", 0)  # not every file system of a test has it
    return host


@pytest.mark.processes
def test_what_paths_show(disks):
    found = look(["sdb", "sdc", "sdd"], NO_DEADLINE, disks)

    assert found["sdb"] == found["sdc"] == Face(SCSI_ID, "serial", 4096, found["sdb"].label)
    assert found["sdd"].label != found["sdb"].label


@pytest.mark.processes
def test_a_path_that_fails_or_refuses_or_hangs_or_is_gone_is_left_out(disks, caplog):
    found = look(["sdb", "sdx", "sdy", "sdz", "sdgone"], Deadline(2), disks)

    assert list(found) == ["sdb"]
    assert all(f"the disk {name} does not answer" in caplog.text for name in ("sdx", "sdy", "sdz", "sdgone"))


@pytest.mark.processes
def test_the_page_cache_of_a_path_that_has_gone_is_nothing_to_drop(disks, caplog):
    drop_caches(["sdgone"], NO_DEADLINE, disks)
    assert caplog.text == ""

    drop_caches(["sdb"], NO_DEADLINE, disks)  # a file, which has none
    assert "sdb may be read from the page cache as it was before" in caplog.text


class Path(SparseDisk):
    """A path of a LUN, which breaks at an operation and stays broken."""

    def __init__(self, lun, name, breaks_at=0):
        super().__init__(lun.size_bytes, name=name)
        self._lun, self._left = lun, breaks_at

    def _counted(self, operation, *arguments):
        self._left -= 1
        if not self._left:
            raise DeviceError(self.name, "write", 0, 512, "Input/output error", 5)
        return operation(*arguments)

    def read(self, ranges):
        return self._counted(self._lun.read, ranges)

    def write(self, chunks):
        self._counted(self._lun.write, chunks)

    def flush(self):
        self._counted(self._lun.flush)


@pytest.mark.parametrize("breaks_at", [1, 2, 3])
def test_an_operation_that_fails_on_a_path_is_done_again_on_the_next(breaks_at, caplog):
    lun = SparseDisk(1 << 20)
    device = Failover([Path(lun, "/dev/sdb", breaks_at), Path(lun, "/dev/sdc")])

    device.write([Chunk(512, b"x" * 512)])
    device.flush()

    assert device.read([Range(512, 512)]) == [b"x" * 512]
    assert "/dev/sdb" in caplog.text and "The call goes on through /dev/sdc." in caplog.text


def test_the_failure_of_the_last_path_is_the_failure_of_the_lun():
    lun = SparseDisk(1 << 20)
    device = Failover([Path(lun, "/dev/sdb", 1), Path(lun, "/dev/sdc", 1)])

    with pytest.raises(DeviceError, match="/dev/sdc"):
        device.flush()
