# SPDX-License-Identifier: LGPL-2.1-only
"""The LUNs in use that the builder makes, and the model of the storage manager's recovery: each confirms the other.

`live` says volume by volume what a guest must read in the end; `sm_recovery` follows the storage manager's rules on
what the reader sees. They meet here. The golden LUNs were made by the real storage manager.
"""

from functools import lru_cache

import pytest

from kit import golden, live
from kit.builder import build_sr, journal, raw
from kit.chains import links
from kit.live import (
    CARRIED,
    CLONE_STEPS,
    FINISHED,
    LEAF_STEPS,
    REFUSED,
    STATES,
)
from kit.reader import kind_of, read_sr
from kit.sm_recovery import Impossible, recovery

pytestmark = pytest.mark.states


@lru_cache(maxsize=None)
def made(name):
    return STATES[name]()


@lru_cache(maxsize=None)
def recovered(name):
    return recovery(made(name).built.disk)


ALLOWED = [name for name in STATES if made(name).verdict != REFUSED]
IN_VAIN = [name for name in STATES if made(name).verdict == REFUSED]


def outcome(name):
    """What becomes of the only `clone_` or `leaf_` journal of a state."""
    (done,) = [text for text in recovered(name).done if not text.startswith("inflate_")]
    return done.rpartition(": ")[2]


@pytest.mark.parametrize("name", ALLOWED)
def test_through_every_leaf_the_guest_reads_what_it_has_written(name):
    state = made(name)

    after = recovered(name)

    found = {volume.split("-", 1)[1] for volume in after.leaves}
    assert found - {state.uuid(key) for key in state.unread} == {state.uuid(key) for key in state.leaves}
    for key in state.leaves:
        (volume,) = [leaf for leaf in after.leaves if leaf.endswith(state.uuid(key))]
        if name != "end footer: resized" or key not in ("disk", "alone"):
            assert after.guest(volume) == state.guest(key), key
        assert after.guest(volume).blocks == state.guest(key).blocks, key


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_needed_stays_and_is_hidden_and_read_only_where_it_must_be(name):
    after = recovered(name)

    for leaf in after.leaves:
        assert after.volumes[leaf].writable
    middle = set(after.parents.values()) - {name for name in after.parents.values() if name not in after.volumes}
    assert all(after.volumes[volume].hidden for volume in middle)
    assert not middle & set(after.garbage)


@pytest.mark.parametrize("name", ALLOWED)
def test_only_unfinished_work_has_something_done_about_it(name):
    state = made(name)

    done = recovered(name).done

    journals = [journal.name for journal in read_sr(state.built.disk).journals]
    mine = [journal for journal in journals if journal.split("_")[0] in ("inflate", "clone", "leaf")]
    assert sorted(text.partition(":")[0] for text in done) == sorted(mine)
    assert (state.verdict == FINISHED) == bool(mine)
    assert state.verdict in (FINISHED, CARRIED)


@pytest.mark.parametrize("name", IN_VAIN)
def test_what_the_storage_manager_cannot_read_either_is_impossible(name):
    with pytest.raises(Impossible):
        recovered(name)


def test_the_words_of_a_state_have_their_uuids():
    state = made("clone: after_second_snap, vhd")

    assert state.said() == [state.uuid("orig")]


@pytest.mark.parametrize("step", CLONE_STEPS)
def test_a_snapshot_is_completed_once_both_leaves_are_there(step):
    reached = CLONE_STEPS.index(step)

    done = outcome(f"clone: {step}, vhd")

    if reached == 0:
        assert done == "nothing to do"
    else:
        assert done == ("completed" if reached >= CLONE_STEPS.index("after_second_snap") else "undone")


@pytest.mark.parametrize("kind", ["clone", "leaf"])
def test_a_journal_of_which_the_value_is_not_written_is_one_of_which_nothing_was_done(kind):
    assert outcome(f"{kind}: value not written") == "nothing to do"


@pytest.mark.parametrize("name", [
    "clone: after_lvcreate, over a deleted VHD",
    "clone: after_second_lvcreate, over a deleted VHD",
    "clone: after_lvcreate, over a whole deleted VHD",
    "clone: after_second_lvcreate, over a whole deleted VHD",
    "clone: first leaf without its end footer",
    "clone: second leaf without its end footer",
])  # fmt: skip
def test_a_leaf_that_is_not_whole_undoes_the_snapshot(name):
    assert outcome(name) == "undone"


