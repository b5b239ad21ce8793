# SPDX-License-Identifier: LGPL-2.1-only
"""A verified volume group, the places of its extents on the device, and its text under new identities.

SM makes volume groups of one PV and linear LVs. This module refuses every other volume group, and names the reason.
"""

import re
from bisect import bisect_left
from itertools import accumulate, chain
from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.device import SECTOR, Range
from relvmoiscsi.errors import Malformed, OnDefect, Place, Truncated, Unsupported, WayOut, raise_defect, reading
from relvmoiscsi.formats.identity import IdMap, dashed, parse_lvm_id, sightings
from relvmoiscsi.formats.lvm.text_format import UINT32, Assignment, TextEdit, TextSection, edited, parse, shown_values
from relvmoiscsi.formats.naming import LV_PREFIXES, MGT
from relvmoiscsi.wording import said, some_of

#: section names and status words of the text that hold no identity
_KNOWN_VG_SECTIONS = {"physical_volumes", "logical_volumes"}
_VG_STATUS = {"RESIZEABLE", "READ", "WRITE"}
_PV_STATUS = {"ALLOCATABLE"}
_LV_WORDS = ("READ", "WRITE", "VISIBLE")  #: in the order in which LVM writes them
_LV_STATUS = set(_LV_WORDS)
#: words of `flags` of a VG or an LV that change no reading. LVM ignores unknown words. But behind CACHE_VOL, LVM takes
#: the words of a status from `flags`, too. Source: LVM2 lib/format_text/flags.c, read_flags
#: LVM writes WRITE_LOCKED in place of the status WRITE, and only beside the keys of _OWNERSHIP. Alone it is refused:
#: LVM reads it as WRITE, and older releases as nothing. Source: LVM2 lib/format_text/import_vsn1.c
_FLAGS = {"NOAUTOACTIVATE", "ACTIVATION_SKIP", "WRITE_LOCKED"}
#: LVM writes no other tag, and reads any. SM would take `a,hidden` for two tags. Source: LVM2 lib/misc/lvm-string.c
#: validate_tag; SM lvmcache.py, refresh
_TAG = re.compile(r"[A-Za-z0-9._+/=!:&#-]+\Z")

#: keys without which LVM refuses a text, as far as this module does not read the keys anyway
_MANDATORY_IN_VG = ("max_lv", "max_pv")
MAX_SEQNO = (1 << 32) - 1
#: volumes of a group. An SR has at most 4094 VDIs (mgt.MAX_RECORDS), each with a volume, a log and a journal
MAX_LVS = 3 << 12

#: keys that tie a VG to a cluster or a host, and what each says of the VG; SM never sets them. `pr` (LVM 2.03.34 and
#: later) asks for a persistent reservation: by `require`, LVM activates and writes nothing without the reservation
_OWNERSHIP = {
    **dict.fromkeys(("system_id", "lock_type", "lock_args"), "it belongs to another host or to a cluster"),
    "pr": "LVM asks for a persistent reservation of its disk",
}
#: what LVM leaves of a system ID. Source: LVM2 man/lvmsystemid.7
_SYSTEM_ID = re.compile(r"[A-Za-z0-9_+.-]{1,127}")

#: the way out for a volume of the SR, which lvremove would destroy
_MADE_LINEAR = (
    "No command mends that on the clone: lvremove would destroy data of the SR. On a host of the original, `lvconvert` "
    "makes the volume linear, and `pvmove --abort` ends a move that was cut. Then make another clone."
)
#: the way out for a group on several physical volumes: of these, one has all extents, or several have extents
_REDUCED = (
    "No command mends that on the clone. The other physical volumes are empty: on a host of the original, `pvs` shows "
    "these disks, and `vgreduce` removes such a disk from the group (in dom0 with LVM_SYSTEM_DIR=/etc/lvm/master). "
    "Then make another clone."
)
_EXTENDED = (
    "No command mends that on the clone: the SR was extended over several LUNs, and its volumes lie on more than one. "
    "Move the VDIs to an SR on one LUN, then clone that LUN."
)
_NO_WAYS_OUT: Mapping[str, WayOut] = {}

#: hints that name the original's disk (LVM 2.03.12 and later); LVM writes them anew
_DEVICE_HINTS = ("device_id_type", "device_id")

_IN_TEXT = Place("the metadata text", 0)  #: place of a text that was verified before


