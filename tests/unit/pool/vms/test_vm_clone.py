# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs: never a way to the original's disks, nothing of the original changed."""

import http.client
import re
import tarfile

import pytest

from kit.pool import transfer
from kit.pool.database import NULL
from kit.pool.errors import XenError
from kit.pool_verbs import bring_back, keep, run, second_copy, undo
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.records import CHANGED, read
from relvmoiscsi.pool.vms import choice, ova_file
from relvmoiscsi.pool.vms import transfer as pool_transfer
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE

pytestmark = pytest.mark.states

CHANGING = ("create", "destroy", "set_", "add_to", "remove_from", "start", "shutdown", "plug", "migrate")
#: but for the copy, its network and the lock
HARMLESS = {
    "task.create", "task.destroy", "network.create", "VIF.create", "VIF.destroy", "VM.add_to_other_config",
    "VM.set_is_a_template", "VM.remove_from_blocked_operations", "pool.add_to_other_config",
    "pool.remove_from_other_config", "task.add_to_other_config",
}  # fmt: skip


def fails(day, said, name="web", **more):
    """The copy fails with these words; nothing is imported, and the VMs that were there are as before."""
    before = day.originals()
    done = day.clone_one(name, **more)
    assert done.status == FAILED and said in str(done.error)
    assert not day.lab.pool.api.transfer.imports and day.originals() == before
    return done.error


def vifs(day, vm):
    return list(day.db.records("VIF", VM=vm).values())


# --- never a way to the original's disks


def test_every_disk_of_the_copy_is_the_new_one_of_the_map(day):
    before = day.originals()
    done = day.clone_one()

    assert (done.status, done.name, done.error) == (MADE, "web on Production changed 2026-11-21", None)
    assert day.lab.disks_of(day.ref_of(done)) == day.expected(day.web) and day.originals() == before
    record = day.vm(done.uuid)
    assert record["other_config"]["relvmoiscsi:clone-of"] == day.db.get("VM", day.web, "uuid")
    assert record["other_config"]["folder"] == "/b" and record["power_state"] == "Halted"
    # XenCenter offers what allowed_operations has. xapi renews it at few calls, and VM.set_is_a_template is none.
    assert "start" in record["allowed_operations"]
    assert [disk.new for disk in done.disks] == [uuid for _, uuid in day.expected(day.web).values()]


@pytest.mark.parametrize(("field", "key"), [("sm_config", "SCSIid"), ("other_config", "maps_to")])
def test_no_key_of_a_disk_leads_back(day, field, key):
    for vdi in (day.root, day.data):
        day.db.set("VDI", vdi, field, {key: vdi})
    assert day.lab.disks_of(day.ref_of(day.clone_one())) == day.expected(day.web)


def mixed(day):
    return day.lab.vm("other", day.root, day.elsewhere(), networks=[day.net])


def on_the_copy(day):
    """A VM with a disk of the copy, as after `restore --keep`, and one whose copy is there."""
    day.lab.vm("other", day.new(day.data), day.root)


def bare(day):
    return day.lab.vm("other")


def has_lent(whose, is_on_copy=True):
    """A VM to which a disk of the copy was lent; `whose` is in the mark, and xapi copies the mark with a VM."""

    def happens(day):
        other = day.lab.vm("other", day.lab.vdi("Production", "before")[0])
        vdi = day.new(day.data) if is_on_copy else day.elsewhere()
        mark = " ".join([whose or day.db.get("VM", other, "uuid"), day.uuid(vdi)])
        day.db.create("VBD", VM=other, VDI=vdi, userdevice="1", other_config={"relvmoiscsi:rescue": mark})

    return happens


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (mixed, "has disks that are not on the copy"),
        (bare, "has no disk"),
        (on_the_copy, "has disks of the copy 'Production changed 2026-11-21' itself: 0 'data' ("),
        (has_lent(""), "were lent by `rescue`: 1 'data'"),
        (has_lent(""), "first: `relvmoiscsi pool rescue --done --vm {1} {0.copy.sr_uuid}`"),
        (has_lent("another VM's"), "has disks of the copy 'Production changed 2026-11-21' itself: 1 'data' ("),
        (has_lent("", is_on_copy=False), "has disks that are not on the copy"),
    ],
)
def test_a_vm_with_other_disks_has_no_copy(day, happens, said):
    happens(day)
    (vm,) = day.db.records("VM", name_label="other").values()
    fails(day, said.format(day, vm["uuid"]), "other")


