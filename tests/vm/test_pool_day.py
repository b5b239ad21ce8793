# SPDX-License-Identifier: LGPL-2.1-only
"""The day after, from the array's snapshot to the last trace gone: driver, initiator, target and LVM are real, xapi is
simulated; what VMs would read is read from the blocks of their VDIs, through the initiator.
"""

import json
import os

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.lab.xapi import introduce
from kit.pool.standin import Disk
from kit.reader import device_ranges, lv_bytes, read_sr
from relvmoiscsi import cli

MIB = 1 << 20
SIZE = 96 * MIB
VOLUMES = [
    vhd("base", hidden=True, blocks=1, bat_entries=SMALL_BAT),
    vhd("root", parent="base", label="web root", blocks=1, bat_entries=SMALL_BAT),
    raw("data", label="web data", extents=1),
    raw("tables", label="db tables", extents=1),
    raw("mail", label="mail", extents=1),
]
TODAY = b"written after the snapshot"


class Lun:
    """A LUN of the array, with what is in its VDIs: as the array has it, and as the initiator has it."""

    def __init__(self, lab, image, volumes=()):
        self.image, self.volumes, self.lun = image, list(volumes), lab.lun(image)

    @property
    def device(self):
        return "/dev/disk/by-id/scsi-" + self.lun.scsi_id

    def content(self, uuid):
        """Of a VDI, through the initiator."""
        disk = Disk(os.path.realpath(self.device))
        try:
            vg = read_sr(disk).vg
            (lv,) = [lv for lv in vg.lvs if lv.name.endswith(uuid)]
            return lv_bytes(disk, vg, lv, 0, lv.extents * vg.extent_bytes)
        finally:
            disk.close()

    def write(self, uuid, content):
        """Into a VDI, as some host does."""
        vg = self.image.sr.vg
        (lv,) = [lv for lv in vg.lvs if lv.name.endswith(uuid)]
        done = 0
        with open(self.device, "r+b", buffering=0) as device:
            for place in device_ranges(vg, lv, 0, len(content)):
                device.seek(place.offset)
                device.write(content[done : done + place.length])
                done += place.length
            os.fsync(device.fileno())


