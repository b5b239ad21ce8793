# SPDX-License-Identifier: LGPL-2.1-only
"""The SR driver as xapi finds it, starts it and understands it.

    directory   the setting sm-dir, or /opt/xensource/sm
    name        what ends in SR, the rest in lower case being the type; of several, the last that the directory lists
    mode        executable
    answer      to sr_get_driver_info: a struct with the members below; anything else, and xapi skips the driver

Source: xen-api ocaml/xapi/sm_exec.ml (get_supported, parse_sr_get_driver_info), sm.ml (register).
"""

import os
import re
import xmlrpc.client
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import (
    Finding,
    listed,
    ok,
    problem,
    unknown,
    warning,
)
from relvmoiscsi.doctor.host_root import why
from relvmoiscsi.errors import CommandFailed, NotFound
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf

TYPE = "relvmoiscsi"
EXECUTABLE = "ReLVMoISCSISR"
#: CloudStack searches the output of `xe sm-list` for these words (CitrixResourceBase)
PHRASE = "resigning of duplicates"

SM_DIR = "/opt/xensource/sm"
#: where drivers have been, or will be, in one release or another
SM_DIRS = (SM_DIR, "/usr/libexec/sm/drivers")
PACKAGE_DIRECTORY = "/usr/share/relvmoiscsi"
OLDEST_PYTHON = (3, 6)

INSTALL = "Install the package relvmoiscsi on this host, or install it again."
UNIMPLEMENTED = 38

_TEXTS = ("name", "description", "vendor", "copyright", "driver_version", "required_api_version")
_VERSION = re.compile(r'^__version__ = "([^"\n]+)"', re.MULTILINE)
_PYTHON = re.compile(r"Python (\d+)\.(\d+)\S*")


class Driver(NamedTuple):
    """The file that xapi takes for the driver."""

    path: str  #: without the root
    others: Tuple[str, ...] = ()  #: more files of this type


class DriverInfo(NamedTuple):
    """What the driver says of itself."""

    name: str
    description: str
    version: str


def find_driver(host: Host) -> Tuple[Optional[Driver], Finding]:
    """The driver, None if xapi has none to take; and what there is to say about that."""
    try:
        directory = sm_directory(host.root)
    except NotFound as error:
        return None, unknown("executable", str(error), "Run `relvmoiscsi doctor` as root.")
    try:
        names = [
            name for name in host_root.names_in(host, directory) if name[-2:] == "SR" and name[:-2].lower() == TYPE
        ]
    except OSError as error:
        sentence = f"The directory of storage drivers, {directory}, cannot be read: {error.strerror}."
        if isinstance(error, PermissionError):
            return None, unknown("executable", sentence, "Run `relvmoiscsi doctor` as root.")
        return None, problem("executable", sentence, "Look at sm-dir in /etc/xapi.conf and /etc/xapi.conf.d.")
    if not names:
        return None, _no_driver(host, directory)
    driver = Driver(os.path.join(directory, names[-1]), tuple(os.path.join(directory, name) for name in names[:-1]))
    return driver, _executable(host, driver)


def sm_directory(root: str) -> str:
    """Where xapi looks for drivers. Raises NotFound when its configuration cannot be read."""
    found = SM_DIR
    for path in conf.conf_files(root):
        for line in conf.read_conf(root, path).decode("utf-8", "surrogateescape").splitlines():
            key, is_setting, value = line.partition("#")[0].partition("=")
            if is_setting and key.strip() == "sm-dir":
                found = value.strip().strip("'\"") or found
    return found if found.startswith("/") else "/" + found


def _no_driver(host: Host, directory: str) -> Finding:
    elsewhere = [other for other in SM_DIRS if other != directory and _has_driver(host, other)]
    sentence = f"xapi looks for drivers in {directory}, and there is no {EXECUTABLE} there."
    if elsewhere:
        sentence += f" There is one in {elsewhere[0]}, where this xapi does not look."
    return problem("executable", sentence, INSTALL)


def _has_driver(host: Host, directory: str) -> bool:
    return host_root.is_program(host, os.path.join(directory, EXECUTABLE))


