# SPDX-License-Identifier: LGPL-2.1-only
"""What the builder writes to MGT is what sm can parse, and what sm 3.0 wrote."""

import xml.etree.ElementTree as ElementTree

from kit import builder
from kit.reader import lv_bytes, read_sr


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
