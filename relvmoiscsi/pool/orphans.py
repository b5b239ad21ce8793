# SPDX-License-Identifier: LGPL-2.1-only
"""Find and remove Secrets with CHAP passwords that no object uses. xapi makes such Secrets and never removes them.

    SR.create that fails    1, and 1 for each host: xapi removes the PBDs and leaves their Secrets
    SR.probe                1
    PBD.create              1, beside the Secret that the PBD names

xapi does so for a `chappassword` in clear text. A Secret does not name its purpose. XenAPI hides two fields that name
Secrets: the state of a VM's TPM (VTPM.contents), and the password of Workload Balancing (pool.wlb_password). So a
Secret counts as an orphan only if all four conditions hold:

    value           the value is a CHAP password of a PBD of the pool, or a CHAP password from the caller
    other_config    other_config is empty, as xapi makes a Secret
    records         no record of any class contains the UUID or the reference of the Secret, in any field
    time            the same conditions held CALL_SECONDS ago: no record names the Secret of a call that still runs

Source: xen-api ocaml/xapi/{xapi_secret,xapi_sr,xapi_pbd,xapi_vtpm,workload_balancing}.ml; ocaml/idl/datamodel*.ml.
"""

import json
import re
from typing import Dict, Iterable, Set

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure, passing
from relvmoiscsi.pool.records import Pool

CALL_SECONDS = 300.0  #: longer than a probe or SR.create takes

#: all classes with get_all_records in any release, except Secrets and roles
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
    """Return the Secrets that look like orphans now: UUIDs by reference. `passwords` are known CHAP passwords.

    The caller calls `find` again after CALL_SECONDS, and removes only Secrets of both answers. Raises Refused where
    XenAPI may hide the user of a Secret; PoolFailure.
    """
    _, record = calls.pool()
    is_hidden = record.get("repository_proxy_url") and "repository_proxy_password" not in record
    what = "Workload Balancing" if record.get("wlb_url") else "a proxy for updates" if is_hidden else ""
    if what:
        raise (
            Refused(f"The pool uses {what}, and XenAPI does not show which Secret holds that password.")
            .in_state("Nothing was removed.")
            .advising("Check `xe secret-list` by hand.")
        )
    refs = calls.call("secret.get_all")
    named = _named(calls)
    pairs = {pair for pbd in pool.pbds.values() for pair in pbd["device_config"].items()}
    known = set(passwords)
    for uuid in sorted({value for key, value in pairs if "chap" in key and key.endswith("secret")}):
        with passing("UUID_INVALID", "HANDLE_INVALID"):
            known.add(str(calls.call("secret.get_value", calls.call("secret.get_by_uuid", uuid))))
    known.discard("")  # a new TPM has a Secret with an empty value
    found = {}
    for ref in refs:
        with passing("HANDLE_INVALID"):  # the Secret was destroyed meanwhile
            uuid = str(calls.call("secret.get_uuid", ref))
            is_named = bool({uuid, *_UUID.findall(ref.lower())} & named)
            if is_named or calls.call("secret.get_other_config", ref):
                continue
            if str(calls.call("secret.get_value", ref)) in known:
                found[ref] = uuid
    return found


def _named(calls: Calls) -> Set[str]:
    """Return every UUID, of an object or in a reference, in the records of all classes. Raises PoolFailure.

    A release of xapi may lack a class, removed or never known. xapi takes an unknown call for an extension of the host,
    which only a pool-admin may call. Source: xen-api ocaml/idl/ocaml_backend/gen_server.ml.
    """
    found: Set[str] = set()
    for kind in CLASSES:
        try:
            records = calls.records(kind)
        except PoolFailure as problem:
            is_taken_for_an_extension = problem.description[:2] == ["RBAC_PERMISSION_DENIED", "host.call_extension"]
            if problem.code not in ("MESSAGE_REMOVED", "MESSAGE_METHOD_UNKNOWN") and not is_taken_for_an_extension:
                raise
            continue
        found.update(_UUID.findall(json.dumps(records, default=str).lower()))
    return found