class Segment(NamedTuple):
    """Extents [start_extent, start_extent + extent_count) of an LV, in one piece on the PV."""

    start_extent: int
    extent_count: int
    first_pe: int

    @property
    def pes(self) -> range:
        """The physical extents. A forged text may name very many, so nothing lists the extents of a volume."""
        return range(self.first_pe, self.first_pe + self.extent_count)


def segments_of(pes: Iterable[range]) -> Tuple[Segment, ...]:
    """The segments of a volume with these physical extents: extents in a row are one segment."""
    runs: List[List[int]] = []  # of each run the first extent, and the end
    for each in pes:
        if runs and runs[-1][1] == each.start:
            runs[-1][1] = each.stop
        else:
            runs.append([each.start, each.stop])
    starts = accumulate(chain([0], (end - first for first, end in runs)))
    return tuple(Segment(start, end - first, first) for start, (first, end) in zip(starts, runs))


class LogicalVolume(NamedTuple):
    """A volume as the text describes the volume; `segments` are in the order of the volume's extents, without a gap."""

    name: str
    id: str  #: 32 characters
    status: FrozenSet[str]
    tags: Tuple[str, ...]
    segments: Tuple[Segment, ...]

    @property
    def extent_count(self) -> int:
        last = self.segments[-1]
        return last.start_extent + last.extent_count

    def pes(self, first: int, end: int) -> List[range]:
        """The physical extents of extents [first, end) of the volume, in order, each run of extents as a range."""
        found, index = [], max(0, bisect_left(self.segments, Segment(first + 1, 0, 0)) - 1)
        while index < len(self.segments) and self.segments[index].start_extent < end:
            start = self.segments[index].start_extent
            found.append(self.segments[index].pes[max(0, first - start) : end - start])
            index += 1
        return [run for run in found if run]


