# SPDX-License-Identifier: LGPL-2.1-only
"""`--vdis one` destroys VDIs: what stays and what goes is said by label and UUID, and a person says yes to that."""

import re

import pytest

from kit import golden
from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, raw, vhd
from kit.live import STATES
from kit.shell import SCSI_ID, content

KEPT = "7d2d9e72-1839-4ea5-85bd-6cecf8841738"
ONE = ("--vdis", "one", "--vdi", KEPT)
IRREVERSIBLE = "Irreversible once committed."


@pytest.fixture
def image(tmp_path):
    """A LUN with four live disks, two of them with snapshots: 8 VDIs in 10 volumes."""
    path = tmp_path / "clone.img"
    golden.load("chain").disk.to_file(str(path))
    return path


def listed(said, what):
    return re.findall(f"^  {what} +(.*)$", said, re.MULTILINE)


def of(path, *volumes):
    build_sr(volumes, area=AREA_DEFAULT, free_extents=40).disk.to_file(str(path))
    return path


def test_the_prompt_lists_what_stays_and_what_goes_and_asks_for_that(image, command, type_in):
    vdis = {vdi["vdi"]: vdi for vdi in command("show", image, "--json").json["vdis"]}
    type_in("n\n")
    before = content(image)

    ran = command("resignature", image, *ONE)

    goes = listed(ran.err, "deletes")
    assert listed(ran.err, "retains") == [f"{KEPT}  {vdis[KEPT]['vdi_name']!r}"]
    assert {line.split()[0] for line in goes if "[no VDI]" not in line} == set(vdis) - {KEPT}
    for line in goes:
        uuid, _, text = line.partition("  ")
        if uuid in vdis:
            assert text.startswith(repr(vdis[uuid]["vdi_name"]))
            assert ("[hidden]" in text, "[snapshot]" in text) == (vdis[uuid]["hidden"], vdis[uuid]["is_a_snapshot"])
    question = f"Destroy 7 VDIs and keep '{vdis[KEPT]['vdi_name']}' ({KEPT})? [y/N] "
    assert ran.err.splitlines()[-2:] == [IRREVERSIBLE, question + "relvmoiscsi: Not confirmed. Nothing was written."]
    assert ran.status == 4 and content(image) == before


@pytest.mark.parametrize("words", [ONE, ("--without", KEPT)])
def test_what_a_script_loses_is_listed_below_a_sentence_of_its_own(image, command, words):
    ran = command("resignature", image, *words, "--yes")

    lines = ran.err.splitlines()
    head = lines.index(f"relvmoiscsi: {image} will be changed:")
    assert ran.status == 0 and re.match("  (retains|deletes)  ", lines[head + 1])
    assert not re.search("^relvmoiscsi:  ", ran.err, re.MULTILINE)


def test_a_refusal_names_the_options_of_the_command(image, unwritten):
    words = "Name it (`--vdi`), or ask for all VDIs (`--vdis all`)."
    assert unwritten(4, "resignature", image, "--vdis", "one", "--json", says=words).json["state"] == "clean"


@pytest.mark.parametrize("kind", ["image", "LUN"])
def test_yes_to_that_is_enough_and_where_no_pool_was_asked_the_lun_is_named_as_well(request, command, type_in, kind):
    path = request.getfixturevalue({"image": "image", "LUN": "lun"}[kind])
    type_in("y\n" + (SCSI_ID + "\n" if kind == "LUN" else ""))
    ran = command("resignature", path, *ONE)

    assert ran.status == 0 and ran.err.count("[y/N]") == 1 and "Destroy 7 VDIs" in ran.err
    assert ("Type the SCSIid of the clone: " in ran.err) == (kind == "LUN")
    assert [vdi["vdi_name"] for vdi in command("show", path, "--json").json["vdis"]] == ["disk one é <x>"]


#: LUNs of which SM has left work, and which can become one VDI
LEFT = [name for name in STATES if name.startswith(("clone: after_first_snap", "leaf: one_renamed"))][:3]


