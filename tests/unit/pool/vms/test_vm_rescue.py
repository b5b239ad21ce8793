# SPDX-License-Identifier: LGPL-2.1-only
"""One disk of a copy for a VM that looks into it, and back."""

import pytest

from kit.pool.errors import XenError
from kit.pool_verbs import bring_back, discard, keep, lend, run, second_copy, take_back, take_home
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.vms import inventory, rescue

MAY_NOT = "A running HVM VM cannot get a read-only disk. .*Shut the VM down"


@pytest.fixture
def helper(day):
    """A VM that takes disks while it runs, also to read alone: it is no HVM."""
    return day.lab.vm("helper", day.elsewhere(), state="Running", domain_type="pv_in_pvh")


@pytest.fixture
def windows(day):
    """Gives a running HVM VM."""
    return lambda **more: day.lab.vm("windows", day.elsewhere(), state="Running", **more)


def test_a_running_vm_sees_it_at_once_read_only(day, helper):
    before = day.db.records("VBD")
    done = lend(day, "root disk", helper)
    ((ref, vbd),) = [item for item in day.db.records("VBD").items() if item[0] not in before]

    assert (done.status, done.mode, done.userdevice) == ("lent", "RO", "1")
    assert (vbd["VM"], vbd["VDI"], vbd["mode"], vbd["currently_attached"]) == (helper, day.new(day.root), "RO", True)
    assert lend(day, "root disk", helper).status == "already lent" and len(day.db.refs("VBD")) == len(before) + 1
    (back,) = take_back(day)
    assert back.status == "taken back" and day.db.records("VBD") == before and ref not in day.db.refs("VBD")
    assert take_back(day) == []


def test_a_plan_says_that_a_vdi_for_reading_alone_is_not_lent_for_writing(day, helper):
    day.db.set("VDI", day.new(day.data), "read_only", True)
    for dry_run in (True, False):
        day.refuses(lambda day, dry=dry_run: lend(day, "data", helper, rw=True, dry_run=dry), "is for reading alone")
    assert lend(day, "data", helper).mode == "RO"


def test_the_disks_of_the_vm_are_compared_with_one_walk_over_the_marks(day, helper):
    """A vm-admin marks any number of VDIs, each with other such VDIs, and a VM may have 250 of them."""
    uuids, walks = [f"{at:08x}-0000-4000-8000-000000000000" for at in range(30)], []
    for at, uuid in enumerate(uuids):
        marks = {records.WAS: " ".join([uuid, *(uuids[at:] + uuids)[1:10]])}
        vdi = day.db.create("VDI", uuid, SR=day.db.get("VDI", day.elsewhere(), "SR"), location=uuid, other_config=marks)
        day.db.create("VBD", VM=helper, VDI=vdi, userdevice=str(10 + at))

    class Counted(inventory.Inventory):
        def grouped(self, kind, *path):
            walks.extend([1] if path == ("snapshot_of",) else [])
            return super().grouped(kind, *path)

    def lent(calls, found, copy):
        pool, vdi = records.read(calls), rescue.find(found, copy, "root disk")
        walks.clear()
        return rescue.lend(calls, pool, Counted(*found), copy, vdi, helper, False, dry_run=True)

    assert run(day, lent).status == "would be lent" and len(walks) < 5 * len(day.db.refs("VDI"))


def test_it_is_named_by_its_uuid_or_that_of_the_original(day, helper):
    old, new = day.uuid(day.root), day.uuid(day.new(day.root))
    before = day.rows()
    assert lend(day, old, helper, dry_run=True).vdi == lend(day, new, helper, dry_run=True).vdi == new
    assert lend(day, "before", helper, dry_run=True).status == "would be lent" and day.rows() == before
    for text, near in (("dta", " Did you mean 'data'[?]"), (day.uuid(day.elsewhere()), "")):
        said = f"There is no VDI '{text}'.{near} `relvmoiscsi pool map {day.copy.sr_uuid}` lists the VDIs"
        day.refuses(lambda day, text=text: lend(day, text, helper), said, NotFound)


