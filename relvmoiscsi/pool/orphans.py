# SPDX-License-Identifier: LGPL-2.1-only
"""Secrets with CHAP passwords that belong to nothing. xapi makes them, and has nothing that removes them.

    SR.create that fails    1, and 1 for each host: the rows of its PBDs go, their Secrets stay
    SR.probe                1
    PBD.create              1, beside the one that the PBD names

That is so for a `chappassword` in clear. Nothing in a Secret tells what it is for, and two fields that name Secrets are
not shown by XenAPI: the state of a VM's TPM (VTPM.contents), and the password of Workload Balancing
(pool.wlb_password). So a Secret is one of these only if all of this holds:

    value           a CHAP password that a PBD of the pool has, or that the caller gives
    other_config    empty, as xapi makes it
    records         none of any class has its UUID or its reference, in whatever field
    time            all of this was so CALL_SECONDS ago: a call that is under way has a Secret that no record names

Source: xen-api ocaml/xapi/{xapi_secret,xapi_sr,xapi_pbd,xapi_vtpm,workload_balancing}.ml; ocaml/idl/datamodel*.ml.
"""

import json
import re
from typing import Dict, Iterable, Set

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, passing
from relvmoiscsi.pool.records import Pool

CALL_SECONDS = 300.0  #: longer than a probe or SR.create takes

#: all classes that have get_all_records, but Secrets and roles
CLASSES = (
    *("host", "host_metrics", "host_cpu", "host_crashdump", "host_patch", "SR", "VM", "VM_metrics", "VM_guest_metrics"),
    *("network", "VIF", "VIF_metrics", "PIF", "PIF_metrics", "PBD", "VDI", "VBD", "VBD_metrics", "crashdump", "pool"),
    *("SM", "pool_patch", "pool_update", "Bond", "VLAN", "blob", "subject", "tunnel", "VMPP", "VMSS", "VM_appliance"),
    *("VM_group", "PCI", "PGPU", "GPU_group", "VGPU", "VGPU_type", "DR_task", "PVS_site", "PVS_server", "PVS_proxy"),
    *("PVS_cache_storage", "Feature", "SDN_controller", "network_sriov", "PUSB", "USB_group", "VUSB", "Cluster"),
    *("Cluster_host", "Certificate", "Repository", "VTPM", "Observer", "Host_driver", "Driver_variant", "task"),
    *("message", "console", "Caller", "Rate_limit"),
)
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def find(calls: Calls, pool: Pool, passwords: Iterable[str] = ()) -> Dict[str, str]:
    """The Secrets for which all of that holds now: UUIDs by reference. `passwords` are CHAP passwords that are known.

    Who removes them looks again after CALL_SECONDS. Raises Refused where a Secret may have a user that XenAPI does not
    show; PoolFailure.
    """
    _verify_users_are_shown(calls)
    refs = calls.call("secret.get_all")
    named = _named(calls)
    known = (set(passwords) | _passwords_of_pbds(calls, pool)) - {""}  # a new TPM has an empty one
    found = {}
    for ref in refs:
        with passing("HANDLE_INVALID"):  # gone meanwhile
            uuid = str(calls.call("secret.get_uuid", ref))
            is_named = bool({uuid, *_UUID.findall(ref.lower())} & named)
            if not is_named and not calls.call("secret.get_other_config", ref) and _value(calls, ref) in known:
                found[ref] = uuid
    return found


def remove(calls: Calls, found: Iterable[str]) -> int:
    """Destroy these Secrets (references); how many there were. Raises PoolFailure."""
    count = 0
    for ref in found:
        with passing("HANDLE_INVALID"):
            calls.call("secret.destroy", ref)
            count += 1
    return count


def _verify_users_are_shown(calls: Calls) -> None:
    """Raises Refused where the pool has set a password that is in a Secret, and XenAPI does not tell in which one."""
    for record in calls.records("pool").values():
        what = ""
        if record.get("wlb_url"):
            what = "Workload Balancing"
        elif record.get("repository_proxy_url") and "repository_proxy_password" not in record:
            what = "a proxy for updates"
        if what:
            raise Refused(
                f"The pool uses {what}, and XenAPI does not show which Secret holds that password. Nothing was "
                "removed. Check `xe secret-list` by hand."
            )


def _named(calls: Calls) -> Set[str]:
    """Every UUID, of an object or in a reference, that stands in a record of any class."""
    found: Set[str] = set()
    for kind in CLASSES:
        with passing("MESSAGE_METHOD_UNKNOWN"):  # a class that this release of xapi does not have
            found.update(_UUID.findall(json.dumps(calls.records(kind), default=str).lower()))
    return found


def _passwords_of_pbds(calls: Calls, pool: Pool) -> Set[str]:
    """Of iSCSI targets."""
    pairs = {pair for pbd in pool.pbds.values() for pair in pbd["device_config"].items()}
    uuids = {value for key, value in pairs if "chap" in key and key.endswith("secret")}
    found = set()
    for uuid in sorted(uuids):
        with passing("UUID_INVALID", "HANDLE_INVALID"):
            found.add(_value(calls, calls.call("secret.get_by_uuid", uuid)))
    return found


def _value(calls: Calls, ref: str) -> str:
    return str(calls.call("secret.get_value", ref))
