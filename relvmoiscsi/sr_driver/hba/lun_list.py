# SPDX-License-Identifier: LGPL-2.1-only
"""The list that lvmohba prints on stderr without a SCSIid: the LUNs and the adapters of the host.

The list omits the LUNs of the pool's SRs and the LUN that this host runs on. Each listed LUN is free, or a clone.
Source: SM drivers/devscan.py, scan (behaviour only); docs/host.rst, "Lists on stderr".
"""

from typing import Callable, Dict, List, Sequence, Tuple

from relvmoiscsi.host.hba.adapters import Adapter, Disk, port_facts
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
    """Return the XML of error 107. `is_used` is called with each SCSIid. A disk without a SCSIid is left out."""
    lines = ['<?xml version="1.0" ?>', "<Devlist>"]
    by_lun: Dict[str, List[Disk]] = {}
    for disk in disks:
        if disk.scsi_id:
            by_lun.setdefault(disk.scsi_id, []).append(disk)
    for first, *others in by_lun.values():
        if is_used(first.scsi_id):
            continue
        adapter_number, channel, target, lun = first.address.split(":")
        rows = [
            ("path", "/dev/" + first.name + "".join(f" [{disk.name}]" for disk in others)),
            ("numpaths", str(1 + len(others))),
            ("SCSIid", first.scsi_id),
            ("vendor", first.vendor),
            ("serial", first.serial),
            ("size", str(first.size_bytes)),
            ("adapter", adapter_number),
            ("channel", channel),
            ("id", target),
            ("lun", lun),
            ("hba", first.driver),
        ]
        lines += _element("BlockDevice", rows, 1)
    for adapter in adapters:
        facts = [("host", adapter.name), ("name", adapter.driver)]
        facts += [("manufacturer", describe(adapter.driver) or "Unknown"), ("id", adapter.number)]
        lines += ["\t<Adapter>", *_leaves(facts, 2)]
        for kind, names in _KINDS:
            of_port = port_facts(adapter, kind, names, host)
            if of_port is not None:
                lines += _element(kind, list(of_port.items()), 2)
        lines.append("\t</Adapter>")
    return "\n".join([*lines, "</Devlist>"]) + "\n"


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
