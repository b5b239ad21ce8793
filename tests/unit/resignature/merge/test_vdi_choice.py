# SPDX-License-Identifier: LGPL-2.1-only
"""Which VDI of a LUN is to be the one, what it is made of, what goes, and every LUN of which none can be made."""

import pytest

from kit.builder import AREA_DEFAULT, SMALL_BAT, build_sr, cbtlog, journal, named, qcow2, raw, vhd
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.resignature.merge import vdi_choice
from relvmoiscsi.resignature.merge.vdi_choice import choose_chain
from relvmoiscsi.resignature.reading.request import OneVdiRequest

MISSING = "0a0b0c0d-0000-4000-8000-000000000009"


def small(key, *args, **more):
    return vhd(key, *args, bat_entries=SMALL_BAT, **more)


def built_of(*volumes):
    return build_sr(volumes, area=AREA_DEFAULT, also=("gone", "elsewhere"))


def choose(built, vdi=None):
    """Keys of the volumes that the VDI is made of, and of those that go. `vdi`: a key, or a UUID."""
    keys = {volume.name: volume.key for volume in built.truth.volumes}
    request = OneVdiRequest(built.truth.uuids.get(vdi, vdi))
    found = choose_chain(engine.inspect(built.disk).lun.settled(), request)
    return [keys[volume.name.text] for volume in found.members], {keys[volume.name.text] for volume in found.dropped}


HIDDEN = small("base", hidden=True)
PAIR = (HIDDEN, small("disk", "base"))
SAVE = raw("save", label=saved_vms.NAME_LABEL)
TWO = (small("one"), small("other"))
TREE = (
    small("root", hidden=True),
    small("middle", "root", hidden=True),
    small("disk", "middle"),
    small("older", "root", snapshot_of="disk"),
    small("newer", "middle", snapshot_of="disk"),
)
#: what goes; but for the last one, which is not of the storage manager
LEFTOVERS = (
    cbtlog("disk"),
    small("old", old=True),
    journal("zero", "elsewhere", "1"),
    named("hb-cloud"),
)


def chain(levels):
    keys = [f"level{number}" for number in range(levels)]
    hidden = [small(key, parent, hidden=True) for key, parent in zip(keys, ["", *keys])]
    return (*hidden[:-1], small(keys[-1], keys[-2]))


CHOSEN = {
    "the live leaf, with its parents": (TREE, None, "disk middle root", {"older", "newer"}),
    "not the records of VMs": ((*PAIR, SAVE), None, "disk base", {"save"}),
    "the records of VMs, if named": ((*PAIR, SAVE), "save", "save", {"disk", "base"}),
    "a VHD that stands alone": ((small("disk"),), None, "disk", set()),
    "a disk without a record": (
        (small("disk", in_mgt=False), small("snapshot", snapshot_of="disk")), None, "disk", {"snapshot"}
    ),
    "a disk that is named": (TWO, "other", "other", {"one"}),
    "a snapshot that is named": (TREE, "older", "older root", {"middle", "disk", "newer"}),
    "not logs, journals and leftovers": (
        (small("disk"), *LEFTOVERS), None, "disk", {"cbtlog of disk", "old", "zero of elsewhere"}
    ),
    "what a pending coalesce leads to": (
        (*PAIR, journal("coalesce", "base", "1"), journal("relink", "disk")), None, "disk base",
        {"coalesce of base", "relink of disk"},
    ),
    "QCOW2 images on a raw base": (
        (raw("base", hidden=True), qcow2("middle", "base", hidden=True), qcow2("disk", "middle")), None,
        "disk middle base", set(),
    ),
    "beside what is to be zeroed and goes": (
        (*TREE, journal("zero", "older", "4194304")), None, "disk middle root", {"older", "newer", "zero of older"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHOSEN)
def test_what_is_chosen_and_what_goes(what):
    volumes, vdi, members, dropped = CHOSEN[what]

    assert choose(built_of(*volumes), vdi) == (members.split(), dropped)


NAME_ONE = "Name one of these."
REFUSED = {
    "several live disks": ((*TWO, small("snapshot", snapshot_of="one")), None, "{} has 2 live VDIs, and one is "),
    **{
        "a disk of " + kind: ((small("disk"), small("other", vdi_type=kind)), None, "has 2 live VDIs")
        for kind in ("metadata", "suspend", "redo_log", "ha_statefile")
    },
    "a VHD with the label of a save": ((*PAIR, small("save", label=saved_vms.NAME_LABEL)), None, "has 2 live VDIs"),
    "a larger disk than a save": ((*PAIR, SAVE._replace(extents=18)), None, "has 2 live VDIs"),
    "a save alone": ((SAVE,), None, "has no live VDI"),
    "none": ((), None, "has no live VDI"),
    "a snapshot alone": ((small("snapshot", snapshot_of="gone"),), None, "has no live VDI"),
    "a base alone": ((HIDDEN,), None, "has no live VDI"),
    "a hidden parent that is named": (TREE, "middle", "is the parent of other VDIs. These can be kept: "),
    "one that is not there": (TREE, MISSING, f"has no VDI {MISSING}. These can be kept: "),
    "a chain that SM would not make": (
        chain(vdi_choice.MAX_LEVELS + 1), None, " is longer than 30 images. "
        "Ask for all VDIs (`vdis=all`), and let the clone's own SR coalesce."
    ),
    "a raw parent": ((raw("base", hidden=True), small("disk", "base")), None, "{base} is a raw parent"),
    "a larger parent": (
        (small("base", hidden=True, virtual_size=64 << 20), small("disk", "base", virtual_size=32 << 20)), None,
        "{base} is a larger disk than its child {disk}.",
    ),
    "a leaf to be zeroed": ((*PAIR, journal("zero", "disk", "4194304")), None, "still to be zeroed"),
    "a base to be zeroed": ((*PAIR, journal("zero", "base", "4194304")), None, "still to be zeroed"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_one_is_refused(what):
    volumes, vdi, sentence = REFUSED[what]
    built = built_of(*volumes)

    with pytest.raises({None: Refused, MISSING: NotFound}.get(vdi, UsageError)) as caught:
        choose(built, vdi)

    names = {volume.key: volume.name for volume in built.truth.volumes}
    if vdi is not None:  # a person knows a VDI by its label
        kept = ("disk", "newer", "older") if volumes is TREE else ()
        listed = ", ".join(sorted(f"{built.truth.uuids[key]} '{key}'" for key in kept))
        assert caught.value.message.endswith(f"These can be kept: {listed}.") and caught.value.advice == NAME_ONE
    assert sentence.format(built.disk.name, **names) in caught.value.told


def test_a_chain_may_be_as_long_as_the_storage_manager_makes_it():
    assert len(choose(built_of(*chain(vdi_choice.MAX_LEVELS)))[0]) == vdi_choice.MAX_LEVELS


def test_of_several_one_must_be_named_they_are_listed_with_who_asks_and_nothing_is_written():
    built = built_of(*TWO)
    before, note = built.disk.copy(), "One VDI is wanted by the host."

    with pytest.raises(Refused) as caught:
        engine.prepare(built.disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest(note=note)))

    listed = ", ".join(sorted(f"{built.truth.uuids[key]} '{key}'" for key in ("one", "other")))
    assert caught.value.message.endswith(f"wanted: {listed}. {note}")
    assert caught.value.advice == "Name it (`vdi`), or ask for all VDIs (`vdis=all`)."
    assert caught.value.disk_state == "Nothing was written."
    assert built.disk == before
