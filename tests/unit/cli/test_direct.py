# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi direct`: what is refused and why, what is told, and that nothing was changed where nothing should be."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from kit import builder, shell
from kit.direct_world import LUN, OTHER, World, in_process
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi import cli
from relvmoiscsi.cli import direct as cli_direct
from relvmoiscsi.direct import links
from relvmoiscsi.direct.links import Owner
from relvmoiscsi.errors import CommandFailed, DeviceError
from relvmoiscsi.host.command import Completed
from relvmoiscsi.host.this_host import Host

ADMINISTRATORS = "# mine\n[other]\nkey = value\n"
INTRODUCER = "opt/xensource/libexec/local-device-change"


class Scene(World):
    """A host in a simulated pool, with programs that do what they are for."""

    def __init__(self, root, pool):
        super().__init__(root)
        self.pool = pool
        self.programs = []
        self.fails = set()
        self.users = []
        self.udev_works = True
        self.host = self.host._replace(runner=self.run, wait_for=self.wait_for)
        self.put("etc/xensource-inventory", "INSTALLATION_UUID='{}'\n".format(pool.db.get("host", pool.master, "uuid")))
        self.configure(ADMINISTRATORS)

    @property
    def config(self):
        return (self.root / "etc/relvmoiscsi.conf").read_text()

    def has_udev_sr(self, host=None):
        sr = self.pool.db.create("SR", name_label="Removable", type="udev", sm_config={"type": "block"})
        self.pool.db.create("PBD", SR=sr, host=host or self.pool.master, currently_attached=True)
        return sr

    def has_vdi(self, sr, name="disk", **fields):
        location = links.link_of(name, self.host)
        return self.pool.db.create("VDI", SR=sr, location=location, name_label="direct", **fields)

    def run(self, argv, accept=(0,), timeout=None):
        self.programs.append(" ".join(argv))
        if argv[0] in self.fails:
            raise CommandFailed(argv, 1, "it did not work")
        if argv[:2] == ["env", "ACTION=add"]:
            (sr,) = self.pool.db.refs("SR", type="udev")
            self.has_vdi(sr, argv[3])
        if argv[-1] == "-kadd path sda":
            self.has_map(paths=("sda",))
            self.put("dev/mapper/" + LUN)
        return Completed(0, "pid 7 idle\n" if argv[-1] == "-kshow daemon" else "ok\n", "")

    def wait_for(self, condition, _seconds):
        """udev, after each look: it follows the rules for what had an event."""
        for _ in range(3):
            value = condition()
            if value:
                return value
            self.follow_the_rules()
        return None

    def follow_the_rules(self):
        for device in self.events() if self.udev_works else ():
            previous = "disk" if links.leads_to("disk", self.host) == device else ""
            name = self.link_name(device, previous)
            if name:
                self.links(device, name)
            elif previous:
                (self.root / "dev/xapi/block/disk").unlink()


@pytest.fixture
def scene(tmp_path, monkeypatch):
    root = Path(tempfile.mkdtemp(prefix="direct", dir="/tmp"))  # short: a unix socket is to be in it
    (root / "var/lib/xcp").mkdir(parents=True)
    with Pool(sm_directory(tmp_path / "sm"), root / "var/lib/xcp/xapi") as pool:
        scene = Scene(root, pool)
        monkeypatch.setattr(cli_direct, "HOST", scene.host)
        monkeypatch.setattr(cli_direct, "look", scene.look)
        monkeypatch.setattr(links, "in_time", in_process)
        monkeypatch.setattr(links, "users_of", lambda device, _site: scene.users if device in ("sda", "dm-0") else [])
        yield scene
    shutil.rmtree(str(root))


@pytest.fixture
def run(scene, capsys):
    """`relvmoiscsi direct ...` in this process."""

    def call(*argv):
        capsys.readouterr()
        try:
            status = cli.main(["direct", *argv])
        except SystemExit as ended:
            status = ended.code
        ran = shell.Ran(status, *capsys.readouterr())
        assert not shell.CONTROL.search(ran.out + ran.err), repr(ran)
        assert shell.CONTRACT not in (ran.out + ran.err).lower()
        if "--json" in argv and status != 2:
            assert ran.out == json.dumps(ran.json, indent=2) + "\n"
        return ran

    return call