def test_a_disk_that_is_added_after_the_choice_is_refused(day):
    """What the records say then counts, not what was seen first."""
    day.lab.before("GET /export_metadata", lambda: day.hang("7", day.elsewhere()))
    done = day.clone_one()
    assert done.status == FAILED and "that are not on this copy: 7 'data' (" in str(done.error)
    assert not day.lab.pool.api.transfer.imports


SPOILED = {
    "another disk": lambda day, vm: day.db.set("VBD", day.db.refs("VBD", VM=vm)[0], "VDI", day.root),
    "no disk": lambda day, vm: day.db.destroy("VBD", day.db.refs("VBD", VM=vm)[1]),
    "started": lambda day, vm: day.db.set("VM", vm, "power_state", "Running"),
    "HA": lambda day, vm: day.db.set("VM", vm, "ha_always_run", True),
    "a network": lambda day, vm: day.db.set("VIF", day.db.refs("VIF", VM=vm)[0], "network", day.lab.network("other")),
    "a reference to nothing": lambda day, vm: day.db.set("VM", vm, "parent", "Ref:17"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_vm_that_is_not_what_it_should_be_is_destroyed_again(day, what):
    """Whatever a release does with the file: what came of it is compared with the map."""
    before = day.originals()

    def imported(_objects):
        (new,) = [ref for ref, vm in day.db.records("VM").items() if "relvmoiscsi:clone-of" in vm["other_config"]]
        SPOILED[what](day, new)

    day.lab.pool.api.transfer.fail_import = imported
    done = day.clone_one()
    assert done.status == FAILED
    if what == "started":
        assert "The copy could not be destroyed" in str(done.error) and "Do not start the copy" in str(done.error)
        return
    assert "was destroyed" in str(done.error) and "No disk was changed" in str(done.error)
    after = day.originals()
    after["network"] = {ref: row for ref, row in after["network"].items() if row["name_label"] != "other"}
    assert after == before and not day.db.refs("VM", name_label=done.name)


SPOILED_SNAPSHOT = {
    "another disk of the copy": (
        lambda day, vm: day.db.set("VBD", day.db.refs("VBD", VM=vm)[0], "VDI", day.new(day.data)),
        "its snapshot 'before the update' has other disks than its original",
    ),
    "no disk": (
        lambda day, vm: day.db.destroy("VBD", day.db.refs("VBD", VM=vm)[0]),
        "its snapshot 'before the update' has other disks than its original",
    ),
    "a network": (
        lambda day, vm: day.db.create("VIF", VM=vm, device="7", network=day.net, MAC="02:00:00:00:00:07"),
        "its snapshot 'before the update' has other networks than its original",
    ),
    "a drive with a disk": (
        lambda day, vm: day.db.create("VBD", VM=vm, VDI=day.new(day.data), userdevice="7", type="CD", mode="RO"),
        "its snapshot 'before the update' has other drives than its original",
    ),
    "a vTPM": (
        lambda day, vm: day.db.create("VTPM", VM=vm, contents=""),
        "its snapshot 'before the update' has other virtual TPMs than its original",
    ),
    "no snapshot": (
        lambda day, vm: day.db.set("VM", vm, "snapshot_of", day.web),
        "the copy has other snapshots than its original",
    ),
}


@pytest.mark.parametrize("what", SPOILED_SNAPSHOT)
def test_a_snapshot_that_is_not_what_it_should_be_is_destroyed_with_its_vm(day, what):
    day.snapshot()
    before, (spoil, said) = day.originals(), SPOILED_SNAPSHOT[what]

    def imported(_objects):
        for ref, vm in day.db.records("VM").items():
            if "relvmoiscsi:clone-of" in vm["other_config"] and vm["is_a_snapshot"]:
                spoil(day, ref)

    day.lab.pool.api.transfer.fail_import = imported
    done = day.clone_one(snapshots=True)
    assert done.status == FAILED and f"was destroyed: {said}." in str(done.error)
    assert day.originals() == before


@pytest.mark.parametrize("devices", [[], ["0"]], ids=["all of its disks", "one disk"])
def test_a_vm_that_was_restored_from_another_copy_is_named_with_the_command_that_leads_to_a_clone(halted, devices):
    """With --all it was left out, and its disks were said to be of no VM."""
    other_sr, all_of_it = second_copy(halted), {"everything": True}
    other = halted.db.get("SR", other_sr, "uuid")
    bring_back(halted, devices=devices)
    before = halted.rows()
    for names, more in ((["web"], {}), ([], all_of_it)):
        (done,) = halted.lab.clone_vms(other, *names, **more)
        text = str(done.error)
        assert (done.status, done.vm_name) == (FAILED, "web") and halted.rows() == before
        assert "'web' was restored from the copy 'Production changed 2026-11-21' and has disks of that copy: 0 " in text
        assert f"`relvmoiscsi pool restore --undo {done.vm} --shutdown`" in text
        assert ("1 'data'" in text) == (not devices)
    assert run(halted, lambda calls, found, copy: choice.of_no_vm(read(calls), found, copy), other_sr) == []
    journal = halted.db.get("VM", halted.web, "other_config")
    undo(halted)
    halted.set_journal(lambda _marks: journal)  # of a vm-admin: the VM has its own disks
    (done,) = halted.lab.clone_vms(other, **all_of_it)
    assert (done.status, done.error) == (MADE, None)


@pytest.mark.parametrize("devices", [[], ["0"]], ids=["all of its disks", "one disk"])
def test_a_vm_that_was_restored_from_this_copy_is_named_with_all(halted, devices):
    """It was left out without a word: no disk of it has a copy on this copy."""
    halted.lab.vm("db", halted.lab.vdi("Production", "before")[0])
    bring_back(halted, devices=devices)
    rows = {each.vm_name: each for each in halted.clone(everything=True)}
    assert {name: each.status for name, each in rows.items()} == {"db": MADE, "web": FAILED}
    text = str(rows["web"].error)
    assert "'web' has disks of the copy 'Production changed 2026-11-21' itself: 0 " in text
    assert f"`relvmoiscsi pool restore --undo {rows['web'].vm} --shutdown`" in text
    undo(halted)
    assert {each.error for each in halted.clone(everything=True)} == {None}


def test_a_vm_that_keeps_its_restored_disks_on_a_copy_is_named_with_all(halted):
    """It has no journal any more, and was left out without a word."""
    other = halted.db.get("SR", second_copy(halted), "uuid")
    bring_back(halted)
    keep(halted)
    for sr, said in (
        (halted.copy.sr_uuid, "'web' has disks of the copy 'Production changed 2026-11-21' itself: 0 "),
        (other, "'web' was restored from the copy 'Production changed 2026-11-21' and has disks of that copy: 0 "),
    ):
        rows = {each.vm_name: each for each in halted.lab.clone_vms(sr, everything=True)}
        text = str(rows["web"].error)
        assert said in text and "--undo" not in text and rows["web"].status == FAILED
    assert "add --from-snapshot." in text


def test_a_vm_that_xapi_has_copied_from_a_clone_is_a_vm_of_its_own(day):
    """VM.copy gives it the marks of the clone, and it was left out without a word."""
    vms = day.lab.pool.api.vms
    moved = vms.vm_copy("", day.ref_of(day.clone_one()), "moved", day.lab.originals["Production"][1])
    day.db.create("VBD", VM=moved, VDI=day.data, userdevice="7")
    rows = {each.vm_name: each for each in day.clone(everything=True)}
    assert set(rows) == {"web", "moved"} and "has disks that are not on the copy" in str(rows["moved"].error)


def test_where_a_rescue_has_the_disk_clone_names_the_command_that_takes_it_back(day):
    other = day.lab.vm("other")
    vdi = day.new(day.data)
    mark = {"relvmoiscsi:rescue": f"{day.db.get('VM', other, 'uuid')} {day.uuid(vdi)}"}
    day.db.create("VBD", VM=other, VDI=vdi, userdevice="1", other_config=mark)
    text = str(day.clone_one().error)
    (words,) = re.findall(
        "is a disk of the VM 'other' already. First take the disk back: `relvmoiscsi (pool rescue --done [^`]*)`", text
    )
    assert words.split()[-2:] == [day.copy.sr_uuid, day.uuid(vdi)]


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
    ours = {"relvmoiscsi:" + key for key in ("clone-of", "sr", "run", "done")}
    assert set(new["other_config"]) == {*ours, "mac_seed", "import_task"}
    assert new["other_config"]["mac_seed"] != "seed"
    assert (new["resident_on"], new["suspend_VDI"], new["appliance"]) == (NULL, NULL, NULL)
    assert new["NVRAM"] == {"EFI-variables": "QUJD"} and new["platform"] == {"secureboot": "true"}
    assert new["bios_strings"] == {"bios-vendor": "x"} and new["xenstore_data"] == {"vm-data/a": "1"}
    assert new["generation_id"] not in ("", "a generation")
    assert [db.get("VTPM", ref, "contents") for ref in new["VTPMs"]] == ["a secret"]
    assert new["name_label"] == "web on Production changed 2026-11-21" and "Copy of the VM" in new["name_description"]
    vbds = {vbd["userdevice"]: vbd for vbd in db.records("VBD", VM=day.ref_of(done)).values()}
    assert (vbds["3"]["VDI"], vbds["4"]["VDI"], vbds["4"]["empty"]) == (tools, NULL, True)
    assert vbds["0"]["bootable"] and not any(vbd["currently_attached"] for vbd in vbds.values())
    notes = ["HA is off", "the VM does not start with its host", "without the PCI devices of the host"]
    lost = "without these keys of other_config: 'auto_poweron', 'pci', 'pcix', 'xo:backup:job'"
    assert sorted(done.notes) == [*notes, lost]


def test_only_known_keys_of_platform_and_other_config_are_copied(day):
    """An import checks no rights for a key: keys of a pool-admin, and of a later xapi, are left out."""
    good = {"viridian": "true", "device-model": "qemu-upstream-uefi", "featureset": "0123-abcd"}
    bad = {"hvm_serial": "file:/etc/cron.d/x", "xenguest": "/tmp/x", "new-in-27": "x", "vga": "std -device x,file=/y"}
    ours = {
        "relvmoiscsi:restore:0": "{}",
        "XenCenter.CustomFields.relvmoiscsi:lock:a:1": "{}",
        "default_template": "true",
    }
    day.db.set("VM", day.web, "platform", {**good, **bad})
    day.db.set("VM", day.web, "other_config", {"XenCenter.CustomFields.mine": "x", "hvm_serial": "y", **ours})
    day.db.set("VM", day.web, "is_control_domain", False)
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.set("VBD", vbd, "other_config", {"owner": "true", "backend-kind": "x"})
    done = day.clone_one()
    new = day.vm(done.uuid)
    assert new["platform"] == good
    marks = {"relvmoiscsi:" + key for key in ("clone-of", "sr", "run", "done")}
    assert set(new["other_config"]) - {"import_task", "mac_seed"} == {*marks, "XenCenter.CustomFields.mine"}
    assert [vbd["other_config"] for vbd in day.db.records("VBD", VM=day.ref_of(done)).values()] == [
        {"owner": "true"}
    ] * 2
    assert "without these keys of platform: 'hvm_serial', 'new-in-27', 'vga', 'xenguest'" in done.notes


@pytest.mark.parametrize(("without", "is_group_gone"), [((), False), (("VTPM", "VGPU"), False), (("VGPU",), True)])
def test_without_vtpm_and_vgpu_also_where_the_group_is_gone(day, without, is_group_gone):
    db = day.db
    db.create("VTPM", VM=day.web, contents="a secret")
    group, kind = db.create("GPU_group", GPU_types=["10de/1"]), db.create("VGPU_type", identifier="x")
    db.create("VGPU", VM=day.web, type=kind, GPU_group=group)
    if is_group_gone:
        day.lab.before("PUT /import_metadata", lambda: db.destroy("GPU_group", group))
    done = day.clone_one(without=without)
    assert done.status == MADE and sorted(done.notes) == [f"it has no {cls}" for cls in sorted(without)]
    has = {cls: len(day.vm(done.uuid)[cls + "s"]) for cls in ("VTPM", "VGPU")}
    assert has == {cls: int(cls not in without) for cls in has}


def test_the_vtpm_of_a_snapshot_goes_with_the_snapshot(day):
    snapshot = day.lab.snapshot(day.web, "later", day.elsewhere())
    for vm in (day.web, snapshot):
        day.db.create("VTPM", VM=vm, contents=f"a secret of {vm}")
    done = day.clone_one(snapshots=True)
    assert (done.status, list(done.snapshots)) == (MADE, [])
    (vtpm,) = day.vm(done.uuid)["VTPMs"]
    assert day.db.get("VTPM", vtpm, "contents") == f"a secret of {day.web}"


def test_the_mark_of_a_config_drive_stays(day):
    """xapi takes this key from the VDI that it finds, and gives it what the file says."""
    new = day.new(day.data)
    for vdi in (day.data, new):
        day.db.add_to("VDI", vdi, "other_config", "config-drive", "true")
    assert day.clone_one().status == MADE and day.db.get("VDI", new, "other_config")["config-drive"] == "true"
    assert "config-drive" not in day.db.get("VDI", day.new(day.root), "other_config")


def test_a_suspended_vm_becomes_a_halted_one(day):
    day.db.set("VM", day.web, "power_state", "Suspended")
    day.db.set("VM", day.web, "suspend_VDI", day.elsewhere())
    done = day.clone_one()
    assert (day.vm(done.uuid)["power_state"], day.vm(done.uuid)["suspend_VDI"]) == ("Halted", NULL)
    assert done.notes == ["without the suspended memory: the VM boots as after a power cut"]


def test_snapshots_come_along_where_they_are_asked_for(day):
    first = day.snapshot()
    later = day.db.create("VDI", SR=day.lab.originals["Production"][1], location="x", name_label="a later snapshot")
    day.lab.snapshot(day.web, "since", later)
    plain = day.clone_one()
    assert day.vm(plain.uuid)["snapshots"] == [] and plain.snapshots == []
    day.lab.pool.api.vms.vm_destroy("", day.ref_of(plain))
    done = day.clone_one(snapshots=True)

    new = day.vm(done.uuid)
    (copied,) = new["snapshots"]
    assert day.lab.disks_of(copied) == day.expected(first)
    assert day.db.get("VM", copied, "is_a_snapshot") and new["parent"] == copied
    (snapshot,) = done.snapshots
    assert (snapshot.name, {disk.userdevice: disk.new for disk in snapshot.disks}) == (
        "before the update",
        {device: uuid for device, (_, uuid) in day.lab.disks_of(copied).items()},
    )
    assert done.notes == ["its snapshot 'since' is not on the copy"]
    assert day.clone_one(snapshots=True).status == ALREADY


# --- networks


def test_macs_are_new_and_the_network_is_the_same(day):
    first = day.lab.network("office")  # a second one of this name; xapi would take whichever comes first
    day.db.set("VIF", day.db.refs("VIF", VM=day.web)[0], "network", first)
    (vif,), (old,) = vifs(day, day.ref_of(day.clone_one())), vifs(day, day.web)
    assert vif["MAC"] != old["MAC"] and vif["network"] == first and "maps_to" not in vif["other_config"]


def test_isolated_they_are_on_a_network_without_a_wire_and_nothing_is_called_that_could_harm_an_original(day):
    day.lab.pool.api.calls.clear()
    done = day.clone_one(isolated="nowhere", keep_mac=True)
    calls = {call for call in day.lab.pool.api.calls if any(word in call.split(".")[-1] for word in CHANGING)}
    assert calls <= HARMLESS
    (network,) = day.db.records("network", name_label="nowhere").values()
    (vif,), (old,) = vifs(day, day.ref_of(done)), vifs(day, day.web)
    assert network["PIFs"] == [] and network["VIFs"] == day.vm(done.uuid)["VIFs"] and vif["MAC"] == old["MAC"]
    assert done.networks == {"0": ("office", "nowhere")}
    day.lab.vm("db", day.data, networks=[day.net])
    assert day.clone_one("db", isolated="nowhere").status == MADE, "copies may be on one network"

    day.lab.pool.api.vms.vm_destroy("", day.ref_of(done))
    done = day.clone_one(networks={day.db.get("network", day.net, "uuid"): day.lab.network("lab")}, keep_mac=True)
    assert done.networks == {"0": ("office", "lab")}


def private(day, **more):
    return day.db.create("network", name_label="dmz", **{"other_config": {}, **more})


def with_an_experiment(day):
    """Copied from a copy, marks and all."""
    marks = day.vm(day.clone_one(isolated="dmz").uuid)["other_config"]
    day.lab.vm("an experiment", networks=day.db.refs("network", name_label="dmz"), other_config=marks)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda day: day.lab.network("dmz"), "'dmz' has physical interfaces: it is not isolated"),
        (
            lambda day: day.lab.vm("router", networks=[private(day)]),
            "'dmz' has VMs that are not copies: 'router'. It",
        ),
        (with_an_experiment, "'dmz' has VMs that are not copies: 'an experiment'"),
        (lambda day: private(day, managed=False), "'dmz' is a network of the hosts themselves"),
        (
            lambda day: private(day, other_config={"is_host_internal_management_network": "true"}),
            "'dmz' is a network of the hosts themselves",
        ),
    ],
)
def test_what_is_no_isolated_network(day, happens, said):
    happens(day)
    day.refuses(lambda day: day.clone("web", isolated="dmz"), said)


