# SPDX-License-Identifier: LGPL-2.1-only
"""The drivers of a host: which files are taken, what they say of themselves, the SM records that follow.

Source: xen-api ocaml/xapi/sm_exec.ml, sm.ml, xapi_sm.ml.
"""

import os
import re
from typing import NamedTuple

from . import wire
from .errors import XenError
from .runner import NotImplementedInBackend

#: the value of sm-plugins that xapi ships
STOCK_SM_PLUGINS = "ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"

_KNOWN = {
    "SR": "CREATE DELETE ATTACH DETACH SCAN PROBE UPDATE SUPPORTS_LOCAL_CACHING METADATA TRIM MULTIPATH CACHING STATS",
    "VDI": "CREATE DELETE ATTACH DETACH MIRROR MIRROR_IN RESIZE RESIZE_ONLINE CLONE SNAPSHOT ACTIVATE "
    "ACTIVATE_READONLY DEACTIVATE UPDATE INTRODUCE GENERATE_CONFIG ATTACH_OFFLINE RESET_ON_BOOT CONFIG_CBT COMPOSE "
    "REVERT READ_CACHING",
}
#: capabilities that xapi knows; it drops others
KNOWN_CAPABILITIES = {f"{kind}_{name}" for kind, names in _KNOWN.items() for name in names.split()}
KNOWN_CAPABILITIES |= {"LARGE_VDI", "THIN_PROVISIONING"}

_TEXTS = ("name", "description", "vendor", "copyright", "driver_version", "required_api_version")


class Rejected(Exception):
    """A driver that is not registered."""


class Driver(NamedTuple):
    """A registered driver."""

    type: str
    path: str
    name: str
    description: str
    vendor: str
    copyright: str
    driver_version: str
    required_api_version: str
    capabilities: tuple
    features: dict  #: name to version
    configuration: dict
    supported_image_formats: tuple


def discover(directory, sm_plugins, runner, host_ref):
    """({type: Driver}, {file name: why not}) of a directory. `sm_plugins`: the setting's text; None: no white list.

    Where two names differ only by case, the last one listed is taken.
    """
    found, refused = {}, {}
    for name in os.listdir(str(directory)):
        if not name.endswith("SR"):
            continue
        try:
            driver = _examine(os.path.join(str(directory), name), name[:-2].lower(), sm_plugins, runner, host_ref)
        except (Rejected, XenError, NotImplementedInBackend, wire.RunTimeTypeError) as error:
            refused[name] = str(error) or type(error).__name__
        else:
            found[driver.type] = driver
    return found, refused


def _examine(path, type_, sm_plugins, runner, host_ref):
    if sm_plugins is not None and not {"*", type_} & set(sm_plugins.lower().split()):
        raise Rejected("it is not in sm-plugins")
    if not os.access(path, os.X_OK):
        raise Rejected("it is not executable")
    members = {"host_ref": host_ref, "command": "sr_get_driver_info", "args": [], "device_config": {}}
    return parse_driver_info(type_, path, runner.call(path, members))


def parse_driver_info(type_, path, result):
    """A Driver from the answer to sr_get_driver_info. Raises Rejected and wire.RunTimeTypeError."""
    info = dict(wire.as_structure(result))
    missing = [name for name in _TEXTS + ("capabilities", "configuration") if name not in info]
    if missing:
        raise Rejected("<struct> missing field: " + missing[0])
    texts = {name: wire.as_string(info[name]) for name in _TEXTS}
    if not re.match(r"[0-9]+(\.[0-9]+)*\Z", texts["required_api_version"]):
        raise Rejected("required_api_version is " + texts["required_api_version"])
    features = dict(map(_feature, map(wire.as_string, wire.as_array(info["capabilities"]))))
    features = {name: version for name, version in features.items() if name in KNOWN_CAPABILITIES}
    configuration = {}
    for item in map(dict, map(wire.as_structure, wire.as_array(info["configuration"]))):
        if not {"key", "description"} <= set(item):
            raise Rejected("<struct> missing field: key or description")
        configuration[wire.as_string(item["key"])] = wire.as_string(item["description"])
    formats = wire.as_array(info["supported_image_formats"]) if "supported_image_formats" in info else ()
    return Driver(
        type=type_, path=path, capabilities=tuple(features), features=features, configuration=configuration,
        supported_image_formats=tuple(map(wire.as_string, formats)), **texts
    )  # fmt: skip


def _feature(text):
    name, _, version = text.partition("/")
    return name, max(1, int(version)) if version.isdigit() else 1


#: fields of an SM record that a Driver has under another name
_RENAMED = {
    "name": "name_label",
    "description": "name_description",
    "driver_version": "version",
    "path": "driver_filename",
}


def register(database, drivers):
    """Make the SM records of these drivers."""
    for driver in drivers.values():
        database.create("SM", **{_RENAMED.get(name, name): value for name, value in driver._asdict().items()})
