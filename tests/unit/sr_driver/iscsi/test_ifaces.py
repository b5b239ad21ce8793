# SPDX-License-Identifier: LGPL-2.1-only
"""Which network interface a session leaves by: that of an iface of open-iscsi whose name begins with c_."""

import pytest

from relvmoiscsi.host.this_host import Host
from relvmoiscsi.sr_driver.iscsi.target_access import DIRECTORIES, interfaces

HARDWARE = "00:16:3e:00:00:0a"


def put(root, path, text):
    path = root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize(
    "lines, expected",
    [
        (["iface.net_ifacename = eth1"], ["eth1"]),
        (["iface.ipaddress = 10.0.0.7"], ["10.0.0.7"]),
        (["iface.net_ifacename = <empty>", "iface.ipaddress = 10.0.0.7"], ["10.0.0.7"]),
        (["iface.hwaddress = " + HARDWARE.upper(), "iface.net_ifacename = eth1"], ["eth2"]),
        (["iface.hwaddress = 00:00:00:00:00:00"], [""]),
        (["iface.hwaddress = default", "iface.net_ifacename = default"], [""]),
        (["iface.transport_name = qla4xxx", "iface.ipaddress = 10.0.0.7"], [""]),
        (["# iface.net_ifacename = eth1", ""], [""]),
    ],
)
def test_it_is_the_one_that_the_iface_names(tmp_path, directory, lines, expected):
    put(tmp_path, "sys/class/net/eth2/address", HARDWARE + "\n")
    put(tmp_path, directory + "/c_iface", "\n".join(["# BEGIN RECORD", *lines, "# END RECORD"]) + "\n")

    assert interfaces(Host(str(tmp_path))) == expected


def test_other_ifaces_are_none_of_sm_s(tmp_path):
    put(tmp_path, "etc/iscsi/ifaces/default", "iface.net_ifacename = eth0\n")

    assert interfaces(Host(str(tmp_path))) == [""]


def test_several_are_tried_in_the_order_of_their_names(tmp_path):
    for name, interface in (("c_b", "eth2"), ("c_a", "eth1"), ("c_c", "eth1")):
        put(tmp_path, "etc/iscsi/ifaces/" + name, f"iface.net_ifacename = {interface}\n")

    assert interfaces(Host(str(tmp_path))) == ["eth1", "eth2"]