def refused(scene, ran, status, reason):
    assert ran.status == status
    assert reason in ran.err
    assert ran.err.endswith("Nothing was changed.\n")
    assert scene.config == ADMINISTRATORS
    assert scene.programs == []


# --- add


def test_a_lun_that_is_there_is_linked_and_introduced(scene, run):
    scene.has_disk("sda")
    sr = scene.has_udev_sr()

    ran = run("add", "disk", LUN, "--json")

    (vdi,) = scene.pool.db.refs("VDI", SR=sr)
    assert (ran.status, ran.err) == (0, "")
    assert ran.json == {
        "name": "disk",
        "scsi_id": LUN,
        "link": links.link_of("disk", scene.host),
        "is_linked": True,
        "device": scene.host.node("sda"),
        "size_bytes": 64 << 20,
        "problem": None,
        "vdi": scene.pool.db.get("VDI", vdi, "uuid"),
        "notes": [],
    }
    assert scene.config.startswith(ADMINISTRATORS) and f"\ndisk = {LUN}\n" in scene.config
    assert scene.programs == [f"env ACTION=add {scene.root / INTRODUCER} disk"]


def test_a_lun_behind_iscsi_is_refused_as_nothing_keeps_its_session(scene, run):
    scene.has_iscsi_disk("sda")

    ran = run("add", "disk", LUN)

    refused(scene, ran, 4, "sda is behind the iSCSI session7, and no program keeps that session for a VM")
    assert "add --iscsi." in ran.err


def test_one_path_behind_iscsi_is_enough(scene, run):
    scene.has_disk("sda")
    scene.has_iscsi_disk("sdb", number="8:16")

    refused(scene, run("add", "disk", LUN), 4, "sdb is behind the iSCSI session7")


def test_whoever_keeps_the_session_may_have_a_lun_behind_iscsi(scene, run):
    scene.has_iscsi_disk("sda")

    assert run("add", "disk", LUN, "--iscsi", "--json").json["is_linked"]
    again = run("add", "disk", LUN, "--json")
    assert (again.status, again.json["is_linked"]) == (0, True)


@pytest.mark.parametrize("options, notes", [([], 1), (["--iscsi"], 0)])
def test_for_a_lun_that_is_not_there_yet_it_is_a_note(scene, run, options, notes):
    ran = run("add", "disk", LUN, "--json", *options)

    assert ran.status == 0
    assert len([note for note in ran.json["notes"] if "no program keeps its session" in note]) == notes


NEXT = """\
next, to give the disk to a VM:
  xe vbd-create vm-uuid=VM vdi-uuid={} device=autodetect
  xe vbd-plug uuid=VBD
"""
NEXT_AFTER_REMOVE = f"next: unmap the LUN at the array, or give it a name again: `relvmoiscsi direct add NAME {LUN}`.\n"


def test_it_is_told_in_words(scene, run):
    scene.has_disk("sda")
    sr = scene.has_udev_sr()
    uuid = scene.pool.db.get("VDI", scene.has_vdi(sr), "uuid")

    assert run("add", "disk", LUN).out == "{} leads to {} (64 MiB).\nThe LUN is the VDI {}.\n{}".format(
        links.link_of("disk", scene.host), scene.host.node("sda"), uuid, NEXT.format(uuid)
    )


def test_a_vdi_that_is_there_is_kept(scene, run):
    scene.has_disk("sda")
    vdi = scene.has_vdi(scene.has_udev_sr())

    assert run("add", "disk", LUN, "--json").json["vdi"] == scene.pool.db.get("VDI", vdi, "uuid")
    assert scene.programs == []


def test_a_vdi_of_the_same_name_on_another_host_is_another(scene, run):
    scene.has_disk("sda")
    scene.has_vdi(scene.has_udev_sr(scene.pool.hosts[1]))

    ran = run("add", "disk", LUN, "--json")

    assert ran.json["vdi"] is None
    assert ran.json["notes"] == ["This host has no udev SR for disks, so the LUN is no VDI yet."]


