# SPDX-License-Identifier: LGPL-2.1-only
"""A file that is not there and one that cannot be read are told apart; one that is replaced is never half there."""

import errno
import os

import pytest

from relvmoiscsi.errors import Refused, refuse_if_short
from relvmoiscsi.host.disk import hiding, holders, multipath, udev
from relvmoiscsi.host.files import (
    append,
    attribute,
    content_of,
    lines_of,
    matching,
    names_in,
    remedy,
    replace,
    sync_directory,
    text_of,
    words_in,
)
from relvmoiscsi.host.hba.adapters import adapters
from relvmoiscsi.host.this_host import THIS_HOST


def test_what_is_not_there_has_no_text_and_no_content_and_what_cannot_be_read_is_not_absent(tmp_path):
    (tmp_path / "file").write_bytes(b"a\xffb\r\n")

    assert text_of(str(tmp_path / "file")) == "a\ufffdb\r\n", "what is no UTF-8 is read all the same"
    assert content_of(str(tmp_path / "file")) == b"a\xffb\r\n"
    for path in (tmp_path / "none", tmp_path / "file" / "below"):
        assert text_of(str(path)) == "" and content_of(str(path)) is None
    with pytest.raises(IsADirectoryError):
        content_of(str(tmp_path))
    assert text_of(str(tmp_path)) == ""


#: where Python's own methods separate lines or words, and what the kernel and udev leave in a name as it is
OF_A_NAME = "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000"


def test_only_a_line_feed_ends_a_line_and_only_blanks_and_tabs_separate_words(tmp_path):
    assert all(len(f"a{each}b".split()) == 2 for each in OF_A_NAME)
    (tmp_path / "file").write_bytes(f"one\ttwo {OF_A_NAME}three\n\nfour\n{OF_A_NAME}".encode())

    lines = lines_of(str(tmp_path), "file")
    assert lines == [f"one\ttwo {OF_A_NAME}three", "four", OF_A_NAME]
    assert words_in(lines[0]) == ["one", "two", f"{OF_A_NAME}three"]
    (tmp_path / "name").write_bytes(f" {OF_A_NAME} \n".encode())
    assert attribute(str(tmp_path), "name") == OF_A_NAME and lines_of(str(tmp_path), "none") == []


def test_of_a_long_file_the_start_is_read(tmp_path):
    """A user makes so many lines of /proc/locks that they fill root's memory."""
    (tmp_path / "file").write_bytes(b"x")
    os.truncate(str(tmp_path / "file"), 1 << 40)
    assert text_of(str(tmp_path / "file")) == "x".ljust(1 << 20, "\0")
    assert text_of("/proc/sys/kernel/random/boot_id") != "", "the kernel has a limit for one read"


def test_a_file_is_replaced_with_its_mode_and_a_first_one_is_for_all_to_read(tmp_path):
    path, new = str(tmp_path / "file"), str(tmp_path / "new")

    replace(path, b"one\n", new)
    assert oct(os.stat(path).st_mode & 0o7777) == "0o644"
    os.chmod(path, 0o640)
    replace(path, b"two\n", new)

    assert oct(os.stat(path).st_mode & 0o7777) == "0o640"
    assert os.listdir(str(tmp_path)) == ["file"] and content_of(path) == b"two\n"


