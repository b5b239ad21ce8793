# SPDX-License-Identifier: LGPL-2.1-only
"""`resignature`: plan, question, choice of ids, what is refused, and that a second run has nothing to do.

Which of the ways a LUN goes that is cut, done or a copy: tests/unit/lun/test_run.py. The object that --json prints:
test_documented.py.
"""

import errno
import io
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import uuid

import pytest

from kit import shell
from kit.builder import build_sr, raw, vhd
from kit.cuts import read_mark
from kit.damage import DAMAGES
from kit.shell import OTHER_SCSI_ID, SCSI_ID, SR, content, patched, tree
from kit.sparse import SparseDisk
from kit.streams import BytesTerminal, Unwritable
from relvmoiscsi import cli, engine
from relvmoiscsi.host.disk.block_device import ImageFile, open_device

IDS = ("old_sr", "new_sr", "old_vg_id", "new_vg_id", "old_pv_id", "new_pv_id", "vdi_pairs", "other_uuids")
OTHER = "66666666-7777-4888-9999-aaaaaaaaaaaa"
YES = ("--yes", "--json")


def of(facts, keys=(*IDS, "lv_pairs")):
    """The ids of a result, old and new."""
    return {key: facts[key] for key in keys}


# --- the plan


def test_a_dry_run_prints_ids_and_writes_and_writes_nothing(image, command, unwritten):
    ran = unwritten(0, "resignature", image, "--dry-run", "--sr-uuid", SR)
    assert ran.out.startswith(f"{image}: dry run. These writes are planned; nothing was written.\n")
    assert f"  SR   {tree().truth.sr_uuid}  would become  {SR}\n" in ran.out
    assert [line.split()[-1] for line in ran.out.splitlines() if "label: " in line] == ["progress", "switched", "final"]

    found = unwritten(0, "resignature", image, "--dry-run", "--json").json
    assert (found["state"], found["writes"], found["bytes_written"], found["flushes"]) == ("clean", 0, 0, 0)
    assert (found["already_done"], found["old_sr"]) == (False, tree().truth.sr_uuid)
    assert len(found["plan"]) > 5
    for write in found["plan"]:
        assert set(write) == {"device_offset", "length", "structure", "old_bytes", "new_bytes"}
        assert len(bytes.fromhex(write["new_bytes"])) == write["length"]
        assert write["old_bytes"] is None or len(write["old_bytes"]) == len(write["new_bytes"])


def test_a_dry_run_needs_no_right_to_write_and_nobody_to_stay_away(image, command):
    image.chmod(0o444)
    with open(str(image), "rb"):
        ran = command("resignature", image, "--dry-run", "--json")
    assert ran.status == 4 and ran.json["plan"], "the status of the run, and its plan"


def test_a_dry_run_can_be_carried_out_later_with_the_same_ids(image, original, command, tmp_path):
    planned = command("resignature", image, "--dry-run", "--json")
    done = command("resignature", original, *YES, "--map", map_file(tmp_path, planned.out)).json

    assert of(done) == of(planned.json)
    for write in planned.json["plan"]:
        patched(image, write["device_offset"], bytes.fromhex(write["new_bytes"]))
    by_hand, by_run = SparseDisk.from_file(str(image)), SparseDisk.from_file(str(original))
    own = by_hand.differences(by_run)  # the run's number, in its journal and in its mark
    journal = planned.json["plan"][0]
    assert all(
        part.offset == 512 or journal["device_offset"] <= part.offset < journal["device_offset"] + 65536 for part in own
    )
    assert by_hand.peek(512, 352)[20:] == by_run.peek(512, 352)[20:]


# --- the result


def test_text_says_what_became_what_and_what_it_cost_and_a_sparse_image_stays_sparse(image, command):
    before = os.stat(str(image)).st_blocks
    ran = command("resignature", image, "--yes")

    now, lines = command("show", image, "--json").json, ran.out.splitlines()
    assert lines[0] == f"{image} was resignatured."
    assert lines[1] == "  SR   {}  became  {}".format(tree().truth.sr_uuid, now["sr"])
    assert lines[3].split("  became  ")[1] == "{}  'Größe <é>'".format(now["vdis"][1]["vdi"])
    assert lines[-2].endswith(" KiB, 6 flushes") and ran.err == ""
    size = os.stat(str(image))
    assert size.st_size == tree().disk.size_bytes and size.st_blocks - before < 2048  # of 57 MiB at most one


