# SPDX-License-Identifier: LGPL-2.1-only
"""VM, VBD, VIF, network and VDI calls, as far as a client needs them to give VMs other disks.

A start leaves its time in VM_metrics, which an import takes from the file; last_booted_record is of a suspend alone.
Simpler than the real one: a VM runs nowhere; a VDI that is made or migrated is the world's, or a row alone.
Source: xen-api ocaml/xapi/{xapi_vm_lifecycle,xapi_vm_helpers,xapi_vbd,xapi_vbd_helpers,xapi_vif_helpers,xapi_vdi}.ml.
"""

import hashlib
import re
import time
import uuid
from functools import partial

from .database import NULL, TABLES
from .database import time as moment
from .errors import Mistake, XenError

#: the states of a VM in which an operation is allowed. Source: xapi_vm_lifecycle.ml, allowed_power_states
_STATES = {
    "start": ("Halted",), "clean_shutdown": ("Running",), "hard_shutdown": ("Paused", "Suspended", "Running"),
    "resume": ("Suspended",), "unpause": ("Paused",), "destroy": ("Halted", "Suspended"),
    "migrate_send": ("Halted", "Suspended", "Running"),
    "metadata_export": ("Halted", "Paused", "Suspended", "Running"),
}  # fmt: skip

#: what a template and a snapshot allow. Source: xapi_vm_lifecycle.ml, check_template and check_snapshot
_OF_TEMPLATE = ("destroy", "migrate_send", "metadata_export")
_OF_SNAPSHOT = ("destroy", "hard_shutdown", "metadata_export")

#: what VM.copy resets. Source: xapi_vm_clone.ml, copy_vm_record
_NOT_COPIED = {
    "ha_always_run": False, "appliance": NULL, "parent": NULL, "suspend_SR": NULL, "start_delay": 0, "order": 0,
}  # fmt: skip

#: VDIs of these types are no disks. Source: xapi_vbd.ml, create
_NO_DISKS = ("ha_statefile", "redo_log", "cbt_metadata")

