# SPDX-License-Identifier: LGPL-2.1-only
"""A copy is forgotten and never destroyed. The VMs that were made go with it; nobody else's do, and no VDI is
destroyed.
"""

import shlex

import pytest

from kit.pool_verbs import bring_back, discard, lend, second_copy
from kit.xe import xe
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import choice, forget, inventory
from relvmoiscsi.pool.vms import discard as made_vms

DESTROYS = {"VDI.destroy", "Async.VDI.destroy", "SR.destroy", "Async.SR.destroy", "VM.uninstall"}


def refs(day):
    return {table: set(rows) for table, rows in day.rows().items()}


def cloned(day, *names, **more):
    """The reference of the copy of "web"."""
    return day.db.by_uuid("VM", day.clone(*(names or ["web"]), **more)[-1].uuid)


def uses_of(day, *srs):
    with connect(day.lab.where()) as calls:
        found = forget.read_uses(calls, srs or [day.sr])
    return [found[sr] for sr in srs or [day.sr]]


def test_a_network_that_xapi_never_destroys_keeps_no_other_network(day):
    """A vm-admin makes it, with the marks of a network of `clone`."""
    marks = {"relvmoiscsi:done": "true", "relvmoiscsi:sr": "x", "is_host_internal_management_network": "true"}
    for number in range(20):
        day.db.create("network", name_label=f"`run {number}`", other_config=marks, bridge=f"b{number}")
    cloned(day, isolated="nowhere")
    assert "nowhere" in discard(day)
    with connect(day.lab.where()) as calls:
        for _ in range(2):
            made_vms.clean_networks(calls)
        (note,) = calls.notes
    assert "networks with the marks of `clone`: '`run 0`' (" in note.replace("\\x60", "`")
    assert "and 15 more. xapi answered CANNOT_DESTROY_SYSTEM_NETWORK" in note


def test_they_go_with_their_snapshots_and_nothing_else_does_and_the_lun_is_as_it_was(day):
    world, plugged = day.lab.world, []
    disk = world.lun(day.copy.scsi_id).disk
    day.snapshot()
    content, before = disk.peek(0, disk.size_bytes), refs(day)
    its = {"SR": {day.sr}, **{table: set(day.db.refs(table, SR=day.sr)) for table in ("VDI", "PBD")}}
    cloned(day, snapshots=True, isolated="nowhere")
    day.lab.pool.api.calls.clear()
    world.log.clear()

    def unplug(session, pbd):
        plugged.append(day.db.get("PBD", pbd, "host"))
        real(session, pbd)

    real = day.lab.answer("PBD.unplug", unplug)
    assert discard(day) == ["nowhere"]
    after = refs(day)
    assert after == {table: before[table] - its.get(table, set()) for table in before}
    assert not DESTROYS & set(day.lab.pool.api.calls) and disk.peek(0, disk.size_bytes) == content
    assert {command for command, _, _ in world.log} == {"sr_detach"}
    assert len(plugged) == 3 and plugged[-1] == day.lab.pool.master


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_the_next_run_finishes_it(day, deaths):
    before = refs(day)
    cloned(day, isolated="nowhere")
    for _ in deaths(lambda: discard(day), each_moment=True):
        day.lab.later()
        discard(day)
        after = refs(day)
        assert not any(after[table] - before[table] for table in after)
        assert before["SR"] - after["SR"] == {day.sr} and day.web in after["VM"]


# --- all that would be refused is refused before anything goes


def snapshot(day, vm, name="mine", memory=False):
    """As VM.snapshot and VM.checkpoint make them: new VDIs on the same SRs, and the other_config of the VM. One with
    memory is Suspended, and its VBDs stay attached (xapi_vm_clone.ml, xapi_vm_lifecycle.ml).
    """
    db = day.db
    fields = {"other_config": db.get("VM", vm, "other_config"), "power_state": "Suspended" if memory else "Halted"}
    ref = db.create("VM", name_label=name, is_a_snapshot=True, snapshot_of=vm, **fields)
    for vbd in db.records("VBD", VM=vm, type="Disk").values():
        sr, place = db.get("VDI", vbd["VDI"], "SR"), name + vbd["userdevice"]
        new = db.create("VDI", SR=sr, location=place, managed=True, is_a_snapshot=True, snapshot_of=vbd["VDI"])
        db.create("VBD", VM=ref, VDI=new, userdevice=vbd["userdevice"], currently_attached=memory)
    if memory:
        db.set("VM", ref, "suspend_VDI", day.vdi_on_copy(name + " memory"))
    return ref


