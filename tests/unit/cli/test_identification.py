# SPDX-License-Identifier: LGPL-2.1-only
"""What tells a clone from its original, in every prompt and object; and a LUN of which no pool has said anything."""

import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest

from kit import shell
from kit.live import STATES
from kit.shell import SCSI_ID, SR, WRITERS, content, if_clone, patched, tree
from kit.streams import Terminal
from relvmoiscsi.lun import disk_source, source
from relvmoiscsi.lun import run as run_module

NO_XAPI = "No xapi on this machine: no pool was asked whether this LUN is in use."


@pytest.fixture
def disk(lun, monkeypatch):
    """The LUN, of an array that says what it is."""
    monkeypatch.setattr(disk_source, "hardware_of", lambda _path, _host: ("ACME", "Rocket", "x42"))
    return lun


@pytest.fixture
def nameless(lun, monkeypatch):
    """A block device without a SCSIid, as a loop device is."""
    for name in ("scsi_id_of", "scsi_id_at"):
        monkeypatch.setattr(disk_source, name, lambda _path: None)
    return lun


@pytest.fixture
def make(command, monkeypatch):
    """`make(name, LUN)`: a state in which the command of that name has something to do."""

    def run(name, path):
        if name == "recover":
            with monkeypatch.context() as patch:
                shell.cut(patch, 4)
                command("resignature", path, "--yes", "--not-in-use")
        elif name == "undo":
            assert command("resignature", path, "--yes", "--not-in-use").status == 0

    return run


# --- the facts, and where they are said


def facts_of(disk, **others):
    pool = {"asked": False, "pool_uuid": None, "pool_name": None, "overridden": False, "sentence": NO_XAPI}
    known = {"device_kind": "block device", "scsi_id": SCSI_ID, "vendor": "ACME", "model": "Rocket", "serial": "x42"}
    size = os.stat(str(disk)).st_size
    return {
        **known,
        "size_bytes": size,
        "sr": tree().truth.sr_uuid,
        "sr_name_label": "test SR",
        "vdi_count": 4,
        "storage_manager_at_work": False,
        "pool": pool,
        **others,
    }


def test_show_the_dry_run_and_a_run_have_the_facts_of_the_lun_before(disk, command, make):
    named = ("--scsi-id", SCSI_ID, "--json")
    shown = command("show", disk, "--json").json["lun"]
    planned = command("resignature", disk, "--dry-run", "--json").json["lun"]
    done = command("resignature", disk, "--yes", "--sr-uuid", SR, *named).json["lun"]
    undone = command("undo", disk, "--yes", *named).json["lun"]
    make("recover", disk)
    recovered = command("recover", disk, "--yes", *named).json["lun"]

    assert shown == planned == done == facts_of(disk)
    assert undone == facts_of(disk, sr=SR)
    assert recovered == facts_of(disk, sr_name_label=None, vdi_count=None)


def test_the_file_behind_a_loop_device_tells_it_from_another(nameless, command, monkeypatch):
    monkeypatch.setattr(disk_source, "backing_file", lambda path, _host: f"/images of/{os.readlink(path)[-9:]}")
    line = "device   no SCSIid, loop device of '/images of/clone.img', 57.5 MiB"
    for ran in (command("show", nameless), command("resignature", nameless, "--dry-run")):
        assert line in ran.out


def test_the_pool_that_has_answered_is_named_and_asked_is_enough(disk, command, monkeypatch, pool):
    monkeypatch.setattr(run_module, "LOOK_SECONDS", 1000.0)  # nobody waits where a pool was asked
    uuid = pool.db.get("pool", pool.pool, "uuid")
    assert command("resignature", "--yes", disk, "--json").json["lun"]["pool"] == {
        "asked": True,
        "pool_uuid": uuid,
        "pool_name": "simulated",
        "overridden": False,
        "sentence": f"The pool {uuid} ('simulated') was asked: it does not use this LUN.",
    }
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi")
    pool.db.create("PBD", SR=sr, host=pool.hosts[1], device_config={"SCSIid": SCSI_ID})
    ran = command("show", disk)
    assert ran.status == 0 and "('simulated') was asked: this LUN is in use.\n" in ran.out


