# SPDX-License-Identifier: LGPL-2.1-only
"""The SCSIid of a LUN: what `scsi_id -g` prints, and with it device-config:SCSIid and multipath's WWID.

    of a disk                  from the pages that the kernel has read          scsi_id_of_disk, scsi_id_of
    of a multipath map         its uuid without "mpath-"                        the same
    of the LUN at this moment  from the pages that it gives now                 live_scsi_id
    in a text, or given        what it can be, what SM and udev make of it      scsi_id_text

The rule itself, what pages 0x83 and 0x80 come to, is `vpd`.
"""

import ctypes
import errno
import fcntl
import logging
import os
import stat
from glob import escape, glob
from typing import NamedTuple, Optional

from relvmoiscsi.errors import DeviceError, NotFound, Refused
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.vpd import (
    INQUIRY_BYTES,
    PAGE_80,
    PAGE_83,
    VENDOR_SPECIFIC,
    Inquiry,
    id_from_page_80,
    id_from_page_83,
    inquiry_of,
    serial_from_page_80,
)

log = logging.getLogger(__name__)

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.ENXIO, errno.ENODEV)
_MAX_PAGE = 0xFFFF + 4  #: bytes; what the length field of a page can say
_LIVE_PAGE = 0x1000  #: bytes; enough for dozens of designators, and no device gives less because it is asked for it
_LIVE_MILLISECONDS = 10000
_ATTENTIONS = 3  #: unit attentions that may wait at a time: mapping, size, power-on
_SG_IO = 0x2285  #: scsi/sg.h, as are the values in _SgIoHdr


def scsi_id_of(path: str, host: Host = THIS_HOST) -> Optional[str]:
    """The SCSIid of the disk or multipath map at `path`; None for what has none (partition, loop device, image).

    Raises NotFound when there is nothing at `path`.
    """
    name = _kernel_name(path, host)
    return None if name is None else scsi_id_of_disk(name, host)


def _kernel_name(path: str, host: Host) -> Optional[str]:
    """The kernel's name for the block device at `path`; None for what is no block device. Raises NotFound."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path} does not exist.") from error
    if not stat.S_ISBLK(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return os.path.basename(os.path.realpath(os.path.join(host.sysfs, "dev/block", number)))


def scsi_id_at(path: str, host: Host = THIS_HOST) -> Optional[str]:
    """The same, of what may not be there, or not tell: then None."""
    try:
        return scsi_id_of(path, host)
    except (NotFound, DeviceError, OSError) as error:
        log.debug("%s: no SCSIid: %s", path, error)
        return None


class Hardware(NamedTuple):
    """What a disk calls itself; each is empty where it does not say."""

    vendor: str = ""
    model: str = ""
    serial: str = ""


def hardware_of(path: str, host: Host = THIS_HOST) -> Hardware:
    """Vendor, model and unit serial number of the disk at `path`, or of a path of the multipath map; as sysfs has them.

    All are empty for what is no disk. Raises NotFound.
    """
    name = _kernel_name(path, host)
    if name is None:
        return Hardware()
    slaves = glob(os.path.join(escape(os.path.join(host.sysfs, "block", name)), "slaves/*"))
    disk = os.path.basename(min(slaves)) if slaves else name
    device = os.path.join(host.sysfs, "block", disk, "device")
    try:
        vendor, model = (_attribute(device, key).decode("ascii", "replace").strip() for key in ("vendor", "model"))
    except DeviceError as error:
        log.debug("%s: no vendor and model: %s", path, error)
        return Hardware()
    return Hardware(vendor, model, unit_serial(os.path.join(device, "vpd_pg80")))


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


def live_scsi_id(path: str) -> Optional[str]:
    """The SCSIid that the LUN behind the disk `path` gives now, by the rule of `scsi_id_of`; None when it gives none.

    What sysfs has is from when the kernel found the disk. An array may have mapped another LUN at its place since. And
    udev's scsi_id, which asks the disk as well, ends with status 1 and says nothing both for a disk that has no id and
    for one that does not answer or is not there; so the command is given here.

    Raises DeviceError when the disk does not answer.
    """
    page = live_page(path, PAGE_83) or b""
    found = id_from_page_83(page, Inquiry(b"", b""))
    if found is not None and not found.startswith(f"{VENDOR_SPECIFIC:x}"):
        return found
    # Of the others, vendor and model are a part.
    inquiry = inquiry_of(scsi_command(path, bytes([0x12, 0, 0, 0, INQUIRY_BYTES, 0]), INQUIRY_BYTES) or b"")
    if inquiry is None:
        return None
    return id_from_page_83(page, inquiry) or id_from_page_80(live_page(path, PAGE_80) or b"", inquiry)


def live_page(path: str, number: int) -> Optional[bytes]:
    """A page of vital product data, as the LUN gives it now, header included; None when it refuses to.

    Raises DeviceError when the disk does not answer.
    """
    return scsi_command(path, bytes([0x12, 1, number, _LIVE_PAGE >> 8, _LIVE_PAGE & 0xFF, 0]), _LIVE_PAGE)


def live_serial(path: str) -> str:
    """The unit serial number that the LUN gives now, from page 0x80; "" if it gives none. Raises DeviceError."""
    return serial_from_page_80(live_page(path, PAGE_80) or b"")


def live_size(path: str) -> Optional[int]:
    """The size in bytes that the LUN gives now (READ CAPACITY); None when it refuses to. Raises DeviceError.

    The kernel's own number is from when it found the disk.
    """
    for _ in range(_ATTENTIONS):  # the first commands after a change only bring the news of it
        answer = scsi_command(path, bytes([0x9E, 0x10, *bytes(11), 32, 0, 0]), 32)
        if answer is not None and len(answer) >= 12:
            return (int.from_bytes(answer[:8], "big") + 1) * int.from_bytes(answer[8:12], "big")
    answer = scsi_command(path, bytes([0x25, *bytes(9)]), 8)
    if answer is None or len(answer) < 8:
        return None
    return (int.from_bytes(answer[:4], "big") + 1) * int.from_bytes(answer[4:8], "big")


def scsi_command(path: str, command: bytes, size: int) -> Optional[bytes]:
    """What the LUN answers to a command that reads at most `size` bytes; None when it refuses.

    Raises DeviceError when the disk does not answer.
    """
    page = ctypes.create_string_buffer(size)
    sense = ctypes.create_string_buffer(64)
    words = ctypes.create_string_buffer(command, len(command))
    header = _SgIoHdr(
        interface_id=ord("S"),
        dxfer_direction=-3,  # from the device
        cmd_len=len(command),
        mx_sb_len=len(sense),
        dxfer_len=size,
        dxferp=ctypes.addressof(page),
        cmdp=ctypes.addressof(words),
        sbp=ctypes.addressof(sense),
        timeout=_LIVE_MILLISECONDS,
    )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _SG_IO, header)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DeviceError(path, "read", 0, size, error.strerror or str(error), error.errno) from error
    if header.host_status or header.driver_status & ~8:  # 8: there are sense data, which the status speaks of too
        raise DeviceError(path, "read", 0, size, "the SCSI command had no answer", errno.EIO)
    return None if header.status else page.raw[: size - header.resid]


def scsi_id_of_disk(name: str, host: Host = THIS_HOST) -> Optional[str]:
    """The SCSIid of a block device by the kernel's name for it: "sdc", "dm-3"."""
    disk = os.path.join(host.sysfs, "block", name)
    if os.path.isdir(os.path.join(disk, "dm")):
        return _id_of_map(os.path.join(disk, "dm/uuid"))
    return _id_of_device(os.path.join(disk, "device"))


