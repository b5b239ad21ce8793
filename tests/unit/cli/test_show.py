# SPDX-License-Identifier: LGPL-2.1-only
"""`show`: what is on a LUN, in words and as JSON; whatever is on it is an answer, and nothing is ever written."""

import bz2
import gzip
import itertools
import lzma
import os
import re
import shutil
import tarfile

import pytest

from kit import shell
from kit.builder import AREA_DEFAULT, build_sr, cbtlog, named, raw, vhd
from kit.shell import SR, content, flipped, patched, tree
from relvmoiscsi import engine
from relvmoiscsi.cli.output import wrapped
from relvmoiscsi.host.disk import block_device
from relvmoiscsi.host.disk.block_device import open_device

SR_KEYS = {"state", "device", "size_bytes", "sr", "sr_name_label", "sr_name_description", "vg", "pv", "vdis", "lvs",
           "notes", "one_vdi", "saved_vms", "lun", "contradictions"}  # fmt: skip
VDI_KEYS = {"vdi", "vdi_name", "name_description", "volume_kind", "virtual_size_bytes", "lv_size_bytes", "parent",
            "hidden", "read_only", "is_a_snapshot", "snapshot_of", "cbt", "lv", "problem"}  # fmt: skip


def lun(path, *volumes, **options):
    """An image with an SR of these volumes."""
    built = build_sr(volumes, area=AREA_DEFAULT, **options)
    built.disk.to_file(str(path))
    return built


# --- a LUN with an SR


def test_vdis_are_drawn_under_their_parents_with_label_size_kind_hidden_and_cbt(image, command):
    ran = command("show", image)

    uuids = tree().truth.uuids
    lines = ran.out.splitlines()
    assert ran.status == 0 and not ran.err
    assert lines[0] == "{}: SR {} 'test SR'".format(image, uuids["sr"])
    assert lines[1].split() == ["state", "clean"]
    assert lines[5] == "  device   image file, 57.5 MiB"
    assert lines[6] == "  pool     This is an image file: no pool was asked whether it is in use."
    changed = "2026-11-21 00:11 UTC on xen-host-1"
    assert lines[7] == f"  changed  {changed}: the last change of the SR by LVM, not the time of a snapshot"
    table = lines.index("") + 1
    assert lines[table].split() == ["VDI", "size", "on", "LUN", "kind", "label"]
    assert lines[table + 1 : table + 5] == [
        "{}     64 MiB   4 MiB  vhd   'base copy' [hidden]".format(uuids["base"]),
        "├─ {}  64 MiB   4 MiB  vhd   'Größe <é>' [CBT]".format(uuids["disk"]),
        "└─ {}  64 MiB   4 MiB  vhd   'at noon' [snapshot of {}]".format(uuids["snapshot"], uuids["disk"][:8]),
        "{}      4 MiB   4 MiB  raw   'data'".format(uuids["data"]),
    ]
    assert lines[table + 6] == "Other volumes: MGT, {}.cbtlog".format(uuids["disk"])


def test_json_has_the_sr_its_group_and_every_vdi(image, command):
    found, truth = command("show", image, "--json").json, tree().truth
    assert set(found) == SR_KEYS and all(set(vdi) == VDI_KEYS for vdi in found["vdis"])
    assert (found["state"], found["device"], found["size_bytes"]) == ("clean", str(image), tree().disk.size_bytes)
    made = "made by tests/kit/builder.py"
    told = [found[name] for name in ("sr", "sr_name_label", "sr_name_description")]
    assert told == [truth.sr_uuid, "test SR", made]
    assert (found["vg"]["vg_name"], found["vg"]["id"], found["vg"]["seqno"]) == (
        truth.vg_name,
        truth.vg_id,
        truth.seqno,
    )
    assert (found["pv"]["id"], found["notes"]) == (truth.pv_id, [])
    assert [(lv["lv"], lv["id"]) for lv in found["lvs"]] == [(each.name, each.lv_id) for each in truth.volumes]
    vdis = {vdi["vdi"]: vdi for vdi in found["vdis"]}
    assert list(vdis) == [truth.uuids[key] for key in ("base", "disk", "snapshot", "data")]
    disk, snapshot = vdis[truth.uuids["disk"]], vdis[truth.uuids["snapshot"]]
    assert (disk["vdi_name"], disk["parent"], disk["cbt"]) == ("Größe <é>", truth.uuids["base"], True)
    assert (snapshot["is_a_snapshot"], snapshot["snapshot_of"]) == (True, truth.uuids["disk"])
    assert [vdi["hidden"] for vdi in found["vdis"]] == [True, False, False, False]
    assert (found["one_vdi"]["one_vdi_state"], found["one_vdi"]["cost"]) == ("cannot be", None)


