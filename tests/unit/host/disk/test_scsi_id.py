# SPDX-License-Identifier: LGPL-2.1-only
"""The SCSIid is what scsi_id prints, made from the pages that a disk has in sysfs."""

import ctypes
import os
import stat
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clock import Clock
from kit.examples import examples
from relvmoiscsi import scsi as commands
from relvmoiscsi.errors import DeviceError, NotFound, UsageError
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.scsi_id import (
    Inquiry,
    hardware_of,
    id_from_page_80,
    id_from_page_83,
    live_scsi_id,
    scsi_id_at,
    scsi_id_of,
    scsi_id_of_disk,
    serial_from_page_80,
)
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import looking
from relvmoiscsi.iscsi.session import Task
from relvmoiscsi.scsi_id_text import NamedLuns, is_scsi_id, luns_named, names_lun, typed_scsi_id

REAL_STAT = os.stat
LIO = Inquiry(b"LIO-ORG ", b"clone           ")

NAA_6 = bytes.fromhex("01 03 00 10  60 01 40 5a b1 c2 d3 e4 f5 06 17 28 39 4a 5b 6c".replace(" ", ""))
NAA_5 = bytes.fromhex("01 03 00 08  50 01 40 5a b1 c2 d3 e4".replace(" ", ""))
NAA_3 = bytes.fromhex("01 03 00 08  30 01 40 5a b1 c2 d3 e4".replace(" ", ""))
NAA_5_OF_THE_PORT = bytes.fromhex("61 93 00 08  50 00 00 00 00 00 00 01".replace(" ", ""))
NAA_6_OF_THE_TARGET = bytes.fromhex("61 a3 00 10  60 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02".replace(" ", ""))
EUI_64 = bytes.fromhex("01 02 00 08  00 25 38 5a b1 c2 d3 e4".replace(" ", ""))
T10 = b"\x02\x01\x00\x1c" + b"LIO-ORG clone:5ab1c2  d3e4\0\0"
T10_ID = "1LIO-ORG_clone:5ab1c2_d3e4"
VENDOR = b"\x02\x00\x00\x08" + b"SER 0042"
PORT_GROUP = bytes.fromhex("01 15 00 04  00 00 00 07".replace(" ", ""))
NOT_OF_THE_LUN = (NAA_5_OF_THE_PORT, NAA_6_OF_THE_TARGET, PORT_GROUP)

NAA_6_ID = "36001405ab1c2d3e4f5061728394a5b6c"


def page_83(*designators):
    body = b"".join(designators)
    return b"\x00\x83" + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    "designators, expected",
    [
        pytest.param([NAA_6], NAA_6_ID, id="NAA 6"),
        pytest.param([NAA_3], "33001405ab1c2d3e4", id="any other NAA"),
        pytest.param([EUI_64], "20025385ab1c2d3e4", id="EUI-64"),
        pytest.param([T10], "1LIO-ORG_clone:5ab1c2_d3e4", id="T10 vendor: to the NUL, each gap an underscore"),
        pytest.param([VENDOR], "0LIO-ORG_clone_SER_0042", id="vendor specific: with vendor and model"),
        pytest.param([b"\x02\x03\x00\x05naa.x"], "3naa.x", id="an ASCII designator as it is"),
        pytest.param([b"\x02\x01\x00\x05a\x01\xff\t "], "1a__", id="what cannot be printed is an underscore"),
        # As a LIO target lists them: NAA, T10 vendor, the port, its groups, names.
        pytest.param([NAA_6, T10, PORT_GROUP, NAA_5_OF_THE_PORT, NAA_6_OF_THE_TARGET], NAA_6_ID, id="LIO"),
    ],
)
def test_the_id_is_the_type_and_then_the_designator(designators, expected):
    assert id_from_page_83(page_83(*designators), LIO) == expected


def test_which_designator_is_taken_does_not_depend_on_their_order():
    """Binary comes before ASCII of the same type."""
    best_first = [NAA_6, NAA_5, NAA_3, EUI_64, b"\x02\x02\x00\x08eui.0025", T10, VENDOR]

    for best in range(len(best_first)):
        present = best_first[best:]
        only = id_from_page_83(page_83(present[0]), LIO)
        assert id_from_page_83(page_83(*present), LIO) == only
        assert id_from_page_83(page_83(*reversed(present)), LIO) == only


