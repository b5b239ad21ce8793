# SPDX-License-Identifier: LGPL-2.1-only
"""What the driver needs of its host besides xapi: programs, udev rules, room to write, a log; what runs have left."""

import os
import re
import stat
from typing import Callable, List, Optional, Sequence, Set, Tuple

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
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import multipath, own_maps, udev
from relvmoiscsi.host.disk.udev import COUNTS_MINUTES, RUN_DIRECTORY
from relvmoiscsi.host.files import content_of
from relvmoiscsi.host.this_host import UDEV_RULES, Host

STATE_DIRECTORY = "/var/lib/relvmoiscsi"
INITIATOR_FILE = "etc/iscsi/initiatorname.iscsi"  #: xapi keeps the IQN of the host there
LEAST_BYTES = 1 << 20  #: of room for notes and switches; they need a few KiB
SMLOG = "/var/log/SMlog"
SYSLOG_SOCKET = "/dev/log"

FLOCK, FIND = "/usr/bin/flock", "/usr/bin/find"  #: as the rules have them
SCSI_ID = ("/usr/lib/udev/scsi_id", "/lib/udev/scsi_id")  #: where udev looks for it

FIRST_RULES, LAST_RULES = "57-relvmoiscsi.rules", "99-zz-relvmoiscsi.rules"
DIRECT_RULES = ("58-relvmoiscsi-direct.rules", "99-zz-relvmoiscsi-direct.rules")
OUR_RULES = (FIRST_RULES, *DIRECT_RULES, LAST_RULES)
PACKAGE = "relvmoiscsi"
#: Where rpm has its database; the name of the file tells which release made it.
_RPM_DATABASES = tuple(
    os.path.join(directory, name)
    for directory in ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
    for name in ("Packages", "Packages.db", "rpmdb.sqlite")
)
#: A line of `rpm -V`: "missing" or what differs, 5 for the content; maybe the kind of file; the path.
_VERIFIED = re.compile(r"(missing|[A-Z0-9.?]{8,})\s+(?:[a-z]\s+)?(/.*)")
#: Rules that set anew what FIRST_RULES set, and so have to come before it.
_SETTERS = re.compile(r"\d+-dm-mpath\.rules\Z")
#: Rules that act on what it sets, and so have to come between the two.
_ACTORS = re.compile(
    r"\d+-(scsi-sg3_symlink|persistent-storage|multipath|kpartx|md-raid\S*|btrfs\S*|dm-lvm-metad|udisks2|systemd)\.rules\Z"
)

_AS_ROOT = "Run `relvmoiscsi doctor` as root."
_INSTALL_RULES = "Install the package relvmoiscsi again."


# --- programs, and the host's name


def examine_initiator(host: Host) -> Finding:
    """The driver refuses to log in without a name of the host."""
    try:
        name = _initiator_name(host)
    except OSError as error:
        sentence = f"The initiator name in /{INITIATOR_FILE} cannot be read: {error.strerror}."
        return unknown("initiator", sentence, _AS_ROOT)
    if name is None:
        sentence = f"This host has no iSCSI initiator name: /{INITIATOR_FILE} has none."
        return problem("initiator", sentence, "Set it: `xe host-param-set uuid=<host> iscsi_iqn=<IQN>`.")
    return ok("initiator", f"The host's iSCSI initiator name is {name}.")


def _initiator_name(host: Host) -> Optional[str]:
    lines = (content_of(host.at(INITIATOR_FILE)) or b"").decode("utf-8", "replace").splitlines()
    names = [line.partition("=")[2].strip() for line in lines if line.strip().startswith("InitiatorName")]
    return names[-1] if names and names[-1] else None


def examine_multipath(host: Host) -> Finding:
    missing = [name for name in ("multipath", "multipathd") if host_root.program_of(host, name) is None]
    if missing:
        sentence = "{} not there: LUNs of an SR with multipathing cannot be resignatured on this host.".format(
            " and ".join(missing) + (" is" if len(missing) == 1 else " are")
        )
        return warning("multipath", sentence, "Install the package device-mapper-multipath.")
    runs = host_root.processes(host, "multipathd")
    state = "" if runs is None else "; multipathd runs" if runs else "; multipathd does not run"
    return ok("multipath", f"multipath and multipathd are there{state}.")


# --- udev


