# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs on their SR: made before the array's snapshot, read from the bare clone, and VMs made of them."""

import copy
import hashlib
import json
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.lun_world import World
from kit.pool import transfer
from kit.pool.errors import XenError
from kit.pool_lab import Image, lab_of_three
from kit.pool_verbs import unlock
from relvmoiscsi import engine
from relvmoiscsi.errors import Busy, FormatError, NotFound, Refused, UsageError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.formats.saved_vms import NAME_LABEL
from relvmoiscsi.pool import lun_search, records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import checked_export, choice, clone, inventory, ova_file, owners, records_key, save_vms
from relvmoiscsi.pool.vms import transfer as transfer_of_client
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.resignature.reading.volumes import saved as on_disk
from relvmoiscsi.sr_driver import probe

ANOTHER = "aaaaaaaa-0000-4000-8000-000000000000"  #: UUID of a VM, or of a VDI
WHEN, LATER, STILL_LATER = (f"2026-11-{day}T12:00:00Z" for day in (22, 23, 24))


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
        self.saved, _, self.failed = self.save(WHEN)
        self.clone = lab.clone("Production")
        return self

    def made(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("lab", "db")}

    def save(self, when=LATER, name="Production"):
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            return save_vms.save(calls, pool, found, records.find_sr(pool, name), when)

    def vdis(self):
        """References of the VDIs with records on the original."""
        return self.db.refs("VDI", name_label=NAME_LABEL, SR=self.lab.originals["Production"][1])

    def on_lun(self, scsi_id=""):
        """The records on this LUN, or on a clone of today."""
        disk = self.lab.world.lun(scsi_id or self.lab.clone("Production")).disk
        return on_disk(disk, engine.inspect(disk).lun)

    def whole(self, scsi_id=""):
        """The same with the records themselves."""
        disk = self.lab.world.lun(scsi_id or self.lab.clone("Production")).disk
        lun = engine.inspect(disk).lun
        name = on_disk(disk, lun).volume
        (volume,) = (volume for volume in lun.volumes if volume.name.text == name)
        content = b"".join(disk.read(lun.vg.ranges(volume.lv, 0, volume.size)))
        return saved_vms.unpack(saved_vms.read_header(content, name), content[512:], name)

    def on_lun_of_pool(self):
        """The records on the original that the pool knows."""
        with connect(self.lab.where()) as calls:
            key, sr = records_key.find(calls), self.lab.originals["Production"][1]
            found = [
                save_vms._read(calls, ref, vdi, {})
                for ref, vdi in calls.records("VDI", SR=sr).items()
                if save_vms.is_named(vdi)
            ]
        return max((one for one in found if one is not None and one.is_sealed_by(key)), key=lambda one: one.order)

    def names(self, scsi_id=""):
        return [vm.name_label for vm in self.on_lun(scsi_id).vms]

    def attach(self, scsi_id=""):
        (self.copy,) = self.lab.attach(scsi_id or self.clone)
        self.sr = self.db.by_uuid("SR", self.copy.sr_uuid)
        return self

    def with_copy(self, work):
        """What `work` gives of (calls, pool, found, copy)."""
        with connect(self.lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            return work(calls, pool, found, owners.copy_of(pool, found, self.sr))

    def sources(self, *names, everything=False, trusted=""):
        return self.with_copy(
            lambda calls, pool, found, copy: save_vms.choose(
                pool, found, copy, save_vms.read(calls, copy, trusted), names, everything
            )
        )

    def made_of(self, sources, work=clone.clone, **wanted):
        wish = choice.CloneRequest(**{"run": "r", "jobs": 1, "patience": 0.01, **wanted})

        def made(calls, pool, found, copy):
            known = (pool, found) if work is clone.would else (pool,)
            return work(calls, *known, copy, sources, wish)

        return self.with_copy(made)

    def then(self, *names, everything=False, **wanted):
        """VMs of the records on the copy: those that would be made, and those that were."""
        sources = self.sources(*names, everything=everything)
        return self.made_of(sources, clone.would, **wanted), self.made_of(sources, **wanted)

    def then_one(self, name, **wanted):
        _, (done,) = self.then(name, **wanted)
        return done

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


# --- saved


def test_they_are_on_the_bare_clone_and_name_the_vms(office, lab):
    found = office.on_lun(office.clone)
    assert [vm.name_label for vm in found.vms] == ["db", "web"] and found.when == WHEN
    assert [vm.uuid for vm in office.saved.vms] == [vm.uuid for vm in found.vms] and office.failed == {}
    assert found.vms[1].disks[0].vdi == lab.vdi("Production", "root disk")[1]["uuid"]
    assert found.sr_uuid == office.saved.sr_uuid and found.vms[1].power_state == "Running"
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        seen = {lun.scsi_id: lun for lun in lun_search.find(calls, pool, pool.portals(), 1)}
    assert (seen[office.clone].vms, seen[office.clone].vms_saved) == (("db", "web"), WHEN)
    assert office.on_lun(lab.clone("Testing")) is None


def test_no_secret_of_a_vtpm_is_on_the_lun(office, lab):
    disk = lab.world.lun(office.clone).disk
    assert b"a secret of a TPM" in transfer.export(lab.pool.db, office.web)
    found = office.whole(office.clone)
    documents = found.documents([vm.uuid for vm in found.vms])
    assert not any(b"a secret of a TPM" in document or b"VTPM</" in document for document in documents.values())
    assert b"a secret of a TPM" not in disk.peek(0, disk.size_bytes)


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_there_is_always_one_that_reads(office, lab, deaths):
    for _ in deaths(office.save):
        found = office.on_lun(lab.originals["Production"][0])
        assert found is not None and len(found.vms) == 2
        lab.later()
        office.save(STILL_LATER)
        assert len(office.vdis()) == 1


def test_a_save_that_the_snapshot_has_caught_leaves_the_one_before(office, lab):
    write, torn = lab.pool.api.vms.write_vdi, []

    def half(vdi, content):
        write(vdi, content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        for cut in (700, content.rindex(content[:512])):
            write(vdi, content[:cut] + bytes(len(content) - cut))
            torn.append(lab.clone("Production"))
        write(vdi, content)

    lab.pool.api.vms.write_vdi = half
    office.save()
    assert [office.on_lun(each).when for each in torn] == [WHEN, WHEN] and office.on_lun().when == LATER


def test_what_reads_back_otherwise_is_not_kept(office, lab):
    lab.pool.api.vms.write_vdi = lambda vdi, content: None
    with pytest.raises(PoolFailure, match="reads back different data than was written"):
        office.save()
    assert len(office.vdis()) == 1 and office.on_lun().when == WHEN


@pytest.fixture
def busy(lab, monkeypatch):
    """From now on the pool refuses an export of this VM, or of this VDI."""

    def busy(ref, what="_export", key="ref"):
        real = getattr(lab.pool.api.transfer, what)

        def export(query, body):
            if query.get(key) == ref:
                raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", ref, "snapshot")
            return real(query, body)

        monkeypatch.setattr(lab.pool.api.transfer, what, export)

    return busy


def test_a_vm_that_is_busy_stops_no_other_and_keeps_the_records_of_the_save_before(office, busy):
    """Whose VDI goes."""
    busy(office.web)
    saved, _, failed = office.save()
    ((name, why),) = failed.values()
    assert [vm.name_label for vm in saved.vms if vm.uuid not in failed] == ["db"] and name == "web"
    assert f"Its records of the save of {WHEN} are kept." in why and len(office.vdis()) == 1
    found, before, web = office.whole(), office.whole(office.clone), office.uuids[office.web]
    assert sorted(vm.name_label for vm in found.vms) == ["db", "web"]
    assert found.documents([web]) == before.documents([web])
    office.db.set("VM", office.other, "is_a_template", True)
    with pytest.raises(PoolFailure, match="The pool exported no VM records"):
        office.save()


def test_where_nothing_is_saved(attached, lab):
    lab.pool.db.create("SR", name_label="files", type="nfs")
    for name, said in (
        ("Testing", "No VM has a disk on the SR 'Testing'"),
        ("Production changed 2026-11-21", "is a copy. Give the original SR"),
        ("files", "is not an LVM SR"),
    ):
        with pytest.raises((NotFound, Refused), match=said):
            attached.save(name=name)


def test_records_that_are_too_many_are_not_saved(office, monkeypatch):
    before = office.vdis()
    monkeypatch.setattr(saved_vms, "MOST_RECORDS_BYTES", 100)
    with pytest.raises(PoolFailure, match="too many to save"):
        office.save()
    assert office.vdis() == before


def test_a_save_whose_sr_leaves_every_host_ends_at_once(office, lab):
    """Where the SR is on no host any more, xapi ends the task of an import at once."""
    lab.before("PUT /import_raw_vdi", lambda: no_longer_plugged(office, lab.originals["Production"][1]))
    with pytest.raises(PoolFailure, match="No running host has all SRs attached that PUT /import_raw_vdi needs"):
        office.save()
    assert not office.db.refs("task", status="pending")


# --- two saves, and whose clock


def test_a_save_during_another_is_refused(office, lab):
    """Both ended well, and the first named a VDI that the second had destroyed."""
    refused = []

    def again():
        with pytest.raises(Busy, match="Another client has locked .* .relvmoiscsi pool save-vms. of "):
            office.save(STILL_LATER)
        refused.append(True)

    lab.before("Async.VDI.create", again)
    _, vdi, _ = office.save()
    assert refused and [lab.pool.db.get("VDI", ref, "uuid") for ref in office.vdis()] == [vdi]
    office.save(STILL_LATER)


@pytest.mark.parametrize(("method", "made"), [("SR.get_other_config", 0), ("Async.VDI.create", 1)])
def test_a_save_whose_lock_was_broken_destroys_no_earlier_one(office, lab, method, made):
    (first,) = office.vdis()
    lab.before(method, lambda: unlock(office))
    with pytest.raises(Refused, match="Another client has broken this run's lock"):
        office.save()
    assert first in office.vdis() and len(office.vdis()) == 1 + made


@pytest.mark.parametrize("second", [2, 1])
def test_two_saves_at_once_leave_one(office, lab, second):
    (first,) = office.vdis()
    with connect(lab.where()) as calls, connect(lab.where()) as other:
        sr = records.find_sr(records.read(calls), "Production")
        a = save_vms._written(calls, sr, f"2 {LATER}", b"x" * 600)
        b = save_vms._written(other, sr, f"{second + 1} {LATER}", b"x" * 600)
        save_vms._drop_older(calls, sr, a)
        assert b in office.vdis() or a in office.vdis()
        save_vms._drop_older(other, sr, b)
    left = office.vdis()
    assert len(left) == 1 and first not in left and (second == 1 or left == [b])


def test_a_save_of_a_client_whose_clock_was_ahead_is_not_the_last_for_ever(office, lab):
    office.save("2027-11-22T12:00:00Z")  # a year ahead, once
    lab.vm("late", lab.vdi("Production", "data")[0])
    _, vdi, _ = office.save()
    assert [lab.pool.db.get("VDI", ref, "uuid") for ref in office.vdis()] == [vdi]
    scsi_id = lab.clone("Production")
    assert office.names(scsi_id) == ["db", "late", "web"]
    made = office.attach(scsi_id).then(everything=True)[1]
    assert [each.vm_name for each in made] == ["db", "late", "web"]


@pytest.mark.parametrize("mark", ["", "x 2031-01-01T00:00:00Z", "9" * 40 + " 2031"])
def test_what_has_no_serial_is_older(office, mark):
    """Or the pool has lost its mark: then what is on the VDI counts."""
    (first,) = office.vdis()
    office.db.set("VDI", first, "other_config", {save_vms.SAVED: mark} if mark else {})
    office.save()
    assert office.on_lun().order == (2, LATER) and len(office.vdis()) == (1 if mark else 2)


def test_a_save_before_that_somebody_uses_stops_no_save(office, busy):
    busy(office.vdis()[0], "_export_raw", "vdi")
    office.save()
    assert office.on_lun().order == (2, LATER)


def test_a_save_before_that_stays_plugged_is_not_destroyed_and_a_person_is_told(office, lab):
    """xapi ends a transfer as a success where it cannot unplug the VDI from dom0 after it."""
    (first,) = office.vdis()
    uuid = office.db.get("VDI", first, "uuid")
    dom0 = office.db.create("VM", name_label="Control domain on host: xs1", is_control_domain=True)
    office.db.create("VBD", VM=dom0, VDI=first, userdevice="0", currently_attached=True)
    with connect(lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), LATER)
        (note,) = calls.notes
    assert first in office.vdis() and office.on_lun().order == (2, LATER)
    assert note == (
        f"The VDI {uuid} of an earlier save was not destroyed: a VM or dom0 has it attached. "
        f"`xe vbd-list vdi-uuid={uuid}` shows where."
    )


# --- VMs of then


def test_vms_that_the_pool_has_no_more_are_there_again(office):
    office.delete(office.web)
    office.attach()
    planned, done = office.then(everything=True)
    assert [each.status for each in planned] == ["would be cloned"] * 2
    assert [(each.vm_name, each.status) for each in done] == [("db", MADE), ("web", MADE)]
    ref = office.db.by_uuid("VM", done[1].uuid)
    web = office.db.record("VM", ref)
    assert web["other_config"]["relvmoiscsi:clone-of"] == office.uuids[office.web]
    assert (web["VTPMs"], web["ha_always_run"], web["power_state"]) == ([], False, "Halted")
    assert [sr for sr, _ in office.lab.disks_of(ref).values()] == [office.sr]
    assert planned[1].disks == done[1].disks and planned[1].networks == {"0": ("office", "office")}
    assert [each.status for each in office.then(everything=True)[1]] == [ALREADY] * 2
    with pytest.raises(NotFound, match=r"There is no saved VM 'wbe'. Did you mean 'web'\? Saved are .*web"):
        office.then("wbe")


def test_with_the_records_of_then_and_not_of_now(office):
    office.db.set("VM", office.other, "name_label", "renamed since")
    office.db.create("VBD", VM=office.other, VDI=office.lab.vdi("Testing", "data")[0], userdevice="9")
    office.attach()
    (live,) = office.lab.clone_vms(office.copy.sr_uuid, "renamed since")
    assert live.status == FAILED
    done = office.then_one("db")
    assert done.status == MADE and done.name == "db on Production changed 2026-11-21" and len(done.disks) == 1


def test_a_network_of_then_that_is_gone_is_asked_for(office):
    office.delete(office.web)
    office.db.destroy("network", office.net)
    planned, (done,) = office.attach().then("web")
    assert planned[0].status == done.status == FAILED and isinstance(done.error, UsageError)
    assert "is not in the pool. Use --network" in str(done.error)
    done = office.then_one("web", isolated=office.lab.network("lab", wire=False), keep_mac=True)
    assert done.status == MADE and done.networks == {"0": ("office", "lab")}


@pytest.mark.parametrize("is_other", [False, True])
def test_the_same_mac_is_not_given_beside_the_original_or_the_vm_that_a_backup_tool_has_restored(attached, is_other):
    """With its MAC and another UUID."""
    (vif,) = attached.db.records("VIF", VM=attached.web).values()
    if is_other:
        attached.delete(attached.web)
        again = attached.lab.vm("web", attached.lab.vdi("Testing", "data")[0], state="Running")
        attached.db.create("VIF", VM=again, network=attached.net, device="0", MAC=vif["MAC"])
    done = attached.then_one("web", keep_mac=True)
    assert done.status == FAILED and "is on the network 'office' already" in str(done.error)
    assert len(attached.db.refs("VIF", MAC=vif["MAC"])) == 1


def of_copy(office):
    return office.db.refs("VDI", SR=office.sr, name_label=NAME_LABEL)[0]


def overwritten(office):
    office.lab.pool.api.vms.write_vdi(of_copy(office), bytes(4 << 20))


def too_large(office):
    office.db.set("VDI", of_copy(office), "virtual_size", 1 << 40)


@pytest.mark.parametrize(("happens", "is_read"), [(overwritten, True), (too_large, False)])
def test_a_copy_without_records_says_so(attached, happens, is_read):
    happens(attached)
    attached.lab.pool.api.calls.clear()
    with pytest.raises(
        NotFound,
        match="There are no VM records.* Before the next array snapshot, run `relvmoiscsi pool save-vms [0-9a-f-]{36}`",
    ):
        attached.then("web")
    assert ("GET /export_raw_vdi" in attached.lab.pool.api.calls) == is_read


def no_longer_plugged(office, sr, **host):
    for pbd in office.db.refs("PBD", SR=sr, **host):
        office.db.set("PBD", pbd, "currently_attached", False)


@pytest.mark.parametrize(
    ("of_master", "said"),
    [
        # xapi's handler fails before it takes the task, which then stays pending for ever
        (False, "answered 500 to GET /export_raw_vdi: .*NO_HOSTS_AVAILABLE"),
        # xapi sends the client to a member, and no handler takes the task there
        (True, r"the host 192\.0\.2\.2 has it\. Plug the SR on the host at http://127\.0\.0\.1:\d+, then"),
    ],
)
def test_a_copy_that_no_host_has_or_not_the_master_is_told_without_end(attached, monkeypatch, of_master, said):
    monkeypatch.setattr(transfer_of_client, "VERDICT_SECONDS", 0.05)
    no_longer_plugged(attached, attached.sr, **({"host": attached.lab.pool.master} if of_master else {}))
    with pytest.raises(PoolFailure, match=said):
        attached.sources("web")
    assert not attached.db.refs("task")


def test_in_the_dom0_of_a_member_without_the_sr_no_host_is_called_the_master(attached, monkeypatch):
    """Its handlers send the client to a host with the SR, which may be the master."""
    db, master = attached.db, attached.lab.pool.master
    member = next(host for host in db.refs("host") if host != master)
    monkeypatch.setattr(attached.lab.pool.api.transfer, "host", member)
    monkeypatch.setattr(transfer_of_client, "VERDICT_SECONDS", 0.05)
    no_longer_plugged(attached, attached.sr, host=member)
    with pytest.raises(PoolFailure, match=f"the host {db.get('host', master, 'address')} has it") as caught:
        attached.sources("web")
    assert "master" not in str(caught.value)


PAGES = {
    "many beginnings of a tag": b"<" * (8 << 20),  # where each looks for an end: hours
    "a number of 5000 digits": b"&#" + b"9" * 5000 + b";",
}


@pytest.mark.parametrize("name", PAGES)
def test_an_error_page_of_a_stranger_ends_in_a_sentence(attached, monkeypatch, name):
    monkeypatch.setattr(transfer_of_client, "VERDICT_SECONDS", 0.05)
    monkeypatch.setattr(transfer, "_page", lambda *_: PAGES[name])
    no_longer_plugged(attached, attached.sr)
    with pytest.raises(PoolFailure, match="answered 500 to GET /export_raw_vdi") as caught:
        attached.sources("web")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("place", ["http://[", "", "x" * 9999])
def test_a_redirect_to_no_url_ends_in_a_sentence(attached, monkeypatch, place):
    real = attached.lab.pool.api.transfer.answer
    redirect = (302, place.encode())
    monkeypatch.setattr(
        attached.lab.pool.api.transfer, "answer", lambda *words: redirect if "raw" in str(words) else real(*words)
    )
    monkeypatch.setattr(transfer_of_client, "VERDICT_SECONDS", 0.05)
    with pytest.raises(PoolFailure, match="The SR of the VDI is not attached") as caught:
        attached.sources("web")
    assert len(str(caught.value)) < 600


# --- what somebody has written who is no save-vms


def forged(index):
    header = saved_vms.SavedHeader(bytes(512)).replace(magic=saved_vms.MAGIC, version=1, index_length=len(index))
    header = header.replace(length=len(index), digest=hashlib.sha256(index).digest())
    header = bytes(header.replace(crc=saved_vms._crc(header)))
    return header + index + header


def named_as_records(office, sr, count):
    """Someone makes VDIs with the name of saved records, of the largest size that is read."""
    for _ in range(count):
        office.db.create("VDI", SR=sr, name_label=NAME_LABEL, virtual_size=saved_vms.MOST_VDI_BYTES, managed=True)


def test_vdis_with_the_name_of_records_are_not_all_read_and_a_person_names_the_one(attached):
    honest = attached.db.get("VDI", of_copy(attached), "uuid")
    named_as_records(attached, attached.sr, 4)
    attached.db.create("VDI", SR=attached.sr, name_label=NAME_LABEL, virtual_size=-(2**63))  # takes none from the sum
    attached.lab.pool.api.calls.clear()
    with pytest.raises(Refused, match=r"5 VDIs .* too large to be read all: '[0-9a-f-]{36}' \(.*--trust-records"):
        attached.sources("web")
    assert "GET /export_raw_vdi" not in attached.lab.pool.api.calls
    (source,) = attached.sources("web", trusted=honest)
    assert source.is_known


def test_records_that_are_taken_over_again_keep_the_time_of_their_own_save(office, busy):
    """The message named the save before, and the records were older by any number of saves."""
    busy(office.web)
    for when in (LATER, STILL_LATER):
        saved, _, failed = office.save(when)
        assert f"Its records of the save of {WHEN} are kept." in failed[office.uuids[office.web]][1]
        assert {vm.name_label: vm.saved_at for vm in saved.vms} == {"db": "", "web": WHEN}


@pytest.fixture
def in_use(lab):
    """A tenant's VM runs on a member with its own disk, which has the name of records, on this SR."""

    def in_use(sr):
        vdi = lab.pool.db.create(
            "VDI", SR=sr, name_label=NAME_LABEL, managed=True, virtual_size=8 << 20, uuid=ANOTHER, location=ANOTHER
        )
        member = next(host for host in lab.pool.db.refs("host") if host != lab.pool.master)
        lab.vm("tenant", vdi, state="Running", resident_on=member)

    return in_use


def test_a_vdi_in_use_with_the_name_of_records_stops_no_save(office, busy, in_use):
    """Where one VM cannot be exported, its records of the save before are looked for on each such VDI."""
    in_use(office.lab.originals["Production"][1])
    busy(office.web)
    _, _, failed = office.save()
    assert f"Its records of the save of {WHEN} are kept." in failed[office.uuids[office.web]][1]
    assert office.names() == ["db", "tenant", "web"]


def test_a_save_before_that_cannot_be_read_is_not_destroyed_while_its_records_are_needed(office, busy):
    (first,) = office.vdis()
    busy(first, "_export_raw", "vdi")
    busy(office.web)
    with connect(office.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        _, _, failed = save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), LATER)
        (note,) = calls.notes
    assert list(failed) == [office.uuids[office.web]] and first in office.vdis()
    assert f"cannot be read: '{office.db.get('VDI', first, 'uuid')}'. The VDI '" in note
    assert office.names() == ["db"]


