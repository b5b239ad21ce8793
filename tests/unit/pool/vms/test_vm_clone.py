# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs: never a way to the original's disks, nothing of the original changed, none twice, none half."""

import itertools
import threading

import pytest

from kit.pool import transfer
from kit.pool.api import GoneAway
from kit.pool.database import NULL
from kit.pool.database import time as moment
from kit.pool.errors import XenError
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import discard, records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import choice, clone, inventory, ova_file
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE

CHANGING = ("create", "destroy", "set_", "add_to", "remove_from", "start", "shutdown", "plug", "migrate")


def naive_import(day, edit=lambda row: None):
    """What a client does that believes the file to be the copy's."""
    db, api = day.db, day.lab.pool.api
    document = transfer.export(db, day.web)
    header = transfer.untar(transfer.tar(document))
    for each in header["objects"]:
        edit(each)
    return transfer._Import(db, api.vms, header["objects"], {}, None).run()[0]


# --- never a way to the original's disks


def test_an_import_of_what_was_exported_has_the_disks_of_the_original(day):
    """The trap, in the simulated pool as in xapi: nobody is asked, and nothing fails."""
    naive = naive_import(day)
    assert day.lab.disks_of(naive) == day.lab.disks_of(day.web)


def test_a_map_that_misses_a_disk_leads_to_the_original_in_silence(day):
    def edit(each):
        row = each["snapshot"]
        if each["class"] == "VDI" and row["name_label"] == "root disk":
            row["uuid"] = row["location"] = derived_uuid(day.copy.sr_uuid, row["uuid"])
        if each["class"] == "SR":
            row["uuid"] = day.copy.sr_uuid

    with pytest.raises(XenError, match="VDI_LOCATION_MISSING"):
        naive_import(day, edit)  # this one is found out, as the SR is another

    def scsi_id(each):
        edit(each)
        if each["class"] == "VDI" and each["snapshot"]["name_label"] == "data":
            each["snapshot"]["sm_config"] = {"SCSIid": "3600"}

    day.db.set("VDI", day.data, "sm_config", {"SCSIid": "3600"})
    naive = naive_import(day, scsi_id)  # and this one is not
    assert day.lab.disks_of(naive)["1"] == day.lab.disks_of(day.web)["1"]


def test_every_disk_of_the_copy_is_the_new_one_of_the_map(day):
    before = day.originals()
    (done,) = day.clone("web")

    assert (done.status, done.name, done.error) == (MADE, "web 2026-11-22", None)
    new = day.db.by_uuid("VM", done.uuid)
    assert day.lab.disks_of(new) == day.expected(day.web)
    assert day.originals() == before
    record = day.vm(done.uuid)
    assert record["other_config"]["relvmoiscsi:clone-of"] == day.db.get("VM", day.web, "uuid")
    assert record["other_config"]["a"] == "b" and record["power_state"] == "Halted"
    assert [disk.new for disk in done.disks] == [uuid for _, uuid in day.expected(day.web).values()]


@pytest.mark.parametrize("trap", ["SCSIid", "maps_to", "both SRs"])
def test_no_key_of_a_disk_leads_back(day, trap):
    if trap == "SCSIid":
        for vdi in (day.root, day.data):
            day.db.set("VDI", vdi, "sm_config", {"SCSIid": vdi})
    elif trap == "maps_to":
        day.db.set("VDI", day.root, "other_config", {"maps_to": day.root})
    else:
        other = day.lab.vdi("Testing", "data")[0]
        day.web = day.lab.vm("mixed", day.root, other, networks=[day.net])
    name = day.db.get("VM", day.web, "name_label")
    (done,) = day.clone(name)

    if trap == "both SRs":
        assert done.status == FAILED and "has disks that are not on the copy" in str(done.error)
        assert not day.lab.pool.api.transfer.imports
    else:
        assert day.lab.disks_of(day.db.by_uuid("VM", done.uuid)) == day.expected(day.web)


def test_a_disk_that_is_added_after_the_choice_is_refused(day):
    """What the records say then counts, not what was seen first."""
    other = day.lab.vdi("Testing", "data")[0]
    day.lab.pool.api.before = lambda method, _: (
        method.startswith("GET") and day.db.create("VBD", VM=day.web, VDI=other, userdevice="7")
    )
    (done,) = day.clone("web")

    assert done.status == FAILED and "The disk 7 of the VM" in str(done.error)
    assert not day.lab.pool.api.transfer.imports


@pytest.mark.parametrize("what", ["another disk", "no disk", "started", "HA", "a network", "Ref:"])
def test_a_vm_that_is_not_what_it_should_be_is_destroyed_again(day, what):
    """Whatever a release does with the file: what came of it is compared with the map."""
    db = day.db
    before = day.originals()

    def spoil(_objects):
        (new,) = [ref for ref, vm in db.records("VM").items() if "relvmoiscsi:clone-of" in vm["other_config"]]
        vbds, vifs = db.refs("VBD", VM=new), db.refs("VIF", VM=new)
        if what == "another disk":
            db.set("VBD", vbds[0], "VDI", day.root)
        elif what == "no disk":
            db.destroy("VBD", vbds[1])
        elif what == "started":
            db.set("VM", new, "power_state", "Running")
        elif what == "HA":
            db.set("VM", new, "ha_always_run", True)
        elif what == "a network":
            db.set("VIF", vifs[0], "network", day.lab.network("other"))
        else:
            db.set("VM", new, "parent", "Ref:17")

    day.lab.pool.api.transfer.fail_import = spoil
    (done,) = day.clone("web")

    assert done.status == FAILED
    if what == "started":
        assert "It could not be destroyed" in str(done.error) and "Do not start it" in str(done.error)
        return
    assert "was destroyed again" in str(done.error) and "No disk was touched" in str(done.error)
    after = day.originals()
    after["network"] = {ref: row for ref, row in after["network"].items() if row["name_label"] != "other"}
    assert after == before and not any(vm["name_label"] == done.name for vm in db.records("VM").values())