def test_words_that_callers_take_for_success_are_in_the_driver_alone():
    package = shell.TOP / "relvmoiscsi"
    driver = [*(package / "sr_driver").rglob("*.py"), package / "pool/attach.py"]  # which is such a caller
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path not in driver]

    assert texts and not any(shell.CONTRACT in text.lower() for text in texts)


def test_a_name_of_an_image_may_be_anything(image, command):
    path = image.parent / "é \udcff 漢.img"
    image.rename(path)

    assert command("resignature", path, *YES).json["device"] == str(path).replace("\udcff", "\\xff")
    assert command("show", path).status == 0


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_finished_lun_with_other_ids_is_refused_with_the_option_that_helps(image, command, unwritten, more):
    assert command("resignature", image, *YES).status == 0
    said = " ".join(unwritten(4, "resignature", image, *YES, "--sr-uuid", OTHER, *more).err.split())
    assert "already has other ids" in said and "--again" in said


# --- the question


def test_yes_is_yes(image, command, type_in):
    type_in(" YES \n")
    ran = command("resignature", image)

    assert ran.status == 0 and ran.out.startswith(f"{image} was resignatured.")
    assert ran.out.endswith(f"flushes\nnext: relvmoiscsi check {image}\n")
    assert f"Give {image} these new identities? [y/N] " in ran.err
    shown = [line for line in ran.err.splitlines() if "would become" in line]
    assert any(tree().truth.uuids["data"] in line for line in shown)
    done = [line.replace("became", "would become") for line in ran.out.splitlines() if "became" in line]
    assert shown == done and not any("become" in line.split() for line in ran.out.splitlines())


@pytest.mark.parametrize("answer", ["", "yesterday\n", "no\ny\n"])
def test_anything_else_is_no(image, unwritten, type_in, answer):
    """Where nothing is typed (Ctrl-D), the message begins a line of its own."""
    type_in(answer)
    ran = unwritten(4, "resignature", image)
    line = "" if answer else "\n"
    assert ran.err.endswith(f"[y/N] {line}relvmoiscsi: Not confirmed. Nothing was written.\n") and not ran.out


@pytest.mark.parametrize(("data", "encoding"), [(b"\xc3\xb6\n", "ascii"), (b"\xff\n", "utf-8")])
def test_bytes_that_are_no_text_are_no(image, unwritten, monkeypatch, data, encoding):
    monkeypatch.setattr(sys, "stdin", BytesTerminal(data, encoding))
    ran = unwritten(4, "resignature", image)
    assert ran.err.endswith("[y/N] relvmoiscsi: Not confirmed. Nothing was written.\n") and not ran.out


@pytest.mark.parametrize(
    ("number", "status", "says"), [(errno.EIO, 130, "Interrupted."), (errno.EISDIR, 2, "Use --yes.")]
)
def test_a_terminal_that_was_closed_at_the_question_is_an_interruption(
    image, unwritten, monkeypatch, number, status, says
):
    """Its SIGHUP may come later than the error of the read, or be ignored."""

    class ClosedTerminal(io.StringIO):
        def isatty(self):
            return True

        def readline(self, *_):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sys, "stdin", ClosedTerminal())
    ran = unwritten(status, "resignature", image)
    assert says in ran.err and "bug" not in ran.err


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["no terminal", "JSON"])
@pytest.mark.parametrize("name", shell.WRITERS)
def test_where_nobody_can_be_asked_yes_must_be_said(lun_for, unwritten, type_in, monkeypatch, name, words):
    path, see = lun_for(name), ", or --dry-run to see the plan"
    if words:
        type_in("y\n")
    says = f" Nothing was written. Use --yes{see}.\n"
    assert unwritten(2, name, path, *words).err.endswith(says)
    monkeypatch.setattr(sys, "stdin", None)
    unwritten(2, name, path, says=says)


@pytest.mark.parametrize("stderr", [None, Unwritable()], ids=["closed", "full"])
@pytest.mark.parametrize("name", shell.WRITERS)
def test_a_question_that_nobody_sees_is_not_asked(lun_for, type_in, monkeypatch, stderr, name):
    path = lun_for(name)
    before = content(path)
    type_in("y\n")
    monkeypatch.setattr(sys, "stderr", stderr)

    assert cli.main([name, str(path)]) == 2
    assert content(path) == before


# --- choosing ids


OTHER_UUID = "0a0b0c0d-0000-4000-8000-00000000000a"


def map_file(tmp_path, facts):
    path = tmp_path / "map.json"
    path.write_text(facts if isinstance(facts, str) else json.dumps(facts), encoding="latin-1")
    return path