def examine_udev(host: Host) -> List[Finding]:
    changed, doubt = _changed_files(host)
    findings = [_rules(host, name, changed) for name in sorted(OUR_RULES)]
    if all(finding.status == "ok" for finding in findings):
        sentence = "The udev rules, which hide a LUN while it changes and link direct LUNs, are those of this release."
        findings = [_unverified(doubt) if doubt else ok("udev-rules", sentence)]
    return [*findings, _order(host), _rule_programs(host), _daemon(host)]


def _changed_files(host: Host) -> Tuple[Set[str], str]:
    """The files of our package that are missing or have another content, by rpm; and why it cannot tell, if so."""
    rpm = host_root.program_of(host, "rpm")
    if rpm is None:
        return set(), "there is no rpm here"
    if not any(host_root.exists(host, path) for path in _RPM_DATABASES):  # rpm would make one
        return set(), "there is no database of rpm here"
    # an rpm that is run from outside would tell of this host
    inside = () if host_root.can_be_entered(host) else ("--root", host.root)
    try:
        completed = host_root.run(host, rpm, *inside, "-V", "--nodeps", PACKAGE, accept=range(256))
    except CommandFailed as error:
        return set(), "rpm fails: {}".format(why(error).rstrip("."))
    lines = [_VERIFIED.match(line) for line in completed.stdout.splitlines()]
    if completed.status and not any(lines):
        said = " ".join((completed.stderr + " " + completed.stdout).split())[:200]
        return set(), f"`rpm -V {PACKAGE}` says: {said or 'nothing'}"
    return {line.group(2) for line in lines if line and (line.group(1) == "missing" or "5" in line.group(1))}, ""


def _unverified(doubt: str) -> Finding:
    sentence = f"The udev rules are there; whether they are those of this release is not known: {doubt.rstrip('.')}."
    return warning("udev-rules", sentence, "Compare them with those in udev/ of this release, if you installed it so.")


def _rules(host: Host, name: str, changed: Set[str]) -> Finding:
    path = _rules_file(host, name)
    if path is None:
        harm = "direct LUNs have no links" if name in DIRECT_RULES else "a LUN could not be hidden while it changes"
        sentence = f"The udev rules {name} are not installed; {harm}."
        return problem("udev-rules", sentence, _INSTALL_RULES)
    try:
        masked = (host.at(os.devnull), os.devnull)  # a link to it, as udev has it
        content = b"" if os.path.realpath(host_root.path_of(host, path)) in masked else host_root.read(host, path)
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror}."
        if isinstance(error, PermissionError):
            return unknown("udev-rules", sentence, _AS_ROOT)
        return problem("udev-rules", sentence, _INSTALL_RULES)
    if not content.strip():
        return problem("udev-rules", f"{path} is switched off: it is empty.", _INSTALL_RULES)
    if name in [os.path.basename(each) for each in changed]:
        sentence = f"{path} is not the file of this release: it was edited, or is of another one."
        advice = "Compare it with {0}.rpmnew, if that is there; otherwise remove it and install the package again."
        return warning("udev-rules", sentence, advice.format(path))
    return ok("udev-rules", f"{path} is that of this release.")


def _rules_file(host: Host, name: str) -> Optional[str]:
    """The file of this name that udev takes; one in /etc hides all others."""
    for directory in UDEV_RULES:
        if _is_there(host, os.path.join(directory, name)):
            return os.path.join(directory, name)
    return None


