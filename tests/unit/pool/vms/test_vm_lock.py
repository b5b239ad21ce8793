# SPDX-License-Identifier: LGPL-2.1-only
"""Two clients at once with a copy: one goes on, the other is refused and changes nothing. A killed one keeps nobody."""

import os
import re

import pytest

from kit.pool.api import GoneAway
from kit.pool_verbs import bring_back, discard, keep, lend, second_copy, take_back, take_home, undo, unlock
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import PoolFailure, PoolGone


def clone(day):
    return day.clone("other")


def lend_it(day):
    return lend(day, "before", day.helper, rw=True)


def attach(day):
    """A host has let go of the SR, so that there is something to do."""
    let_go(day)
    (done,) = day.lab.attach(day.copy.scsi_id)
    if done.error is not None:
        raise done.error
    return [done]


def let_go(day):
    (pbd,) = day.db.refs("PBD", SR=day.sr, host=day.lab.pool.hosts[1])
    day.db.set("PBD", pbd, "currently_attached", False)


@pytest.fixture
def ready(halted):
    """ "web" is halted, "other" has a disk of its own, "helper" may be lent one."""
    halted.other = halted.lab.vm("other", halted.lab.vdi("Production", "before")[0])
    halted.helper = halted.lab.vm("helper")
    return halted


def state(day):
    """All but the locks and tasks."""
    return {**day.rows(), "pool": "", "world": [entry for entry in day.lab.world.log if entry[0] != "sr_probe"]}


#: before, the first client's run, its call at which the other comes
FIRST = {
    "restore": ((), bring_back, "VBD.create"),
    "undo": ((bring_back,), undo, "VBD.create"),
    "home": ((bring_back,), take_home, "Async.VDI.pool_migrate"),
    "keep": ((bring_back,), keep, "VM.remove_from_other_config"),
    "clone": ((), clone, "VM.set_is_a_template"),
    "lend": ((), lend_it, "VBD.create"),
    "take back": ((lend_it,), take_back, "VBD.destroy"),
    "discard": ((), discard, "PBD.destroy"),
    "attach": ((), attach, "Async.PBD.plug"),
}
OTHERS = {"restore": bring_back, "clone": clone, "lend": lend_it, "discard": discard, "attach": attach}


@pytest.mark.states("first", "other", few=9)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("first", FIRST)
def test_the_other_one_is_refused_with_who_and_the_command_and_changes_nothing(ready, first, other):
    before, work, method = FIRST[first]
    for each in before:
        each(ready)
    told = []

    def come():
        if other == "attach":
            let_go(ready)
        there = state(ready)
        try:
            OTHERS[other](ready)
            told.append("")
        except (Refused, PoolFailure) as refused:
            told.append(str(refused))
        assert state(ready) == there

    ready.lab.before(method, come)
    work(ready)
    (said,) = told
    assert re.search(rf"Another client has locked {ready.copy.scsi_id}( \(the SR '.*'\))?: `relvmoiscsi pool ", said)
    assert f"(process {os.getpid()})" in said and f"`relvmoiscsi pool unlock {ready.copy.scsi_id}`" in said


def test_two_copies_of_one_vm_are_not_restored_at_once(ready):
    """Each copy has its lock, and the VM has one."""
    second, told = second_copy(ready), []

    def come():
        with pytest.raises(Refused, match="Another client has locked " + ready.db.get("VM", ready.web, "uuid")):
            bring_back(ready, sr=second)
        told.append(second)

    ready.lab.before("VM.add_to_other_config", come)
    assert bring_back(ready).status == "restored" and told and ready.srs() == {ready.sr}


def test_two_copies_are_worked_on_at_once(ready):
    second = second_copy(ready, "Testing")
    uuid = ready.db.get("SR", second, "uuid")
    ready.lab.before("VBD.create", lambda: discard(ready, uuid))
    assert bring_back(ready).status == "restored" and not ready.db.refs("SR", uuid=uuid)


# --- killed


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("method", ["VBD.destroy", "VBD.create"])
def test_a_slow_run_whose_lock_was_broken_stops_and_does_no_harm_to_the_next(ready, method, number):
    """Somebody has taken it for dead. Its call is on its way when the other begins: the other hangs each disk anew."""
    done, own = [], ready.lab.disks_of(ready.web)
    ready.lab.before(method, lambda: (unlock(ready), done.append(undo(ready).status)), number)
    with pytest.raises(Refused):
        bring_back(ready)
    assert done == ["undone"] and ready.lab.disks_of(ready.web) == own
    assert bring_back(ready).status == "restored"


@pytest.mark.parametrize(("work", "method"), [("lend", "VDI.get_VBDs"), ("take back", "VBD.get_currently_attached")])
def test_a_rescue_whose_lock_was_broken_changes_no_drive(ready, work, method):
    before, run, _ = FIRST[work]
    for each in before:
        each(ready)
    there = ready.rows()["VBD"]
    ready.lab.before(method, lambda: unlock(ready))
    with pytest.raises(Refused, match="Another client has broken this run's lock"):
        run(ready)
    assert ready.rows()["VBD"] == there


def test_a_rescue_whose_lock_was_broken_during_the_unplug_destroys_no_drive(ready):
    ready.db.set("VM", ready.helper, "power_state", "Running")
    lend_it(ready)
    (vbd,) = ready.db.refs("VBD", VM=ready.helper)
    ready.lab.before("Async.VBD.unplug", lambda: unlock(ready))
    with pytest.raises(Refused, match="Another client has broken this run's lock"):
        take_back(ready)
    assert ready.db.refs("VBD", VM=ready.helper) == [vbd]


# --- a copy that a VM's journal names is not discarded


@pytest.mark.parametrize("method", ["VBD.destroy", "VBD.create"])
def test_a_copy_is_not_discarded_while_a_cut_restore_names_it(ready, method):
    """Between the two calls no VM has a disk there, and the VM would be left without its own."""
    ready.lab.before(method, lambda: setattr(ready.lab.pool.api, "before", gone))
    with pytest.raises(PoolGone):
        bring_back(ready)
    ready.lab.pool.api.before = None
    ready.refuses(discard, f"Another client has locked {ready.copy.scsi_id}: `relvmoiscsi pool restore` of .* `relv")
    ready.lab.later()
    web = ready.db.get("VM", ready.web, "uuid")
    ways = f"`relvmoiscsi pool restore --home {web}` or `.* --undo {web} --shutdown`"
    ready.refuses(discard, f"VMs were restored from the SR .*: 'web'.*{ways}")
    assert undo(ready).status == "undone" and len(ready.lab.disks_of(ready.web)) == 2
    discard(ready)
    assert not ready.db.refs("SR", uuid=ready.copy.sr_uuid)


def gone(_name, _params):
    raise GoneAway()


def test_a_journal_that_cannot_be_read_keeps_the_copy_too(ready):
    bring_back(ready)
    for device in "01":
        ready.db.destroy("VBD", ready.vbd(device))
    ready.set_journal(lambda marks: {key: text + "}" for key, text in marks.items()})
    ready.refuses(
        discard,
        "VMs were restored from the SR .*: 'web'.*--home keeps the restored state, .* --keep moves no disk and removes",
    )
    keep(ready)
    discard(ready)
