# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi direct`: what is refused and why, what is told, and that nothing was changed where nothing should be."""

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from kit import builder
from kit.direct_world import LUN, OTHER, World, in_process
from kit.pool import jsonrpc
from kit.pool.api import GoneAway
from kit.pool.simulator import Pool, sm_directory
from relvmoiscsi.direct import direct_command, links
from relvmoiscsi.direct.lvm_filter import LVM_WORD
from relvmoiscsi.errors import CommandFailed, DeviceError
from relvmoiscsi.formats.lvm.owner import Owner
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import rpc

ADMINISTRATORS = "# mine\n[other]\nkey = value\n"
INTRODUCER = "opt/xensource/libexec/local-device-change"


class Scene(World):
    """A host in a simulated pool, with programs that do what they are for."""

    def __init__(self, root, pool):
        super().__init__(root)
        self.pool = pool
        self.programs = []
        self.fails = set()
        self.users = {}
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

    def has_vdi(self, sr, name="disk"):
        location = links.link_of(name, self.host)
        return self.pool.db.create("VDI", SR=sr, location=location, name_label="direct")

    def multipaths(self):
        self.pool.db.set("host", self.pool.master, "other_config", {"multipathing": "true"})

    def run(self, argv, timeout=None):
        answer = self.tells_lvm(argv)
        if answer is not None:
            return answer
        self.programs.append(" ".join(argv))
        if argv[0] in self.fails:
            raise CommandFailed(argv, 1, "it did not work")
        if argv[:2] == ["env", "ACTION=add"]:
            (sr,) = self.pool.db.refs("SR", type="udev")
            self.has_vdi(sr, argv[3])
        return "ok\n"

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
            name = self.link_name(device)
            if name is not None:
                self.links_for_lvm(device)
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
        monkeypatch.setattr(direct_command, "HOST", scene.host)
        monkeypatch.setattr(direct_command, "look", scene.look)
        monkeypatch.setattr(links, "in_time", in_process)
        monkeypatch.setattr(links, "users_of", lambda device, _site: scene.users if device in ("sda", "dm-0") else {})
        yield scene
    shutil.rmtree(str(root))


@pytest.fixture
def run(scene, command):
    """`relvmoiscsi direct ...` in this process."""
    return lambda *words: command("direct", *words)


@pytest.fixture
def disk(scene):
    """The LUN is there, as sda."""
    scene.has_disk("sda")
    return scene


# --- add


def test_a_lun_that_is_there_is_linked_and_introduced(disk, run):
    sr = disk.has_udev_sr()
    ran = run("add", "disk", "naa." + LUN[1:].upper(), "--json")

    (vdi,) = disk.pool.db.refs("VDI", SR=sr)
    assert (ran.status, ran.err) == (0, "")
    assert ran.json == {
        "direct_name": "disk",
        "scsi_id": LUN,
        "link": links.link_of("disk", disk.host),
        "is_linked": True,
        "device": disk.host.node("sda"),
        "size_bytes": 64 << 20,
        "problem": None,
        "vdi": disk.pool.db.get("VDI", vdi, "uuid"),
        "notes": [],
    }
    assert disk.config.startswith(ADMINISTRATORS) and f"\ndisk = {LUN}\n" in disk.config
    assert disk.programs == [f"env ACTION=add {disk.root / INTRODUCER} disk"]


TOLD = """\
{0} leads to {1} (64 MiB).
The LUN is the VDI {2}. A VM gets the disk by a VBD: run `xe vbd-create` with vm-uuid, this vdi-uuid \
and device=autodetect. Then run `xe vbd-plug` with the uuid that `xe vbd-create` prints.
"""


def test_it_is_told_in_words_and_a_vdi_that_is_there_is_kept(disk, run):
    uuid = disk.pool.db.get("VDI", disk.has_vdi(disk.has_udev_sr()), "uuid")
    told = TOLD.format(links.link_of("disk", disk.host), disk.host.node("sda"), uuid)
    assert run("add", "disk", LUN).out == told and disk.programs == []


