# SPDX-License-Identifier: LGPL-2.1-only
"""What is found a year later: the map in SMlog, in syslog, in the file of --map-out, and on the LUN."""

import json
import os
import stat

import pytest

from kit import shell
from kit.cuts import read_mark
from kit.shell import content
from relvmoiscsi import __version__
from relvmoiscsi.host import sm_log
from relvmoiscsi.host.disk.block_device import open_device


def pairs_of(facts):
    """Every old id of a result, with the new one."""
    rows = [facts["sr"], facts["vg_id"], facts["pv_id"], *facts["vdis"], *(lv["id"] for lv in facts["lvs"])]
    return {**{row["old"]: row["new"] for row in rows}, **facts["other_uuids"]}


# --- the log


@pytest.mark.parametrize("name", ["resignature", "undo", "recover"])
def test_the_whole_map_and_the_version_are_in_the_log(request, command, smlines, name):
    path = request.getfixturevalue({"resignature": "image", "undo": "finished", "recover": "unfinished"}[name])
    del smlines[:]

    facts = command(name, path, "--yes", "--json").json

    assert f"relvmoiscsi: {path}" in smlines[0] and f"This is relvmoiscsi {__version__}." in smlines[0]
    told = "\n".join(smlines[1:])
    for old, new in pairs_of(facts).items():
        assert f"{old}  becomes  {new}" in told
    assert "  data" in told


def test_what_did_nothing_is_not_in_the_log(finished, command, smlines):
    del smlines[:]

    for argv in (("resignature",), ("recover",), ("resignature", "--dry-run"), ("show",)):
        assert command(argv[0], finished, *argv[1:], *(["--yes"] if argv[0] != "show" else [])).status in (0, 4)

    assert smlines == []


@pytest.mark.parametrize("is_sm_here, ident", [(True, "SM"), (False, "relvmoiscsi")])
def test_it_is_smlog_where_sm_is(image, command, root, monkeypatch, is_sm_here, ident):
    if is_sm_here:
        os.makedirs(os.path.join(root, "var/lock/sm"))
    opened = []
    monkeypatch.setattr(sm_log.syslog, "openlog", lambda *words: opened.append(words[0]))

    command("resignature", image, "--yes")

    assert opened == [ident]


# --- the file


@pytest.mark.parametrize("name", ["resignature", "undo", "recover"])
def test_the_file_has_what_json_prints(request, command, tmp_path, name):
    path = request.getfixturevalue({"resignature": "image", "undo": "finished", "recover": "unfinished"}[name])
    file = tmp_path / "map.json"
    file.touch(0o600)  # as mktemp makes it

    ran = command(name, path, "--yes", "--json", "--map-out", file)

    assert ran.status == 0 and json.loads(file.read_text()) == ran.json
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([path.name, "map.json"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["resignature", "undo", "recover"])
@pytest.mark.parametrize(
    "what", ["no directory", "a directory", "the LUN", "a link to the LUN", "another image", "no right"]
)
def test_a_file_that_cannot_be_written_is_told_while_nothing_has_happened(
    request, command, tmp_path, monkeypatch, name, what
):
    path = request.getfixturevalue({"resignature": "image", "undo": "finished", "recover": "unfinished"}[name])
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "directory").mkdir()
    other = tmp_path / "other.img"
    other.write_bytes(b"of an original")
    names = {
        "no directory": "missing/map",
        "a directory": "directory",
        "a link to the LUN": "link",
        "another image": other.name,
        "no right": "map",
    }
    before = content(path)
    with monkeypatch.context() as patch:
        if what == "no right":
            patch.setattr(os, "open", no_new_file(os.open))
        ran = command(name, path, "--yes", "--map-out", path if what == "the LUN" else tmp_path / names[what])

    assert ran.status == 2 and ran.err.endswith(" Nothing was written.\n")
    assert content(path) == before and other.read_bytes() == b"of an original"
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([path.name, "link", "directory", other.name])


def no_new_file(real):
    def opened(path, flags, *more, **others):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *more, **others)

    return opened


def test_a_command_that_fails_leaves_the_file_as_it_was(image, command, tmp_path):
    file = tmp_path / "map.json"
    file.touch()

    assert command("undo", image, "--yes", "--map-out", file).status == 4

    assert file.read_text() == ""
    assert sorted(item.name for item in tmp_path.iterdir()) == [image.name, "map.json"]


@pytest.mark.parametrize("words", [("resignature", "--yes"), ("resignature", "--again", "--dry-run"), ("recover",)])
def test_the_record_of_an_earlier_run_stays(image, command, tmp_path, words):
    file = tmp_path / "map.json"
    assert command("resignature", image, "--yes", "--map-out", file).status == 0
    record = file.read_text()

    ran = command(words[0], image, *words[1:], "--map-out", file)

    assert ran.status == 2 and "already exists and --map-out replaces no file" in ran.err
    assert file.read_text() == record


def test_a_file_that_comes_during_the_run_stays(image, command, tmp_path, monkeypatch):
    file = tmp_path / "map.json"

    def fsync(_descriptor):
        file.write_text("of another run")

    monkeypatch.setattr(os, "fsync", fsync)
    ran = command("resignature", image, "--yes", "--map-out", file)

    assert ran.status == 74 and f"the map cannot be written to {file}: File exists." in ran.err
    assert file.read_text() == "of another run"
    assert sorted(item.name for item in tmp_path.iterdir()) == [image.name, "map.json"]


def test_a_run_that_is_killed_leaves_no_file(image, command, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: seen.append(os.listdir(str(tmp_path))))
    assert command("resignature", image, "--yes", "--map-out", tmp_path / "map.json").status == 0

    assert seen and all(names == [image.name] for names in seen)


def test_a_file_that_finds_no_room_in_the_end_is_74_and_the_run_is_whole(image, command, tmp_path, monkeypatch):
    def fsync(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    ran = command("resignature", image, "--yes", "--map-out", tmp_path / "map.json")

    assert ran.status == 74 and ran.out.startswith(f"{image} was resignatured.\n")
    assert (
        f"The run is complete, but the map cannot be written to {tmp_path / 'map.json'}: No space left on device."
        in ran.err
    )
    assert command("show", image, "--json").json["state"] == "resignatured"
    assert [item.name for item in tmp_path.iterdir()] == [image.name]


# --- the LUN


def test_the_whole_map_of_a_lun_is_told_without_any_old_id(image, command):
    facts = command("resignature", image, "--yes", "--json").json

    ran, found = command("map", "--device", image), command("map", "--device", image, "--json").json

    assert ran.status == 0
    for old, new in pairs_of(facts).items():
        assert f"{old}  becomes  {new}" in ran.out
    assert pairs_of(found) == pairs_of(facts) and found["device"] == str(image)


def test_a_journal_that_lvm_has_overwritten_is_told_with_what_else_there_is(finished, command):
    with open_device(str(finished), writable=False) as device:
        shell.flipped(finished, read_mark(device).journal.offset + 100)

    ran = command("map", "--device", finished)

    assert ran.status == 3
    assert f"LVM has overwritten the journal with the map on {finished}." in ran.err
    for way in ("SMlog, in syslog", "--map-out", "`relvmoiscsi map --sr NEW OLD`"):
        assert way in ran.err


def test_a_lun_without_a_map_says_so(image, command):
    ran = command("map", "--device", image, "--json")

    assert ran.status == 3 and f"{image} is not resignatured and holds no map." in ran.err


def test_an_unfinished_run_has_its_own_error(unfinished, command):
    assert command("map", "--device", unfinished).status == 8
