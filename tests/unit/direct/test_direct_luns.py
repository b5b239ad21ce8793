# SPDX-License-Identifier: LGPL-2.1-only
"""The configuration of direct LUNs keeps every byte of its owner; a link leads to one device, or there is a reason."""

import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit import builder
from kit.direct_world import LUN, OTHER, World, in_process
from relvmoiscsi.direct import direct_config, links
from relvmoiscsi.direct.direct_config import (
    check_name,
    check_scsi_id,
    read_section,
    with_entry,
    without_entry,
)
from relvmoiscsi.direct.links import Status
from relvmoiscsi.errors import DeviceError, NotFound, Refused, UsageError
from relvmoiscsi.formats.lvm.owner import Owner
from relvmoiscsi.host import config_file
from relvmoiscsi.host.config_file import changing, read_config, replace_config
from relvmoiscsi.host.disk import hiding
from relvmoiscsi.host.this_host import THIS_HOST, Host

DISK = ("disk", LUN)


#: lines that an administrator, an editor or an accident puts into a file
ODD_LINES = ["", "", "# [direct]", "; old", "[direct]", "[direct]\r", "[other]", " [direct] ", "[direct] # ours"]
ODD_LINES += ["[Direct]", "[", "]", "[]", "key = value", "  indented = yes", "= nothing", "lonely", "disk = 3600"]
ODD_LINES += ["\t", "\r", "\ufeff", "\udce9\udcff", direct_config.MARK]
ODD_LINES += ["a = " + OTHER, "b: " + OTHER + " ; theirs", "b = " + OTHER + "  # again"]
any_line = st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=20)
texts = st.builds("\n".join, st.lists(st.one_of(st.sampled_from(ODD_LINES), any_line), max_size=12))


# --- what it says


def test_names_and_ids_are_read_from_the_section_alone():
    text = (
        "[DEFAULT]\nno = 3600140500000000000000000000000000\n[direct] ; the LUNs\n# comment\n\n"
        f"disk = {LUN}\nlog.1: {OTHER}  # theirs\n[other]\nother = 36001405aa\n"
    )
    assert read_section(text) == ({"disk": LUN, "log.1": OTHER}, [])


@pytest.mark.parametrize("line, reason", [
    ("disk", "is not of the form"),
    ("../etc = " + LUN, "cannot be the name"),
    ("disk = $(reboot)", "is not a SCSIid"),
    ("disk = 6001405" + "A" * 25, "Write 36001405" + "a" * 25),
    ("first = " + OTHER, "The name first is taken"),
    ("disk = 36001405aaaa", "has a name already: first"),
])  # fmt: skip
def test_a_line_that_cannot_be_meant_is_told_and_harms_no_other(line, reason):
    luns, (problem,) = read_section(f"[direct]\nfirst = 36001405aaaa\n{line}\nlast = 36001405bbbb\n")
    assert list(luns) == ["first", "last"]
    assert problem.startswith("Line 3: ") and reason in problem


PATHS_AND_OPTIONS = ["", "..", "-f", ".hidden", "a/b", "a b", "a\n", "\u00e9", "$x", "x" * 65]
OF_THE_KERNEL = ["sda", "sdab1", "dm-3", "xvda", "tda", "nbd0", "sr0", "loop7", "nvme0n1", "md127", "hda"]
SCSI_IDS = [LUN, "1LIO-ORG_FILEIO:993c87c3-7fa8", "0QEMU_QEMU_HARDDISK", "SATA_disk_1", "eui.01"]
NO_SCSI_IDS = ["", "3", "mpath-" + LUN, LUN + "\n", "3 6", "3600;reboot", "3600/x", "36'", "3*", "-e"]