def test_a_vdi_in_use_with_the_name_of_records_stops_no_clone_of_saved_records(attached, in_use):
    in_use(attached.sr)
    with connect(attached.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        saved, is_known = save_vms.read(calls, owners.copy_of(pool, found, attached.sr))
        (note,) = calls.notes
    assert saved.when == WHEN and is_known
    assert note.startswith(f"Other records may be on VDIs that cannot be read: '{ANOTHER}'. The VDI '{ANOTHER}'")


@pytest.mark.parametrize("trusted", ["", ANOTHER])
def test_where_the_only_vdi_with_the_name_of_records_cannot_be_read_the_error_names_it(attached, in_use, trusted):
    if not trusted:
        attached.db.destroy("VDI", of_copy(attached))
    in_use(attached.sr)
    with pytest.raises(
        PoolFailure, match=f"The VDI '{ANOTHER}' has the name .* not available .* Detach the VDI from its VM"
    ):
        attached.sources("web", trusted=trusted)


def test_a_save_that_needs_the_saves_before_reads_not_all_vdis_with_their_name(office, busy):
    named_as_records(office, office.lab.originals["Production"][1], 4)
    busy(office.web)
    with pytest.raises(Refused, match=r"Nothing was made. Destroy the VDIs that no save has made"):
        office.save()


def test_a_hostile_one_keeps_no_lun_from_being_probed_and_attached(office, lab):
    """A vm-admin may write there, or a guest on which it is hung."""
    (vdi,) = office.vdis()
    content, size = forged(b"[" * 200000), int(lab.pool.db.get("VDI", vdi, "virtual_size"))
    lab.pool.api.vms.write_vdi(vdi, content + bytes(size - len(content)))
    scsi_id = lab.clone("Production")
    assert "<state>" in probe.document(lab.world.lun(scsi_id).disk, scsi_id)
    assert office.on_lun(scsi_id) is None
    (copy,) = lab.attach(scsi_id)
    assert copy.error is None
    office.save()
    assert office.on_lun().order == (2, LATER)


def members(value):
    """{name: member} of the struct in an XML value."""
    return {each.find("name").text: each for each in value.find("struct")}


def objects_of(root):
    return members(root)["objects"].findall("value/array/data/value")


def second_objects(root, original):
    """Behind `objects` another list, by a name that xapi takes for the same: the edit would never see it."""
    member = members(original)["objects"]
    member.find("name").text = "Objects"
    root.find("struct").append(member)


def second_field(root, _original):
    """Releases of xapi differ in which of two counts."""
    for each in objects_of(root):
        record = members(each)["snapshot"].find("value")
        record.find("struct").append(copy.deepcopy(members(record)["uuid"]))


def second_id(root, _original):
    for each in objects_of(root):
        members(each)["id"].find("value").text = "Ref:0"


def coded_class(root, _original):
    value = members(objects_of(root)[0])["class"].find("value")
    value.text = None
    ET.SubElement(value, "base64").text = "VkRJ"


@pytest.mark.parametrize("trick", [second_objects, second_field, second_id, coded_class])
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


@pytest.mark.parametrize("size", [0, 599, 400000000000])
def test_a_vdi_of_another_size_than_asked_for_is_destroyed(office, monkeypatch, size):
    sr = office.lab.originals["Production"][1]
    with connect(office.lab.where()) as calls:
        before, call = set(office.db.refs("VDI")), calls.call
        answers = {"VDI.get_virtual_size": lambda _vdi: size}
        monkeypatch.setattr(
            calls, "call", lambda method, *words: answers.get(method, lambda *w: call(method, *w))(*words)
        )
        with pytest.raises(PoolFailure, match=f"made a VDI of {size} bytes for the 600 bytes"):
            save_vms._written(calls, sr, "x y", b"x" * 600)
    assert set(office.db.refs("VDI")) == before


# --- who has written them


def records_of(office, *, uuid="", disks=(), document=None, key=b"", serial=1000, sr=None):
    """The content of a VDI with a record that says that the VM `uuid` has these disks."""
    rows = tuple(saved_vms.SavedDisk(str(at), disk, "x") for at, disk in enumerate(disks))
    vm = saved_vms.SavedVm(uuid, "web", "Halted", rows)
    return saved_vms.pack(sr or office.original, "2099-01-01T00:00:00Z", serial, [saved_vms.packed(vm, document)], key)


def forge(office, content, sr=None, mark=""):
    """A tenant names his VDI so, and writes this."""
    config = {save_vms.SAVED: mark} if mark else {}
    sr = sr or office.lab.originals["Production"][1]
    with connect(office.lab.where()) as calls:
        made = save_vms._written(calls, sr, "x y", bytes(8 << 20))
    office.db.set("VDI", made, "other_config", config)
    office.lab.pool.api.vms.write_vdi(made, content + bytes(-len(content) % 4096))
    return made


def attack(office):
    """The tenant's records say that "web" has the disk of "db"."""
    office.original = office.db.get("SR", office.lab.originals["Production"][1], "uuid")
    with connect(office.lab.where()) as calls:
        read = records.read(calls), inventory.read(calls)
        document = checked_export.export(calls, *read, office.web, True, without=["VTPM"])
    (own,), (strange,) = ([uuid for _, uuid in office.lab.disks_of(vm).values()] for vm in (office.web, office.other))
    office.forged = document.replace(own.encode(), strange.encode())
    office.strange, office.own = strange, own
    office.evil = forge(
        office, records_of(office, uuid=office.uuids[office.web], disks=[strange], document=office.forged)
    )
    office.clone = office.lab.clone("Production")
    office.attach()


@pytest.fixture(scope="session")
def image_of_attack(images):
    with lab_of_three(World()) as lab:
        office = Office(lab, **images[0].put(lab))
        attack(office)
        return Image(lab, **office.made())


@pytest.fixture
def attacked(lab, image_of_attack):
    return Office(lab, **image_of_attack.put(lab))


def evil_on_copy(office):
    uuid = office.db.get("VDI", office.evil, "uuid")
    return derived_uuid(office.copy.sr_uuid, uuid)


def test_the_highest_serial_of_a_stranger_does_not_count(attacked):
    done = attacked.then_one("web")
    assert done.status == MADE and [disk.old for disk in done.disks] == [attacked.own]
    assert any(f"{attacked.own} (disk 0 of 'web' by the records) is a disk of the VM" in note for note in done.notes)


def test_records_of_an_unknown_writer_are_named_and_refused_and_their_claims_are_compared(attacked):
    """Where there is no key: after an upgrade, or in another pool."""
    attacked.db.set("pool", attacked.lab.pool.pool, "other_config", {})
    with pytest.raises(Refused, match=r"writer .* is unknown.*--trust-records") as refused:
        attacked.sources("web")
    assert evil_on_copy(attacked) in str(refused.value) and str(refused.value).count("fingerprint") == 2
    (source,) = attacked.sources("web", trusted=evil_on_copy(attacked))
    (done,) = attacked.made_of([source])
    assert done.status == FAILED and "is a disk of the VM 'db' in this pool" in str(done.error)
    honest = of_copy_with(attacked, "2026")
    sources = attacked.sources(everything=True, trusted=honest)
    assert [each.status for each in attacked.made_of(sources)] == [MADE, MADE]


@pytest.mark.parametrize("what", ["memory", "memory of a snapshot", "snapshot", "metadata", "nothing"])
def test_records_of_an_unknown_writer_for_a_vm_that_is_gone_get_no_vdi_that_a_vm_has(attacked, what):
    """The memory of a suspended VM has its passwords. Neither memory nor the snapshot of a single VDI has a VBD."""
    db = attacked.db
    strange, gone = db.by_uuid("VDI", attacked.strange), "0a0b0c0d-0000-4000-8000-00000000000a"
    for vbd in db.refs("VBD", VDI=strange):
        db.destroy("VBD", vbd)
    if what == "memory":
        db.set("VM", attacked.other, "suspend_VDI", strange)
    elif what == "memory of a snapshot":
        db.set("VM", attacked.lab.snapshot(attacked.other, "yesterday"), "suspend_VDI", strange)
    elif what == "snapshot":
        disk = attacked.lab.vdi("Production", "before")[0]
        db.create("VBD", VM=attacked.other, VDI=disk, userdevice="1")
        db.set("VDI", strange, "snapshot_of", disk)
    elif what == "metadata":
        db.set("VDI", strange, "type", what)
    document = attacked.forged.replace(attacked.uuids[attacked.web].encode(), gone.encode())
    content = records_of(attacked, uuid=gone, disks=[attacked.strange], document=document)
    evil = evil_on_copy(attacked)
    attacked.lab.pool.api.vms.write_vdi(db.by_uuid("VDI", evil), content + bytes(-len(content) % 4096))
    (done,) = attacked.made_of(attacked.sources(gone, trusted=evil))
    assert done.status == (MADE if what == "nothing" else FAILED)
    says = {"nothing": "", "metadata": "is no disk of a VM, but of the type"}.get(what, "is a disk of the VM 'db'")
    assert says in str(done.error)


def of_copy_with(office, when):
    """The UUID of the VDI on the copy whose records are of this year."""
    for ref in office.db.refs("VDI", SR=office.sr, name_label=NAME_LABEL):
        if when in office.db.get("VDI", ref, "name_description"):
            return office.db.get("VDI", ref, "uuid")
    raise AssertionError


def test_in_another_pool_one_word_makes_the_vms(attacked):
    """The original SR, its VMs and its key are gone: all that is left is the copy."""
    attacked.db.set("pool", attacked.lab.pool.pool, "other_config", {})
    honest = of_copy_with(attacked, "2026")
    for vm in (attacked.web, attacked.other):
        attacked.delete(vm)
    sources = attacked.sources(everything=True, trusted=honest)
    done = attacked.made_of(sources)
    assert [(each.vm_name, each.status) for each in done] == [("db", MADE), ("web", MADE)]
    assert all(any("is a disk of no VM in this pool" in note for note in each.notes) for each in done)
    with pytest.raises(NotFound, match="no VM records on the VDI"):
        attacked.sources("web", trusted=attacked.own)


@pytest.mark.parametrize("owner", ["no VM", "this VM", "the pool has it no more"])
def test_a_snapshot_in_records_of_an_unknown_writer_gets_no_disk_that_the_vm_does_not_have(attacked, owner):
    """A disk of "db" that "db" has detached: VM.revert would give it to "web"."""
    strange = on_no_vm(attacked)
    snapshot = attacked.lab.snapshot(attacked.web, "before", strange)
    with connect(attacked.lab.where()) as calls:
        read = records.read(calls), inventory.read(calls)
        document = checked_export.export(calls, *read, attacked.web, True, without=["VTPM"])
    if owner != "this VM":
        attacked.lab.pool.api.vms.vm_destroy("", snapshot)
    if owner == "the pool has it no more":
        attacked.db.destroy("VDI", strange)
    content = records_of(attacked, uuid=attacked.uuids[attacked.web], disks=[attacked.own], document=document)
    evil = attacked.db.by_uuid("VDI", evil_on_copy(attacked))
    attacked.lab.pool.api.vms.write_vdi(evil, content + bytes(-len(content) % 4096))
    sources = attacked.sources("web", trusted=evil_on_copy(attacked))
    (planned,) = attacked.made_of(sources, clone.would, snapshots=True)
    if owner == "no VM":
        assert f"the VM has no disk '{attacked.strange}' in this pool" in str(planned.error)
        return
    new = derived_uuid(attacked.copy.sr_uuid, attacked.strange)
    assert [(each.name, [disk.new for disk in each.disks]) for each in planned.snapshots] == [("before", [new])]
    assert any(note.startswith(f"{attacked.strange} (disk 0 of 'web' by the records) is ") for note in planned.notes)


def twice(office):
    rows = [(saved_vms.SavedVm(uuid, name, "Halted", (saved_vms.SavedDisk("0", office.own, "x"),)), office.honest)
            for uuid, name in ((office.uuids[office.web], "web"), (ANOTHER, "wob"))]  # fmt: skip
    return saved_vms.pack(office.original, WHEN, 9, [saved_vms.packed(*each) for each in rows])


def other_index(office):
    return records_of(office, uuid=office.uuids[office.web], disks=[office.own], document=office.forged)


def other_vm(office):
    return records_of(office, uuid=ANOTHER, disks=[office.own], document=office.honest)


def no_longer(office):
    for vbd in office.db.refs("VBD", VM=office.web):
        office.db.destroy("VBD", vbd)
    return records_of(office, uuid=office.uuids[office.web], disks=[office.own], document=office.honest)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (twice, "other records claim the disk"),
        (other_index, "another VM, or other disks, than the index"),
        (other_vm, "another VM, or other disks, than the index"),
        (no_longer, "the VM has no disk .* in this pool"),
    ],
)
def test_what_contradicts_itself_or_the_pool_is_not_believed(attacked, content, said):
    attacked.honest = attacked.forged.replace(attacked.strange.encode(), attacked.own.encode())
    evil = attacked.db.by_uuid("VDI", evil_on_copy(attacked))
    written = content(attacked)
    attacked.lab.pool.api.vms.write_vdi(evil, written + bytes(-len(written) % 4096))
    attacked.db.set("pool", attacked.lab.pool.pool, "other_config", {})
    (source,) = attacked.sources("web", trusted=evil_on_copy(attacked))
    assert source.problem is not None and re.search(said, str(source.problem)), source.problem


