# SPDX-License-Identifier: LGPL-2.1-only
"""The SCSIid of a LUN: the output of `scsi_id -g`, the value of device-config:SCSIid, and multipath's WWID.

    of a disk                  from the pages that the kernel has read          scsi_id_of_disk, scsi_id_of
    of a multipath map         its uuid without "mpath-"                        the same
    of the LUN at this moment  from the pages that the LUN gives now            live_scsi_id
    in a text                  valid SCSIids, and their forms in SM and udev    scsi_id_text

`vpd` has the rule itself: how pages 0x83 and 0x80 give the SCSIid.
"""

import ctypes
import errno
import fcntl
import logging
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from typing import Iterator, NamedTuple, Optional, Tuple

from relvmoiscsi import scsi
from relvmoiscsi.errors import DeviceError, NotFound, Refused, refuse_if_short
from relvmoiscsi.host.files import attribute, names_in
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.vpd import (
    INQUIRY_BYTES,
    PAGE_80,
    PAGE_83,
    PAGE_BYTES,
    VENDOR_SPECIFIC,
    Inquiry,
    id_from_page_80,
    id_from_page_83,
    inquiry_of,
    serial_from_page_80,
)

log = logging.getLogger(__name__)

#: start of the UUID of a map that kpartx has made of a partition; with the SCSIid, of a partition of a multipath map
PARTITION_MAP = re.compile("part[0-9]+-(?:mpath-(.+))?")

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.ENXIO, errno.ENODEV)
_LIVE_MILLISECONDS = 10000
_TRIES = 8  #: unit attentions that may be pending, one after the other
_BUSY_SECONDS = 5.0  #: a LUN that was busy for longer is an error: the callers wait some 8 s for an answer
_PAUSE_SECONDS = 0.1
_SG_IO = 0x2285  #: scsi/sg.h, as are the values in _SgIoHdr