def test_disks_of_one_name_are_told_apart_by_their_vms(day, helper):
    """A disk before a restore, the disk that came home, and disks of a template have one name."""
    mine, other = day.new(day.root), day.new(day.data)
    for vdi in (mine, other, day.new(day.lab.vdi("Production", "before")[0])):
        day.db.set("VDI", vdi, "name_label", "mail store")
    day.db.destroy("VBD", day.vbd("1"))
    said = rf"{day.uuid(mine)} \(of 'web', .* MiB\)"
    text = day.refuses(lambda day: lend(day, "mail store", helper), said, UsageError)
    assert f"{day.uuid(other)} (of no VM, " in text and " (a snapshot, of 'web', " in text


def test_to_write_and_to_a_halted_vm(day, helper):
    day.shut_down(helper)
    done = lend(day, "data", helper, rw=True)
    vbd = day.db.record("VBD", day.db.refs("VBD", VDI=day.new(day.data))[0])
    assert done.mode == vbd["mode"] == "RW" and not vbd["currently_attached"]
    for dry_run in (True, False):
        day.refuses(
            lambda day, dry=dry_run: lend(day, "data", helper, dry_run=dry), "already has this disk, in another mode"
        )
    assert [each.name for each in take_back(day, "data", helper)] == ["data"]


def test_a_run_that_was_cut_before_the_plug_is_finished(day, helper):
    day.cut(lambda day: lend(day, "data", helper), "Async.VBD.plug")
    assert lend(day, "data", helper).status == "lent" and len(day.db.refs("VBD", VDI=day.new(day.data))) == 1


# --- what a guest does not take, or give


