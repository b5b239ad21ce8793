# SPDX-License-Identifier: LGPL-2.1-only
"""CHAP: one Secret for all calls, gone at the end; and those that xapi leaves behind.

xapi copies the Secret for each PBD, and SR.create of our type ends in what xapi takes for a failure: the rows of the
PBDs go, their Secrets stay, one for each host. What no PBD names and has the password of these calls is such a one.
Source: xen-api ocaml/xapi/{xapi_secret,xapi_pbd,xapi_sr}.ml.
"""

from contextlib import contextmanager
from typing import Iterable, Iterator, List

from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import Portal


@contextmanager
def chap(calls: Calls, portals: Iterable[Portal], user: str, password: str) -> Iterator[List[Portal]]:
    """The portals with these credentials; as they are where no user is given. Raises PoolFailure."""
    if not user:
        yield list(portals)
        return
    ref = calls.call("secret.create", {"value": password, "other_config": {}})
    try:
        uuid = str(calls.call("secret.get_uuid", ref))
        yield [portal._replace(chap_user=user, chap_secret=uuid) for portal in portals]
    finally:
        try:
            calls.call("secret.destroy", ref)
        except PoolFailure:
            pass  # the pool went away; `left_behind` finds it


def left_behind(calls: Calls, portals: Iterable[Portal], password: str = "") -> List[str]:
    """The Secrets that no PBD names and that hold this password, or that of one of the portals. Raises PoolFailure."""
    known = calls.records("secret")
    used = {portal.chap_secret for portal in portals}
    values = {secret["value"] for secret in known.values() if secret["uuid"] in used} | ({password} - {""})
    if not values:
        return []
    named = {value for pbd in calls.records("PBD").values() for value in pbd["device_config"].values()}
    return [ref for ref, secret in known.items() if secret["value"] in values and secret["uuid"] not in named | used]


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
