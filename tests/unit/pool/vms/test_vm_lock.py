# SPDX-License-Identifier: LGPL-2.1-only
"""Two clients at once with a copy: one goes on, the other is refused and changes nothing. A killed one keeps nobody."""

import os

import pytest

from kit.pool.api import GoneAway
from kit.pool_verbs import bring_back, keep, run, take_home, undo, unlock
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import rescue


def clone(day):
    return day.clone("other")


def lend(day):
    def work(calls, found, copy):
        return rescue.lend(calls, found, copy, day.new(day.lab.vdi("Production", "before")[0]), day.helper, True)

    return run(day, work)


def take_back(day):
    def work(calls, found, copy):
        (done,) = rescue.take_back(calls, found, copy, rescue.lent(found, copy))
        if done.error is not None:
            raise done.error

    return run(day, work)


def discard(day):
    with connect(day.lab.where()) as calls:
        made_vms.carry_out(calls, made_vms.plan(calls, [day.sr], with_vms=True), day.sr, [])


def unplug(day):
    (pbd,) = day.db.refs("PBD", SR=day.sr, host=day.lab.pool.hosts[1])
    day.db.set("PBD", pbd, "currently_attached", False)


def attach(day):
    """A host has let go of the SR, so that there is something to do."""
    unplug(day)
    return day.lab.attach(day.copy.scsi_id)


@pytest.fixture
def ready(day):
    """ "web" is halted, "other" has a disk of its own, "helper" may be lent one."""
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    day.other = day.lab.vm("other", day.lab.vdi("Production", "before")[0])
    day.helper = day.lab.vm("helper")
    return day


def state(day):
    """All but the locks and tasks."""
    rows = {table: day.db.records(table) for table in ("VM", "VBD", "VDI", "SR", "PBD", "network")}
    return {**rows, "world": [entry for entry in day.lab.world.log if entry[0] != "sr_probe"]}


#: before, the first client's run, its call at which the other comes
FIRST = {
    "restore": ((), bring_back, "VBD.create"),
    "undo": ((bring_back,), undo, "VBD.create"),
    "home": ((bring_back,), take_home, "Async.VDI.pool_migrate"),
    "keep": ((bring_back,), keep, "VM.remove_from_other_config"),
    "clone": ((), clone, "VM.set_is_a_template"),
    "lend": ((), lend, "VBD.create"),
    "take back": ((lend,), take_back, "VBD.destroy"),
    "discard": ((), discard, "PBD.destroy"),
    "attach": ((), attach, "Async.PBD.plug"),
}
#: what the other one sees before it would lock the copy; "" where it has nothing to do
SEEN_BEFORE = {
    ("clone", "discard"): "not a finished VM of `relvmoiscsi pool clone`",
    ("take back", "discard"): "are lent to VMs: helper",
    **{(first, "discard"): "VMs were restored from" for first in ("restore", "undo", "home", "keep")},
    ("home", "restore"): "",
    ("keep", "restore"): "",
}
OTHERS = {"restore": bring_back, "clone": clone, "lend": lend, "discard": discard, "attach": attach}


@pytest.mark.states("first", "other", few=9)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("first", FIRST)
def test_the_other_one_is_refused_with_who_and_the_command_and_changes_nothing(ready, first, other):
    before, work, method = FIRST[first]
    for each in before:
        each(ready)
    told = []

    def come(name, _params):
        if name == method:
            ready.lab.pool.api.before = None
            if other == "attach":
                unplug(ready)
            there = state(ready)
            try:
                OTHERS[other](ready)
                told.append("")
            except (Refused, PoolFailure) as refused:
                told.append(str(refused))
            assert state(ready) == there

    ready.lab.pool.api.before = come
    work(ready)
    (said,) = told
    if (first, other) in SEEN_BEFORE:
        assert SEEN_BEFORE[first, other] in said
        return
    assert f"Another client has locked {ready.copy.scsi_id}: `relvmoiscsi pool " in said
    assert f"(process {os.getpid()})" in said and f"`relvmoiscsi pool unlock {ready.copy.scsi_id}`" in said


