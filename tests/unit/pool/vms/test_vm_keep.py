# SPDX-License-Identifier: LGPL-2.1-only
"""A VM whose restore neither home nor undo can end stays as it is; what is told where disks are not what they were."""

import pytest

from kit.pool.errors import XenError
from kit.pool_verbs import bring_back, keep, take_home, undo
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import Where

pytestmark = pytest.mark.states


def uuid(day, vdi):
    return day.db.get("VDI", vdi, "uuid")


def vbd(day, device):
    return day.db.refs("VBD", VM=day.web, userdevice=device)[0]


def marks(day):
    return [key for key in day.db.get("VM", day.web, "other_config") if key.startswith("relvmoiscsi:restore")]


def move_by_hand(day, device):
    """ "Migrate VDI", as Xen Orchestra and XenCenter have it."""
    home_sr = day.db.get("VDI", day.root, "SR")
    day.lab.pool.api.vms.vdi_pool_migrate("", day.db.get("VBD", vbd(day, device), "VDI"), home_sr, {})


@pytest.fixture
def halted(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    return day


# --- the way out


def test_moved_home_by_hand_it_is_kept_as_it_is(halted):
    bring_back(halted)
    move_by_hand(halted, "0"), move_by_hand(halted, "1")
    disks = halted.lab.disks_of(halted.web)
    for work in (undo, take_home):
        with pytest.raises(Refused, match="To keep that disk, run `relvmoiscsi pool restore --keep"):
            work(halted)
    done = keep(halted)

    assert done.status == "kept as it is" and not marks(halted) and halted.lab.disks_of(halted.web) == disks
    assert f"disk 0: {disks['0'][1]} ('root disk', on the SR 'Production')" in done.notes
    assert (
        f"on no VM: {uuid(halted, halted.root)} ('root disk before restore 2026-11-22', on the SR 'Production')"
        in done.notes
    )
    (second,) = halted.lab.attach(halted.lab.clone("Production"))  # its disks have other UUIDs, so it is on no copy
    with pytest.raises(Refused, match="is not on this copy"):
        bring_back(halted, sr=halted.db.by_uuid("SR", second.sr_uuid))


def test_what_would_be_kept_is_told_and_nothing_done(halted):
    bring_back(halted)
    before = halted.db.records("VM"), halted.db.records("VDI")
    told = keep(halted, dry_run=True)
    assert told.status == "would be kept as it is" and "it disappears when that copy is discarded" in told.notes[0]
    assert (halted.db.records("VM"), halted.db.records("VDI")) == before
    with pytest.raises(Refused, match="was not restored from a copy"):
        keep(halted, halted.lab.vm("other"))


def test_kept_half_restored_it_can_be_started_and_what_it_has_not_is_told(halted):
    halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
    bring_back(halted)
    api = halted.lab.pool.api
    real = api._methods["VBD.create"]

    def fails(_session, _record):
        raise XenError("INTERNAL_ERROR", "x")

    api._methods["VBD.create"] = fails
    with pytest.raises(PoolFailure):
        undo(halted)
    api._methods["VBD.create"] = real
    done = keep(halted)
    vm = halted.db.record("VM", halted.web)
    assert "disk 0: none" in done.notes and done.notes[1].startswith("disk 1: ")
    assert not vm["blocked_operations"] and vm["ha_restart_priority"] == "restart" and not marks(halted)


def test_a_disk_that_is_its_own_again_has_its_name_again(halted):
    bring_back(halted)
    halted.db.set("VBD", vbd(halted, "0"), "VDI", halted.root)
    keep(halted)
    assert halted.db.get("VDI", halted.root, "name_label") == "root disk"
    assert halted.db.get("VDI", halted.data, "name_label") == "data before restore 2026-11-22"


def test_a_journal_that_somebody_has_spoiled_is_taken_away(halted):
    bring_back(halted)
    marked = halted.db.get("VM", halted.web, "other_config")
    halted.db.set("VM", halted.web, "other_config", {**marked, "relvmoiscsi:restore:0": "x"})
    with pytest.raises(Refused, match="cannot be read: .* --keep"):
        undo(halted)
    keep(halted)
    assert not marks(halted)


def test_reverted_to_a_snapshot_of_after_the_restore_it_is_kept(halted):
    """xapi gives back the journal as well, also after an undo."""
    bring_back(halted)
    marked = halted.db.get("VM", halted.web, "other_config")
    undo(halted)
    halted.db.set("VM", halted.web, "other_config", marked)
    halted.db.set("VBD", vbd(halted, "0"), "VDI", halted.db.create("VDI", SR=halted.sr, location="r", managed=True))
    for work in (undo, take_home, bring_back):
        with pytest.raises(Refused, match="--keep"):
            work(halted)
    assert keep(halted).status == "kept as it is" and not marks(halted)


# --- a migration that has failed when the VM had moved


def moves_and_fails(day, code="SR_BACKEND_FAILURE_46"):
    """xapi points the VBDs to the new VDI, then cannot destroy the old one. Source: xapi_vm_migrate.ml."""

    def migrate(_session, vdi, sr, _options):
        row = day.db.record("VDI", vdi)
        new = day.db.create("VDI", SR=sr, location="moved" + vdi, managed=True, name_label=row["name_label"])
        for each in row["VBDs"]:
            day.db.set("VBD", each, "VDI", new)
        raise XenError(code, "", "The VDI is not available", "")

    day.lab.pool.api._methods["VDI.pool_migrate"] = migrate


def test_moved_and_the_source_is_left_it_is_home(halted):
    bring_back(halted, devices=["0"])
    moves_and_fails(halted)
    with pytest.raises(PoolFailure, match="The VDI is not available.* Repeat the command"):
        take_home(halted)
    moved = halted.lab.disks_of(halted.web)["0"]
    done = take_home(halted)
    assert done.status == "home" and halted.lab.disks_of(halted.web)["0"] == moved
    assert set(done.waiting) == {uuid(halted, halted.root), uuid(halted, halted.new(halted.root))}


@pytest.mark.parametrize("is_known", [True, False], ids=["known as what", "cut at that moment"])
def test_what_was_moved_and_hangs_nowhere_has_nothing_of_before_in_its_place(halted, is_known):
    bring_back(halted, devices=["0"])
    moves_and_fails(halted)
    with pytest.raises(PoolFailure):
        take_home(halted)
    of_the_week = halted.lab.disks_of(halted.web)["0"][1]
    if not is_known:
        marked = halted.db.get("VM", halted.web, "other_config")
        marked.pop("relvmoiscsi:restore-arrived:0")
        halted.db.set("VM", halted.web, "other_config", marked)
        for work in (undo, take_home):
            with pytest.raises(Refused, match=f"If|if {of_the_week} has what the VM has written, destroy"):
                work(halted)
    halted.db.destroy("VBD", vbd(halted, "0"))
    with pytest.raises(Refused, match="was being moved" + (f", as the VDI {of_the_week}" if is_known else "")):
        bring_back(halted, devices=["0"])
    with pytest.raises(Refused):
        take_home(halted)
    assert "0" not in halted.lab.disks_of(halted.web)


def test_a_licence_without_storage_motion(halted):
    bring_back(halted)

    def refused(_session, _vdi, _sr, _options):
        raise XenError("LICENCE_RESTRICTION", "Storage_motion")

    halted.lab.pool.api._methods["VDI.pool_migrate"] = refused
    with pytest.raises(PoolFailure) as failed:
        take_home(halted)
    said = str(failed.value)
    assert said.startswith("The licence of this pool does not allow VDI.pool_migrate (Storage_motion).")
    assert "stays on the copy" in said and "--keep" in said and "--undo" in said


# --- home names nothing that is in use


def test_a_disk_before_that_somebody_has_is_not_called_no_longer_needed(halted):
    bring_back(halted)
    halted.lab.vm("forensics", halted.root)
    halted.db.create("VBD", VM=halted.web, VDI=halted.data, userdevice="7")
    done = take_home(halted)
    assert not done.waiting
    assert f"The VDI {uuid(halted, halted.root)} is a disk of 'forensics': keep the VDI." in done.notes
    assert f"The VDI {uuid(halted, halted.data)} is a disk of 'web': keep the VDI." in done.notes


def test_a_disk_that_a_cluster_shares_is_not_restored_in_one_node(halted):
    halted.db.set("VDI", halted.data, "sharable", True)
    halted.lab.vm("node2", halted.data)
    with pytest.raises(Refused, match="is shared with 'node2': a restore would give only this VM"):
        bring_back(halted)
    assert not marks(halted) and bring_back(halted, devices=["0"]).status == "restored"


def test_a_disk_that_another_has_keeps_its_name(halted):
    halted.lab.vm("backup", halted.data)
    (note,) = bring_back(halted).notes
    assert "is also one of 'backup', and keeps its name" in note
    assert halted.db.get("VDI", halted.data, "name_label") == "data"


def test_undone_and_cut_what_was_moved_is_named_by_the_next(halted):
    """What the VM has written since is there."""
    bring_back(halted)
    seen = []

    def cut(name, _params):
        seen.extend([name] if name == "Async.VDI.pool_migrate" else [])
        if len(seen) == 2:
            raise XenError("INTERNAL_ERROR", "x")

    halted.lab.pool.api.before = cut
    with pytest.raises(PoolFailure):
        take_home(halted)
    halted.lab.later()
    moved = halted.lab.disks_of(halted.web)["0"][1]

    def dies(name, _params):
        if name == "VM.remove_from_blocked_operations":
            raise XenError("INTERNAL_ERROR", "x")

    halted.lab.pool.api.before = dies
    with pytest.raises(PoolFailure):
        undo(halted)
    halted.lab.pool.api.before = None
    assert list(undo(halted).waiting) == [moved]


# --- refused, it is as it was


@pytest.mark.parametrize("priority", ["", "restart"])
def test_an_undo_that_is_refused_leaves_the_vm_as_it_was(halted, priority):
    halted.db.set("VM", halted.web, "ha_restart_priority", priority)
    bring_back(halted)
    before = halted.db.record("VM", halted.web)
    api = halted.lab.pool.api

    def starts(name, _params):
        if name == "VM.add_to_blocked_operations":
            api.before = None
            api.vms.vm_start("", halted.web)

    api.before = starts
    with pytest.raises(Refused, match="is not halted but running. Add --shutdown. Nothing was changed"):
        undo(halted)
    now = halted.db.record("VM", halted.web)
    protected = {"ha_always_run": priority == "restart"}  # as after any start of a VM that HA restarts
    started = {"power_state": "Running", "allowed_operations": [], **protected}
    assert {**now, "allowed_operations": []} == {**before, **started}


def test_who_may_not_write_the_journal_shuts_nothing_down(day):
    before = day.db.record("VM", day.web)
    day.lab.pool.api.users["op"] = ("pw", "vm-operator")
    with pytest.raises(PoolFailure, match="may not call VM.add_to_other_config"):
        bring_back(day, where=Where(day.lab.pool.url, "op", "pw"), shutdown=True)
    assert day.db.record("VM", day.web) == before


def test_who_may_not_change_ha_shuts_nothing_down(day):
    """VM.set_ha_restart_priority takes pool-operator. Source: xen-api ocaml/idl/datamodel_vm.ml."""
    day.db.set("VM", day.web, "ha_restart_priority", "restart")
    before = day.db.record("VM", day.web)
    day.lab.pool.api.users["admin"] = ("pw", "vm-power-admin")
    where = Where(day.lab.pool.url, "admin", "pw")
    with pytest.raises(PoolFailure, match="may not call VM.set_ha_restart_priority.*Nothing was changed"):
        bring_back(day, where=where, shutdown=True)
    assert day.db.record("VM", day.web) == before
    day.db.set("VM", day.web, "ha_restart_priority", "")
    assert bring_back(day, where=where, shutdown=True).status == "restored"


def test_refused_when_it_was_shut_down_that_is_said(day):
    def taken(name, _params):
        if name == "Async.VM.clean_shutdown":
            day.lab.pool.api.before = None
            day.lab.vm("other", day.new(day.root))

    day.lab.pool.api.before = taken
    with pytest.raises(RelvmoiscsiError, match="is a disk of 'other' as well.* was shut down for this run"):
        bring_back(day, shutdown=True)
    assert not marks(day) and not day.db.get("VM", day.web, "blocked_operations")


def test_the_disks_that_are_on_the_copy_are_named_where_one_is_not(halted):
    mixed = halted.lab.vm("mixed", halted.lab.vdi("Production", "before")[0], halted.lab.vdi("Testing", "data")[0])
    halted.web = mixed
    with pytest.raises(
        Refused, match="The disk 1 of the VM.* is not on this copy. Restore only the other disks: `--disk 0`"
    ):
        bring_back(halted)
