# SPDX-License-Identifier: LGPL-2.1-only
"""The builder's LUNs are what their truth says, by the independent reader, and the same every time."""

import xml.etree.ElementTree as ElementTree

import pytest

from kit import builder
from kit.reader import layout_of, lv_bytes, read_sr, read_vg

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


def test_the_reader_sees_what_the_builder_says_and_both_agree_on_what_may_change(make):
    lun = make()
    truth, vg = lun.truth, read_vg(lun.disk)

    assert (vg.pv_id, vg.name, vg.id, vg.seqno, vg.warnings) == (
        truth.pv_id, truth.vg_name, truth.vg_id, truth.seqno, ()
    )  # fmt: skip
    assert [(pv.pe_start, pv.pe_count) for pv in vg.pvs] == [(truth.pe_start // 512, truth.pe_count)]
    found = [(lv.name, lv.id, lv.tags, "WRITE" in lv.status, segments_of(lv)) for lv in vg.lvs]
    assert found == [(one.name, one.lv_id, one.tags, one.writable, one.segments) for one in truth.volumes]
    assert layout_of(lun.disk) == truth.layout


def segments_of(lv):
    return tuple((segment.extent_count, segment.first_pe) for segment in lv.segments)


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