def test_nothing_is_called_that_could_harm_an_original(day):
    day.lab.pool.api.calls.clear()
    day.clone("web", keep_mac=True, isolated="nowhere")

    made = {call for call in day.lab.pool.api.calls if any(word in call.split(".")[-1] for word in CHANGING)}
    allowed = {"task.create", "task.destroy", "network.create", "VIF.create", "VIF.destroy", "VM.add_to_other_config"}
    assert made <= allowed


# --- what a copy has


def test_what_the_facts_say_of_each_field(day):
    """HA, PCI, backup tags and automatic start stay behind; firmware, vTPM and the rest come along."""
    db = day.db
    iso = db.create("SR", name_label="ISOs", content_type="iso", type="iso")
    tools = db.create("VDI", SR=iso, location="guest-tools.iso", name_label="guest-tools.iso")
    db.create("VBD", VM=day.web, VDI=tools, userdevice="3", type="CD", mode="RO", currently_attached=True)
    drive = db.create("SR", name_label="DVD", content_type="iso", type="udev")
    disc = db.create("VDI", SR=drive, location="/dev/sr0")
    db.create("VBD", VM=day.web, VDI=disc, userdevice="4", type="CD", mode="RO")
    db.create("VTPM", VM=day.web, contents="a secret")
    for name, value in {
        "ha_always_run": True,
        "ha_restart_priority": "restart",
        "tags": ["backup daily"],
        "PCI_bus": "0/0000:81:00.0",
        "resident_on": day.lab.pool.master,
        "blocked_operations": {"destroy": "no"},
        "appliance": db.create("VM_metrics"),
        "bios_strings": {"bios-vendor": "x"},
        "xenstore_data": {"vm-data/a": "1"},
        "other_config": {"pci": "0/81", "auto_poweron": "true", "xo:backup:job": "j", "pcix": "y", "mac_seed": "seed"},
    }.items():
        db.set("VM", day.web, name, value)
    (done,) = day.clone("web", name="{vm} on {sr}")
    new = day.vm(done.uuid)

    assert not day.lab.pool.api.vms.that_ha_would_start() and not day.lab.pool.api.vms.that_boot_would_start()
    assert (new["ha_always_run"], new["ha_restart_priority"], new["PCI_bus"]) == (False, "", "")
    assert new["tags"] == ["relvmoiscsi", "xo:no-bak=relvmoiscsi clone"]
    ours = {key for key in new["other_config"] if key.startswith("relvmoiscsi:")}
    assert ours == {"relvmoiscsi:" + key for key in ("clone-of", "sr", "run", "done")}
    assert set(new["other_config"]) - ours == {"pcix", "mac_seed"} and new["other_config"]["mac_seed"] != "seed"
    assert (new["resident_on"], new["suspend_VDI"], new["appliance"]) == (NULL, NULL, NULL)
    assert new["NVRAM"] == {"EFI-variables": "QUJD"} and new["platform"] == {"secureboot": "true"}
    assert new["bios_strings"] == {"bios-vendor": "x"} and new["xenstore_data"] == {"vm-data/a": "1"}
    assert new["generation_id"] not in ("", "a generation")
    assert [db.get("VTPM", ref, "contents") for ref in new["VTPMs"]] == ["a secret"]
    assert new["name_label"] == "web on Production 2026-11-22" and "Copy of the VM" in new["name_description"]
    vbds = {vbd["userdevice"]: vbd for vbd in db.records("VBD", VM=db.by_uuid("VM", done.uuid)).values()}
    assert (vbds["3"]["VDI"], vbds["4"]["VDI"], vbds["4"]["empty"]) == (tools, NULL, True)
    assert vbds["0"]["bootable"] and not any(vbd["currently_attached"] for vbd in vbds.values())
    assert set(done.notes) == {
        "HA is off", "it has no PCI device of the host", "it does not start with its host",
    }  # fmt: skip


def test_a_name_that_looks_like_a_reference_is_a_name(day):
    day.db.set("VM", day.web, "name_description", "Ref: ticket 5")
    (done,) = day.clone("web", name="Ref:5")
    assert done.status == MADE and day.vm(done.uuid)["name_label"] == "Ref:5"


