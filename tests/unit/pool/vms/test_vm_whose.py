# SPDX-License-Identifier: LGPL-2.1-only
"""Whose data a VDI has: of a VM whose disk the VDI was before, and not of whoever says so in records or in a mark."""

import json

import pytest

from kit.pool_verbs import VBD, bring_back, keep, lend, run, second_copy, take_home, undo
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import records
from relvmoiscsi.pool.vms import choice, clone, inventory, owners, save_vms, transfer
from relvmoiscsi.pool.vms.restore_entries import RESTORED

GONE = "aaaaaaaa-0000-4000-8000-000000000000"
WAS = "relvmoiscsi:was"
WISH = choice.CloneRequest(run="r", jobs=1, patience=0.01)


def destroy_disks(day):
    for vdi in (day.root, day.data):
        day.db.destroy("VDI", vdi)


def destroy_web(day):
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.destroy("VBD", vbd)
    day.db.destroy("VM", day.web)
    destroy_disks(day)


def restored(day):
    bring_back(day)


def came_home(day):
    bring_back(day)
    take_home(day)


def came_home_alone(day):
    came_home(day)
    destroy_disks(day)


def kept(day):
    bring_back(day)
    keep(day)


def cut_between_swaps(day):
    """The journal alone says whose the disk is."""
    bring_back(day)
    day.db.destroy("VBD", day.vbd("1"))


def snapshot_alone(day):
    day.lab.snapshot(day.web, "snap", day.data)
    day.db.destroy("VBD", day.vbd("1"))


def clone_alone(day):
    day.clone_one()
    destroy_web(day)


#: what became of "web" since the LUN was copied
FATES = [restored, came_home, came_home_alone, kept, cut_between_swaps]


def from_records(day, sr, vm, disk):
    """(Why the records are not believed, the result): records of an unknown writer say that this VM has the disk."""

    def work(calls, found, copy):
        pool = records.read(calls)
        document = transfer.export_vm(calls, day.tenant, snapshots=False)
        (own,) = [vdi["uuid"] for vdi in found.disks_of(day.tenant).values()]
        for old, new in ((found.vms[day.tenant]["uuid"], vm), (own, disk)):
            document = document.replace(old.encode(), new.encode())
        one = saved_vms.SavedVm(vm, "mine", "Halted", (saved_vms.SavedDisk("0", disk, "x"),))
        packed = saved_vms.packed(one, document)
        content = saved_vms.pack(copy.original, "2026-11-22T12:00:00Z", 9, [packed], b"")
        saved = saved_vms.unpack(saved_vms.read_header(content, "x"), content[saved_vms.SavedHeader.SIZE :], "x")
        sources = save_vms.choose(pool, found, copy, (saved, False), ["mine"])
        (done,) = clone.clone(calls, pool, copy, sources, WISH)
        return str(sources[0].problem or ""), done

    return run(day, work, sr)


def with_a_tenant(day):
    """A second copy, and a VM of a tenant with a disk of its own."""
    day.other = second_copy(day)
    day.tenant = day.lab.vm("tenant", day.lab.vdi("Production", "before")[0])


@pytest.fixture
def tenants(day_after):
    return day_after(with_a_tenant)


@pytest.mark.parametrize("fate", [*FATES, clone_alone])
def test_trusted_records_give_a_new_vm_no_earlier_state_of_a_disk_of_another_vm(tenants, fate):
    data = tenants.uuid(tenants.data)
    fate(tenants)
    problem, done = from_records(tenants, tenants.other, GONE, data)
    assert f"the disk '{data}' has data of the VM 'web" in problem
    assert done.status == clone.FAILED


def test_trusted_records_make_again_a_vm_of_which_only_clones_are_left(tenants):
    web, data = tenants.db.get("VM", tenants.web, "uuid"), tenants.uuid(tenants.data)
    clone_alone(tenants)
    problem, done = from_records(tenants, tenants.other, web, data)
    assert (problem, done.status) == ("", clone.MADE)
    assert any(f"{data} (disk 0 of 'mine' by the records) has data of the VM 'web on" in note for note in done.notes)


