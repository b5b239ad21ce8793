# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs: never a way to the original's disks, nothing of the original changed."""

import http.client

import pytest

from kit.pool import transfer
from kit.pool.api import GoneAway
from kit.pool.database import NULL
from kit.pool.errors import XenError
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.vms import choice, ova_file
from relvmoiscsi.pool.vms import transfer as pool_transfer
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE

pytestmark = pytest.mark.states

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
        assert "The copy could not be destroyed" in str(done.error) and "Do not start the copy" in str(done.error)
        return
    assert "was destroyed" in str(done.error) and "No disk was changed" in str(done.error)
    after = day.originals()
    after["network"] = {ref: row for ref, row in after["network"].items() if row["name_label"] != "other"}
    assert after == before and not any(vm["name_label"] == done.name for vm in db.records("VM").values())


def test_nothing_is_called_that_could_harm_an_original(day):
    day.lab.pool.api.calls.clear()
    day.clone("web", keep_mac=True, isolated="nowhere")

    made = {call for call in day.lab.pool.api.calls if any(word in call.split(".")[-1] for word in CHANGING)}
    allowed = {"task.create", "task.destroy", "network.create", "VIF.create", "VIF.destroy", "VM.add_to_other_config"}
    allowed |= {"pool.add_to_other_config", "pool.remove_from_other_config"}  # the lock
    assert made <= {*allowed, "VM.set_is_a_template", "VM.remove_from_blocked_operations"}


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
    assert (
        set(new["other_config"]) - ours == {"pcix", "mac_seed", "import_task"}
        and new["other_config"]["mac_seed"] != "seed"
    )
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
        "HA is off", "without the PCI devices of the host", "the VM does not start with its host",
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
    assert done.notes == ["without the suspended memory: the VM boots as after a power cut"]


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
    (done,) = day.clone("web", keep_mac=True)
    assert done.status == FAILED and "Use --isolated NET, or --network office=NEW." in str(done.error)
    assert not day.lab.pool.api.transfer.imports


def private(day, **more):
    return day.db.create("network", **{"name_label": "dmz", "other_config": {}, **more})


def test_a_private_network_that_others_are_on_is_not_isolated(day):
    """That of the originals, or one with a router."""
    net = private(day)
    day.lab.vm("router", networks=[net])
    with pytest.raises(Refused, match="The network 'dmz' has VMs that are not copies: router. It is not isolated"):
        day.clone("web", isolated="dmz")
    with pytest.raises(Refused, match="has VMs that are not copies"):
        (done,) = day.clone("web", isolated="nowhere")
        marks = day.vm(done.uuid)["other_config"]
        day.lab.vm("an experiment", networks=day.db.refs("network", name_label="nowhere"), other_config=marks)
        day.clone("web", isolated="nowhere")


@pytest.mark.parametrize(
    "more", [{"other_config": {"is_host_internal_management_network": "true"}}, {"managed": False}]
)
def test_a_network_of_the_hosts_is_not_isolated(day, more):
    net = private(day, **more)
    with pytest.raises(Refused, match="'dmz' is a network of the hosts themselves"):
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
    with pytest.raises(UsageError, match="No VM is selected"):
        day.clone()
    with pytest.raises(UsageError, match="may contain only the fields vm, date and sr in braces"):
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
    with pytest.raises(NotFound, match="No VM of the pool has a disk whose copy is on"):
        day.lab.clone_vms(other.sr_uuid, everything=True)


@pytest.mark.parametrize("role, may", [("vm-operator", False), ("vm-admin", True), ("pool-operator", True)])
def test_a_role_that_may_not_is_told(day, role, may):
    """The answer is 403; why stands in the task alone. Whoever may change VMs may clone, and make a network."""
    day.lab.pool.api.users["eve"] = ("x", role)
    eve = day.lab.where()._replace(user="eve", password="x")
    (done,) = day.clone("web", where=eve, **({"isolated": "nowhere", "keep_mac": True} if may else {}))
    assert (done.status == MADE) == may
    if not may:
        assert isinstance(done.error, PoolFailure) and done.error.code == "RBAC_PERMISSION_DENIED"
        assert "The user of this session may not call GET /export_metadata" in str(done.error)


