# SPDX-License-Identifier: LGPL-2.1-only
"""The answer to a call without a SCSIid: the LUNs that the adapters see after a scan. The scan's disks are removed.

The answer is the list that lvmohba prints on stderr: the LUNs and the adapters of the host. The list omits the LUNs of
the pool's SRs, the direct LUNs of this host, and the LUN that this host runs on. Each listed LUN is free, or a clone.
"""

import logging
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Callable, Dict, List, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import run
from relvmoiscsi.host.disk import paths
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import scan
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun import pool_records
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.discovery import DISK_SECONDS, SCAN_SECONDS
from relvmoiscsi.sr_driver.hba.other_luns import OtherLuns, ids_used_here
from relvmoiscsi.sr_driver.protocol import list_document, list_element, said_left_out
from relvmoiscsi.sr_driver.transport import MissingKey
from relvmoiscsi.sr_types import MOST_LUNS

log = logging.getLogger(__name__)

LIST_SECONDS = 4.0  #: for the answers of all disks of a list
BUSY_SECONDS = 3.0  #: wait for SM's LVM lock. While a probe waits, xapi plugs no PBD

_FC_FACTS = ("node_name", "port_name", "port_state", "speed", "supported_speeds")
_ISCSI_FACTS = ("hwaddress", "initiatorname", "ipaddress", "port_speed", "port_state")
_KINDS = (("fc_host", _FC_FACTS), ("iscsi_host", _ISCSI_FACTS))


def missing_scsi_id(
    config: HbaConfig, xapi: Xapi, deadline: Deadline, lock_seconds: float, host_ref: str = ""
) -> MissingKey:
    """Return the list of LUNs after a scan. While SM holds its LVM lock, return the list without a scan and say so."""
    adapters = hba.adapters(config.driver)
    pool = pool_records.read_srs(xapi)
    busy = advice = ""
    with ExitStack() as stack, terminated.only_here():
        try:
            stack.enter_context(sm_locks.lvm_lock(timeout=deadline.within(max(lock_seconds, BUSY_SECONDS))))
            others = OtherLuns(adapters, pool, partial(pool_records.read_srs, xapi), host_ref)
            if adapters:
                stack.enter_context(others.hidden())
        except Refused as problem:
            busy = " The adapters were not scanned, so LUNs that were mapped of late are not in the list. "
            busy, advice = busy + problem.message, problem.advice
            log.warning("the list has the present disks only, without a scan: %s", problem)
        else:
            stack.callback(lambda: others.forget(deadline.for_cleanup()))
            for failure in scan(hba.places(adapters, config.lun, config.wwpns), deadline.part(SCAN_SECONDS)):
                log.warning("%s", failure)
            came = others.new_addresses()
            THIS_HOST.wait_for(lambda: all(hba.disk_at(one) for one in came), deadline.within(DISK_SECONDS))
        # A disk without an answer in time has the kernel's values.
        found = hba.disks(adapters)
        used = ids_used_here()
        asked = [disk.name for disk in found if disk.scsi_id not in used]
        faces = paths.look(asked, deadline.part(LIST_SECONDS))
        for number, disk in enumerate(found):
            face = faces.get(disk.name)
            if face is not None and face.scsi_id != disk.scsi_id:
                log.warning("the disk %s was the LUN %s, and is %s now", disk.name, disk.scsi_id, face.scsi_id)
            if face is not None:
                now = disk._replace(scsi_id=face.scsi_id, serial=face.serial, size_bytes=face.size_bytes)
                found[number] = now

        def is_used(scsi_id: str) -> bool:
            return scsi_id in used or bool(pool_records.users_of(scsi_id, pool, here=host_ref))

        xml, left_out = device_list(found, adapters, is_used, _description)
    if config.device:
        text = f"{config.device} leads to no LUN with a SCSIid (device-config:device)."
    else:
        text = "The SCSIid (device-config:SCSIid) is missing."
    text += said_left_out(left_out, "LUN")
    return MissingKey(text + busy, "ConfigSCSIid", xml).advising(advice)


@lru_cache(maxsize=None)
def _description(driver: str) -> str:
    """Return the description of the kernel module, which SM lists as the manufacturer."""
    try:
        return run(["modinfo", "-d", driver]).strip()
    except RelvmoiscsiError:
        return ""


def device_list(
    disks: Sequence[hba.Disk],
    adapters: Sequence[hba.Adapter],
    is_used: Callable[[str], bool],
    describe: Callable[[str], str],
    host: Host = THIS_HOST,
) -> Tuple[str, int]:
    """Return the XML of error 107, and how many LUNs the XML leaves out: it has at most MOST_LUNS.

    `is_used` is called with each SCSIid, `describe` with the driver of each adapter. A disk without a SCSIid is left
    out. Source: SM drivers/devscan.py, scan (behaviour only); docs/host.rst, "Lists on stderr".
    """
    lines: List[str] = []
    by_lun: Dict[str, List[hba.Disk]] = {}
    for disk in disks:
        if disk.scsi_id:
            by_lun.setdefault(disk.scsi_id, []).append(disk)
    free = [paths for scsi_id, paths in by_lun.items() if not is_used(scsi_id)]
    for first, *others in free[:MOST_LUNS]:
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
        lines += list_element("BlockDevice", rows)
    for adapter in adapters:
        facts = [("host", adapter.name), ("name", adapter.driver)]
        facts += [("manufacturer", describe(adapter.driver) or "Unknown"), ("id", adapter.number)]
        inner: List[str] = []
        for kind, names in _KINDS:
            of_port = hba.port_facts(adapter, kind, names, host)
            inner += list_element(kind, list(of_port.items()), 2) if of_port is not None else []
        lines += list_element("Adapter", facts, inner=inner)
    left_out = len(free) - len(free[:MOST_LUNS])
    return list_document("Devlist", lines, left_out), left_out
