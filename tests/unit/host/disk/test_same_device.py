# SPDX-License-Identifier: LGPL-2.1-only
"""Two paths lead to the same bytes: by another name, through a loop device, through a multipath map."""

import os
import stat
from glob import glob

import pytest

from relvmoiscsi.errors import NotFound
from relvmoiscsi.host import mounts
from relvmoiscsi.host.disk import same_device as module
from relvmoiscsi.host.disk.same_device import backing_file, same_device
from relvmoiscsi.host.this_host import Host

#: the block devices of the host: name, major, minor, and what sysfs has of each; IMAGE is the path of a file
DEVICES = {
    "sda": (8, 0, {}),
    "another node of sda": (8, 0, {}),
    "sdb": (8, 16, {}),
    "sdb1": (8, 17, {"partition": "1"}),
    "loop0": (7, 0, {"loop/backing_file": "IMAGE", "loop/offset": "0"}),
    "loop1": (7, 1, {"loop/backing_file": "IMAGE", "loop/offset": "0"}),
    "at an offset": (7, 2, {"loop/backing_file": "IMAGE", "loop/offset": "4096"}),
    "deleted": (7, 3, {"loop/backing_file": "IMAGE (deleted)", "loop/offset": "0"}),
    "of sdb": (7, 4, {"loop/backing_file": "/dev/sdb", "loop/offset": "0"}),
    "map": (253, 0, {"dm/uuid": "mpath-36001405aaaa", "slaves/sda/dev": "8:0", "slaves/sdb/dev": "8:16"}),
    "snapshot": (253, 1, {"dm/uuid": "", "slaves/sda/dev": "8:0", "slaves/sdb/dev": "8:16"}),
}


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "c.img"
    path.write_bytes(b"")
    return str(path)


@pytest.fixture
def host(image, tmp_path, monkeypatch):
    """A host with DEVICES, whose nodes are in its /dev."""
    host, real, nodes = Host(str(tmp_path / "host")), os.stat, {}
    for name, (major, minor, files) in DEVICES.items():
        node = tmp_path / "host/dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_bytes(b"")
        status = list(real(str(node)))[:10]
        status[0] = stat.S_IFBLK | 0o600
        nodes[str(node)] = os.stat_result(status, {"st_rdev": os.makedev(major, minor)})
        for path, text in files.items():
            file = tmp_path / f"host/sys/dev/block/{major}:{minor}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("IMAGE", image).replace("/dev/", host.at("dev") + "/") + "\n")
    with open(image) as file:
        mounted(host, image, "ext4", mounts.mount_of(f"/proc/self/fd/{file.fileno()}"))
    status_of = lambda path, *_where, **_how: nodes.get(path) or real(path)  # noqa: E731
    by_way = module.status_of_path
    of_open = os.fstat
    opened = lambda descriptor: nodes.get(os.readlink(f"/proc/self/fd/{descriptor}")) or of_open(descriptor)  # noqa: E731
    monkeypatch.setattr(module.os, "fstat", opened)
    monkeypatch.setattr(module.os, "stat", status_of)
    monkeypatch.setattr(module, "status_of_path", lambda path, *where: nodes.get(path) or by_way(path, *where))
    return host


def mounted(host, path, kind, number):
    """The directory of a file is a mount of its own, of this kind."""
    root = os.open(os.sep, os.O_PATH)
    above = mounts.mount_of(f"/proc/self/fd/{root}")
    os.close(root)
    lines = [f"{above} 0 8:1 / / rw - ext4 disk rw", f"{number} 1 0:52 / {os.path.dirname(path)} rw - {kind} it rw"]
    info = host.at("proc/self/mountinfo")
    os.makedirs(os.path.dirname(info), exist_ok=True)
    with open(info, "w") as file:
        file.write("\n".join([*lines[number == above :], ""]))


SAME = [
    ("sda", "another node of sda"),
    ("loop0", "IMAGE"),
    ("loop0", "loop1"),
    ("of sdb", "sdb"),
    ("map", "sda"),
    ("map", "of sdb"),
]
OTHERS = [("sda", "sdb"), ("sdb", "sdb1"), ("at an offset", "IMAGE"), ("deleted", "IMAGE"), ("snapshot", "sda")]


@pytest.mark.parametrize(
    "first, second, is_same", [*((*pair, True) for pair in SAME), *((*one, False) for one in OTHERS)]
)
def test_what_leads_to_the_same_bytes_is_the_same_device(host, image, first, second, is_same):
    one, other = (image if name == "IMAGE" else host.node(name) for name in (first, second))
    assert same_device(one, other, host) == same_device(other, one, host) == is_same


def test_the_file_behind_a_loop_device_is_looked_at_only_where_a_stat_cannot_hang(host, image, monkeypatch):
    """The server of a FUSE mount belongs to any user, and need not answer: root's command waited for ever."""
    at = os.path.dirname(image)
    real = mounts.mount_of
    for each in (mounts, module):
        monkeypatch.setattr(each, "mount_of", lambda link: "7" if os.readlink(link).startswith(at) else real(link))
    mounted(host, image, "fuse.sshfs", "7")
    loops = [host.node(name) for name in ("loop0", "loop1")]
    assert not same_device(*loops, host)
    assert same_device(loops[0], image, host)  # a stat of the image has just been answered


def test_a_mount_that_has_just_answered_keeps_its_number_meanwhile(host, image, monkeypatch):
    """t0: the number is asked for. t1: a user mounts FUSE, which gets the number. t2: a stat of the file hangs."""
    by_way, kept = module.status_of_path, []

    def status_of(path, *where):
        kept.append(image in map(os.path.realpath, glob("/proc/self/fd/*")))
        return by_way(path, *where)

    monkeypatch.setattr(module, "status_of_path", status_of)
    assert same_device(host.node("loop0"), image, host)
    assert kept == [True]


def test_links_lead_to_their_file_and_a_missing_path_is_an_error(image, tmp_path):
    os.link(image, str(tmp_path / "link"))
    os.symlink(image, str(tmp_path / "symlink"))
    (tmp_path / "copy").write_bytes(b"")

    assert [same_device(image, str(tmp_path / one)) for one in ("link", "symlink", "copy")] == [True, True, False]
    with pytest.raises(NotFound):
        same_device(image, str(tmp_path / "nothing"))


def test_the_file_behind_a_loop_device_is_told(host, image):
    assert [backing_file(host.node(name), host) for name in ("loop0", "sda")] == [image, ""]
    assert backing_file(image, host) == backing_file(host.node("vanished"), host) == ""
