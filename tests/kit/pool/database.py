# SPDX-License-Identifier: LGPL-2.1-only
"""The pool's records, and what a XenAPI client may do with their fields.

One row of a table below is one field: name, kind, who may write it, default. Kinds: string, bool, int (64 bit), float,
time, ref, map (string to string), set (of strings); `VDI.SR` is the set of VDIs whose SR is this record. Access: `ro`;
`rw`, by any session; `sm`, by the session of a driver call on that SR alone (facts 2.7).

Simpler than the real one: no allowed_operations, no current_operations; of what happens only `wait_for_changes` knows.
"""

import re
import threading
import time as clock
import uuid
import xmlrpc.client
from functools import partial
from typing import NamedTuple

from .errors import XenError

NULL = "OpaqueRef:NULL"


class Field(NamedTuple):
    """A field of a table."""

    kind: str
    access: str
    default: object


_TABLES = {
    "pool": """
        name_label string rw; name_description string rw; master ref ro; default_SR ref rw; other_config map rw
        ha_enabled bool ro; tags set rw
    """,
    "host": """
        name_label string rw; name_description string rw; hostname string ro; address string rw; enabled bool ro true
        other_config map rw; iscsi_iqn string rw; multipathing bool rw; software_version map ro; PBDs PBD.host ro
        API_version_major int ro 2; API_version_minor int ro 21; local_cache_sr ref ro; tags set rw; metrics ref ro
    """,
    "host_metrics": "live bool ro true; last_updated time ro",
    "SR": """
        name_label string rw; name_description string rw; VDIs VDI.SR ro; PBDs PBD.SR ro; virtual_allocation int sm 0
        physical_utilisation int sm -1; physical_size int sm -1; type string ro; content_type string ro
        shared bool rw; other_config map rw; tags set rw; sm_config map rw; local_cache_enabled bool ro
        introduced_by ref ro; clustered bool ro; is_tools_sr bool ro; allowed_operations set ro
        current_operations map ro; blobs map ro
    """,
    "PBD": """
        host ref ro; SR ref ro; device_config map sm; currently_attached bool ro; other_config map rw
    """,
    "VDI": """
        name_label string rw; name_description string rw; SR ref ro; VBDs VBD.VDI ro; crash_dumps set ro
        virtual_size int sm; physical_utilisation int sm; type string ro user; sharable bool sm; read_only bool sm
        other_config map rw; storage_lock bool ro; location string ro; managed bool sm true; missing bool sm
        parent ref ro; xenstore_data map rw; sm_config map rw; is_a_snapshot bool sm; snapshot_of ref sm
        snapshots VDI.snapshot_of ro; snapshot_time time sm; tags set rw; allow_caching bool rw
        on_boot string rw persist; metadata_of_pool ref sm; metadata_latest bool ro; is_tools_iso bool ro
        cbt_enabled bool sm; allowed_operations set ro; current_operations map ro
    """,
    "VM": """
        name_label string rw; name_description string rw; power_state string ro Halted; is_a_template bool rw
        is_a_snapshot bool ro; is_control_domain bool ro; VBDs VBD.VM ro; resident_on ref ro; other_config map rw
        tags set rw; snapshot_of ref ro
    """,
    "VBD": """
        VM ref ro; VDI ref ro; userdevice string rw 0; bootable bool rw; mode string rw RW; type string rw Disk
        currently_attached bool ro; empty bool ro; other_config map rw
    """,
    "message": "name string ro; priority int ro; cls string ro; obj_uuid string ro; timestamp time ro; body string ro",
    "secret": "value string rw; other_config map rw",
    "SM": """
        name_label string ro; name_description string ro; type string ro; vendor string ro; copyright string ro
        version string ro; required_api_version string ro; configuration map ro; capabilities set ro; features map ro
        other_config map rw; driver_filename string ro; required_cluster_stack set ro; supported_image_formats set ro
    """,
    "task": """
        name_label string ro; name_description string ro; status string rw pending; progress float rw
        type string ro <none/>; result string ro; error_info set ro; created time ro; finished time ro
        resident_on ref ro; subtask_of ref ro; subtasks task.subtask_of ro; other_config map rw
    """,
    "session": """
        this_host ref ro; this_user ref ro; last_active time ro; pool bool ro; other_config map rw
        is_local_superuser bool ro; auth_user_name string ro; originator string ro; parent ref ro
        rbac_permissions set ro
    """,
}

_DEFAULTS = {"string": "", "bool": False, "int": 0, "float": 0.0, "ref": NULL, "map": {}, "set": []}


def _field(text):
    name, kind, access, *default = text.split()
    value = default[0] if default else _DEFAULTS.get(kind)
    if kind == "time":
        value = time("19700101T00:00:00Z")
    return name, Field(kind, access, _coerce(name, kind, value) if default else value)


