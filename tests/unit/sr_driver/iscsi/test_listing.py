# SPDX-License-Identifier: LGPL-2.1-only
"""The lists of errors 96 and 107; test_driver.py has their bytes."""

from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from kit.iscsi.lun import address_of
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.iscsi import LunInfo, Portal, TargetLuns
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.target_sessions import MAX_PORTALS, targets_in
from relvmoiscsi.iscsi.text_keys import MAX_KEYS
from relvmoiscsi.sr_driver.iscsi.unnamed import lun_list, missing_key, target_list


def facts(number, scsi_id):
    return LunInfo(address_of(number), scsi_id, "LIO-ORG", "clone", "993c87c3", 10737418240)


def rows(document):
    root = ElementTree.fromstring(document)
    return root.tag, [(row.tag, [(field.tag, (field.text or "").strip()) for field in row]) for row in root]


def test_targets():
    targets = [
        (Portal("10.0.0.5"), "iqn.a:1"),
        (Portal("fd00::7", 3261), "iqn.a:2"),
        (Portal("10.0.0.6"), "iqn.a:2"),
    ]

    assert rows(target_list(targets, ("array,10.0.0.6", 3260))) == (
        "iscsi-target-iqns",
        [
            ("TGT", [("Index", "0"), ("IPAddress", "10.0.0.5"), ("TargetIQN", "iqn.a:1")]),
            ("TGT", [("Index", "1"), ("IPAddress", "fd00::7"), ("Port", "3261"), ("TargetIQN", "iqn.a:2")]),
            ("TGT", [("Index", "2"), ("IPAddress", "10.0.0.6"), ("TargetIQN", "iqn.a:2")]),
            ("TGT", [("Index", "3"), ("IPAddress", "array,10.0.0.6"), ("TargetIQN", "*")]),
        ],
    )


def listed(*keys):
    """The targets in an answer to SendTargets, as rows of the list."""
    answer = b"".join(key + b"\0" for key in keys)
    found = targets_in(answer, Portal("10.0.0.5"))
    return found, target_list([(at, iqn) for iqn, portals in found.items() for at in portals], ("10.0.0.5", 3260))


@pytest.mark.parametrize(
    "name, number",
    [(b"i" * 20000, 500), (b"\xff" * 75, 500), (b"i" * 223, 20000)],
    ids=["a long name", "a name that is no text", "many portals"],
)
def test_the_name_of_a_target_is_not_repeated_without_bounds(name, number):
    addresses = [b"TargetAddress=10.0.%d.%d" % divmod(one, 256) for one in range(number)]
    found, document = listed(b"TargetName=iqn.a:1", b"TargetName=" + name, *addresses, b"TargetName=iqn.a:2")

    assert found["iqn.a:1"] == found["iqn.a:2"] == (Portal("10.0.0.5"),)
    assert sum(map(len, found.values())) <= 2 + MAX_PORTALS
    assert len(document) < (3 + MAX_PORTALS) * 500


def test_a_name_of_the_longest_length_is_listed_with_all_its_portals():
    addresses = [b"TargetAddress=10.0.0.%d" % one for one in range(MAX_PORTALS)]
    found, _ = listed(b"TargetName=" + b"i" * 223, *addresses, *addresses)

    assert {iqn: len(portals) for iqn, portals in found.items()} == {"i" * 223: MAX_PORTALS}


NO_NAMES = [b"iqn.a is locked. Run `halt`", b"iqn.a\n", b"", b"*", "iqn.\u202e".encode(), b"a`halt`"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_no_target_may_have_is_left_out_with_its_portals(name, caplog):
    """Its words would stand in the list of a person, as words of the program."""
    caplog.set_level("INFO")
    found, _ = listed(b"TargetName=IQN.a-1:b_2", b"TargetName=" + name, b"TargetAddress=10.0.0.6")

    assert found == {"IQN.a-1:b_2": (Portal("10.0.0.5"),)}
    assert f"1 names and addresses were left out; the first: {name.decode()!r} is no name of a target" in caplog.text


def test_an_answer_with_more_keys_is_refused():
    assert len(listed(*[b"TargetName=%d" % one for one in range(MAX_KEYS)], b"", b"")[0]) == MAX_KEYS
    with pytest.raises(Violation, match="more than 32768 keys"):
        listed(*[b"TargetName=a"] * (MAX_KEYS + 1))


@pytest.mark.parametrize(
    "bad", [b"TargetAddress=%d:99999", b"TargetAddress=" + b"a" * 9000 + b"%d", b"TargetName=" + b"n" * 9000 + b"%d"]
)
def test_what_is_left_out_has_one_line_in_the_log(bad, caplog):
    caplog.set_level("DEBUG")
    found, _ = listed(b"TargetName=iqn.a:1", *[bad % one for one in range(50)])

    assert found == {"iqn.a:1": (Portal("10.0.0.5"),)}
    (line,) = caplog.messages
    assert "50 names and addresses were left out" in line and len(line) < 500


def test_a_list_of_luns_has_a_limit_and_the_error_says_what_is_left_out(monkeypatch):
    luns = TargetLuns([facts(1, "3600a"), facts(2, "3600b")], 61440)
    access = SimpleNamespace(config=SimpleNamespace(target_iqn="iqn.a"), luns=lambda _deadline: luns)
    error = missing_key(access, NO_DEADLINE)
    assert "The list leaves out 61440 LUNs: it has at most 4096." in error.message
    assert ElementTree.fromstring(error.xml).attrib == {"left_out": "61440"} and len(rows(error.xml)[1]) == 2


def test_a_list_of_targets_has_a_limit_too():
    targets = {f"iqn.a:{number}": (Portal("10.0.0.5"),) for number in range(4098)}
    config = SimpleNamespace(target_iqn="", target="10.0.0.5", portals=[Portal("10.0.0.5")])
    access = SimpleNamespace(config=config, portals=config.portals, discovered=lambda *_: targets)
    error = missing_key(access, NO_DEADLINE)
    assert "The list leaves out 2 targets: it has at most 4096." in error.message
    assert ElementTree.fromstring(error.xml).attrib == {"left_out": "2"} and len(rows(error.xml)[1]) == 4097


def test_each_scsi_id_is_once_and_they_come_by_number():
    _, found = rows(lun_list([facts(5, "3600b"), facts(3, "3600a"), facts(4, "3600a"), facts(300, "3600c")]))

    assert [(dict(row)["LUNid"], dict(row)["SCSIid"]) for _, row in found] == [
        ("3", "3600a"),
        ("5", "3600b"),
        ("16684", "3600c"),  # flat addressing, as Linux has it
    ]
