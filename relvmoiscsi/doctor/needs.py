# SPDX-License-Identifier: LGPL-2.1-only
"""What the drivers need of a host besides xapi: a way to the target, udev rules, room to write."""

import os
from typing import Dict, List, Optional

from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import AS_ROOT, Finding, ok, problem, unknown, warning
from relvmoiscsi.doctor.host_root import why
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.this_host import UDEV_RULES, Host

ISCSI_PORT = 3260
OUR_RULES = (
    "57-relvmoiscsi.rules",
    "58-relvmoiscsi-direct.rules",
    "99-zz-relvmoiscsi-direct.rules",
    "99-zz-relvmoiscsi.rules",
)
DIRECTORIES = ("/run/relvmoiscsi", "/var/lib/relvmoiscsi")
LEAST_BYTES = 1 << 20  #: of room in them; they need a few KiB


# --- the way to the target


def examine_firewall(host: Host) -> Finding:
    """Is there a rule that stops connections from this host to the iSCSI port?"""
    for name in ("iptables", "ip6tables"):
        program = host_root.program_of(host, name)
        if program is None:
            continue
        try:
            stop = stop_in(host_root.run(host, program, "-S").stdout)
        except CommandFailed as error:
            return unknown("firewall", f"`{name} -S` fails: {why(error).rstrip('.')}.", AS_ROOT)
        if stop:
            sentence = f"{name} blocks connections to port {ISCSI_PORT} for at least some targets: `{stop}`."
            advice = f"If this rule blocks your target: `{name} -I OUTPUT -p tcp --dport {ISCSI_PORT} -j ACCEPT`."
            return warning("firewall", sentence, advice)
    return ok("firewall", f"No firewall rule on this host blocks connections to port {ISCSI_PORT}.")


def stop_in(rules: str) -> str:
    """The first rule that stops a new TCP connection to the iSCSI port, by what `iptables -S` prints; "" if none does.

    Of conditions that are not known here, an address or a device, it is supposed that they hold.
    """
    lines = [line.split() for line in rules.splitlines()]
    chains: Dict[str, List[List[str]]] = {}
    for words in lines:
        if words[:1] == ["-A"] and len(words) > 1:
            chains.setdefault(words[1], []).append(words)
    policy = next((" ".join(words) for words in lines if words[:2] == ["-P", "OUTPUT"] and "ACCEPT" not in words), "")
    verdict = _verdict(chains, "OUTPUT", len(chains))
    return policy if verdict is None else verdict


def _verdict(chains: Dict[str, List[List[str]]], chain: str, depth: int) -> Optional[str]:
    """The rule of a chain that stops the connection, "" if the chain accepts it, None if the chain does neither."""
    for words in chains.get(chain, ()) if depth >= 0 else ():
        target = words[words.index("-j") + 1] if "-j" in words[:-1] else ""
        if not _may_match(words):
            continue
        if target in ("DROP", "REJECT"):
            return " ".join(words)
        if target in ("ACCEPT", "RETURN"):
            return "" if target == "ACCEPT" else None
        verdict = _verdict(chains, target, depth - 1)
        if verdict is not None:
            return verdict
    return None


def _may_match(words: List[str]) -> bool:
    """May the rule match a new TCP connection from a port of the kernel's choice to the iSCSI port?"""
    for number, option in enumerate(words[:-1]):
        value, holds = words[number + 1], True
        if option == "-p":
            holds = value in ("tcp", "all")
        elif option in ("--dport", "--dports"):
            holds = any(map(_has_port, value.split(",")))
        elif option in ("--sport", "--sports", "--ports"):
            holds = False
        elif option in ("--state", "--ctstate"):
            holds = "NEW" in value.split(",")
        elif option == "-o" and value == "lo":
            holds = False
        else:
            continue
        if holds == (words[number - 1] == "!"):
            return False
    return True


def _has_port(part: str) -> bool:
    first, _, last = part.partition(":")
    return first.isdigit() and int(first) <= ISCSI_PORT <= int(last or first)


# --- udev, and room


def examine_rules(host: Host) -> Finding:
    """Are the rules there that hide a LUN while it changes, and that link direct LUNs? A file in /etc hides others."""
    for name in OUR_RULES:
        paths = [os.path.join(directory, name) for directory in UDEV_RULES]
        path = next((each for each in paths if os.path.lexists(host.at(each))), None)
        try:
            is_empty = path is None or not host_root.read(host, path).strip()
        except PermissionError as error:
            return unknown("udev-rules", f"{path} cannot be read: {error.strerror}.", AS_ROOT)
        except OSError:  # a link to /dev/null, by which udev has it switched off
            is_empty = True
        if is_empty:
            sentence = f"The udev rules {name} are not installed, or an empty file replaces them."
            return problem("udev-rules", sentence, "Remove that empty file and reinstall relvmoiscsi.")
    return ok("udev-rules", "The udev rules, which hide a LUN while it changes and link direct LUNs, are there.")


def examine_room(host: Host) -> Finding:
    """Can the driver write its notes?"""
    for wanted in DIRECTORIES:
        parents = [wanted, os.path.dirname(wanted), "/"]
        directory = next(each for each in parents if os.path.lexists(host.at(each)))
        try:
            room = os.statvfs(host_root.path_of(host, directory))
        except OSError as error:
            return problem("room", f"{directory} cannot be used: {error.strerror}.", "Remove it.")
        if room.f_flag & os.ST_RDONLY:
            return problem("room", f"{directory} cannot be written to.", "Mount it for writing.")
        if room.f_bavail * room.f_frsize < LEAST_BYTES or (room.f_files and not room.f_favail):
            return problem("room", f"The file system of {directory} is full.", "Make room on it.")
    return ok("room", f"There is room for notes in {' and '.join(DIRECTORIES)}.")
