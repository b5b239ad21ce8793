# SPDX-License-Identifier: LGPL-2.1-only
"""The disks that should be one LUN lead to one, now; a path that does not answer says nothing."""

import os
import time

import pytest

from kit.clock import over_after
from kit.sparse import SparseDisk
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.paths import Face, NamedPath, drop_caches, look, verify_same
from relvmoiscsi.host.this_host import Host

SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
FACE = Face(SCSI_ID, "serial", 1 << 30, "digest")


OTHER = "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"scsi_id": OTHER}, f"sdc was the LUN {SCSI_ID} when .* and is {OTHER} now"),
        ({"serial": "x"}, "sdb and sdc both have the SCSIid .* the serial number is serial here and x there"),
        ({"size_bytes": 7}, "sdb and sdc both have the SCSIid .* the size in bytes is 1073741824 here and 7 there"),
        ({"label": "x"}, "sdb and sdc both have the SCSIid .* their first sectors differ"),
    ],
)
def test_another_lun_in_its_place_and_two_luns_of_one_id_are_refused_by_name(changed, words):
    assert verify_same(SCSI_ID, {"sdb": FACE, "sdc": FACE}) == ["sdb", "sdc"]
    assert verify_same(SCSI_ID, {}) == []
    with pytest.raises(Refused, match=words + ".* Nothing was written"):
        verify_same(SCSI_ID, {"sdb": FACE, "sdc": FACE._replace(**changed)})


# --- looking


@pytest.fixture
def disks(tmp_path, monkeypatch):
    """Files in the place of disks; what a LUN says of itself depends on the file's name."""
    host = Host(root=str(tmp_path))
    os.makedirs(host.at("dev"))
    for name in ("sdb", "sdc", "sdd", "sdx", "sdy", "sdz"):
        with open(host.node(name), "wb") as file:
            file.write((b"b" if name == "sdd" else b"a") * 4096)

    def ids(disk):
        if disk.name.endswith("sdx"):
            raise DeviceError(disk.name, "read", 0, 4096, "Input/output error", 5)
        if disk.name.endswith("sdy"):
            return None
        if disk.name.endswith("sdz"):
            time.sleep(6000)
        return SCSI_ID

    monkeypatch.setattr(scsi, "live_scsi_id", ids)
    monkeypatch.setattr(scsi, "live_size", lambda path: 4096)
    monkeypatch.setattr(scsi, "live_serial", lambda path: "serial")
    monkeypatch.setattr(os, "O_DIRECT", 0)  # not every file system of a test has it
    return host


@pytest.mark.processes
def test_what_paths_show_but_those_that_fail_or_refuse_or_hang_or_are_gone(disks, caplog, monkeypatch):
    silent = ["sdx", "sdy", "sdz", "sdgone"]
    found = look(["sdb", "sdc", "sdd", *silent], Deadline(600, over_after(6, monkeypatch)), disks)

    assert list(found) == ["sdb", "sdc", "sdd"]
    assert found["sdb"] == found["sdc"] == Face(SCSI_ID, "serial", 4096, found["sdb"].label)
    assert found["sdd"].label != found["sdb"].label
    assert all(f"the disk {name} does not answer" in caplog.text for name in silent)


@pytest.mark.processes
def test_the_page_cache_of_a_path_that_has_gone_is_nothing_to_drop(disks, caplog):
    drop_caches(["sdgone"], NO_DEADLINE, disks)
    assert caplog.text == ""

    drop_caches(["sdb"], NO_DEADLINE, disks)  # a file, which has none
    assert "sdb may be read from the page cache as it was before" in caplog.text


class Disk(SparseDisk):
    """A disk that this process has open."""

    def __init__(self, name):
        super().__init__(1 << 20, name=name)
        self.disk = scsi.OpenDisk(name, 0)


