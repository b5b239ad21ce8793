# SPDX-License-Identifier: LGPL-2.1-only
"""The VM becomes a host: kernel modules, addresses, LVM and open-iscsi configured as in dom0, daemons, syslog."""

import contextlib
import os
import shutil
from pathlib import Path

from .command import reload_rules, run, settle, write
from .daemons import LOGS, Iscsid, Multipathd
from .syslog import Syslog

INITIATOR = "iqn.2026-01.lab.example:initiator"
LUNS = Path("/run/e2e/luns")

MODULES = ("target_core_mod", "target_core_file", "target_core_iblock", "iscsi_target_mod", "iscsi_tcp")
MODULES += ("dm-mod", "dm-multipath", "dm-round-robin", "dm-service-time", "dm-delay", "loop")

#: dom0: two system directories, of which only master/ may write metadata; LVM neither waits for udev nor is driven by
#: it; duplicates do not stop it. The lab's own devices below the targets stay out of sight.
LVM_CONF = """
devices {{
    use_devicesfile = 0
    scan_lvs = 0
    obtain_device_list_from_udev = 0
    hints = "none"
    allow_changes_with_duplicate_pvs = 1
    global_filter = [ "r#^/dev/(loop|vd)#", "r|^/dev/mapper/lab-|", "r|^/dev/disk/by-id/dm-name-lab-|", "a|.*|" ]
}}
global {{
    metadata_read_only = {read_only}
    event_activation = {events}
    use_lvmpolld = 0
    use_lvmlockd = 0
}}
activation {{
    udev_sync = {events}
    udev_rules = {events}
    monitoring = 0
}}
backup {{
    backup = 0
    archive = 0
}}
"""

#: replacement_timeout, seconds until I/O to a vanished target fails, is 144 in dom0 (15 with multipath)
ISCSID_CONF = """node.startup = manual
node.session.timeo.replacement_timeout = 20
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.session.err_timeo.abort_timeout = 15
node.session.err_timeo.lu_reset_timeout = 30
node.session.scan = auto
"""

#: dom0's, with a shorter queue when all paths are gone
MULTIPATH_CONF = """defaults {
    user_friendly_names no
    find_multipaths yes
    no_path_retry 2
    polling_interval 2
    max_polling_interval 2
}
blacklist {
    devnode "^(loop|ram|sr|fd)"
}
"""

#: what sm's 55-xs-mpath-scsidev.rules does for paths, without its script
BY_SCSID_RULE = """SUBSYSTEM=="block", KERNEL=="sd*[!0-9]", ENV{ID_SERIAL}=="?*", \\
    SYMLINK+="disk/by-scsid/$env{ID_SERIAL}/%k"
"""

#: sg3_utils has rules that give a disk properties by which multipathd may take it; with EL 9 their number is 61. dom0
#: of XenServer 8 and XCP-ng 8.3 has no such rules. They start seven programs for each event of a disk, which takes much
#: of the time of a test. So they are hidden unless a test asks for them.
SG3_RULES = Path("/usr/lib/udev/rules.d/55-scsi-sg3_id.rules")
HIDING = Path("/etc/udev/rules.d") / SG3_RULES.name


class Guest:
    """One per session; it stays as `setup` made it."""

    def __init__(self):
        self.iscsid = Iscsid()
        self.multipathd = Multipathd()
        self.syslog = Syslog()

    def setup(self):
        run("modprobe", "-a", *MODULES)
        if not os.path.ismount("/sys/kernel/config"):
            run("mount", "-t", "configfs", "none", "/sys/kernel/config")
        run("ip", "link", "set", "lo", "up")
        for last in (2, 3, 4):
            run("ip", "address", "replace", f"127.0.0.{last}/8", "dev", "lo")
        LUNS.mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(str(LUNS)):
            run("mount", "-t", "tmpfs", "-o", "size=60%", "tmpfs", LUNS)
        for directory in ("/run/lock", "/var/lock/sm", "/var/run/sm", "/var/run/sr-ref", "/run/lock/lvm", "/run/lvm"):
            os.makedirs(directory, exist_ok=True)
        configure_lvm()
        for directory in ("/etc/iscsi", "/etc/multipath"):
            Path(directory).mkdir(exist_ok=True)
        write("/etc/iscsi/initiatorname.iscsi", f"InitiatorName={INITIATOR}\n")
        write("/etc/iscsi/iscsid.conf", ISCSID_CONF)
        write("/etc/multipath.conf", MULTIPATH_CONF)
        write("/etc/udev/rules.d/62-lab-by-scsid.rules", BY_SCSID_RULE)
        if not HIDING.is_symlink():  # a VM that serves runs several sessions
            HIDING.symlink_to("/dev/null")
        reload_rules()
        self.syslog.start()
        self.iscsid.start()
        make_what_first_use_makes()
        settle()
        return self

    def teardown(self):
        self.multipathd.stop()
        self.iscsid.stop()
        self.syslog.save(LOGS / "syslog.txt")
        self.syslog.stop()


def make_what_first_use_makes():
    """Directories and files that any host has that ever used iSCSI and multipath: they are no leftovers."""
    os.makedirs("/run/sendsigs.omit.d", exist_ok=True)  # Debian's start script of open-iscsi
    for kind in ("nodes", "send_targets", "ifaces"):
        Path("/etc/iscsi", kind).mkdir(mode=0o700, exist_ok=True)
    run("iscsiadm", "-m", "node", check=False)
    run("multipath", "-W")
    run("lvm", "pvs")


def configure_lvm(events=False):
    """Write lvm.conf, to /etc/lvm read-only as in dom0. `events`: udev activates every complete VG (EL9, Debian)."""
    for directory, read_only in (("/etc/lvm", 1), ("/etc/lvm/master", 0)):
        os.makedirs(directory, exist_ok=True)
        text = LVM_CONF.format(read_only=0 if events else read_only, events=int(events))
        write(os.path.join(directory, "lvm.conf"), text)


@contextlib.contextmanager
def sg3_rules():
    """Within, udev has the rules of sg3_utils."""
    HIDING.unlink()
    reload_rules()
    try:
        yield
    finally:
        HIDING.symlink_to("/dev/null")
        reload_rules()


@contextlib.contextmanager
def multipathed(*scsi_ids):
    """Within, multipathd makes a map of each path of these LUNs, whatever properties the disk has.

    So does dom0's multipathd 0.4.9: it has no default for the properties in blacklist_exceptions.
    """
    wwids = Path("/etc/multipath/wwids")
    before = wwids.read_text(encoding="ascii")
    wwids.write_text(before + "".join(f"/{scsi_id}/\n" for scsi_id in scsi_ids), encoding="ascii")
    write("/etc/multipath.conf", MULTIPATH_CONF + 'blacklist_exceptions {\n    property ".*"\n}\n')
    try:
        yield
    finally:
        write("/etc/multipath.conf", MULTIPATH_CONF)
        wwids.write_text(before, encoding="ascii")


@contextlib.contextmanager
def event_activation():
    """Within, LVM activates by udev events what appears. What was activated must be inactive again at the end."""
    configure_lvm(events=True)
    try:
        yield
    finally:
        settle()
        configure_lvm()
        for name in ("pvs_online", "vgs_online", "pvs_lookup"):
            shutil.rmtree("/run/lvm/" + name, ignore_errors=True)
