# SPDX-License-Identifier: LGPL-2.1-only
"""A file of another program is looked at only on mounts at which no server and no user can hold up the answer."""

import errno
import io
import os

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.host import mounts as mounts_module
from relvmoiscsi.host.mounts import Mount, mount_of, mount_with, mounts_in, status_of_open, status_of_path
from relvmoiscsi.host.this_host import Host

ROOT = b"20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"


def test_a_line_of_the_kernel_is_a_mount_and_a_source_or_directory_of_a_user_is_only_text():
    lines = [
        ROOT,
        b"21 20 0:60 / /x\\040-\\040ext4 rw - fuse.sshfs - rw,user_id=1000\n",
        b"22 20 0:61 / /y rw shared:2 master:1 -\n",
        b"",
    ]

    first, second = mounts_in(lines)
    assert first == Mount("20", "8:1", "/", "ext4", "/dev/sda1", "rw") and first.is_local
    assert (
        second == Mount("21", "0:60", "/x\\040-\\040ext4", "fuse.sshfs", "-", "rw,user_id=1000") and not second.is_local
    )


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse", "fuseblk", "fuse.ext4", "overlay", "autofs", "gfs2"])
def test_what_may_wait_for_a_server_or_a_program_is_not_local(kind):
    assert not Mount("21", "0:60", "/x", kind, "/dev/sda1", "rw").is_local


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


def test_a_number_that_another_mount_has_since_is_not_looked_at(tmp_path, monkeypatch):
    """The caller is asked while the file is open: the kernel gives the number of an unmounted one to the next mount."""
    told, asked = [], []

    def is_still(number, pinned):
        told.append((number, os.readlink(f"/proc/self/fd/{pinned}")))
        return False

    with open(str(tmp_path / "file"), "wb") as file:
        link = f"/proc/self/fd/{file.fileno()}"
        monkeypatch.setattr(os, "fstat", asked.append)
        status = status_of_open(link, {mount_of(link)}, is_still)
        monkeypatch.undo()
        assert (status, asked, told) == (None, [], [(mount_of(link), file.name)])


def test_a_kernel_that_does_not_tell_the_mount_of_a_descriptor_is_refused(tmp_path):
    """A search there would look at no file, and so find each disk unused. Linux has told it since 3.15."""
    for name in ("fd", "fdinfo"):
        (tmp_path / name).mkdir()
    (tmp_path / "fdinfo/3").write_text("pos:\t0\nflags:\t02100002\n")
    (tmp_path / "fd/3").symlink_to("/proc/version")

    with pytest.raises(Refused, match="does not tell the mount of an open file .*Linux 3.15 or later"):
        status_of_open(str(tmp_path / "fd/3"), {"21"})


@pytest.mark.parametrize(
    ("kind", "options", "is_foreign"),
    [
        ("fuse", "rw,user_id=4712,group_id=4712,allow_other", True),
        ("fuseblk", "ro,user_id=4712", True),
        ("fuse.sshfs", "rw,user_id=4712,group_id=0", True),
        ("fuse.user_id=0", "rw,user_id=4712", True),
        ("fuse", "rw,user_id=0,user_id=4712", True),
        ("fuse", "rw", True),
        ("fuse", "rw,user_id=0,group_id=4712", False),
        ("fuse", f"rw,user_id={os.geteuid()}", False),
        ("fusectl", "rw", False),
        ("ext4", "rw,user_id=4712", False),
    ],
)
def test_the_kernel_tells_whose_program_answers_for_a_mount(kind, options, is_foreign):
    assert Mount("21", "0:60", "/x", kind, "user_id=0", options).is_of_others([0, os.geteuid()]) == is_foreign


NFS, TMPFS = "nfs a:/b", "tmpfs x"