BASE, LEAF = vhd("base", hidden=True), vhd("disk", parent="base")
GONE, RAW_BASE = cbtlog("gone"), raw("base", hidden=True)


@pytest.mark.parametrize(
    "volumes, more, state, words",
    [
        ([vhd("disk")], {}, "is", "yes"),
        (
            [vhd("disk"), GONE],
            {"also": ("gone",)},
            "can be",
            "can be made, which is one image; 1 volume is deleted. No",
        ),
        ([BASE, LEAF], {"free_extents": 40}, "can be", "can be made from 2 images; 1 volume is deleted. No data"),
        ([vhd("disk", snapshot_of="disk")], {}, "cannot be", ""),  # one must be named: said to who asks for one VDI
        ([vhd("disk"), vhd("other")], {}, "cannot be", ""),
        ([RAW_BASE, LEAF], {"free_extents": 40}, "cannot be", "cannot be made: LV-"),
    ],
)
def test_it_says_whether_the_lun_is_one_vdi_or_can_be(tmp_path, command, unwritten, volumes, more, state, words):
    path = tmp_path / "clone.img"
    lun(path, *volumes, **more)
    told, found = unwritten(0, "show", path).out, command("show", path, "--json").json["one_vdi"]

    rows = itertools.takewhile(lambda line: not line.startswith("  changed  "), told.splitlines()[7:])
    line = " ".join(" ".join(rows).split())
    assert line.startswith("one VDI " + words) if words else line == ""
    assert not words or line.endswith(found["problem"] or "")
    assert set(found) == {"one_vdi_state", "cost", "problem"} and found["one_vdi_state"] == state
    assert (found["cost"] is not None, found["problem"] is not None) == (state == "can be", state == "cannot be")


def test_a_resignatured_lun_says_what_it_was(finished, command):
    facts = command("show", finished, "--json").json
    assert f"  state    resignatured (it was {tree().truth.sr_uuid})\n" in command("show", finished).out
    assert facts["state"] == "resignatured" and set(facts["run"]) == {"old_sr", "new_sr", "run_scsi_id", "tool"}
    assert (facts["run"]["old_sr"], facts["run"]["new_sr"]) == (tree().truth.sr_uuid, SR)


def test_an_unfinished_lun_says_what_it_becomes_and_which_command_finishes_it(unfinished, command):
    ran, facts = command("show", unfinished), command("show", unfinished, "--json").json
    assert ran.status == 0 and ran.out.startswith(f"{unfinished}: unfinished.\n")
    assert f"It was to become SR {SR} (it was {tree().truth.sr_uuid})." in ran.out
    assert f"`relvmoiscsi recover {unfinished}`" in ran.out
    assert set(facts) == {"state", "device", "problem", "run", "lun"}
    assert (facts["state"], facts["run"]["new_sr"]) == ("unfinished", SR)


# --- anything else


def filled(data=b"", at=0, size=64 << 20):
    def change(path):
        with open(str(path), "r+b") as image:
            image.truncate(0)
            image.truncate(size)
        patched(path, at, data)

    return change


def damaged(key, at):
    return lambda path: flipped(path, tree().truth.device_ranges(key, at, 1)[0].offset)


