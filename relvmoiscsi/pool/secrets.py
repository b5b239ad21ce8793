# SPDX-License-Identifier: LGPL-2.1-only
"""Hold a CHAP password in one Secret for all calls, and destroy the Secret at the end.

For the PBD of each host, xapi copies each Secret whose key ends in `password_secret`, without other_config. SR.create
of relvmoiscsi's types ends as a failure for xapi. Then xapi removes the PBDs and leaves their Secrets with the password
in the pool. So SR.create gets the Secret under a key that xapi does not copy (`uncopied`).

relvmoiscsi marks its Secrets with the time and the process. The mark identifies the Secret of a killed run. The
password does not, because other Secrets may hold the same password.
Source: xen-api ocaml/xapi/{xapi_secret,xapi_pbd,xapi_sr}.ml.
"""

import time
import uuid
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Mapping

from relvmoiscsi import untrusted
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, passing
from relvmoiscsi.pool.client_process import has_ended, this_process
from relvmoiscsi.pool.records import RUN, Pool, ProbePortal

_COPIED, _OURS = "password_secret", "secret"

_FORM = "%Y%m%dT%H%M%SZ"

#: longest time that a run on another machine may last: this machine cannot see whether the run was killed
RUN_SECONDS = 24 * 3600


def uncopied(config: Mapping[str, str]) -> Dict[str, str]:
    """Return a device-config for relvmoiscsi's types, with the Secrets under keys that xapi does not copy."""
    found = {}
    for key, value in config.items():
        found[key[: -len(_COPIED)] + _OURS if key.endswith(_COPIED) else key] = value
    return found


@contextmanager
def chap(
    calls: Calls, portals: Iterable[ProbePortal], user: str, password: str, tell: Callable[[str], None] = lambda _: None
) -> Iterator[List[ProbePortal]]:
    """Yield the portals with these credentials; without a user, the portals unchanged. Raises PoolFailure.

    `tell` gets a sentence if the Secret stays in the pool.
    """
    if not user:
        yield list(portals)
        return
    before = set(calls.call("secret.get_all"))
    mark = " ".join([time.strftime(_FORM, time.gmtime()), str(uuid.uuid4()), *this_process()])
    ref = str(calls.call("secret.create", {"value": password, "other_config": {RUN: mark}}))
    # a connection repeats a call whose answer was lost: then two Secrets have the mark, and one of them goes
    others = set(calls.call("secret.get_all")) - before - {ref}
    destroy(calls, (other for other in others if _mark(calls, other) == mark))
    try:
        secret = str(calls.call("secret.get_uuid", ref))
        yield [portal._replace(chap_user=user, chap_secret=secret) for portal in portals]
    finally:
        try:
            destroy(calls, [ref])
        except (PoolFailure, PoolGone) as failure:
            tell(
                f"The Secret with the CHAP password could not be destroyed: {failure} "
                "`relvmoiscsi pool luns --clean-secrets` destroys it."
            )


def _mark(calls: Calls, ref: str) -> str:
    """Return relvmoiscsi's mark on a Secret; "" for an unmarked or missing Secret. Raises PoolFailure."""
    with passing("HANDLE_INVALID"):
        return str(calls.call("secret.get_other_config", ref).get(RUN, ""))
    return ""


def destroy(calls: Calls, refs: Iterable[str]) -> int:
    """Destroy Secrets; return how many there were. Raises PoolFailure."""
    count = 0
    for ref in refs:
        with passing("HANDLE_INVALID"):
            calls.call("secret.destroy", ref)
            count += 1
    return count


def stale(calls: Calls, pool: Pool, now: float) -> List[str]:
    """Return the Secrets of killed runs, by their marks; no value is read. Raises PoolFailure."""
    named = {value for pbd in pool.pbds.values() for value in pbd["device_config"].values()}
    old = [ref for ref in calls.call("secret.get_all") if is_over(_mark(calls, ref), now)]
    return [ref for ref in old if calls.call("secret.get_uuid", ref) not in named]


def is_over(mark: str, now: float) -> bool:
    """Is this the mark of a run that has ended? False where the end is unknown."""
    stamp, _, *process = (mark + "  ").split(" ")
    try:
        begun = untrusted.utc_seconds(stamp)
    except ValueError:
        return False
    if now - begun > RUN_SECONDS:
        return True
    return has_ended(process[:3])