def test_without_vtpm_and_vgpu(day):
    db = day.db
    db.create("VTPM", VM=day.web, contents="a secret")
    group, kind = db.create("GPU_group", GPU_types=["10de/1"]), db.create("VGPU_type", identifier="x")
    db.create("VGPU", VM=day.web, type=kind, GPU_group=group)
    (done,) = day.clone("web")
    assert len(day.vm(done.uuid)["VTPMs"]) == len(day.vm(done.uuid)["VGPUs"]) == 1

    other = day.lab.vm("db", day.data)
    db.create("VTPM", VM=other, contents="another secret")
    (done,) = day.clone("db", without=("VTPM", "VGPU"))
    assert day.vm(done.uuid)["VTPMs"] == [] and done.notes == ["it has no VTPM"]


def test_without_vgpu_where_its_group_is_gone(day, monkeypatch):
    db = day.db
    group, kind = db.create("GPU_group", GPU_types=["10de/1"]), db.create("VGPU_type", identifier="x")
    db.create("VGPU", VM=day.web, type=kind, GPU_group=group)
    export = transfer.export

    def exported(*words, **more):
        document = export(*words, **more)
        db.destroy("GPU_group", group)
        return document

    monkeypatch.setattr(transfer, "export", exported)
    (done,) = day.clone("web", without=("VGPU",))
    assert (done.status, done.notes) == (MADE, ["it has no VGPU"])


def test_the_mark_of_a_config_drive_stays(day, monkeypatch):
    """xapi takes this key from the VDI that it finds, and gives it what the file says (import.ml, Found_disk)."""
    db, new = day.db, day.new(day.data)
    for vdi in (day.data, new):
        db.set("VDI", vdi, "other_config", {**db.get("VDI", vdi, "other_config"), "config-drive": "true"})
    real = transfer._Import._vdi

    def found_disk(self, outside, row):
        real(self, outside, row)
        vdi = self.table.get(outside)
        if vdi and not self.dry_run and db.exists("VDI", vdi):
            kept = {key: value for key, value in db.get("VDI", vdi, "other_config").items() if key != "config-drive"}
            told = {key: value for key, value in row["other_config"].items() if key == "config-drive"}
            db.set("VDI", vdi, "other_config", {**kept, **told})

    monkeypatch.setattr(transfer._Import, "_vdi", found_disk)
    (done,) = day.clone("web")
    assert done.status == MADE and db.get("VDI", new, "other_config")["config-drive"] == "true"
    assert "config-drive" not in db.get("VDI", day.new(day.root), "other_config")


def test_a_suspended_vm_becomes_a_halted_one(day):
    db = day.db
    image = day.lab.vdi("Testing", "data")[0]
    db.set("VM", day.web, "power_state", "Suspended")
    db.set("VM", day.web, "suspend_VDI", image)
    (done,) = day.clone("web")

    new = day.vm(done.uuid)
    assert (new["power_state"], new["suspend_VDI"]) == ("Halted", NULL)
    assert done.notes == ["its memory is left out: it boots as after a cut of the power"]


def test_snapshots_come_along_where_they_are_asked_for(day):
    snap = day.lab.vdi("Production", "before")[0]
    first = day.lab.snapshot(day.web, "before the update", snap)
    later = day.db.create("VDI", SR=day.lab.originals["Production"][1], location="x", name_label="a later snapshot")
    day.lab.snapshot(day.web, "since", later)
    (plain,) = day.clone("web")
    assert day.vm(plain.uuid)["snapshots"] == [] and plain.snapshots == []
    day.lab.pool.api.vms.vm_destroy("", day.db.by_uuid("VM", plain.uuid))
    (done,) = day.clone("web", snapshots=True)

    new = day.vm(done.uuid)
    (copied,) = new["snapshots"]
    assert day.lab.disks_of(copied) == day.expected(first)
    assert day.db.get("VM", copied, "is_a_snapshot") and new["parent"] == copied
    assert done.snapshots == ["before the update"] and done.notes == ['its snapshot "since" is not on the copy']
    (again,) = day.clone("web", snapshots=True)
    assert again.status == ALREADY


# --- networks


def test_macs_are_new_and_the_network_is_the_same(day):
    first = day.lab.network("office")  # a second one of this name; xapi would take whichever comes first
    day.db.set("VIF", day.db.refs("VIF", VM=day.web)[0], "network", first)
    (done,) = day.clone("web")
    (vif,) = day.db.records("VIF", VM=day.db.by_uuid("VM", done.uuid)).values()
    (old,) = day.db.records("VIF", VM=day.web).values()

    assert vif["MAC"] != old["MAC"] and vif["network"] == first and "maps_to" not in vif["other_config"]


def test_isolated_they_are_on_a_network_without_a_wire(day):
    with pytest.raises(Refused, match="'office' has physical interfaces: it is not isolated"):
        day.clone("web", isolated="office")
    (done,) = day.clone("web", isolated="nowhere", keep_mac=True)
    (network,) = day.db.records("network", name_label="nowhere").values()

    (vif,) = day.db.records("VIF", VM=day.db.by_uuid("VM", done.uuid)).values()
    (old,) = day.db.records("VIF", VM=day.web).values()
    assert network["PIFs"] == [] and network["VIFs"] == day.vm(done.uuid)["VIFs"] and vif["MAC"] == old["MAC"]
    assert done.networks == {"0": ("office", "nowhere")}


