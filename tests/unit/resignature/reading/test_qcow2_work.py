# SPDX-License-Identifier: LGPL-2.1-only
"""SM's unfinished work on QCOW2 images: what cannot be decided is refused, and no guest's data is lost."""

import pytest

from kit.builder import build_sr, journal, qcow2, raw
from kit.chains import qcow2 as images
from kit.chains import qemu
from kit.chains.lun import Lun
from kit.cuts import entropy
from kit.outcome import resignatured
from kit.reader import read_sr
from relvmoiscsi import engine
from relvmoiscsi.errors import Unsupported

CLUSTER, SIZE = 65536, 8 << 20
VATE = 0x76617465  #: SM's extension with the hidden flag

#: of sm 3.2.12-21.2, `_doCoalesceLeaf`: tapdisk copies the leaf in front of "committed"
LEAF_STEPS = ("journal", "parent_writable", "parent_shown", "committed", "one_renamed", "both_renamed", "old_hidden")
PARENTS = ("qcow2", "raw")


def written(lun, name, clusters, word):
    """A guest writes whole clusters."""
    volume = qemu.Qemu(lun, name) if name.startswith("QCOW2-") else lun.volume(name)
    for number in clusters:
        volume.write(number * CLUSTER, f"{word} {number}".encode().ljust(CLUSTER, b"."))


def guest(disk, name):
    """The word in the first bytes of the first clusters, as a guest reads them."""
    layers = images.layers_of(Lun.read(disk), name)
    found = [images.span(layers, number * CLUSTER, 32).split(b" ")[0] for number in range(6)]
    return [word.strip(b"\0").decode() for word in found]


def coalesced(step, ran_on, parent="qcow2", leaf_writes=(1, 2, 3)):
    """A LUN in the middle of the coalesce of `leaf` into `parent`. `ran_on`: the VM has written to the parent since."""
    at = LEAF_STEPS.index(step)
    names = {"named_as": "leaf"} if step in ("both_renamed", "old_hidden") else {}
    flags = {"hidden": at < LEAF_STEPS.index("parent_shown"), "writable": at > 0, "label": "base copy"}
    kind = qcow2 if parent == "qcow2" else raw
    more = {"virtual_size": SIZE} if parent == "qcow2" else {"writes": ((127, "nothing"),)}
    is_old = at >= LEAF_STEPS.index("one_renamed")
    leaf = qcow2("leaf", "parent", vate=0, virtual_size=SIZE, extents=4)
    built = build_sr(
        [
            kind("parent", extents=4, **flags, **more, **names),
            leaf._replace(old=is_old),
            qcow2("beside", vate=0, virtual_size=SIZE, extents=4),
            journal("leaf", "leaf", "{parent}"),
        ]
    )
    lun, truth = Lun.read(built.disk.copy()), built.truth
    parent_name, leaf_name = truth.volume("parent").name, truth.volume("leaf").name
    (text,) = read_sr(built.disk).journals
    before = ("QCOW2-" if parent == "qcow2" else "LV-") + text.value
    if parent == "qcow2":
        qemu.make(lun, parent_name, SIZE, hidden=flags["hidden"])
    else:
        lun.volume(parent_name).write(0, bytes(6 * CLUSTER))
    qemu.make(lun, leaf_name, SIZE, before, hidden=step == "old_hidden")
    written(lun, parent_name, (0, 1, 2), "parent")
    lun.volumes[before] = lun.volume(parent_name)  # the header of the leaf names the parent by its name before
    written(lun, leaf_name, leaf_writes, "leaf")
    if at >= LEAF_STEPS.index("committed"):
        written(lun, parent_name, leaf_writes, "leaf")
    if ran_on:
        written(lun, parent_name, (0, 2, 5), "later")
    return lun.disk, truth


OF_LEAF = ["parent", "leaf", "leaf", "leaf", "", ""]
RAN_ON = ["later", "leaf", "later", "leaf", "", "later"]


