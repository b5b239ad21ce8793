# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img and qemu-io judge the image that a chain of QCOW2 images has become, and how large SM makes it."""

import json
import random
import subprocess

import pytest

from kit.chains.lun import Lun
from kit.chains.qcow2 import Image
from kit.chains.random_qcow2 import random_qcow2
from kit.cuts import entropy
from kit.judges import run
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.resignature.merge import qcow2_image as image

MIB = 1 << 20
SEEDS = range(8)  # `make exhaustive` takes thousands
#: a volume without a cluster to spare, of which much is dead
TIGHT = {"depth": 2, "bits": 16, "clusters": 187, "full": True, "busy": 0.3, "thick": True, "zeros": 1.0, "leaks": 0,
         "raw": False, "mixed": False, "grown": False, "empty": 0.0, "odd": False, "free": 8}  # fmt: skip


def as_files(disk, folder):
    """The volumes of an SR as files, and parents are files as well; gives the name of the leaf to find."""
    lun = Lun.read(disk)
    for volume in lun.volumes.values():
        (folder / volume.name).write_bytes(volume.read(0, volume.size))
    for volume in lun.volumes.values():
        parent = Image(volume).parent if volume.name.startswith("QCOW2-") else ""
        if parent:
            kind = "raw" if parent.startswith("LV-") else "qcow2"
            path = str(folder / volume.name)
            run("qemu-img", "rebase", "-u", "-f", "qcow2", "-F", kind, "-b", str(folder / parent), path)
    return lun


def checked(path):
    """What `qemu-img check` says; neither errors nor leaks."""
    found = json.loads(run("qemu-img", "check", "-f", "qcow2", "--output=json", str(path)))
    assert not [key for key in ("corruptions", "leaks", "check-errors") if found.get(key)], found
    return found


def size_of(path):
    return json.loads(run("qemu-img", "info", "-f", "qcow2", "--output=json", str(path)))["virtual-size"]


def made_one(chain):
    disk = chain.disk.copy()
    engine.resignature(disk, engine.prepare(disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest())))
    (volume,) = engine.inspect(disk).lun.disks().values()
    return disk, volume.name.text


@pytest.mark.states(few=2)
@pytest.mark.parametrize("seed", SEEDS)
def test_qemu_reads_the_same_and_fills_the_disk_within_its_volume(seed, tmp_path):
    chain = random_qcow2(seed)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    as_files(chain.disk, tmp_path / "old")

    disk, name = made_one(chain)

    as_files(disk, tmp_path / "new")
    old, new = tmp_path / "old" / chain.leaf, tmp_path / "new" / name
    found = checked(new)
    assert found["image-end-offset"] <= new.stat().st_size and size_of(old) == size_of(new)
    run("qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", str(old), str(new))
    (tmp_path / "flat").write_bytes(b"")
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(new), str(tmp_path / "flat"))
    is_thick = new.stat().st_size >= clusters.formula_size(chain.flats[chain.leaf].size)
    fills(chain, new, tmp_path / "flat", seed, is_zeroed=is_thick)


def fills(chain, path, flat, seed, is_zeroed=False):
    """A guest writes everywhere, in pieces of many clusters and of few; a thin volume is made as large as SM does.

    If asked to, it has first written zeros where there is nothing: tapdisk has QEMU give up the places of such.
    """
    size = chain.flats[chain.leaf].size
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
    empty = [
        part for part in json.loads(run("qemu-img", "map", "--output=json", str(path))) if part["zero"] and is_zeroed
    ]
    asked = "".join(f"write -z -u {part['start']} {part['length']}\n" for part in empty)
    asked += "".join(f"write -P {byte} {at} {length}\n" for at, length, byte in commands)
    said = subprocess.run(["qemu-io", "-f", "qcow2", str(path)], input=asked.encode(), stdout=-1, stderr=-2, check=True)
    assert b"rror" not in said.stdout and b"o space" not in said.stdout, said.stdout
    assert path.stat().st_size == room, "the file has grown past its volume"
    checked(path)
    with open(str(flat), "r+b") as file:
        for at, length, byte in commands:
            file.seek(at)
            file.write(bytes([byte]) * length)
    run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", str(path), str(flat))


def test_with_dead_clusters_in_pieces_the_disk_does_not_fit_into_its_volume(tmp_path, monkeypatch):
    """The negative control: counts alone tell QEMU where it may write, and that is not enough."""
    chain = random_qcow2(1, **TIGHT)
    every = image.layouts
    monkeypatch.setattr(image, "layouts", lambda *arguments: list(every(*arguments))[-1:])
    filled(chain, tmp_path, "right")
    monkeypatch.setattr(image, "_give_away", lambda *_: None)

    with pytest.raises(AssertionError, match="grown past its volume"):
        filled(chain, tmp_path, "wrong")


def filled(chain, folder, name):
    disk, volume = made_one(chain)
    (folder / name).mkdir()
    as_files(disk, folder / name)
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(folder / name / volume), str(folder / "flat"))
    fills(chain, folder / name / volume, folder / "flat", 1)


SIZES = (65536, 512 * 3, 5 * MIB, 10 << 30, (10 << 30) + 65536, 2 << 40, 17589500641280)
#: qemu-img makes no images of that size with tiny clusters
SHAPES = [(size, cluster) for cluster in (4096, 65536, 2 * MIB) for size in SIZES if cluster > 4096 or size <= 1 << 40]


@pytest.mark.parametrize("size, cluster", SHAPES)
def test_how_large_a_full_image_is_by_qemu_img(size, cluster):
    asked = ("measure", "-O", "qcow2", "--output=json", "-o", f"cluster_size={cluster}", "--size", str(size))

    said = json.loads(run("qemu-img", *asked))

    assert clusters.full_size(size, cluster) == said["fully-allocated"]
    if cluster == clusters.SM_CLUSTER_BYTES:
        assert clusters.formula_size(size) == size + said["required"]
