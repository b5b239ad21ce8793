# SPDX-License-Identifier: LGPL-2.1-only
"""The lists of errors 96 and 107, as orchestrators read them."""

from xml.dom import minidom
from xml.etree import ElementTree

from kit.iscsi.lun import address_of
from relvmoiscsi.iscsi import LunInfo, Portal, Target
from relvmoiscsi.sr_driver.iscsi.unnamed import lun_list, target_list


def facts(number, scsi_id, vendor="LIO-ORG", serial="993c87c3"):
    return LunInfo(address_of(number), scsi_id, vendor, "clone", serial, 10737418240)


def rows(document):
    root = ElementTree.fromstring(document)
    return root.tag, [(row.tag, [(field.tag, (field.text or "").strip()) for field in row]) for row in root]


def test_luns():
    assert rows(lun_list([facts(0, "3600a"), facts(12, "3600b", "A&B <1>")])) == (
        "iscsi-target",
        [
            (
                "LUN",
                [("vendor", vendor), ("serial", "993c87c3"), ("LUNid", lun), ("size", "10737418240"), ("SCSIid", scsi)],
            )
            for vendor, lun, scsi in (("LIO-ORG", "0", "3600a"), ("A&B <1>", "12", "3600b"))
        ],
    )


def test_targets():
    targets = [Target("iqn.a:1", (Portal("10.0.0.5"),)), Target("iqn.a:2", (Portal("fd00::7", 3261),))]

    assert rows(target_list(targets, Portal("array,10.0.0.6", 3260))) == (
        "iscsi-target-iqns",
        [
            ("TGT", [("Index", "0"), ("IPAddress", "10.0.0.5"), ("TargetIQN", "iqn.a:1")]),
            ("TGT", [("Index", "1"), ("IPAddress", "fd00::7"), ("Port", "3261"), ("TargetIQN", "iqn.a:2")]),
            ("TGT", [("Index", "2"), ("IPAddress", "array,10.0.0.6"), ("TargetIQN", "*")]),
        ],
    )


def test_nothing_found():
    assert rows(lun_list([])) == ("iscsi-target", [])
    assert rows(target_list([], Portal("10.0.0.5", 3260))) == (
        "iscsi-target-iqns",
        [("TGT", [("Index", "0"), ("IPAddress", "10.0.0.5"), ("TargetIQN", "*")])],
    )


def test_cloudstack_finds_the_lun():
    """XML from its first "<?xml" on; the SCSIid of the LUN block whose LUNid is the wanted one."""
    failure = "[SR_BACKEND_FAILURE_107, , The SCSIid is missing., " + lun_list([facts(0, "3600a"), facts(1, "3600b")])
    document = minidom.parseString(failure[failure.index("<?xml") :])

    found = [
        {node.tagName: node.firstChild.data.strip() for node in lun.childNodes if node.nodeType == node.ELEMENT_NODE}
        for lun in document.getElementsByTagName("LUN")
    ]

    assert [lun["SCSIid"] for lun in found if lun["LUNid"] == "1"] == ["3600b"]
    document.unlink()


def test_the_layout_is_that_of_sm():
    assert lun_list([facts(0, "3600a")]).splitlines()[:6] == [
        '<?xml version="1.0" ?>',
        "<iscsi-target>",
        "\t<LUN>",
        "\t\t<vendor>",
        "\t\t\tLIO-ORG",
        "\t\t</vendor>",
    ]


def test_a_target_with_several_portals_has_a_row_for_each():
    target = Target("iqn.a:1", (Portal("10.0.0.5"), Portal("10.0.0.6")))

    _, found = rows(target_list([target], Portal("10.0.0.5", 3260)))

    assert [dict(row)["IPAddress"] for _, row in found] == ["10.0.0.5", "10.0.0.6", "10.0.0.5"]


def test_each_scsi_id_is_once_and_they_come_by_number():
    _, found = rows(lun_list([facts(5, "3600b"), facts(3, "3600a"), facts(4, "3600a"), facts(300, "3600c")]))

    assert [(dict(row)["LUNid"], dict(row)["SCSIid"]) for _, row in found] == [
        ("3", "3600a"),
        ("5", "3600b"),
        ("16684", "3600c"),  # flat addressing, as Linux has it
    ]