FITS, TOO_LONG = b"\x01\x03\x00\x7f" + b"\x60" * 127, b"\x01\x03\x00\x80" + b"\x60" * 128
OLD_SYMMETRIX = bytes.fromhex("00 83 00 10  60 06 04 80 00 01 87 90 00 35 53 30 30 30 39 44".replace(" ", ""))


@pytest.mark.parametrize(
    "page, expected",
    [
        pytest.param(page_83(TOO_LONG, EUI_64), "20025385ab1c2d3e4", id="too long for scsi_id"),
        pytest.param(page_83(EUI_64, FITS), "3" + "60" * 127, id="the longest"),
        pytest.param(OLD_SYMMETRIX, "360060480000187900035533030303944", id="a name without a designator"),
        pytest.param(page_83(EUI_64) + NAA_6, "20025385ab1c2d3e4", id="behind the length of the page"),
        *(pytest.param(page_83(one, T10), "1LIO-ORG_clone:5ab1c2_d3e4", id="not of the LUN") for one in NOT_OF_THE_LUN),
        *(pytest.param(page_83(one), None, id="nothing of the LUN") for one in NOT_OF_THE_LUN),
        pytest.param(b"", None, id="empty"),
        pytest.param(b"\x00\x80" + page_83(NAA_6)[2:], None, id="another page"),
        pytest.param(page_83(b"\x01\x03\x00\x00"), None, id="a designator of no length"),
        pytest.param(page_83(NAA_6)[:-1], None, id="a designator that goes on past the page"),
        pytest.param(page_83(b"\x02\x01\x00\x04    "), None, id="blanks, as of a LUN that is not configured"),
        pytest.param(page_83(b"\x03\x08\x00\x04iqn."), None, id="a SCSI name string, which scsi_id does not take"),
    ],
)
def test_what_of_a_page_counts(page, expected):
    assert id_from_page_83(page, LIO) == expected


OF_THE_PORT = b"\x01\x14\x00\xfa" + bytes(250)


def padded(size):
    """Designators of the port, of this size together."""
    return b"\x01\x14\x00" + bytes([size - 4]) + bytes(size - 4)


@pytest.mark.parametrize(
    "before, expected",
    [
        pytest.param(padded(254 - 4 - 32 - 20), NAA_6_ID, id="all of the designator"),
        pytest.param(padded(254 - 4 - 32 - 19), T10_ID, id="all but a byte"),
        pytest.param(padded(254 - 4 - 32), T10_ID, id="nothing"),
        pytest.param(OF_THE_PORT * 17, T10_ID, id="behind 4 KiB"),
    ],
)
def test_each_reader_takes_what_scsi_id_reads_of_a_page(host, monkeypatch, before, expected):
    """scsi_id reads 254 bytes, and a NAA behind these is better than the T10 id."""
    page, asked = page_83(T10, before, NAA_6), set()
    put(host, "sdc", {"device/vpd_pg83": page})

    def answer(_disk, command, size):
        asked.add(int.from_bytes(command[3:5], "big"))
        return page[:size]

    monkeypatch.setattr(scsi, "scsi_command", answer)
    tasks = [Task(command) for command in looking.asking_names(bytes(8))]
    for task, content in zip(tasks, (bytes(8) + LIO.vendor + LIO.model + b"1   ", page, b"")):
        task.is_done, task.status = True, 0
        task.moved = min(len(content), len(task.command.into))
        task.command.into[: task.moved] = content[: task.moved]
        asked.add(int.from_bytes(task.command.cdb[3:5], "big"))
    in_session = looking.name_of(bytes(8), tasks).scsi_id
    assert [in_session, scsi_id_of_disk("sdc", host), live_scsi_id(SDC), id_from_page_83(page, LIO)] == [expected] * 4
    assert asked <= {254, 36}


