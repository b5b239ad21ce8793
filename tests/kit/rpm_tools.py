# SPDX-License-Identifier: LGPL-2.1-only
"""The packages that tests install, each built once: ours in several versions, and stand-ins for those of others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from relvmoiscsi import __version__

TOP = Path(__file__).resolve().parent.parent.parent

#: what the package is built from
SOURCES = ("relvmoiscsi", "drivers", "udev", "supp-pack", "tools", "docs", "COPYING", "README.rst", "CHANGES.rst")

STOCK = "ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"
CONF, CONF_D = "/etc/xapi.conf", "/etc/xapi.conf.d/"
EPOCH = "1700000000"
WAS = "# of the earlier version\n"
#: a folder that the earlier version does not have; and modules of the package relvmoiscsi-pool
LATER, OF_THE_POOL = "direct", ("pool/commands/pool_command.py", "pool/calls.py")


def succeed(*argv, **options):
    """Standard output of a program that must succeed, as text."""
    argv = [str(word) for word in argv]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **options)
    assert done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
    return done.stdout.decode()


def query(package, form):
    """What rpm prints of a package file for `form`."""
    return succeed("rpm", "-qp", "--nosignature", "--queryformat", form, package)


def modes(package):
    """{path: mode} of the files of a package."""
    pairs = (line.rsplit(" ", 1) for line in query(package, "[%{FILENAMES} %{FILEMODES}\n]").splitlines())
    return {path: int(mode) & 0xFFFF for path, mode in pairs}


def build_rpm(output, source=TOP, options=(), **environment):
    """Run the build in `source`; gives the path of the package in the directory `output`."""
    said = succeed(source / "supp-pack" / "build-rpm.sh", *options, output, env={**os.environ, **environment})
    (package,) = Path(str(output)).glob("relvmoiscsi-[0-9]*.rpm")
    assert said.strip() == str(package)
    return package


def make_release(output, *arguments, **environment):
    """Make a release in the directory `output`; gives the directory."""
    succeed("bash", TOP / "tools/release.sh", "--output", output, *arguments, env={**os.environ, **environment})
    return output


def pool_package(package):
    """The path of relvmoiscsi-pool, which is built beside this package."""
    (found,) = package.parent.glob("relvmoiscsi-pool-*.rpm")
    return found


def few_modules(target, version=__version__):
    """A copy of what the package is built from, of its modules the few that its scriptlets run; gives its path.

    A host compiles each module at each installation. Compiling all modules takes seconds, and tests nothing more.
    """
    target.mkdir(parents=True)
    for name in SOURCES:
        if (TOP / name).is_dir():
            shutil.copytree(str(TOP / name), str(target / name), ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(str(TOP / name), str(target / name))
    program = "import sys, relvmoiscsi.host.xapi.whitelist\n"
    program += "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('relvmoiscsi')))"
    imported = succeed(sys.executable, "-c", program, cwd=str(TOP)).split()
    kept = {*OF_THE_POOL, *(os.path.relpath(path, str(TOP / "relvmoiscsi")) for path in imported)}
    for path in (target / "relvmoiscsi").rglob("*.py"):
        name = str(path.relative_to(target / "relvmoiscsi"))
        if name not in kept and not name.startswith(LATER + "/"):
            path.unlink()
    (target / "relvmoiscsi/__main__.py").write_text("")  # the build asks it for the completion, of all modules
    stated = target / "relvmoiscsi/__init__.py"
    stated.write_text(stated.read_text().replace(__version__, version))
    return target


def make_package(directory, name, version=1, files=None, release="1", arch="noarch", config=(), noreplace=(),
                 directories=(), provides=(), requires=()):  # fmt: skip
    """Build a package of stand-ins with rpmbuild; gives its path. `files`: content, or (content, mode), by path."""
    install, listed = [f"install -d %{{buildroot}}{path}" for path in directories], [f"%dir {it}" for it in directories]
    (directory / "files").mkdir(parents=True)
    for number, (path, content) in enumerate(sorted((files or {}).items())):
        text, mode = content if isinstance(content, tuple) else (content, 0o644)
        source = directory / "files" / str(number)
        source.write_text(text)
        install.append(f"install -D -m {mode:o} {source} %{{buildroot}}{path}")
        listed.append(("%config(noreplace) " if path in noreplace else "%config " if path in config else "") + path)
    lines = [f"Name: {name}", f"Version: {version}", f"Release: {release}", "Summary: Stands in", "License: none"]
    lines += [f"BuildArch: {arch}", "AutoReqProv: no", *(f"Provides: {each}" for each in provides)]
    lines += [*(f"Requires: {each}" for each in requires), "%global __os_install_post %{nil}"]
    lines += ["%description", name, "%install", *install, "%files", *listed]
    (directory / "a.spec").write_text("\n".join(lines) + "\n")
    defines = ["--define", f"_topdir {directory}", "--define", f"_dbpath {directory}/db"]
    succeed("rpmbuild", "-bb", "--quiet", *defines, directory / "a.spec")
    (rpm,) = (directory / "RPMS").glob("*/*.rpm")
    return rpm


class Packages:
    """Builds what the tests install, each once."""

    def __init__(self, directory):
        self.directory, self.made = directory, {}

    def whole(self):
        """The package of this repository, with relvmoiscsi-pool beside it."""
        return self._once("whole", lambda: build_rpm(self.directory / "whole"))

    def ours(self):
        """The same package with few modules."""
        return self._few("ours")

    def ours_without_file_triggers(self):
        """As an rpm older than 4.13 sees it: XenServer 8 and XCP-ng 8.3 have 4.11."""
        return self._few("4.11", RPMBUILD_OPTIONS="--without=file_triggers")

    def earlier(self):
        """An earlier version, with a module and a rule that are gone since, without what came later. Its rules and its
        configuration file were others.
        """

        def change(source):
            shutil.rmtree(str(source / "relvmoiscsi" / LATER))
            (source / "relvmoiscsi/gone.py").write_text("")
            (source / "udev/58-relvmoiscsi-gone.rules").write_text("# gone\n")
            for path in (source / "udev/57-relvmoiscsi.rules", source / "supp-pack/relvmoiscsi.conf"):
                path.write_text(path.read_text() + WAS)

        return self._few("earlier", "0.0.1", change)

    def _few(self, name, version=__version__, change=lambda source: None, **environment):
        def build():
            source = few_modules(self.directory / ("source-" + name), version)
            change(source)
            return build_rpm(self.directory / name, source, SOURCE_DATE_EPOCH=EPOCH, **environment)

        return self._once(name, build)

    def base(self):
        """What every dom0 has."""
        directories = ("/etc/udev/rules.d", "/etc/xapi.d/plugins", "/usr/share/man/man8", "/usr/share/doc",
                       "/usr/lib/systemd/system", "/usr/libexec", "/opt/xensource")  # fmt: skip
        return self._make("base", directories=directories, provides=("/bin/sh", "/usr/bin/python3"))

    def sm(self, driver="/opt/xensource/sm/LVMoISCSISR", directories=("/opt/xensource/sm",)):
        return self._make("sm", files={driver: ("#!/bin/sh\n", 0o755)}, directories=directories)

    def xapi(self, version=1, plugins=STOCK, noreplace=True, conf_d=True):
        """xapi's package: XenServer's keeps an edited xapi.conf, XCP-ng's replaces it."""
        files = {
            CONF: f"# xapi {version}\nlog=all\nsm-plugins={plugins}\n",
            "/usr/lib/systemd/system/xapi.service": "[Service]\nExecStart=/opt/xensource/libexec/xapi-init start\n",
        }
        kind = {"noreplace" if noreplace else "config": (CONF,), "directories": (CONF_D,) if conf_d else ()}
        return self._make("xapi-core", version=version, files=files, **kind)

    def python(self):
        """An update of the interpreter; the file itself is borrowed."""
        return self._make("python3", version=2)

    def driver(self, name, file, plugins, version=1):
        """Another driver's package, with a drop-in of its own."""
        return self._make(name, version=version, files={CONF_D + file: f"sm-plugins={plugins}\n"})

    def _make(self, name, **what):
        directory = self.directory / f"stand-in{len(self.made)}"
        return self._once(repr((name, what)), lambda: make_package(directory, name, **what))

    def _once(self, key, build):
        if key not in self.made:
            self.made[key] = build()
        return self.made[key]
