# SPDX-License-Identifier: LGPL-2.1-only
"""A host with Fibre Channel adapters for the tests: the sysfs of a real one, below a directory, and changes to it."""

import base64
import json
import os
import shutil
from functools import lru_cache
from pathlib import Path, PurePosixPath

from relvmoiscsi.host.disk import cleanup_journal, scsi_id
from relvmoiscsi.host.disk.paths import Face
from relvmoiscsi.host.this_host import Host

DATA = Path(__file__).resolve().parents[1] / "data" / "transcripts" / "sysfs-fc.json"
SCSI_ID = "36001405" + "4d1bc9bf6ad949ca9b5bf9dc7"
SERIAL = "4d1bc9bf-6ad9-49ca-9b5b-f9dc7321050e"
WWPNS = ("2000020000000b00", "2000020000000b01")
#: what an array has mapped, and a scan brings
CLONE, OTHER = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa", "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"
MAPPED = {"1:0:0:7": ("sdc", CLONE, "8:32"), "1:0:0:8": ("sdd", OTHER, "8:48")}


@lru_cache(maxsize=None)
def recorded():
    """The files, links and directories of a real host's sysfs."""
    captured = json.loads(DATA.read_text(encoding="utf-8"))
    files = [
        (path, content.encode("utf-8") if isinstance(content, str) else base64.b64decode(content["base64"]))
        for path, content in captured["files"].items()
    ]
    links = list(captured["links"].items())
    parents = {str(parent) for path, _ in files + links for parent in PurePosixPath(path).parents}
    leaves = {path for path in parents if not any(other.startswith(path + "/") for other in parents)}
    return files, links, sorted(leaves - {"."})


class HbaWorld:
    """`host` is what is read; host1 and host3 see the LUN as sda and sdb; host0 and host2 are the target's ports."""

    def __init__(self, root):
        self.root = str(root)
        files, links, directories = recorded()
        for path in directories:
            os.makedirs(self.at(path), exist_ok=True)
        for path, content in files:
            with open(self.at(path), "wb") as file:
                file.write(content)
        for path, target in links:
            os.symlink(target, self.at(path))
        for disk in ("sda", "sdb"):
            self.node(disk)
        self.host = Host(root=self.root)

    def at(self, path):
        """A path below /sys."""
        return os.path.join(self.root, "sys", path)

    def put(self, path, content):
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        Path(self.at(path)).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))

    def node(self, disk):
        os.makedirs(os.path.join(self.root, "dev"), exist_ok=True)
        Path(self.root, "dev", disk).touch()

    def adapter(self, number, **attributes):
        """One that is no port of Fibre Channel, with these attributes in sysfs."""
        directory = f"class/scsi_host/host{number}"
        os.makedirs(self.at(directory), exist_ok=True)
        for name, text in attributes.items():
            self.put(f"{directory}/{name.lstrip('_')}", text + "\n")

    def lun(self, address, disk=None, scsi_id=None, serial=None, kind="0", like="1:0:0:0"):
        """Another LUN at an address, with its disk, as a scan brings it; an id of its own is a NAA of 16 bytes."""
        device, model = self.at("bus/scsi/devices/" + address), self.at("bus/scsi/devices/" + like)
        os.makedirs(device)
        for name in ("vendor", "model", "state", "vpd_pg80", "vpd_pg83"):
            shutil.copy(os.path.join(model, name), device)
        self.put(f"bus/scsi/devices/{address}/type", kind + "\n")
        if scsi_id is not None:
            self.put(f"bus/scsi/devices/{address}/vpd_pg83", b"\0\x83\0\x14\1\3\0\x10" + bytes.fromhex(scsi_id[1:]))
        if serial is not None:
            text = serial.encode("ascii")
            self.put(f"bus/scsi/devices/{address}/vpd_pg80", b"\0\x80\0" + bytes([len(text)]) + text)
        self.put(f"bus/scsi/devices/{address}/delete", "")
        if disk is not None:
            self.put(f"bus/scsi/devices/{address}/block/{disk}/size", "131072\n")
            os.symlink(os.path.join(device, "block", disk), self.at("block/" + disk))
            os.symlink(device, self.at(f"block/{disk}/device"))
            self.node(disk)


class MappedHost:
    """A host whose array has two clones mapped, none of which it knows."""

    def __init__(self, root, disk):
        self.world = HbaWorld(root)
        self.host = self.world.host
        self.array = self.host.at("array")
        os.makedirs(self.array)
        os.makedirs(self.host.at("run/udev/data"))
        os.symlink("/proc", self.host.at("proc"))  # it has who holds a lock
        disk.to_file(os.path.join(self.array, "sdc"))
        Path(self.array, "sdd").touch()  # nobody reads it

    # --- the kernel and udev

    def scan(self, scsi_host, _place, _host):
        """Atomic, for a call that is killed does not end it."""
        for address, (disk, the_id, number) in MAPPED.items():
            if scsi_host == "host1" and not os.path.exists(self.world.at("bus/scsi/devices/" + address)):
                os.link(os.path.join(self.array, disk), self.host.node(disk))
                self.world.put(f"../run/udev/data/b{number}", "I:1\n" + self._mark())
                self.world.lun(address, scsi_id=the_id)
                for name, text in (("dev", number), ("size", "2097152"), ("uevent", "")):
                    self.world.put(f"bus/scsi/devices/{address}/block/{disk}/{name}", text + "\n")
                device = self.world.at("bus/scsi/devices/" + address)
                os.symlink(os.path.join(device, "block", disk), self.world.at("block/" + disk))
                os.symlink(device, os.path.join(device, "block", disk, "device"))
        return ""

    def _mark(self):
        return "E:RELVMOISCSI_HIDDEN=all\n" * bool(self.switches())

    def remove(self, address, _host):
        disk = MAPPED[address][0]
        for path in (self.world.at("block/" + disk), self.host.node(disk)):
            os.unlink(path)
        shutil.rmtree(self.world.at("bus/scsi/devices/" + address), ignore_errors=True)

    # --- what is to be seen

    def seen(self):
        return [scsi_id for _, (disk, scsi_id, _) in sorted(MAPPED.items()) if os.path.exists(self.host.node(disk))]

    def switches(self):
        return sorted(path.name for path in Path(self.host.at("run/relvmoiscsi")).glob("hide/*"))

    def notes(self):
        return sorted(path.name for path in Path(self.host.at(cleanup_journal.DIRECTORY)).glob("*"))

    def look(self, disks, _deadline):
        return {disk: Face(scsi_id.scsi_id_of_disk(disk, self.host), "", 1, "") for disk in disks}
