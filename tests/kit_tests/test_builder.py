# SPDX-License-Identifier: LGPL-2.1-only
"""The builder's LUNs are what their truth says, by the independent reader, and the same every time."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import build_lvm, builder
from kit.build_volumes import Record
from kit.builder import (
    SMALL_BAT,
    build_sr,
    cbtlog,
    journal,
    jvhd,
    named,
    raw,
    trim,
    vhd,
)
from kit.reader import (
    identities,
    layout_of,
    lv_bytes,
    lvm_crc,
    read_label,
    read_sr,
    read_vg,
)
from relvmoiscsi.device import Range

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


def test_the_reader_finds_nothing_to_complain_about(make):
    assert read_sr(make().disk).problems == ()


def test_the_reader_sees_what_the_truth_says(make):
    lun = make()
    vg = read_vg(lun.disk)

    assert (vg.name, vg.id, vg.pv_id) == (lun.truth.vg_name, lun.truth.vg_id, lun.truth.pv_id)
    assert (vg.seqno, vg.pe_start_bytes, vg.extent_bytes) == (17, lun.truth.pe_start, lun.truth.extent_size)
    assert (vg.label.mdas, vg.label.sector) == (lun.truth.areas, lun.truth.label_sector)
    assert (vg.mda.text_offset, len(vg.mda.text)) == (lun.truth.text_offset, lun.truth.text_length)
    assert vg.label.device_size == lun.disk.size_bytes == vg.pvs[0].dev_size * 512
    for lv, volume in zip(vg.lvs, lun.truth.volumes):
        assert (lv.name, lv.id, lv.tags) == (volume.name, volume.lv_id, volume.tags)
        assert ("WRITE" in lv.status) == volume.writable
        assert tuple((s.extent_count, s.first_pe) for s in lv.segments) == volume.segments
        assert lv.extents * vg.extent_bytes == volume.size


def test_the_reader_sees_every_vhd_as_the_truth_says(make):
    lun = make()
    sr = read_sr(lun.disk)
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


def test_guest_data_is_there_and_nowhere_near_identities(make):
    truth, disk = make().truth, make().disk

    assert all(any(disk.peek(item.offset, item.length)) for item in truth.guest_ranges)
    for item in truth.guest_ranges:
        assert not any(item.offset < other.end and other.offset < item.end for other in truth.allowed)


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


@pytest.mark.parametrize("data, crc", [(b"", 0xF597A6CF), (b"a", 0x319B1949), (b"123456789", 0x4991CF02)])
def test_checksum_vectors(data, crc):
    assert build_lvm.crc(data) == crc


@pytest.mark.parametrize(
    "area, crc",
    [(builder.AREA_10M, 0xD1266522), (builder.AREA_DEFAULT, 0xDB8ED616), (Range(10736369664, 1048576), 0xD652E498)],
)
def test_blank_header_vectors(area, crc):
    header = build_lvm.mda_header(area, [])

    assert int.from_bytes(header[:4], "little") == crc == lvm_crc(header[4:])


def test_the_worked_label_of_the_facts():
    areas = [Range(4096, 11530240)]
    pv_id = "nXFYJpoRBjLp75i94cqU3vVrUa3sLAf9"

    data = build_lvm.label_sector(build_lvm.Label(1, pv_id, 10 << 30, 11534336, areas, 2, b""))

    assert int.from_bytes(data[16:20], "little") == 0x6E2F3246


# -- options


@pytest.mark.parametrize("ext_version, used", [(0, 0), (1, 0), (2, 1)])
def test_labels_of_every_extension_version(ext_version, used):
    label = read_label(builder.one_vhd(ext_version=ext_version).disk)

    assert (label.ext_version, label.ext_flags) == (ext_version, used)
    assert not any(label.tail)


@pytest.mark.parametrize("area", [builder.AREA_10M, builder.AREA_16M, builder.AREA_DEFAULT, Range(4096, 61440)])
def test_the_data_begins_behind_the_metadata_area(area):
    lun = builder.one_vhd(area=area)

    assert lun.truth.pe_start == area.end
    assert read_vg(lun.disk).warnings == ()


def test_size_data_start_and_extent_size_may_be_given():
    lun = builder.one_vhd(size_bytes=1 << 30, pe_start=16 << 20, extent_size=1 << 20)

    assert (lun.disk.size_bytes, lun.truth.pe_start, lun.truth.pe_count) == (1 << 30, 16 << 20, 1008)
    assert read_sr(lun.disk).problems == ()
    with pytest.raises(AssertionError):
        builder.one_vhd(size_bytes=16 << 20)
    with pytest.raises(AssertionError):
        builder.one_vhd(pe_start=4096)


def test_the_second_area_is_at_the_end_on_a_whole_mebibyte():
    lun = builder.two_metadata_areas()
    second = lun.truth.areas[1]

    assert second.offset % (1 << 20) == 0 and second.end == lun.disk.size_bytes
    assert second.offset >= lun.truth.pe_start + lun.truth.pe_count * lun.truth.extent_size


def test_older_texts_lie_in_the_ring():
    lun = builder.one_vhd(stale_texts=3, seqno=50)

    ring = lun.disk.peek(4608, 65536)

    assert [b"\nseqno = %d\n" % seqno in ring for seqno in (46, 47, 48, 49, 50)] == [False, True, True, True, True]


def test_the_text_may_be_changed_before_it_is_sealed():
    lun = builder.one_vhd(edit_text=lambda text: text.replace("RESIZEABLE", "EXPORTED"))

    assert read_vg(lun.disk).status == ("EXPORTED", "READ", "WRITE")
    assert read_vg(lun.disk).warnings == ()


def test_a_deleted_disk_leaves_bytes_in_a_free_extent():
    with_leftovers, without = builder.one_vhd(), builder.one_vhd(stale_extents=False)

    (place,) = with_leftovers.disk.differences(without.disk)

    assert place.offset == with_leftovers.truth.pe_start + (with_leftovers.truth.pe_count - 1) * (4 << 20)


def test_identities_may_be_given():
    disk, sr = "0a0b0c0d-0000-4000-8000-00000000000f", "0a0b0c0d-0000-4000-8000-00000000000e"

    lun = build_sr([vhd("disk", uuid=disk)], sr_uuid=sr)

    assert read_sr(lun.disk).uuid == sr
    assert lun.truth.uuids == {"disk": disk, "sr": sr}


def test_given_segments_may_not_overlap():
    with pytest.raises(AssertionError):
        build_sr([raw("a", segments=((2, 0),)), raw("b", segments=((1, 1),))])


def test_without_mgt():
    lun = build_sr([raw("a")], mgt=False)

    assert read_sr(lun.disk).mgt is None
    assert len(identities(lun.disk)) == 7
    assert read_sr(lun.disk).raws == (lun.truth.volume("a").name,)


def test_an_empty_vg_has_no_section_of_volumes():
    lun = build_sr(mgt=False)

    assert read_vg(lun.disk).lvs == ()
    assert b"logical_volumes" not in read_vg(lun.disk).mda.text


# -- volumes


def test_a_vhd_as_sm_makes_it_has_its_parts_where_the_facts_say():
    lun = build_sr([vhd("base", hidden=True, blocks=0), vhd("disk", "base", blocks=0)])
    sr = read_sr(lun.disk)
    name = lun.truth.volume("disk").name

    assert (sr.vhd(name).table_offset, sr.vhd(name).max_bat_entries) == (1536, 1048576)
    assert [(item.offset, item.space, len(item.text)) for item in sr.vhd(name).locators] == [
        (0x420800, 512, 110),
        (0x420A00, 512, 103),
        (0x420C00, 512, 103),
    ]
    assert lv_bytes(lun.disk, sr.vg, sr.vg.lv(name), 0x400600, 8) == b"tdbatmap"
    assert lun.truth.volume("disk").size == 8 << 20


def test_locators_lie_where_the_segments_put_them():
    lun = builder.fragmented_locators()
    truth = lun.truth

    (header,), (locator,) = truth.device_ranges("disk", 512, 1024), truth.device_ranges("disk", 0x420800, 512)

    assert locator.offset < header.offset
    assert lun.disk.peek(locator.offset, 9) == b"file://./"


def test_a_missing_parent_is_named_all_the_same():
    nowhere = "0a0b0c0d-0000-4000-8000-00000000000f"
    lun = build_sr([vhd("disk", nowhere, bat_entries=SMALL_BAT)])

    (read,) = read_sr(lun.disk).vhds

    assert read.parent == (lun.truth.vg_name, "VHD-" + nowhere)
    assert len(read_sr(lun.disk).problems) == 4


def test_qcow2_images_name_their_parents():
    lun = builder.qcow2_chain()
    images = {image.name: image for image in read_sr(lun.disk).qcow2s}
    base, disk, over, alone = (images[lun.truth.volume(key).name] for key in ("base", "disk", "overraw", "alone"))

    assert disk.backing == f"/dev/{lun.truth.vg_name}/{base.name}"
    assert (len(disk.backing), len(over.backing)) == (98, 95)
    assert (disk.backing_format, over.backing_format) == ("qcow2", "raw")
    assert (base.hidden, disk.hidden, over.hidden, alone.backing) == (1, 0, None, "")
    assert disk.backing_offset - over.backing_offset == 16, "sm's extension moves the backing file name by 16 bytes"


def test_cbt_logs_point_to_keys_or_to_nowhere():
    lun = builder.everything()
    logs = {log.name: log for log in read_sr(lun.disk).cbts}
    uuids = lun.truth.uuids

    newer, older = logs[uuids["disk"] + ".cbtlog"], logs[uuids["snapshot"] + ".cbtlog"]

    assert (newer.parent, newer.child, newer.consistent) == (uuids["snapshot"], "", 1)
    assert (older.parent[:8], older.child, older.consistent) == ("0a0b0c0d", uuids["disk"], 0)


def test_names_of_journals_and_others():
    lun = build_sr(
        [vhd("disk"), journal("inflate", "disk", "123"), jvhd("disk"), trim(extents=3), named("odd", tags=("a", "b"))]
    )
    disk = lun.truth.volume("disk").uuid

    names = [volume.name for volume in lun.truth.volumes[2:]]

    assert names == [f"inflate_{disk}_123", "jvhd_" + disk, lun.truth.sr_uuid + "_trim_lv", "odd"]
    assert [lun.truth.volume(key).size >> 20 for key in ("jvhd of disk", "trim", "odd")] == [8, 12, 4]


def test_a_volume_goes_where_there_is_room():
    lun = build_sr([raw("given", segments=((2, 3), (1, 7))), raw("two", extents=2), raw("one"), raw("more", extents=2)])

    places = {volume.key: volume.segments for volume in lun.truth.volumes}

    assert [places[key] for key in ("MGT", "two", "one", "more")] == [((1, 0),), ((2, 1),), ((1, 5),), ((2, 8),)]
    assert places["given"] == ((2, 3), (1, 7))


def test_a_full_lun_has_no_leftovers():
    lun = build_sr([raw("data", extents=7)], size_bytes=builder.AREA_10M.end + (8 << 22))

    assert lun.truth.pe_count == 8
    assert read_sr(lun.disk).problems == ()


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


def test_sizes_may_be_given():
    lun = build_sr([vhd("disk", extents=5, bat_entries=SMALL_BAT), raw("data", extents=3), cbtlog("disk")])

    assert [volume.size >> 22 for volume in lun.truth.volumes] == [1, 5, 3, 1]
    with pytest.raises(AssertionError):
        build_sr([vhd("disk", extents=1)])


# -- MGT


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


def test_a_label_cut_in_the_middle_of_an_escape_is_no_xml():
    _, records = slices(builder.labels())

    broken = [record for record in records if not parses(record)]

    longest, cut = broken
    assert b"&a</name_description>" in longest
    assert b"&am</name_label>" in cut


def parses(record):
    try:
        ElementTree.fromstring(b"<SRMetadata>" + record + b"</SRMetadata>")
    except ElementTree.ParseError:
        return False
    return True


def test_labels_fill_their_sector_to_the_last_byte():
    lun = builder.labels()
    by_uuid = {record.uuid: record for record in read_sr(lun.disk).mgt.records}

    exact = by_uuid[lun.truth.uuids["exact"]]
    longest = by_uuid[lun.truth.uuids["longest"]]

    assert exact.name_label == "z" * 445
    assert len(longest.name_label.encode()) == 222 and len(longest.name_description.encode()) <= 222


def test_records_of_sm_3_0_are_shifted_by_the_bytes_that_are_not_characters():
    good, shifted, damaged = (slices(builder.labels(bug))[1] for bug in ("", "shifted", "damaged"))

    number = [record.find("漢字".encode()) > 0 for record in good].index(True)

    extra = good[number].find(b"<uuid>") - 512
    assert extra == 0
    extra = shifted[number].find(b"<uuid>") - 512
    assert extra > 0
    assert damaged[number + 1].startswith(b" " * extra + b"<vdi><name_label>"[extra:])
    assert good[number + 1].startswith(b"<vdi>") and shifted[number + 1].startswith(b"<vdi>")


def test_references_of_snapshots():
    lun = builder.labels()
    records = {record.uuid: record.snapshot_of for record in read_sr(lun.disk).mgt.records}
    uuids = lun.truth.uuids

    assert records[uuids["snapshot"]] == uuids["plain"]
    assert records[uuids["foreign"]].startswith("OpaqueRef:")
    assert records[uuids["orphan"]].startswith("0a0b0c0d")
    assert records[uuids["plain"]] == ""
    assert uuids["unlisted"] not in records


def test_mgt_may_be_full():
    lun = builder.one_vhd(mgt_fill=4094)

    mgt = read_sr(lun.disk).mgt

    assert (mgt.length, len(mgt.records)) == (4 << 20, 4094)
    assert [record.deleted for record in mgt.records].count(True) == 4093
    with pytest.raises(AssertionError):
        builder.one_vhd(mgt_fill=4095)


def test_records_of_vdis_that_are_not_there():
    lun = builder.one_vhd(extra_records=(Record("0a0b0c0d-0000-4000-8000-00000000000f", "gone", snapshot_of="disk"),))

    gone = read_sr(lun.disk).mgt.records[-1]

    assert (gone.name_label, gone.snapshot_of, gone.deleted) == ("gone", lun.truth.uuids["disk"], False)


# -- anything


@st.composite
def trees(draw):
    """Volumes whose parents come before them."""
    volumes, above = [], [""]
    for number in range(draw(st.integers(0, 6))):
        key = f"v{number}"
        kind = draw(st.sampled_from(["vhd", "raw", "cbt"]))
        if kind == "vhd":
            volumes.append(
                vhd(key, draw(st.sampled_from(above)), bat_entries=SMALL_BAT, blocks=draw(st.integers(0, 2)))
            )
            above.append(key)
        elif kind == "raw":
            volumes.append(raw(key, hidden=draw(st.booleans()), extents=draw(st.integers(1, 3))))
            above.append(key)
        elif kind == "cbt" and len(above) > 1 and not any(v.key == "cbtlog of " + above[-1] for v in volumes):
            volumes.append(cbtlog(above[-1], parent=draw(st.sampled_from(above))))
    return volumes


@settings(max_examples=40)
@given(
    volumes=trees(),
    seed=st.integers(0, 3),
    text_offset=st.integers(1, 119).map(lambda sectors: 512 * sectors),
    second=st.sampled_from(["", "same", "ignored"]),
    ext_version=st.integers(0, 2),
    style=st.sampled_from(["2.02", "2.03"]),
)
def test_any_tree_in_any_geometry_reads_back(volumes, seed, text_offset, second, ext_version, style):
    lun = build_sr(
        volumes,
        seed=seed,
        area=Range(4096, 61440),
        text_offset=text_offset,
        second_area=second,
        ext_version=ext_version,
        style=style,
    )

    assert read_sr(lun.disk).problems == ()
    assert layout_of(lun.disk) == lun.truth.layout
