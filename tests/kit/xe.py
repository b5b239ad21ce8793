# SPDX-License-Identifier: LGPL-2.1-only
"""What `xe` does with the words that pages of docs/ show, by XenAPI, on a simulated pool.

    xe(pool, ["vm-start", "vm=web"])      gives (exit status, stdout, stderr)

Only the words that a page or an advice of the product uses; another one is a KeyError.
Source: xen-api ocaml/xapi-cli-server/cli_operations.ml.
"""

import os
import sys
import textwrap
from types import SimpleNamespace

import XenAPI

from kit.pool.client import connected, xe_error


def xe(pool, words):
    """Run `xe` with these words."""
    command, is_minimal = words[0], "--minimal" in words
    given = Given(word.partition("=")[::2] for word in words[1:] if word != "--minimal")
    with connected(pool) as session:
        try:
            unknown = next((word for word in words[1:] if word != "--minimal" and word.partition("=")[1] == ""), None)
            if unknown is not None:
                raise Untrue(f"The playground's xe has no option {unknown}. It takes NAME=VALUE, and --minimal.")
            done = COMMANDS[command](session.xenapi, given)
            return 0, _listed(done, given, is_minimal) if isinstance(done, list) else done or "", ""
        except XenAPI.Failure as failure:
            return 1, "", xe_error(failure)
        except Untrue as problem:
            return 1, "", f"{problem}\n"


class Untrue(Exception):
    """Words that `xe` refuses itself."""


class Given(dict):
    """The words NAME=VALUE."""

    def __init__(self, words):
        super().__init__(words)
        self.read = set()  #: names for which a command has asked with `get`

    def __missing__(self, key):
        raise Untrue(f"Required parameter not found: {key}")

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)


def _listed(rows, given, is_minimal):
    """What a list prints of its rows, (first field, line). Raises Untrue for a filter that the list does not have.

    Source: xen-api ocaml/xapi-cli-server/cli_printer.ml, make_printer: --minimal gives the first field of each record.
    """
    for name, value in given.items():
        if name not in given.read and (name, value) != ("params", "uuid,name-label"):  # which each list prints
            raise Untrue(f"This list of the playground has no filter {name}.")
    return ",".join(first for first, _ in rows) + "\n" if is_minimal else "".join(f"{line}\n" for _, line in rows)


def _columns(rows):
    """Rows of a list, sorted by all columns but the first, the UUID."""
    return [(row[0], "  ".join(row)) for row in sorted(rows, key=lambda row: row[1:])]


def _map(given, prefix):
    return {key[len(prefix) :]: value for key, value in given.items() if key.startswith(prefix)}


def _sr_create(api, given):
    name, shared = given["name-label"], given.get("shared") == "true"
    (pool,) = api.pool.get_all_records().values()
    api.SR.create(pool["master"], _map(given, "device-config:"), "0", name, "", given["type"], "", shared, {})


def _sr_probe(api, given):
    (pool,) = api.pool.get_all_records().values()
    host = api.host.get_by_uuid(given["host-uuid"]) if "host-uuid" in given else pool["master"]
    return api.SR.probe(host, _map(given, "device-config:"), given["type"], {})


def _sr_introduce(api, given):
    of_sr = [given["uuid"], given["name-label"], given.get("name-description", ""), given["type"]]
    api.SR.introduce(*of_sr, given.get("content-type", ""), given.get("shared") == "true", {})
    return given["uuid"] + "\n"


def _pbd_create(api, given):
    sr, host = api.SR.get_by_uuid(given["sr-uuid"]), api.host.get_by_uuid(given["host-uuid"])
    record = {"SR": sr, "host": host, "device_config": _map(given, "device-config:"), "other_config": {}}
    return api.PBD.get_uuid(api.PBD.create(record)) + "\n"


def _host_call_plugin(api, given):
    host = api.host.get_by_uuid(given["host-uuid"])
    return api.host.call_plugin(host, given["plugin"], given["fn"], _map(given, "args:")) + "\n"


