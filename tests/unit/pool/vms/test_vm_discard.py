# SPDX-License-Identifier: LGPL-2.1-only
"""The VMs that were made go with the copy; nobody else's do, and no VDI is destroyed."""

import pytest

from kit.pool_verbs import bring_back
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import choice, forget, inventory, rescue
from relvmoiscsi.pool.vms import discard as made_vms

pytestmark = pytest.mark.states


def discard_all(day, told=lambda plan: None, sr_uuid=None):
    """The names of the networks that went; `told` is called with the plan before it is carried out."""
    networks = {ref: row["name_label"] for ref, row in day.db.records("network").items()}
    with connect(day.lab.where()) as calls:
        ref = records.read(calls).sr_by_uuid(sr_uuid or day.copy.sr_uuid)
        if ref is None:
            made_vms.clean_networks(calls, [sr_uuid or day.copy.sr_uuid])
        else:
            plan = made_vms.plan(calls, [ref], with_vms=True)
            told(plan)
            made_vms.carry_out(calls, plan, ref, [])
            made_vms.clean_networks(calls, [sr_uuid or day.copy.sr_uuid])
    return [name for ref, name in networks.items() if not day.db.exists("network", ref)]


def rows(day):
    return {table: set(day.db.refs(table)) for table in ("VM", "VBD", "VIF", "VDI", "SR", "PBD", "network")}


def test_they_go_with_their_snapshots_and_nothing_else_does(day):
    snap = day.lab.vdi("Production", "before")[0]
    day.lab.snapshot(day.web, "before", snap)
    copy = day.db.records("VDI", SR=day.sr)
    before = rows(day)
    day.clone("web", snapshots=True, isolated="nowhere")
    day.lab.pool.api.calls.clear()

    assert discard_all(day) == ["nowhere"]
    after = rows(day)
    assert {table: before[table] - after[table] for table in ("VM", "VBD", "VIF", "network")} == dict.fromkeys(
        ("VM", "VBD", "VIF", "network"), set()
    )
    assert before["VDI"] - after["VDI"] == set(copy) and before["SR"] - after["SR"] == {day.sr}
    assert not {"VDI.destroy", "Async.VDI.destroy", "SR.destroy", "VM.uninstall"} & set(day.lab.pool.api.calls)


def test_what_runs_or_has_disks_elsewhere_stays(day):
    (done,) = day.clone("web")
    new = day.db.by_uuid("VM", done.uuid)
    day.lab.pool.api.vms.vm_start("", new)
    with pytest.raises(Refused, match="Running or suspended VMs have disks on the SR"):
        discard_all(day)
    day.lab.pool.api.vms.vm_hard_shutdown("", new)
    other = day.lab.vdi("Testing", "data")[0]
    vbd = day.lab.pool.api.vms.vbd_create("", {"VM": new, "VDI": other, "userdevice": "7", "mode": "RW"})
    with pytest.raises(Refused, match="has a disk that is not on this copy"):
        discard_all(day)
    day.db.destroy("VBD", vbd)
    day.db.set("VM", new, "power_state", "Suspended")
    with pytest.raises(Refused, match="is not shut down"):
        discard_all(day)
    assert new in day.db.refs("VM") and day.sr in day.db.refs("SR")


def test_a_vm_that_somebody_has_copied_elsewhere_stays(day):
    """xapi copies other_config with the VM, our marks among it."""
    (done,) = day.clone("web")
    marks = day.vm(done.uuid)["other_config"]
    other = day.lab.vm("a full copy", day.lab.vdi("Testing", "data")[0], other_config=marks)
    discard_all(day)
    assert other in day.db.refs("VM") and not day.db.refs("VM", uuid=done.uuid)


def test_a_vm_that_somebody_has_cloned_from_a_copy_is_named_and_nothing_is_destroyed(day):
    """A fast clone on the same SR, marks and all."""
    (done,) = day.clone("web")
    own = day.db.create("VDI", SR=day.sr, location="fast clone", name_label="root disk", managed=True)
    mine = day.lab.vm("my experiment", own, other_config=day.vm(done.uuid)["other_config"])
    with pytest.raises(Refused, match=r"The VM 'my experiment' \(.*The VM was not destroyed"):
        discard_all(day)
    assert mine in day.db.refs("VM") and day.db.refs("VM", uuid=done.uuid)
    for vbd in day.db.refs("VBD", VM=mine):
        day.db.destroy("VBD", vbd)
    discard_all(day)
    assert mine in day.db.refs("VM") and not day.db.refs("VM", uuid=done.uuid)


