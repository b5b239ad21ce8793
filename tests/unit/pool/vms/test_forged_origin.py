# SPDX-License-Identifier: LGPL-2.1-only
"""A VDI of a copy comes from a VDI of the original alone. Whoever writes a LUN names its volumes, and a vm-admin writes
keys of VDIs and VMs: none of them makes a VDI the copy of a VDI of another SR.
"""

import json

import pytest

from kit.builder import build_sr, raw
from kit.cuts import read_mark
from kit.pool_lab import IQN, TARGET, VOLUMES
from kit.pool_verbs import bring_back, lend, run, take_home, undo
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import records
from relvmoiscsi.pool.attach import ALREADY, DONE
from relvmoiscsi.pool.vms import choice, clone, transfer

MARK = "relvmoiscsi:old"


@pytest.fixture
def forged(lab, day):
    """The copy of "Testing", on whose LUN a volume has the UUID of the VDI "data" of "Production"."""
    day.shut_down()
    named = raw("forged", label="data", extents=1, uuid=day.uuid(day.data))
    scsi_id = lab.world.add(TARGET, IQN, build_sr([*VOLUMES, named], seed="Testing").disk)
    (copy,) = lab.attach(scsi_id)
    lab.vm("tester", day.elsewhere())
    sr = lab.sr(copy.sr_uuid)[0]
    day.__dict__.update(copy=copy, sr=sr)
    return day


@pytest.fixture
def map_of(command, name_pool):
    """Gives the map of a day's copy, as the command prints it: old UUIDs by new UUID."""

    def map_of(day):
        name_pool(day.lab.pool)
        rows = command("pool", "map", day.copy.sr_uuid, "--json").json["vdi_pairs"]
        return {row["new_vdi"]: row["old_vdi"] for row in rows}

    return map_of


def pairs_of(day):
    """The map of the copy in the answer of `attach`."""
    (again,) = day.lab.attach(day.copy.scsi_id)
    return {pair.new: pair.old or None for pair in again.vdis}


def test_a_map_has_no_vdi_of_another_sr(forged, map_of):
    new = derived_uuid(forged.copy.sr_uuid, forged.uuid(forged.data))
    testing = forged.db.records("VDI", SR=forged.lab.originals["Testing"][1]).values()
    right = {new: None, **{derived_uuid(forged.copy.sr_uuid, vdi["uuid"]): vdi["uuid"] for vdi in testing}}
    assert pairs_of(forged) == map_of(forged) == right
    assert MARK not in forged.db.record("VDI", forged.db.by_uuid("VDI", new))["other_config"]


def test_all_vms_with_disks_on_a_copy_have_disks_on_its_original(forged):
    assert [each.vm_name for each in forged.lab.clone_vms(forged.copy.sr_uuid, everything=True)] == ["tester"]


def test_no_clone_gets_a_volume_with_the_name_of_its_disk_on_another_sr(forged):
    forged.db.destroy("VBD", forged.vbd("0"))
    (refused,) = forged.lab.clone_vms(forged.copy.sr_uuid, "web")
    assert refused.status == clone.FAILED and "has disks that are not on the copy" in str(refused.error)


def test_no_restore_takes_a_volume_with_the_name_of_a_disk_on_another_sr(forged):
    forged.refuses(lambda day: bring_back(day, devices=["1"]), "is not on this copy. No disk of the VM is on this copy")


def test_nobody_lends_a_volume_by_the_name_of_a_vdi_of_another_sr(forged):
    old, helper = forged.uuid(forged.data), forged.lab.vm("helper")
    forged.refuses(lambda day: lend(day, old, helper), f"There is no VDI '{old}'", NotFound)


@pytest.mark.parametrize("is_known", [True, False])
def test_saved_records_make_no_vm_of_a_volume_with_the_name_of_a_vdi_of_another_sr(forged, is_known):
    """Sealed records, and records that a person trusts."""
    forged.db.destroy("VBD", forged.vbd("0"))

    def from_records(calls, found, copy):
        document = transfer.export_vm(calls, forged.web, snapshots=False)
        source = choice.VmSource(found.vms[forged.web]["uuid"], "web", "", document, is_known)
        return clone.clone(calls, records.read(calls), copy, [source], choice.CloneRequest(run="a run"))

    vms = forged.db.refs("VM")
    (refused,) = run(forged, from_records)
    assert refused.status == clone.FAILED and "disks that are not on this copy" in str(refused.error)
    assert forged.db.refs("VM") == vms


def without_journal(day):
    """LVM overwrites the journal, which names the original, and the copy is discarded."""
    day.lab.discard(day.copy.sr_uuid)
    disk = day.lab.world.lun(day.copy.scsi_id).disk
    journal = read_mark(disk).journal
    disk.poke(journal.offset, bytes(len(journal.data)))
    disk.writes += 1  # the world is to look again


def test_vdis_of_two_srs_name_no_original(forged):
    without_journal(forged)
    (again,) = forged.lab.attach(forged.copy.scsi_id)
    assert (again.status, again.of_sr, {pair.old for pair in again.vdis}) == (DONE, "", {""})
    assert forged.lab.sr(again.sr_uuid)[1]["other_config"]["relvmoiscsi:original-sr"] == ""
    (refused,) = forged.lab.clone_vms(again.sr_uuid, "tester")
    assert refused.status == clone.FAILED and "has disks that are not on the copy" in str(refused.error)


