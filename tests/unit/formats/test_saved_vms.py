# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs on a VDI (docs/formats/saved-vms.rst): what is written is read, and nothing else is."""

import hashlib
import json
import zlib

import pytest

from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Truncated, Unsupported
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.saved_vms import SavedDisk, SavedHeader, SavedVm

SR = "9c96f9e5-4c2b-0b3c-b0f6-ec4a46d4ba67"
WEB = SavedVm("11111111-0000-4000-8000-000000000001", "web", "Running", (SavedDisk("0", "a VDI", "root"),))
DB = SavedVm("11111111-0000-4000-8000-000000000002", "Datenbank \N{SNOWMAN}", "Halted", ())
VMS = [(WEB, b"<value>web</value>" * 100), (DB, b"<value>db</value>")]
WHEN = "2026-11-22T12:00:00Z"
DATA = saved_vms.pack(SR, WHEN, 7, [saved_vms.packed(*each) for each in VMS])


def read(data):
    return saved_vms.unpack(saved_vms.read_header(data[:512], "LV-x"), data[512:], "LV-x")


def sealed(data, **fields):
    """The content with other fields in its header, and a checksum that is right."""
    header = SavedHeader(data[:512]).replace(crc=0, **fields)
    head = bytes(header.replace(crc=zlib.crc32(bytes(header))))
    return head + data[512:-512] + head