def test_what_became_otherwise_while_somebody_was_asked_stays(day):
    (done,) = day.clone("web")
    with connect(day.lab.where()) as calls:
        pool = records.read(calls)
        made = made_vms.made_on(inventory.read(calls), pool, day.sr)
        vm = day.db.by_uuid("VM", done.uuid)
        day.db.create("VBD", VM=vm, VDI=day.lab.vdi("Testing", "data")[0], userdevice="7")
        with pytest.raises(Refused, match="has a disk that is not on this copy"):
            made_vms.destroy_made(calls, pool, day.sr, made)
    assert vm in day.db.refs("VM")


def test_a_network_of_a_run_that_is_beginning_stays(day):
    """Of copies on another SR: nobody is on it yet. And one that gets a VIF at the last moment."""
    day.clone("web", isolated="nowhere")
    with connect(day.lab.where()) as calls:
        other = day.db.create("SR", "11111111-2222-4333-8444-555555555555", name_label="another")
        sr_uuid = day.db.get("SR", other, "uuid")
        ref, _ = choice.isolated_network(calls, inventory.read(calls), "lab of another", sr_uuid=sr_uuid)

    def appear(method, params):
        if method == "network.get_VIFs":
            day.lab.vm("late", networks=[params[1]])

    day.lab.pool.api.before = appear
    assert discard_all(day) == [] and day.db.exists("network", ref)
    assert "network.destroy" not in day.lab.pool.api.calls


def test_a_network_that_is_used_stays(day):
    day.clone("web", isolated="nowhere")
    day.lab.vm("router", networks=[day.db.refs("network", name_label="nowhere")[0]])
    assert discard_all(day) == [] and day.db.refs("network", name_label="nowhere")


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_the_next_run_finishes_it(day, deaths):
    before = rows(day)
    day.clone("web", isolated="nowhere")
    for _ in deaths(lambda: discard_all(day), each_moment=True):
        day.lab.later()
        discard_all(day)
        after = rows(day)
        assert not any(after[table] - before[table] for table in after)
        assert before["SR"] - after["SR"] == {day.sr} and day.web in after["VM"]


# --- all that would be refused is refused before anything goes


def snapshot(day, vm, name, memory=False):
    """As VM.snapshot and VM.checkpoint make them: new VDIs on the same SRs, and the other_config of the VM. One with
    memory is Suspended, and its VBDs stay attached (xapi_vm_clone.ml, xapi_vm_lifecycle.ml).
    """
    db = day.db
    row = db.record("VM", vm)
    state = "Suspended" if memory else "Halted"
    fields = {"other_config": row["other_config"], "power_state": state}
    ref = db.create("VM", name_label=name, is_a_snapshot=True, snapshot_of=vm, **fields)
    for vbd in db.records("VBD", VM=vm, type="Disk").values():
        sr, place = db.get("VDI", vbd["VDI"], "SR"), name + vbd["userdevice"]
        new = db.create("VDI", SR=sr, location=place, managed=True, is_a_snapshot=True, snapshot_of=vbd["VDI"])
        db.create("VBD", VM=ref, VDI=new, userdevice=vbd["userdevice"], currently_attached=memory)
    if memory:
        db.set("VM", ref, "suspend_VDI", db.create("VDI", SR=day.sr, location=name + " memory", managed=True))
    return ref


def two_copies(day):
    """References of the copies of "aaa" and of "web"."""
    day.lab.vm("aaa", day.root)
    return [day.db.by_uuid("VM", done.uuid) for done in day.clone("aaa", "web")]


def protect(day, vm):
    day.db.set("VM", vm, "blocked_operations", {"destroy": "protected"})


def busy(day, vm):
    day.db.set("VM", vm, "current_operations", {"a task": "clone"})


def with_disk_elsewhere(day, vm):
    day.db.create("VBD", VM=vm, VDI=day.lab.vdi("Testing", "data")[0], userdevice="7")


