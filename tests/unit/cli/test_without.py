# SPDX-License-Identifier: LGPL-2.1-only
"""`--without UUID` leaves a VDI that cannot be read behind: what goes is listed, asked for, and comes back by undo."""

import pytest

from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, raw, vhd
from kit.cuts import BROKEN
from kit.shell import content
from kit.spoiled import Spoiled

UUIDS = BROKEN.truth.uuids
GOES = {UUIDS["broken"], UUIDS["child"]}
WITHOUT = ("--without", UUIDS["broken"])


@pytest.fixture
def image(tmp_path):
    """A LUN with a chain, a VDI that cannot be read, and a VDI that was made of it."""
    path = tmp_path / "clone.img"
    BROKEN.disk.to_file(str(path))
    return path


def test_without_it_the_lun_is_refused_and_the_message_has_the_command(image, unwritten):
    ran = unwritten(5, "resignature", image, "--yes", says="To go on without this VDI: ")

    assert f"`relvmoiscsi resignature {image} --without {UUIDS['broken']}`" in ran.err


def test_prompt_dry_run_and_json_list_what_goes(image, command, type_in, unwritten):
    planned = unwritten(0, "resignature", image, *WITHOUT, "--dry-run")
    facts = unwritten(0, "resignature", image, *WITHOUT, "--dry-run", "--json").json
    type_in("n\n")
    asked = unwritten(4, "resignature", image, *WITHOUT).err

    for said in (planned.out, asked):
        goes = [line.split()[1] for line in said.splitlines() if line.startswith("  goes ")]
        assert set(goes) == GOES
        assert "`relvmoiscsi undo` brings these back until LVM next changes the volume group." in said.splitlines()
        assert "VHD footer copy at byte 0" in said and "was made of a VDI that is left behind" in said
    assert "Destroy 2 VDIs and keep 2 more? [y/N] " in asked
    problems = {row["uuid"]: row["problem"] for row in facts["dropped"]}
    assert set(problems) == GOES and "begins with" in problems[UUIDS["broken"]] and problems[UUIDS["child"]] is None
    assert not GOES.intersection(vdi["old"] for vdi in facts["vdis"])


def test_the_rest_is_resignatured_and_undo_brings_the_broken_vdi_back(image, command):
    done = command("resignature", image, *WITHOUT, "--yes", "--json").json

    shown = command("show", image, "--json").json
    assert shown["state"] == "resignatured" and [vdi["old"] for vdi in done["vdis"]] == [UUIDS["base"], UUIDS["disk"]]
    assert [vdi["uuid"] for vdi in shown["vdis"]] == [vdi["new"] for vdi in done["vdis"]]
    assert not any("no volume" in note for note in shown["notes"])  # no record in MGT is left

    undone = command("undo", image, "--yes", "--json").json
    assert (undone["state"], command("show", image, "--json").json["state"]) == ("damaged", "damaged")
    assert command("resignature", image, *WITHOUT, "--yes").status == 0


def test_the_same_command_again_has_nothing_to_do_and_another_vdi_is_refused(image, command, unwritten):
    command("resignature", image, *WITHOUT, "--yes")

    assert "was already resignatured" in unwritten(0, "resignature", image, *WITHOUT, "--yes").out
    unwritten(
        4, "resignature", image, "--without", UUIDS["disk"], "--yes", says="which was to be left behind. Use --again"
    )
    assert command("resignature", image, "--without", UUIDS["disk"], "--yes", "--again").status == 0
    assert len(command("show", image, "--json").json["vdis"]) == 1


def test_a_uuid_that_no_volume_has_is_refused(image, unwritten):
    gone = "0a0b0c0d-0000-4000-8000-000000000001"

    unwritten(2, "resignature", image, "--without", gone, "--yes", says=f"has no volume of VDI {gone}")
    unwritten(2, "resignature", image, "--without", "disk", "--yes", says="'disk'")


def test_one_vdi_of_a_healthy_disk_drops_a_broken_one_and_says_so(image, command, unwritten):
    """A broken disk counts as a live one: which stays must be named."""
    unwritten(4, "resignature", image, "--vdis", "one", "--yes", says="2 live VDIs, and one is wanted")
    one = ("--vdis", "one", "--vdi", UUIDS["disk"])
    facts = command("resignature", image, *one, "--dry-run", "--json").json
    assert {row["uuid"]: bool(row["problem"]) for row in facts["dropped"] if row["is_vdi"]}[UUIDS["broken"]] is True

    ran = command("resignature", image, *one, "--dry-run")
    assert f"  goes   {UUIDS['broken']}  broken [has a defect]" in ran.out.splitlines()
    assert command("resignature", image, *one, "--yes").status == 0
    assert len(command("show", image, "--json").json["vdis"]) == 1


def test_one_vdi_of_the_broken_disk_itself_is_refused(image, unwritten):
    unwritten(5, "resignature", image, "--vdis", "one", "--vdi", UUIDS["child"], "--yes", says="VHD footer copy")


def test_a_volume_without_a_vhd_is_named_as_what_it_is_and_left_behind(tmp_path, command, unwritten):
    """SM's VDI.create was cut between lvcreate and `vhd-util create`."""
    spoiled = Spoiled(build_sr([raw("data"), vhd("new", bat_entries=SMALL_BAT, in_mgt=False)], area=AREA_DEFAULT))
    spoiled.poke(("new", 0), bytes(8192))
    path = tmp_path / "clone.img"
    spoiled.disk.to_file(str(path))
    before = content(path)

    said = unwritten(5, "resignature", path, "--yes", says="The storage manager had not finished creating the VDI").err
    assert "it holds no VHD, and MGT has no record of its VDI" in said and content(path) == before

    assert command("resignature", path, "--yes", "--without", spoiled.truth.uuids["new"]).status == 0
    assert len(command("show", path, "--json").json["vdis"]) == 1
