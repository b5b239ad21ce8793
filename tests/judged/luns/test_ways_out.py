# SPDX-License-Identifier: LGPL-2.1-only
"""The commands in messages about a clone, run by real LVM: they mend the clone, and leave its original alone.

Original and clone are loop devices, so LVM sees both at once, with equal ids.
"""

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from kit import builder
from kit.judges import dice
from kit.reader import read_vg
from kit.refusals import ROWS, blank, spoiled_sr, ways_out_in
from relvmoiscsi import engine
from relvmoiscsi.errors import RelvmoiscsiError, WayOut
from relvmoiscsi.resignature.reading.way_out import lvm_words
from relvmoiscsi.wording import quoted


def told_command(message):
    """The command of LVM, or of util-linux, in a message; None without one."""
    found = [way_out for way_out in ways_out_in(message) if way_out.startswith(("lv", "vg", "pv", "wipefs"))]
    return found[0] if found else None


def refusal(loop):
    """The message about a LUN; "" when the LUN can be resignatured."""
    with loop.open() as device:
        return refusal_of(device)


def refusal_of(device):
    try:
        engine.prepare(device, dice("ids"))
    except RelvmoiscsiError as problem:
        return str(problem)
    return ""


#: LVM knows the command of "pr" from 2.03.34 on. The label of the other row lists areas that hold no metadata, so LVM
#: takes the PV for an empty one
NOT_JUDGED = ("pr", "no room for a commit record behind the extension of today")
JUDGED = [name for name in ROWS if name not in NOT_JUDGED and told_command(refusal_of(ROWS[name].make().disk))]


