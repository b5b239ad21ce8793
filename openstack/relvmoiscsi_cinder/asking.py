# SPDX-License-Identifier: LGPL-2.1-only
"""Whether new identities are asked for: what the type of a volume says, and for whom the volume is made."""

import re
from typing import Any, Dict, Optional

from cinder import objects
from oslo_utils import strutils

from relvmoiscsi_cinder.command import Told

WANTED = "relvmoiscsi:resignature"  #: extra spec of a volume type: true or false
VDIS = "relvmoiscsi:vdis"  #: extra spec of a volume type: all or one

_WORDS_FOR_VDIS = ("all", "one")
_IMAGE = re.compile(r"image-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # the name that Cinder gives them
_CAN_BE_ASKED_FOR = ("available", "in-use")  # Cinder's API makes no copy of a volume in another state


def vdis_wanted(volume: Any, source: Any) -> Optional[str]:
    """`all` or `one`; None where the volume stays what it is copied from. Raises Told where that cannot be said."""
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
    """Whether somebody has asked for a volume made of this source.

    What Cinder, or a driver, makes for itself must stay what it is a copy of: a copy to back a volume up or to set it
    back counts for no quota, a snapshot in between and a volume in the image cache are not the source that the volume
    has in its record, and the volume of an image is known by `_is_image`.
    """
    if not (isinstance(volume, objects.Volume) and volume.use_quota):
        return False
    if isinstance(source, objects.Snapshot):
        return bool(source.id == volume.snapshot_id)
    return isinstance(source, objects.Volume) and source.id == volume.source_volid and not _is_image(volume, source)


def _is_image(volume: Any, source: Any) -> bool:
    """Whether it is to be what an image is, for Glance or for the image cache.

    Such a volume is a row like any other (`VolumeManager._clone_image_volume`) but for its name, which users can
    choose, too, and for the state of its source: that is being uploaded, or is itself being made.
    """
    return bool(_IMAGE.fullmatch(volume.display_name or "")) and source.status not in _CAN_BE_ASKED_FOR


def _is_true(specs: Dict[str, str]) -> bool:
    word = specs.get(WANTED, "false")
    try:
        return bool(strutils.bool_from_string(word.replace("<is>", "", 1), strict=True))
    except ValueError:
        raise Told(f"The volume's type says {WANTED}={word!r}; it can be true or false. No volume was made.") from None
