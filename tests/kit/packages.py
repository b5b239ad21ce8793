# SPDX-License-Identifier: LGPL-2.1-only
"""The packages that tests install, each built once: ours in several versions, and stand-ins for those of others."""

import os
import shutil
import subprocess
import sys

from kit.dom0 import make_package
from kit.rpm_tools import TOP, build_rpm, copy_of_sources
from relvmoiscsi import __version__

STOCK = "ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"
CONF, CONF_D = "/etc/xapi.conf", "/etc/xapi.conf.d/"
EPOCH = "1700000000"
WAS = "# of the earlier version\n"
#: a folder that the earlier version does not have; and modules of the package relvmoiscsi-pool
LATER, OF_THE_POOL = "direct", ("cli/pool.py", "pool/calls.py")


class Packages:
    """Builds what the tests install, each once."""

    def __init__(self, directory):
        self.directory = directory
        self.made = {}

    def whole(self):
        """The package of this repository, with relvmoiscsi-pool beside it."""
        return self._once("whole", lambda: build_rpm(self.directory / "whole"))

    def ours(self):
        """The same package with few modules: the modules that its scriptlets run, and some more.

        A host compiles each module at each installation. Compiling all modules takes seconds, and tests nothing more.
        """
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
        directories = ["/etc/udev/rules.d", "/etc/xapi.d/plugins", "/usr/share/man/man8", "/usr/share/doc"]
        directories += ["/usr/lib/systemd/system", "/usr/libexec", "/opt/xensource"]
        return self._make("base", 1, {}, directories=directories, provides=["/bin/sh", "/usr/bin/python3"])

    def sm(self, files=None, directories=("/opt/xensource/sm",)):
        driver = {"/opt/xensource/sm/LVMoISCSISR": ("#!/bin/sh\n", 0o755)}
        return self._make("sm", 1, files or driver, directories=directories)

    def xapi(self, version=1, plugins=STOCK, noreplace=True, conf_d=True):
        """xapi's package: XenServer's keeps an edited xapi.conf, XCP-ng's replaces it."""
        files = {
            CONF: f"# xapi {version}\nlog=all\nsm-plugins={plugins}\n",
            "/usr/lib/systemd/system/xapi.service": "[Service]\nExecStart=/opt/xensource/libexec/xapi-init start\n",
        }
        kind = {"noreplace": [CONF]} if noreplace else {"config": [CONF]}
        return self._make("xapi-core", version, files, directories=[CONF_D] if conf_d else [], **kind)

    def python(self):
        """An update of the interpreter; the file itself is borrowed."""
        return self._make("python3", 2, {})

    def driver(self, name, file, plugins, version=1, **kind):
        """Another driver's package, with a drop-in of its own."""
        return self._make(name, version, {CONF_D + file: f"sm-plugins={plugins}\n"}, **kind)

    def _make(self, name, version, files, **more):
        key = (name, version, repr(sorted(files.items())), repr(sorted(more.items())))
        directory = self.directory / f"stand-in{len(self.made)}"
        return self._once(key, lambda: make_package(directory, name, version, files, **more))

    def _once(self, key, build):
        if key not in self.made:
            self.made[key] = build()
        return self.made[key]


def few_modules(target, version=__version__):
    """A copy of what the package is built from, of its modules the few; gives its path."""
    source = copy_of_sources(target)
    kept = {*OF_THE_POOL, *modules_of_the_scriptlets()}
    for path in (source / "relvmoiscsi").rglob("*.py"):
        name = str(path.relative_to(source / "relvmoiscsi"))
        if name not in kept and not name.startswith(LATER + "/"):
            path.unlink()
    stated = source / "relvmoiscsi/__init__.py"
    stated.write_text(stated.read_text().replace(__version__, version))
    return source


def modules_of_the_scriptlets():
    """What sm-whitelist imports of the package, as Python says: paths in relvmoiscsi/."""
    program = "import sys, relvmoiscsi.host.xapi.whitelist\n"
    program += "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('relvmoiscsi')))"
    said = subprocess.check_output([sys.executable, "-c", program], cwd=str(TOP), encoding="utf-8")
    return {os.path.relpath(path, str(TOP / "relvmoiscsi")) for path in said.split()}
