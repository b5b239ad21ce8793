# SPDX-License-Identifier: LGPL-2.1-only
"""Who calls us at a pool: CloudStack, `relvmoiscsi pool`, and somebody with the command on a host's own disk.

Driver, initiator, target and LVM are real, xapi is simulated.
"""

import contextlib
import json
import os
import sys

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.lab import initiator, luns, prober
from kit.lab.command import HANGS, run, settle
from kit.lab.lio import Chap
from kit.lab.xapi import TOP, configure, introduce
from kit.pool import client
from kit.pool.cloudstack import CHAP_SECRET, CHAP_USER, IQN, STORAGE_HOST, CloudStack, supports_resign
from kit.pool.standin import Disk
from kit.reader import lv_bytes, read_sr
from kit.sparse import SparseDisk
from relvmoiscsi import cli
from relvmoiscsi.host.locks.lun_lock import lun_lock

USER = Chap("sm", "correct-horse-1")


@pytest.fixture
def pool(make_pool):
    """Of one host: each further one has the same calls made."""
    return make_pool(hosts=("xs1",))


# -- CloudStack's ResignatureCommand, call by call as its Java code makes them (docs/host.rst) ------------------------


def asked_by_cloudstack(pool, array, clone, **chap):
    assert supports_resign(pool.sm_list())
    details = {IQN: f"/{array.iqn}/{clone.number}", STORAGE_HOST: "127.0.0.1", **chap}
    with client.connected(pool, HANGS) as session:
        answer = CloudStack(session, pool.db.get("host", pool.master, "uuid")).resignature(details)
    assert answer.result, answer.details
    return answer


def test_a_lun_on_the_iqn_of_an_sr_in_use_ends_as_its_vdi(lab, pool, image, original, standin_sees):
    clone = lab.lun(image.clone("clone.img"), number=5)
    array, digest = lab.target(original), luns.digest(image)
    (old_vdi,) = [record.uuid for record in image.sr.mgt.records if not record.deleted]
    sr = lab.attach(array, original, image.sr.uuid)
    array.add_lun(clone)
    standin_sees(array)

    answer = asked_by_cloudstack(pool, array, clone)

    assert "MGT" in sr.active
    seen = prober.probe_device(initiator.device_of(clone.scsi_id))
    sr.detach()
    assert (answer.path, answer.size, seen.problems) == (seen.vdis[0].uuid, 268435456, ())
    assert answer.path != old_vdi
    assert pool.db.records("SR") == {} and pool.db.records("PBD") == {}
    assert luns.digest(image) == digest


def test_a_disk_with_three_snapshots_ends_as_one_vdi_with_chap(lab, pool, standin_sees):
    """A chain of four images, three of them hidden, and three snapshots: CloudStack counts one VDI, at once."""
    chain = random_chain(26, depth=4, snapshots=True, free=40, blocks=6)  # fills, a copy, a hole that is given away
    assert len(chain.snapshots) == 3
    clone = lab.lun(luns.from_disk(chain.disk, "snapshots.img"))
    copies = lab.target(clone, chap=USER)
    standin_sees(copies)
    configure(vdis="one")

    with lab.untouched(except_for=["records", "names:/etc/*", "files:/run/lock/*"]):
        answer = asked_by_cloudstack(pool, copies, clone, **{CHAP_USER: USER.user, CHAP_SECRET: USER.password})

    disk = SparseDisk.from_file(clone.path)
    assert read_sr(disk).problems == ()
    assert [record.uuid for record in read_sr(disk).mgt.records if not record.deleted] == [answer.path]
    assert flatten(disk, f"VHD-{answer.path}") == chain.flats[chain.leaf]
    assert answer.size == chain.flats[chain.leaf].size


# -- the command on a disk of a host: it asks xapi, takes the driver's locks, and leaves the original -----------------


def test_the_original_is_refused_and_its_clone_is_not(lab, make_pool, image, original, clone):
    pool = make_pool()
    for target in (lab.target(original), lab.target(clone)):
        initiator.login(target.iqn, target.portal)
    settle()
    disks = [initiator.device_of(lun.scsi_id) for lun in (original, clone)]
    sr = pool.db.create("SR", name_label="detached", type="ext", uuid=image.sr.uuid)
    by_id = "/dev/disk/by-id/scsi-" + original.scsi_id
    pool.db.create("PBD", SR=sr, host=pool.hosts[-1], device_config={"device": by_id})
    digest = luns.digest(original)

    def command(*words):
        return run(sys.executable, "-m", "relvmoiscsi", *words, check=False, env={"PYTHONPATH": TOP})

    refused = command("resignature", "--yes", disks[0])
    with lun_lock(clone.scsi_id):
        at_work = command("resignature", "--dry-run", disks[1])  # a run that is alive is no interrupted run
    told = command("resignature", "--dry-run", disks[1])
    may_be_it = command("resignature", "--yes", disks[1])  # no host has the SR attached
    done = command("resignature", "--yes", "--not-in-use", disks[1])

    assert may_be_it.status == 4 and "--not-in-use" in may_be_it.err
    assert refused.status == 4 and image.sr.uuid in refused.err and "--not-in-use" in refused.err
    assert luns.digest(original) == digest
    assert at_work.status == 4 and "did not become free in time" in at_work.err
    assert (told.status, done.status) == (4, 0) and "would be refused" in told.err, repr([told, done])
    assert command("undo", "--yes", disks[1]).status == 0