def test_a_disk_that_was_lent_is_no_disk_of_the_helper(tenants):
    data = tenants.uuid(tenants.data)
    lend(tenants, data, tenants.lab.vm("helper"))
    destroy_web(tenants)
    problem, done = from_records(tenants, tenants.other, GONE, data)
    assert (problem, done.status) == ("", clone.MADE)


# --- the mark


def marked_vm(day, *uuids):
    """The disk of a new VM "evil", which is newer than the copies, with a mark that names these UUIDs."""
    sr = day.lab.originals["Production"][1]
    disk = day.db.create("VDI", SR=sr, name_label="mine", managed=True, virtual_size=8 << 20, location="mine")
    day.lab.vm("evil", disk)
    day.db.set("VDI", disk, "other_config", {WAS: " ".join([day.uuid(disk), *uuids])})
    return disk


def cloned(day, name, sr):
    def work(calls, found, copy):
        pool = records.read(calls)
        return clone.clone(calls, pool, copy, choice.choose(pool, found, copy, [name]), WISH)

    (done,) = run(day, work, sr)
    return done


@pytest.mark.parametrize("fate", [*FATES, snapshot_alone, clone_alone])
def test_a_mark_gives_no_vm_an_earlier_state_of_a_disk_of_another_vm(tenants, fate):
    data = tenants.uuid(tenants.data)
    fate(tenants)
    marked_vm(tenants, data)
    done = cloned(tenants, "evil", tenants.other)
    assert done.status == clone.FAILED
    assert f"its mark {WAS} names the VDI {data}, which has data of the VM 'web" in str(done.error)


