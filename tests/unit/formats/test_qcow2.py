# SPDX-License-Identifier: LGPL-2.1-only
"""QCOW2 images in a volume: the header is verified, the backing file's path changes; its tables, and how large one may
become (docs/formats/qcow2.rst). qemu-img: tests/judged/luns.
"""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.build_volumes import Qcow2Spec, qcow2_content
from kit.examples import examples
from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadMagic, FormatError, Malformed, Truncated, Unsupported
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.naming import QCOW2, RAW, ParentName
from relvmoiscsi.formats.qcow2 import HEAD_BYTES, changes, parent_of, read_qcow2

NAME = "QCOW2-6c936f08-3c14-41f7-8136-e4597b31e47e"
SIZE = 8 << 20
SR, VDI = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000002"
PATH = f"/dev/VG_XenStorage-{SR}/QCOW2-{VDI}".encode("ascii")
NEW = {SR: "11111111-2222-4333-8444-555555555555", VDI: "66666666-7777-4888-9999-aaaaaaaaaaaa"}

# qemu-img 7.2: create -f qcow2 -b PATH -F qcow2 -u x.qcow2 64M; the feature table's names are left out
HEAD = bytearray(HEAD_BYTES)
HEAD[:0x90] = bytes.fromhex(
    "514649fb 00000003 0000000000000210"  # QFI\xfb, version 3, path at 0x210
    "00000062 00000010 0000000004000000"  # of 98 bytes; clusters of 64 KiB; 64 MiB
    "00000000 00000001 0000000000030000"  # not encrypted; L1: 1 entry at 0x30000
    "0000000000010000 00000001 00000000"  # refcount table; no snapshots
    "0000000000000000 0000000000000000"  # incompatible features
    "0000000000000000 0000000000000000"
    "00000004 00000070 0000000000000000"  # refcount order, header of 112 bytes
    "e2792aca 00000005 71636f7732000000"  # extension: backing format "qcow2"
    "6803f857 00000180 0000646972747920"  # extension: feature table of 384 bytes
)
HEAD[0x210 : 0x210 + len(PATH)] = PATH
HEAD = bytes(HEAD)


def patched(*fields):
    head = bytearray(HEAD)
    for offset, form, value in fields:
        struct.pack_into(form, head, offset, *(value if isinstance(value, tuple) else (value,)))
    return bytes(head)


def read(*fields):
    return read_qcow2(patched(*fields), NAME, SIZE)


def made(backing, flag):
    """The head of an image of the builder, with SM's hidden flag."""
    head = bytearray(HEAD_BYTES)
    for offset, data in qcow2_content(SIZE, Qcow2Spec(64 << 20, backing, "qcow2", flag, "seed")).pieces:
        if offset < HEAD_BYTES:
            head[offset : offset + len(data)] = data
    return bytes(head)


# --- reading


def test_an_image_that_qemu_img_made_is_read_and_its_path_changes_in_place():
    image = read()
    (change,) = changes(image, image, PATH, ParentName(SR, QCOW2, VDI), NEW, NAME)

    assert (image.virtual_size, image.hidden) == (64 << 20, False)
    assert image.backing == Range(0x210, 98)
    assert parent_of(image, PATH, NAME) == ParentName(SR, QCOW2, VDI)
    over_raw = read((116, ">I3s5x", (3, b"raw")))
    assert parent_of(over_raw, PATH.replace(b"QCOW2-", b"LV-"), NAME).kind == RAW
    assert (change.offset, change.old, len(change.new)) == (0x210, PATH, 98)
    assert parent_of(image, change.new, NAME) == ParentName(NEW[SR], QCOW2, NEW[VDI])
    assert change.what == "QCOW2 backing file of " + NAME


def test_an_image_without_a_backing_file_has_no_parent():
    image = read((8, ">Q", 0), (16, ">I", 0))

    assert image.backing is None
    assert parent_of(image, b"", NAME) is None
    assert changes(image, image, b"", None, NEW, NAME) == []


@pytest.mark.parametrize("flag, hidden", [(None, False), (0, False), (1, True), (2, True), (255, True)])
@pytest.mark.parametrize("backing", ["", PATH.decode()])
def test_the_hidden_flag_is_in_sms_own_extension(flag, hidden, backing):
    assert read_qcow2(made(backing, flag), NAME, SIZE).hidden == hidden


