# SPDX-License-Identifier: LGPL-2.1-only
"""CHAP: one Secret for all calls, gone at the end.

xapi copies each Secret whose key ends in `password_secret` for the PBD of each host, without its other_config.
SR.create of our type ends in what xapi takes for a failure: xapi removes the PBDs and leaves their Secrets, with the
password. So that call gets the Secret under a key that xapi leaves alone (`uncopied`).

A Secret of ours bears a mark, with the time and the process that has made it: what a killed run has left is found by
that, and never by the password, which others may have in Secrets of their own.
Source: xen-api ocaml/xapi/{xapi_secret,xapi_pbd,xapi_sr}.ml.
"""

import calendar
import os
import time
import uuid
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Mapping

from relvmoiscsi.pool.calls import Calls, PoolFailure, passing
from relvmoiscsi.pool.records import RUN, Pool, Portal

_COPIED, _OURS = "password_secret", "secret"

_FORM = "%Y%m%dT%H%M%SZ"

#: how long a run may be at work on another machine: this machine cannot tell whether the run was killed
RUN_SECONDS = 24 * 3600

_KERNEL = "/proc/sys/kernel/random/boot_id"


def uncopied(config: Mapping[str, str]) -> Dict[str, str]:
    """A device-config for our own types, with the Secrets under keys that xapi does not know."""
    found = {}
    for key, value in config.items():
        found[key[: -len(_COPIED)] + _OURS if key.endswith(_COPIED) else key] = value
    return found


@contextmanager
def chap(
    calls: Calls, portals: Iterable[Portal], user: str, password: str, tell: Callable[[str], None] = lambda _: None
) -> Iterator[List[Portal]]:
    """The portals with these credentials; as they are where no user is given. Raises PoolFailure.

    `tell` is told where the Secret has to stay.
    """
    if not user:
        yield list(portals)
        return
    ref = _made(calls, password)
    try:
        secret = str(calls.call("secret.get_uuid", ref))
        yield [portal._replace(chap_user=user, chap_secret=secret) for portal in portals]
    finally:
        try:
            _destroyed(calls, ref)
        except PoolFailure as failure:
            tell(
                f"The Secret with the CHAP password could not be destroyed: {failure} "
                "`relvmoiscsi pool luns --clean-secrets` destroys it."
            )


def _made(calls: Calls, password: str) -> str:
    """A new Secret. Where the answer to a call is lost, the call is made once more: only one of two stays."""
    before = set(calls.call("secret.get_all"))
    mark = " ".join([time.strftime(_FORM, time.gmtime()), str(uuid.uuid4()), *_this_process()])
    ref = str(calls.call("secret.create", {"value": password, "other_config": {RUN: mark}}))
    for other in set(calls.call("secret.get_all")) - before - {ref}:
        if _mark(calls, other) == mark:
            _destroyed(calls, other)
    return ref


def _mark(calls: Calls, ref: str) -> str:
    """Our mark on a Secret; "" where there is none, or no such Secret any more. Raises PoolFailure."""
    with passing("HANDLE_INVALID"):
        return str(calls.call("secret.get_other_config", ref).get(RUN, ""))
    return ""


def _destroyed(calls: Calls, ref: str) -> None:
    with passing("HANDLE_INVALID"):
        calls.call("secret.destroy", ref)


def left_behind(calls: Calls, pool: Pool, now: float) -> List[str]:
    """The Secrets of runs that were killed, by their marks; what they hold is not read. Raises PoolFailure."""
    named = {value for pbd in pool.pbds.values() for value in pbd["device_config"].values()}
    old = [ref for ref in calls.call("secret.get_all") if is_over(_mark(calls, ref), now)]
    return [ref for ref in old if calls.call("secret.get_uuid", ref) not in named]


def is_over(mark: str, now: float) -> bool:
    """Is this the mark of a run that has ended? False where that is unknown."""
    stamp, _, *process = (mark + "  ").split(" ")
    try:
        begun = calendar.timegm(time.strptime(stamp, _FORM))
    except ValueError:
        return False
    return now - begun > RUN_SECONDS or _has_ended(process[:3])


def _this_process() -> List[str]:
    """Names this process among the processes of all machines: kernel, namespace, id. [] where /proc does not tell."""
    try:
        with open(_KERNEL, encoding="ascii") as file:
            return [file.read().strip(), os.readlink("/proc/self/ns/pid"), str(os.getpid())]
    except OSError:
        return []


def _has_ended(process: List[str]) -> bool:
    """Has a process of this kernel and namespace ended? False for a process of another, and while its id is in use."""
    if len(process) != 3 or process[:2] != _this_process()[:2] or not process[2].isdigit():
        return False
    try:
        os.kill(int(process[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # the process of another user
    return False


def clean(calls: Calls, refs: Iterable[str]) -> int:
    """Destroy them; how many there were. Raises PoolFailure."""
    found = list(refs)
    for ref in found:
        _destroyed(calls, ref)
    return len(found)
