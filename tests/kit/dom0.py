# SPDX-License-Identifier: LGPL-2.1-only
"""A dom0 to install packages into: a root directory of its own, in which the real rpm runs real scriptlets.

    with Dom0(directory) as dom0:
        dom0.rpm("-i", package)         rpm of this machine, `--root` the directory
        dom0.run(["/usr/sbin/..."])     a program in there
        dom0.path("/etc/xapi.conf")     a file in there, for this process
        dom0.tree()                     all of it, as values

The root is a tmpfs in a mount namespace that a child process holds: when the child ends, however that comes about,
nothing is left of it. Programs and libraries are those of this machine, read-only; all other directories begin empty.
What rpm needs besides are packages of stand-ins (kit.rpm_tools).
"""

import glob
import os
import stat
import subprocess
from pathlib import Path
from typing import Dict, NamedTuple, Optional

#: what scriptlets, and the programs they run, need of this machine
BORROWED = ("/usr/bin", "/usr/lib64", "/usr/lib/*-linux-gnu*", "/usr/lib/python3*")
DIRECTORIES = ("etc", "opt", "var/lib", "var/tmp", "tmp", "run", "dev", "root", "usr/sbin", "usr/share", "usr/libexec")
LINKS = ("bin", "sbin", "lib", "lib64")

#: rpm's own notes are not part of the tree
DATABASE = "/var/lib/rpm"


class Entry(NamedTuple):
    """What is known of a file: its kind and mode, owner, and content or target; not its times."""

    mode: int
    owner: int
    content: bytes


class Result(NamedTuple):
    status: int
    stdout: str
    stderr: str


class Dom0:
    """A root directory; `python` is the interpreter that is its /usr/bin/python3, this machine's if None."""

    def __init__(self, directory, python: Optional[str] = None):
        self.base = str(directory)
        self.root = os.path.join(self.base, "root")
        self.python = python

    def __enter__(self):
        os.makedirs(self.base, exist_ok=True)
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", self._script()]
        self.holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            self.__exit__()
            raise OSError(f"no root directory could be mounted at {self.base}")
        device = os.stat(self.path("/")).st_dev
        assert {os.stat(self.path("/" + name)).st_dev for name in DIRECTORIES} == {device}, "not our own"
        return self

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()

    def _script(self):
        """What the child does before it waits for the end."""
        lines = [f"mount -t tmpfs -o mode=755 tmpfs '{self.base}'", f"mkdir '{self.root}'; cd '{self.root}'"]
        lines += [f"mkdir -p {name}" for name in DIRECTORIES]
        borrow = "mkdir -p '.{0}'; mount --bind '{0}' '.{0}'; mount -o remount,bind,ro '.{0}'"
        for source in sorted(path for pattern in BORROWED for path in glob.glob(pattern) if os.path.isdir(path)):
            lines.append(borrow.format(source))
        lines += [f"ln -s usr/{name} {name}" for name in LINKS]
        lines.append("touch dev/null; mount --bind /dev/null dev/null; mkdir proc; mount --rbind /proc proc")
        if self.python is not None:
            program = os.path.realpath(self.python)
            prefix = os.path.dirname(os.path.dirname(program))
            if prefix not in ("/", "/usr"):  # else its library is borrowed already
                lines.append(borrow.format(prefix))
            lines.append(f"mount --bind '{program}' usr/bin/python3")
        return "\n".join([*lines, "echo ready", "exec cat"])

    def path(self, path):
        """The file `path` of the root, for this process; below `/etc`, links lead out of it."""
        return f"/proc/{self.holder.pid}/root{self.root}{path}"

    def write(self, path, content):
        target = Path(self.path(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        target.chmod(0o644)

    def read(self, path):
        return Path(self.path(path)).read_text(encoding="utf-8")

    def exists(self, path):
        return os.path.lexists(self.path(path))

    def names(self, path):
        return sorted(os.listdir(self.path(path)))

    def run(self, argv, check=True):
        """Run a program with the root as its root directory."""
        return self._in_namespace(["chroot", self.root, *argv], check)

    def rpm(self, *arguments, check=True):
        """Run this machine's rpm on the root."""
        options = ["--root", self.root, "--dbpath", DATABASE, "--define", "_pkgverify_level digest"]
        return self._in_namespace(["rpm", *options, *map(str, arguments)], check)

    def _in_namespace(self, argv, check):
        prefix = ["nsenter", "--mount", "--target", str(self.holder.pid), "--wd=/"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": "1000"}
        done = subprocess.run(prefix + argv, check=False, env=environment, **pipes)
        result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert not check or result.status == 0, f"{argv} failed: {result}"
        return result

    def tree(self) -> Dict[str, Entry]:
        """Every file of the root, but what is borrowed, and rpm's notes."""
        top = self.path("/").rstrip("/")
        device = os.lstat(top).st_dev
        found = {}
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if self._is_part(os.path.join(directory, name), top, device)]
            for name in names + files:
                path = os.path.join(directory, name)
                if os.lstat(path).st_dev == device:
                    found[path[len(top) :]] = entry(path)
        return found

    @staticmethod
    def _is_part(path, top, device):
        return os.lstat(path).st_dev == device and path != top + DATABASE


def entry(path) -> Entry:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            content = file.read()
    else:
        content = b""
    return Entry(status.st_mode, status.st_uid, content)
