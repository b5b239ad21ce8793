# SPDX-License-Identifier: LGPL-2.1-only
"""Direct LUNs with the real udev, multipath and LVM: which device has the link, and when nothing has it."""

import json
import os
import struct
import subprocess
import threading
from glob import glob
from pathlib import Path

import pytest

from kit.lab import initiator, luns
from kit.lab.command import run, settle, until
from kit.lab.guest import event_activation
from kit.lab.xapi import CONFIG, TOP, install_rules, remove_rules
from kit.pool.simulator import XAPI_SOCKET, Pool, sm_directory

COMMAND = Path("/usr/sbin/relvmoiscsi")
INVENTORY = Path("/etc/xensource-inventory")
LINKS = Path("/dev/xapi/block")

#: one partition of LVM, of 32 MiB
PARTITION_TABLE = (
    bytes(446) + struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x8E, b"\0\0\0", 2048, 65536) + bytes(48) + b"\x55\xaa"
)

ADMINISTRATORS = b"# ours since 2019\n[other]\nkey = value ; \xe9\n\n"


@pytest.fixture(scope="module", autouse=True)
def installed(guest):
    """The command and all rules, as the package installs them."""
    packaged = Path(TOP, "supp-pack/relvmoiscsi").read_text()
    assert '"/usr/share/relvmoiscsi"' in packaged
    COMMAND.write_text(packaged.replace("/usr/share/relvmoiscsi", TOP))
    COMMAND.chmod(0o755)
    came = install_rules("*.rules")
    os.makedirs("/run/relvmoiscsi", 0o700, exist_ok=True)
    yield
    remove_rules(came)
    COMMAND.unlink()


@pytest.fixture(autouse=True)
def pool(tmp_path):
    """The host has the administrator's file, and is the master of a pool."""
    CONFIG.write_bytes(ADMINISTRATORS)
    os.makedirs(os.path.dirname(XAPI_SOCKET), exist_ok=True)
    with Pool(sm_directory(tmp_path / "sm"), XAPI_SOCKET) as pool:
        INVENTORY.write_text("INSTALLATION_UUID='{}'\n".format(pool.db.get("host", pool.master, "uuid")))
        yield pool
    INVENTORY.unlink()
    CONFIG.unlink()


def direct(*argv, env=None):
    return run(COMMAND, "direct", *argv, check=False, env=env)


def is_linked_by(ran):
    assert ran.status == 0, ran.err
    return json.loads(ran.out)["is_linked"]


def problem():
    (found,) = json.loads(direct("list", "--json").out)["direct_luns"]
    return found["problem"]


def by_hand(lun):
    """What an administrator may do: write the line, and log in or have udev look."""
    CONFIG.write_bytes(ADMINISTRATORS + f"[direct]\ndisk = {lun.scsi_id}\n".encode("ascii"))


def link():
    """Where the link leads, settled: "/dev/sda"; None without a link."""
    settle()
    path = LINKS / "disk"
    return os.path.realpath(str(path)) if path.is_symlink() else None


def names_for_lvm():
    """The devices that LVM's filter knows, by the links of the rule."""
    return sorted(path.name.split("-direct-")[1] for path in Path("/dev/disk/by-id").glob("relvmoiscsi-direct-*"))


def is_of_partition(uuid):
    return Path(uuid).read_text().startswith("part")


def trigger(*devices, action="change"):
    for device in devices:
        run("udevadm", "trigger", "--settle", "--action=" + action, "--sysname-match=" + os.path.basename(device))


class Watch:
    """Everything the link leads to while the block runs."""

    def __init__(self):
        self.seen, self._over, self._thread = set(), threading.Event(), threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.01):
            try:
                self.seen.add(os.path.basename(os.readlink(str(LINKS / "disk"))))
            except OSError:
                pass  # no link at this moment

    def __enter__(self):
        self._thread.start()
        return self.seen

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def test_a_link_comes_with_its_lun_and_stays_at_every_event_until_it_is_removed(lab):
    lun = lab.lun(luns.blank("direct.img"), breakable=True)
    target = lab.target(lun)
    away = direct("add", "disk", lun.scsi_id, "--iscsi")
    assert away.status == 3 and CONFIG.read_bytes() == ADMINISTRATORS, "a new LUN is read"
    by_hand(lun)
    assert not is_linked_by(direct("add", "disk", lun.scsi_id, "--iscsi", "--json"))

    initiator.login(target.iqn, target.portal)
    disk = link()
    assert disk == initiator.device_of(lun.scsi_id)
    trigger(disk, action="add")
    assert link() == disk
    subprocess.check_call(["dd", "if=/dev/zero", "of=" + disk, "bs=4096", "count=1", "status=none"])  # a watch event
    assert link() == disk
    away = COMMAND.rename(COMMAND.with_name("relvmoiscsi.away"))
    try:
        trigger(disk)
        assert link() == disk, "a host without the command for a moment, as in an upgrade"
    finally:
        away.rename(COMMAND)

    # Asked as the rule asks, as the rules of others would hang themselves: a LUN that hangs keeps its link.
    lun.freeze()
    kept = direct("udev", os.path.basename(disk)).out
    lun.heal()
    assert kept == "disk\n"

    initiator.logout(target.iqn)
    assert link() is None
    initiator.login(target.iqn, target.portal)
    assert link() == initiator.device_of(lun.scsi_id)

    text = CONFIG.read_bytes()
    with open(str(LINKS / "disk"), "rb"):
        refused = direct("remove", "disk")
    assert refused.status == 4 and f"is in use by process {os.getpid()} (" in refused.err
    assert CONFIG.read_bytes() == text and link() is not None
    assert direct("remove", "disk").status == 0
    assert link() is None and not LINKS.exists()
    assert CONFIG.read_bytes() == ADMINISTRATORS + b"[direct]\n"