@pytest.mark.parametrize("size, is_id", [(231, True), (232, False), (255, False)])
def test_a_serial_number_that_is_too_long_for_scsi_id_gives_no_id(size, is_id):
    page = b"\x00\x80\x00" + bytes([size]) + b"x" * size
    assert id_from_page_80(page, LIO) == ("SLIO-ORG_clone_" + "x" * size if is_id else None)
    assert len(serial_from_page_80(page)) == min(size, 250)


def test_without_page_83_the_id_is_vendor_model_and_serial_number():
    assert id_from_page_80(b"\x00\x80\x00\x06 42  A", LIO) == "SLIO-ORG_clone_42_A"


@given(st.binary(max_size=300), st.binary(max_size=20), st.booleans())
def test_no_content_of_a_page_is_a_failure_and_an_id_is_always_printable(body, inquiry, marked):
    inquiry = Inquiry(inquiry, inquiry)
    page = b"\x00\x83" + body if marked else body

    for found in (id_from_page_83(page, inquiry), id_from_page_80(b"\x00\x80" + body, inquiry)):
        assert found is None or all("!" <= letter <= "~" for letter in found)


# --- sysfs


@pytest.fixture
def host(tmp_path):
    return Host(str(tmp_path))


def put(host, disk, files):
    """The files of a disk in sysfs; without content, a directory, which cannot be read."""
    for name, content in files.items():
        path = host.at("sys/block", disk, name)
        os.makedirs(path if content is None else os.path.dirname(path), exist_ok=True)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)


NAMED = {"device/vendor": b"LIO-ORG \n", "device/model": b"clone           \n"}
MPATH = b"mpath-" + NAA_6_ID.encode() + b"\n"


@pytest.mark.parametrize(
    "disk, files, expected",
    [
        ("sdc", {**NAMED, "device/vpd_pg83": page_83(VENDOR)}, "0LIO-ORG_clone_SER_0042"),
        ("sdc", {**NAMED, "device/vpd_pg80": b"\x00\x80\x00\x0242"}, "SLIO-ORG_clone_42"),
        ("loop0", {"size": b"8\n"}, None),
        # a multipath map has the id in its name, and other volumes have none
        ("dm-3", {"dm/uuid": MPATH}, NAA_6_ID),
        ("dm-3", {"dm/uuid": b"part1-" + MPATH}, None),
        ("dm-3", {"dm/uuid": b"LVM-0hK2bJQ3W2sYYuhNHmhjAXXQ4Wo6Pj1X\n"}, None),
        ("dm-3", {"dm/uuid": b"\xff\n"}, None),
    ],
)
def test_a_disk_has_the_id_of_its_page_and_a_map_that_in_its_name(host, disk, files, expected):
    put(host, disk, files)

    assert scsi_id_of_disk(disk, host) == expected


def node(host, monkeypatch, name):
    """Lets a path lead to the disk `name` of the host, and gives the path."""
    os.makedirs(host.at("sys/dev/block"))
    os.symlink("../../block/" + name, host.at("sys/dev/block/8:32"))
    status = os.stat_result((stat.S_IFBLK, *[0] * 9), {"st_rdev": os.makedev(8, 32)})
    monkeypatch.setattr(os, "stat", lambda path, *_more, **_others: status if path == "/dev/it" else REAL_STAT(path))
    return "/dev/it"


DISK = {**NAMED, "device/vpd_pg80": b"\x00\x80\x00\x04x42 ", "device/vpd_pg83": page_83(NAA_6)}


@pytest.mark.parametrize(
    "name, files, hardware, scsi_id",
    [
        ("sdc", {"sdc": DISK}, ("LIO-ORG", "clone", "x42"), NAA_6_ID),
        ("dm-3", {"sdd": DISK, "dm-3": {"slaves/sdd": None}}, ("LIO-ORG", "clone", "x42"), None),
        ("loop0", {"loop0": {"size": b"8\n"}}, ("", "", ""), None),
    ],
    ids=["a disk", "a map is what its paths are", "no disk"],
)
def test_what_a_device_node_calls_itself(host, monkeypatch, name, files, hardware, scsi_id):
    for disk, content in files.items():
        put(host, disk, content)
    path = node(host, monkeypatch, name)

    assert hardware_of(path, host) == hardware
    assert scsi_id_of(path, host) == scsi_id