def test_what_would_be_a_path_an_option_a_word_of_a_shell_or_a_disk_of_the_kernel_is_no_name_and_no_scsi_id():
    for check, good, bad in (
        (check_name, ["a", "7", "A.b_c-1", "x" * 64, "sda-old", "nvme", "loopback"], PATHS_AND_OPTIONS + OF_THE_KERNEL),
        (check_scsi_id, SCSI_IDS, NO_SCSI_IDS),
    ):
        assert list(map(check, good)) == good
        for text in bad:
            with pytest.raises(UsageError) as caught:
                check(text)
            assert caught.value.sm_key == "ConfigSCSIid" or check == check_name


# --- changing it


@given(texts)
def test_adding_and_removing_restores_every_byte(text):
    """Of any text at all: no file is a failure."""
    luns, _problems = read_section(text)
    assert len(set(luns.values())) == len(luns)
    assume("new" not in luns and LUN not in luns.values())
    # An empty section below our mark is one that we made: it goes with its last line.
    assume(direct_config.MARK + "\n[direct]" not in text.replace("\r", ""))
    try:
        changed = with_entry(text, "new", LUN)
    except Refused:
        return  # a file to be edited by hand
    assert read_section(changed)[0] == {**luns, "new": LUN}
    assert without_entry(changed, "new") == text


def test_a_file_with_the_line_ends_of_windows_keeps_them():
    text = f"[direct]\r\nother = {OTHER}\r\n[more]\r\n"
    changed = with_entry(text, *DISK)
    assert changed == f"[direct]\r\nother = {OTHER}\r\ndisk = {LUN}\r\n[more]\r\n"
    assert without_entry(changed, "disk") == text


def test_a_mark_of_ours_goes_only_with_an_empty_section():
    mine, others = f"disk = {LUN}\n", f"other = {OTHER}\n"
    text = with_entry("", *DISK) + "# by hand\n" + others
    assert without_entry(without_entry(text, "disk"), "other") == text.replace(mine, "").replace(others, "")


SECOND = f"disk = {OTHER}\n"


@pytest.mark.parametrize("change, error, reason", [
    (lambda text: without_entry(text + SECOND, "disk"), Refused, "Edit the section by hand"),
    (lambda text: without_entry(SECOND + "[direct]\n[other]\n" + SECOND, "disk"), NotFound, "name disk"),
])  # fmt: skip
def test_what_is_there_already_or_twice_or_not_at_all_is_refused(change, error, reason):
    with pytest.raises(error, match=reason):
        change(f"[direct]\ndisk = {LUN}\n")


# --- the file: how it is replaced is tested with host.files


def test_the_file_keeps_its_bytes_its_mode_and_its_place(tmp_path):
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real/conf", tmp_path / "conf"
    link.symlink_to(path)
    assert read_config(str(link)) == ""
    path.write_bytes(b"# \xe9\xff\r\n[a]\r\n")
    path.chmod(0o640)

    replace_config(str(link), read_config(str(link)) + "# more\n")

    assert path.read_bytes() == b"# \xe9\xff\r\n[a]\r\n# more\n" and path.stat().st_mode & 0o7777 == 0o640
    assert link.is_symlink() and os.listdir(str(path.parent)) == ["conf"]


def test_a_file_that_cannot_be_read_is_not_an_empty_one(tmp_path):
    with pytest.raises(Refused, match="Nothing was changed"):
        read_config(str(tmp_path))


def test_one_change_at_a_time(tmp_path, monkeypatch):
    host, order = Host(str(tmp_path)), []
    os.symlink("/proc", host.at("proc"))

    def second():
        with changing(host):
            order.append("second")

    thread = threading.Thread(target=second)
    with changing(host):
        with monkeypatch.context() as patch:
            patch.setattr(config_file, "LOCK_SECONDS", 0.0)
            with pytest.raises(Refused, match="being changed by this very process"), changing(host):
                pass
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


# --- which device


@pytest.fixture
def world(tmp_path, monkeypatch):
    # No child: what is on a disk is in a dictionary. `in_time` itself is tested below.
    world = World(tmp_path)
    monkeypatch.setattr(links, "in_time", in_process)
    return world