def with_disk_elsewhere(day, vm):
    day.db.create("VBD", VM=vm, VDI=day.elsewhere(), userdevice="7")


SPOILED = {
    "A user has blocked the operation destroy of": lambda day, vm: day.db.set(
        "VM", vm, "blocked_operations", {"destroy": "protected"}
    ),
    "is busy: clone": lambda day, vm: day.db.set("VM", vm, "current_operations", {"a task": "clone"}),
    "has a disk that is not on this copy": with_disk_elsewhere,
}


@pytest.mark.parametrize("of_snapshot", [False, True])
@pytest.mark.parametrize("said", SPOILED)
def test_one_of_several_is_refused_before_anything_goes(day, said, of_snapshot):
    day.lab.vm("aaa", day.root)
    web = cloned(day, "aaa", "web")
    snap = snapshot(day, web)
    SPOILED[said](day, snap if of_snapshot else web)
    day.refuses(discard, said)


def test_a_vm_whose_shutdown_is_blocked_is_refused_before_anything_goes(day):
    day.lab.vm("aaa", day.root)
    web = cloned(day, "aaa", "web")
    day.start(web)
    day.db.set("VM", web, "blocked_operations", {"hard_shutdown": "mine", "clean_shutdown": "mine"})
    uuid = day.db.get("VM", web, "uuid")
    with connect(day.lab.where()) as calls:

        def planned(force):
            return lambda _: made_vms.plan(calls, [day.sr], with_vms=True, force=force)

        said = "A user has blocked the operation hard_shutdown of the VM 'web .*': 'mine'.*param-key=hard_shutdown"
        day.refuses(planned(True), said)
        said = f"down: `.*param-key=clean_shutdown`, the block of a user, and then `xe vm-shutdown.*{uuid}`"
        day.refuses(planned(False), said)
        day.db.set("VM", web, "power_state", "Halted")
        assert [*planned(True)(day).made[day.sr]].count(web) == 1, "no run shuts a halted VM down"


def fast_clone(day):
    """Of a copy, on the same SR, marks and all."""
    marks = day.db.get("VM", cloned(day), "other_config")
    return day.lab.vm("my experiment", day.vdi_on_copy("own"), other_config=marks)


def control_domain(day, plugged):
    """A backup appliance reads a disk there."""
    dom0 = day.db.create("VM", name_label="Control domain: xs1", is_control_domain=True, power_state="Running")
    day.db.create("VBD", VM=dom0, VDI=day.new(day.data), userdevice="1", currently_attached=plugged)


def test_each_disk_of_a_control_domain_has_the_commands_that_remove_it(day):
    control_domain(day, False)
    (dom0,) = day.db.refs("VM", name_label="Control domain: xs1")
    day.db.create("VBD", VM=dom0, VDI=day.new(day.root), userdevice="2")
    with pytest.raises(Refused) as refused:
        discard(day)
    for vbd in day.db.records("VBD", VM=dom0).values():
        unplug, destroy = (f"`xe {command} uuid={vbd['uuid']}`" for command in ("vbd-unplug", "vbd-destroy"))
        assert f"{unplug} and then {destroy}" in str(refused.value)


def asleep(day):
    """Its memory is on the copy, wherever its disks are."""
    day.db.set("VM", day.web, "power_state", "Suspended")
    day.db.set("VM", day.web, "suspend_VDI", day.vdi_on_copy("memory"))


def restored(day):
    day.shut_down()
    bring_back(day)


def test_each_vm_that_runs_has_the_commands_that_end_the_use(day):
    web = cloned(day)
    day.start(web)
    with pytest.raises(Refused) as refused:
        discard(day)
    uuid = day.db.get("VM", web, "uuid")
    unplugs = [f"`xe vbd-unplug uuid={vbd['uuid']}`" for vbd in day.db.records("VBD", VM=web).values()]
    assert f"Shut each VM down: `xe vm-shutdown uuid={uuid}`. Or unplug" in str(refused.value)
    assert unplugs and all(unplug in str(refused.value) for unplug in unplugs)


