# SPDX-License-Identifier: LGPL-2.1-only
"""Tell the LVM of this host that a device has another identity now.

Two memories of LVM do not notice a new identity (docs/formats/lvm.rst, "What the LVM of a host remembers"):

    lvmetad, up to 2.02.188       shows the old volume group; a command that changes it would write the old metadata
    devices file, IDTYPE=devname  ties the name of the device to the old PV UUID; LVM does not find the PV

The next LVM command corrects all other memories: hints, and devices by wwid or serial.
"""

import logging
import os
from typing import Dict, List, Optional

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import Runner
from relvmoiscsi.host.files import content_of, lines_in, words_in
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

LVMETAD_SOCKET = "run/lvm/lvmetad.socket"
DEVICES_FILE = "etc/lvm/devices/system.devices"

# Debian has no link named `lvmdevices`, so the command is `lvm lvmdevices`.
_LVMDEVICES = ("lvm", "lvmdevices", "--yes")


def tell_lvm(path: str, runner: Runner, root: str = "/") -> List[str]:
    """Make LVM forget the old identity of the device `path`. Call this after the new identity is durable.

    Release the LVM locks first: these LVM commands wait for the locks of the group.
    Return a sentence for the user for each failure. A failure is no error, because the LUN is correct.
    """
    warnings: List[str] = []
    if os.path.exists(os.path.join(root, LVMETAD_SOCKET)):
        try:
            runner(["pvscan", "--cache", path])
        except CommandFailed as error:
            warnings.append(
                f"lvmetad still knows {path} by its old identity: {error} Run "
                f"`{shell_command('pvscan --cache', path)}` before any other LVM command, which could otherwise "
                "write the old metadata back."
            )
    devices_file = os.path.join(root, DEVICES_FILE)
    try:
        entries = entries_in(devices_file) or []
    except OSError as error:
        warnings.append(
            f"{devices_file} cannot be read: {error.strerror}. If it lists {path} with IDTYPE=devname, run "
            "`lvmdevices --deldev` and `lvmdevices --adddev` on it."
        )
        return warnings
    names = [entry.get("IDNAME", "") for entry in entries if entry.get("IDTYPE") == "devname"]
    # /dev/mapper/mpatha and /dev/dm-3 may be the same device
    if os.path.realpath(path) not in [os.path.realpath(name) for name in names if name]:
        return warnings
    try:  # the entry has the old PV UUID; LVM makes an entry with the new PV UUID
        runner([*_LVMDEVICES, "--deldev", path])
        runner([*_LVMDEVICES, "--adddev", path])
    except CommandFailed as error:
        if "Devices file not enabled" in error.stderr:
            log.debug("%s is listed in the devices file, which LVM is configured not to use", path)
        else:
            warnings.append(
                f"LVM cannot find {path} until its entry in the devices file is renewed: {error} "
                f"Run `{shell_command('lvmdevices', deldev=path)}` and `{shell_command('lvmdevices', adddev=path)}`."
            )
    return warnings


def entries_in(devices_file: str) -> Optional[List[Dict[str, str]]]:
    """Return the lines of a devices file as values by name; None if there is no file. Raises OSError.

    IDTYPE=sys_wwid IDNAME=naa.6001405... DEVNAME=/dev/sdb PVID=...; the line VERSION has no IDTYPE.
    """
    content = content_of(devices_file)
    if content is None:
        return None
    lines = [line for line in lines_in(content.decode("utf-8", "surrogateescape")) if not line.startswith("#")]
    return [dict(word.split("=", 1) for word in words_in(line) if "=" in word) for line in lines]