@pytest.mark.parametrize("options", [[], ["--iscsi"]])
def test_that_no_program_keeps_a_session_is_a_refusal_behind_one(scene, run, options):
    scene.has_iscsi_disk("sdb")
    if not options:
        scene.has_disk("sda", "8:16")  # one path behind a session is enough
    ran = run("add", "disk", LUN, *options)
    if options:
        assert ran.status == 0 and run("add", "disk", LUN).status == 0, "it has the disk already"
    else:
        assert ran.status == 4
        assert "sdb is behind the iSCSI session7, and no program keeps that session for a VM" in ran.err
        assert ". Nothing was changed. " in ran.err and ran.err.endswith("add --iscsi.\n") and scene.programs == []


def test_a_new_lun_must_be_there_to_be_read_and_one_of_the_list_may_be_away(scene, run):
    ran = run("add", "away", OTHER)
    assert ran.status == 3 and scene.config == ADMINISTRATORS
    assert f"No disk of this host has the SCSIid {OTHER}. Nothing was changed. Map the LUN to this host" in ran.err

    scene.configure(f"[direct]\naway = {OTHER}\n")
    ran = run("add", "away", OTHER)
    assert ran.status == 0 and "/away will appear with its LUN. No disk of this host" in ran.out


def test_adding_again_changes_nothing_and_brings_a_lost_link_back(disk, run):
    run("add", "disk", LUN)
    text = disk.config
    (disk.root / "dev/xapi/block/disk").unlink()
    disk.users = {"process 4711 (tapdisk)": ""}
    disk.content["sda"] = Owner("VG_XenStorage-1", is_sr=True)  # the guest writes what it likes

    assert run("add", "disk", LUN, "--json").json["is_linked"]
    assert disk.config == text
    disk.multipaths()
    ran = run("add", "disk", LUN)
    assert ran.status == 4 and "sda is in use by process 4711 (tapdisk)" in ran.err, "no map is made beside it"
    assert disk.programs == []


# --- notes

#: what docs/direct-luns.rst has administrators write
FILTER = 'devices { global_filter = [ "r|/relvmoiscsi-direct-|" ] }\n'


def test_the_filter_is_that_of_the_page_and_of_the_rule():
    top = Path(__file__).resolve().parents[3]
    assert FILTER.strip() in (top / "docs/direct-luns.rst").read_text(encoding="utf-8")
    assert f'SYMLINK+="disk/by-id{LVM_WORD}%k"' in (top / "udev/58-relvmoiscsi-direct.rules").read_text()
    assert f"r|{LVM_WORD}|" in FILTER


def no_udev_sr(scene):
    scene.has_vdi(scene.has_udev_sr(scene.pool.hosts[1]))  # a VDI of the same name on another host is another


def introduction_fails(scene):
    scene.uuid = scene.pool.db.get("SR", scene.has_udev_sr(), "uuid")
    scene.fails.add("env")


def xapi_goes_away_in_between(scene):
    real = scene.link_name

    def link_name(*arguments):
        scene.without_xapi()
        return real(*arguments)

    scene.link_name = link_name


def lvm_has_no_filter(scene):
    scene.has_lvm(devices='global_filter=["r|/relvmoiscsi-direct-|"]')
    scene.has_lvm("etc/lvm/master", 'filter=["a|.*|"]')


@pytest.mark.parametrize(
    "given, note",
    [
        (no_udev_sr, "This host has no udev SR for disks, so the LUN is no VDI yet."),
        (introduction_fails, "sr-uuid={0.uuid} type=user location={1}"),
        (xapi_goes_away_in_between, "The VDI of the LUN could not be found"),
        (lvm_has_no_filter, "With the settings in {0.root}/etc/lvm/master, LVM may use a direct LUN"),
        (lvm_has_no_filter, "Write this line into {0.root}/etc/lvm/master/lvmlocal.conf, "),
    ],
)
def test_what_is_no_reason_against_a_link_is_a_note(disk, run, monkeypatch, given, note):
    disk.without_xapi = lambda: monkeypatch.setattr(Host, "xapi_socket", "/nowhere")
    given(disk)
    ran = run("add", "disk", LUN)
    assert ran.status == 0 and note.format(disk, links.link_of("disk", disk.host)) in ran.out.partition("note: ")[2]


# --- multipathing


