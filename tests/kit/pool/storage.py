# SPDX-License-Identifier: LGPL-2.1-only
"""SR, PBD and VDI calls: the records, the secrets, the locks and the driver calls, in xapi's order.

Each function below that a client can call takes the session first, then the call's parameters.

Simpler than the real xapi: every host is this machine; no current_operations. SR.scan makes one sr_scan, and no
sr_update after it. SRs have no clustering, no RRDs and no health check.

Source: xen-api ocaml/xapi/{message_forwarding,xapi_sr,xapi_pbd,xapi_secret,storage_access,storage_smapiv1,sm}.ml
"""

import threading
import uuid
from functools import partialmethod

from . import wire
from .database import NULL
from .errors import Mistake, XenError
from .runner import NotImplementedInBackend

SM_USER = "__sm__backend"

#: what VDI.db_introduce takes behind the UUID
_INTRODUCED = (
    "name_label", "name_description", "SR", "type", "sharable", "read_only", "other_config", "location",
    "xenstore_data", "sm_config", "managed", "virtual_size", "physical_utilisation", "metadata_of_pool",
    "is_a_snapshot", "snapshot_time", "snapshot_of", "cbt_enabled",
)  # fmt: skip


class Storage:
    """Storage calls of a pool. A method is named as the call that it answers."""

    def __init__(self, database, runner):
        self.database = database
        self.runner = runner
        self.drivers = {}  #: type to plugins.Driver
        self.offline = set()  #: hosts that are away
        self._locks = {}

    # -- SR -----------------------------------------------------------------------------------------------------------

    def sr_create(self, _session, host, device_config, physical_size, name_label, name_description, type_,
                  content_type, shared, sm_config=None):  # fmt: skip
        """Facts 3.1; the numbers are its steps. It never ends well: our drivers fail when they are done."""
        db = self.database
        db.get("host", host, "uuid")
        config = self._moved(device_config)  # 1
        host = self.master() if shared else host  # 2
        sr_uuid = str(uuid.uuid4())  # 4
        sr = self._introduce(sr_uuid, name_label, name_description, type_, content_type, shared, sm_config)  # 5
        hosts = [host] + [other for other in db.refs("host") if shared and other != host]
        pbds = [self._create_pbd(each, sr, config) for each in hosts]  # 6
        try:
            config = db.get("PBD", pbds[0], "device_config")
            with self._lock("sr", host, sr_uuid):
                self._unit(self._driver_of(sr), "sr_create", host, sr, config, args=[str(physical_size)])  # 7
        except XenError:
            db.destroy("SR", sr)  # 8: rows only, their secrets stay
            for pbd in pbds:
                db.destroy("PBD", pbd)
            raise
        raise Mistake("INTERNAL_ERROR", f"{type_} has made an SR, and no driver here does")

    def sr_probe(self, _session, host, device_config, type_, sm_config=None):
        """Facts 3.2. The secrets made for it stay: xapi has nothing that removes them."""
        self.database.get("host", host, "uuid")
        config = self._moved(device_config)
        driver = self._driver(type_)
        if "SR_PROBE" not in driver.features:
            raise XenError("SR_BACKEND_FAILURE", "Operation 'sr_probe' not supported by this SR type", "", "")
        with self._lock("attach/detach", host):
            result = self._call(driver, "sr_probe", host, None, config, sr_sm_config=dict(sm_config or {}))
        return _read(wire.as_string, result)

    def sr_introduce(self, _session, sr_uuid, name_label, name_description, type_, content_type, shared,
                     sm_config=None):  # fmt: skip
        """A row, also of a type that no driver has: the plug of a PBD will say so."""
        return self._introduce(sr_uuid, name_label, name_description, type_, content_type, shared, sm_config)

    def _introduce(self, sr_uuid, name_label, name_description, type_, content_type, shared, sm_config):
        return self.database.create(
            "SR", sr_uuid or None, name_label=name_label, name_description=name_description, type=type_.lower(),
            content_type=content_type, shared=shared, sm_config=sm_config or {},
        )  # fmt: skip

    def sr_scan(self, _session, sr):
        """sr_scan on the SR's master; sums and flags afterwards."""
        db = self.database
        host, config = self._plugged(sr)
        with self._lock("sr", host, db.get("SR", sr, "uuid")):
            self._unit(self._driver_of(sr), "sr_scan", host, sr, config)
        with db.lock:
            sizes = [record["virtual_size"] for record in db.records("VDI", SR=sr).values()]
            db.set("SR", sr, "virtual_allocation", sum(sizes))
            db.remove_from("SR", sr, "other_config", "dirty")

    def sr_forget(self, _session, sr):
        """VBDs of its VDIs lead to nothing from now on. xapi collects them within half a minute (db_gc_util.ml)."""
        self.database.get("SR", sr, "uuid")
        if self.database.refs("PBD", SR=sr, currently_attached=True):
            raise XenError("SR_HAS_PBD", sr)
        for pbd in self.database.refs("PBD", SR=sr):
            self._destroy_pbd(pbd)
        for vdi in self.database.refs("VDI", SR=sr):
            self.database.destroy("VDI", vdi)
        self.database.destroy("SR", sr)

    def sr_destroy(self, _session, sr):
        """It would wipe the LUN, and nobody here asks for that. Source: message_forwarding.ml destroy."""
        if self.database.refs("PBD", SR=sr, currently_attached=True):
            raise XenError("SR_HAS_PBD", sr)
        if self.database.get("SR", sr, "other_config").get("indestructible") == "true":
            raise XenError("SR_INDESTRUCTIBLE", sr)
        raise Mistake("INTERNAL_ERROR", "an SR would be destroyed, with all that is on its LUN")

    def sr_get_supported_types(self, _session):
        return sorted(self.drivers)

    # -- PBD ----------------------------------------------------------------------------------------------------------

    def pbd_create(self, _session, record):
        config = self._moved(record["device_config"])
        self.database.get("host", record["host"], "uuid")
        self.database.get("SR", record["SR"], "uuid")
        return self._create_pbd(record["host"], record["SR"], config)

    def _create_pbd(self, host, sr, config):
        """Every PBD has secrets of its own."""
        db = self.database
        if "SRmaster" in config:
            raise XenError("VALUE_NOT_SUPPORTED", "SRmaster", config["SRmaster"], "This key is for internal use only")
        with db.lock:
            for pbd in db.refs("PBD", SR=sr, host=host):
                raise XenError("PBD_EXISTS", sr, host, pbd)
            own = {}
            for key, value in config.items():
                secret = db.by_uuid("secret", value) if key.endswith("password_secret") else None
                own[key] = self._new_secret(db.get("secret", secret, "value")) if secret else value
            return db.create("PBD", host=host, SR=sr, device_config=own)

    def pbd_plug(self, _session, pbd):
        db = self.database
        sr, host = db.get("PBD", pbd, "SR"), db.get("PBD", pbd, "host")
        driver = self._driver_of(sr)
        with self._lock("sr", host, db.get("SR", sr, "uuid")):
            if db.get("PBD", pbd, "currently_attached"):
                return
            others = [other for other in db.refs("PBD", SR=sr, currently_attached=True) if other != pbd]
            if others and not db.get("SR", sr, "shared"):
                raise XenError("SR_NOT_SHARABLE", sr, db.get("PBD", others[0], "host"))
            with self._lock("attach/detach", host):
                self._unit(driver, "sr_attach", host, sr, db.get("PBD", pbd, "device_config"))
            db.set("PBD", pbd, "currently_attached", True)

    def pbd_unplug(self, _session, pbd):
        db = self.database
        sr, host = db.get("PBD", pbd, "SR"), db.get("PBD", pbd, "host")
        with self._lock("sr", host, db.get("SR", sr, "uuid")):
            if not db.get("PBD", pbd, "currently_attached"):
                return
            self._require_ha_can_spare(sr, host)
            in_use = self._vdis_in_use(sr, host)
            if in_use:
                raise XenError("VDI_IN_USE", *in_use)
            with self._lock("attach/detach", host):
                self._unit(self._driver_of(sr), "sr_detach", host, sr, db.get("PBD", pbd, "device_config"))
            db.set("PBD", pbd, "currently_attached", False)

    def pool_enable_ha(self, _session, _heartbeat_srs, _configuration):
        self.database.set("pool", self.database.refs("pool")[0], "ha_enabled", True)

    def pool_disable_ha(self, _session):
        self.database.set("pool", self.database.refs("pool")[0], "ha_enabled", False)

    def _require_ha_can_spare(self, sr, host):
        """Source: xapi_pbd.ml, abort_if_storage_attached_to_protected_vms."""
        db = self.database
        if any(pool["ha_enabled"] for pool in db.records("pool").values()) and db.get("host", host, "enabled"):
            vms = db.refs("VM", ha_always_run=True, ha_restart_priority="restart")
            if any(vbd["VM"] in vms and vbd["VDI"] in db.refs("VDI", SR=sr) for vbd in db.records("VBD").values()):
                raise XenError("HA_CONSTRAINT_VIOLATION_SR_NOT_SHARED", sr)

    def _vdis_in_use(self, sr, host):
        """The VDIs of an SR that VMs on a host have plugged. Source: xapi_pbd.ml, get_active_vdis_by_pbd."""
        db = self.database
        vms, there = db.refs("VM", resident_on=host), db.refs("VDI", SR=sr)
        vbds = db.records("VBD", currently_attached=True).values()
        return [vbd["VDI"] for vbd in vbds if vbd["VM"] in vms and vbd["VDI"] in there]

    def pbd_destroy(self, _session, pbd):
        if self.database.get("PBD", pbd, "currently_attached"):
            raise XenError("OPERATION_NOT_ALLOWED", "PBD is currently attached")
        self._destroy_pbd(pbd)

    def _destroy_pbd(self, pbd):
        db = self.database
        config = db.get("PBD", pbd, "device_config")
        db.destroy("PBD", pbd)
        for key, value in config.items():
            if key.endswith("password_secret"):
                for secret in db.refs("secret", uuid=value):  # it may be gone
                    db.destroy("secret", secret)

    def _pbds(self, sr):
        """Of an SR, the master's first."""
        db = self.database
        return sorted(db.refs("PBD", SR=sr), key=lambda pbd: db.get("PBD", pbd, "host") != self.master())

    def _plugged(self, sr):
        """(host, device_config) where calls on an attached SR run; a shared one must be plugged on the master."""
        db = self.database
        is_shared = db.get("SR", sr, "shared")
        for pbd in self._pbds(sr):
            is_there = not is_shared or db.get("PBD", pbd, "host") == self.master()
            if db.get("PBD", pbd, "currently_attached") and is_there:
                return db.get("PBD", pbd, "host"), db.get("PBD", pbd, "device_config")
        raise XenError("SR_HAS_NO_PBDS", sr)

    # -- VDI ----------------------------------------------------------------------------------------------------------

    def vdi_db_introduce(self, session, vdi_uuid, *values):
        """For the session of a driver call on that SR alone. A location is unique in its SR, a UUID in the pool."""
        db, fields = self.database, dict(zip(_INTRODUCED, values))
        sr, location = fields["SR"], fields["location"]
        self.require_driver(session, sr)
        with db.lock:
            if db.refs("VDI", SR=sr, location=location):
                raise XenError("LOCATION_NOT_UNIQUE", sr, location)
            try:
                uuid.UUID(vdi_uuid)
            except ValueError:
                raise XenError("UUID_INVALID", "VDI", vdi_uuid) from None
            return db.create("VDI", vdi_uuid, **fields)

    def _vdi_set_name(self, _session, vdi, value, field):
        """No mere field: the driver of the SR writes the name to the LUN, where a host has the SR.

        xapi has the name before the driver is called, and takes each error of the driver for a VDI that is not there.
        Source: xapi_vdi.ml, set_name_label; storage_smapiv1.ml, stat.
        """
        db = self.database
        sr = db.get("VDI", vdi, "SR")
        host, config = self._plugged(sr)
        self.require_live(host)
        db.set("VDI", vdi, field, value)
        try:
            self._unit(self._driver_of(sr), "vdi_update", host, sr, config, vdi=vdi)
        except XenError as error:
            location = db.get("VDI", vdi, "location")
            raise XenError("INTERNAL_ERROR", f"Storage_error ([S(Vdi_does_not_exist);S({location})])") from error

    vdi_set_name_label = partialmethod(_vdi_set_name, field="name_label")
    vdi_set_name_description = partialmethod(_vdi_set_name, field="name_description")

    def plugged_on(self, host):
        """The SRs that a host has plugged."""
        db = self.database
        return {db.get("PBD", pbd, "SR") for pbd in db.refs("PBD", host=host, currently_attached=True)}

    def require_attached(self, sr):
        """Raises XenError where no host has the SR: no VM, wherever it runs, could use a disk of it."""
        if not self.database.refs("PBD", SR=sr, currently_attached=True):
            raise XenError("INTERNAL_ERROR", f"xenopsd internal error: Sr_not_attached({sr})")

    def require_plugged(self, sr):
        """Raises XenError where no host could make a driver call for this SR."""
        self._plugged(sr)

    def vdi_db_forget(self, session, vdi):
        self.require_driver(session, self.database.get("VDI", vdi, "SR"))
        self.database.destroy("VDI", vdi)

    def is_driver_of(self, session, sr):
        """Whether it is the session of a driver call on this SR."""
        return self.database.get("session", session, "other_config").get("_sm_session") == sr

    def require_driver(self, session, sr):
        self.database.get("SR", sr, "uuid")
        if not self.is_driver_of(session, sr):
            raise XenError("PERMISSION_DENIED", "")

    # -- secrets ------------------------------------------------------------------------------------------------------

    def secret_create(self, _session, record):
        return self.database.create("secret", value=record["value"], other_config=record.get("other_config", {}))

    def secret_destroy(self, _session, secret):
        self.database.destroy("secret", secret)

    def _moved(self, config):
        """Clear passwords become secrets. xapi turns the order of the keys round in doing so."""
        if not all(isinstance(value, str) for value in config.values()):
            raise XenError("FIELD_TYPE_ERROR", "device_config")
        moved = {}
        for key, value in reversed(list(config.items())):
            if key.endswith("password"):
                moved[key + "_secret"] = self._new_secret(value)
            else:
                moved[key] = value
        return moved

    def _new_secret(self, value):
        return self.database.get("secret", self.database.create("secret", value=value), "uuid")

    # -- drivers ------------------------------------------------------------------------------------------------------

    def require_live(self, host):
        """Raises XenError for a host that does not answer. Source: message_forwarding.ml, check_live and do_op_on."""
        metrics = self.database.get("host", host, "metrics")
        if host in self.offline:
            has_noticed = metrics == NULL or not self.database.get("host_metrics", metrics, "live")
            raise XenError("HOST_OFFLINE" if has_noticed else "CANNOT_CONTACT_HOST", host)

    def master(self):
        return self.database.get("pool", self.database.refs("pool")[0], "master")

    def _driver(self, type_):
        try:
            return self.drivers[type_.lower()]
        except KeyError:
            raise XenError("SR_UNKNOWN_DRIVER", type_.lower()) from None

    def _driver_of(self, sr):
        return self._driver(self.database.get("SR", sr, "type"))

    def _unit(self, driver, command, host, sr, config, args=(), vdi=None):
        _read(wire.as_nil, self._call(driver, command, host, sr, config, args, vdi=vdi))

    def _call(self, driver, command, host, sr, config, args=(), sr_sm_config=None, vdi=None):
        """A driver call with a session of its own, which may change this SR and goes when the call ends."""
        db = self.database
        self.require_live(host)
        master = command in ("sr_create", "sr_probe") or host == self.master()
        device_config = {"SRmaster": "true" if master else "false"}
        device_config.update(config)
        rights = {"_sm_session": sr} if sr else {}
        session = db.create(
            "session", this_host=host, other_config=rights, is_local_superuser=True, auth_user_name=SM_USER,
            originator="xapi",
        )  # fmt: skip
        members = {
            "host_ref": host,
            "command": command,
            "args": list(args),
            "device_config": device_config,
            "session_ref": session,
            "sr_sm_config": sr_sm_config,
            "sr_ref": sr,
            "sr_uuid": db.get("SR", sr, "uuid") if sr else None,
            "vdi_ref": vdi,
            "vdi_location": db.get("VDI", vdi, "location") if vdi else None,
            "vdi_uuid": db.get("VDI", vdi, "uuid") if vdi else None,
            "subtask_of": "DummyRef:|{}|{}".format(uuid.uuid4(), command.replace("sr_", "SR.")),
            "local_cache_sr": self._local_cache(host),
        }
        try:
            return self.runner.call(driver.path, members)
        except NotImplementedInBackend:
            if command in ("sr_create", "sr_scan"):
                raise XenError("SR_OPERATION_NOT_SUPPORTED", sr) from None
            raise XenError("INTERNAL_ERROR", "Smint.Not_implemented_in_backend") from None
        finally:
            if db.exists("session", session):  # the driver may have logged out
                db.destroy("session", session)

    def _local_cache(self, host):
        sr = self.database.get("host", host, "local_cache_sr")
        return None if sr == NULL else self.database.get("SR", sr, "uuid")

    # -- locks --------------------------------------------------------------------------------------------------------

    def _lock(self, *name):
        """xapi's locks, by name: ("sr", host, SR UUID) and, one per host, ("attach/detach", host)."""
        with self.database.lock:
            return self._locks.setdefault(name, threading.Lock())


def _read(reader, result):
    """A result as what it must be; INTERNAL_ERROR is what xapi answers when it is something else."""
    try:
        return reader(result)
    except wire.RunTimeTypeError as error:
        raise XenError("INTERNAL_ERROR", error) from error