@pytest.mark.parametrize("base", ["single", "single of raw"])
@pytest.mark.parametrize("step, done", [("after_shrink_parent", "undone"), ("after_first_snap", "completed")])
def test_a_snapshot_with_one_leaf_needs_one(step, done, base):
    assert outcome(f"clone: {step}, {base}") == done


def test_a_completed_snapshot_has_records_for_base_and_clone():
    state = made("clone: after_second_snap, vhd")

    assert recovered("clone: after_second_snap, vhd").introduced == {state.uuid("base"), state.uuid("clone")}
    assert recovered("clone: after_first_snap, vhd").introduced == frozenset()


@pytest.mark.parametrize("step", LEAF_STEPS)
def test_a_leaf_coalesce_is_undone_while_the_old_leaf_is_there(step):
    assert outcome(f"leaf: {step}, vhd") == ("finished" if step == "old_deleted" else "undone")


def test_an_undone_leaf_coalesce_gives_both_volumes_their_names_back():
    state = made("leaf: after_hidden, vhd")
    child, parent = ("VHD-" + state.uuid(key) for key in ("child", "parent"))
    volume = state.built.truth.volume
    # in the truth the parent bears the name of the child by now
    parent_uuid = [record.uuid for record in state.built.truth.records if record.name_label == "base copy"][-1]

    after = recovered("leaf: after_hidden, vhd")

    assert child == parent, "both go by one name"
    assert after.volumes[child] == (volume("child").name, False, True)
    assert after.volumes["VHD-" + parent_uuid] == (volume("parent").name, True, False)
    assert after.parents[child] == "VHD-" + parent_uuid


def test_what_the_garbage_collector_removes_is_told():
    state = made("garbage collection")
    empty = STATES["clone: after_parent_ro, empty child"]()

    assert recovered("garbage collection").garbage == [state.built.truth.volume("obsolete").name]
    assert recovery(empty.built.disk).garbage == [empty.built.truth.volume("base").name]


def test_a_journal_of_a_volume_that_is_gone_is_done_with():
    assert recovered("inflate: of nothing").done[0].endswith("nothing to do")


def test_a_coalesce_without_a_child_cannot_be_undone():
    lun = build_sr([raw("parent"), journal("leaf", "child", "{parent}")], also=("child",))

    with pytest.raises(Impossible, match="nor VHD-OLD_"):
        recovery(lun.disk)


# --- the golden LUNs

GOLDEN_DONE = {
    "running": (),
    "clone_vdi_after_shrink_parent": ("undone",),
    "clone_vdi_after_second_snap": ("completed",),
    "inflate_after_setSize": ("deflated",),
    "coalescing_VHD_data": (),
    "coaleaf_one_renamed": ("undone",),
}


@pytest.mark.parametrize("name", golden.LIVE_NAMES)
def test_the_golden_luns_are_recovered_as_their_fault_points_say(name):
    image = golden.load_live(name)

    after = recovery(image.disk)

    assert tuple(text.rpartition(": ")[2] for text in after.done) == GOLDEN_DONE[name]
    uuids = {volume.split("-", 1)[1] for volume in after.volumes}
    known = {uuid for uuid, vdi in image.manifest["vdis"].items() if vdi["managed"]}
    introduced = {volume for volume in after.introduced if volume in uuids}
    leaves = {volume.split("-", 1)[1] for volume in after.leaves}
    assert leaves - introduced == known
    assert introduced <= uuids and known <= uuids
    for leaf in after.leaves:
        assert after.guest(leaf).size == int(
            image.manifest["vdis"].get(leaf.split("-", 1)[1], {"size": 25165824})["size"]
        )


@pytest.mark.parametrize("name", golden.LIVE_NAMES)
def test_the_reader_has_nothing_against_a_lun_in_use(name):
    disk = golden.load_live(name).disk
    sr = read_sr(disk)

    assert sr.problems == ()
    for vhd in sr.vhds:
        assert all(link.doubts == () for link in links(disk, vhd.name))


def test_the_last_sector_of_a_running_disk_is_no_footer():
    sr = read_sr(golden.load_live("running").disk)

    assert sorted(vhd.end for vhd in sr.vhds) == ["invalid", "invalid", "same", "same"]


def test_every_kind_of_volume_of_a_built_state_is_known_to_the_reader():
    sr = read_sr(STATES["foreign volumes"]().built.disk)

    assert [name for name in sr.others if kind_of(name) == "other"] == ["hb-" + live.HOST, "backup_data"]
