# SPDX-License-Identifier: LGPL-2.1-only
"""`map`: what old ids became, from the UUID of the new SR alone. docs/scripting.rst promises it, with an example."""

import json

import pytest

from kit.shell import SR, TOP, tree
from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats.mapfile import derived_ids, read_map

#: The example of the public contract. Whoever has to change it breaks a promise.
NEW_SR = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
VECTOR = {
    "7d2d9e72-1839-4ea5-85bd-6cecf8841738": "113831bb-0424-5e85-9378-ab014150bb4e",
    "GO7RkX-O5sD-dPC5-au0w-j4yd-a3s7-QcSEnT": "SU0koq-WuMU-nlBm-Kphx-e8lD-0VNs-S94fWV",
}
PLAIN = "GO7RkXO5sDdPC5au0wj4yda3s7QcSEnT"


def test_the_example_of_the_contract(command):
    ran = command("map", "--sr", NEW_SR, *VECTOR)

    assert derived_ids(NEW_SR, VECTOR) == VECTOR
    assert ran.status == 0
    assert ran.out == "".join(f"{old} -> {new}\n" for old, new in VECTOR.items())


def test_the_page_has_that_example():
    text = (TOP / "docs/scripting.rst").read_text(encoding="utf-8")

    assert [each for each in (NEW_SR, *VECTOR, *VECTOR.values()) if each not in text] == []


def test_json_is_a_map_that_resignature_takes_as_it_is_and_is_what_it_does_anyway(image, original, command, tmp_path):
    old = [tree().truth.uuids["disk"], tree().truth.vg_id, tree().truth.pv_id]
    ran = command("map", "--sr", SR, *old, "--json")
    (tmp_path / "map.json").write_text(ran.out)

    mapped = command("resignature", image, "--yes", "--json", "--sr-uuid", SR, "--map", tmp_path / "map.json").json
    free = command("resignature", original, "--yes", "--json", "--sr-uuid", SR).json

    assert (ran.status, list(ran.json), ran.json["new_sr"]) == (0, ["new_sr", "uuids", "lvm_ids"], SR)
    assert list(ran.json["uuids"]) + list(ran.json["lvm_ids"]) == old
    assert ran.json["lvm_ids"][old[1]] == free["new_vg_id"]
    assert all(mapped[key] == free[key] for key in ("new_sr", "vdi_pairs", "new_vg_id", "new_pv_id", "lv_pairs"))


@pytest.mark.parametrize("old", ["", NEW_SR + "0", SR.replace("-", "") + "0", "-".join(PLAIN), SR + "\n", "é" * 32])
def test_what_is_no_id_is_2(command, old):
    ran = command("map", "--json", "--sr", NEW_SR, SR, old)
    assert ran.status == 2 and set(ran.json) == {"error"}
    assert "is neither a UUID (36 characters) nor an LVM id" in ran.err


@pytest.mark.parametrize("key", ["vdis", "lvs"])
def test_a_map_with_the_keys_of_an_earlier_release_is_not_taken_as_empty(key):
    with pytest.raises(UsageError, match=f"^map.json has the keys {key}: .* A map has vdi_pairs and lv_pairs"):
        read_map({"new_sr": SR, key: [{"old_uuid": SR, "new_uuid": SR}]}, "map.json")


@pytest.mark.parametrize(
    "facts, says",
    [
        ({}, "chooses no id"),
        ({"uuids": {}, "vdi_pairs": [], "lvm_ids": {}}, "chooses no id"),
        ({"json_version": 1, "command": "doctor", "state": "clean"}, "chooses no id"),
        ({"uuid": {SR: NEW_SR}}, "has a key that no map has: 'uuid'"),
        ({"uuids": {SR: NEW_SR}, "lvm_id": {}}, "has a key that no map has: 'lvm_id'"),
        ({"sr": SR}, "has a key that no map has: 'sr'"),
        ({"sr_uuid": SR, "new_sr": SR}, "has a key that no map has: 'sr_uuid'"),
        ({SR: NEW_SR, "x" * 300: NEW_SR}, f"has a key that no map has: '{SR}'"),
    ],
)
def test_a_map_that_chooses_nothing_is_2_and_names_the_keys_of_a_map(unwritten, image, tmp_path, facts, says):
    """Taken as empty, it would give the LUN ids that nobody has chosen. The message has no value of the file."""
    (tmp_path / "map.json").write_text(json.dumps(facts))

    ran = unwritten(2, "resignature", image, "--yes", "--map", tmp_path / "map.json", says=f"map.json {says}. The keys")

    assert "old_sr, new_sr, uuids, lvm_ids, vdi_pairs" in ran.err and "lvm_id," not in ran.err and NEW_SR not in ran.err


def test_a_key_of_any_length_is_cut_in_the_message():
    with pytest.raises(UsageError) as caught:
        read_map({"x" * 5000: SR}, "map.json")
    assert "'xxx" in str(caught.value) and len(str(caught.value)) < 1000


def test_a_map_of_a_new_sr_alone_chooses_it(command, image, tmp_path):
    (tmp_path / "map.json").write_text(json.dumps({"new_sr": SR}))
    assert command("resignature", image, "--yes", "--json", "--map", tmp_path / "map.json").json["new_sr"] == SR


@pytest.mark.parametrize(
    "facts, missing",
    [
        ({"old_sr": SR, "uuids": {}}, "new_sr"),
        ({"vdi_pairs": [{"old_vdi": SR}]}, "new_vdi"),
        ({"vdi_pairs": [{"new_vdi": SR}]}, "old_vdi"),
        ({"lv_pairs": [{"old_lv_id": "a" * 32}]}, "new_lv_id"),
        ({"old_vg_id": "a" * 32}, "new_vg_id"),
        ({"new_pv_id": "a" * 32, "uuids": {}}, "old_pv_id"),
    ],
)
def test_a_map_in_which_an_id_is_alone_is_2_and_names_the_missing_key(unwritten, image, tmp_path, facts, missing):
    file = tmp_path / "map.json"
    file.write_text(json.dumps(facts))

    says = f"map.json has an id without '{missing}': a map has each old id beside its new id."
    unwritten(2, "resignature", image, "--map", file, "--yes", says=says)


def test_a_map_that_cannot_be_given_says_the_device_and_its_state_as_other_commands_on_a_lun_do(
    command, image, tmp_path
):
    ran = command("map", "--device", image, "--json")
    assert (ran.status, ran.json["state"], ran.json["device"]) == (4, "clean", str(image))
    gone = tmp_path / "gone"
    ran = command("map", "--device", gone, "--json")
    assert (ran.status, ran.json["state"], ran.json["device"]) == (3, None, str(gone))
    assert {*ran.json} == {*command("check", gone, "--json").json}
