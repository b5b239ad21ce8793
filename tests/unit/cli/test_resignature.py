# SPDX-License-Identifier: LGPL-2.1-only
"""`resignature`: plan, question, choice of ids, what is refused, and that a second run has nothing to do."""

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from kit import shell
from kit.build_volumes import noise
from kit.builder import AREA_DEFAULT, build_sr, raw, vhd
from kit.cuts import read_mark
from kit.shell import (
    OTHER_SCSI_ID,
    SCSI_ID,
    SR,
    content,
    patched,
    tree,
)
from kit.sparse import SparseDisk
from relvmoiscsi import cli, engine
from relvmoiscsi.host.disk.block_device import ImageFile, open_device

#: `OpaqueRef`, upper case, a short one, none at all
NO_UUIDS = ("", "x", SR.upper()[:-1] + "A", SR[:-1], SR + "0", SR.replace("-", ""), "OpaqueRef:" + SR)


def entropy(monkeypatch):
    """The same random ids, in the same order, from now on."""
    drawn = [0]

    def urandom(length):
        drawn[0] += 1
        return noise(length, f"drawn {drawn[0]}")

    monkeypatch.setattr(os, "urandom", urandom)


# --- the plan


def test_dry_run_prints_ids_and_writes_and_writes_nothing(image, command):
    before = content(image)

    ran = command("resignature", image, "--dry-run", "--sr-uuid", SR)

    assert ran.status == 0
    assert ran.out.startswith(f"{image}: dry run. These writes are planned; nothing was written.\n")
    assert f"  SR   {tree().truth.sr_uuid}  becomes  {SR}\n" in ran.out
    assert [line.split()[-1] for line in ran.out.splitlines() if "label: " in line] == ["progress", "switched", "final"]
    assert content(image) == before
    assert command("show", image, "--json").json["state"] == "clean"


def test_dry_run_as_json_is_the_result_with_a_plan_and_without_writes(image, command):
    before = content(image)

    found = command("resignature", image, "--dry-run", "--json").json

    assert (found["state"], found["writes"], found["bytes_written"], found["flushes"]) == ("clean", 0, 0, 0)
    assert found["already_done"] is False
    assert found["sr"]["old"] == tree().truth.sr_uuid
    assert len(found["plan"]) > 5
    for write in found["plan"]:
        assert set(write) == {"offset", "length", "what", "old", "new"}
        assert len(bytes.fromhex(write["new"])) == write["length"]
        assert write["old"] is None or len(write["old"]) == len(write["new"])
    assert content(image) == before


def test_writing_the_plan_by_hand_gives_the_very_bytes_of_a_real_run(image, original, command, monkeypatch):
    with monkeypatch.context() as patch:
        entropy(patch)
        plan = command("resignature", image, "--dry-run", "--json").json["plan"]
    with monkeypatch.context() as patch:
        entropy(patch)
        assert command("resignature", original, "--yes", "--json").status == 0

    for write in plan:
        patched(image, write["offset"], bytes.fromhex(write["new"]))

    assert content(image)[0] == content(original)[0]


def test_a_dry_run_can_be_carried_out_later_with_the_same_ids(image, original, command, tmp_path):
    planned = command("resignature", image, "--dry-run", "--json")
    (tmp_path / "map").write_text(planned.out, encoding="ascii")

    done = command("resignature", original, "--yes", "--json", "--map", tmp_path / "map").json

    for write in planned.json["plan"]:
        patched(image, write["offset"], bytes.fromhex(write["new"]))
    for key in ("sr", "vg_id", "pv_id", "vdis", "lvs", "other_uuids"):
        assert done[key] == planned.json[key]
    by_hand, by_run = SparseDisk.from_file(str(image)), SparseDisk.from_file(str(original))
    own = by_hand.differences(by_run)  # the run's number, in its journal and in its mark
    journal = planned.json["plan"][0]
    assert all(part.offset == 512 or journal["offset"] <= part.offset < journal["offset"] + 65536 for part in own)
    assert by_hand.peek(512, 416)[20:] == by_run.peek(512, 416)[20:]


# --- the result