def test_another_network_for_one(day):
    lab_net = day.lab.network("lab")
    uuid = day.db.get("network", day.net, "uuid")
    (done,) = day.clone("web", networks={uuid: lab_net}, keep_mac=True)
    assert done.networks == {"0": ("office", "lab")}


def test_the_same_mac_twice_on_one_network_is_refused(day):
    with pytest.raises(Refused, match="would be twice on the network 'office'"):
        day.clone("web", keep_mac=True)


def private(day, **more):
    return day.db.create("network", **{"name_label": "dmz", "other_config": {}, **more})


def test_a_private_network_that_others_are_on_is_not_isolated(day):
    """That of the originals, or one with a router."""
    net = private(day)
    day.lab.vm("router", networks=[net])
    with pytest.raises(Refused, match="The network 'dmz' has VMs that are no copies: router. It is not isolated"):
        day.clone("web", isolated="dmz")
    with pytest.raises(Refused, match="has VMs that are no copies"):
        (done,) = day.clone("web", isolated="nowhere")
        marks = day.vm(done.uuid)["other_config"]
        day.lab.vm("an experiment", networks=day.db.refs("network", name_label="nowhere"), other_config=marks)
        day.clone("web", isolated="nowhere")


@pytest.mark.parametrize(
    "more", [{"other_config": {"is_host_internal_management_network": "true"}}, {"managed": False}]
)
def test_a_network_of_the_hosts_is_not_isolated(day, more):
    net = private(day, **more)
    with pytest.raises(Refused, match="'dmz' is one of the hosts themselves"):
        day.clone("web", isolated="dmz")
    assert not day.db.refs("VIF", network=net)


def test_copies_may_be_on_one_isolated_network(day):
    day.lab.vm("db", day.data, networks=[day.net])
    day.clone("web", isolated="nowhere")
    (done,) = day.clone("db", isolated="nowhere")
    assert done.status == MADE


def test_two_copies_with_the_same_mac_on_one_isolated_network_are_refused(day):
    day.clone("web", isolated="nowhere", keep_mac=True)
    (other,) = day.lab.attach(day.lab.clone("Production"))
    (done,) = day.lab.clone_vms(other.sr_uuid, "web", isolated="nowhere", keep_mac=True)
    assert done.status == FAILED and "is on the network 'nowhere' already, where its copy would be" in str(done.error)
    assert len(day.db.refs("VIF", network=day.db.refs("network", name_label="nowhere")[0])) == 1


# --- which


def test_all_that_have_a_disk_there(day):
    day.lab.vm("db", day.data)
    day.lab.vm("elsewhere", day.lab.vdi("Testing", "data")[0])
    mixed = day.lab.vm("mixed", day.root, day.lab.vdi("Testing", "data")[0])
    done = day.clone(everything=True, jobs=3)

    assert [(each.vm_name, each.status) for each in done] == [("db", MADE), ("mixed", FAILED), ("web", MADE)]
    assert day.db.get("VM", mixed, "name_label") == "mixed"
    assert [each.status for each in day.clone(everything=True)] == [ALREADY, FAILED, ALREADY]


def test_names(day):
    with pytest.raises(NotFound, match="There is no VM with the UUID or the name 'wbe'"):
        day.clone("wbe")
    with pytest.raises(UsageError, match="No VM is named"):
        day.clone()
    with pytest.raises(UsageError, match="may have vm, date and sr in braces"):
        day.clone("web", name="{vm} {run}")
    with pytest.raises(UsageError, match="cannot be read"):
        day.clone("web", name="{vm")
    day.lab.vm("web 2026-11-22", day.data)
    assert day.clone("web")[0].name == "web 2026-11-22 (2)"
    day.lab.vm("web")
    with pytest.raises(UsageError, match="2 VMs have the name 'web'"):
        day.clone("web")
    (bare,) = day.clone(day.db.records("VM", name_label="web").popitem()[1]["uuid"])
    assert "has no disk" in str(bare.error)


def test_an_sr_without_vms_is_not_found(day):
    (other,) = day.lab.attach(day.lab.clone("Testing"))
    with pytest.raises(NotFound, match="No VM of the pool has a disk of which"):
        day.lab.clone_vms(other.sr_uuid, everything=True)


def test_a_role_that_may_not_is_told(day):
    day.lab.pool.api.users["eve"] = ("x", "vm-operator")
    (done,) = day.clone("web", where=day.lab.where()._replace(user="eve", password="x"))
    assert isinstance(done.error, PoolFailure) and done.error.code == "RBAC_PERMISSION_DENIED"


def test_records_of_a_newer_release_are_refused_by_the_pool(day, monkeypatch):
    monkeypatch.setattr(transfer, "VSN", (2, 20))
    export = transfer.export
    monkeypatch.setattr(transfer, "export", lambda *words: export(*words).replace(b"20</value>", b"22</value>"))
    (done,) = day.clone("web")
    assert done.error.code == "IMPORT_INCOMPATIBLE_VERSION"


# --- again


def test_the_same_again_makes_no_second_one(day):
    (first,) = day.clone("web")
    before = sorted(day.db.refs("VM"))
    (again,) = day.clone("web", name="another name")

    assert (again.status, again.uuid, again.name) == (ALREADY, first.uuid, first.name)
    assert sorted(day.db.refs("VM")) == before


