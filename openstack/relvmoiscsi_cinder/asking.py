# SPDX-License-Identifier: LGPL-2.1-only
"""Whether a new volume gets new identities, from its volume type and the purpose of the volume."""

import re
from typing import Any, Dict, Optional

from cinder import objects
from oslo_utils import strutils

from relvmoiscsi_cinder.command import Told

WANTED = "relvmoiscsi:resignature"  #: extra spec of a volume type: true or false
VDIS = "relvmoiscsi:vdis"  #: extra spec of a volume type: all or one

_WORDS_FOR_VDIS = ("all", "one")
_IMAGE = re.compile(r"image-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Cinder's name for a volume of an image
_CAN_BE_ASKED_FOR = ("available", "in-use")  # Cinder's API copies no volume in another state


def vdis_wanted(volume: Any, source: Any) -> Optional[str]:
    """Return `all` or `one`; None for a volume that keeps its identities. Raises Told for an invalid volume type."""
    if not _is_asked_for(volume, source):
        return None
    specs = (volume.volume_type.extra_specs or {}) if volume.volume_type_id else {}
    if not _is_true(specs):
        return None
    vdis = specs.get(VDIS, "all")
    if vdis not in _WORDS_FOR_VDIS:
        raise Told(f"The volume's type says {VDIS}={vdis!r}; it can be all or one. No volume was made.")
    if volume.encryption_key_id:
        raise Told("Cinder encrypts this volume: no SR can be seen on it. Take another type. No volume was made.")
    return str(vdis)


def _is_asked_for(volume: Any, source: Any) -> bool:
    """Has a user requested this volume from this source?

    Volumes that Cinder or a driver makes for internal use must keep the identities of their source:

    - A temporary copy for a backup or for a revert does not use the quota.
    - An intermediate snapshot, or a volume in the image cache, is not the source in the record of the volume.
    - `_is_image` recognises the volume of an image.
    """
    if not (isinstance(volume, objects.Volume) and volume.use_quota):
        return False
    if isinstance(source, objects.Snapshot):
        return bool(source.id == volume.snapshot_id)
    return isinstance(source, objects.Volume) and source.id == volume.source_volid and not _is_image(volume, source)


def _is_image(volume: Any, source: Any) -> bool:
    """Is the volume made for an image, for Glance or for the image cache?

    Such a volume has an ordinary record (`VolumeManager._clone_image_volume`). Two signs show its purpose. Its name has
    a certain form, which a user may choose as well. Its source is being uploaded, or is being made.
    """
    return bool(_IMAGE.fullmatch(volume.display_name or "")) and source.status not in _CAN_BE_ASKED_FOR


def _is_true(specs: Dict[str, str]) -> bool:
    word = specs.get(WANTED, "false")
    try:
        return bool(strutils.bool_from_string(word.replace("<is>", "", 1), strict=True))
    except ValueError:
        raise Told(f"The volume's type says {WANTED}={word!r}; it can be true or false. No volume was made.") from None
