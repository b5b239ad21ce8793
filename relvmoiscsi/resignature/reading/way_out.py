# SPDX-License-Identifier: LGPL-2.1-only
"""The sentence at the end of an error about a clone's content: one command that works on the clone. Pure.

LVM's commands meet a clone beside its original: both have the same ids. `lvm_command` keeps LVM away from the original:

    filter, global_filter     LVM sees the disk of the clone only; use_devicesfile=0: LVM 2.03.12 would ignore both
    activation=0              the volumes of original and clone have one name in the kernel, which LVM must not touch
    metadata_read_only=0      dom0's LVM writes nothing else
    use_lvmetad=0             the daemon of LVM 2.02 remembers the original under these ids
    backup=0, archive=0       LVM's backup of the original in /etc/lvm has the name of the clone's volume group
    checks=0                  LVM knows no setting of another release

Tried with LVM 2.02.180 and 2.03.16. Source: LVM2 conf/example.conf.in, lib/config/config_settings.h.
"""

import shlex
from contextlib import contextmanager
from typing import Iterator

from relvmoiscsi.errors import NO_WAY_OUT, FormatError, WayOut

#: in place of a device that LVM does not see: an image file, or a LUN in a session of relvmoiscsi
PLACEHOLDER = "/dev/CLONE"
_NOTHING_HELPS = "No command mends that on the clone. If the copy may be incomplete, take it again."
_TOLD = WayOut(sentence="told")


@contextmanager
def telling_way_out(device_name: str) -> Iterator[None]:
    """Add the way out to an error about the content of a device that is raised in the block."""
    try:
        yield
    except FormatError as error:
        tell_way_out(error, device_name)
        raise


def tell_way_out(error: FormatError, device_name: str) -> None:
    """Add the way out to the message of an error, once."""
    if error.way_out != _TOLD:
        error.message += " " + _sentence(error.way_out, device_name)
        error.way_out = _TOLD


def _sentence(way_out: WayOut, device_name: str) -> str:
    if way_out == NO_WAY_OUT:
        return _NOTHING_HELPS
    if way_out.vdi:
        return f"To go on without this VDI: `{without_command(device_name, way_out.vdi)}`."
    if way_out.lvm:
        where = "" if _is_disk(device_name) else f", as the disk {PLACEHOLDER} of a host"
        return f"This command of LVM changes nothing but the clone{where}: `{lvm_command(device_name, way_out)}`."
    return way_out.sentence


def without_command(device_name: str, vdi: str) -> str:
    """The command that leaves a VDI behind."""
    return f"relvmoiscsi resignature {_word(device_name)} --without {vdi}"


def lvm_command(device_name: str, way_out: WayOut) -> str:
    """A command of LVM that sees no other disk than the clone, and leaves the volumes in the kernel alone."""
    disk = device_name if _is_disk(device_name) else PLACEHOLDER
    only_clone = f'["a|^{disk}$|","r|.*|"]'
    config = (
        f"devices {{ filter={only_clone} global_filter={only_clone} use_devicesfile=0 }} "
        "global { activation=0 metadata_read_only=0 use_lvmetad=0 } backup { backup=0 archive=0 } config { checks=0 }"
    )
    name, *arguments = (disk if word == device_name else word for word in way_out.lvm)
    words = [name, "--config", f"{config} {way_out.config}".rstrip(), *arguments]
    return " ".join(shlex.quote(word) for word in words)


def _is_disk(device_name: str) -> bool:
    return device_name.startswith("/dev/")


def _word(device_name: str) -> str:
    """The device as a word of a command; DEVICE for a name that is a description."""
    return "DEVICE" if " " in device_name else device_name