@pytest.mark.parametrize("of_snapshot", [False, True])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (protect, "is protected from deletion"),
        (busy, "is busy: clone"),
        (with_disk_elsewhere, "has a disk that is not on this copy"),
    ],
)
def test_what_would_be_refused_is_refused_before_anything_goes(day, spoil, message, of_snapshot):
    _, web = two_copies(day)
    snap = snapshot(day, web, "mine")
    spoil(day, snap if of_snapshot else web)
    before = rows(day)
    with pytest.raises(Refused, match=message):
        discard_all(day)
    assert rows(day) == before


@pytest.mark.parametrize("memory", [False, True])
def test_snapshots_that_a_person_has_made_are_named_and_go(day, memory):
    """One with memory is suspended for ever: nobody can shut it down."""
    (done,) = day.clone("web")
    snap = snapshot(day, day.db.by_uuid("VM", done.uuid), "before the upgrade", memory)
    named = []
    discard_all(day, lambda plan: named.extend(plan.made[day.sr]))
    assert named[0].snapshots == ["before the upgrade"]
    assert snap not in day.db.refs("VM") and day.sr not in day.db.refs("SR")


def test_one_alone_goes_whatever_the_others_are(day):
    """So the Ansible module takes single VMs away."""
    aaa, web = two_copies(day)
    day.lab.pool.api.vms.vm_start("", web)
    with connect(day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        (made_one,) = made_vms.made_on(found._replace(vms={aaa: found.vms[aaa]}), pool, day.sr)
        made_vms.destroy_made(calls, pool, day.sr, [made_one])
    assert not day.db.exists("VM", aaa) and day.db.exists("VM", web)


def test_a_snapshot_of_a_copy_does_not_run(day):
    (done,) = day.clone("web")
    snapshot(day, day.db.by_uuid("VM", done.uuid), "with memory", memory=True)
    with connect(day.lab.where()) as calls:
        uses = forget.read_uses(calls, [day.sr])[day.sr]
    assert not uses.running and sorted(uses.halted.values()) == ["web 2026-11-22", "with memory (a snapshot)"]


# --- everybody who has a VDI of the copy


def lend(day):
    helper = day.lab.vm("helper", day.lab.vdi("Testing", "data")[0])
    with connect(day.lab.where()) as calls:
        found = inventory.read(calls)
        copy = inventory.copy_of(records.read(calls), found, day.sr)
        rescue.lend(calls, found, copy, day.new(day.data), helper, writable=False)
    return helper


def test_a_vm_that_was_copied_from_one_with_a_lent_disk_has_no_lent_disk(day):
    """xapi copies the mark with the VBD. That VM's own disk is told of as any other's."""
    helper = lend(day)
    (vbd,) = day.db.refs("VBD", VDI=day.new(day.data))
    other = day.lab.vm("copied")
    day.db.set("VBD", vbd, "VM", other)
    with connect(day.lab.where()) as calls:
        uses = forget.read_uses(calls, [day.sr])[day.sr]
    assert uses.lent == {} and uses.halted == {other: "copied"} and helper not in uses.halted


@pytest.mark.parametrize("plugged", [False, True])
def test_a_disk_of_a_control_domain_keeps_it(day, plugged):
    """A backup appliance reads it there."""
    dom0 = day.db.create("VM", name_label="Control domain on host: xs1", is_control_domain=True, power_state="Running")
    vbd = day.db.create("VBD", VM=dom0, VDI=day.new(day.data), userdevice="1", currently_attached=plugged)
    uuid, before = day.db.get("VBD", vbd, "uuid"), rows(day)
    with pytest.raises(Refused, match=rf"Control domains have disks of the SR .*: Control domain .* \(VBD {uuid}\)"):
        discard_all(day)
    assert rows(day) == before


def test_the_memory_of_a_vm_that_is_suspended_keeps_it_wherever_its_disks_are(day):
    memory = day.db.create("VDI", SR=day.sr, location="memory", managed=True)
    day.db.set("VM", day.web, "power_state", "Suspended")
    day.db.set("VM", day.web, "suspend_VDI", memory)
    with pytest.raises(Refused, match="Running or suspended VMs have disks on the SR 'Production 2026-11-22': web"):
        discard_all(day)


def test_a_snapshot_whose_memory_or_disk_is_there_is_told(day):
    """Of a VM that has its disks elsewhere now."""
    memory = day.db.create("VDI", SR=day.sr, location="memory", managed=True)
    snaps = [day.lab.snapshot(day.web, "with memory"), day.lab.snapshot(day.web, "with a disk", day.new(day.data))]
    day.db.set("VM", snaps[0], "suspend_VDI", memory)
    with connect(day.lab.where()) as calls:
        plan = made_vms.plan(calls, [day.sr], with_vms=True)
    assert plan.losers(day.sr) == {snaps[0]: "with memory (a snapshot)", snaps[1]: "with a disk (a snapshot)"}
    with pytest.raises(Refused, match=r"would lose their disks: with a disk \(a snapshot\), with memory"):
        made_vms.verify_nobody_left(plan)


# --- what comes about between the question and the answer


def restored(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    bring_back(day)


def made(day):
    day.clone("web")


def lent(day):
    """By hand."""
    helper = day.lab.vm("helper")
    day.db.create("VBD", VM=helper, VDI=day.new(day.data), userdevice="1")


@pytest.mark.parametrize(
    ("comes", "message", "moment"),
    [
        (restored, "VMs were restored from the SR", "question"),
        (made, "web 2026-11-22", "question"),
        (lent, "since the run began: helper", "question"),
        (lent, "since the run began: helper", "SR.get_all_records"),
        (lent, "since the run began: helper", "Async.PBD.unplug"),
        (lent, "since the run began: helper", "PBD.destroy"),
        (lent, "", "SR.forget"),
    ],
)
def test_a_vm_that_comes_between_is_not_robbed(day, comes, message, moment):
    """Whenever it gets its disks, but for the very last call. Another client's run is refused meanwhile."""
    two_pbds = day.db.refs("PBD", SR=day.sr)
    seen = []

    def come(method, _params):
        if method == moment and not seen:
            seen.append(method)
            comes(day)

    def told(_plan):
        if moment == "question":
            comes(day)
        day.lab.pool.api.before = come

    if moment == "SR.forget":
        discard_all(day, told)
        assert seen
        return
    with pytest.raises(Refused, match=message) as refused:
        discard_all(day, told)
    day.lab.pool.api.before = None
    assert day.sr in day.db.refs("SR")
    assert all(vbd["VDI"] in day.db.refs("VDI") for vbd in day.db.records("VBD", type="Disk").values())
    if moment == "PBD.destroy":
        assert "`relvmoiscsi pool attach` plugs the SR again" in str(refused.value)
        day.lab.attach(day.copy.scsi_id)
    pbds = day.db.refs("PBD", SR=day.sr)
    assert len(pbds) == len(two_pbds) and all(day.db.get("PBD", ref, "currently_attached") for ref in pbds)


def test_the_restore_of_another_copy_is_none_of_this_one(day):
    """ "web" has the disks of the first copy, and one of the second that was lent to it."""
    (second,) = day.lab.attach(day.lab.clone("Production"))
    sr = day.db.by_uuid("SR", second.sr_uuid)
    restored(day)
    vdi = day.db.refs("VDI", SR=sr, managed=True)[0]
    day.db.create("VBD", VM=day.web, VDI=vdi, userdevice="7", other_config={"relvmoiscsi:rescue": second.sr_uuid})
    with connect(day.lab.where()) as calls:
        uses = forget.read_uses(calls, [day.sr, sr])
    assert uses[day.sr].restored == {day.web: "web"} and not uses[sr].restored
    assert uses[sr].halted == {day.web: "web"}


def test_a_restored_vm_that_was_reverted_is_still_one(day):
    """Its disks there have other UUIDs than the journal says."""
    restored(day)
    (vbd,) = day.db.refs("VBD", VM=day.web, userdevice="0")
    day.db.set("VBD", vbd, "VDI", day.db.create("VDI", SR=day.sr, location="reverted", managed=True))
    with pytest.raises(Refused, match="VMs were restored from the SR"):
        discard_all(day)


# --- the network of several copies


@pytest.mark.parametrize("order", [0, 1])
def test_a_network_of_two_copies_goes_with_the_last(day, order):
    (second,) = day.lab.attach(day.lab.clone("Production"))
    for uuid in (day.copy.sr_uuid, second.sr_uuid):
        (done,) = day.lab.clone_vms(uuid, "web", isolated="lab", name="{vm} {sr}")
        assert done.error is None
    first, last = [(day.copy.sr_uuid, second.sr_uuid), (second.sr_uuid, day.copy.sr_uuid)][order]
    assert discard_all(day, sr_uuid=first) == [] and day.db.refs("network", name_label="lab")
    assert discard_all(day, sr_uuid=last) == ["lab"]
