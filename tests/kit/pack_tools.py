# SPDX-License-Identifier: LGPL-2.1-only
"""Makes packs of a small RPM, and looks at them with programs that had no part in making them."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from kit.rpm_tools import TOP, make_package, succeed
from relvmoiscsi import __version__ as VERSION

BUILD_PACK = TOP / "supp-pack" / "build_pack.py"


def build_pack():
    """The module itself; it lies where no package can be."""
    spec = importlib.util.spec_from_file_location("build_pack", str(BUILD_PACK))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def payload_rpm(directory, version=VERSION, release="1", requires=("/usr/bin/python3", "sm"), arch="noarch"):
    """A small stand-in for the payload."""
    what = {"version": version, "release": release, "requires": requires, "arch": arch}
    files = {"/usr/share/relvmoiscsi/payload": "7".zfill(1000)}
    return make_package(directory, "relvmoiscsi", files=files, provides=("relvmoiscsi(itself)",), **what)


class Run(NamedTuple):
    """What the command said, and where it was to put what it makes."""

    status: int
    stdout: str
    stderr: str
    output: Path

    @property
    def iso(self):
        return self.output / f"relvmoiscsi-{VERSION}.iso"

    @property
    def repository(self):
        return self.output / "repo"


def make_pack(rpm, output, *arguments, umask=0o022, **environment):
    """Run the command as an administrator does."""
    argv = [sys.executable, str(BUILD_PACK), "--rpm", str(rpm), "--output", str(output)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = dict(os.environ, **environment)
    # Python 3.6 has no argument `umask`
    done = subprocess.run([*argv, *arguments], check=False, env=env, preexec_fn=lambda: os.umask(umask), **pipes)
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode(), output)


class Keyring:
    """A throw-away GNUPGHOME. In /tmp, since the path of the agent's socket must be short."""

    def __init__(self):
        self.home = Path(tempfile.mkdtemp(prefix="pack-gpg.", dir="/tmp"))
        atexit.register(self.remove)  # a test run that is interrupted leaves no gpg-agent

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def gpg(self, *arguments):
        return succeed("gpg", "--homedir", self.home, "--batch", "--passphrase", "", *arguments)

    def new_key(self, name, algorithm="rsa2048", usage="sign", expires="never", when=None):
        """The fingerprint of a new key; `when` is gpg's faked time."""
        before = self.fingerprints()
        faked = ["--faked-system-time", when] if when else []
        self.gpg(*faked, "--quick-generate-key", name, algorithm, usage, expires)
        (new,) = self.fingerprints() - before
        return new

    def add_signing_subkey(self, fingerprint):
        self.gpg("--quick-add-key", fingerprint, "rsa2048", "sign", "never")

    def fingerprints(self):
        """Of the primary keys."""
        listing = self.gpg("--with-colons", "--list-secret-keys")
        return set(re.findall(r"^sec:.*\nfpr:+([0-9A-F]+):", listing, re.MULTILINE))

    def trust_as_hosts_do(self, key_file):
        """What /opt/xensource/debug/import-update-key does: import, and trust ultimately."""
        self.gpg("--import", key_file)
        listing = self.gpg("--with-colons", "--list-keys")
        (fingerprint,) = re.findall(r"^pub:.*\nfpr:+([0-9A-F]+):", listing, re.MULTILINE)
        succeed("gpg", "--homedir", self.home, "--import-ownertrust", input=f"{fingerprint}:6:\n".encode())

    def status_of(self, signature, signed):
        """gpg's status words for a detached signature, asked for as xapi asks."""
        argv = ["gpg", "--homedir", self.home, "--no-default-keyring", "--keyring", self.home / "pubring.kbx"]
        argv = [str(word) for word in (*argv, "--status-fd", "1", "--verify", signature, signed)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        lines = [line.split(" ") for line in done.stdout.decode().splitlines()]
        return {line[1]: line[2:] for line in lines}

    def remove(self):
        end_agent(self.home)
        shutil.rmtree(str(self.home), ignore_errors=True)


def end_agent(home):
    """End the gpg-agent of a GNUPGHOME: gpg starts one, and nobody ends it."""
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=False)