def test_json_is_as_documented(image, command):
    found = command("resignature", image, "--yes", "--json").json

    truth, now = tree().truth, command("show", image, "--json").json
    assert set(found) == {"state", "device", "scsi_id", "already_done", "writes", "bytes_written", "flushes",
                          "sr", "vg_id", "pv_id", "vdis", "lvs", "other_uuids", "notes", "lun"}  # fmt: skip
    assert (found["state"], found["device"], found["scsi_id"]) == ("resignatured", str(image), None)
    assert found["flushes"] == 6 and found["writes"] > 6 and found["bytes_written"] % 512 == 0
    assert found["sr"] == {"old": truth.sr_uuid, "new": now["sr"]["uuid"]}
    assert found["vg_id"] == {"old": truth.vg_id, "new": now["vg"]["id"]}
    assert found["pv_id"] == {"old": truth.pv_id, "new": now["pv"]["id"]}
    assert [(vdi["new"], vdi["name_label"]) for vdi in found["vdis"]] == [
        (vdi["uuid"], vdi["name_label"]) for vdi in now["vdis"]
    ]
    assert [vdi["lv"]["new"] for vdi in found["vdis"]] == [vdi["lv"] for vdi in now["vdis"]]
    assert {vdi["old"] for vdi in found["vdis"]} == {truth.uuids[key] for key in ("base", "disk", "snapshot", "data")}
    assert {vdi["lv"]["old"] for vdi in found["vdis"]} < {volume.name for volume in truth.volumes}
    assert [lv["id"]["old"] for lv in found["lvs"]] == [volume.lv_id for volume in truth.volumes]


def test_text_says_what_became_what_and_what_it_cost(image, command):
    ran = command("resignature", image, "--yes")

    now = command("show", image, "--json").json
    lines = ran.out.splitlines()
    assert lines[0] == f"{image} was resignatured."
    assert lines[1] == "  SR   {}  becomes  {}".format(tree().truth.sr_uuid, now["sr"]["uuid"])
    assert lines[3].split("  becomes  ")[1] == "{}  Größe <é>".format(now["vdis"][1]["uuid"])
    assert lines[-1].endswith(" KiB, 6 flushes")
    assert ran.err == ""


def test_a_sparse_image_stays_sparse(image, command):
    before = os.stat(str(image)).st_blocks

    written = command("resignature", image, "--yes", "--json").json["bytes_written"]

    size = os.stat(str(image))
    assert size.st_size == tree().disk.size_bytes
    assert size.st_blocks - before <= 2 * (written // 512) + 8 * 16  # file systems have blocks of 4 KiB


def test_words_that_callers_take_for_success_are_in_the_driver_alone():
    package = shell.TOP / "relvmoiscsi"
    driver = [*(package / "sr_driver").rglob("*.py"), package / "pool/attach.py"]  # which is such a caller
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path not in driver]

    assert texts and not any(shell.CONTRACT in text.lower() for text in texts)


# --- the question


@pytest.mark.parametrize("answer", ["y\n", " YES \n"])
def test_yes_is_yes(image, command, type_in, answer):
    type_in(answer)

    ran = command("resignature", image)

    assert ran.status == 0
    assert "  VDI  {}  becomes  ".format(tree().truth.uuids["data"]) in ran.err
    assert f"Give {image} these new identities? [y/N] " in ran.err
    assert ran.out.startswith(f"{image} was resignatured.")
    shown = [line for line in ran.err.splitlines() if "becomes" in line]
    assert shown == [line for line in ran.out.splitlines() if "becomes" in line]


@pytest.mark.parametrize("answer", ["n\n", "", "yesterday\n", "no\ny\n"])
def test_anything_else_is_no(image, command, type_in, answer):
    type_in(answer)
    before = content(image)

    ran = command("resignature", image)

    assert ran.status == 4 and not ran.out
    assert ran.err.endswith("[y/N] relvmoiscsi: Not confirmed. Nothing was written.\n")
    assert content(image) == before


@pytest.mark.parametrize("stdin", ["no terminal", "none"])
def test_where_nobody_can_be_asked_yes_must_be_said(image, command, monkeypatch, stdin):
    if stdin == "none":
        monkeypatch.setattr(sys, "stdin", None)
    before = content(image)

    ran = command("resignature", image)

    assert ran.status == 2 and not ran.out
    assert "use --yes, or --dry-run to see the plan. Nothing was written." in ran.err
    assert content(image) == before