@pytest.mark.parametrize("key, value", [("other_config", {"multipathing": "true"}), ("multipathing", True)])
def test_with_multipathing_on_a_lun_needs_its_map_and_the_refusal_says_how_to_make_it(disk, run, key, value):
    """Newer xapi has a field of its own for it. No program runs: the map is the administrator's."""
    disk.pool.db.set("host", disk.pool.master, key, value)
    ran = run("add", "disk", LUN)
    assert ran.status == 4 and ran.err.endswith("Then repeat the command.\n")
    assert f" Nothing was changed. Make the map with `multipath -a {LUN}`, then `multipath {LUN}`." in ran.err
    assert disk.config == ADMINISTRATORS and disk.programs == []

    disk.has_map(paths=["sda"])
    assert run("add", "disk", LUN, "--json").json["device"] == disk.host.node("dm-0")


# --- refusals


def pbd_on_it(scene):
    sr = scene.pool.db.create("SR", "of-the-lun", name_label="SAN", type="lvmoiscsi")
    scene.pool.db.create("PBD", SR=sr, host=scene.pool.hosts[1], device_config={"SCSIid": LUN})


def sr_made_on_it(scene):
    scene.pool.db.create("SR", "of-the-lun", type="lvmohba", sm_config={"devserial": "scsi-" + LUN})


def vdi_on_it(scene):
    sr = scene.pool.db.create("SR", name_label="raw", type="iscsi")
    scene.pool.db.create("VDI", SR=sr, name_label="lun 3", sm_config={"SCSIid": LUN})


def refused(_connection):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def holds(owner):
    return lambda scene: scene.content.update(sda=owner)


@pytest.mark.parametrize(
    "given, status, reason",
    [
        (pbd_on_it, 4, "belongs to the SR of-the-lun"),
        (sr_made_on_it, 4, "belongs to the SR"),
        (vdi_on_it, 4, "'lun 3') already"),
        (holds(Owner("VG_XenStorage-1", is_sr=True)), 4, "sda holds an SR (volume group 'VG_XenStorage-1')"),
        (holds(DeviceError("/dev/sda", "read", 0, 512, "Input/output error")), 4, "Input/output error"),
        (
            lambda scene: scene.users.update({"the file system at /mnt": "Unmount it."}),
            4,
            "sda is in use by the file system at /mnt. Nothing was changed. Unmount it.",
        ),
        (lambda scene: scene.has_disk("sdb", "8:16"), 4, "has 2 paths"),
        (
            lambda scene: scene.without_xapi(),
            6,
            "which may be no dom0. Nothing was changed. Run the command in dom0 of",
        ),
        (lambda scene: scene.refuses_us(), 6, "The login could not be asked of xapi: Permission denied."),
    ],
)
def test_what_another_may_have_is_a_refusal(disk, run, monkeypatch, given, status, reason):
    disk.without_xapi = lambda: monkeypatch.setattr(Host, "xapi_socket", "/nowhere")
    disk.refuses_us = lambda: monkeypatch.setattr(rpc.UnixConnection, "connect", refused)
    given(disk)
    ran = run("add", "disk", LUN, "--json")

    assert ran.status == status and reason in ran.err and " Nothing was changed." in ran.err
    assert (ran.json["error"]["exit_status"], ran.json["error"]["disk_state"]) == (status, "Nothing was changed.")
    assert disk.config == ADMINISTRATORS and disk.programs == []


@pytest.mark.parametrize(
    "words, says",
    [
        (("disk", OTHER), "The name disk is taken"),
        (("other", LUN), "has a name already: disk"),
        *[(words, "") for words in (("../disk", OTHER), ("-x", OTHER), ("other", "$(reboot)"), ("other", ""))],
    ],
)
def test_what_is_taken_or_cannot_be_meant_is_a_usage_error(disk, run, words, says):
    run("add", "disk", LUN)
    text = disk.config
    ran = run("add", *words)
    assert ran.status == 2 and ran.err and says in ran.err and disk.config == text


