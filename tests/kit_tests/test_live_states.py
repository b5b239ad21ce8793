# SPDX-License-Identifier: LGPL-2.1-only
"""The LUNs in use that the builder makes, and the model of the storage manager's recovery: each confirms the other.

`live` says volume by volume what a guest must read in the end; `sm_recovery` follows the storage manager's rules on
what the reader sees. They meet here. The golden LUNs were made by the real storage manager.
"""

from functools import lru_cache

import pytest

from kit import golden
from kit.chains import links
from kit.live import (
    CARRIED,
    FINISHED,
    REFUSED,
    STATES,
)
from kit.reader import read_sr
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