def test_work_of_the_storage_manager_is_said(tmp_path, command):
    path = tmp_path / "live.img"
    STATES["clone: after_first_snap, vhd"]().built.disk.to_file(str(path))
    said = command("resignature", path, "--dry-run").out
    assert "  note     The storage manager was working on the SR when the copy was taken, or is working now.\n" in said
    assert command("show", path, "--json").json["lun"]["storage_manager_at_work"] is True


# --- where no pool was asked: scripts


@pytest.mark.parametrize("name", WRITERS)
def test_yes_alone_does_not_tell_a_clone_from_its_original(lun, command, unwritten, make, name):
    make(name, lun)
    says = f"No pool was asked whether {lun} is in use, and --yes alone does not identify the clone."
    assert unwritten(4, name, lun, "--yes", "--json", says=says).json["error"]["disk_state"] == "Nothing was written."

    ran = command(name, lun, "--yes", "--json", "--scsi-id", SCSI_ID)
    assert (ran.status, ran.json["lun"]["pool"]["overridden"]) == (0, False)
    ran = command("resignature", lun, "--yes", "--json", "--again", "--not-in-use")
    assert (ran.status, ran.json["lun"]["pool"]["overridden"]) == (0, True)


@pytest.mark.parametrize(
    "fixture, status, needed",
    [
        ("lun", 2, "Use --yes with --scsi-id ID or --not-in-use"),
        ("nameless", 4, "use --not-in-use, and --yes in a script"),
    ],
)
@pytest.mark.parametrize("name", WRITERS)
def test_a_script_without_yes_is_told_all_that_it_needs(
    request, command, unwritten, make, name, fixture, status, needed
):
    disk = request.getfixturevalue(fixture)
    make(name, disk)
    unwritten(status, name, disk, "--json", says=needed)
    for named in (["--not-in-use"], ["--scsi-id", SCSI_ID])[: needed.count("--not") + needed.count("--scsi")]:
        unwritten(2, name, disk, "--json", *named, says="Use --yes")
        assert " with --" not in command(name, disk, "--json", *named).err


@pytest.mark.parametrize("has_pool", [False, True])
def test_what_has_no_scsi_id_is_known_by_nothing(request, nameless, command, unwritten, type_in, has_pool):
    """A pool cannot be asked for it either."""
    if has_pool:
        request.getfixturevalue("pool")
        assert command("show", nameless, "--json").json["lun"]["pool"]["asked"] is False
    says = f"No pool was asked whether {nameless} is in use, and the device has no SCSIid."
    for words in ((), ("--yes",)):
        type_in("y\n")
        unwritten(4, "resignature", nameless, *words, says=says)
    says = f"{nameless} has no SCSIid, so the given SCSIid (`--scsi-id`) cannot be compared."
    ran = unwritten(2, "resignature", nameless, "--yes", "--not-in-use", "--scsi-id", SCSI_ID, says=says)
    assert ran.err.endswith(" Nothing was written. Leave the SCSIid out.\n")
    ran = command("resignature", nameless, "--yes", "--not-in-use")
    assert ran.status == 0 and ran.out.endswith(f"flushes\nnext: relvmoiscsi check {nameless}\n")


# --- where no pool was asked: people


@pytest.mark.states("typed")
@pytest.mark.parametrize("typed", ["y\n", SCSI_ID[:-1] + "\n", "n\n", ""])
@pytest.mark.parametrize("name", WRITERS)
def test_a_person_types_the_scsi_id_and_anything_else_is_no(lun, command, unwritten, make, type_in, name, typed):
    make(name, lun)
    type_in(typed)
    ran = unwritten(4, name, lun)
    told = "Not confirmed. Nothing was written."
    if typed.strip() not in ("", "n"):  # the SCSIid of another LUN is the mix-up for which the question is asked
        told = f"Not confirmed: the SCSIid of this LUN is {SCSI_ID}, and not '{typed.strip()}'. Nothing was written. "
        told += "Check at the array which LUN is the clone."
    assert ran.err.endswith(f"relvmoiscsi: {told}\n")
    assert "? Type the SCSIid of the clone: " in ran.err and "[y/N]" not in ran.err
    lines = ran.err.splitlines()
    at = lines.index(f"relvmoiscsi: {lun} will be changed:")
    assert lines[at + 1].startswith(f"  device   SCSIid {SCSI_ID}, ") and lines[at + 1].endswith("57.5 MiB")
    assert lines[at + 2].startswith("  SR       ") and lines[at + 3] == f"  pool     {NO_XAPI}"

    type_in(SCSI_ID + "\n")
    assert command(name, lun).status == 0


