# SPDX-License-Identifier: LGPL-2.1-only
"""Tables of a QCOW2 and how large one may become (docs/formats/qcow2.rst). qemu-img: tests/judged/luns."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.build_volumes import Qcow2Spec, qcow2_content
from relvmoiscsi.errors import Malformed, Place, Unsupported
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.qcow2 import HEAD_BYTES, read_qcow2
from relvmoiscsi.formats.qcow2_clusters import ABSENT, ZEROS

WHERE = Place("QCOW2-x", 65536)
ONCE = 1 << 63


def table(*entries):
    return struct.pack(f">{len(entries)}Q", *entries)


def test_an_entry_is_absent_zeros_or_a_place():
    found = clusters.read_entries(table(0, 1, ONCE | 5 << 16, ONCE | 6 << 16 | 1, 7 << 16, ONCE), WHERE)

    assert list(found.clusters) == [ABSENT, ZEROS, 5 << 16, ZEROS, 7 << 16, ABSENT]
    assert list(found.taken) == [5 << 16, 6 << 16, 7 << 16], "zeros that have a place take it"


@pytest.mark.parametrize(
    "entry, error, problem",
    [
        (1 << 62 | 5 << 16, Unsupported, "QCOW2 cluster at byte 65544 of QCOW2-x: it is compressed"),
        (1 << 56, Malformed, "at byte 65544 of QCOW2-x: its entry is 0x0100000000000000"),
        (ONCE | 5 << 16 | 2, Malformed, "at byte 65544 of QCOW2-x: its entry is 0x8000000000050002"),
    ],
)
def test_an_entry_that_none_of_these_is(entry, error, problem):
    with pytest.raises(error, match=problem):
        clusters.read_entries(table(0, entry), WHERE)


def test_a_table_of_the_first_level_holds_places_alone():
    assert clusters.read_tables(table(0, ONCE | 4 << 16, 5 << 16), "Table", WHERE) == [0, 4 << 16, 5 << 16]
    with pytest.raises(Malformed, match="Table at byte 65552 of QCOW2-x: an entry is 0x0000000000000001"):
        clusters.read_tables(table(0, 0, 1), "Table", WHERE)


@given(st.lists(st.sampled_from((ABSENT, ZEROS, 5 << 16, 6 << 16))))
def test_places_are_marked_and_nothing_else(places):
    mark = 3 << 56

    assert list(clusters.marked(clusters.words(clusters.word_bytes(places)), mark)) == [
        place if place in (ABSENT, ZEROS) else mark | place for place in places
    ]


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_words_and_back(numbers):
    assert list(clusters.words(clusters.word_bytes(numbers))) == numbers
    assert clusters.word_bytes(numbers) == table(*numbers)


@pytest.mark.parametrize(
    "size, required, full",
    [  # qemu-img 7.2: measure -O qcow2 --size SIZE
        (65536, 327680, 393216),
        (10 << 30, 1900544, 10739318784),
        (2 << 40, 335806464, 2199359062016),
    ],
)
def test_the_size_of_a_volume_is_what_qemu_img_measures(size, required, full):
    assert clusters.full_size(size, 65536) == full
    assert clusters.formula_size(size) == size + required


def test_a_header_without_a_parent_keeps_the_storage_managers_extension():
    spec = Qcow2Spec(64 << 20, "/dev/VG_XenStorage-x/QCOW2-y", "qcow2", 1, "seed")
    content = qcow2_content(8 << 20, spec)
    head = bytearray(HEAD_BYTES)
    for offset, data in content.pieces:
        if offset < HEAD_BYTES:
            head[offset : offset + len(data)] = data
    before = read_qcow2(bytes(head), "QCOW2-x", 8 << 20)
    needed = clusters.Needs(1, 2, 1, 1)

    plain = clusters.plain_head(bytes(head), 32768, needed, (98304, 32768), "QCOW2-x")

    after = read_qcow2(plain, "QCOW2-x", 8 << 20)
    assert before.hidden and before.backing and after.backing is None
    assert (after.hidden, after.hidden_at) == (False, before.hidden_at - 16), "only the parent's format went"
    assert (after.header.size, after.header.cluster_bits) == (64 << 20, 15)
    assert (after.header.l1_size, after.header.l1_table_offset) == (1, 98304)
    assert (after.header.refcount_table_offset, after.header.refcount_clusters) == (32768, 1)
    clusters.verify_plain(after, plain, "QCOW2-x", b"")
