# SPDX-License-Identifier: LGPL-2.1-only
"""What device-config keys mean: lvmohba's names, and those that say what is to be looked for."""

import pytest

from kit.driver_calls import SCSI_ID
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver.hba import HBA
from relvmoiscsi.sr_driver.hba.config import HbaConfig

VDI = "7d2d9e72-1839-4ea5-85bd-6cecf8841738"
PORT = "500a098186c37a1d"


@pytest.mark.parametrize(
    "text, is_meant", [("true", True), ("True ", True), ("1", True), ("false", False), ("", False)]
)
def test_that_it_is_a_clone_must_be_said_in_so_many_words(text, is_meant):
    assert HbaConfig({"resign": text}).is_meant is is_meant


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"novelty": "x"}, {"scsi_id": "", "device": "", "is_meant": False, "is_master": True, "driver": "any"}),
        ({"allocation": "thin"}, {"lun": None, "wwpns": (), "vdis": None, "vdi": None}),
        ({"targetWWPN": PORT}, {"wwpns": (PORT,)}),
        ({"targetWWPN": "50:0A:09:81:86:C3:7A:1D," + PORT}, {"wwpns": (PORT,)}),
        ({"targetWWPN": f"0x{PORT}, 500a098286c37a1d,"}, {"wwpns": (PORT, "500a098286c37a1d")}),
        ({"lun": "0"}, {"lun": 0}),
        ({"device": " /dev/disk/by-id/scsi-.."}, {"device": "/dev/disk/by-id/scsi-.."}),
        ({"lun": " 16385 "}, {"lun": 16385}),
        ({"SCSIid": SCSI_ID, "SRmaster": "false"}, {"scsi_id": SCSI_ID, "is_master": False}),
        ({"SCSIid": "60:" * 15 + "60"}, {"scsi_id": "3" + "60" * 16}),
        ({"vdis": "one", "vdi": VDI.upper()}, {"vdis": "one", "vdi": VDI}),
    ],
)
def test_what_keys_say(given, expected):
    found = HBA.parse_config(given)

    assert {name: getattr(found, name) for name in expected} == expected
    assert HBA.sr_type[:2] == ("relvmohba", "lvmohba")


@pytest.mark.parametrize(
    "key, text, sm_key",
    [
        ("lun", "seven", "InvalidArg"),
        ("resign", "ture", "InvalidArg"),
        ("targetWWPN", "500a09", "InvalidArg"),
        # no path that may lead to a file system that does not answer: a look at it would hang the call
        *[("device", text, "InvalidArg") for text in ("/dev/disk/by-id/../../mnt/x", "/dev/..", "/mnt/x", "dev/sda")],
        *[("type", text, "InvalidArg") for text in ("qla(", "(a+)+$", "qla.*", "a|b", "x" * 65, "--yes x", "qla\n2")],
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(key, text, sm_key):
    with pytest.raises(UsageError, match="device-config:" + key) as caught:
        HbaConfig({key: text})

    assert caught.value.sm_key == sm_key
