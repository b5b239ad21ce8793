# SPDX-License-Identifier: LGPL-2.1-only
"""A file of another program is looked at only on mounts at which no server and no user can hold up the answer."""

import os

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk.mounts import Mount, mount_of, mounts_in, status_of_open, status_of_path
from relvmoiscsi.host.this_host import Host

ROOT = b"20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"


def test_a_line_of_the_kernel_is_a_mount_and_a_source_or_directory_of_a_user_is_only_text():
    lines = [
        ROOT,
        b"21 20 0:60 / /x\\040-\\040ext4 rw - fuse.sshfs - rw\n",
        b"22 20 0:61 / /y rw shared:2 master:1 -\n",
        b"",
    ]

    first, second = mounts_in(lines)
    assert first == Mount("20", "8:1", "/", "ext4", "/dev/sda1") and first.is_local
    assert second == Mount("21", "0:60", "/x\\040-\\040ext4", "fuse.sshfs", "-") and not second.is_local


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse", "fuseblk", "fuse.ext4", "overlay", "autofs", "gfs2"])
def test_what_may_wait_for_a_server_or_a_program_is_not_local(kind):
    assert not Mount("21", "0:60", "/x", kind, "/dev/sda1").is_local


def test_a_descriptor_that_leads_to_another_mount_since_is_not_looked_at(tmp_path):
    """The process has replaced the file after the kernel told the mount of the earlier file."""
    (tmp_path / "file").write_text("")
    with open(str(tmp_path / "file"), "rb") as file:
        here = mount_of(f"/proc/self/fd/{file.fileno()}")
        assert status_of_open(f"/proc/self/fd/{file.fileno()}", {here}).st_ino == os.fstat(file.fileno()).st_ino
        assert status_of_open(f"/proc/self/fd/{file.fileno()}", {"900001"}) is None
    for name in ("fd", "fdinfo"):
        (tmp_path / name).mkdir()
    (tmp_path / "fdinfo/3").write_text(f"pos:\t0\nmnt_id:\t{here}\n")
    (tmp_path / "fd/3").symlink_to("/proc/version")

    assert status_of_open(str(tmp_path / "fd/3"), {here}) is None
    assert status_of_open(str(tmp_path / "fd/4"), {here}) is None and mount_of(str(tmp_path / "fd/4")) == ""


def test_a_kernel_that_does_not_tell_the_mount_of_a_descriptor_is_refused(tmp_path):
    """A search there would look at no file, and so find each disk unused. Linux has told it since 3.15."""
    for name in ("fd", "fdinfo"):
        (tmp_path / name).mkdir()
    (tmp_path / "fdinfo/3").write_text("pos:\t0\nflags:\t02100002\n")
    (tmp_path / "fd/3").symlink_to("/proc/version")

    with pytest.raises(Refused, match="does not tell the mount of an open file .*Linux 3.15 or later"):
        status_of_open(str(tmp_path / "fd/3"), {"21"})


@pytest.mark.parametrize(
    "mounts, is_seen",
    [
        (ROOT, True),
        (b"", False),
        (ROOT + b"21 20 0:60 / DIR\\040x/dev rw - nfs a:/b rw\n", False),
        (ROOT + b"21 20 0:60 / DIR\\040x rw - nfs a:/b rw\n22 21 0:61 / DIR\\040x/dev rw - tmpfs x rw\n", False),
        (ROOT + b"21 20 0:60 / DIR\\040x/de rw - nfs a:/b rw\n", True),
    ],
)
def test_a_path_is_walked_only_through_mounts_that_answer(tmp_path, mounts, is_seen):
    host, node = Host(str(tmp_path / "host")), tmp_path / "a x" / "dev" / "node"
    for path in (tmp_path / "host/proc/self/mountinfo", node):
        path.parent.mkdir(parents=True)
        path.write_bytes(mounts.replace(b"DIR", os.fsencode(str(tmp_path / "a"))))

    status = status_of_path(str(node), (), host)
    assert (status is not None and status.st_ino == node.stat().st_ino) == is_seen


@pytest.mark.parametrize("link", ["dev", "dev/node", "dev/node (deleted)"])
def test_a_link_on_the_way_is_not_followed(tmp_path, link):
    host, there = Host(str(tmp_path / "host")), tmp_path / "there"
    (tmp_path / "host/proc/self").mkdir(parents=True)
    (tmp_path / "host/proc/self/mountinfo").write_bytes(ROOT)
    there.mkdir()
    (there / "node").write_text("")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(there if link == "dev" else there / "node")
    path = tmp_path / ("dev/node" if link == "dev" else link)

    status = status_of_path(str(path), (), host)
    assert status is None or status.st_ino != (there / "node").stat().st_ino
