# SPDX-License-Identifier: LGPL-2.1-only
"""Builds LUNs with LVM-based SRs on them, in memory, from a description, the same every time.

    built = build_sr([vhd("base", hidden=True), vhd("disk", parent="base", label="root disk"), raw("data")])
    built.disk                          a SparseDisk
    built.truth.volume("disk").name     "VHD-..."

Volumes are called by keys; UUIDs and LVM ids follow from key and seed. The builder follows docs/formats, and shares no
code with the engine, so it can judge the engine. Real LVM, qemu-img and libvhdi judge the builder (tests/judged/luns).
"""

import re
import uuid
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import Range, align_down, align_up

from . import build_lvm
from .build_lvm import LvText, VgText
from .build_volumes import (
    MIB,
    SM_BAT_ENTRIES,
    Content,
    MgtSpec,
    Parent,
    Qcow2Spec,
    Record,
    VhdSpec,
    cbt_content,
    guest_sector,
    journal_content,
    mgt_content,
    noise,
    qcow2_content,
    raw_content,
    uuids_by_key,
    vhd_content,
    vhd_journal_content,
    vhd_places,
)
from .lvmreader import dashed
from .reader import Layout
from .sparse import SparseDisk, join, on_device

#: Metadata areas as pvcreate makes them: (first byte, size). The data follows.
AREA_10M = Range(4096, 11530240)
AREA_16M = Range(4096, 16773120)  #: a 10M request on a LUN with a large optimal I/O size, as in the golden LUNs
AREA_DEFAULT = Range(4096, 1044480)

SMALL_BAT = 32  #: block table entries of a VHD that is to stay small: 64 MiB of disk
_CREATED = 1795219866


class Volume(NamedTuple):
    """A logical volume to build. Use `vhd`, `raw`, `qcow2`, `cbtlog`, `journal`, `jvhd`, `trim`, `named`."""

    key: str
    kind: str  #: vhd, raw, qcow2, cbtlog, journal, jvhd, named
    parent: str = ""  #: key of a volume, or a UUID that is nowhere
    child: str = ""
    #: of journals and named volumes; keys in braces stand for UUIDs, {sr} for the SR's; {lvm id of ...}: a key, pv, vg
    name: str = ""
    value: str = ""  #: what a journal's block holds; braces as in `name`
    extents: int = 0  #: 0: as many as needed
    segments: Tuple[Tuple[int, int], ...] = ()  #: (extent_count, first_pe); empty: allocated linearly
    tags: Tuple[str, ...] = ()  #: braces as in `name`
    writable: bool = True
    hidden: bool = False
    old: bool = False  #: OLD_ in the name, no MGT record
    blocks: int = 1  #: allocated blocks of a VHD
    bat_entries: int = SM_BAT_ENTRIES
    virtual_size: int = 64 * MIB
    poisoned: bool = False
    vate: Optional[int] = None
    consistent: int = 1
    record: Optional[Record] = None  #: MGT record; None: it has none
    uuid: str = ""  #: VDI UUID; empty: made from the key
    writes: Tuple[Tuple[int, str], ...] = ()  #: (guest sector, seed) instead of `blocks` of noise
    end: str = ""  #: last sector of a VHD, one of build_volumes.END_FOOTERS
    located: str = ""  #: key of the parent that the locators name, where the header names another
    old_extents: int = 0  #: so large was the LV when a footer was last written at its end
    blank: str = ""  #: a VHD volume without its VHD: "zero", or the key of a former owner of which it holds the bytes
    longer: int = 1  #: by so many extents a `blank` volume is longer than that of its former owner
    named_as: str = ""  #: key of the VDI whose name the LV bears while a rename is under way


class VolumeTruth(NamedTuple):
    """What a built volume is."""

    key: str
    kind: str
    name: str  #: of the LV
    lv_id: str
    uuid: str  #: VDI UUID it is named by
    parent: str  #: key, or UUID
    segments: Tuple[Tuple[int, int], ...]
    size: int
    tags: Tuple[str, ...]
    writable: bool
    footer_uuid: str  #: of a VHD
    identities: Tuple[Range, ...]  #: from the start of the LV
    guest: Tuple[Range, ...]  #: from the start of the LV
    virtual_size: int  #: of a VHD; the size of the LV of a raw one
    writes: Tuple[Tuple[int, str], ...]