def _sr_param_set(api, given):
    sr = api.SR.get_by_uuid(given["uuid"])
    setters = {"name-label": api.SR.set_name_label, "name-description": api.SR.set_name_description}
    for key, value in given.items():
        name, _, inner = key.partition(":")
        if name == "other-config" and inner:
            api.SR.add_to_other_config(sr, inner, value)
        elif key in setters:
            setters[key](sr, value)
        elif key != "uuid":
            raise Untrue(f"The playground sets no parameter {key}.")


def _vm(api, given):
    if "uuid" in given:
        return api.VM.get_by_uuid(given["uuid"])
    found = api.VM.get_by_name_label(given["vm"])
    if len(found) != 1:
        raise Untrue(f"{len(found)} VMs have the name {given['vm']}, and one is wanted.")
    return found[0]


def _vm_start(api, given):
    api.VM.start(_vm(api, given), False, False)


def _vm_shutdown(api, given):
    vm = _vm(api, given)
    (api.VM.hard_shutdown if given.get("force") == "true" else api.VM.clean_shutdown)(vm)


def _vm_reset_powerstate(api, given):
    if "force" not in given:
        raise Untrue("This operation is extremely dangerous: give force=true.")
    api.VM.power_state_reset(_vm(api, given))


def _vm_param_remove(api, given):
    """Of two maps alone."""
    maps = {
        "blocked-operations": api.VM.remove_from_blocked_operations,
        "other-config": api.VM.remove_from_other_config,
    }
    if given["param-name"] not in maps:
        raise Untrue(f"The playground has no parameter {given['param-name']}.")
    maps[given["param-name"]](api.VM.get_by_uuid(given["uuid"]), given["param-key"])


def _by_uuid(table, method):
    def called(api, given):
        of_class = getattr(api, table)
        getattr(of_class, method)(of_class.get_by_uuid(given["uuid"]))

    return called


def _vm_list(api, given):
    wanted = given.get("name-label")
    found = [vm for vm in api.VM.get_all_records().values() if not vm["is_a_template"] and not vm["is_control_domain"]]
    found = [vm for vm in found if not vm["is_a_snapshot"] and wanted in (None, vm["name_label"])]
    return [(vm["uuid"], f"{vm['uuid']}  {vm['power_state'].lower():8}  {vm['name_label']}") for vm in found]


def _vif_list(api, given):
    """The real `xe` prints a block of lines for each VIF."""
    vms, networks = api.VM.get_all_records(), api.network.get_all_records()
    rows = [
        (vif["uuid"], f"device {vif['device']}", networks[vif["network"]]["name_label"], vms[vif["VM"]]["name_label"])
        for vif in api.VIF.get_all_records().values()
        if given.get("vm-uuid") in (None, vms[vif["VM"]]["uuid"])
        if given.get("vm-name-label") in (None, vms[vif["VM"]]["name_label"])
    ]
    return _columns(rows)


def _vif_move(api, given):
    api.VIF.move(api.VIF.get_by_uuid(given["uuid"]), api.network.get_by_uuid(given["network-uuid"]))


def _vbd_create(api, given):
    read_only = given.get("mode", "RW").upper() == "RO"
    record = {
        "VM": api.VM.get_by_uuid(given["vm-uuid"]),
        "VDI": api.VDI.get_by_uuid(given["vdi-uuid"]),
        "userdevice": given["device"],
        "mode": "RO" if read_only else "RW",
        "bootable": given.get("bootable") == "true",
        "type": "Disk",
        "unpluggable": True,
        "empty": False,
        "other_config": {},
        "qos_algorithm_type": "",
        "qos_algorithm_params": {},
    }
    return api.VBD.get_uuid(api.VBD.create(record)) + "\n"


