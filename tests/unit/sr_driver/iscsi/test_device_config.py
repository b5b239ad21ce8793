# SPDX-License-Identifier: LGPL-2.1-only
"""What device-config keys mean: lvmoiscsi's names, several ways to give an address, CHAP in clear or as a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from relvmoiscsi.errors import UsageError
from relvmoiscsi.portal import Portal
from relvmoiscsi.sr_driver.iscsi.iscsi_config import Chap, IscsiConfig

IQN = DEVICE_CONFIG["targetIQN"]
VDI = "7d2d9e72-1839-4ea5-85bd-6cecf8841738"


def config(**changed):
    values = dict(DEVICE_CONFIG)
    values.update(changed)
    return IscsiConfig({key: value for key, value in values.items() if value is not None})


def test_what_an_orchestrator_sends():
    found = config(resign="true", usediscoverynumber="nonsense", multihomed="", LUNid="1", allocation="thin", x="x")

    assert vars(found) == vars(config())
    assert (found.portals, found.target_iqn, found.scsi_id) == ((Portal("10.0.0.5", 3260),), IQN, SCSI_ID)
    assert (found.chap, found.incoming_chap, found.local_iqn, found.is_master) == (None, None, None, True)


#: a key: what is given, and what the field becomes
READ = {
    ("target", "portals"): [
        (target, tuple(Portal(address, 3260) for address in addresses.split()))
        for target, addresses in (
            ("fe80::1%eth0", "fe80::1%eth0"),
            (" 10.0.0.6 , san7,[fd00::7] ", "10.0.0.6 san7 fd00::7"),
            ("10.0.0.5,,10.0.0.5,", "10.0.0.5"),
        )
    ],
    ("port", "portals"): [
        (port, (Portal("10.0.0.5", number),))
        for port, number in ((None, 3260), ("", 3260), (" ", 3260), ("1", 1), (" 65535 ", 65535))
    ],
    ("targetIQN", "target_iqn"): [
        *((iqn, "") for iqn in ("", None, " ", "*")),
        *((" " + iqn, iqn) for iqn in (IQN, "eui.0123456789ABCDEF", "naa.52004567BA64678D", "iqn.2001-04.x:a_b.C,t0")),
    ],
    ("SCSIid", "scsi_id"): [("", ""), (None, ""), (" ", ""), ("NAA." + "6A" * 16, "3" + "6a" * 16)],
    ("localIQN", "local_iqn"): [(" iqn.1993-08.org.debian:01:x ", "iqn.1993-08.org.debian:01:x"), (" ", None)],
    ("SRmaster", "is_master"): [("false", False), ("False", False), ("true", True), (None, True)],
    ("vdis", "vdis"): [(None, None), ("", None), (" ", None), ("one", "one"), (" all ", "all")],
    ("vdi", "vdi"): [(None, None), (" ", None), (f" {VDI} ", VDI), (VDI.upper(), VDI)],
    ("clear-metadata-vdi", "clear_databases"): [
        (None, False), ("", False), *((text, True) for text in ("true", "True", " yes ", "1")),
        *((text, False) for text in ("false", "False", "no", "0")),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "key, field, value, expected", [(*names, *pair) for names, pairs in READ.items() for pair in pairs]
)
def test_what_a_key_says(key, field, value, expected):
    assert getattr(config(**{key: value}), field) == expected


NONE_OF_THOSE = {
    "target": (
        "ConfigTargetMissing",
        [None, "  ", " , ,", "[]", "10.0.0.5,a b", "\u05d0" * 16000, "h" * 254, "fe80::1%"],
    ),
    "port": ("ISCSIPort", ["0", "65536", "-1", "3260x", "\u00b2", "\u0663\u0662\u0666\u0660", "9" * 5000, "1_0"]),
    "targetIQN": ("ConfigTargetIQNMissing", ["clone7", "iqn.", "iqn.a\nb", "iqn.x/../../y", "iqn." + "x" * 220]),
    "SCSIid": ("ConfigSCSIid", ["a b", "../x", "x" * 256, "\u00e9", "1" * 24]),
    "localIQN": ("InvalidArg", ["foo", "iqn.x", "eui.0123", "iqn.2026-01.a b", "iqn.2026-01." + "x" * 212]),
    "vdis": ("InvalidArg", ["two", "ONE"]),
    "clear-metadata-vdi": ("InvalidArg", ["ture", "on", "2", "true,"]),
    "SRmaster": ("InvalidArg", ["perhaps"]),
    "vdi": ("InvalidArg", [VDI[:-1], "root disk"]),
}


@pytest.mark.parametrize(
    "key, sm_key, value", [(key, sm_key, value) for key, (sm_key, values) in NONE_OF_THOSE.items() for value in values]
)
def test_what_is_none_of_those_is_refused_by_its_key(key, sm_key, value):
    with pytest.raises(UsageError, match="device-config:" + key) as caught:
        config(**{key: value})
    assert caught.value.sm_key == sm_key


@pytest.mark.parametrize("prefix", ["", "incoming_"])
def test_a_password_may_be_clear_or_a_secret(prefix):
    def given_as(**keys):
        outgoing = {} if not prefix else {"chapuser": "alice", "chappassword": "out"}
        found = config(**dict(outgoing, **{prefix + key: value for key, value in keys.items()}))
        return found.incoming_chap if prefix else found.chap

    assert given_as(chapuser="bob", chappassword=" in 1 ") == Chap("bob", " in 1 ")
    assert given_as(chapuser="bob", chappassword_secret="0f4b") == Chap("bob", "0f4b", True)
    assert given_as(chapuser="bob", chappassword="x", chappassword_secret="0f4b") == Chap("bob", "0f4b", True)
    assert given_as(chapuser="bob", chapsecret="0f4b") == Chap("bob", "0f4b", True)
    assert given_as(chapuser="", chappassword="", chappassword_secret="") is None
    assert given_as() is None


def test_portals_that_sm_has_found_come_after_those_of_the_target():
    found = config(
        target="10.0.0.5",
        targetIQN="iqn.a:1",
        multihomelist="10.0.0.5:3260, 10.0.0.6:3261,[fd00::1]:3260",
        multiSession="10.0.0.7,3260,iqn.a:1|10.0.0.8,3260,iqn.a:other|10.0.0.6,3261,iqn.a:1|",
    )

    assert [str(portal) for portal in found.portals] == [
        "10.0.0.5:3260",
        "10.0.0.6:3261",
        "[fd00::1]:3260",
        "10.0.0.7:3260",
    ]


@pytest.mark.parametrize("key", ["multihomelist", "multiSession"])
@pytest.mark.parametrize("value", [",", "|", "nonsense", "10.0.0.9", "10.0.0.9:x", "10.0.0.9:99999", ",3260,iqn.a:1|"])
def test_what_is_no_portal_in_a_list_of_sm_is_passed_over(key, value):
    assert vars(config(targetIQN="iqn.a:1", **{key: value})) == vars(config(targetIQN="iqn.a:1"))


@given(st.dictionaries(st.sampled_from(["target", "targetIQN", "SCSIid", "port", "chapuser", "localIQN"]), st.text()))
def test_no_value_ends_in_another_error(values):
    try:
        IscsiConfig(values)
    except UsageError as error:
        keys = ("ConfigTargetMissing", "ConfigTargetIQNMissing", "ConfigSCSIid", "ISCSIPort", "InvalidArg")
        assert error.sm_key in keys
