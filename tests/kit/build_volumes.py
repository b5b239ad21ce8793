# SPDX-License-Identifier: LGPL-2.1-only
"""Contents of logical volumes for the builder: VHD, QCOW2, CBT log, journal, MGT. From docs/formats alone."""

import hashlib
import struct
import uuid
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple
from xml.sax.saxutils import escape

from relvmoiscsi.device import Range, align_up

MIB = 1 << 20
BLOCK = 2 * MIB
BLOCK_SECTORS = BLOCK // 512
SM_BAT_ENTRIES = 1048576  #: sm preallocates metadata for 2 TiB
_TIMESTAMP = 0x3293A418


class Content:
    """Bytes of an LV, and which of them are identities and which are the guest's. Offsets from the start of the LV."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pieces: List[Tuple[int, bytes]] = []
        self.identities: List[Range] = []
        self.guest: List[Range] = []

    def put(self, offset: int, data: bytes) -> None:
        assert offset >= 0 and offset + len(data) <= self.size, f"{len(data)} bytes at {offset} do not fit"
        self.pieces.append((offset, data))

    def put_identity(self, offset: int, data: bytes, length: int = 0) -> None:
        """Put bytes that a resignature changes; the field is `length` bytes long, or as long as the bytes."""
        self.put(offset, data.ljust(length, b"\0"))
        self.identities.append(Range(offset, max(length, len(data))))

    def put_guest(self, offset: int, length: int, seed: str) -> None:
        self.put(offset, noise(length, f"{seed} at {offset}"))
        self.guest.append(Range(offset, length))


def noise(length: int, seed: str) -> bytes:
    """Bytes that look random and are always the same for the same seed."""
    pieces: List[bytes] = []
    while len(pieces) * 32 < length:
        pieces.append(hashlib.sha256(f"{seed} {len(pieces)}".encode()).digest())
    return b"".join(pieces)[:length]


# -- raw ------------------------------------------------------------------------------------------------------------


def raw_content(size: int, seed: str, writes: Sequence[Tuple[int, str]] = ()) -> Content:
    """Guest data at the start, in the middle, at the very end; where a VHD would have its structures, too.

    Or what `writes` says: (guest sector, seed).
    """
    content = Content(size)
    for sector, owner in writes:
        content.put(512 * sector, guest_sector(owner, sector))
        content.guest.append(Range(512 * sector, 512))
    if writes:
        return content
    for offset in sorted({0, 4096, size // 2, size - 4096}):
        content.put_guest(offset, 1024, seed)
    content.put_guest(size - 512, 512, seed)
    return content


# -- VHD ------------------------------------------------------------------------------------------------------------


class Parent(NamedTuple):
    """What a differencing VHD says of its parent."""

    vg_name: str
    lv_name: str
    footer_uuid: Optional[uuid.UUID]  #: None: the parent is raw

    @property
    def dm_name(self) -> str:
        return "{}-{}".format(self.vg_name.replace("-", "--"), self.lv_name.replace("-", "--"))


class VhdSpec(NamedTuple):
    footer_uuid: uuid.UUID
    virtual_size: int
    bat_entries: int
    blocks: int  #: allocated ones
    hidden: bool
    parent: Optional[Parent]
    poisoned: bool
    seed: str
    writes: Tuple[Tuple[int, str], ...] = ()  #: (guest sector, seed of what it holds); empty: `blocks` of noise
    end: str = ""  #: what the last sector holds, one of END_FOOTERS
    located: Optional[Parent] = None  #: what the locators name, where the header names another parent
    dead_footer: int = 0  #: where the LV once ended: a footer of then lies before this byte

    @property
    def block_numbers(self) -> Tuple[int, ...]:
        """The guest's blocks that have a place."""
        if not self.writes:
            return tuple(range(self.blocks))
        return tuple(sorted({sector // BLOCK_SECTORS for sector, _ in self.writes}))


#: What the last sector of a VHD may hold: the right footer; what a running tapdisk, a grown LV or an earlier owner of
#: the extent leaves there; a footer that differs from its copy, because a resize or a change of the hidden flag was
#: cut.
END_FOOTERS = (
    "",
    "killed",
    "zero",
    "noise",
    "bad checksum",
    "another VHD",
    "poisoned",
    "resized",
    "hidden",
    "unhidden",
)


class VhdPlaces(NamedTuple):
    """Where the parts of a VHD lie, in bytes from the start of the LV."""

    table: int
    batmap_header: int
    batmap: int
    locators: Tuple[int, ...]
    blocks: Tuple[int, ...]  #: of their bitmaps
    end: int  #: first byte that nothing uses


def vhd_places(bat_entries: int, differencing: bool, blocks: int) -> VhdPlaces:
    table = 1536
    batmap_header = table + align_up(4 * bat_entries, 512)
    batmap = batmap_header + 512
    end = batmap + align_up(bat_entries, 4096) // 8
    locators = tuple(range(end, end + 3 * 512, 512)) if differencing else ()
    end += 512 * len(locators)
    bitmaps: List[int] = []
    for _ in range(blocks):
        data = align_up(end + 512, 4096)
        bitmaps.append(data - 512)
        end = data + BLOCK
    return VhdPlaces(table, batmap_header, batmap, locators, tuple(bitmaps), end)


def vhd_content(size: int, spec: VhdSpec) -> Content:
    places = vhd_places(spec.bat_entries, spec.parent is not None, len(spec.block_numbers))
    assert places.end + 512 <= size, "the LV is too small for its VHD"
    content = Content(size)
    content.put(0, _vhd_footer(spec))
    content.put(512, _vhd_header(spec, places))
    if spec.parent:
        content.identities += [Range(512 + 36, 4), Range(512 + 64, 512)]
        for offset, (_, data) in zip(places.locators, _locator_texts(spec.located or spec.parent)):
            content.put_identity(offset, data, 512)
    _put_tables(content, spec, places)
    for number, bitmap in zip(spec.block_numbers, places.blocks):
        if spec.writes:
            _put_writes(content, bitmap, number, spec.writes)
        else:
            _put_block(content, bitmap, f"{spec.seed} block {number}")
    if spec.dead_footer:
        assert places.end <= spec.dead_footer - 512 < size - 512, "the old end lies inside the VHD"
        content.put(spec.dead_footer - 512, _vhd_footer(spec))
    content.put(size - 512, _end_footer(spec))
    return content


def _end_footer(spec: VhdSpec) -> bytes:
    """The last sector, by `spec.end`."""
    other = spec._replace(footer_uuid=uuid.UUID(bytes=noise(16, spec.seed + " former owner")), parent=None)
    found = {
        "": spec,
        "another VHD": other._replace(virtual_size=spec.virtual_size // 2, hidden=False),
        "poisoned": spec._replace(poisoned=True),
        "resized": spec._replace(virtual_size=spec.virtual_size + BLOCK),
        "hidden": spec._replace(hidden=True),
        "unhidden": spec._replace(hidden=False),
    }.get(spec.end)
    if found:
        return _vhd_footer(found)
    flipped = bytearray(_vhd_footer(spec))
    flipped[200] ^= 1
    fillers = {"killed": b"\xc7" * 512, "zero": bytes(512), "noise": noise(512, spec.seed + " end")}
    return bytes(flipped) if spec.end == "bad checksum" else fillers[spec.end]


def guest_sector(seed: str, sector: int) -> bytes:
    """What `writes` put into a sector of the guest's disk."""
    return noise(512, f"{seed} sector {sector}")


def _put_writes(content: Content, bitmap: int, block: int, writes: Sequence[Tuple[int, str]]) -> None:
    bits = bytearray(512)
    for sector, seed in writes:
        number, within = divmod(sector, BLOCK_SECTORS)
        if number == block:
            bits[within // 8] |= 0x80 >> within % 8
            at = bitmap + 512 + 512 * within
            content.put(at, guest_sector(seed, sector))
            content.guest.append(Range(at, 512))
    content.put(bitmap, bytes(bits))


def _vhd_footer(spec: VhdSpec) -> bytes:
    cookie = b"v_poison" if spec.poisoned else b"conectix"
    kind = 4 if spec.parent else 3
    head = struct.pack(">8sIIQI4sIIQQII", cookie, 2, 0x00010000, 512, _TIMESTAMP, b"tap\0", 0x00010003, 0,
                       spec.virtual_size, spec.virtual_size, _geometry(spec.virtual_size), kind)  # fmt: skip
    tail = spec.footer_uuid.bytes + struct.pack(">BB426x", 0, int(spec.hidden))
    return head + struct.pack(">I", _vhd_sum(head + tail)) + tail


def _vhd_header(spec: VhdSpec, places: VhdPlaces) -> bytes:
    parent = spec.parent
    head = struct.pack(">8sQQIII", b"cxsparse", 2**64 - 1, places.table, 0x00010000, spec.bat_entries, BLOCK)
    prt_uuid = parent.footer_uuid.bytes if parent and parent.footer_uuid else bytes(16)
    tail = prt_uuid + struct.pack(">II", _TIMESTAMP - 9 if parent else 0, 0)
    tail += (parent.dm_name.encode("utf-16-be") if parent else b"").ljust(512, b"\0")
    entries = b""
    if parent:
        for offset, (code, data) in zip(places.locators, _locator_texts(spec.located or parent)):
            entries += struct.pack(">4sIIIQ", code, 512, len(data), 0, offset)
    tail += entries.ljust(192, b"\0") + bytes(256)
    return head + struct.pack(">I", _vhd_sum(head + tail)) + tail


def _locator_texts(parent: Parent) -> List[Tuple[bytes, bytes]]:
    relative = (".\\" + parent.dm_name).encode("utf-16-le")
    return [(b"MacX", b"file://./" + parent.dm_name.encode("ascii")), (b"W2ku", relative), (b"W2ru", relative)]


def _put_tables(content: Content, spec: VhdSpec, places: VhdPlaces) -> None:
    table = bytearray(b"\xff" * (places.batmap_header - places.table))
    for index, bitmap in zip(spec.block_numbers, places.blocks):
        struct.pack_into(">I", table, 4 * index, bitmap // 512)
    content.put(places.table, bytes(table))
    sectors = align_up(spec.bat_entries, 4096) // 4096
    # the map is all zero, so its checksum is the complement of 0
    header = struct.pack(">8sQIII", b"tdbatmap", places.batmap, sectors, 0x00010002, 0xFFFFFFFF)
    content.put(places.batmap_header, header.ljust(512, b"\0"))


def _put_block(content: Content, bitmap: int, seed: str) -> None:
    used = (0, 1, 100, 4095)
    bits = bytearray(512)
    for sector in used:
        bits[sector // 8] |= 0x80 >> sector % 8
        content.put_guest(bitmap + 512 + 512 * sector, 512, seed)
    content.put(bitmap, bytes(bits))


def _vhd_sum(data: bytes) -> int:
    return ~sum(data) & 0xFFFFFFFF


def _geometry(virtual_size: int) -> int:
    """Cylinders, heads and sectors by the algorithm of the VHD specification."""
    sectors = min(virtual_size // 512, 65535 * 16 * 255)
    if sectors > 65535 * 16 * 63:
        per_track, heads = 255, 16
    else:
        per_track = 17
        heads = max(4, (sectors // per_track + 1023) // 1024)
        if sectors // per_track >= heads * 1024 or heads > 16:
            per_track, heads = 31, 16
        if sectors // per_track >= heads * 1024:
            per_track, heads = 63, 16
    return (sectors // per_track // heads) << 16 | heads << 8 | per_track


# -- QCOW2 ----------------------------------------------------------------------------------------------------------


class Qcow2Spec(NamedTuple):
    virtual_size: int
    backing: str  #: empty: none
    backing_format: str
    vate: Optional[int]  #: sm's hidden flag; None: the extension is not there
    seed: str


_FEATURES = ((0, 0, b"dirty bit"), (0, 1, b"corrupt bit"), (1, 0, b"lazy refcounts"))
_FEATURE_TABLE = b"".join(struct.pack(">BB46s", kind, bit, name) for kind, bit, name in _FEATURES)


def qcow2_head(spec: Qcow2Spec, cluster_bits: int = 16) -> Tuple[bytes, bytes]:
    """The header of version 3 with its extensions, and the path of the backing file that follows it.

    Clusters: header, table of counts, counts, then the first table.
    """
    cluster, backing = 1 << cluster_bits, spec.backing.encode("ascii")
    tables = -(-spec.virtual_size // (cluster * (cluster // 8)))
    extensions = _extension(0xE2792ACA, spec.backing_format.encode("ascii")) if backing else b""
    extensions += _extension(0x6803F857, _FEATURE_TABLE)
    extensions += _extension(0x76617465, bytes([spec.vate]) + bytes(7)) if spec.vate is not None else b""
    extensions += bytes(8)
    head = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 3, 112 + len(extensions) if backing else 0, len(backing),
                       cluster_bits, spec.virtual_size, 0, tables, 3 * cluster, cluster, 1, 0, 0)  # fmt: skip
    return head + struct.pack(">QQQIIB7x", 0, 0, 0, 4, 112, 0) + extensions, backing


def _extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", kind, len(data)) + data.ljust(align_up(len(data), 8), b"\0")


def qcow2_content(size: int, spec: Qcow2Spec) -> Content:
    """Clusters of 64 KiB: header, refcount table, refcount block, L1, L2 and one cluster of guest data."""
    cluster = 65536
    content = Content(size)
    head, backing = qcow2_head(spec)
    content.put(0, head)
    if backing:
        content.put_identity(len(head), backing)
    content.put(cluster, struct.pack(">Q", 2 * cluster))
    content.put(2 * cluster, struct.pack(">6H", *[1] * 6))
    content.put(3 * cluster, struct.pack(">Q", 4 * cluster | 1 << 63))
    content.put(4 * cluster, struct.pack(">Q", 5 * cluster | 1 << 63))
    content.put_guest(5 * cluster, 4096, spec.seed)
    content.put_guest(6 * cluster - 512, 512, spec.seed)
    return content


# -- CBT logs and journals ------------------------------------------------------------------------------------------


def cbt_content(size: int, parent: str, child: str, consistent: int, disk_size: int, seed: str) -> Content:
    content = Content(size)
    content.put_identity(0, b"".join(uuid.UUID(link).bytes if link else bytes(16) for link in (parent, child)))
    # the padding after `consistent` is what happened to be in memory
    content.put(32, struct.pack("<i4sQ", consistent, noise(4, seed), disk_size))
    content.put(48, noise(-(-disk_size // 65536 // 8), seed))
    return content


def journal_content(size: int, value: str) -> Content:
    """Long values stand in the first block, with their length; space padded."""
    content = Content(size)
    if value:
        content.put_identity(0, f"{len(value)} {value}".ljust(512).encode("ascii"))
    return content


def vhd_journal_content(size: int, footer_uuid: uuid.UUID) -> Content:
    content = Content(size)
    head = b"vjournal" + footer_uuid.bytes + struct.pack(">QIIQQ", size - 512, 0, 0, 0, 512)
    content.put(0, head.ljust(512, b"\0"))
    return content


# -- MGT ------------------------------------------------------------------------------------------------------------

MGT_HEAD = 2048
MGT_RECORD = 1024
MGT_CAPACITY = 4094


class Record(NamedTuple):
    """A VDI record of MGT. Labels are plain text; they are escaped and cut as sm does it."""

    uuid: str
    name_label: str = ""
    name_description: str = ""
    snapshot_of: str = ""
    vdi_type: str = "vhd"
    type: str = "user"
    is_a_snapshot: bool = False
    snapshot_time: str = ""
    read_only: bool = False
    managed: bool = True
    metadata_of_pool: str = ""
    deleted: bool = False
    with_offset: bool = False  #: the `offset` tag of a record that was rewritten


class MgtSpec(NamedTuple):
    sr_uuid: str
    name_label: str
    name_description: str
    allocation: str
    records: Tuple[Record, ...]
    bug: str  #: "", "shifted" or "damaged": records as sm 3.0.0 to 3.0.12 wrote and rewrote them


def mgt_content(size: int, spec: MgtSpec) -> Content:
    assert len(spec.records) <= MGT_CAPACITY, f"MGT does not take {len(spec.records)} records"
    content = Content(size)
    length = MGT_HEAD + MGT_RECORD * len(spec.records)
    sectors = [
        f"XSSM:{length:<10}:1:2",
        f'<?xml version="1.0" ?><uuid>{spec.sr_uuid}</uuid><allocation>{spec.allocation}</allocation>',
        f"<name_label>{_cut(escape(spec.name_label), 487)}</name_label>",
        f"<name_description>{_cut(escape(spec.name_description), 475)}</name_description>",
    ]
    image = bytearray(length + MGT_RECORD)
    image[:MGT_HEAD] = b"".join(text.encode("utf-8").ljust(512) for text in sectors)
    numbered = list(enumerate(spec.records))
    for number, record in reversed(numbered) if spec.bug == "damaged" else numbered:
        start = MGT_HEAD + MGT_RECORD * number
        data = _record_bytes(record, start, bool(spec.bug))
        image[start : start + len(data)] = data
    content.put(0, bytes(image[:size]).rstrip(b"\0"))
    _mark_identities(content, bytes(image), spec)
    return content


def _record_bytes(record: Record, start: int, shifted: bool) -> bytes:
    """Two sectors, space padded. `shifted`: padded in characters and then encoded, so longer than 1024 bytes."""
    sectors = (_record_labels(record), _record_fields(record, start))
    if shifted:
        return "".join(text.ljust(512) for text in sectors).encode("utf-8")
    return b"".join(text.encode("utf-8").ljust(512) for text in sectors)


def _record_labels(record: Record) -> str:
    label, description = escape(record.name_label), escape(record.name_description)
    if len(label.encode("utf-8")) + len(description.encode("utf-8")) > 445:
        label, description = _cut(label, 222), _cut(description, 222)
    template = "<vdi><name_label>{}</name_label><name_description>{}</name_description>"
    return template.format(label, description)


def _cut(text: str, limit: int) -> str:
    """The first `limit` bytes of UTF-8, without half characters; an escape may be cut in two, as sm does."""
    return text.encode("utf-8")[:limit].decode("utf-8", "ignore")


def _record_fields(record: Record, start: int) -> str:
    fields: List[Tuple[str, object]] = [
        ("uuid", record.uuid),
        ("is_a_snapshot", int(record.is_a_snapshot)),
        ("snapshot_of", record.snapshot_of),
        ("snapshot_time", record.snapshot_time),
        ("type", record.type),
        ("vdi_type", record.vdi_type),
        ("read_only", int(record.read_only)),
        ("managed", int(record.managed)),
        ("metadata_of_pool", record.metadata_of_pool),
        ("deleted", int(record.deleted)),
    ]
    if record.with_offset:
        fields.append(("offset", start))
    return "".join(f"<{tag}>{value}</{tag}>" for tag, value in fields) + "</vdi>"


def _mark_identities(content: Content, image: bytes, spec: MgtSpec) -> None:
    """The 36 characters of each UUID in a `uuid` or `snapshot_of` tag."""
    wanted = [("uuid", spec.sr_uuid, 0, MGT_HEAD)]
    for number, record in enumerate(spec.records):
        start = MGT_HEAD + MGT_RECORD * number
        wanted.append(("uuid", record.uuid, start, start + MGT_RECORD))
        if len(record.snapshot_of) == 36 and record.snapshot_of.count("-") == 4:
            wanted.append(("snapshot_of", record.snapshot_of, start, start + MGT_RECORD))
    for tag, value, start, end in wanted:
        at = image.find(f"<{tag}>{value}</{tag}>".encode("ascii"), start, end)
        assert at >= 0, f"{tag} {value} was overwritten"
        content.identities.append(Range(at + len(tag) + 2, 36))


def uuids_by_key(keys: Sequence[str], seed: str) -> Dict[str, str]:
    """A version 4 UUID for each key, always the same for the same seed."""
    return {key: str(uuid.UUID(bytes=noise(16, f"uuid {seed} {key}"), version=4)) for key in keys}