def two_disks(world, scsi_id=LUN):
    world.has_disk("sda")
    world.has_disk("sdb", "8:16", scsi_id)


def a_map(world):
    two_disks(world)
    world.has_map()


def was_multipathed(world, scsi_id=LUN):
    world.has_disk("sda")
    world.lists(scsi_id)


def a_map_of_a_partition(world):
    a_map(world)
    world.put("sys/block/dm-7/dm/uuid", f"part12-mpath-{LUN}\n")
    world.put("sys/block/dm-8/dm/uuid", f"part1-mpath-{OTHER}\n")


@pytest.mark.parametrize("arrange, expected", [
    (lambda world: two_disks(world, OTHER), {"sda": "disk", "sdb": None}),
    (two_disks, {"sda": "", "sdb": ""}),
    (a_map, {"dm-0": "disk", "sda": "", "sdb": ""}),
    (a_map_of_a_partition, {"dm-0": "disk", "dm-7": "", "dm-8": None}),
    (was_multipathed, {"sda": "disk"}),
    (lambda world: world.put("sys/block/dm-7/dm/uuid", "LVM-abc\n"), {"dm-7": None, "gone": None}),
    (lambda world: world.has_disk("sda", state="transport-offline"), {"sda": "disk"}),  # it may come back
])  # fmt: skip
def test_a_link_leads_to_the_one_device_of_a_lun(world, arrange, expected):
    arrange(world)
    assert {name: world.link_name(name) for name in expected} == expected


@pytest.mark.parametrize("arrange, device, link", [(two_disks, "sdb", ""), (a_map, "dm-0", "disk")])
def test_a_second_disk_or_a_map_takes_the_link_from_the_first_disk(world, arrange, device, link):
    arrange(world)
    world.marks("8:0")
    assert world.link_name(device) == link and world.events() == ["sda"]


def test_two_disks_without_a_link_make_no_events_of_each_other(world):
    two_disks(world)
    world.marks("8:0", links.NO_LINK)
    world.marks("8:16", links.NO_LINK)
    assert world.link_name("sda") == world.link_name("sdb") == "" and world.events() == []


@pytest.mark.parametrize("sign", [
    "run/nonpersistent/multipath_enabled",
    "etc/systemd/system/multi-user.target.wants/multipathd.service",
    None,
])  # fmt: skip
def test_a_disk_that_multipath_will_take_has_no_link(world, sign):
    was_multipathed(world)
    world.put(sign) if sign else world.runs_multipathd()
    assert world.link_name("sda") == ""
    assert "has no map yet" in links.status_of(*DISK, world.host).reason


def test_multipathd_runs_although_its_program_was_updated_since(world):
    was_multipathed(world)
    world.runs("/usr/sbin/multipathd (deleted)", 0)
    assert world.link_name("sda") == ""


@pytest.mark.parametrize("look_alike", [
    lambda world: world.put("proc/net/unix", "0: 2 0 10000 1 1 9 @x @/org/kernel/linux/storage/multipathd\n"),
    lambda world: world.runs("/home/user/multipathd", 1000),
    lambda world: world.runs("/home/user/multipathd", 1000, name="\x1cUid: 0 0 0 0"),
    lambda world: world.runs("/usr/sbin/multipathd", 1000),  # which then says that only root may run it
    lambda world: world.runs("/usr/bin/sudo", 0),  # by a link of that name
])  # fmt: skip
def test_what_each_user_can_make_is_no_multipathd(world, look_alike):
    was_multipathed(world)
    look_alike(world)
    assert world.link_name("sda") == "disk"


@pytest.mark.parametrize("text", ["", "[other]\ndisk = {0}\n", "[direct]\nsda = {0}\n"])
def test_what_is_not_configured_is_not_direct(world, text):
    world.configure(text.format(LUN))
    world.has_disk("sda")
    assert world.link_name("sda") is None


# --- what is on it


UNREADABLE = DeviceError("/dev/sda", "read", 0, 4608, "Input/output error")