def test_what_is_not_there_and_what_does_not_read_are_other_answers_than_no_id(host, tmp_path, monkeypatch):
    (tmp_path / "image").write_bytes(b"")
    image = str(tmp_path / "image")
    put(host, "sdc", {"device/vpd_pg83": None})

    assert hardware_of(image, host) == ("", "", "")
    assert [scsi_id_of(image), *map(scsi_id_at, (image, image + "-gone", image + "/below"))] == [None] * 4
    os.symlink("loop", str(tmp_path / "loop"))
    texts = ["", "\0", image + "\0", "\ud800", "/\u00e9", "/" + "a" * 300, "/a" * 5000, str(tmp_path / "loop")]
    assert list(map(scsi_id_at, texts)) == [None] * len(texts)
    with pytest.raises(NotFound):
        scsi_id_of(image + "-gone")
    with pytest.raises(DeviceError, match="Is a directory"):
        scsi_id_of_disk("sdc", host)
    put(host, "sdc", {"device/vendor": None})
    assert hardware_of(node(host, monkeypatch, "sdc"), host) == ("", "", "")


# --- now


SDC = scsi.OpenDisk("/dev/sdc", 0)


class Answers(dict):
    """What a LUN answers to INQUIRY: its pages, and the data without one. It refuses a page that it has not."""

    def __call__(self, _path, command, size):
        asked = command[2] if command[1] else "standard"
        return (self.get(asked) or b"")[:size] or None if command[0] == 0x12 else None


@pytest.fixture
def lun(monkeypatch):
    """QEMU's, where a disk has no WWN."""
    head = b"\0\0\5\2\x1f\0\0\2"
    answers = Answers({"standard": head + b"QEMU    " + b"QEMU HARDDISK   " + b"2.5+", 0x80: b"\0\x80\0\3S42"})
    monkeypatch.setattr(scsi, "scsi_command", answers)
    return answers


@pytest.mark.parametrize(
    "page, expected",
    [
        (page_83(NAA_6, VENDOR), NAA_6_ID),
        (page_83(EUI_64), "20025385ab1c2d3e4"),
        (page_83(VENDOR), "0QEMU_QEMU_HARDDISK_SER_0042"),
        (page_83(NAA_5_OF_THE_PORT), "SQEMU_QEMU_HARDDISK_S42"),
        (None, "SQEMU_QEMU_HARDDISK_S42"),
    ],
)
def test_a_lun_gives_the_id_now_that_the_kernel_has_found(lun, host, page, expected):
    if page is not None:
        lun[0x83] = page
    pages = {f"device/vpd_pg{number:x}": lun.get(number, b"") for number in (0x80, 0x83)}
    put(host, "sdc", {"device/vendor": b"QEMU    \n", "device/model": b"QEMU HARDDISK   \n", **pages})

    assert live_scsi_id(SDC) == scsi_id_of_disk("sdc", host) == expected


def test_vendor_and_model_are_read_as_the_kernel_reads_them(lun):
    lun["standard"] = lun["standard"][:8] + b"QE\x01MU\0??" + b"HARD\xe9DISK       " + b"2.5+"

    assert live_scsi_id(SDC) == "SQE_MU_HARD_DISK_S42"


@pytest.mark.parametrize("changed", [{"standard": None}, {"standard": b"\0\0\5"}, {"standard": b"\x7f" + bytes(35)}])
def test_a_lun_that_is_not_there_any_more_though_its_port_answers_is_not_another_lun(lun, changed):
    lun.update(changed)

    with pytest.raises(DeviceError, match="no LUN is mapped there any more"):
        live_scsi_id(SDC)


def test_a_lun_without_a_serial_number_has_no_id(lun):
    del lun[0x80]

    assert live_scsi_id(SDC) is None


BUSY, FULL = (8, 0, 0, 0), (0x28, 0, 0, 0)
NOT_READY, ATTENTION = (2, 2, 4, 4), (2, 6, 0x29, 0)
GOOD = (0, 0, 0, 0)


