# SPDX-License-Identifier: LGPL-2.1-only
"""Texts with SCSIids: the forms that SM and udev make of a SCSIid. `host.disk.scsi_id` reads SCSIids from devices."""

import re
from typing import List

#: printable, without a slash: a SCSIid becomes part of paths
_SCSI_ID = re.compile(r"[!-.0-~]{1,255}\Z")


def is_scsi_id(text: str) -> bool:
    """Does the text have the form of a SCSIid?"""
    return _SCSI_ID.match(text) is not None and text not in (".", "..")


def is_printed(text: str) -> bool:
    """Is the text a SCSIid as scsi_id prints it? The first character is a designator type, or S for a serial number."""
    return is_scsi_id(text) and text[0] in "0123456789abcdefABCDEFS"


def in_udev(scsi_id: str) -> str:
    r"""Return the SCSIid as udev rules and link names show it, without characters that a shell interprets.

    Source: systemd src/shared/udev-util.c, udev_replace_chars (behaviour only).
    """
    return re.sub(r"(\\x)|[^A-Za-z0-9#+.:=@_-]", lambda match: match.group(1) or "_", scsi_id)


def names_lun(text: str, scsi_id: str) -> bool:
    """Does a text of SM or udev name the LUN with this SCSIid?

    The text may be the SCSIid or `scsi-<SCSIid>`, alone or in a list with commas. The text may be a path with the
    SCSIid in one of its last two parts, for a disk, a map or a partition: by-id/scsi-<SCSIid>-part1,
    by-id/dm-uuid-mpath-<SCSIid>, by-scsid/<SCSIid>/mapper, by-scsibus/<SCSIid>-3:0:0:1. For a NAA, udev also makes
    by-id/wwn-0x<NAA>.
    """
    forms = "|".join(map(re.escape, (scsi_id, in_udev(scsi_id))))
    names = [rf"(?:scsi-|(?:dm-uuid-)?(?:part\d+-)?mpath-|dm-name-)?(?:{forms})"]
    if scsi_id.startswith("3"):
        names.append("wwn-0x" + re.escape(scsi_id[1:]))
    pattern = r"(?:^|[,/\s])(?:{})(?:$|[,/\s]|-part\d|-\d+:\d+:)".format("|".join(names))
    return re.search(pattern, text) is not None


def luns_named(text: str) -> List[str]:
    """Return the possible SCSIids in such a text; other words may be among the SCSIids.

    The list contains each SCSIid for which `names_lun` is true, in udev's form where udev replaces characters.
    """
    words = re.split(r"[,/\s]", text)
    bare = [re.sub(r"-part\d+\Z|-\d+:\d+:\d+:\d+\Z", "", word) for word in words]
    bare = [re.sub(r"\A(?:scsi-|(?:dm-uuid-)?(?:part\d+-)?mpath-|dm-name-)(?=.)", "", word) for word in bare]
    return [re.sub(r"\Awwn-0x", "3", word) for word in bare if is_scsi_id(word)]
