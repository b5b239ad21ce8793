# SPDX-License-Identifier: LGPL-2.1-only
"""Everything a driver could leave behind or disturb on a host, as a value that can be compared."""

import fnmatch
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from .command import read, settle
from .lio import PREFIX

#: of open-iscsi: Debian's place, and dom0's
DATABASES = ("/etc/iscsi", "/var/lib/iscsi")
RECORDS = ("nodes", "send_targets", "static", "isns", "fw", "ifaces")

#: every file below is part of the world, with its contents
TREES = ("/run/relvmoiscsi", "/run/lock/sm", "/run/sr-ref", "/run/sm", "/run/lock/lvm", "/run/lock/iscsi", "/run/lvm",
         "/run/multipath", "/run/udev/rules.d", "/etc/udev/rules.d", "/etc/lvm", "/etc/multipath",
         "/var/lib/relvmoiscsi")  # fmt: skip

#: the names in here are part of the world
#: made by the first call, and by the package; removed with the package
OURS = ("/run/relvmoiscsi", "/run/relvmoiscsi/locks")
DIRECTORIES = ("/run", "/tmp", "/var/tmp", "/dev/mapper", "/dev/shm")
IGNORED_NAMES = ("pytest-of-*", PREFIX + "*")

LINKS = ("/dev/disk/by-id", "/dev/disk/by-path", "/dev/disk/by-scsid", "/dev/disk/by-uuid")

#: udev's workers come and go
PASSING = ("(udev-worker)", "systemd-udevd")


class World(NamedTuple):
    """A snapshot, which `World.now()` makes: for each section, a dictionary of text to text."""

    sections: dict

    @classmethod
    def now(cls):
        """The world, after udev has handled what is under way."""
        settle()
        return cls(
            {
                "sessions": dict(iscsi_sessions()),
                "records": dict(_records()),
                "block": dict(_block_devices()),
                "dm": dict(_mapped_devices()),
                "files": dict(_files(TREES)),
                "names": dict(_names()),
                "links": dict(_links()),
                "udev": {entry.name: "" for entry in Path("/run/udev/data").glob("b8:*")},  # of SCSI disks
                "processes": dict(_processes()),
                "mounts": dict.fromkeys(read("/proc/self/mounts").splitlines(), ""),
            }
        )

    def diff(self, after, except_for=()):
        """What changed from here to `after`, one line each: `+ section: key: value`, `-`, or `~` with old and new.

        `except_for` has patterns such as "sessions" or "files:/run/lock/lvm/*".
        """
        return [line for line in _differences(self.sections, after.sections) if not _excepted(line, except_for)]


def assert_untouched(before, except_for=()):
    """Assert that nothing of the world has changed by now but what `except_for` names."""
    lines = before.diff(World.now(), except_for)
    assert not lines, "the world is not as it was:\n" + "\n".join(lines)


def _differences(before, after):
    for section in before:
        old, new = before[section], after[section]
        for key in sorted(set(old) | set(new)):
            label = f"{section}: {key}"
            if key not in new:
                yield f"- {label}: {old[key]}"
            elif key not in old:
                yield f"+ {label}: {new[key]}"
            elif old[key] != new[key]:
                yield f"~ {label}: {old[key]!r} -> {new[key]!r}"


def _excepted(line, patterns):
    section, _, rest = line[2:].partition(": ")
    key = rest.partition(": ")[0]
    names = (section, f"{section}:{key}")
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def iscsi_sessions():
    """Number of the session -> IQN, portal, state: a session that was replaced by another shows."""
    for session in _entries("/sys/class/iscsi_session"):
        portals = []
        for connection in sorted((session / "device").glob("connection*/iscsi_connection/connection*")):
            address, port = read(connection / "persistent_address"), read(connection / "persistent_port")
            portals.append(f"{address}:{port}")
        yield session.name, "{} {} {}".format(read(session / "targetname"), ",".join(portals), read(session / "state"))


def _records():
    for database in DATABASES:
        for kind in RECORDS:
            yield from _files([os.path.join(database, kind)])


def _block_devices():
    """SCSI disks: kernel name -> wwid, size, read-only, state."""
    for device in _entries("/sys/block"):
        if (device / "device" / "wwid").exists():
            facts = [read(device / name) for name in ("device/wwid", "size", "ro", "device/state")]
            yield device.name, " ".join(facts)


def _mapped_devices():
    """device-mapper devices, active LVs and multipath maps among them: name -> UUID, size, what it lies on."""
    for device in _entries("/sys/block"):
        name = read(device / "dm" / "name")
        if name and not name.startswith(PREFIX):
            below = sorted(entry.name for entry in (device / "slaves").iterdir())
            facts = (read(device / "dm" / "uuid"), read(device / "size"), ",".join(below))
            yield name, " ".join(facts) + (" suspended" if read(device / "dm" / "suspended") == "1" else "")


def _files(trees):
    for tree in trees:
        for directory, _, names in os.walk(tree):
            if directory not in OURS:
                yield directory + "/", ""
            for name in names:
                path = os.path.join(directory, name)
                content = _content(path)
                # our locks are empty files, which stay
                if directory == "/run/relvmoiscsi/locks" and not content:
                    continue
                # Where no line is left there is nothing any more: SM removes the file when it detaches an SR.
                if content.strip() or directory != "/run/sr-ref":
                    yield path, content


def _content(path):
    if os.path.islink(path):
        return "-> " + os.readlink(path)
    if not os.path.isfile(path):
        return "special"
    data = Path(path).read_bytes()
    if len(data) > 8192 or b"\0" in data:
        return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"
    return data.decode("utf-8", "backslashreplace")


def _names():
    for directory in DIRECTORIES:
        for entry in _entries(directory):
            if str(entry) not in OURS and not any(
                fnmatch.fnmatchcase(entry.name, pattern) for pattern in IGNORED_NAMES
            ):
                yield str(entry), ""
    for entry in Path("/dev").glob("VG_*"):
        yield str(entry), ""


def _links():
    """Those to the lab's own devices below its LUNs are left out."""
    for directory in LINKS:
        for path, content in _files([directory]):
            if content and PREFIX not in path and "/loop" not in content and not _is_of_the_lab(content):
                yield path, content


def _is_of_the_lab(link):
    return read(Path("/sys/block") / os.path.basename(link) / "dm" / "name").startswith(PREFIX)


def _processes():
    """Processes that nobody of the lab started: number -> command line. Kernel threads are left out."""
    mine = set(_ancestors(os.getpid()))
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) in mine:
            continue
        command = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        if command and read(f"/proc/{pid}/comm") not in PASSING and not command.startswith(PASSING):
            yield pid, command


def _ancestors(pid):
    while pid:
        yield pid
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0


def _entries(directory):
    path = Path(directory)
    return sorted(path.iterdir()) if path.is_dir() else []
