# SPDX-License-Identifier: LGPL-2.1-only
"""An iSCSI initiator in user space: this process reads and writes a LUN over a session of its own.

    discover(portals, initiator, credentials, deadline)       the targets of a portal
    list_luns(portals, iqn, initiator, deadline)              the disks behind a target
    open_lun(portals, iqn, initiator, lun, writable, deadline)   a disk behind a target, as a device for the engine

The kernel is not involved, so no disk of the target appears on this host. The modules that know the protocol do no I/O:
bytes in, bytes out. When the process ends, nothing of the session is left on this host.
"""

from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.iscsi.lun_opening import TargetLuns, list_luns, open_lun
from relvmoiscsi.iscsi.names import Credentials, Initiator, LunInfo
from relvmoiscsi.iscsi.target_sessions import Targets, discover
from relvmoiscsi.portal import Portal

__all__ = [
    "Credentials",
    "Initiator",
    "LunDevice",
    "LunInfo",
    "Portal",
    "Targets",
    "discover",
    "TargetLuns",
    "list_luns",
    "open_lun",
]