def test_the_flag_that_sm_reads_as_hidden_changes_from_the_byte_that_is_there():
    image = read_qcow2(made("", 2), NAME, SIZE)

    (change,) = changes(image, image.with_hidden(False, NAME), b"", None, NEW, NAME)

    assert (change.offset, change.old, change.new) == (image.hidden_at, b"\2", b"\0")


@pytest.mark.parametrize("fields", [((4, ">I", 2), (72, ">Q", 0)), ((100, ">I", 104),), ((72, ">Q", 0b11001),)])
def test_headers_of_72_and_104_bytes_and_features_that_move_no_path_are_accepted(fields):
    assert read(*fields).backing == Range(0x210, 98)


# --- refusing


@pytest.mark.parametrize(
    "offset, form, value, error, sentence",
    [
        (0, ">I", 0x514649FA, BadMagic, "it begins with the bytes 51 46 49 fa, expected the bytes 51 46 49 fb"),
        (4, ">I", 1, Unsupported, "its version is 1"),
        (4, ">I", 4, Unsupported, "its version is 4"),
        (32, ">I", 2, Unsupported, "byte 32 of QCOW2-.*: it is encrypted"),
        (20, ">I", 8, Malformed, "byte 20 of QCOW2-.*: its cluster size is out of range"),
        (20, ">I", 22, Malformed, "its cluster size is out of range"),
        (72, ">Q", 1 << 2, Unsupported, r"the incompatible features 0x4 \(an external data file\)"),
        (72, ">Q", 1 << 5, Unsupported, "the incompatible features 0x20"),
        (72, ">Q", 1 << 63, Unsupported, "the incompatible features 0x8000000000000000"),
        (72, ">Q", 1 << 1, Malformed, "marked as corrupt"),
        (100, ">I", 96, Malformed, "its length is 96"),
        (100, ">I", 113, Malformed, "its length is 113"),
        (100, ">I", 0xFFFFFFF8, Malformed, "its backing file path has 98 bytes at 528"),
        (8, ">Q", 8, Malformed, "its backing file path has 98 bytes at 8"),
        (8, ">Q", 65536 - 97, Malformed, "its backing file path has 98 bytes at 65439"),
        (16, ">I", 0, Malformed, "its backing file path has 0 bytes"),
        (16, ">I", 1024, Malformed, "its backing file path has 1024 bytes"),
        (112, ">I", 0x44415441, Unsupported, "byte 112 of QCOW2-.*: its type is 0x44415441"),
        (112, ">I", 0x0537BE77, Unsupported, "its type is 0x0537be77"),
        (116, ">I", 0xFFFFFFFF, Malformed, "byte 112 of QCOW2-.*: it has 4294967295 bytes"),
    ],
)
def test_a_header_that_is_none_of_sms_is_refused(offset, form, value, error, sentence):
    with pytest.raises(error, match=sentence):
        read((offset, form, value))


VATE = b"vate\0\0\0\x08" + bytes(8)


@pytest.mark.parametrize(
    "parts, error, sentence",
    [  # SM reads the first byte behind the first of them, whatever its length
        (VATE + VATE[:8] + b"\1" + bytes(7), Unsupported, "byte 128 of .*: it is a second one of type 0x76617465"),
        (VATE[:8] + b"\1" + bytes(7) + VATE, Unsupported, "byte 128 of .*: it is a second one of type 0x76617465"),
        # QEMU takes the last of them
        (2 * b"\xe2\x79\x2a\xca\0\0\0\3raw\0\0\0\0\0", Unsupported, "it is a second one of type 0xe2792aca"),
        (b"vate" + bytes(4) + b"\1\0\0\0\0\0\0\0", Unsupported, "byte 112 of .*: it is SM's, and has 0 bytes"),
        (b"vate\0\0\0\1\1" + bytes(7), Unsupported, "byte 112 of .*: it is SM's, and has 1 bytes"),
        (b"vate\0\0\0\x10\1" + bytes(15), Unsupported, "byte 112 of .*: it is SM's, and has 16 bytes"),
        (b"abcd\0\0\1\x88" + bytes(392), Malformed, "byte 512 of .*: no end mark is behind the extensions"),
        (b"abcd\0\0\1\x8f" + bytes(400), Malformed, "byte 520 of .*: no end mark is behind the extensions"),
    ],
)
def test_extensions_that_sm_and_qemu_would_read_apart_are_refused(parts, error, sentence):
    head = bytearray(patched((8, ">Q", 519))[:112] + parts).ljust(HEAD_BYTES, b"\0")

    with pytest.raises(error, match=sentence):
        read_qcow2(bytes(head), NAME, SIZE)


