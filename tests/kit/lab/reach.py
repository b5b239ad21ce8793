# SPDX-License-Identifier: LGPL-2.1-only
"""As a program: log in to a target, or log out, for the stand-in for lvmoiscsi, under SM's lock on iscsiadm.

reach.py login IQN PORTAL [USER PASSWORD]     a session that is there is scanned
reach.py logout IQN                           of all portals
"""

import fcntl
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
sys.path[:0] = [os.path.dirname(sys.path[0])]

from kit.lab import initiator  # noqa: E402
from kit.lab.lio import Chap  # noqa: E402

LOCK = "/var/lock/sm/iscsiadm/isciadm_running"


def reach(what, iqn, *rest):
    is_there = iqn in [name for name, _ in initiator.sessions()]
    if what == "logout":
        if is_there:  # SM as well looks first
            initiator.logout(iqn)
    elif is_there:
        initiator.rescan(iqn)
    else:
        initiator.login(iqn, rest[0], Chap(*rest[1:]) if rest[1:] else None)


if __name__ == "__main__":
    with open(LOCK, "a", encoding="ascii") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        reach(*sys.argv[1:])
