# SPDX-License-Identifier: LGPL-2.1-only
"""The initiator's side of the host, as people and other drivers use it: iscsiadm, LVM, multipath."""

import shutil
from pathlib import Path

from .command import read, run, settle, until
from .world import DATABASES

MASTER = {"LVM_SYSTEM_DIR": "/etc/lvm/master"}
SR_REF = Path("/var/run/sr-ref")


def iscsiadm(*words, check=True):
    return run("iscsiadm", *words, check=check)


def login(iqn, portal, chap=None):
    """Make the node record and log in. No password stands on a command line."""
    node = ("-m", "node", "-T", iqn, "-p", portal)
    if not _records(iqn, portal):
        iscsiadm(*node, "-o", "new")  # beside a record of a discovery it would make a second one; login then ends in 15
    if chap:
        _set_auth(iqn, portal, {"authmethod": "CHAP", "username": chap.user, "password": chap.password})
    iscsiadm(*node, "--login")
    settle()


def _records(iqn, portal):
    """Files of a node: <address>,<port>,<group>/<interface> after a discovery, <address>,<port> after `-o new`."""
    address, _, port = portal.rpartition(":")
    pattern = "nodes/{}/{},{}*".format(iqn, address.strip("[]"), port)
    entries = [path for database in DATABASES for path in Path(database).glob(pattern)]
    return [path / "default" if path.is_dir() else path for path in entries]


def _set_auth(iqn, portal, values):
    (record,) = _records(iqn, portal)
    names = tuple(f"node.session.auth.{name} =" for name in values)
    lines = [line for line in record.read_text().splitlines() if not line.startswith(names)]
    at = lines.index("node.name = " + iqn) + 1
    lines[at:at] = [f"node.session.auth.{name} = {value}" for name, value in values.items()]
    record.write_text("\n".join(lines) + "\n")


def logout(iqn):
    """Log out of all portals and remove the record."""
    iscsiadm("-m", "node", "-T", iqn, "--logout")
    settle()
    iscsiadm("-m", "node", "-T", iqn, "-o", "delete")


def rescan(iqn):
    """Look for new LUNs on the sessions of a target."""
    iscsiadm("-m", "node", "-T", iqn, "--rescan")
    settle()


def sessions():
    """(IQN, "address:port") of every session, from sysfs."""
    found = []
    for session in sorted(Path("/sys/class/iscsi_session").glob("session*")):
        for connection in sorted((session / "device").glob("connection*/iscsi_connection/connection*")):
            portal = "{}:{}".format(read(connection / "persistent_address"), read(connection / "persistent_port"))
            found.append((read(session / "targetname"), portal))
    return found


def devices_of(scsi_id):
    """Paths of all SCSI disks with that id, in the order of their names."""
    blocks = sorted(Path("/sys/block").glob("sd*"))
    return ["/dev/" + block.name for block in blocks if read(block / "device" / "wwid") == "naa." + scsi_id[1:]]


def device_of(scsi_id):
    """The one disk with that id; waits for it."""
    (device,) = until(lambda: devices_of(scsi_id), f"there is a disk {scsi_id}")
    return device


def logout_all(keep=()):
    """End every session and delete every record, but those of the IQNs in `keep`: for the end of a test."""
    for iqn in {iqn for iqn, _ in sessions()} - set(keep):
        iscsiadm("-m", "node", "-T", iqn, "--logout", check=False)
        settle()
    for database in DATABASES:
        for kind in ("nodes", "send_targets"):
            for entry in Path(database, kind).glob("*"):
                if entry.name not in keep:
                    shutil.rmtree(str(entry))
    for path in SR_REF.iterdir():
        if path.name not in keep:
            path.unlink()


# -- LVM and multipath ----------------------------------------------------------------------------------------------


def lvm(*words, device=None):
    """An LVM command of the pool master; it sees one device only if `device` is given."""
    filtered = ["--config", f'devices {{ global_filter = [ "a|^{device}$|", "r|.*|" ] }}'] if device else []
    return run("lvm", *words, *filtered, env=MASTER)


def active_lvs(vg):
    """Names of the LVs of a VG that are active, as device-mapper has them."""
    prefix = vg.replace("-", "--") + "-"
    names = [read(block / "dm" / "name") for block in Path("/sys/block").glob("dm-*")]
    return sorted(name[len(prefix) :].replace("--", "-") for name in names if name.startswith(prefix))


def multipath_map(scsi_id):
    """Paths below the map of an id, as kernel names; None without a map."""
    for block in Path("/sys/block").glob("dm-*"):
        if read(block / "dm" / "uuid") == "mpath-" + scsi_id:
            return sorted(entry.name for entry in (block / "slaves").iterdir())
    return None


class AttachedSr:
    """An SR that is in use on this host: session, VG active, line in sm's session reference file."""

    def __init__(self, target, lun, uuid):
        self.target, self.uuid, self.vg = target, uuid, "VG_XenStorage-" + uuid
        if target.iqn not in [iqn for iqn, _ in sessions()]:
            login(target.iqn, target.portal, target.chap)
        self.device = device_of(lun.scsi_id)
        lvm("vgchange", "-ay", self.vg, device=self.device)
        lvm("vgmknodes", self.vg, device=self.device)
        with (SR_REF / target.iqn).open("a") as lines:
            lines.write(uuid + "\n")

    @property
    def active(self):
        return active_lvs(self.vg)

    def detach(self):
        """Does nothing where it is not attached any more."""
        if not self.device:
            return
        lvm("vgchange", "-an", self.vg, device=self.device)
        reference = SR_REF / self.target.iqn
        lines = [line for line in reference.read_text().split() if line != self.uuid]
        reference.write_text("".join(line + "\n" for line in lines))
        if not lines:
            reference.unlink()
            logout(self.target.iqn)
        self.device = ""
