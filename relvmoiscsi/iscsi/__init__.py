# SPDX-License-Identifier: LGPL-2.1-only
"""An iSCSI initiator in user space: a LUN is read and written over a session of this process.

    discover(portals, initiator, credentials, deadline)       the targets of a portal
    list_luns(portals, iqn, initiator, deadline)              the disks behind a target
    open_lun(portals, iqn, initiator, lun, writable, deadline)   one of them, as a device for the engine

The kernel has no part in it, so no disk of the target appears on this host. All knowledge of the protocol is in modules
without I/O: bytes in, bytes out. What ends with the process is all that there was.
"""

from relvmoiscsi.iscsi.lun_device import LunDevice
from relvmoiscsi.iscsi.names import Credentials, Initiator, LunInfo, Target
from relvmoiscsi.iscsi.opening import list_luns, open_lun
from relvmoiscsi.iscsi.target_sessions import discover
from relvmoiscsi.portal import Portal

__all__ = [
    "Credentials",
    "Initiator",
    "LunDevice",
    "LunInfo",
    "Portal",
    "Target",
    "discover",
    "list_luns",
    "open_lun",
]
