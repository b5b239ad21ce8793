# SPDX-License-Identifier: LGPL-2.1-only
"""The initiator's side of the host, as people and other drivers use it: iscsiadm, LVM, multipath."""

import contextlib
import shutil
from pathlib import Path

from .command import read, run, settle, until
from .world import DATABASES

MASTER = {"LVM_SYSTEM_DIR": "/etc/lvm/master"}
SR_REF = Path("/var/run/sr-ref")


def iscsiadm(*words, check=True):
    return run("iscsiadm", *words, check=check)


def discover(portal, check=True):
    """SendTargets; the result's `out` has a line for each portal."""
    return iscsiadm("-m", "discovery", "-t", "sendtargets", "-p", portal, check=check)


def login(iqn, portal, chap=None, mutual=None, check=True):
    """Make the node record and log in; the result of the login. No password stands on a command line."""
    node = ("-m", "node", "-T", iqn, "-p", portal)
    if not _records(iqn, portal):
        iscsiadm(*node, "-o", "new")  # beside a record of a discovery it would make a second one; login then ends in 15
    values = {}
    if chap:
        values.update({"authmethod": "CHAP", "username": chap.user, "password": chap.password})
    if mutual:
        values.update({"username_in": mutual.user, "password_in": mutual.password})
    if values:
        _set_auth(iqn, portal, values)
    result = iscsiadm(*node, "--login", check=check)
    settle()
    return result


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


def logout(iqn, portal=None, check=True):
    """Log out and remove the record; of one portal or of all."""
    node = ("-m", "node", "-T", iqn) + (("-p", portal) if portal else ())
    result = iscsiadm(*node, "--logout", check=check)
    settle()
    iscsiadm(*node, "-o", "delete", check=check)
    return result


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
    found = []
    for block in sorted(Path("/sys/block").glob("sd*")):
        if read(block / "device" / "wwid") == "naa." + scsi_id[1:]:
            found.append("/dev/" + block.name)
    return found


def device_of(scsi_id):
    """The one disk with that id; waits for it."""
    until(lambda: devices_of(scsi_id), f"there is a disk {scsi_id}")
    (device,) = devices_of(scsi_id)
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


def lvm(*words, device=None, check=True):
    """An LVM command of the pool master; it sees one device only if `device` is given."""
    words = list(words)
    if device:
        words += ["--config", f'devices {{ global_filter = [ "a|^{device}$|", "r|.*|" ] }}']
    return run("lvm", *words, env=MASTER, check=check)


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
        self.target = target
        self.lun = lun
        self.uuid = uuid
        self.vg = "VG_XenStorage-" + uuid
        self.device = ""

    def attach(self):
        if self.target.iqn not in [iqn for iqn, _ in sessions()]:
            login(self.target.iqn, self.target.portal, self.target.chap, self.target.mutual)
        self.device = device_of(self.lun.scsi_id)
        lvm("vgchange", "-ay", self.vg, device=self.device)
        lvm("vgmknodes", self.vg, device=self.device)
        with (SR_REF / self.target.iqn).open("a") as lines:
            lines.write(self.uuid + "\n")
        return self

    @property
    def active(self):
        return active_lvs(self.vg)

    def detach(self):
        """Does nothing where it is not attached, or no more."""
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


@contextlib.contextmanager
def attached(sr):
    """The AttachedSr is in use within."""
    sr.attach()
    try:
        yield sr
    finally:
        sr.detach()
