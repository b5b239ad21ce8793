# SPDX-License-Identifier: LGPL-2.1-only
"""Logs in to a target, or out, for the stand-in for lvmoiscsi, under SM's lock on iscsiadm. Words:

login IQN PORTAL [USER PASSWORD]     a session that is there is left as it is, and not scanned, as SM does
list IQN                             a session that is there is scanned, as for SM's list of LUNs
logout IQN                           of all portals
"""

import fcntl
import threading

from kit.lab import initiator
from kit.lab.lio import Chap

LOCK = "/var/lock/sm/iscsiadm/isciadm_running"
_THREADS = threading.Lock()  # the lock of the file is one of the whole process


def main(*words):
    with _THREADS, open(LOCK, "a", encoding="ascii") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        reach(*words)


def reach(what, iqn, *rest):
    is_there = iqn in [name for name, _ in initiator.sessions()]
    if what == "logout":
        if is_there:  # SM as well looks first
            initiator.logout(iqn)
    elif what == "list":
        if is_there:
            initiator.rescan(iqn)
    elif not is_there:
        initiator.login(iqn, rest[0], Chap(*rest[1:]) if rest[1:] else None)
