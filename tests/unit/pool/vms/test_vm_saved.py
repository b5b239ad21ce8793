# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs on their SR: made before the array's snapshot, read from the bare clone, and VMs made of them."""

import copy
import hashlib
import xml.etree.ElementTree as ET

import pytest

from kit.lun_world import World
from kit.pool import transfer
from kit.pool.errors import XenError
from kit.pool_lab import Image, lab_of_three
from relvmoiscsi import engine
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.saved_vms import NAME_LABEL
from relvmoiscsi.pool import luns, records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import choice, clone, inventory, ova_file, save_vms
from relvmoiscsi.pool.vms import transfer as transfer_of_client
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE
from relvmoiscsi.resignature.reading.volumes import saved as on_disk
from relvmoiscsi.sr_driver import probe

WHEN = "2026-11-22T12:00:00Z"


def save(lab, name="Production", when=WHEN):
    with connect(lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        return save_vms.save(calls, pool, found, records.find_sr(pool, name), when)


def on_lun(lab, scsi_id):
    disk = lab.world.lun(scsi_id).disk
    return on_disk(disk, engine.inspect(disk).lun)


def vdis(lab):
    return lab.pool.db.refs("VDI", name_label=NAME_LABEL, SR=lab.originals["Production"][1])


def test_a_copy_that_no_host_has_is_told_without_end(attached, monkeypatch):
    """xapi's handler fails before it takes the task, which then stays pending for ever."""
    monkeypatch.setattr(transfer_of_client, "VERDICT_SECONDS", 0.05)
    for pbd in attached.db.refs("PBD", SR=attached.sr):
        attached.db.set("PBD", pbd, "currently_attached", False)
    with pytest.raises(PoolFailure, match="answered 500 to GET /export_raw_vdi: .*NO_HOSTS_AVAILABLE"):
        attached.sources("web")


def test_a_copy_that_the_master_does_not_have_is_told_with_the_host_that_has_it(lab, attached):
    """xapi sends the client to a member. No handler takes the task there, so nobody waits for it."""
    for pbd in attached.db.refs("PBD", SR=attached.sr, host=lab.pool.master):
        attached.db.set("PBD", pbd, "currently_attached", False)
    with pytest.raises(PoolFailure, match=r"the host 192\.0\.2\.2 has\. Plug the SR on the master"):
        attached.sources("web")
    assert not attached.db.refs("task")


def test_a_save_whose_sr_leaves_every_host_ends_at_once(lab, office):
    """Where the SR is on no host any more, xapi ends the task of an import at once."""
    sr = lab.originals["Production"][1]

    def unplugs(name, _params):
        if name == "PUT /import_raw_vdi":
            lab.pool.api.before = None
            for pbd in office.db.refs("PBD", SR=sr):
                office.db.set("PBD", pbd, "currently_attached", False)

    lab.pool.api.before = unplugs
    with pytest.raises(PoolFailure, match="No running host has all SRs attached that PUT /import_raw_vdi needs"):
        save(lab)
    assert not office.db.refs("task", status="pending")


class Office:
    """ "web" with a vTPM and "db", saved, and a clone of the LUN."""

    def __init__(self, lab, **made):
        """`made`: what `made` gave of another one, which is in this lab's pool."""
        self.lab, self.db = lab, lab.pool.db
        self.__dict__.update(made)

    def make(self):
        lab = self.lab
        self.net = lab.network("office")
        root, data = (lab.vdi("Production", label)[0] for label in ("root disk", "data"))
        self.web = lab.vm("web", root, networks=[self.net], state="Running", ha_always_run=True)
        self.other = lab.vm("db", data)
        self.db.create("VTPM", VM=self.web, contents="a secret of a TPM")
        self.uuids = {vm: self.db.get("VM", vm, "uuid") for vm in (self.web, self.other)}
        self.saved = save(lab)
        self.clone = lab.clone("Production")
        return self

    def made(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("lab", "db")}

    def attach(self):
        (self.copy,) = self.lab.attach(self.clone)
        self.sr = self.db.by_uuid("SR", self.copy.sr_uuid)
        return self

    def sources(self, *names):
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            return save_vms.choose(found, save_vms.read(calls, inventory.copy_of(pool, found, self.sr)), names)

    def made_of(self, sources):
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            copy = inventory.copy_of(pool, found, self.sr)
            wish = choice.CloneRequest(date="then", run="r", jobs=1, patience=0.01)
            return clone.clone(calls, pool, found, copy, sources, wish)

    def then(self, *names, everything=False, **wanted):
        """VMs of the records on the copy."""
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            copy = inventory.copy_of(pool, found, self.sr)
            sources = save_vms.choose(found, save_vms.read(calls, copy), names, everything)
            wish = choice.CloneRequest(**{"date": "then", "run": "r", "jobs": 1, "patience": 0.01, **wanted})
            planned = clone.would(calls, pool, found, copy, sources, wish)
            return planned, clone.clone(calls, pool, found, copy, sources, wish)

    def delete(self, vm):
        """As an administrator does who wanted another one."""
        self.db.set("VM", vm, "power_state", "Halted")
        disks = [vbd["VDI"] for vbd in self.db.records("VBD", VM=vm).values()]
        self.lab.pool.api.vms.vm_destroy("", vm)
        for vdi in disks:
            self.db.destroy("VDI", vdi)


@pytest.fixture(scope="session")
def images(image_of_originals):
    """Of an office, and of one whose clone is attached."""
    with lab_of_three(World(), image_of_originals) as lab:
        office = Office(lab).make()
        saved = Image(lab, **office.made())
        office.attach()
        return saved, Image(lab, **office.made())


@pytest.fixture
def office(lab, images):
    return Office(lab, **images[0].put(lab))


@pytest.fixture
def attached(lab, images):
    return Office(lab, **images[1].put(lab))


def test_they_are_on_the_bare_clone_and_name_the_vms(office, lab):
    found = on_lun(lab, office.clone)

    assert [vm.name_label for vm in found.vms] == ["db", "web"] and found.when == WHEN
    assert [vm.uuid for vm in office.saved.vms] == [vm.uuid for vm in found.vms] and office.saved.failed == []
    assert found.vms[1].disks[0].vdi == lab.vdi("Production", "root disk")[1]["uuid"]
    assert found.sr_uuid == office.saved.sr and found.vms[1].power_state == "Running"
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        seen = {lun.scsi_id: lun for lun in luns.find(calls, pool, pool.portals(), 1)}
    assert (seen[office.clone].vms, seen[office.clone].vms_saved) == (("db", "web"), WHEN)


def test_no_secret_of_a_vtpm_is_on_the_lun(office, lab):
    disk = lab.world.lun(office.clone).disk
    assert b"a secret of a TPM" in transfer.export(lab.pool.db, office.web)
    found = on_lun(lab, office.clone)
    documents = found.documents([vm.uuid for vm in found.vms])
    assert not any(b"a secret of a TPM" in document or b"VTPM</" in document for document in documents.values())
    assert b"a secret of a TPM" not in disk.peek(0, disk.size_bytes)


def test_a_lun_without_them_has_none(lab):
    assert on_lun(lab, lab.clone("Testing")) is None


def test_the_next_save_takes_the_place_of_the_one_before(office, lab):
    (first,) = vdis(lab)
    lab.vm("third", lab.vdi("Production", "data")[0])
    save(lab, when="2026-11-23T12:00:00Z")
    (second,) = vdis(lab)

    assert first != second
    assert [vm.name_label for vm in on_lun(lab, lab.clone("Production")).vms] == ["db", "third", "web"]


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_there_is_always_one_that_reads(office, lab, deaths):
    for _ in deaths(lambda: save(lab, when="2026-11-23T12:00:00Z")):
        found = on_lun(lab, lab.originals["Production"][0])
        assert found is not None and len(found.vms) == 2
        save(lab, when="2026-11-24T12:00:00Z")
        assert len(vdis(lab)) == 1


def test_a_save_that_the_snapshot_has_caught_leaves_the_one_before(office, lab):
    vms = lab.pool.api.vms
    write = vms.write_vdi
    torn = []

    def half(vdi, content):
        write(vdi, content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        write(vdi, content[:700] + bytes(len(content) - 700))
        torn.append(lab.clone("Production"))
        write(vdi, content)

    vms.write_vdi = half
    save(lab, when="2026-11-23T12:00:00Z")
    assert on_lun(lab, torn[0]).when == WHEN
    assert on_lun(lab, lab.clone("Production")).when == "2026-11-23T12:00:00Z"


def test_what_reads_back_otherwise_is_not_kept(office, lab):
    vms = lab.pool.api.vms
    vms.write_vdi = lambda vdi, content: None
    with pytest.raises(PoolFailure, match="reads back different data than was written"):
        save(lab, when="later")
    assert len(vdis(lab)) == 1 and on_lun(lab, lab.clone("Production")).when == WHEN


def test_one_vm_whose_records_cannot_be_had_stops_no_other(office, lab):
    export = transfer.export

    def fails(db, vm, *more):
        if vm == office.web:
            raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", vm)
        return export(db, vm, *more)

    transfer.export = fails
    try:
        done = save(lab)
        assert [vm.name_label for vm in done.vms] == ["db"] and done.failed[0][0] == "web"
        lab.pool.db.set("VM", office.other, "is_a_template", True)
        with pytest.raises(PoolFailure, match="The pool exported no VM records"):
            save(lab)
    finally:
        transfer.export = export


def test_where_nothing_is_saved(office, lab):
    with pytest.raises(NotFound, match="No VM has a disk on the SR 'Testing'"):
        save(lab, "Testing")
    office.attach()
    with pytest.raises(Refused, match="is a copy: give the original SR"):
        save(lab, "Production 2026-11-22")
    lab.pool.db.create("SR", name_label="files", type="nfs")
    with pytest.raises(Refused, match="is not an LVM SR"):
        save(lab, "files")


# --- VMs of then


def test_vms_that_the_pool_has_no_more_are_there_again(office):
    office.delete(office.web)
    office.attach()
    planned, done = office.then(everything=True)

    assert [each.status for each in planned] == ["would be cloned"] * 2
    assert [(each.vm_name, each.status) for each in done] == [("db", MADE), ("web", MADE)]
    web = office.db.record("VM", office.db.by_uuid("VM", done[1].uuid))
    assert web["other_config"]["relvmoiscsi:clone-of"] == office.uuids[office.web]
    assert (web["VTPMs"], web["ha_always_run"], web["power_state"]) == ([], False, "Halted")
    assert [sr for sr, _ in office.lab.disks_of(office.db.by_uuid("VM", done[1].uuid)).values()] == [office.sr]
    assert planned[1].disks == done[1].disks and planned[1].networks == {"0": ("office", "office")}
    assert [each.status for each in office.then(everything=True)[1]] == [ALREADY] * 2


def test_with_the_records_of_then_and_not_of_now(office):
    office.db.set("VM", office.other, "name_label", "renamed since")
    office.db.create("VBD", VM=office.other, VDI=office.lab.vdi("Testing", "data")[0], userdevice="9")
    office.attach()
    (live,) = office.lab.clone_vms(office.copy.sr_uuid, "renamed since")
    assert live.status == FAILED
    _, (done,) = office.then("db")
    assert done.status == MADE and done.name == "db then" and len(done.disks) == 1


def test_a_network_of_then_that_is_gone_is_asked_for(office):
    office.delete(office.web)
    office.db.destroy("network", office.net)
    office.attach()
    planned, (done,) = office.then("web")
    assert planned[0].status == done.status == FAILED and isinstance(done.error, UsageError)
    assert "is not in the pool; use --network" in str(done.error)
    lab_net = office.lab.network("lab", wire=False)
    _, (done,) = office.then("web", isolated=lab_net, keep_mac=True)
    assert done.status == MADE and done.networks == {"0": ("office", "lab")}


def test_the_same_mac_is_not_given_beside_the_original(attached):
    _, (done,) = attached.then("web", keep_mac=True)
    assert done.status == FAILED and "is on the network 'office' already" in str(done.error)


def test_names_of_then(attached):
    with pytest.raises(NotFound, match="no saved VM with the UUID or the name 'wbe'"):
        attached.then("wbe")


def test_a_copy_without_records_says_so(office, lab):
    (office.copy,) = lab.attach(lab.clone("Testing"))
    office.sr = lab.pool.db.by_uuid("SR", office.copy.sr_uuid)
    with pytest.raises(NotFound, match="run `save-vms` before the next array snapshot"):
        office.then("web")
    office.attach()
    lab.pool.api.vms.write_vdi(office.db.refs("VDI", SR=office.sr, name_label=NAME_LABEL)[0], bytes(4 << 20))
    with pytest.raises(NotFound, match="There are no VM records"):
        office.then("web")


def test_the_mac_of_a_saved_vm_that_is_in_the_pool_again_is_refused(office, lab):
    """A backup tool has restored it, with its MAC and another UUID."""
    (vif,) = office.db.records("VIF", VM=office.web).values()
    office.attach().delete(office.web)
    again = lab.vm("web", lab.vdi("Testing", "data")[0], state="Running")
    office.db.create("VIF", VM=again, network=office.net, device="0", MAC=vif["MAC"])
    _, (done,) = office.then("web", keep_mac=True)
    assert done.status == FAILED and "is on the network 'office' already" in str(done.error)
    assert len(office.db.refs("VIF", MAC=vif["MAC"])) == 1


# --- what an earlier save has


def test_the_records_of_a_vm_that_is_busy_are_kept(office, lab):
    """Of the save before, whose VDI goes."""
    real = lab.pool.api.transfer._export

    def busy(query, body):
        if query.get("ref") == office.web:
            raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", office.web, "snapshot")
        return real(query, body)

    lab.pool.api.transfer._export = busy
    done = save(lab, when="2026-11-23T12:00:00Z")
    ((name, why),) = done.failed
    assert [vm.name_label for vm in done.vms] == ["db"] and name == "web"
    assert f"Its records of the save of {WHEN} are kept." in why
    assert len(vdis(lab)) == 1
    found = on_lun(lab, lab.clone("Production"))
    before = on_lun(lab, office.clone)
    assert sorted(vm.name_label for vm in found.vms) == ["db", "web"]
    (web,) = [vm.uuid for vm in found.vms if vm.name_label == "web"]
    assert found.documents([web]) == before.documents([web]) and web == office.uuids[office.web]


@pytest.mark.parametrize("second", [2, 1])
def test_two_saves_at_once_leave_one(office, lab, second):
    (first,) = vdis(lab)
    when = "2026-11-23T12:00:00Z"
    with connect(lab.where()) as calls, connect(lab.where()) as other:
        sr = records.find_sr(records.read(calls), "Production")
        a = save_vms._written(calls, sr, f"2 {when}", b"x" * 600)
        b = save_vms._written(other, sr, f"{second + 1} {when}", b"x" * 600)
        save_vms._drop_older(calls, sr, a)
        assert b in vdis(lab) or a in vdis(lab)
        save_vms._drop_older(other, sr, b)
    left = vdis(lab)
    assert len(left) == 1 and first not in left and (second == 1 or left == [b])


# --- whose clock


def test_a_save_of_a_client_whose_clock_was_ahead_is_not_the_last_for_ever(office, lab):
    save(lab, when="2027-11-22T12:00:00Z")  # a year ahead, once
    lab.vm("late", lab.vdi("Production", "data")[0])
    done = save(lab, when="2026-11-22T13:00:00Z")
    assert [lab.pool.db.get("VDI", ref, "uuid") for ref in vdis(lab)] == [done.vdi]
    scsi_id = lab.clone("Production")
    assert [vm.name_label for vm in on_lun(lab, scsi_id).vms] == ["db", "late", "web"]
    (office.copy,) = lab.attach(scsi_id)
    office.sr = lab.pool.db.by_uuid("SR", office.copy.sr_uuid)
    assert [each.vm_name for each in office.then(everything=True)[1]] == ["db", "late", "web"]


@pytest.mark.parametrize("mark", ["", "2031-01-01T00:00:00Z", "x 2031-01-01T00:00:00Z", "9" * 40 + " 2031"])
def test_what_has_no_serial_is_older(office, lab, mark):
    """Or the pool has lost its mark: then what is on the VDI counts."""
    (first,) = vdis(lab)
    lab.pool.db.set("VDI", first, "other_config", {save_vms.SAVED: mark} if mark else {})
    save(lab, when="2026-11-23T12:00:00Z")
    assert on_lun(lab, lab.clone("Production")).order == (2, "2026-11-23T12:00:00Z")
    assert len(vdis(lab)) == (1 if mark else 2)


def test_a_save_before_that_somebody_uses_stops_no_save(office, lab):
    (first,) = vdis(lab)
    real = lab.pool.api.transfer._export_raw

    def busy(query, body):
        if query["vdi"] == first:
            raise XenError("VDI_IN_USE", first, "export")
        return real(query, body)

    lab.pool.api.transfer._export_raw = busy
    save(lab, when="2026-11-23T12:00:00Z")
    assert on_lun(lab, lab.clone("Production")).order == (2, "2026-11-23T12:00:00Z")


def test_records_that_are_too_many_are_not_saved(office, lab, monkeypatch):
    before = vdis(lab)
    monkeypatch.setattr(saved_vms, "MOST_INDEX_BYTES", 100)
    with pytest.raises(Refused, match="too large to be read back"):
        save(lab, when="2026-11-23T12:00:00Z")
    monkeypatch.setattr(saved_vms, "MOST_RECORDS_BYTES", 100)
    with pytest.raises(PoolFailure, match="too many to save"):
        save(lab, when="2026-11-23T12:00:00Z")
    assert vdis(lab) == before


# --- what somebody has written who is no save-vms


def put(lab, vdi, content):
    size = int(lab.pool.db.get("VDI", vdi, "virtual_size"))
    lab.pool.api.vms.write_vdi(vdi, content + bytes(size - len(content)))


def forged(index):
    header = saved_vms.SavedHeader(bytes(512)).replace(magic=saved_vms.MAGIC, version=1, index_length=len(index))
    header = header.replace(length=len(index), digest=hashlib.sha256(index).digest())
    return bytes(header.replace(crc=saved_vms._crc(header))) + index


def test_a_hostile_one_keeps_no_lun_from_being_probed_and_attached(office, lab):
    """A vm-admin may write there, or a guest on which it is hung."""
    (vdi,) = vdis(lab)
    put(lab, vdi, forged(b"[" * 200000))
    scsi_id = lab.clone("Production")
    assert "<state>" in probe.document(lab.world.lun(scsi_id).disk, scsi_id)
    assert on_lun(lab, scsi_id) is None
    (copy,) = lab.attach(scsi_id)
    assert copy.error is None
    save(lab, when="2026-11-23T12:00:00Z")
    assert on_lun(lab, lab.clone("Production")).order == (2, "2026-11-23T12:00:00Z")


def test_a_disk_of_that_name_that_is_too_large_is_not_read(lab, attached):
    (vdi,) = attached.db.refs("VDI", SR=attached.sr, name_label=NAME_LABEL)
    attached.db.set("VDI", vdi, "virtual_size", 1 << 40)
    with pytest.raises(NotFound, match="There are no VM records"):
        attached.then("web")
    assert "GET /export_raw_vdi" not in lab.pool.api.calls[-5:]


def struct_of(value):
    return value.find("struct")


def objects_of(root):
    (found,) = [each.find("value") for each in struct_of(root) if each.find("name").text == "objects"]
    return found.findall("array/data/value")


def second_objects(root, original):
    """Behind `objects` another list, by a name that xapi takes for the same: the edit would never see it."""
    (member,) = [each for each in struct_of(original) if each.find("name").text == "objects"]
    member.find("name").text = "Objects"
    struct_of(root).append(member)


def second_snapshots(root, original):
    for mine, other in zip(objects_of(root), objects_of(original)):
        (member,) = [each for each in struct_of(other) if each.find("name").text == "snapshot"]
        member.find("name").text = "Snapshot"
        struct_of(mine).append(member)


def second_field(root, original):
    """Releases of xapi differ in which of two counts."""
    for each in objects_of(root):
        (record,) = [member.find("value") for member in struct_of(each) if member.find("name").text == "snapshot"]
        (member,) = [one for one in struct_of(record) if one.find("name").text == "uuid"]
        struct_of(record).append(copy.deepcopy(member))


def second_id(root, original):
    for each in objects_of(root):
        for member in struct_of(each):
            if member.find("name").text == "id":
                member.find("value").text = "Ref:0"


def coded_class(root, original):
    (member,) = [one for one in struct_of(objects_of(root)[0]) if one.find("name").text == "class"]
    member.find("value").text = None
    ET.SubElement(member.find("value"), "base64").text = "VkRJ"


@pytest.mark.parametrize("trick", [second_objects, second_snapshots, second_field, second_id, coded_class])
def test_no_saved_records_lead_to_the_original(attached, lab, monkeypatch, trick):
    """What one reader takes otherwise than another is never given to xapi."""
    (source,) = attached.sources("web")
    root = ET.fromstring(source.document)
    trick(root, ET.fromstring(source.document))
    source = source._replace(document=ET.tostring(root, encoding="unicode").encode())
    before = lab.pool.db.refs("VM")
    (done,) = attached.made_of([source])
    assert done.status == FAILED and "they are ambiguous" in str(done.error)
    assert lab.pool.db.refs("VM") == before and not lab.pool.api.transfer.imports


def test_records_that_are_nested_deeply_are_refused():
    nested = b"<value><struct><member><name>version</name>" * 5000 + b"<value/>"
    nested += b"</member></struct></value>" * 5000
    with pytest.raises(Refused, match="they are ambiguous"):
        ova_file.Ova(nested)