@pytest.mark.parametrize("name", ["golden", *LEFT])
def test_prompt_dry_run_and_json_count_alike(tmp_path, command, type_in, name):
    path = tmp_path / "lun.img"
    disk = golden.load("chain").disk if name == "golden" else STATES[name]().built.disk
    disk.to_file(str(path))
    shown = command("show", path, "--json").json["vdis"]
    live = [vdi["vdi"] for vdi in shown if not vdi["hidden"] and not vdi["is_a_snapshot"]]
    one = ONE if name == "golden" else ("--vdis", "one", "--vdi", live[0])

    planned = command("resignature", path, *one, "--dry-run")
    facts = command("resignature", path, *one, "--dry-run", "--json").json
    type_in("n\n")
    asked = command("resignature", path, *one).err

    dropped = [volume for volume in facts["dropped"] if volume["is_vdi"]]
    assert len(dropped) == len(shown) - 1 and facts["lun"]["vdi_count"] == len(shown)
    assert listed(planned.out, "deletes") == listed(asked, "deletes")
    assert len(listed(asked, "deletes")) == len(facts["dropped"]) == facts["cost"]["dropped_count"]
    assert f"Destroy {len(dropped)} VDI" in asked
    for said in (planned.out, asked):
        assert f"; {len(facts['dropped'])} volume" in said
        assert IRREVERSIBLE in said.splitlines()


def test_one_image_that_only_loses_its_neighbours_can_be_undone(tmp_path, command):
    path = of(tmp_path / "clone.img", raw("disk"), vhd("then", snapshot_of="disk", bat_entries=SMALL_BAT))

    said = command("resignature", path, "--vdis", "one", "--dry-run").out

    assert IRREVERSIBLE not in said
    assert "`relvmoiscsi undo` brings these back until LVM next changes the volume group." in said.splitlines()
    assert command("resignature", path, "--vdis", "one", "--yes").status == 0
    assert command("undo", path, "--yes").status == 0
    assert len(command("show", path, "--json").json["vdis"]) == 2


def test_undo_of_one_vdi_that_was_made_of_several_images_is_refused_before_anybody_is_asked(
    image, command, unwritten, type_in
):
    """A yes to that question would have done nothing."""
    command("resignature", image, *ONE, "--yes")
    type_in("y\n")
    refused = f"{image} was reduced to one VDI, which cannot be undone after the commit: "

    for words in ([], ["--dry-run"]):
        ran = unwritten(4, "undo", image, *words, says=refused)
        assert "[y/N]" not in ran.err and "Nothing was written." in ran.err


def test_the_map_of_one_vdi_lists_what_exists_and_its_json_every_uuid(image, command):
    gone = {vdi["vdi"] for vdi in command("show", image, "--json").json["vdis"]} - {KEPT}
    command("resignature", image, *ONE, "--yes")

    said, facts = command("map", "--device", image).out, command("map", "--device", image, "--json").json

    assert KEPT in said and not any(uuid in said for uuid in gone) and gone <= set(facts["other_uuids"])
    assert said.splitlines()[-1] == "The run has made one VDI: --json also has 7 UUIDs of no VDI."


UNKNOWN = "7ee28c74-464e-4cca-9e34-67690e352b90"


def test_an_unknown_vdi_of_a_lun_that_was_not_made_one_vdi_is_3(tmp_path, command, unwritten):
    """The LUN has one VDI, and had no other before."""
    path = of(tmp_path / "of one.img", raw("data"))
    command("resignature", path, "--yes")

    ran = unwritten(3, "resignature", path, "--yes", "--vdis", "one", "--vdi", UNKNOWN, says=f"has no VDI {UNKNOWN}")

    assert command("show", path, "--json").json["vdis"][0]["vdi"] in ran.err and "was made one VDI" not in ran.err


def test_the_command_that_makes_a_finished_lun_one_vdi_has_all_words(image, command, unwritten):
    """Of several live VDIs, the caller names one first: the command without that name would be refused."""
    command("resignature", image, "--yes")
    one = ("resignature", image, "--yes", "--vdis", "one")

    says = f"{image} has 4 live VDIs, and one is wanted: "
    new = unwritten(4, *one, says=says).err.partition(says)[2][: len(KEPT)]
    for vdi in (KEPT, new):
        advised = f"resignature --again --vdis one --vdi {vdi} {image}"
        unwritten(4, *one, "--vdi", vdi, says=f"Resignature it again (`relvmoiscsi {advised}`)")
    assert command(*advised.split(), "--yes").status == 0
    assert len(command("show", image, "--json").json["vdis"]) == 1
