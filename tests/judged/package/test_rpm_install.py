# SPDX-License-Identifier: LGPL-2.1-only
"""Installing, upgrading, reinstalling, removing the RPM on every kind of host: the whole file tree, before and after.

The real rpm runs the real scriptlets in a root directory of their own (dom0.py). xapi, sm and other drivers are
packages of stand-ins, with the files and the attributes that theirs have.
"""

import json
import os
import re
import shlex
import subprocess
import xmlrpc.client

import pytest

from kit.dom0 import Dom0
from kit.examples import WHOLE
from kit.packages import CONF, CONF_D, STOCK, WAS
from kit.rpm_tools import TOP, pool_package
from relvmoiscsi import __version__
from relvmoiscsi.host.xapi import conf

pytestmark = pytest.mark.root

XCP_NG = STOCK + " cephfs glusterfs xfs zfs largeblock"
PACKAGE = "relvmoiscsi"
OURS = "relvmoiscsi relvmohba"  #: SR types
CODE = "/usr/share/relvmoiscsi/relvmoiscsi/"
DROP_IN = CONF_D + "zz-relvmoiscsi.conf"
PYTHON36 = TOP / ".venv" / "py36" / "bin" / "python"


# --- hosts


@pytest.fixture
def dom0(tmp_path, packages):
    with Dom0(tmp_path / "dom0") as made:
        made.rpm("-i", packages.base())
        yield made


def stock(dom0, packages, driver=None, files=None, **of_xapi):
    """A host with sm and xapi; with another driver, and with files that nobody packaged."""
    dom0.rpm("-i", packages.sm(), packages.xapi(**of_xapi))
    if driver:
        dom0.rpm("-i", packages.driver(*driver))
    for path, text in (files or {}).items():
        dom0.write(path, text)


def installer(dom0, packages):
    """sm is there, xapi is not."""
    dom0.rpm("-i", packages.sm())


XCP_NG_S = {"plugins": XCP_NG, "noreplace": False}
LINSTOR = ("xcp-ng-linstor", "99-enable-sm-driver-linstor.conf", XCP_NG + " linstor")
LATE = ("latecomer", "zzz-latecomer.conf", "ext latecomer")
BY_HAND = "log=all\nsm-plugins=ext\n" + 'sm-plugins = "ext moosefs"   # ours\n'
OURS_BY_HAND = {CONF_D + "99-enable-relvmoiscsi.conf": "sm-plugins=ext ReLVMoISCSI relvmohba\n"}

#: host: (how it is made, what xapi accepts, what it accepts with us; None: it has no list at all, name of our drop-in)
HOSTS = {
    "stock": ({}, STOCK, STOCK + " " + OURS, DROP_IN),
    "xcp-ng": (XCP_NG_S, XCP_NG, XCP_NG + " " + OURS, DROP_IN),
    "linstor": ({"driver": LINSTOR, **XCP_NG_S}, LINSTOR[2], LINSTOR[2] + " " + OURS, DROP_IN),
    "late": ({"driver": LATE}, LATE[2], LATE[2] + " " + OURS, CONF_D + "zzz-latecomer.conf-zz-relvmoiscsi.conf"),
    "rpmsave": (
        {"files": {CONF_D + "99-old.conf.rpmsave": "sm-plugins=ext old\n"}},
        "ext old",
        "ext old " + OURS,
        DROP_IN,
    ),
    "star": ({"files": {CONF_D + "50-all.conf": "sm-plugins=*\n"}}, "*", "*", None),
    "by-hand": ({"files": {CONF: BY_HAND}}, "ext moosefs", "ext moosefs " + OURS, DROP_IN),
    "enabled-by-hand": ({"files": OURS_BY_HAND}, "ext ReLVMoISCSI relvmohba", "ext ReLVMoISCSI relvmohba", None),
    "no-directory": ({"conf_d": False}, STOCK, STOCK + " " + OURS, DROP_IN),
    "no-list": ({"files": {CONF: "log=all\n"}}, None, None, None),
    "installer": (None, None, None, None),
}


def prepare(dom0, packages, host):
    """Make the host; gives the rest of its line in HOSTS."""
    how, *rest = HOSTS[host]
    if how is None:
        installer(dom0, packages)
    else:
        stock(dom0, packages, **how)
    return rest


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