def test_the_same_mac_twice_on_one_network_is_refused(day):
    fails(day, "Use --isolated NET, or --network OLD=NEW.", keep_mac=True)
    day.clone("web", isolated="nowhere", keep_mac=True)
    (other,) = day.lab.attach(day.lab.clone("Production"))
    (done,) = day.lab.clone_vms(other.sr_uuid, "web", isolated="nowhere", keep_mac=True)
    assert done.status == FAILED and "is on the network 'nowhere' already, where its copy would be" in str(done.error)
    assert len(day.db.refs("VIF", network=day.db.refs("network", name_label="nowhere")[0])) == 1


# --- which, and names


def test_all_that_have_a_disk_there_several_at_once(day):
    day.lab.vm("db", day.data, networks=[day.net])
    day.lab.vm("elsewhere", day.elsewhere())
    mixed(day)
    done = day.clone(everything=True, jobs=10, isolated="nowhere")
    assert [(each.vm_name, each.status) for each in done] == [("db", MADE), ("other", FAILED), ("web", MADE)]
    assert len({each.uuid for each in done}) == len({each.name for each in done}) == 3
    assert [each.status for each in day.clone(everything=True, isolated="nowhere")] == [ALREADY, FAILED, ALREADY]
    (other,) = day.lab.attach(day.lab.clone("Testing"))
    for vm in day.db.refs("VM", name_label="elsewhere") + day.db.refs("VM", name_label="other"):
        day.lab.pool.api.vms.vm_destroy("", vm)
    with pytest.raises(NotFound, match="No VM of the pool has a disk whose copy is on"):
        day.lab.clone_vms(other.sr_uuid, everything=True)


