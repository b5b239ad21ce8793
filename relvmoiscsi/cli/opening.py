# SPDX-License-Identifier: LGPL-2.1-only
"""The argument DEVICE: a block device, an image file or the URL of a LUN behind iSCSI; and opening a LUN for reading.

`on_lun.opened` opens a LUN for the commands that write.
"""

import argparse
from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator, List, Optional, Union

from relvmoiscsi.cli import guard, over_iscsi
from relvmoiscsi.cli.output import Answer
from relvmoiscsi.device import Range
from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.disk import scsi_id
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.host.disk.block_device import same_device as same_path
from relvmoiscsi.host.disk.scsi_id import Hardware
from relvmoiscsi.iscsi.url import is_url, parse_url

if TYPE_CHECKING:
    from relvmoiscsi.cli.over_iscsi import UrlDevice

    Opened = Union[HostDevice, UrlDevice]

IMAGE_FILE, BLOCK_DEVICE, ISCSI_LUN = "image file", "block device", "iSCSI LUN"


# --- the word


def device_word(word: str) -> str:
    """Return the argument. Raises ArgumentTypeError for an empty word, as of a script whose variable is not set.

    Raises ArgumentTypeError for a malformed URL; the message does not repeat the URL.
    """
    if not word.strip():
        raise argparse.ArgumentTypeError("the name of the device is empty")
    if is_url(word):
        try:
            parse_url(word)
        except UsageError as problem:
            raise argparse.ArgumentTypeError(problem.message) from None
    return word


def takes_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add DEVICE and its options to the parser; return the parser."""
    what = "block device, image file, or iscsi://[user@]host[:port]/iqn/lun"
    parser.add_argument("device", metavar="DEVICE", type=device_word, help=what)
    return takes_device_options(parser)


def takes_device_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of a device to the parser. The command refuses the login options without a URL."""
    run = parser.get_default("run")

    def command(arguments: argparse.Namespace) -> Answer:
        _check_options(arguments)
        answer: Answer = run(arguments)
        return answer

    parser.set_defaults(run=command)
    what = "with a URL: initiator name to log in with; default: the name of this machine"
    parser.add_argument("--initiator-name", metavar="IQN", help=what)
    what = "with a URL: file with CHAP users and passwords, one NAME=VALUE per line"
    parser.add_argument("--chap-file", metavar="FILE", help=what)
    what = "refuse an image file and a URL, for callers whose rights must not exceed block devices"
    parser.add_argument("--block-device", action="store_true", help=what)
    return parser


def _check_options(arguments: argparse.Namespace) -> None:
    words = [getattr(arguments, name, None) for name in ("device", "lun", "original")]
    if any(word is not None and is_url(word) for word in words):
        if arguments.block_device:
            raise UsageError("--block-device needs the path of a block device: a URL is none.")
        return
    for name in ("--initiator-name", "--chap-file"):
        if getattr(arguments, name[2:].replace("-", "_")) is not None:
            raise UsageError(f"{name} needs the URL of a LUN: a path needs no login.")


# --- the device


@contextmanager
def opened_to_read(arguments: argparse.Namespace, word: str) -> "Iterator[Opened]":
    """Open the device for the block. Raises NotFound, UsageError, Refused."""
    if is_url(word):
        with over_iscsi.opened_url(arguments, word, writable=False) as lun:
            yield lun
    else:
        with open_device(word, writable=False, only_block=arguments.block_device) as device:
            yield device


def kind_of(device: "Opened") -> str:
    if not isinstance(device, HostDevice):
        return ISCSI_LUN
    return BLOCK_DEVICE if guard.is_block_device(device.name) else IMAGE_FILE


def scsi_id_of(device: "Opened") -> Optional[str]:
    """Return the SCSIid of the device; None for a device that has no SCSIid or does not answer."""
    return guard.own_scsi_id(device.name) if isinstance(device, HostDevice) else device.info.scsi_id


def hardware_of(device: "Opened") -> Hardware:
    """Return vendor, model and serial number of the device."""
    if isinstance(device, HostDevice):
        return scsi_id.hardware_of(device.name, guard.HOST)
    return Hardware(device.info.vendor, device.info.model, device.info.serial)


def ranges_with_data(device: "Opened") -> List[Range]:
    """Return the ranges that may hold data: allocated ranges of an image file, the whole of another device."""
    return device.data_ranges() if isinstance(device, HostDevice) else [Range(0, device.size_bytes)]


def is_same(word: str, other: str) -> bool:
    """Do two arguments name the same device? Raises NotFound for a path without a device."""
    if is_url(word) and is_url(other):
        one, two = parse_url(word), parse_url(other)
        return (one.iqn, one.lun) == (two.iqn, two.lun) and bool(one.iqn)
    return not is_url(word) and not is_url(other) and same_path(word, other)
