# SPDX-License-Identifier: LGPL-2.1-only
"""Installing, upgrading, reinstalling, removing the RPM on every kind of host: the whole file tree, before and after.

The real rpm runs the real scriptlets in a root directory of their own (dom0.py). xapi, sm and other drivers are
packages of stand-ins, with the files and the attributes that theirs have.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import xmlrpc.client

import pytest

from kit.dom0 import Dom0, make_package
from kit.rpm_tools import TOP, build_rpm, copy_of_sources, pool_package
from relvmoiscsi import __version__
from relvmoiscsi.host.xapi import conf

pytestmark = pytest.mark.root

STOCK = "ext nfs iscsi lvmoiscsi dummy file hba rawhba udev iso lvm lvmohba lvmofcoe shm smb"
XCP_NG = STOCK + " cephfs glusterfs xfs zfs largeblock"
PACKAGE = "relvmoiscsi"
OURS = "relvmoiscsi relvmohba"  #: SR types
CODE = "/usr/share/relvmoiscsi/relvmoiscsi/"
CONF, CONF_D = "/etc/xapi.conf", "/etc/xapi.conf.d/"
DROP_IN = CONF_D + "zz-relvmoiscsi.conf"
NEXT = "0.9.9"
LATER = ("direct", "doctor", "formats", "resignature", "sr_driver")  #: folders that the earlier version did not have
PYTHON36 = TOP / ".venv" / "py36" / "bin" / "python"


# --- packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return Packages(tmp_path_factory.mktemp("packages"))


class Packages:
    """Builds what the tests install, each once."""

    def __init__(self, directory):
        self.directory = directory
        self.made = {}

    def ours(self):
        return self._once("ours", lambda: build_rpm(self.directory / "ours"))

    def ours_without_file_triggers(self):
        """As an rpm older than 4.13 sees it: XenServer 8 and XCP-ng 8.3 have 4.11."""
        return self._once(
            "4.11", lambda: build_rpm(self.directory / "4.11", RPMBUILD_OPTIONS="--without=file_triggers")
        )

    def earlier(self):
        """An earlier version, with a module and a rule that are gone since, and without most of what came later."""

        def build():
            source = copy_of_sources(self.directory / "source-earlier")
            version = source / "relvmoiscsi/__init__.py"
            version.write_text(version.read_text().replace(__version__, "0.0.1"))
            for name in LATER:
                shutil.rmtree(str(source / "relvmoiscsi" / name))
            (source / "relvmoiscsi/gone.py").write_text("")
            (source / "udev/58-relvmoiscsi-gone.rules").write_text("# gone\n")
            return build_rpm(self.directory / "earlier", source)

        return self._once("earlier", build)

    def later(self):
        """A later version, which has other rules and another configuration file."""

        def build():
            source = copy_of_sources(self.directory / "source-later")
            version = source / "relvmoiscsi/__init__.py"
            version.write_text(version.read_text().replace(__version__, NEXT))
            for path in (source / "udev/57-relvmoiscsi.rules", source / "supp-pack/relvmoiscsi.conf"):
                path.write_text(path.read_text() + f"# new in {NEXT}\n")
            return build_rpm(self.directory / "later", source)

        return self._once("later", build)

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


# --- hosts


@pytest.fixture
def dom0(tmp_path, packages):
    with Dom0(tmp_path / "dom0") as made:
        made.rpm("-i", packages.base())
        yield made


def stock(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.xapi())


def xcp_ng(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.xapi(plugins=XCP_NG, noreplace=False))


def linstor(dom0, packages):
    xcp_ng(dom0, packages)
    dom0.rpm("-i", packages.driver("xcp-ng-linstor", "99-enable-sm-driver-linstor.conf", XCP_NG + " linstor"))


def late_driver(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.driver("latecomer", "zzz-latecomer.conf", "ext latecomer"))


def left_behind(dom0, packages):
    stock(dom0, packages)
    dom0.write(CONF_D + "99-old.conf.rpmsave", "sm-plugins = ext old\n")


def star(dom0, packages):
    stock(dom0, packages)
    dom0.write(CONF_D + "50-all.conf", "sm-plugins=*\n")


def by_hand(dom0, packages):
    stock(dom0, packages)
    dom0.write(CONF, dom0.read(CONF) + 'sm-plugins = "ext moosefs"   # ours\n')


def enabled_by_hand(dom0, packages):
    stock(dom0, packages)
    dom0.write(CONF_D + "99-enable-relvmoiscsi.conf", "sm-plugins=ext ReLVMoISCSI relvmohba\n")


def no_directory(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.xapi(conf_d=False))


def no_list(dom0, packages):
    stock(dom0, packages)
    dom0.write(CONF, "log=all\n")


def installer(dom0, packages):
    """sm is there, xapi is not."""
    dom0.rpm("-i", packages.sm())


#: host: (how it is made, what xapi accepts, what it accepts with us; None: it has no list at all, name of our drop-in)
HOSTS = {
    "stock": (stock, STOCK, STOCK + " " + OURS, DROP_IN),
    "xcp-ng": (xcp_ng, XCP_NG, XCP_NG + " " + OURS, DROP_IN),
    "linstor": (linstor, XCP_NG + " linstor", XCP_NG + " linstor " + OURS, DROP_IN),
    "late": (late_driver, "ext latecomer", "ext latecomer " + OURS, CONF_D + "zzz-latecomer.conf-zz-relvmoiscsi.conf"),
    "rpmsave": (left_behind, "ext old", "ext old " + OURS, DROP_IN),
    "star": (star, "*", "*", None),
    "by-hand": (by_hand, "ext moosefs", "ext moosefs " + OURS, DROP_IN),
    "enabled-by-hand": (enabled_by_hand, "ext ReLVMoISCSI relvmohba", "ext ReLVMoISCSI relvmohba", None),
    "no-directory": (no_directory, STOCK, STOCK + " " + OURS, DROP_IN),
    "no-list": (no_list, None, None, None),
    "installer": (installer, None, None, None),
}
every_host = pytest.mark.parametrize("host", list(HOSTS))


def xapi_list(dom0):
    """What xapi would accept if it started now."""
    found = conf.read_whitelist(dom0.path("/"))
    return " ".join(found.plugins) if found.source is not None else None


def contents(package):
    """The tree of a package: its files as rpm says they are, without their contents."""
    form = "[%{FILENAMES} %{FILEMODES}\n]"
    out = subprocess.run(["rpm", "-qp", "--queryformat", form, package], check=True, stdout=subprocess.PIPE).stdout
    pairs = (line.rsplit(" ", 1) for line in out.decode().split("\n")[:-1])
    return {path: int(mode) & 0xFFFF for path, mode in pairs}


def difference(before, after):
    """(paths that came, paths that went, paths that are not what they were)"""
    changed = {path for path in before.keys() & after.keys() if before[path] != after[path]}
    return set(after.keys() - before.keys()), set(before.keys() - after.keys()), changed


def compiled(dom0):
    """What the host's Python makes of every module of the package."""
    tag = dom0.run(["/usr/bin/python3", "-c", "import sys; print(sys.implementation.cache_tag)"]).stdout.strip()
    modules = [path for path in dom0.tree() if path.startswith(CODE) and path.endswith(".py")]
    return {os.path.join(os.path.dirname(m), "__pycache__", os.path.basename(m)[:-3] + f".{tag}.pyc") for m in modules}