def on_no_vm(office, kind="user", **fields):
    """The disk of "db" and its copy are of this type, and in no drive."""
    for uuid in (office.strange, derived_uuid(office.copy.sr_uuid, office.strange)):
        ref = office.db.by_uuid("VDI", uuid)
        for vbd in office.db.refs("VBD", VDI=ref):
            office.db.destroy("VBD", vbd)
        for name, value in {"type": kind, **fields}.items():
            office.db.set("VDI", ref, name, value)
    return office.db.by_uuid("VDI", office.strange)


def memory(office):
    """The image of the suspended "db", even where another client has changed its type."""
    office.db.set("VM", office.other, "suspend_VDI", on_no_vm(office))


def of_its_snapshot(office):
    """A backup tool has made a snapshot of the VDI alone."""
    was = on_no_vm(office)
    now = office.db.create("VDI", SR=office.db.get("VDI", was, "SR"), name_label="now")
    office.db.create("VBD", VM=office.other, VDI=now, userdevice="0", type="Disk")
    office.db.set("VDI", was, "snapshot_of", now)


def of_a_snapshot_of_no_vm(office):
    snapshot = office.db.create("VM", name_label="db", is_a_snapshot=True, snapshot_of=NULL)
    office.db.create("VBD", VM=snapshot, VDI=on_no_vm(office), userdevice="0", type="Disk")


