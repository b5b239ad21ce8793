# SPDX-License-Identifier: LGPL-2.1-only
"""What LVM and the storage manager would read on a LUN: the VG, MGT, VHDs, QCOW2 images, CBT logs and journals.

The reader is a judge: it follows docs/formats, and shares no code with the engine.

    read_sr      plain values
    essence      the values that a resignature must carry over
    renamed      the expected values after a resignature
    identities   every identity string
    sightings    every place of the disk that still has an old identity
    same_guest   compares the rest
"""

import re
import struct
import uuid
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from relvmoiscsi.device import Range

from .lvmreader import (  # noqa: F401  (what tests want is all to be had from here)
    Lv,
    Vg,
    blkid_sees,
    lvm_crc,
    parse_text,
    read_label,
    read_mda,
    read_vg,
    vg_view,
)
from .sparse import SparseDisk, join, on_device

VG_PREFIX = "VG_XenStorage-"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UUID_RE = re.compile(UUID)
_JOURNAL = re.compile(rf"(clone|leaf|inflate|relink|coalesce|zero)_({UUID})_(.*)$")


class VdiRecord(NamedTuple):
    """A record of MGT. Labels are as stored: escaped, undecodable bytes as surrogates."""

    offset: int  #: bytes from the start of the MGT volume
    uuid: str
    name_label: str
    name_description: str
    snapshot_of: str
    vdi_type: str
    deleted: bool
    fields: Tuple[Tuple[str, str], ...]  #: every tag of the record, in order


class Mgt(NamedTuple):
    length: int
    major: int
    minor: int
    sr_uuid: str
    sr_label: str
    sr_description: str
    allocation: str
    records: Tuple[VdiRecord, ...]
    problems: Tuple[str, ...]


class Locator(NamedTuple):
    code: str
    text: str
    target: Tuple[str, str]  #: (VG name, LV name)
    offset: int  #: bytes from the start of the LV
    space: int  #: bytes


class Vhd(NamedTuple):
    name: str
    uuid: str  #: of the footer; not the VDI's
    disk_type: int  #: 3 dynamic, 4 differencing
    hidden: int
    virtual_size: int
    poisoned: bool
    table_offset: int
    max_bat_entries: int
    prt_uuid: str  #: empty when zero
    parent: Tuple[str, str]  #: (VG name, LV name) by the header's parent name; ("", "") when there is none
    locators: Tuple[Locator, ...]
    end: str  #: the footer in the last sector: same, invalid (the copy governs), poisoned, resized or other
    problems: Tuple[str, ...]


class Qcow2(NamedTuple):
    name: str
    virtual_size: int
    backing: str  #: empty when there is none
    backing_format: str
    hidden: Optional[int]  #: None without sm's own header extension
    backing_offset: int
    problems: Tuple[str, ...]


class Cbt(NamedTuple):
    name: str
    parent: str  #: empty when zero
    child: str
    consistent: int
    size: int


class Journal(NamedTuple):
    name: str
    type: str
    uuid: str
    value: str  #: from the name, or from the block for clone, leaf and long ones
    in_block: bool


class Sr(NamedTuple):
    """A storage repository as the storage manager reads it."""

    uuid: str
    vg: Vg
    mgt: Optional[Mgt]
    vhds: Tuple[Vhd, ...]
    qcow2s: Tuple[Qcow2, ...]
    raws: Tuple[str, ...]  #: LV names
    cbts: Tuple[Cbt, ...]
    journals: Tuple[Journal, ...]
    others: Tuple[str, ...]  #: LV names that fit nothing: `_trim_lv`, `jvhd_`, unknown

    def vhd(self, name: str) -> Vhd:
        return {vhd.name: vhd for vhd in self.vhds}[name]

    @property
    def problems(self) -> Tuple[str, ...]:
        """Everything LVM, sm or vhd-util would complain about."""
        parts = [*([self.mgt] if self.mgt else []), *self.vhds, *self.qcow2s]
        return (*self.vg.warnings, *(text for part in parts for text in part.problems), *_link_problems(self))


