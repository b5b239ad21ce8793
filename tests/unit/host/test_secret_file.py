# SPDX-License-Identifier: LGPL-2.1-only
"""The file of passwords that an option names: it is read where it is this user's own."""

import os
import threading

import pytest

from relvmoiscsi.errors import UsageError
from relvmoiscsi.host import secret_file
from relvmoiscsi.host.secret_file import first_line, lines_of


@pytest.fixture
def password(tmp_path):
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text("sesame\nand more\n")
    return path


def test_the_first_line_of_a_file_of_its_owner_is_read_and_so_is_a_pipe(password, tmp_path):
    assert first_line(str(password)) == "sesame"
    pipe = tmp_path / "pipe"
    os.mkfifo(str(pipe))
    writer = threading.Thread(target=pipe.write_text, args=("of a pipe\n",))
    writer.start()
    assert lines_of(str(pipe)) == ["of a pipe"]
    writer.join()


def is_readable(path, _patch):
    path.chmod(0o640)


def is_a_link(path, _patch):
    path.rename(path.parent / "real")
    path.symlink_to(path.parent / "real")


def is_foreign(_path, patch):
    patch.setattr(secret_file.os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize(
    "happens, says",
    [(is_readable, "Run `chmod 600"), (is_a_link, "is a link"), (is_foreign, "belongs to another user")],
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