@pytest.mark.parametrize("lun, name", [("finished", "undo"), ("unfinished", "undo"), ("unfinished", "recover")])
def test_what_would_be_changed_needs_a_yes_too(request, command, lun, name):
    path = request.getfixturevalue(lun)
    before = content(path)

    ran = command(name, path)

    assert ran.status == 2 and ran.err == "relvmoiscsi: No terminal to confirm on: use --yes. Nothing was written.\n"
    assert content(path) == before


class FullDisk(io.StringIO):
    """stderr that goes to a disk without room."""

    def write(self, _text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("stderr", [None, FullDisk()], ids=["closed", "full"])
@pytest.mark.parametrize("lun, name", [("image", "resignature"), ("finished", "undo"), ("unfinished", "recover")])
def test_a_question_that_nobody_sees_is_not_asked(request, command, type_in, monkeypatch, stderr, lun, name):
    path = request.getfixturevalue(lun)
    before = content(path)
    type_in("y\n")
    monkeypatch.setattr(sys, "stderr", stderr)

    assert cli.main([name, str(path)]) == 2
    assert content(path) == before


def test_a_bug_is_70_also_where_stderr_takes_nothing(image, monkeypatch):
    def inspect(_device):
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "inspect", inspect)
    monkeypatch.setattr(sys, "stderr", FullDisk())

    assert cli.main(["show", str(image)]) == 70


def test_with_json_nobody_is_asked(image, command, type_in):
    type_in("y\n")

    assert command("resignature", image, "--json").status == 2


# --- choosing ids


def map_file(tmp_path, facts):
    path = tmp_path / "map.json"
    path.write_text(facts if isinstance(facts, str) else json.dumps(facts), encoding="utf-8")
    return path


def test_the_sr_uuid_can_be_chosen(image, command):
    assert command("resignature", image, "--yes", "--json", "--sr-uuid", SR).json["sr"]["new"] == SR
    assert command("show", image, "--json").json["sr"]["uuid"] == SR


@pytest.mark.parametrize("uuid", NO_UUIDS)
def test_an_sr_uuid_that_is_none_is_2(image, command, uuid):
    before = content(image)

    assert command("resignature", image, "--yes", "--json", "--sr-uuid=" + uuid).status == 2

    assert content(image) == before


@pytest.mark.parametrize("key", ["sr", "disk"])
def test_an_sr_uuid_that_is_on_the_lun_already_is_2(image, command, key):
    ran = command("resignature", image, "--yes", "--json", "--sr-uuid", tree().truth.uuids[key])

    assert ran.status == 2
    assert ran.json["state"] == "clean"
    assert "already on the LUN" in ran.err


def test_a_second_clone_gets_the_ids_of_the_first(image, original, command, tmp_path):
    first = command("resignature", image, "--yes", "--json")

    second = command("resignature", original, "--yes", "--json", "--map", map_file(tmp_path, first.out)).json

    for key in ("sr", "vg_id", "pv_id", "vdis", "lvs", "other_uuids"):
        assert second[key] == first.json[key]
    shown = [command("show", path, "--json").json for path in (image, original)]
    for facts in shown:
        del facts["device"], facts["one_vdi"]["problem"]  # which names the device
    assert shown[0] == shown[1]


@pytest.mark.parametrize("key", ["sr", "vdis", "other_uuids", "vg_id", "pv_id", "lvs"])
def test_a_part_of_a_map_is_enough(image, original, command, tmp_path, key):
    first = command("resignature", image, "--yes", "--json").json

    part = map_file(tmp_path, {key: first[key]})
    second = command("resignature", original, "--yes", "--json", "--map", part).json

    if key == "lvs":
        assert [lv["id"] for lv in second["lvs"]] == [lv["id"] for lv in first["lvs"]]
    elif key == "vdis":
        assert [vdi["new"] for vdi in second["vdis"]] == [vdi["new"] for vdi in first["vdis"]]
    else:
        assert second[key] == first[key]
    other = "vg_id" if key != "vg_id" else "sr"
    assert (second[other] != first[other]) == (key != "sr"), "from the SR's UUID all the others follow"


