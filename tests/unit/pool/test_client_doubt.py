# SPDX-License-Identifier: LGPL-2.1-only
"""What may be somebody's original, or attached elsewhere, is no clone until somebody says so; and nothing is left out
without a word.
"""

import pytest

from kit.cuts import cut_before, read_mark
from kit.lun_world import World
from kit.pool.api import GoneAway
from kit.pool_lab import IQN, TARGET, Lab, sr_disk
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool import attach, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, FAILED
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.records import Portal
from relvmoiscsi.pool.vms import forget


def find(lab, *portals):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        return luns.find(calls, pool, portals or pool.portals(), 1)


def kind_of(lab, scsi_id):
    return next(lun.kind for lun in find(lab) if lun.scsi_id == scsi_id)


def without_pbds(lab, sr):
    storage = lab.pool.storage
    for pbd in lab.pool.db.refs("PBD", SR=sr):
        storage.pbd_unplug("", pbd)
        storage.pbd_destroy("", pbd)


# --- of another pool


def test_all_does_not_take_what_another_pool_may_be_running_on(lab, world):
    clone, theirs = lab.clone("Production"), world.add(TARGET, IQN, sr_disk("their production"))
    before = world.sr_uuid(theirs)
    (done,) = lab.attach(everything=True)

    assert done.scsi_id == clone and world.sr_uuid(theirs) == before
    found = find(lab)
    assert [lun.scsi_id for lun in attach.doubtful(found, [])] == [theirs]


def test_it_is_no_twin_of_anything_here_and_hinders_nobody(lab, world):
    clone = lab.clone("Production")
    world.add(TARGET, IQN, sr_disk("their production"))
    found = find(lab)

    attach.verify_none_left(found, attach.choose(found, [clone], []))


def test_its_sr_may_be_named_if_somebody_vouches_for_it(lab, world):
    theirs = world.add(TARGET, IQN, sr_disk("their production"))
    found, of = find(lab), [world.sr_uuid(theirs)]

    with pytest.raises(NotFound, match="no clone of the SR"):
        attach.choose(found, [], of)
    assert [lun.scsi_id for lun in attach.choose(found, [], of, are_clones=True)] == [theirs]


def test_a_copy_that_another_pool_has_attached_is_left_to_it(lab, world):
    clone = lab.clone("Production")
    with world.pool(hosts=("dr1", "dr2")) as other:
        theirs = Lab(world, other)
        with connect(theirs.where()) as calls:
            pool = records.read(calls)
            found = luns.find(calls, pool, [Portal(TARGET, IQN)], 1)
            chosen = attach.choose(found, [clone], [], are_clones=True)
            assert [each.status for each in attach.attach(calls, pool, chosen, attach.AttachRequest(run="x"))] == [DONE]
        world._pool = lab.pool

        for asked in ({"everything": True}, {"clones_of": ["Production"]}):
            with pytest.raises(NotFound):
                lab.attach(**asked)
        assert kind_of(lab, clone) == "resignatured"
        assert not lab.pool.db.refs("SR", uuid=world.sr_uuid(clone))


# --- of this pool


def test_an_sr_that_nobody_is_connected_to_is_no_clone_of_itself(lab, world):
    """Disaster recovery: all SRs are introduced first, their PBDs come after."""
    lun = world.add(TARGET, IQN, sr_disk("recovered"))
    uuid = world.sr_uuid(lun)
    lab.pool.storage.sr_introduce("", uuid, "Recovered", "", "lvmoiscsi", "user", True)

    assert kind_of(lab, lun) == "unconnected"
    with pytest.raises(NotFound):
        lab.attach(clones_of=["Recovered"])
    with pytest.raises(Refused, match="The LUN may be the original"):
        lab.attach(lun, are_clones=True)
    assert world.sr_uuid(lun) == uuid


def test_an_original_without_pbds_is_known_by_what_the_storage_manager_has_noted(lab, world):
    original, sr = lab.originals["Production"]
    clone = lab.clone("Production")
    without_pbds(lab, sr)

    assert (kind_of(lab, original), kind_of(lab, clone)) == ("original", "clone")


def test_killed_between_the_new_sr_and_its_marks_it_is_found_by_its_original(lab, world):
    clone = lab.clone("Production")

    def before(method, params):
        if method == "SR.set_other_config":
            raise GoneAway()

    lab.pool.api.before = before
    assert [each.status for each in lab.attach(clones_of=["Production"])] == [FAILED]
    lab.pool.api.before = None
    (done,) = lab.attach(clones_of=["Production"])

    assert (done.scsi_id, done.status) == (clone, DONE)


@pytest.mark.parametrize("step", range(3, 7))
def test_a_run_that_was_cut_anywhere_is_found_by_its_original(lab, world, step):
    clone = lab.clone("Production")
    lun = world.lun(clone)
    world.luns[world.luns.index(lun)] = lun._replace(disk=cut_before(lun.disk, step, scsi_id=clone))
    assert world.state(clone) == "unfinished"
    (done,) = lab.attach(clones_of=["Production"])

    assert (done.scsi_id, done.status) == (clone, DONE)


def test_a_discarded_copy_comes_back_by_its_scsi_id(lab, world):
    clone = lab.clone("Production")
    (first,) = lab.attach(clone)
    with connect(lab.where()) as calls:
        forget.discard(calls, records.read(calls), lab.sr(first.sr_uuid)[0])
    with pytest.raises(NotFound):
        lab.attach(everything=True)
    (again,) = lab.attach(clone)

    assert (again.status, again.sr_uuid) == (DONE, first.sr_uuid)