@pytest.mark.parametrize("path", [b"", b"base.qcow2", b"/tmp" + PATH, PATH + b"\0", b"\xff" * 98, PATH.upper()])
def test_a_path_that_names_no_volume_of_an_sr_is_refused(path):
    with pytest.raises(Unsupported, match="QCOW2 backing file at byte 528 of QCOW2-.* names no volume of an SR"):
        parent_of(read(), path, NAME)


@pytest.mark.parametrize(
    "extension, kind, says",
    [
        (b"\0\0\0\5qcow2\0\0\0", b"LV-", "QEMU opens its parent as 'qcow2'; the name says raw"),
        (b"\0\0\0\3raw\0\0\0\0\0", b"QCOW2-", "QEMU opens its parent as 'raw'; the name says qcow2"),
        (b"\0\0\0\4raw\0\0\0\0\0", b"LV-", "QEMU opens its parent as .*; the name says raw"),
        (b"\0\0\0\4vpc\0\0\0\0\0", b"LV-", "QEMU opens its parent as .*; the name says raw"),
        (b"\0\0\0\0", b"LV-", "QEMU finds the format of its parent out by the parent's content"),
        (b"", b"LV-", "QEMU finds the format of its parent out by the parent's content"),
        (b"", b"QCOW2-", "QEMU finds the format of its parent out by the parent's content"),
    ],
)
def test_a_parent_that_qemu_opens_in_another_format_is_refused(extension, kind, says):
    extension = extension and b"\xe2\x79\x2a\xca" + extension
    head = HEAD[:112] + extension + bytes(HEAD_BYTES - 112 - len(extension))

    with pytest.raises(Unsupported, match=f"QCOW2 backing file at byte 528 of {NAME}: {says}"):
        parent_of(read_qcow2(head, NAME, SIZE), PATH.replace(b"QCOW2-", kind), NAME)


def test_extensions_behind_the_bytes_that_are_read_are_refused_and_not_called_cut():
    """QEMU reads them. A truncated image would count as one that the storage manager drops."""
    head = (patched((8, ">Q", 8192))[:112] + b"abcd\0\0\x10\0").ljust(HEAD_BYTES, b"\0")

    with pytest.raises(Unsupported, match=f"byte 4216 of {NAME}: it begins behind the first 4096 bytes"):
        read_qcow2(head, NAME, SIZE)


def test_an_image_that_ends_early_is_truncated():
    with pytest.raises(Truncated):
        read_qcow2(HEAD[:71], NAME, 71)


@given(st.integers(0, 136), st.binary(min_size=1, max_size=8))
@settings(max_examples=examples(300))
def test_any_bytes_in_the_header_are_read_or_refused(offset, data):
    head = HEAD[:offset] + data + HEAD[offset + len(data) :]

    try:
        image = read_qcow2(head, NAME, SIZE)
    except FormatError:
        return
    assert image.backing is None or image.backing.end <= 1 << 21


# --- a new image; its tables: resignature/merge/test_merge.py


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
    head = made("/dev/VG_XenStorage-x/QCOW2-y", 1)
    before = read_qcow2(head, "QCOW2-x", 8 << 20)
    needed = clusters.Needs(1, 2, 1, 1)

    plain = clusters.plain_head(head, 32768, needed, (98304, 32768), "QCOW2-x")

    after = read_qcow2(plain, "QCOW2-x", 8 << 20)
    assert before.hidden and before.backing and after.backing is None
    assert (after.hidden, after.hidden_at) == (False, before.hidden_at - 16), "only the parent's format went"
    assert (after.header.size, after.header.cluster_bits) == (64 << 20, 15)
    assert (after.header.l1_size, after.header.l1_table_offset) == (1, 98304)
    assert (after.header.refcount_table_offset, after.header.refcount_clusters) == (32768, 1)
    clusters.verify_plain(after, plain, "QCOW2-x")