@pytest.mark.parametrize("form", [SCSI_ID.upper(), "naa." + SCSI_ID[1:], SCSI_ID[1:], "scsi-" + SCSI_ID])
def test_the_question_takes_the_forms_of_a_scsi_id_that_the_option_takes(lun, command, type_in, form):
    type_in(form + "\n")
    assert command("resignature", lun).status == 0
    assert command("undo", lun, "--yes", "--scsi-id", form).status == 0


@pytest.mark.parametrize("words", [("--not-in-use",), ("--scsi-id", SCSI_ID)])
def test_who_has_said_it_before_only_says_yes(disk, command, type_in, words):
    type_in("y\n")
    ran = command("resignature", disk, *words)
    assert ran.status == 0 and f"Give {disk} these new identities? [y/N] " in ran.err
    assert f"  device   SCSIid {SCSI_ID}, ACME Rocket, serial x42, 57.5 MiB\n" in ran.err


# --- where no pool was asked: the LUN itself


def lvm_elsewhere(path):
    """What LVM of another host changes first: the header of the metadata area."""
    patched(path, 4096 + 40, b"\xff" * 8)
    return 4136


def renamed(path):
    """A new name of the SR changes no sector with an identity, and nothing of LVM."""
    at = path.read_bytes().index(b"<name_label>test SR<") + 12
    patched(path, at, b"best")
    return at


@pytest.mark.parametrize("name, change", [*[(name, lvm_elsewhere) for name in WRITERS], ("resignature", renamed)])
def test_a_lun_that_changes_meanwhile_is_in_use(lun, command, make, monkeypatch, name, change):
    make(name, lun)
    seen = []
    monkeypatch.setattr(time, "sleep", lambda seconds: seen.extend([seconds, change(lun), content(lun)]))
    monkeypatch.setattr(run_module, "LOOK_SECONDS", 1.0)
    ran = command(name, lun, "--yes", "--scsi-id", SCSI_ID)

    seconds, at, then = seen
    told = "Another program or host writes to this device: the LUN is in use."
    assert ran.status == 4 and f"{lun} changed at byte {at} since the first read. {told}" in ran.err
    assert 0.5 < seconds <= 1.0 and content(lun) == then


def replaced(path):
    """As `mv` and `rsync` replace a file: the name leads to a new file, and the old file has no name."""
    copy = path.parent / "copy.img"
    shutil.copyfile(str(path), str(copy))
    copy.rename(path)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "change, status, words",
    [(replaced, 4, "is another file now: a program has replaced it"), (Path.unlink, 3, "is not there: ")],
)
def test_an_image_that_loses_its_name_during_the_question_is_not_written(
    image, command, make, monkeypatch, name, change, status, words
):
    """The run wrote to the file without a name, and was told as a success."""
    make(name, image)
    before, opened = content(image), image.parent / "the file that was opened.img"
    os.link(str(image), str(opened))

    class Person(Terminal):
        def readline(self, *size):
            change(image)
            return super().readline(*size)

    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    ran = command(name, image)

    assert (ran.status, f"{image} {words}" in ran.err, "Nothing was written." in ran.err) == (status, True, True)
    assert content(opened) == before


@pytest.mark.parametrize("then", ["another image", "/dev/null", "fifo"])
def test_a_path_that_leads_elsewhere_after_the_first_look_at_an_image_writes_nothing_there(
    image, command, tmp_path, monkeypatch, then
):
    """t0 the command reads the image, t1 the owner of the directory exchanges the link, t2 the open for a write."""
    os.mkfifo(str(tmp_path / "fifo"))
    shutil.copy(str(image), str(tmp_path / "another image"))
    link, real = tmp_path / "link", source.open_device
    before = [content(image), content(tmp_path / "another image")]
    link.symlink_to(image)

    def open_device(path, writable, **more):
        device = real(path, writable, **more)
        link.unlink()
        link.symlink_to(tmp_path / then)
        return device

    monkeypatch.setattr(source, "open_device", open_device)
    ran = command("resignature", link, "--yes")
    problem = "is another file now" if then == "another image" else "is neither a block device nor an image file"
    assert ran.status in (2, 4) and f"{link} {problem}" in ran.err and "Nothing was written." in ran.err
    assert [content(image), content(tmp_path / "another image")] == before