#: xapi-consts/constants.ml, ha_valid_restart_priorities
_PRIORITIES = ("restart", "best-effort", "")


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
        self.free_memory_bytes = 8 << 30  #: of each host
        self.refuses_shutdown = set()  #: VMs whose guests do not answer

    # -- VM -----------------------------------------------------------------------------------------------------------

    def vm_create(self, _session, record):
        """Halted; whatever a client says of blocked_operations is dropped, and it gets a seed for MACs (xapi_vm.ml)."""
        fields = {name: value for name, value in _known("VM", record).items() if name != "blocked_operations"}
        fields["other_config"] = {"mac_seed": str(uuid.uuid4()), **fields["other_config"]}
        vm = self.database.create("VM", **{**fields, "metrics": self.database.create("VM_metrics")})
        self.update_allowed(vm)
        return vm

    def vm_destroy(self, _session, vm):
        """VBDs, VIFs and vTPMs go with it; VDIs and snapshots stay."""
        db = self.database
        self.verify_allowed(vm, "destroy")
        record = db.record("VM", vm)
        if record["VTPMs"] and record["power_state"] != "Halted":  # xapi_vtpm.ml, destroy
            raise XenError("VM_BAD_POWER_STATE", vm, "halted", record["power_state"].lower())
        if record["other_config"].get("default_template") == "true":  # xapi_vm_helpers.ml, destroy
            raise XenError("VM_CANNOT_DELETE_DEFAULT_TEMPLATE")
        for child in db.refs("VM", parent=vm):
            db.set("VM", child, "parent", record["parent"])
        for table in ("VBD", "VIF", "VTPM", "VGPU"):
            for ref in db.refs(table, VM=vm):
                db.destroy(table, ref)
        for table, name in (("VM_metrics", "metrics"), ("VM_guest_metrics", "guest_metrics")):
            if db.exists(table, record[name]):
                db.destroy(table, record[name])
        db.destroy("VM", vm)

    def vm_copy(self, session, vm, name, sr):
        """A VM with all keys of a halted one, and with VIFs and VDIs of its own, on this SR or each on its own SR.

        As with `vdi_pool_migrate`, no bytes of a guest move. Source: xapi_vm_clone.ml, copy_vm_record and clone.
        """
        db = self.database
        record = db.record("VM", vm)
        if record["power_state"] != "Halted":
            raise XenError("VM_BAD_POWER_STATE", vm, "halted", record["power_state"].lower())
        config = {key: text for key, text in record["other_config"].items() if key != "mac_seed"}
        fields = {**record, **_NOT_COPIED, "name_label": name, "other_config": config}
        new = self.vm_create(session, fields)
        for vbd in map(partial(db.record, "VBD"), record["VBDs"]):
            vdi = vbd["VDI"]
            if not vbd["empty"] and vbd["type"] == "Disk":
                disk = db.record("VDI", vdi)
                self.storage.require_plugged(disk["SR"])
                self.storage.require_plugged(disk["SR"] if sr == NULL else sr)
                vdi = self._made(disk["SR"] if sr == NULL else sr, disk, snapshot_of=NULL, is_a_snapshot=False)
            self.vbd_create(session, {**vbd, "VM": new, "VDI": vdi})
        for vif in map(partial(db.record, "VIF"), record["VIFs"]):
            self.vif_create(session, {**vif, "VM": new, "MAC": ""})
        return new

    def vm_start(self, _session, vm, _paused=False, _force=False):
        db = self.database
        self.verify_allowed(vm, "start")
        vbds = [ref for ref in db.refs("VBD", VM=vm) if not db.get("VBD", ref, "empty")]
        for vbd in vbds:
            self._require_free(vbd)
        self._require_host(vm)
        for vbd in vbds:
            db.set("VBD", vbd, "currently_attached", True)
        for vif in db.refs("VIF", VM=vm):
            db.set("VIF", vif, "currently_attached", True)
        self._runs(vm)
        metrics = db.get("VM", vm, "metrics")
        if metrics != NULL and db.exists("VM_metrics", metrics):
            db.set("VM_metrics", metrics, "start_time", moment(time.strftime("%Y%m%dT%H:%M:%SZ", time.gmtime())))

    def vm_clean_shutdown(self, session, vm):
        """It takes a program in the guest that obeys."""
        self.verify_allowed(vm, "clean_shutdown")
        if not self._has_pv_drivers(vm):
            raise XenError("VM_LACKS_FEATURE", vm)
        if vm in self.refuses_shutdown:
            raise XenError("VM_SHUTDOWN_TIMEOUT", vm, "1200.")
        self._halt(vm)

    def vm_resume(self, _session, vm, _paused=False, _force=False):
        self.verify_allowed(vm, "resume")
        self._require_host(vm)
        self._runs(vm)

    def vm_unpause(self, _session, vm):
        self.verify_allowed(vm, "unpause")
        self._runs(vm)

    def _runs(self, vm):
        self.database.set("VM", vm, "power_state", "Running")
        if self.database.get("VM", vm, "ha_restart_priority") == "restart":
            self.database.set("VM", vm, "ha_always_run", True)
        self.update_allowed(vm)

    def vm_assert_operation_valid(self, _session, vm, operation):
        self.verify_allowed(vm, operation)

    def vm_power_state_reset(self, _session, vm):
        """In the database alone. Simpler: no VM runs anywhere, so one that runs is never refused."""
        self._halt(vm)

    def vm_hard_shutdown(self, _session, vm):
        self.verify_allowed(vm, "hard_shutdown")
        self._halt(vm)

    def _halt(self, vm):
        for table in ("VBD", "VIF"):
            for ref in self.database.refs(table, VM=vm):
                self.database.set(table, ref, "currently_attached", False)
        self.database.set("VM", vm, "power_state", "Halted")
        self.database.set("VM", vm, "ha_always_run", False)
        self.update_allowed(vm)

    def vm_set_is_a_template(self, _session, vm, value):
        """One that becomes a VM keeps allowed_operations of a template until another call looks at them
        (message_forwarding.ml).
        """
        if value:
            raise Mistake("INTERNAL_ERROR", "nobody makes a template of a VM")
        self.database.set("VM", vm, "is_a_template", False)

    def vm_set_ha_restart_priority(self, _session, vm, value):
        """It protects a running VM at once, and a halted one from its next start."""
        if value not in _PRIORITIES:
            raise XenError("INVALID_VALUE", "ha_restart_priority", value)
        if value != self.database.get("VM", vm, "ha_restart_priority"):
            self.database.set("VM", vm, "ha_restart_priority", value)
            if self.database.get("VM", vm, "power_state") == "Running":
                self.database.set("VM", vm, "ha_always_run", value == "restart")
        self.update_allowed(vm)

    def vm_add_to_blocked_operations(self, _session, vm, operation, why):
        self.database.add_to("VM", vm, "blocked_operations", operation, why)
        self.update_allowed(vm)

    def vm_remove_from_blocked_operations(self, _session, vm, operation):
        """Unblock an operation, and compute allowed_operations. An operation that is not blocked is no error."""
        self.database.remove_from("VM", vm, "blocked_operations", operation)
        self.update_allowed(vm)

    def update_allowed(self, vm):
        """What clients such as XenCenter look at before they offer an operation; no call looks at it.

        Raises XenError, as `_verify_metrics`.
        """
        self._verify_metrics(vm)
        self.database.set("VM", vm, "allowed_operations", [each for each in _STATES if self._is_allowed(vm, each)])

    def _is_allowed(self, vm, operation):
        try:
            self.verify_allowed(vm, operation)
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

    def verify_allowed(self, vm, operation):
        """What check_operation_error looks at, in its order."""
        self._verify_metrics(vm)
        record, states = self.database.record("VM", vm), _STATES[operation]
        if operation in record["blocked_operations"]:
            raise XenError("OPERATION_BLOCKED", vm, record["blocked_operations"][operation])
        if record["power_state"] not in states:
            wanted = ", ".join(state.lower() for state in states)
            raise XenError("VM_BAD_POWER_STATE", vm, wanted, record["power_state"].lower())
        if record["current_operations"] and not _is_beside(operation, list(record["current_operations"].values())):
            ((task, busy), *_) = record["current_operations"].items()
            raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", vm, busy, task)
        if record["is_a_snapshot"] and operation not in _OF_SNAPSHOT:
            raise XenError("VM_IS_SNAPSHOT", vm, operation)
        if record["is_a_template"] and not record["is_a_snapshot"]:
            is_default = record["other_config"].get("default_template", "").lower() in ("true", "1")
            is_default = is_default or record["is_default_template"]
            if operation not in _OF_TEMPLATE or is_default and operation in ("destroy", "migrate_send"):
                raise XenError("VM_IS_TEMPLATE", vm, operation)

    def _verify_metrics(self, vm):
        """Raises XenError for a VM with an object of another class as its metrics: xapi reads each object there is.

        Source: xapi_vm_lifecycle.ml, maybe_get_metrics.
        """
        for table, name in (("VM_metrics", "metrics"), ("VM_guest_metrics", "guest_metrics")):
            ref = self.database.get("VM", vm, name)
            if any(self.database.exists(other, ref) for other in TABLES):
                self.database.record(table, ref)

    def _require_host(self, vm, *more):
        """A VM runs where every SR of its disks and memory is plugged, and where it has room.

        Source: xapi_vm_placement.ml, select_host; xapi_vm_helpers.ml, assert_can_boot_here. Simpler: all memory of a
        VM counts, and none of those that run.
        """
        db = self.database
        record = db.record("VM", vm)
        disks = [db.get("VBD", ref, "VDI") for ref in record["VBDs"] if not db.get("VBD", ref, "empty")]
        memory = [record["suspend_VDI"]] if record["suspend_VDI"] != NULL else []
        wanted = {db.get("VDI", vdi, "SR") for vdi in disks + memory} | set(more)
        has_room = record["memory_static_max"] <= self.free_memory_bytes
        for host in db.refs("host", enabled=True):
            is_live = db.get("host_metrics", db.get("host", host, "metrics"), "live")
            if is_live and has_room and wanted <= self.storage.plugged_on(host):
                return
        raise XenError("NO_HOSTS_AVAILABLE")

    # -- VBD ----------------------------------------------------------------------------------------------------------

    def vbd_create(self, _session, record):
        """Checked in the order of xapi_vbd.ml, create. Simpler: a VM is not made non-agile."""
        db = self.database
        vm, vdi, empty = record["VM"], record.get("VDI", NULL), record.get("empty", False)
        kind, mode, device = record.get("type", "Disk"), record["mode"], record["userdevice"]
        is_hvm = db.get("VM", vm, "domain_type") == "hvm"
        if not empty and db.get("VDI", vdi, "type") in _NO_DISKS:
            raise XenError("VDI_INCOMPATIBLE_TYPE", vdi, db.get("VDI", vdi, "type"))
        if kind == "CD" and mode != "RO":
            raise XenError("VBD_CDS_MUST_BE_READONLY")
        if kind != "CD" and empty:
            raise XenError("VBD_NOT_REMOVABLE_MEDIA", "in constructor")
        if mode == "RW" and db.get("VDI", vdi, "read_only"):
            raise XenError("VDI_READONLY", vdi)
        for task, busy in db.get("VM", vm, "current_operations").items():
            if busy in ("migrate_send", "pool_migrate"):
                raise XenError("OTHER_OPERATION_IN_PROGRESS", "VM", vm, busy, task)
        if kind == "Floppy" and not is_hvm:
            raise XenError("NOT_IMPLEMENTED", "VBD of type 'floppy' is not supported on PV domain")
        names = [db.get("VBD", ref, name) for ref in db.refs("VBD", VM=vm) for name in ("device", "userdevice")]
        taken = set().union(*map(_places, names))
        if device == "autodetect":
            # xapi compares with one name of each device: it takes no xvda of an HVM VM, and no hda of a PV VM, for 0
            seen = {place for place in taken if (place[0] == "hd") == is_hvm or place[1] > 3}
            numbers = ("fda", "fdb") if kind == "Floppy" else map(str, range(255))
            device = next(number for number in numbers if not seen & _places(number))
        if not _places(device) and (kind == "Floppy" or _number(device) is None):
            raise XenError("INVALID_DEVICE", device)
        if taken & _places(device):
            raise XenError("DEVICE_ALREADY_EXISTS", device)
        row = {"userdevice": device, "device": "", "currently_attached": False}
        return db.create("VBD", **{**_known("VBD", record), **row})

    def vbd_destroy(self, _session, vbd):
        record = self.database.record("VBD", vbd)
        if record["currently_attached"]:
            vm = self.database.get("VM", record["VM"], "uuid")
            raise XenError("OPERATION_NOT_ALLOWED", f"VBD '{record['uuid']}' still attached to '{vm}'")
        self.database.destroy("VBD", vbd)

    def vbd_plug(self, _session, vbd):
        """What stays plugged out stays as a VBD: it is in the VM at its next boot."""
        record = self.database.record("VBD", vbd)
        self._require_running(record["VM"])
        self._verify_can_hotplug(record)
        self._require_free(vbd)
        if record["mode"] == "RO" and self.database.get("VM", record["VM"], "domain_type") == "hvm":
            raise XenError("DISK_VBD_MUST_BE_READWRITE_FOR_HVM", vbd)
        self.storage.require_attached(self.database.get("VDI", record["VDI"], "SR"))
        self.database.set("VBD", vbd, "currently_attached", True)

    def _require_running(self, vm):
        state = self.database.get("VM", vm, "power_state")
        if state != "Running":
            raise XenError("VM_BAD_POWER_STATE", vm, "running", state.lower())

    def _verify_can_hotplug(self, vbd):
        """`vbd` is the record."""
        vm = self.database.record("VM", vbd["VM"])
        if vm["domain_type"] == "hvm" and not self._has_pv_drivers(vbd["VM"]):
            raise XenError("VM_MISSING_PV_DRIVERS", vbd["VM"])

    def vbd_insert(self, _session, vbd, vdi):
        """Source: xapi_vbd.ml, assert_ok_to_insert."""
        record = self._cd_drive(vbd, is_empty=True)
        if not self.database.get("VDI", vdi, "managed"):
            raise XenError("VDI_NOT_MANAGED", vdi)
        is_running = self.database.get("VM", record["VM"], "power_state") == "Running"
        if is_running:
            self.storage.require_attached(self.database.get("VDI", vdi, "SR"))
        for field, value in (("VDI", vdi), ("empty", False), ("currently_attached", is_running)):
            self.database.set("VBD", vbd, field, value)

    def vbd_eject(self, _session, vbd):
        """Source: xapi_vbd.ml, assert_ok_to_eject."""
        self._cd_drive(vbd, is_empty=False)
        for field, value in (("VDI", NULL), ("empty", True), ("currently_attached", False)):
            self.database.set("VBD", vbd, field, value)

    def _cd_drive(self, vbd, is_empty):
        """The record of a CD drive of a VM that is not suspended."""
        record = self.database.record("VBD", vbd)
        if record["type"] != "CD":
            raise XenError("VBD_NOT_REMOVABLE_MEDIA", vbd)
        if record["empty"] != is_empty:
            raise XenError("VBD_NOT_EMPTY" if is_empty else "VBD_IS_EMPTY", vbd)
        if self.database.get("VM", record["VM"], "power_state") == "Suspended":
            raise XenError("VM_BAD_POWER_STATE", record["VM"], "halted, running", "suspended")
        return record

    def vbd_unplug(self, _session, vbd):
        record = self.database.record("VBD", vbd)
        self._require_running(record["VM"])
        self._verify_can_hotplug(record)
        self.database.set("VBD", vbd, "currently_attached", False)

    def _require_free(self, vbd):
        """A VDI is plugged once to write, or any number of times to read; one that is sharable has no such limit.

        VBDs of suspended VMs and of control domains do not count. Source: xapi_vbd_helpers.ml, valid_operations.
        """
        db = self.database
        record = db.record("VBD", vbd)
        vdi = db.record("VDI", record["VDI"])
        if not vdi["managed"]:
            raise XenError("VDI_NOT_MANAGED", vbd)
        for other in db.refs("VBD", VDI=record["VDI"], currently_attached=True):
            is_away = db.get("VM", db.get("VBD", other, "VM"), "power_state") == "Suspended"
            is_written = "RW" in (record["mode"], db.get("VBD", other, "mode"))
            if other != vbd and is_written and not (vdi["sharable"] or is_away):
                raise XenError("VDI_IN_USE", record["VDI"])
        if record["mode"] == "RW" and vdi["read_only"]:
            raise XenError("VDI_READONLY", record["VDI"])

    # -- VIF and network ----------------------------------------------------------------------------------------------

    def vif_create(self, _session, record):
        """Without a MAC it is made from the VM's seed and the device. Source: xapi_vif_helpers.ml, create."""
        db = self.database
        db.get("network", record["network"], "uuid")
        seed, device = db.get("VM", record["VM"], "other_config").get("mac_seed"), record["device"]
        if not re.fullmatch("[0-9]+", device):
            raise XenError("INVALID_DEVICE", device)
        is_made = seed is not None and not record.get("MAC")
        address = mac(seed, device) if is_made else record.get("MAC", "")
        if not re.fullmatch("[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", address):
            raise XenError("MAC_INVALID", address)
        if int(device) in [int(db.get("VIF", ref, "device")) for ref in db.refs("VIF", VM=record["VM"])]:
            raise XenError("DEVICE_ALREADY_EXISTS", device)
        row = {"MAC": address, "MAC_autogenerated": is_made, "currently_attached": False}
        return db.create("VIF", **{**_known("VIF", record), **row})

    def vif_destroy(self, _session, vif):
        record = self.database.record("VIF", vif)
        is_running = self.database.get("VM", record["VM"], "power_state") in ("Running", "Paused")
        if is_running and record["currently_attached"]:
            raise XenError("OPERATION_NOT_ALLOWED", "VIF currently attached to a running VM")
        self.database.destroy("VIF", vif)

    def vif_move(self, _session, vif, network):
        """xapi_vif.ml move; a running VM gets the network at once."""
        self.database.get("network", network, "uuid")
        self.database.set("VIF", vif, "network", network)

    def network_create(self, _session, record):
        bridge = "xapi" + str(uuid.uuid4())[:4]
        return self.database.create("network", **{**_known("network", record), "bridge": bridge})

    def network_destroy(self, _session, network):
        """Destroy a network with its unattached VIFs of any VM. Source: xapi_network.ml, destroy."""
        db = self.database
        attached = db.refs("VIF", network=network, currently_attached=True)
        if attached:
            raise XenError("NETWORK_CONTAINS_VIF", *attached)
        if db.refs("PIF", network=network):
            raise XenError("NETWORK_CONTAINS_PIF", *db.refs("PIF", network=network))
        if db.get("network", network, "other_config").get("is_host_internal_management_network") == "true":
            raise XenError("CANNOT_DESTROY_SYSTEM_NETWORK", network)
        for vif in db.refs("VIF", network=network):
            db.destroy("VIF", vif)
        db.destroy("network", network)

    # -- VDI ----------------------------------------------------------------------------------------------------------

    def vdi_create(self, _session, record):
        self.storage.require_plugged(record["SR"])
        return self._made(record["SR"], record, managed=True)

    def _made(self, sr, record, **fields):
        """A VDI on an SR, with the words of `record`; gives its reference."""
        made, more = (str(uuid.uuid4()), {}) if self.make_vdi is None else self.make_vdi(sr, record)
        row = {**_known("VDI", record), **more, **fields, "SR": sr, "location": made}
        return self.database.create("VDI", made, **row)

    def vdi_destroy(self, _session, vdi):
        record = self.database.record("VDI", vdi)
        self.require_idle(vdi, "destroy")
        self.storage.require_plugged(record["SR"])
        if not record["managed"]:
            raise XenError("VDI_NOT_MANAGED", vdi)
        for vbd in record["VBDs"]:
            self.database.destroy("VBD", vbd)
        if self.drop_vdi is not None:
            self.drop_vdi(record)
        self.database.destroy("VDI", vdi)

    def vdi_forget(self, _session, vdi):
        """Its VBDs lead to nothing from now on."""
        self.require_idle(vdi, "forget")
        self.database.destroy("VDI", vdi)

    def vdi_disable_cbt(self, _session, vdi):
        """In the database alone: no LUN of the world loses its log."""
        self.storage.require_plugged(self.database.get("VDI", vdi, "SR"))
        self.database.set("VDI", vdi, "cbt_enabled", False)

    def require_idle(self, vdi, operation):
        """Raises XenError for a VDI that is plugged into a VM. Source: xapi_vdi.ml, check_operation_error."""
        if self.database.refs("VBD", VDI=vdi, currently_attached=True):
            raise XenError("VDI_IN_USE", vdi, operation)

    def vdi_pool_migrate(self, session, vdi, sr, _options):
        """A new VDI there, on which the VBDs of one VM and its snapshots are then; the old one goes from its LUN too.

        No bytes of a guest move. The VM is that of the first VBD. VBDs of other VMs go with the old VDI, which stays
        where such a VBD is plugged. Of other_config, only "config-drive" goes along. Source: xapi_vm_migrate.ml,
        migrate_send' and intra_pool_vdi_remap.
        """
        db = self.database
        record = db.record("VDI", vdi)
        if not record["VBDs"]:
            raise XenError("VDI_NEEDS_VM_FOR_MIGRATE", vdi)
        vm = db.get("VBD", record["VBDs"][0], "VM")
        self.verify_allowed(vm, "migrate_send")
        if db.get("VM", vm, "power_state") == "Halted":
            self._require_host(vm, sr)
        if record["cbt_enabled"]:
            raise XenError("VDI_CBT_ENABLED", vdi)
        drives = [vbd for vbd in db.records("VBD", VM=vm).values() if not vbd["empty"] and vbd["type"] != "CD"]
        for drive in drives:
            if db.get("VDI", drive["VDI"], "on_boot") == "reset":
                raise XenError("VDI_ON_BOOT_MODE_INCOMPATIBLE_WITH_OPERATION", drive["VDI"])
        if "key_hash" in record["sm_config"]:
            raise XenError("VDI_IS_ENCRYPTED", vdi)
        self.storage.require_plugged(sr)
        self.storage.require_plugged(record["SR"])
        kept = {key: text for key, text in record["other_config"].items() if key == "config-drive"}
        new = self._made(sr, record, snapshot_of=NULL, other_config=kept)
        moved = {vm, *db.get("VM", vm, "snapshots")}
        for vbd in [each for each in record["VBDs"] if db.get("VBD", each, "VM") in moved]:
            db.set("VBD", vbd, "VDI", new)
        self.vdi_destroy(session, vdi)
        return new