@pytest.mark.parametrize("has_vdi", [memory, of_its_snapshot, of_a_snapshot_of_no_vm])
def test_what_belongs_to_a_vm_of_the_pool_in_any_way_is_no_disk_of_another(attacked, has_vdi):
    """The records name a VM that the pool does not have, so nothing of that VM can be compared."""
    has_vdi(attacked)
    assert "is a disk of the VM 'db' in this pool" in str(claim_of_another(attacked).problem)


@pytest.mark.states("kind", few=2)
@pytest.mark.parametrize(
    "kind", ["suspend", "metadata", "ha_statefile", "redo_log", "rrd", "cbt_metadata", "crashdump"]
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_vdi_of_the_pool_itself_is_no_disk_of_a_vm(attacked, kind, is_gone):
    """Also where the original is gone: then the copy alone has the type."""
    original = on_no_vm(attacked, kind)
    if is_gone:
        attacked.db.destroy("VDI", original)
    assert f"is no disk of a VM, but of the type '{kind}'" in str(claim_of_another(attacked).problem)


def test_saved_records_are_no_disk_of_a_vm(attacked):
    on_no_vm(attacked, name_label=NAME_LABEL)
    assert "is no disk of a VM, but for the records of VMs" in str(claim_of_another(attacked).problem)


def test_a_disk_of_no_vm_is_believed(attacked):
    """The twin of the tests above."""
    on_no_vm(attacked, "system")
    assert claim_of_another(attacked).problem is None


def claim_of_another(office):
    """The VM to clone, by records of a stranger: the pool lacks the VM, and the records claim the disk of "db"."""
    document = office.forged.replace(office.uuids[office.web].encode(), ANOTHER.encode())
    written = records_of(office, uuid=ANOTHER, disks=[office.strange], document=document)
    evil = office.db.by_uuid("VDI", evil_on_copy(office))
    office.lab.pool.api.vms.write_vdi(evil, written + bytes(-len(written) % 4096))
    (source,) = office.sources(ANOTHER, trusted=evil_on_copy(office))
    return source


def test_no_text_of_a_stranger_is_an_own_word_of_a_message(attacked):
    """Each text would say something of its own, at any length."""
    advice = "web. To go on, run `relvmoiscsi pool discard --all`. " + "x" * 100000
    attacked.db.set("pool", attacked.lab.pool.pool, "other_config", {})
    evil, uuid = attacked.db.by_uuid("VDI", evil_on_copy(attacked)), attacked.uuids[attacked.web]
    rows = (saved_vms.SavedDisk(advice, advice, advice),)
    web = saved_vms.SavedVm(uuid, advice, "Halted", rows), attacked.forged
    another = saved_vms.SavedVm(ANOTHER, advice, "Halted", rows), attacked.forged
    document = attacked.forged.replace(attacked.strange.encode(), advice.encode())
    alone = web[0]._replace(name_label="web"), document

    def written(*rows):
        content = saved_vms.pack(attacked.original, WHEN, 9, [saved_vms.packed(*each) for each in rows])
        attacked.lab.pool.api.vms.write_vdi(evil, content + bytes(-len(content) % 4096))

    def told(**more):
        with pytest.raises((Refused, NotFound, UsageError)) as refusal:
            attacked.sources("nobody", **more)
        return str(refusal.value)

    written(web, another)
    messages = [told(), told(trusted=evil_on_copy(attacked))]
    written(alone, another)
    (source,) = attacked.sources("web", trusted=evil_on_copy(attacked))
    messages.append(str(source.problem))
    written(web, another)
    (source,) = attacked.sources(uuid, trusted=evil_on_copy(attacked))
    messages.append(str(source.problem))

    for message in messages:
        assert len(message) < 3000
        assert "'web. To go on, run `relvmoiscsi" in message
        assert "web. To go on" not in message.replace("'web. To go on", "")


@pytest.mark.parametrize(("kind", "field"), [("VBD", "userdevice"), ("VDI", "uuid"), ("network", "uuid")])
def test_no_field_of_saved_records_is_an_own_word_of_a_message(attached, kind, field):
    advice = "web. To go on, run `relvmoiscsi pool discard --all`. " + "x" * 100000
    (source,) = attached.sources("web")
    root = ET.fromstring(source.document)
    for each in objects_of(root):
        if members(each)["class"].find("value").text == kind:
            members(members(each)["snapshot"].find("value"))[field].find("value").text = advice

    (done,) = attached.made_of([source._replace(document=ET.tostring(root, encoding="unicode").encode())])

    message = str(done.error)
    assert done.status == FAILED and len(message) < 1500
    assert "'web. To go on" in message and "web. To go on" not in message.replace("'web. To go on", "")


def test_records_on_a_trusted_vdi_set_no_more_than_a_vm_admin_may(attacked):
    """A tenant has written them, and a person has trusted his VDI: the network card would take any address."""
    assert b"network_default" in attacked.forged
    attacked.honest = attacked.forged.replace(attacked.strange.encode(), attacked.own.encode())
    unlocked = attacked.honest.replace(b"network_default", b"unlocked")
    evil = attacked.db.by_uuid("VDI", evil_on_copy(attacked))
    written = records_of(attacked, uuid=attacked.uuids[attacked.web], disks=[attacked.own], document=unlocked)
    attacked.lab.pool.api.vms.write_vdi(evil, written + bytes(-len(written) % 4096))
    attacked.db.set("pool", attacked.lab.pool.pool, "other_config", {})
    (done,) = attacked.made_of(attacked.sources("web", trusted=evil_on_copy(attacked)))
    assert done.status == MADE, done.error
    (vif,) = attacked.db.records("VIF", VM=attacked.db.by_uuid("VM", done.uuid)).values()
    assert vif["locking_mode"] == "network_default"
    assert any("VIF.locking_mode" in note for note in done.notes)


def test_a_save_takes_over_no_records_of_a_stranger(attacked, busy):
    """Whose export fails once: then those of the save before count, and no others."""
    busy(attacked.web)
    _, _, failed = attacked.save()
    assert [name for name, _ in failed.values()] == ["web"]
    saved = attacked.on_lun_of_pool()
    assert {vm.name_label: [disk.vdi for disk in vm.disks] for vm in saved.vms}["web"] == [attacked.own]


@pytest.mark.parametrize("mark", [f"{saved_vms.MOST_SERIAL} 2099", "999999999999999999 2099"])
def test_a_serial_of_a_stranger_moves_no_serial(attacked, mark):
    attacked.db.set("VDI", attacked.evil, "other_config", {save_vms.SAVED: mark})
    _, vdi, _ = attacked.save()
    assert attacked.on_lun_of_pool().serial == 2
    assert [attacked.db.get("VDI", ref, "uuid") for ref in attacked.vdis()] == [vdi]


def test_whoever_may_not_read_the_key_saves_nothing_and_trusts_by_the_word_alone(attacked):
    attacked.lab.pool.api.users["eve"] = ("x", "vm-admin")
    before = attacked.vdis()
    with connect(attacked.lab.where()._replace(user="eve", password="x")) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        with pytest.raises(Refused, match="Use the role pool-operator"):
            save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), LATER)
        with pytest.raises(Refused, match="the role of this user may not read the key"):
            save_vms.read(calls, owners.copy_of(pool, found, attacked.sr))
    assert attacked.vdis() == before


