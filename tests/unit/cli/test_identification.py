# SPDX-License-Identifier: LGPL-2.1-only
"""What tells a clone from its original, in every prompt and object; and a LUN of which no pool has said anything."""

import os
import re
import time

import pytest

from kit import shell
from kit.live import STATES
from kit.shell import OTHER_SCSI_ID, SCSI_ID, SR, content, patched, tree
from relvmoiscsi.cli import guard, identification, on_lun
from relvmoiscsi.host.disk.scsi_id import Hardware

NO_XAPI = "No xapi on this machine: no pool was asked whether this LUN is in use."
IMAGE = "This is an image file: no pool was asked whether it is in use."
COMMANDS = ("resignature", "recover", "undo")


@pytest.fixture
def disk(lun, monkeypatch):
    """The LUN, of an array that says what it is."""
    monkeypatch.setattr(identification, "hardware_of", lambda _device: Hardware("ACME", "Rocket", "x42"))
    return lun


@pytest.fixture
def nameless(lun, monkeypatch):
    """A block device without a SCSIid, as a loop device is."""
    for name in ("scsi_id_of", "scsi_id_at"):
        monkeypatch.setattr(guard, name, lambda _path: None)
    return lun


def lun_for(name, path, command, monkeypatch):
    """The LUN in a state in which the command has something to do; gives what it holds then."""
    if name == "recover":
        with monkeypatch.context() as patch:
            shell.cut(patch, 4)
            command("resignature", path, "--yes", "--not-in-use")
    elif name == "undo":
        assert command("resignature", path, "--yes", "--not-in-use").status == 0
    return content(path)


# --- the facts, and where they are said


def facts_of(disk, **others):
    pool = {"asked": False, "uuid": None, "name_label": None, "overridden": False, "sentence": NO_XAPI}
    sr = {"uuid": tree().truth.sr_uuid, "name_label": "test SR"}
    known = {"kind": "block device", "scsi_id": SCSI_ID, "vendor": "ACME", "model": "Rocket", "serial": "x42"}
    size = os.stat(str(disk)).st_size
    return {**known, "size_bytes": size, "sr": sr, "vdis": 4, "storage_manager_at_work": False, "pool": pool, **others}


def test_show_the_dry_run_and_a_run_have_the_same_facts(disk, command):
    shown = command("show", disk, "--json").json["lun"]
    planned = command("resignature", disk, "--dry-run", "--json").json["lun"]
    done = command("resignature", disk, "--yes", "--scsi-id", SCSI_ID, "--json").json["lun"]

    assert shown == planned == done == facts_of(disk)


def test_they_are_those_of_the_lun_before_an_undo_and_before_a_recovery(disk, command, monkeypatch):
    command("resignature", disk, "--yes", "--not-in-use", "--sr-uuid", SR)
    undone = command("undo", disk, "--yes", "--scsi-id", SCSI_ID, "--json").json["lun"]
    lun_for("recover", disk, command, monkeypatch)
    recovered = command("recover", disk, "--yes", "--scsi-id", SCSI_ID, "--json").json["lun"]

    assert undone == facts_of(disk, sr={"uuid": SR, "name_label": "test SR"})
    assert recovered == facts_of(disk, sr={"uuid": tree().truth.sr_uuid, "name_label": None}, vdis=None)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_prompt_says_them(disk, command, monkeypatch, type_in, name):
    lun_for(name, disk, command, monkeypatch)
    type_in("n\n")

    lines = command(name, disk).err.splitlines()

    at = lines.index(f"relvmoiscsi: {disk} will be changed:")
    assert lines[at + 1] == f"  device   SCSIid {SCSI_ID}, ACME Rocket, serial x42, 57.5 MiB"
    assert lines[at + 2].startswith("  SR       ")
    assert lines[at + 3] == f"  pool     {NO_XAPI}"


def test_the_dry_run_says_which_sr_and_how_many_vdis(image, command):
    said = command("resignature", "--dry-run", image).out

    assert f'  SR       {tree().truth.sr_uuid} "test SR", 4 VDIs\n' in said


def test_an_image_file_has_neither_scsi_id_nor_hardware(image, command):
    found = command("show", image, "--json").json["lun"]

    assert found["kind"] == "image file"
    assert [found[key] for key in ("scsi_id", "vendor", "model", "serial")] == [None] * 4
    assert (found["pool"]["asked"], found["pool"]["sentence"]) == (False, IMAGE)


def test_the_pool_that_has_answered_is_named(disk, command, pool):
    uuid = pool.db.get("pool", pool.pool, "uuid")

    found = command("resignature", "--yes", disk, "--json").json["lun"]["pool"]

    assert found == {
        "asked": True,
        "uuid": uuid,
        "name_label": "simulated",
        "overridden": False,
        "sentence": f"The pool {uuid} ('simulated') was asked: it does not use this LUN.",
    }


def test_show_says_that_the_pool_uses_it(disk, command, pool):
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi")
    pool.db.create("PBD", SR=sr, host=pool.hosts[1], device_config={"SCSIid": SCSI_ID})

    ran = command("show", disk)

    assert ran.status == 0 and "('simulated') was asked: this LUN is in use.\n" in ran.out


def test_work_of_the_storage_manager_is_said(tmp_path, command):
    path = tmp_path / "live.img"
    STATES["clone: after_first_snap, vhd"]().built.disk.to_file(str(path))

    ran = command("resignature", path, "--dry-run")

    assert (
        "  note     The storage manager was working on the SR when the copy was taken, or is working now.\n" in ran.out
    )
    assert command("show", path, "--json").json["lun"]["storage_manager_at_work"] is True


