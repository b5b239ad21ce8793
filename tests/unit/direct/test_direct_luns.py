# SPDX-License-Identifier: LGPL-2.1-only
"""The configuration of direct LUNs keeps every byte of its owner; a link leads to one device, or there is a reason."""

import configparser
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

from kit.direct_world import LUN, OTHER, World, in_process
from relvmoiscsi.direct import config, links
from relvmoiscsi.direct.config import (
    Entry,
    check_name,
    check_scsi_id,
    read_section,
    with_entry,
    without_entry,
)
from relvmoiscsi.direct.links import Owner, Status, Uncertain
from relvmoiscsi.errors import DeviceError, NotFound, Refused, UsageError
from relvmoiscsi.host import config_file
from relvmoiscsi.host.config_file import only_one, read_config, replace_config
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.lun_users import Pool

DISK = Entry("disk", LUN)

names = st.builds("{}{}".format, st.sampled_from("Aq7"), st.text("Bx0._-", max_size=8))
scsi_ids = st.builds(
    "{}{}".format, st.sampled_from(["36001405", "1LIO-", "SATA_"]), st.text("aF9_", min_size=8, max_size=9)
)
entries = st.lists(st.builds(Entry, names, scsi_ids), max_size=5, unique_by=(lambda e: e.name, lambda e: e.scsi_id))

#: lines that an administrator, an editor or an accident puts into a file
ODD_LINES = ["", "", "# [direct]", "; old", "[direct]", "[direct]\r", "[other]", " [direct] ", "[direct] # ours"]
ODD_LINES += ["[Direct]", "[", "]", "[]", "key = value", "  indented = yes", "= nothing", "lonely", "disk = 3600"]
ODD_LINES += ["\t", "\r", "\ufeff", "\udce9\udcff", config.MARK]
ODD_LINES += ["a = " + OTHER, "b: " + OTHER + " ; theirs", "b = " + OTHER + "  # again"]
lines = st.one_of(
    st.sampled_from(ODD_LINES),
    st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=20),
)
texts = st.builds("\n".join, st.lists(lines, max_size=12))


# --- what it says


def test_names_and_ids_are_read_from_the_section_alone():
    text = (
        "[DEFAULT]\nno = 3600140500000000000000000000000000\n[direct] ; the LUNs\n# comment\n\n"
        f"disk = {LUN}\nlog.1: {OTHER}  # theirs\n[other]\nother = 36001405aa\n"
    )

    assert read_section(text) == ((DISK, Entry("log.1", OTHER)), ())


@given(entries, st.lists(st.sampled_from(["", "# comment", "; comment = 1"]), max_size=5))
def test_a_well_formed_file_reads_as_configparser_reads_it(found, others):
    body = ["{} = {}".format(*entry) for entry in found] + others
    text = "\n".join(["[other]", "a = b", "[direct]", *body, "[last]", "c = d", ""])
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    parser.optionxform = str
    parser.read_string(text)

    assert [tuple(entry) for entry in read_section(text).entries] == parser.items("direct")


@pytest.mark.parametrize(
    "line, reason",
    [
        ("disk", "is not of the form"),
        ("  disk = " + LUN, "is not of the form"),
        ("disk =", "is not a SCSIid"),
        ("= " + LUN, "cannot be the name"),
        ("../etc = " + LUN, "cannot be the name"),
        ("disk = 3600/../../etc", "is not a SCSIid"),
        ("disk = $(reboot)", "is not a SCSIid"),
        ("sda = " + LUN, "the kernel uses such names for disks"),
        ("first = " + OTHER, "The name first is taken"),
        ("disk = 36001405aaaa", "has a name already: first"),
    ],
)
def test_a_line_that_cannot_be_meant_is_told_and_harms_no_other(line, reason):
    section = read_section(f"[direct]\nfirst = 36001405aaaa\n{line}\nlast = 36001405bbbb\n")

    assert [entry.name for entry in section.entries] == ["first", "last"]
    assert len(section.problems) == 1
    assert section.problems[0].startswith("Line 3: ") and reason in section.problems[0]


