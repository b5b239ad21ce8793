# SPDX-License-Identifier: LGPL-2.1-only
"""Each LUN is named for what it is, and nothing is written."""

import pytest

from kit.lun_world import FABRIC
from kit.pool_lab import IQN, TARGET, sr_disk
from kit.sparse import SparseDisk
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool import attach, lists, luns, records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.records import Portal
from relvmoiscsi.pool.vms import forget


def find(lab, *portals):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        return {lun.scsi_id: lun for lun in luns.find(calls, pool, portals or pool.portals(), 1)}


def kinds(lab, *portals):
    return {scsi_id: (lun.kind, lun.name) for scsi_id, lun in find(lab, *portals).items()}


def test_each_lun_is_named_for_what_it_is(lab, world):
    production, testing = (lab.originals[name][0] for name in ("Production", "Testing"))
    clone = lab.clone("Production")
    attached = lab.clone("Testing")
    lab.attach(attached)
    stranger = world.add(TARGET, IQN, sr_disk("elsewhere"))
    empty = world.add(TARGET, IQN, SparseDisk(1 << 24))
    before = {lun.scsi_id: lun.disk.peek(0, lun.disk.size_bytes) for lun in world.luns}

    assert kinds(lab) == {
        production: ("original", "Production"),
        testing: ("original", "Testing"),
        clone: ("clone", "Production"),
        attached: ("attached", "Testing 2026-11-22"),
        stranger: ("unknown SR", "test SR"),
        empty: ("empty", ""),
    }
    assert {lun.scsi_id: lun.disk.peek(0, lun.disk.size_bytes) for lun in world.luns} == before


def test_a_lun_that_is_in_use_is_not_probed(lab, world):
    lab.clone("Production")
    world.log.clear()
    find(lab)

    probed = [scsi_id for command, _, scsi_id in world.log if command == "sr_probe" and scsi_id]
    assert probed == [world.luns[-1].scsi_id]


def test_a_copy_that_the_array_has_overwritten_is_a_clone_again(lab, world):
    """The same SCSIid, today's data; the SR of the copy is still there, unplugged."""
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    db, storage = lab.pool.db, lab.pool.storage
    pbds = db.refs("PBD", SR=lab.sr(done.sr_uuid)[0])
    for pbd in pbds:
        storage.pbd_unplug("", pbd)
    assert find(lab)[clone].kind == "attached"
    lun = world.lun(clone)
    world.luns[world.luns.index(lun)] = lun._replace(disk=world.lun(lab.originals["Production"][0]).disk.copy())

    assert (find(lab)[clone].kind, find(lab)[clone].name) == ("clone", "Production")
    (failed,) = lab.attach(clone)
    assert failed.status == "failed" and "the array has overwritten the LUN" in str(failed.error)
    assert world.state(clone) == "clean"
    world.fail["sr_probe", clone] = NotFound("The LUN did not appear.", "ISCSIDevice")
    assert find(lab)[clone].kind == "attached"


def test_a_copy_that_was_detached_and_overwritten_is_not_taken_for_that_of_another_client(lab, world):
    """Its SR has our marks and no PBD; none is made, as its LUN holds the identities of the original."""
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        forget.detach(calls, pool, pool.sr_by_uuid(done.sr_uuid))
    overwrite(lab, world, clone)

    (failed,) = lab.attach(clone)
    assert failed.status == "failed" and "the array has overwritten the LUN" in str(failed.error)
    assert lab.sr(done.sr_uuid)[1]["PBDs"] == [] and world.state(clone) == "clean"


def test_one_that_was_detached_and_overwritten_since_we_looked_is_not_plugged_either(lab, world):
    clone = lab.clone("Production")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        chosen = attach.choose(luns.find(calls, pool, pool.portals(), 1), [clone], [])
        (done,) = lab.attach(clone)
        now = records.read(calls)
        forget.detach(calls, now, now.sr_by_uuid(done.sr_uuid))
        overwrite(lab, world, clone)
        with pytest.raises(Refused, match="Another client has just attached or discarded the LUN"):
            attach.attach(calls, pool, chosen, attach.AttachRequest(run="the slower one"))

    assert lab.sr(done.sr_uuid)[1]["PBDs"] == [] and world.state(clone) == "clean"


def overwrite(lab, world, clone):
    lun = world.lun(clone)
    disk = world.lun(lab.originals["Production"][0]).disk.copy()
    world.luns[world.luns.index(lun)] = lun._replace(disk=disk)