def copies(day):
    """The copies of "web" that there are: name, disks, networks, whether they are done."""
    found = []
    for ref, vm in day.db.records("VM").items():
        if "relvmoiscsi:clone-of" in vm["other_config"]:
            macs = [vif["MAC"] for vif in day.db.records("VIF", VM=ref).values()]
            disks = sorted(day.lab.disks_of(ref).items())
            found.append((vm["name_label"], disks, macs, "relvmoiscsi:done" in vm["other_config"]))
    return found


@pytest.mark.states
def test_killed_at_every_call_the_next_run_makes_one_and_only_one(day, dies):
    before = day.originals()
    (vif,) = day.db.records("VIF", VM=day.web).values()
    number = 0
    while True:
        death = dies(lambda: day.clone("web", isolated="nowhere", keep_mac=True), number)
        (done,) = day.clone("web", isolated="nowhere", keep_mac=True)

        assert done.error is None, (number, done.error)
        assert copies(day) == [("web 2026-11-22", sorted(day.expected(day.web).items()), [vif["MAC"]], True)], number
        for ref in day.db.refs("network", name_label="nowhere"):
            day.lab.pool.api.vms.vm_destroy("", day.db.by_uuid("VM", done.uuid))
            day.db.destroy("network", ref)
        after = day.originals()
        assert {table: set(rows) for table, rows in after.items()} == {
            table: set(rows) for table, rows in before.items()
        }
        number += 1
        if not death.came:
            break
    assert number > 8


def killed_while_importing(day):
    """A client that was killed when it had sent everything: gives what xapi still has to do."""
    api = day.lab.pool.api

    def cut(method, _params):
        if method == "PUT /import_metadata" and api.transfer.imports:
            raise GoneAway()

    api.before = cut
    (failed,) = day.clone("web")
    assert failed.status == FAILED
    api.before = None
    ((_, objects),) = api.transfer.imports
    return lambda: transfer._Import(day.db, api.vms, objects, {}, None).run()


@pytest.mark.parametrize("run", ["0", "z"])
def test_an_import_that_ends_late_is_told_and_left(day, run):
    """The client that began it was killed, and its import comes to an end while the next one is under way. Nobody can
    tell it from one that is alive: that of the younger run gives way to it, and what is there is finished then.
    """
    rest = killed_while_importing(day)

    def finish(method, _params):
        if method == "VM.add_to_other_config":
            day.lab.pool.api.before = None
            rest()

    day.lab.pool.api.before = finish
    (done,) = day.clone("web", run=run)
    if run == "z":
        assert done.status == FAILED and "and began first" in str(done.error)
        assert [each[3] for each in copies(day)] == [False]
        (again,) = day.clone("web")
        assert again.status == MADE and [each[3] for each in copies(day)] == [True]
        return
    assert done.status == MADE and sorted(each[3] for each in copies(day)) == [False, True]
    assert day.vm(done.uuid)["name_label"] == "web 2026-11-22"
    assert "another run has left a copy half beside it" in done.notes[-1]
    (again,) = day.clone("web")
    assert (again.status, again.uuid) == (ALREADY, done.uuid)


def test_an_import_that_is_under_way_is_waited_for(day):
    rest = killed_while_importing(day)
    (task,) = [
        ref for ref, row in day.db.records("task", status="pending").items() if "has a copy" in row["name_label"]
    ]
    waited = []

    def end(method, params):
        if method == "event.from" and params[1] == ["task/" + task] and params[2]:
            waited.append(task)
            rest()
            day.db.set("task", task, "status", "success")

    day.lab.pool.api.before = end
    (done,) = day.clone("web", patience=20.0)
    assert waited == [task] and done.status == MADE and len(copies(day)) == 1


def unseen_copy(day):
    """(a copy that a run before has made, its reference, its marks): they are another VM's until they are set."""
    (first,) = day.clone("web")
    ref = day.db.by_uuid("VM", first.uuid)
    marks = {**day.db.get("VM", ref, "other_config"), "relvmoiscsi:run": "20261122T110000Z-1"}
    day.db.set("VM", ref, "other_config", {**marks, "relvmoiscsi:clone-of": "another"})
    return first, ref, marks


def test_of_two_that_are_done_one_stays(day):
    """Two runs at once: each looks again when it is done."""
    first, ref, marks = unseen_copy(day)

    def appear(method, _params):
        if method == "VM.add_to_other_config":
            day.db.set("VM", ref, "other_config", marks)

    day.lab.pool.api.before = appear
    (second,) = day.clone("web")
    assert (second.status, second.uuid) == (ALREADY, first.uuid) and len(copies(day)) == 1


class Turns:
    """Two runs, "a" and "b", that go on by turns: each waits at each of its gates until it is its turn."""

    def __init__(self, order):
        self.order, self.place, self.ended = order, 0, set()
        self.changed = threading.Condition()
        self.here = threading.local()

    def _now(self):
        while self.place < len(self.order) and self.order[self.place] in self.ended:
            self.place += 1
        return self.order[self.place] if self.place < len(self.order) else None

    def gate(self, function):
        def waiting(*words):
            name = self.here.name
            with self.changed:
                if self.here.has_turn:
                    self.place += 1
                    self.changed.notify_all()
                assert self.changed.wait_for(lambda: self._now() in (name, None), 30)
                self.here.has_turn = True
            return function(*words)

        return waiting

    def run(self, name, work):
        self.here.name, self.here.has_turn = name, False
        try:
            work()
        finally:
            with self.changed:
                self.ended.add(name)
                self.changed.notify_all()


