# SPDX-License-Identifier: LGPL-2.1-only
"""What is found a year later: the map in SMlog, in syslog, in the file of --map-out, and on the LUN."""

import os
import stat

import pytest

from kit import shell
from kit.cuts import read_mark
from kit.shell import WRITERS
from relvmoiscsi import __version__
from relvmoiscsi.host import sm_log
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.files import remedy


def pairs_of(facts):
    """Every old id of a result, with the new one."""
    rows = [{"old": facts[f"old_{name}"], "new": facts[f"new_{name}"]} for name in ("sr", "vg_id", "pv_id")]
    rows += [{"old": vdi["old_vdi"], "new": vdi["new_vdi"]} for vdi in facts["vdi_pairs"]]
    rows += [{"old": lv["old_lv_id"], "new": lv["new_lv_id"]} for lv in facts["lv_pairs"]]
    return {**{row["old"]: row["new"] for row in rows}, **facts["other_uuids"]}


def names_in(folder):
    return sorted(item.name for item in folder.iterdir())


@pytest.fixture
def file(tmp_path):
    return tmp_path / "map.json"


# --- the log


@pytest.mark.parametrize("name", WRITERS)
def test_the_whole_map_and_the_version_are_in_the_log_and_in_the_file(lun_for, command, smlines, file, tmp_path, name):
    path = lun_for(name)
    del smlines[:]
    file.touch(0o600)  # as mktemp makes it
    ran = command(name, path, "--yes", "--json", "--map-out", file)

    assert f"relvmoiscsi: {path}" in smlines[0] and f"This is relvmoiscsi {__version__}." in smlines[0]
    told = "\n".join(smlines[1:])
    if name == "recover":  # a rollback: its result has no map, and the log keeps what the run had begun
        assert "vdi_pairs" not in ran.json and told.count(f"  becomes  {ran.json['new_sr']}") == 1
    else:
        for old, new in pairs_of(ran.json).items():
            assert f"{old}  becomes  {new}" in told
    assert "  'data'" in told
    assert ran.status == 0 and file.read_text() == ran.out
    assert names_in(tmp_path) == sorted([path.name, "map.json"]) and stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_sm_here, ident", [(True, "SM"), (False, "relvmoiscsi")])
def test_it_is_smlog_where_sm_is(image, command, root, monkeypatch, is_sm_here, ident):
    if is_sm_here:
        os.makedirs(os.path.join(root, "var/lock/sm"))
    opened = []
    monkeypatch.setattr(sm_log.syslog, "openlog", lambda *words: opened.append(words[0]))
    command("resignature", image, "--yes")
    assert opened == [ident]


# --- the file


def no_new_file(real):
    def opened(path, flags, *more, **others):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *more, **others)

    return opened


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("where", ["missing/map", "directory", "link", "the LUN", "other.img", "no right"])
def test_a_file_that_cannot_be_written_is_told_while_nothing_has_happened(
    lun_for, unwritten, tmp_path, monkeypatch, name, where
):
    path, other = lun_for(name), tmp_path / "other.img"
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "directory").mkdir()
    other.write_bytes(b"of an original")
    if where == "no right":
        monkeypatch.setattr(os, "open", no_new_file(os.open))
    ran = unwritten(2, name, path, "--yes", "--map-out", path if where == "the LUN" else tmp_path / where)

    assert " Nothing was written." in ran.err and other.read_bytes() == b"of an original"
    no_right = remedy(PermissionError(13, ""), str(tmp_path / where))
    advice = {"missing/map": "Make its directory first.", "no right": no_right}
    assert f" Nothing was written. {advice.get(where, '')}" in ran.err
    assert names_in(tmp_path) == sorted([path.name, "link", "directory", "other.img"])


def test_a_command_that_fails_leaves_the_file_as_it_was(image, unwritten, file, tmp_path):
    file.touch()
    unwritten(4, "undo", image, "--yes", "--map-out", file)
    assert file.read_text() == "" and names_in(tmp_path) == [image.name, "map.json"]


@pytest.mark.parametrize("words", [("resignature", "--yes"), ("resignature", "--again", "--dry-run"), ("recover",)])
def test_the_record_of_an_earlier_run_stays(finished, unwritten, file, words):
    file.write_text("of an earlier run")
    says = "already exists and --map-out replaces no file"
    unwritten(2, words[0], finished, *words[1:], "--map-out", file, says=says)
    assert file.read_text() == "of an earlier run"


def test_a_run_that_is_killed_leaves_no_file(image, command, tmp_path, file, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: seen.append(names_in(tmp_path)))
    assert command("resignature", image, "--yes", "--map-out", file).status == 0
    assert seen and all(names == [image.name] for names in seen)


@pytest.mark.parametrize("reason", ["No space left on device", "File exists"])
def test_a_file_that_cannot_be_written_in_the_end_is_74_and_the_run_is_whole(
    image, command, file, tmp_path, monkeypatch, reason
):
    """A file that comes during the run stays."""

    def fsync(_descriptor):
        if reason == "File exists":
            file.write_text("of another run")
        else:
            raise OSError(28, reason)

    monkeypatch.setattr(os, "fsync", fsync)
    ran = command("resignature", image, "--yes", "--map-out", file)

    assert ran.status == 74 and ran.out.startswith(f"{image} was resignatured.\n")
    assert f"The run is complete, but the map cannot be written to {file}: {reason}." in ran.err
    assert f"`relvmoiscsi map --device {image}` prints the ids." in " ".join(ran.err.split())
    assert command("show", image, "--json").json["state"] == "resignatured"
    assert names_in(tmp_path) == [image.name, "map.json"][: 1 + (reason == "File exists")]
    assert not file.exists() or file.read_text() == "of another run"


def test_a_plan_that_cannot_be_written_is_no_complete_run_and_no_step_names_its_file(
    image, command, file, tmp_path, monkeypatch
):
    def fsync(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    ran = command("resignature", image, "--dry-run", "--map-out", file)

    told = f"The plan is not saved: the map cannot be written to {file}: No space left on device. Nothing was written."
    assert (ran.status, file.exists()) == (74, False)
    assert f"{told} Repeat the command with another FILE." in ran.err and "complete" not in ran.err
    assert ran.out.startswith(f"{image}: dry run.") and "next:" not in ran.out


# --- the LUN


def test_the_whole_map_of_a_lun_is_told_without_any_old_id(finished, command):
    facts = command("resignature", finished, "--yes", "--json").json
    ran, found = command("map", "--device", finished), command("map", "--device", finished, "--json").json

    assert ran.status == 0
    for old, new in pairs_of(facts).items():
        assert f"{old}  became  {new}" in ran.out
    assert pairs_of(found) == pairs_of(facts) and found["device"] == str(finished)


def test_a_journal_that_lvm_has_overwritten_is_told_with_what_else_there_is(finished, command):
    with open_device(str(finished), writable=False) as device:
        shell.flipped(finished, read_mark(device).journal.offset + 100)

    ran = command("map", "--device", finished)
    assert ran.status == 3 and f"LVM has overwritten the journal with the map on {finished}, or" in ran.err
    assert all(way in ran.err for way in ("SMlog, in syslog", "--map-out", "`relvmoiscsi map --sr NEW OLD`"))


def test_a_lun_without_a_map_says_so_and_an_unfinished_run_has_its_own_error(request, command):
    ran = command("map", "--device", request.getfixturevalue("unfinished"))
    assert ran.status == 8
    original = request.getfixturevalue("original")
    ran = command("map", "--device", original, "--json")
    assert ran.status == 4 and f"{original} is not resignatured and holds no map." in ran.err