def test_a_map_of_the_journal_alone_is_a_map_too(committed, original, command, tmp_path):
    first = command("recover", committed, "--yes", "--json")

    second = command("resignature", original, "--yes", "--json", "--map", map_file(tmp_path, first.out)).json

    for key in ("sr", "vg_id", "pv_id", "vdis", "other_uuids"):
        assert second[key] == first.json[key]


def test_lvm_ids_are_taken_with_dashes_and_without(image, command, tmp_path):
    truth, new = tree().truth, "abcdef-ABCD-1234-abcd-ABCD-1234-abcdef"
    chosen = {"lvm_ids": {truth.vg_id.replace("-", ""): new.replace("-", "")}}

    found = command("resignature", image, "--yes", "--json", "--map", map_file(tmp_path, chosen)).json

    assert found["vg_id"] == {"old": truth.vg_id, "new": new}


def test_map_and_sr_uuid_may_agree_and_not_contradict(image, command, tmp_path):
    chosen = map_file(tmp_path, {"sr": {"old": tree().truth.sr_uuid, "new": SR}})

    assert command("resignature", image, "--dry-run", "--map", chosen, "--sr-uuid", SR).status == 0
    ran = command("resignature", image, "--yes", "--map", chosen, "--sr-uuid", SR[:-1] + "6")

    assert ran.status == 2
    assert "another SR UUID" in ran.err


UUIDS, IDS = tree().truth.uuids, tree().truth
OTHER = "66666666-7777-4888-9999-aaaaaaaaaaaa"
LVM_ID = "abcdef-ABCD-1234-abcd-ABCD-1234-abcdef"
BAD_MAPS = {
    "nothing": "",
    "no JSON": "SR: new",
    "cut JSON": '{"sr": {"old": "',
    "no UTF-8": "latin",
    "a list": [],
    "a number": 5,
    "null": None,
    "sr a number": {"sr": 5},
    "sr a list": {"sr": [UUIDS["sr"], SR]},
    "sr without new": {"sr": {"old": UUIDS["sr"]}},
    "vdis null": {"vdis": None},
    "vdis of numbers": {"vdis": [5]},
    "uuids a list": {"uuids": []},
    "uuids to a number": {"uuids": {UUIDS["sr"]: 5}},
    "uuids to null": {"uuids": {UUIDS["sr"]: None}},
    "lvs without id": {"lvs": [{"name": {"old": "MGT", "new": "MGT"}}]},
    "an unknown UUID": {"uuids": {OTHER: SR}},
    "an unknown VDI": {"vdis": [{"old": OTHER, "new": SR}]},
    "an unknown LVM id": {"lvm_ids": {LVM_ID: LVM_ID[::-1]}},
    "an unknown VG": {"vg_id": {"old": LVM_ID, "new": LVM_ID[::-1]}},
    "no UUID": {"vdis": [{"old": UUIDS["disk"], "new": "disk"}]},
    "an empty UUID": {"sr": {"old": UUIDS["sr"], "new": ""}},
    "an upper-case UUID": {"sr": {"old": UUIDS["sr"], "new": "A" + SR[1:]}},
    "a UUID with a newline": {"sr": {"old": UUIDS["sr"], "new": SR + "\n"}},
    "no LVM id": {"lvm_ids": {IDS.vg_id: "abc"}},
    "no PV id": {"pv_id": {"old": IDS.pv_id, "new": "abc"}},
    "an LVM id of other letters": {"pv_id": {"old": IDS.pv_id, "new": "é" * 32}},
    "a UUID for an LVM id": {"vg_id": {"old": IDS.vg_id, "new": SR}},
    "two choices for one UUID": {"uuids": {UUIDS["sr"]: SR}, "sr": {"old": UUIDS["sr"], "new": OTHER}},
    "one UUID twice": {"uuids": {UUIDS["disk"]: SR, UUIDS["data"]: SR}},
    "one LVM id twice": {"lvm_ids": {IDS.vg_id: LVM_ID, IDS.pv_id: LVM_ID}},
    "a UUID kept": {"uuids": {UUIDS["disk"]: UUIDS["disk"]}},
    "two UUIDs exchanged": {"uuids": {UUIDS["disk"]: UUIDS["data"], UUIDS["data"]: UUIDS["disk"]}},
    "an LVM id kept": {"lvm_ids": {IDS.vg_id: IDS.vg_id}},
}


