# SPDX-License-Identifier: LGPL-2.1-only
"""VM, VBD, VIF, network and VDI calls, as far as a client needs them that hangs VMs on other disks.

A start leaves its time in VM_metrics, which an import takes from the file; last_booted_record is of a suspend alone.
Simpler than the real one: a VM runs nowhere; a VDI that is made or migrated is the world's, or a row alone.
Source: xen-api ocaml/xapi/{xapi_vm_lifecycle,xapi_vm_helpers,xapi_vbd,xapi_vbd_helpers,xapi_vif_helpers}.ml.
"""

import hashlib
import time
import uuid

from .database import NULL, TABLES
from .database import time as moment
from .errors import XenError

#: what a client has to say of a new VM. Source: datamodel_vm.ml, fields of the constructor without a default
_NEEDED_OF_VM = {
    "user_version", "is_a_template", "affinity", "memory_static_max", "memory_dynamic_max", "memory_dynamic_min",
    "memory_static_min", "VCPUs_params", "VCPUs_max", "VCPUs_at_startup", "actions_after_shutdown",
    "actions_after_reboot", "actions_after_crash", "PV_bootloader", "PV_kernel", "PV_ramdisk", "PV_args",
    "PV_bootloader_args", "PV_legacy_args", "HVM_boot_policy", "HVM_boot_params", "platform", "PCI_bus",
    "other_config", "recommendations",
}  # fmt: skip