# --- where no pool was asked: scripts


@pytest.mark.parametrize("name", COMMANDS)
def test_yes_alone_does_not_tell_a_clone_from_its_original(lun, command, monkeypatch, name):
    before = lun_for(name, lun, command, monkeypatch)

    ran = command(name, lun, "--yes", "--json")

    assert ran.status == 4
    assert f"No pool was asked whether {lun} is in use, and --yes alone does not identify the clone." in ran.err
    assert ran.json["error"]["disk_state"] == "Nothing was written."
    assert content(lun) == before


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("words", [("--not-in-use",), ("--scsi-id", SCSI_ID)])
def test_who_says_which_lun_it_is_or_that_nobody_uses_it_goes_on(lun, command, monkeypatch, name, words):
    lun_for(name, lun, command, monkeypatch)

    ran = command(name, lun, "--yes", "--json", *words)

    assert ran.status == 0
    assert ran.json["lun"]["pool"]["overridden"] == (words == ("--not-in-use",))


@pytest.mark.parametrize("words", [(), ("--scsi-id", SCSI_ID)])
@pytest.mark.parametrize("who", ["a script", "a person"])
def test_what_has_no_scsi_id_is_known_by_nothing(nameless, command, type_in, words, who):
    before = content(nameless)
    type_in("y\n")

    ran = command("resignature", nameless, *words, *(["--yes"] if who == "a script" else []))

    assert ran.status == 4
    assert f"No pool was asked whether {nameless} is in use, and the device has no SCSIid." in ran.err
    assert content(nameless) == before
    assert command("resignature", nameless, "--yes", "--not-in-use").status == 0


def test_a_pool_that_cannot_be_asked_for_want_of_a_scsi_id_has_said_nothing(nameless, command, pool):
    ran = command("resignature", nameless, "--yes")

    assert ran.status == 4 and "the device has no SCSIid" in ran.err
    assert command("show", nameless, "--json").json["lun"]["pool"]["asked"] is False


def test_a_pool_that_was_asked_is_enough(lun, command, pool):
    assert command("resignature", lun, "--yes").status == 0


# --- where no pool was asked: people


@pytest.mark.parametrize("name", COMMANDS)
def test_a_person_types_the_scsi_id(lun, command, monkeypatch, type_in, name):
    lun_for(name, lun, command, monkeypatch)
    type_in(SCSI_ID + "\n")

    ran = command(name, lun)

    assert ran.status == 0
    assert "? Type the SCSIid of the clone: " in ran.err and "[y/N]" not in ran.err


@pytest.mark.states("typed")
@pytest.mark.parametrize("typed", ["y\n", OTHER_SCSI_ID + "\n", SCSI_ID[:-1] + "\n", "\n", ""])
@pytest.mark.parametrize("name", COMMANDS)
def test_anything_else_is_no(lun, command, monkeypatch, type_in, name, typed):
    before = lun_for(name, lun, command, monkeypatch)
    type_in(typed)

    ran = command(name, lun)

    assert ran.status == 4 and ran.err.endswith("Not confirmed. Nothing was written.\n")
    assert content(lun) == before


@pytest.mark.parametrize("words", [("--not-in-use",), ("--scsi-id", SCSI_ID)])
def test_who_has_said_it_before_only_says_yes(lun, command, type_in, words):
    type_in("y\n")

    ran = command("resignature", lun, *words)

    assert ran.status == 0 and re.search(r"Give \S+ these new identities\? \[y/N\] ", ran.err)


# --- where no pool was asked: the LUN itself


def lvm_elsewhere(path):
    """What LVM of another host changes first: the header of the metadata area."""
    patched(path, 4096 + 40, b"\xff" * 8)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_volume_group_that_changes_meanwhile_is_in_use(lun, command, monkeypatch, name):
    lun_for(name, lun, command, monkeypatch)
    seen = []

    def sleep(seconds):
        seen.append(seconds)
        lvm_elsewhere(lun)
        seen.append(content(lun))

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(on_lun, "LOOK_SECONDS", 1.0)
    ran = command(name, lun, "--yes", "--scsi-id", SCSI_ID)

    assert ran.status == 4
    assert (
        f"{lun} changed at byte 4136 since the first read. "
        "Another program or host writes to this device: the LUN is in use." in ran.err
    )
    assert 0.5 < seen[0] <= 1.0
    assert content(lun) == seen[1]


def test_an_mgt_volume_that_changes_meanwhile_is_in_use(lun, command, monkeypatch):
    """A new name of the SR changes no sector with an identity, and nothing of LVM."""
    seen = []

    def sleep(_seconds):
        with open(str(lun), "rb") as file:
            at = file.read().index(b"<name_label>test SR<") + 12
        patched(lun, at, b"best")
        seen.extend([at, content(lun)])

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(on_lun, "LOOK_SECONDS", 1.0)
    ran = command("resignature", lun, "--yes", "--scsi-id", SCSI_ID)

    assert ran.status == 4
    assert f"{lun} changed at byte {seen[0]} since the first read." in ran.err
    assert content(lun) == seen[1]


def test_where_a_pool_was_asked_nobody_waits(lun, command, monkeypatch, pool):
    monkeypatch.setattr(on_lun, "LOOK_SECONDS", 1000.0)

    assert command("resignature", lun, "--yes").status == 0
