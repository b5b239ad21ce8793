# SPDX-License-Identifier: LGPL-2.1-only
"""Files that an option names: passwords are read from this user's own files, maps are written to this user's own."""

import argparse
import errno
import os
import re
import shutil
import stat
import subprocess
import sys

import pytest

from kit.own_source import ROOT
from relvmoiscsi.cli import resignature
from relvmoiscsi.cli.map_out import MapFile
from relvmoiscsi.cli.parser import make_parser
from relvmoiscsi.cli.resignature import ResignatureCommand
from relvmoiscsi.errors import UsageError
from relvmoiscsi.host import own_path, secret_file
from relvmoiscsi.host.mounts import mounts_in
from relvmoiscsi.host.own_path import NotOwn, own_place, own_way, read_named
from relvmoiscsi.host.secret_file import first_line, lines_of
from relvmoiscsi.lun.url_login import credentials
from relvmoiscsi.pool import connection as connection_module
from relvmoiscsi.pool.commands.options import takes_connection, where


@pytest.fixture
def password(tmp_path):
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text("sesame\n")
    return path


def test_the_first_line_of_a_file_of_its_owner_is_read(password):
    assert first_line(str(password)) == "sesame"


@pytest.mark.parametrize("form", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_pipe_that_the_caller_has_opened_is_read_as_for_the_substitution_of_a_shell(form):
    reader, writer = os.pipe()
    os.write(writer, b"of a pipe\n")
    os.close(writer)
    try:
        assert lines_of(form.format(reader)) == ["of a pipe"]
    finally:
        os.close(reader)


def test_a_given_descriptor_of_a_file_has_the_same_rules(password):
    password.chmod(0o644)
    with open(str(password)) as file, pytest.raises(UsageError, match="accessible to other users"):
        lines_of(f"/dev/fd/{file.fileno()}")


def test_a_file_with_a_second_name_is_refused(password):
    """Another user can give one to root's file, in a directory that is not that user's."""
    os.link(str(password), str(password) + " too")
    with pytest.raises(UsageError, match="has another name too"):
        lines_of(str(password))


def test_a_pipe_by_its_path_is_not_read_nor_waited_for(password):
    """Whoever made the pipe in the place of a file would give the password."""
    password.unlink()
    os.mkfifo(str(password), 0o600)
    with pytest.raises(UsageError, match="is no regular file"):
        lines_of(str(password))


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "first line is empty"),
        ("\n", "first line is empty"),
        ("\nsesame\n", "first line is empty"),
        ("sesame\nand more\n", "has a second line"),
    ],
)
def test_a_file_that_does_not_hold_one_password_is_told_as_what_it_is(password, text, says):
    password.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        first_line(str(password))
    assert "sesame" not in str(caught.value) and "missing" not in str(caught.value)


def test_empty_lines_behind_a_password_are_no_second_line(password):
    password.write_text("sesame\n\n")
    assert first_line(str(password)) == "sesame"


def is_readable(path, _patch):
    path.chmod(0o640)


def is_a_link(path, _patch):
    path.rename(path.parent / "real")
    path.symlink_to(path.parent / "real")


def is_foreign(path, patch):
    patch.setattr(os, "fstat", owned_by(4712, os.fstat))


def owned_by(user, real):
    """Return the call, whose answer names the owner."""

    def answer(name, **more):
        status = real(name, **more)
        return os.stat_result((*status[:4], user, *status[5:]))

    return answer


@pytest.mark.parametrize(
    "happens, says",
    [
        (is_readable, "Put the password into a file of your own with mode 0600"),
        (is_a_link, "is no regular file"),
        (is_foreign, "belongs to another user"),
    ],
)
def test_what_is_no_file_of_this_user_alone_is_not_read(password, monkeypatch, happens, says):
    happens(password, monkeypatch)
    with pytest.raises(UsageError, match=says) as caught:
        first_line(str(password))
    assert "sesame" not in str(caught.value)


def test_what_is_no_text_is_not_shown(password):
    password.write_bytes(b"sesame\xff")
    with pytest.raises(UsageError, match="no text in UTF-8") as caught:
        first_line(str(password))
    assert "sesame" not in str(caught.value)


