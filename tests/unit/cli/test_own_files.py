# SPDX-License-Identifier: LGPL-2.1-only
"""Files that an option names: passwords are read from this user's own files, maps are written to this user's own."""

import os
import stat
import threading

import pytest

from relvmoiscsi.cli import secret_file
from relvmoiscsi.cli.map_out import new_file
from relvmoiscsi.cli.secret_file import first_line, lines_of
from relvmoiscsi.errors import UsageError


@pytest.fixture
def password(tmp_path):
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text("sesame\n")
    return path


def test_the_first_line_of_a_file_of_its_owner_is_read_and_so_is_a_pipe(password, tmp_path):
    assert first_line(str(password)) == "sesame"
    pipe = tmp_path / "pipe"
    os.mkfifo(str(pipe))
    writer = threading.Thread(target=pipe.write_text, args=("of a pipe\n",))
    writer.start()
    assert lines_of(str(pipe)) == ["of a pipe"]
    writer.join()


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


def written(path):
    with new_file(str(path), "look") as finish:
        assert finish({"state": "resignatured"})


def test_a_map_is_readable_for_its_owner_alone_also_in_the_place_of_an_empty_file_of_all(tmp_path):
    path = tmp_path / "map"
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path = tmp_path / "empty"
    path.touch()
    path.chmod(0o666)
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def leads_elsewhere(path, _patch):
    path.symlink_to(path.parent / "elsewhere")


def is_in_a_directory_of_all(path, _patch):
    path.parent.chmod(0o777)


def is_in_a_directory_of_another(path, patch):
    real = os.stat
    patch.setattr(os, "geteuid", lambda: 4711)
    patch.setattr(os, "stat", lambda name, **more: os.stat_result((*real(name, **more)[:4], 4712, *real(name)[5:])))


@pytest.mark.parametrize(
    "happens, says",
    [
        (leads_elsewhere, "is a link, or belongs to another user"),
        (is_in_a_directory_of_all, "every user can change"),
        (is_in_a_directory_of_another, "in a directory of another user"),
    ],
)
def test_a_map_goes_to_no_place_that_another_user_can_direct(tmp_path, monkeypatch, happens, says):
    path = tmp_path / "maps" / "map"
    path.parent.mkdir()
    happens(path, monkeypatch)
    with pytest.raises(UsageError, match=says):
        written(path)
    assert not (path.parent / "elsewhere").exists()


def test_the_directory_for_temporary_files_is_accepted(tmp_path):
    tmp_path.chmod(0o1777)
    written(tmp_path / "map")