def _vbd_list(api, given):
    """The real `xe` prints a block of lines for each VBD."""
    vms, vdis = api.VM.get_all_records(), api.VDI.get_all_records()
    rows = [
        (vbd["uuid"], f"device {vbd['userdevice']}", "attached" if vbd["currently_attached"] else "detached",
         vms[vbd["VM"]]["name_label"])
        for vbd in api.VBD.get_all_records().values()
        if given.get("vdi-uuid") in (None, vdis.get(vbd["VDI"], {}).get("uuid"))
        if given.get("vm-uuid") in (None, vms[vbd["VM"]]["uuid"])
    ]  # fmt: skip
    return _columns(rows)


def _pbd_list(api, given):
    """The real `xe` prints a block of lines for each PBD."""
    srs, hosts = api.SR.get_all_records(), api.host.get_all_records()
    rows = [
        (pbd["uuid"], "attached" if pbd["currently_attached"] else "detached", hosts[pbd["host"]]["name_label"],
         srs[pbd["SR"]]["name_label"])
        for pbd in api.PBD.get_all_records().values()
        if given.get("sr-uuid") in (None, srs[pbd["SR"]]["uuid"])
    ]  # fmt: skip
    return _columns(rows)


def _vdi_list(api, given):
    srs, vdis, wanted = api.SR.get_all_records(), api.VDI.get_all_records().values(), given.get("sr-uuid")
    return [
        (vdi["uuid"], f"{vdi['uuid']}  {vdi['name_label']}") for vdi in vdis if wanted in (None, srs[vdi["SR"]]["uuid"])
    ]


def _pool_list(api, given):
    """With one field at the most, `ha-enabled`."""
    (pool,) = api.pool.get_all_records().values()
    if given.get("params", "ha-enabled") != "ha-enabled":
        raise Untrue(f"The playground has no field {given['params']}.")
    is_enabled = str(pool["ha_enabled"]).lower()
    if "params" in given:
        return [(is_enabled, f"ha-enabled ( RO)    : {is_enabled}")]
    return [(pool["uuid"], f"{pool['uuid']}  {pool['name_label']}")]


def _pool_ha_enable(api, given):
    srs = [api.SR.get_by_uuid(uuid) for uuid in given.get("heartbeat-sr-uuids", "").split(",") if uuid]
    api.pool.enable_ha(srs, {})


def _pool_ha_disable(api, _given):
    api.pool.disable_ha()


def _task_list(api, _given):
    tasks = api.task.get_all_records().values()
    return [(task["uuid"], f"{task['uuid']}  {task['status']}  {task['name_label']}") for task in tasks]


def _task_cancel(api, given):
    api.task.cancel(api.task.get_by_uuid(given["uuid"]))


def _pool_param_set(api, given):
    pool = api.pool.get_by_uuid(given["uuid"])
    for key, value in _map(given, "other-config:").items():
        api.pool.add_to_other_config(pool, key, value)


def _secret_create(api, given):
    return api.secret.get_uuid(api.secret.create({"value": given["value"], "other_config": {}})) + "\n"


def _secret_list(api, _given):
    return [(secret["uuid"], secret["uuid"]) for secret in api.secret.get_all_records().values()]


def _vdi_param_remove(api, given):
    """Of the map `sm-config` alone."""
    if given["param-name"] != "sm-config":
        raise Untrue(f"The playground has no parameter {given['param-name']}.")
    api.VDI.remove_from_sm_config(api.VDI.get_by_uuid(given["uuid"]), given["param-key"])


def _vdi_param_set(api, given):
    setters = {"name-label": api.VDI.set_name_label, "on-boot": api.VDI.set_on_boot}
    vdi = api.VDI.get_by_uuid(given["uuid"])
    for key in set(given) - {"uuid"}:
        if key not in setters:
            raise Untrue(f"The playground sets no parameter {key}.")
        setters[key](vdi, given[key])


def _vm_copy(api, given):
    vm, name = _vm(api, given), given["new-name-label"]
    sr = api.SR.get_by_uuid(given["sr-uuid"]) if "sr-uuid" in given else "OpaqueRef:NULL"
    return api.VM.get_uuid(api.VM.copy(vm, name, sr)) + "\n"