# -- LV contents ----------------------------------------------------------------------------------------------------


def device_ranges(vg: Vg, lv: Lv, offset: int, length: int) -> List[Range]:
    """Where bytes [offset, offset + length) of a linear LV lie on the device."""
    segments = ((segment.extent_count, segment.first_pe) for segment in lv.segments)
    found = on_device(segments, vg.pe_start_bytes, vg.extent_bytes, Range(offset, length))
    assert sum(item.length for item in found) == length, f"{length} bytes at {offset} are not in {lv.name}"
    return found


def lv_bytes(disk: SparseDisk, vg: Vg, lv: Lv, offset: int, length: int) -> bytes:
    """Bytes [offset, offset + length) of an LV."""
    return b"".join(disk.peek(item.offset, item.length) for item in device_ranges(vg, lv, offset, length))


class _Volume:
    """An LV to read from."""

    def __init__(self, disk: SparseDisk, vg: Vg, lv: Lv) -> None:
        self.disk, self.vg, self.lv = disk, vg, lv
        self.name = lv.name
        self.size = lv.extents * vg.extent_bytes

    def at(self, offset: int, length: int) -> bytes:
        """The bytes there; what lies past the end is missing."""
        return lv_bytes(self.disk, self.vg, self.lv, offset, max(0, min(length, self.size - offset)))


# -- the SR ---------------------------------------------------------------------------------------------------------


def read_sr(disk: SparseDisk) -> Optional[Sr]:
    """The SR on a disk, or None if LVM sees no VG there or the VG is no SR."""
    vg = read_vg(disk)
    if vg is None or not re.match(VG_PREFIX + UUID + "$", vg.name):
        return None
    kinds: Dict[str, List[Any]] = {}
    for lv in vg.lvs:
        volume = _Volume(disk, vg, lv)
        kind = kind_of(lv.name) if _linear(lv) else "other"
        kinds.setdefault(kind, []).append(_READERS.get(kind, _name_of)(volume))
    mgts = kinds.get("mgt", [None])
    return Sr(
        vg.name[len(VG_PREFIX) :],
        vg,
        mgts[0],
        *(tuple(kinds.get(kind, ())) for kind in ("vhd", "qcow2", "raw", "cbt", "journal", "other")),
    )


def kind_of(lv_name: str) -> str:
    """mgt, vhd, raw, qcow2, cbt, journal or other, by the name as sm tells them apart."""
    return next((kind for kind, pattern in _KINDS if pattern.match(lv_name)), "other")


_DISK = "-(OLD_)?" + UUID + "$"
_KINDS = [(kind, re.compile(pattern)) for kind, pattern in (
    ("mgt", "MGT$"), ("vhd", "VHD" + _DISK), ("qcow2", "QCOW2" + _DISK), ("raw", "LV" + _DISK),
    ("cbt", UUID + r"\.cbtlog$"), ("journal", _JOURNAL.pattern),
)]  # fmt: skip


def _linear(lv: Lv) -> bool:
    return all(segment.type == "striped" and len(segment.stripes) == 2 for segment in lv.segments)


def _name_of(volume: _Volume) -> str:
    return volume.name


def _read_cbt(volume: _Volume) -> Cbt:
    parent, child, consistent, size = struct.unpack("<16s16si4xQ", volume.at(0, 48))
    return Cbt(volume.name, _uuid_text(parent), _uuid_text(child), consistent, size)


def _read_journal(volume: _Volume) -> Journal:
    match = _JOURNAL.match(volume.name)
    assert match is not None, volume.name
    kind, owner, value = match.groups()
    in_block = kind in ("clone", "leaf")
    if in_block:
        length, _, rest = volume.at(0, 512).partition(b" ")
        value = rest[: int(length)].decode("ascii", "replace") if length.isdigit() else ""
    return Journal(volume.name, kind, owner, value, in_block)


def _uuid_text(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw)) if raw != bytes(16) else ""


