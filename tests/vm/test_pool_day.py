# SPDX-License-Identifier: LGPL-2.1-only
"""The day after: copies of an SR are attached, VMs get their disks, the copies are discarded.

Driver, initiator, target and LVM are real, xapi is simulated. What VMs would read is read from the blocks of their
VDIs, through the initiator.
"""

import json
import os

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.lab.xapi import introduce
from kit.pool.standin import Disk
from kit.reader import lv_bytes, read_sr
from relvmoiscsi import cli

MIB = 1 << 20
SIZE = 96 * MIB
VOLUMES = [
    vhd("base", hidden=True, blocks=1, bat_entries=SMALL_BAT),
    vhd("root", parent="base", label="web root", blocks=1, bat_entries=SMALL_BAT),
    raw("data", label="web data", extents=1),
    raw("tables", label="db tables", extents=1),
]


class Lun:
    """A LUN of the array, with what is in its VDIs as the initiator has it."""

    def __init__(self, lab, image):
        self.lun = lab.lun(image)

    def content(self, uuid):
        """Of a VDI."""
        disk = Disk(os.path.realpath("/dev/disk/by-id/scsi-" + self.lun.scsi_id))
        try:
            vg = read_sr(disk).vg
            (lv,) = [lv for lv in vg.lvs if lv.name.endswith(uuid)]
            return lv_bytes(disk, vg, lv, 0, lv.extents * vg.extent_bytes)
        finally:
            disk.close()


def guest_data(label, content):
    """What a guest has written into a VDI: of a VHD all but what says whose child it is."""
    if label != "web root":
        return content
    guest = build_sr(VOLUMES, seed="day", size_bytes=SIZE).truth.volume("root").guest
    assert guest
    return b"".join(content[part.offset : part.end] for part in guest)


def new_vm(pool, name, *vdis, **fields):
    vm = pool.db.create("VM", name_label=name, **fields)
    running = fields.get("power_state") == "Running"
    for device, vdi in enumerate(vdis):
        pool.db.create("VBD", VM=vm, VDI=vdi, userdevice=str(device), currently_attached=running)
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


def test_copies_are_attached_lend_their_disks_and_are_discarded(lab, make_pool, standin_sees, say):
    pool = make_pool(hosts=("xs1",))
    image = lab.disk(build_sr(VOLUMES, seed="day", size_bytes=SIZE).disk, "original.img")
    array = Lun(lab, image)
    source = lab.target(array.lun)
    standin_sees(source)
    sr = introduce(pool, source, array.lun, image.sr.uuid, "Production")
    vdi = {row["name_label"]: ref for ref, row in pool.db.records("VDI", SR=sr).items()}
    web = new_vm(pool, "web", vdi["web root"], vdi["web data"], power_state="Running")
    db = new_vm(pool, "db", vdi["db tables"])
    then = {label: array.content(pool.db.get("VDI", ref, "uuid")) for label, ref in vdi.items()}
    copies = [Lun(lab, image.clone(f"clone{number}.img")) for number in (1, 2)]
    standin_sees(source, lab.target(*(copy.lun for copy in copies)))
    digest = lab.digest(array.lun)

    attached = say(pool, "attach", "--all", "--target", "127.0.0.1", "--yes", "--name", "copy")["luns"]
    luns = {row["name"]: next(copy for copy in copies if copy.lun.scsi_id == row["scsi_id"]) for row in attached}
    assert sorted(luns) == ["copy", "copy (2)"]
    made = say(pool, "clone", "copy", "--all", "--yes")["vms"]
    assert [(vm["name"]["old"], vm["status"]) for vm in made] == [("db", "cloned"), ("web", "cloned")]
    for label, vm, device in (("db tables", 0, 0), ("web root", 1, 0), ("web data", 1, 1)):
        new = made[vm]["disks"][device]["new"]
        assert guest_data(label, luns["copy"].content(new)) == guest_data(label, then[label])

    own = disks_of(pool, db)
    say(pool, "restore", "copy (2)", "db", "--yes")
    assert luns["copy (2)"].content(disks_of(pool, db)["0"]) == then["db tables"]
    say(pool, "restore", "--undo", "db", "--yes")
    assert disks_of(pool, db) == own

    gone = say(pool, "discard", "--all", "--with-vms", "--yes")["srs"]
    assert sorted(len(row["vms"]) for row in gone) == [0, 2]
    assert {row["name_label"] for row in pool.db.records("SR").values()} == {"Production"}
    assert disks_of(pool, web)["0"] == pool.db.get("VDI", vdi["web root"], "uuid")
    assert lab.digest(array.lun) == digest
    for pbd in pool.db.refs("PBD"):
        pool.storage.pbd_unplug("", pbd)