def _named_list(table):
    def listed(api, given):
        found, wanted = getattr(api, table).get_all_records().values(), given.get("name-label")
        found = [record for record in found if wanted in (None, record["name_label"])]
        return [(record["uuid"], f"{record['uuid']}  {record['name_label']}") for record in found]

    return listed


def _host_list(api, given):
    """The real `xe` prints a block of lines for each host; "live" is of its metrics."""
    if given.get("params") is None:
        return _named_list("host")(api, given)
    metrics, rows, wanted = api.host_metrics.get_all_records(), [], given["params"].split(",")
    for host in api.host.get_all_records().values():
        fields = {"name-label": host["name_label"], "host-metrics-live": str(metrics[host["metrics"]]["live"]).lower()}
        if not set(wanted) <= set(fields):
            raise Untrue(f"The playground has no other field than {', '.join(fields)}.")
        rows.append((fields[wanted[0]], "  ".join(f"{name}: {fields[name]}" for name in wanted)))
    return sorted(rows)


COMMANDS = {
    "host-call-plugin": _host_call_plugin,
    "host-list": _host_list,
    "network-list": _named_list("network"),
    "pbd-create": _pbd_create,
    "pbd-list": _pbd_list,
    "pbd-plug": _by_uuid("PBD", "plug"),
    "pbd-unplug": _by_uuid("PBD", "unplug"),
    "pool-ha-disable": _pool_ha_disable,
    "pool-ha-enable": _pool_ha_enable,
    "pool-list": _pool_list,
    "pool-param-set": _pool_param_set,
    "secret-create": _secret_create,
    "snapshot-reset-powerstate": _vm_reset_powerstate,
    "secret-list": _secret_list,
    "sr-create": _sr_create,
    "sr-introduce": _sr_introduce,
    "sr-forget": _by_uuid("SR", "forget"),
    "sr-list": _named_list("SR"),
    "sr-probe": _sr_probe,
    "sr-scan": _by_uuid("SR", "scan"),
    "sr-param-set": _sr_param_set,
    "task-cancel": _task_cancel,
    "task-list": _task_list,
    "vm-start": _vm_start,
    "vm-shutdown": _vm_shutdown,
    "vm-reset-powerstate": _vm_reset_powerstate,
    "vm-destroy": _by_uuid("VM", "destroy"),  # the real `xe` takes the UUID alone here
    "vm-param-remove": _vm_param_remove,
    "vm-copy": _vm_copy,
    "vm-list": _vm_list,
    "vif-list": _vif_list,
    "vif-move": _vif_move,
    "vbd-create": _vbd_create,
    "vbd-list": _vbd_list,
    "vbd-eject": _by_uuid("VBD", "eject"),
    "vbd-unplug": _by_uuid("VBD", "unplug"),
    "vbd-destroy": _by_uuid("VBD", "destroy"),
    "vdi-disable-cbt": _by_uuid("VDI", "disable_cbt"),
    "vdi-param-remove": _vdi_param_remove,
    "vdi-param-set": _vdi_param_set,
    "vdi-destroy": _by_uuid("VDI", "destroy"),
    "vdi-forget": _by_uuid("VDI", "forget"),
    "vdi-list": _vdi_list,
}


def named_pool():
    """The pool that the variables of `relvmoiscsi pool` name."""
    where = {name: os.environ["XENSERVER_" + name] for name in ("HOST", "USER", "PASSWORD")}
    return SimpleNamespace(url=where["HOST"], api=SimpleNamespace(user=where["USER"], password=where["PASSWORD"]))


def main(words):
    """The `xe` of `make playground`."""
    if not words or words[0] not in COMMANDS:
        is_asked = words[:1] in (["help"], ["--help"])
        indented = textwrap.TextWrapper(76, "  ", "  ", break_on_hyphens=False).fill(", ".join(sorted(COMMANDS)))
        told = f"This is the xe of the playground. It knows these commands:\n{indented}"
        print(told, file=sys.stdout if is_asked else sys.stderr)
        return 0 if is_asked else 1
    status, out, err = xe(named_pool(), words)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
