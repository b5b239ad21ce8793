# SPDX-License-Identifier: LGPL-2.1-only
"""A stand-in for the stock lvmohba driver, as far as `xe sr-probe` and a plug need one. It writes to no LUN.

    sr_probe    without SCSIid 107. With one, multipath off: `pvs` on the LUN's link, and no scan. A LUN that is not
                there, a link that is not there and a LUN without LVM all give an empty list.
                Multipath on: 16 if there is a map; else a scan of all adapters if the link is missing, a map, `pvs`,
                and the map goes again.
    sr_attach   a scan of all adapters if the link is missing; 47 where the VG is not on any disk that LVM sees; else
                the VG's MGT volume is activated, on whatever disk LVM takes: nobody looks which one that is
    sr_detach   deactivated; the disks stay

Source: SM LVHDoHBASR.py, HBASR.py, mpath_dmp.py (behaviour only), with what was measured of them.
"""

import glob
import os
import re
import subprocess
import time
from xml.dom import minidom

from kit.pool.standin import SCSI_ID_MISSING, SR_UNAVAILABLE, UNIMPLEMENTED, Refused, entry, reply, tell

DRIVER_INFO = {
    "name": "LVHD over FC",
    "description": "SR plugin which represents disks as VHDs on LVs within a Volume Group created on an HBA LUN",
    "vendor": "the tests of relvmoiscsi",
    "copyright": "LGPL-2.1-only",
    "driver_version": "1.0",
    "required_api_version": "1.0",
    "capabilities": ["SR_PROBE", "SR_UPDATE"],
    "configuration": [{"key": "SCSIid", "description": "as of lvmohba"}],
}

SR_IN_USE, NO_MAP = 16, 432
MULTIPATHING = "/run/e2e/multipathing"  #: a file that says that the host has multipathing on
LVM = {"LVM_SYSTEM_DIR": "/etc/lvm/master", "LVM_SUPPRESS_FD_WARNINGS": "1"}


def main(argv):
    tell(*reply(argv[1], answer))


def answer(params):
    command, scsi_id = params["command"], params["device_config"].get("SCSIid")
    if command == "sr_get_driver_info":
        return DRIVER_INFO
    if not scsi_id:
        text = "The SCSIid parameter is missing or incorrect"
        raise Refused(SCSI_ID_MISSING, text, '<?xml version="1.0" ?><Devlist/>')
    if command == "sr_probe":
        return probe(scsi_id)
    if command in ("sr_attach", "sr_detach"):
        return plug(scsi_id, "VG_XenStorage-" + params["sr_uuid"], command == "sr_attach")
    if command in ("sr_scan", "sr_update", "vdi_update"):
        return None
    raise Refused(UNIMPLEMENTED, "Not implemented")


def probe(scsi_id):
    link = "/dev/disk/by-id/scsi-" + scsi_id
    if not os.path.exists(MULTIPATHING):
        return sr_list(link, scsi_id)
    if map_of(scsi_id):
        raise Refused(SR_IN_USE, "The SR device is currently in use")
    if not os.path.exists(link):
        scan()
    run("multipath", "-a", scsi_id)
    run("multipath", "-r", scsi_id)
    until(lambda: os.path.exists("/dev/mapper/" + scsi_id))
    if not map_of(scsi_id):
        raise Refused(NO_MAP, "Failed to activate multipath")
    try:
        return sr_list("/dev/mapper/" + scsi_id, scsi_id)
    finally:
        run("udevadm", "settle")
        until(lambda: run("multipath", "-f", scsi_id) is not None and not map_of(scsi_id))
        run("multipath", "-W")


def sr_list(device, scsi_id):
    document = minidom.Document()
    top = document.appendChild(document.createElement("SRlist"))
    found = re.findall("VG_XenStorage-([0-9a-f-]{36})", run("lvm", "pvs", "--noheadings", "-o", "vg_name", device))
    for uuid in found:
        entry(document, top, "SR", (("UUID", uuid), ("Devlist", scsi_id)))
    return document.toprettyxml()


def plug(scsi_id, vg, is_attached):
    if is_attached:
        if not os.path.exists("/dev/disk/by-id/scsi-" + scsi_id):
            scan()
        if vg not in run("lvm", "vgs", "--noheadings", "-o", "vg_name"):
            raise Refused(SR_UNAVAILABLE, f"The SR is not available [opterr=no such volume group: {vg}]")
    run("lvm", "lvchange", "-ay" if is_attached else "-an", vg + "/MGT")


def scan():
    for switch in glob.glob("/sys/class/scsi_host/host*/scan"):
        with open(switch, "w", encoding="ascii") as file:
            file.write("- - -")
    run("udevadm", "settle")


def map_of(scsi_id):
    for path in glob.glob("/sys/block/dm-*/dm/uuid"):
        with open(path, encoding="ascii") as file:
            if file.read().strip() == "mpath-" + scsi_id:
                return path
    return None


def run(*argv):
    """What a program printed, however it ended."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, **LVM),
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