@pytest.mark.parametrize("owner, sentence", [
    (Owner("VG_XenStorage-1", is_sr=True), r"sda holds an SR \(volume group 'VG_XenStorage-1'\), or a clone of one"),
    (Owner(problem="LVM label at byte 512: bad."), "may belong to an SR: LVM label at byte 512"),
    (UNREADABLE, "Input/output error"),
])  # fmt: skip
def test_a_new_lun_that_holds_an_sr_or_may_hold_one_is_refused(world, owner, sentence):
    world.has_disk("sda")
    world.content["sda"] = owner
    with pytest.raises(Refused, match=sentence):
        links.check_content("sda", world.look, world.host)


def test_a_suspended_map_is_refused_and_not_read(world):
    world.has_map(suspended="1")
    world.content["dm-0"] = AssertionError("it would hang")
    with pytest.raises(Refused, match="is suspended"):
        links.check_content("dm-0", world.look, world.host)


@pytest.mark.parametrize("arrange, device", [(World.has_disk, "sda"), (World.has_map, "dm-0")])
def test_what_a_guest_writes_takes_no_link_and_is_not_even_read(world, monkeypatch, arrange, device):
    """A guest that names a volume group as an SR's would lose its link, and LVM's filter would not know the LUN."""
    arrange(world, device)
    node = world.root / "dev" / device
    node.unlink()
    builder.one_vhd().disk.to_file(str(node))
    monkeypatch.setattr(links, "in_time", lambda *_: pytest.fail("the content was read"))
    assert world.link_name(device) == "disk"


@pytest.mark.processes
def test_what_a_look_says_or_raises_comes_back_in_time():
    def unreadable(_path):
        raise UNREADABLE

    owner = Owner("gr\u00fcn", True, "x" * 70000)  # more than a pipe takes at once
    assert links.in_time(lambda _path: owner, "/dev/sda", 20) == owner
    for look, seconds, sentence in (
        (lambda _path: time.sleep(3600), 0.1, "did not answer within 0.1 seconds"),
        (unreadable, 20, "/dev/sda cannot be read: .*Input/output error"),
        (lambda _path: os.kill(os.getpid(), 9), 20, "cannot be read: .* ended from outside"),
    ):
        with pytest.raises(Refused, match=sentence):
            links.in_time(look, "/dev/sda", seconds)


# --- who has it: what counts as a user is tested with host.xapi.lun_users


USERS = {"process 1 (tapdisk)": "", "multipath map /dev/mapper/x": "Use that map instead."}


def test_a_device_in_use_is_refused_with_its_users(world, monkeypatch):
    world.has_disk("sda")
    monkeypatch.setattr(links.holders, "users_of_block", lambda _status, _system: {})
    links.check_unused("sda", world.host)
    monkeypatch.setattr(links.holders, "users_of_block", lambda _status, _system: USERS)
    with pytest.raises(Refused) as caught:
        links.check_unused("sda", world.host)
    assert caught.value.told == f"sda is in use by {', '.join(USERS)}. Use that map instead."
    assert links.users_of("sdx", world.host) == {}, "it is gone"


# --- udev


def test_a_link_is_renewed_by_an_event_of_everything_the_lun_has(world):
    a_map(world)
    world.has_disk("sdc", "8:32", OTHER)
    world.steps = [lambda: world.links("sda"), lambda: world.links("dm-0")]
    world.put("sys/block/sda/sda1/uevent")
    assert links.renew_link(*DISK, "dm-0", world.host)
    assert world.events() == ["dm-0", "sda", "sdb"]
    assert (world.root / "sys/block/sda/sda1/uevent").read_text() == "change", "a partition follows its disk"