def test_a_suspended_vm_is_shut_down_by_force_and_has_no_disk_to_unplug(day):
    asleep(day)
    command = f"`xe vm-shutdown uuid={day.db.get('VM', day.web, 'uuid')} force=true`"
    day.refuses(discard, f"{command}, which gives up the memory of the suspended VM.$")


def test_a_paused_vm_is_shut_down_by_force_as_no_other_command_ends_the_use(day):
    web = cloned(day)
    day.start(web)
    day.db.set("VM", web, "power_state", "Paused")
    command = f"xe vm-shutdown uuid={day.db.get('VM', web, 'uuid')} force=true"
    day.refuses(discard, f"Shut each VM down: `{command}`, which gives up the memory of the paused VM.$")
    assert xe(day.lab.pool, shlex.split(command)[1:])[0] == 0
    discard(day)


IN_USE = "Running or suspended VMs have disks on the SR 'Production changed 2026-11-21': 'web"
OF_DOM0 = "Control domains have disks of the SR .*: 'Control domain: xs1'. .*, or remove each disk: `xe vbd-unplug"
HAPPENS = {
    "running": lambda day: day.start(cloned(day)),
    "suspended": lambda day: day.db.set("VM", cloned(day), "power_state", "Suspended"),
    "asleep": asleep,
    "a clone of the copy": fast_clone,
    "of dom0": lambda day: control_domain(day, False),
    "plugged in dom0": lambda day: control_domain(day, True),
    "restored": restored,
    # its disks there have other UUIDs than the journal says
    "reverted": lambda day: (restored(day), day.db.set("VBD", day.vbd("0"), "VDI", day.vdi_on_copy("reverted"))),
    # xapi does not take note that a PBD of a crashed host is not attached any more
    "a host is down": lambda day: day.lab.pool.go_down(day.lab.pool.hosts[2]),
}


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        ("running", IN_USE + " on Production changed 2026-11-21"),
        ("suspended", "is not shut down"),
        ("asleep", IN_USE),
        ("a clone of the copy", r"not a finished VM of .* 'my experiment' \(.*No VM was destroyed"),
        ("of dom0", OF_DOM0),
        ("plugged in dom0", OF_DOM0),
        ("restored", "VMs were restored from the SR"),
        ("reverted", "VMs were restored from the SR"),
        ("a host is down", "attached on hosts that are down: xs3. Nothing was unplugged"),
    ],
)
def test_what_keeps_it_keeps_all(day, happens, said):
    HAPPENS[happens](day)
    day.refuses(discard, said)


@pytest.mark.parametrize("with_vms", [True, False])
def test_all_clones_that_an_interrupted_run_has_left_are_named_at_once_with_their_commands(day, with_vms):
    """One was named a run, and without --with-vms the answer was to add --with-vms, which was refused."""
    day.lab.vm("aaa", day.root)
    half = [day.ref_of(done) for done in day.clone("aaa", "web")]
    for vm in half:
        config = day.db.get("VM", vm, "other_config")
        day.db.set("VM", vm, "other_config", {key: text for key, text in config.items() if key != inventory.DONE})
        day.db.set("VM", vm, "is_a_template", True)
    with connect(day.lab.where()) as calls, pytest.raises(Refused) as refused:
        made_vms.verify_nobody_left(made_vms.plan(calls, [day.sr], with_vms))
    uuids = [day.db.get("VM", vm, "uuid") for vm in half]
    assert all(f"`xe vm-destroy uuid={uuid}`" in str(refused.value) for uuid in uuids)
    assert "'aaa on Production changed 2026-11-21'" in str(refused.value) and "--with-vms" not in str(refused.value)
    for vm in half:
        day.lab.pool.api.vms.vm_destroy("", vm)
    discard(day)
    assert day.sr not in day.db.refs("SR")


def test_an_sr_that_is_no_copy_is_refused(day):
    uuid = day.db.get("SR", day.lab.originals["Production"][1], "uuid")
    day.refuses(lambda day: discard(day, uuid), "was not introduced by `relvmoiscsi pool attach`")