def time(text):
    return xmlrpc.client.DateTime(text)


def _coerce(name, kind, value):
    """A value from the wire as one of this kind. XenAPI's 64-bit integers come as strings."""
    if kind == "int" and re.match(r"-?[0-9]+\Z", str(value)):
        return int(value)
    if kind == "bool" and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind == "float" and isinstance(value, (int, float)):
        return float(value)
    if kind == "map" and isinstance(value, dict):
        return dict(value)
    if kind == "set" and isinstance(value, (list, tuple)):
        return list(value)
    if kind in ("string", "ref") and isinstance(value, str):
        return value
    if kind == "time" and isinstance(value, xmlrpc.client.DateTime):
        return value
    raise XenError("FIELD_TYPE_ERROR", name)


TABLES = {
    table: dict(
        [("uuid", Field("string", "ro", ""))] + [_field(part) for part in re.split(r"[;\n]", text) if part.strip()]
    )
    for table, text in _TABLES.items()
}


def new_ref():
    return "OpaqueRef:" + str(uuid.uuid4())


class Database:
    """All records of the pool. Every method is atomic; `lock` makes several of them so."""

    def __init__(self):
        self.lock = threading.RLock()
        self._rows = {table: {} for table in TABLES}
        self._changed = threading.Condition(self.lock)
        self._generation = 0
        self._touched = {}  #: (table, reference): the generation of its last change

    # -- records ------------------------------------------------------------------------------------------------------

    def create(self, table, uuid_=None, **fields):
        """A new record; fields that are not named have their defaults. Gives its reference."""
        row = {name: _copy(field.default) for name, field in TABLES[table].items() if "." not in field.kind}
        row["uuid"] = uuid_ or str(uuid.uuid4())
        for name, value in fields.items():
            row[name] = _coerce(name, TABLES[table][name].kind, value)
        ref = new_ref()
        with self.lock:
            if any(other["uuid"] == row["uuid"] for other in self._rows[table].values()):
                if table == "SR":
                    raise XenError("SR_UUID_EXISTS", row["uuid"])
                raise XenError("INTERNAL_ERROR", "Db_exn.Uniqueness_constraint_violation", table, "uuid", row["uuid"])
            self._rows[table][ref] = row
            self._keep_in_step(table, ref, "other_config")
            self._touch(table, ref)
        return ref

    def destroy(self, table, ref):
        with self.lock:
            self._row(table, ref)
            del self._rows[table][ref]
            self._touched.pop((table, ref), None)

    def refs(self, table, **equal):
        """References of the records whose fields have these values, oldest first."""
        with self.lock:
            return [ref for ref in self._rows[table] if all(self.get(table, ref, k) == v for k, v in equal.items())]

    def exists(self, table, ref):
        with self.lock:
            return ref in self._rows[table]

    def by_uuid(self, table, wanted):
        found = self.refs(table, uuid=wanted)
        if not found:
            raise XenError("UUID_INVALID", table, wanted)
        return found[0]

    def record(self, table, ref):
        with self.lock:
            self._row(table, ref)
            return {name: self.get(table, ref, name) for name in TABLES[table]}

    def records(self, table, **equal):
        """{reference: record} of all, or of those whose fields have these values."""
        with self.lock:
            return {ref: self.record(table, ref) for ref in self.refs(table, **equal)}

    # -- fields -------------------------------------------------------------------------------------------------------

    def get(self, table, ref, name):
        kind = TABLES[table][name].kind
        with self.lock:
            row = self._row(table, ref)
            if "." in kind:
                other, field = kind.split(".")
                return [found for found, record in self._rows[other].items() if record[field] == ref]
            return _copy(row[name])

    def set(self, table, ref, name, value):
        value = _coerce(name, TABLES[table][name].kind, value)
        with self.lock:
            self._row(table, ref)[name] = value
            self._keep_in_step(table, ref, name)
            self._touch(table, ref)

    def add_to(self, table, ref, name, key, value):
        with self.lock:
            mapping = self.get(table, ref, name)
            if key in mapping:
                raise XenError("MAP_DUPLICATE_KEY", table, name, ref, key)
            mapping[key] = value
            self.set(table, ref, name, mapping)

    def remove_from(self, table, ref, name, key):
        with self.lock:
            mapping = self.get(table, ref, name)
            mapping.pop(key, None)
            self.set(table, ref, name, mapping)

    # -- changes ------------------------------------------------------------------------------------------------------

    def wait_for_changes(self, wanted, since, timeout_s):
        """(generation, [(table, reference)]) of what has changed after the generation `since`, as soon as anything has.

        `wanted`: pairs of a table and a reference, or None for all of the table; nothing is found after `timeout_s`.
        """
        end = clock.monotonic() + timeout_s

        def found():
            pairs = self._touched if tables else [pair for pair in wanted if pair in self._touched]
            fresh = [pair for pair in pairs if self._touched[pair] > since]
            return [pair for pair in fresh if pair in wanted or pair[0] in tables]

        tables = {table for table, ref in wanted if ref is None}

        with self._changed:
            while not found() and clock.monotonic() < end:
                self._changed.wait(end - clock.monotonic())
            return self._generation, found()

    def _touch(self, table, ref):
        self._generation += 1
        self._touched[table, ref] = self._generation
        self._changed.notify_all()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _row(self, table, ref):
        try:
            return self._rows[table][ref]
        except KeyError:
            raise XenError("HANDLE_INVALID", table, ref) from None

    def _keep_in_step(self, table, ref, changed):
        """A host's iscsi_iqn and multipathing are fields and keys of other_config (facts 3.4)."""
        if table != "host":
            return
        row = self._rows[table][ref]
        if changed == "other_config":
            row["iscsi_iqn"] = row["other_config"].get("iscsi_iqn", "")
            row["multipathing"] = row["other_config"].get("multipathing") == "true"
        elif changed == "iscsi_iqn":
            row["other_config"]["iscsi_iqn"] = row["iscsi_iqn"]
        elif changed == "multipathing":
            row["other_config"]["multipathing"] = "true" if row["multipathing"] else "false"