# --- install, upgrade, reinstall, remove


@pytest.fixture(scope="session")
def fresh():
    """Host: its tree when we were installed on it, and had not been before."""
    return {}


@every_host
def test_every_host_accepts_us_while_we_are_there_and_is_as_it_was_when_we_are_gone(dom0, packages, fresh, host):
    prepare, without_us, with_us, drop_in = HOSTS[host]
    prepare(dom0, packages)
    before = dom0.tree()
    assert xapi_list(dom0) == without_us
    files = set(contents(packages.ours()))
    added = ({drop_in} if drop_in else set()) | kept_of(host)

    dom0.rpm("-i", packages.ours())

    assert difference(before, dom0.tree()) == (files | added | compiled(dom0), set(), set())
    assert xapi_list(dom0) == with_us
    installed = fresh[host] = dom0.tree()

    dom0.rpm("-i", "--replacepkgs", packages.ours())

    assert dom0.tree() == installed

    dom0.rpm("-e", PACKAGE)

    assert difference(before, dom0.tree()) == (kept_of(host), set(), set())
    assert xapi_list(dom0) == without_us

    again = dom0.rpm("-e", PACKAGE, check=False)

    assert again.status != 0 and "is not installed" in again.stderr
    assert difference(before, dom0.tree()) == (kept_of(host), set(), set())


