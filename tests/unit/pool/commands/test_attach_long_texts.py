# SPDX-License-Identifier: LGPL-2.1-only
"""xapi reads calls of 300 KiB, and a VDI of the original may have more: a vm-operator writes it in many small calls.

The simulated pool fails each test in which a longer call comes.
"""

import pytest

from kit.pool_lab import VOLUMES
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.records import OLD_VDI

LONG = "x" * 100000
KEYS = {f"XenCenter.CustomFields.{n}": LONG for n in range(4)}


@pytest.fixture
def original(lab):
    """The VDI of the original with a name; other tenants have the other VDIs."""
    db = lab.pool.db
    return next(ref for ref in db.refs("VDI", SR=lab.originals["Production"][1]) if db.get("VDI", ref, "managed"))


@pytest.fixture
def copied(lab, original, clone, pool_command):
    """`relvmoiscsi pool attach`, and the record of the VDI of the copy."""

    def attach():
        ran = pool_command("attach", clone, "--yes", "--name=copy", "--json")
        (result,) = ran.json["attach_results"]
        new = derived_uuid(result["new_sr"], lab.pool.db.get("VDI", original, "uuid"))
        (ref,) = lab.pool.db.refs("VDI", uuid=new)
        return ran, result, lab.pool.db.record("VDI", ref)

    return attach


@pytest.mark.parametrize(
    "field, value, taken, note",
    [
        ("other_config", {**KEYS, "kept": "short"}, lambda copy: sorted(copy["other_config"]), "1 key of other_config"),
        ("other_config", {"one": '"' * 200000}, lambda copy: sorted(copy["other_config"]), "1 key of other_config"),
        ("tags", ["gold", *(f"{n}{LONG}" for n in range(4))], lambda copy: sorted(map(len, copy["tags"])), "1 tag"),
        ("name_description", '"' * 200000, lambda copy: copy["name_description"], "the name_description"),
    ],
)
def test_what_no_call_has_room_for_is_left_out_and_named(lab, original, copied, field, value, taken, note):
    """The short texts come along, and so do the VDIs of the others."""
    lab.pool.db.set("VDI", original, field, value)
    ran, result, copy = copied()
    assert (ran.status, result["status"]) == (0, "attached")
    assert result["notes"] == [
        f"The VDI {copy['uuid']} does not get {note} of the original: xapi reads no call so long."
    ]
    expected = {
        "other_config": [*sorted(KEYS)[:3], "kept", OLD_VDI] if "kept" in value else [OLD_VDI],
        "tags": [4, 100001, 100001, 100001],
        "name_description": "",
    }
    assert taken(copy) == expected[field]
    assert len([vdi for vdi in lab.pool.db.records("VDI").values() if OLD_VDI in vdi["other_config"]]) == len(VOLUMES)


def test_what_came_onto_the_copy_since_the_scan_is_not_sent_back(lab, original, copied):
    """A vm-operator may write keys of each VDI of the pool, and of one that a scan has just made."""
    lab.pool.db.set("VDI", original, "other_config", {"short": "text"})
    scan = lab.answer("SR.scan", lambda *words: (scan(*words), written())[0])

    def written():
        for ref in lab.pool.db.refs("VDI"):
            if ref != original and lab.pool.db.get("VDI", ref, "name_label") == lab.pool.db.get(
                "VDI", original, "name_label"
            ):
                lab.pool.db.set("VDI", ref, "other_config", KEYS)

    ran, result, copy = copied()
    assert (ran.status, result["status"]) == (0, "attached")
    assert sorted(copy["other_config"]) == [*sorted(KEYS), OLD_VDI]
    assert result["notes"] == [
        f"The VDI {copy['uuid']} does not get 1 key of other_config of the original: xapi reads no call so long."
    ]


def test_a_note_is_printed_with_its_lun(lab, original, clone, pool_command):
    lab.pool.db.set("VDI", original, "tags", ["x" * 400000])
    ran = pool_command("attach", clone, "--yes", "--name=copy")
    assert ran.status == 0 and "\n  note: The VDI " in ran.out