class Truth(NamedTuple):
    """What is on a built LUN."""

    sr_uuid: str
    vg_name: str
    vg_id: str
    pv_id: str
    seqno: int
    label_sector: int
    areas: Tuple[Range, ...]
    text_offset: int  #: of the committed text, from the start of the first area
    text_length: int
    pe_start: int
    extent_size: int
    pe_count: int
    volumes: Tuple[VolumeTruth, ...]  #: in the order of the text, MGT among them
    records: Tuple[Record, ...]
    also: Tuple[Tuple[str, str], ...] = ()  #: (key, UUID) of VDIs without a volume

    def volume(self, key: str) -> VolumeTruth:
        return {volume.key: volume for volume in self.volumes}[key]

    def device_ranges(self, key: str, offset: int, length: int) -> List[Range]:
        """Where bytes of a volume lie on the device."""
        return on_device(self.volume(key).segments, self.pe_start, self.extent_size, Range(offset, length))

    @property
    def identity_ranges(self) -> List[Range]:
        """Where on the device identities stand inside volumes."""
        return self._all_of("identities")

    @property
    def guest_ranges(self) -> List[Range]:
        """Where on the device the guest data lies."""
        return self._all_of("guest")

    @property
    def allowed(self) -> Tuple[Range, ...]:
        """All that a resignature may change."""
        return tuple(join([Range(self.label_sector * 512, 512), *self.areas, *self.identity_ranges]))

    @property
    def layout(self) -> Layout:
        return Layout(self.allowed)

    @property
    def uuids(self) -> Dict[str, str]:
        """Key to VDI UUID; the SR's is under "sr"."""
        known = {volume.key: volume.uuid for volume in self.volumes if volume.uuid}
        known.update(self.also)
        known["sr"] = self.sr_uuid
        return known

    def guest_sectors(self, *keys: str) -> Dict[int, bytes]:
        """What `writes` of volumes make a guest read through a chain of them, the leaf first."""
        found: Dict[int, bytes] = {}
        for key in reversed(keys):
            found.update((sector, guest_sector(seed, sector)) for sector, seed in self.volume(key).writes)
        return found

    def _all_of(self, what: str) -> List[Range]:
        found: List[Range] = []
        for volume in self.volumes:
            for item in getattr(volume, what):
                found.extend(on_device(volume.segments, self.pe_start, self.extent_size, item))
        return join(found)


class BuiltSr(NamedTuple):
    disk: SparseDisk
    truth: Truth


# -- describing volumes ---------------------------------------------------------------------------------------------


def vhd(key: str, parent: str = "", hidden: bool = False, **more: Any) -> Volume:
    """A VHD; differencing if it has a parent. Hidden ones are read-only base copies unless `writable` says otherwise.

    What MGT says: `label` (the key, or "base copy" when hidden), `description`, `vdi_type`, `deleted`, and
    `snapshot_of`: a key, a UUID, or OpaqueRef:... With `in_mgt=False` it says nothing. More: any field of `Volume`.
    """
    return _disk(key, "vhd", "vhd", hidden, more, parent=parent)


def raw(key: str, hidden: bool = False, **more: Any) -> Volume:
    """A raw volume; a hidden one has the tag and is read-only."""
    more.setdefault("tags", ("hidden",) if hidden else ())
    return _disk(key, "raw", "aio", hidden, more)


def qcow2(key: str, parent: str = "", hidden: bool = False, **more: Any) -> Volume:
    """A QCOW2 image; `vate` is sm's own header extension with the hidden flag (set when hidden, None: absent)."""
    more.setdefault("vate", 1 if hidden else None)
    return _disk(key, "qcow2", "qcow2", hidden, more, parent=parent)


