# SPDX-License-Identifier: LGPL-2.1-only
"""`check`: every structure of one LUN; with --original, that two LUNs share no identity and differ in nothing else."""

import io
import json
import os
import re
import sys

import pytest

from kit.builder import AREA_DEFAULT, build_sr, journal, raw, vhd
from kit.shell import SR, content, flipped, patched, tree
from relvmoiscsi import engine
from relvmoiscsi.host.disk.block_device import open_device


def guest_byte(key):
    """Where on the device a byte of the guest lies, in the middle of its volume's data."""
    volume = tree().truth.volume(key)
    guest = volume.guest[len(volume.guest) // 2]
    return tree().truth.device_ranges(key, guest.offset + guest.length // 2, 1)[0].offset


# --- one LUN


def test_a_sound_lun_is_0_and_says_its_state(image, command):
    ran, facts = command("check", image), command("check", image, "--json")

    assert ran.status == facts.status == 0
    assert ran.out == f"{image}: every structure checks; state clean.\n"
    shown = command("show", image, "--json").json
    assert {**facts.json, "one_vdi": shown["one_vdi"], "saved_vms": None, "lun": shown["lun"]} == shown


def test_a_damaged_lun_is_5_and_every_defect_is_told(image, command):
    places = {
        "VHD header at byte 512 of VHD-": tree().truth.device_ranges("disk", 512 + 88, 1)[0].offset,
        "VHD footer copy at byte 0 of VHD-": tree().truth.device_ranges("snapshot", 100, 1)[0].offset,
        "MGT header at byte 0 of MGT": tree().truth.device_ranges("MGT", 0, 1)[0].offset,
    }
    for at in places.values():
        flipped(image, at)
    before = content(image)

    ran, facts = command("check", image), command("check", image, "--json")

    lines = ran.out.splitlines()
    assert ran.status == facts.status == 5
    assert lines[0] == f"{image}: damaged, 3 defects:"
    assert sorted(line[2:20] for line in lines[1:4]) == sorted(words[:18] for words in places)
    assert [defect["message"] for defect in facts.json["defects"]] == [line[2:] for line in lines[1:4]]
    assert {defect["vdi"] for defect in facts.json["defects"]} == {
        None,
        tree().truth.uuids["disk"],
        tree().truth.uuids["snapshot"],
    }
    assert facts.json["error"]["message"] == facts.json["defects"][0]["message"] == facts.json["problem"]
    assert facts.json["error"]["message"] in facts.err
    assert content(image) == before


def test_an_unfinished_lun_is_8_and_names_the_command_that_finishes_it(unfinished, command):
    ran = command("check", unfinished, "--json")

    assert ran.status == 8
    assert ran.json["state"] == "unfinished"
    assert f"`relvmoiscsi recover {unfinished}`" in ran.err


def test_what_check_only_warns_of_is_told(tmp_path, command):
    build_sr([raw("data"), journal("zero", "data", "4194304")], area=AREA_DEFAULT).disk.to_file(str(tmp_path / "lun"))

    ran, facts = command("check", tmp_path / "lun"), command("check", tmp_path / "lun", "--json").json

    assert ran.status == 0
    assert ["note: " + sentence for sentence in facts["notes"]] == ran.out.splitlines()[1:]
    assert "Journal zero_" in facts["notes"][0]


# --- two


def test_a_copy_shares_every_identity_with_its_original(image, original, command):
    ran = command("check", image, "--original", original)
    facts = command("check", image, "--original", original, "--json")

    truth = tree().truth
    assert ran.status == facts.status == 4
    assert all(line.endswith(".") for line in ran.out.splitlines())
    lvm_ids = [truth.pv_id, truth.vg_id] + [volume.lv_id for volume in truth.volumes]
    for identity in lvm_ids + [truth.uuids[key] for key in ("sr", "base", "disk", "snapshot", "data")]:
        assert f"{identity} is on both: " in ran.out
    assert facts.json["shares_nothing"] is False
    assert facts.json["problems"] == ran.out.splitlines()
    assert facts.json["bytes_compared"] == 0


def test_after_a_resignature_nothing_is_shared_and_all_data_is_the_same(finished, original, command):
    ran = command("check", finished, "--original", original)
    facts = command("check", finished, "--original", original, "--json").json

    assert ran.status == 0
    sentence = r"{} shares no identity with {}, and nothing else differs \(([\d.]+ [KM]iB) of data compared\)\.\n"
    assert re.fullmatch(sentence.format(finished, original), ran.out)
    assert (facts["shares_nothing"], facts["problems"]) == (True, [])
    assert facts["bytes_compared"] > 0
    assert (facts["state"], facts["device"], facts["original"]) == ("resignatured", str(finished), str(original))


def test_a_lun_that_was_resignatured_twice_is_still_the_originals_clone(finished, original, command):
    assert command("resignature", finished, "--yes", "--again").status == 0

    assert command("check", finished, "--original", original).status == 0


@pytest.mark.parametrize(
    ("side", "key"), [("clone", "base"), ("original", "disk"), ("clone", "snapshot"), ("original", "data")]
)
def test_one_flipped_byte_of_a_guest_is_found_and_named(finished, original, command, key, side):
    at = guest_byte(key)
    flipped(finished if side == "clone" else original, at)

    ran = command("check", finished, "--original", original)

    assert ran.status == 4
    assert ran.out == f"{finished} differs from what is expected at byte {at}.\n"


def test_a_guest_byte_on_what_is_a_hole_in_the_original_is_found(finished, original, command):
    data = tree().truth.volume("data")
    at = tree().truth.device_ranges("data", data.size * 3 // 4, 1)[0].offset
    assert all(not (part.offset <= data.size * 3 // 4 < part.end) for part in data.guest)
    flipped(finished, at)

    assert f"at byte {at}." in command("check", finished, "--original", original).out


def test_identities_only_reads_no_guest_data(finished, original, command):
    flipped(finished, guest_byte("data"))

    ran = command("check", finished, "--original", original, "--identities-only")
    facts = command("check", finished, "--original", original, "--identities-only", "--json").json

    assert ran.status == 0
    assert ran.out.endswith("nothing else differs (none of data compared).\n")
    assert (facts["shares_nothing"], facts["bytes_compared"]) == (True, 0)


def test_two_clones_with_the_same_new_ids_are_found(finished, original, command):
    command("resignature", original, "--yes", "--sr-uuid", SR)

    ran = command("check", finished, "--original", original)

    assert ran.status == 4
    assert f"{SR} is on both: " in ran.out


def other_sr(path, of_the_same_shape):
    """An SR that has nothing to do with that of `image`; gives its UUID."""
    built = tree("other") if of_the_same_shape else build_sr([raw("one"), raw("two")], area=AREA_DEFAULT, seed="other")
    built.disk.to_file(str(path))
    return built.truth.uuids["sr"]


@pytest.mark.parametrize("of_the_same_shape", [False, True])
@pytest.mark.parametrize("is_resignatured", [False, True])
def test_a_wrong_original_is_called_another_sr_with_the_names_of_both(
    image, tmp_path, command, of_the_same_shape, is_resignatured
):
    uuid, made_of, more = tree().truth.uuids["sr"], "", ""
    if is_resignatured:
        command("resignature", image, "--yes", "--sr-uuid", SR)
        uuid, made_of = SR, ", which was made of SR " + uuid
        more = " Only a LUN that was resignatured more than once, or with --map, may still be its clone."
    other = tmp_path / "other"
    other_uuid = other_sr(other, of_the_same_shape)

    ran = command("check", image, "--original", other)
    facts = command("check", image, "--original", other, "--json").json

    assert ran.status == 4
    assert ran.out == (
        f'The original is another SR: {image} holds SR {uuid} "test SR"{made_of}, and {other} holds SR {other_uuid} '
        f'"test SR". Give the LUN that {image} was cloned from.{more}\n'
    )
    assert facts["problems"] == ran.out.splitlines() and facts["bytes_compared"] == 0


def test_a_clone_with_one_vdi_cannot_be_compared_and_is_no_other_sr(tmp_path, command):
    volumes = [vhd("base", hidden=True), vhd("disk", parent="base")]
    built = build_sr(volumes, area=AREA_DEFAULT, free_extents=40)
    clone, original = tmp_path / "clone", tmp_path / "original"
    for path in (clone, original):
        built.disk.to_file(str(path))
    assert command("resignature", clone, "--vdis", "one", "--yes").status == 0

    ran = command("check", clone, "--original", original)

    assert ran.status == 4
    assert ran.out == (
        "Their volumes do not lie at the same places. A clone that was made one VDI cannot be compared.\n"
    )


def test_chosen_ids_are_compared_although_nothing_tells_what_they_were_made_from(image, original, tmp_path, command):
    found = command("resignature", image, "--dry-run", "--json").json
    found["sr"]["new"] = SR  # so no other id follows from this one
    (tmp_path / "map.json").write_text(json.dumps(found))
    command("resignature", image, "--yes", "--map", tmp_path / "map.json")
    with open_device(str(image), writable=False) as device:
        journal_at = engine.inspect(device).commit_record.journal_offset
    patched(image, journal_at, bytes(512))

    same = command("check", image, "--original", original)
    flipped(image, guest_byte("data"))
    other = command("check", image, "--original", original).out.splitlines()

    assert same.status == 0
    assert other[0].startswith("The original is another SR: ")
    assert other[0].endswith(" Only a LUN that was resignatured more than once, or with --map, may still be its clone.")
    assert other[1:] == ["{} differs from what is expected at byte {}.".format(image, guest_byte("data"))]


@pytest.mark.parametrize("times", [1, 2])
def test_the_right_original_is_no_other_sr_whatever_has_changed(finished, original, command, times):
    for _ in range(times - 1):
        command("resignature", finished, "--yes", "--again")
    flipped(finished, guest_byte("data"))

    ran = command("check", finished, "--original", original)

    assert ran.out == "{} differs from what is expected at byte {}.\n".format(finished, guest_byte("data"))


# --- how long it takes


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_it_shows_how_far_it_is(finished, original, command, monkeypatch):
    silent = command("check", finished, "--original", original)
    monkeypatch.setattr(sys, "stderr", Terminal())

    command("check", finished, "--original", original)

    drawn = sys.stderr.getvalue()
    compared = re.search(r"\((.*) of data compared\)", silent.out).group(1)
    assert silent.err == ""
    assert drawn.endswith(f"#] {compared} of {compared}\n")
    assert drawn.startswith("\r  [")


# --- requests that cannot be meant, and originals that cannot be read


@pytest.mark.parametrize("how", ["same path", "symbolic link", "hard link"])
def test_a_device_is_not_its_own_original(image, command, how):
    other = image
    if how != "same path":
        other = image.parent / "other"
        (os.symlink if how == "symbolic link" else os.link)(str(image), str(other))

    ran = command("check", image, "--original", other, "--json")

    assert ran.status == 2
    assert "are the same device" in ran.err


def test_identities_only_needs_an_original(image, command):
    assert command("check", image, "--identities-only", "--json").status == 2


@pytest.mark.parametrize("kind, status", [("missing", 3), ("empty", 3), ("noise", 4), ("damaged", 5)])
def test_an_original_that_holds_no_sr_is_named(finished, original, command, kind, status):
    if kind == "missing":
        original.unlink()
    elif kind == "damaged":
        flipped(original, 512 + 40)
    else:
        original.write_bytes((b"\0" if kind == "empty" else b"x") * (32 << 20))

    ran = command("check", finished, "--original", original, "--json")

    assert ran.status == status
    assert str(original) in ran.json["error"]["message"]