def test_two_clients_at_once_leave_one_copy_whoever_comes_first(day, monkeypatch):
    """Import, look, last mark, look: in orders of the two of all kinds."""
    turns = []

    def gated(real):
        def call(*words):
            return turns[-1].gate(real)(*words)

        return call

    for name in ("_finished", "_done_meanwhile", "_mark_done"):
        monkeypatch.setattr(clone._Clone, name, gated(getattr(clone._Clone, name)))
    monkeypatch.setattr(clone, "_without_twin", gated(clone._without_twin))
    real_found = day.lab.pool.db.refs("VM")
    for places in list(itertools.combinations(range(8), 4))[::3]:
        order = "".join("a" if number in places else "b" for number in range(8))
        turns.append(Turns(order))
        said = {}

        def work(name, said=said):
            turns[-1].run(name, lambda: said.update({name: day.clone("web", run=name, name="x")[0]}))

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [ref for ref in day.db.refs("VM") if ref not in real_found]
        uuids = [day.db.get("VM", ref, "uuid") for ref in made]
        assert len(made) == 1 and is_done(day, made[0]), (order, said)
        assert {each.uuid for each in said.values() if each.error is None} == set(uuids), (order, said)
        day.lab.pool.api.vms.vm_destroy("", made[0])


def is_done(day, ref):
    return day.db.get("VM", ref, "other_config").get("relvmoiscsi:done") == day.db.get("VM", ref, "uuid")


@pytest.mark.parametrize("at", ["PUT /import_metadata", "VM.add_to_other_config", "VM.get_by_uuid"])
def test_disks_that_another_vm_gets_meanwhile_are_its_own(day, at):
    """Ten VMs take minutes, and the pool was read before the first."""
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.set("VBD", vbd, "currently_attached", False)
    seen = []

    def come(method, _params):
        if method == at:
            seen.append(method)
            if len(seen) == (2 if at.startswith("PUT") else 1):  # the first one is the dry run
                day.lab.pool.api.before = None
                take(day)

    day.lab.pool.api.before = come
    (done,) = day.clone("web")
    assert done.status == FAILED and "is a disk of the VM 'forensics' meanwhile" in str(done.error)
    assert copies(day) == []


def take(day):
    day.lab.vm("forensics", day.new(day.data))


def test_restored_meanwhile_it_keeps_its_disks(day):
    day.lab.pool.api.transfer.fail_import = lambda _objects: restored_in_between(day)
    (done,) = day.clone("web")
    assert done.status == FAILED and "is a disk of the VM 'web' meanwhile" in str(done.error)
    assert copies(day) == [] and {sr for sr, _ in day.lab.disks_of(day.web).values()} == {day.sr}


def restored_in_between(day):
    """What `restore` leaves: its own look at the disks is before this one's import."""
    for number, vdi in (("0", day.root), ("1", day.data)):
        (vbd,) = day.db.refs("VBD", VM=day.web, userdevice=number)
        day.db.set("VBD", vbd, "VDI", day.new(vdi))


def test_a_twin_that_was_started_meanwhile_is_not_destroyed(day):
    """xapi writes last_booted_record at a suspend alone; the start is in VM_metrics, which an import takes along."""
    metrics = day.db.get("VM", day.web, "metrics")
    day.db.set("VM_metrics", metrics, "start_time", moment("20200101T00:00:00Z"))
    (done,) = day.clone("web")
    ref, run = day.db.by_uuid("VM", done.uuid), day.vm(done.uuid)["other_config"]["relvmoiscsi:run"]
    assert done.born == "20200101T00:00:00Z"
    day.lab.pool.api.vms.vm_start("", ref)
    day.lab.pool.api.vms.vm_hard_shutdown("", ref)
    with connect(day.lab.where()) as calls:
        found = inventory.read(calls)
        copy = inventory.copy_of(records.read(calls), found, day.sr)
        with pytest.raises(Refused, match="was started meanwhile"):
            clone.destroy_own(calls, ref, run, copy, done.born)
    assert day.db.exists("VM", ref)


def test_a_twin_that_somebody_uses_is_not_destroyed(day):
    """Not even by the run that has made it."""
    first, ref, marks = unseen_copy(day)

    def appear(method, _params):
        if method == "VM.add_to_other_config":
            day.db.set("VM", ref, "other_config", marks)
        elif method == "VBD.get_all_records_where":
            (new,) = [each for each, vm in day.db.records("VM").items() if each != ref and is_copy(vm)]
            if marks == day.db.get("VM", ref, "other_config") and not day.db.refs("VBD", VM=new, userdevice="7"):
                day.db.create("VBD", VM=new, VDI=day.lab.vdi("Testing", "data")[0], userdevice="7")

    day.lab.pool.api.before = appear
    (second,) = day.clone("web")
    assert second.status == MADE and len(copies(day)) == 2
    assert "has got another disk meanwhile" in second.notes[0] and first.uuid in second.notes[1]