def by_hand(command, lvm, answers=b"y\ny\n"):
    """Run a command as the message gives it. LVM has its usual configuration, but for the directory of its locks.

    vgimportclone keeps an archive of its own: it gets another directory, because other tests look at /etc/lvm.
    """
    words = shlex.split(command)
    elsewhere = {"LVM_SYSTEM_DIR": lvm.lock_directory} if words[0] == "vgimportclone" else {}
    where = f' global {{ locking_dir="{lvm.lock_directory}" }}'
    words = [word + where if before == "--config" else word for before, word in zip(["", *words], words)]
    done = subprocess.run(
        words,
        input=answers,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", **elsewhere},
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def lvm_made():
    """What no row has: volumes and groups as LVM writes them, and SM does not."""

    def lv_of_errors(lvm, loop, vg):
        lvm.over(loop.path)("lvcreate", "-an", "-Wn", "-l", "1", "--type", "error", "-n", "failing", vg)

    def exported(lvm, loop, vg):
        lvm.over(loop.path)("vgexport", vg)

    def snapshot(lvm, loop, vg):
        """LVM makes one only of an active volume. So LVM writes the text of one."""
        over = lvm.over(loop.path)
        with tempfile.TemporaryDirectory() as folder:
            backup = os.path.join(folder, "vg")
            for name in ("origin", "changes"):
                over("lvcreate", "-an", "-Wn", "-l", "1", "-n", name, vg, warnings=["not zeroed"])
            over("vgcfgbackup", "-f", backup, vg)
            text = Path(backup).read_text()
            hidden = re.search(r"\n\t\tchanges {.*?\n\t\t}\n", text, re.DOTALL)
            made = re.sub('id = ".{6}', 'id = "snapsh', hidden.group().replace("changes {", "snapshot0 {"))
            made = re.sub(r', "VISIBLE"', "", made)
            kind = 'type = "snapshot"\nchunk_size = 8\norigin = "origin"\ncow_store = "changes"\n'
            made = re.sub(r'type = "striped".*?\]\n', kind, made, flags=re.DOTALL)
            Path(backup).write_text(text[: hidden.end()] + made + text[hidden.end() :])
            assert over.attempt("vgcfgrestore", "-f", backup, vg).status == 0  # without device-mapper it warns

    return {"an LV of errors": lv_of_errors, "exported by LVM": exported, "a snapshot of LVM": snapshot}


#: the command gives the clone's LVM other ids, and the clone holds no SR after it either
OF_NO_SR = ("VG of another system", "VG with almost the name of an SR's", "VG with the UUID of an SR")


@pytest.mark.parametrize("name", JUDGED)
def test_a_command_of_another_program_mends_the_clone_beside_its_original(name, lvm, loops):
    disk = ROWS[name].make().disk
    original, clone = loops(disk), loops(disk)
    message = refusal(clone)
    command = told_command(message)
    assert command.count("--config") == (command.split()[0] not in ("wipefs", "vgimportclone"))

    status, said = by_hand(command, lvm)

    assert status == 0, said
    again = refusal(clone)
    if name in OF_NO_SR:
        assert "which is no SR's" in again and clone.disk() != disk
    elif again:  # the first command has brought another defect to light
        assert by_hand(told_command(again), lvm)[0] == 0
        assert refusal(clone) == "" and again != message
    assert original.disk() == disk


@pytest.mark.parametrize("name", lvm_made())
def test_what_lvm_itself_has_made_is_mended(name, lvm, loops):
    built = spoiled_sr(builder.raw("data"))
    clone = loops(built.disk)
    lvm_made()[name](lvm, clone, built.truth.vg_name)
    original = loops(clone.disk())
    before = original.disk()

    status, said = by_hand(told_command(refusal(clone)), lvm)

    assert (status, refusal(clone), original.disk()) == (0, "", before), said


def test_a_group_on_two_disks_is_reduced_to_one_if_the_other_is_empty(lvm, loops):
    built = spoiled_sr(builder.raw("data"))
    vg = built.truth.vg_name
    first, second = loops(built.disk), loops(blank()().disk)
    over = lvm.over(first.path, second.path)
    over("pvcreate", second.path)
    over("vgextend", vg, second.path)
    over("lvcreate", "-an", "-Wn", "-l", "1", "-n", "more", vg, second.path, warnings=["not zeroed"])
    assert "Move the VDIs to an SR on one LUN" in refusal(first)

    over("lvremove", "-y", f"{vg}/more")
    assert "`vgreduce` removes such a disk" in refusal(first)
    over("vgreduce", vg, second.path)

    assert refusal(first) == ""


def test_a_volume_without_a_vhd_can_be_removed_by_hand_as_well(lvm, loops):
    """The options of any message serve for `lvremove` of another volume."""
    disk = ROWS["no VHD yet"].make().disk
    original, clone = loops(disk), loops(disk)
    name = next(lv.name for lv in read_vg(disk).lvs if lv.name.startswith("VHD-"))
    way_out = WayOut(("lvremove",), (f"{read_vg(disk).name}/{name}",))
    assert "error 46" in refusal(clone)

    status, said = by_hand(quoted(*lvm_words(clone.path, way_out)), lvm)

    assert (status, refusal(clone), original.disk()) == (0, "", disk), said


def test_twin_without_the_options_lvm_takes_the_wrong_disk_or_refuses(lvm, loops):
    """The options are what protects the original: the bare command removes the volume from the first disk it sees."""
    disk = ROWS["trim volume of another SR"].make().disk
    first, second = loops(disk), loops(disk)
    command = shlex.split(told_command(refusal(second)))

    bare = lvm.over(first.path, second.path).attempt(command[0], "-y", command[-1])

    assert second.disk() == disk and (bare.status != 0 or first.disk() != disk), bare


def test_lvm_keeps_no_backup_of_the_clone(lvm, loops):
    """It would have the name of the backup of the original."""
    disk = ROWS["trim volume of another SR"].make().disk
    clone = loops(disk)
    folders = ("/etc/lvm/backup", "/etc/lvm/archive")
    before = [sorted(os.listdir(folder)) if os.path.isdir(folder) else None for folder in folders]

    status, said = by_hand(told_command(refusal(clone)), lvm)

    assert status == 0, said
    assert [sorted(os.listdir(folder)) if os.path.isdir(folder) else None for folder in folders] == before
