# SPDX-License-Identifier: LGPL-2.1-only
"""What LVM is told after an identity has changed, and when it needs no telling."""

import os

import pytest

from relvmoiscsi.errors import CommandFailed
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


@pytest.fixture
def tell(tmp_path):
    """tell(entries of the devices file, whether lvmetad runs, programs and their failures): the warnings."""

    def tell_with(entries, has_lvmetad, *expected):
        expected = list(expected)

        def run(argv, **_options):
            assert expected, f"not expected: {argv}"
            expected_argv, failure = expected.pop(0)
            assert tuple(argv) == expected_argv, f"add: ({tuple(argv)}, None)"
            if failure:
                raise CommandFailed(argv, 5, failure)
            return ""

        for path, text in (
            ("etc/lvm/devices/system.devices", entries),
            ("run/lvm/lvmetad.socket", has_lvmetad or None),
        ):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                (tmp_path / path).write_text(HEADER + str(text))
        warnings = tell_lvm("/dev/sdc", run, str(tmp_path))
        assert expected == []
        return warnings

    return tell_with


@pytest.mark.parametrize(
    "entries, has_lvmetad, programs",
    [
        (None, False, []),
        (None, True, [(PVSCAN, None)]),
        (BY_NAME, False, [(DELETE, None), (ADD, None)]),
        (BY_WWID, False, []),  # which LVM corrects itself
        (BY_NAME.replace("/dev/sdc", "/dev/sdd"), False, []),
        ("IDTYPE=devname IDNAME= DEVNAME=/dev/sdc\n", False, []),
        ("IDTYPE\n=\n\0\n", False, []),
        # a devices file that LVM is told not to use is no reason to warn
        (BY_NAME, False, [(DELETE, "Devices file not enabled.")]),
    ],
)
def test_lvmetad_looks_again_and_a_device_listed_by_name_is_removed_and_added(tell, entries, has_lvmetad, programs):
    assert tell(entries, has_lvmetad, *programs) == []


def test_an_entry_under_another_name_of_the_device_counts(tell, tmp_path):
    os.symlink("/dev/sdc", str(tmp_path / "alias"))

    assert (
        tell(BY_NAME.replace("IDNAME=/dev/sdc", f"IDNAME={tmp_path}/alias"), False, (DELETE, None), (ADD, None)) == []
    )


@pytest.mark.parametrize(
    "has_lvmetad, programs, words",
    [
        (True, [(PVSCAN, "no lock"), (DELETE, None), (ADD, "no device")],
         [("no lock", "`pvscan --cache /dev/sdc`"), ("no device", "`lvmdevices --adddev /dev/sdc`")]),
        (False, [(DELETE, "locked")], [("locked",)]),  # what could not be removed is not added
    ],
)  # fmt: skip
def test_failures_come_back_as_sentences_that_say_what_to_run(tell, has_lvmetad, programs, words):
    warnings = tell(BY_NAME, has_lvmetad, *programs)

    assert len(warnings) == len(words)
    assert all(word in warning for warning, said in zip(warnings, words) for word in said)


def test_an_unreadable_devices_file_is_a_warning(tell, tmp_path):
    (tmp_path / "etc/lvm/devices/system.devices").mkdir(parents=True)

    (warning,) = tell(None, False)

    assert "cannot be read: Is a directory" in warning
