# SPDX-License-Identifier: LGPL-2.1-only
"""A VDI that is to hold the database of a pool: seen, kept unless somebody asks, taken out in the same atomic step."""

import pytest

from kit import reader
from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.cuts import SCSI_ID, CrashDisk, Judge, cut_before, done, entropy, every_fault, recover, resignature, undo
from kit.outcome import run_on
from kit.sparse import join
from relvmoiscsi import engine
from relvmoiscsi.engine import AlreadyDone, OneVdiRequest
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.resignature.reading.lun_notes import notes
from relvmoiscsi.resignature.reading.sm_work import databases

SWITCHED = 5  #: the flush behind which the commit is durable, and the run not finished
POOL = "OpaqueRef:5b5c2d3e-7ff0-4a3c-8f5b-1f3b0a7c9d11"


def asks(clear, **more):
    return engine.ResignatureRequest(scsi_id=SCSI_ID, clear_databases=clear, **more)


def of_pool(volume, pool=POOL):
    return volume._replace(record=volume.record._replace(metadata_of_pool=pool))


@pytest.fixture(params=["small", "deleted beside it", "two of them"])
def built(request):
    volumes = [vhd("disk", bat_entries=SMALL_BAT), of_pool(raw("database", label="<DR> database", vdi_type="metadata"))]
    if request.param == "deleted beside it":
        volumes.append(of_pool(raw("gone", deleted=True)))
    if request.param == "two of them":
        volumes.append(of_pool(raw("second", vdi_type="metadata"), "OpaqueRef:another"))
    return build_sr(volumes)


def cleared(disk, **more):
    return resignature(disk, clear_databases=True, **more)


def pools(disk):
    return {
        record.name_label: dict(record.fields)["metadata_of_pool"]
        for record in reader.read_sr(disk).mgt.records
        if not record.deleted
    }


def run_of(disk, clear):
    return engine.prepare(disk, entropy(0), asks(clear)).plan


def test_it_is_seen_and_told_and_stays_unless_somebody_asks(built):
    found = engine.inspect(built.disk).lun
    before = pools(built.disk)

    assert databases(found)[built.truth.volume("database").uuid] == POOL
    assert any(POOL in note and "--clear-metadata-vdi" in note for note in notes(found))
    assert pools(done(built.disk)) == before and set(before.values()) >= {POOL}
    assert [write for write in run_of(built.disk, False).run.writes if "record" in write.what] == []


def test_it_is_taken_out_and_nothing_else_and_an_undo_gives_it_back(built):
    """A record of a VDI that was deleted is left alone."""
    after = done(built.disk, run=cleared)

    assert set(pools(after).values()) == {""}
    assert databases(engine.inspect(after).lun) == {}
    first, second = (
        [(one._replace(fields=()), [pair for pair in one.fields if one.deleted or pair[0] != "metadata_of_pool"])
         for one in reader.read_sr(disk).mgt.records]
        for disk in (after, done(built.disk))
    )  # fmt: skip
    assert first == second
    assert reader.read_sr(after).problems == reader.read_sr(built.disk).problems
    assert reader.read_sr(after).mgt.length == reader.read_sr(built.disk).mgt.length
    undone = done(after, run=undo)
    assert reader.essence(undone) == reader.essence(built.disk) and pools(undone) == pools(built.disk)


def test_a_lun_without_any_is_resignatured_as_ever():
    disk = build_sr([vhd("disk", bat_entries=SMALL_BAT), of_pool(raw("gone", deleted=True))]).disk

    assert run_of(disk, False) == run_of(disk, True)


@pytest.mark.states
def test_every_cut_leaves_the_old_lun_the_new_one_or_one_that_finishes(built):
    crash = CrashDisk(built.disk)
    cleared(crash)
    records = [record for record in reader.read_sr(built.disk).mgt.records if not record.deleted]
    slots = [slot for record in records for slot in built.truth.device_ranges("MGT", record.offset, 1024)]
    allowed = tuple(join([*reader.layout_of(built.disk).allowed, *slots]))
    judge = Judge(built.disk, done(built.disk, run=cleared), allowed=allowed)

    assert every_fault(judge, crash, limit=64, samples=8, undo_every=3) == []


def test_with_one_vdi_it_is_gone_as_well():
    built = build_sr([of_pool(vhd("disk", bat_entries=SMALL_BAT))])
    after = done(built.disk, run=cleared, one=OneVdiRequest())

    assert pools(after) == {"disk": ""} and not recover(after)


@pytest.mark.parametrize("is_cut", [False, True], ids=["done", "cut behind its commit"])
def test_a_run_without_it_is_no_answer_to_who_asks_for_it(is_cut):
    """The driver answered success, and the pool would have written its database into the copy."""
    built = build_sr([vhd("disk", bat_entries=SMALL_BAT), of_pool(raw("database", vdi_type="metadata"))])
    disk = cut_before(built.disk, SWITCHED) if is_cut else done(built.disk).copy()

    with pytest.raises(Refused, match="is marked as a database of a pool still") as caught:
        run_on(disk, entropy(1), asks(True))
    assert caught.value.disk_state == (
        "The resignature that was cut was finished; nothing else was written." if is_cut else NOTHING_WRITTEN
    )
    assert isinstance(run_on(disk, entropy(1), asks(False)), AlreadyDone)
    run_on(disk, entropy(1), asks(True, again=True))
    assert isinstance(run_on(disk, entropy(1), asks(True)), AlreadyDone)