@pytest.mark.parametrize("is_added", [False, True])
def test_a_link_that_does_not_come_or_go_is_told_with_the_state(disk, run, is_added):
    if is_added:
        run("add", "disk", LUN)
    disk.udev_works = False
    ran = run("remove", "disk") if is_added else run("add", "disk", LUN)
    if is_added:
        assert ran.status == 4 and "still exists: udev did not remove the link" in ran.err
        assert "`udevadm trigger --action=change --sysname-match sda`" in ran.err
    else:
        assert ran.status == 4 and "did not appear" in ran.err
        assert f"disk has LUN {LUN} in {disk.host.config}. Check that the rules of relvmoiscsi are installed" in ran.err


# --- remove


@pytest.fixture
def linked(disk, run):
    """A direct LUN with its VDI."""
    disk.sr = disk.has_udev_sr()
    assert run("add", "disk", LUN).status == 0
    disk.text = disk.config
    return disk


def test_what_was_added_is_removed_without_a_trace(linked, run):
    ran = run("remove", "disk", "--json")
    assert (ran.status, ran.json["notes"], linked.config) == (0, [], ADMINISTRATORS)
    assert links.leads_to("disk", linked.host) == "" and linked.pool.db.refs("VDI", SR=linked.sr) == []

    linked.configure(ADMINISTRATORS + f"[direct]\ndisk = {OTHER}\n")  # which is away
    after = f"Unmap the LUN at the array, or make it a direct LUN again: `relvmoiscsi direct add disk {OTHER}`.\n"
    assert run("remove", "disk").out == f"disk (LUN {OTHER}) is no longer a direct LUN.\n" + after
    assert linked.config == ADMINISTRATORS + "[direct]\n", "the administrator's section stays"


def a_user(scene):
    scene.users = {"process 4711 (tapdisk)": ""}


def a_halted_vm(scene):
    (vdi,) = scene.pool.db.refs("VDI", SR=scene.sr)
    scene.pool.db.create("VBD", VM=scene.pool.db.create("VM", "77", name_label="mail"), VDI=vdi)


@pytest.mark.parametrize(
    "given, reason",
    [(a_user, "sda is in use by process 4711 (tapdisk)."), (a_halted_vm, "disk is a disk of the VM 77 ('mail')")],
)
def test_what_is_in_use_or_a_disk_of_a_vm_stays(linked, run, given, reason):
    given(linked)
    ran = run("remove", "disk")
    assert ran.status == 4 and ran.err.startswith(f"relvmoiscsi: {reason}")
    assert ". Nothing was changed." in ran.err
    assert linked.config == linked.text and links.leads_to("disk", linked.host) == "sda"


def a_socket_that_nobody_reads(scene):
    path = scene.root / "refused"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return str(path)


def answers_no_json(scene, monkeypatch):
    real = jsonrpc.response
    monkeypatch.setattr(
        jsonrpc, "response", lambda api, body, local: real(api, body, local)[: -1 if b"VDI" in body else None]
    )


def goes_away_behind_the_login(scene, _monkeypatch):
    def away(name, _params):
        if name.endswith("get_all_records"):
            raise GoneAway

    scene.pool.api.before = away


def refuses_the_login(_scene, monkeypatch):
    monkeypatch.setattr(rpc.UnixConnection, "connect", refused)


@pytest.mark.parametrize("given", [answers_no_json, goes_away_behind_the_login, refuses_the_login])
def test_a_xapi_that_does_not_say_whether_a_vm_has_the_lun_is_a_failure(linked, run, monkeypatch, given):
    """The LUN is a disk of a halted VM, and nothing else on this host says so."""
    a_halted_vm(linked)
    given(linked, monkeypatch)
    ran = run("remove", "disk")
    assert ran.status == 6 and " could not be asked of xapi: " in ran.err and " Nothing was changed." in ran.err
    assert linked.config == linked.text and links.leads_to("disk", linked.host) == "sda"


@pytest.mark.parametrize("path", [lambda _: "/nowhere", a_socket_that_nobody_reads])
def test_without_xapi_it_is_removed_and_what_is_left_is_told(linked, run, monkeypatch, path):
    monkeypatch.setattr(Host, "xapi_socket", path(linked))
    ran = run("remove", "disk")
    assert ran.status == 0 and linked.config == ADMINISTRATORS
    assert "note: xapi could not be asked whether a VM has the LUN as a disk" in ran.out
    assert "Run `xe vdi-forget`" in ran.out


