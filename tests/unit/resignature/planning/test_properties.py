# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever is on a LUN: it is resignatured correctly, or refused with one of our own errors and left as it is.

Two ways to make a LUN: describe any SR that SM could have made, or take one and spoil it. Spoiling at random hardly
gets past a checksum, so most mutations change a field of a structure and seal it again.

`RELVMOISCSI_EXAMPLES` multiplies the number of examples, for a long search.
"""

import difflib
import os
import re
import struct
from functools import lru_cache
from typing import NamedTuple

from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from kit import build_lvm, reader
from kit.build_volumes import MIB, Record, noise
from kit.builder import (
    AREA_10M,
    AREA_DEFAULT,
    SMALL_BAT,
    build_sr,
    cbtlog,
    journal,
    qcow2,
    raw,
    vhd,
)
from kit.examples import examples
from kit.outcome import Outcome, assert_same_sr_under_new_ids, entropy_of
from kit.spoiled import LABEL, Spoiled
from relvmoiscsi import engine
from relvmoiscsi.errors import DeviceError, RelvmoiscsiError

EXAMPLES = int(os.environ.get("RELVMOISCSI_EXAMPLES", "1"))
SEARCH = {"deadline": None, "suppress_health_check": list(HealthCheck)}

#: far less than a hostile size asks for: a mark may claim a journal of 64 MiB, and each look reads that
MOST_BYTES_READ = 256 << 20


# --- any SR that SM could have made

GONE = "0a0b0c0d-0000-4000-8000-000000000001"
LABELS = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Cn")), max_size=200)
SHORT_LABELS = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Cn")), max_size=12)
EXTENTS = 4  #: of 1 MiB, for every volume


class SrSpec(NamedTuple):
    volumes: tuple
    options: dict

    def build(self):
        return build_sr(self.volumes, **self.options)


@st.composite
def sr_specs(draw):
    bug = draw(st.sampled_from(["", "", "", "shifted", "damaged"]))
    disks = draw(_disks(SHORT_LABELS if bug else LABELS))
    volumes = disks + draw(_logs_and_journals([disk.key for disk in disks]))
    places = draw(st.permutations(range(EXTENTS * len(volumes) + 1)))
    volumes = [
        volume._replace(segments=tuple((1, pe) for pe in places[EXTENTS * n : EXTENTS * (n + 1)]))
        for n, volume in enumerate(volumes)
    ]
    return SrSpec(tuple(volumes), dict(draw(_options()), mgt_bug=bug, mgt_segments=((1, places[-1]),)))


@st.composite
def _disks(draw, labels):
    disks = []
    for number in range(draw(st.integers(0, 5))):
        make = draw(st.sampled_from([vhd, raw, qcow2]))
        parents = [disk.key for disk in disks if disk.hidden and disk.kind in (make.__name__, "raw")]
        more = {} if make is raw else {"parent": draw(st.sampled_from(["", *parents]))}
        if make is vhd:
            more.update(bat_entries=SMALL_BAT, blocks=draw(st.integers(0, 1)))
        keys = [disk.key for disk in disks]
        disk = make(
            f"disk{number}",
            hidden=draw(st.booleans()),
            label=draw(labels),
            description=draw(labels),
            snapshot_of=draw(st.sampled_from(["", "", GONE, "OpaqueRef:NULL", *keys])),
            in_mgt=draw(st.booleans()),
            **more,
        )
        disks.append(disk)
    return disks


@st.composite
def _logs_and_journals(draw, keys):
    if not keys:
        return []
    links = st.sampled_from(["", GONE, *keys])
    logged = draw(st.lists(st.sampled_from(keys), unique=True, max_size=3))
    found = [cbtlog(key, parent=draw(links), child=draw(links), consistent=draw(st.integers(0, 1))) for key in logged]
    for kind, value in draw(st.lists(st.sampled_from([("coalesce", "1"), ("relink", "1"), ("zero", "4194304")]))):
        if kind not in [one.key.split()[0] for one in found]:
            found.append(journal(kind, draw(st.sampled_from(keys)), value))
    return found


@st.composite
def _options(draw):
    area = draw(st.sampled_from([AREA_DEFAULT, AREA_10M]))
    return {
        "seed": draw(st.integers(0, 3)),
        "area": area,
        "extent_size": MIB,
        "block_size": draw(st.sampled_from([512, 512, 4096])),
        "text_offset": draw(st.sampled_from([0, 512, 4096, area.length // 2, area.length - 512, area.length - 8192])),
        "stale_texts": draw(st.integers(0, 3)),
        "style": draw(st.sampled_from(["2.02", "2.03"])),
        "ext_version": draw(st.integers(0, 2)),
        "label_sector": draw(st.integers(0, 3)),
        "second_area": draw(st.sampled_from(["", "", "same", "ignored"])),
        "seqno": draw(st.sampled_from([1, 9, 99, 12345])),
        "mgt_fill": draw(st.integers(0, 9)),
        "sr_label": draw(LABELS),
    }


@settings(max_examples=examples(30 * EXAMPLES), **SEARCH)
@given(sr_specs())
def test_any_sr_becomes_the_same_sr_under_new_identities(spec):
    # an ignored area holds an older text, which must exist
    assume(spec.options["stale_texts"] or spec.options["second_area"] != "ignored")
    built = spec.build()
    note(repr(spec))

    outcome = _resignatured(built.disk)

    assert_same_sr_under_new_ids(outcome)
    assert reader.same_guest(outcome.after, built.disk, built.truth.layout)


def _resignatured(before):
    after = before.copy()
    prepared = engine.prepare(after, entropy_of("ids"))
    assert after == before
    result = engine.resignature(after, prepared)
    return Outcome(before, after, prepared.plan.run.ids, result)


# --- a LUN that was spoiled

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 255, 511, 512, 513, 1023, 1024, 1536, 4095, 4096, 4097, 8192]),
    st.sampled_from([1 << 20, 1 << 24, 1 << 26, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40]),
    st.sampled_from([(1 << 63) - 1, 1 << 63, (1 << 64) - 512, (1 << 64) - 1]),
    st.integers(0, 1 << 16),
)


@lru_cache(maxsize=None)
def _victims():
    """Small LUNs with everything on them: all kinds of volumes, one metadata area and two, fragmented."""
    table = {"bat_entries": SMALL_BAT, "blocks": 1}
    volumes = [
        raw("rawbase", hidden=True, extents=2),
        vhd("base", "rawbase", hidden=True, **table),
        vhd("disk", "base", segments=((1, 40), (3, 30)), **table),
        vhd("gone", "base", old=True, **table),
        qcow2("qbase", hidden=True),
        qcow2("qdisk", "qbase", vate=0),
        cbtlog("disk", parent=GONE),
        journal("coalesce", "disk"),
    ]
    records = (Record("0a0b0c0d-0000-4000-8000-000000000002", "dummy", deleted=True),)
    options = {"extent_size": MIB, "extra_records": records, "size_bytes": 64 * MIB}
    return (
        build_sr(volumes, area=AREA_DEFAULT, **options),
        build_sr(volumes, area=AREA_DEFAULT, second_area="same", block_size=4096, **options),
    )


class Victim(Spoiled):
    """A copy of a LUN to spoil; what is spoiled is noted."""

    def __init__(self, number):
        super().__init__(_victims()[number])

    def poke(self, place, data, *values):
        note(f"{place}: {(values or data[:48])!r}")
        return super().poke(place, data, *values)

    def patch(self, place, fields):
        """Fields are (offset from the place, format, value); values are cut to what fits."""
        for offset, form, value in fields:
            fits = value if form.endswith("s") else value & ((1 << 8 * struct.calcsize(form)) - 1)
            self.poke(_moved(place, offset), form, fits)

    def put_text(self, text):
        """Another committed text, in all areas."""
        lines = (data.decode("latin-1").split("\n") for data in (self.text(), text))
        note("\n".join(line[:120] for line in difflib.unified_diff(*lines, n=1, lineterm="")))
        for area in self.truth.areas:
            data = text[: area.length - 512]
            offset = min(self.truth.text_offset, area.length - 512)
            build_lvm.put_text(self.disk, area, offset, data)
            self.disk.poke(area.offset, build_lvm.mda_header(area, [build_lvm.raw_locn(offset, data)]))

    def text(self):
        return self.disk.peek(self.truth.areas[0].offset + self.truth.text_offset, self.truth.text_length)


def _moved(place, offset):
    return place + offset if isinstance(place, int) else (place[0], place[1] + offset)


def _fields(most, *kinds):
    """So many fields, at most, of these: (format, offsets); "8s" is any bytes."""
    found = [
        st.tuples(
            st.sampled_from(offsets), st.just(form), st.binary(max_size=int(form[:-1])) if form[-1] == "s" else NUMBERS
        )
        for form, offsets in kinds
    ]
    return st.lists(st.one_of(*found), min_size=1, max_size=most)


LABEL_FIELDS = _fields(
    4,
    ("<Q", [8, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 400, 408]),
    ("<I", [20, 136, 140, 352]),
    ("8s", [0, 24, 352]),
    ("32s", [32]),
)
AREA_FIELDS = _fields(3, ("<Q", [24, 32, 40, 48, 64, 72, 88]), ("<I", [20, 56, 60, 80]))
FOOTER_FIELDS = _fields(2, (">Q", [16, 40, 48]), (">I", [12, 32, 60]), (">B", [84, 85]))
#: the room of a locator (580, 604) is left alone: the judge takes it at its word
HEADER_FIELDS = _fields(
    3,
    (">Q", [8, 16, 592, 616, 640, 664]),
    (">I", [24, 28, 32, 56, 60, 576, 584, 588, 600, 608, 624, 648, 768]),
    ("16s", [40]),
    ("20s", [64]),
)
QCOW2_FIELDS = _fields(
    3,
    (">Q", [8, 24, 40, 48, 64, 72, 80, 88]),
    (">I", [4, 16, 20, 32, 36, 56, 60, 96, 100, 112, 116, 120, 128, 136, 140]),
)


def _regions(truth):
    """Where structures lie: (place, length)."""
    found = [(0, 2048), (truth.text_offset + truth.areas[0].offset, truth.text_length)]
    found += [(area.offset, 512) for area in truth.areas]
    for volume in truth.volumes:
        found += [((volume.key, 0), min(4096, volume.size)), ((volume.key, volume.size - 512), 512)]
        found += [((volume.key, part.offset), part.length) for part in volume.identities]
    return found


def spoil_bytes(draw, victim):
    """Any bytes of any structure, nothing sealed."""
    place, length = draw(st.sampled_from(_regions(victim.truth)))
    at = draw(st.integers(0, length - 1))
    victim.poke(_moved(place, at), draw(st.binary(min_size=1, max_size=min(16, length - at))))


def spoil_sector(draw, victim):
    """A sector that was lost, torn, or written to the wrong place."""
    regions = st.sampled_from(_regions(victim.truth))
    (place, length), (other, other_length) = draw(regions), draw(regions)
    at = 512 * draw(st.integers(0, (length - 1) // 512))
    from_at = 512 * draw(st.integers(0, (other_length - 1) // 512))
    room = min(512, length - at)
    data = draw(st.sampled_from([bytes(512), b"\xff" * 512, noise(512, "sector"), victim.peek(other, other_length)]))
    victim.poke(_moved(place, at), data[from_at : from_at + room] or data[:room])


def spoil_label(draw, victim):
    if draw(st.sampled_from([False] * 4 + [True])):
        victim.poke(LABEL + 104, struct.pack("<QQ", *victim.truth.areas[0]) * 2)
    victim.patch(LABEL, draw(LABEL_FIELDS))
    victim.sealed_label()


def spoil_area(draw, victim):
    number = draw(st.integers(0, len(victim.truth.areas) - 1))
    victim.patch(victim.truth.areas[number].offset, draw(AREA_FIELDS))
    victim.sealed_area(number)


WORDS = [b"0", b"1", b"-1", b"4294967295", b"18446744073709551616", b"9" * 5000, b"0x" + b"f" * 6000, b"1e999", b"nan"]
WORDS += [b"1_0", b"08", b"0b1", b'""', b'"pv0"', b'"pv1"', b"[]", b"[", b"]", b"{", b"}", b"=", b",", b"#", b'"', b"'"]
WORDS += [b'"READ"', b'"EXPORTED"', b'["WRITE", 7]', b"x { }", b"x = 1", b"\xa0", b"\x85", b"\0", b"\\", b"a" * 200]


def spoil_text(draw, victim):
    """Tokens and lines of the metadata text, sealed."""
    text = victim.text()
    for _ in range(draw(st.integers(1, 3))):
        lines = text.split(b"\n")
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["value", "value", "key", "delete", "repeat", "insert", "move"]))
        key, equals, _value = lines[at].partition(b" = ")
        if how == "value":
            lines[at] = key + equals + draw(st.sampled_from(WORDS))
        elif how == "key":
            lines[at] = draw(st.sampled_from(WORDS + [b"id", b"status", b"tags"])) + lines[at][len(key) :]
        elif how == "delete":
            del lines[at : at + draw(st.integers(1, 12))]
        elif how == "repeat":
            lines[at:at] = lines[at : at + draw(st.integers(1, 12))]
        elif how == "insert":
            lines.insert(at, draw(st.sampled_from(WORDS)))
        else:
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        text = b"\n".join(lines)
    victim.put_text(text)


def spoil_vhd(draw, victim):
    key = draw(st.sampled_from([volume.key for volume in victim.truth.volumes if volume.kind == "vhd"]))
    if draw(st.booleans()):
        fields = draw(FOOTER_FIELDS)
        victim.patch((key, 0), fields)
        victim.patch((key, victim.truth.volume(key).size - 512), fields)
    else:
        victim.patch((key, 512), draw(HEADER_FIELDS))
    victim.sealed_vhd(key)


def spoil_parent(draw, victim):
    """What a differencing image says of its parent: in its header, in a locator, in a backing file's path."""
    volumes = [volume for volume in victim.truth.volumes if volume.parent and volume.kind in ("vhd", "qcow2")]
    volume = draw(st.sampled_from(volumes))
    part = draw(st.sampled_from([part for part in volume.identities if part.length > 4]))
    other = draw(st.sampled_from(list(victim.truth.uuids.values()) + [GONE, "\0", "é" * 18, "VHD", "x" * 36]))
    old = victim.peek((volume.key, part.offset), part.length)
    for codec in ("utf-16-be" if part.offset == 576 else "utf-16-le", "latin-1"):
        found = draw(st.sampled_from(list(victim.truth.uuids.values())))
        for one, two in ((found, other), (found.replace("-", "--"), other.replace("-", "--"))):
            old = old.replace(one.encode(codec), two.encode(codec, "replace"))
    victim.poke((volume.key, part.offset), old[: part.length])
    if volume.kind == "vhd":
        victim.sealed_vhd(volume.key)