def test_how_to_introduce_it_is_told_where_that_fails(scene, run):
    scene.has_disk("sda")
    sr = scene.has_udev_sr()
    scene.fails.add("env")

    ran = run("add", "disk", LUN)

    assert ran.status == 0
    assert "note: `env ACTION=add" in ran.out
    assert (
        "sr-uuid={} type=user location={}".format(
            scene.pool.db.get("SR", sr, "uuid"), links.link_of("disk", scene.host)
        )
        in ran.out
    )


def test_a_xapi_that_goes_away_in_between_is_no_failure(scene, run, monkeypatch):
    scene.has_disk("sda")
    real = scene.link_name

    def link_name(*arguments):
        monkeypatch.setattr(Host, "xapi_socket", "/nowhere")
        return real(*arguments)

    scene.link_name = link_name
    ran = run("add", "disk", LUN)

    assert ran.status == 0 and "note: The VDI of the LUN could not be found" in ran.out


def test_a_map_is_not_made_beside_a_disk_in_use(scene, run):
    scene.has_disk("sda")
    run("add", "disk", LUN)
    scene.pool.db.set("host", scene.pool.master, "other_config", {"multipathing": "true"})
    scene.users = ["process 4711 (tapdisk)"]

    ran = run("add", "disk", LUN)

    assert ran.status == 4 and "sda is in use by process 4711 (tapdisk)" in ran.err
    assert scene.programs == []


def test_a_lun_that_is_not_there_yet_is_noted(scene, run):
    ran = run("add", "disk", LUN)

    assert ran.status == 0
    assert ran.out.startswith("{} will appear with its LUN.".format(links.link_of("disk", scene.host)))
    assert f"\ndisk = {LUN}\n" in scene.config


def test_adding_again_changes_nothing_and_brings_a_lost_link_back(scene, run):
    scene.has_disk("sda")
    run("add", "disk", LUN)
    text = scene.config
    (scene.root / "dev/xapi/block/disk").unlink()
    scene.users = ["process 4711 (tapdisk)"]

    assert run("add", "disk", LUN, "--json").json["is_linked"]
    assert scene.config == text


def test_with_multipathing_on_the_map_is_made_first(scene, run):
    scene.pool.db.set("host", scene.pool.master, "other_config", {"multipathing": "true"})
    scene.has_disk("sda")

    assert run("add", "disk", LUN, "--json").json["device"] == scene.host.node("dm-0")
    assert scene.programs[:3] == ["multipathd -kshow daemon", "multipath -a " + LUN, "multipathd -kadd path sda"]


def test_newer_xapi_says_otherwise_that_multipathing_is_on(scene, run):
    scene.pool.db.set("host", scene.pool.master, "multipathing", True)
    scene.has_disk("sda")

    assert run("add", "disk", LUN, "--json").json["device"] == scene.host.node("dm-0")


def test_a_map_that_cannot_be_made_is_a_refusal_and_leaves_no_trace(scene, run):
    scene.pool.db.set("host", scene.pool.master, "other_config", {"multipathing": "true"})
    scene.has_disk("sda")
    scene.fails |= {"multipath", "multipathd"}

    ran = run("add", "disk", LUN)

    assert ran.status == 4 and "multipathd does not answer" in ran.err
    assert ran.err.endswith("Nothing was changed.\n")
    assert scene.config == ADMINISTRATORS


def test_an_sr_on_the_lun_is_a_refusal(scene, run):
    scene.has_disk("sda")
    sr = scene.pool.db.create("SR", name_label="SAN", type="lvmoiscsi")
    scene.pool.db.create("PBD", SR=sr, host=scene.pool.hosts[1], device_config={"SCSIid": LUN})

    refused(scene, run("add", "disk", LUN), 4, "belongs to the SR " + scene.pool.db.get("SR", sr, "uuid"))


def test_an_sr_made_on_the_lun_is_a_refusal(scene, run):
    scene.pool.db.create("SR", name_label="SAN", type="lvmohba", sm_config={"devserial": "scsi-" + LUN})

    refused(scene, run("add", "disk", LUN), 4, "belongs to the SR")


def test_a_vdi_on_the_lun_is_a_refusal(scene, run):
    sr = scene.pool.db.create("SR", name_label="raw", type="iscsi")
    scene.pool.db.create("VDI", SR=sr, name_label="lun 3", sm_config={"SCSIid": LUN})

    refused(scene, run("add", "disk", LUN), 4, "'lun 3') already")