def has_agent(directory):
    """Whether a gpg-agent runs whose GNUPGHOME is below this directory."""
    argv = ["pgrep", "-f", f"gpg-agent --homedir {re.escape(str(directory))}/"]
    return subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode == 0


def extract(iso, to):
    """The tree in the ISO, by Rock Ridge."""
    succeed("xorriso", "-no_rc", "-osirrox", "on", "-indev", iso, "-extract", "/", to)
    succeed("chmod", "-R", "u+w", to)
    return to


def listing(iso, names):
    """Paths of the files in the ISO: `-R` for Rock Ridge names, `-J` for Joliet names."""
    output = succeed("isoinfo", "-f", names, "-i", iso)
    return {line.rstrip() for line in output.splitlines() if line.rstrip()}


def tree(directory):
    """Everything below a directory: permissions, date and content by name."""
    found = {}
    for path in directory.rglob("*"):
        status, content = path.stat(), path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = (status.st_mode, int(status.st_mtime), content)
    return found


def dom0_repository(directory, provides=("/bin/sh", "/usr/bin/python3", "sm")):
    """What dom0 has, as a repository with a package without files; gives its directory."""
    make_package(directory, "dom0", provides=provides)
    succeed("createrepo_c", "-q", directory)
    return directory


class Host:
    """A root directory in which a real dnf installs, from a repository of what dom0 has and those it is told of."""

    def __init__(self, directory, dom0):
        self.directory = directory
        self.dom0 = dom0
        self.root = directory / "root"
        for program in ("sh", "mkdir", "cat", "mv", "rm", "find"):  # that scriptlets start
            self.copy_with_libraries(shutil.which(program))

    def copy_with_libraries(self, program):
        linked = succeed("ldd", program)
        for path in ["/bin/" + Path(program).name] + re.findall(r"(/\S+) \(0x", linked):
            target = self.root / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(Path(path).resolve()), str(target))

    def dnf(self, configuration, *arguments):
        """Run dnf with the configuration, whose text xapi or the administrator wrote; (exit status, output)."""
        path = self.directory / "yum.conf"
        dom0 = f"[dom0]\nname=dom0\nbaseurl=file://{self.dom0}\ngpgcheck=0\nrepo_gpgcheck=0\n"
        path.write_text(f"{configuration}\n{dom0}")
        argv = ["dnf", "-y", "--noplugins", "-c", str(path), "--releasever=/", "--installroot", str(self.root)]
        argv += ["--setopt=cachedir=" + str(self.directory / "cache"), "--setopt=metadata_expire=0"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        env = dict(os.environ, LANG="C", HOME="/root")
        done = subprocess.run([*argv, *arguments], check=False, env=env, **pipes)
        for home in (self.directory / "cache").glob("*/pubring"):
            end_agent(home)
        return done.returncode, done.stdout.decode()

    def must_dnf(self, *arguments):
        status, output = self.dnf(*arguments)
        assert status == 0, output
        return output

    def installed(self):
        form = "%{name}-%{version}-%{release}\n"
        names = succeed("rpm", "--root", self.root, "-qa", "--qf", form, env=dict(os.environ, HOME="/root"))
        return {name for name in names.split() if not name.startswith(("gpg-pubkey", "dom0-"))}

    def applied(self):
        """What xapi would find: name and text of each record of an applied update, left-overs included."""
        directory = self.root / "var" / "update" / "applied"
        return {path.name: path.read_text() for path in directory.iterdir()} if directory.exists() else {}


def configuration_of_xapi(tree_of_iso, key_file):
    """What xapi_pool_update.ml, create_yum_config, makes of an update with a key; yum gets the tree over http there."""
    return (
        "[main]\nkeepcache=0\nreposdir=/dev/null\ngpgcheck=1\nrepo_gpgcheck=1\ninstallonlypkgs=\ngroup_command=compat\n\n"
        f"[relvmoiscsi]\nname=relvmoiscsi\nbaseurl=file://{tree_of_iso}\ngpgkey=file://{key_file}\n"
    )