def test_names(day):
    day.lab.vm("web on Production changed 2026-11-21", day.data)
    assert day.clone_one().name == "web (2) on Production changed 2026-11-21"
    day.lab.vm("web")
    day.refuses(lambda day: day.clone("web"), "2 VMs have the name 'web'", UsageError)
    day.refuses(lambda day: day.clone("wbe"), "There is no VM 'wbe'. Did you mean 'web'?", NotFound)


def test_the_name_of_a_clone_has_the_name_of_its_copy_whatever_is_attached_before_or_later(day):
    """Three copies of one minute, cloned from last to first: no number of a VM is another number than of its copy."""
    uuids = [day.copy.sr_uuid]
    for number in (2, 3):
        (another,) = day.lab.attach(day.lab.clone("Production"))
        uuids.append(another.sr_uuid)
        day.db.set("SR", day.db.by_uuid("SR", another.sr_uuid), "name_label", f"P ({number})")
    day.db.set("SR", day.sr, "name_label", "P")
    made = [day.lab.clone_vms(uuid, "web")[0].name for uuid in reversed(uuids)]
    assert made == ["web on P (3)", "web on P (2)", "web on P"]


def test_the_number_of_a_name_that_is_taken_is_behind_the_name_of_the_vm(day):
    """At the end it would be the number of another copy."""
    day.db.set("SR", day.sr, "name_label", "P")
    day.lab.vm("web on P", day.data)
    (done,) = day.clone("web", name="{vm} on {sr}")
    day.lab.pool.api.vms.vm_destroy("", day.ref_of(done))
    (other,) = day.clone("web", name="on {sr}")
    assert (done.name, other.name) == ("web (2) on P", "on P")


