# SPDX-License-Identifier: LGPL-2.1-only
"""The lists of errors 96 and 107; test_driver.py has their bytes."""

from xml.etree import ElementTree

from kit.iscsi.lun import address_of
from relvmoiscsi.iscsi import LunInfo, Portal
from relvmoiscsi.sr_driver.iscsi.unnamed import lun_list, target_list


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

    assert rows(target_list(targets, Portal("array,10.0.0.6", 3260))) == (
        "iscsi-target-iqns",
        [
            ("TGT", [("Index", "0"), ("IPAddress", "10.0.0.5"), ("TargetIQN", "iqn.a:1")]),
            ("TGT", [("Index", "1"), ("IPAddress", "fd00::7"), ("Port", "3261"), ("TargetIQN", "iqn.a:2")]),
            ("TGT", [("Index", "2"), ("IPAddress", "10.0.0.6"), ("TargetIQN", "iqn.a:2")]),
            ("TGT", [("Index", "3"), ("IPAddress", "array,10.0.0.6"), ("TargetIQN", "*")]),
        ],
    )


def test_each_scsi_id_is_once_and_they_come_by_number():
    _, found = rows(lun_list([facts(5, "3600b"), facts(3, "3600a"), facts(4, "3600a"), facts(300, "3600c")]))

    assert [(dict(row)["LUNid"], dict(row)["SCSIid"]) for _, row in found] == [
        ("3", "3600a"),
        ("5", "3600b"),
        ("16684", "3600c"),  # flat addressing, as Linux has it
    ]