@pytest.mark.parametrize(
    "owner, reason",
    [
        (Owner("VG_XenStorage-1", is_sr=True), "sda holds an SR (volume group 'VG_XenStorage-1')"),
        (Owner(problem="bad label."), "may belong to an SR: bad label."),
        (DeviceError("/dev/sda", "read", 0, 512, "Input/output error"), "Input/output error"),
    ],
)
def test_what_is_on_the_lun_is_a_refusal(scene, run, owner, reason):
    scene.has_disk("sda")
    scene.content["sda"] = owner

    refused(scene, run("add", "disk", LUN), 4, reason)


def test_a_user_of_the_lun_is_a_refusal(scene, run):
    scene.has_disk("sda")
    scene.users = ["the file system mounted at /mnt"]

    refused(scene, run("add", "disk", LUN), 4, "sda is in use by the file system mounted at /mnt.")


def test_several_paths_without_multipathing_are_a_refusal(scene, run):
    scene.has_disk("sda")
    scene.has_disk("sdb", "8:16")

    refused(scene, run("add", "disk", LUN), 4, "has 2 paths")


def test_a_taken_name_and_a_named_lun_are_refused(scene, run):
    run("add", "disk", LUN)
    text = scene.config

    again, other = run("add", "disk", OTHER), run("add", "other", LUN)

    assert (again.status, other.status) == (2, 2)
    assert "The name disk is taken" in again.err and "has a name already: disk" in other.err
    assert scene.config == text


@pytest.mark.parametrize(
    "name, scsi_id", [("../disk", LUN), ("sda", LUN), ("-x", LUN), ("disk", "$(reboot)"), ("disk", "")]
)
def test_what_cannot_be_meant_is_a_usage_error(scene, run, name, scsi_id):
    ran = run("add", name, scsi_id)

    assert ran.status == 2 and ran.err
    assert scene.config == ADMINISTRATORS


def test_without_xapi_nothing_is_added(scene, run, monkeypatch):
    monkeypatch.setattr(Host, "xapi_socket", "/nowhere")

    refused(scene, run("add", "disk", LUN), 6, "could not be asked of xapi")


def test_a_link_that_does_not_come_is_told_with_the_state(scene, run):
    scene.has_disk("sda")
    scene.udev_works = False

    ran = run("add", "disk", LUN)

    assert (
        ran.status == 4
        and "did not appear" in ran.err
        and "check that the rules of relvmoiscsi are installed" in ran.err
    )
    assert ran.err.endswith(f"disk has LUN {LUN} in {scene.host.config}.\n")


def test_lvm_of_a_guest_is_noted(scene, run):
    scene.has_disk("sda")
    scene.content["sda"] = Owner("guest\x1b[2J")

    ran = run("add", "disk", LUN)

    assert ran.status == 0
    assert "note: It holds the volume group 'guest\\x1b[2J', which LVM commands of this host also see" in ran.out


def test_a_failure_is_json_as_well(scene, run):
    scene.has_disk("sda")
    scene.content["sda"] = Owner("VG_XenStorage-1", is_sr=True)

    ran = run("add", "disk", LUN, "--json")

    assert ran.json["error"]["kind"] == "Refused"
    assert ran.json["error"]["exit_status"] == ran.status == 4
    assert ran.json["error"]["disk_state"] == "Nothing was changed."


# --- remove


@pytest.fixture
def linked(scene, run):
    """A direct LUN with its VDI."""
    scene.has_disk("sda")
    scene.sr = scene.has_udev_sr()
    assert run("add", "disk", LUN).status == 0
    scene.text = scene.config
    return scene


def test_what_was_added_is_removed_without_a_trace(linked, run):
    ran = run("remove", "disk", "--json")

    assert (ran.status, ran.json["notes"]) == (0, [])
    assert linked.config == ADMINISTRATORS
    assert links.leads_to("disk", linked.host) == ""
    assert linked.pool.db.refs("VDI", SR=linked.sr) == []


def test_a_lun_that_is_away_can_be_removed(scene, run):
    run("add", "disk", LUN)

    assert run("remove", "disk").out == f"disk (LUN {LUN}) is no longer a direct LUN.\n" + NEXT_AFTER_REMOVE
    assert scene.config == ADMINISTRATORS