def test_a_map_of_the_command_map_chooses_the_sr_that_it_was_made_for(image, command, tmp_path):
    disk = command("show", image, "--json").json["vdis"][0]["uuid"]
    path = tmp_path / "map.json"
    path.write_text(command("map", "--sr", SR, disk, "--json").out)

    planned = command("resignature", image, "--map", path, "--dry-run", "--json")
    contradicted = command("resignature", image, "--map", path, "--sr-uuid", SR[:-1] + "0", "--dry-run")

    assert planned.json["sr"]["new"] == SR
    assert contradicted.status == 2 and f"is a map for the SR {SR}" in contradicted.err


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_bad_map_is_2_and_nothing_is_written(image, command, tmp_path, name):
    path = map_file(tmp_path, BAD_MAPS[name] if BAD_MAPS[name] is not None else "null")
    if name == "no UTF-8":
        path.write_bytes(b'{"sr": "\xff"}')
    before = content(image)

    ran = command("resignature", image, "--yes", "--json", "--map", path)

    assert ran.status == 2
    assert ran.json["state"] == "clean"
    assert ran.json["error"]["kind"] == "UsageError"
    assert not any(word in ran.err for word in ("Error", "object", "NoneType", "expected string"))
    assert content(image) == before


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_map_that_cannot_be_read_is_2(image, command, tmp_path, path):
    ran = command("resignature", image, "--yes", "--map", tmp_path / path)

    assert ran.status == 2
    assert str(tmp_path / path) in ran.err


# --- once more


@pytest.mark.parametrize("options", [[], ["--scsi-id", SCSI_ID]])
def test_a_second_run_has_nothing_to_do_and_writes_nothing(image, command, options):
    first = command("resignature", image, "--yes", "--json", *options).json
    before = content(image)

    text = command("resignature", image, "--yes", *options)
    second = command("resignature", image, "--yes", "--json", *options).json

    assert text.status == 0
    new_sr = first["sr"]["new"]
    assert text.out == f"{image} was already resignatured, as SR {new_sr}. Nothing was written.\n"
    assert (second["already_done"], second["writes"], second["state"]) == (True, 0, "resignatured")
    for key in ("sr", "vg_id", "pv_id", "vdis", "lvs", "other_uuids", "scsi_id"):
        assert second[key] == first[key]
    assert content(image) == before


def test_already_done_without_the_map_once_lvm_has_reclaimed_the_journal(finished, command, tmp_path):
    with open_device(str(finished), writable=False) as device:
        at = read_mark(device).journal.offset
    patched(finished, at, bytes(512))

    ran = command("resignature", finished, "--yes", "--json")

    assert ran.status == 0
    assert (ran.json["already_done"], ran.json["sr"]) == (True, {"old": None, "new": SR})
    assert "vdis" not in ran.json
    assert command("undo", finished, "--yes").status == 4
    again = ["resignature", finished, "--yes", "--again", "--map", map_file(tmp_path, ran.out)]
    assert command(*again).status == 2


def test_a_second_dry_run_has_nothing_to_do_either(finished, command):
    found = command("resignature", finished, "--dry-run", "--json").json

    assert found["already_done"] is True and "plan" not in found


def test_again_is_a_new_resignature(finished, command):
    planned = command("resignature", finished, "--dry-run", "--json", "--again").json
    second = command("resignature", finished, "--yes", "--json", "--again").json

    assert planned["state"] == "resignatured" and planned["plan"]
    assert second["already_done"] is False
    assert second["sr"]["old"] == SR and second["sr"]["new"] != SR
    assert command("show", finished, "--json").json["sr"]["uuid"] == second["sr"]["new"]


def test_a_copy_of_a_resignatured_lun_is_a_new_clone(image, command):
    first = command("resignature", image, "--yes", "--json", "--scsi-id", SCSI_ID).json

    second = command("resignature", image, "--yes", "--json", "--scsi-id", OTHER_SCSI_ID).json

    assert second["scsi_id"] == OTHER_SCSI_ID
    assert second["already_done"] is False
    assert second["sr"]["old"] == first["sr"]["new"]


