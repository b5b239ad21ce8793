# SPDX-License-Identifier: LGPL-2.1-only
"""Names of VGs and LVs, and how a differencing image names its parent (docs/formats/sm.rst)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import Place, Unsupported
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.naming import (
    LvName,
    ParentName,
    parse_lv_name,
    parse_parent_name,
    rename_parent,
    sr_of_vg,
)

WHERE = Place("/dev/sdc", 4608)
SR = "f0351b7a-1726-4201-9d84-792f2dd894f4"
VDI = "efd24831-00a5-4192-9633-f030a9710c2b"
NEW_SR = "11111111-2222-4333-8444-555555555555"
NEW_VDI = "66666666-7777-4888-9999-aaaaaaaaaaaa"
NEW = {SR: NEW_SR, VDI: NEW_VDI}

DM_NAME = "VG_XenStorage--f0351b7a--1726--4201--9d84--792f2dd894f4-VHD--efd24831--00a5--4192--9633--f030a9710c2b"
QCOW2_PATH = f"/dev/VG_XenStorage-{SR}/QCOW2-{VDI}"


# --- volume groups


def test_the_name_of_an_srs_volume_group_carries_its_uuid():
    assert sr_of_vg("VG_XenStorage-" + SR) == SR


@pytest.mark.parametrize(
    "name",
    ["", "vg0", "VG_XenStorage-", "VG_XenStorage-" + SR.upper(), "XSLocalEXT-" + SR, "VG_XenStorage-" + SR + "1"],
)
def test_any_other_volume_group_is_no_srs(name):
    assert sr_of_vg(name) is None


# --- logical volumes

NAMES = {
    "MGT": LvName("MGT", naming.MGT),
    "VHD-" + VDI: LvName("VHD-" + VDI, naming.VHD, VDI),
    "LV-" + VDI: LvName("LV-" + VDI, naming.RAW, VDI),
    "QCOW2-" + VDI: LvName("QCOW2-" + VDI, naming.QCOW2, VDI),
    "VHD-OLD_" + VDI: LvName("VHD-OLD_" + VDI, naming.VHD, VDI, is_old=True),
    "QCOW2-OLD_" + VDI: LvName("QCOW2-OLD_" + VDI, naming.QCOW2, VDI, is_old=True),
    VDI + ".cbtlog": LvName(VDI + ".cbtlog", naming.CBT_LOG, VDI),
    SR + "_trim_lv": LvName(SR + "_trim_lv", naming.TRIM, SR),
    "jvhd_" + VDI: LvName("jvhd_" + VDI, naming.JOURNAL, VDI, journal="jvhd"),
    "hb-" + VDI: LvName("hb-" + VDI, naming.OTHER),  # CloudStack's heartbeat; the UUID is a host's
    "backup_data": LvName("backup_data", naming.OTHER),
}
for _kind, _value in (("clone", "1"), ("leaf", "1"), ("inflate", "8388608"), ("relink", "1"), ("coalesce", "1")):
    _name = f"{_kind}_{VDI}_{_value}"
    NAMES[_name] = LvName(_name, naming.JOURNAL, VDI, journal=_kind, value=_value)


@pytest.mark.parametrize("text", NAMES)
def test_every_name_that_sm_gives_is_taken_apart(text):
    assert parse_lv_name(text, WHERE) == NAMES[text]


@pytest.mark.parametrize("text", NAMES)
def test_a_renamed_volume_keeps_kind_prefix_value_and_length(text):
    name = parse_lv_name(text, WHERE)

    renamed = parse_lv_name(name.renamed(NEW), WHERE)

    assert renamed._replace(text="", uuid="") == name._replace(text="", uuid="") or name.uuid is None
    assert renamed.uuid == (NEW[name.uuid] if name.uuid else None)
    assert len(renamed.text) == len(text)


@pytest.mark.parametrize("kind", [*naming.FINISHED_JOURNALS, *naming.HARMLESS_JOURNALS, naming.RESIZE])
def test_every_journal_type_is_known(kind):
    assert parse_lv_name(f"{kind}_{VDI}_1", WHERE).journal == kind


def test_no_journal_is_both_carried_over_and_finished():
    assert not set(naming.FINISHED_JOURNALS) & set(naming.HARMLESS_JOURNALS)


@pytest.mark.parametrize(
    "text",
    ["LV-OLD_" + VDI, "VHD-" + VDI.upper(), "VHD-" + VDI + "x", "VHD-" + VDI + "\n", "VHD-" + VDI[1:], "LV-data"],
)
def test_a_name_that_sm_would_take_for_a_vdi_and_does_not_give_is_refused_by_name(text):
    with pytest.raises(Unsupported, match="it is no name that the storage manager gives") as caught:
        parse_lv_name(text, WHERE)

    assert f"Logical volume {text} at byte 4608 of /dev/sdc" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "root",
        "mgt",
        "MGT2",
        "vhd-" + VDI,
        VDI,
        VDI + ".cbtlog2",
        "TMP_" + VDI,
        "unknown_" + VDI + "_1",
        "coalesce_" + VDI[1:] + "_1",
        "xcalibur_trim_lv",
        "clone_me",
    ],
)
def test_a_name_that_sm_does_not_look_at_is_somebody_elses(text):
    name = parse_lv_name(text, WHERE)

    assert (name, name.renamed(NEW)) == (LvName(text, naming.OTHER), text)


@pytest.mark.parametrize("kind", naming.DISK_KINDS)
@pytest.mark.parametrize("is_old", [False, True])
def test_the_name_of_a_disk_is_made_as_it_is_read(kind, is_old):
    name = naming.disk_name(kind, VDI, is_old)

    if kind != naming.RAW or not is_old:
        assert parse_lv_name(name.text, WHERE) == name


@pytest.mark.parametrize("kind", naming.DISK_KINDS)
def test_a_parents_text_is_made_as_it_is_read(kind):
    assert parse_parent_name(naming.parent_text(ParentName(SR, kind, VDI))) == ParentName(SR, kind, VDI)


# --- parents

PARENTS = {
    DM_NAME: naming.VHD,
    "/dev/mapper/" + DM_NAME: naming.VHD,
    DM_NAME.replace("-VHD--", "-LV--"): naming.RAW,
    QCOW2_PATH: naming.QCOW2,
    QCOW2_PATH.replace("QCOW2-", "LV-"): naming.RAW,
    QCOW2_PATH.replace("QCOW2-", "VHD-"): naming.VHD,
}


@pytest.mark.parametrize("text", PARENTS)
def test_a_parents_name_is_read_with_single_and_with_doubled_dashes(text):
    assert parse_parent_name(text) == ParentName(SR, PARENTS[text], VDI)


@pytest.mark.parametrize("text", PARENTS)
def test_a_renamed_parent_reads_as_the_new_one_and_is_as_long(text):
    renamed = rename_parent(text, NEW)

    assert parse_parent_name(renamed) == ParentName(NEW_SR, PARENTS[text], NEW_VDI)
    assert len(renamed) == len(text)


def test_a_parent_with_the_uuid_of_its_sr_is_renamed_once():
    text = DM_NAME.replace(VDI.replace("-", "--"), SR.replace("-", "--"))

    assert parse_parent_name(rename_parent(text, NEW)) == ParentName(NEW_SR, naming.VHD, NEW_SR)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dm-7",
        "/dev/dm-7",
        "./" + DM_NAME,
        DM_NAME + "\0",
        DM_NAME + "-real",
        DM_NAME.replace("--", "-"),
        QCOW2_PATH.replace("-", "--"),
        "/dev/mapper" + DM_NAME,
        f"/dev/VG_XenStorage-{SR}/MGT",
        f"/dev/VG_XenStorage-{SR}/../VHD-{VDI}",
    ],
)
def test_any_other_text_names_no_parent_and_is_not_renamed(text):
    assert parse_parent_name(text) is None
    with pytest.raises(ValueError, match="not a parent name"):
        rename_parent(text, NEW)


@given(st.text(max_size=120))
def test_no_text_upsets_the_readers_of_names(text):
    try:
        assert parse_lv_name(text, WHERE).text == text
    except Unsupported:
        pass
    assert sr_of_vg(text) is None or text.startswith("VG_XenStorage-")
    assert parse_parent_name(text) is None or "VG_XenStorage-" in text
