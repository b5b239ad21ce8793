# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img and libvhdi judge the disk images inside LUNs that were resignatured on a loop device.

The LVs are taken out of the LUN as files, by what real LVM says of their segments. Where images name each other, links
to those files stand in a directory /dev/VG_XenStorage-..., as the LVs of an active VG would.
"""

import os
import shutil
import uuid
from contextlib import ExitStack

import pytest
from volumes import dm_name, info, take_out, vhdiinfo

from kit.build_volumes import MgtSpec, Parent, Record, VhdSpec, mgt_content, noise, uuids_by_key, vhd_content
from kit.judges import (
    MIB,
    assert_lvm_member,
    expected,
    lv_ranges,
    put_in,
    resignature,
    run,
    undo,
    vg_of,
    with_new_ids,
)
from kit.reader import layout_of, read_sr, same_guest
from kit.sparse import SparseDisk
from relvmoiscsi import engine

#: every run has SRs of its own, because they have names in /dev
SR = str(uuid.uuid4())
VG = "VG_XenStorage-" + SR


@pytest.fixture
def dev():
    """Make names in /dev: `dev(vg_name, files)` gives a directory with a link for each file. All are removed."""
    with ExitStack() as made:

        def directory(vg_name, files):
            path = os.path.join("/dev", vg_name)
            os.mkdir(path)
            made.callback(shutil.rmtree, path, ignore_errors=True)
            for name, file in files.items():
                os.symlink(str(file), os.path.join(path, name))
            return path

        yield directory


def make_sr(lvm, loops, sizes, uuids, *options, block_size=512):
    """An SR by real LVM: `sizes` are LV names with their numbers of extents. Gives the loop device."""
    loop = loops(SparseDisk(256 * MIB, block_size))
    own = lvm.over(loop.path)
    own("vgcreate", "--metadatasize", "10M", *options, VG, loop.path)
    for name, extents in {"MGT": 1, **sizes}.items():
        own.create(VG, name, extents=extents)
    records = tuple(Record(one, f"disk {number}") for number, one in enumerate(uuids))
    put_volume(loop, lvm, "MGT", mgt_content(4 * MIB, MgtSpec(SR, "of real LVM", "", "thick", records, "")).pieces)
    return loop


def put_volume(loop, lvm, lv_name, pieces):
    """Write the content of an LV, where LVM says it lies."""
    (seen,) = lvm.over(loop.path).seen()
    disk = loop.disk()
    for offset, data in pieces:
        put_in(disk, lv_ranges(seen, lv_name), offset, data)
    loop.put(disk)


def renamed_volume(name, ids):
    prefix, old = name.split("-", 1)
    return f"{prefix}-{ids.uuids[old]}"


# -- QCOW2 ------------------------------------------------------------------------------------------------------------

BASE, MIDDLE, LEAF, RAW, OVER_RAW = UUIDS = tuple(
    uuids_by_key(["base", "middle", "leaf", "raw", "over raw"], SR).values()
)
#: LV name to (name of its backing LV, size of the LV in extents)
QCOW2_TREE = {
    "LV-" + RAW: ("", 2),
    "QCOW2-" + BASE: ("", 3),
    "QCOW2-" + MIDDLE: ("QCOW2-" + BASE, 2),
    "QCOW2-" + LEAF: ("QCOW2-" + MIDDLE, 2),
    "QCOW2-" + OVER_RAW: ("LV-" + RAW, 2),
}
UNCHANGED = ("virtual-size", "cluster-size", "format", "format-specific", "dirty-flag", "backing-filename-format")


def make_qcow2_tree(folder, directory):
    """Real images with data of their own, each naming its backing file as sm does. Gives name to path."""
    folder.mkdir()
    files = {name: folder / name for name in QCOW2_TREE}
    for number, (name, (backing, _)) in enumerate(QCOW2_TREE.items()):
        os.symlink(str(files[name]), os.path.join(directory, name))
        if name.startswith("LV-"):
            files[name].write_bytes(noise(8 * MIB, name))
            continue
        kind = "raw" if backing.startswith("LV-") else "qcow2"
        options = ["-F", kind, "-b", os.path.join(directory, backing)] if backing else []
        run("qemu-img", "create", "-q", "-f", "qcow2", *options, str(files[name]), "8M")
        command = f"write -q -P {number + 1} {768 * number}k 512k"
        run("qemu-io", "-f", "qcow2", "-c", command, str(files[name]))
    return files


def ancestors(name):
    while QCOW2_TREE[name][0]:
        name = QCOW2_TREE[name][0]
        yield name


def test_chains_of_qemu_img_open_under_their_new_names_without_the_old_ones_and_after_an_undo_under_those(
    lvm, loops, dev, tmp_path
):
    loop = make_sr(lvm, loops, {name: extents for name, (_, extents) in QCOW2_TREE.items()}, UUIDS)
    old_files = make_qcow2_tree(tmp_path / "made", dev(VG, {}))
    for name, path in old_files.items():
        put_volume(loop, lvm, name, [(0, path.read_bytes())])
        run("qemu-img", "convert", "-O", "raw", str(path), str(tmp_path / name))
    before = loop.disk()
    old = {name: info(path) for name, path in old_files.items()}

    ids = resignature(loop, SR).ids

    new_names = {name: renamed_volume(name, ids) for name in QCOW2_TREE}
    files = take_out(loop, lvm, tmp_path / "after")
    assert set(files) == {"MGT", *new_names.values()}
    shutil.rmtree(os.path.join("/dev", VG))
    directory = dev("VG_XenStorage-" + ids.new_sr, files)
    for name, (backing, _) in QCOW2_TREE.items():
        path = files[new_names[name]]
        if name.startswith("LV-"):
            assert path.read_bytes() == old_files[name].read_bytes()
            continue
        now = info(path)
        assert now.get("full-backing-filename") == now.get("backing-filename")
        assert now.get("backing-filename") == (os.path.join(directory, new_names[backing]) if backing else None)
        assert [now.get(key) for key in UNCHANGED] == [old[name].get(key) for key in UNCHANGED]
        run("qemu-img", "check", "-q", str(path))
        chain = [item["filename"] for item in info(path, "--backing-chain")]
        assert chain[1:] == [os.path.join(directory, new_names[above]) for above in ancestors(name)]
        run("qemu-img", "compare", "-q", "-F", "raw", str(path), str(tmp_path / name))
    assert same_guest(loop.disk(), before, layout_of(before))

    undo(loop)

    files = take_out(loop, lvm, tmp_path / "undone")
    for name, path in old_files.items():
        data = path.read_bytes()
        assert files[name].read_bytes()[: len(data)] == data


# -- an SR of real LVM ------------------------------------------------------------------------------------------------

PARENT, CHILD, DATA = uuids_by_key(["parent", "child", "data"], SR).values()
VHD_PARENT, VHD_CHILD, LV_DATA = "VHD-" + PARENT, "VHD-" + CHILD, "LV-" + DATA


def lvs_come(own, vg, numbers):
    for number in numbers:
        own.create(vg, f"LV-{uuid.UUID(int=number)}")


def lvs_go(own, vg, numbers):
    for number in numbers:
        own.remove(vg, f"LV-{uuid.UUID(int=number)}")


def sr_of_lvm(lvm, loops, copies, block_size):
    """A LUN that real LVM has worked on for a while: text moved, LVs fragmented, tagged, read-only."""
    options = ("--metadatacopies", str(copies))
    loop = make_sr(lvm, loops, {VHD_CHILD: 1, LV_DATA: 2}, [PARENT, CHILD, DATA], *options, block_size=block_size)
    own = lvm.over(loop.path)
    own.create(VG, VHD_PARENT, "-pr", "--addtag", "hidden", extents=2)
    lvs_come(own, VG, range(10))
    for lv, extents in ((VHD_CHILD, 2), (LV_DATA, 1), (VHD_CHILD, 1)):
        own("lvextend", "-l", f"+{extents}", f"{VG}/{lv}")
    lvs_go(own, VG, range(0, 10, 2))
    footers = [uuid.UUID(int=number) for number in (1001, 1002)]
    for name, footer, parent, extents in (
        (VHD_PARENT, footers[0], None, 2),
        (VHD_CHILD, footers[1], Parent(VG, VHD_PARENT, footers[0]), 4),
    ):
        spec = VhdSpec(footer, 64 * MIB, 32, 1, parent is None, parent, False, name)
        put_volume(loop, lvm, name, vhd_content(extents * 4 * MIB, spec).pieces)
    put_volume(loop, lvm, LV_DATA, [(0, noise(12 * MIB, "data"))])
    return loop


@pytest.mark.states("copies", few=1)
@pytest.mark.parametrize("copies, block_size", [(1, 512), (2, 512), (2, 4096)])
def test_an_sr_that_real_lvm_made_is_the_same_one_with_new_ids_or_old_ones_again_and_lvm_goes_on_with_it(
    copies, block_size, lvm, loops, tmp_path
):
    loop = sr_of_lvm(lvm, loops, copies, block_size)
    before = loop.disk()
    original, own = loops(before), lvm.over(loop.path)
    old = expected(vg_of(before), loop.path)
    assert own.listed() == (old,)
    assert len([row for row in old.segments if row[0] == VHD_CHILD]) > 1
    assert read_sr(before).problems == ()
    old_files = take_out(loop, lvm, tmp_path / "before")

    ids = resignature(loop, SR).ids

    new = expected(with_new_ids(vg_of(before), ids), loop.path)
    both = lvm.over(original.path, loop.path)
    assert own.listed() == (new,)
    assert both.seen() == tuple(sorted([new, expected(vg_of(before), original.path)]))
    assert own("vgck") == both("vgck") == "" and own("pvck", loop.path)
    assert_lvm_member(loop.path, new.pvs[0][1])
    assert read_sr(loop.disk()).problems == ()
    assert same_guest(loop.disk(), before, layout_of(before))
    files = take_out(loop, lvm, tmp_path / "after")
    for name in (VHD_PARENT, LV_DATA):
        run("cmp", str(old_files[name]), str(files[renamed_volume(name, ids)]))
    parent = dm_name(new.name, renamed_volume(VHD_PARENT, ids))
    assert vhdiinfo(files[renamed_volume(VHD_CHILD, ids)])["Parent filename"] == parent

    undo(loop)
    assert own.listed() == (old,) and own("vgck") == ""

    name = "VG_XenStorage-" + resignature(loop, SR).ids.new_sr
    (new,) = own.seen()
    lvs_come(own, name, range(20, 25))
    for lv, *_ in new.lvs[:2]:
        own("lvextend", "-l", "+1", f"{name}/{lv}")
    lvs_go(own, name, range(20, 25))
    (now,) = own.seen()
    assert [row[:4] for row in now.lvs] == [row[:4] for row in new.lvs]
    assert own("vgck") == ""
    assert loop.inspect().state == engine.RESIGNATURED