def test_a_misspelt_name_removes_nothing_and_leads_to_the_nearest(linked, run):
    before = linked.config
    ran = run("remove", "dsk")
    assert ran.status == 3 and "There is no direct LUN 'dsk'. Did you mean 'disk'? " in ran.err
    assert linked.config == before


def test_what_is_not_there_is_not_removed(scene, run):
    ran = run("remove", "di\x1bsk")
    assert ran.status == 3
    assert "There is no direct LUN 'di\\x1bsk'. Nothing was changed. `relvmoiscsi direct list`" in ran.err
    assert (scene.config, scene.programs) == (ADMINISTRATORS, [])


# --- list, and the rest


def test_the_list_tells_how_it_stands_with_each(linked, run):
    (found,) = run("list", "--json").json["direct_luns"]
    assert (found["direct_name"], found["is_linked"], found["device"]) == ("disk", True, linked.host.node("sda"))

    linked.configure(linked.config + f"away = {OTHER}\nsda = 3600\n")
    ran = run("list")
    assert ran.status == 0 and ran.out.splitlines() == [
        "NAME  SCSIID                             DEVICE  SIZE    LINK",
        f"disk  {LUN}  sda     64 MiB  linked",
        f"away  {OTHER}  -       -       not linked: No disk of this host has the SCSIid {OTHER}.",
        f"{linked.host.config}: Line 9: 'sda' cannot be the name of a direct LUN: "
        "the kernel uses such names for disks.",
    ]


@pytest.mark.parametrize("given", [pbd_on_it, sr_made_on_it, vdi_on_it])
def test_the_list_names_a_lun_that_the_pool_has_otherwise_and_takes_no_link(linked, run, given):
    """A line that was written by mistake, or an SR that was made later. Only the records of the pool say so."""
    given(linked)
    ran = run("list")
    assert ran.status == 0 and f"64 MiB  linked: LUN {LUN} " in ran.out
    assert links.leads_to("disk", linked.host) == "sda" and linked.link_name("sda") == "disk"


def test_the_list_tells_of_a_missing_filter_and_of_a_xapi_that_does_not_answer(linked, run, monkeypatch):
    lvm_has_no_filter(linked)
    monkeypatch.setattr(Host, "xapi_socket", "/nowhere")
    ran = run("list", "--json")
    first, second = ran.json["problems"]
    assert ran.status == 0 and ran.json["direct_luns"][0]["is_linked"]
    assert f"into {linked.root}/etc/lvm/master/lvmlocal.conf, " in first and "xapi could not be asked" in second


def test_udev_gets_a_name_or_a_dash_or_nothing(linked, run):
    assert run("udev", "sda").out == "disk\n"
    assert run("udev", "sdx").out == ""

    linked.content["sda"] = AssertionError("udev waits, and the content is the guest's")
    linked.users = {"process 4711 (tapdisk)": ""}
    assert run("udev", "sda").out == "disk\n"
    linked.has_disk("sdb", "8:16")
    assert run("udev", "sda").out == run("udev", "sdb").out == "-\n"
    assert run("udev", "sdb", "--json").json["link_name"] == ""


def test_the_package_has_udev_apply_its_rules_to_each_device_of_a_direct_lun_and_to_no_other(disk, run):
    """Rules of earlier versions gave the partitions and the paths of a map no link for LVM's filter."""
    disk.configure(f"[direct]\ndisk = {LUN}\n")
    disk.has_disk("sdc", "8:32", "3" + OTHER[1:-1] + "5")
    disk.has_disk("sdb", "8:16")
    disk.put("sys/block/sda/sda1/uevent")
    disk.has_map()
    disk.put("sys/block/dm-0/holders/dm-1")
    disk.put("sys/block/dm-1/dm/uuid", f"part1-mpath-{LUN}\n")
    assert (run("events").out, disk.events()) == ("", ["dm-0", "dm-1", "sda", "sdb"])
    assert (disk.root / "sys/block/sda/sda1/uevent").read_text() == "change"


def test_a_look_reads_what_is_on_a_device(tmp_path):
    path = tmp_path / "lun.img"
    builder.one_vhd().disk.to_file(str(path))

    found = direct_command.look(str(path))
    assert found.is_sr and found.vg_name.startswith("VG_XenStorage-")