def written(path):
    assert MapFile(str(path), "pool attach --map-out").finish({"attached_srs": []}, "look")


def test_a_map_is_readable_for_its_owner_alone_also_in_the_place_of_an_empty_file_of_all(tmp_path):
    path = tmp_path / "map"
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path = tmp_path / "empty"
    path.touch()
    path.chmod(0o666)
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "appears, says",
    [
        (os.mkfifo, "map is no regular file"),
        (os.mkdir, "map is no regular file"),
        (lambda path: os.symlink(path + " of another", path), "map is no regular file"),
        (lambda path: os.symlink("/dev/zero", path), "map is no regular file"),
    ],
    ids=["pipe", "directory", "link to nothing", "link to a device"],
)
def test_what_appears_at_the_name_of_a_map_during_a_run_is_not_waited_for(tmp_path, capsys, appears, says):
    """In /tmp, each user can make it. The run has changed the LUN by then, so a person waits for the result."""
    path = str(tmp_path / "map")
    file = MapFile(path, "pool attach --map-out")
    file.must_be_new()
    appears(path)

    assert not file.finish({"attached_srs": []}, "Look there.")
    assert re.search(f"cannot be written to {path}: .*({says}).*Look there.", capsys.readouterr().err)
    assert os.listdir(str(tmp_path)) == ["map"]


def directory_of(path):
    with own_place(path) as place:
        return place.directory.path


def test_the_run_is_complete_also_where_nothing_tells_the_mounts_at_its_end(tmp_path, monkeypatch, capsys):
    file = MapFile(str(tmp_path / "map"), "pool attach --map-out")
    monkeypatch.setattr(own_path, "mount_of", lambda link: "")
    assert not file.finish({"attached_srs": []}, "Look there.")
    assert "The run is complete, but the map cannot be written" in capsys.readouterr().err


WAYS = {
    "of all": ("other users can change the directory .*/upper$", None),
    "of a group": ("other users can change the directory .*/upper$", None),
    "of the group of root": ("other users can change the directory .*/upper$", None),
    "of another": ("/upper belongs to another user$", None),
    "link of another": ("/by belongs to another user$", "by/inner/file"),
    "behind a link": ("other users can change the directory .*/upper$", "by/inner/file"),
    "relative link": ("other users can change the directory .*/upper$", "side/by/inner/file"),
    "back from a link": ("other users can change the directory .*/upper$", "deep/../../free"),
    "circle": ("too many links", "round/file"),
}


def a_way(kind, top, patch):
    """Return a path on which another user could replace a directory: `upper`, or a link."""
    upper = top / "upper"
    (upper / "inner").mkdir(parents=True)
    (top / "side").mkdir()
    (top / "by").symlink_to(upper)
    (top / "side" / "by").symlink_to(os.path.join("..", "upper"))
    (top / "deep").symlink_to(upper / "inner")
    (top / "round").symlink_to(top / "round")
    if kind in ("of a group", "of the group of root"):  # the second one also: an ACL names another user
        os.chown(str(upper), -1, 4713 if kind == "of a group" and os.geteuid() == 0 else os.getegid())
        upper.chmod(0o770)
    elif kind not in ("of another", "link of another"):
        upper.chmod(0o777)
    foreign = {"of another": upper, "link of another": top / "by"}.get(kind)
    if foreign:
        inode, real = os.lstat(str(foreign)).st_ino, os.fstat
        patch.setattr(os, "fstat", lambda each: (owned_by(4712, real) if real(each).st_ino == inode else real)(each))
    return str(top / (WAYS[kind][1] or "upper/inner/file"))


@pytest.mark.parametrize("kind", WAYS)
def test_a_way_on_which_another_user_could_replace_a_directory_is_refused(tmp_path, monkeypatch, kind):
    path = a_way(kind, tmp_path, monkeypatch)

    with pytest.raises(NotOwn, match=WAYS[kind][0]):
        directory_of(path)
    with pytest.raises(UsageError, match="no safe place for a map"):
        written(
            os.path.join(os.path.dirname(path), "map") if kind != "back from a link" else tmp_path / "upper" / "map"
        )
    with pytest.raises(UsageError, match="is not safe"):
        lines_of(path)


