# SPDX-License-Identifier: LGPL-2.1-only
"""The independent reader reads the golden LUNs as the tools that made them did, and the model of the storage manager's
recovery leads where the real one was going, on the LUNs that it was stopped on.

What guests read in the end of the LUNs that the builder makes is said by `live`, by `sm_recovery` and by the engine:
unit/resignature/reading/test_live.py compares the three.
"""

import re

import pytest

from kit import golden
from kit.chains import links
from kit.reader import identities, layout_of, read_sr, sightings
from kit.sm_recovery import recovery


@pytest.mark.parametrize("name", ["one", "chain"])
def test_mgt_and_vhd_util_scan_say_what_sm_kept(name):
    image = golden.load(name)
    sr = read_sr(image.disk)
    records = {record.uuid: record for record in sr.mgt.records}
    sizes = {lv.name: lv.extents * sr.vg.extent_bytes for lv in sr.vg.lvs}

    assert sr.problems == ()
    assert (sr.mgt.sr_uuid, sr.mgt.sr_label) == tuple(image.manifest["sr"][key] for key in ("uuid", "name_label"))
    assert sr.mgt.sr_description == "made for tests &lt;&amp;&gt; é"
    for vdi in image.manifest["vdis"]:
        record = records.pop(vdi["uuid"])
        assert record.name_description == vdi["name_description"] or vdi["name_label"] == ""
        assert (record.snapshot_of, record.vdi_type) == (vdi["snapshot_of"], vdi["sm_config"]["vdi_type"])
        assert not record.deleted
        if vdi["name_label"]:
            assert record.name_label == vdi["name_label"].replace("<", "&lt;").replace(">", "&gt;")
    assert not records
    scanned = set(re.findall(r"vhd=(\S+) capacity=(\d+) size=(\d+) hidden=(\d) parent=(\S+)", image.manifest["vhds"]))
    assert scanned == {
        (v.name, str(v.virtual_size), str(sizes[v.name]), str(v.hidden), v.parent[1] or "none") for v in sr.vhds
    }


def test_tree_resolves_as_vhd_util_query_says_and_its_cbt_logs_point_to_each_other():
    image = golden.load("tree")
    sr = read_sr(image.disk)
    queried = image.text.split("# vhd-util check / query -p\n")[1].split("\n#")[0].strip("\n")

    assert sr.problems == ()
    for line in queried.split("\n"):
        name, state, parent = re.match(r"(\S+): \S+ is (\w+); parent: (.*)$", line).groups()
        vhd = sr.vhd(name)
        assert state == "valid"
        if parent.endswith("has no parent"):
            assert vhd.parent == ("", "") and not vhd.locators
        else:
            assert parent == "/dev/mapper/{}-{}".format(*(part.replace("-", "--") for part in vhd.parent))
            assert {locator.target for locator in vhd.locators} == {vhd.parent}
    links_of = {log.name.split(".")[0]: (log.parent, log.child) for log in sr.cbts}
    (older,) = [uuid for uuid, (_, child) in links_of.items() if child]
    (newer,) = [uuid for uuid, (parent, _) in links_of.items() if parent]
    assert (links_of[older][1], links_of[newer][0]) == (newer, older)


@pytest.mark.parametrize("name", golden.NAMES)
def test_identities_stand_where_they_may_change_or_in_free_extents(name):
    disk = golden.load(name).disk
    vg = read_sr(disk).vg
    used = [(s.first_pe, s.first_pe + s.extent_count) for lv in vg.lvs for s in lv.segments]

    left = sightings(disk, identities(disk), layout_of(disk).allowed)

    extents = {(item.offset - vg.pe_start_bytes) // vg.extent_bytes for item in left}
    assert not [extent for extent in extents if any(first <= extent < end for first, end in used)]
    assert bool(left) == (name == "chain"), "freed extents of `chain` hold journals and CBT logs of before"


# -- in use

#: what recovery does on each LUN, and what the last sectors of its VHDs are
IN_USE = {
    "running": ((), ["invalid", "invalid", "same", "same"]),
    "clone_vdi_after_shrink_parent": (("undone",), None),
    "clone_vdi_after_second_snap": (("completed",), None),
    "inflate_after_setSize": (("deflated",), None),
    "coalescing_VHD_data": ((), None),
    "coaleaf_one_renamed": (("undone",), None),
}


@pytest.mark.parametrize("name", golden.LIVE_NAMES)
def test_the_golden_luns_in_use_are_recovered_as_their_fault_points_say(name):
    image, (done, ends) = golden.load_live(name), IN_USE[name]
    sr, after = read_sr(image.disk), recovery(image.disk)

    assert sr.problems == () and all(link.doubts == () for vhd in sr.vhds for link in links(image.disk, vhd.name))
    assert ends in (None, sorted(vhd.end for vhd in sr.vhds))
    assert tuple(text.rpartition(": ")[2] for text in after.done) == done
    uuids = {volume.split("-", 1)[1] for volume in after.volumes}
    known = {uuid for uuid, vdi in image.manifest["vdis"].items() if vdi["managed"]}
    introduced = {volume for volume in after.introduced if volume in uuids}
    assert {volume.split("-", 1)[1] for volume in after.leaves} - introduced == known
    assert introduced <= uuids and known <= uuids
    for leaf in after.leaves:
        expected = image.manifest["vdis"].get(leaf.split("-", 1)[1], {"size": 25165824})["size"]
        assert after.guest(leaf).size == int(expected)