def spoil_qcow2(draw, victim):
    victim.patch((draw(st.sampled_from(["qbase", "qdisk"])), 0), draw(QCOW2_FIELDS))


MGT_WORDS = [b"", b"0", b"1", b"2047", b"4194304", b"9" * 30, b"-1024", b"<", b">", b"&am", b"&lt;", b"&#97;"]
MGT_WORDS += [b"\xff\xfe", b"<uuid>", b"</uuid>", b"<vdi>", b"</vdi>", b"\0", b" " * 40, b"OpaqueRef:NULL", b"XSSM:"]
MGT_WORDS += [b"<initial_allocation>1</initial_allocation>", b"<deleted>1</deleted>", GONE.upper().encode(), b":"]


def spoil_mgt(draw, victim):
    """Pieces of MGT's text exchanged for others; what follows moves, or stays where it is."""
    length = 2048 + 1024 * len(victim.truth.records)
    text = victim.peek(("MGT", 0), length)
    if draw(st.booleans()):
        # the judge renames a UUID wherever it reads it, also in a label; so UUIDs come in only for UUIDs
        uuids = st.sampled_from([uuid.encode() for uuid in [GONE, *victim.truth.uuids.values()]])
        text = text[:2048] + text[2048:].replace(draw(uuids), draw(uuids), draw(st.integers(-1, 1)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.one_of(st.integers(0, 40), st.integers(512, 700), st.integers(2048, length)))
        gone = draw(st.integers(0, 40))
        word = draw(st.sampled_from(MGT_WORDS))
        if draw(st.booleans()):
            gone = len(word)
        text = text[:at] + word + text[at + gone :]
    note(repr(text.rstrip()).replace("  ", ""))
    victim.poke(("MGT", 0), text[:MIB])


def spoil_cbt(draw, victim):
    """Not the flag behind the links: with another one it is no log yet, and what lies there is no identity."""
    victim.poke(("cbtlog of disk", 0), draw(st.binary(min_size=1, max_size=32)))


def spoil_tail(draw, victim):
    """The commit record of a run in the label, which points to a journal that is not there, or to anything else."""
    tail = struct.pack(
        "<8sBBBBI", b"reLVMtag", 1, draw(st.integers(0, 4)), draw(st.integers(0, 3)), 0, draw(NUMBERS) & 0xFFFFFFFF
    )
    tail += noise(16, "run id") + struct.pack("<Q", draw(NUMBERS)) + bytes(24) + noise(32, "digest")
    victim.poke(LABEL + 352, tail).sealed_label()


def spoil_size(draw, victim):
    """The copy was cut: the disk is smaller than it was."""
    blocks = victim.disk.size_bytes // victim.disk.block_size
    # devices that are smaller still: test_refusals.py
    victim.cut(draw(st.one_of(st.integers(16, blocks), st.integers(16, 300))) * victim.disk.block_size)


SPOILERS = [spoil_bytes, spoil_sector, spoil_label, spoil_area, spoil_text, spoil_text, spoil_vhd, spoil_parent]
SPOILERS += [spoil_qcow2, spoil_mgt, spoil_mgt, spoil_cbt, spoil_tail]


@st.composite
def spoiled_luns(draw):
    victim = Victim(draw(st.integers(0, 1)))
    for spoil in draw(st.lists(st.sampled_from(SPOILERS), min_size=1, max_size=2)):
        note(spoil.__name__)
        spoil(draw, victim)
    if draw(st.sampled_from([False] * 9 + [True])):
        spoil_size(draw, victim)
    victim.disk.reset_counters()
    return victim


def _allowed(disk, victim):
    """What may change, whatever was done to the victim: where identities were, and where MGT has them now.

    SM's reader ignores NUL bytes; `reader.layout_of` ends at the first one.
    """
    vg = reader.read_vg(disk)
    found = list(victim.truth.allowed)
    for lv in vg.lvs if vg else ():
        if lv.name == "MGT":
            data = reader.lv_bytes(disk, vg, lv, 0, min(lv.extents * vg.extent_bytes, MIB))
            for match in re.finditer(b"<(?:uuid|snapshot_of)>[ \\0]*([^<]{36})", data):
                found += reader.device_ranges(vg, lv, match.start(1), 36)
    return found


def _was_healed(lun):
    """Header and locators were brought to agree, or a record does not read: then more, or less, than ids changes."""
    return any(volume.named for volume in lun.volumes) or bool(lun.mgt and lun.mgt.unread)


LVM_ID = "[0-9A-Za-z!#]{6}-(?:[0-9A-Za-z!#]{4}-){5}[0-9A-Za-z!#]{6}"


def assert_no_identity_is_left(outcome):
    """What reads as an identity is new; an unreadable record may keep what reads as none."""
    shared = reader.identities(outcome.before) & reader.identities(outcome.after)
    assert [one for one in shared if re.match(reader.UUID + "$", one) or re.match(LVM_ID + "$", one)] == []
    assert engine.inspect(outcome.after).state == engine.RESIGNATURED


@settings(max_examples=examples(90 * EXAMPLES), **SEARCH)
@given(spoiled_luns())
def test_a_spoiled_lun_is_resignatured_correctly_or_refused_and_not_touched(victim):
    disk, before = victim.disk, victim.disk.copy()

    found = engine.inspect(disk)
    try:
        prepared = engine.prepare(disk, entropy_of("ids"))
    except RelvmoiscsiError as refusal:
        assert not isinstance(refusal, DeviceError)
        assert "Nothing was written." in str(refusal)
        assert found.lun is None or found.problem is None
        prepared = None

    assert disk == before and (disk.writes, disk.flushes) == (0, 0)
    assert disk.bytes_read < MOST_BYTES_READ
    if isinstance(prepared, engine.AlreadyDone):
        assert found.state == engine.RESIGNATURED
    elif prepared is not None:
        assert found.state == engine.CLEAN
        engine.resignature(disk, prepared)
        outcome = Outcome(before, disk, prepared.plan.run.ids, None)
        assume(all(log.consistent in (0, 1) for log in outcome.sr_before.cbts))  # with another flag it is no log yet
        if _was_healed(prepared.lun):
            assert_no_identity_is_left(outcome)
        else:
            assert_same_sr_under_new_ids(outcome, _allowed(before, victim))