@pytest.mark.parametrize(("changed", "name"), [("2026-11-21T00:11:00Z", "web 2026-11-21"), ("", "web unknown")])
def test_the_date_in_a_name_is_the_day_of_the_last_change_as_in_the_name_of_an_sr(day, changed, name):
    config = {**day.db.get("SR", day.sr, "other_config"), CHANGED: changed}
    day.db.set("SR", day.sr, "other_config", config)
    assert [each.name for each in day.clone("web", name="{vm} {date}")] == [name]


def test_a_text_in_the_form_of_a_uuid_is_no_name(day):
    """The VM with this UUID is gone, and a VM-admin has named another VM after it."""
    gone, uuid = "5D0d2b3a-7777-4a4a-9b9b-0123456789ab", day.db.get("VM", day.web, "uuid")
    day.db.set("VM", day.web, "name_label", gone)
    said = f"There is no VM with the UUID {gone}. To use the VM with this name, give {uuid}."
    day.refuses(lambda day: day.clone(gone), said, UsageError)
    day.refuses(lambda day: day.clone(), "No VM is selected", UsageError)


@pytest.mark.parametrize(
    ("template", "name"), [("{{{vm}}} of {sr}", "{web} of Production changed 2026-11-21"), ("Ref:5", "Ref:5")]
)
def test_a_name_may_have_braces_or_look_like_a_reference(day, template, name):
    day.db.set("VM", day.web, "name_description", "Ref: ticket 5")
    (done,) = day.clone("web", name=template)
    assert done.status == MADE and done.name == day.vm(done.uuid)["name_label"] == name