@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("ran_on", [True, False])
@pytest.mark.parametrize("step", ["one_renamed", "both_renamed", "old_hidden"])
def test_a_coalesce_that_has_come_to_the_names_is_finished_as_the_parent_has_the_last_writes(step, ran_on, parent):
    disk, truth = coalesced(step, ran_on, parent)
    (parent_uuid,) = [one.value for one in read_sr(disk).journals]

    found = resignatured(disk)

    new = found.ids.uuids[truth.uuids["leaf"]]
    disks = [lv for lv in found.sr_after.vg.lvs if lv.name.startswith(("QCOW2-", "LV-"))]
    (merged,) = [lv for lv in disks if lv.name.endswith(new)]
    assert guest(found.after, merged.name) == (RAN_ON if ran_on else OF_LEAF)
    assert len(disks) == 2 and found.sr_after.journals == ()
    assert "WRITE" in merged.status and "hidden" not in merged.tags
    assert parent == "raw" or images.Image(Lun.read(found.after).volume(merged.name)).extensions[VATE][0] == 0
    live = {record.uuid for record in found.sr_after.mgt.records if not record.deleted}
    assert new in live and found.ids.uuids[parent_uuid] not in live
    assert any("which has its last writes" in text for text in found.prepared.lun.work.sentences)


@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize(
    "step, ran_on", [("parent_writable", False), ("parent_shown", False), ("committed", False), ("committed", True)]
)
def test_a_coalesce_whose_last_writes_may_be_in_leaf_or_parent_is_refused(step, ran_on, parent):
    disk, truth = coalesced(step, ran_on, parent)
    uuid, copy = truth.uuids["leaf"], disk.copy()

    with pytest.raises(Unsupported) as caught:
        engine.prepare(copy, entropy(0))

    for words in (uuid, "perhaps while its VM ran", "finish on the original", "take the copy again", "Nothing was "):
        assert words in str(caught.value)
    assert caught.value.way_out.vdi == uuid and copy == disk

    rest = resignatured(disk, without=(uuid,))
    assert rest.ids.uuids[truth.uuids["beside"]] in {lv.name[-36:] for lv in rest.sr_after.vg.lvs}


@pytest.mark.parametrize("parent", PARENTS)
def test_a_coalesce_that_has_not_made_its_parent_writable_is_rolled_back(parent):
    disk, truth = coalesced("journal", False, parent)

    found = resignatured(disk)

    assert guest(found.after, "QCOW2-" + found.ids.uuids[truth.uuids["leaf"]]) == OF_LEAF


@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("step", ["parent_writable", "parent_shown", "committed"])
def test_a_leaf_without_a_block_is_rolled_back_as_the_guest_reads_the_parent_in_any_case(step, parent):
    disk, truth = coalesced(step, step == "committed", parent, leaf_writes=())

    found = resignatured(disk)

    expected = ["later", "parent", "later", "", "", "later"] if step == "committed" else ["parent"] * 3 + [""] * 3
    assert guest(found.after, "QCOW2-" + found.ids.uuids[truth.uuids["leaf"]]) == expected


# --- snapshots


def snapshotted(leaf, clone="made", base_hidden=False):
    """A snapshot under way: `orig` has got a leaf over `base`, `clone` another, each as far as the words say."""
    keys = ["orig", *(["clone"] if clone else [])]
    built = build_sr(
        [
            qcow2("base", virtual_size=SIZE, extents=4, vate=int(base_hidden), writable=not base_hidden, in_mgt=False),
            *(qcow2(key, "base", virtual_size=SIZE, extents=4, in_mgt=key == "orig") for key in keys),
            journal("clone", "orig", "{base}_{clone}" if clone else "{base}_"),
        ]
    )
    lun, truth = Lun.read(built.disk.copy()), built.truth
    base = truth.volume("base").name
    qemu.make(lun, base, SIZE, hidden=base_hidden)
    written(lun, base, (0, 1), "base")
    for key, state in (("orig", leaf), ("clone", clone))[: len(keys)]:
        name = truth.volume(key).name
        volume = lun.volume(name)
        for at in range(10):  # what a deleted disk has left
            volume.write(at * CLUSTER, f"deleted {at}".encode().ljust(CLUSTER, b"."))
        qemu.make(lun, name, SIZE, "" if state == "unnamed" else base, hidden=False if "made" in state else None)
        if state == "unnamed":  # qemu-img has not made the first-level table yet
            volume.write(36, bytes(12))
        if state.startswith("used"):
            written(lun, name, (1, 2), "orig")
        if state.startswith("far"):  # the header is of a larger disk, which was deleted
            volume.write(36, (1).to_bytes(4, "big") + (1 << 30).to_bytes(8, "big"))
        if state == "half":  # the header alone is there
            volume.write(CLUSTER, bytes(2 * CLUSTER))
            volume.write(3 * CLUSTER, (7 * CLUSTER | 1 << 63).to_bytes(8, "big"))
            volume.write(7 * CLUSTER, (8 * CLUSTER | 1 << 63).to_bytes(8, "big").ljust(CLUSTER, b"\0"))
    return lun.disk, truth