def test_ways_of_root_and_of_this_user_are_taken(tmp_path, monkeypatch):
    (tmp_path / "own" / "inner").mkdir(parents=True)
    (tmp_path / "by").symlink_to(tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    tmp_path.chmod(0o1777)  # as /tmp
    (tmp_path / "own").chmod(0o755)
    for path in (tmp_path / "by" / "inner" / "file", "file", os.path.join("inner", "..", "file")):
        directory_of(str(path))


SEVERAL = r"belongs to root or another user: this user namespace .*the user 65534$"


@pytest.mark.parametrize(
    ("map_of_users", "says"),
    [
        (b"         0       1000          1\n", SEVERAL),
        (b"0 1000 1\n1 100000 65536\n", SEVERAL),  # 65534 has a number here, and other users have none
        (b"", SEVERAL),
        (b"         0          0 4294967295\n", "belongs to another user$"),
        (None, "belongs to another user$"),  # a kernel without user namespaces
    ],
)
@pytest.mark.parametrize("own", [0, 65534])
def test_a_user_namespace_without_root_is_told_and_nobody_there_is_taken_for_root_or_for_this_user(
    tmp_path, monkeypatch, map_of_users, says, own
):
    """After `unshare --map-root-user`, the kernel shows root and each other user as 65534; without a map, us too."""
    (tmp_path / "map").mkdir()
    monkeypatch.setattr(own_path, "content_of", {"/proc/self/uid_map": map_of_users}.get)
    monkeypatch.setattr(os, "fstat", owned_by(65534, os.fstat))
    monkeypatch.setattr(os, "geteuid", lambda: own)
    if own == 65534 and says != SEVERAL:
        directory_of(str(tmp_path / "map"))  # the user nobody, whom no other user is shown as
        return
    with pytest.raises(NotOwn, match="^/ " + says):
        directory_of(str(tmp_path / "map"))


@pytest.mark.parametrize(
    ("map_of_users", "is_own"),
    [(b"1000 4713 1\n", False), (b"0 0 4294967295\n", True), (None, True)],
    ids=["a map of one user", "the host's", "a kernel without user namespaces"],
)
def test_in_a_user_namespace_the_number_of_a_mount_s_user_is_not_taken_for_this_user(monkeypatch, map_of_users, is_own):
    """The user 1000 of the host has made the mount. The user 4713 of the host is 1000 here."""
    line = "9 1 0:9 / /proc rw - fuse.sshfs a: rw,user_id=1000,group_id=1000"
    monkeypatch.setattr(own_path, "mount_with", lambda _number: next(mounts_in([line.encode()])))
    monkeypatch.setattr(own_path, "content_of", {"/proc/self/uid_map": map_of_users}.get)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if is_own:
        with own_way("/proc") as there:
            assert there.kind == "fuse.sshfs"
        return
    with pytest.raises(NotOwn, match="of type fuse.sshfs, is mounted by another user"), own_way("/proc"):
        pass


@pytest.mark.processes
def test_in_a_user_namespace_without_a_map_no_file_is_this_user_s(password):
    words = ["import sys", f"sys.path[:0] = [{str(ROOT)!r}]", "from relvmoiscsi.host.own_path import read_named"]
    words.append(f"read_named({str(password)!r}, 9)")
    unshared = ["unshare", "--user", sys.executable, "-B", "-c", "\n".join(words)]
    done = subprocess.run(unshared, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    said = done.stderr.decode()
    if said.startswith("unshare:"):
        pytest.skip(said)
    assert done.returncode and "NotOwn: / belongs to root or another user: this user namespace" in said


@pytest.mark.parametrize("kind", WAYS)
def test_no_directory_is_made_where_another_user_could_lead_elsewhere(tmp_path, monkeypatch, kind):
    path = a_way(kind, tmp_path, monkeypatch)
    with pytest.raises(NotOwn, match=WAYS[kind][0]):
        made(os.path.join(path, "more"), 0o755)
    assert not os.path.lexists(path)


def made(path, mode):
    with own_way(path, make=mode) as directory:
        assert os.path.samestat(directory.status, os.stat(path))


def test_a_directory_is_made_with_those_above_it(tmp_path, monkeypatch):
    made(str(tmp_path / "a" / "b"), 0o700)
    monkeypatch.chdir(tmp_path)
    made("a/b", 0o755)
    made("c/d", 0o755)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "c", "c/d")]
    assert modes == [0o700, 0o700, 0o755, 0o755]


