# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2, qemu-img and libvhdi judge what has become of LUNs in use.

What the two readers of images make of a VHD whose end footer is not there, as of every running VM:

    qemu-img   takes the copy at offset 0 of a VHD that is not fixed; it knows no parents
    libvhdi    asks for a footer at the end, and opens nothing without; judged on a file with the copy put there
"""

import io
import json

import pytest

from kit import chains, golden, reader
from kit.judges import (
    NEW_LV,
    attempt,
    expected,
    extract,
    lv_ranges,
    resignature,
    run,
    undo,
    vg_of,
)
from kit.live import STATES
from kit.lvmreader import dashed
from kit.sm_recovery import recovery
from relvmoiscsi import engine

pytestmark = pytest.mark.states("disk")

BLOCK = chains.BLOCK
WINDOW = 64 << 10  #: that much is compared with zeros at once

LUNS = {"golden " + name: lambda name=name: golden.load_live(name).disk for name in golden.LIVE_NAMES}
LUNS.update({name: lambda name=name: STATES[name]().built.disk for name in (
    "end footer: killed",
    "end footer: resized",
    "inflate: after_setSize, another VHD",
    "clone: after_parent_hidden, child",
    "clone: after_first_snap, raw",
    "clone: after_parent_ro, empty child",
    "clone: before_remove_journal, log moved",
    "leaf: after_hidden, child",
    "leaf: both_renamed, raw",
    "leaf: old_deleted, vhd",
    "leaf, clone and inflate",
    "slot 1 in use",
    "metadata areas of two generations",
    "header names the old parent",
    "foreign volumes",
    "garbage collection",
)})  # fmt: skip


@pytest.fixture(params=LUNS)
def disk(request):
    return LUNS[request.param]()


def new_names(ids):
    names = dict(ids.uuids)
    names.update((dashed(old), dashed(new)) for old, new in ids.lvm_ids.items())
    return names


def test_lvm_accepts_the_result_and_goes_on_with_it(disk, lvm, loops):
    after = recovery(disk)
    loop = loops(disk)
    own = lvm.over(loop.path)

    ids = resignature(loop).ids

    vg = vg_of(loop.disk())
    seen = expected(vg, loop.path)
    assert own.listed() == own.seen() == (seen,)
    assert own("vgck") == ""
    assert own("pvck", loop.path)
    needed = {reader.renamed(name, new_names(ids)) for name in after.volumes if name not in after.garbage}
    assert needed <= seen.lv_names
    own.create(vg.name, NEW_LV)
    assert own.seen()[0].lv_names == seen.lv_names | {NEW_LV}
    own.remove(vg.name, NEW_LV)
    assert own.seen()[0].lvs == seen.lvs
    assert own("vgck") == ""
    assert loop.inspect().state == engine.RESIGNATURED


def test_lvm_sees_the_old_group_again_after_an_undo(disk, lvm, loops):
    loop = loops(disk)
    own = lvm.over(loop.path)
    odd = ("WARNING", "Metadata", "metadata", "PV")  # it says so of two generations, before and after
    old = own.seen(warnings=odd)
    resignature(loop)

    undo(loop)

    assert own.seen(warnings=odd) == old
    assert loop.inspect().state == engine.CLEAN


def take_out(loop, lvm, folder):
    """Every VHD and raw image of a LUN as a file, where real LVM says its volume lies: LV name to path."""
    (seen,) = lvm.over(loop.path).seen()
    disk = loop.disk()
    folder.mkdir()
    files = {}
    for name in sorted(seen.lv_names):
        if reader.kind_of(name) in ("vhd", "raw"):
            files[name] = folder / name
            extract(disk, lv_ranges(seen, name), files[name])
    return files


def vhdiinfo(path):
    """What libvhdi reads: field to value."""
    fields = (line.partition(":") for line in run("vhdiinfo", str(path)).splitlines())
    return {key.strip(): value.strip() for key, _, value in fields if value}


def heal(path):
    """Put the copy of the footer where libvhdi looks for it."""
    with open(str(path), "r+b") as file:
        copy = file.read(512)
        file.seek(-512, 2)
        file.write(copy)


def test_libvhdi_and_qemu_read_every_image(disk, lvm, loops, tmp_path):
    after = recovery(disk)
    loop = loops(disk)

    names = new_names(resignature(loop).ids)

    files = take_out(loop, lvm, tmp_path / "after")
    sr = reader.read_sr(loop.disk())
    # what qemu-img reads comes first: libvhdi wants a footer at the end of each
    qemu_reads_the_guests_data_of_every_vhd_without_a_parent(after, names, files, sr, tmp_path)
    layer_upon_layer_by_qemu_is_what_a_guest_reads(after, names, files, tmp_path)
    libvhdi_reads_every_vhd_and_the_new_name_of_its_parent(files, sr)


def libvhdi_reads_every_vhd_and_the_new_name_of_its_parent(files, sr):
    assert {name for name in files if reader.kind_of(name) == "vhd"} == {vhd.name for vhd in sr.vhds}
    for vhd in sr.vhds:
        if vhd.end == "invalid":
            refused = attempt("vhdiinfo", str(files[vhd.name]))
            assert refused.status == 1 and "unsupported signature" in " ".join((refused.stdout, *refused.stderr))
            heal(files[vhd.name])
        found = vhdiinfo(files[vhd.name])
        assert found["Identifier"] == vhd.uuid
        assert found["Disk type"] == {3: "Dynamic", 4: "Differential"}[vhd.disk_type]
        if vhd.disk_type == 4:
            assert found["Parent filename"] == "-".join(name.replace("-", "--") for name in vhd.parent)


def by_qemu(image, folder):
    """What qemu-img reads in a VHD, as a raw image."""
    run("qemu-img", "convert", "-f", "vpc", "-O", "raw", str(image), str(folder / "flat"))
    return folder / "flat"


def digests(file, size):
    """Of a raw image: (number, digest) of each block of 2 MiB that is not all zero, as `chains` has them."""
    found = []
    for number in range(-(-size // BLOCK)):
        found.append((number, chains.digest(file.read(min(BLOCK, size - number * BLOCK)))))
    return tuple(item for item in found if item[1])


def qemu_reads_the_guests_data_of_every_vhd_without_a_parent(after, names, files, sr, tmp_path):
    vhds = {vhd.name: vhd for vhd in sr.vhds}
    dynamic = [name for name in after.volumes if reader.kind_of(name) == "vhd" and name not in after.parents
               and name not in after.garbage]  # fmt: skip
    for name in dynamic:
        new = reader.renamed(name, names)
        facts = json.loads(run("qemu-img", "info", "--output=json", "-f", "vpc", str(files[new])))
        assert facts["virtual-size"] == vhds[new].virtual_size
        with open(str(by_qemu(files[new], tmp_path)), "rb") as flat:
            assert digests(flat, facts["virtual-size"]) == after.guest(name).blocks
    assert dynamic


def layer_upon_layer_by_qemu_is_what_a_guest_reads(after, names, files, tmp_path):
    """qemu-img knows no parents of VHDs, so each layer is opened as if it had none, and laid over the one below.

    That is right wherever a sector that a layer has is not all zero, which holds for what the builder writes.
    """
    layers = {}
    for name, image in files.items():
        layers[name] = image.read_bytes() if reader.kind_of(name) == "raw" else by_qemu(image, tmp_path).read_bytes()
    for leaf in after.leaves:
        chain, image = [leaf], b""
        while chain[-1] in after.parents:
            chain.append(after.parents[chain[-1]])
        if any(name not in after.volumes for name in chain):
            continue
        for name in reversed(chain):
            image = laid_over(image, layers[reader.renamed(name, names)])
        assert digests(io.BytesIO(image), len(image)) == after.guest(leaf).blocks


def laid_over(below, above):
    """The sectors of `above` that are not zero, upon those of `below`."""
    found = bytearray(below.ljust(len(above), b"\0")[: len(above)])
    for at in filled(above, 0, len(above), WINDOW):
        for sector in filled(above, at, min(at + WINDOW, len(above)), 512):
            found[sector : sector + 512] = above[sector : sector + 512]
    return bytes(found)


def filled(data, start, end, step):
    """Where in [start, end) pieces begin that are not all zero."""
    zeros = bytes(step)
    for at in range(start, end, step):
        piece = data[at : min(at + step, end)]
        if piece != zeros[: len(piece)]:
            yield at