# --- a copy that is not done


def test_a_template_that_a_run_has_left_is_finished_and_is_a_vm(day):
    """Its generation id is another than that of its original, of which xapi makes none for a template."""

    def cut(name, _parameters):
        if name == "VM.set_is_a_template":
            raise GoneAway()

    day.lab.pool.api.before = cut
    (cut_off,) = day.clone("web")
    day.lab.pool.api.before = None
    ((ref, half),) = [row for row in day.db.records("VM").items() if row[1]["is_a_template"]]
    (done,) = day.clone("web")
    vm = day.vm(done.uuid)

    assert (cut_off.status, done.status, done.uuid) == (FAILED, MADE, half["uuid"])
    assert (half["is_a_template"], vm["is_a_template"]) == (True, False)
    low, high = map(int, vm["generation_id"].split(":"))
    assert vm["generation_id"] == half["generation_id"] and 0 <= low < 2**63 and 0 <= high < 2**63
    assert day.clone("web")[0].status == ALREADY


def test_a_copy_that_is_done_says_that_it_can_be_started(day):
    """XenCenter offers what allowed_operations has. xapi renews it at few calls, and VM.set_is_a_template is none."""
    (done,) = day.clone("web")
    assert "start" in day.vm(done.uuid)["allowed_operations"]


def test_records_of_a_newer_release_are_refused_by_the_pool(day, monkeypatch):
    monkeypatch.setattr(transfer, "VSN", (2, 20))
    export = transfer.export
    monkeypatch.setattr(transfer, "export", lambda *words: export(*words).replace(b"20</value>", b"22</value>"))
    (done,) = day.clone("web")
    assert done.error.code == "IMPORT_INCOMPATIBLE_VERSION"


# --- the wire


def test_the_head_of_a_request_is_short_enough_for_xapi(day, monkeypatch):
    monkeypatch.setattr(transfer, "MOST_HEADER_BYTES", 400)
    assert day.clone("web")[0].status == MADE


def test_an_import_is_awaited_by_its_task_and_not_at_its_connection(day, monkeypatch):
    """xapi says 200 when it begins, and ends the connection when it is done: perhaps later than a read may last."""
    real = http.client.HTTPResponse.read

    def read(self, *words):
        assert self._method != "PUT"
        return real(self, *words)

    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    assert day.clone("web")[0].status == MADE


def test_an_answer_that_is_no_tar_is_told():
    for archive, words in (
        (b"", "not a tar archive"),
        (ova_file.pack(b"x").replace(b"ova.xml", b"oval.xm"), "has no ova.xml"),
    ):
        with pytest.raises(Refused, match=words):
            ova_file.unpack(archive)
    assert ova_file.unpack(ova_file.pack(b"some text")) == b"some text"


def test_several_at_once(day):
    for number in range(3):
        day.lab.vm(f"vm {number}", day.data, networks=[day.net])
    done = day.clone(everything=True, jobs=10, isolated="nowhere")

    assert [(each.vm_name, each.status) for each in done] == [(name, MADE) for name in ("vm 0", "vm 1", "vm 2", "web")]
    assert len({each.uuid for each in done}) == len({each.name for each in done}) == 4


@pytest.fixture
def impatient(monkeypatch):
    """Who waits for a task that no handler has taken does not wait long."""
    monkeypatch.setattr(pool_transfer, "VERDICT_SECONDS", 0.05)


