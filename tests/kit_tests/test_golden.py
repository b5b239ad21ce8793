# SPDX-License-Identifier: LGPL-2.1-only
"""The independent reader reads the golden LUNs as the tools that made them did."""

import re

import pytest

from kit import golden
from kit.reader import identities, layout_of, read_sr, read_vg, sightings

JSON = ["one", "chain"]


def uncolumned(text, title):
    """Lines of a section of tree.txt."""
    return text.split(f"# {title}\n")[1].split("\n#")[0].strip("\n").split("\n")


@pytest.mark.parametrize("name", JSON)
def test_mgt_holds_the_records_that_sm_kept(name):
    image = golden.load(name)
    mgt = read_sr(image.disk).mgt
    records = {record.uuid: record for record in mgt.records}

    assert mgt.sr_uuid == image.manifest["sr"]["uuid"]
    assert mgt.sr_label == image.manifest["sr"]["name_label"]
    assert mgt.sr_description == "made for tests &lt;&amp;&gt; é"
    for vdi in image.manifest["vdis"]:
        record = records.pop(vdi["uuid"])
        assert record.name_description == vdi["name_description"] or vdi["name_label"] == ""
        assert record.snapshot_of == vdi["snapshot_of"]
        assert record.vdi_type == vdi["sm_config"]["vdi_type"]
        assert not record.deleted
        if vdi["name_label"]:
            assert record.name_label == vdi["name_label"].replace("<", "&lt;").replace(">", "&gt;")
    assert not records


@pytest.mark.parametrize("name", JSON)
def test_vhd_util_scan_says_the_same(name):
    image = golden.load(name)
    sr = read_sr(image.disk)
    sizes = {lv.name: lv.extents * sr.vg.extent_bytes for lv in sr.vg.lvs}

    scanned = set(re.findall(r"vhd=(\S+) capacity=(\d+) size=(\d+) hidden=(\d) parent=(\S+)", image.manifest["vhds"]))

    assert scanned == {
        (v.name, str(v.virtual_size), str(sizes[v.name]), str(v.hidden), v.parent[1] or "none") for v in sr.vhds
    }
    assert sr.problems == ()


def test_tree_resolves_as_vhd_util_query_says():
    image = golden.load("tree")
    sr = read_sr(image.disk)
    assert sr.problems == ()

    for line in uncolumned(image.text, "vhd-util check / query -p"):
        name, state, parent = re.match(r"(\S+): \S+ is (\w+); parent: (.*)$", line).groups()
        vhd = sr.vhd(name)
        assert state == "valid"
        if parent.endswith("has no parent"):
            assert vhd.parent == ("", "") and not vhd.locators
        else:
            vg_name, lv_name = vhd.parent
            dm_name = "{}-{}".format(vg_name.replace("-", "--"), lv_name.replace("-", "--"))
            assert parent == "/dev/mapper/" + dm_name
            assert {locator.target for locator in vhd.locators} == {vhd.parent}


def test_the_cbt_logs_of_tree_point_to_each_other():
    logs = {log.name.split(".")[0]: log for log in read_sr(golden.load("tree").disk).cbts}

    (older,) = [uuid for uuid, log in logs.items() if log.child]
    (newer,) = [uuid for uuid, log in logs.items() if log.parent]

    assert (logs[older].child, logs[newer].parent) == (newer, older)


@pytest.mark.parametrize("name", golden.NAMES)
def test_identities_stand_where_they_may_change_or_in_free_extents(name):
    disk = golden.load(name).disk
    vg = read_vg(disk)
    used = [(s.first_pe, s.first_pe + s.extent_count) for lv in vg.lvs for s in lv.segments]

    left = sightings(disk, identities(disk), layout_of(disk).allowed)

    extents = {(item.offset - vg.pe_start_bytes) // vg.extent_bytes for item in left}
    assert not [extent for extent in extents if any(first <= extent < end for first, end in used)]
    assert bool(left) == (name == "chain"), "freed extents of `chain` hold journals and CBT logs of before"
