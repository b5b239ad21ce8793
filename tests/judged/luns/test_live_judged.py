# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2, qemu-img and libvhdi judge what has become of LUNs with VHDs, most of them in use.

What the two readers of images make of a VHD whose end footer is not there, as of every running VM:

    qemu-img   takes the copy at offset 0 of a VHD that is not fixed; it knows no parents
    libvhdi    asks for a footer at the end, and opens nothing without; judged on a file with the copy put there
"""

import pytest
from volumes import blocks_of, by_qemu, dm_name, info, laid_over, take_out, vhdiinfo

from kit import builder, golden, reader
from kit.judges import NEW_LV, attempt, expected, resignature, undo, vg_of
from kit.live import STATES
from kit.lvmreader import dashed
from kit.sm_recovery import recovery
from relvmoiscsi import engine

pytestmark = pytest.mark.states("disk")

LUNS = {"golden " + name: lambda name=name: golden.load_live(name).disk for name in golden.LIVE_NAMES}
LUNS["golden tree at rest"] = lambda: golden.load("tree").disk
LUNS["fragmented"] = lambda: builder.fragmented_locators().disk
LUNS.update({name: lambda name=name: STATES[name]().built.disk for name in (
    "end footer: killed", "end footer: resized", "inflate: after_setSize, another VHD",
    "clone: after_parent_hidden, child", "clone: after_first_snap, raw", "clone: after_parent_ro, empty child",
    "clone: before_remove_journal, log moved", "leaf: after_hidden, child", "leaf: both_renamed, raw",
    "leaf: old_deleted, vhd", "leaf, clone and inflate", "slot 1 in use", "metadata areas of two generations",
    "header names the old parent", "foreign volumes", "garbage collection",
)})  # fmt: skip


@pytest.fixture(params=LUNS)
def disk(request):
    return LUNS[request.param]()


def new_names(ids):
    return {**ids.uuids, **{dashed(old): dashed(new) for old, new in ids.lvm_ids.items()}}


def test_lvm_accepts_the_result_goes_on_with_it_and_sees_the_old_group_again_after_an_undo(disk, lvm, loops):
    after, loop, odd = recovery(disk), loops(disk), ("WARNING", "Metadata", "metadata", "PV")
    own = lvm.over(loop.path)
    old = own.seen(warnings=odd)  # it says so of two generations, before and after

    ids = resignature(loop).ids

    vg = vg_of(loop.disk())
    seen = expected(vg, loop.path)
    assert own.listed() == own.seen() == (seen,)
    assert own("vgck") == "" and own("pvck", loop.path)
    needed = {reader.renamed(name, new_names(ids)) for name in after.volumes if name not in after.garbage}
    assert needed <= seen.lv_names

    undo(loop)
    assert own.seen(warnings=odd) == old
    assert loop.inspect().state == engine.CLEAN

    name = vg_of(resignature(loop) and loop.disk()).name
    (seen,) = own.seen()
    own.create(name, NEW_LV)
    assert own.seen()[0].lv_names == seen.lv_names | {NEW_LV}
    own.remove(name, NEW_LV)
    assert own.seen()[0].lvs == seen.lvs and own("vgck") == ""
    assert loop.inspect().state == engine.RESIGNATURED


def test_libvhdi_and_qemu_read_every_image(disk, lvm, loops, tmp_path):
    after, loop = recovery(disk), loops(disk)

    names = new_names(resignature(loop).ids)

    files = take_out(loop, lvm, tmp_path / "after", kinds=("VHD-", "LV-"))
    sr = reader.read_sr(loop.disk())
    vhds = {vhd.name: vhd for vhd in sr.vhds}
    assert {name for name in files if reader.kind_of(name) == "vhd"} == set(vhds)
    # what qemu-img reads comes first: libvhdi wants a footer at the end of each
    layers = {name: by_qemu(path) if name in vhds else path.read_bytes() for name, path in files.items()}
    for leaf in after.leaves:
        chain = [leaf]
        while chain[-1] in after.parents:
            chain.append(after.parents[chain[-1]])
        if all(name in after.volumes for name in chain):
            image = b""
            for name in reversed(chain):
                image = laid_over(image, layers[reader.renamed(name, names)])
            assert blocks_of(image) == after.guest(leaf).blocks
    alone = [name for name in after.volumes if reader.kind_of(name) == "vhd" and name not in after.garbage
             and name not in after.parents]  # fmt: skip
    assert alone
    for name in alone:
        new = reader.renamed(name, names)
        assert info(files[new], "-f", "vpc")["virtual-size"] == vhds[new].virtual_size
        assert blocks_of(layers[new]) == after.guest(name).blocks
    for name, vhd in vhds.items():
        libvhdi_reads_the_vhd_and_the_new_name_of_its_parent(files[name], vhd)


def libvhdi_reads_the_vhd_and_the_new_name_of_its_parent(path, vhd):
    if vhd.end == "invalid":
        refused = attempt("vhdiinfo", str(path))
        assert refused.status == 1 and "unsupported signature" in " ".join((refused.stdout, *refused.stderr))
        with open(str(path), "r+b") as file:  # put the copy of the footer where libvhdi looks for it
            copy = file.read(512)
            file.seek(-512, 2)
            file.write(copy)
    found = vhdiinfo(path)
    assert (found["Identifier"], found["Disk type"]) == (vhd.uuid, {3: "Dynamic", 4: "Differential"}[vhd.disk_type])
    if vhd.disk_type == 4:
        assert found["Parent filename"] == dm_name(*vhd.parent)