@pytest.fixture
def kernel(monkeypatch):
    """The end of SG_IO: a list of (status, sense key, code, qualifier); the last one for ever. A clock that obeys."""
    said, clock = [], Clock()

    def ioctl(_descriptor, _number, header):
        status, key, code, qualifier = said.pop(0) if len(said) > 1 else said[0]
        sense = bytes([0x72, key, code, qualifier]) if status == 2 else b""
        ctypes.memmove(header.sbp, sense, len(sense))
        header.status, header.sb_len_wr, header.driver_status = status, len(sense), 8 if sense else 0

    monkeypatch.setattr(scsi.fcntl, "ioctl", ioctl)
    monkeypatch.setattr(scsi, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return said


@pytest.mark.parametrize("passing", [[BUSY], [FULL, BUSY], [NOT_READY] * 9, [ATTENTION] * 3])
def test_a_lun_that_is_busy_or_has_news_is_asked_again(kernel, passing):
    kernel.extend([*passing, GOOD])

    assert scsi.scsi_command(SDC, bytes(6), 8) == bytes(8)
    assert kernel == [GOOD]


@pytest.mark.parametrize(
    "end, words",
    [
        (BUSY, "busy"),
        (NOT_READY, "format in progress"),
        (ATTENTION, "unit attention"),
        ((2, 5, 0x25, 0), "no such LUN"),
        ((2, 2, 4, 0x0B), "standby"),
        ((2, 4, 0, 0), "hardware error"),
        ((0x18, 0, 0, 0), "reserved by another host"),
    ],
)
def test_a_question_that_fails_is_told_as_what_it_is_and_never_as_no_answer(kernel, end, words):
    kernel.append(end)

    with pytest.raises(DeviceError, match=words):
        scsi.live_scsi_id(SDC)


@pytest.mark.parametrize("refusal", [(2, 5, 0x24, 0), (2, 5, 0x20, 0)])
def test_a_page_that_a_lun_has_not_is_none(kernel, refusal):
    kernel.append(refusal)

    assert scsi.live_page(SDC, 0x83) is None


ROWS = [(key, code or 0, qualifier or 0) for key, code, qualifier in commands.MEANINGS]


@pytest.mark.parametrize("sense", ROWS, ids="{0[0]:x}/{0[1]:02x}/{0[2]:02x}".format)
def test_each_sense_is_told_alike_by_a_session_and_by_the_kernel(kernel, sense):
    """The same LUN by the two ways on which a name is asked for: iSCSI in user space, and SG_IO."""
    kernel.append((2, *sense))
    data = bytes([0x72, *sense])
    tasks = [Task(command) for command in looking.asking_names(bytes(8))]
    for task in tasks:
        task.is_done, task.status, task.sense = True, 2, data
    in_session = looking.name_of(bytes(8), tasks)
    try:
        scsi.scsi_command(SDC, bytes(6), 8)
        by_kernel = ""
    except DeviceError as error:
        by_kernel = str(error)

    is_answer = commands.judge_question(2, data) in (commands.Verdict.DONE, commands.Verdict.UNSUPPORTED)
    is_unmapped = commands.judge_question(2, data) == commands.Verdict.UNMAPPED
    told = commands.reason(2, data)
    assert (told in by_kernel) is not is_answer
    assert (told in in_session.problem) is not (is_answer or is_unmapped)
    assert in_session.is_disk is not (is_answer or is_unmapped)  # nothing answers for a disk that has no names


def test_an_id_that_udev_and_others_print_differently_is_none():
    """udev keeps a character of UTF-8, which others print as underscores; of other bytes all make underscores."""

    def page(name):
        return page_83(b"\x02\x01\0" + bytes([len(name)]) + name)

    assert id_from_page_83(page(b"EVIL_lun-\xe9_1"), LIO) == "1EVIL_lun-__1"
    assert id_from_page_83(page("EVIL_lun-é_1".encode()), LIO) is None


# --- ids in texts


TEXTS = ["{}", "scsi-{}", "a,{},b", "/dev/disk/by-id/scsi-{}", "/dev/disk/by-scsid/{}/sdb", "/dev/mapper/{}"]
MORE = ["/dev/disk/by-id/scsi-{}-part2", "/dev/disk/by-scsibus/{}-3:0:0:1", "/dev/disk/by-id/dm-uuid-mpath-{}"]


@settings(max_examples=examples(40))
@given(st.text([chr(code) for code in range(0x21, 0x7F) if chr(code) != "/"], min_size=3, max_size=40))
def test_every_id_is_found_in_what_sm_and_udev_make_of_it_and_not_in_a_longer_one(scsi_id):
    for text in TEXTS:
        assert names_lun(text.format(scsi_id), scsi_id)
        assert not names_lun(text.format("x" + scsi_id + "y"), scsi_id)


def test_the_luns_of_a_text_are_those_that_it_names():
    assert names_lun("/dev/disk/by-id/scsi-1ACME_a_b_1-part2", "1ACME_a(b;1"), "the link that udev makes of odd letters"
    cases = [(text.format(one), one) for text in TEXTS + MORE for one in (NAA_6_ID, "1LIO-ORG_clone:5ab1c2_d3e4")]
    for text, scsi_id in [*cases, (f"wwn-0x{NAA_6_ID[1:]}-part1", NAA_6_ID)]:
        assert scsi_id in luns_named(text) and names_lun(text, scsi_id), text


@pytest.mark.parametrize("scsi_id", [NAA_6_ID, "1LIO-ORG_clone:5ab1c2_d3e4", "SATA_disk-5"])
def test_what_disks_give_can_be_an_id(scsi_id):
    assert is_scsi_id(scsi_id)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a b", "a\n", "3" * 256, "\xe9"])
def test_what_leads_out_of_a_path_or_cannot_be_printed_is_no_id(text):
    assert not is_scsi_id(text)


# --- what an array prints, and a person types

FORMS = "Give the SCSIid as `scsi_id -g` prints it, .* naa. or eui. before it. .*, and 16 that begin with 5."
_HEX = "0123456789abcdef"
_NAA_6 = st.text(_HEX, min_size=31, max_size=31).map("6{}".format)
_NAA_5 = st.text(_HEX, min_size=15, max_size=15).map("5{}".format)
_OTHER_NAA = st.builds("{}{}".format, st.sampled_from("123"), st.text(_HEX, min_size=15, max_size=15))
_EUI = st.sampled_from([16, 24, 32]).flatmap(lambda size: st.text(_HEX, min_size=size, max_size=size))
#: (udev's first character, the prefixes that say this type, the number)
_NUMBERS = st.one_of(
    st.tuples(st.just("3"), st.just(("naa.", "wwn-0x", "0x", "")), _NAA_6 | _NAA_5),
    st.tuples(st.just("3"), st.just(("naa.", "wwn-0x")), _OTHER_NAA),
    st.tuples(st.just("2"), st.just(("eui.",)), _EUI),
)


@settings(max_examples=examples(200))
@given(
    _NUMBERS, st.sampled_from(["", ":", "-"]), st.sampled_from([1, 2, 4, 8]), st.booleans(), st.sampled_from(["", " "])
)
def test_every_printed_form_leads_to_udevs_form(number, separator, size, is_upper, blank):
    kind, prefixes, digits = number
    grouped = separator.join(digits[at : at + size] for at in range(0, len(digits), size))
    for prefix in prefixes + ("scsi-" + kind, kind):
        text = prefix + (grouped if not prefix.startswith("scsi-") else digits)
        assert typed_scsi_id(blank + (text.upper() if is_upper else text) + blank) == kind + digits


@settings(max_examples=examples(200))
@given(st.text("!#$%&()*+,.;<=>?@_{}GHIJKLMNOPQRSTUVWYZ0123456789ghijklmnopqrstuvwyz", min_size=1, max_size=60))
def test_an_unknown_text_stays_as_it_is(text):
    """T10 and vendor names keep their capitals: they are the names of links and maps."""
    for scsi_id in ("1" + text + "G", "0" + text + "G", "S" + text):
        assert typed_scsi_id(scsi_id) == scsi_id


@pytest.mark.parametrize(
    "scsi_id",
    [
        NAA_6_ID,
        "33001405ab1c2d3e4",
        "20025385ab1c2d3e4",
        "1LIO-ORG_clone:5ab1c2_d3e4",
        "0LIO-ORG_clone_SER_0042",
        "SLIO-ORG_clone_x42",
        "3naa.x",
        "360a9",
        "3600",
    ],
)
def test_udevs_own_form_stays_as_it_is(scsi_id):
    assert typed_scsi_id(scsi_id) == scsi_id == typed_scsi_id("scsi-" + scsi_id)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 16,
        "6" * 16,
        "5" * 32,
        "A" * 24,
        "0x" + "2" * 16,
        "12:34:56:78:9a:bc:de:f0",
        "f0351b7a-1726-4201-9d84-792f2dd894f4",
    ],
)
def test_a_number_that_may_be_of_several_kinds_is_refused_with_the_forms(text):
    with pytest.raises(UsageError, match=f"'{text}' may be a number of several kinds. {FORMS}") as caught:
        typed_scsi_id(text)
    assert caught.value.sm_key == "ConfigSCSIid"


