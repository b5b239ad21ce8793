# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM, blkid, qemu-img and libvhdi read the builder's LUNs, and see what the independent reader sees.

The LUNs are image files behind loop devices. There may be no device-mapper, so no volume is activated; contents of
volumes are cut out by the builder's own segments.
"""

import itertools
import json
import os
import shutil
import struct
import subprocess

import pytest

from kit import builder, golden
from kit.reader import (
    lvm_crc,
    read_label,
    read_sr,
    read_vg,
    vg_view,
)
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range

pytestmark = pytest.mark.root

NEEDED = ("losetup", "pvs", "vgck", "pvck", "lvcreate", "blkid", "qemu-img", "vhdiinfo")
MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]

LUNS = {
    "one_vhd": builder.one_vhd,
    "golden_geometry": lambda: builder.one_vhd(area=builder.AREA_16M),
    "five_deep_with_raw_root": builder.five_deep_with_raw_root,
    "fragmented_locators": builder.fragmented_locators,
    "two_metadata_areas": builder.two_metadata_areas,
    "ignored_area": lambda: builder.two_metadata_areas("ignored"),
    "wrapped_text": builder.wrapped_text,
    "unaligned_text": lambda: builder.wrapped_text(5000 - 96 + 3),
    "many_vdis": lambda: builder.many_vdis(100, chained=True),
    "qcow2_chain": builder.qcow2_chain,
    "four_k": builder.four_k,
    "labels": builder.labels,
    "everything": builder.everything,
    "extension_0": lambda: builder.everything(ext_version=0, style="2.02"),
    "extension_1": lambda: builder.one_vhd(ext_version=1, style="2.02"),
    "label_in_sector_3": lambda: builder.one_vhd(label_sector=3),
    "label_tail": lambda: builder.one_vhd(label_tail=b"our own mark".ljust(64)),
    "small_area": lambda: builder.one_vhd(area=Range(4096, 61440)),
}
GRUMBLES = {"extension_0": "old PV header", "extension_1": "old PV header"}


@pytest.fixture(autouse=True)
def only_where_it_can_run():
    if os.geteuid() != 0:
        pytest.skip("needs root for loop devices")
    if MISSING:
        pytest.skip("not installed: {}".format(", ".join(MISSING)))


@pytest.fixture
def attach(tmp_path):
    """Put a disk into an image file behind a loop device; gives the device. All are detached at the end."""
    attached, numbers = [], itertools.count()

    def losetup(disk):
        path = str(tmp_path / f"lun{next(numbers)}")
        disk.to_file(path)
        options = ["--sector-size", str(disk.block_size)]
        done = run("losetup", "--find", "--show", *(options + [path]))
        attached.append((done.stdout.strip(), path))
        return attached[-1][0]

    def detach():
        paths = [path for _, path in attached]
        while attached:  # once: the next one to attach may get the same device
            run("losetup", "--detach", attached.pop()[0])
        return paths

    losetup.detach = detach
    yield losetup
    for device, _ in attached:
        subprocess.run(["losetup", "--detach", device], stderr=subprocess.DEVNULL, check=False)


def run(*argv, **options):
    environment = dict(os.environ, LVM_SUPPRESS_FD_WARNINGS="1", LC_ALL="C")
    status = options.pop("status", 0)
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, env=environment, check=False
    )
    assert done.returncode in ((status,) if isinstance(status, int) else status), (argv, done)
    return done


def lvm(device, *argv, **options):
    """An LVM command that sees this device and nothing else; (stdout, what it grumbles)."""
    config = f'global/activation=0 backup/backup=0 backup/archive=0 devices/filter=["a|^{device}$|","r|.*|"]'
    done = run(*argv, "--config", config, **options)
    lines = [line for line in done.stderr.splitlines() if "Activation disabled" not in line]
    return done.stdout, "\n".join(lines)


def report(device, command, *fields):
    argv = [command, "--reportformat", "json", "--units", "b", "--nosuffix", "-o", ",".join(fields)]
    out, _ = lvm(device, *argv)
    out = out.replace("  Retrying metadata scan.\n", "")
    (rows,) = json.loads(out)["report"][0].values()
    return [tuple(row[field] for field in fields) for row in rows]


@pytest.fixture(params=sorted(LUNS))
def lun(request):
    made = LUNS[request.param]()
    made.disk.name = request.param
    return made


@pytest.mark.states("lun")
def test_lvm_shows_the_vg_as_the_truth_says(lun, attach):
    device, truth = attach(lun.disk), lun.truth

    (pv,) = report(device, "pvs", "pv_uuid", "vg_name", "vg_uuid", "vg_seqno", "pe_start", "pv_pe_count", "dev_size")
    assert pv == (
        truth.pv_id,
        truth.vg_name,
        truth.vg_id,
        str(truth.seqno),
        str(truth.pe_start),
        str(truth.pe_count),
        str(lun.disk.size_bytes),
    )
    fields = ("lv_name", "lv_uuid", "lv_tags", "lv_attr", "segtype", "seg_start_pe", "seg_pe_ranges")
    shown = report(device, "lvs", *fields)
    expected = []
    for volume in truth.volumes:
        start, attr = 0, "-{}i-XX----".format("w" if volume.writable else "r")
        for count, first in volume.segments:
            part = f"{device}:{first}-{first + count - 1}"
            tags = ",".join(sorted(volume.tags))
            expected.append((volume.name, volume.lv_id, tags, attr, "linear", str(start), part))
            start += count
    assert sorted(shown) == sorted(expected)


@pytest.mark.states("lun")
def test_vgck_and_pvck_find_nothing(lun, attach):
    device, grumble = attach(lun.disk), GRUMBLES.get(lun.disk.name)

    out, err = lvm(device, "vgck")
    sector = str(lun.truth.label_sector)
    headers, _ = lvm(device, "pvck", "--dump", "headers", "--labelsector", sector, device)

    assert (out, [line for line in err.splitlines() if not (grumble and grumble in line)]) == ("", [])
    assert "CHECK" not in headers and "FAILED" not in headers
    assert f"label_header at {512 * lun.truth.label_sector}\n" in headers
    for area in lun.truth.areas:
        assert f"size {area.length}\n" in headers


@pytest.mark.states("lun")
def test_blkid_knows_the_disk(lun, attach):
    device = attach(lun.disk)

    words = run("blkid", "-p", "-o", "export", device).stdout.split()

    assert "TYPE=LVM2_member" in words
    assert "UUID=" + lun.truth.pv_id in words


@pytest.mark.states("lun")
def test_lvm_goes_on_from_there_and_the_reader_follows(lun, attach):
    before = read_vg(lun.disk)
    device = attach(lun.disk)

    lvm(device, "lvcreate", "-q", "-an", "-Zn", "-Wn", "-n", "added", "-l", "1", lun.truth.vg_name)
    lvm(device, "lvcreate", "-q", "-an", "-Zn", "-Wn", "-n", "added2", "-l", "1", lun.truth.vg_name)
    out, err = lvm(device, "vgck")
    (path,) = attach.detach()

    after = read_vg(SparseDisk.from_file(path))
    assert (out, err, after.warnings) == ("", "", ())
    assert after.seqno == before.seqno + 2
    assert after.lvs[:-2] == before.lvs
    assert [lv.name for lv in after.lvs[-2:]] == ["added", "added2"]
    assert (after.id, after.pv_id) == (before.id, before.pv_id)


def test_a_block_device_is_read_like_a_file(attach):
    lun = builder.four_k()

    assert SparseDisk.from_file(attach(lun.disk), 4096) == lun.disk


# -- contents of volumes


def cut_out(lun, volume, folder):
    """The contents of a volume in a file."""
    disk = SparseDisk(volume.size)
    at = 0
    for item in lun.truth.device_ranges(volume.key, 0, volume.size):
        disk.poke(at, lun.disk.peek(item.offset, item.length))
        at += item.length
    path = str(folder / volume.name)
    disk.to_file(path)
    return path


@pytest.mark.parametrize("name", ["five_deep_with_raw_root", "fragmented_locators", "everything", "labels"])
def test_libvhdi_reads_every_vhd(name, tmp_path):
    lun = LUNS[name]()
    by_key = {volume.key: volume for volume in lun.truth.volumes}

    for volume in lun.truth.volumes:
        if volume.kind != "vhd":
            continue
        out = run("vhdiinfo", cut_out(lun, volume, tmp_path)).stdout
        facts = dict(line.strip().split("\t: ") for line in out.replace("\t\t", "\t").splitlines() if "\t: " in line)
        facts = {key.strip(): value for key, value in facts.items()}
        parent = by_key.get(volume.parent)
        assert facts["Disk type"] == ("Differential" if parent else "Dynamic")
        assert facts["Identifier"] == volume.footer_uuid
        assert facts["Media size"] == "64 MiB (67108864 bytes)"
        if parent:
            dm_name = "-".join(part.replace("-", "--") for part in (lun.truth.vg_name, parent.name))
            assert facts["Parent filename"] == dm_name
            assert facts["Parent identifier"] == (parent.footer_uuid or "00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("name", ["one_vhd", "fragmented_locators", "many_vdis"])
def test_qemu_reads_the_guest_data_of_a_dynamic_vhd(name, tmp_path):
    lun = LUNS[name]()
    volume = next(v for v in lun.truth.volumes if v.kind == "vhd" and not v.parent)
    out = str(tmp_path / "raw")

    run("qemu-img", "convert", "-f", "vpc", "-O", "raw", cut_out(lun, volume, tmp_path), out)

    guest = SparseDisk.from_file(out)
    assert guest.size_bytes == 64 << 20
    blocks = len(volume.guest) // 4
    for number, item in enumerate(volume.guest):
        block, sector = number // 4, (0, 1, 100, 4095)[number % 4]
        (place,) = lun.truth.device_ranges(volume.key, item.offset, item.length)
        assert guest.peek(block * (2 << 20) + sector * 512, 512) == lun.disk.peek(place.offset, 512)
    assert sum(len(data) for _, data in guest.runs()) <= blocks * 3 * 4096


@pytest.mark.parametrize("key", ["base", "disk", "overraw", "alone"])
def test_qemu_finds_nothing_wrong_with_a_qcow2_image(key, tmp_path):
    lun = builder.qcow2_chain()
    volume = lun.truth.volume(key)
    image = next(image for image in read_sr(lun.disk).qcow2s if image.name == volume.name)
    path = cut_out(lun, volume, tmp_path)

    info = json.loads(run("qemu-img", "info", "-f", "qcow2", "--output", "json", path).stdout)
    blockdev = json.dumps({"driver": "qcow2", "file": {"driver": "file", "filename": path}, "backing": None})
    checked = run("qemu-img", "check", "--output", "json", "json:" + blockdev).stdout

    assert info["virtual-size"] == image.virtual_size
    assert info.get("backing-filename", "") == image.backing
    assert info.get("backing-filename-format", "") == image.backing_format
    result = json.loads(checked)
    assert (result["check-errors"], result["image-end-offset"], result["allocated-clusters"]) == (0, 6 * 65536, 1)


# -- the reader's rules of acceptance


def relabelled(lun, offset, data, crc=True):
    sector = bytearray(lun.disk.peek(512, 512))
    sector[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", sector, 16, lvm_crc(bytes(sector[20:])))
    lun.disk.poke(512, bytes(sector))
    return lun


def reheaded(lun, offset, data, crc=True, area=0):
    at = lun.truth.areas[area].offset
    header = bytearray(lun.disk.peek(at, 512))
    header[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", header, 0, lvm_crc(bytes(header[4:])))
    lun.disk.poke(at, bytes(header))
    return lun


def poked(lun, offset, data):
    lun.disk.poke(offset, data)
    return lun


def second_from_another_lun():
    lun, other = builder.two_metadata_areas(seqno=30), builder.two_metadata_areas(description="x", seqno=31)
    area = lun.truth.areas[1]
    return poked(lun, area.offset, other.disk.peek(area.offset, area.length))


ODD = {
    "as it is": builder.one_vhd,
    "magic of the label damaged": lambda: relabelled(builder.one_vhd(), 0, b"x", crc=False),
    "checksum of the label wrong": lambda: relabelled(builder.one_vhd(), 300, b"x", crc=False),
    "another type": lambda: relabelled(builder.one_vhd(), 24, b"RELVM001"),
    "wrong sector number": lambda: relabelled(builder.one_vhd(), 8, b"\x02"),
    "label zeroed": lambda: poked(builder.one_vhd(), 512, bytes(512)),
    "label in sector 4": lambda: poked(
        poked(builder.one_vhd(), 2048, builder.one_vhd(label_sector=0).disk.peek(0, 512)), 512, bytes(512)
    ),
    "LVM1 version 1 in sector 0": lambda: poked(builder.one_vhd(), 0, b"HM\1\0"),
    "LVM1 version 3 in sector 0": lambda: poked(builder.one_vhd(), 0, b"HM\3\0"),
    "header checksum wrong": lambda: reheaded(builder.one_vhd(), 300, b"x", crc=False),
    "header magic wrong": lambda: reheaded(builder.one_vhd(), 4, b"x"),
    "header version wrong": lambda: reheaded(builder.one_vhd(), 20, b"\x02"),
    "header start wrong": lambda: reheaded(builder.one_vhd(), 24, struct.pack("<Q", 8192)),
    "text checksum wrong": lambda: reheaded(builder.one_vhd(), 56, b"xxxx"),
    "slot 0 empty": lambda: reheaded(builder.one_vhd(), 40, bytes(24)),
    "ignored": lambda: reheaded(builder.one_vhd(), 60, b"\x01"),
    "slot 1 in use": lambda: builder.one_vhd(precommitted=True),
    "second area older": lambda: builder.two_metadata_areas("older"),
    "second area newer": second_from_another_lun,
    "first area damaged": lambda: reheaded(builder.two_metadata_areas(), 300, b"x", crc=False),
    "second area damaged": lambda: reheaded(builder.two_metadata_areas(), 300, b"x", crc=False, area=1),
}


@pytest.mark.states("what")
@pytest.mark.parametrize("what", sorted(ODD))
def test_lvm_and_the_reader_agree_on_what_is_there(what, attach):
    lun = ODD[what]()
    label, vg = read_label(lun.disk), read_vg(lun.disk)
    device = attach(lun.disk)

    pvs = report(device, "pvs", "pv_uuid", "vg_name", "vg_seqno") if label else []
    vgs = report(device, "vgs", "vg_uuid", "vg_name", "vg_seqno")
    _, err = lvm(device, "pvs")

    # an unusable metadata area may show its PV as unknown or not at all, but never as a VG
    if vg is None:
        assert vgs == []
        assert all(name in ("", "[unknown]") for _, name, _ in pvs)
    else:
        assert vgs == [(vg.id, vg.name, str(vg.seqno))]
        assert pvs == [(label.pv_id, vg.name, str(vg.seqno))]
    # whether a committed VG has something to complain about is seen by both
    assert bool(vg and vg.warnings) == bool(vg and err), (vg and vg.warnings, err)


SPOILED_TEXT = {
    "a shared extent": ('"pv0", 1\n', '"pv0", 0\n'),
    "an extent that is not there": ('"pv0", 1\n', '"pv0", 4000\n'),
    "a gap": ("start_extent = 0", "start_extent = 1"),
    "no seqno": ("seqno = ", "seqno_ = "),
    "a wrong segment count": ("segment_count = 1", "segment_count = 2"),
    "a creation time without host": ("\ncreation_host", "\nhost"),
    "another version": ("version = 1\n", "version = 2\n"),
    "an unknown status": ('"VISIBLE"]', '"VISIBLE", "NEW"]'),
    "a bad id": ('MGT {\nid = "', 'MGT {\nid = "1'),
    "a brace too many": ("}\n#", "}\n}\n#"),
    "no value": ("flags = []", "flags = ]"),
    "a section that is not closed": ("flags = []", "flags {"),
    "a blank before the name": ("VG_", " VG_"),
}


@pytest.mark.parametrize("what", sorted(SPOILED_TEXT))
def test_lvm_and_the_reader_refuse_the_same_texts(what, attach):
    old, new = SPOILED_TEXT[what]
    lun = builder.one_vhd(edit_text=lambda text: text.replace(old, new, 1), stale_texts=0)
    view = vg_view(lun.disk)
    device = attach(lun.disk)

    out, err = lvm(device, "vgs", "--noheadings", "-o", "vg_name", status=(0, 5))

    assert view[0] == "PV without VG" and view[-1]
    assert lun.truth.vg_name not in out.split()
    assert err


@pytest.mark.parametrize("name", golden.NAMES)
def test_lvm_shows_the_golden_luns_as_the_reader_does(name, attach):
    disk = golden.load(name).disk
    vg = read_vg(disk)
    device = attach(disk)

    assert report(device, "vgs", "vg_name", "vg_uuid", "vg_seqno") == [(vg.name, vg.id, str(vg.seqno))]
    assert set(report(device, "lvs", "lv_name", "lv_uuid", "lv_tags")) == {
        (lv.name, lv.id, ",".join(lv.tags)) for lv in vg.lvs
    }
    assert lvm(device, "vgck") == ("", "")