@pytest.mark.parametrize(
    "listed, is_seen",
    [
        ({"dev": TMPFS}, True),
        ({"a x": TMPFS, "dev": TMPFS}, True),
        ({"dev": NFS}, False),
        ({"a x": NFS, "dev": TMPFS}, False),
        ({"dev": None}, False),  # unmounted since, or in another mount namespace
    ],
)
def test_a_path_is_walked_only_through_mounts_that_answer(tmp_path, monkeypatch, listed, is_seen):
    """The mount of each directory is asked for while the directory is open: another one has another number."""
    host, node = Host(str(tmp_path / "host")), tmp_path / "a x" / "dev" / "node"
    numbers = {name: str(number) for number, name in enumerate(listed, 21)}

    def mount_at(link):
        inside = [number for name, number in numbers.items() if f"/{name}/" in os.readlink(link) + "/"]
        return inside[-1] if inside else "20"

    monkeypatch.setattr(mounts_module, "mount_of", mount_at)
    lines = [f"{numbers[name]} 20 0:60 / /any rw - {what} rw\n" for name, what in listed.items() if what]
    for path in (tmp_path / "host/proc/self/mountinfo", node):
        path.parent.mkdir(parents=True)
        path.write_bytes(ROOT + "".join(lines).encode())

    status = status_of_path(str(node), host)
    assert (status is not None and status.st_ino == node.stat().st_ino) == is_seen
    seen_if_wanted = status_of_path(str(node), host, lambda mount: mount.number in numbers.values())
    assert (seen_if_wanted is not None) == (None not in listed.values()), "the caller says that these mounts answer"


@pytest.mark.parametrize("fails_at", range(8))
def test_a_walk_that_can_open_no_more_files_is_refused_and_leaves_none_open(tmp_path, monkeypatch, fails_at):
    """It was taken for a file that is gone, so that the loop device over it was nobody's."""
    calls, before = [], os.listdir("/proc/self/fd")

    def full(path, *more, real=os.open, **named):
        calls.append(path)
        if len(calls) > fails_at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(Refused, match="cannot open enough files: Too many open files"):
        status_of_path(str(tmp_path), Host())
    assert os.listdir("/proc/self/fd") == before


def test_in_a_chroot_the_mount_of_the_root_directory_is_not_listed_and_answers(tmp_path, monkeypatch):
    """The image there was not found behind its loop device, and so was in use by nobody."""
    host, image = Host(str(tmp_path)), tmp_path / "image"
    for path in (tmp_path / "proc/self/mountinfo", image):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    monkeypatch.setattr(mounts_module, "mount_of", lambda link: "20")

    status = status_of_path(str(image), host)
    assert status is not None and status.st_ino == image.stat().st_ino


def test_this_process_is_on_a_mount_that_the_kernel_lists():
    with open("/proc/version") as file:
        number = mount_of(f"/proc/self/fd/{file.fileno()}")
    assert mount_with(number).kind == "proc" and mount_with("") is None


def test_of_many_mounts_no_more_is_read_than_up_to_the_wanted_one(monkeypatch):
    """10,000 mounts, most of them younger than those of the system, cost 144 ms for each file of an option."""
    many, listed, parsed = b"1 0 0:9 / /many rw - tmpfs x rw\n", [], []

    class Info(io.BytesIO):
        def __next__(self):
            listed.append(super().__next__())
            return listed[-1]

    def words_in(line, real=mounts_module.words_in):
        parsed.append(line)
        return real(line)

    monkeypatch.setattr(mounts_module, "open", lambda *_: Info(many * 9 + ROOT + many * 9999), raising=False)
    monkeypatch.setattr(mounts_module, "words_in", words_in)
    assert mount_with("20").source == "/dev/sda1"
    assert (len(listed), len(parsed)) == (10, 1)


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

    status = status_of_path(str(path), host)
    assert status is None or status.st_ino != (there / "node").stat().st_ino


@pytest.mark.parametrize("flags, is_user", [(os.O_RDONLY, True), (os.O_PATH, False)])
def test_a_descriptor_that_reads_and_writes_nothing_is_no_use_of_a_file(tmp_path, flags, is_user):
    """A search holds such descriptors on mounts, and found its own: the image was "in use by this very process"."""
    (tmp_path / "file").write_text("")
    descriptor = os.open(str(tmp_path / "file"), flags)
    try:
        link = f"/proc/self/fd/{descriptor}"
        assert (status_of_open(link, {mount_of(link)}) is not None) == is_user
    finally:
        os.close(descriptor)
