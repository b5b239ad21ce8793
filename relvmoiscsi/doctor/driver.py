# SPDX-License-Identifier: LGPL-2.1-only
"""The SR drivers as xapi finds, starts and understands the drivers.

    directory   the setting sm-dir, or /opt/xensource/sm
    mode        executable
    answer      to sr_get_driver_info: a struct; after any other answer, xapi skips the driver

Source: xen-api ocaml/xapi/sm_exec.ml (get_supported, parse_sr_get_driver_info), sm.ml (register).
"""

import os
import xmlrpc.client
from typing import Any, Dict, List, Mapping, Optional, Tuple

from relvmoiscsi import untrusted_xml
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import AS_ROOT, Finding, ok, problem, unknown
from relvmoiscsi.doctor.host_root import why
from relvmoiscsi.errors import CommandFailed, NotFound
from relvmoiscsi.host.files import lines_in
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf
from relvmoiscsi.sr_types import OWN_TYPES, SR_TYPES
from relvmoiscsi.wording import some_of

#: CloudStack searches the output of `xe sm-list` for these words (CitrixResourceBase)
PHRASE = "resigning of duplicates"

SM_DIR = "/opt/xensource/sm"
INSTALL = "Install the package relvmoiscsi on this host, or reinstall the package."
SYNC = "Run `/usr/share/relvmoiscsi/sm-whitelist sync`, then `xe-toolstack-restart`."
UNIMPLEMENTED = 38

_SAID = ("name", "description", "driver_version")


def examine_drivers(host: Host) -> Tuple[List[Finding], Optional[Mapping[str, str]], str]:
    """Return the findings on both drivers; the iSCSI driver's info, if xapi accepts the info; that driver's path.

    The info is the driver's answer to sr_get_driver_info, with the texts _SAID.
    """
    try:
        directory = sm_directory(host)
    except NotFound as error:
        return [unknown("executable", str(error), AS_ROOT)], None, ""
    paths = [os.path.join(directory, each.executable) for each in SR_TYPES]
    absent = [path for path in paths if not host_root.is_program(host, path)]
    if absent:
        sentence = f"xapi looks for drivers in {directory}, and there is no executable {' and no '.join(absent)}."
        return [problem("executable", sentence, INSTALL)], None, paths[0]
    there = ok("executable", f"Both drivers are where xapi looks for them, in {directory}, and executable.")
    path = paths[0]
    info: Optional[Mapping[str, str]] = None
    try:
        value = _answer(host, path, "sr_get_driver_info")
        if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in _SAID):
            raise ValueError("its answer has no name, description or version")
        info = value
        name, version = value["name"], value["driver_version"]
        answer = ok("driver-info", f'The driver answers xapi: "{name}", version {version}.')
        if PHRASE not in name + "\n" + value["description"]:
            sentence = f'The driver calls itself "{name}", without the words "{PHRASE}" that CloudStack looks for.'
            answer = problem("driver-info", sentence, INSTALL)
    except ValueError as error:
        sentence = f"{path} does not answer xapi as a driver does, so xapi skips it: {str(error).rstrip('.')}."
        answer = problem("driver-info", sentence, INSTALL)
    try:  # the driver with all its modules refuses an unknown command
        _answer(host, path, "sr_doctor")
        said = "it does not refuse an unknown command"
    except ValueError as error:
        said = str(error)
    more = ok("package", "The driver loads all its modules.")
    if not said.startswith(f"fault {UNIMPLEMENTED},"):
        more = problem("package", f"The driver cannot load its modules: {said.rstrip('.')}.", INSTALL)
    return [there, answer, more], info, path


def sm_directory(host: Host) -> str:
    """Return the directory where xapi looks for drivers. Raises NotFound for an unreadable configuration."""
    found = SM_DIR
    for content in conf.conf_files(host)[0].values():
        for line in lines_in(content.decode("utf-8", "surrogateescape")):
            key, is_setting, value = line.partition("#")[0].partition("=")
            if is_setting and key.strip() == "sm-dir":
                found = value.strip().strip("'\"") or found
    return found if found.startswith("/") else "/" + found


# --- what the driver answers


def _answer(host: Host, path: str, command: str) -> Any:
    """Run the driver; return the value in its answer. Raises ValueError with the reason; for a fault, with its text."""
    members: Dict[str, Any] = {"host_ref": "OpaqueRef:NULL", "command": command, "args": [], "device_config": {}}
    try:
        document = host_root.run_as_xapi(host, path, xmlrpc.client.dumps((members,), command))
    except CommandFailed as error:
        raise ValueError(why(error)) from error
    except OSError as error:
        raise ValueError(f"it cannot be run: {error.strerror}") from error
    return value_of(document)


def value_of(document: str) -> Any:
    """Return the single value of a response. Raises ValueError; for a fault, with its text."""
    try:
        params, method = untrusted_xml.xmlrpc_of(document)
    except xmlrpc.client.Fault as fault:
        raise ValueError(f"fault {fault.faultCode}, {str(fault.faultString)[:300]}") from fault
    except ValueError as error:
        raise ValueError(f"it is no XML-RPC response: {document[:60]!r}") from error
    if method is not None or len(params) != 1:
        raise ValueError("it is no response with one value")
    return params[0]


# --- whether xapi accepts the drivers


def examine_whitelist(host: Host) -> Finding:
    """Would xapi accept the types if xapi started now? Name the deciding file, and other files with the setting."""
    try:
        _files, obstacles = conf.conf_files(host)
        settings = conf.sm_plugins(host)
    except (NotFound, OSError) as error:
        return unknown("whitelist", str(error), AS_ROOT)
    if obstacles:
        sentence = f"xapi reads every entry of {conf.CONF_D} and does not start: {some_of(obstacles)} cannot be read."
        return problem("whitelist", sentence, "Remove every entry that is not a file from that directory.")
    if not settings:
        sentence = "No file of xapi has a line sm-plugins, so xapi accepts no driver at all."
        return problem("whitelist", sentence, "Install the package xapi-core again, then relvmoiscsi.")
    used = settings[-1]
    lacking = [name for name in OWN_TYPES if not used.allows(name)]
    if not lacking:
        return ok("whitelist", f"sm-plugins in {used.path} accepts {' and '.join(OWN_TYPES)}.")
    sentence = f"sm-plugins in {used.path}, the last such line that xapi reads, lacks {' and '.join(lacking)}"
    others = [each.path for each in settings if each.path != used.path and each.allows(lacking[0])]
    sentence += f"; {some_of(others)} lists it, but xapi does not use that line" if others else ""
    return problem("whitelist", sentence + ".", SYNC)