@given(texts)
def test_no_file_is_a_failure(text):
    section = read_section(text)

    assert len({entry.name for entry in section.entries}) == len(section.entries)
    assert len({entry.scsi_id for entry in section.entries}) == len(section.entries)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "-f", ".hidden", "a/b", "a b", "a\n", "\u00e9", "$x", "%k", "x" * 65]
    + ["sda", "sdab1", "dm-3", "xvda", "tda", "nbd0", "sr0", "loop7", "nvme0n1", "md127", "hda"],
)
def test_what_would_be_a_path_an_option_or_a_disk_of_the_kernel_is_no_name(name):
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "7", "A.b_c-1", "x" * 64, "sda-old", "nvme", "loopback"])
def test_what_is_none_of_these_is_a_name(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "scsi_id", [LUN, "1LIO-ORG_FILEIO:993c87c3-7fa8", "0QEMU_QEMU_HARDDISK", "SATA_disk_1", "eui.01"]
)
def test_what_scsi_id_prints_is_a_scsi_id(scsi_id):
    assert check_scsi_id(scsi_id) == scsi_id


@pytest.mark.parametrize(
    "scsi_id", ["", "3", "mpath-" + LUN, LUN + "\n", "3 6", "3600;reboot", "3600/x", "36'", "3*", "-e"]
)
def test_what_a_rule_or_a_shell_would_take_for_more_is_no_scsi_id(scsi_id):
    with pytest.raises(UsageError) as caught:
        check_scsi_id(scsi_id)
    assert caught.value.sm_key == "ConfigSCSIid"


# --- changing it


@given(texts)
def test_adding_and_removing_restores_every_byte(text):
    assume(not read_section(text).named("new") and not read_section(text).of_lun(LUN))
    # An empty section below our mark is one that we made: it goes with its last line.
    assume(config.MARK + "\n[direct]" not in text.replace("\r", ""))
    try:
        changed = with_entry(text, Entry("new", LUN))
    except Refused:
        return  # a file to be edited by hand

    assert read_section(changed).named("new") == Entry("new", LUN)
    assert set(read_section(changed).entries) == {*read_section(text).entries, Entry("new", LUN)}
    assert without_entry(changed, "new") == text


def test_a_file_with_the_line_ends_of_windows_keeps_them():
    text = f"[direct]\r\nother = {OTHER}\r\n[more]\r\n"

    changed = with_entry(text, DISK)

    assert changed == f"[direct]\r\nother = {OTHER}\r\ndisk = {LUN}\r\n[more]\r\n"
    assert without_entry(changed, "disk") == text


def test_a_mark_of_ours_goes_only_with_an_empty_section():
    text = with_entry("", DISK) + f"# by hand\nother = {OTHER}\n"

    assert without_entry(without_entry(text, "disk"), "other") == text.replace(f"disk = {LUN}\n", "").replace(
        f"other = {OTHER}\n", ""
    )


@pytest.mark.parametrize(
    "entry, reason", [(Entry("disk", OTHER), "is taken: it is LUN " + LUN), (Entry("new", LUN), "a name already: disk")]
)
def test_a_name_or_a_lun_that_is_there_is_not_added_again(entry, reason):
    with pytest.raises(UsageError, match=reason):
        with_entry(f"[direct]\ndisk = {LUN}\n", entry)


def test_removing_what_is_there_twice_is_left_to_a_person():
    with pytest.raises(Refused, match="Edit the section by hand"):
        without_entry(f"[direct]\ndisk = {LUN}\ndisk = {OTHER}\n", "disk")
    with pytest.raises(NotFound):
        without_entry("[direct]\n", "disk")
    with pytest.raises(NotFound):
        without_entry(f"disk = {LUN}\n[other]\ndisk = {LUN}\n", "disk")


