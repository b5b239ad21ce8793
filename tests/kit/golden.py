# SPDX-License-Identifier: LGPL-2.1-only
"""The golden LUNs of tests/data/images/golden, made by the real storage manager, LVM and vhd-util.

Each archive holds one sparse image and what those tools printed about it. Only the data of the image is unpacked.
"""

import json
import os
import tarfile
from typing import Any, Dict, List, NamedTuple, Tuple, cast

from .sparse import SparseDisk

IMAGES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "images", "golden")
NAMES = ("one", "chain", "tree")
#: LUNs in use, by what the storage manager was doing when it was stopped
LIVE_NAMES = (
    "running",
    "clone_vdi_after_shrink_parent",
    "clone_vdi_after_second_snap",
    "inflate_after_setSize",
    "coalescing_VHD_data",
    "coaleaf_one_renamed",
)


class Golden(NamedTuple):
    """A golden LUN and what the tools that made it say about it."""

    name: str
    disk: SparseDisk
    manifest: Dict[str, Any]  #: parsed JSON of `one` and `chain`; empty for `tree`
    text: str  #: the manifest as it stands in the archive


_loaded: Dict[str, Golden] = {}


def load(name: str) -> Golden:
    """The golden LUN `one`, `chain` or `tree`. The disk is a copy; change it as you like."""
    if name not in _loaded:
        _loaded[name] = _unpack(name)
    golden = _loaded[name]
    return golden._replace(disk=golden.disk.copy())


def _unpack(name: str) -> Golden:
    suffix = "txt" if name == "tree" else "json"
    with tarfile.open(os.path.join(IMAGES, name + ".tar.xz")) as archive:
        disk = _sparse_member(archive, archive.getmember(name + ".img"))
        text = _bytes_of(archive, archive.getmember(f"{name}.{suffix}")).decode("utf-8")
    disk.name = f"golden {name}"
    disk.freeze()
    return Golden(name, disk, json.loads(text) if suffix == "json" else {}, text)


def load_live(name: str) -> Golden:
    """A golden LUN in use, one of LIVE_NAMES; its manifest is the part of `live.json` that speaks of it."""
    if name not in _loaded:
        with tarfile.open(os.path.join(IMAGES, "live", name + ".tar.xz")) as archive:
            disk = _sparse_member(archive, archive.getmember(name + ".img"))
        with open(os.path.join(IMAGES, "live", "live.json"), encoding="utf-8") as file:
            manifest = json.load(file)[name]
        disk.name = f"golden {name}"
        disk.freeze()
        _loaded[name] = Golden(name, disk, manifest, json.dumps(manifest, sort_keys=True))
    golden = _loaded[name]
    return golden._replace(disk=golden.disk.copy())


def _sparse_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> SparseDisk:
    """A member in GNU sparse format as a disk; `TarInfo.sparse` lists (offset, length) of its data."""
    extents = cast(List[Tuple[int, int]], member.sparse)
    disk = SparseDisk(member.size)
    content = archive.extractfile(member)
    assert content is not None, member.name
    with content:
        for offset, length in extents:
            content.seek(offset)
            disk.poke(offset, content.read(length))
    return disk


def _bytes_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    assert content is not None, member.name
    with content:
        return content.read()