def test_a_vm_that_somebody_has_copied_stays(day):
    """xapi copies other_config with the VM, our marks among it: onto another SR, or on the copy, and bare then."""
    mine = fast_clone(day)
    (web,) = day.db.refs("VM", name_label="web on Production changed 2026-11-21")
    other = day.lab.vm("a full copy", day.elsewhere(), other_config=day.db.get("VM", web, "other_config"))
    for vbd in day.db.refs("VBD", VM=mine):
        day.db.destroy("VBD", vbd)
    discard(day)
    assert {mine, other} < set(day.db.refs("VM")) and web not in day.db.refs("VM")


@pytest.mark.parametrize("memory", [False, True])
def test_snapshots_that_a_person_has_made_are_named_and_go(day, memory):
    """One with memory is suspended for ever: nobody can shut it down. It does not run."""
    snap = snapshot(day, cloned(day), "before the upgrade", memory)
    (uses,) = uses_of(day)
    clone = "web on Production changed 2026-11-21"
    assert not uses.running and sorted(uses.halted.values()) == ["before the upgrade (a snapshot)", clone]
    named = []
    discard(day, told=lambda plan: named.extend(plan.made[day.sr].values()))
    assert [vm["name_label"] for vm in named if vm["is_a_snapshot"]] == ["before the upgrade"]
    assert snap not in day.db.refs("VM") and day.sr not in day.db.refs("SR")


