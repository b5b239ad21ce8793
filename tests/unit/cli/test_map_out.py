# SPDX-License-Identifier: LGPL-2.1-only
"""The file of --map-out: a map is written to this user's own file."""

import os
import stat

import pytest

from relvmoiscsi.cli.map_out import new_file
from relvmoiscsi.errors import UsageError


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