def _link_problems(sr: Sr) -> Iterator[str]:
    """Links between volumes that lead nowhere, or to something else than they say."""
    vhds = {vhd.name: vhd for vhd in sr.vhds}
    names = {lv.name for lv in sr.vg.lvs}
    for vhd in sr.vhds:
        for where, (vg_name, lv_name) in [("header", vhd.parent)] + [(item.code, item.target) for item in vhd.locators]:
            if vhd.disk_type == 4 and (vg_name != sr.vg.name or lv_name not in names):
                yield f"{vhd.name}: {where} names the parent {lv_name} in {vg_name}, which is not here"
        parent = vhds.get(vhd.parent[1])
        if parent and vhd.prt_uuid != parent.uuid:
            yield f"{vhd.name}: prt_uuid is not the footer uuid of {parent.name}"
        if vhd.parent[1].startswith("LV-") and vhd.prt_uuid:
            yield f"{vhd.name}: its parent is raw and its prt_uuid is not zero"
    for image in sr.qcow2s:
        folder, _, lv_name = image.backing.rpartition("/")
        if image.backing and (folder != "/dev/" + sr.vg.name or lv_name not in names):
            yield f"{image.name}: its backing file {image.backing} is not here"
    if sr.mgt and sr.mgt.sr_uuid != sr.uuid:
        yield f"MGT is of SR {sr.mgt.sr_uuid}"


# -- MGT ------------------------------------------------------------------------------------------------------------


def _read_mgt(volume: _Volume) -> Mgt:
    """MGT, tag by tag, so that a record that is no XML any more does not hide the others."""
    head = volume.at(0, 2048)
    fields = head[:512].rstrip(b" \0").split(b":")
    if len(fields) != 4 or fields[0] != b"XSSM" or not all(field.strip().isdigit() for field in fields[1:]):
        return Mgt(0, 0, 0, "", "", "", "", (), ("MGT has no header",))
    length = int(fields[1])
    problems = [] if length % 1024 == 0 and 2048 <= length <= volume.size else [f"MGT length is {length}"]
    records = [_record(volume.at(start, 1024), start) for start in range(2048, min(length, volume.size), 1024)]
    problems.extend(f"MGT record at {record.offset} has no uuid" for record in records if not record.uuid)
    facts = (_tag(head[512:1024], "uuid"), _tag(head[1024:1536], "name_label"), _tag(head[1536:], "name_description"))
    allocation = _tag(head[512:1024], "allocation")
    return Mgt(length, int(fields[2]), int(fields[3]), *facts, allocation, tuple(records), tuple(problems))


@lru_cache(maxsize=4096)
def _record(data: bytes, offset: int) -> VdiRecord:
    texts = (_tag(data, tag) for tag in ("uuid", "name_label", "name_description", "snapshot_of", "vdi_type"))
    fields = tuple((_text(tag), _text(value)) for tag, value in re.findall(rb"<(\w+)>([^<]*)</\1>", data))
    return VdiRecord(offset, *texts, _tag(data, "deleted") == "1", fields)