def test_a_clone_that_is_resignatured_and_not_attached(lab, world):
    clone = lab.clone("Production")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        attach.attach(calls, pool, [find(lab)[clone]], attach.AttachRequest(run="a run", attaches=False))
    lun = find(lab)[clone]

    assert (lun.kind, lun.name) == ("resignatured", "Production")
    assert lun.of_sr == world.sr_uuid(lab.originals["Production"][0])
    assert lun.sr_uuid == world.sr_uuid(clone)


def test_a_copy_of_an_attached_copy_is_a_clone_of_that(lab, world):
    first = lab.clone("Production")
    (done,) = lab.attach(first)
    second = world.clone(first)

    lun = find(lab)[second]
    assert (lun.kind, lun.name, lun.of_sr) == ("clone", "Production 2026-11-22", done.sr_uuid)


def test_a_clone_that_cannot_be_made_one_vdi_is_told(lab):
    clone = lab.clone("Production")

    assert find(lab)[clone].one_vdi == "cannot be"


def test_a_portal_without_an_iqn_is_asked_for_its_targets(lab, world):
    other = world.add(TARGET, "iqn.2026-01.test:second", sr_disk("elsewhere"))

    assert set(find(lab, Portal(TARGET))) == {*(lun.scsi_id for lun in world.luns)}
    assert set(find(lab, Portal(TARGET, "iqn.2026-01.test:second"))) == {other}


def test_a_portal_that_does_not_answer_is_an_error(lab):
    with pytest.raises(PoolFailure, match="No iSCSI target answers at 10.9.9.9"):
        find(lab, Portal("10.9.9.9"))


def test_one_that_does_not_answer_hides_no_other(lab):
    assert find(lab, Portal("10.9.9.9"), Portal(TARGET, IQN))


def test_a_lun_that_cannot_be_probed_is_listed_all_the_same(lab, world):
    clone = lab.clone("Production")
    world.fail["sr_probe", clone] = NotFound("The LUN did not appear.", "ISCSIDevice")

    lun = find(lab)[clone]
    assert lun.kind == "unreachable" and "did not appear" in lun.problem


def test_the_chap_of_the_pbd_is_used(lab, world):
    user = ("alice", "a secret word")
    scsi_id = world.add("10.0.0.6", "iqn.2026-01.test:chap", sr_disk("guarded"), chap=user)
    world.attach_original(lab.pool, scsi_id, "Guarded")
    clone = world.clone(scsi_id)

    assert find(lab)[clone].name == "Guarded"


def test_an_sr_is_named_by_uuid_or_by_a_name_of_its_own(lab):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        ref = lab.originals["Production"][1]
        assert records.find_sr(pool, "Production") == ref == records.find_sr(pool, pool.srs[ref]["uuid"].upper())
        with pytest.raises(NotFound, match="no SR with the UUID or the name 'Nothing'"):
            records.find_sr(pool, "Nothing")
        pool.srs[lab.originals["Testing"][1]]["name_label"] = "Production"
        with pytest.raises(UsageError, match="2 SRs of the pool have the name 'Production'"):
            records.find_sr(pool, "Production")


@pytest.mark.parametrize("document", ["", "<", "<!DOCTYPE x><SRlist/>", "<SRlist/>", "<SRlist><SR/></SRlist>"])
def test_a_probe_that_cannot_be_read_is_said(document):
    with pytest.raises(PoolFailure):
        lists.on_lun(document)


def test_another_failure_is_no_list():
    for read in (lists.iqns, lists.seen):
        with pytest.raises(PoolFailure, match="something else"):
            read(PoolFailure("something else", ["SR_BACKEND_FAILURE_68", "", "x", ""]))


def test_what_is_on_fibre_channel_comes_from_the_masters_plugin(lab, world):
    behind_target = lab.clone("Production")
    original = lab.original("Fabric", target=FABRIC)
    clone, elsewhere = lab.clone("Fabric"), lab.clone("Fabric")
    world.unmapped.add((lab.pool.master, elsewhere))
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    with connect(lab.where()) as calls:
        found = {lun.scsi_id: lun for lun in luns.find_on_master(calls, records.read(calls))}

    assert set(found) == {original, clone} and behind_target not in found
    assert (found[clone].kind, found[clone].name, found[original].kind) == ("clone", "Fabric", "original")
    assert found[clone].size_bytes == world.lun(clone).disk.size_bytes
    assert found[clone].portal == records.HBA


def test_a_master_without_the_plugin_is_said(lab):
    with connect(lab.where()) as calls, pytest.raises(PoolFailure, match="has no plugin relvmoiscsi"):
        luns.find_on_master(calls, records.read(calls))