@pytest.mark.parametrize("is_dead, asked", [(False, ["sdb", "sdc"]), (True, ["sdb"])])
def test_a_map_writes_to_no_path_that_is_another_lun(tmp_path, monkeypatch, is_dead, asked):
    """t0 the call looks and sdc is dead, t1 the original is mapped at its number, t2 multipathd takes sdc back."""
    host, said, disk = Host(str(tmp_path)), [], Disk("/dev/mapper/m")
    files = {"dm-0/dm/uuid": "mpath-" + SCSI_ID, "dm-0/dm/name": "m", "dm-0/slaves/sdb/x": "", "dm-0/slaves/sdc/x": ""}
    files.update({"sdb/device/state": "running", "sdc/device/state": "offline" if is_dead else "running"})
    for name, text in files.items():
        (tmp_path / "sys/block" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/block" / name).write_text(text + "\n")
    (tmp_path / "dev").mkdir()
    for name in ("sdb", "sdc"):
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(scsi, "kernel_name", lambda _path, _host: "dm-0")

    def live_scsi_id(asked):
        said.append(os.path.basename(asked.name))
        return "3600of_the_original" if asked.name == host.node("sdc") else SCSI_ID

    monkeypatch.setattr(scsi, "live_scsi_id", live_scsi_id)
    monkeypatch.setattr(scsi, "live_serial", lambda _path: "serial")
    monkeypatch.setattr(scsi, "live_size", lambda _path: 1 << 20)
    device = NamedPath(disk, (SCSI_ID, "serial"), host)

    if is_dead:
        device.write([Chunk(0, b"1" * 512)])
    else:
        with pytest.raises(Refused, match="sdc was the LUN .* answers with the SCSIid 3600of_the_original"):
            device.write([Chunk(0, b"1" * 512)])
    assert (said, disk.read([Range(0, 1)])) == (asked, [b"1" if is_dead else b"\0"])


@pytest.mark.parametrize(
    "what, says, told",
    [
        ("live_scsi_id", "x", "the SCSIid x and the serial number serial"),
        ("live_serial", "x", f"the SCSIid {SCSI_ID} and the serial number x"),  # swapped between the two questions
        ("live_serial", "", f"the SCSIid {SCSI_ID} and no serial number"),
        ("live_scsi_id", None, "no SCSIid and the serial number serial"),
    ],
)
def test_another_lun_at_the_number_of_the_path_is_not_written_and_a_batch_ends_with_the_name(
    monkeypatch, what, says, told
):
    monkeypatch.setattr(scsi, "live_scsi_id", lambda _path: SCSI_ID)
    monkeypatch.setattr(scsi, "live_serial", lambda _path: "serial")
    monkeypatch.setattr(scsi, "live_size", lambda _path: 1 << 20)
    device = NamedPath(Disk("/dev/sdb"), (SCSI_ID, "serial"))
    device.write([Chunk(512, b"x" * 512)])
    device.flush()
    device.write([Chunk(512, b"z" * 512)])
    monkeypatch.setattr(scsi, what, lambda _path: says)

    was = f"the SCSIid {SCSI_ID} and the serial number serial"
    another = f"/dev/sdb was the LUN with {was}, and answers with {told} now: the array has mapped another LUN in its"
    for act in (device.flush, lambda: device.write([Chunk(512, b"y" * 512)])):
        with pytest.raises(Refused, match=another):
            act()
    assert device.read([Range(512, 512)]) == [b"z" * 512]


def test_a_lun_that_has_become_smaller_is_not_written_and_a_batch_ends_with_the_size(monkeypatch):
    """The kernel has the size from when it found the disk. A LUN that has grown is gone on with."""
    size_bytes = 1 << 20
    monkeypatch.setattr(scsi, "kernel_name", lambda _path, _host: "sdb")
    monkeypatch.setattr(scsi, "live_scsi_id", lambda _path: SCSI_ID)
    monkeypatch.setattr(scsi, "live_serial", lambda _path: "serial")
    monkeypatch.setattr(scsi, "live_size", lambda _path: size_bytes)
    device = NamedPath(Disk("/dev/sdb"), (SCSI_ID, "serial"))
    size_bytes = 1 << 21
    device.write([Chunk(512, b"x" * 512)])
    device.flush()

    size_bytes = 1 << 19

    words = "/dev/sdb had 1048576 bytes in blocks of 512, and has 524288 bytes in blocks of 512 now"
    for act in (device.flush, lambda: device.write([Chunk(512, b"y" * 512)])):
        with pytest.raises(Refused, match=words) as caught:
            act()
        kernel = "The kernel reads the size again after `echo 1 > /sys/block/sdb/device/rescan`."
        assert caught.value.advice == f"Restore its size. {kernel}"
    assert device.read([Range(512, 512)]) == [b"x" * 512]
