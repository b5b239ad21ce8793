# SPDX-License-Identifier: LGPL-2.1-only
"""The key of a pool that seals saved records of VMs, so that a reader knows the writer.

The key is the value of a Secret. A key of the pool's other_config names the Secret. Both take the role pool-operator.
The VDI with the records is no secret and no protection: a vm-admin, and a guest or tenant with that VDI, may write
anything there. Source: xen-api ocaml/idl/datamodel.ml Secret, VDI; datamodel_pool.ml other_config.
"""

import secrets
from typing import Any, Dict

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, PoolFailure, passing, role_advice

#: key of pool.other_config: UUID of the Secret; key of the Secret's other_config, so that no clean-up takes it
NAME = "relvmoiscsi:records-key"
_BYTES = 32
_DENIED = "RBAC_PERMISSION_DENIED"


def find(calls: Calls) -> bytes:
    """Return the key; b"" where the pool has none, or the role of this session may not read it. Raises PoolFailure."""
    try:
        return _read(calls)
    except PoolFailure as failure:
        if failure.code != _DENIED:
            raise
        return b""


def find_or_make(calls: Calls) -> bytes:
    """Return the key, which is made where the pool has none. Raises PoolFailure, Refused."""
    try:
        found = _read(calls)
        if not found:
            # of two clients at once, the Secret of one is named, and the other one's goes
            ref, pool = calls.pool()
            value: Dict[str, Any] = {"value": secrets.token_hex(_BYTES), "other_config": {NAME: "true"}}
            secret = str(calls.call("secret.create", value))
            uuid = str(calls.call("secret.get_uuid", secret))
            if NAME in pool["other_config"]:
                calls.call("pool.remove_from_other_config", ref, NAME)
            marks.add(calls, "pool", ref, NAME, uuid)
            if calls.call("pool.get_other_config", ref).get(NAME) != uuid:
                with passing("HANDLE_INVALID"):
                    calls.call("secret.destroy", secret)
            found = _read(calls)
    except PoolFailure as failure:
        if failure.code != _DENIED:
            raise
        raise (
            Refused("The role of this user may not read the key that seals the records of VMs.")
            .in_state("Nothing was saved.")
            .advising(role_advice("secret.create"))
        ) from failure
    return found


def _read(calls: Calls) -> bytes:
    uuid = calls.pool()[1]["other_config"].get(NAME)
    if uuid:
        with passing("UUID_INVALID", "HANDLE_INVALID"):  # somebody has destroyed the Secret
            return str(calls.call("secret.get_value", calls.call("secret.get_by_uuid", uuid))).encode("utf-8")
    return b""