@pytest.mark.parametrize("first, second", [([], ["--scsi-id", SCSI_ID]), (["--scsi-id", SCSI_ID], [])])
def test_whether_it_is_a_copy_cannot_be_told_without_the_scsi_id(image, command, first, second):
    command("resignature", image, "--yes", *first)
    before = content(image)

    ran = command("resignature", image, "--yes", "--json", *second)

    assert ran.status == 4
    assert ran.json["state"] == "resignatured"
    assert "--again" in ran.err
    assert content(image) == before
    assert command("resignature", image, "--yes", "--json", "--again", *second).json["already_done"] is False


def test_a_run_that_was_cut_behind_its_commit_is_finished_with_its_own_ids(committed, command):
    ran = command("resignature", committed, "--yes", "--json")

    assert ran.status == 0
    assert (ran.json["state"], ran.json["sr"]["new"]) == ("resignatured", SR)
    assert "finishes it with the ids that were chosen then" in ran.err


def test_a_run_that_was_cut_before_its_commit_is_taken_back_and_made_anew(unfinished, command):
    ran = command("resignature", unfinished, "--yes", "--json", "--sr-uuid", "11111111-2222-4333-8444-555555555555")

    assert ran.status == 0
    assert (ran.json["state"], ran.json["sr"]["new"]) == ("resignatured", "11111111-2222-4333-8444-555555555555")
    assert "interrupted before its commit; this run rolls it back first" in ran.err


@pytest.mark.parametrize("answer, status", [("y\n", 0), ("n\n", 4)])
def test_before_a_cut_run_is_finished_there_is_a_question(committed, command, type_in, answer, status):
    type_in(answer)

    ran = command("resignature", committed)

    assert ran.status == status
    assert f"Finish the resignature to SR {SR}? [y/N] " in ran.err
    assert command("show", committed, "--json").json["state"] == ("unfinished" if status else "resignatured")


@pytest.fixture
def cut_copy(image, command, monkeypatch):
    """A copy of the LUN SCSI_ID, whose resignature was cut; it is the LUN OTHER_SCSI_ID itself."""
    with monkeypatch.context() as patch:
        shell.cut(patch, 5)
        command("resignature", image, "--yes", "--scsi-id", SCSI_ID)
    return image


def test_a_copy_of_a_cut_lun_is_taken_back_and_becomes_an_sr_of_its_own(cut_copy, command):
    ran = command("resignature", cut_copy, "--yes", "--json", "--scsi-id", OTHER_SCSI_ID, "--sr-uuid", SR)

    assert ran.status == 0
    assert f"is a copy of a LUN whose resignature was cut (SCSIid {SCSI_ID}); this run rolls" in ran.err
    assert ran.json["sr"] == {"old": tree().truth.sr_uuid, "new": SR}
    assert ran.json["scsi_id"] == OTHER_SCSI_ID


@pytest.mark.parametrize(
    "typed, state, ending",
    [
        ("n\n", "unfinished", "Nothing was written."),
        ("y\nn\n", "clean", "The resignature that was cut was taken back; nothing else was written."),
        ("y\ny\n", "resignatured", ""),
    ],
)
def test_before_each_of_the_two_there_is_a_question(cut_copy, command, type_in, typed, state, ending):
    type_in(typed)

    ran = command("resignature", cut_copy, "--scsi-id", OTHER_SCSI_ID)

    assert "Roll the interrupted resignature back? [y/N] " in ran.err
    assert ran.err.rstrip().endswith(ending)
    assert command("show", cut_copy, "--json").json["state"] == state


def test_a_dry_run_does_not_finish_a_cut_run(unfinished, command):
    before = content(unfinished)

    ran = command("resignature", unfinished, "--dry-run", "--json")

    assert ran.status == 8
    assert ran.json["state"] == "unfinished"
    assert content(unfinished) == before


def test_a_cut_undo_is_not_finished_by_a_resignature(finished, command, monkeypatch):
    with monkeypatch.context() as patch:
        shell.cut(patch, 4)
        command("undo", finished, "--yes")

    ran = command("resignature", finished, "--yes", "--json")

    assert ran.status == 8
    assert f"`relvmoiscsi recover {finished}`" in ran.err