# --- the file


def test_the_file_keeps_its_bytes_its_mode_and_its_place(tmp_path):
    (tmp_path / "real").mkdir()
    path = tmp_path / "real/conf"
    path.write_bytes(b"# \xe9\xff\r\n[a]\r\n")
    path.chmod(0o640)
    (tmp_path / "conf").symlink_to(path)

    replace_config(str(tmp_path / "conf"), read_config(str(tmp_path / "conf")) + "# more\n")

    assert path.read_bytes() == b"# \xe9\xff\r\n[a]\r\n# more\n"
    assert path.stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "conf").is_symlink()
    assert [each.name for each in (tmp_path / "real").iterdir()] == ["conf"]


def test_a_file_that_is_not_there_is_empty_and_made_for_all_to_read(tmp_path):
    path = str(tmp_path / "conf")

    assert read_config(path) == ""
    replace_config(path, "[direct]\n")
    assert os.stat(path).st_mode & 0o7777 == 0o644


def test_a_file_that_cannot_be_read_is_not_an_empty_one(tmp_path):
    with pytest.raises(Refused, match="Nothing was changed"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("step", ["fsync", "rename", "open"])
def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step):
    path = tmp_path / "conf"
    path.write_text("old\n")

    def fail(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(Refused, match="No space left on device. Nothing was changed"):
        replace_config(str(path), "new\n")
    monkeypatch.undo()

    assert [each.name for each in tmp_path.iterdir()] == ["conf"]
    assert path.read_text() == "old\n"


def test_the_new_file_is_durable_before_it_has_the_name(tmp_path, monkeypatch):
    order = []
    for step in ("fsync", "rename"):
        real = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *args, step=step, real=real: (order.append(step), real(*args))[1])

    replace_config(str(tmp_path / "conf"), "new\n")

    assert order == ["fsync", "rename", "fsync"]


def test_one_change_at_a_time(tmp_path, monkeypatch):
    path, order = str(tmp_path / "conf"), []

    def second():
        with only_one(path):
            order.append("second")

    thread = threading.Thread(target=second)
    with only_one(path):
        with monkeypatch.context() as patch:
            patch.setattr(config_file, "LOCK_SECONDS", 0.0)
            with pytest.raises(Refused, match="being changed by this very process"), only_one(path):
                pass
        thread.start()
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


def test_a_directory_that_cannot_be_opened_is_a_refusal(tmp_path):
    with pytest.raises(Refused, match="No such file or directory. Nothing was changed"), only_one(
        str(tmp_path / "gone/conf")
    ):
        pass


# --- which device


@pytest.fixture
def world(tmp_path, monkeypatch):
    # No child: what is on a disk is in a dictionary. `in_time` itself is tested below.
    world = World(tmp_path)
    monkeypatch.setattr(links, "in_time", in_process)
    return world


def two_paths(world):
    world.has_disk("sda")
    world.has_disk("sdb", "8:16")


def a_map_of_two_paths(world):
    two_paths(world)
    world.has_map()


def a_disk_and_one_of_another_lun(world):
    world.has_disk("sda")
    world.has_disk("sdb", "8:16", OTHER)


def a_disk_that_was_multipathed_once(world):
    world.has_disk("sda")
    world.lists()


def a_disk_that_multipath_never_took(world):
    world.has_disk("sda")
    world.lists(OTHER)
    world.runs_multipathd()


def devices_without_a_scsi_id(world):
    world.put("sys/block/dm-7/dm/uuid", "LVM-abc\n")


