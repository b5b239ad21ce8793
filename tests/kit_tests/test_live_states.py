# SPDX-License-Identifier: LGPL-2.1-only
"""The model of the storage manager's recovery leads where the real one was going, on the LUNs that it was stopped on.

What guests read in the end of the LUNs that the builder makes is said by `live`, by `sm_recovery` and by the engine:
unit/resignature/reading/test_live.py compares the three.
"""

import pytest

from kit import golden
from kit.chains import links
from kit.reader import read_sr
from kit.sm_recovery import recovery

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