def test_a_discarded_copy_whose_journal_is_gone_is_still_known_by_its_ids(lab, world):
    """LVM has used up its ring; what the ids were follows from the new SR and the VDIs of the original."""
    clone, original = lab.clone("Production"), world.sr_uuid(lab.originals["Production"][0])
    (first,) = lab.attach(clone)
    with connect(lab.where()) as calls:
        forget.discard(calls, records.read(calls), lab.sr(first.sr_uuid)[0])
    disk = world.lun(clone).disk
    journal = read_mark(disk).journal
    disk.poke(journal.offset, bytes(len(journal.data)))
    disk.writes += 1  # the world is to look again
    (again,) = lab.attach(clone)

    assert again.of_sr == lab.sr(again.sr_uuid)[1]["other_config"]["relvmoiscsi:original-sr"] == original
    assert {(pair.old, pair.new) for pair in again.vdis} == {(pair.old, pair.new) for pair in first.vdis}


# --- copies of copies


def test_a_clone_of_a_copy_that_was_discarded_is_its_untouched_twin(lab, world):
    first = lab.clone("Production")
    (copy,) = lab.attach(first)
    second = world.clone(first)
    with connect(lab.where()) as calls:
        forget.discard(calls, records.read(calls), lab.sr(copy.sr_uuid)[0])
    found = {lun.scsi_id: lun for lun in find(lab)}
    assert (found[first].kind, found[second].kind, found[second].of_sr) == ("resignatured", "clone", copy.sr_uuid)

    with pytest.raises(Refused, match=second):
        attach.verify_none_left(list(found.values()), [found[first]])
    assert {each.status for each in lab.attach(first, second)} == {DONE}
    assert world.sr_uuid(first) == copy.sr_uuid != world.sr_uuid(second)


# --- the note of what has been begun


def notes(lab):
    return [key for key in lab.pool.db.get("pool", lab.pool.pool, "other_config") if "relvmoiscsi:at-work:" in key]


def test_the_note_is_gone_when_all_srs_are_marked(lab, world):
    lab.clone("Production")
    seen = []
    lab.pool.api.before = lambda method, params: seen.append(notes(lab)) if method == "Async.SR.create" else None
    assert [each.status for each in lab.attach(everything=True)] == [DONE]
    assert seen == [["relvmoiscsi:at-work:a run"]] and notes(lab) == []
    assert [each.status for each in lab.attach(everything=True)] == [ALREADY]


def test_it_stays_for_a_lun_that_has_failed_and_goes_with_the_next_run(lab, world):
    clone = lab.clone("Production")
    world.fail["sr_create", clone] = NotFound("The LUN did not appear.", "ISCSIDevice")
    lab.attach(clone)
    assert notes(lab) == ["relvmoiscsi:at-work:a run"]

    world.fail.clear()
    lab.attach(clone)
    assert notes(lab) == []


# --- what could not be looked at


def test_a_target_that_fails_hides_no_other_and_is_told(lab, world):
    world.add(TARGET, "iqn.2026-01.test:b-refuses", sr_disk("x1"), chap=("bob", "other word"))
    third = world.add(TARGET, "iqn.2026-01.test:c-open", sr_disk("x2"))
    found = find(lab, Portal(TARGET))

    assert third in [lun.scsi_id for lun in found]
    (away,) = [lun for lun in found if not lun.scsi_id]
    assert (away.kind, away.portal.iqn) == ("unreachable", "iqn.2026-01.test:b-refuses")
    assert attach.unseen(found, [], [], True) == [away] and attach.unseen(found, [third], []) == []
    assert "iqn.2026-01.test:b-refuses was skipped" in str(attach.passed_over(away).error)


def test_the_wildcard_of_xencenter_is_every_iqn(lab, world):
    for pbd in lab.pool.db.refs("PBD"):
        config = lab.pool.db.get("PBD", pbd, "device_config")
        lab.pool.db.set("PBD", pbd, "device_config", {**config, "targetIQN": "*"})
    clone = lab.clone("Production")

    assert kind_of(lab, clone) == "clone"


def test_each_iqn_has_the_chap_of_its_own_sr():
    world = World()
    with world.pool(hosts=("xs1",)) as pool:
        lab = Lab(world, pool)
        for name, chap in (("one", ("alice", "a")), ("two", ("bob", "b"))):
            lab.original(name, target="10.0.0.8", iqn="iqn.2026-01.test:" + name, chap=chap)
            lab.clone(name)
        kinds = [lun.kind for lun in find(lab, Portal("10.0.0.8"))]

    assert sorted(kinds) == ["clone", "clone", "original", "original"]


def test_one_that_cannot_be_read_is_left_out_and_stops_no_other(lab, world):
    bad, good = lab.clone("Production"), lab.clone("Testing")
    world.fail["sr_probe", bad] = NotFound("The LUN did not appear.", "ISCSIDevice")
    found = find(lab)

    assert [lun.scsi_id for lun in attach.choose(found, [bad, good], [])] == [good]
    assert [lun.scsi_id for lun in attach.unseen(found, [bad, good], [])] == [bad]


def test_an_sr_without_a_clone_is_told_although_another_has_one(lab):
    lab.clone("Production")

    with pytest.raises(NotFound, match="no clone of the SR"):
        lab.attach(clones_of=["Production", "Testing"])