@pytest.mark.parametrize("arrange, expected", [
    (a_disk_and_one_of_another_lun, {"sda": "disk", "sdb": ""}),
    (two_paths, {"sda": "", "sdb": ""}),
    (a_map_of_two_paths, {"dm-0": "disk", "sda": "", "sdb": ""}),
    (a_disk_that_was_multipathed_once, {"sda": "disk"}),
    (a_disk_that_multipath_never_took, {"sda": "disk"}),
    (devices_without_a_scsi_id, {"dm-7": "", "gone": ""}),
])  # fmt: skip
def test_a_link_leads_to_the_one_device_of_a_lun(world, arrange, expected):
    arrange(world)

    assert {name: world.link_name(name) for name in expected} == expected


@pytest.mark.parametrize("state", ["offline", "transport-offline", "blocked", "running"])
def test_an_only_disk_keeps_its_link_while_it_is_down(world, state):
    world.has_disk("sda", state=state)

    assert world.link_name("sda", "disk") == "disk"


@pytest.mark.parametrize("arrange, device, link", [(two_paths, "sdb", ""), (a_map_of_two_paths, "dm-0", "disk")])
def test_a_second_disk_or_a_map_takes_the_link_from_the_first_disk(world, arrange, device, link):
    arrange(world)
    world.marks("8:0")

    assert world.link_name(device) == link
    assert world.events() == ["sda"]


@pytest.mark.parametrize("sign", [
    "run/nonpersistent/multipath_enabled",
    "etc/systemd/system/multi-user.target.wants/multipathd.service",
    "etc/systemd/system/sysinit.target.wants/multipathd.service",
    None,
])  # fmt: skip
def test_a_disk_that_multipath_will_take_has_no_link(world, sign):
    a_disk_that_was_multipathed_once(world)
    world.put(sign) if sign else world.runs_multipathd()

    assert world.link_name("sda") == ""
    assert "has no map yet" in links.status_of(DISK, world.look, world.host).problem


@pytest.mark.parametrize("text", ["", "[direct]\n", "disk = {0}\n", "[other]\ndisk = {0}\n", "[direct]\nsda = {0}\n"])
def test_what_is_not_configured_has_no_link(world, text):
    world.configure(text.format(LUN))
    world.has_disk("sda")

    assert world.link_name("sda", "disk") == ""


# --- what is on it


@pytest.mark.parametrize(
    "owner, sentence",
    [
        (
            Owner("VG_XenStorage-1", is_sr=True),
            r"sda holds an SR \(volume group 'VG_XenStorage-1'\), or a clone of one",
        ),
        (Owner("x\x1b[2J", is_sr=True), r"volume group 'x\\x1b\[2J'"),
        (Owner(problem="LVM label at byte 512: bad."), "may belong to an SR: LVM label at byte 512"),
    ],
)
def test_an_sr_or_what_may_be_one_has_no_link_whatever_there_was(world, owner, sentence):
    world.has_disk("sda")
    world.content["sda"] = owner

    assert world.link_name("sda") == world.link_name("sda", "disk") == ""
    assert re.search(sentence, links.status_of(DISK, world.look, world.host).problem)


def test_lvm_of_a_guest_is_no_reason_against_a_link(world):
    world.has_disk("sda")
    world.content["sda"] = Owner("guest")

    assert world.link_name("sda") == "disk"


@pytest.mark.parametrize("previous, kept", [("disk", "disk"), ("", ""), ("renamed", "")])
def test_a_lun_that_does_not_answer_keeps_what_it_has(world, previous, kept):
    world.has_disk("sda")
    world.content["sda"] = DeviceError("/dev/sda", "read", 0, 4608, "Input/output error")

    assert world.link_name("sda", previous) == kept


def test_a_suspended_map_keeps_its_link_and_is_not_read(world):
    world.has_map(suspended="1")
    world.content["dm-0"] = AssertionError("it would hang")

    assert (world.link_name("dm-0", "disk"), world.link_name("dm-0")) == ("disk", "")


@pytest.mark.processes
def test_a_look_that_hangs_is_given_up_in_time():
    with pytest.raises(Uncertain, match="did not answer within 0.1 seconds"):
        links.in_time(lambda _path: time.sleep(3600), "/dev/sda", 0.1)