def _copy(value):
    return type(value)(value) if isinstance(value, (dict, list)) else value


# -- what clients ask for by name -------------------------------------------------------------------------------------

_EXPRESSION = re.compile(r'field "(\w+)" = "([^"]*)"\Z')


class Generic:
    """The calls that every class has: get_X, set_X, get_all_records and so on."""

    def __init__(self, database, may_write):
        self._database = database
        self._may_write = may_write  # may_write(session, sr reference): whether it is the session of a driver on it

    def find(self, method):
        """A function of (session, parameters...) for a method's name, or None."""
        table, _, operation = method.partition(".")
        if table not in TABLES:
            return None
        whole = {
            "get_all": self._get_all,
            "get_all_records": self._get_all_records,
            "get_all_records_where": self._get_all_records_where,
            "get_record": self._get_record,
            "get_by_uuid": self._get_by_uuid,
        }
        if "name_label" in TABLES[table]:
            whole["get_by_name_label"] = self._get_by_name_label
        if operation in whole and not (table == "session" and operation.startswith("get_all")):
            return partial(whole[operation], table)
        on_field = {
            "get_": self._get,
            "set_": self._set,
            "add_to_": self._add_to,
            "remove_from_": self._remove_from,
        }
        for prefix, function in on_field.items():
            name = operation[len(prefix) :]
            field = TABLES[table].get(name) if operation.startswith(prefix) else None
            if field and _fits(prefix, field):
                return partial(function, table, name)
        return None

    # -- of a class ---------------------------------------------------------------------------------------------------

    def _get_all(self, table, _session):
        return self._database.refs(table)

    def _get_all_records(self, table, _session):
        return self._database.records(table)

    def _get_all_records_where(self, table, _session, expression):
        """Knows `true` and `field "a" = "b"`, joined by `and`."""
        equal = {}
        for part in [] if expression.strip() == "true" else expression.split(" and "):
            match = _EXPRESSION.match(part.strip())
            if match is None or match.group(1) not in TABLES[table]:
                raise XenError("INTERNAL_ERROR", "the simulator cannot read the expression " + expression)
            name = match.group(1)
            equal[name] = _coerce(name, TABLES[table][name].kind, match.group(2))
        return self._database.records(table, **equal)

    def _get_record(self, table, _session, ref):
        return self._database.record(table, ref)

    def _get_by_uuid(self, table, _session, wanted):
        return self._database.by_uuid(table, wanted)

    def _get_by_name_label(self, table, _session, label):
        return self._database.refs(table, name_label=label)

    # -- of a field ---------------------------------------------------------------------------------------------------

    def _get(self, table, name, _session, ref):
        return self._database.get(table, ref, name)

    def _set(self, table, name, session, ref, value):
        self._require_right(session, table, ref, name)
        self._database.set(table, ref, name, value)

    def _add_to(self, table, name, session, ref, key, value):
        self._require_right(session, table, ref, name)
        self._database.add_to(table, ref, name, key, value)

    def _remove_from(self, table, name, session, ref, key):
        self._require_right(session, table, ref, name)
        self._database.remove_from(table, ref, name, key)

    def _require_right(self, session, table, ref, name):
        if TABLES[table][name].access == "sm":
            sr = ref if table == "SR" else self._database.get(table, ref, "SR")
            if not self._may_write(session, sr):
                raise XenError("PERMISSION_DENIED", "")


def _fits(prefix, field):
    return prefix == "get_" or (field.access != "ro" and (prefix == "set_" or field.kind == "map"))