def _disk(key: str, kind: str, vdi_type: str, hidden: bool, more: Dict[str, Any], parent: str = "") -> Volume:
    label, snapshot_of = more.pop("label", None), more.pop("snapshot_of", "")
    record = Record(
        "",
        label if label is not None else ("base copy" if hidden else key),
        more.pop("description", ""),
        snapshot_of,
        vdi_type,
        more.pop("vdi_type", "user"),
        deleted=more.pop("deleted", False),
        read_only=hidden,
        managed=not hidden,
    )
    if snapshot_of:
        record = record._replace(is_a_snapshot=True, snapshot_time="20260101T00:00:00Z", with_offset=True,
                                 metadata_of_pool="OpaqueRef:NULL")  # fmt: skip
    more.setdefault("writable", not hidden)
    listed = more.pop("in_mgt", True) and not more.get("old")
    return Volume(key, kind, parent=parent, hidden=hidden, record=record if listed else None, **more)


def cbtlog(of: str, parent: str = "", child: str = "", **more: Any) -> Volume:
    """The changed-block log of a volume. `parent` and `child`: keys, or UUIDs that need not exist."""
    more.setdefault("tags", ("cbtlog",))
    return Volume("cbtlog of " + of, "cbtlog", parent=parent, child=child, name="{" + of + "}.cbtlog", **more)


def journal(kind: str, of: str, value: str = "1", **more: Any) -> Volume:
    """An sm journal. The value of `clone` and `leaf` stands in the block: `journal("leaf", "disk", "{base}")`."""
    in_block = kind in ("clone", "leaf")
    more.setdefault("tags", ("journaler",))
    name = f"{kind}_{{{of}}}_{1 if in_block else value}"
    return Volume(f"{kind} of {of}", "journal", name=name, value=value if in_block else "", **more)


def jvhd(of: str, **more: Any) -> Volume:
    """The resize journal of a VHD (which should be `poisoned` then)."""
    more.setdefault("tags", ("jvhd",))
    more.setdefault("extents", 2)
    return Volume("jvhd of " + of, "jvhd", parent=of, name="jvhd_{" + of + "}", **more)


def trim(**more: Any) -> Volume:
    """The temporary volume that sm trims free space with."""
    return Volume("trim", "named", name="{sr}_trim_lv", **more)


def named(name: str, **more: Any) -> Volume:
    """A volume of any name, with nothing in it."""
    return Volume(name, "named", name=name, **more)


# -- building -------------------------------------------------------------------------------------------------------


class Options(NamedTuple):
    """Everything about a LUN but its volumes."""

    seed: Union[int, str] = 0
    size_bytes: int = 0  #: 0: as large as needed, and `free_extents`
    free_extents: int = 8
    block_size: int = 512
    area: Range = AREA_10M
    pe_start: int = 0  #: bytes; 0: right behind the metadata area
    extent_size: int = 4 * MIB
    second_area: str = ""  #: "", "same", "older" (seqno one less) or "ignored"
    second_is_next: bool = False  #: the second area begins where the extents end, and the device ends behind it
    text_offset: int = 0  #: from the start of the area; 0: behind the stale texts
    stale_texts: int = 1  #: older copies of the text that lie in the ring before the committed one
    precommitted: bool = False  #: slot 1 says that an LVM change was under way
    seqno: int = 17
    style: str = "2.03"
    description: str = "Write from lvcreate."
    ext_version: int = 2
    label_sector: int = 1
    label_tail: bytes = b""
    sr_uuid: str = ""
    vg_name: str = ""
    mgt: bool = True
    mgt_segments: Tuple[Tuple[int, int], ...] = ()
    mgt_bug: str = ""  #: "shifted", "damaged": as sm 3.0.0 to 3.0.12 wrote labels that are not ASCII
    mgt_fill: int = 0  #: deleted records are added until there are so many
    extra_records: Tuple[Record, ...] = ()  #: a key may stand for their UUID
    also: Tuple[str, ...] = ()  #: keys of VDIs that have a UUID and no volume
    sr_label: str = "test SR"
    sr_description: str = "made by tests/kit/builder.py"
    allocation: str = "thick"
    edit_text: Optional[Callable[[str], str]] = None  #: last change to the metadata text before it gets its checksum