# -- the day after: copies of an SR are attached, VMs get their disks, the copies are discarded -----------------------

VOLUMES = [
    vhd("base", hidden=True, blocks=1, bat_entries=SMALL_BAT),
    vhd("root", parent="base", label="web root", blocks=1, bat_entries=SMALL_BAT),
    raw("data", label="web data", extents=1),
    raw("tables", label="db tables", extents=1),
]


def content(lun, uuid):
    """Of a VDI on a LUN, read from its blocks through the initiator."""
    with contextlib.closing(Disk(os.path.realpath("/dev/disk/by-id/scsi-" + lun.scsi_id))) as disk:
        vg = read_sr(disk).vg
        (lv,) = [lv for lv in vg.lvs if lv.name.endswith(uuid)]
        return lv_bytes(disk, vg, lv, 0, lv.extents * vg.extent_bytes)


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

    def ran(pool, *words):
        for name, value in pool.environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        status = cli.main(["pool", *words, "--json"])
        out, err = capsys.readouterr()
        assert status == 0, out + err
        return json.loads(out)

    return ran


def test_copies_are_attached_lend_their_disks_and_are_discarded(lab, pool, standin_sees, say):
    built = build_sr(VOLUMES, seed="day", size_bytes=96 << 20)
    image = luns.from_disk(built.disk, "original.img")
    array, copies = lab.lun(image), [lab.lun(image.clone(f"clone{number}.img")) for number in (1, 2)]
    source = lab.target(array)
    standin_sees(source)
    sr = introduce(pool, source, array, image.sr.uuid, "Production")
    vdi = {row["name_label"]: ref for ref, row in pool.db.records("VDI", SR=sr).items()}
    web = new_vm(pool, "web", vdi["web root"], vdi["web data"], power_state="Running")
    db = new_vm(pool, "db", vdi["db tables"])
    then = {label: content(array, pool.db.get("VDI", ref, "uuid")) for label, ref in vdi.items()}
    standin_sees(source, lab.target(*copies))
    digest = luns.digest(array)

    attached = say(pool, "attach", "--all", "--target", "127.0.0.1", "--yes", "--name", "copy")["attach_results"]
    by_name = {row["sr_name_label"]: copy for row in attached for copy in copies if copy.scsi_id == row["scsi_id"]}
    assert sorted(by_name) == ["copy", "copy (2)"]
    made = say(pool, "clone", "copy", "--all", "--same-networks", "--yes")["clone_results"]
    assert [(vm["old_name"], vm["status"]) for vm in made] == [("db", "cloned"), ("web", "cloned")]
    for label, vm, device in (("db tables", 0, 0), ("web data", 1, 1), ("web root", 1, 0)):
        found, before = content(by_name["copy"], made[vm]["disks"][device]["new_vdi"]), then[label]
        if label == "web root":  # of a VHD what a guest has written: all but what says whose child it is
            found, before = ([it[p.offset : p.end] for p in built.truth.volume("root").guest] for it in (found, before))
        assert found and found == before, label

    own = disks_of(pool, db)
    say(pool, "restore", "copy (2)", "db", "--yes")
    assert content(by_name["copy (2)"], disks_of(pool, db)["0"]) == then["db tables"]
    say(pool, "restore", "--undo", "db", "--yes")
    assert disks_of(pool, db) == own

    gone = say(pool, "discard", "--all", "--with-vms", "--yes")["discard_results"]
    assert sorted(len(row["destroyed_vm_names"]) for row in gone) == [0, 2]
    assert {row["name_label"] for row in pool.db.records("SR").values()} == {"Production"}
    assert disks_of(pool, web)["0"] == pool.db.get("VDI", vdi["web root"], "uuid")
    assert luns.digest(array) == digest
    for pbd in pool.db.refs("PBD"):
        pool.storage.pbd_unplug("", pbd)