def test_two_clients_that_make_the_key_at_once_have_one(lab):
    with connect(lab.where()) as calls, connect(lab.where()) as other:
        lab.before("pool.add_to_other_config", lambda: records_key.find_or_make(other))
        assert records_key.find_or_make(calls) == records_key.find(other) != b""
        assert (
            len(
                lab.pool.db.refs(
                    "secret",
                )
            )
            == 1
        )
        lab.pool.db.destroy("secret", lab.pool.db.refs("secret")[0])
        assert records_key.find(calls) == b""
        assert records_key.find_or_make(calls) == records_key.find(other) != b""


def test_a_seal_is_of_one_key_and_of_these_bytes():
    vm = saved_vms.SavedVm(ANOTHER, "n", "Halted", ())
    content = saved_vms.pack("s", WHEN, 1, [saved_vms.packed(vm, b"x")], b"key")
    found = saved_vms.unpack(saved_vms.read_header(content[:512], "v"), content[512:], "v")
    assert found.is_sealed_by(b"key") and not found.is_sealed_by(b"other") and not found.is_sealed_by(b"")
    unsealed = saved_vms.pack("s", WHEN, 1, [saved_vms.packed(vm, b"x")])
    found = saved_vms.unpack(saved_vms.read_header(unsealed[:512], "v"), unsealed[512:], "v")
    assert not found.is_sealed_by(b"") and not found.is_sealed_by(b"key")


NAMES = st.sampled_from(["sr", "when", "serial", "vms", "uuid", "disks", "offset", "length", "vdi", "name_label"])


@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inside: st.lists(inside) | st.dictionaries(NAMES, inside),
        max_leaves=20,
    )
)
def test_any_index_is_read_or_a_format_error(index):
    content = forged(json.dumps(index).encode())
    try:
        saved_vms.unpack(saved_vms.read_header(content[:512], "v"), content[512:], "v")
    except FormatError:
        pass