def test_two_copies_of_one_vm_are_not_restored_at_once(ready):
    """Each copy has its lock, and the VM has one."""
    (second,) = ready.lab.attach(ready.lab.clone("Production"))
    other, told = ready.db.by_uuid("SR", second.sr_uuid), []

    def come(name, _params):
        if name == "VM.add_to_other_config":
            ready.lab.pool.api.before = None
            mine, ready.sr = ready.sr, other
            with pytest.raises(Refused, match="Another client has locked " + ready.db.get("VM", ready.web, "uuid")):
                bring_back(ready)
            ready.sr = mine
            told.append(name)

    ready.lab.pool.api.before = come
    assert bring_back(ready).status == "restored" and told
    assert {sr for sr, _ in ready.lab.disks_of(ready.web).values()} == {ready.sr}


def test_two_copies_are_worked_on_at_once(ready):
    (second,) = ready.lab.attach(ready.lab.clone("Testing"))
    other, done = ready.db.by_uuid("SR", second.sr_uuid), []

    def come(name, _params):
        if name == "VBD.create":
            ready.lab.pool.api.before = None
            mine, ready.sr = ready.sr, other
            discard(ready)
            ready.sr = mine
            done.append(name)

    ready.lab.pool.api.before = come
    assert bring_back(ready).status == "restored" and done and not ready.db.refs("SR", uuid=second.sr_uuid)


# --- killed


def test_a_run_whose_lock_was_broken_stops_before_its_next_step(ready):
    """Somebody has taken it for dead: what it has left is undone, and nothing comes after that."""
    done = []

    def come(name, _params):
        if name == "VBD.destroy":
            ready.lab.pool.api.before = after

    def after(name, _params):
        if name == "VBD.create":
            ready.lab.pool.api.before = None
            unlock(ready)
            done.append(undo(ready).status)

    ready.lab.pool.api.before = come
    own = ready.lab.disks_of(ready.web)
    with pytest.raises(Refused):
        bring_back(ready)
    assert done == ["undone"] and ready.lab.disks_of(ready.web) == own
    assert bring_back(ready).status == "restored"


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("method", ["VBD.destroy", "VBD.create"])
def test_a_slow_run_does_no_harm_to_the_one_that_has_broken_its_lock(ready, method, number):
    """Its call is on its way when the other begins: the other hangs each disk anew."""
    seen, own = [], ready.lab.disks_of(ready.web)

    def come(name, _params):
        seen.extend([name] if name == method else [])
        if len(seen) == number:
            ready.lab.pool.api.before = None
            unlock(ready)
            undo(ready)

    ready.lab.pool.api.before = come
    with pytest.raises(Refused):
        bring_back(ready)
    assert ready.lab.disks_of(ready.web) == own


# --- a copy that a VM's journal names is not discarded


@pytest.mark.parametrize("method", ["VBD.destroy", "VBD.create"])
def test_a_copy_is_not_discarded_while_a_cut_restore_names_it(ready, method):
    """Between the two calls no VM has a disk there, and the VM would be left without its own."""

    def before(name, _params):
        if name == method:
            ready.lab.pool.api.before = gone

    def gone(_name, _params):
        raise GoneAway()

    ready.lab.pool.api.before = before
    with pytest.raises(PoolFailure):
        bring_back(ready)
    ready.lab.pool.api.before = None
    with pytest.raises(Refused, match="VMs were restored from the SR .*: web.*relvmoiscsi pool restore --undo VM"):
        discard(ready)
    ready.lab.later()
    with pytest.raises(Refused, match="VMs were restored from the SR .*: web"):
        discard(ready)
    assert undo(ready).status == "undone" and len(ready.lab.disks_of(ready.web)) == 2
    discard(ready)
    assert not ready.db.refs("SR", uuid=ready.copy.sr_uuid)


def test_a_journal_that_cannot_be_read_keeps_the_copy_too(ready):
    bring_back(ready)
    config = ready.db.get("VM", ready.web, "other_config")
    for vbd in ready.db.refs("VBD", VM=ready.web):
        ready.db.destroy("VBD", vbd)
    ready.db.set("VM", ready.web, "other_config", {key: text + "}" for key, text in config.items()})
    with pytest.raises(Refused, match="VMs were restored from the SR .*: web.*--keep VM"):
        discard(ready)
    keep(ready)
    discard(ready)
