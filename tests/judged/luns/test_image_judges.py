# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img and libvhdi judge the disk images inside LUNs that were resignatured on a loop device.

The LVs are taken out of the LUN as files, by what real LVM says of their segments. Where images name each other, links
to those files stand in a directory /dev/VG_XenStorage-..., as the LVs of an active VG would.
"""

import json
import os
import shutil
import uuid
from contextlib import ExitStack

import pytest

from kit import builder, golden
from kit.build_volumes import (
    MgtSpec,
    Parent,
    Record,
    VhdSpec,
    mgt_content,
    noise,
    uuids_by_key,
    vhd_content,
)
from kit.judges import (
    MIB,
    assert_lvm_member,
    attempt,
    expected,
    extract,
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


@pytest.fixture
def dev(tmp_path):
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


def take_out(loop, lvm, folder):
    """Every LV of a LUN as a file: LV name to path."""
    (seen,) = lvm.over(loop.path).seen()
    disk = loop.disk()
    folder.mkdir()
    files = {}
    for name in sorted(seen.lv_names):
        files[name] = folder / name
        extract(disk, lv_ranges(seen, name), files[name])
    return files


def info(path, *options):
    return json.loads(run("qemu-img", "info", "--output=json", *options, str(path)))


def same_data(format_name, one, other):
    """Whether two images show a guest the same disk."""
    answer = attempt("qemu-img", "compare", "-f", format_name, "-F", format_name, str(one), str(other))
    assert answer.status in (0, 1), answer
    return answer.status == 0


# -- QCOW2 ------------------------------------------------------------------------------------------------------------

#: every run has SRs of its own, because they have names in /dev
SR = str(uuid.uuid4())
BASE, MIDDLE, LEAF, RAW, OVER_RAW = uuids_by_key(["base", "middle", "leaf", "raw", "over raw"], SR).values()
VG = "VG_XenStorage-" + SR
#: LV name to (name of its backing LV, size of the LV in extents)
QCOW2_TREE = {
    "LV-" + RAW: ("", 2),
    "QCOW2-" + BASE: ("", 3),
    "QCOW2-" + MIDDLE: ("QCOW2-" + BASE, 2),
    "QCOW2-" + LEAF: ("QCOW2-" + MIDDLE, 2),
    "QCOW2-" + OVER_RAW: ("LV-" + RAW, 2),
}


def make_qcow2_tree(folder, directory):
    """Real images with data of their own, each naming its backing file as sm does. Gives name to path."""
    files = {}
    for number, (name, (backing, _)) in enumerate(QCOW2_TREE.items()):
        files[name] = path = folder / name
        os.symlink(str(path), os.path.join(directory, name))
        if name.startswith("LV-"):
            path.write_bytes(noise(8 * MIB, name))
            continue
        options = []
        if backing:
            kind = "raw" if backing.startswith("LV-") else "qcow2"
            options = ["-F", kind, "-b", os.path.join(directory, backing)]
        run("qemu-img", "create", "-q", "-f", "qcow2", *options, str(path), "8M")
        command = f"write -q -P {number + 1} {768 * number}k 512k"
        run("qemu-io", "-f", "qcow2", "-c", command, str(path))
    return files


def make_sr(lvm, loops, names, uuids, *options, block_size=512):
    """An SR by real LVM: `names` are LV names with their numbers of extents. Gives the loop device."""
    loop = loops(SparseDisk(256 * MIB, block_size))
    own = lvm.over(loop.path)
    own("vgcreate", "--metadatasize", "10M", *options, VG, loop.path)
    for name, extents in {"MGT": 1, **names}.items():
        own.create(VG, name, extents=extents)
    records = tuple(Record(uuid, f"disk {number}") for number, uuid in enumerate(uuids))
    put_volume(loop, lvm, "MGT", mgt_content(4 * MIB, MgtSpec(SR, "of real LVM", "", "thick", records, "")).pieces)
    return loop


def put_volume(loop, lvm, lv_name, pieces):
    """Write the content of an LV, where LVM says it lies."""
    (seen,) = lvm.over(loop.path).seen()
    disk = loop.disk()
    for offset, data in pieces:
        put_in(disk, lv_ranges(seen, lv_name), offset, data)
    loop.put(disk)


@pytest.fixture
def qcow2_sr(lvm, loops, tmp_path, dev):
    """A LUN with the images, and the files they were made of, under their old names in /dev."""
    sizes = {name: extents for name, (_, extents) in QCOW2_TREE.items()}
    loop = make_sr(lvm, loops, sizes, [BASE, MIDDLE, LEAF, RAW, OVER_RAW])
    folder = tmp_path / "made"
    folder.mkdir()
    files = make_qcow2_tree(folder, dev(VG, {}))
    for name, path in files.items():
        put_volume(loop, lvm, name, [(0, path.read_bytes())])
    return loop, files


def test_chains_of_qemu_img_open_under_their_new_names_without_the_old_ones_and_after_an_undo_under_those(
    qcow2_sr, lvm, dev, tmp_path
):
    loop, old_files = qcow2_sr
    before = loop.disk()
    for name in QCOW2_TREE:
        run("qemu-img", "convert", "-O", "raw", str(old_files[name]), str(tmp_path / name))
    old = {name: info(old_files[name]) for name in QCOW2_TREE if name.startswith("QCOW2-")}

    ids = resignature(loop, SR).ids

    new_names = {name: renamed_volume(name, ids) for name in QCOW2_TREE}
    files = take_out(loop, lvm, tmp_path / "after")
    assert set(files) == {"MGT", *new_names.values()}
    shutil.rmtree(os.path.join("/dev", VG))
    directory = dev("VG_XenStorage-" + ids.new_sr, files)
    for name, (backing, _) in QCOW2_TREE.items():
        if name.startswith("LV-"):
            assert files[new_names[name]].read_bytes() == old_files[name].read_bytes()
            continue
        path = files[new_names[name]]
        now = info(path)
        assert now.get("full-backing-filename") == now.get("backing-filename")
        assert now.get("backing-filename") == (os.path.join(directory, new_names[backing]) if backing else None)
        unchanged = (
            "virtual-size",
            "cluster-size",
            "format",
            "format-specific",
            "dirty-flag",
            "backing-filename-format",
        )
        assert [now.get(key) for key in unchanged] == [old[name].get(key) for key in unchanged]
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


def renamed_volume(name, ids):
    prefix, uuid = name.split("-", 1)
    return f"{prefix}-{ids.uuids[uuid]}"


def ancestors(name):
    while QCOW2_TREE[name][0]:
        name = QCOW2_TREE[name][0]
        yield name


# -- VHD --------------------------------------------------------------------------------------------------------------

VHD_LUNS = {
    "golden one": lambda: golden.load("one").disk,
    "golden chain": lambda: golden.load("chain").disk,
    "golden tree": lambda: golden.load("tree").disk,
    "five deep": lambda: builder.five_deep_with_raw_root().disk,
    "fragmented": lambda: builder.fragmented_locators().disk,
}


@pytest.fixture(params=VHD_LUNS)
def vhd_disk(request):
    return VHD_LUNS[request.param]()


def vhdiinfo(path):
    """What libvhdi reads: field to value."""
    fields = (line.partition(":") for line in run("vhdiinfo", str(path)).splitlines())
    return {key.strip(): value.strip() for key, _, value in fields if value}


@pytest.mark.states("vhd_disk", few=3)
def test_libvhdi_reads_the_same_of_each_vhd_and_the_new_name_of_its_parent_and_qemu_the_same_data_of_dynamic_ones(
    vhd_disk, lvm, loops, tmp_path
):
    loop = loops(vhd_disk)
    old_files = take_out(loop, lvm, tmp_path / "before")
    vhds = read_sr(vhd_disk).vhds

    ids = resignature(loop, SR).ids

    files = take_out(loop, lvm, tmp_path / "after")
    parents = 0
    for vhd in vhds:
        old, new = old_files[vhd.name], files[renamed_volume(vhd.name, ids)]
        before, after = vhdiinfo(old), vhdiinfo(new)
        assert before["Identifier"] == vhd.uuid
        if vhd.disk_type == 4:
            parents += 1
            assert before["Parent identifier"] == (vhd.prt_uuid or str(uuid.UUID(int=0)))
            assert before.pop("Parent filename") == dm_name("VG_XenStorage-" + ids.sr, vhd.parent[1])
            new_parent = dm_name("VG_XenStorage-" + ids.new_sr, renamed_volume(vhd.parent[1], ids))
            assert after.pop("Parent filename") == new_parent
        else:
            sizes = [info(path, "-f", "vpc")["virtual-size"] for path in (old, new)]
            assert sizes == [vhd.virtual_size, vhd.virtual_size]
            assert same_data("vpc", old, new) and attempt("cmp", str(old), str(new)).status == 0
        assert after == before
    assert parents == sum(bool(vhd.locators) for vhd in vhds)


def dm_name(vg_name, lv_name):
    return "{}-{}".format(vg_name.replace("-", "--"), lv_name.replace("-", "--"))


# -- an SR of real LVM ------------------------------------------------------------------------------------------------

PARENT, CHILD, DATA = uuids_by_key(["parent", "child", "data"], SR).values()
VHD_PARENT, VHD_CHILD, LV_DATA = "VHD-" + PARENT, "VHD-" + CHILD, "LV-" + DATA


@pytest.fixture(params=["one area", "two areas", "two areas, 4 KiB sectors"])
def lvm_sr(request, lvm, loops):
    """A LUN that real LVM has worked on for a while: text moved, LVs fragmented, tagged, read-only."""
    options = [] if request.param == "one area" else ["--metadatacopies", "2"]
    block_size = 4096 if "4 KiB" in request.param else 512
    loop = make_sr(lvm, loops, {VHD_CHILD: 1, LV_DATA: 2}, [PARENT, CHILD, DATA], *options, block_size=block_size)
    own = lvm.over(loop.path)
    own.create(VG, VHD_PARENT, "-pr", "--addtag", "hidden", extents=2)
    for number in range(10):
        own.create(VG, "LV-" + str(uuid.UUID(int=number)))
    for lv, extents in ((VHD_CHILD, 2), (LV_DATA, 1), (VHD_CHILD, 1)):
        own("lvextend", "-l", f"+{extents}", f"{VG}/{lv}")
    for number in range(0, 10, 2):
        own.remove(VG, "LV-" + str(uuid.UUID(int=number)))
    footers = [uuid.UUID(int=number) for number in (1001, 1002)]
    for name, footer, parent, extents in (
        (VHD_PARENT, footers[0], None, 2),
        (VHD_CHILD, footers[1], Parent(VG, VHD_PARENT, footers[0]), 4),
    ):
        spec = VhdSpec(footer, 64 * MIB, 32, 1, parent is None, parent, False, name)
        put_volume(loop, lvm, name, vhd_content(extents * 4 * MIB, spec).pieces)
    put_volume(loop, lvm, LV_DATA, [(0, noise(12 * MIB, "data"))])
    return loop


@pytest.mark.states("lvm_sr", few=2)
def test_an_sr_that_real_lvm_made_is_the_same_one_with_new_ids_or_old_ones_again_and_lvm_goes_on_with_it(
    lvm_sr, lvm, loops, tmp_path
):
    before = lvm_sr.disk()
    original, own = loops(before), lvm.over(lvm_sr.path)
    old = expected(vg_of(before), lvm_sr.path)
    assert own.listed() == (old,)
    assert len([row for row in old.segments if row[0] == VHD_CHILD]) > 1
    assert read_sr(before).problems == ()
    old_files = take_out(lvm_sr, lvm, tmp_path / "before")

    ids = resignature(lvm_sr, SR).ids

    new = expected(with_new_ids(vg_of(before), ids), lvm_sr.path)
    both = lvm.over(original.path, lvm_sr.path)
    assert own.listed() == (new,)
    assert both.seen() == tuple(sorted([new, expected(vg_of(before), original.path)]))
    assert own("vgck") == both("vgck") == ""
    assert own("pvck", lvm_sr.path)
    assert_lvm_member(lvm_sr.path, new.pvs[0][1])
    assert read_sr(lvm_sr.disk()).problems == ()
    assert same_guest(lvm_sr.disk(), before, layout_of(before))
    files = take_out(lvm_sr, lvm, tmp_path / "after")
    assert same_data("vpc", old_files[VHD_PARENT], files[renamed_volume(VHD_PARENT, ids)])
    assert old_files[LV_DATA].read_bytes() == files[renamed_volume(LV_DATA, ids)].read_bytes()
    parent = dm_name(new.name, renamed_volume(VHD_PARENT, ids))
    assert vhdiinfo(files[renamed_volume(VHD_CHILD, ids)])["Parent filename"] == parent

    undo(lvm_sr)

    assert own.listed() == (old,)
    assert own("vgck") == ""

    name = "VG_XenStorage-" + resignature(lvm_sr, SR).ids.new_sr
    (new,) = own.seen()
    used = [row[0] for row in new.lvs]

    for number in range(20, 25):
        own.create(name, "LV-" + str(uuid.UUID(int=number)))
    for lv in used[:2]:
        own("lvextend", "-l", "+1", f"{name}/{lv}")
    for number in range(20, 25):
        own.remove(name, "LV-" + str(uuid.UUID(int=number)))

    (now,) = own.seen()
    assert [row[:4] for row in now.lvs] == [row[:4] for row in new.lvs]
    assert own("vgck") == ""
    assert lvm_sr.inspect().state == engine.RESIGNATURED
