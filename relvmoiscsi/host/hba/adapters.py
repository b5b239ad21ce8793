# SPDX-License-Identifier: LGPL-2.1-only
"""Host bus adapters, and the disks behind the adapters, from sysfs.

    /sys/class/scsi_host/host1            an adapter: the name of its driver, and the file `scan`
    /sys/class/fc_host/host1              the port of a Fibre Channel adapter
    /sys/class/fc_remote_ports/rport-1:0-3    a target port that has logged in: its WWPN, its SCSI target number
    /sys/bus/scsi/devices/1:0:0:7         host, channel, target, LUN

SM and this module count the same SCSI hosts as adapters: SAS, RAID and virtual adapters are included; ATA, USB and
software iSCSI are not.
Source: SM drivers/devscan.py (behaviour only); Linux Documentation/scsi/scsi_fc_transport.
"""

import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence

from relvmoiscsi import untrusted
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address, unit_serial
from relvmoiscsi.host.files import attribute, lines_of, matching, names_in
from relvmoiscsi.host.this_host import THIS_HOST, Host

ANY_DRIVER = "any"

_NO_ADAPTERS = re.compile(r"^(?:[sp]?ata_|ahci$|pdc_adma$|iscsi_tcp$|usb-storage$|uas$)")
#: sysfs files that name the driver of an adapter, where no attribute holds the driver's name
_BY_FILE = (("84xx_fw_version", "qla2xxx"), ("lpfc_fcp_class", "lpfc"), ("fnic_state", "fnic"))
_NO_NAME = ("", "<NULL>", "(NULL)", "(null)")
_ADDRESS = re.compile(r"\d+:\d+:\d+:\d+\Z")
_REMOTE_PORT = re.compile(r"rport-(\d+):(\d+)-\d+\Z")
_DISK = "0"  #: the peripheral type of a disk
_SECTOR = 512
_MAX_PERIPHERAL = 255  #: the highest LUN number in peripheral addressing
_FLAT = 0x4000  #: flat addressing adds this number to a LUN number, which is lower


class Adapter(NamedTuple):
    """A SCSI host."""

    name: str  #: "host1"
    driver: str  #: "qla2xxx"

    @property
    def number(self) -> str:
        return self.name[len("host") :]


class Disk(NamedTuple):
    """A path to a LUN. A text is "" if the LUN does not report the value."""

    name: str  #: "sdb"
    address: str  #: "1:0:0:7"
    driver: str  #: of its adapter
    scsi_id: str
    vendor: str
    serial: str
    size_bytes: int


class TargetPort(NamedTuple):
    """A target port that an adapter is logged in to."""

    address: str  #: "1:0:0": host, channel, target
    wwpn: str  #: "500a098186c37a1d"
    is_online: bool  #: sysfs keeps a port whose link is down for some time


class ScanPlace(NamedTuple):
    """A place where an adapter looks for LUNs."""

    adapter: Adapter
    where: str  #: "channel target LUN"; "-" stands for all channels, targets or LUNs


def adapters(driver: str = ANY_DRIVER, host: Host = THIS_HOST) -> List[Adapter]:
    """Return the adapters of this host by number. `driver` is the start of a driver's name."""
    found = []
    for path in matching(host.at("sys/class/scsi_host"), "host[0-9]*"):
        drivers = [driver for name, driver in _BY_FILE if os.path.exists(os.path.join(path, name))]
        drivers += [attribute(path, "driver_name"), attribute(path, "proc_name")]
        lines = lines_of(path, "uevent")
        drivers += [line.partition("=")[2] for line in lines if line.startswith("PHYSDEVDRIVER=")]
        adapter = Adapter(os.path.basename(path), next((one for one in drivers if one not in _NO_NAME), "Unknown"))
        if not _NO_ADAPTERS.match(adapter.driver) and (driver == ANY_DRIVER or adapter.driver.startswith(driver)):
            found.append(adapter)
    return sorted(found, key=lambda adapter: int(adapter.number))


def addresses(adapter_list: Sequence[Adapter], host: Host = THIS_HOST) -> List[str]:
    """Return the SCSI addresses of all LUNs behind the adapters, with and without a disk of the kernel."""
    numbers = {adapter.number for adapter in adapter_list}
    devices = host.at("sys/bus/scsi/devices")
    found = [one for one in names_in(devices) if _ADDRESS.match(one) and one.split(":")[0] in numbers]
    there = [one for one in found if attribute(devices, one, "type") == _DISK]
    return sorted(there, key=lambda address: [int(part) for part in address.split(":")])


def addresses_of(scsi_id: str, adapter_list: Sequence[Adapter], host: Host = THIS_HOST) -> List[str]:
    """Return the SCSI addresses behind the adapters whose LUN has this SCSIid."""
    return [one for one in addresses(adapter_list, host) if scsi_id_of_address(one, host) == scsi_id]