@pytest.mark.parametrize("times", [9, 10])
def test_a_directory_that_another_process_removes_at_once_is_made_again(tmp_path, monkeypatch, times):
    """A run that ends removes the directories that are empty: those of the journal, and SM those of its locks."""
    made_names = []

    def make(name, mode, directory, really=own_path.new_directory):
        really(name, mode, directory)
        if name == "b":
            made_names.append(name)
            if len(made_names) <= times:
                shutil.rmtree(tmp_path / "a")

    monkeypatch.setattr(own_path, "new_directory", make)
    if times < 10:
        made(str(tmp_path / "a" / "b"), 0o700)
    else:
        with pytest.raises(FileNotFoundError):
            made(str(tmp_path / "a" / "b"), 0o700)
    assert len(made_names) == 10


@pytest.mark.parametrize("place", ["map", "by/map"])
def test_a_map_goes_to_no_place_that_leads_elsewhere(tmp_path, place):
    (tmp_path / "by").symlink_to(tmp_path)
    (tmp_path / "map").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link, or belongs to another user"):
        written(tmp_path / place)
    assert not (tmp_path / "elsewhere").exists()


def test_the_directory_for_temporary_files_is_accepted(tmp_path):
    tmp_path.chmod(0o1777)
    written(tmp_path / "map")


def of_another(path):
    os.chown(str(path), 4712, 4712)


def fifo(path):
    path.unlink()
    os.mkfifo(str(path), 0o600)