# --- images that somebody else has, or that are to stay as they are


@pytest.mark.parametrize("argv", [("resignature", "--yes", "--again"), ("recover", "--yes"), ("undo", "--yes")])
def test_a_read_only_image_is_4(finished, command, argv):
    finished.chmod(0o444)
    before = content(finished)

    ran = command(argv[0], finished, "--json", *argv[1:])

    assert ran.status == 4
    assert "read-only" in ran.err
    assert content(finished) == before


def test_a_finished_lun_that_is_in_use_by_now_is_answered_as_before(finished, command):
    first = command("resignature", finished, "--yes", "--json").json
    finished.chmod(0o444)
    before = content(finished)

    with open(str(finished), "rb"):
        ran = command("resignature", finished, "--yes", "--json")

    assert (ran.status, ran.json) == (0, first)
    assert ran.json["already_done"] and content(finished) == before


@pytest.mark.parametrize("wanted", ["sr-uuid", "map"])
def test_ids_that_were_chosen_otherwise_are_refused(finished, command, tmp_path, wanted):
    made = command("resignature", finished, "--yes", "--json").json
    other = dict(made, sr={"old": made["sr"]["old"], "new": "77777777-2222-4333-8444-555555555555"})
    (tmp_path / "map").write_text(json.dumps({"sr": other["sr"]}), encoding="utf-8")
    choice = other["sr"]["new"] if wanted == "sr-uuid" else tmp_path / "map"
    before = content(finished)

    ran = command("resignature", finished, "--yes", f"--{wanted}", choice)

    assert ran.status == 4 and other["sr"]["new"] in ran.err and made["sr"]["new"] in ran.err and "--again" in ran.err
    assert content(finished) == before
    same = command("resignature", finished, "--yes", "--sr-uuid", made["sr"]["new"])
    assert same.status == 0 and content(finished) == before


def test_a_uuid_of_zeros_is_none(image, command):
    assert command("resignature", image, "--yes", "--sr-uuid", "00000000-0000-0000-0000-000000000000").status == 2


def test_a_dry_run_needs_no_right_to_write_and_nobody_to_stay_away(image, command):
    image.chmod(0o444)

    with open(str(image), "rb"):
        assert command("resignature", image, "--dry-run").status == 0


@pytest.mark.processes
def test_an_image_that_another_process_has_open_is_4_and_the_process_is_named(finished, command, leases):
    leases(0)
    before = content(finished)
    with open(str(finished), "rb") as image:
        holder = subprocess.Popen(["sleep", "3600"], stdin=image)
    try:
        runs = [command(name, finished, "--json", "--yes", *more) for name, more in (
            ("resignature", ["--again"]), ("recover", []), ("undo", []),
        )]  # fmt: skip
    finally:
        holder.kill()
        holder.wait()

    for ran in runs:
        assert ran.status == 4 and f"{finished} is in use by process {holder.pid} (sleep)" in ran.err
    assert content(finished) == before


@pytest.mark.processes
def test_a_second_run_on_the_same_image_is_4_while_the_first_one_asks(image, command, leases):
    leases(0)
    master, slave = os.openpty()
    first = shell.start("resignature", image, stdin=slave)
    os.close(slave)
    try:
        told = b""
        while b"[y/N] " not in told:
            told += os.read(first.stderr.fileno(), 65536) or pytest.fail(told.decode("utf-8"))
        second = command("resignature", image, "--yes", "--json")
        os.write(master, b"y\n")
        out, err = first.communicate(timeout=600)
    finally:
        first.kill()
        first.wait()
        os.close(master)

    assert second.status == 4 and second.json["state"] == "clean"
    assert f"process {first.pid} " in second.err
    assert first.returncode == 0 and err == b""
    assert out.decode("utf-8").startswith(f"{image} was resignatured.\n")


# --- a device that fails


def failing(monkeypatch, first, last=None, action="_write_some"):
    """The operations from the `first` one to the `last` one fail."""
    count, real = [0], getattr(ImageFile, action)

    def transfer(device, view, offset):
        count[0] += 1
        if first <= count[0] <= (last or count[0]):
            raise OSError(errno.EIO, "Input/output error")
        return real(device, view, offset)

    monkeypatch.setattr(ImageFile, action, transfer)