@pytest.mark.parametrize(
    "uuid, says",
    [
        ("", "is not a UUID"),
        (SR[:-1] + "g", "is not a UUID"),
        ("00000000-0000-0000-0000-000000000000", "is the nil UUID"),
        (tree().truth.uuids["disk"], "already on the LUN"),
    ],
)
def test_an_sr_uuid_that_is_none_or_on_the_lun_already_is_2(image, command, uuid, says):
    before = image.read_bytes()
    ran = command("resignature", image, "--yes", "--sr-uuid=" + uuid)
    assert ran.status == 2 and says in ran.err and image.read_bytes() == before


@pytest.mark.parametrize("by", ["resignature", "recover"])
def test_a_second_clone_gets_the_ids_of_the_first(request, original, command, tmp_path, by):
    image = request.getfixturevalue({"resignature": "image", "recover": "committed"}[by])
    first = command(by, image, *YES)
    second = command("resignature", original, *YES, "--map", map_file(tmp_path, first.out)).json

    assert of(second, IDS) == of(first.json, IDS)
    shown = [command("show", path, "--json").json for path in (image, original)]
    for facts in shown:
        del facts["device"], facts["one_vdi"]["problem"]  # which names the device
    assert shown[0] == shown[1]


@pytest.mark.parametrize("key", ["sr", "vdi_pairs"])
def test_a_part_of_a_map_is_enough(image, original, command, tmp_path, key):
    first = command("resignature", image, *YES).json
    part = {name: value for name, value in first.items() if name in (key, f"old_{key}", f"new_{key}")}
    if key == "vdi_pairs":  # those of the first clone are derived from the UUID of its SR
        part[key] = [{**row, "new_vdi": str(uuid.uuid4())} for row in part[key]]
    second = command("resignature", original, *YES, "--map", map_file(tmp_path, part)).json

    new = {
        "vdi_pairs": lambda rows: [row["new_vdi"] for row in rows],
    }
    assert part and all(new.get(key, str)(second[name]) == new.get(key, str)(part[name]) for name in part)
    assert (second["new_vg_id"] != first["new_vg_id"]) == (key != "sr"), "from the SR's UUID all the others follow"


def test_a_uuid_that_is_derived_for_another_sr_cannot_be_chosen(image, original, command, unwritten, tmp_path):
    """A journal with such a map would count for nothing: whoever writes the LUN could have written it."""
    part = {"vdi_pairs": command("resignature", image, *YES).json["vdi_pairs"]}
    words = ("--map", map_file(tmp_path, part))

    unwritten(2, "resignature", original, *YES, *words, says="derived from another UUID, or for another SR")


@pytest.mark.parametrize("kind", ["a result", "of the command map"])
def test_map_and_sr_uuid_may_agree_and_not_contradict(image, command, unwritten, tmp_path, kind):
    facts, says = {"old_sr": tree().truth.sr_uuid, "new_sr": SR}, "another SR UUID"
    if kind == "of the command map":
        disk = command("show", image, "--json").json["vdis"][0]["vdi"]
        facts, says = command("map", "--sr", SR, disk, "--json").json, f"is a map for the SR {SR}"
    words = ("--json", "--map", map_file(tmp_path, facts))

    for more in ((), ("--sr-uuid", SR)):
        assert unwritten(0, "resignature", image, "--dry-run", *words, *more).json["new_sr"] == SR
    unwritten(2, "resignature", image, "--yes", *words, "--sr-uuid", SR[:-1] + "6", says=says)


