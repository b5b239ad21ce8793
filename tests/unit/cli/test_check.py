# SPDX-License-Identifier: LGPL-2.1-only
"""`check`: every structure of one LUN; with --original, that two LUNs share no identity and differ in nothing else."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from contextlib import ExitStack

import pytest

from kit import refusals
from kit.build_volumes import Record
from kit.builder import AREA_10M, AREA_DEFAULT, build_sr, journal, raw, vhd
from kit.shell import CHECK_ORIGINAL, SR, TOP, flipped, if_clone, patched, tree
from relvmoiscsi import engine
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.host.disk.block_device import open_device

UUIDS = tree().truth.uuids
FIRST = "First do what the note says."
OTHER_ORIGINAL = "Repeat the command with the device of the original: --original names another device now."
MAY_STILL = " Only a LUN that was resignatured more than once may still be its clone."


def place(key, at):
    """Where on the device this byte of a volume lies."""
    return tree().truth.device_ranges(key, at, 1)[0].offset


def guest_byte(key):
    """Where on the device a byte of the guest lies, in the middle of its volume's data."""
    volume = tree().truth.volume(key)
    guest = volume.guest[len(volume.guest) // 2]
    return place(key, guest.offset + guest.length // 2)


# --- one LUN


def test_a_sound_lun_is_0_and_says_its_state(image, command):
    ran, facts = command("check", image), command("check", image, "--json")
    assert (ran.status, facts.status, ran.out) == (
        0, 0, f"{image}: every structure checks; state clean.\n"
        f"{if_clone(f'relvmoiscsi resignature {image}')}\n",
    )  # fmt: skip
    shown = command("show", image, "--json").json
    assert {**facts.json, "one_vdi": shown["one_vdi"], "saved_vms": None, "lun": shown["lun"]} == shown


def test_pasted_next_steps_never_resignature_the_original(image, original, command):
    """From a damaged clone, they led to the original, and from there to its resignature."""
    patched(image, 512, b"XXXXXXXX")
    words, steps = ["check", str(image), "--original", str(original)], []
    while words:
        last = command(*words).out.splitlines()[-1]
        words = shlex.split(last)[2:] if last.startswith("next: ") else []
        steps.append(words)
    assert steps == [["check", str(original)], []]
    assert last == if_clone(f"relvmoiscsi resignature {original}")


def test_a_command_that_the_lun_holds_is_no_next_step(tmp_path, command):
    forged = "`relvmoiscsi undo /dev/sdb`"
    path = str(tmp_path / "forged.img")
    refusals.text(refusals.STATUS, f'["{forged}", "RESIZEABLE"')().disk.to_file(path)

    ran, facts = command("check", path), command("check", path, "--json")

    assert forged in ran.out and ran.out.splitlines()[-1] == CHECK_ORIGINAL
    assert forged not in json.dumps([each["advice"] for each in facts.json["defects"]])


def test_a_damaged_lun_is_5_and_every_defect_is_told(image, unwritten):
    places = {
        "VHD header at byte 512 of VHD-": place("disk", 512 + 88),
        "VHD footer copy at byte 0 of VHD-": place("snapshot", 100),
        "MGT header at byte 0 of MGT": place("MGT", 0),
    }
    for at in places.values():
        flipped(image, at)

    ran, facts = unwritten(5, "check", image), unwritten(5, "check", image, "--json")
    lines, found = ran.out.splitlines(), facts.json
    assert lines[0] == f"{image}: damaged, 3 defects:" and lines[-1] == CHECK_ORIGINAL
    assert sorted(line[2:20] for line in lines[1:4]) == sorted(words[:18] for words in places)
    told = [" ".join(filter(None, [defect["message"], defect["advice"]])) for defect in found["defects"]]
    assert told == [line[2:] for line in lines[1:4]]
    assert {defect["vdi"] for defect in found["defects"]} == {None, UUIDS["disk"], UUIDS["snapshot"]}
    assert found["error"]["message"] == found["defects"][0]["message"] and found["problem"] == told[0]
    assert found["error"]["message"] in facts.err


def garbage_label(path):
    patched(path, 512, b"\xd6" * 512)


def no_label(path):
    """As `pvremove` and `sgdisk --zap-all` leave it."""
    patched(path, 0, bytes(2048))


def other_disk(path):
    """A disk that held an SR once, and has partitions now."""
    garbage_label(path)
    patched(path, 510 - 64 + 4, b"\x83")
    patched(path, 510, b"\x55\xaa")


def no_text(path):
    garbage_label(path)
    flipped(path, 4096 + 40)


@pytest.mark.parametrize(
    "spoil, status, state",
    [(garbage_label, 5, "damaged"), (no_label, 4, "foreign"), (other_disk, 4, "foreign"), (no_text, 4, "foreign")],
)
def test_bytes_in_the_place_of_the_label_of_an_intact_sr_are_a_damaged_copy(image, unwritten, spoil, status, state):
    spoil(image)

    found = unwritten(status, "check", image)

    assert f"{image}: {'state ' if status == 4 else ''}{state}" in found.out.splitlines()[0]
    step = found.out.splitlines()[-1]
    if status == 5:
        assert f"VG_XenStorage-{UUIDS['sr']} lies behind them" in found.out
        assert step == CHECK_ORIGINAL
    else:
        step = (
            "If this is the clone of an SR, take the copy again from the array. If not, name the device of the clone."
        )
        if spoil is other_disk:
            step = "If a partition holds the clone of an SR, give the device of that partition."
        assert " ".join(found.out.split()).endswith(step)


def test_what_helps_against_damage_that_no_command_mends_is_said_once(image, command):
    patched(image, 512, b"XXXXXXXX")

    for words in (["check"], ["show"], ["resignature", "--yes"], ["recover", "--yes"]):
        ran = command(words[0], image, *words[1:])
        said = " ".join((ran.out + ran.err).split())
        assert said.count("No command mends that on the clone.") == said.count("take") == 1 and CHECK_ORIGINAL in said


@pytest.mark.parametrize("words", [("show",), ("check",), ("resignature", "--yes"), ("recover", "--yes")])
@pytest.mark.parametrize("spoiled, command_word", [("MGT", "lvremove"), ("disk", "--without")])
def test_a_look_at_the_original_stands_before_a_command_that_loses_data(image, command, words, spoiled, command_word):
    flipped(image, place(spoiled, 0 if spoiled == "MGT" else 512 + 88))

    ran = command(words[0], image, *words[1:])

    told = " ".join((ran.out + ran.err).split())
    is_last = words[0] in ("check", "recover")  # as the next step, too
    assert told.count(CHECK_ORIGINAL) == 1 + is_last and told.index(CHECK_ORIGINAL) < told.index(command_word)
    assert "MGT" not in spoiled or "removes MGT and the labels of the SR and of all its VDIs" in told
    assert words[0] != "check" or ran.out.splitlines()[-1] == CHECK_ORIGINAL


def test_an_unfinished_lun_is_8_and_names_the_command_that_finishes_it(unfinished, unwritten):
    ran = unwritten(8, "check", unfinished, "--json", says=f"`relvmoiscsi recover {unfinished}`")
    assert ran.json["state"] == "unfinished"


def test_what_check_only_warns_of_is_told(tmp_path, command):
    build_sr([raw("data"), journal("zero", "data", "4194304")], area=AREA_DEFAULT).disk.to_file(str(tmp_path / "lun"))
    ran, facts = command("check", tmp_path / "lun"), command("check", tmp_path / "lun", "--json").json

    assert ran.status == 0 and "Journal zero_" in facts["notes"][0]
    assert ["note: " + sentence for sentence in facts["notes"]] == ran.out.splitlines()[1:-1]


@pytest.mark.parametrize("bug", ["unread", "blanked", "cut"])
def test_an_mgt_record_that_does_not_read_is_5_and_the_verdict_agrees_with_the_note(tmp_path, unwritten, bug):
    """One such record makes SM read nothing of MGT. SM itself cuts a long label inside an entity."""
    labelled = [raw("data", label="é漢字 0"), raw("more", label="x" * 219 + "&" * 50 if bug == "cut" else "é漢字 1")]
    built = build_sr(labelled, area=AREA_DEFAULT, mgt_bug="damaged" if bug == "blanked" else "")
    path = tmp_path / "lun"
    if bug == "unread":
        built.disk.poke(built.truth.device_ranges("MGT", 2048, 1)[0].offset, b"\xd6" * 1024)
    built.disk.to_file(str(path))

    ran, facts = unwritten(5, "check", path), unwritten(5, "check", path, "--json")

    first, kept, *notes, last = ran.out.splitlines()
    assert first == f"{path}: the storage manager cannot read 1 MGT record; every other structure checks; state clean."
    assert kept.startswith("A resignature keeps such a record, and changes nothing but its UUIDs. If the original has")
    assert notes == ["note: " + sentence for sentence in facts.json["notes"]]
    whose = " of VDI " + built.truth.uuids["more"] if bug != "unread" else ""
    assert f"note: The storage manager cannot read the MGT record{whose} at byte" in notes[0]
    assert "it introduces VDIs without labels, and may fail to create VDIs" in notes[1]
    assert last == CHECK_ORIGINAL
    assert facts.json["error"]["message"] == f"{path}: the storage manager cannot read 1 MGT record." in facts.err
    assert not facts.json["error"]["disk_state"], "the command only reads"


def test_parts_that_contradict_each_other_are_5_each_is_told_and_the_lun_is_no_less_clean(tmp_path, unwritten):
    lost = Record("0a0b0c0d-0000-4000-8000-000000000001", "data", vdi_type="aio")
    built = build_sr([raw("data", in_mgt=False)], area=AREA_DEFAULT, extra_records=(lost,))
    built.disk.to_file(str(tmp_path / "lun"))

    ran, facts = unwritten(5, "check", tmp_path / "lun"), unwritten(5, "check", tmp_path / "lun", "--json")

    first, *lines = ran.out.splitlines()
    assert first.endswith("state clean. Each structure reads, but MGT and the volumes contradict each other:")
    assert [line[2:] for line in lines[:2]] == [row["message"] for row in facts.json["contradictions"]]
    assert [row["vdi"] for row in facts.json["contradictions"]] == [None, built.truth.uuids["data"]]
    assert lost.uuid in lines[0] and facts.json["error"]["message"] in facts.err


# --- two


def findings(lines):
    """Of a comparison: a sentence of verdict is before them, and what to do behind."""
    return lines[1 : -2 if lines[-2].startswith("If neither") else -1]


#: in place of a next step, where nothing is wrong
FREE = "Attach the clone: a host may have it beside its original.\n"
UNCOMPARED = "A host may have it beside its original. Whether the copy is complete is not known.\n"


@pytest.fixture
def compared(original, unwritten):
    """`compared(4, clone, sentence, ...)`: the check ends so, and prints these lines as its problems."""

    def run(status, clone, *lines, other=original):
        ran = unwritten(status, "check", clone, "--original", other)
        found = ran.out.splitlines()
        assert not lines or findings(found) == list(lines)
        assert status == 0 or re.match(
            r".* is (no finished copy of .*: [0-9]+ findings?|.* copy of .*: both have the same identities)\."
            f"|.* shares no identity with .*, but their data differs at [0-9]+ places?: {LATER}",
            found[0],
        )
        assert found[-1].startswith("next: relvmoiscsi ") or found[-1].endswith(".")
        assert status or found[-1] + "\n" == FREE
        return ran

    return run


def test_a_copy_shares_every_identity_with_its_original(image, original, compared, command):
    ran, truth = compared(4, image), tree().truth
    facts = command("check", image, "--original", original, "--json").json

    lvm_ids = [truth.pv_id, truth.vg_id] + [volume.lv_id for volume in truth.volumes]
    for identity in lvm_ids + [UUIDS[key] for key in ("sr", "base", "disk", "snapshot", "data")]:
        assert f"{identity} is on both: " in "".join(facts["comparison_problems"])
    assert (facts["shares_nothing"], facts["same_identities"], facts["bytes_compared"] > 0) == (False, True, True)
    assert facts["error"]["message"] == ran.out.partition("\n")[0]
    assert not facts["error"]["disk_state"], "the command only reads"
    assert all(line.endswith(".") for line in facts["comparison_problems"])
    assert ran.out == (
        f"{image}, state clean, is an untouched copy of {original}: both have the same identities.\n"
        f"next: relvmoiscsi resignature {image}\n"
    )


def test_help_and_the_page_name_the_status_of_a_finding(image, original, command):
    status = command("check", image, "--original", original).status
    help_text = " ".join(command("check", "--help").out.split())
    assert f"if they share an identity or differ, the exit status is {status}." in help_text
    assert re.search(rf"^  {status} +refused: .*check --original: it differs", command("--help").out, re.M)
    meaning = (TOP / "docs" / "command.rst").read_text().split(f"\n**{status}**\n")[1].split("\n**")[0]
    assert "For **check --original**: the LUNs share an identity, or differ." in " ".join(meaning.split())


LATER = "the copy is not complete, or one of the two was written since the copy was taken."


def volume_byte(path, name):
    """Where a volume has a byte of no structure."""
    with open_device(path, writable=False) as device:
        vg = engine.inspect(device).lun.vg
    lv = next(lv for lv in vg.lvs if lv.name == name)
    return vg.ranges(lv, vg.size_of(lv) - 4096, 1)[0].offset


@pytest.mark.parametrize("written", ["image", "original"])
@pytest.mark.parametrize("lun, name", [("image", "MGT"), ("image", "VHD-" + UUIDS["disk"]), ("finished", "LV-")])
def test_data_that_differs_may_be_later_writes_and_has_no_next_step(
    request, image, original, unwritten, lun, name, written
):
    path = request.getfixturevalue(lun)
    at = guest_byte("data") if name == "LV-" else volume_byte(path, name)
    flipped(request.getfixturevalue(written), at)
    alike = f"{path}, state clean, is an untouched copy of {original}: both have the same identities"
    alike = alike if lun == "image" else f"{path} shares no identity with {original}"
    step = f"relvmoiscsi check --original {original} --identities-only {path}"
    take_again = "If neither was written, take the copy again from the array."
    take_again += f" If one was written, `{step}` compares the identities alone."

    ran, facts = (unwritten(4, "check", path, "--original", original, *json) for json in ([], ["--json"]))

    assert ran.out.splitlines() == [
        f"{alike}, but their data differs at 1 place: {LATER}",
        f"{path} differs from what is expected at byte {at}.",
        take_again,
    ]
    assert facts.json["error"]["advice"] == take_again
    assert facts.json["error"]["message"] == f"{path} differs from what is expected at byte {at}."

    status = 4 if lun == "image" else 0
    after = unwritten(status, "check", path, "--original", original, "--identities-only").out.splitlines()
    assert after[0] == f"{alike}; guest data was not compared."
    assert after[-1] == (f"next: relvmoiscsi resignature {path}" if lun == "image" else UNCOMPARED.strip())


def test_of_many_findings_people_get_ten(image, original, compared, command):
    built = build_sr([raw("data", extents=3)], area=AREA_DEFAULT)
    for path in (image, original):
        built.disk.to_file(str(path))
    command("resignature", image, "--yes")
    for mebibyte in range(12):
        flipped(image, built.truth.device_ranges("data", mebibyte << 20, 1)[0].offset)

    verdict, *told, more, _again = compared(4, image).out.splitlines()
    assert verdict.endswith(f" differs at 12 places: {LATER}") and more == "... and 2 more, which --json prints."
    assert told == command("check", image, "--original", original, "--json").json["comparison_problems"][:10]


def test_after_a_resignature_nothing_is_shared_and_all_data_is_the_same(
    finished, original, compared, command, terminal, monkeypatch
):
    said = compared(0, finished)
    facts = command("check", finished, "--original", original, "--json").json

    sentence = r"{} shares no identity with {}, and nothing else differs \(([\d.]+ [KM]iB) of data compared\)\.\n{}\n"
    data = re.fullmatch(sentence.format(finished, original, FREE.rstrip()), said.out).group(1)
    assert (facts["shares_nothing"], facts["comparison_problems"]) == (True, []) and facts["bytes_compared"] > 0
    assert (facts["state"], facts["device"], facts["original"]) == ("resignatured", str(finished), str(original))
    monkeypatch.setattr(sys, "stderr", terminal)
    command("check", finished, "--original", original)
    drawn = terminal.getvalue()
    assert said.err == "" and drawn.startswith("\r  [") and drawn.endswith(f"#] {data} of {data}\n")


@pytest.mark.parametrize(
    "side, key, times",
    [("clone", "base", 1), ("original", "disk", 1), ("clone", "data", 2)],
)
def test_one_flipped_byte_of_a_guest_is_found_and_the_original_is_no_other_sr(
    finished, original, compared, command, side, key, times
):
    if times == 2:
        command("resignature", finished, "--yes", "--again")
        compared(0, finished)
    flipped(finished if side == "clone" else original, guest_byte(key))
    compared(4, finished, f"{finished} differs from what is expected at byte {guest_byte(key)}.")


def test_a_guest_byte_on_what_is_a_hole_in_the_original_is_found(finished, compared):
    data = tree().truth.volume("data")
    hole = data.size * 3 // 4
    assert all(not (part.offset <= hole < part.end) for part in data.guest)
    flipped(finished, place("data", hole))
    assert f"at byte {place('data', hole)}." in compared(4, finished).out


def test_identities_only_reads_no_guest_data(finished, original, unwritten):
    flipped(finished, guest_byte("data"))
    words = ("check", finished, "--original", original, "--identities-only")
    verdict = f"{finished} shares no identity with {original}; guest data was not compared.\n"
    assert unwritten(0, *words).out == verdict + UNCOMPARED
    facts = unwritten(0, *words, "--json").json
    assert (facts["shares_nothing"], facts["bytes_compared"]) == (True, 0)


def test_two_clones_with_the_same_new_ids_are_found(finished, original, compared, command):
    command("resignature", original, "--yes", "--sr-uuid", SR)
    first, last = compared(4, finished).out.splitlines()
    assert first == f"{finished}, state resignatured, is no finished copy of {original}: both have the same identities."
    assert last.startswith("Attach neither beside the other. ")
    assert f"If {finished} is the copy, `relvmoiscsi resignature --again {finished}` gives" in last
    problems = command("check", finished, "--original", original, "--json").json["comparison_problems"]
    assert any(problem.startswith(f"{SR} is on both: ") for problem in problems)


@pytest.mark.parametrize("of_the_same_shape", [False, True])
@pytest.mark.parametrize("is_resignatured", [False, True])
def test_a_wrong_original_is_called_another_sr_with_the_names_of_both(
    image, tmp_path, command, compared, of_the_same_shape, is_resignatured
):
    uuid, made_of, more, other = UUIDS["sr"], "", "", tmp_path / "other"
    if is_resignatured:
        command("resignature", image, "--yes", "--sr-uuid", SR)
        uuid, made_of, more = SR, ", which was made of SR " + uuid, MAY_STILL
    built = tree("other") if of_the_same_shape else build_sr([raw("one"), raw("two")], area=AREA_DEFAULT, seed="other")
    built.disk.to_file(str(other))

    compared(4, image, (
        f"The original is another SR: {image} holds SR {uuid} 'test SR'{made_of}, and {other} holds SR "
        f"{built.truth.uuids['sr']} 'test SR'. Expected is the LUN that {image} was cloned from.{more}"
    ), other=other)  # fmt: skip
    assert command("check", image, "--original", other, "--json").json["bytes_compared"] == 0
    assert command("check", image, "--original", other).out.splitlines()[-1] == OTHER_ORIGINAL


def test_a_truncated_copy_is_called_truncated_first_and_is_to_be_taken_again(image, original, command):
    with open(image, "r+b") as lun:
        lun.truncate(tree().disk.size_bytes // 2 // 512 * 512)

    for more in ([], ["--original", original]):
        ran = command("check", image, *more)

        assert ran.status == 5 and re.match(f"{image}: damaged, the copy is truncated, [0-9]+ defects?:\n", ran.out)
        assert ran.out.splitlines()[-1] == "Take the copy again from the array, on a LUN of the original's size."
        assert "Check the original" not in ran.out


@pytest.mark.parametrize("size", [2 << 20, 8 << 20, 12 << 20])
def test_a_copy_that_ends_in_the_metadata_area_is_truncated_as_one_that_ends_in_the_data(tmp_path, command, size):
    path = tmp_path / "clone.img"
    build_sr([raw("data")], area=AREA_10M).disk.to_file(str(path))
    os.truncate(str(path), size)

    ran = command("check", path)

    assert ran.status == 5 and re.match(f"{path}: damaged, the copy is truncated, [0-9]+ defects?:\n", ran.out)
    assert ran.out.splitlines()[-1] == "Take the copy again from the array, on a LUN of the original's size."


def test_a_read_only_file_is_to_be_made_writable_before_a_resignature(image, command):
    image.chmod(0o444)
    ran = command("check", image)
    assert ran.status == 0 and f"note: {image} is read-only." in ran.out
    assert ran.out.splitlines()[-2:] == [FIRST, if_clone(f"relvmoiscsi resignature {image}")]


def test_a_program_that_has_the_image_open_is_to_end_before_a_resignature(image, command):
    with open(str(image), "rb"):
        ran = command("check", image)
    assert ran.status == 0 and f"note: {image} is in use by " in ran.out
    assert ran.out.splitlines()[-2:] == [FIRST, if_clone(f"relvmoiscsi resignature {image}")]


@pytest.mark.parametrize("spoiled", [bytes(range(1, 256)) * 2, bytes(512)])
def test_a_damaged_cbt_log_is_not_called_one_that_sm_has_still_to_write(finished, original, command, spoiled):
    patched(finished, place("cbtlog of disk", 0), spoiled)

    alone, compared = command("check", finished), command("check", finished, "--original", original)

    log = tree().truth.volume("cbtlog of disk").name
    assert alone.status == 0 and ".cbtlog does not read as a CBT log: SM has not written it yet" in alone.out
    assert "or it is damaged." in alone.out.replace("\n  ", " ")
    content = f"The content of {log.replace(UUIDS['disk'], derived_uuid(SR, UUIDS['disk']))} is not what is expected."
    assert compared.status == 4 and content in compared.out.replace("\n  ", " ")
    assert not re.search(r"None|True|False|\w\(\w+=", compared.out + compared.err)


@pytest.mark.parametrize("lost", [[], ["more"]])
def test_a_clone_whose_mgt_was_removed_is_compared_in_everything_else(tmp_path, command, compared, lost):
    """`lvremove` of MGT is the advice where MGT cannot be read. Then check said to take the copy again."""
    volumes, image, original = [raw("data"), raw("more")], tmp_path / "c.img", tmp_path / "o.img"
    whole = build_sr(volumes, mgt_segments=((1, 8),))
    whole.disk.to_file(str(original))
    left = [volume for volume in volumes if volume.key not in lost]
    build_sr(left, size_bytes=whole.disk.size_bytes, mgt=False).disk.to_file(str(image))
    assert command("resignature", image, "--yes").status == 0

    ran = compared(0, image, other=original)

    found = ran.out.replace("\n  ", " ").splitlines()
    assert "note: the clone does not hold the MGT volume of the original: its VDIs have no labels." in found
    for key in lost:
        assert f"note: the clone does not hold VDI {whole.truth.uuids[key]} of the original." in found
    facts = command("check", image, "--original", original, "--json").json
    assert (facts["shares_nothing"], facts["lacks_mgt"], len(facts["left_behind"])) == (True, True, len(lost))
    data = whole.truth.device_ranges("data", 0, 1)[0].offset
    flipped(image, data)
    compared(4, image, f"{image} differs from what is expected at byte {data}.", other=original)


def test_volumes_of_the_original_that_the_clone_has_not_are_named(tmp_path, command, compared):
    volumes, image, original = [raw("data"), raw("more")], tmp_path / "c.img", tmp_path / "o.img"
    whole = build_sr(volumes)
    whole.disk.to_file(str(original))
    elsewhere = [volumes[0], volumes[1]._replace(segments=((1, 5),))]
    build_sr(elsewhere, size_bytes=whole.disk.size_bytes).disk.to_file(str(image))
    command("resignature", image, "--yes")

    more = next(volume.name for volume in whole.truth.volumes if volume.key == "more")
    compared(4, image, f"{image} has no volume where {original} has {more}.", other=original)


def by_mistake(original):
    """The way back of an original that was resignatured."""
    undo = f"relvmoiscsi undo {original}"
    return f"If {original} is the original, it was resignatured by mistake: `{undo}` gives its old identities back."


@pytest.mark.parametrize("has_chosen_ids", [False, True])
def test_an_original_that_was_resignatured_may_be_the_clone_or_a_mistake(
    image, original, compared, command, tmp_path, has_chosen_ids
):
    """No LUN of the two tells which is the original: no reading is the only next step."""
    chosen = chosen_ids(command, original, tmp_path / "map.json") if has_chosen_ids else []
    assert command("resignature", original, "--yes", *chosen).status == 0

    ran, facts = compared(4, image), command("check", image, "--original", original, "--json").json

    _verdict, problem, advice = ran.out.splitlines()
    assert problem == (
        f"The LUN given as original was resignatured: {original} has identities that were made of those of {image}."
    )
    exchanged = f"relvmoiscsi check --original {image} {original}"
    order = f"If {original} is the clone, the LUNs were given in the wrong order: `{exchanged}` compares them."
    assert advice == facts["error"]["advice"] == f"{order} {by_mistake(original)}"
    assert compared(0, original, other=image).out.endswith(FREE)
    assert command("undo", original, "--yes").status == 0
    assert compared(4, image).out.endswith(f"next: relvmoiscsi resignature {image}\n")


def test_an_original_that_was_resignatured_beside_its_clone_may_be_a_mistake(finished, original, compared, command):
    new_sr = command("resignature", original, "--yes", "--json").json["new_sr"]

    _verdict, problem, advice = compared(4, finished).out.splitlines()

    assert problem == (
        f"Both LUNs were resignatured: {finished} became SR {SR}, and {original} became SR {new_sr}. "
        f"Both were SR {UUIDS['sr']} before."
    )
    other = f"If {original} is another clone, repeat the command with the device of the original."
    assert advice == f"{by_mistake(original)} {other}"
    assert command("undo", original, "--yes").status == 0
    compared(0, finished)


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("vdi", ["disk", "lone"])
def test_a_clone_with_one_vdi_cannot_be_compared_and_is_no_other_sr(image, original, vdi, journal, command):
    built = build_sr(
        [vhd("base", hidden=True), vhd("disk", parent="base"), raw("lone")], area=AREA_DEFAULT, free_extents=40
    )
    for path in (image, original):
        built.disk.to_file(str(path))
    chosen = built.truth.uuids[vdi]
    assert command("resignature", image, "--vdis", "one", "--vdi", chosen, "--yes").status == 0
    if not journal:
        with open_device(str(image), writable=False) as device:
            journal_at = engine.inspect(device).commit_record.journal_offset
        patched(image, journal_at, bytes(512))
    else:
        assert command("check", image).out.endswith(FREE)

    ran = command("check", image, "--original", original)
    assert ran.status == 4 and "This is a bug" not in ran.err
    if journal:
        assert "A clone that was made one VDI cannot be compared with its original." in ran.out.replace("\n  ", " ")
        assert "take the copy again" not in ran.out


def chosen_ids(command, lun, path):
    """The option with a map of UUIDs of which none follows from another."""
    found = json.loads(command("resignature", lun, "--dry-run", "--json").out)
    found["new_sr"] = SR  # so no other id follows from this one
    for row in found["vdi_pairs"]:
        row["new_vdi"] = str(uuid.uuid4())
    found["other_uuids"] = {old: str(uuid.uuid4()) for old in found["other_uuids"]}
    for key in ("old_pv_id", "new_pv_id", "old_vg_id", "new_vg_id", "lv_pairs"):  # no map chooses an LVM id
        del found[key]
    path.write_text(json.dumps(found))
    return ["--map", path]


def test_a_clone_with_chosen_uuids_has_lvm_ids_that_tell_its_original(image, compared, tmp_path, command):
    command("resignature", image, "--yes", *chosen_ids(command, image, tmp_path / "map.json"))
    with open_device(str(image), writable=False) as device:
        journal_at = engine.inspect(device).commit_record.journal_offset
    patched(image, journal_at, bytes(512))

    compared(0, image)
    flipped(image, guest_byte("data"))
    found = findings(compared(4, image).out.splitlines())
    assert found == [f"{image} differs from what is expected at byte {guest_byte('data')}."]


@pytest.mark.parametrize("where", ["behind", "before"])
def test_an_original_that_lvm_has_changed_since_is_no_defect_of_the_copy(image, original, command, where):
    """A VDI or a snapshot was made on the original: the copy is as finished as before, and must not be taken again."""
    volumes, later = [vhd("disk"), raw("data")], [vhd("later")]
    build_sr(volumes).disk.to_file(str(image))
    changed = volumes + later if where == "behind" else later + volumes
    build_sr(changed, seqno=18).disk.to_file(str(original))
    assert command("resignature", image, "--yes").status == 0

    ran = command("check", image, "--original", original)

    text = " ".join(ran.out.split())
    assert ran.status == 4 and f"{image}, state resignatured: LVM has changed the original since the copy was" in text
    assert "its seqno is 18, and the text that was copied had 17 at most. They share no identity." in text
    assert "no finished copy" not in text and "ake the copy again" not in text
    assert text.endswith(f"next: relvmoiscsi check {image}")


# --- requests that cannot be meant, and originals that cannot be read


@pytest.mark.parametrize("how", [None, os.symlink, os.link])
def test_a_device_is_not_its_own_original(image, unwritten, how):
    other = image
    if how:
        other = image.parent / "other"
        how(str(image), str(other))
    unwritten(2, "check", image, "--original", other, says="Give --original the device of the original.")


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
    assert ran.status == status and str(original) in ran.json["error"]["message"]
    said = command("check", finished, "--original", original)
    if kind != "missing":
        verdict, why, step = said.out.splitlines()
        assert verdict == f"{finished}, state resignatured, was not compared: {original} cannot be read as original."
        assert why == "  " + ran.json["error"]["message"] and not said.err
        assert step == (f"next: relvmoiscsi check {original}" if kind == "damaged" else OTHER_ORIGINAL)


@pytest.mark.parametrize("lun", ["unfinished", "committed"])
def test_exchanged_luns_of_an_interrupted_run_lead_to_the_recovery_of_the_clone(request, lun, original, unwritten):
    clone = request.getfixturevalue(lun)
    for words in ((original, "--original", clone), (clone, "--original", original)):
        ran = unwritten(8, "check", *words)
        assert ran.out.splitlines()[-1] == f"next: relvmoiscsi recover {clone}"
        assert (
            "copy of" not in ran.out and unwritten(8, "check", *words, "--json").json["error"]["class"] == "Unfinished"
        )


@pytest.mark.parametrize("lun", ["unfinished", "committed"])
def test_the_step_after_a_cut_is_the_last_line_and_a_quiet_check_still_says_what_is_wrong(request, lun, command):
    path = request.getfixturevalue(lun)
    ran, quiet = command("check", path), command("check", path, "-q")
    verdict, why, step = ran.out.splitlines()
    assert (ran.status, verdict, step) == (8, f"{path}: state unfinished.", f"next: relvmoiscsi recover {path}")
    assert (ran.err, quiet.out, quiet.err) == ("", "", f"relvmoiscsi: {why}\n")


@pytest.mark.processes
@pytest.mark.parametrize("who", ["writer", "nobody"])
def test_an_unfinished_lun_that_cannot_be_written_has_no_next_command(unfinished, who, unwritten, command):
    """A run that is at work looks like one that was cut: only the program that has the LUN open tells."""
    said, advice = f"{unfinished} is read-only.", "Make it writable first."
    with ExitStack() as held:
        if who == "nobody":
            unfinished.chmod(0o444)
        else:
            image = held.enter_context(unfinished.open("r+b"))
            at_work = held.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=image))
            image.close()
            said = f"{unfinished} is in use by process {at_work.pid} (cat)."
            advice = "Try again when that use has ended."

        ran, facts = unwritten(4, "check", unfinished), unwritten(4, "check", unfinished, "--json").json
        shown = command("show", unfinished)

    message = f"{unfinished} holds an unfinished resignature, before its commit. {said}"
    assert ran.out.splitlines() == [f"{unfinished}: state unfinished.", f"{message} {advice}"]
    assert (facts["state"], facts["error"]["message"], facts["error"]["advice"]) == ("unfinished", message, advice)
    assert f"{message} {advice}" in " ".join(shown.out.split())  # a run that is at work may have written
    assert "Nothing was written" not in ran.out + shown.out + facts["error"]["disk_state"]
    assert all("relvmoiscsi recover" not in each for each in (ran.out, shown.out, facts["problem"]))