def build_sr(volumes: Sequence[Volume] = (), **options: Any) -> BuiltSr:
    """Build a LUN. `options` are the fields of `Options`."""
    return _Build(tuple(volumes), Options(**options)).run()


class _Build:
    """One LUN in the making."""

    def __init__(self, volumes: Tuple[Volume, ...], options: Options) -> None:
        self.options = options
        self.seed = f"lun {options.seed}"
        self.uuids = uuids_by_key([volume.key for volume in volumes] + ["sr", *options.also], self.seed)
        self.uuids.update({volume.key: volume.uuid for volume in volumes if volume.uuid})
        if options.sr_uuid:
            self.uuids["sr"] = options.sr_uuid
        self.vg_name = options.vg_name or "VG_XenStorage-" + self.uuids["sr"]
        mgt = Volume("MGT", "mgt", name="MGT", extents=1, segments=options.mgt_segments)
        self.volumes = ((mgt,) if options.mgt else ()) + volumes
        self.by_key = {volume.key: volume for volume in self.volumes}
        self.records = self._records(volumes)
        self.footers = {v.key: uuid.UUID(bytes=noise(16, self.seed + " footer " + v.key)) for v in self.volumes}

    def run(self) -> BuiltSr:
        options = self.options
        contents = {volume.key: self._content(volume) for volume in self.volumes}
        extents = {key: content.size // options.extent_size for key, content in contents.items()}
        segments = _allocate(self.volumes, extents)
        pe_start = options.pe_start or options.area.end
        used = max([first + count for parts in segments.values() for count, first in parts] + [0])
        size, areas, pe_count = _geometry(options, pe_start, used)
        disk = SparseDisk(size, options.block_size, f"built LUN {options.seed}")
        volumes = tuple(self._truth_of(each, segments[each.key], contents[each.key]) for each in self.volumes)
        ids = self._lvm_id("vg"), self._lvm_id("pv")
        truth = Truth(self.uuids["sr"], self.vg_name, *ids, options.seqno, options.label_sector, areas, 0, 0, pe_start,
                      options.extent_size, pe_count, volumes, self.records,
                      tuple((key, self.uuids[key]) for key in options.also))  # fmt: skip
        truth = _put_lvm(disk, truth, options)
        for volume in truth.volumes:
            for offset, data in contents[volume.key].pieces:
                _put_in_volume(disk, truth, volume.key, offset, data)
        _put_leftovers(disk, truth)
        disk.freeze()
        return BuiltSr(disk, truth)

    # contents of volumes

    def _content(self, volume: Volume) -> Content:
        size, seed = self._size(volume), f"{self.seed} {volume.key}"
        if volume.kind == "mgt":
            options = self.options
            return mgt_content(size, MgtSpec(self.uuids["sr"], options.sr_label, options.sr_description,
                                             options.allocation, self.records, options.mgt_bug))  # fmt: skip
        if volume.kind == "raw":
            return raw_content(size, seed, volume.writes)
        if volume.kind == "vhd":
            return self._vhd_content(size, volume, seed)
        if volume.kind == "qcow2":
            above = self.by_key.get(volume.parent)
            backing = f"/dev/{self.vg_name}/{self._lv_name(above)}" if above else ""
            format_name = "raw" if above and above.kind == "raw" else "qcow2"
            return qcow2_content(size, Qcow2Spec(volume.virtual_size, backing, format_name, volume.vate, seed))
        if volume.kind == "cbtlog":
            links = [self._uuid(volume.parent), self._uuid(volume.child)]
            return cbt_content(size, links[0], links[1], volume.consistent, volume.virtual_size, seed)
        if volume.kind == "journal":
            return journal_content(size, self._filled(volume.value))
        if volume.kind == "jvhd":
            return vhd_journal_content(size, self.footers[volume.parent])
        return Content(size)

    def _size(self, volume: Volume) -> int:
        """LV size in bytes, whole extents."""
        extents = sum(count for count, _ in volume.segments) or volume.extents
        if not extents and volume.kind == "vhd":
            blocks = len(self._vhd_spec(volume, "").block_numbers)
            needed = vhd_places(volume.bat_entries, bool(volume.parent), blocks).end + 512
            return align_up(needed, self.options.extent_size)
        return (extents or 1) * self.options.extent_size

    def _vhd_content(self, size: int, volume: Volume, seed: str) -> Content:
        if volume.blank == "zero":
            return Content(size)
        if volume.blank:
            former = self._vhd_spec(self.by_key[volume.blank], seed)._replace(footer_uuid=uuid.UUID(int=7))
            left = Content(size)
            left.pieces = vhd_content(size - self.options.extent_size * volume.longer, former).pieces
            return left
        return vhd_content(size, self._vhd_spec(volume, seed))

    def _vhd_spec(self, volume: Volume, seed: str) -> VhdSpec:
        return VhdSpec(self.footers[volume.key], volume.virtual_size, volume.bat_entries, volume.blocks,
                       volume.hidden, self._parent(volume.parent), volume.poisoned, seed, volume.writes, volume.end,
                       self._parent(volume.located), volume.old_extents * self.options.extent_size)  # fmt: skip

    def _parent(self, key: str) -> Optional[Parent]:
        """What a child says of a parent; it goes by the name that it had before any rename."""
        if not key:
            return None
        above = self.by_key.get(key)
        raw_parent = above is not None and above.kind == "raw"
        name = self._lv_name(above._replace(named_as="")) if above else "VHD-" + key
        footer = self.footers.get(key, uuid.UUID(int=1))
        return Parent(self.vg_name, name, None if raw_parent else footer)

    # names

    def _lv_name(self, volume: Volume) -> str:
        prefix = {"vhd": "VHD-", "raw": "LV-", "qcow2": "QCOW2-"}.get(volume.kind)
        if prefix is None:
            return self._filled(volume.name)
        return prefix + ("OLD_" if volume.old else "") + self.uuids[volume.named_as or volume.key]

    def _filled(self, text: str) -> str:
        for key, value in self.uuids.items():
            text = text.replace("{" + key + "}", value)
        for key in re.findall(r"{lvm id of ([^}]*)}", text):
            text = text.replace("{lvm id of " + key + "}", self._lvm_id(key))
        return text

    def _lvm_id(self, key: str) -> str:
        return lvm_id(f"{self.seed} {key}" if key in ("vg", "pv") else f"{self.seed} lv {key}")

    def _uuid(self, reference: str) -> str:
        return self.uuids.get(reference, reference)

    def _truth_of(self, volume: Volume, segments: "_Segments", content: Content) -> VolumeTruth:
        is_disk = volume.kind in ("vhd", "raw", "qcow2")
        as_described = {name: getattr(volume, name) for name in ("key", "kind", "parent", "writable", "writes")}
        return VolumeTruth(
            **as_described,
            name=self._lv_name(volume),
            tags=tuple(map(self._filled, volume.tags)),
            lv_id=self._lvm_id(volume.key),
            uuid=self.uuids[volume.named_as or volume.key] if is_disk else "",
            segments=segments,
            size=content.size,
            footer_uuid=str(self.footers[volume.key]) if volume.kind == "vhd" else "",
            identities=tuple(content.identities),
            guest=tuple(content.guest),
            virtual_size=content.size if volume.kind == "raw" else volume.virtual_size,
        )

    # MGT

    def _records(self, volumes: Tuple[Volume, ...]) -> Tuple[Record, ...]:
        records = [v.record._replace(uuid=self.uuids[v.key]) for v in volumes if v.record]
        records.extend(record._replace(uuid=self._uuid(record.uuid)) for record in self.options.extra_records)
        while len(records) < self.options.mgt_fill:
            filler = uuids_by_key([f"deleted {len(records)}"], self.seed)
            records.append(Record(list(filler.values())[0], "dummy vdi for space check", deleted=True))
        return tuple(record._replace(snapshot_of=self._uuid(record.snapshot_of)) for record in records)


def lvm_id(seed: str) -> str:
    """An LVM id with dashes."""
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return dashed("".join(alphabet[byte % 62] for byte in noise(32, "lvm id " + seed)))


# -- extents --------------------------------------------------------------------------------------------------------

_Segments = Tuple[Tuple[int, int], ...]


def _allocate(volumes: Sequence[Volume], extents: Dict[str, int]) -> Dict[str, _Segments]:
    """Segments of each volume: given ones first, the others linearly into the first gap that takes them."""
    segments = {volume.key: volume.segments for volume in volumes if volume.segments}
    taken = sorted((first, first + count) for given in segments.values() for count, first in given)
    assert all(a[1] <= b[0] for a, b in zip(taken, taken[1:])), f"given segments overlap: {taken}"
    for volume in volumes:
        if not volume.segments:
            count = extents[volume.key]
            first = _gap(taken, count)
            taken = sorted([*taken, (first, first + count)])
            segments[volume.key] = ((count, first),)
    return segments


def _gap(taken: Sequence[Tuple[int, int]], count: int) -> int:
    reached = 0
    for first, end in taken:
        if first - reached >= count:
            break
        reached = end
    return reached


def _geometry(options: Options, pe_start: int, used: int) -> Tuple[int, Tuple[Range, ...], int]:
    """Disk size, metadata areas and number of extents."""
    assert pe_start >= options.area.end, "the data begins inside the metadata area"
    if options.second_is_next:
        second_area = Range(pe_start + used * options.extent_size, MIB)
        return align_up(second_area.end, 4096), (options.area, second_area), used
    second = MIB if options.second_area else 0
    size = options.size_bytes
    if not size:
        size = align_up(pe_start + (used + options.free_extents) * options.extent_size + second, MIB) + MIB // 2
        size += MIB // 2 if second else 0
    end = size
    areas = [options.area]
    if second:
        end = align_down(size - second, MIB)
        areas.append(Range(end, size - end))
    pe_count = (end - pe_start) // options.extent_size
    assert used <= pe_count, f"{used} extents are used, there is room for {pe_count}"
    return size, tuple(areas), pe_count


def _put_in_volume(disk: SparseDisk, truth: Truth, key: str, offset: int, data: bytes) -> None:
    done = 0
    for item in truth.device_ranges(key, offset, len(data)):
        disk.poke(item.offset, data[done : done + item.length])
        done += item.length
    assert done == len(data), (offset, len(data))


def _put_leftovers(disk: SparseDisk, truth: Truth) -> None:
    """The last free extent holds the start of a VHD that was deleted: nobody's data, not to be touched."""
    used = {pe for volume in truth.volumes for count, first in volume.segments for pe in range(first, first + count)}
    last = truth.pe_count - 1
    if last >= 0 and last not in used:
        name = "VG_XenStorage--{}-VHD--gone".format(truth.sr_uuid.replace("-", "--"))
        start = truth.pe_start + last * truth.extent_size
        disk.poke(start, b"conectix" + noise(504, "leftover"))
        disk.poke(start + 512, b"cxsparse" + bytes(56) + name.encode("utf-16-be"))


# -- LVM ------------------------------------------------------------------------------------------------------------


def _put_lvm(disk: SparseDisk, truth: Truth, options: Options) -> Truth:
    """Label, headers and texts; gives the truth with where the text lies."""
    text = _text(disk, truth, options, options.seqno)
    older = [_text(disk, truth, options, options.seqno - back) for back in range(options.stale_texts, 0, -1)]
    room = sum(build_lvm.ring_size(len(stale)) for stale in older)
    offset = options.text_offset or 512 + room
    label = build_lvm.Label(options.label_sector, truth.pv_id, disk.size_bytes, truth.pe_start, truth.areas,
                            options.ext_version, options.label_tail)  # fmt: skip
    disk.poke(512 * options.label_sector, build_lvm.label_sector(label))
    for number, area in enumerate(truth.areas):
        kind = options.second_area if number else "same"
        at = offset if number == 0 else 512 + room
        _put_area(disk, area, at, text if kind == "same" else older[-1], older, kind == "ignored", options.precommitted)
    return truth._replace(text_offset=offset, text_length=len(text))


def _put_area(
    disk: SparseDisk, area: Range, offset: int, text: bytes, older: Sequence[bytes], ignored: bool, precommitted: bool
) -> None:
    build_lvm.put_text(disk, area, offset, text)
    wrapped = max(0, offset + len(text) - area.length)
    at = offset
    for stale in reversed(older):
        at -= build_lvm.ring_size(len(stale))
        if at >= 512 + build_lvm.ring_size(wrapped):
            build_lvm.put_text(disk, area, at, stale)
    slots = [build_lvm.raw_locn(offset, text, build_lvm.IGNORED if ignored else 0)]
    if precommitted:
        slots.append(build_lvm.raw_locn(offset + build_lvm.ring_size(len(text)), text))
    disk.poke(area.offset, build_lvm.mda_header(area, slots))


def _text(disk: SparseDisk, truth: Truth, options: Options, seqno: int) -> bytes:
    lvs = tuple(
        LvText(v.name, v.lv_id, v.writable, v.tags, v.segments, _CREATED + number)
        for number, v in enumerate(truth.volumes)
    )
    vg = VgText(truth.vg_name, truth.vg_id, seqno, truth.extent_size // 512, truth.pv_id, disk.size_bytes // 512,
                truth.pe_start // 512, truth.pe_count, lvs, options.style, options.description)  # fmt: skip
    text = build_lvm.vg_text(vg)
    if options.edit_text:
        text = options.edit_text(text.decode("utf-8")).encode("utf-8")
    return text


# -- LUNs that tests often want -------------------------------------------------------------------------------------


def one_vhd(**options: Any) -> BuiltSr:
    """One VDI on its LUN: a dynamic VHD."""
    return build_sr([vhd("disk", label="root disk", blocks=2)], **options)


def five_deep_with_raw_root(bat_entries: int = SM_BAT_ENTRIES, **options: Any) -> BuiltSr:
    """A raw base, four VHDs above it, a snapshot beside the leaf; labels in MGT."""
    table: Dict[str, Any] = {"bat_entries": bat_entries}
    return build_sr(
        [
            raw("root", hidden=True, extents=2),
            vhd("base1", "root", hidden=True, **table),
            vhd("base2", "base1", hidden=True, **table),
            vhd("base3", "base2", hidden=True, **table),
            vhd("disk", "base3", **table),
            vhd("snapshot", "base3", snapshot_of="disk", label="disk at noon", **table),
        ],
        **options,
    )


def fragmented_locators(**options: Any) -> BuiltSr:
    """VHDs whose locators lie in another segment than their headers, which lies before it on the disk, and more."""
    return build_sr(
        [
            vhd("base", hidden=True, segments=((1, 9), (2, 3)), blocks=1),
            vhd("disk", "base", segments=((1, 6), (1, 1), (1, 13)), blocks=2),
            raw("data", segments=((1, 15), (1, 0))),
        ],
        mgt_segments=((1, 11),),
        **options,
    )


def two_metadata_areas(second_area: str = "same", **options: Any) -> BuiltSr:
    """A PV with a second metadata area at the end of the disk."""
    options.setdefault("area", AREA_DEFAULT)
    return build_sr(_small_tree(), second_area=second_area, **options)


def wrapped_text(before_the_end: int = 1024, **options: Any) -> BuiltSr:
    """The committed text begins `before_the_end` bytes before the end of the ring and goes on at its start."""
    area = options.setdefault("area", AREA_DEFAULT)
    return build_sr(_small_tree(), text_offset=area.length - before_the_end, **options)


def many_vdis(count: int, chained: bool = False, **options: Any) -> BuiltSr:
    """`count` small VHDs; `chained`: each third one is a hidden base of the two after it."""
    volumes: List[Volume] = []
    for number in range(count):
        key, base = f"disk{number}", f"disk{number - number % 3}"
        hidden = chained and key == base and number + 1 < count
        parent = base if chained and key != base else ""
        volumes.append(vhd(key, parent, hidden=hidden, blocks=0, bat_entries=SMALL_BAT))
    return build_sr(volumes, **options)


def qcow2_chain(**options: Any) -> BuiltSr:
    """QCOW2 images: a hidden base with sm's extension, a child of it, a child of a raw base, and one alone."""
    return build_sr(
        [
            qcow2("base", hidden=True),
            qcow2("disk", "base", vate=0),
            raw("rawbase", hidden=True),
            qcow2("overraw", "rawbase"),
            qcow2("alone"),
        ],
        **options,
    )


def four_k(**options: Any) -> BuiltSr:
    """A disk with blocks of 4096 bytes."""
    return build_sr(_small_tree(), block_size=4096, **options)


def labels(mgt_bug: str = "", **options: Any) -> BuiltSr:
    """Labels of every kind, deleted records, references that lead nowhere, special VDIs."""
    gone = "0a0b0c0d-0000-4000-8000-00000000000{}"
    described: Dict[str, Dict[str, Any]] = {
        "plain": {"description": "d"},
        "markup": {"label": "a <b> & c &amp; </vdi>", "description": "<uuid>no</uuid>"},
        "unicode": {"label": "Größe 漢字 \U0001f600", "description": "naïve"},
        "longest": {"label": "é" * 120 + "<&>" * 40, "description": "&" * 300},
        "cut": {"label": "x" * 219 + "&", "description": "y" * 300},
        "exact": {"label": "z" * 445},
        "empty": {"label": ""},
        "snapshot": {"snapshot_of": "plain"},
        "foreign": {"snapshot_of": "OpaqueRef:8a3b1f0e-1111-4222-8333-944445555666"},
        "orphan": {"snapshot_of": gone.format(1)},
        "suspend": {"vdi_type": "suspend"},
        "metadata": {"vdi_type": "metadata"},
        "unlisted": {"in_mgt": False},
    }
    records = (
        Record(gone.format(2), "dummy vdi for space check", deleted=True),
        Record(gone.format(3), "gone", snapshot_of="plain", deleted=True),
    )
    options.setdefault("sr_label", "SR <&> é")
    volumes = [vhd(key, bat_entries=SMALL_BAT, **more) for key, more in described.items()]
    return build_sr(volumes, mgt_bug=mgt_bug, extra_records=records, **options)


def everything(**options: Any) -> BuiltSr:
    """At least one of each kind of volume that a resignature carries over."""
    return build_sr(
        [
            vhd("base", hidden=True),
            vhd("disk", "base"),
            vhd("snapshot", "base", snapshot_of="disk"),
            vhd("gone", "base", old=True, bat_entries=SMALL_BAT),
            raw("data"),
            raw("rawbase", hidden=True, tags=("hidden", "other-tag")),
            vhd("overraw", "rawbase", bat_entries=SMALL_BAT),
            qcow2("qbase", hidden=True),
            qcow2("qdisk", "qbase"),
            cbtlog("disk", parent="snapshot"),
            cbtlog("snapshot", child="disk", parent="0a0b0c0d-0000-4000-8000-000000000001", consistent=0),
            journal("coalesce", "disk"),
            journal("relink", "snapshot"),
            journal("zero", "data", "4194304"),
        ],
        extra_records=(Record("0a0b0c0d-0000-4000-8000-000000000002", "dummy vdi for space check", deleted=True),),
        **options,
    )


def _small_tree() -> List[Volume]:
    """A base, its leaf and its snapshot, and a raw volume; small."""
    return [
        vhd("base", hidden=True, bat_entries=SMALL_BAT),
        vhd("disk", "base", bat_entries=SMALL_BAT),
        vhd("snapshot", "base", snapshot_of="disk", bat_entries=SMALL_BAT),
        raw("data"),
    ]