@pytest.mark.states("host")
@pytest.mark.parametrize("host", list(HOSTS))
def test_every_host_accepts_us_while_we_are_there_and_is_as_it_was_when_we_are_gone(dom0, packages, fresh, host):
    without_us, with_us, drop_in = prepare(dom0, packages, host)
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


@pytest.mark.states("host")
@pytest.mark.parametrize("host", ["stock", "late", "by-hand", "enabled-by-hand", "no-directory", "no-list"])
def test_an_upgrade_leaves_what_a_new_installation_would(dom0, packages, fresh, host):
    without_us, with_us, _ = prepare(dom0, packages, host)
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


def test_an_administrator_is_told_what_was_done_and_what_is_left_to_do(dom0, packages):
    stock(dom0, packages)

    installed = dom0.rpm("-i", packages.earlier()).stdout
    upgraded = dom0.rpm("-U", packages.ours()).stdout
    removed = dom0.rpm("-e", PACKAGE).stdout

    assert DROP_IN + " was written: the drivers of /etc/xapi.conf, relvmoiscsi and relvmohba." in installed
    assert "run xe-toolstack-restart on each of them" in installed
    assert DROP_IN + " is up to date" in upgraded and "restart" not in upgraded
    assert DROP_IN + " was removed." in removed and "run xe-toolstack-restart" in removed
    assert "lose their links" not in removed


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
    dom0.rpm("-i", packages.earlier())
    edited = dom0.read("/etc/relvmoiscsi.conf") + "[direct]\ndatabase = 36001405a0b1c2d3e4f5061728394a5b6\n"
    dom0.write("/etc/relvmoiscsi.conf", edited)

    dom0.rpm("-U", packages.ours())

    assert dom0.read("/etc/relvmoiscsi.conf") == edited
    assert dom0.read("/etc/relvmoiscsi.conf.rpmnew") == (TOP / "supp-pack/relvmoiscsi.conf").read_text()

    said = dom0.rpm("-e", PACKAGE).stdout

    assert "the LUNs in /etc/relvmoiscsi.conf lose their links" in said
    assert dom0.read("/etc/relvmoiscsi.conf.rpmsave") == edited
    assert not dom0.exists("/etc/relvmoiscsi.conf")


def test_a_configuration_that_nobody_edited_is_replaced_and_so_are_edited_rules_which_are_kept(dom0, packages):
    rules = "/etc/udev/rules.d/57-relvmoiscsi.rules"
    stock(dom0, packages)
    dom0.rpm("-i", packages.earlier())
    assert WAS in dom0.read("/etc/relvmoiscsi.conf") and WAS in dom0.read(rules)
    dom0.write(rules, "# edited\n")

    dom0.rpm("-U", packages.ours())

    assert WAS not in dom0.read("/etc/relvmoiscsi.conf")
    assert dom0.read(rules) == (TOP / "udev/57-relvmoiscsi.rules").read_text()
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


def test_a_driver_that_comes_changes_and_goes_after_us_is_followed(dom0, packages):
    name, file = "moosefs-driver", "zzz-driver.conf"
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


def test_in_an_installer_xapi_may_come_after_us(dom0, packages):
    dom0.rpm("-i", packages.sm(), packages.ours())
    assert not dom0.exists(CONF)

    dom0.rpm("-i", packages.xapi())

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
    stock(dom0, packages, **XCP_NG_S)
    dom0.rpm("-i", packages.ours_without_file_triggers())

    dom0.rpm("-i", packages.driver(*LINSTOR))
    assert xapi_list(dom0) == XCP_NG + " linstor " + OURS

    dom0.rpm("-e", "xcp-ng-linstor")
    assert xapi_list(dom0) == XCP_NG + " " + OURS

    dom0.rpm("-U", packages.xapi(version=2, plugins=XCP_NG + " newfs", noreplace=False))
    assert xapi_list(dom0) == XCP_NG + " newfs " + OURS