def _executable(host: Host, driver: Driver) -> Finding:
    if driver.others:
        sentence = "{} and {} differ by case only; xapi takes the one that the directory lists last, now {}.".format(
            ", ".join(driver.others), driver.path, driver.path
        )
        return problem("executable", sentence, "Remove what is not from the package: `rpm -qf FILE` tells.")
    try:
        path = host_root.path_of(host, driver.path)
        is_file = os.path.isfile(path)
        os.stat(path)
    except OSError as error:
        return problem("executable", f"{driver.path} leads nowhere: {error.strerror}.", INSTALL)
    if not is_file:
        return problem("executable", f"{driver.path} is not a file.", INSTALL)
    if not os.access(path, os.X_OK):
        return problem("executable", f"{driver.path} is not executable.", "Run `chmod 755 " + driver.path + "`.")
    return ok("executable", f"{driver.path} is where xapi looks for drivers, and executable.")


# --- what it answers


def ask_driver(host: Host, driver: Driver) -> Tuple[Optional[DriverInfo], Finding]:
    """What the driver says of itself, None if xapi would not take it; and what there is to say about that."""
    try:
        completed = host_root.run_as_xapi(host, driver.path, _call("sr_get_driver_info"))
        info = parse_driver_info(completed.stdout)
    except CommandFailed as error:
        sentence = "{} does not answer xapi: {}. xapi would skip it, or wait for it for good.".format(
            driver.path, why(error).rstrip(".")
        )
        return None, problem("driver-info", sentence, INSTALL)
    except OSError as error:
        return None, problem("driver-info", f"{driver.path} cannot be run: {error.strerror}.", INSTALL)
    except ValueError as error:
        sentence = f"{driver.path} answers what xapi does not take for a driver: {error}."
        return None, problem("driver-info", sentence, INSTALL)
    if PHRASE not in info.name + "\n" + info.description:
        sentence = 'The driver calls itself "{}", without the words "{}" that CloudStack looks for.'
        return info, problem("driver-info", sentence.format(info.name, PHRASE), INSTALL)
    return info, ok("driver-info", f'The driver answers xapi: "{info.name}", version {info.version}.')


def parse_driver_info(document: str) -> DriverInfo:
    """Read an answer to sr_get_driver_info. Raises ValueError for one that xapi rejects."""
    value = _response(document)
    if not isinstance(value, dict):
        raise ValueError("it is no struct")
    for name in _TEXTS:
        if not isinstance(value.get(name), str):
            raise ValueError("it has no " + name)
    if not re.match(r"[0-9]+(\.[0-9]+)*\Z", value["required_api_version"]):
        raise ValueError("required_api_version is {!r}".format(value["required_api_version"]))
    for name in ("capabilities", "configuration"):
        if not isinstance(value.get(name), list):
            raise ValueError("it has no list of " + name)
    if not all(isinstance(item, str) for item in value["capabilities"]):
        raise ValueError("a capability is no string")
    if not all(isinstance(item, dict) and {"key", "description"} <= set(item) for item in value["configuration"]):
        raise ValueError("an item of configuration has no key or no description")
    return DriverInfo(value["name"], value["description"], value["driver_version"])


def _call(command: str) -> str:
    members: Dict[str, Any] = {"host_ref": "OpaqueRef:NULL", "command": command, "args": [], "device_config": {}}
    return xmlrpc.client.dumps((members,), command)


def _response(document: str) -> Any:
    """The one value of a response. Raises ValueError; for a fault, with its text."""
    if "<!" in document:
        raise ValueError("it is no XML-RPC response")
    try:
        params, method = xmlrpc.client.loads(document)
    except xmlrpc.client.Fault as fault:
        raise ValueError(f"fault {fault.faultCode}, {str(fault.faultString)[:300]}") from fault
    except Exception as error:  # whatever a parser makes of whatever a program prints
        raise ValueError(f"it is no XML-RPC response: {document[:60]!r}") from error
    if method is not None or len(params) != 1:
        raise ValueError("it is no response with one value")
    return params[0]


# --- what is behind it


def examine_package(host: Host, driver: Driver) -> Finding:
    """Can the driver do more than speak of itself? A command that no driver knows is answered by all of it."""
    directory, version = package_of(host, driver)
    try:
        # To look is not to write.
        completed = host_root.run_as_xapi(host, driver.path, _call("sr_doctor"), setting="PYTHONDONTWRITEBYTECODE=1")
        _response(completed.stdout)
        said = "it does not refuse a command that there is not"
    except CommandFailed as error:
        said = why(error)
    except (OSError, ValueError) as error:
        said = str(error)
    if not said.startswith(f"fault {UNIMPLEMENTED},"):
        return problem("package", "The driver cannot load what it consists of: {}.".format(said.rstrip(".")), INSTALL)
    if version != __version__:
        sentence = "The driver runs relvmoiscsi {} in {}, and this command is {}: there are two installations.".format(
            version or "of an unknown version", directory, __version__
        )
        return warning("package", sentence, "Remove the one that the package did not install.")
    return ok("package", f"The driver loads relvmoiscsi {version} from {directory}.")


