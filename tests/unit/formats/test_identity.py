# SPDX-License-Identifier: LGPL-2.1-only
"""UUIDs, LVM ids, and the map from old ones to new ones."""

import hashlib
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import FormatError, Place, UsageError
from relvmoiscsi.formats.identity import (
    IdMap,
    check_one_to_one,
    dashed,
    derived_lvm_id,
    derived_uuid,
    is_uuid,
    lvm_id_from_bytes,
    new_uuid,
    parse_lvm_id,
    replace_uuids,
    uuid_from_bytes,
    uuid_to_bytes,
)

WHERE = Place("/dev/sdc", 512)
ONE = "0a0b0c0d-0000-4000-8000-000000000001"
TWO = "0a0b0c0d-0000-4000-8000-000000000002"
NEW = "11111111-2222-4333-8444-555555555555"
LVM_ID = "nXFYJpoRBjLp75i94cqU3vVrUa3sLAf9"  # of the label in lvm/test_pv.py


# --- UUIDs


@given(st.uuids())
def test_sm_writes_uuids_as_python_does(value):
    assert is_uuid(str(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE[:-1],
        ONE + "0",
        ONE + "\n",
        " " + ONE,
        ONE.replace("-", ""),
        ONE.replace("a", "A"),
        ONE.replace("0", "g"),
    ],
)
def test_anything_else_is_no_uuid(text):
    assert not is_uuid(text)


@given(st.binary(min_size=16, max_size=16))
def test_a_new_uuid_is_a_random_one_of_version_4(data):
    made = uuid.UUID(new_uuid(lambda length: data[:length]))

    assert (made.version, made.variant) == (4, uuid.RFC_4122)
    assert is_uuid(str(made))


@given(st.uuids())
def test_the_bytes_of_a_uuid_are_in_the_order_of_its_text(value):
    assert uuid_to_bytes(str(value)) == value.bytes
    assert uuid_from_bytes(value.bytes) == str(value)


def test_uuids_inside_a_text_are_exchanged_and_nothing_else_is():
    text = f"lvcreate -n VHD-{ONE} VG_XenStorage-{ONE} {TWO} f{ONE} {ONE}a"

    replaced = replace_uuids(text, {ONE: NEW})

    assert replaced == f"lvcreate -n VHD-{NEW} VG_XenStorage-{NEW} {TWO} f{ONE} {ONE}a"
    assert len(replaced) == len(text)


# --- LVM ids


def test_the_text_form_of_an_lvm_id_has_seven_groups():
    assert dashed(LVM_ID) == "nXFYJp-oRBj-Lp75-i94c-qU3v-VrUa-3sLAf9"


@pytest.mark.parametrize("text", [LVM_ID, dashed(LVM_ID), "-".join(LVM_ID)])
def test_dashes_in_an_lvm_id_do_not_matter(text):
    assert parse_lvm_id(text, "id", WHERE) == LVM_ID


@given(st.text("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#", min_size=32, max_size=32))
def test_every_id_that_lvm_can_have_survives_printing_and_reading(lvm_id):
    assert parse_lvm_id(dashed(lvm_id), "id", WHERE) == lvm_id


@pytest.mark.parametrize("text", ["", LVM_ID[1:], LVM_ID + "0", LVM_ID[1:] + "$", LVM_ID[1:] + "é", LVM_ID + "\n"])
def test_a_text_that_is_no_lvm_id_is_refused_with_its_place(text):
    with pytest.raises(FormatError, match="PV id at byte 512 of /dev/sdc: .* is not an LVM id.") as caught:
        parse_lvm_id(text, "PV id", WHERE)

    assert caught.value.exit_status == 5


@given(st.binary(min_size=32, max_size=32))
def test_an_lvm_id_made_of_bytes_has_letters_and_digits_only(data):
    lvm_id = lvm_id_from_bytes(data)

    assert len(lvm_id) == 32 and re.match("[0-9a-zA-Z]+$", lvm_id)
    assert parse_lvm_id(lvm_id, "id", WHERE) == lvm_id


def test_an_lvm_id_depends_on_all_of_its_bytes():
    ids = {lvm_id_from_bytes(bytes([n]) + bytes(31)) for n in range(256)}
    ids |= {lvm_id_from_bytes(bytes(31) + bytes([n])) for n in range(1, 256)}

    assert len(ids) == 511


# --- derived ids


@given(st.uuids(), st.uuids())
def test_a_derived_uuid_is_the_one_of_version_5(new_sr, old):
    assert derived_uuid(str(new_sr), str(old)) == str(uuid.uuid5(new_sr, str(old)))


@given(st.uuids(), st.uuids(), st.sampled_from([LVM_ID, LVM_ID[::-1], "!" * 32]))
def test_a_derived_lvm_id_depends_on_the_new_sr_and_on_the_old_id(new_sr, other_sr, old):
    derived = derived_lvm_id(str(new_sr), old)

    assert re.match("[0-9a-zA-Z]{32}$", derived)
    assert derived == derived_lvm_id(str(new_sr), old)
    assert (derived == derived_lvm_id(str(other_sr), old)) == (new_sr == other_sr)
    assert derived not in (old, derived_lvm_id(str(new_sr), old[1:] + "0"))


@given(st.uuids(), st.text("0aA9zZ!#", min_size=32, max_size=32))
def test_a_derived_lvm_id_is_what_the_page_for_scripts_says_of_it(new_sr, old):
    """Another way to the same digits: from SHA-256 as a decimal number."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    number = int(hashlib.sha256(f"relvmoiscsi:lvm-id:{new_sr}:{old}".encode()).hexdigest(), 16)

    assert derived_lvm_id(str(new_sr), old) == "".join(digits[number // 62**place % 62] for place in range(32))


# --- maps


def test_a_reversed_map_gives_the_old_identities_back():
    ids = IdMap(ONE, {ONE: NEW, TWO: "x"}, {"p": "q"})

    assert (ids.new_sr, ids.reversed().sr) == (NEW, NEW)
    assert ids.reversed() == IdMap(NEW, {NEW: ONE, "x": TWO}, {"q": "p"})
    assert ids.reversed().reversed() == ids


def test_a_map_that_is_one_to_one_passes():
    check_one_to_one({ONE: NEW, TWO: "x"}, "UUID")


@pytest.mark.parametrize(
    "ids, sentence",
    [
        ({ONE: ONE}, f"The new UUID {ONE} is already on the LUN"),
        ({ONE: TWO, TWO: NEW}, f"The new UUID {TWO} is already on the LUN"),
        ({ONE: NEW, TWO: NEW}, f"{ONE} and {TWO} would both become the UUID {NEW}."),
    ],
)
def test_a_map_that_is_not_one_to_one_is_a_usage_error(ids, sentence):
    with pytest.raises(UsageError) as caught:
        check_one_to_one(ids, "UUID")

    assert sentence in str(caught.value)