def test_a_device_that_goes_at_that_moment_is_no_failure(world):
    links.udev.make_event("sdx", world.host)
    assert links.marked("sdx", world.host) == ""


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\r"])
def test_the_label_of_a_file_system_marks_no_disk_and_hides_none(world, end):
    """blkid leaves separators of Unicode in a label, and udev writes the label to the database."""
    world.has_disk("sda")
    world.put(
        "run/udev/data/b8:0", f"I:1\nE:ID_FS_LABEL=x{end}E:RELVMOISCSI_DIRECT=disk{end}E:RELVMOISCSI_HIDDEN=all\n"
    )

    assert links.marked("sda", world.host) == "" and not hiding.is_hidden("sda", world.host)


# --- how it stands


def test_a_linked_lun_is_linked_and_any_other_has_a_reason(world):
    def status():
        return links.status_of(*DISK, world.host)

    assert "No disk of this host has the SCSIid" in status().reason
    world.has_disk("sda")
    assert "Check that the rules of relvmoiscsi are installed" in status().reason
    world.put("run/udev/data/b8:0", "E:RELVMOISCSI_HIDDEN=all\n")
    assert "giving the LUN new identities" in status().reason
    world.links("sdz")
    assert "disk leads to sdz." in status().reason
    world.links("sda")
    assert status() == Status("sda", 64 << 20, is_linked=True)
    two_disks(world)
    assert "has 2 paths" in status().reason


# --- the rules

UDEV = Path(__file__).resolve().parents[3] / "udev"
FIRST, LAST = UDEV / "58-relvmoiscsi-direct.rules", UDEV / "99-zz-relvmoiscsi-direct.rules"


def test_the_rules_know_the_file_the_section_the_links_and_the_mark_and_every_jump_has_its_label():
    text = FIRST.read_text(encoding="utf-8")
    assert set(re.findall(r"/etc/[a-z./]*[a-z]", text)) == {THIS_HOST.config}
    assert f"[[]{direct_config.SECTION}[]]" in text
    assert f'SYMLINK+="{links.LINKS}/$env{{{links.MARK}}}"' in text
    assert links.MARK + "}" in LAST.read_text(encoding="utf-8")
    labels = re.findall(r'LABEL="(\w+)"', text)
    assert len(labels) == len(set(labels)) and set(re.findall(r'GOTO="(\w+)"', text)) == set(labels)


@pytest.mark.processes
def test_udev_finds_nothing_wrong_with_the_rules():
    udevadm = shutil.which("udevadm")
    options = subprocess.check_output([udevadm, "--help"], encoding="utf-8") if udevadm else ""
    if not re.search(r"^ +verify ", options, re.MULTILINE):
        pytest.skip("udevadm has no `verify` here; it came with systemd 254")
    subprocess.run([udevadm, "verify", "--no-style", str(FIRST), str(LAST)], check=True)


@pytest.mark.processes
@pytest.mark.parametrize("uuid", [f"x -e {LUN}", LUN[:-1] + "?", "x FILE", "*"])
def test_the_uuid_of_a_map_is_one_word_of_the_rules(tmp_path, uuid):
    """The shell split the word, and grep looked for a part of it, or in another file."""
    (program,) = re.findall(r"PROGRAM!=\"/bin/sh -c '(.*)'\", GOTO", FIRST.read_text(encoding="utf-8"))
    conf, said = tmp_path / "conf", tmp_path / "uuid"
    conf.write_text(f"[direct]\nname = {LUN}\n")
    (tmp_path / "FILE").write_text("x\n")
    (tmp_path / LUN).touch()
    names = {"/etc/relvmoiscsi.conf": str(conf), "/sys$devpath/dm/uuid": str(said), "$$": "$"}
    for name, here in names.items():
        program = program.replace(name, here)

    def is_direct(text, kind="mpath-"):
        said.write_text(f"{kind}{text}\n")
        return not subprocess.call(["/bin/sh", "-c", program], cwd=str(tmp_path), stdin=subprocess.DEVNULL)

    assert is_direct(LUN) and not is_direct(OTHER)
    assert is_direct(LUN, "part1-mpath-") and not is_direct(OTHER, "part1-mpath-")
    assert not is_direct(uuid)