def is_copy(vm):
    return "relvmoiscsi:clone-of" in vm["other_config"]


def half(day):
    """A copy that a run has left, killed before the last mark."""

    def cut(method, _params):
        if method == "VM.add_to_other_config":
            raise GoneAway()

    day.lab.pool.api.before = cut
    (failed,) = day.clone("web")
    day.lab.pool.api.before = None
    assert failed.status == FAILED
    (vm,) = [ref for ref, each in day.db.records("VM").items() if is_copy(each)]
    return vm


def test_what_a_run_has_left_half_is_verified_and_finished(day):
    """And not destroyed: it may have been started, and the guest has written since."""
    vm = half(day)
    day.lab.pool.api.vms.vm_start("", vm)
    (running,) = day.clone("web")
    assert running.status == FAILED and "half: it is not halted, or HA is on. It was not changed." in str(running.error)
    day.lab.pool.api.vms.vm_hard_shutdown("", vm)
    (again,) = day.clone("web")
    assert (again.status, again.uuid) == (MADE, day.db.get("VM", vm, "uuid")) and len(copies(day)) == 1


def test_a_half_copy_that_has_another_disk_stays_and_is_told(day):
    vm = half(day)
    other = day.lab.vdi("Testing", "data")[0]
    day.lab.pool.api.vms.vbd_create("", {"VM": vm, "VDI": other, "userdevice": "7", "mode": "RW"})
    before = day.db.record("VM", vm)
    (again,) = day.clone("web")
    assert again.status == FAILED and "half: its disk 7 is not on the copy. It was not changed." in str(again.error)
    assert before["uuid"] in str(again.error) and day.db.record("VM", vm) == before


def test_what_was_done_while_somebody_was_asked_is_there(day):
    """A client reads while another's copy is half; its question is answered when that is done, and in use."""
    seen = {}

    def read(_objects):
        if not seen:
            with connect(day.lab.where()) as calls:
                seen.update(pool=records.read(calls), found=inventory.read(calls))

    day.lab.pool.api.transfer.fail_import = read
    (one,) = day.clone("web")
    day.lab.pool.api.transfer.fail_import = None
    with connect(day.lab.where()) as calls:
        pool, found = seen["pool"], seen["found"]
        copy = inventory.copy_of(pool, found, pool.sr_by_uuid(day.copy.sr_uuid))
        sources = choice.choose(found, copy, ["web"])
        (two,) = clone.clone(calls, pool, found, copy, sources, choice.Wanted(run="b", jobs=1, patience=0.01))
    assert (two.status, two.uuid) == (ALREADY, one.uuid) and len(copies(day)) == 1


def test_a_copy_that_was_reverted_to_its_snapshot_is_still_one(day):
    """xapi gives it the snapshot's other_config, and disks with other UUIDs (xapi_vm_snapshot.ml)."""
    day.lab.snapshot(day.web, "before the update", day.lab.vdi("Production", "before")[0])
    (done,) = day.clone("web", snapshots=True)
    db, vm = day.db, day.db.by_uuid("VM", done.uuid)
    (snapshot,) = db.get("VM", vm, "snapshots")
    db.set("VM", vm, "other_config", db.get("VM", snapshot, "other_config"))
    for vbd in db.refs("VBD", VM=vm, type="Disk"):
        device = db.get("VBD", vbd, "userdevice")
        db.set("VBD", vbd, "VDI", db.create("VDI", SR=day.sr, location="reverted " + device, managed=True))
    (again,) = day.clone("web", snapshots=True)
    assert (again.status, again.uuid) == (ALREADY, done.uuid)


def test_a_vm_elsewhere_with_the_marks_of_a_copy_is_none(day):
    """A backup tool, or VM.copy, has put it onto another SR, marks and all; the copy itself is gone."""
    (done,) = day.clone("web")
    vm = day.db.by_uuid("VM", done.uuid)
    day.lab.vm("web, from a backup", day.lab.vdi("Testing", "data")[0], other_config=day.vm(done.uuid)["other_config"])
    day.lab.pool.api.vms.vm_destroy("", vm)
    (again,) = day.clone("web")
    assert again.status == MADE and again.name == "web 2026-11-22"


def test_a_copy_that_has_lost_its_disks_is_none_and_is_told(day):
    """The copy was discarded without its VMs, and the same LUN attached again."""
    (done,) = day.clone("web")
    with connect(day.lab.where()) as calls:
        discard.discard(calls, records.read(calls), day.sr)
    day.lab.attach(day.copy.scsi_id)
    day.sr = day.db.by_uuid("SR", day.copy.sr_uuid)
    (again,) = day.clone("web")
    assert again.status == MADE and day.lab.disks_of(day.db.by_uuid("VM", again.uuid)) == day.expected(day.web)
    assert done.uuid in again.notes[-1] and "has no disk here any more" in again.notes[-1]
    assert day.db.refs("VM", uuid=done.uuid)


def test_a_scan_that_fails_at_the_end_is_a_note(day):
    def fails(_session, _sr):
        raise XenError("SR_BACKEND_FAILURE_40", "", "The SR scan failed", "")

    day.lab.pool.api._methods["SR.scan"] = fails
    (done,) = day.clone("web")
    assert done.status == MADE and "the scan of the copy at the end failed" in done.notes[-1]