class Array(Lun):
    """The original, on which xapi makes VDIs: SM's part of that is to build the LUN anew with one volume more."""

    def make_vdi(self, _sr, record):
        extents = -(-int(record["virtual_size"]) // (4 * MIB))
        volume = raw(f"made {len(self.volumes)}", label=record["name_label"], extents=extents)
        before = build_sr(self.volumes, seed="day", size_bytes=SIZE).disk
        self.volumes.append(volume)
        built = build_sr(self.volumes, seed="day", size_bytes=SIZE)
        with open(self.device, "r+b", buffering=0) as device:
            for start in range(0, SIZE, 4096):
                block = built.disk.peek(start, 4096)
                if block != before.peek(start, 4096):
                    device.seek(start)
                    device.write(block)
            os.fsync(device.fileno())
        return built.truth.volume(volume.key).uuid, {"virtual_size": extents * 4 * MIB}

    def read_vdi(self, pool, vdi):
        return self.content(pool.db.get("VDI", vdi, "uuid"))


def guest_data(label, content):
    """What a guest has written into a VDI: of a VHD all but what says whose child it is."""
    if label != "web root":
        return content
    guest = build_sr(VOLUMES, seed="day", size_bytes=SIZE).truth.volume("root").guest
    assert guest
    return b"".join(content[part.offset : part.end] for part in guest)


def new_vm(pool, name, *vdis, network=None, **fields):
    vm = pool.db.create("VM", name_label=name, **fields)
    running = fields.get("power_state") == "Running"
    for device, vdi in enumerate(vdis):
        pool.db.create("VBD", VM=vm, VDI=vdi, userdevice=str(device), currently_attached=running)
    if network:
        pool.db.create("VIF", VM=vm, network=network, MAC="02:00:00:00:00:01")
    return vm


def disks_of(pool, vm):
    """UUIDs of the VDIs of a VM, by device."""
    vbds = pool.db.records("VBD", VM=vm).values()
    return {vbd["userdevice"]: pool.db.get("VDI", vbd["VDI"], "uuid") for vbd in vbds}


@pytest.fixture
def say(monkeypatch, capsys):
    """Runs `relvmoiscsi pool` and gives what it answers as JSON."""

    def run(pool, *words):
        for name, value in pool.environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        status = cli.main(["pool", *words, "--json"])
        out, err = capsys.readouterr()
        assert status == 0, out + err
        return json.loads(out)

    return run


def test_one_whole_day(lab, make_pool, standin_sees, say):
    pool = make_pool(hosts=("xs1",))
    array = Array(lab, lab.disk(build_sr(VOLUMES, seed="day", size_bytes=SIZE).disk, "original.img"), VOLUMES)
    source = lab.target(array.lun)
    standin_sees(source)
    sr = introduce(pool, source, array.lun, array.image.sr.uuid, "Production")
    pool.api.vms.make_vdi = array.make_vdi
    pool.api.vms.read_vdi = lambda vdi: luns[pool.db.get("VDI", vdi, "SR")].content(pool.db.get("VDI", vdi, "uuid"))
    pool.api.vms.write_vdi = lambda vdi, content: array.write(pool.db.get("VDI", vdi, "uuid"), content)
    luns = {sr: array}
    vdi = {row["name_label"]: ref for ref, row in pool.db.records("VDI", SR=sr).items()}
    net = pool.db.create("network", name_label="office")
    pool.db.create("PIF", network=net)
    web = new_vm(pool, "web", vdi["web root"], vdi["web data"], network=net, power_state="Running")
    db = new_vm(pool, "db", vdi["db tables"], network=net, ha_always_run=True, ha_restart_priority="restart")
    mail = new_vm(pool, "mail", vdi["mail"])
    then = {label: array.content(pool.db.get("VDI", ref, "uuid")) for label, ref in vdi.items()}

    # in the evening: records, and two snapshots of the array while the SR is in use
    saved = say(pool, "save-vms", "Production", "--yes")
    assert [vm["name"] for vm in saved["vms"]] == ["db", "mail", "web"]
    copies = [Lun(lab, array.image.clone(f"clone{number}.img")) for number in (1, 2)]
    behind = lab.target(*(copy.lun for copy in copies))
    standin_sees(source, behind)

    # at night somebody destroys what is in a database, and a VM
    array.write(pool.db.get("VDI", vdi["db tables"], "uuid"), TODAY)
    lost = pool.db.get("VM", mail, "uuid")
    pool.api.vms.vm_destroy("", mail)
    digest = lab.digest(array.lun)

    # in the morning: two commands, and copies of all are ready to start
    seen = {lun["scsi_id"]: lun for lun in say(pool, "luns", "--target", "127.0.0.1")["luns"]}
    for copy in copies:
        assert (seen[copy.lun.scsi_id]["kind"], seen[copy.lun.scsi_id]["vms"]) == ("clone", ["db", "mail", "web"])
    attached = say(pool, "attach", "--all", "--target", "127.0.0.1", "--yes", "--name", "copy")
    names = {}
    for row in attached["luns"]:
        ref = pool.db.by_uuid("SR", row["sr"]["new"])
        luns[ref] = next(copy for copy in copies if copy.lun.scsi_id == row["scsi_id"])
        names[row["name"]] = ref
    assert sorted(names) == ["copy", "copy (2)"]
    made = say(pool, "clone", "copy", "--all", "--from-snapshot", "--isolated", "lab", "--yes")["vms"]
    assert [(vm["name"]["old"], vm["status"]) for vm in made] == [(name, "cloned") for name in ("db", "mail", "web")]
    assert made[1]["vm"]["old"] == lost
    first = luns[names["copy"]]
    for label, vm, device in (("db tables", 0, 0), ("mail", 1, 0), ("web root", 2, 0), ("web data", 2, 1)):
        new = made[vm]["disks"][device]["new"]
        assert guest_data(label, first.content(new)) == guest_data(label, then[label])
        assert pool.db.get("VDI", pool.db.by_uuid("VDI", new), "SR") == names["copy"]
    assert pool.api.vms.that_ha_would_start() == [db]
    for vm in made:
        vifs = pool.db.records("VIF", VM=pool.db.by_uuid("VM", vm["vm"]["new"])).values()
        assert all(pool.db.get("network", vif["network"], "name_label") == "lab" for vif in vifs)

    # the database as it was, tried and taken back
    own = disks_of(pool, db)
    say(pool, "restore", "copy (2)", "db", "--yes")
    second = luns[names["copy (2)"]]
    assert second.content(disks_of(pool, db)["0"]) == then["db tables"]
    say(pool, "restore", "--undo", "db", "--yes")
    assert disks_of(pool, db) == own and array.content(own["0"]).startswith(TODAY)

    # one file from one disk
    helper = new_vm(pool, "helper", power_state="Running", domain_type="pv_in_pvh")
    (lent,) = say(pool, "rescue", "copy (2)", "mail", "--vm", "helper", "--yes")["disks"]
    assert second.content(disks_of(pool, helper)[lent["userdevice"]]) == then["mail"] and lent["mode"] == "RO"
    say(pool, "rescue", "copy (2)", "--done", "--yes")
    assert disks_of(pool, helper) == {}

    # in the evening all is gone but what was there before
    gone = say(pool, "discard", "--all", "--with-vms", "--yes")["srs"]
    assert sorted(len(row["vms"]) for row in gone) == [0, 3]
    assert sorted(vm["name_label"] for vm in pool.db.records("VM").values()) == ["db", "helper", "web"]
    assert {row["name_label"] for row in pool.db.records("SR").values()} == {"Production"}
    assert [row["name_label"] for row in pool.db.records("network").values()] == ["office"]
    assert disks_of(pool, web)["0"] == pool.db.get("VDI", vdi["web root"], "uuid")
    assert lab.digest(array.lun) == digest
    for pbd in pool.db.refs("PBD"):
        pool.storage.pbd_unplug("", pbd)
