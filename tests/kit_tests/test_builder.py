# SPDX-License-Identifier: LGPL-2.1-only
"""The builder's LUNs are what their truth says, by the independent reader, and the same every time."""

import xml.etree.ElementTree as ElementTree

import pytest

from kit import builder
from kit.builder import (
    build_sr,
    vhd,
)
from kit.reader import (
    layout_of,
    lv_bytes,
    read_sr,
)

LUNS = {
    "one_vhd": builder.one_vhd,
    "five_deep_with_raw_root": builder.five_deep_with_raw_root,
    "fragmented_locators": builder.fragmented_locators,
    "two_metadata_areas": builder.two_metadata_areas,
    "ignored_area": lambda **o: builder.two_metadata_areas("ignored", **o),
    "wrapped_text": builder.wrapped_text,
    "many_vdis": lambda **o: builder.many_vdis(40, chained=True, **o),
    "qcow2_chain": builder.qcow2_chain,
    "four_k": builder.four_k,
    "labels": builder.labels,
    "shifted": lambda **o: builder.labels("shifted", **o),
    "damaged": lambda **o: builder.labels("damaged", **o),
    "everything": builder.everything,
}


@pytest.fixture(params=sorted(LUNS))
def make(request):
    return LUNS[request.param]


def test_the_reader_sees_every_vhd_as_the_truth_says(make):
    lun = make()
    sr = read_sr(lun.disk)
    assert sr.problems == ()
    by_uuid = {volume.uuid: volume for volume in lun.truth.volumes}

    for volume in lun.truth.volumes:
        if volume.kind == "vhd":
            vhd_read = sr.vhd(volume.name)
            parent = by_uuid[volume.parent_uuid] if volume.parent else None
            assert vhd_read.uuid == volume.footer_uuid
            assert vhd_read.hidden == volume.hidden
            assert vhd_read.disk_type == (4 if parent else 3)
            assert vhd_read.parent == ((sr.vg.name, parent.name) if parent else ("", ""))
            assert vhd_read.prt_uuid == (parent.footer_uuid if parent else "")
            assert [item.code for item in vhd_read.locators] == (["MacX", "W2ku", "W2ru"] if parent else [])


def test_reader_and_builder_agree_on_what_may_change(make):
    lun = make()

    assert layout_of(lun.disk) == lun.truth.layout


def test_the_same_seed_gives_the_same_lun(make):
    assert make(seed=5).disk == make(seed=5).disk
    assert make(seed=5).truth == make(seed=5).truth
    assert make(seed=5).truth.sr_uuid != make(seed=6).truth.sr_uuid


def test_a_lun_never_changes_from_release_to_release_of_python():
    # the ids of this LUN, on every Python
    truth = builder.one_vhd(seed="pinned").truth

    assert truth.sr_uuid == PINNED_SR
    assert truth.pv_id == PINNED_PV


PINNED_SR = "6143163e-a77c-439b-bdad-7bc8762c92c4"
PINNED_PV = "Xf8e8r-PHzp-wHDt-yxvZ-IN5Q-q4NJ-1sc847"


@pytest.mark.parametrize(
    "mebibytes, geometry",
    [
        (64, "03c30811"),
        (128, "03c31011"),
        (200, "0339101f"),
        (256, "0208103f"),
        (1024, "0820103f"),
        (2 << 20, "ffff10ff"),
    ],
)
def test_geometries_of_vhds_are_those_of_the_specification(mebibytes, geometry):
    lun = build_sr([vhd("disk", virtual_size=mebibytes << 20)])
    (place,) = lun.truth.device_ranges("disk", 56, 4)

    assert lun.disk.peek(place.offset, 4).hex() == geometry


def slices(lun):
    """Records of MGT as sm slices them: 1024 bytes each."""
    sr = read_sr(lun.disk)
    data = lv_bytes(lun.disk, sr.vg, sr.vg.lv("MGT"), 0, sr.mgt.length)
    return data[:2048], [data[start : start + 1024] for start in range(2048, sr.mgt.length, 1024)]


def test_mgt_is_what_sm_can_parse():
    head, records = slices(builder.everything())

    assert head[:20] == b"XSSM:11264     :1:2 "
    ElementTree.fromstring(b"<SRMetadata>" + head[534:] + b"</SRMetadata>")
    for record in records:
        ElementTree.fromstring(b"<SRMetadata>" + record + b"</SRMetadata>")


def test_records_of_sm_3_0_are_shifted_by_the_bytes_that_are_not_characters():
    good, shifted, damaged = (slices(builder.labels(bug))[1] for bug in ("", "shifted", "damaged"))

    number = [record.find("漢字".encode()) > 0 for record in good].index(True)

    extra = good[number].find(b"<uuid>") - 512
    assert extra == 0
    extra = shifted[number].find(b"<uuid>") - 512
    assert extra > 0
    assert damaged[number + 1].startswith(b" " * extra + b"<vdi><name_label>"[extra:])
    assert good[number + 1].startswith(b"<vdi>") and shifted[number + 1].startswith(b"<vdi>")