def bad(_path):
    raise DeviceError("/dev/sda", "read", 0, 4608, "Input/output error")


@pytest.mark.processes
def test_what_a_look_says_or_raises_comes_back():
    owner = Owner("gr\u00fcn", True, "x" * 70000)  # more than a pipe takes at once

    assert links.in_time(lambda _path: owner, "/dev/sda", 20) == owner
    with pytest.raises(Uncertain, match="/dev/sda cannot be read: .*Input/output error"):
        links.in_time(bad, "/dev/sda", 20)
    with pytest.raises(Uncertain, match="cannot be read: .* ended from outside"):
        links.in_time(lambda _path: os.kill(os.getpid(), 9), "/dev/sda", 20)


# --- SRs


PBD = {"SR": "ref", "device_config": {"SCSIid": LUN}, "currently_attached": False}
SR = {"ref": {"uuid": "5b0c", "name_label": "SAN", "sm_config": {}}}


def pool(pbds=(), srs=None, vdis=()):
    return Pool(dict(enumerate(pbds)), srs or {}, dict(enumerate(vdis)))


@pytest.mark.parametrize(
    "pbds, srs",
    [
        ([PBD], SR),
        ([dict(PBD, device_config={"device": "/dev/disk/by-id/scsi-" + LUN})], SR),
        ([], {"ref": dict(SR["ref"], sm_config={"devserial": f"scsi-{OTHER}, scsi-{LUN}"})}),
    ],
)
def test_a_lun_of_an_sr_is_refused_attached_or_not(pbds, srs):
    with pytest.raises(Refused, match=r"belongs to the SR 5b0c \('SAN'\)"):
        links.check_no_user(LUN, pool(pbds, srs))


def test_a_lun_of_an_sr_that_is_not_known_is_refused():
    with pytest.raises(Refused, match="belongs to the SR unknown"):
        links.check_no_user(LUN, pool([PBD]))


def test_other_luns_of_srs_are_no_reason():
    links.check_no_user(LUN, pool([dict(PBD, device_config={"SCSIid": OTHER}), {}], {"ref": {}, "x": SR["ref"]}))
    links.check_no_user(LUN, pool(vdis=[{"sm_config": {"SCSIid": OTHER}}, {}]))


def test_a_lun_that_is_a_vdi_is_refused():
    vdi = {"uuid": "77", "sm_config": {"SCSIid": LUN}}

    with pytest.raises(Refused, match="is the VDI 77 "):
        links.check_no_user(LUN, pool(vdis=[vdi]), "/dev/xapi/block/disk")
    links.check_no_user(LUN, pool(vdis=[dict(vdi, location="/dev/xapi/block/disk")]), "/dev/xapi/block/disk")


# --- who uses it


@pytest.mark.parametrize(
    "users, left",
    [
        (
            [
                "process 1 (multipathd)",
                "process 2 (systemd-udevd)",
                "process 3 ((udev-worker))",
                "process 4 (udev-worker)",
            ],
            [],
        ),
        (["process 1 (tapdisk)", "process 2 (multipathd)"], ["process 1 (tapdisk)"]),
        (["multipath map /dev/mapper/x (use that instead)"], ["multipath map /dev/mapper/x (use that instead)"]),
    ],
)
def test_who_looks_at_every_disk_does_not_use_it(world, monkeypatch, users, left):
    world.has_disk("sda")
    monkeypatch.setattr(links.holders, "users_of_block", lambda _status, _system: users)

    assert links.users_of("sda", world.host) == left
    if left:
        with pytest.raises(Refused, match="sda is in use by " + re.escape(left[0])):
            links.check_unused("sda", world.host)
    else:
        links.check_unused("sda", world.host)


def test_what_is_gone_is_used_by_nobody(world):
    assert links.users_of("sdx", world.host) == []


# --- udev