def test_one_alone_goes_whatever_the_others_are_and_what_became_otherwise_stays(day):
    """So the Ansible module takes single VMs away. Somebody was asked meanwhile."""
    day.lab.vm("aaa", day.root)
    aaa, web = (day.db.by_uuid("VM", done.uuid) for done in day.clone("aaa", "web"))
    with connect(day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        made = {vm: made_vms.made_on(found._replace(vms={vm: found.vms[vm]}), pool, day.sr) for vm in (aaa, web)}
        with_disk_elsewhere(day, web)
        with lock.held(calls, [lock_keys.name_of(pool.srs[day.sr])], "discard") as held:
            made_vms.destroy_made(calls, held, pool, day.sr, made[aaa])
            day.refuses(
                lambda day: made_vms.destroy_made(calls, held, pool, day.sr, made[web]),
                "has a disk that is not on this copy",
            )
    assert not day.db.exists("VM", aaa)


# --- everybody who has a VDI of the copy


def test_a_vm_that_was_copied_from_one_with_a_lent_disk_has_no_lent_disk(day):
    """xapi copies the mark with the VBD. That VM's own disk is told of as any other's."""
    lend(day, "data", day.lab.vm("helper", day.elsewhere()))
    (vbd,) = day.db.refs("VBD", VDI=day.new(day.data))
    other = day.lab.vm("copied")
    day.db.set("VBD", vbd, "VM", other)
    (uses,) = uses_of(day)
    assert uses.lent == {} and uses.halted == {other: "copied"}


def test_a_snapshot_whose_memory_or_disk_is_there_is_told(day):
    """Of a VM that has its disks elsewhere now."""
    snaps = [day.lab.snapshot(day.web, "with memory"), day.lab.snapshot(day.web, "with a disk", day.new(day.data))]
    day.db.set("VM", snaps[0], "suspend_VDI", day.vdi_on_copy("memory"))
    with connect(day.lab.where()) as calls:
        plan = made_vms.plan(calls, [day.sr], with_vms=True)
    assert plan.losers(day.sr) == {snaps[0]: "with memory (a snapshot)", snaps[1]: "with a disk (a snapshot)"}
    with pytest.raises(Refused, match=r"would lose their disks: 'with a disk \(a snapshot\)', 'with memory"):
        made_vms.verify_nobody_left(plan)


def test_the_restore_of_another_copy_is_none_of_this_one(day):
    """ "web" has the disks of the first copy, and one of the second that was lent to it."""
    sr = second_copy(day)
    restored(day)
    mark = {"relvmoiscsi:rescue": day.db.get("SR", sr, "uuid")}
    day.db.create("VBD", VM=day.web, VDI=day.db.refs("VDI", SR=sr, managed=True)[0], userdevice="7", other_config=mark)
    first, second = uses_of(day, day.sr, sr)
    assert first.restored == {day.db.get("VM", day.web, "uuid"): "web"} and not second.restored
    assert second.halted == {day.web: "web"}


def test_the_printed_way_out_is_for_the_restored_vm_also_if_its_name_is_the_uuid_of_another_vm(day):
    restored(day)
    other = day.db.get("VM", day.lab.vm("other"), "uuid")
    day.db.set("VM", day.web, "name_label", other)
    uuid = day.db.get("VM", day.web, "uuid")
    with connect(day.lab.where()) as calls, pytest.raises(Refused, match=f"VMs were restored .*: '{other}'") as refused:
        made_vms.plan(calls, [day.sr], with_vms=True)
    undo = f"`relvmoiscsi pool restore --undo {uuid} --shutdown`"
    assert f"`relvmoiscsi pool restore --home {uuid}` or {undo}" in str(refused.value)


# --- what comes about between the question and the answer


def lent(day):
    """By hand."""
    day.db.create("VBD", VM=day.lab.vm("helper"), VDI=day.new(day.data), userdevice="1")


def started(number):
    """On the host of this number."""
    return lambda day: day.lab.vm("web", day.new(day.data), state="Running", resident_on=day.lab.pool.hosts[number])


@pytest.mark.parametrize(
    ("comes", "said", "moment"),
    [
        (restored, "VMs were restored from the SR", "question"),
        (cloned, "web on Production changed 2026-11-21", "question"),
        (lent, "since the run began: 'helper'", "question"),
        (lent, "since the run began: 'helper'", "SR.get_all_records"),
        (lent, "since the run began: 'helper'", "Async.PBD.unplug"),
        (lent, "since the run began: 'helper'", "PBD.destroy"),
        (started(0), IN_USE, "Async.PBD.unplug"),
        (started(1), IN_USE, "Async.PBD.unplug"),
    ],
)
def test_a_vm_that_comes_between_is_not_robbed(day, comes, said, moment):
    """Whenever it gets its disks, but for the very last call. Another client's run is refused meanwhile."""
    count = len(day.db.refs("PBD", SR=day.sr))

    def told(_plan):
        if moment == "question":
            comes(day)
        else:
            day.lab.before(moment, lambda: comes(day))

    with pytest.raises(Refused, match=said) as refused:
        discard(day, told=told)
    assert day.sr in day.db.refs("SR")
    assert all(vbd["VDI"] in day.db.refs("VDI") for vbd in day.db.records("VBD", type="Disk").values())
    if moment == "PBD.destroy":
        assert f"`relvmoiscsi pool attach {day.copy.scsi_id}` plugs the SR again" in str(refused.value)
        day.lab.attach(day.copy.scsi_id)
    pbds = day.db.records("PBD", SR=day.sr).values()
    assert len(pbds) == count and all(pbd["currently_attached"] for pbd in pbds)
    assert not day.db.refs("task")


# --- networks


def test_a_network_that_is_used_or_of_a_run_that_is_beginning_stays(day):
    """Of copies on another SR: nobody is on it yet. And one that gets a VIF at the last moment."""
    cloned(day, isolated="nowhere")
    (nowhere,) = day.db.refs("network", name_label="nowhere")
    with connect(day.lab.where()) as calls:
        other = day.db.create("SR", "11111111-2222-4333-8444-555555555555", name_label="another")
        sr_uuid = day.db.get("SR", other, "uuid")
        lab, _ = choice.isolated_network(calls, inventory.read(calls), "lab of another", sr_uuid=sr_uuid)
    day.lab.before("network.get_VIFs", lambda: day.lab.vm("late", networks=[nowhere]))
    assert discard(day) == [] and day.db.exists("network", lab) and day.db.exists("network", nowhere)
    assert "network.destroy" not in day.lab.pool.api.calls


@pytest.mark.parametrize("order", [1, -1])
def test_a_network_of_two_copies_goes_with_the_last(day, order):
    uuids = [day.copy.sr_uuid, day.db.get("SR", second_copy(day), "uuid")][::order]
    for uuid in uuids:
        (done,) = day.lab.clone_vms(uuid, "web", isolated="lab", name="{vm} {sr}")
        assert done.error is None
    assert [discard(day, uuid) for uuid in uuids] == [[], ["lab"]]