def kept_of(host):
    """What stays of us: the directory of xapi's configuration, where we have made it."""
    return {CONF_D.rstrip("/")} if host == "no-directory" else set()


@pytest.mark.parametrize("host", ["stock", "late", "by-hand", "enabled-by-hand", "no-directory", "no-list"])
def test_an_upgrade_leaves_what_a_new_installation_would(dom0, packages, fresh, host):
    prepare, without_us, with_us, _ = HOSTS[host]
    prepare(dom0, packages)
    before = dom0.tree()
    if host not in fresh:
        dom0.rpm("-i", packages.ours())
        fresh[host] = dom0.tree()
        dom0.rpm("-e", PACKAGE)

    dom0.rpm("-i", packages.earlier())
    assert dom0.exists("/usr/share/relvmoiscsi/relvmoiscsi/gone.py")
    assert xapi_list(dom0) == with_us
    dom0.rpm("-U", packages.ours())

    assert dom0.tree() == fresh[host]
    assert xapi_list(dom0) == with_us

    dom0.rpm("-U", "--oldpackage", packages.earlier())
    dom0.rpm("-e", PACKAGE)

    assert difference(before, dom0.tree()) == (kept_of(host), set(), set())
    assert xapi_list(dom0) == without_us


def test_the_files_are_as_the_package_says(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())

    assert dom0.rpm("-V", PACKAGE).stdout == ""
    tree = dom0.tree()
    assert {path: tree[path].mode for path in contents(packages.ours())} == contents(packages.ours())
    assert {tree[path].owner for path in contents(packages.ours())} == {0}


def test_it_is_not_installed_where_sm_is_not(dom0, packages):
    refused = dom0.rpm("-i", packages.ours(), check=False)

    assert refused.status != 0
    assert "sm is needed by relvmoiscsi" in refused.stderr


# --- what an administrator is told


def test_installing_says_what_was_done_and_what_is_left_to_do(dom0, packages):
    stock(dom0, packages)

    said = dom0.rpm("-i", packages.ours()).stdout

    assert DROP_IN + " was written: the drivers of /etc/xapi.conf, relvmoiscsi and relvmohba." in said
    assert "run xe-toolstack-restart on each of them" in said


def test_an_upgrade_says_nothing_of_a_restart_of_the_pool(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.earlier())

    said = dom0.rpm("-U", packages.ours()).stdout

    assert DROP_IN + " is up to date" in said
    assert "restart" not in said


def test_removing_says_what_was_done_and_what_is_left_to_do(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())

    said = dom0.rpm("-e", PACKAGE).stdout

    assert DROP_IN + " was removed." in said
    assert "run xe-toolstack-restart" in said
    assert "lose their links" not in said


@pytest.mark.parametrize("obstacle", ["conf", "directory"])
def test_what_goes_wrong_is_said_and_does_not_fail_the_transaction(dom0, packages, obstacle):
    dom0.rpm("-i", packages.sm())
    if obstacle == "conf":
        os.mkdir(dom0.path(CONF))
        reason = "/etc/xapi.conf cannot be read: Is a directory."
    else:
        dom0.write(CONF, "sm-plugins=ext\n")
        dom0.write(CONF_D.rstrip("/"), "not a directory\n")
        reason = "cannot be changed: File exists."
    before = dom0.tree()

    installed = dom0.rpm("-i", packages.ours())
    removed = dom0.rpm("-e", PACKAGE)

    assert reason in installed.stderr
    assert (installed.status, removed.status) == (0, 0)
    assert dom0.tree() == before


