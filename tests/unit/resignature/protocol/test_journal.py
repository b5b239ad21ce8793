# SPDX-License-Identifier: LGPL-2.1-only
"""The commit record of a run in the label, and the journal that it points to."""

import hashlib
import random
import struct
import tracemalloc
import zlib
from array import array
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import build_lvm, builder
from kit.cuts import entropy
from kit.examples import examples
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats import mgt
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.commit_record import (
    COMMIT_RECORD_AT,
    DONE,
    IN_PROGRESS,
    RESIGNATURE,
    SWITCHED,
    UNDO,
    CommitRecord,
    read_commit_record,
    scsi_id_digest,
    with_commit_record,
)
from relvmoiscsi.resignature.protocol.journal import (
    Journal,
    JournalHeader,
    decode,
    encode,
    read_journal,
)
from relvmoiscsi.resignature.protocol.merged_image import MergedImage
from relvmoiscsi.resignature.protocol.run_record import MdaMove, PvAndVg, Run, Write, verify_run

WHERE = Place("/dev/sdc", 65536)
SIZE = 1 << 30
AREA, SECOND = Range(4096, 1044480), Range(131072, 65536)
IGNORED = Range(SIZE - (1 << 20), 1 << 20)
ONE, TWO = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000002"


def label_sector(ext_version=2, tail=b"", areas=(AREA, IGNORED)):
    values = 1, "a" * 32, SIZE, 1 << 20, areas, ext_version, tail
    return build_lvm.label_sector(build_lvm.Label(*values))


def parsed(sector):
    return pv.parse_label(sector, 1, Place("/dev/sdc", 512))


RUN = Run(
    kind=RESIGNATURE,
    run_id=b"0123456789abcdef",
    scsi_id="3600140500000001",
    tool="1.0",
    ids=IdMap(ONE, {ONE: TWO}, {"a" * 32: "b" * 32}),
    replaced=PvAndVg("a" * 32, "c" * 32),
    label_number=1,
    old_label=label_sector(),
    new_pv_id="b" * 32,
    final_label=b"",
    mdas=(
        MdaMove(AREA, SECOND, b"o" * 512, b"s" * 512, b"f" * 512),
        MdaMove(IGNORED, IGNORED, b"i" * 512, b"", b"i" * 512),
    ),
    writes=(Write(1 << 20, b"old!" * 128, b"new!" * 128, "MGT: UUID of the SR"),),
)

# --- the journal


def facts_of(data):
    """The text in a journal."""
    payload = zlib.decompress(data[JournalHeader.SIZE :][: JournalHeader.at(data).payload_length])
    return payload[8 : 8 + int.from_bytes(payload[:8], "little")].decode("utf-8")


def test_the_journal_of_the_largest_sr_is_within_half_the_limits():
    count = 90
    prepared = engine.prepare(builder.many_vdis(count, chained=True).disk, entropy(0))
    text, factor = facts_of(prepared.plan.journal.data), mgt.MAX_RECORDS / count
    assert len(text) * factor < journal.MOST_FACTS_BYTES / 2
    assert sum(map(text.count, ",[{")) * factor < journal.MOST_VALUES / 2
    assert sum(map(text.count, "[{")) * factor < journal.MOST_INNER


def test_the_journal_of_the_largest_image_is_within_the_limits():
    most_blocks = (2040 << 30) // (2 << 20)
    gaps = array("H", random.Random(7).getrandbits(16 * most_blocks).to_bytes(2 * most_blocks, "little"))
    units = array("q", (unit << 9 for unit in accumulate(gap + 1 for gap in gaps)))  # as far apart as on 16 TiB
    merged = MergedImage("c" * 32, (), units[::2], units[1::2])
    text = facts_of(encode(RUN._replace(merged=merged)))
    assert len(text) < journal.MOST_FACTS_BYTES and sum(map(text.count, ",[{")) < journal.MOST_VALUES


def test_a_small_journal_takes_little_memory_before_it_is_refused():
    text = b'{"x": [' + b",".join([b'{"a":0}'] * 500000) + b"]}"
    payload = struct.pack("<Q", len(text)) + text
    packed = zlib.compress(payload, 9)
    header = JournalHeader.zero(
        magic=journal.JOURNAL_MAGIC,
        version=journal.VERSION,
        payload_length=len(packed),
        raw_length=len(payload),
        payload_digest=hashlib.sha256(packed).digest(),
    )
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="lists and objects"):
            decoded(bytes(header) + packed)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def decoded(data, of=None, size=SIZE):
    """The run in a journal of which the label speaks; or in one that is there instead."""
    return decode(data, WHERE, hashlib.sha256((of or data)[: JournalHeader.SIZE]).digest(), size)