def test_no_next_step_with_a_lun_without_a_scsi_id_is_refused(nameless, command, make):
    """Each step is carried out as it is printed. --yes stands for the person, who has no SCSIid to type."""

    def step_of(ran):
        last = ran.out.splitlines()[-1]
        name, *words = shlex.split(re.findall("(?:^next: |clone, `)relvmoiscsi ([^`]*)", last)[0])
        assert words[-1] == str(nameless) and last.startswith("next: ") == (name != "resignature"), ran.out
        return [name, *words]

    def follow(*words):
        step = step_of(command(*words, nameless))
        ran = command(*step, "--yes")
        assert ran.status == 0, ran.err
        return step[:-1], ran

    make("recover", nameless)
    step, rolled_back = follow("check")
    assert (step, step_of(rolled_back)[:-1]) == (["recover", "--not-in-use"], ["resignature", "--not-in-use"])
    assert follow("check")[0] == ["resignature", "--not-in-use"]
    step, undone = follow("undo", "--dry-run")
    assert (step, step_of(undone)[:-1]) == (["undo", "--not-in-use"], ["resignature", "--not-in-use"])
    make("recover", nameless)
    assert follow("recover", "--dry-run")[0] == ["recover", "--not-in-use"]
    assert step_of(command("recover", nameless))[:-1] == ["resignature", "--not-in-use"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_device_that_cannot_be_written_comes_before_the_next_step_also_without_a_scsi_id(
    nameless, command, make, name
):
    make(name, nameless)
    nameless.chmod(0o444)

    ran = command(name, nameless, "--dry-run")

    assert "a run without --dry-run would be refused:" in ran.err and "is read-only" in ran.err
    step = f"next: relvmoiscsi {name} --not-in-use {nameless}"
    assert ran.out.splitlines()[-2:] == ["First do what the note says.", step]
    nameless.chmod(0o644)
    assert command(name, nameless, "--not-in-use", "--yes").status == 0


def test_check_says_what_the_pool_will_say_to_a_resignature(disk, command, pool):
    step = if_clone(f"relvmoiscsi resignature {disk}")
    assert command("check", disk).out.splitlines()[-1] == step
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi")
    pool.db.create("PBD", SR=sr, host=pool.hosts[1], device_config={"SCSIid": SCSI_ID})

    ran = command("check", disk)

    assert ran.status == 0 and "note: The LUN with the SCSIid" in ran.out and "'in use'" in ran.out
    assert ran.out.splitlines()[-2:] == ["First do what the note says.", step]


@pytest.mark.parametrize("is_resignatured", [False, True])
def test_a_clone_with_the_scsi_id_of_its_original_gets_another_before_all_else(
    disk, original, command, is_resignatured
):
    if is_resignatured:
        command("resignature", disk, "--yes", "--scsi-id", SCSI_ID)

    ran = command("check", disk, "--original", original)

    note, first, last = ran.out.splitlines()[-3:]
    assert note.startswith(f"note: {disk} and {original} have one SCSIid, {SCSI_ID}: ") and "of its own." in note
    step = "Attach the clone: a host may have it beside its original."
    assert (first, last) == (
        "First do what the note says.", step if is_resignatured else f"next: relvmoiscsi resignature {disk}"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["recover", "undo"])
def test_the_next_step_of_a_dry_run_repeats_the_override_and_says_what_comes_first_where_the_run_is_refused(
    disk, command, make, pool, name
):
    make(name, disk)
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi")
    pool.db.create("PBD", SR=sr, host=pool.hosts[1], device_config={"SCSIid": SCSI_ID})

    refused, overridden = command(name, disk, "--dry-run"), command(name, disk, "--dry-run", "--not-in-use")

    assert "note: a run without --dry-run would be refused" in refused.err
    assert refused.out.splitlines()[-2:] == ["First do what the note says.", f"next: relvmoiscsi {name} {disk}"]
    assert overridden.out.splitlines()[-1] == f"next: relvmoiscsi {name} --not-in-use {disk}"
    assert command(name, "--not-in-use", disk, "--yes").status == 0
