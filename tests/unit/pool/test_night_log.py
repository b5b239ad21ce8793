# SPDX-License-Identifier: LGPL-2.1-only
"""The file of --log: a regular file of this user, and of nobody else."""

import os
import stat

import pytest

from relvmoiscsi.errors import UsageError
from relvmoiscsi.pool.night_log import NightLog


def opened(path):
    log = NightLog(str(path), ["relvmoiscsi", "pool", "luns"], print)
    log.close()


def of_another_user(path):
    path.write_text("")
    path.chmod(0o666)
    os.chown(str(path), 4712, 4712)


def with_two_names(path):
    path.with_name("other").write_text("")
    os.link(str(path.with_name("other")), str(path))


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")


@pytest.mark.parametrize(
    "make, said",
    [
        pytest.param(of_another_user, "belongs to another user", marks=only_root),
        (with_two_names, "has another name too"),
        (lambda path: path.symlink_to(path.with_name("other")), "is a link"),
    ],
    ids=["of another user", "with two names", "a link"],
)
def test_a_file_that_another_user_may_have_made_gets_no_line(tmp_path, make, said):
    path = tmp_path / "night.log"
    make(path)
    with pytest.raises(UsageError, match=said):
        opened(path)
    assert not path.exists() or path.read_text() == ""


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_is_refused_without_a_wait(tmp_path, is_read):
    path = tmp_path / "night.log"
    os.mkfifo(str(path))
    reader = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    try:
        with pytest.raises(UsageError, match="no regular file" if is_read else "cannot be opened"):
            opened(path)
        assert not is_read or os.read(reader, 1) == b""
    finally:
        if is_read:
            os.close(reader)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_log_is_readable_for_its_user_alone_under_any_umask(tmp_path, umask):
    path = tmp_path / "night.log"
    before = os.umask(umask)
    try:
        opened(path)
        opened(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text().splitlines()) == 2