def test_a_broken_interpreter_does_not_fail_the_transaction(tmp_path, packages):
    with Dom0(tmp_path / "dom0", python="/bin/false") as dom0:
        dom0.rpm("-i", packages.base())
        stock(dom0, packages)
        before = dom0.tree()

        dom0.rpm("-i", packages.ours())
        dom0.rpm("-e", PACKAGE)

        assert dom0.tree() == before


# --- what was edited


def test_an_edited_configuration_survives_upgrades_and_a_new_one_lies_beside_it(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    edited = dom0.read("/etc/relvmoiscsi.conf") + "[direct]\ndatabase = 36001405a0b1c2d3e4f5061728394a5b6\n"
    dom0.write("/etc/relvmoiscsi.conf", edited)

    dom0.rpm("-U", packages.later())

    assert dom0.read("/etc/relvmoiscsi.conf") == edited
    assert "# new in " + NEXT in dom0.read("/etc/relvmoiscsi.conf.rpmnew")

    said = dom0.rpm("-e", PACKAGE).stdout

    assert "the LUNs in /etc/relvmoiscsi.conf lose their links" in said
    assert dom0.read("/etc/relvmoiscsi.conf.rpmsave") == edited
    assert not dom0.exists("/etc/relvmoiscsi.conf")


def test_a_configuration_that_nobody_edited_is_replaced(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())

    dom0.rpm("-U", packages.later())

    assert "# new in " + NEXT in dom0.read("/etc/relvmoiscsi.conf")


def test_edited_rules_make_way_for_those_of_the_new_code_and_are_kept(dom0, packages):
    rules = "/etc/udev/rules.d/57-relvmoiscsi.rules"
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    dom0.write(rules, "# edited\n")

    dom0.rpm("-U", packages.later())

    assert "# new in " + NEXT in dom0.read(rules)
    assert dom0.read(rules + ".rpmsave") == "# edited\n"


def test_our_drop_in_edited_by_hand_keeps_the_edits_through_upgrade_and_removal(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.earlier())
    edited = dom0.read(DROP_IN).replace(f"= {STOCK} {OURS}", f"= {STOCK} {OURS}".replace(" smb", " moosefs"))
    dom0.write(DROP_IN, edited)

    dom0.rpm("-U", packages.ours())

    assert sorted(xapi_list(dom0).split()) == sorted((STOCK.replace(" smb", "") + " moosefs " + OURS).split())
    dom0.rpm("-e", PACKAGE)
    assert sorted(xapi_list(dom0).split()) == sorted((STOCK.replace(" smb", "") + " moosefs").split())


# --- what others do after us


def test_an_update_of_xapi_that_replaces_an_edited_file_is_followed(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.xapi(plugins=XCP_NG, noreplace=False))
    dom0.write(CONF, dom0.read(CONF).replace(XCP_NG, XCP_NG + " moosefs"))
    dom0.rpm("-i", packages.ours())
    assert xapi_list(dom0) == XCP_NG + " moosefs " + OURS

    dom0.rpm("-U", packages.xapi(version=2, plugins=XCP_NG + " newfs", noreplace=False))

    assert dom0.exists(CONF + ".rpmsave")
    assert xapi_list(dom0) == XCP_NG + " newfs " + OURS


def test_an_update_of_xapi_that_keeps_an_edited_file_changes_nothing(dom0, packages):
    by_hand(dom0, packages)
    dom0.rpm("-i", packages.ours())

    dom0.rpm("-U", packages.xapi(version=2, plugins=STOCK + " newfs"))

    assert dom0.exists(CONF + ".rpmnew")
    assert xapi_list(dom0) == "ext moosefs " + OURS


@pytest.mark.parametrize("name", ["xcp-ng-linstor", "moosefs-driver"])
@pytest.mark.parametrize("file", ["99-driver.conf", "zzz-driver.conf"])
def test_a_driver_that_comes_changes_and_goes_after_us_is_followed(dom0, packages, name, file):
    stock(dom0, packages)
    before = dom0.tree()
    dom0.rpm("-i", packages.ours())

    dom0.rpm("-i", packages.driver(name, file, "ext one"))
    assert xapi_list(dom0) == "ext one " + OURS

    dom0.rpm("-U", packages.driver(name, file, "ext two", version=2))
    assert xapi_list(dom0) == "ext two " + OURS

    dom0.rpm("-e", name)
    assert xapi_list(dom0) == STOCK + " " + OURS
    assert dom0.names(CONF_D) == ["zz-relvmoiscsi.conf"]

    dom0.rpm("-e", PACKAGE)
    assert dom0.tree() == before


def test_what_rpm_saves_of_another_driver_counts_as_it_does_for_xapi(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    dom0.rpm("-i", packages.driver("other", "99-other.conf", "ext one", config=[CONF_D + "99-other.conf"]))
    dom0.write(CONF_D + "99-other.conf", "sm-plugins=ext edited\n")

    dom0.rpm("-U", packages.driver("other", "99-other.conf", "ext two", version=2, config=[CONF_D + "99-other.conf"]))

    assert dom0.names(CONF_D) == ["99-other.conf", "99-other.conf.rpmsave", "zz-relvmoiscsi.conf"]
    assert xapi_list(dom0) == "ext edited " + OURS


def test_in_an_installer_xapi_may_come_after_us(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.ours())
    assert not dom0.exists(CONF)

    dom0.rpm("-i", packages.xapi())

    assert xapi_list(dom0) == STOCK + " " + OURS


def test_all_in_one_transaction_is_the_same_as_one_after_the_other(dom0, packages):
    dom0.rpm("-i", packages.ours(), packages.xapi(), packages.sm())

    assert xapi_list(dom0) == STOCK + " " + OURS


def test_xapi_and_we_may_be_updated_and_removed_in_one_transaction(dom0, packages):
    dom0.rpm("-i", packages.sm())
    before = dom0.tree()
    dom0.rpm("-i", packages.earlier(), packages.xapi())

    dom0.rpm("-U", packages.ours(), packages.xapi(version=2, plugins="ext newfs"))

    assert xapi_list(dom0) == "ext newfs " + OURS

    dom0.rpm("-e", PACKAGE, "xapi-core")

    assert dom0.tree() == before


# --- with an rpm that knows no file triggers


def test_without_file_triggers_xapi_and_known_drivers_are_followed(dom0, packages):
    xcp_ng(dom0, packages)
    dom0.rpm("-i", packages.ours_without_file_triggers())

    dom0.rpm("-i", packages.driver("xcp-ng-linstor", "99-enable-sm-driver-linstor.conf", XCP_NG + " linstor"))
    assert xapi_list(dom0) == XCP_NG + " linstor " + OURS

    dom0.rpm("-e", "xcp-ng-linstor")
    assert xapi_list(dom0) == XCP_NG + " " + OURS

    dom0.rpm("-U", packages.xapi(version=2, plugins=XCP_NG + " newfs", noreplace=False))
    assert xapi_list(dom0) == XCP_NG + " newfs " + OURS


@pytest.mark.parametrize("change", ["package", "hand"])
def test_what_nobody_told_us_of_is_followed_when_xapi_starts(dom0, packages, change):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours_without_file_triggers())
    if change == "package":
        dom0.rpm("-i", packages.driver("moosefs-driver", "99-driver.conf", "ext moosefs"))
    else:
        dom0.write(CONF, "sm-plugins=ext moosefs\n")
    assert xapi_list(dom0) == STOCK + " " + OURS

    start_xapi(dom0)

    assert xapi_list(dom0) == "ext moosefs " + OURS


def start_xapi(dom0):
    """Run what systemd runs before xapi, as our drop-in of its unit says; a failure of it counts for nothing."""
    unit = dom0.read("/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf")
    (command,) = re.findall(r"^ExecStartPre=-(.*)$", unit, re.MULTILINE)
    return dom0.run(shlex.split(command), check=False)


def test_a_start_of_xapi_that_finds_all_in_order_says_nothing_and_touches_nothing(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    before = dom0.tree()

    started = start_xapi(dom0)

    assert started == (0, "", "")
    assert dom0.tree() == before


# --- what was installed works


def discovered(dom0, directory):
    """SR type and path of the drivers that xapi finds: names that end in SR, accepted, executable."""
    whitelist = conf.read_whitelist(dom0.path("/"))
    for name in dom0.names(directory):
        path = os.path.join(directory, name)
        is_executable = dom0.run(["test", "-x", path], check=False).status == 0
        if name.endswith("SR") and whitelist.allows(name[:-2]) and is_executable:
            yield name[:-2].lower(), path


def call(dom0, path, method, **parameters):
    """What xapi does with a driver or plugin: one argument, one document on stdout."""
    return dom0.run([path, xmlrpc.client.dumps((parameters,), method)])


def links(dom0, packages):
    """XenServer 9, should one directory become a link to the other."""
    directories = ["/usr/libexec/sm", "/usr/libexec/sm/drivers"]
    files = {"/usr/libexec/sm/drivers/LVMoISCSISR": ("#!/bin/sh\n", 0o755)}
    os.symlink("../../usr/libexec/sm/drivers", dom0.path("/opt/xensource/sm"))
    dom0.rpm("-i", packages.xapi(), packages.sm(files, directories))


def interpreters():
    yield pytest.param(None, id="python3")
    yield pytest.param(str(PYTHON36), id="python3.6")


@pytest.fixture(params=interpreters())
def dom0_of_any_python(request, tmp_path, packages):
    if request.param is not None and not os.path.exists(request.param):
        pytest.skip("there is no Python 3.6 on this machine")
    with Dom0(tmp_path / "dom0", python=request.param) as made:
        version = made.run(["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"]).stdout
        assert (version == "(3, 6)\n") is (request.param is not None)
        made.rpm("-i", packages.base())
        yield made


@pytest.mark.parametrize("prepare", [stock, links])
@pytest.mark.parametrize("directory", ["/opt/xensource/sm", "/usr/libexec/sm/drivers"])
def test_xapi_finds_the_driver_in_either_directory_and_it_answers(dom0_of_any_python, packages, prepare, directory):
    dom0 = dom0_of_any_python
    prepare(dom0, packages)
    before = dom0.tree()
    dom0.rpm("-i", packages.ours())
    installed = dom0.tree()

    names = {"relvmoiscsi": "LVHD over iSCSI with resigning of duplicates"}
    names["relvmohba"] = "LVM over HBA with new identities for clones"
    for sr_type, name in names.items():
        driver = dict(discovered(dom0, directory))[sr_type]
        ((info,), _) = xmlrpc.client.loads(call(dom0, driver, "sr_get_driver_info").stdout)
        assert info["name"] == name
        with pytest.raises(xmlrpc.client.Fault) as fault:
            xmlrpc.client.loads(call(dom0, driver, "sr_scan", command="sr_scan", device_config={}).stdout)
        assert fault.value.faultCode == 38, "the driver has not found the rest of the package"
        assert sr_type in fault.value.faultString

    assert dom0.tree() == installed, "the driver left files behind"
    dom0.rpm("-e", PACKAGE)
    assert dom0.tree() == before


def test_what_runs_is_compiled_already_and_leaves_nothing(dom0_of_any_python, packages):
    dom0 = dom0_of_any_python
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    dom0.write("/tmp/lun", "\0" * 1048576)
    installed = dom0.tree()

    version = dom0.run(["relvmoiscsi", "--version"]).stdout
    shown = dom0.run(["relvmoiscsi", "show", "--json", "/tmp/lun"]).stdout

    assert version == f"relvmoiscsi {__version__}\n"
    assert json.loads(shown)["state"] == "empty"
    assert dom0.tree() == installed
    assert used(dom0) <= compiled(dom0) <= set(installed)


def used(dom0):
    """The files that modules of a command came from, as Python says."""
    program = "import sys; sys.path.insert(0, '/usr/share/relvmoiscsi'); import relvmoiscsi.engine"
    said = dom0.run(["/usr/bin/python3", "-IBvc", program]).stderr
    found = set(re.findall(rf"code object from '?({CODE}\S+?\.pyc?)'?$", said, re.MULTILINE))
    assert found
    return found


def test_compiled_files_follow_the_code_and_the_python(dom0, packages):
    stock(dom0, packages)
    before = dom0.tree()
    dom0.rpm("-i", packages.earlier())
    dom0.write(CODE + "__pycache__/left.cpython-27.pyc", "somebody's")
    dom0.rpm("-U", packages.ours())

    assert {path for path in dom0.tree() if path.endswith(".pyc")} == compiled(dom0)
    assert not dom0.exists(CODE + "gone.py")

    dom0.write(CODE + "__pycache__/errors.cpython-27.pyc", "of the release before")
    os.unlink(dom0.path(min(compiled(dom0))))
    dom0.rpm("-i", packages.python())

    assert {path for path in dom0.tree() if path.endswith(".pyc")} == compiled(dom0)

    dom0.rpm("-e", PACKAGE, "python3")
    assert dom0.tree() == before


def test_the_pool_client_comes_and_goes_by_itself(dom0_of_any_python, packages):
    dom0, command = dom0_of_any_python, "/usr/sbin/relvmoiscsi"
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    alone = dom0.tree()
    for words in (["pool", "luns", "--target", "10.0.0.5"], ["pool", "--help"], ["pool"]):
        ran = dom0.run([command, *words], check=False)
        assert ran.status == 3 and "Install its package" in ran.stderr and "Traceback" not in ran.stderr
    assert "pool" in dom0.run([command, "--help"]).stdout

    dom0.rpm("-i", pool_package(packages.ours()))
    ran = dom0.run([command, "pool", "luns", "--pool", "xs1"], check=False)
    assert ran.status == 2 and "There is no password" in ran.stderr
    assert {path for path in dom0.tree() if path.endswith(".pyc")} == compiled(dom0)

    dom0.rpm("-e", "relvmoiscsi-pool")
    assert dom0.tree() == alone


def test_what_lies_beside_the_driver_or_in_the_environment_is_not_imported(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    for path in ("/opt/xensource/sm/xmlrpc.py", "/opt/xensource/sm/logging.py", "/tmp/relvmoiscsi/__init__.py"):
        dom0.write(path, "raise SystemExit('the wrong module')\n")

    answer = dom0.run(
        ["env", "PYTHONPATH=/tmp", "/opt/xensource/sm/ReLVMoISCSISR", xmlrpc.client.dumps((), "sr_get_driver_info")]
    )

    assert "resigning of duplicates" in answer.stdout
    assert dom0.run(["env", "PYTHONPATH=/tmp", "relvmoiscsi", "--version"]).stdout.startswith("relvmoiscsi ")


def test_the_host_plugin_answers(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())
    installed = dom0.tree()

    document = xmlrpc.client.dumps(("OpaqueRef:session", {}), "version")
    ((answer,), _) = xmlrpc.client.loads(dom0.run(["/etc/xapi.d/plugins/relvmoiscsi", document]).stdout)

    assert answer == {"Status": "Success", "Value": __version__}
    assert dom0.tree() == installed


def test_the_drop_in_of_xapi_s_unit_runs_a_program_before_it_and_nothing_else(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours())

    lines = dom0.read("/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf").split("\n")

    said = [line for line in lines if line and not line.startswith("#")]
    assert said[0] == "[Service]"
    assert [line.split("=")[0] for line in said[1:]] == ["ExecStartPre"]
    program = shlex.split(said[1].split("=-")[1])
    assert all(dom0.run(["test", "-x", path], check=False).status == 0 for path in (program[0], program[2]))
