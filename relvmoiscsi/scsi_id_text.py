# SPDX-License-Identifier: LGPL-2.1-only
"""SCSIids in texts: what can be one, and what SM and udev make of one. Where they come from: `host.disk.scsi_id`."""

import re
from typing import List, Sequence

#: printable, no slash: it becomes part of paths
_SCSI_ID = re.compile(r"[!-.0-~]{1,255}\Z")


def is_scsi_id(text: str) -> bool:
    """Can this be a SCSIid at all?"""
    return _SCSI_ID.match(text) is not None and text not in (".", "..")


def is_printed(text: str) -> bool:
    """Is it one as scsi_id prints it? That begins with the type of a designator, or the S of a serial number."""
    return is_scsi_id(text) and text[0] in "0123456789abcdefABCDEFS"


def in_udev(scsi_id: str) -> str:
    r"""The SCSIid as a udev rule sees it, and the names of links have it: no quotes, nothing a shell would mind.

    Source: systemd src/shared/udev-util.c, udev_replace_chars (behaviour only).
    """
    return re.sub(r"(\\x)|[^A-Za-z0-9#+.:=@_-]", lambda match: match.group(1) or "_", scsi_id)


def is_among(scsi_id: str, names: Sequence[str]) -> bool:
    """Is the LUN one of these, by its SCSIid or what udev makes of that?"""
    return bool({scsi_id, in_udev(scsi_id)} & set(names))


def names_lun(text: str, scsi_id: str) -> bool:
    """Is the LUN with this SCSIid named in a text of SM's or udev's?

    Alone or in a list with commas, as itself or as `scsi-<SCSIid>`; as the last part of a path or the one before, of a
    disk, a map or a partition: by-id/scsi-<SCSIid>-part1, by-id/dm-uuid-mpath-<SCSIid>, by-scsid/<SCSIid>/mapper,
    by-scsibus/<SCSIid>-3:0:0:1. Of an id that is a NAA, udev also makes by-id/wwn-0x<NAA>.
    """
    forms = "|".join(map(re.escape, (scsi_id, in_udev(scsi_id))))
    names = [rf"(?:scsi-|(?:dm-uuid-)?(?:part\d+-)?mpath-|dm-name-)?(?:{forms})"]
    if scsi_id.startswith("3"):
        names.append("wwn-0x" + re.escape(scsi_id[1:]))
    pattern = r"(?:^|[,/\s])(?:{})(?:$|[,/\s]|-part\d|-\d+:\d+:)".format("|".join(names))
    return re.search(pattern, text) is not None


def luns_named(text: str) -> List[str]:
    """What could be the SCSIid of a LUN that is named in such a text; other words are among them.

    What `names_lun` says of one of these is true of them; an id that has what udev does not take is as udev has it.
    """
    words = re.split(r"[,/\s]", text)
    bare = [re.sub(r"-part\d+\Z|-\d+:\d+:\d+:\d+\Z", "", word) for word in words]
    bare = [re.sub(r"\A(?:scsi-|(?:dm-uuid-)?(?:part\d+-)?mpath-|dm-name-)(?=.)", "", word) for word in bare]
    return [re.sub(r"\Awwn-0x", "3", word) for word in bare if is_scsi_id(word)]