@pytest.mark.parametrize("number, state", [(1, "clean"), (2, "clean"), (3, "clean"), (4, "unfinished")])
def test_a_write_that_fails_once_before_the_commit_is_7_and_can_be_repeated(image, command, monkeypatch, number, state):
    with monkeypatch.context() as patch:
        failing(patch, number, number)
        ran = command("resignature", image, "--yes", "--json")

    assert ran.status == 7
    assert ran.json["state"] == state
    untouched = f"{image} is as it was; beyond that only free space of the metadata area was written."
    assert (ran.json["error"]["disk_state"] == untouched) == (number < 3)
    assert command("resignature", image, "--yes", "--json").json["state"] == "resignatured"


def test_a_device_that_fails_for_good_is_7_and_the_message_says_what_to_do(image, command, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, 4)
        ran = command("resignature", image, "--yes", "--json")

    assert ran.status == 7
    assert ran.json["state"] == "unfinished"
    assert f"`relvmoiscsi recover {image}` finishes it" in ran.json["error"]["disk_state"]
    assert command("recover", image, "--yes").status == 0


def test_a_write_that_fails_after_the_commit_is_7_and_recover_finishes(image, command, monkeypatch):
    writes = len(command("resignature", image, "--dry-run", "--json").json["plan"])
    with monkeypatch.context() as patch:
        failing(patch, writes)
        ran = command("resignature", image, "--yes", "--json", "--sr-uuid", SR)

    assert ran.status == 7
    assert ran.json["state"] == "unfinished"
    assert f"`relvmoiscsi recover {image}`" in ran.json["error"]["disk_state"]
    assert command("recover", image, "--yes", "--json").json["sr"]["new"] == SR


@pytest.mark.parametrize("name", ["show", "resignature", "recover", "undo"])
def test_a_read_that_fails_is_7(finished, command, monkeypatch, name):
    failing(monkeypatch, 1, action="_read_some")

    ran = command(name, finished, "--json", *(["--yes"] if name in ("resignature", "recover", "undo") else []))

    assert ran.status == 7
    assert ran.json["state"] is None
    assert "read of" in ran.err


# --- what is no error of the user's


@pytest.mark.parametrize("name, function", [("resignature", "find_done"), ("show", "inspect")])
def test_a_bug_is_70_with_its_traceback(finished, command, monkeypatch, name, function):
    def broken(*_):
        raise RuntimeError("cannot happen")

    monkeypatch.setattr(engine, function, broken)

    ran = command(name, finished, *(["--yes"] if name != "show" else []))

    assert ran.status == 70 and not ran.out
    assert "Traceback (most recent call last)" in ran.err and "RuntimeError: cannot happen" in ran.err
    assert ran.err.endswith(f"`relvmoiscsi show {finished}` shows the state of {finished}.\n")


def test_a_name_of_an_image_may_be_anything(tmp_path, command):
    path = tmp_path / "é \udcff 漢.img"
    build_sr([raw("data")], area=AREA_DEFAULT).disk.to_file(str(path))

    assert command("resignature", path, "--yes", "--json").json["device"] == str(path)
    with open_device(str(path), writable=False):
        assert command("show", path).status == 0


def test_clear_metadata_vdi_is_refused_where_a_run_without_it_is_done(tmp_path, command):
    """It was passed over without a word, and a pool would have written into the copy."""
    volume = raw("database", vdi_type="metadata")
    volume = volume._replace(record=volume.record._replace(metadata_of_pool="OpaqueRef:a-pool"))
    path = tmp_path / "clone.img"
    build_sr([vhd("disk"), volume]).disk.to_file(str(path))
    assert command("resignature", path, "--yes").status == 0

    ran = command("resignature", path, "--yes", "--clear-metadata-vdi")
    assert ran.status == 4 and "without --clear-metadata-vdi. Use --again" in ran.err
    assert command("resignature", path, "--yes", "--clear-metadata-vdi", "--again").status == 0
    assert "already resignatured" in command("resignature", path, "--yes", "--clear-metadata-vdi").out