@pytest.mark.states("status", few=2)
@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 500, 503])
def test_an_answer_after_which_no_task_ends_ends_the_wait(day, monkeypatch, impatient, status):
    page = b"<html><body><h1>HTTP</h1>No room &lt;here&gt;.</body></html>"
    monkeypatch.setattr(day.lab.pool.api.transfer, "answer", lambda *_: (status, page))
    (done,) = day.clone("web")
    assert done.status == FAILED
    assert f"answered {status} to GET /export_metadata: HTTP No room <here>." in str(done.error)
    assert not day.db.refs("task"), "nobody else would end it"


@pytest.mark.parametrize("path", ["/export_metadata", "/import_metadata"])
def test_a_handler_that_fails_before_it_takes_the_task_is_told(day, impatient, path):
    def refuse(_method, its):
        if its == path:
            raise XenError("INTERNAL_ERROR", "Unix.Unix_error(Unix.ENOSPC)")

    day.lab.pool.api.transfer.refuse = refuse
    (done,) = day.clone("web")
    assert done.status == FAILED and "Unix.Unix_error(Unix.ENOSPC)" in str(done.error)
    assert not day.db.refs("task") and not day.copies()


def test_a_disk_whose_sr_was_forgotten_is_told_in_words(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    sr = day.db.get("VDI", day.root, "SR")

    def gone(method, path):
        for pbd in day.db.refs("PBD", SR=sr):
            day.db.set("PBD", pbd, "currently_attached", False)
        day.lab.pool.storage.sr_forget("", sr)

    day.lab.pool.api.transfer.refuse = gone
    (done,) = day.clone("web")
    assert "xapi removes such a disk from the VM within a minute" in str(done.error)
    assert day.lab.pool.db.refs("VBD", VM=day.web)
    day.lab.pool.collect_garbage()
    assert not day.lab.pool.db.refs("VBD", VM=day.web)


# --- disks that are lent, names


def test_a_disk_that_is_lent_is_told(day):
    other = day.lab.vm("db", day.lab.vdi("Production", "before")[0])
    whose = [day.db.get("VM", other, "uuid"), day.db.get("VDI", day.new(day.data), "uuid")]
    mark = {"relvmoiscsi:rescue": " ".join([day.copy.sr_uuid, *whose])}
    day.db.create("VBD", VM=other, VDI=day.new(day.data), userdevice="1", other_config=mark)
    (done,) = day.clone("db")
    assert done.status == FAILED and "were lent by `rescue`: 1 'data'" in str(done.error)
    assert "`relvmoiscsi pool rescue SR --done`" in str(done.error)


def test_the_mark_of_another_vm_lends_nothing(day):
    """xapi copies it with the VM that it was lent to."""
    other = day.lab.vm("db", day.lab.vdi("Production", "before")[0])
    mark = {"relvmoiscsi:rescue": f"{day.copy.sr_uuid} another VM's"}
    day.db.create("VBD", VM=other, VDI=day.new(day.data), userdevice="1", other_config=mark)
    (done,) = day.clone("db")
    assert done.status == FAILED and "has disks that are not on the copy" in str(done.error)


def test_names_that_no_vm_can_have():
    for name, message in [
        ("{vm:d}", "contain only the fields"),
        ("{vm!x}", "contain only the fields"),
        ("{vm!r}", "contain only the fields"),
        ("{date:>9z}", "contain only the fields"),
        ("{vm} {date:%Y}", "contain only the fields"),
        ("{vm:{date}}", "contain only the fields"),
        ("{vm.name}", "contain only the fields"),
        ("{vm[0]}", "contain only the fields"),
        ("{}", "contain only the fields"),
        ("", "without a name"),
        ("  ", "without a name"),
        ("a\x01b", "not text"),
        ("a\rb", "not text"),
        ("{vm}\n", "not text"),
        ("a\udc80", "not text"),
        ("a\ufffe", "not text"),
    ]:
        with pytest.raises(UsageError, match=message):
            choice.verify_template(name)


def test_a_name_may_have_braces(day):
    (done,) = day.clone("web", name="{{{vm}}} of {sr}")
    assert done.name == "{web} of Production 2026-11-22"
