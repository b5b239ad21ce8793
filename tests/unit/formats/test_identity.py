# SPDX-License-Identifier: LGPL-2.1-only
"""UUIDs and LVM ids, and those that are derived. Maps of them: resignature/planning/test_result.py."""

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import FormatError, Place
from relvmoiscsi.formats.identity import (
    dashed,
    derived_lvm_id,
    derived_uuid,
    is_uuid,
    parse_lvm_id,
    sightings,
    uuid_from_bytes,
    uuid_to_bytes,
    with_new_ids,
)

WHERE = Place("/dev/sdc", 512)
ONE = "0a0b0c0d-0000-4000-8000-000000000001"
TWO = "0a0b0c0d-0000-4000-8000-000000000002"
NEW = "11111111-2222-4333-8444-555555555555"
LVM_ID = "nXFYJpoRBjLp75i94cqU3vVrUa3sLAf9"  # of the label in lvm/test_pv.py


# --- UUIDs


@given(st.uuids())
def test_sm_writes_uuids_as_python_does_and_their_bytes_are_in_the_order_of_the_text(value):
    assert is_uuid(str(value))
    assert uuid_to_bytes(str(value)) == value.bytes
    assert uuid_from_bytes(value.bytes) == str(value)


NO_UUIDS = ["", ONE[:-1], ONE + "\n", " " + ONE, ONE.replace("-", ""), ONE.replace("a", "A"), ONE.replace("0", "g")]


@pytest.mark.parametrize("text", NO_UUIDS)
def test_anything_else_is_no_uuid(text):
    assert not is_uuid(text)


def test_identities_inside_a_text_are_exchanged_and_nothing_else_is():
    old, new = dashed(LVM_ID), dashed("a" * 32)
    text = "lvcreate -n VHD-{0} VG_XenStorage-{0} {2} f{0}a {0}{0} {1} x{1}{1}-{0} {3}"

    found = with_new_ids(text.format(ONE, old, TWO, ONE.upper()), {ONE: NEW, old: new})

    assert found == text.format(NEW, new, TWO, ONE.upper())
    assert sightings(found, {ONE, old}) == []


# --- LVM ids


@given(st.text("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#", min_size=32, max_size=32))
def test_every_id_that_lvm_can_have_survives_printing_in_seven_groups_and_reading(lvm_id):
    assert dashed(LVM_ID) == "nXFYJp-oRBj-Lp75-i94c-qU3v-VrUa-3sLAf9"
    for text in (lvm_id, dashed(lvm_id), "-".join(lvm_id)):  # dashes do not matter
        assert parse_lvm_id(text, "id", WHERE) == lvm_id


@pytest.mark.parametrize("text", ["", LVM_ID[1:], LVM_ID + "0", LVM_ID[1:] + "$", LVM_ID[1:] + "é", LVM_ID + "\n"])
def test_a_text_that_is_no_lvm_id_is_refused_with_its_place(text):
    with pytest.raises(FormatError, match="PV id at byte 512 of /dev/sdc: .* is not an LVM id.") as caught:
        parse_lvm_id(text, "PV id", WHERE)

    assert caught.value.exit_status == 5


def of_number(number):
    """The digits of a number in base 62, the lowest first."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "".join(digits[number // 62**place % 62] for place in range(32))


@given(st.uuids(), st.uuids(), st.text("0aA9zZ!#", min_size=32, max_size=32))
def test_derived_ids_are_what_the_page_for_scripts_says_of_them(new_sr, old, old_id):
    """The UUID of version 5; and of SHA-256, as a decimal number, the digits."""
    number = int(hashlib.sha256(f"relvmoiscsi:lvm-id:{new_sr}:{old_id}".encode()).hexdigest(), 16)

    assert derived_uuid(str(new_sr), str(old)) == str(uuid.uuid5(new_sr, str(old)))
    assert derived_lvm_id(str(new_sr), old_id) == of_number(number)
