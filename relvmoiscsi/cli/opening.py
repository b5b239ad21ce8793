# SPDX-License-Identifier: LGPL-2.1-only
"""What DEVICE names, opened to be read; `on_lun.opened` is for those that write.

with opened_to_read(arguments, word) as device      a HostDevice, or a UrlDevice over a session of this process
kind_of, hardware_of, ranges_with_data              what it is
"""

import argparse
from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator, List, Optional, Union

from relvmoiscsi.cli import guard
from relvmoiscsi.cli.device_word import is_url
from relvmoiscsi.cli.over_iscsi import opened_url
from relvmoiscsi.device import Range
from relvmoiscsi.host.disk import scsi_id
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.host.disk.block_device import same_device as same_path
from relvmoiscsi.host.disk.scsi_id import Hardware
from relvmoiscsi.iscsi.url import parse_url

if TYPE_CHECKING:
    from relvmoiscsi.cli.over_iscsi import UrlDevice

    Opened = Union[HostDevice, UrlDevice]

IMAGE_FILE, BLOCK_DEVICE, ISCSI_LUN = "image file", "block device", "iSCSI LUN"


@contextmanager
def opened_to_read(arguments: argparse.Namespace, word: str) -> "Iterator[Opened]":
    """The device, for the block. Raises NotFound, UsageError, Refused."""
    if is_url(word):
        with opened_url(arguments, word, writable=False) as lun:
            yield lun
    else:
        with open_device(word, writable=False) as device:
            yield device


def kind_of(device: "Opened") -> str:
    if not isinstance(device, HostDevice):
        return ISCSI_LUN
    return BLOCK_DEVICE if guard.is_block_device(device.name) else IMAGE_FILE


def scsi_id_of(device: "Opened") -> Optional[str]:
    """The SCSIid that the device has itself; None for one that has none, or does not tell."""
    return guard.own_scsi_id(device.name) if isinstance(device, HostDevice) else device.info.scsi_id


def hardware_of(device: "Opened") -> Hardware:
    """What the device calls itself."""
    if isinstance(device, HostDevice):
        return scsi_id.hardware_of(device.name, guard.HOST)
    return Hardware(device.info.vendor, device.info.model, device.info.serial)


def ranges_with_data(device: "Opened") -> List[Range]:
    """The stretches that may hold data: what a sparse image file has allocated, all of any other device."""
    return device.data_ranges() if isinstance(device, HostDevice) else [Range(0, device.size_bytes)]


def is_same(word: str, other: str) -> bool:
    """Do two words name the same device? Raises NotFound when a path leads nowhere."""
    if is_url(word) and is_url(other):
        one, two = parse_url(word), parse_url(other)
        return (one.iqn, one.lun) == (two.iqn, two.lun) and bool(one.iqn)
    return not is_url(word) and not is_url(other) and same_path(word, other)