def test_of_two_paths_there_is_no_link_and_of_their_map_there_is(lab, pool):
    lun = lab.lun(luns.blank("direct.img"))
    target = lab.target(lun, portals=["127.0.0.1:3260", "127.0.0.2:3260"])
    add = ("add", "disk", lun.scsi_id, "--iscsi", "--json")
    initiator.login(target.iqn, target.portals[0])
    assert is_linked_by(direct(*add)) and link() is not None
    initiator.login(target.iqn, target.portals[1])
    assert link() is None and names_for_lvm() == sorted(map(os.path.basename, initiator.devices_of(lun.scsi_id)))
    assert "has 2 paths" in problem()
    direct("remove", "disk")
    refused = direct(*add)
    assert refused.status == 4 and "has 2 paths" in refused.err and "Nothing was changed." in refused.err

    pool.db.set("host", pool.master, "other_config", {"multipathing": "true"})
    with lab.multipathing(lun.scsi_id):
        with Watch() as seen:
            assert is_linked_by(direct(*add))
            the_map, first = link(), initiator.devices_of(lun.scsi_id)[0]
            run("dmsetup", "message", lun.scsi_id, "0", "fail_path", first)
            trigger(the_map, first)
            assert link() == the_map
        with open(the_map, "r+b") as disk:  # as the guest
            disk.write(PARTITION_TABLE)
        run("kpartx", "-an", the_map)  # as the rule of multipath does on dom0, at each event
        settle()
        (part,) = [Path(path).parent.parent.name for path in glob("/sys/block/dm-*/dm/uuid") if is_of_partition(path)]
        assert part in names_for_lvm()
        run("kpartx", "-d", the_map)
        assert direct("remove", "disk").status == 0
        assert link() is None
        run("multipath", "-f", lun.scsi_id)

    assert {name[:3] for name in seen} == {"dm-"}


def test_an_sr_is_refused_and_takes_no_link_from_a_lun_of_the_list(lab):
    lun = lab.lun(lab.image("chain"))
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)

    refused = direct("add", "disk", lun.scsi_id, "--iscsi")

    assert refused.status == 4 and "holds an SR (volume group 'VG_XenStorage-" in refused.err
    assert CONFIG.read_bytes() == ADMINISTRATORS
    by_hand(lun)  # as if a guest had written the SR to its LUN
    disk = initiator.device_of(lun.scsi_id)
    trigger(disk)
    assert link() == disk and problem() is None
    assert names_for_lvm() == [os.path.basename(disk)]


def test_lvm_of_the_guest_is_left_alone_though_events_activate(lab):
    lun = lab.lun(luns.blank("direct.img"))
    target = lab.target(lun)
    initiator.login(target.iqn, target.portal)
    device = initiator.device_of(lun.scsi_id)
    for words in (("pvcreate", device), ("vgcreate", "guest", device),
                  ("lvcreate", "-an", "-l", "4", "-n", "root", "-Zn", "guest")):  # fmt: skip
        initiator.lvm(*words, device=device)
    initiator.logout(target.iqn)
    by_hand(lun)

    with event_activation():
        initiator.login(target.iqn, target.portal)
        assert link() == initiator.device_of(lun.scsi_id)
        assert initiator.active_lvs("guest") == []
        CONFIG.write_bytes(ADMINISTRATORS)
        trigger(initiator.device_of(lun.scsi_id), action="add")
        until(lambda: initiator.active_lvs("guest") == ["root"], "without the link LVM takes it")
        initiator.lvm("vgchange", "-an", "guest")
        initiator.logout(target.iqn)
