# SPDX-License-Identifier: LGPL-2.1-only
"""The list that lvmohba prints on stderr without a SCSIid: the LUNs and the adapters of the host.

The list omits the LUNs of the pool's SRs and the LUN that this host runs on. Each listed LUN is free, or a clone.
Source: SM drivers/devscan.py, scan (behaviour only); docs/host.rst, "Lists on stderr".
"""

from typing import Callable, Dict, List, Sequence, Tuple

from relvmoiscsi.host.hba.adapters import Adapter, Disk, is_port, port_facts
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.sr_driver.protocol import escaped

_FC_FACTS = ("node_name", "port_name", "port_state", "speed", "supported_speeds")
_ISCSI_FACTS = ("hwaddress", "initiatorname", "ipaddress", "port_speed", "port_state")
_KINDS = (("fc_host", _FC_FACTS), ("iscsi_host", _ISCSI_FACTS))

Entry = Tuple[str, List[Tuple[str, str]]]  #: a tag, and the rows of its element
#: Returns the description in the kernel module of a driver.
Describe = Callable[[str], str]


def device_list(
    disks: Sequence[Disk],
    adapters: Sequence[Adapter],
    is_used: Callable[[str], bool],
    describe: Describe,
    host: Host = THIS_HOST,
) -> str:
    """Return the XML of error 107. `is_used` is called with each SCSIid."""
    lines = ['<?xml version="1.0" ?>', "<Devlist>"]
    for paths in _luns(disks):
        if not is_used(paths[0].scsi_id):
            lines += _element("BlockDevice", _block_device(paths), 1)
    for adapter in adapters:
        lines += ["\t<Adapter>", *_leaves(_adapter(adapter, describe), 2)]
        for kind, names in _KINDS:
            if is_port(adapter, kind, host):
                lines += _element(kind, port_facts(adapter, kind, names, host), 2)
        lines.append("\t</Adapter>")
    return "\n".join([*lines, "</Devlist>"]) + "\n"


def _luns(disks: Sequence[Disk]) -> List[List[Disk]]:
    """Return the paths of each LUN, in the order of the first paths. A disk without a SCSIid is left out."""
    found: Dict[str, List[Disk]] = {}
    for disk in disks:
        if disk.scsi_id:
            found.setdefault(disk.scsi_id, []).append(disk)
    return list(found.values())


def _block_device(paths: Sequence[Disk]) -> List[Tuple[str, str]]:
    first = paths[0]
    adapter, channel, target, lun = first.address.split(":")
    return [
        ("path", "/dev/" + first.name + "".join(f" [{disk.name}]" for disk in paths[1:])),
        ("numpaths", str(len(paths))),
        ("SCSIid", first.scsi_id),
        ("vendor", first.vendor),
        ("serial", first.serial),
        ("size", str(first.size_bytes)),
        ("adapter", adapter),
        ("channel", channel),
        ("id", target),
        ("lun", lun),
        ("hba", first.driver),
    ]


def _adapter(adapter: Adapter, describe: Describe) -> List[Tuple[str, str]]:
    manufacturer = describe(adapter.driver) or "Unknown"
    names = [("host", adapter.name), ("name", adapter.driver), ("manufacturer", manufacturer)]
    return [*names, ("id", adapter.number)]


def _element(tag: str, rows: Sequence[Tuple[str, str]], depth: int) -> List[str]:
    margin = "\t" * depth
    return [f"{margin}<{tag}>", *_leaves(rows, depth + 1), f"{margin}</{tag}>"]


def _leaves(rows: Sequence[Tuple[str, str]], depth: int) -> List[str]:
    """Return the elements with white space around the text, as in SM's own lists on Python 2."""
    margin = "\t" * depth
    return [
        line
        for name, text in rows
        for line in (f"{margin}<{name}>", f"{margin}\t{escaped(text)}", f"{margin}</{name}>")
    ]
