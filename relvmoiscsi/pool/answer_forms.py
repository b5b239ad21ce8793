# SPDX-License-Identifier: LGPL-2.1-only
"""The forms of xapi's answers. What answers may be no xapi, or a broken xapi: each answer has its form, or is refused.

`verify` looks at an answer once, where it comes in. So a record of the pool has every field that the code reads, and
each field has its type. A form is a type of xapi, and no range: a client may set a field of its own record to any value
of the type, and an answer has the records of all clients. Source: xen-api ocaml/idl/datamodel.ml.
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from relvmoiscsi.host.xapi.rpc import is_reference

Form = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Is this a whole number? In JSON, xapi writes integers as numbers, unlike in XML-RPC and in an export."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_fraction(value: Any) -> bool:
    """Is this a floating-point number? NaN and the infinities are such numbers."""
    return isinstance(value, float)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_text_map(value: Any) -> bool:
    """Is this a map of texts? The keys of each map in JSON are texts."""
    return isinstance(value, dict) and all(map(is_text, value.values()))


def _fields(form: Form, names: str) -> Dict[str, Form]:
    return dict.fromkeys(names.split(), form)


#: the fields of each class that the code reads by name: the tests of the pool let it read no other field
FIELDS: Mapping[str, Mapping[str, Form]] = {
    "pool": {**_fields(is_text, "master"), **_fields(is_text_map, "other_config")},
    "host": _fields(is_text, "uuid name_label metrics"),
    "host_metrics": _fields(is_truth, "live"),
    "SR": {
        **_fields(is_text, "uuid name_label type content_type"),
        **_fields(is_text_map, "other_config sm_config"),
    },
    "PBD": {
        **_fields(is_text, "host SR"),
        **_fields(is_truth, "currently_attached"),
        **_fields(is_text_map, "device_config"),
    },
    "VM": {
        **_fields(is_text, "uuid name_label power_state snapshot_of suspend_VDI ha_restart_priority"),
        **_fields(is_text, "metrics guest_metrics"),
        **_fields(is_truth, "is_a_template is_a_snapshot is_control_domain ha_always_run"),
        **_fields(is_texts, "VIFs snapshots"),
        **_fields(is_text_map, "other_config blocked_operations current_operations"),
    },
    "VBD": {
        **_fields(is_text, "uuid VM VDI userdevice device mode type qos_algorithm_type"),
        **_fields(is_truth, "empty bootable unpluggable currently_attached"),
        **_fields(is_text_map, "other_config qos_algorithm_params"),
    },
    "VDI": {
        **_fields(is_text, "uuid name_label name_description location SR on_boot type snapshot_of"),
        **_fields(is_truth, "managed is_a_snapshot cbt_enabled sharable read_only"),
        **_fields(is_whole, "virtual_size"),
        **_fields(is_texts, "VBDs tags"),
        **_fields(is_text_map, "other_config sm_config"),
    },
    "VIF": _fields(is_text, "uuid VM network device MAC"),
    "VGPU": _fields(is_text, "uuid VM type GPU_group"),
    "GPU_group": {**_fields(is_text, "uuid"), **_fields(is_texts, "GPU_types")},
    "VTPM": _fields(is_text, "uuid VM"),
    "PVS_proxy": _fields(is_text, "uuid VIF site"),
    "PVS_site": _fields(is_text, "uuid PVS_uuid"),
    **dict.fromkeys(("VGPU_type", "VM_metrics", "VM_guest_metrics"), _fields(is_text, "uuid")),
    "network": {
        **_fields(is_text, "uuid name_label"),
        **_fields(is_texts, "PIFs"),
        **_fields(is_text_map, "other_config"),
    },
    "session": {**_fields(is_truth, "is_local_superuser"), **_fields(is_texts, "rbac_permissions")},
    "secret": {**_fields(is_text, "uuid value"), **_fields(is_text_map, "other_config")},
    "task": {
        **_fields(is_text, "uuid status result"),
        **_fields(is_fraction, "progress"),
        **_fields(is_texts, "error_info"),
        **_fields(is_text_map, "other_config"),
        **_fields(is_text, "name_description"),
    },
}
#: fields that a release of xapi may lack. With a value, they have this form
OPTIONAL: Mapping[str, Mapping[str, Form]] = {
    "pool": _fields(is_text, "wlb_url repository_proxy_url"),
    "VM": {**_fields(is_text, "domain_type parent"), **_fields(is_texts, "VGPUs VTPMs")},
    "network": _fields(is_truth, "managed"),
}

_REFERENCES = ("get_all", "get_VIFs", "get_VBDs")
#: methods whose answer nobody reads
_UNREAD = ("destroy", "forget", "logout", "assert_operation_valid")
_UNREAD_PREFIXES = ("set_", "add_to_", "remove_from_")

#: the parameters of errors, for the codes whose parameters the code reads
PARAMETERS: Mapping[str, Sequence[Form]] = {"PBD_EXISTS": (is_text, is_text, is_reference)}


def has_parameters(description: Sequence[str]) -> bool:
    """Has an error of xapi, its code first, the parameters that the code reads?"""
    forms = PARAMETERS.get(description[0], ()) if description else ()
    return len(forms) <= len(description[1:]) and all(form(text) for form, text in zip(forms, description[1:]))


def verify(method: str, value: Any) -> None:
    """Raises ValueError for a value that xapi does not answer to this method, and for a method without a form here.

    The text is a clause.
    """
    kind, _, what = method.rpartition(".")
    if what in ("get_all_records", "get_all_records_where"):
        _verify(isinstance(value, dict), "it is no map of records")
        _verify(kind != "pool" or len(value) == 1, "it has not the one record of the pool")
        for ref, record in value.items():
            _verify(is_reference(ref), "the name of a record is no reference")
            _verify_record(kind, record)
    elif what == "get_record":
        _verify_record(kind, value)
    elif what in _REFERENCES:
        _verify(isinstance(value, list) and all(map(is_reference, value)), "it is no list of references")
    elif method == "event.from":
        is_batch = isinstance(value, dict) and is_text(value.get("token")) and isinstance(value.get("events"), list)
        _verify(is_batch, "it is no list of events")
        for event in value["events"]:
            _verify(isinstance(event, dict) and is_text(event.get("ref")), "an event names no object")
            if "snapshot" in event:
                _verify_record("task", event["snapshot"])
    elif what in ("create", "introduce", "get_by_uuid") or method.startswith("Async."):
        _verify(is_reference(value), "it is no reference")
    elif what.startswith("get_") and what[4:] in FIELDS.get(kind, {}):
        _verify(FIELDS[kind][what[4:]](value), "it is no value of that field")
    elif what == "compute_free_memory":  # asked by acceptance/
        _verify(is_whole(value), "it is no number")
    elif what.startswith("get_"):
        _verify(is_text(value), "it is no text")
    else:
        _verify(what in _UNREAD or what.startswith(_UNREAD_PREFIXES), "no form is known for it")


def _verify(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)


def _verify_record(kind: str, record: Any) -> None:
    _verify(isinstance(record, dict), f"a record of a {kind} is no record")
    for name, form in FIELDS.get(kind, {}).items():
        if name not in record or not form(record[name]):
            raise ValueError(f"a record of a {kind} has no readable field {name}")
    for name, form in OPTIONAL.get(kind, {}).items():
        if name in record and not form(record[name]):
            raise ValueError(f"a record of a {kind} has no readable field {name}")
