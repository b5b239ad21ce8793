# SPDX-License-Identifier: LGPL-2.1-only
"""The disks and maps of a host for the tests, below a directory: sysfs, /dev, udev's database, and scripted pauses.

The trees are those of a LIO LUN in the test VM (Linux 6.1, udev 252), with the fields that are read.
"""

import base64
import shutil

from relvmoiscsi.host.this_host import Host, wait_for

LUN = "36001405993c87c37fa84d02b7fa62c40"
OTHER = "36001405993c87c37fa84d02b7fa62c41"
PAGE_83 = base64.b64decode(
    "AIMApAEDABBgAUBZk8h8N/qE0Ct/pixAAgEANExJTy1PUkcgRklMRUlPOjk5M2M4N2MzLTdmYTgtNGQwMi1iN2ZhLTYyYzQwNDVjZGJlZQBRlAAE"
    "AAAAAVGVAAQAAAAAAQYABAAAAABTmAAgaXFuLjIwMjYtMDEudGVzdDpvbmUsdCwweDAwMDEAAABTqAAYaXFuLjIwMjYtMDEudGVzdDpvbmUAAAAA"
)


class UdevWorld:
    """What sysfs, /dev and udev's database would hold."""

    def __init__(self, root):
        self.root = root
        self.run_dir = str(root / "run/relvmoiscsi")
        self.host = Host(str(root))
        self.put("run/udev/control")
        self.put("lib/udev/rules.d/57-relvmoiscsi.rules", "# rules\n")
        (root / "sys/block").mkdir(parents=True)
        (root / "dev").mkdir()

    def has_disk(self, name, number, scsi_id=LUN, node=True):
        page = PAGE_83.replace(bytes.fromhex(LUN[1:]), bytes.fromhex(scsi_id[1:]))
        self.put(f"sys/block/{name}/device/vpd_pg83", page)
        self.put(f"sys/block/{name}/device/vendor", "LIO-ORG \n")
        self.put(f"sys/block/{name}/device/model", "FILEIO          \n")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/uevent")
        if node:
            self.put("dev/" + name)

    def has_map(self, name, number, scsi_id=LUN):
        self.put(f"sys/block/{name}/dm/uuid", f"mpath-{scsi_id}\n")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/uevent")

    def loses(self, name):
        shutil.rmtree(str(self.root / "sys/block" / name))

    def udev_knows(self, number, *lines):
        self.put("run/udev/data/b" + number, "\n".join(lines) + "\n")

    def knows(self, number):
        return (self.root / ("run/udev/data/b" + number)).read_text().splitlines()

    def put(self, path, content=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def event_of(self, name):
        return (self.root / "sys/block" / name / "uevent").read_text()


class Scripted:
    """Pauses that change the world as the test says, one step each; then nothing changes."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.waits = []

    def __call__(self, seconds):
        self.waits.append(seconds)
        if self.steps:
            self.steps.pop(0)()


def waiting_with(*steps):
    def wait(condition, timeout_seconds):
        return wait_for(condition, timeout_seconds, Scripted(*steps))

    return wait
