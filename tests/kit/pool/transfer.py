# SPDX-License-Identifier: LGPL-2.1-only
"""What goes over HTTP beside XML-RPC, as xapi has it: records of VMs and bytes of VDIs, out and in.

An export is a tar with one file, ova.xml: the records of a VM and of all that it leads to, references in it as "Ref:n".
An import matches what is not made anew with what the pool has:

    host      by uuid
    SR        by uuid
    VDI       of an ISO SR: by location in any ISO SR, or the drive is empty; else, in this order: the same SCSIid in
              sm_config, location in the matched SR, other_config:maps_to; else the import fails
    network   by name (the first that has it), else by bridge, else it is created
    VIF       other_config:maps_to names a network by reference, before all that

The import finds a VDI in an answer of xapi to itself, which is XML-RPC before 26: a key of a VDI may be markup there.
So the import takes the VDI to which the file's SR and location lead, even if another disk was meant.
Simpler than the real one: no vdi:OLD=NEW, no CPU check, no live migration, no PVS; a template is like any VM;
restore=true is refused.
Source: xen-api ocaml/xapi/{export,import,importexport,xapi_http}.ml.
"""

import contextlib
import html
import io
import re
import tarfile
import urllib.parse
import uuid
import xmlrpc.client
from functools import partial
from xml.parsers import expat

from . import datamodel, wire
from .database import NULL
from .errors import Silent, XenError
from .vms import _known

MOST_HEADER_BYTES = 1024  #: of a request line and its headers: http.ml, read_http_request_header
VSN = (2, 21)
VDI_UNAVAILABLE = 46  #: the driver's code: sm XE_SR_ERRORCODES.xml

#: classes in the order in which an import takes them
_ORDER = (
    "host", "SR", "VDI", "VM_guest_metrics", "VM_metrics", "VM", "network", "GPU_group", "VBD", "VIF", "VGPU_type",
    "VGPU", "VTPM",
)  # fmt: skip
#: and in which an export writes them: export.ml, make_all
_WRITTEN = (
    "host", "VM", "VM_metrics", "VM_guest_metrics", "VBD", "VIF", "network", "VDI", "SR", "VGPU_type", "VGPU",
    "GPU_group", "VTPM",
)  # fmt: skip


