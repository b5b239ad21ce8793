# SPDX-License-Identifier: LGPL-2.1-only
"""The names that SM gives to volume groups and logical volumes, and the spellings of these names in disk images.

    VG_XenStorage-<SR uuid>              the volume group of an SR
    XSLocalEXT-<SR uuid>                 the volume group of an SR with a file system; also XSLocalXFS- and
                                         XSLocalLargeBlock- (XCP-ng)
    MGT                                  SM's own metadata
    VHD-<VDI uuid>  LV-<VDI uuid>        a VHD, a raw VDI, a QCOW2 (XCP-ng); `VHD-OLD_` and `QCOW2-OLD_`
    QCOW2-<VDI uuid>                     name a leaf that SM still has to delete after a coalesce
    <VDI uuid>.cbtlog                    changed-block log
    <type>_<VDI uuid>_<value>            SM journal; jvhd_<VDI uuid>: vhd-util's resize journal
    <SR uuid>_trim_lv                    all free space of the SR, while SM trims the free space

SM gives no other name. A volume with another name belongs to CloudStack (heartbeat) or to the administrator. An
administrator may put a name of SM into such a name (`old_VHD-<VDI uuid>`): its UUID is an identity of the LUN, also
after SM has deleted the VDI. Any other UUID in such a name may be of a host, and changes only when the LUN has it too.

Sources: SM drivers/lvhdutil.py, journaler.py, cleanup.py, trim_util.py, constants.py; XCP-ng drivers/LargeBlockSR.py.
"""

import re
from functools import lru_cache
from typing import Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import Place, Unsupported
from relvmoiscsi.formats.identity import UUID_PATTERN

VG_PREFIX = "VG_XenStorage-"
FILE_SR_VG_PREFIX = "XSLocal"
MGT = "MGT"
VHD = "vhd"
RAW = "raw"
QCOW2 = "qcow2"
CBT_LOG = "cbt log"
JOURNAL = "journal"
TRIM = "trim"
OTHER = "other"

#: kinds that hold the blocks of a VDI
DISK_KINDS = (VHD, RAW, QCOW2)

#: the `vdi_type` that MGT has for each kind
MGT_TYPES = {VHD: "vhd", RAW: "aio", QCOW2: "qcow2"}

#: SM journals that SM can recover from under new names, and what SM does for each on the clone's SR
HARMLESS_JOURNALS = {
    "coalesce": "SM's garbage collector drops the mark",
    "relink": "SM's garbage collector finishes the relinking once the VDIs are known",
    "zero": "SM's garbage collector zeroes the grown part again",
}

CLONE, LEAF, INFLATE, RESIZE = "clone", "leaf", "inflate", "jvhd"

#: SM journals of work that the resignature finishes or undoes (`resignature.reading.sm_journals`)
FINISHED_JOURNALS = (CLONE, LEAF, INFLATE)
_JOURNALS = (*HARMLESS_JOURNALS, *FINISHED_JOURNALS, RESIZE)

JOURNAL_TAG, HIDDEN_TAG = "journaler", "hidden"

#: the LVM tags by which SM lists volumes, whatever their names, and the one kind that may have each: SM takes any other
#: volume with the tag for such a volume. No volume of a LUN that is resignatured may have the tag of a resize journal.
#: HIDDEN_TAG finds no volume: SM asks a raw volume for it.
#: Source: SM drivers/lvmcache.py getTagged, journaler.py _getAllEntries, lvhdutil.py getAllVHDJournals, LVHDSR.py scan
LISTING_TAGS = {JOURNAL_TAG: JOURNAL, "cbtlog": CBT_LOG, "jvhd": ""}

_PREFIXES = {"VHD-": VHD, "LV-": RAW, "QCOW2-": QCOW2}
LV_PREFIXES = {kind: prefix for prefix, kind in _PREFIXES.items()}
_DISK = re.compile("(VHD-|LV-|QCOW2-)(OLD_)?(" + UUID_PATTERN + r")\Z")
_CBT = re.compile("(" + UUID_PATTERN + r")\.cbtlog\Z")
_JOURNAL = re.compile("([a-z]+)_(" + UUID_PATTERN + r")(?:_(.*))?\Z")
_TRIM = re.compile("(" + UUID_PATTERN + r")_trim_lv\Z")
#: UUIDs of SRs and VDIs in the name of a volume that is not SM's
_SPELLED = re.compile(rf"(?:VG_XenStorage-|(?:VHD|LV|QCOW2)-(?:OLD_)?)({UUID_PATTERN})|({UUID_PATTERN})\.cbtlog")