def test_what_a_running_vm_does_not_take_it_has_not_at_its_next_boot(day, windows):
    vm, before = windows(tools=False), day.db.records("VBD")
    words = r"has no PV drivers: the pool can plug disks only while the VM is shut down\."
    with pytest.raises(PoolFailure, match=words + ".* The disk was removed from the VM 'windows'"):
        lend(day, "root disk", vm, rw=True)
    assert day.db.records("VBD") == before
    day.shut_down(vm)
    assert lend(day, "root disk", vm, rw=True).status == "lent"
    day.start(vm)
    with pytest.raises(PoolFailure, match="only while the VM is shut down. Shut the VM down"):
        take_back(day)
    day.shut_down(vm)
    assert [each.status for each in take_back(day)] == ["taken back"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_running_hvm_vm_is_offered_no_read_only_disk(day, windows, dry_run):
    vm = windows()
    day.refuses(lambda day: lend(day, "root disk", vm, dry_run=dry_run), MAY_NOT)
    assert "VBD.create" not in day.lab.pool.api.calls
    day.shut_down(vm)
    assert lend(day, "root disk", vm).status == "lent"
    day.start(vm)
    assert lend(day, "root disk", vm, dry_run=dry_run).status == "already lent"


def test_a_vm_that_is_started_meanwhile_does_not_keep_a_read_only_disk(day, windows):
    vm, before = windows(domain_type="pv"), day.db.records("VBD")
    day.lab.before("VBD.create", lambda: day.db.set("VM", vm, "domain_type", "hvm"))
    with pytest.raises(PoolFailure, match="cannot get a read-only disk.* The disk was removed from the VM 'windows'."):
        lend(day, "root disk", vm)
    assert day.db.records("VBD") == before


def test_one_that_is_mounted_stays_and_keeps_no_other(day, helper):
    lend(day, "root disk", helper), lend(day, "data", helper)
    held = [ref for ref, row in day.db.records("VBD", VM=helper).items() if inventory.LENT in row["other_config"]][0]

    def unplug(session, vbd):
        if vbd == held:
            raise XenError("DEVICE_DETACH_REJECTED", "VBD", vbd, "the guest has it mounted")
        real(session, vbd)

    real = day.lab.answer("VBD.unplug", unplug)
    found = take_back(day)
    assert sorted(each.status for each in found) == ["failed", "taken back"]
    (error,) = [each.facts()["problem"] for each in found if each.error]
    assert "the guest has it mounted" in error and day.db.exists("VBD", held)
    assert "Unmount the disk in the guest of 'helper', then repeat the command." in error


def test_a_disk_of_a_suspended_vm_comes_back_after_its_resume(day, helper):
    lend(day, "data", helper)
    day.db.set("VM", helper, "power_state", "Suspended")
    day.refuses(take_back, "is suspended, and its disk 1 is plugged in.* Resume the VM, or shut the VM down. Then")
    day.db.set("VM", helper, "power_state", "Running")
    assert [each.status for each in take_back(day)] == ["taken back"]


# --- never two writers, never two copies of one disk in one VM


def lend_to_another(day):
    lend(day, "data", day.lab.vm("another", day.elsewhere()), rw=True)


@pytest.mark.parametrize("work", [lend_to_another, bring_back], ids=["lend", "restore"])
def test_a_lent_disk_is_free_for_another_use_after_the_command_that_is_told(day, helper, work):
    lend(day, "data", helper, rw=True)
    day.shut_down(day.web)
    disk, vm = day.db.get("VDI", day.new(day.data), "uuid"), day.db.get("VM", helper, "uuid")
    with pytest.raises(Refused) as refused:
        work(day)
    way = f"Or take the disk back: `relvmoiscsi pool rescue --done --vm {vm} {day.copy.sr_uuid} {disk}`."
    assert str(refused.value).endswith(way)
    take_back(day)
    work(day)


@pytest.mark.parametrize("work", [lend_to_another, bring_back], ids=["lend", "restore"])
def test_no_command_destroys_a_vm_with_a_disk_of_its_own_whatever_its_marks_say(day, helper, work):
    day.shut_down(day.web), day.shut_down(helper)
    day.db.create("VBD", VM=helper, VDI=day.new(day.data), userdevice="7")
    marks = {inventory.COPY_OF: day.db.get("VM", day.web, "uuid"), inventory.ON_SR: day.copy.sr_uuid}
    day.db.set("VM", helper, "other_config", marks)
    with pytest.raises(Refused) as refused:
        work(day)
    assert str(refused.value).endswith("Or shut 'helper' down, and remove the disk from it.")


def test_never_two_writers(day, helper):
    new = day.db.by_uuid("VM", day.clone("web")[0].uuid)
    said = "is a disk of the VM 'web on Production changed 2026-11-21': two VMs must not"
    day.refuses(lambda day: lend(day, "root disk", helper, rw=True), said)
    day.refuses(lambda day: lend(day, "root disk", new, rw=True), "two VMs must not")
    assert lend(day, "root disk", helper).mode == "RO"
    take_back(day)
    day.start(new)
    day.refuses(lambda day: lend(day, "root disk", helper), "two VMs must not use one disk")


def in_a_drive_for_cds(day, vm):
    """Each vm-admin may change the type of a drive."""
    day.db.create("VBD", VM=vm, VDI=day.new(day.data), userdevice="3", type="CD", currently_attached=True)


def as_memory(day, vm):
    day.db.set("VM", vm, "suspend_VDI", day.new(day.data))


@pytest.mark.parametrize("has_disk", [in_a_drive_for_cds, as_memory])
def test_a_vm_that_has_the_vdi_in_another_way_is_its_user(day, helper, has_disk):
    has_disk(day, day.lab.vm("owner", day.elsewhere()))
    day.refuses(lambda day: lend(day, "data", helper, rw=True), "is a disk of the VM 'owner': two VMs must not")


MEANWHILE = {
    "has just attached this disk": lambda day, _owner: day.lab.vm("third", day.new(day.root)),
    "is running meanwhile": lambda day, owner: day.start(owner),
    "is busy with the VM 'owner'": lambda day, owner: day.db.set("VM", owner, "current_operations", {"x": "migrate"}),
}


@pytest.mark.parametrize("said", MEANWHILE)
def test_what_has_changed_since_the_question(day, helper, said):
    """A restored VM has the disk and is halted: it may be read, as long as that stays so."""
    new = day.new(day.root)
    owner = day.lab.vm("owner", new)

    def meanwhile(calls, found, copy):
        MEANWHILE[said](day, owner)
        return rescue.lend(calls, records.read(calls), found, copy, new, helper, False)

    with pytest.raises(Refused, match=said):
        run(day, meanwhile)
    assert helper not in [vbd["VM"] for vbd in day.db.records("VBD", VDI=new).values()]


def test_the_disk_of_a_vm_that_is_made_during_the_reading_is_not_lent(day, helper):
    """The reading has the drive of a VM that it has not."""
    day.lab.before("VBD.get_all_records", lambda: day.lab.vm("third", day.new(day.root)))
    with pytest.raises(Refused, match="has just attached this disk"):
        lend(day, "root disk", helper)


def test_not_to_the_vm_that_has_the_original(day):
    day.refuses(lambda day: lend(day, "root disk", day.web, dry_run=True), "has the original of this disk")


def test_not_beside_another_copy_of_the_same_disk(day, helper):
    second, has_it = second_copy(day), "The VM '.*' has this or another copy of this disk"
    clone = day.db.by_uuid("VM", day.clone("web")[0].uuid)
    lend(day, "root disk", helper)
    day.refuses(lambda day: lend(day, "root disk", helper, sr=second), has_it)
    assert lend(day, "data", helper, sr=second).status == "lent"
    day.refuses(lambda day: lend(day, "root disk", clone, sr=second), has_it)
    day.shut_down()
    take_back(day)
    day.lab.pool.api.vms.vm_destroy("", clone)
    bring_back(day)
    for sr in (day.sr, second):
        day.refuses(lambda day, sr=sr: lend(day, "root disk", day.web, sr=sr), has_it)


def home_by_run(day):
    take_home(day)


def home_by_another_tool(day):
    """ "Migrate VDI" of XenCenter."""
    for device in "01":
        vdi, home = day.db.get("VBD", day.vbd(device), "VDI"), day.lab.originals["Production"][1]
        day.lab.pool.api.vms.vdi_pool_migrate("", vdi, home, {})
    keep(day)


def home_and_cut(day):
    day.cut(take_home, "VDI.add_to_other_config")


def home_and_away(day):
    """The disks before, and the copy that the disks came from, are gone."""
    take_home(day)
    for vdi in (day.root, day.data):
        day.lab.pool.api.vms.vdi_destroy("", vdi)
    discard(day)


def home_from_a_third(day):
    """The disks come home twice, and those of the first time are destroyed."""
    take_home(day)
    at_home = [day.db.get("VBD", day.vbd(device), "VDI") for device in "01"]
    bring_back(day, sr=second_copy(day)), take_home(day)
    for vdi in (day.root, day.data, *at_home):
        day.lab.pool.api.vms.vdi_destroy("", vdi)


@pytest.mark.parametrize("comes", [home_by_run, home_by_another_tool, home_and_cut, home_and_away, home_from_a_third])
def test_not_to_the_vm_whose_disk_came_home_from_another_copy(halted, comes):
    """VDI.pool_migrate gives the disk another UUID, and takes no key of other_config along."""
    second = second_copy(halted)
    bring_back(halted)
    comes(halted)
    halted.refuses(
        lambda day: lend(day, "root disk", day.web, sr=second, rw=True), "has this or another copy of this disk"
    )
    assert lend(halted, "root disk", halted.lab.vm("helper"), sr=second).status == "lent"


def test_no_forged_mark_takes_a_true_mark_from_a_disk_that_came_home(halted):
    """A UUID in two marks counts for neither where a mark gives a disk, and for both where a mark refuses one."""
    second = second_copy(halted)
    bring_back(halted), take_home(halted)
    forged = halted.elsewhere()
    uuids = [halted.uuid(vdi) for vdi in (forged, halted.root, halted.data)]
    halted.db.set("VDI", forged, "other_config", {"relvmoiscsi:was": " ".join(uuids)})
    halted.refuses(lambda day: lend(day, "root disk", day.web, sr=second), "has this or another copy of this disk")


def test_not_to_the_vm_with_a_later_copy_of_the_disk_that_came_home(halted):
    """The original no longer has the disk, nor the disk before."""
    second, old = second_copy(halted), halted.uuid(halted.root)
    bring_back(halted), take_home(halted)
    at_home = [halted.db.get("VBD", halted.vbd(device), "VDI") for device in "01"]
    bring_back(halted, sr=second_copy(halted))
    for vdi in (halted.root, halted.data, *at_home):
        halted.lab.pool.api.vms.vdi_destroy("", vdi)
    halted.refuses(lambda day: lend(day, old, day.web, sr=second), "has this or another copy of this disk")


def test_not_to_a_vm_with_a_copy_that_xapi_has_made(halted):
    """VDI.copy, VDI.clone and VM.copy take other_config along."""
    second, config = second_copy(halted), halted.db.get("VDI", halted.new(halted.root), "other_config")
    copied = halted.db.create("VDI", SR=halted.lab.originals["Testing"][1], managed=True, other_config=config)
    vm = halted.lab.vm("copied", copied)
    halted.refuses(lambda day: lend(day, "root disk", vm, sr=second), "has this or another copy of this disk")


def test_not_to_the_vm_that_was_reverted_to_a_snapshot(halted):
    """xapi makes the snapshots of the disk those of the disk that takes its place. Source: xapi_vm_snapshot.ml."""
    reverted = halted.db.create("VDI", SR=halted.lab.originals["Production"][1], managed=True)
    halted.db.set("VDI", halted.lab.vdi("Production", "before")[0], "snapshot_of", reverted)
    halted.db.set("VDI", halted.new(halted.lab.vdi("Production", "before")[0]), "snapshot_of", halted.new(halted.root))
    halted.hang("0", reverted)
    halted.refuses(lambda day: lend(day, "root disk", day.web), "has this or another copy of this disk")


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_forged_mark_of_a_vdi_neither_hides_another_copy_nor_invents_one(day, helper, is_removed):
    second, mark = second_copy(day), {"relvmoiscsi:old": day.uuid(day.new(day.root))}
    lend(day, "root disk", helper)
    for vdi in day.db.refs("VDI", SR=second):
        day.db.set("VDI", vdi, "other_config", {} if is_removed else mark)
    day.refuses(lambda day: lend(day, "root disk", helper, sr=second), "has this or another copy of this disk")
    assert lend(day, "data", helper, sr=second).status == "lent"


def test_a_snapshot_or_a_clone_of_the_helper_keeps_its_disk(day, helper):
    """VM.clone and VM.snapshot take VBD.other_config along. Source: xen-api ocaml/xapi/xapi_vbd_helpers.ml, copy."""
    lend(day, "data", helper, rw=True)
    (mark,) = [row["other_config"] for row in day.db.records("VBD", VM=helper).values() if row["other_config"]]
    own = {"VDI": day.vdi_on_copy("own", name_label="data"), "userdevice": "1", "other_config": mark}
    others = [day.lab.snapshot(helper, "mine"), day.lab.vm("my experiment", state="Running")]
    vbds = [day.db.create("VBD", VM=vm, **own) for vm in others]
    assert len(take_back(day)) == 1 and all(day.db.exists("VBD", vbd) for vbd in vbds)