class Transfer:
    """The handlers. `answer` gives (HTTP status, body); the body of a redirect (302) is where it leads."""

    def __init__(self, database, vms, require_role):
        self.database, self.vms, self._require_role = database, vms, require_role
        self.imports = []  #: (query, objects) of each import that was begun, dry runs among them
        self.fail_import = None  #: called with the objects when VMs have been made; raises XenError
        self.waits = (
            True  #: while a VM is busy, for two minutes: no client has heard of it by then. False: they are over
        )
        self.host = None  #: whose handlers answer, as they do in the dom0 of a member; None: the master's
        self.refuse = None  #: called with (method, path) before a handler takes its task; what it raises is answered

    def answer(self, method, target, headers, body, local):
        path, query, given = _request(target, headers)
        handlers = {
            ("GET", "/export_metadata"): self._export,
            ("PUT", "/import_metadata"): self._import,
            ("GET", "/export_raw_vdi"): self._export_raw,
            ("PUT", "/import_raw_vdi"): self._import_raw,
        }
        work = handlers.get((method, path))
        if work is None:
            return 404, b""
        session, task = given.get("session_id", ""), given.get("task_id")
        if not local and not self.database.exists("session", session):
            return 401, b""
        try:
            if session:
                action = f"http/{method.lower()}_{path.strip('/')}"
                self._require_role(session, action, datamodel.HTTP[method, path])
        except XenError as error:
            if task:  # its reason is nowhere else. xapi looks for the roles in a task without a session: rbac.ml
                code, permission, _ = error.description
                self._end(task, error_info=[code, permission, "no session in context"], status="failure")
            return 403, _page(403, "forbidden", "")
        try:  # of what goes wrong before the handler has taken the task, the task hears nothing
            if self.refuse is not None:
                self.refuse(method, path)
            taken = self._taken(path, query)
        except XenError as error:
            return 500, _failed(error)
        try:
            address = self._elsewhere(taken)
        except XenError as error:
            if path == "/import_raw_vdi" and task:  # but for this
                self._end(task, error_info=error.description, status="failure")
                return 400, b""
            return 500, _failed(error)
        if address:
            return 302, f"https://{address}{target}".encode()
        return self._worked(task, work, method, taken, body)

    def _taken(self, path, query):
        """The query of a request whose task the handler takes. Raises XenError."""
        if path in ("/export_raw_vdi", "/import_raw_vdi"):
            vdi = query["vdi"]
            vdi = vdi if self.database.exists("VDI", vdi) else self.database.by_uuid("VDI", vdi)
            query = {**query, "vdi": vdi}
        return query

    def _elsewhere(self, query):
        """The address of the host that has the SR of a VDI plugged; "" where this host has it. Raises XenError.

        Source: importexport.ml, check_sr_availability, find_host_for_sr and return_302_redirect.
        """
        db, storage = self.database, self.vms.storage
        sr = db.get("VDI", query["vdi"], "SR") if "vdi" in query else None
        hosts = [host for host in db.refs("host") if sr is None or sr in storage.plugged_on(host)]
        if not hosts:
            raise XenError("NO_HOSTS_AVAILABLE")
        return "" if (self.host or storage.master()) in hosts else db.get("host", hosts[0], "address")

    def _worked(self, task, work, method, query, body):
        try:
            reply, result = work(query, body)
        except XenError as error:
            if task:
                self._end(task, error_info=error.description, status="failure")
            if work == self._export:
                return 500, b""
            return 200, b"HTTP/1.1 500 Internal Error\r\n\r\n" + _failed(error)  # the headers had gone before
        if task:
            self._end(task, result=result, progress=1.0, status="success")
        return 200, reply

    def _end(self, task, **fields):
        for name, value in fields.items():
            self.database.set("task", task, name, value)

    # -- export -------------------------------------------------------------------------------------------------------

    def _export(self, query, _body):
        vm = query["ref"] if "ref" in query else self.database.by_uuid("VM", query["uuid"])
        try:
            self.vms.verify_allowed(vm, "metadata_export")
        except XenError as error:
            if error.description[0] == "OTHER_OPERATION_IN_PROGRESS" and self.waits:
                raise Silent from error
            raise
        excluded = set(query.get("excluded_device_types", "").split(","))
        document = export(self.database, vm, query.get("export_snapshots", "true") == "true", excluded)
        return tar(document), ""

    # -- import -------------------------------------------------------------------------------------------------------

    def _import(self, query, body):
        header = untar(body)
        self.imports.append((query, header["objects"]))
        version = header["version"]
        if (int(version["xapi_major"]), int(version["xapi_minor"])) > VSN:
            raise XenError("IMPORT_INCOMPATIBLE_VERSION")
        if query.get("restore") == "true":
            raise XenError("NOT_IMPLEMENTED", "restore")
        importing = _Import(self.database, self.vms, header["objects"], query, self.fail_import)
        made = importing.run()
        return b"", wire.from_python(made)

    def _import_raw(self, query, body):
        """From its first byte on; the rest of the VDI stays as it was. The master plugs it for that."""
        vdi = self._plain_vdi(query, "RW")
        if len(body) > int(self.database.get("VDI", vdi, "virtual_size")):
            raise XenError("VDI_IO_ERROR", "Device I/O errors")
        self.vms.write_vdi(vdi, body)
        return b"", wire.from_python(vdi)

    def _export_raw(self, query, _body):
        return self.vms.read_vdi(self._plain_vdi(query, "RO")), ""

    def _plain_vdi(self, query, mode):
        """The VDI that the master plugs into its own dom0.

        xapi lets dom0 plug a VDI that a VM has. On the host of that VM it is the same device, so its bytes are those of
        the moment; on another host, the driver refuses.
        Source: xapi_vbd_helpers.ml valid_operations, storage_smapiv1_wrapper.ml; sm blktap2.py _add_tag.
        """
        db, vdi = self.database, query["vdi"]
        if query.get("format", "raw") != "raw":
            raise XenError("INTERNAL_ERROR", "Unknown format " + query["format"])
        for vbd in db.records("VBD", VDI=vdi, currently_attached=True).values():
            host = db.get("VM", vbd["VM"], "resident_on")
            if host not in (NULL, self.vms.storage.master()) and "RW" in (mode, vbd["mode"]):
                why = f"The VDI is not available [opterr=VDI {db.get('VDI', vdi, 'uuid')} not detached cleanly]"
                raise XenError(f"SR_BACKEND_FAILURE_{VDI_UNAVAILABLE}", "", why, "")
        return vdi