def test_an_import_that_fails_leaves_nothing(day):
    before = day.originals()

    def fail(_objects):
        raise XenError("IMPORT_ERROR_GENERIC", "the disk is full")

    day.lab.pool.api.transfer.fail_import = fail
    (done,) = day.clone("web")
    assert done.status == FAILED and "the disk is full" in str(done.error) and copies(day) == []
    assert day.originals() == before


# --- the wire


def test_the_head_of_a_request_is_short_enough_for_xapi(day, monkeypatch):
    monkeypatch.setattr(transfer, "MOST_HEADER_BYTES", 400)
    assert day.clone("web")[0].status == MADE


def test_an_answer_that_is_no_tar_is_told():
    for archive, words in ((b"", "no tar"), (ova_file.pack(b"x").replace(b"ova.xml", b"oval.xm"), "has no ova.xml")):
        with pytest.raises(Refused, match=words):
            ova_file.unpack(archive)
    assert ova_file.unpack(ova_file.pack(b"some text")) == b"some text"


def test_ten_at_once(day):
    for number in range(12):
        day.lab.vm(f"vm {number:02d}", day.data, networks=[day.net])
    done = day.clone(everything=True, jobs=10, isolated="nowhere")

    assert [each.status for each in done] == [MADE] * 13
    assert len({each.uuid for each in done}) == len({each.name for each in done}) == 13
    assert [each.vm_name for each in done] == [f"vm {number:02d}" for number in range(12)] + ["web"]


@pytest.mark.parametrize("status", [302, 401, 403, 404, 503])
def test_an_answer_after_which_no_task_ends_is_told_at_once(day, monkeypatch, status):
    monkeypatch.setattr(day.lab.pool.api.transfer, "answer", lambda *_: (status, b""))
    (done,) = day.clone("web")
    assert done.status == FAILED and f"answers {status}" in str(done.error)


def test_a_task_of_another_that_does_not_end_is_waited_for_and_left(day):
    """It may be that of a client that was killed before it sent anything, or a pool that is busy: none can tell."""
    uuid = day.db.get("VM", day.web, "uuid")
    task = day.db.create("task", name_label=f"relvmoiscsi: {day.copy.sr_uuid} has a copy of {uuid}")
    (done,) = day.clone("web")
    assert done.status == MADE and day.db.get("task", task, "uuid") in done.notes[-1]
    assert "has not ended" in done.notes[-1]
    (again,) = day.clone("web")
    assert again.status == ALREADY and day.db.exists("task", task)


def test_a_slow_import_of_another_gives_way(day):
    """The other one's client lives, and its import takes longer than anybody's patience."""
    said, seen = [], []

    def come(method, _params):
        if method == "PUT /import_metadata":
            seen.append(method)
            if len(seen) == 2:
                said.append(day.clone("web")[0])

    day.lab.pool.api.before = come
    (slow,) = day.clone("web")
    assert (said[0].status, slow.status, slow.uuid) == (MADE, ALREADY, said[0].uuid) and len(copies(day)) == 1


# --- disks that are lent, names


def test_a_disk_that_is_lent_is_told(day):
    other = day.lab.vm("db", day.lab.vdi("Production", "before")[0])
    mark = {"relvmoiscsi:rescue": day.copy.sr_uuid}
    day.db.create("VBD", VM=other, VDI=day.new(day.data), userdevice="1", other_config=mark)
    (done,) = day.clone("db")
    assert done.status == FAILED and "`rescue` has lent to it: 1 'data'" in str(done.error)
    assert "`relvmoiscsi pool rescue SR --done`" in str(done.error)


def test_the_mark_of_another_vm_lends_nothing(day):
    """xapi copies it with the VM that it was lent to."""
    other = day.lab.vm("db", day.lab.vdi("Production", "before")[0])
    mark = {"relvmoiscsi:rescue": f"{day.copy.sr_uuid} another VM's"}
    day.db.create("VBD", VM=other, VDI=day.new(day.data), userdevice="1", other_config=mark)
    (done,) = day.clone("db")
    assert done.status == FAILED and "has disks that are not on the copy" in str(done.error)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{vm:d}", "nothing else"),
        ("{vm!x}", "nothing else"),
        ("{vm!r}", "nothing else"),
        ("{date:>9z}", "nothing else"),
        ("{vm} {date:%Y}", "nothing else"),
        ("{vm:{date}}", "nothing else"),
        ("{vm.name}", "nothing else"),
        ("{vm[0]}", "nothing else"),
        ("{}", "nothing else"),
        ("", "without a name"),
        ("  ", "without a name"),
        ("a\x01b", "no text"),
        ("a\rb", "no text"),
        ("{vm}\n", "no text"),
        ("a\udc80", "no text"),
        ("a\ufffe", "no text"),
    ],
)
def test_names_that_no_vm_can_have(day, name, message):
    with pytest.raises(UsageError, match=message):
        day.clone("web", name=name)
    assert copies(day) == []


def test_a_name_may_have_braces(day):
    (done,) = day.clone("web", name="{{{vm}}} of {sr}")
    assert done.name == "{web} of Production 2026-11-22"
