# SPDX-License-Identifier: LGPL-2.1-only
"""What device-config keys mean: lvmohba's names, and those that say what is to be looked for."""

import pytest

from kit.driver_calls import SCSI_ID
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver.hba.config import parse_config
from relvmoiscsi.sr_driver.hba.transport import HBA

VDI = "7d2d9e72-1839-4ea5-85bd-6cecf8841738"


def config(**values):
    return parse_config(values)


def test_what_an_administrator_sends():
    found = config(SCSIid=SCSI_ID, resign="true", SRmaster="true", allocation="thin", novelty="x")

    assert (found.scsi_id, found.is_meant, found.is_master) == (SCSI_ID, True, True)
    assert (found.device, found.driver, found.lun, found.wwpns) == ("", "any", None, ())
    assert (found.vdis, found.vdi) == (None, None)


@pytest.mark.parametrize(
    "text, is_meant", [("true", True), ("True ", True), ("false", False), ("1", False), ("", False)]
)
def test_that_it_is_a_clone_must_be_said_in_so_many_words(text, is_meant):
    assert config(resign=text).is_meant is is_meant


def test_nothing_of_it_is_needed_to_get_the_list():
    found = config()

    assert (found.scsi_id, found.device, found.is_meant, found.is_master) == ("", "", False, True)


@pytest.mark.parametrize(
    "text, wwpns",
    [
        ("500a098186c37a1d", ("500a098186c37a1d",)),
        ("50:0A:09:81:86:C3:7A:1D", ("500a098186c37a1d",)),
        ("0x500a098186c37a1d, 500a098286c37a1d,", ("500a098186c37a1d", "500a098286c37a1d")),
        ("500a098186c37a1d,500A098186C37A1D", ("500a098186c37a1d",)),
    ],
)
def test_ports_of_the_array(text, wwpns):
    assert config(targetWWPN=text).wwpns == wwpns


@pytest.mark.parametrize("text, number", [("0", 0), (" 7 ", 7), ("16385", 16385), ("", None)])
def test_the_number_of_the_lun(text, number):
    assert config(lun=text).lun == number


@pytest.mark.parametrize(
    "key, text, sm_key",
    [
        ("SCSIid", "../etc", "ConfigSCSIid"),
        ("lun", "seven", "InvalidArg"),
        ("lun", "-1", "InvalidArg"),
        ("targetWWPN", "500a09", "InvalidArg"),
        ("targetWWPN", "- - -", "InvalidArg"),
        ("type", "qla(", "InvalidArg"),
        ("vdis", "two", "InvalidArg"),
        ("vdi", "two", "InvalidArg"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(key, text, sm_key):
    with pytest.raises(UsageError, match="device-config:" + key) as caught:
        config(**{key: text})

    assert caught.value.sm_key == sm_key


def test_what_every_transport_knows():
    found = HBA.parse_config({"SCSIid": SCSI_ID, "SRmaster": "false", "vdis": "one", "vdi": VDI.upper()})

    assert (found.scsi_id, found.is_master, found.vdis, found.vdi) == (SCSI_ID, False, "one", VDI)
    assert (HBA.sr_type, HBA.stock_type) == ("relvmohba", "lvmohba")
