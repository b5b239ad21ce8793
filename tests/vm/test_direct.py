# SPDX-License-Identifier: LGPL-2.1-only
"""Direct LUNs with the real udev, multipath and LVM: which device has the link, and when nothing has it."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from kit.lab import initiator
from kit.lab.command import run, settle, until
from kit.pool.simulator import XAPI_SOCKET, Pool, sm_directory

TOP = Path(__file__).resolve().parents[2]
COMMAND = Path("/usr/sbin/relvmoiscsi")
RULES = Path("/etc/udev/rules.d")
CONFIG = Path("/etc/relvmoiscsi.conf")
INVENTORY = Path("/etc/xensource-inventory")
LINKS = Path("/dev/xapi/block")

ADMINISTRATORS = b"# ours since 2019\n[other]\nkey = value ; \xe9\n\n"


@pytest.fixture(scope="module", autouse=True)
def installed(guest, sdk):
    """The command and all rules, as the package installs them."""
    packaged = (TOP / "supp-pack/relvmoiscsi").read_text()
    assert '"/usr/share/relvmoiscsi"' in packaged
    COMMAND.write_text(packaged.replace("/usr/share/relvmoiscsi", str(TOP)))
    COMMAND.chmod(0o755)
    before = {path.name for path in RULES.iterdir()}
    for path in sorted((TOP / "udev").glob("*.rules")):
        shutil.copy(str(path), str(RULES))
    os.makedirs("/run/relvmoiscsi", exist_ok=True)
    run("udevadm", "control", "--reload")
    yield
    for path in list(RULES.iterdir()):
        if path.name not in before:
            path.unlink()
    run("udevadm", "control", "--reload")
    COMMAND.unlink()


@pytest.fixture(autouse=True)
def config():
    CONFIG.write_bytes(ADMINISTRATORS)
    yield CONFIG
    CONFIG.unlink()


@pytest.fixture
def pool(tmp_path):
    os.makedirs(os.path.dirname(XAPI_SOCKET), exist_ok=True)
    with Pool(sm_directory(tmp_path / "sm"), XAPI_SOCKET) as pool:
        INVENTORY.write_text("INSTALLATION_UUID='{}'\n".format(pool.db.get("host", pool.master, "uuid")))
        yield pool
    INVENTORY.unlink()


@pytest.fixture
def lun(lab):
    return lab.lun(lab.blank("direct.img"))


class Ran:
    """What a run of `relvmoiscsi direct` gave."""

    def __init__(self, result):
        self.status, self.out, self.err = result.status, result.out, result.err

    @property
    def json(self):
        return json.loads(self.out)


def direct(*argv, env=None):
    return Ran(run(COMMAND, "direct", *argv, check=False, env=env))


def added(name, lun):
    ran = direct("add", name, lun.scsi_id, "--iscsi", "--json")
    assert ran.status == 0, ran.err
    return ran.json


def by_hand(name, lun):
    """What an administrator may do: write the line, and log in or have udev look."""
    with CONFIG.open("ab") as config:
        config.write(f"[direct]\n{name} = {lun.scsi_id}\n".encode("ascii"))


def link(name="disk"):
    """Where a link leads, settled: "/dev/sda"; None without a link."""
    settle()
    path = LINKS / name
    return os.path.realpath(str(path)) if path.is_symlink() else None


def problem(name="disk"):
    (found,) = [each for each in direct("list", "--json").json["luns"] if each["name"] == name]
    return found["problem"]


def login(target):
    for portal in target.portals:
        initiator.login(target.iqn, portal)


def trigger(*devices, action="change"):
    for device in devices:
        run("udevadm", "trigger", "--settle", "--action=" + action, "--sysname-match=" + os.path.basename(device))


# --- one path


def test_a_link_comes_with_its_lun_and_stays_at_every_event_until_it_is_removed(lab, pool, config):
    lun = lab.lun(lab.blank("direct.img"), breakable=True)
    target = lab.target(lun)
    assert not added("disk", lun)["is_linked"]

    login(target)
    disk = link()
    assert disk == initiator.device_of(lun.scsi_id)
    trigger(disk, action="add")
    assert link() == disk
    subprocess.check_call(["dd", "if=/dev/zero", "of=" + disk, "bs=4096", "count=1", "status=none"])  # a watch event
    assert link() == disk
    COMMAND.rename(COMMAND.with_name("relvmoiscsi.away"))
    try:
        trigger(disk)
        assert link() == disk, "a host without the command for a moment, as in an upgrade"
    finally:
        COMMAND.with_name("relvmoiscsi.away").rename(COMMAND)

    # Asked as the rule asks, as the rules of others would hang themselves: a LUN that hangs keeps its link.
    lun.freeze()
    try:
        kept = direct("udev", os.path.basename(disk), env={"RELVMOISCSI_DIRECT": "disk"}).out
    finally:
        lun.heal()
    assert kept == "disk\n"

    initiator.logout(target.iqn)
    assert link() is None
    login(target)
    assert link() == initiator.device_of(lun.scsi_id)

    text = config.read_bytes()
    with open(str(LINKS / "disk"), "rb"):
        refused = direct("remove", "disk")
    assert refused.status == 4 and f"is in use by process {os.getpid()} (" in refused.err
    assert config.read_bytes() == text and link() is not None
    assert direct("remove", "disk").status == 0
    assert link() is None and not LINKS.exists()
    assert config.read_bytes() == ADMINISTRATORS


# --- several


class Watch:
    """Everything the link leads to while the block runs."""

    def __init__(self, name="disk"):
        self.path, self.seen, self._over = str(LINKS / name), set(), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.01):
            try:
                self.seen.add(os.path.basename(os.readlink(self.path)))
            except OSError:
                pass  # no link at this moment

    def __enter__(self):
        self._thread.start()
        return self.seen

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def test_of_two_paths_there_is_no_link_and_of_their_map_there_is(lab, pool, lun):
    target = lab.target(lun, portals=["127.0.0.1:3260", "127.0.0.2:3260"])
    initiator.login(target.iqn, target.portals[0])
    added("disk", lun)
    assert link() is not None
    initiator.login(target.iqn, target.portals[1])
    assert link() is None
    assert "has 2 paths" in problem()
    direct("remove", "disk")
    refused = direct("add", "disk", lun.scsi_id, "--iscsi")
    assert refused.status == 4 and "has 2 paths" in refused.err and "Nothing was changed." in refused.err

    pool.db.set("host", pool.master, "other_config", {"multipathing": "true"})
    with lab.multipathing(lun.scsi_id):
        with Watch() as seen:
            assert added("disk", lun)["is_linked"]
            the_map = link()
            first = initiator.devices_of(lun.scsi_id)[0]
            run("dmsetup", "message", lun.scsi_id, "0", "fail_path", first)
            trigger(the_map, first)
            assert link() == the_map
        assert direct("remove", "disk").status == 0
        assert link() is None
        run("multipath", "-f", lun.scsi_id)

    assert {name[:3] for name in seen} == {"dm-"}


# --- what is on it


def test_an_sr_is_refused_and_never_linked(lab, pool):
    image = lab.image("chain")
    lun = lab.lun(image)
    target = lab.target(lun)
    login(target)

    refused = direct("add", "disk", lun.scsi_id, "--iscsi")

    assert refused.status == 4 and "holds an SR (volume group 'VG_XenStorage-" in refused.err
    assert CONFIG.read_bytes() == ADMINISTRATORS
    by_hand("disk", lun)
    with Watch() as seen:
        trigger(*initiator.devices_of(lun.scsi_id))
    assert (seen, link()) == (set(), None)
    assert "holds an SR" in problem()


def guest_lvm(lab, lun, target):
    """What a guest does on its disk."""
    login(target)
    device = initiator.device_of(lun.scsi_id)
    initiator.lvm("pvcreate", device, device=device)
    initiator.lvm("vgcreate", "guest", device, device=device)
    initiator.lvm("lvcreate", "-an", "-l", "4", "-n", "root", "-Zn", "guest", device=device)
    initiator.logout(target.iqn)


def test_lvm_of_the_guest_is_left_alone_though_events_activate(lab, pool, lun):
    target = lab.target(lun)
    guest_lvm(lab, lun, target)
    by_hand("disk", lun)

    with lab.event_activation():
        login(target)
        assert link() == initiator.device_of(lun.scsi_id)
        assert initiator.active_lvs("guest") == []
        CONFIG.write_bytes(ADMINISTRATORS)
        trigger(initiator.device_of(lun.scsi_id), action="add")
        until(lambda: initiator.active_lvs("guest") == ["root"], "without the link LVM takes it")
        initiator.lvm("vgchange", "-an", "guest")
        initiator.logout(target.iqn)