def _tag(data: bytes, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>".encode(), data, re.DOTALL)
    return _text(found.group(1)).strip() if found else ""


def _text(data: bytes) -> str:
    return data.replace(b"\0", b"").decode("utf-8", "surrogateescape")


# -- VHD ------------------------------------------------------------------------------------------------------------

_FOOTER = struct.Struct(">8sIIQI4sIIQQIII16sBB")
_HEADER = struct.Struct(">8sQQIIII16sII512s")
_LOCATOR = struct.Struct(">4sIIIQ")


def _read_vhd(volume: _Volume) -> Vhd:
    first = volume.at(0, 512)
    cookie, _, _, header_at, _, _, _, _, _, size, _, disk_type, _, footer_uuid, _, hidden = _FOOTER.unpack_from(first)
    header = volume.at(header_at, 1024).ljust(1024, b"\0")
    _, _, table_at, _, entries, _, _, prt_uuid, _, _, parent_name = _HEADER.unpack_from(header)
    locators = tuple(_locators(volume, header))
    end = end_footer(first, volume.at(volume.size - 512, 512))
    problems = ["the footer at its start is bad"] if not footer_ok(first) else []
    problems += ["its two footers differ"] if end == "other" else []
    problems += _header_problems(header, disk_type, len(locators))
    parent = dm_target(parent_name.decode("utf-16-be", "replace").rstrip("\0"))
    return Vhd(volume.name, str(uuid.UUID(bytes=footer_uuid)), disk_type, hidden, size, cookie == b"v_poison", table_at,
               entries, _uuid_text(prt_uuid), parent, locators, end,
               tuple(f"{volume.name}: {problem}" for problem in problems))  # fmt: skip


def end_footer(first: bytes, last: bytes) -> str:
    """What libvhd makes of the last sector of a VHD whose copy of the footer is `first`.

    A running VM leaves 0xC7 there, a grown LV whatever there was: the copy governs then, and the sector means nothing.
    A resize changes the two one after the other: size, geometry and checksum may differ.
    """
    if not footer_ok(last):
        return "poisoned" if last[:8] == b"v_poison" else "invalid"
    if first == last:
        return "same"
    unsized = [data[:48] + data[60:64] + data[68:] for data in (first, last)]
    return "resized" if unsized[0] == unsized[1] else "other"


def _header_problems(header: bytes, disk_type: int, locators: int) -> Iterator[str]:
    fields = _HEADER.unpack_from(header)
    if fields[0] != b"cxsparse" or _sum_ones_complement(header, 36) != fields[6]:
        yield "its header is bad"
    if any(header[768:]) or fields[9]:
        yield "reserved bytes of its header are not zero"
    if disk_type == 4 and locators < 3:
        yield f"it has {locators} parent locators"
    if disk_type != 4 and any(header[40:60] + header[64:768]):
        yield "it has no parent and its header names one"


def footer_ok(data: bytes) -> bool:
    """Whether libvhd takes a sector for a footer: cookie and checksum."""
    return data[:8] == b"conectix" and _sum_ones_complement(data, 64) == struct.unpack_from(">I", data, 64)[0]


def _sum_ones_complement(data: bytes, checksum_at: int) -> int:
    return 0xFFFFFFFF - sum(data[:checksum_at]) - sum(data[checksum_at + 4 :])


def _locators(volume: _Volume, header: bytes) -> Iterator[Locator]:
    for number in range(8):
        code, space, length, _, offset = _LOCATOR.unpack_from(header, 576 + 24 * number)
        if code != bytes(4):
            data = volume.at(offset, length)
            text = data.decode("utf-8" if code == b"MacX" else "utf-16-le", "replace")
            space = space if space >= 512 else space * 512
            yield Locator(code.decode("latin-1"), text, dm_target(text), offset, space)


def dm_target(path: str) -> Tuple[str, str]:
    """(VG name, LV name) of a device-mapper name at the end of a path; ("", "") if it is none."""
    name = re.split(r"[/\\]", path)[-1].replace("--", "\0")
    vg, _, lv = name.partition("-")
    return (vg.replace("\0", "-"), lv.replace("\0", "-")) if lv else ("", "")


# -- QCOW2 ----------------------------------------------------------------------------------------------------------


def _read_qcow2(volume: _Volume) -> Qcow2:
    head = volume.at(0, 65536)
    magic, version, backing_offset, backing_size, bits, size = struct.unpack_from(">IIQIIQ", head)
    problems = [] if magic == 0x514649FB and version in (2, 3) else [f"{volume.name}: it is no QCOW2"]
    backing = head[backing_offset : backing_offset + backing_size].decode("utf-8", "surrogateescape")
    header_length = struct.unpack_from(">I", head, 100)[0] if version == 3 else 72
    extensions = dict(_extensions(head, header_length))
    vate = extensions.get(0x76617465)
    backing_format = extensions.get(0xE2792ACA, b"").decode("ascii", "replace")
    return Qcow2(volume.name, size, backing if backing_offset else "", backing_format, vate[0] if vate else None,
                 backing_offset, tuple(problems))  # fmt: skip


def _extensions(head: bytes, at: int) -> Iterator[Tuple[int, bytes]]:
    while at + 8 <= len(head):
        kind, length = struct.unpack_from(">II", head, at)
        if kind == 0:
            return
        yield kind, head[at + 8 : at + 8 + length]
        at += 8 + length + -length % 8


_READERS: Dict[str, Any] = {
    "mgt": _read_mgt,
    "vhd": _read_vhd,
    "qcow2": _read_qcow2,
    "cbt": _read_cbt,
    "journal": _read_journal,
}


# -- identities -----------------------------------------------------------------------------------------------------


def identities(disk: SparseDisk) -> Set[str]:
    """Every identity string that a structure of the disk holds.

    LVM ids with dashes, UUIDs in lower case, the VG name, and LV names that carry a UUID. Stale texts in the metadata
    ring and guest data are not looked at; `sightings` finds those.
    """
    sr = read_sr(disk)
    texts = set(_identity_texts(sr)) if sr else set()
    return {identity for text in texts for identity in (text, *_UUID_RE.findall(text)) if identity}


def _identity_texts(sr: Sr) -> Iterator[str]:
    yield from (sr.vg.pv_id, sr.vg.id, sr.vg.name)
    yield from (pv.id for pv in sr.vg.pvs)
    for lv in sr.vg.lvs:
        yield lv.id
        yield lv.name if _UUID_RE.search(lv.name) else ""
    if sr.mgt:
        yield sr.mgt.sr_uuid
        for record in sr.mgt.records:
            yield record.uuid
            yield record.snapshot_of if _UUID_RE.match(record.snapshot_of) else ""
    for vhd in sr.vhds:
        yield from vhd.parent
        yield from (name for item in vhd.locators for name in item.target)
    for image in sr.qcow2s:
        yield from image.backing.split("/")[2:]
    for log in sr.cbts:
        yield from (log.parent, log.child)
    for journal in sr.journals:
        yield from _UUID_RE.findall(journal.value)


def identity_ranges(disk: SparseDisk) -> List[Range]:
    """Where on the device, in LV contents, identities stand (and the VHD header checksums that follow from them)."""
    vg = read_vg(disk)
    found: List[Range] = []
    for lv in vg.lvs if vg else ():
        finder = _IDENTITY_FINDERS.get(kind_of(lv.name)) if _linear(lv) else None
        for offset, length in finder(_Volume(disk, vg, lv)) if finder else ():
            found.extend(device_ranges(vg, lv, offset, length))
    return join(found)


def _mgt_identities(volume: _Volume) -> Iterator[Tuple[int, int]]:
    data = volume.at(0, volume.size).split(b"\0", 1)[0]
    for match in re.finditer(rb"<(?:uuid|snapshot_of)>\s*(" + UUID.encode() + rb")\s*<", data):
        yield match.start(1), 36


def _vhd_identities(volume: _Volume) -> Iterator[Tuple[int, int]]:
    vhd = _read_vhd(volume)
    if vhd.disk_type == 4:
        start = struct.unpack_from(">Q", volume.at(0, 512), 16)[0]
        yield start + 36, 4
        yield start + 64, 512
        for locator in vhd.locators:
            yield locator.offset, locator.space


def _qcow2_identities(volume: _Volume) -> Iterator[Tuple[int, int]]:
    image = _read_qcow2(volume)
    if image.backing:
        yield image.backing_offset, len(image.backing.encode("utf-8", "surrogateescape"))


_IDENTITY_FINDERS: Dict[str, Any] = {
    "mgt": _mgt_identities,
    "vhd": _vhd_identities,
    "qcow2": _qcow2_identities,
    "cbt": lambda _: [(0, 32)],
    "journal": lambda volume: [(0, 512)] if _read_journal(volume).in_block else [],
}


# -- comparing a LUN with what it was --------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Which bytes of a device a resignature may change. Taken from the LUN as it was before."""

    allowed: Tuple[Range, ...]


def layout_of(disk: SparseDisk) -> Layout:
    """What may change: the label sector, the metadata areas and the identity fields inside LVs. Nothing else."""
    label = read_label(disk)
    assert label is not None, f"there is no label on {disk.name}"
    return Layout(tuple(join([Range(label.sector * 512, 512)] + list(label.mdas) + identity_ranges(disk))))


def same_guest(one: SparseDisk, other: SparseDisk, layout: Layout) -> bool:
    """Is every byte the same that must never change: guest data, free extents, unused sectors and all?

    `layout` comes from `layout_of` of the disk as it was, or from the builder's truth.
    """
    return one.same_except(other, layout.allowed)


def essence(disk: SparseDisk) -> Tuple[Any, ...]:
    """All that SR, LVM and VHD readers see of a LUN, without seqno, device hints and positions in the ring."""
    sr = read_sr(disk)
    if sr is None:
        return vg_view(disk, with_seqno=False)
    return (vg_view(disk, with_seqno=False), sr.uuid, sr._replace(vg=None))


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with every old identity in its strings replaced by the new one, whole or as part of a longer string.

    The parts of device-mapper names, with their doubled dashes, are replaced as well. UUIDs and LVM ids are enough.

    `essence(after) == renamed(essence(before), names)` says that everything was carried over.
    """
    whole = dict(names)
    whole.update((old.replace("-", "--"), new.replace("-", "--")) for old, new in names.items())
    strange = [name for name in names if not _IDENTITY.fullmatch(name)]
    assert not strange, f"these are no identities: {strange[:3]}"
    return _replaced(value, lambda text: _IDENTITY.sub(lambda match: whole.get(match.group(), match.group()), text))


#: what an identity looks like, single or doubled dashes alike; a pattern of thousands of names takes seconds to make
_IDENTITY = re.compile(
    r"[0-9a-f]{8}(?P<one>--?)[0-9a-f]{4}(?:(?P=one)[0-9a-f]{4}){2}(?P=one)[0-9a-f]{12}"
    r"|[0-9A-Za-z!#]{6}(?P<other>--?)[0-9A-Za-z!#]{4}(?:(?P=other)[0-9A-Za-z!#]{4}){4}(?P=other)[0-9A-Za-z!#]{6}"
)


def _replaced(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, tuple):
        parts = [_replaced(part, rename) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


# -- raw search -----------------------------------------------------------------------------------------------------


class Sighting(NamedTuple):
    offset: int
    identity: str
    form: str  #: how it is encoded there


def sightings(disk: SparseDisk, wanted: Iterable[str], outside: Iterable[Range] = ()) -> List[Sighting]:
    """Every place of the disk where an identity stands, in any of its encodings, but for those inside `outside`.

    Forms: text, text with doubled dashes, both in UTF-16 of either byte order, an LVM id without dashes, a UUID in
    binary. Guest data is searched like everything else.
    """
    forms: Dict[bytes, Tuple[str, str]] = {}
    for identity in wanted:
        for form, data in _forms(identity):
            forms[data] = (identity, form)
    skipped = join(outside)
    found: List[Sighting] = []
    for start, data in disk.runs(without_filler=True):
        for pattern, (identity, form) in forms.items():
            found.extend(Sighting(start + at, identity, form) for at in _finds(data, pattern))
    return sorted(item for item in found if not any(r.offset <= item.offset < r.end for r in skipped))


def _finds(data: bytes, pattern: bytes) -> Iterator[int]:
    at = data.find(pattern)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


def _forms(identity: str) -> Iterator[Tuple[str, bytes]]:
    doubled = identity.replace("-", "--")
    yield "text", identity.encode()
    yield "doubled dashes", doubled.encode()
    for order in ("le", "be"):
        yield "utf-16-" + order, identity.encode("utf-16-" + order)
        yield "doubled dashes, utf-16-" + order, doubled.encode("utf-16-" + order)
    if re.match(UUID + "$", identity):
        yield "binary", uuid.UUID(identity).bytes
    if re.match(r"[0-9A-Za-z!#]{6}(-[0-9A-Za-z!#]{4}){5}-[0-9A-Za-z!#]{6}$", identity):
        yield "without dashes", identity.replace("-", "").encode()
