# SPDX-License-Identifier: LGPL-2.1-only
"""A call meets a LUN that an earlier one has left, and the two do not want the same VDIs."""

from contextlib import contextmanager

import pytest

from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.cuts import OTHER_SCSI_ID, SCSI_ID, entropy, recorded
from relvmoiscsi import engine, procedure
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused

ONE = OneVdiRequest()
#: groups of writes that a cut has let through: the mark is there, the commit is not; and the commit is
BEFORE, BEHIND = 2, 4


class Consent(procedure.Voice):
    """Agrees to everything, and remembers what was copied, and read back, without a lock."""

    def __init__(self):
        self.locked, self.copied_locked, self.read_back_locked = False, [], []

    def agrees_to_settle(self, mark, take_back, problem):
        pass

    def agrees_to(self, prepared):
        return True

    @contextmanager
    def locks(self, run):
        self.locked = True
        yield
        self.locked = False

    def copying(self, done, total):
        self.copied_locked.append(self.locked)

    def reading_back(self, done, total):
        self.read_back_locked.append(self.locked)

    def has_settled(self, mark, result):
        pass


@pytest.fixture(scope="module")
def chain():
    """With snapshots, and with blocks that are filled and given away."""
    return random_chain(34, bat_entries=4096, free=40, blocks=5, depth=3, snapshots=True)


def left_by_a_cut(chain, one, groups, scsi_id=SCSI_ID):
    return recorded(chain.disk, scsi_id=scsi_id, one=one).after_group(groups)


def call(disk, one, scsi_id=SCSI_ID, voice=None):
    return procedure.resignature(
        disk, entropy(1), voice or Consent(), engine.ResignatureRequest(scsi_id=scsi_id, one=one)
    )


def disks(disk):
    return engine.inspect(disk).lun.disks()


def only(disk):
    (volume,) = disks(disk).values()
    return volume.name.text


def test_copies_are_made_without_lvms_locks(chain):
    voice = Consent()

    call(chain.disk.copy(), ONE, voice=voice)

    assert voice.copied_locked and not any(voice.copied_locked)
    assert voice.read_back_locked and all(voice.read_back_locked)


@pytest.mark.parametrize("groups", (BEFORE, 3))
def test_one_vdi_that_was_cut_before_its_commit_is_taken_back_and_begun_anew(chain, groups):
    disk = left_by_a_cut(chain, ONE, groups)

    done = call(disk, ONE)

    assert not done.was_cut
    assert flatten(disk, only(disk)) == chain.flats[chain.leaf]


@pytest.mark.parametrize("groups", (BEFORE, 3))
def test_where_all_are_wanted_one_vdi_that_was_cut_before_its_commit_loses_none(chain, groups):
    disk = left_by_a_cut(chain, ONE, groups)

    call(disk, None)

    assert len(disks(disk)) == len(chain.flats)


def test_where_all_are_wanted_one_vdi_that_was_cut_behind_its_commit_is_no_success(chain):
    disk = left_by_a_cut(chain, ONE, BEHIND)

    with pytest.raises(Refused, match="was made one VDI before, and all VDIs are asked for") as caught:
        call(disk, None)

    assert caught.value.disk_state == "The resignature that was cut was finished; nothing else was written."
    assert flatten(disk, only(disk)) == chain.flats[chain.leaf]


def test_one_vdi_that_was_cut_behind_its_commit_is_finished(chain):
    disk = left_by_a_cut(chain, ONE, BEHIND)

    assert call(disk, ONE).was_cut

    assert flatten(disk, only(disk)) == chain.flats[chain.leaf]


@pytest.mark.parametrize("groups", (BEFORE, BEHIND))
def test_where_one_is_wanted_a_cut_run_that_keeps_all_is_taken_back(chain, groups):
    disk = left_by_a_cut(chain, None, groups)

    assert not call(disk, ONE).was_cut

    assert flatten(disk, only(disk)) == chain.flats[chain.leaf]


def test_a_copy_of_a_lun_that_was_cut_behind_its_commit_gets_ids_of_its_own(chain):
    disk = left_by_a_cut(chain, ONE, BEHIND)
    twin = engine.find_unfinished(disk).journal.run.ids.new_sr

    call(disk, ONE, OTHER_SCSI_ID)

    lun = engine.inspect(disk).lun
    assert lun.sr_uuid != twin
    assert flatten(disk, only(disk)) == chain.flats[chain.leaf]


# --- what is done


@pytest.fixture(scope="module")
def made_one(chain):
    """A LUN with one VDI, and what was said of the run."""
    disk = chain.disk.copy()
    return disk, call(disk, ONE)


@pytest.mark.parametrize("named", ["", "the UUID it had", "the UUID it has now"])
def test_the_same_call_again_is_done_already_whichever_name_the_one_has(chain, made_one, named):
    disk, first = made_one
    old = chain.leaf[len("VHD-") :]
    uuid = {"": None, "the UUID it had": old, "the UUID it has now": first.result.ids.uuids[old]}[named]

    again = call(disk.copy(), OneVdiRequest(uuid))

    assert isinstance(again, engine.AlreadyDone) and again.sr_uuid == first.result.ids.new_sr


def test_a_lun_that_was_made_one_is_not_what_asks_for_others(chain, made_one):
    snapshot = chain.snapshots[0][len("VHD-") :]

    for asked, words in ((OneVdiRequest(snapshot), f"of another VDI than {snapshot}"), (None, "the others are gone")):
        with pytest.raises(Refused, match=words):
            call(made_one[0].copy(), asked)


def test_a_lun_that_was_resignatured_with_all_is_not_what_one_asks_for(chain):
    disk = chain.disk.copy()
    call(disk, None)

    with pytest.raises(Refused, match="was resignatured before, with"):
        call(disk, ONE)


def test_on_a_copy_the_one_may_be_named_by_the_uuid_it_had(chain):
    """That is finished first, and has another by then. The same words go on to be the one that was asked for."""
    disk, kept = left_by_a_cut(chain, ONE, BEHIND), chain.leaf[4:]

    outcome = call(disk, OneVdiRequest(kept), OTHER_SCSI_ID)

    assert not outcome.was_cut
    assert isinstance(call(disk, OneVdiRequest(kept), OTHER_SCSI_ID), engine.AlreadyDone)


def test_on_a_copy_that_a_call_has_finished_alone_the_old_name_is_taken(chain):
    disk, kept = left_by_a_cut(chain, ONE, BEHIND), chain.leaf[4:]
    engine.recover(disk, engine.find_unfinished(disk))

    assert not call(disk, OneVdiRequest(kept), OTHER_SCSI_ID).was_cut


def test_where_there_was_one_vdi_only_all_of_them_are_there():
    chain = random_chain(1, depth=1, blocks=4, snapshots=False, free=40)
    disk = chain.disk.copy()
    call(disk, ONE)

    assert isinstance(call(disk, None), engine.AlreadyDone)


def test_every_way_out_of_a_copy_cut_behind_its_commit_is_to_resignature_it(chain):
    disk = left_by_a_cut(chain, ONE, BEHIND)
    mark = engine.find_unfinished(disk)

    said = [str(engine.inspect(disk).problem)]
    for act in (lambda: engine.recover(disk, mark, OTHER_SCSI_ID), lambda: engine.undo(disk, entropy(1))):
        with pytest.raises(Refused) as caught:
            act()
        said.append(str(caught.value))

    assert all(f"On a copy of that LUN `relvmoiscsi resignature --vdis one {disk.name}`" in text for text in said)
    assert "undo" not in said[1]