def half(path):
    with open(str(path), "r+b") as image:
        image.truncate(tree().disk.size_bytes // 1024 * 512)


TEXT = tree().truth.areas[0].offset + tree().truth.text_offset
PARTITIONS = b"\x83".ljust(60, b"\0") + b"\x55\xaa"
LUNS = {
    "zeros": (filled(), "empty", 3),
    "a file of no bytes": (filled(size=0), "empty", 3),
    "a partition table": (filled(PARTITIONS, 446 + 4), "foreign", 4),
    "another volume group": (lambda path: lun(path, named("root"), vg_name="debian-vg", mgt=False), "foreign", 4),
    "a label with a bad checksum": (lambda path: flipped(path, 512 + 40), "damaged", 5),
    "a text with a bad checksum": (lambda path: flipped(path, TEXT + 30), "damaged", 5),
    "a VHD with a bad checksum": (damaged("disk", 64), "damaged", 5),
    "half of an image": (half, "damaged", 5),
}


@pytest.mark.parametrize("name", LUNS)
def test_whatever_is_on_a_lun_show_answers_with_0_and_the_others_refuse(image, unwritten, name):
    change, state, status = LUNS[name]
    change(image)
    text, facts = unwritten(0, "show", image), unwritten(0, "show", image, "--json").json

    assert text.out.startswith(f"{image}: {state}.\n") and facts["problem"] in text.out
    keys = {"state", "device", "problem", "lun"} | ({"defects"} if state == "damaged" else set())
    assert facts["state"] == state and set(facts) in (keys, keys | SR_KEYS - {"one_vdi", "saved_vms", "contradictions"})
    for argv in (["check"], ["resignature", "--dry-run"], ["resignature", "--yes"], ["recover"], ["undo", "--yes"]):
        nothing_to_undo = argv[0] == "undo" and state == "damaged" and "label" not in name  # the label knows of no run
        ran = unwritten(4 if nothing_to_undo else status, argv[0], image, "--json", *argv[1:])
        assert ran.json["state"] == state and ran.json["error"]["message"] in ran.err
        assert ran.json["error"]["advice"], argv
    verdict, *_why, step = unwritten(status, "check", image).out.splitlines()
    assert state in verdict and step.endswith(".")


@pytest.mark.parametrize(("name", "status"), [("not there", 3), ("clone.img/below a file", 3), (".", 2)])
@pytest.mark.parametrize("argv", ["show", "check", "resignature --dry-run", "recover", "undo --yes", "map --device"])
def test_a_name_that_is_none_of_a_disk_leads_to_the_list_of_the_disks(image, command, name, status, argv):
    ran = command(*argv.split(), image.parent / name, "--json")
    assert ran.status == status and "`lsblk` lists" in ran.json["error"]["advice"] and "`lsblk` lists" in ran.err


def test_one_bad_header_hides_nothing_else(image, command):
    damaged("disk", 64)(image)
    uuids, before = tree().truth.uuids, content(image)
    text, facts = command("show", image).out.splitlines(), command("show", image, "--json").json

    assert text[0] == f"{image}: damaged." and "What can be read:" in text
    assert any(line.startswith("└─ " + uuids["snapshot"]) for line in text)
    assert any(line.startswith(uuids["disk"] + "          ?   4 MiB  vhd ") for line in text)
    vdis = {vdi["vdi"]: vdi for vdi in facts["vdis"]}
    assert vdis[uuids["disk"]]["problem"] == "{message} {advice}".format(**facts["defects"][0])
    assert [vdis[uuids[key]]["problem"] for key in ("base", "snapshot", "data")] == [None, None, None]
    assert content(image) == before


IMAGES = [("qcow2", 0, b"QFI\xfb"), ("vpc", 0, b"conectix"), ("vhdx", 0, b"vhdxfile"),
          ("vmdk", 0, b"KDMV" + bytes(8) + b"\1"), ("vdi", 64, b"\x7f\x10\xda\xbe"), ("qed", 0, b"QED\0")]  # fmt: skip


@pytest.mark.parametrize("size", [300 << 10, 2 << 20])
@pytest.mark.parametrize(("image", "at", "magic"), IMAGES, ids=[image for image, *_ in IMAGES])
def test_a_disk_image_of_a_whole_lun_leads_to_the_raw_image(tmp_path, command, image, at, magic, size):
    """Programs for backups make such files. "Give the clone of an SR" led nobody on."""
    path = tmp_path / "of a LUN"
    path.write_bytes((bytes(at) + magic).ljust(size, b"\0"))
    convert = f"`qemu-img convert -O raw -f {image} '{path}' '{path}.raw'`"
    shown, json = command("show", path), command("show", path, "--json").json
    assert shown.status == 0 and convert in shown.out and json["state"] == "foreign"
    refused = command("resignature", path, "--yes")
    assert (refused.status, f"(format {image})" in refused.err, convert in refused.err) == (4, True, True)


def test_the_raw_image_of_a_disk_image_gets_the_name_of_no_file(tmp_path, command):
    """The command wrote over a raw image that had new identities."""
    path = tmp_path / "clone.vhd"
    path.write_bytes(b"conectix".ljust(2 << 20, b"\0"))
    for name in ("clone.vhd.raw", "clone.vhd.1.raw", "clone.vhd.2.raw"):
        raw = tmp_path / name
        told = command("check", path).out
        assert told.splitlines()[-1] == f"next: qemu-img convert -O raw -f vpc {path} {raw}"
        raw.symlink_to("nowhere") if name == "clone.vhd.raw" else raw.touch()


@pytest.mark.parametrize("name", ["a:b.vmdk", "nbd:x/y", "dir/a:b.vmdk"])
def test_no_name_of_a_disk_image_is_a_protocol_for_qemu(tmp_path, command, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"conectix".ljust(2 << 20, b"\0"))
    step = command("check", name).out.splitlines()[-1]
    word = name if name.startswith("dir/") else f"./{name}"
    assert step == f"next: qemu-img convert -O raw -f vpc {word} {word}.raw"


@pytest.mark.parametrize(
    "start, what",
    [
        (b"QFI\xfb\0\0\0\2" + bytes(6) + b"\2\0", "a backing file"),
        ((b"QFI\xfb\0\0\0\3").ljust(79, b"\0") + b"\4", "an external data file"),
        (b"QED\0".ljust(16, b"\0") + b"\1", "a backing file"),
        (b"KDMV", "files that hold its data"),
        ((b"KDMV" + bytes(8) + b"\1").ljust(600, b"\0") + b'parentFileNameHint="/etc/shadow"', "a parent"),
    ],
)
def test_an_image_that_names_another_file_gets_no_command(tmp_path, command, start, what):
    """qemu-img would copy a file of this host, which the writer of the image chose, into the new image."""
    path = tmp_path / "clone.img"
    path.write_bytes(start.ljust(2 << 20, b"\0"))
    shown, refused = command("show", path), command("resignature", path, "--yes")

    for told in (shown.out, refused.err):
        assert f"The image names {what}." in " ".join(told.split()) and "qemu-img" not in told
    assert refused.status == 4
    checked = " ".join(command("check", path).out.split())
    assert "Give a raw image" in checked and "take the copy again" not in checked


@pytest.mark.parametrize("whose", ["the directory", "the image", "a directory on the way", "as /tmp"])
@pytest.mark.parametrize("kind", ["image", "partition table"])
def test_no_other_program_is_sent_to_a_path_that_another_user_can_lead_elsewhere(image, command, whose, kind):
    """Another user made root's qemu-img write through a link at the new name, or read a file of the host."""
    directory = image.parent / "on the way" / "clones"
    directory.mkdir(parents=True)
    path = directory / "clone.img"
    image.rename(path)
    with path.open("r+b") as file:
        if kind == "image":
            file.write(b"conectix".ljust(4096, b"\0"))
        else:
            file.seek(446)
            file.write((b"\0\0\0\0\x83" + bytes(11)).ljust(64, b"\0") + b"\x55\xaa")
    program = {"image": "qemu-img convert", "partition table": "wipefs"}[kind]
    assert program in command("check", path).out
    place = {"the image": path, "a directory on the way": directory.parent}.get(whose, directory)
    place.chmod(0o666 if place == path else 0o1777 if whose == "as /tmp" else 0o777)

    shown, refused = command("check", path), command("resignature", path, "--yes")

    for told in (shown.out, refused.err):
        assert program not in told and "only you can change" in " ".join(told.split())


def test_an_image_that_somebody_may_still_write_to_is_to_be_copied(tmp_path, command):
    """A stranger kept his file open. Root moved it, and made it his: then it named a file of root for qemu-img."""
    path = tmp_path / "clone.img"
    path.write_bytes(b"conectix".ljust(2 << 20, b"\0"))
    path.chmod(0o600)
    assert "qemu-img convert" in command("check", path).out

    with path.open("r+b"):
        told = " ".join(command("check", path).out.split())

    assert "qemu-img" not in told and "move" not in told
    assert f"`install --mode=600 {path} DIRECTORY`" in told
    assert "qemu-img convert" in command("check", path).out


def test_where_the_kernel_grants_no_lease_nobody_is_said_to_be_able_to_change_the_image(tmp_path, command, monkeypatch):
    """So for a user whom the image of root lets read, and on NFS. Whether another user can change it is not known."""
    path = tmp_path / "clone.img"
    path.write_bytes(b"conectix".ljust(2 << 20, b"\0"))
    path.chmod(0o600)
    monkeypatch.setattr(block_device, "gets_lease", lambda *_: None)

    told = " ".join(command("check", path).out.split())

    assert "qemu-img" not in told and f"`install --mode=600 {path} DIRECTORY`" in told
    assert "could exchange" not in told and "It is not certain that nobody else changes this file" in told


@pytest.mark.parametrize("start", [b"QFI\xfb", b"QED\0", b"KDMV"])
def test_an_image_that_ends_within_its_header_is_refused(tmp_path, command, start):
    (tmp_path / "clone.img").write_bytes(start)
    assert command("resignature", tmp_path / "clone.img", "--yes").status == 4


@pytest.mark.parametrize("size", [512, 5 << 18])  # shorter and longer than the smallest LUN; chance does not shrink
@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", "zip", "tar"])
def test_a_packed_image_is_to_be_unpacked(tmp_path, command, kind, size):
    raw = tmp_path / "clone.img"
    raw.write_bytes(os.urandom(size))
    if kind in ("zip", "tar"):
        path = shutil.make_archive(str(tmp_path / "clone"), kind, str(tmp_path), "clone.img")
    else:
        path = tmp_path / f"clone.img.{kind}"
        path.write_bytes({"gz": gzip, "xz": lzma, "bz2": bz2}[kind].compress(raw.read_bytes()))

    shown, ran = command("show", path), command("resignature", path, "--yes")

    for told in (shown.out, ran.err):
        said = " ".join(told.split())
        assert f"{path} is no LVM physical volume: it is packed (format " in said
        assert "If it is the packed image of a clone, unpack it, and give the raw image." in said
    assert (ran.status, command("check", path, "--json").json["state"]) == (4, "foreign")
    assert command("check", path).out.endswith("give the raw image.\n")


def test_a_tar_archive_of_an_image_is_to_be_unpacked_though_the_label_is_near_its_start(image, command):
    """The header of the archive has moved the label by one sector, which was called damage of the copy."""
    path = image.parent / "clone.tar"
    with tarfile.open(str(path), "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(str(image), "clone.img")

    ran = command("check", path)

    said = " ".join(ran.out.split())
    assert ran.status == 4 and f"{path} is no LVM physical volume: it is packed (format tar)." in said
    assert said.endswith("unpack it, and give the raw image.")
    assert command("check", path, "--json").json["state"] == "foreign"


def test_the_magic_of_a_disk_image_before_the_label_of_an_sr_makes_no_disk_image(image, command):
    """LVM ignores the sector before the label."""
    with open(str(image), "r+b") as file:
        file.write(b"QFI\xfb")
    assert command("show", image).out.splitlines()[1].split() == ["state", "clean"]


@pytest.mark.parametrize("size", [0, 511, 1221, 4096, (1 << 20) - 1])
def test_what_is_too_small_to_be_a_lun_is_told_so(tmp_path, command, size):
    path = tmp_path / "small"
    path.write_bytes(b"abc"[:size].ljust(size, b"\0"))
    words = f"{path} has {size} bytes: it is too small for a LUN with an SR."
    if not size:
        words = f"{path} is empty: it has 0 bytes."

    assert words in command("show", path).out
    for argv in (("check",), ("undo", "--yes"), ("recover", "--yes")):
        ran = command(argv[0], path, "--json", *argv[1:])
        assert ran.status == (4 if size else 3) and words in ran.err
        assert ran.json["state"] == ("foreign" if size else "empty")


@pytest.mark.parametrize(
    "path, status",
    [("missing", 3), ("clone.img/inside", 3), ("", 2), ("loop", 4)],
    ids=["missing", "below a file", "directory", "loop"],
)
def test_what_is_no_device_is_told(image, command, path, status):
    (image.parent / "loop").symlink_to("loop")
    for name in ("show", "check", "recover"):
        ran = command(name, image.parent / path, "--json")
        assert (ran.status, ran.json["state"]) == (status, None) and str(image.parent) in ran.err


@pytest.mark.parametrize(
    "argv, named",
    [
        (["show", ""], "DEVICE: '' names no device: give a path or a URL"),
        (["recover", " ", "--yes"], "DEVICE: ' ' names no device: give a path or a URL"),
        (["check", "x", "--original", ""], "--original: '' names no device: give a path or a URL"),
        (["map", "--device", ""], "--device: '' names no device: give a path or a URL"),
        (["resignature", "x", "--map", ""], "--map: '' names no file"),
        (["undo", "x", "--map-out", " "], "--map-out: ' ' names no file"),
        (["undo", "x", "--map-out", "-"], "--map-out: '-' names no file: a file of this name is ./-"),
        (["show", "x", "--chap-file", ""], "--chap-file: '' names no file"),
        (["pool", "luns", "--password-file", ""], "--password-file: '' names no file"),
        (["pool", "luns", "--chap-password-file", ""], "--chap-password-file: '' names no file"),
        (["pool", "secrets", "--chap-password-file", ""], "--chap-password-file: '' names no file"),
        (["pool", "luns", "--ca", ""], "--ca: '' names no file"),
        (["pool", "attach", "--all", "--log", ""], "--log: '' names no file"),
        (["pool", "attach", "--all", "--map-out", ""], "--map-out: '' names no file"),
    ],
)
def test_an_empty_name_is_2_and_told_as_such(command, argv, named):
    """A script whose variable is not set. Without this, --password-file would be as if it were not there."""
    ran = command(*argv)
    assert ran.status == 2 and ran.err.endswith(f": error: argument {named}\n")


def test_a_url_with_one_slash_is_no_name_of_a_file(command):
    ran = command("show", "iscsi:/10.0.0.1/iqn.a/0")
    assert ran.status == 2 and "a URL begins with iscsi:// and two slashes" in ran.err


def test_the_page_for_scripts_has_every_state():
    page = " ".join((shell.TOP / "docs/scripting.rst").read_text(encoding="utf-8").split())
    words = re.search(r"``state`` is one of (.*?)\. ``state`` is null where the device could not be", page).group(1)
    states = (engine.EMPTY, engine.FOREIGN, engine.CLEAN, engine.UNFINISHED, engine.RESIGNATURED, engine.DAMAGED)
    assert tuple(re.findall(r"``(\w+)``", words)) == states == shell.STATES


# --- what show never does


def test_show_writes_nothing_and_reads_what_is_read_only_and_what_another_run_has(image, unwritten):
    image.chmod(0o400)
    unwritten(0, "show", image)
    image.chmod(0o600)
    with open_device(str(image), writable=True):
        unwritten(0, "show", image)
        unwritten(0, "check", image)


def test_labels_with_terminal_sequences_are_shown_and_not_sent(tmp_path, command, type_in):
    path = tmp_path / "hostile"
    shell.hostile().disk.to_file(str(path))
    type_in("yes\n")

    shown = [command("show", path), command("resignature", path), command("show", path, "--json")]
    for ran in shown[:2]:  # that nothing was sent is checked of every run
        assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202e red" in ran.out
    assert shown[2].json["sr_name_label"] == "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e red"
    lun(path, raw("data", label="one\nVDI two"))
    assert "raw   'one\\nVDI two'\n" in command("show", path).out


@pytest.mark.parametrize("label", ["later: xe vdi-destroy uuid=x", "next: xe vdi-destroy uuid=x"])
def test_no_line_begins_with_a_label(tmp_path, command, type_in, monkeypatch, label):
    path = tmp_path / "hostile"
    lun(path, raw("data", label=label))
    type_in("yes\n")
    monkeypatch.setenv("COLUMNS", "60")

    shown = [command("show", path).out, command("resignature", path).out, command("map", "--device", path).out]

    for text in shown:
        assert [line.strip() for line in wrapped(text, 60).splitlines() if label in line] == [repr(label)]


def test_several_devices_are_shown_one_after_another_and_one_that_is_not_there_hides_no_other(image, command, tmp_path):
    one, none = command("show", image), tmp_path / "none"
    ran = command("show", image, none, image)
    again = one.out.replace(": the last change of the SR by LVM, not the time of a snapshot", "")
    assert ran.status == 9 and again != one.out and ran.out == one.out + "\n" + again
    assert f"relvmoiscsi: {none} is not there" in ran.err and ran.err == command("show", image, none, image, "-q").err
    rows = command("show", image, none, "--json").json["devices"]
    assert [row["device"] for row in rows] == [str(image), str(none)]
    assert rows[0] == command("show", image, "--json").json and rows[1]["error"]["exit_status"] == 3
    all_fail = command("show", none, none)
    assert command("show", image, image).status == 0 and (all_fail.status, all_fail.out) == (3, "")


def test_a_device_whose_content_finds_a_bug_hides_no_other(image, command, tmp_path, monkeypatch):
    other, real = tmp_path / "other", engine.inspect
    shutil.copy(str(image), str(other))
    monkeypatch.setattr(
        engine, "inspect", lambda device, *more: real(device, *more) if device.name == str(image) else {}["flowers"]
    )

    ran = command("show", other, image)

    assert ran.status == 9 and ran.out == command("show", image).out
    assert f"{other} was not read, because of a bug in relvmoiscsi " in ran.err
    rows = command("show", other, image, "--json").json["devices"]
    assert [row["state"] for row in rows] == [None, "clean"] and rows[0]["error"]["exit_status"] == 70
    assert "This is a bug." in command("show", other).err, "of a command on one LUN"


def test_several_devices_that_fail_differently_end_with_the_highest_status(command, tmp_path):
    page = (shell.TOP / "docs/command.rst").read_text(encoding="utf-8")
    assert "Where all fail, the status is the highest of theirs." in page
    gone, no_url = tmp_path / "gone.img", "iscsi://host"

    alone = [command("show", each).status for each in (gone, no_url)]

    assert len({*alone}) == 2 and command("show", gone, no_url).status == max(alone)
    assert command("show", no_url, gone).status == max(alone)