def package_of(host: Host, driver: Driver) -> Tuple[str, str]:
    """The directory from which the driver loads relvmoiscsi, and the version there. Both may be empty."""
    try:
        real = os.path.realpath(host_root.path_of(host, driver.path))
    except OSError:
        return "", ""
    beside = os.path.dirname(os.path.dirname(real))
    for shown, path in ((beside, beside), (PACKAGE_DIRECTORY, host_root.path_of(host, PACKAGE_DIRECTORY))):
        if os.path.isdir(os.path.join(path, "relvmoiscsi")):
            found = _VERSION.search(text_of(os.path.join(path, "relvmoiscsi", "__init__.py")))
            return shown, found.group(1) if found else ""
    return "", ""


def examine_python(host: Host, driver: Driver) -> Finding:
    """The Python that the driver's first line asks for, found as xapi's environment has it found."""
    try:
        first = host_root.read(host, driver.path).split(b"\n")[0].decode("utf-8", "replace")
    except OSError as error:
        sentence = f"{driver.path} cannot be read: {error.strerror}."
        return unknown("python", sentence, "Run `relvmoiscsi doctor` as root.")
    words = first[2:].split() if first.startswith("#!") else []
    python = next((word for word in words if os.path.basename(word) != "env"), "")  # "/usr/bin/python3 -I" as well
    if "python" not in os.path.basename(python):
        return problem("python", f"The first line of {driver.path} names no Python.", INSTALL)
    try:
        completed = host_root.run_as_xapi(host, *words, "--version")
    except CommandFailed as error:
        sentence = "`{}`, which is to run the driver, fails: {}.".format(" ".join(words), why(error).rstrip("."))
        return problem("python", sentence, f"Install Python 3.6 or later as `{python}`.")
    found = _PYTHON.search(completed.stdout + completed.stderr)
    if found is None:
        sentence = "`{} --version` says {!r}.".format(" ".join(words), completed.stdout[:60])
        return unknown("python", sentence, "See that it is Python 3.6 or later.")
    if (int(found.group(1)), int(found.group(2))) < OLDEST_PYTHON:
        sentence = f"The driver is run by {found.group(0)}; it needs Python 3.6 or later."
        return problem("python", sentence, f"Install Python 3.6 or later as `{python}`.")
    return ok("python", f"The driver is run by {found.group(0)}.")


# --- whether xapi would take it


def examine_whitelist(host: Host) -> Finding:
    """Is the type in the list that xapi would have if it started now; who says so, and who else wants a say?"""
    try:
        obstacles = conf.obstacles(host.root)
        whitelist = conf.read_whitelist(host.root)
    except (NotFound, OSError) as error:
        return unknown("whitelist", str(error), "Run `relvmoiscsi doctor` as root.")
    if obstacles:
        sentence = (
            f"xapi reads every entry of {conf.CONF_D} and cannot read {listed(obstacles)}: it will not start again."
        )
        return problem("whitelist", sentence, "Remove it from there.")
    if whitelist.source is None:
        sentence = "No file of xapi has a line sm-plugins; so xapi accepts no driver at all."
        return problem("whitelist", sentence, "Install the package xapi-core again, then relvmoiscsi.")
    if whitelist.allows(TYPE):
        how = "accepts every driver" if conf.ALL in whitelist.plugins else "has " + TYPE
        return ok("whitelist", f"sm-plugins in {whitelist.source} {how}{_overridden(whitelist)}.")
    sentence = (
        f"sm-plugins in {whitelist.source}, the last such line that xapi reads, does not have "
        f"{TYPE}{_overridden(whitelist)}."
    )
    advice = f"Run `{PACKAGE_DIRECTORY}/sm-whitelist sync`, then `xe-toolstack-restart`."
    return problem("whitelist", sentence, advice)


def _overridden(whitelist: conf.Whitelist) -> str:
    """Which other files have a list, which counts for nothing, and which of those would take us."""
    others: Dict[str, bool] = {}
    for setting in whitelist.sources:
        others[setting.path] = conf.allows(setting.plugins, TYPE)
    others.pop(whitelist.source or "", None)
    if not others:
        return ""
    shown: List[str] = [path + (" (has it)" if has else " (has it not)") for path, has in others.items()]
    return "; it replaces the lists in " + listed(shown)