@pytest.mark.parametrize("what", ["metadata", "suspend", "redo_log", "records", "memory of a snapshot"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_mark_gives_no_vm_what_is_no_disk(tenants, what, is_gone):
    db = tenants.db
    db.destroy("VBD", tenants.vbd("1"))
    old, new = (
        tenants.data,
        db.by_uuid("VDI", derived_uuid(db.get("SR", tenants.other, "uuid"), tenants.uuid(tenants.data))),
    )
    field, value = ("name_label", saved_vms.NAME_LABEL) if what == "records" else ("type", what.split()[0])
    for vdi in (old, new):
        db.set("VDI", vdi, field, {"memory": "suspend"}.get(value, value))
    if what.startswith("memory"):
        db.set("VM", tenants.lab.snapshot(tenants.web, "checkpoint"), "suspend_VDI", old)
    marked_vm(tenants, tenants.uuid(old))
    if is_gone:
        db.destroy("VDI", old)
    done = cloned(tenants, "evil", tenants.other)
    assert done.status == clone.FAILED and "has disks that are not on the copy" in str(done.error)
    assert is_gone or "which is no disk of a VM, but" in str(done.error)


def test_a_uuid_in_two_marks_counts_for_no_disk_and_each_message_says_so(tenants):
    data = tenants.uuid(tenants.data)
    came_home(tenants)
    home = tenants.lab.disks_of(tenants.web)["1"][1]
    for vbd in tenants.db.refs("VBD", VM=tenants.web):
        tenants.db.destroy("VBD", vbd)
    marked_vm(tenants, data)
    done = cloned(tenants, "evil", tenants.other)
    assert done.status == clone.FAILED
    assert f"names the VDI {data}, which is in another mark too, of the VDI {home}" in str(done.error)


def test_the_plan_names_the_vdi_that_a_disk_was_before(tenants):
    data = tenants.uuid(tenants.data)
    came_home(tenants)
    done = cloned(tenants, "web", tenants.other)
    home = tenants.lab.disks_of(tenants.web)["1"][1]
    assert done.status == clone.MADE
    assert f"the disk 1 of 'web' ({home}) was {data} when the LUN was copied, by its mark {WAS}" in done.notes


@pytest.mark.parametrize("before", ["clone", "lent", "snapshot", "vm-clone", "journal of a copy"])
def test_the_mark_of_a_disk_that_came_home_counts_whoever_else_has_its_data(tenants, before):
    """A clone from another copy, a VM that has such a disk lent, a snapshot, and what xapi has copied with its keys.

    The tenant has a snapshot of the disk, as a backup does.
    """
    db = tenants.db
    if before == "journal of a copy":
        bring_back(tenants)
        tenants.lab.vm("web-dev", other_config=db.get("VM", tenants.web, "other_config"))
        assert any(key.startswith(RESTORED) for key in db.get("VM", tenants.web, "other_config"))
        take_home(tenants)
    else:
        came_home(tenants)
    if before == "snapshot":
        snapshot = db.create("VDI", SR=db.get("VDI", tenants.data, "SR"), managed=True, snapshot_of=tenants.data)
        tenants.lab.snapshot(tenants.web, "snap", snapshot)
    third = second_copy(tenants)
    if before == "clone":
        assert cloned(tenants, "web", third).status == clone.MADE
    if before == "lent":
        lend(tenants, tenants.uuid(tenants.data), tenants.lab.vm("helper"), sr=third)
    if before == "vm-clone":
        home = db.by_uuid("VDI", tenants.lab.disks_of(tenants.web)["1"][1])
        config = db.get("VDI", home, "other_config")
        copied = db.create("VDI", SR=db.get("VDI", home, "SR"), managed=True, other_config=config)
        tenants.lab.vm("web-dev", copied)
    done = cloned(tenants, "web", tenants.other)
    assert (done.status, done.error) == (clone.MADE, None)


class NoCopies:
    """A pool without a copy of an SR."""

    def copies(self):
        return []


@pytest.mark.parametrize("is_circle", [True, False])
def test_the_work_grows_with_the_number_of_marks_alone(is_circle):
    """A vm-admin marks N disks, each with the next 20 disks; in a circle, the first disk is next to the last."""

    def looks(number):
        seen = []

        class Counted(inventory.Inventory):
            def vms_with_disk(self, vdi, with_snapshots=False):
                seen.append(vdi)
                return super().vms_with_disk(vdi, with_snapshots)

        uuids = [f"{at:08x}-0000-4000-8000-000000000000" for at in range(number)]
        vdis = {
            uuid: {
                "uuid": uuid, "snapshot_of": inventory.NULL, "is_a_snapshot": False, "type": "user", "name_label": "x",
                "SR": "sr", "sm_config": {}, "virtual_size": 1,
                "other_config": {WAS: " ".join((uuids[at:] + uuids * is_circle)[:21])},
            }
            for at, uuid in enumerate(uuids)
        }  # fmt: skip
        marked = owners.earlier_uuids(NoCopies(), Counted({}, {}, {}, {}, vdis))
        assert len(marked) == number
        return len(seen)

    assert looks(80) < 3 * looks(40)  # a walk for each mark: 4 times


@pytest.mark.parametrize("end", [inventory.NULL, "0", "a disk of a VM"], ids=["no disk", "a circle", "a disk"])
def test_a_chain_of_snapshots_is_walked_once(end):
    """A vm-admin makes a chain of any length (VDI.pool_introduce). Each VDI has the data of the disk at its end."""
    seen = []

    class Counted(inventory.Inventory):
        def vms_with_disk(self, vdi, with_snapshots=False):
            seen.append(vdi)
            return super().vms_with_disk(vdi, with_snapshots)

    links = [*map(str, range(50))]
    vdis = {link: {"snapshot_of": after} for link, after in zip(links, [*links[1:], end])}
    vdis["a disk of a VM"] = {"snapshot_of": inventory.NULL}
    vbds = {"vbd": {"VM": "vm", "VDI": "a disk of a VM", "type": "Disk"}}
    found = Counted({"vm": {"is_a_snapshot": False, "suspend_VDI": ""}}, vbds, {}, {}, vdis)
    for order in links, links[::-1]:
        assert [found.owners_of(link) for link in order] == [["vm"] if "VM" in end else []] * 50
    assert len(seen) <= len(vdis)


# --- a journal


@pytest.mark.parametrize(
    ("key", "text", "counts"),
    [
        (RESTORED + "0", '{{"vm": "{vm}", "old": "{vdi}"}}', True),
        (RESTORED + "xvda", "{vdi}", True),
        (RESTORED + "0", "a{vdi}{vdi}", True),
        (RESTORED + "x", '{{"vm": "{vm}", "old": "{vdi}"}}', False),
        (RESTORED, '{{"vm": "{vm}", "old": "{vdi}"}}', False),
    ],
    ids=["unreadable", "no object", "letters around", "no device", "no end"],
)
def test_an_unreadable_entry_says_whose_a_disk_is_and_a_key_that_no_run_writes_does_not(halted, key, text, counts):
    bring_back(halted)
    vdi, vm = halted.uuid(halted.data), halted.db.get("VM", halted.web, "uuid")
    halted.set_journal(lambda _: {key: text.format(vm=vm, vdi=vdi)})
    halted.db.destroy("VBD", halted.vbd("1"))
    found = run(halted, lambda calls, found, copy: owners.whose(records.read(calls), found, vdi))
    assert found == ([halted.web] if counts else [])


# --- the journal


def untouched(day):
    """It is a disk of "web"."""


@pytest.mark.states("fate", few=1)
@pytest.mark.parametrize("fate", [untouched, restored, kept, cut_between_swaps])
@pytest.mark.parametrize("work", [(), ("0",), ("5",), undo], ids=["all", "another disk", "that disk", "undo"])
def test_a_journal_gives_no_vm_a_disk_of_another_vm(tenants, fate, work):
    """With a true journal, a restore of one disk finishes what an earlier run has begun with the others."""
    data = tenants.uuid(tenants.data)
    fate(tenants)
    vm, sr = tenants.db.get("VM", tenants.tenant, "uuid"), tenants.db.get("SR", tenants.other, "uuid")
    entry = {
        **{"vm": vm, "userdevice": "5", "old": data, "of": data, "new": derived_uuid(sr, data), "sr": sr},
        **{"date": "x", "home": tenants.copy.of_sr},
        "vbd": VBD,
    }
    tenants.db.set("VM", tenants.tenant, "other_config", {RESTORED + "5": json.dumps(entry)})
    said = f"names the VDI {data} for the disk 5[.] That VDI has data of 'web', .* restore --keep {vm}"
    if work == undo:
        tenants.refuses(lambda day: undo(day, day.tenant), said)
    else:
        for is_dry in (True, False):
            tenants.refuses(
                lambda day, is_dry=is_dry: bring_back(day, day.tenant, work, sr=day.other, dry_run=is_dry), said
            )
    keep(tenants, tenants.tenant)
    assert [*tenants.lab.disks_of(tenants.tenant)] == ["0"]


# --- a CD


@pytest.mark.parametrize("fate", [restored, kept, came_home])
def test_a_cd_gives_no_vm_the_data_of_another_vm(tenants, fate):
    """VBD.insert takes the role vm-operator, and any VDI."""
    data = tenants.uuid(tenants.data)
    fate(tenants)
    tenants.db.create("VBD", VM=tenants.tenant, VDI=tenants.data, userdevice="3", type="CD", mode="RO", empty=False)
    found = run(tenants, lambda calls, found, copy: owners.whose(records.read(calls), found, data), tenants.other)
    assert found == [tenants.web]
    problem, done = from_records(tenants, tenants.other, tenants.db.get("VM", tenants.tenant, "uuid"), data)
    assert "of the VM 'web" in problem and done.status == clone.FAILED


def test_a_cd_takes_no_disk_that_came_home_from_its_vm(tenants):
    came_home(tenants)
    tenants.db.create("VBD", VM=tenants.tenant, VDI=tenants.data, userdevice="3", type="CD", mode="RO", empty=False)
    done = cloned(tenants, "web", tenants.other)
    assert (done.status, done.error) == (clone.MADE, None)