def _is_beside(operation, current):
    """Whether an operation may begin beside those. Source: xapi_vm_lifecycle.ml, is_allowed_concurrently."""
    if operation == "hard_shutdown":
        return operation not in current
    return operation in ("metadata_export", "clean_shutdown") and current == ["migrate_send"]


def mac(seed, device):
    """A local unicast address that follows from both."""
    digest = hashlib.sha256(f"{seed} {device}".encode()).hexdigest()
    return ":".join(["02"] + [digest[number : number + 2] for number in range(0, 10, 2)])


#: the most disks and partitions of each kind of device. Source: xapi-idl/xen/device_number.ml, max_of
_MOST = {"xvd": ((1 << 20) - 1, 15), "sd": (15, 15), "fd": (2, 0), "hd": (19, 63)}


def _places(device):
    """The places of a disk that a name of a device may stand for: "1" is that of "xvdb" and that of "hdb".

    None of a name that is no device. Source: xapi_vm_helpers.ml, possible_VBD_devices_of_string; device_number.ml,
    of_string. Of a name such as xvdb, any number makes the disk; such a number out of range makes none.
    """
    number = _number(device)
    if number is not None:
        found = {("hd" if number < 4 else "xvd", number, 0), ("xvd", number, 0)}
    else:
        named = re.fullmatch("(xvd|hd|sd|fd)([a-z]+)([0-9]*)", device)
        numbered = re.fullmatch("d([0-9]+)(?:p([0-9]+))?", device)
        found = set()
        if named:
            bus, letters, partition = named.groups()
            disk = 0
            for letter in letters:
                disk = 26 * disk + ord(letter) - ord("a") + 1
            found = {(bus, disk - 1, int(partition or 0))}
        elif numbered:
            found = {("xvd", int(numbered.group(1)), int(numbered.group(2) or 0))}
    return {(bus, *at) for bus, *at in found if all(0 <= each <= most for each, most in zip(at, _MOST[bus]))}


def _number(text):
    """The number in a text, as int_of_string of OCaml reads it; None without one."""
    found = re.fullmatch(
        "([-+]?)(0[xX](?=[0-9a-fA-F])|0[oO](?=[0-7])|0[bB](?=[01])|0[uU](?=[0-9]))?([0-9a-fA-F][0-9a-fA-F_]*)", text
    )
    if found is None:
        return None
    sign, prefix, digits = found.groups()
    try:
        number = int(digits.replace("_", ""), {"x": 16, "o": 8, "b": 2, "u": 10, "": 10}[(prefix or "")[1:].lower()])
    except ValueError:
        return None
    return -number if sign == "-" else number


def _known(table, record):
    """The fields of a record that the table has and that are no sums of others, but for its UUID."""
    fields = [name for name, field in TABLES[table].items() if "." not in field.kind and name != "uuid"]
    return {name: record[name] for name in fields if name in record}
