# SPDX-License-Identifier: LGPL-2.1-only
"""Which VDI of a LUN is to be the one, what it is made of, what goes, and every LUN of which none can be made."""

import re

import pytest

from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, cbtlog, journal, named, qcow2, raw, trim, vhd
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.resignature.merge import choice
from relvmoiscsi.resignature.merge.choice import OneVdiRequest, choose_chain

MISSING = "0a0b0c0d-0000-4000-8000-000000000009"


def small(key, *args, **more):
    return vhd(key, *args, bat_entries=SMALL_BAT, **more)


def built_of(*volumes, **options):
    return build_sr(volumes, area=AREA_DEFAULT, **options)


def settled(built):
    return engine.inspect(built.disk).lun.settled()


def chosen(built, vdi=None):
    """Keys of the volumes that the VDI is made of, and of those that go."""
    keys = {volume.name: volume.key for volume in built.truth.volumes}
    found = choose_chain(settled(built), OneVdiRequest(vdi and built.truth.uuids[vdi]))
    members = [keys[volume.name.text] for volume in found.members]
    return members, {keys[volume.name.text] for volume in found.dropped}


def refusal(built, vdi=None, error=Refused):
    with pytest.raises(error) as caught:
        choose_chain(settled(built), OneVdiRequest(vdi))
    return caught.value.message


TREE = (
    small("root", hidden=True),
    small("middle", "root", hidden=True),
    small("disk", "middle"),
    small("older", "root", snapshot_of="disk"),
    small("newer", "middle", snapshot_of="disk"),
)


def test_a_refusal_says_who_asks():
    built = built_of(small("one"), small("other"))
    note = "One VDI is wanted by the host."

    with pytest.raises(Refused) as caught:
        engine.prepare(built.disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest(note=note)))

    assert caught.value.message.endswith("(`vdis=all`). " + note)
    assert caught.value.disk_state == "Nothing was written."


# --- which


def test_the_live_leaf_is_chosen_with_its_parents_and_snapshots_go():
    assert chosen(built_of(*TREE)) == (["disk", "middle", "root"], {"older", "newer"})


@pytest.mark.parametrize("make", [small, raw, qcow2], ids=["vhd", "raw", "qcow2"])
def test_a_disk_that_stands_alone_is_the_one(make):
    assert chosen(built_of(make("disk"))) == (["disk"], set())


def test_a_disk_without_a_record_is_live():
    assert chosen(built_of(small("disk", in_mgt=False), small("snapshot", snapshot_of="disk")))[0] == ["disk"]


def test_a_disk_that_is_named_is_the_one_and_other_disks_go():
    built = built_of(small("one"), small("other"))

    assert chosen(built, "other") == (["other"], {"one"})


def test_a_snapshot_can_be_named():
    assert chosen(built_of(*TREE), "older") == (["older", "root"], {"middle", "disk", "newer"})


def test_logs_journals_and_leftovers_go_and_what_is_not_of_the_storage_manager_stays():
    built = built_of(
        small("disk"),
        cbtlog("disk"),
        small("gone", old=True),
        journal("zero", "elsewhere", "1"),
        trim(extents=1),
        named("hb-cloud"),
        also=("elsewhere",),
    )

    members, dropped = chosen(built)

    assert members == ["disk"]
    assert dropped == {"cbtlog of disk", "gone", "zero of elsewhere", "trim"}


def test_what_a_pending_coalesce_leads_to_is_what_counts():
    built = built_of(
        small("base", hidden=True), small("disk", "base"), journal("coalesce", "base", "1"), journal("relink", "disk")
    )

    members, dropped = chosen(built)

    assert members == ["disk", "base"]
    assert dropped == {"coalesce of base", "relink of disk"}


# --- refused


def test_of_several_live_disks_one_must_be_named_and_they_are_listed():
    built = built_of(small("one"), small("other"), small("snapshot", snapshot_of="one"))

    listed = ", ".join(sorted(built.truth.uuids[key] for key in ("one", "other")))
    assert refusal(built) == (
        f"{built.disk.name} has 2 live VDIs, and one is wanted: {listed}. Name it (`vdi`), or ask for all VDIs "
        "(`vdis=all`)."
    )


@pytest.mark.parametrize("vdi_type", ["metadata", "suspend", "redo_log", "ha_statefile"])
def test_disks_that_are_no_vms_count_as_well(vdi_type):
    assert "has 2 live VDIs" in refusal(built_of(small("disk"), small("other", vdi_type=vdi_type)))


@pytest.mark.parametrize(
    "volumes",
    [(), (small("snapshot", snapshot_of="gone"),), (small("base", hidden=True),)],
    ids=["none", "snapshot", "base"],
)
def test_without_a_live_disk_there_is_none(volumes):
    assert "has no live VDI" in refusal(built_of(*volumes, also=("gone",)))


@pytest.mark.parametrize("key", ["root", "middle"])
def test_a_hidden_parent_cannot_be_named(key):
    built = built_of(*TREE)

    assert "to keep" in refusal(built, built.truth.uuids[key], UsageError)


def test_a_vdi_that_is_not_there_cannot_be_named():
    assert f"has no VDI {MISSING} to keep" in refusal(built_of(*TREE), MISSING, UsageError)


def test_a_chain_that_is_longer_than_the_storage_manager_makes_it():
    def chain(levels):
        keys = [f"level{number}" for number in range(levels)]
        hidden = [small(key, parent, hidden=True) for key, parent in zip(keys, ["", *keys])]
        return built_of(*hidden[:-1], small(keys[-1], keys[-2]))

    assert len(chosen(chain(choice.MAX_LEVELS))[0]) == choice.MAX_LEVELS
    assert refusal(chain(choice.MAX_LEVELS + 1)).endswith(
        " is longer than 30 images. Let the original coalesce, then clone again."
    )


def test_a_raw_parent():
    built = built_of(raw("base", hidden=True), small("disk", "base"))

    assert refusal(built).startswith(built.truth.volume("base").name + " is a raw parent")


def test_a_chain_of_qcow2_on_a_raw_base_can_be():
    built = built_of(raw("base", hidden=True), qcow2("middle", "base", hidden=True), qcow2("disk", "middle"))

    assert chosen(built) == (["disk", "middle", "base"], set())


def test_a_parent_that_is_larger_than_its_child():
    base = small("base", hidden=True, virtual_size=64 << 20)
    built = built_of(base, small("disk", "base", virtual_size=32 << 20))

    names = [re.escape(built.truth.volume(key).name) for key in ("base", "disk")]
    assert re.match("{} is a larger disk than its child {}.".format(*names), refusal(built))


@pytest.mark.parametrize("key", ["disk", "base"])
def test_a_part_that_is_still_to_be_zeroed(key):
    built = built_of(small("base", hidden=True), small("disk", "base"), journal("zero", key, "4194304"))

    assert "still to be zeroed" in refusal(built)


def test_what_is_to_be_zeroed_in_a_disk_that_goes_is_in_nobodys_way():
    built = built_of(*TREE, journal("zero", "older", "4194304"))

    assert chosen(built)[0] == ["disk", "middle", "root"]


# --- and how the command is told


def test_nothing_is_written_where_it_is_refused():
    disk = built_of(small("one"), small("other")).disk
    before = disk.copy()

    with pytest.raises(Refused) as caught:
        engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest()))

    assert caught.value.disk_state == "Nothing was written."
    assert disk == before