def test_a_text_of_a_vm_admin_may_look_like_a_reference(day):
    """Each clone was destroyed: only a reference that an export writes can lead into the file."""
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.set("VBD", vbd, "qos_algorithm_type", "Ref:5")
    day.db.set("VIF", day.db.refs("VIF", VM=day.web)[0], "qos_algorithm_type", "Ref:5")
    done = day.clone_one()
    (vbd, *_) = day.db.records("VBD", VM=day.ref_of(done)).values()
    assert done.status == MADE and vbd["qos_algorithm_type"] == "Ref:5"


FIELDS = "may contain only the fields vm, date and sr in braces"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, FIELDS) for name in ("{vm} {run}", "{vm:d}", "{vm!r}", "{vm:{date}}", "{vm.name}", "{vm[0]}", "{}")),
        *((name, "is blank") for name in ("", "  ")),
        *((name, "not text") for name in ("a\x01b", "{vm}\n", "a\udc80", "a\ufffe")),
        ("{vm", "cannot be read"),
    ],
)
def test_names_that_no_vm_can_have(name, said):
    with pytest.raises(UsageError, match=said):
        choice.verify_template(name)


def test_a_network_gets_no_name_that_no_pool_can_send(day):
    with pytest.raises(UsageError, match="--isolated 'bad.x1be name' contains bytes that are not text"):
        day.clone_one(isolated="bad\x1be name")
    assert not day.db.refs("network", name_label="bad\x1be name")


