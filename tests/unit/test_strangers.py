# SPDX-License-Identifier: LGPL-2.1-only
"""Any URL, map and argument of the plugin is taken or refused, and ends no command in another way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi import plugin
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.formats import mapfile
from relvmoiscsi.formats.identity import is_lvm_id, is_uuid
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.lun_url import parse_url

UUID = "9c96f9e5-4c2b-0b3c-b0f6-ec4a46d4ba67"
PARTS = st.sampled_from(
    [
        "iscsi://",
        "user",
        "@",
        ":",
        "/",
        "[::1]",
        "192.0.2.1",
        "3260",
        "iqn.2026-11.example:a",
        "%",
        "²",
        "%2f",
        "?",
        "#",
        "[",
        "]",
        "\0",
        "0",
        "9" * 30,
        "٣",
    ]
) | st.text(max_size=3)
TEXT = st.sampled_from([UUID, "²", "9" * 5000, "", "\ud800"]) | st.text(max_size=5)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inside: (
        st.lists(inside)
        | st.dictionaries(
            st.sampled_from(
                [
                    "old_sr",
                    "new_sr",
                    "old_vdi",
                    "new_vdi",
                    "vdi_pairs",
                    "lv_pairs",
                    "old_lv_id",
                    "new_lv_id",
                    "old_vg_id",
                    "new_vg_id",
                    "old_pv_id",
                    "new_pv_id",
                    "other_uuids",
                    "uuids",
                    "lvm_ids",
                    UUID,
                ]
            ),
            inside,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(PARTS, max_size=8).map("".join))
def test_any_url_is_a_lun_or_a_usage_error(text):
    for url in (text, "iscsi://" + text):
        try:
            parse_url(url)
        except UsageError:
            pass


LVM_ID = "V4ApC3-tMCd-j5EF-fYuT-QzsP-dVUZ-fUZHD2"
ID = st.sampled_from([UUID, UUID.upper(), LVM_ID, LVM_ID.replace("-", ""), LVM_ID[1:], LVM_ID + "-", 7, None, "²"])


def pairs(old, new):
    return st.lists(st.fixed_dictionaries({old: ID, new: ID}), max_size=2)


#: of the form of a map, with ids that are none
MAPS = st.one_of(
    st.fixed_dictionaries({"old_sr": ID, "new_sr": ID}),
    st.fixed_dictionaries({"new_sr": ID}),
    st.fixed_dictionaries({"old_vg_id": ID, "new_vg_id": ID}),
    st.fixed_dictionaries({"vdi_pairs": pairs("old_vdi", "new_vdi"), "lv_pairs": pairs("old_lv_id", "new_lv_id")}),
    st.sampled_from(["uuids", "other_uuids", "lvm_ids"]).flatmap(
        lambda key: st.fixed_dictionaries({key: st.dictionaries(ID, ID, max_size=2)})
    ),
)


@settings(max_examples=examples(1000), deadline=None)
@given(ANY | MAPS)
def test_any_map_is_ids_or_a_usage_error(facts):
    try:
        ids = mapfile.read_map(facts, "a map")
        uuids = [*ids.uuids.items(), (UUID, mapfile.chosen_sr(facts) or UUID)]
    except UsageError:
        return
    assert all(is_uuid(each) for pair in uuids for each in pair)
    assert all(is_lvm_id(each) for pair in ids.lvm_ids.items() for each in pair)


@pytest.mark.parametrize("id_", [LVM_ID + "-", "-" + LVM_ID, LVM_ID[1:], LVM_ID.replace("-", "", 1), 7, None])
def test_what_is_nearly_an_lvm_id_is_refused(id_):
    with pytest.raises(UsageError, match="an id of pair 1 is wrong"):
        mapfile.read_map({"old_vg_id": LVM_ID, "new_vg_id": id_}, "a map")


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(["iqn", "scsi_id", "number"]), TEXT))
def test_any_argument_of_the_plugin_is_taken_or_refused(tmp_path_factory, arguments):
    try:
        plugin.add_lun(
            {"scsi_id": "36001405" + "0" * 24, "iqn": "iqn.a", **arguments},
            NO_DEADLINE,
            Host(str(tmp_path_factory.getbasetemp() / "none")),
        )
    except RelvmoiscsiError:
        pass


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000])
def test_a_digit_that_is_no_number_is_refused_by_the_plugin(tmp_path, number):
    with pytest.raises(UsageError, match="number is no number"):
        plugin.add_lun(
            {"scsi_id": "36001405" + "0" * 24, "iqn": "iqn.a", "number": number}, NO_DEADLINE, Host(str(tmp_path))
        )
