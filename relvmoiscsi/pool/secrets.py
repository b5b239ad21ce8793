# SPDX-License-Identifier: LGPL-2.1-only
"""CHAP: one Secret for all calls, gone at the end; and those that xapi leaves behind.

xapi copies the Secret for each PBD, and SR.create of our type ends in what xapi takes for a failure: the rows of the
PBDs go, their Secrets stay, one for each host, with nothing in them but the password. So what nobody names and has the
password of these calls is such a one; but for Secrets that bear a note, and those that pool and hosts name. Our own
bears one, of the process that has made it: it is left behind when that is gone.
Source: xen-api ocaml/xapi/{xapi_secret,xapi_pbd,xapi_sr}.ml.
"""

import os
import socket
from contextlib import contextmanager
from typing import Iterable, Iterator, List, Sequence

from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.records import Portal

CLIENT = "relvmoiscsi:client"  #: a key of Secret.other_config


@contextmanager
def chap(
    calls: Calls, portals: Sequence[Portal], user: str, password: str, everywhere: bool = True
) -> Iterator[List[Portal]]:
    """The portals with these credentials; as they are where no user is given. Raises PoolFailure.

    Not `everywhere`: those with credentials of their own keep them.
    """
    if not user:
        yield list(portals)
        return
    ref = calls.call("secret.create", {"value": password, "other_config": {CLIENT: this_client()}})
    try:
        uuid = str(calls.call("secret.get_uuid", ref))
        mine = {"chap_user": user, "chap_secret": uuid}
        yield [one if one.chap_user and not everywhere else one._replace(**mine) for one in portals]
    finally:
        _destroy(calls, ref)


def _destroy(calls: Calls, ref: str) -> None:
    """On another connection where this one is in the middle of a call that was interrupted."""
    try:
        calls.call("secret.destroy", ref)
    except PoolFailure as failure:
        if failure.code:
            return  # it is gone
        other = calls.another()
        try:
            other.call("secret.destroy", ref)
        except PoolFailure:
            pass  # the pool went away; `left_behind` finds it
        finally:
            other.close()


def this_client() -> str:
    """Names this process: host, process id, and when it began."""
    return f"{socket.gethostname()} {os.getpid()} {_began(str(os.getpid()))}"


def is_gone(client: str) -> bool:
    """Has the process ended that `this_client` has named? Nobody can tell of another machine's: no."""
    host, _, rest = client.rpartition(" ")[0].rpartition(" ")
    return host == socket.gethostname() and rest.isdigit() and _began(rest) != client.rpartition(" ")[2]


def _began(pid: str) -> str:
    """In ticks of the kernel; "" for a process that is not there."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def left_behind(calls: Calls, portals: Iterable[Portal], password: str = "") -> List[str]:
    """The Secrets that nobody names and that hold this password, or that of one of the portals. Raises PoolFailure.

    No Secret is read where there is no password.
    """
    used = {portal.chap_secret for portal in portals} - {""}
    if not (used or password):
        return []
    known = calls.records("secret")
    values = {secret["value"] for secret in known.values() if secret["uuid"] in used} | ({password} - {""})
    named = {str(value) for pbd in calls.records("PBD").values() for value in pbd["device_config"].values()} | used
    elsewhere = repr([calls.records("pool"), calls.records("host")])
    return [
        ref
        for ref, secret in known.items()
        if secret["value"] in values
        and secret["uuid"] not in named
        and secret["uuid"] not in elsewhere
        and _is_nobodys(secret)
    ]


def _is_nobodys(secret: Record) -> bool:
    notes = dict(secret["other_config"])
    return not notes or CLIENT in notes and is_gone(notes[CLIENT])


def clean(calls: Calls, refs: Iterable[str]) -> int:
    """Destroy them; how many there were. Raises PoolFailure."""
    count = 0
    for ref in refs:
        try:
            calls.call("secret.destroy", ref)
        except PoolFailure as failure:
            if failure.code != "HANDLE_INVALID":
                raise
        count += 1
    return count