def read(data):
    """Wherever it writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "verify_run", lambda *_: None)
        return decoded(data)


MANY = tuple(Write(n << 62 - n, bytes([n]) * 600, bytes([n + 1]) * 600, "ü" * n) for n in range(3))


@pytest.mark.parametrize(
    "run",
    [
        RUN,
        RUN._replace(scsi_id=None, mdas=(), writes=(), tool=""),
        RUN._replace(scsi_id="é", label_number=3, writes=MANY, ids=IdMap(ONE, {ONE: TWO, TWO: ONE}, {})),
        RUN._replace(kind=UNDO, final_label=label_sector(1), mdas=RUN.mdas[1:]),
    ],
)
def test_a_run_that_is_written_is_read_back(run):
    """Whatever is in it; that of a LUN is read back wherever a cut run is recovered."""
    data = encode(run)

    assert read(data) == run
    assert len(data) % journal.ALIGNMENT == 0


LONG = "x" * 2000


@pytest.mark.parametrize(
    "run",
    [
        RUN._replace(tool=LONG),
        RUN._replace(scsi_id=LONG),
        RUN._replace(ids=IdMap(LONG, {ONE: TWO}, {})),
        RUN._replace(ids=IdMap(ONE, {ONE: LONG}, {})),
        RUN._replace(ids=IdMap(ONE, {LONG: TWO}, {})),
        RUN._replace(new_pv_id=LONG),
        RUN._replace(writes=(Write(0, b"", b"", LONG),)),
        RUN._replace(one=LONG),
        RUN._replace(unverified=(LONG,)),
        RUN._replace(merged=MergedImage(LONG, (), array("q"), array("q"))),
    ],
)
def test_a_word_of_the_facts_has_a_limit_before_anything_repeats_it(run):
    with pytest.raises(Malformed, match="a text has 2000 characters") as caught:
        read(encode(run))

    assert len(str(caught.value)) < 300


def test_a_kind_of_run_that_nobody_knows_is_not_quoted_at_any_length(monkeypatch):
    monkeypatch.setitem(journal.KINDS, RUN.kind, "x" * 100000)
    data = encode(RUN)
    monkeypatch.undo()

    with pytest.raises(Malformed) as caught:
        read(data)

    assert len(str(caught.value)) < 1500


@given(st.integers(0, 8 * 700), st.integers(0, 4096))
@settings(max_examples=examples(60))
def test_a_flipped_bit_of_a_journal_and_a_cut_are_found_or_mean_nothing(bit, length):
    data = encode(RUN)
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8

    for content, is_whole in (
        (bytes(flipped), None),
        (data[:length], length >= JournalHeader.SIZE + JournalHeader.at(data).payload_length),
    ):
        try:
            assert decoded(content, of=data) == RUN and is_whole is not False
        except FormatError:
            assert not is_whole


DATA = encode(RUN)
HEADER = JournalHeader.at(DATA)


@pytest.mark.parametrize(
    "data, of, error, sentence",
    [
        (bytes(4096), None, BadMagic, "Journal at byte 65536 of /dev/sdc"),
        (bytes(HEADER.replace(version=4)) + DATA[64:], None, Unsupported, "its version is 4"),
        (
            encode(RUN._replace(run_id=bytes(16))),
            DATA,
            Malformed,
            "it is not the journal of the commit record in the label",
        ),
        (DATA[:80] + bytes(16) + DATA[96:], None, BadChecksum, "Journal at byte 65536"),
        (b"reLVMjnl", None, Truncated, "byte 65536"),
    ],
    ids=["no magic", "a later version", "another run", "overwritten", "a header that is cut"],
)
def test_what_is_not_the_journal_is_refused_by_name_and_place(data, of, error, sentence):
    with pytest.raises(error, match=sentence):
        decoded(data, of)


def test_a_small_journal_that_inflates_to_gigabytes_is_not_inflated():
    packed = zlib.compress(bytes(64 << 20), 9)
    lies = {"payload_length": len(packed), "raw_length": 4096, "payload_digest": hashlib.sha256(packed).digest()}

    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            read(bytes(HEADER.replace(**lies)) + packed)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


# --- what a run may touch


@pytest.mark.parametrize("offset", [-512, 0, 512, 1536, 4096, 1048064, SIZE - 511, SIZE, 1 << 62])
def test_a_run_that_would_write_outside_the_contents_is_malformed(offset):
    verify_run(RUN, SIZE, WHERE)
    run = RUN._replace(writes=(RUN.writes[0]._replace(offset=offset),))

    with pytest.raises(Malformed, match=f"it would write 512 bytes at {offset}"):
        verify_run(run, SIZE, WHERE)


@pytest.mark.parametrize(
    "original, second",
    [
        (AREA, Range(2048, 65536)),
        (AREA, Range(1044480, 65536)),
        (AREA, Range(AREA.offset, AREA.length - 4096)),  # a rollback would put zeros over the only header
        (AREA, Range(AREA.offset + 256, 65536)),
        (Range(512, 1044480), Range(8192, 65536)),
        (Range(4096, SIZE), Range(8192, 65536)),
    ],
)
def test_a_run_whose_areas_do_not_lie_in_each_other_is_malformed(original, second):
    move = RUN.mdas[0]._replace(original=original, second=second)
    run = RUN._replace(mdas=(move,), old_label=label_sector(areas=[original]), writes=())

    with pytest.raises(Malformed, match="its metadata areas do not lie in each other"):
        verify_run(run, SIZE, WHERE)


@pytest.mark.parametrize("second", [Range(8192 + 512, 65536), Range(AREA.end - 512, 512), Range(8192, 65536 + 256)])
def test_a_run_with_a_second_area_that_is_not_in_whole_pages_is_malformed(second):
    """A rollback writes a sector to its start."""
    run = RUN._replace(mdas=(RUN.mdas[0]._replace(second=second), *RUN.mdas[1:]), writes=())

    with pytest.raises(Malformed, match=f"no second metadata area has {second.length} bytes at {second.offset}"):
        verify_run(run, SIZE, WHERE)


# --- the mark; one that is not ours or reads wrong: reading/test_refusals, recovery/test_late_and_foreign_writes


@pytest.mark.parametrize("phase", [IN_PROGRESS, SWITCHED, DONE])
@pytest.mark.parametrize("ext_version", [0, 1, 2])
def test_a_mark_takes_the_last_160_bytes_of_the_label_and_is_read_back(phase, ext_version):
    mark = Journal(RUN, 65536, DATA).commit_record(phase)
    before = label_sector(ext_version)

    sector = with_commit_record(before, mark)

    assert read_commit_record(parsed(sector), "/dev/sdc") == mark
    assert (mark.phase, mark.kind, mark.run_id) == (phase, RESIGNATURE, RUN.run_id)
    disk = SparseDisk(SIZE)
    disk.poke(65536, DATA)
    assert read_journal(disk, mark, parsed(sector)) == Journal(RUN, 65536, DATA)
    changed = {at for at in range(512) if sector[at] != before[at]}
    assert COMMIT_RECORD_AT == 352 and changed <= set(range(352, 512)) | set(range(16, 20))
    assert with_commit_record(sector, None) == before
    assert read_commit_record(parsed(before), "/dev/sdc") is None


@pytest.mark.parametrize(
    "offset, length", [(0, 63), (0, 0xFFFFFFFF), (SIZE - 4095, 4096), (SIZE, 4096), ((1 << 64) - 4096, 4096)]
)
def test_a_mark_that_points_where_no_journal_can_be_is_malformed(offset, length):
    mark = CommitRecord.zero(journal_offset=offset, journal_length=length)

    with pytest.raises(Malformed, match=f"it says that {length} bytes of journal lie at byte {offset}"):
        read_journal(SparseDisk(SIZE), mark, parsed(label_sector()))


def test_the_digest_of_a_scsi_id_tells_them_apart_and_none_from_all():
    digests = {scsi_id_digest(scsi_id) for scsi_id in (None, "3600a", "3600b", "é")}

    assert len(digests) == 4
    assert scsi_id_digest(None) == scsi_id_digest("") == bytes(16)