def forged(index, bodies=b""):
    """A VDI with this index and these bodies, whose checksums are right."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    content = text + bodies
    lengths = {"index_length": len(text), "length": len(content), "digest": hashlib.sha256(content).digest()}
    return sealed(DATA[:512] + content + DATA[:512], **lengths)


def vms(*rows, **more):
    return {"sr": SR, "when": WHEN, "serial": 1, "vms": list(rows), **more}


def row(number=1, **more):
    uuid = f"11111111-0000-4000-8000-{number:012d}"
    return {"uuid": uuid, "name_label": "v", "power_state": "Halted", "disks": [], "offset": 0, "length": 0, **more}


def test_what_was_written_is_read_with_zeros_behind_it():
    found = read(DATA + bytes(1 << 20))

    assert (found.sr_uuid, found.when, found.vms) == (SR, WHEN, (WEB, DB))
    assert found.documents([DB.uuid, WEB.uuid]) == {vm.uuid: document for vm, document in VMS}
    assert found.order == (7, WHEN)


def test_records_of_an_earlier_save_have_its_time():
    data = saved_vms.pack(SR, WHEN, 8, [saved_vms.packed(WEB._replace(saved_at="2026-11-21T12:00:00Z"), b"x")])
    assert [vm.saved_at for vm in read(data).vms] == ["2026-11-21T12:00:00Z"]
    assert b"saved_at" not in DATA  # of records of this save


def test_the_bytes_are_those_of_the_page():
    assert DATA[:16] == b"relvmoiscsi VMs\0" and DATA[16:20] == b"\1\0\0\0"
    assert int.from_bytes(DATA[20:24], "little") == zlib.crc32(DATA[:20] + bytes(4) + DATA[24:512])
    index_length, length = (int.from_bytes(DATA[start : start + 8], "little") for start in (24, 32))
    assert len(DATA) == 512 + length + 512 and DATA[40:72] == hashlib.sha256(DATA[512:-512]).digest()
    assert DATA[-512:] == DATA[:512]
    index = json.loads(DATA[512 : 512 + index_length].decode())
    first = index["vms"][0]
    body = DATA[512 + index_length + first["offset"] :][: first["length"]]
    assert zlib.decompress(body) == VMS[0][1] and index["sr"] == SR
    assert first["disks"] == [{"userdevice": "0", "vdi": "a VDI", "name_label": "root"}]


# --- what is damaged


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"x" + DATA[1:], BadMagic),
        (DATA[:20] + bytes(4) + DATA[24:], BadChecksum),
        (sealed(DATA, version=2), Unsupported),
        (sealed(DATA, length=1 << 40), Malformed),
        (sealed(DATA, index_length=1 << 20), Malformed),
        (DATA[:-1], Truncated),
        (DATA[:300], Truncated),
        (DATA[:600] + b"x" + DATA[601:], Malformed),
    ],
)
def test_what_is_spoiled_is_a_format_error(data, error):
    with pytest.raises(error):
        read(data)


def test_every_bit_is_covered():
    for number in range(len(DATA)):
        with pytest.raises(FormatError):
            read(DATA[:number] + bytes([DATA[number] ^ 1]) + DATA[number + 1 :])


def read_index(data):
    header = saved_vms.read_header(data[:512], "LV-x")
    end = 512 + header.length
    return saved_vms.read_index(header, data[512:][: header.index_length], data[end : end + 512], "LV-x")


def test_the_index_alone_names_the_vms_and_a_save_that_was_cut_is_not_read():
    assert read_index(DATA + bytes(512)) == read(DATA)._replace(packed=b"")
    for cut in range(len(DATA) - 512, len(DATA) - 512 + 60):  # behind the digest are only zeros
        with pytest.raises(FormatError):
            read_index(DATA[:cut] + bytes(1024))


# --- what somebody has written who is no save-vms

HOSTILE = {
    "no JSON": b"no json",
    "no UTF-8": b"\xff\xfe",
    "endless lists": b"[" * 200000,
    "a long number": b'{"sr": "", "when": "2026-11-22T12:00:00Z", "vms": [], "serial": ' + b"9" * 100000 + b"}",
    "a constant": b'{"sr": "", "when": "2026-11-22T12:00:00Z", "vms": [], "serial": NaN}',
    "half a surrogate pair": b'{"sr": "\\ud800", "when": "2026-11-22T12:00:00Z", "vms": []}',
    "a negative serial": vms(serial=-1),
    "a large serial": vms(serial=saved_vms.MOST_SERIAL + 1),
    "a serial that is none": vms(serial=True),
    "an SR that is no text": vms(sr=["x"]),
    "a sentence behind the time": vms(when=WHEN + ", whose seal is right. Repeat the command"),
    "a time of older records that is none": vms(row(saved_at="yesterday")),
    "a long time": vms(when="A" * 2000000),
    "a VM that is no UUID": vms(row(uuid="x" * 2000000)),
    "VMs that are no list": {**vms(), "vms": 7},
    "a VM that is a text": vms("x"),
    "disks that are no list": vms(row(disks={})),
    "a disk that is a list": vms(row(disks=[["0", "x", "y"]])),
    "a VDI that is no text": vms(row(disks=[{"userdevice": "0", "vdi": {}, "name_label": ""}])),
    "a negative length": vms(row(length=-1)),
    "a length beyond the end": vms(row(length=9)),
    "a gap": vms(row(offset=1)),
    "one VM twice": vms(row(), row()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_index_is_a_format_error(name):
    with pytest.raises(Malformed):
        read(forged(HOSTILE[name]))


def test_an_index_that_is_too_long_is_not_even_parsed():
    with pytest.raises(Malformed, match="with an index of"):
        read(forged(b"[" * (saved_vms.MOST_INDEX_BYTES + 1)))


def test_records_that_several_vms_share_are_refused():
    body = zlib.compress(bytes(1000))
    with pytest.raises(Malformed, match="records overlap"):
        read(forged(vms(*(row(number, length=len(body)) for number in range(64))), body))
    with pytest.raises(Malformed, match="end before the content"):
        read(forged(vms(row(length=len(body))), body + b"more"))


def test_nothing_is_unpacked_to_tell_the_names():
    body = zlib.compress(bytes(saved_vms.MOST_RECORDS_BYTES * 2))
    found = read(forged(vms(row(length=len(body))), body))
    assert [vm.name_label for vm in found.vms] == ["v"]
    with pytest.raises(Malformed, match="unpack to more than 16777216 bytes"):
        found.documents([found.vms[0].uuid])


def test_those_of_all_vms_have_one_budget(monkeypatch):
    body = zlib.compress(bytes(1000))
    rows = [row(number, offset=number * len(body), length=len(body)) for number in range(4)]
    found = read(forged(vms(*rows), body * 4))
    uuids = [vm.uuid for vm in found.vms]
    assert len(found.documents(uuids)) == 4
    monkeypatch.setattr(saved_vms, "MOST_UNPACKED_BYTES", 3500)
    with pytest.raises(Malformed, match="unpack to more than 500 bytes"):
        found.documents(uuids)


@pytest.mark.parametrize("body", [b"no zlib", zlib.compress(b"x" * 1000)[:-3], zlib.compress(b"x") + b"more", b""])
def test_records_that_cannot_be_unpacked_are_refused(body):
    found = read(forged(vms(row(length=len(body))), body))
    with pytest.raises(Malformed):
        found.documents([found.vms[0].uuid])


def test_the_largest_save_with_its_two_headers_fits_into_whole_extents_of_a_vdi():
    content, extent = saved_vms.MOST_BYTES + 2 * SavedHeader.SIZE, 4 << 20
    assert content <= saved_vms.MOST_VDI_BYTES < content + extent and saved_vms.MOST_VDI_BYTES % extent == 0
