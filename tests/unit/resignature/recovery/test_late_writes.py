# SPDX-License-Identifier: LGPL-2.1-only
"""A write of another host is reported there as failed, and reaches the disk after all: the table of docs/protocol.rst.

On one host no write lands late: the next session of iSCSI ends the one before, and the kernel ends a request of a disk
before the process is over. So what was settled by then must only stay recognisable: nothing is made of it that the LUN
never was, and what cannot be told is refused, with its evidence and without a write.
"""

import pytest

from kit import lvmreader, reader
from kit.cuts import SCSI_ID, done, entropy, free_ring, image, late_writes, lvm_commit, recover, same_but_for, undo
from kit.examples import some
from relvmoiscsi import engine
from relvmoiscsi.errors import RelvmoiscsiError, Unfinished

pytestmark = pytest.mark.states

IMAGES = some(["a chain", "two areas", "blocks of 4096", "512e"], 3, lambda _name: "")
MARK, COMMIT, FINAL = 0, 1, 2


def go_on(disk, seed=1):
    """What a user does who wants the LUN resignatured: the same command again, until it says so."""
    for _ in range(3):
        try:
            prepared = engine.prepare(disk, entropy(seed), engine.ResignatureRequest(scsi_id=SCSI_ID))
        except Unfinished:
            recover(disk)
            continue
        if isinstance(prepared, engine.Prepared):
            engine.resignature(disk, prepared)
        return
    raise AssertionError("three calls were not enough")


def seen_on(disk):
    return reader.identities(disk), reader.vg_view(disk)


def ends_of(original):
    """What is seen on the LUN after the run that failed, and after another one."""
    return [seen_on(done(original)), seen_on(done(original, seed=1))]


@pytest.mark.parametrize("name", IMAGES)
def test_a_write_that_failed_and_is_there_is_settled_by_the_same_command(name):
    original = image(name)
    ends = ends_of(original)
    for _n, failing in late_writes(original):
        failing.land()

        go_on(failing.base)

        assert seen_on(failing.base) in ends
        assert engine.inspect(failing.base).state == engine.RESIGNATURED


@pytest.mark.parametrize("settle", [undo, go_on])
@pytest.mark.parametrize("name", IMAGES)
def test_one_that_lands_on_a_lun_that_was_settled_is_harmless_or_refused_without_a_write(name, settle):
    original = image(name)
    refused, ends = 0, ends_of(original)
    # contents: docs/protocol.rst, "What is not covered"
    for n, failing in late_writes(original, end=reader.read_vg(original).pe_start_bytes):
        disk = failing.base
        if settle is undo and engine.inspect(disk).state == engine.CLEAN:
            continue  # there is nothing to take back
        settle(disk)
        settled = disk.copy()
        failing.land()
        landed = disk.copy()

        try:
            go_on(disk)
        except RelvmoiscsiError as error:
            refused += 1
            assert disk == landed, f"write {n}: {error}"
            assert engine.inspect(landed).state in (engine.UNFINISHED, engine.DAMAGED), f"write {n}"
            continue
        assert seen_on(disk) in [seen_on(settled), *ends], f"write {n}"
        assert reader.read_sr(disk).problems == reader.read_sr(original).problems
        assert engine.inspect(disk).state == engine.RESIGNATURED
    assert refused > 0


def labels_that_fail(original):
    """The disks on which the writes of the label have failed, one after the other."""
    return [failing for _n, failing in late_writes(original, end=4096)]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("which, when", [(MARK, "before"), (COMMIT, "behind"), (FINAL, "")])
def test_a_label_that_does_not_go_with_the_metadata_is_refused_with_what_is_where(name, which, when):
    """A second run is on the LUN by then, and LVM has gone on in it."""
    failing = labels_that_fail(image(name))[which]
    disk = failing.base
    go_on(disk)
    lvm_commit(disk)
    failing.land()
    landed = disk.copy()
    found = engine.inspect(disk)

    if not when:  # LVM's own label of the same run: it is right
        assert found.state == engine.RESIGNATURED
        return
    assert found.state == engine.UNFINISHED
    assert f"was cut {when} its commit, and the " in str(found.problem)
    assert "take the clone again" in str(found.problem)
    for act in (recover, undo, go_on):
        with pytest.raises(RelvmoiscsiError):
            act(disk)
    assert disk == landed


def test_a_commit_that_lands_behind_the_way_back_leads_lvm_nowhere():
    """Its second area has no header any more, so nobody uses what lies there."""
    original = image("a chain")
    failing = labels_that_fail(original)[COMMIT]
    undo(failing.base)
    assert same_but_for(failing.base, original, free_ring(original))
    failing.land()

    assert lvmreader.vg_view(failing.base)[0] == "PV without VG"
    assert engine.inspect(failing.base).state == engine.UNFINISHED