BASE = ["base", "base", "", "", "", ""]


@pytest.mark.parametrize("clone", ["", "made"])
@pytest.mark.parametrize("leaf", ["unnamed", "without the extension", "far", "far made"])
def test_a_leaf_that_was_cut_in_qemu_img_is_rolled_back(leaf, clone):
    for states in [(leaf, clone), *([("made", leaf)] if clone else [])]:
        disk, truth = snapshotted(*states)

        found = resignatured(disk)

        (only,) = [lv.name for lv in found.sr_after.vg.lvs if lv.name.startswith("QCOW2-")]
        assert only == "QCOW2-" + found.ids.uuids[truth.uuids["orig"]]
        assert guest(found.after, only) == BASE


@pytest.mark.parametrize("base_hidden", [True, False])
@pytest.mark.parametrize("leaf", ["made", "used made"])
def test_a_leaf_that_sm_has_made_is_a_leaf_and_keeps_what_a_vm_has_written(leaf, base_hidden):
    disk, truth = snapshotted(leaf, base_hidden=base_hidden)

    found = resignatured(disk)

    orig, clone = ("QCOW2-" + found.ids.uuids[truth.uuids[key]] for key in ("orig", "clone"))
    assert guest(found.after, orig) == (["base", "orig", "orig", "", "", ""] if "used" in leaf else BASE)
    assert guest(found.after, clone) == BASE


def test_what_a_vm_wrote_over_a_hidden_base_is_kept_without_the_extension_as_well():
    disk, truth = snapshotted("used", clone="", base_hidden=True)

    found = resignatured(disk)

    orig = "QCOW2-" + found.ids.uuids[truth.uuids["orig"]]
    assert guest(found.after, orig) == ["base", "orig", "orig", "", "", ""]


@pytest.mark.parametrize("leaf", ["half", "used"])
def test_blocks_in_a_leaf_that_sm_has_not_made_are_refused_and_never_read_by_a_guest(leaf):
    """The tables of "half" are those of a deleted disk, those of "used" would be a VM's."""
    disk, truth = snapshotted(leaf, clone="")
    copy = disk.copy()

    with pytest.raises(Unsupported, match="may be of a deleted disk or of a VM that ran on") as caught:
        engine.prepare(copy, entropy(0))

    assert "finish on the original, and take the copy again." in str(caught.value)
    assert caught.value.way_out.vdi == truth.uuids["orig"] and copy == disk


def test_a_second_leaf_that_sm_has_not_made_does_not_become_a_vdi_with_a_deleted_disk():
    disk, truth = snapshotted("used made", clone="half")

    found = resignatured(disk)

    base, orig = ("QCOW2-" + found.ids.uuids[truth.uuids[key]] for key in ("base", "orig"))
    assert {lv.name for lv in found.sr_after.vg.lvs if lv.name.startswith("QCOW2-")} == {base, orig}
    assert guest(found.after, orig) == ["base", "orig", "orig", "", "", ""]


def test_a_leaf_coalesce_whose_leaf_has_its_table_outside_the_volume_is_refused_with_the_way_out():
    disk, truth = coalesced("committed", False)
    lun, uuid = Lun.read(disk), truth.uuids["leaf"]
    lun.volume("QCOW2-" + uuid).write(40, (1 << 30).to_bytes(8, "big"))

    with pytest.raises(Unsupported) as caught:
        engine.prepare(lun.disk, entropy(0))

    assert caught.value.way_out.vdi == uuid
    assert resignatured(lun.disk, without=(uuid,)).sr_after.journals == ()
