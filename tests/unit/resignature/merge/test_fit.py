# SPDX-License-Identifier: LGPL-2.1-only
"""A call meets a LUN that an earlier one has left, and the two do not want the same VDIs."""

from contextlib import contextmanager

import pytest

from kit.chains import flatten
from kit.chains.random_chain import random_chain
from kit.cuts import OTHER_SCSI_ID, SCSI_ID, entropy, recorded
from kit.outcome import Unguarded, opened, run_on
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Refused
from relvmoiscsi.lun.run import COPIED, READ_BACK, resignature
from relvmoiscsi.wording import shell_command

ONE, ALL = OneVdiRequest(), None
#: where the earlier run stopped: behind so many groups of writes, or not at all; recovered by another call
MARKED, CONTENTS, COMMITTED, RECOVERED, DONE = 2, 3, 4, -4, None
#: who is to be the one: by the UUID it had, the one it has, or a snapshot
OLD_NAME, NEW_NAME, SNAPSHOT = "old name", "new name", "snapshot"


class Watched(Unguarded):
    """Remembers what was copied, and read back, without a lock."""

    def __init__(self):
        self.locked, self.during = False, {COPIED: [], READ_BACK: []}

    @contextmanager
    def held(self, vg_names, replaced):
        self.locked = vg_names is not None
        yield
        self.locked = False

    def progress(self, what, done, total):
        self.during[what].append(self.locked)


@pytest.fixture(scope="module")
def chain():
    """With snapshots, and with blocks that are filled and given away."""
    return random_chain(34, bat_entries=4096, free=40, blocks=5, depth=3, snapshots=True)


def left(chain, one, stop):
    """The LUN that an earlier run has left, and the ids of that run."""
    crash = recorded(chain.disk, scsi_id=SCSI_ID, one=one)
    disk = crash.current.copy() if stop is DONE else crash.after_group(abs(stop))
    ids = engine.inspect(crash.current).run.ids
    if stop == RECOVERED:
        engine.recover(disk, engine.find_unfinished(disk))
    return disk, ids


def call(disk, one, scsi_id=SCSI_ID):
    return run_on(disk, entropy(1), engine.ResignatureRequest(scsi_id=scsi_id, one=one))


def is_the_one(disk, chain):
    (volume,) = engine.inspect(disk).lun.disks().values()
    return flatten(disk, volume.name.text) == chain.flats[chain.leaf]


def test_copies_are_made_without_lvms_locks(chain):
    guard, request = Watched(), engine.ResignatureRequest(scsi_id=SCSI_ID, one=ONE)

    resignature(opened(chain.disk.copy(), guard), request, entropy(1), lambda *_: None, guard.progress)

    assert guard.during[COPIED] and not any(guard.during[COPIED])
    assert guard.during[READ_BACK] and all(guard.during[READ_BACK])


#: the earlier run and where it stopped, what is asked now, for which LUN, and how that ends: words of a refusal else
ENDS = [
    (ONE, MARKED, ONE, SCSI_ID, "begun anew"),
    (ONE, CONTENTS, ONE, SCSI_ID, "begun anew"),
    (ONE, MARKED, ALL, SCSI_ID, "all are there"),
    (ONE, CONTENTS, ALL, SCSI_ID, "all are there"),
    (ONE, COMMITTED, ALL, SCSI_ID, "was made one VDI before, and all VDIs are asked for"),
    (ONE, COMMITTED, ONE, SCSI_ID, "finished"),
    (ALL, MARKED, ONE, SCSI_ID, "begun anew"),
    (ALL, COMMITTED, ONE, SCSI_ID, "begun anew"),
    # a copy gets ids of its own; the one is finished first, and has another name by then
    (ONE, COMMITTED, ONE, OTHER_SCSI_ID, "begun anew"),
    (ONE, COMMITTED, OLD_NAME, OTHER_SCSI_ID, "begun anew"),
    (ONE, RECOVERED, OLD_NAME, OTHER_SCSI_ID, "begun anew"),
    (ONE, DONE, ONE, SCSI_ID, "already done"),
    (ONE, DONE, OLD_NAME, SCSI_ID, "already done"),
    (ONE, DONE, NEW_NAME, SCSI_ID, "already done"),
    (ONE, DONE, SNAPSHOT, SCSI_ID, "of another VDI than {}"),
    (ONE, DONE, ALL, SCSI_ID, "the others are gone"),
    (ALL, DONE, ONE, SCSI_ID, "was resignatured before, with"),
]


@pytest.mark.parametrize("earlier, stop, asked, scsi_id, end", ENDS)
def test_a_call_gets_the_vdis_that_it_asks_for_or_a_refusal(chain, earlier, stop, asked, scsi_id, end):
    disk, ids = left(chain, earlier, stop)
    old, snapshot = chain.leaf[len("VHD-") :], chain.snapshots[0][len("VHD-") :]
    names = {OLD_NAME: old, NEW_NAME: ids.uuids[old], SNAPSHOT: snapshot}
    request = OneVdiRequest(names[asked]) if asked in names else asked

    if end not in ("begun anew", "all are there", "finished", "already done"):
        with pytest.raises(Refused, match=end.format(snapshot)) as caught:
            call(disk, request)
        if stop == COMMITTED:
            assert caught.value.disk_state == "The resignature that was cut was finished; nothing else was written."
            assert is_the_one(disk, chain)
        return

    outcome = call(disk, request, scsi_id)

    assert isinstance(outcome, engine.AlreadyDone) == (end == "already done")
    if end == "already done":
        assert outcome.sr_uuid == ids.new_sr
    else:
        assert outcome.was_cut == (end == "finished")
        assert (engine.inspect(disk).lun.sr_uuid == ids.new_sr) == (end == "finished")
    assert len(engine.inspect(disk).lun.disks()) == (len(chain.flats) if end == "all are there" else 1)
    assert end == "all are there" or is_the_one(disk, chain)
    assert isinstance(call(disk, request, scsi_id), engine.AlreadyDone)


def test_where_there_was_one_vdi_only_all_of_them_are_there():
    disk = random_chain(1, depth=1, blocks=4, snapshots=False, free=40).disk.copy()
    call(disk, ONE)

    assert isinstance(call(disk, ALL), engine.AlreadyDone)


def test_every_way_out_of_a_copy_cut_behind_its_commit_is_to_resignature_it(chain):
    disk, _ids = left(chain, ONE, COMMITTED)
    mark = engine.find_unfinished(disk)

    said = [str(engine.inspect(disk).problem)]
    for act in (lambda: engine.recover(disk, mark, OTHER_SCSI_ID), lambda: engine.undo(disk, entropy(1))):
        with pytest.raises(Refused) as caught:
            act()
        said.append(str(caught.value))

    again = shell_command("relvmoiscsi resignature --vdis one", disk.name)
    assert all(f"On a copy of that LUN with a SCSIid of its own, `{again}`" in text for text in said)
    assert "undo" not in said[1]


def test_of_a_run_without_a_scsi_id_no_copy_is_promised_ids_of_its_own_without_again(chain):
    """An image file has no SCSIid: the run is finished on the copy too, with the ids that are on the image."""
    disk = recorded(chain.disk, scsi_id=None, one=ONE).after_group(COMMITTED)
    with pytest.raises(Refused) as caught:
        engine.undo(disk, entropy(1))

    again = shell_command("relvmoiscsi resignature --again --vdis one", disk.name)
    for text in (str(engine.inspect(disk).problem), str(caught.value)):
        assert text.endswith(f"on a copy of that LUN, run `{again}` after that.")
        assert f"`{shell_command('relvmoiscsi recover', disk.name)}`" in text