def _id_of_device(device: str) -> Optional[str]:
    inquiry = Inquiry(_attribute(device, "vendor").ljust(8), _attribute(device, "model").ljust(16))
    found = id_from_page_83(_content(os.path.join(device, "vpd_pg83")), inquiry)
    return found or id_from_page_80(_content(os.path.join(device, "vpd_pg80")), inquiry)


def unit_serial(path: str) -> str:
    """The unit serial number, page 0x80 in sysfs."""
    try:
        with open(path, "rb") as file:
            return serial_from_page_80(file.read())
    except OSError:
        return ""  # the LUN has no such page, or is going


def _id_of_map(path: str) -> Optional[str]:
    uuid = _content(path).decode("ascii", "replace").strip()
    return uuid[len("mpath-") :] or None if uuid.startswith("mpath-") else None


def _attribute(directory: str, name: str) -> bytes:
    """A line of text from sysfs, its blanks kept."""
    return _content(os.path.join(directory, name)).rstrip(b"\n")


def _content(path: str) -> bytes:
    """A sysfs file; empty where the kernel has none: not a SCSI disk, or one that does not know the page.

    Raises DeviceError when it is there and cannot be read: no id is another answer than an unknown one.
    """
    try:
        with open(path, "rb") as attribute:
            return attribute.read(_MAX_PAGE)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise DeviceError(path, "read", 0, _MAX_PAGE, error.strerror or str(error), error.errno) from error
        return b""


def scsi_id_of_address(address: str, host: Host = THIS_HOST) -> Optional[str]:
    """The SCSIid of what is at a SCSI address ("7:0:0:12"), whether the disk driver is done with it or not."""
    return _id_of_device(os.path.join(host.sysfs, "bus/scsi/devices", address))


def remove_lun(address: str, host: Host = THIS_HOST) -> None:
    """Take the LUN at a SCSI address ("7:0:0:12") off this host; the LUN itself is not touched.

    Does nothing when it is gone already. That nobody uses it is for the caller to know. Raises Refused when it stays.
    """
    try:
        with open(os.path.join(host.sysfs, "bus/scsi/devices", address, "delete"), "w", encoding="ascii") as switch:
            switch.write("1")
    except OSError as error:
        if error.errno not in _ABSENT:
            raise Refused(f"The LUN at {address} could not be removed: {error.strerror}.") from error
        return
    log.info("removed the LUN at %s", address)