class VolumeGroup(NamedTuple):
    """The content of the committed text. `text` is as stored, without its NUL, one character per byte."""

    text: str
    name: str
    id: str
    seqno: int
    pv_name: str  #: "pv0": the name of the physical volume in the text
    pv_id: str
    dev_size: int  #: bytes
    pe_start: int  #: bytes from the start of the device to extent 0
    pe_count: int
    extent_size: int  #: bytes
    lvs: Tuple[LogicalVolume, ...]
    changed: int = 0  #: when LVM wrote the text, in seconds since 1970; 0 where the text has no readable time
    changed_on: str = ""  #: the name of the host on which LVM wrote the text

    @property
    def data_end(self) -> int:
        """The end of the last extent, in bytes from the start of the device."""
        return self.pe_start + self.pe_count * self.extent_size

    def size_of(self, lv: LogicalVolume) -> int:
        """Bytes."""
        return lv.extent_count * self.extent_size

    def ranges(self, lv: LogicalVolume, offset: int, length: int) -> List[Range]:
        """The ranges of the device that hold bytes [offset, offset + length) of an LV, in order, one range per segment.

        Raises Truncated when the LV ends before `offset + length`.
        """
        if len(lv.segments) == 1:  # the usual case, without a loop
            segment = lv.segments[0]
            if offset >= 0 and length > 0 and offset + length <= segment.extent_count * self.extent_size:
                return [Range(self.pe_start + segment.first_pe * self.extent_size + offset, length)]
        if offset < 0 or length < 0 or offset + length > self.size_of(lv):
            raise Truncated("A structure", Place(lv.name, offset), length, self.size_of(lv) - offset)
        found = []
        # a merged image may have a segment for each extent: search for the first one, do not look at all of them
        index = bisect_left(lv.segments, Segment(offset // self.extent_size + 1, 0, 0)) - 1
        while length > 0:
            segment = lv.segments[index]
            within = offset - segment.start_extent * self.extent_size
            size = min(length, segment.extent_count * self.extent_size - within)
            found.append(Range(self.pe_start + segment.first_pe * self.extent_size + within, size))
            offset, length, index = offset + size, length - size, index + 1
        return found


def read_vg(text: str, where: Place, device_bytes: int, on_defect: OnDefect = raise_defect) -> VolumeGroup:
    """Read and verify a committed text. `where` is the place of the text's first byte. Raises FormatError.

    The extents must be on the device, which has `device_bytes`. The size of the device in the text does not count, for
    LVM and here: LVM only warns. Source: LVM2 lib/metadata/metadata.c, check_pv_dev_sizes.

    An `on_defect` that returns keeps the defects. Then the result lacks the volumes that cannot be read: never write a
    text that was made from such a result. FormatError then means that no volume group can be read at all.
    """
    root = parse(text, where)
    if len(root.sections) != 1:
        names = some_of(sorted(root.sections)) or "none"
        raise Malformed("Metadata text", where, f"it has these volume groups: {names}; expected one")
    if root.string("contents") != "Text Format Volume Group" or root.integer("version") != 1:
        raise Unsupported("Metadata text", where, "it is not version 1 of a volume group text")
    vg = next(iter(root.sections.values()))
    lv_count = len(_lv_sections(vg))
    if lv_count > MAX_LVS:  # before any of them is a defect
        raise Unsupported(
            f"Volume group {vg.name}", vg.where, f"it has {lv_count} volumes, an SR has at most {MAX_LVS}"
        )
    with reading(on_defect):
        _refuse_unreadable(text, vg, where)
    with reading(on_defect):
        _refuse_unknown(vg)
    pv = _only_pv(vg)
    extent_size = vg.integer("extent_size") * SECTOR
    lvs = []
    for section in _lv_sections(vg):
        with reading(on_defect):
            lvs.append(_lv(section, pv.name, vg.name))
    first = {key: found.values[0] for key, found in root.assignments.items() if found.values}
    changed, changed_on = first.get("creation_time"), first.get("creation_host")  # LVM does not need these keys
    found = VolumeGroup(
        text=text,
        name=vg.name,
        id=parse_lvm_id(vg.string("id"), "id of volume group " + vg.name, vg.where),
        seqno=vg.integer("seqno"),
        pv_name=pv.name,
        pv_id=parse_lvm_id(pv.string("id"), "id of the physical volume", pv.where),
        dev_size=pv.integer("dev_size") * SECTOR if "dev_size" in pv.assignments else 0,
        pe_start=pv.integer("pe_start") * SECTOR,
        pe_count=pv.integer("pe_count"),
        extent_size=extent_size,
        lvs=tuple(lvs),
        changed=changed if isinstance(changed, int) else 0,
        changed_on=changed_on if isinstance(changed_on, str) else "",
    )
    if found.data_end > device_bytes:
        on_defect(Truncated("Physical volume", Place(where.container, 0), found.data_end, device_bytes))
    _verify_volumes(found, where, on_defect)
    return found


def _refuse_unreadable(text: str, vg: TextSection, where: Place) -> None:
    """Raises Malformed for a text that LVM does not read."""
    what = f"Volume group {vg.name}"
    if not text.startswith(vg.name + " {"):
        raise Malformed("Metadata text", where, f"it begins with {text[:16]!r}, not with its volume group")
    for key in _MANDATORY_IN_VG:
        if key not in vg.assignments:
            raise Malformed(what, vg.where, f"it has no {key}")
    for name in sorted(_KNOWN_VG_SECTIONS & set(vg.sections)):
        for key in vg.sections[name].assignments:
            raise Malformed(what, vg.sections[name].where, f"{key} is in {name} and is no section")
    _verify_profile(what, vg)
    if vg.integer("seqno") >= MAX_SEQNO:
        raise Malformed(what, vg.where, "its seqno is {}, LVM cannot count further".format(vg.integer("seqno")))


def _verify_profile(what: str, section: TextSection) -> None:
    """Raises Malformed for a profile with which LVM reads no volume group.

    Source: LVM2 lib/config/config.c, add_profile.
    """
    for profile in section.assignments["profile"].values[:1] if "profile" in section.assignments else ():
        if isinstance(profile, str) and (not profile or "/" in profile):
            raise Malformed(what, section.where, f"LVM reads no profile {said(profile)}")


def _refuse_unknown(vg: TextSection) -> None:
    what = f"Volume group {vg.name}"
    for name in sorted(set(vg.sections) - _KNOWN_VG_SECTIONS):
        raise Unsupported(what, vg.sections[name].where, f"it has a section {name}")
    for key, problem in _OWNERSHIP.items():
        for value in vg.assignments[key].values if key in vg.assignments else ():
            if value != "" and (key, value) != ("lock_type", "none"):
                found = Unsupported(what, vg.where, f"{problem}: it has a {key}")
                raise found.with_way_out(_disowned(vg.name, key, value))
    for section in (vg, *_lv_sections(vg)):
        if "WRITE_LOCKED" in section.strings("flags"):
            problem = f"{section.name} has the flag WRITE_LOCKED, and the group has no owner"
            raise Unsupported(what, section.where, problem)
    if "format" in vg.assignments and vg.string("format") != "lvm2":
        raise Unsupported(what, vg.where, "its format is {}".format(shown_values([vg.string("format")])))
    ways_out = {"EXPORTED": WayOut(("vgimport",), (vg.name,)), "CLUSTERED": _disowned(vg.name, "lock_type", "")}
    _status(what, vg, _VG_STATUS, ways_out)


def _disowned(vg_name: str, key: str, value: object) -> WayOut:
    """The way out for a VG with a key of _OWNERSHIP."""
    if key == "system_id":
        if not _SYSTEM_ID.fullmatch(str(value)):  # it could end its string, and set all of LVM's configuration
            return WayOut()
        config = f'global {{ system_id_source="lvmlocal" }} local {{ system_id="{value}" }}'
        return WayOut(("vgchange", "--systemid", ""), (vg_name,), config)
    if key == "pr":
        return WayOut(("vgchange", "--setpersist", "n"), (vg_name,))
    return WayOut(("vgchange", "--lock-type", "none", "--lock-opt", "force"), (vg_name,))


def _status(
    what: str, section: TextSection, known: Set[str], ways_out: Mapping[str, WayOut] = _NO_WAYS_OUT
) -> FrozenSet[str]:
    """The words of a status. Raises FormatError for a word that is not `known`, or a flag that is not in _FLAGS."""
    if "status" not in section.assignments:
        raise Malformed(what, section.where, "it has no status")
    status = frozenset(section.strings("status"))
    unknown = [("status", word) for word in sorted(status - known)]
    unknown += [("flag", word) for word in section.strings("flags") if word not in _FLAGS]
    for kind, word in unknown:
        problem = f"its {kind} is {shown_values([word])}"
        raise Unsupported(what, section.where, problem).with_way_out(ways_out.get(word, WayOut()))
    return status


def _only_pv(vg: TextSection) -> TextSection:
    pvs = list(vg.section("physical_volumes").sections.values())
    if len(pvs) != 1:
        segments = [segment for lv in _lv_sections(vg) for segment in lv.sections.values()]
        stripes = [segment.assignments["stripes"].values for segment in segments if "stripes" in segment.assignments]
        used = set(chain.from_iterable(stripes)).intersection(pv.name for pv in pvs)
        advice = _EXTENDED if len(used) > 1 else _REDUCED
        problem = f"it lies on {len(pvs)} physical volumes, an SR on a LUN has one"
        error = Unsupported(f"Volume group {vg.name}", vg.where, problem)
        raise error.with_way_out(WayOut(sentence=advice if pvs else ""))
    what = f"Physical volume {pvs[0].name} of volume group {vg.name}"
    ways_out = {"MISSING": WayOut(("vgextend", "--restoremissing"), (vg.name, vg.where.container))}
    if "EXPORTED" in vg.strings("status"):  # LVM marks VG and PV, and one command takes both marks away
        ways_out["EXPORTED"] = WayOut(("vgimport",), (vg.name,))
    _status(what, pvs[0], _PV_STATUS, ways_out)
    bootloader = [pvs[0].integer(key) for key in ("ba_start", "ba_size") if key in pvs[0].assignments]
    if len(bootloader) == 1 or len(set(map(bool, bootloader))) == 2:
        raise Malformed(what, pvs[0].where, "it has half of a bootloader area")
    return pvs[0]


def _lv_sections(vg: TextSection) -> List[TextSection]:
    """The sections of the LVs, in the order of the text. A VG without LVs has no section `logical_volumes`."""
    found = vg.sections.get("logical_volumes")
    return list(found.sections.values()) if found else []


def _lv(section: TextSection, pv_name: str, vg_name: str) -> LogicalVolume:
    what, where = f"Logical volume {section.name}", section.where
    for one, other in (("creation_time", "creation_host"), ("creation_host", "creation_time")):
        if one in section.assignments and other not in section.assignments:
            raise Malformed(what, where, f"it has a {one} and no {other}")
    _verify_profile(what, section)
    lv_id = parse_lvm_id(section.string("id"), f"id of logical volume {section.name}", where)
    segments = []
    for child in section.sections.values():
        is_reshaped = "reshape_count" in child.assignments and child.integer("reshape_count") != 0
        if child.string("type") != "striped" or child.integer("stripe_count") != 1 or is_reshaped:
            name, way_out = section.name, WayOut(sentence=_MADE_LINEAR)
            if "cow_store" in child.assignments:  # lvremove knows a snapshot by the volume of its changes
                name = child.string("cow_store")
            elif "VISIBLE" not in section.strings("status"):  # a part of another volume
                name = MGT
            if name != MGT and not name.startswith(tuple(LV_PREFIXES.values())):
                way_out = WayOut(("lvremove",), (f"{vg_name}/{name}",))
            raise Unsupported(what, child.where, f"{child.name} is not linear").with_way_out(way_out)
        stripes = child.assignments.get("stripes")
        values = stripes.values if stripes else ()
        if len(values) != 2 or values[0] != pv_name or not isinstance(values[1], int) or values[1] not in UINT32:
            raise Malformed(what, child.where, f"{child.name} has the stripes {shown_values(values) or 'none'}")
        segments.append(Segment(child.integer("start_extent"), child.integer("extent_count"), values[1]))
    segments.sort()
    if section.integer("segment_count") != len(segments) or not segments:
        raise Malformed(what, where, f"it has {len(segments)} segments, and its segment_count is another number")
    expected = 0
    for segment in segments:
        if segment.start_extent != expected:
            raise Malformed(what, where, f"extent {expected} is in no segment or in two")
        expected += segment.extent_count
    ways_out = {"FIXED_MINOR": WayOut(("lvchange", "-Mn"), (f"{vg_name}/{section.name}",))}
    status = _status(what, section, _LV_STATUS, ways_out)
    tags = section.strings("tags")
    if not all(map(_TAG.match, tags)):
        wrong = [tag for tag in tags if not _TAG.match(tag)]
        raise Unsupported(what, where, f"LVM does not allow its tags: {shown_values(wrong)}")
    return LogicalVolume(section.name, lv_id, status, tuple(tags), tuple(segments))


def _verify_volumes(vg: VolumeGroup, where: Place, on_defect: OnDefect) -> None:
    """Reports a defect for an extent that is not on the PV, and for an id of two LVs.

    Raises Malformed for an extent of two LVs: nobody can tell whose bytes those are. And thousands of volumes on the
    same extents would take a read of the LUN each.
    """
    taken = sorted((s.first_pe, s.first_pe + s.extent_count, lv.name) for lv in vg.lvs for s in lv.segments)
    free_from, before = 0, ""
    for first, end, name in taken:
        if end > vg.pe_count:
            problem = f"it uses extent {end - 1}, the physical volume has {vg.pe_count}"
            on_defect(Malformed(f"Logical volume {name}", where, problem))
        if first < free_from:
            problem = f"it overlaps {before} at extent {first}"
            raise Malformed(f"Logical volume {name}", where, problem)
        free_from, before = end, name
    owners: Dict[str, str] = {vg.id: "the volume group"}
    for lv in vg.lvs:
        if lv.id in owners:
            found = Malformed(f"Logical volume {lv.name}", where, f"it has the id of {owners[lv.id]}")
            on_defect(found.with_way_out(WayOut(("lvremove",), (f"{vg.name}/{lv.name}",))))
        owners[lv.id] = lv.name


# --- the text under new identities


def renamed_text(vg: VolumeGroup, vg_name: str, lvs: Mapping[str, Optional[LogicalVolume]], ids: IdMap) -> str:
    """The text under new identities, with the seqno raised by one. All other bytes stay.

    `lvs` maps the name of each LV to the LV's new name, status, tags and segments; None removes the LV. `ids` has each
    PV, VG and LV id. The keys that name the original's disk (_DEVICE_HINTS) go. LVM stores its last command, and the
    path of the disk, which udev may have named by the PV id: an identity changes wherever it stands, but in a tag.
    """
    root = parse(vg.text, _IN_TEXT)
    (section,) = root.sections.values()
    pv = _only_pv(section)
    edits = [
        TextEdit(section.name_start, section.name_end, vg_name),
        _of_value(section, "id", f'"{dashed(ids.lvm_ids[vg.id])}"'),
        _of_value(section, "seqno", str(vg.seqno + 1)),
        _of_value(pv, "id", f'"{dashed(ids.lvm_ids[vg.pv_id])}"'),
    ]
    for hint in (pv.assignments[key] for key in _DEVICE_HINTS if key in pv.assignments):
        edits.append(TextEdit(hint.start, hint.end + (vg.text[hint.end : hint.end + 1] == "\n"), ""))
    for lv, own in zip(vg.lvs, _lv_sections(section)):
        edits.extend(_lv_edits(vg, lv, own, lvs[lv.name], ids.lvm_ids))
    # identities elsewhere: outside the edits, and outside the tags. These parts may lie in each other
    others = sorted([*edits, *(TextEdit(tags.start, tags.end, "") for tags in _tags(section))], reverse=True)
    names, behind = ids.names(), 0
    for at, old in sightings(vg.text, names):
        while others and others[-1].start < at + len(old):
            behind = max(behind, others.pop().end)
        if at >= behind:
            edits.append(TextEdit(at, at + len(old), names[old]))
    return edited(vg.text, edits)


def text_without_tags(vg: VolumeGroup) -> str:
    """The text without the tags of the VG, the PV and the LVs: a tag may hold an old UUID on purpose."""
    (section,) = parse(vg.text, _IN_TEXT).sections.values()
    return edited(vg.text, [TextEdit(tags.start, tags.end, "") for tags in _tags(section)])


def _tags(vg: TextSection) -> List[Assignment]:
    found = [section.assignments.get("tags") for section in (vg, _only_pv(vg), *_lv_sections(vg))]
    return [tags for tags in found if tags is not None]


def _of_value(section: TextSection, key: str, value: str) -> TextEdit:
    found = section.single(key)
    return TextEdit(found.value_start, found.end, value)


def _lv_edits(
    vg: VolumeGroup, lv: LogicalVolume, section: TextSection, wanted: Optional[LogicalVolume], ids: Mapping[str, str]
) -> List[TextEdit]:
    text = vg.text
    if wanted is None:
        return [TextEdit(_blanks_before(text, section.name_start), section.end, "")]
    edits = [
        TextEdit(section.name_start, section.name_end, wanted.name),
        _of_value(section, "id", f'"{dashed(ids[lv.id])}"'),
    ]
    status = section.assignments["status"]
    if wanted.status != lv.status:
        words = [word for word in _LV_WORDS if word in wanted.status]
        edits.append(TextEdit(status.start, status.end, "status = " + _listed(words)))
    if wanted.tags != lv.tags:
        # LVM writes the tags behind the flags. Older LVM releases write no flags. An LV without tags has no line `tags`
        before = section.assignments.get("flags", status)
        tags = section.assignments.get("tags")
        start, end = (tags.start, tags.end) if tags else (before.end, before.end)
        line_end = "" if lv.tags else text[_blanks_before(text, status.start) : status.start]
        edits.append(TextEdit(start, end, f"{line_end}tags = {_listed(wanted.tags)}" if wanted.tags else ""))
    if wanted.segments != lv.segments:
        first, *others = sorted((child.name_start, child.end) for child in section.sections.values())
        edits.append(_of_value(section, "segment_count", str(len(wanted.segments))))
        parts = []  # linear segments in the form that LVM writes to a disk: without indentation and comments
        for number, (extent, count, first_pe) in enumerate(wanted.segments, 1):
            extents = f"start_extent = {extent}\nextent_count = {count}"
            where = f'type = "striped"\nstripe_count = 1\n\nstripes = [\n"{vg.pv_name}", {first_pe}\n]'
            parts.append(f"segment{number} {{\n{extents}\n\n{where}\n}}")
        edits.append(TextEdit(*first, "\n".join(parts)))
        edits += [TextEdit(_blanks_before(text, start), end, "") for start, end in others]
    return edits


def _blanks_before(text: str, position: int) -> int:
    """The position of the white space that ends at `position`."""
    while position and text[position - 1] in " \t\r\n":  # a copy of the text before it, for each LV, would take long
        position -= 1
    return position


def _listed(words: Sequence[str]) -> str:
    """A list in LVM's form; the words need no escapes."""
    return "[{}]".format(", ".join(f'"{word}"' for word in words))
