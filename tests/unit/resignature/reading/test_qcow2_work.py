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