_DM_UUID = UUID_PATTERN.replace("-[", "--[")
_DM_PARENT = re.compile(
    rf"(?:/dev/mapper/)?VG_XenStorage--(?P<sr>{_DM_UUID})-(?P<kind>VHD|LV|QCOW2)--(?P<uuid>{_DM_UUID})\Z"
)
_PATH_PARENT = re.compile(
    rf"/dev/VG_XenStorage-(?P<sr>{UUID_PATTERN})/(?P<kind>VHD|LV|QCOW2)-(?P<uuid>{UUID_PATTERN})\Z"
)

#: what may be in front of the name of a parent in a text of a VHD
PARENT_PREFIX = re.compile(r"\A(?:file://)?(?:\./)?(?:\.\\)?")


class LvName(NamedTuple):
    """The parts of a logical volume's name."""

    text: str
    kind: str
    uuid: Optional[str] = None  #: the UUID in the name: of a VDI, for TRIM of the SR
    is_old: bool = False  #: an `OLD_` leaf that SM still has to delete
    journal: str = ""  #: the type of an SM journal
    value: str = ""  #: the part of an SM journal's name behind the VDI UUID

    @property
    def uuids(self) -> Tuple[str, ...]:
        """The UUIDs of SRs and VDIs in the name, as far as the name itself shows them."""
        if self.uuid is not None:
            return (self.uuid,)
        return tuple(before or behind for before, behind in _SPELLED.findall(self.text))


def parse_lv_name(text: str, where: Place) -> LvName:
    """The parts of a logical volume's name.

    Raises Unsupported for a name with a prefix of SM that SM never gives. Such a volume may hold identities that
    relvmoiscsi does not know.
    """
    if text == MGT:
        return LvName(text, MGT)
    match = _DISK.match(text)
    if match and not (match.group(1) == "LV-" and match.group(2)):
        return LvName(text, _PREFIXES[match.group(1)], match.group(3), is_old=bool(match.group(2)))
    match = _CBT.match(text)
    if match:
        return LvName(text, CBT_LOG, match.group(1))
    match = _TRIM.match(text)
    if match:
        return LvName(text, TRIM, match.group(1))
    match = _JOURNAL.match(text)
    if match and match.group(1) in _JOURNALS:
        return LvName(text, JOURNAL, match.group(2), journal=match.group(1), value=match.group(3) or "")
    if text.startswith(tuple(_PREFIXES)):
        raise Unsupported(f"Logical volume {text}", where, "it is no name that the storage manager gives")
    return LvName(text, OTHER)


class ParentName(NamedTuple):
    """The parent that a differencing image names."""

    sr: str  #: SR UUID
    kind: str  #: VHD, RAW or QCOW2
    uuid: str  #: VDI UUID


@lru_cache(maxsize=8)  # a VHD names its parent up to four times, and these names are parsed one after the other
def parse_parent_name(text: str) -> Optional[ParentName]:
    """The parent in a device-mapper name or a /dev path of an SR's volume; None when `text` is neither."""
    match = _DM_PARENT.match(text) or _PATH_PARENT.match(text)
    if match is None:
        return None
    parts = match.groupdict()
    return ParentName(
        sr=parts["sr"].replace("--", "-"),
        kind=_PREFIXES[parts["kind"] + "-"],
        uuid=parts["uuid"].replace("--", "-"),
    )


def rename_parent(text: str, parent: ParentName, uuids: Mapping[str, str]) -> str:
    """A text that names `parent` under new UUIDs.

    A text that names `parent` already keeps its spelling and its length: single dashes stay single, doubled dashes stay
    doubled. Another text gets the device-mapper name, as libvhd writes it into a VHD, behind its PARENT_PREFIX.
    """
    name = PARENT_PREFIX.sub("", text, 1)
    prefix = text[: len(text) - len(name)]
    if parse_parent_name(name) != parent:
        name = f"VG_XenStorage-{parent.sr}/{LV_PREFIXES[parent.kind]}{parent.uuid}"
        name = name.replace("-", "--").replace("/", "-")
    for old in (parent.sr, parent.uuid):
        new = uuids[old]
        name = name.replace(old, new).replace(old.replace("-", "--"), new.replace("-", "--"))
    return prefix + name