def _failed(error):
    """The page of an error that no handler has caught."""
    code, *params = error.description
    return _page(500, "internal server error", f"{code}: [ {'; '.join(params)} ]")


def _page(status, name, more):
    """What xapi's HTTP server says of an error. Source: ocaml/libs/http-lib/http_svr.ml."""
    extra = f"<h1> Additional information </h1>{html.escape(more)}" if more else ""
    return f"<html><body><h1>HTTP {status} {name}</h1>An unexpected error occurred.{extra}</body></html>".encode()


def _request(target, headers):
    """(path, query, query and cookies)."""
    parts = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    text = headers.get("Cookie", "")  # http.ml, parse_cookies: nothing is stripped
    pairs = [part.partition("=")[::2] for part in text.split(";" if ";" in text else "&")]
    cookies = {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, value in pairs}
    return parts.path, query, {**query, **cookies}


def tar(document):
    """A tar with ova.xml in it, and no padding of records."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("ova.xml")
        member.size = len(document)
        archive.addfile(member, io.BytesIO(document))
    return file.getvalue()[: 512 + -(-len(document) // 512) * 512 + 1024]


def untar(body):
    """What is in ova.xml: version and objects."""
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as archive:
            member = archive.next()
            if member is None or member.name != "ova.xml":
                raise XenError("IMPORT_ERROR_UNEXPECTED_FILE", "ova.xml", member.name if member else "")
            document = archive.extractfile(member).read()
    except tarfile.TarError as error:
        raise XenError("IMPORT_ERROR_PREMATURE_EOF") from error
    (header,), _ = xmlrpc.client.loads(b"<params><param>" + document + b"</param></params>")
    return header


# -- export -----------------------------------------------------------------------------------------------------------


#: what an export takes along with a VM, and where that leads besides: (class, field)
_ON_A_VM = {
    "VIF": [("network", "network")], "VBD": [], "VGPU": [("VGPU_type", "type"), ("GPU_group", "GPU_group")], "VTPM": [],
}  # fmt: skip


def export(db, vm, snapshots=True, excluded=()):
    """ova.xml of a VM."""
    found, numbers = {}, {}

    def add(table, ref):
        """NULL gets a number like any other, and no object has it."""
        numbers.setdefault(ref, f"Ref:{len(numbers)}")
        if db.exists(table, ref):
            found.setdefault((table, ref), numbers[ref])

    def walk(vm, with_snapshots):
        if vm == NULL or not db.exists("VM", vm) or ("VM", vm) in found:
            return
        add("VM", vm)
        record = db.record("VM", vm)
        for table, leads_to in _ON_A_VM.items():
            for ref in record[table + "s"] if table.lower() not in excluded else ():
                add(table, ref)
                for other, name in leads_to:
                    add(other, db.get(table, ref, name))
                if table == "VBD" and not db.get("VBD", ref, "empty"):
                    add_vdi(db.get("VBD", ref, "VDI"))
        for snapshot in record["snapshots"] if with_snapshots else ():
            walk(snapshot, False)
        if record["power_state"] == "Suspended" and db.exists("VDI", record["suspend_VDI"]):
            add_vdi(record["suspend_VDI"])
        for table, name in (("VM_metrics", "metrics"), ("VM_guest_metrics", "guest_metrics"), ("host", "resident_on"),
                            ("host", "affinity")):  # fmt: skip
            add(table, record[name])
        if with_snapshots:
            walk(record["parent"], False)

    def add_vdi(vdi):
        add("VDI", vdi)
        add("SR", db.get("VDI", vdi, "SR"))  # HANDLE_INVALID of a VBD whose VDI went with its SR

    walk(vm, snapshots)
    objects = [
        _object(db, table, ref, found, numbers, snapshots)
        for table in _WRITTEN
        for (each, ref) in found
        if each == table
    ]
    version = {
        "hostname": "xs1", "date": "2026-11-22", "product_version": "8.4.0", "product_brand": "simulated",
        "build_number": "1", "xapi_major": str(VSN[0]), "xapi_minor": str(VSN[1]), "export_vsn": "2",
    }  # fmt: skip
    return wire.from_python({"version": version, "objects": objects}).encode()


#: fields of a class that an export empties
_LEFT_OUT = {
    "VM": {"current_operations": {}, "allowed_operations": [], "protection_policy": NULL},
    "host": {"other_config": {}, "software_version": {}, "PBDs": [], "metrics": NULL, "tags": []},
    "SR": {"PBDs": []},
    "network": {"PIFs": []},
}
#: fields whose references become those of the file, where it has a number for them; others keep that of this pool
_TRANSLATED = {
    "VM": ("snapshot_of", "parent", "resident_on", "affinity", "metrics", "guest_metrics", "suspend_VDI",
           "VBDs", "VIFs", "VTPMs", "VGPUs"),
    "VBD": ("VM", "VDI"), "VIF": ("VM", "network"), "VDI": ("SR", "VBDs"), "SR": ("VDIs",), "network": ("VIFs",),
    "VGPU": ("VM", "type", "GPU_group"), "VTPM": ("VM",),
}  # fmt: skip


def _object(db, table, ref, found, numbers, with_snapshots):
    row = db.record(table, ref)
    for name in _TRANSLATED.get(table, ()):
        value = row[name]
        if isinstance(value, list):
            row[name] = [numbers[each] for each in value if each in numbers]
        else:
            row[name] = numbers.get(value, NULL)
    row.update(_LEFT_OUT.get(table, {}))
    if table == "VM" and not with_snapshots:
        row.update(is_a_snapshot=False, snapshot_of=NULL, snapshots=[], parent=NULL)
    if table == "VTPM":
        names = {"VM": "VM", "uuid": "uuid", "is_unique": "is_unique", "is_protected": "is_protected"}
        row = {_OF_VTPM + outside: row[name] for name, outside in {**names, "contents": "content"}.items()}
    return {"class": table, "id": found[table, ref], "snapshot": _in_order(table, row)}


_OF_VTPM = "vTPM'_"  #: begin of the names of a hand-made record: importexport.ml, vtpm'


def _in_order(table, row):
    """The fields in the order of the datamodel, as the generated functions of xapi write them."""
    order = {name: at for at, name in enumerate(datamodel.FIELDS.get(table, ()))}
    return dict(sorted(row.items(), key=lambda pair: order.get(pair[0], len(order))))


# -- import -----------------------------------------------------------------------------------------------------------


#: classes whose objects are those that have the UUID here; and those that are made, with fields that name others
_BY_UUID = ("host", "SR")
_MADE = {"VM_metrics": (), "VM_guest_metrics": (), "VGPU": ("VM", "type", "GPU_group")}


#: what an answer in XML-RPC may have, and another reading of it, or none
_ODD = re.compile("[<&\ufffe\uffff]")


def _texts(value):
    """The texts of records, those of keys among them."""
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, *_texts(each))]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else [str(value)]


class _Import:
    def __init__(self, db, vms, objects, query, fail):
        self.db, self.vms, self.objects = db, vms, objects
        self.force, self.dry_run = query.get("force") == "true", query.get("dry_run") == "true"
        self.fail = fail
        self.table = {}  #: reference in the file: reference here, of any class, as xapi has one table for all
        self.made, self.undo = [], []

    def run(self):
        """References of the VMs that were made, snapshots left out unless there is nothing else."""
        try:
            for table in _ORDER:
                for each in self.objects:
                    if each["class"] == table:
                        self._take(table, each["id"], dict(each["snapshot"]))
            if not self.dry_run:
                self._link_snapshots()
                if self.fail is not None:
                    self.fail(self.objects)
        except XenError:
            if not self.force:
                for work in reversed(self.undo):
                    with contextlib.suppress(XenError):  # import.ml, cleanup: what cannot be destroyed stays
                        work()
            raise
        whole = [vm for vm in self.made if not self.db.get("VM", vm, "is_a_snapshot")]
        for vm in self.made:
            self.db.set("VM", vm, "current_operations", {})
            self.vms.update_allowed(vm)
        return whole or self.made

    def _take(self, table, outside, row):
        if table in _BY_UUID:
            for ref in self.db.refs(table, uuid=row["uuid"]):
                self.table[outside] = ref
        elif table in _MADE:
            self._create(table, outside, row, **{name: self._lookup(row[name]) for name in _MADE[table]})
        else:
            getattr(self, "_" + table.lower())(outside, row)

    def _lookup(self, outside):
        try:
            return self.table[outside]
        except KeyError:
            raise XenError("IMPORT_ERROR_FAILED_TO_FIND_OBJECT", outside) from None

    def _vtpm(self, outside, row):
        row = {name[len(_OF_VTPM) :]: value for name, value in row.items()}
        self._create("VTPM", outside, {**row, "contents": row["content"]}, VM=self._lookup(row["VM"]))

    def _create(self, table, outside, row, **more):
        if self.dry_run:
            self.table[outside] = "OpaqueRef:dry-" + outside
            return None
        ref = self.db.create(table, **{**_known(table, row), **more})
        self.table[outside] = ref
        self.undo.append(lambda: self.db.exists(table, ref) and self.db.destroy(table, ref))
        return ref

    # -- matched ------------------------------------------------------------------------------------------------------

    def _vdi(self, outside, row):
        sr = next(each["snapshot"] for each in self.objects if each["id"] == row["SR"])
        if sr["content_type"] == "iso":
            srs = self.db.records("SR", content_type="iso")
            isos = [ref for ref, record in srs.items() if record["type"] != "udev"]
            known = [(ref, vdi) for ref, vdi in self._vdis().items() if vdi["location"] == row["location"]]
            for vdi in [ref for ref, record in known if record["SR"] in isos][:1]:
                self.table[outside] = vdi
            return
        vdi = self._disk(row)
        if vdi is not None:
            self.table[outside] = vdi
            if not self.dry_run and self.db.exists("VDI", vdi):  # what the file says of this key alone (Found_disk)
                self.db.remove_from("VDI", vdi, "other_config", "config-drive")
                for value in filter(None, [row["other_config"].get("config-drive")]):
                    self.db.add_to("VDI", vdi, "other_config", "config-drive", value)
        elif not self.force:
            if row["SR"] in self.table:
                raise XenError("VDI_LOCATION_MISSING", self.table[row["SR"]], row["location"])
            raise XenError("VDI_CONTENT_ID_MISSING")

    def _vdis(self):
        """The records of all VDIs as the import reads them in an answer to itself: before 26 in XML-RPC, where a key is
        markup. Source: helpers.ml, make_rpc; xapi_globs.ml, use_xmlrpc. Raises XenError.
        """
        records = self.db.records("VDI")
        if not self.db.release.startswith("25.") or not _ODD.search("".join(_texts(list(records.values())))):
            return records
        try:
            (found,), _ = xmlrpc.client.loads(f"<params><param>{wire.from_python(records)}</param></params>".encode())
        except expat.ExpatError as error:
            raise XenError("IMPORT_ERROR", f'INTERNAL_ERROR: [ Xmlm.Error(1:1, "{error}") ]') from None
        return found

    def _disk(self, row):
        scsi_id = row["sm_config"].get("SCSIid")
        if scsi_id is not None:
            for ref, record in self._vdis().items():
                if record["sm_config"].get("SCSIid") == scsi_id:
                    return ref
        if row["SR"] in self.table:
            sr, location = self.table[row["SR"]], row["location"]
            for ref in [ref for ref, vdi in self._vdis().items() if (vdi["SR"], vdi["location"]) == (sr, location)]:
                return ref
        return row["other_config"].get("maps_to")

    def _network(self, outside, row):
        found = self.db.refs("network", name_label=row["name_label"]) or self.db.refs("network", bridge=row["bridge"])
        if found:
            self.table[outside] = found[0]
        else:
            self._create("network", outside, row)

    def _gpu_group(self, outside, row):
        found = [
            ref for ref in self.db.refs("GPU_group") if self.db.get("GPU_group", ref, "GPU_types") == row["GPU_types"]
        ]
        if not found:
            raise XenError("IMPORT_ERROR", "No GPU group")
        self.table[outside] = found[0]

    def _vgpu_type(self, outside, row):
        found = self.db.refs("VGPU_type", identifier=row["identifier"])
        if found:
            self.table[outside] = found[0]
        else:
            self._create("VGPU_type", outside, row)

    # -- made ---------------------------------------------------------------------------------------------------------

    def _vm(self, outside, row):
        """Always a new one. What is blocked is dropped, and so are appliance and policy."""
        other_config = {key: value for key, value in row["other_config"].items() if key != "grant_api_access"}
        other_config.pop("default_template", None)
        other_config["mac_seed"] = str(uuid.uuid4())
        is_suspended = row["power_state"] == "Suspended"
        if not self.dry_run:
            other_config["import_task"] = "OpaqueRef:" + str(uuid.uuid4())
        platform = dict(row["platform"])
        if row["domain_type"] == "hvm" and not row["is_a_template"]:
            platform.setdefault("device-model", "qemu-upstream-compat")
        known = {
            "other_config": other_config, "platform": platform, "appliance": NULL, "protection_policy": NULL,
            "blocked_operations": {},
            "version": 0, "is_default_template": False, "power_state": "Suspended" if is_suspended else "Halted",
            "suspend_VDI": self._lookup(row["suspend_VDI"]) if is_suspended else NULL,
            "current_operations": {"an import": "import"}, "snapshot_metadata": "",
        }  # fmt: skip
        for name in ("resident_on", "affinity", "guest_metrics"):
            known[name] = self.table.get(row[name], NULL)
        known["metrics"] = self.table.get(row["metrics"]) or (NULL if self.dry_run else self.db.create("VM_metrics"))
        if not row["is_a_template"]:
            known["generation_id"] = str(uuid.uuid4()) if row["generation_id"] else ""
        if not self.db.exists("SR", row["suspend_SR"]):
            known["suspend_SR"] = NULL
        ref = self._create("VM", outside, row, **known)
        if ref is not None:
            self.made.append(ref)
            self.undo[-1] = partial(self._destroy_vm, ref)
            self.vms.update_allowed(ref)

    def _destroy_vm(self, vm):
        """As its user would destroy the VM."""
        self.db.set("VM", vm, "current_operations", {})
        self.db.set("VM", vm, "power_state", "Halted")
        self.vms.vm_destroy("", vm)

    def _link_snapshots(self):
        for ref in self.made:
            record = self.db.record("VM", ref)
            if record["is_a_snapshot"] and record["snapshot_of"] != NULL:
                self.db.set("VM", ref, "snapshot_of", self._lookup(record["snapshot_of"]))
            if record["parent"] in self.table:  # else it stays as it is in the file
                self.db.set("VM", ref, "parent", self.table[record["parent"]])

    def _vbd(self, outside, row):
        """VBD.create makes it, and so refuses an empty Floppy drive. currently_attached comes along, of a halted VM
        as well. Simpler: a suspended guest without QEMU is imported with an empty drive, too.
        """
        vm = self._lookup(row["VM"])
        is_there = row["VDI"] in self.table and row["VDI"] != NULL
        if row["currently_attached"] and not is_there and row["type"] != "CD":
            raise XenError("IMPORT_ERROR_ATTACHED_DISKS_NOT_FOUND")
        if row["type"] == "Disk" and not is_there:
            return
        more = {"VDI": self.table[row["VDI"]]} if is_there else {"VDI": NULL, "empty": True}
        if self.dry_run:
            self.table[outside] = "OpaqueRef:dry-" + outside
            return
        made = self.vms.vbd_create("", {**row, **more, "VM": vm})
        self.table[outside] = made
        self.undo.append(lambda: self.db.exists("VBD", made) and self.db.destroy("VBD", made))
        self.db.set("VBD", made, "currently_attached", row["currently_attached"])

    def _vif(self, outside, row):
        vm = self._lookup(row["VM"])
        other_config = dict(row["other_config"])
        network = other_config.pop("maps_to", None)
        if network is None:
            network = self._lookup(row["network"])
        if not self.dry_run:
            self.db.get("network", network, "uuid")
            made = self.vms.vif_create(
                "", {**row, "VM": vm, "network": network, "MAC": "", "other_config": other_config}
            )
            self.table[outside] = made
            self.undo.append(lambda: self.db.exists("VIF", made) and self.db.destroy("VIF", made))
