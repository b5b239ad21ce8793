# SPDX-License-Identifier: LGPL-2.1-only
"""Names of VGs and LVs, and how a differencing image names its parent (docs/formats/sm.rst)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import Place, Unsupported
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import with_new_ids
from relvmoiscsi.formats.naming import LvName, ParentName, parse_lv_name, parse_parent_name, rename_parent

WHERE = Place("/dev/sdc", 4608)
SR, VDI = "f0351b7a-1726-4201-9d84-792f2dd894f4", "efd24831-00a5-4192-9633-f030a9710c2b"
NEW_SR, NEW_VDI = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-aaaaaaaaaaaa"
NEW = {SR: NEW_SR, VDI: NEW_VDI}

DM_NAME = "VG_XenStorage--f0351b7a--1726--4201--9d84--792f2dd894f4-VHD--efd24831--00a5--4192--9633--f030a9710c2b"
QCOW2_PATH = f"/dev/VG_XenStorage-{SR}/QCOW2-{VDI}"


# --- logical volumes

NAMES = [
    LvName("MGT", naming.MGT),
    LvName("VHD-" + VDI, naming.VHD, VDI),
    LvName("LV-" + VDI, naming.RAW, VDI),
    LvName("QCOW2-" + VDI, naming.QCOW2, VDI),
    LvName("VHD-OLD_" + VDI, naming.VHD, VDI, is_old=True),
    LvName("QCOW2-OLD_" + VDI, naming.QCOW2, VDI, is_old=True),
    LvName(VDI + ".cbtlog", naming.CBT_LOG, VDI),
    LvName(SR + "_trim_lv", naming.TRIM, SR),
    LvName("jvhd_" + VDI, naming.JOURNAL, VDI, journal="jvhd"),
    LvName(f"inflate_{VDI}_8388608", naming.JOURNAL, VDI, journal="inflate", value="8388608"),
    *(LvName(f"{kind}_{VDI}_1", naming.JOURNAL, VDI, journal=kind, value="1")
      for kind in ("clone", "leaf", "relink", "coalesce", "zero")),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.text)
def test_every_name_that_sm_gives_is_taken_apart_and_renamed_part_by_part(name):
    new = NEW.get(name.uuid, "")

    assert parse_lv_name(name.text, WHERE) == name
    expected = name._replace(text=name.text.replace(name.uuid, new), uuid=new) if name.uuid else name
    assert parse_lv_name(with_new_ids(name.text, NEW), WHERE) == expected


def test_every_journal_type_is_known_and_none_is_both_carried_over_and_finished():
    known = [*naming.FINISHED_JOURNALS, *naming.HARMLESS_JOURNALS, naming.RESIZE]

    assert sorted(known) == sorted({name.journal for name in NAMES if name.journal})


ALMOST = ["LV-OLD_" + VDI, "VHD-" + VDI.upper(), "VHD-" + VDI + "x", "VHD-" + VDI + "\n", "VHD-" + VDI[1:], "LV-data"]


@pytest.mark.parametrize("text", ALMOST)
def test_a_name_that_sm_would_take_for_a_vdi_and_does_not_give_is_refused_by_name(text):
    with pytest.raises(Unsupported, match="it is no name that the storage manager gives") as caught:
        parse_lv_name(text, WHERE)

    assert f"Logical volume {text} at byte 4608 of /dev/sdc" in str(caught.value)


FOREIGN = [
    *("root", "mgt", "MGT2", "vhd-" + VDI, VDI, VDI + ".cbtlog2", "TMP_" + VDI, f"unknown_{VDI}_1"),
    *(f"coalesce_{VDI[1:]}_1", "xcalibur_trim_lv", "hb-" + VDI),  # the last is CloudStack's heartbeat, of a host
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_name_that_sm_does_not_look_at_is_somebody_elses_and_changes_only_with_a_uuid_of_the_lun(text):
    name = parse_lv_name(text, WHERE)

    assert name == LvName(text, naming.OTHER)
    assert with_new_ids(text, {SR: NEW_SR}) == text
    assert with_new_ids(text, NEW) == text.replace(VDI, NEW_VDI)


@pytest.mark.parametrize(
    "text, shown",
    [
        *((f"old_{prefix}{VDI}", (VDI,)) for prefix in ("VHD-", "LV-", "QCOW2-", "VHD-OLD_")),
        ("bak." + VDI + ".cbtlog", (VDI,)),
        (f"VG_XenStorage-{SR}_VHD-{VDI}", (SR, VDI)),
        *((text, ()) for text in ("hb-" + VDI, "backup_" + VDI, "old_VHD-" + VDI.upper(), "old_VHD-" + VDI[1:])),
        *((name.text, (name.uuid,)) for name in NAMES[1:]),
    ],
)
def test_a_name_shows_a_uuid_of_a_vdi_by_the_way_in_which_sm_writes_names(text, shown):
    assert parse_lv_name(text, WHERE).uuids == shown


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
def test_a_parents_name_is_read_and_renamed_with_single_and_with_doubled_dashes(text):
    parent = parse_parent_name(text)
    assert parent == ParentName(SR, PARENTS[text], VDI)
    renamed = rename_parent(text, parent, NEW)
    assert parse_parent_name(renamed) == ParentName(NEW_SR, PARENTS[text], NEW_VDI)
    assert len(renamed) == len(text)


@pytest.mark.parametrize("prefix", ["", "./", "file://", "file://./", ".\\"])
def test_the_name_of_another_parent_becomes_a_device_mapper_name_behind_the_same_prefix(prefix):
    text = prefix + DM_NAME.replace(VDI.replace("-", "--"), SR.replace("-", "--"))

    renamed = rename_parent(text, ParentName(SR, naming.RAW, VDI), NEW)

    assert renamed.startswith(prefix + "VG_XenStorage--")
    assert parse_parent_name(renamed[len(prefix) :]) == ParentName(NEW_SR, naming.RAW, NEW_VDI)


def test_a_parent_with_the_uuid_of_its_sr_is_renamed_once():
    text = DM_NAME.replace(VDI.replace("-", "--"), SR.replace("-", "--"))

    renamed = rename_parent(text, ParentName(SR, naming.VHD, SR), NEW)
    assert parse_parent_name(renamed) == ParentName(NEW_SR, naming.VHD, NEW_SR)


NO_PARENTS = [
    *("", "dm-7", "/dev/dm-7", "./" + DM_NAME, DM_NAME + "\0", DM_NAME + "-real", DM_NAME.replace("--", "-")),
    *(QCOW2_PATH.replace("-", "--"), "/dev/mapper" + DM_NAME, f"/dev/VG_XenStorage-{SR}/../VHD-{VDI}"),
]


@pytest.mark.parametrize("text", NO_PARENTS)
def test_any_other_text_names_no_parent(text):
    assert parse_parent_name(text) is None


@given(st.text(max_size=120))
def test_no_text_upsets_the_readers_of_names(text):
    try:
        assert parse_lv_name(text, WHERE).text == text
    except Unsupported:
        pass

    assert parse_parent_name(text) is None or "VG_XenStorage-" in text
