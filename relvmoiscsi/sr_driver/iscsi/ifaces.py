# SPDX-License-Identifier: LGPL-2.1-only
"""The network interfaces that an administrator has set aside for iSCSI.

They are ifaces of open-iscsi whose names begin with `c_`: where there are any, SM goes through them alone. What they
name is read from open-iscsi's files; a session of ours leaves through the same interface, or from the same address.
Source: SM drivers/iscsilib.py, get_iscsi_interfaces; open-iscsi README, "iface configs".
"""

import os
from glob import escape, glob
from typing import Dict, List

from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.this_host import THIS_HOST, Host

DIRECTORIES = ("etc/iscsi/ifaces", "var/lib/iscsi/ifaces")
PREFIX = "c_"
_UNSET = ("", "<empty>", "default")


def interfaces(host: Host = THIS_HOST) -> List[str]:
    """Network interfaces ("eth1") or own addresses to leave by, in the order to try; [""] where any will do."""
    found = []
    for directory in DIRECTORIES:
        for path in sorted(glob(os.path.join(escape(host.at(directory)), PREFIX + "*"))):
            found.append(_leaving_by(_values(path), host))
    return list(dict.fromkeys(filter(None, found))) or [""]


def _values(path: str) -> Dict[str, str]:
    pairs = [line.partition("=") for line in text_of(path).splitlines() if not line.startswith("#")]
    return {name.strip(): value.strip() for name, is_set, value in pairs if is_set}


def _leaving_by(values: Dict[str, str], host: Host) -> str:
    """open-iscsi takes the hardware address first. "" for an iface of a card, which TCP of this host does not reach."""
    if values.get("iface.transport_name", "tcp") != "tcp":
        return ""
    hardware = values.get("iface.hwaddress", "")
    if hardware not in _UNSET:
        return _interface_with(hardware, host)
    for name in ("iface.net_ifacename", "iface.ipaddress"):
        if values.get(name, "") not in _UNSET:
            return values[name]
    return ""


def _interface_with(hardware: str, host: Host) -> str:
    for path in sorted(glob(os.path.join(escape(host.sysfs), "class/net/*/address"))):
        if text_of(path).strip().lower() == hardware.lower():
            return os.path.basename(os.path.dirname(path))
    return ""