def disk_at(address: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the kernel's name of the disk at a SCSI address; None if the kernel has no disk or udev no node yet."""
    found = names_in(host.at("sys/bus/scsi/devices", address, "block"), "sd*")
    return found[0] if found and os.path.exists(host.node(found[0])) else None


def disks(adapter_list: Sequence[Adapter], host: Host = THIS_HOST) -> List[Disk]:
    """Return the disks behind the adapters in the order of their SCSI addresses."""
    drivers: Dict[str, str] = {adapter.number: adapter.driver for adapter in adapter_list}
    devices, found = host.at("sys/bus/scsi/devices"), []
    for address in addresses(adapter_list, host):
        name = disk_at(address, host)
        if name is not None:
            sectors = attribute(host.at("sys/block", name, "size"))
            disk = Disk(
                name=name,
                address=address,
                driver=drivers[address.split(":")[0]],
                scsi_id=scsi_id_of_address(address, host) or "",
                vendor=attribute(devices, address, "vendor"),
                serial=unit_serial(os.path.join(devices, address, "vpd_pg80")),
                size_bytes=int(sectors or 0) * _SECTOR,
            )
            found.append(disk)
    return found


def places(
    adapter_list: Sequence[Adapter], lun: Optional[int] = None, wwpns: Sequence[str] = (), host: Host = THIS_HOST
) -> List[ScanPlace]:
    """Return the places to scan: all places, or only this LUN number, or only behind these target ports.

    A target port is a WWPN such as "500a098186c37a1d". An adapter that sees none of the ports has no place, so the list
    may be empty.
    """
    numbers = ["-"] if lun is None else [str(number) for number in numbers_of(lun)]
    if not wwpns:
        return [ScanPlace(adapter, f"- - {number}") for adapter in adapter_list for number in numbers]
    return [
        ScanPlace(adapter, " ".join([*port.address.split(":")[1:], number]))
        for adapter in adapter_list
        for port in _ports(adapter, host)
        if port.wwpn in wwpns
        for number in numbers
    ]


def numbers_of(lun: int) -> List[int]:
    """Return the numbers that the kernel may give the LUN with this number.

    The kernel takes the two bytes of a LUN address as one number. Up to 255, the second byte is the LUN number. Above
    255, many arrays use flat addresses, which have 0x40 in the first byte. Other arrays use the plain number.
    Source: SAM-5 4.7.4 and on; Linux drivers/scsi/scsi_common.c, scsilun_to_int, int_to_scsilun.
    """
    return [lun, _FLAT + lun] if _MAX_PERIPHERAL < lun < _FLAT else [lun]


def remote_ports(adapter_list: Sequence[Adapter], host: Host = THIS_HOST) -> List[str]:
    """Return the WWPNs of the target ports that the adapters are logged in to."""
    return sorted({port.wwpn for adapter in adapter_list for port in _ports(adapter, host)})


def ports_online(adapter_list: Sequence[Adapter], host: Host = THIS_HOST) -> List[str]:
    """Return the target ports that the adapters are logged in to now, as SCSI addresses without a LUN: "1:0:0".

    When a port comes up, the kernel itself looks for LUNs behind the port, without a scan.
    Source: Linux drivers/scsi/scsi_transport_fc.c, fc_remote_port_rolechg, fc_scsi_scan_rport.
    """
    return [port.address for adapter in adapter_list for port in _ports(adapter, host) if port.is_online]


def port_facts(adapter: Adapter, kind: str, names: Sequence[str], host: Host = THIS_HOST) -> Optional[Dict[str, str]]:
    """Return these attributes of the adapter as an "fc_host" or "iscsi_host" (`kind`), without empty attributes.

    None if sysfs does not have the adapter as such a port.
    """
    directory = host.at("sys/class", kind, adapter.name)
    if not os.path.exists(directory):
        return None
    found = {name: attribute(directory, name) for name in names}
    return {name: text for name, text in found.items() if text}


def _ports(adapter: Adapter, host: Host) -> List[TargetPort]:
    found = []
    for path in matching(host.at("sys/class/fc_remote_ports"), f"rport-{adapter.number}:*"):
        match, target = _REMOTE_PORT.search(path), attribute(path, "scsi_target_id")
        if match and untrusted.is_number(target):  # -1: the remote port is an initiator, or it has logged out
            address, name = f"{adapter.number}:{match.group(2)}:{target}", attribute(path, "port_name")
            wwpn = name[2:] if name.startswith("0x") else name
            found.append(TargetPort(address, wwpn, attribute(path, "port_state") == "Online"))
    return found