def scsi_id_of(path: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the SCSIid of the disk or multipath map at `path`; None for a partition, loop device or image.

    Raises NotFound if nothing exists at `path`.
    """
    name = kernel_name(path, host)
    return None if name is None else scsi_id_of_disk(name, host)


def kernel_name(path: str, host: Host) -> Optional[str]:
    """Return the kernel's name of the block device at `path`; None if it is no block device. Raises NotFound."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path} does not exist.") from error
    if not stat.S_ISBLK(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return os.path.basename(os.path.realpath(host.at("sys/dev/block", number)))


def node_of(path: str, host: Host) -> str:
    """Return the node below /dev of the block device at `path`; "" for a device that has gone, and for a file.

    A node may have another name than the kernel's: /dev/cciss/c0d0, or what a container calls it. `path` may be of
    another user, so no program gets that name. Raises NotFound.
    """
    name, number = kernel_name(path, host), os.stat(path).st_rdev
    if name is None or not os.path.exists(host.at("sys/dev/block", f"{os.major(number)}:{os.minor(number)}")):
        return ""

    def is_node(node: str) -> bool:
        with suppress(OSError):  # a node that vanishes is no node of the device
            status = os.lstat(node)
            return stat.S_ISBLK(status.st_mode) and status.st_rdev == number
        return False

    if is_node(host.node(name)):
        return host.node(name)

    def is_roots(directory: str) -> bool:  # users make files in /dev/shm and /dev/mqueue, as many as they like
        try:
            status = os.lstat(directory)
        except FileNotFoundError:  # udev removes a directory with the last device in it
            return False
        is_of_this = status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return is_of_this and not os.path.ismount(directory)

    for directory, below, names in os.walk(host.at("dev"), onerror=refuse_if_short):
        below[:] = [each for each in below if is_roots(os.path.join(directory, each))]
        for each in sorted(names):
            if is_node(os.path.join(directory, each)):
                return os.path.join(directory, each)
    return ""


def scsi_id_at(path: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the SCSIid of the disk or multipath map at `path`; None also if the path or its answer is missing.

    `path` is any text, such as one in a record of xapi: one that is no path here leads to no LUN.
    """
    try:
        return scsi_id_of(path, host)
    except (NotFound, DeviceError, OSError, ValueError) as error:  # ValueError: a NUL, or a character of no locale
        log.debug("%s: no SCSIid: %s", path, error)
        return None


def hardware_of(path: str, host: Host = THIS_HOST) -> Tuple[str, str, str]:
    """Return vendor, model and unit serial number, from sysfs, of the disk at `path` or of a path of the map.

    A missing value is ""; all values are "" for a file that is no disk. Raises NotFound.
    """
    name = kernel_name(path, host)
    if name is None:
        return "", "", ""
    disk = [*names_in(host.at("sys/block", name, "slaves")), name][0]
    device = host.at("sys/block", disk, "device")
    return attribute(device, "vendor"), attribute(device, "model"), unit_serial(os.path.join(device, "vpd_pg80"))


class _SgIoHdr(ctypes.Structure):
    """A SCSI command for the kernel. Source: Linux include/scsi/sg.h, struct sg_io_hdr."""

    _fields_ = (
        ("interface_id", ctypes.c_int),
        ("dxfer_direction", ctypes.c_int),
        ("cmd_len", ctypes.c_ubyte),
        ("mx_sb_len", ctypes.c_ubyte),
        ("iovec_count", ctypes.c_ushort),
        ("dxfer_len", ctypes.c_uint),
        ("dxferp", ctypes.c_void_p),
        ("cmdp", ctypes.c_void_p),
        ("sbp", ctypes.c_void_p),
        ("timeout", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("pack_id", ctypes.c_int),
        ("usr_ptr", ctypes.c_void_p),
        ("status", ctypes.c_ubyte),
        ("masked_status", ctypes.c_ubyte),
        ("msg_status", ctypes.c_ubyte),
        ("sb_len_wr", ctypes.c_ubyte),
        ("host_status", ctypes.c_ushort),
        ("driver_status", ctypes.c_ushort),
        ("resid", ctypes.c_int),
        ("duration", ctypes.c_uint),
        ("info", ctypes.c_uint),
    )


class OpenDisk(NamedTuple):
    """A disk that is open, for questions to its LUN. A path may lead to another disk at each open."""

    name: str  #: for messages
    descriptor: int

    @property
    def link(self) -> str:
        """The path of the open disk."""
        return f"/proc/self/fd/{self.descriptor}"


@contextmanager
def opened(path: str, flags: int = 0) -> Iterator[OpenDisk]:
    """Open a disk for the block, for reading, with further flags. Raises DeviceError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        raise DeviceError(path, "read", 0, 0, error.strerror or str(error), error.errno) from error
    try:
        yield OpenDisk(path, descriptor)
    finally:
        os.close(descriptor)


def live_scsi_id(disk: OpenDisk) -> Optional[str]:
    """Return the SCSIid that the LUN behind the disk reports now, by the rule of `scsi_id_of`; None if none.

    The kernel read sysfs's pages when it found the disk; the array may have mapped another LUN since. udev's scsi_id
    also asks the disk. But scsi_id ends with status 1 and no message in three cases: no id, no answer, no disk. So this
    function sends the command itself.

    Raises DeviceError if the disk does not answer, or no LUN is mapped there.
    """
    page = live_page(disk, PAGE_83) or b""
    found = id_from_page_83(page, Inquiry(b"", b""))
    if found is not None and not found.startswith(f"{VENDOR_SPECIFIC:x}"):
        return found
    # Vendor and model are a part of every other kind of id.
    inquiry = inquiry_of(scsi_command(disk, scsi.inquiry(INQUIRY_BYTES), INQUIRY_BYTES) or b"")
    if inquiry is None:
        raise DeviceError(disk.name, "read", 0, INQUIRY_BYTES, "no LUN is mapped there any more", errno.ENXIO)
    return id_from_page_83(page, inquiry) or id_from_page_80(live_page(disk, PAGE_80) or b"", inquiry)


def live_page(disk: OpenDisk, number: int) -> Optional[bytes]:
    """Return a page of vital product data as the LUN reports it now, with header; None if the LUN has no such page.

    Raises DeviceError.
    """
    return scsi_command(disk, scsi.inquiry(PAGE_BYTES, number), PAGE_BYTES)


def live_serial(disk: OpenDisk) -> str:
    """Return the unit serial number that the LUN reports now, from page 0x80; "" if none. Raises DeviceError."""
    return serial_from_page_80(live_page(disk, PAGE_80) or b"")


def live_size(disk: OpenDisk) -> int:
    """Return the size in bytes that the LUN reports now (READ CAPACITY). Raises DeviceError, also for no size.

    The kernel's own size is from the moment when the kernel found the disk.
    """
    for command, size in scsi.CAPACITY_BYTES.items():
        capacity = scsi.capacity(command, scsi_command(disk, command, size) or b"")
        if capacity is not None:
            return capacity[0]
    raise DeviceError(disk.name, "read", 0, 0, "the LUN reports no size", errno.EIO)


def scsi_command(disk: OpenDisk, command: bytes, size: int) -> Optional[bytes]:
    """Return the LUN's answer to a question of at most `size` bytes; None if the LUN refuses this question.

    A LUN that is busy, or has a unit attention pending, is asked again. A LUN that does not answer, is no longer mapped
    or gives another error is a DeviceError: such a LUN is not known to be another LUN.
    """
    words = ctypes.create_string_buffer(command, len(command))
    give_up, tries_left = time.monotonic() + _BUSY_SECONDS, _TRIES
    while True:
        answer, sense = ctypes.create_string_buffer(size), ctypes.create_string_buffer(64)
        header = _SgIoHdr(
            interface_id=ord("S"),
            dxfer_direction=-3,  # from the device
            cmd_len=len(command),
            mx_sb_len=len(sense),
            dxfer_len=size,
            dxferp=ctypes.addressof(answer),
            cmdp=ctypes.addressof(words),
            sbp=ctypes.addressof(sense),
            timeout=_LIVE_MILLISECONDS,
        )
        try:
            fcntl.ioctl(disk.descriptor, _SG_IO, header)
        except OSError as error:
            raise DeviceError(disk.name, "read", 0, size, error.strerror or str(error), error.errno) from error
        if header.host_status or header.driver_status & ~8:  # 8: there is sense data; header.status is set then, too
            raise DeviceError(disk.name, "read", 0, size, "the SCSI command had no answer", errno.EIO)
        told = header.status, sense.raw[: header.sb_len_wr]
        verdict = scsi.judge_question(*told)
        if verdict == scsi.Verdict.DONE:
            return answer.raw[: size - header.resid]
        if verdict == scsi.Verdict.UNSUPPORTED:
            return None
        tries_left -= verdict == scsi.Verdict.LOOK_AGAIN
        is_passing = verdict == scsi.Verdict.LATER or verdict == scsi.Verdict.LOOK_AGAIN and tries_left
        if not is_passing or time.monotonic() > give_up:
            cause, advice = scsi.explained(*told)
            raise DeviceError(disk.name, "read", 0, size, cause, errno.EIO).advising(advice)
        if verdict == scsi.Verdict.LATER:
            time.sleep(_PAUSE_SECONDS)


def scsi_id_of_disk(name: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the SCSIid of a block device by the kernel's name: "sdc", "dm-3"."""
    disk = host.at("sys/block", name)
    if os.path.isdir(os.path.join(disk, "dm")):
        uuid = _content(os.path.join(disk, "dm/uuid")).decode("ascii", "replace").strip()
        return uuid[len("mpath-") :] or None if uuid.startswith("mpath-") else None
    return _id_of_device(os.path.join(disk, "device"))


def _id_of_device(device: str) -> Optional[str]:
    vendor, model = (_content(os.path.join(device, name)).rstrip(b"\n") for name in ("vendor", "model"))
    inquiry = Inquiry(vendor.ljust(8), model.ljust(16))
    found = id_from_page_83(_content(os.path.join(device, "vpd_pg83")), inquiry)
    return found or id_from_page_80(_content(os.path.join(device, "vpd_pg80")), inquiry)


def unit_serial(path: str) -> str:
    """Return the unit serial number from page 0x80 in sysfs; "" if there is none."""
    try:
        with open(path, "rb") as file:
            return serial_from_page_80(file.read())
    except OSError:
        return ""  # the LUN has no such page, or its disk is being removed


def _content(path: str) -> bytes:
    """Return a sysfs file; b"" if the kernel has no such file: no SCSI disk, or a disk without the page.

    Raises DeviceError if the file exists and cannot be read: an unknown id is not a missing id.
    """
    try:
        with open(path, "rb") as attribute:
            return attribute.read(PAGE_BYTES)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise DeviceError(path, "read", 0, PAGE_BYTES, error.strerror or str(error), error.errno) from error
        return b""


def scsi_id_of_address(address: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the SCSIid of the LUN at a SCSI address ("7:0:0:12"), even before the disk driver has made its disk."""
    return _id_of_device(host.at("sys/bus/scsi/devices", address))


def look_for_luns(scsi_host: str, place: str, host: Host = THIS_HOST) -> None:
    """Have the kernel look for LUNs behind a SCSI host ("host7") at "channel target LUN"; "-" stands for all.

    At a dead port this hangs until the kernel gives up, and no signal ends the process. Raises Refused.
    """
    try:
        with open(host.at("sys/class/scsi_host", scsi_host, "scan"), "w", encoding="ascii") as switch:
            switch.write(place)
    except OSError as error:
        raise Refused(f"It cannot be scanned for LUNs: {error.strerror}.") from error


def remove_lun(address: str, host: Host = THIS_HOST) -> None:
    """Remove the LUN at a SCSI address ("7:0:0:12") from this host; the LUN itself is not changed.

    Do nothing if the LUN is gone. The caller ensures that no program uses the LUN. Raises Refused if the LUN stays.
    """
    try:
        with open(host.at("sys/bus/scsi/devices", address, "delete"), "w", encoding="ascii") as switch:
            switch.write("1")
    except OSError as error:
        if error.errno not in _ABSENT:
            raise Refused(f"The LUN at {address} could not be removed: {error.strerror}.") from error
        return
    log.info("removed the LUN at %s", address)