def test_a_clone_on_a_copy_with_a_name_that_xml_forbids_gets_another_name(day):
    """Another client has named the copy: the pool closed the connection during each import."""
    day.db.set("SR", day.sr, "name_label", "bad\x1be name")
    done = day.clone_one()
    assert (done.status, done.name) == (MADE, "web on bad?e name")


# --- the wire


@pytest.mark.parametrize(("role", "may"), [("vm-operator", False), ("vm-admin", True)])
def test_a_role_that_may_not_is_told(day, role, may):
    """The answer is 403; why stands in the task alone. Whoever may change VMs may clone, and make a network."""
    day.lab.pool.api.users["eve"] = ("x", role)
    eve = {"where": day.lab.where()._replace(user="eve", password="x")}
    if may:
        assert day.clone_one(isolated="nowhere", keep_mac=True, **eve).status == MADE
        return
    error = fails(day, "The user of this session may not call GET /export_metadata", **eve)
    assert isinstance(error, PoolFailure) and error.code == "RBAC_PERMISSION_DENIED"


def test_a_request_has_a_short_head_and_an_import_is_awaited_by_its_task(day, monkeypatch):
    """xapi says 200 when it begins, and ends the connection when it is done: perhaps later than a read may last."""
    real = http.client.HTTPResponse.read

    def read(self, *words):
        assert self._method != "PUT"
        return real(self, *words)

    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    monkeypatch.setattr(transfer, "MOST_HEADER_BYTES", 400)
    assert day.clone_one().status == MADE