def test_what_nobody_told_us_of_is_followed_when_xapi_starts(dom0, packages):
    stock(dom0, packages)
    dom0.rpm("-i", packages.ours_without_file_triggers())
    dom0.rpm("-i", packages.driver("moosefs-driver", "99-driver.conf", "ext moosefs"))
    assert xapi_list(dom0) == STOCK + " " + OURS

    start_xapi(dom0)

    assert xapi_list(dom0) == "ext moosefs " + OURS

    dom0.write(CONF_D + "99-driver.conf", "sm-plugins=ext by hand\n")
    start_xapi(dom0)

    assert xapi_list(dom0) == "ext by hand " + OURS


def start_xapi(dom0):
    """Run what systemd runs before xapi, as our drop-in of its unit says; a failure of it counts for nothing."""
    unit = dom0.read("/usr/lib/systemd/system/xapi.service.d/relvmoiscsi.conf")
    section, command = [line for line in unit.split("\n") if line and not line.startswith("#")]
    assert section == "[Service]" and command.startswith("ExecStartPre=-"), "it does nothing else"
    return dom0.run(shlex.split(command.partition("=-")[2]))


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


@pytest.fixture(params=["python3", "python3.6"])
def dom0_of_any_python(request, tmp_path, packages):
    is_36 = request.param == "python3.6"
    if is_36 and not PYTHON36.exists():
        pytest.skip("there is no Python 3.6 on this machine")
    with Dom0(tmp_path / "dom0", python=str(PYTHON36) if is_36 else None) as made:
        version = made.run(["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"]).stdout
        assert (version == "(3, 6)\n") is is_36
        made.rpm("-i", packages.base())
        yield made


#: what is compiled is a matter of the Python, and where drivers are found one of the directories
PYTHONS_AND_HOSTS = [("python3", stock), ("python3.6", links)]
PYTHONS_AND_HOSTS += [("python3", links), ("python3.6", stock)] if WHOLE else []


@pytest.mark.parametrize("dom0_of_any_python, prepare", PYTHONS_AND_HOSTS, indirect=["dom0_of_any_python"])
def test_what_was_installed_works_is_compiled_already_and_leaves_nothing(dom0_of_any_python, packages, prepare):
    dom0 = dom0_of_any_python
    prepare(dom0, packages)
    before = dom0.tree()
    dom0.rpm("-i", packages.whole())
    installed = dom0.tree()

    for directory in ("/opt/xensource/sm", "/usr/libexec/sm/drivers"):
        assert_drivers_answer(dom0, directory)
    document = xmlrpc.client.dumps(("OpaqueRef:session", {}), "version")
    ((answer,), _) = xmlrpc.client.loads(dom0.run(["/etc/xapi.d/plugins/relvmoiscsi", document]).stdout)
    assert answer == {"Status": "Success", "Value": __version__}
    assert dom0.run(["relvmoiscsi", "--version"]).stdout == f"relvmoiscsi {__version__}\n"
    shown = dom0.run(
        ["sh", "-c", "head -c 1048576 /dev/zero >/tmp/lun; relvmoiscsi show --json /tmp/lun; rm /tmp/lun"]
    ).stdout
    assert json.loads(shown)["state"] == "empty"
    assert used(dom0) <= compiled(dom0) <= set(installed)

    assert dom0.tree() == installed, "a program left files behind"
    dom0.rpm("-e", PACKAGE)
    assert dom0.tree() == before


def assert_drivers_answer(dom0, directory):
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


def test_the_pool_client_comes_and_goes_by_itself(dom0, packages):
    command = "/usr/sbin/relvmoiscsi"
    stock(dom0, packages)
    dom0.rpm("-i", packages.whole())
    alone = dom0.tree()
    for words in (["pool", "luns", "--target", "10.0.0.5"], ["pool", "--help"], ["pool"]):
        ran = dom0.run([command, *words], check=False)
        assert ran.status == 3 and "Install its package" in ran.stderr and "Traceback" not in ran.stderr
    assert "pool" in dom0.run([command, "--help"]).stdout

    dom0.rpm("-i", pool_package(packages.whole()))
    ran = dom0.run([command, "pool", "luns", "--pool", "xs1"], check=False)
    assert ran.status == 2 and "The password is missing" in ran.stderr
    assert {path for path in dom0.tree() if path.endswith(".pyc")} == compiled(dom0)

    dom0.rpm("-e", "relvmoiscsi-pool")
    assert dom0.tree() == alone