UUIDS, TRUTH = tree().truth.uuids, tree().truth
LVM_ID = "abcdef-ABCD-1234-abcd-ABCD-1234-abcdef"
BAD_MAPS = {
    "no JSON": "SR: new",
    "no UTF-8": '{"sr": "\xff"}',
    "sr a number": {"old_sr": 5, "new_sr": 6},
    "sr without new": {"old_sr": UUIDS["sr"]},
    "vdis of numbers": {"vdi_pairs": [5]},
    "lvs without id": {"lv_pairs": [{"old_lv": "MGT", "new_lv": "MGT"}]},
    "an unknown UUID": {"uuids": {OTHER: SR}},
    "a UUID with a newline": {"old_sr": UUIDS["sr"], "new_sr": SR + "\n"},
    "no LVM id": {"lvm_ids": {TRUTH.vg_id: "abc"}},
    "a UUID for an LVM id": {"old_vg_id": TRUTH.vg_id, "new_vg_id": SR},
    "two choices for one UUID": {"uuids": {UUIDS["sr"]: SR}, "old_sr": UUIDS["sr"], "new_sr": OTHER},
    "one LVM id twice": {"lvm_ids": {TRUTH.vg_id: LVM_ID, TRUTH.pv_id: LVM_ID}},
    "an LVM id that is not derived": {"old_sr": UUIDS["sr"], "new_sr": SR, "lvm_ids": {TRUTH.vg_id: LVM_ID}},
    "two UUIDs exchanged": {"uuids": {UUIDS["disk"]: UUIDS["data"], UUIDS["data"]: UUIDS["disk"]}},
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_bad_map_is_2_and_nothing_is_written(image, unwritten, tmp_path, name):
    ran = unwritten(2, "resignature", image, *YES, "--map", map_file(tmp_path, BAD_MAPS[name]))

    assert (ran.json["state"], ran.json["error"]["class"]) == ("clean", "UsageError")
    assert not any(word in ran.err for word in ("Error", "object", "NoneType", "expected string"))


def test_a_map_that_is_not_there_is_2(image, unwritten, tmp_path):
    unwritten(2, "resignature", image, "--yes", "--map", tmp_path / "missing.json", says="missing.json")


@pytest.mark.parametrize("option", ["--sr-uuid", "--map"])
def test_ids_that_were_chosen_otherwise_are_refused(finished, unwritten, tmp_path, option):
    """A script relies on the ids that it has chosen."""
    choice = OTHER if option == "--sr-uuid" else map_file(tmp_path, {"old_sr": tree().truth.sr_uuid, "new_sr": OTHER})
    ran = unwritten(4, "resignature", finished, "--yes", option, choice, says="--again")

    assert OTHER in ran.err and SR in ran.err
    unwritten(0, "resignature", finished, "--yes", "--sr-uuid", SR)


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("more", [("--yes",), ("--dry-run",)])
def test_a_finished_lun_is_refused_for_a_map_of_another_sr(finished, unwritten, command, tmp_path, has_journal, more):
    """Without its journal, the LUN shows its new ids alone: a map with these new ids is its own."""
    ran = command("resignature", finished, *YES)
    own = ran.json
    if not has_journal:
        with open_device(str(finished), writable=False) as device:
            at = read_mark(device).journal.offset
        patched(finished, at, bytes(512))
    there = own["lv_pairs"][0]["old_lv_id"], own["vdi_pairs"][0]["old_vdi"]

    unwritten(0, "resignature", finished, *more, "--map", map_file(tmp_path, ran.out))
    for other in ({"lvm_ids": {there[0]: "x" * 32}}, {"uuids": {there[1]: OTHER}}, {"uuids": {OTHER: there[1]}}):
        unwritten(4, "resignature", finished, *more, "--map", map_file(tmp_path, other), says="already has other ids")


# --- once more


@pytest.mark.parametrize("options", [[], ["--scsi-id", SCSI_ID]])
def test_a_second_run_has_nothing_to_do_and_writes_nothing_to_a_lun_that_may_be_in_use(
    request, command, unwritten, options
):
    image = request.getfixturevalue("lun" if options else "image")
    first = command("resignature", image, *YES, *options).json
    image.chmod(0o444)

    with open(str(image), "rb"):
        text = unwritten(0, "resignature", image, "--yes", *options)
        second = unwritten(0, "resignature", image, *YES, *options).json
    new_sr = first["new_sr"]
    done, *rest = text.out.splitlines()
    assert done == f"{image} was already resignatured, as SR {new_sr}. Nothing was written."
    assert rest == ([] if options else [if_copy(image)])
    assert (second["already_done"], second["writes"], second["state"]) == (True, 0, "resignatured")
    assert of(second, (*IDS, "lv_pairs", "run_scsi_id")) == of(first, (*IDS, "lv_pairs", "run_scsi_id"))
    planned = unwritten(0, "resignature", image, "--dry-run", "--json", *options).json
    assert planned["already_done"] is True and "plan" not in planned


def test_already_done_without_the_map_once_lvm_has_reclaimed_the_journal(finished, unwritten, command, tmp_path):
    with open_device(str(finished), writable=False) as device:
        at = read_mark(device).journal.offset
    patched(finished, at, bytes(512))

    ran = unwritten(0, "resignature", finished, *YES)
    assert (ran.json["already_done"], ran.json["old_sr"], ran.json["new_sr"]) == (True, None, SR)
    assert "vdi_pairs" not in ran.json
    unwritten(4, "undo", finished, "--yes")
    unwritten(2, "resignature", finished, "--yes", "--again", "--map", map_file(tmp_path, ran.out))


@pytest.mark.parametrize("first", ["resignature", "show", "check"])
def test_a_lun_that_was_damaged_after_its_resignature_is_not_done_and_the_message_leads_on(
    finished, unwritten, command, first
):
    disk = SparseDisk.from_file(str(finished))
    DAMAGES["VHD header"](disk)
    disk.to_file(str(finished))

    ran = unwritten(0 if first == "show" else 5, first, finished, *(["--yes"] if first == "resignature" else []))

    (again,) = set(re.findall("`relvmoiscsi (resignature .*? --again --without .*?)`", ran.out + ran.err))
    assert command(*shlex.split(again), "--yes").status == 0
    assert command("show", finished, "--json").json["state"] == "resignatured"


def test_a_uuid_in_capitals_is_the_uuid(image, tmp_path, command):
    uuids = tree().truth.uuids
    by_map = {"uuids": {uuids["disk"].upper(): OTHER_UUID.upper()}}
    words = ("--sr-uuid", SR.upper(), "--without", uuids["data"].upper(), "--map", map_file(tmp_path, by_map))

    facts = command("resignature", image, *YES, *words, "--json").json

    made = {pair["old_vdi"]: pair["new_vdi"] for pair in facts["vdi_pairs"]}
    assert (facts["new_sr"], made[uuids["disk"]]) == (SR, OTHER_UUID) and uuids["data"] not in made
    derived = command("map", "--sr", SR.upper(), uuids["base"].upper(), "--json").json
    assert derived["new_sr"] == SR and derived["uuids"] == {uuids["base"]: made[uuids["base"]]}


def test_again_takes_no_id_that_the_last_run_has_replaced(finished, command, unwritten):
    """The original, on which these ids are still, would be beside the clone."""
    truth, again = tree().truth, ("resignature", finished, "--yes", "--again")
    of_original = "is an id of the original: the last resignature of the LUN has replaced it. Nothing was written."
    unwritten(2, *again, "--sr-uuid", truth.sr_uuid, says=f"The new id {truth.sr_uuid} {of_original}")

    assert command("undo", finished, "--yes").status == 0  # a later run may take the ids that an undo has removed
    assert command("resignature", finished, "--yes", "--sr-uuid", SR).status == 0


def test_again_is_a_new_resignature(finished, command, unwritten):
    planned = unwritten(0, "resignature", finished, "--dry-run", "--json", "--again").json
    second = command("resignature", finished, *YES, "--again").json

    assert planned["state"] == "resignatured" and planned["plan"]
    assert (second["already_done"], second["old_sr"]) == (False, SR) and second["new_sr"] != SR
    assert command("show", finished, "--json").json["sr"] == second["new_sr"]


def if_copy(image):
    return (
        f"No SCSIid tells whether {image} is a copy of the LUN that was resignatured. If it is, "
        f"`relvmoiscsi resignature --again {image}` gives {image} identities of its own."
    )


@pytest.mark.parametrize("fixture", ["finished", "committed"])
def test_a_copy_of_an_image_whose_run_is_over_or_was_cut_is_told_how_it_gets_identities_of_its_own(
    request, fixture, command, tmp_path
):
    """The run on the copy ended with 0, and the copy had the identities of the image."""
    first, copy = request.getfixturevalue(fixture), tmp_path / "copy.img"
    shutil.copyfile(str(first), str(copy))
    command("recover", first, "--yes")

    said = command("resignature", copy, "--yes")

    assert said.status == 0 and if_copy(copy) in said.out.splitlines()
    checked = command("check", copy, "--original", first)
    assert checked.status == 4 and checked.out.splitlines()[-1] == (
        f"Attach neither beside the other. If {copy} is the copy, `relvmoiscsi resignature --again {copy}` gives "
        f"{copy} identities of its own."
    )
    assert command("resignature", "--again", copy, "--yes").status == 0
    assert command("show", copy, "--json").json["sr"] not in (SR, tree().truth.sr_uuid)


@pytest.mark.parametrize("more", [("--yes",), ("--dry-run",)])
def test_later_copy_of_an_image_is_refused_with_the_option_that_is_meant(finished, unwritten, more):
    ran = unwritten(4, "resignature", finished, "--later-copy", *more, says="by which --later-copy would know a copy.")
    assert f"Nothing was written. {if_copy(finished)}" in ran.err


@pytest.fixture
def later_copy(lun, command, has_scsi_id):
    """A LUN that was resignatured as SCSI_ID, and is OTHER_SCSI_ID now."""
    assert command("resignature", lun, "--yes", "--scsi-id", SCSI_ID).status == 0
    has_scsi_id(OTHER_SCSI_ID)
    return lun


NAMED = ("--yes", "--scsi-id", OTHER_SCSI_ID)


def says_of(lun, was=f"LUN {SCSI_ID!r}"):
    return f"{lun} was resignatured as {was}, and is the LUN {OTHER_SCSI_ID} now: it is taken for a later copy."


def test_a_script_must_say_that_a_lun_under_another_scsi_id_is_a_later_copy(later_copy, command, unwritten):
    """A target that fails over gives the LUN a new SCSIid: it was resignatured once more, with a pool on it."""
    ran = unwritten(4, "resignature", later_copy, *NAMED, "--json", says=says_of(later_copy))
    assert (ran.json["state"], ran.json["error"]["disk_state"]) == ("resignatured", "Nothing was written.")
    assert "later copy. Nothing was written. If it is a copy, add --later-copy. " in ran.err
    ran = unwritten(4, "resignature", later_copy, *NAMED, "--dry-run", "--json", says=says_of(later_copy))
    assert ran.json["later_copy"] == {"run_scsi_id": SCSI_ID, "scsi_id": OTHER_SCSI_ID}


@pytest.mark.parametrize("word", ["--later-copy", "--again"])
def test_with_the_word_a_later_copy_gets_new_identities_and_is_told_as_one(later_copy, command, word):
    ran = command("resignature", later_copy, *NAMED, "--json", word)
    assert (ran.status, ran.json["later_copy"]) == (0, {"run_scsi_id": SCSI_ID, "scsi_id": OTHER_SCSI_ID})
    assert says_of(later_copy) in ran.err
    again = command("resignature", later_copy, *NAMED, "--json").json
    assert again["already_done"] and "later_copy" not in again


def test_a_later_copy_whose_journal_lvm_has_reclaimed_is_one_of_another_lun(later_copy, unwritten):
    with open_device(str(later_copy), writable=False) as device:
        at = read_mark(device).journal.offset
    patched(later_copy, at, bytes(512))

    ran = unwritten(
        4, "resignature", later_copy, *NAMED, "--dry-run", "--json", says=says_of(later_copy, "another LUN")
    )
    assert ran.json["later_copy"] == {"run_scsi_id": None, "scsi_id": OTHER_SCSI_ID}


@pytest.mark.parametrize("typed, status", [("y\n", 0), ("n\n", 4)])
def test_a_person_is_asked_whether_it_is_a_later_copy(later_copy, command, type_in, typed, status):
    type_in(typed)
    ran = command("resignature", later_copy, "--scsi-id", OTHER_SCSI_ID)
    assert ran.status == status and says_of(later_copy) in ran.err
    assert f"Give {later_copy} these new identities, as a later copy? [y/N] " in ran.err


def test_clear_metadata_vdi_is_refused_where_a_run_without_it_is_done(tmp_path, command, unwritten):
    """It was passed over without a word, and a pool would have written into the copy."""
    volume = raw("database", vdi_type="metadata")
    volume = volume._replace(record=volume.record._replace(metadata_of_pool="OpaqueRef:a-pool"))
    path = tmp_path / "clone.img"
    build_sr([vhd("disk"), volume]).disk.to_file(str(path))
    words = ("resignature", path, "--yes", "--clear-metadata-vdi")
    assert command("resignature", path, "--yes").status == 0

    ran = unwritten(4, *words, says="is marked as a database of a pool still")
    (again,) = re.findall("run `relvmoiscsi (.*?)`", ran.err)
    assert command(*shlex.split(again), "--yes").status == 0
    assert "already resignatured" in command(*words).out


# --- after a run that was cut


@pytest.mark.parametrize("answer, status", [("y\n", 0), ("n\n", 4)])
def test_before_a_cut_run_is_finished_there_is_a_question(committed, command, type_in, answer, status):
    type_in(answer)
    ran = command("resignature", committed)
    assert ran.status == status and f"Finish the resignature to SR {SR}? [y/N] " in ran.err
    assert command("show", committed, "--json").json["state"] == ("unfinished" if status else "resignatured")


@pytest.fixture
def cut_copy(lun, command, monkeypatch, has_scsi_id):
    """A copy of the LUN SCSI_ID, whose resignature was cut; it is the LUN OTHER_SCSI_ID itself."""
    with monkeypatch.context() as patch:
        shell.cut(patch, 5)
        command("resignature", lun, "--yes", "--scsi-id", SCSI_ID)
    has_scsi_id(OTHER_SCSI_ID)
    return lun


@pytest.mark.parametrize(
    "typed, state, ending",
    [
        ("n\n", "unfinished", "Nothing was written."),
        ("y\nn\n", "clean", "The resignature that was cut was rolled back; nothing else was written."),
        ("y\ny\n", "resignatured", ""),
    ],
)
def test_before_each_of_the_two_there_is_a_question(cut_copy, command, type_in, typed, state, ending):
    type_in(typed)
    ran = command("resignature", cut_copy, "--scsi-id", OTHER_SCSI_ID)

    assert f"is a copy of a LUN whose resignature was cut (SCSIid {SCSI_ID!r}); this run rolls" in ran.err
    assert "Roll the interrupted resignature back? [y/N] " in ran.err and ran.err.rstrip().endswith(ending)
    assert command("show", cut_copy, "--json").json["state"] == state


@pytest.mark.parametrize(
    "lun, goes_on", [("unfinished", "rolls it back first and starts a new run"), ("committed", "finishes it")]
)
def test_a_dry_run_does_not_finish_a_cut_run_and_says_that_a_run_does(request, unwritten, command, lun, goes_on):
    """The status 8 is of the dry run alone: a run does something else first."""
    lun = request.getfixturevalue(lun)
    says = f"A dry run plans nothing on such a LUN. The same call without --dry-run {goes_on}."

    assert unwritten(8, "resignature", lun, "--dry-run", "--json", says=says).json["state"] == "unfinished"

    assert command("resignature", lun, *YES).status == 0


def test_a_cut_undo_is_not_finished_by_a_resignature(finished, command, unwritten, monkeypatch):
    with monkeypatch.context() as patch:
        shell.cut(patch, 4)
        command("undo", finished, "--yes")
    unwritten(8, "resignature", finished, *YES, says=f"`relvmoiscsi recover {finished}`")


# --- the step after a dry run

OTHER_IDS = "A run makes other new ids, unless --map-out saves these.\n"


def test_the_ids_of_a_chosen_sr_are_those_of_the_run(image, command):
    assert OTHER_IDS not in command("resignature", image, "--dry-run", "--sr-uuid", OTHER_UUID).out


@pytest.mark.parametrize("has_map", [False, True])
@pytest.mark.parametrize("words", [(), ("--vdis", "one", "--vdi", UUIDS["disk"]), ("--without", UUIDS["snapshot"])])
def test_the_step_after_a_dry_run_is_the_planned_run(image, command, tmp_path, words, has_map):
    """With --map-out, its file has the ids of the plan: the run makes the same ids. Without it, that is said."""
    path, planned = tmp_path / "map.json", command("resignature", image, "--dry-run", "--json", *words).json
    ran = command("resignature", image, "--dry-run", *words, *(("--map-out", path) if has_map else ()))
    mark, *step = shlex.split(ran.out.splitlines()[-1])
    assert (mark, step[0], step[-1], "--map" in step) == ("next:", "relvmoiscsi", str(image), has_map)
    assert (OTHER_IDS in ran.out) is not has_map

    done = command(*step[1:], "--yes", "--json")

    assert done.status == 0, done.err
    stay, pairs = ([row["old_vdi"] for row in found["vdi_pairs"]] for found in (planned, done.json))
    assert stay == pairs
    if has_map:
        planned = json.loads(path.read_text())
        assert [done.json[key] for key in ("new_sr", "vdi_pairs")] == [planned[key] for key in ("new_sr", "vdi_pairs")]


# --- images that somebody else has, or that are to stay as they are


@pytest.mark.parametrize("argv", [("resignature", "--again"), ("recover",), ("undo",)])
def test_a_read_only_image_is_4(request, unwritten, argv):
    image = request.getfixturevalue("unfinished" if argv == ("recover",) else "finished")
    image.chmod(0o444)
    unwritten(4, argv[0], image, *YES, *argv[1:], says="read-only")


@pytest.mark.parametrize("argv", [("resignature", "--again"), ("undo",), ("recover",)])
def test_a_dry_run_says_that_the_image_is_read_only(request, command, argv):
    image = request.getfixturevalue("unfinished" if argv == ("recover",) else "finished")
    for mode, is_told in ((0o644, False), (0o444, True)):
        image.chmod(mode)
        ran = command(argv[0], image, *argv[1:], "--dry-run", "--json")
        assert (ran.status, bool(ran.json["would_be_refused"])) == (4 if is_told else 0, is_told)
        assert ("would be refused: " in ran.err and "is read-only" in ran.err) is is_told


@pytest.mark.processes
def test_an_image_that_another_process_has_open_is_4_and_the_process_is_named(finished, unwritten, leases):
    leases(0)
    with open(str(finished), "rb") as image:
        holder = subprocess.Popen(["sleep", "3600"], stdin=image)
    try:
        for argv in (("resignature", "--again"), ("undo",)):
            says = f"{finished} is in use by process {holder.pid} (sleep)"
            unwritten(4, argv[0], finished, *YES, *argv[1:], says=says)
            dry = unwritten(4, argv[0], finished, "-n", "--json", *argv[1:], says=says)
            assert dry.json["would_be_refused"] == says + ". Try again when that use has ended."
        unwritten(0, "recover", finished, *YES)  # no run was interrupted: there is nothing to refuse
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.processes
def test_a_second_run_on_the_same_image_is_4_while_the_first_one_asks_at_its_terminal(image, command, leases):
    """The terminal has the question also where stderr is a file: the run waited for an answer to what nobody saw."""
    leases(0)
    master, slave = os.openpty()
    first = shell.start("resignature", image, stdin=slave)
    os.close(slave)
    try:
        told = b""
        while b"[y/N] " not in told:
            assert select.select([master], [], [], 600)[0], "the terminal has no question"
            told += os.read(master, 65536) or pytest.fail(told.decode("utf-8"))
        second = command("resignature", image, *YES)
        os.write(master, b"y\n")
        out, err = first.communicate(timeout=600)
    finally:
        first.kill()
        first.wait()
        os.close(master)

    assert second.status == 4 and second.json["state"] == "clean" and f"process {first.pid} " in second.err
    assert (first.returncode, err) == (0, b"")
    assert out.decode("utf-8").startswith(f"{image} was resignatured.\n")


# --- a device that fails, and a bug


def failing(monkeypatch, first, failing_action="write"):
    """The operations from the `first` one on fail."""
    count, real = [0], ImageFile._transfer_some

    def transfer(device, action, view, offset):
        count[0] += action == failing_action
        if action == failing_action and first <= count[0]:
            raise OSError(errno.EIO, "Input/output error")
        return real(device, action, view, offset)

    monkeypatch.setattr(ImageFile, "_transfer_some", transfer)


UNTOUCHED = "{} is as it was; beyond that only free space of the metadata area was written."
RECOVERS = "`relvmoiscsi recover {}` finishes it"


@pytest.mark.parametrize("name", ["resignature", "recover"])
@pytest.mark.parametrize(
    "first, state, says",
    [(1, "clean", UNTOUCHED), (4, "unfinished", RECOVERS), (-1, "unfinished", RECOVERS)],
    ids=["journal", "contents", "behind the commit"],
)
def test_a_write_that_fails_is_7_and_the_message_says_what_to_do(image, command, monkeypatch, first, state, says, name):
    if first < 0:
        first = len(command("resignature", image, "--dry-run", "--json").json["plan"])
    with monkeypatch.context() as patch:
        failing(patch, first)
        ran = command("resignature", image, *YES, "--sr-uuid", SR)

    assert (ran.status, ran.json["state"]) == (7, state)
    assert says.format(image) in ran.json["error"]["advice" if says == RECOVERS else "disk_state"]
    is_old = name == "recover" and first < 10
    assert command(name, image, *YES).json["state"] == ("clean" if is_old else "resignatured")


@pytest.mark.parametrize("name", ["show", *shell.WRITERS])
def test_a_read_that_fails_is_7(finished, command, monkeypatch, name):
    failing(monkeypatch, 1, "read")
    ran = command(name, finished, "--json", *(["--yes"] if name in shell.WRITERS else []))

    assert (ran.status, ran.json["state"]) == (7, None) and "read of" in ran.err


@pytest.mark.parametrize("argv, function", [(("resignature", "--yes"), "find_done"), (("show",), "inspect")])
def test_a_bug_is_70_with_its_traceback(finished, command, monkeypatch, argv, function):
    def broken(*_):
        raise RuntimeError("cannot happen")

    monkeypatch.setattr(engine, function, broken)
    ran = command(argv[0], finished, *argv[1:])

    assert ran.status == 70 and not ran.out
    assert "Traceback (most recent call last)" in ran.err and "RuntimeError: cannot happen" in ran.err
    assert ran.err.endswith(f"`relvmoiscsi show {finished}` shows the state of {finished}.\n")
    monkeypatch.setattr(sys, "stderr", Unwritable())
    assert cli.main([argv[0], str(finished), *argv[1:]]) == 70