@pytest.mark.parametrize(
    "text", ["", "a/b", "naa.", "naa." + "6" * 31, "naa.6001405x", "wwn-0x1", "0x12", "eui." + "1" * 17, "e\xe9"]
)
def test_no_number_of_its_kind_is_no_scsi_id(text):
    with pytest.raises(UsageError, match=f" is no SCSIid. {FORMS}"):
        typed_scsi_id(text)


PIECES = st.lists(st.sampled_from([
    "1ACME", "3600", "wwn-0x", "600", "x", "(b;1", "_b_1", ",", "/", " ", "scsi-", "mpath-", "dm-uuid-",
    "part1-", "-part2", "-3:0:0:1", "dm-name-", "by-id",
]), min_size=1, max_size=8).map("".join)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(PIECES, PIECES)
def test_the_records_that_name_a_lun_are_those_whose_texts_name_the_lun(scsi_id, text):
    there = [text] + [each.format(scsi_id) for each in TEXTS + MORE] + [each.format(f"x{scsi_id}y") for each in TEXTS]
    named = [each for each in dict.fromkeys(there) if names_lun(each, scsi_id)]
    assert sorted(NamedLuns((each, each) for each in there).refs(scsi_id)) == sorted(named)


@pytest.mark.parametrize(
    "scsi_id", ["SATA-part1-5", "a-1:2", "a-1:2:", "a-part", "a-", "-part1", "a,b-part1", "a-3:0:0:1-part1"]
)
def test_a_lun_is_found_whose_scsi_id_has_what_stands_behind_scsi_ids(scsi_id):
    texts = [scsi_id + behind for behind in ("", "-part1", "-part12", "-3:0:0:1", ",b", "-part1-part2", "x")]
    named = [text for text in texts if names_lun(text, scsi_id)]
    assert NamedLuns((text, text) for text in texts).refs(scsi_id) == named and len(named) > 4


def test_the_memory_of_the_index_grows_as_the_texts_do():
    text = "x" + "-part1" * 5000 + "-3:0:0:1" * 1000
    tracemalloc.start()
    named = NamedLuns([(text, "the record")])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert named.refs("x") == ["the record"] and peak < 20 * len(text)


def test_a_directory_below_dev_that_goes_during_the_walk_has_no_node(tmp_path, monkeypatch):
    """udev removes a directory with the last device in it."""
    (tmp_path / "sys/dev/block/8:32").mkdir(parents=True)
    (tmp_path / "dev/gone").mkdir(parents=True)
    disk = SimpleNamespace(st_mode=stat.S_IFBLK, st_rdev=os.makedev(8, 32))
    with monkeypatch.context() as patch:
        patch.setattr(scsi.os, "stat", lambda *_, **__: disk)
        patch.setattr(scsi.os, "lstat", lambda path: os.readlink(f"{path}/no link"))  # raises FileNotFoundError
        found = scsi.node_of("/dev/sdc", Host(str(tmp_path)))

    assert found == ""