def test_a_mark_that_the_uuids_contradict_is_not_believed_and_the_next_attach_corrects_it(day, map_of):
    db = day.db
    right = {ref: vdi["other_config"][MARK] for ref, vdi in db.records("VDI", SR=day.sr).items()}
    assert len(right) > 2
    for ref, other in zip(right, [*right][1:] + [*right][:1]):
        db.set("VDI", ref, "other_config", {"owner": "me", MARK: right[other]})

    assert map_of(day) == {day.uuid(ref): old for ref, old in right.items()}
    assert pairs_of(day) == {day.uuid(ref): old for ref, old in right.items()}
    assert {ref: db.get("VDI", ref, "other_config")[MARK] for ref in right} == right
    assert day.lab.attach(day.copy.scsi_id)[0].status == ALREADY


@pytest.mark.parametrize("mark", ["x", "../..", "99999999-0000-4000-8000-000000000000", "another SR"])
def test_of_a_vdi_that_is_gone_only_the_mark_that_derives_is_believed(day, mark, map_of):
    gone, new = day.uuid(day.data), day.new(day.data)
    day.lab.pool.db.destroy("VDI", day.data)
    assert pairs_of(day)[day.uuid(new)] == gone
    config = day.db.get("VDI", new, "other_config")
    if mark == "another SR":  # the pool has a VDI with the old UUID on another SR
        day.db.set("VDI", day.elsewhere(), "uuid", gone)
    else:
        without_journal(day)
        day.lab.attach(day.copy.scsi_id)
        new = day.db.by_uuid("VDI", derived_uuid(day.copy.sr_uuid, gone))
        config = {**config, MARK: mark}
    day.db.set("VDI", new, "other_config", config)
    assert pairs_of(day)[day.uuid(new)] == map_of(day)[day.uuid(new)] is None


def forge_journal(day, **values):
    """A vm-admin writes a journal of the disk 0."""
    key = "relvmoiscsi:restore:0"
    day.set_journal(lambda config: {**config, key: json.dumps({**json.loads(config[key]), **values})})


@pytest.mark.parametrize("work", [bring_back, undo, take_home], ids=["restore", "undo", "home"])
def test_a_journal_whose_new_vdi_is_no_copy_of_its_old_vdi_is_none(halted, work):
    bring_back(halted)
    forge_journal(halted, old=halted.uuid(halted.elsewhere()), of=halted.uuid(halted.elsewhere()))
    halted.refuses(work, "its new VDI is no copy of its old VDI.* --keep", Refused)


@pytest.mark.parametrize("work", [undo, take_home], ids=["undo", "home"])
def test_a_journal_whose_old_vdi_was_never_the_vdi_of_its_copy_is_wrong(halted, work):
    bring_back(halted)
    forge_journal(halted, old=halted.uuid(halted.lab.vdi("Production", "before")[0]))
    halted.refuses(work, "The journal .* is wrong.*was never the VDI.* --keep", Refused)


@pytest.mark.parametrize("work", [undo, take_home], ids=["undo", "home"])
def test_a_journal_and_a_mark_make_no_disk_of_another_vm_an_earlier_state(halted, work):
    """A vm-admin writes both. The device has the copy of that disk."""
    bring_back(halted)
    theirs = halted.lab.vdi("Production", "before")[0]
    halted.lab.vm("victim", theirs)
    old, of = halted.uuid(halted.root), halted.uuid(theirs)
    halted.db.set("VDI", halted.root, "other_config", {"relvmoiscsi:was": f"{old} {of}"})
    halted.hang("0", halted.new(theirs))
    forge_journal(halted, of=of, new=halted.uuid(halted.new(theirs)))
    named = f"the mark relvmoiscsi:was of the VDI {old} names the VDI {of}, which is a disk of the VM 'victim'"
    halted.refuses(work, f"The journal .* is wrong.*{named}.* --keep", Refused)


@pytest.mark.parametrize("names_home", [False, True])
@pytest.mark.parametrize(
    ("work", "is_empty"), [(bring_back, True), (undo, True), (take_home, False)], ids=["restore", "undo", "home"]
)
def test_a_journal_gives_a_vm_no_disk_of_another_sr(halted, work, is_empty, names_home):
    """The new UUID derives from the old UUID, and the device may be empty, as a vm-admin can arrange."""
    bring_back(halted)
    old = halted.uuid(halted.elsewhere())
    new = halted.db.by_uuid("VDI", halted.lab.disks_of(halted.web)["0"][1])
    home = {"home": halted.db.get("SR", halted.lab.originals["Testing"][1], "uuid")} if names_home else {}
    forge_journal(halted, old=old, of=old, new=derived_uuid(halted.copy.sr_uuid, old), **home)
    halted.db.set("VDI", new, "uuid", derived_uuid(halted.copy.sr_uuid, old))
    if is_empty:
        halted.db.destroy("VBD", halted.vbd("0"))
    halted.refuses(work, "The journal .* is wrong.* Nothing was changed.* --keep|on no copy of that SR", Refused)