def test_a_link_is_renewed_by_an_event_of_everything_the_lun_has(world):
    world.has_disk("sda")
    world.has_disk("sdb", "8:16")
    world.has_map()
    world.has_disk("sdc", "8:32", OTHER)
    world.steps = [lambda: world.links("sda"), lambda: world.links("dm-0")]

    assert links.renew_link(DISK, "dm-0", world.host)
    assert world.events() == ["dm-0", "sda", "sdb"]


def test_a_link_that_does_not_come_or_does_not_go_is_told(world):
    world.has_disk("sda")
    assert not links.renew_link(DISK, "sda", world.host)

    world.links("sda")
    assert not links.remove_link(DISK, world.host)
    world.steps = [(world.root / "dev/xapi/block/disk").unlink]
    assert links.remove_link(DISK, world.host)


def test_a_device_that_goes_at_that_moment_is_no_failure(world):
    links.udev.make_event("sdx", world.host)
    assert links.marked("sdx", world.host) == ""


# --- how it stands


def test_a_linked_lun_is_linked_and_not_read(world):
    world.has_disk("sda")
    world.links("sda")
    world.content["sda"] = AssertionError("no need to")

    assert links.status_of(DISK, world.look, world.host) == Status("sda", 64 << 20, is_linked=True)


def test_every_lun_without_a_link_has_a_reason(world):
    def problem():
        return links.status_of(DISK, world.look, world.host).problem

    assert "No disk of this host has the SCSIid" in problem()

    world.has_disk("sda")
    assert "check that the rules of relvmoiscsi are installed" in problem()
    world.put("run/udev/data/b8:0", "E:RELVMOISCSI_HIDDEN=all\n")
    assert "giving the LUN new identities" in problem()
    world.links("sdz")
    assert "disk leads to sdz." in problem()
    two_paths(world)
    assert "has 2 paths" in problem()


# --- the rules

UDEV = Path(__file__).resolve().parents[3] / "udev"
FIRST, LAST = UDEV / "58-relvmoiscsi-direct.rules", UDEV / "99-zz-relvmoiscsi-direct.rules"


def test_the_rules_know_the_file_the_section_the_links_and_the_mark():
    text = FIRST.read_text(encoding="utf-8")

    assert set(re.findall(r"/etc/[a-z./]*[a-z]", text)) == {THIS_HOST.config}
    assert f"[[]{config.SECTION}[]]" in text
    assert f'SYMLINK+="{links.LINKS}/$env{{{links.MARK}}}"' in text
    assert links.MARK + "}" in LAST.read_text(encoding="utf-8")


def test_the_rules_come_where_their_comment_says():
    others = ["11-dm-mpath", "56-dm-mpath", "57-relvmoiscsi", "60-kpartx", "62-multipath", "64-md-raid", "65-multipath"]
    others += ["66-kpartx", "69-lvm", "69-dm-lvm-metad", "80-udisks2", "99-systemd", "99-z-dm-mpath-late"]

    order = sorted([*others, FIRST.stem, LAST.stem])
    assert order.index(FIRST.stem) == 3 and order[-1] == LAST.stem


def test_every_jump_in_the_rules_has_its_label():
    text = FIRST.read_text(encoding="utf-8")
    labels = re.findall(r'LABEL="(\w+)"', text)

    assert len(labels) == len(set(labels)) and set(re.findall(r'GOTO="(\w+)"', text)) == set(labels)


@pytest.mark.processes
def test_udev_finds_nothing_wrong_with_the_rules():
    udevadm = shutil.which("udevadm")
    options = subprocess.check_output([udevadm, "--help"], encoding="utf-8") if udevadm else ""
    if not re.search(r"^ +verify ", options, re.MULTILINE):
        pytest.skip("udevadm has no `verify` here; it came with systemd 254")
    subprocess.run([udevadm, "verify", "--no-style", str(FIRST), str(LAST)], check=True)
