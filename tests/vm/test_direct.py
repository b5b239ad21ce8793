# SPDX-License-Identifier: LGPL-2.1-only
"""Direct LUNs with the real udev, multipath and LVM: which device has the link, and when nothing has it."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit.lab import initiator
from kit.lab.command import run, settle, until
from kit.pool.simulator import XAPI_SOCKET, Pool, sm_directory
from relvmoiscsi.host.disk.udev import hidden

TOP = Path(__file__).resolve().parents[2]
COMMAND = Path("/usr/sbin/relvmoiscsi")
RULES = Path("/etc/udev/rules.d")
CONFIG = Path("/etc/relvmoiscsi.conf")
INVENTORY = Path("/etc/xensource-inventory")
LINKS = Path("/dev/xapi/block")

ADMINISTRATORS = b"# ours since 2019\n[other]\nkey = value ; \xe9\n\n"


@pytest.fixture(scope="module", autouse=True)
def installed(guest):
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


def direct(*argv):
    return Ran(run(COMMAND, "direct", *argv, check=False, timeout=100))


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


def test_a_lun_gets_its_link_and_loses_it_again(lab, pool, lun, config):
    target = lab.target(lun)
    login(target)
    (disk,) = initiator.devices_of(lun.scsi_id)

    with lab.untouched():
        found = added("disk", lun)
        assert (found["device"], found["size_bytes"], found["is_linked"]) == (disk, 64 << 20, True)
        assert link() == disk
        assert direct("list").out.splitlines()[1].split() == ["disk", lun.scsi_id, disk[5:], "64", "MiB", "linked"]

        assert direct("remove", "disk").status == 0
        assert link() is None and not LINKS.exists()
    assert config.read_bytes() == ADMINISTRATORS


def test_a_lun_behind_iscsi_is_refused_unless_somebody_keeps_its_session(lab, pool, lun, config):
    login(lab.target(lun))

    with lab.untouched():
        ran = direct("add", "disk", lun.scsi_id)

    assert ran.status == 4 and "nothing keeps that for a VM" in ran.err and "Nothing was changed." in ran.err
    assert config.read_bytes() == ADMINISTRATORS


def test_the_link_comes_with_the_lun_and_outlives_its_kernel_name(lab, pool, lun):
    first, other = lab.target(lun), lab.target(lab.lun(lab.blank("other.img")))
    assert not added("disk", lun)["is_linked"]

    login(first)
    before = link()
    initiator.logout(first.iqn)
    assert link() is None
    login(other)  # takes the name that the kernel gave before
    login(first)

    assert link() not in (None, before)
    assert link() == initiator.device_of(lun.scsi_id)
    assert [path.name for path in LINKS.iterdir()] == ["disk"]


def test_the_link_stays_at_every_event(lab, pool, lun):
    login(lab.target(lun))
    added("disk", lun)
    (disk,) = initiator.devices_of(lun.scsi_id)

    for action in ("change", "add", "change"):
        trigger(disk, action=action)
        assert link() == disk
    subprocess.check_call(["dd", "if=/dev/zero", "of=" + disk, "bs=4096", "count=1", "status=none"])  # a watch event
    assert link() == disk


def test_a_lun_that_hangs_keeps_its_link_and_udev_has_its_answer_in_time(lab, pool):
    lun = lab.lun(lab.blank("direct.img"), breakable=True)
    login(lab.target(lun))
    added("disk", lun)
    (disk,) = initiator.devices_of(lun.scsi_id)

    # Asked as the rule asks: other rules of an event would hang themselves.
    lun.freeze()
    os.environ["RELVMOISCSI_DIRECT"] = "disk"
    try:
        started = time.monotonic()
        kept = direct("udev", os.path.basename(disk)).out
        took = time.monotonic() - started
        del os.environ["RELVMOISCSI_DIRECT"]
        fresh = direct("udev", os.path.basename(disk)).out
    finally:
        os.environ.pop("RELVMOISCSI_DIRECT", None)
        lun.heal()

    assert (kept, fresh) == ("disk\n", "\n")
    assert took < 10
    assert link() == disk


def test_while_the_command_is_missing_a_link_stays(lab, pool, lun):
    login(lab.target(lun))
    added("disk", lun)
    (disk,) = initiator.devices_of(lun.scsi_id)

    COMMAND.rename(COMMAND.with_name("relvmoiscsi.away"))
    try:
        trigger(disk)
        assert link() == disk
    finally:
        COMMAND.with_name("relvmoiscsi.away").rename(COMMAND)


# --- several


class Watch:
    """Everything the link leads to while the block runs."""

    def __init__(self, name="disk"):
        self.path, self.seen, self._over = str(LINKS / name), set(), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.002):
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


TWO = {"groups": [["127.0.0.1:3260"], ["127.0.0.2:3260"]]}


def test_with_multipath_the_link_leads_to_the_map_and_never_to_a_path(lab, pool, lun):
    pool.db.set("host", pool.master, "other_config", {"multipathing": "true"})
    target = lab.target(lun, **TWO)
    login(target)
    with lab.multipathing(lun.scsi_id):
        with Watch() as seen:
            assert added("disk", lun)["is_linked"]
            the_map = link()
            assert os.path.basename(the_map).startswith("dm-")
            target.disable(1)
            time.sleep(3)
            assert link() == the_map
            target.enable(1)
            trigger(the_map, *initiator.devices_of(lun.scsi_id))
            assert link() == the_map
            initiator.logout(target.iqn)
            run("multipath", "-f", lun.scsi_id, check=False)
            until(lambda: link() is None, "the link is gone with the map")
            login(target)
            until(lambda: (link() or "").startswith("/dev/dm-"), "the link is back with the map")
        assert direct("remove", "disk").status == 0
        assert link() is None
        run("multipath", "-f", lun.scsi_id)

    assert {name[:3] for name in seen} == {"dm-"}


def test_a_map_is_made_for_a_single_path_where_multipathing_is_on(lab, pool, lun):
    pool.db.set("host", pool.master, "other_config", {"multipathing": "true"})
    login(lab.target(lun))
    with lab.multipathing():
        with Watch() as seen:
            assert added("disk", lun)["is_linked"]
        assert {name[:3] for name in seen} == {"dm-"}
        direct("remove", "disk")
        run("multipath", "-f", lun.scsi_id)


def test_several_paths_without_multipath_have_no_link(lab, pool, lun):
    target = lab.target(lun, **TWO)
    login(target)

    ran = direct("add", "disk", lun.scsi_id, "--iscsi")

    assert ran.status == 4 and "has 2 paths" in ran.err and "Nothing was changed." in ran.err
    assert CONFIG.read_bytes() == ADMINISTRATORS
    by_hand("disk", lun)
    trigger(*initiator.devices_of(lun.scsi_id))
    assert link() is None
    assert "has 2 paths" in problem()


def test_a_second_path_without_multipath_ends_the_link(lab, pool, lun):
    target = lab.target(lun, **TWO)
    initiator.login(target.iqn, target.portals[0])
    added("disk", lun)
    assert link() is not None

    initiator.login(target.iqn, target.portals[1])
    assert link() is None

    initiator.logout(target.iqn, target.portals[1])
    assert added("disk", lun)["is_linked"]


# --- what is on it


def test_an_sr_and_its_clone_are_refused_and_never_linked(lab, pool):
    image = lab.image("chain")
    clone = lab.lun(image.clone("clone.img"))
    digest = image.digest()
    target = lab.target(clone)
    login(target)

    ran = direct("add", "disk", clone.scsi_id, "--iscsi")

    assert ran.status == 4 and "holds an SR (volume group 'VG_XenStorage-" in ran.err
    by_hand("disk", clone)
    trigger(*initiator.devices_of(clone.scsi_id))
    initiator.logout(target.iqn)
    with Watch() as seen:
        login(target)
        settle()
    assert (seen, link()) == (set(), None)
    assert "holds an SR" in problem()
    assert image.digest() == digest


def test_an_sr_in_use_is_refused(lab, pool):
    image = lab.image("chain")
    lun = lab.lun(image)
    target = lab.target(lun)
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi", uuid=image.sr.uuid)
    with lab.attached(target, lun, image.sr.uuid):
        held = direct("add", "disk", lun.scsi_id, "--iscsi")
        pool.db.create("PBD", SR=sr, host=pool.master, device_config={"SCSIid": lun.scsi_id}, currently_attached=True)
        known = direct("add", "disk", lun.scsi_id, "--iscsi")

    assert held.status == 4 and "is in use by device-mapper volume VG_XenStorage" in held.err
    assert known.status == 4 and "belongs to the SR " + image.sr.uuid in known.err
    assert CONFIG.read_bytes() == ADMINISTRATORS


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
        time.sleep(2)
        assert initiator.active_lvs("guest") == []
        initiator.logout(target.iqn)
        CONFIG.write_bytes(ADMINISTRATORS)
        login(target)
        until(lambda: initiator.active_lvs("guest") == ["root"], "without the link LVM takes it")
        initiator.lvm("vgchange", "-an", "guest")
        initiator.logout(target.iqn)


def test_lvm_of_the_guest_can_be_kept_out_of_lvm_commands(lab, pool, lun):
    target = lab.target(lun)
    guest_lvm(lab, lun, target)
    login(target)
    ran = direct("add", "disk", lun.scsi_id, "--iscsi")
    assert ran.status == 0 and "holds the volume group 'guest'" in ran.out

    hiding = 'devices { global_filter = [ "r|^/dev/xapi/block/|" ] }'
    assert "guest" in run("lvm", "vgs").out
    assert "guest" not in run("lvm", "vgs", "--config", hiding).out


def test_what_is_hidden_has_no_link_until_it_is_shown_again(lab, pool, lun):
    target = lab.target(lun)
    by_hand("disk", lun)

    with Watch() as seen:
        with hidden(lun.scsi_id):
            login(target)
            assert link() is None
        assert seen == set()
        assert link() == initiator.device_of(lun.scsi_id)
        with hidden(lun.scsi_id):
            trigger(*initiator.devices_of(lun.scsi_id))
            assert link() is None
        assert link() == initiator.device_of(lun.scsi_id)


# --- in use


def test_what_is_held_open_cannot_be_removed(lab, pool, lun, config):
    login(lab.target(lun))
    added("disk", lun)
    text = config.read_bytes()

    with open(str(LINKS / "disk"), "rb"):
        ran = direct("remove", "disk")

    assert ran.status == 4 and f"is in use by process {os.getpid()} (" in ran.err
    assert config.read_bytes() == text
    assert link() is not None
    assert direct("remove", "disk").status == 0


def test_two_at_once_both_get_in(lab, pool, config):
    luns = [lab.lun(lab.blank(f"{number}.img")) for number in range(2)]
    login(lab.target(*luns))
    threads = [threading.Thread(target=added, args=(f"disk{number}x", lun)) for number, lun in enumerate(luns)]

    for thread in threads:
        lab.begin(thread)
    for thread in threads:
        thread.join()

    assert [link(f"disk{number}x") for number in range(2)] == [initiator.device_of(lun.scsi_id) for lun in luns]
    for number in range(2):
        assert direct("remove", f"disk{number}x").status == 0
    assert config.read_bytes() == ADMINISTRATORS
