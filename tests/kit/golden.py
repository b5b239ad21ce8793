# SPDX-License-Identifier: LGPL-2.1-only
"""The golden LUNs of tests/data/images/golden, made by the real storage manager, LVM and vhd-util.

Each archive holds one sparse image and what those tools printed about it. Only the data of the image is unpacked.
"""

import json
import os
import tarfile
from functools import lru_cache
from typing import Any, Dict, NamedTuple

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


def load(name: str) -> Golden:
    """The golden LUN `one`, `chain` or `tree`. The disk is a copy; change it as you like."""
    found = _unpacked(name)
    return found._replace(disk=found.disk.copy())


@lru_cache(maxsize=None)
def _unpacked(name: str) -> Golden:
    suffix = "txt" if name == "tree" else "json"
    with tarfile.open(os.path.join(IMAGES, name + ".tar.xz")) as archive:
        text = archive.extractfile(f"{name}.{suffix}").read().decode("utf-8")
        return Golden(name, _image(archive, name), json.loads(text) if suffix == "json" else {}, text)


def load_live(name: str) -> Golden:
    """A golden LUN in use, one of LIVE_NAMES; its manifest is the part of `live.json` that speaks of it."""
    found = _unpacked_live(name)
    return found._replace(disk=found.disk.copy())


@lru_cache(maxsize=None)
def _unpacked_live(name: str) -> Golden:
    with open(os.path.join(IMAGES, "live", "live.json"), encoding="utf-8") as file:
        manifest = json.load(file)[name]
    with tarfile.open(os.path.join(IMAGES, "live", name + ".tar.xz")) as archive:
        return Golden(name, _image(archive, name), manifest, json.dumps(manifest, sort_keys=True))


def _image(archive: tarfile.TarFile, name: str) -> SparseDisk:
    """The image, which is in GNU sparse format; `TarInfo.sparse` lists (offset, length) of its data."""
    member = archive.getmember(name + ".img")
    disk = SparseDisk(member.size, name=f"golden {name}")
    with archive.extractfile(member) as content:
        for offset, length in member.sparse:
            content.seek(offset)
            disk.poke(offset, content.read(length))
    disk.freeze()
    return disk