class Vms:
    """Calls on VMs and what hangs on them.

    What is done with the bytes of VDIs is the world's, which sets `make_vdi`, `write_vdi`, `read_vdi`, `drop_vdi`.
    """

    def __init__(self, database):
        self.database = database
        self.make_vdi = None  #: make_vdi(sr reference, record): UUID, and the fields of the row that differ
        self.write_vdi = None  #: write_vdi(vdi reference, bytes)
        self.read_vdi = None  #: read_vdi(vdi reference): bytes
        self.drop_vdi = None  #: drop_vdi(vdi record)
        self.refuses_shutdown = set()  #: VMs whose guests do not answer

    def methods(self):
        return {
            "VM.create": self.vm_create,
            "VM.destroy": self.vm_destroy,
            "VM.start": self.vm_start,
            "VM.clean_shutdown": self.vm_clean_shutdown,
            "VM.hard_shutdown": self.vm_hard_shutdown,
            "VM.resume": lambda _session, vm, _paused=False, _force=False: self._go_on(vm, "Suspended"),
            "VM.unpause": lambda _session, vm: self._go_on(vm, "Paused"),
            "VM.set_is_a_template": self.vm_set_is_a_template,
            "VBD.create": self.vbd_create,
            "VBD.destroy": self.vbd_destroy,
            "VBD.plug": self.vbd_plug,
            "VBD.unplug": self.vbd_unplug,
            "VIF.create": self.vif_create,
            "VIF.destroy": lambda _session, vif: self.database.destroy("VIF", vif),
            "network.create": self.network_create,
            "network.destroy": self.network_destroy,
            "VDI.create": self.vdi_create,
            "VDI.destroy": self.vdi_destroy,
            "VDI.pool_migrate": self.vdi_pool_migrate,
        }

    # -- VM -----------------------------------------------------------------------------------------------------------

    def vm_create(self, _session, record):
        """Halted; whatever a client says of blocked_operations is dropped (xapi_vm.ml, create)."""
        missing = sorted(_NEEDED_OF_VM - set(record))
        if missing:
            raise XenError("INTERNAL_ERROR", "Xmlrpc_client: the record lacks " + ", ".join(missing))
        fields = {name: value for name, value in _known("VM", record).items() if name != "blocked_operations"}
        return self.database.create("VM", **{**fields, "metrics": self.database.create("VM_metrics")})

    def vm_destroy(self, _session, vm):
        """VBDs, VIFs and vTPMs go with it; VDIs and snapshots stay. A suspended one goes as a halted one does
        (xapi_vm_lifecycle.ml, allowed_power_states)."""
        db = self.database
        if "destroy" in db.get("VM", vm, "blocked_operations"):
            raise XenError("OPERATION_BLOCKED", vm, db.get("VM", vm, "blocked_operations")["destroy"])
        if db.get("VM", vm, "power_state") != "Suspended":
            self._require_state(vm, "Halted")
        parent = db.get("VM", vm, "parent")
        for child in db.refs("VM", parent=vm):
            db.set("VM", child, "parent", parent)
        for table in ("VBD", "VIF", "VTPM", "VGPU"):
            for ref in db.refs(table, VM=vm):
                db.destroy(table, ref)
        for table, field in (("VM_metrics", "metrics"), ("VM_guest_metrics", "guest_metrics")):
            ref = db.get("VM", vm, field)
            if db.exists(table, ref) and len(db.refs("VM", **{field: ref})) == 1:
                db.destroy(table, ref)
        db.destroy("VM", vm)

    def vm_start(self, _session, vm, _paused=False, _force=False):
        db = self.database
        self._require_state(vm, "Halted")
        if db.get("VM", vm, "is_a_template"):
            raise XenError("VM_IS_TEMPLATE", vm)
        if "start" in db.get("VM", vm, "blocked_operations"):
            raise XenError("OPERATION_BLOCKED", vm, "start")
        vbds = [ref for ref in db.refs("VBD", VM=vm) if not db.get("VBD", ref, "empty")]
        for vbd in vbds:
            self._require_free(vbd)
        for vbd in vbds:
            db.set("VBD", vbd, "currently_attached", True)
        for vif in db.refs("VIF", VM=vm):
            db.set("VIF", vif, "currently_attached", True)
        db.set("VM", vm, "power_state", "Running")
        metrics = db.get("VM", vm, "metrics")
        if metrics != NULL and db.exists("VM_metrics", metrics):
            db.set("VM_metrics", metrics, "start_time", moment(time.strftime("%Y%m%dT%H:%M:%SZ", time.gmtime())))

    def vm_clean_shutdown(self, session, vm):
        if vm in self.refuses_shutdown:
            raise XenError("VM_SHUTDOWN_TIMEOUT", vm, "1200.")
        self.vm_hard_shutdown(session, vm)

    def _go_on(self, vm, state):
        self._require_state(vm, state)
        self.database.set("VM", vm, "power_state", "Running")

    def vm_hard_shutdown(self, _session, vm):
        self._require_state(vm, "Running", "Suspended", "Paused")
        for table in ("VBD", "VIF"):
            for ref in self.database.refs(table, VM=vm):
                self.database.set(table, ref, "currently_attached", False)
        self.database.set("VM", vm, "power_state", "Halted")

    def vm_set_is_a_template(self, _session, vm, value):
        if value:
            self.database.set("VM", vm, "ha_always_run", False)
            self.database.set("VM", vm, "ha_restart_priority", "")
        self.database.set("VM", vm, "is_a_template", value)

    def that_ha_would_start(self):
        """Halted VMs that HA takes for its own."""
        return self.database.refs(
            "VM", ha_always_run=True, ha_restart_priority="restart", power_state="Halted", is_a_template=False,
            is_a_snapshot=False,
        )  # fmt: skip

    def that_boot_would_start(self):
        """Halted VMs that a host would start when it boots."""
        halted = self.database.records("VM", power_state="Halted", is_a_template=False, is_a_snapshot=False)
        return [ref for ref, vm in halted.items() if vm["other_config"].get("auto_poweron") == "true"]

    def _require_state(self, vm, *wanted):
        found = self.database.get("VM", vm, "power_state")
        if found not in wanted:
            raise XenError("VM_BAD_POWER_STATE", vm, wanted[0], found)

    # -- VBD ----------------------------------------------------------------------------------------------------------

    def vbd_create(self, _session, record):
        db = self.database
        vm, vdi = record["VM"], record.get("VDI", NULL)
        if not record.get("empty"):
            db.get("VDI", vdi, "uuid")
        taken = {db.get("VBD", ref, "userdevice") for ref in db.refs("VBD", VM=vm)}
        device = record["userdevice"]
        if device == "autodetect":
            device = next(str(number) for number in range(256) if str(number) not in taken | {"3"})
        if device in taken:
            raise XenError("DEVICE_ALREADY_EXISTS", device)
        if (
            db.get("VM", vm, "is_control_domain") is False
            and db.get("VDI", vdi, "read_only")
            and record["mode"] == "RW"
        ):
            raise XenError("VDI_READONLY", vdi)
        return db.create("VBD", **{**_known("VBD", record), "userdevice": device, "currently_attached": False})

    def vbd_destroy(self, _session, vbd):
        record = self.database.record("VBD", vbd)
        if record["currently_attached"] and self.database.get("VM", record["VM"], "power_state") != "Halted":
            raise XenError("DEVICE_ALREADY_ATTACHED", vbd)
        self.database.destroy("VBD", vbd)

    def vbd_plug(self, _session, vbd):
        self._require_state(self.database.get("VBD", vbd, "VM"), "Running")
        if self.database.get("VBD", vbd, "currently_attached"):
            raise XenError("DEVICE_ALREADY_ATTACHED", vbd)
        self._require_free(vbd)
        self.database.set("VBD", vbd, "currently_attached", True)

    def vbd_unplug(self, _session, vbd):
        if not self.database.get("VBD", vbd, "currently_attached"):
            raise XenError("DEVICE_ALREADY_DETACHED", vbd)
        self.database.set("VBD", vbd, "currently_attached", False)

    def _require_free(self, vbd):
        """A VDI is plugged once to write, or any number of times to read."""
        db = self.database
        record = db.record("VBD", vbd)
        for other in db.refs("VBD", VDI=record["VDI"], currently_attached=True):
            if other != vbd and "RW" in (record["mode"], db.get("VBD", other, "mode")):
                raise XenError("VDI_IN_USE", record["VDI"], "VBD.plug")

    # -- VIF and network ----------------------------------------------------------------------------------------------

    def vif_create(self, _session, record):
        """Without a MAC it is made from the VM's seed and the device."""
        db = self.database
        db.get("network", record["network"], "uuid")
        if db.refs("VIF", VM=record["VM"], device=record["device"]):
            raise XenError("DEVICE_ALREADY_EXISTS", record["device"])
        row = {**_known("VIF", record), "currently_attached": False, "MAC_autogenerated": not record.get("MAC")}
        if not row.get("MAC"):
            row["MAC"] = mac(db.get("VM", record["VM"], "other_config").get("mac_seed", ""), record["device"])
        return db.create("VIF", **row)

    def network_create(self, _session, record):
        return self.database.create("network", bridge="xapi" + str(uuid.uuid4())[:4], **_known("network", record))

    def network_destroy(self, _session, network):
        if self.database.refs("VIF", network=network):
            raise XenError("NETWORK_CONTAINS_VIF", self.database.refs("VIF", network=network)[0])
        if self.database.refs("PIF", network=network):
            raise XenError("NETWORK_CONTAINS_PIF", self.database.refs("PIF", network=network)[0])
        self.database.destroy("network", network)

    # -- VDI ----------------------------------------------------------------------------------------------------------

    def vdi_create(self, _session, record):
        db = self.database
        made = str(uuid.uuid4())
        fields = _known("VDI", record)
        if self.make_vdi is not None:
            made, more = self.make_vdi(record["SR"], record)
            fields.update(more)
        return db.create("VDI", made, **{**fields, "location": made, "managed": True})

    def vdi_destroy(self, _session, vdi):
        record = self.database.record("VDI", vdi)
        for vbd in record["VBDs"]:
            if self.database.get("VBD", vbd, "currently_attached"):
                raise XenError("VDI_IN_USE", vdi, "destroy")
        for vbd in record["VBDs"]:
            self.database.destroy("VBD", vbd)
        if self.drop_vdi is not None:
            self.drop_vdi(record)
        self.database.destroy("VDI", vdi)

    def vdi_pool_migrate(self, _session, vdi, sr, _options):
        """A new VDI there, on which every VBD is then; the old one goes. No bytes move here."""
        db = self.database
        record = db.record("VDI", vdi)
        if not record["VBDs"]:
            raise XenError("VDI_NEEDS_VM_FOR_MIGRATE", vdi)
        if not db.refs("PBD", SR=sr, currently_attached=True):
            raise XenError("SR_NO_PBDS", sr)
        row = {name: value for name, value in _known("VDI", record).items() if name not in ("SR", "location")}
        made = str(uuid.uuid4())
        new = db.create("VDI", made, SR=sr, location=made, **{**row, "snapshot_of": NULL})
        for vbd in record["VBDs"]:
            db.set("VBD", vbd, "VDI", new)
        db.destroy("VDI", vdi)
        return new


def mac(seed, device):
    """A local unicast address that follows from both."""
    digest = hashlib.sha256(f"{seed} {device}".encode()).hexdigest()
    return ":".join(["02"] + [digest[number : number + 2] for number in range(0, 10, 2)])


def _known(table, record):
    """The fields of a record that the table has and that are no sums of others, but for its UUID."""
    fields = [name for name, field in TABLES[table].items() if "." not in field.kind and name != "uuid"]
    return {name: record[name] for name in fields if name in record}