@pytest.mark.parametrize("step", ["fsync", "rename", "fchmod"])
def test_what_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, step):
    (tmp_path / "file").write_text("old\n")

    def fail(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        replace(str(tmp_path / "file"), b"new\n", str(tmp_path / "new"))

    assert os.listdir(str(tmp_path)) == ["file"] and (tmp_path / "file").read_text() == "old\n"


def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_absent(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("text")

    def full(path, _mode):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(Refused, match="This process cannot open enough files: Too many open files"):
        text_of(str(tmp_path / "file"))


def test_names_and_paths_that_match_are_sorted_and_an_absent_directory_has_none(tmp_path):
    for path in ("b/part", "a/part", "a/other", "c"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    top = str(tmp_path)
    assert names_in(top) == ["a", "b", "c", "file"] and names_in(top, "f*") == ["file"]
    assert matching(top, "*/part") == [top + "/a/part", top + "/b/part"] and matching(top, "a/p*") == [top + "/a/part"]
    assert names_in(top + "/absent") == names_in(top + "/file") == matching(top + "/absent", "*") == []


@pytest.mark.parametrize(
    "number, says",
    [(errno.EMFILE, "cannot open enough files"), (errno.EIO, "cannot be listed: Input/output error")],
    ids=["EMFILE", "EIO"],
)
@pytest.mark.parametrize(
    "look",
    [
        lambda host: names_in(host.root),
        lambda host: matching(host.root, "*/part"),
        lambda host: udev.disks_of("36001405", host),
        lambda host: multipath.paths_in(["dm-0"], host),
        multipath.is_daemon_running,
        lambda host: holders.users_of_disks(["sda"], host),
        lambda host: holders.stacked("sda", host),
        hiding.stale_hidden,
        lambda host: adapters(host=host),
    ],
    ids=["names", "paths", "disks", "paths of a map", "multipathd", "users", "stacked", "switches", "adapters"],
)
def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path, monkeypatch, look, number, says):
    """A call found no users of a disk where this process could open no more files."""

    def fails(path):
        raise OSError(number, os.strerror(number), path)

    host = THIS_HOST._replace(root=str(tmp_path))
    monkeypatch.setattr(os, "listdir", fails)
    monkeypatch.setattr(os, "scandir", fails)  # of Python's glob
    with pytest.raises(Refused, match=says):
        look(host)


def test_a_file_that_somebody_else_has_made_is_not_taken(tmp_path):
    (tmp_path / "new").write_text("another's\n")

    with pytest.raises(FileExistsError):
        replace(str(tmp_path / "file"), b"new\n", str(tmp_path / "new"))

    assert (tmp_path / "new").read_text() == "another's\n"


def test_a_directory_is_made_durable_and_what_is_in_its_way_is_an_error(tmp_path):
    (tmp_path / "of" / "ours").mkdir(parents=True)
    (tmp_path / "file").write_text("text")

    sync_directory(str(tmp_path / "of"))
    with pytest.raises(NotADirectoryError):
        sync_directory(str(tmp_path / "file"))


def test_a_line_is_appended_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    descriptor = os.open(str(path), os.O_WRONLY | os.O_APPEND)
    append(descriptor, b"two\n")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda number, data: write(number, data[:3]))
        with pytest.raises(OSError, match="No space left on device"):
            append(descriptor, b"three\n")
    append(descriptor, b"four\n")
    os.close(descriptor)

    assert path.read_bytes() == b"one\ntwo\nfour\n"


@pytest.mark.parametrize(
    "number, words",
    [(errno.EACCES, "as root"), (errno.ENOSPC, "room"), (errno.EROFS, "Mount"), (errno.EISDIR, "in its place")],
)
def test_what_to_do_about_a_file_depends_on_what_is_wrong(number, words, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert words in remedy(OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    "number, mode, words",
    [
        (errno.EACCES, 0o400, "The file is yours: `chmod u+rw {}` lets you."),
        (errno.EACCES, 0o600, "Its mode lets you: look at SELinux, and at the file server's rules."),
        (errno.EPERM, 0o400, "Its mode is not the reason: it may be immutable (`lsattr`)."),
        (errno.EROFS, 0o400, "Mount it for writing."),
    ],
)
def test_an_owner_is_told_to_change_the_mode_only_where_the_mode_is_what_refuses(
    tmp_path, monkeypatch, number, mode, words
):
    """The kernel answers EACCES for a mode, and EPERM for an immutable file."""
    image = tmp_path / "a.img"
    image.touch()
    image.chmod(mode)
    os.chown(str(image), image.stat().st_uid or 65534, -1)
    owner = image.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner)

    assert remedy(OSError(number, os.strerror(number)), str(image)) == words.format(image)


@pytest.mark.parametrize(
    "number, says",
    [(errno.EMFILE, "`ulimit -n 1024`"), (errno.ENFILE, "`sysctl fs.file-max`"), (errno.ENOMEM, "memory")],
)
def test_where_files_or_memory_are_short_the_advice_is_about_that_and_not_about_the_place(number, says):
    error = OSError(number, os.strerror(number))
    assert says in remedy(error, "/etc/passwd") and "place" not in remedy(error)
    with pytest.raises(Refused) as caught:
        refuse_if_short(error)
    assert caught.value.advice == remedy(error)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o600], ids=oct)
def test_who_has_closed_his_own_directory_opens_it(tmp_path, monkeypatch, mode):
    closed = tmp_path / "nod"
    closed.mkdir(mode=mode)
    owner = closed.stat().st_uid
    os.chown(str(closed), owner or 65534, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner or 65534)

    said = remedy(OSError(errno.EACCES, "Permission denied"), str(closed / "a.img"))

    assert said == f"The directory is yours: `chmod u+rwx {closed}` lets you."
