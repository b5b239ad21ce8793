# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM2, qemu-img and libvhdi judge LUNs that were made one VDI, of VHDs and of QCOW2 images, on loop devices.

LVM        lists the volume, takes it for sound, and goes on: lvcreate, lvextend, lvreduce, lvremove
libvhdi    reads headers and block table of the VHD
qemu-img   knows no bitmaps of VHDs, so it is asked where nothing has been on the extents, and no slot is given away;
           of QCOW2 it checks everything, where LVM says that the volume lies, and fills the disk within its volume
"""

import json
import random
import subprocess

import pytest
from volumes import blocks_of, by_qemu, info, take_out, vhdiinfo

from kit import reader
from kit.chains import flatten
from kit.chains.judge import check
from kit.chains.libvhd import Vhd
from kit.chains.lun import Lun
from kit.chains.qcow2 import Image
from kit.chains.qcow2 import flatten as flatten_qcow2
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2
from kit.cuts import entropy
from kit.judges import NEW_LV, expected, lv_ranges, run, vg_of
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.resignature.merge import qcow2_image as image

MIB = 1 << 20
#: VHDs of which no slot is given away, and nothing has been on the extents; any QCOW2
PLAIN = {"bat_entries": 4096, "free": 40, "stale": False, "odd": False, "grown": False, "depth": 3}
CHAINS = [(random_chain, seed, PLAIN) for seed in (1, 2, 4, 6, 9, 12)]
CHAINS += [(random_qcow2, seed, {"depth": 3, "free": 40}) for seed in range(4)]


def become_one(device):
    prepared = engine.prepare(device, entropy(0), engine.ResignatureRequest(one=OneVdiRequest()))
    engine.resignature(device, prepared)
    return prepared


@pytest.mark.states("seed", few=2)
@pytest.mark.parametrize("make, seed, options", CHAINS)
def test_lvm_libvhdi_and_qemu_accept_the_result_and_lvm_goes_on_with_it(make, seed, options, loops, lvm, tmp_path):
    chain = make(seed, **options)
    flat, loop = chain.flats[chain.leaf], loops(chain.disk)
    own = lvm.over(loop.path)

    with open_device(loop.path, writable=True) as device:
        prepared = become_one(device)

    vg = vg_of(loop.disk())
    (name,) = [lv.name for lv in vg.lvs if lv.name != "MGT"]
    seen = expected(vg, loop.path)
    assert own.listed() == own.seen() == (seen,)
    assert own("vgck") == "" and own("pvck", loop.path)
    path = take_out(loop, lvm, tmp_path / "volumes", kinds=(name,))[name]
    if make is random_chain:
        fields = vhdiinfo(path)
        assert (fields["Disk type"], fields.get("Parent filename")) == ("Dynamic", None)
        assert f"({flat.size} bytes)" in fields["Media size"]
        assert fields["Identifier"] == reader.read_sr(loop.disk()).vhd(name).uuid
        assert info(path, "-f", "vpc")["virtual-size"] == flat.size
        there = check(loop.disk(), name).allocated
        assert there == prepared.cost.blocks, "chance has changed: a slot was given away; look for another seed"
        assert blocks_of(by_qemu(path)) == flat.blocks
    else:
        checked(path)
        assert blocks_of(by_qemu(path, "qcow2")) == flat.blocks

    def length():
        return sum(part.length for part in lv_ranges(own.seen()[0], name))

    def guest():
        return (flatten if make is random_chain else flatten_qcow2)(loop.disk(), name)

    volume, before = f"{vg.name}/{name}", length()
    own.create(vg.name, NEW_LV)
    own("lvextend", "-l", "+1", volume)
    assert length() == before + 4 * MIB
    if make is random_qcow2:  # of a VHD the last sector is the footer's, which SM writes then
        assert guest() == flat
    own("lvreduce", "-f", "-l", "-1", volume)
    assert guest() == flat
    own.remove(vg.name, NEW_LV)
    assert own.seen()[0].lvs == seen.lvs
    own.remove(vg.name, name)
    assert own.seen()[0].lv_names == {"MGT"} and own("vgck") == ""


@pytest.mark.parametrize("seed", [2, 6])
def test_qemu_reads_the_same_where_the_batmap_of_a_parent_is_wrong(seed, tmp_path):
    """qemu-img knows no batmap. All bits are set, and the checksum is of other bits."""
    chain = random_chain(seed, **PLAIN)
    lun = Lun.read(chain.disk.copy())
    parent = Vhd(lun.volume(chain.members[1]))
    parent.volume.write(parent.batmap_at, b"\xff" * 512)

    become_one(lun.disk)

    (volume,) = engine.inspect(lun.disk).lun.disks().values()
    (tmp_path / "image").write_bytes(Lun.read(lun.disk).volume(volume.name.text).read(0, volume.size))
    flat = chain.flats[chain.leaf]
    assert vhdiinfo(tmp_path / "image")["Disk type"] == "Dynamic"
    assert blocks_of(by_qemu(tmp_path / "image")) == flat.blocks


# -- QCOW2 in files: room for what a guest may write ------------------------------------------------------------------


def checked(path):
    """What `qemu-img check` says; neither errors nor leaks."""
    found = json.loads(run("qemu-img", "check", "-f", "qcow2", "--output=json", str(path)))
    assert not [key for key in ("corruptions", "leaks", "check-errors") if found.get(key)], found
    return found


def as_files(disk, folder):
    """The volumes of an SR as files, and parents are files as well."""
    folder.mkdir()
    lun = Lun.read(disk)
    for volume in lun.volumes.values():
        (folder / volume.name).write_bytes(volume.read(0, volume.size))
    for volume in lun.volumes.values():
        parent = Image(volume).parent if volume.name.startswith("QCOW2-") else ""
        if parent:
            kind = "raw" if parent.startswith("LV-") else "qcow2"
            path = str(folder / volume.name)
            run("qemu-img", "rebase", "-u", "-f", "qcow2", "-F", kind, "-b", str(folder / parent), path)


def made_one(chain, folder):
    """The path of the image that the chain becomes, in a folder of its own."""
    disk = chain.disk.copy()
    become_one(disk)
    (volume,) = engine.inspect(disk).lun.disks().values()
    as_files(disk, folder)
    return folder / volume.name.text


#: what chance may not choose: a raw base; volumes with and without all their extents; clusters that are dead
RAW = {"raw": True, "bits": 16, "clusters": 100}
THICK, THIN = ({"thick": thick, "bits": 16, "clusters": 64, "mixed": False, "raw": False} for thick in (True, False))


@pytest.mark.states("seed", few=2)
@pytest.mark.parametrize("options, seed", [({}, n) for n in range(8)] + [(RAW, 0), (THICK, 0), (THIN, 0)])
def test_qemu_reads_the_same_and_fills_the_disk_within_its_volume(options, seed, tmp_path):
    chain = random_qcow2(seed, **options)
    as_files(chain.disk, tmp_path / "old")

    new, old = made_one(chain, tmp_path / "new"), tmp_path / "old" / chain.leaf

    assert checked(new)["image-end-offset"] <= new.stat().st_size
    assert info(old, "-f", "qcow2")["virtual-size"] == info(new, "-f", "qcow2")["virtual-size"]
    run("qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", str(old), str(new))
    is_thick = new.stat().st_size >= clusters.formula_size(chain.flats[chain.leaf].size)
    fills(chain, new, seed, is_zeroed=is_thick)


def fills(chain, path, seed, is_zeroed=False):
    """A guest writes everywhere, in pieces of many clusters and of few; a thin volume is made as large as SM does.

    If asked to, it has first written zeros where there is nothing: tapdisk has QEMU give up the places of such.
    """
    size, wanted = chain.flats[chain.leaf].size, bytearray(by_qemu(path, "qcow2"))
    with open(str(path), "r+b") as file:
        bits = int.from_bytes(file.read(24)[20:], "big")
        room = -(-max(clusters.formula_size(size), clusters.full_size(size, 1 << bits)) // (4 * MIB)) * 4 * MIB
        file.truncate(max(room, path.stat().st_size))
    room, dice, commands, at = path.stat().st_size, random.Random(seed), [], 0
    while at < size:
        length = min(dice.choice((1, 4, 16, 16)) << bits, size - at)
        commands.append((at, length, dice.randrange(1, 256)))
        at += length
    dice.shuffle(commands)
    asked = ""
    for part in json.loads(run("qemu-img", "map", "--output=json", str(path))) if is_zeroed else ():
        asked += f"write -z -u {part['start']} {part['length']}\n" if part["zero"] else ""
    for at, length, byte in commands:
        asked += f"write -P {byte} {at} {length}\n"
        wanted[at : at + length] = bytes([byte]) * length
    said = subprocess.run(["qemu-io", "-f", "qcow2", str(path)], input=asked.encode(), stdout=-1, stderr=-2, check=True)
    assert b"rror" not in said.stdout and b"o space" not in said.stdout, said.stdout
    assert path.stat().st_size == room, "the file has grown past its volume"
    checked(path)
    assert by_qemu(path, "qcow2") == wanted


#: a volume without a cluster to spare, of which much is dead
TIGHT = {"depth": 2, "bits": 16, "clusters": 187, "full": True, "busy": 0.3, "thick": True, "zeros": 1.0, "leaks": 0,
         "raw": False, "mixed": False, "grown": False, "empty": 0.0, "odd": False, "free": 8}  # fmt: skip


def test_with_dead_clusters_in_pieces_the_disk_does_not_fit_into_its_volume(tmp_path, monkeypatch):
    """The negative control: counts alone tell QEMU where it may write, and that is not enough."""
    chain, every = random_qcow2(1, **TIGHT), image.layouts
    monkeypatch.setattr(image, "layouts", lambda *arguments: list(every(*arguments))[-1:])
    fills(chain, made_one(chain, tmp_path / "right"), 1)
    monkeypatch.setattr(image, "_give_away", lambda *_: None)

    with pytest.raises(AssertionError, match="grown past its volume"):
        fills(chain, made_one(chain, tmp_path / "wrong"), 1)


SIZES = (512 * 3, 5 * MIB, (10 << 30) + 65536, 2 << 40, 17589500641280)
#: qemu-img makes no images of that size with tiny clusters
SHAPES = [(size, cluster) for cluster in (4096, 65536, 2 * MIB) for size in SIZES if cluster > 4096 or size <= 1 << 40]


@pytest.mark.parametrize("size, cluster", SHAPES)
def test_how_large_a_full_image_is_by_qemu_img(size, cluster):
    asked = ("measure", "-O", "qcow2", "--output=json", "-o", f"cluster_size={cluster}", "--size", str(size))

    said = json.loads(run("qemu-img", *asked))

    assert clusters.full_size(size, cluster) == said["fully-allocated"]
    if cluster == clusters.SM_CLUSTER_BYTES:
        assert clusters.formula_size(size) == size + said["required"]
