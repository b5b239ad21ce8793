# SPDX-License-Identifier: LGPL-2.1-only
"""`recover` and `undo`: after a run that was cut by kill -9, and after one that was not.

Cut at each operation: test_interrupted.py, and tests/unit/resignature/writing/test_every_cut.py, also in a recovery.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

from kit import shell
from kit.advised import commands_in
from kit.builder import build_sr, vhd
from kit.cuts import read_mark
from kit.examples import WHOLE
from kit.shell import (
    CHECK_ORIGINAL,
    OTHER_SCSI_ID,
    SCSI_ID,
    SR,
    TOP,
    compare,
    content,
    flipped,
    if_clone,
    pair,
    patched,
    tree,
)
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.resignature.protocol import commit_record, journal

TAKE_WHOLE = "Take the copy again from the array, on a LUN of the original's size."


def writes_of_a_run(image, command):
    """How many writes a resignature makes."""
    return len(command("resignature", image, "--dry-run", "--json").json["plan"])


def state(image, command):
    return command("show", image, "--json").json["state"]


@pytest.fixture
def small(tmp_path):
    """The LUN of `shell.pair`."""
    path = tmp_path / "small.img"
    pair().disk.to_file(str(path))
    return path


@pytest.fixture
def small_original(small):
    path = small.parent / "small original.img"
    pair().disk.to_file(str(path))
    return path


# --- a run that ends in the middle


def interposed(monkeypatch, number, act):
    """`act(real, device, chunks)` in place of the write of this number, from 1 on; `real` is that write."""
    real, left = HostDevice.write, [number]

    def write(device, chunks):
        left[0] -= 1
        if left[0]:
            real(device, chunks)
        else:
            act(real, device, chunks)

    monkeypatch.setattr(HostDevice, "write", write)


def test_a_run_that_another_host_has_settled_is_10_and_the_state_is_that_of_the_lun(small, command, monkeypatch):
    def settle(real, device, chunks):
        """Another host rolls the run back; it has another path to the same bytes."""
        disk = SparseDisk.from_file(str(small))
        before = disk.copy()
        engine.recover(disk)
        for part in disk.differences(before):
            patched(small, part.offset, disk.peek(*part))
        real(device, chunks)

    interposed(monkeypatch, 3, settle)
    ran = command("resignature", small, "--yes", "--json")
    assert (ran.status, ran.json["error"]["exit_status"], ran.json["error"]["class"]) == (10, 10, "Overtaken")
    assert ran.json["state"] == "clean"
    assert "changed at byte 512 during this run" in ran.json["error"]["message"]
    assert ran.json["error"]["disk_state"] == "Something else has changed the label since."
    assert f"`relvmoiscsi show {small}`" in ran.json["error"]["advice"]


def test_a_run_that_loses_a_write_behind_its_mark_is_8_and_recover_settles_it(small, command, monkeypatch):
    """The LUN is in the middle of a run, whatever the reason; 4 would say that nothing was written."""
    interposed(monkeypatch, 3, lambda real, device, chunks: real(device, chunks[:-1]))
    ran = command("resignature", small, "--yes", "--json")
    assert (ran.status, ran.json["error"]["exit_status"], ran.json["error"]["class"]) == (8, 8, "Unfinished")
    assert ran.json["state"] == "unfinished"
    assert "does not hold what was written" in ran.json["error"]["message"]
    assert f"`relvmoiscsi recover {small}` finishes it or rolls it back" in ran.json["error"]["advice"]
    assert command("recover", small, "--yes").status == 0
    assert state(small, command) == "clean"


def test_show_says_of_an_unfinished_undo_that_undo_again_completes_it(small, command, monkeypatch):
    assert command("resignature", small, "--yes").status == 0
    with monkeypatch.context() as patch:
        interposed(patch, 3, lambda real, device, chunks: real(device, chunks[:-1]))
        assert command("undo", small, "--yes").status == 8
    assert f"or `relvmoiscsi undo {small}` again, which completes it." in command("show", small).out
    assert command("undo", small, "--yes").status == 0 and state(small, command) == "clean"


@pytest.mark.parametrize("end", ["undone", "rolled back", "undo finished"])
def test_what_takes_a_second_resignature_back_says_which_sr_the_lun_is_again_and_names_again(
    small, command, monkeypatch, end
):
    """It said that no host may attach the clone, and named a command that did nothing."""
    first = command("resignature", small, "--yes", "--json").json["new_sr"]
    again = ("resignature", "--again", small, "--yes")
    with monkeypatch.context() as patch:
        if end == "rolled back":
            interposed(patch, 3, lambda real, device, chunks: real(device, chunks[:-1]))
        assert command(*again).status == (8 if end == "rolled back" else 0)
    if end == "undo finished":
        planned = command("undo", small, "--dry-run", "--json").json["plan"]
        with monkeypatch.context() as patch:
            shell.cut(patch, len(planned) - 2)
            assert command("undo", small, "--yes").status == 130

    ran = command("undo" if end == "undone" else "recover", small, "--yes")

    assert ran.out.splitlines()[-2:] == [
        f"It is the SR {first} again, which an earlier resignature made of the clone.",
        if_clone(f"relvmoiscsi resignature --again {small}"),
    ]
    shown = command("show", small, "--json").json
    assert (shown["state"], shown["sr"]) == ("resignatured", first)
    assert command(*again).status == 0
    assert command("undo", small, "--yes", "--json").json["state"] == "resignatured"


MAP = {"old_vg_id", "new_vg_id", "old_pv_id", "new_pv_id", "vdi_pairs", "lv_pairs", "other_uuids", "uuids", "lvm_ids"}


@pytest.mark.parametrize("end", ["recover", "undo"])
@pytest.mark.parametrize("lun", ["unfinished", "committed"])
def test_a_rollback_has_no_map_to_ids_that_the_lun_never_had(request, command, lun, end):
    """The text had none, and a program took the map for one of UUIDs that its records have."""
    path, old = request.getfixturevalue(lun), tree().truth.sr_uuid
    for more in ("--dry-run", "--yes"):
        facts = command(end, path, more, "--json").json
        if lun == "unfinished":
            assert not MAP & set(facts) and (facts["old_sr"], facts["new_sr"]) == (None, old)
        else:
            assert facts["vdi_pairs"] and {facts["old_sr"], facts["new_sr"]} == {old, SR}


# --- kill -9


@pytest.mark.processes
def test_kill_9_between_any_two_writes_leaves_a_lun_that_recover_settles(small, small_original, command):
    total = writes_of_a_run(small, command)
    edges = range(total + 1) if WHOLE else (2, 3, total - 3, total - 2, total)  # the last three: commit, header, label
    for written in edges:
        pair().disk.to_file(str(small))
        tool = [sys.executable, str(TOP / "tools" / "cut_power.py"), str(small), str(written)]
        pipe = subprocess.PIPE
        killed = subprocess.run(tool, check=False, stdout=pipe, stderr=pipe, universal_newlines=True)

        assert killed.returncode == (-9 if written < total else 1)
        assert killed.stderr == ("" if written < total else f"it was over before {total} writes\n")
        old, planned = re.findall(r"[0-9a-f-]{36}", killed.stdout)
        is_old = written < total - 2
        shown = command("show", small, "--json").json
        assert shown["state"] == ("clean" if written < 3 else "unfinished" if written < total else "resignatured")
        ran = command("recover", small, "--yes", "--json")
        assert ran.status == 0
        if shown["state"] == "unfinished":
            assert (shown["run"]["old_sr"], shown["run"]["new_sr"]) == (old, planned)
            assert (ran.json["old_sr"], ran.json["new_sr"]) == ((None, old) if is_old else (old, planned))
        else:
            assert (ran.json["already_done"], ran.json["writes"], ran.json["state"]) == (True, 0, shown["state"])
            assert ran.json["new_sr"] == shown["sr"] and ran.json["lun"]["sr"] == shown["sr"]
        assert command("show", small, "--json").json["sr"] == (old if is_old else planned)
        assert command("check", small, "--original", small_original).status == (4 if is_old else 0)


# --- recover


@pytest.mark.parametrize("lun", ["unfinished", "committed"])
def test_recover_says_what_it_took_back_or_finished_and_twice_is_once(request, command, unwritten, lun):
    path, ids = request.getfixturevalue(lun), (tree().truth.sr_uuid, SR)
    ran = command("recover", path, "--yes")
    lines = ran.out.splitlines()
    assert ran.status == 0
    assert not ran.err or "Another host may have begun the run" in ran.err  # the LUN comes from nobody of this host
    if lun == "unfinished":
        said = "the resignature was interrupted before its commit and has been rolled back."
        assert lines[-1] == if_clone(f"relvmoiscsi resignature {path}")
    else:
        said = "the resignature was finished."
    assert lines[0] == f"{path}: {said}"
    if lun == "committed":  # of the other, the LUN never had the new ids
        assert lines.pop(1) == "  SR   {}  became  {}".format(*ids)
        assert [line.split()[0] for line in lines[1:5]] == ["VDI"] * 4
        del lines[1:5]
    assert lines[1].endswith(" flushes")
    now = "clean" if lun == "unfinished" else "resignatured"
    told = f"{path}: no run was interrupted; state {now}. Nothing was written.\n"
    after = if_clone(f"relvmoiscsi resignature {path}") if lun == "unfinished" else compare(path)
    assert unwritten(0, "recover", path).out == f"{told}{after}\n"


def journal_of(lun):
    with open_device(str(lun), writable=False) as device:
        return read_mark(device).journal


@pytest.mark.parametrize("lun, done", [("unfinished", "rolled back"), ("committed", "finished")])
def test_recover_of_a_damaged_lun_ends_the_run_and_then_names_the_defects_and_the_command_that_goes_on(
    request, lun, done, command, unwritten
):
    path, state_now = request.getfixturevalue(lun), f"The resignature was {done}."
    flipped(path, tree().truth.device_ranges("disk", 64, 1)[0].offset)
    assert unwritten(8, "check", path).out.splitlines()[-1] == f"next: relvmoiscsi recover {path}"

    dry, planned = unwritten(5, "recover", path, "-n"), unwritten(5, "recover", path, "-n", "--json").json
    assert dry.out.startswith(f"{path}: dry run. A run would make ") and not dry.err
    assert dry.out.endswith(f"Nothing was written.\nnext: relvmoiscsi recover {path}\n")
    assert (planned["state"], planned["writes"]) == ("unfinished", 0) and len(planned["defects"]) == 1
    before = content(path)[0]
    ran = command("recover", path, "--yes")
    before.to_file(str(path))
    facts = command("recover", path, "--yes", "--json")

    assert ran.status == facts.status == 5 and len(facts.json["defects"]) == 1
    assert re.match(rf"{path}: the resignature was (interrupted before its commit and has been )?{done}\.\n", ran.out)
    *_rest, damaged, defect, said, look = ran.out.splitlines()
    assert (damaged, said) == (f"{path}: damaged, 1 defect:", state_now) and "VHD footer" in defect
    assert look == CHECK_ORIGINAL
    (without,) = [words for words in commands_in(defect) if "--without" in words]
    assert (facts.json["state"], facts.json["error"]["disk_state"]) == ("damaged", state_now)
    assert facts.json["writes"] == len(planned["plan"]) and facts.json["new_sr"] == planned["new_sr"]
    assert "xe sr-introduce" not in ran.out
    assert command(*without.split()[1:], "--yes", *(["--again"] if done == "finished" else [])).status == 0


@pytest.mark.parametrize(
    "lun, place, status, why",
    [
        ("unfinished", lambda run: run.mdas[0].original.offset + 40, 4, "recover is refused"),
        ("committed", lambda run: run.mdas[0].second.offset + 40, 4, "recover is refused"),
        ("unfinished", None, 5, "its journal cannot be read"),
        ("committed", None, 5, "its journal cannot be read"),
    ],
)
def test_a_command_names_recover_only_where_recover_ends_the_run_and_ends_as_recover_elsewhere(
    request, lun, place, status, why, unwritten, type_in
):
    path = request.getfixturevalue(lun)
    journal_here = journal_of(path)
    flipped(path, journal_here.offset + 100 if place is None else place(journal_here.run))
    type_in("")  # nobody is asked

    told = [unwritten(status, "check", path, "--json").json["error"]]
    for words in (["recover", path, "-n"], ["recover", path], ["recover", path, "--yes"]):
        ran = unwritten(status, *words)
        verdict, message = ran.out.splitlines()
        assert verdict == f"{path}: state unfinished; a run was interrupted, and {why}." and not ran.err
        assert message.endswith(" Nothing was written. Take the clone again.")
        told.append(unwritten(status, *words, "--yes", "--json").json["error"])
    for words in (["resignature", path, "-n"], ["resignature", path, "--yes"], ["undo", path], ["undo", path, "-n"]):
        told.append(unwritten(status, *words, "--yes", "--json").json["error"])
    assert len({error["message"] for error in told}) == 1, told
    assert {error["advice"] for error in told} == {"Take the clone again."}


@pytest.mark.parametrize("lun", ["unfinished", "committed", "finished"])
@pytest.mark.parametrize("left", ["not the last write", "all writes"])
def test_a_lun_that_is_too_short_is_called_truncated_first_and_needs_another_copy(
    request, lun, left, unwritten, command
):
    path = request.getfixturevalue(lun)
    whole, run = content(path)[0], journal_of(path).run
    end = max(write.range.end for write in run.writes)
    size = end - 512 if left == "not the last write" else end
    assert size < os.path.getsize(path)
    os.truncate(path, size)
    last = " ".join(["The copy is truncated.", "Nothing was written.", TAKE_WHOLE])

    writers = ["recover", "resignature", "undo"] if lun != "finished" else ["undo"]
    errors = [unwritten(5, word, path, "--yes", "--json").json["error"] for word in writers]
    if lun != "finished":
        shown, ran, told = command("show", path), unwritten(5, "check", path), unwritten(5, "recover", path, "--yes")
        assert ran.out.startswith(f"{path}: state unfinished, the copy is truncated.\nPhysical volume at byte 0 of ")
        assert TAKE_WHOLE in " ".join(shown.out.split()) and "next:" not in shown.out + ran.out + told.out
        verdict, message = told.out.splitlines()
        assert verdict == f"{path}: state unfinished; a run was interrupted, and the copy is truncated."
        assert message.endswith(last)
        errors.append(unwritten(5, "check", path, "--json").json["error"])
    for error in errors:
        assert (error["class"], error["advice"]) == ("Truncated", TAKE_WHOLE)
        assert error["message"].endswith(f" bytes, only {size} are there. The copy is truncated.")

    whole.to_file(str(path))
    assert command("recover", path, "--yes").status == 0


def test_a_copy_of_a_lun_that_was_cut_behind_its_commit_is_not_finished_but_undone(
    lun, command, unwritten, monkeypatch, has_scsi_id
):
    writes = writes_of_a_run(lun, command)
    with monkeypatch.context() as patch:
        shell.cut(patch, writes - 2)
        command("resignature", lun, "--yes", "--scsi-id", SCSI_ID)

    has_scsi_id(OTHER_SCSI_ID)
    for words in (["recover", lun, "--yes"], ["recover", lun, "-n"], ["check", lun]):
        ran, facts = unwritten(4, *words), unwritten(4, *words, "--json").json
        assert ran.out.splitlines()[-1] == f"next: relvmoiscsi undo {lun}" and SCSI_ID in ran.out
        assert (facts["state"], facts["error"]["class"]) == ("unfinished", "Refused")
    dry = unwritten(8, "resignature", lun, "-n").err
    assert f"Run `relvmoiscsi undo {lun}`, then resignature it. A dry run plans nothing on such a LUN. The same" in dry
    assert "recover" not in dry and "rolls it back first and starts a new run." in dry
    assert command("undo", lun, "--yes", "--not-in-use").status == 0 and state(lun, command) == "clean"


@pytest.mark.parametrize("kind", ["resignature", "undo"])
def test_a_dry_run_names_no_recover_while_a_program_has_the_lun_of_the_interrupted_run_open(
    image, command, monkeypatch, unwritten, kind
):
    """The program may be the run itself. `recover` would be refused, and so is this dry run, as the run would be."""
    if kind == "undo":
        assert command("resignature", image, "--yes").status == 0
    with monkeypatch.context() as patch:
        shell.cut(patch, 5)
        assert command(kind, image, "--yes").status == 130

    with open(str(image), "r+b"):
        dry, check = unwritten(4, "resignature", image, "-n").err, unwritten(4, "check", image).out

    for told in (dry, check):
        said = " ".join(told.split())
        assert f"{image} holds an unfinished {kind}" in said and f"{image} is in use by " in said
        assert "relvmoiscsi recover" not in said and "rolls it back" not in said


@pytest.mark.parametrize("kind", ["recover", "undo"])
@pytest.mark.parametrize("lun", ["unfinished", "committed", "finished"])
def test_a_dry_run_makes_the_writes_of_the_run_in_memory(request, lun, kind, command, unwritten):
    path = request.getfixturevalue(lun)
    dry, facts = unwritten(0, kind, path, "-n"), unwritten(0, kind, path, "-n", "--json").json
    assert not dry.err, "nobody is waited for"
    is_cut = lun != "finished"
    assert (facts["state"], facts["writes"]) == ("unfinished" if is_cut else "resignatured", 0)
    ran = command(kind, path, "--yes", "--json").json
    if kind == "recover" and not is_cut:
        assert ran == facts
        return
    verdict, *_lines, nothing, step = dry.out.splitlines()
    writes = len(facts["plan"])  # a run that is finished before its undo is not in the count of the answer
    assert writes > ran["writes"] if (lun, kind) == ("committed", "undo") else writes == ran["writes"]
    assert verdict.startswith(f"{path}: dry run. A run would make {writes} writes: ")
    assert (nothing, step) == ("Nothing was written.", f"next: relvmoiscsi {kind} {path}")
    names = ("old_sr", "new_sr", "vdi_pairs", "lv_pairs")
    assert [facts.get(name) for name in names] == [ran.get(name) for name in names]
    image = path.read_bytes()
    for write in facts["plan"][-2:]:  # not written over since, but for the mark of the client in the label
        at, new = write["device_offset"], bytes.fromhex(write["new_bytes"])
        assert at == 512 or image[at : at + len(new)] == new


@pytest.mark.parametrize("lun", ["unfinished", "committed", "finished"])
def test_each_answer_on_a_lun_names_the_sr_that_the_lun_holds(request, lun, unwritten):
    path, held = request.getfixturevalue(lun), tree().truth.sr_uuid if lun == "unfinished" else SR
    for words in (["show", path], ["recover", path, "-n"], ["undo", path, "-n"]):
        assert unwritten(0, *words, "--json").json["lun"]["sr"] == held


def test_a_dry_run_of_an_interrupted_undo_names_the_sr_that_the_undo_takes_away(
    finished, command, monkeypatch, unwritten
):
    with monkeypatch.context() as patch:
        shell.cut(patch, 4)
        command("undo", finished, "--yes")
    for name in ("recover", "undo"):
        facts = unwritten(0, name, finished, "-n", "--json").json
        assert (facts["state"], facts["lun"]["sr"]) == ("unfinished", SR)


def test_a_dry_run_is_refused_as_the_run(image, finished, unwritten):
    parents_name = tree().truth.device_ranges("disk", 512 + 64, 1)[0]  # in the header of the VHD
    flipped(finished, parents_name.offset)
    unwritten(4, "undo", finished, "-n", "--json", says="has changed since the resignature")


def test_a_damaged_journal_is_5_and_nothing_is_written(unfinished, unwritten):
    with open_device(str(unfinished), writable=False) as device:
        at = read_mark(device).journal.offset
    flipped(unfinished, at + 100)

    for name in shell.WRITERS:
        ran = unwritten(5, name, unfinished, "--json", "--yes")
        assert ran.json["error"]["disk_state"] == "Nothing was written."
    unwritten(0, "show", unfinished)


def test_a_hostile_journal_is_not_believed_and_not_sent_to_the_terminal(unfinished, command, type_in):
    with open_device(str(unfinished), writable=False) as device:
        mark = read_mark(device)
    evil = "\x1b[31mred\x07"
    ids = mark.journal.run.ids
    ids = ids._replace(sr=evil, uuids={evil: evil + "new"})
    data = journal.encode(mark.journal.run._replace(ids=ids))
    forged = journal.Journal(mark.journal.run._replace(ids=ids), mark.journal.offset, data)
    shell.patched(unfinished, forged.offset, data)
    label = commit_record.with_commit_record(mark.label.sector, forged.commit_record(commit_record.IN_PROGRESS))
    shell.patched(unfinished, mark.label.offset, label)
    type_in("n\n")

    shown = command("show", unfinished).out
    assert "It was to become" not in shown and "'?[31mred?' is no UUID" in shown
    assert command("undo", unfinished).status == 5
    assert state(unfinished, command) == "unfinished"


@pytest.mark.parametrize("is_short", [False, True])
def test_undo_of_a_damaged_lun_whose_label_knows_no_run_has_nothing_to_undo(image, unwritten, is_short):
    if is_short:
        os.truncate(str(image), os.stat(str(image)).st_size // 2)
    else:
        flipped(image, 4096 + 40)
    undo = unwritten(4, "undo", image, "--yes", "--json").json
    assert undo["state"] == unwritten(5, "recover", image, "--yes", "--json").json["state"] == "damaged"
    assert undo["error"]["message"] == f"{image} holds no resignature that could be undone."
    assert "--without" not in undo["error"]["advice"]


def test_a_damaged_label_gives_recover_and_undo_the_same_error(image, unwritten):
    flipped(image, 512 + 40)
    recover, undo = (unwritten(5, name, image, "--yes", "--json").json for name in ("recover", "undo"))
    assert recover["error"] == undo["error"] and recover["state"] == undo["state"] == "damaged"


@pytest.mark.parametrize("lun, status", [("image", 0), ("finished", 0), ("damaged", 5), ("unfinished", 4)])
def test_recover_opens_a_lun_for_a_write_only_where_a_run_was_interrupted(request, image, unwritten, lun, status):
    path = image if lun == "damaged" else request.getfixturevalue(lun)
    if lun == "damaged":
        flipped(path, 4096)
    path.chmod(0o444)

    ran = unwritten(status, "recover", path, "--yes")

    assert ("is read-only" in ran.err) is (lun == "unfinished")
    assert ("no run was interrupted" in ran.out) is (lun != "unfinished")


UNKNOWN = "whether a run was interrupted cannot be known: no label of LVM can be read"


@pytest.mark.parametrize("dry", [("--yes",), ("--dry-run",)])
@pytest.mark.parametrize(
    "lun, status, verdict, step",
    [
        ("empty", 3, f"state empty; {UNKNOWN}", "If this is the clone of an SR, take the copy again"),
        ("zeros", 3, f"state empty; {UNKNOWN}", "If this is the clone of an SR, take the copy again"),
        ("noise", 4, f"state foreign; {UNKNOWN}", "If this is the clone of an SR, take the copy again"),
        ("short", 5, "state damaged; no run was interrupted", "Take the copy again from the array, on a LUN of the"),
        ("header", 5, "state damaged; no run was interrupted", CHECK_ORIGINAL),
        ("label", 5, f"state damaged; {UNKNOWN}", CHECK_ORIGINAL),
        ("journal", 5, "state unfinished; a run was interrupted, and its journal cannot be read", ""),
    ],
)  # fmt: skip
def test_recover_of_what_cannot_be_used_says_whether_a_run_was_interrupted_and_what_is_next(
    image, request, unwritten, lun, status, verdict, step, dry
):
    if lun in ("empty", "zeros", "noise"):
        image.write_bytes({"empty": b"", "zeros": bytes(4 << 20), "noise": b"x" * (4 << 20)}[lun])
    elif lun == "short":
        os.truncate(str(image), os.stat(str(image)).st_size // 2)
    elif lun == "journal":
        image = request.getfixturevalue("unfinished")
        with open_device(str(image), writable=False) as device:
            at = read_mark(device).journal.offset
        flipped(image, at + 100)
    else:
        flipped(image, {"header": 4096 + 40, "label": 512 + 40}[lun])

    ran = unwritten(status, "recover", image, *dry)

    first, *why, last = ran.out.splitlines()
    assert first.startswith(f"{image}: {verdict}") and first.endswith(".") and not ran.err
    if not step:  # the message says so
        why, last = [last], ""
    assert "Nothing was written." in " ".join(why) and last.startswith(step)


# --- undo


def test_undo_of_a_run_before_its_commit_lists_no_ids_that_the_lun_never_had(unfinished, command):
    for words in (["--dry-run"], ["--yes"]):
        ran = command("undo", unfinished, *words)
        assert ran.status == 0 and "become" not in ran.out and "became" not in ran.out and SR not in ran.out


def test_undo_gives_the_old_identities_back(finished, command):
    """That every byte comes back: tests/unit/resignature/recovery/test_undo.py."""
    done = command("resignature", finished, "--yes", "--json").json
    before = content(finished)[0]
    ran = command("undo", finished, "--yes")
    assert ran.status == 0 and not ran.err
    said = [f"{finished} has its old identities back.", f"  SR   {SR}  became  {tree().truth.sr_uuid}"]
    assert ran.out.splitlines()[:2] == said
    assert ran.out.splitlines()[-1] == if_clone(f"relvmoiscsi resignature {finished}")

    before.to_file(str(finished))
    found = command("undo", finished, "--yes", "--json").json
    assert found["state"] == "clean"
    for key in ("sr", "vg_id", "pv_id"):
        assert (found[f"old_{key}"], found[f"new_{key}"]) == (done[f"new_{key}"], done[f"old_{key}"])
    back = [(vdi["old_vdi"], vdi["new_vdi"]) for vdi in found["vdi_pairs"]]
    assert back == [(vdi["new_vdi"], vdi["old_vdi"]) for vdi in done["vdi_pairs"]]
    assert found["other_uuids"] == {new: old for old, new in done["other_uuids"].items()}


@pytest.mark.parametrize("answer, status", [("y\n", 0), ("n\n", 4), ("", 4)])
def test_undo_asks(finished, command, type_in, answer, status):
    type_in(answer)
    ran = command("undo", finished)
    assert ran.status == status
    assert f"Give {finished} back the identities of SR {tree().truth.sr_uuid}? [y/N] " in ran.err
    assert state(finished, command) == ("resignatured" if status else "clean")


def test_recover_of_a_damaged_image_names_it_in_its_command_whatever_the_name_is(command, tmp_path, monkeypatch):
    """A name with a blank was taken for a description, and the command had the word DEVICE in its place."""
    monkeypatch.chdir(str(tmp_path))
    path = "leaf both.img"
    build_sr([vhd("a", blocks=1), vhd("b", blocks=1)]).disk.to_file(path)
    with open(path, "r+b") as file:
        file.seek(file.read().index(b"cxsparse"))
        file.write(b"no such!")
    said = command("recover", path).out
    assert "DEVICE" not in said and f"`relvmoiscsi resignature '{path}' --without " in said


def test_the_page_has_the_status_of_a_declined_question_and_of_an_undo_without_a_resignature(
    image, finished, original, command, type_in
):
    type_in("n\n")
    declined, nothing = command("undo", finished), command("undo", original, "--yes")
    assert declined.status == nothing.status == 4
    assert declined.err.endswith("Not confirmed. Nothing was written.\n") and "holds no resignature" in nothing.err
    meaning = (shell.TOP / "docs" / "command.rst").read_text().split("\n**4**\n")[1].split("\n**")[0]
    said = " ".join(meaning.split())
    assert "A declined question also ends so, and **undo** or **map --device** for a LUN that holds no resigna" in said


@pytest.mark.parametrize("kind", ["resignature", "undo"])
def test_undo_of_a_cut_run_asks_for_the_sr_that_will_be_there(image, command, type_in, monkeypatch, kind):
    if kind == "undo":
        command("resignature", image, "--yes")
    with monkeypatch.context() as patch:
        shell.cut(patch, 5)
        command(kind, image, "--yes")
    type_in("n\n")
    assert f"the identities of SR {tree().truth.sr_uuid}? [y/N] " in command("undo", image).err


def test_what_changed_since_is_not_lost_by_an_undo_and_nobody_is_asked_first(finished, unwritten, type_in):
    parents_name = tree().truth.device_ranges("disk", 512 + 64, 1)[0]  # in the header of the VHD
    flipped(finished, parents_name.offset)
    unwritten(4, "undo", finished, "--yes", "--json", says="has changed since the resignature")
    type_in("y\n")
    ran = unwritten(4, "undo", finished, says="has changed since the resignature")
    assert "[y/N]" not in ran.err


def test_a_command_to_copy_has_the_name_of_the_device_as_a_shell_reads_it(finished, command):
    path = finished.parent / "my clone's.img"
    finished.rename(path)

    next_line = command("undo", path, "--dry-run").out.splitlines()[-1]

    assert shlex.split(next_line)[1:] == ["relvmoiscsi", "undo", str(path)]
    missing = "0a0b0c0d-0000-4000-8000-000000000001"
    said = command("resignature", path, "--yes", "--without", missing).err
    assert f"`relvmoiscsi show {shlex.quote(str(path))}` lists the VDIs." in said


@pytest.mark.parametrize(
    "words, asks",
    [
        (["undo", "finished"], "Give my clone.img back the identities of SR "),
        (["recover", "unfinished"], "Roll back the resignature of my clone.img that was interrupted, to SR "),
        (["resignature", "image"], "Give my clone.img these new identities?"),
    ],
)
def test_a_question_has_the_name_as_all_sentences_have_it(request, command, monkeypatch, type_in, words, asks):
    verb, lun = words
    lun = request.getfixturevalue(lun)
    monkeypatch.chdir(lun.parent)
    lun.rename("my clone.img")
    type_in("n\n")
    said = command(verb, "my clone.img").err
    assert said.startswith("relvmoiscsi: my clone.img will be changed:\n") and asks in said


@pytest.mark.parametrize("name", ["my clone.img", "-dash", "it's.img", "a;b.img", "--yes", "--sr-uuid=x"])
def test_what_is_advised_for_a_strange_name_can_be_pasted(image, command, monkeypatch, name):
    """Each run of the command in a test checks so what it prints; this one has names that need it."""
    monkeypatch.chdir(image.parent)
    image.rename(name)
    for words in (["check"], ["recover", "--yes"], ["resignature", "--yes"], ["check"], ["undo", "--yes"]):
        ran = command(*words, "--", name)
        advised = commands_in(ran.out)
        assert ran.status == 0 and (advised or words[0] == "resignature")
        assert {shlex.split(advice)[-1] for advice in advised} <= {f"./{name}" if name.startswith("-") else name}


@pytest.mark.parametrize("name", ["-dash", "./-dash"])
def test_json_has_the_device_as_it_was_given(image, original, command, monkeypatch, name):
    """A printed command has `./` in front of a dash. A script looks for the word that the script has given."""
    monkeypatch.chdir(image.parent)
    image.rename("-dash")

    def devices(status, *words):
        ran = command(*words, "--json", "--", name)
        assert ran.status == status, ran.err
        return [found["device"] for found in ran.json.get("devices", [ran.json])]

    original.rename(image.parent / "-original")
    compared = command("check", "--original=-original", "--json", "--", name).json
    assert (compared["device"], compared["original"]) == (name, "-original")
    assert devices(0, "show") == devices(0, "check") == devices(0, "resignature", "--dry-run") == [name]
    assert command("show", "--json", "--", name, name).json["devices"][1]["device"] == name
    assert devices(4, "undo", "--yes") == [name]  # an error has the device as well
    for words in (["resignature", "--yes"], ["undo", "--dry-run"], ["recover", "--yes"], ["undo", "--yes"]):
        assert devices(0, *words) == [name]
    assert devices(0, "resignature", "--yes") == [name]
    assert command("map", f"--device={name}", "--json").json["device"] == name
