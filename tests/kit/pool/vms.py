# SPDX-License-Identifier: LGPL-2.1-only
"""VM, VBD, VIF, network and VDI calls, as far as a client needs them that hangs VMs on other disks.

A start leaves its time in VM_metrics, which an import takes from the file; last_booted_record is of a suspend alone.
Simpler than the real one: a VM runs nowhere; a VDI that is made or migrated is the world's, or a row alone.
Source: xen-api ocaml/xapi/{xapi_vm_lifecycle,xapi_vm_helpers,xapi_vbd,xapi_vbd_helpers,xapi_vif_helpers,xapi_vdi}.ml.
"""

import hashlib
import time
import uuid

from .database import NULL, TABLES
from .database import time as moment
from .errors import XenError

#: the states of a VM in which an operation is allowed. Source: xapi_vm_lifecycle.ml, allowed_power_states
_STATES = {
    "start": ("Halted",), "clean_shutdown": ("Running",), "hard_shutdown": ("Paused", "Suspended", "Running"),
    "resume": ("Suspended",), "unpause": ("Paused",), "destroy": ("Halted", "Suspended"),
    "make_into_template": ("Halted",),
}  # fmt: skip

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

    def __init__(self, database, storage):
        self.database, self.storage = database, storage
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
            "VM.resume": lambda _session, vm, _paused=False, _force=False: self._go_on(vm, "resume"),
            "VM.unpause": lambda _session, vm: self._go_on(vm, "unpause"),
            "VM.set_is_a_template": self.vm_set_is_a_template,
            "VM.add_to_blocked_operations": self.vm_block,
            "VM.remove_from_blocked_operations": self.vm_unblock,
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
        vm = self.database.create("VM", **{**fields, "metrics": self.database.create("VM_metrics")})
        self.update_allowed(vm)
        return vm

    def vm_destroy(self, _session, vm):
        """VBDs, VIFs and vTPMs go with it; VDIs and snapshots stay."""
        db = self.database
        self._verify_allowed(vm, "destroy")
        record = db.record("VM", vm)
        for child in db.refs("VM", parent=vm):
            db.set("VM", child, "parent", record["parent"])
        for table in ("VBD", "VIF", "VTPM", "VGPU"):
            for ref in db.refs(table, VM=vm):
                db.destroy(table, ref)
        for table, name in (("VM_metrics", "metrics"), ("VM_guest_metrics", "guest_metrics")):
            if db.exists(table, record[name]):
                db.destroy(table, record[name])
        db.destroy("VM", vm)

    def vm_start(self, _session, vm, _paused=False, _force=False):
        db = self.database
        self._verify_allowed(vm, "start")
        vbds = [ref for ref in db.refs("VBD", VM=vm) if not db.get("VBD", ref, "empty")]
        for vbd in vbds:
            db.get("VDI", db.get("VBD", vbd, "VDI"), "uuid")
            self._require_free(vbd)
        for vbd in vbds:
            db.set("VBD", vbd, "currently_attached", True)
        for vif in db.refs("VIF", VM=vm):
            db.set("VIF", vif, "currently_attached", True)
        db.set("VM", vm, "power_state", "Running")
        self.update_allowed(vm)
        metrics = db.get("VM", vm, "metrics")
        if metrics != NULL and db.exists("VM_metrics", metrics):
            db.set("VM_metrics", metrics, "start_time", moment(time.strftime("%Y%m%dT%H:%M:%SZ", time.gmtime())))

    def vm_clean_shutdown(self, session, vm):
        """It takes a program in the guest that obeys."""
        self._verify_allowed(vm, "clean_shutdown")
        if not self._has_pv_drivers(vm):
            raise XenError("VM_LACKS_FEATURE", vm)
        if vm in self.refuses_shutdown:
            raise XenError("VM_SHUTDOWN_TIMEOUT", vm, "1200.")
        self._halt(vm)

    def _go_on(self, vm, operation):
        self._verify_allowed(vm, operation)
        self.database.set("VM", vm, "power_state", "Running")
        self.update_allowed(vm)

    def vm_hard_shutdown(self, _session, vm):
        self._verify_allowed(vm, "hard_shutdown")
        self._halt(vm)

    def _halt(self, vm):
        for table in ("VBD", "VIF"):
            for ref in self.database.refs(table, VM=vm):
                self.database.set(table, ref, "currently_attached", False)
        self.database.set("VM", vm, "power_state", "Halted")
        self.update_allowed(vm)

    def vm_set_is_a_template(self, _session, vm, value):
        """A VM that becomes a template loses its metrics. One that becomes a VM keeps allowed_operations of a template
        until another call looks at them (message_forwarding.ml).
        """
        db = self.database
        metrics = db.get("VM", vm, "metrics")
        if value:
            self._verify_allowed(vm, "make_into_template")
            db.set("VM", vm, "ha_always_run", False)
            db.set("VM", vm, "metrics", NULL)
            if db.exists("VM_metrics", metrics):
                db.destroy("VM_metrics", metrics)
        db.set("VM", vm, "is_a_template", value)
        if value:
            self.update_allowed(vm)

    def vm_block(self, _session, vm, operation, why):
        self.database.add_to("VM", vm, "blocked_operations", operation, why)
        self.update_allowed(vm)

    def vm_unblock(self, _session, vm, operation):
        """Of one that is not blocked: no error, and allowed_operations are looked at all the same."""
        self.database.remove_from("VM", vm, "blocked_operations", operation)
        self.update_allowed(vm)

    def update_allowed(self, vm):
        """What clients such as XenCenter look at before they offer an operation; no call looks at it."""
        self.database.set("VM", vm, "allowed_operations", [each for each in _STATES if self._is_allowed(vm, each)])

    def _is_allowed(self, vm, operation):
        try:
            self._verify_allowed(vm, operation)
        except XenError:
            return False
        return True

    def _has_pv_drivers(self, vm):
        """As its guest has said. Source: xapi_pv_driver_version.ml."""
        metrics = self.database.get("VM", vm, "guest_metrics")
        if not self.database.exists("VM_guest_metrics", metrics):
            return False
        found = self.database.record("VM_guest_metrics", metrics)
        return found["PV_drivers_detected"] or bool(found["PV_drivers_version"])

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

    def _verify_allowed(self, vm, operation):
        """What check_operation_error looks at, in its order."""
        record, states = self.database.record("VM", vm), _STATES[operation]
        if operation in record["blocked_operations"]:
            raise XenError("OPERATION_BLOCKED", vm, record["blocked_operations"][operation])
        if record["power_state"] not in states:
            wanted = ", ".join(state.lower() for state in states)
            raise XenError("VM_BAD_POWER_STATE", vm, wanted, record["power_state"].lower())
        if record["current_operations"]:
            ((task, busy), *_) = record["current_operations"].items()
            raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", vm, busy, task)
        if record["is_a_snapshot"] and operation not in ("destroy", "hard_shutdown"):
            raise XenError("VM_IS_SNAPSHOT", vm, operation)
        if record["is_a_template"] and not record["is_a_snapshot"] and operation != "destroy":
            raise XenError("VM_IS_TEMPLATE", vm, operation)

    # -- VBD ----------------------------------------------------------------------------------------------------------

    def vbd_create(self, _session, record):
        db = self.database
        vm, vdi, type_ = record["VM"], record.get("VDI", NULL), record.get("type", "Disk")
        db.get("VM", vm, "uuid")
        if not record.get("empty"):
            db.get("VDI", vdi, "uuid")
        if type_ == "CD" and record["mode"] != "RO":
            raise XenError("VBD_CDS_MUST_BE_READONLY")
        if type_ != "CD" and record.get("empty"):
            raise XenError("VBD_NOT_REMOVABLE_MEDIA", "in constructor")
        if record["mode"] == "RW" and db.get("VDI", vdi, "read_only"):
            raise XenError("VDI_READONLY", vdi)
        taken = {db.get("VBD", ref, "userdevice") for ref in db.refs("VBD", VM=vm)}
        device = record["userdevice"]
        if device == "autodetect":
            device = next(str(number) for number in range(256) if str(number) not in taken | {"3"})
        if device in taken:
            raise XenError("DEVICE_ALREADY_EXISTS", device)
        return db.create("VBD", **{**_known("VBD", record), "userdevice": device, "currently_attached": False})

    def vbd_destroy(self, _session, vbd):
        record = self.database.record("VBD", vbd)
        if record["currently_attached"]:
            raise XenError("OPERATION_NOT_ALLOWED", f"VBD '{record['uuid']}' still attached to a VM")
        self.database.destroy("VBD", vbd)

    def vbd_plug(self, _session, vbd):
        """What stays plugged out stays as a VBD: it is in the VM at its next boot."""
        record = self.database.record("VBD", vbd)
        vm = self.database.record("VM", record["VM"])
        if vm["power_state"] != "Running":
            raise XenError("VM_BAD_POWER_STATE", record["VM"], "running", vm["power_state"].lower())
        if record["currently_attached"]:
            raise XenError("DEVICE_ALREADY_ATTACHED", vbd)
        self._verify_can_hotplug(vm["domain_type"], record["VM"])
        self._require_free(vbd)
        if vm["domain_type"] == "hvm" and record["type"] != "CD" and record["mode"] == "RO":
            raise XenError("DISK_VBD_MUST_BE_READWRITE_FOR_HVM", vbd)
        self.database.set("VBD", vbd, "currently_attached", True)

    def _verify_can_hotplug(self, domain_type, vm):
        if domain_type == "hvm" and not self._has_pv_drivers(vm):
            raise XenError("VM_MISSING_PV_DRIVERS", vm)

    def vbd_unplug(self, _session, vbd):
        record = self.database.record("VBD", vbd)
        if not record["currently_attached"]:
            raise XenError("DEVICE_ALREADY_DETACHED", vbd)
        self._verify_can_hotplug(self.database.get("VM", record["VM"], "domain_type"), record["VM"])
        self.database.set("VBD", vbd, "currently_attached", False)

    def _require_free(self, vbd):
        """A VDI is plugged once to write, or any number of times to read."""
        db = self.database
        record = db.record("VBD", vbd)
        for other in db.refs("VBD", VDI=record["VDI"], currently_attached=True):
            if other != vbd and "RW" in (record["mode"], db.get("VBD", other, "mode")):
                raise XenError("VDI_IN_USE", record["VDI"])

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
        self.storage.require_plugged(record["SR"])
        made = str(uuid.uuid4())
        fields = _known("VDI", record)
        if self.make_vdi is not None:
            made, more = self.make_vdi(record["SR"], record)
            fields.update(more)
        return db.create("VDI", made, **{**fields, "location": made, "managed": True})

    def vdi_destroy(self, _session, vdi):
        record = self.database.record("VDI", vdi)
        self.storage.require_plugged(record["SR"])
        if not record["managed"]:
            raise XenError("VDI_NOT_MANAGED", vdi)
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
        self.storage.require_plugged(sr)
        self.storage.require_plugged(record["SR"])
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