def archive_of(content=b"some text", **fields):
    member = tarfile.TarInfo("ova.xml")
    member.size = len(content)
    for name, value in fields.items():
        setattr(member, name, value)
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512 + 1024)


@pytest.mark.parametrize(
    "archive",
    [
        *(archive_of(type=kind) for kind in b"1 2 3 4 5 6 7 S L K x g V".split()),
        *(
            archive_of(name=name)
            for name in ("/ova.xml", "../ova.xml", "./ova.xml", "x/ova.xml", "ova.xml/", "x" * 300)
        ),
        *(archive_of(size=size) for size in (1 << 20, 1 << 60, -1, -(1 << 60))),
        archive_of(type=b"L") * 3000,
        archive_of(b"9999 size=99999999999999999999\n", type=b"x") + archive_of(),
        archive_of()[:515],
        archive_of().replace(b"ustar", b"\xff\xff\xff\xff\xff"),
    ],
)
def test_only_a_regular_file_of_its_name_and_size_is_taken_from_an_export(archive):
    with pytest.raises(Refused, match="The export of the pool (has no ova.xml|is not a tar archive)"):
        ova_file.unpack(archive)


def test_an_answer_that_is_no_tar_is_told():
    good = ova_file.pack(b"some text")
    for archive, said in ((b"", "not a tar archive"), (good.replace(b"ova.xml", b"oval.xm"), "has no ova.xml")):
        with pytest.raises(Refused, match=said):
            ova_file.unpack(archive)
    assert ova_file.unpack(good) == b"some text"


@pytest.fixture
def impatient(monkeypatch):
    """Who waits for a task that no handler has taken does not wait long."""
    monkeypatch.setattr(pool_transfer, "VERDICT_SECONDS", 0.05)


@pytest.mark.states("status", few=2)
@pytest.mark.parametrize("status", [302, 401, 403, 500])
def test_an_answer_after_which_no_task_ends_ends_the_wait(day, monkeypatch, impatient, status):
    page = b"<html><body><h1>HTTP</h1>No room &lt;here&gt;.</body></html>"
    monkeypatch.setattr(day.lab.pool.api.transfer, "answer", lambda *_: (status, page))
    fails(day, f"answered {status} to GET /export_metadata: HTTP No room <here>.")
    assert not day.db.refs("task"), "nobody else would end it"


@pytest.mark.parametrize("path", ["/export_metadata", "/import_metadata"])
def test_a_handler_that_fails_before_it_takes_the_task_is_told(day, impatient, path):
    def refuse(_method, its):
        if its == path:
            raise XenError("INTERNAL_ERROR", "Unix.Unix_error(Unix.ENOSPC)")

    day.lab.pool.api.transfer.refuse = refuse
    fails(day, "Unix.Unix_error(Unix.ENOSPC)")
    assert not day.db.refs("task") and not day.copies()


def test_a_disk_whose_sr_was_forgotten_is_told_in_words(halted):
    sr = halted.lab.originals["Production"][1]

    def gone(_method, _path):
        for pbd in halted.db.refs("PBD", SR=sr):
            halted.db.set("PBD", pbd, "currently_attached", False)
        halted.lab.pool.storage.sr_forget("", sr)

    halted.lab.pool.api.transfer.refuse = gone
    assert "xapi removes such a disk from the VM within a minute" in str(halted.clone_one().error)