def test_what_is_in_use_stays(linked, run):
    linked.users = ["process 4711 (tapdisk)"]

    ran = run("remove", "disk")

    assert ran.status == 4
    assert ran.err == "relvmoiscsi: sda is in use by process 4711 (tapdisk). Nothing was changed.\n"
    assert linked.config == linked.text
    assert links.leads_to("disk", linked.host) == "sda"


def test_a_disk_of_a_vm_stays_though_the_vm_is_halted(linked, run):
    (vdi,) = linked.pool.db.refs("VDI", SR=linked.sr)
    vm = linked.pool.db.create("VM", "77", name_label="mail")
    linked.pool.db.create("VBD", VM=vm, VDI=vdi)

    ran = run("remove", "disk")

    assert ran.status == 4 and "disk is a disk of the VM 77 ('mail')" in ran.err
    assert linked.config == linked.text


def test_without_xapi_it_is_removed_and_what_is_left_is_told(linked, run, monkeypatch):
    monkeypatch.setattr(Host, "xapi_socket", "/nowhere")

    ran = run("remove", "disk")

    assert ran.status == 0
    assert "note: xapi could not be asked whether a VM has the LUN as a disk" in ran.out
    assert "Run `xe vdi-forget`" in ran.out
    assert linked.config == ADMINISTRATORS


def test_a_link_that_does_not_go_is_told(linked, run):
    linked.udev_works = False

    ran = run("remove", "disk")

    assert ran.status == 4 and "still exists: udev did not remove the link" in ran.err


def test_what_is_not_there_is_not_removed(scene, run):
    refused(scene, run("remove", "disk"), 3, "There is no direct LUN with the name 'disk'.")
    refused(scene, run("remove", "di\x1bsk"), 3, "'di\\x1bsk'")


# --- list


def test_the_list_tells_how_it_stands_with_each(linked, run):
    linked.configure(linked.config + f"away = {OTHER}\nsda = 3600\n")

    ran = run("list")

    assert ran.out.splitlines() == [
        "NAME  SCSIID                             DEVICE  SIZE    LINK",
        f"disk  {LUN}  sda     64 MiB  linked",
        f"away  {OTHER}  -       -       not linked: No disk of this host has the SCSIid {OTHER}.",
        f"{linked.host.config}: Line 9: 'sda' cannot be the name of a direct LUN: "
        "the kernel uses such names for disks.",
    ]
    assert ran.status == 0


def test_the_list_has_the_same_for_programs(linked, run):
    found = run("list", "--json").json

    assert found["problems"] == []
    (disk,) = found["luns"]
    assert (disk["name"], disk["is_linked"], disk["device"]) == ("disk", True, linked.host.node("sda"))


def test_no_direct_luns_is_an_answer(scene, run):
    assert run("list").out == "This host has no direct LUNs.\n"
    assert run("list", "--json").json == {"luns": [], "problems": []}


# --- the rest


def test_udev_gets_a_name_or_an_empty_line(linked, run, monkeypatch):
    assert run("udev", "sda").out == "disk\n"
    assert run("udev", "sdx").out == "\n"

    linked.content["sda"] = DeviceError("/dev/sda", "read", 0, 512, "Input/output error")
    assert run("udev", "sda").out == "\n"
    monkeypatch.setenv("RELVMOISCSI_DIRECT", "disk")
    assert run("udev", "sda").out == "disk\n"


def test_what_to_do_must_be_said(scene, run):
    ran = run()

    assert ran.status == 2 and "add`, `remove` or `list`" in ran.err


@pytest.mark.parametrize("name", ["add", "remove", "list"])
def test_each_has_help_with_an_example(run, name):
    ran = run(name, "--help")

    assert ran.status == 0
    assert "example:\n  relvmoiscsi direct " + name in ran.out and "--json" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 116 and all(ord(char) < 128 for char in ran.out)


def test_what_udev_asks_is_not_shown_to_people(run):
    assert "kernel_name" not in run("--help").out
    assert "udev  " not in run("--help").out


def test_a_look_reads_what_is_on_a_device(tmp_path):
    path = tmp_path / "lun.img"
    builder.one_vhd().disk.to_file(str(path))

    found = cli_direct.look(str(path))

    assert found.is_sr and found.vg_name.startswith("VG_XenStorage-")
