# SPDX-License-Identifier: LGPL-2.1-only
"""What LVM is told after an identity has changed, and when it needs no telling."""

import os

import pytest

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import Completed
from relvmoiscsi.host.disk.lvm_memory import tell_lvm

PVSCAN = ("pvscan", "--cache", "/dev/sdc")
DELETE = ("lvm", "lvmdevices", "--yes", "--deldev", "/dev/sdc")
ADD = ("lvm", "lvmdevices", "--yes", "--adddev", "/dev/sdc")

# As lvmdevices 2.03.16 wrote it (`lvmdevices --adddev /dev/loop0 --deviceidtype devname`), the paths changed.
HEADER = """# LVM uses devices listed in this file.
# Created by LVM command lvmdevices pid 14585 at Sat Nov 21 02:25:44 2026
VERSION=1.1.6
"""
BY_NAME = "IDTYPE=devname IDNAME=/dev/sdc DEVNAME=/dev/sdc PVID=0hK2bJQ3W2sYYuhNHmhjAXXQ4Wo6Pj1X\n"
BY_WWID = "IDTYPE=sys_wwid IDNAME=naa.60014050000 DEVNAME=/dev/sdc PVID=0hK2bJQ3W2sYYuhNHmhjAXXQ4Wo6Pj1X\n"


class Transcript:
    """Programs that end as the test says; any other call fails and shows the line to add."""

    def __init__(self, *expected):
        self.expected = list(expected)

    def __call__(self, argv, **options):
        assert self.expected, f"not expected: {argv}"
        expected_argv, failure = self.expected.pop(0)
        assert tuple(argv) == expected_argv, f"add: ({tuple(argv)}, None)"
        if failure:
            raise CommandFailed(argv, 5, failure)
        return Completed(0, "", "")


@pytest.fixture
def host(tmp_path):
    return Host(str(tmp_path))


class Host:
    def __init__(self, root):
        self.root = root

    def has_lvmetad(self):
        self.put("run/lvm/lvmetad.socket", "")

    def has_devices_file(self, entries):
        self.put("etc/lvm/devices/system.devices", HEADER + entries)

    def put(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def tell(self, *expected, path="/dev/sdc"):
        programs = Transcript(*expected)
        warnings = tell_lvm(path, programs, self.root)
        assert programs.expected == []
        return warnings


def test_without_lvmetad_and_devices_file_nothing_is_run(host):
    assert host.tell() == []


def test_lvmetad_is_told_to_look_again(host):
    host.has_lvmetad()

    assert host.tell((PVSCAN, None)) == []


def test_a_device_listed_by_name_is_removed_and_added(host):
    host.has_devices_file(BY_NAME)

    assert host.tell((DELETE, None), (ADD, None)) == []


def test_an_entry_under_another_name_of_the_device_counts(host):
    os.symlink("/dev/sdc", os.path.join(host.root, "alias"))
    host.has_devices_file(BY_NAME.replace("IDNAME=/dev/sdc", "IDNAME=" + os.path.join(host.root, "alias")))

    assert host.tell((DELETE, None), (ADD, None)) == []


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param("", id="no entry"),
        pytest.param(BY_WWID, id="by wwid, which LVM corrects itself"),
        pytest.param(BY_NAME.replace("/dev/sdc", "/dev/sdd"), id="another device"),
        pytest.param("#" + BY_NAME, id="a comment"),
        pytest.param("IDTYPE=devname IDNAME= DEVNAME=/dev/sdc\n", id="an entry without a name"),
        pytest.param("IDTYPE\n=\n\0\n", id="no entries at all"),
    ],
)
def test_any_other_entry_is_left_alone(host, entries):
    host.has_devices_file(entries)

    assert host.tell() == []


def test_a_devices_file_that_lvm_is_told_not_to_use_is_no_reason_to_warn(host):
    host.has_devices_file(BY_NAME)

    assert host.tell((DELETE, "Devices file not enabled.")) == []


def test_failures_come_back_as_sentences_that_say_what_to_run(host):
    host.has_lvmetad()
    host.has_devices_file(BY_NAME)

    warnings = host.tell((PVSCAN, "no lock"), (DELETE, None), (ADD, "no device"))

    assert len(warnings) == 2
    assert "no lock" in warnings[0] and "`pvscan --cache /dev/sdc`" in warnings[0]
    assert "no device" in warnings[1] and "`lvmdevices --adddev /dev/sdc`" in warnings[1]


def test_what_could_not_be_removed_is_not_added(host):
    host.has_devices_file(BY_NAME)

    (warning,) = host.tell((DELETE, "locked"))

    assert "locked" in warning


def test_an_unreadable_devices_file_is_a_warning(host):
    os.makedirs(os.path.join(host.root, "etc/lvm/devices/system.devices"))

    (warning,) = host.tell()

    assert "cannot be read: Is a directory" in warning