def _order(host: Host) -> Finding:
    names: Set[str] = set()
    for directory in UDEV_RULES:
        try:
            names.update(name for name in host_root.names_in(host, directory) if name.endswith(".rules"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return unknown("udev-order", f"{directory} cannot be read: {error.strerror}.", _AS_ROOT)
    too_late = [name for name in sorted(names) if _SETTERS.match(name) and name > FIRST_RULES]
    too_early = [name for name in sorted(names) if _ACTORS.match(name) and name < FIRST_RULES]
    after = [name for name in sorted(names) if _ACTORS.match(name) and name > LAST_RULES]
    if not too_late + too_early + after:
        return ok("udev-order", "Nothing that acts on disks comes before the rules that hide one.")
    parts = [
        (too_late, f"sorts after {FIRST_RULES} and undoes what it sets"),
        (too_early, f"sorts before {FIRST_RULES} and acts on a LUN before that is hidden"),
        (after, f"sorts after {LAST_RULES} and does not see that a LUN is hidden"),
    ]
    sentence = "; ".join(f"{listed(found)} {what}" for found, what in parts if found) + "."
    return warning("udev-order", sentence, "Rename it, if it is yours: udev goes by the names.")


def _rule_programs(host: Host) -> Finding:
    missing = [path for path in (FLOCK, FIND) if not host_root.is_program(host, path)]
    missing += [] if any(host_root.is_program(host, path) for path in SCSI_ID) else [SCSI_ID[0]]
    if missing:
        sentence = "The udev rules need {}, which is not there; so they do not hide all that they should.".format(
            " and ".join(missing)
        )
        return problem("udev-programs", sentence, "Install util-linux (flock), findutils and systemd-udev (scsi_id).")
    return ok("udev-programs", "flock, find and scsi_id are where the udev rules want them.")


def _daemon(host: Host) -> Finding:
    if _is_there(host, "/run/udev/control"):
        return ok("udev", "udev runs; it reads rules that change by itself.")
    if host_root.processes(host, "xapi") is None:
        return unknown(
            "udev", "Whether udev runs cannot be told here.", "Run `relvmoiscsi doctor` on the running host."
        )
    return problem("udev", "udev does not run on this host.", "Start it: `systemctl start systemd-udevd`.")


def _path(host: Host, name: str) -> str:
    try:
        return host_root.path_of(host, name)
    except OSError:
        return host.at(name)


# --- room to write, and the log


def examine_directories(host: Host) -> Finding:
    checked = (_writable(host, directory) for directory in (RUN_DIRECTORY, STATE_DIRECTORY))
    troubles = [trouble for trouble in checked if trouble]
    if troubles:
        sentence = " ".join(dict.fromkeys(sentence for sentence, _ in troubles))
        return problem("directories", sentence, " ".join(dict.fromkeys(advice for _, advice in troubles)))
    if not host.is_superuser:
        return unknown("directories", "Whether root may write is not known to others.", _AS_ROOT)
    return ok("directories", f"There is room for notes in {RUN_DIRECTORY} and {STATE_DIRECTORY}.")


def _writable(host: Host, directory: str) -> Optional[Tuple[str, str]]:
    """What keeps the driver from writing there, and what to do; None if nothing does. It makes what is missing."""
    while directory != "/" and not _is_there(host, directory):
        directory = os.path.dirname(directory)
    path = _path(host, directory)
    try:
        room = os.statvfs(path)
    except OSError as error:
        return f"{directory} cannot be used: {error.strerror}.", "Remove it."
    if not os.path.isdir(path):
        return f"{directory} is no directory.", "Remove it."
    if room.f_flag & os.ST_RDONLY or (host.is_superuser and not os.access(path, os.W_OK | os.X_OK)):
        return f"{directory} cannot be written to.", "Mount it for writing."
    if room.f_bavail * room.f_frsize < LEAST_BYTES or (room.f_files and not room.f_favail):
        return f"The file system of {directory} is full.", "Make room on it."
    return None


def _is_there(host: Host, path: str) -> bool:
    """Also what only leads nowhere, and so is in the way."""
    return os.path.lexists(os.path.join(_path(host, os.path.dirname(path)), os.path.basename(path)))


def examine_smlog(host: Host) -> Finding:
    try:
        is_file = stat.S_ISREG(os.stat(host_root.path_of(host, SMLOG)).st_mode)
        is_missing = False
    except OSError:
        is_file, is_missing = False, True
    if is_missing or not is_file:
        sentence = f"There is no {SMLOG}: what the driver does is not logged there."
        return warning("smlog", sentence, f"See that rsyslog runs and writes local2 to {SMLOG}.")
    if not os.path.exists(_path(host, SYSLOG_SOCKET)):
        sentence = f"There is no {SYSLOG_SOCKET}: nothing reaches {SMLOG}."
        return warning("smlog", sentence, "Start the system's log: `systemctl start rsyslog`.")
    return ok("smlog", f"The driver logs to {SMLOG}.")


# --- what runs have left


def examine_maps(host: Host) -> Finding:
    """Notes of calls that were killed: a multipath map of theirs may still be there."""
    maps = own_maps.left_behind(host)
    if maps:
        sentence = f"A call that was killed left the multipath map of LUN {listed(maps)}."
        return warning("maps", sentence, "The next SR.create or SR.probe of this type on that LUN takes it away.")
    listed_yet = own_maps.left_listed(host)
    if listed_yet:
        sentence = f"A call that was killed left LUN {listed(listed_yet)} in multipath's list, /etc/{multipath.WWIDS}."
        advice = f"The next SR.create of this type takes it out, on any LUN; so does `multipath -w {listed_yet[0]}`."
        return warning("maps", sentence, advice)
    return ok("maps", "No call that was killed has left a multipath map behind.")


def examine_switches(host: Host) -> Finding:
    """What hides a LUN from event handlers. Without an owner it hides nothing that comes; what had come may stay so."""
    directory = RUN_DIRECTORY + "/hide"
    try:
        left, working = _flocked(host, directory, _is_switch)
        hanging = _flocked_by_dead(host, directory, _is_switch)
    except OSError as error:
        return _unreadable("switches", directory, error)
    try:
        disks = udev.left_hidden(host)
    except (OSError, NotFound) as error:
        return unknown("switches", f"Whether disks are hidden from event handlers is not known: {error}", _AS_ROOT)
    if hanging:
        sentence = (
            f"A call that was killed hides {listed(_hidden_by(hanging))} from udev until its last write has ended."
        )
        return warning("switches", sentence, "The disk does not answer: see to the array. Then call SR.create again.")
    if disks:
        sentence = (
            f"A call that was killed, or could not end what it had brought, has left {listed(disks)} hidden from udev: "
            "links of it are missing."
        )
        advice = (
            "The next SR.create of this type for a LUN behind the same adapters shows it again; so does "
            f"`echo change > /sys/block/{disks[0]}/uevent`, if LVM may see it: it may be a clone as the array made it."
        )
        return warning("switches", sentence, advice)
    if left:
        sentence = (
            f"A call that was killed had hidden {listed(_hidden_by(left))} from udev; that ends "
            f"{COUNTS_MINUTES} minutes after its start at the latest."
        )
        return warning("switches", sentence, f"The next SR.create of this type removes {directory}.")
    if working:
        return ok("switches", f"A LUN is hidden from event handlers now, by {listed(working)}.")
    return ok("switches", "No LUN is hidden from event handlers.")


def _hidden_by(switches: Sequence[str]) -> List[str]:
    """What switches of these names hide, each once."""
    places = [re.sub(r"scan-[0-9a-f]{8}-", "what is behind ", name) for name in switches]
    return list(dict.fromkeys(place if " " in place else "LUN " + place for place in places))


def _is_switch(name: str) -> bool:
    """No other name of a LUN's own."""
    return not name.startswith(("mpath-", "paths-"))


def _flocked(host: Host, directory: str, is_meant: Callable[[str], bool]) -> Tuple[List[str], List[str]]:
    """The files there that nobody holds an flock on, and who holds one on the others. Raises OSError.

    The kernel's list is read, as even a shared lock of ours would for a moment be in somebody's way.
    """
    left, working = [], []
    for name, status in _files(host, directory, is_meant):
        owners = flock.owners_of(status, host)
        working += owners
        left += [] if owners else [name]
    return left, sorted(set(working))


def _flocked_by_dead(host: Host, directory: str, is_meant: Callable[[str], bool]) -> List[str]:
    """The files there whose flock a process took that is gone: a child of it holds them. Raises OSError."""

    def is_gone(number: str) -> bool:
        return number.strip("0") != "" and not os.path.exists(os.path.join(host.proc, number))

    owners = [(name, flock.owner_numbers(status, host)) for name, status in _files(host, directory, is_meant)]
    return [name for name, numbers in owners if numbers and all(map(is_gone, numbers))]


def _files(host: Host, directory: str, is_meant: Callable[[str], bool]) -> List[Tuple[str, os.stat_result]]:
    try:
        names = sorted(name for name in host_root.names_in(host, directory) if is_meant(name))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            found.append((name, os.lstat(os.path.join(host_root.path_of(host, directory), name))))
        except FileNotFoundError:
            continue  # its owner has just removed it
    return found


def _unreadable(name: str, directory: str, error: OSError) -> Finding:
    sentence = f"What calls have left in {directory} is not known: {error.strerror}."
    return unknown(name, sentence, _AS_ROOT)