FOREIGN = {
    "owner": (of_another, "belongs to another user"),
    "way": (lambda path: path.parent.chmod(0o777), "other users can change the directory"),
    "mode": (lambda path: path.chmod(0o666), "other users can change the file"),
    "sticky": (lambda path: path.chmod(0o1666), "other users can change the file"),
    "pipe": (fifo, "is no regular file"),
    "missing": (lambda path: path.unlink(), "No such file"),
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "of" / "root"
    path.parent.mkdir()
    path.write_text('{"uuids": {"top secret of root": "x"}}')
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
@pytest.mark.parametrize("kind", FOREIGN)
def test_no_other_user_says_which_map_and_which_certificates_root_takes(
    file, image, unwritten, command, monkeypatch, kind
):  # fmt: skip
    happens, says = FOREIGN[kind]
    happens(file)
    assert says in " ".join(unwritten(2, "resignature", image, "--yes", "--map", file).err.split())
    monkeypatch.setenv("XENSERVER_PASSWORD", "x")
    ran = command("pool", "luns", "--pool", "https://127.0.0.1:1", "--ca", file)
    assert ran.status == 2 and says in " ".join(ran.err.split())


def test_links_of_this_user_lead_to_certificates_of_the_system(file):
    (file.parent / "link").symlink_to(file)
    assert read_named(str(file.parent / "link"), 9) == file.read_bytes()[:10], "and it is seen to be longer"


#: each option that names a file to read: (what reads the file, what it says of a file that cannot be read)
READERS = {
    "map": lambda path: resignature_with("--map", path).run(),
    "ca": lambda path: connection_module._tls(where(connection("--pool", "https://xs1", "--ca", path))),
    "password-file": lambda path: where(connection("--pool", "https://xs1", "--password-file", path)),
    "chap-password-file": first_line,
    "chap-file": lambda path: credentials(path, ""),
}


def resignature_with(*words):
    return ResignatureCommand(make_parser().parse_args(["resignature", "clone", *words], argparse.Namespace(words=())))


def files_of(parser):
    """The options that name a file, of a parser and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from files_of(each)
        elif action.metavar == "FILE":
            yield action.option_strings[-1][2:]


def test_each_option_that_names_a_file_is_in_the_table():
    assert set(files_of(make_parser())) == {*READERS, "map-out", "log"}


def connection(*words):
    parser = argparse.ArgumentParser()
    takes_connection(parser)
    return parser.parse_args(words)


@pytest.fixture
def of_write_only(file):
    """The descriptor of a file that the caller may write, and may not read."""
    file.chmod(0o600)
    descriptor = os.open(str(file), os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("form", ["/dev/fd/{}", "/proc/self/fd/{}"])
@pytest.mark.parametrize("option", READERS)
def test_what_the_caller_may_not_read_root_does_not_open_for_him(of_write_only, monkeypatch, option, form):
    """sudo relvmoiscsi ... --map /dev/stdin 0>>/var/log/of-root"""
    monkeypatch.setenv("XENSERVER_PASSWORD", "x")
    with pytest.raises(UsageError, match="Bad file descriptor"):
        READERS[option](form.format(of_write_only))


@pytest.mark.parametrize(
    "form",
    ["/dev/./fd/{}", "/dev//fd/{}", "/proc/{pid}/fd/{}", "/proc/thread-self/fd/{}", "/proc/{pid}/task/{pid}/fd/{}"],
)
@pytest.mark.parametrize("option", READERS)
def test_no_other_name_of_a_descriptor_is_opened_anew(of_write_only, monkeypatch, option, form):
    monkeypatch.setenv("XENSERVER_PASSWORD", "x")
    with pytest.raises(UsageError, match="link of a process|belongs to another user|cannot be read|no regular file"):
        READERS[option](form.format(of_write_only, pid=os.getpid()))


@pytest.mark.parametrize("of_process", ["self", "thread-self", "{pid}", "{pid}/task/{pid}"])
@pytest.mark.parametrize("name", ["root", "cwd"])
def test_no_path_leads_by_the_directories_of_a_process(file, monkeypatch, of_process, name):
    """A process may have other mounts, so that another user's file is at a path of root there."""
    monkeypatch.chdir("/")
    with pytest.raises(NotOwn, match="is a link of a process"):
        read_named(f"/proc/{of_process.format(pid=os.getpid())}/{name}{file}", 10)


#: runs in its own mounts. `tried` prints what a call answers
_OWN_MOUNTS = """
import ctypes, os, sys
from relvmoiscsi.cli.map_out import MapFile
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import flock, run_directory, secret_file
from relvmoiscsi.host.locks import lvm_locks, sm_locks
from relvmoiscsi.host.own_path import NotOwn, is_own, open_own, own_way, read_named

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def mount(kind, target, data=""):
    if libc.mount(b"x", os.fsencode(target), kind.encode(), 0, data.encode()):
        print("skip:", os.strerror(ctypes.get_errno()))
        sys.exit()

def mount_fuse(target, user):
    # a program that answers nothing; the kernel keeps the mount while the program has the device open
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        print("skip:", error)
        sys.exit()
    kind = "40000" if os.path.isdir(target) else "100000"
    mount("fuse", target, f"fd={device},rootmode={kind},user_id={user},group_id={user},allow_other")

def tried(call, *arguments):
    try:
        print("answer:", call(*arguments))
    except (NotOwn, OSError, RelvmoiscsiError) as error:
        print("error:", error)
"""


def in_own_mounts(directory, script):
    """Return what the script prints. Skip the test where the machine does not let root mount."""
    argv = ["unshare", "--mount", sys.executable, "-c", _OWN_MOUNTS + script, str(directory)]
    pipe = subprocess.PIPE
    # a question to FUSE has no end
    ran = subprocess.run(argv, cwd=str(ROOT.parent), stdout=pipe, stderr=subprocess.STDOUT, timeout=30, check=False)
    out = ran.stdout.decode()
    if "skip:" in out or out.startswith("unshare:"):
        pytest.skip(f"this machine does not mount: {out}")
    assert ran.returncode == 0, out
    return [line for line in out.split("\n") if line]


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_another_procfs_leads_by_no_link_of_a_process_to_a_file(tmp_path):
    """The kernel leads by `root` of a process to the files of that process, and not by the text of the link."""
    (tmp_path / "proc").mkdir()
    script = f"""
mount("proc", "proc")
tried(read_named, "proc/{os.getpid()}/root{tmp_path}/file", 1)
"""
    (line,) = in_own_mounts(tmp_path, script)
    assert line == f"error: {tmp_path}/proc/{os.getpid()}/root is a link of a process"


#: each use of a path: (what a call does at `at`, on which FUSE is mounted as the file or as a directory on the way)
USES = {
    "map": "tried(read_named, at, 9)",
    "password": "tried(secret_file.lines_of, at)",
    "log": "tried(open_own, at, os.O_WRONLY | os.O_APPEND)",
    "report": "tried(open_own, at, os.O_WRONLY | os.O_EXCL)",
    "map-out": "tried(MapFile, at, 'run')",
    "lock": "tried(flock.open_lock, at, os.O_RDWR)",
    "lock of lvm": "lvm_locks.LOCK_DIRECTORIES = (at,); tried(lvm_locks.lvm_locks(['vg']).__enter__)",
    "lock of a lun": "run_directory.RUN_DIRECTORY = at; tried(run_directory.open_lock_file, 'lun')",
    "use of sm": "sm_locks.SM_LOCKS = (at,); tried(sm_locks.is_sm_here)",
    "directory": "tried(own_way(at, make=0o755).__enter__)",
    "advice": "tried(is_own, at)",
}
IS_REFUSED = "mounted by another user"
ANSWERS = {"advice": "answer: False", "use of sm": "answer: True"}


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("place", ["there", "there/file"])
def test_a_mount_of_another_user_holds_up_no_use_of_a_path(tmp_path, place):
    """A user may mount FUSE in /tmp at a name of his own. Each question to its program waits for the program."""
    tmp_path.chmod(0o1777)
    if place == "there":
        (tmp_path / "there").touch()
    else:
        (tmp_path / "there").mkdir()
    uses = "\n".join(USES.values())
    lines = in_own_mounts(tmp_path, f'at = os.path.abspath("{place}")\nmount_fuse("there", 4712)\n{uses}\n')

    assert len(lines) == len(USES)
    for use, line in zip(USES, lines):
        expected = "File exists" if (use, place) == ("report", "there") else ANSWERS.get(use, IS_REFUSED)
        assert re.search(expected, line), (use, line)


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_mount_of_another_user_at_the_name_of_a_map_does_not_hold_up_the_end_of_a_run(tmp_path):
    script = """
file = MapFile("map", "pool attach --map-out")
open("map", "w").close()
mount_fuse("map", 4712)
tried(file.must_be_new)
tried(file.finish, {"attached_srs": []}, "Look there.")
tried(sorted, os.listdir("."))
"""
    before, said, answer, left = in_own_mounts(tmp_path, script)
    assert "map, of type fuse, is mounted by another user" in before and "Nothing was written" in before
    assert re.search("The run is complete, .*: the file system at .*/map, of type fuse, is mounted by another", said)
    assert (answer, left) == ("answer: False", "answer: ['map']")


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_process_without_proc_is_told_so_and_a_chroot_with_proc_serves(tmp_path):
    for name in ("proc", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("{}")
    script = """
mount("tmpfs", "/proc")
tried(read_named, "there/file", 9)
os.chroot(".")
mount("proc", "/proc")
tried(read_named, "/there/file", 9)
mount("tmpfs", "/there", "mode=755")
open("/there/file", "w").close()
tried(read_named, "/there/file", 9)
"""
    without, in_chroot, on_mount = in_own_mounts(tmp_path, script)
    assert without.startswith("error: /proc is not mounted here") and "where /proc is mounted" in without
    assert (in_chroot, on_mount) == ("answer: b'{}'", "answer: b''")


def test_too_many_open_files_are_told_as_such_and_not_as_a_missing_proc(file, monkeypatch):
    def full(path, *args, real=os.open, **more):
        if "/fdinfo/" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="Too many open files"):
        read_named(str(file), 9)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (None, "the file system at /proc was unmounted"),
        ("9 1 0:9 / /proc rw - fuse.sshfs a: rw,user_id=4712,group_id=0", "of type fuse.sshfs, is mounted by another"),
        ("9 1 0:9 / /proc rw - fuse.sshfs a: rw,user_id=0,group_id=0", None),
    ],
)
def test_a_mount_that_nothing_lists_or_of_another_user_is_refused_before_its_status(monkeypatch, line, says):
    mount = None if line is None else next(mounts_in([line.encode()]))
    monkeypatch.setattr(own_path, "mount_with", lambda number: mount)
    if says is None:
        with own_way("/proc") as there:
            assert there.kind == "fuse.sshfs"
        return
    asked = []

    def fstat(descriptor, real=os.fstat):
        asked.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(NotOwn, match=says), own_way("/proc"):
        pytest.fail("taken")
    assert asked == ["/"]


def test_what_another_user_puts_at_the_place_meanwhile_is_not_used(tmp_path):
    """The directory on the way was renamed since, and another one is at its name."""
    (tmp_path / "way").mkdir()
    with own_place(str(tmp_path / "way" / "file")) as place:
        (tmp_path / "way").rename(tmp_path / "old")
        (tmp_path / "way").mkdir()
        os.close(place.make(os.O_WRONLY))
        place.rename("new")
        place._replace(name="gone").verify_new()
    assert os.listdir(str(tmp_path / "old")) == ["new"] and os.listdir(str(tmp_path / "way")) == []


def test_a_given_descriptor_is_read_from_where_it_is(file):
    with open(str(file), "rb") as opened:
        os.read(opened.fileno(), 2)
        assert read_named(f"/dev/fd/{opened.fileno()}", 1000) == file.read_bytes()[2:]


@pytest.mark.parametrize("option", READERS)
def test_a_file_without_an_end_is_not_read_into_memory(file, monkeypatch, option):
    monkeypatch.setenv("XENSERVER_PASSWORD", "x")
    for module in (connection_module, secret_file, resignature):
        for name in ("_MOST_CA_BYTES", "_MOST_BYTES", "_MOST_MAP_BYTES"):
            monkeypatch.setattr(module, name, 20, raising=False)
    file.chmod(0o600)
    file.write_text("x" * 10000)
    reads = []

    def read(descriptor, size, real=os.read):
        reads.extend([size] * (os.readlink(f"/proc/self/fd/{descriptor}") == str(file)))
        return real(descriptor, size)

    monkeypatch.setattr(own_path.os, "read", read)
    with pytest.raises(UsageError, match="more than 20|not valid JSON"):
        READERS[option](str(file))
    assert 1 <= max(reads) <= 21


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"uuids": {"top secret": "x"}}', "an id of pair 1 is wrong: a UUID"),
        ('{"lvm_ids": {"top secret": "x"}}', "an id of pair 1 is wrong: an LVM id"),
        ('{"new_sr": "top secret"}', "The new_sr of the map is not a UUID"),
        ('{"top secret": 1, "top secret": 1}', "is not valid JSON: a value cannot be read"),
        ("top secret:x", "is not valid JSON: line 1, column 1 cannot be read"),
    ],
)
def test_an_error_shows_nothing_of_the_file_of_map(file, image, unwritten, content, says):
    file.write_text(content)
    ran = unwritten(2, "resignature", image, "--yes", "--map", file)
    assert says in " ".join(ran.err.split())
    assert "secret" not in ran.out + ran.err


@pytest.mark.processes
def test_a_working_directory_that_was_removed_is_no_reason_to_find_nothing(tmp_path):
    """The locks of LVM and SM were not taken there, because their directories seemed absent."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "file").write_text("content")
    program = (
        "import os, sys\n"
        "from relvmoiscsi.host.own_path import is_there, read_named\n"
        "os.rmdir(os.getcwd())\n"
        "print(is_there(sys.argv[1]), is_there(sys.argv[1] + ' not'), is_there('relative'), read_named(sys.argv[1], 9))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        cwd=str(tmp_path / "gone"),
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert ran.stdout == b"True False False b'content'\n", ran
